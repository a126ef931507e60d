//! The control thread: what people and client processes ask, one task each on one tokio runtime.
//!
//! Owns: the HTTP API ([`api`]), the devices ([`devices`]), their sockets and the sessions on them ([`session`]), the view of the
//! host's interfaces ([`links`]). Never touches a ring or the core: that is asked of the datapath.

mod access;
mod api;
mod budget;
mod calls;
mod devices;
mod links;
mod metrics;
pub mod seqpacket;
mod session;
mod shares;
mod spec;
mod watched;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use tokio::net::UnixListener;
use tokio::sync::oneshot;

use crate::daemon::API_SOCKET;
use crate::datapath::DatapathHandle;
pub use budget::Budget;
use budget::Everybody;
use devices::Devices;

/// Serves until `stopped` resolves (or its sender is dropped), then takes everything down and stops the datapath. `ready` is told
/// once requests are answered, or why they never will be. `percent` of the daemon's time are for calls of one device while there are
/// others.
pub fn run(
    dir: &Path,
    percent: u8,
    datapath: DatapathHandle,
    ready: SyncSender<io::Result<()>>,
    stopped: oneshot::Receiver<()>,
) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            let _ = ready.send(Err(error));
            return datapath.stop();
        }
    };
    runtime.block_on(async {
        match open_api(dir) {
            Ok(listener) => {
                let devices = Arc::new(Devices::new(dir, Everybody::new(percent), datapath.clone()));
                let watch = tokio::spawn(links::watch(devices.clone()));
                let server = tokio::spawn(api::serve(listener, devices.clone()));
                let _ = ready.send(Ok(()));
                tracing::info!(dir = %dir.display(), "serving");
                tokio::select! {
                    _ = stopped => {}
                    () = datapath.ended() => tracing::error!("the data path has ended"),
                }
                server.abort();
                watch.abort();
                let _ = std::fs::remove_file(dir.join(API_SOCKET));
                devices.close().await;
            }
            Err(error) => {
                let _ = ready.send(Err(error));
            }
        }
        datapath.stop();
    });
    // Does not wait for a thread that a client's file system holds up.
    runtime.shutdown_background();
}

/// The API socket: for the daemon's own user alone, from before anybody can connect.
fn open_api(dir: &Path) -> io::Result<UnixListener> {
    let path = dir.join(API_SOCKET);
    let socket = access::bind_private(&path, nix::sys::socket::SockType::Stream)?;
    seqpacket::listen(std::os::fd::AsFd::as_fd(&socket))?;
    let listener = std::os::unix::net::UnixListener::from(socket);
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}
