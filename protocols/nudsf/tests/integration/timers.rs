//! Timers (`tm01` to `tm06`).

#![expect(clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nearstate_nudsf::NotifySettings;
use nearstate_nudsf::limits::{LIST_BYTES_MAX, OutboxLimits};
use nearstate_store::{CreateOptions, Metadata, Region, Schema, TagSchema, WhenFull};
use serde_json::{Value, json};

use crate::fixture::{JSON, PATCH, TestClient, TestNodeOptions, encode, node, node_at, node_of};
use crate::receiver::{distinct, receiver, scripted};

const TIMERS: &str = "/nudsf-timer/v1/Realm01/Storage01/timers";
const PAST: &str = "2020-01-01T00:00:00Z";
const FUTURE: &str = "2999-01-01T00:00:00Z";

fn path(id: &str) -> String {
    format!("{TIMERS}/{id}")
}

fn put(client: &mut TestClient, id: &str, timer: &Value, status: u16) {
    client.send("PUT", &path(id), &[JSON], timer.to_string()).is(status, "");
}

fn ids(reply: &Value) -> Vec<String> {
    let mut ids: Vec<String> =
        serde_json::from_value(reply["timerIds"].clone()).unwrap_or_default();
    ids.sort();
    ids
}

fn tagged(ue: &str, expires: &str) -> Value {
    json!({"expires": expires, "metaTags": {"ueId": [ue]}})
}

#[test]
fn tm01_timers_are_found_by_tags_and_by_expiry() {
    let node = node();
    let mut client = node.client();
    client.get(TIMERS).is(204, "");
    for (id, ue, expires) in [("t1", "1", FUTURE), ("t2", "2", FUTURE), ("t3", "2", PAST)] {
        put(&mut client, id, &tagged(ue, expires), 201);
    }
    assert_eq!(ids(&client.get(TIMERS).json()), ["t1", "t2", "t3"]);
    let filter = encode(r#"{"op":"EQ","tag":"ueId","value":"2"}"#);
    let found = client.get(&format!("{TIMERS}?filter={filter}"));
    assert_eq!(ids(&found.is(200, "").json()), ["t2", "t3"]);
    for query in ["expired-filter", "expired-filter=null"] {
        let found = client.get(&format!("{TIMERS}?{query}&filter={filter}"));
        assert_eq!(ids(&found.is(200, "").json()), ["t3"]);
    }
    let named = encode(r#"{"recordIdList":["t1","none"]}"#);
    assert_eq!(ids(&client.get(&format!("{TIMERS}?filter={named}")).json()), ["t1"]);
    client.get(&format!("{TIMERS}?filter=x")).is(400, "OPTIONAL_QUERY_PARAM_INCORRECT");
    client.get("/nudsf-timer/v1/None/Storage01/timers").is(404, "REALM_NOT_FOUND");
}

#[test]
fn tm01_a_list_of_timers_is_bounded() {
    let node = node();
    let mut client = node.client();
    let session = node.session();
    let timers = session.known_namespace("ue:timers").unwrap().unwrap();
    let padding = "x".repeat(900);
    let count = 2 * LIST_BYTES_MAX / 900;
    let metadata = Metadata { tags: &[("a", b"1")], expires_ms: 0 };
    let all: Vec<usize> = (0..count).collect();
    for some in all.chunks(100) {
        session
            .transact(|txn| -> nearstate_store::Result<()> {
                for number in some {
                    let key = format!("{number}-{padding}");
                    txn.put_with_metadata(timers, key.as_bytes(), b"", metadata)?;
                }
                Ok(())
            })
            .unwrap();
    }
    let filter = encode(r#"{"op":"EQ","tag":"a","value":"1"}"#);
    for query in [String::new(), format!("?filter={filter}")] {
        let listed = ids(&client.get(&format!("{TIMERS}{query}")).is(200, "").json()).len();
        assert!((count / 3..=count / 2).contains(&listed), "{listed} of {count}");
    }
}

#[test]
fn tm02_timers_are_deleted_by_tags_and_by_expiry() {
    let node = node();
    let mut client = node.client();
    for (id, ue, expires) in [("t1", "1", FUTURE), ("t2", "2", FUTURE), ("t3", "2", PAST)] {
        put(&mut client, id, &tagged(ue, expires), 201);
    }
    // It is deleted once it has expired.
    let path = format!("{TIMERS}?expired-filter");
    let expired = loop {
        let reply = client.send("DELETE", &path, &[], "");
        if reply.status != 204 {
            break reply;
        }
    };
    assert_eq!(ids(&expired.is(200, "").json()), ["t3"]);
    let filter = encode(r#"{"op":"EQ","tag":"ueId","value":"2"}"#);
    let by_tag = format!("{TIMERS}?filter={filter}");
    assert_eq!(ids(&client.send("DELETE", &by_tag, &[], "").is(200, "").json()), ["t2"]);
    client.send("DELETE", &by_tag, &[], "").is(204, "");
    assert_eq!(ids(&client.get(TIMERS).json()), ["t1"]);
    // The contract requires no filter.
    put(&mut client, "t4", &tagged("4", FUTURE), 201);
    let all = client.send("DELETE", TIMERS, &[], "").is(200, "").json();
    assert_eq!(ids(&all), ["t1", "t4"]);
    client.send("DELETE", TIMERS, &[], "").is(204, "");
    client.get(TIMERS).is(204, "");
}

#[test]
fn tm02_a_timer_that_is_due_is_not_deleted_as_expired_before_it_is_notified() {
    let folder = tempfile::tempdir().unwrap();
    let (notify, held) = held_lock(&folder);
    let options = TestNodeOptions { notify, ..TestNodeOptions::default() };
    let (node, target) = (node_of(options), receiver());
    let mut client = node.client();
    let timer = json!({"expires": PAST, "callbackReference": target.uri("/t")});
    put(&mut client, "t1", &timer, 201);
    let expired = format!("{TIMERS}?expired-filter");
    assert_eq!(ids(&client.get(&expired).is(200, "").json()), ["t1"]);
    client.send("DELETE", &expired, &[], "").is(204, "");
    drop(held);
    target.wait_for(1);
    let deleted = client.send("DELETE", &expired, &[], "").is(200, "").json();
    assert_eq!(ids(&deleted), ["t1"]);
}

#[test]
fn tm03_put_creates_and_replaces_a_timer_that_fires_and_is_then_deleted() {
    let (node, target) = (node(), receiver());
    let mut client = node.client();
    put(&mut client, "t1", &json!({"expires": FUTURE}), 201);
    let timer = json!({
        "expires": PAST, "metaTags": {"ueId": ["1"]}, "callbackReference": target.uri("/t"),
        "periodicRepetition": 1, "repetitionCount": 2, "deleteAfter": 0,
    });
    put(&mut client, "t1", &timer, 204);
    let received = distinct(&target.wait(|all| distinct(all).len() >= 3));
    let expiries: Vec<Value> = received
        .iter()
        .map(|one| serde_json::from_str::<Value>(&one.body).unwrap_or_default()["expires"].clone())
        .collect();
    let instants = ["2020-01-01T00:00:00Z", "2020-01-01T00:00:01Z", "2020-01-01T00:00:02Z"];
    assert_eq!(expiries, instants, "repetitions are in order, also those of the past");
    assert_eq!(
        (received[0].path.as_str(), received[0].content_type.as_str()),
        ("/t", "application/json",)
    );
    let body: Value = serde_json::from_str(&received[0].body).unwrap_or_default();
    assert_eq!((&body["timerId"], &body["metaTags"]), (&json!("t1"), &json!({"ueId": ["1"]})));
    client.get(&path("t1")).is(404, "TIMER_NOT_FOUND");
    // An answer that is late can be one of a timer that was armed again meanwhile.
    let due = node.notified("timer_expiry", "due");
    assert!(due == 3 || (due > 3 && node.retries() > 0), "{due}");
    for (timer, param, cause) in [
        (json!({}), "/expires", "MANDATORY_IE_MISSING"),
        (json!({"expires": 1}), "/expires", "MANDATORY_IE_INCORRECT"),
        (json!({"expires": PAST, "deleteAfter": "x"}), "/deleteAfter", "OPTIONAL_IE_INCORRECT"),
    ] {
        let reply = client.send("PUT", &path("t2"), &[JSON], timer.to_string());
        assert_eq!(reply.is(400, cause).json()["invalidParams"][0]["param"], param);
    }
    client.send("PUT", &path("t2"), &[], "{}").is(415, "UNSUPPORTED_MEDIA_TYPE");
}

#[test]
fn tm04_a_patch_reports_discarded_items_and_arms_the_timer_again() {
    let (node, target) = (node(), receiver());
    let mut client = node.client();
    let timer = json!({"expires": FUTURE, "callbackReference": target.uri("/t")});
    put(&mut client, "t1", &timer, 201);
    let replace =
        |path: &str, value: Value| json!([{"op": "replace", "path": path, "value": value}]);
    let expires = replace("/expires", json!(PAST)).to_string();
    client.send("PATCH", &path("t1"), &[PATCH], &expires).is(204, "");
    target.wait_for(1);
    let again = replace("/expires", json!("2020-01-01T00:00:09Z")).to_string();
    client.send("PATCH", &path("t1"), &[PATCH], &again).is(204, "");
    target.wait_for(2);
    let wrong = replace("/deleteAfter", json!("x")).to_string();
    let reported = client.send("PATCH", &path("t1"), &[PATCH], &wrong);
    assert_eq!(reported.is(200, "").json()["report"][0]["path"], "/deleteAfter");
    client.send("PATCH", &path("none"), &[PATCH], &expires).is(404, "TIMER_NOT_FOUND");
}

#[test]
fn tm04_a_timer_that_has_lost_its_last_tag_has_none() {
    let node = node();
    let mut client = node.client();
    put(&mut client, "t1", &tagged("1", FUTURE), 201);
    for pointer in ["/metaTags/ueId", "/metaTags/ueId/0"] {
        put(&mut client, "t1", &tagged("1", FUTURE), 204);
        let patch = json!([{"op": "remove", "path": pointer}]).to_string();
        client.send("PATCH", &path("t1"), &[PATCH], patch).is(204, "");
        let expected = json!({"timerId": "t1", "expires": FUTURE});
        assert_eq!(client.get(&path("t1")).is(200, "").json(), expected, "{pointer}");
    }
}

#[test]
fn tm04_a_patch_changes_how_long_an_expired_timer_is_kept() {
    let (node, target) = (node(), receiver());
    let mut client = node.client();
    let timer = json!({"expires": PAST, "callbackReference": target.uri("/t")});
    put(&mut client, "t1", &timer, 201);
    target.wait_for(1);
    let keep =
        |seconds: u64| json!([{"op": "add", "path": "/deleteAfter", "value": seconds}]).to_string();
    // A century: it is kept, and was not armed again.
    client.send("PATCH", &path("t1"), &[PATCH], keep(3_155_760_000)).is(204, "");
    client.get(&format!("{TIMERS}?expired-filter")).is(200, "");
    client.send("PATCH", &path("t1"), &[PATCH], keep(1)).is(204, "");
    while client.get(&path("t1")).status == 200 {}
    client.get(&path("t1")).is(404, "TIMER_NOT_FOUND");
    assert_eq!(node.notified("timer_expiry", "due"), 1);
}

#[test]
fn tm05_a_deleted_timer_is_gone() {
    let node = node();
    let mut client = node.client();
    put(&mut client, "t1", &json!({"expires": FUTURE}), 201);
    client.send("DELETE", &path("t1"), &[], "").is(204, "");
    client.send("DELETE", &path("t1"), &[], "").is(404, "TIMER_NOT_FOUND");
    client.send("POST", &path("t1"), &[], "").is(405, "METHOD_NOT_ALLOWED");
    client
        .get("/nudsf-timer/v1/Realm01/Storage01/records")
        .is(404, "RESOURCE_URI_STRUCTURE_NOT_FOUND");
}

#[test]
fn tm06_get_returns_the_timer_with_its_id() {
    let node = node();
    let mut client = node.client();
    put(&mut client, "t%2F1", &tagged("1", FUTURE), 201);
    let expected = json!({"timerId": "t/1", "expires": FUTURE, "metaTags": {"ueId": ["1"]}});
    assert_eq!(client.get(&path("t%2F1")).is(200, "").json(), expected);
    client.get(&path("none")).is(404, "TIMER_NOT_FOUND");
}

/// Settings with which no notifier runs as long as the file is open: another process has the lock.
fn held_lock(folder: &tempfile::TempDir) -> (NotifySettings, File) {
    let lock = folder.path().join("lock");
    let held = File::create(&lock).and_then(|file| file.lock().map(|()| file));
    let notify = NotifySettings { lock: Some(lock), ..NotifySettings::default() };
    (notify, held.unwrap_or_else(|error| panic!("{error}")))
}

fn with_tags(values: usize, more: &Value) -> Value {
    let values: Vec<String> = (0..values).map(|value| value.to_string()).collect();
    let mut timer = json!({"expires": FUTURE, "metaTags": {"a": values}});
    for (name, value) in more.as_object().into_iter().flatten() {
        timer[name] = value.clone();
    }
    timer
}

#[test]
fn tm03_a_timer_that_could_not_be_stored_as_expired_is_refused() {
    let node = node();
    let mut client = node.client();
    // 64 values of tags in all: one of an armed timer, two until the deletion of an expired one.
    for (values, more) in [(63, json!({})), (63, json!({"deleteAfter": 0}))] {
        put(&mut client, "t1", &with_tags(values, &more), 201);
        client.send("DELETE", &path("t1"), &[], "").is(204, "");
    }
    for more in [json!({"deleteAfter": 10}), json!({"schemaId": "s"})] {
        put(&mut client, "t1", &with_tags(62, &more), 201);
        client.send("DELETE", &path("t1"), &[], "").is(204, "");
        let text = with_tags(63, &more).to_string();
        let refused = client.send("PUT", &path("t1"), &[JSON], text);
        assert_eq!(refused.is(400, "").json()["invalidParams"][0]["param"], "/metaTags");
        client.get(&path("t1")).is(404, "");
    }
    put(&mut client, "t1", &with_tags(63, &json!({})), 201);
    let patch = json!([{"op": "add", "path": "/deleteAfter", "value": 10}]).to_string();
    let reported = client.send("PATCH", &path("t1"), &[PATCH], patch);
    assert_eq!(reported.is(200, "").json()["report"][0]["path"], "/deleteAfter");
}

#[test]
fn req_a_timer_that_cannot_expire_does_not_stop_the_others() {
    let (node, target) = (node(), receiver());
    let mut client = node.client();
    let session = node.session();
    let timers = session.known_namespace("ue:timers").unwrap().unwrap();
    // An attached process writes what the interface refuses.
    let timer = with_tags(63, &json!({"expires": PAST, "deleteAfter": 3_000_000_000_u32}));
    let bytes = [&[0; 8], timer.to_string().as_bytes()].concat();
    let values: Vec<String> = (0..63).map(|value| value.to_string()).collect();
    let mut tags: Vec<(&str, &[u8])> = values.iter().map(|v| ("a", v.as_bytes())).collect();
    tags.push(("\u{1}due", &[0; 8]));
    let metadata = Metadata { tags: &tags, expires_ms: 0 };
    session.transact(|txn| txn.put_with_metadata(timers, b"bad", &bytes, metadata)).unwrap();
    let good = json!({"expires": PAST, "callbackReference": target.uri("/t")});
    put(&mut client, "good", &good, 201);
    target.wait_for(1);
    assert!(node.metrics.notifier_events().contains(&("set_aside", 1)), "it is reported once");
    client.get(&path("bad")).is(200, "");
}

#[test]
fn req_records_whose_time_is_none_do_not_stop_timers() {
    let (node, target) = (node(), receiver());
    let session = node.session();
    let timers = session.known_namespace("ue:timers").unwrap().unwrap();
    // As a RESP client can: times that are too short, and a second one that is far away.
    let far = u64::MAX.to_be_bytes();
    session
        .transact(|txn| -> nearstate_store::Result<()> {
            for number in 0..64_u8 {
                let tags: &[(&str, &[u8])] = match number % 3 {
                    0 => &[("\u{1}due", b"")],
                    1 => &[("\u{1}due", &[0; 7])],
                    _ => &[("\u{1}due", &[0; 9]), ("\u{1}due", &far)],
                };
                let metadata = Metadata { tags, expires_ms: 0 };
                txn.put_with_metadata(timers, &[b'f', number], b"", metadata)?;
            }
            Ok(())
        })
        .unwrap();
    let mut client = node.client();
    let good = json!({"expires": PAST, "callbackReference": target.uri("/t")});
    put(&mut client, "good", &good, 201);
    target.wait_for(1);
    assert!(session.get(timers, &[b'f', 0]).unwrap().is_none(), "it is no timer");
}

#[test]
fn req_timers_that_no_commit_can_change_together_are_notified_one_by_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("region");
    // A commit replaces at most a 128th of the heap, 512 KiB, where the log has what it replaces.
    let region =
        Region::create(&path, &CreateOptions { bytes_max: 64 << 20, ..Default::default() })
            .unwrap();
    let session = region.session().unwrap();
    let order =
        |name: &str| TagSchema { name: name.to_owned(), is_ordered: true, ..Default::default() };
    let outbox = Schema { tags: vec![order("order")], ..Schema::default() };
    session
        .stream(session.namespace("nudsf:outbox", &outbox).unwrap(), WhenFull::LoseOldest)
        .unwrap();
    let (notify, held) = held_lock(&folder);
    let node = node_at(&path, TestNodeOptions { notify, ..TestNodeOptions::default() });
    let timers = session.known_namespace("ue:timers").unwrap().unwrap();
    session.stream(timers, WhenFull::LoseOldest).unwrap();
    let target = receiver();
    let mut client = node.client();
    for number in 0..12 {
        let padding = "x".repeat(if number % 2 == 0 { 250_000 } else { 300_000 });
        let uri = target.uri("/t");
        let timer = json!({"expires": PAST, "callbackReference": uri, "padding": padding});
        put(&mut client, &format!("t{number}"), &timer, 201);
    }
    drop(held);
    // What was delivered is removed as well, so that the last ones arrive.
    target.wait(|all| all.iter().map(|one| &one.body).collect::<BTreeSet<_>>().len() == 12);
    assert_eq!(node.notified("timer_expiry", "due"), 12);
}

/// A callback at an address on which no process listens.
fn dead_uri() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0");
    let address = listener.and_then(|listener| listener.local_addr());
    format!("http://{}/", address.unwrap_or_else(|error| panic!("{error}")))
}

#[test]
fn req_timers_that_have_missed_many_repetitions_do_not_delay_others() {
    let folder = tempfile::tempdir().unwrap();
    let (notify, held) = held_lock(&folder);
    let options = TestNodeOptions { notify, ..TestNodeOptions::default() };
    let (node, target) = (node_of(options), receiver());
    let mut client = node.client();
    let (epoch, uri) = ("1970-01-01T00:00:00Z", dead_uri());
    for number in 0..64 {
        let endless = json!({"expires": epoch, "periodicRepetition": 1, "callbackReference": uri});
        put(&mut client, &format!("endless{number}"), &endless, 201);
    }
    let once = json!({"expires": PAST, "callbackReference": target.uri("/t")});
    put(&mut client, "once", &once, 201);
    drop(held);
    target.wait_for(1);
    let due = node.notified("timer_expiry", "due");
    assert!(due < 64 * 4096, "{due}: the others have not delivered all of theirs before");
}

#[test]
fn req_timers_wait_for_room_in_the_outbox_and_are_all_notified() {
    const TIMERS_DUE: usize = 100;
    let folder = tempfile::tempdir().unwrap();
    let (notify, held) = held_lock(&folder);
    let limits = OutboxLimits { target_entries: 8, ..OutboxLimits::default() };
    let notify = NotifySettings { limits, ..notify };
    let node = node_of(TestNodeOptions { notify, ..TestNodeOptions::default() });
    let is_open = Arc::<AtomicBool>::default();
    let open = Arc::clone(&is_open);
    let target = scripted(move |_| Some(if open.load(Ordering::SeqCst) { 204 } else { 503 }));
    let mut client = node.client();
    for number in 0..TIMERS_DUE {
        let uri = target.uri(&format!("/t{number}"));
        put(
            &mut client,
            &format!("t{number}"),
            &json!({"expires": PAST, "callbackReference": uri}),
            201,
        );
    }
    let waiting = json!({"expires": PAST, "callbackReference": target.uri("/again"),
        "periodicRepetition": 1, "repetitionCount": 20});
    put(&mut client, "again", &waiting, 201);
    drop(held);
    while node.notified("timer_expiry", "due") < 8 {}
    // The time of each has passed, in the outbox or not.
    let expired = client.get(&format!("{TIMERS}?expired-filter")).is(200, "").json();
    assert_eq!(ids(&expired).len(), TIMERS_DUE + 1);
    is_open.store(true, Ordering::SeqCst);
    let count = |all: &[crate::receiver::Received], path: &str| {
        all.iter().filter(|one| one.path == path).count()
    };
    let arrived = target.wait(|all| {
        all.iter().map(|one| &one.path).collect::<BTreeSet<_>>().len() == TIMERS_DUE + 1
            && count(all, "/again") >= 21
    });
    assert_eq!(arrived.len(), TIMERS_DUE + 21, "once each");
    let counts = ["due", "dropped"].map(|result| node.notified("timer_expiry", result));
    assert_eq!(counts, [TIMERS_DUE as u64 + 21, 0]);
    // An expired timer that has waited is like any other.
    let expired = client.get(&format!("{TIMERS}?expired-filter")).is(200, "").json();
    assert_eq!(ids(&expired).len(), TIMERS_DUE + 1);
    client.send("DELETE", &format!("{TIMERS}?expired-filter"), &[], "").is(200, "");
    client.get(TIMERS).is(204, "");
}

#[test]
fn req_the_last_missed_repetitions_of_a_timer_are_notified() {
    let node = node();
    let mut client = node.client();
    let epoch = "1970-01-01T00:00:00Z";
    let silent = json!({"expires": epoch, "periodicRepetition": 1});
    put(&mut client, "silent", &silent, 201);
    let mut missed = silent;
    missed["repetitionCount"] = json!(5000);
    missed["callbackReference"] = json!(dead_uri());
    put(&mut client, "missed", &missed, 201);
    let expired = format!("{TIMERS}?filter={}", encode(r#"{"recordIdList":["missed"]}"#));
    while client.get(&format!("{expired}&expired-filter")).status == 204 {}
    while client.get(&path("missed")).json()["repetitionCount"] != 0 {}
    let last = client.get(&path("missed")).json();
    assert_eq!(last["expires"], "1970-01-01T01:23:20Z");
    // The first expiry and its 5,000 repetitions.
    let counts = ["due", "dropped"].map(|result| node.notified("timer_expiry", result));
    assert_eq!(counts, [4096, 5001 - 4096]);
    // No callback: nothing is notified, and it is at the present time at once.
    assert_ne!(client.get(&path("silent")).json()["expires"], epoch);
}

/// TS 29.598 has no conditions for timers; RFC 9110 forbids to ignore them.
#[test]
fn tm03_conditions_of_a_write_are_kept() {
    let node = node();
    let mut client = node.client();
    let timer = json!({"expires": FUTURE, "metaTags": {"a": ["1", "1"]}});
    let body = timer.to_string();
    client.send("PUT", &path("t"), &[JSON, ("If-Match", "*")], &body).is(412, "");
    let created = client.send("PUT", &path("t"), &[JSON, ("If-None-Match", "*")], &body);
    assert_eq!(created.is(201, "").header("location"), None, "the contract has none");
    client.send("PUT", &path("t"), &[JSON, ("If-None-Match", "*")], &body).is(412, "");
    let patch = json!([{"op": "add", "path": "/deleteAfter", "value": 5}]).to_string();
    client.send("PATCH", &path("t"), &[PATCH, ("If-Match", "\"x\"")], patch).is(412, "");
    client.send("DELETE", &path("t"), &[("If-Match", "\"x\"")], "").is(412, "");
    assert_eq!(client.get(&path("t")).json()["metaTags"], json!({"a": ["1", "1"]}));
    client.send("DELETE", &path("t"), &[("If-Match", "*")], "").is(204, "");
}
