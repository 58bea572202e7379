//! Limits of namespaces: what is refused, what is counted, and by whom.

use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, Ordering};

use nearstate_store::limits::KEY_BYTES_MAX;
use nearstate_store::{
    AttachOptions, BlockChange, Condition, CreateOptions, Error, EventKind, Filter, Kind, Metadata,
    Namespace, NamespaceLimits, NamespaceUsage, Notice, Region, Schema, Session, TagSchema,
    repair_with,
};

use crate::fixture::{
    TestFolder, TestRegion, checked, child, clean, output, region_path, succeeded,
};

const CATALOG: u64 = 0x40_0000;

const fn hard(hard_bytes: u64) -> NamespaceLimits {
    NamespaceLimits { soft_bytes: 0, hard_bytes }
}

fn open(session: &Session, name: &str) -> Namespace {
    session.namespace(name, &Schema::default()).unwrap()
}

#[track_caller]
fn used(session: &Session, namespace: Namespace) -> u64 {
    let usage = session.usage(namespace).unwrap().expect("the namespace has limits");
    assert!(usage.is_complete, "{usage:?}");
    usage.used_bytes
}

#[track_caller]
fn assert_limit<T: std::fmt::Debug>(answer: Result<T, Error>, name: &str, limit: u64) {
    match answer {
        Err(Error::LimitReached { namespace, used_bytes, limit_bytes }) => {
            assert_eq!((namespace.as_str(), limit_bytes), (name, limit));
            assert!(used_bytes <= limit, "{used_bytes} of {limit}");
        }
        other => panic!("{other:?}"),
    }
}

/// A watch ring is smaller, the more namespaces there are. With rings of one size, 60 watched
/// namespaces filled the region.
#[test]
fn ten_thousand_watched_namespaces_fit_into_the_smallest_region() {
    const NAMESPACES: u32 = 10_000;
    let folder = TestFolder::new();
    let options = CreateOptions { bytes_max: 64 << 20, ..CreateOptions::default() };
    let region = Region::create(&folder.path, &options).unwrap();
    let session = region.session().unwrap();
    let long = vec![b'k'; KEY_BYTES_MAX];
    for number in 0..NAMESPACES {
        let ns = open(&session, &format!("ns{number}"));
        let mut watch = session.watch(ns, Filter::Namespace).unwrap();
        session.put(ns, b"k", b"v").unwrap();
        let Some(Notice::Event(event)) = watch.next().unwrap() else { panic!("no event") };
        assert_eq!((event.key, event.kind), (b"k".as_slice(), EventKind::Created));
        if number % 1000 == 999 {
            // Each ring takes the longest key, or says that an event is missing.
            session.put(ns, &long, b"v").unwrap();
            match watch.next().unwrap() {
                Some(Notice::Event(event)) => assert_eq!(event.key, long),
                Some(Notice::Lost { events }) => assert_eq!((events, number > 100), (1, true)),
                None => panic!("no event of namespace {number}"),
            }
            assert!(watch.next().unwrap().is_none());
            session.delete(ns, &long).unwrap();
        }
    }
    drop((session, region));
    clean(&folder.path);
}

#[test]
fn growth_above_the_limit_is_refused_and_everything_else_is_not() {
    let test = TestRegion::new();
    let (session, far) = (test.region.session().unwrap(), Region::attach(&test.folder.path));
    let far = far.unwrap().session().unwrap();
    let (ns, other) = (open(&session, "tenant"), open(&session, "other"));
    assert_eq!(session.usage(ns), Ok(None));
    // Three cells of 1 KiB fit.
    session.set_limits(ns, NamespaceLimits { soft_bytes: 2048, hard_bytes: 3072 }).unwrap();
    let value = [7; 900];
    for key in [b"a", b"b", b"c"] {
        session.put(ns, key, &value).unwrap();
    }
    let limits = NamespaceLimits { soft_bytes: 2048, hard_bytes: 3072 };
    let usage = NamespaceUsage { used_bytes: 2880, limits, is_complete: true };
    assert_eq!(far.usage(far.known_namespace("tenant").unwrap().unwrap()), Ok(Some(usage)));
    assert!(usage.is_above_soft_limit());
    for writer in [&session, &far] {
        let refuse = |answer: Result<(), Error>| assert_limit(answer, "tenant", 3072);
        refuse(writer.put(ns, b"d", &value).map(drop));
        refuse(writer.put(ns, b"a", &[7; 1200]).map(drop));
        refuse(writer.put_if(ns, b"d", &value, Condition::Absent).map(drop));
        refuse(writer.transact(|txn| txn.put(ns, b"d", &value)));
        refuse(writer.put_until(ns, b"d", &value, u64::MAX >> 20));
        // All or nothing, also for a record of another namespace.
        refuse(writer.transact(|txn| {
            txn.put(other, b"x", b"y")?;
            txn.put(ns, b"d", &value)
        }));
        assert!(
            writer.get(other, b"x").unwrap().is_none() && writer.get(ns, b"d").unwrap().is_none()
        );
        // The same size, less, and an exchange.
        writer.put(ns, b"a", &[8; 900]).unwrap();
        writer.put(ns, b"a", &[8; 10]).unwrap();
        writer.put(ns, b"a", &[8; 900]).unwrap();
        writer
            .transact(|txn| {
                txn.delete(ns, b"c")?;
                txn.put(ns, b"d", &value)
            })
            .unwrap();
        writer
            .transact(|txn| {
                txn.delete(ns, b"d")?;
                txn.put(ns, b"c", &value)
            })
            .unwrap();
        writer.put(other, b"free", &vec![0; 100_000]).unwrap();
        assert_eq!(used(writer, ns), 2880);
    }
    // A lower limit refuses what grows, and nothing else.
    session.set_limits(ns, hard(64)).unwrap();
    assert_limit_below(&far.put(ns, b"d", b""));
    far.put(ns, b"a", &[9; 900]).unwrap();
    assert!(far.delete(ns, b"a").unwrap());
    assert_limit_below(&far.put(ns, b"a", b""));
    session.set_limits(ns, hard(1 << 20)).unwrap();
    far.put(ns, b"a", &value).unwrap();
    // Without limits nothing is counted.
    session.set_limits(ns, NamespaceLimits::default()).unwrap();
    assert_eq!(far.usage(ns), Ok(None));
    far.put(ns, b"large", &vec![1; 2 << 20]).unwrap();
    for bad in [
        NamespaceLimits { soft_bytes: 2, hard_bytes: 1 },
        NamespaceLimits { soft_bytes: 0, hard_bytes: u64::MAX },
    ] {
        assert!(matches!(session.set_limits(ns, bad), Err(Error::BadArgument { .. })));
    }
    drop((session, far));
    test.close_and_check();
}

#[track_caller]
fn assert_limit_below<T: std::fmt::Debug>(answer: &Result<T, Error>) {
    assert!(
        matches!(answer, Err(Error::LimitReached { used_bytes, .. }) if *used_bytes > 64),
        "{answer:?}"
    );
}

#[test]
fn the_records_of_every_kind_are_counted_when_the_first_limit_is_set() {
    let test = TestRegion::new();
    let session = test.region.session().unwrap();
    let of = |name: &str, kind| session.namespace(name, &Schema { kind, ..Schema::default() });
    let tag = TagSchema { name: "t".to_owned(), ..TagSchema::default() };
    let tagged = Schema { tags: vec![tag], ..Schema::default() };
    let tagged = session.namespace("tagged", &tagged).unwrap();
    let values = open(&session, "values");
    let blocks = of("blocks", Kind::Blocks).unwrap();
    let counters = of("counters", Kind::Counters).unwrap();
    let write = |from: u32, to: u32| {
        for number in from..to {
            let key = number.to_be_bytes();
            let value = vec![3; number as usize % 3000];
            session.put(values, &key, &value).unwrap();
            let names = ["a", "b"];
            let changes = names.map(|name| BlockChange { name, bytes: Some(&value) });
            session.patch(blocks, &key, &changes, Condition::Always).unwrap();
            session.patch(blocks, &key, &changes[..1], Condition::Always).unwrap();
            session.add(counters, &key, 1).unwrap();
            let tags: &[(&str, &[u8])] = &[("t", &key[3..])];
            let metadata = Metadata { tags, expires_ms: 0 };
            session.transact(|txn| txn.put_with_metadata(tagged, &key, &value, metadata)).unwrap();
            if number % 3 == 0 {
                for namespace in [values, blocks, counters, tagged] {
                    assert!(session.delete(namespace, &key).unwrap());
                }
            }
        }
    };
    write(0, 2000);
    let all = [values, blocks, counters, tagged];
    for namespace in all {
        session.set_limits(namespace, hard(1 << 30)).unwrap();
    }
    assert_eq!(used(&session, counters), 1333 * (64 + 1088));
    write(2000, 4000);
    assert_eq!(used(&session, counters), 2666 * (64 + 1088));
    // The check compares each count with the records.
    let before = all.map(|namespace| used(&session, namespace));
    drop(session);
    clean(&test.folder.path);
    let session = test.region.session().unwrap();
    session.set_limits(counters, hard(64)).unwrap();
    assert_limit_below(&session.add(counters, b"new", 1));
    session.add(counters, &1_u32.to_be_bytes(), 1).unwrap();
    for (namespace, before) in all.into_iter().zip(before) {
        assert_eq!(used(&session, namespace), before);
        let mut keys = Vec::new();
        session
            .list(namespace, nearstate_store::Pattern::All, |key| keys.push(key.to_vec()))
            .unwrap();
        for key in keys {
            assert!(session.delete(namespace, &key).unwrap());
        }
        assert_eq!(used(&session, namespace), 0);
    }
    drop(session);
    test.close_and_check();
}

/// Threads put, replace, patch and delete, while limits are set and removed again and again.
#[test]
fn a_count_is_right_whatever_is_written_meanwhile() {
    const ROUNDS: u32 = 12;
    let test = TestRegion::new();
    let is_over = AtomicBool::new(false);
    let session = test.region.session().unwrap();
    let mixed = Schema { kind: Kind::Mixed, ..Schema::default() };
    let ns = session.namespace("mixed", &mixed).unwrap();
    for number in 0..3000_u32 {
        session.put(ns, &number.to_be_bytes(), &vec![1; number as usize % 900]).unwrap();
    }
    std::thread::scope(|scope| {
        for thread in 0..3_u32 {
            let (region, is_over) = (&test.region, &is_over);
            scope.spawn(move || {
                let session = region.session().unwrap();
                let mut number = thread;
                while !is_over.load(Ordering::Relaxed) {
                    number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223 + thread);
                    let key = (number >> 8 & 0x1fff).to_be_bytes();
                    let value = vec![2; (number >> 16) as usize % 1500];
                    match number >> 4 & 3 {
                        0 => drop(session.delete(ns, &key).unwrap()),
                        1 => drop(session.transact(|txn| {
                            txn.put(ns, &key, &value)?;
                            txn.delete(ns, &(number & 0xfff).to_be_bytes()).map(drop)
                        })),
                        _ => drop(session.put(ns, &key, &value).unwrap()),
                    }
                }
            });
        }
        for round in 0..ROUNDS {
            session.set_limits(ns, hard(1 << 28)).unwrap();
            for _ in 0..200 {
                assert!(session.usage(ns).unwrap().unwrap().is_complete);
                std::thread::yield_now();
            }
            if round + 1 < ROUNDS {
                session.set_limits(ns, NamespaceLimits::default()).unwrap();
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(used(&session, ns) > 0);
    drop(session);
    test.close_and_check();
}

#[test]
fn concurrent_writers_never_exceed_a_limit_together() {
    const LIMIT: u64 = 200 * 1024;
    let test = TestRegion::new();
    let session = test.region.session().unwrap();
    let ns = open(&session, "tenant");
    session.set_limits(ns, hard(LIMIT)).unwrap();
    let refused: u64 = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4_u32)
            .map(|thread| {
                let region = &test.region;
                scope.spawn(move || {
                    let session = region.session().unwrap();
                    let mut refused = 0;
                    for number in 0..3000_u32 {
                        let key = [thread, number % 100].map(u32::to_be_bytes).concat();
                        let value = vec![4; (number * 37) as usize % 2000];
                        match session.put(ns, &key, &value) {
                            Ok(_) => {}
                            Err(Error::LimitReached { .. }) => {
                                refused += 1;
                                session.delete(ns, &key).unwrap();
                            }
                            Err(error) => panic!("{error}"),
                        }
                        // With what the other writers have reserved.
                        let used = session.usage(ns).unwrap().unwrap().used_bytes;
                        assert!(used <= LIMIT + 4 * 2112, "{used} bytes");
                    }
                    refused
                })
            })
            .collect();
        writers.into_iter().map(|writer| writer.join().unwrap()).sum()
    });
    assert!(refused > 100, "{refused} refusals: the limit was hardly reached");
    assert!(used(&session, ns) <= LIMIT);
    drop(session);
    test.close_and_check();
}

#[test]
#[ignore = "a process that fills its namespace"]
fn child_that_fills() {
    let session = Region::attach(&region_path()).unwrap().session().unwrap();
    let ns = open(&session, "greedy");
    let mut count = 0_u32;
    loop {
        match session.put(ns, &count.to_be_bytes(), &[5; 1000]) {
            Ok(_) => count += 1,
            answer => {
                assert_limit(answer, "greedy", 8 << 20);
                break;
            }
        }
    }
    assert!(count > 7000, "{count} records");
}

#[test]
fn one_process_fills_its_namespace_and_another_continues_in_its_own() {
    let test = TestRegion::with_bytes(64 << 20);
    let session = test.region.session().unwrap();
    let (greedy, modest) = (open(&session, "greedy"), open(&session, "modest"));
    session.set_limits(greedy, hard(8 << 20)).unwrap();
    let mut filling = child("namespace_limits::child_that_fills", &test.folder.path);
    std::thread::scope(|scope| {
        let filling = scope.spawn(|| output(&mut filling).unwrap());
        let mut count = 0_u32;
        while !filling.is_finished() || count < 1000 {
            session.put(modest, &(count % 5000).to_be_bytes(), &[6; 1000]).unwrap();
            count += 1;
        }
        succeeded(&filling.join().unwrap());
    });
    assert!(used(&session, greedy) > 7 << 20);
    session.put(modest, b"after", &[6; 1000]).unwrap();
    drop(session);
    test.close_and_check();
}

#[test]
fn the_next_namespace_of_an_entry_has_no_limits() {
    let test = TestRegion::new();
    let (session, far) = (test.region.session().unwrap(), test.region.session().unwrap());
    let old = open(&session, "first");
    session.set_limits(old, hard(128)).unwrap();
    session.put(old, b"k", b"v").unwrap();
    far.delete(old, b"k").unwrap();
    assert!(session.remove_namespace(old).unwrap());
    for session in [&session, &far] {
        assert!(matches!(session.usage(old), Err(Error::BadArgument { .. })));
        let refused = session.set_limits(old, hard(64));
        assert!(matches!(refused, Err(Error::BadArgument { .. })), "{refused:?}");
    }
    let new = open(&session, "second");
    assert_eq!(new.number() & 0xffff, old.number() & 0xffff);
    assert_eq!(far.usage(new), Ok(None));
    far.put(new, b"k", &[1; 5000]).unwrap();
    session.set_limits(new, hard(1 << 20)).unwrap();
    assert_eq!(used(&far, new), 5120);
    drop((session, far));
    test.close_and_check();
}

/// The offset of the catalog entry that `test` creates first.
fn limited(path: &std::path::Path) -> u64 {
    let region = Region::create(path, &crate::fixture::small()).unwrap();
    let session = region.session().unwrap();
    let ns = open(&session, "ue");
    for number in 0..500_u32 {
        session.put(ns, &number.to_be_bytes(), &vec![1; number as usize]).unwrap();
    }
    session.set_limits(ns, NamespaceLimits { soft_bytes: 1 << 19, hard_bytes: 1 << 20 }).unwrap();
    for number in 0..100_u32 {
        session.delete(ns, &number.to_be_bytes()).unwrap();
    }
    CATALOG + u64::from(ns.number()) * 1024
}

#[test]
fn a_wrong_count_is_found_and_repaired() {
    let folder = TestFolder::new();
    let at = limited(&folder.path);
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&folder.path).unwrap();
    let right = {
        let session = Region::attach(&folder.path).unwrap().session().unwrap();
        used(&session, open(&session, "ue"))
    };
    clean(&folder.path);
    // Usage words with and without an owner, the count, the limits.
    let mut word = [0; 8];
    for (which, flip) in [
        (896, 1 << 7),
        (904, 1 << 50),
        (1016, 1),
        (88, 1 << 30),
        (72, 1 << 20),
        (80, 1 << 3),
        (16, 1 << 21),
    ] {
        file.read_exact_at(&mut word, at + which).unwrap();
        let flipped = u64::from_le_bytes(word) ^ flip;
        file.write_all_at(&flipped.to_le_bytes(), at + which).unwrap();
        assert!(!checked(&folder.path).unwrap().is_clean(), "byte {which} of the entry");
        let report = repair_with(&folder.path, &AttachOptions::default()).unwrap();
        assert_eq!(
            (report.lost_count, report.repaired_count > 0),
            (0, true),
            "{which}: {report:?}"
        );
        clean(&folder.path);
        let session = Region::attach(&folder.path).unwrap().session().unwrap();
        let ns = open(&session, "ue");
        assert_eq!(used(&session, ns), right, "byte {which} of the entry");
        let limits = NamespaceLimits { soft_bytes: 1 << 19, hard_bytes: 1 << 20 };
        assert_eq!(session.usage(ns).unwrap().unwrap().limits, limits);
    }
}

/// Records that move to other chunks take as much as before.
#[test]
fn memory_that_is_joined_again_leaves_the_count_as_it_was() {
    let test = TestRegion::with_bytes(64 << 20);
    let session = test.region.session().unwrap();
    let ns = open(&session, "tenant");
    session.set_limits(ns, hard(60 << 20)).unwrap();
    let mut count = 0_u32;
    while session.put(ns, &count.to_be_bytes(), &[1; 700]).is_ok() {
        count += 1;
    }
    for number in (0..count).filter(|number| number % 2 == 0) {
        assert!(session.delete(ns, &number.to_be_bytes()).unwrap());
    }
    let before = used(&session, ns);
    let mut large = 0;
    while session.put(ns, format!("large-{large}").as_bytes(), &vec![2; 40_000]).is_ok() {
        large += 1;
    }
    assert!(large > 300, "{large} large records fit");
    assert!(used(&session, ns) >= before + large * 40_000);
    drop(session);
    test.close_and_check();
}
