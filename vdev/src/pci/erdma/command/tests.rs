//! Commands: fields where the driver puts them, stale bytes, numbers out of range.

use super::*;

/// What a driver leaves unset holds anything.
fn stale() -> [u8; 128] {
    [0xAA; 128]
}

fn set(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

fn set64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn region(pages: u32, level: u32, len: u32) -> [u8; 128] {
    let mut bytes = stale();
    set(&mut bytes, 8, 0x123 | 1 << 31);
    set(&mut bytes, 12, 0x2A | 7 << 12);
    set64(&mut bytes, 16, 0x7000_0800);
    set(&mut bytes, 24, len);
    set(&mut bytes, 28, pages | level << 20 | 12 << 27);
    for n in 0..4 {
        set64(&mut bytes, 32 + 8 * n, 0x1_0000 * (n as u64 + 1));
    }
    bytes
}

#[test]
fn a_region_is_its_pages_rights_and_numbers() {
    let Ok(Command::RegMr(reg)) = parse(0, 8, &region(2, 0, 6000)) else { panic!() };
    assert_eq!((reg.index, reg.key, reg.pdn), (0x123, 0x12300, 7));
    assert_eq!(reg.access, emtt::Access::LOCAL_WRITE | emtt::Access::REMOTE_ATOMIC | emtt::Access::REMOTE_WRITE);
    let MrKind::Normal { iova, pages } = reg.kind else { panic!() };
    assert_eq!((iova, pages.bytes()), (0x7000_0800, 6000));
    // Not all of it lies in its pages.
    assert!(parse(0, 8, &region(2, 0, 6145)).is_err());
    assert!(parse(0, 8, &region(0, 0, 1)).is_err());
    assert!(parse(0, 8, &region(5, 0, 1)).is_err());
    assert!(parse(0, 8, &region(513 * 512, 2, 1)).is_err());
    let mut fast = region(2, 0, 6000);
    set(&mut fast, 12, 0x2A | 1 << 6);
    let Ok(Command::RegMr(reg)) = parse(0, 8, &fast) else { panic!() };
    assert!(matches!(reg.kind, MrKind::Fast { capacity: 2, .. }), "{reg:?}");
}

/// Trap: of a long region whose list is an array, only the lower half of the length is sent.
#[test]
fn the_upper_half_of_a_length_is_found_again() {
    let len_of = |low: u32, page_log: u32, pages: u32| {
        let mut bytes = region(pages, 1, low);
        set64(&mut bytes, 16, 0);
        set(&mut bytes, 28, pages | 1 << 20 | page_log << 27);
        match parse(0, 8, &bytes) {
            Ok(Command::RegMr(RegMr { kind: MrKind::Normal { pages, .. }, .. })) => Some(pages.bytes()),
            _ => None,
        }
    };
    assert_eq!(len_of(0, 30, 8), Some(8 << 30));
    assert_eq!(len_of(0x1000, 30, 9), Some((8 << 30) + 0x1000));
    assert_eq!(len_of(u32::MAX, 30, 8), Some((8 << 30) - 1));
    assert_eq!(len_of(0x2001, 12, 2), None);
    // Level 2 says both halves.
    let mut bytes = region(0, 2, 5);
    set64(&mut bytes, 16, 0);
    set(&mut bytes, 8, 1 | 1 << 28 | 1 << 31);
    set(&mut bytes, 28, 2 << 20 | 21 << 27 | 0x900);
    set(&mut bytes, 40, 1);
    set(&mut bytes, 44, 0);
    let Ok(Command::RegMr(RegMr { kind: MrKind::Normal { pages, .. }, .. })) = parse(0, 8, &bytes) else { panic!() };
    assert_eq!(pages.bytes(), (1 << 32) + 5);
}

/// HG-03: depths that no ring has, and rings that their pages do not hold.
#[test]
fn queues_lie_in_their_pages() {
    let queue = |log_sq: u32, shift: u32, count: u32| {
        let mut bytes = stale();
        set(&mut bytes, 8, 5 | log_sq << 20);
        set(&mut bytes, 12, 7 | 6 << 20);
        set(&mut bytes, 16, 3 | 1 << 25 | shift << 28);
        set(&mut bytes, 20, 4);
        set64(&mut bytes, 24, 0x1000);
        set64(&mut bytes, 32, 0x9000);
        set(&mut bytes, 40, count << 1);
        set(&mut bytes, 44, 1 << 1);
        set64(&mut bytes, 48, 0x100);
        set64(&mut bytes, 56, 0x108);
        (64..112).step_by(8).for_each(|at| set64(&mut bytes, at, 0x2000));
        set(&mut bytes, 112, 130 << 16 | 640);
        set(&mut bytes, 116, 0xAAAA_AAA0);
        parse(0, 1, &bytes)
    };
    let Ok(Command::CreateQp(qp)) = queue(7, 0, 1) else { panic!() };
    assert_eq!((qp.qpn, qp.pdn, qp.send_cqn, qp.recv_cqn, qp.context, qp.is_kernel), (5, 7, 3, 4, Context(3), false));
    assert_eq!((qp.send.depth, qp.recv.depth, qp.send.record, qp.recv.record), (128, 64, 0x100, 0x108));
    assert!(matches!(queue(15, 8, 1), Ok(Command::CreateQp(qp)) if qp.is_kernel));
    for (log_sq, shift, count) in [(8, 0, 1), (16, 8, 1), (31, 8, 1), (0xFFF, 8, 1), (7, 0, 0), (7, 0, 5)] {
        assert!(queue(log_sq, shift, count).is_err(), "2^{log_sq} in {count} pages");
    }
}

/// HG-12: numbers beyond what the device reports.
#[test]
fn numbers_are_those_that_the_device_has() {
    for (opcode, value) in [(2, 0), (2, QPS), (2, 0xF_FFFF), (5, 0), (5, CQS), (5, u32::MAX), (9, MRS), (17, 0), (14, 64)] {
        let mut bytes = stale();
        set(&mut bytes, 8, value);
        assert!(parse(0, opcode, &bytes).is_err(), "{opcode}: {value:#x}");
    }
    for eqn in [0, 32, 255] {
        let mut bytes = stale();
        bytes[16..20].copy_from_slice(&[eqn, eqn, 12, 1]);
        assert!(parse(1, 0, &bytes).is_err());
        assert!(parse(1, 1, &bytes).is_err());
    }
    for (module, opcode) in [(0, 7), (0, 10), (0, 13), (0, 18), (0, 255), (1, 6), (1, 7), (1, 10), (2, 0), (3, 0)] {
        assert!(parse(module, opcode, &stale()).is_err(), "{module}.{opcode}");
    }
    // No command is shorter than it has to be.
    for opcode in [1, 3, 4, 8, 15] {
        assert!(parse(0, opcode, &stale()[..32]).is_err());
    }
}

#[test]
fn changes_of_queue_pairs_name_what_they_change() {
    let mut bytes = stale();
    set(&mut bytes, 8, 9 | 2 << 24);
    set(&mut bytes, 12, 0xABC_DEF1);
    set(&mut bytes, 16, 0b11_0101);
    set(&mut bytes, 24, 55);
    set(&mut bytes, 32, 0x12345);
    bytes[36..39].copy_from_slice(&[1, 2, 3]);
    bytes[42..44].copy_from_slice(&[4, 0]);
    let peer = Gid::from("192.0.2.9".parse::<IpAddr>().unwrap());
    bytes[52..68].copy_from_slice(&peer.0);
    let Ok(Command::ModifyQp(modify)) = parse(0, 3, &bytes) else { panic!() };
    let address =
        AddressVector { sgid_index: 4, dgid: peer, traffic_class: 1, hop_limit: 2, flow_label: 0x12345, service_level: 3 };
    let expected = ModifyQp {
        qpn: 9,
        state: QpState::Rtr,
        qkey: None,
        address: Some(address),
        sq_psn: None,
        rq_psn: Some(55),
        dest_qpn: Some(0xC_DEF1),
    };
    assert_eq!(modify, expected);
    // An address of the family that it is not, a state and attributes that do not exist.
    set(&mut bytes, 32, 1 << 20);
    assert!(parse(0, 3, &bytes).is_err());
    set(&mut bytes, 32, 0);
    set(&mut bytes, 8, 9 | 7 << 24);
    assert!(parse(0, 3, &bytes).is_err());
    set(&mut bytes, 8, 9 | 1 << 24);
    set(&mut bytes, 16, 1 << 6 | 1);
    assert!(parse(0, 3, &bytes).is_err());
    set(&mut bytes, 16, 0);
    assert!(parse(0, 3, &bytes).is_err());
}
