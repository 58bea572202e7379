//! Two hosts with copies and a witness, as processes: a copy, the owner, the witness or the link
//! between the two is lost.

use nearstate_local_cluster::{ClusterOptions, CopyView, LocalCluster, NetworkKind};

use crate::fixture::{Client, NEARSTATE, until};

/// The hosts: the owner, the other copy, the witness.
const A: usize = 0;
const B: usize = 1;
const W: usize = 2;

/// Starts two hosts and a witness, and waits until both copies count.
fn site(name: &str, network: NetworkKind, policy: &'static str) -> LocalCluster {
    let folder = format!("/dev/shm/nearstate-sites-{name}-{}", std::process::id());
    LocalCluster::start(ClusterOptions {
        program: NEARSTATE.into(),
        folder: folder.into(),
        lease_ms: 600,
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
    site.copy(host).unwrap_or_default()
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
    let mut site = site("degrade", NetworkKind::Loopback, "degrade after 1500ms");
    put(&site, A, "both");
    site.kill_node(B);
    until("one copy suffices", || is_alone(&site, A));
    put(&site, A, "alone");
    let mut client = client(&site, A);
    assert_eq!(client.ask(&["SET", "key", "1"]), "+OK");
    assert_eq!(client.ask(&["WAIT", "1", "50"]), ":0", "no replica has it");
    let metrics = site.events(A).join("\n");
    assert!(metrics.contains("cluster-degrading"), "{metrics}");
    // The owner's process begins anew, and is still alone.
    site.kill_node(A);
    site.start_node(A).unwrap();
    until("it is alone again", || is_alone(&site, A));
    put(&site, A, "restarted");

    site.start_node(B).unwrap();
    assert_eq!(site.wait_all_full().unwrap().0, A);
    assert!(!copy(&site, A).is_degraded);
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
    let mut site = site("witness", NetworkKind::Loopback, "degrade after 1500ms");
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
    let site = site("cut", NetworkKind::Namespaces, "degrade after 1500ms");
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
    assert!(refused(&site), "{:?}", copy(&site, other));
    site.open_way(A, B).unwrap();
    site.open_way(B, A).unwrap();
    let mut site = site;
    // A suspicion from the time of the cut may be ordered now, and cost one more fail-over.
    let (owner, _) = site.wait_all_full().unwrap();
    for key in ["before", "while cut"] {
        assert_eq!(value(&site, owner, key), key);
    }
}
