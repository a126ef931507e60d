//! The daemon as a value: start, stop, run until a signal.
//!
//! Owns the directory (its lock, its sockets) and the two threads: one for the data path, one for everything that people and
//! client processes ask. Never: logic of either.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rnic::{Config, MultipathConfig};
use spray::LossLimits;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use crate::control;
use crate::control::seqpacket::MAX_SOCKET_PATH;
use crate::datapath;
use crate::sharing::{Isolation, sharing};

/// File name of the API socket in the daemon's directory.
pub const API_SOCKET: &str = "api.sock";
/// Folder of the devices in the daemon's directory; each has a folder of its name there.
pub const DEVICE_FOLDER: &str = "dev";
/// File name of a device's socket in its folder.
pub const DEVICE_SOCKET: &str = "sock";
/// File name of the lock that says which daemon serves a directory.
const LOCK_FILE: &str = "lock";

/// What a daemon is started with.
#[derive(Clone, Debug)]
pub struct DaemonConfig {
    /// Where the sockets lie. Made when missing; at most 98 bytes as an absolute path, so that `api.sock` fits a Unix address.
    pub dir: PathBuf,
    /// Two queue pairs of this daemon copy directly instead of exchanging packets. On unless packets are what is wanted.
    pub local_path: bool,
    /// UDP source ports, and so paths of an ECMP network, among which a connection to a daemon that does the same spreads its packets
    /// on the wire: 1 to [`spray::MAX_PATHS`]. With 1 all connections are plain RoCEv2.
    pub paths: u16,
    /// How tenants share the daemon.
    pub isolation: Isolation,
    /// What the link carries, in bytes per second with Ethernet, IP and UDP headers, where that is less than the daemon could send: then
    /// packets wait in the daemon, where the arbiter decides which goes next, and not in a queue below. At least 1. What devices of this
    /// daemon send one another takes nothing of it, but waits its turn behind what does.
    pub link_bytes_per_sec: Option<u64>,
    /// How much of the daemon's time calls of one device may take while there are others, in percent: registrations and the like, 1 to 100.
    pub control_percent: u8,
    /// Seed of keys and numbers that must not be guessable; taken from the system when `None`.
    pub seed: Option<u64>,
}

impl DaemonConfig {
    /// The usual settings for a daemon in `dir`.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        DaemonConfig {
            dir: dir.into(),
            local_path: true,
            paths: 1,
            isolation: Isolation::default(),
            link_bytes_per_sec: None,
            control_percent: 50,
            seed: None,
        }
    }

    fn core(&self, seed: u64) -> Config {
        let multipath = (self.paths > 1).then(|| MultipathConfig {
            paths: self.paths,
            // A peer on a busy machine may be off its processor for a while.
            delay: Duration::from_millis(1),
            loss: LossLimits { rto_floor: Duration::from_millis(2), ..LossLimits::default() },
            // The kernel keeps packets whose checksum is that of what was cut off to itself.
            trimmed: false,
            ..MultipathConfig::default()
        });
        Config { seed, local_path: self.local_path, multipath, sharing: sharing(self.isolation, self.link_bytes_per_sec) }
    }
}

/// Why a daemon did not start. Nothing is left behind.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A socket path would not fit a Unix address.
    #[error("{path} is {len} bytes long, and a Unix socket path holds at most {MAX_SOCKET_PATH}: choose a shorter directory")]
    PathTooLong {
        /// The path.
        path: PathBuf,
        /// Its length in bytes.
        len: usize,
    },
    /// Another daemon serves the directory.
    #[error("{dir} is served by another daemon (process {pid}): stop it, or choose another directory")]
    AlreadyServed {
        /// The directory.
        dir: PathBuf,
        /// The other's process ID as it wrote it down, or "unknown".
        pid: String,
    },
    /// A file, socket or thread could not be made.
    #[error("cannot {action} {path}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which path.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

fn failed<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> StartError + 'a {
    move |source| StartError::Io { action, path: path.to_owned(), source }
}

/// A running daemon. Dropping it stops it.
#[derive(Debug)]
pub struct Daemon {
    dir: PathBuf,
    stop: Option<oneshot::Sender<()>>,
    /// Resolves when the control thread ends, for whatever reason.
    ended: oneshot::Receiver<()>,
    threads: Vec<JoinHandle<()>>,
    _lock: Flock<File>,
}

impl Daemon {
    /// Takes the directory, opens the API socket and starts the threads. When this returns, requests are answered.
    ///
    /// # Errors
    /// [`StartError`]; a path that is too long or a directory that is served is refused before anything is made.
    pub fn start(config: DaemonConfig) -> Result<Daemon, StartError> {
        let dir = std::path::absolute(&config.dir).map_err(failed("resolve", &config.dir))?;
        let api = dir.join(API_SOCKET);
        let len = api.as_os_str().as_bytes().len();
        if len > MAX_SOCKET_PATH {
            return Err(StartError::PathTooLong { path: api, len });
        }
        let lock = take_directory(&dir)?;
        remove_sockets(&dir);
        raise_descriptor_limit();

        let seed = match config.seed {
            Some(seed) => seed,
            None => random_seed().map_err(failed("read", Path::new("/dev/urandom")))?,
        };
        let (datapath, runner) = datapath::new(config.core(seed)).map_err(failed("set up the data path of", &dir))?;
        let data_thread = std::thread::Builder::new()
            .name("vrdma-datapath".into())
            .spawn(move || runner.run())
            .map_err(failed("start the data path thread of", &dir))?;

        let (stop, stopped) = oneshot::channel();
        let (ended_tx, ended) = oneshot::channel();
        let (ready, is_ready) = std::sync::mpsc::sync_channel(1);
        let control_dir = dir.clone();
        let control_datapath = datapath.clone();
        let control_thread = std::thread::Builder::new().name("vrdma-control".into()).spawn(move || {
            control::run(&control_dir, config.control_percent, control_datapath, ready, stopped);
            // The receiver may be gone already; then nobody waits.
            let _ = ended_tx.send(());
        });
        let control_thread = match control_thread {
            Ok(thread) => thread,
            Err(source) => {
                datapath.stop();
                let _ = data_thread.join();
                return Err(failed("start the control thread of", &dir)(source));
            }
        };
        let threads = vec![control_thread, data_thread];
        let daemon = Daemon { dir, stop: Some(stop), ended, threads, _lock: lock };
        match is_ready.recv() {
            Ok(Ok(())) => Ok(daemon),
            Ok(Err(source)) => Err(failed("listen on", &api)(source)),
            Err(_) => Err(failed("listen on", &api)(io::Error::other("the control thread ended"))),
        }
    }

    /// The daemon's directory, as an absolute path.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Path of the API socket.
    pub fn api_socket(&self) -> PathBuf {
        self.dir.join(API_SOCKET)
    }

    /// Ends every client and device, removes every socket, and waits for both threads.
    pub fn shutdown(self) {
        // Dropping does it.
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the daemon panicked");
            }
        }
        // The control thread does this in an orderly way; after a panic it is done here.
        remove_sockets(&self.dir);
    }
}

/// Starts a daemon, calls `ready`, and serves until SIGTERM or SIGINT, or until a thread of the daemon fails. The signals are
/// caught from before the start, so that none leaves sockets behind; further ones during the shutdown change nothing.
///
/// # Errors
/// [`StartError`]; also when the daemon ended by itself, which is a fault of the daemon.
pub fn run_until_signal(config: DaemonConfig, ready: impl FnOnce(&Daemon)) -> Result<(), StartError> {
    let dir = config.dir.clone();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed("prepare", &dir))?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).map_err(failed("catch signals for", &dir))?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed("catch signals for", &dir))?;
        let mut daemon = Daemon::start(config)?;
        ready(&daemon);
        let outcome = tokio::select! {
            _ = terminate.recv() => Ok("SIGTERM"),
            _ = interrupt.recv() => Ok("SIGINT"),
            _ = &mut daemon.ended => Err(failed("go on serving", &dir)(io::Error::other("a thread of the daemon failed, see the log"))),
        };
        if let Ok(signal) = outcome {
            tracing::info!(signal, "stopping");
        }
        daemon.shutdown();
        outcome.map(drop)
    })
}

/// Makes the directory and takes its lock, which the kernel gives back even after SIGKILL.
fn take_directory(dir: &Path) -> Result<Flock<File>, StartError> {
    let devices = dir.join(DEVICE_FOLDER);
    // Others may pass through to device sockets that are theirs; the sockets' own modes say who may connect.
    DirBuilder::new().recursive(true).mode(0o755).create(&devices).map_err(failed("create", &devices))?;
    let path = dir.join(LOCK_FILE);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o644)
        .custom_flags(libc::O_CLOEXEC | libc::O_NOFOLLOW)
        .open(&path)
        .map_err(failed("open", &path))?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(mut lock) => {
            let written = lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id()));
            written.map_err(failed("write", &path))?;
            Ok(lock)
        }
        Err((mut file, Errno::EWOULDBLOCK)) => {
            let mut pid = String::new();
            let known = file.read_to_string(&mut pid).is_ok() && !pid.trim().is_empty();
            let pid = if known { pid.trim().to_owned() } else { "unknown".to_owned() };
            Err(StartError::AlreadyServed { dir: dir.to_owned(), pid })
        }
        Err((_, errno)) => Err(failed("lock", &path)(errno.into())),
    }
}

/// Removes the sockets that a daemon that was killed left behind. Their folders stay: containers may hold them. Only called with
/// the lock held.
fn remove_sockets(dir: &Path) {
    let mut stale = vec![dir.join(API_SOCKET)];
    if let Ok(entries) = std::fs::read_dir(dir.join(DEVICE_FOLDER)) {
        stale.extend(entries.flatten().map(|entry| entry.path().join(DEVICE_SOCKET)));
    }
    for path in stale {
        let is_socket = path.symlink_metadata().is_ok_and(|metadata| metadata.file_type().is_socket());
        if is_socket && let Err(error) = std::fs::remove_file(&path) {
            tracing::warn!(path = %path.display(), %error, "cannot remove a socket");
        }
    }
}

/// Every device and client costs descriptors, and the usual soft limit of 1024 is far below what the system allows.
fn raise_descriptor_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(soft, hard)| if soft < hard { setrlimit(Resource::RLIMIT_NOFILE, hard, hard) } else { Ok(()) });
    if let Err(error) = raised {
        tracing::warn!(%error, "cannot raise the limit of open descriptors");
    }
}

fn random_seed() -> io::Result<u64> {
    let mut seed = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut seed)?;
    Ok(u64::from_ne_bytes(seed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn over_long_directory_is_refused_before_anything_is_made() {
        let base = std::env::temp_dir().join(format!("vrdma-long-{}", std::process::id()));
        let dir = base.join("x".repeat(120));
        let error = Daemon::start(DaemonConfig::new(&dir)).unwrap_err();
        assert!(matches!(error, StartError::PathTooLong { .. }), "{error}");
        assert!(error.to_string().contains("107"), "{error}");
        assert!(!base.exists());
    }
}
