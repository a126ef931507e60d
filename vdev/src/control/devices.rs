//! The devices of this daemon: made, shown, changed by what happens to interfaces, removed.
//!
//! Changes are made one after the other under one lock and run to their end even if the caller goes away, so that of many
//! callers exactly one makes a device and no half of one is ever seen. Owns: names, addresses, the socket files. Never: what
//! happens on a connection ([`super::session`]).

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::socket::SockType;
use rnic::{DeviceId, DeviceInit};
use roce::Gid;
use tokio::sync::watch;

use super::access::{bind_with, remove_stale};
use super::budget::{Budget, Everybody};
use super::links::{PortView, judge};
use super::seqpacket::{self, MAX_SOCKET_PATH};
use super::session::{self, Sessions};
use super::spec::{DeviceSpec, check_name};
use super::watched::watch_input;
use crate::daemon::{DEVICE_FOLDER, DEVICE_SOCKET};
use crate::datapath::{DatapathHandle, Gone};
use crate::pci;
use crate::port::{self, Interfaces};

/// A device.
pub struct Device {
    /// Its name.
    pub name: String,
    /// In the core.
    pub id: DeviceId,
    /// Node GUID, EUI-64.
    pub guid: u64,
    /// What was asked for.
    pub spec: DeviceSpec,
    /// Its socket.
    pub socket: PathBuf,
    /// How long it took to make, in microseconds.
    pub create_us: u64,
    /// The port as last judged.
    port: Mutex<PortView>,
    /// Connections.
    pub sessions: Sessions,
    /// What its clients' calls may take.
    pub budget: Arc<Budget>,
    /// True once the device is removed: sessions end.
    removed: watch::Sender<bool>,
    /// Of a device for a virtual machine.
    pub vm: Option<Vm>,
}

/// The virtual machine's side of a device.
pub struct Vm {
    /// MAC address that the guest's network device has to have.
    pub mac: [u8; 6],
    /// Serves the VMM.
    pub server: pci::Server,
}

/// Why a change was refused.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// What was asked for cannot be.
    #[error("{0}")]
    Invalid(String),
    /// It collides with a device that exists, or with another program.
    #[error("{0}")]
    Conflict(String),
    /// No such device.
    #[error("there is no device {0:?}: `vrdma dev list` shows those that there are")]
    NotFound(String),
    /// The system or a limit refused.
    #[error("{0}")]
    Failed(String),
    /// The daemon is stopping.
    #[error("the daemon is stopping")]
    Stopping,
    /// The data path does not answer.
    #[error("the data path has not answered for {seconds} s: {}", held_up(*.by))]
    HeldUp {
        /// For how long.
        seconds: u64,
        /// The process whose memory it waits for.
        by: Option<i32>,
    },
}

fn held_up(by: Option<i32>) -> String {
    match by {
        Some(pid) => format!(
            "it waits for memory of process {pid}, and every device with it; end that process, or whatever serves its memory (a \
             file system in user space, userfaultfd)"
        ),
        None => "try again".to_owned(),
    }
}

impl From<Gone> for DeviceError {
    fn from(_: Gone) -> Self {
        DeviceError::Stopping
    }
}

/// Time for the threads of a virtual machine's device to end. They need no longer, unless the VMM holds them up.
const VM_STOP: Duration = Duration::from_secs(1);

/// All devices of the daemon.
pub struct Devices {
    dir: PathBuf,
    /// The way to the core.
    pub datapath: DatapathHandle,
    /// Held during a change; true once the daemon is stopping.
    changing: tokio::sync::Mutex<bool>,
    table: Mutex<BTreeMap<String, Arc<Device>>>,
    /// Connections of clients to all of them.
    everybody: Arc<Everybody>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every critical section leaves the value whole at each step.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Device {
    /// The port at this moment.
    pub fn port(&self) -> PortView {
        lock(&self.port).clone()
    }

    /// The GID table.
    pub fn gids(&self) -> Vec<Gid> {
        self.spec.ips.iter().map(|&ip| Gid::from(ip)).collect()
    }

    /// Becomes true when the device is removed.
    pub fn removal(&self) -> watch::Receiver<bool> {
        self.removed.subscribe()
    }
}

impl Devices {
    /// No devices yet.
    pub fn new(dir: &Path, everybody: Everybody, datapath: DatapathHandle) -> Devices {
        Devices {
            dir: dir.to_owned(),
            datapath,
            changing: tokio::sync::Mutex::new(false),
            table: Mutex::default(),
            everybody: Arc::new(everybody),
        }
    }

    /// All devices, by name.
    pub fn all(&self) -> Vec<Arc<Device>> {
        lock(&self.table).values().cloned().collect()
    }

    /// One device.
    ///
    /// # Errors
    /// [`DeviceError::NotFound`].
    pub fn get(&self, name: &str) -> Result<Arc<Device>, DeviceError> {
        lock(&self.table).get(name).cloned().ok_or_else(|| DeviceError::NotFound(name.chars().take(64).collect()))
    }

    /// Makes a device, or finds that it exists just so. True if it was made.
    ///
    /// # Errors
    /// [`DeviceError`]; nothing is left behind.
    pub async fn put(self: &Arc<Self>, name: &str, spec: DeviceSpec) -> Result<(Arc<Device>, bool), DeviceError> {
        check_name(name).map_err(DeviceError::Invalid)?;
        let (devices, name) = (self.clone(), name.to_owned());
        // A task of its own: the caller may be dropped when its connection closes.
        tokio::spawn(async move { devices.put_locked(name, spec).await }).await.map_err(|_| DeviceError::Stopping)?
    }

    async fn put_locked(self: Arc<Self>, name: String, spec: DeviceSpec) -> Result<(Arc<Device>, bool), DeviceError> {
        let stopping = self.changing.lock().await;
        if *stopping {
            return Err(DeviceError::Stopping);
        }
        let started = Instant::now();
        if let Some(device) = lock(&self.table).get(&name) {
            return if device.spec == spec {
                Ok((device.clone(), false))
            } else {
                Err(DeviceError::Conflict(format!(
                    "device {name} exists with other settings: remove it first (`vrdma dev del {name}`), or choose another name"
                )))
            };
        }
        for device in lock(&self.table).values() {
            if let Some(ip) = spec.ips.iter().find(|ip| device.spec.ips.contains(ip)) {
                return Err(DeviceError::Conflict(format!("{ip} belongs to device {}: choose another address", device.name)));
            }
        }
        let socket = match &spec.vm {
            Some(vm) => vm.socket.clone(),
            None => self.dir.join(DEVICE_FOLDER).join(&name).join(DEVICE_SOCKET),
        };
        let len = socket.as_os_str().as_bytes().len();
        if len > MAX_SOCKET_PATH {
            return Err(DeviceError::Invalid(format!(
                "{} is {len} bytes long, and a Unix socket path holds at most {MAX_SOCKET_PATH}: choose a shorter name, or a \
                 shorter directory for the daemon",
                socket.display()
            )));
        }
        let device = self.make(name, spec, socket, started).await?;
        lock(&self.table).insert(device.name.clone(), device.clone());
        tracing::info!(device = %device.name, us = device.create_us, "device added");
        Ok((device, true))
    }

    async fn make(
        self: &Arc<Self>,
        name: String,
        spec: DeviceSpec,
        socket: PathBuf,
        started: Instant,
    ) -> Result<Arc<Device>, DeviceError> {
        let interfaces = Interfaces::now()
            .map_err(|error| DeviceError::Failed(format!("cannot list the interfaces of this host: {error}")))?;
        let view = judge(&spec, None, |ip| interfaces.holding(ip));
        let mut ports = Vec::new();
        for &ip in &view.on_wire {
            ports.push((ip, port::open(ip).map_err(|error| DeviceError::Conflict(error.to_string()))?));
        }
        let bound = match &spec.vm {
            None => make_folder(&socket).and_then(|()| bind_with(&socket, SockType::SeqPacket, spec.mode, spec.uid, spec.gid)),
            Some(_) => {
                // Outside the daemon's folder, where a daemon that was killed may have left it.
                remove_stale(&socket);
                bind_with(&socket, SockType::Stream, spec.mode, spec.uid, spec.gid)
            }
        };
        let fd = bound.map_err(|error| {
            remove_folder(&spec, &socket);
            DeviceError::Failed(format!("cannot make the socket {}: {error}", socket.display()))
        })?;
        let init = DeviceInit { gids: spec.ips.iter().map(|&ip| Gid::from(ip)).collect(), mtu: view.mtu };
        let (guid, up) = (guid(&name, &spec.ips[0]), view.is_up);
        let added = self.datapath.call(move |datapath| datapath.add_device(init, guid, up, ports)).await;
        let id = match added.map_err(DeviceError::from).and_then(|added| added.map_err(DeviceError::Failed)) {
            Ok(id) => id,
            Err(error) => {
                let _ = std::fs::remove_file(&socket);
                remove_folder(&spec, &socket);
                return Err(error);
            }
        };
        let budget = Arc::new(Budget::new(self.everybody.clone()));
        let served = seqpacket::listen(fd.as_fd()).and_then(|()| match &spec.vm {
            // Watched only once it listens: before that the kernel calls it hung up, for good.
            None => watch_input(fd).map(|listener| (Some(listener), None)),
            Some(vm) => {
                let mac = vm.mac.unwrap_or_else(|| mac_of(guid));
                let (name, ips, datapath, budget) = (name.clone(), spec.ips.clone(), self.datapath.clone(), budget.clone());
                let init = pci::ServerInit { name, listener: fd, device: id, ips, mac, datapath, budget };
                pci::Server::start(init).map(|server| (None, Some(Vm { mac, server })))
            }
        });
        let (listener, vm) = match served {
            Ok(served) => served,
            Err(error) => {
                let _ = std::fs::remove_file(&socket);
                remove_folder(&spec, &socket);
                self.datapath.post(move |datapath| drop(datapath.remove_device(id)));
                return Err(DeviceError::Failed(format!("cannot serve {}: {error}", socket.display())));
            }
        };
        let device = Arc::new(Device {
            guid,
            name,
            id,
            spec,
            socket,
            create_us: u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX),
            port: Mutex::new(view),
            sessions: Sessions::default(),
            budget,
            removed: watch::Sender::new(false),
            vm,
        });
        if let Some(listener) = listener {
            tokio::spawn(session::accept(listener, device.clone(), self.datapath.clone()));
        }
        Ok(device)
    }

    /// Removes a device and ends its clients. No such device is no error.
    ///
    /// # Errors
    /// [`DeviceError::Stopping`].
    pub async fn delete(self: &Arc<Self>, name: &str) -> Result<(), DeviceError> {
        let (devices, name) = (self.clone(), name.to_owned());
        tokio::spawn(async move {
            let stopping = devices.changing.lock().await;
            if *stopping { Err(DeviceError::Stopping) } else { devices.remove(&name).await.map_err(DeviceError::from) }
        })
        .await
        .map_err(|_| DeviceError::Stopping)?
    }

    async fn remove(&self, name: &str) -> Result<(), Gone> {
        let Some(device) = lock(&self.table).remove(name) else { return Ok(()) };
        // First the socket, so that nobody finds a device that is going.
        if let Err(error) = std::fs::remove_file(&device.socket) {
            tracing::warn!(socket = %device.socket.display(), %error, "cannot remove a socket");
        }
        remove_folder(&device.spec, &device.socket);
        device.removed.send_replace(true);
        if let Some(vm) = &device.vm {
            vm.server.stop(VM_STOP).await;
        }
        let id = device.id;
        let ended = self.datapath.call(move |datapath| datapath.remove_device(id)).await?;
        // Their memory is unmapped here, not in the data path.
        drop(ended);
        tracing::info!(device = %name, "device removed");
        Ok(())
    }

    /// Removes everything; later changes are refused.
    pub async fn close(&self) {
        let mut stopping = self.changing.lock().await;
        *stopping = true;
        let names: Vec<String> = lock(&self.table).keys().cloned().collect();
        for name in names {
            // A datapath that is gone has let go of everything itself.
            let _ = self.remove(&name).await;
        }
    }

    /// Looks at the interfaces again and tells devices what has changed for them.
    pub async fn links_changed(&self) {
        let _changing = self.changing.lock().await;
        let interfaces = match Interfaces::now() {
            Ok(interfaces) => interfaces,
            Err(error) => return tracing::warn!(%error, "cannot list the interfaces of this host"),
        };
        for device in self.all() {
            if self.judge_again(&device, &interfaces).await.is_err() {
                // The datapath has ended, and so does the daemon.
                return;
            }
        }
    }

    async fn judge_again(&self, device: &Device, interfaces: &Interfaces) -> Result<(), Gone> {
        let before = device.port();
        let mut view = judge(&device.spec, Some(&before), |ip| interfaces.holding(ip));
        let closed: Vec<IpAddr> = before.on_wire.difference(&view.on_wire).copied().collect();
        let mut opened = Vec::new();
        for ip in view.on_wire.difference(&before.on_wire).copied().collect::<Vec<_>>() {
            match port::open(ip) {
                Ok(port) => opened.push((ip, port)),
                Err(error) => view.refuse(ip, &error),
            }
        }
        if view == before {
            return Ok(());
        }
        tracing::info!(device = %device.name, up = view.is_up, mtu = view.mtu.bytes(), reason = view.reason, "port judged anew");
        let (id, port) = (device.id, view.is_up.then_some(view.mtu));
        *lock(&device.port) = view;
        self.datapath.call(move |datapath| datapath.change_ports(id, port, &closed, opened)).await
    }
}

/// Each socket has a folder of its own, which is what a container gets: another socket that is bound there later, by a daemon that
/// was started again, is found as well. The socket's own mode says who may connect.
fn make_folder(socket: &Path) -> std::io::Result<()> {
    let folder = socket.parent().expect("a socket lies in a folder");
    match DirBuilder::new().mode(0o755).create(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && folder.is_dir() => Ok(()),
        made => made,
    }
}

/// Unless there is something else in it, such as what `vrdma cdi` keeps for containers. That of a virtual machine's socket is not
/// ours.
fn remove_folder(spec: &DeviceSpec, socket: &Path) {
    if let Some(folder) = socket.parent().filter(|_| spec.vm.is_none()) {
        let _ = std::fs::remove_dir(folder);
    }
}

/// A GUID that stays the same from run to run: a hash of the host, the name and the first address, marked as locally
/// administered.
fn guid(name: &str, ip: &IpAddr) -> u64 {
    let machine = std::fs::read("/etc/machine-id").unwrap_or_default();
    let address = ip.to_string();
    // FNV-1a, 64 bits.
    let mut hash = 0xCBF2_9CE4_8422_2325u64;
    for &byte in machine.iter().chain(name.as_bytes()).chain(b"/").chain(address.as_bytes()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3);
    }
    hash & !(0x01 << 56) | 0x02 << 56
}

/// A MAC address for the guest's network device, locally administered as the GUID is.
fn mac_of(guid: u64) -> [u8; 6] {
    let [a, b, c, .., d, e, f] = guid.to_be_bytes();
    [a, b, c, d, e, f]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guids_are_local_unicast_and_differ() {
        let ip = "192.0.2.1".parse().unwrap();
        let a = guid("a", &ip);
        assert_eq!(a >> 56 & 3, 2);
        assert_eq!(a, guid("a", &ip));
        assert_ne!(a, guid("b", &ip));
        assert_ne!(a, guid("a", &"192.0.2.2".parse().unwrap()));
    }
}
