//! How a sender finds out whether its peer takes packets on many paths, and when it may begin.
//!
//! A few hellos, each of which a plain peer drops as a stale acknowledgement; the offer that answers one; and the beginning, at
//! the first message boundary at which nothing is outstanding. Hellos are counted out in acknowledged packets, so that a
//! connection that is hardly used sends none, one that waits needs no timer, and one whose peer never answers stays plain for
//! ever. There is no third message: who offered takes packets of either kind until the first of the new kind comes.

use roce::Psn;
use roce::wire::spray_ext::{Offer, VERSION};

/// Acknowledged packets after which each hello is sent.
const HELLO_AT: [u32; 4] = [64, 256, 1024, 4096];

/// Where the negotiation of one direction stands.
#[derive(Clone, Debug)]
pub struct Negotiation {
    acknowledged: u32,
    /// PSNs of the hellos that were sent.
    hellos: [Option<Psn>; HELLO_AT.len()],
    offer: Option<Offer>,
    has_begun: bool,
}

impl Default for Negotiation {
    fn default() -> Self {
        Negotiation::new()
    }
}

impl Negotiation {
    /// A connection that has just been made.
    pub fn new() -> Negotiation {
        Negotiation { acknowledged: 0, hellos: [None; HELLO_AT.len()], offer: None, has_begun: false }
    }

    /// A connection to a peer of which it is known, by other means, what it takes: nothing is asked.
    pub fn agreed(offer: Offer) -> Negotiation {
        Negotiation { offer: Some(offer), ..Negotiation::new() }
    }

    /// `packets` more packets were acknowledged.
    pub fn on_acknowledged(&mut self, packets: u32) {
        self.acknowledged = self.acknowledged.saturating_add(packets);
    }

    /// Whether a hello is to be sent now.
    pub fn wants_hello(&self) -> bool {
        let next = self.hellos.iter().zip(HELLO_AT).find(|(sent, _)| sent.is_none());
        self.offer.is_none() && next.is_some_and(|(_, at)| self.acknowledged >= at)
    }

    /// A hello with this PSN was sent.
    pub fn on_hello_sent(&mut self, psn: Psn) {
        if let Some(free) = self.hellos.iter_mut().find(|sent| sent.is_none()) {
            *free = Some(psn);
        }
    }

    /// An offer arrived; `psn` is that of its BTH. Whether it is taken: it answers a hello of this connection, is the first, and
    /// its versions include ours.
    pub fn on_offer(&mut self, psn: Psn, offer: &Offer) -> bool {
        let answers = self.hellos.contains(&Some(psn)) && (offer.lowest..=offer.highest).contains(&VERSION);
        if !answers || self.offer.is_some() {
            return false;
        }
        self.offer = Some(*offer);
        true
    }

    /// The offer that was taken, while the connection is still plain: no new message is to be begun until everything is
    /// acknowledged, and then [`Negotiation::begin`].
    pub fn is_agreed(&self) -> bool {
        self.offer.is_some() && !self.has_begun
    }

    /// Begins, if it is agreed: the caller stands at a message boundary with nothing outstanding. From now on every packet is of
    /// the new kind. Returns the terms.
    pub fn begin(&mut self) -> Option<Offer> {
        if !self.is_agreed() {
            return None;
        }
        self.has_begun = true;
        self.offer
    }

    /// What the peer takes, once it has said so.
    pub fn offer(&self) -> Option<&Offer> {
        self.offer.as_ref()
    }

    /// Whether packets are of the new kind.
    pub fn has_begun(&self) -> bool {
        self.has_begun
    }
}
