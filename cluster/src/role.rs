//! Which part a host has in a partition. It follows from the applied state and the region alone.

use crate::effect::FollowStart;
use crate::group::{GroupPhase, GroupState};
use crate::id::{HostId, ViewNumber};
use crate::position::LogPosition;
use crate::region::{CopyState, RegionFacts};
use crate::switches::{Switch, Switches};

/// The part of a host in a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// The applied state is older than what this host has already acted on, or does not concern it.
    Waiting,
    /// The owner is excluded: this host freezes its copy and reports.
    Sealing,
    /// The region is new, so this host does not know what it has acted on before. It waits until the
    /// applied state shows a command of this very process: then the state is no older than that.
    Registering,
    /// This host is the owner, and its region is not promoted yet.
    Promoting,
    /// This host is the owner.
    Serving,
    /// This host is the owner, and its region is lost.
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
/// | `me` owns, no seal, alone full, process registered | not complete, or ordinary | `Promoting` |
/// | `me` owns, no seal, alone full | not complete, or ordinary | `Registering` |
/// | `me` owns | other | `Lost` |
/// | another owns | empty, joining | `Following(Discard)` |
/// | another owns | follower of `origin`, or not behind the seal | `Following(Continue)` |
/// | another owns | other | `Outdated` |
pub(crate) fn role_of(
    (me, process): (HostId, u64),
    group: &GroupState,
    facts: &RegionFacts,
    switches: Switches,
) -> Role {
    let is_older = group.view() < facts.record.view && !switches.is_off(Switch::StoredView)
        || group.revision() < facts.record.revision && !switches.is_off(Switch::StoredRevision);
    if is_older || !group.group().contains(&me) {
        return Role::Waiting;
    }
    let is_registered = group.registered().get(&me) == Some(&process);
    let is_known = facts.record.view > ViewNumber::NONE || switches.is_off(Switch::RegisterFirst);
    if !is_known && !is_registered {
        return Role::Registering;
    }
    match group.phase() {
        GroupPhase::Sealing { .. } => Role::Sealing,
        GroupPhase::Serving { .. } if group.owner() == Some(me) => {
            owner_role(is_registered, group, facts.copy)
        }
        GroupPhase::Serving { .. } => follower_role(group, facts.copy, switches),
    }
}

fn owner_role(is_registered: bool, group: &GroupState, copy: CopyState) -> Role {
    // Nothing was ever replicated.
    let is_first = group.seal().is_none() && group.full().len() == 1;
    match copy {
        CopyState::Owner { origin } if origin == group.origin() => Role::Serving,
        CopyState::Owner { origin: ViewNumber::NONE } | CopyState::Empty | CopyState::Joining
            if is_first =>
        {
            if is_registered {
                Role::Promoting
            } else {
                Role::Registering
            }
        }
        // Only `AcceptLoss` gives a partition to an old owner. Its own log may go on behind the seal.
        CopyState::Owner { origin } if group.seal().is_some_and(|seal| origin == seal.origin) => {
            Role::Promoting
        }
        CopyState::Follower(held) if group.seal().is_some_and(|seal| is_at(&held, &seal)) => {
            Role::Promoting
        }
        CopyState::Empty
        | CopyState::Joining
        | CopyState::Follower(_)
        | CopyState::Owner { .. } => Role::Lost,
    }
}

fn is_at(held: &LogPosition, seal: &LogPosition) -> bool {
    held.compare(seal).is_eq() && !held.is_fork_of(seal)
}

fn follower_role(group: &GroupState, copy: CopyState, switches: Switches) -> Role {
    let is_within = |held: &LogPosition| {
        group.seal().is_some_and(|seal| {
            held.origin == seal.origin && held.compare(&seal).is_le() && !held.is_fork_of(&seal)
        })
    };
    match copy {
        CopyState::Empty | CopyState::Joining => Role::Following(FollowStart::Discard),
        CopyState::Follower(held)
            if held.origin == group.origin()
                || is_within(&held)
                || switches.is_off(Switch::DiscardOutdated) =>
        {
            Role::Following(FollowStart::Continue)
        }
        CopyState::Follower(_) | CopyState::Owner { .. } => Role::Outdated,
    }
}
