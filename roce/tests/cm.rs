//! Communication management messages: known places of fields, and parsing gives back what was emitted.

use proptest::prelude::*;
use roce::wire::cm::{Answered, CmPath, Message, Rej, Rep, Req, SidrRep, SidrReq, Transport};
use roce::wire::cma::{CmaHeader, PortSpace};
use roce::wire::mad::{MAD_LEN, MadError};
use roce::{Gid, Psn, Qpn};
use std::net::IpAddr;

fn answered() -> impl Strategy<Value = Answered> {
    prop::sample::select(vec![Answered::Req, Answered::Rep, Answered::Other])
}

prop_compose! {
    fn path()(local: [u8; 16], remote: [u8; 16], flow_label in 0_u32..1 << 20, packet_rate in 0_u8..64, traffic_class: u8,
        hop_limit: u8, service_level in 0_u8..16, subnet_local: bool, ack_timeout in 0_u8..32) -> CmPath {
        CmPath { local_gid: Gid(local), remote_gid: Gid(remote), flow_label, packet_rate, traffic_class, hop_limit,
            service_level, subnet_local, ack_timeout }
    }
}

prop_compose! {
    fn req()(ids: [u32; 4], service_id: u64, ca_guid: u64, depths: [u8; 2], timeouts in [0_u8..32, 0_u8..32],
        transport in prop::sample::select(vec![Transport::Rc, Transport::Uc, Transport::Rd, Transport::Extended]),
        flags: [bool; 2], retries in [0_u8..8, 0_u8..8, 0_u8..16, 0_u8..16], pkey: u16, path in path(), fill: u8) -> Req {
        Req {
            local_comm_id: ids[0], service_id, ca_guid, qkey: ids[1], qpn: Qpn::new(ids[2]),
            responder_resources: depths[0], initiator_depth: depths[1], remote_response_timeout: timeouts[0], transport,
            flow_control: flags[0], starting_psn: Psn::new(ids[3]), local_response_timeout: timeouts[1],
            retry_count: retries[0], pkey, path_mtu: retries[2], rnr_retry_count: retries[1], max_cm_retries: retries[3],
            srq: flags[1], path, private_data: [fill; 92],
        }
    }
}

prop_compose! {
    fn rep()(ids: [u32; 5], depths: [u8; 2], delay in 0_u8..32, flags: [bool; 2], rnr in 0_u8..8, ca_guid: u64, fill: u8)
        -> Rep {
        Rep {
            local_comm_id: ids[0], remote_comm_id: ids[1], qkey: ids[2], qpn: Qpn::new(ids[3]),
            starting_psn: Psn::new(ids[4]), responder_resources: depths[0], initiator_depth: depths[1],
            target_ack_delay: delay, flow_control: flags[0], rnr_retry_count: rnr, srq: flags[1], ca_guid,
            private_data: [fill; 196],
        }
    }
}

fn message() -> impl Strategy<Value = Message> {
    let ids = any::<[u32; 3]>();
    prop_oneof![
        req().prop_map(Message::Req),
        rep().prop_map(Message::Rep),
        (ids, answered(), any::<u16>(), any::<u8>()).prop_map(|(ids, answered, reason, fill)| Message::Rej(Rej {
            local_comm_id: ids[0],
            remote_comm_id: ids[1],
            answered,
            reason,
            private_data: [fill; 148]
        })),
        (ids, answered(), 0_u8..32).prop_map(|(ids, answered, service_timeout)| Message::Mra {
            local_comm_id: ids[0],
            remote_comm_id: ids[1],
            answered,
            service_timeout
        }),
        ids.prop_map(|ids| Message::Rtu { local_comm_id: ids[0], remote_comm_id: ids[1] }),
        ids.prop_map(|ids| Message::Drep { local_comm_id: ids[0], remote_comm_id: ids[1] }),
        ids.prop_map(|ids| Message::Dreq { local_comm_id: ids[0], remote_comm_id: ids[1], remote_qpn: Qpn::new(ids[2]) }),
        (ids, any::<u64>(), any::<u16>(), any::<u8>()).prop_map(|(ids, service_id, pkey, fill)| Message::SidrReq(SidrReq {
            request_id: ids[0],
            pkey,
            service_id,
            private_data: [fill; 216]
        })),
        (ids, any::<u64>(), any::<u8>(), any::<u8>()).prop_map(|(ids, service_id, status, fill)| Message::SidrRep(SidrRep {
            request_id: ids[0],
            status,
            qpn: Qpn::new(ids[1]),
            service_id,
            qkey: ids[2],
            private_data: [fill; 136]
        })),
    ]
}

proptest! {
    #[test]
    fn messages_come_back(transaction: u64, message in message()) {
        let mut bytes = [0xEE; MAD_LEN];
        message.emit(transaction, &mut bytes);
        prop_assert_eq!(Message::parse(&bytes), Ok((transaction, message)));
    }

    #[test]
    fn any_bytes_are_parsed_or_refused(mut bytes in proptest::collection::vec(any::<u8>(), MAD_LEN), attribute in 0x0E_u8..0x1C) {
        let _ = Message::parse(&bytes);
        bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
        bytes[16..18].copy_from_slice(&[0, attribute]);
        if let Ok((transaction, message)) = Message::parse(&bytes) {
            let mut again = [0; MAD_LEN];
            message.emit(transaction, &mut again);
            prop_assert_eq!(Message::parse(&again), Ok((transaction, message)));
        }
    }

    #[test]
    fn addresses_come_back(src: [u8; 4], dst: [u8; 4], wide: [[u8; 16]; 2], port: u16) {
        let v4 = CmaHeader { src: IpAddr::from(src), port, dst: IpAddr::from(dst) };
        let v6 = CmaHeader { src: IpAddr::from(wide[0]), port, dst: IpAddr::from(wide[1]) };
        for header in [v4, v6] {
            let mut bytes = [0xEE; 36];
            header.emit(&mut bytes);
            prop_assert_eq!(CmaHeader::parse(&bytes), Some(header));
        }
    }
}

/// Places as the architecture's tables name them (IBA 12.6.5 and annex A11), written down here by hand.
#[test]
fn a_req_lies_as_the_tables_say() {
    let mut private_data = [0; 92];
    let header = CmaHeader { src: "192.0.2.1".parse().unwrap(), port: 0xC123, dst: "192.0.2.2".parse().unwrap() };
    header.emit((&mut private_data[..36]).try_into().unwrap());
    private_data[36] = 0x77;
    let req = Req {
        local_comm_id: 0x0102_0304,
        service_id: PortSpace::Tcp.service_id(7174),
        ca_guid: 0x1112_1314_1516_1718,
        qkey: 0,
        qpn: Qpn::new(0x21_2223),
        responder_resources: 4,
        initiator_depth: 5,
        remote_response_timeout: 20,
        transport: Transport::Uc,
        flow_control: true,
        starting_psn: Psn::new(0x31_3233),
        local_response_timeout: 19,
        retry_count: 7,
        pkey: 0xFFFF,
        path_mtu: 3,
        rnr_retry_count: 6,
        max_cm_retries: 15,
        srq: true,
        path: CmPath {
            local_gid: header.src.into(),
            remote_gid: header.dst.into(),
            flow_label: 0xABCDE,
            packet_rate: 3,
            traffic_class: 0x68,
            hop_limit: 64,
            service_level: 5,
            subnet_local: true,
            ack_timeout: 16,
        },
        private_data,
    };
    let mut mad = [0; MAD_LEN];
    Message::Req(req).emit(0x4142_4344_4546_4748, &mut mad);
    assert_eq!(mad[..4], [1, 0x07, 2, 3]);
    assert_eq!(mad[8..18], [0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48, 0, 0x10]);
    let body = &mad[24..];
    assert_eq!(body[..4], [1, 2, 3, 4]);
    assert_eq!(body[8..16], [0, 0, 0, 0, 1, 6, 0x1C, 0x06], "service ID: TCP space, port 7174");
    assert_eq!(body[16..24], [0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18]);
    assert_eq!(body[32..40], [0x21, 0x22, 0x23, 4, 0, 0, 0, 5]);
    assert_eq!(body[40..48], [0, 0, 0, 20 << 3 | 1 << 1 | 1, 0x31, 0x32, 0x33, 19 << 3 | 7]);
    assert_eq!(body[48..52], [0xFF, 0xFF, 3 << 4 | 6, 15 << 4 | 8]);
    assert_eq!(body[66..72], [0xFF, 0xFF, 192, 0, 2, 1]);
    assert_eq!(body[82..88], [0xFF, 0xFF, 192, 0, 2, 2]);
    assert_eq!(body[88..96], [0xAB, 0xCD, 0xE0, 3, 0x68, 64, 5 << 4 | 8, 16 << 3]);
    assert_eq!(body[140..144], [0, 0x40, 0xC1, 0x23], "CMA version, IP version, port");
    assert_eq!(body[156..160], [192, 0, 2, 1]);
    assert_eq!(body[172..176], [192, 0, 2, 2]);
    assert_eq!(body[176], 0x77, "the consumer's data begins");
}

#[test]
fn what_is_not_ours_is_refused() {
    let mut mad = [0; MAD_LEN];
    Message::Rtu { local_comm_id: 1, remote_comm_id: 2 }.emit(3, &mut mad);
    assert_eq!(Message::parse(&mad[..255]), Err(MadError::Length(255)));
    assert_eq!(Message::parse(&[]), Err(MadError::Length(0)));
    for at in 0..4 {
        let mut other = mad;
        other[at] ^= 0x40;
        assert!(matches!(Message::parse(&other), Err(MadError::Class { .. })), "byte {at}");
    }
    mad[17] = 0x19;
    assert_eq!(Message::parse(&mad), Err(MadError::Attribute(0x19)), "alternate paths");
}

#[test]
fn service_ids_of_other_spaces_are_no_ports() {
    assert_eq!(PortSpace::of_service_id(0x0106_0001), Some((PortSpace::Tcp, 1)));
    assert_eq!(PortSpace::of_service_id(0x0111_FFFF), Some((PortSpace::Udp, 0xFFFF)));
    for other in [0, 0x013F_0001, 0x1_0106_0001, u64::MAX] {
        assert_eq!(PortSpace::of_service_id(other), None, "{other:#x}");
    }
}
