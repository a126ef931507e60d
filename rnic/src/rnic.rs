//! The public face of the core's data path: posting, packets, time, and what comes out.

use crate::attr::{QpState, QpType};
use crate::counters::DropCounters;
use crate::dma::Dma;
use crate::error::PostError;
use crate::event::{AsyncEvent, Work};
use crate::ids::IdTable;
use crate::limits::{self, COPY_QUANTUM, MAX_PACKET};
use crate::qp::access::total_length;
use crate::qp::state::check_address;
use crate::qp::{Path, Qp, RecvWqe, SendWqe, Wait};
use crate::shared::{Scratch, Shared};
use crate::work::{Completion, CqId, DeviceId, LocalBuffer, RecvRequest, SendOp, SendRequest};
use alloc::boxed::Box;
use core::time::Duration;
use isolation::Class;
use roce::{Instant, Psn, Qpn};

/// What a core is started with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where QPNs and keys start. The same seed and the same calls give the same results.
    pub seed: u64,
    /// Whether two devices of this core talk by copying; otherwise through packets like everyone else.
    pub local_path: bool,
    /// What there is to share between devices.
    pub sharing: isolation::Config,
    /// Whether reliable connections to other hosts offer, and use, many paths; `None`, the default: neither.
    pub multipath: Option<MultipathConfig>,
}

/// How connections use many paths, once the peer has agreed (`spray/WIRE.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MultipathConfig {
    /// How paths are chosen.
    pub policy: spray::Policy,
    /// How many there are, 1 to [`spray::MAX_PATHS`].
    pub paths: u16,
    /// Packets that each end takes out of order, 1 to [`spray::MAX_WINDOW`].
    pub window: u16,
    /// Packets in flight at most, 1 or more. The window has to be larger where packets are lost: those behind a lost one keep their
    /// places until it has come, and only the others are in flight.
    pub flight: u16,
    /// The law of the congestion window.
    pub law: spray::Law,
    /// Delay beyond the least round-trip time that is never taken for congestion: what the ends' processors may add.
    pub delay: core::time::Duration,
    /// Bounds of the retransmission time-out.
    pub loss: spray::LossLimits,
    /// Every peer is known to do the same, with the same window: connections use many paths from their first packet, without asking.
    pub agreed: bool,
    /// The network cuts packets that do not fit a queue behind their headers, and [`crate::RxMeta::trimmed`] is told of those: the
    /// sender hears of each at once.
    pub trimmed: bool,
}

impl Default for MultipathConfig {
    /// Many paths, agreed with each peer, between ends that have a processor for themselves and switches that trim nothing.
    fn default() -> Self {
        MultipathConfig {
            policy: spray::Policy::Mixed,
            paths: spray::DEFAULT_PATHS,
            window: 256,
            flight: 256,
            law: spray::Law::Proportional,
            delay: core::time::Duration::from_micros(50),
            loss: spray::LossLimits::default(),
            agreed: false,
            trimmed: false,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Config { seed: 0, local_path: true, sharing: isolation::Config::default(), multipath: None }
    }
}

/// The software RNIC. See the crate's documentation.
pub struct Rnic {
    pub(crate) qps: IdTable<Box<Qp>>,
    pub(crate) shared: Shared,
    pub(crate) scratch: Scratch,
}

impl Rnic {
    /// A core without devices.
    pub fn new(config: Config) -> Self {
        let seed = config.seed ^ roce::rng::mix(5);
        Rnic {
            qps: IdTable::new(limits::MAX_QPS, limits::QPN_BITS, seed),
            shared: Shared::new(config),
            scratch: Scratch::default(),
        }
    }

    /// Posts a send request. It is executed by later calls of [`Self::poll_transmit`]. In state ERR it is flushed.
    ///
    /// # Errors
    /// `State` unless the queue pair is in RTS, SQD, SQE or ERR; `Full` if as many requests as the queue holds are
    /// outstanding; `Invalid` for too many buffers, more than 2^31 bytes, an atomic with less than 8 bytes to put the result
    /// into, a `Direct` buffer to write to, buffers of a request that has no message, a SEND with both immediate data and a key to invalidate, an operation that the
    /// queue pair's type does not have, a shared receive queue that is named where none can be or not where one must be, or a datagram
    /// to an address that cannot be reached from this device.
    pub fn post_send(&mut self, now: Instant, qpn: Qpn, request: &SendRequest<'_>) -> Result<(), PostError> {
        self.shared.schedule.now = now;
        let qp = self.qps.get_mut(qpn.get()).ok_or(PostError::State)?;
        if matches!(qp.state, QpState::Reset | QpState::Init | QpState::Rtr) {
            return Err(PostError::State);
        }
        let is_datagram = matches!(request.op, SendOp::Datagram { .. });
        let names_queue = qp.qp_type == QpType::XrcSend && !request.op.is_local();
        if request.buffers.len() > qp.sq.max_sge()
            || is_datagram != (qp.qp_type == QpType::Ud)
            || qp.qp_type == QpType::XrcRecv
            || names_queue != request.srqn.is_some()
        {
            return Err(PostError::Invalid);
        }
        let total = total_length(request.buffers);
        let (length, packets) = match request.op {
            SendOp::Atomic { .. } => (8, 1),
            SendOp::Datagram { .. } => (total, 1),
            SendOp::BindWindow(_) | SendOp::LocalInvalidate { .. } | SendOp::Nothing => (0, 0),
            _ => (total, total.div_ceil(u64::from(qp.mtu())).max(1)),
        };
        let valid = total <= limits::MAX_MSG
            && match request.op {
                SendOp::Send { invalidate: Some(_), .. } if qp.is_unreliable() => false,
                SendOp::Send { imm, invalidate } => imm.is_none() || invalidate.is_none(),
                SendOp::Write { .. } => true,
                SendOp::Read { .. } => !qp.is_unreliable() && all_keyed(request.buffers),
                SendOp::Atomic { .. } => !qp.is_unreliable() && total >= 8 && all_keyed(request.buffers),
                SendOp::Datagram { to, .. } => {
                    let device = self.shared.devices.get(qp.device.0);
                    device.is_some_and(|device| check_address(&to.address, device).is_ok())
                }
                SendOp::BindWindow(_) | SendOp::LocalInvalidate { .. } | SendOp::Nothing => request.buffers.is_empty(),
            };
        if !valid {
            return Err(PostError::Invalid);
        }
        if qp.sq.is_full() {
            return Err(PostError::Full);
        }
        let wqe = SendWqe {
            wr_id: request.wr_id,
            op: request.op,
            // Both were bounded by MAX_MSG above.
            length: length as u32,
            packets: packets as u32,
            first_psn: Psn::new(0),
            flags: request.flags,
            srqn: request.srqn,
        };
        let index = qp.sq.tail;
        qp.sq.push(wqe, request.buffers);
        qp.flow.classifier.note(wqe.length, qp.sq.len());
        if qp.measured.is_none() && qp.flow.classifier.class() == Class::Latency {
            qp.measured = self.shared.latencies.posted(now).map(|posted| (index, posted));
        }
        match qp.state {
            QpState::Err | QpState::Sqe => qp.flush_sends(&mut self.shared),
            _ => qp.schedule(&mut self.shared),
        }
        Ok(())
    }

    /// Posts a receive. In state ERR it is flushed.
    ///
    /// # Errors
    /// `State` if the queue pair is in RESET or does not exist; `Full` if as many receives as the queue holds are
    /// outstanding; `Invalid` for too many buffers, one that is not `Keyed`, or a queue pair that has no receives of its own.
    pub fn post_recv(&mut self, _now: Instant, qpn: Qpn, request: &RecvRequest<'_>) -> Result<(), PostError> {
        let qp = self.qps.get_mut(qpn.get()).ok_or(PostError::State)?;
        if qp.state == QpState::Reset {
            return Err(PostError::State);
        }
        if qp.srq.is_some() || matches!(qp.qp_type, QpType::XrcSend | QpType::XrcRecv) {
            return Err(PostError::Invalid);
        }
        let receive = RecvWqe::new(request, &qp.rq)?;
        if qp.rq.is_full() {
            return Err(PostError::Full);
        }
        qp.rq.push(receive, request.buffers);
        if qp.state == QpState::Err {
            qp.flush(&mut self.shared);
        } else {
            self.wake_local_peer(qpn);
        }
        Ok(())
    }

    /// A peer on the local path that waits for a receive of this queue pair need not wait any longer.
    pub(crate) fn wake_local_peer(&mut self, qpn: Qpn) {
        let Some(qp) = self.qps.get_mut(qpn.get()) else { return };
        if !core::mem::take(&mut qp.resp.starved_local_peer) {
            return;
        }
        let Path::Local(device) = qp.path else { return };
        let peer = self.shared.queue_pair(device, qp.attr.dest_qpn);
        if let Some(qp) = self.qps.get_mut(peer.get())
            && qp.wait == Wait::Rnr
            && matches!(qp.path, Path::Local(_))
        {
            qp.stop_timer();
            qp.schedule(&mut self.shared);
        }
    }

    /// Does everything whose time has come. Call it when [`Self::poll_timeout`] is reached, or more often.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.shared.schedule.now = now;
        while let Some((at, qpn)) = self.shared.timers.pop(now) {
            let Some(qp) = self.qps.get_mut(qpn.get()) else { continue };
            if self.shared.timers.is_due(qpn, &mut qp.timer, at, now) {
                qp.handle_timeout(&mut self.shared, now);
            }
        }
    }

    /// When [`Self::handle_timeout`] wants to be called; it may turn out that nothing was to be done.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let turn = self.shared.schedule.arbiter.poll_timeout();
        [self.shared.timers.next(), turn].into_iter().flatten().min()
    }

    /// Does one step of work: makes a burst of packets for one queue pair in `buf`, or executes requests of one queue pair on
    /// the local path. `None`: nothing to do now. `buf` should be 60 KiB long; at least one packet must fit (4200 bytes).
    pub fn poll_transmit(&mut self, now: Instant, dma: &mut impl Dma, buf: &mut [u8]) -> Option<Work> {
        self.shared.schedule.now = now;
        if let Some(work) = self.mad_step(dma, buf) {
            return Some(work);
        }
        loop {
            let grant = self.shared.schedule.take()?;
            let qpn = grant.qpn;
            let Some(qp) = self.qps.get_mut(qpn.get()) else {
                self.shared.schedule.charge(&grant, None, false);
                continue;
            };
            qp.flow.begin_turn();
            self.scratch.turn_packets = grant.max_packets as usize;
            let turn_bytes = grant.max_bytes.clamp(MAX_PACKET, COPY_QUANTUM);
            let room = buf.len().min(turn_bytes as usize);
            let buf = &mut buf[..room];
            let work = match qp.path {
                Path::Unset => None,
                Path::Local(peer) => self.local_step(now, qpn, peer, dma, turn_bytes),
                Path::PerRequest => self.datagram_step(qpn, dma, buf),
                Path::Wire(flow) => qp.transmit(&mut self.shared, &mut self.scratch, now, flow, dma, buf).map(Work::Packets),
            };
            let within_message = self.qps.get(qpn.get()).is_some_and(|qp| qp.is_within_message());
            self.shared.schedule.charge(&grant, work.as_ref(), within_message);
            if work.is_some() {
                return work;
            }
        }
    }

    /// How long one of many small messages of a device took, from its post to its completion: of those of the latency class, one in 16.
    pub fn poll_latency(&mut self) -> Option<(DeviceId, Duration)> {
        self.shared.latencies.poll()
    }

    /// The oldest completion. The caller writes it to its completion queue at once.
    pub fn poll_completion(&mut self) -> Option<(CqId, Completion)> {
        self.shared.completions.pop()
    }

    /// The oldest asynchronous event.
    pub fn poll_event(&mut self) -> Option<AsyncEvent> {
        self.shared.events.pop_front()
    }

    /// Packets that were dropped before they reached a queue pair.
    pub fn drop_counters(&self) -> &DropCounters {
        &self.shared.drops
    }
}

fn all_keyed(buffers: &[LocalBuffer]) -> bool {
    buffers.iter().all(|buffer| matches!(buffer, LocalBuffer::Keyed { .. }))
}
