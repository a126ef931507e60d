//! Connection management: every `rdma_*` function that takes an id, an event or a channel.
//!
//! A process that was given devices of ours (see [`crate::device`]) has all its ids here, over the daemons of those devices; in any
//! other process all calls go on to the real library, if there is one behind this. Address and route resolution need nobody else, so that their events are there
//! at once; all other events come from the daemon, which speaks to the peer's.
//!
//! Where to look: `id` makes and ends ids, `channel` holds their events, `event` gives them to the program, `resolve` knows
//! addresses, `connect` asks and answers, `qp` moves queue pairs, `multicast` knows groups, `endpoint` and `info` are the short way for simple programs. `abi` is
//! the C interface. In the place of `librdmacm.so.1`, `versions` has its names and `sockets` the rsockets.

/// Defines exported functions: the block serves a process whose ids are ours; in others the call goes on to the real function of the
/// same name, and where there is none, the answer is the expression after `else`. A call that succeeds leaves `errno` as it is:
/// programs clean up first and then tell what had failed.
macro_rules! calls {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),*) -> $result:ty, => $body:block else $missing:expr;)*) => {
        $(
            $(#[$doc])*
            #[cfg_attr(not(versioned), unsafe(no_mangle))]
            pub unsafe extern "C" fn $name($($arg: $type),*) -> $result {
                // SAFETY: the C interface demands that the caller pass live objects and valid pointers; the real function has
                // the same signature.
                unsafe {
                    if crate::cm::ours() {
                        let before = crate::foreign::errno();
                        let answer: $result = $body;
                        if !crate::cm::Answer::is_failure(&answer) {
                            crate::foreign::set_errno(before);
                        }
                        return answer;
                    }
                    static REAL: crate::foreign::Real = crate::foreign::Real::new(
                        match core::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                            Ok(name) => name,
                            Err(_) => panic!("a name without a zero byte"),
                        });
                    match REAL.get() {
                        Some(real) => {
                            let real: unsafe extern "C" fn($($type),*) -> $result = core::mem::transmute(real);
                            real($($arg),*)
                        }
                        None => $missing,
                    }
                }
            }
        )*
    };
}

mod abi;
mod address;
mod channel;
mod connect;
mod devices;
mod endpoint;
mod event;
mod id;
mod info;
mod multicast;
mod qp;
mod resolve;
#[cfg(versioned)]
mod sockets;
#[cfg(versioned)]
mod versions;

use crate::connection::Errno;
use core::ffi::c_int;
use std::sync::OnceLock;

/// What a function of librdmacm returns.
trait Answer {
    /// Whether it tells that the call has failed, and `errno` why.
    fn is_failure(&self) -> bool;
}

impl Answer for () {
    fn is_failure(&self) -> bool {
        false
    }
}

impl Answer for c_int {
    fn is_failure(&self) -> bool {
        *self != 0
    }
}

/// A port.
impl Answer for u16 {
    fn is_failure(&self) -> bool {
        *self == 0
    }
}

impl<T> Answer for *mut T {
    fn is_failure(&self) -> bool {
        self.is_null()
    }
}

/// Whether the ids of this process are ours. Decided once, as ids of two libraries cannot be told apart. In the place of the real
/// library they always are.
fn ours() -> bool {
    static OURS: OnceLock<bool> = OnceLock::new();
    *OURS.get_or_init(|| cfg!(versioned) || crate::device::configured())
}

/// What a function of librdmacm returns: 0, or -1 with `errno`.
fn result(result: Result<(), Errno>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => crate::foreign::minus_one(error.0),
    }
}
