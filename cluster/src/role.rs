//! Which part a host has in a partition. It follows from the applied state and the region alone.

use crate::effect::FollowStart;
use crate::group::{AcceptedLoss, GroupPhase, GroupState};
use crate::id::{HostId, ViewNumber};
use crate::position::LogPosition;
use crate::region::{CopyState, RegionState};
use crate::switches::{Switch, Switches};

/// The part of a host in a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MemberRole {
    /// The applied state is older than what this host has already acted on, or does not concern it.
    Waiting,
    /// The owner is excluded: this host freezes its copy and reports.
    Sealing,
    /// The region is new, so this host does not know what it has acted on before. It waits until
    /// the applied state shows a command of this very process: then the state is no older than
    /// that.
    Registering,
    /// This host is the owner, and its region is not promoted yet.
    Promoting,
    /// This host is the owner.
    Serving,
    /// This host is the owner, and its region is lost, or an older one than that which a member
    /// has followed.
    Lost,
    /// Another host is the owner, and this copy is a part of what it has.
    Following(FollowStart),
    /// Another host is the owner, and this copy may hold what the partition does not.
    Outdated,
}

/// The role of host `me`. The rows are in this order, the first that holds counts:
///
/// | state | copy | role |
/// |---|---|---|
/// | not in the group; older than the record | any | `Waiting` |
/// | process not registered | of a region without a record | `Registering` |
/// | sealing | any | `Sealing` |
/// | `me` owns | promoted in `origin` | `Serving` |
/// | `me` owns | at the seal; owner of the sealed log | `Promoting` |
/// | `me` owns after an accepted loss | owner of a log without an origin | `Promoting` |
/// | `me` owns, alone full (*), registered | not complete, ordinary, demoting | `Promoting` |
/// | `me` owns, alone full (*) | not complete, ordinary, demoting | `Registering` |
/// | `me` owns | other | `Lost` |
/// | another owns | empty, joining | `Following(Discard)` |
/// | another owns | extending | `Following(Continue)` |
/// | another owns | follower of `origin`, or not behind the seal | `Following(Continue)` |
/// | another owns | other | `Outdated` |
///
/// (*) no seal, not degraded
pub(crate) fn role_of(
    (me, process): (HostId, u64),
    group: &GroupState,
    facts: &RegionState,
    switches: Switches,
) -> MemberRole {
    let is_older = group.view() < facts.record.view && !switches.is_off(Switch::StoredView)
        || group.revision() < facts.record.revision && !switches.is_off(Switch::StoredRevision);
    if is_older || !group.group().contains(&me) {
        return MemberRole::Waiting;
    }
    let is_registered = group.registered().get(&me) == Some(&process);
    let is_known = facts.record.view > ViewNumber::NONE || switches.is_off(Switch::RegisterFirst);
    if !is_known && !is_registered {
        return MemberRole::Registering;
    }
    match group.phase() {
        GroupPhase::Sealing { .. } => MemberRole::Sealing,
        GroupPhase::Serving { .. } if group.owner() == Some(me) => {
            owner_role(is_registered, group, facts.copy)
        }
        GroupPhase::Serving { .. } => follower_role(group, facts.copy, switches),
    }
}

fn owner_role(is_registered: bool, group: &GroupState, copy: CopyState) -> MemberRole {
    // Nothing was ever replicated. A degraded owner was alone full and has released output.
    let is_first = group.seal().is_none() && group.full().len() == 1 && group.degraded().is_none();
    match copy {
        CopyState::Owner { origin } if origin == group.origin() => MemberRole::Serving,
        CopyState::Owner { origin: ViewNumber::NONE }
        | CopyState::Empty
        | CopyState::Joining
        | CopyState::Extending
        | CopyState::Demoting
            if is_first =>
        {
            if is_registered {
                MemberRole::Promoting
            } else {
                MemberRole::Registering
            }
        }
        // Only `AcceptLoss` gives a partition to an old owner. Its own log may go on behind the
        // seal.
        CopyState::Owner { origin } if group.seal().is_some_and(|seal| origin == seal.origin) => {
            MemberRole::Promoting
        }
        // The same, and it was killed before its log was that of this view.
        CopyState::Owner { origin: ViewNumber::NONE } if is_accepted(group) => {
            MemberRole::Promoting
        }
        CopyState::Follower(held) if group.seal().is_some_and(|seal| is_at(&held, &seal)) => {
            MemberRole::Promoting
        }
        CopyState::Empty
        | CopyState::Joining
        | CopyState::Extending
        | CopyState::Demoting
        | CopyState::Follower(_)
        | CopyState::Owner { .. } => MemberRole::Lost,
    }
}

/// Did an operator give the partition to its owner, with what that one had?
fn is_accepted(group: &GroupState) -> bool {
    let is_present = |loss: AcceptedLoss| loss.view == group.origin() && loss.sealed.is_some();
    group.loss().is_some_and(is_present)
}

/// Is this region that of the owner whose log was sealed last, and ends its log there? A log
/// without an entry (check value 0) does not become a copy.
pub(crate) fn is_sealed_log(group: &GroupState, facts: RegionState, held: &LogPosition) -> bool {
    let is_owner = matches!(facts.copy, CopyState::Owner { .. });
    is_owner && held.check != 0 && group.seal() == Some(*held)
}

pub(crate) fn is_at(held: &LogPosition, seal: &LogPosition) -> bool {
    held.compare(seal).is_eq() && !held.is_fork_of(seal)
}

fn follower_role(group: &GroupState, copy: CopyState, switches: Switches) -> MemberRole {
    let is_within = |held: &LogPosition| {
        group.seal().is_some_and(|seal| {
            held.origin == seal.origin && held.compare(&seal).is_le() && !held.is_fork_of(&seal)
        })
    };
    match copy {
        CopyState::Empty | CopyState::Joining => MemberRole::Following(FollowStart::Discard),
        CopyState::Follower(held)
            if held.origin == group.origin()
                || is_within(&held)
                || switches.is_off(Switch::DiscardOutdated) =>
        {
            MemberRole::Following(FollowStart::Continue)
        }
        CopyState::Extending => MemberRole::Following(FollowStart::Continue),
        CopyState::Follower(_) | CopyState::Owner { .. } | CopyState::Demoting => {
            MemberRole::Outdated
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Command;
    use crate::id::{PartitionId, Revision};
    use crate::level::ClusterLevel;
    use crate::region::MemberRecord;
    use std::fmt::Write as _;

    const PARTITION: PartitionId = PartitionId(1);

    /// Below the level from which on a copy at the seal needs no operator.
    fn apply(group: &mut GroupState, command: &Command) {
        group.apply(command, ClusterLevel::FIRST);
    }

    fn held(origin: u64, position: u64) -> LogPosition {
        let origin = ViewNumber(origin);
        LogPosition { origin, log: [1; 16], incarnation: 1, position, check: position }
    }

    /// Host 1 of three was excluded, and host 2 owns the partition from position 8 on.
    fn sealed() -> GroupState {
        let mut group = GroupState::new(PARTITION, &[HostId(1), HostId(2), HostId(3)], 2);
        for host in [HostId(2), HostId(3)] {
            let revision = group.revision();
            apply(&mut group, &Command::Full { partition: PARTITION, revision, host });
        }
        let view = ViewNumber(1);
        apply(&mut group, &Command::Exclude { partition: PARTITION, view });
        for (host, position) in [(2, 8), (3, 7)] {
            let (host, held, view) = (HostId(host), held(1, position), ViewNumber(2));
            apply(&mut group, &Command::Report { partition: PARTITION, view, host, held });
        }
        group
    }

    fn line(text: &mut String, name: &str, me: u16, group: &GroupState, view: u64) {
        let copies = [
            CopyState::Empty,
            CopyState::Joining,
            CopyState::Follower(held(1, 7)),
            CopyState::Follower(held(1, 8)),
            CopyState::Follower(held(1, 9)),
            CopyState::Follower(held(2, 3)),
            CopyState::Owner { origin: ViewNumber(0) },
            CopyState::Owner { origin: ViewNumber(1) },
            CopyState::Owner { origin: ViewNumber(2) },
            CopyState::Demoting,
            CopyState::Extending,
        ];
        let _ = write!(text, "{name}:");
        for copy in copies {
            let record =
                MemberRecord { view: ViewNumber(view), revision: Revision(0), evicting: None };
            let facts = RegionState { copy, record, ..RegionState::NEW };
            let role = role_of((HostId(me), 7), group, &facts, Switches::default());
            let _ = match role {
                MemberRole::Following(start) => write!(text, " {start:?}"),
                MemberRole::Waiting
                | MemberRole::Registering
                | MemberRole::Sealing
                | MemberRole::Promoting
                | MemberRole::Serving
                | MemberRole::Lost
                | MemberRole::Outdated => write!(text, " {role:?}"),
            };
        }
        text.push('\n');
    }

    #[test]
    fn the_table_of_roles() {
        let mut text = String::new();
        let new = GroupState::new(PARTITION, &[HostId(1), HostId(2), HostId(3)], 2);
        let group = sealed();
        let mut sealing = group.clone();
        apply(&mut sealing, &Command::Exclude { partition: PARTITION, view: ViewNumber(2) });
        let mut accepted = sealing.clone();
        let (view, host, held) = (ViewNumber(3), HostId(3), held(1, 8));
        apply(&mut accepted, &Command::Report { partition: PARTITION, view, host, held });
        apply(&mut accepted, &Command::AcceptLoss { partition: PARTITION, view, host });
        let mut anew = sealing.clone();
        apply(&mut anew, &Command::ForceNew { partition: PARTITION, view, host });
        apply(&mut anew, &Command::Register { partition: PARTITION, host, process: 7 });
        let mut registered = new.clone();
        apply(
            &mut registered,
            &Command::Register { partition: PARTITION, host: HostId(1), process: 7 },
        );
        line(&mut text, "new, owner", 1, &new, 1);
        line(&mut text, "registered, owner", 1, &registered, 0);
        line(&mut text, "sealing", 3, &sealing, 2);
        line(&mut text, "sealed, owner", 2, &group, 2);
        line(&mut text, "accepted loss, owner", 3, &accepted, 2);
        line(&mut text, "begun anew, owner", 3, &anew, 2);
        line(&mut text, "sealed, other", 3, &group, 2);
        line(&mut text, "no record", 3, &group, 0);
        line(&mut text, "newer record", 3, &group, 3);
        line(&mut text, "not in the group", 9, &group, 2);
        let columns = "Empty Joining F(1,7) F(1,8) F(1,9) F(2,3) O(0) O(1) O(2) D E";
        assert_eq!(
            format!("{columns}\n{text}"),
            "\
Empty Joining F(1,7) F(1,8) F(1,9) F(2,3) O(0) O(1) O(2) D E
new, owner: Registering Registering Lost Lost Lost Lost Registering Serving Lost Registering \
Registering
registered, owner: Promoting Promoting Lost Lost Lost Lost Promoting Serving Lost Promoting \
Promoting
sealing: Sealing Sealing Sealing Sealing Sealing Sealing Sealing Sealing Sealing Sealing Sealing
sealed, owner: Lost Lost Lost Promoting Lost Lost Lost Promoting Serving Lost Lost
accepted loss, owner: Lost Lost Lost Promoting Lost Lost Promoting Promoting Lost Lost Lost
begun anew, owner: Promoting Promoting Lost Lost Lost Lost Promoting Lost Lost Promoting \
Promoting
sealed, other: Discard Discard Continue Continue Outdated Continue Outdated Outdated Outdated \
Outdated Continue
no record: Registering Registering Registering Registering Registering Registering \
Registering Registering Registering Registering Registering
newer record: Waiting Waiting Waiting Waiting Waiting Waiting Waiting Waiting Waiting Waiting \
Waiting
not in the group: Waiting Waiting Waiting Waiting Waiting Waiting Waiting Waiting Waiting \
Waiting Waiting
"
        );
    }
}
