//! What a responder sends: responses to READs and atomics in the order of their requests, then one acknowledgement or NAK for
//! everything else.

use super::Qp;
use super::access::{Refusal, Remote};
use super::burst::{Burst, packet_len};
use super::responder::{Fetch, Reply};
use crate::dma::Dma;
use crate::shared::{Scratch, Shared};
use crate::vendor_err;
use emtt::Access;
use roce::Psn;
use roce::wire::{Aeth, Bth, Headers, Opcode, Syndrome};

/// An acknowledgement without a statement about credits.
const ACK: Syndrome = Syndrome::Ack { credits: 31 };

impl Qp {
    /// Makes a burst of reply packets.
    pub fn transmit_replies<'a>(
        &mut self,
        shared: &mut Shared,
        scratch: &'a mut Scratch,
        dma: &mut impl Dma,
        buf: &'a mut [u8],
    ) -> Option<Burst<'a>> {
        let mut burst = Burst::new(buf, scratch.turn_packets, &mut scratch.pieces);
        let first = self.resp.replies.front().map(|reply| reply.psn.plus(reply.sent));
        let filled = self.fill_replies(shared, &mut burst);
        // The memory was right when the request was accepted; its owner has taken it away since.
        let failed = match (filled, burst.gather(dma)) {
            (Ok(()), Ok(())) => None,
            (Err((psn, refusal)), Ok(())) => Some((psn, refusal)),
            (_, Err(_)) => {
                burst.restart();
                first.map(|psn| (psn, Refusal::operational(vendor_err::LOCAL_MEMORY)))
            }
        };
        if let Some((psn, refusal)) = failed {
            self.fail_reply(shared, psn, refusal);
        }
        if burst.is_empty() {
            self.transmit_acknowledgement(shared, &mut burst);
        }
        if burst.is_empty() { None } else { Some(burst) }
    }

    /// The reply at `psn` cannot be sent: the queue pair fails, and the peer is told.
    pub(super) fn fail_reply(&mut self, shared: &mut Shared, psn: Psn, refusal: Refusal) {
        let Refusal::Nak { code, .. } = refusal else { return };
        self.resp.forget_replies();
        self.resp.nak = Some((psn, Syndrome::Nak(code)));
        self.resp.refusing = true;
        self.refuse(shared, code, None);
    }

    /// Adds packets of the oldest replies. On an error the reply at the returned PSN cannot be sent.
    fn fill_replies(&mut self, shared: &Shared, burst: &mut Burst<'_>) -> Result<(), (Psn, Refusal)> {
        let mtu = self.mtu();
        while let Some(&reply) = self.resp.replies.front().filter(|reply| reply.echo.is_none()) {
            let offset = reply.sent * mtu;
            let payload = match reply.kind {
                Fetch::Read(remote) => (remote.len - offset).min(mtu),
                Fetch::Atomic(_) => 0,
            };
            let opcode = opcode(&reply).of_service(self.qp_type.service());
            if !burst.fits(packet_len(opcode, payload as usize)) {
                break;
            }
            let psn = reply.psn.plus(reply.sent);
            if let Fetch::Read(remote) = reply.kind {
                let part = Remote { addr: remote.addr.wrapping_add(u64::from(offset)), len: payload, ..remote };
                let add = burst.payload_of(opcode);
                if let Err(refusal) = self.remote_segments(&shared.table, Access::REMOTE_READ, part, add) {
                    burst.drop_payload();
                    return Err((psn, refusal));
                }
            }
            let mut headers = self.reply_headers(opcode, psn);
            if opcode.has_aeth() {
                headers.aeth = Some(Aeth { syndrome: ACK, msn: reply.msn });
            }
            if let Fetch::Atomic(before) = reply.kind {
                headers.atomic_ack = Some(before);
            }
            burst.add(&mut headers, payload as usize);
            self.resp.reply_sent();
        }
        Ok(())
    }

    /// Adds the acknowledgement or NAK that is due.
    fn transmit_acknowledgement(&mut self, shared: &mut Shared, burst: &mut Burst<'_>) {
        let (psn, syndrome) = match self.resp.nak.take() {
            Some(nak) => nak,
            None if self.resp.ack_due => (self.resp.expected_psn.minus(1), ACK),
            None => return,
        };
        // A NAK acknowledges everything before it.
        self.resp.ack_due = false;
        shared.count(self.device, |counters| match syndrome {
            Syndrome::Ack { .. } => {}
            Syndrome::RnrNak { .. } => counters.send_rnr_err += 1,
            Syndrome::Nak(roce::wire::NakCode::PsnSequenceError) => counters.send_seq_err += 1,
            Syndrome::Nak(_) => counters.send_nak_err += 1,
        });
        let mut headers = self.reply_headers(Opcode::RcAck.of_service(self.qp_type.service()), psn);
        headers.aeth = Some(Aeth { syndrome, msn: self.resp.msn });
        burst.add(&mut headers, 0);
    }

    fn reply_headers(&self, opcode: Opcode, psn: Psn) -> Headers {
        Headers::new(Bth::new(opcode, self.attr.dest_qpn, psn))
    }
}

fn opcode(reply: &Reply) -> Opcode {
    match (reply.kind, reply.sent == 0, reply.sent + 1 == reply.packets) {
        (Fetch::Atomic(_), ..) => Opcode::RcAtomicAck,
        (Fetch::Read(_), true, true) => Opcode::RcReadResponseOnly,
        (Fetch::Read(_), true, false) => Opcode::RcReadResponseFirst,
        (Fetch::Read(_), false, false) => Opcode::RcReadResponseMiddle,
        (Fetch::Read(_), false, true) => Opcode::RcReadResponseLast,
    }
}
