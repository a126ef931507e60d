//! MSI-X interrupts: one eventfd per vector, which the VMM passes and which the guest's interrupt controller listens to.
//!
//! Writing an eventfd can block, as whoever else holds it can fill it up. So a thread per device writes them; raising an
//! interrupt only sets a bit and wakes that thread. A vector that has no eventfd yet keeps its bit until it gets one: a VMM may
//! take eventfds away and give them again while it rearranges vectors.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;

use nix::errno::Errno;

use super::config_space::VECTORS;

const COUNT: usize = VECTORS as usize;

/// The interrupts of one device.
#[derive(Debug, Default)]
pub struct Interrupts {
    /// Vectors to be raised.
    pending: AtomicU32,
    /// The function may interrupt: the bus master bit.
    enabled: AtomicBool,
    stopping: AtomicBool,
    /// Held while one is written, so that after a change no old one is.
    vectors: Mutex<[Option<OwnedFd>; COUNT]>,
    thread: OnceLock<Thread>,
}

impl Interrupts {
    /// No vector has an eventfd. The thread ends with [`Self::stop`], or, if a VMM makes a write block, when the process does.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(name: String) -> io::Result<Arc<Interrupts>> {
        let interrupts = Arc::new(Interrupts::default());
        let shared = interrupts.clone();
        let thread = std::thread::Builder::new().name(name).spawn(move || shared.run())?;
        interrupts.thread.set(thread.thread().clone()).expect("set once");
        Ok(interrupts)
    }

    fn run(&self) {
        while !self.stopping.load(Ordering::Acquire) {
            self.deliver();
            std::thread::park();
        }
    }

    /// Writes the eventfds of what is pending.
    fn deliver(&self) {
        let vectors = self.vectors();
        if !self.enabled.load(Ordering::Acquire) {
            return;
        }
        let with_fd = vectors.iter().enumerate().filter_map(|(n, fd)| fd.as_ref().map(|_| 1u32 << n)).sum::<u32>();
        let mut due = self.pending.fetch_and(!with_fd, Ordering::AcqRel) & with_fd;
        while due != 0 {
            let vector = due.trailing_zeros() as usize;
            due &= due - 1;
            if let Some(fd) = &vectors[vector] {
                // An eventfd that is full has been told often enough.
                let _ = nix::unistd::write(fd, &1u64.to_ne_bytes());
            }
        }
    }

    fn vectors(&self) -> MutexGuard<'_, [Option<OwnedFd>; COUNT]> {
        self.vectors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Raises an interrupt. Never blocks.
    pub fn raise(&self, vector: usize) {
        assert!(vector < COUNT, "vector {vector} of {COUNT}");
        let bit = 1 << vector;
        if self.pending.fetch_or(bit, Ordering::AcqRel) & bit == 0 {
            self.wake();
        }
    }

    /// Gives a vector its eventfd, or takes it away. When this returns, the one before is not written any more.
    ///
    /// # Errors
    /// `EINVAL` for a descriptor that is no eventfd: writing it could do anything.
    pub fn set(&self, vector: usize, fd: Option<OwnedFd>) -> Result<(), Errno> {
        if let Some(fd) = &fd
            && !is_eventfd(fd)
        {
            return Err(Errno::EINVAL);
        }
        self.vectors()[vector] = fd;
        self.wake();
        Ok(())
    }

    /// Whether the function may interrupt. When this returns false to the caller's wish, nothing is written any more.
    pub fn enable(&self, enabled: bool) {
        let _vectors = self.vectors();
        self.enabled.store(enabled, Ordering::Release);
        self.wake();
    }

    /// Forgets what is pending; the eventfds stay.
    pub fn clear(&self) {
        let _vectors = self.vectors();
        self.pending.store(0, Ordering::Release);
    }

    /// Forgets everything; the function is as after power-on.
    pub fn reset(&self) {
        let mut vectors = self.vectors();
        vectors.fill_with(|| None);
        self.pending.store(0, Ordering::Release);
        self.enabled.store(false, Ordering::Release);
    }

    /// Ends the thread.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.wake();
    }
}

fn is_eventfd(fd: &OwnedFd) -> bool {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()));
    link.is_ok_and(|target| target.as_os_str() == "anon_inode:[eventfd]")
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::eventfd::{EfdFlags, EventFd};

    fn eventfd() -> EventFd {
        EventFd::from_flags(EfdFlags::EFD_CLOEXEC).unwrap()
    }

    fn pass(event: &EventFd) -> Option<OwnedFd> {
        Some(event.as_fd().try_clone_to_owned().unwrap())
    }

    #[test]
    fn an_interrupt_waits_for_its_eventfd_and_for_the_bus_master_bit() {
        let interrupts = Interrupts::start("test-irq".into()).unwrap();
        let (first, second) = (eventfd(), eventfd());
        interrupts.raise(3);
        interrupts.set(3, pass(&first)).unwrap();
        interrupts.set(4, pass(&second)).unwrap();
        interrupts.enable(true);
        // Blocks until it is written.
        assert_eq!(first.read().unwrap(), 1);
        interrupts.raise(4);
        assert_eq!(second.read().unwrap(), 1);
        interrupts.stop();
    }

    #[test]
    fn only_eventfds_are_taken() {
        let interrupts = Interrupts::start("test-irq".into()).unwrap();
        let (read, write) = nix::unistd::pipe().unwrap();
        assert_eq!(interrupts.set(0, Some(write)), Err(Errno::EINVAL));
        assert_eq!(interrupts.set(0, Some(read)), Err(Errno::EINVAL));
        interrupts.stop();
    }

    /// A client that fills its eventfd holds up the thread that writes it and nobody who raises interrupts.
    #[test]
    fn a_full_eventfd_blocks_nobody_who_raises() {
        let interrupts = Interrupts::start("test-irq".into()).unwrap();
        let full = eventfd();
        full.write(u64::MAX - 1).unwrap();
        interrupts.set(0, pass(&full)).unwrap();
        interrupts.enable(true);
        for _ in 0..1000 {
            interrupts.raise(0);
        }
        // Let it go on, so that the thread can end.
        assert_eq!(full.read().unwrap(), u64::MAX - 1);
        interrupts.stop();
    }
}
