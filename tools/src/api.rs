//! The control API as its client sees it: HTTP/1.1 with JSON bodies on the daemon's Unix socket.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::net::UnixStream;

use crate::place::Place;

/// Longest answer that is read, in bytes: ten thousand devices with clients fit.
const ANSWER_MAX: usize = 64 << 20;
/// Time for one call. The daemon answers in well under a millisecond; a stopped one must not stop us too.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// Nothing answers.
    #[error("no daemon answers at {} ({reason}): start one with `{start}`, or name its directory with --dir", socket.display())]
    NoDaemon {
        /// Where.
        socket: PathBuf,
        /// What the system said.
        reason: String,
        /// The command that starts one.
        start: &'static str,
    },
    /// The caller may not.
    #[error("{} may not be opened by this user (permission denied): run as the user of the daemon, or as root", socket.display())]
    NotPermitted {
        /// Which socket.
        socket: PathBuf,
    },
    /// The connection broke, timed out or carried something else than the protocol.
    #[error("the daemon at {} gave no proper answer: {reason}", socket.display())]
    Broken {
        /// Where.
        socket: PathBuf,
        /// What went wrong.
        reason: String,
    },
    /// The daemon said no, and why.
    #[error("{message}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// The daemon's words.
        message: String,
    },
}

/// Settings of a new device.
#[derive(Debug, Default, Serialize)]
pub struct DeviceSettings {
    /// Addresses; GID index 0 first.
    pub ips: Vec<IpAddr>,
    /// Path MTU in payload bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Mode of the socket, octal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Owner of the socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Group of the socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    /// For a virtual machine: its vfio-user socket, an absolute path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vfio_user: Option<PathBuf>,
    /// MAC address of its network device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
}

/// What a device is promised: the members that are to change.
#[derive(Debug, Default, Serialize)]
pub struct SharesChange {
    /// Weight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// Guaranteed rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_bits_per_sec: Option<u64>,
    /// Highest rate, or none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_bits_per_sec: Option<Option<u64>>,
    /// Burst.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst_bytes: Option<u64>,
    /// Class, or found by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<Option<&'static str>>,
}

/// What a device is promised.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Shares {
    /// Its part against the weights of others.
    pub weight: u32,
    /// Guaranteed rate.
    pub min_bits_per_sec: u64,
    /// Highest rate.
    pub max_bits_per_sec: Option<u64>,
    /// What goes at once after a pause.
    pub burst_bytes: u64,
    /// What its traffic is treated as, if that is not found.
    pub class: Option<String>,
}

/// What small messages of a device took lately.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Latency {
    /// Messages that were measured.
    pub measured: u64,
    /// Median in microseconds.
    pub p50_us: f64,
    /// 99th percentile in microseconds.
    pub p99_us: f64,
}

/// A device, as far as tables show it. Absent members take their defaults: a daemon may be a little older or newer than us.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Device {
    /// Name.
    pub name: String,
    /// Node GUID.
    pub guid: String,
    /// Addresses.
    pub ips: Vec<String>,
    /// Socket that clients open.
    pub socket: PathBuf,
    /// Path MTU in payload bytes.
    pub active_mtu: u32,
    /// `ACTIVE` or `DOWN`.
    pub state: String,
    /// Way to other hosts, or why there is none.
    pub wire: Option<Value>,
    /// What it is promised.
    pub shares: Option<Shares>,
    /// What its small messages took lately, if there were any.
    pub latency: Option<Latency>,
    /// Programs that have the device open.
    pub clients: Vec<DeviceClient>,
    /// The virtual machine, if the device is one's.
    pub vm: Option<DeviceVm>,
    /// Counters by name.
    pub counters: serde_json::Map<String, Value>,
    /// What making it took in the daemon, in microseconds.
    pub create_us: f64,
    /// What a change took in the daemon, in microseconds.
    pub change_us: Option<f64>,
    /// The whole object as the daemon sent it.
    #[serde(skip)]
    pub raw: Value,
}

/// A device's virtual machine.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct DeviceVm {
    /// MAC address that its network device has to have.
    pub mac: String,
    /// A VMM is connected.
    pub connected: bool,
    /// Queue pairs.
    pub qps: u64,
    /// Completion queues.
    pub cqs: u64,
    /// Regions.
    pub mrs: u64,
    /// Its memory.
    pub memory: VmMemory,
}

/// Memory of a virtual machine.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct VmMemory {
    /// Given by the VMM.
    pub mapped_bytes: u64,
    /// Pinned.
    pub pinned_bytes: u64,
    /// Of these, kept for the next registration.
    pub idle_bytes: u64,
    /// Needed by regions and queues.
    pub registered_bytes: u64,
    /// Bytes held for each byte registered.
    pub over_pin: Option<f64>,
    /// Blocks that were pinned when they were needed.
    pub hits: u64,
    /// Blocks that had to be pinned.
    pub misses: u64,
    /// Idle blocks given back.
    pub evictions: u64,
}

/// A program that has a device open.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct DeviceClient {
    /// Process.
    pub pid: u64,
    /// Name of the program.
    pub program: String,
    /// Queue pairs.
    pub qps: u64,
    /// Completion queues.
    pub cqs: u64,
    /// Memory regions.
    pub mrs: u64,
    /// Protection domains.
    pub pds: u64,
}

/// A queue pair that failed.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Failure {
    /// Its number.
    pub qpn: u32,
    /// Process whose it is or was.
    pub pid: i64,
    /// Name of that program.
    pub program: String,
    /// How long ago.
    pub seconds_ago: f64,
    /// The status as verbs name it.
    pub status: String,
    /// `vendor_err` of the completion.
    pub vendor_err: u32,
    /// What that value means.
    pub cause: String,
    /// Address of the peer.
    pub peer_ip: String,
    /// Queue pair of the peer.
    pub peer_qpn: u32,
    /// The last PSN that was sent.
    pub sent_psn: u32,
    /// The last PSN that the peer acknowledged.
    pub acknowledged_psn: u32,
    /// The last PSN of the peer's requests that was received in order.
    pub received_psn: u32,
    /// Retries used up when it failed.
    pub retries: u32,
    /// Retries that it may use.
    pub retry_limit: u32,
    /// Why the last packet that named the queue pair was dropped, if one was.
    pub last_drop: Option<String>,
    /// The whole object as the daemon sent it.
    #[serde(skip)]
    pub raw: Value,
}

/// Speaks to one daemon.
#[derive(Debug)]
pub struct Client {
    socket: PathBuf,
    /// The command that starts what serves there.
    start: &'static str,
    limit: Duration,
    runtime: tokio::runtime::Runtime,
}

impl Client {
    /// A client; connects at each call.
    pub fn new(place: Place) -> Result<Client> {
        Client::at(place.api_socket()?, "vrdma daemon")
    }

    /// A client of whatever serves at a socket and was started by this command.
    pub fn at(socket: PathBuf, start: &'static str) -> Result<Client> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start a runtime")?;
        Ok(Client { socket, start, limit: CALL_TIMEOUT, runtime })
    }

    /// The same with less patience.
    pub fn within(self, limit: Duration) -> Client {
        Client { limit, ..self }
    }

    /// Makes a device.
    pub fn add(&self, name: &str, settings: &DeviceSettings) -> Result<Device> {
        device(self.call(Method::PUT, &device_path(name), Some(serde_json::to_vec(settings)?))?)
    }

    /// Changes what a device is promised.
    pub fn change(&self, name: &str, change: &SharesChange) -> Result<Device> {
        device(self.call(Method::PATCH, &device_path(name), Some(serde_json::to_vec(change)?))?)
    }

    /// Removes a device.
    pub fn delete(&self, name: &str) -> Result<(), ApiError> {
        self.call(Method::DELETE, &device_path(name), None).map(|_| ())
    }

    /// One device.
    pub fn device(&self, name: &str) -> Result<Device> {
        device(self.call(Method::GET, &device_path(name), None)?)
    }

    /// All devices.
    pub fn devices(&self) -> Result<Vec<Device>> {
        match self.call(Method::GET, "/v1/devices", None)? {
            Value::Array(devices) => devices.into_iter().map(device).collect(),
            other => Err(self.broken(format!("a list of devices was expected, not {other}")).into()),
        }
    }

    /// Queue pairs of a device that failed, the latest first.
    pub fn failures(&self, name: &str) -> Result<Vec<Failure>> {
        let path = format!("{}/failures", device_path(name));
        let Value::Array(list) = self.call(Method::GET, &path, None)? else {
            return Err(self.broken("a list of failures was expected".to_owned()).into());
        };
        let known = |raw: Value| {
            let mut failure = Failure::deserialize(&raw).context("the daemon described a failure in an unknown way")?;
            failure.raw = raw;
            Ok(failure)
        };
        list.into_iter().map(known).collect()
    }

    /// One call: what was answered, parsed.
    pub fn call(&self, method: Method, path: &str, body: Option<Vec<u8>>) -> Result<Value, ApiError> {
        let (status, bytes) = self
            .runtime
            .block_on(async { tokio::time::timeout(self.limit, self.exchange(method, path, body)).await })
            .unwrap_or_else(|_| Err(self.broken(format!("nothing came within {} s", self.limit.as_secs_f64()))))?;
        if (200..300).contains(&status) {
            if bytes.is_empty() {
                return Ok(Value::Null);
            }
            return serde_json::from_slice(&bytes).map_err(|error| self.broken(format!("its JSON is wrong: {error}")));
        }
        let message = match serde_json::from_slice::<Value>(&bytes) {
            Ok(Value::Object(mut object)) => match object.remove("error") {
                Some(Value::String(message)) => message,
                _ => format!("the daemon refused with HTTP status {status}"),
            },
            _ => format!("the daemon refused with HTTP status {status}: {}", String::from_utf8_lossy(&bytes).trim()),
        };
        Err(ApiError::Refused { status, message })
    }

    async fn exchange(&self, method: Method, path: &str, body: Option<Vec<u8>>) -> Result<(u16, Bytes), ApiError> {
        let stream = UnixStream::connect(&self.socket).await.map_err(|error| match error.kind() {
            ErrorKind::PermissionDenied => ApiError::NotPermitted { socket: self.socket.clone() },
            ErrorKind::NotFound => self.no_daemon("there is no such socket"),
            ErrorKind::ConnectionRefused => self.no_daemon("connection refused"),
            _ => self.no_daemon(&error.to_string()),
        })?;
        let broken = |error: hyper::Error| self.broken(error.to_string());
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        // The connection ends with the runtime's next use of it: dropping the sender closes it.
        tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "vrdma")
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body.unwrap_or_default())))
            .map_err(|error| self.broken(error.to_string()))?;
        let response = sender.send_request(request).await.map_err(broken)?;
        let status = response.status().as_u16();
        let body = Limited::new(response.into_body(), ANSWER_MAX).collect().await;
        Ok((status, body.map_err(|error| self.broken(error.to_string()))?.to_bytes()))
    }

    fn no_daemon(&self, reason: &str) -> ApiError {
        ApiError::NoDaemon { socket: self.socket.clone(), reason: reason.to_owned(), start: self.start }
    }

    fn broken(&self, reason: String) -> ApiError {
        ApiError::Broken { socket: self.socket.clone(), reason }
    }
}

/// The name is encoded whole, so that no name can reach another resource.
fn device_path(name: &str) -> String {
    format!("/v1/devices/{}", utf8_percent_encode(name, NON_ALPHANUMERIC))
}

fn device(raw: Value) -> Result<Device> {
    let mut device = Device::deserialize(&raw).context("the daemon described a device in an unknown way")?;
    device.raw = raw;
    Ok(device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_one_path_segment() {
        assert_eq!(device_path("../x?y#z"), "/v1/devices/%2E%2E%2Fx%3Fy%23z");
    }

    #[test]
    fn devices_keep_what_they_do_not_know() {
        let raw = serde_json::json!({"name": "a", "ips": ["192.0.2.1"], "later": 1});
        let device = device(raw.clone()).unwrap();
        assert_eq!((device.name.as_str(), device.ips.len(), device.raw), ("a", 1, raw));
    }
}
