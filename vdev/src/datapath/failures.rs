//! Queue pairs that failed, remembered for people who ask why; the program may be long gone by then.
//!
//! Owns a bounded list per device. A failure is noted in the round in which its completion or event is delivered, while the queue
//! pair still knows how its connection stood.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use rnic::{AsyncEvent, Completion, DeviceId, Opcode, Status, Trace};
use roce::{Instant, Qpn};

use super::Datapath;

/// Failures remembered per device.
const PER_DEVICE: usize = 64;

/// How a queue pair failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Its number.
    pub qpn: Qpn,
    /// Its process, 0 when it was not visible from here.
    pub pid: i32,
    /// Name of its program, as that gave it.
    pub program: Arc<str>,
    /// When.
    pub at: Instant,
    /// The completion's status, or why the peer's request was refused.
    pub what: What,
    /// The peer.
    pub peer: (IpAddr, Qpn),
    /// `retry_cnt` and `rnr_retry`.
    pub retry_limits: (u8, u8),
    /// How its connection stood.
    pub trace: Trace,
}

/// What ended a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A request of its own.
    Completion {
        /// The status.
        status: Status,
        /// What kind of request.
        opcode: Opcode,
        /// The program's name for the request.
        wr_id: u64,
        /// The finer cause.
        vendor_err: u32,
    },
    /// A request of the peer that it had to refuse.
    Refused(&'static str),
}

/// The failures of each device, oldest first.
#[derive(Debug, Default)]
pub struct Failures(HashMap<DeviceId, VecDeque<Failure>>);

impl Failures {
    fn note(&mut self, device: DeviceId, failure: Failure) {
        let list = self.0.entry(device).or_default();
        if list.len() == PER_DEVICE {
            list.pop_front();
        }
        list.push_back(failure);
    }

    /// The device is gone.
    pub fn forget(&mut self, device: DeviceId) {
        self.0.remove(&device);
    }
}

impl Datapath {
    /// Notes a failed completion; flushed requests only follow a failure.
    pub(super) fn note_completion(&mut self, completion: &Completion) {
        let &Completion { status, opcode, wr_id, vendor_err, qpn, .. } = completion;
        if !matches!(status, Status::Success | Status::FlushError) {
            self.note_failure(qpn, What::Completion { status, opcode, wr_id, vendor_err });
        }
    }

    /// Notes an event by which a program learns that its queue pair failed.
    pub(super) fn note_event(&mut self, event: &AsyncEvent) {
        let (qpn, refused) = match event {
            AsyncEvent::QpAccessError(qpn) => (*qpn, "a request of the peer had no right to the memory that it named"),
            AsyncEvent::QpRequestError(qpn) => (*qpn, "a request of the peer was not valid"),
            AsyncEvent::QpFatal(qpn) => (*qpn, "a request of the peer could not be carried out"),
            _ => return,
        };
        self.note_failure(qpn, What::Refused(refused));
    }

    /// Device, process and program that a queue pair is of. `None` if that has been ended in this round.
    fn owner_of(&self, qpn: Qpn) -> Option<(DeviceId, i32, Arc<str>)> {
        let place = self.qp_by_number.get(&qpn).or_else(|| self.targets.get(&qpn)?.places.first());
        match place {
            Some(&(client, _)) => {
                let client = self.clients[client as usize].as_deref()?;
                Some((client.device, client.pid, client.program.clone()))
            }
            None => Some((self.guests.device_of_qp(qpn)?, 0, "a virtual machine".into())),
        }
    }

    fn note_failure(&mut self, qpn: Qpn, what: What) {
        let Some((device, pid, program)) = self.owner_of(qpn) else { return };
        let (Some(trace), Ok(attr)) = (self.rnic.trace(qpn), self.rnic.query_qp(qpn)) else { return };
        let failure = Failure {
            qpn,
            pid,
            program,
            at: self.now,
            what,
            peer: (attr.address.dgid.ip(), attr.dest_qpn),
            retry_limits: (attr.retry_cnt, attr.rnr_retry),
            trace,
        };
        self.failures.note(device, failure);
    }

    /// Failures of a device, the latest first, each with the seconds since.
    pub fn failures(&self, device: DeviceId) -> Vec<(Failure, f64)> {
        let now = super::clock();
        let list = self.failures.0.get(&device).into_iter().flatten().rev();
        list.map(|failure| (failure.clone(), now.saturating_since(failure.at).as_secs_f64())).collect()
    }
}
