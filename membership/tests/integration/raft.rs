//! Commands have one order on all hosts, over losses and returns of hosts.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use nearstate_model::Error;
use nearstate_node::VoteChange;

use crate::fixture::{Cluster, LONG, is_within, until};

#[test]
fn all_hosts_apply_the_commands_of_all_hosts_in_one_order() {
    let cluster = Cluster::start(3);
    std::thread::scope(|scope| {
        for id in 1..=3 {
            let cluster = &cluster;
            scope.spawn(move || {
                for number in 0..20 {
                    cluster.propose(id, &format!("{id} {number}"));
                }
            });
        }
    });
    let texts: BTreeSet<_> = cluster.hosts.values().map(|host| host.until_lines(60)).collect();
    assert_eq!(texts.len(), 1, "{texts:?}");
    let all: BTreeSet<_> = texts.iter().flat_map(|text| text.lines()).collect();
    assert_eq!(all.len(), 60, "no command is missing");
}

#[test]
fn a_command_that_is_not_waited_for_is_applied() {
    let cluster = Cluster::start(3);
    cluster.hosts[&3].engine.propose(b"one".to_vec(), LONG);
    for host in cluster.hosts.values() {
        host.until(|text, _| text.contains("one\n"));
    }
}

#[test]
fn the_loss_of_the_leader_loses_no_command_and_it_catches_up_when_it_returns() {
    let mut cluster = Cluster::start(3);
    for number in 0..10 {
        cluster.propose(2, &format!("before {number}"));
    }
    let leader = cluster.leader();
    cluster.hosts.remove(&leader);
    let other = *cluster.hosts.keys().next().unwrap();
    for number in 0..10 {
        cluster.propose(other, &format!("after {number}"));
    }
    cluster.run(leader);
    let expected = cluster.hosts[&other].until(|text, _| text.contains("after 9\n"));
    let caught_up = cluster.hosts[&leader].until(|text, _| text.contains("after 9\n"));
    for number in 0..10 {
        assert!(caught_up.contains(&format!("before {number}\n")));
    }
    assert!(expected.starts_with(&caught_up) || caught_up.starts_with(&expected));
}

#[test]
fn without_a_majority_nothing_is_decided_and_the_wait_ends() {
    let mut cluster = Cluster::start(3);
    cluster.propose(1, "first");
    cluster.hosts.remove(&2);
    cluster.hosts.remove(&3);
    let waited =
        cluster.hosts[&1].engine.propose_and_wait(b"alone".to_vec(), Duration::from_millis(400));
    assert!(waited.is_err());
    assert!(!cluster.hosts[&1].told().0.contains("alone"));
    // A leader that is alone does not step down.
    until("it knows that no host leads", || cluster.hosts[&1].engine.status().leader.is_none());
}

#[test]
fn files_stay_small_and_a_host_that_was_away_gets_a_snapshot() {
    let mut cluster = Cluster::start(3);
    cluster.propose(1, "first");
    cluster.hosts.remove(&3);
    let filler = "x".repeat(1000);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (cluster, filler) = (&cluster, &filler);
            scope.spawn(move || {
                for number in 0..160 {
                    cluster.propose(1, &format!("{thread} {number} {}", &filler[..number]));
                }
            });
        }
    });
    cluster.run(3);
    let expected = cluster.hosts[&1].until_lines(1281);
    let found = cluster.hosts[&3].until_lines(1281);
    assert!(expected == found, "the host that was away has another state");
    let bytes: u64 = fs::read_dir(cluster.directory(1))
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .sum();
    assert!(bytes < 4 << 20, "{bytes} bytes for a state of {} bytes", expected.len());
    // It also continues from its files alone.
    cluster.hosts.remove(&3);
    cluster.run(3);
    assert_eq!(cluster.hosts[&3].until_lines(1281), expected);
}

/// Removals of which a host that lives learns one, each within a time.
const REMOVALS_MAX: u32 = 10;
const LEARNED_WITHIN: Duration = Duration::from_secs(5);

/// Another host than this one.
fn follower_but(cluster: &Cluster, host: u64) -> u64 {
    *cluster.hosts.keys().find(|id| **id != host).unwrap()
}

/// A host that does not lead.
fn follower(cluster: &Cluster) -> u64 {
    let leader = cluster.leader();
    *cluster.hosts.keys().find(|id| **id != leader).unwrap()
}

#[test]
fn voters_are_added_and_removed_by_whichever_host_is_asked() {
    let mut cluster = Cluster::new(4);
    for id in 1..=4 {
        cluster.run(id);
    }
    cluster.hosts[&1].engine.initialize(&BTreeSet::from([1, 2, 3])).unwrap();
    cluster.propose(1, "first");
    let asked = if cluster.leader() == 3 { 2 } else { 3 };
    cluster.vote(asked, 4, true);
    // What votes already is not added again.
    cluster.vote(asked, 4, true);
    cluster.hosts[&4].until(|text, _| text.contains("first\n"));
    let gone = *cluster.hosts.keys().find(|id| ![asked, cluster.leader()].contains(id)).unwrap();
    cluster.vote(asked, gone, false);
    assert!(cluster.change_vote(asked, 9, true, None).is_err());
    let rest: Vec<u64> = (1..=4).filter(|id| *id != gone).collect();
    cluster.until_voters(asked, &rest);
    cluster.hosts.remove(&gone);
    cluster.propose(asked, "second");
}

#[test]
fn a_host_that_lives_learns_that_it_was_removed() {
    let cluster = Cluster::start(4);
    let first = *cluster.hosts.keys().next().unwrap();
    cluster.propose(first, "before");
    let gone = follower(&cluster);
    assert!(!cluster.hosts[&gone].engine.status().is_removed);
    // The leader tells it for a second. On a busy machine this can be too short.
    let is_removed = || cluster.hosts[&gone].engine.status().is_removed;
    let is_learned = (0..REMOVALS_MAX).any(|_| {
        cluster.vote(gone, gone, false);
        let is_learned = is_within(LEARNED_WITHIN, is_removed);
        if !is_learned {
            cluster.vote(follower_but(&cluster, gone), gone, true);
        }
        is_learned
    });
    assert!(is_learned, "it has not learned any of {REMOVALS_MAX} removals");
    // It learns nothing further, until it votes again.
    let other = follower_but(&cluster, gone);
    cluster.propose(other, "without it");
    assert!(!cluster.hosts[&gone].told().0.contains("without it"));
    cluster.vote(other, gone, true);
    cluster.hosts[&gone].until(|text, _| text.contains("without it\n"));
    until("it learns that it votes", || !is_removed());
}

#[test]
fn of_two_removals_that_were_found_harmless_with_the_same_voters_one_is_made() {
    let cluster = Cluster::start(4);
    cluster.propose(1, "first");
    let leader = cluster.leader();
    let gone: Vec<u64> = (1..=4).filter(|id| *id != leader).take(2).collect();
    let all = [1, 2, 3, 4];
    let outcomes = std::thread::scope(|scope| {
        let removals: Vec<_> = gone
            .iter()
            .map(|host| {
                let cluster = &cluster;
                scope.spawn(move || {
                    // An election may interrupt it: then it is asked again.
                    let outcome = Cell::new(None);
                    until("the removal is made or refused", || {
                        let made = cluster.change_vote(*host, *host, false, Some(&all));
                        let is_decided =
                            made.is_ok() || matches!(made, Err(Error::BadArgument { .. }));
                        outcome.set(Some(made));
                        is_decided
                    });
                    outcome.take().unwrap()
                })
            })
            .collect();
        removals.into_iter().map(|one| one.join().unwrap()).collect::<Vec<_>>()
    });
    let refused: Vec<_> = outcomes.iter().filter_map(|one| one.as_ref().err()).collect();
    assert_eq!(refused.len(), 1, "{outcomes:?}");
    let said = refused[0].to_string();
    assert!(said.contains("the voters have changed") && said.contains("host-"), "{said}");
    until("three vote", || cluster.hosts[&leader].engine.status().voters.len() == 3);
}

/// Rounds in which two votes are taken at the same time.
const ROUNDS: u32 = 3;

#[test]
fn removals_at_the_same_time_are_made_one_after_the_other_and_both_are_reported_as_done() {
    let cluster = Cluster::start(5);
    cluster.propose(1, "first");
    for round in 0..ROUNDS {
        let leader = cluster.leader();
        let gone: Vec<u64> = (1..=5).filter(|id| *id != leader).take(2).collect();
        std::thread::scope(|scope| {
            for host in &gone {
                let cluster = &cluster;
                scope.spawn(move || {
                    let made = cluster.change_vote(leader, *host, false, None);
                    // An election is no fault of the other removal.
                    let is_interrupted = cluster.leader() != leader;
                    assert!(made.is_ok() || is_interrupted, "round {round}: {made:?}");
                });
            }
        });
        for host in gone {
            cluster.vote(leader, host, true);
        }
    }
}

#[test]
fn a_lost_voter_keeps_no_host_from_being_added() {
    let mut cluster = Cluster::new(4);
    for id in 1..=4 {
        cluster.run(id);
    }
    cluster.hosts[&1].engine.initialize(&BTreeSet::from([1, 2, 3])).unwrap();
    cluster.propose(1, "first");
    let leader = cluster.leader();
    let lost = if leader == 3 { 2 } else { 3 };
    cluster.hosts.remove(&lost);
    cluster.vote(leader, 4, true);
    cluster.until_voters(leader, &[1, 2, 3, 4]);
}

#[test]
fn without_a_leader_no_vote_changes_and_the_error_says_so() {
    let mut cluster = Cluster::start(3);
    cluster.propose(1, "first");
    let left = follower(&cluster);
    cluster.hosts.retain(|id, _| *id == left);
    let engine = &cluster.hosts[&left].engine;
    let max = Duration::from_millis(400);
    // It takes the lost host for the leader for a while.
    until("it knows no leader", || {
        let change = VoteChange { host: left, votes: false, checked: None };
        let error = engine.change_vote(&change, max).unwrap_err().to_string();
        error.contains("no host leads")
    });
    assert_eq!(engine.status().voters, BTreeSet::from([1, 2, 3]));
}

#[test]
fn a_cluster_is_initialized_once() {
    let cluster = Cluster::start(3);
    cluster.propose(2, "first");
    let again = cluster.hosts[&2].engine.initialize(&BTreeSet::from([1, 2, 3]));
    assert!(again.unwrap_err().to_string().contains("the cluster exists already"));
}

#[test]
fn a_leader_that_was_removed_is_added_through_itself() {
    let cluster = Cluster::start(3);
    cluster.propose(1, "first");
    let leader = cluster.leader();
    cluster.vote(leader, leader, false);
    until("it has no vote", || cluster.hosts[&leader].engine.status().is_removed);
    cluster.vote(leader, leader, true);
    cluster.until_voters(leader, &[1, 2, 3]);
    cluster.propose(leader, "second");
}
