//! A refusal is known until memory can have come free, and not longer.

use std::path::Path;

use nearstate_model::{Error, Result};

use super::*;
use crate::check::check;
use crate::fixture::TestRegionPath;
use crate::heap::cell::{CellHeader, CellKind};
use crate::heap::chunk::{WORDS_READ, chunks_used};
use crate::index::lookup::hash;
use crate::member::arena::Bump;
use crate::region::file::{CreateOptions, Region};
use crate::txn::fill::PendingCell;
use crate::txn::publish::WriteDecision;

/// Bytes of a record that fills the region, and of a larger one.
const USUAL: usize = 1000;
const LARGE: usize = 3000;

/// Words of chunks that a refusal without a search reads at most: each of the reserve some times.
const KNOWN_WORDS_MAX: u64 = 40;

fn key(number: u64) -> [u8; 8] {
    number.to_le_bytes()
}

/// Puts a record, as a session does.
fn put(member: &Member, number: u64, bytes: usize) -> Result<()> {
    let table = member.namespace(b"full", 2)?;
    let key = key(number);
    let hash = hash(member.seed(), &key);
    let body = [&key[..], &vec![7; bytes]].concat();
    let head = CellHeader {
        kind: CellKind::Record,
        flags: 0,
        namespace: table.index(),
        body: u32::try_from(body.len()).unwrap(),
        key: 8,
        children: 0,
        hash,
    };
    member.with_reserve(|| {
        let at = member.allocate_cell(&head)?;
        member.write_body(at, 0, &body)?;
        let draft = PendingCell { at, body_crc: crc32fast::hash(&body) };
        member
            .write_record(table, hash, &key, Some(draft), |_| Ok(WriteDecision::Publish))
            .map(drop)
    })
}

fn delete(member: &Member, number: u64) {
    let table = member.namespace(b"full", 2).unwrap();
    let key = key(number);
    let hash = hash(member.seed(), &key);
    let remove = || member.write_record(table, hash, &key, None, |_| Ok(WriteDecision::Remove));
    member.with_reserve(remove).unwrap();
}

fn is_refused(member: &Member, bytes: usize) -> bool {
    match put(member, u64::MAX, bytes) {
        Ok(()) => false,
        Err(Error::Full { heap: Some(_), .. }) => true,
        Err(error) => panic!("{error}"),
    }
}

/// A region that is full of records, and their number. Dropping the member frees what it keeps.
fn full(path: &Path, bytes_max: u64) -> (Region, u64) {
    let region =
        Region::create(path, &CreateOptions { bytes_max, ..CreateOptions::default() }).unwrap();
    let member = region.member().unwrap();
    let mut number = 0;
    while put(&member, number, USUAL).is_ok() {
        number += 1;
    }
    // What is left is too short for the records of the tests.
    while put(&member, 1 << 32 | number, 100).is_ok() {
        number += 1;
    }
    drop(member);
    (region, number)
}

/// Refuses until a refusal needs no search.
fn make_known(member: &Member, bytes: usize) {
    for _ in 0..20 {
        assert!(is_refused(member, bytes));
        if words_of_refusal(member, bytes) <= KNOWN_WORDS_MAX {
            return;
        }
    }
    panic!("each refusal searches");
}

/// The words of chunks that a refusal reads.
fn words_of_refusal(member: &Member, bytes: usize) -> u64 {
    let before = WORDS_READ.get();
    assert!(is_refused(member, bytes));
    WORDS_READ.get() - before
}

/// As [`words_of_refusal`], of most of some refusals: now and then one reads the usage anew.
fn usual_words(member: &Member) -> u64 {
    let mut words: Vec<u64> = (0..99).map(|_| words_of_refusal(member, USUAL)).collect();
    words.sort_unstable();
    words[49]
}

#[test]
fn a_refusal_in_a_region_that_stays_full_does_not_read_the_words_of_all_chunks() {
    let words = [64 << 20, 260 << 20].map(|bytes_max| {
        let path = TestRegionPath::new("known-full");
        let (region, _) = full(path.path(), bytes_max);
        let member = region.member().unwrap();
        assert!(chunks_used(member.map()).unwrap() > 240);
        make_known(&member, USUAL);
        usual_words(&member)
    });
    assert!(words.iter().all(|words| *words <= KNOWN_WORDS_MAX), "{words:?}");
}

#[test]
fn two_members_that_are_refused_in_turn_do_not_make_each_other_search() {
    let path = TestRegionPath::new("known-twice");
    let (region, _) = full(path.path(), 64 << 20);
    let members = [region.member().unwrap(), region.member().unwrap()];
    for _ in 0..5 {
        for member in &members {
            assert!(is_refused(member, USUAL));
        }
    }
    for _ in 0..20 {
        let words: Vec<u64> = members.iter().map(|m| words_of_refusal(m, USUAL)).collect();
        // Its text may be read anew.
        assert!(words.iter().any(|words| *words <= KNOWN_WORDS_MAX), "{words:?}");
    }
    assert!(members.iter().all(|member| usual_words(member) <= KNOWN_WORDS_MAX));
}

/// Runs a test with a member whose refusals are known, and another one.
fn with_known(name: &str, test: impl FnOnce(&Member, &Member)) {
    let path = TestRegionPath::new(name);
    let (region, _) = full(path.path(), 64 << 20);
    let (member, other) = (region.member().unwrap(), region.member().unwrap());
    make_known(&member, USUAL);
    test(&member, &other);
    drop((member, other, region));
    let report = check(path.path(), &mut |_, _| Ok(())).unwrap();
    assert!(report.is_clean(), "{report:#?}");
}

#[test]
fn memory_that_another_member_frees_is_found_at_once() {
    with_known("known-freed", |member, other| {
        for number in [7, 70, 700] {
            delete(other, number);
            assert!(!is_refused(member, USUAL), "record {number} was deleted");
            delete(member, u64::MAX);
            put(member, number, USUAL).unwrap();
            make_known(member, USUAL);
        }
        delete(member, 8);
        assert!(!is_refused(member, USUAL), "it has deleted one itself");
    });
}

/// Several records make room for a larger one: together, or because what is between is moved.
#[test]
fn memory_that_comes_free_in_parts_is_found() {
    with_known("known-parts", |member, other| {
        make_known(member, LARGE);
        for number in 2000..2010 {
            delete(other, number);
        }
        assert!(!is_refused(member, LARGE));
    });
}

#[test]
fn memory_that_a_reader_held_is_found_when_its_view_has_ended() {
    let path = TestRegionPath::new("known-held");
    let (region, _) = full(path.path(), 64 << 20);
    let (member, other) = (region.member().unwrap(), region.member().unwrap());
    let reader = region.member().unwrap();
    let pin = reader.pin().unwrap();
    delete(&other, 7);
    make_known(&member, USUAL);
    assert!(usual_words(&member) <= KNOWN_WORDS_MAX, "the reader does not move");
    drop(pin);
    assert!(!is_refused(&member, USUAL));
}

#[test]
fn memory_of_a_member_that_was_in_an_operation_is_found_when_it_has_ended() {
    with_known("known-active", |member, other| {
        delete(member, 7);
        assert!(other.begin_operation());
        // A bump range of its own, of all that is free.
        other.allocate(USUAL as u64).unwrap();
        make_known(member, USUAL);
        assert!(usual_words(member) <= KNOWN_WORDS_MAX, "it goes on with its operation");
        other.arena().roll_back().unwrap();
        other.end_operation();
        assert!(!is_refused(member, USUAL));
    });
}

#[test]
fn memory_of_a_process_that_dies_in_an_operation_is_found() {
    let path = TestRegionPath::new("known-dead");
    let (region, _) = full(path.path(), 64 << 20);
    let (member, other) = (region.member().unwrap(), region.member().unwrap());
    delete(&member, 7);
    assert!(other.begin_operation());
    other.allocate(USUAL as u64).unwrap();
    make_known(&member, USUAL);
    let word = member_table::state_of(member.map(), other.index()).unwrap();
    let seen = word.load(Ordering::Relaxed);
    member_table::clear_copy(member.map(), other.index()).unwrap();
    word.store(
        state::make(state::ALIVE, state::NO_PROCESS, state::incarnation(seen)),
        Ordering::Release,
    );
    // Its process would have ended with it.
    std::mem::forget(other);
    assert!(!is_refused(&member, USUAL));
}

/// A transaction has a pin, so that it cannot move records. Its refusals are known as such.
#[test]
fn a_refusal_of_a_transaction_is_known_to_transactions_only() {
    with_known("known-pinned", |member, other| {
        delete(other, 7);
        put(member, 7, USUAL).unwrap();
        let mut words = u64::MAX;
        for _ in 0..20 {
            let pin = member.pin().unwrap();
            words = words.min(words_of_refusal(member, USUAL));
            drop(pin);
            member.evacuate_if_due().unwrap();
        }
        assert!(words <= KNOWN_WORDS_MAX, "{words} words");
        assert!(words_of_refusal(member, USUAL) > KNOWN_WORDS_MAX, "it may move records");
        delete(other, 8);
        // The pin of the first one can hold what was deleted just before.
        let has_room = (0..2).any(|_| {
            let _pin = member.pin().unwrap();
            !is_refused(member, USUAL)
        });
        assert!(has_room);
    });
}

/// Free units are no room while the reserve has lent as many.
#[test]
fn a_search_is_due_when_the_reserve_has_got_back_what_it_had_lent() {
    with_known("known-lent", |member, _| {
        assert!(words_of_refusal(member, USUAL) <= KNOWN_WORDS_MAX);
        // As if another member had borrowed a cell during the search.
        member.refusals.known.borrow_mut().lent += 17;
        assert!(words_of_refusal(member, USUAL) > KNOWN_WORDS_MAX);
        make_known(member, USUAL);
    });
}

#[test]
fn a_smaller_record_is_searched_for() {
    with_known("known-smaller", |member, other| {
        make_known(member, LARGE);
        delete(other, 7);
        assert!(!is_refused(member, 500));
        delete(member, u64::MAX);
        other.operation(|| other.empty_bump(Bump::Small)).unwrap();
        assert!(!is_refused(member, USUAL));
    });
}

/// A flipped bit that ends the watch without a count.
#[test]
fn a_watched_word_with_a_flipped_bit_is_searched_after() {
    with_known("known-flipped", |member, _| {
        let word = member.map().word(SUPER_WATCHED).unwrap();
        let sound = word.load(Ordering::Relaxed);
        for bit in 16..64 {
            make_known(member, USUAL);
            let sound = if bit == 16 { sound } else { word.load(Ordering::Relaxed) };
            word.store(sound ^ 1 << bit, Ordering::Relaxed);
            let is_longer = watched::is_watched_for(word.load(Ordering::Relaxed), 17);
            let words = words_of_refusal(member, USUAL);
            assert!(is_longer || words > KNOWN_WORDS_MAX, "bit {bit}: {words} words");
        }
    });
}
