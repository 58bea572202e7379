//! Commands in the order of etcd: Debian's `etcd-server`, three members on loopback addresses, in
//! memory. Losses of members and of hosts, and damage.

use std::collections::BTreeSet;
use std::time::Duration;

use nearstate_membership::EtcdSettings;
use nearstate_node::{ClientTls, EngineEvent};

use crate::etcd_process::{Etcd, code, hosts, propose_until, until_failed};
use crate::failures::certificates;
use crate::fixture::{Cluster, Host, LONG, check_stops_at_later_command, earlier, settings};

#[test]
fn etcd_orders_the_commands_of_all_hosts_and_loses_none_with_a_member_or_a_host() {
    let mut etcd = Etcd::start(3);
    let mut cluster = hosts(&etcd);
    let voters: BTreeSet<u64> = (1..=3).collect();
    let again = loop {
        let again = cluster.hosts[&2].engine.initialize(&voters).unwrap_err().to_string();
        // Etcd may not answer in time on a loaded machine.
        if !again.contains("does not decide") {
            break again;
        }
    };
    assert!(again.contains("exists already"), "{again}");
    std::thread::scope(|scope| {
        for id in 1..=3_u64 {
            let cluster = &cluster;
            scope.spawn(move || {
                for number in 0..10 {
                    cluster.propose(id, &format!("{id}:{number}"));
                }
            });
        }
    });
    let has_all = |text: &str| text.lines().collect::<BTreeSet<_>>().len() == 30;
    let first = cluster.hosts[&1].until(|text, _| has_all(text));
    for id in 2..=3 {
        let text = cluster.hosts[&id].until(|text, _| has_all(text));
        assert!(text.starts_with(&first) || first.starts_with(&text), "{text}");
    }
    // A command whose answer came too late was proposed again, so there may be more.
    loop {
        let status = cluster.hosts[&3].engine.status();
        assert!(status.applied >= 30, "{status:?}");
        if status.voters == voters && status.leader == Some(3) {
            break;
        }
        std::thread::yield_now();
    }
    assert_eq!(cluster.hosts[&1].engine.report_of(2, LONG).unwrap(), "report of 2");
    // A member of etcd and a host are lost. Each member is the first endpoint of no other host.
    etcd.kill(0);
    drop(cluster.hosts.remove(&1));
    cluster.propose(2, "without a member");
    let host = Host::start_etcd(cluster.config(1), etcd.settings()).unwrap();
    cluster.hosts.insert(1, host);
    let text = cluster.hosts[&1].until(|text, _| text.ends_with("without a member\n"));
    assert!(text.starts_with(&first), "{text}");
    // Without a majority nothing is decided, and the engine says so.
    etcd.kill(1);
    let host = &cluster.hosts[&3];
    let refused = host.engine.propose_and_wait(b"lost?".to_vec(), Duration::from_millis(500));
    assert!(refused.unwrap_err().to_string().contains("does not decide"));
    host.until(|_, events| matches!(events.last(), Some(EngineEvent::Failed { .. })));
    assert!(host.engine.status().leader.is_none());
    etcd.run(1);
    host.until(|_, events| matches!(events.last(), Some(EngineEvent::Recovered)));
    cluster.propose(3, "again");
    for host in cluster.hosts.values() {
        host.until(|text, _| text.lines().any(|line| line == "again"));
    }
}

#[test]
fn etcd_keeps_few_commands_and_a_host_that_was_away_gets_the_snapshot() {
    let etcd = Etcd::start(1);
    let mut cluster = hosts(&etcd);
    // What it has noted is deleted meanwhile.
    cluster.propose(1, "known");
    cluster.hosts[&2].until_line("known");
    drop(cluster.hosts.remove(&2));
    let last = propose_until(&cluster, 0, 520);
    let text = cluster.hosts[&1].until_line(&last.to_string());
    let host = Host::start_etcd(cluster.config(2), etcd.settings()).unwrap();
    assert_eq!(host.until_line(&last.to_string()), text);
    let count = etcd.count("nearstate/east/log/");
    assert!((100..=200).contains(&count), "{count} commands are kept");
}

#[test]
fn etcd_forgets_the_history_before_the_last_snapshot_but_one() {
    let etcd = Etcd::start(1);
    let cluster = hosts(&etcd);
    let first = propose_until(&cluster, 0, 600);
    assert!(!etcd.has_forgotten(5), "one snapshot was written");
    let mut last = propose_until(&cluster, first + 1, 1_010);
    // A call of etcd that fails is repeated with the next snapshot.
    for length in (1_500..5_000).step_by(500).take_while(|_| !etcd.has_forgotten(5)) {
        last = propose_until(&cluster, last + 1, length);
    }
    assert!(etcd.has_forgotten(5));
    let last = last.to_string();
    // A host that comes late needs none of it.
    let text = cluster.hosts[&1].until_line(&last);
    assert_eq!(cluster.hosts[&3].until_line(&last), text);
}

#[test]
fn etcd_takes_commands_over_tls_from_hosts_with_a_certificate() {
    let etcd = Etcd::start_with(1, true);
    let mut cluster = hosts(&etcd);
    cluster.propose(2, "over TLS");
    cluster.hosts[&3].until(|text, _| text.ends_with("over TLS\n"));
    // One without a certificate, and one with a certificate of another authority.
    let other = tempfile::tempdir().unwrap();
    certificates(other.path(), &["host"]);
    let (certificate, key) = (other.path().join("host.pem"), other.path().join("host.key"));
    let authority = etcd.folder.path().join("ca.pem");
    for own in [None, Some((certificate.as_path(), key.as_path()))] {
        drop(cluster.hosts.remove(&3));
        let tls = Some(ClientTls::read(&authority, own).unwrap());
        let settings = EtcdSettings { tls, ..etcd.settings() };
        let host = Host::start_etcd(cluster.config(3), settings).unwrap();
        cluster.hosts.insert(3, host);
        let host = &cluster.hosts[&3];
        host.until(|_, events| matches!(events.last(), Some(EngineEvent::Failed { .. })));
        assert_eq!(host.told().0, "");
    }
    cluster.propose(1, "still");
}

#[test]
fn a_host_with_other_decided_settings_applies_nothing_of_etcd() {
    let etcd = Etcd::start(1);
    let mut cluster = hosts(&etcd);
    cluster.propose(1, "first");
    drop(cluster.hosts.remove(&3));
    let mut config = cluster.config(3);
    config.decided = settings("cluster.acknowledgements", "3");
    let host = Host::start_etcd(config, etcd.settings()).unwrap();
    let expected = "cluster.acknowledgements is \"3\" here and \"2\" there";
    until_failed(&host, expected);
    assert_eq!(host.told().0, "");
    drop(host);
    let host = Host::start_etcd(cluster.config(3), etcd.settings()).unwrap();
    host.until(|text, _| text == "first\n");
}

/// An earlier version has created the cluster without its settings: the first host that finds none
/// stores its own.
#[test]
fn a_cluster_without_settings_gets_those_of_the_first_host_and_refuses_others() {
    let etcd = Etcd::start(1);
    let mut cluster = hosts(&etcd);
    cluster.propose(1, "first");
    cluster.hosts.clear();
    let key = code(&format!("nearstate/{}/settings", cluster.config(1).cluster));
    let deleted = etcd.ask("deleterange", &format!("{{\"key\":\"{key}\"}}"));
    assert!(deleted.contains("\"deleted\":\"1\""), "{deleted}");
    let start = |id: u64, group: &str| {
        let mut config = cluster.config(id);
        config.decided = settings("partition.amf.group", group);
        Host::start_etcd(config, etcd.settings()).unwrap()
    };
    let first = start(1, "a, b, c");
    first.until(|text, _| text == "first\n");
    let other = start(2, "a, b, d");
    until_failed(&other, "partition.amf.group is \"a, b, d\" here and \"a, b, c\" there");
    assert_eq!(other.told().0, "");
    let same = start(3, "a, b, c");
    same.until(|text, _| text == "first\n");
}

/// The settings of a host whose file lists the members of several etcds, in this order.
fn mixed(etcds: [&Etcd; 2]) -> EtcdSettings {
    let endpoints = etcds.iter().flat_map(|etcd| etcd.settings().endpoints).collect();
    EtcdSettings { endpoints, ..etcds[0].settings() }
}

/// Whether an error names the members of both.
fn names_both(text: &str, etcds: [&Etcd; 2]) -> bool {
    text.contains("cluster ID")
        && etcds.iter().all(|etcd| text.contains(&etcd.members[0].0.to_string()))
}

#[test]
fn a_cluster_is_not_created_while_endpoints_belong_to_different_etcds() {
    let etcds = [Etcd::start(1), Etcd::start(1)];
    let both = [&etcds[0], &etcds[1]];
    let cluster = Cluster::new(3);
    let host = Host::start_etcd(cluster.config(1), mixed(both)).unwrap();
    etcds.iter().for_each(Etcd::until_answers);
    let refused = loop {
        let error = host.engine.initialize(&BTreeSet::from([1, 2, 3])).unwrap_err().to_string();
        if error.contains("cluster ID") {
            break error;
        }
        // The call took too long.
        assert!(error.contains("in time"), "{error}");
    };
    assert!(names_both(&refused, both), "{refused}");
    assert_eq!([etcds[0].count("nearstate/"), etcds[1].count("nearstate/")], [0, 0]);
}

#[test]
fn a_host_refuses_a_wrong_endpoint_and_returns_to_its_etcd() {
    let (mut right, wrong) = (Etcd::start(1), Etcd::start(1));
    let mut cluster = hosts(&right);
    cluster.propose(1, "first");
    drop(cluster.hosts.remove(&3));
    // An endpoint at which there is no such cluster is not used for ever.
    let host = Host::start_etcd(cluster.config(3), mixed([&wrong, &right])).unwrap();
    host.until(|text, _| text == "first\n");
    right.kill(0);
    let refusal = |event: &EngineEvent| {
        let EngineEvent::Failed { reason } = event else { return None };
        reason.contains("cluster ID").then(|| reason.clone())
    };
    host.until(|_, events| events.iter().any(|event| refusal(event).is_some()));
    let reason = host.told().1.iter().find_map(refusal).unwrap();
    assert!(names_both(&reason, [&right, &wrong]), "{reason}");
    right.run(0);
    host.until(|_, events| matches!(events.last(), Some(EngineEvent::Recovered)));
    cluster.propose(1, "second");
    host.until(|text, _| text.ends_with("second\n"));
    assert_eq!(wrong.count("nearstate/"), 0);
}

#[test]
fn a_host_refuses_a_cluster_that_was_created_anew() {
    let etcd = Etcd::start(1);
    let cluster = hosts(&etcd);
    cluster.propose(1, "first");
    let host = &cluster.hosts[&2];
    host.until(|text, _| text == "first\n");
    etcd.put("nearstate/east/creation", &[7; 8]);
    until_failed(host, "its creation is 0707070707070707");
    // A command whose reply was late may be there twice.
    let before = etcd.count("nearstate/east/log/");
    assert!(
        cluster.hosts[&1].engine.propose_and_wait(b"x".to_vec(), Duration::from_secs(1)).is_err()
    );
    assert_eq!(etcd.count("nearstate/east/log/"), before, "nothing is written there");
}

#[test]
fn a_host_stops_at_a_command_of_etcd_that_its_program_cannot_apply() {
    let etcd = Etcd::start(1);
    let mut cluster = hosts(&etcd);
    drop(cluster.hosts.remove(&3));
    let host = Host::start_etcd(earlier(cluster.config(3)), etcd.settings()).unwrap();
    cluster.hosts.insert(3, host);
    check_stops_at_later_command(&cluster, 3);
}
