//! QP1, the general services interface of each device: management datagrams in and out (IBA 13.4, annex A17).
//!
//! There is no queue pair behind it, unless a device's driver has given one of its own this number: a MAD that arrives for QP1 of a
//! device waits for [`Rnic::poll_mad`], and [`Rnic::send_mad`] sends one, over the wire or to a device of the same core. What a MAD
//! says is the front end's business; loss, duplicates and repetition are, too, as on any network.

use crate::attr::AddressVector;
use crate::dma::Dma;
use crate::error::ControlError;
use crate::event::{Transmit, Work};
use crate::limits::MAX_MADS;
use crate::qp::burst::Burst;
use crate::qp::datagram::{Arrival, deliver, write_delivered};
use crate::qp::state::check_peer;
use crate::rnic::Rnic;
use crate::shared::Shared;
use crate::work::DeviceId;
use alloc::collections::VecDeque;
use roce::wire::icrc::Flow;
use roce::wire::{Bth, Deth, Headers, Opcode};
use roce::{Gid, Psn, Qpn};

/// Bytes of a management datagram.
pub const MAD_BYTES: usize = 256;
/// The Q_Key of QP1 (IBA 10.2.5).
const GSI_QKEY: u32 = 0x8001_0000;

/// A management datagram that was received by, or is to be sent from, QP1 of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mad {
    /// The device.
    pub device: DeviceId,
    /// The device's address: where the datagram arrived, or where it leaves.
    pub local: Gid,
    /// The peer's address.
    pub remote: Gid,
    /// The peer's queue pair, normally [`Qpn::GSI`].
    pub remote_qpn: Qpn,
    /// The datagram.
    pub bytes: [u8; MAD_BYTES],
}

/// Management datagrams that wait.
#[derive(Debug, Default)]
pub(crate) struct Mads {
    received: VecDeque<Mad>,
    to_send: VecDeque<(Mad, AddressVector)>,
    psn: Psn,
}

impl Mads {
    /// A device is gone.
    pub fn forget(&mut self, device: DeviceId) {
        self.received.retain(|mad| mad.device != device);
        self.to_send.retain(|(mad, _)| mad.device != device);
    }
}

impl Shared {
    /// Takes a packet for QP1 of a device.
    pub fn take_mad_packet(&mut self, device: DeviceId, flow: &Flow, headers: &Headers, payload: &[u8]) {
        match headers.deth {
            None => self.drops.bad_service += 1,
            Some(Deth { qkey, src_qpn }) => {
                let arrival = Arrival { src: flow.src, dst: flow.dst, qkey, src_qpn, imm: None, solicited: false };
                self.take_mad(device, &arrival, payload);
            }
        }
    }

    /// Takes a datagram for QP1 of a device.
    pub fn take_mad(&mut self, device: DeviceId, arrival: &Arrival, payload: &[u8]) {
        let Ok(&bytes) = <&[u8; MAD_BYTES]>::try_from(payload) else {
            self.drops.malformed += 1;
            return;
        };
        if arrival.qkey != GSI_QKEY {
            return self.count(device, |counters| counters.bad_qkey += 1);
        }
        if self.mads.received.len() >= MAX_MADS {
            return self.count(device, |counters| counters.dropped_mads += 1);
        }
        let (local, remote) = (Gid::from(arrival.dst), Gid::from(arrival.src));
        self.mads.received.push_back(Mad { device, local, remote, remote_qpn: arrival.src_qpn, bytes });
    }
}

impl Rnic {
    /// The oldest management datagram that came in for QP1 of any device. While nobody asks, some wait and the rest is dropped.
    pub fn poll_mad(&mut self) -> Option<Mad> {
        self.shared.mads.received.pop_front()
    }

    /// Sends a management datagram from QP1 of a device, by a later call of [`Self::poll_transmit`]. Nobody tells whether it
    /// arrives.
    ///
    /// # Errors
    /// `NotFound` for the device; `Invalid` if `local` is not an address of it, or `remote` cannot be reached from there;
    /// `Limit` while too many wait to be sent.
    pub fn send_mad(&mut self, mad: &Mad) -> Result<(), ControlError> {
        let device = self.shared.devices.get(mad.device.0).ok_or(ControlError::NotFound("device"))?;
        let sgid_index = device.gids.iter().position(|&gid| gid == mad.local);
        let sgid_index = sgid_index.ok_or(ControlError::Invalid("the sender's address is none of the device"))? as u8;
        let address = AddressVector { dgid: mad.remote, sgid_index, port: 1, ..AddressVector::default() };
        check_peer(&address, device)?;
        if self.shared.mads.to_send.len() >= MAX_MADS {
            return Err(ControlError::Limit("management datagrams that wait to be sent"));
        }
        self.shared.mads.to_send.push_back((mad.clone(), address));
        Ok(())
    }

    /// Sends the oldest management datagram that waits.
    pub(crate) fn mad_step(&mut self, dma: &mut impl Dma, buf: &mut [u8]) -> Option<Work> {
        let Rnic { qps, shared, scratch } = self;
        let (mad, address) = shared.mads.to_send.pop_front()?;
        let flow = shared.flow(mad.device, &address, (Qpn::GSI, mad.remote_qpn));
        if !shared.port_is_up(mad.device) {
            return None;
        }
        let peer = shared.gids.get(&mad.remote).copied().filter(|_| shared.config.local_path);
        if let Some(peer) = peer {
            if shared.port_is_up(peer) {
                let (src_qpn, qkey) = (Qpn::GSI, GSI_QKEY);
                let arrival = Arrival { src: flow.src, dst: flow.dst, qkey, src_qpn, imm: None, solicited: false };
                scratch.values.extend_from_slice(&arrival.grh(&address, MAD_BYTES));
                scratch.values.extend_from_slice(&mad.bytes);
                deliver(qps, shared, scratch, (peer, mad.remote_qpn), &arrival, 0);
                write_delivered(qps, shared, scratch, (peer, mad.remote_qpn), dma);
            }
            return Some(Work::Copied { bytes: MAD_BYTES as u64, messages: 1 });
        }
        let mut headers = Headers::new(Bth { mig_req: false, ..Bth::new(Opcode::UdSendOnly, mad.remote_qpn, shared.mads.psn) });
        headers.deth = Some(Deth { qkey: GSI_QKEY, src_qpn: Qpn::GSI });
        shared.mads.psn = shared.mads.psn.plus(1);
        let mut burst = Burst::new(buf, 1, &mut scratch.pieces);
        burst.add_with(&mut headers, &mad.bytes);
        burst.seal(&flow);
        let lengths = burst.lengths();
        shared.leave(mad.device, 1, lengths.0).then(|| Work::Packets(Transmit::new(mad.device, &flow, &address, lengths)))
    }
}
