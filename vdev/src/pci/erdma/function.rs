//! The registers and doorbells of the function, and its life: init, reset, what happens when the VMM goes.
//!
//! Runs on the thread that serves the VMM's messages. A register write is over when this returns, with two exceptions: commands
//! are executed by [`Function::work`], after the VMM has its reply, and doorbells are handed to the datapath without waiting.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use pvdma::{Gpa, GpaRange, Protection};
use rnic::DeviceId;
use roce::{Gid, Mtu};

use super::command_queue::{CommandQueue, Rings};
use super::execute::LargeRegistration;
use super::layout::{BAR0, CONTEXTS, DoorbellPage, EQE, EVENT_QUEUES, LOG_GIDS, PAGE, control, doorbell_page, reg};
use crate::control::Budget;
use crate::datapath::{DatapathHandle, GuestId};
use crate::pci::Interrupts;
use crate::pci::memory::{GuestMemory, Pins};
use crate::pci::pinning::Pinning;

/// What a function is made of.
pub struct FunctionInit {
    /// Its device in the core.
    pub device: DeviceId,
    /// The device's addresses, GID 0 first.
    pub ips: Vec<IpAddr>,
    /// MAC address of the network device that the guest's driver looks for.
    pub mac: [u8; 6],
    /// The way to the datapath.
    pub datapath: DatapathHandle,
    /// Its interrupts.
    pub interrupts: Arc<Interrupts>,
    /// What its commands are charged to.
    pub budget: Arc<Budget>,
}

/// The function.
pub struct Function {
    pub(super) init: FunctionInit,
    pub(super) guest: GuestId,
    /// The guest's memory.
    pub memory: GuestMemory,
    /// Page 0 as last written, by 32-bit word.
    written: [u32; (PAGE / 4) as usize],
    /// While the device is initialised and works.
    pub(super) commands: Option<CommandQueue>,
    /// Of asynchronous events, for as long as the device is initialised.
    _aeq: Option<Pins>,
    /// Memory of regions, completion queues, queue pairs and event queues.
    pub(super) mrs: HashMap<u32, Pins>,
    pub(super) cqs: HashMap<u32, Pins>,
    pub(super) qps: HashMap<u32, Vec<Pins>>,
    pub(super) eqs: HashMap<usize, Pins>,
    /// Parts of registered memory, for their limit.
    pub(super) runs: usize,
    /// Large registrations: the first is being pinned, the others wait for that.
    pub(super) large: VecDeque<LargeRegistration>,
    /// What pins them; readable when there is something to be taken up by [`Self::work`].
    pub pinning: Pinning,
    /// The guest's GID table.
    pub(super) gids: [Option<Gid>; 1 << LOG_GIDS],
    /// Doorbell pages given out.
    pub(super) contexts: [bool; CONTEXTS as usize],
    /// What the guest's network device carries.
    pub(super) mtu: Mtu,
    may_dma: bool,
    /// The next command waits for the budget.
    pub(super) is_held: bool,
}

/// What the driver assumes before the first change: an Ethernet MTU of 1500.
const FIRST_MTU: Mtu = Mtu::B1024;

impl Function {
    /// As after power-on.
    ///
    /// # Errors
    /// The daemon is stopping, or has no descriptor left.
    pub fn new(init: FunctionInit) -> io::Result<Function> {
        let pinning = Pinning::new()?;
        let (device, interrupts) = (init.device, init.interrupts.clone());
        // Devices with addresses of both families take datagrams of the first one's.
        let ipv6 = init.ips[0].is_ipv6();
        let guest = init.datapath.call_blocking(move |datapath| datapath.attach_guest(device, ipv6, interrupts));
        let guest = guest.map_err(io::Error::other)?;
        Ok(Function {
            init,
            guest,
            memory: GuestMemory::new(),
            written: [0; (PAGE / 4) as usize],
            commands: None,
            _aeq: None,
            mrs: HashMap::new(),
            cqs: HashMap::new(),
            qps: HashMap::new(),
            eqs: HashMap::new(),
            runs: 0,
            large: VecDeque::new(),
            pinning,
            gids: [None; 1 << LOG_GIDS],
            contexts: [false; CONTEXTS as usize],
            mtu: FIRST_MTU,
            may_dma: false,
            is_held: false,
        })
    }

    /// In the datapath.
    pub fn guest(&self) -> GuestId {
        self.guest
    }

    /// Ends all that the guest's driver made. When this returns, there is neither DMA nor an interrupt of it any more.
    pub fn reset(&mut self) {
        let guest = self.guest;
        // A datapath that has ended has let go of everything.
        let _ = self.init.datapath.call_blocking(move |datapath| datapath.reset_guest(guest));
        self.init.interrupts.clear();
        self.written = [0; (PAGE / 4) as usize];
        self.commands = None;
        self._aeq = None;
        self.end_large();
        self.mrs.clear();
        self.cqs.clear();
        self.qps.clear();
        self.eqs.clear();
        self.runs = 0;
        self.gids = [None; 1 << LOG_GIDS];
        self.contexts = [false; CONTEXTS as usize];
        self.mtu = FIRST_MTU;
    }

    /// The VMM has gone: a reset, and the guest's memory goes too.
    pub fn disconnect(&mut self) {
        self.reset();
        if let Err(error) = self.unmap(None) {
            tracing::error!(%error, "the memory of a guest that has gone");
        }
    }

    /// Guest memory appears; the descriptor, if any, is its object.
    ///
    /// # Errors
    /// See [`pvdma::MapError`].
    pub fn map(&mut self, address: u64, size: u64, rights: u32, object: Option<(OwnedFd, u64)>) -> Result<(), pvdma::MapError> {
        self.memory.map(address, size, rights, object)?;
        let (guest, regions) = (self.guest, self.memory.regions(None));
        self.init.datapath.post(move |datapath| datapath.set_guest_memory(guest, regions));
        Ok(())
    }

    /// Guest memory goes, all of it or the regions in a range. When this returns nobody accesses it any more.
    ///
    /// # Errors
    /// See [`pvdma::UnmapError`].
    pub fn unmap(&mut self, range: Option<GpaRange>) -> Result<(), pvdma::UnmapError> {
        let regions = self.memory.regions(range);
        if !regions.is_empty() {
            // Those that the map then refuses to unmap, as the range would split a neighbour, are out of use all the same.
            let guest = self.guest;
            let _ = self.init.datapath.call_blocking(move |datapath| datapath.end_guest_memory(guest, &regions));
        }
        self.memory.unmap(range)
    }

    /// Reads BAR 0; any length.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        for (at, byte) in (offset..).zip(data.iter_mut()) {
            *byte = self.register(at & !3).to_le_bytes()[(at & 3) as usize];
        }
    }

    fn register(&self, at: u64) -> u32 {
        let mac = self.init.mac;
        match at {
            reg::VERSION | reg::PROTOCOL => 1,
            reg::STATUS => u32::from(self.commands.is_some()) << 1,
            reg::MAC_LOW => u32::from_be_bytes([mac[2], mac[3], mac[4], mac[5]]),
            reg::MAC_HIGH => u32::from_be_bytes([0, 0, mac[0], mac[1]]),
            // Everything else is write-only or of no meaning.
            _ => 0,
        }
    }

    /// Writes BAR 0. Accesses of 4 and 8 bytes are what drivers make; of others nothing comes. Neither does of an init or a
    /// doorbell while the function may not do DMA.
    pub fn write(&mut self, offset: u64, data: &[u8], may_dma: bool) {
        self.may_dma = may_dma;
        if offset >= BAR0 || !offset.is_multiple_of(4) {
            return;
        }
        match data.len() {
            4 => self.write_word(offset, u32::from_le_bytes(data.try_into().expect("four bytes"))),
            8 => {
                let value = u64::from_le_bytes(data.try_into().expect("eight bytes"));
                if offset.is_multiple_of(8) && is_doorbell(offset) {
                    self.doorbell(offset, value);
                } else {
                    self.write_word(offset, value as u32);
                    self.write_word(offset + 4, (value >> 32) as u32);
                }
            }
            _ => {}
        }
    }

    /// A register, or half of a doorbell: a doorbell written in two halves rings with the upper one.
    fn write_word(&mut self, offset: u64, value: u32) {
        let word = (offset % PAGE / 4) as usize;
        if is_doorbell(offset & !7) {
            if offset.is_multiple_of(8) {
                self.written[word] = value;
            } else {
                self.doorbell(offset - 4, u64::from(value) << 32 | u64::from(self.written[word - 1]));
            }
            return;
        }
        if offset >= PAGE {
            return;
        }
        self.written[word] = value;
        if offset == reg::CONTROL {
            self.control(value);
        }
    }

    fn control(&mut self, value: u32) {
        let kept = self.written;
        if value & (control::RESET | control::INIT) != 0 {
            // A guest that crashed never said reset.
            self.reset();
        }
        if value & control::INIT != 0 && self.may_dma {
            self.written = kept;
            if let Err(reason) = self.initialise() {
                tracing::warn!(reason, "a guest's driver cannot be served");
                self.reset();
            }
        }
    }

    fn initialise(&mut self) -> Result<(), String> {
        let word = |at: u64| self.written[(at / 4) as usize];
        // The low half of these is at the lower address.
        let address = |at: u64| u64::from(word(at + 4)) << 32 | u64::from(word(at));
        let rings = Rings {
            sq: address(reg::CMD_SQ_ADDR),
            cq: address(reg::CMD_CQ_ADDR),
            eq: address(reg::CMD_EQ_ADDR),
            depth: word(reg::CMD_DEPTH),
            eq_depth: word(reg::CMD_EQ_DEPTH),
        };
        let commands = CommandQueue::new(rings).ok_or_else(|| format!("no command queue is like {rings:?}"))?;
        let (aeq, depth) = (address(reg::AEQ_ADDR), word(reg::AEQ_DEPTH));
        if !depth.is_power_of_two() || depth > 1 << 15 {
            return Err(format!("an asynchronous event queue of {depth} entries"));
        }
        let range = GpaRange::new(Gpa(aeq), u64::from(depth) * EQE).map_err(|error| error.to_string())?;
        let (pins, runs) = self.memory.pin(&[range], Protection::WRITE).map_err(|error| error.to_string())?;
        let guest = self.guest;
        let made = self.init.datapath.call_blocking(move |datapath| datapath.guest_create_eq(guest, 0, runs, depth));
        made.map_err(|gone| gone.to_string())?.map_err(|error| error.to_string())?;
        self._aeq = Some(pins);
        self.commands = Some(commands);
        Ok(())
    }

    fn doorbell(&mut self, offset: u64, value: u64) {
        if !self.may_dma {
            return;
        }
        let guest = self.guest;
        let post = &self.init.datapath;
        match offset {
            reg::AEQ_DB => post.post(move |datapath| datapath.guest_eq_doorbell(guest, 0, value)),
            reg::EQ_DB => {
                if let Some(commands) = &mut self.commands {
                    commands.arm_events(&self.init.interrupts, value);
                }
            }
            _ if eq_of(offset).is_some() => {
                let eqn = eq_of(offset).expect("just seen");
                post.post(move |datapath| datapath.guest_eq_doorbell(guest, eqn, value));
            }
            reg::CMD_SQ_DB => {
                if let Some(commands) = &mut self.commands {
                    commands.ring(value);
                }
            }
            reg::CMD_CQ_DB => {
                let armed = self.commands.as_mut().map(|commands| commands.arm(&self.memory, &self.init.interrupts, value));
                if let Some(Err(broken)) = armed {
                    self.stop_commands(&broken);
                }
            }
            _ => match doorbell_page(offset / PAGE) {
                Some(DoorbellPage::Send(context)) => {
                    post.post(move |datapath| datapath.guest_send_doorbell(guest, context, value));
                }
                Some(DoorbellPage::RecvOrCq(context)) => post.post(move |datapath| {
                    datapath.guest_recv_doorbell(guest, context, value);
                    datapath.arm_guest_cq(guest, context, value);
                }),
                Some(DoorbellPage::KernelRecv) => {
                    post.post(move |datapath| datapath.guest_recv_doorbell(guest, super::layout::Context::KERNEL, value));
                }
                Some(DoorbellPage::KernelCq) => {
                    post.post(move |datapath| datapath.arm_guest_cq(guest, super::layout::Context::KERNEL, value));
                }
                None => {}
            },
        }
    }

    /// Registrations that nobody waits for any more.
    fn end_large(&mut self) {
        self.pinning.cancel();
        self.large.clear();
    }

    /// Nothing is executed any more until the next init: the driver's commands run into their time limit.
    pub(super) fn stop_commands(&mut self, reason: &dyn std::fmt::Display) {
        tracing::warn!(%reason, "a guest's command queue has stopped");
        self.commands = None;
        self.end_large();
    }
}

/// Number of the completion event queue whose doorbell lies here.
fn eq_of(offset: u64) -> Option<usize> {
    let eqn = offset.checked_sub(reg::EQ_DB)? / 8;
    (1..EVENT_QUEUES as u64).contains(&eqn).then_some(eqn as usize)
}

/// Whether 8 bytes here are one doorbell.
fn is_doorbell(offset: u64) -> bool {
    matches!(offset, reg::AEQ_DB | reg::EQ_DB | reg::CMD_SQ_DB | reg::CMD_CQ_DB) || eq_of(offset).is_some() || offset >= PAGE
}

impl Drop for Function {
    fn drop(&mut self) {
        self.disconnect();
        let guest = self.guest;
        let _ = self.init.datapath.call_blocking(move |datapath| datapath.detach_guest(guest));
    }
}
