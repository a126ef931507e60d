//! A pair of streaming test programs on two devices: the background against which things are made to break.

use crate::matrix::{free_port, wait_until_listening};
use crate::{Daemon, Program};
use std::time::Duration;

/// How long a pair may take until bytes flow.
const START_LIMIT: Duration = Duration::from_secs(20);

/// Two programs, the first of which WRITEs into the memory of the second.
#[derive(Debug)]
pub struct Streams {
    /// The one that writes.
    pub writer: Program,
    /// The one that lends its memory.
    pub lender: Program,
}

impl Streams {
    /// Starts the pair and waits until bytes flow. `client` is the path of `verbs-client`, `options` are more words of the
    /// writer. Without a daemon of its own the writer uses the lender's.
    pub fn start(
        client: &str,
        lender: (&mut Daemon, &str),
        writer: (Option<&mut Daemon>, &str),
        host: &str,
        options: &[&str],
    ) -> Streams {
        let port = free_port().to_string();
        let (lender_daemon, lender_device) = lender;
        let mut lender = lender_daemon.run(lender_device, &[client, "stream", "--listen", &port]);
        wait_until_listening(&mut lender, &port);
        let at = format!("{host}:{port}");
        let daemon = match writer.0 {
            Some(daemon) => daemon,
            None => lender_daemon,
        };
        let mut writer = daemon.run(writer.1, &[&[client, "stream", "--connect", &at], options].concat());
        writer.wait_for_output("streaming", START_LIMIT);
        Streams { writer, lender }
    }
}
