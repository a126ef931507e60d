//! Agents of all sites and the controller together in virtual time, over links that take time and fail: coflows end when they
//! should, every chunk is put in place exactly once, and nothing is lost when links, agents or the controller die.

mod networks;

use networks::{diamond, pair};
use std::collections::{BTreeMap, BTreeSet};
use terra::agent::{Action, Agent, CHUNK_BYTES, Chunks, Group, Header, Message, Part, StreamId, Task};
use terra::controller::{Config, Controller, Orders, Refused, Report};
use terra::random::Random;
use terra::topology::Known;
use terra::workload::{Job, Stage, coflow_id};
use terra::{Coflow, CoflowId, Epoch, Flow, JobId, SiteId, Wan};

/// Between two sites, ms.
const DELAY_MS: u64 = 2;
/// Between two exchanges of an agent with the controller, ms.
const ASK_MS: u64 = 20;
/// After which a site that does not answer counts as silent, ms.
const SILENT_MS: u64 = 100;
/// After which a connection over a cut link breaks, ms.
const GIVE_UP_MS: u64 = 300;
/// Slots of a window.
const SLOTS: u32 = 32;

/// A stream at a site.
type End = (String, StreamId);

#[derive(Clone, Debug)]
enum Event {
    Open(End, Vec<String>),
    Opened(End),
    Failed(End),
    Message(End, Message),
    Chunk(End, Header),
    Written(End, u32),
}

struct World {
    controller: Option<Controller>,
    agents: BTreeMap<String, Agent>,
    follows: BTreeMap<String, Epoch>,
    /// What lies at the destinations: it survives.
    placed: BTreeMap<(String, Group), Chunks>,
    placed_twice: u64,
    ends: BTreeMap<End, End>,
    rates: BTreeMap<End, f64>,
    free_at_ms: BTreeMap<End, f64>,
    events: BTreeMap<(u64, u64), Event>,
    /// Links that are cut, since when; both directions.
    cut: BTreeMap<(String, String), u64>,
    dead: BTreeMap<String, u64>,
    /// Bytes that were written over each link.
    carried: BTreeMap<(String, String), u64>,
    now_ms: u64,
    sequence: u64,
}

fn both(a: &str, b: &str) -> (String, String) {
    if a < b { (a.to_owned(), b.to_owned()) } else { (b.to_owned(), a.to_owned()) }
}

impl World {
    fn new(wan: Wan) -> Self {
        let sites = wan.sites().to_vec();
        let mut world = Self {
            controller: Some(Controller::new(wan, Config::default(), 0.0)),
            agents: BTreeMap::new(),
            follows: BTreeMap::new(),
            placed: BTreeMap::new(),
            placed_twice: 0,
            ends: BTreeMap::new(),
            rates: BTreeMap::new(),
            free_at_ms: BTreeMap::new(),
            events: BTreeMap::new(),
            cut: BTreeMap::new(),
            dead: BTreeMap::new(),
            carried: BTreeMap::new(),
            now_ms: 0,
            sequence: 0,
        };
        sites.iter().for_each(|site| world.start(site));
        world
    }

    fn now_s(&self) -> f64 {
        self.now_ms as f64 / 1e3
    }

    /// An agent starts without memory, and joins with its next exchange.
    fn start(&mut self, site: &str) {
        self.dead.remove(site);
        self.agents.insert(site.to_owned(), Agent::new(site, 8, self.now_s()));
        self.follows.insert(site.to_owned(), Epoch(0));
    }

    fn kill(&mut self, site: &str) {
        self.agents.remove(site);
        self.dead.insert(site.to_owned(), self.now_ms);
        let ends: Vec<End> = self.ends.keys().filter(|end| end.0 == site).cloned().collect();
        for end in ends {
            self.hang_up(&end, 50);
        }
    }

    fn later(&mut self, in_ms: u64, event: Event) {
        self.sequence += 1;
        self.events.insert((self.now_ms + in_ms, self.sequence), event);
    }

    fn hang_up(&mut self, end: &End, in_ms: u64) {
        if let Some(other) = self.ends.remove(end) {
            self.ends.remove(&other);
            self.later(in_ms, Event::Failed(other));
        }
    }

    /// Sends to the other end. What a cut link loses breaks the connection, once both ends have tried for long enough.
    fn across(&mut self, end: &End, in_ms: u64, event: impl Fn(End) -> Event) {
        let Some(other) = self.ends.get(end).cloned() else { return };
        if self.cut.contains_key(&both(&end.0, &other.0)) {
            self.later(GIVE_UP_MS, Event::Failed(end.clone()));
            self.hang_up(end, GIVE_UP_MS);
        } else {
            self.later(in_ms, event(other));
        }
    }

    fn submit(&mut self, id: u64, flows: &[(&str, &str, f64)]) {
        let now_s = self.now_s();
        let controller = self.controller.as_mut().unwrap();
        let wan = controller.wan();
        let site = |name: &str| wan.site(name).unwrap();
        let flow = |&(from, to, volume_gbit): &(&str, &str, f64)| Flow { src: site(from), dst: site(to), volume_gbit };
        let coflow = Coflow::new(coflow_id(JobId(id), 0), flows.iter().map(flow)).unwrap();
        let stages = vec![Stage { coflow, name: String::new(), after: vec![] }];
        controller.submit(now_s, Job { id: JobId(id), arrival_s: 0.0, stages }).unwrap();
    }

    fn tasks(wan: &Wan, orders: &Orders) -> Vec<Task> {
        let name = |site: SiteId| wan.name(site).to_owned();
        let task = |order: &terra::controller::GroupOrder| Task {
            group: (order.coflow, order.group),
            parts: vec![Part { bytes: (order.volume_gbit * 1.25e8).round() as u64, token: 0, file: None, to_file: None }],
            paths: order
                .paths
                .iter()
                .map(|rate| (rate.path.sites(wan).into_iter().map(name).collect(), rate.rate_gbps))
                .collect(),
        };
        orders.groups.iter().map(task).collect()
    }

    /// One agent reports and gets orders, or joins.
    fn exchange(&mut self, site: &str) {
        let now_s = self.now_s();
        let long = |since_ms: &u64| self.now_ms - since_ms >= SILENT_MS;
        let Some(controller) = self.controller.as_mut() else { return };
        let id = controller.wan().site(site).unwrap();
        let agent = self.agents.get_mut(site).unwrap();
        let links = controller.wan().links().iter().filter(|link| link.from == id);
        let neighbours: Vec<(SiteId, String)> =
            links.map(|link| (link.to, controller.wan().name(link.to).to_owned())).collect();
        let silent = |name: &str| self.cut.get(&both(site, name)).is_some_and(long) || self.dead.get(name).is_some_and(long);
        let silent: BTreeSet<SiteId> = neighbours.iter().filter(|(_, name)| silent(name)).map(|(id, _)| *id).collect();
        let sent = agent.sent().into_iter().map(|((coflow, group), bytes)| (coflow, group, bytes as f64 * 8e-9)).collect();
        let report = Report { epoch: self.follows[site], sent, silent, ..Report::default() };
        let orders = match controller.exchange(now_s, id, &report) {
            // One that has just started, or that the controller has not heard of.
            Err(Refused::NotJoined(_) | Refused::StaleEpoch { .. }) => {
                agent.handle_orders(now_s, Epoch(0), vec![]);
                controller.join(now_s, id).unwrap()
            }
            answer => answer.unwrap(),
        };
        let tasks = Self::tasks(controller.wan(), &orders);
        agent.handle_orders(now_s, orders.epoch, tasks);
        self.act(site);
    }

    /// Does what an agent wants done.
    fn act(&mut self, site: &str) {
        while let Some(action) = self.agents.get_mut(site).and_then(Agent::poll_action) {
            let end = |stream: StreamId| (site.to_owned(), stream);
            match action {
                Action::Open { stream, sites, .. } => self.later(DELAY_MS, Event::Open(end(stream), sites)),
                Action::Close(stream) => self.hang_up(&end(stream), DELAY_MS),
                Action::Rate(stream, gbps) => drop(self.rates.insert(end(stream), gbps)),
                Action::Send(stream, message) => {
                    self.across(&end(stream), DELAY_MS, |other| Event::Message(other, message.clone()));
                }
                Action::Write { stream, header, .. } => {
                    let from = end(stream);
                    let takes_ms = self.rates.get(&from).map_or(0.0, |gbps| f64::from(header.length) * 8e-6 / gbps);
                    let start_ms = self.free_at_ms.get(&from).copied().unwrap_or(0.0).max(self.now_ms as f64);
                    self.free_at_ms.insert(from.clone(), start_ms + takes_ms);
                    let in_ms = (start_ms + takes_ms).ceil() as u64 - self.now_ms + DELAY_MS;
                    self.across(&from, in_ms, |other| Event::Chunk(other, header));
                    // The write may be known to be done before or after the receiver says that the slot is free again.
                    let known_ms = in_ms + [0, 2 * DELAY_MS][header.chunk as usize % 2];
                    self.across(&from, known_ms, |_| Event::Written(from.clone(), header.slot));
                }
                Action::Recall { stream, group, parts } => {
                    let bytes = parts.iter().map(|part| part.bytes).sum();
                    let known = self.placed.entry((site.to_owned(), group)).or_insert_with(|| Chunks::none(bytes).unwrap());
                    self.agents.get_mut(site).unwrap().recalled(stream, group, Ok(known.clone()));
                }
                Action::Place { stream, header } => {
                    let chunks = self.placed.get_mut(&(site.to_owned(), header.group)).unwrap();
                    self.placed_twice += u64::from(!chunks.add(header.chunk));
                    let now_s = self.now_s();
                    self.agents.get_mut(site).unwrap().placed(now_s, stream, header, true);
                }
                Action::Follows(epoch) => drop(self.follows.insert(site.to_owned(), epoch)),
            }
        }
    }

    fn happen(&mut self, event: Event) {
        let now_s = self.now_s();
        let (Event::Open(end, _) | Event::Opened(end) | Event::Failed(end)) = &event else {
            let (Event::Message(end, _) | Event::Chunk(end, _) | Event::Written(end, _)) = &event else { unreachable!() };
            let (end, Some(other)) = (end.clone(), self.ends.get(end).cloned()) else { return };
            if self.cut.contains_key(&both(&end.0, &other.0)) {
                self.later(GIVE_UP_MS, Event::Failed(end.clone()));
                return self.hang_up(&end, GIVE_UP_MS);
            }
            let agent = self.agents.get_mut(&end.0).expect("its streams end with it");
            match event {
                Event::Message(_, message) => agent.handle_message(now_s, end.1, message),
                Event::Chunk(_, header) => {
                    *self.carried.entry((other.0, end.0.clone())).or_default() += u64::from(header.length);
                    agent.handle_chunk(now_s, end.1, header);
                }
                Event::Written(_, slot) => agent.written(now_s, end.1, slot),
                _ => unreachable!(),
            }
            return self.act(&end.0);
        };
        let (site, stream) = end.clone();
        if !self.agents.contains_key(&site) {
            return;
        }
        match event {
            Event::Open(end, sites) => {
                let next = sites[1].clone();
                let reached = !self.cut.contains_key(&both(&site, &next));
                let incoming = self.agents.get_mut(&next).filter(|_| reached);
                match incoming.map(|next| next.handle_incoming(now_s, &sites[1..], SLOTS)) {
                    Some(Ok(id)) => {
                        let other = (next.clone(), id);
                        self.ends.insert(end.clone(), other.clone());
                        self.ends.insert(other, end.clone());
                        self.later(DELAY_MS, Event::Opened(end));
                        self.act(&next);
                    }
                    _ => self.later(SILENT_MS, Event::Failed(end)),
                }
            }
            Event::Opened(end) if self.ends.contains_key(&end) => {
                self.agents.get_mut(&site).unwrap().opened(now_s, stream, SLOTS);
            }
            Event::Failed(_) => self.agents.get_mut(&site).unwrap().failed(now_s, stream),
            _ => {}
        }
        self.act(&site);
    }

    fn advance(&mut self) {
        self.now_ms += 1;
        while let Some(entry) = self.events.first_entry().filter(|entry| entry.key().0 <= self.now_ms) {
            let event = entry.remove();
            self.happen(event);
        }
        let sites: Vec<String> = self.agents.keys().cloned().collect();
        for (index, site) in sites.iter().enumerate() {
            let now_s = self.now_s();
            let agent = self.agents.get_mut(site).unwrap();
            if agent.poll_timeout() <= now_s {
                agent.handle_timeout(now_s);
                self.act(site);
            }
            if self.now_ms % ASK_MS == index as u64 % ASK_MS {
                self.exchange(site);
            }
        }
        let now_s = self.now_s();
        if let Some(controller) = &mut self.controller {
            controller.handle_timeout(now_s);
        }
    }

    fn run_until(&mut self, end_s: f64) {
        while self.now_s() < end_s {
            self.advance();
        }
    }

    /// Runs until so many coflows are done; when the last was. All of their chunks are in place then.
    fn run_until_done(&mut self, count: usize, end_s: f64) -> f64 {
        let finished = |world: &Self| world.controller.as_ref().map_or(0, |controller| controller.status().finished.len());
        while finished(self) < count {
            assert!(self.now_s() < end_s, "{:?}", self.controller.as_ref().map(Controller::status));
            self.advance();
        }
        assert!(self.placed.values().all(Chunks::is_whole), "done means in place");
        assert_eq!(self.placed_twice, 0, "each chunk is put in place once");
        let status = self.controller.as_ref().unwrap().status();
        status.finished.iter().map(|one| one.done_s).fold(0.0, f64::max)
    }

    fn carried(&self, from: &str, to: &str) -> u64 {
        self.carried.get(&(from.to_owned(), to.to_owned())).copied().unwrap_or(0)
    }
}

/// Bytes of one Gbit.
const GBIT: u64 = 125_000_000;

#[test]
fn a_coflow_over_two_paths_ends_when_computed_and_nothing_is_sent_twice() {
    let mut world = World::new(diamond());
    world.submit(1, &[("a", "d", 2.0)]);
    let done_s = world.run_until_done(1, 10.0);
    assert!((1.0..1.15).contains(&done_s), "{done_s} s, and 1 s was computed");
    let carried = [("a", "b"), ("b", "d"), ("a", "c"), ("c", "d")].map(|(from, to)| world.carried(from, to));
    assert_eq!((carried[0], carried[2]), (carried[1], carried[3]), "relays pass on what they get");
    assert_eq!(carried[0] + carried[2], 2 * GBIT);
    assert!(carried[0].abs_diff(carried[2]) < GBIT / 10, "{carried:?}");
}

#[test]
fn a_link_that_dies_loses_nothing_and_is_left_soon() {
    let mut world = World::new(diamond());
    world.submit(1, &[("a", "d", 2.0)]);
    world.run_until(0.5);
    world.cut.insert(both("b", "d"), world.now_ms);
    world.run_until(0.5 + SILENT_MS as f64 / 1e3);
    let before = world.carried("a", "c");
    // From the detection on: two exchanges, for rates that fall before others rise.
    world.run_until(world.now_s() + 0.25);
    let moved_gbps = (world.carried("a", "c") - before) as f64 / GBIT as f64 / 0.25;
    assert!(moved_gbps > 0.7, "{moved_gbps} Gbit/s go over the path that is left");
    let done_s = world.run_until_done(1, 10.0);
    assert!(done_s < 1.9, "{done_s} s; about 0.5 s on two paths and 1 s on one");
    let again = world.carried("a", "b") + world.carried("a", "c") - 2 * GBIT;
    assert!(again < 2 * GBIT / 10, "{again} bytes were sent again");
}

#[test]
fn a_link_that_is_back_is_used_again() {
    let mut world = World::new(pair(1.0));
    world.submit(1, &[("a", "b", 2.0)]);
    world.run_until(0.5);
    world.cut.insert(both("a", "b"), world.now_ms);
    world.run_until(3.0);
    world.cut.clear();
    let done_s = world.run_until_done(1, 10.0);
    assert!((4.4..4.9).contains(&done_s), "{done_s} s");
}

#[test]
fn agents_and_the_controller_may_die() {
    for victim in ["a", "b", "d", ""] {
        let mut world = World::new(diamond());
        world.submit(1, &[("a", "d", 3.0), ("d", "a", 1.0)]);
        world.run_until(0.6);
        let before = world.carried("a", "b") + world.carried("a", "c");
        if victim.is_empty() {
            let saved = world.controller.take().unwrap().save();
            world.run_until(0.8);
            world.controller = Some(Controller::restore(&saved, Config::default(), world.now_s()).unwrap());
        } else {
            world.kill(victim);
            world.run_until(1.0);
            world.start(victim);
        }
        world.run_until_done(1, 20.0);
        let sent = world.carried("a", "b") + world.carried("a", "c");
        assert!(before > GBIT / 2 && sent < 3 * GBIT + GBIT / 4, "{victim:?}: {before}, {sent} bytes: only what is missing");
    }
}

#[test]
fn neighbours_that_break_the_rules_lose_their_stream_and_nothing_else() {
    let mut agent = Agent::new("b", 4, 0.0);
    let group: Group = (CoflowId(1), 0);
    let part = Part { bytes: 2 * CHUNK_BYTES, token: 0, file: None, to_file: None };
    let sites = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    for wrong in [sites(&[]), sites(&["a"]), sites(&["b", "c", "b"]), vec!["b".to_owned(); 100]] {
        assert!(agent.handle_incoming(0.0, &wrong, SLOTS).is_err(), "{wrong:?}");
    }
    let header = Header { group, chunk: 0, length: CHUNK_BYTES as u32, crc: 0, slot: 0 };
    type Wrong = fn(&mut Agent, StreamId, Header);
    let table: [(&str, Wrong); 8] = [
        ("a group that was not announced", |agent, id, header| {
            agent.handle_chunk(0.0, id, Header { group: (CoflowId(9), 0), ..header })
        }),
        ("no such slot", |agent, id, header| agent.handle_chunk(0.0, id, Header { slot: SLOTS, ..header })),
        ("no such chunk", |agent, id, header| agent.handle_chunk(0.0, id, Header { chunk: 2, ..header })),
        ("a wrong length", |agent, id, header| agent.handle_chunk(0.0, id, Header { length: 1, ..header })),
        ("too long", |agent, id, header| agent.handle_chunk(0.0, id, Header { length: u32::MAX, ..header })),
        ("a slot twice", |agent, id, header| {
            agent.handle_chunk(0.0, id, header);
            agent.handle_chunk(0.0, id, Header { chunk: 1, ..header });
        }),
        ("the way of answers", |agent, id, header| {
            agent.handle_message(0.0, id, Message::Have { group: header.group, first: 0, count: u64::MAX })
        }),
        ("a slot of nobody", |agent, id, _| agent.handle_message(0.0, id, Message::Free { slot: 0 })),
    ];
    for (name, wrong) in table {
        let id = agent.handle_incoming(0.0, &sites(&["b"]), SLOTS).unwrap();
        let other = agent.handle_incoming(0.0, &sites(&["b"]), SLOTS).unwrap();
        agent.handle_message(0.0, id, Message::Begin { group, parts: vec![part.clone()] });
        agent.recalled(id, group, Ok(Chunks::none(part.bytes).unwrap()));
        while agent.poll_action().is_some() {}
        wrong(&mut agent, id, header);
        let actions: Vec<Action> = std::iter::from_fn(|| agent.poll_action()).collect();
        assert_eq!(actions, [Action::Close(id)], "{name}");
        assert_eq!(agent.streams(), 1, "{name}");
        agent.failed(0.0, other);
        agent.poll_action();
    }
    // Orders from nowhere are left out.
    let path = |names: &[&str], rate| Task { group, parts: vec![part.clone()], paths: vec![(sites(names), rate)] };
    let tasks = vec![path(&["a", "b"], 1.0), path(&["b"], 1.0), path(&["b", "c", "b"], 1.0), path(&["b", "c"], f64::NAN)];
    agent.handle_orders(0.0, Epoch(1), tasks);
    let actions: Vec<Action> = std::iter::from_fn(|| agent.poll_action()).collect();
    assert_eq!(actions, [Action::Follows(Epoch(1))]);
}

/// Random coflows on SWAN, while links fail and come back and agents die.
#[test]
fn all_coflows_end_whatever_fails() {
    for seed in 0..4 {
        let mut random = Random::new(seed);
        let wan = Known::Swan.wan();
        let sites = wan.sites().to_vec();
        let edges: Vec<(String, String)> =
            wan.links().iter().map(|link| both(wan.name(link.from), wan.name(link.to))).collect();
        let mut world = World::new(wan);
        let mut submitted = 0;
        while world.now_s() < 3.0 {
            world.advance();
            if random.chance(0.002) {
                let mut site = || sites[random.below(5) as usize].clone();
                let pairs: Vec<(String, String)> = (0..3).map(|_| (site(), site())).filter(|(a, b)| a != b).collect();
                let flows: Vec<(&str, &str, f64)> = pairs.iter().map(|(a, b)| (a.as_str(), b.as_str(), 0.7)).collect();
                if !flows.is_empty() {
                    submitted += 1;
                    world.submit(submitted, &flows);
                }
            }
            if random.chance(0.003) {
                let edge = edges[random.below(edges.len() as u64) as usize].clone();
                world.cut.insert(edge, world.now_ms);
            }
            if random.chance(0.01) {
                world.cut.pop_first();
            }
            if random.chance(0.001) {
                let site = sites[random.below(5) as usize].clone();
                world.kill(&site);
            }
            if let Some(site) = world.dead.keys().next().cloned().filter(|_| random.chance(0.01)) {
                world.start(&site);
            }
        }
        world.cut.clear();
        let dead: Vec<String> = world.dead.keys().cloned().collect();
        dead.iter().for_each(|site| world.start(site));
        world.run_until_done(submitted as usize, 60.0);
    }
}
