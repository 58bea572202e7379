//! Operations on blocks (`dr09` to `dr12`).

use crate::fixture::{PATCH, TestClient, node, wait_for_next_second};

#[test]
fn dr09_the_list_of_blocks_is_multipart_parallel() {
    let node = node();
    let mut client = node.client();
    client.get("/records/r1/blocks").is(404, "RECORD_NOT_FOUND");
    client.put_record("r1", "{}", &[]).is(201, "");
    client.get("/records/r1/blocks").is(204, "");
    client.put_record("r1", "{}", &[("a", "1"), ("b", "2")]).is(204, "");
    let list = client.get("/records/r1/blocks");
    assert!(
        list.is(200, "")
            .header("content-type")
            .is_some_and(|t| t.starts_with("multipart/parallel;"))
    );
    let ids: Vec<_> = list.parts().iter().map(|part| part[0].clone()).collect();
    assert_eq!(ids, ["a", "b"]);
    assert_eq!(list.etag(), client.get("/records/r1").etag());
}

#[test]
fn dr11_put_of_a_block_keeps_its_type_and_changes_the_record() {
    let node = node();
    let mut client = node.client();
    client.send("PUT", "/records/r1/blocks/a", &[], "x").is(404, "RECORD_NOT_FOUND");
    let record = client.put_record("r1", r#"{"tags":{"t":["1"]}}"#, &[("a", "1"), ("b", "2")]);
    let json = [("Content-Type", "application/json; v=1"), ("Content-Transfer-Encoding", "8bit")];
    let created = client.send("PUT", "/records/r1/blocks/c%20d", &json, "{}");
    created.is(201, "");
    let location = "http://udsf.example/nudsf-dr/v1/Realm01/Storage01/records/r1/blocks/c%20d";
    assert_eq!(created.header("location"), Some(location));
    let read = client.get("/records/r1/blocks/c%20d");
    assert_eq!((read.status, read.text().as_str(), read.etag()), (200, "{}", created.etag()));
    assert_eq!(read.header("content-type"), Some("application/json; v=1"));
    assert_eq!(read.header("content-transfer-encoding"), Some("8bit"));
    for (coding, status) in [("gzip", 415), ("identity", 204)] {
        let headers = [json[0], json[1], ("Content-Encoding", coding)];
        let coded = client.send("PUT", "/records/r1/blocks/c%20d", &headers, "{}");
        assert_eq!(coded.status, status, "{coding} {}", coded.text());
        let accepted = (status == 415).then_some("identity");
        assert_eq!(coded.header("accept-encoding"), accepted);
    }
    let whole = client.get("/records/r1");
    assert_ne!(whole.etag(), record.etag());
    assert_eq!(whole.parts()[3][..3], ["c d", "application/json; v=1", "8bit"].map(str::to_owned));
    let replaced = client.send("PUT", "/records/r1/blocks/a?get-previous=true", &[], "new");
    assert_eq!((replaced.status, replaced.text().as_str()), (200, "1"));
    assert_eq!(replaced.etag(), client.get("/records/r1/blocks/a").etag());
    client
        .send("PUT", "/records/r1/blocks/a", &[("If-None-Match", "*")], "x")
        .is(412, "PRECONDITION_FAILED");
    let etag = replaced.etag().to_owned();
    client.send("PUT", "/records/r1/blocks/a", &[("If-Match", &etag)], "x").is(204, "");
    let failed =
        client.send("PUT", "/records/r1/blocks/a?get-previous=true", &[("If-Match", &etag)], "y");
    assert_eq!((failed.status, failed.text().as_str()), (412, "x"));
    client.send("PUT", "/records/r1/blocks/%01nudsf", &[], "x").is(400, "MANDATORY_IE_INCORRECT");
    client
        .send("PUT", &format!("/records/r1/blocks/{}", "n".repeat(256)), &[], "x")
        .is(400, "MANDATORY_IE_INCORRECT");
    assert_eq!(client.get("/records/r1").parts().len(), 4);
}

#[test]
fn dr10_get_of_a_block_is_conditional_and_not_changed_by_other_blocks() {
    let node = node();
    let mut client = node.client();
    client.get("/records/r1/blocks/a").is(404, "RECORD_NOT_FOUND");
    client.put_record("r1", "{}", &[("a", "1"), ("b", "2")]).is(201, "");
    client.get("/records/r1/blocks/none").is(404, "BLOCK_NOT_FOUND");
    client.get("/records/r1/blocks/%01nudsf").is(404, "BLOCK_NOT_FOUND");
    let block = client.get("/records/r1/blocks/a");
    assert_eq!(block.header("content-transfer-encoding"), Some("binary"), "as the part had it");
    client.send("PUT", "/records/r1/blocks/b", &[], "3").is(204, "");
    let mut get =
        |header: (&str, &str)| client.send("GET", "/records/r1/blocks/a", &[header], "").status;
    assert_eq!(get(("If-None-Match", block.etag())), 304);
    wait_for_next_second();
    assert_eq!(get(("If-Modified-Since", block.header("last-modified").unwrap_or_default())), 304);
    assert_eq!(get(("If-None-Match", "\"x\"")), 200);
    assert_eq!(get(("Accept", "application/json")), 406);
}

#[test]
fn dr12_delete_of_a_block_leaves_the_others() {
    let node = node();
    let mut client = node.client();
    client.send("DELETE", "/records/r1/blocks/a", &[], "").is(404, "RECORD_NOT_FOUND");
    client.put_record("r1", "{}", &[("a", "1"), ("b", "2")]).is(201, "");
    client.send("DELETE", "/records/r1/blocks/x", &[], "").is(404, "BLOCK_NOT_FOUND");
    client
        .send("DELETE", "/records/r1/blocks/a", &[("If-Match", "\"x\"")], "")
        .is(412, "PRECONDITION_FAILED");
    let path = "/records/r1/blocks/a?get-previous=true";
    let failed = client.send("DELETE", path, &[("If-Match", "\"x\"")], "");
    assert_eq!((failed.status, failed.text().as_str()), (412, "1"));
    assert_eq!(failed.etag(), client.get("/records/r1/blocks/a").etag());
    let previous = client.send("DELETE", path, &[], "");
    assert_eq!((previous.status, previous.text().as_str()), (200, "1"));
    assert_eq!(client.get("/records/r1").parts().len(), 2);
    client.send("DELETE", "/records/r1/blocks/b", &[], "").is(204, "");
    assert_eq!(client.get("/records/r1").parts().len(), 1, "a record without blocks remains");
    client.get("/records/r1/blocks").is(204, "");
    client.send("PUT", "/records/r1/blocks/value", &[], "x").is(201, "");
    assert_eq!(client.get("/records/r1/blocks/value").text(), "x");
    client.send("DELETE", "/records/r1/blocks/value", &[], "").is(204, "");
    client.get("/records/r1/blocks").is(204, "");
}

#[test]
fn dr11_control_characters_in_what_is_kept_are_refused_and_change_nothing() {
    let node = node();
    let mut client = node.client();
    let meta = r#"{"callbackReference":"http://nf.example/a"}"#;
    client.put_record("r1", meta, &[("a", "1"), ("b", "2")]).is(201, "");
    let read = |client: &mut TestClient| {
        let (record, block) = (client.get("/records/r1"), client.get("/records/r1/blocks/a"));
        let kept = ["etag", "last-modified", "content-type", "content-transfer-encoding"];
        let kept = kept.map(|name| block.header(name).map(str::to_owned));
        assert!(kept.iter().all(Option::is_some), "{kept:?}");
        (record.etag().to_owned(), record.parts(), kept)
    };
    let before = read(&mut client);
    for header in
        [("Content-Type", "text/plain;\tcharset=utf-8"), ("Content-Transfer-Encoding", "8bit\t;x")]
    {
        for id in ["b", "c"] {
            let path = format!("/records/r1/blocks/{id}");
            client.send("PUT", &path, &[header], "x").is(400, "INVALID_MSG_FORMAT");
        }
    }
    let odd = "{\"callbackReference\":\"http://nf.example/a\u{85}b\"}";
    for meta in [odd, r#"{"callbackReference":"http://nf.example/a\u0085b"}"#] {
        client.put_record("r1", meta, &[("a", "1")]).is(400, "OPTIONAL_IE_INCORRECT");
    }
    let patch = r#"[{"op":"replace","path":"/callbackReference","value":"http://nf/\u0085"}]"#;
    client.send("PATCH", "/records/r1/meta", &[PATCH], patch).is(200, "");
    assert_eq!(read(&mut client), before);
}
