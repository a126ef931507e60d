//! Causes of failed completions, finer than the status: the value of `vendor_err`.

/// What a value means, in a few words; the constants say it at length.
pub const fn meaning(vendor_err: u32) -> &'static str {
    match vendor_err {
        NONE => "no finer cause than the status",
        FLUSHED => "flushed as the queue pair was in error",
        LOCAL_KEY => "no such local key, or not for this range or use",
        LOCAL_MEMORY => "registered local memory is gone",
        NO_READ_DEPTH => "max_rd_atomic is 0",
        RECEIVE_TOO_SHORT => "the receive is shorter than the message",
        INVALIDATE => "the key to invalidate is of no region or window that can be invalidated here",
        BIND_WINDOW => "the window, its region, the range or the rights do not fit, or the window is bound",
        BAD_RESPONSE => "a response did not fit its request",
        TIMEOUT => "no answer from the peer",
        SEQUENCE => "packets are lost again and again",
        LOCAL_PEER => "the peer, on this host, does not exist, is not ready or is connected elsewhere",
        RECEIVER_NOT_READY => "the peer has posted no receive",
        NAK_INVALID_REQUEST => "the peer calls the request invalid",
        NAK_REMOTE_ACCESS => "the peer refuses access to the memory",
        NAK_REMOTE_OPERATIONAL => "the peer could not carry the request out",
        NAK_UNKNOWN => "the peer refuses with an unknown code",
        _ => "unknown",
    }
}

/// No finer cause than the status.
pub const NONE: u32 = 0;
/// Flushed: the queue pair was in, or went to, the error state.
pub const FLUSHED: u32 = 1;
/// A local key names no region of this protection domain, the range leaves the region, or a right is missing.
pub const LOCAL_KEY: u32 = 0x10;
/// Registered local memory could not be reached: unmapped, or its process is gone.
pub const LOCAL_MEMORY: u32 = 0x11;
/// READs or atomics are not possible: `max_rd_atomic` is 0.
pub const NO_READ_DEPTH: u32 = 0x12;
/// The posted receive is shorter than the message.
pub const RECEIVE_TOO_SHORT: u32 = 0x13;
/// The key to invalidate, by a peer or by a request of this queue pair, is not one of this protection domain, of a region or window
/// that cannot be invalidated, of a window of another queue pair, or of a region that windows are bound to.
pub const INVALIDATE: u32 = 0x14;
/// A window cannot be bound: it, its region, the range or the rights do not fit, or it is of type 2 and bound.
pub const BIND_WINDOW: u32 = 0x15;
/// A response's length or opcode did not fit its request.
pub const BAD_RESPONSE: u32 = 0x20;
/// No answer: every retry timed out.
pub const TIMEOUT: u32 = 0x30;
/// Sequence NAKs without progress used up the retries.
pub const SEQUENCE: u32 = 0x31;
/// Same-host peer not reachable: it does not exist, is not ready to receive, or is not connected to this queue pair.
pub const LOCAL_PEER: u32 = 0x32;
/// The responder had no receive, every time.
pub const RECEIVER_NOT_READY: u32 = 0x33;
/// The responder sent NAK "invalid request".
pub const NAK_INVALID_REQUEST: u32 = 0x41;
/// The responder sent NAK "remote access error".
pub const NAK_REMOTE_ACCESS: u32 = 0x42;
/// The responder sent NAK "remote operational error".
pub const NAK_REMOTE_OPERATIONAL: u32 = 0x43;
/// The responder sent a NAK with a reserved code.
pub const NAK_UNKNOWN: u32 = 0x44;
