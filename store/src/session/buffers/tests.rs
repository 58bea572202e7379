//! Buffers return to their session.

use super::composed_writes::{CHANGES_KEPT, PATCHES_KEPT};
use crate::txn::write_set::WriteSet;
use crate::{
    BlockChange, Condition, CreateOptions, Error, Kind, Region, RetryPolicy, Schema, Session,
    TagSchema,
};

/// More than new buffers have.
const BYTES: usize = 1 << 13;

/// How a transaction of a session ends.
type End<'e> = &'e dyn Fn(&Session);

#[test]
fn a_transaction_that_does_not_commit_leaves_its_buffers_to_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let region = Region::create(&folder.path().join("r"), &CreateOptions::default()).unwrap();
    let (session, other) = (region.session().unwrap(), region.session().unwrap());
    let tags = vec![TagSchema { name: "t".to_owned(), ..TagSchema::default() }];
    let ns = session.namespace("ue", &Schema { tags, ..Schema::default() }).unwrap();
    session.put(ns, b"k", b"1").unwrap();
    let conflict = RetryPolicy { tries: 1, ..RetryPolicy::default() };
    let ends: [(&str, End<'_>); 6] = [
        ("a refusal", &|session| {
            session.put_if(ns, b"k", b"2", Condition::Absent).unwrap();
        }),
        ("an abort", &|session| session.begin().unwrap().abort()),
        ("a drop", &|session| drop(session.begin().unwrap())),
        ("an error", &|session| {
            session.transact(|_| Err::<(), _>(Error::Forked)).unwrap_err();
        }),
        ("a conflict", &|session| {
            let write = session.transact_within(conflict, |txn| {
                txn.get(ns, b"k")?;
                other.put(ns, b"k", b"2")?;
                txn.get(ns, b"j").map(drop)
            });
            write.unwrap_err();
        }),
        ("two at once", &|session| drop((session.begin().unwrap(), session.begin().unwrap()))),
    ];
    for (name, end) in ends {
        session.transact(|txn| txn.put(ns, b"large", &[0; BYTES])).unwrap();
        end(&session);
        let set = WriteSet::new(&session).unwrap();
        assert!(set.buffers.bytes.capacity() >= BYTES, "others after {name}");
    }
}

#[test]
fn the_memory_of_few_small_patches_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let region = Region::create(&folder.path().join("r"), &CreateOptions::default()).unwrap();
    let session = region.session().unwrap();
    let schema = Schema { kind: Kind::Blocks, ..Schema::default() };
    let ns = session.namespace("ue", &schema).unwrap();
    let names: Vec<String> = (0..200).map(|number| format!("b{number}")).collect();
    let changes: Vec<BlockChange<'_>> =
        names.iter().map(|name| BlockChange { name, bytes: Some(b"1") }).collect();
    // (records, blocks of each, patches kept, whether their changes are)
    let cases = [
        (1, 2, 1, true),
        (3, 16, 3, true),
        (1, 2, 3, true),
        (200, 1, PATCHES_KEPT, true),
        (1, 200, PATCHES_KEPT, true),
        (100, 200, PATCHES_KEPT, false),
    ];
    for (records, blocks, patches, has_room) in cases {
        session
            .transact(|txn| {
                for name in &names[..records] {
                    txn.patch(ns, name.as_bytes(), &changes[..blocks])?;
                }
                Ok::<_, Error>(())
            })
            .unwrap();
        let set = WriteSet::new(&session).unwrap();
        let (kept, room) = set.buffers.composed.kept();
        assert_eq!((kept, room > 0), (patches, has_room), "{records} patches of {blocks} blocks");
        assert!(room <= PATCHES_KEPT * CHANGES_KEPT, "room for {room} changes");
    }
}
