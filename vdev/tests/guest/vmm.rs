//! A VMM without a virtual machine: guest memory, a connection to a device, an eventfd per interrupt vector.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::memfd::{MFdFlags, memfd_create};
use vfio_user::Client;

use super::place::Place;

/// Region of configuration space.
pub const CONFIG: u32 = 7;
/// Interrupts through descriptors.
const EVENTFD_TRIGGER: u32 = 4 | 32;
const MSIX: u32 = 2;
pub const VECTORS: usize = 32;
pub const PAGE: u64 = 4096;

/// Guest memory, mapped here as the guest's processors would have it.
pub struct Memory {
    pub fd: OwnedFd,
    base: *mut u8,
    pub len: u64,
    next: AtomicU64,
}

impl Memory {
    pub fn new(len: u64) -> Memory {
        let fd = memfd_create("guest", MFdFlags::MFD_CLOEXEC).unwrap();
        nix::unistd::ftruncate(&fd, len as i64).unwrap();
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len as usize, rights, libc::MAP_SHARED, fd.as_raw_fd(), 0) };
        assert_ne!(base, libc::MAP_FAILED);
        Memory { fd, base: base.cast(), len, next: AtomicU64::new(PAGE) }
    }

    /// Guest address of so many fresh pages, one after the other.
    pub fn pages(&self, count: u64) -> u64 {
        let at = self.next.fetch_add(count * PAGE, Ordering::Relaxed);
        assert!(at + count * PAGE <= self.len, "the guest's memory is used up");
        at
    }

    /// How far pages have been given out.
    pub fn mark(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// Takes back what was given out since.
    pub fn rewind(&self, mark: u64) {
        self.next.store(mark, Ordering::Relaxed);
    }

    fn at(&self, gpa: u64, len: usize) -> *mut u8 {
        assert!(gpa + len as u64 <= self.len, "{len} bytes at {gpa:#x}");
        self.base.wrapping_add(gpa as usize)
    }

    pub fn write(&self, gpa: u64, bytes: &[u8]) {
        // SAFETY: within the mapping; the daemon accesses it by other means.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at(gpa, bytes.len()), bytes.len()) };
    }

    pub fn read(&self, gpa: u64, len: usize) -> Vec<u8> {
        let from = self.at(gpa, len);
        // SAFETY: within the mapping; volatile, as the daemon writes there.
        (0..len).map(|n| unsafe { from.wrapping_add(n).read_volatile() }).collect()
    }

    pub fn word(&self, gpa: u64) -> &AtomicU64 {
        assert!(gpa.is_multiple_of(8));
        // SAFETY: aligned and within the mapping, which lives as long as `self`.
        unsafe { AtomicU64::from_ptr(self.at(gpa, 8).cast()) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped.
        unsafe { libc::munmap(self.base.cast(), self.len as usize) };
    }
}

/// A connected VMM.
pub struct Vmm {
    pub client: Client,
    pub memory: Memory,
    pub vectors: Vec<EventFd>,
}

impl Vmm {
    /// Connects and gives the device this much memory, from guest address 0 on.
    pub fn connect(socket: &Path, bytes: u64) -> Vmm {
        let memory = Memory::new(bytes);
        let mut client = Client::new(socket).unwrap();
        client.dma_map(0, 0, bytes, memory.fd.as_raw_fd()).unwrap();
        let new = || EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).unwrap();
        let vectors: Vec<EventFd> = (0..VECTORS).map(|_| new()).collect();
        let fds: Vec<RawFd> = vectors.iter().map(|fd| fd.as_fd().as_raw_fd()).collect();
        for (n, fds) in fds.chunks(16).enumerate() {
            client.set_irqs(MSIX, EVENTFD_TRIGGER, 16 * n as u32, fds.len() as u32, fds).unwrap();
        }
        Vmm { client, memory, vectors }
    }

    pub fn config(&mut self, at: u64) -> u32 {
        let mut word = [0; 4];
        self.client.region_read(CONFIG, at, &mut word).unwrap();
        u32::from_le_bytes(word)
    }

    pub fn set_config(&mut self, at: u64, value: u32) {
        self.client.region_write(CONFIG, at, &value.to_le_bytes()).unwrap();
    }

    pub fn register(&mut self, at: u64) -> u32 {
        let mut word = [0; 4];
        self.client.region_read(0, at, &mut word).unwrap();
        u32::from_le_bytes(word)
    }

    pub fn set_register(&mut self, at: u64, value: u32) {
        self.client.region_write(0, at, &value.to_le_bytes()).unwrap();
    }

    pub fn doorbell(&mut self, at: u64, value: u64) {
        self.client.region_write(0, at, &value.to_le_bytes()).unwrap();
    }

    /// Waits for an interrupt.
    pub fn wait_for(&self, vector: usize) {
        let mut fds = [PollFd::new(self.vectors[vector].as_fd(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut fds, PollTimeout::from(20_000u16)).unwrap(), 1, "no interrupt of vector {vector} in 20 s");
        self.vectors[vector].read().unwrap();
    }

    /// Whether an interrupt has come; takes it.
    pub fn has_interrupt(&self, vector: usize) -> bool {
        self.vectors[vector].read().is_ok()
    }
}

/// Makes a device for a virtual machine; returns its socket.
pub fn add(place: &Place, name: &str, ip: &str) -> std::path::PathBuf {
    let socket = place.folder.path().join(format!("{name}.vm"));
    let body = format!("{{\"ips\":[\"{ip}\"],\"vfio_user\":{:?},\"mac\":\"52:54:00:00:00:01\"}}", socket.to_str().unwrap());
    let (status, answer) = place.http("PUT", &format!("/v1/devices/{name}"), &body);
    assert_eq!(status, 201, "{answer}");
    socket
}
