//! Devices and queue pairs of loads, and the requests on them.

use super::load::{Load, Op, Receives};
use emtt::{Access, MemId, Owner, Segment};
use rnic::*;
use roce::{Gid, Instant, Mtu, Psn, Qpn};
use std::net::{IpAddr, Ipv4Addr};

/// Bytes of every host's memory as the core sees it: none are kept.
const MEMORY: u64 = 1 << 32;
/// Receives that a peer keeps posted, at most.
const MAX_RECEIVES: u32 = 256;
/// What lies before a received datagram.
const GRH: u32 = 40;
const QKEY: u32 = 0x1111_1111;

/// Memory that takes and gives anything.
pub(super) struct NoMemory;

impl Dma for NoMemory {
    fn gather(&mut self, _: &[Piece], _: &mut [u8]) -> Result<(), DmaError> {
        Ok(())
    }

    fn scatter(&mut self, _: &[Piece], _: &[u8]) -> Result<(), DmaError> {
        Ok(())
    }

    fn copy(&mut self, _: &[Segment], _: &[Segment]) -> Result<(), DmaError> {
        Ok(())
    }

    fn atomic(&mut self, _: Segment, _: AtomicOp) -> Result<u64, DmaError> {
        Ok(0)
    }
}

/// Which end of a load's queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// That of the tenant's program.
    Own,
    /// The other one.
    Peer,
}

/// One end of a load's queue pairs: a device of its own.
pub(super) struct End {
    pub host: usize,
    pub device: DeviceId,
    pub ip: IpAddr,
    side: Side,
    pd: PdId,
    cq: CqId,
    mrs: Vec<Mr>,
}

/// Which load, and which end of it, has an address.
pub(super) fn owner_of(ip: IpAddr) -> (usize, Side) {
    let IpAddr::V4(ip) = ip else { unreachable!("all addresses are of IPv4") };
    let [_, side, high, low] = ip.octets();
    (usize::from(high) << 8 | usize::from(low), if side == 0 { Side::Own } else { Side::Peer })
}

impl End {
    /// An end of load number `n`; `tells_class`: the arbiter is told its class.
    pub fn new(rnic: &mut Rnic, n: usize, side: Side, load: &Load, tells_class: bool) -> End {
        let number = [(n >> 8) as u8, n as u8];
        let ip = IpAddr::from(Ipv4Addr::new(10, side as u8, number[0], number[1]));
        let device = rnic.create_device(DeviceInit { gids: vec![Gid::from(ip)], mtu: Mtu::B4096 }).expect("a device");
        let settings = isolation::Settings { class: load.settings.class.filter(|_| tells_class), ..load.settings };
        rnic.set_shares(Instant::ZERO, device, settings).expect("settings that can be");
        let pd = rnic.alloc_pd(device).expect("a protection domain");
        let cq = rnic.create_cq(device).expect("a completion queue");
        let mrs = (0..load.regions.max(1)).map(|_| {
            let runs = vec![Segment { owner: Owner::Host(MemId(0)), addr: 0, len: MEMORY }];
            rnic.reg_mr(pd, MrInit { iova: 0, access: Access::all(), runs }).expect("a region")
        });
        let mrs = mrs.collect();
        let host = if side == Side::Own { load.from } else { load.to };
        End { host, device, ip, side, pd, cq, mrs }
    }

    /// A queue pair, not connected yet.
    pub fn queue_pair(&self, rnic: &mut Rnic, load: &Load) -> Qpn {
        let sends = match (load.op, self.side) {
            // An answer may overtake the acknowledgement of what it answers.
            (Op::Echo, _) => load.batch * load.depth * 4,
            (_, Side::Own) => load.batch * load.depth,
            (_, Side::Peer) => 1,
        };
        let max_recv_wr = self.receives(load).max(1);
        let caps =
            QpCaps { max_send_wr: sends, max_recv_wr, max_send_sge: load.buffers.max(1), max_recv_sge: 1, max_inline_data: 0 };
        let init = QpInit { qp_type: load.service, send_cq: self.cq, recv_cq: self.cq, srq: None, caps, all_signaled: true };
        rnic.create_qp(self.pd, init).expect("a queue pair")
    }

    /// Receives that this end keeps posted on each queue pair.
    pub fn receives(&self, load: &Load) -> u32 {
        let needed = match (load.op, self.side) {
            (Op::Echo, _) | (Op::Send, Side::Peer) => (load.batch * load.depth).min(MAX_RECEIVES),
            _ => 0,
        };
        if load.receives == Receives::Posted { needed } else { 0 }
    }

    /// Posts a receive.
    pub fn post_receive(&self, rnic: &mut Rnic, qpn: Qpn, load: &Load, wr_id: u64) {
        let buffers = [LocalBuffer::Keyed { lkey: self.mrs[0].lkey, addr: 0, len: load.bytes + GRH }];
        rnic.post_recv(Instant::ZERO, qpn, &RecvRequest { wr_id, buffers: &buffers }).expect("there is room");
    }

    /// Posts the message number `count` of a queue pair to `dest` of the peer.
    #[expect(clippy::too_many_arguments, reason = "all of a request")]
    pub fn post(
        &self,
        rnic: &mut Rnic,
        now: Instant,
        peer: &End,
        (qpn, dest): (Qpn, Qpn),
        load: &Load,
        wr_id: u64,
        count: u64,
    ) {
        let nth = count as usize % self.mrs.len();
        let (remote_addr, rkey) = (0, peer.mrs[nth].rkey);
        let atomic = |op| SendOp::Atomic { remote_addr, rkey, op };
        let op = match load.op {
            Op::Write => SendOp::Write { remote_addr, rkey, imm: None },
            Op::Read => SendOp::Read { remote_addr, rkey },
            Op::Send if load.service == QpType::Ud => {
                SendOp::Datagram { to: Destination { address: peer.address(), qpn: dest, qkey: QKEY }, imm: None }
            }
            Op::Send | Op::Echo => SendOp::Send { imm: None, invalidate: None },
            Op::CompareSwap => atomic(AtomicOp::CompareSwap { compare: 0, swap: 0 }),
            Op::FetchAdd => atomic(AtomicOp::FetchAdd { add: 1 }),
        };
        let bytes = load.sizes.get(count as usize % load.sizes.len().max(1)).copied().unwrap_or(load.bytes);
        let pieces = load.buffers.max(1);
        let lkey = self.mrs[nth].lkey;
        let buffer = |n| LocalBuffer::Keyed { lkey, addr: 0, len: bytes / pieces + u32::from(n < bytes % pieces) };
        let buffers: Vec<LocalBuffer> = (0..pieces).map(buffer).collect();
        let request = SendRequest { wr_id, op, flags: SendFlags::empty(), buffers: &buffers, srqn: None };
        rnic.post_send(now, qpn, &request).expect("there is room");
    }

    /// How others get here.
    fn address(&self) -> AddressVector {
        AddressVector { dgid: Gid::from(self.ip), port: 1, ..Default::default() }
    }

    /// Makes a queue pair ready for the peer's.
    pub fn connect(&self, rnic: &mut Rnic, qpn: Qpn, peer: &End, dest_qpn: Qpn, load: &Load, path_mtu: Mtu) {
        use QpAttrMask as Mask;
        let mut attr = QpAttr {
            access: Access::all(),
            port: 1,
            qkey: QKEY,
            address: peer.address(),
            path_mtu,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: if let Receives::Missing(code) = load.receives { code } else { 1 },
            rq_psn: Psn::new(0),
            sq_psn: Psn::new(0),
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            dest_qpn,
            ..rnic.query_qp(qpn).expect("it was just made")
        };
        let mut init = Mask::PKEY_INDEX | Mask::PORT | Mask::ACCESS_FLAGS;
        let mut rtr = Mask::AV | Mask::PATH_MTU | Mask::DEST_QPN | Mask::RQ_PSN;
        let mut rts = Mask::SQ_PSN;
        match load.service {
            QpType::Ud => (init, rtr) = (Mask::PKEY_INDEX | Mask::PORT | Mask::QKEY, Mask::empty()),
            QpType::Uc => {}
            _ => {
                rtr |= Mask::MAX_DEST_RD_ATOMIC | Mask::MIN_RNR_TIMER;
                rts |= Mask::TIMEOUT | Mask::RETRY_CNT | Mask::RNR_RETRY | Mask::MAX_QP_RD_ATOMIC;
            }
        }
        for (state, mask) in [(QpState::Init, init), (QpState::Rtr, rtr), (QpState::Rts, rts)] {
            attr.state = state;
            rnic.modify_qp(Instant::ZERO, qpn, mask | Mask::STATE, &attr).expect("the states in their order");
        }
    }
}
