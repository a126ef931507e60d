//! Building a burst: packets of one flow, equally long but for the last, in one buffer, so that one system call sends them.
//!
//! Headers are written as packets are added; the payload of all of them is gathered with one call; then the ICRCs are written.

use crate::dma::{Dma, DmaError, Piece};
use crate::limits::{MAX_BURST_BYTES, MAX_BURST_PACKETS};
use alloc::vec::Vec;
use emtt::Segment;
use roce::wire::icrc::{Flow, Prefix};
use roce::wire::{Bth, Headers, ICRC_LEN, Opcode};

/// Bytes of a packet from BTH to ICRC.
pub(crate) fn packet_len(opcode: Opcode, payload: usize) -> usize {
    opcode.headers_len() + payload + usize::from(Bth::pad_for(payload)) + ICRC_LEN
}

/// A burst in the making.
pub(crate) struct Burst<'a> {
    buf: &'a mut [u8],
    pieces: &'a mut Vec<Piece>,
    len: usize,
    segment_len: usize,
    packets: usize,
    max_packets: usize,
    /// Pieces before this one belong to packets that were added.
    added_pieces: usize,
    /// Its last packet is shorter than the others, so that none can follow.
    closed: bool,
}

impl<'a> Burst<'a> {
    /// A burst of at most so many packets; one may always be added.
    pub fn new(buf: &'a mut [u8], max_packets: usize, pieces: &'a mut Vec<Piece>) -> Self {
        pieces.clear();
        let max_packets = max_packets.min(MAX_BURST_PACKETS);
        Burst { buf, pieces, len: 0, segment_len: 0, packets: 0, max_packets, added_pieces: 0, closed: false }
    }

    /// Starts anew, in the same buffer.
    pub fn restart(&mut self) {
        self.pieces.clear();
        (self.len, self.segment_len, self.packets, self.added_pieces) = (0, 0, 0, 0);
        self.closed = false;
    }

    /// Drops payload that was given for a packet that is not added after all.
    pub fn drop_payload(&mut self) {
        self.pieces.truncate(self.added_pieces);
    }

    pub fn is_empty(&self) -> bool {
        self.packets == 0
    }

    /// Bytes of the whole burst, and of each packet but the last.
    pub fn lengths(&self) -> (usize, usize) {
        (self.len, self.segment_len)
    }

    pub fn packets(&self) -> usize {
        self.packets
    }

    /// Whether a packet of `len` bytes can be added.
    #[inline]
    pub fn fits(&self, len: usize) -> bool {
        if self.packets == 0 {
            return len <= self.buf.len();
        }
        let room = self.buf.len().min(MAX_BURST_BYTES);
        !self.closed && len <= self.segment_len && self.packets < self.max_packets && self.len + len <= room
    }

    /// Adds a packet that fits. Its payload of `payload` bytes was given to [`Self::payload_of`] before.
    #[inline]
    pub fn add(&mut self, headers: &mut Headers, payload: usize) {
        let pad = Bth::pad_for(payload);
        headers.bth.pad = pad;
        let start = self.len;
        let len = packet_len(headers.bth.opcode, payload);
        let end = start + len;
        let payload_end = start + headers.emit(&mut self.buf[start..end]) + payload;
        self.buf[payload_end..payload_end + usize::from(pad)].fill(0);
        self.len = end;
        self.packets += 1;
        self.added_pieces = self.pieces.len();
        if self.packets == 1 {
            self.segment_len = len;
        } else if len < self.segment_len {
            self.closed = true;
        }
    }

    /// Adds a packet that fits, whose payload is given here.
    pub fn add_with(&mut self, headers: &mut Headers, payload: &[u8]) {
        let at = self.len + headers.len();
        self.add(headers, payload.len());
        self.buf[at..at + payload.len()].copy_from_slice(payload);
    }

    /// A function that takes, in order, the memory of the payload of the next packet, whose opcode is `opcode`.
    #[inline]
    pub fn payload_of(&mut self, opcode: Opcode) -> impl FnMut(Segment) {
        let mut at = self.len + opcode.headers_len();
        let pieces = &mut *self.pieces;
        move |segment| {
            pieces.push(Piece { segment, at });
            at += segment.len as usize;
        }
    }

    /// Reads all payload.
    pub fn gather(&mut self, dma: &mut impl Dma) -> Result<(), DmaError> {
        if self.pieces.is_empty() { Ok(()) } else { dma.gather(self.pieces, &mut self.buf[..self.len]) }
    }

    /// Writes the ICRCs. The n-th packet's assumes IPv4 identification n, which is how the kernel numbers the segments of one
    /// send with the don't-fragment flag set.
    pub fn seal(&mut self, flow: &Flow) {
        let mut prefix = None;
        for (n, packet) in self.buf[..self.len].chunks_mut(self.segment_len).enumerate() {
            if packet.len() != self.segment_len {
                prefix = None;
            }
            // A flow's addresses are of one family and a packet is far shorter than 64 KiB, see `state::check`.
            let prefix = prefix.get_or_insert_with(|| Prefix::new(flow, packet.len()).expect("a packet of a checked flow"));
            let (body, icrc) = packet.split_at_mut(packet.len() - ICRC_LEN);
            icrc.copy_from_slice(&prefix.compute(n as u16, body).to_le_bytes());
        }
    }
}

impl Drop for Burst<'_> {
    /// The list is shared with what is received: pieces left behind would be written to there.
    fn drop(&mut self) {
        self.pieces.clear();
    }
}
