//! What the sender hears: acknowledgements, answers, refusals, and what they say about paths, loss and congestion.

use super::Sender;
use crate::{Acked, Delivered, Evidence, LostPacket};
use core::time::Duration;
use roce::wire::spray_ext::{Nack, RATE_UNIT, Reason, Sack};
use roce::{Instant, Psn};

impl Sender {
    /// Takes a selective acknowledgement whose BTH has the PSN `cumulative`. Returns how many bytes it acknowledges for the first
    /// time. What was never sent, or acknowledged before, changes nothing.
    pub fn on_sack(&mut self, now: Instant, cumulative: Psn, sack: &Sack) -> u64 {
        let rtt = self.on_echo(now, sack.port, sack.stamp.time, sack.marked);
        let [received, marked, duplicates] = self.on_counters(sack);
        // Which packets carried a mark is known only of the one that is echoed.
        let knows_marks = marked == 0;
        let mut bytes = 0;
        // A stale acknowledgement names a PSN before the oldest; one from a liar, a PSN that was never sent, half of them ahead.
        if cumulative.is_before(self.board.oldest()) || self.board.holds(cumulative) {
            bytes += self.on_done(now, cumulative.plus(1), knows_marks);
            for distance in sack.map.received() {
                bytes += self.acknowledge_sent(now, cumulative.plus(distance), knows_marks);
            }
            self.peer_window = u32::from(sack.window).min(u32::from(crate::MAX_WINDOW));
            self.pace.set(u64::from(sack.rate) * RATE_UNIT);
        }
        // What was asked for says itself whether it met congestion.
        let marked_share = if received == 0 { 0.0 } else { f64::from(marked.min(received)) / f64::from(received) };
        if bytes > 0 {
            let in_flight = self.board.in_flight();
            self.congestion.on_ack(now, &Acked { bytes, rtt, marked: sack.marked, marked_share, in_flight });
        }
        self.on_duplicates(u32::from(duplicates));
        self.look(now);
        bytes
    }

    /// Everything before `end` has had its effect at the peer: it has what was sent. Returns its bytes. What was told before, and what
    /// cannot be, changes nothing.
    fn on_done(&mut self, now: Instant, end: Psn, knows_marks: bool) -> u64 {
        let mut bytes = 0;
        if !(1..=self.board.next().distance_from(self.done)).contains(&end.distance_from(self.done)) {
            return bytes;
        }
        let mut at = later(self.done, self.board.oldest());
        // The oldest moves with each: packets that were acknowledged selectively are passed over.
        while at.is_before(end) {
            bytes += self.acknowledge_sent(now, at, knows_marks);
            at = later(at.plus(1), self.board.oldest());
        }
        self.done = end;
        bytes
    }

    /// The receiver has this packet. What was asked for is not acknowledged so: its request may have arrived.
    fn acknowledge_sent(&mut self, now: Instant, psn: Psn, knows_marks: bool) -> u64 {
        if self.board.is_fetch(psn) { 0 } else { self.acknowledge(now, psn, knows_marks) }
    }

    /// A packet has come that is the answer for `psn`, on UDP source port `port`, to a request of the time `time`. What it carries
    /// is new if this is true; else nothing awaits it.
    pub fn on_response(&mut self, now: Instant, psn: Psn, port: u16, time: u32, marked: bool) -> bool {
        if !self.board.is_fetch(psn) {
            // Asked for again for nothing, if it was.
            let behind = self.board.next().distance_from(psn);
            if (1..=i32::from(crate::MAX_WINDOW)).contains(&behind) {
                self.on_duplicates(1);
            }
            return false;
        }
        let rtt = self.on_echo(now, port, time, marked);
        // What is done for it is done after everything before it.
        let bytes = self.on_done(now, psn, false) + self.acknowledge(now, psn, !marked);
        self.done = later(self.done, psn.plus(1));
        let in_flight = self.board.in_flight();
        let marked_share = if marked { 1.0 } else { 0.0 };
        self.congestion.on_ack(now, &Acked { bytes, rtt, marked, marked_share, in_flight });
        self.look(now);
        true
    }

    /// The answer for `psn` has come without its payload, which a switch has cut off.
    pub fn on_trimmed_response(&mut self, now: Instant, psn: Psn) {
        if self.board.is_fetch(psn) {
            self.on_refused(now, psn, true);
        }
    }

    /// The echo of a packet or probe: the way its path does.
    fn on_echo(&mut self, now: Instant, port: u16, time: u32, marked: bool) -> Option<Duration> {
        let path = self.paths.path(port)?;
        let elapsed = Duration::from_nanos(u64::from((now.as_nanos() as u32).wrapping_sub(time)));
        // A time that lies ahead, or further back than anything can be under way, is no time of ours.
        let rtt = Some(elapsed).filter(|elapsed| !elapsed.is_zero() && *elapsed < Duration::from_secs(2));
        if let Some(rtt) = rtt {
            self.loss.on_rtt(rtt);
        }
        self.paths.note(now, path, Evidence::Arrived { rtt });
        if marked {
            self.paths.note(now, path, Evidence::Delivered { marked: true, behind: 0 });
        }
        rtt
    }

    fn acknowledge(&mut self, now: Instant, psn: Psn, knows_marks: bool) -> u64 {
        let Sender { board, paths, loss, congestion, counters, .. } = self;
        let mut lost_bytes = 0;
        let delivered = board.acknowledge(psn, loss.overtakers(), |lost: LostPacket| {
            paths.note(now, lost.path, Evidence::Missing);
            counters.missing += 1;
            lost_bytes += u64::from(lost.bytes);
        });
        if lost_bytes > 0 {
            congestion.on_loss(now, lost_bytes, board.in_flight());
        }
        let Some(Delivered { path, former, sent_at, bytes, was_lost }) = delivered else { return 0 };
        (self.silences, self.heard_at) = (0, now);
        // An answer that is faster than any ever was answers the packet that was sent before.
        let is_of_former = former.is_some() && loss.least_rtt().is_some_and(|least| now - sent_at < least);
        if was_lost || is_of_former {
            paths.note(now, former.unwrap_or(path), Evidence::Arrived { rtt: None });
            return u64::from(bytes);
        }
        loss.on_delivered(sent_at);
        if self.awaits_overtaking {
            self.awaits_overtaking = false;
            self.look_at = Some(now);
        }
        let behind = if former.is_some() { 0 } else { self.newest.distance_from(psn).max(0) as u32 };
        if self.newest.is_before(psn) {
            self.newest = psn;
        }
        let evidence = match knows_marks {
            true => Evidence::Delivered { marked: false, behind },
            false => Evidence::Arrived { rtt: None },
        };
        paths.note(now, path, evidence);
        u64::from(bytes)
    }

    /// By how much the receiver's counters have grown: received, marked, duplicates.
    fn on_counters(&mut self, sack: &Sack) -> [u16; 3] {
        let now = [sack.received, sack.received_marked, sack.duplicates];
        let grown = [0, 1, 2].map(|n: usize| now[n].wrapping_sub(self.told[n]));
        // Acknowledgements overtake each other too: an older one would count backwards.
        if grown[0] >= 1 << 15 {
            return [0; 3];
        }
        self.told = now;
        grown
    }

    /// The receiver has got packets twice. If all that was sent again since the window shrank was for nothing, it grows back.
    fn on_duplicates(&mut self, count: u32) {
        let count = count.min(self.resent_since - self.spurious_since);
        if count == 0 {
            return;
        }
        self.counters.spurious += u64::from(count);
        self.spurious_since += count;
        self.loss.on_spurious();
        if self.spurious_since == self.resent_since {
            self.congestion.on_undo();
            (self.resent_since, self.spurious_since) = (0, 0);
        }
    }

    /// Takes the refusal of the packet `psn`. What it says beyond that (a time to wait, a fatal reason) is for the caller.
    pub fn on_nack(&mut self, now: Instant, psn: Psn, nack: &Nack) {
        if matches!(nack.reason, Reason::NotReady(_)) {
            // The peer lives, and what comes after that packet has to wait for it.
            (self.silences, self.heard_at) = (0, now);
        }
        let end = if nack.reason.is_fatal() { psn } else { nack.cumulative.plus(1) };
        self.on_done(now, end, false);
        self.on_refused(now, psn, nack.reason == Reason::Trimmed);
    }

    fn on_refused(&mut self, now: Instant, psn: Psn, trimmed: bool) {
        let Sender { board, paths, loss, congestion, counters, .. } = self;
        let refused = board.refuse(psn, loss.overtakers(), |lost| {
            paths.note(now, lost.path, Evidence::Missing);
            counters.missing += 1;
        });
        let Some(lost) = refused else { return };
        counters.refused += 1;
        if trimmed {
            paths.note(now, lost.path, Evidence::Refused);
            congestion.on_loss(now, u64::from(lost.bytes), board.in_flight());
        }
    }
}

fn later(one: Psn, other: Psn) -> Psn {
    if one.is_before(other) { other } else { one }
}
