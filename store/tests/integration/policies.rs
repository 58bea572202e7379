//! How namespaces are replicated: by the rules of the region, from the first write on, in an
//! owner's region and in a copy; and by what their creators choose.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nearstate_store::{
    CommitWait, Error, FeedItem, FollowState, Kind, NamespaceRules, Receipt, ReplicationPolicy,
    Schema, Session, WhenFull,
};

use crate::follow::{Host, contents, deliver, run, start};

pub(crate) fn rules() -> NamespaceRules {
    use ReplicationPolicy::{Async, Local, Replicated};
    let all = [(Local, "cache*"), (Replicated, "session*"), (Async, "*")];
    NamespaceRules::new(all.map(|(policy, pattern)| (policy, pattern.to_owned()))).unwrap()
}

/// The region of an owner, with rules and one namespace.
pub(crate) fn own(session: &Session) {
    session.begin_partition(1).unwrap();
    session.begin_owner_namespaces(&rules()).unwrap();
}

fn counters() -> Schema {
    Schema { kind: Kind::Counters, ..Schema::default() }
}

#[test]
fn a_namespace_of_an_owner_is_logged_before_its_first_write_and_its_followers_stay_full() {
    let (host, backup) = (Host::new(), Host::new());
    let (source, copy) = (host.region.session().unwrap(), backup.region.session().unwrap());
    own(&source);
    let first = source.namespace("first", &Schema::default()).unwrap();
    source.put(first, b"k", b"v").unwrap();
    let mut follower = copy.follow().unwrap();
    let mut feed = start(&source, &mut follower, &copy);
    run(&source, &mut feed, &mut follower);
    // Another process creates it, and writes at once.
    let other = nearstate_store::Region::attach(&host.folder.path).unwrap().session().unwrap();
    let ue = other.namespace("ue", &Schema::default()).unwrap();
    assert!(other.is_logged(ue).unwrap());
    assert_eq!(other.replication_policy(ue).unwrap(), ReplicationPolicy::Async);
    assert_eq!(other.receipt(), Receipt::NONE);
    other.put(ue, b"k", b"v").unwrap();
    let receipt = other.receipt();
    assert_ne!(receipt, Receipt::NONE);
    assert!(!source.is_replicated(receipt).unwrap());
    // The follower gets it as an entry, without a walk.
    let mut applied = 0;
    while !source.is_replicated(receipt).unwrap() {
        feed.step(false, &mut |item: FeedItem<'_>| {
            assert!(!matches!(item, FeedItem::Record(_) | FeedItem::Joined(_)), "{item:?}");
            deliver(&mut follower, item, &mut applied)
        })
        .unwrap();
        feed.acknowledged(applied).unwrap();
        assert!(!feed.is_joining());
        assert_eq!(follower.state(), FollowState::Full);
    }
    let mirrored = copy.known_namespace("ue").unwrap().unwrap();
    assert_eq!(contents(&copy, mirrored), contents(&source, ue));
    // One that connects anew does not get it by a walk either.
    drop((feed, follower));
    let late = other.namespace("late", &Schema::default()).unwrap();
    other.put(late, b"k", b"v").unwrap();
    let mut follower = copy.follow().unwrap();
    let mut feed = start(&source, &mut follower, &copy);
    assert!(!feed.is_joining());
    run(&source, &mut feed, &mut follower);
    assert_eq!(contents(&copy, copy.known_namespace("late").unwrap().unwrap()).len(), 1);
    drop((feed, follower));
    drop((source, copy, other));
    host.check();
    backup.check();
}

#[test]
fn rules_choose_the_policy_and_counters_and_ordinary_regions_are_local() {
    use ReplicationPolicy::{Async, Local, Replicated};
    let host = Host::new();
    let session = host.region.session().unwrap();
    // Rules have no effect before the region is an owner's.
    session.set_namespace_rules(&rules()).unwrap();
    let early = session.namespace("early", &Schema::default()).unwrap();
    assert_eq!(session.replication_policy(early).unwrap(), Local);
    own(&session);
    for (name, schema, policy) in [
        ("cache-1", Schema::default(), Local),
        ("sessions", Schema::default(), Replicated),
        ("ue", Schema::default(), Async),
        ("counts", counters(), Local),
    ] {
        let namespace = session.namespace(name, &schema).unwrap();
        assert_eq!(session.replication_policy(namespace).unwrap(), policy, "{name}");
        assert_eq!(session.is_logged(namespace).unwrap(), policy != Local, "{name}");
    }
    assert_eq!(session.namespace_rules().unwrap(), rules());
    let seen = host.region.inspect().unwrap();
    let shown = seen.namespaces.iter().find(|one| one.name == b"sessions").unwrap();
    assert_eq!(shown.policy, Replicated);
    // An index of the region is its own matter.
    drop(session);
    host.check();
}

#[test]
fn a_creator_may_choose_another_policy_and_only_a_logged_namespace_cannot_become_local() {
    use ReplicationPolicy::{Async, Local, Replicated};
    let host = Host::new();
    let session = host.region.session().unwrap();
    own(&session);
    let open = |name, policy| session.namespace_with_policy(name, &Schema::default(), policy);
    let kept = open("kept", Local).unwrap();
    session.put(kept, b"k", b"v").unwrap();
    assert_eq!(session.receipt(), Receipt::NONE);
    assert!(session.is_kept_local(kept).unwrap());
    assert_eq!(open("kept", Local).unwrap(), kept);
    // From local on, with its record.
    session.set_replication_policy(kept, Replicated).unwrap();
    assert!(!session.is_kept_local(kept).unwrap());
    assert!(session.is_logged(kept).unwrap());
    session.set_replication_policy(kept, Async).unwrap();
    assert_eq!(session.replication_policy(kept).unwrap(), Async);
    let refused = session.set_replication_policy(kept, Local).unwrap_err();
    assert!(matches!(&refused, Error::BadArgument { detail } if detail.contains("stays so")));
    assert!(!session.is_kept_local(kept).unwrap());
    let chosen = open("chosen", Replicated).unwrap();
    assert_eq!(session.replication_policy(chosen).unwrap(), Replicated);
    let refused = session.namespace_with_policy("c", &counters(), Async).unwrap_err();
    assert!(matches!(refused, Error::WrongKind { .. }));
    // In an ordinary region, too.
    let plain = Host::new();
    let other = plain.region.session().unwrap();
    let ue = other.namespace_with_policy("ue", &Schema::default(), Async).unwrap();
    other.put(ue, b"k", b"v").unwrap();
    assert_ne!(other.receipt(), Receipt::NONE);
    drop((session, other));
    host.check();
    plain.check();
}

#[test]
fn a_policy_reaches_the_followers_also_when_it_changes() {
    let (host, backup) = (Host::new(), Host::new());
    let (source, copy) = (host.region.session().unwrap(), backup.region.session().unwrap());
    own(&source);
    let ue = source.namespace("ue", &Schema::default()).unwrap();
    let mut follower = copy.follow().unwrap();
    let mut feed = start(&source, &mut follower, &copy);
    for policy in [
        ReplicationPolicy::Async,
        ReplicationPolicy::Replicated,
        ReplicationPolicy::Async,
        ReplicationPolicy::Replicated,
    ] {
        source.set_replication_policy(ue, policy).unwrap();
        source.with_commit_wait(CommitWait::Never, Duration::ZERO, || {
            source.put(ue, b"k", policy.name().as_bytes()).unwrap();
        });
        run(&source, &mut feed, &mut follower);
        run(&source, &mut feed, &mut follower);
        let mirrored = copy.known_namespace("ue").unwrap().unwrap();
        assert_eq!(copy.replication_policy(mirrored).unwrap(), policy);
    }
    drop((feed, follower));
    copy.promote_logged(2, WhenFull::Refuse, false).unwrap();
    let mirrored = copy.known_namespace("ue").unwrap().unwrap();
    assert_eq!(copy.replication_policy(mirrored).unwrap(), ReplicationPolicy::Replicated);
    drop((source, copy));
    host.check();
    backup.check();
}

#[test]
fn a_namespace_that_is_created_in_a_copy_belongs_to_the_owner_until_the_copy_is_promoted() {
    let (host, backup) = (Host::new(), Host::new());
    let (source, copy) = (host.region.session().unwrap(), backup.region.session().unwrap());
    own(&source);
    source.namespace("first", &Schema::default()).unwrap();
    copy.set_namespace_rules(&rules()).unwrap();
    let mut follower = copy.follow().unwrap();
    let mut feed = start(&source, &mut follower, &copy);
    run(&source, &mut feed, &mut follower);
    let other = backup.region.session().unwrap();
    let ue = other.namespace("ue", &Schema::default()).unwrap();
    let refused = other.put(ue, b"k", b"v").unwrap_err();
    assert!(matches!(refused, Error::NotOwner { .. }), "{refused}");
    let local = other.namespace("cache", &Schema::default()).unwrap();
    other.put(local, b"k", b"v").unwrap();
    assert_eq!(other.receipt(), Receipt::NONE);
    drop((feed, follower));
    copy.set_fenced(true).unwrap();
    copy.promote_logged(2, WhenFull::Refuse, false).unwrap();
    copy.begin_owner_namespaces(&rules()).unwrap();
    copy.set_fenced(false).unwrap();
    other.put(ue, b"k", b"v").unwrap();
    assert_ne!(other.receipt(), Receipt::NONE);
    // The old owner is a copy again.
    source.demote(None).unwrap();
    let late = source.namespace("late", &Schema::default()).unwrap();
    assert!(matches!(source.put(late, b"k", b"v"), Err(Error::NotOwner { .. })));
    drop((source, copy, other));
    host.check();
    backup.check();
}

/// Namespaces of one creator: some are created before, some while and some after the change.
const CREATED: u64 = 30;

#[test]
fn no_namespace_is_missed_while_a_region_becomes_an_owners() {
    for round in 0..20 {
        let host = Host::new();
        let (begun, session) = (AtomicU64::new(0), host.region.session().unwrap());
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (region, begun) = (host.region.clone(), &begun);
                scope.spawn(move || {
                    let session = region.session().unwrap();
                    for number in 0..CREATED {
                        let name = format!("{thread}-{number}");
                        session.namespace(&name, &Schema::default()).unwrap();
                        begun.fetch_max(number, Ordering::Relaxed);
                    }
                });
            }
            while begun.load(Ordering::Relaxed) < round {
                std::thread::yield_now();
            }
            session.begin_partition(1).unwrap();
            session.begin_owner_namespaces(&rules()).unwrap();
            // Those that were created before are declared by a look at all of them.
            for (_, namespace) in session.namespaces().unwrap() {
                session.stream(namespace, WhenFull::Refuse).unwrap();
            }
        });
        for (name, namespace) in session.namespaces().unwrap() {
            assert!(session.is_logged(namespace).unwrap(), "{name} in round {round}");
        }
        drop(session);
        host.check();
    }
}
