//! The responder: takes a peer's requests and executes them. What a message does to this side is here, for both paths.

use super::Qp;
use super::access::{BadBuffer, Refusal, Remote, for_each_segment};
use crate::attr::QpState;
use crate::event::AsyncEvent;
use crate::shared::Shared;
use crate::vendor_err;
use crate::work::{Completion, CompletionFlags, Opcode, Status};
use alloc::collections::VecDeque;
use emtt::{Access, Segment, Table};
use roce::wire::{NakCode, Syndrome};
use roce::{Psn, Qpn, Rkey};

/// A message that has begun and not ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Message {
    /// A SEND that fills the oldest receive.
    Send,
    /// A WRITE to checked memory.
    Write(Remote),
}

/// What the end of a message does beyond its bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ending {
    pub imm: Option<[u8; 4]>,
    pub invalidate: Option<Rkey>,
    pub solicited: bool,
}

/// A queue pair's state as responder.
#[derive(Debug)]
pub(crate) struct Responder {
    pub expected_psn: Psn,
    /// Messages completed, modulo 2^24.
    pub msn: u32,
    pub message: Option<Message>,
    /// Bytes of the message that have been placed.
    pub received: u32,
    /// A peer on the local path waits for a receive.
    pub starved_local_peer: bool,
    /// How many READs and atomics are remembered, and may wait for their reply.
    pub depth: u8,
    /// The last READs and atomics, to answer a duplicate; oldest first.
    pub resources: VecDeque<Resource>,
    /// READs and atomics whose reply is not sent in full; oldest first.
    pub replies: VecDeque<Reply>,
    /// Packets were taken that asked for an acknowledgement, and it was not sent.
    pub ack_due: bool,
    /// A NAK that was not sent; it goes after the replies, as what it refuses came after them.
    pub nak: Option<(Psn, Syndrome)>,
    /// A NAK was sent or is due for the expected PSN; packets beyond it are dropped without another one.
    pub refusing: bool,
    /// The last request that had come before, since anything new came.
    pub repeated: Option<Psn>,
}

/// A READ or atomic that was accepted (IBA 9.4.5, responder resources).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resource {
    pub psn: Psn,
    /// PSNs of its response.
    pub packets: u32,
    pub kind: Fetch,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Fetch {
    Read(Remote),
    /// The value before the operation.
    Atomic(u64),
}

/// A reply that waits, or is being sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reply {
    /// PSN of its first packet.
    pub psn: Psn,
    pub packets: u32,
    /// Packets sent.
    pub sent: u32,
    pub msn: u32,
    /// It was answered before; such replies do not take part in the agreed depth.
    pub is_duplicate: bool,
    pub kind: Fetch,
    /// Of a request of the spray extension: how it is answered.
    pub echo: Option<Echo>,
}

/// What the packets of a reply echo of a request of the spray extension, so that the requester knows which way they came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Echo {
    /// Its UDP source port.
    pub port: u16,
    /// Its time.
    pub time: u32,
}

impl Responder {
    pub fn new() -> Self {
        Responder {
            expected_psn: Psn::new(0),
            msn: 0,
            message: None,
            received: 0,
            starved_local_peer: false,
            depth: 0,
            resources: VecDeque::new(),
            replies: VecDeque::new(),
            ack_due: false,
            nak: None,
            refusing: false,
            repeated: None,
        }
    }

    /// The queue pair becomes ready to receive. Allocates once what the wire path needs.
    pub fn start(&mut self, psn: Psn, depth: u8, is_wire: bool) {
        *self = Responder { expected_psn: psn, depth, ..Responder::new() };
        if is_wire {
            self.resources.reserve_exact(usize::from(depth));
            self.replies.reserve_exact(usize::from(depth) * 3);
        }
    }

    /// A message is complete.
    #[inline]
    pub fn count_message(&mut self) {
        self.msn = (self.msn + 1) & 0xFF_FFFF;
    }

    pub fn has_replies(&self) -> bool {
        !self.replies.is_empty() || self.nak.is_some() || self.ack_due
    }

    /// One more packet of the oldest reply was sent.
    pub fn reply_sent(&mut self) {
        match self.replies.front_mut() {
            Some(front) if front.sent + 1 < front.packets => front.sent += 1,
            _ => drop(self.replies.pop_front()),
        }
    }

    pub fn abandon_message(&mut self) {
        self.message = None;
        self.starved_local_peer = false;
    }

    /// Nothing is answered any more.
    pub fn forget_replies(&mut self) {
        self.replies.clear();
        self.nak = None;
        self.ack_due = false;
    }
}

impl Qp {
    /// A SEND begins: it needs a receive.
    pub fn begin_send(&mut self, shared: &mut Shared) -> Result<(), Refusal> {
        if !self.has_receive(shared) {
            return Err(Refusal::NotReady);
        }
        self.resp.message = Some(Message::Send);
        self.resp.received = 0;
        Ok(())
    }

    /// A WRITE begins, and its first `part` bytes are to be placed: all of its range must be writable, before the first byte is
    /// written. When that is all of it, placing it is the check.
    #[inline]
    pub fn begin_write(&mut self, table: &Table, remote: Remote, part: u32) -> Result<(), Refusal> {
        self.check_connection(Access::REMOTE_WRITE, remote.len)?;
        if part < remote.len {
            self.check_region(table, Access::REMOTE_WRITE, remote)?;
        }
        self.resp.message = Some(Message::Write(remote));
        self.resp.received = 0;
        Ok(())
    }

    /// Calls `f` with the memory for the next `len` bytes of the open message. The caller adds them to `received` when the
    /// packet or part is taken.
    #[inline]
    pub fn place(&self, table: &Table, message: Message, len: u32, f: impl FnMut(Segment)) -> Result<(), Refusal> {
        let offset = self.resp.received;
        match message {
            Message::Write(remote) => {
                let addr = remote.addr.wrapping_add(u64::from(offset));
                self.remote_segments(table, Access::REMOTE_WRITE, Remote { addr, len, ..remote }, f)
            }
            Message::Send => {
                let receive = self.rq.get(self.rq.head);
                if len > receive.length - offset {
                    let status = Some((Status::LocalLengthError, vendor_err::RECEIVE_TOO_SHORT));
                    return Err(Refusal::Nak { code: NakCode::InvalidRequest, receive: status });
                }
                let (buffers, range) = (self.rq.buffers(self.rq.head), (u64::from(offset), u64::from(len)));
                for_each_segment(table, self.recv_pd, buffers, range, Access::LOCAL_WRITE, f)
                    .map_err(|BadBuffer| Refusal::operational(vendor_err::LOCAL_KEY))
            }
        }
    }

    /// The open message ends: a SEND, or a WRITE with immediate data, completes a receive.
    pub fn finish(&mut self, shared: &mut Shared, message: Message, ending: Ending) -> Result<(), Refusal> {
        let opcode = match message {
            Message::Send => Opcode::Recv,
            Message::Write(_) if ending.imm.is_some() => Opcode::RecvWriteWithImm,
            Message::Write(_) => {
                self.resp.message = None;
                return Ok(());
            }
        };
        if !self.has_receive(shared) {
            return Err(Refusal::NotReady);
        }
        let (imm, flags) = match (ending.imm, ending.invalidate) {
            (Some(imm), _) => (imm, CompletionFlags::WITH_IMM),
            (None, Some(key)) => {
                if !shared.invalidate(self.via(), key) {
                    let receive = Some((Status::LocalProtectionError, vendor_err::INVALIDATE));
                    return Err(Refusal::Nak { code: NakCode::RemoteAccessError, receive });
                }
                (key.0.to_be_bytes(), CompletionFlags::WITH_INV)
            }
            (None, None) => ([0; 4], CompletionFlags::empty()),
        };
        let (wr_id, queue_index) = self.take_receive(shared);
        let completion = Completion {
            wr_id,
            status: Status::Success,
            opcode,
            qpn: self.qpn,
            src_qpn: Qpn::default(),
            byte_len: self.resp.received,
            imm,
            flags,
            solicited: ending.solicited,
            vendor_err: vendor_err::NONE,
            queue_index,
            srq: self.named_srq(),
        };
        self.resp.message = None;
        shared.complete(self.recv_cq, completion);
        Ok(())
    }

    /// A request was refused for good: the receive that it was filling completes with its status, the program is told, and the
    /// queue pair goes to the error state.
    pub fn refuse(&mut self, shared: &mut Shared, code: NakCode, receive: Option<(Status, u32)>) {
        if code == NakCode::RemoteAccessError {
            shared.count(self.device, |counters| counters.access_refused += 1);
        }
        match receive {
            // Only a SEND was filling one, unless it is gone with its shared queue.
            Some((status, cause)) if matches!(self.resp.message, Some(Message::Send)) && !self.rq.is_empty() => {
                self.fail_receive(shared, status, cause)
            }
            _ => shared.events.push_back(match code {
                NakCode::RemoteAccessError => AsyncEvent::QpAccessError(self.qpn),
                NakCode::InvalidRequest => AsyncEvent::QpRequestError(self.qpn),
                _ => AsyncEvent::QpFatal(self.qpn),
            }),
        }
        self.enter_error(shared);
    }

    /// Goes to the error state for a reason that no completion tells, unless it cannot get worse.
    pub fn fail_silently(&mut self, shared: &mut Shared) {
        if !matches!(self.state, QpState::Reset | QpState::Err) {
            shared.events.push_back(AsyncEvent::QpFatal(self.qpn));
            self.resp.forget_replies();
            self.enter_error(shared);
        }
    }
}
