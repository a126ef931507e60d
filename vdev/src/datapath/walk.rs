//! Walks the list at the head of [`super`]: one WRITE, each step by the functions that the list names, with what it leaves looked
//! at before the next one. Whoever changes the path changes the list, or this fails.

use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use emtt::Access;
use nix::sys::eventfd::{EfdFlags, EventFd};
use rnic::{Config, DeviceInit, Transmit, Work};
use roce::wire::{Headers, Opcode, icrc};
use roce::{Gid, Mtu, Psn};
use vdev_abi::completion::CqConsumer;
use vdev_abi::control::{QpAttr, QpCaps};
use vdev_abi::doorbell::Doorbell;
use vdev_abi::layout::{ContextPage, CqLayout, QpLayout, SendEntry, Sge};
use vdev_abi::mapping::Mapping;
use vdev_abi::queue::RingProducer;

use super::clients::{ClientId, ClientInit};
use super::wake::{Epoll, Source, Waker};
use super::{Datapath, QpRequest, clock};
use crate::memory::{Memories, Peer, Piece, Place, Process, Resolved};
use crate::port;

const PSN: u32 = 0xFF_FFFF;
const LEN: usize = 100;
const CAPS: QpCaps = QpCaps { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };

/// The list, one text per step.
fn list() -> Vec<String> {
    let mut steps: Vec<String> = Vec::new();
    let lines = include_str!("../datapath.rs").lines().skip_while(|line| !line.starts_with("//! # One WRITE"));
    for line in lines.skip(1).take_while(|line| !line.starts_with("//! #")) {
        let text = line.trim_start_matches("//!").trim();
        if text.starts_with(&format!("{}. ", steps.len() + 1)) {
            steps.push(text.to_owned());
        } else if let Some(step) = steps.last_mut() {
            step.push(' ');
            step.push_str(text);
        }
    }
    steps
}

/// The list as it is walked.
struct Walk {
    list: Vec<String>,
    walked: usize,
}

impl Walk {
    /// The next step, which must name all of these.
    fn step(&mut self, names: &[&str]) {
        let step = &self.list[self.walked];
        for name in names {
            assert!(step.contains(&format!("`{name}`")), "the walk needs `{name}`, which this step does not name: {step}");
        }
        self.walked += 1;
    }
}

/// A program: its end of everything that it shares with the daemon.
struct Program {
    id: ClientId,
    page: Mapping,
    bell: OwnedFd,
    qp: u32,
    qpn: u32,
    slot: u32,
    rings: Mapping,
    sends: RingProducer,
    completions: Mapping,
    consumer: CqConsumer,
    memory: Vec<u8>,
    key: u32,
}

fn shared(bytes: usize) -> (Mapping, Mapping) {
    let (fd, ours) = Mapping::create(c"walk", bytes).unwrap();
    (ours, Mapping::map(fd.as_fd(), bytes).unwrap())
}

fn gid(ip: &str) -> Gid {
    Gid::from(ip.parse::<IpAddr>().unwrap())
}

impl Program {
    fn new(datapath: &mut Datapath, ip: &str) -> Program {
        let address: IpAddr = ip.parse().unwrap();
        let init = DeviceInit { gids: vec![gid(ip)], mtu: Mtu::B1024 };
        let device = datapath.add_device(init, 1, true, vec![(address, port::open(address).unwrap())]).unwrap();
        let (page, theirs) = shared(ContextPage::BYTES);
        let doorbell = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap();
        let bell = doorbell.as_fd().try_clone_to_owned().unwrap();
        let (_, events) = nix::unistd::pipe().unwrap();
        let process = Arc::new(Process::open(&Peer::by_pid(std::process::id() as i32).unwrap(), None).unwrap());
        let (ended, _) = tokio::sync::mpsc::unbounded_channel();
        let init = ClientInit { device, pid: 0, program: "walk".into(), page: theirs, doorbell, events, process, ended };
        let id = datapath.attach(init).unwrap();
        let pd = datapath.alloc_pd(id).unwrap();
        let memory = vec![0; LEN];
        let addr = memory.as_ptr().addr() as u64;
        let pieces = vec![Piece { addr, len: LEN as u64, place: Place::Process }];
        let resolved = Resolved { pieces, fully_mapped: false, doubtful: Vec::new() };
        let region = datapath.reg_mr(id, pd, addr, Access::all(), resolved).unwrap();
        let layout = CqLayout::new(16).unwrap();
        let (completions, theirs) = shared(layout.bytes);
        let cq = datapath.create_cq(id, theirs, &layout, None, 0).unwrap();
        let consumer = CqConsumer::new(&layout);
        let layout = QpLayout::new(&CAPS).unwrap();
        let (rings, theirs) = shared(layout.bytes);
        let request = QpRequest {
            qp_type: rnic::QpType::Rc,
            pd,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            caps: CAPS,
            all_signaled: true,
            cookie: 0,
        };
        let qp = datapath.create_qp(id, Arc::new(theirs), &layout, &request).unwrap();
        let sends = RingProducer::send(&layout);
        let (qp, qpn, slot, key) = (qp.handle, qp.qpn, qp.slot, region.lkey);
        Program { id, page, bell, qp, qpn, slot, rings, sends, completions, consumer, memory, key }
    }

    /// RESET to RTS towards `peer`.
    fn connect(&self, datapath: &mut Datapath, peer: &Program, ip: &str) {
        let mut attr =
            QpAttr { access: 15, port: 1, path_mtu: 3, dest_qpn: peer.qpn, rq_psn: PSN, sq_psn: PSN, ..QpAttr::default() };
        (attr.ah_dgid, attr.ah_is_global, attr.ah_hop_limit, attr.ah_port) = (gid(ip).0, true, 64, 1);
        (attr.max_rd_atomic, attr.max_dest_rd_atomic, attr.timeout, attr.retry_cnt) = (1, 1, 14, 7);
        // The attributes that `ibv_modify_qp(3)` asks for on the way to INIT, RTR, RTS.
        for (state, mask) in [(1, 0x39), (2, 0x12_9181), (3, 0x1_2E01)] {
            datapath.modify_qp(self.id, self.qp, mask, &QpAttr { qp_state: state, ..attr }).unwrap();
        }
    }

    /// Posts a WRITE of all its memory. Whether the daemon has to be woken.
    fn post(&mut self, to: &Program, wr_id: u64) -> bool {
        let at = |memory: &[u8]| memory.as_ptr().addr() as u64;
        let entry = SendEntry { wr_id, num_sge: 1, remote_addr: at(&to.memory), rkey: to.key, ..SendEntry::default() };
        let sge = Sge { addr: at(&self.memory), length: LEN as u32, lkey: self.key };
        self.sends.push_send(&self.rings, &entry, [sge].into_iter());
        self.sends.publish(&self.rings);
        Doorbell::of(&self.page).ring(self.slot)
    }
}

impl Datapath {
    /// The next burst of the core: how it is to be sent, the headers of its first packet, that packet's payload.
    fn burst(&mut self) -> (Transmit, Headers, Vec<u8>) {
        let buffer = self.ports.burst_buffer();
        let Some(Work::Packets(transmit)) = self.rnic.poll_transmit(self.now, &mut self.memories, buffer) else {
            panic!("packets are due")
        };
        let packet = &buffer[..transmit.segment_len.min(transmit.len)];
        let flow = icrc::Flow { src: transmit.src, dst: transmit.dst, src_port: transmit.src_port };
        icrc::check(&flow, packet).unwrap();
        let (headers, payload) = Headers::parse(packet).unwrap();
        let payload = packet[payload].to_vec();
        (transmit, headers, payload)
    }

    fn send(&mut self, transmit: Transmit) {
        self.ports.push(transmit);
        self.ports.flush();
    }

    /// Sleeps until something has come from the wire, and takes it.
    fn receive(&mut self, waker: &Waker) {
        self.look_at_descriptors(waker, Some(Duration::from_secs(5)), &mut Vec::new());
        assert!(self.receive_packets(), "the packets come within seconds");
    }
}

#[test]
fn one_write_takes_the_path_that_the_list_describes() {
    let mut walk = Walk { list: list(), walked: 0 };
    let (waker, epoll) = (Waker::new().unwrap(), Epoll::new().unwrap());
    epoll.add_input(waker.as_fd(), Source::Control).unwrap();
    let mut datapath = Datapath::new(Config { seed: 1, local_path: false, ..Config::default() }, Memories::new(), epoll);
    let [near, far] = ["127.91.7.1", "127.91.7.2"];
    let (mut a, b) = (Program::new(&mut datapath, near), Program::new(&mut datapath, far));
    a.connect(&mut datapath, &b, far);
    b.connect(&mut datapath, &a, near);
    a.memory.fill(0x5A);

    walk.step(&["ibv_post_send", "RingProducer::push_send", "Doorbell::ring"]);
    assert!(a.post(&b, 7), "the daemon sleeps and must be woken");
    nix::unistd::write(&a.bell, &1u64.to_ne_bytes()).unwrap();

    walk.step(&["look_at_descriptors", "take_doorbells"]);
    datapath.look_at_descriptors(&waker, None, &mut Vec::new());
    assert!(datapath.take_doorbells());
    assert_eq!(datapath.ready.len(), 1);

    walk.step(&["post_ready", "sq::send_request", "Rnic::post_send"]);
    assert!(datapath.post_ready() && datapath.ready.is_empty());

    // Steps 4 to 8 are one call of the core; what each has done shows in the packet.
    let (transmit, headers, payload) = datapath.burst();
    walk.step(&["emtt"]);
    assert_eq!(payload, a.memory);
    walk.step(&[]);
    assert_eq!(headers.bth.dest_qpn.get(), b.qpn);
    walk.step(&["transmit", "Rnic::poll_transmit"]);
    assert_eq!((headers.bth.opcode, headers.bth.psn), (Opcode::RcWriteOnly, Psn::new(PSN)));
    walk.step(&[]);
    assert!((0xC000..=0xFFFF).contains(&transmit.src_port));
    walk.step(&["roce::wire"]);
    let reth = headers.reth.unwrap();
    assert_eq!((reth.length as usize, reth.rkey.0), (LEN, b.key));

    walk.step(&["Ports::push", "Ports::flush"]);
    datapath.send(transmit);

    walk.step(&["receive_packets", "drain_receives_of", "Rnic::handle_burst"]);
    datapath.receive(&waker);

    walk.step(&["memory"]);
    assert_eq!(b.memory, a.memory);

    walk.step(&[]);
    let (transmit, headers, _) = datapath.burst();
    assert_eq!((headers.bth.opcode, headers.bth.dest_qpn.get()), (Opcode::RcAck, a.qpn));
    datapath.send(transmit);

    walk.step(&[]);
    datapath.receive(&waker);

    walk.step(&["deliver_completions"]);
    assert_eq!(a.consumer.peek(&a.completions, 0).map(|entry| entry.wr_id), None);
    assert!(datapath.deliver_completions());
    let entry = a.consumer.peek(&a.completions, 0).unwrap();
    assert_eq!((entry.wr_id, entry.status, entry.qpn), (7, 0, a.qpn));

    walk.step(&["Rnic::poll_timeout", "Rnic::handle_timeout"]);
    a.post(&b, 8);
    assert!(datapath.take_doorbells() && datapath.post_ready());
    let (_, lost, _) = datapath.burst();
    datapath.now = datapath.rnic.poll_timeout().expect("an answer is waited for");
    datapath.rnic.handle_timeout(datapath.now);
    let (_, again, _) = datapath.burst();
    assert_eq!(again.bth.psn, lost.bth.psn);
    assert!(clock() < datapath.now, "the deadline lay ahead");

    assert_eq!(walk.walked, walk.list.len(), "steps of the list that the walk does not know");
}
