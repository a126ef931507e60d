//! The handler of SIGBUS and SIGSEGV that lets the routines of [`super::x86_64`] return an error instead of ending the daemon.
//!
//! It looks at the faulting instruction only: inside a recoverable routine it continues at the routine's exit, anywhere else it
//! behaves as if it were not there. Installed once, for the life of the process.

use super::x86_64::{Recovery, recoveries};
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use std::sync::OnceLock;

struct Installed {
    recoveries: [Recovery; 3],
    previous: [SigAction; 2],
}

static INSTALLED: OnceLock<Installed> = OnceLock::new();

/// The previous handler is kept before ours goes in place, so a fault in between is still handled rightly.
pub(super) fn install() {
    INSTALLED.get_or_init(|| {
        let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
        let mut installed = Installed { recoveries: recoveries(), previous: [default; 2] };
        let ours = SigAction::new(SigHandler::SigAction(on_fault), SaFlags::SA_SIGINFO | SaFlags::SA_ONSTACK, SigSet::empty());
        for (signal, previous) in [Signal::SIGBUS, Signal::SIGSEGV].into_iter().zip(&mut installed.previous) {
            // SAFETY: `on_fault` only reads what is set before any routine runs, and calls what was the handler before.
            *previous = unsafe { sigaction(signal, &ours) }.expect("a handler for a signal that can be caught");
        }
        installed
    });
}

extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let installed = INSTALLED.get();
    // SAFETY: the kernel passes a `ucontext_t` to an SA_SIGINFO handler.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let at = registers[libc::REG_RIP as usize] as usize;
    let recovery = installed.and_then(|i| i.recoveries.iter().find(|recovery| recovery.code.contains(&at)));
    if let Some(recovery) = recovery {
        registers[libc::REG_RIP as usize] = recovery.exit as i64;
        return;
    }
    let previous = installed.map(|i| i.previous[usize::from(signal != libc::SIGBUS)].handler());
    match previous {
        Some(SigHandler::SigAction(handler)) => handler(signal, info, context),
        Some(SigHandler::Handler(handler)) => handler(signal),
        // Returning runs the instruction again, now with the default action: the process dies of the right signal.
        // SAFETY: restoring a default action is async-signal-safe.
        _ => unsafe {
            let mut default: libc::sigaction = core::mem::zeroed();
            default.sa_sigaction = libc::SIG_DFL;
            libc::sigaction(signal, &default, null_mut());
        },
    }
}
