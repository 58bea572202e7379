//! Operations on the meta of a record (`dr07`, `dr08`).

use serde_json::json;

use crate::fixture::{JSON, PATCH, node, wait_for_next_second};

#[test]
fn dr07_get_meta_has_an_entity_tag_of_its_own() {
    let node = node();
    let mut client = node.client();
    client.get("/records/r1/meta").is(404, "RECORD_NOT_FOUND");
    client.put_record("r1", r#"{"tags":{"a":["1","2"]}}"#, &[("x", "1")]).is(201, "");
    let meta = client.get("/records/r1/meta");
    assert_eq!(meta.is(200, "").json(), json!({"tags": {"a": ["1", "2"]}}));
    assert_eq!(meta.header("content-type"), Some("application/json"));
    assert!(meta.header("last-modified").is_some());
    let date = meta.header("last-modified").unwrap_or_default();
    client.send("PUT", "/records/r1/blocks/x", &[], "changed").is(204, "");
    let mut since =
        |date| client.send("GET", "/records/r1/meta", &[("If-Modified-Since", date)], "").status;
    wait_for_next_second();
    assert_eq!((since(date), since("Sun, 06 Nov 1994 08:49:37 GMT")), (304, 200));
    let same = client.send("GET", "/records/r1/meta", &[("If-None-Match", meta.etag())], "");
    assert_eq!(same.status, 304, "a block does not change the meta");
}

#[test]
fn dr08_patch_of_meta_discards_what_fails_and_reports_it() {
    let node = node();
    let mut client = node.client();
    client.put_record("r1", r#"{"tags":{"ueId":["1"],"recordId":["2"]}}"#, &[("x", "1")]);
    let before = client.get("/records/r1").etag().to_owned();
    let patch = json!([
        {"op": "replace", "path": "/tags/ueId", "value": ["450005"]},
        {"op": "remove", "path": "/tags/recordId"},
    ]);
    let patched = client.send("PATCH", "/records/r1/meta", &[PATCH], patch.to_string());
    patched.is(204, "");
    let meta = client.get("/records/r1/meta");
    assert_eq!(meta.json(), json!({"tags": {"ueId": ["450005"]}}));
    assert_eq!(meta.etag(), patched.etag());
    assert_ne!(client.get("/records/r1").etag(), before, "a change of the meta changes the record");
    let patch = json!([
        {"op": "replace", "path": "/tags/ueId", "value": "450005"},
        {"op": "remove", "path": "/tags/none"},
        {"op": "add", "path": "/schemaId", "value": 5},
        {"op": "add", "path": "/tags/new", "value": ["x"]},
    ]);
    let partly = client.send("PATCH", "/records/r1/meta", &[PATCH], patch.to_string());
    let report = partly.is(200, "").json();
    let paths: Vec<_> =
        report["report"].as_array().unwrap().iter().map(|item| item["path"].clone()).collect();
    assert_eq!(paths, ["/tags/ueId", "/tags/none", "/schemaId"]);
    let meta = client.get("/records/r1/meta");
    assert_eq!(meta.json(), json!({"tags": {"new": ["x"], "ueId": ["450005"]}}));
    assert_eq!(client.get("/records/r1").parts()[1][3], "1", "the blocks stay");
}

#[test]
fn dr08_items_beyond_the_limits_of_tags_are_discarded_and_a_tag_without_values_is_gone() {
    let node = node();
    let mut client = node.client();
    client.put_record("r1", r#"{"tags":{"a":["1"],"b":["2"]}}"#, &[("x", "1")]).is(201, "");
    let many: Vec<String> = (0..64).map(|value| value.to_string()).collect();
    let patch = json!([
        {"op": "remove", "path": "/tags/a/0"},
        {"op": "add", "path": "/tags/c", "value": ["x".repeat(1025)]},
        {"op": "add", "path": format!("/tags/{}", "n".repeat(256)), "value": ["x"]},
        {"op": "add", "path": "/tags/many", "value": many},
        {"op": "add", "path": "/tags/d", "value": ["3"]},
    ]);
    let partly = client.send("PATCH", "/records/r1/meta", &[PATCH], patch.to_string());
    let report = partly.is(200, "").json();
    let reported = report["report"].as_array().map_or(0, Vec::len);
    assert_eq!((reported, &report["report"][0]["path"]), (3, &json!("/tags/c")), "{report}");
    let meta = client.get("/records/r1/meta");
    assert_eq!(meta.json(), json!({"tags": {"b": ["2"], "d": ["3"]}}));
    let patch = r#"[{"op":"remove","path":"/tags/b/0"},{"op":"remove","path":"/tags/d/0"}]"#;
    client.send("PATCH", "/records/r1/meta", &[PATCH], patch).is(204, "");
    assert_eq!(client.get("/records/r1/meta").json(), json!({}));
}

#[test]
fn dr08_a_failed_condition_or_test_changes_nothing() {
    let node = node();
    let mut client = node.client();
    client.put_record("r1", r#"{"tags":{"a":["1"]}}"#, &[]);
    let etag = client.get("/records/r1").etag().to_owned();
    let patch = r#"[{"op":"replace","path":"/tags/a","value":["2"]},
        {"op":"test","path":"/tags/a","value":["9"]}]"#;
    client.send("PATCH", "/records/r1/meta", &[PATCH], patch).is(409, "MODIFICATION_NOT_ALLOWED");
    let change = r#"[{"op":"replace","path":"/tags/a","value":["2"]}]"#;
    client
        .send("PATCH", "/records/r1/meta", &[PATCH, ("If-Match", &etag)], change)
        .is(412, "PRECONDITION_FAILED");
    client.send("PATCH", "/records/r1/meta", &[JSON], change).is(415, "UNSUPPORTED_MEDIA_TYPE");
    client.send("PATCH", "/records/none/meta", &[PATCH], change).is(404, "RECORD_NOT_FOUND");
    client.send("PATCH", "/records/r1/meta", &[PATCH], "{}").is(400, "INVALID_MSG_FORMAT");
    assert_eq!(client.get("/records/r1").etag(), etag);
    let meta = client.get("/records/r1/meta");
    client
        .send("PATCH", "/records/r1/meta", &[PATCH, ("If-Match", meta.etag())], change)
        .is(204, "");
    let same = client.send("PATCH", "/records/r1/meta", &[PATCH], change);
    assert_eq!(same.is(204, "").etag(), client.get("/records/r1/meta").etag());
}
