//! What the region of a partition is at present.

use std::time::Duration;

use nearstate_model::Result;
use nearstate_store::{Following, LogIdentity, Takeover};

use super::Partition;

/// What the region of a partition is at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionState {
    /// True if the content is that of a copy of this cluster, of this boot of the machine, in the
    /// file that was bound.
    pub is_bound: bool,
    /// True if the region was bound as another file, of which this one is a copy.
    pub is_copied_file: bool,
    /// That the owner does not count a member any more: revision and number of the host.
    pub evicting: Option<(u64, u16)>,
    /// The end of the lease by the clock of leases; zero if there is none.
    pub lease_until: Duration,
    /// No member has granted a lease beyond this time, neither to this process nor to an earlier
    /// one.
    pub lease_bound: Duration,
    /// True while writers of replicated namespaces are refused.
    pub is_fenced: bool,
    /// The highest view that was seen.
    pub view_seen: u64,
    /// What the region follows; `None`: it is an owner's.
    pub following: Option<Following>,
    /// Its own log.
    pub own: LogIdentity,
    /// How it became the owner's, if it has followed before.
    pub takeover: Option<Takeover>,
    /// The end of its own log.
    pub tail: u64,
    /// What counts as replicated of its own log.
    pub replicated: u64,
    /// The promotions that the versions of the records allow yet.
    pub promotions_left: u64,
    /// How far the clock of expiry is ahead of the wall clock of this host, in milliseconds.
    pub clock_shift_ms: i64,
}

impl Partition {
    /// What the region is at present.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn state(&self) -> Result<PartitionState> {
        let session = self.words();
        let lease_until = session.lease_end()?;
        Ok(PartitionState {
            is_bound: session.is_bound(self.group.cluster_id)?,
            is_copied_file: session.is_copied_file(),
            evicting: session.evicting()?,
            lease_until,
            lease_bound: lease_until.max(self.earlier_lease),
            is_fenced: session.is_fenced()?,
            view_seen: session.view_seen()?,
            following: session.following()?,
            own: session.log_identity()?,
            takeover: session.takeover()?,
            tail: session.log_tail_position()?,
            replicated: session.replicated_position()?,
            promotions_left: session.promotions_left()?,
            clock_shift_ms: session.clock_shift_ms()?,
        })
    }

    /// True if the region was ever bound to this cluster, also in another boot of the machine.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn is_of_cluster(&self) -> Result<bool> {
        Ok(self.words().bound_cluster()? == Some(self.group.cluster_id))
    }
}
