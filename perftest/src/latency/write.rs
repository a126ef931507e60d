//! `write lat`: WRITE ping-pong. Each side waits for the last byte of the other's message in its own memory.

use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::{Context as _, Result};

use super::ping_pong;
use super::{Latency, check_size, second_place};
use crate::endpoint::Endpoint;
use crate::exchange::Link;
use crate::initiator::Initiator;
use crate::verbs::{Mr, Operation, Qp, Remote, Send};
use crate::wait::Wait;

/// Requests between two that give a completion.
const SIGNALED_EVERY: u64 = 16;

/// Measures.
pub fn run(initiator: &mut Initiator, size: u32, iterations: u64) -> Result<Latency> {
    check_size(&initiator.endpoint, &initiator.remote, size)?;
    let mut side = Side::new(&mut initiator.endpoint, initiator.remote, size)?;
    ping_pong::measure(&mut side, &mut initiator.link, Operation::Write, size, iterations)
}

/// The target's part.
pub(crate) fn answer(endpoint: &mut Endpoint, remote: &Remote, size: u32, count: u64, link: &mut Link) -> Result<()> {
    check_size(endpoint, remote, size)?;
    let mut side = Side::new(endpoint, *remote, size)?;
    ping_pong::answer(&mut side, link, count)
}

struct Side<'a> {
    qp: &'a mut Qp,
    mr: &'a Mr,
    /// First byte of the memory.
    memory: *mut u8,
    remote: Remote,
    size: u32,
    wait: Wait,
    unconfirmed: u64,
}

impl<'a> Side<'a> {
    fn new(endpoint: &'a mut Endpoint, remote: Remote, size: u32) -> Result<Side<'a>> {
        let (qp, mr) = endpoint.parts();
        let memory = mr.buffer().as_ptr().context(
            "write lat waits for the last byte with the processor, which does not reach memory of a GPU: use send lat or read lat",
        )?;
        let side = Side { qp, mr, memory, remote, size, wait: Wait::for_memory(), unconfirmed: 0 };
        side.last_byte(0).store(0, Ordering::Release);
        Ok(side)
    }

    /// Message `index` ends with this byte: never zero, and never that of the message before.
    fn mark(index: u64) -> u8 {
        (index % 255 + 1) as u8
    }

    fn last_byte(&self, place: usize) -> &AtomicU8 {
        let offset = place + self.size as usize - 1;
        // SAFETY: the sizes were checked: the byte lies in the buffer, which lives as long as its registration. The device writes
        // it behind our back, so that only atomic accesses are made.
        unsafe { AtomicU8::from_ptr(self.memory.add(offset)) }
    }

    fn confirm(&mut self, left: u64) -> Result<()> {
        let cq = self.qp.cq().clone();
        let mut wait = Wait::for_completions();
        while self.unconfirmed > left {
            let count = cq.poll(|_| ())? as u64;
            self.unconfirmed -= count.min(self.unconfirmed);
            if count == 0 {
                wait.nothing()?;
            }
        }
        Ok(())
    }
}

impl ping_pong::Side for Side<'_> {
    fn send(&mut self, index: u64) -> Result<()> {
        let place = second_place(self.size);
        self.last_byte(place).store(Self::mark(index), Ordering::Release);
        let signaled = (index + 1).is_multiple_of(SIGNALED_EVERY);
        let request = Send {
            operation: Operation::Write,
            wr_id: index,
            offset: place,
            length: self.size,
            remote_addr: self.remote.addr,
            signaled,
        };
        self.qp.post(self.mr, self.remote.rkey, 1, |_| request)?;
        self.unconfirmed += u64::from(signaled);
        // The completion of an earlier group has come long ago; it is taken here so that the queue does not fill.
        if signaled && self.unconfirmed > 1 {
            self.confirm(1)?;
        }
        Ok(())
    }

    fn await_message(&mut self, index: u64) -> Result<()> {
        while self.last_byte(0).load(Ordering::Acquire) != Self::mark(index) {
            self.wait.nothing()?;
        }
        self.wait.found();
        Ok(())
    }

    fn drain(&mut self) -> Result<()> {
        self.confirm(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_messages_have_different_marks() {
        for index in 0..1000 {
            assert_ne!(Side::mark(index), 0);
            assert_ne!(Side::mark(index), Side::mark(index + 1));
        }
    }
}
