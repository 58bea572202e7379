//! Directories that are restored from a copy, lost while their host runs, or cannot be written.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use nearstate_node::EngineEvent;

use crate::fixture::{Cluster, until};

/// Replaces a directory by a copy of another one, in one step: a running host never sees a part of
/// it. Files that a host has renamed since they were listed are left out: those are temporary.
fn copy(from: &Path, to: &Path) {
    let new = to.with_extension("copied");
    fs::create_dir(&new).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let copied = fs::copy(entry.path(), new.join(entry.file_name()));
        let is_gone = |error: &std::io::Error| error.kind() == ErrorKind::NotFound;
        assert!(copied.as_ref().map_or_else(is_gone, |_| true), "{entry:?}: {copied:?}");
    }
    remove(to);
    fs::rename(&new, to).unwrap();
}

/// Removes a directory and what a running host writes into it until it is gone.
fn remove(directory: &Path) {
    until("the directory is removed", || {
        // It fails if a file is created or renamed between the list of files and the last removal.
        let _ = fs::remove_dir_all(directory);
        !directory.exists()
    });
}

/// The reasons of the failures that were told.
fn failures(others: &[EngineEvent]) -> Vec<&str> {
    others.iter().filter_map(failure).collect()
}

fn failure(event: &EngineEvent) -> Option<&str> {
    match event {
        EngineEvent::Failed { reason } => Some(reason),
        EngineEvent::Applied { .. } | EngineEvent::Restored { .. } | EngineEvent::Recovered => None,
    }
}

#[test]
fn a_leader_whose_directory_was_restored_gives_no_place_in_the_order_to_a_second_command() {
    let mut cluster = Cluster::start(3);
    cluster.propose(2, "first");
    let leader = cluster.leader();
    cluster.hosts.clear();
    let backup = cluster.place.path().join("backup");
    copy(&cluster.directory(leader), &backup);
    (1..=3).for_each(|id| cluster.run(id));
    for number in 0..5 {
        cluster.propose(leader, &format!("since the copy {number}"));
    }
    cluster.hosts.values().for_each(|host| drop(host.until_line("since the copy 4")));
    cluster.hosts.clear();
    copy(&backup, &cluster.directory(leader));
    cluster.run(leader);
    (1..=3).filter(|id| *id != leader).for_each(|id| cluster.run(id));
    cluster.propose(leader, "last");
    let texts: Vec<_> = cluster.hosts.values().map(|host| host.until_line("last")).collect();
    for text in &texts {
        assert!(text.contains("since the copy 4"), "a decided command is lost: {text}");
        assert_eq!(text, &texts[0]);
    }
}

/// So the owner of a partition that led the membership does not wait for an election.
#[test]
fn a_host_that_starts_knows_what_it_knew_without_the_others() {
    let mut cluster = Cluster::start(3);
    let index = cluster.propose(1, "decided");
    let hint = cluster.directory(1).join("committed");
    let text = format!("\"index\":{index}}}");
    until("the hint is written", || {
        fs::read(&hint).is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains(&text))
    });
    cluster.hosts.clear();
    cluster.run(1);
    cluster.hosts[&1].until_line("decided");
    // One that names what the log does not have, or that is no record, counts for nothing.
    cluster.hosts.clear();
    fs::write(&hint, "no record").unwrap();
    (1..=3).for_each(|id| cluster.run(id));
    cluster.hosts[&1].until_line("decided");
}

#[test]
fn a_directory_that_is_lost_while_its_host_runs_is_not_begun_anew() {
    let mut cluster = Cluster::start(3);
    cluster.propose(1, "first");
    cluster.hosts[&3].until_line("first");
    let (directory, backup) = (cluster.directory(3), cluster.place.path().join("backup"));
    copy(&directory, &backup);
    cluster.propose(1, "second");
    cluster.hosts[&3].until_line("second");
    remove(&directory);
    cluster.propose(1, "third");
    let failure = || cluster.hosts[&3].engine.status().failure.unwrap_or_default();
    until("it has failed for good", || failure().contains("host-3: it was removed; stop this"));
    assert!(!directory.exists(), "it was created again");
    copy(&backup, &directory);
    let lacks = "it lacks what this node has stored in it";
    until("an older copy does not help", || failure().contains(lacks));
    cluster.propose(1, "fourth");
    let (text, others) = cluster.hosts[&3].told();
    assert!(!text.contains("third") && !others.contains(&EngineEvent::Recovered), "{others:?}");
    // As documented.
    cluster.hosts.remove(&3);
    fs::remove_dir_all(&directory).unwrap();
    cluster.vote(1, 3, false);
    cluster.run(3);
    cluster.vote(1, 3, true);
    cluster.hosts[&3].until_line("fourth");
}

#[test]
fn a_voter_that_starts_with_an_empty_directory_takes_no_part_until_it_is_added_again() {
    let mut cluster = Cluster::start(3);
    cluster.propose(1, "first");
    let leader = cluster.leader();
    let (emptied, other) = (leader % 3 + 1, (leader + 1) % 3 + 1);
    cluster.hosts[&emptied].until_line("first");
    cluster.hosts.remove(&emptied);
    fs::remove_dir_all(cluster.directory(emptied)).unwrap();
    cluster.run(emptied);
    let lost = |_: &str, others: &[EngineEvent]| {
        failures(others).iter().any(|reason| {
            reason.contains("the directory of a voter is lost") && reason.contains("add the host")
        })
    };
    cluster.hosts[&emptied].until(lost);
    assert!(!cluster.directory(emptied).join("vote").exists(), "it has accepted a vote");
    // The leader has no panic, and the two others go on.
    cluster.propose(leader, "second");
    cluster.propose(other, "third");
    for host in [leader, other] {
        assert!(cluster.hosts[&host].told().1.is_empty(), "{:?}", cluster.hosts[&host].told().1);
    }
    assert!(!cluster.hosts[&emptied].told().0.contains("second"));
    // As documented.
    cluster.hosts.remove(&emptied);
    cluster.vote(leader, emptied, false);
    fs::remove_dir_all(cluster.directory(emptied)).unwrap();
    cluster.run(emptied);
    cluster.vote(leader, emptied, true);
    cluster.until_voters(emptied, &[1, 2, 3]);
    cluster.hosts[&emptied].until_line("third");
}

#[test]
fn a_snapshot_that_cannot_be_written_disables_no_voter() {
    let mut cluster = Cluster::start(3);
    cluster.propose(1, "first");
    cluster.hosts.remove(&3);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let cluster = &cluster;
            scope.spawn(move || {
                for number in 0..90 {
                    cluster.propose(1, &format!("{thread} {number}"));
                }
            });
        }
    });
    let obstacle = cluster.directory(3).join("snapshot.new");
    fs::create_dir(&obstacle).unwrap();
    cluster.run(3);
    let failed = |_: &str, others: &[EngineEvent]| {
        failures(others).iter().any(|reason| reason.contains("snapshot"))
    };
    cluster.hosts[&3].until(failed);
    // The process ends before the obstacle does.
    cluster.hosts.remove(&3);
    cluster.run(3);
    cluster.hosts[&3].until(failed);
    fs::remove_dir(&obstacle).unwrap();
    let expected = cluster.hosts[&1].until_lines(721);
    assert!(cluster.hosts[&3].until_lines(721) == expected, "it has another state");
    cluster.hosts[&3].until(|_, others| others.contains(&EngineEvent::Recovered));
}
