//! One record through several interfaces: what Nudsf writes is a record of the store with blocks,
//! tags and expiry, and the other way round.

use nearstate_store::{BlockChange, Form, Kind, Metadata, Schema};

use crate::contract::other_writers;
use crate::fixture::{
    JSON, MIXED, PATCH, TestClient, TestNodeOptions, encode, node, node_at, patch_body,
};

/// The type of a block without a header.
const OCTETS: Option<&str> = Some("application/octet-stream");

#[test]
fn req_a_record_of_nudsf_is_read_by_key_tag_and_block() {
    let node = node();
    let mut client = node.client();
    let session = node.session();
    let schema = r#"{"schemaId":"s","metaTags":[{"tagName":"supi","keyType":"SEARCH_KEY"}]}"#;
    client.send("PUT", "/meta-schemas/s", &[JSON], schema).is(201, "");
    client
        .put_record("r1", r#"{"tags":{"supi":["1"]}}"#, &[("a", "one"), ("b", "two")])
        .is(201, "");
    let ue = session.known_namespace("ue").unwrap().unwrap();
    let view = session.get_whole(ue, b"r1").unwrap().unwrap();
    assert_eq!(
        (view.form(), view.block("a"), view.block("b")),
        (Form::Blocks, Some(&b"one"[..]), Some(&b"two"[..]))
    );
    let mut found = Vec::new();
    session
        .find_all(ue, "supi", nearstate_store::Values::Equal(b"1"), |view| {
            found.push(view.key().to_vec());
            true
        })
        .unwrap();
    assert_eq!(found, [b"r1"]);
    // One block named `value` is the unnamed block: a string of RESP, a value of SDL.
    client.put_record("r2", "{}", &[("value", "text")]).is(201, "");
    let view = session.get_whole(ue, b"r2").unwrap().unwrap();
    assert_eq!((view.form(), view.bytes()), (Form::Value, &b"text"[..]));
    assert_eq!(
        client.get("/records/r2").parts()[1][1],
        "text/plain",
        "the headers of the part are kept"
    );
}

#[test]
fn req_a_record_of_the_store_is_a_record_of_nudsf() {
    let _others = other_writers();
    let node = node();
    let mut client = node.client();
    let session = node.session();
    let ue = session.namespace("ue", &Schema { kind: Kind::Mixed, ..Schema::default() }).unwrap();
    let tags = Metadata { tags: &[("supi", b"7")], expires_ms: 32_472_144_000_000 };
    session.transact(|txn| txn.put_with_metadata(ue, b"plain", b"bytes", tags)).unwrap();
    let parts = client.get("/records/plain").parts();
    assert_eq!(parts[0][3], r#"{"tags":{"supi":["7"]},"ttl":"2999-01-01T00:00:00Z"}"#);
    assert_eq!(
        parts[1],
        ["value", "application/octet-stream", "binary", "bytes"].map(str::to_owned)
    );
    session
        .transact(|txn| txn.put_fields(ue, b"hash", &[(b"f", b"1"), (b"g", b"2")], tags))
        .unwrap();
    let read = client.get("/records/hash");
    assert_eq!(read.parts().len(), 3);
    assert_eq!(read.header("last-modified"), None, "the store knows no time of modification");
    client.send("PUT", "/records/hash/blocks/h", &[], "3").is(201, "");
    let view = session.get_whole(ue, b"hash").unwrap().unwrap();
    assert_eq!((view.block("f"), view.block("h")), (Some(&b"1"[..]), Some(&b"3"[..])));
    assert_eq!(view.expires_ms(), 32_472_144_000_000);
    session.transact(|txn| txn.put_members(ue, b"set", &[b"a"], Metadata::default())).unwrap();
    client.get("/records/set").is(404, "RECORD_NOT_FOUND");
    client.put_record("set", "{}", &[]).is(409, "RECORD_OF_ANOTHER_KIND");
    client.send("DELETE", "/records/set", &[], "").is(409, "RECORD_OF_ANOTHER_KIND");
}

#[test]
fn req_a_change_through_another_interface_changes_the_entity_tags() {
    let _others = other_writers();
    let node = node();
    let mut client = node.client();
    let session = node.session();
    client.put_record("r1", "{}", &[("a", "1"), ("b", "2")]).is(201, "");
    let (record, a, b) = (
        client.get("/records/r1"),
        client.get("/records/r1/blocks/a"),
        client.get("/records/r1/blocks/b"),
    );
    let ue = session.known_namespace("ue").unwrap().unwrap();
    let change = [BlockChange { name: "a", bytes: Some(b"changed") }];
    session.transact(|txn| txn.patch(ue, b"r1", &change)).unwrap();
    let mut get = |path: &str, header: (&str, &str)| client.send("GET", path, &[header], "");
    let changed = get("/records/r1", ("If-None-Match", record.etag()));
    assert_eq!((changed.status, changed.header("last-modified")), (200, None));
    let date = record.header("last-modified").unwrap();
    assert_eq!(get("/records/r1", ("If-Modified-Since", date)).status, 200);
    assert_eq!(get("/records/r1/blocks/a", ("If-Modified-Since", date)).text(), "changed");
    assert_eq!(get("/records/r1/blocks/a", ("If-None-Match", a.etag())).status, 200);
    assert_eq!(get("/records/r1/blocks/b", ("If-None-Match", b.etag())).status, 304);
    session.transact(|txn| txn.delete(ue, b"r1")).unwrap();
    client.get("/records/r1").is(404, "RECORD_NOT_FOUND");
}

#[test]
fn req_what_nudsf_cannot_express_is_not_lost_by_its_writes() {
    let _others = other_writers();
    let node = node();
    let mut client = node.client();
    let session = node.session();
    let ue = session.known_namespace("ue").unwrap().unwrap();
    let plain = Metadata::default();
    let fields: [(&[u8], &[u8]); 2] = [(b"a", b"1"), (b"\xff", b"binary name")];
    session.transact(|txn| txn.put_fields(ue, b"hash", &fields, plain)).unwrap();
    client.send("PUT", "/records/hash/blocks/b", &[], "2").is(201, "");
    client.send("DELETE", "/records/hash/blocks/a", &[], "").is(204, "");
    let view = session.get_whole(ue, b"hash").unwrap().unwrap();
    assert_eq!(view.field(b"\xff"), Some(&b"binary name"[..]));
    let patch = r#"[{"op":"add","path":"/meta/tags","value":{"a":["b"]}}]"#;
    client
        .send("PATCH", "/records/hash", &[MIXED], patch_body(patch, &[]))
        .is(409, "RECORD_OF_ANOTHER_KIND");
    let tags = Metadata { tags: &[("t", b"\xff")], expires_ms: 0 };
    session.transact(|txn| txn.put_with_metadata(ue, b"plain", b"bytes", tags)).unwrap();
    let patch = r#"[{"op":"add","path":"/callbackReference","value":"http://nf.example"}]"#;
    client.send("PATCH", "/records/plain/meta", &[PATCH], patch).is(409, "RECORD_OF_ANOTHER_KIND");
    client.send("PUT", "/records/plain/blocks/b", &[], "2").is(409, "RECORD_OF_ANOTHER_KIND");
    let view = session.get_whole(ue, b"plain").unwrap().unwrap();
    assert_eq!(view.tags().collect::<Vec<_>>(), [("t", &b"\xff"[..])]);
}

#[test]
fn req_a_record_of_sdl_is_a_record_of_nudsf_and_the_other_way_round() {
    let _others = other_writers();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("region");
    let node = node_at(&path, TestNodeOptions::default());
    let mut client = node.client();
    let mut sdl = nearstate_sdl::open(&format!("region:{}", path.display())).unwrap();
    sdl.set("ue", &[(b"of-sdl", b"first")]).unwrap();
    let read = client.get("/records/of-sdl/blocks/value");
    assert_eq!((read.status, read.text().as_str()), (200, "first"));
    // A write of Nudsf keeps the value where SDL has it, with tags that SDL does not see.
    let meta = r#"{"tags":{"supi":["7"]}}"#;
    client.put_record("of-nudsf", meta, &[("value", "second")]).is(201, "");
    client.send("PUT", "/records/of-sdl/blocks/value", &[], "changed").is(204, "");
    let both = sdl.get("ue", &[b"of-sdl", b"of-nudsf"]).unwrap();
    let value = |key: &[u8]| both.get(key).map(Vec::as_slice);
    assert_eq!(value(b"of-sdl"), Some(&b"changed"[..]));
    assert_eq!(value(b"of-nudsf"), Some(&b"second"[..]));
    let filter = encode(r#"{"op":"EQ","tag":"supi","value":"7"}"#);
    let found = client.get(&format!("/records?filter={filter}")).is(200, "").json();
    assert_eq!(found["count"], 1);
    sdl.remove("ue", &[b"of-nudsf"]).unwrap();
    client.get("/records/of-nudsf").is(404, "RECORD_NOT_FOUND");
    client.send("DELETE", "/records/of-sdl", &[], "").is(204, "");
    assert!(sdl.get("ue", &[b"of-sdl"]).unwrap().is_empty());
}

#[test]
fn req_a_block_that_another_interface_has_deleted_leaves_no_headers_to_its_successor() {
    let _others = other_writers();
    let node = node();
    let (mut client, session) = (node.client(), node.session());
    let ue = session.known_namespace("ue").unwrap().unwrap();
    let change = |client: &mut TestClient, write: &dyn Fn(&mut TestClient)| {
        client.put_record("r1", "{}", &[("a", "1"), ("b", "2")]);
        session.transact(|txn| txn.remove_fields(ue, b"r1", &[b"b"])).unwrap();
        write(client);
        session.transact(|txn| txn.set_fields(ue, b"r1", &[(b"b", b"3")])).unwrap();
        let read = client.get("/records/r1/blocks/b");
        assert_eq!(
            (read.is(200, "").header("content-type"), read.text()),
            (OCTETS, "3".to_owned())
        );
        assert_eq!(client.get("/records/r1/blocks/a").header("content-type"), Some("text/plain"));
    };
    change(&mut client, &|client| {
        client.send("PUT", "/records/r1/blocks/c", &[], "4").is(201, "");
    });
    change(&mut client, &|client| {
        let patch = r#"[{"op":"add","path":"/tags","value":{"a":["1"]}}]"#;
        client.send("PATCH", "/records/r1/meta", &[PATCH], patch).is(204, "");
    });
}
