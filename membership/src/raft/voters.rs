//! Which hosts vote: changed by the leader, step by step.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use nearstate_model::{Error, Result};
use nearstate_node::VoteChange;
use openraft::{BasicNode, ChangeMembers, LogId, Membership};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout_at};

use crate::engine_thread::unavailable;
use crate::limits::{REMOVAL_LEARNED_MAX, VOTE_CHANGE_MAX};

use super::config::MembershipConfig;
use super::message::{MemberReply, MemberRequest};
use super::network::{MemberClient, unexpected};
use super::types::Raft;

/// What a change of a vote has led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum VoteOutcome {
    Changed,
    /// Nothing was changed: these hosts vote, not those that were looked at.
    OtherVoters(BTreeSet<u64>),
}

/// An openraft, and what is held while it changes a vote.
type OwnRaft<'a> = (&'a Raft, &'a Mutex<()>);

/// Changes the vote of a host here if this host leads, or at the leader: one hop. A host without a
/// vote that knows no leader asks each voter.
pub(crate) async fn change_vote(
    config: &Arc<MembershipConfig>,
    own: OwnRaft<'_>,
    change: &VoteChange,
    max: Duration,
) -> Result<()> {
    match change_at_leader(config, own, change, max).await? {
        VoteOutcome::Changed => Ok(()),
        VoteOutcome::OtherVoters(voters) => {
            let names = voters.iter().map(|id| match config.members.get(id) {
                Some(member) => member.name.clone(),
                None => format!("host {id}"),
            });
            let names: Vec<String> = names.collect();
            let detail = format!(
                "the voters have changed since they were looked at, or are being changed: {} vote \
                 now. Nothing was changed. Repeat the command, which looks again",
                names.join(", ")
            );
            Err(Error::BadArgument { detail })
        }
    }
}

async fn change_at_leader(
    config: &Arc<MembershipConfig>,
    own: OwnRaft<'_>,
    change: &VoteChange,
    max: Duration,
) -> Result<VoteOutcome> {
    let (raft, _) = own;
    // An election may be going on.
    let known_max = (config.election * 4).min(max / 2);
    let knows = |metrics: &openraft::RaftMetrics<u64, BasicNode>| metrics.current_leader.is_some();
    let waited = raft.wait(Some(known_max)).metrics(knows, "a leader").await;
    let leader = waited.ok().and_then(|metrics| metrics.current_leader);
    let voting = voters(raft);
    // A leader that was removed leads no more, and no other one tells it of itself.
    let is_voter = voting.contains(&config.host);
    match leader {
        Some(leader) if leader == config.host && is_voter => {
            change_vote_here(config, own, change).await
        }
        Some(leader) if leader != config.host => ask_to_change(config, leader, change, max).await,
        Some(_) | None => {
            let mut last = "start the nodes of a majority of the voters".to_owned();
            for asked in voting.into_iter().filter(|asked| !is_voter && *asked != config.host) {
                match ask_to_change(config, asked, change, max).await {
                    Ok(outcome) => return Ok(outcome),
                    Err(Error::Backend { detail }) => last = detail,
                    Err(error) => return Err(error),
                }
            }
            Err(unavailable(format!("no host leads: {last}")))
        }
    }
}

/// Asks another host, which changes the vote if it leads.
async fn ask_to_change(
    config: &Arc<MembershipConfig>,
    asked: u64,
    change: &VoteChange,
    max: Duration,
) -> Result<VoteOutcome> {
    let mut client = MemberClient::new(Arc::clone(config), asked);
    let VoteChange { host, votes, ref checked } = *change;
    let request = MemberRequest::ChangeVote { host, votes, checked: checked.clone() };
    match client.call(&request, max).await {
        Ok(MemberReply::VoteChanged) => Ok(VoteOutcome::Changed),
        Ok(MemberReply::OtherVoters(voters)) => Ok(VoteOutcome::OtherVoters(voters)),
        Ok(reply) => Err(unavailable(unexpected(&reply))),
        Err(error) => Err(unavailable(format!("host {asked}: {error}"))),
    }
}

/// Changes the vote of a host at the leader, one change after the other.
///
/// A change that is decided is reported as done, whatever becomes of what follows it.
pub(crate) async fn change_vote_here(
    config: &MembershipConfig,
    (raft, vote_changes): OwnRaft<'_>,
    change: &VoteChange,
) -> Result<VoteOutcome> {
    let until = Instant::now() + VOTE_CHANGE_MAX;
    let late = |_| unavailable("no majority in time");
    let claim = timeout_at(until, vote_changes.lock()).await;
    let _claim =
        claim.map_err(|_| unavailable("another change of a vote has not ended in time"))?;
    if raft.metrics().borrow().current_leader != Some(config.host) {
        return Err(unavailable(format!("host {} does not lead any more", config.host)));
    }
    let present = raft.metrics().borrow().membership_config.membership().clone();
    if let Some(voters) = other_voters(&present, change) {
        return Ok(VoteOutcome::OtherVoters(voters));
    }
    if change.votes {
        timeout_at(until, add(config, raft, change.host)).await.map_err(late)??;
    } else {
        let removal = timeout_at(until, remove(raft, change.host)).await.map_err(late)??;
        // Its vote is taken. Without the rest it goes on to learn, and the next request does it.
        let again = config.heartbeat();
        let _ = timeout_at(until, forget(raft, (change.host, removal), again)).await;
    }
    Ok(VoteOutcome::Changed)
}

fn voters(raft: &Raft) -> BTreeSet<u64> {
    raft.metrics().borrow().membership_config.membership().voter_ids().collect()
}

/// The voters, if they are not those with which the change was found to be harmless. While they are
/// changed, those count that vote afterwards: a change begins with them.
fn other_voters(
    present: &Membership<u64, BasicNode>,
    change: &VoteChange,
) -> Option<BTreeSet<u64>> {
    let checked = change.checked.as_ref()?;
    let last = present.get_joint_config().last()?;
    // A repetition of what is decided, or on its way, changes nothing of them.
    let is_repeated = last.contains(&change.host) == change.votes;
    (!is_repeated && last != checked).then(|| last.clone())
}

/// Does the host vote, and is no change on its way, which may be its removal?
fn is_stable_voter(membership: &Membership<u64, BasicNode>, host: u64) -> bool {
    let is_joint = membership.get_joint_config().len() > 1;
    !is_joint && membership.voter_ids().any(|id| id == host)
}

/// The host learns what was decided before it votes. Other hosts are not waited for.
async fn add(config: &MembershipConfig, raft: &Raft, host: u64) -> Result<()> {
    let Some(member) = config.members.get(&host) else {
        let detail = format!("host {host} is not in the cluster file");
        return Err(Error::BadArgument { detail });
    };
    if is_stable_voter(raft.metrics().borrow().membership_config.membership(), host) {
        return Ok(());
    }
    raft.add_learner(host, BasicNode::new(member.address), true).await.map_err(unavailable)?;
    let change = ChangeMembers::AddVoterIds(BTreeSet::from([host]));
    raft.change_membership(change, true).await.map(drop).map_err(unavailable)
}

/// Takes the vote of a host. Returns the place of the decision, unless it has none already.
async fn remove(raft: &Raft, host: u64) -> Result<Option<LogId<u64>>> {
    let present = voters(raft);
    let hosts = BTreeSet::from([host]);
    if present == hosts {
        let detail = format!("host {host} is the last one that votes");
        return Err(Error::BadArgument { detail });
    }
    if !present.contains(&host) {
        return Ok(None);
    }
    let change = ChangeMembers::RemoveVoters(hosts);
    Ok(Some(raft.change_membership(change, true).await.map_err(unavailable)?.log_id))
}

/// The host learns decisions without a vote until it has its own removal, if it lives. Then it is
/// dropped, again after a time if that fails.
async fn forget(raft: &Raft, (host, removal): (u64, Option<LogId<u64>>), again: Duration) {
    let has_learned = |metrics: &openraft::RaftMetrics<u64, BasicNode>| {
        let replication: Option<&BTreeMap<_, _>> = metrics.replication.as_ref();
        // A leader that is removed leads no more, and has learned it.
        replication.is_none_or(|all| all.get(&host).copied().flatten() >= removal)
    };
    if removal.is_some() {
        // A host that is lost learns nothing.
        let learned = raft.wait(Some(REMOVAL_LEARNED_MAX));
        let _ = learned.metrics(has_learned, "removed").await;
    }
    let is_left = || {
        let metrics = raft.metrics().borrow().clone();
        let is_known = metrics.membership_config.membership().get_node(&host).is_some();
        is_known && metrics.replication.is_some()
    };
    while is_left() {
        let change = ChangeMembers::RemoveNodes(BTreeSet::from([host]));
        if raft.change_membership(change, false).await.is_ok() {
            break;
        }
        sleep(again).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_votes_only_when_no_change_is_on_its_way() {
        let voting = |configs: &[&[u64]]| {
            let configs = configs.iter().map(|hosts| hosts.iter().copied().collect()).collect();
            is_stable_voter(&Membership::new(configs, ()), 3)
        };
        assert!(voting(&[&[1, 2, 3]]));
        assert!(!voting(&[&[1, 2]]));
        assert!(!voting(&[&[1, 2], &[1, 2, 3]]), "its addition is not decided yet");
        assert!(!voting(&[&[1, 2, 3], &[1, 2]]), "it is being removed");
    }

    #[test]
    fn a_change_is_made_only_with_the_voters_that_were_looked_at() {
        let others = |configs: &[&[u64]], host, votes, checked: Option<&[u64]>| {
            let configs = configs.iter().map(|hosts| hosts.iter().copied().collect()).collect();
            let checked = checked.map(|hosts| hosts.iter().copied().collect());
            let change = VoteChange { host, votes, checked };
            other_voters(&Membership::new(configs, ()), &change)
        };
        let four: Option<&[u64]> = Some(&[1, 2, 3, 4]);
        assert_eq!(others(&[&[1, 2, 3, 4]], 3, false, four), None);
        assert_eq!(others(&[&[1, 2, 3]], 3, false, None), None, "the operator accepts it");
        let three = Some(BTreeSet::from([1, 2, 3]));
        assert_eq!(others(&[&[1, 2, 3]], 3, false, four), three);
        let joint: &[&[u64]] = &[&[1, 2, 3, 4], &[1, 2, 3]];
        assert_eq!(others(joint, 3, false, four), three, "host 4 is being removed");
        assert_eq!(others(joint, 4, false, four), None, "the same removal again");
        assert_eq!(others(&[&[1, 2, 3]], 4, false, four), None, "it is done already");
    }
}
