//! Tags and expiry: uniqueness over the namespace, lookups, declaration beside writers.

use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};

use nearstate_store::{
    BlockChange, Condition, Error, Filter, Kind, Metadata, Namespace, Prefetch, Schema, Session,
    TagSchema, Values, now_ms_coarse,
};

use crate::fixture::{TestRegion, without_forks};

fn unique(name: &str) -> TagSchema {
    TagSchema { name: name.to_owned(), is_unique: true, ..TagSchema::default() }
}

fn ordered(name: &str) -> TagSchema {
    TagSchema { name: name.to_owned(), is_ordered: true, is_counted: true, ..TagSchema::default() }
}

fn sessions(session: &Session) -> Namespace {
    let tags = vec![unique("guti"), unique("teid"), ordered("cell")];
    session.namespace("sessions", &Schema { tags, ..Schema::default() }).unwrap()
}

fn put(session: &Session, ns: Namespace, key: &str, tags: &[(&str, &str)]) -> Result<(), Error> {
    let tags: Vec<(&str, &[u8])> = tags.iter().map(|(n, v)| (*n, v.as_bytes())).collect();
    let metadata = Metadata { tags: &tags, expires_ms: 0 };
    session.transact(|txn| txn.put_with_metadata(ns, key.as_bytes(), b"session", metadata))
}

fn keys_of(session: &Session, ns: Namespace, tag: &str, values: Values<'_>) -> Vec<String> {
    let mut keys = Vec::new();
    session
        .find_all(ns, tag, values, |view| {
            keys.push(String::from_utf8(view.key().to_vec()).unwrap());
            true
        })
        .unwrap();
    keys
}

#[test]
fn a_record_is_found_by_its_tags_until_they_change() {
    let fixture = TestRegion::new();
    let session = fixture.region.session().unwrap();
    let ns = sessions(&session);
    put(&session, ns, "imsi-1", &[("guti", "g1"), ("teid", "t1"), ("cell", "5")]).unwrap();
    put(&session, ns, "imsi-2", &[("guti", "g2"), ("teid", "t2"), ("cell", "5")]).unwrap();
    put(&session, ns, "imsi-3", &[("guti", "g3"), ("cell", "51"), ("cell", "6")]).unwrap();
    let view = session.find(ns, "guti", b"g2").unwrap().unwrap();
    assert_eq!((view.key(), view.bytes()), (&b"imsi-2"[..], &b"session"[..]));
    assert_eq!(view.tags().count(), 3);
    drop(view);
    assert!(session.find(ns, "guti", b"g9").unwrap().is_none());
    assert_eq!(keys_of(&session, ns, "cell", Values::Equal(b"5")), ["imsi-1", "imsi-2"]);
    assert_eq!(keys_of(&session, ns, "cell", Values::Prefix(b"5")), ["imsi-1", "imsi-2", "imsi-3"]);
    let above = Values::Range(Bound::Excluded(b"5"), Bound::Unbounded);
    assert_eq!(keys_of(&session, ns, "cell", above), ["imsi-3", "imsi-3"]);
    assert_eq!(session.count_tagged(ns, "cell", b"5").unwrap(), 2);
    // A plain put has no tags: those of before are gone.
    session.put(ns, b"imsi-1", b"plain").unwrap();
    assert!(session.find(ns, "guti", b"g1").unwrap().is_none());
    assert_eq!(session.count_tagged(ns, "cell", b"5").unwrap(), 1);
    put(&session, ns, "imsi-4", &[("guti", "g1")]).unwrap();
    session.delete(ns, b"imsi-2").unwrap();
    assert!(keys_of(&session, ns, "cell", Values::Equal(b"5")).is_empty());
    for refused in [
        session.find(ns, "cell", b"5").map(drop),
        session.find(ns, "unknown", b"5").map(drop),
        session.find_all(ns, "guti", Values::Prefix(b"g"), |_| true),
    ] {
        assert!(matches!(refused, Err(Error::BadArgument { .. })), "{refused:?}");
    }
    drop(session);
    fixture.close_and_check();
}

#[test]
fn a_unique_value_has_one_holder_and_the_error_names_it() {
    let fixture = TestRegion::new();
    let session = fixture.region.session().unwrap();
    let ns = sessions(&session);
    put(&session, ns, "imsi-1", &[("guti", "g1")]).unwrap();
    let refused = put(&session, ns, "imsi-2", &[("guti", "g1"), ("teid", "t2")]).unwrap_err();
    let text = refused.to_string();
    assert!(matches!(refused, Error::TagTaken { .. }));
    assert!(text.contains("guti") && text.contains("g1") && text.contains("imsi-1"), "{text}");
    assert!(session.get(ns, b"imsi-2").unwrap().is_none());
    assert!(session.find(ns, "teid", b"t2").unwrap().is_none());
    // Two records of one transaction.
    let g7: &[(&str, &[u8])] = &[("guti", b"g7")];
    let metadata = Metadata { tags: g7, expires_ms: 0 };
    let refused = session.transact(|txn| {
        txn.put_with_metadata(ns, b"imsi-7", b"", metadata)?;
        txn.put_with_metadata(ns, b"imsi-8", b"", metadata)
    });
    assert!(matches!(refused, Err(Error::TagTaken { .. })), "{refused:?}");
    // A value may go from one record to another within a transaction.
    let g1: &[(&str, &[u8])] = &[("guti", b"g1")];
    session
        .transact(|txn| {
            txn.put_with_metadata(ns, b"imsi-9", b"", Metadata { tags: g1, expires_ms: 0 })?;
            txn.put(ns, b"imsi-1", b"without")
        })
        .unwrap();
    assert_eq!(session.find(ns, "guti", b"g1").unwrap().unwrap().key(), b"imsi-9");
    drop(session);
    fixture.close_and_check();
}

/// A commit writes the postings of new unique values without a search, and is prepared again if one
/// exists.
#[test]
fn a_large_commit_that_meets_a_taken_value_is_prepared_again_as_a_whole() {
    const RECORDS: usize = 40;
    let fixture = TestRegion::new();
    let session = fixture.region.session().unwrap();
    let ns = sessions(&session);
    let mut watch = session.watch(ns, Filter::Namespace).unwrap();
    let mut holder = |expires_ms| {
        let tags: &[(&str, &[u8])] = &[("guti", b"g39"), ("cell", b"1")];
        let metadata = Metadata { tags, expires_ms };
        session.transact(|txn| txn.put_with_metadata(ns, b"holder", b"v", metadata)).unwrap();
        assert!(watch.next().unwrap().is_some(), "the put of the holder");
    };
    let insert_all = || {
        session.transact(|txn| {
            for number in 0..RECORDS {
                let (key, guti) = (format!("imsi-{number}"), format!("g{number}"));
                let tags: &[(&str, &[u8])] = &[("guti", guti.as_bytes()), ("cell", b"2")];
                let metadata = Metadata { tags, ..Metadata::default() };
                txn.put_with_metadata(ns, key.as_bytes(), b"v", metadata)?;
            }
            Ok::<_, Error>(())
        })
    };
    holder(0);
    let refused = insert_all();
    assert!(
        matches!(&refused, Err(Error::TagTaken { value, .. }) if value == "g39"),
        "{refused:?}"
    );
    assert_eq!(session.count(ns).unwrap(), 1);
    // A holder that has expired is evicted by the same commit.
    holder(now_ms_coarse() - 1000);
    insert_all().unwrap();
    assert_eq!(session.count(ns).unwrap(), RECORDS as u64);
    assert_eq!(session.find(ns, "guti", b"g39").unwrap().unwrap().key(), b"imsi-39");
    assert_eq!(session.count_tagged(ns, "cell", b"2").unwrap(), RECORDS as u64);
    assert_eq!(session.count_tagged(ns, "cell", b"1").unwrap(), 0);
    let mut events = 0;
    while watch.next().unwrap().is_some() {
        events += 1;
    }
    assert_eq!(events, RECORDS + 1, "one event for each record and for the evicted one");
    drop((watch, session));
    fixture.close_and_check();
}

/// A transaction that has searched for a value reads the postings before it writes them.
#[test]
fn a_transaction_that_has_searched_meets_a_taken_value() {
    let fixture = TestRegion::new();
    let session = fixture.region.session().unwrap();
    let ns = sessions(&session);
    let put = |txn: &nearstate_store::Txn<'_>, key: &[u8], guti: &[u8]| {
        let tags: &[(&str, &[u8])] = &[("guti", guti)];
        txn.put_with_metadata(ns, key, b"v", Metadata { tags, ..Metadata::default() })
    };
    session.transact(|txn| put(txn, b"holder", b"b")).unwrap();
    let insert = || {
        session.transact(|txn| {
            assert!(txn.find(ns, "guti", b"a")?.is_none());
            put(txn, b"one", b"a")?;
            put(txn, b"two", b"b")
        })
    };
    let refused = insert();
    assert!(matches!(&refused, Err(Error::TagTaken { value, .. }) if value == "b"), "{refused:?}");
    assert!(session.delete(ns, b"holder").unwrap());
    insert().unwrap();
    assert_eq!(session.find(ns, "guti", b"a").unwrap().unwrap().key(), b"one");
    assert_eq!(session.find(ns, "guti", b"b").unwrap().unwrap().key(), b"two");
    drop(session);
    fixture.close_and_check();
}

#[test]
fn tags_are_added_while_writers_run() {
    let _no_forks = without_forks();
    let fixture = TestRegion::new();
    let is_over = AtomicBool::new(false);
    let session = fixture.region.session().unwrap();
    let ns = session.namespace("late", &Schema::default()).unwrap();
    for n in 0..3000 {
        put(&session, ns, &format!("imsi-{n}"), &[("guti", &format!("g{n}")), ("cell", "1")])
            .unwrap();
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let session = fixture.region.session().unwrap();
            let mut n = 3000;
            while !is_over.load(Ordering::Acquire) {
                let tags: &[(&str, &str)] = &[("guti", &format!("g{n}")), ("cell", "2")];
                put(&session, ns, &format!("imsi-{n}"), tags).unwrap();
                session.delete(ns, format!("imsi-{}", n - 1500).as_bytes()).unwrap();
                n += 1;
            }
        });
        session.add_tags(ns, &[unique("guti"), ordered("cell")]).unwrap();
        is_over.store(true, Ordering::Release);
    });
    // The index says what the records say.
    let mut records = 0;
    let mut scan = session.scan(ns).unwrap();
    while let Some(view) = scan.next().unwrap() {
        records += 1;
        let guti = view.tags().find(|(name, _)| *name == "guti").unwrap().1;
        let found = session.find(ns, "guti", guti).unwrap().unwrap();
        assert_eq!(found.key(), view.key());
    }
    let of_cells = |cell: &[u8]| keys_of(&session, ns, "cell", Values::Equal(cell)).len() as u64;
    assert_eq!(of_cells(b"1") + of_cells(b"2"), records);
    assert_eq!(of_cells(b"1"), session.count_tagged(ns, "cell", b"1").unwrap());
    assert_eq!(of_cells(b"2"), session.count_tagged(ns, "cell", b"2").unwrap());
    drop(scan);
    drop(session);
    fixture.close_and_check();
}

#[test]
fn a_tag_that_the_records_contradict_is_refused_and_leaves_nothing() {
    let _no_forks = without_forks();
    let fixture = TestRegion::new();
    let session = fixture.region.session().unwrap();
    let ns = session.namespace("late", &Schema::default()).unwrap();
    for n in 0..200 {
        put(&session, ns, &format!("imsi-{n}"), &[("cell", &format!("c{}", n % 150))]).unwrap();
    }
    let refused = session.add_tags(ns, &[unique("cell")]).unwrap_err();
    assert!(matches!(refused, Error::TagTaken { .. }), "{refused}");
    assert!(session.tags(ns).unwrap().is_empty());
    let required = TagSchema { is_required: true, ..ordered("guti") };
    let refused = session.add_tags(ns, &[required]).unwrap_err();
    assert!(refused.to_string().contains("required"), "{refused}");
    session.add_tags(ns, &[ordered("cell")]).unwrap();
    assert_eq!(keys_of(&session, ns, "cell", Values::Equal(b"c1")).len(), 2);
    drop(session);
    fixture.close_and_check();
}

#[test]
fn an_expired_record_is_never_returned_and_is_collected_once() {
    let fixture = TestRegion::new();
    let session = fixture.region.session().unwrap();
    let other = fixture.region.session().unwrap();
    let ns = sessions(&session);
    let now = now_ms_coarse();
    let put = |key: &[u8], guti: &[u8], expires_ms| {
        let tags: &[(&str, &[u8])] = &[("guti", guti)];
        session
            .transact(|txn| txn.put_with_metadata(ns, key, b"v", Metadata { tags, expires_ms }))
            .unwrap();
    };
    put(b"past", b"g1", now - 1000);
    put(b"later", b"g2", now + 3_600_000);
    put(b"put off", b"g3", now - 500);
    put(b"put off", b"g3", now + 3_600_000);
    put(b"for ever", b"g4", 0);
    assert!(session.get(ns, b"past").unwrap().is_none());
    assert!(session.find(ns, "guti", b"g1").unwrap().is_none());
    assert_eq!(session.count(ns).unwrap(), 3);
    assert!(!session.delete(ns, b"past").unwrap());
    assert_eq!(session.get(ns, b"later").unwrap().unwrap().expires_ms(), now + 3_600_000);
    // Its value is free for another record, collected or not.
    put(b"heir", b"g1", 0);
    assert_eq!(session.find(ns, "guti", b"g1").unwrap().unwrap().key(), b"heir");
    put(b"past", b"g5", now - 10);
    let both = [session.collect_expired(100).unwrap(), other.collect_expired(100).unwrap()];
    assert_eq!(both.iter().map(|collected| collected.records).sum::<usize>(), 1);
    assert_eq!(session.collect_expired(100).unwrap().records, 0);
    assert_eq!(session.count(ns).unwrap(), 4);
    for n in 0..500 {
        put(format!("many-{n}").as_bytes(), format!("m{n}").as_bytes(), now - n % 50);
    }
    // Those who put collect as well: less than all is left.
    let first = session.collect_expired(5).unwrap();
    assert_eq!((first.records, first.has_more), (5, true));
    let rest = session.collect_expired(10_000).unwrap();
    assert!((1..100).contains(&rest.records), "{rest:?}");
    assert!(!rest.has_more);
    assert_eq!(session.count(ns).unwrap(), 4);
    drop((session, other));
    fixture.close_and_check();
}

/// A walk that was validated once came twice to a part of a list that had taken another's position,
/// and forgot that it had been told something else of it before.
#[test]
fn a_walk_that_is_validated_once_depends_on_everything_it_read() {
    let fixture = TestRegion::new();
    let (session, other) = (fixture.region.session().unwrap(), fixture.region.session().unwrap());
    let tags = vec![TagSchema { name: "dnn".to_owned(), ..TagSchema::default() }];
    let ns = session.namespace("sessions", &Schema { tags, ..Schema::default() }).unwrap();
    // More than a part of the list takes.
    let keys: Vec<String> = (0..30).map(|number| format!("session {number:4}")).collect();
    for key in &keys {
        put(&session, ns, key, &[("dnn", "ims")]).unwrap();
    }
    let order = keys_of(&session, ns, "dnn", Values::Equal(b"ims"));
    assert_eq!(order.len(), keys.len());
    let mut found = Vec::new();
    let txn = session.begin().unwrap();
    let walked = txn.validated_once(|| {
        txn.find_all(ns, "dnn", Values::Equal(b"ims"), |key| {
            found.push(key.to_vec());
            if found.len() == 1 {
                // One part takes all of them by then, also those that the walk is through with.
                for key in order.iter().skip(1) {
                    assert!(other.delete(ns, key.as_bytes()).unwrap());
                }
                for number in 0..10 {
                    put(&other, ns, &format!("new {number}"), &[("dnn", "ims")]).unwrap();
                }
            }
            true
        })
    });
    assert!(matches!(walked, Err(Error::Conflict { .. })), "{walked:?}, found {}", found.len());
    assert!(matches!(txn.commit(), Err(Error::Conflict { .. })));
    drop((session, other));
    fixture.close_and_check();
}

#[test]
fn a_walk_over_entries_of_expired_records_has_a_bound() {
    let fixture = TestRegion::new();
    let session = fixture.region.session().unwrap();
    let ns = sessions(&session);
    let tags: &[(&str, &[u8])] = &[("cell", b"c")];
    let past = Metadata { tags, expires_ms: now_ms_coarse() - 1000 };
    session
        .transact(|txn| {
            (0..10_u8).try_for_each(|n| txn.put_with_metadata(ns, &[b'a', n], b"", past))
        })
        .unwrap();
    put(&session, ns, "b", &[("cell", "c")]).unwrap();
    put(&session, ns, "c", &[("cell", "c")]).unwrap();
    let found = |most, wanted| {
        let mut keys = Vec::new();
        let is_all = session.find_some(ns, ("cell", Values::Equal(b"c")), most, |view| {
            keys.push(view.key().to_vec());
            keys.len() < wanted
        });
        (is_all.unwrap(), keys.concat())
    };
    assert_eq!(found(0, 9), (false, b"".to_vec()));
    assert_eq!(found(10, 9), (false, b"".to_vec()));
    assert_eq!(found(11, 9), (false, b"b".to_vec()));
    assert_eq!(found(11, 1), (true, b"b".to_vec()), "that was enough");
    assert_eq!(found(12, 9), (true, b"bc".to_vec()));
    drop(session);
    fixture.close_and_check();
}

#[test]
fn every_new_record_must_have_a_required_tag() {
    let fixture = TestRegion::new();
    let session = fixture.region.session().unwrap();
    let tags = vec![TagSchema { is_required: true, ..unique("supi") }];
    let ns =
        session.namespace("values", &Schema { tags: tags.clone(), ..Schema::default() }).unwrap();
    let schema = Schema { kind: Kind::Blocks, tags };
    let blocks = session.namespace("blocks", &schema).unwrap();
    let change = BlockChange { name: "auth", bytes: Some(b"k") };
    for refused in [
        session.put(ns, b"a", b"v").map(drop),
        session.patch(blocks, b"a", &[change], Condition::Always).map(drop),
    ] {
        assert!(refused.unwrap_err().to_string().contains("supi"));
    }
    let metadata = Metadata { tags: &[("supi", b"imsi-1")], expires_ms: 0 };
    session
        .transact(|txn| {
            txn.patch(blocks, b"a", &[change])?;
            assert!(txn.set_metadata(blocks, b"a", metadata)?);
            txn.put_with_metadata(ns, b"a", b"v", metadata)
        })
        .unwrap();
    session.patch(blocks, b"a", &[change], Condition::Always).unwrap();
    // A transaction may be used while it looks for records.
    session
        .transact::<_, Error>(|txn| {
            let mut seen = 0;
            txn.find_all(ns, "supi", Values::Equal(b"imsi-1"), |key| {
                seen += usize::from(txn.get(ns, key).unwrap().is_some());
                true
            })?;
            assert_eq!(seen, 1);
            Ok(())
        })
        .unwrap();
    drop(session);
    fixture.close_and_check();
}

fn to(bytes: &[u8]) -> [BlockChange<'_>; 1] {
    [BlockChange { name: "state", bytes: Some(bytes) }]
}

#[test]
fn a_patch_keeps_the_index_entries_of_a_record() {
    let fixture = TestRegion::new();
    let session = fixture.region.session().unwrap();
    let tags = vec![TagSchema { is_required: true, ..unique("supi") }, ordered("seen")];
    let ns = session.namespace("ue", &Schema { kind: Kind::Blocks, tags }).unwrap();
    for number in 0..20_u8 {
        let tags: &[(&str, &[u8])] = &[("supi", &[number]), ("seen", b"now")];
        let metadata = Metadata { tags, expires_ms: 0 };
        session
            .transact(|txn| {
                txn.patch(ns, &[number], &to(b"idle"))?;
                txn.set_metadata(ns, &[number], metadata).map(drop)
            })
            .unwrap();
    }
    for number in (0..20_u8).rev() {
        let long = vec![number; usize::from(number) * 40];
        session.patch(ns, &[number], &to(&long), Condition::Present).unwrap();
        let view = session.find(ns, "supi", &[number]).unwrap().unwrap();
        assert_eq!(view.block("state"), Some(long.as_slice()));
    }
    let mut seen = 0;
    session
        .find_all(ns, "seen", Values::Equal(b"now"), |_| {
            seen += 1;
            true
        })
        .unwrap();
    assert_eq!(seen, 20);
    // One whose time has passed is none: it has no tags to keep, and the new one lacks one.
    session
        .transact(|txn| {
            let metadata = Metadata { tags: &[("supi", &[7])], expires_ms: 1 };
            txn.set_metadata(ns, &[7], metadata).map(drop)
        })
        .unwrap();
    let refused = session.patch(ns, &[7], &to(b"again"), Condition::Always).unwrap_err();
    assert!(refused.to_string().contains("supi"), "{refused}");
    drop(session);
    fixture.close_and_check();
}

#[test]
fn two_concurrent_patches_of_one_record_keep_each_others_blocks() {
    const PATCHES: u32 = 20_000;
    let fixture = TestRegion::new();
    let session = fixture.region.session().unwrap();
    for tags in [vec![], vec![unique("supi")]] {
        let has_tags = !tags.is_empty();
        let name = if has_tags { "tagged" } else { "plain" };
        let ns = session.namespace(name, &Schema { kind: Kind::Blocks, tags }).unwrap();
        let supi: &[(&str, &[u8])] = if has_tags { &[("supi", b"1")] } else { &[] };
        let zero = 0_u32.to_le_bytes();
        let names = ["bearer", "radio"];
        let first = names.map(|name| BlockChange { name, bytes: Some(&zero) });
        session
            .transact(|txn| {
                txn.patch(ns, b"ue", &first)?;
                txn.set_metadata(ns, b"ue", Metadata { tags: supi, expires_ms: 0 }).map(drop)
            })
            .unwrap();
        std::thread::scope(|scope| {
            for name in names {
                let region = fixture.region.clone();
                scope.spawn(move || {
                    let session = region.session().unwrap();
                    for number in 1..=PATCHES {
                        let bytes = number.to_le_bytes();
                        let change = BlockChange { name, bytes: Some(&bytes) };
                        session.patch(ns, b"ue", &[change], Condition::Present).unwrap();
                        let view = session.get(ns, b"ue").unwrap().unwrap();
                        assert_eq!(view.block(name), Some(bytes.as_slice()), "a patch is lost");
                    }
                });
            }
        });
        assert_eq!(session.get(ns, b"ue").unwrap().unwrap().tags().count(), supi.len());
    }
    drop(session);
    fixture.close_and_check();
}

#[test]
fn prefetching_changes_nothing_for_any_input() {
    let fixture = TestRegion::new();
    let session = fixture.region.session().unwrap();
    let plain = session.namespace("plain", &Schema::default()).unwrap();
    let long = [b'v'; 300];
    let before = fixture.region.inspect().unwrap().bytes_taken;
    // No tag has been used yet: even the table of all indexes does not exist.
    session.prefetch_operations(&[Some(Prefetch::Find(plain, "guti", b"1")), None]);
    assert_eq!(fixture.region.inspect().unwrap().bytes_taken, before);
    assert!(session.find(plain, "guti", b"1").is_err(), "no tag is declared");
    assert_eq!(fixture.region.inspect().unwrap().bytes_taken, before, "a search makes no index");
    let ns = sessions(&session);
    put(&session, ns, "a", &[("guti", "1"), ("cell", "c")]).unwrap();
    put(&session, ns, "b", &[("guti", "2")]).unwrap();
    let before = fixture.region.inspect().unwrap().bytes_taken;
    let mut wanted = vec![
        None,
        Some(Prefetch::Touch(ns, b"a")),
        Some(Prefetch::Read(ns, b"absent")),
        Some(Prefetch::Read(plain, &long)),
        Some(Prefetch::Find(ns, "guti", b"1")),
        Some(Prefetch::Find(ns, "guti", b"3")),
        Some(Prefetch::Find(ns, "guti", &long)),
        Some(Prefetch::Find(ns, "cell", b"c")),
        Some(Prefetch::Find(ns, "none", b"c")),
        Some(Prefetch::Find(plain, "guti", b"1")),
    ];
    wanted.extend_from_within(..);
    session.prefetch_operations(&wanted);
    assert_eq!(fixture.region.inspect().unwrap().bytes_taken, before);
    for (value, key) in [("1", "a"), ("2", "b")] {
        let found = session.find(ns, "guti", value.as_bytes()).unwrap().unwrap();
        assert_eq!(found.key(), key.as_bytes());
    }
    drop(session);
    fixture.close_and_check();
}
