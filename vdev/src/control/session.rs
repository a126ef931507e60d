//! Client connections: accepted on a device's socket, one task each.
//!
//! Owns: the life of a connection. It begins with Hello and ends, with everything made on it, when the peer closes it or its
//! process ends, when a message is not one, when answers are not read, when the datapath finds its rings corrupt, or when the
//! device is removed. Never waits for a client while another could be served. What requests mean is in [`super::calls`].

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;
use vdev_abi::control::{MAX_MESSAGE, Refusal, Reply, Request, decode_request, encode_answer};

use super::calls::Caller;
use super::devices::Device;
use super::seqpacket::{self, Received};
use super::watched::watch_input;
use crate::datapath::{ClientId, DatapathHandle, Ended, limits};
use crate::memory::Peer;

/// Pause after an accept that failed for lack of descriptors or memory: the connection stays in the backlog meanwhile.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// A connection, for people.
#[derive(Clone, Debug)]
pub struct SessionView {
    /// Process ID, 0 when it is not visible from here.
    pub pid: i32,
    /// Program name as it gave it.
    pub program: String,
    /// In the datapath.
    pub client: ClientId,
}

/// The connections of one device that have said Hello.
#[derive(Debug, Default)]
pub struct Sessions {
    live: Mutex<HashMap<u64, SessionView>>,
    next: AtomicU64,
}

impl Sessions {
    fn table(&self) -> std::sync::MutexGuard<'_, HashMap<u64, SessionView>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All, in the order of their Hello.
    pub fn views(&self) -> Vec<SessionView> {
        let mut views: Vec<_> = self.table().iter().map(|(&key, view)| (key, view.clone())).collect();
        views.sort_by_key(|&(key, _)| key);
        views.into_iter().map(|(_, view)| view).collect()
    }
}

/// Counts a connection as long as it lives.
struct Counted(Arc<Device>);

impl Counted {
    /// `None` when the device has as many as it may.
    fn new(device: &Arc<Device>) -> Option<Counted> {
        let counted = Counted(device.clone());
        (device.budget.connected() < limits::CLIENTS as u64).then_some(counted)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.budget.disconnected();
    }
}

/// Accepts connections until the device is removed.
pub async fn accept(listener: AsyncFd<OwnedFd>, device: Arc<Device>, datapath: DatapathHandle) {
    let mut removal = device.removal();
    loop {
        let accepted = tokio::select! {
            _ = removal.wait_for(|&removed| removed) => return,
            accepted = listener.async_io(Interest::READABLE, |fd| seqpacket::accept(fd.as_fd())) => accepted,
        };
        match accepted.and_then(|socket| Ok((Peer::of(socket.as_fd())?, watch_input(socket)?))) {
            Ok((peer, socket)) => match Counted::new(&device) {
                Some(counted) => drop(tokio::spawn(serve(socket, peer, counted, datapath.clone()))),
                None => {
                    tracing::warn!(device = %device.name, limit = limits::CLIENTS, pid = peer.pid, "too many clients, one refused")
                }
            },
            // The peer has gone before it was looked at.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) || error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                tracing::warn!(device = %device.name, %error, "cannot accept a client");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Watches the end of a process.
struct ProcessEnd(Option<AsyncFd<OwnedFd>>);

impl ProcessEnd {
    fn of(peer: &Peer) -> io::Result<ProcessEnd> {
        Ok(ProcessEnd(peer.pidfd().map(|fd| watch_input(fd.try_clone_to_owned()?)).transpose()?))
    }

    async fn wait(&self) {
        match &self.0 {
            // An error here only means that the end is noticed by the closed socket alone.
            Some(fd) => match fd.readable().await {
                Ok(_) => {}
                Err(_) => std::future::pending().await,
            },
            None => std::future::pending().await,
        }
    }
}

/// Serves a connection to its end.
async fn serve(socket: AsyncFd<OwnedFd>, peer: Peer, counted: Counted, datapath: DatapathHandle) {
    let device = counted.0.clone();
    let pid = peer.pid;
    let process_end = match ProcessEnd::of(&peer) {
        Ok(process_end) => process_end,
        Err(error) => return tracing::warn!(device = %device.name, pid, %error, "cannot watch the process of a client"),
    };
    let (ended_tx, mut ended) = mpsc::unbounded_channel();
    let mut removal = device.removal();
    let mut caller = Caller::new(device.clone(), datapath.clone(), &peer, ended_tx);
    let mut key = None;
    let reason = tokio::select! {
        reason = converse(&socket, &device, &mut caller, &mut key) => reason,
        ended = ended.recv() => ended.map(|Ended { reason, client }| {
            drop(client);
            reason
        }),
        () = process_end.wait() => None,
        _ = removal.wait_for(|&removed| removed) => None,
    };
    match &reason {
        Some(reason) => tracing::warn!(device = %device.name, pid, reason, "client ended"),
        None => tracing::debug!(device = %device.name, pid, "client left"),
    }
    if let Some(client) = caller.client() {
        // Everything that it made ends now; the memory is unmapped here rather than in the datapath.
        let ending = datapath.timed(move |datapath| datapath.detach(client)).await;
        if let Ok((_memory, took)) = ending {
            device.budget.charge(took);
        }
    }
    if let Some(key) = key {
        device.sessions.table().remove(&key);
    }
    drop(socket);
}

/// Requests and answers. Returns why the connection cannot go on; `None` when the peer closed it.
async fn converse(
    socket: &AsyncFd<OwnedFd>,
    device: &Arc<Device>,
    caller: &mut Caller<'_>,
    key: &mut Option<u64>,
) -> Option<String> {
    loop {
        let (request, fds) = match socket.async_io(Interest::READABLE, receive_request).await {
            Ok(Some(message)) => message,
            Ok(None) => return None,
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return None,
            Err(error) => return Some(error.to_string()),
        };
        let answer = caller.execute(request, fds).await;
        if key.is_none()
            && let (Some(client), Some(program)) = (caller.client(), caller.program())
        {
            let number = device.sessions.next.fetch_add(1, Ordering::Relaxed);
            let view = SessionView { pid: caller.pid(), program: program.to_owned(), client };
            device.sessions.table().insert(number, view);
            *key = Some(number);
        }
        if let Err(reason) = send_answer(socket, answer) {
            return reason;
        }
    }
}

/// One request; `None` at the end of the connection.
fn receive_request(socket: &OwnedFd) -> io::Result<Option<(Request, Vec<OwnedFd>)>> {
    // On the stack, as no message lives longer than this call, and idle connections cost nothing.
    let mut buf = [0; MAX_MESSAGE];
    let Received { len, fds, bytes_cut, fds_cut } = seqpacket::receive(socket.as_fd(), &mut buf)?;
    let invalid = |reason: String| Err(io::Error::new(io::ErrorKind::InvalidData, reason));
    if bytes_cut {
        return invalid(format!("it sent a message longer than {MAX_MESSAGE} bytes"));
    }
    if fds_cut {
        return invalid(format!("it sent more descriptors with a message than {}", vdev_abi::control::MAX_FDS));
    }
    if len == 0 {
        return Ok(None);
    }
    match decode_request(&buf[..len]) {
        Ok(request) => Ok(Some((request, fds))),
        Err(error) => invalid(format!("it sent {len} bytes that are no message: {error}")),
    }
}

/// An answer with the descriptors that go with it.
pub type Answer = Result<(Reply, Vec<OwnedFd>), Refusal>;

/// Sends an answer. The error is why the connection cannot go on, `None` inside when the peer has closed it.
fn send_answer(socket: &AsyncFd<OwnedFd>, answer: Answer) -> Result<(), Option<String>> {
    let (answer, fds) = match answer {
        Ok((reply, fds)) => (Ok(reply), fds),
        Err(refusal) => (Err(refusal), Vec::new()),
    };
    let bytes = encode_answer(&answer).map_err(|error| Some(format!("an answer cannot be sent: {error}")))?;
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    match seqpacket::send(socket.get_ref().as_fd(), &bytes, &fds) {
        Ok(()) => Ok(()),
        Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => Err(None),
        // The library asks one thing at a time and reads each answer.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(Some("it does not read its answers".into())),
        Err(error) => Err(Some(format!("an answer cannot be sent: {error}"))),
    }
}
