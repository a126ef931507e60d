//! The handler of SIGBUS and SIGSEGV that lets the routines of [`super::x86_64`] return an error instead of ending the process.
//!
//! It looks at the faulting instruction only: inside a recoverable routine it continues at the routine's exit, anywhere else it
//! behaves as if it were not there. Installed once, for the life of the process. A program that puts a handler of its own in its
//! place later has the fault itself, as it would without us.

use super::x86_64::{Recovery, recoveries};
use core::ffi::{c_int, c_void};
use core::mem;
use core::ptr::{null, null_mut};
use std::sync::{Once, OnceLock};

const SIGNALS: [c_int; 2] = [libc::SIGBUS, libc::SIGSEGV];

struct Installed {
    recoveries: [Recovery; 3],
    /// What was there before, in the order of [`SIGNALS`].
    previous: [libc::sigaction; 2],
}

static INSTALLED: OnceLock<Installed> = OnceLock::new();

/// What was there before is kept before ours goes in place, so a fault in between is handled rightly.
pub(super) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let installed = INSTALLED.get_or_init(|| Installed { recoveries: recoveries(), previous: SIGNALS.map(present) });
        for (signal, previous) in SIGNALS.into_iter().zip(&installed.previous) {
            let mut ours = *previous;
            ours.sa_sigaction = on_fault as *const () as usize;
            // The handler before is called in the way that it asked for, as far as that is decided before the call.
            ours.sa_flags &= libc::SA_NODEFER | libc::SA_RESTART;
            ours.sa_flags |= libc::SA_SIGINFO | libc::SA_ONSTACK;
            // SAFETY: a whole structure; `on_fault` only reads what is set by now, and calls what was the handler before.
            let set = unsafe { libc::sigaction(signal, &raw const ours, null_mut()) };
            assert_eq!(set, 0, "a handler for a signal that can be caught");
        }
    });
}

fn present(signal: c_int) -> libc::sigaction {
    // SAFETY: an all-zero value is valid, and sigaction fills it in.
    unsafe {
        let mut action = mem::zeroed();
        libc::sigaction(signal, null(), &raw mut action);
        action
    }
}

extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let Some(installed) = INSTALLED.get() else { return };
    // SAFETY: the kernel passes both structures to an SA_SIGINFO handler. A positive code is a fault, any other was sent.
    let (registers, is_fault) = unsafe { (&mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs, (*info).si_code > 0) };
    let at = registers[libc::REG_RIP as usize] as usize;
    if is_fault && let Some(recovery) = installed.recoveries.iter().find(|recovery| recovery.code.contains(&at)) {
        registers[libc::REG_RIP as usize] = recovery.exit as i64;
        return;
    }
    let previous = &installed.previous[usize::from(signal != libc::SIGBUS)];
    let has_handler = ![libc::SIG_DFL, libc::SIG_IGN].contains(&previous.sa_sigaction);
    if !has_handler || previous.sa_flags & libc::SA_RESETHAND != 0 {
        // Returning runs a faulting instruction again, now with the default action: the process dies of the right signal.
        // SAFETY: both calls are async-signal-safe; an all-zero action is the default one.
        unsafe {
            libc::sigaction(signal, &mem::zeroed(), null_mut());
            if !has_handler && !is_fault && previous.sa_sigaction == libc::SIG_DFL {
                libc::raise(signal);
            }
        }
    }
    if !has_handler {
        return;
    }
    // SAFETY: it was installed as a handler of this kind.
    unsafe {
        if previous.sa_flags & libc::SA_SIGINFO != 0 {
            let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = mem::transmute(previous.sa_sigaction);
            handler(signal, info, context);
        } else {
            let handler: extern "C" fn(c_int) = mem::transmute(previous.sa_sigaction);
            handler(signal);
        }
    }
}
