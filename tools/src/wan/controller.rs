//! `vrdma wan controller`: the scheduler behind HTTP/JSON on a Unix socket, with its state in a file.
//!
//! Owns: paths, status codes, the clock, and when the file is written. What is decided is the business of `terra::controller`.
//! Whoever may open the socket may do everything. The file is replaced whole, and before an answer that depends on it is given; what
//! agents have sent is written once a second.

use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Write};
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
use terra::controller::{Config, Controller, Orders, Refused, Report};
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
/// Gbit of one byte.
const GBIT_PER_BYTE: f64 = 8e-9;

/// The controller and its file.
struct Live {
    controller: Controller,
    file: PathBuf,
}

type Shared = Arc<Mutex<Live>>;

/// Serves until SIGINT or SIGTERM.
pub fn carry_out(place: &Place, options: &WanControllerOptions) -> Result<()> {
    fs::create_dir_all(place.dir()).with_context(|| format!("cannot make {}", place.dir().display()))?;
    let file = options.state.clone().unwrap_or_else(|| place.dir().join(STATE_FILE));
    let controller = start(&file, options.topology.as_deref())?;
    let live = Live { controller, file };
    live.save()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start a runtime")?;
    runtime.block_on(serve(place.wan_socket()?, Arc::new(Mutex::new(live))))
}

/// From the file if it is there, else from the network that was named.
fn start(file: &Path, topology: Option<&str>) -> Result<Controller> {
    let named = topology.map(network).transpose()?;
    match fs::symlink_metadata(file) {
        Ok(_) => {
            let text = read(file, MAX_STATE)?;
            let saved =
                serde_json::from_str(&text).with_context(|| format!("{} is not a controller's state", file.display()))?;
            let restored = Controller::restore(&saved, Config::default(), now_s());
            let mut controller = restored.with_context(|| file.display().to_string())?;
            if let Some(network) = named {
                controller.set_network(now_s(), &network)?;
            }
            Ok(controller)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => match named {
            Some(network) => Ok(Controller::new(network, Config::default(), now_s())),
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
            serde_json::to_writer(&mut new, &self.controller.save())?;
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
    json(StatusCode::OK, &lock(&live).controller.status())
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
    let submitted = Submitted { job: job.id, coflows: job.stages.iter().map(|stage| stage.coflow.id).collect() };
    live.controller.submit(now_s(), job)?;
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
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Sent {
    coflow: u64,
    group: usize,
    /// In all, since the coflow began.
    bytes: f64,
}

/// What an agent is told.
#[derive(Serialize)]
struct AgentOrders {
    epoch: Epoch,
    groups: Vec<Group>,
}

#[derive(Serialize)]
struct Group {
    coflow: CoflowId,
    group: usize,
    to: String,
    bytes: f64,
    sent_bytes: f64,
    paths: Vec<Lane>,
}

#[derive(Serialize)]
struct Lane {
    sites: Vec<String>,
    gbps: f64,
}

impl AgentOrders {
    fn new(controller: &Controller, orders: Orders) -> Self {
        let wan = controller.wan();
        let name = |site: SiteId| wan.name(site).to_owned();
        let lane = |rate: &terra::allocation::PathRate| Lane {
            sites: rate.path.sites(wan).into_iter().map(name).collect(),
            gbps: rate.rate_gbps,
        };
        let group = |order: terra::controller::GroupOrder| Group {
            coflow: order.coflow,
            group: order.group,
            to: name(order.dst),
            bytes: order.volume_gbit / GBIT_PER_BYTE,
            sent_bytes: order.sent_gbit / GBIT_PER_BYTE,
            paths: order.paths.iter().map(lane).collect(),
        };
        Self { epoch: orders.epoch, groups: orders.groups.into_iter().map(group).collect() }
    }
}

async fn join(State(live): State<Shared>, Segment(site): Segment<String>) -> Result<Response, Failed> {
    let mut live = lock(&live);
    let site = live.controller.wan().site(&site).map_err(Refused::from)?;
    let orders = live.controller.join(now_s(), site)?;
    saved(&live, StatusCode::OK, &AgentOrders::new(&live.controller, orders))
}

async fn exchange(State(live): State<Shared>, Segment(site): Segment<String>, body: Bytes) -> Result<Response, Failed> {
    let report: AgentReport = parsed(&body)?;
    let sent = report.sent.iter().map(|sent| (CoflowId(sent.coflow), sent.group, sent.bytes * GBIT_PER_BYTE)).collect();
    let mut live = lock(&live);
    let site = live.controller.wan().site(&site).map_err(Refused::from)?;
    let silent = report.silent.iter().map(|other| live.controller.wan().site(other));
    let silent = silent.collect::<Result<_, _>>().map_err(Refused::from)?;
    let before = live.controller.last_epoch();
    let orders = live.controller.exchange(now_s(), site, &Report { epoch: Epoch(report.epoch), sent, silent })?;
    let answer = AgentOrders::new(&live.controller, orders);
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
