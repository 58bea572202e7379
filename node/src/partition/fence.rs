//! Whether writers of replicated namespaces are refused: as the driver orders it, and while an
//! operator gives the partition to another host.

use std::sync::PoisonError;
use std::time::Duration;

use nearstate_model::Result;
use nearstate_store::{OwnerLease, Session};

use super::{Partition, refused};

/// The orders. Stored with the word of the region, under the lock of the session that changes the
/// role.
#[derive(Debug)]
pub(super) struct FenceOrders {
    /// The last order of the driver. It orders nothing before it has a lease.
    is_ordered: bool,
    /// Refused whatever the driver orders.
    is_held: bool,
    /// The driver's last order since the writers are held. It orders only what changes.
    ordered_in_hold: Option<bool>,
}

impl Default for FenceOrders {
    fn default() -> Self {
        Self { is_ordered: true, is_held: false, ordered_in_hold: None }
    }
}

impl FenceOrders {
    const fn is_fenced(&self) -> bool {
        self.is_ordered || self.is_held
    }

    const fn order(&mut self, is_fenced: bool) {
        self.is_ordered = is_fenced;
        if self.is_held {
            self.ordered_in_hold = Some(is_fenced);
        }
    }

    const fn hold(&mut self) {
        self.is_held = true;
    }

    /// Ends the hold. Returns true if the word of the region is to be stored.
    const fn release(&mut self, admits: bool) -> bool {
        self.is_held = false;
        // An order to refuse writers is carried out already.
        admits || matches!(self.ordered_in_hold.take(), Some(false))
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
        let is_fenced = self.change_fence(|fence| fence.order(is_fenced));
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
        let is_fenced = self.change_fence(FenceOrders::hold);
        session.set_fenced(is_fenced)?;
        session.drain_logged()?;
        session.log_tail_position()
    }

    /// Whether writers are held.
    pub fn holds_writers(&self) -> bool {
        self.fence.lock().unwrap_or_else(PoisonError::into_inner).is_held
    }

    /// Writers are held no longer. `admits`: this host has owned the partition all the time, so the
    /// last order holds. Otherwise they are refused until the next one, unless the driver has
    /// admitted them meanwhile: it does not order that again.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn release_writers(&self, admits: bool) -> Result<()> {
        let session = self.session();
        let mut is_due = false;
        let is_fenced = self.change_fence(|fence| is_due = fence.release(admits));
        if is_due { session.set_fenced(is_fenced) } else { Ok(()) }
    }
}

/// Ends the lease that an earlier process has left, and returns its end: the file may be an older
/// one, of which other hosts have more. Writers are refused first.
pub(super) fn end_lease(session: &Session) -> Result<Duration> {
    let until = session.lease_end()?;
    refuse_writers(session)?;
    if matches!(session.owner_lease()?, OwnerLease::Held { .. }) {
        session.set_owner_lease(Duration::ZERO)?;
    }
    Ok(until)
}

/// Refuses writers of an owner's region, also of one whose lease has ended: no process of this host
/// gives what they commit to members.
pub(super) fn refuse_writers(session: &Session) -> Result<()> {
    match session.owner_lease()? {
        OwnerLease::Held { .. } | OwnerLease::Expired if session.following()?.is_none() => {
            session.set_fenced(true)
        }
        OwnerLease::Held { .. } | OwnerLease::Expired | OwnerLease::Unclustered => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nearstate_store::{CreateOptions, OwnerLease, Region, lease_clock};

    use super::{FenceOrders, end_lease};

    #[test]
    fn an_owners_region_refuses_writers_from_the_start_on_also_if_its_lease_has_ended() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let create = CreateOptions { bytes_max: 64 << 20, ..CreateOptions::default() };
        for (name, lease) in [("held", Duration::from_hours(1)), ("ended", Duration::ZERO)] {
            let region = Region::create(&folder.path().join(name), &create).unwrap();
            let session = region.session().unwrap();
            end_lease(&session).unwrap();
            assert!(!session.is_fenced().unwrap(), "it belongs to no cluster");
            session.begin_partition(1).unwrap();
            session.set_owner_lease(lease_clock() + lease).unwrap();
            end_lease(&session).unwrap();
            assert!(session.is_fenced().unwrap(), "{name}");
            assert_eq!(session.owner_lease().unwrap(), OwnerLease::Expired);
        }
    }

    /// Orders of a driver whose host owns the partition, and whose writers are held.
    fn held() -> FenceOrders {
        let mut fence = FenceOrders::default();
        fence.order(false);
        fence.hold();
        assert!(fence.is_fenced());
        fence
    }

    #[test]
    fn an_owner_that_returns_in_a_later_view_while_its_writers_are_held_admits_them() {
        let mut fence = held();
        fence.order(true);
        fence.order(false);
        assert!(fence.is_fenced());
        assert!(fence.release(false), "the driver does not order it again");
        assert!(!fence.is_fenced());
        // The next hold begins without it.
        fence.hold();
        assert!(!fence.release(false));
    }

    #[test]
    fn writers_stay_refused_until_the_order_of_the_later_view() {
        let mut fence = held();
        assert!(!fence.release(false), "the order for the old view is none for the later one");
        let mut fence = held();
        fence.order(false);
        fence.order(true);
        assert!(!fence.release(false));
        assert!(fence.is_fenced());
    }

    #[test]
    fn the_owner_of_all_the_time_admits_writers_as_it_was_ordered_last() {
        let mut fence = held();
        assert!(fence.release(true));
        assert!(!fence.is_fenced());
        let mut fence = held();
        fence.order(true);
        assert!(fence.release(true));
        assert!(fence.is_fenced());
    }
}
