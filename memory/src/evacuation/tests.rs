//! Evacuation and the release of chunks in a damaged region do no further damage.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use nearstate_model::{Error, Result};

use super::CHUNKS_AT_ONCE;
use crate::atomic::Ordering;
use crate::check::check;
use crate::fixture::TestRegionPath;
use crate::heap::cell::{self, CellHeader, CellKind};
use crate::heap::chunk::{ChunkIndex, chunks_used, state_of};
use crate::index::lookup::hash;
use crate::layout::{CATALOG, CHUNK_UNITS, LINE};
use crate::member::Member;
use crate::member::arena::undo;
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
    let chunks = member.chunks_to_empty(1, CHUNKS_AT_ONCE).unwrap();
    assert_eq!(chunks.len(), CHUNKS_AT_ONCE);
    let neighbours = 2 * CHUNKS_AT_ONCE;
    let chunks = member.chunks_to_empty(neighbours as u64 * CHUNK_UNITS, CHUNKS_AT_ONCE).unwrap();
    assert!(chunks.len() <= neighbours, "{chunks:?}");
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
