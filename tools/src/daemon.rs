//! `vrdma daemon`: serves until a signal.

use anyhow::Result;
use vdev::DaemonConfig;

use crate::place::Place;

/// Returns after SIGINT or SIGTERM, with all sockets removed.
pub fn carry_out(place: &Place, paths: u16) -> Result<()> {
    // Refuses a directory that is too long with the words of the other commands.
    place.api_socket()?;
    vdev::run_until_signal(DaemonConfig { paths, ..DaemonConfig::new(place.dir()) }, |daemon| {
        eprintln!("vrdma: serving at {}; add a device with `vrdma dev add NAME --ip IP`", daemon.api_socket().display());
    })?;
    Ok(())
}
