//! What all queue pairs share: object tables, outputs that wait to be polled, the schedule and the timers.

use crate::Config;
use crate::attr::AddressVector;
use crate::counters::{Counters, DropCounters};
use crate::cq::{Completions, Cq};
use crate::device::{Device, Pd};
use crate::dma::Piece;
use crate::event::AsyncEvent;
use crate::ids::IdTable;
use crate::latency::Latencies;
use crate::limits;
use crate::mad::Mads;
use crate::multicast::Groups;
use crate::schedule::Schedule;
use crate::srq::Srq;
use crate::timers::Timers;
use crate::work::{Completion, CqId, DeviceId, PdId};
use crate::xrc::Xrcd;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use emtt::{Segment, Table, TableError, Via};
use roce::wire::icrc::Flow;
use roce::{Gid, Psn, Qpn, Rkey};

pub(crate) struct Shared {
    pub config: Config,
    pub table: Table,
    /// Which device has which address.
    pub gids: BTreeMap<Gid, DeviceId>,
    pub devices: IdTable<Device>,
    pub pds: IdTable<Pd>,
    pub cqs: IdTable<Cq>,
    pub srqs: IdTable<Srq>,
    pub xrcds: IdTable<Xrcd>,
    pub completions: Completions,
    pub events: VecDeque<AsyncEvent>,
    pub schedule: Schedule,
    pub latencies: Latencies,
    pub timers: Timers,
    pub drops: DropCounters,
    pub mads: Mads,
    pub groups: Groups,
}

impl Shared {
    pub fn new(config: Config) -> Self {
        let seed = |n: u64| config.seed ^ roce::rng::mix(n);
        Shared {
            config,
            table: Table::new(seed(1)),
            gids: BTreeMap::new(),
            devices: IdTable::new(limits::MAX_DEVICES, 32, seed(2)),
            pds: IdTable::new(limits::MAX_PDS, 32, seed(3)),
            cqs: IdTable::new(limits::MAX_CQS, 32, seed(4)),
            srqs: IdTable::new(limits::MAX_SRQS, limits::SRQN_BITS, seed(6)),
            xrcds: IdTable::new(limits::MAX_XRCDS, 32, seed(7)),
            completions: Completions::default(),
            events: VecDeque::new(),
            schedule: Schedule::new(config.sharing),
            latencies: Latencies::default(),
            timers: Timers::default(),
            drops: DropCounters::default(),
            mads: Mads::default(),
            groups: Groups::default(),
        }
    }

    /// Hands a completion to its queue, unless that overran.
    #[inline]
    pub fn complete(&mut self, cq: CqId, completion: Completion) {
        if self.cqs.get(cq.0).is_some_and(|cq| !cq.error) {
            self.completions.push(cq, completion);
        }
    }

    #[inline]
    pub fn port_is_up(&self, device: DeviceId) -> bool {
        self.devices.get(device.0).is_some_and(|device| device.port.is_some())
    }

    /// Counts something at a device.
    #[inline]
    pub fn count(&mut self, device: DeviceId, change: impl FnOnce(&mut Counters)) {
        if let Some(device) = self.devices.get_mut(device.0) {
            change(&mut device.counters);
        }
    }

    /// The addresses of packets from a device along an address that [`crate::qp::state::check_address`] found to be good.
    pub fn flow(&self, device: DeviceId, address: &AddressVector, (qpn, dest_qpn): (Qpn, Qpn)) -> Flow {
        let source = self.devices.get(device.0).map(|device| &device.gids);
        let src = source.and_then(|gids| gids.get(usize::from(address.sgid_index)));
        // The index was good, and a device keeps its GIDs for life.
        let src = src.map_or(address.dgid, |gid| *gid).ip();
        // Any function of the two queue pairs' identity serves as entropy; the mix makes all 14 bits depend on it.
        let entropy = roce::rng::mix(u64::from(qpn.get()) << 32 | u64::from(dest_qpn.get()));
        Flow { src, dst: address.dgid.ip(), src_port: 0xC000 | (entropy & 0x3FFF) as u16 }
    }

    /// Counts packets that leave a device. False if they do not, as its port is down.
    pub fn leave(&mut self, device: DeviceId, packets: usize, bytes: usize) -> bool {
        let Some(device) = self.devices.get_mut(device.0).filter(|device| device.port.is_some()) else { return false };
        device.counters.sent_pkts += packets as u64;
        device.counters.sent_bytes += bytes as u64;
        true
    }

    /// Removes a region of this protection domain.
    pub fn remove_region(&mut self, pd: PdId, key: u32) -> Result<(), TableError> {
        self.table.remove(key)?;
        if let Some(pd) = self.pds.get_mut(pd.0) {
            pd.regions.remove(&key);
        }
        Ok(())
    }

    /// Takes back what `key` gives, for a request of a queue pair or of its peer: of a window of type 2 that is bound for the queue
    /// pair, or of a region that its driver has named. False if there is no such key, or windows are bound to the region.
    pub fn invalidate(&mut self, via: Via, key: Rkey) -> bool {
        match self.table.named(via.pd, key.0) {
            Some(region) => self.remove_region(via.pd, region).is_ok(),
            None => self.table.invalidate_window(via, key.0).is_ok(),
        }
    }

    /// The queue pair that peers of a device call `number`: itself, unless the device's driver chose its number. The caller
    /// checks that it exists and that [`crate::qp::Qp::number`] is `number`, so that it is found by nothing else.
    #[inline]
    pub fn queue_pair(&self, device: DeviceId, number: Qpn) -> Qpn {
        self.devices.get(device.0).and_then(|device| device.qp_numbers.get(&number)).copied().unwrap_or(number)
    }
}

/// Lists that the data path fills and empties again; kept so that it does not allocate.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// Packets, or requests of the local path, that this turn may have.
    pub turn_packets: usize,
    /// Memory of the requester (local path).
    pub ours: Vec<Segment>,
    /// Memory of the responder (local path).
    pub theirs: Vec<Segment>,
    /// Memory against packet bytes (wire). Whoever fills it leaves it empty.
    pub pieces: Vec<Piece>,
    /// Memory against bytes of a datagram that is being read (local path).
    pub sources: Vec<Piece>,
    /// What `pieces` are while packets are taken, and the PSN of the first packet among them.
    pub open_batch: Option<(Batch, Psn)>,
    /// A datagram for a multicast group, with its GRH.
    pub datagram: Vec<u8>,
    /// Values that atomics returned, in host byte order; or datagrams, each with its GRH.
    pub values: Vec<u8>,
}

/// What a batch of received bytes belongs to. One batch belongs to one queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Batch {
    /// Payload of a peer's requests.
    Requests,
    /// Payload of responses to READs.
    Responses,
    /// Values from atomics: the source is [`Scratch::values`].
    Values,
    /// Datagrams with their GRH, which lie in [`Scratch::values`].
    Datagrams,
}

impl Scratch {
    /// A function that takes, in order, the memory for received bytes that begin at `at`. Completions wait from now on until
    /// the batch is written.
    pub fn batch<'a>(&'a mut self, shared: &mut Shared, kind: Batch, psn: Psn, mut at: usize) -> impl FnMut(Segment) + use<'a> {
        if self.open_batch.is_none() {
            assert!(self.pieces.is_empty(), "nobody else's pieces are left in the list");
            self.open_batch = Some((kind, psn));
            shared.completions.defer();
        }
        let pieces = &mut self.pieces;
        move |segment| {
            pieces.push(Piece { segment, at });
            at += segment.len as usize;
        }
    }

    /// Keeps the value that an atomic returned until the batch is written; returns its offset.
    pub fn keep_value(&mut self, value: u64) -> usize {
        let at = self.values.len();
        self.values.extend_from_slice(&value.to_ne_bytes());
        at
    }

    /// The batch is written, or lost.
    pub fn close_batch(&mut self) {
        self.open_batch = None;
        self.pieces.clear();
        self.values.clear();
    }
}
