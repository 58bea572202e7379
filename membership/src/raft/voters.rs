//! Which hosts vote: changed by the leader, step by step.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use nearstate_model::{Error, Result};
use openraft::{BasicNode, ChangeMembers, Membership};

use crate::engine_thread::unavailable;
use crate::limits::{REMOVAL_LEARNED_MAX, VOTE_CHANGE_MAX};

use super::config::MembershipConfig;
use super::message::{MemberReply, MemberRequest};
use super::network::{MemberClient, unexpected};
use super::types::Raft;

/// Changes the vote of a host here if this host leads, or at the leader: one hop. A host without a
/// vote that knows no leader asks each voter.
pub(crate) async fn change_vote(
    config: &Arc<MembershipConfig>,
    raft: &Raft,
    (host, votes): (u64, bool),
    max: Duration,
) -> Result<()> {
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
            change_vote_here(config, raft, (host, votes)).await
        }
        Some(leader) if leader != config.host => {
            ask_to_change(config, leader, (host, votes), max).await
        }
        Some(_) | None => {
            let mut last = "start the nodes of a majority of the voters".to_owned();
            for asked in voting.into_iter().filter(|asked| !is_voter && *asked != config.host) {
                match ask_to_change(config, asked, (host, votes), max).await {
                    Ok(()) => return Ok(()),
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
    (host, votes): (u64, bool),
    max: Duration,
) -> Result<()> {
    let mut client = MemberClient::new(Arc::clone(config), asked);
    match client.call(&MemberRequest::ChangeVote { host, votes }, max).await {
        Ok(MemberReply::VoteChanged) => Ok(()),
        Ok(reply) => Err(unavailable(unexpected(&reply))),
        Err(error) => Err(unavailable(format!("host {asked}: {error}"))),
    }
}

/// Changes the vote of a host at the leader.
pub(crate) async fn change_vote_here(
    config: &MembershipConfig,
    raft: &Raft,
    (host, votes): (u64, bool),
) -> Result<()> {
    let change = async {
        if raft.metrics().borrow().current_leader != Some(config.host) {
            return Err(unavailable(format!("host {} does not lead any more", config.host)));
        }
        if votes { add(config, raft, host).await } else { remove(raft, host).await }
    };
    let done = tokio::time::timeout(VOTE_CHANGE_MAX, change).await;
    done.unwrap_or_else(|_| Err(unavailable("no majority in time")))
}

fn voters(raft: &Raft) -> BTreeSet<u64> {
    raft.metrics().borrow().membership_config.membership().voter_ids().collect()
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

/// The host learns decisions without a vote until it has its own removal, if it lives.
async fn remove(raft: &Raft, host: u64) -> Result<()> {
    let present = voters(raft);
    let hosts = BTreeSet::from([host]);
    if present == hosts {
        let detail = format!("host {host} is the last one that votes");
        return Err(Error::BadArgument { detail });
    }
    if present.contains(&host) {
        let change = ChangeMembers::RemoveVoters(hosts.clone());
        let removal = raft.change_membership(change, true).await.map_err(unavailable)?.log_id;
        let has_learned = |metrics: &openraft::RaftMetrics<u64, BasicNode>| {
            let replication: Option<&BTreeMap<_, _>> = metrics.replication.as_ref();
            // A leader that is removed leads no more, and has learned it.
            replication.is_none_or(|all| all.get(&host).copied().flatten() >= Some(removal))
        };
        // A host that is lost learns nothing.
        let _ = raft.wait(Some(REMOVAL_LEARNED_MAX)).metrics(has_learned, "removed").await;
    }
    let nodes = raft.metrics().borrow().membership_config.membership().get_node(&host).is_some();
    let leads = raft.metrics().borrow().replication.is_some();
    if nodes && leads {
        let change = ChangeMembers::RemoveNodes(hosts);
        raft.change_membership(change, false).await.map_err(unavailable)?;
    }
    Ok(())
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
}
