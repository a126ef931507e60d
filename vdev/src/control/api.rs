//! The HTTP API on `api.sock`, as `vdev/openapi.yaml` describes it.
//!
//! Owns: paths, status codes and the JSON shapes of answers. Every answer but `/metrics` is JSON, errors included. Whoever may
//! open the socket may do everything, so there is no further authentication.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::Serialize;
use tokio::net::UnixListener;

use super::devices::{Device, DeviceError, Devices};
use super::metrics;
use super::shares::{Change, SharesView};
use super::spec::DeviceSpec;
use crate::datapath::{ClientId, Datapath, DeviceStatus, Failure, Percentiles, What};

/// How long a question may take.
const PATIENCE: Duration = Duration::from_secs(3);
/// Longest body of a request in bytes.
const MAX_BODY: usize = 64 * 1024;

/// Serves until aborted.
pub async fn serve(listener: UnixListener, devices: Arc<Devices>) {
    let router = Router::new()
        .route("/v1/version", get(version))
        .route("/v1/devices", get(list))
        .route("/v1/devices/{name}", get(show).put(put).patch(change).delete(remove))
        .route("/v1/devices/{name}/failures", get(failures))
        .route("/metrics", get(metrics_text))
        .fallback(not_found)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(devices);
    if let Err(error) = axum::serve(listener, router).await {
        tracing::error!(%error, "the control API has ended");
    }
}

/// An error as answered.
struct ApiError(StatusCode, String);

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        json(self.0, &BTreeMap::from([("error", self.1)]))
    }
}

impl From<DeviceError> for ApiError {
    fn from(error: DeviceError) -> Self {
        let status = match error {
            DeviceError::Invalid(_) => StatusCode::BAD_REQUEST,
            DeviceError::Conflict(_) => StatusCode::CONFLICT,
            DeviceError::NotFound(_) => StatusCode::NOT_FOUND,
            DeviceError::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
            DeviceError::Stopping | DeviceError::HeldUp { .. } => StatusCode::SERVICE_UNAVAILABLE,
        };
        ApiError(status, error.to_string())
    }
}

impl From<BytesRejection> for ApiError {
    fn from(rejection: BytesRejection) -> Self {
        ApiError(rejection.status(), format!("{}; a body may have {MAX_BODY} bytes", rejection.body_text()))
    }
}

fn json(status: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(bytes) => (status, [(header::CONTENT_TYPE, "application/json")], bytes).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn not_found() -> ApiError {
    ApiError(StatusCode::NOT_FOUND, "there is no such path: see /v1/devices, /v1/version and /metrics".into())
}

async fn wrong_method() -> ApiError {
    ApiError(StatusCode::METHOD_NOT_ALLOWED, "this path does not have this method".into())
}

#[derive(Serialize)]
struct Version {
    name: &'static str,
    version: &'static str,
    api: u32,
    abi: u32,
    pid: u32,
}

async fn version() -> Response {
    let abi = vdev_abi::control::ABI_VERSION;
    let version = Version { name: "vrdma", version: env!("CARGO_PKG_VERSION"), api: 1, abi, pid: std::process::id() };
    json(StatusCode::OK, &version)
}

/// A device as answered.
#[derive(Serialize)]
pub struct DeviceView {
    /// Name.
    pub name: String,
    guid: String,
    ips: Vec<String>,
    socket: String,
    active_mtu: usize,
    /// `ACTIVE` or `DOWN`.
    pub state: &'static str,
    wire: WireView,
    shares: SharesView,
    /// Of small messages, lately.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<LatencyView>,
    /// Connections.
    pub clients: Vec<ClientView>,
    /// Of a device for a virtual machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vm: Option<GuestView>,
    /// From the core and from the ways to the wire.
    pub counters: BTreeMap<&'static str, u64>,
    create_us: u64,
    /// How long the change took that this answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    change_us: Option<u64>,
}

/// What small messages took, as answered.
#[derive(Serialize)]
pub struct LatencyView {
    measured: u64,
    /// Half took at most so long.
    pub p50_us: f64,
    /// 99 of 100 took at most so long.
    pub p99_us: f64,
}

impl From<Percentiles> for LatencyView {
    fn from(Percentiles { measured, p50_us, p99_us }: Percentiles) -> Self {
        LatencyView { measured, p50_us, p99_us }
    }
}

#[derive(Serialize)]
struct WireView {
    interface: Option<String>,
    reason: Option<String>,
}

/// A connection as answered.
#[derive(Serialize)]
pub struct ClientView {
    pid: i32,
    program: String,
    /// Queue pairs.
    pub qps: usize,
    /// Completion queues.
    pub cqs: usize,
    /// Regions.
    pub mrs: usize,
    /// Of these, the ones in memory of devices, by driver.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    device_mrs: BTreeMap<String, usize>,
    /// Protection domains.
    pub pds: usize,
}

/// Asks the datapath something that changes nothing, so that whoever asks may be told that there is no answer.
async fn ask<R: Send + 'static>(
    devices: &Devices,
    question: impl FnOnce(&mut Datapath) -> R + Send + 'static,
) -> Result<R, DeviceError> {
    match tokio::time::timeout(PATIENCE, devices.datapath.call(question)).await {
        Ok(answer) => answer.map_err(DeviceError::from),
        Err(_) => Err(DeviceError::HeldUp { seconds: PATIENCE.as_secs(), by: devices.datapath.held_up_by() }),
    }
}

/// A virtual machine's side of a device, as answered.
#[derive(Serialize)]
pub struct GuestView {
    mac: String,
    /// A VMM is connected.
    connected: bool,
    /// Queue pairs.
    pub qps: usize,
    /// Completion queues.
    pub cqs: usize,
    /// Regions.
    pub mrs: usize,
    /// Its memory.
    pub memory: MemoryView,
}

/// Guest memory, as answered.
#[derive(Serialize)]
pub struct MemoryView {
    /// Given by the VMM.
    pub mapped_bytes: u64,
    /// Pinned.
    pub pinned_bytes: u64,
    idle_bytes: u64,
    /// Needed by regions and queues.
    pub registered_bytes: u64,
    /// Bytes held for each byte registered.
    over_pin: Option<f64>,
    hits: u64,
    misses: u64,
    evictions: u64,
    pin_failures: u64,
}

/// The virtual machine's side of each device.
async fn guests(devices: &Devices, shown: &[Arc<Device>]) -> Result<Vec<Option<GuestView>>, DeviceError> {
    let vms: Vec<_> = shown.iter().map(|device| device.vm.as_ref().map(|vm| (vm.mac, vm.server.view()))).collect();
    let ids: Vec<_> = vms.iter().map(|vm| vm.as_ref().and_then(|(_, view)| view.guest)).collect();
    let count = move |datapath: &mut Datapath| ids.iter().map(|id| id.map(|id| datapath.guest_counts(id))).collect::<Vec<_>>();
    let counts = ask(devices, count).await?;
    let views = vms.into_iter().zip(counts).map(|(vm, counts)| {
        let ((mac, view), counts) = (vm?, counts.unwrap_or_default());
        let stats = view.memory;
        let memory = MemoryView {
            mapped_bytes: stats.mapped_bytes,
            pinned_bytes: stats.pinned_bytes,
            idle_bytes: stats.idle_bytes,
            registered_bytes: stats.registered_bytes,
            over_pin: stats.over_pin(),
            hits: stats.hits,
            misses: stats.misses,
            evictions: stats.evictions_age + stats.evictions_room,
            pin_failures: stats.pin_failures,
        };
        let mac = mac.map(|octet| format!("{octet:02x}")).join(":");
        Some(GuestView { mac, connected: view.connected, qps: counts.qps, cqs: counts.cqs, mrs: counts.mrs, memory })
    });
    Ok(views.collect())
}

/// Devices with what the datapath says about them, all at one moment.
async fn views(devices: &Devices, shown: Vec<Arc<Device>>) -> Result<Vec<DeviceView>, DeviceError> {
    let sessions: Vec<_> = shown.iter().map(|device| device.sessions.views()).collect();
    let asked: Vec<(rnic::DeviceId, Vec<ClientId>)> = shown
        .iter()
        .zip(&sessions)
        .map(|(device, sessions)| (device.id, sessions.iter().map(|session| session.client).collect()))
        .collect();
    let statuses = ask(devices, move |datapath| datapath.statuses(&asked)).await?;
    let guests = guests(devices, &shown).await?;
    let mut views = Vec::with_capacity(shown.len());
    for (((device, sessions), DeviceStatus { counters, shares, latency, clients }), vm) in
        shown.into_iter().zip(sessions).zip(statuses).zip(guests)
    {
        let port = device.port();
        // A client that ended since is not shown: its objects are gone.
        let clients = sessions.into_iter().zip(clients).filter_map(|(session, counts)| {
            let (counts, device_mrs) = counts?;
            let (pid, program) = (session.pid, session.program);
            Some(ClientView { pid, program, qps: counts.qps, cqs: counts.cqs, mrs: counts.mrs, device_mrs, pds: counts.pds })
        });
        views.push(DeviceView {
            name: device.name.clone(),
            guid: guid_text(device.guid),
            ips: device.spec.ips.iter().map(ToString::to_string).collect(),
            socket: device.socket.display().to_string(),
            active_mtu: port.mtu.bytes(),
            state: if port.is_up { "ACTIVE" } else { "DOWN" },
            wire: WireView { interface: port.interface, reason: port.reason },
            shares: SharesView::from(&shares),
            latency: latency.map(LatencyView::from),
            clients: clients.collect(),
            vm,
            counters: counters.into_iter().chain(device.budget.counters()).collect(),
            create_us: device.create_us,
            change_us: None,
        });
    }
    Ok(views)
}

async fn view(devices: &Devices, device: Arc<Device>) -> Result<DeviceView, DeviceError> {
    views(devices, vec![device]).await?.pop().ok_or(DeviceError::Stopping)
}

/// As `ibv_devinfo` shows GUIDs.
fn guid_text(guid: u64) -> String {
    let [a, b, c, d] = [guid >> 48, guid >> 32 & 0xFFFF, guid >> 16 & 0xFFFF, guid & 0xFFFF];
    format!("{a:04x}:{b:04x}:{c:04x}:{d:04x}")
}

async fn list(State(devices): State<Arc<Devices>>) -> Result<Response, ApiError> {
    Ok(json(StatusCode::OK, &views(&devices, devices.all()).await?))
}

async fn show(State(devices): State<Arc<Devices>>, Path(name): Path<String>) -> Result<Response, ApiError> {
    Ok(json(StatusCode::OK, &view(&devices, devices.get(&name)?).await?))
}

/// A failed queue pair as answered.
#[derive(Serialize)]
struct FailureView {
    qpn: u32,
    pid: i32,
    program: String,
    seconds_ago: f64,
    status: String,
    opcode: Option<String>,
    wr_id: Option<u64>,
    vendor_err: u32,
    cause: &'static str,
    peer_ip: String,
    peer_qpn: u32,
    sent_psn: u32,
    acknowledged_psn: u32,
    received_psn: u32,
    retries: u8,
    retry_limit: u8,
    last_drop: Option<&'static str>,
}

fn failure_view((failure, seconds_ago): (Failure, f64)) -> FailureView {
    let (status, opcode, wr_id, vendor_err, cause) = match failure.what {
        What::Completion { status, opcode, wr_id, vendor_err } => {
            let cause = rnic::vendor_err::meaning(vendor_err);
            (format!("{status:?}"), Some(format!("{opcode:?}")), Some(wr_id), vendor_err, cause)
        }
        What::Refused(cause) => ("Refused".to_owned(), None, None, 0, cause),
    };
    let waited_for_receives = status == "RnrRetryExceededError";
    let (trace, (retry_cnt, rnr_retry)) = (failure.trace, failure.retry_limits);
    FailureView {
        qpn: failure.qpn.get(),
        pid: failure.pid,
        program: failure.program.to_string(),
        seconds_ago,
        status,
        opcode,
        wr_id,
        vendor_err,
        cause,
        peer_ip: failure.peer.0.to_canonical().to_string(),
        peer_qpn: failure.peer.1.get(),
        sent_psn: trace.sent_psn.get(),
        acknowledged_psn: trace.acknowledged_psn.get(),
        received_psn: trace.received_psn.get(),
        retries: if waited_for_receives { trace.rnr_retries } else { trace.retries },
        retry_limit: if waited_for_receives { rnr_retry } else { retry_cnt },
        last_drop: trace.last_drop,
    }
}

async fn failures(State(devices): State<Arc<Devices>>, Path(name): Path<String>) -> Result<Response, ApiError> {
    let device = devices.get(&name)?.id;
    let failures = ask(&devices, move |datapath| datapath.failures(device)).await?;
    Ok(json(StatusCode::OK, &failures.into_iter().map(failure_view).collect::<Vec<_>>()))
}

async fn put(
    State(devices): State<Arc<Devices>>,
    Path(name): Path<String>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let spec = DeviceSpec::from_json(&body?).map_err(DeviceError::Invalid)?;
    let (device, made) = devices.put(&name, spec).await?;
    let status = if made { StatusCode::CREATED } else { StatusCode::OK };
    Ok(json(status, &view(&devices, device).await?))
}

async fn change(
    State(devices): State<Arc<Devices>>,
    Path(name): Path<String>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let change = Change::from_json(&body?).map_err(DeviceError::Invalid)?;
    let device = devices.get(&name)?;
    let (id, started) = (device.id, Instant::now());
    let changed = ask(&devices, move |datapath| {
        let changed = datapath.change_shares(id, |before| change.apply(before));
        changed.map(|()| started.elapsed())
    });
    let took = changed.await?.map_err(|error| DeviceError::Invalid(format!("device {name} stays as it is: {error}")))?;
    let view = DeviceView { change_us: u64::try_from(took.as_micros()).ok(), ..view(&devices, device).await? };
    Ok(json(StatusCode::OK, &view))
}

async fn remove(State(devices): State<Arc<Devices>>, Path(name): Path<String>) -> Result<StatusCode, ApiError> {
    devices.delete(&name).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn metrics_text(State(devices): State<Arc<Devices>>) -> Result<Response, ApiError> {
    let views = views(&devices, devices.all()).await?;
    let drops = ask(&devices, |datapath| datapath.drops()).await?;
    let content_type = [(header::CONTENT_TYPE, "text/plain; version=0.0.4")];
    Ok((content_type, metrics::text(&views, &drops)).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guid_is_written_in_four_groups() {
        assert_eq!(guid_text(0x0200_00ab_0000_cdef), "0200:00ab:0000:cdef");
    }
}
