//! Free memory that is scattered between live records is usable for any size: they are moved.

use std::sync::atomic::{AtomicBool, Ordering};

use nearstate_store::{
    BlockChange, BlockLayout, Condition, Error, Kind, Metadata, Namespace, Outcome, Region, Schema,
    Session, WhenFull, now_ms_coarse,
};

use crate::fixture::{SetOnDrop, TestFolder, clean};
use crate::full_region::{BYTES, create, delete_all, fill, fill_tagged, key, open, tagged, unused};

/// Random numbers with a seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % most
    }
}

/// Rounds of filling and deleting, after which 90 % of the heap must be usable.
const ROUNDS: u32 = 50;

#[test]
fn scattered_free_memory_is_usable_for_any_size() {
    let folder = TestFolder::new();
    let region = create(&folder);
    let (session, ns) = open(&region);
    let sizes = [64, 300, 1000, 4096, 64 << 10];
    let mut numbers = Numbers(7);
    let mut records: Vec<(u32, usize)> = Vec::new();
    let mut next = 0;
    let mut last = 0;
    for round in 0..ROUNDS {
        // Another size than that of the round before.
        last = (last + 1 + numbers.below(sizes.len() as u64 - 1) as usize) % sizes.len();
        let bytes = sizes[last];
        let value = vec![round as u8; bytes];
        loop {
            match session.put(ns, &key(next), &value) {
                Ok(_) => records.push((next, bytes)),
                Err(Error::Full { .. }) => break,
                Err(error) => panic!("{error}"),
            }
            next += 1;
        }
        let unused = unused(&region);
        // In between, large records may find a little less: how many retired cells a session keeps
        // depends on what a barrier costs.
        let most = if round == ROUNDS - 1 { BYTES / 10 } else { BYTES / 8 };
        assert!(unused < most, "round {round}, {bytes} bytes: {unused} bytes are unused");
        for number in (0..records.len()).rev() {
            if numbers.below(2) == 0 {
                let (deleted, _) = records.swap_remove(number);
                assert!(session.delete(ns, &key(deleted)).unwrap(), "record {deleted}");
            }
        }
    }
    for (number, bytes) in records.drain(..) {
        assert_eq!(session.get(ns, &key(number)).unwrap().unwrap().bytes().len(), bytes);
        assert!(session.delete(ns, &key(number)).unwrap(), "record {number}");
    }
    drop(session);
    let (session, ns) = open(&region);
    let count = fill(&session, ns, 1000);
    assert!(unused(&region) < BYTES / 50, "after {count} records: {}", unused(&region));
    drop((session, region));
    clean(&folder.path);
}

/// Fills the region with pairs of small records, of which the second ones are deleted.
fn scatter(session: &Session, ns: Namespace) -> u32 {
    let count = fill(session, ns, 500);
    for number in (0..count).step_by(2) {
        assert!(session.delete(ns, &key(number)).unwrap());
    }
    count
}

#[test]
fn a_transaction_finds_room_between_scattered_records() {
    let folder = TestFolder::new();
    let region = create(&folder);
    let (session, ns) = open(&region);
    let count = scatter(&session, ns);
    let large = vec![3; 50_000];
    for number in 0..100 {
        session
            .transact(|txn| {
                txn.put(ns, &key(count + 2 * number), &large)?;
                txn.put(ns, &key(count + 2 * number + 1), &large)
            })
            .unwrap();
    }
    // A caller that commits its transactions itself finds the room in the next one.
    let mut refusals = 0;
    for number in 200..300 {
        let run = || {
            let txn = session.begin()?;
            txn.put(ns, &key(count + 2 * number), &large)?;
            txn.put(ns, &key(count + 2 * number + 1), &large)?;
            txn.commit()
        };
        if matches!(run(), Err(Error::Full { .. })) {
            refusals += 1;
            run().unwrap();
        }
    }
    assert!(refusals < 20, "{refusals} transactions found no room");
    for number in (1..count).step_by(2) {
        assert_eq!(session.get(ns, &key(number)).unwrap().unwrap().bytes(), [7; 500]);
    }
    drop((session, region));
    clean(&folder.path);
}

/// The record that was read holds a pin during its change, so the next read makes the room.
#[test]
fn an_update_finds_room_between_scattered_records() {
    let folder = TestFolder::new();
    let region = create(&folder);
    let (session, ns) = open(&region);
    let count = scatter(&session, ns);
    let (large, mut refusals) = (vec![3; 50_000], 0);
    for number in (1..200).step_by(2) {
        let update = || session.get_for_update(ns, &key(number)).unwrap().unwrap().put(&large);
        if matches!(update(), Err(Error::Full { .. })) {
            refusals += 1;
            update().unwrap_or_else(|error| panic!("record {number}: {error}"));
        }
    }
    assert!(refusals < 20, "{refusals} updates found no room");
    for number in (201..count).step_by(2) {
        assert_eq!(session.get(ns, &key(number)).unwrap().unwrap().bytes(), [7; 500]);
    }
    drop((session, region));
    clean(&folder.path);
}

/// As after a read by key: the next search makes the room, before its own pin.
#[test]
fn an_update_of_a_found_record_finds_room_between_scattered_records() {
    let folder = TestFolder::new();
    let region = create(&folder);
    let (session, ns) = open(&region);
    let schema = Schema { kind: Kind::Mixed, ..tagged() };
    let with_tags = session.namespace("found", &schema).unwrap();
    for number in 0..100_u32 {
        let guti = number.to_be_bytes();
        let metadata = Metadata { tags: &[("guti", &guti)], expires_ms: 0 };
        session
            .transact(|txn| {
                let block = [BlockChange { name: "large", bytes: Some(b"small") }];
                txn.patch(with_tags, &key(number), &block)?;
                txn.set_metadata(with_tags, &key(number), metadata)
            })
            .unwrap();
    }
    scatter(&session, ns);
    let names = BlockLayout::new(&["large"]).unwrap();
    let (large, mut refusals) = (vec![3; 50_000], 0);
    for number in 0..100_u32 {
        let update = || {
            let found = session.find_for_update(with_tags, "guti", &number.to_be_bytes());
            found.unwrap().unwrap().patch(&names, &[(0, &large)])
        };
        if matches!(update(), Err(Error::Full { .. })) {
            refusals += 1;
            update().unwrap_or_else(|error| panic!("record {number}: {error}"));
        }
    }
    assert!((1..20).contains(&refusals), "{refusals} updates found no room");
    drop((session, region));
    clean(&folder.path);
}

#[test]
fn counters_find_room_between_scattered_records() {
    let folder = TestFolder::new();
    let region = create(&folder);
    let (session, ns) = open(&region);
    scatter(&session, ns);
    let schema = Schema { kind: Kind::Counters, ..Schema::default() };
    let counters = session.namespace("counters", &schema).unwrap();
    for number in 0..10_000 {
        session
            .add(counters, &key(number), 1)
            .unwrap_or_else(|error| panic!("counter {number}: {error}"));
    }
    drop((session, region));
    clean(&folder.path);
}

/// Blocks above the size that a record keeps in its own cell.
fn patch_blocks(session: &Session, ns: Namespace, number: u32, round: u8) {
    let bytes = [number as u8 ^ round; 700];
    let names = ["am", "sm", "mobility"];
    let changes: Vec<BlockChange<'_>> =
        names.iter().map(|name| BlockChange { name, bytes: Some(&bytes) }).collect();
    session.patch(ns, &key(number), &changes, Condition::Always).unwrap();
}

#[test]
fn records_with_blocks_and_tags_are_moved_under_readers_and_writers() {
    const BLOCKS: u32 = 1000;
    let folder = TestFolder::new();
    let region = create(&folder);
    let (session, plain) = open(&region);
    let blocks = Schema { kind: Kind::Blocks, ..Schema::default() };
    let blocks = session.namespace("blocks", &blocks).unwrap();
    let with_tags = session.namespace("tagged", &tagged()).unwrap();
    for number in 0..BLOCKS {
        patch_blocks(&session, blocks, number, 0);
    }
    let count = fill_tagged(&session, with_tags, 0);
    // Every third record stays, so that the rest has holes of all sizes.
    for number in (0..count).filter(|number| number % 3 != 0) {
        assert!(session.delete(with_tags, &key(number)).unwrap());
    }
    let is_over = AtomicBool::new(false);
    let read = |seed: u64| {
        let session = region.session().unwrap();
        let mut numbers = Numbers(seed);
        let mut reads = 0_u64;
        while !is_over.load(Ordering::Acquire) {
            let number = numbers.below(u64::from(count) / 3) as u32 * 3;
            let found = session.find(with_tags, "guti", &number.to_be_bytes()).unwrap();
            assert_eq!(found.expect("a record that stays").bytes(), [1; 600], "record {number}");
            let number = numbers.below(u64::from(BLOCKS)) as u32;
            let record = session.get(blocks, &key(number)).unwrap().expect("it stays");
            let [am, sm] = ["am", "sm"].map(|name| record.block(name).unwrap());
            assert!(am == sm && am.len() == 700 && am.iter().all(|byte| *byte == am[0]));
            reads += 1;
        }
        reads
    };
    let write = || {
        let session = region.session().unwrap();
        let mut numbers = Numbers(3);
        while !is_over.load(Ordering::Acquire) {
            patch_blocks(&session, blocks, numbers.below(u64::from(BLOCKS)) as u32, 1);
        }
    };
    std::thread::scope(|threads| {
        let readers = [1, 2].map(|seed| threads.spawn(move || read(seed)));
        let writer = threads.spawn(write);
        let end = SetOnDrop(&is_over);
        let large = vec![9; 60_000];
        // A reader that the scheduler keeps from running can hold what was moved for a while.
        let since = now_ms_coarse();
        for number in 0..200 {
            while let Err(error) = session.put(plain, &key(number), &large) {
                assert!(now_ms_coarse() < since + 60_000, "{number} large records: {error}");
            }
        }
        drop(end);
        writer.join().unwrap();
        assert!(readers.into_iter().all(|reader| reader.join().unwrap() > 0));
    });
    drop((session, region));
    clean(&folder.path);
}

/// Bytes of the file that have pages.
fn on_disk(region: &Region) -> u64 {
    region.inspect().unwrap().bytes_on_disk
}

#[test]
fn memory_that_is_free_as_a_whole_goes_back_to_the_host() {
    let folder = TestFolder::new();
    let region = create(&folder);
    let (session, ns) = open(&region);
    let count = scatter(&session, ns);
    for number in (1..count).step_by(2).filter(|number| number % 8 != 1) {
        assert!(session.delete(ns, &key(number)).unwrap());
    }
    let full = on_disk(&region);
    let mut moved = 0;
    while let Some(mut work) = session.defragment(50).unwrap() {
        while !work.step(64).unwrap() {}
        moved += work.moved();
        assert!(work.step(1).unwrap(), "the work is over");
    }
    assert!(moved > u64::from(count) / 20, "{moved} of {count} records were moved");
    let free = session.free_chunk_bytes().unwrap();
    assert!(free > BYTES / 2, "{free} bytes are free as a whole");
    assert_eq!(session.release_free_memory(8 << 20, 3).unwrap(), 3 * (256 << 10));
    while session.release_free_memory(8 << 20, 64).unwrap() != 0 {}
    assert_eq!(session.free_chunk_bytes().unwrap(), 8 << 20);
    assert!(on_disk(&region) <= full - (free - (8 << 20)), "{full} - {free}");
    for number in (1..count).step_by(8) {
        assert_eq!(session.get(ns, &key(number)).unwrap().unwrap().bytes(), [7; 500]);
    }
    // It gets pages again.
    let refilled = fill(&session, ns, 400);
    assert!(unused(&region) < BYTES / 20, "after {refilled} records: {}", unused(&region));
    // Work that is given up leaves nothing behind, and none is begun under a view.
    delete_all(&session, ns, refilled);
    let view_of = session.put(ns, &key(0), b"one").and_then(|_| session.get(ns, &key(0))).unwrap();
    assert!(session.defragment(0).unwrap().is_none());
    drop(view_of);
    drop((session, region));
    clean(&folder.path);
}

#[test]
fn a_record_that_was_read_for_an_update_may_be_moved_before_it() {
    let folder = TestFolder::new();
    let region = create(&folder);
    let (session, _) = open(&region);
    let schema = Schema { kind: Kind::Mixed, ..Schema::default() };
    let ns = session.namespace("mixed", &schema).unwrap();
    let blocks = BlockLayout::new(&["large", "small"]).unwrap();
    let put = |number: u32| {
        if number.is_multiple_of(2) {
            return session.put(ns, &key(number), &[1; 900]).map(drop);
        }
        let changes = [
            BlockChange { name: "large", bytes: Some(&[2; 3000]) },
            BlockChange { name: "small", bytes: Some(&[3; 20]) },
        ];
        session.patch(ns, &key(number), &changes, Condition::Always).map(drop)
    };
    for number in 0..8000 {
        put(number).unwrap();
    }
    for number in (0..8000).filter(|number| number % 10 > 1) {
        assert!(session.delete(ns, &key(number)).unwrap(), "record {number}");
    }
    let kept = || (0..8000).filter(|number| number % 10 <= 1);
    let keys: Vec<Vec<u8>> = kept().map(|number| key(number).to_vec()).collect();
    let read: Vec<_> =
        keys.iter().map(|key| session.get_for_update(ns, key).unwrap().unwrap()).collect();
    let (other, _) = open(&region);
    let mut moved = 0;
    for _ in 0..20 {
        let Some(mut work) = other.defragment(20).unwrap() else { break };
        while !work.step(64).unwrap() {}
        moved += work.moved();
    }
    assert!(moved > 100, "{moved} of {} records were moved", keys.len());
    for (number, record) in kept().zip(&read) {
        let done = if number.is_multiple_of(2) {
            record.put(&[4; 900]).unwrap()
        } else {
            record.patch(&blocks, &[(1, &[5; 20])]).unwrap()
        };
        assert!(matches!(done, Outcome::Done { .. }), "record {number}: {done:?}");
    }
    for (number, record) in kept().zip(&read) {
        let again = record.patch(&blocks, &[(1, &[6; 20])]);
        let is_refused = matches!(again, Ok(Outcome::Refused { .. }));
        assert!(number.is_multiple_of(2) || is_refused, "record {number}: {again:?}");
        let now = session.get(ns, &key(number)).unwrap().unwrap();
        if number.is_multiple_of(2) {
            assert_eq!(now.bytes(), [4; 900]);
        } else {
            assert_eq!(now.block("large"), Some(&[2; 3000][..]));
            assert_eq!(now.block("small"), Some(&[5; 20][..]));
        }
    }
    drop(read);
    drop((other, session, region));
    clean(&folder.path);
}

/// Records that cannot be moved, because the log names them, leave scattered memory. An idle region
/// costs a look at its chunks then, and no attempt to move them again.
#[test]
fn scattered_memory_that_cannot_be_joined_is_tried_once_until_something_changes() {
    let folder = TestFolder::new();
    let region = create(&folder);
    let (session, ns) = open(&region);
    let kept = session.namespace("kept", &Schema::default()).unwrap();
    session.stream(kept, WhenFull::Refuse).unwrap();
    for number in 0..8000 {
        session.put(ns, &key(number), &[1; 2000]).unwrap();
        if number % 20 == 0 {
            session.put(kept, &key(number), &[2; 500]).unwrap();
        }
    }
    for number in 0..8000 {
        assert!(session.delete(ns, &key(number)).unwrap());
    }
    let upkeep = region.session().unwrap();
    let mut attempts = 0;
    while let Some(mut work) = upkeep.defragment(50).unwrap() {
        while !work.step(u64::MAX).unwrap() {}
        attempts += 1;
        assert!(attempts < 20, "it goes on without end");
    }
    assert!(attempts > 0, "more than half of the memory in chunks is free");
    for number in 0..500 {
        session.put(ns, &key(number), &[3; 2000]).unwrap();
    }
    assert!(upkeep.defragment(50).unwrap().is_some(), "chunks are fuller than before");
    while let Some(mut work) = upkeep.defragment(50).unwrap() {
        while !work.step(u64::MAX).unwrap() {}
    }
    let end = session.log_tail_position().unwrap();
    session.acknowledge_to(end).unwrap();
    session.release_to(end, end).unwrap();
    let mut work = upkeep.defragment(50).unwrap().expect("the log names no record any more");
    while !work.step(u64::MAX).unwrap() {}
    assert!(work.moved() > 0);
    drop(work);
    drop((session, upkeep));
    drop(region);
    clean(&folder.path);
}

/// Fills the region with records of 1,000 bytes, and a counter for each 200 of them. Of each
/// hundred records so many stay.
fn fill_with_counters(region: &Region, live: u32) -> Session {
    let (session, ns) = open(region);
    let schema = Schema { kind: Kind::Counters, ..Schema::default() };
    let counters = session.namespace("counters", &schema).unwrap();
    let mut count = 0;
    while session.put(ns, &key(count), &[1; 1000]).is_ok() {
        if count % 200 == 0 && session.add(counters, &key(count), 1).is_err() {
            break; // The region is full.
        }
        count += 1;
    }
    for number in (0..count).filter(|number| number % 100 >= live) {
        assert!(session.delete(ns, &key(number)).unwrap(), "record {number}");
    }
    session
}

/// Counters cannot be moved, and neither can the segments of an index. What is free between them
/// serves cells of many chunks.
#[test]
fn cells_of_many_chunks_find_room_between_scattered_records_and_counters() {
    for live in [10, 25, 50] {
        let folder = TestFolder::new();
        let region = create(&folder);
        drop(fill_with_counters(&region, live));
        let (session, ns) = open(&region);
        for megabytes in [1, 2, 4, 8] {
            // With its header it fills a cell of that size.
            let value = vec![2; (megabytes << 20) - 200];
            session.put(ns, b"large", &value).unwrap_or_else(|error| {
                panic!("{megabytes} MiB, {live} % of the records are live: {error}")
            });
            assert!(session.delete(ns, b"large").unwrap());
        }
        drop((session, region));
        clean(&folder.path);
    }
}
