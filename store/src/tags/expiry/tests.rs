//! What one session does with the order of expiry.

use nearstate_memory::layout::namespace_flags;

use std::ops::Bound;

use super::DueNamespace;
use crate::index::internal::{EXPIRY_TREES, ExpiryPass, FullPass};
use crate::index::ordered::Cursor;
use crate::txn::write_set::WriteSet;
use crate::{CreateOptions, Metadata, Region, Schema, now_ms_coarse};

/// More than new buffers have.
const BYTES: usize = 1 << 13;

/// A session's buffers are those of the transaction before, whatever became of that.
#[test]
fn the_collection_of_a_record_gives_the_buffers_back() {
    let folder = tempfile::tempdir().unwrap();
    let region = Region::create(&folder.path().join("r"), &CreateOptions::default()).unwrap();
    let session = region.session().unwrap();
    let ns = session.namespace("ue", &Schema::default()).unwrap();
    let metadata = Metadata { expires_ms: 1, ..Metadata::default() };
    session.transact(|txn| txn.put_with_metadata(ns, b"past", b"1", metadata)).unwrap();
    let mut set = WriteSet::new(&session).unwrap();
    set.buffers.bytes.reserve(BYTES);
    drop(set);
    assert_eq!(session.collect_expired(10).unwrap().records, 1);
    let set = WriteSet::new(&session).unwrap();
    assert!(set.buffers.bytes.capacity() >= BYTES, "it has others now");
}

/// The log is the owner's: a copy removes and moves entries without it.
#[test]
fn a_full_log_holds_up_no_entry_of_a_copy() {
    let folder = tempfile::tempdir().unwrap();
    let region = Region::create(&folder.path().join("r"), &CreateOptions::default()).unwrap();
    let session = region.session().unwrap();
    let ns = session.namespace("ue", &Schema::default()).unwrap();
    session.stream(ns, crate::WhenFull::Refuse).unwrap();
    let pass = ExpiryPass { behind: vec![ns.index], ..ExpiryPass::default() };
    assert_eq!(session.due_namespace(ns.index, &pass), DueNamespace::Refused);
    let is_copy = |flags| flags | namespace_flags::FOLLOWED;
    session.member.update_namespace_flags(ns.index, is_copy).unwrap();
    assert_eq!(session.due_namespace(ns.index, &pass), DueNamespace::Followed);
    // Memory is that of the region.
    let full = FullPass { namespaces: vec![ns.index], ..FullPass::default() };
    let pass = ExpiryPass { full, ..ExpiryPass::default() };
    assert_eq!(session.due_namespace(ns.index, &pass), DueNamespace::Refused);
}

#[test]
fn the_order_of_expiry_is_read_once_in_a_tick_of_the_clock_for_refused_writes() {
    let folder = tempfile::tempdir().unwrap();
    let region = Region::create(&folder.path().join("r"), &CreateOptions::default()).unwrap();
    let session = region.session().unwrap();
    let ns = session.namespace("ue", &Schema::default()).unwrap();
    let put = |key: &[u8], expires_ms| {
        let metadata = Metadata { expires_ms, ..Metadata::default() };
        session.transact(|txn| txn.put_with_metadata(ns, key, b"1", metadata)).unwrap();
    };
    put(b"later", 1 << 45);
    assert!(!session.collect_for_room(&mut 0), "nothing has expired");
    assert_ne!(session.internal.none_due_ms.get(), 0, "the session remembers when");
    put(b"past", 1);
    loop {
        let now = now_ms_coarse();
        session.internal.none_due_ms.set(now);
        let may_have_room = session.collect_for_room(&mut 0);
        if now_ms_coarse() == now {
            assert!(!may_have_room, "it looks again in the same tick");
            break;
        }
        // The clock has ticked before the look, which may have found the record.
        put(b"past", 1);
    }
    while now_ms_coarse() == session.internal.none_due_ms.get() {
        std::thread::yield_now();
    }
    assert!(session.collect_for_room(&mut 0), "it looks after the tick");
    assert!(!session.collect_for_room(&mut 0), "the record was deleted");
}

/// The entries of all trees.
fn entries(session: &crate::Session) -> usize {
    let mut cursor = Cursor::default();
    let all = (Bound::Unbounded, Bound::Unbounded);
    let in_tree = |tree| session.entries_in((tree, &mut cursor), all, 100_000).unwrap().len();
    (0..EXPIRY_TREES).map(in_tree).sum()
}

#[test]
fn a_record_that_expires_no_longer_leaves_no_entry() {
    let folder = tempfile::tempdir().unwrap();
    let region = Region::create(&folder.path().join("r"), &CreateOptions::default()).unwrap();
    let (session, other) = (region.session().unwrap(), region.session().unwrap());
    let ns = session.namespace("ue", &Schema::default()).unwrap();
    let put = |session: &crate::Session, key: &[u8], expires_ms| {
        let metadata = Metadata { expires_ms, ..Metadata::default() };
        session.transact(|txn| txn.put_with_metadata(ns, key, b"1", metadata)).unwrap();
    };
    for round in 0..100 {
        put(&session, b"cleared", (1 << 45) + round);
        put(&session, b"cleared", 0);
        put(&session, b"postponed", (1 << 45) + round);
    }
    assert_eq!(entries(&session), 1, "the record that was postponed has one");
    // Deletions that are no transactions. The writer sweeps.
    for round in 0..2000 {
        put(&session, b"deleted", (1 << 45) + round);
        session.delete(ns, b"deleted").unwrap();
    }
    let left = entries(&session);
    assert!(left < 200, "{left} entries of 2,000");
    while session.sweep_entries(64) != 0 {}
    assert_eq!(entries(&session), 1);
    // Entries in the tree of another session.
    for round in 0..200 {
        put(&other, b"elsewhere", (1 << 45) + round);
        put(&session, b"elsewhere", 0);
    }
    while session.sweep_entries(64) != 0 {}
    assert_eq!(entries(&session), 1);
    assert!(session.delete(ns, b"postponed").unwrap());
    assert_eq!((session.sweep_entries(1000), entries(&session)), (1, 0));
}

#[test]
fn expired_records_of_a_namespace_at_its_limit_are_collected() {
    let folder = tempfile::tempdir().unwrap();
    let region = Region::create(&folder.path().join("r"), &CreateOptions::default()).unwrap();
    let session = region.session().unwrap();
    let ns = session.namespace("ue", &Schema::default()).unwrap();
    let limits = crate::NamespaceLimits { hard_bytes: 64 << 10, ..Default::default() };
    session.set_limits(ns, limits).unwrap();
    let put = |number: u32, expires_ms| {
        let metadata = Metadata { expires_ms, ..Metadata::default() };
        let key = number.to_be_bytes();
        session.transact(|txn| txn.put_with_metadata(ns, &key, &[1; 1000], metadata))
    };
    let soon = now_ms_coarse() + 200;
    let refused = (0..1000).find_map(|number| put(number, soon).err());
    assert!(matches!(refused, Some(crate::Error::LimitReached { .. })), "{refused:?}");
    while now_ms_coarse() <= soon {
        std::thread::yield_now();
    }
    for number in 1000..1020_u32 {
        session.put(ns, &number.to_be_bytes(), &[2; 1000]).unwrap();
    }
}

/// The records of another namespace that expired before are not in the way.
#[test]
fn a_namespace_at_its_limit_takes_a_write_although_others_have_more_expired_records() {
    let folder = tempfile::tempdir().unwrap();
    let region = Region::create(&folder.path().join("r"), &CreateOptions::default()).unwrap();
    let session = region.session().unwrap();
    let open = |name| session.namespace(name, &Schema::default()).unwrap();
    let (own, other) = (open("own"), open("other"));
    let limits = crate::NamespaceLimits { hard_bytes: 64 << 10, ..Default::default() };
    session.set_limits(own, limits).unwrap();
    let soon = now_ms_coarse() + 2000;
    let put = |ns, number: u32, expires_ms| {
        let metadata = Metadata { expires_ms, ..Metadata::default() };
        let key = number.to_be_bytes();
        session.transact(|txn| txn.put_with_metadata(ns, &key, &[1; 1000], metadata))
    };
    for number in 0..3000 {
        put(other, number, soon).unwrap();
    }
    let refused = (0..1000).find_map(|number| put(own, number, soon + 1).err());
    assert!(matches!(refused, Some(crate::Error::LimitReached { .. })), "{refused:?}");
    assert!(now_ms_coarse() <= soon, "records expired before the namespace was full");
    while now_ms_coarse() <= soon + 1 {
        std::thread::yield_now();
    }
    for number in 1000..1050_u32 {
        session.put(own, &number.to_be_bytes(), &[2; 1000]).unwrap();
    }
    assert!(entries(&session) > 2500, "the records of the other namespace are left");
}

/// A write that is refused sets the guard of the next look, unless its record has expired already.
#[test]
fn refused_writes_of_records_that_expire_later_look_once_in_a_tick() {
    let folder = tempfile::tempdir().unwrap();
    let region = Region::create(&folder.path().join("r"), &CreateOptions::default()).unwrap();
    let session = region.session().unwrap();
    let ns = session.namespace("ue", &Schema::default()).unwrap();
    let put = |expires_ms| {
        let metadata = Metadata { expires_ms, ..Metadata::default() };
        session.transact(|txn| txn.put_with_metadata(ns, b"k", b"1", metadata)).unwrap();
    };
    put(1 << 45);
    session.internal.none_due_ms.set(7);
    put((1 << 45) - 1);
    assert_eq!(session.internal.none_due_ms.get(), 7, "nothing is due");
    put(1);
    assert_eq!(session.internal.none_due_ms.get(), 0, "a record is due");
}

/// A transaction of as many records as are allowed has no room for the tree's leaves.
#[test]
fn a_transaction_deletes_as_many_expiring_records_as_it_may_have() {
    let folder = tempfile::tempdir().unwrap();
    let region = Region::create(&folder.path().join("r"), &CreateOptions::default()).unwrap();
    let session = region.session().unwrap();
    let ns = session.namespace("ue", &Schema::default()).unwrap();
    let count = crate::limits::TRANSACTION_RECORDS_MAX as u64;
    for number in 0..count {
        let metadata = Metadata { expires_ms: (1 << 45) + number, ..Metadata::default() };
        let key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        session.transact(|txn| txn.put_with_metadata(ns, &key, b"1", metadata)).unwrap();
    }
    let delete = |txn: &crate::Txn<'_>| {
        (0..count).try_for_each(|number| {
            let key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
            txn.delete(ns, &key).map(drop)
        })
    };
    session.transact(delete).unwrap();
    while session.sweep_entries(1000) != 0 {}
    assert_eq!((session.count(ns).unwrap(), entries(&session)), (0, 0));
}
