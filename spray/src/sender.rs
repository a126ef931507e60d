//! The sending end of a connection that sprays: paths, scoreboard, rules of loss and window at work together.
//!
//! The caller asks [`Sender::may_send`], sends what [`Sender::resend`] and then [`Sender::send`] tell it to, on the port that they
//! tell, and gives back what it hears and how time passes. A packet is named by its PSN; what is in it the caller knows.
//!
//! What is asked for (responses to READs and atomics) is treated as if it were sent: it counts against the window from the request
//! on, its path is that of the request, on whose port it comes back, and what does not come is asked for again on another one
//! ([`Sender::fetch`]). So who receives the data, and sees its delays and marks, decides how fast and where it is sent; and who
//! answers keeps nothing for it.

mod heard;

use crate::pace::Pace;
use crate::{Congestion, Evidence, Law, Loss, LossLimits, PathId, PathSet, Policy, Scoreboard, WindowLimits};
use roce::{Instant, Psn};

/// What a sender is made of.
#[derive(Clone, Copy, Debug)]
pub struct SenderConfig {
    /// How paths are chosen.
    pub policy: Policy,
    /// How many there are, 1 to 256.
    pub paths: u16,
    /// UDP source port of the first path.
    pub first_port: u16,
    /// Draws the other ports and every choice. The same seed and the same calls give the same results.
    pub seed: u64,
    /// Packets under way at most: the window that the peer offered.
    pub window: u16,
    /// The first PSN.
    pub first_psn: Psn,
    /// The law of the congestion window.
    pub law: Law,
    /// Its bounds.
    pub limits: WindowLimits,
    /// Bounds of the retransmission time-out.
    pub loss: LossLimits,
}

/// A packet to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Its number.
    pub psn: Psn,
    /// Its path.
    pub path: PathId,
    /// Its UDP source port.
    pub port: u16,
}

/// What a sender did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenderCounters {
    /// Packets sent for the first time.
    pub sent: u64,
    /// Packets sent again.
    pub resent: u64,
    /// Packets sent again for nothing, as the receiver counts them.
    pub spurious: u64,
    /// Packets given up because later ones of their path arrived, or for being too late.
    pub missing: u64,
    /// Packets given up after a whole time-out.
    pub timed_out: u64,
    /// Packets that were refused.
    pub refused: u64,
}

/// The sending end of a connection.
#[derive(Clone, Debug)]
pub struct Sender {
    paths: PathSet,
    board: Scoreboard,
    loss: Loss,
    congestion: Congestion,
    /// When the packets in flight are to be looked at, see [`Loss::earliest_deadline`].
    look_at: Option<Instant>,
    /// The last look found packets that only wait for a later one to be acknowledged.
    awaits_overtaking: bool,
    /// Packets beyond the oldest that the receiver takes.
    peer_window: u32,
    /// Everything before it has had its effect at the peer, as last told; responses may be missing.
    done: Psn,
    /// The receiver's counters, as last told: received, marked, duplicates.
    told: [u16; 3],
    /// Packets sent again since the congestion window last shrank for a loss, and how many of them for nothing.
    resent_since: u32,
    spurious_since: u32,
    /// The newest PSN that was acknowledged when it was sent once.
    newest: Psn,
    /// When something was last heard of what is under way, or the first of it was sent.
    heard_at: Instant,
    silences: u8,
    /// What the peer asks to be sent, and what this end asks of itself to ask for.
    pace: Pace,
    fetch_pace: Pace,
    /// A packet waits for its time.
    paused_until: Option<Instant>,
    counters: SenderCounters,
}

/// What a link adds to a packet (Ethernet with preamble and gap, IPv4 and UDP). Rates that are asked for follow what arrives, so that a
/// few bytes more change nothing.
const FRAME: u64 = 66;

impl Sender {
    /// A sender with nothing under way.
    ///
    /// # Panics
    /// If the number of paths or the window is out of range: a fault of the caller.
    pub fn new(config: &SenderConfig) -> Sender {
        Sender {
            paths: PathSet::new(config.policy, config.paths, config.first_port, config.seed),
            board: Scoreboard::new(config.window, config.paths, config.first_psn),
            loss: Loss::new(config.loss),
            congestion: Congestion::new(config.law, config.limits),
            look_at: None,
            awaits_overtaking: false,
            peer_window: u32::from(config.window),
            done: config.first_psn,
            told: [0; 3],
            resent_since: 0,
            spurious_since: 0,
            newest: config.first_psn,
            heard_at: Instant::ZERO,
            silences: 0,
            pace: Pace::default(),
            fetch_pace: Pace::default(),
            paused_until: None,
            counters: SenderCounters::default(),
        }
    }

    /// What it did.
    pub fn counters(&self) -> &SenderCounters {
        &self.counters
    }

    /// Its paths.
    pub fn paths(&self) -> &PathSet {
        &self.paths
    }

    /// What is under way.
    pub fn board(&self) -> &Scoreboard {
        &self.board
    }

    /// Its rules of loss.
    pub fn loss(&self) -> &Loss {
        &self.loss
    }

    /// Its congestion window.
    pub fn congestion(&self) -> &Congestion {
        &self.congestion
    }

    /// Whether a packet of `bytes` bytes may be sent now, be it new or for the second time. One packet is always allowed.
    fn has_window(&self, bytes: u16) -> bool {
        let in_flight = self.board.in_flight();
        in_flight == 0 || in_flight + u64::from(bytes) <= self.congestion.window()
    }

    /// Whether a new packet of `bytes` bytes may be sent now: neither window is full, and nothing lost goes before it.
    pub fn may_send(&self, bytes: u16) -> bool {
        self.board.lost_packets() == 0 && self.room() > 0 && self.has_window(bytes)
    }

    /// Whether so many packets, `bytes` bytes together, may be asked for now, or one if nothing else is under way. Less than all is not
    /// worth a request.
    pub fn may_fetch(&self, packets: u32, bytes: u16) -> bool {
        (self.board.in_flight() == 0 || self.room() >= packets) && self.may_send(bytes)
    }

    /// New packets that both windows of packets have room for, the peer's and that of what is remembered here.
    fn room(&self) -> u32 {
        let begun = self.board.next().distance_from(self.board.oldest()) as u32;
        self.board.room().min(self.peer_window.saturating_sub(begun))
    }

    /// Whether the next packet has to wait, for its time at the rate that the peer has asked for in its acknowledgements; or, if it
    /// `asks` for data, at [`Sender::ask_at`]. [`Sender::paused_until`] tells then when that is over.
    pub fn pauses(&mut self, now: Instant, asks: bool) -> bool {
        let pace = if asks { &self.fetch_pace } else { &self.pace };
        self.paused_until = pace.pause(now);
        self.paused_until.is_some()
    }

    /// When the pause is over that [`Sender::pauses`] has found, if there is one.
    pub fn paused_until(&self) -> Option<Instant> {
        self.paused_until
    }

    /// Ends a pause that is over, and returns whether there was one.
    pub fn end_pause(&mut self, now: Instant) -> bool {
        self.paused_until.take_if(|at| *at <= now).is_some()
    }

    /// Data is asked for at this rate from now on, in bytes per second with all headers of frames; 0: at any.
    pub fn ask_at(&mut self, bytes_per_sec: u64) {
        self.fetch_pace.set(bytes_per_sec);
    }

    fn spend(&mut self, now: Instant, asks: bool, packets: u32, bytes: u32) {
        let pace = if asks { &mut self.fetch_pace } else { &mut self.pace };
        pace.take(now, u64::from(bytes) + u64::from(packets) * FRAME);
    }

    /// Takes the next PSN for a new packet of `bytes` bytes, on the path that the policy picks.
    ///
    /// # Panics
    /// Unless [`Sender::may_send`] has allowed it: a fault of the caller.
    pub fn send(&mut self, now: Instant, bytes: u16) -> Sent {
        let path = self.paths.pick(now, u32::from(bytes), None);
        if self.board.oldest() == self.board.next() {
            self.heard_at = now;
        }
        let psn = self.board.send(now, path, bytes);
        self.counters.sent += 1;
        self.spend(now, false, 1, u32::from(bytes));
        self.watch(now, path);
        Sent { psn, path, port: self.paths.port(path) }
    }

    /// The PSN of the packet that [`Sender::resend`] would send now.
    pub fn next_resend(&self) -> Option<Psn> {
        self.board.next_lost().filter(|lost| self.has_window(lost.bytes)).map(|lost| lost.psn)
    }

    /// See [`Scoreboard::restart`].
    pub fn restart(&mut self, next: Psn) {
        self.board.restart(next);
        (self.newest, self.done) = (next, next);
    }

    /// Takes the next PSNs for packets that one request asks for, of `bytes` each, the first of which [`Sender::may_fetch`] has
    /// allowed: as many as the windows allow. Returns the first, its path, and how many.
    ///
    /// # Panics
    /// Unless the first was allowed: a fault of the caller.
    pub fn fetch(&mut self, now: Instant, bytes: impl Iterator<Item = u16> + Clone) -> (Sent, u32) {
        let room = self.room().max(1) as usize;
        let (count, total) = self.fitting(bytes.clone().take(room));
        let path = self.paths.pick(now, total, None);
        if self.board.oldest() == self.board.next() {
            self.heard_at = now;
        }
        let psn = self.board.next();
        for bytes in bytes.take(count as usize) {
            self.board.fetch(now, path, bytes);
        }
        self.counters.sent += u64::from(count);
        self.spend(now, true, count, total);
        self.watch(now, path);
        (Sent { psn, path, port: self.paths.port(path) }, count)
    }

    /// How many of these packets the congestion window has room for, at least one, and their bytes.
    fn fitting(&self, bytes: impl Iterator<Item = u16>) -> (u32, u32) {
        bytes.fold((0, 0), |(count, total), bytes| {
            let is_next =
                count == 0 || self.board.in_flight() + u64::from(total + u32::from(bytes)) <= self.congestion.window();
            if is_next { (count + 1, total + u32::from(bytes)) } else { (count, total) }
        })
    }

    /// Everything before it is acknowledged, or has come: what a connection's requests complete by.
    pub fn complete(&self) -> Psn {
        if self.done.is_before(self.board.oldest()) { self.done } else { self.board.oldest() }
    }

    /// The oldest lost packet, to be sent again now on another path; `None` if nothing is lost or the window is full.
    pub fn resend(&mut self, now: Instant) -> Option<Sent> {
        self.resend_run(now, 1).map(|(sent, _)| sent)
    }

    /// The oldest lost packet, and those lost right after it, up to `most` together: to be asked for again now, with one request on
    /// another path. `None` if nothing is lost or the window is full. Returns how many.
    pub fn resend_run(&mut self, now: Instant, most: u32) -> Option<(Sent, u32)> {
        let lost = self.board.next_lost().filter(|lost| self.has_window(lost.bytes))?;
        let path = self.paths.pick(now, u32::from(lost.bytes), Some(lost.path));
        let (mut count, mut bytes) = (0, 0);
        let asks = self.board.is_fetch(lost.psn);
        while count < most
            && let Some(next) = self.board.next_lost()
            && next.psn == lost.psn.plus(count)
            && (count == 0 || self.has_window(next.bytes) && (next.path != path || self.paths.len() == 1))
        {
            self.board.resend(now, path);
            (count, bytes) = (count + 1, bytes + u32::from(next.bytes));
        }
        self.spend(now, asks, count, bytes);
        self.counters.resent += u64::from(count);
        self.resent_since += count;
        self.watch(now, path);
        Some((Sent { psn: lost.psn, path, port: self.paths.port(path) }, count))
    }

    fn watch(&mut self, now: Instant, path: PathId) {
        let deadline = self.loss.earliest_deadline(now, self.paths.rtt(path));
        self.look_at = Some(self.look_at.map_or(deadline, |at| at.min(deadline)));
    }

    /// Does everything whose time has come; call it at [`Sender::poll_timeout`], or more often.
    pub fn on_timeout(&mut self, now: Instant) {
        self.look(now);
    }

    /// Looks for packets that are too late, if one may be: at the oldest of each path.
    fn look(&mut self, now: Instant) {
        if self.look_at.is_none_or(|at| now < at) {
            return;
        }
        let Sender { board, paths, loss, counters, .. } = self;
        let (mut lost_bytes, mut timed_out) = (0, false);
        (self.look_at, self.awaits_overtaking) = (None, false);
        for path in (0..paths.len()).map(|path| PathId(path as u8)) {
            let rtt = paths.rtt(path);
            while let Some(sent_at) = board.oldest_on(path) {
                let deadline = loss.deadline(sent_at, rtt);
                if deadline > now {
                    let earliest = loss.earliest_deadline(sent_at, rtt);
                    self.awaits_overtaking |= earliest <= now;
                    let look = if earliest <= now { deadline } else { earliest };
                    self.look_at = Some(self.look_at.map_or(look, |at| at.min(look)));
                    break;
                }
                let Some(lost) = board.give_up(path) else { break };
                lost_bytes += u64::from(lost.bytes);
                if loss.is_overtaken(sent_at) {
                    counters.missing += 1;
                    paths.note(now, path, Evidence::Missing);
                } else {
                    (timed_out, counters.timed_out) = (true, counters.timed_out + 1);
                    paths.note(now, path, Evidence::TimedOut);
                }
            }
        }
        if lost_bytes > 0 {
            self.congestion.on_loss(now, lost_bytes, board.in_flight());
        }
        if timed_out && now - self.heard_at >= loss.rto() {
            loss.on_silence();
            self.heard_at = now;
            self.silences = self.silences.saturating_add(1);
            // Once may be a single packet at the end of a message; twice is the network.
            if self.silences > 1 {
                self.congestion.on_silence();
            }
        }
    }

    /// How often in a row a whole time-out has passed with nothing heard: what a connection's retries are counted by.
    pub fn silences(&self) -> u8 {
        self.silences
    }

    /// A path that is to be probed now: the UDP source port of the probe.
    pub fn poll_probe(&mut self, now: Instant) -> Option<u16> {
        let path = self.paths.poll_probe(now)?;
        Some(self.paths.port(path))
    }

    /// When [`Sender::on_timeout`] and [`Sender::poll_probe`] want to be called; nothing may turn out to be due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        // Paths are probed while there is something to send, so that an idle connection sleeps.
        let probe = self.paths.poll_timeout().filter(|_| self.board.next() != self.board.oldest());
        let look = self.look_at.filter(|_| self.board.in_flight_packets() > 0);
        [look, probe].into_iter().flatten().min()
    }
}
