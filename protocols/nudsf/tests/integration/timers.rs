//! Timers (`tm01` to `tm06`).

use serde_json::{Value, json};

use crate::fixture::{JSON, PATCH, TestClient, encode, node};
use crate::receiver::receiver;

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
    let named = encode(r#"{"timerIds":["t1","none"]}"#);
    assert_eq!(ids(&client.get(&format!("{TIMERS}?filter={named}")).json()), ["t1"]);
    client.get(&format!("{TIMERS}?filter=x")).is(400, "OPTIONAL_QUERY_PARAM_INCORRECT");
    client.get("/nudsf-timer/v1/None/Storage01/timers").is(404, "REALM_NOT_FOUND");
}

#[test]
fn tm02_timers_are_deleted_by_tags_and_by_expiry() {
    let node = node();
    let mut client = node.client();
    for (id, ue, expires) in [("t1", "1", FUTURE), ("t2", "2", FUTURE), ("t3", "2", PAST)] {
        put(&mut client, id, &tagged(ue, expires), 201);
    }
    let expired = client.send("DELETE", &format!("{TIMERS}?expired-filter"), &[], "");
    assert_eq!(ids(&expired.is(200, "").json()), ["t3"]);
    let filter = encode(r#"{"op":"EQ","tag":"ueId","value":"2"}"#);
    let by_tag = format!("{TIMERS}?filter={filter}");
    assert_eq!(ids(&client.send("DELETE", &by_tag, &[], "").is(200, "").json()), ["t2"]);
    client.send("DELETE", &by_tag, &[], "").is(204, "");
    assert_eq!(ids(&client.get(TIMERS).json()), ["t1"]);
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
    let received = target.wait_for(3);
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
    assert_eq!(node.notified("timer_expiry", "due"), 3);
    for (timer, param) in [(json!({}), "/expires"), (json!({"expires": 1}), "/expires")] {
        let reply = client.send("PUT", &path("t2"), &[JSON], timer.to_string());
        assert_eq!(
            (reply.status, &reply.json()["invalidParams"][0]["param"]),
            (400, &json!(param),)
        );
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
