//! A flipped bit in the words that lead to free memory destroys no record that is in use.

use std::collections::{BTreeMap, BTreeSet};

use nearstate_model::{Error, Result};

use crate::atomic::Ordering;
use crate::check::{CheckReport, check_with};
use crate::fixture::TestRegionPath;
use crate::heap::bitmap::UnitRun;
use crate::heap::cell::{CellHeader, CellKind, bytes_at};
use crate::heap::chunk::ChunkIndex;
use crate::index::lookup::hash;
use crate::layout::{BITMAP_BYTES, CHUNK_UNITS, LINE, arena_at, bitmaps_at};
use crate::member::Member;
use crate::region::file::{AttachOptions, CreateOptions, Region};
use crate::region::index_table::IndexTable;
use crate::repair::repair_with;
use crate::txn::fill::PendingCell;
use crate::txn::publish::WriteDecision;

/// Bytes of a value: two classes whose numbers differ in one bit.
fn value(number: u32, round: u8) -> Vec<u8> {
    vec![round ^ number as u8; if number.is_multiple_of(2) { 150 } else { 420 }]
}

fn put(member: &Member, table: &IndexTable, number: u32, round: u8) -> Result<()> {
    let key = number.to_be_bytes();
    let body = [&key[..], &value(number, round)].concat();
    let hash = hash(member.seed(), &key);
    let header = CellHeader {
        kind: CellKind::Record,
        flags: 0,
        namespace: table.index(),
        body: u32::try_from(body.len()).unwrap(),
        key: 4,
        children: 0,
        hash,
    };
    member.operation(|| {
        let at = member.allocate_cell(&header)?;
        member.write_body(at, 0, &body)?;
        let draft = PendingCell { at, body_crc: crc32fast::hash(&body) };
        member
            .write_record(table, hash, &key, Some(draft), |_| Ok(WriteDecision::Publish))
            .map(drop)
    })
}

fn delete(member: &Member, table: &IndexTable, number: u32) -> Result<()> {
    let key = number.to_be_bytes();
    let hash = hash(member.seed(), &key);
    member
        .operation(|| member.write_record(table, hash, &key, None, |_| Ok(WriteDecision::Remove)))
        .map(drop)
}

/// The offset of a record's cell, and its value.
fn found(member: &Member, table: &IndexTable, number: u32) -> (u64, Vec<u8>) {
    let _pin = member.pin().unwrap();
    let key = number.to_be_bytes();
    let (cell, value) = member.find(table, hash(member.seed(), &key), &key).unwrap().unwrap();
    (cell.at(), value.to_vec())
}

/// Flips each bit of the word to which `word_of` leads, in a region with records and free cells.
/// Afterwards the session replaces records several times. What was acknowledged is there.
fn expect_no_loss(name: &str, word_of: impl Fn(&Member, &IndexTable) -> u64) {
    for bit in 0..u64::BITS {
        let path = TestRegionPath::new(name);
        let region = Region::create(path.path(), &CreateOptions::default()).unwrap();
        let member = region.member().unwrap();
        let table = member.namespace(b"records", 1).unwrap();
        let mut rounds = BTreeMap::new();
        for number in 0..200 {
            put(&member, table, number, 1).unwrap();
            rounds.insert(number, 1);
        }
        for number in (0..200).filter(|number| number % 3 == 0) {
            delete(&member, table, number).unwrap();
            rounds.remove(&number);
        }
        member.operation(|| member.advance().and_then(|()| member.advance())).unwrap();
        member.map().word(word_of(&member, table)).unwrap().fetch_xor(1 << bit, Ordering::Relaxed);
        let mut damaged = 0;
        for round in 2..6 {
            member.operation(|| member.advance().and_then(|()| member.advance())).unwrap();
            for number in 100..300 {
                match put(&member, table, number, round) {
                    Ok(()) => drop(rounds.insert(number, round)),
                    // A write after whose commit damage was found was executed.
                    Err(Error::Damaged { .. }) => {
                        damaged += 1;
                        rounds.remove(&number);
                    }
                    Err(error) => panic!("bit {bit}: {error}"),
                }
            }
            for (number, round) in &rounds {
                let is = found(&member, table, *number).1;
                assert_eq!(is, value(*number, *round), "bit {bit}: record {number}");
            }
        }
        assert!(damaged <= 2, "bit {bit}: {damaged} operations failed");
    }
}

#[test]
fn a_flip_in_a_bump_range_destroys_no_record() {
    for word in [16, 17, 20, 21] {
        expect_no_loss("flip-bump", |member, _| arena_at(member.index()) + 8 * word);
    }
}

/// The words of the queue of the records' class: head and tail.
#[test]
fn a_flip_in_a_queue_destroys_no_record() {
    for word in 0..2 {
        expect_no_loss("flip-queue", |member, table| {
            let class = crate::heap::cell::class_at(member.map(), found(member, table, 1).0);
            arena_at(member.index()) + 256 + 24 * u64::from(class.unwrap()) + 8 * word
        });
    }
}

/// The link of the first free cell.
#[test]
fn a_flip_in_the_link_of_a_free_cell_destroys_no_record() {
    expect_no_loss("flip-link", |member, table| {
        let class = crate::heap::cell::class_at(member.map(), found(member, table, 1).0).unwrap();
        let queue = member.arena().queue(class).unwrap();
        queue.head.load(Ordering::Relaxed) + 8
    });
}

/// As a cell of its class it would contain a part of the next cell.
#[test]
fn a_replaced_record_with_a_flipped_class_is_not_reused() {
    let path = TestRegionPath::new("flip-class");
    let region = Region::create(path.path(), &CreateOptions::default()).unwrap();
    let member = region.member().unwrap();
    let table = member.namespace(b"records", 1).unwrap();
    for bit in 0..8 {
        put(&member, table, 180, 1).unwrap();
        let (at, _) = found(&member, table, 180);
        let head = member.map().word(at).unwrap();
        head.fetch_xor(1 << bit, Ordering::Relaxed);
        put(&member, table, 180, 2).unwrap();
        let retired = member.map().word(at + 16).unwrap().load(Ordering::Relaxed);
        assert!(!crate::member::pin::is_retired(retired), "bit {bit}");
    }
}

/// The units of one chunk are allocated and freed, while a bit of its bitmap or of its word is
/// flipped. Returns the number of errors. No unit of a record is allocated a second time.
fn take_after_flip(
    name: &str,
    bit: u32,
    word_of: impl Fn(&Member, ChunkIndex, UnitRun) -> u64,
) -> (TestRegionPath, u32) {
    let path = TestRegionPath::new(name);
    let region = Region::create(path.path(), &CreateOptions::default()).unwrap();
    let member = region.member().unwrap();
    let table = member.namespace(b"records", 1).unwrap();
    for number in 0..200 {
        put(&member, table, number, 1).unwrap();
    }
    let used: BTreeSet<_> = (0..200)
        .flat_map(|number| {
            let at = found(&member, table, number).0;
            (at..at + bytes_at(member.map(), at).unwrap()).step_by(LINE as usize)
        })
        .collect();
    let first = *used.first().unwrap();
    let chunk = ChunkIndex::of(member.map(), first).unwrap();
    let run = chunk.run(first, first + LINE);
    let word = member.map().word(word_of(&member, chunk, run)).unwrap();
    word.fetch_xor(1 << bit, Ordering::Relaxed);
    let mut damaged = 0;
    for _ in 0..3 {
        for _ in 0..2 * CHUNK_UNITS {
            match member.operation(|| member.allocate(LINE)) {
                Ok(cell) => assert!(!used.contains(&cell), "bit {bit}: {cell:#x} is in use"),
                Err(Error::Damaged { .. }) => damaged += 1,
                Err(error) => panic!("bit {bit}: {error}"),
            }
        }
        member.free_pending().unwrap();
        member.operation(|| member.free_all()).unwrap();
    }
    for number in 0..200 {
        assert_eq!(found(&member, table, number).1, value(number, 1), "bit {bit}");
    }
    drop((member, region));
    (path, damaged)
}

fn check_of(path: &TestRegionPath) -> CheckReport {
    check_with(path.path(), &AttachOptions::default(), &mut |_, _| Ok(())).unwrap()
}

#[test]
fn a_unit_in_use_whose_bit_is_lost_is_not_allocated_again() {
    for bit in 0..64 {
        let (path, damaged) = take_after_flip("flip-bitmap", bit, |member, chunk, run| {
            let bitmap = bitmaps_at(member.map().chunks()) + BITMAP_BYTES * chunk.0;
            bitmap + u64::from(run.start / 64) * 8
        });
        // All of these units belong to cells or to the bump range.
        assert_eq!(damaged, 1, "bit {bit}: an operation tells of it, and the others go on");
        let found = check_of(&path).faults;
        assert!(found.iter().any(|fault| fault.contains("given up")), "bit {bit}: {found:?}");
        let repaired =
            repair_with(path.path(), &AttachOptions::default(), &mut |_, _| Ok(())).unwrap();
        assert_eq!(repaired.lost_count, 0, "bit {bit}: {:?}", repaired.lost);
        assert_eq!(check_of(&path).faults, [""; 0], "bit {bit}: after the repair");
    }
}

#[test]
fn a_flip_in_the_word_of_a_chunk_leaves_the_chunk_in_use() {
    for bit in 0..48 {
        let (path, damaged) =
            take_after_flip("flip-chunk", bit, |member, chunk, _| chunk.word_at(member.map()));
        assert_eq!(damaged, 0, "bit {bit}: the bitmap is complete");
        assert_eq!(check_of(&path).faults, [""; 0], "bit {bit}: the word is computed again");
    }
}

/// What is freed in a chunk whose bitmap has lost a bit is not allocated, and the session goes on.
#[test]
fn a_cell_whose_bit_is_lost_is_freed_with_one_error() {
    let mut found_by = 0;
    for bit in 0..64 {
        let path = TestRegionPath::new("flip-free");
        let region = Region::create(path.path(), &CreateOptions::default()).unwrap();
        let member = region.member().unwrap();
        let table = member.namespace(b"records", 1).unwrap();
        for number in 0..200 {
            put(&member, table, number, 1).unwrap();
        }
        let at = found(&member, table, 100).0;
        let chunk = ChunkIndex::of(member.map(), at).unwrap();
        let word = chunk.run(at, at + LINE).start / 64;
        let bitmap = chunk.bitmap(member.map()).unwrap();
        bitmap[word as usize].fetch_xor(1 << bit, Ordering::Relaxed);
        let mut damaged = 0;
        let mut count = |done: Result<()>| match done {
            Ok(()) => {}
            Err(Error::Damaged { .. }) => damaged += 1,
            Err(error) => panic!("bit {bit}: {error}"),
        };
        for number in 0..200 {
            count(delete(&member, table, number));
        }
        for _ in 0..5 {
            member.operation(|| member.advance()).unwrap();
            count(member.operation(|| member.free_all()));
        }
        for number in 200..5000 {
            count(put(&member, table, number, 1));
        }
        // None if the cell is reused as it is.
        assert!(damaged <= 1, "bit {bit}: {damaged} operations failed");
        found_by += damaged;
        for number in 200..5000 {
            assert_eq!(found(&member, table, number).1, value(number, 1), "bit {bit}");
        }
        drop((member, region));
        repair_with(path.path(), &AttachOptions::default(), &mut |_, _| Ok(())).unwrap();
        assert_eq!(check_of(&path).faults, [""; 0], "bit {bit}: after the repair");
    }
    assert!(found_by > 16, "{found_by} flips were found");
}
