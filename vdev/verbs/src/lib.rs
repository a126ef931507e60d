//! `libvrdma_verbs.so`: the verbs library that programs are given by preloading.
//!
//! It defines every public libibverbs function that takes a verbs object. Objects of our devices are served here, over the
//! daemon's socket and the rings that it shares; objects of other devices go on to the real library (`foreign`), if there is one, and
//! there through `shape`, if that is asked for.
//! It links against no RDMA library and takes nothing from one.
//!
//! The same sources also make the drop-in for `libibverbs.so.1` and `librdmacm.so.1` (`dropin/`): built with `cfg(versioned)`,
//! functions are exported with the symbol versions of those libraries (`versions`) instead of under their plain names, and there is
//! no real library behind. It is one file under both names, as ids are made of verbs objects.
//!
//! Where to look: `device` lists and opens devices, `context` holds what one opened device owns, `connection` talks to the
//! daemon, `domain`, `memory`, `window`, `channel`, `cq`, `qp`, `srq`, `xrc` and `ah` make and end objects, `post` and `poll` are the data path, `cq_ex`
//! and `qp_ex` the same by function calls, `query`, `clock` and `events` answer questions, `names` knows strings and rates,
//! `unsupported` refuses the rest, `symbols` serves programs that load libibverbs at run time. `cm` is connection management: the
//! functions of librdmacm. `abi` is the C interface.
//!
//! Rules that hold everywhere: no verb waits for a daemon that is gone (its socket closes, every call fails, and one
//! `IBV_EVENT_DEVICE_FATAL` says so); a child after `fork` cannot use its parent's objects and gets an error; an object pointer
//! that a program passes is one that we made and that it has not destroyed, as the C interface demands.

mod abi;
mod ah;
mod attr;
mod channel;
mod clock;
mod cm;
mod connection;
mod context;
mod cq;
mod cq_ex;
mod device;
mod domain;
mod events;
mod foreign;
mod held;
mod memory;
mod names;
mod poll;
mod post;
mod qp;
mod qp_ex;
mod query;
#[cfg(not(versioned))]
mod shape;
mod shared_ranges;
mod srq;
mod staging;
#[cfg(not(versioned))]
mod symbols;
mod unsupported;
#[cfg(versioned)]
mod versions;
mod window;
mod xrc;
