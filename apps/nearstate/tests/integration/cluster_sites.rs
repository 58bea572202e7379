//! Two hosts with copies and a witness, as processes: a copy, the owner, the witness or the link
//! between the two is lost.

use nearstate_local_cluster::{ClusterOptions, CopyView, LocalCluster, NetworkKind};

use std::process::Command;
use std::time::Duration;

use crate::fixture::{Client, NEARSTATE, until, within};

/// The hosts: the owner, the other copy, the witness.
const A: usize = 0;
const B: usize = 1;
const W: usize = 2;
const HOST_NAMES: [&str; 3] = ["a", "b", "c"];

/// So long that no host loses its lease because the machine is slow.
const LEASE_MS: u32 = 4000;

/// Two leases, the shortest time after which one copy suffices.
const DEGRADE: &str = "degrade after 8s";

/// How long a drain is repeated that was late: it takes up to eight leases.
const DRAIN_MAX: Duration = Duration::from_secs(180);

/// Starts two hosts and a witness, and waits until both copies count.
fn site(name: &str, network: NetworkKind, policy: &'static str) -> LocalCluster {
    let folder = format!("/dev/shm/nearstate-sites-{name}-{}", std::process::id());
    LocalCluster::start(ClusterOptions {
        program: NEARSTATE.into(),
        folder: folder.into(),
        lease_ms: LEASE_MS,
        region_bytes_max: 64 << 20,
        network,
        two_copies: Some(policy),
        keeps_folder: false,
    })
    .unwrap()
}

fn client(site: &LocalCluster, host: usize) -> Client<std::net::TcpStream> {
    let address = site.clients(host).to_string();
    until("the owner serves clients", || std::net::TcpStream::connect(&address).is_ok());
    Client::tcp(&address)
}

fn copy(site: &LocalCluster, host: usize) -> CopyView {
    let mut copy = None;
    until("a node answers", || {
        copy = site.copy(host);
        copy.is_some()
    });
    copy.unwrap()
}

fn is_alone(site: &LocalCluster, host: usize) -> bool {
    let copy = copy(site, host);
    copy.is_degraded && copy.role == "owner" && copy.full == [site.name(host)]
}

/// Writes a key until that is possible, and waits until it is replicated.
fn put(site: &LocalCluster, host: usize, key: &str) {
    let mut client = client(site, host);
    until("a write is accepted", || client.ask(&["SET", key, key]) == "+OK");
    let end = copy(site, host).position;
    until("it is replicated", || copy(site, host).replicated >= end);
}

/// Waits until the host has no lease, and refuses writers.
fn until_refused(site: &LocalCluster, host: usize) {
    let mut client = client(site, host);
    until("the owner has no lease", || copy(site, host).role == "fenced");
    until("writers are refused", || client.ask(&["SET", "key", "1"]).starts_with("-READONLY"));
}

fn value(site: &LocalCluster, host: usize, key: &str) -> String {
    client(site, host).ask(&["GET", key])
}

/// A command of an operator at a host: whether it succeeded, and what it said.
fn operate(site: &LocalCluster, host: usize, words: &[&str]) -> (bool, String) {
    let mut command = Command::new(NEARSTATE);
    command.arg("cluster").args(words).arg("--cluster").arg(site.file());
    let output = command.args(["--host", site.name(host)]).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}

/// Drains the owner. On a busy machine a drain can end late, and its decision takes effect
/// afterwards or not: it is repeated until the other host is the owner.
fn drain(site: &LocalCluster, host: usize) {
    let mut is_late = false;
    let is_drained = within(DRAIN_MAX, || {
        let (is_done, text) = operate(site, host, &["drain"]);
        is_late |= text.contains("in time");
        assert!(is_done || is_late, "{text}");
        is_done || site.owner().is_some_and(|(owner, _)| owner != host)
    });
    assert!(is_drained, "a drain is late");
}

fn has_alarm(site: &LocalCluster, host: usize, id: &str) -> bool {
    let (_, text) = operate(site, host, &["alarms"]);
    text.lines().any(|line| line.contains(id) && line.contains("raised"))
}

#[test]
fn an_operator_replaces_a_lost_owner_whose_copy_sufficed() {
    let mut site = site("accept", NetworkKind::Loopback, DEGRADE);
    put(&site, A, "both");
    site.kill_node(B);
    until("one copy suffices", || is_alone(&site, A));
    put(&site, A, "alone");
    // The only complete copy cannot be drained.
    let (is_done, text) = operate(&site, A, &["drain"]);
    assert!(!is_done && text.contains("start the nodes of the other hosts"), "{text}");
    until("it is still alone", || is_alone(&site, A));

    site.kill_node(A);
    site.start_node(B).unwrap();
    until("the other host says which command helps", || has_alarm(&site, B, "NS-5013"));
    let (_, text) = operate(&site, B, &["alarms"]);
    let to = format!("accept-loss --to {}", site.name(B));
    assert!(text.contains(&to), "{text}");
    let accept = |host: usize| ["accept-loss", "--partition", "amf", "--to", HOST_NAMES[host]];
    let (is_done, text) = operate(&site, B, &accept(W));
    assert!(!is_done && text.contains("has no copy"), "{text}");
    let (is_done, text) = operate(&site, B, &accept(B));
    assert!(is_done && text.contains("owns the partition"), "{text}");
    assert!(text.contains("it goes on behind position"), "{text}");
    let silent = format!("not compared, because they do not answer: {}", site.name(A));
    assert!(text.contains(&silent), "{text}");
    let (is_done, text) = operate(&site, B, &accept(A));
    assert!(!is_done && text.contains("b lives and has a copy that counts"), "{text}");
    // It says so only when the state does.
    assert_eq!(copy(&site, B).full, [site.name(B)]);
    until("it is alone", || is_alone(&site, B));
    assert_eq!(value(&site, B, "both"), "both");
    put(&site, B, "afterwards");
    until("the alarm is cleared", || !has_alarm(&site, B, "NS-5013"));
    // The lost owner comes back, and discards what only it had.
    site.start_node(A).unwrap();
    assert_eq!(site.wait_all_full().unwrap().0, B);
    assert_eq!(value(&site, B, "afterwards"), "afterwards");
    assert_eq!(value(&site, B, "alone"), "$-1");
}

#[test]
fn an_owner_that_lives_is_not_given_away() {
    let mut site = site("lives", NetworkKind::Loopback, DEGRADE);
    put(&site, A, "both");
    let (is_done, text) = operate(&site, B, &["accept-loss", "--partition", "amf", "--to", "b"]);
    assert!(!is_done && text.contains("lives"), "{text}");
    site.kill_node(B);
    until("one copy suffices", || is_alone(&site, A));
    put(&site, A, "alone");
    let words = ["force-new", "--partition", "amf", "--to", "b", "--from-region"];
    let (is_done, text) = operate(&site, A, &words);
    assert!(!is_done && text.contains("lives"), "{text}");
    until("it is still alone", || is_alone(&site, A));
    // Of two complete copies one can be drained.
    site.start_node(B).unwrap();
    assert_eq!(site.wait_all_full().unwrap().0, A);
    drain(&site, A);
    assert_eq!(site.wait_all_full().unwrap().0, B);
    assert_eq!(value(&site, B, "alone"), "alone");
}

#[test]
fn with_stop_writers_are_refused_until_the_other_copy_is_back() {
    let mut site = site("stop", NetworkKind::Loopback, "stop");
    put(&site, A, "before");
    site.kill_node(B);
    until_refused(&site, A);
    assert!(!copy(&site, A).is_degraded);
    site.start_node(B).unwrap();
    assert_eq!(site.wait_all_full().unwrap().0, A);
    put(&site, A, "after");
    assert_eq!(value(&site, A, "before"), "before");
}

#[test]
fn one_copy_suffices_after_a_while_and_two_are_needed_when_the_other_is_back() {
    let mut site = site("degrade", NetworkKind::Loopback, DEGRADE);
    put(&site, A, "both");
    site.kill_node(B);
    until("one copy suffices", || is_alone(&site, A));
    put(&site, A, "alone");
    let mut client = client(&site, A);
    assert_eq!(client.ask(&["SET", "key", "1"]), "+OK");
    assert_eq!(client.ask(&["WAIT", "1", "50"]), ":0", "no replica has it");
    let asked = || site.events(A).join("\n").contains("cluster-degrading");
    until("its events say so", asked);
    // The owner's process begins anew, and is still alone.
    site.kill_node(A);
    site.start_node(A).unwrap();
    until("it is alone again", || is_alone(&site, A));
    put(&site, A, "restarted");

    site.start_node(B).unwrap();
    assert_eq!(site.wait_all_full().unwrap().0, A);
    until("two copies are needed", || !copy(&site, A).is_degraded);
    put(&site, A, "two");
    // The other copy has everything that was written alone: the loss of the owner loses nothing.
    site.kill_node(A);
    until("the other host takes over, and is alone", || is_alone(&site, B));
    for key in ["both", "alone", "restarted", "two"] {
        assert_eq!(value(&site, B, key), key);
    }
    put(&site, B, "third");
    // The old owner is a member, also if its process had the last word of the first log.
    site.start_node(A).unwrap();
    assert_eq!(site.wait_all_full().unwrap().0, B);
    assert_eq!(value(&site, B, "third"), "third");
}

#[test]
fn the_loss_of_the_witness_changes_nothing_and_with_a_copy_it_stops_writers() {
    let mut site = site("witness", NetworkKind::Loopback, DEGRADE);
    site.kill_node(W);
    put(&site, A, "two copies");
    assert_eq!(site.owner().map(|(host, _)| host), Some(A));
    site.kill_node(B);
    until_refused(&site, A);
    // No majority says that one copy suffices, however long it takes.
    let asked = |site: &LocalCluster| site.events(A).join("\n").contains("cluster-degrading");
    until("the owner asks", || asked(&site));
    assert!(!copy(&site, A).is_degraded);
    site.start_node(W).unwrap();
    until("with the witness it does", || is_alone(&site, A));
    put(&site, A, "one copy");
    // Without the witness again, the lease is not renewed.
    site.kill_node(W);
    until_refused(&site, A);
}

#[test]
fn of_two_hosts_that_are_cut_off_from_each_other_one_serves() {
    if NetworkKind::best() != NetworkKind::Namespaces {
        return;
    }
    let site = site("cut", NetworkKind::Namespaces, DEGRADE);
    put(&site, A, "before");
    site.cut_way(A, B).unwrap();
    site.cut_way(B, A).unwrap();
    // Both see the witness. Which one is heard first depends on who leads the membership.
    until("one host is alone", || {
        let alone = [A, B].map(|host| is_alone(&site, host));
        assert!(!(alone[A] && alone[B]), "two hosts own the partition");
        alone[A] || alone[B]
    });
    let alone = if is_alone(&site, A) { A } else { B };
    let other = A + B - alone;
    put(&site, alone, "while cut");
    let refused = |site: &LocalCluster| {
        let copy = copy(site, other);
        copy.role != "owner" && copy.lease_ms == 0
    };
    until("the other host refuses", || refused(&site));
    site.open_way(A, B).unwrap();
    site.open_way(B, A).unwrap();
    let mut site = site;
    // A suspicion from the time of the cut may be ordered now, and cost one more fail-over.
    let (owner, _) = site.wait_all_full().unwrap();
    for key in ["before", "while cut"] {
        assert_eq!(value(&site, owner, key), key);
    }
}
