//! A region that follows the log of another one: what it has, what it refuses, what survives kills
//! and reconnections, and its promotion.

use std::collections::BTreeMap;

use nearstate_store::{
    BlockChange, Condition, CreateOptions, Error, FeedItem, FeedStart, FeedStep, FollowPosition,
    FollowState, FollowedNamespace, FollowedRecord, Follower, Kind, LogFeed, LogIdentity, Metadata,
    Namespace, Outcome, Region, ReplicationPolicy, Schema, Session, StreamedChange, TagSchema,
    WhenFull,
};

use crate::fixture::{TestFolder, clean};

pub(crate) struct Host {
    pub(crate) folder: TestFolder,
    pub(crate) region: Region,
}

impl Host {
    pub(crate) fn new() -> Self {
        let folder = TestFolder::new();
        let options = CreateOptions { bytes_max: 64 << 20, ..CreateOptions::default() };
        let region = Region::create(&folder.path, &options).unwrap();
        Self { folder, region }
    }

    /// Checks the region after the last session has ended.
    pub(crate) fn check(self) {
        drop(self.region);
        clean(&self.folder.path);
    }
}

pub(crate) fn mixed() -> Schema {
    let tag = |name: &str, is_unique| TagSchema {
        name: name.to_owned(),
        is_unique,
        is_ordered: !is_unique,
        ..TagSchema::default()
    };
    Schema { kind: Kind::Mixed, tags: vec![tag("guti", true), tag("amf", false)] }
}

/// Gives an item to the follower, as the processes of two hosts do.
pub(crate) fn deliver(
    follower: &mut Follower<'_>,
    item: FeedItem<'_>,
    applied: &mut u64,
) -> Result<(), Error> {
    match item {
        FeedItem::Namespace(namespace) => follower.namespace(&namespace),
        FeedItem::Removed { number } => follower.remove_namespace(number),
        FeedItem::Record(record) => follower.apply_joining(&record),
        FeedItem::Joined(place) => {
            *applied = place.position;
            follower.complete(place)
        }
        FeedItem::Entry { place, time_ms, records } => {
            follower.apply_entry(place, time_ms, &records)?;
            *applied = place.position;
            Ok(())
        }
    }
}

/// Runs parts until nothing is left.
pub(crate) fn run(source: &Session, feed: &mut LogFeed<'_>, follower: &mut Follower<'_>) {
    let mut applied = 0;
    loop {
        let step = feed
            .step(true, &mut |item: FeedItem<'_>| deliver(follower, item, &mut applied))
            .unwrap();
        match step {
            FeedStep::More => feed.acknowledged(applied).unwrap(),
            FeedStep::Idle { position } => {
                follower.note_tail(position, source.log_tail_position().unwrap()).unwrap();
                feed.acknowledged(position).unwrap();
                return source.release_to(position, position).unwrap();
            }
            FeedStep::Lost => panic!("the log has lost entries"),
        }
    }
}

pub(crate) fn start<'s>(
    source: &'s Session,
    follower: &mut Follower<'_>,
    copy: &Session,
) -> LogFeed<'s> {
    let following = copy.following().unwrap();
    let (of, applied) = match following {
        Some(following) if following.state != FollowState::Joining => {
            (following.source, following.applied)
        }
        _ => (LogIdentity::default(), FollowPosition::default()),
    };
    let (feed, start) = source.log_feed(of, applied).unwrap();
    follower.begin_connection().unwrap();
    if start == FeedStart::Joins {
        follower.begin(source.log_identity().unwrap()).unwrap();
    }
    feed
}

/// Everything that a client can read of a namespace.
pub(crate) fn contents(session: &Session, namespace: Namespace) -> BTreeMap<Vec<u8>, Vec<String>> {
    let mut all = BTreeMap::new();
    let mut scan = session.scan(namespace).unwrap();
    while let Some(view) = scan.next().unwrap() {
        let mut parts = vec![format!("{} {:?}", view.version(), view.bytes())];
        let mut fields: Vec<String> =
            view.fields().map(|(name, value)| format!("{name:?} = {value:?}")).collect();
        fields.extend(view.members().map(|member| format!("{member:?}")));
        fields.sort();
        parts.extend(fields);
        parts.extend(view.tags().map(|(name, value)| format!("{name}: {value:?}")));
        parts.push(view.expires_ms().to_string());
        all.insert(view.key().to_vec(), parts);
    }
    all
}

pub(crate) fn key(number: u64) -> Vec<u8> {
    format!("imsi-{number}").into_bytes()
}

/// One of many changes of a record, chosen by a number.
pub(crate) fn change(session: &Session, ns: Namespace, number: u64) {
    let (record, kind) = (key(number * 7 % 40), number * 31 % 11);
    let value = vec![number as u8; (number * 13 % 700) as usize];
    let guti = (number * 5 % 64).to_le_bytes();
    let tags: &[(&str, &[u8])] = &[("guti", &guti), ("amf", b"amf-1")];
    let done = session.transact(|txn| -> Result<(), Error> {
        match kind {
            0 | 1 => txn.put_with_metadata(ns, &record, &value, Metadata { tags, expires_ms: 0 }),
            2 => txn.put(ns, &record, &value),
            3 => txn.delete(ns, &record).map(drop),
            4 | 5 => txn.set_fields(ns, &record, &[(b"pdu", &value), (&guti, b"x")]).map(drop),
            6 => txn.remove_fields(ns, &record, &[b"pdu"]).map(drop),
            7 => txn.add_members(ns, &record, &[&value, b"member"]).map(drop),
            8 => {
                let later = nearstate_store::now_ms() + 3_600_000;
                let metadata = Metadata { tags: &[], expires_ms: later };
                txn.put_with_metadata(ns, &record, b"expiring", metadata)
            }
            9 => {
                let many: Vec<[u8; 8]> = (0..600_u64).map(|n| (n + number).to_le_bytes()).collect();
                let many: Vec<&[u8]> = many.iter().map(|member| &member[..]).collect();
                txn.put_members(ns, &record, &many, Metadata::default())
            }
            _ => {
                txn.put(ns, &key(number % 3), b"first")?;
                txn.put(ns, &key(number % 3 + 100), b"second")
            }
        }
    });
    match done {
        Ok(()) | Err(Error::WrongKind { .. } | Error::TagTaken { .. }) => {}
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_follower_has_every_record_with_its_version_its_tags_and_its_expiry() {
    let (host, backup) = (Host::new(), Host::new());
    let (source, copy) = (host.region.session().unwrap(), backup.region.session().unwrap());
    let ns = source.namespace("ue", &mixed()).unwrap();
    let local = source.namespace("local", &Schema::default()).unwrap();
    source.put(local, b"k", b"stays here").unwrap();
    (0..300).for_each(|number| change(&source, ns, number));
    source.stream(ns, WhenFull::Refuse).unwrap();
    (300..400).for_each(|number| change(&source, ns, number));
    let mut follower = copy.follow().unwrap();
    let mut feed = start(&source, &mut follower, &copy);
    // Writes between the parts of the walk and of the log.
    let (mut applied, mut number) = (0, 400);
    while number < 4000 {
        let step = feed
            .step(true, &mut |item: FeedItem<'_>| deliver(&mut follower, item, &mut applied))
            .unwrap();
        assert_ne!(step, FeedStep::Lost);
        feed.acknowledged(applied).unwrap();
        source.release_to(feed.sent_position(), feed.sent_position()).unwrap();
        for _ in 0..20 {
            change(&source, ns, number);
            number += 1;
        }
    }
    run(&source, &mut feed, &mut follower);
    assert_eq!(follower.state(), FollowState::Full);
    let receipt = source.receipt();
    assert!(source.is_replicated(receipt).unwrap());
    let mirrored = copy.namespace("ue", &Schema { kind: Kind::Mixed, tags: Vec::new() }).unwrap();
    let expected = contents(&source, ns);
    assert!(expected.len() > 20);
    assert_eq!(contents(&copy, mirrored), expected);
    assert!(copy.known_namespace("local").unwrap().is_none());
    // The index of the copy is complete.
    for key in expected.keys() {
        let view = source.get(ns, key).unwrap().unwrap();
        for (name, value) in view.tags().filter(|(name, _)| *name == "guti") {
            let found = copy.find(mirrored, name, value).unwrap().unwrap();
            assert_eq!(found.key(), key);
        }
    }
    drop((feed, follower));
    drop((source, copy));
    host.check();
    backup.check();
}

#[test]
fn only_the_follower_writes_until_the_promotion_and_no_version_is_given_twice() {
    let (host, backup) = (Host::new(), Host::new());
    let (source, copy) = (host.region.session().unwrap(), backup.region.session().unwrap());
    let ns = source.namespace("ue", &mixed()).unwrap();
    source.stream(ns, WhenFull::LoseOldest).unwrap();
    (0..200).for_each(|number| change(&source, ns, number));
    source.put(ns, b"gone", b"v").unwrap();
    let other = backup.region.session().unwrap();
    let mut follower = copy.follow().unwrap();
    assert!(other.follow().unwrap_err().to_string().contains("another process follows"));
    let mut feed = start(&source, &mut follower, &copy);
    run(&source, &mut feed, &mut follower);
    source.delete(ns, b"gone").unwrap();
    run(&source, &mut feed, &mut follower);
    let mirrored = other.namespace("ue", &mixed()).unwrap();
    let refused = [
        other.put(mirrored, b"k", b"v").unwrap_err(),
        other.delete(mirrored, &key(0)).unwrap_err(),
        other
            .patch(
                mirrored,
                b"new",
                &[BlockChange { name: "b", bytes: Some(b"v") }],
                Condition::Always,
            )
            .unwrap_err(),
        other.transact(|txn| txn.put(mirrored, b"k", b"v")).unwrap_err(),
        other
            .add_tags(mirrored, &[TagSchema { name: "more".into(), ..TagSchema::default() }])
            .unwrap_err(),
        other.remove_namespace(mirrored).unwrap_err(),
    ];
    for error in refused {
        assert!(
            matches!(&error, Error::NotOwner { namespace, .. } if namespace == "ue"),
            "{error}"
        );
    }
    assert!(other.promote(false).unwrap_err().to_string().contains("another process follows"));
    // What the old owner does from here on is lost.
    let lost: Vec<u64> = (0..20).map(|_| source.put(ns, &key(3), b"lost").unwrap()).collect();
    let gone = source.put(ns, b"gone", b"again").unwrap();
    drop((feed, follower));
    let position = copy.following().unwrap().unwrap().applied.position;
    let promotion = other.promote(false).unwrap();
    assert_eq!((promotion.namespaces, promotion.position), (1, position));
    assert!(copy.following().unwrap().is_none());
    assert!(copy.promote(false).unwrap_err().to_string().contains("nothing to promote"));
    // A condition on a version that the old owner gave later never holds.
    let before = copy.get(mirrored, &key(3)).unwrap().map(|view| view.version());
    for version in &lost {
        let done = copy.put_if(mirrored, &key(3), b"x", Condition::Version(*version)).unwrap();
        assert_eq!(done, Outcome::Refused { current: before });
    }
    for _ in 0..lost.len() {
        let version = copy.put(mirrored, &key(3), b"new owner").unwrap();
        assert!(lost.iter().all(|lost| *lost < version), "{version:#x}");
    }
    assert!(copy.put(mirrored, b"gone", b"by the new owner").unwrap() > gone);
    assert!(copy.put(mirrored, b"new", b"v").unwrap() > gone);
    // A copy of the copy is promoted in turn.
    let third = Host::new();
    let heir = third.region.session().unwrap();
    copy.stream(mirrored, WhenFull::Refuse).unwrap();
    let mut follower = heir.follow().unwrap();
    let mut feed = start(&copy, &mut follower, &heir);
    run(&copy, &mut feed, &mut follower);
    let second = copy.put(mirrored, b"new", b"lost").unwrap();
    drop((feed, follower));
    heir.promote(false).unwrap();
    let third_ns = heir.namespace("ue", &mixed()).unwrap();
    assert!(heir.put(third_ns, b"new", b"v").unwrap() > second);
    drop((source, copy, other, heir));
    [host, backup, third].into_iter().for_each(Host::check);
}

#[test]
fn a_follower_that_was_away_continues_or_joins_again() {
    let (host, backup) = (Host::new(), Host::new());
    let (source, copy) = (host.region.session().unwrap(), backup.region.session().unwrap());
    let ns = source.namespace("ue", &mixed()).unwrap();
    source.stream(ns, WhenFull::Refuse).unwrap();
    let mirrored = Schema { kind: Kind::Mixed, tags: Vec::new() };
    let mut starts = Vec::new();
    for round in 0..12_u64 {
        (0..60).for_each(|number| change(&source, ns, round * 100 + number));
        if round == 5 {
            // A namespace with records, which the log has not.
            let second = source.namespace("sessions", &Schema::default()).unwrap();
            source.put(second, b"old", b"v").unwrap();
            source.stream(second, WhenFull::Refuse).unwrap();
        }
        let mut follower = copy.follow().unwrap();
        let following = copy.following().unwrap();
        let mut feed = start(&source, &mut follower, &copy);
        starts.push(feed.is_joining());
        if round == 3 {
            // A connection that ends after some items.
            let mut items = 0;
            let ended = feed.step(true, &mut |item: FeedItem<'_>| {
                items += 1;
                if items > 20 { Err(Error::Forked) } else { deliver(&mut follower, item, &mut 0) }
            });
            assert_eq!(ended, Err(Error::Forked));
            drop((feed, follower));
            follower = copy.follow().unwrap();
            feed = start(&source, &mut follower, &copy);
        }
        run(&source, &mut feed, &mut follower);
        assert_eq!(follower.state(), FollowState::Full, "{following:?}");
        drop((feed, follower));
        let ns_copy = copy.namespace("ue", &mirrored).unwrap();
        assert_eq!(contents(&copy, ns_copy), contents(&source, ns), "round {round}");
        if round >= 5 {
            let second = copy.namespace("sessions", &Schema::default()).unwrap();
            assert_eq!(copy.get(second, b"old").unwrap().unwrap().bytes(), b"v");
        }
    }
    assert_eq!(starts.iter().filter(|joins| **joins).count(), 1, "{starts:?}");
    // The source loses its entries: the follower joins again.
    source.stream(ns, WhenFull::LoseOldest).unwrap();
    let sessions = source.known_namespace("sessions").unwrap().unwrap();
    source.stream(sessions, WhenFull::LoseOldest).unwrap();
    for number in 0..100_000_u64 {
        source.put(ns, &key(number % 10 + 1000), &number.to_le_bytes().repeat(40)).unwrap();
    }
    source.delete(ns, &key(5)).unwrap();
    let mut follower = copy.follow().unwrap();
    let mut feed = start(&source, &mut follower, &copy);
    assert!(feed.is_joining());
    run(&source, &mut feed, &mut follower);
    let ns_copy = copy.namespace("ue", &mirrored).unwrap();
    assert_eq!(contents(&copy, ns_copy), contents(&source, ns));
    drop((feed, follower));
    drop((source, copy));
    host.check();
    backup.check();
}

/// Writes that change no byte, but give the record a new version.
#[test]
fn a_write_that_changes_nothing_has_its_version_at_the_copy() {
    let (host, backup) = (Host::new(), Host::new());
    let (source, copy) = (host.region.session().unwrap(), backup.region.session().unwrap());
    let ns = source.namespace("ue", &mixed()).unwrap();
    source.stream(ns, WhenFull::LoseOldest).unwrap();
    let mut follower = copy.follow().unwrap();
    let mut feed = start(&source, &mut follower, &copy);
    run(&source, &mut feed, &mut follower);
    let many: Vec<[u8; 8]> = (0..700_u64).map(u64::to_le_bytes).collect();
    let members: Vec<&[u8]> = many.iter().map(|member| &member[..]).collect();
    let fields: Vec<(&[u8], &[u8])> = members.iter().map(|name| (*name, &b"v"[..])).collect();
    let tags: &[(&str, &[u8])] = &[("amf", b"1")];
    for _ in 0..3 {
        let metadata = Metadata { tags, expires_ms: 0 };
        source.transact(|txn| txn.set_fields(ns, b"hash", &[(b"f", b"v")])).unwrap();
        source.transact(|txn| txn.put_members(ns, b"set", &members, metadata)).unwrap();
        source.transact(|txn| txn.put_fields(ns, b"large", &fields, metadata)).unwrap();
        source.transact(|txn| txn.set_metadata(ns, b"hash", metadata)).unwrap();
        source.put(ns, b"value", b"v").unwrap();
        run(&source, &mut feed, &mut follower);
        let mirrored = copy.namespace("ue", &mixed()).unwrap();
        assert_eq!(contents(&copy, mirrored), contents(&source, ns));
    }
    drop((feed, follower));
    drop((source, copy));
    host.check();
    backup.check();
}

/// A source that says what no source says.
#[test]
fn impossible_changes_are_errors() {
    let (host, backup) = (Host::new(), Host::new());
    let (source, copy) = (host.region.session().unwrap(), backup.region.session().unwrap());
    let ns = source.namespace("ue", &Schema::default()).unwrap();
    source.stream(ns, WhenFull::LoseOldest).unwrap();
    let mut follower = copy.follow().unwrap();
    let change = || StreamedChange::Put { value: b"v", meta: b"", is_set: false };
    let record = |namespace, key, version| FollowedRecord {
        namespace,
        key,
        version,
        base_version: Some(0),
        change: change(),
    };
    let early = follower.apply(0, &[record(0, b"k", 1)]).unwrap_err();
    assert!(matches!(early, Error::Damaged { .. }), "{early}");
    assert!(follower.complete(FollowPosition::default()).is_err(), "it follows nothing");
    let mut feed = start(&source, &mut follower, &copy);
    run(&source, &mut feed, &mut follower);
    let number = ns.number();
    let wrong: [&[FollowedRecord<'_>]; 6] = [
        &[record(number, b"k", 0)],
        &[record(number, b"k", u64::MAX)],
        &[record(number, b"k", 1 << 58)],
        &[record(number, b"k", (1 << 42) - 1)],
        &[record(number, b"k", 1), record(number, b"k", 2)],
        &[record(number + 1, b"k", 1)],
    ];
    for records in wrong {
        let refused = follower.apply(0, records).unwrap_err();
        assert!(matches!(refused, Error::Damaged { .. }), "{refused}");
    }
    let (name, stamp, policy) = ("ue-2", 0, ReplicationPolicy::Async);
    let (number_of_none, kind, tags) = (u32::MAX, Kind::Value, Vec::new());
    let told = FollowedNamespace { number: number_of_none, name, kind, stamp, policy, tags };
    let refused = follower.namespace(&told).unwrap_err();
    assert!(matches!(refused, Error::Damaged { .. }), "{refused}");
    follower.apply(0, &[record(number, b"k", 7)]).unwrap();
    assert!(feed.acknowledged(u64::MAX).unwrap_err().to_string().contains("not sent"));
    drop((feed, follower));
    drop((source, copy));
    host.check();
    backup.check();
}

#[test]
fn a_position_that_the_source_never_gave_is_a_fork() {
    let (host, backup) = (Host::new(), Host::new());
    let (source, copy) = (host.region.session().unwrap(), backup.region.session().unwrap());
    let ns = source.namespace("ue", &Schema::default()).unwrap();
    source.stream(ns, WhenFull::LoseOldest).unwrap();
    for number in 0..10 {
        source.put(ns, &key(number), b"v").unwrap();
    }
    let mut follower = copy.follow().unwrap();
    let mut feed = start(&source, &mut follower, &copy);
    run(&source, &mut feed, &mut follower);
    for number in 0..10 {
        source.put(ns, &key(number), b"w").unwrap();
    }
    run(&source, &mut feed, &mut follower);
    let following = copy.following().unwrap().unwrap();
    let of = following.source;
    let ahead = FollowPosition { position: following.applied.position + 1, ..following.applied };
    let other = FollowPosition { check: following.applied.check ^ 1, ..following.applied };
    let earlier = FollowPosition { position: following.applied.position - 1, check: 7 };
    for wrong in [ahead, other, earlier] {
        let refused = source.log_feed(of, wrong).unwrap_err().to_string();
        assert!(refused.contains("restored from a copy"), "{refused}");
    }
    let (_, start) = source.log_feed(of, following.applied).unwrap();
    assert_eq!(start, FeedStart::Continues);
    // Another incarnation is another log.
    let next = LogIdentity { incarnation: of.incarnation + 1, ..of };
    assert_eq!(source.log_feed(next, following.applied).unwrap().1, FeedStart::Joins);
    drop((feed, follower));
    drop((source, copy));
    host.check();
    backup.check();
}

#[test]
fn a_change_of_another_version_is_refused_and_a_namespace_with_own_records_too() {
    let (host, backup) = (Host::new(), Host::new());
    let (source, copy) = (host.region.session().unwrap(), backup.region.session().unwrap());
    let ns = source.namespace("ue", &Schema::default()).unwrap();
    source.stream(ns, WhenFull::LoseOldest).unwrap();
    source.put(ns, b"k", b"1").unwrap();
    let own = copy.namespace("ue", &Schema::default()).unwrap();
    copy.put(own, b"own", b"v").unwrap();
    let mut follower = copy.follow().unwrap();
    let mut feed = start(&source, &mut follower, &copy);
    let mut applied = 0;
    let refused = feed
        .step(true, &mut |item: FeedItem<'_>| deliver(&mut follower, item, &mut applied))
        .unwrap_err();
    assert!(refused.to_string().contains("has records of its own"), "{refused}");
    drop((feed, follower));
    copy.delete(own, b"own").unwrap();
    let mut follower = copy.follow().unwrap();
    let mut feed = start(&source, &mut follower, &copy);
    run(&source, &mut feed, &mut follower);
    // An item that is missing.
    source.put(ns, b"k", b"2").unwrap();
    let skipped = feed.step(true, &mut |_: FeedItem<'_>| Ok(())).unwrap();
    assert!(matches!(skipped, FeedStep::Idle { .. }));
    source.put(ns, b"k", b"3").unwrap();
    let refused = feed
        .step(true, &mut |item: FeedItem<'_>| deliver(&mut follower, item, &mut applied))
        .unwrap_err();
    assert!(refused.to_string().contains("--discard"), "{refused}");
    drop((feed, follower));
    drop((source, copy));
    host.check();
    backup.check();
}
