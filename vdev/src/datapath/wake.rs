//! Sleeping and being woken: the epoll set of the datapath thread and the flag by which the control thread knows that it sleeps.
//!
//! Owns the epoll descriptor and the meaning of its tokens. Never decides when to sleep; that is the loop's.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};

/// Events taken from one wait; more are taken by the next.
const BATCH: usize = 64;

/// What a descriptor in the set stands for. Indices may be stale when the event is read: the receiver looks again itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The control thread has sent a command.
    Control,
    /// The client at this index rang its doorbell while the daemon slept.
    Doorbell(u32),
    /// The port at this index has packets.
    Port(u32),
    /// The pipe of channel `channel` of client `client` has room again.
    Channel {
        /// Index of the client.
        client: u32,
        /// Index of the channel.
        channel: u32,
    },
}

impl Source {
    fn token(self) -> u64 {
        let (tag, a, b) = match self {
            Source::Control => (0, 0, 0),
            Source::Doorbell(client) => (1, client, 0),
            Source::Port(port) => (2, port, 0),
            Source::Channel { client, channel } => (3, client, channel),
        };
        assert!(a < 1 << 24, "indices are small");
        tag << 56 | u64::from(a) << 32 | u64::from(b)
    }

    fn from_token(token: u64) -> Source {
        let a = (token >> 32) as u32 & 0xFF_FFFF;
        match token >> 56 {
            1 => Source::Doorbell(a),
            2 => Source::Port(a),
            3 => Source::Channel { client: a, channel: token as u32 },
            _ => Source::Control,
        }
    }
}

/// The epoll set.
#[derive(Debug)]
pub struct Epoll {
    fd: OwnedFd,
    events: Vec<libc::epoll_event>,
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

impl Epoll {
    /// An empty set.
    pub fn new() -> io::Result<Epoll> {
        // SAFETY: no memory is passed; the descriptor is new and owned once.
        let fd = unsafe { OwnedFd::from_raw_fd(check(libc::epoll_create1(libc::EPOLL_CLOEXEC))?) };
        Ok(Epoll { fd, events: vec![libc::epoll_event { events: 0, u64: 0 }; BATCH] })
    }

    fn control(&self, operation: libc::c_int, fd: BorrowedFd<'_>, events: libc::c_int, source: Source) -> io::Result<()> {
        let mut event = libc::epoll_event { events: events as u32, u64: source.token() };
        // SAFETY: `event` is live for the call; both descriptors are open.
        check(unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), operation, fd.as_raw_fd(), &raw mut event) }).map(drop)
    }

    /// Watches for input. A closed descriptor leaves the set by itself unless a duplicate is open, hence [`Self::remove`].
    pub fn add_input(&self, fd: BorrowedFd<'_>, source: Source) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN, source)
    }

    /// Reports each write to an eventfd that a client holds as well. It is never read: the client could have made reading block.
    pub fn add_doorbell(&self, fd: BorrowedFd<'_>, source: Source) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN | libc::EPOLLET, source)
    }

    /// Reports once when output is possible.
    pub fn add_output_once(&self, fd: BorrowedFd<'_>, source: Source) -> io::Result<()> {
        let events = libc::EPOLLOUT | libc::EPOLLONESHOT;
        match self.control(libc::EPOLL_CTL_ADD, fd, events, source) {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => self.control(libc::EPOLL_CTL_MOD, fd, events, source),
            other => other,
        }
    }

    /// Stops watching; a descriptor that is not in the set is no error.
    pub fn remove(&self, fd: BorrowedFd<'_>) {
        let _ = self.control(libc::EPOLL_CTL_DEL, fd, 0, Source::Control);
    }

    /// Waits at most `timeout` (`None`: for ever) and appends what happened to `found`.
    pub fn wait(&mut self, timeout: Option<Duration>, found: &mut Vec<Source>) -> io::Result<()> {
        let spec = timeout.map(|timeout| libc::timespec {
            tv_sec: timeout.as_secs().min(i32::MAX as u64) as libc::time_t,
            tv_nsec: timeout.subsec_nanos().into(),
        });
        let spec_ptr = spec.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // By number, as epoll_wait only knows milliseconds and the C library's wrapper is too young for some systems.
        // SAFETY: the event buffer holds BATCH entries, `spec` outlives the call, and a null mask changes no signals.
        let count = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.fd.as_raw_fd(),
                self.events.as_mut_ptr(),
                BATCH as libc::c_int,
                spec_ptr,
                std::ptr::null::<libc::sigset_t>(),
                0usize,
            )
        };
        match count {
            0.. => found.extend(self.events.iter().take(count as usize).map(|event| Source::from_token(event.u64))),
            _ => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
        Ok(())
    }
}

/// Wakes the datapath thread from another thread.
#[derive(Debug)]
pub struct Waker {
    event: EventFd,
    asleep: AtomicBool,
}

impl Waker {
    /// A waker of a thread that is awake.
    pub fn new() -> io::Result<Waker> {
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Waker { event, asleep: AtomicBool::new(false) })
    }

    /// Other thread: call after having published what the datapath is to see.
    pub fn wake(&self) {
        // Pairs with the fence in `fall_asleep`: either this thread sees `asleep`, or that one sees what was published.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::AcqRel) {
            // The counter cannot overflow: one write per sleep.
            let _ = self.event.write(1);
        }
    }

    /// Datapath: from now on [`Self::wake`] writes the eventfd. What was published is to be looked at once more after this.
    pub fn fall_asleep(&self) {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Datapath: awake again.
    pub fn stay_awake(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }

    /// Datapath: clears the eventfd.
    pub fn clear(&self) {
        let _ = self.event.read();
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_back() {
        for source in [
            Source::Control,
            Source::Doorbell(0xFF_FFFF),
            Source::Port(7),
            Source::Channel { client: 0xABCDEF, channel: u32::MAX },
        ] {
            assert_eq!(Source::from_token(source.token()), source);
        }
    }

    #[test]
    fn waking_writes_only_to_a_sleeper() {
        let waker = Waker::new().unwrap();
        let mut epoll = Epoll::new().unwrap();
        epoll.add_input(waker.as_fd(), Source::Control).unwrap();
        let mut found = Vec::new();
        waker.wake();
        epoll.wait(Some(Duration::ZERO), &mut found).unwrap();
        assert!(found.is_empty());
        waker.fall_asleep();
        waker.wake();
        waker.wake();
        epoll.wait(None, &mut found).unwrap();
        assert_eq!(found, [Source::Control]);
        waker.clear();
        found.clear();
        epoll.wait(Some(Duration::ZERO), &mut found).unwrap();
        assert!(found.is_empty());
    }

    #[test]
    fn each_ring_of_a_doorbell_is_reported_once_without_reading() {
        let bell = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap();
        let mut epoll = Epoll::new().unwrap();
        epoll.add_doorbell(bell.as_fd(), Source::Doorbell(5)).unwrap();
        let mut found = Vec::new();
        for _ in 0..3 {
            bell.write(1).unwrap();
            epoll.wait(None, &mut found).unwrap();
            assert_eq!(found, [Source::Doorbell(5)]);
            found.clear();
            epoll.wait(Some(Duration::ZERO), &mut found).unwrap();
            assert!(found.is_empty());
        }
    }

    #[test]
    fn output_is_reported_once_per_request() {
        let (_read, write) = nix::unistd::pipe().unwrap();
        let mut epoll = Epoll::new().unwrap();
        let source = Source::Channel { client: 1, channel: 2 };
        let mut found = Vec::new();
        for _ in 0..2 {
            epoll.add_output_once(write.as_fd(), source).unwrap();
            epoll.wait(None, &mut found).unwrap();
            assert_eq!(found, [source]);
            found.clear();
            epoll.wait(Some(Duration::ZERO), &mut found).unwrap();
            assert!(found.is_empty());
        }
    }
}
