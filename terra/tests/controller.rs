//! The controller in virtual time, with agents that send at the rates they were told, over messages that take their time or are
//! lost: coflows end when they should, no link ever carries more than it can, and nothing is lost when somebody dies.

mod networks;

use networks::{diamond, pair};
use std::collections::BTreeMap;
use terra::controller::{CoflowState, Config, Controller, Orders, Refused, Report, Saved};
use terra::random::Random;
use terra::topology::{self, Known};
use terra::workload::{Job, Stage, WorkloadError, coflow_id};
use terra::{Coflow, CoflowError, CoflowId, Epoch, Flow, JobId, LinkId, SiteId, Wan, WanError};

/// Between two steps of virtual time, seconds.
const STEP_S: f64 = 0.01;
/// Between two questions of an agent, in steps.
const ASK: u64 = 3;

fn stage(job: u64, index: usize, flows: &[(u32, u32, f64)], after: &[usize]) -> Stage {
    let flow = |&(src, dst, volume_gbit): &(u32, u32, f64)| Flow { src: SiteId(src), dst: SiteId(dst), volume_gbit };
    let coflow = Coflow::new(coflow_id(JobId(job), index), flows.iter().map(flow)).unwrap();
    Stage { coflow, name: format!("s{index}"), after: after.to_vec() }
}

fn job(id: u64, flows: &[(u32, u32, f64)]) -> Job {
    Job { id: JobId(id), arrival_s: 0.0, stages: vec![stage(id, 0, flows, &[])] }
}

/// An agent: what it follows, what it has sent, and the answer that is on its way to it.
#[derive(Default)]
struct Agent {
    orders: Orders,
    sent: BTreeMap<(CoflowId, usize), f64>,
    coming: Option<(u64, Orders)>,
    dead: bool,
}

/// Everything: the controller, agents of all sites, and the time.
struct World {
    controller: Controller,
    agents: BTreeMap<SiteId, Agent>,
    step: u64,
    random: Random,
    /// Most steps that an answer takes, and the part of answers that are lost.
    delay: u64,
    loss: f64,
    /// The greatest load of a link relative to its capacity, while no capacity has just fallen.
    worst: f64,
    fell: u64,
}

impl World {
    fn new(wan: Wan) -> Self {
        let sites = wan.sites().len() as u32;
        let mut world = Self {
            controller: Controller::new(wan, Config::default(), 0.0),
            agents: BTreeMap::new(),
            step: 0,
            random: Random::new(1),
            delay: 1,
            loss: 0.0,
            worst: 0.0,
            fell: 0,
        };
        (0..sites).for_each(|site| world.start(SiteId(site)));
        world
    }

    fn now_s(&self) -> f64 {
        self.step as f64 * STEP_S
    }

    /// An agent starts, without memory.
    fn start(&mut self, site: SiteId) {
        let orders = self.controller.join(self.now_s(), site).unwrap();
        self.agents.insert(site, Agent { coming: Some((self.step, orders)), ..Agent::default() });
    }

    fn advance(&mut self) {
        self.step += 1;
        let now_s = self.now_s();
        let mut loads = vec![0.0; self.controller.wan().links().len()];
        for (site, agent) in self.agents.iter_mut().filter(|(_, agent)| !agent.dead) {
            if agent.coming.as_ref().is_some_and(|(at, _)| *at <= self.step) {
                let (_, orders) = agent.coming.take().expect("seen just before");
                // Whatever is older than what it does comes too late.
                if orders.epoch >= agent.orders.epoch {
                    for group in &orders.groups {
                        let sent = agent.sent.entry((group.coflow, group.group)).or_default();
                        *sent = sent.max(group.sent_gbit);
                    }
                    agent.orders = orders;
                }
            }
            for group in &agent.orders.groups {
                let sent = agent.sent.entry((group.coflow, group.group)).or_default();
                for path in &group.paths {
                    if *sent < group.volume_gbit {
                        *sent = (*sent + path.rate_gbps * STEP_S).min(group.volume_gbit);
                        path.path.links().iter().for_each(|link| loads[link.index()] += path.rate_gbps);
                    }
                }
            }
            if self.step % ASK == u64::from(site.0) % ASK {
                let sent = agent.sent.iter().map(|(&(coflow, group), &sent)| (coflow, group, sent)).collect();
                match self.controller.exchange(now_s, *site, &Report { epoch: agent.orders.epoch, sent, ..Report::default() }) {
                    Ok(_) if self.random.chance(self.loss) => {}
                    Ok(orders) => agent.coming = Some((self.step + 1 + self.random.below(self.delay), orders)),
                    Err(Refused::NotJoined(_)) => {
                        let orders = self.controller.join(now_s, *site).unwrap();
                        agent.orders = Orders::default();
                        agent.coming = Some((self.step + 1, orders));
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        }
        self.controller.handle_timeout(now_s);
        let links = self.controller.wan().links().iter();
        let full = links.zip(&loads).map(|(link, load)| if *load > 1e-6 { load / link.capacity_gbps } else { 0.0 });
        let full = full.fold(0.0, f64::max);
        if self.step > self.fell {
            self.worst = self.worst.max(full);
        }
    }

    fn run_until(&mut self, end_s: f64) {
        while self.now_s() < end_s - 1e-9 {
            self.advance();
        }
    }

    /// Runs until so many coflows are done; when each was, by id.
    fn run_until_done(&mut self, count: usize, end_s: f64) -> BTreeMap<u64, f64> {
        while self.now_s() < end_s && self.controller.status().finished.len() < count {
            self.advance();
        }
        let finished = self.controller.status().finished;
        assert_eq!(finished.len(), count, "at {} s: {:?}", self.now_s(), self.controller.status().coflows);
        finished.iter().map(|one| (one.coflow.0, one.done_s)).collect()
    }

    fn submit(&mut self, job: Job) {
        self.controller.submit(self.now_s(), job).unwrap();
    }

    fn set_capacity(&mut self, from: &str, to: &str, gbps: f64) {
        let wan = self.controller.wan();
        let link = wan.link_between(wan.site(from).unwrap(), wan.site(to).unwrap()).unwrap();
        self.controller.set_capacity(self.now_s(), link, gbps).unwrap();
        // Until the agents have heard of it, more is sent than the link carries.
        self.fell = self.step + 2 * (ASK + self.delay) + 4;
    }
}

fn near(at_s: f64, wanted_s: f64) {
    assert!((at_s - wanted_s).abs() <= 0.25, "{at_s} s, not {wanted_s} s");
}

#[test]
fn coflows_end_when_the_schedule_says() {
    let mut world = World::new(pair(2.0));
    world.submit(job(1, &[(0, 1, 10.0)]));
    world.run_until(1.0);
    world.submit(job(2, &[(0, 1, 2.0)]));
    // 1 alone for a second, then 2 for a second, then the rest of 1.
    let done = world.run_until_done(2, 20.0);
    near(done[&2000], 2.0);
    near(done[&1000], 6.0);
    assert!(world.worst <= 1.0 + 1e-5, "{}", world.worst);
    assert_eq!(world.controller.status().coflows, []);
}

#[test]
fn stages_wait_for_one_another() {
    let mut world = World::new(pair(1.0));
    let stages = vec![stage(7, 0, &[(0, 1, 2.0)], &[]), stage(7, 1, &[(0, 0, 1.0)], &[0]), stage(7, 2, &[(1, 0, 3.0)], &[1])];
    world.submit(Job { id: JobId(7), arrival_s: 0.0, stages });
    assert_eq!(world.controller.status().coflows[2].state, CoflowState::Waiting);
    let done = world.run_until_done(3, 20.0);
    near(done[&7000], 2.0);
    assert_eq!(done[&7001], done[&7000], "a local one takes no time");
    near(done[&7002], 5.1);
    assert_eq!(world.controller.free_job_id(), JobId(8));
}

#[test]
fn rates_fall_before_others_rise() {
    let mut world = World::new(pair(1.0));
    let mut wan = world.controller.wan().clone();
    let c = wan.add_site("c").unwrap();
    wan.add_edge(c, SiteId(0), 1.0).unwrap();
    world.controller.set_network(0.0, &wan).unwrap();
    world.start(c);
    // c sends over a to b; then a has something shorter.
    world.submit(job(1, &[(2, 1, 20.0)]));
    world.run_until(0.5);
    assert!(world.controller.settled());
    world.submit(job(2, &[(0, 1, 2.0)]));
    let orders = |world: &mut World, site: u32, epoch: Epoch| {
        let now_s = world.now_s();
        world.controller.exchange(now_s, SiteId(site), &Report { epoch, ..Report::default() }).unwrap()
    };
    let before = [0, 2].map(|site| world.agents[&SiteId(site)].orders.clone());
    let a = orders(&mut world, 0, before[0].epoch);
    assert_eq!(a, before[0], "a may not send as long as c may");
    let c = orders(&mut world, 2, before[1].epoch);
    assert!(c.epoch > before[1].epoch && c.groups.is_empty(), "{c:?}");
    assert!(orders(&mut world, 0, before[0].epoch).groups.is_empty(), "c has not said that it stopped");
    orders(&mut world, 2, c.epoch);
    let a = orders(&mut world, 0, before[0].epoch);
    assert!((a.groups[0].paths[0].rate_gbps - 1.0).abs() < 1e-6, "{a:?}");
}

#[test]
fn an_agent_that_is_back_goes_on_with_what_is_left() {
    let mut world = World::new(pair(1.0));
    world.submit(job(1, &[(0, 1, 10.0)]));
    world.submit(job(2, &[(1, 0, 4.0)]));
    world.run_until(2.0);
    world.agents.get_mut(&SiteId(0)).unwrap().dead = true;
    world.run_until(4.9);
    assert_eq!(world.controller.status().coflows[0].state, CoflowState::Running, "its lease lasts");
    world.run_until(5.2);
    let status = world.controller.status();
    assert_eq!(status.coflows[0].state, CoflowState::Paused("a".into()));
    assert!((status.coflows[0].left_gbit - 8.0).abs() < 0.1, "{status:?}");
    world.run_until(10.0);
    world.start(SiteId(0));
    let done = world.run_until_done(2, 30.0);
    near(done[&2000], 4.0);
    near(done[&1000], 18.0);
}

#[test]
fn an_agent_that_leaves_is_paused_at_once() {
    let mut world = World::new(pair(1.0));
    world.submit(job(1, &[(0, 1, 10.0)]));
    world.run_until(1.0);
    world.controller.leave(1.0, SiteId(0)).unwrap();
    assert_eq!(world.controller.status().coflows[0].state, CoflowState::Paused("a".into()));
    assert_eq!(world.controller.most_gbps(), [0.0, 0.0]);
}

#[test]
fn what_an_agent_cannot_send_is_in_nobodys_way() {
    let mut controller = Controller::new(pair(1.0), Config::default(), 0.0);
    controller.submit(0.0, job(1, &[(0, 1, 1.0)])).unwrap();
    controller.submit(0.0, job(2, &[(0, 1, 2.0)])).unwrap();
    controller.join(0.0, SiteId(1)).unwrap();
    let orders = controller.join(0.0, SiteId(0)).unwrap();
    let coflows = |orders: &Orders| orders.groups.iter().map(|group| group.coflow).collect::<Vec<_>>();
    let [first, second] = [1, 2].map(|job| coflow_id(JobId(job), 0));
    assert_eq!(coflows(&orders), [first]);
    let stuck = |epoch| Report { epoch, stuck: [first].into(), ..Report::default() };
    // Another site has no say in it.
    controller.exchange(0.1, SiteId(1), &stuck(Epoch(0))).unwrap();
    let mut orders = controller.exchange(0.1, SiteId(0), &stuck(orders.epoch)).unwrap();
    for _ in 0..2 {
        let report = Report { epoch: orders.epoch, ..Report::default() };
        orders = controller.exchange(0.2, SiteId(0), &report).unwrap();
    }
    assert_eq!(coflows(&orders), [second], "it is still stuck when its agent has forgotten it");
    assert_eq!(controller.status().coflows[0].state, CoflowState::Stuck("a".to_owned()));
    let mut orders = controller.join(0.3, SiteId(0)).unwrap();
    for _ in 0..2 {
        let report = Report { epoch: orders.epoch, ..Report::default() };
        orders = controller.exchange(0.4, SiteId(0), &report).unwrap();
    }
    assert_eq!(coflows(&orders), [first]);
}

#[test]
fn a_link_that_is_killed_is_left_at_once() {
    let mut world = World::new(diamond());
    world.submit(job(1, &[(0, 3, 10.0)]));
    world.run_until(2.0);
    world.set_capacity("a", "b", 0.0);
    world.run_until(2.2);
    let (wan, most) = (world.controller.wan(), world.controller.most_gbps());
    let rate = |from: u32, to: u32| most[wan.link_between(SiteId(from), SiteId(to)).unwrap().index()];
    assert_eq!((rate(0, 1), rate(1, 3)), (0.0, 0.0));
    assert!((rate(0, 2) - 1.0).abs() < 1e-6);
    // What was sent towards the dead link counts as sent here; a real agent takes it back. 2 s at 2 Gbit/s, 6 s at 1 Gbit/s.
    near(world.run_until_done(1, 30.0)[&1000], 8.0);
    assert!(world.worst <= 1.0 + 1e-5, "{}", world.worst);
}

#[test]
fn a_link_whose_ends_do_not_hear_each_other_carries_nothing_until_they_do() {
    let mut controller = Controller::new(diamond(), Config::default(), 0.0);
    let [a, b] = [0, 1].map(SiteId);
    for site in [a, b] {
        controller.join(0.0, site).unwrap();
    }
    let capacities = |controller: &Controller| controller.wan().capacities();
    let (whole, saved) = (capacities(&controller), controller.save());
    let say = |controller: &mut Controller, site: SiteId, silent: &[SiteId]| {
        let report = Report { silent: silent.iter().copied().collect(), ..Report::default() };
        controller.exchange(0.1, site, &report).map(drop)
    };
    say(&mut controller, a, &[b]).unwrap();
    let cut = capacities(&controller);
    assert_eq!(cut.iter().filter(|gbps| **gbps == 0.0).count(), 2, "both directions: {cut:?}");
    say(&mut controller, b, &[a]).unwrap();
    say(&mut controller, a, &[]).unwrap();
    assert_eq!(capacities(&controller), cut, "the other end says so still");
    let link = controller.wan().link_between(a, b).unwrap();
    controller.set_capacity(0.1, link, 3.0).unwrap();
    assert_eq!(capacities(&controller), cut);
    controller.set_capacity(0.1, link, 1.0).unwrap();
    assert!(matches!(say(&mut controller, a, &[SiteId(9)]), Err(Refused::Wan(_))));
    let after = serde_json::to_value(controller.save()).unwrap();
    assert_eq!(after["links"], serde_json::to_value(saved).unwrap()["links"], "a restart begins with what links should carry");
    // Whoever is gone says nothing.
    controller.leave(0.2, b).unwrap();
    assert_eq!(capacities(&controller), whole);
}

#[test]
fn capacity_changes_are_followed() {
    for gbps in [0.5, 1.1, 2.0] {
        let mut world = World::new(pair(1.0));
        world.submit(job(1, &[(0, 1, 10.0)]));
        world.run_until(1.0);
        world.set_capacity("a", "b", gbps);
        near(world.run_until_done(1, 40.0)[&1000], 1.0 + 9.0 / gbps);
        assert!(world.worst <= 1.0 + 1e-5, "{}", world.worst);
    }
}

#[test]
fn a_controller_that_restarts_loses_nothing() {
    let mut world = World::new(pair(1.0));
    let stages = vec![stage(1, 0, &[(0, 1, 4.0)], &[]), stage(1, 1, &[(1, 0, 2.0)], &[0])];
    world.submit(Job { id: JobId(1), arrival_s: 0.0, stages });
    let promised = job(2, &[(0, 1, 2.0)]);
    let coflow = promised.stages[0].coflow.clone().with_deadline(8.0).unwrap();
    world.submit(Job { stages: vec![Stage { coflow, ..promised.stages[0].clone() }], ..promised });
    world.run_until(1.0);
    let before = world.controller.status();
    let saved = world.controller.save();
    let again = Controller::restore(&saved, Config::default(), 1.2).unwrap();
    let but_time = |saved: &Saved| {
        let mut value = serde_json::to_value(saved).unwrap();
        value["now_s"].take();
        value
    };
    assert_eq!(but_time(&again.save()), but_time(&saved));
    let after = again.status();
    assert_eq!(after.coflows[0].state, CoflowState::Paused("a".into()));
    let left = |status: &terra::controller::Status| status.coflows.iter().map(|one| one.left_gbit).collect::<Vec<_>>();
    assert_eq!(left(&after), left(&before));
    assert_eq!((after.epoch, again.free_job_id()), (before.epoch, JobId(3)));
    world.controller = again;
    // Agents join again when they are told to.
    let done = world.run_until_done(3, 30.0);
    // 6 Gbit from a to b.
    near(done[&1000].max(done[&2000]), 6.0);
    near(done[&1001], done[&1000] + 2.0);
    assert!(done[&2000] <= 8.0, "{done:?}");
    assert!(world.worst <= 1.0 + 1e-5, "{}", world.worst);
}

#[test]
fn what_is_bad_is_refused_and_changes_nothing() {
    let mut controller = Controller::new(diamond(), Config::default(), 0.0);
    let a = SiteId(0);
    controller.join(0.0, a).unwrap();
    controller.submit(0.0, job(1, &[(0, 3, 10.0)])).unwrap();
    let orders = controller.exchange(0.1, a, &Report::default()).unwrap();
    assert!(orders.epoch > Epoch(0) && orders.groups.len() == 1, "{orders:?}");
    let report = |epoch: u64, sent: &[(u64, usize, f64)]| Report {
        epoch: Epoch(epoch),
        sent: sent.iter().map(|&(coflow, group, sent)| (CoflowId(coflow), group, sent)).collect(),
        ..Report::default()
    };
    let now = orders.epoch.0;
    controller.exchange(0.2, a, &report(now, &[])).unwrap();
    let circle = Job { id: JobId(2), arrival_s: 0.0, stages: vec![stage(2, 0, &[(0, 1, 1.0)], &[1]), stage(2, 1, &[], &[0])] };
    let taken = Job { id: JobId(2), ..job(1, &[(0, 1, 1.0)]) };
    let (saved, status) = (controller.save(), controller.status());
    type Wrong = fn(&Refused) -> bool;
    let submit = |job: Job| move |controller: &mut Controller| controller.submit(0.2, job.clone());
    let exchange = |site: u32, report: Report| {
        move |controller: &mut Controller| controller.exchange(0.2, SiteId(site), &report).map(drop)
    };
    let capacity = |link: u32, gbps: f64| move |controller: &mut Controller| controller.set_capacity(0.2, LinkId(link), gbps);
    type Try = Box<dyn Fn(&mut Controller) -> Result<(), Refused>>;
    let table: Vec<(&str, Try, Wrong)> = vec![
        ("duplicate job", Box::new(submit(job(1, &[(0, 1, 1.0)]))), |e| *e == WorkloadError::DuplicateJob(JobId(1)).into()),
        ("duplicate coflow", Box::new(submit(taken)), |e| *e == CoflowError::Duplicate(CoflowId(1000)).into()),
        ("unknown site", Box::new(submit(job(3, &[(0, 9, 1.0)]))), |e| {
            *e == CoflowError::UnknownSite(CoflowId(3000), SiteId(9)).into()
        }),
        ("circle", Box::new(submit(circle)), |e| matches!(e, Refused::Job(WorkloadError::Cycle(..)))),
        ("unknown link", Box::new(capacity(99, 1.0)), |e| matches!(e, Refused::Wan(WanError::UnknownLink(..)))),
        ("capacity", Box::new(capacity(0, f64::NAN)), |e| matches!(e, Refused::Wan(WanError::Capacity(_)))),
        ("negative capacity", Box::new(capacity(0, -1.0)), |e| matches!(e, Refused::Wan(WanError::Capacity(_)))),
        ("unknown job", Box::new(|c| c.cancel(0.2, JobId(7))), |e| *e == Refused::UnknownJob(JobId(7))),
        ("stale epoch", Box::new(exchange(0, report(now - 1, &[]))), |e| matches!(e, Refused::StaleEpoch { .. })),
        ("epoch to come", Box::new(exchange(0, report(now + 1, &[]))), |e| matches!(e, Refused::StaleEpoch { .. })),
        ("not joined", Box::new(exchange(1, report(0, &[]))), |e| *e == Refused::NotJoined("b".into())),
        ("no such site", Box::new(exchange(9, report(0, &[]))), |e| matches!(e, Refused::Wan(WanError::UnknownSite(_)))),
        ("no such group", Box::new(exchange(0, report(now, &[(1000, 5, 1.0)]))), |e| matches!(e, Refused::Report { .. })),
        ("no number", Box::new(exchange(0, report(now, &[(1000, 0, f64::NAN)]))), |e| matches!(e, Refused::Report { .. })),
        ("negative", Box::new(exchange(0, report(now, &[(1000, 0, 1.0), (1000, 0, -1.0)]))), |e| {
            matches!(e, Refused::Report { .. })
        }),
        ("join nowhere", Box::new(|c| c.join(0.2, SiteId(9)).map(drop)), |e| matches!(e, Refused::Wan(_))),
    ];
    for (name, attempt, wrong) in table {
        let error = attempt(&mut controller).expect_err(name);
        assert!(wrong(&error), "{name}: {error}");
        assert!(!error.to_string().is_empty());
        assert_eq!((controller.save(), controller.status()), (saved.clone(), status.clone()), "{name} changed something");
    }
    // What has ended or was cancelled may still be reported.
    controller.exchange(0.3, a, &report(now, &[(5000, 0, 1.0)])).unwrap();
    controller.cancel(0.3, JobId(1)).unwrap();
    assert_eq!(controller.status().coflows, []);
}

#[test]
fn saved_state_is_checked() {
    let mut controller = Controller::new(diamond(), Config::default(), 0.0);
    controller.submit(5.0, job(1, &[(0, 3, 10.0)])).unwrap();
    let good = serde_json::to_value(controller.save()).unwrap();
    let restore = |value: &serde_json::Value| {
        let saved = serde_json::from_value::<Saved>(value.clone()).map_err(|error| error.to_string())?;
        Controller::restore(&saved, Config::default(), 9.0).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(restore(&good), Ok(()));
    for (pointer, value, part) in [
        ("/format", 9.into(), "format is 9"),
        ("/now_s", (-1.0).into(), "time"),
        ("/links/0/gbps", (-1.0).into(), "Capacity"),
        ("/links/0/to", "z".into(), "Unknown site"),
        ("/jobs/0/stages/0/after", serde_json::json!([0]), "waits for itself"),
        ("/jobs/0/stages/0/weight", 0.0.into(), "weight"),
        ("/jobs/0/stages/0/done", true.into(), "done and held"),
        ("/jobs/0/stages/0/arrived_s", 99.0.into(), "released at 99"),
        ("/jobs/0/stages/0/groups/0/left_gbit", 11.0.into(), "left"),
        ("/jobs/0/stages/0/groups/0/left_gbit", 0.0.into(), "left"),
        ("/jobs/0/stages/0/groups/0/volume_gbit", 0.0.into(), "volume 0"),
        ("/jobs/0/stages/0/groups/0/to", "a".into(), "one per pair"),
        ("/jobs/0/id", "x".into(), "invalid type"),
    ] {
        let mut bad = good.clone();
        *bad.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer}")) = value;
        let error = restore(&bad).expect_err(pointer);
        assert!(error.contains(part), "{pointer}: {error}");
    }
}

/// Small random worlds in which answers are late or lost, agents die and come back, and capacities change.
#[test]
fn no_link_is_ever_overloaded_and_all_coflows_end() {
    for seed in 0..12 {
        let mut random = Random::new(seed);
        let network = if seed % 3 == 0 { Known::Swan.wan() } else { topology::random(6, 9, seed) };
        let sites = network.sites().len() as u64;
        let mut world = World::new(network);
        (world.random, world.delay, world.loss) = (Random::new(seed), 1 + random.below(20), 0.3 * random.unit());
        let mut submitted = 0;
        while world.now_s() < 20.0 {
            world.advance();
            if random.chance(0.01) {
                let mut site = || random.below(sites) as u32;
                let flows: Vec<(u32, u32, f64)> = (0..3).map(|_| (site(), site(), 2.0)).filter(|(a, b, _)| a != b).collect();
                if !flows.is_empty() {
                    submitted += 1;
                    world.submit(job(submitted, &flows));
                }
            }
            if random.chance(0.002) {
                let site = SiteId(random.below(sites) as u32);
                world.agents.get_mut(&site).unwrap().dead = true;
            }
            let dead: Vec<SiteId> = world.agents.iter().filter(|(_, agent)| agent.dead).map(|(site, _)| *site).collect();
            for site in dead.into_iter().filter(|_| random.chance(0.005)) {
                world.start(site);
            }
        }
        let dead: Vec<SiteId> = world.agents.iter().filter(|(_, agent)| agent.dead).map(|(site, _)| *site).collect();
        dead.into_iter().for_each(|site| world.start(site));
        world.run_until_done(submitted as usize, 2_000.0);
        assert!(world.worst <= 1.0 + 1e-5, "seed {seed}: {}", world.worst);
    }
}
