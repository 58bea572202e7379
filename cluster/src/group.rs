//! The replicated state of one partition. Every host applies the same commands in the same order,
//! so every host draws the same conclusions.
//!
//! ```text
//! Suspect, quorum(Serving => Sealing)      Report, quorum(Sealing => Serving)
//! Exclude(Serving => Sealing)              AcceptLoss(Sealing => Serving)
//! HandOver(Serving => Sealing)             ForceNew(Sealing => Serving)
//! RaiseView(any => Sealing)                Return(Sealing => Serving)
//! ```
//!
//! With F full members, a seal needs the reports of F - n + 1 of the F - 1 others, at least one.
//! What was replicated is held by n - 1 of the F - 1 others: (n - 1) + (F - n + 1) > F - 1, so one
//! that holds it has reported. If F < n, nothing was replicated since the last seal, and every full
//! member holds everything up to that. So does any other copy that has what was sealed (`reports`).
//!
//! A *degraded* partition (rule 12) has one full member, the owner, whose copy suffices. So no
//! report counts, and no other host owns it but by an operator.

mod changes;
mod reports;
mod handed_over;
mod raised;

use crate::command::Command;
use crate::id::{HostId, Monotonic, PartitionId, Revision, ViewNumber};
use crate::level::ClusterLevel;
use crate::position::LogPosition;
use crate::switches::{Switch, Switches};
use nearstate_model::invariant;
use std::collections::{BTreeMap, BTreeSet};

/// Whether a partition has an owner.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum GroupPhase {
    /// The owner serves, or is about to.
    Serving {
        /// The full members that have not heard the owner for a lease.
        suspects: BTreeSet<HostId>,
    },
    /// The owner is excluded. The members freeze their copies and report.
    Sealing {
        /// What they hold. Reports of full members count, and those of copies that have what was
        /// sealed while fewer than n members are full. Others serve `AcceptLoss`.
        reports: BTreeMap<HostId, LogPosition>,
    },
}

/// What an operator gave up with `AcceptLoss`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AcceptedLoss {
    /// The view in which it was accepted.
    pub view: ViewNumber,
    /// The longest copy that is known to have existed.
    pub longest: Option<LogPosition>,
    /// Where the partition continues. `None`: it began anew.
    pub sealed: Option<LogPosition>,
}

/// One copy suffices, by a decision of the membership.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Degraded {
    /// The latest time of the owner's clock at which it proposed `Renew`: its lease begins then.
    pub renewed: Monotonic,
}

/// The replicated state of one partition.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct GroupState {
    pub(crate) partition: PartitionId,
    pub(crate) group: Vec<HostId>,
    pub(crate) acknowledgements: u8,
    pub(crate) view: ViewNumber,
    pub(crate) revision: Revision,
    pub(crate) owner: HostId,
    pub(crate) full: BTreeSet<HostId>,
    pub(crate) phase: GroupPhase,
    pub(crate) origin: ViewNumber,
    pub(crate) seal: Option<LogPosition>,
    pub(crate) loss: Option<AcceptedLoss>,
    pub(crate) registered: BTreeMap<HostId, u64>,
    pub(crate) degraded: Option<Degraded>,
    pub(crate) leaving: BTreeSet<HostId>,
    pub(crate) preferred: Option<HostId>,
    pub(crate) switches: Switches,
}

/// What the application of a command did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Applied {
    /// A process of the host is known.
    Registered(HostId),
    /// A member suspects the owner, too few to exclude it.
    Suspected(HostId),
    /// A member has withdrawn its suspicion.
    Trusted(HostId),
    /// The owner is excluded: a new view has begun.
    Excluded(HostId),
    /// A report was recorded. More are needed.
    Reported(HostId),
    /// There is a new owner, and the log of the old one ends at this position.
    Sealed(HostId, LogPosition),
    /// The excluded owner is the owner again.
    Returned(HostId),
    /// The member counts.
    Full(HostId),
    /// The member does not count any more.
    Evicted(HostId),
    /// The copy of the owner suffices.
    Degraded(HostId),
    /// The lease of an owner whose copy suffices begins anew.
    Renewed(HostId),
    /// There is a new owner by the decision of an operator.
    LossAccepted(HostId, LogPosition),
    /// The partition begins anew at this host by the decision of an operator.
    ForcedNew(HostId),
    /// The partition continues behind this view, when an operator has named its owner.
    ViewRaised(ViewNumber),
    /// The host belongs to the group.
    MemberAdded(HostId),
    /// The host is removed as soon as the others suffice.
    MemberLeaving(HostId),
    /// The host does not belong to the group any more.
    MemberRemoved(HostId),
    /// The cluster has this level.
    Finalized(ClusterLevel),
    /// Nothing changed.
    Refused(CommandRefusal),
}

/// Why a command had no effect. Most are late or repeated proposals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CommandRefusal {
    /// There is no such partition.
    UnknownPartition,
    /// The cluster has a lower level than the command needs.
    LevelTooLow,
    /// The cluster has that level, or a higher one.
    LevelReached,
    /// The host does not belong to the group.
    NotInGroup,
    /// The command names another view.
    OtherView,
    /// The command names another revision.
    OtherRevision,
    /// The partition is sealing.
    Sealing,
    /// The partition is not sealing.
    NotSealing,
    /// The host is the owner, or the excluded owner.
    Owner,
    /// The host is not the excluded owner.
    NotOwner,
    /// The host is not full.
    NotFull,
    /// The host is full already.
    AlreadyFull,
    /// Fewer full members than acknowledgements would remain.
    TooFewFull,
    /// Enough copies are complete without this, or two are not what is configured.
    EnoughCopies,
    /// The copy of the owner does not suffice.
    NotDegraded,
    /// The host has not reported.
    NotReported,
    /// A host has reported a complete copy, which is not given up.
    HasReport,
    /// The host has reported already.
    AlreadyReported,
    /// The host belongs to the group already.
    AlreadyMember,
    /// The host is to leave the group already.
    AlreadyLeaving,
    /// Only an operator names an owner, behind a raised view.
    OperatorNeeded,
    /// The group has as many hosts as are possible.
    GroupFull,
}

use CommandRefusal as No;

impl GroupState {
    /// A new partition: the first host of the group owns it, and only its copy counts.
    pub(crate) fn new(partition: PartitionId, group: &[HostId], acknowledgements: u8) -> Self {
        let Some(&owner) = group.first() else { invariant!("a validated group is not empty") };
        Self {
            partition,
            group: group.to_vec(),
            acknowledgements,
            view: ViewNumber::FIRST,
            revision: Revision::FIRST,
            owner,
            full: BTreeSet::from([owner]),
            phase: GroupPhase::Serving { suspects: BTreeSet::new() },
            origin: ViewNumber::FIRST,
            seal: None,
            loss: None,
            registered: BTreeMap::new(),
            degraded: None,
            leaving: BTreeSet::new(),
            preferred: None,
            switches: Switches::default(),
        }
    }

    /// Which partition.
    pub fn partition(&self) -> PartitionId {
        self.partition
    }

    /// The hosts with copies, in the order of preference.
    pub fn group(&self) -> &[HostId] {
        &self.group
    }

    /// Hosts that must hold a position before it is replicated, the owner included (n, at least 2).
    pub fn acknowledgements(&self) -> usize {
        usize::from(self.acknowledgements)
    }

    /// The current view.
    pub fn view(&self) -> ViewNumber {
        self.view
    }

    /// The current revision, for `Full`, `Evict`, `AddMember` and `RemoveMember`.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The owner, if the partition has one.
    pub fn owner(&self) -> Option<HostId> {
        match self.phase {
            GroupPhase::Serving { .. } => Some(self.owner),
            GroupPhase::Sealing { .. } => None,
        }
    }

    /// The owner that is excluded, while no other one is found.
    pub fn excluded(&self) -> Option<HostId> {
        match self.phase {
            GroupPhase::Serving { .. } => None,
            GroupPhase::Sealing { .. } => Some(self.owner),
        }
    }

    /// The members whose copies count, the owner included.
    pub fn full(&self) -> &BTreeSet<HostId> {
        &self.full
    }

    /// Serving or sealing.
    pub fn phase(&self) -> &GroupPhase {
        &self.phase
    }

    /// The view in which the present owner's log became the partition's log. A copy of this origin
    /// follows the present log.
    pub fn origin(&self) -> ViewNumber {
        self.origin
    }

    /// Where the log before the present one ends. `None` in the first one.
    pub fn seal(&self) -> Option<LogPosition> {
        self.seal
    }

    /// The last process of each host that has begun with a new region.
    pub fn registered(&self) -> &BTreeMap<HostId, u64> {
        &self.registered
    }

    /// The last loss that an operator accepted.
    pub fn loss(&self) -> Option<AcceptedLoss> {
        self.loss
    }

    /// Set while the copy of the owner suffices, although two are configured.
    pub fn degraded(&self) -> Option<Degraded> {
        self.degraded
    }

    /// Is there no owner before an operator names one? So it is behind a raised view, in which no
    /// copy counts: [`full`](Self::full) is the owner of a new partition, or one of an older state.
    pub fn is_operator_needed(&self) -> bool {
        matches!(self.phase, GroupPhase::Sealing { .. }) && self.origin == self.view
    }

    /// How many full members other than the owner must suspect it, and must report.
    pub fn reports_needed(&self) -> usize {
        if self.switches.is_off(Switch::ReportQuorum) {
            return 1;
        }
        (self.full.len() + 1).saturating_sub(self.acknowledgements()).max(1)
    }

    /// Could the members find another owner, if all of them that are full live?
    pub fn can_replace_owner(&self) -> bool {
        let others = self.full.iter().filter(|host| **host != self.owner).count();
        others >= self.reports_needed()
    }

    /// Applies one command of this partition, in a cluster of this level.
    pub(crate) fn apply(&mut self, command: &Command, level: ClusterLevel) -> Applied {
        self.try_apply(command, level).unwrap_or_else(Applied::Refused)
    }

    fn try_apply(&mut self, command: &Command, level: ClusterLevel) -> Result<Applied, No> {
        match *command {
            Command::Register { host, process, .. } => self.register(host, process),
            Command::Suspect { view, host, .. } => self.suspect(view, host),
            Command::Trust { view, host, .. } => self.trust(view, host),
            Command::Exclude { view, .. } => self.exclude(view),
            Command::HandOver { view, host, .. } => self.hand_over(view, host),
            Command::Report { view, host, held, .. } => self.report(view, host, held, level),
            Command::Return { view, host, .. } => self.return_owner(view, host),
            Command::Full { revision, host, .. } => self.add_full(revision, host),
            Command::Evict { revision, host, .. } => self.evict(revision, host),
            Command::Degrade { revision, host, .. } => self.degrade(revision, host),
            Command::Renew { revision, host, stamp, .. } => self.renew(revision, host, stamp),
            Command::AcceptLoss { view, host, .. } => self.accept_loss(view, host),
            Command::ForceNew { view, host, .. } => self.force_new(view, host, level),
            Command::RaiseView { view, revision, .. } => self.raise_view(view, revision),
            Command::AddMember { revision, host, .. } => self.add_member(revision, host),
            Command::RemoveMember { revision, host, .. } => self.remove_member(revision, host),
            Command::Finalize { .. } => Err(No::UnknownPartition),
        }
    }

    fn register(&mut self, host: HostId, process: u64) -> Result<Applied, No> {
        if !self.group.contains(&host) {
            return Err(No::NotInGroup);
        }
        self.registered.insert(host, process);
        Ok(Applied::Registered(host))
    }

    fn suspect(&mut self, view: ViewNumber, host: HostId) -> Result<Applied, No> {
        self.require_view(view)?;
        self.require_full_other(host)?;
        let needed = self.reports_needed();
        let full = &self.full;
        let GroupPhase::Serving { suspects } = &mut self.phase else { return Err(No::Sealing) };
        suspects.insert(host);
        if suspects.iter().filter(|suspect| full.contains(suspect)).count() < needed {
            return Ok(Applied::Suspected(host));
        }
        Ok(self.begin_sealing())
    }

    fn trust(&mut self, view: ViewNumber, host: HostId) -> Result<Applied, No> {
        self.require_view(view)?;
        let GroupPhase::Serving { suspects } = &mut self.phase else { return Err(No::Sealing) };
        suspects.remove(&host);
        Ok(Applied::Trusted(host))
    }

    fn exclude(&mut self, view: ViewNumber) -> Result<Applied, No> {
        self.require_view(view)?;
        self.require_serving()?;
        Ok(self.begin_sealing())
    }

    fn begin_sealing(&mut self) -> Applied {
        self.view = self.view.next();
        self.revision = self.revision.next();
        self.preferred = None;
        self.phase = GroupPhase::Sealing { reports: BTreeMap::new() };
        Applied::Excluded(self.owner)
    }

    fn begin_serving(&mut self, owner: HostId, sealed: Option<LogPosition>) {
        invariant!(self.full.contains(&owner), "the owner's copy counts");
        self.owner = owner;
        self.revision = self.revision.next();
        self.origin = self.view;
        self.seal = sealed;
        self.degraded = None;
        self.preferred = None;
        self.phase = GroupPhase::Serving { suspects: BTreeSet::new() };
        self.drop_left();
    }

    /// The log goes on, and the same members hold the same parts of it, so `full` and `origin`
    /// stay.
    fn return_owner(&mut self, view: ViewNumber, host: HostId) -> Result<Applied, No> {
        self.require_view(view)?;
        let GroupPhase::Sealing { .. } = self.phase else { return Err(No::NotSealing) };
        if host != self.owner {
            return Err(No::NotOwner);
        }
        if self.is_operator_needed() {
            return Err(No::OperatorNeeded);
        }
        self.revision = self.revision.next();
        self.preferred = None;
        self.phase = GroupPhase::Serving { suspects: BTreeSet::new() };
        Ok(Applied::Returned(host))
    }

    fn add_full(&mut self, revision: Revision, host: HostId) -> Result<Applied, No> {
        self.require_revision(revision)?;
        self.require_serving()?;
        if !self.group.contains(&host) {
            return Err(No::NotInGroup);
        }
        if !self.full.insert(host) {
            return Err(No::AlreadyFull);
        }
        self.degraded = None;
        self.revision = self.revision.next();
        Ok(Applied::Full(host))
    }

    /// Only of two copies one suffices: then no other member has anything to report. A repetition
    /// makes a late `Full` harmless.
    fn degrade(&mut self, revision: Revision, host: HostId) -> Result<Applied, No> {
        self.require_revision(revision)?;
        self.require_serving()?;
        if host != self.owner {
            return Err(No::NotOwner);
        }
        if self.acknowledgements != 2 || self.full.len() > 2 {
            return Err(No::EnoughCopies);
        }
        self.full = BTreeSet::from([host]);
        self.degraded = Some(Degraded { renewed: Monotonic::BOOT });
        self.phase = GroupPhase::Serving { suspects: BTreeSet::new() };
        self.drop_left();
        self.revision = self.revision.next();
        Ok(Applied::Degraded(host))
    }

    fn renew(&mut self, revision: Revision, host: HostId, stamp: Monotonic) -> Result<Applied, No> {
        self.require_revision(revision)?;
        self.require_serving()?;
        if host != self.owner {
            return Err(No::NotOwner);
        }
        let Some(degraded) = &mut self.degraded else { return Err(No::NotDegraded) };
        degraded.renewed = degraded.renewed.max(stamp);
        Ok(Applied::Renewed(host))
    }

    fn evict(&mut self, revision: Revision, host: HostId) -> Result<Applied, No> {
        self.require_revision(revision)?;
        self.require_serving()?;
        self.require_full_other(host)?;
        if self.full.len() <= self.acknowledgements() {
            return Err(No::TooFewFull);
        }
        self.full.remove(&host);
        self.revision = self.revision.next();
        if let GroupPhase::Serving { suspects } = &mut self.phase {
            suspects.remove(&host);
        }
        let leaves = self.leaving.contains(&host);
        self.drop_left();
        Ok(if leaves { Applied::MemberRemoved(host) } else { Applied::Evicted(host) })
    }

    fn accept_loss(&mut self, view: ViewNumber, host: HostId) -> Result<Applied, No> {
        self.require_view(view)?;
        let GroupPhase::Sealing { reports } = &self.phase else { return Err(No::NotSealing) };
        let Some(&sealed) = reports.get(&host) else { return Err(No::NotReported) };
        self.loss = Some(AcceptedLoss { view, longest: self.longest(), sealed: Some(sealed) });
        self.full = BTreeSet::from([host]);
        self.begin_serving(host, Some(sealed));
        Ok(Applied::LossAccepted(host, sealed))
    }

    /// The partition begins anew with whatever the host's region has.
    fn force_new(
        &mut self,
        view: ViewNumber,
        host: HostId,
        level: ClusterLevel,
    ) -> Result<Applied, No> {
        // The operator's task looks as well. A report may be ordered behind its look.
        if level >= ClusterLevel::KEPT_REPORTS && self.has_report() {
            return Err(No::HasReport);
        }
        self.require_view(view)?;
        let GroupPhase::Sealing { .. } = self.phase else { return Err(No::NotSealing) };
        if !self.group.contains(&host) {
            return Err(No::NotInGroup);
        }
        self.loss = Some(AcceptedLoss { view, longest: self.longest(), sealed: None });
        self.full = BTreeSet::from([host]);
        self.begin_serving(host, None);
        Ok(Applied::ForcedNew(host))
    }

    /// Has a host reported a complete copy, while there is no owner?
    pub(crate) fn has_report(&self) -> bool {
        matches!(&self.phase, GroupPhase::Sealing { reports } if !reports.is_empty())
    }

    /// The longest copy that is known from reports and the last seal.
    fn longest(&self) -> Option<LogPosition> {
        let GroupPhase::Sealing { reports } = &self.phase else { return self.seal };
        reports.values().chain(&self.seal).copied().max_by(LogPosition::compare)
    }

    fn require_view(&self, view: ViewNumber) -> Result<(), No> {
        if view == self.view { Ok(()) } else { Err(No::OtherView) }
    }

    fn require_revision(&self, revision: Revision) -> Result<(), No> {
        if revision == self.revision || self.switches.is_off(Switch::Revision) {
            Ok(())
        } else {
            Err(No::OtherRevision)
        }
    }

    fn require_serving(&self) -> Result<(), No> {
        match self.phase {
            GroupPhase::Serving { .. } => Ok(()),
            GroupPhase::Sealing { .. } => Err(No::Sealing),
        }
    }

    fn require_full_other(&self, host: HostId) -> Result<(), No> {
        if host == self.owner {
            return Err(No::Owner);
        }
        if self.full.contains(&host) { Ok(()) } else { Err(No::NotFull) }
    }
}
