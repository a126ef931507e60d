//! What holds at the edges of a region, whatever front end it was registered through: the table of the tests of both, a guest's driver
//! here and verbs programs in `tests`.

/// A range, and whether it is within the region.
pub struct Range {
    /// For people.
    pub what: &'static str,
    /// First byte.
    pub addr: u64,
    /// Number of bytes.
    pub len: u32,
    /// Whether requests may name it.
    pub is_good: bool,
}

/// Ranges about a region of `length` bytes at `iova`, neither of them near the end of the address space.
pub fn ranges(iova: u64, length: u32) -> impl Iterator<Item = Range> {
    let end = iova + u64::from(length);
    let rows = [
        ("all of it", iova, length, true),
        ("the first byte", iova, 1, true),
        ("the last byte", end - 1, 1, true),
        ("one byte early", iova - 1, 2, false),
        ("the byte before", iova - 1, 1, false),
        ("one byte late", end - 1, 2, false),
        ("the byte behind", end, 1, false),
        ("all and one more", iova, length + 1, false),
        ("the start of memory", 0, 8, false),
        ("wraps", u64::MAX - 3, 8, false),
        ("up to the last address", u64::MAX - 7, 8, false),
    ];
    rows.into_iter().map(|(what, addr, len, is_good)| Range { what, addr, len, is_good })
}

/// Addresses and keys of which nothing is looked at, as the range has no bytes; `key` is the region's.
pub fn without_bytes(iova: u64, length: u32, key: u32) -> [(u64, u32); 6] {
    let end = iova + u64::from(length);
    [(iova, key), (end, key), (end + 1, key), (u64::MAX, key), (iova, 0x7700), (0, 0)]
}

/// Rights of a region.
#[derive(Clone, Copy, Debug)]
pub struct Rights {
    /// Of the owner, to have it written to.
    pub local_write: bool,
    /// Of peers.
    pub remote_write: bool,
    /// Of peers.
    pub remote_read: bool,
    /// Of peers.
    pub remote_atomic: bool,
}

impl Rights {
    /// Every combination.
    pub fn all() -> impl Iterator<Item = Rights> {
        (0..16u32).map(|bits| Rights {
            local_write: bits & 1 != 0,
            remote_write: bits & 2 != 0,
            remote_read: bits & 4 != 0,
            remote_atomic: bits & 8 != 0,
        })
    }

    /// Peers may change only what the owner may have changed.
    pub fn can_be(&self) -> bool {
        self.local_write || !(self.remote_write || self.remote_atomic)
    }
}
