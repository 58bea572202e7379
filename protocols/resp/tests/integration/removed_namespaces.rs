//! Commands over all keys, and events, while namespaces are removed.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::fixture::{node, node_with};
use crate::keyspace::bulks;
use nearstate_node::executor::{Executor, ExecutorConfig, sleep, timeout};
use nearstate_resp::acl::Users;
use nearstate_resp::keyspace_events::KeyspaceEvents;
use nearstate_resp::server::RespSettings;
use nearstate_resp::table::TABLE;
use nearstate_store::Schema;

/// The cursor holds a place that a removed namespace does not shift.
#[test]
fn a_scan_returns_every_key_although_a_namespace_is_removed_between_two_calls() {
    let node = node();
    let mut client = node.client();
    let session = node.region.session().unwrap();
    let first = session.namespace("a", &Schema::default()).unwrap();
    let mut expected = BTreeSet::new();
    for name in ["b", "c"] {
        for number in 0..200 {
            let key = format!("{{{name}}},{number}");
            assert_eq!(client.ask(&format!("SET {key} v")), "+OK|");
            expected.insert(key);
        }
    }
    let (mut cursor, mut found) = ("0".to_owned(), BTreeSet::new());
    for call in 0.. {
        let reply = bulks(&client.ask(&format!("SCAN {cursor} COUNT 20")));
        let (next, keys) = reply.split_first().unwrap();
        found.extend(keys.iter().cloned());
        cursor.clone_from(next);
        if cursor == "0" {
            break;
        }
        if call == 2 {
            assert!(session.remove_namespace(first).unwrap());
        }
    }
    assert_eq!(found, expected);
}

/// The notifier learns of the deletions and of the removal at the same time.
#[test]
fn the_last_events_of_a_removed_namespace_are_published() {
    const ROUNDS: usize = 20;
    let keyspace_events = KeyspaceEvents::parse(b"KA").unwrap();
    let users = Users::open(&TABLE);
    let node = node_with(RespSettings { keyspace_events, ..RespSettings::new(users) });
    Executor::new(&ExecutorConfig::default()).unwrap().run(async move {
        node.begin();
        let (mut client, mut subscriber) = (node.client(), node.client());
        subscriber.ask("PSUBSCRIBE *");
        let session = node.region.session().unwrap();
        for round in 0..ROUNDS {
            let name = format!("ns{round}");
            let key = format!("{{{name}}},k");
            assert_eq!(client.ask(&format!("SET {key} v")), "+OK|");
            // The notifier watches the namespace.
            let mut seen = String::new();
            let set = async {
                while !seen.contains("|$3|set|") {
                    sleep(Duration::from_millis(1)).await;
                    seen.push_str(
                        &String::from_utf8_lossy(&subscriber.poll_progress()).replace("\r\n", "|"),
                    );
                }
            };
            timeout(Duration::from_secs(100), set).await.expect("the set is published");
            // No task runs in between.
            std::thread::park_timeout(Duration::from_millis(120));
            let ns = session.known_namespace(&name).unwrap().unwrap();
            assert!(session.delete(ns, b"k").unwrap() && session.remove_namespace(ns).unwrap());
            let mut seen = String::new();
            let deleted = async {
                while !seen.contains("|$3|del|") {
                    sleep(Duration::from_millis(1)).await;
                    seen.push_str(
                        &String::from_utf8_lossy(&subscriber.poll_progress()).replace("\r\n", "|"),
                    );
                }
            };
            timeout(Duration::from_secs(100), deleted).await.expect("the deletion is published");
        }
    });
}
