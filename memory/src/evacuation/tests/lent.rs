//! What the reserve lends comes back.

use std::path::Path;

use super::super::waiting::RUNS_AFTER_WAITS_MAX;
use super::{place_of, put_plain};
use crate::atomic::Ordering;
use crate::check::check;
use crate::fixture::TestRegionPath;
use crate::heap::cell;
use crate::heap::chunk::{ChunkIndex, lent};
use crate::layout::ordinary_chunks;
use crate::member::Member;
use crate::member::pin::birth_epoch;
use crate::member::refusals::ReaderWaits;
use crate::region::file::{CreateOptions, Region};

/// A region that is full, of which the reserve has lent memory to these records: this member had a
/// pin while it replaced them.
fn with_lent_records(path: &Path, replaced: u32) -> (Region, Member) {
    let options = CreateOptions { bytes_max: 64 << 20, ..CreateOptions::default() };
    let region = Region::create(path, &options).unwrap();
    let member = region.member().unwrap();
    let table = member.namespace(b"blocks", 2).unwrap();
    let put = |number| member.with_reserve(|| put_plain(&member, table, number, 1000));
    let count = (0..1_000_000).take_while(|number| put(*number).is_ok()).count();
    assert!(count > replaced as usize);
    let pin = member.pin().unwrap();
    for number in 0..replaced {
        put(number).unwrap();
    }
    drop(pin);
    (region, member)
}

#[test]
fn a_record_of_no_class_stays_in_the_reserve_and_the_others_leave_it() {
    let path = TestRegionPath::new("no-class");
    let (region, member) = with_lent_records(path.path(), 200);
    let table = member.namespace(b"blocks", 2).unwrap();
    let (before, ordinary) = (lent(member.map()).unwrap(), ordinary_chunks(member.map().chunks()));
    assert!(before > 1000, "{before} units are lent");
    let is_lent = |at: &u64| ChunkIndex::of(member.map(), *at).unwrap().0 >= ordinary;
    let damaged = (0..200).map(|number| place_of(&member, table, number, 1000)).find(is_lent);
    let head = cell::word(member.map(), damaged.unwrap(), cell::WORD_HEAD).unwrap();
    head.fetch_xor(0x80, Ordering::Relaxed);
    member.return_lent().unwrap();
    head.fetch_xor(0x80, Ordering::Relaxed);
    let after = lent(member.map()).unwrap();
    assert!((1..64).contains(&after), "{after} of {before} units are lent");
    drop((member, region));
    let report = check(path.path(), &mut |_, _| Ok(())).unwrap();
    assert!(report.is_clean(), "{report:#?}");
}

#[test]
fn what_waited_for_the_end_of_a_pin_is_returned_after_it() {
    let path = TestRegionPath::new("due");
    let (_region, member) = with_lent_records(path.path(), 200);
    let pin = member.pin().unwrap();
    let before = lent(member.map()).unwrap();
    member.return_lent_if_due();
    assert_eq!(lent(member.map()).unwrap(), before);
    drop(pin);
    member.return_lent_if_due();
    assert_eq!(lent(member.map()).unwrap(), 0);
    assert!(member.has_returned_lent());
}

/// A reader that holds all that records in the reserve have replaced.
fn with_reader(region: &Region, member: &Member) -> (Member, impl Fn() -> usize) {
    let table = member.namespace(b"blocks", 2).unwrap();
    let reader = region.member().unwrap();
    std::mem::forget(reader.pin().unwrap());
    for number in 0..100 {
        member.with_reserve(|| put_plain(member, table, number, 1000)).unwrap();
    }
    (reader, || member.refusals.lent.waited_for.borrow().len())
}

#[test]
fn a_reader_that_does_not_end_is_waited_for_once() {
    let path = TestRegionPath::new("waits");
    let (region, member) = with_lent_records(path.path(), 1);
    let (reader, known) = with_reader(&region, &member);
    let mut waits = ReaderWaits::default();
    assert!(!member.wait_and_return(&mut waits).unwrap(), "nothing has come free");
    assert_eq!(known(), 1, "the reader is remembered");
    let (before, epoch) = (lent(member.map()).unwrap(), birth_epoch(member.epoch()));
    assert!(before > 1000, "{before} units are lent");
    assert!(!member.wait_and_return(&mut ReaderWaits::default()).unwrap());
    assert!(birth_epoch(member.epoch()) <= epoch + 8, "it has waited again, for many epochs");
    drop(reader);
    assert!(member.wait_and_return(&mut ReaderWaits::default()).unwrap(), "no reader is left");
    assert_eq!((known(), lent(member.map()).unwrap()), (0, 0));
    assert!(!member.wait_and_return(&mut ReaderWaits::default()).unwrap(), "nothing is lent");
}

#[test]
fn an_operation_runs_again_a_limited_number_of_times() {
    let path = TestRegionPath::new("runs");
    let (region, member) = with_lent_records(path.path(), 1);
    let (reader, _) = with_reader(&region, &member);
    let mut waits = ReaderWaits { runs: RUNS_AFTER_WAITS_MAX, ..ReaderWaits::default() };
    assert!(!member.wait_and_return(&mut waits).unwrap());
    drop(reader);
    assert!(!member.wait_and_return(&mut waits).unwrap(), "it has run often enough");
    assert!(member.wait_and_return(&mut ReaderWaits::default()).unwrap());
}

#[test]
fn an_operation_that_makes_the_content_larger_does_not_wait() {
    let path = TestRegionPath::new("growth");
    let (region, member) = with_lent_records(path.path(), 1);
    let (_reader, known) = with_reader(&region, &member);
    let table = member.namespace(b"blocks", 2).unwrap();
    let refused = member.with_reserve(|| put_plain(&member, table, 0, 2000));
    assert!(matches!(refused, Err(nearstate_model::Error::Full { .. })), "{refused:?}");
    assert_eq!(known(), 0, "it has waited");
    assert!(!member.wait_and_return_if_due(&mut ReaderWaits::default()).unwrap());
}

#[test]
fn an_operation_with_a_pin_waits_after_it() {
    let path = TestRegionPath::new("wait-due");
    let (region, member) = with_lent_records(path.path(), 1);
    let (reader, known) = with_reader(&region, &member);
    let table = member.namespace(b"blocks", 2).unwrap();
    let pin = member.pin().unwrap();
    let numbers = 100..10_000;
    let refused = numbers
        .map(|number| member.with_reserve(|| put_plain(&member, table, number, 1000)))
        .find_map(Result::err);
    assert!(matches!(refused, Some(nearstate_model::Error::Full { .. })), "{refused:?}");
    assert_eq!(known(), 0, "it has waited with a pin");
    drop(pin);
    drop(reader);
    assert!(member.wait_and_return_if_due(&mut ReaderWaits::default()).unwrap());
    assert!(!member.wait_and_return_if_due(&mut ReaderWaits::default()).unwrap(), "once");
}
