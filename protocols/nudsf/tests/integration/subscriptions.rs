//! Subscriptions (`dr13` to `dr17`).

use nearstate_nudsf::FeatureSet;
use nearstate_nudsf::limits::{LIST_BYTES_MAX, SUBSCRIPTIONS_MAX};
use serde_json::{Value, json};

use crate::fixture::{JSON, PATCH, TestNodeOptions, encode, node, node_of, wait_for_next_second};

const NF: &str = "4947a69a-f61b-4bc1-b9da-47c9c5d14b64";
const OTHER: &str = "00000000-f61b-4bc1-b9da-47c9c5d14b64";

const RESOURCE: &str = "http://udsf.example/nudsf-dr/v1/Realm01/Storage01/records/r1";

fn subscription() -> Value {
    json!({
        "clientId": {"nfId": NF},
        "callbackReference": "http://nf.example/notify",
        "expiry": "2999-01-01T00:00:00Z",
        "subFilter": {
            "monitoredResourceUris": [RESOURCE],
            "operations": ["CREATED", "DELETED"],
        },
    })
}

#[test]
fn dr15_put_creates_and_replaces_a_subscription_of_its_client() {
    let node = node();
    let mut client = node.client();
    let text = subscription().to_string();
    let created = client.send("PUT", "/subs-to-notify/s1", &[JSON], &text);
    assert_eq!(created.is(201, "").json(), subscription());
    let location = "http://udsf.example/nudsf-dr/v1/Realm01/Storage01/subs-to-notify/s1";
    assert_eq!(created.header("location"), Some(location));
    client
        .send("PUT", "/subs-to-notify/s1", &[JSON, ("If-None-Match", "*")], &text)
        .is(412, "PRECONDITION_FAILED");
    let replaced =
        client.send("PUT", "/subs-to-notify/s1", &[JSON, ("If-Match", created.etag())], &text);
    replaced.is(200, "");
    assert_ne!(replaced.etag(), created.etag());
    let mut foreign = subscription();
    foreign["clientId"]["nfId"] = json!(OTHER);
    client
        .send("PUT", "/subs-to-notify/s1", &[JSON], foreign.to_string())
        .is(403, "MODIFICATION_NOT_ALLOWED");
    assert_eq!(client.get("/subs-to-notify/s1").json(), subscription());
}

#[test]
fn req_features_that_only_the_client_supports_are_not_negotiated() {
    let node = node();
    let mut client = node.client();
    let mut wanted = subscription();
    wanted["supportedFeatures"] = json!("1F");
    let created = client.send("PUT", "/subs-to-notify/s1", &[JSON], wanted.to_string());
    assert_eq!(created.is(201, "").json()["supportedFeatures"], "0");
    assert_eq!(client.get("/subs-to-notify/s1").json()["supportedFeatures"], "0");
    let more = json!([{"op": "replace", "path": "/supportedFeatures", "value": "7"}]);
    client.send("PATCH", "/subs-to-notify/s1", &[PATCH], more.to_string()).is(204, "");
    assert_eq!(client.get("/subs-to-notify/s1").json()["supportedFeatures"], "0");
    // What the client has not mentioned is not in the representation.
    client.send("PUT", "/subs-to-notify/s2", &[JSON], subscription().to_string()).is(201, "");
    assert_eq!(client.get("/subs-to-notify/s2").json(), subscription());
    for path in ["/records", "/subs-to-notify/s1", "/nudsf-timer/v1/Realm01/Storage01/timers"] {
        let refused = client.get(&format!("{path}?supported-features=xyz"));
        refused.is(400, "OPTIONAL_QUERY_PARAM_INCORRECT");
    }
}

#[test]
fn req_features_of_both_sides_are_negotiated() {
    let features = FeatureSet::parse("13").unwrap();
    let node = node_of(TestNodeOptions { features, ..TestNodeOptions::default() });
    let mut client = node.client();
    for (theirs, both) in [("1F", "13"), ("7", "3"), ("fE", "12"), ("C", "0"), ("", "0")] {
        let mut wanted = subscription();
        wanted["supportedFeatures"] = json!(theirs);
        client.send("PUT", "/subs-to-notify/s1", &[JSON], wanted.to_string());
        assert_eq!(client.get("/subs-to-notify/s1").json()["supportedFeatures"], both, "{theirs}");
    }
    let more = json!([{"op": "replace", "path": "/supportedFeatures", "value": "00F1"}]);
    client.send("PATCH", "/subs-to-notify/s1", &[PATCH], more.to_string()).is(204, "");
    assert_eq!(client.get("/subs-to-notify/s1").json()["supportedFeatures"], "11");
    client.put_record("r1", "{}", &[]).is(201, "");
    let found = client.get("/records?supported-features=ff").is(200, "").json();
    assert_eq!(found["supportedFeatures"], "13");
    // The client has not mentioned any.
    assert_eq!(client.get("/records").is(200, "").json().get("supportedFeatures"), None);
}

#[test]
fn dr15_invalid_subscriptions_are_refused_with_the_attribute() {
    let node = node();
    let mut client = node.client();
    for (pointer, value, param) in [
        ("/clientId", json!({}), "/clientId"),
        ("/clientId/nfId", json!("x"), "/clientId/nfId"),
        ("/callbackReference", json!("nf"), "/callbackReference"),
        ("/expiry", json!("2020-01-01T00:00:00Z"), "/expiry"),
        ("/expiry", json!(5), "/expiry"),
        ("/subFilter", json!([]), "/subFilter"),
        ("/subFilter/operations", json!(["READ"]), "/subFilter/operations"),
        ("/subFilter/monitoredResourceUris", json!([]), "/subFilter/monitoredResourceUris"),
        (
            "/subFilter/monitoredResourceUris",
            json!(["http://x/nudsf-dr/v1/Realm01/Other/records/r1"]),
            "/subFilter/monitoredResourceUris/0",
        ),
    ] {
        let mut body = subscription();
        *body.pointer_mut(pointer).unwrap() = value;
        let reply = client.send("PUT", "/subs-to-notify/s1", &[JSON], body.to_string());
        let cause = match pointer {
            "/clientId" => "MANDATORY_IE_MISSING",
            "/clientId/nfId" | "/callbackReference" => "MANDATORY_IE_INCORRECT",
            _ => "OPTIONAL_IE_INCORRECT",
        };
        reply.is(400, cause);
        assert_eq!(reply.json()["invalidParams"][0]["param"], param);
    }
    client.send("PUT", "/subs-to-notify/s1", &[JSON], "[]").is(400, "INVALID_MSG_FORMAT");
    client.send("PUT", "/subs-to-notify/s1", &[], "{}").is(415, "UNSUPPORTED_MEDIA_TYPE");
    client.get("/subs-to-notify/s1").is(404, "SUBSCRIPTION_NOT_FOUND");
}

#[test]
fn dr13_all_subscriptions_of_the_storage_are_listed() {
    let node = node();
    let mut client = node.client();
    assert_eq!(client.get("/subs-to-notify").is(200, "").json(), json!([]));
    for index in 0..5 {
        let path = format!("/subs-to-notify/s{index}");
        client.send("PUT", &path, &[JSON], subscription().to_string()).is(201, "");
    }
    assert_eq!(client.get("/subs-to-notify").json(), Value::Array(vec![subscription(); 5]));
    assert_eq!(client.get("/subs-to-notify?limit-range=2").json().as_array().unwrap().len(), 2);
    client.get("/subs-to-notify?limit-range=x").is(400, "OPTIONAL_QUERY_PARAM_INCORRECT");
    let other = client.get("/nudsf-dr/v1/Realm01/Other/subs-to-notify");
    assert_eq!(other.json(), json!([]), "another storage has its own");
}

#[test]
fn dr14_get_of_a_subscription_is_conditional() {
    let node = node();
    let mut client = node.client();
    let created = client.send("PUT", "/subs-to-notify/s1", &[JSON], subscription().to_string());
    let read = client.get("/subs-to-notify/s1");
    assert_eq!((read.status, read.etag()), (200, created.etag()));
    let same = client.send("GET", "/subs-to-notify/s1", &[("If-None-Match", created.etag())], "");
    assert_eq!(same.status, 304);
    let date = read.header("last-modified").unwrap_or_default();
    let mut since =
        |date| client.send("GET", "/subs-to-notify/s1", &[("If-Modified-Since", date)], "").status;
    wait_for_next_second();
    assert_eq!((since(date), since("Sun, 06 Nov 1994 08:49:37 GMT")), (304, 200));
}

#[test]
fn dr16_patch_changes_a_subscription_but_not_its_client() {
    let node = node();
    let mut client = node.client();
    let patch = json!([
        {"op": "replace", "path": "/callbackReference", "value": "http://nf.example/other"},
        {"op": "replace", "path": "/clientId/nfId", "value": OTHER},
    ])
    .to_string();
    client.send("PATCH", "/subs-to-notify/s1", &[PATCH], &patch).is(404, "SUBSCRIPTION_NOT_FOUND");
    let created = client.send("PUT", "/subs-to-notify/s1", &[JSON], subscription().to_string());
    let patched = client.send("PATCH", "/subs-to-notify/s1", &[PATCH], &patch);
    assert_eq!(patched.is(200, "").json()["report"][0]["path"], "/clientId/nfId");
    let read = client.get("/subs-to-notify/s1");
    assert_eq!(read.etag(), patched.etag());
    assert_eq!(read.json()["callbackReference"], "http://nf.example/other");
    assert_eq!(read.json()["clientId"]["nfId"], NF);
    client
        .send("PATCH", "/subs-to-notify/s1", &[PATCH, ("If-Match", created.etag())], &patch)
        .is(412, "PRECONDITION_FAILED");
    let later = json!([{"op": "remove", "path": "/expiry"}]).to_string();
    client.send("PATCH", "/subs-to-notify/s1", &[PATCH], &later).is(204, "");
}

#[test]
fn dr17_only_its_client_deletes_a_subscription() {
    let node = node();
    let mut client = node.client();
    client.send("PUT", "/subs-to-notify/s1", &[JSON], subscription().to_string()).is(201, "");
    let path = |id: &str, rest: &str| {
        format!("/subs-to-notify/s1?client-id={}{rest}", encode(&json!({"nfId": id}).to_string()))
    };
    client.send("DELETE", "/subs-to-notify/s1", &[], "").is(400, "MANDATORY_QUERY_PARAM_MISSING");
    client
        .send("DELETE", "/subs-to-notify/s1?client-id=x", &[], "")
        .is(400, "MANDATORY_QUERY_PARAM_INCORRECT");
    // The attributes of a client as parameters, as generated clients send them.
    let form = |query: &str| format!("/subs-to-notify/s1?{query}");
    client.send("DELETE", &form("nfId=x"), &[], "").is(400, "MANDATORY_QUERY_PARAM_INCORRECT");
    client
        .send("DELETE", &form(&format!("nfId={OTHER}&nfSetId=s")), &[], "")
        .is(403, "MODIFICATION_NOT_ALLOWED");
    client.send("DELETE", &form(&format!("nfId={NF}")), &[], "").is(204, "");
    // The attributes in their order, as the client of free5GC sends them.
    client.send("PUT", "/subs-to-notify/s1", &[JSON], subscription().to_string()).is(201, "");
    for (id, status, cause) in [
        (format!("{{{NF}}}"), 400, "MANDATORY_QUERY_PARAM_INCORRECT"),
        (format!("{{{NF} a b}}"), 400, "MANDATORY_QUERY_PARAM_INCORRECT"),
        ("{x }".to_owned(), 400, "MANDATORY_QUERY_PARAM_INCORRECT"),
        ("{ }".to_owned(), 400, "MANDATORY_QUERY_PARAM_INCORRECT"),
        ("{ s}".to_owned(), 403, "MODIFICATION_NOT_ALLOWED"),
        (format!("{{{OTHER} s}}"), 403, "MODIFICATION_NOT_ALLOWED"),
        (format!("{{{NF} s}}"), 204, ""),
    ] {
        let path = form(&format!("client-id={}", encode(&id)));
        client.send("DELETE", &path, &[], "").is(status, cause);
    }
    let created = client.send("PUT", "/subs-to-notify/s1", &[JSON], subscription().to_string());
    client.send("DELETE", &path(OTHER, ""), &[], "").is(403, "MODIFICATION_NOT_ALLOWED");
    client
        .send("DELETE", &path(NF, ""), &[("If-Match", "\"x\"")], "")
        .is(412, "PRECONDITION_FAILED");
    let failed =
        client.send("DELETE", &path(NF, "&get-previous=true"), &[("If-Match", "\"x\"")], "");
    assert_eq!(failed.is(412, "").json(), subscription());
    assert_eq!(failed.etag(), created.etag());
    let deleted = client.send("DELETE", &path(NF, "&get-previous=true"), &[], "");
    assert_eq!(deleted.is(200, "").json(), json!([subscription()]));
    client.send("DELETE", &path(NF, ""), &[], "").is(404, "SUBSCRIPTION_NOT_FOUND");
    client.send("PUT", "/subs-to-notify/s1", &[JSON], subscription().to_string()).is(201, "");
    client.send("DELETE", &path(NF, ""), &[], "").is(204, "");
}

/// A subscription as the store has it.
fn stored(subscription: &Value) -> Vec<u8> {
    [&[0; 8], subscription.to_string().as_bytes()].concat()
}

#[test]
fn req_the_number_of_subscriptions_is_bounded() {
    let node = node();
    let mut client = node.client();
    let session = node.session();
    let namespace = session.known_namespace("ue:subscriptions").unwrap();
    let namespace = namespace.unwrap();
    let document = stored(&subscription());
    for number in 0..SUBSCRIPTIONS_MAX {
        session.put(namespace, format!("s{number}").as_bytes(), &document).unwrap();
    }
    let text = subscription().to_string();
    let refused = client.send("PUT", "/subs-to-notify/more", &[JSON], &text);
    refused.is(500, "INSUFFICIENT_RESOURCES");
    client.send("PUT", "/subs-to-notify/s1", &[JSON], &text).is(200, "");
    session.delete(namespace, b"s2").unwrap();
    while client.send("PUT", "/subs-to-notify/more", &[JSON], &text).status != 201 {}
}

#[test]
fn dr13_a_list_of_subscriptions_is_bounded() {
    let node = node();
    let mut client = node.client();
    let session = node.session();
    let namespace = session.known_namespace("ue:subscriptions").unwrap();
    let namespace = namespace.unwrap();
    let mut large = subscription();
    large["subFilter"]["monitoredResourceUris"] = json!(vec![RESOURCE; 10_000]);
    let document = stored(&large);
    let count = 2 * LIST_BYTES_MAX / document.len();
    for number in 0..count {
        session.put(namespace, format!("s{number}").as_bytes(), &document).unwrap();
    }
    let listed = client.get("/subs-to-notify");
    let listed = listed.is(200, "").json().as_array().map_or(0, Vec::len);
    assert!((count / 3..=count / 2 + 2).contains(&listed), "{listed} of {count}");
}

#[test]
fn dr15_a_monitored_uri_names_records_of_the_storage() {
    let node = node();
    let mut client = node.client();
    let root = "http://records.example/nudsf-dr/v1/Realm01/Storage01";
    let mut put = |uri: &str| {
        let mut body = subscription();
        body["subFilter"] = json!({"monitoredResourceUris": [uri]});
        client.send("PUT", "/subs-to-notify/s1", &[JSON], body.to_string()).status
    };
    for below in ["/records/a/", "/records/a/foo", "/records/a?x=1", "/timers/a", "/records/"] {
        assert_eq!(put(&format!("{root}{below}")), 400, "{below}");
    }
    assert_eq!(put("http://h/nudsf-dr/v1/Realm01/Other/records/a"), 400);
    assert_eq!(put("http://records.example/a"), 400);
    assert_eq!(put(&format!("{root}/records/nai-u%40r.org")), 201);
    // The owner is the same network function, whichever case its UUID is written in.
    let owner = encode(&json!({"nfId": NF.to_ascii_uppercase()}).to_string());
    let path = format!("/subs-to-notify/s1?client-id={owner}");
    client.send("DELETE", &path, &[], "").is(204, "");
}
