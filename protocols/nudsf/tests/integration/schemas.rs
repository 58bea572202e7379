//! Meta schemas (`dr18` to `dr20`), and what they require of records.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use nearstate_model::limits::TAGS_DECLARED_MAX;
use nearstate_store::{Namespace, Session, Tag, TagSchema, TagState};
use serde_json::{Value, json};

use crate::contract::other_writers;
use crate::fixture::{JSON, MIXED, PATCH, encode, node, patch_body, wait_for_next_second};

fn schema() -> Value {
    json!({"schemaId": "s", "metaTags": [
        {"tagName": "supi", "keyType": "UNIQUE_KEY", "presence": true},
        {"tagName": "amf", "keyType": "SEARCH_KEY", "sort": true},
        {"tagName": "other", "keyType": "OTHER_TAG"},
    ]})
}

fn meta(supi: &str) -> String {
    json!({"schemaId": "s", "tags": {"supi": [supi], "amf": ["a1"]}}).to_string()
}

/// Attempts of a test whose request must not be faster than another client. A request that is
/// succeeds, and its tag is ready for ever, of which a namespace has 32.
const ROUNDS: usize = 20;

/// Puts so many records that a declaration of tags has some hundred parts.
fn fill(session: &Session, records: Namespace) {
    const RECORDS: u32 = 50_000;
    const BATCH: u32 = 500;
    for first in (0..RECORDS).step_by(BATCH as usize) {
        let batch = session.transact(|txn| -> nearstate_store::Result<()> {
            for number in first..first + BATCH {
                txn.put(records, &number.to_be_bytes(), b"v")?;
            }
            Ok(())
        });
        batch.unwrap();
    }
}

/// The tags of a namespace that writers maintain.
fn tag_names(session: &Session, records: Namespace) -> Vec<String> {
    session.tags(records).unwrap().into_iter().map(|tag| tag.name).collect()
}

#[test]
fn dr19_put_creates_replaces_and_validates_a_schema() {
    let node = node();
    let mut client = node.client();
    let text = schema().to_string();
    let created = client.send("PUT", "/meta-schemas/s", &[JSON], &text);
    assert_eq!(created.is(201, "").json(), schema());
    let location = "http://udsf.example/nudsf-dr/v1/Realm01/Storage01/meta-schemas/s";
    assert_eq!(created.header("location"), Some(location));
    let put = |client: &mut crate::fixture::TestClient, rest: &str, header: (&str, &str)| {
        client.send("PUT", &format!("/meta-schemas/s{rest}"), &[JSON, header], &text)
    };
    put(&mut client, "", ("If-None-Match", "*")).is(412, "PRECONDITION_FAILED");
    let failed = put(&mut client, "?get-previous=true", ("If-Match", "\"x\""));
    assert_eq!(failed.is(412, "").json(), schema());
    put(&mut client, "", ("If-Match", created.etag())).is(204, "");
    assert_eq!(
        put(&mut client, "?get-previous=true", ("If-Match", "*")).is(200, "").json(),
        schema()
    );
    for (body, param) in [
        (json!({"schemaId": "t", "metaTags": []}), "/schemaId"),
        (json!({"schemaId": 1, "metaTags": []}), "/schemaId"),
        (json!({"schemaId": "s", "metaTags": 1}), "/metaTags"),
        (json!({"schemaId": "s", "metaTags": [{"tagName": 1}]}), "/metaTags/0/tagName"),
        (
            json!({"schemaId": "s", "metaTags": [{"tagName": "a", "keyType": "X", "sort": 1}]}),
            "/metaTags/0/sort",
        ),
        (
            json!({"schemaId": "s", "metaTags": vec![json!({"tagName": "a", "keyType": "X"}); 2]}),
            "/metaTags/1/tagName",
        ),
    ] {
        let reply = client.send("PUT", "/meta-schemas/s", &[JSON], body.to_string());
        let kind = if param.ends_with("sort") { "OPTIONAL" } else { "MANDATORY" };
        let problem = reply.is(400, &format!("{kind}_IE_INCORRECT")).json();
        assert_eq!(problem["invalidParams"][0]["param"], param);
    }
    for (body, param) in [
        (json!({"metaTags": []}), "/schemaId"),
        (json!({"schemaId": "s"}), "/metaTags"),
        (json!({"schemaId": "s", "metaTags": [{"keyType": "OTHER_TAG"}]}), "/metaTags/0/tagName"),
        (json!({"schemaId": "s", "metaTags": [{"tagName": "a"}]}), "/metaTags/0/keyType"),
    ] {
        let reply = client.send("PUT", "/meta-schemas/s", &[JSON], body.to_string());
        let problem = reply.is(400, "MANDATORY_IE_MISSING").json();
        assert_eq!(problem["invalidParams"][0]["param"], param);
    }
    for body in ["x", "[]"] {
        client.send("PUT", "/meta-schemas/s", &[JSON], body).is(400, "INVALID_MSG_FORMAT");
    }
}

#[test]
fn dr19_a_schema_indexes_timers_too_as_far_as_there_is_room() {
    const TIMERS: &str = "/nudsf-timer/v1/Realm01/Storage01/timers";
    let node = node();
    let mut client = node.client();
    let mut put = |id: &str, supi: &str| {
        let tags = json!({"supi": [supi], "amf": ["a1"]});
        let timer = json!({"expires": "2999-01-01T00:00:00Z", "metaTags": tags});
        client.send("PUT", &format!("{TIMERS}/{id}"), &[JSON], timer.to_string()).is(201, "");
    };
    put("before", "1");
    let text = schema().to_string();
    node.client().send("PUT", "/meta-schemas/s", &[JSON], &text).is(201, "");
    // What is unique among records is not among timers.
    put("after", "1");
    put("other", "2");
    let session = node.session();
    let timers = session.known_namespace("ue:timers").unwrap().unwrap();
    let tags = session.tags(timers).unwrap();
    let is_ready = |name: &str| {
        let found = tags.iter().find(|tag| tag.name == name);
        found.is_some_and(|tag| tag.state == TagState::Ready && !tag.is_unique)
    };
    assert_eq!(["supi", "amf", "other"].map(is_ready), [true, true, false], "{tags:?}");
    let mut client = node.client();
    let filter = encode(r#"{"op":"EQ","tag":"supi","value":"1"}"#);
    let deleted = client.send("DELETE", &format!("{TIMERS}?filter={filter}"), &[], "");
    let ids = deleted.is(200, "").json()["timerIds"].as_array().unwrap().len();
    assert_eq!(ids, 2);
    client.get(&format!("{TIMERS}/other")).is(200, "");
    // A namespace has 32 indexes, two of timers are their own, as are two of records.
    let many: Vec<_> = (0..27)
        .map(|number| json!({"tagName": format!("t{number:02}"), "keyType": "SEARCH_KEY"}))
        .collect();
    let many = json!({"schemaId": "many", "metaTags": many}).to_string();
    client.send("PUT", "/meta-schemas/many", &[JSON], many).is(201, "");
    let last = json!({"schemaId": "last", "metaTags": [{"tagName": "u", "keyType": "SEARCH_KEY"}]});
    client.send("PUT", "/meta-schemas/last", &[JSON], last.to_string()).is(201, "");
    let records = session.known_namespace("ue").unwrap().unwrap();
    assert!(tag_names(&session, records).contains(&"u".to_owned()));
    let of_timers = tag_names(&session, timers);
    assert!(of_timers.len() == 32 && of_timers.contains(&"u".to_owned()), "{of_timers:?}");
    let more = json!({"schemaId": "more", "metaTags": [{"tagName": "v", "keyType": "SEARCH_KEY"}]});
    client.send("PUT", "/meta-schemas/more", &[JSON], more.to_string()).is(201, "");
    assert_eq!(tag_names(&session, timers), of_timers);
}

#[test]
fn dr19_a_schema_that_is_refused_declares_no_index() {
    let node = node();
    let mut client = node.client();
    let session = node.session();
    let records = session.known_namespace("ue").unwrap().unwrap();
    let tags = || session.tags(records).unwrap().len();
    let before = tags();
    client.put_record("r1", r#"{"schemaId":"s"}"#, &[]).is(400, "OPTIONAL_IE_INCORRECT");
    let text = schema().to_string();
    let mut put =
        |header: (&str, &str)| client.send("PUT", "/meta-schemas/s", &[JSON, header], &text);
    put(("If-Match", "*")).is(412, "PRECONDITION_FAILED");
    put(("Accept", "text/html")).is(406, "");
    assert_eq!(tags(), before);
    let loose = r#"{"schemaId":"s","metaTags":[]}"#;
    client.send("PUT", "/meta-schemas/s", &[JSON], loose).is(201, "");
    client.put_record("r1", r#"{"schemaId":"s"}"#, &[]).is(201, "");
    client.send("PUT", "/meta-schemas/s", &[JSON], &text).is(409, "SCHEMA_IN_USE");
    assert_eq!(tags(), before);
    client.send("DELETE", "/records/r1", &[], "").is(204, "");
    client.send("PUT", "/meta-schemas/s", &[JSON], &text).is(204, "");
    assert!(tags() > before);
}

/// The store keeps the index of each tag, of which a namespace has 32.
#[test]
fn dr19_schemas_of_more_tags_than_there_are_indexes_are_created_and_searched() {
    let node = node();
    let mut client = node.client();
    let tags = |number: usize| {
        json!([
            {"tagName": format!("s{number}"), "keyType": "SEARCH_KEY"},
            {"tagName": format!("u{number}"), "keyType": "UNIQUE_KEY"},
        ])
    };
    for number in 0..40 {
        let schema = json!({"schemaId": "s", "metaTags": tags(number)}).to_string();
        client.send("PUT", "/meta-schemas/s", &[JSON], schema).is(201, "");
        let tags = json!({format!("s{number}"): ["1"], format!("u{number}"): ["1"]});
        let meta = json!({"schemaId": "s", "tags": tags}).to_string();
        client.put_record("r1", &meta, &[]).is(201, "");
        client.put_record("r2", &meta, &[]).is(409, "UNIQUE_KEY_TAKEN");
        let unit = json!({"op": "EQ", "tag": format!("s{number}"), "value": "1"});
        let found = client.get(&format!("/records?filter={}", encode(&unit.to_string())));
        assert_eq!(found.is(200, "").json()["count"], 1, "{number}");
        client.send("DELETE", "/records/r1", &[], "").is(204, "");
        client.send("DELETE", "/meta-schemas/s", &[], "").is(204, "");
    }
}

/// Puts records of another interface, which name no schema.
fn put_foreign(session: &Session, records: Namespace, count: usize) {
    let tags: &[(&str, &[u8])] = &[("supi", b"1")];
    let tags = nearstate_store::Metadata { tags, expires_ms: 0 };
    for first in (0..count).step_by(500) {
        let batch = session.transact(|txn| -> nearstate_store::Result<()> {
            for number in first..first + 500 {
                txn.put_with_metadata(records, format!("f{number}").as_bytes(), b"v", tags)?;
            }
            Ok(())
        });
        batch.unwrap();
    }
}

#[test]
fn req07_a_unique_value_may_be_common_among_records_of_other_schemas() {
    const FOREIGN: usize = 5000;
    let node = node();
    let mut client = node.client();
    let session = node.session();
    let records = session.known_namespace("ue").unwrap().unwrap();
    put_foreign(&session, records, FOREIGN);
    client.send("PUT", "/meta-schemas/s", &[JSON], schema().to_string()).is(201, "");
    client.put_record("r1", &meta("1"), &[("a", "1")]).is(201, "");
    client.put_record("r2", &meta("1"), &[]).is(409, "UNIQUE_KEY_TAKEN");
    // No write of a block or of the meta loses the uniqueness, in both forms of a record.
    client.send("PUT", "/records/r1/blocks/a", &[], "2").is(204, "");
    client.put_record("r2", &meta("1"), &[]).is(409, "UNIQUE_KEY_TAKEN");
    let change = r#"[{"op":"add","path":"/tags/x","value":["1"]}]"#;
    client.send("PATCH", "/records/r1/meta", &[PATCH], change).is(204, "");
    client.put_record("r2", &meta("1"), &[]).is(409, "UNIQUE_KEY_TAKEN");
    client.put_record("r1", &meta("1"), &[("value", "1")]).is(204, "");
    client.send("PUT", "/records/r1/blocks/value", &[], "2").is(204, "");
    client.put_record("r2", &meta("1"), &[]).is(409, "UNIQUE_KEY_TAKEN");
    client.send("PATCH", "/records/r1/meta", &[PATCH], change).is(204, "");
    client.put_record("r2", &meta("1"), &[]).is(409, "UNIQUE_KEY_TAKEN");
    let body = patch_body(&change.replace("/tags/x", "/meta/tags/y"), &[]);
    client.send("PATCH", "/records/r1", &[MIXED], body).is(204, "");
    client.put_record("r2", &meta("1"), &[]).is(409, "UNIQUE_KEY_TAKEN");
    let other = schema().to_string().replace("\"s\"", "\"t\"");
    client.send("PUT", "/meta-schemas/t", &[JSON], other).is(201, "");
    client.put_record("r3", &meta("1").replace("\"s\"", "\"t\""), &[]).is(201, "");
    let given = meta("2");
    client.put_record("r1", &given, &[]).is(204, "");
    client.put_record("r2", &meta("1"), &[]).is(201, "");
    assert_eq!(
        client.get("/records/r1/meta").json(),
        serde_json::from_str::<Value>(&given).unwrap()
    );
}

/// A region of an older build: neither its schemas nor their records have digests.
#[test]
fn req07_unique_keys_hold_for_the_records_and_schemas_of_an_older_build() {
    let _others = other_writers();
    let node = node();
    let mut client = node.client();
    let session = node.session();
    let known = |name| session.known_namespace(name).unwrap().unwrap();
    let (records, schemas) = (known("ue"), known("ue:schemas"));
    client.send("PUT", "/meta-schemas/s", &[JSON], schema().to_string()).is(201, "");
    client.put_record("r1", &meta("1"), &[]).is(201, "");
    let tags: &[(&str, &[u8])] = &[("supi", b"1"), ("amf", b"a1"), ("\u{1}schema", b"s")];
    let without_digests = |namespace, key: &[u8], tags| {
        let metadata = nearstate_store::Metadata { tags, expires_ms: 0 };
        let set = session.transact(|txn| txn.set_metadata(namespace, key, metadata));
        assert!(set.unwrap());
    };
    without_digests(schemas, b"s", &[]);
    without_digests(records, b"r1", tags);
    client.put_record("r2", &meta("1"), &[]).is(409, "UNIQUE_KEY_TAKEN");
    // The schema is in use: its records stay without digests.
    client.send("PUT", "/meta-schemas/s", &[JSON], schema().to_string()).is(204, "");
    client.put_record("r2", &meta("1"), &[]).is(409, "UNIQUE_KEY_TAKEN");
    client.put_record("r3", &meta("3"), &[]).is(201, "");
    client.put_record("r2", &meta("3"), &[]).is(409, "UNIQUE_KEY_TAKEN");
    for id in ["r1", "r3"] {
        client.send("DELETE", &format!("/records/{id}"), &[], "").is(204, "");
    }
    // From now on each record of it has them.
    client.send("PUT", "/meta-schemas/s", &[JSON], schema().to_string()).is(204, "");
    put_foreign(&session, records, 5000);
    client.put_record("r1", &meta("1"), &[]).is(201, "");
    client.put_record("r2", &meta("1"), &[]).is(409, "UNIQUE_KEY_TAKEN");
}

#[test]
fn req07_without_room_for_an_index_unique_keys_need_one_that_is_declared() {
    let node = node();
    let mut client = node.client();
    let session = node.session();
    let records = session.known_namespace("ue").unwrap().unwrap();
    let room = TAGS_DECLARED_MAX - session.tags(records).unwrap().len();
    let tag = |number: usize| TagSchema { name: format!("t{number}"), ..TagSchema::default() };
    session.add_tags(records, &(0..room).map(tag).collect::<Vec<_>>()).unwrap();
    let schema = |tag: &str| {
        json!({"schemaId": "s", "metaTags": [{"tagName": tag, "keyType": "UNIQUE_KEY"}]})
            .to_string()
    };
    let refused = client.send("PUT", "/meta-schemas/s", &[JSON], schema("supi"));
    refused.is(500, "INSUFFICIENT_RESOURCES");
    client.get("/meta-schemas/s").is(404, "SCHEMA_NOT_FOUND");
    client.send("PUT", "/meta-schemas/s", &[JSON], schema("t1")).is(201, "");
    client.put_record("r1", r#"{"schemaId":"s","tags":{"t1":["1"]}}"#, &[]).is(201, "");
    let again = client.put_record("r2", r#"{"schemaId":"s","tags":{"t1":["1"]}}"#, &[]);
    again.is(409, "UNIQUE_KEY_TAKEN");
}

/// Another client changes the schema while the records are indexed: the request is refused when it
/// is committed, and not before.
#[test]
fn dr19_a_schema_that_is_refused_at_its_commit_declares_no_index() {
    let node = node();
    let (mut client, mut other) = (node.client(), node.client());
    let session = node.session();
    let records = session.known_namespace("ue").unwrap().unwrap();
    fill(&session, records);
    let names = || tag_names(&session, records);
    let mut refused = 0;
    for round in 0..ROUNDS {
        let before = names();
        let name = format!("tag{round}");
        let tags = json!([{"tagName": name, "keyType": "UNIQUE_KEY"}]);
        let text = json!({"schemaId": "s", "metaTags": tags}).to_string();
        let loose = json!({"schemaId": "s", "metaTags": []}).to_string();
        let current = other.send("PUT", "/meta-schemas/s", &[JSON], &loose);
        let current = current.etag().to_owned();
        let status = std::thread::scope(|scope| {
            let put = scope.spawn(|| {
                let condition = ("If-Match", &*current);
                client.send("PUT", "/meta-schemas/s", &[JSON, condition], &text).status
            });
            while !names().contains(&name) {
                std::thread::yield_now();
            }
            other.send("PUT", "/meta-schemas/s", &[JSON], &loose).is(204, "");
            put.join().unwrap()
        });
        if status == 412 {
            assert_eq!(names(), before);
            refused += 1;
            break;
        }
        assert_eq!((status, names().len()), (204, before.len() + 1));
    }
    assert!(refused > 0, "no change came between the begin and the commit of a request");
    client.send("PUT", "/meta-schemas/s", &[JSON], schema().to_string()).is(204, "");
    client.put_record("r1", &meta("1"), &[]).is(201, "");
    client.put_record("r2", &meta("1"), &[]).is(409, "UNIQUE_KEY_TAKEN");
}

/// A client that resets the stream of a schema leaves no index behind either.
#[test]
fn dr19_a_schema_whose_client_leaves_declares_no_index() {
    let node = node();
    let session = node.session();
    let records = session.known_namespace("ue").unwrap().unwrap();
    fill(&session, records);
    let names = || tag_names(&session, records);
    let mut left = 0;
    for round in 0..ROUNDS {
        let name = format!("tag{round}");
        let tags = json!([{"tagName": name, "keyType": "UNIQUE_KEY"}]);
        let text = json!({"schemaId": "s", "metaTags": tags}).to_string();
        let mut client = node.client();
        client.write(("PUT", "/meta-schemas/s"), &[JSON], text.as_bytes()).unwrap();
        while !names().contains(&name) {
            std::thread::yield_now();
        }
        drop(client);
        // The request has succeeded, or the connection ends before.
        let is_created = loop {
            let state = |tag: &Tag| (tag.name == name).then_some(tag.state);
            match session.tags(records).unwrap().iter().find_map(state) {
                None => break false,
                Some(TagState::Ready) => break true,
                Some(_) => std::thread::yield_now(),
            }
        };
        if !is_created {
            left += 1;
            break;
        }
    }
    assert!(left > 0, "every request was faster than the end of its connection");
}

#[test]
fn req07_unique_keys_and_presence_hold_for_every_way_to_write_a_record() {
    let node = node();
    let mut client = node.client();
    client.send("PUT", "/meta-schemas/s", &[JSON], schema().to_string()).is(201, "");
    client.put_record("r1", &meta("1"), &[]).is(201, "");
    client.put_record("r2", &meta("1"), &[]).is(409, "UNIQUE_KEY_TAKEN");
    client.put_record("r2", r#"{"schemaId":"s"}"#, &[]).is(400, "MANDATORY_IE_MISSING");
    client.put_record("r1", &meta("1"), &[]).is(204, "");
    client.put_record("r2", &meta("2"), &[]).is(201, "");
    let change = r#"[{"op":"replace","path":"/tags/supi","value":["1"]}]"#;
    client.send("PATCH", "/records/r2/meta", &[PATCH], change).is(409, "UNIQUE_KEY_TAKEN");
    let body = patch_body(&change.replace("/tags", "/meta/tags"), &[]);
    client.send("PATCH", "/records/r2", &[MIXED], &body).is(409, "UNIQUE_KEY_TAKEN");
    let remove = r#"[{"op":"remove","path":"/tags/supi"}]"#;
    client.send("PATCH", "/records/r2/meta", &[PATCH], remove).is(400, "MANDATORY_IE_MISSING");
    assert_eq!(client.get("/records/r2/meta").json()["tags"]["supi"], json!(["2"]));
    client.put_record("r3", r#"{"tags":{"supi":["1"]}}"#, &[]).is(201, "");
    client.send("DELETE", "/records/r1", &[], "").is(204, "");
    client.put_record("r4", &meta("1"), &[]).is(201, "");
}

#[test]
fn req07_two_writers_of_one_unique_value_never_both_succeed() {
    let node = node();
    let mut client = node.client();
    client.send("PUT", "/meta-schemas/s", &[JSON], schema().to_string()).is(201, "");
    for round in 0..20 {
        let statuses: Vec<u16> = std::thread::scope(|scope| {
            let write = |index: usize| {
                let mut client = node.client();
                scope.spawn(move || {
                    client
                        .put_record(&format!("r{round}-{index}"), &meta(&format!("u{round}")), &[])
                        .status
                })
            };
            let writers = [write(0), write(1), write(2)];
            writers.map(|writer| writer.join().unwrap()).into()
        });
        let created = statuses.iter().filter(|status| **status == 201).count();
        let refused = statuses.iter().filter(|status| **status == 409).count();
        assert_eq!((created, refused), (1, 2), "{statuses:?}");
    }
}

#[test]
fn req07_a_schema_in_use_does_not_become_stricter() {
    let node = node();
    let mut client = node.client();
    let loose =
        json!({"schemaId": "s", "metaTags": [{"tagName": "supi", "keyType": "SEARCH_KEY"}]});
    client.send("PUT", "/meta-schemas/s", &[JSON], loose.to_string()).is(201, "");
    client.put_record("r1", r#"{"schemaId":"s"}"#, &[]).is(201, "");
    client.send("PUT", "/meta-schemas/s", &[JSON], schema().to_string()).is(409, "SCHEMA_IN_USE");
    assert_eq!(client.get("/meta-schemas/s").json(), loose);
    client.send("DELETE", "/records/r1", &[], "").is(204, "");
    client.send("PUT", "/meta-schemas/s", &[JSON], schema().to_string()).is(204, "");
    client.put_record("r1", &meta("1"), &[]).is(201, "");
    client.send("PUT", "/meta-schemas/s", &[JSON], loose.to_string()).is(204, "");
    let unit = json!({"op": "EQ", "tag": "supi", "value": "1"});
    let filter = json!({"cond": "AND", "schemaId": "s", "units": [unit]});
    let found = client.get(&format!("/records?filter={}", encode(&filter.to_string())));
    assert_eq!(found.is(200, "").json()["count"], 1);
}

#[test]
fn dr18_get_of_a_schema_is_conditional() {
    let node = node();
    let mut client = node.client();
    client.get("/meta-schemas/s").is(404, "SCHEMA_NOT_FOUND");
    let created = client.send("PUT", "/meta-schemas/s", &[JSON], schema().to_string());
    let read = client.get("/meta-schemas/s");
    assert_eq!((read.is(200, "").json(), read.etag()), (schema(), created.etag()));
    let same = client.send("GET", "/meta-schemas/s", &[("If-None-Match", created.etag())], "");
    assert_eq!(same.status, 304);
    let date = read.header("last-modified").unwrap_or_default();
    let mut since =
        |date| client.send("GET", "/meta-schemas/s", &[("If-Modified-Since", date)], "").status;
    wait_for_next_second();
    assert_eq!((since(date), since("Sun, 06 Nov 1994 08:49:37 GMT")), (304, 200));
    // Clients that are generated from the `OpenAPI` file ask for the type that it has by mistake.
    let accept = [("Accept", "multipart/mixed, application/problem+json")];
    client.send("GET", "/meta-schemas/s", &accept, "").is(200, "");
}

#[test]
fn dr20_delete_of_a_schema_returns_the_previous_one_on_request() {
    let node = node();
    let mut client = node.client();
    client.send("DELETE", "/meta-schemas/s", &[], "").is(404, "SCHEMA_NOT_FOUND");
    client.send("PUT", "/meta-schemas/s", &[JSON], schema().to_string()).is(201, "");
    client
        .send("DELETE", "/meta-schemas/s", &[("If-Match", "\"x\"")], "")
        .is(412, "PRECONDITION_FAILED");
    let path = "/meta-schemas/s?get-previous=true";
    let failed = client.send("DELETE", path, &[("If-Match", "\"x\"")], "");
    assert_eq!(failed.is(412, "").json(), schema());
    assert_eq!(failed.etag(), client.get("/meta-schemas/s").etag());
    let previous = client.send("DELETE", path, &[], "");
    assert_eq!(previous.is(200, "").json(), schema());
    client.send("PUT", "/meta-schemas/s", &[JSON], schema().to_string()).is(201, "");
    client.send("DELETE", "/meta-schemas/s", &[], "").is(204, "");
    client.put_record("r1", &meta("1"), &[]).is(400, "OPTIONAL_IE_INCORRECT");
}

#[test]
fn req07_a_schema_that_was_replaced_is_in_force_at_once() {
    let node = node();
    let mut client = node.client();
    let of_tags = |client: &mut crate::fixture::TestClient, tags: Value| {
        let schema = json!({"schemaId": "s", "metaTags": tags}).to_string();
        client.send("PUT", "/meta-schemas/s", &[JSON], &schema)
    };
    let meta = json!({"schemaId": "s", "tags": {"a": ["1"]}}).to_string();
    let required =
        |name: &str| json!([{"tagName": name, "keyType": "OTHER_TAG", "presence": true}]);
    of_tags(&mut client, required("a")).is(201, "");
    // More schemas than a core keeps parsed, in turns.
    for round in 0..20 {
        client.put_record("r", &meta, &[("b", "1")]).is(201, "");
        client.send("DELETE", "/records/r", &[], "").is(204, "");
        of_tags(&mut client, required(&format!("tag{round}"))).is(204, "");
        client.put_record("r", &meta, &[("b", "1")]).is(400, "MANDATORY_IE_MISSING");
        of_tags(&mut client, required("a")).is(204, "");
    }
    client.send("DELETE", "/meta-schemas/s", &[], "").is(204, "");
    client.put_record("r", &meta, &[("b", "1")]).is(400, "OPTIONAL_IE_INCORRECT");
}

/// A record whose schema is gone could not be changed.
#[test]
fn dr20_a_schema_that_records_name_is_not_deleted() {
    let node = node();
    let mut client = node.client();
    let loose = json!({"schemaId": "s", "metaTags": []}).to_string();
    client.send("PUT", "/meta-schemas/s", &[JSON], &loose).is(201, "");
    client.put_record("r1", r#"{"schemaId":"s"}"#, &[("a", "1")]).is(201, "");
    client.send("DELETE", "/meta-schemas/s", &[], "").is(409, "SCHEMA_IN_USE");
    client.get("/meta-schemas/s").is(200, "");
    client.send("DELETE", "/records/r1", &[], "").is(204, "");
    client.send("DELETE", "/meta-schemas/s", &[], "").is(204, "");
}
