//! One hop of a stream: a TCP connection for messages, and a queue pair over which chunks are written into the receiver's window.
//!
//! A chunk is an RDMA WRITE into a slot and a SEND with its header, which completes at the receiver after the WRITE is in place.

use std::cell::RefCell;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::rc::Rc;

use anyhow::{Context as _, Result, ensure};
use perftest::verbs::{Buffer, Context, Cq, DeviceChoice, Mr, Operation, Pd, Peer, Placement, Port, Qp, QpSizes, Remote, Send};
use serde::{Deserialize, Serialize};
use terra::agent::{CHUNK_BYTES, HEADER_BYTES, Header, Message};

/// Slots of a window.
pub const SLOTS: u32 = 32;
/// Version of the hop's protocol.
pub const VERSION: u32 = 1;
/// Longest line, and most that waits to be sent, bytes.
pub const MAX_LINE: usize = 4 << 20;
const MAX_WAITING: usize = 64 << 20;
/// Where headers begin in a window, and those of chunks that are passed on.
const HEADERS: usize = SLOTS as usize * CHUNK_BYTES as usize;
const PASSED_HEADERS: usize = HEADERS + SLOTS as usize * 64;
const WINDOW: usize = PASSED_HEADERS + SLOTS as usize * 64;

/// The first line of whoever opens a hop.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// [`VERSION`].
    pub version: u32,
    /// The opener's site.
    pub from: String,
    /// The sites that are left of the path, the receiver first.
    pub sites: Vec<String>,
    /// Queue pair of the opener.
    pub peer: Peer,
}

/// The answer.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Welcome {
    /// Go on.
    Open {
        /// Queue pair of the receiver.
        peer: Peer,
        /// Its window.
        window: Remote,
        /// Slots of it.
        slots: u32,
    },
    /// No, and why.
    Refused(String),
}

/// A device that is open.
pub struct Device {
    /// Its name.
    pub name: String,
    pd: Rc<Pd>,
    port: Port,
    /// All windows, those that no hop has too: making one takes longer than opening a hop may.
    windows: RefCell<Vec<Rc<Mr>>>,
}

impl Device {
    /// Opens a device by its name.
    pub fn open(name: &str) -> Result<Self> {
        let choice = DeviceChoice { name: Some(name.to_owned()), gid_index: None };
        let context = Context::open(&choice)?;
        let port = context.port(&choice)?;
        let device = Self { name: name.to_owned(), pd: Pd::new(&context)?, port, windows: RefCell::default() };
        device.window()?;
        Ok(device)
    }

    /// A window that no hop has.
    fn window(&self) -> Result<Rc<Mr>> {
        let mut windows = self.windows.borrow_mut();
        if let Some(free) = windows.iter().find(|window| Rc::strong_count(window) == 1) {
            return Ok(free.clone());
        }
        let new = Rc::new(Mr::new(&self.pd, Buffer::new(WINDOW, Placement::Shared)?).context("cannot register a window")?);
        windows.push(new.clone());
        Ok(new)
    }
}

/// One end of a hop.
pub struct Hop {
    qp: Qp,
    cq: Rc<Cq>,
    psn: u32,
    port: Port,
    /// The receiver's window, or the memory that is sent from; a relay's next hop uses that of the one before.
    window: Rc<Mr>,
    remote: Option<Remote>,
    tcp: Option<TcpStream>,
    read: Vec<u8>,
    written: Vec<u8>,
}

impl Hop {
    /// An end that is not connected. Without a window of another hop it gets its own.
    pub fn new(device: &Device, psn: u32, window: Option<Rc<Mr>>, receives: bool) -> Result<Self> {
        let window = window.map_or_else(|| device.window(), Ok)?;
        let (send, receive) = if receives { (1, SLOTS) } else { (2 * SLOTS, 1) };
        let cq = Cq::new(device.pd.context(), send + receive)?;
        let qp = Qp::new(&device.pd, &cq, QpSizes { send, receive, inline: 0 })?;
        qp.to_init()?;
        if receives {
            for slot in 0..SLOTS {
                qp.post_receive(&window, u64::from(slot), HEADERS + slot as usize * 64, HEADER_BYTES as u32)?;
            }
        }
        let psn = psn & 0xFF_FFFF;
        Ok(Self { qp, cq, psn, port: device.port, window, remote: None, tcp: None, read: Vec::new(), written: Vec::new() })
    }

    /// What the other end has to know.
    pub fn peer(&self) -> Peer {
        Peer { qpn: self.qp.number(), psn: self.psn, gid: self.port.gid, mtu: self.port.mtu }
    }

    /// The window, for the other end and for the next hop.
    pub fn window(&self) -> (Remote, Rc<Mr>) {
        let buffer = self.window.buffer();
        let remote = Remote { addr: buffer.address(), length: buffer.size() as u64, rkey: self.window.rkey() };
        (remote, self.window.clone())
    }

    /// Connects the queue pair; who sends is told the window.
    pub fn connect(&mut self, peer: &Peer, remote: Option<Remote>) -> Result<()> {
        ensure!(remote.is_none_or(|remote| remote.length >= HEADERS as u64), "the window of the peer is too small");
        self.qp.connect(&self.port, self.psn, peer).context("cannot connect the queue pair")?;
        self.remote = remote;
        Ok(())
    }

    /// Takes the connection for messages.
    pub fn attach(&mut self, tcp: TcpStream) -> Result<()> {
        tcp.set_nonblocking(true)?;
        tcp.set_nodelay(true)?;
        self.tcp = Some(tcp);
        Ok(())
    }

    /// Writes a chunk of this site's data.
    pub fn write_own(&mut self, header: Header, bytes: &[u8]) -> Result<()> {
        let at = header.slot as usize * CHUNK_BYTES as usize;
        self.window.buffer().write(at, bytes);
        self.post(header, at, HEADERS + header.slot as usize * 64)
    }

    /// Writes a chunk that lies in a slot of the window.
    pub fn pass_on(&mut self, header: Header, held: u32) -> Result<()> {
        self.post(header, held as usize * CHUNK_BYTES as usize, PASSED_HEADERS + held as usize * 64)
    }

    fn post(&mut self, header: Header, at: usize, header_at: usize) -> Result<()> {
        let remote = self.remote.context("the hop is not connected")?;
        self.window.buffer().write(header_at, &header.to_bytes());
        let remote_addr = remote.addr + u64::from(header.slot) * CHUNK_BYTES;
        let wr_id = u64::from(header.slot);
        let window = self.window.clone();
        let request = |index| match index {
            0 => Send { operation: Operation::Write, wr_id, offset: at, length: header.length, remote_addr, signaled: false },
            _ => {
                let length = HEADER_BYTES as u32;
                Send { operation: Operation::Send, wr_id, offset: header_at, length, remote_addr: 0, signaled: true }
            }
        };
        Ok(self.qp.post(&window, remote.rkey, 2, request)?)
    }

    /// Slots whose chunks the other end has.
    pub fn poll_written(&mut self) -> Result<Vec<u32>> {
        let mut slots = Vec::new();
        self.cq.poll(|entry| slots.push(entry.wr_id as u32))?;
        Ok(slots)
    }

    /// Headers of chunks that have arrived.
    pub fn poll_arrived(&mut self) -> Result<Vec<Header>> {
        let mut arrived = Vec::new();
        self.cq.poll(|entry| arrived.push((entry.wr_id as usize, entry.byte_len)))?;
        let mut headers = Vec::with_capacity(arrived.len());
        for (receive, length) in arrived {
            ensure!(length as usize == HEADER_BYTES && receive < SLOTS as usize, "a header of {length} bytes came");
            let mut bytes = [0; HEADER_BYTES];
            self.window.buffer().read(HEADERS + receive * 64, &mut bytes);
            headers.push(Header::from_bytes(&bytes));
            self.qp.post_receive(&self.window, receive as u64, HEADERS + receive * 64, HEADER_BYTES as u32)?;
        }
        Ok(headers)
    }

    /// Copies a chunk out of the window.
    pub fn read_slot(&self, slot: u32, bytes: &mut [u8]) {
        self.window.buffer().read(slot as usize * CHUNK_BYTES as usize, bytes);
    }

    /// Says something; it goes when the connection takes it.
    pub fn say(&mut self, message: &Message) -> Result<()> {
        ensure!(self.written.len() < MAX_WAITING, "the neighbour does not read what it is told");
        serde_json::to_writer(&mut self.written, message)?;
        self.written.push(b'\n');
        self.flush()
    }

    /// Sends what waits.
    pub fn flush(&mut self) -> Result<()> {
        let Some(tcp) = &mut self.tcp else { return Ok(()) };
        while !self.written.is_empty() {
            match tcp.write(&self.written) {
                Ok(count) => drop(self.written.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// What the neighbour has said.
    pub fn hear(&mut self) -> Result<Vec<Message>> {
        let Some(tcp) = &mut self.tcp else { return Ok(Vec::new()) };
        let mut bytes = [0; 16 << 10];
        match tcp.read(&mut bytes) {
            Ok(0) => anyhow::bail!("the neighbour has hung up"),
            Ok(count) => self.read.extend_from_slice(&bytes[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
        let Some(end) = self.read.iter().rposition(|byte| *byte == b'\n') else {
            ensure!(self.read.len() <= MAX_LINE, "the neighbour sent a line of more than {MAX_LINE} bytes");
            return Ok(Vec::new());
        };
        let lines: Vec<u8> = self.read.drain(..=end).collect();
        let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_slice(line).context("the neighbour sent no message")).collect()
    }
}
