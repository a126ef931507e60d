//! A guest for tests: memory in a memfd, seen here as the VMM sees it, and regions of it as a VMM would map them.

#![allow(dead_code, reason = "not every test file uses all of it")]

use nix::sys::memfd::{MFdFlags, memfd_create};
use pvdma::{Backing, Gpa, GpaRange, Protection, RegionInit};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

pub const MIB: u64 = 1 << 20;
pub const BLOCK: u64 = pvdma::BLOCK_LEN;
pub const READ_WRITE: Protection = Protection::READ.union(Protection::WRITE);

/// Memory of a guest.
pub struct Guest {
    file: File,
}

impl Guest {
    /// `len` bytes, none of them resident.
    pub fn new(len: u64) -> Guest {
        Guest::of(len, MFdFlags::MFD_CLOEXEC)
    }

    /// The same in huge pages; the host need not have any to spare.
    pub fn huge(len: u64) -> Guest {
        Guest::of(len, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_HUGETLB)
    }

    fn of(len: u64, flags: MFdFlags) -> Guest {
        let file = File::from(memfd_create("guest", flags).expect("memfds exist"));
        file.set_len(len).expect("a memfd can be long");
        Guest { file }
    }

    pub fn fd(&self) -> OwnedFd {
        self.file.try_clone().expect("descriptors are left").into()
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    /// Bytes of memory that it occupies.
    pub fn resident(&self) -> u64 {
        nix::sys::stat::fstat(&self.file).expect("a memfd has a state").st_blocks as u64 * 512
    }

    /// What the VMM and the guest see.
    pub fn read(&self, offset: u64) -> u8 {
        let mut byte = [0];
        self.file.read_exact_at(&mut byte, offset).expect("within the memfd");
        byte[0]
    }

    pub fn write(&self, offset: u64, byte: u8) {
        self.file.write_all_at(&[byte], offset).expect("within the memfd");
    }

    /// `len` bytes of it from `offset` on, at `gpa`.
    pub fn at(&self, gpa: u64, offset: u64, len: u64) -> RegionInit {
        let backing = Some(Backing { fd: self.fd(), offset });
        RegionInit { gpa: Gpa(gpa), len, protection: READ_WRITE, backing }
    }

    /// All that lies below `len`, at the same addresses.
    pub fn flat(&self, len: u64) -> RegionInit {
        self.at(0, 0, len)
    }
}

pub fn range(start: u64, len: u64) -> GpaRange {
    GpaRange::new(Gpa(start), len).expect("a range")
}
