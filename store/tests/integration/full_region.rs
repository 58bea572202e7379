//! A full region, and one that was full: freed memory serves every size, and what does not grow
//! always succeeds.

use nearstate_store::{
    CreateOptions, Error, HeapUsage, Kind, Metadata, Namespace, NamespaceLimits, Region, Schema,
    Session, TagSchema,
};

use crate::fixture::{TestFolder, clean};

/// The smallest region.
pub(crate) const BYTES: u64 = 64 << 20;

/// The reserve of a region of this size.
const RESERVE: u64 = 1 << 20;

pub(crate) fn create(folder: &TestFolder) -> Region {
    Region::create(&folder.path, &CreateOptions { bytes_max: BYTES, ..CreateOptions::default() })
        .unwrap()
}

pub(crate) fn open(region: &Region) -> (Session, Namespace) {
    let session = region.session().unwrap();
    let ns = session.namespace("ue", &Schema::default()).unwrap();
    (session, ns)
}

pub(crate) fn key(number: u32) -> [u8; 20] {
    let mut key = *b"imsi-999700000000000";
    key[16..].copy_from_slice(&number.to_be_bytes());
    key
}

/// Puts records of this size until the region is full. Returns how many.
pub(crate) fn fill(session: &Session, ns: Namespace, bytes: usize) -> u32 {
    let value = vec![7; bytes];
    for number in 0.. {
        match session.put(ns, &key(number), &value) {
            Ok(_) => {}
            Err(Error::Full { .. }) => return number,
            Err(error) => panic!("{error}"),
        }
    }
    unreachable!("the region is finite")
}

pub(crate) fn delete_all(session: &Session, ns: Namespace, count: u32) {
    for number in 0..count {
        assert!(session.delete(ns, &key(number)).unwrap(), "record {number}");
    }
}

/// The bytes that ordinary records may use and do not.
pub(crate) fn unused(region: &Region) -> u64 {
    let seen = region.inspect().unwrap();
    seen.bytes_max - RESERVE - seen.bytes_taken
}

#[test]
fn memory_of_deleted_records_serves_any_other_size() {
    let folder = TestFolder::new();
    let region = create(&folder);
    let (session, ns) = open(&region);
    for bytes in [1000, 1100, 64, 300, 4096, 20_000, 64 << 10, 1 << 20, 1000, 64, 300 << 10] {
        let count = fill(&session, ns, bytes);
        // No further large cell fits into the runs between the few cells that stay: segments of the
        // index and cells that a session keeps. A class is a quarter larger at the most.
        let cells = if bytes < 64 << 10 { 1 } else { 12 };
        let last = cells * (bytes + bytes / 4 + 128) as u64;
        let unused = unused(&region);
        assert!(unused < BYTES / 50 + last, "{unused} are unused after {count} x {bytes} bytes");
        delete_all(&session, ns, count);
    }
    drop((session, region));
    clean(&folder.path);
}

#[test]
fn records_that_grow_use_what_they_leave() {
    let folder = TestFolder::new();
    let region = create(&folder);
    let (session, ns) = open(&region);
    for bytes in [400, 500, 600, 700, 800, 900] {
        let value = vec![1; bytes];
        for number in 0..30_000 {
            session.put(ns, &key(number), &value).unwrap();
        }
    }
    drop((session, region));
    clean(&folder.path);
}

#[test]
fn one_record_grows_to_a_third_of_the_region() {
    let folder = TestFolder::new();
    let region = create(&folder);
    let (session, ns) = open(&region);
    let mut bytes = 100;
    while bytes < 20 << 20 {
        session.put(ns, b"log", &vec![1; bytes]).unwrap_or_else(|error| panic!("{bytes}: {error}"));
        bytes += bytes / 50 + 100;
    }
    drop((session, region));
    clean(&folder.path);
}

#[test]
fn a_full_region_takes_values_of_the_same_size_and_every_deletion() {
    for bytes in [10, 300, 1000, 5000, 100_000] {
        let folder = TestFolder::new();
        let region = create(&folder);
        let (session, ns) = open(&region);
        let count = fill(&session, ns, bytes);
        let (other, _) = open(&region);
        let value = vec![8; bytes];
        for number in 0..count {
            other.put(ns, &key(number), &value).unwrap_or_else(|error| {
                panic!("{bytes} bytes, record {number} of {count}: {error}")
            });
        }
        // What grows is still refused, and says so.
        let grown = (0..count)
            .find_map(|number| other.put(ns, &key(number), &vec![9; 4 * bytes + 2000]).err());
        assert!(matches!(grown, Some(Error::Full { .. })), "{grown:?}");
        for first in (0..count.min(2000) / 4 * 4).step_by(4) {
            let four = other.transact(|txn| {
                (first..first + 4).try_for_each(|number| txn.delete(ns, &key(number)).map(drop))
            });
            four.unwrap_or_else(|error: Error| panic!("{bytes} bytes, from {first}: {error}"));
        }
        for number in count.min(2000) / 4 * 4..count {
            assert!(other.delete(ns, &key(number)).unwrap());
        }
        drop((session, other, region));
        clean(&folder.path);
    }
}

/// Each update is one of many, in the order of a generator: what the reserve lends for one must be
/// there for the next one, although no two records are of one size.
#[test]
fn a_full_region_takes_any_number_of_values_of_mixed_sizes_that_do_not_grow() {
    for (least, most) in [(1500, 2500), (100, 20_000)] {
        let folder = TestFolder::new();
        let region = create(&folder);
        let (session, ns) = open(&region);
        let size_of = |number: u32| {
            least + (number.wrapping_mul(2_654_435_761) >> 8) as usize % (most - least)
        };
        let bytes = vec![7; most];
        let is_put =
            |number: &u32| session.put(ns, &key(*number), &bytes[..size_of(*number)]).is_ok();
        let count = (0..1_000_000_u32).take_while(is_put).count() as u32;
        let mut random = 1_u32;
        let mut next = || {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (random >> 8) % count
        };
        for round in 0..8_000 {
            let number = next();
            session.put(ns, &key(number), &bytes[..size_of(number)]).unwrap_or_else(|error| {
                panic!("{least} to {most} bytes, update {round} of {count} records: {error}")
            });
            let four = [next(), next(), next(), next()];
            let written = session.transact(|txn| {
                four.iter().try_for_each(|number| {
                    txn.put(ns, &key(*number), &bytes[..size_of(*number)]).map(drop)
                })
            });
            written.unwrap_or_else(|error: Error| {
                panic!("{least} to {most} bytes, transaction {round}: {error}")
            });
        }
        drop((session, region));
        clean(&folder.path);
    }
}

/// While a view is held, what is replaced does not come free, and records stay in the reserve. It
/// becomes whole again afterwards, also if other records took what they had left.
#[test]
fn a_full_region_recovers_its_reserve_after_a_view() {
    let folder = TestFolder::new();
    let region = create(&folder);
    let (session, ns) = open(&region);
    let (reader, _) = open(&region);
    let size_of = |number: u32| 100 + (number.wrapping_mul(2_654_435_761) >> 8) as usize % 12_000;
    let bytes = vec![7; 12_100];
    let is_put = |number: &u32| session.put(ns, &key(*number), &bytes[..size_of(*number)]).is_ok();
    let count = (0..1_000_000_u32).take_while(is_put).count() as u32;
    let mut random = 1_u32;
    let mut next = || {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 8) % count
    };
    let mut refused = 0;
    for round in 0..100 {
        let view = reader.get(ns, &key(next())).unwrap().unwrap();
        for _ in 0..60 {
            let number = next();
            match session.put(ns, &key(number), &bytes[..size_of(number)]) {
                Ok(_) => {}
                Err(Error::Full { .. }) => refused += 1,
                Err(error) => panic!("{error}"),
            }
        }
        drop(view);
        for _ in 0..60 {
            let number = next();
            session.put(ns, &key(number), &bytes[..size_of(number)]).unwrap_or_else(|error| {
                panic!("after view {round}, {refused} refused before: {error}")
            });
        }
    }
    drop((session, reader, region));
    clean(&folder.path);
}

/// A stopped reader holds every record that is moved from where it finds it. So the memory that it
/// holds back is that of the records that were replaced, although the reserve stays lent.
#[test]
fn while_a_view_is_held_a_full_region_moves_no_records_in_vain() {
    let folder = TestFolder::new();
    let region = create(&folder);
    let (session, ns) = open(&region);
    let (reader, _) = open(&region);
    let size_of = |number: u32| 100 + (number.wrapping_mul(2_654_435_761) >> 8) as usize % 4_000;
    let bytes = vec![7; 4_100];
    let is_put = |number: &u32| session.put(ns, &key(*number), &bytes[..size_of(*number)]).is_ok();
    let count = (0..1_000_000_u32).take_while(is_put).count() as u32;
    let view = reader.get(ns, &key(0)).unwrap().unwrap();
    let (mut replaced, mut refused) = (0, 0);
    for number in (0..count).step_by(count as usize / 1000) {
        match session.put(ns, &key(number), &bytes[..size_of(number)]) {
            // With its header, in units of 64 bytes.
            Ok(_) => replaced += size_of(number) as u64 + 128,
            Err(Error::Full { .. }) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    let heap = region.inspect().unwrap().heap;
    assert!(replaced > 1 << 18 && refused > 100, "{replaced} bytes replaced, {refused} refused");
    assert!(heap.retired < replaced + (1 << 17), "{replaced} bytes replaced: {heap:?}");
    drop(view);
    drop((session, reader, region));
    clean(&folder.path);
}

pub(crate) fn tagged() -> Schema {
    let tag = |name: &str| TagSchema { name: name.into(), ..TagSchema::default() };
    Schema {
        tags: vec![
            TagSchema { is_unique: true, ..tag("guti") },
            tag("cell"),
            TagSchema { is_ordered: true, ..tag("since") },
            TagSchema { is_counted: true, ..tag("slice") },
        ],
        ..Schema::default()
    }
}

/// Puts tagged records that expire at this time until the region is full. Returns how many.
pub(crate) fn fill_tagged(session: &Session, ns: Namespace, expires_ms: u64) -> u32 {
    for number in 0_u32.. {
        let unique = number.to_be_bytes();
        let (cell, since) = ([number as u8 % 50], [number as u8, (number >> 8) as u8]);
        let tags: &[(&str, &[u8])] =
            &[("guti", &unique), ("cell", &cell), ("since", &since), ("slice", b"1")];
        let metadata = Metadata { tags, expires_ms };
        match session.transact(|txn| txn.put_with_metadata(ns, &key(number), &[1; 600], metadata)) {
            Ok(()) => {}
            Err(Error::Full { .. }) => return number,
            Err(error) => panic!("{error}"),
        }
    }
    unreachable!("the region is finite")
}

#[test]
fn tagged_records_of_a_full_region_are_deleted_by_any_session() {
    let folder = TestFolder::new();
    let region = create(&folder);
    let session = region.session().unwrap();
    let ns = session.namespace("ue", &tagged()).unwrap();
    let count = fill_tagged(&session, ns, 0);
    let other = region.session().unwrap();
    for number in 0..count {
        let deleted = other.delete(ns, &key(number));
        assert!(deleted.unwrap_or_else(|error| panic!("{number} of {count}: {error}")));
    }
    // Where the entries of the indexes lie depends on the seed of the hash: 97.8 to 99 % fit again.
    let again = fill_tagged(&other, ns, 0);
    assert!(again >= count / 100 * 97, "{again} of {count} records fit again");
    drop((session, other, region));
    clean(&folder.path);
}

/// In a namespace with limits a counter is deleted by a transaction.
#[test]
fn counters_of_a_full_region_are_deleted_by_any_session() {
    for hard_bytes in [0, 1 << 30] {
        let folder = TestFolder::new();
        let region = create(&folder);
        let session = region.session().unwrap();
        let schema = Schema { kind: Kind::Counters, ..Schema::default() };
        let ns = session.namespace("counters", &schema).unwrap();
        let (values, small) = (session.namespace("ue", &Schema::default()).unwrap(), 10);
        session.set_limits(ns, NamespaceLimits { soft_bytes: 0, hard_bytes }).unwrap();
        let count = (0..1_000_000).take_while(|number| session.add(ns, &key(*number), 1).is_ok());
        let count = count.count() as u32;
        // What is left is too short for a counter, and serves small records.
        fill(&session, values, small);
        let other = region.session().unwrap();
        for number in 0..count {
            let deleted = other.delete(ns, &key(number));
            assert!(deleted.unwrap_or_else(|error| panic!("{number} of {count}: {error}")));
        }
        drop((session, other, region));
        clean(&folder.path);
    }
}

/// What a session retires while it has a view waits for the end of the view: its deletes live on
/// the reserve. When that is used up, the error names the view, and without it all goes on.
#[test]
fn a_view_of_the_session_that_deletes_is_named_when_the_region_stays_full() {
    let folder = TestFolder::new();
    let region = create(&folder);
    let session = region.session().unwrap();
    let ns = session.namespace("ue", &tagged()).unwrap();
    let count = fill_tagged(&session, ns, 0);
    let view = session.get(ns, &key(0)).unwrap().unwrap();
    let mut refused = None;
    for number in 1..count {
        match session.delete(ns, &key(number)) {
            Ok(is_deleted) => assert!(is_deleted, "record {number}"),
            Err(Error::Full { detail, heap }) => {
                refused = Some((number, detail, heap));
                break;
            }
            Err(error) => panic!("{error}"),
        }
    }
    let (first, detail, heap) = refused.expect("the view holds what is deleted");
    assert!(first > 100, "{first} records were deleted");
    assert!(detail.contains("view or transaction of this session holds back"), "{detail}");
    assert!(heap.is_some_and(|heap| heap.held_back.len() == 1));
    assert_eq!(view.bytes(), [1; 600]);
    drop(view);
    for number in first..count {
        assert!(session.delete(ns, &key(number)).unwrap(), "record {number} without the view");
    }
    drop((session, region));
    clean(&folder.path);
}

#[test]
fn expired_records_of_a_full_region_are_collected() {
    let folder = TestFolder::new();
    let region = create(&folder);
    let session = region.session().unwrap();
    let ns = session.namespace("ue", &tagged()).unwrap();
    // Long enough to fill the region before the first record expires.
    let end_ms = nearstate_store::now_ms_coarse() + 8000;
    let count = fill_tagged(&session, ns, end_ms);
    let mut collected = 0;
    while collected < count as usize {
        let records = session.collect_expired(1000).unwrap().records;
        let is_early = nearstate_store::now_ms_coarse() <= end_ms + 10;
        assert!(records > 0 || is_early, "{collected} of {count} records were collected");
        collected += records;
        std::thread::yield_now();
    }
    assert!(fill_tagged(&session, ns, 0) >= count / 100 * 98);
    drop((session, region));
    clean(&folder.path);
}

#[test]
fn idle_sessions_keep_nothing_from_others() {
    let folder = TestFolder::new();
    let region = create(&folder);
    let whole = {
        let (session, ns) = open(&region);
        let count = fill(&session, ns, 4096);
        for number in 0..count {
            session.delete(ns, &key(number)).unwrap();
        }
        count
    };
    let idle: Vec<_> = (0..100_u32)
        .map(|number| {
            let (session, ns) = open(&region);
            for part in (0..500).chain(0..500) {
                session.put(ns, &key(number * 500 + part), &[1; 1000]).unwrap();
            }
            for part in 0..500 {
                session.delete(ns, &key(number * 500 + part)).unwrap();
            }
            // It does not only delete: it keeps cells for its next writes.
            session.put(ns, &key(number * 500), &[1; 1000]).unwrap();
            session.delete(ns, &key(number * 500)).unwrap();
            (session, ns)
        })
        .collect();
    let (session, ns) = open(&region);
    let count = fill(&session, ns, 4096);
    assert!(count >= whole - whole / 200, "{count} of {whole} records fit");
    for (number, (idle, ns)) in (0..).zip(&idle) {
        assert!(idle.delete(*ns, &key(number)).unwrap(), "session {number} continues");
        idle.put(*ns, &key(number), &[2; 4000]).unwrap();
    }
    drop((idle, session, region));
    clean(&folder.path);
}

#[test]
fn a_counted_tag_leaves_nothing_behind() {
    let folder = TestFolder::new();
    let region = create(&folder);
    let (one, other) = (region.session().unwrap(), region.session().unwrap());
    let ns = one.namespace("ue", &tagged()).unwrap();
    let mut taken = 0;
    for round in 0..30_000_u32 {
        let value = round.to_be_bytes();
        let tags: &[(&str, &[u8])] =
            &[("guti", b"1"), ("cell", b"1"), ("since", b"1"), ("slice", &value)];
        let metadata = Metadata { tags, expires_ms: 0 };
        one.transact(|txn| txn.put_with_metadata(ns, b"ue-1", b"v", metadata)).unwrap();
        assert!(other.delete(ns, b"ue-1").unwrap());
        if round == 5000 {
            taken = region.inspect().unwrap().bytes_taken;
        }
    }
    let grown = region.inspect().unwrap().bytes_taken.saturating_sub(taken);
    assert!(grown < 1 << 20, "{grown} bytes more after 25,000 rounds");
    drop((one, other, region));
    clean(&folder.path);
}

/// Bytes that are allocated in the heap.
fn taken(region: &Region) -> u64 {
    region.inspect().unwrap().bytes_taken
}

#[test]
fn a_stopped_reader_keeps_what_was_live_when_it_read_and_nothing_later() {
    let folder = TestFolder::new();
    let region = create(&folder);
    let (session, ns) = open(&region);
    let records = 8_000;
    for number in 0..records {
        session.put(ns, &key(number), &vec![1; 1000]).unwrap();
    }
    let live = taken(&region);
    let (reader, _) = open(&region);
    let view = reader.get(ns, &key(5)).unwrap().unwrap();
    // Thirty times the region is written while the view is open.
    for round in 0..250_u32 {
        let value = vec![round as u8; 1000];
        for number in 0..records {
            session.put(ns, &key(number), &value).unwrap();
        }
    }
    assert_eq!(view.bytes(), vec![1; 1000], "a record changed under a view");
    let held = taken(&region);
    assert!(held > 2 * live - live / 8, "the old versions were not kept: {held} of {live}");
    assert!(held < 3 * live, "the view holds back {held} bytes of {live}");
    drop(view);
    // Everything that the view kept is free again.
    drop(session);
    let (session, ns) = open(&region);
    delete_all(&session, ns, records);
    drop((session, reader));
    let (session, ns) = open(&region);
    let count = fill(&session, ns, 1000);
    let unused = unused(&region);
    assert!(unused < BYTES / 50, "{unused} are unused after {count} records");
    drop((session, region));
    clean(&folder.path);
}

#[test]
fn a_reader_that_goes_on_reads_what_is_written_while_it_holds_a_view() {
    let folder = TestFolder::new();
    let region = create(&folder);
    let (session, ns) = open(&region);
    session.put(ns, &key(0), b"first").unwrap();
    let (reader, _) = open(&region);
    let view = reader.get(ns, &key(0)).unwrap().unwrap();
    let mut later = Vec::new();
    for round in 0..100_u32 {
        for number in 1..200 {
            session.put(ns, &key(number), &round.to_be_bytes().repeat(250)).unwrap();
        }
        // Each of these reads moves the end of the pin that the first view began.
        let value = reader.get(ns, &key(1 + round % 100)).unwrap().unwrap();
        later.push((round, value));
    }
    assert_eq!(view.bytes(), b"first");
    for (round, value) in &later {
        assert_eq!(value.bytes(), round.to_be_bytes().repeat(250), "round {round}");
    }
    drop((view, later));
    drop((session, reader, region));
    clean(&folder.path);
}

/// The error of a put that the region has no room for.
fn refusal(session: &Session, ns: Namespace, bytes: usize) -> (String, HeapUsage) {
    let value = vec![8; bytes];
    for number in 1 << 20.. {
        match session.put(ns, &key(number), &value) {
            Ok(_) => {}
            Err(error @ Error::Full { heap: Some(_), .. }) => {
                let text = error.to_string();
                let Error::Full { heap: Some(usage), .. } = error else { unreachable!("a heap") };
                return (text, *usage);
            }
            Err(error) => panic!("{error}"),
        }
    }
    unreachable!("the region is finite")
}

#[test]
fn a_full_heap_tells_what_its_memory_is_used_for() {
    let folder = TestFolder::new();
    let region = create(&folder);
    let (session, ns) = open(&region);
    let (text, usage) = refusal(&session, ns, 4000);
    assert_eq!(usage.live + usage.retired + usage.kept + usage.free, usage.total, "{usage:?}");
    assert!(usage.live > BYTES / 10 * 9 && usage.held_back.is_empty(), "{usage:?}");
    assert!(usage.free_by_size[3] < 2 * RESERVE, "no ordinary chunk is free: {usage:?}");
    assert!(text.contains("delete records, or create a larger region"), "{text}");
    assert!(text.contains("64.0 MiB"), "{text}");
    // Half of the records are deleted while a view is open: they are not free.
    let (reader, _) = open(&region);
    let view = reader.get(ns, &key(1 << 20)).unwrap().unwrap();
    let mut deleted = 0;
    for number in (1 << 20)..(1 << 20) + 8000 {
        deleted += 4096 * u64::from(session.delete(ns, &key(number)).unwrap());
    }
    let (text, usage) = refusal(&session, ns, 4000);
    let held = &usage.held_back[0];
    assert_eq!(held.process.pid, std::process::id());
    assert!(held.bytes > deleted / 10 * 9, "{held:?} of {deleted}");
    assert!(usage.retired >= held.bytes && held.epochs > 2, "{usage:?}");
    assert!(text.contains("of another session of this process holds back"), "{text}");
    let seen = region.inspect().unwrap().heap;
    assert!(seen.retired > deleted / 10 * 9 && seen.held_back.len() == 1, "{seen:?}");
    drop(view);
    drop(reader);
    // Free memory is usable for the sizes of its ranges.
    session.put(ns, &key(1), &[1]).unwrap();
    let (again, _) = open(&region);
    drop(session);
    again.put(ns, &key(2), &[1; 8000]).unwrap();
    let seen = region.inspect().unwrap().heap;
    assert!(seen.free_by_size[0] >= seen.free_by_size[1], "{seen:?}");
    assert!(seen.free_by_size[2] > deleted / 2 && seen.held_back.is_empty(), "{seen:?}");
    drop((again, region));
    clean(&folder.path);
}

#[test]
fn what_a_view_has_kept_comes_free_while_its_writer_goes_on() {
    let folder = TestFolder::new();
    let region = create(&folder);
    let (session, ns) = open(&region);
    let put_all = |rounds: u8, bytes: usize| {
        for round in 0..rounds {
            for number in 0..(10 << 20) / bytes as u32 {
                session.put(ns, &key(number), &vec![round; bytes]).unwrap();
            }
        }
    };
    // The second size is that of cells that no small range holds.
    for bytes in [1000, 20_000] {
        put_all(2, bytes);
        let live = taken(&region);
        let (reader, _) = open(&region);
        let view = reader.get(ns, &key(0)).unwrap().unwrap();
        put_all(3, bytes);
        let held = taken(&region);
        assert!(held > live + (8 << 20), "nothing was kept: {held} of {live}");
        drop(view);
        // The session neither ends nor runs out of memory.
        put_all(3, bytes);
        let after = taken(&region);
        assert!(after < live + (3 << 20), "{after} bytes are taken, {live} were");
        delete_all(&session, ns, (10 << 20) / bytes as u32);
    }
    drop((session, region));
    clean(&folder.path);
}
