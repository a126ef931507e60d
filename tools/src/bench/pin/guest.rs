//! Memory of a guest in a file, as a VMM would share it: in small or huge pages, resident or not.
//!
//! The files lie in two tmpfs mounts that say which pages they use, whatever the system's settings for memfds are; the mounts are
//! in a namespace of this process and go with it.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

use anyhow::{Context, Result, ensure};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use pvdma::{Backing, Gpa, Protection, RegionInit};
use tempfile::TempDir;

/// What a guest's memory is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// 4 KiB.
    Small,
    /// 2 MiB.
    Huge,
}

/// Where guest memory is made.
pub struct Mounts {
    small: TempDir,
    huge: TempDir,
}

impl Mounts {
    /// Two mounts in a namespace of this process's own.
    pub fn new() -> Result<Mounts> {
        unshare(CloneFlags::CLONE_NEWNS).context("cannot leave the mount namespace")?;
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
            .context("cannot make the mounts private")?;
        let tmpfs = |pages: &str| {
            let folder = tempfile::tempdir()?;
            let options = format!("huge={pages},mode=0700,size=1T");
            mount(Some("tmpfs"), folder.path(), Some("tmpfs"), MsFlags::empty(), Some(options.as_str()))
                .with_context(|| format!("cannot mount a tmpfs with {options}"))?;
            Ok::<_, anyhow::Error>(folder)
        };
        Ok(Mounts { small: tmpfs("never")?, huge: tmpfs("always")? })
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        // So that the folders can be removed; the mounts would go with the process in any case.
        for folder in [&self.small, &self.huge] {
            let _ = nix::mount::umount2(folder.path(), nix::mount::MntFlags::MNT_DETACH);
        }
    }
}

/// Guest memory.
pub struct Memory {
    file: File,
    len: u64,
    pages: Pages,
}

impl Memory {
    /// `len` bytes, none of them resident.
    pub fn new(mounts: &Mounts, pages: Pages, len: u64) -> Result<Memory> {
        let folder = match pages {
            Pages::Small => mounts.small.path(),
            Pages::Huge => mounts.huge.path(),
        };
        let file = OpenOptions::new().read(true).write(true).custom_flags(nix::libc::O_TMPFILE).open(folder);
        let file = file.context("cannot make a file for guest memory")?;
        file.set_len(len).with_context(|| format!("cannot make guest memory of {len} bytes"))?;
        Ok(Memory { file, len, pages })
    }

    /// As the VMM's message would bring all of it.
    pub fn region(&self) -> RegionInit {
        let fd = self.file.try_clone().expect("a descriptor is left").into();
        let protection = Protection::READ | Protection::WRITE;
        RegionInit { gpa: Gpa(0), len: self.len, protection, backing: Some(Backing { fd, offset: 0 }) }
    }

    /// Makes a part resident, as a VMM that preallocates does.
    pub fn populate(&self, from: u64, len: u64) -> Result<()> {
        let zeros = vec![0; 1 << 20];
        for at in (from..from + len).step_by(zeros.len()) {
            self.file.write_all_at(&zeros, at).context("cannot populate guest memory")?;
        }
        Ok(())
    }

    /// Whether so many bytes are resident by now, which is what was paid for.
    pub fn check_pages(&self, len: u64) -> Result<()> {
        let resident = self.file.metadata()?.blocks() * 512;
        ensure!(resident >= len, "{resident} bytes of {len} are resident after pinning, in {:?} pages", self.pages);
        Ok(())
    }
}

/// Bytes of memory that can be had without swapping.
pub fn available() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").context("cannot read /proc/meminfo")?;
    let field = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = field.and_then(|value| value.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    Ok(kib.context("/proc/meminfo has no MemAvailable")? * 1024)
}
