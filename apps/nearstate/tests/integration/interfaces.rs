//! RESP and Nudsf of one node: a record that one writes is the same record for the other, and a
//! change by one is notified by the other.

use crate::cluster_nudsf::{NotifiedFunction, NudsfClient};
use crate::fixture::{Client, Folder, Node, serve, start, until};

/// A node with both protocols, and the address of its data repository.
fn node(folder: &Folder) -> (Node, String) {
    let mut command = serve(&folder.path("r"));
    command.args(["--listen", "127.0.0.1:0", "--unix", "", "--cores", "1", "--max", "256MiB"]);
    command.args(["--nudsf", "127.0.0.1:0", "--nudsf-storages", "Realm01/Storage01=ue"]);
    let node = start(&mut command);
    let log = node.log();
    let line = log.lines().find(|line| line.contains("protocol=nudsf")).unwrap();
    let address = line.split("address=").nth(1).unwrap().split(' ').next().unwrap();
    let address = address.to_owned();
    (node, address)
}

/// A record with tags and blocks.
fn record(meta: &str, blocks: &[(&str, &str)]) -> String {
    let part = |id: &str, bytes: &str| format!("--b\r\nContent-Id: {id}\r\n\r\n{bytes}\r\n");
    let blocks: String = blocks.iter().map(|(id, bytes)| part(id, bytes)).collect();
    format!("{}{blocks}--b--\r\n", part("meta", meta))
}

/// A search by one tag.
fn search(tag: &str, value: &str) -> String {
    format!(
        "/records?filter=%7B%22op%22:%22EQ%22,%22tag%22:%22{tag}%22,%22value%22:%22{value}%22%7D"
    )
}

/// A reply that is an array of bulk strings.
fn ask_list(client: &mut Client<std::net::TcpStream>, words: &[&str]) -> Vec<String> {
    let head = client.ask(words);
    let count: usize = head.strip_prefix('*').expect(&head).parse().unwrap();
    (0..count).map(|_| String::from_utf8(client.receive().unwrap()).unwrap()).collect()
}

#[test]
fn a_record_of_nudsf_is_a_hash_of_resp_by_key_tag_and_block() {
    let folder = Folder::new();
    let (node, address) = node(&folder);
    let (mut resp, mut nudsf) = (node.tcp(), NudsfClient::connect(&address).unwrap());
    let schema = r#"{"schemaId":"s","metaTags":[{"tagName":"supi","keyType":"SEARCH_KEY"}]}"#;
    assert_eq!(nudsf.request("PUT", "/meta-schemas/s", schema).0, 201);
    let meta = r#"{"tags":{"supi":["imsi-1","imsi-2"]},"ttl":"2999-01-01T00:00:00Z"}"#;
    let body = record(meta, &[("mm", "REGISTERED"), ("sm", "two\r\nlines")]);
    assert_eq!(nudsf.request("PUT", "/records/r1", &body).0, 201);

    assert_eq!(resp.ask(&["TYPE", "{ue},r1"]), "+hash");
    assert_eq!(resp.ask(&["HGET", "{ue},r1", "mm"]), "REGISTERED");
    assert_eq!(resp.ask(&["HGET", "{ue},r1", "sm"]), "two\r\nlines");
    assert_eq!(resp.ask(&["HGET", "{ue},r1", "other"]), "$-1");
    assert_eq!(resp.ask(&["PEXPIRETIME", "{ue},r1"]), ":32472144000000");
    for value in ["imsi-1", "imsi-2"] {
        assert_eq!(ask_list(&mut resp, &["TAG", "KEYS", "{ue},*", "supi", value]), ["{ue},r1"]);
    }
    let tags = ask_list(&mut resp, &["TAG", "OF", "{ue},r1"]);
    assert_eq!(tags, ["supi", "imsi-1", "supi", "imsi-2"]);
    // The only block, with the id `value`, is a string.
    assert_eq!(nudsf.request("PUT", "/records/r2", &record("{}", &[("value", "text")])).0, 201);
    assert_eq!(resp.ask(&["GET", "{ue},r2"]), "text");
    assert!(resp.ask(&["HGET", "{ue},r2", "value"]).starts_with("-WRONGTYPE"));

    assert_eq!(nudsf.request("PUT", "/records/r1/blocks/mm", "DEREGISTERED").0, 204);
    assert_eq!(resp.ask(&["HGET", "{ue},r1", "mm"]), "DEREGISTERED");
    assert_eq!(nudsf.request("DELETE", "/records/r1/blocks/sm", "").0, 204);
    assert_eq!(resp.ask(&["HEXISTS", "{ue},r1", "sm"]), ":0");
    assert_eq!(nudsf.request("DELETE", "/records/r1", "").0, 204);
    assert_eq!(resp.ask(&["EXISTS", "{ue},r1"]), ":0");
    assert_eq!(resp.ask(&["TAG", "KEYS", "{ue},*", "supi", "imsi-1"]), "*0");
}

#[test]
fn a_hash_of_resp_is_a_record_of_nudsf_by_key_tag_and_block() {
    let folder = Folder::new();
    let (node, address) = node(&folder);
    let (mut resp, mut nudsf) = (node.tcp(), NudsfClient::connect(&address).unwrap());
    assert_eq!(resp.ask(&["TAG", "DECLARE", "{ue},*", "supi", "ORDERED"]), "+OK");
    let set = ["TAG", "HSET", "{ue},h", "2", "mm", "1", "sm", "2", "1", "supi", "imsi-9"];
    assert_eq!(resp.ask(&set), ":2");
    assert_eq!(resp.ask(&["PEXPIREAT", "{ue},h", "32472144000000"]), ":1");

    assert_eq!(nudsf.request("GET", "/records/h/blocks/mm", ""), (200, "1".to_owned()));
    let (status, meta) = nudsf.request("GET", "/records/h/meta", "");
    let expected = r#"{"tags":{"supi":["imsi-9"]},"ttl":"2999-01-01T00:00:00Z"}"#;
    assert_eq!((status, meta.as_str()), (200, expected));
    let (status, found) = nudsf.request("GET", &search("supi", "imsi-9"), "");
    assert_eq!(status, 200, "{found}");
    assert!(found.contains("\"count\":1") && found.contains("/records/h\""), "{found}");
    assert_eq!(nudsf.request("GET", &search("supi", "imsi-8"), "").0, 204);
    assert_eq!(resp.ask(&["SET", "{ue},s", "text"]), "+OK");
    assert_eq!(nudsf.request("GET", "/records/s/blocks/value", ""), (200, "text".to_owned()));

    // Writes of both to one record.
    assert_eq!(nudsf.request("PUT", "/records/h/blocks/am", "3").0, 201);
    assert_eq!(resp.ask(&["HSET", "{ue},h", "sm", "4"]), ":0");
    for (block, value) in [("am", "3"), ("mm", "1"), ("sm", "4")] {
        assert_eq!(resp.ask(&["HGET", "{ue},h", block]), value);
        let path = format!("/records/h/blocks/{block}");
        assert_eq!(nudsf.request("GET", &path, ""), (200, value.to_owned()));
    }
    assert_eq!(resp.ask(&["TAG", "CHANGE", "{ue},h", "1", "supi", "imsi-8"]), ":1");
    assert_eq!(nudsf.request("GET", &search("supi", "imsi-9"), "").0, 204);
    assert_eq!(nudsf.request("GET", &search("supi", "imsi-8"), "").0, 200);
    assert_eq!(resp.ask(&["DEL", "{ue},h"]), ":1");
    assert_eq!(nudsf.request("GET", "/records/h", "").0, 404);
    // A set is no record: Nudsf neither reads nor replaces it.
    assert_eq!(resp.ask(&["SADD", "{ue},set", "a"]), ":1");
    assert_eq!(nudsf.request("GET", "/records/set", "").0, 404);
    assert_eq!(nudsf.request("PUT", "/records/set", &record("{}", &[])).0, 409);
    assert_eq!(resp.ask(&["SISMEMBER", "{ue},set", "a"]), ":1");
}

#[test]
fn a_change_through_one_protocol_is_notified_by_the_other() {
    let folder = Folder::new();
    let (node, address) = node(&folder);
    let (mut resp, mut nudsf) = (node.tcp(), NudsfClient::connect(&address).unwrap());
    let mut listener = node.tcp();
    assert_eq!(resp.ask(&["CONFIG", "SET", "notify-keyspace-events", "KA"]), "+OK");
    assert_eq!(listener.ask(&["PSUBSCRIBE", "__keyspace@0__:{ue},*"]), "*3");
    for expected in ["psubscribe", "__keyspace@0__:{ue},*", ":1"] {
        assert_eq!(listener.receive().unwrap(), expected.as_bytes());
    }
    let mut next_event = || {
        let words = (0..5).map(|_| String::from_utf8(listener.receive().unwrap()).unwrap());
        let words: Vec<String> = words.collect();
        (words[3].strip_prefix("__keyspace@0__:{ue},").unwrap().to_owned(), words[4].clone())
    };
    let mut expect_event = |key: &str, event: &str| {
        assert_eq!(next_event(), (key.to_owned(), event.to_owned()));
    };
    let target = NotifiedFunction::start();
    let subscription = format!(
        "{{\"clientId\": {{\"nfId\": \"4947a69a-f61b-4bc1-b9da-47c9c5d14b64\"}}, \
         \"callbackReference\": \"http://{}/\"}}",
        target.address
    );
    let (status, text) = nudsf.request("PUT", "/subs-to-notify/s1", &subscription);
    assert_eq!(status, 201, "{text}");
    let is_notified = |id: &str, operation: &str, count: usize| {
        let (reference, operation) = (format!("/records/{id}\""), format!("\"{operation}\""));
        let bodies = target.bodies();
        let of_it = |body: &&String| body.contains(&reference) && body.contains(&operation);
        bodies.iter().filter(of_it).count() >= count
    };

    assert_eq!(nudsf.request("PUT", "/records/n", &record("{}", &[("a", "1")])).0, 201);
    expect_event("n", "hset");
    assert_eq!(nudsf.request("PUT", "/records/n/blocks/b", "2").0, 201);
    expect_event("n", "hset");
    assert_eq!(nudsf.request("DELETE", "/records/n", "").0, 204);
    expect_event("n", "del");

    assert_eq!(resp.ask(&["HSET", "{ue},r", "f", "of RESP"]), ":1");
    expect_event("r", "hset");
    until("the new hash is notified", || is_notified("r", "CREATED", 1));
    assert!(target.bodies().iter().any(|body| body.contains("of RESP")), "the block is sent");
    assert_eq!(resp.ask(&["HSET", "{ue},r", "f", "changed"]), ":0");
    expect_event("r", "hset");
    until("the changed hash is notified", || is_notified("r", "UPDATED", 1));
    assert_eq!(resp.ask(&["DEL", "{ue},r"]), ":1");
    expect_event("r", "del");
    until("the deleted hash is notified", || is_notified("r", "DELETED", 1));
    assert_eq!(nudsf.request("GET", "/records/r", "").0, 404);
}
