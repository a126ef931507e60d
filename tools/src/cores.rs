//! Independent work on all processor cores.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;

/// Does independent work, one piece per processor core at a time; results in the order of the pieces.
pub fn on_all_cores<T: Sync, R: Send>(pieces: &[T], work: impl Fn(&T) -> Result<R> + Sync) -> Result<Vec<R>> {
    let next = AtomicUsize::new(0);
    let done: Mutex<BTreeMap<usize, R>> = Mutex::new(BTreeMap::new());
    let work_on = || -> Result<()> {
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            let Some(piece) = pieces.get(n) else { return Ok(()) };
            let result = work(piece)?;
            done.lock().expect("no thread panics while it holds the lock").insert(n, result);
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(pieces.len());
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work_on)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a simulation does not panic"))
    })?;
    Ok(done.into_inner().expect("as above").into_values().collect())
}
