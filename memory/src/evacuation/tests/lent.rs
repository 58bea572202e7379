//! What the reserve lends comes back.

use std::path::Path;

use super::{place_of, put_plain};
use crate::atomic::Ordering;
use crate::check::check;
use crate::fixture::TestRegionPath;
use crate::heap::cell;
use crate::heap::chunk::{ChunkIndex, lent};
use crate::layout::ordinary_chunks;
use crate::member::Member;
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

#[test]
fn a_stopped_reader_is_waited_for_once_and_ended_readers_let_the_operation_run_again() {
    let path = TestRegionPath::new("waits");
    let (region, member) = with_lent_records(path.path(), 200);
    let reader = region.member().unwrap();
    let (mut view, mut waits) = (Some(reader.pin().unwrap()), 0);
    let may_run = member.waits_for_lent(&mut waits).unwrap();
    assert_eq!((may_run, waits), (member.has_returned_lent(), 1), "a reader is left");
    let known = || member.refusals.lent.waited_for.borrow().len();
    assert_eq!(known(), 1, "the reader is remembered");
    drop(view.take());
    waits = 0;
    assert!(member.waits_for_lent(&mut waits).unwrap(), "no reader is left");
    assert_eq!((waits, known(), lent(member.map()).unwrap()), (1, 0, 0));
    // Never more often than this for one operation.
    waits = super::super::lent::WAITS_MAX;
    assert!(!member.waits_for_lent(&mut waits).unwrap());
}

#[test]
fn an_operation_that_makes_the_content_larger_does_not_wait() {
    let path = TestRegionPath::new("growth");
    let (region, member) = with_lent_records(path.path(), 1);
    let reader = region.member().unwrap();
    let _view = reader.pin().unwrap();
    let table = member.namespace(b"blocks", 2).unwrap();
    let refused = member.with_reserve(|| put_plain(&member, table, 0, 2000));
    assert!(matches!(refused, Err(nearstate_model::Error::Full { .. })), "{refused:?}");
    let known = &member.refusals.lent;
    assert!(known.is_growth.get() && known.waited_for.borrow().is_empty());
    assert!(!member.waits_for_lent_if_due(&mut 0).unwrap(), "nothing is due");
}
