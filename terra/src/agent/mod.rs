//! The agent of a site as a state machine: orders of the controller, messages and chunks of neighbours in; messages, chunks and
//! rates out. It has no sockets, files, clocks or threads.
//!
//! A path that the site sends on is a *stream* to the next site on it, which has a stream to the next one, and so on: a chain, with
//! a window of slots at each hop, so that whoever cannot go on holds those before it up. A relay keeps a chunk in the slot in which
//! it arrived until the next hop has it. The destination says of every chunk that it is in place, and that travels back along the
//! chain; only then does it count as sent. What was under way on a stream that failed is sent again, on whatever path there is;
//! the destination puts each chunk in place once, and after a restart of the source says what it has.
//!
//! Rates are set per path: those of the orders, lowered before others are raised.

mod chunks;
mod message;
mod sending;
mod stream;

use crate::id::{CoflowId, Epoch};
use sending::{BYTES_PER_GBPS, Sending};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use stream::{Kind, Stream};

pub use chunks::{Chunks, MAX_GROUP_BYTES};
pub use message::{HEADER_BYTES, Header, MAX_PARTS, Message, Part};

/// A FlowGroup: its coflow and its index there.
pub type Group = (CoflowId, usize);
/// The sites of a path, both ends included.
pub type Route = Vec<String>;

/// Bytes of a chunk.
pub const CHUNK_BYTES: u64 = 128 << 10;
/// Streams that others may have opened here.
pub const MAX_INCOMING: usize = 256;
/// Most sites of a path.
pub const MAX_ROUTE: usize = 64;
/// A stream that failed is opened again after so long, seconds.
const RETRY_S: f64 = 0.2;
/// For how long, seconds, chunks are given to a path in advance.
const AHEAD_S: f64 = 0.02;
/// How often, seconds, the source of a stream says that it is there.
const ALIVE_S: f64 = 1.0;
/// A stream from which nothing was heard for so long, seconds, has failed.
const SILENCE_S: f64 = 10.0;

/// Names a stream at one agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// What the controller wants sent of a FlowGroup.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// Which.
    pub group: Group,
    /// What it consists of.
    pub parts: Vec<Part>,
    /// Paths from here, and rates in Gbit/s.
    pub paths: Vec<(Route, f64)>,
}

/// Where the bytes of a chunk are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// At this site.
    Own,
    /// In a slot of the window of another stream.
    Held(StreamId, u32),
}

/// What is to be done, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Open a stream to the second of these sites, for a path over all of them; then [`Agent::opened`] or [`Agent::failed`].
    Open {
        /// The stream.
        stream: StreamId,
        /// The sites, this one first.
        sites: Route,
        /// The stream whose chunks it passes on, if this site is a relay. Otherwise it carries this site's data, at a rate.
        relays: Option<StreamId>,
    },
    /// End a stream and forget it.
    Close(StreamId),
    /// From now on a stream carries at most so much, Gbit/s.
    Rate(StreamId, f64),
    /// Tell the neighbour.
    Send(StreamId, Message),
    /// Write a chunk into its slot at the neighbour, then [`Agent::written`]; or, if this site's data cannot be read,
    /// [`Agent::unreadable`].
    Write {
        /// The stream.
        stream: StreamId,
        /// What goes with it.
        header: Header,
        /// Where it is.
        source: Source,
    },
    /// Find out what is in place of a group that will come, then [`Agent::recalled`].
    Recall {
        /// The stream.
        stream: StreamId,
        /// The group.
        group: Group,
        /// What it consists of.
        parts: Vec<Part>,
    },
    /// Check a chunk and put it in place, then [`Agent::placed`].
    Place {
        /// The stream in whose window it is.
        stream: StreamId,
        /// What came with it.
        header: Header,
    },
    /// All before this has been done: say to the controller that these orders are followed.
    Follows(Epoch),
}

/// What the agent has to say to the controller.
pub type Sent = Vec<(Group, u64)>;

/// The agent of one site.
#[derive(Clone, Debug)]
pub struct Agent {
    site: String,
    /// Paths that it can send on at once.
    most_paths: usize,
    now_s: f64,
    next_stream: u64,
    sending: BTreeMap<Group, Sending>,
    receiving: BTreeMap<Group, Chunks>,
    streams: BTreeMap<StreamId, Stream>,
    /// Streams of this site's own paths, and since when paths wait for one.
    own: BTreeMap<Route, StreamId>,
    retry_at_s: BTreeMap<Route, f64>,
    alive_at_s: f64,
    actions: VecDeque<Action>,
}

impl Agent {
    /// An agent that has nothing to do, and can send on so many paths at once.
    pub fn new(site: &str, most_paths: usize, now_s: f64) -> Self {
        Self {
            site: site.to_owned(),
            most_paths,
            now_s,
            next_stream: 1,
            sending: BTreeMap::new(),
            receiving: BTreeMap::new(),
            streams: BTreeMap::new(),
            own: BTreeMap::new(),
            retry_at_s: BTreeMap::new(),
            alive_at_s: now_s + ALIVE_S,
            actions: VecDeque::new(),
        }
    }

    /// What to do next.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// What is in place at the destinations, bytes of each group that is being sent.
    pub fn sent(&self) -> Sent {
        self.sending.iter().map(|(group, sending)| (*group, sending.chunks.held_bytes())).collect()
    }

    /// What a group that is being sent consists of.
    pub fn parts(&self, group: Group) -> Option<&[Part]> {
        self.sending.get(&group).map(|sending| sending.parts.as_slice())
    }

    /// Groups that cannot be read here or that their destinations do not take, and why. They are tried again once they are
    /// ordered anew: after a restart, of this agent or of the controller.
    pub fn refused(&self) -> impl Iterator<Item = (Group, &str)> {
        self.sending.iter().filter_map(|(group, sending)| Some((*group, sending.refused.as_deref()?)))
    }

    /// Streams that are there, for display.
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// Orders of the controller. Those that make no sense (a path that does not begin here, a rate that is none) are left out.
    /// No tasks: everything stops.
    pub fn handle_orders(&mut self, now_s: f64, epoch: Epoch, tasks: Vec<Task>) {
        self.now_s = self.now_s.max(now_s);
        let mut wanted: BTreeMap<Route, f64> = BTreeMap::new();
        let mut kept = BTreeSet::new();
        for task in tasks {
            let bytes = task.parts.iter().try_fold(0u64, |sum, part| sum.checked_add(part.bytes));
            let Some(chunks) = bytes.and_then(Chunks::none).filter(|_| task.parts.len() <= MAX_PARTS) else { continue };
            let good = |route: &Route, rate: f64| {
                let once = route.iter().collect::<BTreeSet<_>>().len() == route.len();
                (2..=MAX_ROUTE).contains(&route.len()) && once && route[0] == self.site && rate > 0.0 && rate.is_finite()
            };
            let rates: BTreeMap<Route, f64> = task.paths.into_iter().filter(|(route, rate)| good(route, *rate)).collect();
            for (route, rate) in &rates {
                *wanted.entry(route.clone()).or_default() += rate;
            }
            kept.insert(task.group);
            match self.sending.get_mut(&task.group).filter(|known| known.parts == task.parts) {
                Some(known) => known.rates = rates,
                None => drop(self.sending.insert(task.group, Sending::new(task.parts, chunks, rates))),
            }
        }
        self.sending.retain(|group, _| kept.contains(group));
        let gone: Vec<StreamId> =
            self.own.iter().filter(|(route, _)| !wanted.contains_key(*route)).map(|(_, stream)| *stream).collect();
        gone.into_iter().for_each(|stream| self.close(stream));
        self.retry_at_s.retain(|route, _| wanted.contains_key(route));
        let rate_of = |agent: &Self, id: StreamId| agent.streams.get(&id).map_or(0.0, |stream| stream.rate_gbps);
        for falls in [true, false] {
            for (route, &rate_gbps) in &wanted {
                let Some(&id) = self.own.get(route) else { continue };
                let before_gbps = rate_of(self, id);
                if before_gbps != rate_gbps && (rate_gbps < before_gbps) == falls {
                    self.streams.get_mut(&id).expect("an own path has its stream").rate_gbps = rate_gbps;
                    self.actions.push_back(Action::Rate(id, rate_gbps));
                }
            }
        }
        for (route, rate_gbps) in wanted {
            if !self.own.contains_key(&route) && !self.retry_at_s.contains_key(&route) {
                self.open_own(route, rate_gbps);
            }
        }
        self.actions.push_back(Action::Follows(epoch));
        self.feed();
    }

    fn open_own(&mut self, route: Route, rate_gbps: f64) {
        if self.own.len() >= self.most_paths {
            self.retry_at_s.insert(route, self.now_s + RETRY_S);
            return;
        }
        let id = self.add_stream(Kind::Own(route.clone()), rate_gbps);
        self.own.insert(route.clone(), id);
        self.actions.push_back(Action::Open { stream: id, sites: route, relays: None });
        self.actions.push_back(Action::Rate(id, rate_gbps));
    }

    fn add_stream(&mut self, kind: Kind, rate_gbps: f64) -> StreamId {
        let id = StreamId(self.next_stream);
        self.next_stream += 1;
        self.streams.insert(id, Stream::new(kind, rate_gbps, self.now_s));
        id
    }

    /// When [`Agent::handle_timeout`] is to be called at the latest, seconds.
    pub fn poll_timeout(&self) -> f64 {
        self.retry_at_s.values().copied().fold(self.alive_at_s, f64::min)
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now_s: f64) {
        self.now_s = self.now_s.max(now_s);
        if self.alive_at_s <= self.now_s {
            self.alive_at_s = self.now_s + ALIVE_S;
            let heard = |stream: &Stream| stream.heard_s + SILENCE_S > self.now_s;
            let silent: Vec<StreamId> = self.streams.iter().filter(|(_, stream)| !heard(stream)).map(|(id, _)| *id).collect();
            silent.into_iter().for_each(|id| self.failed(now_s, id));
            for (id, _) in self.streams.iter().filter(|(_, stream)| stream.is_up) {
                self.actions.push_back(Action::Send(*id, Message::Alive));
            }
        }
        let due: Vec<Route> = self.retry_at_s.extract_if(.., |_, at_s| *at_s <= self.now_s).map(|(route, _)| route).collect();
        for route in due {
            let rate_gbps = self.sending.values().filter_map(|sending| sending.rates.get(&route)).sum();
            self.open_own(route, rate_gbps);
        }
    }

    /// Gives the paths of this site's own data what they can take.
    fn feed(&mut self) {
        let Self { sending, streams, own, actions, .. } = self;
        for (route, id) in own.iter() {
            let stream = streams.get_mut(id).expect("an own path has its stream");
            let ahead = (stream.rate_gbps * BYTES_PER_GBPS * AHEAD_S / CHUNK_BYTES as f64).ceil().max(2.0) as usize;
            while stream.is_up && stream.writing.len() < ahead && !stream.free.is_empty() {
                let before_bytes = stream.writing.len() as u64 * CHUNK_BYTES;
                // Of those that may, the one that is furthest behind its share.
                let next = sending
                    .iter_mut()
                    .filter(|(group, sending)| stream.ready.contains(group) && sending.rates.contains_key(route))
                    .filter(|(_, sending)| sending.has_more() && sending.is_worth(route, before_bytes))
                    .map(|(group, sending)| (stream.had_s.get(group).copied().unwrap_or(0.0), *group, sending))
                    .min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
                let Some((had_s, group, sending)) = next else { break };
                let Some(chunk) = sending.take(*id) else { break };
                let length = sending.chunks.length(chunk) as u32;
                stream.had_s.insert(group, had_s + f64::from(length) / (sending.rates[route] * BYTES_PER_GBPS));
                let slot = stream.free.pop().expect("seen just before");
                stream.writing.insert(slot, None);
                let header = Header { group, chunk, length, crc: 0, slot };
                actions.push_back(Action::Write { stream: *id, header, source: Source::Own });
            }
            // A group that is new here begins where the others are.
            if stream.is_up {
                let floor_s = stream.had_s.values().copied().fold(f64::INFINITY, f64::min);
                let floor_s = if floor_s.is_finite() { floor_s } else { 0.0 };
                for (group, sending) in sending.iter().filter(|(_, sending)| sending.rates.contains_key(route)) {
                    if sending.refused.is_none() && !sending.chunks.is_whole() && stream.begun.insert(*group) {
                        stream.had_s.insert(*group, floor_s);
                        let begin = Message::Begin { group: *group, parts: sending.parts.clone() };
                        actions.push_back(Action::Send(*id, begin));
                    }
                }
                let gone = |group: &Group| !sending.get(group).is_some_and(|sending| sending.rates.contains_key(route));
                stream.had_s.retain(|group, _| !gone(group));
            }
        }
    }
}
