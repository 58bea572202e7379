//! Operations on one record (`dr03` to `dr06`).

use serde_json::json;

use crate::fixture::{
    JSON, MIXED, PATCH, TestClient, encode, node, patch_body, record_body, wait_for_next_second,
};

const META: &str = r#"{"tags":{"ueId":["455345"],"supi":["imsi-999559807001001"]}}"#;
const TIMER: &str = r#"{"expires":"2999-01-01T00:00:00Z"}"#;

#[test]
fn dr04_put_creates_a_record_and_get_returns_meta_and_blocks_in_their_order() {
    let node = node();
    let mut client = node.client();
    let created =
        client.put_record("r1", META, &[("zz", "first"), ("aa", "second"), ("empty", "")]);
    created.is(201, "");
    assert_eq!(
        created.header("location"),
        Some("http://udsf.example/nudsf-dr/v1/Realm01/Storage01/records/r1")
    );
    assert!(created.header("last-modified").unwrap().ends_with("GMT"));
    assert_eq!(created.header("cache-control"), Some("no-cache, max-age=0"));
    let read = client.get("/records/r1");
    read.is(200, "");
    assert_eq!(read.etag(), created.etag());
    assert_eq!(read.header("last-modified"), created.header("last-modified"));
    let parts = read.parts();
    assert_eq!(parts, created.parts());
    assert_eq!(parts[0][..2], ["meta".to_owned(), "application/json".to_owned()]);
    let meta: serde_json::Value = serde_json::from_str(&parts[0][3]).unwrap();
    assert_eq!(meta, serde_json::from_str::<serde_json::Value>(META).unwrap());
    let block = |id: &str, text: &str| [id, "text/plain", "binary", text].map(str::to_owned);
    assert_eq!(parts[1..], [block("zz", "first"), block("aa", "second"), block("empty", "")]);
}

#[test]
fn dr04_put_replaces_a_record_and_returns_the_previous_one_on_request() {
    let node = node();
    let mut client = node.client();
    let created = client.put_record("r1", META, &[("a", "1"), ("b", "2")]);
    let replaced = client.put_record("r1", "{}", &[("b", "3")]);
    replaced.is(204, "");
    assert_ne!(replaced.etag(), created.etag());
    assert_eq!(client.get("/records/r1").parts().len(), 2);
    let body = record_body(META, &[]);
    let previous = client.send("PUT", "/records/r1?get-previous=true", &[MIXED], body);
    previous.is(200, "");
    assert_eq!(previous.parts()[1][3], "3");
    assert_eq!(previous.etag(), client.get("/records/r1").etag());
    assert_eq!(client.get("/records/r1").parts().len(), 1, "no block is left");
}

#[test]
fn dr04_conditional_puts_change_nothing_when_they_fail() {
    let node = node();
    let mut client = node.client();
    let body = record_body(META, &[("a", "new")]);
    let mut put =
        |path: &str, header: (&str, &str)| client.send("PUT", path, &[MIXED, header], &body);
    put("/records/r1", ("If-Match", "*")).is(412, "PRECONDITION_FAILED");
    let created = put("/records/r1", ("If-None-Match", "*"));
    created.is(201, "");
    let etag = created.etag().to_owned();
    let failed = put("/records/r1", ("If-None-Match", "*"));
    assert_eq!(failed.is(412, "PRECONDITION_FAILED").etag(), etag);
    put("/records/r1", ("If-Match", "\"other\"")).is(412, "PRECONDITION_FAILED");
    put("/records/r1", ("If-Match", "other")).is(400, "INVALID_MSG_FORMAT");
    let with_record = put("/records/r1?get-previous=true", ("If-Match", "\"other\""));
    assert_eq!(with_record.is(412, "").parts()[1][3], "new");
    assert_eq!(with_record.etag(), etag);
    put("/records/r1", ("If-Match", &etag)).is(204, "");
    put("/records/r1", ("If-Match", &etag)).is(412, "PRECONDITION_FAILED");
}

#[test]
fn dr04_a_write_that_is_refused_does_not_switch_the_log_on() {
    let node = node();
    let mut client = node.client();
    let session = node.session();
    let ue = session.known_namespace("ue").unwrap().unwrap();
    client.put_record("r1", "{}", &[("a", "1")]).is(201, "");
    let meta = r#"{"callbackReference":"http://nf.example/"}"#;
    let add = r#"[{"op":"add","path":"/callbackReference","value":"http://nf.example/"}]"#;
    let add_to_record = patch_body(&add.replace("/callback", "/meta/callback"), &[]);
    let put = record_body(meta, &[]);
    let other = ("If-Match", "\"x\"");
    for (method, path, media, body) in [
        ("PUT", "/records/r1", MIXED, put.as_str()),
        ("PATCH", "/records/r1", MIXED, &add_to_record),
        ("PATCH", "/records/r1/meta", PATCH, add),
    ] {
        client.send(method, path, &[media, other], body).is(412, "PRECONDITION_FAILED");
        assert!(!session.is_logged(ue).unwrap(), "{method} {path}");
    }
    client.send("PATCH", "/records/none/meta", &[PATCH], add).is(404, "RECORD_NOT_FOUND");
    client.send("PATCH", "/records/none", &[MIXED], &add_to_record).is(404, "RECORD_NOT_FOUND");
    let subscription = r#"{"clientId":{"nfId":"4947a69a-f61b-4bc1-b9da-47c9c5d14b64"},
        "callbackReference":"http://nf.example/"}"#;
    let refused = client.send("PUT", "/subs-to-notify/s", &[JSON, other], subscription);
    refused.is(412, "PRECONDITION_FAILED");
    assert!(!session.is_logged(ue).unwrap());
    client.send("PATCH", "/records/r1/meta", &[PATCH], add).is(204, "");
    assert!(session.is_logged(ue).unwrap());
}

#[test]
fn dr04_what_is_no_record_is_refused_and_nothing_is_created() {
    let node = node();
    let mut client = node.client();
    let long = "x".repeat(300);
    let reserved = record_body("{}", &[("\u{1}nudsf", "x")]);
    for (headers, body, status, cause) in [
        (JSON, META.to_owned(), 415, "UNSUPPORTED_MEDIA_TYPE"),
        (("Content-Type", "multipart/mixed"), record_body("{}", &[]), 400, "INVALID_MSG_FORMAT"),
        (MIXED, String::new(), 400, "INVALID_MSG_FORMAT"),
        (MIXED, "--b--".to_owned(), 400, "INVALID_MSG_FORMAT"),
        (MIXED, patch_body("[]", &[]), 400, "INVALID_MSG_FORMAT"),
        (MIXED, record_body("{", &[]), 400, "INVALID_MSG_FORMAT"),
        (MIXED, record_body("[]", &[]), 400, "MANDATORY_IE_INCORRECT"),
        (MIXED, record_body(r#"{"tags":{"a":"b"}}"#, &[]), 400, "OPTIONAL_IE_INCORRECT"),
        (
            MIXED,
            record_body(r#"{"ttl":"2020-01-01T00:00:00Z"}"#, &[]),
            400,
            "OPTIONAL_IE_INCORRECT",
        ),
        (MIXED, record_body(r#"{"schemaId":"none"}"#, &[]), 400, "OPTIONAL_IE_INCORRECT"),
        (MIXED, record_body("{}", &[("a", "1"), ("a", "2")]), 400, "INVALID_MSG_FORMAT"),
        (MIXED, record_body("{}", &[(&long, "1")]), 400, "INVALID_MSG_FORMAT"),
        (MIXED, reserved, 400, "INVALID_MSG_FORMAT"),
        (MIXED, "--b\r\n\r\n{}\r\n--b\r\n\r\nx\r\n--b--".to_owned(), 400, "INVALID_MSG_FORMAT"),
    ] {
        client.send("PUT", "/records/r1", &[headers], &body).is(status, cause);
    }
    for (body, param) in [
        ("--b\r\n\r\n{}\r\n--b\r\n\r\nx\r\n--b--".to_owned(), "part 2 Content-Id"),
        (record_body("{}", &[("a", "1"), ("a", "2")]), "part 3 Content-Id"),
        (patch_body("[]", &[]), "part 1 Content-Id"),
        (patch_body("{}", &[]).replace("Id: patch", "Id: meta"), "part 1 Content-Type"),
    ] {
        let refused = client.send("PUT", "/records/r1", &[MIXED], &body);
        let problem = refused.is(400, "INVALID_MSG_FORMAT").json();
        assert_eq!(problem["invalidParams"][0]["param"], param, "{problem}");
    }
    let key = "k".repeat(5000);
    client.put_record(&key, "{}", &[]).is(400, "MANDATORY_IE_INCORRECT");
    client.get("/records/r1").is(404, "RECORD_NOT_FOUND");
    let session = node.session();
    let namespace = session.known_namespace("ue").unwrap().unwrap();
    assert_eq!(session.count(namespace).unwrap(), 0);
}

#[test]
fn dr03_get_is_conditional_and_negotiated() {
    let node = node();
    let mut client = node.client();
    client.get("/records/r1").is(404, "RECORD_NOT_FOUND");
    let created = client.put_record("r1", META, &[("a", "1")]);
    let mut get = |header: (&str, &str)| client.send("GET", "/records/r1", &[header], "");
    let date = created.header("last-modified").unwrap();
    assert_eq!(get(("If-Modified-Since", date)).status, 200, "it may change in this second");
    wait_for_next_second();
    let unchanged = get(("If-None-Match", created.etag()));
    assert_eq!((unchanged.status, unchanged.etag()), (304, created.etag()));
    assert_eq!(get(("If-None-Match", "*")).status, 304);
    assert_eq!(get(("If-None-Match", "\"x\"")).status, 200);
    assert_eq!(get(("If-Modified-Since", date)).status, 304);
    assert_eq!(get(("If-Unmodified-Since", date)).status, 200);
    assert_eq!(get(("If-Unmodified-Since", "Sun, 06 Nov 1994 08:49:37 GMT")).status, 412);
    assert_eq!(get(("If-Modified-Since", "Sun, 06 Nov 1994 08:49:37 GMT")).status, 200);
    get(("If-Match", "\"x\"")).is(412, "PRECONDITION_FAILED");
    get(("Accept", "application/json")).is(406, "UNSUPPORTED_MEDIA_TYPE");
    assert_eq!(get(("Accept", "multipart/*")).status, 200);
    get(("If-None-Match", "x")).is(400, "INVALID_MSG_FORMAT");
}

#[test]
fn dr06_delete_returns_the_previous_record_on_request() {
    let node = node();
    let mut client = node.client();
    client.send("DELETE", "/records/r1", &[], "").is(404, "RECORD_NOT_FOUND");
    let created = client.put_record("r1", META, &[("a", "1")]);
    client
        .send("DELETE", "/records/r1", &[("If-Match", "\"x\"")], "")
        .is(412, "PRECONDITION_FAILED");
    let failed =
        client.send("DELETE", "/records/r1?get-previous=true", &[("If-Match", "\"x\"")], "");
    assert_eq!(failed.is(412, "").parts()[1][3], "1");
    let previous = client.send("DELETE", "/records/r1?get-previous=true", &[], "");
    assert_eq!(previous.is(200, "").parts()[1][3], "1");
    client.get("/records/r1").is(404, "RECORD_NOT_FOUND");
    let again = client.put_record("r1", META, &[("a", "1")]);
    assert_ne!(again.etag(), created.etag(), "entity tags of a record never repeat");
    let deleted = client.send("DELETE", "/records/r1", &[("If-Match", again.etag())], "");
    assert_eq!(deleted.is(204, "").etag(), again.etag());
}

#[test]
fn dr05_patch_changes_meta_and_blocks_in_one_step() {
    let node = node();
    let mut client = node.client();
    let created = client.put_record("r1", META, &[("a", "1"), ("b", "2"), ("c", "3")]);
    let patch = json!([
        {"op": "add", "path": "/meta/callbackReference", "value": "https://example.com"},
        {"op": "replace", "path": "/meta/tags/ueId", "value": ["7"]},
        {"op": "remove", "path": "/meta/tags/supi"},
        {"op": "copy", "from": "/blocks/a", "path": "/blocks/copied"},
        {"op": "add", "path": "/blocks/a", "value": "new-a"},
        {"op": "add", "path": "/blocks/d~1e", "value": "new-d"},
        {"op": "remove", "path": "/blocks/b"},
        {"op": "move", "from": "/blocks/c", "path": "/blocks/moved"},
    ])
    .to_string();
    let body = patch_body(&patch, &[("new-a", "one"), ("new-d", "four")]);
    let patched =
        client.send("PATCH", "/records/r1", &[MIXED, ("If-Match", created.etag())], &body);
    patched.is(204, "");
    let read = client.get("/records/r1");
    assert_eq!(read.etag(), patched.etag());
    let parts = read.parts();
    let meta: serde_json::Value = serde_json::from_str(&parts[0][3]).unwrap();
    assert_eq!(meta, json!({"tags": {"ueId": ["7"]}, "callbackReference": "https://example.com"}));
    let blocks: Vec<(&str, &str)> =
        parts[1..].iter().map(|p| (p[0].as_str(), p[3].as_str())).collect();
    assert_eq!(blocks, [("a", "one"), ("copied", "1"), ("d/e", "four"), ("moved", "3")]);
    client
        .send("PATCH", "/records/r1", &[MIXED, ("If-Match", created.etag())], &body)
        .is(412, "PRECONDITION_FAILED");
    client.send("PATCH", "/records/none", &[MIXED], &body).is(404, "RECORD_NOT_FOUND");
    client.send("PATCH", "/records/r1", &[PATCH], &patch).is(415, "UNSUPPORTED_MEDIA_TYPE");
}

#[test]
fn dr05_a_patch_with_one_failing_item_changes_nothing() {
    let node = node();
    let mut client = node.client();
    let created = client.put_record("r1", META, &[("a", "1")]);
    for (item, path) in [
        (json!({"op": "remove", "path": "/blocks/none"}), "/blocks/none"),
        (json!({"op": "add", "path": "/blocks/x", "value": "no-such-part"}), "/blocks/x"),
        (json!({"op": "add", "path": "/blocks/x", "value": {"stored": 0}}), "/blocks/x"),
        (json!({"op": "add", "path": "/blocks/x", "value": {"part": 0}}), "/blocks/x"),
        (json!({"op": "add", "path": "/blocks/\u{1}nudsf", "value": "part"}), "/blocks/\u{1}nudsf"),
        (json!({"op": "replace", "path": "/meta/tags/ueId", "value": "text"}), "/meta/tags/ueId"),
        (json!({"op": "replace", "path": "/meta/ttl", "value": "soon"}), "/meta/ttl"),
        (json!({"op": "test", "path": "/meta/tags/ueId", "value": ["x"]}), "/meta/tags/ueId"),
        (json!({"op": "add", "path": "/other", "value": 1}), "/other"),
        (json!({"op": "replace", "path": "", "value": 1}), ""),
        (json!({"op": "replace", "path": "/blocks", "value": {"x": {"stored": 0}}}), "/blocks"),
        (json!({"op": "replace", "path": "/blocks/a/stored", "value": 0}), "/blocks/a/stored"),
        (json!({"op": "copy", "from": "/meta", "path": "/blocks/a"}), "/blocks/a"),
    ] {
        let patch = json!([{"op": "add", "path": "/blocks/ok", "value": "part"}, item]).to_string();
        let failed =
            client.send("PATCH", "/records/r1", &[MIXED], patch_body(&patch, &[("part", "p")]));
        failed.is(422, "");
        let report = failed.json();
        assert_eq!(report["report"][0]["path"], path, "{report}");
        assert!(report["report"][0]["reason"].as_str().unwrap().contains("index= 1"), "{report}");
    }
    let read = client.get("/records/r1");
    assert_eq!((read.etag(), read.parts().len()), (created.etag(), 2));
    for patch in ["[]", "{}", r#"[{"op":"x","path":"/meta"}]"#, "["] {
        client.send("PATCH", "/records/r1", &[MIXED], patch_body(patch, &[])).is(
            400,
            if patch.starts_with("[{") { "MANDATORY_IE_INCORRECT" } else { "INVALID_MSG_FORMAT" },
        );
    }
}

/// RFC 6902 applies a patch as a whole: the document between two items need not be valid.
#[test]
fn dr05_only_the_patched_record_must_be_valid() {
    let node = node();
    let mut client = node.client();
    client.put_record("r1", META, &[("a", "1")]).is(201, "");
    let patch = json!([
        {"op": "replace", "path": "/meta/tags", "value": 1},
        {"op": "replace", "path": "/meta/tags", "value": {"x": ["1"]}},
        {"op": "remove", "path": "/meta/tags/x/0"},
        {"op": "add", "path": "/meta/tags/x/-", "value": "2"},
        {"op": "add", "path": "/meta/tags/y", "value": ["1"]},
        {"op": "remove", "path": "/meta/tags/y/0"},
        {"op": "add", "path": "/blocks/b", "value": "no part"},
        {"op": "add", "path": "/blocks/b", "value": "part"},
    ]);
    let body = patch_body(&patch.to_string(), &[("part", "p")]);
    client.send("PATCH", "/records/r1", &[MIXED], body).is(204, "");
    assert_eq!(client.get("/records/r1/meta").json(), json!({"tags": {"x": ["2"]}}));
    assert_eq!(client.get("/records/r1/blocks/b").text(), "p");
}

/// What the store would refuse is refused with the name of the parameter.
#[test]
fn dr04_the_limits_of_ids_and_tags_name_the_parameter() {
    let node = node();
    let mut client = node.client();
    let value = |bytes: usize| json!({"tags": {"a": ["x".repeat(bytes)]}}).to_string();
    let name = |bytes: usize| json!({"tags": {"n".repeat(bytes): ["x"]}}).to_string();
    let many = |count: usize| {
        let values: Vec<String> = (0..count).map(|value| value.to_string()).collect();
        json!({"tags": {"a": values}}).to_string()
    };
    for (valid, refused, param) in [
        (value(1024), value(1025), "/tags/a".to_owned()),
        (name(255), name(256), format!("/tags/{}", "n".repeat(256))),
        (many(64), many(65), "/tags".to_owned()),
    ] {
        // The attributes of the node take no place of the tags, whatever blocks there are.
        for blocks in [&[][..], &[("value", "1")], &[("a", "1"), ("b", "2")]] {
            let created = client.put_record("r1", &valid, blocks);
            assert!([201, 204].contains(&created.status), "{}", created.text());
            let read = client.get("/records/r1").parts();
            let ids: Vec<&str> = read.iter().skip(1).map(|part| part[0].as_str()).collect();
            assert_eq!(ids, blocks.iter().map(|(id, _)| *id).collect::<Vec<_>>());
        }
        let problem = client.put_record("r1", &refused, &[]);
        let problem = problem.is(400, "OPTIONAL_IE_INCORRECT").json();
        assert_eq!(problem["invalidParams"][0]["param"], param);
    }
    let id = "r".repeat(4096);
    client.put_record(&id, "{}", &[]).is(201, "");
    for method in ["GET", "DELETE"] {
        let refused = client.send(method, &format!("/records/{id}x"), &[], "");
        let problem = refused.is(400, "MANDATORY_IE_INCORRECT").json();
        assert_eq!(problem["invalidParams"][0]["param"], "{recordId}");
    }
}

#[test]
fn req08_an_expired_record_does_not_exist() {
    let node = node();
    let mut client = node.client();
    let session = node.session();
    client.put_record("r1", r#"{"ttl":"2999-01-01T00:00:00Z"}"#, &[("a", "1")]).is(201, "");
    let namespace = session.known_namespace("ue").unwrap().unwrap();
    let expires = session.get(namespace, b"r1").unwrap().unwrap().expires_ms();
    assert_eq!(expires, 32_472_144_000_000);
    let meta = client.get("/records/r1/meta").json();
    assert_eq!(meta, json!({"ttl": "2999-01-01T00:00:00Z"}));
    let past = nearstate_store::Metadata { tags: &[], expires_ms: 1 };
    session.transact(|txn| txn.set_metadata(namespace, b"r1", past)).unwrap();
    client.get("/records/r1").is(404, "RECORD_NOT_FOUND");
    client.get("/records").is(204, "");
    let created = client.put_record("r1", "{}", &[]);
    created.is(201, "");
}

#[test]
fn req08_every_write_of_meta_sets_the_expiry_and_a_write_of_a_block_keeps_it() {
    let (node, year) = (node(), 31_536_000_000);
    let (mut client, session) = (node.client(), node.session());
    let begin = 32_472_144_000_000;
    let ttl = |time: &str| format!(r#"{{"ttl":"{time}T00:00:00Z"}}"#);
    // One unnamed block, and named ones: two forms of a record in the store.
    for (id, block) in [("unnamed", "value"), ("named", "a")] {
        let path = format!("/records/{id}");
        let meta = format!("{path}/meta");
        let mut etag = String::new();
        let mut check = |client: &mut TestClient, expires_ms: u64, text: &str, is_same: bool| {
            let namespace = session.known_namespace("ue").unwrap().unwrap();
            let stored = session.get(namespace, id.as_bytes()).unwrap().unwrap();
            assert_eq!(stored.expires_ms(), expires_ms, "{id}");
            let read = client.get(&meta);
            assert_eq!(read.text(), text, "{id}");
            assert_eq!(read.etag() == etag, is_same, "{id}: the entity tag of the meta");
            read.etag().clone_into(&mut etag);
        };
        client.put_record(id, &ttl("2999-01-01"), &[(block, "1")]).is(201, "");
        check(&mut client, begin, &ttl("2999-01-01"), false);
        client.put_record(id, &ttl("3000-01-01"), &[(block, "1")]).is(204, "");
        check(&mut client, begin + year, &ttl("3000-01-01"), false);
        client.send("PUT", &format!("{path}/blocks/{block}"), &[], "2").is(204, "");
        check(&mut client, begin + year, &ttl("3000-01-01"), true);
        let item = r#"[{"op":"replace","path":"/ttl","value":"3001-01-01T00:00:00Z"}]"#;
        client.send("PATCH", &meta, &[PATCH], item).is(204, "");
        check(&mut client, begin + 2 * year, &ttl("3001-01-01"), false);
        client.send("PATCH", &meta, &[PATCH], r#"[{"op":"remove","path":"/ttl"}]"#).is(204, "");
        check(&mut client, 0, "{}", false);
        let item = r#"[{"op":"add","path":"/meta/ttl","value":"2999-01-01T00:00:00Z"}]"#;
        client.send("PATCH", &path, &[MIXED], patch_body(item, &[])).is(204, "");
        check(&mut client, begin, &ttl("2999-01-01"), false);
        client.put_record(id, "{}", &[(block, "1")]).is(204, "");
        check(&mut client, 0, "{}", false);
    }
}

#[test]
fn req11_realms_and_storages_are_configuration_and_others_are_unknown() {
    let node = node();
    let mut client = node.client();
    let path = |rest: &str| format!("/nudsf-dr/v1/{rest}/records/r1");
    let body = record_body(META, &[]);
    for (rest, cause) in
        [("Realm02/Storage01", "REALM_NOT_FOUND"), ("Realm01/Storage02", "STORAGE_NOT_FOUND")]
    {
        client.send("PUT", &path(rest), &[MIXED], &body).is(404, cause);
        client.send("GET", &path(rest), &[], "").is(404, cause);
    }
    client.send("PUT", &path("Realm01/Other"), &[MIXED], &body).is(201, "");
    client.get("/records/r1").is(404, "RECORD_NOT_FOUND");
}

#[test]
fn dr04_a_write_whose_response_the_client_excludes_changes_nothing() {
    let node = node();
    let mut client = node.client();
    let etag = client.put_record("r1", META, &[("a", "1")]).etag().to_owned();
    let (multipart, json, text) =
        (("Accept", "multipart/mixed"), ("Accept", "application/json"), ("Accept", "text/html"));
    let body = record_body("{}", &[("a", "2")]);
    let patch = r#"[{"op":"remove","path":"/tags/none"},{"op":"remove","path":"/tags/ueId"}]"#;
    let filter = format!("?filter={}", encode(r#"{"op":"EQ","tag":"ueId","value":"455345"}"#));
    let timers = "/nudsf-timer/v1/Realm01/Storage01/timers";
    client.send("PUT", &format!("{timers}/t"), &[JSON], TIMER).is(201, "");
    let subscription = json!({
        "clientId": {"nfId": "4947a69a-f61b-4bc1-b9da-47c9c5d14b64"},
        "callbackReference": "http://127.0.0.1:9/x",
    })
    .to_string();
    let schema = r#"{"schemaId":"s","metaTags":[{"tagName":"x","keyType":"OTHER_TAG"}]}"#;
    for (method, path, headers, body) in [
        ("PUT", "/records/r1?get-previous=true", [MIXED, json], body.as_str()),
        ("DELETE", "/records/r1?get-previous=true", [JSON, json], ""),
        ("PATCH", "/records/r1/meta", [PATCH, multipart], patch),
        ("PUT", "/records/r1/blocks/a?get-previous=true", [JSON, json], "2"),
        ("DELETE", "/records/r1/blocks/a?get-previous=true", [JSON, json], ""),
        ("DELETE", &format!("/records{filter}"), [JSON, multipart], ""),
        ("DELETE", timers, [JSON, multipart], ""),
        ("PUT", "/subs-to-notify/s1", [JSON, multipart], &subscription),
        ("PUT", "/meta-schemas/s", [JSON, text], schema),
    ] {
        let refused = client.send(method, path, &headers, body);
        assert_eq!(refused.status, 406, "{method} {path} {}", refused.text());
    }
    client.get(&format!("{timers}/t")).is(200, "");
    client.get("/subs-to-notify/s1").is(404, "SUBSCRIPTION_NOT_FOUND");
    client.get("/meta-schemas/s").is(404, "SCHEMA_NOT_FOUND");
    assert_eq!(client.get("/records/r1").etag(), etag);
}

#[test]
fn dr04_a_client_that_accepts_no_record_creates_one_without_a_body() {
    let node = node();
    let mut client = node.client();
    let accept = ("Accept", "application/problem+json");
    let body = record_body("{}", &[("a", "1")]);
    let created = client.send("PUT", "/records/r1", &[MIXED, accept], &body);
    assert_eq!((created.status, created.text().as_str()), (201, ""));
    assert!(created.header("location").is_some());
    client.send("PUT", "/records/r1", &[MIXED, accept], &body).is(204, "");
    let coded = [MIXED, ("Content-Encoding", "gzip")];
    client.send("PUT", "/records/r1", &coded, &body).is(415, "UNSUPPORTED_MEDIA_TYPE");
}

#[test]
fn dr11_ids_of_blocks_can_be_read_back() {
    let node = node();
    let mut client = node.client();
    client.put_record("r1", "{}", &[("a", "1")]).is(201, "");
    for id in ["meta", "META", "%20a", "a%20"] {
        let path = format!("/records/r1/blocks/{id}");
        client.send("PUT", &path, &[], "2").is(400, "MANDATORY_IE_INCORRECT");
    }
    client.put_record("r2", "{}", &[("meta", "1")]).is(400, "MANDATORY_IE_INCORRECT");
    client.send("PUT", "/records/r1/blocks/a%20b", &[], "2").is(201, "");
    client.get("/records/r1/blocks/a%20b").is(200, "");
}

/// A patch that would lose something without a word is refused.
#[test]
fn dr05_a_patch_moves_nothing_between_blocks_and_meta_and_names_known_attributes() {
    let node = node();
    let mut client = node.client();
    client.put_record("r1", r#"{"tags":{"a":["1"]}}"#, &[("b", "1")]).is(201, "");
    let before = client.get("/records/r1").etag().to_owned();
    for item in [
        json!({"op": "move", "from": "/blocks/b", "path": "/meta/typo"}),
        json!({"op": "move", "from": "/blocks/b", "path": "/meta/tags"}),
        json!({"op": "copy", "from": "/meta/tags", "path": "/blocks/c"}),
        json!({"op": "add", "path": "/meta/foo", "value": 1}),
    ] {
        let body = patch_body(&json!([item]).to_string(), &[]);
        let reply = client.send("PATCH", "/records/r1", &[MIXED], body);
        assert_eq!(reply.status, 422, "{item}: {}", reply.text());
        assert_eq!(client.get("/records/r1").etag(), before, "{item}");
    }
    let patch = json!([
        {"op": "add", "path": "/unknown", "value": 5},
        {"op": "add", "path": "/tags/c", "value": ["2"]},
    ]);
    let reply = client.send("PATCH", "/records/r1/meta", &[PATCH], patch.to_string());
    assert_eq!(reply.is(200, "").json()["report"][0]["path"], "/unknown");
    assert_eq!(client.get("/records/r1/meta").json()["tags"]["c"][0], "2");
}
