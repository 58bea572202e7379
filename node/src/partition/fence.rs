//! Whether writers of replicated namespaces are refused: as the driver orders it, and while an
//! operator gives the partition to another host.

use std::sync::PoisonError;

use nearstate_model::Result;

use super::{Partition, refused};

/// The orders. Stored with the word of the region, under the lock of the session that changes the
/// role.
#[derive(Debug)]
pub(super) struct FenceOrders {
    /// The last order of the driver. It orders nothing before it has a lease.
    is_ordered: bool,
    /// Refused whatever the driver orders.
    is_held: bool,
}

impl Default for FenceOrders {
    fn default() -> Self {
        Self { is_ordered: true, is_held: false }
    }
}

impl FenceOrders {
    const fn is_fenced(&self) -> bool {
        self.is_ordered || self.is_held
    }
}

impl Partition {
    fn change_fence(&self, change: impl FnOnce(&mut FenceOrders)) -> bool {
        let mut fence = self.fence.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut fence);
        fence.is_fenced()
    }

    /// Refuses writers of replicated namespaces (`Fenced`) from now on, or admits them again,
    /// unless they are held.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn set_fenced(&self, is_fenced: bool) -> Result<()> {
        let session = self.session();
        let is_fenced = self.change_fence(|fence| fence.is_ordered = is_fenced);
        session.set_fenced(is_fenced)
    }

    /// Refuses writers of replicated namespaces, whatever [`Partition::set_fenced`] says, until
    /// [`Partition::release_writers`]. Those in their commit end it. Returns the end of the own
    /// log: nothing that a client was answered is behind it.
    ///
    /// # Errors
    /// `BadArgument`: this host does not own the partition; `Stalled`: a stopped process is in a
    /// commit; `Damaged`, `Forked`. They are held all the same.
    pub fn hold_writers(&self) -> Result<u64> {
        let session = self.session();
        if session.following()?.is_some() {
            return refused("this host does not own the partition: ask its owner");
        }
        let is_fenced = self.change_fence(|fence| fence.is_held = true);
        session.set_fenced(is_fenced)?;
        session.drain_logged()?;
        session.log_tail_position()
    }

    /// Writers are held no longer. `admits`: this host has owned the partition all the time, so the
    /// last order holds. Otherwise they are refused until the next one.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn release_writers(&self, admits: bool) -> Result<()> {
        let session = self.session();
        let is_fenced = self.change_fence(|fence| fence.is_held = false);
        if admits { session.set_fenced(is_fenced) } else { Ok(()) }
    }
}
