//! Evacuation and the release of chunks in a damaged region do no further damage.

mod lent;

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use nearstate_model::{Error, Result};

use super::CHUNKS_AT_ONCE;
use super::choice::Survey;
use crate::atomic::Ordering;
use crate::check::check;
use crate::fixture::TestRegionPath;
use crate::heap::cell::{self, CellHeader, CellKind};
use crate::heap::chunk::{ChunkIndex, chunks_used, state_of};
use crate::index::lookup::hash;
use crate::layout::{CATALOG, CHUNK_UNITS, LINE};
use crate::member::arena::undo;
use crate::member::{ALL_ASIDE, Member};
use crate::region::file::{CreateOptions, Region};
use crate::region::index_table::IndexTable;
use crate::txn::fill::PendingCell;
use crate::txn::publish::WriteDecision;

fn key(number: u32) -> Vec<u8> {
    format!("key-{number}").into_bytes()
}

/// Puts a record that owns one block.
fn put(member: &Member, table: &IndexTable, number: u32, block: &[u8]) -> Result<()> {
    let key = key(number);
    let hash = hash(member.seed(), &key);
    let head = |kind, body: usize, key: usize, children| CellHeader {
        kind,
        flags: 0,
        namespace: table.index(),
        body: u32::try_from(body).unwrap(),
        key: u16::try_from(key).unwrap(),
        children,
        hash,
    };
    member.operation(|| {
        let child = member.allocate_cell(&head(CellKind::Block, block.len(), 0, 0))?;
        member.write_body(child, 0, block)?;
        member.seal_block(child, crc32fast::hash(block))?;
        let body = [&child.to_le_bytes()[..], &key].concat();
        let at = member.allocate_cell(&head(CellKind::Record, body.len(), key.len(), 1))?;
        member.write_body(at, 0, &body)?;
        let draft = PendingCell { at, body_crc: crc32fast::hash(&body) };
        member
            .write_record(table, hash, &key, Some(draft), |_| Ok(WriteDecision::Publish))
            .map(drop)
    })
}

/// The block of a record, and the offset of its cell.
fn block(member: &Member, table: &IndexTable, number: u32) -> (Vec<u8>, u64) {
    let _pin = member.pin().unwrap();
    let key = key(number);
    let (record, _) = member.find(table, hash(member.seed(), &key), &key).unwrap().unwrap();
    (record.block(0).unwrap().to_vec(), record.child(0).unwrap())
}

/// A region with records whose blocks are scattered over several chunks.
fn scattered(path: &Path) -> Region {
    scattered_records(path, 6000)
}

fn scattered_records(path: &Path, count: u32) -> Region {
    let region = Region::create(path, &CreateOptions::default()).unwrap();
    let member = region.member().unwrap();
    let table = member.namespace(b"blocks", 2).unwrap();
    for number in 0..count {
        put(&member, table, number, &[number as u8; 300]).unwrap();
    }
    for number in (0..count).filter(|number| number % 4 != 0) {
        let key = key(number);
        let hash = hash(member.seed(), &key);
        member.write_record(table, hash, &key, None, |_| Ok(WriteDecision::Remove)).unwrap();
    }
    drop(member);
    region
}

fn evacuate(member: &Member) -> u64 {
    let mut evacuation = member.begin_evacuation(0).unwrap().expect("partly used chunks");
    while !member.continue_evacuation(&mut evacuation, 100).unwrap() {}
    evacuation.moved()
}

/// A block whose units look like headers of live cells: of its own record, of a block of it, and of
/// an overflow line that leads to it.
fn bytes_like_headers(table: &IndexTable, record_at: u64, hash: u64) -> Vec<u8> {
    // The first unit of the cell ends after 20 bytes of the body.
    let mut bytes = vec![0; 20];
    for kind in [CellKind::Record, CellKind::Block, CellKind::OverflowLine] {
        let head = cell::kind_in_head(kind) | u64::from(table.index()) << 16;
        let sizes = hash & 0xffff_ffff | 100 << 32;
        let entry = crate::index::bucket::entry(crate::index::bucket::hash_tag(hash), record_at);
        let words = if kind == CellKind::OverflowLine {
            [head, 0, 2, entry, entry, 0, 0, 0]
        } else {
            [head, 0, 2, 1, sizes, 10, 0, 0]
        };
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    }
    bytes
}

#[test]
fn bytes_that_look_like_headers_of_live_cells_are_not_moved() {
    let path = TestRegionPath::new("like-headers");
    let region = scattered(path.path());
    let member = region.member().unwrap();
    let table = member.namespace(b"blocks", 2).unwrap();
    let numbers = || (0..6000).step_by(4);
    let mut written = Vec::new();
    for number in numbers() {
        let key = key(number);
        let hash = hash(member.seed(), &key);
        let at = {
            let _pin = member.pin().unwrap();
            member.find(table, hash, &key).unwrap().unwrap().0.at()
        };
        // The record is replaced: the place of the former one is as good as its own.
        let bytes = bytes_like_headers(table, at, hash);
        put(&member, table, number, &bytes).unwrap();
        written.push(bytes);
    }
    assert!(evacuate(&member) > 100);
    for (number, bytes) in numbers().zip(&written) {
        assert_eq!(block(&member, table, number).0, *bytes, "record {number}");
    }
    drop((member, region));
    let report = check(path.path(), &mut |_, _| Ok(())).unwrap();
    assert!(report.is_clean(), "{report:#?}");
}

/// A process that takes cells of this member is stopped: its next operation does not begin.
#[test]
fn an_evacuation_that_cannot_continue_opens_its_chunks() {
    let path = TestRegionPath::new("not-continued");
    let region = scattered(path.path());
    let (member, other) = (region.member().unwrap(), region.member().unwrap());
    let closing = || {
        let chunks = (0..chunks_used(member.map()).unwrap()).map(ChunkIndex);
        chunks.filter(|chunk| state_of(member.map(), *chunk).unwrap().is_closing).count()
    };
    let arena = member.arena();
    let taker = arena.word(undo::TAKER);
    for is_given_up in [false, true] {
        let mut evacuation = member.begin_evacuation(0).unwrap().expect("partly used chunks");
        assert!(closing() > 0);
        taker.store(other.lock_owner() << 48, Ordering::Release);
        if is_given_up {
            member.give_up_evacuation(&evacuation).unwrap();
        } else {
            let continued = member.continue_evacuation(&mut evacuation, 100);
            assert!(matches!(continued, Err(Error::Stalled { .. })), "{continued:?}");
        }
        taker.store(0, Ordering::Release);
        assert_eq!(closing(), 0, "given up: {is_given_up}");
    }
}

/// Bytes like overflow lines whose entries lead to pages that the file does not have: in the
/// catalog, and behind the chunks in use.
#[test]
fn an_evacuation_touches_no_page_that_the_file_does_not_have() {
    let path = TestRegionPath::new("holes");
    let region = scattered(path.path());
    let member = region.member().unwrap();
    let table = member.namespace(b"blocks", 2).unwrap();
    let behind = ChunkIndex(chunks_used(member.map()).unwrap()).end();
    for number in (0..6000_u32).step_by(4) {
        let place = 4096 * u64::from(number / 4);
        let at = if number % 8 == 0 { CATALOG + (1 << 20) + place } else { behind + place };
        let bytes = bytes_like_headers(table, at, hash(member.seed(), &key(number)));
        put(&member, table, number, &bytes).unwrap();
    }
    let pages = || std::fs::metadata(path.path()).unwrap().blocks() / 8;
    let before = pages();
    assert!(evacuate(&member) > 100);
    // Chunks for what was moved.
    assert!(pages() < before + 4 * CHUNK_UNITS * LINE / 4096, "{} pages, then {}", before, pages());
}

/// However large the region is, an operation waits for few chunks.
#[test]
fn an_operation_empties_few_chunks_at_once() {
    let path = TestRegionPath::new("few-chunks");
    let region = scattered_records(path.path(), 15_000);
    let member = region.member().unwrap();
    assert!(chunks_used(member.map()).unwrap() > 2 * CHUNKS_AT_ONCE as u64);
    let chunks = member.chunks_to_empty(1, CHUNKS_AT_ONCE, Survey::No).unwrap().chunks;
    assert_eq!(chunks.len(), CHUNKS_AT_ONCE);
    let neighbours = 2 * CHUNKS_AT_ONCE;
    let units = neighbours as u64 * CHUNK_UNITS;
    let chunks = member.chunks_to_empty(units, CHUNKS_AT_ONCE, Survey::Yes).unwrap().chunks;
    assert!(chunks.len() <= neighbours, "{chunks:?}");
}

/// A counter that lies where the records lie: no chunk was free for it.
fn put_counter(member: &Member, table: &IndexTable, number: u32) -> Result<()> {
    let key = format!("counter-{number}").into_bytes();
    let hash = hash(member.seed(), &key);
    member.fixed_chunk.set((0, u32::MAX));
    let counter = member.allocate_counter(1)?;
    let body = [&counter.to_le_bytes()[..], &key].concat();
    let head = CellHeader {
        kind: CellKind::Record,
        flags: 0,
        namespace: table.index(),
        body: u32::try_from(body.len()).unwrap(),
        key: u16::try_from(key.len()).unwrap(),
        children: 1,
        hash,
    };
    member.operation(|| {
        let at = member.allocate_cell(&head)?;
        member.write_body(at, 0, &body)?;
        let draft = PendingCell { at, body_crc: crc32fast::hash(&body) };
        member
            .write_record(table, hash, &key, Some(draft), |_| Ok(WriteDecision::Publish))
            .map(drop)
    })
}

/// The chunks with fewer records have a counter each. They are not chosen, and nothing of them is
/// moved.
#[test]
fn chunks_with_a_counter_are_passed_over_before_records_are_moved() {
    let path = TestRegionPath::new("passed-over");
    let region = Region::create(path.path(), &CreateOptions::default()).unwrap();
    let member = region.member().unwrap();
    let table = member.namespace(b"records", 1).unwrap();
    let counters = member.namespace(b"counters", 3).unwrap();
    for number in 0..6000 {
        put_plain(&member, table, number, 1000).unwrap();
        if number < 3000 && number % 100 == 0 {
            put_counter(&member, counters, number).unwrap();
        }
    }
    let is_kept = |number: &u32| number.is_multiple_of(if *number < 3000 { 20 } else { 4 });
    (0..6000).filter(|number| !is_kept(number)).for_each(|n| remove_plain(&member, table, n));
    member.operation(|| member.reclaim()).unwrap();
    let kept: Vec<u32> = (0..6000).filter(is_kept).collect();
    let place = |number: u32| place_of(&member, table, number, 1000);
    let before: Vec<u64> = kept.iter().map(|number| place(*number)).collect();
    let [first, last] = [2999, 3001].map(|near| {
        let number = kept.iter().min_by_key(|number| number.abs_diff(near)).unwrap();
        ChunkIndex::of(member.map(), place(*number)).unwrap()
    });
    for units in [CHUNK_UNITS * 9 / 10, 4 * CHUNK_UNITS] {
        let choice = member.chunks_to_empty(units, CHUNKS_AT_ONCE, Survey::Yes).unwrap();
        assert!(!choice.chunks.is_empty() && !choice.is_partial, "{units} units");
        assert!(choice.chunks.iter().all(|chunk| *chunk >= first.min(last)), "{choice:?}");
    }
    let after: Vec<u64> = kept.iter().map(|number| place(*number)).collect();
    assert_eq!(before, after, "a record was moved");
    member.wanted_units.set(4 * CHUNK_UNITS);
    assert!(member.makes_room(1).unwrap());
}

#[test]
fn a_block_with_a_wrong_size_is_not_copied_over_its_neighbours() {
    let path = TestRegionPath::new("wrong-size");
    let region = scattered(path.path());
    let member = region.member().unwrap();
    let table = member.namespace(b"blocks", 2).unwrap();
    let (_, damaged) = block(&member, table, 400);
    // Its size becomes a megabyte larger.
    let word = cell::word(member.map(), damaged, cell::WORD_VERSION + 8).unwrap();
    word.fetch_xor(1 << (32 + 20), Ordering::Relaxed);
    assert!(evacuate(&member) > 100);
    for number in (0..6000).step_by(4).filter(|number| *number != 400) {
        assert_eq!(block(&member, table, number).0, [number as u8; 300], "record {number}");
    }
    assert_eq!(block(&member, table, 400).1, damaged, "it was moved");
    word.fetch_xor(1 << (32 + 20), Ordering::Relaxed);
    drop((member, region));
    let report = check(path.path(), &mut |_, _| Ok(())).unwrap();
    assert!(report.is_clean(), "{report:#?}");
}

#[test]
fn a_record_of_no_kind_stays_and_the_others_are_moved() {
    let path = TestRegionPath::new("no-kind");
    let region = scattered(path.path());
    let member = region.member().unwrap();
    let table = member.namespace(b"blocks", 2).unwrap();
    let damaged = {
        let _pin = member.pin().unwrap();
        let key = key(0);
        member.find(table, hash(member.seed(), &key), &key).unwrap().unwrap().0.at()
    };
    // A kind that does not exist.
    let head = cell::word(member.map(), damaged, cell::WORD_HEAD).unwrap();
    head.fetch_xor(0x8 << 8, Ordering::Relaxed);
    assert!(evacuate(&member) > 100, "the damaged record ended the evacuation");
    head.fetch_xor(0x8 << 8, Ordering::Relaxed);
    drop((member, region));
    let report = check(path.path(), &mut |_, _| Ok(())).unwrap();
    assert!(report.is_clean(), "{report:#?}");
}

#[test]
fn a_chunk_whose_word_is_wrong_keeps_its_pages() {
    let path = TestRegionPath::new("wrong-word");
    let region = scattered(path.path());
    let member = region.member().unwrap();
    let table = member.namespace(b"blocks", 2).unwrap();
    let (_, at) = block(&member, table, 400);
    let chunk = ChunkIndex::of(member.map(), at).unwrap();
    let word = member.map().word(chunk.word_at(member.map())).unwrap();
    // The word says that no unit is used.
    word.fetch_and(!0xffff, Ordering::Relaxed);
    member.release_free_chunks(0, u64::MAX).unwrap();
    for number in (0..6000).step_by(4) {
        assert_eq!(block(&member, table, number).0, [number as u8; 300], "record {number}");
    }
}

/// Puts a record without blocks.
fn put_plain(member: &Member, table: &IndexTable, number: u32, bytes: usize) -> Result<()> {
    let key = key(number);
    let hash = hash(member.seed(), &key);
    let body = [&key[..], &vec![number as u8; bytes]].concat();
    let head = CellHeader {
        kind: CellKind::Record,
        flags: 0,
        namespace: table.index(),
        body: u32::try_from(body.len()).unwrap(),
        key: u16::try_from(key.len()).unwrap(),
        children: 0,
        hash,
    };
    member.operation(|| {
        let at = member.allocate_cell(&head)?;
        member.write_body(at, 0, &body)?;
        let draft = PendingCell { at, body_crc: crc32fast::hash(&body) };
        member
            .write_record(table, hash, &key, Some(draft), |_| Ok(WriteDecision::Publish))
            .map(drop)
    })
}

fn remove_plain(member: &Member, table: &IndexTable, number: u32) {
    let key = key(number);
    let hash = hash(member.seed(), &key);
    member.write_record(table, hash, &key, None, |_| Ok(WriteDecision::Remove)).unwrap();
}

/// The place of a record, after its value was compared.
fn place_of(member: &Member, table: &IndexTable, number: u32, bytes: usize) -> u64 {
    let _pin = member.pin().unwrap();
    let key = key(number);
    let (record, _) = member.find(table, hash(member.seed(), &key), &key).unwrap().unwrap();
    assert_eq!(record.value().unwrap(), vec![number as u8; bytes], "record {number}");
    record.at()
}

/// Bytes of the records of [`in_pairs`], and units of their cells.
const PAIR_BYTES: usize = 1450;
const PAIR_UNITS: u64 = 24;

/// With some seeds a line of the index lies behind the last pair. It comes free when the index
/// grows, and then no record must be moved.
fn known_seed() -> CreateOptions {
    CreateOptions { hash_seed: Some(1), ..CreateOptions::default() }
}

/// Forty records one behind the other, of which each second one was removed.
fn in_pairs(member: &Member) -> &IndexTable {
    let table = member.namespace(b"pairs", 1).unwrap();
    (0..40).for_each(|number| put_plain(member, table, number, PAIR_BYTES).unwrap());
    (0..40).step_by(2).for_each(|number| remove_plain(member, table, number));
    member.operation(|| member.advance().and_then(|()| member.advance())).unwrap();
    table
}

/// The numbers of the records that are not where they were.
fn moved_since(before: &[(u32, u64)], member: &Member, table: &IndexTable) -> Vec<u32> {
    let places = before.iter().map(|(number, at)| {
        let is_there = place_of(member, table, *number, PAIR_BYTES) == *at;
        (!is_there).then_some(*number)
    });
    places.flatten().collect()
}

#[test]
fn one_record_is_moved_for_a_cell_of_twice_its_size_and_nothing_else_is_freed() {
    let path = TestRegionPath::new("join");
    let region = Region::create(path.path(), &known_seed()).unwrap();
    let member = region.member().unwrap();
    let table = in_pairs(&member);
    let kept = |class| member.arena().queue_count(class);
    let class = crate::heap::class::class_of(PAIR_UNITS * LINE).unwrap();
    assert_eq!(kept(class), 20);
    let before: Vec<_> = (1..40)
        .step_by(2)
        .map(|number| (number, place_of(&member, table, number, PAIR_BYTES)))
        .collect();
    member.wanted_units.set(2 * PAIR_UNITS);
    assert_eq!(member.joins_run(), Ok(true));
    let room = member.arena().room(crate::member::arena::Bump::Small);
    assert_eq!(room, 2 * PAIR_UNITS * LINE, "the cell and the one behind it");
    assert_eq!(moved_since(&before, &member, table).len(), 1);
    // One was freed, and one has the record.
    assert_eq!(kept(class), 18, "the other free cells stay");
    let large = member.operation(|| {
        let large = member.allocate(2 * PAIR_UNITS * LINE)?;
        member.free_pending().map(|()| large)
    });
    let behind = large.unwrap() + PAIR_UNITS * LINE;
    assert!(before.iter().any(|(_, at)| *at == behind), "the run is that of the moved record");
    drop((member, region));
    let report = check(path.path(), &mut |_, _| Ok(())).unwrap();
    assert!(report.is_clean(), "{report:#?}");
}

/// What a reader may still find is not overwritten: the run is not made.
#[test]
fn a_record_that_a_reader_may_find_is_not_overwritten_by_a_run() {
    let path = TestRegionPath::new("join-pinned");
    let region = Region::create(path.path(), &known_seed()).unwrap();
    let (member, reader) = (region.member().unwrap(), region.member().unwrap());
    let table = in_pairs(&member);
    let seen: Vec<_> = (1..40)
        .step_by(2)
        .map(|number| (number, place_of(&member, table, number, PAIR_BYTES)))
        .collect();
    let pin = reader.pin().unwrap();
    member.wanted_units.set(2 * PAIR_UNITS);
    assert_eq!(member.joins_run(), Ok(false));
    let moved = moved_since(&seen, &member, table);
    assert_eq!(moved.len(), 1, "it was moved before its old cell could be freed");
    assert_eq!(member.aside_to_revisit.get(), ALL_ASIDE, "it is looked at again");
    // Cells of any size are taken meanwhile.
    member
        .operation(|| {
            for _ in 0..200 {
                let at = member.allocate(2 * PAIR_UNITS * LINE)?;
                member.map().write(at + 64, &[0xee; 1000])?;
            }
            member.free_pending()
        })
        .unwrap();
    for (number, at) in &seen {
        let bytes = member.map().bytes(*at + 44 + key(*number).len() as u64, PAIR_BYTES as u64);
        assert_eq!(bytes.unwrap(), vec![*number as u8; PAIR_BYTES], "record {number}");
    }
    drop(pin);
    member.operation(|| member.advance().and_then(|()| member.free_all())).unwrap();
    drop((member, reader, region));
    let report = check(path.path(), &mut |_, _| Ok(())).unwrap();
    assert!(report.is_clean(), "{report:#?}");
}

/// Two records of one class need two free cells of it.
#[test]
fn a_run_needs_a_free_cell_for_each_record_that_is_moved() {
    let path = TestRegionPath::new("join-two");
    let region = Region::create(path.path(), &CreateOptions::default()).unwrap();
    let member = region.member().unwrap();
    let table = member.namespace(b"two", 1).unwrap();
    // Cells of 24, 10 and 16 units. Only behind the first one are records that can be moved.
    let [large, small, other] = [PAIR_BYTES, 580, 960];
    for (number, bytes) in (0..).zip([large, small, small, other, small, other, small, other]) {
        put_plain(&member, table, number, bytes).unwrap();
    }
    let advance = || member.operation(|| member.advance().and_then(|()| member.advance())).unwrap();
    for number in [0, 4] {
        remove_plain(&member, table, number);
    }
    advance();
    let places = || [1, 2].map(|number| place_of(&member, table, number, small));
    let before = places();
    member.wanted_units.set(PAIR_UNITS + 20);
    assert_eq!(member.joins_run(), Ok(false));
    assert_eq!(places(), before, "there is a free cell for only one of them");
    remove_plain(&member, table, 6);
    advance();
    assert_eq!(member.joins_run(), Ok(true));
    assert!(places().iter().zip(before).all(|(place, before)| *place != before));
    drop((member, region));
    let report = check(path.path(), &mut |_, _| Ok(())).unwrap();
    assert!(report.is_clean(), "{report:#?}");
}

/// Otherwise a record would be moved into the free cell in front of it.
#[test]
fn no_record_is_moved_for_a_free_cell_whose_chunk_is_busy() {
    let path = TestRegionPath::new("join-busy");
    let region = Region::create(path.path(), &known_seed()).unwrap();
    let [member, other] = [(), ()].map(|()| region.member().unwrap());
    let table = in_pairs(&member);
    member.operation(|| member.empty_bump(crate::member::arena::Bump::Small)).unwrap();
    let before: Vec<_> = (1..40)
        .step_by(2)
        .map(|number| (number, place_of(&member, table, number, PAIR_BYTES)))
        .collect();
    let (_, first) = before[0];
    let chunk = ChunkIndex::of(member.map(), first).unwrap();
    member.wanted_units.set(2 * PAIR_UNITS);
    let joined =
        other.operation(|| other.under_chunk(chunk, None, |_| member.joins_run())).unwrap();
    assert_eq!(joined, Some(false));
    assert_eq!(moved_since(&before, &member, table), []);
    assert_eq!(member.joins_run(), Ok(true));
}

/// Its old cell would not come free.
#[test]
fn no_record_is_moved_that_a_stalled_reader_holds() {
    let path = TestRegionPath::new("join-stalled");
    let region = Region::create(path.path(), &known_seed()).unwrap();
    let [member, reader] = [(), ()].map(|()| region.member().unwrap());
    let table = in_pairs(&member);
    let before: Vec<_> = (1..40)
        .step_by(2)
        .map(|number| (number, place_of(&member, table, number, PAIR_BYTES)))
        .collect();
    let pin = reader.pin().unwrap();
    for _ in 0..12 {
        member.operation(|| member.advance()).unwrap();
    }
    member.wanted_units.set(2 * PAIR_UNITS);
    assert_eq!(member.joins_run(), Ok(false));
    assert_eq!(moved_since(&before, &member, table), []);
    drop(pin);
    member.operation(|| member.advance()).unwrap();
    assert_eq!(member.joins_run(), Ok(true));
}

/// Many set-aside cells prevent a join only while readers hold them.
#[test]
fn set_aside_cells_that_came_free_do_not_prevent_a_join() {
    let path = TestRegionPath::new("join-aside");
    let region = Region::create(path.path(), &known_seed()).unwrap();
    let member = region.member().unwrap();
    in_pairs(&member);
    let arena = member.arena();
    let aside = member.operation(|| {
        let class = crate::heap::class::class_of(10 * LINE).unwrap();
        for _ in 0..70 {
            member.allocate_fresh(class)?;
        }
        arena.roll_back()?;
        let queue = arena.queue(class)?;
        for _ in 0..70 {
            arena.requeue(queue, arena.set_aside(), queue.head.load(Ordering::Relaxed))?;
        }
        Ok(arena.set_aside().count.load(Ordering::Relaxed))
    });
    assert_eq!(aside, Ok(70));
    member.aside_to_revisit.set(ALL_ASIDE);
    member.wanted_units.set(2 * PAIR_UNITS);
    assert_eq!(member.joins_run(), Ok(true));
    assert_eq!(arena.set_aside().head.load(Ordering::Relaxed), 0, "they are free");
}

/// A larger class would free its neighbours.
#[test]
fn a_set_aside_cell_whose_class_has_a_flipped_bit_is_not_freed() {
    let path = TestRegionPath::new("aside-class");
    let region = Region::create(path.path(), &known_seed()).unwrap();
    let member = region.member().unwrap();
    in_pairs(&member);
    let arena = member.arena();
    let class = crate::heap::class::class_of(PAIR_UNITS * LINE).unwrap();
    let queue = arena.queue(class).unwrap();
    let at = queue.head.load(Ordering::Relaxed);
    let chunk = ChunkIndex::of(member.map(), at).unwrap();
    let used = || state_of(member.map(), chunk).unwrap().used;
    let before = used();
    let head = cell::word(member.map(), at, cell::WORD_HEAD).unwrap();
    let freed = member.operation(|| {
        arena.requeue(queue, arena.set_aside(), at)?;
        // 32 units instead of 24.
        head.fetch_xor(8, Ordering::Relaxed);
        assert_eq!(cell::bytes_at(member.map(), at), Ok(32 * LINE));
        member.aside_to_revisit.set(ALL_ASIDE);
        member.revisit_set_aside(1)
    });
    assert!(matches!(freed, Err(Error::Damaged { .. })), "{freed:?}");
    assert_eq!(used(), before, "neither it nor the record behind it");
}
