//! Commands have one order on all hosts, over losses and returns of hosts.

use std::collections::BTreeSet;
use std::fs;

use crate::fixture::{Cluster, LONG};

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
    assert_ne!(cluster.leader(), leader);
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
    let waited = cluster.hosts[&1]
        .engine
        .propose_and_wait(b"alone".to_vec(), std::time::Duration::from_millis(400));
    assert!(waited.is_err());
    assert!(!cluster.hosts[&1].told().0.contains("alone"));
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

#[test]
fn voters_are_added_and_removed() {
    let mut cluster = Cluster::new(4);
    for id in 1..=4 {
        cluster.run(id);
    }
    cluster.hosts[&1].engine.initialize(&BTreeSet::from([1, 2, 3])).unwrap();
    cluster.propose(1, "first");
    let leader = cluster.leader();
    let engine = &cluster.hosts[&leader].engine;
    engine.change_voters(&BTreeSet::from([1, 2, 3, 4]), LONG).unwrap();
    assert_eq!(engine.status().voters, BTreeSet::from([1, 2, 3, 4]));
    cluster.hosts[&4].until(|text, _| text.contains("first\n"));
    let gone = if leader == 2 { 3 } else { 2 };
    let rest: BTreeSet<u64> = (1..=4).filter(|id| *id != gone).collect();
    engine.change_voters(&rest, LONG).unwrap();
    assert!(engine.change_voters(&BTreeSet::from([9]), LONG).is_err());
    cluster.hosts.remove(&gone);
    cluster.propose(4, "second");
}

#[test]
fn a_cluster_is_initialized_once() {
    let cluster = Cluster::start(3);
    cluster.propose(2, "first");
    let again = cluster.hosts[&2].engine.initialize(&BTreeSet::from([1, 2, 3]));
    assert!(again.unwrap_err().to_string().contains("cannot be initialized"));
}
