//! Messages on their way from the network through the NIC into the memory of GPUs, piece by piece: a piece is what lies within a page.
//!
//! A piece comes in at the network's rate, waits for its address, then for the NIC's link, and if it has to be translated at the root
//! complex, for the IOMMU and for the way from port to port there. So many pieces are under way at once; one that has arrived makes
//! room for the next.

use super::Scheme;
use super::params::Params;
use super::tree::{Acs, AddressType, NodeId, ROOT, Route, Tree};
use crate::time::{Rate, Time};
use emtt::{Access, GpuId, MemId, Owner, PdId, RegionInit, Segment, Table};
use lru::LruCache;
use roce::rng::Rng;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::num::NonZeroUsize;

const PD: PdId = PdId(0);
const MIB: f64 = 1_048_576.0;
/// Addresses of the BARs of GPUs: one each.
const BAR: u64 = 1 << 44;
/// Pieces that are measured, at least.
const MEASURED: u64 = 30_000;

/// What is run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Point {
    /// How the NIC comes to its addresses.
    pub scheme: Scheme,
    /// Virtual devices, which send in turn.
    pub devices: u64,
    /// Bytes that all of them together write to, in any order; a message of each at least.
    pub working_set: u64,
    /// Bytes of a message.
    pub message: u64,
}

/// What came out.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// What was run.
    #[serde(flatten)]
    pub point: Point,
    /// Payload.
    pub gbps: f64,
    /// Of the network's rate.
    pub share: f64,
    /// Links that a packet of PCIe goes through, on average.
    pub hops: f64,
    /// Packets that the IOMMU had to look at, requests for translations among them, per MiB.
    pub iommu_visits_per_mib: f64,
    /// Translations that the NIC's cache did not have, per MiB.
    pub atc_misses_per_mib: f64,
    /// Devices that reach GPUs without the root complex.
    pub direct_devices: u64,
}

/// A part of a message within a page.
#[derive(Clone, Copy, Debug)]
struct Piece {
    page: u64,
    bytes: u32,
    route: Route,
    /// Whether its address has to be asked for.
    ats: bool,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// In the NIC.
    Arrived(Piece),
    /// A question about a page, at the IOMMU.
    Asked(u64),
    /// The answer, in the NIC.
    Answered(u64),
    /// Its address is known.
    Ready(Piece),
    /// Before the IOMMU.
    AtRoot(Piece),
    /// Behind it.
    Translated(Piece),
    Done(Piece),
}

/// One thing after the other, at one of several places.
#[derive(Debug)]
struct Queue(BinaryHeap<Reverse<Time>>);

impl Queue {
    fn new(places: u64) -> Queue {
        Queue((0..places).map(|_| Reverse(Time::ZERO)).collect())
    }

    /// When something that takes so long is over.
    fn take(&mut self, now: Time, ps: u64) -> Time {
        let Reverse(free) = self.0.pop().expect("there is a place");
        let end = now.max(free).after(ps);
        self.0.push(Reverse(end));
        end
    }
}

#[derive(Debug, Default)]
struct Counts {
    pieces: u64,
    bytes: u64,
    packets: u64,
    links: u64,
    iommu: u64,
    atc_misses: u64,
}

/// A run under way.
struct Run<'a> {
    params: &'a Params,
    point: Point,
    tree: Tree,
    nic: NodeId,
    table: Table,
    /// Key, first address and length of the region of each device.
    regions: Vec<(u32, u64, u64)>,
    rng: Rng,
    /// Pieces of the present message that have not begun.
    message: VecDeque<Piece>,
    messages: u64,
    steps: BTreeMap<(Time, u64), Step>,
    serial: u64,
    network: Queue,
    link: Queue,
    peer: Queue,
    walkers: Queue,
    /// Pages that the IOMMU knows, and from when on.
    tlb: LruCache<u64, Time>,
    atc: LruCache<u64, ()>,
    /// Pieces that wait for the answer about a page.
    waiting: BTreeMap<u64, Vec<Piece>>,
    /// Pages to be asked about, when there is room for another question.
    to_ask: VecDeque<u64>,
    asking: u64,
    counts: Counts,
}

impl Point {
    /// Runs it.
    pub fn run(self, params: &Params) -> Outcome {
        let caches = params.nic.atc_entries.max(params.iommu.tlb_entries);
        // What the caches hold by then is what was used last.
        let warm_up = 2 * caches + params.nic.pieces;
        let measured = MEASURED.max(caches);
        let mut run = Run::new(self, params);
        run.fill_caches();
        (0..params.nic.pieces).for_each(|_| run.begin(Time::ZERO));
        let start = run.until(warm_up);
        run.counts = Counts::default();
        let end = run.until(measured);
        let Counts { bytes, packets, links, iommu, atc_misses, .. } = run.counts;
        let gbps = bytes as f64 * 8000.0 / end.since(start).max(1) as f64;
        let per_mib = |count: u64| count as f64 * MIB / bytes as f64;
        Outcome {
            point: self,
            gbps,
            share: gbps / params.network.gbps,
            hops: links as f64 / packets as f64,
            iommu_visits_per_mib: per_mib(iommu),
            atc_misses_per_mib: per_mib(atc_misses),
            direct_devices: (0..self.devices).filter(|&device| run.is_direct(device)).count() as u64,
        }
    }
}

impl<'a> Run<'a> {
    fn new(point: Point, params: &'a Params) -> Run<'a> {
        let acs = match point.scheme {
            Scheme::HostBounce => Acs { translation_blocking: true, direct_translated: false, request_redirect: true },
            Scheme::Ats | Scheme::Emtt => Acs { translation_blocking: false, direct_translated: true, request_redirect: true },
        };
        let mut tree = Tree::default();
        let switches: Vec<NodeId> = (0..params.tree.switches).map(|_| tree.add(ROOT, acs, 0..0)).collect();
        let nic = tree.add(switches[0], acs, 0..0);
        let mut gpu = 0;
        for switch in switches {
            for _ in 0..params.tree.gpus_per_switch {
                gpu += 1;
                tree.add(switch, acs, gpu * BAR..(gpu + 1) * BAR);
            }
        }
        let mut table = Table::new(1);
        let page = params.iommu.page_bytes;
        let len = (point.working_set / point.devices).max(point.message).next_multiple_of(page);
        let regions = (0..point.devices).map(|device| {
            let gpu = device % params.tree.gpus_per_switch;
            let addr = (gpu + 1) * BAR + device / params.tree.gpus_per_switch * len;
            let owner = Owner::Gpu { device: GpuId(gpu as u16), window: MemId(gpu as u32) };
            let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
            let runs = vec![Segment { owner, addr, len }];
            let key = table.insert(RegionInit { pd: PD, iova: addr, access, runs }).expect("a good region");
            (key, addr, len)
        });
        let regions = regions.collect();
        let entries = |count: u64| NonZeroUsize::new(count as usize).expect("parameters are checked");
        Run {
            params,
            point,
            tree,
            nic,
            table,
            regions,
            rng: Rng::new(1),
            message: VecDeque::new(),
            messages: 0,
            steps: BTreeMap::new(),
            serial: 0,
            network: Queue::new(1),
            link: Queue::new(1),
            peer: Queue::new(1),
            walkers: Queue::new(params.iommu.walkers),
            tlb: LruCache::new(entries(params.iommu.tlb_entries)),
            atc: LruCache::new(entries(params.nic.atc_entries)),
            waiting: BTreeMap::new(),
            to_ask: VecDeque::new(),
            asking: 0,
            counts: Counts::default(),
        }
    }

    /// Begins with caches that are full, or know everything.
    fn fill_caches(&mut self) {
        let page = self.params.iommu.page_bytes;
        let pages = self.regions.iter().flat_map(|(_, addr, len)| (addr / page)..(addr + len) / page);
        for page in pages.take(self.atc.cap().max(self.tlb.cap()).get()) {
            self.atc.put(page, ());
            self.tlb.put(page, Time::ZERO);
        }
    }

    /// Whether the device's requests may be translated ones.
    fn is_direct(&self, device: u64) -> bool {
        match self.point.scheme {
            Scheme::HostBounce => false,
            // First come, first served.
            Scheme::Ats => device < self.params.switch.lut_bdfs,
            Scheme::Emtt => self.params.switch.lut_bdfs > 0,
        }
    }

    /// The pieces of the next message.
    fn next_message(&mut self) {
        let (message, page) = (self.point.message, self.params.iommu.page_bytes);
        let device = self.messages % self.point.devices;
        self.messages += 1;
        let (key, first, len) = self.regions[device as usize];
        let from = first + self.rng.below(len / message) * message;
        let direct = self.is_direct(device);
        let found =
            self.table.translate(key, PD, from, message, Access::REMOTE_WRITE).expect("messages lie within their region");
        for segment in found {
            // Without a table of owners, the NIC does not know that there is a GPU.
            let kind = if direct { AddressType::to(segment.owner) } else { AddressType::Untranslated };
            let route = self.tree.route(self.nic, kind, segment.addr).expect("nothing blocks what a scheme sends");
            let ats = kind == AddressType::Translated && self.point.scheme == Scheme::Ats;
            let (mut addr, end) = (segment.addr, segment.addr + segment.len);
            while addr < end {
                let bytes = (page - addr % page).min(end - addr) as u32;
                self.message.push_back(Piece { page: addr / page, bytes, route, ats });
                addr += u64::from(bytes);
            }
        }
    }

    fn schedule(&mut self, at: Time, step: Step) {
        self.serial += 1;
        self.steps.insert((at, self.serial), step);
    }

    /// Packets of PCIe that a piece takes, and how many bytes they are.
    fn packets(&self, piece: Piece) -> (u64, u32) {
        let packets = piece.bytes.div_ceil(self.params.link.tlp_payload_bytes);
        (packets.into(), piece.bytes + packets * self.params.link.tlp_overhead_bytes)
    }

    fn hops(&self, links: u64) -> u64 {
        links * self.params.link.hop_ns * 1000
    }

    /// Lets the next piece come in.
    fn begin(&mut self, now: Time) {
        let mut least = 0;
        if self.message.is_empty() {
            self.next_message();
            least = self.params.nic.message_ns * 1000;
        }
        let piece = self.message.pop_front().expect("a message has a piece");
        let ps = Rate::from_gbps(self.params.network.gbps).duration(piece.bytes).max(least);
        let at = self.network.take(now, ps);
        self.schedule(at, Step::Arrived(piece));
    }

    /// Goes on until so many pieces more have arrived; when that was.
    fn until(&mut self, pieces: u64) -> Time {
        let goal = self.counts.pieces + pieces;
        let mut now = Time::ZERO;
        while self.counts.pieces < goal {
            let ((at, _), step) = self.steps.pop_first().expect("pieces are under way");
            now = at;
            self.step(now, step);
        }
        now
    }

    fn step(&mut self, now: Time, step: Step) {
        match step {
            Step::Arrived(piece) if !piece.ats || self.atc.get(&piece.page).is_some() => self.schedule(now, Step::Ready(piece)),
            Step::Arrived(piece) => {
                self.counts.atc_misses += 1;
                let waiting = self.waiting.entry(piece.page).or_default();
                waiting.push(piece);
                if waiting.len() == 1 {
                    self.to_ask.push_back(piece.page);
                    self.ask(now);
                }
            }
            Step::Asked(page) => {
                self.counts.iommu += 1;
                let known = self.translate(now, page);
                let back = known.after(self.hops(self.links_to_root()));
                self.schedule(back, Step::Answered(page));
            }
            Step::Answered(page) => {
                self.asking -= 1;
                self.atc.put(page, ());
                for piece in self.waiting.remove(&page).unwrap_or_default() {
                    self.schedule(now, Step::Ready(piece));
                }
                self.ask(now);
            }
            Step::Ready(piece) => {
                let rate = Rate::from_gbps(self.params.link.gbps);
                let sent = self.link.take(now, rate.duration(self.packets(piece).1));
                let Route { links, up, iommu, .. } = piece.route;
                match iommu {
                    true => self.schedule(sent.after(self.hops(up)), Step::AtRoot(piece)),
                    false => self.schedule(sent.after(self.hops(links)), Step::Done(piece)),
                }
            }
            Step::AtRoot(piece) => {
                self.counts.iommu += self.packets(piece).0;
                let known = self.translate(now, piece.page);
                self.schedule(known, Step::Translated(piece));
            }
            Step::Translated(piece) => {
                let rate = Rate::from_gbps(self.params.root.peer_gbps);
                let over = self.peer.take(now, rate.duration(self.packets(piece).1));
                let down = self.hops(piece.route.links - piece.route.up);
                self.schedule(over.after(down), Step::Done(piece));
            }
            Step::Done(piece) => {
                let packets = self.packets(piece).0;
                self.counts.pieces += 1;
                self.counts.bytes += u64::from(piece.bytes);
                self.counts.packets += packets;
                self.counts.links += packets * piece.route.links;
                self.begin(now);
            }
        }
    }

    /// Links from the NIC to the root complex.
    fn links_to_root(&self) -> u64 {
        self.tree.route(self.nic, AddressType::TranslationRequest, 0).expect("questions are not blocked").links
    }

    /// Sends a question, if there is one and room for it.
    fn ask(&mut self, now: Time) {
        if self.asking < self.params.nic.ats_requests
            && let Some(page) = self.to_ask.pop_front()
        {
            self.asking += 1;
            let at = now.after(self.hops(self.links_to_root()));
            self.schedule(at, Step::Asked(page));
        }
    }

    /// When the IOMMU knows a page that it is asked for.
    fn translate(&mut self, now: Time, page: u64) -> Time {
        if let Some(&known) = self.tlb.get(&page) {
            return known.max(now);
        }
        let known = self.walkers.take(now, self.params.iommu.walk_ns * 1000);
        self.tlb.put(page, known);
        known
    }
}
