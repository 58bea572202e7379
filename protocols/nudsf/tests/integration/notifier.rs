//! The notifier and the log: what it reads after the log has lost entries, when the region belongs
//! to another host, and when it was copied from another one.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nearstate_store::{
    CreateOptions, FeedItem, FeedStart, FeedStep, FollowPosition, Kind, LogIdentity, Metadata,
    Region, Schema, Session, WhenFull, lease_clock, now_ms,
};
use serde_json::json;

use crate::fixture::{JSON, PATCH, TestClient, TestNode, TestNodeOptions, node, node_at};
use crate::receiver::{Received, own_address, receiver, receiver_at, scripted};

const HANG_TIMEOUT: Duration = Duration::from_secs(120);

fn subscribe(client: &mut TestClient, id: &str, callback: &str) {
    let body = json!({"clientId": {"nfSetId": "set1"}, "callbackReference": callback});
    client.send("PUT", &format!("/subs-to-notify/{id}"), &[JSON], body.to_string()).is(201, "");
}

#[track_caller]
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = lease_clock();
    while !holds() {
        assert!(lease_clock().saturating_sub(begin) < HANG_TIMEOUT, "never: {what}");
        std::thread::yield_now();
    }
}

fn lost(node: &TestNode) -> u64 {
    let [_, _, (name, lost), _] = node.metrics.notifier_events();
    assert_eq!(name, "lost");
    lost
}

fn names(all: &[Received], record: &str) -> bool {
    all.iter().any(|one| one.body.contains(&format!("/records/{record}\"")))
}

/// The position up to which the notifier has read the log, as it is stored.
fn stored_position(session: &Session) -> u64 {
    let control = session.known_namespace("nudsf:notifier").unwrap().unwrap();
    let view = session.get(control, b"cursor").unwrap().unwrap();
    u64::from_le_bytes(view.bytes()[32..40].try_into().unwrap())
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
        let tail = session.log_tail_position().unwrap();
        session.release_to(tail, tail).unwrap();
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

#[test]
fn a_record_is_no_further_delivered_once_the_lease_of_the_host_has_ended() {
    const CHANGES: usize = 40;
    let node = node();
    let (is_open, is_leased) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(true)));
    let violations = Arc::new(AtomicUsize::new(0));
    let words = Mutex::new(node.session());
    let (open, leased, counted) =
        (Arc::clone(&is_open), Arc::clone(&is_leased), Arc::clone(&violations));
    // The lease ends with the first notification that is accepted.
    let target = scripted(move |_| {
        if !open.load(Ordering::SeqCst) {
            return Some(503);
        }
        if !leased.swap(false, Ordering::SeqCst) {
            counted.fetch_add(1, Ordering::SeqCst);
        }
        words.lock().unwrap().set_owner_lease(Duration::from_nanos(1)).unwrap();
        Some(204)
    });
    let mut client = node.client();
    subscribe(&mut client, "s1", &target.uri("/"));
    for number in 0..CHANGES {
        client.put_record("r", "{}", &[("b", &number.to_string())]);
    }
    until("all is due", || node.notified("data_change", "due") == CHANGES as u64);
    is_open.store(true, Ordering::SeqCst);
    target.wait_for(1);
    for number in 0..200 {
        client.put_record(&format!("other{number}"), "{}", &[]);
    }
    assert_eq!(violations.load(Ordering::SeqCst), 0, "sent without a lease");
    assert_eq!(target.wait_for(1).len(), 1);
}

#[test]
fn an_entry_that_is_in_flight_when_the_lease_ends_is_not_sent_again_before_it_is_answered() {
    let node = node();
    let session = node.session();
    let attempts = Arc::<Mutex<Vec<Duration>>>::default();
    let seen = Arc::clone(&attempts);
    let target = scripted(move |_| {
        let mut seen = seen.lock().unwrap();
        seen.push(lease_clock());
        (seen.len() > 1).then_some(204)
    });
    let mut client = node.client();
    subscribe(&mut client, "s1", &target.uri("/"));
    client.put_record("r", "{}", &[]).is(201, "");
    until("it is in flight", || attempts.lock().unwrap().len() == 1);
    session.set_owner_lease(Duration::from_nanos(1)).unwrap();
    // The notifier looks at the lease each time that it is idle.
    for number in 0..200 {
        client.put_record(&format!("other{number}"), "{}", &[]);
    }
    session.set_owner_lease(lease_clock() + Duration::from_secs(3600)).unwrap();
    until("it is sent again", || {
        session.acknowledge_to(session.log_tail_position().unwrap()).unwrap();
        attempts.lock().unwrap().len() > 1
    });
    let [first, second, ..] = attempts.lock().unwrap()[..] else { panic!("two attempts") };
    // The first one is given up after 5 s; the receiver may have noticed it late.
    assert!(second.saturating_sub(first) > Duration::from_secs(1), "{first:?} {second:?}");
}

#[test]
fn what_is_sent_again_when_the_lease_ends_is_answered_before_others_are_sent() {
    let node = node();
    let session = node.session();
    let attempts = Arc::<Mutex<Vec<Duration>>>::default();
    let seen = Arc::clone(&attempts);
    // The first attempt of the record is refused, and the second one hangs.
    let target = scripted(move |one| {
        if !names(std::slice::from_ref(one), "r") {
            return Some(204);
        }
        let mut seen = seen.lock().unwrap();
        seen.push(lease_clock());
        match seen.len() {
            1 => Some(503),
            2 => None,
            _ => Some(204),
        }
    });
    let mut client = node.client();
    subscribe(&mut client, "s1", &target.uri("/"));
    client.put_record("r", "{}", &[]).is(201, "");
    until("it is sent again", || attempts.lock().unwrap().len() == 2);
    // Another record is not sent, as it is not replicated, and then the lease ends.
    session.set_owner_lease(lease_clock() + Duration::from_secs(3600)).unwrap();
    client.put_record("other", "{}", &[]).is(201, "");
    until("the other one is due", || node.notified("data_change", "due") == 2);
    session.set_owner_lease(Duration::from_nanos(1)).unwrap();
    for number in 0..200 {
        client.put_record(&format!("more{number}"), "{}", &[]);
    }
    session.set_owner_lease(lease_clock() + Duration::from_secs(3600)).unwrap();
    until("it is sent by the next run", || {
        session.acknowledge_to(session.log_tail_position().unwrap()).unwrap();
        attempts.lock().unwrap().len() > 2
    });
    let [_, second, third, ..] = attempts.lock().unwrap()[..] else { panic!("three attempts") };
    // As above.
    assert!(third.saturating_sub(second) > Duration::from_secs(1), "{second:?} {third:?}");
}

#[test]
fn attempts_have_pauses_when_a_target_that_was_down_refuses() {
    const ATTEMPTS: usize = 6;
    let node = node();
    let address = receiver_at(own_address(), Arc::new(|_| Some(204))).address;
    let mut client = node.client();
    subscribe(&mut client, "s1", &format!("http://{address}/"));
    client.put_record("r", "{}", &[]).is(201, "");
    until("it has failed twice", || node.retries() > 1);
    let attempts = Arc::<Mutex<Vec<Duration>>>::default();
    let seen = Arc::clone(&attempts);
    let refuses = move |_: &Received| {
        seen.lock().unwrap().push(lease_clock());
        Some(503)
    };
    let _target = receiver_at(address, Arc::new(refuses));
    until("it has attempts", || attempts.lock().unwrap().len() >= ATTEMPTS);
    let attempts = attempts.lock().unwrap();
    // Of 50, 100, 200, 400 and 800 ms.
    let lasted = attempts[ATTEMPTS - 1].saturating_sub(attempts[0]);
    assert!(lasted > Duration::from_secs(1), "{attempts:?}");
}

#[test]
fn attempts_have_pauses_when_a_target_that_refused_is_down_and_it_is_reached_when_it_is_back() {
    let node = node();
    let refused = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&refused);
    let script = move |_: &Received| {
        counted.fetch_add(1, Ordering::SeqCst);
        Some(503)
    };
    let target = receiver_at(own_address(), Arc::new(script));
    let address = target.address;
    let mut client = node.client();
    subscribe(&mut client, "s1", &target.uri("/"));
    client.put_record("r", "{}", &[]).is(201, "");
    until("it is refused", || refused.load(Ordering::SeqCst) > 0);
    drop(target);
    let (begin, before) = (lease_clock(), node.retries());
    until("it fails", || node.retries() >= before + 6);
    // One may have been counted late. Others have pauses of 50, 100, 200 and 400 ms.
    let lasted = lease_clock().saturating_sub(begin);
    assert!(lasted > Duration::from_millis(600), "{lasted:?}");
    // What fails is tried again without others.
    receiver_at(address, Arc::new(|_| Some(204))).wait_for(1);
}

/// Brings a copy to the end of the log of the source.
fn follow(source: &Session, copy: &Session) {
    let known = copy.following().unwrap();
    let (of, applied) = known
        .map_or((LogIdentity::default(), FollowPosition::default()), |known| {
            (known.source, known.applied)
        });
    let mut follower = copy.follow().unwrap();
    let (mut feed, start) = source.log_feed(of, applied).unwrap();
    follower.begin_connection().unwrap();
    if start == FeedStart::Joins {
        follower.begin(source.log_identity().unwrap()).unwrap();
    }
    let mut applied = 0;
    loop {
        let step = feed.step(true, &mut |item: FeedItem<'_>| match item {
            FeedItem::Namespace(namespace) => follower.namespace(&namespace),
            FeedItem::Removed { number } => follower.remove_namespace(number),
            FeedItem::Record(record) => follower.apply_joining(&record),
            FeedItem::Joined(place) => {
                applied = place.position;
                follower.complete(place)
            }
            FeedItem::Entry { place, time_ms, records } => {
                follower.apply_entry(place, time_ms, &records)?;
                applied = place.position;
                Ok(())
            }
        });
        match step.unwrap() {
            FeedStep::More => feed.acknowledged(applied).unwrap(),
            FeedStep::Idle { position } => {
                let tail = source.log_tail_position().unwrap();
                follower.note_tail(position, tail).unwrap();
                return feed.acknowledged(position).unwrap();
            }
            FeedStep::Lost => panic!("the log has lost entries"),
        }
    }
}

fn region_at(path: &Path) -> Session {
    let region = Region::attach_or_create(path, &CreateOptions::default());
    region.unwrap().session().unwrap()
}

#[test]
fn after_a_promotion_what_the_new_owner_has_is_notified_and_what_was_not_read_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let [old_path, new_path] = ["old", "new"].map(|name| folder.path().join(name));
    let target = receiver();
    let node = node_at(&old_path, TestNodeOptions::default());
    let mut client = node.client();
    subscribe(&mut client, "s1", &target.uri("/"));
    client.put_record("before", "{}", &[]).is(201, "");
    target.wait(|all| names(all, "before"));
    drop((client, node));
    let old = region_at(&old_path);
    for (_, namespace) in old.namespaces().unwrap() {
        old.stream(namespace, WhenFull::Refuse).unwrap();
    }
    let copy = region_at(&new_path);
    follow(&old, &copy);
    // The owner is lost before its notifier has read this.
    let ue = old.known_namespace("ue").unwrap().unwrap();
    assert_eq!(ue.kind(), Kind::Mixed);
    for number in 0..3_u8 {
        old.put(ue, &[b'l', b'0' + number], b"").unwrap();
    }
    follow(&old, &copy);
    copy.promote_logged(5, WhenFull::Refuse, false).unwrap();
    // An attached process is faster than the node.
    let ue = copy.known_namespace("ue").unwrap().unwrap();
    copy.put(ue, b"since", b"").unwrap();
    let node = node_at(&new_path, TestNodeOptions::default());
    target.wait(|all| names(all, "since"));
    assert!(lost(&node) >= 3, "{}", lost(&node));
    // Another run counts nothing again.
    let counted = lost(&node);
    drop(node);
    let node = node_at(&new_path, TestNodeOptions::default());
    node.client().put_record("later", "{}", &[]).is(201, "");
    target.wait(|all| names(all, "later"));
    assert_eq!(lost(&node), 0, "{counted} before");
}

#[test]
fn after_a_promotion_changes_of_a_record_follow_those_that_were_due_before() {
    let folder = tempfile::tempdir().unwrap();
    let [old_path, new_path] = ["old", "new"].map(|name| folder.path().join(name));
    // Each version is refused once, and the first one while the old owner is there.
    let (is_new, refused) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Vec<String>>>::default());
    let promoted = Arc::clone(&is_new);
    let target = scripted(move |one| {
        let mut refused = refused.lock().unwrap();
        if !promoted.load(Ordering::SeqCst) {
            return Some(503);
        }
        let is_first = one.body.contains("one") && !refused.contains(&one.body);
        refused.push(one.body.clone());
        Some(if is_first { 503 } else { 204 })
    });
    let node = node_at(&old_path, TestNodeOptions::default());
    let mut client = node.client();
    subscribe(&mut client, "s1", &target.uri("/"));
    client.put_record("r", "{}", &[("b", "one")]).is(201, "");
    until("it is refused", || node.retries() > 0);
    drop((client, node));
    let old = region_at(&old_path);
    for (_, namespace) in old.namespaces().unwrap() {
        old.stream(namespace, WhenFull::Refuse).unwrap();
    }
    let copy = region_at(&new_path);
    // What the copy creates has other numbers than in the region of the owner.
    copy.namespace("own", &Schema::default()).unwrap();
    follow(&old, &copy);
    let numbers = [&old, &copy].map(|one| one.known_namespace("ue").unwrap().unwrap().number());
    assert_ne!(numbers[0], numbers[1]);
    copy.promote_logged(5, WhenFull::Refuse, false).unwrap();
    let node = node_at(&new_path, TestNodeOptions::default());
    let mut client = node.client();
    client.put_record("r", "{}", &[("b", "two")]).is(204, "");
    until("both are due", || node.notified("data_change", "due") > 0);
    is_new.store(true, Ordering::SeqCst);
    let received = target.wait_for(2);
    assert!(received[0].body.contains("one"), "{received:?}");
    assert!(received[1].body.contains("two"), "{received:?}");
}

#[test]
fn a_new_subscription_is_not_told_what_was_before_it_by_a_later_node() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("region");
    let (other, target) = (receiver(), receiver());
    let node = node_at(&path, TestNodeOptions::default());
    let mut client = node.client();
    let body = json!({
        "clientId": {"nfSetId": "set1"}, "callbackReference": other.uri("/"),
        "subFilter": {"operations": ["DELETED"]},
    });
    client.send("PUT", "/subs-to-notify/s1", &[JSON], body.to_string()).is(201, "");
    client.put_record("old", "{}", &[]).is(201, "");
    subscribe(&mut client, "s2", &target.uri("/"));
    let session = node.session();
    let tail = session.log_tail_position().unwrap();
    until("the position behind it is stored", || stored_position(&session) >= tail);
    drop((client, session, node));
    let node = node_at(&path, TestNodeOptions::default());
    node.client().put_record("new", "{}", &[]).is(201, "");
    let received = target.wait(|all| names(all, "new"));
    assert!(!names(&received, "old"), "{received:?}");
}

#[test]
fn a_storage_that_was_removed_and_is_there_again_is_notified() {
    let (node, target) = (node(), receiver());
    let mut client = node.client();
    subscribe(&mut client, "s1", &target.uri("/"));
    client.put_record("r1", "{}", &[]).is(201, "");
    client.send("DELETE", "/records/r1", &[], "").is(204, "");
    target.wait_for(2);
    let session = node.session();
    let records = session.known_namespace("ue").unwrap().unwrap();
    until("nothing reads it", || session.remove_namespace(records).is_ok());
    client.put_record("r2", "{}", &[]).is(201, "");
    target.wait(|all| names(all, "r2"));
}

/// Another interface shortens the life of the record `r1`.
fn expire(node: &TestNode) {
    let session = node.session();
    let records = session.known_namespace("ue").unwrap().unwrap();
    let shortened = session.transact(|txn| {
        let view = txn.get(records, b"r1")?.unwrap();
        let tags: Vec<(&str, &[u8])> = view.tags().collect();
        let metadata = Metadata { tags: &tags, expires_ms: now_ms() + 1 };
        txn.put_with_metadata(records, b"r1", view.bytes(), metadata)
    });
    shortened.unwrap();
}

#[test]
fn the_callback_of_a_record_is_called_however_its_name_is_written() {
    let (node, target) = (node(), receiver());
    let mut client = node.client();
    let name = r"callback\u0052eference";
    let meta = format!(r#"{{"ttl": "2999-01-01T00:00:00Z", "{name}": "{}"}}"#, target.uri("/put"));
    client.put_record("r1", &meta, &[("value", "1")]).is(201, "");
    expire(&node);
    target.wait(|all| all.iter().any(|one| one.path == "/put"));
    drop((client, node));
    // A storage that is not logged yet.
    let node = self::node();
    let mut client = node.client();
    client.put_record("r1", r#"{"ttl": "2999-01-01T00:00:00Z"}"#, &[("value", "1")]).is(201, "");
    let uri = target.uri("/patch");
    let patch = format!(r#"[{{"op": "add", "path": "/{name}", "value": "{uri}"}}]"#);
    client.send("PATCH", "/records/r1/meta", &[PATCH], patch).is(204, "");
    expire(&node);
    target.wait(|all| all.iter().any(|one| one.path == "/patch"));
}
