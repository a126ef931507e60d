//! Virtual machines: an RDMA device as a PCI function that a VMM attaches over vfio-user.
//!
//! Two threads per device, besides the datapath: one serves the VMM's messages and executes the guest driver's commands, one
//! writes interrupts; and a third while a large registration is pinned. What a hostile VMM or guest can hold up are these two, hence its own device. What moves data is the
//! datapath's, as for every device.
//!
//! - [`message`]: the bytes of vfio-user messages; `transport`: messages and descriptors over the socket; `server`: one VMM
//!   after another, and what each message does.
//! - `config_space`, `interrupts`, `memory`, `pinning`: what any PCI function has.
//! - [`erdma`]: the function that the guest's driver knows.
//!
//! Source: the vfio-user protocol 0.1 as QEMU and Cloud Hypervisor speak it.

mod bytes;
mod config_space;
pub mod erdma;
mod interrupts;
mod memory;
pub mod message;
mod pinning;
mod server;
mod transport;

pub use interrupts::Interrupts;
pub use memory::Run;
pub use server::{Server, ServerInit, VmView};
