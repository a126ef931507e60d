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
//! Doorbells are trapped: each is a message, and wakes the daemon. Pages that the guest maps would cost it a store instead, but would
//! wake nobody: neither QEMU nor Cloud Hypervisor takes a descriptor to signal a write by (the protocol has a message for it, which
//! they do not send), a page that was mapped when the VMM connected stays mapped, and the driver has no flag by which the daemon could
//! say whether it sleeps. So the daemon would have to look at the doorbell records of all guests for ever, which takes a CPU, or 2 % of
//! one for a delay of half a millisecond. Pages of receive queues need no service, but which page a driver uses for receive queues and
//! which for arming completion queues, that must be heard, is not the same for all drivers. `cargo bench -p vdev --bench doorbell`
//! measures all of this: about 20 µs for a doorbell that is awaited, 5 µs for one that is not, as with QEMU.
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
