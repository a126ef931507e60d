//! Memory windows: a part of a region under a remote key of its own, with rights of its own, given and taken back by work requests
//! (IBA 10.6.7).
//!
//! A window's key is the number of its slot and 4 bits of variant, which stay for its life, and 8 bits that whoever binds it chooses
//! (`ibv_inc_rkey`). A window that is not bound gives access to nothing, whatever its key.

use crate::table::{Entry, Slot, Table, TableError, TranslateError, next_key, slot_of};
use crate::{Access, PdId, Via};
use core::num::NonZeroU64;

/// Bits of a window's key that binding chooses.
const TAG_MASK: u32 = 0xFF;

/// What kind of window (`enum ibv_mw_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowKind {
    /// Type 1: reached through every queue pair of its protection domain, and bound anew at any time.
    One,
    /// Type 2B: reached through the queue pair that bound it, and to be invalidated before it is bound anew.
    Two,
}

/// What a window is to be bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// Any key of the window.
    pub window: u32,
    /// Its key from now on; only the last 8 bits may differ.
    pub key: u32,
    /// The region's key, as its protection domain calls it.
    pub region: u32,
    /// First byte, in the region's address space.
    pub addr: u64,
    /// Bytes; 0 leaves a window of type 1 unbound.
    pub len: u64,
    /// Rights of peers.
    pub access: Access,
    /// Whether peers count addresses from the window's first byte.
    pub zero_based: bool,
}

/// Why a window is not bound, or not invalidated. It stays as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// There is no such window in the queue pair's protection domain.
    #[error("the protection domain has no window with key {0:#010x}")]
    Window(u32),
    /// The new key is not one of the window.
    #[error("{0:#010x} cannot be a key of the window")]
    Key(u32),
    /// A window of type 2 is bound, is to be bound to nothing, or is not bound for this queue pair; one of type 1 is to be zero-based
    /// or invalidated.
    #[error("not possible for a window of this type in this state")]
    State,
    /// There is no such region in the queue pair's protection domain.
    #[error("the protection domain has no region with key {0:#010x}")]
    Region(u32),
    /// The region does not allow windows, or not these rights of them.
    #[error("the region does not allow such a window")]
    Access,
    /// The range is not within the region.
    #[error("the window is not within the region")]
    Bounds,
}

/// What a window is bound to. The region stays until it is no longer.
#[derive(Clone, Copy, Debug)]
struct Bound {
    /// The region's key in the table.
    region: u32,
    /// First byte, as offset in the region.
    offset: u64,
    /// First byte, as peers call it.
    addr: u64,
    /// Never nothing, so that a window that is not bound takes no more room.
    len: NonZeroU64,
    access: Access,
    /// Queue pair that it is bound for; of no meaning for type 1.
    qp: u32,
}

/// A window.
#[derive(Debug)]
pub(crate) struct Window {
    pd: PdId,
    kind: WindowKind,
    bound: Option<Bound>,
}

impl Window {
    /// The region and the offset in it of a range that a peer asks for.
    #[inline]
    pub fn reach(&self, key: u32, via: Via, addr: u64, len: u64, needs: Access) -> Result<(u32, u64), TranslateError> {
        if self.pd != via.pd {
            return Err(TranslateError::Pd(self.pd));
        }
        let bound = self.bound.as_ref().ok_or(TranslateError::Key(key))?;
        if self.kind == WindowKind::Two && bound.qp != via.qp {
            return Err(TranslateError::QueuePair);
        }
        if !bound.access.contains(needs) {
            return Err(TranslateError::Access(needs.difference(bound.access)));
        }
        let outside = TranslateError::Bounds { addr, len };
        let at = addr.checked_sub(bound.addr).ok_or(outside)?;
        if len > bound.len.get().checked_sub(at).ok_or(outside)? {
            return Err(outside);
        }
        Ok((bound.region, bound.offset + at))
    }
}

impl Table {
    /// Makes a window, bound to nothing, and returns its key.
    ///
    /// # Errors
    /// [`TableError::Full`].
    pub fn alloc_window(&mut self, pd: PdId, kind: WindowKind) -> Result<u32, TableError> {
        self.enter(Entry::Window(Window { pd, kind, bound: None }))
    }

    /// Ends a window, bound or not, by any of its keys, none of which names anything for [`crate::QUARANTINE`] x 16 registrations.
    ///
    /// # Errors
    /// [`TableError::NotFound`].
    pub fn dealloc_window(&mut self, window: u32) -> Result<(), TableError> {
        let key = self.window(window).ok_or(TableError::NotFound(window))?.key;
        self.unbind(key);
        // Beyond the tags, which the window's owner may all have given to peers.
        self.free(key, next_key(key, TAG_MASK + 1));
        Ok(())
    }

    /// Binds a window, for the queue pair that asks for it.
    ///
    /// # Errors
    /// See [`BindError`].
    pub fn bind_window(&mut self, via: Via, binding: &Binding) -> Result<(), BindError> {
        let Binding { window: named, key, region, addr, len, access, zero_based } = *binding;
        let Some((slot, window)) = self.window_of(via.pd, named) else { return Err(BindError::Window(named)) };
        if (slot.key ^ key) & !TAG_MASK != 0 {
            return Err(BindError::Key(key));
        }
        let fits = match window.kind {
            WindowKind::One => !zero_based,
            WindowKind::Two => window.bound.is_none() && len > 0,
        };
        if !fits {
            return Err(BindError::State);
        }
        let bound = match NonZeroU64::new(len) {
            None => None,
            Some(len) => Some(self.check(via, (region, addr, len), access, zero_based)?),
        };
        self.unbind(named);
        if let Some(bound) = &bound {
            self.upkeep[slot_of(bound.region)].windows += 1;
        }
        let slot = &mut self.slots[slot_of(named)];
        slot.key = key;
        if let Entry::Window(window) = &mut slot.entry {
            window.bound = bound;
        }
        Ok(())
    }

    /// Whether these bytes of a region may be bound, and how.
    fn check(&self, via: Via, range: (u32, u64, NonZeroU64), access: Access, zero_based: bool) -> Result<Bound, BindError> {
        let (key, addr, len) = range;
        let found = self.resolve(via.pd, key).and_then(|key| Some((key, self.get(key)?)));
        let (key, region) = found.ok_or(BindError::Region(key))?;
        let changes = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let allowed = region.access().contains(Access::BIND_WINDOW)
            && Access::REMOTE.contains(access)
            && (!changes || region.access().contains(Access::LOCAL_WRITE));
        if !allowed {
            return Err(BindError::Access);
        }
        let offset = addr.checked_sub(region.iova()).ok_or(BindError::Bounds)?;
        if len.get() > region.len().checked_sub(offset).ok_or(BindError::Bounds)? {
            return Err(BindError::Bounds);
        }
        Ok(Bound { region: key, offset, addr: if zero_based { 0 } else { addr }, len, access, qp: via.qp })
    }

    /// Takes back what a window of type 2 gives, by its present key and for the queue pair that it is bound for.
    ///
    /// # Errors
    /// [`BindError::Window`], [`BindError::State`].
    pub fn invalidate_window(&mut self, via: Via, key: u32) -> Result<(), BindError> {
        match self.window_of(via.pd, key).filter(|(slot, _)| slot.key == key) {
            None => Err(BindError::Window(key)),
            Some((_, Window { kind: WindowKind::Two, bound: Some(bound), .. })) if bound.qp == via.qp => {
                self.unbind(key);
                Ok(())
            }
            Some(_) => Err(BindError::State),
        }
    }

    /// Unbinds a window of type 2, named by any of its keys, if it is bound for this queue pair, which ends.
    pub fn forget_queue_pair(&mut self, window: u32, qp: u32) {
        if let Some(Slot { entry: Entry::Window(Window { kind: WindowKind::Two, bound: Some(bound), .. }), .. }) =
            self.window(window)
            && bound.qp == qp
        {
            self.unbind(window);
        }
    }

    fn unbind(&mut self, window: u32) {
        let Some(Slot { entry: Entry::Window(window), .. }) = self.slots.get_mut(slot_of(window)) else { return };
        if let Some(bound) = window.bound.take() {
            self.upkeep[slot_of(bound.region)].windows -= 1;
        }
    }

    /// The slot of a window, by any of its keys.
    fn window(&self, key: u32) -> Option<&Slot> {
        let slot = self.slots.get(slot_of(key))?;
        (matches!(slot.entry, Entry::Window(_)) && (slot.key ^ key) & !TAG_MASK == 0).then_some(slot)
    }

    fn window_of(&self, pd: PdId, key: u32) -> Option<(&Slot, &Window)> {
        let slot = self.window(key)?;
        match &slot.entry {
            Entry::Window(window) if window.pd == pd => Some((slot, window)),
            _ => None,
        }
    }
}
