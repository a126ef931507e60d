//! Commands of the guest's driver, carried out.
//!
//! Runs on the thread that serves the VMM's messages. What takes time, which is reading page lists and pinning memory, is done
//! here, or beside this thread if it is much; what changes objects is asked of the datapath, which answers between two of its
//! rounds. Memory of an object is given
//! back only once the datapath has let go of it, as the guest may use it for something else when its command completes.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use pvdma::{Gpa, GpaRange, Protection};
use rnic::QpState;
use roce::Mtu;

use super::command::{Command, CreateCq, CreateQp, Failed, ModifyQp, MrKind, QueueMemory, RegMr, failed, parse};
use super::command_queue::Fetched;
use super::function::Function;
use super::layout::{
    CONTEXT_PAGES, Context, EQE, FLAGS, LOCAL_DMA_LKEY, LOG_AHS, LOG_CQE, LOG_GIDS, LOG_MR_SIZE, LOG_RECV_WR, QBLOCK,
};
use crate::datapath::{Datapath, NewFastRegion, NewRegion, QueueRuns, clock};
use crate::pci::memory::{Pins, Run};

/// Contiguous parts of registered memory per device: each costs the daemon some 50 bytes, and a guest can name a part again
/// and again.
const MAX_RUNS: usize = 4 << 20;
/// Bytes of a registration that are pinned before the VMM's next message is looked at; more get a thread.
const AT_ONCE: u64 = 8 << 20;
/// Large registrations that wait; further commands are left in their queue until there are fewer.
const MAX_LARGE: usize = 128;
/// What GET_STATS is recognised by.
const STATS_MAGIC: u16 = 0x5566;
/// Bytes of statistics.
const STATS_BYTES: usize = 16 + 11 * 8;

/// A registration that is pinned on a thread of its own, while other commands are executed.
#[derive(Debug)]
pub(super) struct LargeRegistration {
    fetched: Fetched,
    reg: RegMr,
}

/// A response: two quads.
type Response = [u64; 2];
const DONE: Response = [0; 2];

/// Processor time of this thread.
fn thread_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

impl Function {
    /// Executes the commands that wait, and completes large registrations that have been pinned. Returns how long the next command has
    /// to wait, if the device has used up its part of the daemon's time.
    pub fn work(&mut self) -> Option<Duration> {
        self.take_up_large();
        while self.large.len() < MAX_LARGE {
            let commands = self.commands.as_mut().filter(|commands| commands.has_pending())?;
            if let Some(wait) = self.init.budget.wait(clock()) {
                self.is_held = true;
                return Some(wait);
            }
            self.init.budget.count_call(std::mem::take(&mut self.is_held));
            let begun = thread_time();
            let fetched = match commands.fetch(&self.memory) {
                Ok(fetched) => fetched?,
                Err(broken) => {
                    self.stop_commands(&broken);
                    return None;
                }
            };
            match parse(fetched.module, fetched.opcode, &fetched.bytes) {
                Ok(Command::RegMr(reg)) if reg.bytes() > AT_ONCE => {
                    self.large.push_back(LargeRegistration { fetched, reg });
                    self.take_up_large();
                }
                command => {
                    let outcome = command.and_then(|command| self.execute(command));
                    self.complete(&fetched, outcome);
                }
            }
            self.init.budget.charge(thread_time().saturating_sub(begun));
        }
        None
    }

    fn complete(&mut self, fetched: &Fetched, outcome: Result<Response, Failed>) {
        if let Err(reason) = &outcome {
            tracing::debug!(module = fetched.module, opcode = fetched.opcode, %reason, "a guest's command is refused");
        }
        let Some(commands) = &mut self.commands else { return };
        if let Err(broken) = commands.complete(&self.memory, &self.init.interrupts, fetched, outcome.ok()) {
            self.stop_commands(&broken);
        }
    }

    /// Goes on with large registrations: completes the one whose memory is pinned by now, and has the next one pinned.
    fn take_up_large(&mut self) {
        if let Some(pinned) = self.pinning.take()
            && let Some(LargeRegistration { fetched, reg }) = self.large.pop_front()
        {
            let outcome = pinned.map_err(failed).and_then(|pinned| self.reg_pinned(reg, pinned));
            self.complete(&fetched, outcome.map(|()| DONE));
        }
        while !self.pinning.is_busy()
            && let Some(LargeRegistration { reg, .. }) = self.large.front()
        {
            let (ranges, need) = (self.ranges(reg), reg.need());
            let started = ranges.and_then(|ranges| self.pinning.start(self.memory.cache(), ranges, need).map_err(failed));
            if let Err(reason) = started
                && let Some(LargeRegistration { fetched, .. }) = self.large.pop_front()
            {
                self.complete(&fetched, Err(reason));
            }
        }
    }

    /// Asks the datapath and waits for its answer.
    fn ask<R: Send + 'static>(&self, call: impl FnOnce(&mut Datapath) -> R + Send + 'static) -> Result<R, Failed> {
        let (answer, took) = self.init.datapath.timed_blocking(call).map_err(failed)?;
        self.init.budget.charge(took);
        Ok(answer)
    }

    fn execute(&mut self, command: Command) -> Result<Response, Failed> {
        let guest = self.guest;
        match command {
            Command::QueryDevice => return Ok(self.capabilities()),
            Command::QueryFirmware => return Ok([firmware_version(), 0]),
            Command::ConfDevice { page_shift } => {
                if page_shift.is_some_and(|shift| shift != 12) {
                    return Err(failed("only guests with pages of 4096 bytes are served"));
                }
            }
            Command::ConfMtu(mtu) => self.mtu = Mtu::at_most(mtu as usize).unwrap_or(Mtu::B256),
            Command::GetStats { address, len } => self.statistics(address, len)?,
            Command::CreateEq { eqn, address, depth } => self.create_eq(eqn, address, depth)?,
            Command::DestroyEq { eqn } => {
                self.ask(move |datapath| datapath.guest_destroy_eq(guest, eqn))??;
                self.eqs.remove(&eqn);
            }
            Command::AllocDb => return self.alloc_db(),
            Command::FreeDb(Context(number)) => match self.contexts.get_mut(usize::from(number - 1)) {
                Some(used) if *used => *used = false,
                _ => return Err(failed("doorbell pages that nobody has")),
            },
            Command::SetGid { index, gid } => self.gids[index] = gid,
            Command::CreateAh { ahn, address, .. } => {
                let source = self.source(address.sgid_index)?;
                self.ask(move |datapath| datapath.guest_create_ah(guest, ahn, &address, source))??;
            }
            Command::DestroyAh { ahn, .. } => self.ask(move |datapath| datapath.guest_destroy_ah(guest, ahn))??,
            Command::RegMr(reg) => self.reg_mr(reg)?,
            Command::DeregMr { index } => {
                self.ask(move |datapath| datapath.guest_dereg_mr(guest, index))??;
                self.runs -= self.mrs.remove(&index).map_or(0, |pins| pins.runs);
            }
            Command::CreateCq(create) => self.create_cq(create)?,
            Command::DestroyCq(cqn) => {
                self.ask(move |datapath| datapath.guest_destroy_cq(guest, cqn))??;
                self.cqs.remove(&cqn);
            }
            Command::CreateQp(create) => self.create_qp(*create)?,
            Command::ModifyQp(modify) => self.modify_qp(modify)?,
            Command::QueryQp(qpn) => {
                let status = self.ask(move |datapath| datapath.guest_query_qp(guest, qpn))??;
                let (sq_psn, rq_psn) = (u64::from(status.sq_psn.get()), u64::from(status.rq_psn.get()));
                return Ok([sq_psn | rq_psn << 24 | (status.state as u64) << 48 | u64::from(status.draining) << 56, 0]);
            }
            Command::DestroyQp(qpn) => {
                self.ask(move |datapath| datapath.guest_destroy_qp(guest, qpn))??;
                self.qps.remove(&qpn);
            }
            Command::Reflush { qpn, send, recv } => {
                self.ask(move |datapath| datapath.guest_reflush(guest, qpn, send, recv))??;
            }
        }
        Ok(DONE)
    }

    fn capabilities(&self) -> Response {
        let first = LOG_MR_SIZE | LOG_AHS << 8 | LOG_RECV_WR << 16 | FLAGS << 24;
        let second = LOG_CQE << 8 | LOG_GIDS << 16;
        [u64::from(first) | u64::from(second) << 32, u64::from(QBLOCK << 16) | u64::from(LOCAL_DMA_LKEY) << 32]
    }

    /// Counters of the device. The driver registers nothing before it has them once.
    fn statistics(&self, address: u64, len: u32) -> Result<(), Failed> {
        let device = self.init.device;
        let counters = self.ask(move |datapath| datapath.statuses(&[(device, Vec::new())]))?;
        let count = |name: &str| counters.first().and_then(|status| status.counters.get(name)).copied().unwrap_or(0);
        let mut bytes = Vec::with_capacity(STATS_BYTES);
        bytes.extend(STATS_MAGIC.to_le_bytes());
        bytes.extend([1, STATS_BYTES as u8]);
        bytes.extend([0; 12]);
        // Requests, packets and bytes sent, three reasons to drop; packets and bytes received, three reasons to drop.
        let (sent, received) = (count("sent_pkts"), count("rcvd_pkts"));
        for value in [sent, sent, count("sent_bytes"), 0, 0, 0, received, count("rcvd_bytes"), 0, 0, 0] {
            bytes.extend(value.to_le_bytes());
        }
        bytes.truncate(len as usize);
        self.memory.write(address, &bytes).map_err(failed)
    }

    fn create_eq(&mut self, eqn: usize, address: u64, depth: u32) -> Result<(), Failed> {
        if !address.is_multiple_of(EQE) {
            return Err(failed(format_args!("an event queue at {address:#x}")));
        }
        let range = GpaRange::new(Gpa(address), u64::from(depth) * EQE).map_err(failed)?;
        let (pins, runs) = self.memory.pin(&[range], Protection::WRITE).map_err(failed)?;
        let guest = self.guest;
        self.ask(move |datapath| datapath.guest_create_eq(guest, eqn, runs, depth))??;
        self.eqs.insert(eqn, pins);
        Ok(())
    }

    /// The driver maps the page in the upper bits for completion queues and the one below for receive queues, though it calls
    /// them the other way round when it gives them back.
    fn alloc_db(&mut self) -> Result<Response, Failed> {
        let index = self.contexts.iter().position(|used| !used).ok_or_else(|| failed("all doorbell pages are taken"))?;
        self.contexts[index] = true;
        let [send, recv, cq] = CONTEXT_PAGES.map(|first| u64::from(first) + index as u64);
        Ok([send | recv << 32 | cq << 48, 0])
    }

    fn reg_mr(&mut self, reg: RegMr) -> Result<(), Failed> {
        if reg.kind == MrKind::Dma {
            let RegMr { index, key, pdn, access, .. } = reg;
            let (guest, new) = (self.guest, NewRegion { index, key, pdn, iova: 0, access, runs: Vec::new() });
            return self.ask(move |datapath| datapath.guest_reg_all(guest, new))?;
        }
        if let MrKind::Fast { list, capacity, shift } = reg.kind {
            let range = GpaRange::new(Gpa(list), 8 * u64::from(capacity)).map_err(failed)?;
            let (pins, list) = self.memory.pin(&[range], Protection::READ).map_err(failed)?;
            let (guest, new) = (self.guest, NewFastRegion { index: reg.index, pdn: reg.pdn, capacity, shift, list });
            self.ask(move |datapath| datapath.guest_reg_fast(guest, new))??;
            self.runs += pins.runs;
            self.mrs.insert(reg.index, pins);
            return Ok(());
        }
        let pinned = self.memory.pin(&self.ranges(&reg)?, reg.need()).map_err(failed)?;
        self.reg_pinned(reg, pinned)
    }

    /// The memory of a registration, as its list says.
    fn ranges(&self, reg: &RegMr) -> Result<Vec<GpaRange>, Failed> {
        let MrKind::Normal { pages, .. } = &reg.kind else { return Ok(Vec::new()) };
        let ranges = pages.ranges(&self.memory)?;
        if self.runs + ranges.len() > MAX_RUNS {
            return Err(failed(format_args!("regions of more than {MAX_RUNS} parts that are not contiguous")));
        }
        Ok(ranges)
    }

    fn reg_pinned(&mut self, reg: RegMr, (pins, runs): (Pins, Vec<Run>)) -> Result<(), Failed> {
        let RegMr { index, key, pdn, access, kind } = reg;
        let MrKind::Normal { iova, .. } = kind else { return Err(failed("a region without a list")) };
        let (guest, new) = (self.guest, NewRegion { index, key, pdn, iova, access, runs });
        self.ask(move |datapath| datapath.guest_reg_mr(guest, new))??;
        self.runs += pins.runs;
        self.mrs.insert(index, pins);
        Ok(())
    }

    /// The ring and the record of a queue, pinned.
    fn queue(&self, queue: &QueueMemory, need: Protection) -> Result<(Vec<Pins>, QueueRuns), Failed> {
        let (ring_pins, ring) = self.memory.pin(&queue.pages.ranges(&self.memory)?, need).map_err(failed)?;
        let record = GpaRange::new(Gpa(queue.record), 8).map_err(failed)?;
        let (record_pins, record) = self.memory.pin(&[record], Protection::READ).map_err(failed)?;
        Ok((vec![ring_pins, record_pins], QueueRuns { ring, record }))
    }

    fn create_cq(&mut self, create: CreateCq) -> Result<(), Failed> {
        let CreateCq { cqn, eqn, queue, context } = create;
        // Its record repeats what its doorbell says, and holds garbage at first: it is not looked at.
        let (pins, ring) = self.memory.pin(&queue.pages.ranges(&self.memory)?, Protection::WRITE).map_err(failed)?;
        let (guest, depth) = (self.guest, queue.depth);
        self.ask(move |datapath| datapath.guest_create_cq(guest, cqn, eqn, context, depth, ring))??;
        self.cqs.insert(cqn, pins);
        Ok(())
    }

    fn create_qp(&mut self, create: CreateQp) -> Result<(), Failed> {
        let (mut pins, send) = self.queue(&create.send, Protection::READ)?;
        let (more, recv) = self.queue(&create.recv, Protection::READ)?;
        pins.extend(more);
        let (guest, qpn) = (self.guest, create.qpn);
        self.ask(move |datapath| datapath.guest_create_qp(guest, &create, send, recv))??;
        self.qps.insert(qpn, pins);
        Ok(())
    }

    fn modify_qp(&mut self, modify: ModifyQp) -> Result<(), Failed> {
        let source = match &modify.address {
            Some(address) if modify.state != QpState::Reset => self.source(address.sgid_index)?,
            _ => 0,
        };
        let (guest, mtu) = (self.guest, self.mtu);
        self.ask(move |datapath| datapath.guest_modify_qp(guest, &modify, source, mtu))?
    }

    /// The device's own index of the address that the guest has at this index of its table. The guest may use the addresses that
    /// the device was made with and no others, whatever its network device has.
    fn source(&self, index: u16) -> Result<u8, Failed> {
        let gid = self.gids.get(usize::from(index)).copied().flatten();
        let gid = gid.ok_or_else(|| failed(format_args!("the guest's GID table has nothing at {index}")))?;
        let position = self.init.ips.iter().position(|&ip| roce::Gid::from(ip) == gid);
        let position = position.ok_or_else(|| failed(format_args!("{} is not an address of this device", gid.ip())))?;
        u8::try_from(position).map_err(failed)
    }
}

/// As user space prints it: 0.(31:16).(15:0).
fn firmware_version() -> u64 {
    let mut numbers = env!("CARGO_PKG_VERSION").split('.').map(|number| number.parse::<u64>().unwrap_or(0) & 0xFFFF);
    let (major, minor) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    major << 16 | minor
}
