//! What promotions leave of the versions that records can have.

use nearstate_store::{
    Error, FollowState, FollowedNamespace, FollowedRecord, Kind, PROMOTIONS_MAX, ReplicationPolicy,
    Schema, Session, StreamedChange, WhenFull,
};

use crate::follow::{Host, contents, run, start};

/// The first version of the last generation, when a generation had 2^30 versions.
const LAST_OF_EARLIER: u64 = 4095 << 30;

/// Behind the last generation that a promotion can choose.
const USED_UP: u64 = (1 << 42) - (1 << 28);

/// A stamp whose index could not be removed: above half of the highest count.
const STAMP_HIGH: u64 = (1 << 41) + 7;

/// What a source tells of an empty namespace.
fn told(number: u32, name: &str, stamp: u64) -> FollowedNamespace<'_> {
    let (kind, policy, tags) = (Kind::Value, ReplicationPolicy::Async, Vec::new());
    FollowedNamespace { number, name, kind, stamp, policy, tags }
}

fn logged(session: &Session) {
    let ns = session.namespace("ue", &Schema::default()).unwrap();
    session.stream(ns, WhenFull::LoseOldest).unwrap();
    session.put(ns, b"k", b"v").unwrap();
}

/// Follows until the copy is full. The source tells this stamp of its namespace first.
fn follow(source: &Session, copy: &Session, stamp: u64) {
    let ns = source.known_namespace("ue").unwrap().unwrap();
    let mut follower = copy.follow().unwrap();
    let mut feed = start(source, &mut follower, copy);
    follower.namespace(&told(ns.number(), "ue", stamp)).unwrap();
    run(source, &mut feed, &mut follower);
    assert_eq!(follower.state(), FollowState::Full);
    let copied = copy.known_namespace("ue").unwrap().unwrap();
    assert_eq!(contents(copy, copied), contents(source, ns));
}

#[test]
fn copies_are_promoted_behind_the_last_generation_of_earlier_releases() {
    let [first, others @ ..] = [0; 4].map(|_| Host::new());
    logged(&first.region.session().unwrap());
    let (mut source, mut version, mut left) = (first, LAST_OF_EARLIER, PROMOTIONS_MAX);
    for next in others {
        let [owner, copy] = [&source, &next].map(|host| host.region.session().unwrap());
        follow(&owner, &copy, LAST_OF_EARLIER);
        copy.promote(false).unwrap();
        let ns = copy.known_namespace("ue").unwrap().unwrap();
        // One record that the source has, and one that is new.
        let given = [b"k", b"n"].map(|key| copy.put(ns, key, b"w").unwrap());
        assert!(given.iter().all(|given| *given > version), "{given:#x?}, {version:#x}");
        version = given.into_iter().fold(version, u64::max);
        let now = copy.promotions_left().unwrap();
        assert!(now < left && now > 0, "{now} promotions are left, and {left} were");
        left = now;
        copy.stream(ns, WhenFull::LoseOldest).unwrap();
        drop((owner, copy));
        source.check();
        source = next;
    }
    source.check();
}

#[test]
fn a_copy_without_versions_for_another_promotion_says_so() {
    let (host, backup) = (Host::new(), Host::new());
    let (source, copy) = (host.region.session().unwrap(), backup.region.session().unwrap());
    logged(&source);
    assert_eq!(copy.promotions_left().unwrap(), PROMOTIONS_MAX);
    follow(&source, &copy, USED_UP);
    assert_eq!(copy.promotions_left().unwrap(), 0);
    let refused = copy.promote(false).unwrap_err();
    assert!(matches!(&refused, Error::Full { detail, .. } if detail.contains("no versions left")));
}

/// The copy was the owner's before, for example, and its namespace was lost with it. With a floor
/// of the same generation, its removal costs nothing. Else it stays, and may be used again.
#[test]
fn a_copy_becomes_full_without_a_namespace_whose_versions_are_nearly_used_up() {
    for (floor, is_removed) in [(STAMP_HIGH, true), (0, false)] {
        let (host, backup) = (Host::new(), Host::new());
        let (source, copy) = (host.region.session().unwrap(), backup.region.session().unwrap());
        logged(&source);
        follow(&source, &copy, 0);
        let mut follower = copy.follow().unwrap();
        let feed = start(&source, &mut follower, &copy);
        follower.namespace(&told(77, "gone", floor)).unwrap();
        let change = |version, base, change| {
            let (namespace, key, base_version) = (77, b"k".as_slice(), Some(base));
            FollowedRecord { namespace, key, version, base_version, change }
        };
        let put = StreamedChange::Put { value: b"v", meta: b"", is_set: false };
        follower.apply(0, &[change(STAMP_HIGH, 0, put)]).unwrap();
        follower
            .apply(
                0,
                &[change(STAMP_HIGH, STAMP_HIGH, StreamedChange::Deleted { is_expiry: false })],
            )
            .unwrap();
        drop((feed, follower));
        // The source does not tell it any more.
        follow(&source, &copy, 0);
        follow(&source, &copy, 0);
        assert_eq!(copy.known_namespace("gone").unwrap().is_none(), is_removed, "{floor:#x}");
        // The source creates one of this name, and the copy is promoted.
        let gone = source.namespace("gone", &Schema::default()).unwrap();
        source.stream(gone, WhenFull::LoseOldest).unwrap();
        source.put(gone, b"again", b"v").unwrap();
        follow(&source, &copy, 0);
        let copied = copy.known_namespace("gone").unwrap().unwrap();
        assert_eq!(contents(&copy, copied), contents(&source, gone));
        copy.promote(false).unwrap();
        assert!(copy.put(copied, b"k", b"w").unwrap() > STAMP_HIGH, "a version is repeated");
        drop((source, copy));
        host.check();
        backup.check();
    }
}
