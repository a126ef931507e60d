//! Which parts of a range to be registered are shared objects that the daemon can map itself.
//!
//! A part qualifies when it is a shared, writable mapping of a memfd or of a file in a memory file system, and this process can get a
//! descriptor of it that is open for reading and writing: one that it still has, or a new one by path. Everything here is optional: a
//! part that is not found is reached by the daemon in other ways. Nothing is remembered from one registration to the next.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use vdev_abi::control::{MAX_SHARED_RANGES, SharedRange};

/// Shorter ranges are not worth a look.
const LEAST: u64 = 4096;

/// A line of `/proc/self/maps` that may qualify.
#[derive(Debug, PartialEq, Eq)]
struct Area {
    start: u64,
    end: u64,
    offset: u64,
    major: u32,
    minor: u32,
    inode: u64,
    path: String,
}

/// The parts of `addr..addr + length` that are shared objects, with a descriptor each, in ascending order.
pub fn find(addr: u64, length: u64) -> Vec<(SharedRange, OwnedFd)> {
    if length < LEAST {
        return Vec::new();
    }
    let Ok(maps) = File::open("/proc/self/maps") else { return Vec::new() };
    let end = addr.saturating_add(length);
    let mut found = Vec::new();
    for line in BufReader::new(maps).lines().map_while(Result::ok) {
        let Some(area_end) = line_end(&line) else { continue };
        if area_end <= addr {
            continue;
        }
        let Some(area) = parse(&line) else {
            if line_start(&line).is_some_and(|start| start >= end) {
                break;
            }
            continue;
        };
        if area.start >= end || found.len() == MAX_SHARED_RANGES {
            break;
        }
        if let Some(fd) = open(&area) {
            let start = area.start.max(addr);
            let range =
                SharedRange { addr: start, length: area.end.min(end) - start, offset: area.offset + (start - area.start) };
            found.push((range, fd));
        }
    }
    found
}

fn line_start(line: &str) -> Option<u64> {
    u64::from_str_radix(line.split_once('-')?.0, 16).ok()
}

fn line_end(line: &str) -> Option<u64> {
    u64::from_str_radix(line.split_once('-')?.1.split_once(' ')?.0, 16).ok()
}

/// A line that describes a shared, writable mapping of an object.
fn parse(line: &str) -> Option<Area> {
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    if !fields.next()?.starts_with("rw-s").then_some(true)? && !line.contains(" rwxs ") {
        return None;
    }
    let offset = fields.next()?;
    let (major, minor) = fields.next()?.split_once(':')?;
    let inode: u64 = fields.next()?.parse().ok()?;
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    (inode != 0).then_some(())?;
    Some(Area {
        start: hex(start)?,
        end: hex(end)?,
        offset: hex(offset)?,
        major: u32::from_str_radix(major, 16).ok()?,
        minor: u32::from_str_radix(minor, 16).ok()?,
        inode,
        path: fields.next().unwrap_or("").trim_start().to_owned(),
    })
}

impl Area {
    fn is(&self, file: &File) -> bool {
        file.metadata().is_ok_and(|found| {
            found.ino() == self.inode
                && libc::major(found.dev()) == self.major
                && libc::minor(found.dev()) == self.minor
                && in_memory(file)
                && is_read_write(file)
        })
    }
}

/// A descriptor of the object behind an area.
fn open(area: &Area) -> Option<OwnedFd> {
    if area.path.starts_with('/') && !area.path.ends_with(" (deleted)") {
        let file = OpenOptions::new().read(true).write(true).open(&area.path).ok().filter(|file| area.is(file));
        if let Some(file) = file {
            return Some(file.into());
        }
    }
    for entry in fs::read_dir("/proc/self/fd").ok()?.map_while(Result::ok) {
        let Some(number) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        // SAFETY: a plain system call; duplicating keeps the object from being closed under us.
        let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
        if copy < 0 {
            continue;
        }
        // SAFETY: the descriptor is new and ours.
        let file = unsafe { File::from_raw_fd(copy) };
        if area.is(&file) {
            return Some(file.into());
        }
    }
    None
}

fn in_memory(file: &File) -> bool {
    // SAFETY: an all-zero value is valid.
    let mut stat: libc::statfs = unsafe { core::mem::zeroed() };
    // SAFETY: a live descriptor and a writable struct.
    let done = unsafe { libc::fstatfs(file.as_raw_fd(), &mut stat) } == 0;
    done && [libc::TMPFS_MAGIC, libc::HUGETLBFS_MAGIC].contains(&stat.f_type)
}

fn is_read_write(file: &File) -> bool {
    // SAFETY: a plain system call.
    let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
    flags >= 0 && flags & libc::O_ACCMODE == libc::O_RDWR
}

#[cfg(test)]
mod tests {
    use super::*;
    use vdev_abi::mapping::Mapping;

    #[test]
    fn a_memfd_mapping_is_found_with_its_offset() {
        let (fd, map) = Mapping::create(c"vrdma-test", 64 << 10).unwrap();
        let addr = map.as_ptr() as u64;
        let found = find(addr + 8192, 16 << 10);
        assert_eq!(found.len(), 1);
        let (range, copy) = &found[0];
        assert_eq!(*range, SharedRange { addr: addr + 8192, length: 16 << 10, offset: 8192 });
        let ours = File::from(fd.try_clone().unwrap()).metadata().unwrap();
        let theirs = File::from(copy.try_clone().unwrap()).metadata().unwrap();
        assert_eq!((ours.ino(), ours.dev()), (theirs.ino(), theirs.dev()));
    }

    #[test]
    fn an_object_without_a_descriptor_is_left_out() {
        let (fd, map) = Mapping::create(c"vrdma-test", 8192).unwrap();
        drop(fd);
        assert!(find(map.as_ptr() as u64, 8192).is_empty());
    }

    #[test]
    fn private_memory_is_left_out() {
        let heap = vec![0u8; 1 << 20];
        assert!(find(heap.as_ptr() as u64, 1 << 20).is_empty());
    }

    #[test]
    fn lines_are_read_as_the_kernel_writes_them() {
        let line = "7f0000000000-7f0000010000 rw-s 00002000 00:01 1234                       /memfd:a b (deleted)";
        let area = parse(line).unwrap();
        assert_eq!((area.start, area.end, area.offset), (0x7f00_0000_0000, 0x7f00_0001_0000, 0x2000));
        assert_eq!((area.major, area.minor, area.inode, area.path.as_str()), (0, 1, 1234, "/memfd:a b (deleted)"));
        assert_eq!(parse("7f0000000000-7f0000010000 rw-p 00000000 00:00 0"), None);
        assert_eq!(parse("7f0000000000-7f0000010000 r--s 00000000 00:01 7 /x"), None);
        assert_eq!(parse("nonsense"), None);
    }
}
