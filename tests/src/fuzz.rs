//! What the fuzz targets do with their input: everything that decodes bytes of somebody else, and what must hold for any bytes.
//!
//! The targets of `tests/fuzz` are one line each; the stored inputs of `tests/fuzz/corpus` are replayed by an ordinary test.

use core::time::Duration;
use rnic::cm::Cm;
use roce::wire::cm::Message;
use roce::wire::cma::PortSpace;
use roce::wire::mad::MAD_LEN;
use roce::wire::spray_ext::{Ext, Packet, parse_trimmed};
use roce::wire::{Headers, icrc};
use roce::{Instant, Psn};
use spray::{Law, LossLimits, Policy, Sender, SenderConfig, WindowLimits};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::Ordering;
use terra::controller::{Config, Controller, Saved};
use terra::policy::fair::PerFlow;
use terra::read::{self, ReadError, fb2010, gml, jobs, links};
use terra::sim::Simulation;
use terra::topology::Known;
use terra::{SiteId, Wan};
use vdev::pci::erdma::command;
use vdev::pci::erdma::entry::{self, Transport};
use vdev::pci::message::{self, HEADER, MAX_TRANSFER, Request};
use vdev_abi::control::{QpCaps, decode_answer, decode_request, encode_answer, encode_request};
use vdev_abi::layout::{QpLayout, Sge};
use vdev_abi::mapping::Mapping;
use vdev_abi::queue::{RecvConsumer, SendConsumer};

/// A fuzz target.
pub type Target = fn(&[u8]);

/// Name, which is that of its folder in the corpus, and body of each target.
pub const TARGETS: [(&str, Target); 8] = [
    ("wire_parse", wire_parse),
    ("spray_packet", spray_packet),
    ("cm_message", cm_message),
    ("control_message", control_message),
    ("send_entry", send_entry),
    ("vfio_user_message", vfio_user_message),
    ("erdma_command", erdma_command),
    ("wan_input", wan_input),
];

/// A UDP payload: parsing never panics, and what was parsed emits the same headers.
pub fn wire_parse(bytes: &[u8]) {
    let source = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    let flow = icrc::Flow { src: source, dst: IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2)), src_port: 0xC000 };
    let _ = icrc::check(&flow, bytes);
    let Ok((headers, payload)) = Headers::parse(bytes) else { return };
    assert!(payload.start == headers.len() && payload.end <= bytes.len(), "{payload:?} of {} bytes", bytes.len());
    let mut emitted = vec![0; headers.len()];
    assert_eq!(headers.emit(&mut emitted), headers.len());
    // Reserved bits are not kept, so the meaning is compared, not the bytes.
    let mut again = bytes.to_vec();
    again[..emitted.len()].copy_from_slice(&emitted);
    assert_eq!(Headers::parse(&again), Ok((headers, payload)));
}

/// A packet of the spray extension: parsing never panics, what was parsed means the same when emitted again, and an answer changes
/// nothing but what is under way.
pub fn spray_packet(bytes: &[u8]) {
    let _ = parse_trimmed(bytes);
    let Ok((packet, payload)) = Packet::parse(bytes) else { return };
    assert!(payload.start == packet.headers_len() && payload.end <= bytes.len(), "{payload:?} of {} bytes", bytes.len());
    let mut again = bytes.to_vec();
    packet.emit(&mut again);
    assert_eq!(Packet::parse(&again), Ok((packet, payload)));
    let mut sender = Sender::new(&SenderConfig {
        policy: Policy::Mixed,
        paths: 4,
        first_port: 0xC123,
        seed: 0,
        window: 64,
        first_psn: Psn::new(0xFF_FFF0),
        law: Law::Nscc,
        limits: WindowLimits::for_software(1024, 64, Duration::from_micros(50)),
        loss: LossLimits::default(),
    });
    let now = Instant::from_nanos(1 << 32);
    for _ in 0..64 {
        sender.send(now, 1024);
    }
    let later = now + Duration::from_micros(20);
    match packet.ext {
        Ext::Sack(sack) => {
            // Told twice, it is no news.
            sender.on_sack(later, packet.bth.psn, &sack);
            let in_flight = sender.board().in_flight();
            assert_eq!(sender.on_sack(later, packet.bth.psn, &sack), 0);
            assert!(sender.board().in_flight() <= in_flight);
        }
        Ext::Nack(nack) => sender.on_nack(later, packet.bth.psn, &nack),
        _ => {}
    }
    assert!(sender.board().in_flight_packets() + sender.board().lost_packets() <= 64);
}

/// A management datagram: parsing never panics, what was parsed emits the same message, and a connection manager that listens
/// makes at most one endpoint of it.
pub fn cm_message(bytes: &[u8]) {
    if let Ok((transaction, message)) = Message::parse(bytes) {
        let mut emitted = [0; MAD_LEN];
        message.emit(transaction, &mut emitted);
        assert_eq!(Message::parse(&emitted), Ok((transaction, message)));
    }
    let [src, dst] = [1, 2].map(|host| IpAddr::V4(Ipv4Addr::new(192, 0, 2, host)));
    let mut cm = Cm::new(1, 1);
    for space in [PortSpace::Tcp, PortSpace::Udp] {
        let (listener, _) = cm.bind(space, None, 7174, false).expect("no port is taken yet");
        cm.listen(listener, 8).expect("a new endpoint is idle");
    }
    // Twice: a duplicate makes nothing more.
    for _ in 0..2 {
        cm.handle_mad(Instant::ZERO, src, dst, bytes);
    }
    assert!(cm.endpoints() <= 3, "{} endpoints", cm.endpoints());
}

/// A vfio-user message: neither header nor body make the parser panic or believe a length, and every reply can be made.
pub fn vfio_user_message(bytes: &[u8]) {
    let Some((header, body)) = bytes.split_first_chunk::<HEADER>() else { return };
    let Ok(header) = message::header(header) else { return };
    match message::parse(header.command, &body[..body.len().min(header.body)]) {
        Ok(Request::RegionRead { count, .. }) => assert!(count <= MAX_TRANSFER),
        Ok(Request::RegionWrite { data, .. }) => assert!(data.len() <= MAX_TRANSFER),
        Ok(Request::RegionInfo { argsz, index }) => {
            let body = message::region_body(argsz, index, 4096, &[(0, 4096)]);
            assert!(body.len() <= (argsz as usize).max(32) && message::reply(&header, &body).len() == HEADER + body.len());
        }
        Ok(_) => {}
        Err(refused) => assert_eq!(message::error_reply(&header, refused.errno).len(), HEADER),
    }
}

/// A command of a guest's driver, and the same bytes as a send entry: neither panics, and what an entry holds is bounded.
pub fn erdma_command(bytes: &[u8]) {
    let Some((&[module, opcode], rest)) = bytes.split_first_chunk::<2>() else { return };
    // Whole blocks, as the queue gives them.
    let mut blocks = rest[..rest.len().min(command::MAX_BYTES)].to_vec();
    blocks.resize(blocks.len().next_multiple_of(32).max(32), 0);
    let _ = command::parse(module, opcode, &blocks);
    let mut buffers = [rnic::LocalBuffer::Keyed { lkey: roce::Lkey(0), addr: 0, len: 0 }; 16];
    blocks.resize(entry::SEND_BYTES, 0);
    let bytes = blocks.first_chunk().expect("resized");
    for transport in [Transport::Rc, Transport::Ud(&|_| Some(rnic::AddressVector::default()))] {
        let mut held = 0..0;
        let ring = |at: usize, len: usize, _: &mut _| {
            held = at..at + len;
            0
        };
        if let Ok(request) = entry::send_request(bytes, 0, transport, ring, &mut buffers) {
            assert!(request.buffers.len() <= 6);
        }
        assert!(held.end <= entry::SEND_BYTES && held.len() <= 96);
    }
}

/// A control message, either way: decoding never panics, and what was decoded encodes to the same meaning.
pub fn control_message(bytes: &[u8]) {
    if let Ok(request) = decode_request(bytes) {
        assert_eq!(decode_request(&encode_request(&request).expect("it came from a message")), Ok(request));
    }
    if let Ok(answer) = decode_answer(bytes) {
        assert_eq!(decode_answer(&encode_answer(&answer).expect("it came from a message")), Ok(answer));
    }
}

/// A queue pair's memory as a hostile client may leave it: 5 bytes of sizes, then the producer indices and the rings.
pub fn send_entry(bytes: &[u8]) {
    let Some((sizes, bytes)) = bytes.split_at_checked(5) else { return };
    let caps = QpCaps {
        max_send_wr: u32::from(sizes[0]) % 16,
        max_recv_wr: u32::from(sizes[1]) % 16,
        max_send_sge: u32::from(sizes[2]) % 17,
        max_recv_sge: u32::from(sizes[3]) % 17,
        max_inline_data: u32::from(sizes[4]) * 4,
    };
    let layout = QpLayout::new(&caps).expect("small sizes have a layout");
    let (_fd, map) = Mapping::create(c"fuzz", layout.bytes).expect("a small memfd can be made");
    let mut bytes = bytes.chunks(4).map(|chunk| {
        let mut word = [0; 4];
        word[..chunk.len()].copy_from_slice(chunk);
        u32::from_le_bytes(word)
    });
    let mut put = |offset| map.u32_at(offset).store(bytes.next().unwrap_or_default(), Ordering::Relaxed);
    put(QpLayout::SQ_PRODUCER);
    put(QpLayout::RQ_PRODUCER);
    // The beginning of each ring is enough: entries are alike.
    for ring in [layout.sq_offset, layout.rq_offset] {
        (ring..(ring + 1024).min(layout.bytes)).step_by(4).for_each(&mut put);
    }
    let mut sges = [Sge::default(); 16];
    let mut sends = SendConsumer::new(&layout, &caps);
    if let Ok(pending) = sends.refresh(&map) {
        assert!(pending <= layout.sq_depth);
        for _ in 0..pending {
            let Ok(Some(taken)) = sends.take(&map, &mut sges) else { break };
            assert!(u32::from(taken.entry.num_sge) <= caps.max_send_sge);
            if let Some(inline) = taken.inline {
                assert!(inline.len() <= caps.max_inline_data as usize && inline.end <= layout.rq_offset);
            }
        }
    }
    let mut receives = RecvConsumer::new(&layout, &caps);
    if let Ok(pending) = receives.refresh(&map) {
        assert!(pending <= layout.rq_depth);
        for _ in 0..pending {
            let Ok(Some(taken)) = receives.take(&map, &mut sges) else { break };
            assert!(taken.num_sge <= caps.max_recv_sge);
        }
    }
}

/// An input of the WAN scheduler, its format chosen by the first byte: reading never panics, what was read is fit to be worked on,
/// and what a controller goes on from is what it would save.
pub fn wan_input(bytes: &[u8]) {
    let Some((&format, bytes)) = bytes.split_first() else { return };
    let Ok(text) = read::text(bytes) else { return };
    let swan = Known::Swan.wan();
    let workload = match format {
        b'l' => return network(links::parse(&text)),
        b'g' => return network(gml::parse(&text)),
        b's' => return saved(&text),
        b'f' => fb2010::parse(&text, &[SiteId(0), SiteId(3), SiteId(1)]),
        _ => jobs::parse(&text, &swan, 1),
    };
    let Ok(workload) = workload else { return };
    if workload.check(&swan).is_err() {
        return;
    }
    for (_, coflow) in workload.coflows() {
        let sum: f64 = coflow.groups.iter().map(|group| group.volume_gbit).sum();
        assert!(coflow.groups.iter().all(|group| group.volume_gbit > 0.0) && sum.is_finite());
    }
    if workload.coflows().map(|(_, coflow)| coflow.groups.len()).sum::<usize>() <= 40 {
        let small = workload.first_jobs(4);
        let report = Simulation::new(&swan, &small).expect("it was checked").run(&mut PerFlow).expect("SWAN is connected");
        assert_eq!(report.jobs.len(), small.jobs.iter().filter(|job| !job.stages.is_empty()).count());
    }
}

/// A network that was read is connected, and is written and read back as it is.
fn network(wan: Result<Wan, ReadError>) {
    let Ok(wan) = wan else { return };
    wan.check_connected().expect("readers see to it");
    let plain = |name: &String| !name.is_empty() && !name.contains(char::is_whitespace) && name.len() <= 64;
    if wan.sites().iter().all(plain) {
        assert_eq!(links::parse(&links::write(&wan)), Ok(wan));
    }
}

/// Saved state that is taken is whole: an agent can join everywhere, and it is saved as it was.
fn saved(text: &str) {
    let Ok(saved) = serde_json::from_str::<Saved>(text) else { return };
    let Ok(mut controller) = Controller::restore(&saved, Config::default(), 0.0) else { return };
    let sites = controller.wan().sites().len() as u32;
    if sites <= 8 && controller.status().coflows.len() <= 8 {
        (0..sites).for_each(|site| drop(controller.join(1e6, SiteId(site)).expect("it is a site")));
    }
    let again = Controller::restore(&controller.save(), Config::default(), 0.0).expect("what was saved can be restored");
    assert_eq!(again.save(), controller.save());
}
