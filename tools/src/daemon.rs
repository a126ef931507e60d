//! `vrdma daemon`: serves until a signal.

use std::time::Duration;

use anyhow::Result;
use vdev::{DaemonConfig, Isolation};

use crate::args::{DaemonOptions, IsolationChoice};
use crate::place::Place;

/// Returns after SIGINT or SIGTERM, with all sockets removed.
pub fn carry_out(place: &Place, options: &DaemonOptions) -> Result<()> {
    // Refuses a directory that is too long with the words of the other commands.
    place.api_socket()?;
    let config = DaemonConfig {
        paths: options.paths.map_or(1, |number| number.unwrap_or(vdev::DEFAULT_PATHS)),
        isolation: match options.isolation {
            IsolationChoice::Vrdma => Isolation::Vrdma,
            IsolationChoice::Off => Isolation::Off,
            IsolationChoice::Justitia => Isolation::Justitia { target: Duration::from_micros(options.justitia_target) },
        },
        link_bytes_per_sec: options.link_rate.map(|bits| bits / 8),
        ..DaemonConfig::new(place.dir())
    };
    vdev::run_until_signal(config, |daemon| {
        eprintln!("vrdma: serving at {}; add a device with `vrdma dev add NAME --ip IP`", daemon.api_socket().display());
    })?;
    Ok(())
}
