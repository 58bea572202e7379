//! A clock that jumps (`spec/region.md`, section 9): set forward, records end early, and once; set
//! back, records that are not yet collected are visible again, and nothing else breaks. The clock
//! belongs to the process, so each test runs alone.

use nearstate_store::crash::shift_clock;
use nearstate_store::{
    Error, EventKind, Filter, Metadata, Namespace, Notice, Schema, Session, TagSchema, Values,
    Watch, now_ms_coarse,
};

use crate::fixture::{TestRegion, is_alone};

const HOUR: i64 = 3_600_000;
const MINUTE: u64 = 60_000;

fn open(session: &Session) -> Namespace {
    let guti = TagSchema { name: "guti".to_owned(), is_unique: true, ..TagSchema::default() };
    let cell = TagSchema {
        name: "cell".to_owned(),
        is_ordered: true,
        is_counted: true,
        ..TagSchema::default()
    };
    session.namespace("s", &Schema { tags: vec![guti, cell], ..Schema::default() }).unwrap()
}

fn put(session: &Session, ns: Namespace, number: u64, expires_ms: u64) -> Result<(), Error> {
    let guti = format!("g{number}");
    let tags: &[(&str, &[u8])] = &[("guti", guti.as_bytes()), ("cell", b"1")];
    let key = format!("imsi-{number}");
    let metadata = Metadata { tags, expires_ms };
    session.transact(|txn| txn.put_with_metadata(ns, key.as_bytes(), b"v", metadata))
}

/// The numbers of the records that are there, by their keys, by the one tag, and by the other.
fn there(session: &Session, ns: Namespace, numbers: std::ops::Range<u64>) -> Vec<u64> {
    let mut by_key = Vec::new();
    for number in numbers {
        let found = session.get(ns, format!("imsi-{number}").as_bytes()).unwrap().is_some();
        let guti = session.find(ns, "guti", format!("g{number}").as_bytes()).unwrap().is_some();
        assert_eq!(found, guti, "record {number}");
        by_key.extend(found.then_some(number));
    }
    let mut by_cell: Vec<u64> = Vec::new();
    session
        .find_all(ns, "cell", Values::Equal(b"1"), |view| {
            let key = str::from_utf8(view.key()).unwrap();
            by_cell.push(key.strip_prefix("imsi-").unwrap().parse().unwrap());
            true
        })
        .unwrap();
    by_cell.sort_unstable();
    assert_eq!(by_key, by_cell);
    assert_eq!(session.count(ns).unwrap(), by_key.len() as u64);
    by_key
}

fn expired(watch: &mut Watch) -> Vec<String> {
    let mut keys = Vec::new();
    while let Some(notice) = watch.next().unwrap() {
        let Notice::Event(event) = notice else { panic!("{notice:?}") };
        if event.kind == EventKind::Expired {
            keys.push(String::from_utf8(event.key.to_vec()).unwrap());
        }
    }
    keys
}

#[test]
fn set_forward_records_end_early_and_are_collected_once() {
    if !is_alone("clock_jumps::set_forward_records_end_early_and_are_collected_once") {
        return;
    }
    let fixture = TestRegion::with_bytes(64 << 20);
    let session = fixture.region.session().unwrap();
    let other = fixture.region.session().unwrap();
    let ns = open(&session);
    let mut watch = session.watch(ns, Filter::Namespace).unwrap();
    let now = now_ms_coarse();
    for number in 0..8 {
        put(&session, ns, number, now + MINUTE * (number + 1)).unwrap();
    }
    put(&session, ns, 8, 0).unwrap();
    put(&session, ns, 9, now + MINUTE).unwrap();
    put(&session, ns, 9, now + 1000 * MINUTE).unwrap();
    assert_eq!(there(&session, ns, 0..10), (0..10).collect::<Vec<_>>());
    shift_clock(HOUR);
    assert_eq!(there(&session, ns, 0..10), [8, 9]);
    let collected = [&session, &other, &session].map(|s| s.collect_expired(100).unwrap().records);
    assert_eq!(collected, [8, 0, 0]);
    let mut ended = expired(&mut watch);
    ended.sort_unstable();
    assert_eq!(ended, (0..8).map(|number| format!("imsi-{number}")).collect::<Vec<_>>());
    assert_eq!(session.count_tagged(ns, "cell", b"1").unwrap(), 2);
    // Further forward the one that was put off ends as well.
    shift_clock(24 * HOUR);
    assert_eq!(there(&session, ns, 0..10), [8]);
    assert_eq!(other.collect_expired(100).unwrap().records, 1);
    assert_eq!(expired(&mut watch), ["imsi-9"]);
    drop((session, other));
    fixture.close_and_check();
}

#[test]
fn set_back_only_records_that_were_not_collected_are_visible_again() {
    if !is_alone("clock_jumps::set_back_only_records_that_were_not_collected_are_visible_again") {
        return;
    }
    let fixture = TestRegion::with_bytes(64 << 20);
    let session = fixture.region.session().unwrap();
    let ns = open(&session);
    let mut watch = session.watch(ns, Filter::Namespace).unwrap();
    let now = now_ms_coarse();
    shift_clock(HOUR);
    for number in 0..8 {
        put(&session, ns, number, now + MINUTE).unwrap();
    }
    put(&session, ns, 8, now + 1000 * MINUTE).unwrap();
    assert_eq!(there(&session, ns, 0..9), [8]);
    let some = session.collect_expired(3).unwrap();
    assert_eq!((some.records, some.has_more), (3, true));
    // One more gives way to another record with its value.
    let heir: &[(&str, &[u8])] = &[("guti", b"g7")];
    let metadata = Metadata { tags: heir, expires_ms: 0 };
    session.transact(|txn| txn.put_with_metadata(ns, b"heir", b"v", metadata)).unwrap();
    let mut gone: Vec<u64> = expired(&mut watch)
        .iter()
        .map(|key| key.strip_prefix("imsi-").unwrap().parse().unwrap())
        .collect();
    assert_eq!((gone.len(), gone.contains(&7)), (4, true));
    // Back: even before the records were made.
    shift_clock(-HOUR);
    assert_eq!(session.find(ns, "guti", b"g7").unwrap().unwrap().key(), b"heir");
    session.delete(ns, b"heir").unwrap();
    let left: Vec<u64> = (0..9).filter(|number| !gone.contains(number)).collect();
    assert_eq!(there(&session, ns, 0..9), left);
    assert_eq!(session.collect_expired(100).unwrap().records, 0);
    // What is there again has its unique values by right.
    let [first, ..] = left.as_slice() else { panic!("all are gone") };
    let guti = format!("g{first}");
    let taken: &[(&str, &[u8])] = &[("guti", guti.as_bytes())];
    let metadata = Metadata { tags: taken, expires_ms: 0 };
    let refused = session.transact(|txn| txn.put_with_metadata(ns, b"thief", b"v", metadata));
    assert!(matches!(refused, Err(Error::TagTaken { .. })), "{refused:?}");
    // Many more, so that nodes of the order of expiry get names at times that were there before.
    for number in 100..400 {
        put(&session, ns, number, now + MINUTE + number).unwrap();
    }
    assert!(expired(&mut watch).is_empty());
    shift_clock(2 * HOUR);
    while session.collect_expired(1000).unwrap().has_more {}
    gone.extend(expired(&mut watch).iter().map(|key| {
        let number: u64 = key.strip_prefix("imsi-").unwrap().parse().unwrap();
        number
    }));
    gone.sort_unstable();
    assert_eq!(gone, (0..8).chain(100..400).collect::<Vec<_>>(), "each ended once");
    assert_eq!(there(&session, ns, 0..9), [8]);
    drop(session);
    fixture.close_and_check();
}

#[test]
fn added_tags_do_not_bring_back_an_expired_record_without_them() {
    if !is_alone("clock_jumps::added_tags_do_not_bring_back_an_expired_record_without_them") {
        return;
    }
    let fixture = TestRegion::with_bytes(64 << 20);
    let session = fixture.region.session().unwrap();
    let plain = session.namespace("s", &Schema::default()).unwrap();
    let now = now_ms_coarse();
    put(&session, plain, 0, now + MINUTE).unwrap();
    put(&session, plain, 1, 0).unwrap();
    shift_clock(HOUR);
    let ns = open(&session);
    assert_eq!(there(&session, ns, 0..2), [1]);
    shift_clock(0);
    assert_eq!(there(&session, ns, 0..2), [1], "it was collected");
    drop(session);
    fixture.close_and_check();
}
