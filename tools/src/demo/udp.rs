//! Plain UDP with segmentation offload between two processes: what the kernel's UDP path carries at best when nothing is done with
//! the bytes. The receiver counts; what a sender believes to have sent is no result.

use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::socket::{setsockopt, sockopt};
use perftest::Link;

use crate::stage::ADDRESSES;

/// Bytes of one UDP payload: a RoCE packet in the middle of a message with 4096 bytes of payload, its header and checksum.
pub const SEGMENT: usize = 4096 + 12 + 4;
/// Bytes of one send: as many segments as fit under the kernel's 64 KiB.
pub const BURST: usize = 15 * SEGMENT;
/// How long is sent.
const TIME: Duration = Duration::from_millis(400);
/// Silence after which the receiver counts.
const SILENCE: Duration = Duration::from_millis(100);
/// Wanted receive buffer in bytes.
const RECEIVE_BUFFER: usize = 32 << 20;

/// Sends to whom the link names.
pub fn send(mut link: Link) -> Result<()> {
    let to: String = link.receive()?;
    let socket = UdpSocket::bind((ADDRESSES[1], 0)).context("cannot bind a UDP socket")?;
    socket.connect(&to).with_context(|| format!("cannot connect to {to}"))?;
    setsockopt(&socket.as_fd(), sockopt::UdpGsoSegment, &(SEGMENT as i32)).context("no UDP segmentation offload")?;
    let burst = vec![0x5A; BURST];
    let start = Instant::now();
    while start.elapsed() < TIME {
        socket.send(&burst).context("cannot send UDP")?;
    }
    Ok(())
}

/// Tells the link where it listens, and returns the bytes per second that arrived.
pub fn receive(mut link: Link) -> Result<f64> {
    let socket = UdpSocket::bind((ADDRESSES[0], 0)).context("cannot bind a UDP socket")?;
    setsockopt(&socket.as_fd(), sockopt::UdpGroSegment, &true).context("no UDP receive offload")?;
    // Beyond the system's limit for ordinary users; the demo is root when it comes here.
    setsockopt(&socket.as_fd(), sockopt::RcvBufForce, &RECEIVE_BUFFER).context("cannot size the receive buffer")?;
    socket.set_read_timeout(Some(TIME + SILENCE * 20))?;
    link.send(&socket.local_addr()?.to_string())?;
    let mut buffer = vec![0; 1 << 16];
    socket.recv(&mut buffer).context("no UDP packet arrived")?;
    socket.set_read_timeout(Some(SILENCE))?;
    let start = Instant::now();
    let mut last = start;
    let mut bytes = 0;
    // The error is the timeout: the sender has finished.
    while let Ok(length) = socket.recv(&mut buffer) {
        bytes += length;
        last = Instant::now();
    }
    let seconds = (last - start).as_secs_f64();
    ensure!(seconds > TIME.as_secs_f64() / 2.0, "UDP stopped after {seconds:.3} s");
    Ok(bytes as f64 / seconds)
}
