//! `get-previous` with concurrent writers (`req05`).

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use nearstate_store::{Metadata, Session};

use crate::contract::other_writers;
use crate::fixture::{MIXED, TestClient, node, record_body};

/// Writes of each writer.
const WRITES: usize = 300;

/// Clients, and processes that are attached to the region: these write while a request is in its
/// transaction.
const CLIENTS: usize = 2;
const PROCESSES: usize = 2;

/// The value of a write.
fn value(writer: usize, number: usize) -> String {
    format!("{writer}-{number}")
}

/// Puts the block of a record. Returns the previous one; `None`: there was none.
fn put(client: &mut TestClient, path: &str, value: &str) -> Option<String> {
    let path = format!("{path}?get-previous=true");
    let is_block = path.contains("/blocks/");
    let reply = if is_block {
        client.send("PUT", &path, &[], value)
    } else {
        client.send("PUT", &path, &[MIXED], record_body("{}", &[("value", value)]))
    };
    if reply.status == 201 {
        return None;
    }
    let previous = reply.is(200, "");
    Some(if is_block { previous.text() } else { previous.parts().remove(1)[3].clone() })
}

/// The same as an attached process.
fn put_attached(session: &Session, value: &str) -> Option<String> {
    let ue = session.known_namespace("ue").unwrap().unwrap();
    let previous = session.transact(|txn| -> nearstate_store::Result<_> {
        let view = txn.get(ue, b"r")?;
        let previous = view.map(|view| String::from_utf8(view.bytes().to_vec()).unwrap());
        txn.put_with_metadata(ue, b"r", value.as_bytes(), Metadata::default())?;
        Ok(previous)
    });
    previous.unwrap()
}

/// Each value is the previous one of exactly one write, except for the last one.
fn each_is_returned_once(path: &str) {
    let _others = other_writers();
    let node = node();
    node.client().put_record("r", "{}", &[("value", "first")]).is(201, "");
    let mut seen: Vec<String> = std::thread::scope(|scope| {
        let node = &node;
        let writers: Vec<_> = (0..CLIENTS + PROCESSES)
            .map(|writer| {
                scope.spawn(move || {
                    let _others = other_writers();
                    let values = (0..WRITES).map(|number| value(writer, number));
                    if writer < CLIENTS {
                        let mut client = node.client();
                        values.filter_map(|value| put(&mut client, path, &value)).collect()
                    } else {
                        let session = node.session();
                        let put = |value: String| put_attached(&session, &value);
                        values.filter_map(put).collect::<Vec<_>>()
                    }
                })
            })
            .collect();
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
    });
    seen.push(node.client().get("/records/r/blocks/value").text());
    seen.sort();
    let writers = 0..CLIENTS + PROCESSES;
    let all = writers.flat_map(|writer| (0..WRITES).map(move |number| value(writer, number)));
    let mut written: Vec<String> = all.chain(["first".to_owned()]).collect();
    written.sort();
    assert_eq!(seen, written);
}

#[test]
fn req05_each_previous_record_is_returned_to_exactly_one_of_several_writers() {
    each_is_returned_once("/records/r");
}

#[test]
fn req05_each_previous_block_is_returned_to_exactly_one_of_several_writers() {
    each_is_returned_once("/records/r/blocks/value");
}
