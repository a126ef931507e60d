//! What a process has mapped, as `/proc/PID/maps` tells it: by query (Linux 6.11) or by reading the text.
//!
//! The descriptor is opened once and holds on to the address space it was opened on: after an exec it goes on describing the
//! old one and never tells about another program.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

/// One mapping of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Vma {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) readable: bool,
    pub(super) writable: bool,
    pub(super) shared: bool,
    /// Offset of `start` in the object.
    pub(super) offset: u64,
    pub(super) dev: (u32, u32),
    /// Zero without an object.
    pub(super) inode: u64,
}

/// The mappings of one address space.
#[derive(Debug)]
pub(super) struct Maps {
    file: File,
    no_query: AtomicBool,
}

impl Maps {
    /// # Errors
    /// The system's: no such process, or no right to look (the same right as for `ptrace` in read mode).
    pub(super) fn open(pid: i32) -> io::Result<Maps> {
        let file = File::open(format!("/proc/{pid}/maps"))?;
        Ok(Maps { file, no_query: AtomicBool::new(false) })
    }

    /// Calls `visit` with every mapping that has a byte in `start..end`, in ascending order, until it returns an error.
    ///
    /// # Errors
    /// What `visit` returns; the system's, through `E`.
    pub(super) fn visit<E: From<io::Error>>(
        &self,
        start: u64,
        end: u64,
        mut visit: impl FnMut(Vma) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut at = start;
        while at < end && !self.no_query.load(Ordering::Relaxed) {
            match query(&self.file, at) {
                Ok(Some(vma)) if vma.start < end => {
                    visit(vma)?;
                    at = vma.end;
                }
                Ok(_) => return Ok(()),
                Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => self.no_query.store(true, Ordering::Relaxed),
                Err(error) => return Err(error.into()),
            }
        }
        if at < end { self.visit_text(at, end, visit) } else { Ok(()) }
    }

    fn visit_text<E: From<io::Error>>(
        &self,
        start: u64,
        end: u64,
        mut visit: impl FnMut(Vma) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut buffer = vec![0; 32 * 1024];
        let (mut kept, mut position) = (0, 0);
        loop {
            let got = self.file.read_at(&mut buffer[kept..], position)?;
            position += got as u64;
            let filled = kept + got;
            let whole = buffer[..filled].iter().rposition(|&byte| byte == b'\n').map_or(0, |last| last + 1);
            for line in buffer[..whole].split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
                let vma = parse(line).ok_or_else(|| io::Error::other("a line of /proc/PID/maps has an unknown form"))?;
                if vma.start >= end {
                    return Ok(());
                }
                if vma.end > start {
                    visit(vma)?;
                }
            }
            // A line longer than the buffer cannot be completed; the kernel's are at most about 4.2 KiB.
            if got == 0 || (whole == 0 && filled == buffer.len()) {
                return Ok(());
            }
            buffer.copy_within(whole..filled, 0);
            kept = filled - whole;
        }
    }
}

/// `START-END PERMS OFFSET MAJOR:MINOR INODE [PATH]`, numbers but the inode in hexadecimal.
fn parse(line: &[u8]) -> Option<Vma> {
    let head = line.split(|&byte| byte == b' ').filter(|field| !field.is_empty()).take(5);
    let fields: Vec<&str> = head.map(core::str::from_utf8).collect::<Result<_, _>>().ok()?;
    let [range, rights, offset, dev, inode] = fields[..] else { return None };
    let (start, end) = range.split_once('-')?;
    let (major, minor) = dev.split_once(':')?;
    let hex = |digits| u64::from_str_radix(digits, 16).ok();
    let hex32 = |digits| u32::from_str_radix(digits, 16).ok();
    Some(Vma {
        start: hex(start)?,
        end: hex(end)?,
        readable: rights.contains('r'),
        writable: rights.contains('w'),
        shared: rights.contains('s'),
        offset: hex(offset)?,
        dev: (hex32(major)?, hex32(minor)?),
        inode: inode.parse().ok()?,
    })
}

/// `struct procmap_query` of `linux/fs.h`.
#[derive(Default)]
#[repr(C)]
struct Query {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

const READABLE: u64 = 1;
const WRITABLE: u64 = 2;
const SHARED: u64 = 8;
const COVERING_OR_NEXT: u64 = 16;

nix::ioctl_readwrite!(procmap_query, b'f', 17, Query);

/// The mapping that holds `addr`, or the next one above. `ENOTTY` from kernels that cannot be asked.
fn query(maps: &File, addr: u64) -> io::Result<Option<Vma>> {
    let mut query =
        Query { size: size_of::<Query>() as u64, query_flags: COVERING_OR_NEXT, query_addr: addr, ..Query::default() };
    // SAFETY: the kernel writes at most `size` bytes into `query`, and no name or build id is asked for.
    match unsafe { procmap_query(maps.as_raw_fd(), &raw mut query) } {
        Ok(_) => {}
        Err(nix::errno::Errno::ENOENT) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    }
    let has = |flag| query.vma_flags & flag != 0;
    Ok(Some(Vma {
        start: query.vma_start,
        end: query.vma_end,
        readable: has(READABLE),
        writable: has(WRITABLE),
        shared: has(SHARED),
        offset: query.vma_offset,
        dev: (query.dev_major, query.dev_minor),
        inode: query.inode,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(maps: &Maps, start: u64, end: u64) -> Vec<Vma> {
        let mut seen = Vec::new();
        let visited: io::Result<()> = maps.visit(start, end, |vma| {
            seen.push(vma);
            Ok(())
        });
        visited.unwrap();
        seen
    }

    #[test]
    fn query_and_text_agree() {
        // Of a child that does nothing: our own mappings change while other tests run.
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        std::thread::sleep(core::time::Duration::from_millis(100));
        let pid = child.id() as i32;
        let (asked, read) = (Maps::open(pid).unwrap(), Maps::open(pid).unwrap());
        read.no_query.store(true, Ordering::Relaxed);
        let top = 1 << 47;
        let whole = all(&read, 0, top);
        assert!(whole.len() > 5);
        assert_eq!(all(&asked, 0, top), whole);
        let middle = whole[2];
        for maps in [&asked, &read] {
            assert_eq!(all(maps, middle.start + 1, middle.start + 2), [middle]);
            assert_eq!(all(maps, middle.end - 1, whole[3].start + 1), [middle, whole[3]]);
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn lines() {
        let line = b"7f0000000000-7f0000002000 rw-s 0001f000 fe:01 4294967297                 /dev/shm/a b (deleted)";
        let vma = parse(line).unwrap();
        assert_eq!((vma.start, vma.end, vma.offset), (0x7f00_0000_0000, 0x7f00_0000_2000, 0x1f000));
        assert!(vma.readable && vma.writable && vma.shared);
        assert_eq!((vma.dev, vma.inode), ((0xfe, 1), 4_294_967_297));
        assert_eq!(parse(b"nonsense"), None);
        assert_eq!(parse(b"1-2 r--p 0 0:0"), None);
    }
}
