//! Identities: one type per thing, so that a site is never taken for a link.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $inner:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id!(
    /// A site (data centre): its index in [`crate::Wan::sites`].
    SiteId, u32
);
id!(
    /// A directed link: its index in [`crate::Wan::links`].
    LinkId, u32
);
id!(
    /// A coflow, unique among all coflows ever given to one scheduler or simulation.
    CoflowId, u64
);
id!(
    /// A job, unique in its workload.
    JobId, u64
);
id!(
    /// Numbers what agents are told: whatever has a greater one is later. 0 is before everything.
    #[derive(Default)]
    Epoch, u64
);

impl SiteId {
    /// For indexing tables that hold one entry per site.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl LinkId {
    /// For indexing tables that hold one entry per link.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}
