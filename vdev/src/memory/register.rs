//! What a registration names: checked against what the process has mapped, and split into what we map and what we copy through
//! the kernel.

use super::dmabuf::{Buffer, BufferError};
use super::mapping::SharedMapping;
use super::maps::Vma;
use super::process::{Direction, Process};
use libc::iovec;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use vdev_abi::control::SharedRange;

/// A range that may be registered, in ascending order and without gaps.
#[derive(Debug)]
pub struct Resolved {
    /// The pieces; empty for a range of no bytes.
    pub pieces: Vec<Piece>,
    /// Whether the daemon has mapped all of it.
    pub fully_mapped: bool,
    /// Ends of the range in files that may be shorter than their mappings, or device memory: to be looked at with [`probe`].
    pub doubtful: Vec<u64>,
}

/// A part of a registration that is reached in one way.
#[derive(Clone, Debug)]
pub struct Piece {
    /// First byte in the client's address space, or in a device's buffer.
    pub addr: u64,
    /// Number of bytes, 1 or more.
    pub len: u64,
    /// How it is reached.
    pub place: Place,
}

/// How memory is reached.
#[derive(Clone, Debug)]
pub enum Place {
    /// Through the kernel, at the client's own addresses.
    Process,
    /// Directly.
    Mapped {
        /// Our mapping of the object.
        mapping: Arc<SharedMapping>,
        /// Offset of the piece's first byte in the mapping: the address of its segment.
        offset: u64,
    },
}

/// Why a range cannot be registered.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// The range goes beyond the end of the address space.
    #[error("{length} bytes at {addr:#x} go beyond the end of the address space")]
    Wraps {
        /// First byte asked for.
        addr: u64,
        /// Bytes asked for.
        length: u64,
    },
    /// A hole.
    #[error("Nothing is mapped at {at:#x} in process {pid}")]
    NotMapped {
        /// First such byte.
        at: u64,
        /// The process.
        pid: i32,
    },
    /// No right to read or write. The kernel would let us write, but the program asked for memory that it must not change.
    #[error("The memory at {at:#x} in process {pid} is not {right}; ask for fewer access rights or map it with more")]
    NoRight {
        /// First such byte.
        at: u64,
        /// The process.
        pid: i32,
        /// `readable` or `writable`.
        right: &'static str,
    },
    /// Mapped, but neither we nor the kernel reach it: device memory, or a file that is shorter than its mapping.
    #[error("The memory at {at:#x} in process {pid} is mapped but cannot be reached")]
    Unreachable {
        /// The byte that was tried.
        at: u64,
        /// The process.
        pid: i32,
    },
    /// `/proc/PID/maps` cannot be read.
    #[error("Cannot look at the mappings of the process: {0}")]
    Maps(#[from] io::Error),
}

impl RegisterError {
    /// For the verbs caller.
    pub fn errno(&self) -> i32 {
        match self {
            RegisterError::Wraps { .. } => libc::EINVAL,
            RegisterError::Maps(_) => libc::EACCES,
            _ => libc::EFAULT,
        }
    }
}

/// Checks that all of `addr..addr + length` is mapped in the process with the rights needed, and finds out how it is reached. `shared` are the parts that the client says are shared objects, with its descriptors of them: hints, each
/// used only if it is indeed the object that the process has mapped there.
///
/// # Errors
/// Why the range cannot be registered.
pub fn resolve(
    process: &Arc<Process>,
    addr: u64,
    length: u64,
    writable: bool,
    shared: Vec<(SharedRange, OwnedFd)>,
) -> Result<Resolved, RegisterError> {
    let end = addr.checked_add(length).ok_or(RegisterError::Wraps { addr, length })?;
    let mut pieces: Vec<Piece> = Vec::new();
    let mut doubtful = Vec::new();
    let ends = [addr, end.wrapping_sub(1)];
    let whole = Piece { addr, len: length, place: Place::Process };
    match process.maps() {
        _ if length == 0 => {}
        None => {
            pieces.push(whole);
            doubtful.extend(ends);
        }
        Some(maps) => {
            let mut at = addr;
            maps.visit(addr, end, |vma| {
                check(process, &vma, at, writable)?;
                let piece_end = vma.end.min(end);
                let place = place(process, &vma, at, writable, &shared);
                if vma.inode != 0 && matches!(place, Place::Process) {
                    doubtful.extend(ends.into_iter().filter(|end| (at..piece_end).contains(end)));
                }
                append(&mut pieces, Piece { addr: at, len: piece_end - at, place });
                at = piece_end;
                Ok::<(), RegisterError>(())
            })?;
            if at < end {
                return Err(RegisterError::NotMapped { at, pid: process.pid() });
            }
        }
    }
    let fully_mapped = pieces.iter().all(|piece| matches!(piece.place, Place::Mapped { .. }));
    Ok(Resolved { pieces, fully_mapped, doubtful })
}

/// Finds a part of a device's buffer, of which the client has passed a descriptor, and maps the buffer.
///
/// # Errors
/// Why it cannot be registered.
pub fn resolve_buffer(
    process: &Process,
    fd: OwnedFd,
    (offset, length): (u64, u64),
    writable: bool,
) -> Result<Resolved, BufferError> {
    let buffer = Buffer::new(fd)?;
    let size = buffer.size;
    if length == 0 || offset.checked_add(length).is_none_or(|end| end > size) {
        return Err(BufferError::Outside { offset, length, size });
    }
    if writable && !buffer.writable {
        return Err(BufferError::ReadOnly { exporter: buffer.exporter });
    }
    let mapping = process.mappings.buffer(buffer, writable)?;
    let pieces = vec![Piece { addr: offset, len: length, place: Place::Mapped { mapping, offset } }];
    Ok(Resolved { pieces, fully_mapped: true, doubtful: Vec::new() })
}

/// Our mappings of a device's buffer that are in use by registrations of the client.
///
/// # Errors
/// It is no such buffer.
pub fn mappings_of(process: &Process, fd: OwnedFd) -> Result<Vec<Arc<SharedMapping>>, BufferError> {
    Ok(process.mappings.of_buffer(&Buffer::new(fd)?))
}

fn check(process: &Process, vma: &Vma, at: u64, writable: bool) -> Result<(), RegisterError> {
    let pid = process.pid();
    if vma.start > at {
        return Err(RegisterError::NotMapped { at, pid });
    }
    if !vma.readable {
        return Err(RegisterError::NoRight { at, pid, right: "readable" });
    }
    if writable && !vma.writable {
        return Err(RegisterError::NoRight { at, pid, right: "writable" });
    }
    Ok(())
}

fn place(process: &Process, vma: &Vma, at: u64, writable: bool, shared: &[(SharedRange, OwnedFd)]) -> Place {
    let passed: Vec<_> = shared.iter().filter(|(range, _)| agrees(vma, range)).map(|(_, fd)| fd.as_fd()).collect();
    match process.mappings.mapping(process.pid(), vma, writable, &passed) {
        Some(mapping) => Place::Mapped { mapping, offset: at - vma.start },
        None => Place::Process,
    }
}

/// Whether what the client says of a range is what the kernel says, as far as the two overlap.
fn agrees(vma: &Vma, range: &SharedRange) -> bool {
    let overlap = range.addr < vma.end && range.addr.checked_add(range.length).is_some_and(|end| end > vma.start);
    overlap && range.addr.wrapping_sub(vma.start) == range.offset.wrapping_sub(vma.offset)
}

/// Neighbours that are reached through the kernel are one piece: less to look up.
fn append(pieces: &mut Vec<Piece>, piece: Piece) {
    match (pieces.last_mut(), &piece.place) {
        (Some(Piece { len, place: Place::Process, .. }), Place::Process) => *len += piece.len,
        _ => pieces.push(piece),
    }
}

/// Reads the bytes at these addresses. May take as long as whoever serves the file likes.
///
/// # Errors
/// [`RegisterError::Unreachable`].
pub fn probe(process: &Process, addresses: &[u64]) -> Result<(), RegisterError> {
    for &at in addresses {
        let mut byte = 0u8;
        let local = iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        let remote = iovec { iov_base: core::ptr::without_provenance_mut(at as usize), iov_len: 1 };
        // SAFETY: the local range is `byte`.
        unsafe { process.transfer(Direction::Read, &[local], &[remote]) }
            .map_err(|_| RegisterError::Unreachable { at, pid: process.pid() })?;
    }
    Ok(())
}
