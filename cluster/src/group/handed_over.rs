//! An owner that is drained in favour of a host that the operator has named.
//!
//! The name breaks a tie and nothing else: of the copies that decide a seal, the named host's is
//! taken if none of them is longer. Otherwise the rules choose as without it.

use super::{Applied, CommandRefusal as No, GroupPhase, GroupState};
use crate::id::{HostId, ViewNumber};
use crate::position::LogPosition;
use crate::switches::Switch;

impl GroupState {
    /// The host that an operator wants as the next owner, while there is none.
    pub fn preferred(&self) -> Option<HostId> {
        self.preferred
    }

    /// Could this host take the partition over from a living owner: does its copy count, and stay?
    pub fn can_take_over(&self, host: HostId) -> bool {
        host != self.owner && self.full.contains(&host) && !self.leaving.contains(&host)
    }

    pub(super) fn hand_over(&mut self, view: ViewNumber, host: HostId) -> Result<Applied, No> {
        self.require_view(view)?;
        self.require_serving()?;
        if !self.group.contains(&host) {
            return Err(No::NotInGroup);
        }
        if !self.is_completeness_off() {
            self.require_full_other(host)?;
            if self.leaving.contains(&host) {
                return Err(No::AlreadyLeaving);
            }
        }
        let applied = self.begin_sealing();
        self.preferred = Some(host);
        Ok(applied)
    }

    /// The host that owns the partition after these reports, which are a quorum, and where the log
    /// ends: the longest copy, and of equal ones the preferred one or the first one.
    pub(super) fn winner(
        &self,
        counted: &[(HostId, LogPosition)],
    ) -> Option<(HostId, LogPosition)> {
        let longer = |best, next: (HostId, LogPosition)| {
            let (_, longest): (HostId, LogPosition) = best;
            if next.1.compare(&longest).is_gt() { next } else { best }
        };
        let longest = counted.iter().copied().reduce(longer)?;
        let preferred = self.preferred.and_then(|preferred| {
            let GroupPhase::Sealing { reports } = &self.phase else { return None };
            let held = *reports.get(&preferred)?;
            let is_counted = counted.iter().any(|(host, _)| *host == preferred);
            let is_taken = is_counted && is_equal(&held, &longest.1) || self.is_completeness_off();
            is_taken.then_some((preferred, held))
        });
        Some(preferred.unwrap_or(longest))
    }

    fn is_completeness_off(&self) -> bool {
        self.switches.is_off(Switch::PreferredIsComplete)
    }
}

/// Are two copies the same?
pub(super) fn is_equal(held: &LogPosition, other: &LogPosition) -> bool {
    held.compare(other).is_eq() && !held.is_fork_of(other)
}
