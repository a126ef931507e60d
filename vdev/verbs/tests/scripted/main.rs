//! The library against a daemon that does exactly what a test says: what it writes into the rings, what it refuses, and what it does
//! when the daemon goes away. The library is loaded as a program loads it, and called through the C interface.

#[allow(dead_code)]
#[path = "../../src/abi/mod.rs"]
mod abi;
mod daemon;
mod program;

use abi::codes::{access, event, qp_state, wr};
use abi::work::{ibv_send_wr, ibv_sge};
use daemon::{Daemon, number};
use program::Program;
use vdev_abi::control::Request;
use vdev_abi::layout::STAGING_LKEY;

#[test]
fn the_device_is_listed_with_its_name_and_guid() {
    let daemon = Daemon::start();
    let program = Program::start(&daemon);
    assert_eq!(program.device_name(), "scripted0");
    assert_eq!(program.device_guid(), 0x0102_0304_0506_0708);
    let port = program.query_port();
    assert_eq!((port.state, port.active_mtu, port.gid_tbl_len, port.link_layer), (4, 3, 2, 2));
}

#[test]
fn inline_data_are_copied_when_they_are_posted() {
    let daemon = Daemon::start();
    let mut program = Program::start(&daemon);
    let qp = program.ready_qp(4);
    let mut bytes = *b"first second";
    let list = [program.sge(&bytes[..5], 0), program.sge(&bytes[6..], 0)];
    let request = ibv_send_wr { send_flags: 2 | 8, ..program.write(9, &list) };
    assert_eq!(program.post_send(qp, &request), Ok(()));
    bytes.fill(0);
    let sent = daemon.state().take_sends(0);
    assert_eq!((sent.len(), sent[0].inline.as_slice(), sent[0].entry.wr_id), (1, &b"firstsecond"[..], 9));
    assert_eq!((sent[0].entry.remote_addr, sent[0].entry.rkey, sent[0].entry.flags), (0x1234, 0x77, 2 | 8));
    let all = [7; 256];
    let request = ibv_send_wr { send_flags: 2 | 8, ..program.write(10, &[program.sge(&all, 0)]) };
    assert_eq!(program.post_send(qp, &request), Ok(()), "as much as the queue pair was told");
    assert_eq!(daemon.state().take_sends(0)[0].inline, all);
}

#[test]
fn a_full_queue_refuses_and_names_the_request() {
    let daemon = Daemon::start();
    let mut program = Program::start(&daemon);
    let qp = program.ready_qp(4);
    for wr_id in 0..4 {
        assert_eq!(program.post_send(qp, &program.write(wr_id, &[])), Ok(()));
    }
    assert_eq!(program.post_send(qp, &program.write(4, &[])), Err((libc::ENOMEM, 4)));
    // Only the third was signaled: its completion gives three slots back.
    assert_eq!(daemon.state().take_sends(0).len(), 4);
    for _ in 0..3 {
        daemon.state().complete(0, false, 0, false);
    }
    assert_eq!(program.poll(qp, 8).unwrap().len(), 3);
    for wr_id in 10..13 {
        assert_eq!(program.post_send(qp, &program.write(wr_id, &[])), Ok(()));
    }
    assert_eq!(program.post_send(qp, &program.write(13, &[])), Err((libc::ENOMEM, 13)));
    // A chain is posted up to the one that does not fit.
    assert_eq!(daemon.state().take_sends(0).len(), 3);
    daemon.state().complete(0, false, 0, false);
    assert_eq!(program.poll(qp, 8).unwrap().len(), 1);
    let mut second = program.write(21, &[]);
    let first = ibv_send_wr { next: &mut second, ..program.write(20, &[]) };
    assert_eq!(program.post_send(qp, &first), Err((libc::ENOMEM, 21)));
    assert_eq!(daemon.state().take_sends(0)[0].entry.wr_id, 20);
}

#[test]
fn posts_that_cannot_be_are_refused() {
    let daemon = Daemon::start();
    let mut program = Program::start(&daemon);
    let qp = program.qp(4, 4);
    assert_eq!(program.post_send(qp, &program.write(1, &[])), Err((libc::EINVAL, 1)), "RESET");
    assert_eq!(program.post_recv(qp, 1, &[]), Err(libc::EINVAL), "RESET");
    program.modify(qp, 1).unwrap();
    assert_eq!(program.post_send(qp, &program.write(1, &[])), Err((libc::EINVAL, 1)), "INIT");
    assert_eq!(program.post_recv(qp, 1, &[]), Ok(()), "INIT");
    program.modify(qp, 2).unwrap();
    assert_eq!(program.post_send(qp, &program.write(1, &[])), Err((libc::EINVAL, 1)), "RTR");
    program.modify(qp, qp_state::RTS).unwrap();
    let long = [0u8; 300];
    let many = vec![program.sge(&long[..1], 1); 3];
    assert_eq!(program.post_send(qp, &program.write(2, &many)), Err((libc::EINVAL, 2)), "3 buffers where 2 fit");
    assert_eq!(program.post_recv(qp, 2, &many), Err(libc::EINVAL), "3 buffers where 2 fit");
    let inline = ibv_send_wr { send_flags: 8, ..program.write(3, &[program.sge(&long, 1)]) };
    assert_eq!(program.post_send(qp, &inline), Err((libc::EINVAL, 3)), "inline data too long");
    let read = ibv_send_wr { send_flags: 8, opcode: wr::RDMA_READ, ..program.write(4, &[program.sge(&long[..8], 1)]) };
    assert_eq!(program.post_send(qp, &read), Err((libc::EINVAL, 4)), "inline READ");
    let huge = ibv_sge { addr: 0, length: u32::MAX, lkey: 1 };
    assert_eq!(program.post_send(qp, &program.write(5, &[huge])), Err((libc::EINVAL, 5)), "too long a message");
    program.modify(qp, qp_state::ERR).unwrap();
    assert_eq!(program.post_send(qp, &program.write(6, &[])), Ok(()), "ERR accepts, to flush");
    assert_eq!(daemon.state().take_recvs(0).len(), 1);
}

#[test]
fn completions_have_all_fields() {
    let daemon = Daemon::start();
    let mut program = Program::start(&daemon);
    let qp = program.ready_qp(4);
    assert_eq!(program.post_recv(qp, 5, &[]), Ok(()));
    daemon.state().take_recvs(0);
    daemon.state().complete(0, true, 5, false);
    let wcs = program.poll(qp, 4).unwrap();
    let expected = abi::work::ibv_wc {
        wr_id: 5,
        status: 0,
        opcode: 128,
        vendor_err: 0,
        byte_len: 77,
        imm: [0; 4],
        qp_num: number(0),
        src_qp: 0,
        wc_flags: 0,
        pkey_index: 0,
        slid: 0,
        sl: 0,
        dlid_path_bits: 0,
    };
    assert_eq!(wcs, [expected]);
    assert!(program.poll(qp, 4).unwrap().is_empty());
}

#[test]
fn a_reset_forgets_both_requests_and_completions() {
    let daemon = Daemon::start();
    let mut program = Program::start(&daemon);
    let qp = program.ready_qp(2);
    program.post_send(qp, &program.write(1, &[])).unwrap();
    program.post_send(qp, &program.write(2, &[])).unwrap();
    daemon.state().take_sends(0);
    daemon.state().complete(0, false, 1, false);
    program.modify(qp, qp_state::RESET).unwrap();
    assert!(program.poll(qp, 4).unwrap().is_empty(), "completions from before the reset");
    program.modify(qp, qp_state::RTS).unwrap();
    for wr_id in [3, 4] {
        assert_eq!(program.post_send(qp, &program.write(wr_id, &[])), Ok(()), "all slots are free again");
    }
    assert_eq!(program.post_send(qp, &program.write(5, &[])), Err((libc::ENOMEM, 5)));
    let sent = daemon.state().take_sends(0);
    assert_eq!(sent.iter().map(|send| send.entry.wr_id).collect::<Vec<_>>(), [3, 4]);
    daemon.state().complete(0, false, 3, false);
    assert_eq!(program.poll(qp, 4).unwrap()[0].wr_id, 3);
    assert_eq!(program.post_send(qp, &program.write(5, &[])), Ok(()));
}

#[test]
fn completions_of_a_destroyed_queue_pair_vanish() {
    let daemon = Daemon::start();
    let mut program = Program::start(&daemon);
    let first = program.ready_qp(2);
    let second = program.ready_qp(2);
    program.post_send(first, &program.write(1, &[])).unwrap();
    program.post_send(second, &program.write(2, &[])).unwrap();
    daemon.state().complete(0, false, 1, false);
    daemon.state().complete(1, false, 2, false);
    program.destroy_qp(first).unwrap();
    let wcs = program.poll(second, 4).unwrap();
    assert_eq!(wcs.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [2]);
}

#[test]
fn the_eventfd_is_written_only_for_a_sleeping_daemon() {
    let daemon = Daemon::start();
    let mut program = Program::start(&daemon);
    let qp = program.ready_qp(4);
    program.post_send(qp, &program.write(1, &[])).unwrap();
    assert_eq!(daemon.state().wakes(), 0);
    daemon.state().take_sends(0);
    daemon.state().sleep();
    program.post_send(qp, &program.write(2, &[])).unwrap();
    program.post_send(qp, &program.write(3, &[])).unwrap();
    assert_eq!(daemon.state().wakes(), 1);
}

#[test]
fn one_event_per_arming() {
    let daemon = Daemon::start();
    let mut program = Program::start(&daemon);
    let qp = program.ready_qp(8);
    for wr_id in 0..6 {
        program.post_send(qp, &program.write(wr_id, &[])).unwrap();
    }
    assert_eq!(program.get_event(), Err(libc::EAGAIN));
    program.arm(qp, false);
    daemon.state().complete(0, false, 0, false);
    daemon.state().complete(0, false, 1, false);
    assert_eq!(program.get_event(), Ok(qp), "the queue of this queue pair");
    assert_eq!(program.get_event(), Err(libc::EAGAIN));
    program.arm(qp, true);
    daemon.state().complete(0, false, 2, false);
    assert_eq!(program.get_event(), Err(libc::EAGAIN), "not solicited");
    daemon.state().complete(0, false, 3, true);
    assert_eq!(program.get_event(), Ok(qp));
    program.ack_events(qp, 2);
    program.destroy_qp(qp).unwrap();
    program.destroy_cq(qp).unwrap();
}

#[test]
fn asynchronous_events_name_their_object_until_it_is_gone() {
    let daemon = Daemon::start();
    let mut program = Program::start(&daemon);
    let (first, second) = (program.ready_qp(1), program.ready_qp(1));
    daemon.state().qp_event(0, event::QP_FATAL);
    daemon.state().qp_event(1, event::QP_FATAL);
    program.destroy_qp(first).unwrap();
    let got = program.async_event().unwrap();
    assert_eq!((got.event_type, got.element), (event::QP_FATAL, program.qp_pointer(second)));
    program.ack_async_event(got);
    program.destroy_qp(second).unwrap();
}

#[test]
fn a_dead_daemon_is_told_once_and_every_verb_fails() {
    let daemon = Daemon::start();
    let mut program = Program::start(&daemon);
    let qp = program.ready_qp(4);
    program.post_send(qp, &program.write(1, &[])).unwrap();
    daemon.state().complete(0, false, 1, false);
    daemon.die();
    program.await_async();
    assert_eq!(program.async_event().unwrap().event_type, event::DEVICE_FATAL);
    assert_eq!(program.async_event().err(), Some(libc::ENODEV), "once");
    assert_eq!(program.poll(qp, 4).unwrap().len(), 1, "what was written before is still given");
    assert_eq!(program.poll(qp, 4), Err(()));
    assert_eq!(program.post_send(qp, &program.write(2, &[])), Err((libc::ENODEV, 2)));
    assert_eq!(program.post_recv(qp, 2, &[]), Err(libc::ENODEV));
    assert_eq!(program.get_event(), Err(libc::ENODEV));
    assert_eq!(program.modify(qp, 6), Err(libc::ENODEV));
    assert_eq!(program.destroy_qp(qp), Err(libc::ENODEV));
    assert_eq!(program.reg_mr(&[0; 64], access::LOCAL_WRITE).err(), Some(libc::ENODEV));
}

#[test]
fn polling_alone_notices_a_dead_daemon() {
    let daemon = Daemon::start();
    let mut program = Program::start(&daemon);
    let qp = program.ready_qp(1);
    daemon.die();
    let failed = (0..1_000_000).any(|_| program.poll(qp, 1).is_err());
    assert!(failed, "a million polls found nothing wrong");
}

#[test]
fn a_child_cannot_use_its_parents_objects() {
    let daemon = Daemon::start();
    let mut program = Program::start(&daemon);
    let qp = program.ready_qp(4);
    // SAFETY: the child only calls the library and leaves without running destructors.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = program.post_send(qp, &program.write(1, &[])) == Err((libc::EPERM, 1))
            && program.modify(qp, 6) == Err(libc::EPERM)
            && program.poll(qp, 1).is_err()
            && program.async_event().err() == Some(libc::EPERM);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!refused)) };
    }
    let mut status = 0;
    // SAFETY: waits for our child.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "child ended with {status:#x}");
    assert_eq!(program.post_send(qp, &program.write(2, &[])), Ok(()), "the parent goes on");
}

#[test]
fn large_payloads_of_unmapped_memory_are_staged() {
    let daemon = Daemon::start();
    let mut program = Program::start(&daemon);
    let qp = program.ready_qp(64);
    let payload: Vec<u8> = (0..200_000u32).map(|n| (n % 253) as u8).collect();
    let lkey = program.reg_mr(&payload, access::LOCAL_WRITE).unwrap();
    let list = [program.sge(&payload[..100_001], lkey), program.sge(&payload[150_000..], lkey)];
    program.post_send(qp, &program.write(1, &list)).unwrap();
    let sent = daemon.state().take_sends(0);
    let [staged] = sent[0].sges[..] else { panic!("one buffer: {sent:?}") };
    assert_eq!((staged.lkey, staged.length), (STAGING_LKEY, 150_001));
    let mut copy = vec![0; 150_001];
    daemon.state().staging.as_ref().unwrap().copy_out(staged.addr as usize, &mut copy);
    assert!(copy == [&payload[..100_001], &payload[150_000..]].concat());

    // The room for large payloads, 7.5 MiB, holds 40 such of three slots; the next goes its ordinary way, until one is complete.
    for wr_id in 2..=41 {
        program.post_send(qp, &program.write(wr_id, &list)).unwrap();
    }
    let sent = daemon.state().take_sends(0);
    assert!(sent[..39].iter().all(|send| send.sges[0].lkey == STAGING_LKEY));
    assert_eq!(sent[39].sges, list.map(|sge| vdev_abi::layout::Sge { addr: sge.addr, length: sge.length, lkey: sge.lkey }));
    daemon.state().complete(0, false, 1, false);
    assert_eq!(program.poll(qp, 1).unwrap().len(), 1);
    program.post_send(qp, &program.write(44, &list)).unwrap();
    let again = daemon.state().take_sends(0);
    assert_eq!((again[0].sges[0].lkey, again[0].sges[0].addr), (STAGING_LKEY, staged.addr));
}

#[test]
fn small_payloads_of_unmapped_memory_go_along_in_the_entry() {
    let daemon = Daemon::start();
    let mut program = Program::start(&daemon);
    let qp = program.ready_qp(64);
    let payload: Vec<u8> = (0..8192u32).map(|n| (n % 253) as u8).collect();
    let lkey = program.reg_mr(&payload, access::LOCAL_WRITE).unwrap();
    let fits = [program.sge(&payload[1..100], lkey), program.sge(&payload[200..357], lkey)];
    let larger = [program.sge(&payload[..257], lkey)];
    let unknown = [program.sge(&payload[..8], lkey ^ 0x100)];
    for (wr_id, list) in [&fits[..], &larger, &unknown].into_iter().enumerate() {
        program.post_send(qp, &program.write(wr_id as u64, list)).unwrap();
    }
    let sent = daemon.state().take_sends(0);
    assert_eq!(sent[0].inline, [&payload[1..100], &payload[200..357]].concat());
    assert_eq!((sent[1].inline.len(), sent[1].sges[0].lkey, sent[1].sges[0].length), (0, STAGING_LKEY, 257));
    assert_eq!((sent[2].inline.len(), sent[2].sges[0].lkey), (0, lkey ^ 0x100), "the device is to judge an unknown key");
    // What the program was told is what it may use itself.
    let own = ibv_send_wr { send_flags: 8, ..program.write(9, &[program.sge(&payload[..257], lkey)]) };
    assert_eq!(program.post_send(qp, &own), Err((libc::EINVAL, 9)));
}

#[test]
fn what_cannot_be_staged_is_posted_as_it_is() {
    let daemon = Daemon::start();
    let mut program = Program::start(&daemon);
    let qp = program.ready_qp(64);
    let payload = vec![7u8; 2 << 20];
    let lkey = program.reg_mr(&payload, access::LOCAL_WRITE).unwrap();
    let outside = ibv_sge { addr: payload.as_ptr() as u64 + 1, length: 2 << 20, lkey };
    let read = ibv_send_wr { opcode: wr::RDMA_READ, ..program.write(5, &[program.sge(&payload[..8192], lkey)]) };
    for request in [
        program.write(1, &[]),
        program.write(2, &[program.sge(&payload, lkey)]),
        program.write(3, &[program.sge(&payload[..8192], lkey ^ 0x100)]),
        program.write(4, &[outside]),
        read,
    ] {
        program.post_send(qp, &request).unwrap();
    }
    for send in daemon.state().take_sends(0) {
        assert!(send.inline.is_empty(), "{}", send.entry.wr_id);
        assert!(send.sges.iter().all(|sge| sge.lkey != STAGING_LKEY), "{}", send.entry.wr_id);
    }
    assert!(daemon.state().staging.is_none());
}

#[test]
fn shared_memory_is_registered_with_its_descriptor() {
    let daemon = Daemon::start();
    let program = Program::start(&daemon);
    let (_fd, map) = vdev_abi::mapping::Mapping::create(c"vrdma-test", 65536).unwrap();
    // SAFETY: the mapping is live, and nobody else writes to it.
    let memory = unsafe { std::slice::from_raw_parts(map.as_ptr().add(4096), 8192) };
    program.reg_mr(memory, access::LOCAL_WRITE).unwrap();
    let state = daemon.state();
    let Some(Request::RegMr { shared, addr, .. }) = state.requests.last() else { panic!("{:?}", state.requests) };
    assert_eq!(shared.len(), 1);
    assert_eq!((shared[0].addr, shared[0].length, shared[0].offset), (*addr, 8192, 4096));
}

#[test]
fn refusals_reach_the_program_as_errno() {
    let daemon = Daemon::start();
    let program = Program::start(&daemon);
    daemon.state().refuse.insert("RegMr", libc::EFAULT);
    assert_eq!(program.reg_mr(&[0; 8192], access::LOCAL_WRITE).err(), Some(libc::EFAULT));
    assert_eq!(program.reg_mr(&[0; 8192], access::REMOTE_WRITE).err(), Some(libc::EINVAL));
    assert_eq!(program.reg_mr(&[0; 8192], access::ON_DEMAND).err(), Some(libc::EOPNOTSUPP));
    for (cqe, vector) in [(0, 0), (-1, 0), (1025, 0), (1, 1), (1, -1)] {
        assert_eq!(program.try_cq(cqe, vector), Err(libc::EINVAL), "{cqe} entries on vector {vector}");
    }
}
