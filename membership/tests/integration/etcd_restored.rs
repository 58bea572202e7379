//! An etcd that has lost commands: it is wiped, restored from a backup, or its keys are changed.

use std::time::Duration;

use crate::etcd_process::{Etcd, code, hosts, propose_until, until_failed};
use crate::fixture::{Cluster, Host};

/// More commands than one read of etcd returns.
const MANY: u64 = 100;

#[test]
fn a_host_refuses_an_etcd_that_lost_its_commands() {
    let mut etcd = Etcd::start(1);
    let cluster = hosts(&etcd);
    cluster.propose(1, "one");
    cluster.propose(1, "two");
    etcd.kill(0);
    std::fs::remove_dir_all(etcd.folder.path().join("0")).unwrap();
    etcd.run(0);
    let host = &cluster.hosts[&2];
    until_failed(host, "restored from an older copy");
}

/// What is left is no state on which a host may decide: others have acted on what is lost. A
/// restarted host knows it as well, and so does one that had not learned the lost commands.
#[test]
fn no_host_decides_on_an_etcd_that_was_restored_from_a_backup() {
    let mut etcd = Etcd::start(1);
    let mut cluster = hosts(&etcd);
    cluster.propose(1, "one");
    for host in cluster.hosts.values() {
        host.until_line("one");
    }
    // Away while the lost command is decided.
    cluster.hosts.remove(&3);
    etcd.back_up();
    cluster.propose(1, "two");
    cluster.hosts[&2].until_line("two");
    // Only the file of host 2 tells.
    cluster.hosts.clear();
    etcd.restore();
    for id in [2, 3, 1] {
        let host = Host::start_etcd(cluster.config(id), etcd.settings()).unwrap();
        cluster.hosts.insert(id, host);
        until_failed(&cluster.hosts[&id], "etcd has lost decisions");
    }
    assert_eq!(etcd.count("nearstate/east/halted"), 1);
    let before = etcd.count("nearstate/east/log/");
    let late = cluster.hosts[&3].engine.propose_and_wait(b"x".to_vec(), Duration::from_secs(1));
    assert!(late.is_err());
    assert_eq!(etcd.count("nearstate/east/log/"), before);
}

/// Starts a host that has applied other commands than etcd has. It must act on none of them.
fn check_applies_nothing(cluster: &mut Cluster, (etcd, id): (&Etcd, u64), reason: &str) {
    let host = Host::start_etcd(cluster.config(id), etcd.settings()).unwrap();
    cluster.hosts.insert(id, host);
    let host = &cluster.hosts[&id];
    until_failed(host, reason);
    assert_eq!((host.told().0.as_str(), host.engine.status().applied), ("", 0));
}

/// Others have decided as many commands after the restoration as were lost, so only the command
/// that the host has noted tells. It is not among the first that the host reads.
#[test]
fn a_host_that_starts_acts_on_no_command_of_a_restored_etcd() {
    let mut etcd = Etcd::start(1);
    let mut cluster = hosts(&etcd);
    cluster.propose(1, "first");
    for id in [2, 3] {
        cluster.hosts[&id].until_line("first");
        cluster.hosts.remove(&id);
    }
    etcd.back_up();
    let last = propose_until(&cluster, 0, MANY);
    cluster.hosts[&1].until_line(&last.to_string());
    let noted = cluster.hosts.remove(&1).unwrap().engine.status().applied;
    etcd.restore();
    for id in [2, 3] {
        let host = Host::start_etcd(cluster.config(id), etcd.settings()).unwrap();
        cluster.hosts.insert(id, host);
    }
    let mut other = 0;
    while cluster.propose(2, &format!("other {other}")) < noted + 10 {
        other += 1;
    }
    check_applies_nothing(&mut cluster, (&etcd, 1), &format!("command {noted} is another one"));
    assert_eq!(etcd.count("nearstate/east/halted"), 1);
}

#[test]
fn a_host_that_starts_acts_on_no_command_while_its_last_one_is_missing() {
    let etcd = Etcd::start(1);
    let mut cluster = hosts(&etcd);
    let last = propose_until(&cluster, 0, MANY);
    cluster.hosts[&3].until_line(&last.to_string());
    let noted = cluster.hosts.remove(&3).unwrap().engine.status().applied;
    cluster.hosts.clear();
    let key = code(&format!("nearstate/east/log/{noted:016x}"));
    let deleted = etcd.ask("deleterange", &format!("{{\"key\":\"{key}\"}}"));
    assert!(deleted.contains("\"deleted\":\"1\""), "{deleted}");
    check_applies_nothing(&mut cluster, (&etcd, 3), &format!("command {noted} is missing"));
}
