//! Notifications: what they contain, their order, targets that are slow, fail or are gone, and
//! several nodes of a region.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use nearstate_node::ClientTls;
use nearstate_nudsf::NotifySettings;
use nearstate_store::{Metadata, lease_clock, now_ms};
use serde_json::{Value, json};

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use crate::fixture::{JSON, TestClient, TestNodeOptions, encode, node, node_at, node_of};
use crate::receiver::{
    Received, Script, distinct, own_address, receiver, receiver_at, receiver_over, scripted,
};

const NF: &str = "4947a69a-f61b-4bc1-b9da-47c9c5d14b64";
/// Requests that a test makes while it waits for the node.
const GETS_MAX: u32 = 100_000;
const RECORDS: &str = "http://udsf.example/nudsf-dr/v1/Realm01/Storage01/records";

fn subscribe(client: &mut TestClient, id: &str, callback: &str, more: &Value) {
    let mut body = json!({"clientId": {"nfId": NF}, "callbackReference": callback});
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    client.send("PUT", &format!("/subs-to-notify/{id}"), &[JSON], body.to_string()).is(201, "");
}

/// The descriptor of a data change, as (operation, record).
fn descriptor(received: &Received) -> (String, String) {
    let text = received.body.split("\r\n\r\n").nth(1).unwrap().split("\r\n--").next().unwrap();
    let value: Value = serde_json::from_str(text).unwrap();
    let field = |name: &str| value[name].as_str().unwrap().to_owned();
    (field("operationType"), field("recordRef"))
}

fn operations(all: &[Received]) -> Vec<String> {
    all.iter().map(|one| descriptor(one).0).collect()
}

#[test]
fn req_changes_of_every_interface_are_notified_in_order_with_the_record() {
    let (node, target) = (node(), receiver());
    let mut client = node.client();
    subscribe(&mut client, "s1", &target.uri("/changes"), &json!({}));
    client.put_record("r1", r#"{"tags":{"ueId":["1"]}}"#, &[("b1", "one")]).is(201, "");
    client.send("PUT", "/records/r1/blocks/b1", &[], "two").is(204, "");
    // An attached process changes and deletes it.
    let session = node.session();
    let namespace = session.known_namespace("ue").unwrap().unwrap();
    session.transact(|txn| txn.set_fields(namespace, b"r1", &[(b"b2", b"three")])).unwrap();
    session.delete(namespace, b"r1").unwrap();
    let received = target.wait_for(4);
    assert_eq!(operations(&received), ["CREATED", "UPDATED", "UPDATED", "DELETED"]);
    assert_eq!(descriptor(&received[0]).1, format!("{RECORDS}/r1"));
    let whole = &received[2].body;
    for part in ["Content-Id: meta", r#""ueId":["1"]"#, "Content-Id: b1", "two", "Content-Id: b2"] {
        assert!(whole.contains(part), "{part}: {whole}");
    }
    assert!(received[2].content_type.starts_with("multipart/mixed; boundary="));
    assert!(received[3].body.contains("three"), "a deletion has the last record");
}

#[test]
fn req_a_subscription_selects_operations_and_resources() {
    let (node, target) = (node(), receiver());
    let mut client = node.client();
    let filter = |uris: &[String], operations: &[&str]| {
        let filter = json!({"monitoredResourceUris": uris, "operations": operations});
        json!({"subFilter": filter})
    };
    let record = format!("{RECORDS}/r1");
    subscribe(
        &mut client,
        "s1",
        &target.uri("/deleted"),
        &filter(std::slice::from_ref(&record), &["DELETED"]),
    );
    subscribe(
        &mut client,
        "s2",
        &target.uri("/block"),
        &filter(&[format!("{record}/blocks/b")], &[]),
    );
    subscribe(&mut client, "s3", &target.uri("/gone"), &json!({}));
    let owner = encode(&json!({"nfId": NF}).to_string());
    let path = format!("/subs-to-notify/s3?client-id={owner}");
    client.send("DELETE", &path, &[], "").is(204, "");
    for id in ["r1", "r2"] {
        client.put_record(id, "{}", &[("a", "1")]).is(201, "");
        client.send("PUT", &format!("/records/{id}/blocks/b"), &[], "2").is(201, "");
        client.send("PUT", &format!("/records/{id}/blocks/a"), &[], "3").is(204, "");
        client.send("DELETE", &format!("/records/{id}"), &[], "").is(204, "");
    }
    let received = target.wait_for(3);
    let seen: Vec<(&str, String)> =
        received.iter().map(|one| (one.path.as_str(), descriptor(one).0)).collect();
    let expected = [("/block", "UPDATED"), ("/block", "DELETED"), ("/deleted", "DELETED")];
    for (path, operation) in expected {
        assert!(seen.contains(&(path, operation.to_owned())), "{seen:?}");
    }
    assert_eq!(node.notified("data_change", "due"), 3);
}

#[test]
fn req_an_expired_record_is_delivered_and_is_then_gone() {
    let root = Some("http://udsf.example:80".to_owned());
    let notify = NotifySettings { root, ..NotifySettings::default() };
    let options = TestNodeOptions { notify, ..TestNodeOptions::default() };
    let (node, target) = (node_of(options), receiver());
    let mut client = node.client();
    let meta = json!({
        "ttl": "2999-01-01T00:00:00Z", "callbackReference": target.uri("/expired"),
        "tags": {"ueId": ["1"]},
    });
    client.put_record("r1", &meta.to_string(), &[("value", "last")]).is(201, "");
    subscribe(&mut client, "s1", &target.uri("/changes"), &json!({}));
    // Another interface shortens the life of the record.
    let session = node.session();
    let namespace = session.known_namespace("ue").unwrap().unwrap();
    session
        .transact(|txn| {
            let view = txn.get(namespace, b"r1")?.unwrap();
            let tags: Vec<(&str, &[u8])> = view.tags().collect();
            let metadata = Metadata { tags: &tags, expires_ms: now_ms() + 1 };
            txn.put_with_metadata(namespace, b"r1", b"last", metadata)
        })
        .unwrap();
    let received = target.wait_for(3);
    let expired = received.iter().find(|one| one.path == "/expired").unwrap();
    let uri = "http://udsf.example:80/nudsf-dr/v1/Realm01/Storage01/records/r1";
    assert_eq!(expired.location, uri);
    assert!(expired.body.contains("last") && expired.body.contains("ueId"), "{expired:?}");
    let changes: Vec<Received> =
        received.iter().filter(|one| one.path == "/changes").cloned().collect();
    assert_eq!(operations(&changes), ["UPDATED", "DELETED"]);
    client.get("/records/r1").is(404, "RECORD_NOT_FOUND");
    assert_eq!(node.notified("record_expired", "due"), 1);
}

#[test]
fn req_the_expiry_of_a_subscription_is_notified_ahead_and_once() {
    let (node, target) = (node(), receiver());
    let mut client = node.client();
    let more = json!({
        "expiry": "2999-01-01T00:00:00Z", "expiryNotification": 60_000_000_000_u64,
        "expiryCallbackReference": target.uri("/expiry"),
    });
    subscribe(&mut client, "s1", &target.uri("/changes"), &more);
    subscribe(&mut client, "s2", &target.uri("/changes"), &json!({}));
    let received = target.wait_for(1);
    let body: Value = serde_json::from_str(&received[0].body).unwrap();
    assert_eq!(
        (received[0].path.as_str(), &body["expiredSubscriptions"][0]["expiry"]),
        ("/expiry", &more["expiry"],)
    );
    // It still exists, and notifies of changes.
    client.get("/subs-to-notify/s1").is(200, "");
    client.put_record("r1", "{}", &[]).is(201, "");
    target.wait_for(3);
    assert_eq!(node.notified("subscription_expiry", "due"), 1);
}

#[test]
fn req_the_announcement_of_the_expiry_does_not_change_the_entity_tag() {
    let (node, target) = (node(), receiver());
    let mut client = node.client();
    let mut body = json!({
        "clientId": {"nfId": NF}, "callbackReference": target.uri("/changes"),
        "expiry": "2999-01-01T00:00:00Z", "expiryNotification": 60_000_000_000_u64,
        "expiryCallbackReference": target.uri("/expiry"),
    });
    let created = client.send("PUT", "/subs-to-notify/s1", &[JSON], body.to_string());
    target.wait_for(1);
    assert_eq!(client.get("/subs-to-notify/s1").is(200, "").etag(), created.etag());
    // The client is told that it expires, and renews it.
    body["expiryNotification"] = json!(1);
    let renew = [JSON, ("If-Match", created.etag())];
    let renewed = client.send("PUT", "/subs-to-notify/s1", &renew, body.to_string());
    assert_ne!(renewed.is(200, "").etag(), created.etag());
    let stale = client.send("PUT", "/subs-to-notify/s1", &renew, body.to_string());
    stale.is(412, "PRECONDITION_FAILED");
}

#[test]
fn req_a_target_that_fails_gets_everything_in_order_after_a_pause() {
    let failures = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&failures);
    let target = scripted(move |_| {
        Some(if counted.fetch_add(1, Ordering::Relaxed) < 3 { 503 } else { 204 })
    });
    let node = node();
    let mut client = node.client();
    subscribe(&mut client, "s1", &target.uri("/"), &json!({}));
    for number in 0..20 {
        let status = if number == 0 { 201 } else { 204 };
        let number = number.to_string();
        client.put_record("r1", "{}", &[("b", &format!("<{number}>"))]).is(status, "");
    }
    let all = target.wait(|all| distinct(all).len() >= 20);
    let received = distinct(&all);
    // Nothing that was accepted in time is sent again.
    assert!((all.len() - received.len()) as u64 <= node.retries(), "{all:#?}");
    for (number, one) in received.iter().enumerate() {
        assert!(one.body.contains(&format!("<{number}>")), "{number}: {one:?}");
    }
    // One for each failure, and for each answer that is late.
    assert!(node.retries() >= 3, "{}", node.retries());
}

#[test]
fn req_a_target_that_many_subscriptions_name_gets_all_of_one_transaction() {
    // More notifications than one commit may write records.
    const SUBSCRIPTIONS: usize = 60;
    const RECORDS_OF_ONE: usize = 80;
    let (node, target) = (node(), receiver());
    let mut client = node.client();
    for number in 0..SUBSCRIPTIONS {
        subscribe(&mut client, &format!("s{number}"), &target.uri("/"), &json!({}));
    }
    let session = node.session();
    let namespace = session.known_namespace("ue").unwrap().unwrap();
    session
        .transact(|txn| -> nearstate_store::Result<()> {
            for number in 0..RECORDS_OF_ONE {
                txn.put(namespace, format!("r{number}").as_bytes(), b"1")?;
            }
            Ok(())
        })
        .unwrap();
    let expected = SUBSCRIPTIONS * RECORDS_OF_ONE;
    // As many arrive at least: what is repeated is not counted twice.
    let received = target.wait(|all| all.len() >= expected && distinct(all).len() >= expected);
    let repeated = (received.len() - distinct(&received).len()) as u64;
    assert!(repeated <= node.retries(), "{repeated} were sent twice");
    // The notifier goes on behind it.
    client.put_record("last", "{}", &[]).is(201, "");
    let expected = expected + SUBSCRIPTIONS;
    target.wait(|all| all.len() >= expected && distinct(all).len() >= expected);
}

#[test]
fn req_slow_targets_beyond_the_number_that_is_served_leave_others_their_turn() {
    let target = receiver();
    let node = node();
    let mut client = node.client();
    let port = {
        let listener = std::net::TcpListener::bind("127.1.0.0:0").unwrap();
        listener.local_addr().unwrap().port()
    };
    // Each has an address of its own, on which no process listens.
    for number in 0..nearstate_nudsf::limits::TARGETS_MAX + 50 {
        let uri = format!("http://127.1.{}.{}:{port}/", number / 256, number % 256);
        subscribe(&mut client, &format!("dead{number}"), &uri, &json!({}));
    }
    // All tasks are taken before the receiver has an entry.
    client.put_record("r1", "{}", &[]).is(201, "");
    subscribe(&mut client, "s1", &target.uri("/"), &json!({}));
    client.put_record("r2", "{}", &[]).is(201, "");
    target.wait_for(1);
}

#[test]
fn req_slow_dead_and_refusing_targets_do_not_delay_others() {
    let (slow, refusing) = (scripted(|_| None), scripted(|_| Some(404)));
    let target = receiver();
    let node = node();
    let mut client = node.client();
    // A port on which no process listens.
    let dead = {
        let listener = std::net::TcpListener::bind(own_address()).unwrap();
        listener.local_addr().unwrap()
    };
    subscribe(&mut client, "s1", &slow.uri("/"), &json!({}));
    subscribe(&mut client, "s2", &refusing.uri("/"), &json!({}));
    subscribe(&mut client, "s3", &format!("http://{dead}/"), &json!({}));
    subscribe(&mut client, "s4", &target.uri("/"), &json!({}));
    for number in 0..10 {
        client.put_record(&format!("r{number}"), "{}", &[]).is(201, "");
    }
    target.wait(|all| distinct(all).len() >= 10);
    slow.wait_for(1);
    // The dead target is back and gets what it has missed.
    let back = receiver_at(dead, Arc::new(|_| Some(204)));
    let missed = distinct(&back.wait(|all| distinct(all).len() >= 10));
    assert_eq!(operations(&missed), ["CREATED"; 10]);
    // A refusal is final.
    let is_told = (0..GETS_MAX).any(|_| {
        client.get("/records/r0").is(200, "");
        node.notified("data_change", "rejected") >= 10
    });
    assert!(is_told, "{}", node.notified("data_change", "rejected"));
    assert_eq!(node.notified("data_change", "rejected"), 10);
}

#[test]
fn req_one_of_several_nodes_delivers_and_another_takes_over() {
    let target = receiver();
    let folder = tempfile::tempdir().unwrap();
    let (region, lock) = (folder.path().join("region"), folder.path().join("lock"));
    let options = || TestNodeOptions {
        notify: NotifySettings { lock: Some(lock.clone()), ..NotifySettings::default() },
        ..TestNodeOptions::default()
    };
    let first = node_at(&region, options());
    let second = node_at(&region, options());
    let mut client = second.client();
    subscribe(&mut client, "s1", &target.uri("/"), &json!({}));
    client.put_record("r1", "{}", &[]).is(201, "");
    target.wait_for(1);
    assert_eq!([&first, &second].map(|node| node.notified("data_change", "due")), [1, 0]);
    drop(first);
    client.put_record("r1", "{}", &[("b", "2")]).is(204, "");
    let received = target.wait(|all| operations(all).iter().any(|one| one == "UPDATED"));
    // The first node may have ended between the answer and the removal: then the entry is repeated.
    let mut seen = operations(&received);
    seen.dedup();
    assert_eq!(seen, ["CREATED", "UPDATED"]);
    assert_eq!(second.notified("data_change", "due"), 1);
}

/// So many requests take longer than the notifier needs for one that is due.
const REQUESTS: usize = 200;

#[test]
fn a_host_of_a_cluster_delivers_with_a_lease_and_what_is_replicated() {
    let (node, target) = (node(), receiver());
    let mut client = node.client();
    let session = node.session();
    subscribe(&mut client, "s1", &target.uri("/"), &json!({}));
    // The lease of this host has ended.
    session.set_owner_lease(Duration::from_nanos(1)).unwrap();
    for _ in 0..REQUESTS {
        client.put_record("r1", "{}", &[]);
    }
    assert_eq!(node.notified("data_change", "due"), 0, "nothing is due without a lease");
    // It has one, and no member has acknowledged anything.
    session.set_owner_lease(lease_clock() + Duration::from_secs(3600)).unwrap();
    while node.notified("data_change", "due") == 0 {
        client.put_record("r2", "{}", &[]);
    }
    for _ in 0..REQUESTS {
        client.put_record("r3", "{}", &[]);
    }
    assert_eq!(target.wait(|_| true).len(), 0, "nothing that is not replicated leaves the host");
    let received = target.wait(|all| {
        session.acknowledge_to(session.log_tail_position().unwrap()).unwrap();
        all.len() >= REQUESTS
    });
    assert_eq!(operations(&received).first().map(String::as_str), Some("CREATED"));
}

#[test]
fn what_is_in_flight_is_cancelled_when_the_lease_ends() {
    let (node, target) = (node(), scripted(|_| None));
    let mut client = node.client();
    let session = node.session();
    session.set_owner_lease(lease_clock() + Duration::from_secs(3600)).unwrap();
    subscribe(&mut client, "s1", &target.uri("/"), &json!({}));
    client.put_record("r1", "{}", &[]).is(201, "");
    while target.wait(|_| true).is_empty() {
        session.acknowledge_to(session.log_tail_position().unwrap()).unwrap();
        client.get("/records/r1").is(200, "");
    }
    session.set_owner_lease(Duration::from_nanos(1)).unwrap();
    target.wait_for_cancellation();
    for _ in 0..REQUESTS {
        client.get("/records/r1").is(200, "");
    }
    // A request that was given up because it was not answered in time counts.
    assert_eq!(node.metrics.notifier_events()[0], ("retry", 0));
}

#[test]
fn req_a_target_that_refuses_one_record_gets_the_others() {
    let target = scripted(|one| Some(if one.body.contains("/records/r0\"") { 503 } else { 204 }));
    let node = node();
    let mut client = node.client();
    subscribe(&mut client, "s1", &target.uri("/"), &json!({}));
    for number in 0..5 {
        client.put_record(&format!("r{number}"), "{}", &[]).is(201, "");
    }
    let received = distinct(&target.wait(|all| distinct(all).len() >= 4));
    let mut records: Vec<String> = received.iter().map(|one| descriptor(one).1).collect();
    records.sort();
    assert_eq!(records, [1, 2, 3, 4].map(|number| format!("{RECORDS}/r{number}")));
}

#[test]
fn req_a_path_that_hangs_or_refuses_does_not_stop_the_others_of_its_host() {
    let target = scripted(|one| match one.path.as_str() {
        "/hangs" => None,
        "/refuses" => Some(503),
        _ => Some(204),
    });
    let node = node();
    let mut client = node.client();
    for path in ["/hangs", "/refuses", "/accepts"] {
        subscribe(&mut client, &path[1..], &target.uri(path), &json!({}));
    }
    // More than one batch of one record, and of many.
    for number in 0..100 {
        let status = if number == 0 { 201 } else { 204 };
        client.put_record("r", "{}", &[("b", &number.to_string())]).is(status, "");
    }
    for number in 0..50 {
        client.put_record(&format!("r{number}"), "{}", &[]).is(201, "");
    }
    let accepted = |all: &[Received]| all.iter().filter(|one| one.path == "/accepts").count();
    target.wait(|all| accepted(&distinct(all)) == 150);
    assert_eq!(node.notified("data_change", "rejected"), 0, "the others remain");
}

#[test]
fn req_each_of_more_targets_than_are_served_at_once_has_its_turn() {
    // All of these addresses are this host's.
    let target = receiver_at(([0, 0, 0, 0], 0).into(), Arc::new(|_| Some(204)));
    let node = node();
    let mut client = node.client();
    let count = nearstate_nudsf::limits::TARGETS_MAX + 20;
    for number in 0..count {
        let (high, low, port) = (number / 256, number % 256, target.address.port());
        let uri = format!("http://127.1.{high}.{low}:{port}/{number}");
        subscribe(&mut client, &format!("s{number}"), &uri, &json!({}));
    }
    client.put_record("r1", "{}", &[]).is(201, "");
    let received = target.wait_for(count);
    let paths: std::collections::BTreeSet<&str> =
        received.iter().map(|one| one.path.as_str()).collect();
    assert_eq!(paths.len(), count);
}

#[test]
fn req_https_targets_are_reached_if_their_authority_is_known() {
    let folder = tempfile::tempdir().unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let authority = folder.path().join("ca");
    std::fs::write(&authority, certificate.pem()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth();
    let secret = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let chain = vec![certificate.der().clone()];
    let mut config = config.with_single_cert(chain, secret).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let accepts: Script = Arc::new(|_| Some(204));
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let target = receiver_over(([127, 0, 0, 1], 0).into(), accepts, Some(acceptor));
    let tls = Some(ClientTls::read(&authority, None).unwrap());
    let notify = NotifySettings { tls, ..NotifySettings::default() };
    let node = node_of(TestNodeOptions { notify, ..TestNodeOptions::default() });
    let mut client = node.client();
    let uri = format!("https://localhost:{}/secure", target.address.port());
    subscribe(&mut client, "s1", &uri, &json!({}));
    client.put_record("r1", "{}", &[]).is(201, "");
    assert_eq!(target.wait_for(1)[0].path, "/secure");
}

/// Another encoding of the same id is the same resource, and a record without a readable URI is
/// notified with its blocks when it ends.
#[test]
fn req_equal_uris_are_matched_and_a_last_notification_has_large_blocks() {
    let (node, target) = (node(), receiver());
    let mut client = node.client();
    let filter = json!({"subFilter": {"monitoredResourceUris": [format!("{RECORDS}/u%40r")]}});
    subscribe(&mut client, "s1", &target.uri("/one"), &filter);
    let large = "x".repeat(1_100_000);
    client.put_record("other", "{}", &[("a", "1")]).is(201, "");
    client.put_record("u@r", "{}", &[("a", &large)]).is(201, "");
    client.send("DELETE", "/records/u@r", &[], "").is(204, "");
    let received = target.wait_for(2);
    assert_eq!(operations(&received), ["CREATED", "DELETED"]);
    assert!(!received[0].body.contains(&large), "the receiver can read it");
    assert!(received[1].body.contains(&large), "it cannot be read any more");
}
