//! Tenants by their numbers.

use crate::tenant::TenantId;
use alloc::vec::Vec;

#[derive(Debug)]
pub(crate) struct Table<T>(Vec<Option<T>>);

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table(Vec::new())
    }
}

impl<T> Table<T> {
    /// Numbers of tenants that have ended are used again.
    pub fn insert(&mut self, tenant: T) -> TenantId {
        let free = self.0.iter().position(Option::is_none).unwrap_or(self.0.len());
        match self.0.get_mut(free) {
            Some(slot) => *slot = Some(tenant),
            None => self.0.push(Some(tenant)),
        }
        TenantId(free as u32)
    }

    pub fn remove(&mut self, id: TenantId) -> Option<T> {
        self.0.get_mut(id.0 as usize)?.take()
    }

    #[inline]
    pub fn get(&self, id: TenantId) -> Option<&T> {
        self.0.get(id.0 as usize)?.as_ref()
    }

    #[inline]
    pub fn get_mut(&mut self, id: TenantId) -> Option<&mut T> {
        self.0.get_mut(id.0 as usize)?.as_mut()
    }

    /// All numbers that were ever given are below this.
    pub fn end(&self) -> u32 {
        self.0.len() as u32
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().flatten()
    }
}
