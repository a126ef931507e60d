//! The agent's talk with the controller, and its probes of neighbours, each on a thread of its own.
//!
//! The controller is asked many times a second. When it does not answer, the agent stops sending before the controller counts it as
//! lost; when it does not know the agent any more, the agent stops and joins again.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hyper::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use terra::Epoch;
use terra::agent::{Group, Sent, Task};

use super::Input;
use crate::api::{ApiError, Client};
use crate::wan::controller::{AgentOrders, MAX_REFUSED};

/// Between two questions to the controller, and how long an answer may take.
const ASK: Duration = Duration::from_millis(25);
const ANSWER: Duration = Duration::from_millis(500);
/// The agent stops when a question of so long ago was the last that was answered: with another one that is not, that is before its
/// lease of 3 s is over.
const ALONE: Duration = Duration::from_secs(2);
/// How long the orders of one answer may take to be followed before the next question.
const FOLLOW: Duration = Duration::from_secs(1);
/// Between two probes of a neighbour.
const PROBE: Duration = Duration::from_millis(20);
/// What probes and their answers begin with.
const ASKS: &[u8; 8] = b"vrdmaws?";
const ANSWERS: &[u8; 8] = b"vrdmaws!";

/// What the threads of an agent know together.
#[derive(Default)]
pub struct Common {
    /// The orders that are followed, and what is in place.
    pub epoch: Epoch,
    pub sent: Sent,
    /// Groups that cannot be sent, and why.
    pub refused: Vec<(Group, String)>,
    /// Where agents are reached, and which sites are neighbours.
    pub agents: BTreeMap<String, SocketAddr>,
    pub neighbours: BTreeSet<String>,
    /// Neighbours that do not answer.
    pub silent: BTreeSet<String>,
}

/// [`Common`], of all threads.
pub type Shared = Arc<Mutex<Common>>;

/// What is known now.
pub fn lock(shared: &Shared) -> MutexGuard<'_, Common> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Joins the controller and asks it again and again.
pub fn talk(socket: PathBuf, site: &str, address: SocketAddr, shared: &Shared, inputs: &Sender<Input>) -> Result<()> {
    let client = Client::at(socket, "vrdma wan controller --topology NAME")?.within(ANSWER);
    let path = format!("/v1/agents/{}", utf8_percent_encode(site, NON_ALPHANUMERIC));
    let (mut joined, mut heard) = (false, Instant::now());
    let mut warned = false;
    loop {
        let asked = Instant::now();
        let answer = if joined {
            let body = report(&lock(shared));
            client.call(Method::PUT, &path, Some(serde_json::to_vec(&body)?))
        } else {
            client.call(Method::POST, &path, Some(serde_json::to_vec(&json!({ "address": address }))?))
        };
        match answer {
            Ok(answer) => {
                (joined, heard, warned) = (true, asked, false);
                // What waits for these orders to be followed need not wait longer.
                if follow(answer, shared, inputs)? {
                    continue;
                }
            }
            // It has not heard of us, or for too long.
            Err(ApiError::Refused { status: 409, .. }) if joined => {
                tracing::info!("the controller does not know this agent any more: it stops, and joins again");
                joined = false;
                stop(shared, inputs);
                continue;
            }
            Err(error) => {
                if !warned {
                    tracing::warn!("{error}");
                    warned = true;
                }
                if heard.elapsed() > ALONE && joined {
                    joined = false;
                    stop(shared, inputs);
                }
            }
        }
        sleep(ASK);
    }
}

/// Nothing is sent any more when this returns.
fn stop(shared: &Shared, inputs: &Sender<Input>) {
    while inputs.send(Input::Stop).is_ok() {
        let sent = Instant::now();
        while sent.elapsed() < FOLLOW {
            if lock(shared).epoch == Epoch::default() {
                return;
            }
            sleep(Duration::from_millis(1));
        }
    }
}

fn report(common: &Common) -> Value {
    let sent: Vec<Value> = common
        .sent
        .iter()
        .map(|((coflow, group), bytes)| json!({ "coflow": coflow, "group": group, "bytes": bytes }))
        .collect();
    let refused: Vec<Value> = common
        .refused
        .iter()
        .take(MAX_REFUSED)
        .map(|((coflow, group), reason)| json!({ "coflow": coflow, "group": group, "reason": reason }))
        .collect();
    json!({ "epoch": common.epoch, "sent": sent, "silent": common.silent, "refused": refused })
}

/// Passes orders on, if they are new, and waits until they are followed.
fn follow(answer: Value, shared: &Shared, inputs: &Sender<Input>) -> Result<bool> {
    let orders: AgentOrders = serde_json::from_value(answer).context("the controller gave orders of an unknown kind")?;
    let epoch = orders.epoch;
    {
        let mut common = lock(shared);
        // Those that have not joined yet a controller that has just started are where they were.
        common.agents.extend(orders.agents);
        common.neighbours = orders.neighbours;
    }
    let Some(groups) = orders.groups else { return Ok(false) };
    let tasks = groups.into_iter().map(|group| Task {
        group: (group.coflow, group.group),
        parts: group.parts,
        paths: group.paths.into_iter().map(|lane| (lane.sites, lane.gbps)).collect(),
    });
    let _ = inputs.send(Input::Orders(epoch, tasks.collect()));
    let sent = Instant::now();
    while lock(shared).epoch != epoch && sent.elapsed() < FOLLOW {
        sleep(Duration::from_millis(1));
    }
    Ok(true)
}

/// Probes the neighbours and answers their probes. A neighbour whose agent has never joined is silent too.
pub fn probe(socket: &UdpSocket, shared: &Shared, limit: Duration) -> Result<()> {
    socket.set_read_timeout(Some(Duration::from_millis(5)))?;
    let mut heard: BTreeMap<String, Instant> = BTreeMap::new();
    let mut asked: Option<Instant> = None;
    loop {
        let now = Instant::now();
        if asked.is_none_or(|at| now - at >= PROBE) {
            asked = Some(now);
            let mut common = lock(shared);
            let Common { agents, neighbours, silent, .. } = &mut *common;
            let known = |name: &&String| agents.contains_key(*name);
            for name in neighbours.iter().filter(known) {
                heard.entry(name.clone()).or_insert(now);
                // A send that fails is a probe that is not answered.
                let _ = socket.send_to(ASKS, agents[name]);
            }
            let answers = |name: &String| agents.contains_key(name) && heard.get(name).is_some_and(|at| now - *at < limit);
            let found: BTreeSet<String> = neighbours.iter().filter(|name| !answers(name)).cloned().collect();
            found.difference(silent).for_each(|name| tracing::info!("{name} does not answer"));
            silent.difference(&found).for_each(|name| tracing::info!("{name} answers"));
            *silent = found;
        }
        let mut packet = [0; 16];
        let Ok((8, from)) = socket.recv_from(&mut packet) else { continue };
        let common = lock(shared);
        let name = common.agents.iter().find(|(_, address)| **address == from).map(|(name, _)| name.clone());
        drop(common);
        let Some(name) = name else { continue };
        if packet.starts_with(ANSWERS) {
            heard.insert(name, Instant::now());
        } else if packet.starts_with(ASKS) {
            let _ = socket.send_to(ANSWERS, from);
        }
    }
}
