//! The reports that decide a seal.
//!
//! With F >= n those of the full members do: what they hold was acknowledged by them. With F < n
//! the last seal has left too few of them. Since then nothing was replicated, because that takes
//! n - 1 of them beside the owner, and none of them has granted a lease. So each complete copy that
//! holds what was sealed is as good as a full one: it ends at the seal, or follows the log that
//! began there. A shorter one may lack what was replicated before the seal. A longer one has what
//! hosts may have told clients is lost.
//!
//! A degraded partition has one full member by decision, which replicates alone. Behind a raised
//! view no copy counts.

use super::{Applied, CommandRefusal as No, GroupPhase, GroupState, handed_over};
use crate::id::{HostId, ViewNumber};
use crate::level::ClusterLevel;
use crate::position::LogPosition;
use crate::switches::Switch;
use nearstate_model::invariant;

impl GroupState {
    /// Are fewer than n members full since the last seal, so that nothing was replicated since? A
    /// new partition is so before its first members are full.
    pub fn is_unsettled(&self) -> bool {
        let is_settled = self.full.len() >= self.acknowledgements();
        !is_settled && self.degraded.is_none() && !self.is_operator_needed()
    }

    pub(super) fn report(
        &mut self,
        view: ViewNumber,
        host: HostId,
        held: LogPosition,
        level: ClusterLevel,
    ) -> Result<Applied, No> {
        self.require_view(view)?;
        if !self.group.contains(&host) {
            return Err(No::NotInGroup);
        }
        let GroupPhase::Sealing { reports } = &mut self.phase else { return Err(No::NotSealing) };
        let is_repeated = reports.contains_key(&host);
        if is_repeated && level < ClusterLevel::SEALED_COPIES {
            return Err(No::AlreadyReported);
        }
        reports.entry(host).or_insert(held);
        let counted = self.counted_reports(level);
        let is_enough = counted.len() >= self.reports_needed();
        let is_counted = counted.iter().any(|(other, _)| *other == host);
        match (is_repeated, is_enough && is_counted) {
            (true, false) => return Err(No::AlreadyReported),
            (false, false) => return Ok(Applied::Reported(host)),
            (false, true) if self.awaits_reports(host, level) => {
                return Ok(Applied::Reported(host));
            }
            (true | false, true) => {}
        }
        Ok(self.decide(&counted))
    }

    /// The cluster is of another level: reports that did not count may be enough. Their hosts do
    /// not repeat them.
    pub(crate) fn recount(&mut self, level: ClusterLevel) {
        let counted = self.counted_reports(level);
        if !counted.is_empty() && counted.len() >= self.reports_needed() {
            self.decide(&counted);
        }
    }

    /// Ends the seal with reports that are enough.
    fn decide(&mut self, counted: &[(HostId, LogPosition)]) -> Applied {
        // Only the excluded owner is full there, and its report does not count.
        invariant!(!self.is_operator_needed(), "reports decide nothing behind a raised view");
        let Some((winner, sealed)) = self.winner(counted) else {
            invariant!("a quorum of reports is not empty");
        };
        let counts_shorter = self.switches.is_off(Switch::ShorterIsNotFull);
        self.full = counted
            .iter()
            .filter(|(_, held)| counts_shorter || handed_over::is_equal(held, &sealed))
            .map(|&(host, _)| host)
            .collect();
        if self.switches.is_off(Switch::PreferredIsComplete) {
            self.full.insert(winner);
        }
        self.begin_serving(winner, Some(sealed));
        Applied::Sealed(winner, sealed)
    }

    /// With n > 2 fewer reports are enough than there are full members. A longer copy that is
    /// reported after the decision has to be discarded. So all of them are waited for, until one
    /// that has reported repeats it.
    fn awaits_reports(&self, host: HostId, level: ClusterLevel) -> bool {
        let is_off =
            level < ClusterLevel::SEALED_COPIES || self.switches.is_off(Switch::AwaitReports);
        !is_off && self.full.contains(&host) && self.expects_reports()
    }

    /// Has a full member other than the excluded owner not reported?
    fn expects_reports(&self) -> bool {
        let GroupPhase::Sealing { reports } = &self.phase else { return false };
        self.full.iter().any(|host| *host != self.owner && !reports.contains_key(host))
    }

    /// Does this host end the wait for other reports by repeating its own one?
    pub(crate) fn decides(&self, host: HostId) -> bool {
        let GroupPhase::Sealing { reports } = &self.phase else { return false };
        let counts = |other: &&HostId| **other != self.owner && reports.contains_key(other);
        let is_enough = self.full.iter().filter(counts).count() >= self.reports_needed();
        is_enough && host != self.owner && self.full.contains(&host) && self.expects_reports()
    }

    /// Does a host leave the decision to others, which have not reported yet? To the one that an
    /// operator prefers, because a seal may need fewer reports than there are. And while fewer than
    /// n members are full, to those that are: they may hold more.
    pub(crate) fn yields(&self, host: HostId) -> bool {
        let GroupPhase::Sealing { reports } = &self.phase else { return false };
        let is_awaited = |other: HostId| other != host && !reports.contains_key(&other);
        let is_not_full = self.is_unsettled() && !self.full.contains(&host);
        self.preferred.is_some_and(is_awaited) || is_not_full && self.expects_reports()
    }

    /// The reports that count, of members other than the excluded owner, in the order of the group.
    fn counted_reports(&self, level: ClusterLevel) -> Vec<(HostId, LogPosition)> {
        let GroupPhase::Sealing { reports } = &self.phase else { return Vec::new() };
        let is_off = |switch| self.switches.is_off(switch);
        let asks_all = level >= ClusterLevel::SEALED_COPIES
            && !is_off(Switch::SealedCopies)
            && !self.is_operator_needed()
            && (self.is_unsettled() || is_off(Switch::Unsettled));
        let counts = |(host, held): &(HostId, LogPosition)| {
            let is_sealed = self.has_sealed(held) || is_off(Switch::SealedOnly);
            *host != self.owner && (self.full.contains(host) || asks_all && is_sealed)
        };
        let reported = self.group.iter().filter_map(|host| Some((*host, *reports.get(host)?)));
        reported.filter(counts).collect()
    }

    /// Does a complete copy hold what was sealed, and nothing but what the present log has behind
    /// that?
    fn has_sealed(&self, held: &LogPosition) -> bool {
        let is_at_seal = self.seal.is_some_and(|seal| handed_over::is_equal(held, &seal));
        is_at_seal || held.origin == self.origin
    }
}
