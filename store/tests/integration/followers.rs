//! Several followers of one region, and several namespaces of one promotion.

use nearstate_model::Error;
use nearstate_model::limits::BLOCKS_MAX;
use nearstate_store::{
    Collected, EventKind, FeedItem, FeedSink, FeedStep, Filter, FollowPosition, FollowedRecord,
    Kind, LogIdentity, Metadata, NamespaceLimits, Notice, Schema, Session, StreamedChange,
    TagSchema, Txn, WhenFull, now_ms, now_ms_coarse,
};

use crate::fixture::refused;
use crate::follow::{Host, change, contents, deliver, mixed, run, start};

#[test]
fn a_promotion_takes_one_generation_of_versions_whatever_the_number_of_namespaces() {
    let (host, backup) = (Host::new(), Host::new());
    let (source, copy) = (host.region.session().unwrap(), backup.region.session().unwrap());
    let names = ["one", "two", "three"];
    for name in names {
        let namespace = source.namespace(name, &mixed()).unwrap();
        source.stream(namespace, WhenFull::Refuse).unwrap();
        source.put(namespace, b"k", b"v").unwrap();
    }
    let mut follower = copy.follow().unwrap();
    let mut feed = start(&source, &mut follower, &copy);
    run(&source, &mut feed, &mut follower);
    drop((feed, follower));
    copy.promote(false).unwrap();
    // `generation:19 | changes:23`, see spec/region.md.
    let generations = names.map(|name| {
        let namespace = copy.namespace(name, &mixed()).unwrap();
        copy.put(namespace, b"new", b"v").unwrap() >> 23
    });
    assert_eq!(generations, [1, 1, 1]);
}

#[test]
fn a_follower_whose_acknowledgement_comes_late_gets_every_entry_that_another_one_has() {
    let [host, ahead, behind] = [0; 3].map(|_| Host::new());
    let [source, first, second] =
        [&host, &ahead, &behind].map(|host| host.region.session().unwrap());
    let ns = source.namespace("ue", &mixed()).unwrap();
    source.stream(ns, WhenFull::Refuse).unwrap();
    (0..50).for_each(|number| change(&source, ns, number));
    for copy in [&first, &second] {
        let mut follower = copy.follow().unwrap();
        let mut feed = start(&source, &mut follower, copy);
        run(&source, &mut feed, &mut follower);
    }
    (50..100).for_each(|number| change(&source, ns, number));
    // The second one applies these entries. Its acknowledgement is still in flight.
    let mut follower = second.follow().unwrap();
    let mut feed = start(&source, &mut follower, &second);
    let mut applied = 0;
    while feed
        .step(true, &mut |item: FeedItem<'_>| deliver(&mut follower, item, &mut applied))
        .unwrap()
        == FeedStep::More
    {}
    drop(follower);
    (100..150).for_each(|number| change(&source, ns, number));
    // The first one gets all of them, and the log forgets them: the second one does not count.
    let mut other_follower = first.follow().unwrap();
    let mut other = start(&source, &mut other_follower, &first);
    run(&source, &mut other, &mut other_follower);
    feed.note_acknowledged(applied).unwrap();
    drop(feed);
    // Its process has ended, and another one connects.
    let mut follower = second.follow().unwrap();
    let mut feed = start(&source, &mut follower, &second);
    run(&source, &mut feed, &mut follower);
    let mirrored = second.namespace("ue", &mixed()).unwrap();
    assert_eq!(contents(&second, mirrored), contents(&source, ns));
}

/// A value of a namespace without tags and expiry is put without a transaction.
#[test]
fn an_entry_of_one_value_is_applied_once_and_only_to_the_version_that_it_replaces() {
    let (host, backup) = (Host::new(), Host::new());
    let (source, copy) = (host.region.session().unwrap(), backup.region.session().unwrap());
    let ns = source.namespace("ue", &Schema::default()).unwrap();
    source.stream(ns, WhenFull::Refuse).unwrap();
    source.put(ns, b"k", b"one").unwrap();
    let mut follower = copy.follow().unwrap();
    let mut feed = start(&source, &mut follower, &copy);
    run(&source, &mut feed, &mut follower);
    let mirrored = copy.namespace("ue", &Schema::default()).unwrap();
    let stored = || {
        let view = copy.get(mirrored, b"k").unwrap().unwrap();
        (view.version(), view.bytes().to_vec())
    };
    let (first, _) = stored();
    let entry = |base, version, value| FollowedRecord {
        namespace: ns.number(),
        key: b"k",
        version,
        base_version: Some(base),
        change: StreamedChange::Put { value, meta: &[], is_set: false },
    };
    for _ in 0..2 {
        follower.apply(0, &[entry(first, first + 5, b"two")]).unwrap();
        assert_eq!(stored(), (first + 5, b"two".to_vec()));
    }
    // Older than what the copy has: a killed follower has applied it behind its position.
    follower.apply(0, &[entry(first, first + 1, b"late")]).unwrap();
    assert_eq!(stored(), (first + 5, b"two".to_vec()));
    let other = follower.apply(0, &[entry(first + 4, first + 9, b"of another log")]);
    refused(other, &["is not a copy of it"]);
    refused(follower.apply(0, &[entry(first + 5, 0, b"no version")]), &["no record has"]);
    assert_eq!(stored(), (first + 5, b"two".to_vec()));
    // A watch learns of a put.
    let mut watch = copy.watch(mirrored, Filter::Namespace).unwrap();
    follower.apply(0, &[entry(first + 5, first + 6, b"seen")]).unwrap();
    let notice = watch.next().unwrap();
    assert!(matches!(notice, Some(Notice::Event(event)) if event.key == b"k"), "{notice:?}");
    drop((watch, feed, follower));
    drop((source, copy));
    host.check();
    backup.check();
}

/// A patch of a record that the copy has is applied without a transaction, also of one with a tag.
#[test]
fn a_patch_is_applied_once_and_only_to_the_version_that_it_replaces() {
    let (host, backup) = (Host::new(), Host::new());
    let (source, copy) = (host.region.session().unwrap(), backup.region.session().unwrap());
    let tags = vec![TagSchema { name: "guti".to_owned(), is_unique: true, ..TagSchema::default() }];
    let schema = Schema { kind: Kind::Blocks, tags };
    let ns = source.namespace("ue", &schema).unwrap();
    source.stream(ns, WhenFull::Refuse).unwrap();
    let metadata = Metadata { tags: &[("guti", b"7")], expires_ms: 0 };
    source
        .transact(|txn| txn.put_fields(ns, b"k", &[(b"a", b"1"), (b"b", b"1")], metadata))
        .unwrap();
    let mut follower = copy.follow().unwrap();
    let mut feed = start(&source, &mut follower, &copy);
    run(&source, &mut feed, &mut follower);
    let mirrored = copy.namespace("ue", &schema).unwrap();
    let stored = || {
        let view = copy.get(mirrored, b"k").unwrap().unwrap();
        let block = |name| view.block(name).map(<[u8]>::to_vec);
        (view.version(), block("a"), block("b"))
    };
    let (first, ..) = stored();
    let patch = |base, version, name: &'static [u8], bytes| FollowedRecord {
        namespace: ns.number(),
        key: b"k",
        version,
        base_version: Some(base),
        change: StreamedChange::Patched { is_anew: false, blocks: vec![(name, bytes)], meta: None },
    };
    let large = vec![9; 5000];
    let (one, many) = (Some(b"1".to_vec()), Some(large.clone()));
    for _ in 0..2 {
        follower.apply(0, &[patch(first, first + 2, b"b", Some(&large))]).unwrap();
        assert_eq!(stored(), (first + 2, one.clone(), many.clone()));
    }
    follower.apply(0, &[patch(first, first + 1, b"a", None)]).unwrap();
    assert_eq!(stored(), (first + 2, one.clone(), many.clone()), "older than what the copy has");
    let other = follower.apply(0, &[patch(first + 1, first + 3, b"a", None)]);
    refused(other, &["is not a copy of it"]);
    refused(follower.apply(0, &[patch(first + 2, first + 3, b"", None)]), &["name"]);
    refused(follower.apply(0, &[patch(first + 2, first + 3, b"\xff", None)]), &["not UTF-8"]);
    assert_eq!(stored(), (first + 2, one, many));
    follower.apply(0, &[patch(first + 2, first + 3, b"b", Some(&large))]).unwrap();
    follower.apply(0, &[patch(first + 3, first + 4, b"a", None)]).unwrap();
    assert_eq!(stored(), (first + 4, None, Some(large)));
    assert_eq!(copy.find(mirrored, "guti", b"7").unwrap().unwrap().key(), b"k");
    drop((feed, follower));
    drop((source, copy));
    host.check();
    backup.check();
}

/// No patch may have as many changes, so the record is sent as a whole.
#[test]
fn a_record_whose_blocks_are_all_replaced_by_as_many_others_reaches_a_copy() {
    let (host, backup) = (Host::new(), Host::new());
    let (source, copy) = (host.region.session().unwrap(), backup.region.session().unwrap());
    let tags = vec![TagSchema { name: "guti".to_owned(), is_unique: true, ..TagSchema::default() }];
    let schema = Schema { kind: Kind::Blocks, tags };
    let ns = source.namespace("ue", &schema).unwrap();
    source.stream(ns, WhenFull::Refuse).unwrap();
    let mut follower = copy.follow().unwrap();
    let mut feed = start(&source, &mut follower, &copy);
    let names: Vec<String> = (0..2 * BLOCKS_MAX).map(|number| number.to_string()).collect();
    let metadata = Metadata { tags: &[("guti", b"7")], expires_ms: 0 };
    for names in names.chunks(BLOCKS_MAX) {
        let fields: Vec<_> = names.iter().map(|name| (name.as_bytes(), &b"1"[..])).collect();
        source.transact(|txn| txn.put_fields(ns, b"k", &fields, metadata)).unwrap();
        run(&source, &mut feed, &mut follower);
        let mirrored = copy.namespace("ue", &schema).unwrap();
        assert_eq!(contents(&copy, mirrored), contents(&source, ns));
        assert_eq!(copy.find(mirrored, "guti", b"7").unwrap().unwrap().key(), b"k");
    }
    drop((feed, follower));
    drop((source, copy));
    host.check();
    backup.check();
}

/// The holder of a unique value has expired when a walk brings the record that has the value now.
#[test]
fn a_record_that_joins_takes_its_unique_value_from_an_expired_record() {
    let (host, backup) = (Host::new(), Host::new());
    let (source, copy) = (host.region.session().unwrap(), backup.region.session().unwrap());
    let ns = source.namespace("ue", &mixed()).unwrap();
    source.stream(ns, WhenFull::Refuse).unwrap();
    let put = |key: &[u8], expires_ms| {
        let metadata = Metadata { tags: &[("guti", b"1")], expires_ms };
        source.transact(|txn| txn.put_with_metadata(ns, key, b"v", metadata)).unwrap();
    };
    let expires_ms = now_ms() + 300;
    put(b"old", expires_ms);
    let mut follower = copy.follow().unwrap();
    let mut feed = start(&source, &mut follower, &copy);
    run(&source, &mut feed, &mut follower);
    while now_ms() <= expires_ms {
        std::thread::yield_now();
    }
    put(b"new", 0);
    // The walk of another follower.
    let (mut walk, _) = source.log_feed(LogIdentity::default(), FollowPosition::default()).unwrap();
    let mut has_arrived = false;
    let mut bring = |item: FeedItem<'_>| match item {
        FeedItem::Record(record) if record.key == b"new" => {
            has_arrived = true;
            follower.apply_joining(&record)
        }
        FeedItem::Namespace(_)
        | FeedItem::Removed { .. }
        | FeedItem::Record(_)
        | FeedItem::Joined(_)
        | FeedItem::Entry { .. } => Ok(()),
    };
    while walk.step(true, &mut bring).unwrap() == FeedStep::More {}
    assert!(has_arrived);
    drop((walk, feed, follower));
    let mirrored = copy.namespace("ue", &mixed()).unwrap();
    let found: Vec<Vec<u8>> = contents(&copy, mirrored).into_keys().collect();
    assert_eq!(found, [b"new".to_vec()]);
    drop((source, copy));
    host.check();
    backup.check();
}

/// Entries of the order of expiry are removed at a copy as at the source, and own records expire.
#[test]
fn a_copy_forgets_when_deleted_records_would_have_expired() {
    // More than a collection passes in each tree. After the last one a writer has just collected.
    const DELETED: u64 = 69 * 16;
    let (host, backup) = (Host::new(), Host::new());
    let (source, copy) = (host.region.session().unwrap(), backup.region.session().unwrap());
    let ns = source.namespace("ue", &Schema::default()).unwrap();
    source.stream(ns, WhenFull::Refuse).unwrap();
    let mut follower = copy.follow().unwrap();
    let mut feed = start(&source, &mut follower, &copy);
    let put = |session: &Session, ns, key: &[u8], expires_ms| {
        let metadata = Metadata { tags: &[], expires_ms };
        session.transact(|txn| txn.put_with_metadata(ns, key, b"v", metadata)).unwrap();
    };
    // They are deleted before: a slow machine needs a second for as many puts.
    let (soon, later) = (now_ms() + 3_000, now_ms() + 3_600_000);
    for number in 0..DELETED {
        put(&source, ns, &number.to_le_bytes(), soon);
        if number % 100 == 0 {
            run(&source, &mut feed, &mut follower);
        }
    }
    let end = soon.max(now_ms() + 100);
    put(&source, ns, b"expires", end);
    put(&source, ns, b"postponed", end);
    run(&source, &mut feed, &mut follower);
    for number in 0..DELETED {
        source.delete(ns, &number.to_le_bytes()).unwrap();
    }
    put(&source, ns, b"postponed", later);
    run(&source, &mut feed, &mut follower);
    let reader = backup.region.session().unwrap();
    let own = reader.namespace("own", &Schema::default()).unwrap();
    let end = end.max(now_ms() + 1);
    // Entries of every sixteenth session are in one order: this one is behind those of the copy.
    let sessions: Vec<_> = (0..15).map(|_| backup.region.session().unwrap()).collect();
    put(sessions.last().unwrap(), own, b"mine", end);
    drop(sessions);
    // The collector goes by the coarse clock.
    while now_ms_coarse() <= end {
        std::thread::yield_now();
    }
    let collected = reader.collect_expired(usize::MAX).unwrap();
    assert_eq!(collected.records, 1, "the own record, and none of the source");
    // Nothing is left to do but what the source decides.
    assert_eq!(reader.collect_expired(1).unwrap(), Collected::default());
    let mirrored = reader.namespace("ue", &Schema::default()).unwrap();
    assert_eq!(reader.get(mirrored, b"postponed").unwrap().unwrap().expires_ms(), later);
    drop((feed, follower));
    reader.promote(false).unwrap();
    assert_eq!(reader.collect_expired(usize::MAX).unwrap().records, 1, "it is the copy's now");
    assert_eq!(reader.get(mirrored, b"postponed").unwrap().unwrap().expires_ms(), later);
    drop((source, copy, reader));
    host.check();
    backup.check();
}

/// The change between the two forms of a collection is sent as a whole.
#[test]
fn a_collection_that_becomes_large_or_small_keeps_its_metadata_at_a_copy() {
    let (host, backup) = (Host::new(), Host::new());
    let (source, copy) = (host.region.session().unwrap(), backup.region.session().unwrap());
    let ns = source.namespace("ue", &mixed()).unwrap();
    source.stream(ns, WhenFull::Refuse).unwrap();
    let mut follower = copy.follow().unwrap();
    let mut feed = start(&source, &mut follower, &copy);
    let expires_ms = now_ms() + 3_600_000;
    let names: Vec<[u8; 8]> = (0..2_000_u64).map(u64::to_le_bytes).collect();
    let names: Vec<&[u8]> = names.iter().map(|name| &name[..]).collect();
    let fields: Vec<(&[u8], &[u8])> = names.iter().map(|name| (*name, &b"value"[..])).collect();
    source
        .transact(|txn| {
            txn.put_fields(
                ns,
                b"hash",
                &fields[..2],
                Metadata { tags: &[("guti", b"1")], expires_ms },
            )?;
            txn.put_members(
                ns,
                b"set",
                &names[..2],
                Metadata { tags: &[("guti", b"2")], expires_ms },
            )
        })
        .unwrap();
    let mut compare = || {
        run(&source, &mut feed, &mut follower);
        let mirrored = copy.namespace("ue", &mixed()).unwrap();
        assert_eq!(contents(&copy, mirrored), contents(&source, ns));
        for (guti, key) in [(b"1", &b"hash"[..]), (b"2", &b"set"[..])] {
            let found = copy.find(mirrored, "guti", guti).unwrap();
            assert_eq!(found.unwrap().key(), key, "the index has it");
        }
    };
    compare();
    source
        .transact(|txn| {
            txn.set_fields(ns, b"hash", &fields)?;
            txn.add_members(ns, b"set", &names).map(drop)
        })
        .unwrap();
    compare();
    source
        .transact(|txn| {
            txn.remove_fields(ns, b"hash", &names[2..])?;
            txn.remove_members(ns, b"set", &names[2..]).map(drop)
        })
        .unwrap();
    compare();
    drop((feed, follower));
    drop((source, copy));
    host.check();
    backup.check();
}

/// At the source the expiry times lie in sixteen trees, at a copy in one, so its transactions have
/// more nodes.
#[test]
fn a_copy_applies_the_largest_transaction_of_scattered_expiry_times() {
    const RECORDS: u64 = 3_600;
    let (host, backup) = (Host::new(), Host::new());
    let [source, other] = [0; 2].map(|_| host.region.session().unwrap());
    let copy = backup.region.session().unwrap();
    let ns = source.namespace("ue", &Schema::default()).unwrap();
    source.stream(ns, WhenFull::Refuse).unwrap();
    let mut follower = copy.follow().unwrap();
    let mut feed = start(&source, &mut follower, &copy);
    let begin = now_ms() + 3_600_000;
    let put = |txn: &Txn<'_>, number: u64, expires_ms| {
        let metadata = Metadata { tags: &[], expires_ms };
        txn.put_with_metadata(ns, &number.to_le_bytes(), b"v", metadata)
    };
    for round in 0..60_u64 {
        other
            .transact(|txn| {
                (0..500).try_for_each(|number| {
                    let number = 500 * round + number;
                    put(txn, RECORDS + number, begin + number * 7_919 % 30_011)
                })
            })
            .unwrap();
        run(&source, &mut feed, &mut follower);
    }
    source
        .transact(|txn| {
            (0..RECORDS).try_for_each(|number| put(txn, number, begin + number * 7_907 % 30_011))
        })
        .unwrap();
    run(&source, &mut feed, &mut follower);
    let mirrored = copy.namespace("ue", &Schema::default()).unwrap();
    assert_eq!(contents(&copy, mirrored), contents(&source, ns));
    drop((feed, follower));
    drop((source, other, copy));
    host.check();
    backup.check();
}

/// The names that were removed are not sent when the record is the smaller part.
#[test]
fn a_large_collection_that_is_replaced_is_sent_as_a_whole() {
    let (host, backup) = (Host::new(), Host::new());
    let (source, copy) = (host.region.session().unwrap(), backup.region.session().unwrap());
    let ns = source.namespace("ue", &mixed()).unwrap();
    source.stream(ns, WhenFull::Refuse).unwrap();
    let mut follower = copy.follow().unwrap();
    let mut feed = start(&source, &mut follower, &copy);
    let names = |first: u64, count: u64| -> Vec<Vec<u8>> {
        (first..first + count).map(|number| number.to_be_bytes().repeat(64)).collect()
    };
    let put = |names: &[Vec<u8>], guti: &[u8]| {
        let members: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
        let metadata = Metadata { tags: &[("guti", guti)], expires_ms: 0 };
        source.transact(|txn| txn.put_members(ns, b"set", &members, metadata)).unwrap();
    };
    put(&names(0, 600), b"1");
    run(&source, &mut feed, &mut follower);
    put(&names(600, 100), b"1");
    let mut largest = 0;
    let mut applied = 0;
    while feed
        .step(true, &mut |item: FeedItem<'_>| {
            if let FeedItem::Entry { records, .. } = &item {
                for record in records {
                    let StreamedChange::Elements { is_anew, elements, meta, .. } = &record.change
                    else {
                        panic!("{:?}", record.change)
                    };
                    assert!(*is_anew && meta.is_some(), "the whole record");
                    largest = largest.max(elements.len());
                }
            }
            deliver(&mut follower, item, &mut applied)
        })
        .unwrap()
        == FeedStep::More
    {}
    assert_eq!(largest, 100);
    let mirrored = copy.namespace("ue", &mixed()).unwrap();
    assert_eq!(contents(&copy, mirrored), contents(&source, ns));
    drop((feed, follower));
    drop((source, copy));
    host.check();
    backup.check();
}

/// A limit that the copy has, from a time when it was the owner or from an operator, is none of
/// what its source has committed. What the records take is counted all the same.
#[test]
fn a_limit_of_the_copy_refuses_no_entry_of_its_source() {
    let (host, backup) = (Host::new(), Host::new());
    let (source, copy) = (host.region.session().unwrap(), backup.region.session().unwrap());
    let ns = source.namespace("ue", &mixed()).unwrap();
    source.stream(ns, WhenFull::Refuse).unwrap();
    source.put(ns, b"one", &[1; 600]).unwrap();
    let mut follower = copy.follow().unwrap();
    let mut feed = start(&source, &mut follower, &copy);
    run(&source, &mut feed, &mut follower);
    let mirrored = copy.namespace("ue", &mixed()).unwrap();
    let limits = NamespaceLimits { soft_bytes: 0, hard_bytes: 1024 };
    copy.set_limits(mirrored, limits).unwrap();
    source.put(ns, b"two", &[2; 600]).unwrap();
    source.transact(|txn| txn.put(ns, b"three", &[3; 600])).unwrap();
    run(&source, &mut feed, &mut follower);
    assert_eq!(contents(&copy, mirrored), contents(&source, ns));
    let usage = copy.usage(mirrored).unwrap().unwrap();
    assert!(usage.used_bytes > limits.hard_bytes, "{usage:?}");
    drop((feed, follower));
    copy.promote(false).unwrap();
    let refused = copy.put(mirrored, b"four", b"4");
    assert!(matches!(refused, Err(Error::LimitReached { .. })), "{refused:?}");
    drop((source, copy));
    host.check();
    backup.check();
}

/// The watch of a copy says what that of the source says.
#[test]
fn a_copy_announces_the_expiry_of_a_record_as_its_source_does() {
    let (host, backup) = (Host::new(), Host::new());
    let (source, copy) = (host.region.session().unwrap(), backup.region.session().unwrap());
    let ns = source.namespace("ue", &mixed()).unwrap();
    source.stream(ns, WhenFull::Refuse).unwrap();
    let put = |key: &[u8], expires_ms| {
        let metadata = Metadata { tags: &[("amf", b"1")], expires_ms };
        source.transact(|txn| txn.put_with_metadata(ns, key, b"v", metadata)).unwrap();
    };
    let (past, later) = (now_ms_coarse() - 1, now_ms_coarse() + 3_600_000);
    for key in [&b"collected"[..], b"put", b"fields", b"deleted while expired"] {
        put(key, past);
    }
    put(b"put before", later);
    put(b"deleted", 0);
    let mut follower = copy.follow().unwrap();
    let mut feed = start(&source, &mut follower, &copy);
    run(&source, &mut feed, &mut follower);
    let mirrored = copy.namespace("ue", &mixed()).unwrap();
    let mut watches = [
        source.watch(ns, Filter::Namespace).unwrap(),
        copy.watch(mirrored, Filter::Namespace).unwrap(),
    ];
    source.put(ns, b"put", b"anew").unwrap();
    source.transact(|txn| txn.set_fields(ns, b"fields", &[(b"a", b"1")])).unwrap();
    source.transact(|txn| txn.delete(ns, b"deleted while expired")).unwrap();
    source.put(ns, b"put before", b"anew").unwrap();
    assert!(source.delete(ns, b"deleted").unwrap());
    assert_eq!(source.collect_expired(10).unwrap().records, 1);
    run(&source, &mut feed, &mut follower);
    let [expected, seen] = watches.each_mut().map(|watch| {
        let mut events = Vec::new();
        while let Some(Notice::Event(event)) = watch.next().unwrap() {
            events.push((event.key.to_vec(), event.kind, event.version));
        }
        events
    });
    let kinds: Vec<_> = expected.iter().map(|(key, kind, _)| (key.as_slice(), *kind)).collect();
    assert_eq!(
        kinds,
        [
            (&b"put"[..], EventKind::Expired),
            (b"put", EventKind::Created),
            (b"fields", EventKind::Expired),
            (b"fields", EventKind::Created),
            (b"deleted while expired", EventKind::Expired),
            (b"put before", EventKind::Updated),
            (b"deleted", EventKind::Deleted),
            (b"collected", EventKind::Expired),
        ]
    );
    assert_eq!(seen, expected);
}

/// A follower that takes nothing holds back no memory of the source.
#[test]
fn a_feed_whose_follower_takes_nothing_holds_no_memory_between_two_steps() {
    let (host, backup) = (Host::new(), Host::new());
    let (source, copy) = (host.region.session().unwrap(), backup.region.session().unwrap());
    let ns = source.namespace("ue", &mixed()).unwrap();
    source.stream(ns, WhenFull::Refuse).unwrap();
    let mut follower = copy.follow().unwrap();
    let mut feed = start(&source, &mut follower, &copy);
    run(&source, &mut feed, &mut follower);
    (0..5).for_each(|number| change(&source, ns, number));
    assert_eq!(feed.step(true, &mut FullSink).unwrap(), FeedStep::More);
    let pinned = || {
        let members = host.region.inspect().unwrap().members;
        members.iter().filter(|one| one.pinned_epoch.is_some()).count()
    };
    assert_eq!(pinned(), 0);
}

/// It takes one item at a time.
struct FullSink;

impl FeedSink for FullSink {
    fn send(&mut self, _: FeedItem<'_>) -> nearstate_model::Result<()> {
        Ok(())
    }

    fn is_full(&self) -> bool {
        true
    }
}
