//! What bandwidth is compared with: the same bytes moved by memcpy, and by one `process_vm_writev` into the target.

use std::io::IoSlice;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::sys::uio::{RemoteIoVec, process_vm_writev};
use nix::unistd::Pid;

use crate::endpoint::offset;
use crate::verbs::{Buffer, Remote};

/// Copies messages of `size` bytes from one buffer to another for about `time`, cycling over both. Bytes per second.
pub fn memcpy(from: &Buffer, to: &Buffer, size: usize, time: Duration) -> Result<f64> {
    let set = from.size().min(to.size());
    ensure!(size <= set, "a message of {size} bytes does not fit into {set}");
    let (from, to) = (host(from)?, host(to)?);
    repeat(size, time, |index| {
        let at = offset(index, size, set);
        // SAFETY: both ranges lie in their buffers, which are distinct mappings.
        unsafe { std::ptr::copy_nonoverlapping(from.add(at), to.add(at), size) };
        Ok(())
    })
}

/// The same into the memory of another process, one system call a message.
pub fn process_vm(from: &Buffer, pid: i32, to: &Remote, size: usize, time: Duration) -> Result<f64> {
    let set = from.size().min(usize::try_from(to.length).unwrap_or(usize::MAX));
    ensure!(size <= set, "a message of {size} bytes does not fit into {set}");
    let (pid, from) = (Pid::from_raw(pid), host(from)?);
    repeat(size, time, |index| {
        let at = offset(index, size, set);
        // SAFETY: the range lies in the buffer, and this side does not change it meanwhile.
        let local = unsafe { std::slice::from_raw_parts(from.add(at), size) };
        let remote = RemoteIoVec { base: to.addr as usize + at, len: size };
        let moved = process_vm_writev(pid, &[IoSlice::new(local)], &[remote]).context("process_vm_writev is not permitted")?;
        ensure!(moved == size, "process_vm_writev moved {moved} of {size} bytes");
        Ok(())
    })
}

fn host(buffer: &Buffer) -> Result<*mut u8> {
    buffer.as_ptr().context("copies by the processor do not reach memory of a GPU")
}

/// Runs `step` for about `time` and at least once. Bytes per second.
fn repeat(size: usize, time: Duration, mut step: impl FnMut(u64) -> Result<()>) -> Result<f64> {
    // Bytes between two readings of the clock, so that reading it costs nothing.
    let group = ((256 << 10) / size.max(1)).max(1) as u64;
    let mut index = 0;
    let start = Instant::now();
    loop {
        for _ in 0..group {
            step(index)?;
            index += 1;
        }
        let elapsed = start.elapsed();
        if elapsed >= time {
            return Ok(index as f64 * size as f64 / elapsed.as_secs_f64());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::Placement;

    #[test]
    fn both_move_the_bytes() {
        let from = Buffer::new(1 << 16, Placement::Heap).unwrap();
        for size in [1, 4096, 1 << 16] {
            let to = Buffer::new(1 << 16, Placement::Shared).unwrap();
            // SAFETY: the first byte of each buffer.
            unsafe {
                host(&from).unwrap().write(0xA5);
                host(&to).unwrap().write(0);
            }
            assert!(memcpy(&from, &to, size, Duration::ZERO).unwrap() > 0.0);
            // SAFETY: as above.
            assert_eq!(unsafe { host(&to).unwrap().read() }, 0xA5);
            // SAFETY: as above.
            unsafe { host(&to).unwrap().write(0) };
            let remote = Remote { addr: to.address(), length: 1 << 16, rkey: 0 };
            let pid = std::process::id() as i32;
            assert!(process_vm(&from, pid, &remote, size, Duration::ZERO).unwrap() > 0.0);
            // SAFETY: as above.
            assert_eq!(unsafe { host(&to).unwrap().read() }, 0xA5);
        }
        let small = Buffer::new(64, Placement::Heap).unwrap();
        assert!(memcpy(&from, &small, 128, Duration::ZERO).is_err());
    }
}
