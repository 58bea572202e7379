//! Empty namespaces are removed, and what had them says so.

use nearstate_store::{
    Condition, Error, Filter, Kind, Metadata, Namespace, Notice, Region, Schema, Session,
    TagSchema, Values, Watch, WhenFull,
};

use crate::fixture::TestRegion;

fn open(session: &Session, name: &str) -> Namespace {
    session.namespace(name, &Schema::default()).unwrap()
}

#[track_caller]
fn assert_removed<T: std::fmt::Debug>(answer: Result<T, Error>) {
    match answer {
        Err(Error::BadArgument { detail }) => assert!(detail.contains("open it again"), "{detail}"),
        other => panic!("{other:?}"),
    }
}

/// Every operation by a handle whose namespace was removed.
fn assert_every_operation_is_refused(session: &Session, old: Namespace) {
    assert!(!session.has_namespace(old));
    assert_removed(session.get(old, b"k").map(|view| view.is_some()));
    assert_removed(session.get_copy(old, b"k", &mut Vec::new()));
    assert_removed(session.get_batch(old, &[b"k"], |_, _| {}));
    assert_removed(session.get_for_update(old, b"k").map(|record| record.is_some()));
    assert_removed(session.put(old, b"k", b"stale"));
    assert_removed(session.put_if(old, b"k", b"stale", Condition::Absent));
    assert_removed(session.put_batch(old, &[(b"k", b"stale")]));
    assert_removed(session.delete(old, b"k"));
    assert_removed(session.count(old));
    assert_removed(session.scan(old).and_then(|mut scan| scan.next().map(|view| view.is_some())));
    assert_removed(session.transact(|txn| txn.put(old, b"k", b"stale")));
    assert_removed(session.transact(|txn| txn.get(old, b"k").map(|view| view.is_some())));
    assert_removed(session.watch(old, Filter::Namespace).map(drop));
    assert_removed(session.remove_namespace(old));
    assert_removed(session.tags(old));
    assert_removed(session.has_tag(old, "t"));
    assert_removed(session.find(old, "t", b"v").map(|view| view.is_some()));
    assert_removed(session.find_all(old, "t", Values::Equal(b"v"), |_| true));
    assert_removed(session.count_tagged(old, "t", b"v"));
    assert_removed(
        session.add_tags(old, &[TagSchema { name: "t".into(), ..TagSchema::default() }]),
    );
    assert_removed(session.stream(old, WhenFull::Refuse));
}

#[test]
fn a_handle_of_a_removed_namespace_never_reaches_its_successor() {
    let test = TestRegion::new();
    let (session, other) = (test.region.session().unwrap(), test.region.session().unwrap());
    let far = Region::attach(&test.folder.path).unwrap().session().unwrap();
    let old = open(&session, "first");
    assert_eq!(open(&far, "first").number(), old.number());
    session.put(old, b"k", b"v").unwrap();
    assert!(!session.remove_namespace(old).unwrap(), "it has a record");
    assert_eq!(session.get(old, b"k").unwrap().unwrap().bytes(), b"v");
    let before = session.namespace_changes().unwrap().unwrap();
    session.delete(old, b"k").unwrap();
    assert!(session.remove_namespace(old).unwrap());
    assert!(session.namespace_changes().unwrap().unwrap() > before);
    assert!(session.known_namespace("first").unwrap().is_none());
    for session in [&session, &other, &far] {
        assert_every_operation_is_refused(session, old);
    }
    // The next namespace has the entry and the index.
    let new = open(&other, "second");
    assert_eq!(new.number() & 0xffff, old.number() & 0xffff);
    assert_ne!(new.number(), old.number());
    other.put(new, b"k", b"new").unwrap();
    for session in [&session, &other, &far] {
        assert_every_operation_is_refused(session, old);
        assert_eq!(session.get(new, b"k").unwrap().unwrap().bytes(), b"new");
    }
    drop((session, other, far));
    test.close_and_check();
}

#[test]
fn a_namespace_of_another_kind_can_have_the_entry() {
    let test = TestRegion::new();
    let session = test.region.session().unwrap();
    let counters = Schema { kind: Kind::Counters, ..Schema::default() };
    let old = session.namespace("counters", &counters).unwrap();
    session.add(old, b"n", 5).unwrap();
    session.delete(old, b"n").unwrap();
    assert!(session.remove_namespace(old).unwrap());
    assert_removed(session.add(old, b"n", 1));
    assert_removed(session.read_counter(old, b"n"));
    let blocks = Schema { kind: Kind::Blocks, ..Schema::default() };
    let new = session.namespace("blocks", &blocks).unwrap();
    assert_eq!(new.kind(), Kind::Blocks);
    assert_removed(session.add(old, b"n", 1));
    assert_eq!(session.count(new).unwrap(), 0);
    assert_eq!(session.namespace("blocks", &blocks).unwrap(), new);
    drop(session);
    test.close_and_check();
}

#[test]
fn versions_of_a_key_go_on_in_any_namespace_of_the_same_name() {
    let test = TestRegion::new();
    let session = test.region.session().unwrap();
    let old = open(&session, "again");
    let last = (0..10).map(|_| session.put(old, b"k", b"v").unwrap()).last().unwrap();
    session.delete(old, b"k").unwrap();
    assert!(session.remove_namespace(old).unwrap());
    // Another name takes the entry, so this one gets a new entry.
    let other = open(&session, "other");
    assert!(session.put(other, b"k", b"v").unwrap() > last);
    let new = open(&session, "again");
    assert_ne!(new.number() & 0xffff, old.number() & 0xffff);
    let next = session.put(new, b"k", b"v").unwrap();
    assert!(next > last);
    // A used entry whose index has lower stamps.
    session.put(new, b"k", &[1; 100]).unwrap();
    let last = session.put(new, b"k", b"v").unwrap();
    session.delete(new, b"k").unwrap();
    session.delete(other, b"k").unwrap();
    assert!(session.remove_namespace(new).unwrap() && session.remove_namespace(other).unwrap());
    let first = open(&session, "first");
    assert_eq!(first.number() & 0xffff, other.number() & 0xffff, "the first free entry");
    assert!(session.put(first, b"k", b"v").unwrap() > last);
    drop(session);
    test.close_and_check();
}

#[test]
fn a_removal_takes_the_indexes_of_tags_along() {
    let test = TestRegion::new();
    let session = test.region.session().unwrap();
    let tag = |name: &str| TagSchema { name: name.to_owned(), ..TagSchema::default() };
    let tags = vec![
        TagSchema { is_unique: true, ..tag("unique") },
        TagSchema { is_ordered: true, ..tag("ordered") },
        TagSchema { is_counted: true, ..tag("counted") },
        tag("listed"),
    ];
    let schema = Schema { tags: tags.clone(), ..Schema::default() };
    let kept = session.namespace("kept", &schema).unwrap();
    let names = ["unique", "ordered", "counted", "listed"];
    let put = |namespace, number: u32| {
        let key = number.to_be_bytes();
        let tags = names.map(|name| (name, &key[..]));
        let metadata = Metadata { tags: &tags, expires_ms: u64::MAX >> 20 };
        session.transact(|txn| txn.put_with_metadata(namespace, &key, b"v", metadata)).unwrap();
    };
    put(kept, 1);
    for round in 0..3 {
        let old = session.namespace("going", &schema).unwrap();
        assert_eq!(session.tags(old).unwrap().len(), names.len());
        (0..200).for_each(|number| put(old, number));
        (0..200_u32).for_each(|number| {
            session.delete(old, &number.to_be_bytes()).unwrap();
        });
        assert!(session.remove_namespace(old).unwrap(), "round {round}");
        assert_removed(session.get(old, b"x").map(|view| view.is_some()));
        let plain = open(&session, "going");
        assert!(session.tags(plain).unwrap().is_empty(), "the new one has no tags");
        session.put(plain, b"k", b"v").unwrap();
        session.delete(plain, b"k").unwrap();
        assert!(session.remove_namespace(plain).unwrap());
    }
    let mut found = 0;
    session
        .find_all(kept, "listed", Values::Equal(&1_u32.to_be_bytes()), |_| {
            found += 1;
            true
        })
        .unwrap();
    assert_eq!(found, 1);
    drop(session);
    test.close_and_check();
}

#[test]
fn a_watch_ends_with_an_error_when_its_namespace_is_removed() {
    let test = TestRegion::new();
    let session = test.region.session().unwrap();
    let old = open(&session, "watched");
    let mut watch = session.watch(old, Filter::Namespace).unwrap();
    assert!(watch.next().unwrap().is_none());
    assert!(session.remove_namespace(old).unwrap());
    assert_removed(watch.next().map(|notice| notice.is_some()));
    let new = open(&session, "next");
    let mut next = session.watch(new, Filter::Namespace).unwrap();
    session.put(new, b"k", b"v").unwrap();
    assert_removed(watch.next().map(|notice| notice.is_some()));
    assert!(next.next().unwrap().is_some());
}

/// The keys of the events that a watch returns, and what ends it.
fn keys_until_the_end(watch: &mut Watch) -> (Vec<Vec<u8>>, Error) {
    let mut keys = Vec::new();
    loop {
        match watch.next() {
            Ok(Some(Notice::Event(event))) => keys.push(event.key.to_vec()),
            Ok(other) => panic!("{other:?}"),
            Err(error) => return (keys, error),
        }
    }
}

#[test]
fn a_watch_returns_the_last_events_of_a_removed_namespace_and_none_of_the_next() {
    let test = TestRegion::new();
    let (session, far) = (test.region.session().unwrap(), test.region.session().unwrap());
    for is_reused in [false, true] {
        let old = open(&session, "watched");
        let mut all = far.watch(old, Filter::Namespace).unwrap();
        let mut some = far.watch(old, Filter::Prefix(b"rare".to_vec())).unwrap();
        for key in [b"rare-1", b"often1", b"rare-2"] {
            session.put(old, key, b"v").unwrap();
            session.delete(old, key).unwrap();
        }
        assert!(session.remove_namespace(old).unwrap());
        if is_reused {
            for round in 0..3 {
                let next = open(&session, "next");
                assert_eq!(next.number() & 0xffff, old.number() & 0xffff);
                drop(session.watch(next, Filter::Namespace).unwrap());
                session.put(next, b"rare-next", b"v").unwrap();
                session.delete(next, b"rare-next").unwrap();
                assert!(session.remove_namespace(next).unwrap(), "round {round}");
            }
        }
        let (keys, error) = keys_until_the_end(&mut all);
        assert_eq!(keys, [b"rare-1", b"rare-1", b"often1", b"often1", b"rare-2", b"rare-2"]);
        assert_removed::<()>(Err(error));
        let (keys, error) = keys_until_the_end(&mut some);
        assert_eq!(keys.len(), 4, "{keys:?}");
        assert_removed::<()>(Err(error));
        assert_removed(all.next().map(|notice| notice.is_some()));
    }
    drop((session, far));
    test.close_and_check();
}

/// The end of a namespace can be among the events that a slow watch has missed.
#[test]
fn a_slow_watch_of_a_removed_namespace_ends_after_what_it_has_missed() {
    let test = TestRegion::new();
    let session = test.region.session().unwrap();
    let old = open(&session, "watched");
    let mut watch = session.watch(old, Filter::Namespace).unwrap();
    session.put(old, b"k", b"v").unwrap();
    session.delete(old, b"k").unwrap();
    assert!(session.remove_namespace(old).unwrap());
    let next = open(&session, "next");
    drop(session.watch(next, Filter::Namespace).unwrap());
    for number in 0..60_000_u32 {
        session.put(next, &number.to_be_bytes(), &[1; 50]).unwrap();
    }
    assert!(matches!(watch.next(), Ok(Some(Notice::Lost { .. }))));
    session.put(next, b"later", b"v").unwrap();
    assert_removed(watch.next().map(|notice| notice.is_some()));
    drop((session, watch));
    test.close_and_check();
}

#[test]
fn a_full_catalog_makes_room_by_removing_empty_namespaces() {
    const ENTRIES: usize = nearstate_store::limits::NAMESPACES_MAX;
    let test = TestRegion::new();
    let session = test.region.session().unwrap();
    let tag = TagSchema { name: "t".to_owned(), is_unique: true, ..TagSchema::default() };
    let schema = Schema { tags: vec![tag], ..Schema::default() };
    let tagged = session.namespace("tagged", &schema).unwrap();
    let kept = open(&session, "kept");
    session.put(kept, b"k", b"v").unwrap();
    for number in 0..ENTRIES + 600 {
        let one = open(&session, &format!("n{number}"));
        if number % 512 == 0 {
            session.put(one, b"k", b"v").unwrap();
            session.delete(one, b"k").unwrap();
        }
    }
    assert!(session.namespace_count().unwrap() <= ENTRIES);
    assert!(session.has_namespace(kept) && session.has_namespace(tagged));
    assert_eq!(session.get(kept, b"k").unwrap().unwrap().bytes(), b"v");
    drop(session);
    test.close_and_check();
}

#[test]
fn writers_and_removers_of_one_name_lose_no_acknowledged_record() {
    let test = TestRegion::new();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let order = std::sync::atomic::Ordering::Relaxed;
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let session = test.region.session().unwrap();
                while !is_over.load(order) {
                    for (_, namespace) in session.namespaces().unwrap() {
                        match session.remove_namespace(namespace) {
                            Ok(_) | Err(Error::BadArgument { .. }) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
            });
        }
        let writers: Vec<_> = (0..2_u32)
            .map(|writer| {
                let test = &test;
                scope.spawn(move || {
                    let session = test.region.session().unwrap();
                    let (mut refused, mut number) = (0, 0_u32);
                    let mut ns = open(&session, "shared");
                    while number < 2_000 || refused < 100 {
                        let key = [writer.to_be_bytes(), (number % 8).to_be_bytes()].concat();
                        match session.put(ns, &key, &number.to_be_bytes()) {
                            Ok(_) => {}
                            Err(Error::BadArgument { .. }) => {
                                refused += 1;
                                ns = open(&session, "shared");
                                continue;
                            }
                            Err(error) => panic!("{error}"),
                        }
                        // An acknowledged record keeps its namespace.
                        let seen = session.get(ns, &key).unwrap().unwrap().bytes().to_vec();
                        assert_eq!(seen, number.to_be_bytes());
                        assert!(session.delete(ns, &key).unwrap());
                        number += 1;
                    }
                    refused
                })
            })
            .collect();
        let refused: u32 = writers.into_iter().map(|writer| writer.join().unwrap()).sum();
        is_over.store(true, order);
        assert!(refused > 0, "no namespace was removed between two writes");
    });
    test.close_and_check();
}
