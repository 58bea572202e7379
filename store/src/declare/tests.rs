//! What is between two stores to the region, where only a process that dies stops.

use super::*;
use crate::buffers::Labels;

/// Whoever entered a record by a number that another had given to a tag, and had died before it
/// told the writers, left an entry behind that no writer took away.
#[test]
fn nothing_is_entered_that_writers_do_not_know_of() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("region");
    let region = crate::Region::create(&path, &crate::CreateOptions::default()).unwrap();
    let (session, writer) = (region.session().unwrap(), region.session().unwrap());
    let ns = session.namespace("ues", &Schema::default()).unwrap();
    let wanted = [TagSchema { name: "id".to_owned(), is_unique: true, ..TagSchema::default() }];
    let put = |id: &[u8]| {
        let labels = Labels { tags: &[("id", id)], expires_ms: 0 };
        writer.transact(|txn| txn.put_labelled(ns, b"ue", b"v", labels)).unwrap();
    };
    put(b"old");
    // All that a process did that died then.
    session
        .transact(|txn| {
            let mut tags = TagSet::default();
            tags.generation = 1;
            tags.declare(&wanted)?;
            txn.set.borrow_mut().put_hidden(&schema_key(ns.index), &tags.encode())
        })
        .unwrap();
    // One that was half way with a tag of this number.
    session.transact(|txn| txn.enter(ns, b"ue", &[0])).unwrap();
    put(b"new");
    session.add_tags(ns, &wanted).unwrap();
    let found = |id: &[u8]| session.find(ns, "id", id).map(|found| found.is_some());
    assert_eq!((found(b"old"), found(b"new")), (Ok(false), Ok(true)));
    drop((session, writer, region));
    let report = crate::check(&path).unwrap();
    assert!(report.is_clean(), "{:?}", report.faults);
}

#[test]
fn a_number_that_comes_back_to_its_state_is_told_by_the_count_of_changes() {
    let tag = |name: &str| TagSchema { name: name.to_owned(), ..TagSchema::default() };
    let mut tags = TagSet::default();
    tags.declare(&[tag("ours")]).unwrap();
    let built = Built { ids: vec![0], generation: 0 };
    // Each change counts once, as `change_tags` counts it.
    tags.generation += 1;
    tags.declare(&[tag("another's")]).unwrap();
    assert!(built.are_still(&tags, TagState::Building));
    let mut gone = tags.clone();
    for states in [(TagState::Building, TagState::Leaving), (TagState::Leaving, TagState::Gone)] {
        gone.generation += 1;
        gone.move_on(states.0, states.1, &[0]);
        assert!(!built.are_still(&gone, TagState::Building));
    }
    let built = Built { generation: tags.generation, ..built };
    gone.generation += 1;
    gone.declare(&[tag("ours")]).unwrap();
    assert_eq!(gone.tag("ours").map(|tag| tag.id), Some(0));
    assert!(!built.are_still(&gone, TagState::Building), "it is another one");
}
