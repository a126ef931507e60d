//! The vfio-user server of one device: one VMM after another, and what each message does.
//!
//! A thread of its own, which may wait: for the VMM, for the datapath, for memory to be pinned. A second VMM waits in the
//! socket's backlog until the first has gone. When a VMM goes, however it goes, the device is reset, the guest's memory is
//! unmapped and its descriptors are closed; the next one finds the device as it was at the start.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nix::poll::{PollFlags, PollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use pvdma::{Gpa, GpaRange, MapCache, Stats};
use rnic::DeviceId;
use tokio::sync::watch;

use super::config_space::{ConfigSpace, Identity, LEN as CONFIG_LEN, MSIX_BAR, VECTORS};
use super::erdma::layout::{BAR0, PCI_CLASS, PCI_ID, SUBSYSTEM};
use super::erdma::{Function, FunctionInit};
use super::interrupts::Interrupts;
use super::message::{
    Header, Refused, Request, error_reply, irq_flags, parse, refused, region_body, reply, version_body, words,
};
use super::transport::{Connection, Ended, Message, Woken, wait};
use crate::control::{Budget, seqpacket};
use crate::datapath::{DatapathHandle, GuestId};

/// Regions: six BARs, ROM, configuration space, VGA.
const REGIONS: u32 = 9;
const CONFIG_REGION: u32 = 7;
/// Kinds of interrupts: INTx, MSI, MSI-X, error, request.
const IRQ_KINDS: u32 = 5;
const IRQ_MSIX: u32 = 2;
/// Pause after an accept that failed for lack of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// Bytes after the header of a DMA_UNMAP, which its reply repeats.
const UNMAP_BODY: usize = 24;

/// What a server is made of.
pub struct ServerInit {
    /// Device name, for threads and the log.
    pub name: String,
    /// Listening, non-blocking stream socket.
    pub listener: OwnedFd,
    /// The device in the core.
    pub device: DeviceId,
    /// Its addresses, GID 0 first.
    pub ips: Vec<IpAddr>,
    /// MAC address of the guest's network device that the driver looks for.
    pub mac: [u8; 6],
    /// The way to the datapath.
    pub datapath: DatapathHandle,
    /// What the guest's commands are charged to.
    pub budget: Arc<Budget>,
}

/// What others may know of a running server.
#[derive(Debug, Default)]
struct Shared {
    connected: AtomicBool,
    /// Set by the server's thread as soon as it has them.
    live: OnceLock<(GuestId, MapCache)>,
}

/// A device's VMM and guest memory, for people.
#[derive(Clone, Debug)]
pub struct VmView {
    /// A VMM is connected.
    pub connected: bool,
    /// In the datapath.
    pub guest: Option<GuestId>,
    /// Pinned memory.
    pub memory: Stats,
}

/// A running server. Dropping it tells it to end; it ends soon, unless a VMM keeps its interrupts' thread from ending.
pub struct Server {
    shared: Arc<Shared>,
    stop: Arc<EventFd>,
    interrupts: Arc<Interrupts>,
    ended: watch::Receiver<bool>,
}

impl Server {
    /// Starts the threads of a device.
    ///
    /// # Errors
    /// The system gives none.
    pub fn start(init: ServerInit) -> io::Result<Server> {
        let shared = Arc::new(Shared::default());
        let stop = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        let interrupts = Interrupts::start(format!("irq-{}", init.name))?;
        let (ended_tx, ended) = watch::channel(false);
        let server = Server { shared: shared.clone(), stop: stop.clone(), interrupts: interrupts.clone(), ended };
        std::thread::Builder::new().name(format!("vm-{}", init.name)).spawn(move || {
            run(init, &shared, &stop, interrupts);
            // Nobody may be waiting.
            let _ = ended_tx.send(true);
        })?;
        Ok(server)
    }

    /// The state at this moment.
    pub fn view(&self) -> VmView {
        let live = self.shared.live.get();
        VmView {
            connected: self.shared.connected.load(Ordering::Relaxed),
            guest: live.map(|(guest, _)| *guest),
            memory: live.map(|(_, cache)| cache.stats()).unwrap_or_default(),
        }
    }

    /// Tells it to end, and waits until it has, at most `limit`.
    pub async fn stop(&self, limit: Duration) {
        self.tell();
        let mut ended = self.ended.clone();
        // A thread that a VMM holds up ends whenever it is let go; it has nothing that others need.
        let _ = tokio::time::timeout(limit, ended.wait_for(|&ended| ended)).await;
    }

    fn tell(&self) {
        // The counter cannot overflow.
        let _ = self.stop.write(1);
        self.interrupts.stop();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.tell();
    }
}

fn run(init: ServerInit, shared: &Shared, stop: &EventFd, interrupts: Arc<Interrupts>) {
    let ServerInit { name, listener, device, ips, mac, datapath, budget } = init;
    let init = FunctionInit { device, ips, mac, datapath, interrupts: interrupts.clone(), budget: budget.clone() };
    let Ok(function) = Function::new(init) else { return };
    shared.live.set((function.guest(), function.memory.cache().clone())).expect("set once");
    let identity = Identity { id: PCI_ID, class: PCI_CLASS, subsystem: SUBSYSTEM, bar0: BAR0 };
    let mut device = Device { function, config: ConfigSpace::new(identity), interrupts, negotiated: false, pause: None };
    while wait(listener.as_fd(), PollFlags::POLLIN, stop, PollTimeout::NONE).is_ok() {
        let socket = match seqpacket::accept(listener.as_fd()) {
            Ok(socket) => socket,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => {
                tracing::warn!(device = name, %error, "cannot accept a VMM");
                std::thread::sleep(ACCEPT_PAUSE);
                continue;
            }
        };
        shared.connected.store(true, Ordering::Relaxed);
        tracing::info!(device = name, "a VMM has connected");
        budget.connected();
        let ended = device.serve(&Connection::new(socket, stop));
        budget.disconnected();
        device.disconnect();
        shared.connected.store(false, Ordering::Relaxed);
        tracing::info!(device = name, reason = %ended, "the VMM has gone");
        if matches!(ended, Ended::Stopped) {
            break;
        }
    }
}

/// A PCI function and its connection's state.
struct Device {
    function: Function,
    config: ConfigSpace,
    interrupts: Arc<Interrupts>,
    negotiated: bool,
    /// Until the next of the guest's commands is executed.
    pause: Option<Duration>,
}

/// What a request is answered with.
struct Answer {
    body: Vec<u8>,
}

fn body(bytes: Vec<u8>) -> Result<Answer, Refused> {
    Ok(Answer { body: bytes })
}

impl Device {
    /// Serves a connection to its end.
    fn serve(&mut self, connection: &Connection<'_>) -> Ended {
        loop {
            match self.serve_one(connection) {
                Ok(()) => {}
                Err(ended) => return ended,
            }
        }
    }

    fn serve_one(&mut self, connection: &Connection<'_>) -> Result<(), Ended> {
        loop {
            let pause =
                self.pause.map(|pause| PollTimeout::try_from(pause + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX));
            // No time-out is -1.
            let timeout = [Some(self.housekeeping()), pause].into_iter().flatten().min_by_key(|&time| i32::from(time) as u32);
            match connection.wait_for_input(self.function.pinning.as_fd(), timeout.unwrap_or(PollTimeout::NONE))? {
                Woken::Message => break,
                Woken::Other | Woken::Timeout => self.pause = self.function.work(),
            }
        }
        let Message { header, body, fds } = connection.receive()?;
        let answer = parse(header.command, &body).and_then(|request| self.handle(&header, request, &body, fds));
        let message = match &answer {
            Ok(answer) => reply(&header, &answer.body),
            Err(Refused { errno, reason }) => {
                tracing::debug!(command = header.command, errno, reason, "a message is refused");
                error_reply(&header, *errno)
            }
        };
        if !header.no_reply {
            connection.send(&message, None)?;
        }
        if !self.negotiated {
            // What comes before a version was agreed on cannot be meant for this server.
            return Err(Ended::Io(io::Error::new(io::ErrorKind::InvalidData, "the first message was no valid VERSION")));
        }
        // After the reply, so that the guest's processor goes on meanwhile.
        self.pause = self.function.work();
        Ok(())
    }

    /// Gives idle memory back, and says when to look again.
    fn housekeeping(&self) -> PollTimeout {
        let cache = self.function.memory.cache();
        let now = crate::datapath::clock().as_nanos();
        cache.release_idle(pvdma::Instant::from_nanos(now));
        match cache.next_release() {
            None => PollTimeout::NONE,
            // A second late is no harm, and at most once a second no burden.
            Some(at) => {
                let wait = at.as_nanos().saturating_sub(now) / 1_000_000 + 1000;
                PollTimeout::try_from(wait.min(60_000) as i32).unwrap_or(PollTimeout::MAX)
            }
        }
    }

    fn disconnect(&mut self) {
        self.interrupts.reset();
        self.function.disconnect();
        self.config.reset();
        self.negotiated = false;
        self.pause = None;
    }

    fn handle(&mut self, header: &Header, request: Request<'_>, bytes: &[u8], fds: Vec<OwnedFd>) -> Result<Answer, Refused> {
        if matches!(request, Request::Version { .. }) == self.negotiated {
            return Err(refused(libc::EINVAL, "VERSION comes first, and once"));
        }
        let takes_fds = matches!(request, Request::DmaMap { .. } | Request::SetIrqs { .. });
        if !takes_fds && !fds.is_empty() {
            return Err(refused(libc::EINVAL, format!("{} descriptors with command {}", fds.len(), header.command)));
        }
        match request {
            Request::Version { minor } => {
                self.negotiated = true;
                body(version_body(minor))
            }
            Request::DmaMap { rights, offset, address, size } => self.dma_map(rights, offset, address, size, fds),
            Request::DmaUnmap { all, address, size } => {
                let range = if all { None } else { Some(GpaRange::new(Gpa(address), size).map_err(invalid)?) };
                self.function.unmap(range).map_err(|error| refused(error.errno(), error.to_string()))?;
                body(bytes[..UNMAP_BODY].to_vec())
            }
            // A PCI device that can be reset.
            Request::DeviceInfo => body(words(&[16, 3, REGIONS, IRQ_KINDS])),
            Request::RegionInfo { argsz, index } => {
                let size = region_size(index).ok_or_else(|| refused(libc::EINVAL, format!("there is no region {index}")))?;
                body(region_body(argsz, index, size, &[]))
            }
            Request::IrqInfo { index } if index < IRQ_KINDS => {
                let (flags, count) = if index == IRQ_MSIX { (1, VECTORS.into()) } else { (0, 0) };
                body(words(&[16, flags, index, count]))
            }
            Request::IrqInfo { index } => Err(refused(libc::EINVAL, format!("there is no interrupt {index}"))),
            Request::SetIrqs { flags, index, start, count, data } => {
                self.set_irqs(flags, index, (start, count), data, fds)?;
                body(Vec::new())
            }
            Request::RegionRead { offset, region, count } => {
                let mut answer = bytes[..16].to_vec();
                answer.resize(16 + count, 0);
                self.region_read(region, offset, &mut answer[16..])?;
                body(answer)
            }
            Request::RegionWrite { offset, region, data } => {
                self.region_write(region, offset, data)?;
                body(bytes[..16].to_vec())
            }
            Request::Reset => {
                self.function.reset();
                self.interrupts.reset();
                self.config.reset();
                body(Vec::new())
            }
        }
    }

    fn dma_map(&mut self, rights: u32, offset: u64, address: u64, size: u64, mut fds: Vec<OwnedFd>) -> Result<Answer, Refused> {
        if fds.len() > 1 {
            return Err(refused(libc::EINVAL, format!("a DMA map with {} descriptors", fds.len())));
        }
        let object = fds.pop().map(|fd| (fd, offset));
        self.function.map(address, size, rights, object).map_err(|error| refused(error.errno(), error.to_string()))?;
        body(Vec::new())
    }

    fn set_irqs(
        &mut self,
        flags: u32,
        index: u32,
        (start, count): (u32, u32),
        data: &[u8],
        fds: Vec<OwnedFd>,
    ) -> Result<(), Refused> {
        let end = start.checked_add(count).filter(|&end| end <= VECTORS.into());
        let (Some(end), IRQ_MSIX) = (end, index) else {
            // Kinds that the device does not have may be switched off.
            let off = index < IRQ_KINDS && index != IRQ_MSIX && count == 0;
            return if off {
                Ok(())
            } else {
                Err(refused(libc::EINVAL, format!("vectors {start} + {count} of interrupt {index}")))
            };
        };
        let vectors = start as usize..end as usize;
        match flags {
            _ if flags == irq_flags::DATA_EVENTFD | irq_flags::ACTION_TRIGGER => {
                if !fds.is_empty() && fds.len() != vectors.len() {
                    return Err(refused(libc::EINVAL, format!("{} descriptors for {count} vectors", fds.len())));
                }
                // None at all takes those that are there away.
                let mut fds = fds.into_iter();
                for vector in vectors {
                    let set = self.interrupts.set(vector, fds.next());
                    set.map_err(|_| refused(libc::EINVAL, format!("the descriptor of vector {vector} is no eventfd")))?;
                }
            }
            _ if flags == irq_flags::DATA_NONE | irq_flags::ACTION_TRIGGER && count == 0 => {
                for vector in 0..VECTORS.into() {
                    self.interrupts.set(vector, None).map_err(invalid)?;
                }
            }
            _ if flags == irq_flags::DATA_NONE | irq_flags::ACTION_TRIGGER => {
                vectors.for_each(|vector| self.interrupts.raise(vector));
            }
            _ if flags == irq_flags::DATA_BOOL | irq_flags::ACTION_TRIGGER => {
                vectors.zip(data).filter(|&(_, &wanted)| wanted != 0).for_each(|(vector, _)| self.interrupts.raise(vector));
            }
            _ => return Err(refused(libc::EINVAL, format!("interrupts with flags {flags:#x}"))),
        }
        Ok(())
    }

    fn region_read(&self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), Refused> {
        if region != CONFIG_REGION {
            check_access(region, offset, data.len())?;
        }
        match region {
            0 => self.function.read(offset, data),
            CONFIG_REGION => self.config.read(offset, data),
            // The VMM has the MSI-X table; here nothing is ever pending.
            _ => data.fill(0),
        }
        Ok(())
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Refused> {
        check_access(region, offset, data.len())?;
        match region {
            0 => self.function.write(offset, data, self.config.is_bus_master()),
            CONFIG_REGION => {
                let before = self.config.is_bus_master();
                self.config.write(offset, data);
                let after = self.config.is_bus_master();
                if before && !after {
                    // Neither DMA nor interrupts from here on.
                    self.interrupts.enable(false);
                    self.function.reset();
                } else if after && !before {
                    self.interrupts.enable(true);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

fn invalid(error: impl std::fmt::Display) -> Refused {
    refused(libc::EINVAL, error.to_string())
}

/// Bytes of a region, 0 for one that is absent.
fn region_size(index: u32) -> Option<u64> {
    match index {
        0 => Some(BAR0),
        CONFIG_REGION => Some(CONFIG_LEN as u64),
        _ if index as usize == MSIX_BAR.0 => Some(MSIX_BAR.1),
        _ => (index < REGIONS).then_some(0),
    }
}

fn check_access(region: u32, offset: u64, len: usize) -> Result<(), Refused> {
    let size = region_size(region).unwrap_or(0);
    let fits = offset.checked_add(len as u64).is_some_and(|end| end <= size);
    if fits { Ok(()) } else { Err(refused(libc::EINVAL, format!("{len} bytes at {offset:#x} of region {region}"))) }
}
