//! The extended memory translation table: from a memory key and a range to final addresses and who owns them.
//!
//! Owns: regions and the windows bound to them, their protection domain, access rights and bounds. Filled by control commands; the data path only
//! looks up, without allocation. Never: pins memory, knows how addresses were made, or touches memory itself.
//!
//! Sources: IBA 10.6 (memory management), `ibv_reg_mr(3)`; Stellar's eMTT for owners in entries.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod access;
mod region;
mod runs;
mod segment;
mod table;
mod window;

pub use access::Access;
pub use region::Region;
pub use runs::Segments;
pub use segment::{GpuId, MemId, Owner, PdId, Segment, Via};
pub use table::{MAX_REGIONS, QUARANTINE, RegionInit, Table, TableError, TranslateError};
pub use window::{BindError, Binding, WindowKind};
