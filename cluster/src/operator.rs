//! What an operator wants of a partition, step by step: no step is asked for before the applied
//! state shows the one before it, and the state says whether it was done.
//!
//! An owner that lives gives its partition away with everything that it has acknowledged: it
//! refuses writers, waits until its log is replicated to the end, and is excluded then. If that
//! takes too long, nothing has changed.
//!
//! Members that are too few cannot exclude a lost owner, and none counts beside an owner whose copy
//! alone suffices. So an operator's task excludes it, but only if the host that carries the task
//! out neither hears it nor sees, for a lease, that it renews its own one.

use crate::command::Command;
use crate::config::Lease;
use crate::group::{GroupPhase, GroupState};
use crate::id::{HostId, Monotonic, ViewNumber};
use crate::limits::{DRAIN_LEASES, FORCE_LEASES, PREFERENCE_LEASES, YIELD_LEASES};
use crate::position::LogPosition;
use crate::switches::Switch;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;

/// What an operator wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OperatorGoal {
    /// Another member owns the partition.
    Drain,
    /// The same, and this one if it can: it serves clients. If not, the members choose.
    DrainPreferring(HostId),
    /// This member owns it, whose copy counts.
    DrainTo(HostId),
    /// This host owns it with what its copy has, whatever the others held.
    AcceptLoss(HostId),
    /// This host owns it, and it begins anew with what the host's region has.
    ForceNew(HostId),
}

impl OperatorGoal {
    /// Is the owner, which lives, drained?
    pub fn is_drain(self) -> bool {
        match self {
            Self::Drain | Self::DrainPreferring(_) | Self::DrainTo(_) => true,
            Self::AcceptLoss(_) | Self::ForceNew(_) => false,
        }
    }
}

/// What is to be done next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OperatorStep {
    /// Nothing yet.
    Wait(OperatorWait),
    /// The owner refuses writers from now on, and those in their commit end it. Then
    /// [`OperatorTask::frozen`] is told the end of the log, and [`OperatorTask::replicated`] how
    /// far it is replicated. If the task ends and this host is the owner still, they are admitted
    /// again.
    Freeze,
    /// Propose this. It may be repeated.
    Propose(Command),
    /// This host owns the partition.
    Done {
        /// The owner.
        owner: HostId,
        /// True if an operator's decision made it the owner, and not the reports of the members.
        is_by_decision: bool,
    },
    /// It is not possible.
    Refused(OperatorRefusal),
}

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OperatorWait {
    /// A lease in which a living owner would show itself, or in which its lease ends.
    Lease,
    /// The reports of the members.
    Reports,
    /// The report of this host.
    Report(HostId),
    /// That the owner hears this host, which was silent for a lease.
    Silent(HostId),
    /// That so many positions of the owner's log are replicated.
    Replication(u64),
    /// That the host, to which the owner is drained, has so many further positions of its log.
    Target(HostId, u64),
}

/// Why something is not possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OperatorRefusal {
    /// The host has no copy.
    NotInGroup(HostId),
    /// This host has reported that its copy ends at this position, and the named one's ends before.
    LongerCopy(HostId, u64),
    /// The host owns the partition already.
    AlreadyOwner(HostId),
    /// The owner is alive.
    OwnerLives(HostId),
    /// The host has reported a complete copy, which is not given up: accept the loss of what it
    /// lacks.
    HasCopy(HostId),
    /// There is no owner that could be drained.
    NoOwner,
    /// Too few other copies are complete: the members could not find another owner.
    NoOtherCopy(HostId),
    /// The excluded owner has an intact region, and the others have not reported in time.
    OwnerReturned(HostId),
    /// Meanwhile the members have found this owner.
    OtherOwner(HostId),
    /// So many positions of the log of this owner, which refused writers, were not replicated in
    /// time.
    NotReplicated(HostId, u64),
    /// The copy of the host does not count.
    NotCounted(HostId),
    /// The host is to leave the group.
    Leaving(HostId),
    /// The owner does not hear the host, without whose report no other owner would be found.
    Silent(HostId),
    /// The owner does not hear the host that is to be the next one.
    TargetSilent(HostId),
    /// The host did not have so many positions of the log of this owner, which refused writers, in
    /// time.
    Behind(HostId, u64),
}

/// The log of an owner that refuses writers.
#[derive(Debug, Clone, Copy)]
struct FrozenLog {
    since: Monotonic,
    tail: u64,
    replicated: u64,
}

/// A task of an operator, at one host.
#[derive(Debug, Clone)]
pub struct OperatorTask {
    goal: OperatorGoal,
    lease: Lease,
    began: Monotonic,
    view: ViewNumber,
    owner: HostId,
    /// The last renewal when the task began.
    renewed: Option<Monotonic>,
    began_sealing: bool,
    /// A loss is accepted although another host has reported a longer copy.
    discards_longer: bool,
    /// Since when it sees that the owner is excluded.
    sealing_since: Option<Monotonic>,
    /// The owner refuses writers since the task has asked for it.
    log: Option<FrozenLog>,
    /// Up to where the members that the owner hears have its log.
    heard: BTreeMap<HostId, u64>,
    /// The exclusion of a drained owner was proposed, and may be ordered at any time.
    is_exclusion_proposed: bool,
}

impl OperatorTask {
    /// A task that begins now, in this state.
    pub fn new(goal: OperatorGoal, group: &GroupState, lease: Lease, now: Monotonic) -> Self {
        let began_sealing = matches!(group.phase(), GroupPhase::Sealing { .. });
        Self {
            goal,
            lease,
            began: now,
            view: group.view(),
            owner: group.owner,
            renewed: group.degraded().map(|degraded| degraded.renewed),
            began_sealing,
            discards_longer: false,
            sealing_since: None,
            log: None,
            heard: BTreeMap::new(),
            is_exclusion_proposed: false,
        }
    }

    /// The members that the owner has heard in the last lease, which carries the task out, and up
    /// to where they have its log. A drain needs it before each step.
    pub fn members_heard(&mut self, heard: BTreeMap<HostId, u64>) {
        self.heard = heard;
    }

    /// The owner refuses writers, and its log ends at `tail`.
    pub fn frozen(&mut self, now: Monotonic, tail: u64) {
        self.log = Some(FrozenLog { since: now, tail, replicated: 0 });
    }

    /// The owner's log is replicated up to a position.
    pub fn replicated(&mut self, position: u64) {
        if let Some(log) = &mut self.log {
            log.replicated = log.replicated.max(position);
        }
    }

    /// Whether a loss is accepted although another host has reported that its copy holds more.
    #[must_use]
    pub fn with_longer_discarded(mut self, discards_longer: bool) -> Self {
        self.discards_longer = discards_longer;
        self
    }

    /// The next step. `is_owner_heard`: this host hears the owner, or is it.
    pub fn step(
        &mut self,
        now: Monotonic,
        group: &GroupState,
        is_owner_heard: bool,
    ) -> OperatorStep {
        let is_excluded = matches!(group.phase(), GroupPhase::Sealing { .. });
        if is_excluded {
            let since = *self.sealing_since.get_or_insert(now);
            return self.step_sealing((since, now), group);
        }
        if self.began_sealing || self.sealing_since.is_some() || group.view() > self.view {
            return self.outcome(group);
        }
        let step = self.step_serving(now, group, is_owner_heard);
        self.is_exclusion_proposed |=
            self.goal.is_drain() && matches!(step, OperatorStep::Propose(_));
        step
    }

    /// The owner that the task has found still owns the partition.
    fn step_serving(
        &self,
        now: Monotonic,
        group: &GroupState,
        is_owner_heard: bool,
    ) -> OperatorStep {
        let exclude = Command::Exclude { partition: group.partition(), view: group.view() };
        let to = match self.goal {
            goal if goal.is_drain() && !group.can_replace_owner() => {
                return OperatorStep::Refused(OperatorRefusal::NoOtherCopy(self.owner));
            }
            OperatorGoal::Drain => return self.step_draining(now, group, exclude),
            OperatorGoal::DrainPreferring(to) => {
                return self.step_draining_preferring(now, group, (to, exclude));
            }
            OperatorGoal::DrainTo(to) => return self.step_draining_to(now, group, to),
            OperatorGoal::AcceptLoss(to) | OperatorGoal::ForceNew(to) => to,
        };
        let renewed = group.degraded().map(|degraded| degraded.renewed);
        if !group.group().contains(&to) {
            OperatorStep::Refused(OperatorRefusal::NotInGroup(to))
        } else if to == self.owner {
            OperatorStep::Refused(OperatorRefusal::AlreadyOwner(to))
        } else if is_owner_heard || renewed != self.renewed {
            OperatorStep::Refused(OperatorRefusal::OwnerLives(self.owner))
        } else if now < self.began.plus(self.lease.promise_ns()) {
            OperatorStep::Wait(OperatorWait::Lease)
        } else {
            OperatorStep::Propose(exclude)
        }
    }

    /// The owner is excluded when no commit that it has answered is on it alone.
    fn step_draining(&self, now: Monotonic, group: &GroupState, exclude: Command) -> OperatorStep {
        let Some(log) = self.log else {
            let Some(silent) = self.silent_reporter(group) else { return OperatorStep::Freeze };
            return self.wait_before_freezing(now, silent, OperatorRefusal::Silent(silent));
        };
        let missing = log.tail.saturating_sub(log.replicated);
        // What was proposed may be ordered, whatever is heard.
        let silent = self.silent_reporter(group).filter(|_| !self.is_exclusion_proposed);
        let (wait, refusal) = match (missing, silent) {
            (0, None) => return OperatorStep::Propose(exclude),
            (0, Some(host)) => (OperatorWait::Silent(host), OperatorRefusal::Silent(host)),
            (missing, _) => (
                OperatorWait::Replication(missing),
                OperatorRefusal::NotReplicated(self.owner, missing),
            ),
        };
        if now < log.since.plus(DRAIN_LEASES * self.lease.promise_ns()) {
            OperatorStep::Wait(wait)
        } else {
            OperatorStep::Refused(refusal)
        }
    }

    /// A host that was not heard for one lease may only have missed it: it has another one.
    fn wait_before_freezing(
        &self,
        now: Monotonic,
        silent: HostId,
        refusal: OperatorRefusal,
    ) -> OperatorStep {
        if now < self.began.plus(self.lease.promise_ns()) {
            OperatorStep::Wait(OperatorWait::Silent(silent))
        } else {
            OperatorStep::Refused(refusal)
        }
    }

    /// The same. The preferred host is named if it can be the owner, is heard, and has everything
    /// soon enough: writers wait.
    fn step_draining_preferring(
        &self,
        now: Monotonic,
        group: &GroupState,
        (to, exclude): (HostId, Command),
    ) -> OperatorStep {
        let (partition, view) = (group.partition(), group.view());
        let held = self.heard.get(&to).filter(|_| self.refused_target(group, to).is_none());
        let (Some(held), Some(log)) = (held, self.log) else {
            return self.step_draining(now, group, exclude);
        };
        let missing = log.tail.saturating_sub(*held);
        let may_wait = now < log.since.plus(PREFERENCE_LEASES * self.lease.promise_ns());
        let step = self.step_draining(now, group, exclude);
        if !matches!(step, OperatorStep::Propose(_)) {
            return step;
        }
        if missing == 0 {
            return OperatorStep::Propose(Command::HandOver { partition, view, host: to });
        }
        if may_wait { OperatorStep::Wait(OperatorWait::Target(to, missing)) } else { step }
    }

    /// The same, if the host that is named has everything, and can be the owner.
    fn step_draining_to(&self, now: Monotonic, group: &GroupState, to: HostId) -> OperatorStep {
        let (partition, view) = (group.partition(), group.view());
        if let Some(refusal) = self.refused_target(group, to) {
            // A hand-over that was proposed may be ordered yet, so writers stay refused, and the
            // members choose.
            return if self.is_exclusion_proposed {
                OperatorStep::Propose(Command::Exclude { partition, view })
            } else {
                OperatorStep::Refused(refusal)
            };
        }
        let hand_over = Command::HandOver { partition, view, host: to };
        let target = self.heard.get(&to).copied();
        if target.is_none() && self.log.is_none() {
            return self.wait_before_freezing(now, to, OperatorRefusal::TargetSilent(to));
        }
        match (self.step_draining(now, group, hand_over), self.log) {
            (OperatorStep::Propose(_), Some(log))
                if target < Some(log.tail) && !self.is_exclusion_proposed =>
            {
                let missing = log.tail.saturating_sub(target.unwrap_or(0));
                if now < log.since.plus(DRAIN_LEASES * self.lease.promise_ns()) {
                    OperatorStep::Wait(OperatorWait::Target(to, missing))
                } else {
                    OperatorStep::Refused(match target {
                        Some(_) => OperatorRefusal::Behind(to, missing),
                        None => OperatorRefusal::TargetSilent(to),
                    })
                }
            }
            (step, _) => step,
        }
    }

    /// A member without whose report no other owner is found, and which is not heard: nothing would
    /// be decided before the drained host returns.
    fn silent_reporter(&self, group: &GroupState) -> Option<HostId> {
        let others = || group.full().iter().copied().filter(|host| *host != self.owner);
        let heard = others().filter(|host| self.heard.contains_key(host)).count();
        let mut silent = others().filter(|host| !self.heard.contains_key(host));
        silent.next().filter(|_| heard < group.reports_needed())
    }

    /// Why the partition cannot be handed over to the host.
    fn refused_target(&self, group: &GroupState, to: HostId) -> Option<OperatorRefusal> {
        if to == self.owner {
            Some(OperatorRefusal::AlreadyOwner(to))
        } else if !group.group().contains(&to) {
            Some(OperatorRefusal::NotInGroup(to))
        } else if !group.full().contains(&to) {
            Some(OperatorRefusal::NotCounted(to))
        } else if !group.can_take_over(to) {
            Some(OperatorRefusal::Leaving(to))
        } else {
            None
        }
    }

    /// There is no owner, as this host knows since a time. One lease later no lease of the excluded
    /// owner rests on what was ordered before; another one later complete copies are reported.
    /// While a host is preferred, the others report without it only after [`YIELD_LEASES`], and
    /// with n > 2 they wait as long for each other.
    fn step_sealing(
        &self,
        (since, now): (Monotonic, Monotonic),
        group: &GroupState,
    ) -> OperatorStep {
        let (partition, view) = (group.partition(), group.view());
        let GroupPhase::Sealing { reports } = group.phase() else {
            return OperatorStep::Wait(OperatorWait::Reports);
        };
        let is_off = group.switches.is_off(Switch::ReportAfterRenewal);
        let yields = group.preferred().is_some() || group.acknowledgements() > 2;
        let leases = FORCE_LEASES + if yields { YIELD_LEASES } else { 0 };
        let have_passed = is_off || now >= since.plus(leases * self.lease.promise_ns());
        match self.goal {
            goal if goal.is_drain() && self.began_sealing => {
                OperatorStep::Refused(OperatorRefusal::NoOwner)
            }
            OperatorGoal::Drain | OperatorGoal::DrainPreferring(_) | OperatorGoal::DrainTo(_) => {
                OperatorStep::Wait(OperatorWait::Reports)
            }
            OperatorGoal::AcceptLoss(host) | OperatorGoal::ForceNew(host)
                if !group.group().contains(&host) =>
            {
                OperatorStep::Refused(OperatorRefusal::NotInGroup(host))
            }
            OperatorGoal::AcceptLoss(host) if !reports.contains_key(&host) => {
                OperatorStep::Wait(OperatorWait::Report(host))
            }
            OperatorGoal::AcceptLoss(_) if !have_passed => OperatorStep::Wait(OperatorWait::Lease),
            OperatorGoal::AcceptLoss(host) => match longer_report(reports, host) {
                Some((other, position)) if !self.discards_longer => {
                    OperatorStep::Refused(OperatorRefusal::LongerCopy(other, position))
                }
                Some(_) | None => {
                    OperatorStep::Propose(Command::AcceptLoss { partition, view, host })
                }
            },
            // A complete copy is not given up, whichever host has reported it.
            OperatorGoal::ForceNew(host) => match longest_report(reports) {
                Some((reporter, _)) => OperatorStep::Refused(OperatorRefusal::HasCopy(reporter)),
                None if have_passed => {
                    OperatorStep::Propose(Command::ForceNew { partition, view, host })
                }
                None => OperatorStep::Wait(OperatorWait::Lease),
            },
        }
    }

    /// The partition has an owner again.
    fn outcome(&self, group: &GroupState) -> OperatorStep {
        let Some(owner) = group.owner() else { return OperatorStep::Wait(OperatorWait::Reports) };
        let is_by_decision = group.loss().is_some_and(|loss| loss.view == group.origin());
        let is_reached = match self.goal {
            OperatorGoal::Drain | OperatorGoal::DrainPreferring(_) => owner != self.owner,
            OperatorGoal::DrainTo(to) | OperatorGoal::AcceptLoss(to) => owner == to,
            OperatorGoal::ForceNew(to) => owner == to && is_by_decision,
        };
        if is_reached && group.origin() >= self.view {
            OperatorStep::Done { owner, is_by_decision }
        } else if owner == self.owner {
            OperatorStep::Refused(OperatorRefusal::OwnerReturned(owner))
        } else {
            OperatorStep::Refused(OperatorRefusal::OtherOwner(owner))
        }
    }
}

/// The host that has reported the longest copy, and what that holds.
fn longest_report(reports: &BTreeMap<HostId, LogPosition>) -> Option<(HostId, &LogPosition)> {
    let longest = reports.iter().max_by(|(_, one), (_, other)| one.compare(other));
    longest.map(|(host, held)| (*host, held))
}

/// The same, if that copy is longer than the one of this host.
fn longer_report(reports: &BTreeMap<HostId, LogPosition>, host: HostId) -> Option<(HostId, u64)> {
    let own = reports.get(&host)?;
    let (longest, held) = longest_report(reports)?;
    (held.compare(own) == Ordering::Greater).then_some((longest, held.position))
}

impl fmt::Display for OperatorWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lease => write!(f, "the lease of the owner has not ended"),
            Self::Reports => write!(f, "too few members have reported"),
            Self::Report(host) => write!(f, "host {host} has not reported: its copy has gaps"),
            Self::Silent(host) => write!(f, "host {host} is not heard"),
            Self::Replication(missing) => write!(f, "{missing} positions are not replicated"),
            Self::Target(host, missing) => write!(f, "host {host} lacks {missing} positions"),
        }
    }
}
