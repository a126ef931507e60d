//! `send lat`: SEND ping-pong. Each side waits for the completion of its receive.

use anyhow::{Result, ensure};

use super::ping_pong;
use super::{Latency, check_size, second_place};
use crate::endpoint::Endpoint;
use crate::exchange::Link;
use crate::initiator::Initiator;
use crate::verbs::{Mr, Operation, Qp, Send};
use crate::wait::Wait;

/// Receives kept posted.
const RECEIVES: u64 = 16;
/// Requests between two that give a completion.
const SIGNALED_EVERY: u64 = 16;
/// Marks completions of sends; those of receives are their index.
const SENT: u64 = 1 << 63;

/// Measures.
pub fn run(initiator: &mut Initiator, size: u32, iterations: u64) -> Result<Latency> {
    check_size(&initiator.endpoint, &initiator.remote, size)?;
    let mut side = Side::new(&mut initiator.endpoint, size, ping_pong::messages(iterations))?;
    ping_pong::measure(&mut side, &mut initiator.link, Operation::Send, size, iterations)
}

/// The target's part.
pub(crate) fn answer(endpoint: &mut Endpoint, size: u32, count: u64, link: &mut Link) -> Result<()> {
    let room = endpoint.shape().working_set;
    ensure!(second_place(size) + size as usize <= room, "messages of {size} bytes do not fit into {room}");
    let mut side = Side::new(endpoint, size, count)?;
    ping_pong::answer(&mut side, link, count)
}

struct Side<'a> {
    qp: &'a mut Qp,
    mr: &'a Mr,
    size: u32,
    count: u64,
    posted: u64,
    received: u64,
    unconfirmed: u64,
    wait: Wait,
}

impl<'a> Side<'a> {
    fn new(endpoint: &'a mut Endpoint, size: u32, count: u64) -> Result<Side<'a>> {
        ensure!(u64::from(endpoint.shape().receive_depth) >= RECEIVES, "the receive queue is shorter than {RECEIVES}");
        let (qp, mr) = endpoint.parts();
        let wait = Wait::for_completions();
        let mut side = Side { qp, mr, size, count, posted: 0, received: 0, unconfirmed: 0, wait };
        side.fill()?;
        Ok(side)
    }

    fn fill(&mut self) -> Result<()> {
        while self.posted < self.count && self.posted - self.received < RECEIVES {
            self.qp.post_receive(self.mr, self.posted, 0, self.size)?;
            self.posted += 1;
        }
        Ok(())
    }

    fn take(&mut self) -> Result<()> {
        let cq = self.qp.cq().clone();
        let (received, unconfirmed) = (&mut self.received, &mut self.unconfirmed);
        let count =
            cq.poll(
                |completion| {
                    if completion.wr_id & SENT == 0 { *received += 1 } else { *unconfirmed = unconfirmed.saturating_sub(1) }
                },
            )?;
        if count == 0 {
            self.wait.nothing()?;
        } else {
            self.wait.found();
        }
        Ok(())
    }
}

impl ping_pong::Side for Side<'_> {
    fn send(&mut self, index: u64) -> Result<()> {
        let signaled = (index + 1).is_multiple_of(SIGNALED_EVERY);
        let request = Send {
            operation: Operation::Send,
            wr_id: SENT | index,
            offset: second_place(self.size),
            length: self.size,
            remote_addr: 0,
            signaled,
        };
        self.qp.post(self.mr, 0, 1, |_| request)?;
        self.unconfirmed += u64::from(signaled);
        Ok(())
    }

    fn await_message(&mut self, index: u64) -> Result<()> {
        while self.received <= index {
            self.take()?;
        }
        self.fill()
    }

    fn drain(&mut self) -> Result<()> {
        while self.unconfirmed > 0 {
            self.take()?;
        }
        Ok(())
    }
}
