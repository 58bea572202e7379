//! The events and stream entries of real commits.

use nearstate_store::{
    BlockChange, Condition, Error, EventKind, Filter, Form, Kind, Metadata, Notice, Schema,
    StreamItem, TagSchema, Waiter, Watch, WhenFull,
};

use crate::fixture::TestRegion;
use std::time::Duration;

fn events_of(watch: &mut Watch) -> Vec<(EventKind, String, u64, Vec<String>)> {
    let mut all = Vec::new();
    while let Some(notice) = watch.next().unwrap() {
        let Notice::Event(event) = notice else { panic!("{notice:?}") };
        let key = String::from_utf8(event.key.to_vec()).unwrap();
        let blocks = event.blocks().map(str::to_owned).collect();
        all.push((event.kind, key, event.version, blocks));
    }
    all
}

#[test]
fn a_watch_returns_each_change_in_order_with_its_version() {
    let fixture = TestRegion::new();
    let session = fixture.region.session().unwrap();
    let tags = vec![TagSchema { name: "cell".to_owned(), ..TagSchema::default() }];
    let ns = session.namespace("s", &Schema { tags, ..Schema::default() }).unwrap();
    let schema = Schema { kind: Kind::Blocks, ..Schema::default() };
    let blocks = session.namespace("b", &schema).unwrap();
    let mut all = session.watch(ns, Filter::Namespace).unwrap();
    let in_5 = Filter::Tag { name: "cell".to_owned(), value: b"5".to_vec() };
    let mut in_5 = session.watch(ns, in_5).unwrap();
    let mut of_blocks = session.watch(blocks, Filter::Key(b"k".to_vec())).unwrap();
    let first = session.put(ns, b"a", b"1").unwrap();
    let second = session.put(ns, b"a", b"2").unwrap();
    assert!(session.delete(ns, b"a").unwrap());
    assert!(!session.delete(ns, b"a").unwrap());
    let cell: &[(&str, &[u8])] = &[("cell", b"5")];
    session
        .transact(|txn| {
            txn.put(ns, b"x", b"1")?;
            txn.put_with_metadata(ns, b"y", b"1", Metadata { tags: cell, expires_ms: 0 })
        })
        .unwrap();
    // A transaction that does not commit sends no event.
    session.begin().unwrap().put(ns, b"never", b"").unwrap();
    session
        .transact(|txn| {
            txn.put_with_metadata(ns, b"y", b"2", Metadata { tags: &[], expires_ms: 1 })?;
            let change = |name, bytes| BlockChange { name, bytes };
            txn.patch(blocks, b"k", &[change("auth", Some(b"1")), change("loc", None)])
        })
        .unwrap();
    assert_eq!(session.collect_expired(10).unwrap().records, 1);
    let names = |all: &[(EventKind, String, u64, Vec<String>)]| {
        all.iter().map(|(kind, key, ..)| (*kind, key.clone())).collect::<Vec<_>>()
    };
    let events = events_of(&mut all);
    let expected = [
        (EventKind::Created, "a"),
        (EventKind::Updated, "a"),
        (EventKind::Deleted, "a"),
        (EventKind::Created, "x"),
        (EventKind::Created, "y"),
        (EventKind::Updated, "y"),
        (EventKind::Expired, "y"),
    ];
    assert_eq!(names(&events), expected.map(|(kind, key)| (kind, key.to_owned())));
    assert_eq!([events[0].2, events[1].2, events[2].2], [first, second, second]);
    assert_eq!(events_of(&mut in_5).len(), 2, "coming into the cell and leaving it");
    let events = events_of(&mut of_blocks);
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].3, ["auth", "loc"]);
    drop(session);
    fixture.close_and_check();
}

#[test]
fn an_expired_record_is_reported_when_it_is_replaced() {
    let fixture = TestRegion::new();
    let session = fixture.region.session().unwrap();
    let ns = session.namespace("s", &Schema::default()).unwrap();
    session.put_until(ns, b"k", b"1", 1).unwrap();
    let mut watch = session.watch(ns, Filter::Namespace).unwrap();
    session.put(ns, b"k", b"2").unwrap();
    assert_eq!(session.collect_expired(10).unwrap().records, 0);
    let kinds: Vec<_> = events_of(&mut watch).into_iter().map(|(kind, ..)| kind).collect();
    assert_eq!(kinds, [EventKind::Expired, EventKind::Created]);
    drop(session);
    fixture.close_and_check();
}

/// A key that no record can have was written to the stream with a wrong size, and the rest of the
/// entry could not be read.
#[test]
fn a_delete_of_a_key_that_is_too_long_leaves_the_stream_readable() {
    let fixture = TestRegion::new();
    let session = fixture.region.session().unwrap();
    let ns = session.namespace("s", &Schema::default()).unwrap();
    session.stream(ns, WhenFull::LoseOldest).unwrap();
    let is_deleted = session
        .transact::<_, Error>(|txn| {
            txn.put(ns, b"before", b"v")?;
            let is_deleted = txn.delete(ns, &vec![7; 70_000])?;
            txn.put(ns, b"after", b"v")?;
            Ok(is_deleted)
        })
        .unwrap();
    assert!(!is_deleted);
    let mut stream = session.commit_stream().unwrap();
    let Some(StreamItem::Transaction(entry)) = stream.next().unwrap() else { panic!("no entry") };
    let keys: Vec<&[u8]> = entry.records().map(|record| record.unwrap().key).collect();
    assert_eq!(keys, [b"before".as_slice(), b"after"]);
    drop(stream);
    drop(session);
    fixture.close_and_check();
}

#[test]
fn an_event_says_what_the_record_is_or_was() {
    let fixture = TestRegion::new();
    let session = fixture.region.session().unwrap();
    let schema = Schema { kind: Kind::Mixed, ..Schema::default() };
    let mixed = session.namespace("m", &schema).unwrap();
    let blocks = Schema { kind: Kind::Blocks, ..Schema::default() };
    let blocks = session.namespace("b", &blocks).unwrap();
    let [mut of_mixed, mut of_blocks] =
        [mixed, blocks].map(|ns| session.watch(ns, Filter::Namespace).unwrap());
    let block = [BlockChange { name: "f", bytes: Some(b"1") }];
    let past = Metadata { expires_ms: 1, ..Metadata::default() };
    session.put(mixed, b"k", b"value").unwrap();
    session.delete(mixed, b"k").unwrap();
    session.patch(mixed, b"k", &block, Condition::Always).unwrap();
    session.transact(|txn| txn.put_members(mixed, b"k", &[b"one"], Metadata::default())).unwrap();
    session.transact(|txn| txn.put_members(mixed, b"k", &[b"two"], past)).unwrap();
    session.put(mixed, b"k", b"value").unwrap();
    session.patch(blocks, b"k", &block, Condition::Always).unwrap();
    session.delete(blocks, b"k").unwrap();
    let forms = |watch: &mut Watch| {
        let mut all = Vec::new();
        while let Some(Notice::Event(event)) = watch.next().unwrap() {
            all.push((event.kind, event.form));
        }
        all
    };
    let expected = [
        (EventKind::Created, Form::Value),
        (EventKind::Deleted, Form::Value),
        (EventKind::Created, Form::Blocks),
        (EventKind::Updated, Form::Set),
        (EventKind::Updated, Form::Set),
        (EventKind::Expired, Form::Set),
        (EventKind::Created, Form::Value),
    ];
    assert_eq!(forms(&mut of_mixed), expected);
    let expected = [(EventKind::Created, Form::Blocks), (EventKind::Deleted, Form::Blocks)];
    assert_eq!(forms(&mut of_blocks), expected);
    drop((of_mixed, of_blocks, session));
    fixture.close_and_check();
}

#[test]
fn one_thread_waits_for_several_watches() {
    let fixture = TestRegion::new();
    let session = fixture.region.session().unwrap();
    let namespaces =
        ["a", "b", "c"].map(|name| session.namespace(name, &Schema::default()).unwrap());
    let mut watches = namespaces.map(|ns| session.watch(ns, Filter::Namespace).unwrap());
    let before = watches.each_ref().map(|watch| (watch.waiter(), watch.position()));
    assert!(!Waiter::wait_any(&before, Duration::ZERO, || false).unwrap());
    let [_, second, _] = namespaces;
    session.put(second, b"k", b"1").unwrap();
    assert!(Waiter::wait_any(&before, Duration::from_secs(600), || false).unwrap());
    let mores = before.each_ref().map(|(waiter, looked)| waiter.has_more(*looked).unwrap());
    assert_eq!(mores, [false, true, false]);
    let [_, watch, _] = &mut watches;
    assert!(matches!(watch.next().unwrap(), Some(Notice::Event(_))));
    let waits = watches.each_ref().map(|watch| (watch.waiter(), watch.position()));
    assert!(!Waiter::wait_any(&waits, Duration::from_secs(600), || true).unwrap());
    let count = session.namespace_count().unwrap();
    session.namespace("d", &Schema::default()).unwrap();
    assert_eq!(session.namespace_count().unwrap(), count + 1);
}
