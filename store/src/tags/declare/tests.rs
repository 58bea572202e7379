//! What is between two stores to the region, where only a process that dies stops, and what only a
//! moment between two looks lets happen.

use std::cell::Cell;

use super::indexing::IndexRequest;
use super::*;
use crate::session::buffers::Metadata;

/// A process assigned a number to a tag and died before the writers knew it. A second process
/// entered a record under that number, and no writer removed the entry later.
#[test]
fn nothing_is_entered_that_writers_do_not_know_of() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("region");
    let region = crate::Region::create(&path, &crate::CreateOptions::default()).unwrap();
    let (session, writer) = (region.session().unwrap(), region.session().unwrap());
    let ns = session.namespace("ues", &Schema::default()).unwrap();
    let wanted = [TagSchema { name: "id".to_owned(), is_unique: true, ..TagSchema::default() }];
    let put = |id: &[u8]| {
        let metadata = Metadata { tags: &[("id", id)], expires_ms: 0 };
        writer.transact(|txn| txn.put_with_metadata(ns, b"ue", b"v", metadata)).unwrap();
    };
    put(b"old");
    // All that a process did that died then.
    session
        .transact(|txn| {
            let mut tags = TagSet::default();
            tags.generation = 1;
            tags.declare(&wanted)?;
            txn.set.borrow_mut().put_internal(&schema_key(ns.index), &tags.encode())
        })
        .unwrap();
    // One that was half way with a tag of this number.
    let contradiction = Cell::new(None);
    let wanted_now = IndexRequest { ids: &[0], only: None, contradiction: &contradiction };
    session.transact(|txn| txn.index_record(ns, b"ue", &wanted_now)).unwrap();
    put(b"new");
    session.add_tags(ns, &wanted).unwrap();
    let found = |id: &[u8]| session.find(ns, "id", id).map(|found| found.is_some());
    assert_eq!((found(b"old"), found(b"new")), (Ok(false), Ok(true)));
    drop((session, writer, region));
    let report = crate::check(&path).unwrap();
    assert!(report.is_clean(), "{:?}", report.faults);
}

/// A session reads tags whose writer has not raised the flags yet. Before the session raises them,
/// others store newer tags and raise the flags further: what the session has read is not current.
#[test]
fn tags_that_were_read_before_newer_ones_were_stored_are_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("region");
    let region = crate::Region::create(&path, &crate::CreateOptions::default()).unwrap();
    let (session, other) = (region.session().unwrap(), region.session().unwrap());
    let ns = session.namespace("ues", &Schema::default()).unwrap();
    let tag = |name: &str| TagSchema { name: name.to_owned(), ..TagSchema::default() };
    session.add_tags(ns, &[tag("one")]).unwrap();
    let read = session.tag_set(ns.index).unwrap();
    other.add_tags(ns, &[tag("two")]).unwrap();
    session.remember_tags(ns.index, read.generation - 1, &read).unwrap();
    assert_eq!(session.tags(ns).unwrap(), other.tags(ns).unwrap());
}

#[test]
fn a_tag_that_returns_to_its_state_is_detected_by_the_count_of_changes() {
    let tag = |name: &str| TagSchema { name: name.to_owned(), ..TagSchema::default() };
    let mut tags = TagSet::default();
    tags.declare(&[tag("ours")]).unwrap();
    let tracked = TrackedTags { ids: vec![0], generation: 0 };
    // Each change counts once, as `change_tags` counts it.
    tags.generation += 1;
    tags.declare(&[tag("another's")]).unwrap();
    assert!(tracked.are_unchanged(&tags, TagState::Building));
    let mut gone = tags.clone();
    for states in [(TagState::Building, TagState::Leaving), (TagState::Leaving, TagState::Gone)] {
        gone.generation += 1;
        gone.move_on(states.0, states.1, &[0]);
        assert!(!tracked.are_unchanged(&gone, TagState::Building));
    }
    let tracked = TrackedTags { generation: tags.generation, ..tracked };
    gone.generation += 1;
    gone.declare(&[tag("ours")]).unwrap();
    assert_eq!(gone.tag("ours").map(|tag| tag.id), Some(0));
    assert!(!tracked.are_unchanged(&gone, TagState::Building), "it is another one");
}

fn unique() -> [TagSchema; 1] {
    [TagSchema { name: "id".to_owned(), is_unique: true, ..TagSchema::default() }]
}

struct TestRegion {
    _dir: tempfile::TempDir,
    path: std::path::PathBuf,
    region: crate::Region,
    session: Session,
    ns: Namespace,
}

fn test_region(records: u16) -> TestRegion {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("region");
    let region = crate::Region::create(&path, &crate::CreateOptions::default()).unwrap();
    let session = region.session().unwrap();
    let ns = session.namespace("ues", &Schema::default()).unwrap();
    for number in 0..records {
        put(&session, ns, &number.to_be_bytes(), &[&number.to_be_bytes()]);
    }
    TestRegion { _dir: dir, path, region, session, ns }
}

fn put(session: &Session, ns: Namespace, key: &[u8], ids: &[&[u8]]) {
    let tags: Vec<(&str, &[u8])> = ids.iter().map(|id| ("id", *id)).collect();
    let metadata = Metadata { tags: &tags, expires_ms: 0 };
    session.transact(|txn| txn.put_with_metadata(ns, key, b"v", metadata)).unwrap();
}

fn end(test: TestRegion) {
    let TestRegion { _dir, path, region, session, ns: _ } = test;
    drop((session, region));
    let report = crate::check(&path).unwrap();
    assert!(report.is_clean(), "{:?}", report.faults);
}

/// One that was half way when others gave the tag up and declared it anew took it for its own, and
/// called the index complete that lacked what it had entered into the old one. Who is busy with a
/// tag is looked for before; but one may come just then.
#[test]
fn a_tag_that_was_declared_again_is_entered_again() {
    let test = test_region(500);
    let (session, ns) = (&test.session, test.ns);
    let other = test.region.session().unwrap();
    let mut slow = session.begin_tag_declaration(ns, &unique(), RetryPolicy::default()).unwrap();
    for _ in 0..session.buckets(ns).unwrap().count() / 2 {
        assert!(session.continue_tag_declaration(&mut slow, 1).unwrap());
    }
    // Another declaration abandons the tag: it has already checked and found no other one.
    let mut hasty = other.begin_tag_declaration(ns, &unique(), RetryPolicy::default()).unwrap();
    let generation = other.tag_set(ns.index).unwrap().generation;
    let tracked = TrackedTags { ids: vec![0], generation };
    assert!(other.move_tags(&hasty, (TagState::Building, TagState::Leaving), &tracked).unwrap());
    let mut clearing = other.clearing(ns, None).unwrap().unwrap();
    while other.clear_some(&mut hasty, &mut clearing, 1000).unwrap() {}
    let mut anew = other.begin_tag_declaration(ns, &unique(), RetryPolicy::default()).unwrap();
    assert!(other.continue_tag_declaration(&mut anew, 1).unwrap());
    while session.continue_tag_declaration(&mut slow, 1).unwrap() {}
    for number in 0..500_u16 {
        let found = session.find(ns, "id", &number.to_be_bytes()).unwrap();
        assert_eq!(found.unwrap().key(), number.to_be_bytes());
    }
    while other.continue_tag_declaration(&mut anew, 1).unwrap() {}
    drop(other);
    end(test);
}

/// What a declaration forgets of its own tags it does not take away.
#[test]
fn a_tag_that_may_have_left_its_state_is_not_owned() {
    let tag = |name: &str| TagSchema { name: name.to_owned(), ..TagSchema::default() };
    let mut tags = TagSet::default();
    tags.declare(&[tag("one"), tag("two")]).unwrap();
    tags.generation = 1;
    let mut begun = TrackedTags { ids: vec![0, 1], generation: 1 };
    tags.generation += CHANGES_OF_CYCLE - 1;
    tags.move_on(TagState::Building, TagState::Ready, &[1]);
    begun.keep(&tags, TagState::Building);
    assert_eq!((begun.ids.as_slice(), begun.generation), (&[0][..], tags.generation));
    tags.generation += CHANGES_OF_CYCLE;
    begun.keep(&tags, TagState::Building);
    assert!(begun.ids.is_empty(), "the tag may have been removed in between");
}

/// A part retried each record for up to 100 ms, and its thread did no other work meanwhile.
#[test]
fn a_conflict_ends_a_part_at_once_and_only_a_part() {
    let test = test_region(1);
    let (session, ns) = (&test.session, test.ns);
    let other = test.region.session().unwrap();
    let key = 0_u16.to_be_bytes();
    let mut part = session.begin_tag_declaration(ns, &unique(), RetryPolicy::default()).unwrap();
    let runs = Cell::new(0_u32);
    // Another is faster each time.
    let run = |declaring: &PendingTagDeclaration| {
        session.run(declaring, |txn| {
            runs.set(runs.get() + 1);
            txn.get(ns, &key)?;
            put(&other, ns, &key, &[&key]);
            txn.put(ns, b"other", b"v")
        })
    };
    for tries in [1, 2, 4, 8, 8] {
        runs.set(0);
        let done = run(&part);
        assert_eq!((done.clone(), runs.get()), (Err(Error::Deadline { tries }), tries));
        assert_eq!(part.end_part(Stage::Announcing, done), Ok(true));
        assert!(part.is_contended() && matches!(part.stage, Stage::Announcing), "as it was");
    }
    part.retry_policy.tries = 24;
    let done = run(&part);
    assert_eq!(part.end_part(Stage::Announcing, done), Err(Error::Deadline { tries: 31 }));
    // No other work waits for the thread: it retries as often as its retry policy allows.
    let mut whole = session.begin_tag_declaration(ns, &unique(), RetryPolicy::default()).unwrap();
    (whole.has_thread, whole.retry_policy.tries) = (true, 50);
    let done = run(&whole);
    assert_eq!(done, Err(Error::Deadline { tries: 50 }));
    assert_eq!(whole.end_part(Stage::Announcing, done), Err(Error::Deadline { tries: 50 }));
    drop(other);
    end(test);
}

/// What met a conflict comes first in the next part; what was done before it does not come again.
#[test]
fn a_walk_goes_on_with_the_key_that_met_an_error() {
    let test = test_region(300);
    let (session, ns) = (&test.session, test.ns);
    let mut part = session.part_of(ns).unwrap();
    let (mut seen, mut parts) = (Vec::new(), 0);
    while !part.is_done() {
        parts += 1;
        // Every third key fails once.
        let mut count = 0;
        let _ = session.each_key(
            ns,
            (&mut part, 1),
            |_| true,
            |key| {
                count += 1;
                if count == 3 {
                    return Err(Error::Deadline { tries: 1 });
                }
                seen.push(key.to_vec());
                Ok(())
            },
        );
        assert!(count <= 28, "one bucket, and a line that hangs on it");
    }
    assert!(parts >= 100, "{parts}");
    let all = seen.len();
    seen.sort();
    seen.dedup();
    assert_eq!((all, seen.len()), (300, 300));
    end(test);
}

/// A record that others change all the time is entered value by value, and whatever they change
/// between two of them is in the index as well.
#[test]
fn values_that_are_entered_one_by_one_are_all_there_whatever_changes_between_them() {
    for is_ordered in [false, true] {
        let test = test_region(0);
        let (session, ns) = (&test.session, test.ns);
        let other = test.region.session().unwrap();
        put(session, ns, b"ue", &[b"c", b"a", b"e", b"g"]);
        let tag = TagSchema { is_ordered, is_counted: true, ..TagSchema::default() };
        let wanted = [TagSchema { name: "id".to_owned(), ..tag }];
        let mut declaring =
            session.begin_tag_declaration(ns, &wanted, RetryPolicy::default()).unwrap();
        let tracked = session.announce(&mut declaring).unwrap().unwrap();
        let contradiction = Cell::new(None);
        let left = session.values_of(ns, b"ue", &tracked.ids).unwrap();
        assert_eq!(left, [b"a", b"c", b"e", b"g"].map(|value| (0, value.to_vec())));
        let enter = |value| {
            let wanted = IndexRequest {
                ids: &tracked.ids,
                only: Some(value),
                contradiction: &contradiction,
            };
            session.transact(|txn| txn.index_record(ns, b"ue", &wanted)).unwrap();
        };
        let (some, others) = left.split_at(2);
        some.chunks(1).for_each(enter);
        // One before and one behind comes, one before and one behind goes.
        put(&other, ns, b"ue", &[b"f", b"b", b"c", b"g"]);
        others.chunks(1).for_each(enter);
        assert!(
            session.move_tags(&declaring, (TagState::Building, TagState::Ready), &tracked).unwrap()
        );
        for (value, count) in [(b"a", 0), (b"b", 1), (b"c", 1), (b"e", 0), (b"f", 1), (b"g", 1)] {
            assert_eq!(session.count_tagged(ns, "id", value).unwrap(), count, "{value:?}");
        }
        drop(other);
        end(test);
    }
}

/// A write that replaces an expired record enters only the values that it has not. So the values of
/// one that has expired are among those that can be missing.
#[test]
fn a_record_that_has_expired_and_is_written_again_with_its_value_is_found() {
    let test = test_region(0);
    let (session, ns) = (&test.session, test.ns);
    let other = test.region.session().unwrap();
    let write = |expires_ms| {
        let metadata = Metadata { tags: &[("id", b"a")], expires_ms };
        other.transact(|txn| txn.put_with_metadata(ns, b"ue", b"v", metadata)).unwrap();
    };
    write(1);
    let wanted = [TagSchema { name: "id".to_owned(), is_unique: true, ..TagSchema::default() }];
    let mut declaring = session.begin_tag_declaration(ns, &wanted, RetryPolicy::default()).unwrap();
    let tracked = session.announce(&mut declaring).unwrap().unwrap();
    let contradiction = Cell::new(None);
    // A part has ended after a conflict.
    let left = session.values_of(ns, b"ue", &tracked.ids).unwrap();
    write(0);
    for value in left.chunks(1) {
        let wanted =
            IndexRequest { ids: &tracked.ids, only: Some(value), contradiction: &contradiction };
        session.transact(|txn| txn.index_record(ns, b"ue", &wanted)).unwrap();
    }
    assert!(
        session.move_tags(&declaring, (TagState::Building, TagState::Ready), &tracked).unwrap()
    );
    assert!(session.find(ns, "id", b"a").unwrap().is_some(), "it has the value");
    drop(other);
    end(test);
}

/// Of a record that got a greater value before each next one was entered the next one was always
/// that, and it never came to an end. Only what it had at first can be missing.
#[test]
fn a_record_that_gets_new_values_all_the_time_is_entered_in_as_many_parts_as_it_had_values() {
    let test = test_region(0);
    let (session, ns) = (&test.session, test.ns);
    let other = test.region.session().unwrap();
    put(session, ns, b"ue", &[b"a", b"b"]);
    let wanted = [TagSchema { name: "id".to_owned(), is_counted: true, ..TagSchema::default() }];
    let mut declaring = session.begin_tag_declaration(ns, &wanted, RetryPolicy::default()).unwrap();
    let tracked = session.announce(&mut declaring).unwrap().unwrap();
    let contradiction = Cell::new(None);
    let left = session.values_of(ns, b"ue", &tracked.ids).unwrap();
    let mut count = 0_u8;
    for value in left.chunks(1) {
        count += 1;
        put(&other, ns, b"ue", &[b"a", b"b", &[b'c', count]]);
        let wanted =
            IndexRequest { ids: &tracked.ids, only: Some(value), contradiction: &contradiction };
        session.transact(|txn| txn.index_record(ns, b"ue", &wanted)).unwrap();
    }
    assert_eq!(count, 2);
    assert!(
        session.move_tags(&declaring, (TagState::Building, TagState::Ready), &tracked).unwrap()
    );
    for (value, count) in [(&b"a"[..], 1), (b"b", 1), (b"c\x01", 0), (b"c\x02", 1)] {
        assert_eq!(session.count_tagged(ns, "id", value).unwrap(), count, "{value:?}");
    }
    drop(other);
    end(test);
}

/// Runs the parts of a held declaration until its caller completes it.
fn hold(session: &Session, ns: Namespace) -> PendingTagDeclaration {
    let begun = session.begin_tag_declaration(ns, &unique(), RetryPolicy::default());
    let mut declaring = begun.unwrap().held();
    while session.continue_tag_declaration(&mut declaring, 10).unwrap() {}
    declaring
}

/// A change of the caller and the tags that it needs are one step: neither is visible alone.
#[test]
fn a_held_declaration_is_complete_with_the_commit_of_its_caller() {
    let test = test_region(300);
    let (session, ns) = (&test.session, test.ns);
    let other = test.region.session().unwrap();
    let state = || other.tags(ns).unwrap().first().map(|tag| tag.state);
    let declaring = hold(session, ns);
    assert_eq!(state(), Some(TagState::Building));
    assert!(other.find(ns, "id", &7_u16.to_be_bytes()).is_err(), "the index is not complete");
    let txn = session.begin().unwrap();
    txn.put(ns, b"change", b"v").unwrap();
    assert!(session.complete_tags_in(&txn, &declaring).unwrap());
    drop(txn);
    assert_eq!(state(), Some(TagState::Building), "it was not committed");
    session
        .transact(|txn| {
            assert!(session.complete_tags_in(txn, &declaring).unwrap());
            txn.put(ns, b"change", b"v")
        })
        .unwrap();
    session.end_tag_declaration(declaring).unwrap();
    assert_eq!(state(), Some(TagState::Ready));
    for number in 0..300_u16 {
        let found = other.find(ns, "id", &number.to_be_bytes()).unwrap();
        assert_eq!(found.unwrap().key(), number.to_be_bytes());
    }
    drop(other);
    end(test);
}

/// A caller that is refused leaves no tag behind, at whatever part it ends.
#[test]
fn a_declaration_that_is_withdrawn_leaves_no_tag() {
    let test = test_region(300);
    let (session, ns) = (&test.session, test.ns);
    for parts in [0, 1, 2, 5, usize::MAX] {
        let begun = session.begin_tag_declaration(ns, &unique(), RetryPolicy::default());
        let mut declaring = begun.unwrap().held();
        for _ in 0..parts {
            if !session.continue_tag_declaration(&mut declaring, 10).unwrap() {
                break;
            }
        }
        assert_eq!(session.tags(ns).unwrap().len(), usize::from(parts > 0), "{parts}");
        session.withdraw_tags(&mut declaring);
        while session.continue_tag_declaration(&mut declaring, 10).unwrap() {}
        assert_eq!(session.tags(ns).unwrap(), [], "{parts}");
    }
    end(test);
}

/// Of two declarations of one tag that are both refused, the last one removes it.
#[test]
fn two_declarations_of_one_tag_that_are_withdrawn_leave_no_tag() {
    for is_first_withdrawn in [false, true] {
        let test = test_region(300);
        let (session, ns) = (&test.session, test.ns);
        let other = test.region.session().unwrap();
        let (first, joined) = (hold(session, ns), hold(&other, ns));
        let order = if is_first_withdrawn { [first, joined] } else { [joined, first] };
        for mut declaring in order {
            session.withdraw_tags(&mut declaring);
            while session.continue_tag_declaration(&mut declaring, 10).unwrap() {}
        }
        assert_eq!(session.tags(ns).unwrap(), [], "{is_first_withdrawn}");
        drop(other);
        end(test);
    }
}

/// What another declaration has joined is that one's, and what another has completed stays.
#[test]
fn a_declaration_that_is_withdrawn_leaves_the_tags_of_others() {
    for is_first_withdrawn in [false, true] {
        let test = test_region(300);
        let (session, ns) = (&test.session, test.ns);
        let other = test.region.session().unwrap();
        let (first, joined) = (hold(session, ns), hold(&other, ns));
        let (mut refused, accepted) =
            if is_first_withdrawn { (first, joined) } else { (joined, first) };
        session.withdraw_tags(&mut refused);
        while session.continue_tag_declaration(&mut refused, 10).unwrap() {}
        session
            .transact(|txn| -> Result<()> {
                assert!(session.complete_tags_in(txn, &accepted).unwrap());
                Ok(())
            })
            .unwrap();
        session.end_tag_declaration(accepted).unwrap();
        let mut late = hold(session, ns);
        session.withdraw_tags(&mut late);
        while session.continue_tag_declaration(&mut late, 10).unwrap() {}
        assert!(session.find(ns, "id", &7_u16.to_be_bytes()).unwrap().is_some());
        drop(other);
        end(test);
    }
}
