//! `vrdma wan controller`: the scheduler behind HTTP/JSON on a Unix socket, with its state in a file.
//!
//! Owns: paths, status codes, the clock, and when the file is written. What is decided is the business of `terra::controller`.
//! Whoever may open the socket may do everything. The file is replaced whole, and before an answer that depends on it is given; what
//! agents have sent is written once a second.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path as Segment, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use serde::{Deserialize, Serialize};
use terra::agent::{Group, Part};
use terra::controller::{Config, Controller, Orders, Refused, Report, Saved, Status};
use terra::read::links;
use terra::workload::WorkloadError;
use terra::{CoflowError, CoflowId, Epoch, JobId, SiteId, WanError};
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};

use super::job::JobSpec;
use super::{both_ways, network};
use crate::args::WanControllerOptions;
use crate::input::read;
use crate::place::Place;

/// File of the state in the daemon's directory.
const STATE_FILE: &str = "wan.json";
/// Longest state that is read, and longest body of a request, in bytes.
const MAX_STATE: u64 = 256 << 20;
const MAX_BODY: usize = 16 << 20;
/// How long what agents have sent may go unsaved.
const SAVE_PERIOD: Duration = Duration::from_secs(1);
/// FlowGroups that an agent may say it cannot send, and length of a reason, in bytes.
pub const MAX_REFUSED: usize = 1_000;
const MAX_REASON: usize = 10_000;
/// Gbit of one byte.
const GBIT_PER_BYTE: f64 = 8e-9;

/// The controller and its file.
struct Live {
    controller: Controller,
    file: PathBuf,
    /// What the FlowGroups consist of.
    parts: BTreeMap<Group, Vec<Part>>,
    /// Where the agents that have joined are reached. Those that joined an earlier controller join again.
    addresses: BTreeMap<SiteId, SocketAddr>,
    /// What agents cannot send.
    refused: BTreeMap<SiteId, Vec<RefusedGroup>>,
}

/// A FlowGroup that cannot be sent as long as its agent does not start again.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RefusedGroup {
    /// The coflow.
    pub coflow: CoflowId,
    /// Which of its groups.
    pub group: usize,
    /// Why, from the source or the destination.
    pub reason: String,
}

/// What is shown.
#[derive(Debug, Deserialize, Serialize)]
pub struct LiveStatus {
    /// Of the schedule.
    #[serde(flatten)]
    pub schedule: Status,
    /// What agents cannot send.
    pub refused: Vec<RefusedGroup>,
}

/// What the file holds.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    controller: Saved,
    parts: Vec<(Group, Vec<Part>)>,
}

type Shared = Arc<Mutex<Live>>;

/// Serves until SIGINT or SIGTERM.
pub fn carry_out(place: &Place, options: &WanControllerOptions) -> Result<()> {
    fs::create_dir_all(place.dir()).with_context(|| format!("cannot make {}", place.dir().display()))?;
    let file = options.state.clone().unwrap_or_else(|| place.dir().join(STATE_FILE));
    let (controller, parts) = start(&file, options.topology.as_deref())?;
    let live = Live { controller, file, parts, addresses: BTreeMap::new(), refused: BTreeMap::new() };
    live.save()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start a runtime")?;
    runtime.block_on(serve(place.wan_socket()?, Arc::new(Mutex::new(live))))
}

/// From the file if it is there, else from the network that was named.
fn start(file: &Path, topology: Option<&str>) -> Result<(Controller, BTreeMap<Group, Vec<Part>>)> {
    let named = topology.map(network).transpose()?;
    match fs::symlink_metadata(file) {
        Ok(_) => {
            let text = read(file, MAX_STATE)?;
            let stored: Stored =
                serde_json::from_str(&text).with_context(|| format!("{} is not a controller's state", file.display()))?;
            let restored = Controller::restore(&stored.controller, Config::default(), now_s());
            let mut controller = restored.with_context(|| file.display().to_string())?;
            if let Some(network) = named {
                controller.set_network(now_s(), &network)?;
            }
            Ok((controller, stored.parts.into_iter().collect()))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => match named {
            Some(network) => Ok((Controller::new(network, Config::default(), now_s()), BTreeMap::new())),
            None => bail!("there is no state in {} yet: name the network with --topology", file.display()),
        },
        Err(error) => Err(error).with_context(|| format!("cannot read {}", file.display())),
    }
}

async fn serve(socket: PathBuf, live: Shared) -> Result<()> {
    let name = socket.display().to_string();
    if std::os::unix::net::UnixStream::connect(&socket).is_ok() {
        bail!("a controller serves {name} already");
    }
    // What a controller that was killed left behind.
    let _ = fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket).with_context(|| format!("cannot listen on {name}"))?;
    eprintln!("vrdma: the controller serves at {name}; submit coflows with `vrdma wan submit FILE`");
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let served = axum::serve(listener, router(live.clone()));
    let ended = tokio::select! {
        ended = served => ended.context("the controller's API has ended"),
        never = pass_time(&live) => never,
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
    };
    let _ = fs::remove_file(&socket);
    lock(&live).save()?;
    ended
}

fn router(live: Shared) -> Router {
    Router::new()
        .route("/v1/status", get(status))
        .route("/v1/jobs", post(submit))
        .route("/v1/jobs/{job}", delete(cancel))
        .route("/v1/network", axum::routing::put(set_network))
        .route("/v1/links", axum::routing::patch(set_link))
        .route("/v1/agents/{site}", post(join).put(exchange).delete(leave))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(live)
}

/// Tells the controller the time when it asks for it, and saves what is only saved now and then.
async fn pass_time(live: &Shared) -> Result<()> {
    loop {
        let wake_s = lock(live).controller.poll_timeout().map_or(f64::INFINITY, |at_s| at_s - now_s());
        let wait = Duration::try_from_secs_f64(wake_s.max(0.001)).map_or(SAVE_PERIOD, |wait| wait.min(SAVE_PERIOD));
        tokio::time::sleep(wait).await;
        let mut live = lock(live);
        live.controller.handle_timeout(now_s());
        live.save()?;
    }
}

fn lock(live: &Shared) -> MutexGuard<'_, Live> {
    live.lock().expect("nobody panics while holding the lock")
}

/// Seconds since 1970, so that times mean the same after a restart.
fn now_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

impl Live {
    /// Replaces the file by the state of now.
    fn save(&self) -> Result<()> {
        let written = || -> Result<()> {
            let folder = self.file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let mut new = tempfile::NamedTempFile::new_in(folder)?;
            let parts = self.parts.iter().map(|(group, parts)| (*group, parts.clone())).collect();
            serde_json::to_writer(&mut new, &Stored { controller: self.controller.save(), parts })?;
            new.flush()?;
            new.as_file().sync_all()?;
            new.persist(&self.file)?;
            Ok(())
        };
        written().with_context(|| format!("cannot save the state in {}", self.file.display()))
    }
}

/// An error as answered.
struct Failed(StatusCode, String);

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        json(self.0, &BTreeMap::from([("error", self.1)]))
    }
}

impl From<Refused> for Failed {
    fn from(refused: Refused) -> Self {
        let status = match &refused {
            Refused::UnknownJob(_) | Refused::Wan(WanError::UnknownSite(_)) => StatusCode::NOT_FOUND,
            Refused::Job(WorkloadError::DuplicateJob(_) | WorkloadError::Coflow(CoflowError::Duplicate(_)))
            | Refused::NotJoined(_)
            | Refused::StaleEpoch { .. } => StatusCode::CONFLICT,
            Refused::TooManyJobs => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::BAD_REQUEST,
        };
        Failed(status, refused.to_string())
    }
}

impl From<anyhow::Error> for Failed {
    fn from(error: anyhow::Error) -> Self {
        Failed(StatusCode::BAD_REQUEST, crate::output::sentence(&error))
    }
}

fn json(status: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(bytes) => (status, [(header::CONTENT_TYPE, "application/json")], bytes).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

fn parsed<'a, T: Deserialize<'a>>(body: &'a Bytes) -> Result<T, Failed> {
    serde_json::from_slice(body).map_err(|error| Failed(StatusCode::BAD_REQUEST, format!("the body is wrong: {error}")))
}

/// Saves, and answers.
fn saved(live: &Live, status: StatusCode, value: &impl Serialize) -> Result<Response, Failed> {
    live.save().map_err(|error| Failed(StatusCode::INTERNAL_SERVER_ERROR, crate::output::sentence(&error)))?;
    Ok(json(status, value))
}

async fn status(State(live): State<Shared>) -> Response {
    let live = lock(&live);
    let schedule = live.controller.status();
    // Of a job that has ended, nobody wants to know.
    let is_open = |one: &&RefusedGroup| schedule.coflows.iter().any(|open| open.coflow == one.coflow);
    let refused = live.refused.values().flatten().filter(is_open).cloned().collect();
    json(StatusCode::OK, &LiveStatus { schedule, refused })
}

#[derive(Serialize)]
struct Submitted {
    job: JobId,
    coflows: Vec<CoflowId>,
}

async fn submit(State(live): State<Shared>, body: Bytes) -> Result<Response, Failed> {
    let spec: JobSpec = parsed(&body)?;
    let mut live = lock(&live);
    let job = spec.job(live.controller.wan(), live.controller.free_job_id())?;
    let open: BTreeSet<CoflowId> = live.controller.status().coflows.iter().map(|one| one.coflow).collect();
    let token = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    let parts = spec.parts(live.controller.wan(), &job, token);
    let submitted = Submitted { job: job.id, coflows: job.stages.iter().map(|stage| stage.coflow.id).collect() };
    live.controller.submit(now_s(), job)?;
    live.parts.retain(|group, _| open.contains(&group.0));
    live.parts.extend(parts);
    saved(&live, StatusCode::CREATED, &submitted)
}

async fn cancel(State(live): State<Shared>, Segment(job): Segment<u64>) -> Result<Response, Failed> {
    let mut live = lock(&live);
    live.controller.cancel(now_s(), JobId(job))?;
    saved(&live, StatusCode::OK, &BTreeMap::from([("job", job)]))
}

/// The body is a list of links, as topology files have it.
async fn set_network(State(live): State<Shared>, body: String) -> Result<Response, Failed> {
    let network = links::parse(&body).map_err(|error| Failed(StatusCode::BAD_REQUEST, error.to_string()))?;
    let mut live = lock(&live);
    live.controller.set_network(now_s(), &network)?;
    saved(&live, StatusCode::OK, &BTreeMap::from([("sites", live.controller.wan().sites())]))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkChange {
    from: String,
    to: String,
    gbps: f64,
}

/// Both directions; 0 for a link that has failed.
async fn set_link(State(live): State<Shared>, body: Bytes) -> Result<Response, Failed> {
    let change: LinkChange = parsed(&body)?;
    let mut live = lock(&live);
    let links = both_ways(live.controller.wan(), &change.from, &change.to).map_err(Refused::from)?;
    for link in &links {
        live.controller.set_capacity(now_s(), *link, change.gbps)?;
    }
    saved(&live, StatusCode::OK, &BTreeMap::from([("links", links.len())]))
}

/// What an agent says.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AgentReport {
    epoch: u64,
    #[serde(default)]
    sent: Vec<Sent>,
    /// Neighbours from which nothing comes back.
    #[serde(default)]
    silent: Vec<String>,
    #[serde(default)]
    refused: Vec<RefusedGroup>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Sent {
    coflow: u64,
    group: usize,
    /// In all, since the coflow began.
    bytes: f64,
}

/// What an agent says of itself when it joins.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct AgentJoins {
    /// Where other agents reach it.
    address: Option<SocketAddr>,
}

/// What an agent is told.
#[derive(Deserialize, Serialize)]
pub struct AgentOrders {
    /// Which orders these are.
    pub epoch: Epoch,
    /// What to send, and nothing else; absent if that is what the agent does already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub groups: Option<Vec<GroupOrders>>,
    /// The agents that have joined, and where they are reached.
    pub agents: BTreeMap<String, SocketAddr>,
    /// Sites that a link leads to.
    pub neighbours: BTreeSet<String>,
}

/// What to send of one FlowGroup.
#[derive(Deserialize, Serialize)]
pub struct GroupOrders {
    /// The coflow.
    pub coflow: CoflowId,
    /// Which of its groups.
    pub group: usize,
    /// The destination.
    pub to: String,
    /// All of it.
    pub bytes: f64,
    /// What is known to have been sent.
    pub sent_bytes: f64,
    /// What it consists of.
    pub parts: Vec<Part>,
    /// Ways and rates.
    pub paths: Vec<Lane>,
}

/// A way and its rate.
#[derive(Deserialize, Serialize)]
pub struct Lane {
    /// The sites, both ends included.
    pub sites: Vec<String>,
    /// The rate.
    pub gbps: f64,
}

impl AgentOrders {
    /// For an agent that follows the orders of an epoch, or none.
    fn new(live: &Live, site: SiteId, orders: Orders, follows: Option<Epoch>) -> Self {
        let wan = live.controller.wan();
        let name = |site: SiteId| wan.name(site).to_owned();
        let lane = |rate: &terra::allocation::PathRate| Lane {
            sites: rate.path.sites(wan).into_iter().map(name).collect(),
            gbps: rate.rate_gbps,
        };
        let group = |order: terra::controller::GroupOrder| GroupOrders {
            coflow: order.coflow,
            group: order.group,
            to: name(order.dst),
            bytes: order.volume_gbit / GBIT_PER_BYTE,
            sent_bytes: order.sent_gbit / GBIT_PER_BYTE,
            parts: live.parts.get(&(order.coflow, order.group)).cloned().unwrap_or_default(),
            paths: order.paths.iter().map(lane).collect(),
        };
        let links = wan.out(site).iter().map(|link| name(wan.links()[link.index()].to));
        Self {
            epoch: orders.epoch,
            groups: (follows != Some(orders.epoch)).then(|| orders.groups.into_iter().map(group).collect()),
            agents: live.addresses.iter().map(|(site, address)| (name(*site), *address)).collect(),
            neighbours: links.collect(),
        }
    }
}

async fn join(State(live): State<Shared>, Segment(site): Segment<String>, body: Bytes) -> Result<Response, Failed> {
    let joins: Option<AgentJoins> = if body.is_empty() { None } else { parsed(&body)? };
    let mut live = lock(&live);
    let site = live.controller.wan().site(&site).map_err(Refused::from)?;
    let orders = live.controller.join(now_s(), site)?;
    live.refused.remove(&site);
    match joins.and_then(|joins| joins.address) {
        Some(address) => drop(live.addresses.insert(site, address)),
        None => drop(live.addresses.remove(&site)),
    }
    saved(&live, StatusCode::OK, &AgentOrders::new(&live, site, orders, None))
}

async fn exchange(State(live): State<Shared>, Segment(site): Segment<String>, body: Bytes) -> Result<Response, Failed> {
    let report: AgentReport = parsed(&body)?;
    if report.refused.len() > MAX_REFUSED || report.refused.iter().any(|one| one.reason.len() > MAX_REASON) {
        return Err(Failed(
            StatusCode::BAD_REQUEST,
            format!("at most {MAX_REFUSED} groups are refused, each in {MAX_REASON} bytes"),
        ));
    }
    let sent = report.sent.iter().map(|sent| (CoflowId(sent.coflow), sent.group, sent.bytes * GBIT_PER_BYTE)).collect();
    let mut live = lock(&live);
    let site = live.controller.wan().site(&site).map_err(Refused::from)?;
    let silent = report.silent.iter().map(|other| live.controller.wan().site(other));
    let silent = silent.collect::<Result<_, _>>().map_err(Refused::from)?;
    let before = live.controller.last_epoch();
    let (follows, stuck) = (Epoch(report.epoch), report.refused.iter().map(|one| one.coflow).collect());
    let orders = live.controller.exchange(now_s(), site, &Report { epoch: follows, sent, silent, stuck })?;
    // Stuck as long as the agent does not join again, whether it still knows why or not.
    let known = live.refused.entry(site).or_default();
    let is_new = |one: &RefusedGroup| !known.iter().any(|other| (other.coflow, other.group) == (one.coflow, one.group));
    let new: Vec<RefusedGroup> = report.refused.into_iter().filter(is_new).collect();
    known.extend(new);
    let excess = known.len().saturating_sub(MAX_REFUSED);
    known.drain(..excess);
    let answer = AgentOrders::new(&live, site, orders, Some(follows));
    // New epochs must survive; what was sent is said again.
    if live.controller.last_epoch() == before {
        Ok(json(StatusCode::OK, &answer))
    } else {
        saved(&live, StatusCode::OK, &answer)
    }
}

async fn leave(State(live): State<Shared>, Segment(site): Segment<String>) -> Result<Response, Failed> {
    let mut live = lock(&live);
    let site = live.controller.wan().site(&site).map_err(Refused::from)?;
    live.controller.leave(now_s(), site)?;
    saved(&live, StatusCode::OK, &BTreeMap::from([("agent", "left")]))
}
