//! A queue pair: its queues, its connection, and what happens to both when its state changes.
//!
//! On the wire, [`requester`] sends requests and [`response`] takes their answers; [`request`] takes a peer's requests and
//! [`reply`] answers them. [`local`] does all of that at once for two queue pairs of one host, and [`own`] what concerns this side alone. [`responder`] is what a message
//! does to this side, and [`access`] the checks before it, on both paths. [`datagram`] is the unreliable datagram service, both ways
//! and on both paths, [`unreliable`] what is different for unreliable connections, and [`extended`] for extended reliable ones.

pub(crate) mod access;
pub(crate) mod burst;
pub(crate) mod datagram;
pub(crate) mod extended;
pub(crate) mod local;
pub(crate) mod multipath;
pub(crate) mod own;
pub(crate) mod queue;
pub(crate) mod reply;
pub(crate) mod request;
pub(crate) mod requester;
pub(crate) mod responder;
pub(crate) mod response;
pub(crate) mod retry;
pub(crate) mod state;
pub(crate) mod transmit;
pub(crate) mod unreliable;
pub(crate) mod window;

use crate::attr::{AddressVector, QpAttr, QpAttrMask, QpCaps, QpInit, QpState, QpType};
use crate::event::AsyncEvent;
use crate::shared::Shared;
use crate::srq::Srq;
use crate::timers::Timer;
use crate::vendor_err;
use crate::work::{Completion, CompletionFlags, CqId, DeviceId, Opcode, PdId, SendFlags, SendOp, SrqId, Status, XrcdId};
use alloc::boxed::Box;
use isolation::TenantId;
use multipath::Multipath;
use queue::Ring;
pub(crate) use queue::{RecvWqe, SendWqe};
use requester::Requester;
use responder::Responder;
use roce::wire::icrc::Flow;
use roce::{Instant, Mtu, Psn, Qpn};

/// The way to the peer, decided on the change to RTR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    Unset,
    /// The peer is a device of the same `Rnic`.
    Local(DeviceId),
    Wire(Flow),
    /// Each datagram has its own.
    PerRequest,
}

/// What a queue pair's timer stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    Nothing,
    /// An acknowledgement, or a response.
    Ack,
    /// The time that an RNR NAK asked for; nothing is sent meanwhile.
    Rnr,
    /// Local path: a peer that does not answer; nothing is tried meanwhile.
    Peer,
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct Qp {
    pub qpn: Qpn,
    /// What peers call it: `qpn`, unless the device's driver chose a number.
    pub number: Qpn,
    pub qp_type: QpType,
    pub device: DeviceId,
    pub pd: PdId,
    pub send_cq: CqId,
    pub recv_cq: CqId,
    /// Where its receives come from, if not from [`Self::rq`], which then holds the one that a message is filling. Of a target, as
    /// `pd`, `recv_cq` and `recv_pd`, what the last request named.
    pub srq: Option<SrqId>,
    /// Protection domain of the receives.
    pub recv_pd: PdId,
    /// Of a target of extended reliable connections: its domain.
    pub xrcd: Option<XrcdId>,
    pub all_signaled: bool,
    pub state: QpState,
    /// What the arbiter knows of it.
    pub flow: isolation::Flow,
    /// The send request that is measured, by its count, and when it was posted.
    pub measured: Option<(u32, Instant)>,
    /// Whether anything was received since RTR.
    pub established: bool,
    /// Whether it was told that a shared receive queue will not be taken from any more.
    pub told_last_wqe: bool,
    pub wait: Wait,
    pub timer: Timer,
    pub path: Path,
    pub attr: QpAttr,
    pub sq: Ring<SendWqe>,
    pub rq: Ring<RecvWqe>,
    /// Why the last packet that named this queue pair was dropped.
    pub last_drop: Option<&'static str>,
    /// Whether requests go before replies when both wait; they take turns.
    pub requests_first: bool,
    pub req: Requester,
    pub resp: Responder,
    /// Of a reliable connection to another host, if it may use many paths.
    pub multipath: Option<Box<Multipath>>,
}

impl Qp {
    pub fn new(qpn: Qpn, (device, tenant): (DeviceId, TenantId), pd: PdId, init: &QpInit, srq: Option<&Srq>) -> Self {
        let caps = init.caps;
        let (recv_pd, recv_wr, recv_sge) = match srq {
            Some(srq) => (srq.pd, 1, srq.max_sge()),
            None => (pd, caps.max_recv_wr, caps.max_recv_sge),
        };
        Qp {
            qpn,
            number: qpn,
            qp_type: init.qp_type,
            device,
            pd,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            srq: init.srq,
            recv_pd,
            xrcd: None,
            all_signaled: init.all_signaled,
            state: QpState::Reset,
            flow: isolation::Flow::new(tenant),
            measured: None,
            established: false,
            told_last_wqe: false,
            wait: Wait::Nothing,
            timer: Timer::default(),
            path: Path::Unset,
            attr: no_attributes(caps),
            sq: Ring::for_sends(caps.max_send_wr, caps.max_send_sge),
            rq: Ring::for_receives(recv_wr, recv_sge),
            last_drop: None,
            requests_first: false,
            req: Requester::new(),
            resp: Responder::new(),
            multipath: None,
        }
    }

    /// Nothing comes back from where packets go: from now on they leave from another UDP source port, which switches' ECMP hash
    /// sends another way if there is one (as protective reroute, SIGCOMM 2023, does with the flow label). Peers do not look at it.
    /// The ports of one connection are 16 neighbours, so that a peer that repeats its requests makes the way to the wire keep no
    /// more than that.
    pub fn leave_path(&mut self, shared: &mut Shared) {
        if let Path::Wire(flow) = &mut self.path {
            shared.count(self.device, |counters| counters.left_path += 1);
            flow.src_port = flow.src_port & !0xF | flow.src_port.wrapping_add(1) & 0xF;
        }
    }

    /// Payload bytes per packet.
    #[inline]
    pub fn mtu(&self) -> u32 {
        self.attr.path_mtu.bytes() as u32
    }

    /// Whether requests of the peer are executed.
    #[inline]
    pub fn can_receive(&self) -> bool {
        matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
    }

    /// All attributes, as a query returns them.
    pub fn attributes(&self) -> QpAttr {
        let mut attr = self.attr;
        attr.state = self.state;
        attr.cur_state = self.state;
        if self.can_receive() {
            attr.rq_psn = self.resp.expected_psn;
        }
        if matches!(self.state, QpState::Rts | QpState::Sqd) {
            attr.sq_psn = self.req.cursor.psn;
        }
        attr.sq_draining = self.state == QpState::Sqd && self.req.draining;
        attr
    }

    /// Whether a request or reply is sent in part.
    #[inline]
    pub fn is_within_message(&self) -> bool {
        self.req.moved > 0 || self.req.cursor.packet > 0 || self.resp.has_replies()
    }

    /// Puts this queue pair into the schedule.
    #[inline]
    pub fn schedule(&mut self, shared: &mut Shared) {
        shared.schedule.add(self.qpn, &mut self.flow);
    }

    /// Starts the timer for `wait`, `delay` from now; without a delay it waits for ever.
    #[inline]
    pub fn start_timer(&mut self, shared: &mut Shared, wait: Wait, deadline: Option<Instant>) {
        self.wait = wait;
        match deadline {
            Some(deadline) => shared.timers.set(self.qpn, &mut self.timer, deadline),
            None => self.timer.clear(),
        }
    }

    #[inline]
    pub fn stop_timer(&mut self) {
        self.wait = Wait::Nothing;
        self.timer.clear();
    }

    /// The deadline of an acknowledgement timeout that starts now.
    #[inline]
    pub fn ack_deadline(&self, now: Instant) -> Option<Instant> {
        retry::ack_timeout(self.attr.timeout, self.req.retries).map(|timeout| now + timeout)
    }

    /// Completes the oldest send request.
    #[inline]
    pub fn complete_send(&mut self, shared: &mut Shared, status: Status, vendor_err: u32) {
        let wqe = self.sq.get(self.sq.head);
        let failed = status != Status::Success;
        if let Some((index, posted)) = self.measured
            && index == self.sq.head
        {
            self.measured = None;
            if !failed {
                shared.latencies.completed(self.device, posted, shared.schedule.now);
            }
        }
        if !failed && !self.all_signaled && !wqe.flags.contains(SendFlags::SIGNALED) {
            self.sq.pop();
            return;
        }
        let opcode = match wqe.op {
            SendOp::Send { .. } | SendOp::Datagram { .. } => Opcode::Send,
            SendOp::Write { .. } => Opcode::Write,
            SendOp::Read { .. } => Opcode::Read,
            SendOp::Atomic { op: crate::AtomicOp::CompareSwap { .. }, .. } => Opcode::CompareSwap,
            SendOp::Atomic { op: crate::AtomicOp::FetchAdd { .. }, .. } => Opcode::FetchAdd,
            SendOp::BindWindow(_) => Opcode::BindWindow,
            // No program can post the latter.
            SendOp::LocalInvalidate { .. } | SendOp::Nothing => Opcode::LocalInvalidate,
        };
        let (wr_id, byte_len) = (wqe.wr_id, if failed { 0 } else { wqe.length });
        let completion = Completion {
            wr_id,
            status,
            opcode,
            qpn: self.qpn,
            src_qpn: Qpn::default(),
            byte_len,
            imm: [0; 4],
            flags: CompletionFlags::empty(),
            solicited: failed,
            vendor_err,
            queue_index: self.sq.pop(),
            srq: None,
        };
        shared.complete(self.send_cq, completion);
    }

    /// Whether there is a receive for a message; the oldest of [`Self::rq`] is it.
    #[inline]
    pub fn has_receive(&mut self, shared: &mut Shared) -> bool {
        match self.srq {
            Some(srq) if self.rq.is_empty() => {
                let Shared { srqs, events, .. } = shared;
                srqs.get_mut(srq.0).is_some_and(|srq| srq.take(&mut self.rq, events))
            }
            _ => !self.rq.is_empty(),
        }
    }

    /// Lets go of the oldest receive, which is complete: its `wr_id` and its count in the queue that it was posted to.
    #[inline]
    pub fn take_receive(&mut self, shared: &mut Shared) -> (u64, u32) {
        let RecvWqe { wr_id, index, .. } = *self.rq.get(self.rq.head);
        self.rq.pop();
        if let Some(srq) = self.srq {
            shared.srq(srq).completed();
        }
        (wr_id, index)
    }

    /// The shared receive queue of a receive, if it is one that requests name.
    #[inline]
    pub fn named_srq(&self) -> Option<SrqId> {
        self.srq.filter(|_| self.qp_type == QpType::XrcRecv)
    }

    /// Gives the receive that a message was filling back to the shared receive queue.
    pub fn give_receive_back(&mut self, shared: &mut Shared) {
        if let Some(srq) = self.srq {
            shared.srq(srq).give_back(&mut self.rq);
        }
    }

    /// Completes the oldest receive with an error.
    pub fn fail_receive(&mut self, shared: &mut Shared, status: Status, vendor_err: u32) {
        let (wr_id, queue_index) = self.take_receive(shared);
        let completion = Completion {
            wr_id,
            status,
            opcode: Opcode::Recv,
            qpn: self.qpn,
            src_qpn: Qpn::default(),
            byte_len: 0,
            imm: [0; 4],
            flags: CompletionFlags::empty(),
            solicited: true,
            vendor_err,
            queue_index,
            srq: self.named_srq(),
        };
        shared.complete(self.recv_cq, completion);
    }

    /// The oldest send request failed: it completes with `status`. A reliable connection goes to the error state with it; of
    /// an unreliable service only the send queue does (IBA 10.3.1.6), as what others send has nothing to do with it.
    pub fn fail_send(&mut self, shared: &mut Shared, status: Status, vendor_err: u32) {
        if let Some(device) = shared.devices.get_mut(self.device.0) {
            match status {
                Status::RetryExceededError => device.counters.retry_exceeded_err += 1,
                Status::RnrRetryExceededError => device.counters.retry_rnr_exceeded_err += 1,
                Status::LocalProtectionError | Status::LocalQpOperationError | Status::MwBindError => {
                    device.counters.send_err += 1
                }
                _ => {}
            }
        }
        if !self.sq.is_empty() {
            self.complete_send(shared, status, vendor_err);
        }
        if self.is_unreliable() {
            (self.state, self.attr.state) = (QpState::Sqe, QpState::Sqe);
            self.flush_sends(shared);
            self.req.give_up(&self.sq);
        } else {
            self.resp.forget_replies();
            self.enter_error(shared);
        }
    }

    /// Goes to the error state: everything that is posted is flushed, in the order of posting within each queue. Replies that
    /// wait are kept, so that a responder that fails can still say so.
    pub fn enter_error(&mut self, shared: &mut Shared) {
        self.state = QpState::Err;
        self.attr.state = QpState::Err;
        self.stop_timer();
        self.req.abandon();
        self.resp.abandon_message();
        self.flush(shared);
    }

    /// Flushes the send requests that are posted; the state is ERR or SQE.
    pub fn flush_sends(&mut self, shared: &mut Shared) {
        while !self.sq.is_empty() {
            self.complete_send(shared, Status::FlushError, vendor_err::FLUSHED);
        }
    }

    /// Flushes what is posted; the state is ERR.
    pub fn flush(&mut self, shared: &mut Shared) {
        self.flush_sends(shared);
        while !self.rq.is_empty() {
            self.fail_receive(shared, Status::FlushError, vendor_err::FLUSHED);
        }
        // A target takes from whatever queue is named: none of them waits for it to end.
        if self.srq.is_some() && self.qp_type != QpType::XrcRecv && !core::mem::replace(&mut self.told_last_wqe, true) {
            shared.events.push_back(AsyncEvent::QpLastWqe(self.qpn));
        }
    }

    /// Takes a checked change of attributes and state.
    pub fn modify(&mut self, shared: &mut Shared, mask: QpAttrMask, new: &QpAttr, to: QpState) {
        state::apply(&mut self.attr, mask, new);
        let from = core::mem::replace(&mut self.state, to);
        match (from, to) {
            (_, QpState::Reset) => self.reset(shared),
            (_, QpState::Err) => {
                self.resp.forget_replies();
                self.enter_error(shared);
            }
            (QpState::Init, QpState::Rtr) => self.connect(shared),
            (QpState::Rtr, QpState::Rts) => self.req.start(self.attr.sq_psn),
            (QpState::Rts, QpState::Sqd) => {
                self.req.draining = true;
                self.check_drained(shared);
            }
            (QpState::Sqd, QpState::Rts) => {
                self.req.draining = false;
                self.schedule(shared);
            }
            (QpState::Sqd, QpState::Sqd) if mask.contains(QpAttrMask::AV) => self.path = self.path_to_peer(shared),
            _ => {}
        }
    }

    fn reset(&mut self, shared: &mut Shared) {
        self.give_receive_back(shared);
        self.told_last_wqe = false;
        self.sq.clear();
        self.rq.clear();
        self.measured = None;
        self.stop_timer();
        self.attr = no_attributes(self.attr.caps);
        self.path = Path::Unset;
        self.established = false;
        self.req = Requester::new();
        self.resp = Responder::new();
        self.multipath = None;
    }

    fn connect(&mut self, shared: &Shared) {
        self.path = self.path_to_peer(shared);
        self.established = false;
        let is_wire = matches!(self.path, Path::Wire(_));
        self.resp.start(self.attr.rq_psn, self.attr.max_dest_rd_atomic, is_wire);
        let may_spray = is_wire && self.qp_type == QpType::Rc;
        self.multipath =
            shared.config.multipath.filter(|_| may_spray).map(|config| Box::new(Multipath::new(config, self.attr.rq_psn)));
    }

    fn path_to_peer(&self, shared: &Shared) -> Path {
        match self.qp_type {
            QpType::Rc | QpType::Uc | QpType::XrcSend | QpType::XrcRecv => {
                self.route(shared, &self.attr.address, self.attr.dest_qpn)
            }
            QpType::Ud => Path::PerRequest,
        }
    }

    /// The way to a queue pair at an address that [`state::check_address`] found to be good.
    pub fn route(&self, shared: &Shared, address: &AddressVector, dest_qpn: Qpn) -> Path {
        match shared.gids.get(&address.dgid) {
            Some(&peer) if shared.config.local_path => Path::Local(peer),
            _ => Path::Wire(shared.flow(self.device, address, (self.qpn, dest_qpn))),
        }
    }

    /// State SQD: tells when the last begun request has completed.
    pub fn check_drained(&mut self, shared: &mut Shared) {
        if self.state == QpState::Sqd && self.req.draining && !self.req.has_begun(&self.sq) {
            self.req.draining = false;
            if self.attr.sqd_async_notify {
                shared.events.push_back(AsyncEvent::SqDrained(self.qpn));
            }
        }
    }

    /// The first message or packet of the peer tells that the connection works, while the queue pair is in RTR.
    #[inline]
    pub fn note_reception(&mut self, shared: &mut Shared) {
        if !self.established {
            self.established = true;
            if self.state == QpState::Rtr {
                shared.events.push_back(AsyncEvent::CommunicationEstablished(self.qpn));
            }
        }
    }
}

fn no_attributes(caps: QpCaps) -> QpAttr {
    QpAttr {
        state: QpState::Reset,
        cur_state: QpState::Reset,
        sqd_async_notify: false,
        access: emtt::Access::empty(),
        pkey_index: 0,
        port: 1,
        qkey: 0,
        address: Default::default(),
        path_mtu: Mtu::B256,
        timeout: 0,
        retry_cnt: 0,
        rnr_retry: 0,
        rq_psn: Psn::new(0),
        sq_psn: Psn::new(0),
        max_rd_atomic: 0,
        max_dest_rd_atomic: 0,
        min_rnr_timer: 0,
        dest_qpn: Qpn::new(0),
        sq_draining: false,
        caps,
    }
}
