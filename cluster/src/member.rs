//! One host's part in one partition: it keeps what was learned, and does what its role asks for.

mod inputs;

use crate::activity::MemberActivity;
use crate::command::Command;
use crate::config::Lease;
use crate::effect::{Effects, FollowStart, HostEffect};
use crate::event::{ClusterEvent, ClusterEventKind};
use crate::follower::Promise;
use crate::group::{GroupPhase, GroupState};
use crate::id::{HostId, Monotonic, PartitionId, Revision, ViewNumber};
use crate::limits::{KEEP_COPY_LEASES, RETURN_LEASES, SILENT_RENEWAL_LEASES, YIELD_LEASES};
use crate::owner::{Owner, OwnerWords, WantedChange};
use crate::position::LogPosition;
use crate::region::{CopyState, RegionState};
use crate::role::{MemberRole, is_at, is_sealed_log, role_of};
use crate::switches::{Switch, Switches};

/// One host's part in one partition.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct PartitionMember {
    me: HostId,
    process: u64,
    lease: Lease,
    switches: Switches,
    pub(crate) degrade_after: Option<u64>,
    group: GroupState,
    facts: Option<RegionState>,
    /// When this process learned of the present view and phase.
    phase_began: Monotonic,
    /// The last renewal of a degraded owner's lease that was applied, and when this host saw it.
    renewal: Option<(Monotonic, Monotonic)>,
    activity: MemberActivity,
    promise: Promise,
    is_fenced: bool,
    is_suspecting: bool,
    /// The copy counts, so this host listens whether the owner lives.
    is_watching: bool,
    /// What the copy held when it was frozen for this view.
    frozen: Option<(ViewNumber, LogPosition)>,
    floor: u64,
    /// The view in which this process has promoted the copy, until it serves.
    promoted: Option<ViewNumber>,
    /// The origin of the own log, of which a member has more than the region.
    outdated: Option<ViewNumber>,
    /// The last effect that is repeated until something shows that it is done.
    repeated: Option<(HostEffect, Monotonic)>,
}

impl PartitionMember {
    /// `started`: when the process started. Its phase begins `now`: what was ordered between may
    /// have been the last renewal of a lease.
    pub(crate) fn new(
        (me, process): (HostId, u64),
        group: &GroupState,
        lease: Lease,
        (started, now): (Monotonic, Monotonic),
    ) -> Self {
        let switches = group.switches;
        Self {
            me,
            process,
            lease,
            switches,
            degrade_after: None,
            group: group.clone(),
            facts: None,
            phase_began: now,
            renewal: None,
            activity: MemberActivity::Idle,
            promise: Promise::at_start(lease, switches, started),
            is_fenced: true,
            is_suspecting: false,
            is_watching: false,
            frozen: None,
            floor: 0,
            promoted: None,
            outdated: None,
            repeated: None,
        }
    }

    pub(crate) fn state(&mut self, now: Monotonic, group: &GroupState) {
        let phase = |group: &GroupState| (group.view(), group.owner());
        let has_phase_changed = phase(&self.group) != phase(group);
        self.group.clone_from(group);
        let renewed = group.degraded().map(|degraded| degraded.renewed);
        if renewed != self.renewal.map(|(stamp, _)| stamp) {
            self.renewal = renewed.map(|stamp| (stamp, now));
        }
        if has_phase_changed {
            self.phase_began = now;
            self.promise.begin(now);
            self.is_suspecting = false;
        }
    }

    pub(crate) fn region(&mut self, read: RegionState) {
        let facts = self.merged(read);
        let was_there = self.facts.is_some_and(|known| known.copy != CopyState::Empty);
        if was_there && facts.copy == CopyState::Empty {
            // The region is lost, or was discarded: whatever ran on it has ended.
            self.frozen = None;
            self.floor = 0;
            self.repeated = None;
            if matches!(self.activity, MemberActivity::Following(..)) {
                self.activity = MemberActivity::Idle;
            }
        }
        self.facts = Some(facts);
    }

    /// Facts may have been read before the last effects were carried out.
    fn merged(&self, read: RegionState) -> RegionState {
        let Some(known) = self.facts else { return read };
        let mut facts = read;
        facts.record.view = read.record.view.max(known.record.view);
        if read.record.revision <= known.record.revision {
            facts.record.revision = known.record.revision;
            facts.record.evicting = known.record.evicting;
        }
        if read.copy == known.copy && matches!(read.copy, CopyState::Owner { .. }) {
            facts.replicated = read.replicated.max(known.replicated);
            facts.lease_until = read.lease_until.max(known.lease_until);
        }
        if let (CopyState::Follower(_), CopyState::Follower(_)) = (read.copy, known.copy)
            && self.is_frozen()
            && !matches!(self.activity, MemberActivity::Following(..))
        {
            facts.copy = known.copy;
        }
        facts
    }

    /// Has the copy been frozen for the present view?
    fn is_frozen(&self) -> bool {
        self.frozen.is_some_and(|(view, _)| view == self.group.view())
    }

    /// A complete copy is frozen in each view before its host acts in that view, so that what it
    /// holds is known. Returns whether that is still to be done.
    fn freeze(&mut self, now: Monotonic, facts: RegionState, effects: &mut Effects) -> bool {
        let is_following = matches!(self.activity, MemberActivity::Following(..));
        let is_due = matches!(facts.copy, CopyState::Follower(_)) && !is_following;
        let (partition, view) = (self.partition(), self.group.view());
        if !is_due || self.is_frozen() || self.switches.is_off(Switch::FreezeFirst) {
            return false;
        }
        self.store_view(effects);
        self.repeat(now, HostEffect::Freeze { partition, view }, effects);
        true
    }

    pub(crate) fn frozen(&mut self, view: ViewNumber, held: LogPosition) {
        let Some(facts) = &mut self.facts else { return };
        if let CopyState::Follower(copy) = &mut facts.copy {
            *copy = held;
        }
        if matches!(facts.copy, CopyState::Follower(_) | CopyState::Owner { .. }) {
            self.frozen = Some((view, held));
        }
    }

    /// Does whatever the role asks for. Called after every input.
    pub(crate) fn advance(&mut self, now: Monotonic, effects: &mut Effects) {
        self.promise.stepped(now);
        let Some(facts) = self.facts else { return };
        let role = self.role_with(facts);
        self.end_activity(role, effects);
        if !matches!(role, MemberRole::Waiting | MemberRole::Registering)
            && self.freeze(now, facts, effects)
        {
            return;
        }
        match role {
            MemberRole::Waiting => {}
            MemberRole::Sealing => self.seal(now, facts, effects),
            MemberRole::Registering => self.register(now, effects),
            MemberRole::Promoting => self.promote(now, facts, effects),
            MemberRole::Serving => self.serve(now, facts, effects),
            MemberRole::Lost => self.give_up(now, effects),
            MemberRole::Following(start) => self.follow(now, facts, start, effects),
            MemberRole::Outdated => self.discard(now, facts, effects),
        }
    }

    /// The role that the last inputs lead to. `None` before the region has said what it is.
    pub(crate) fn role(&self) -> Option<MemberRole> {
        self.facts.map(|facts| self.role_with(facts))
    }

    fn role_with(&self, facts: RegionState) -> MemberRole {
        let role = role_of((self.me, self.process), &self.group, &facts, self.switches);
        let is_lost = role == MemberRole::Serving && self.is_outdated();
        if is_lost { MemberRole::Lost } else { role }
    }

    /// Has a member more of the own log than the region?
    fn is_outdated(&self) -> bool {
        self.outdated == Some(self.group.origin())
    }

    pub(crate) fn answered(&self, host: HostId) -> Monotonic {
        match &self.activity {
            MemberActivity::Serving(_, owner) => owner.answered(host),
            MemberActivity::Idle | MemberActivity::Following(..) => Monotonic::BOOT,
        }
    }

    /// The word of the region may be that of an earlier process, or of an older file: this process
    /// has no lease that no member has granted to it.
    pub(crate) fn is_leased(&self, now: Monotonic) -> bool {
        match &self.activity {
            MemberActivity::Serving(_, owner) => now < owner.granted,
            MemberActivity::Idle | MemberActivity::Following(..) => false,
        }
    }

    /// Does this host hear the owner, or is it the owner?
    pub(crate) fn hears_owner(&self, now: Monotonic) -> bool {
        match &self.activity {
            MemberActivity::Serving(..) => true,
            MemberActivity::Following(..) => self.promise.hears_owner(now),
            MemberActivity::Idle => false,
        }
    }

    /// Has an owner whose copy alone suffices shown no life for some leases, neither by renewals of
    /// its lease nor by messages to this host?
    pub(crate) fn misses_degraded_owner(&self, now: Monotonic) -> bool {
        let limit = SILENT_RENEWAL_LEASES * self.lease.promise_ns();
        let is_old = self.renewal.is_some_and(|(_, seen)| now > seen.plus(limit));
        is_old && self.group.owner().is_some() && !self.hears_owner(now)
    }

    fn partition(&self) -> PartitionId {
        self.group.partition()
    }

    /// Ends what another role or view has begun.
    fn end_activity(&mut self, role: MemberRole, effects: &mut Effects) {
        let (partition, view) = (self.partition(), self.group.view());
        match (&self.activity, role) {
            (MemberActivity::Idle, _) => {}
            (MemberActivity::Serving(serving, _), MemberRole::Serving) if *serving == view => {}
            (MemberActivity::Following(following, owner), MemberRole::Following(_))
                if *following == view && Some(*owner) == self.group.owner() => {}
            (MemberActivity::Following(..), MemberRole::Sealing)
                if self.switches.is_off(Switch::FreezeFirst) => {}
            (MemberActivity::Serving(..), _) => {
                self.activity = MemberActivity::Idle;
                self.is_fenced = true;
                effects.push(HostEffect::WatchLog { partition, view: None });
                effects.push(HostEffect::StopServing { partition });
                effects.push(HostEffect::Fence { partition });
                self.tell(ClusterEventKind::OwnerStopped, effects);
            }
            (MemberActivity::Following(..), _) => {
                self.activity = MemberActivity::Idle;
                effects.push(HostEffect::StopFollowing { partition });
            }
        }
    }

    /// Freezes the copy, waits for the end of the promise, and reports.
    fn seal(&mut self, now: Monotonic, facts: RegionState, effects: &mut Effects) {
        let (partition, view, host) = (self.partition(), self.group.view(), self.me);
        self.store_view(effects);
        let (CopyState::Follower(_) | CopyState::Owner { .. }) = facts.copy else { return };
        let held = match (self.frozen, facts.copy) {
            (Some((frozen, held)), _) if frozen == view => held,
            (None | Some(_), CopyState::Follower(held))
                if self.switches.is_off(Switch::FreezeFirst) =>
            {
                held
            }
            (None | Some(_), _) => {
                self.repeat(now, HostEffect::Freeze { partition, view }, effects);
                return;
            }
        };
        let GroupPhase::Sealing { reports } = self.group.phase() else { return };
        let is_owner = self.group.excluded() == Some(host);
        if !is_owner && self.group.is_unsettled() && is_sealed_log(&self.group, facts, &held) {
            // Its report may decide. Members at the seal go on with the log of a promoted copy.
            let seal = self.group.seal();
            self.repeat(now, HostEffect::Demote { partition, view, seal }, effects);
            return;
        }
        let is_present = !self.group.is_operator_needed()
            && facts.copy == CopyState::Owner { origin: self.group.origin() };
        let returns_at = self.phase_began.plus(RETURN_LEASES * self.lease.promise_ns());
        let yields_until = self.phase_began.plus(YIELD_LEASES * self.lease.promise_ns());
        let has_reported = reports.contains_key(&host);
        let repeats = has_reported && self.group.decides(host);
        let yields = repeats || self.group.yields(host);
        let may_report = self.promise.has_ended(now)
            && self.renewals_have_ended(now)
            && (!yields || now >= yields_until);
        if (!has_reported || repeats) && may_report {
            self.propose(now, Command::Report { partition, view, host, held }, effects);
        } else if is_owner && is_present && !self.is_outdated() && now >= returns_at {
            self.propose(now, Command::Return { partition, view, host }, effects);
        }
    }

    /// A degraded owner has no lease of a renewal that was ordered before its exclusion.
    fn renewals_have_ended(&self, now: Monotonic) -> bool {
        self.group.degraded().is_none()
            || now >= self.phase_began.plus(self.lease.promise_ns())
            || self.switches.is_off(Switch::ReportAfterRenewal)
    }

    fn promote(&mut self, now: Monotonic, facts: RegionState, effects: &mut Effects) {
        self.store_view(effects);
        let (partition, view, seal) = (self.partition(), self.group.view(), self.group.seal());
        let origin = self.group.origin();
        self.promoted = Some(origin);
        if self.switches.is_off(Switch::PromoteFirst)
            && matches!(facts.copy, CopyState::Follower(_))
        {
            self.facts = Some(RegionState { copy: CopyState::Owner { origin }, ..facts });
        }
        self.repeat(now, HostEffect::Promote { partition, view, origin, seal }, effects);
    }

    fn register(&mut self, now: Monotonic, effects: &mut Effects) {
        let (partition, host, process) = (self.partition(), self.me, self.process);
        self.propose(now, Command::Register { partition, host, process }, effects);
    }

    fn give_up(&mut self, now: Monotonic, effects: &mut Effects) {
        let (partition, view) = (self.partition(), self.group.view());
        if self.propose(now, Command::Exclude { partition, view }, effects) {
            self.tell(ClusterEventKind::OwnerRegionLost, effects);
        }
    }

    fn serve(&mut self, now: Monotonic, facts: RegionState, effects: &mut Effects) {
        let (partition, view) = (self.partition(), self.group.view());
        self.store_owner(None, effects);
        if !matches!(self.activity, MemberActivity::Serving(..)) {
            let owner = Owner::new(self.lease, self.switches, self.degrade_after, now);
            self.activity = MemberActivity::Serving(view, owner);
            self.is_fenced = true;
            effects.push(HostEffect::Fence { partition });
            effects.push(HostEffect::Serve { partition, view });
            let is_takeover = self.promoted.take() == Some(view) && view > ViewNumber::FIRST;
            self.tell(ClusterEventKind::OwnerStarted { is_takeover }, effects);
        }
        let facts = self.facts.unwrap_or(facts);
        let MemberActivity::Serving(_, owner) = &self.activity else { return };
        let (group, record) = (&self.group, &facts.record);
        let is_alone = owner.is_alone(now, group, record);
        let (replicated, lease_until, floor) = if is_alone {
            owner.alone(now, group)
        } else {
            (
                owner.replicated(group, record, None).unwrap_or(0),
                owner.lease_until(group, record, None),
                owner.floor(self.me, group, record).unwrap_or(0),
            )
        };
        self.raise_words(facts, (replicated, lease_until, floor), effects);
        self.set_fence(now, effects);
        self.keep_alone(now, is_alone, effects);
        self.change_membership(now, effects);
    }

    /// While the own copy suffices: watches the own log, and renews the lease.
    fn keep_alone(&mut self, now: Monotonic, is_alone: bool, effects: &mut Effects) {
        let (partition, host) = (self.partition(), self.me);
        let (revision, degraded) = (self.group.revision(), self.group.degraded());
        let MemberActivity::Serving(view, owner) = &mut self.activity else { return };
        let view = is_alone.then_some(*view);
        if owner.begins_to_watch(view) {
            effects.push(HostEffect::WatchLog { partition, view });
        }
        if is_alone && degraded.is_some_and(|degraded| owner.renews(now, revision, degraded)) {
            let renewal = Command::Renew { partition, revision, host, stamp: now };
            effects.push(HostEffect::Propose(renewal));
        }
    }

    fn raise_words(
        &mut self,
        facts: RegionState,
        (replicated, lease_until, floor): (u64, Monotonic, u64),
        effects: &mut Effects,
    ) {
        let partition = self.partition();
        if replicated > facts.replicated {
            effects.push(HostEffect::SetReplicated { partition, position: replicated });
        }
        // The region may have the end of a lease that only an earlier process was granted.
        if let MemberActivity::Serving(_, owner) = &mut self.activity
            && lease_until > owner.granted
        {
            owner.granted = lease_until;
            effects.push(HostEffect::SetLease { partition, until: lease_until });
        }
        if floor > self.floor {
            self.floor = floor;
            effects.push(HostEffect::SetFloor { partition, position: floor });
        }
        self.facts = Some(RegionState {
            replicated: facts.replicated.max(replicated),
            lease_until: facts.lease_until.max(lease_until),
            ..facts
        });
    }

    fn set_fence(&mut self, now: Monotonic, effects: &mut Effects) {
        let partition = self.partition();
        let is_leased = self.is_leased(now) || self.switches.is_off(Switch::Fence);
        if is_leased && self.is_fenced {
            effects.push(HostEffect::Unfence { partition });
            self.tell(ClusterEventKind::LeaseGranted, effects);
        } else if !is_leased && !self.is_fenced {
            effects.push(HostEffect::Fence { partition });
            self.tell(ClusterEventKind::LeaseEnded, effects);
        }
        self.is_fenced = !is_leased;
    }

    fn change_membership(&mut self, now: Monotonic, effects: &mut Effects) {
        let (MemberActivity::Serving(_, owner), Some(facts)) = (&self.activity, self.facts) else {
            return;
        };
        let RegionState { record, replicated, lease_until, .. } = facts;
        let words = OwnerWords { replicated, lease_until };
        let wanted = owner.wanted(now, self.me, &self.group, (&record, &words));
        let (partition, revision) = (self.partition(), self.group.revision());
        match wanted {
            Some(WantedChange::Full(host)) => {
                self.propose(now, Command::Full { partition, revision, host }, effects);
            }
            Some(WantedChange::Evict(host)) => {
                // Stored, and not counted from now on, before it is proposed.
                self.store_owner(Some(host), effects);
                self.propose(now, Command::Evict { partition, revision, host }, effects);
            }
            Some(WantedChange::Admit(host)) => {
                // Stored, and counted from now on, before it is full.
                self.store_owner(Some(host), effects);
                self.tell(ClusterEventKind::Admitting(host, revision), effects);
            }
            Some(WantedChange::Degrade) => {
                let host = self.me;
                if self.propose(now, Command::Degrade { partition, revision, host }, effects) {
                    self.tell(ClusterEventKind::Degrading(revision), effects);
                }
            }
            None => {}
        }
    }

    fn follow(
        &mut self,
        now: Monotonic,
        facts: RegionState,
        start: FollowStart,
        effects: &mut Effects,
    ) {
        let (partition, view) = (self.partition(), self.group.view());
        let Some(owner) = self.group.owner() else { return };
        self.store_view(effects);
        if matches!(self.activity, MemberActivity::Idle) {
            self.activity = MemberActivity::Following(view, owner);
            effects.push(HostEffect::Follow { partition, owner, view, start });
        }
        let is_complete = matches!(facts.copy, CopyState::Follower(_));
        let watches = self.group.full().contains(&self.me) && is_complete;
        if watches && !std::mem::replace(&mut self.is_watching, watches) {
            self.promise.listen(now);
        }
        self.is_watching = watches;
        if watches {
            self.watch_owner(now, owner, effects);
        }
    }

    fn watch_owner(&mut self, now: Monotonic, owner: HostId, effects: &mut Effects) {
        let (partition, view, host) = (self.partition(), self.group.view(), self.me);
        let is_silent = self.promise.is_owner_silent(now);
        if is_silent != self.is_suspecting {
            self.is_suspecting = is_silent;
            let kind = if is_silent {
                ClusterEventKind::OwnerSilent(owner)
            } else {
                ClusterEventKind::OwnerHeard(owner)
            };
            self.tell(kind, effects);
        }
        let GroupPhase::Serving { suspects } = self.group.phase() else { return };
        if is_silent {
            // Also if it is recorded: fewer suspicions may be needed by now.
            self.propose(now, Command::Suspect { partition, view, host }, effects);
        } else if suspects.contains(&host) {
            self.propose(now, Command::Trust { partition, view, host }, effects);
        }
    }

    /// Keeps an outdated copy while too few others are complete, then discards it. An owner's whose
    /// log ends at the seal is no longer than the partition: it becomes a copy with its records.
    fn discard(&mut self, now: Monotonic, facts: RegionState, effects: &mut Effects) {
        self.store_view(effects);
        let (partition, view, seal) = (self.partition(), self.group.view(), self.group.seal());
        let is_sealed_log = matches!(
            (facts.copy, seal),
            (CopyState::Owner { origin }, Some(seal)) if origin == seal.origin
        );
        if is_sealed_log && !self.is_frozen() {
            // So that it is known where its log ends.
            self.repeat(now, HostEffect::Freeze { partition, view }, effects);
            return;
        }
        let ends_at = |seal| self.frozen.is_some_and(|(_, held)| is_at(&held, &seal));
        let is_kept = is_sealed_log && seal.is_some_and(ends_at);
        let needed = self.group.acknowledgements();
        let is_settled = self.group.full().len() >= needed;
        let is_needed = self.group.group().len() <= needed;
        let kept_until = self.phase_began.plus(KEEP_COPY_LEASES * self.lease.promise_ns());
        let waits = now < kept_until && !self.switches.is_off(Switch::KeepCopy);
        if !is_kept && !is_settled && !is_needed && waits {
            return;
        }
        if self.switches.is_off(Switch::DiscardOutdated)
            && matches!(facts.copy, CopyState::Follower(_))
        {
            return;
        }
        if self.repeat(now, HostEffect::Demote { partition, view, seal }, effects) && !is_kept {
            self.tell(ClusterEventKind::CopyDiscarded, effects);
        }
    }

    /// Stores that this host acts in the present view, on the present revision. A membership that
    /// was restored from an older copy may have the same view: `Full`, `Evict` and `Degrade` change
    /// the revision only. A proposal to evict a member at an earlier revision has no effect any
    /// more.
    fn store_view(&mut self, effects: &mut Effects) {
        // Each view has a higher revision than the one before, so this covers the others.
        let is_off = [Switch::MemberRevision, Switch::StoredView, Switch::StoredRevision]
            .into_iter()
            .any(|switch| self.switches.is_off(switch));
        let revision = if is_off { Revision(0) } else { self.group.revision() };
        let (partition, view) = (self.partition(), self.group.view());
        let Some(facts) = &mut self.facts else { return };
        if facts.record.view >= view && facts.record.revision >= revision {
            return;
        }
        facts.record.view = facts.record.view.max(view);
        if facts.record.revision < revision {
            facts.record.revision = revision;
            facts.record.evicting = None;
        }
        effects.push(HostEffect::Store { partition, record: facts.record });
    }

    /// Stores that this host acts as the owner on the present revision, and whom it evicts.
    fn store_owner(&mut self, evicting: Option<HostId>, effects: &mut Effects) {
        let (partition, revision) = (self.partition(), self.group.revision());
        let view = self.group.view();
        let Some(facts) = &mut self.facts else { return };
        let is_same = facts.record.revision == revision;
        let mut record = facts.record;
        record.view = view;
        record.revision = revision;
        record.evicting = evicting.or(facts.record.evicting.filter(|_| is_same));
        if record != facts.record {
            facts.record = record;
            effects.push(HostEffect::Store { partition, record });
        }
    }

    /// Proposes unless the same was proposed within the life of a proposal.
    fn propose(&mut self, now: Monotonic, command: Command, effects: &mut Effects) -> bool {
        self.repeat(now, HostEffect::Propose(command), effects)
    }

    fn repeat(&mut self, now: Monotonic, effect: HostEffect, effects: &mut Effects) -> bool {
        if let Some((last, at)) = self.repeated
            && last == effect
            && now < at.plus(self.lease.proposal_ns())
        {
            return false;
        }
        self.repeated = Some((effect, now));
        effects.push(effect);
        true
    }

    fn tell(&self, kind: ClusterEventKind, effects: &mut Effects) {
        let (partition, view) = (self.partition(), self.group.view());
        effects.push(HostEffect::Event(ClusterEvent { partition, view, kind }));
    }
}
