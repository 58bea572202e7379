//! A thousand sessions that change the same record: each succeeds, and the number of retries is
//! bounded by a count, not by a clock.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};

use nearstate_store::{CreateOptions, Metadata, Namespace, Region, Schema, Session, TagSchema};

use crate::fixture::clean;

const SESSIONS: u64 = 1000;

/// Runs `change` once in each of a thousand sessions, all at once. Returns how often a transaction
/// began.
fn all_at_once(region: &Region, change: impl Fn(&Session, u64, &AtomicU64) + Sync) -> u64 {
    let begun = AtomicU64::new(0);
    let barrier = Barrier::new(usize::try_from(SESSIONS).unwrap());
    std::thread::scope(|scope| {
        for number in 0..SESSIONS {
            let (begun, barrier, change) = (&begun, &barrier, &change);
            let session = region.session().unwrap();
            std::thread::Builder::new()
                .stack_size(256 << 10)
                .spawn_scoped(scope, move || {
                    barrier.wait();
                    change(&session, number, begun);
                })
                .unwrap();
        }
    });
    begun.into_inner()
}

fn number(session: &Session, ns: Namespace) -> u64 {
    let view = session.get(ns, b"one").unwrap().unwrap();
    u64::from_le_bytes(view.bytes().try_into().unwrap())
}

/// Each run that fails does so because another session committed between its start and its end.
/// Each session commits once, so a session fails at most once for each other session, and all
/// sessions together fail at most once for each pair.
const BEGUN_MAX: u64 = SESSIONS + SESSIONS * (SESSIONS - 1) / 2;

#[test]
fn a_thousand_sessions_that_conflict_on_one_record_all_get_through() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("region");
    let options = CreateOptions { bytes_max: 256 << 20, ..CreateOptions::default() };
    let region = Region::create(&path, &options).unwrap();
    let session = region.session().unwrap();
    let ns = session.namespace("n", &Schema::default()).unwrap();
    session.put(ns, b"one", &0_u64.to_le_bytes()).unwrap();
    let begun = all_at_once(&region, |session, _, begun| {
        session
            .transact(|txn| {
                begun.fetch_add(1, Ordering::Relaxed);
                let before = txn.get(ns, b"one")?.unwrap().bytes().try_into().unwrap();
                // Others run between the read and the commit.
                std::thread::yield_now();
                txn.put(ns, b"one", &(u64::from_le_bytes(before) + 1).to_le_bytes())
            })
            .unwrap_or_else(|error| panic!("{error}"));
    });
    assert_eq!(number(&session, ns), SESSIONS);
    assert!((SESSIONS + 1..=BEGUN_MAX).contains(&begun), "{begun} transactions were begun");
    drop((session, region));
    clean(&path);
}

#[test]
fn a_thousand_sessions_that_pass_one_unique_value_on_all_have_it_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("region");
    let options = CreateOptions { bytes_max: 256 << 20, ..CreateOptions::default() };
    let region = Region::create(&path, &options).unwrap();
    let session = region.session().unwrap();
    let guti = TagSchema { name: "guti".to_owned(), is_unique: true, ..TagSchema::default() };
    let ns = session.namespace("n", &Schema { tags: vec![guti], ..Schema::default() }).unwrap();
    let metadata = Metadata { tags: &[("guti", b"g")], expires_ms: 0 };
    session.transact(|txn| txn.put_with_metadata(ns, b"first", b"", metadata)).unwrap();
    let begun = all_at_once(&region, |session, number, begun| {
        session
            .transact(|txn| {
                begun.fetch_add(1, Ordering::Relaxed);
                let (holder, _) = txn.find(ns, "guti", b"g")?.unwrap();
                std::thread::yield_now();
                txn.put(ns, &holder, b"had it")?;
                txn.put_with_metadata(ns, format!("s{number}").as_bytes(), b"", metadata)
            })
            .unwrap_or_else(|error| panic!("{error}"));
    });
    assert!((SESSIONS..=BEGUN_MAX).contains(&begun), "{begun} transactions were begun");
    // All but the last had it and passed it on.
    let last = session.find(ns, "guti", b"g").unwrap().unwrap().key().to_vec();
    let mut scan = session.scan(ns).unwrap();
    let mut had_it = 0;
    while let Some(view) = scan.next().unwrap() {
        let is_last = view.key() == last;
        assert_eq!(
            (view.tags().count(), view.bytes() == b"had it"),
            (usize::from(is_last), !is_last)
        );
        had_it += u64::from(!is_last);
    }
    assert_eq!(had_it, SESSIONS);
    drop(scan);
    drop((session, region));
    clean(&path);
}
