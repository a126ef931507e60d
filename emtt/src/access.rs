//! Access rights of a region or of a queue pair.

use bitflags::bitflags;

bitflags! {
    /// What a region or a queue pair allows. The values are those of verbs `enum ibv_access_flags`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Access: u32 {
        /// The owner's receives, READ responses and atomic results may be written here.
        const LOCAL_WRITE = 1;
        /// Peers may WRITE.
        const REMOTE_WRITE = 1 << 1;
        /// Peers may READ.
        const REMOTE_READ = 1 << 2;
        /// Peers may do atomics.
        const REMOTE_ATOMIC = 1 << 3;
        /// Windows may be bound to the region.
        const BIND_WINDOW = 1 << 4;
    }
}

impl Access {
    /// What peers may be allowed.
    pub const REMOTE: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

    /// Whether the combination may be registered: rights to change memory need [`Access::LOCAL_WRITE`]
    /// (`ibv_reg_mr(3)`).
    pub const fn is_consistent(self) -> bool {
        let remote_change = Access::REMOTE_WRITE.union(Access::REMOTE_ATOMIC);
        !self.intersects(remote_change) || self.contains(Access::LOCAL_WRITE)
    }
}
