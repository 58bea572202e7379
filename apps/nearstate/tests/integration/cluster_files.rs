//! Hosts whose cluster files differ, and hosts whose vote is taken: real nodes.

use std::time::Duration;

use crate::cluster::{Hosts, LONG_LEASE, NAMES};
use crate::fixture::{Folder, until, within};

/// How long a host that was removed may take to learn it before it is removed once more.
const LEARNS_MAX: Duration = Duration::from_secs(15);

/// Starts a host with another file, in which one text is replaced.
fn run_with(hosts: &mut Hosts, number: usize, (from, to): (&str, &str)) {
    let text = std::fs::read_to_string(&hosts.file).unwrap();
    assert!(text.contains(from), "{text}");
    let other = hosts.folder.path("other.toml");
    std::fs::write(&other, text.replacen(from, to, 1)).unwrap();
    let whole = std::mem::replace(&mut hosts.file, other);
    hosts.run(number);
    hosts.file = whole;
}

#[test]
fn a_host_with_another_file_is_refused_and_the_setting_is_named() {
    let mut hosts = Hosts::start_with(Folder::new(), LONG_LEASE, "", &[]);
    let mut client = hosts.clients(0);
    assert_eq!(client.ask(&["SET", "key", "1"]), "+OK");
    hosts.kill(2);
    run_with(&mut hosts, 2, ("lease = \"10s\"", "lease = \"9s\""));
    let says = |hosts: &Hosts, number: usize, id: &str, text: &str| {
        hosts.log(number).lines().any(|line| line.contains(id) && line.contains(text))
    };
    until("the owner refuses it as a follower, or as a member", || {
        let lease = "cluster.lease is";
        says(&hosts, 0, "NS-2008", lease) || says(&hosts, 0, "NS-2009", lease)
    });
    until("it says which setting differs", || says(&hosts, 2, "NS-2009", "cluster.lease is"));
    until("the owner does not count it", || hosts.status(0).contains("\"full\":[\"a\",\"b\"]"));
    assert_eq!(hosts.owner(), Some(0));
    assert!(hosts.status(0).contains("\"view\":1}"), "{}", hosts.status(0));
    assert_eq!(client.ask(&["SET", "key", "2"]), "+OK");
    hosts.kill(2);
    // What was decided never changes: it does not start.
    run_with(&mut hosts, 2, ("copies = 3\n", "copies = 3\nacknowledgements = 3\n"));
    let refused = "the cluster was created with other settings: cluster.acknowledgements is";
    until("it refuses to start", || hosts.log(2).contains(refused));
    hosts.kill(2);
    hosts.run(2);
    hosts.until_all_count();
    assert_eq!(client.ask(&["GET", "key"]), "2");
}

#[test]
fn a_host_that_is_removed_learns_it_serves_nothing_and_can_be_added_again() {
    let hosts = Hosts::start_with(Folder::new(), LONG_LEASE, "", &[]);
    let mut client = hosts.clients(0);
    assert_eq!(client.ask(&["SET", "key", "1"]), "+OK");
    // The owner is drained first, whichever host is asked.
    for name in NAMES {
        assert!(hosts.cluster(&["remove", "a", "--host", name]).is_none(), "{name}");
    }
    // Two that are left could lose none: that is refused without a flag, and changes nothing.
    let output = hosts.output(&["remove", "c", "--host", "b"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("--weaken-majority"), "{said}");
    assert!(said.contains("without c, a and b vote"), "{said}");
    assert!(hosts.status(0).contains("\"voters\":[\"a\",\"b\",\"c\"]"), "{}", hosts.status(0));
    // A decision can be made after the command has given up. A removed host that does not get its
    // removal before the others leave it out learns it from the next one.
    let removed = || hosts.status(0).contains("\"voters\":[\"a\",\"b\"]");
    let all = || hosts.status(0).contains("\"voters\":[\"a\",\"b\",\"c\"]");
    until("the host learns that it is removed", || {
        until("it is removed", || {
            let words = ["remove", "c", "--weaken-majority", "--host", "c"];
            hosts.cluster(&words).is_some() || removed()
        });
        let learns = within(LEARNS_MAX, || hosts.log(2).contains("NS-3024"));
        if !learns {
            until("it is added", || hosts.cluster(&["add", "c", "--host", "b"]).is_some() || all());
        }
        learns
    });
    until("the owner does not count it", || hosts.status(0).contains("\"full\":[\"a\",\"b\"]"));
    assert!(removed(), "{}", hosts.status(0));
    assert!(hosts.status(2).contains("\"role\":\"waiting\""), "{}", hosts.status(2));
    assert!(hosts.cluster(&["events", "--host", "c"]).unwrap().contains("Z c NS-3024"));
    assert_eq!(client.ask(&["SET", "key", "2"]), "+OK");
    until("it is added", || hosts.cluster(&["add", "c", "--host", "b"]).is_some() || all());
    until("it votes again", || hosts.log(2).contains("NS-1027"));
    hosts.until_all_count();
    assert_eq!(hosts.owner(), Some(0));
    assert_eq!(client.ask(&["GET", "key"]), "2");
}
