//! Streams of an agent: what neighbours say and send, what a relay passes on, and how streams end.

use super::{Action, Agent, CHUNK_BYTES, Chunks, Group, Header, MAX_INCOMING, MAX_PARTS, MAX_ROUTE, Message, Part, RETRY_S};
use super::{Route, Source, StreamId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Groups that one stream may announce.
const MAX_GROUPS: usize = 10_000;
/// Groups whose chunks are remembered at a destination while no stream brings any.
const MAX_REMEMBERED: usize = 100_000;

/// What a stream is for.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
    /// This site's own data on this path.
    Own(Route),
    /// A neighbour's: it ends here, or goes on.
    Incoming { onward: Option<StreamId> },
    /// The way on of an incoming one.
    Onward { incoming: StreamId },
}

/// A stream.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    pub kind: Kind,
    pub rate_gbps: f64,
    pub is_up: bool,
    pub heard_s: f64,
    /// Outgoing: slots of the neighbour's window that are free, and those that are being written, at a relay with the slot of the
    /// incoming stream that is written from. The neighbour may say that a slot is free again before its write is known to be done.
    pub free: Vec<u32>,
    pub slots: u32,
    pub writing: BTreeMap<u32, Option<u32>>,
    freed: BTreeSet<u32>,
    /// Own: groups that were announced, those that the destination is ready for, and what each had in seconds of its rate.
    pub begun: BTreeSet<Group>,
    pub ready: BTreeSet<Group>,
    pub had_s: BTreeMap<Group, f64>,
    /// Incoming: slots that hold a chunk, and those that wait for a slot of the next hop.
    held: BTreeSet<u32>,
    waiting: VecDeque<Header>,
    /// Onward: what was said before it was up.
    early: Vec<Message>,
}

impl Stream {
    pub fn new(kind: Kind, rate_gbps: f64, now_s: f64) -> Self {
        Self {
            kind,
            rate_gbps,
            is_up: false,
            heard_s: now_s,
            free: Vec::new(),
            slots: 0,
            writing: BTreeMap::new(),
            freed: BTreeSet::new(),
            begun: BTreeSet::new(),
            ready: BTreeSet::new(),
            had_s: BTreeMap::new(),
            held: BTreeSet::new(),
            waiting: VecDeque::new(),
            early: Vec::new(),
        }
    }
}

impl Agent {
    /// A neighbour wants a stream for a path, of which these sites are left, this one first. With how many slots is up to the
    /// caller. The stream is up.
    ///
    /// # Errors
    /// Why not.
    pub fn handle_incoming(&mut self, now_s: f64, sites: &[String], slots: u32) -> Result<StreamId, String> {
        self.now_s = self.now_s.max(now_s);
        let incoming = |stream: &&Stream| matches!(stream.kind, Kind::Incoming { .. });
        if self.streams.values().filter(incoming).count() >= MAX_INCOMING {
            return Err(format!("{:?} has {MAX_INCOMING} streams already", self.site));
        }
        let once = sites.iter().collect::<BTreeSet<_>>().len() == sites.len();
        if sites.first() != Some(&self.site) || sites.len() > MAX_ROUTE || !once {
            return Err(format!("this is {:?}, and the path from here is {sites:?}", self.site));
        }
        let id = self.add_stream(Kind::Incoming { onward: None }, 0.0);
        let onward = (sites.len() > 1).then(|| {
            let onward = self.add_stream(Kind::Onward { incoming: id }, 0.0);
            self.actions.push_back(Action::Open { stream: onward, sites: sites.to_vec(), relays: Some(id) });
            onward
        });
        let stream = self.streams.get_mut(&id).expect("added just before");
        (stream.kind, stream.is_up, stream.slots) = (Kind::Incoming { onward }, true, slots);
        Ok(id)
    }

    /// A stream is open; the neighbour's window has so many slots.
    pub fn opened(&mut self, now_s: f64, id: StreamId, slots: u32) {
        self.now_s = self.now_s.max(now_s);
        let Some(stream) = self.streams.get_mut(&id) else { return };
        (stream.is_up, stream.heard_s, stream.slots) = (true, self.now_s, slots);
        stream.free = (0..slots).rev().collect();
        let early = std::mem::take(&mut stream.early);
        self.actions.extend(early.into_iter().map(|message| Action::Send(id, message)));
        self.pass_on(id);
        self.feed();
    }

    /// A stream could not be opened, or has failed, or its neighbour has broken the rules.
    pub fn failed(&mut self, now_s: f64, id: StreamId) {
        self.now_s = self.now_s.max(now_s);
        let Some(stream) = self.streams.get(&id) else { return };
        if let Kind::Own(route) = &stream.kind {
            self.retry_at_s.insert(route.clone(), self.now_s + RETRY_S);
        }
        self.close(id);
        self.feed();
    }

    /// Ends a stream and what hangs on it.
    pub(super) fn close(&mut self, id: StreamId) {
        let Some(stream) = self.streams.remove(&id) else { return };
        self.actions.retain(|action| {
            !matches!(action,
            Action::Open { stream: other, .. } | Action::Rate(other, _) | Action::Send(other, _) | Action::Write { stream: other, .. }
            | Action::Recall { stream: other, .. } | Action::Place { stream: other, .. } if *other == id)
        });
        self.actions.push_back(Action::Close(id));
        match stream.kind {
            Kind::Own(route) => {
                self.own.remove(&route);
                self.sending.values_mut().for_each(|sending| sending.lose(id));
            }
            Kind::Incoming { onward } => onward.into_iter().for_each(|onward| self.close(onward)),
            Kind::Onward { incoming } => self.close(incoming),
        }
    }

    /// A neighbour says something. What breaks the rules ends the stream.
    pub fn handle_message(&mut self, now_s: f64, id: StreamId, message: Message) {
        self.now_s = self.now_s.max(now_s);
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.heard_s = self.now_s;
        let towards_source = matches!(message, Message::Have { .. } | Message::Ready { .. } | Message::Refused { .. });
        let kept = match (&stream.kind, message) {
            (_, Message::Alive) => true,
            (Kind::Own(_) | Kind::Onward { .. }, Message::Free { slot }) => {
                if stream.writing.contains_key(&slot) {
                    stream.freed.insert(slot)
                } else {
                    let known = slot < stream.slots && !stream.free.contains(&slot);
                    if known {
                        stream.free.push(slot);
                        self.pass_on(id);
                    }
                    known
                }
            }
            (Kind::Incoming { onward }, Message::Begin { group, parts }) => {
                let onward = *onward;
                self.begin(id, onward, group, parts)
            }
            (Kind::Own(_), message) if towards_source => {
                self.heard(id, message);
                true
            }
            (Kind::Onward { incoming }, message) if towards_source => {
                self.actions.push_back(Action::Send(*incoming, message));
                true
            }
            _ => false,
        };
        if !kept {
            self.failed(now_s, id);
        }
        self.feed();
    }

    /// A group will come. Whether that may be.
    fn begin(&mut self, id: StreamId, onward: Option<StreamId>, group: Group, parts: Vec<Part>) -> bool {
        let stream = self.streams.get_mut(&id).expect("the caller has seen it");
        stream.begun.insert(group);
        if stream.begun.len() > MAX_GROUPS || parts.len() > MAX_PARTS {
            return false;
        }
        match onward {
            None => self.actions.push_back(Action::Recall { stream: id, group, parts }),
            Some(onward) => {
                let next = self.streams.get_mut(&onward).expect("an incoming stream ends with its way on");
                let message = Message::Begin { group, parts };
                if next.is_up {
                    self.actions.push_back(Action::Send(onward, message));
                } else {
                    next.early.push(message);
                }
            }
        }
        true
    }

    /// The destination of an own path says something.
    fn heard(&mut self, id: StreamId, message: Message) {
        match message {
            Message::Have { group, first, count } => {
                let Some(sending) = self.sending.get_mut(&group) else { return };
                let end = first.saturating_add(count).min(sending.chunks.count());
                (first..end).for_each(|chunk| sending.placed(chunk));
            }
            Message::Ready { group } => {
                let stream = self.streams.get_mut(&id).expect("the caller has seen it");
                if stream.begun.contains(&group) {
                    stream.ready.insert(group);
                }
            }
            Message::Refused { group, reason } => {
                if let Some(sending) = self.sending.get_mut(&group) {
                    sending.refused = Some(reason.chars().take(1_000).collect());
                }
            }
            _ => {}
        }
    }

    /// What is in place of a group that was asked for with [`Action::Recall`], or why it cannot be received.
    pub fn recalled(&mut self, id: StreamId, group: Group, found: Result<Chunks, String>) {
        if self.receiving.len() >= MAX_REMEMBERED {
            self.receiving.clear();
            // Whoever sends is asked to begin again.
            let all: Vec<StreamId> = self.streams.keys().copied().collect();
            all.into_iter().for_each(|id| self.failed(self.now_s, id));
        }
        if !self.streams.contains_key(&id) {
            return;
        }
        match found {
            Ok(chunks) => {
                let ranges = chunks.ranges().into_iter();
                self.actions.extend(ranges.map(|(first, count)| Action::Send(id, Message::Have { group, first, count })));
                self.actions.push_back(Action::Send(id, Message::Ready { group }));
                self.receiving.insert(group, chunks);
            }
            Err(reason) => self.actions.push_back(Action::Send(id, Message::Refused { group, reason })),
        }
    }

    /// A chunk has arrived in a slot of the window of an incoming stream.
    pub fn handle_chunk(&mut self, now_s: f64, id: StreamId, header: Header) {
        self.now_s = self.now_s.max(now_s);
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.heard_s = self.now_s;
        let Kind::Incoming { onward } = stream.kind else { return self.failed(now_s, id) };
        let sane =
            header.slot < stream.slots && u64::from(header.length) <= CHUNK_BYTES && stream.begun.contains(&header.group);
        if !sane || !stream.held.insert(header.slot) {
            return self.failed(now_s, id);
        }
        if let Some(onward) = onward {
            stream.waiting.push_back(header);
            return self.pass_on(onward);
        }
        match self.receiving.get(&header.group) {
            Some(chunks) if chunks.has(header.chunk) => self.release(id, header),
            Some(chunks) if header.length > 0 && chunks.length(header.chunk) == u64::from(header.length) => {
                self.actions.push_back(Action::Place { stream: id, header });
            }
            _ => self.failed(now_s, id),
        }
    }

    /// Gives the next hop what waits for it.
    fn pass_on(&mut self, id: StreamId) {
        let Some(Stream { kind: Kind::Onward { incoming }, .. }) = self.streams.get(&id) else { return };
        let incoming = *incoming;
        let mut waiting = std::mem::take(&mut self.streams.get_mut(&incoming).expect("one ends with the other").waiting);
        let stream = self.streams.get_mut(&id).expect("seen just before");
        while stream.is_up && !waiting.is_empty() {
            let Some(slot) = stream.free.pop() else { break };
            let header = waiting.pop_front().expect("it is not empty");
            stream.writing.insert(slot, Some(header.slot));
            let source = Source::Held(incoming, header.slot);
            self.actions.push_back(Action::Write { stream: id, header: Header { slot, ..header }, source });
        }
        self.streams.get_mut(&incoming).expect("one ends with the other").waiting = waiting;
    }

    /// The neighbour has the chunk of this slot.
    pub fn written(&mut self, now_s: f64, id: StreamId, slot: u32) {
        self.now_s = self.now_s.max(now_s);
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.heard_s = self.now_s;
        let held = stream.writing.remove(&slot).flatten();
        if stream.freed.remove(&slot) {
            stream.free.push(slot);
        }
        if let (Kind::Onward { incoming }, Some(held)) = (&stream.kind, held) {
            let incoming = *incoming;
            self.free_slot(incoming, held);
        }
        self.pass_on(id);
        self.feed();
    }

    /// A chunk of this site's data was not written, as it cannot be read: its group is not sent any more.
    pub fn unreadable(&mut self, now_s: f64, id: StreamId, header: Header, reason: &str) {
        self.now_s = self.now_s.max(now_s);
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.writing.remove(&header.slot);
            stream.free.push(header.slot);
        }
        if let Some(sending) = self.sending.get_mut(&header.group) {
            sending.refused = Some(reason.to_owned());
        }
        self.feed();
    }

    /// A chunk that was to be put in place is, or could not be: then its stream ends, and it will be sent again.
    pub fn placed(&mut self, now_s: f64, id: StreamId, header: Header, in_place: bool) {
        self.now_s = self.now_s.max(now_s);
        if !in_place {
            return self.failed(now_s, id);
        }
        if let Some(chunks) = self.receiving.get_mut(&header.group) {
            chunks.add(header.chunk);
        }
        self.release(id, header);
    }

    /// Says that a chunk is in place, and frees its slot.
    fn release(&mut self, id: StreamId, header: Header) {
        if self.streams.contains_key(&id) {
            let message = Message::Have { group: header.group, first: header.chunk, count: 1 };
            self.actions.push_back(Action::Send(id, message));
            self.free_slot(id, header.slot);
        }
    }

    fn free_slot(&mut self, id: StreamId, slot: u32) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if stream.held.remove(&slot) {
            self.actions.push_back(Action::Send(id, Message::Free { slot }));
        }
    }
}
