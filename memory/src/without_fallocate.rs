//! A region on a file system without `fallocate`, where pages come from writing zeros: none are
//! written over what is in use.

use crate::atomic::Ordering;
use crate::check::check;
use crate::fixture::{TestRegionPath, has_key, put_key, remove_key};
use crate::heap::chunk::{ChunkIndex, chunks_used};
use crate::layout::{SUPER_NAMESPACES, catalog_at, seal};
use crate::member::Member;
use crate::member::lock::PAYLOAD;
use crate::namespace::removal::RemovalDecision;
use crate::region::file::{AttachOptions, CreateOptions, Region};
use crate::region::index_table::IndexTable;
use crate::repair::repair_with;
use crate::system::pages::WITHOUT_FALLOCATE;

/// Until it is dropped, the file systems of this thread have no `fallocate`.
struct WithoutFallocate;

impl WithoutFallocate {
    fn begin() -> Self {
        WITHOUT_FALLOCATE.set(true);
        Self
    }
}

impl Drop for WithoutFallocate {
    fn drop(&mut self) {
        WITHOUT_FALLOCATE.set(false);
    }
}

fn assert_clean(path: &TestRegionPath) {
    let report = check(path.path(), &mut |_, _| Ok(())).unwrap();
    assert!(report.faults.is_empty(), "{:?}", report.faults);
}

fn keys() -> impl Iterator<Item = [u8; 8]> {
    (0..500_u64).map(u64::to_le_bytes)
}

fn fill(member: &Member, table: &IndexTable) {
    keys().for_each(|key| put_key(member, table, &key).unwrap());
}

#[test]
fn an_entry_that_is_used_again_keeps_its_generation_and_its_index() {
    let _without = WithoutFallocate::begin();
    let path = TestRegionPath::new("entry-again");
    let region = Region::create(path.path(), &CreateOptions::default()).unwrap();
    let other = Region::attach(path.path()).unwrap();
    let [one, two] = [&region, &other].map(|region| region.member().unwrap());
    let (first, _) = one.open_namespace(b"first", 1).unwrap();
    put_key(&two, two.table(first).unwrap(), b"key").unwrap();
    remove_key(&two, two.table(first).unwrap(), b"key").unwrap();
    let removed = RemovalDecision::Remove { has_index: false };
    assert!(one.remove_namespace(first, |_| Ok(removed)).unwrap());
    let (second, _) = one.open_namespace(b"second", 1).unwrap();
    assert_ne!(second, first, "a number is given once");
    assert_eq!(second & 0xffff, first & 0xffff, "its entry is used again");
    // Both processes use the same index.
    put_key(&one, one.table(second).unwrap(), b"of one").unwrap();
    put_key(&two, two.table(second).unwrap(), b"of two").unwrap();
    for member in [&one, &two] {
        for key in [&b"of one"[..], b"of two"] {
            assert!(has_key(member, member.table(second).unwrap(), key).unwrap());
        }
    }
    drop((one, two, region, other));
    assert_clean(&path);
}

#[test]
fn the_next_creator_uses_the_segment_that_a_killed_one_has_left() {
    let _without = WithoutFallocate::begin();
    let path = TestRegionPath::new("entry-left");
    let region = Region::create(path.path(), &CreateOptions::default()).unwrap();
    let member = region.member().unwrap();
    let (number, _) = member.open_namespace(b"first", 1).unwrap();
    let segments = catalog_at(number) + crate::layout::CATALOG_SEGMENTS;
    let segment = member.map().word(segments).unwrap().load(Ordering::Relaxed);
    // As if its creator had been killed before it stored the state, and counted the entry.
    let state = catalog_at(number) + crate::layout::CATALOG_STATE;
    member.map().word(state).unwrap().store(0, Ordering::Relaxed);
    member.map().word(SUPER_NAMESPACES).unwrap().store(seal(0), Ordering::Relaxed);
    drop((member, region));
    let region = Region::attach(path.path()).unwrap();
    let member = region.member().unwrap();
    member.open_namespace(b"second", 1).unwrap();
    assert_eq!(member.map().word(segments).unwrap().load(Ordering::Relaxed), segment);
    drop((member, region));
    assert_clean(&path);
}

#[test]
fn a_populated_region_keeps_its_superblock_and_its_reserve() {
    let _without = WithoutFallocate::begin();
    let path = TestRegionPath::new("populated");
    let options = CreateOptions { populate: true, bytes_max: 64 << 20, ..CreateOptions::default() };
    drop(Region::create(path.path(), &options).unwrap());
    assert_clean(&path);
}

/// Flips a bit of the word of each chunk in use.
fn flip_chunk_words(member: &Member) {
    let map = member.map();
    for chunk in (0..chunks_used(map).unwrap()).map(ChunkIndex) {
        let word = map.word(chunk.word_at(map)).unwrap();
        assert_ne!(word.load(Ordering::Relaxed) & PAYLOAD, 0, "{chunk:?} is in use");
        word.fetch_xor(1, Ordering::Relaxed);
    }
}

#[test]
fn a_chunk_whose_word_has_a_flipped_bit_keeps_its_records() {
    let _without = WithoutFallocate::begin();
    let path = TestRegionPath::new("chunk-flip");
    let region = Region::create(path.path(), &CreateOptions::default()).unwrap();
    let member = region.member().unwrap();
    let table = member.namespace(b"ue", 1).unwrap();
    fill(&member, table);
    flip_chunk_words(&member);
    // Another session takes memory of the chunk.
    let other = region.member().unwrap();
    put_key(&other, table, b"another").unwrap();
    for key in keys() {
        assert!(has_key(&member, table, &key).unwrap(), "{key:?}");
    }
}

#[test]
fn a_chunk_whose_word_was_repaired_keeps_its_records() {
    let _without = WithoutFallocate::begin();
    let path = TestRegionPath::new("chunk-repair");
    let region = Region::create(path.path(), &CreateOptions::default()).unwrap();
    let member = region.member().unwrap();
    fill(&member, member.namespace(b"ue", 1).unwrap());
    drop(member);
    flip_chunk_words(&region.member().unwrap());
    drop(region);
    repair_with(path.path(), &AttachOptions::default(), &mut |_, _| Ok(())).unwrap();
    let region = Region::attach(path.path()).unwrap();
    let member = region.member().unwrap();
    let table = member.namespace(b"ue", 1).unwrap();
    put_key(&member, table, b"another").unwrap();
    for key in keys() {
        assert!(has_key(&member, table, &key).unwrap(), "{key:?}");
    }
}

#[test]
fn pages_ahead_of_writers_are_no_zeros_over_records() {
    let _without = WithoutFallocate::begin();
    let path = TestRegionPath::new("zeros-ahead");
    let region = Region::create(path.path(), &CreateOptions::default()).unwrap();
    let member = region.member().unwrap();
    let table = member.namespace(b"ahead", 1).unwrap();
    fill(&member, table);
    // A word with flipped bits says that each chunk is free, and has no pages.
    for chunk in (0..chunks_used(member.map()).unwrap()).map(ChunkIndex) {
        let word = member.map().word(chunk.word_at(member.map())).unwrap();
        word.fetch_and(!0x8000_0000_ffff, Ordering::Relaxed);
    }
    assert!(member.commit_ahead(8, u64::MAX).unwrap() > 0);
    assert!(keys().all(|key| has_key(&member, table, &key).unwrap()));
    keys().for_each(|key| remove_key(&member, table, &key).unwrap());
    fill(&member, table);
    drop((member, region));
    assert_clean(&path);
}
