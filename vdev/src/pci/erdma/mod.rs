//! A PCI function with the interface of the mainline `erdma` driver, in RoCEv2 mode.
//!
//! [`layout`], [`command`], [`pages`], [`entry`] and [`completion`] are the interface's formats, without state. `function` has
//! the registers, [`command_queue`] the queue of commands, `execute` does what they ask: it pins memory and calls the
//! datapath, which holds the objects (`datapath/guests`).
//!
//! The driver's interface is that of another vendor's device; the subsystem ids are our own.

pub mod command;
pub mod command_queue;
pub mod completion;
pub mod entry;
mod execute;
mod function;
pub mod layout;
pub mod pages;

pub use function::{Function, FunctionInit};
