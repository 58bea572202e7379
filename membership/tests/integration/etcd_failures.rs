//! Failures of a host whose commands etcd orders: panics, and a disk that hangs.

use std::cell::RefCell;
use std::fs::File;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nearstate_membership::{EtcdEndpoint, EtcdEngine, EtcdSettings};
use nearstate_node::{ConsensusEngine as _, EngineEvent};

use crate::etcd_process::{Etcd, hosts};
use crate::failures::{check_recovers_from_panic, panicking};
use crate::fixture::{Cluster, Host, LONG, free_address, is_within, until};
use crate::slow::Proxy;

#[test]
fn a_state_machine_that_panics_at_a_command_of_etcd_is_a_failure_that_passes() {
    let etcd = Etcd::start(1);
    let mut cluster = hosts(&etcd);
    drop(cluster.hosts.remove(&3));
    let host = Host::start_etcd(panicking(cluster.config(3)), etcd.settings()).unwrap();
    cluster.hosts.insert(3, host);
    check_recovers_from_panic(&cluster);
    assert_eq!(cluster.hosts[&3].engine.status().failure, None);
}

#[test]
fn an_engine_that_panics_says_so_and_goes_on() {
    let cluster = Cluster::new(1);
    let endpoints = vec![EtcdEndpoint::parse(&format!("http://{}", free_address())).unwrap()];
    let settings = EtcdSettings { endpoints, tls: None, user: None, compacts: true };
    // The first event is that etcd does not answer.
    let panics = AtomicBool::new(true);
    let waker = move || assert!(!panics.swap(false, Ordering::AcqRel), "as planned");
    let engine = EtcdEngine::start(cluster.config(1), settings, Box::new(waker)).unwrap();
    let events = RefCell::new(Vec::new());
    let is_failure = |event: &&EngineEvent| matches!(event, EngineEvent::Failed { .. });
    until("both are told", || {
        engine.take_events(&mut events.borrow_mut());
        events.borrow().iter().filter(is_failure).count() >= 2
    });
    let panicked = "the engine has panicked: as planned";
    assert!(matches!(&events.borrow()[1], EngineEvent::Failed { reason } if reason == panicked));
    // It runs again: etcd is asked.
    until("etcd is asked", || engine.status().failure.is_some_and(|why| why != panicked));
}

/// The host writes into a pipe that no process reads, so its write hangs.
#[test]
fn a_host_whose_disk_hangs_reports_all_the_same() {
    let etcd = Etcd::start(1);
    let mut cluster = hosts(&etcd);
    cluster.propose(1, "first");
    drop(cluster.hosts.remove(&3));
    let applied = cluster.directory(3).join("etcd-applied");
    let pipe = applied.with_extension("new");
    let _ = std::fs::remove_file(&applied);
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let host = Host::start_etcd(cluster.config(3), etcd.settings()).unwrap();
    // It hangs within a moment: reports are asked for until then, and behind that.
    let ask = || cluster.hosts[&1].engine.report_of(3, LONG);
    is_within(Duration::from_secs(1), || ask().is_err());
    let reported = ask();
    // The writer is there as soon as the pipe can be opened.
    let reader = File::open(&pipe).unwrap();
    assert_eq!((reported.unwrap().as_str(), host.told().0.as_str()), ("report of 3", ""));
    std::fs::remove_file(&pipe).unwrap();
    drop(reader);
    host.until_line("first");
    assert!(applied.exists());
}

/// What a host has proposed may be wrong a moment later. A cut shorter than that of an etcd that
/// has failed lets no old proposal through.
#[test]
fn a_proposal_is_not_sent_to_etcd_after_its_life() {
    let etcd = Etcd::start(1);
    let mut cluster = hosts(&etcd);
    drop(cluster.hosts.remove(&3));
    let (proxy, address) = Proxy::start(etcd.members[0].0);
    let endpoints = vec![EtcdEndpoint::parse(&format!("http://{address}")).unwrap()];
    let settings = EtcdSettings { endpoints, ..etcd.settings() };
    cluster.hosts.insert(3, Host::start_etcd(cluster.config(3), settings).unwrap());
    cluster.propose(3, "first");
    proxy.cut();
    cluster.hosts[&3].engine.propose(b"stale".to_vec(), Duration::from_millis(150));
    is_within(Duration::from_millis(500), || false);
    proxy.mend();
    cluster.propose(3, "second");
    let stale = || cluster.hosts[&1].told().0.contains("stale");
    assert!(!is_within(Duration::from_secs(2), stale));
    assert!(cluster.hosts[&1].told().0.contains("second"));
}
