//! Deadlines of queue pairs.
//!
//! A queue pair has at most one deadline, and at most one entry in the order of deadlines. Moving the deadline later, which
//! every acknowledgement does, costs nothing: the entry stays, and when it comes up it is queued again at the true time.

use alloc::collections::BTreeSet;
use roce::{Instant, Qpn};

/// What a queue pair remembers about its deadline.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timer {
    /// When the queue pair wants to be told, if at all.
    deadline: Option<Instant>,
    /// Where its entry stands in the order.
    queued: Option<Instant>,
}

impl Timer {
    pub fn clear(&mut self) {
        self.deadline = None;
    }
}

/// The deadlines of all queue pairs, in order.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    entries: BTreeSet<(Instant, u32)>,
}

impl Timers {
    #[inline]
    pub fn set(&mut self, qpn: Qpn, timer: &mut Timer, deadline: Instant) {
        timer.deadline = Some(deadline);
        if timer.queued.is_none_or(|queued| deadline < queued) {
            self.forget(qpn, timer);
            timer.queued = Some(deadline);
            self.entries.insert((deadline, qpn.get()));
        }
    }

    /// Removes the entry of a queue pair.
    pub fn forget(&mut self, qpn: Qpn, timer: &mut Timer) {
        if let Some(queued) = timer.queued.take() {
            self.entries.remove(&(queued, qpn.get()));
        }
    }

    /// The earliest entry. It may be early (a deadline was moved or cleared), never late.
    pub fn next(&self) -> Option<Instant> {
        self.entries.first().map(|(at, _)| *at)
    }

    /// Takes the next entry that is due.
    pub fn pop(&mut self, now: Instant) -> Option<(Instant, Qpn)> {
        let &(at, qpn) = self.entries.first().filter(|(at, _)| *at <= now)?;
        self.entries.pop_first();
        Some((at, Qpn::new(qpn)))
    }

    /// Whether the entry just taken at `at` means that `timer` is due; clears it then, and queues it again if it is later.
    pub fn is_due(&mut self, qpn: Qpn, timer: &mut Timer, at: Instant, now: Instant) -> bool {
        if timer.queued != Some(at) {
            return false;
        }
        timer.queued = None;
        match timer.deadline {
            Some(deadline) if deadline <= now => {
                timer.deadline = None;
                true
            }
            Some(deadline) => {
                self.set(qpn, timer, deadline);
                false
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moved_deadline_fires_once_at_its_last_value() {
        let (mut timers, mut timer, qpn) = (Timers::default(), Timer::default(), Qpn::new(9));
        let at = Instant::from_nanos;
        timers.set(qpn, &mut timer, at(10));
        timers.set(qpn, &mut timer, at(30));
        timers.set(qpn, &mut timer, at(20));
        let mut fired = alloc::vec::Vec::new();
        for now in 0..50 {
            while let Some((entry, qpn)) = timers.pop(at(now)) {
                if timers.is_due(qpn, &mut timer, entry, at(now)) {
                    fired.push(now);
                }
            }
        }
        assert_eq!(fired, [20]);
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn an_earlier_deadline_replaces_a_later_one() {
        let (mut timers, mut timer, qpn) = (Timers::default(), Timer::default(), Qpn::new(9));
        let at = Instant::from_nanos;
        timers.set(qpn, &mut timer, at(30));
        timers.set(qpn, &mut timer, at(5));
        let (entry, _) = timers.pop(at(5)).unwrap();
        assert!(timers.is_due(qpn, &mut timer, entry, at(5)));
        assert_eq!(timers.pop(at(30)), None, "one entry per queue pair");
    }
}
