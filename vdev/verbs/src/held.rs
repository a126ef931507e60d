//! A value that a program's thread holds from one call to a later one: the completion between `ibv_start_poll` and `ibv_end_poll`,
//! the requests between `ibv_wr_start` and `ibv_wr_complete`.

use core::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};

/// The value, and whether a thread holds it. Unlike a `Mutex` there is no guard, which could not live across two C calls.
#[derive(Default)]
pub struct Held<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only by the thread that holds it.
unsafe impl<T: Send> Sync for Held<T> {}

impl<T> Held<T> {
    /// Takes it, after waiting for the thread that holds it.
    pub fn take(&self) {
        while self.taken.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
    }

    /// Gives it back.
    pub fn give_back(&self) {
        self.taken.store(false, Ordering::Release);
    }

    /// The value.
    ///
    /// # Safety
    /// The calling thread holds it, and has no other reference to it.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn get(&self) -> &mut T {
        // SAFETY: per contract.
        unsafe { &mut *self.value.get() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn one_thread_at_a_time_has_it() {
        let held = Arc::new(Held::<u64>::default());
        let count = |held: Arc<Held<u64>>| {
            for _ in 0..1000 {
                held.take();
                // SAFETY: just taken.
                unsafe { *held.get() += 1 };
                held.give_back();
            }
        };
        let threads: Vec<_> = (0..4)
            .map(|_| {
                std::thread::spawn({
                    let held = held.clone();
                    move || count(held)
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        held.take();
        // SAFETY: just taken.
        assert_eq!(unsafe { *held.get() }, 4000);
    }
}
