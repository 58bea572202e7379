//! Namespaces of a source that come and go, and what its follower does with its own.

use nearstate_store::{
    Error, FeedItem, FollowState, Kind, Metadata, NamespaceRules, Schema, TagSchema, WhenFull,
};

use crate::fixture::refused;
use crate::follow::{Host, contents, deliver, mixed, run, start};

/// What becomes of namespaces while the follower is away: declared with records and without any
/// commit afterwards, removed, and created again under the same name.
#[test]
fn namespaces_that_came_and_went_while_the_follower_was_away() {
    let (host, backup) = (Host::new(), Host::new());
    let (source, copy) = (host.region.session().unwrap(), backup.region.session().unwrap());
    let names = ["ue", "gone", "again"];
    for name in names {
        let ns = source.namespace(name, &mixed()).unwrap();
        source.stream(ns, WhenFull::Refuse).unwrap();
        source.put(ns, b"old", b"v").unwrap();
    }
    let mut follower = copy.follow().unwrap();
    let mut feed = start(&source, &mut follower, &copy);
    run(&source, &mut feed, &mut follower);
    drop((feed, follower));
    for name in ["gone", "again"] {
        let ns = source.namespace(name, &mixed()).unwrap();
        source.delete(ns, b"old").unwrap();
        assert!(source.remove_namespace(ns).unwrap());
    }
    for name in ["again", "late"] {
        let ns = source.namespace(name, &mixed()).unwrap();
        source.put(ns, b"new", b"v").unwrap();
        source.stream(ns, WhenFull::Refuse).unwrap();
    }
    for round in 0..3 {
        let mut follower = copy.follow().unwrap();
        let mut feed = start(&source, &mut follower, &copy);
        run(&source, &mut feed, &mut follower);
        assert_eq!(follower.state(), FollowState::Full);
        drop((feed, follower));
        let mut found: Vec<String> =
            copy.namespaces().unwrap().into_iter().map(|(name, _)| name).collect();
        found.sort();
        assert_eq!(found, ["again", "late", "ue"], "round {round}");
        for name in &found {
            let [one, other] =
                [&source, &copy].map(|session| session.known_namespace(name).unwrap().unwrap());
            assert_eq!(contents(&copy, other), contents(&source, one), "{name}");
        }
        if round == 1 {
            let ns = source.known_namespace("late").unwrap().unwrap();
            source.put(ns, b"newer", b"v").unwrap();
        }
    }
    drop((source, copy));
    host.check();
    backup.check();
}

/// Required and unique tags would refuse what the source has, and a record of another kind fits
/// nowhere.
#[test]
fn a_namespace_that_was_created_again_with_other_tags_or_another_kind_is_followed() {
    let tag = |is_required, is_unique| TagSchema {
        name: "id".into(),
        is_required,
        is_unique,
        ..TagSchema::default()
    };
    let tagged = |tag| Schema { tags: vec![tag], ..Schema::default() };
    let pairs = [
        (tagged(tag(true, false)), Schema::default()),
        (tagged(tag(false, true)), tagged(tag(false, false))),
        (mixed(), Schema::default()),
    ];
    for (round, (before, after)) in pairs.into_iter().enumerate() {
        let (host, backup) = (Host::new(), Host::new());
        let (source, copy) = (host.region.session().unwrap(), backup.region.session().unwrap());
        let metadata = Metadata { tags: &[("id", b"1")], expires_ms: 0 };
        let put = |ns, key: &[u8], metadata| {
            source.transact(|txn| txn.put_with_metadata(ns, key, b"v", metadata)).unwrap();
        };
        let ns = source.namespace("ue", &before).unwrap();
        source.stream(ns, WhenFull::Refuse).unwrap();
        put(ns, b"old", metadata);
        let mut follower = copy.follow().unwrap();
        let mut feed = start(&source, &mut follower, &copy);
        run(&source, &mut feed, &mut follower);
        drop((feed, follower));
        source.delete(ns, b"old").unwrap();
        assert!(source.remove_namespace(ns).unwrap());
        let ns = source.namespace("ue", &after).unwrap();
        source.stream(ns, WhenFull::Refuse).unwrap();
        let metadata = if after.tags.is_empty() { Metadata::default() } else { metadata };
        put(ns, b"one", metadata);
        let mut follower = copy.follow().unwrap();
        let mut feed = start(&source, &mut follower, &copy);
        put(ns, b"two", metadata);
        run(&source, &mut feed, &mut follower);
        assert_eq!(follower.state(), FollowState::Full, "round {round}");
        drop((feed, follower));
        let other = copy.known_namespace("ue").unwrap().unwrap();
        assert_eq!(contents(&copy, other), contents(&source, ns), "round {round}");
        drop((source, copy));
        host.check();
        backup.check();
    }
}

/// A namespace of another kind under a name of the source: an empty one of this region gives way,
/// one with records or declarations stays and is named, and one that the source has removed and
/// created again while the follower was away is replaced.
#[test]
fn a_namespace_of_another_kind_gives_way_to_that_of_the_source() {
    let (host, backup) = (Host::new(), Host::new());
    let (source, copy) = (host.region.session().unwrap(), backup.region.session().unwrap());
    let schema = |kind| Schema { kind, ..Schema::default() };
    let ns = source.namespace("ue", &Schema::default()).unwrap();
    source.stream(ns, WhenFull::LoseOldest).unwrap();
    source.put(ns, b"k", b"1").unwrap();
    let own = copy.namespace("ue", &schema(Kind::Mixed)).unwrap();
    copy.put(own, b"own", b"v").unwrap();
    let mut follower = copy.follow().unwrap();
    let mut feed = start(&source, &mut follower, &copy);
    let mut applied = 0;
    let refused = feed
        .step(true, &mut |item: FeedItem<'_>| deliver(&mut follower, item, &mut applied))
        .unwrap_err();
    assert!(matches!(&refused, Error::BadArgument { detail } if detail.contains("Mixed")));
    drop((feed, follower));
    copy.delete(own, b"own").unwrap();
    for kind in [Kind::Value, Kind::Blocks] {
        let now = source.namespace("ue", &schema(kind)).unwrap();
        source.stream(now, WhenFull::LoseOldest).unwrap();
        let mut follower = copy.follow().unwrap();
        let mut feed = start(&source, &mut follower, &copy);
        run(&source, &mut feed, &mut follower);
        assert_eq!(follower.state(), FollowState::Full);
        let copied = copy.known_namespace("ue").unwrap().unwrap();
        assert_eq!(copied.kind(), kind);
        assert_eq!(contents(&copy, copied), contents(&source, now));
        drop((feed, follower));
        if kind == Kind::Value {
            source.delete(now, b"k").unwrap();
            assert!(source.remove_namespace(now).unwrap());
        }
    }
    assert!(!copy.has_namespace(own));
    drop((source, copy));
    host.check();
    backup.check();
}

/// The members of its partition decide which one owns it. Promoted alone it would be local.
#[test]
fn a_copy_of_a_clusters_partition_is_promoted_by_its_cluster_only() {
    let (host, backup, other) = (Host::new(), Host::new(), Host::new());
    let [source, copy, plain] = [&host, &backup, &other].map(|host| host.region.session().unwrap());
    source.begin_partition(1).unwrap();
    let ns = source.namespace("ue", &Schema::default()).unwrap();
    source.stream(ns, WhenFull::Refuse).unwrap();
    source.put(ns, b"k", b"v").unwrap();
    copy.set_namespace_rules(&NamespaceRules::default()).unwrap();
    let mut follower = copy.follow().unwrap();
    let mut feed = start(&source, &mut follower, &copy);
    let commands = ["cluster drain", "accept-loss", "force-new --from-region"];
    // It has not got all records, and is not bound yet.
    drop(follower);
    refused(copy.promote(true), &commands);
    let mut follower = copy.follow().unwrap();
    run(&source, &mut feed, &mut follower);
    copy.bind(*b"0123456789abcdef").unwrap();
    // A namespace of the same name has records of this region.
    let own = copy.namespace("own", &Schema::default()).unwrap();
    copy.put(own, b"k", b"here").unwrap();
    source.stream(source.namespace("own", &Schema::default()).unwrap(), WhenFull::Refuse).unwrap();
    let mut applied = 0;
    let step =
        feed.step(true, &mut |item: FeedItem<'_>| deliver(&mut follower, item, &mut applied));
    refused(step, &["has records of its own", "stop the node, move the region's file away"]);
    drop((feed, follower));
    refused(copy.promote(false), &commands);
    assert!(copy.is_followed(copy.known_namespace("ue").unwrap().unwrap()).unwrap());
    // Taken out of the cluster, it follows an ordinary region.
    copy.delete(own, b"k").unwrap();
    let ns = plain.namespace("ue", &Schema::default()).unwrap();
    plain.stream(ns, WhenFull::Refuse).unwrap();
    plain.put(ns, b"k", b"plain").unwrap();
    let mut follower = copy.follow().unwrap();
    follower.begin(plain.log_identity().unwrap()).unwrap();
    let mut feed = start(&plain, &mut follower, &copy);
    run(&plain, &mut feed, &mut follower);
    drop((feed, follower));
    assert_eq!(copy.promote(false).unwrap().namespaces, 1);
    drop((source, copy, plain));
    [host, backup, other].into_iter().for_each(Host::check);
}
