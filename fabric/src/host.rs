//! One host: the real core with one device, its memory registered, and its connections.

use crate::memory::{Memory, sink_of, source_of};
use crate::time::Time;
use emtt::Access;
use rnic::*;
use roce::rng::mix;
use roce::{Gid, Instant, Lkey, Mtu, Psn, Qpn, Rkey};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Address of the first byte of each of a host's two regions, as work requests and peers name it.
pub const BASE: u64 = 0x10_0000_0000;
/// ECT(0) in the field that becomes DSCP and ECN.
const ECN_CAPABLE: u8 = 2;
/// Requests outstanding per connection and direction.
pub const DEPTH: u32 = 128;

const FIRST_IPV4: u32 = 0x0A00_0001;
const FIRST_IPV6: u128 = 0xFD00 << 112 | 1;

/// The address of a host.
pub fn address(host: u32, ipv6: bool) -> IpAddr {
    match ipv6 {
        false => Ipv4Addr::from_bits(FIRST_IPV4 + host).into(),
        true => Ipv6Addr::from_bits(FIRST_IPV6 + u128::from(host)).into(),
    }
}

/// The host with an address that [`address`] made.
pub fn host_at(address: IpAddr) -> u32 {
    match address {
        IpAddr::V4(v4) => v4.to_bits() - FIRST_IPV4,
        // The low half holds the number.
        IpAddr::V6(v6) => v6.to_bits() as u32 - 1,
    }
}

/// One end of a connection.
#[derive(Debug)]
pub struct Connection {
    /// Its queue pair.
    pub qpn: Qpn,
    /// Transfers that were asked for here and are not complete, in order.
    pub posted: VecDeque<u32>,
    /// Transfers of the peer that a receive waits for, in order.
    pub receiving: VecDeque<u32>,
    /// Transfers that wait for room in the send queue.
    pub waiting: VecDeque<u32>,
    /// It is in error.
    pub failed: bool,
}

/// A region of memory.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// For the host's own requests.
    pub lkey: Lkey,
    /// For peers.
    pub rkey: Rkey,
}

/// A host.
pub struct Host {
    /// The core.
    pub rnic: Rnic,
    /// Its device.
    pub device: DeviceId,
    /// The memory that it sends from.
    pub source: Region,
    /// The memory that it receives into.
    pub sink: Region,
    /// Its connections.
    pub connections: Vec<Connection>,
    /// When its next [`crate::event::Event::Timer`] comes.
    pub timer: Time,
    pd: PdId,
    cq: CqId,
}

/// How connections are made.
#[derive(Clone, Copy, Debug)]
pub struct Transport {
    /// Path MTU.
    pub mtu: Mtu,
    /// ACK timeout code.
    pub ack_timeout: u8,
    /// Retries.
    pub retries: u8,
    /// Whether packets travel over IPv6.
    pub ipv6: bool,
    /// How connections use many paths, if they do.
    pub multipath: Option<MultipathConfig>,
}

impl Host {
    /// A host without connections. All of `memory` must have been laid out.
    ///
    /// # Errors
    /// Those of the core; there are none unless the simulation asks for too much.
    pub fn new(number: u32, seed: u64, transport: &Transport, memory: &Memory) -> Result<Host, ControlError> {
        let config = Config {
            seed: mix(seed ^ u64::from(number)),
            local_path: false,
            multipath: transport.multipath,
            ..Config::default()
        };
        let mut rnic = Rnic::new(config);
        let gids = vec![Gid::from(address(number, transport.ipv6))];
        let device = rnic.create_device(DeviceInit { gids, mtu: Mtu::B4096 })?;
        let pd = rnic.alloc_pd(device)?;
        let cq = rnic.create_cq(device)?;
        let mut register = |space, access| -> Result<Region, ControlError> {
            let mr = rnic.reg_mr(pd, MrInit { iova: BASE, access, runs: vec![memory.segment(space)] })?;
            Ok(Region { lkey: mr.lkey, rkey: mr.rkey })
        };
        let source = register(source_of(number), Access::REMOTE_READ)?;
        let sink = register(sink_of(number), Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        Ok(Host { rnic, device, source, sink, connections: Vec::new(), timer: Time::NEVER, pd, cq })
    }

    /// Makes a queue pair with room for so many requests, in RESET, and returns the number of the connection.
    ///
    /// # Errors
    /// Those of the core.
    pub fn add_connection(&mut self, depth: u32) -> Result<u32, ControlError> {
        let caps = QpCaps { max_send_wr: depth, max_recv_wr: depth, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let (send_cq, recv_cq) = (self.cq, self.cq);
        let init = QpInit { qp_type: QpType::Rc, send_cq, recv_cq, srq: None, caps, all_signaled: true };
        let qpn = self.rnic.create_qp(self.pd, init)?;
        let empty = VecDeque::new;
        self.connections.push(Connection { qpn, posted: empty(), receiving: empty(), waiting: empty(), failed: false });
        Ok(self.connections.len() as u32 - 1)
    }

    /// Brings a connection to RTS, to a peer's queue pair. `psns` are the first ones: ours and the peer's.
    ///
    /// # Errors
    /// Those of the core.
    pub fn connect(
        &mut self,
        connection: u32,
        (peer, dest_qpn): (u32, Qpn),
        (sq_psn, rq_psn): (Psn, Psn),
        transport: &Transport,
    ) -> Result<(), ControlError> {
        use QpAttrMask as Mask;
        let qpn = self.connections[connection as usize].qpn;
        let dgid = Gid::from(address(peer, transport.ipv6));
        let mut attr = QpAttr {
            access: Access::REMOTE_WRITE | Access::REMOTE_READ,
            port: 1,
            address: AddressVector { dgid, port: 1, traffic_class: ECN_CAPABLE, ..Default::default() },
            path_mtu: transport.mtu,
            timeout: transport.ack_timeout,
            retry_cnt: transport.retries,
            rnr_retry: 7,
            min_rnr_timer: 1,
            rq_psn,
            sq_psn,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            dest_qpn,
            ..self.rnic.query_qp(qpn)?
        };
        let init = Mask::PKEY_INDEX | Mask::PORT | Mask::ACCESS_FLAGS;
        let rtr = Mask::AV | Mask::PATH_MTU | Mask::DEST_QPN | Mask::RQ_PSN | Mask::MAX_DEST_RD_ATOMIC | Mask::MIN_RNR_TIMER;
        let rts = Mask::TIMEOUT | Mask::RETRY_CNT | Mask::RNR_RETRY | Mask::SQ_PSN | Mask::MAX_QP_RD_ATOMIC;
        for (state, mask) in [(QpState::Init, init), (QpState::Rtr, rtr), (QpState::Rts, rts)] {
            attr.state = state;
            self.rnic.modify_qp(Instant::ZERO, qpn, mask | Mask::STATE, &attr)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_hosts_are_one_to_one() {
        for host in [0, 1, 255, 256, 65_535] {
            for ipv6 in [false, true] {
                assert_eq!(host_at(address(host, ipv6)), host);
            }
        }
    }
}
