//! Which processor cores the demo's threads use.
//!
//! On a machine of two or three cores the two programs, which wait for each other most of the time, share one, and the daemon has
//! the rest: a message then costs one switch between programs, and no program takes the daemon's core while it works. Left to
//! itself the scheduler mixes them in ways that change from run to run, and latency is two to four times as long in the worse ones.

use anyhow::{Context, Result};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Cores from which on everybody has one.
const ENOUGH: usize = 4;

/// A split of the cores that this process may use.
pub struct Cores {
    all: CpuSet,
    programs: CpuSet,
    daemon: CpuSet,
    /// Whether programs and daemon have different cores.
    pub split: bool,
}

impl Cores {
    /// The cores of this process, split if there are two or three.
    pub fn find() -> Result<Cores> {
        let all = sched_getaffinity(this_thread()).context("cannot ask for the processor cores")?;
        let numbers: Vec<usize> = (0..CpuSet::count()).filter(|&cpu| all.is_set(cpu).unwrap_or(false)).collect();
        let split = (2..ENOUGH).contains(&numbers.len());
        if !split {
            return Ok(Cores { all, programs: all, daemon: all, split });
        }
        let (mut programs, mut daemon) = (CpuSet::new(), all);
        programs.set(numbers[0])?;
        daemon.unset(numbers[0])?;
        Ok(Cores { all, programs, daemon, split })
    }

    /// Threads and processes that this thread starts from now on are the daemon's.
    pub fn start_daemon(&self) -> Result<()> {
        use_only(&self.daemon)
    }

    /// Threads and processes that this thread starts from now on are programs.
    pub fn start_programs(&self) -> Result<()> {
        use_only(&self.programs)
    }

    /// As before.
    pub fn start_anything(&self) -> Result<()> {
        use_only(&self.all)
    }
}

fn this_thread() -> Pid {
    Pid::from_raw(0)
}

fn use_only(cores: &CpuSet) -> Result<()> {
    sched_setaffinity(this_thread(), cores).context("cannot choose the processor cores")
}
