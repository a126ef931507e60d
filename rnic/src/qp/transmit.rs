//! One turn of a queue pair on the wire: a burst of replies or of requests, and what is known about its flow.

use super::Qp;
use crate::dma::Dma;
use crate::event::Transmit;
use crate::shared::{Scratch, Shared};
use roce::Instant;
use roce::wire::ICRC_LEN;
use roce::wire::icrc::{Flow, Prefix};

/// ECT(0) in the last two bits of the traffic class (RFC 3168): packets on many paths belong to a sender that slows down for marks.
const ECN_CAPABLE: u8 = 2;

impl Qp {
    /// Makes one burst of packets. While the port is down the burst is lost, as on a dead link, and `None` returned.
    pub fn transmit(
        &mut self,
        shared: &mut Shared,
        scratch: &mut Scratch,
        now: Instant,
        flow: Flow,
        dma: &mut impl Dma,
        buf: &mut [u8],
    ) -> Option<Transmit> {
        if !shared.port_is_up(self.device) {
            // Nobody hears them; peers will ask again. A long READ must not be built packet by packet for that.
            self.resp.forget_replies();
        }
        if self.multipath.is_some()
            && let Some((src_port, len)) = self.transmit_multipath(shared, scratch, now, flow.src_port, dma, buf)
        {
            let flow = Flow { src_port, ..flow };
            let (body, icrc) = buf[..len].split_at_mut(len - ICRC_LEN);
            let prefix = Prefix::new(&flow, len).expect("a packet of a checked flow");
            icrc.copy_from_slice(&prefix.compute(0, body).to_le_bytes());
            self.schedule(shared);
            let mut burst = Transmit::new(self.device, &flow, &self.attr.address, (len, len));
            burst.traffic_class = burst.traffic_class & !3 | ECN_CAPABLE;
            return shared.leave(self.device, 1, len).then_some(burst);
        }
        let replies_first = self.resp.has_replies() && (!self.requests_first || self.sq.is_empty());
        let mut sent = None;
        for replies in [replies_first, !replies_first] {
            let burst = if replies {
                if !self.resp.has_replies() {
                    continue;
                }
                self.transmit_replies(shared, scratch, dma, buf)
            } else {
                self.transmit_requests(shared, scratch, now, dma, buf)
            };
            if let Some(mut burst) = burst {
                burst.seal(&flow);
                self.requests_first = replies;
                sent = Some((burst.lengths(), burst.packets()));
                break;
            }
        }
        let (lengths, packets) = sent?;
        // Whether more can be sent shows at the next turn.
        self.schedule(shared);
        shared.leave(self.device, packets, lengths.0).then(|| Transmit::new(self.device, &flow, &self.attr.address, lengths))
    }
}
