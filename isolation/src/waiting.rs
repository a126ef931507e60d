//! A queue of tenants by a key that only grows. Entries may be out of date: whoever takes one compares it with the truth.

use crate::tenant::TenantId;
use alloc::collections::BinaryHeap;
use core::cmp::Reverse;

/// Tenants in the order of their keys, and of their numbers where keys are equal.
#[derive(Debug)]
pub(crate) struct Waiting<K: Ord>(BinaryHeap<Reverse<(K, TenantId)>>);

impl<K: Ord> Default for Waiting<K> {
    fn default() -> Self {
        Waiting(BinaryHeap::new())
    }
}

impl<K: Ord + Copy> Waiting<K> {
    pub fn push(&mut self, key: K, tenant: TenantId) {
        self.0.push(Reverse((key, tenant)));
    }

    pub fn first(&self) -> Option<(K, TenantId)> {
        self.0.peek().map(|&Reverse(entry)| entry)
    }

    pub fn pop(&mut self) {
        self.0.pop();
    }

    pub fn remove(&mut self, tenant: TenantId) {
        self.0.retain(|&Reverse((_, other))| other != tenant);
    }
}
