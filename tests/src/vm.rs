//! Virtual machines for tests: guests with a stock Debian kernel under QEMU, on a network of their own, and what passed there.
//!
//! A test says which guests it wants on which [`Switch`], runs commands in them ([`Guest::run`], [`Guest::start`]) and on the
//! host, and looks at a [`Capture`] of a guest's port. `tests/vm/image` makes what they boot from; `tests/vm/README.md` says
//! how to use all this by hand.

mod capture;
mod guest;
mod image;
mod packets;
mod pair;
mod switch;

pub use capture::{Capture, Captured};
pub use guest::{Guest, GuestOptions, Job};
pub use image::Image;
pub use packets::Packet;
pub use pair::{Pair, Running};
pub(crate) use pair::{is_by_cm, words};
pub use switch::{Port, Switch};
