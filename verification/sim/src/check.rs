//! What must hold after every step.

use crate::region::{Copy, Region};
use crate::world::{LEASE_MS, MS, PARTITION, World};
use nearstate_cluster::limits::KEEP_COPY_LEASES;
use nearstate_cluster::{Applied, GroupPhase, GroupState, HostId, LogPosition};

/// For so long behind a seal no host discards a copy that others may need (rule 8), by a clock that
/// is 2 % fast.
const KEPT_FOR: u64 = KEEP_COPY_LEASES * LEASE_MS as u64 * MS * 100 / 102;

impl World {
    pub(crate) fn violate(&mut self, what: &str) {
        if self.ledger.violation.is_none() {
            self.ledger.violation = Some(format!("{what} at {} ms", self.now / 1_000_000));
        }
    }

    fn holds_released(&self, region: &Region) -> bool {
        let (length, check) = self.ledger.released;
        region.is_complete() && region.check_at(length) == Some(check)
    }

    /// An owner raises the word *replicated*: output up to there is released.
    pub(crate) fn check_release(&mut self, host: HostId, position: u64) {
        let region = &self.node(host).region;
        let (log, length) = (region.log, region.base + position as usize);
        let Some(check) = region.check_at(length) else {
            return self.violate("Exists: a position is replicated that was not written");
        };
        let (known, known_check) = self.ledger.released;
        let is_extension = length < known || region.check_at(known) == Some(known_check);
        // A log that has no seal was given up as a whole.
        let has_ended = region.origin < self.latest().origin();
        let kept = self.ledger.sealed.get(&log).copied().or(has_ended.then_some(0));
        if kept.is_some_and(|kept| position > kept) {
            self.violate("ReleaseRule: output behind a seal is released");
        }
        if !is_extension {
            self.violate("Durable: an owner releases output without having what was released");
        } else if length > known {
            self.ledger.released = (length, check);
        }
    }

    /// A process commits: its place is used once.
    pub(crate) fn check_commit(&mut self, (log, position, id): (u64, u64, u64)) {
        if self.ledger.places.insert((log, position), id).is_some_and(|other| other != id) {
            self.violate("NoFork: two transactions have one place in a log");
        }
    }

    /// A process reads, and sends what it has read.
    pub(crate) fn check_read(&mut self, host: HostId) {
        let origin = self.node(host).region.origin;
        if self.latest().origin() > origin {
            self.violate("LeaseRule: an owner reads after a seal");
        }
    }

    /// Consensus has ordered a command with this effect. `before` is the state before it.
    pub(crate) fn check_applied(&mut self, before: &GroupState, applied: Applied) {
        match applied {
            Applied::Sealed(winner, seal) => {
                let owner = before.owner().or(before.excluded()).expect("an owner");
                self.check_seal(owner, winner, &seal);
            }
            Applied::LossAccepted(host, sealed) => self.check_accepted(before, host, &sealed),
            Applied::ForcedNew(_) => self.continue_with((0, 0)),
            Applied::Degraded(_) => self.ledger.degraded += 1,
            Applied::MemberAdded(_) => self.ledger.changes.0 += 1,
            Applied::MemberRemoved(_) => self.ledger.changes.1 += 1,
            Applied::MemberLeaving(_) => self.ledger.leaving += 1,
            Applied::Registered(_)
            | Applied::Suspected(_)
            | Applied::Trusted(_)
            | Applied::Excluded(_)
            | Applied::ViewRaised(_)
            | Applied::Reported(_)
            | Applied::Returned(_)
            | Applied::Full(_)
            | Applied::Evicted(_)
            | Applied::Renewed(_)
            | Applied::Finalized(_)
            | Applied::Refused(_) => {}
        }
    }

    fn check_seal(&mut self, owner: HostId, winner: HostId, seal: &LogPosition) {
        let old = self.node(owner);
        if old.region.copy == Copy::Owner && self.clock(owner) < old.region.lease_until {
            self.violate("LeaseRule: a seal while the old owner holds a lease");
        }
        self.check_drained(owner, seal);
        let region = &self.node(winner).region;
        let is_there = region.is_complete() && region.held() == *seal;
        if is_there && !self.holds_released(region) && !self.ledger.is_disaster {
            self.violate("Durable: the sealed copy lacks what was released");
        }
        self.seal_log(seal);
        self.ledger.sealed_at.insert(self.latest().origin(), self.now);
    }

    /// An operator gives the partition to a host that has reported. Only what lost copies had may
    /// be missing there, or what a degraded owner has committed alone.
    fn check_accepted(&mut self, before: &GroupState, host: HostId, sealed: &LogPosition) {
        self.seal_log(sealed);
        let (length, check) = self.ledger.released;
        let region = &self.node(host).region;
        let is_there = region.is_complete() && region.held() == *sealed;
        if is_there && self.holds_released(region) {
            return self.continue_with((length, check));
        }
        let kept = if is_there { region.content.len().min(length) } else { 0 };
        let kept_check = region.check_at(kept).unwrap_or_default();
        if !self.ledger.is_disaster && before.degraded().is_none() {
            self.violate("Durable: what a copy has that is left is given up");
        }
        self.continue_with((kept, kept_check));
    }

    /// Are so many copies lost that only an operator can go on? Of F full members n, so that too
    /// few of the others can report. After a seal that has left fewer than n of them, all copies
    /// that have what was sealed.
    pub(crate) fn is_operator_due(&self) -> bool {
        let group = self.latest();
        let region = |host: &HostId| &self.node(*host).region;
        if group.is_unsettled() {
            let has_sealed = |host: &HostId| {
                let held = region(host).held();
                let is_it = Some(held) == group.seal() || held.origin == group.origin();
                region(host).is_complete() && is_it
            };
            return !group.group().iter().any(has_sealed);
        }
        let needed = if group.degraded().is_some() { 1 } else { group.acknowledgements() };
        let lost = group.full().iter().filter(|host| !region(host).is_complete());
        self.ledger.is_disaster || lost.count() >= needed
    }

    /// The partition continues with this much of what was released, by the decision of an operator.
    fn continue_with(&mut self, released: (usize, u64)) {
        self.ledger.accepted += 1;
        self.ledger.is_disaster = false;
        self.ledger.released = released;
        self.ledger.losses = 0;
    }

    fn seal_log(&mut self, seal: &LogPosition) {
        let mut log = [0; 8];
        log.copy_from_slice(&seal.log[..8]);
        self.ledger.sealed.insert(u64::from_le_bytes(log), seal.position);
    }

    /// A region becomes the owner's.
    pub(crate) fn check_promoted(&mut self, host: HostId) {
        let is_owner = self.latest().owner() == Some(host);
        let is_origin = self.node(host).region.origin == self.latest().origin();
        let holds = self.holds_released(&self.node(host).region);
        if is_owner && is_origin && !holds && !self.ledger.is_disaster {
            self.violate("Durable: the new owner lacks what was released");
        }
    }

    /// A copy is about to be discarded. What was decided with its report is not yet known.
    pub(crate) fn check_reported(&mut self, host: HostId) {
        if let GroupPhase::Sealing { reports } = self.latest().phase()
            && reports.contains_key(&host)
        {
            self.violate("Reported: a copy is discarded while its report counts");
        }
    }

    /// The hosts of the group that hold everything that was released. The copy of a host that has
    /// left is of no use to the group.
    fn holders(&self) -> usize {
        let group = self.latest().group().iter();
        group.filter(|host| self.holds_released(&self.node(**host).region)).count()
    }

    /// Does a discard count as the loss of a host (decision 026, consequences)? If all hosts of the
    /// group must hold a commit, the copy has to join anew before it can be one of them again.
    /// Otherwise it is kept until enough others are complete, for a while: what these do not hold
    /// then is lost with them. The host acts on the state that it knows.
    fn is_discard_loss(&self, host: HostId) -> bool {
        let known = self.node(host).process.as_ref().map(|process| &self.states[process.applied]);
        let Some(known) = known.and_then(|state| state.group(PARTITION)) else { return false };
        let needed = known.acknowledgements();
        let sealed_at = self.ledger.sealed_at.get(&known.origin()).copied().unwrap_or_default();
        known.group().len() <= needed
            || known.full().len() >= needed
            || self.now >= sealed_at + KEPT_FOR
    }

    /// A copy is about to be lost, or discarded.
    pub(crate) fn check_gone(&mut self, host: HostId, is_loss: bool) {
        let latest = self.latest();
        let needed = if latest.degraded().is_some() { 1 } else { latest.acknowledgements() };
        let holders = self.holders();
        if holders >= needed {
            self.ledger.losses = 0;
        }
        let is_member = self.latest().group().contains(&host);
        if self.ledger.released.0 == 0
            || !is_member
            || !self.holds_released(&self.node(host).region)
        {
            return;
        }
        if is_loss || holders <= needed && self.is_discard_loss(host) {
            self.ledger.losses += 1;
        }
        if holders == 1 {
            self.ledger.is_disaster = true;
            if self.ledger.losses < needed {
                self.violate("Durable: everything released is lost by fewer than n losses");
            }
        }
    }
}
