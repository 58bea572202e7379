//! The notifier and the log: what it reads after the log has lost entries, when the region belongs
//! to another host, and when it was copied from another one.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use nearstate_store::{Region, Schema, WhenFull};
use serde_json::json;

use crate::fixture::{JSON, TestClient, TestNode, TestNodeOptions, node_at};
use crate::receiver::{Received, receiver};

fn subscribe(client: &mut TestClient, id: &str, callback: &str) {
    let body = json!({"clientId": {"nfSetId": "set1"}, "callbackReference": callback});
    client.send("PUT", &format!("/subs-to-notify/{id}"), &[JSON], body.to_string()).is(201, "");
}

fn lost(node: &TestNode) -> u64 {
    let [_, _, (name, lost)] = node.metrics.notifier_events();
    assert_eq!(name, "lost");
    lost
}

fn names(all: &[Received], record: &str) -> bool {
    all.iter().any(|one| one.body.contains(&format!("/records/{record}\"")))
}

#[test]
fn subscriptions_among_entries_that_the_log_has_lost_are_served() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("region");
    let node = node_at(&path, TestNodeOptions::default());
    let (early, late) = (receiver(), receiver());
    let mut client = node.client();
    subscribe(&mut client, "early", &early.uri("/"));
    // Another process releases the log of a region that keeps entries, before the notifier reads.
    let session = Region::attach(&path).unwrap().session().unwrap();
    let kept = session.namespace("kept", &Schema::default()).unwrap();
    session.stream(kept, WhenFull::Refuse).unwrap();
    let mut round = 0;
    let last = loop {
        client.put_record(&format!("before{round}"), "{}", &[]).is(201, "");
        early.wait(|all| names(all, &format!("before{round}")));
        let before = lost(&node);
        let id = format!("s{round}");
        subscribe(&mut client, &id, &late.uri(&format!("/{id}")));
        session.release_to(session.log_tail_position().unwrap()).unwrap();
        client.put_record(&format!("after{round}"), "{}", &[]).is(201, "");
        early.wait(|all| names(all, &format!("after{round}")));
        if lost(&node) > before {
            break id;
        }
        // The notifier was faster.
        round += 1;
    };
    client.put_record("r", "{}", &[]).is(201, "");
    let is_it = |one: &Received| one.path == format!("/{last}") && one.body.contains("records/r\"");
    late.wait(|all| all.iter().any(is_it));
}
