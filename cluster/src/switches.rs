//! Rules that models and the simulator switch off, to show that each one is needed. Without the
//! feature `switches` all rules hold, and the checks for them are constants.

/// A rule of decision 026. Where two switches have one number, the rule has two parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Switch {
    /// 1: acknowledgements of another view or connection do not count.
    AcknowledgementOfView,
    /// 1: the owner counts full members only.
    CountFull,
    /// 2: n - 1 members must acknowledge.
    EnoughAcknowledgements,
    /// 3: a member does not report before its promise has ended.
    Promise,
    /// 3: a member that has started promises for one lease.
    PromiseAtStart,
    /// 4: the lease begins when the answered message was sent, not when the answer arrives.
    LeaseFromSend,
    /// 4: the owner's lease is shorter than a promise.
    LeaseMargin,
    /// 5: a member reports what it held after it was frozen.
    FreezeFirst,
    /// 5: the record of the view is stored, and a host waits for a state at least as new.
    StoredView,
    /// 5: a member stores the revision on which it acts, as an owner does.
    MemberRevision,
    /// 5: a welcome of a lower view than the highest one seen discards nothing.
    JoinOfView,
    /// 6: reporters that are shorter than the seal are not full.
    ShorterIsNotFull,
    /// 6: a seal needs F - n + 1 reports.
    ReportQuorum,
    /// 6: with n > 2 a seal is decided when all full members have reported, or were waited for.
    AwaitReports,
    /// 6: while fewer than n members are full, each copy that has what was sealed counts.
    SealedCopies,
    /// 6: of those that are not full, no other ones do.
    SealedOnly,
    /// 6: and none of them while n members are full, or the owner's copy suffices.
    Unsettled,
    /// 7: the copy is promoted before it is written.
    PromoteFirst,
    /// 8: a copy that is no prefix of the owner's is discarded.
    DiscardOutdated,
    /// 8: a copy that is longer than the seal is kept while fewer than n members are full and other
    /// hosts of the group can become so.
    KeepCopy,
    /// 9: an owner without a lease is fenced.
    Fence,
    /// 9: a region in another file than the one that was bound counts as lost.
    RegionFile,
    /// 10: commands of another revision have no effect.
    Revision,
    /// 10: the owner does not count a member that it has proposed to evict, also after a restart.
    EvictingIsStored,
    /// 10: before the owner evicts a member, others hold everything that was replicated.
    EvictHolders,
    /// 10: before the owner evicts a member, others have granted the lease that it holds.
    EvictLease,
    /// 10: an owner that has started waits for a state at least as new as the one it acted on.
    StoredRevision,
    /// 8: a host with a new region waits for a state that is no older than its process.
    RegisterFirst,
    /// 11: a member suspects an owner that sends, but does not hear.
    SuspectDeafOwner,
    /// 12: only the membership decides that one copy suffices.
    DegradeByMembership,
    /// 12: before a degraded owner proposes that a copy counts, it counts that copy, also after a
    /// restart.
    AdmitJointly,
    /// 12: the lease of a degraded owner begins when the membership has ordered its renewal.
    RenewByMembership,
    /// 12: no host reports to a degraded partition before a lease of its owner has ended.
    ReportAfterRenewal,
    /// 10: a member that counts leaves the group by an eviction.
    LeaveByEviction,
    /// 6: the host that an operator prefers gets the partition only if its copy counts and no other
    /// one of the quorum is longer.
    PreferredIsComplete,
}

/// The rules that are switched off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Switches {
    #[cfg(feature = "switches")]
    off: u64,
}

impl Switches {
    /// These are off.
    #[cfg(feature = "switches")]
    pub fn new(off: &[Switch]) -> Self {
        Self { off: off.iter().fold(0, |bits, switch| bits | 1 << *switch as u32) }
    }

    /// Is the rule off?
    #[cfg(feature = "switches")]
    pub fn is_off(self, switch: Switch) -> bool {
        self.off >> switch as u32 & 1 == 1
    }

    /// All rules hold.
    #[cfg(not(feature = "switches"))]
    #[expect(clippy::unused_self, reason = "with the feature `switches` it is used")]
    pub(crate) const fn is_off(self, _: Switch) -> bool {
        false
    }
}
