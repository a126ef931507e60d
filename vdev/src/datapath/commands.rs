//! How the control thread reaches the datapath: closures over a channel, executed between two rounds.
//!
//! The bound on what waits is the number of control tasks, each of which waits for its answer before it asks again.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use tokio::sync::oneshot;

use super::clients::ClientId;
use super::wake::Waker;
use super::{Datapath, clock};
use crate::memory::Reaching;

/// How long a call waits before the log says what holds the datapath up.
const PATIENCE: Duration = Duration::from_secs(2);
/// Commands executed between two rounds, and after how much time no further one is begun: data of everybody wait for them.
const PER_ROUND: usize = 16;
const TIME_PER_ROUND: Duration = Duration::from_micros(50);

type Command = Box<dyn FnOnce(&mut Datapath) + Send>;

/// Sends commands. Cheap to clone.
#[derive(Clone)]
pub struct DatapathHandle {
    sender: Sender<Command>,
    waker: Arc<Waker>,
    reaching: Arc<Reaching>,
}

/// The datapath has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the daemon is stopping")]
pub struct Gone;

pub(super) struct Commands(Receiver<Command>);

pub(super) fn channel(waker: Arc<Waker>, reaching: Arc<Reaching>) -> (DatapathHandle, Commands) {
    let (sender, receiver) = unbounded();
    (DatapathHandle { sender, waker, reaching }, Commands(receiver))
}

impl DatapathHandle {
    /// Runs a closure on the datapath thread without waiting for it. A datapath that has stopped drops it.
    pub fn post(&self, command: impl FnOnce(&mut Datapath) + Send + 'static) {
        if self.sender.send(Box::new(command)).is_ok() {
            self.waker.wake();
        }
    }

    /// Runs a closure on the datapath thread and waits for its answer. Once sent, it runs even if the caller goes away.
    ///
    /// # Errors
    /// [`Gone`].
    pub async fn call<R: Send + 'static>(&self, call: impl FnOnce(&mut Datapath) -> R + Send + 'static) -> Result<R, Gone> {
        let (answer, mut answered) = oneshot::channel();
        // If the caller is gone, what the call returned is dropped here.
        self.post(move |datapath| drop(answer.send(call(datapath))));
        if let Ok(answer) = tokio::time::timeout(PATIENCE, &mut answered).await {
            return answer.map_err(|_| Gone);
        }
        if let Some(pid) = self.held_up_by() {
            tracing::warn!(pid, "the data path, and so every device, waits for memory of this process");
        }
        answered.await.map_err(|_| Gone)
    }

    /// As [`Self::call`], and how long it took on the datapath thread.
    ///
    /// # Errors
    /// [`Gone`].
    pub async fn timed<R: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Datapath) -> R + Send + 'static,
    ) -> Result<(R, Duration), Gone> {
        self.call(move |datapath| timed(datapath, call)).await
    }

    /// The process whose memory the datapath is reaching right now. If it has been for long, that is what it waits for.
    pub fn held_up_by(&self) -> Option<i32> {
        self.reaching.process()
    }

    /// As [`Self::call`], for threads that may wait; not from within the control thread's runtime.
    ///
    /// # Errors
    /// [`Gone`].
    pub fn call_blocking<R: Send + 'static>(&self, call: impl FnOnce(&mut Datapath) -> R + Send + 'static) -> Result<R, Gone> {
        let (answer, answered) = oneshot::channel();
        self.post(move |datapath| drop(answer.send(call(datapath))));
        answered.blocking_recv().map_err(|_| Gone)
    }

    /// As [`Self::call_blocking`], and how long it took on the datapath thread.
    ///
    /// # Errors
    /// [`Gone`].
    pub fn timed_blocking<R: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Datapath) -> R + Send + 'static,
    ) -> Result<(R, Duration), Gone> {
        self.call_blocking(move |datapath| timed(datapath, call))
    }

    /// Resolves when the datapath has ended, for whatever reason.
    pub async fn ended(&self) {
        let (alive, ended) = oneshot::channel::<()>();
        self.post(move |datapath| datapath.alive.push(alive));
        // Never sent: dropped with the datapath's state.
        let _ = ended.await;
    }

    /// Ends the datapath after the commands sent before.
    pub fn stop(&self) {
        self.post(|datapath| datapath.stopping = true);
    }
}

fn timed<R>(datapath: &mut Datapath, call: impl FnOnce(&mut Datapath) -> R) -> (R, Duration) {
    let begun = clock();
    let answer = call(datapath);
    (answer, clock().saturating_since(begun))
}

/// Holds a client in the datapath; dropping it ends the client. It travels in the answer to the call that made the client, so
/// that a caller who has gone away meanwhile leaves nothing behind.
pub struct Attachment {
    id: ClientId,
    datapath: DatapathHandle,
}

impl Attachment {
    /// From now on the client lives as long as this.
    pub fn new(id: ClientId, datapath: DatapathHandle) -> Self {
        Attachment { id, datapath }
    }

    /// The client.
    pub fn id(&self) -> ClientId {
        self.id
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        let id = self.id;
        self.datapath.post(move |datapath| drop(datapath.detach(id)));
    }
}

impl Commands {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Executes what waits, up to a bound. True if there was something.
    pub fn execute(&self, datapath: &mut Datapath) -> bool {
        if self.0.is_empty() {
            return false;
        }
        let begun = clock();
        for command in self.0.try_iter().take(PER_ROUND) {
            command(datapath);
            if clock().saturating_since(begun) >= TIME_PER_ROUND {
                break;
            }
        }
        true
    }
}
