//! Searches and deletion by a filter (`dr01`, `dr02`).

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};

use nearstate_store::search::{Op, Search};
use nearstate_store::{CreateOptions, Error, Kind, Metadata, Region, Schema, TagSchema, WhenFull};
use serde_json::{Value, json};

use crate::fixture::{JSON, TestClient, TestNodeOptions, TestReply, encode, node, node_at};

fn search(client: &mut TestClient, filter: &Value, rest: &str) -> TestReply {
    client.get(&format!("/records?filter={}{rest}", encode(&filter.to_string())))
}

/// The ids of the references of a response.
fn ids(reply: &TestReply) -> BTreeSet<String> {
    let body = reply.is(200, "").json();
    let references = body["references"].as_array().unwrap();
    assert_eq!(body["count"], references.len(), "{body}");
    let root = "http://udsf.example/nudsf-dr/v1/Realm01/Storage01/records/";
    references
        .iter()
        .map(|uri| uri.as_str().unwrap().strip_prefix(root).unwrap().to_owned())
        .collect()
}

/// Thirty records: `n` with three values, `id` unique, every third with `odd`.
fn fill(client: &mut TestClient) {
    for index in 0..30 {
        let odd = if index % 3 == 0 { r#","odd":["x","y"]"# } else { "" };
        let meta = format!(r#"{{"tags":{{"n":["{}"],"id":["{index:02}"]{odd}}}}}"#, index % 3);
        client.put_record(&format!("r{index}"), &meta, &[("b", "block")]).is(201, "");
    }
}

fn compare(op: &str, tag: &str, value: &str) -> Value {
    json!({"op": op, "tag": tag, "value": value})
}

/// Checks all operators. The result must be the same with and without indexes.
fn check_operators(client: &mut TestClient) {
    for (filter, count) in [
        (compare("EQ", "n", "1"), 10),
        (compare("NEQ", "n", "1"), 20),
        (compare("NEQ", "odd", "x"), 0),
        (compare("GT", "id", "27"), 2),
        (compare("GTE", "id", "27"), 3),
        (compare("LT", "id", "02"), 2),
        (compare("LTE", "id", "02"), 3),
        (json!({"recordIdList": ["r1", "r2", "none"]}), 2),
        (json!({"cond": "AND", "units": [compare("EQ", "n", "0"), compare("LT", "id", "10")]}), 4),
        (json!({"cond": "OR", "units": [compare("EQ", "n", "0"), compare("LT", "id", "10")]}), 16),
        (json!({"cond": "NOT", "units": [compare("EQ", "odd", "x")]}), 20),
        (
            json!({"cond": "AND", "units": [
                {"cond": "OR", "units": [compare("EQ", "id", "05"), compare("EQ", "id", "06")]},
                {"cond": "NOT", "units": [{"recordIdList": ["r6"]}]},
            ]}),
            1,
        ),
    ] {
        let reply = search(client, &filter, "");
        let found = if reply.status == 204 { BTreeSet::new() } else { ids(&reply) };
        assert_eq!(found.len(), count, "{filter}: {found:?}");
    }
}

#[test]
fn dr01_filters_find_the_same_records_with_and_without_indexes() {
    let node = node();
    let mut client = node.client();
    client.get("/records").is(204, "");
    fill(&mut client);
    check_operators(&mut client);
    let schema = json!({"schemaId": "s", "metaTags": [
        {"tagName": "n", "keyType": "SEARCH_KEY"},
        {"tagName": "id", "keyType": "SEARCH_KEY", "sort": true},
        {"tagName": "odd", "keyType": "SEARCH_AND_COUNT_KEY"},
    ]});
    client.send("PUT", "/meta-schemas/s", &[JSON], schema.to_string()).is(201, "");
    check_operators(&mut client);
    assert_eq!(ids(&client.get("/records")).len(), 30, "no filter: all records");
}

#[test]
fn dr01_limits_counts_and_contents() {
    let node = node();
    let mut client = node.client();
    fill(&mut client);
    let filter = compare("EQ", "n", "1");
    assert_eq!(ids(&search(&mut client, &filter, "&limit-range=4")).len(), 4);
    let counted = search(&mut client, &filter, "&limit-range=4&count-indicator=true").json();
    assert_eq!(counted["count"], 10);
    assert_eq!(counted["references"].as_array().unwrap().len(), 4);
    let counted = search(&mut client, &filter, "&limit-range=0&count-indicator=true").json();
    assert_eq!(counted, json!({"count": 10}));
    let counted = search(&mut client, &filter, "&limit-range=0").json();
    assert_eq!(counted, json!({"count": 10}), "all that match, also without the indicator");
    let counts = encode(
        &json!({
            "values": {"countType": "AGGREGATE_COUNT", "tag": "odd"},
            "ids": {"countType": "UNIQUE_COUNT", "tag": "id", "filter": compare("LT", "id", "10")},
        })
        .to_string(),
    );
    let reply = client
        .get(&format!("/records?limit-range=1&tag-count-filter={counts}&supported-features=1"));
    let body = reply.is(200, "").json();
    assert_eq!(body["tagCountResult"]["values"]["count"], 10);
    assert_eq!(
        body["tagCountResult"]["values"]["valueCount"],
        json!([{"value": "x", "count": 10}, {"value": "y", "count": 10}])
    );
    assert_eq!(body["tagCountResult"]["ids"]["count"], 10);
    assert_eq!(body["supportedFeatures"], "0");
    // The attributes of a count as parameters, as generated clients send them.
    for (query, result) in [
        ("countType=TOTAL_COUNT&tag=odd", json!({"tag": "odd", "count": 10})),
        ("tag=odd&countType=UNIQUE_COUNT", json!({"tag": "odd", "count": 2})),
    ] {
        let body = client.get(&format!("/records?limit-range=0&{query}")).is(200, "").json();
        assert_eq!(body["tagCountResult"]["count"], result, "{query}");
    }
    client.get("/records?countType=X").is(400, "OPTIONAL_QUERY_PARAM_INCORRECT");
    let with = search(&mut client, &filter, "&limit-range=3&retrieve-records=META_AND_BLOCKS");
    let parts = with.is(200, "").parts();
    assert_eq!(parts[0][0], "descriptor");
    let descriptor: Value = serde_json::from_str(&parts[0][3]).unwrap();
    assert_eq!((parts.len(), &descriptor["count"]), (7, &json!(3)));
    for pair in parts[1..].chunks(2) {
        assert_eq!(pair[1][0], format!("{}/b", pair[0][0]));
        assert_eq!(pair[1][3], "block");
        assert!(pair[0][3].contains("\"n\":[\"1\"]"));
    }
    let only = search(&mut client, &filter, "&limit-range=3&retrieve-records=ONLY_META");
    assert_eq!(only.is(200, "").parts().len(), 4);
    let small = search(&mut client, &filter, "&retrieve-records=ONLY_META&max-payload-size=0");
    let parts = small.is(200, "").parts();
    let descriptor: Value = serde_json::from_str(&parts[0][3]).unwrap();
    assert_eq!((parts.len(), &descriptor), (1, &json!({"count": 10})));
}

#[test]
fn dr01_no_response_exceeds_max_payload_size() {
    let node = node();
    let mut client = node.client();
    fill(&mut client);
    for (kilo, references) in [(1, 8..14), (2, 20..29), (3, 30..31)] {
        let path = format!("/records?max-payload-size={kilo}");
        let whole = client.get(&path);
        assert_eq!(whole.is(200, "").json()["count"], 30, "all are counted");
        let found = whole.text().matches("/records/").count();
        assert!(references.contains(&found), "{kilo}: {found}");
        let with = client.get(&format!("{path}&retrieve-records=META_AND_BLOCKS"));
        for reply in [whole, with] {
            assert!(reply.body.len() <= kilo * 1024, "{kilo}: {} bytes", reply.body.len());
        }
    }
    let limited = client.get("/records?max-payload-size=1&limit-range=20");
    assert!((8..14).contains(&ids(&limited).len()), "{}", limited.text());
    let without = client.get("/records?max-payload-size=0&limit-range=20");
    assert_eq!(without.is(200, "").json()["count"], 30, "no reference fits, and all are counted");
}

#[test]
fn dr01_invalid_parameters_are_named() {
    let node = node();
    let mut client = node.client();
    for (query, parameter) in [
        ("filter=%7B", "query filter"),
        ("filter=%7B%22op%22:%22EQ%22%7D", "query filter"),
        ("limit-range=x", "query limit-range"),
        ("limit-range=-1", "query limit-range"),
        ("count-indicator=maybe", "query count-indicator"),
        ("supported-features=xyz", "query supported-features"),
        ("retrieve-records=ALL", "query retrieve-records"),
        ("max-payload-size=1.5", "query max-payload-size"),
        ("tag-count-filter=%7B%7D", "query tag-count-filter"),
    ] {
        let reply = client.get(&format!("/records?{query}"));
        reply.is(400, "OPTIONAL_QUERY_PARAM_INCORRECT");
        assert_eq!(reply.json()["invalidParams"][0]["param"], parameter);
    }
    client.get("/nudsf-dr/v1/Realm99/Storage01/records").is(404, "REALM_NOT_FOUND");
    client.get("/nudsf-dr/v1/Realm01/Storage99/records").is(404, "STORAGE_NOT_FOUND");
}

#[test]
fn dr02_deletion_needs_a_filter_and_lists_what_it_deleted() {
    let node = node();
    let mut client = node.client();
    fill(&mut client);
    client.send("DELETE", "/records", &[], "").is(400, "MANDATORY_QUERY_PARAM_MISSING");
    let delete = |client: &mut TestClient, filter: &Value| {
        let path = format!("/records?filter={}", encode(&filter.to_string()));
        client.send("DELETE", &path, &[], "")
    };
    let refused = client.send("DELETE", "/records?filter=%7B", &[], "");
    let problem = refused.is(400, "MANDATORY_QUERY_PARAM_INCORRECT").json();
    assert_eq!(problem["invalidParams"][0]["param"], "query filter");
    delete(&mut client, &compare("EQ", "n", "9")).is(204, "");
    let deleted = delete(&mut client, &compare("EQ", "n", "1"));
    let body = deleted.is(200, "").json();
    let list = body["recordIdList"].as_array().unwrap();
    assert_eq!(list.len(), 10);
    assert!(list.contains(&json!("r4")) && body.get("failedRecordIdList").is_none());
    assert_eq!(ids(&client.get("/records")).len(), 20);
    delete(&mut client, &compare("EQ", "n", "1")).is(204, "");
    client.get("/nudsf-dr/v1/Realm01/Other/records").is(204, "");
}

#[test]
fn dr02_a_record_that_cannot_be_deleted_is_listed_as_failed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("region");
    // The log may hold 4 MiB. A commit that replaces more than 512 KiB waits until it holds half.
    let options = CreateOptions { bytes_max: 64 << 20, ..Default::default() };
    let region = Region::create(&path, &options).unwrap();
    let node = node_at(&path, TestNodeOptions::default());
    let mut client = node.client();
    let large = "x".repeat(3 << 20);
    let meta = r#"{"tags":{"n":["1"]}}"#;
    client.put_record("small", meta, &[("a", "1")]).is(201, "");
    client.put_record("large", meta, &[("a", &large)]).is(201, "");
    let session = region.session().unwrap();
    let ue = session.known_namespace("ue").unwrap().unwrap();
    session.stream(ue, WhenFull::Refuse).unwrap();
    for round in 0..30_u8 {
        session.put(ue, b"filler", &vec![round; 100_000]).unwrap();
    }
    let path = format!("/records?filter={}", encode(&compare("EQ", "n", "1").to_string()));
    let deleted = client.send("DELETE", &path, &[], "").is(200, "").json();
    assert_eq!(deleted, json!({"recordIdList": ["small"], "failedRecordIdList": ["large"]}));
    // No record was deleted: the answer is that of the first one.
    client.send("DELETE", &path, &[], "").is(503, "");
    client.get("/records/large/meta").is(200, "");
}

/// What a search does between two of its slices is left to other requests.
#[test]
fn dr01_a_search_in_slices_reads_few_records_at_once_and_finds_each_once_while_others_change() {
    let node = node();
    let session = node.session();
    let tag = |name: &str, is_ordered| TagSchema {
        name: name.to_owned(),
        is_ordered,
        ..TagSchema::default()
    };
    let schema = Schema { kind: Kind::Value, tags: vec![tag("all", false), tag("number", true)] };
    let many = session.namespace("many", &schema).unwrap();
    let put = |number: u32, prefix: &str| {
        let (key, number) = (format!("{prefix}{number:04}"), format!("{number:04}"));
        let tags =
            Metadata { tags: &[("all", b"1"), ("number", number.as_bytes())], expires_ms: 0 };
        session.transact(|txn| txn.put_with_metadata(many, key.as_bytes(), b"", tags)).unwrap();
    };
    (0..600).for_each(|number| put(number, "r"));
    let compare = |op, tag: &str, value: &[u8]| Search::Compare {
        op,
        tag: tag.to_owned(),
        value: value.to_vec(),
    };
    // Each record is a candidate of both indexes.
    let both = Search::Or(vec![compare(Op::Eq, "all", b"1"), compare(Op::Gte, "number", b"0000")]);
    let (mut found, mut slices) = (BTreeMap::<Vec<u8>, u32>::new(), 0);
    let mut search = session.search_slices(many, &both).unwrap();
    loop {
        let mut read = 0;
        let has_more = search.next::<Error>(10, |view, tags| {
            assert_eq!(tags.len(), 2);
            read += 1;
            *found.entry(view.key().to_vec()).or_default() += 1;
            Ok(true)
        });
        assert!(read <= 10, "{read} records in a slice of 10");
        if !has_more.unwrap() {
            break;
        }
        // Every odd record is deleted or replaced, and parts of the indexes are split and joined.
        let odd = slices * 2 % 600 + 1;
        let key = format!("r{odd:04}");
        session.transact(|txn| txn.delete(many, key.as_bytes())).unwrap();
        put(odd, "new");
        slices += 1;
    }
    assert!(slices >= 60, "{slices}");
    assert!(found.values().all(|count| *count == 1), "{found:?}");
    for number in (0..600).step_by(2) {
        assert!(found.contains_key(format!("r{number:04}").as_bytes()), "{number}");
    }
    let mut search = session.search_slices(many, &both).unwrap();
    let mut calls = 0;
    let has_more = search.next::<Error>(10, |_, _| {
        calls += 1;
        Ok(calls < 3)
    });
    assert_eq!((has_more.unwrap(), calls), (false, 3));
}
