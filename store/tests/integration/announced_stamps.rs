//! The stamps with which namespaces are announced to followers: a promoted copy gives no version
//! that its source has given.

use std::collections::BTreeMap;

use nearstate_store::{FeedItem, FeedStep, Follower, LogFeed, Schema, Session, WhenFull};

use crate::follow::{Host, deliver, start};

/// Runs a feed until nothing is left. Returns the announced stamps.
fn stamps(
    source: &Session,
    feed: &mut LogFeed<'_>,
    follower: &mut Follower<'_>,
) -> BTreeMap<String, u64> {
    let (mut applied, mut stamps) = (0, BTreeMap::new());
    loop {
        let mut take = |item: FeedItem<'_>| {
            if let FeedItem::Namespace(namespace) = &item {
                stamps.insert(namespace.name.to_owned(), namespace.stamp);
            }
            deliver(follower, item, &mut applied)
        };
        match feed.step(true, &mut take).unwrap() {
            FeedStep::More => feed.acknowledged(applied).unwrap(),
            FeedStep::Idle { position } => {
                follower.note_tail(position, source.log_tail_position().unwrap()).unwrap();
                feed.acknowledged(position).unwrap();
                return stamps;
            }
            FeedStep::Lost => panic!("the log has lost entries"),
        }
    }
}

#[test]
fn a_reconnected_follower_is_told_the_stamps_of_new_namespaces_and_repeats_no_version() {
    let (host, backup) = (Host::new(), Host::new());
    let (source, copy) = (host.region.session().unwrap(), backup.region.session().unwrap());
    let created = |name: &str| {
        let namespace = source.namespace(name, &Schema::default()).unwrap();
        source.stream(namespace, WhenFull::Refuse).unwrap();
        namespace
    };
    // Versions of records that do not exist any more.
    let used = |namespace, key: &[u8]| {
        let versions = (0..3).map(|_| {
            let version = source.put(namespace, key, b"v").unwrap();
            assert!(source.delete(namespace, key).unwrap());
            version
        });
        versions.max().unwrap()
    };
    let (kept, replaced) = (created("kept"), created("replaced"));
    let highest = |namespace| source.highest_stamp(namespace).unwrap();
    let mut versions = vec![used(kept, b"k"), used(replaced, b"k")];
    {
        let mut follower = copy.follow().unwrap();
        let mut feed = start(&source, &mut follower, &copy);
        let told = stamps(&source, &mut feed, &mut follower);
        assert_eq!((told["kept"], told["replaced"]), (highest(kept), highest(replaced)));
        versions.push(used(kept, b"k"));
        stamps(&source, &mut feed, &mut follower);
    }
    // While the follower is away.
    versions.extend([used(kept, b"k"), used(kept, b"other")]);
    assert!(source.remove_namespace(replaced).unwrap());
    let replaced = created("replaced");
    versions.push(used(replaced, b"k"));
    let late = created("late");
    versions.push(used(late, b"k"));
    let mut follower = copy.follow().unwrap();
    let mut feed = start(&source, &mut follower, &copy);
    let told = stamps(&source, &mut feed, &mut follower);
    assert_eq!((told["late"], told["replaced"]), (highest(late), highest(replaced)));
    assert!(told["kept"] < highest(kept), "no bucket of a known namespace is read");
    drop((feed, follower));
    copy.promote(false).unwrap();
    for name in ["kept", "replaced", "late"] {
        let namespace = copy.namespace(name, &Schema::default()).unwrap();
        for key in [&b"k"[..], b"other"] {
            let version = copy.put(namespace, key, b"v").unwrap();
            assert!(versions.iter().all(|given| version > *given), "{name}: {version}");
        }
    }
}
