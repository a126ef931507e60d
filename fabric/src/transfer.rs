//! The life of a transfer: ready when what it waits for has arrived, posted, received, ended. Every one ends once.

use crate::checker::Violation;
use crate::event::Event;
use crate::host::BASE;
use crate::sim::Sim;
use crate::time::{Time, micros};
use crate::workload::{Operation, Transfer};
use rnic::{AsyncEvent, Completion, LocalBuffer, Opcode, RecvRequest, SendFlags, SendOp, SendRequest, Status};
use roce::Lkey;

/// How a transfer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The request completed with success.
    Success,
    /// The request completed with an error, or its connection was in error.
    Failed(Status),
    /// A transfer that it had to wait for never arrived.
    Cancelled,
}

/// Where a transfer stands.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Transfers that have to arrive before.
    pub waits_for: u32,
    /// When it was ready.
    pub ready_at: Option<Time>,
    /// When its bytes were all there.
    pub received_at: Option<Time>,
    /// When and how it ended, as the host sees it that asked for it.
    pub end: Option<(Time, Outcome)>,
    /// That host, and its end of the connection.
    pub initiator: (u32, u32),
    /// The other host, and its end.
    pub target: (u32, u32),
    /// Offset in the sender's memory.
    pub source_offset: u64,
    /// Offset in the receiver's memory.
    pub sink_offset: u64,
}

/// Which transfers wait for each.
#[derive(Debug)]
pub struct Dependents {
    /// Where each one's begin in `all`, and the end of the last.
    starts: Vec<u32>,
    all: Vec<u32>,
}

impl Dependents {
    /// Turns the lists of what each waits for around.
    pub fn new(transfers: &[Transfer]) -> Dependents {
        let mut starts = vec![0; transfers.len() + 1];
        for &before in transfers.iter().flat_map(|transfer| &transfer.after) {
            starts[before as usize + 1] += 1;
        }
        for n in 1..starts.len() {
            starts[n] += starts[n - 1];
        }
        let mut next = starts.clone();
        let mut all = vec![0; starts[transfers.len()] as usize];
        for (transfer, number) in transfers.iter().zip(0..) {
            for &before in &transfer.after {
                let place = &mut next[before as usize];
                all[*place as usize] = number;
                *place += 1;
            }
        }
        Dependents { starts, all }
    }

    fn of(&self, transfer: u32) -> std::ops::Range<usize> {
        let n = transfer as usize;
        self.starts[n] as usize..self.starts[n + 1] as usize
    }
}

impl Sim {
    /// A transfer may start.
    pub(crate) fn start(&mut self, transfer: u32) {
        let now = self.calendar.now();
        let progress = &mut self.progress[transfer as usize];
        if progress.end.is_some() {
            return;
        }
        progress.ready_at = Some(now);
        let (host, connection) = progress.initiator;
        self.host(host).connections[connection as usize].waiting.push_back(transfer);
        self.post_waiting(host, connection);
    }

    /// Posts what waits for room in a send queue, as long as there is room.
    fn post_waiting(&mut self, number: u32, connection: u32) {
        loop {
            let end = &mut self.host(number).connections[connection as usize];
            let Some(&transfer) = end.waiting.front() else { return };
            let failed = end.failed;
            if failed {
                end.waiting.pop_front();
                self.end_transfer(transfer, Outcome::Failed(Status::FlushError));
            } else if self.post(transfer) {
                self.host(number).connections[connection as usize].waiting.pop_front();
                self.touched.push(number);
            } else {
                return;
            }
        }
    }

    /// Posts a transfer's request, and the receive that it needs. False if the send queue is full.
    fn post(&mut self, transfer: u32) -> bool {
        let now = self.calendar.now().instant();
        let progress = self.progress[transfer as usize];
        let Transfer { bytes, operation, .. } = self.transfers[transfer as usize];
        let (source_addr, sink_addr) = (BASE + progress.source_offset, BASE + progress.sink_offset);
        let buffer = |lkey: Lkey, addr| [LocalBuffer::Keyed { lkey, addr, len: bytes }];
        let used = usize::from(bytes > 0);
        let ((initiator, ours), (target, theirs)) = (progress.initiator, progress.target);
        let (source, sink) = (self.host(target).source, self.host(target).sink);
        let imm = Some(transfer.to_be_bytes());
        let wr_id = u64::from(transfer);
        let host = self.host(initiator);
        let (op, buffers) = match operation {
            Operation::Write => {
                (SendOp::Write { remote_addr: sink_addr, rkey: sink.rkey, imm }, buffer(host.source.lkey, source_addr))
            }
            Operation::Send => (SendOp::Send { imm, invalidate: None }, buffer(host.source.lkey, source_addr)),
            Operation::Read => {
                (SendOp::Read { remote_addr: source_addr, rkey: source.rkey }, buffer(host.sink.lkey, sink_addr))
            }
        };
        let request = SendRequest { wr_id, op, flags: SendFlags::empty(), buffers: &buffers[..used], srqn: None };
        let qpn = host.connections[ours as usize].qpn;
        match host.rnic.post_send(now, qpn, &request) {
            Ok(()) => {}
            Err(rnic::PostError::Full) => return false,
            Err(error) => self.refused(initiator, &error),
        }
        self.host(initiator).connections[ours as usize].posted.push_back(transfer);
        if operation == Operation::Read {
            return true;
        }
        let host = self.host(target);
        let buffers = buffer(sink.lkey, sink_addr);
        let buffers = if operation == Operation::Send { &buffers[..used] } else { &[] };
        let end = &mut host.connections[theirs as usize];
        end.receiving.push_back(transfer);
        if let Err(error) = host.rnic.post_recv(now, end.qpn, &RecvRequest { wr_id, buffers }) {
            self.refused(target, &error);
        }
        // A receive is flushed at once if the queue pair is in error.
        self.touched.push(target);
        true
    }

    fn refused(&mut self, host: u32, error: &dyn std::fmt::Display) {
        self.checker.note(Violation::Refused { host, error: error.to_string() });
    }

    /// Takes completions and events of a host.
    pub(crate) fn take_completions(&mut self, number: u32) {
        while let Some((_, completion)) = self.host(number).rnic.poll_completion() {
            match completion.opcode {
                Opcode::Recv | Opcode::RecvWriteWithImm => self.take_receive(number, &completion),
                _ => self.take_send(number, &completion),
            }
        }
        while let Some(event) = self.host(number).rnic.poll_event() {
            let is_fault =
                matches!(event, AsyncEvent::QpFatal(_) | AsyncEvent::QpRequestError(_) | AsyncEvent::QpAccessError(_));
            if is_fault {
                self.checker.note(Violation::Refused { host: number, error: format!("{event:?}") });
            }
        }
    }

    fn take_send(&mut self, number: u32, completion: &Completion) {
        let Some((transfer, connection)) = self.named(number, completion, |progress| progress.initiator) else { return };
        let end = &mut self.host(number).connections[connection as usize];
        let is_next = end.posted.pop_front() == Some(transfer);
        end.failed |= completion.status != Status::Success;
        if !is_next {
            self.checker.note(Violation::Order { host: number, transfer: transfer.into() });
        }
        match completion.status {
            Status::Success => {
                if self.transfers[transfer as usize].operation == Operation::Read {
                    self.receive(transfer);
                } else if self.progress[transfer as usize].received_at.is_none() {
                    self.checker.note(Violation::Incomplete { transfer });
                }
                self.end_transfer(transfer, Outcome::Success);
            }
            status => self.end_transfer(transfer, Outcome::Failed(status)),
        }
        self.post_waiting(number, connection);
    }

    fn take_receive(&mut self, number: u32, completion: &Completion) {
        let Some((transfer, connection)) = self.named(number, completion, |progress| progress.target) else { return };
        let end = &mut self.host(number).connections[connection as usize];
        let is_next = end.receiving.pop_front() == Some(transfer);
        if completion.status != Status::Success {
            return;
        }
        if !is_next || completion.imm != transfer.to_be_bytes() {
            self.checker.note(Violation::Order { host: number, transfer: transfer.into() });
        }
        self.receive(transfer);
    }

    /// The transfer that a completion names, and the connection that it belongs to, if it came to the right host and queue pair.
    fn named(
        &mut self,
        number: u32,
        completion: &Completion,
        end_of: impl Fn(&crate::transfer::Progress) -> (u32, u32),
    ) -> Option<(u32, u32)> {
        let transfer = completion.wr_id as u32;
        let end = self.progress.get(transfer as usize).map(end_of);
        let qpn =
            |(host, connection): (u32, u32)| (host == number).then(|| self.host(host).connections[connection as usize].qpn);
        if end.and_then(qpn) != Some(completion.qpn) {
            self.checker.note(Violation::Order { host: number, transfer: completion.wr_id });
            return None;
        }
        end.map(|(_, connection)| (transfer, connection))
    }

    /// The bytes of a transfer are all there: what waits for it may start.
    fn receive(&mut self, transfer: u32) {
        let now = self.calendar.now();
        self.memory.check_complete(transfer);
        self.progress[transfer as usize].received_at = Some(now);
        for index in self.dependents.of(transfer) {
            let next = self.dependents.all[index];
            let waiting = &mut self.progress[next as usize];
            waiting.waits_for -= 1;
            if waiting.waits_for == 0 {
                let start = Time::from_ps(micros(self.transfers[next as usize].start_us));
                if start > now {
                    self.calendar.add(start, Event::Start { transfer: next });
                } else {
                    self.start(next);
                }
            }
        }
    }

    /// A transfer ends. If it never arrived, what waits for it ends with it.
    fn end_transfer(&mut self, transfer: u32, outcome: Outcome) {
        let now = self.calendar.now();
        let mut ending = vec![(transfer, outcome)];
        while let Some((transfer, outcome)) = ending.pop() {
            let progress = &mut self.progress[transfer as usize];
            if progress.end.is_some() {
                continue;
            }
            progress.end = Some((now, outcome));
            self.ended += 1;
            if progress.received_at.is_none() {
                let dependents = &self.dependents.all[self.dependents.of(transfer)];
                ending.extend(dependents.iter().map(|&next| (next, Outcome::Cancelled)));
            }
        }
    }
}
