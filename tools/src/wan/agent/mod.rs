//! `vrdma wan agent`: the I/O of a site's agent. What it does and when is the business of `terra::agent`.
//!
//! Owns: devices, connections to other agents, files. Each path that the site sends on has a device of its own for as long as it
//! is used, and the daemon keeps that device to the path's rate; one more device receives and relays. One thread does everything
//! with the devices; others talk with the controller, probe neighbours, and set connections up.

mod content;
mod hop;
mod told;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use socket2::{Domain, Socket, Type};
use terra::Epoch;
use terra::agent::{Action, Agent, CHUNK_BYTES, Chunks, Group, Header, Part, Source, StreamId, Task};

use self::content::{Content, Folders};
use self::hop::{Device, Hello, Hop, MAX_LINE, SLOTS, VERSION, Welcome};
use self::told::{Shared, lock};
use crate::api::{Client, SharesChange};
use crate::args::WanAgentOptions;
use crate::place::Place;
use crate::run::{SOCKET_VARIABLE, equip};

/// For connecting to a neighbour, and for its answer.
const CONNECT: Duration = Duration::from_millis(500);
/// Between two looks at the devices while there are streams, and at the rest while there are none.
const LOOK: Duration = Duration::from_millis(1);
const IDLE: Duration = Duration::from_millis(50);
/// Connections that are being set up at once.
const MAX_GREETING: usize = 64;
/// Least rate that a device is given; and what it may send at once after a pause: so many seconds of its rate, within bounds.
const MIN_BITS_PER_SEC: f64 = 1e5;
const BURST_S: f64 = 0.005;
const BURST_BYTES: (u64, u64) = (16 << 10, 1 << 20);
/// Groups that are received and not whole; above that all are given up, and those that still come begin again.
const MAX_RECEIVING: usize = 1_000;

/// What other threads have for the one with the devices.
pub enum Input {
    /// Orders of the controller.
    Orders(Epoch, Vec<Task>),
    /// Send nothing any more; then the epoch is 0.
    Stop,
    /// A neighbour has said hello.
    Hello(TcpStream, Hello),
    /// A neighbour has answered, or not.
    Answer(StreamId, Result<(TcpStream, Welcome)>),
}

/// Serves until it is killed. The verbs library has to be there from the start, so that the program starts itself again with it.
pub fn carry_out(place: &Place, options: &WanAgentOptions) -> Result<()> {
    if std::env::var_os(SOCKET_VARIABLE).is_none() {
        let mut sockets = OsString::from(place.device_socket(&options.device)?);
        for name in &options.path_devices {
            sockets.push(":");
            sockets.push(place.device_socket(name)?);
        }
        let mut command = Command::new(std::env::current_exe().context("cannot find the running binary")?);
        command.args(std::env::args_os().skip(1));
        equip(&mut command, &sockets)?;
        return Err(command.exec()).context("cannot start with the verbs library");
    }
    let state = options.state.clone().unwrap_or_else(|| place.dir().join(format!("wan-{}", options.site)));
    let folders = Folders::open(options.files.as_deref(), &state)?;
    let listener = TcpListener::bind(options.listen).with_context(|| format!("cannot listen on {}", options.listen))?;
    let socket = UdpSocket::bind(options.listen).with_context(|| format!("cannot listen on {}", options.listen))?;
    let controller = options.controller.clone().map_or_else(|| place.wan_socket(), Ok)?;
    let (inputs, received) = channel();
    let shared = Shared::default();
    let mut node = Node {
        agent: Agent::new(&options.site, options.path_devices.len(), 0.0),
        began: Instant::now(),
        client: Client::new(place.clone())?,
        receives: Device::open(&options.device)?,
        paths: options.path_devices.iter().map(|name| Ok((Device::open(name)?, None))).collect::<Result<_>>()?,
        folders,
        hops: BTreeMap::new(),
        sources: BTreeMap::new(),
        destinations: BTreeMap::new(),
        shared: shared.clone(),
        inputs: inputs.clone(),
        next_psn: std::process::id(),
        address: options.listen.ip(),
    };
    {
        let (shared, limit) = (shared.clone(), Duration::from_millis(options.silent_ms));
        background("probes", move || told::probe(&socket, &shared, limit))?;
    }
    {
        let (shared, inputs) = (shared.clone(), inputs.clone());
        background("greets", move || greet(&listener, &shared, &inputs))?;
    }
    let (site, address) = (options.site.clone(), options.listen);
    background("controller", move || told::talk(controller, &site, address, &shared, &inputs))?;
    eprintln!("vrdma: the agent of {} listens on {}", options.site, options.listen);
    node.serve(&received)
}

/// A thread without which the agent is of no use.
fn background(name: &str, run: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
    let ended = move || {
        if let Err(error) = run() {
            eprintln!("vrdma: {}", crate::output::sentence(&error));
            std::process::exit(1);
        }
    };
    thread::Builder::new().name(name.to_owned()).spawn(ended).map(drop).context("cannot start a thread")
}

/// Takes connections of agents that the controller knows, and reads what they begin with.
fn greet(listener: &TcpListener, shared: &Shared, inputs: &Sender<Input>) -> Result<()> {
    let greeting = std::sync::Arc::new(());
    loop {
        let (stream, from) = listener.accept().context("cannot accept connections")?;
        let known = lock(shared).agents.values().any(|address| address.ip() == from.ip());
        if !known || std::sync::Arc::strong_count(&greeting) > MAX_GREETING {
            tracing::warn!("{from} is no agent that the controller knows, or too many connect at once");
            continue;
        }
        let (inputs, shared, turn) = (inputs.clone(), shared.clone(), greeting.clone());
        thread::spawn(move || {
            let hello = read_line::<Hello>(&stream);
            drop(turn);
            match hello {
                Ok(hello) if lock(&shared).agents.get(&hello.from).is_some_and(|address| address.ip() == from.ip()) => {
                    drop(inputs.send(Input::Hello(stream, hello)));
                }
                Ok(hello) => tracing::warn!("{from} says that it is the agent of {:?}, which it is not", hello.from),
                Err(error) => tracing::warn!("{from}: {error:#}"),
            }
        });
    }
}

/// One line of JSON. The peer says nothing after it before it is answered, so that nothing is lost.
fn read_line<T: serde::de::DeserializeOwned>(stream: &TcpStream) -> Result<T> {
    stream.set_read_timeout(Some(CONNECT))?;
    let mut line = Vec::new();
    BufReader::new(stream.take(MAX_LINE as u64)).read_until(b'\n', &mut line)?;
    serde_json::from_slice(&line).context("that is no agent")
}

fn write_line(mut stream: &TcpStream, value: &impl serde::Serialize) -> Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    stream.set_write_timeout(Some(CONNECT))?;
    Ok(stream.write_all(&line)?)
}

/// Everything with the devices.
struct Node {
    agent: Agent,
    began: Instant,
    client: Client,
    receives: Device,
    /// With the stream that has it.
    paths: Vec<(Device, Option<StreamId>)>,
    folders: Folders,
    /// With whether chunks come in.
    hops: BTreeMap<StreamId, (Hop, bool)>,
    /// With what they were opened for.
    sources: BTreeMap<Group, (Vec<Part>, Content)>,
    destinations: BTreeMap<Group, (Content, Chunks)>,
    shared: Shared,
    inputs: Sender<Input>,
    next_psn: u32,
    address: IpAddr,
}

impl Node {
    fn now_s(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    fn serve(&mut self, received: &Receiver<Input>) -> Result<()> {
        let mut busy = false;
        loop {
            let wait = if busy {
                Duration::ZERO
            } else if self.hops.is_empty() {
                IDLE
            } else {
                LOOK
            };
            busy = false;
            match received.recv_timeout(wait) {
                Ok(input) => {
                    busy = true;
                    self.take(input)?;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("the threads of the agent have ended"),
            }
            if self.agent.poll_timeout() <= self.now_s() {
                self.agent.handle_timeout(self.now_s());
                self.act()?;
            }
            let streams: Vec<StreamId> = self.hops.keys().copied().collect();
            for stream in streams {
                busy |= self.look(stream)?;
            }
            let mut common = lock(&self.shared);
            common.sent = self.agent.sent();
            common.refused = self.agent.refused().map(|(group, reason)| (group, reason.to_owned())).collect();
        }
    }

    fn take(&mut self, input: Input) -> Result<()> {
        let now_s = self.now_s();
        match input {
            Input::Orders(epoch, tasks) => self.agent.handle_orders(now_s, epoch, tasks),
            Input::Stop => self.agent.handle_orders(now_s, Epoch::default(), Vec::new()),
            Input::Hello(tcp, hello) => {
                if let Err(error) = self.welcome(&tcp, hello) {
                    let _ = write_line(&tcp, &Welcome::Refused(crate::output::sentence(&error)));
                    tracing::warn!("{error:#}");
                }
            }
            Input::Answer(stream, answer) => {
                let connected = answer.and_then(|(tcp, welcome)| match welcome {
                    Welcome::Open { peer, window, slots } => {
                        let (hop, _) = self.hops.get_mut(&stream).context("the stream has ended meanwhile")?;
                        hop.connect(&peer, Some(window))?;
                        hop.attach(tcp)?;
                        Ok(slots.min(SLOTS))
                    }
                    Welcome::Refused(reason) => bail!("the next agent refuses: {reason}"),
                });
                match connected {
                    Ok(slots) => self.agent.opened(now_s, stream, slots),
                    Err(error) => self.lose(stream, &error),
                }
            }
        }
        self.act()
    }

    /// A neighbour opens a stream.
    fn welcome(&mut self, tcp: &TcpStream, hello: Hello) -> Result<()> {
        ensure!(hello.version == VERSION, "the neighbour speaks version {}, and this is {VERSION}", hello.version);
        let stream = self.agent.handle_incoming(self.now_s(), &hello.sites, SLOTS).map_err(anyhow::Error::msg)?;
        self.next_psn = self.next_psn.wrapping_mul(5).wrapping_add(1);
        let opened = (|| {
            let mut hop = Hop::new(&self.receives, self.next_psn, None, true)?;
            hop.connect(&hello.peer, None)?;
            let welcome = Welcome::Open { peer: hop.peer(), window: hop.window().0, slots: SLOTS };
            write_line(tcp, &welcome)?;
            hop.attach(tcp.try_clone()?)?;
            Ok(hop)
        })();
        match opened {
            Ok(hop) => {
                self.hops.insert(stream, (hop, true));
                Ok(())
            }
            Err(error) => {
                self.agent.failed(self.now_s(), stream);
                Err(error)
            }
        }
    }

    fn lose(&mut self, stream: StreamId, error: &anyhow::Error) {
        tracing::info!("stream {}: {error:#}", stream.0);
        self.agent.failed(self.now_s(), stream);
    }

    /// What is new on a stream. Whether there was anything.
    fn look(&mut self, stream: StreamId) -> Result<bool> {
        let Some((hop, comes_in)) = self.hops.get_mut(&stream) else { return Ok(false) };
        let comes_in = *comes_in;
        let news = (|| {
            let messages = hop.hear()?;
            hop.flush()?;
            let (headers, written) = if comes_in { (hop.poll_arrived()?, vec![]) } else { (vec![], hop.poll_written()?) };
            Ok((messages, headers, written))
        })();
        let (messages, headers, written) = match news {
            Ok(news) => news,
            Err(error) => {
                self.lose(stream, &error);
                self.act()?;
                return Ok(true);
            }
        };
        let busy = !messages.is_empty() || !headers.is_empty() || !written.is_empty();
        for message in messages {
            self.agent.handle_message(self.now_s(), stream, message);
            self.act()?;
        }
        for slot in written {
            self.agent.written(self.now_s(), stream, slot);
            self.act()?;
        }
        for header in headers {
            self.agent.handle_chunk(self.now_s(), stream, header);
            self.act()?;
        }
        Ok(busy)
    }

    /// Does what the agent wants done.
    fn act(&mut self) -> Result<()> {
        while let Some(action) = self.agent.poll_action() {
            let (failed, done) = match action {
                Action::Open { stream, sites, relays } => (stream, self.open(stream, &sites, relays)),
                Action::Close(stream) => {
                    self.hops.remove(&stream);
                    let free = self.paths.iter_mut().filter(|(_, user)| *user == Some(stream));
                    free.for_each(|(_, user)| *user = None);
                    continue;
                }
                Action::Rate(stream, gbps) => (stream, self.set_rate(stream, gbps)),
                Action::Send(stream, message) => {
                    let Some((hop, _)) = self.hops.get_mut(&stream) else { continue };
                    (stream, hop.say(&message))
                }
                Action::Write { stream, header, source } => (stream, self.write(stream, header, source)),
                Action::Recall { stream, group, parts } => {
                    let found = self.recall(group, &parts).map_err(|error| crate::output::sentence(&error));
                    self.agent.recalled(stream, group, found);
                    continue;
                }
                Action::Place { stream, header } => {
                    let placed = self.place(stream, header);
                    if let Err(error) = &placed {
                        tracing::warn!("coflow {}, chunk {}: {error:#}", header.group.0, header.chunk);
                    }
                    self.agent.placed(self.now_s(), stream, header, placed.is_ok());
                    continue;
                }
                Action::Follows(epoch) => {
                    self.warn_of_refused();
                    let sent = self.agent.sent();
                    self.sources.retain(|group, _| sent.iter().any(|(other, _)| other == group));
                    lock(&self.shared).epoch = epoch;
                    continue;
                }
            };
            if let Err(error) = done {
                self.lose(failed, &error);
            }
        }
        Ok(())
    }

    fn open(&mut self, stream: StreamId, sites: &[String], relays: Option<StreamId>) -> Result<()> {
        let next = sites.get(1).context("a path of one site")?;
        let address = lock(&self.shared).agents.get(next).copied().with_context(|| format!("{next} has no agent"))?;
        self.next_psn = self.next_psn.wrapping_mul(5).wrapping_add(1);
        let hop = match relays {
            None => {
                let free = self.paths.iter_mut().find(|(_, user)| user.is_none());
                let (device, user) = free.context("all devices for paths are taken")?;
                *user = Some(stream);
                Hop::new(device, self.next_psn, None, false)?
            }
            Some(incoming) => {
                let (before, _) = self.hops.get(&incoming).context("the stream that is relayed has ended")?;
                Hop::new(&self.receives, self.next_psn, Some(before.window().1), false)?
            }
        };
        let hello = Hello { version: VERSION, from: sites[0].clone(), sites: sites[1..].to_vec(), peer: hop.peer() };
        self.hops.insert(stream, (hop, false));
        let (inputs, own) = (self.inputs.clone(), self.address);
        thread::spawn(move || drop(inputs.send(Input::Answer(stream, say_hello(own, address, &hello)))));
        Ok(())
    }

    fn recall(&mut self, group: Group, parts: &[Part]) -> Result<Chunks> {
        let (content, chunks) = self.folders.destination(group, parts)?;
        if self.destinations.len() >= MAX_RECEIVING {
            self.destinations.clear();
        }
        if !chunks.is_whole() {
            self.destinations.insert(group, (content, chunks.clone()));
        }
        Ok(chunks)
    }

    fn set_rate(&mut self, stream: StreamId, gbps: f64) -> Result<()> {
        let Some((device, _)) = self.paths.iter().find(|(_, user)| *user == Some(stream)) else { return Ok(()) };
        let bits = (gbps * 1e9).max(MIN_BITS_PER_SEC) as u64;
        let burst = ((bits as f64 / 8.0 * BURST_S) as u64).clamp(BURST_BYTES.0, BURST_BYTES.1);
        let change = SharesChange { max_bits_per_sec: Some(Some(bits)), burst_bytes: Some(burst), ..SharesChange::default() };
        self.client.change(&device.name, &change).map(drop)
    }

    fn write(&mut self, stream: StreamId, header: Header, source: Source) -> Result<()> {
        if let Source::Held(_, held) = source {
            let (hop, _) = self.hops.get_mut(&stream).context("the stream has ended")?;
            return hop.pass_on(header, held);
        }
        let bytes = match self.read(header) {
            Ok(bytes) => bytes,
            Err(error) => {
                self.agent.unreadable(self.now_s(), stream, header, &crate::output::sentence(&error));
                self.warn_of_refused();
                return Ok(());
            }
        };
        let header = Header { crc: crc32fast::hash(&bytes), ..header };
        let (hop, _) = self.hops.get_mut(&stream).context("the stream has ended")?;
        hop.write_own(header, &bytes)
    }

    /// A chunk of this site's data.
    fn read(&mut self, header: Header) -> Result<Vec<u8>> {
        let parts = self.agent.parts(header.group).context("the group is not sent any more")?;
        if self.sources.get(&header.group).is_none_or(|(known, _)| known != parts) {
            let content = self.folders.source(header.group, parts)?;
            self.sources.insert(header.group, (parts.to_vec(), content));
        }
        let (_, content) = &self.sources[&header.group];
        let mut bytes = vec![0; header.length as usize];
        content.read(header.chunk, &mut bytes)?;
        Ok(bytes)
    }

    fn warn_of_refused(&self) {
        for (group, reason) in self.agent.refused() {
            tracing::warn!("coflow {}, group {} is not sent: {reason}", group.0, group.1);
        }
    }

    fn place(&mut self, stream: StreamId, header: Header) -> Result<()> {
        let (hop, _) = self.hops.get(&stream).context("the stream has ended")?;
        ensure!(u64::from(header.length) <= CHUNK_BYTES, "{} bytes in one chunk", header.length);
        let mut bytes = vec![0; header.length as usize];
        hop.read_slot(header.slot, &mut bytes);
        ensure!(crc32fast::hash(&bytes) == header.crc, "the checksum is wrong");
        let (content, chunks) = self.destinations.get_mut(&header.group).context("the group is not known")?;
        content.place(header.chunk, &bytes)?;
        chunks.add(header.chunk);
        if chunks.is_whole() {
            content.sync()?;
            self.destinations.remove(&header.group);
        }
        Ok(())
    }
}

/// Connects to a neighbour and says hello, from the address by which the neighbour knows this agent.
fn say_hello(own: IpAddr, address: SocketAddr, hello: &Hello) -> Result<(TcpStream, Welcome)> {
    let connected = (|| {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.bind(&SocketAddr::new(own, 0).into())?;
        socket.connect_timeout(&address.into(), CONNECT)?;
        Ok::<TcpStream, std::io::Error>(socket.into())
    })();
    let stream = connected.with_context(|| format!("cannot connect to {address} from {own}"))?;
    write_line(&stream, hello)?;
    let welcome = read_line(&stream)?;
    Ok((stream, welcome))
}
