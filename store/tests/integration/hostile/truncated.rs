//! The file is truncated while it is attached: no `SIGBUS`, and no invented data.

use std::fs::OpenOptions;

use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use nearstate_store::{
    BlockChange, CommitWait, Condition, Error, Kind, Pattern, Receipt, ReceiptWaits, Region,
    ReplicationPolicy, Result, Schema, Session,
};

use crate::fixture::{TestFolder, open, refused, small};

/// Bytes of a chunk of the heap.
const CHUNK: u64 = 256 << 10;

/// Where the file is cut: in the superblock, the members, the catalog, the arenas, the heap.
const LENGTHS: &[u64] =
    &[0, 100, 0x1000, 0x2000, 0x40_0000, 0x440_0000, 0x440_1000, 0x840_0000, 0x840_8000];

fn key(number: u32) -> [u8; 4] {
    number.to_le_bytes()
}

/// Every operation, each told apart.
fn all(session: &Session, region: &Region) -> Vec<(&'static str, Result<()>)> {
    let schema = Schema::default();
    let Ok(ns) = session.namespace("ue", &schema) else {
        return vec![("namespace", session.namespace("ue", &schema).map(drop))];
    };
    let blocks =
        session.namespace("blocks", &Schema { kind: Kind::Blocks, ..Schema::default() }).unwrap();
    let mut copy = Vec::new();
    let keys = [key(1), key(2), key(9999)];
    let keys: Vec<&[u8]> = keys.iter().map(<[u8; 4]>::as_slice).collect();
    let change = [BlockChange { name: "b", bytes: Some(&[1; 9000]) }];
    vec![
        ("get", session.get(ns, &key(3)).map(drop)),
        ("get of none", session.get(ns, b"none").map(drop)),
        ("get_copy", session.get_copy(ns, &key(4), &mut copy).map(drop)),
        ("get_batch", session.get_batch(ns, &keys, |_, _| {})),
        ("put", session.put(ns, &key(5), &[2; 700]).map(drop)),
        ("put anew", session.put(ns, b"new", &[2; 700]).map(drop)),
        ("put large", session.put(ns, b"large", &vec![2; 3 << 20]).map(drop)),
        ("patch", session.patch(blocks, b"k", &change, Condition::Always).map(drop)),
        ("delete", session.delete(ns, &key(6)).map(drop)),
        ("list", session.list(ns, Pattern::All, |_| {})),
        ("count", session.count(ns).map(drop)),
        ("session", region.session().map(drop)),
    ]
}

#[test]
fn a_file_that_is_truncated_while_attached_gives_errors_and_no_signal() {
    for &length in LENGTHS {
        let folder = TestFolder::new();
        let region = Region::create(&folder.path, &small()).unwrap();
        let (session, ns) = open(&region);
        let blocks = session
            .namespace("blocks", &Schema { kind: Kind::Blocks, ..Schema::default() })
            .unwrap();
        for number in 0..2000 {
            session.put(ns, &key(number), &[1; 1000]).unwrap();
        }
        let change = [BlockChange { name: "b", bytes: Some(&[7; 9000]) }];
        session.patch(blocks, b"k", &change, Condition::Always).unwrap();
        let (other, _) = open(&region);
        let view = session.get(ns, &key(1999)).unwrap().unwrap();
        let patched = session.get(blocks, b"k").unwrap().unwrap();

        let file = OpenOptions::new().write(true).open(&folder.path).unwrap();
        file.set_len(length).unwrap();

        // The held views read zeros where there is nothing; what was there before, else.
        assert!(view.bytes().iter().all(|byte| [0, 1].contains(byte)));
        let block: u32 = patched.block("b").unwrap_or_default().iter().map(|b| u32::from(*b)).sum();
        assert!(block <= 7 * 9000);
        assert!(view.key().len() <= 4);
        drop((view, patched));

        for round in 0..2 {
            for session in [&session, &other] {
                for (name, result) in all(session, &region) {
                    match result {
                        Err(Error::Damaged { .. }) => {}
                        other => panic!("cut at {length:#x}, round {round}: {name}: {other:?}"),
                    }
                }
            }
        }
        refused(session.put(ns, b"k", b"v"), &["truncated while it was attached", "stop"]);
        drop((session, other, region));
        let attached = Region::attach(&folder.path);
        refused(attached, if length == 0 { &["empty"] } else { &["truncated"] });
    }
}

type Call = (&'static str, fn(&Region, &Session, Receipt) -> Result<()>);

/// What a receipt stands for, once now and once with a wait.
fn waited(session: &Session, receipt: Receipt, limit: Duration) -> Result<()> {
    session.wait_replicated(receipt, limit).map(drop)
}

/// What tells whether the log has, and has replicated, something. Zeros say that it has nothing.
const CALLS: &[Call] = &[
    ("log_tail_position", |_, session, _| session.log_tail_position().map(drop)),
    ("replicated_position", |_, session, _| session.replicated_position().map(drop)),
    ("is_replication_awaited", |_, session, _| session.is_replication_awaited().map(drop)),
    ("sleep_until_awaited", |_, session, _| {
        session.sleep_until_awaited(Duration::from_micros(1)).map(drop)
    }),
    ("tell_source_cpu", |_, session, _| session.tell_source_cpu(0).map(drop)),
    ("receipt_of_all", |_, session, _| session.receipt_of_all().map(drop)),
    ("receipt_at", |_, session, receipt| session.receipt_at(receipt.position()).map(drop)),
    ("receipt_state", |_, session, receipt| session.receipt_state(receipt).map(drop)),
    ("wait_replicated", |_, session, receipt| waited(session, receipt, Duration::ZERO)),
    ("wait_replicated for a time", |_, session, receipt| {
        waited(session, receipt, Duration::from_millis(1))
    }),
    ("wait_applied", |_, session, receipt| session.wait_applied(receipt, Duration::ZERO)),
    ("ReceiptWaits::state", |_, session, receipt| {
        ReceiptWaits::new(session).state(receipt).map(drop)
    }),
    ("ReceiptWait", |_, session, receipt| {
        let mut wait = ReceiptWaits::new(session).wait(receipt);
        match Pin::new(&mut wait).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(state) => state.map(drop),
            Poll::Pending => Ok(()),
        }
    }),
    ("namespaces", |_, session, _| session.namespaces().map(drop)),
    ("inspect", |region, _, _| region.inspect().map(drop)),
    ("heap_space", |region, _, _| region.heap_space().map(drop)),
];

/// Of a region that is cut behind its first page: the call is the first to see it.
fn first_call_in_a_truncated_region((name, call): &Call) {
    let folder = TestFolder::new();
    let region = Region::create(&folder.path, &small()).unwrap();
    let session = region.session().unwrap();
    session.set_commit_wait(CommitWait::Never, Duration::ZERO);
    let policy = ReplicationPolicy::Replicated;
    let ns = session.namespace_with_policy("ue", &Schema::default(), policy).unwrap();
    session.put(ns, b"k", b"v").unwrap();
    let receipt = session.receipt();
    assert!(receipt != Receipt::NONE, "the commit is not logged");
    assert_eq!(call(&region, &session, receipt), Ok(()), "{name}");

    let file = OpenOptions::new().write(true).open(&folder.path).unwrap();
    file.set_len(0x1000).unwrap();
    let answer = call(&region, &session, receipt);
    assert!(matches!(answer, Err(Error::Damaged { .. })), "{name}: {answer:?}");
}

#[test]
fn in_a_truncated_region_nothing_counts_as_replicated_and_no_list_is_empty() {
    CALLS.iter().for_each(first_call_in_a_truncated_region);
}

/// It has to end: a wait of a damaged region is woken by no consumer.
#[test]
fn the_thread_that_waits_for_receipts_ends_when_the_region_is_truncated() {
    let folder = TestFolder::new();
    let region = Region::create(&folder.path, &small()).unwrap();
    let session = region.session().unwrap();
    let policy = ReplicationPolicy::Async;
    let ns = session.namespace_with_policy("ue", &Schema::default(), policy).unwrap();
    session.put(ns, b"k", b"v").unwrap();
    let waits = ReceiptWaits::new(&session);
    let mut wait = waits.wait(session.receipt());
    let mut cx = Context::from_waker(Waker::noop());
    assert!(Pin::new(&mut wait).poll(&mut cx).is_pending());
    let file = OpenOptions::new().write(true).open(&folder.path).unwrap();
    file.set_len(0x1000).unwrap();
    waits.run(); // It returns.
    let polled = Pin::new(&mut wait).poll(&mut cx);
    assert!(matches!(polled, Poll::Ready(Err(Error::Damaged { .. }))), "{polled:?}");
}

#[test]
fn a_truncation_after_all_records_is_detected_when_the_region_grows() {
    let folder = TestFolder::new();
    let region = Region::create(&folder.path, &small()).unwrap();
    let (session, ns) = open(&region);
    session.put(ns, b"before", b"v").unwrap();
    // What stays where it is has a chunk of its own, and the record lies in the next one.
    let taken = region.inspect().unwrap().bytes_taken.next_multiple_of(CHUNK) + CHUNK;
    let file = OpenOptions::new().write(true).open(&folder.path).unwrap();
    file.set_len(0x840_0000 + taken).unwrap();
    assert_eq!(session.get(ns, b"before").unwrap().unwrap().bytes(), b"v");
    let mut acknowledged = 0_u32;
    let error = loop {
        match session.put(ns, &key(acknowledged), &[3; 5000]) {
            Ok(_) => acknowledged += 1,
            Err(error) => break error,
        }
        assert!(acknowledged < 20_000, "it never met the end of the file");
    };
    assert!(matches!(error, Error::Damaged { .. }), "{error}");
    assert!(u64::from(acknowledged) * 5000 < taken, "{acknowledged} were put into nothing");
}

#[test]
fn many_threads_read_a_truncated_file() {
    let folder = TestFolder::new();
    let region = Region::create(&folder.path, &small()).unwrap();
    let (session, ns) = open(&region);
    for number in 0..500 {
        session.put(ns, &key(number), &[1; 1000]).unwrap();
    }
    let ready = std::sync::Barrier::new(5);
    std::thread::scope(|scope| {
        for thread in 0..4_u32 {
            let (region, ready) = (&region, &ready);
            scope.spawn(move || {
                let (session, ns) = open(region);
                ready.wait();
                let mut number = thread;
                loop {
                    number = number.wrapping_mul(1_103_515_245).wrapping_add(12345);
                    let result = if thread < 2 {
                        session.get(ns, &key(number % 500)).map(|view| {
                            view.map_or(0, |view| view.bytes().iter().map(|b| u64::from(*b)).sum())
                        })
                    } else {
                        session.put(ns, &key(number % 500), &[1; 1000])
                    };
                    if result.is_err() {
                        return;
                    }
                }
            });
        }
        ready.wait();
        for _ in 0..20_000 {
            session.put(ns, b"k", b"v").unwrap();
        }
        OpenOptions::new().write(true).open(&folder.path).unwrap().set_len(0).unwrap();
    });
    refused(session.get(ns, b"k"), &["truncated"]);
}
