//! The two child processes of the demo. Each is this same binary, started like any program that uses a device: with the verbs
//! library preloaded. Standard input is the link between them; the initiator's standard output carries [`Event`]s to the parent.

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result};
use perftest::Link;
use perftest::verbs::{DeviceChoice, Placement};
use serde::{Deserialize, Serialize};

use super::report::Report;
use super::{measure, udp};
use crate::args::DemoSide;

/// What the initiator tells the parent, one JSON value per line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// How far it is.
    Progress {
        /// Steps done.
        done: usize,
        /// Steps in all.
        total: usize,
        /// What comes next.
        next: String,
    },
    /// All results of the initiator.
    Report(Box<Report>),
    /// The result of the streamer.
    Write {
        /// Bytes per message.
        size_bytes: u32,
        /// Path MTU.
        mtu_bytes: u32,
        /// Rate.
        bytes_per_sec: f64,
    },
    /// The result of the receiver of plain UDP.
    Udp {
        /// Rate.
        bytes_per_sec: f64,
    },
}

/// Runs one side to its end.
pub fn carry_out(side: DemoSide) -> Result<()> {
    let stdin = std::io::stdin().as_fd().try_clone_to_owned().context("cannot use the link of the demo")?;
    let stream = UnixStream::from(stdin);
    let choice = DeviceChoice::default();
    match side {
        DemoSide::Target => perftest::serve(Link::target_on(stream)?, &choice),
        DemoSide::Initiator => {
            let report = measure::run(Link::initiator_on(stream)?, &choice, |event| tell(&event))?;
            tell(&Event::Report(Box::new(report)))
        }
        DemoSide::HeapStreamer | DemoSide::SharedStreamer => {
            let placement = if side == DemoSide::HeapStreamer { Placement::Heap } else { Placement::Shared };
            let link = Link::initiator_on(stream)?;
            let (size_bytes, mtu_bytes, bytes_per_sec) = measure::stream_write(link, &choice, placement)?;
            tell(&Event::Write { size_bytes, mtu_bytes, bytes_per_sec })
        }
        DemoSide::UdpSender => udp::send(Link::target_on(stream)?),
        DemoSide::UdpReceiver => {
            let bytes_per_sec = udp::receive(Link::initiator_on(stream)?)?;
            tell(&Event::Udp { bytes_per_sec })
        }
    }
}

fn tell(event: &Event) -> Result<()> {
    let mut line = serde_json::to_vec(event)?;
    line.push(b'\n');
    let mut out = std::io::stdout().lock();
    out.write_all(&line).and_then(|()| out.flush()).context("the demo has ended")
}
