//! The negotiation under loss of any of its packets, against a peer that never answers, and against answers that fit nothing.

use proptest::prelude::*;
use roce::wire::spray_ext::{Offer, hello_msn, hello_psn, is_hello};
use roce::{Psn, Qpn};
use spray::Negotiation;

const OFFER: Offer = Offer { lowest: 1, highest: 1, features: 0, window: 512, ack_delay_us: 10 };
const HELLOS: u32 = 4;

fn qpns() -> (Qpn, Qpn) {
    (Qpn::new(0x1111), Qpn::new(0x2222))
}

/// Runs `packets` acknowledged packets of a connection. `fates` says of each negotiation packet, in turn, whether it survives.
/// Returns the number of hellos and whether the connection agreed.
fn run(packets: u32, peer_knows: bool, mut fates: impl Iterator<Item = bool>) -> (u32, Negotiation) {
    let (a, b) = qpns();
    let (mut negotiation, mut hellos) = (Negotiation::new(), 0);
    // The peer's own numbers: it sends too.
    let mut peer_psn = Psn::new(0x12_3456);
    for _ in 0..packets {
        negotiation.on_acknowledged(1);
        peer_psn = peer_psn.plus(1);
        if !negotiation.wants_hello() {
            continue;
        }
        hellos += 1;
        let psn = hello_psn(peer_psn);
        negotiation.on_hello_sent(psn);
        let arrives = fates.next().unwrap_or(true);
        if arrives && peer_knows && is_hello(psn, hello_msn(psn, a, b), Some(peer_psn), a, b) && fates.next().unwrap_or(true) {
            negotiation.on_offer(psn, &OFFER);
        }
    }
    (hellos, negotiation)
}

#[test]
fn a_peer_that_never_answers_stays_plain_and_hears_four_hellos() {
    let (hellos, mut negotiation) = run(1_000_000, false, core::iter::empty());
    assert_eq!(hellos, HELLOS);
    assert!(!negotiation.is_agreed() && negotiation.begin().is_none() && !negotiation.has_begun());
}

#[test]
fn a_connection_that_is_hardly_used_says_nothing() {
    assert_eq!(run(63, true, core::iter::empty()).0, 0);
}

#[test]
fn an_offer_is_taken_once_and_begins_once() {
    let (hellos, mut negotiation) = run(100, true, core::iter::empty());
    assert_eq!(hellos, 1);
    assert!(negotiation.is_agreed() && !negotiation.has_begun());
    assert!(!negotiation.on_offer(hello_psn(Psn::new(0)), &OFFER), "the first holds");
    assert_eq!(negotiation.begin(), Some(OFFER));
    assert!(negotiation.has_begun() && !negotiation.is_agreed());
    assert_eq!(negotiation.begin(), None);
    negotiation.on_acknowledged(1 << 20);
    assert!(!negotiation.wants_hello(), "it is agreed");
}

/// An offer that answers no hello of this connection (it was meant for the one before) or of another version.
#[test]
fn offers_that_fit_nothing_are_not_taken() {
    let (_, mut negotiation) = run(100, false, core::iter::empty());
    let psn = hello_psn(Psn::new(0x12_3456).plus(64));
    assert!(!negotiation.on_offer(psn.plus(1), &OFFER));
    assert!(!negotiation.on_offer(psn, &Offer { lowest: 2, highest: 9, ..OFFER }));
    assert!(!negotiation.is_agreed());
    assert!(negotiation.on_offer(psn, &Offer { lowest: 0, highest: 9, ..OFFER }));
}

proptest! {
    /// Whatever is lost: the ends agree if one hello and its offer survive, and the connection is plain if not.
    #[test]
    fn survives_the_loss_of_any_packet(fates in proptest::collection::vec(any::<bool>(), 0..8)) {
        let (hellos, negotiation) = run(10_000, true, fates.iter().copied());
        let (mut left, mut expected, mut sent) = (fates.into_iter(), false, 0);
        while sent < HELLOS && !expected {
            sent += 1;
            expected = left.next().unwrap_or(true) && left.next().unwrap_or(true);
        }
        prop_assert_eq!((hellos, negotiation.is_agreed()), (sent, expected));
    }
}
