//! Bounds per client of the daemon. Reported as capabilities of the device, and enforced.

/// Protection domains.
pub const PDS: usize = 1024;
/// Regions.
pub const REGIONS: usize = 1 << 17;
/// Memory windows.
pub const WINDOWS: usize = 1 << 14;
/// Completion channels; each costs the daemon a descriptor.
pub const CHANNELS: usize = 256;
/// Completion queues.
pub const CQS: usize = 4096;
/// Shared receive queues.
pub const SRQS: usize = vdev_abi::layout::SRQ_SLOTS;
/// Domains of extended reliable connections; each may keep a file open.
pub const XRCDS: usize = 64;
/// Completions per queue. libfabric's reliable datagrams ask for 196 608, unless they are told of fewer peers.
pub const CQE: u32 = 1 << 18;
/// Bytes of rings: the client's processes are charged for the pages, but the daemon reads them in.
pub const RING_BYTES: u64 = 1 << 30;
/// Clients per device.
pub const CLIENTS: usize = 256;
/// Endpoints of connection management, with those that wait to be accepted.
pub const ENDPOINTS: usize = 8192;
