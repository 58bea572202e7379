//! `get-previous` with concurrent writers (`req05`).

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::atomic::{AtomicUsize, Ordering};

use nearstate_store::{Metadata, Session};

use crate::contract::other_writers;
use crate::fixture::{MIXED, TestClient, TestNode, node, record_body};

/// Clients, and writes of each.
const CLIENTS: usize = 2;
const WRITES: usize = 500;

/// Attached processes, which write as long as the clients do: also while a request is in its
/// transaction.
const PROCESSES: usize = 2;
const PROCESS_WRITES_MAX: usize = 50_000;

/// Puts the block of a record, again if other writers were faster. Returns the previous one;
/// `None`: there was none.
fn put(client: &mut TestClient, path: &str, value: &str) -> Option<String> {
    let path = format!("{path}?get-previous=true");
    let is_block = path.contains("/blocks/");
    loop {
        let reply = if is_block {
            client.send("PUT", &path, &[], value)
        } else {
            client.send("PUT", &path, &[MIXED], record_body("{}", &[("value", value)]))
        };
        match reply.status {
            201 => return None,
            503 => {}
            _ if is_block => return Some(reply.is(200, "").text()),
            _ => return Some(reply.is(200, "").parts().remove(1)[3].clone()),
        }
    }
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

/// Between two writes of a process.
const PAUSE: usize = 500;

/// The values that a writer has written, and those that it has replaced.
type Written = (Vec<String>, Vec<String>);

fn client_writes(node: &TestNode, path: &str, writer: usize) -> Written {
    let _others = other_writers();
    let mut client = node.client();
    let values: Vec<String> = (0..WRITES).map(|number| format!("c{writer}-{number}")).collect();
    let previous = values.iter().filter_map(|value| put(&mut client, path, value)).collect();
    (values, previous)
}

fn process_writes(node: &TestNode, writer: usize, busy: &AtomicUsize) -> Written {
    let session = node.session();
    let (mut values, mut previous) = (Vec::new(), Vec::new());
    while busy.load(Ordering::Relaxed) > 0 && values.len() < PROCESS_WRITES_MAX {
        let value = format!("p{writer}-{}", values.len());
        previous.extend(put_attached(&session, &value));
        values.push(value);
        // A request that is never faster would be refused until the last of these writes.
        (0..PAUSE).for_each(|_| std::hint::spin_loop());
    }
    (values, previous)
}

/// Each value is the previous one of exactly one write, except for the last one.
fn each_is_returned_once(path: &str) {
    let _others = other_writers();
    let node = node();
    node.client().put_record("r", "{}", &[("value", "first")]).is(201, "");
    let busy = AtomicUsize::new(CLIENTS);
    let all: Vec<Written> = std::thread::scope(|scope| {
        let (node, busy) = (&node, &busy);
        let clients = (0..CLIENTS).map(|writer| {
            scope.spawn(move || {
                let written = client_writes(node, path, writer);
                busy.fetch_sub(1, Ordering::Relaxed);
                written
            })
        });
        let processes =
            (0..PROCESSES).map(|writer| scope.spawn(move || process_writes(node, writer, busy)));
        let writers: Vec<_> = clients.chain(processes).collect();
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    let (mut written, mut previous) = (vec!["first".to_owned()], Vec::new());
    for (values, replaced) in all {
        written.extend(values);
        previous.extend(replaced);
    }
    previous.push(node.client().get("/records/r/blocks/value").text());
    written.sort();
    previous.sort();
    let differs = written.iter().zip(&previous).find(|(one, other)| one != other);
    assert_eq!((written.len(), differs), (previous.len(), None));
}

#[test]
fn req05_each_previous_record_is_returned_to_exactly_one_of_several_writers() {
    each_is_returned_once("/records/r");
}

#[test]
fn req05_each_previous_block_is_returned_to_exactly_one_of_several_writers() {
    each_is_returned_once("/records/r/blocks/value");
}
