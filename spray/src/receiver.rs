//! The receiving end of a connection that is sprayed at: the window, and when to say what is in it.

use crate::{Arrival, RxWindow};
use core::time::Duration;
use roce::wire::spray_ext::{Sack, Stamp};
use roce::{Instant, Psn};

/// Probes that can wait to be answered at a time.
const PROBES: usize = 4;

/// What a data packet or a probe brings besides its PSN and payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Its UDP source port.
    pub port: u16,
    /// The sender's clock in its stamp.
    pub time: u32,
    /// It carried a congestion mark.
    pub marked: bool,
    /// It asks for an acknowledgement at once.
    pub ack_req: bool,
}

/// The receiving end of a connection.
#[derive(Clone, Debug)]
pub struct Receiver {
    window: RxWindow,
    /// Packets per acknowledgement, and the longest time that one is held back.
    every: u16,
    delay: Duration,
    /// What the next acknowledgement echoes, and the PSN of that packet.
    echo: Option<(Arrived, Psn)>,
    /// Probes that wait to be answered, each by an acknowledgement of its own.
    probes: [Option<Arrived>; PROBES],
    /// Packets since the last acknowledgement.
    unacked: u16,
    is_due: bool,
    due_at: Option<Instant>,
    received: u16,
    received_marked: u16,
    duplicates: u16,
}

impl Receiver {
    /// A receiver that awaits `expected`, with a window of `packets`. It acknowledges every `every` packets (1 to echo each path, 4
    /// is usual), and after `delay` at the latest.
    ///
    /// # Panics
    /// If the window is out of range or `every` is 0: a fault of the caller.
    pub fn new(packets: u16, expected: Psn, every: u16, delay: Duration) -> Receiver {
        assert!(every > 0, "an acknowledgement every 0 packets");
        Receiver {
            window: RxWindow::new(packets, expected),
            every,
            delay,
            echo: None,
            probes: [None; PROBES],
            unacked: 0,
            is_due: false,
            due_at: None,
            received: 0,
            received_marked: 0,
            duplicates: 0,
        }
    }

    /// The window. What has become complete is taken from it with [`Receiver::advance`].
    pub fn window(&self) -> &RxWindow {
        &self.window
    }

    /// See [`RxWindow::advance`].
    pub fn advance(&mut self) -> u32 {
        self.window.advance()
    }

    /// See [`RxWindow::pass`].
    pub fn pass(&mut self) -> bool {
        self.window.pass()
    }

    /// See [`RxWindow::restart`].
    pub fn restart(&mut self, expected: Psn) {
        self.window.restart(expected);
    }

    /// A packet that stands for `count` PSNs arrived, and there is room for what it brings. [`Arrival::New`]: it is taken.
    /// [`Arrival::Outside`]: it is to be refused.
    pub fn on_packet(&mut self, now: Instant, psn: Psn, count: u32, arrived: Arrived) -> Arrival {
        let had_gap = self.window.has_gap();
        let arrival = self.window.take(psn, count);
        if arrival == Arrival::Outside {
            return arrival;
        }
        self.received = self.received.wrapping_add(1);
        self.received_marked = self.received_marked.wrapping_add(u16::from(arrived.marked));
        let is_duplicate = arrival == Arrival::Duplicate;
        self.duplicates = self.duplicates.wrapping_add(u16::from(is_duplicate));
        // A mark that waits is not replaced by a packet without one: what the sender learns is where it is crowded.
        let keeps = self.echo.is_some_and(|(echo, _)| echo.marked && !arrived.marked);
        if !keeps {
            self.echo = Some((arrived, psn));
        }
        self.unacked += 1;
        // The last packet that was missing is told at once: the sender may be waiting for just that.
        let closes_gap = had_gap && self.window.is_next(psn);
        self.is_due |= arrived.ack_req || is_duplicate || closes_gap || self.unacked >= self.every;
        self.due_at.get_or_insert(now + self.delay);
        arrival
    }

    /// A request arrived whose answer, in the `count` PSNs from `psn` on, is its acknowledgement.
    pub fn on_request(&mut self, psn: Psn, count: u32) -> Arrival {
        self.window.take(psn, count)
    }

    /// A probe arrived. More of them at a time than are remembered go unanswered.
    pub fn on_probe(&mut self, arrived: Arrived) {
        if let Some(free) = self.probes.iter_mut().find(|probe| probe.is_none()) {
            *free = Some(arrived);
        }
    }

    /// The acknowledgement that is due now: the PSN for its BTH, and its headers. `msn` is the count of messages whose effects are
    /// complete. Call [`Receiver::advance`] before, and this until there is none.
    pub fn poll_sack(&mut self, now: Instant, msn: u32) -> Option<(Psn, Sack)> {
        if let Some(probe) = self.probes.iter_mut().find_map(Option::take) {
            let sack = self.sack(msn, probe, self.window.cumulative());
            return Some((self.window.cumulative(), Sack { answers_probe: true, ..sack }));
        }
        if !self.is_due && self.due_at.is_none_or(|at| now < at) {
            return None;
        }
        let (echo, newest) = self.echo.take()?;
        (self.unacked, self.is_due, self.due_at) = (0, false, None);
        Some((self.window.cumulative(), self.sack(msn, echo, newest)))
    }

    /// Where the receiver stands, with the echo of a packet, and with the part of the map that holds `newest`.
    fn sack(&self, msn: u32, echo: Arrived, newest: Psn) -> Sack {
        Sack {
            stamp: Stamp { msn, time: echo.time },
            port: echo.port,
            marked: echo.marked,
            answers_probe: false,
            window: self.window.capacity() as u16,
            received: self.received,
            received_marked: self.received_marked,
            duplicates: self.duplicates,
            rate: 0,
            map: self.window.map(newest),
        }
    }

    /// When [`Receiver::poll_sack`] wants to be called if nothing arrives before.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.due_at
    }
}
