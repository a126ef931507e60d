//! Who may act next: the arbiter of [`isolation`], and the time it is asked at. It is asked before every burst of packets and before
//! every step of the local path, for requests and responses alike, and told afterwards what the turn cost.

use crate::event::Work;
use isolation::incast::Incast;
use isolation::{Arbiter, Config, Cost, Flow, Grant};
use roce::{Instant, Qpn};

#[derive(Debug)]
pub(crate) struct Schedule {
    pub arbiter: Arbiter,
    /// What senders to this RNIC are asked to keep to.
    pub incast: Option<Incast>,
    /// When the call began that is being carried out.
    pub now: Instant,
}

impl Schedule {
    pub fn new(config: Config) -> Self {
        Schedule { arbiter: Arbiter::new(config), incast: config.receive_bytes_per_sec.map(Incast::new), now: Instant::ZERO }
    }

    /// A queue pair has something to do.
    #[inline]
    pub fn add(&mut self, qpn: Qpn, flow: &mut Flow) {
        self.arbiter.add(qpn, flow, self.now);
    }

    /// Whose turn it is; the queue pair may be gone by now.
    #[inline]
    pub fn take(&mut self) -> Option<Grant> {
        self.arbiter.take(self.now)
    }

    /// What came of a turn, and whether it ended within a message.
    #[inline]
    pub fn charge(&mut self, grant: &Grant, work: Option<&Work>, within_message: bool) {
        let cost = match *work.unwrap_or(&Work::Copied { bytes: 0, messages: 0 }) {
            Work::Packets(sent) => {
                self.arbiter.note_sent(sent.bytes_on_link() as u64);
                Cost { bytes: sent.len as u64, packets: sent.packets() as u64, within_message }
            }
            Work::Copied { bytes, messages } => Cost { bytes, packets: u64::from(messages), within_message },
        };
        self.arbiter.charge(grant, cost, self.now);
    }
}
