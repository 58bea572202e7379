//! Records that are found by a unique tag in order to change them.

use std::sync::atomic::{AtomicBool, Ordering};

use nearstate_store::{
    BlockChange, BlockLayout, Error, Kind, Metadata, Namespace, Outcome, Region, Schema, Session,
    TagSchema, limits, now_ms_coarse,
};

use crate::fixture::{SetOnDrop, TestRegion, without_forks};

fn open(region: &Region) -> (Session, Namespace) {
    let session = region.session().unwrap();
    let tag = |name: &str, is_unique| TagSchema {
        name: name.to_owned(),
        is_unique,
        ..TagSchema::default()
    };
    let tags = vec![tag("guti", true), tag("cell", false)];
    let ue = session.namespace("ue", &Schema { kind: Kind::Mixed, tags });
    let ue = ue.unwrap();
    (session, ue)
}

/// Gives a record of one block a value of the unique tag.
fn put(session: &Session, ue: Namespace, key: &[u8], guti: &[u8], expires_ms: u64) {
    let metadata = Metadata { tags: &[("guti", guti), ("cell", b"c")], expires_ms };
    let block = [BlockChange { name: "location", bytes: Some(b"tac 1") }];
    session
        .transact(|txn| {
            txn.patch(ue, key, &block)?;
            txn.set_metadata(ue, key, metadata)
        })
        .unwrap();
}

#[test]
fn a_found_record_is_changed_only_if_it_is_the_version_that_was_found() {
    let fixture = TestRegion::new();
    let (session, ue) = open(&fixture.region);
    let names = BlockLayout::new(&["location"]).unwrap();
    put(&session, ue, b"imsi-1", b"g1", 0);
    put(&session, ue, b"imsi-2", b"g2", 0);
    let find = || session.find_for_update(ue, "guti", b"g1").unwrap().unwrap();
    let (first, second) = (find(), find());
    let version = first.view().version();
    assert_eq!(
        (first.view().key(), second.view().block("location")),
        (&b"imsi-1"[..], Some(&b"tac 1"[..]))
    );
    let mut seen = Vec::new();
    first.blocks_of(&names, |_| true, |_, bytes| seen.extend_from_slice(bytes));
    assert_eq!(seen, b"tac 1");
    let done = Outcome::Done { version: version + 1 };
    assert_eq!(second.patch(&names, &[(0, b"tac 2")]).unwrap(), done);
    let current = Some(version + 1);
    for stale in [&first, &second] {
        let refused = stale.patch(&names, &[(0, b"lost")]).unwrap();
        assert_eq!(refused, Outcome::Refused { current });
    }
    drop((first, second));
    let found = find();
    assert_eq!(found.view().block("location"), Some(&b"tac 2"[..]));
    assert!(found.view().has_tag("guti", b"g1"), "a patch keeps the tags");
    // A put removes them.
    assert!(matches!(found.put(b"a value").unwrap(), Outcome::Done { .. }));
    drop(found);
    assert!(session.find_for_update(ue, "guti", b"g1").unwrap().is_none());
    let other = session.find_for_update(ue, "guti", b"g2").unwrap().unwrap();
    assert_eq!(other.view().key(), b"imsi-2");
    drop(other);
    drop(session);
    fixture.close_and_check();
}

#[test]
fn what_has_no_record_is_not_found_and_what_has_no_index_is_refused() {
    let fixture = TestRegion::new();
    let (session, ue) = open(&fixture.region);
    put(&session, ue, b"imsi-1", b"g1", 0);
    let long = vec![7; limits::TAG_VALUE_BYTES_MAX + 1];
    for value in [&b"g2"[..], b"", &long] {
        assert!(session.find_for_update(ue, "guti", value).unwrap().is_none());
    }
    for tag in ["cell", "ip"] {
        let refused = session.find_for_update(ue, tag, b"c").unwrap_err();
        assert!(matches!(refused, Error::BadArgument { .. }), "{tag}: {refused}");
    }
    let counters = Schema { kind: Kind::Counters, ..Schema::default() };
    let counters = session.namespace("counters", &counters).unwrap();
    let refused = session.find_for_update(counters, "guti", b"g1").unwrap_err();
    assert!(matches!(refused, Error::WrongKind { .. }), "{refused}");
    assert!(session.delete(ue, b"imsi-1").unwrap());
    assert!(session.find_for_update(ue, "guti", b"g1").unwrap().is_none());
    // Its entry of the index is there until it is collected.
    let ends_ms = now_ms_coarse() + 50;
    put(&session, ue, b"imsi-3", b"g3", ends_ms);
    while now_ms_coarse() <= ends_ms {
        std::thread::yield_now();
    }
    assert!(session.find_for_update(ue, "guti", b"g3").unwrap().is_none());
    drop(session);
    fixture.close_and_check();
}

/// The value moves between the search for its posting and the read of the record.
#[test]
fn a_value_that_moves_is_found_at_the_record_that_has_it() {
    const FINDS: u32 = 3000;
    let _guard = without_forks();
    let fixture = TestRegion::new();
    let (session, ue) = open(&fixture.region);
    let metadata = Metadata { tags: &[("guti", b"g")], expires_ms: 0 };
    session.transact(|txn| txn.put_with_metadata(ue, b"one", b"v", metadata)).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mover = scope.spawn(|| {
            let (session, ue) = open(&fixture.region);
            let mut moves = 0_u64;
            while !is_over.load(Ordering::Acquire) {
                let [from, to] =
                    if moves.is_multiple_of(2) { [b"one", b"two"] } else { [b"two", b"one"] };
                session
                    .transact(|txn| {
                        txn.delete(ue, from)?;
                        txn.put_with_metadata(ue, to, b"v", metadata)
                    })
                    .unwrap();
                moves += 1;
            }
            moves
        });
        let over = SetOnDrop(&is_over);
        let mut holders = [0; 2];
        for _ in 0..FINDS {
            match session.find_for_update(ue, "guti", b"g") {
                Ok(Some(found)) => {
                    assert!(found.view().has_tag("guti", b"g"));
                    holders[usize::from(found.view().key() == b"two")] += 1;
                }
                Ok(None) => panic!("a record has the value at each moment"),
                Err(Error::Conflict { .. }) => {}
                Err(error) => panic!("{error}"),
            }
            std::thread::yield_now();
        }
        drop(over);
        assert!(mover.join().unwrap() > 0, "it has moved");
        assert!(holders.iter().sum::<u32>() > 0, "{holders:?}");
    });
    drop(session);
    fixture.close_and_check();
}
