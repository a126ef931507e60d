//! The link between the two ends: what they tell each other outside of RDMA, one JSON value per line.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::endpoint::Shape;
use crate::verbs::{Operation, Peer, Remote};

/// TCP port of the exchange, perftest's own.
pub const PORT: u16 = 18515;
/// Version of the exchange; both ends must agree.
pub const VERSION: u32 = 2;
/// Longest line in bytes.
const LINE_MAX: u64 = 64 * 1024;
/// Longest wait of the initiator for an answer; benchmarks give up on their own before.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Why the link is of no more use.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// Closed.
    #[error("the other end has closed the connection")]
    Closed,
    /// Broken or too slow.
    #[error("the connection to the other end failed: {0}")]
    Io(#[from] std::io::Error),
    /// Not our protocol.
    #[error("the other end does not speak this exchange: {0}")]
    Protocol(String),
    /// The other end failed.
    #[error("the other end failed: {0}")]
    Remote(String),
}

/// What the initiator asks.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    /// A new endpoint instead of the present one.
    Open {
        /// [`VERSION`].
        version: u32,
        /// Of what kind.
        shape: Shape,
    },
    /// Connects it.
    Connect {
        /// To whom.
        peer: Peer,
        /// Memory of the initiator, for ping-pong.
        memory: Remote,
    },
    /// Receives messages: answered when ready and again when all have come.
    Receive {
        /// How many.
        count: u64,
        /// Bytes of each.
        length: u32,
    },
    /// Answers messages with messages: answered when ready and again at the end.
    PingPong {
        /// WRITE or SEND.
        operation: Operation,
        /// Bytes of each.
        length: u32,
        /// How many.
        count: u64,
    },
}

/// What the target answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The new endpoint.
    Opened {
        /// Its queue pair.
        peer: Peer,
        /// Its memory.
        memory: Remote,
        /// The target's process, for comparison with `process_vm_writev`.
        pid: i32,
    },
    /// Go on.
    Ready,
    /// All done.
    Done,
    /// It did not work.
    Failed(String),
}

/// One end of the link.
#[derive(Debug)]
pub struct Link {
    reader: BufReader<std::fs::File>,
    writer: std::fs::File,
}

impl Link {
    fn new(stream: OwnedFd) -> std::io::Result<Link> {
        let writer = std::fs::File::from(stream.try_clone()?);
        Ok(Link { reader: BufReader::new(std::fs::File::from(stream)), writer })
    }

    /// Waits for one initiator.
    pub fn accept(listener: &TcpListener) -> std::io::Result<Link> {
        let (stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        Link::new(stream.into())
    }

    /// Connects to a target.
    pub fn connect(host: &str, port: u16) -> std::io::Result<Link> {
        let stream = TcpStream::connect((host, port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        Link::new(stream.into())
    }

    /// Over a socket that a parent process has connected, as its initiator.
    pub fn initiator_on(stream: UnixStream) -> std::io::Result<Link> {
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        Link::new(stream.into())
    }

    /// Over a socket that a parent process has connected, as its target.
    pub fn target_on(stream: UnixStream) -> std::io::Result<Link> {
        Link::new(stream.into())
    }

    /// Sends one value.
    pub fn send(&mut self, value: &impl Serialize) -> Result<(), LinkError> {
        let mut line = serde_json::to_vec(value).map_err(|error| LinkError::Protocol(error.to_string()))?;
        line.push(b'\n');
        Ok(self.writer.write_all(&line)?)
    }

    /// Receives one value.
    pub fn receive<T: DeserializeOwned>(&mut self) -> Result<T, LinkError> {
        let mut line = Vec::new();
        (&mut self.reader).take(LINE_MAX).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Err(LinkError::Closed);
        }
        serde_json::from_slice(&line).map_err(|error| LinkError::Protocol(error.to_string()))
    }

    /// Receives an answer; a reported failure is an error here.
    pub fn answer(&mut self) -> Result<Answer, LinkError> {
        match self.receive()? {
            Answer::Failed(reason) => Err(LinkError::Remote(reason)),
            answer => Ok(answer),
        }
    }

    /// Receives an answer that must be this one.
    pub fn expect(&mut self, wanted: &Answer) -> Result<(), LinkError> {
        let answer = self.answer()?;
        if std::mem::discriminant(&answer) == std::mem::discriminant(wanted) {
            return Ok(());
        }
        Err(LinkError::Protocol(format!("{answer:?} came instead of {wanted:?}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Link, UnixStream) {
        let (a, b) = UnixStream::pair().unwrap();
        (Link::target_on(a).unwrap(), b)
    }

    #[test]
    fn values_pass() {
        let (mut a, b) = pair();
        let mut b = Link::target_on(b).unwrap();
        a.send(&Answer::Ready).unwrap();
        b.expect(&Answer::Ready).unwrap();
        a.send(&Answer::Failed("no memory".to_owned())).unwrap();
        assert_eq!(b.answer().unwrap_err().to_string(), "the other end failed: no memory");
        a.send(&Answer::Done).unwrap();
        assert!(matches!(b.expect(&Answer::Ready), Err(LinkError::Protocol(_))));
        drop(a);
        assert!(matches!(b.answer(), Err(LinkError::Closed)));
    }

    #[test]
    fn junk_is_refused() {
        let (mut a, mut b) = pair();
        b.write_all(b"GET / HTTP/1.1\n").unwrap();
        assert!(matches!(a.receive::<Ask>(), Err(LinkError::Protocol(_))));
        b.set_nonblocking(true).unwrap();
        let writer = std::thread::spawn(move || {
            b.set_nonblocking(false).unwrap();
            let _ = b.write_all(&vec![b'x'; 2 * LINE_MAX as usize]);
        });
        assert!(matches!(a.receive::<Ask>(), Err(LinkError::Protocol(_))));
        drop(a);
        writer.join().unwrap();
    }
}
