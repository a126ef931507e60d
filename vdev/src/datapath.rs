//! The datapath loop: the one thread that owns the core, the clients' rings, their memory and the sockets on the wire.
//!
//! # One WRITE, from the doorbell to the wire and back
//!
//! 1. The program's `ibv_post_send` stores a send entry in the queue pair's ring (`RingProducer::push_send`), publishes the
//!    producer index and sets a bit of the context page (`Doorbell::ring`).
//! 2. [`rings`], `take_doorbells`: the loop sees the bit, at once while it polls; when it sleeps, the library sees that it is
//!    armed and writes the eventfd, which wakes it ([`wake`], `look_at_descriptors`).
//! 3. `post_ready`: `sq::send_request` turns the entry, copied once, into a work request; `Rnic::post_send` checks state and sizes.
//! 4. `emtt` resolves key and range to segments. `memory` found out at registration how they are reached.
//! 5. The core's schedule picks the queue pair whose turn it is; long messages become steps.
//! 6. `transmit`, `Rnic::poll_transmit`: the requester cuts packets and gives them PSNs; or, if the peer is a queue pair of this
//!    daemon, the local path copies from segments to segments and steps 7 to 11 are skipped.
//! 7. The UDP source port was chosen when the queue pair was connected; a burst has one.
//! 8. `roce::wire` emits headers, `memory` gathers the payload into the burst buffer, the ICRC closes each packet.
//! 9. [`ports`] gathers the bursts of a round (`Ports::push`) and hands them to `port` (`Ports::flush`), which sends them with
//!    segmentation offload.
//! 10. The receiver's loop takes bursts from its sockets (`receive_packets`), empties the receive ring of the queue pair that they
//!     name (`drain_receives_of`), and gives them to `Rnic::handle_burst`, which checks lengths, opcode, ICRC. Any failure: one
//!     counter, drop.
//! 11. The responder asks for the PSN: new, duplicate, beyond a gap. New: key, bounds and rights are looked up, `memory` scatters
//!     the payload to its final place.
//! 12. A WRITE with immediate consumes a receive request. An ACK or NAK is queued and leaves through step 8.
//! 13. The sender's requester takes the ACK; finished messages become completions.
//! 14. [`completions`], `deliver_completions`, writes them into the completion ring, each with its sequence number last, and an event into the channel's
//!     pipe if the program asked for one.
//! 15. Loss: `Rnic::poll_timeout` names the deadline up to which the loop may sleep; `Rnic::handle_timeout` has step 6 repeated.
//!     Retries spent: the queue pair goes to ERR, its requests are flushed, the first with retry-exceeded.
//!
//! The test `walk` holds this list against the code.
//!
//! # Polling and sleeping
//!
//! While there is work the loop makes no system call, takes no lock and allocates nothing, except for packets and for copies that
//! only the kernel can make. Clients that rang lately are polled; the others are armed. After a short spin ([`spin`]) without work every
//! client is armed, looked at once more, and the loop sleeps until a client, a packet, a command or a deadline comes: an
//! idle daemon does nothing at all.

mod calls;
mod clients;
mod cm;
mod commands;
mod completions;
mod crowd;
mod failures;
mod guests;
mod handles;
mod latencies;
pub mod limits;
mod ports;
mod probe;
mod rings;
mod spin;
mod srqs;
mod status;
mod wake;
#[cfg(test)]
mod walk;
mod windows;
mod xrc;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use isolation::Policy;
use rnic::{Config, CqId, Rnic, SrqId, Work, XrcdId};
use roce::{Instant, Qpn};
use tokio::sync::oneshot;

pub use calls::{NewQp, QpRequest, refuse};
pub use clients::{Client, ClientId, ClientInit, Ended};
pub use commands::{Attachment, DatapathHandle, Gone};
pub use failures::{Failure, What};
pub use guests::GuestId;
pub use guests::fast::NewFastRegion;
pub use guests::objects::{NewRegion, QueueRuns};
pub use latencies::Percentiles;
pub use status::DeviceStatus;
pub use xrc::{DomainFile, no_rings};

use crate::memory::{Memories, Reaching};
use cm::ConnectionManagers;
use commands::Commands;
use crowd::Crowd;
use failures::Failures;
use guests::Guests;
use latencies::Latencies;
use ports::Ports;
use probe::Probe;
use rings::Scratch;
use spin::{Idle, Spin};
use wake::{Epoll, Source, Waker};
use windows::Windows;
use xrc::{Domain, Target};

/// Time between two looks at descriptors while there is nothing else to do.
const DESCRIPTORS_EVERY: Duration = Duration::from_micros(10);
/// The same while there is other work, or a stream of long bursts comes in: a look costs as much as a packet, and bursts taken
/// several at a time cost less each.
const DESCRIPTORS_EVERY_BUSY: Duration = Duration::from_micros(50);
/// A client that has not rung for this long is armed while others are polled.
const CLIENT_IDLE: Duration = Duration::from_millis(2);
/// Steps of transmission per round, so that doorbells and completions do not wait long.
const STEPS_PER_ROUND: u32 = 32;
/// Bytes of transmission per round, for the same reason.
const BYTES_PER_ROUND: u64 = 192 << 10;
/// Identifiers come from the core, which does not let clients choose them; one multiplication spreads them.
#[derive(Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(byte.into());
        }
    }

    fn write_u32(&mut self, value: u32) {
        self.0 = (self.0 ^ u64::from(value)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32);
    }
}

type IdMap<K, V> = HashMap<K, V, BuildHasherDefault<IdHasher>>;

/// The state of the datapath thread. Control calls run on it between two rounds.
pub struct Datapath {
    rnic: Rnic,
    memories: Memories,
    ports: Ports,
    connections: ConnectionManagers,
    epoll: Epoll,
    guests: Guests,
    clients: Vec<Option<Box<Client>>>,
    free_clients: Vec<u32>,
    client_generation: u32,
    /// Client and doorbell slot of each queue pair.
    qp_by_number: IdMap<Qpn, (u32, u32)>,
    /// Client and index of each completion queue.
    cq_by_id: IdMap<CqId, (u32, u32)>,
    /// Client and index of each shared receive queue.
    srq_by_id: IdMap<SrqId, (u32, u32)>,
    /// Registered memory of devices.
    windows: Windows,
    domains: IdMap<XrcdId, Domain>,
    /// Queue pairs that more than one client may have.
    targets: IdMap<Qpn, Target>,
    /// Indices of the clients that are polled; all others are armed.
    polled: Vec<u32>,
    /// Client and slot of queue pairs to be looked at in this round.
    ready: Vec<(u32, u32)>,
    ready_again: Vec<(u32, u32)>,
    /// Client and index of completion queues written to in this round.
    touched: Vec<(u32, u32)>,
    /// Clients to be ended at the end of this round, and why.
    condemned: Vec<(u32, String)>,
    scratch: Scratch,
    failures: Failures,
    /// Only where Justitia's policy runs.
    probe: Option<Probe>,
    /// What small messages took.
    latencies: Latencies,
    /// Start of this round.
    now: Instant,
    stopping: bool,
    /// Dropped with this value, which tells whoever waits that the thread has ended.
    alive: Vec<oneshot::Sender<()>>,
}

/// The datapath before its thread runs.
pub struct Runner {
    config: Config,
    epoll: Epoll,
    waker: Arc<Waker>,
    commands: Commands,
    reaching: Arc<Reaching>,
}

/// A datapath that [`Runner::run`] makes live, and the handle by which others reach it.
///
/// # Errors
/// The system's.
pub fn new(config: Config) -> io::Result<(DatapathHandle, Runner)> {
    let waker = Arc::new(Waker::new()?);
    let epoll = Epoll::new()?;
    epoll.add_input(std::os::fd::AsFd::as_fd(&*waker), Source::Control)?;
    let reaching = Arc::new(Reaching::default());
    let (handle, commands) = commands::channel(waker.clone(), reaching.clone());
    Ok((handle, Runner { config, epoll, waker, commands, reaching }))
}

/// Nanoseconds of the system's monotonic clock.
pub fn clock() -> Instant {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).expect("every Linux has this clock");
    Instant::from_nanos(now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}

impl Runner {
    /// Serves until told to stop.
    pub fn run(self) {
        let Runner { config, epoll, waker, commands, reaching } = self;
        let memories = Memories::watched(reaching);
        Datapath::new(config, memories, epoll).serve(&waker, &commands);
    }
}

impl Datapath {
    fn new(config: Config, memories: Memories, epoll: Epoll) -> Datapath {
        Datapath {
            rnic: Rnic::new(config),
            memories,
            ports: Ports::new(),
            connections: ConnectionManagers::new(config.seed),
            epoll,
            guests: Guests::default(),
            clients: Vec::new(),
            free_clients: Vec::new(),
            client_generation: 0,
            qp_by_number: IdMap::default(),
            cq_by_id: IdMap::default(),
            srq_by_id: IdMap::default(),
            windows: Windows::default(),
            domains: IdMap::default(),
            targets: IdMap::default(),
            polled: Vec::new(),
            ready: Vec::new(),
            ready_again: Vec::new(),
            touched: Vec::new(),
            condemned: Vec::new(),
            scratch: Scratch::new(),
            failures: Failures::default(),
            probe: matches!(config.sharing.policy, Policy::Justitia(_)).then(Probe::default),
            latencies: Latencies::default(),
            now: clock(),
            stopping: false,
            alive: Vec::new(),
        }
    }

    fn serve(&mut self, waker: &Waker, commands: &Commands) {
        spin::ask_for_short_slice();
        let mut spin = Spin::new();
        let mut crowd = Crowd::new();
        let mut found = Vec::new();
        let mut last_work = self.now;
        let mut last_descriptors = self.now;
        let mut last_sweep = self.now;
        let mut worked = false;
        while !self.stopping {
            self.now = clock();
            let pause = if worked || self.ports.streams_in() { DESCRIPTORS_EVERY_BUSY } else { DESCRIPTORS_EVERY };
            worked = commands.execute(self);
            if self.now.saturating_since(last_descriptors) >= pause {
                last_descriptors = self.now;
                self.look_at_descriptors(waker, Some(Duration::ZERO), &mut found);
            }
            worked |= self.round();
            if worked {
                last_work = self.now;
            }
            if self.now.saturating_since(last_sweep) >= CLIENT_IDLE {
                last_sweep = self.now;
                self.arm_idle_clients();
            }
            if worked {
                crowd.look(self.now);
                continue;
            }
            let due = self.rnic.poll_timeout();
            if spin.nothing(self.now, last_work, due) == Idle::Look {
                continue;
            }
            if self.arm_all_clients() {
                waker.fall_asleep();
                if commands.is_empty() {
                    let deadlines = [self.rnic.poll_timeout(), self.connections.poll_timeout()];
                    let timeout = deadlines.into_iter().flatten().min().map(|deadline| deadline.saturating_since(clock()));
                    self.look_at_descriptors(waker, timeout, &mut found);
                }
                waker.stay_awake();
                last_descriptors = clock();
                // One spin's worth of attention for whatever woke us.
                last_work = last_descriptors;
            }
        }
    }

    /// One round: steps 2 to 15 of the module's list. True if anything was done.
    fn round(&mut self) -> bool {
        let mut worked = self.receive_packets();
        worked |= self.take_doorbells();
        worked |= self.post_ready();
        worked |= self.post_guests();
        if self.rnic.poll_timeout().is_some_and(|deadline| deadline <= self.now) {
            self.rnic.handle_timeout(self.now);
            worked = true;
        }
        worked |= self.manage_connections();
        worked |= self.transmit();
        // Before a program hears of it, so that its next request finds no more memory than this one.
        self.end_lost_windows();
        worked |= self.deliver_completions();
        self.deliver_events();
        if !self.condemned.is_empty() {
            self.end_condemned();
        }
        worked
    }

    /// Lets the core send and copy, up to a bound. True if it did anything.
    fn transmit(&mut self) -> bool {
        let mut bytes = 0;
        let mut steps = 0;
        while steps < STEPS_PER_ROUND && bytes < BYTES_PER_ROUND {
            match self.rnic.poll_transmit(self.now, &mut self.memories, self.ports.burst_buffer()) {
                None => break,
                Some(Work::Packets(transmit)) => {
                    bytes += transmit.len as u64;
                    self.ports.push(transmit);
                }
                Some(Work::Copied { bytes: copied, .. }) => bytes += copied,
            }
            steps += 1;
        }
        self.ports.flush();
        steps > 0
    }

    /// Waits for descriptors and notes what they say; everything is looked at in the next round.
    fn look_at_descriptors(&mut self, waker: &Waker, timeout: Option<Duration>, found: &mut Vec<Source>) {
        found.clear();
        if let Err(error) = self.epoll.wait(timeout, found) {
            // Only a fault of ours can cause this; without a pause it would fill the log.
            tracing::error!(%error, "waiting for descriptors failed");
            std::thread::sleep(Duration::from_millis(10));
        }
        for &source in found.iter() {
            match source {
                Source::Control => waker.clear(),
                Source::Doorbell(index) => self.wake_client(index),
                Source::Port(port) => self.ports.mark_readable(port),
                Source::Channel { client, channel } => self.resume_channel(client, channel),
            }
        }
    }

    /// A client rang while it was armed: it is polled from now on.
    fn wake_client(&mut self, index: u32) {
        let Some(client) = self.clients.get_mut(index as usize).and_then(Option::as_deref_mut) else { return };
        // A client that writes there for no reason only gets itself polled for a while.
        if !client.polled {
            client.bell().disarm();
            client.polled = true;
            client.last_ring = self.now;
            self.polled.push(index);
        }
    }

    /// Arms clients that have not rung for a while, so that the others need not wait for a look at them.
    fn arm_idle_clients(&mut self) {
        let (clients, now) = (&mut self.clients, self.now);
        self.polled.retain(|&index| {
            let Some(client) = clients[index as usize].as_deref_mut() else { return false };
            if now.saturating_since(client.last_ring) >= CLIENT_IDLE && client.bell().arm() {
                client.polled = false;
            }
            client.polled
        });
    }

    /// Arms every client. False if one of them has rung meanwhile.
    fn arm_all_clients(&mut self) -> bool {
        let clients = &mut self.clients;
        self.polled.retain(|&index| {
            let Some(client) = clients[index as usize].as_deref_mut() else { return false };
            client.polled = !client.bell().arm();
            client.polled
        });
        self.polled.is_empty()
    }
}
