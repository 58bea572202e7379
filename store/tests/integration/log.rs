//! The log of a region: one order of all transactions, what they changed, receipts, and the memory
//! that it holds.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nearstate_store::{
    AttachOptions, BlockChange, Condition, Error, Kind, Metadata, Namespace, Outcome, Receipt,
    ReceiptState, Region, Schema, Session, StreamItem, StreamedChange, WhenFull, now_ms,
    repair_with,
};

use crate::fixture::{TestRegion, checked, clean};

const LONG: Duration = Duration::from_secs(60);

pub(crate) fn logged(session: &Session, name: &str, kind: Kind, when_full: WhenFull) -> Namespace {
    let schema = Schema { kind, ..Schema::default() };
    let ns = session.namespace(name, &schema).unwrap();
    session.stream(ns, when_full).unwrap();
    ns
}

fn block<'a>(name: &'a str, bytes: Option<&'a [u8]>) -> BlockChange<'a> {
    BlockChange { name, bytes }
}

#[test]
fn the_log_has_each_transaction_once_and_whole_in_the_order_of_commits() {
    let fixture = TestRegion::new();
    let session = fixture.region.session().unwrap();
    let other = fixture.region.session().unwrap();
    let ns = session.namespace("s", &Schema::default()).unwrap();
    session.put(ns, b"before", b"").unwrap();
    session.stream(ns, WhenFull::LoseOldest).unwrap();
    for round in 0..100_u32 {
        let writer = if round % 2 == 0 { &session } else { &other };
        writer
            .transact(|txn| {
                txn.put(ns, b"one", &round.to_le_bytes())?;
                txn.put(ns, b"two", &round.to_le_bytes())?;
                txn.delete(ns, b"before").map(drop)
            })
            .unwrap();
    }
    let reader = fixture.region.session().unwrap();
    let mut stream = reader.commit_stream().unwrap();
    let (mut round, mut last) = (0_u32, 0);
    while let Some(item) = stream.next().unwrap() {
        let StreamItem::Transaction(entry) = item else { panic!("{item:?}") };
        assert!(entry.number > last, "position {} follows {last}", entry.number);
        last = entry.number;
        assert_eq!(entry.writer, round % 2);
        let records: Vec<_> = entry.records().map(Result::unwrap).collect();
        let keys: Vec<&[u8]> = records.iter().map(|record| record.key).collect();
        // The removal of an absent record changes nothing.
        let expected: &[&[u8]] =
            if round == 0 { &[b"one", b"two", b"before"] } else { &[b"one", b"two"] };
        assert_eq!(keys, expected);
        for record in &records[..2] {
            let StreamedChange::Put { value, .. } = &record.change else { panic!("{record:?}") };
            assert_eq!(*value, round.to_le_bytes());
        }
        round += 1;
    }
    assert_eq!(round, 100);
    drop(stream);
    drop((session, other, reader));
    fixture.close_and_check();
}

#[test]
fn a_change_is_the_difference_of_two_versions() {
    let fixture = TestRegion::new();
    let session = fixture.region.session().unwrap();
    let ns = logged(&session, "s", Kind::Mixed, WhenFull::LoseOldest);
    let large = vec![7; 2000];
    let first = [block("a", Some(b"1")), block("b", Some(&large)), block("c", Some(b"3"))];
    session.patch(ns, b"ue", &first, Condition::Always).unwrap();
    let second = [block("a", Some(b"2")), block("c", None), block("d", Some(b"4"))];
    session.patch(ns, b"ue", &second, Condition::Always).unwrap();
    let tags: &[(&str, &[u8])] = &[("cell", b"5")];
    let metadata = Metadata { tags, expires_ms: 0 };
    session.transact(|txn| txn.set_metadata(ns, b"ue", metadata)).unwrap();
    session.put(ns, b"ue", b"a value").unwrap();
    session.delete(ns, b"ue").unwrap();
    let mut stream = session.commit_stream().unwrap();
    let mut seen = Vec::new();
    while let Some(StreamItem::Transaction(entry)) = stream.next().unwrap() {
        for record in entry.records() {
            seen.push(match record.unwrap().change {
                StreamedChange::Patched { is_anew, blocks, meta } => {
                    let blocks: Vec<String> = blocks
                        .iter()
                        .map(|(name, bytes)| {
                            let name = String::from_utf8_lossy(name);
                            format!("{name}:{:?}", bytes.map(<[u8]>::len))
                        })
                        .collect();
                    let meta = meta.map(<[u8]>::is_empty);
                    format!("patched {is_anew} {} {meta:?}", blocks.join(" "))
                }
                StreamedChange::Put { value, meta, is_set } => {
                    format!("put {} {} {is_set}", String::from_utf8_lossy(value), meta.len())
                }
                other @ (StreamedChange::Elements { .. } | StreamedChange::Deleted { .. }) => {
                    format!("{other:?}")
                }
            });
        }
    }
    assert_eq!(
        seen,
        [
            "patched true a:Some(1) b:Some(2000) c:Some(1) None",
            "patched false a:Some(1) d:Some(1) c:None None",
            "patched false  Some(false)",
            "put a value 0 false",
            "Deleted { is_expiry: false }",
        ]
    );
    drop(stream);
    drop(session);
    fixture.close_and_check();
}

#[test]
fn an_expired_version_counts_as_absent_and_its_removal_is_an_expiry() {
    let fixture = TestRegion::new();
    let session = fixture.region.session().unwrap();
    let ns = logged(&session, "s", Kind::Blocks, WhenFull::LoseOldest);
    let put = |key: &[u8]| {
        session.transact(|txn| {
            txn.patch(ns, key, &[block("a", Some(b"1")), block("b", Some(b"2"))])?;
            txn.set_metadata(ns, key, Metadata { tags: &[], expires_ms: 1 }).map(drop)
        })
    };
    put(b"patched").unwrap();
    put(b"collected").unwrap();
    session.patch(ns, b"patched", &[block("a", Some(b"1"))], Condition::Always).unwrap();
    assert_eq!(session.collect_expired(10).unwrap().records, 1);
    let mut stream = session.commit_stream().unwrap();
    let mut changes = BTreeMap::new();
    while let Some(StreamItem::Transaction(entry)) = stream.next().unwrap() {
        for record in entry.records().map(Result::unwrap) {
            let change = match record.change {
                StreamedChange::Patched { is_anew, blocks, .. } => (is_anew, blocks.len()),
                StreamedChange::Deleted { is_expiry } => (is_expiry, 0),
                other @ (StreamedChange::Put { .. } | StreamedChange::Elements { .. }) => {
                    panic!("{other:?}")
                }
            };
            changes.insert(record.key.to_vec(), change);
        }
    }
    assert_eq!(changes[&b"patched"[..]], (true, 1));
    assert_eq!(changes[&b"collected"[..]], (true, 0));
    drop(stream);
    drop(session);
    fixture.close_and_check();
}

/// A writer judges the expiry of a record exactly: then the clock that counts ticks may be behind.
#[test]
fn the_time_of_an_entry_is_not_before_the_expiry_by_which_its_writer_has_judged() {
    let fixture = TestRegion::with_bytes(64 << 20);
    let session = fixture.region.session().unwrap();
    let ns = logged(&session, "s", Kind::Value, WhenFull::LoseOldest);
    let mut expected = Vec::new();
    for _ in 0..100_u32 {
        let expires_ms = now_ms() + 3;
        let metadata = Metadata { tags: &[], expires_ms };
        session.transact(|txn| txn.put_with_metadata(ns, b"k", b"1", metadata)).unwrap();
        while now_ms() < expires_ms {}
        session.put(ns, b"k", b"2").unwrap();
        expected.push(expires_ms);
    }
    let mut stream = session.commit_stream().unwrap();
    let mut replaced = Vec::new();
    while let Some(item) = stream.next().unwrap() {
        let StreamItem::Transaction(entry) = item else { panic!("{item:?}") };
        let is_second =
            |change: &StreamedChange<'_>| matches!(change, StreamedChange::Put { value: b"2", .. });
        if entry.records().any(|record| is_second(&record.unwrap().change)) {
            replaced.push(entry.time_ms().unwrap());
        }
    }
    assert_eq!(replaced.len(), expected.len());
    let early = expected.iter().zip(&replaced).filter(|(expires, time)| time < expires).count();
    assert_eq!(early, 0, "entries seem to precede an expiry that their writer has seen");
    drop(stream);
    drop(session);
    fixture.close_and_check();
}

/// With a log that keeps everything a full heap refuses logged commits and says why. Others go on.
/// What the log holds is neither in use nor free.
#[test]
fn the_check_tells_what_the_log_holds() {
    const ROUNDS: u8 = 100;
    let fixture = TestRegion::new();
    let session = fixture.region.session().unwrap();
    let ns = logged(&session, "kept", Kind::Value, WhenFull::Refuse);
    for round in 0..ROUNDS {
        session.put(ns, b"k", &[round; 1000]).unwrap();
    }
    drop(session);
    let report = checked(&fixture.folder.path).unwrap();
    assert!(report.bytes_held > 1000 * u64::from(ROUNDS - 1), "{report:?}");
    let sum = report.bytes_live + report.bytes_index + report.bytes_held;
    assert_eq!((sum, report.bytes_leaked), (report.bytes_taken, 0), "{report:?}");
}

#[test]
fn a_receipt_is_replicated_when_the_consumer_has_acknowledged_its_position() {
    let fixture = TestRegion::new();
    let session = fixture.region.session().unwrap();
    let consumer = fixture.region.session().unwrap();
    assert_eq!(session.receipt(), Receipt::NONE);
    assert!(session.is_replicated(Receipt::NONE).unwrap());
    let ns = logged(&session, "s", Kind::Value, WhenFull::Refuse);
    session.put(ns, b"k", b"1").unwrap();
    let first = session.receipt();
    session.put(ns, b"k", b"2").unwrap();
    let second = session.receipt();
    assert!(first < second && first != Receipt::NONE);
    let view = consumer.get(ns, b"k").unwrap().unwrap();
    assert_eq!(consumer.receipt_of(&view).unwrap(), second);
    drop(view);
    assert_eq!(consumer.receipt_of_all().unwrap(), second);
    let mut stream = consumer.commit_stream().unwrap();
    let Some(StreamItem::Transaction(entry)) = stream.next().unwrap() else { panic!("an entry") };
    assert_eq!(session.receipt_at(entry.number).unwrap(), first);
    stream.acknowledge().unwrap();
    assert!(session.is_replicated(first).unwrap() && !session.is_replicated(second).unwrap());
    let state = session.wait_replicated(second, Duration::from_millis(1)).unwrap();
    assert_eq!(state, ReceiptState::Pending);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(move || session.wait_replicated(second, LONG).unwrap());
        assert!(stream.next().unwrap().is_some() && stream.next().unwrap().is_none());
        stream.acknowledge().unwrap();
        assert_eq!(waiting.join().unwrap(), ReceiptState::Replicated);
    });
    drop(stream);
    drop(consumer);
    fixture.close_and_check();
}

/// What the log has given up before it was read does not count as replicated later.
#[test]
fn a_receipt_of_a_lost_entry_stays_lost() {
    let fixture = TestRegion::with_bytes(64 << 20);
    let session = fixture.region.session().unwrap();
    let ns = logged(&session, "s", Kind::Value, WhenFull::LoseOldest);
    let value = vec![1_u8; 100_000];
    let receipts: Vec<Receipt> = (0..200)
        .map(|_| {
            session.put(ns, b"k", &value).unwrap();
            session.receipt()
        })
        .collect();
    let mut stream = session.commit_stream().unwrap();
    let mut first_read = None;
    while let Some(item) = stream.next().unwrap() {
        if let StreamItem::Transaction(entry) = item {
            first_read.get_or_insert(session.receipt_at(entry.number).unwrap());
        }
    }
    assert_eq!(session.receipt_state(receipts[0]).unwrap(), ReceiptState::Pending);
    stream.acknowledge().unwrap();
    let first_read = first_read.unwrap();
    for receipt in receipts {
        let expected =
            if receipt < first_read { ReceiptState::Lost } else { ReceiptState::Replicated };
        assert_eq!(session.receipt_state(receipt).unwrap(), expected, "{receipt:?}");
    }
    drop(stream);
    drop(session);
    fixture.close_and_check();
}

const SHARED_KEYS: u32 = 8;

/// Changes two of a few records in each transaction.
fn write_pairs(session: &Session, ns: Namespace, writer: u32) {
    for round in 0..3000_u32 {
        let one = (round.wrapping_mul(7) + writer) % SHARED_KEYS;
        let other = (one + 1 + round % (SHARED_KEYS - 1)) % SHARED_KEYS;
        let value = u64::from(writer) << 32 | u64::from(round);
        let done = session.transact(|txn| {
            txn.put(ns, &one.to_le_bytes(), &value.to_le_bytes())?;
            txn.put(ns, &other.to_le_bytes(), &value.to_le_bytes())
        });
        match done {
            Ok(()) | Err(Error::Behind { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Version and value of each record, by its key.
type Replayed = BTreeMap<Vec<u8>, (u64, Vec<u8>)>;

/// Reads the log until the writers have ended: each entry has two records with one value, and the
/// versions of a record rise.
fn replay_pairs(session: &Session, is_over: &AtomicBool) -> Replayed {
    let mut replayed = Replayed::new();
    let mut stream = session.commit_stream().unwrap();
    loop {
        let is_last = is_over.load(Ordering::Acquire);
        let mut is_empty = true;
        while let Some(item) = stream.next().unwrap() {
            is_empty = false;
            let StreamItem::Transaction(entry) = item else { panic!("{item:?}") };
            let mut values = Vec::new();
            for record in entry.records().map(Result::unwrap) {
                let StreamedChange::Put { value, .. } = record.change else { panic!("{record:?}") };
                values.push(value);
                let seen = (record.version, value.to_vec());
                let before = replayed.insert(record.key.to_vec(), seen);
                let before = before.map_or(0, |(version, _)| version);
                assert!(before < record.version, "{before}, then {}", record.version);
            }
            assert!(matches!(values[..], [one, other] if one == other), "{entry:?}");
        }
        stream.acknowledge().unwrap();
        if is_last && is_empty {
            return replayed;
        }
    }
}

/// Several writers change common records, while a consumer replays the log. In the order of the log
/// the versions of each record rise, each transaction is whole, and the last state is that of the
/// region.
#[test]
fn the_log_of_concurrent_writers_replays_to_the_records() {
    let fixture = TestRegion::new();
    let session = fixture.region.session().unwrap();
    let ns = logged(&session, "s", Kind::Value, WhenFull::Refuse);
    let is_over = AtomicBool::new(false);
    let replayed = std::thread::scope(|scope| {
        let writers = [0, 1, 2].map(|writer| {
            let session = fixture.region.session().unwrap();
            scope.spawn(move || write_pairs(&session, ns, writer))
        });
        let (region, is_over) = (&fixture.region, &is_over);
        let consumer = scope.spawn(move || replay_pairs(&region.session().unwrap(), is_over));
        for writer in writers {
            writer.join().unwrap();
        }
        is_over.store(true, Ordering::Release);
        consumer.join().unwrap()
    });
    assert_eq!(replayed.len(), SHARED_KEYS as usize);
    for (key, (version, value)) in replayed {
        let view = session.get(ns, &key).unwrap().unwrap();
        assert_eq!((view.version(), view.bytes()), (version, value.as_slice()));
    }
    drop(session);
    fixture.close_and_check();
}

fn defragment(session: &Session) -> u64 {
    let Some(mut work) = session.defragment(5).unwrap() else { return 0 };
    while !work.step(1 << 20).unwrap() {}
    work.moved()
}

/// Records that entries of the log name stay where they are when free memory is joined; after the
/// acknowledgement they are moved.
#[test]
fn what_the_log_names_is_not_moved() {
    const RECORDS: u32 = 8000;
    let fixture = TestRegion::with_bytes(64 << 20);
    let session = fixture.region.session().unwrap();
    let plain = session.namespace("plain", &Schema::default()).unwrap();
    let kept = logged(&session, "kept", Kind::Value, WhenFull::Refuse);
    for number in 0..RECORDS {
        session.put(plain, &number.to_le_bytes(), &[1; 500]).unwrap();
        session.put(kept, &number.to_le_bytes(), &[number as u8; 500]).unwrap();
    }
    for number in 0..RECORDS {
        assert!(session.delete(plain, &number.to_le_bytes()).unwrap());
    }
    defragment(&session);
    // What came free is overwritten.
    for number in 0..2 * RECORDS {
        session.put(plain, &number.to_le_bytes(), &[0xee; 500]).unwrap();
    }
    let mut stream = session.commit_stream().unwrap();
    for number in 0..RECORDS {
        let Some(StreamItem::Transaction(entry)) = stream.next().unwrap() else { panic!("one") };
        let record = entry.records().next().unwrap().unwrap();
        assert_eq!(record.key, number.to_le_bytes());
        let StreamedChange::Put { value, .. } = record.change else { panic!("{record:?}") };
        assert!(value == [number as u8; 500], "entry {number} names other bytes");
    }
    assert!(stream.next().unwrap().is_none());
    stream.acknowledge().unwrap();
    drop(stream);
    for number in 0..2 * RECORDS {
        assert!(session.delete(plain, &number.to_le_bytes()).unwrap());
    }
    assert!(defragment(&session) > 0, "records that no entry names are moved");
    for number in 0..RECORDS {
        let view = session.get(kept, &number.to_le_bytes()).unwrap().unwrap();
        assert!(view.bytes() == [number as u8; 500]);
    }
    drop(session);
    fixture.close_and_check();
}

/// A repair removes the log. The next write of a logged namespace creates one.
#[test]
fn a_logged_namespace_is_written_after_a_repair_has_removed_the_log() {
    let writes: [fn(&Session, Namespace); 4] = [
        |session, ns| assert!(session.put(ns, b"k", b"2").is_ok()),
        |session, ns| assert!(session.delete(ns, b"k").unwrap()),
        |session, ns| session.transact(|txn| txn.put(ns, b"k", b"2")).unwrap(),
        |session, ns| {
            let record = session.get_for_update(ns, b"k").unwrap().unwrap();
            assert!(matches!(record.put(b"2").unwrap(), Outcome::Done { .. }));
        },
    ];
    for write in writes {
        let fixture = TestRegion::new();
        let session = fixture.region.session().unwrap();
        let ns = logged(&session, "s", Kind::Value, WhenFull::LoseOldest);
        session.put(ns, b"k", b"1").unwrap();
        let TestRegion { folder, region } = fixture;
        drop((session, region));
        assert!(repair_with(&folder.path, &AttachOptions::default()).unwrap().lost.is_empty());
        let region = Region::attach(&folder.path).unwrap();
        let session = region.session().unwrap();
        let ns = session.namespace("s", &Schema::default()).unwrap();
        write(&session, ns);
        assert!(session.receipt().position() > 0, "the write is in the log");
        drop((session, region));
        clean(&folder.path);
    }
}
