//! Namespaces that are removed at the source while their last entries wait to be sent: at each
//! moment a follower has what the source had at some moment.

use nearstate_store::{
    Error, FeedItem, FeedSink, FeedStep, FollowState, Follower, LogFeed, Namespace,
    ReplicationPolicy, Session,
};

use crate::follow::{Host, contents, deliver, mixed, start};
use crate::policies::own;

/// A source whose new namespaces are replicated, and its copy.
fn hosts() -> (Host, Host) {
    let (host, backup) = (Host::new(), Host::new());
    own(&host.region.session().unwrap());
    (host, backup)
}

/// Takes one item of each step, as a connection whose buffer is nearly full.
struct OneItem<'a, 's> {
    follower: &'a mut Follower<'s>,
    applied: &'a mut u64,
    is_full: bool,
}

impl FeedSink for OneItem<'_, '_> {
    fn send(&mut self, item: FeedItem<'_>) -> Result<(), Error> {
        self.is_full = true;
        deliver(self.follower, item, self.applied)
    }

    fn is_full(&self) -> bool {
        self.is_full
    }
}

/// The namespaces of the copy that have a record of this key.
fn holders(copy: &Session, key: &[u8]) -> Vec<String> {
    let has_it = |namespace: &Namespace| copy.get(*namespace, key).unwrap().is_some();
    let all = copy.namespaces().unwrap().into_iter();
    all.filter(|(_, namespace)| has_it(namespace)).map(|(name, _)| name).collect()
}

/// Runs the feed in steps of an item, and looks at the copy after each.
fn run_in_steps(
    source: &Session,
    feed: &mut LogFeed<'_>,
    follower: &mut Follower<'_>,
    mut look: impl FnMut(),
) {
    let mut applied = 0;
    loop {
        let sink = &mut OneItem { follower, applied: &mut applied, is_full: false };
        let step = feed.step(true, sink).unwrap();
        look();
        match step {
            FeedStep::More => feed.acknowledged(applied).unwrap(),
            FeedStep::Idle { position } => {
                follower.note_tail(position, source.log_tail_position().unwrap()).unwrap();
                feed.acknowledged(position).unwrap();
                return look();
            }
            FeedStep::Lost => panic!("the log has lost entries"),
        }
    }
}

/// Moves the only record of a namespace to another one, and removes the namespace, which is created
/// again with another record if `is_created_again`. The copy has heard of nothing of it.
fn move_and_remove(source: &Session, is_created_again: bool) {
    let open = |name: &str| source.namespace(name, &mixed()).unwrap();
    let (from, to) = (open("from"), open("to"));
    for number in 0..20_u64 {
        source.put(to, &number.to_le_bytes(), b"backlog").unwrap();
    }
    source
        .transact(|txn| {
            txn.delete(from, b"moved")?;
            txn.put(to, b"moved", b"v")
        })
        .unwrap();
    assert!(source.remove_namespace(from).unwrap());
    if is_created_again {
        source.put(open("from"), b"other", b"v").unwrap();
    }
    source.put(to, b"last", b"v").unwrap();
}

/// The copy never lacks the moved record, and never has it twice.
fn a_moved_record_stays(is_away: bool, is_created_again: bool) {
    let (host, backup) = hosts();
    let (source, copy) = (host.region.session().unwrap(), backup.region.session().unwrap());
    let reader = backup.region.session().unwrap();
    let from = source.namespace("from", &mixed()).unwrap();
    source.put(from, b"moved", b"v").unwrap();
    source.namespace("to", &mixed()).unwrap();
    let mut follower = copy.follow().unwrap();
    let mut feed = start(&source, &mut follower, &copy);
    run_in_steps(&source, &mut feed, &mut follower, || {});
    assert_eq!(holders(&reader, b"moved"), ["from"]);
    if is_away {
        drop((feed, follower));
        move_and_remove(&source, is_created_again);
        follower = copy.follow().unwrap();
        feed = start(&source, &mut follower, &copy);
    } else {
        move_and_remove(&source, is_created_again);
    }
    let mut seen = Vec::new();
    run_in_steps(&source, &mut feed, &mut follower, || {
        let found = holders(&reader, b"moved");
        assert_eq!(found.len(), 1, "after {seen:?}: {found:?}");
        seen.extend(found);
    });
    assert_eq!(follower.state(), FollowState::Full);
    assert_eq!(seen.first().map(String::as_str), Some("from"), "the test sees the moment before");
    assert_eq!(holders(&reader, b"moved"), ["to"]);
    let names = |session: &Session| {
        let mut names: Vec<_> =
            session.namespaces().unwrap().into_iter().map(|(name, _)| name).collect();
        names.sort();
        names
    };
    assert_eq!(names(&copy), names(&source));
    for name in names(&source) {
        let [one, other] =
            [&source, &copy].map(|session| session.known_namespace(&name).unwrap().unwrap());
        assert_eq!(contents(&copy, other), contents(&source, one), "{name}");
    }
    drop((feed, follower));
    drop((reader, source, copy));
    host.check();
    backup.check();
}

#[test]
fn a_removal_follows_the_entries_of_the_namespace() {
    a_moved_record_stays(false, false);
    a_moved_record_stays(false, true);
}

#[test]
fn a_removal_while_the_follower_was_away_follows_the_entries_of_the_namespace() {
    a_moved_record_stays(true, false);
    a_moved_record_stays(true, true);
}

/// One step of an item. False if nothing is left; an error if the copy has to join again.
fn step(
    source: &Session,
    (feed, follower): (&mut LogFeed<'_>, &mut Follower<'_>),
) -> Result<bool, Error> {
    let mut applied = 0;
    let sink = &mut OneItem { follower, applied: &mut applied, is_full: false };
    Ok(match feed.step(true, sink)? {
        FeedStep::More => true,
        FeedStep::Idle { position } => {
            follower.note_tail(position, source.log_tail_position()?)?;
            false
        }
        FeedStep::Lost => panic!("the log has lost entries"),
    })
}

/// A namespace that was logged after it had records is removed, created again and logged again. The
/// connection ends after so many items. Returns whether nothing was left by then.
fn a_walked_namespace_arrives(items: usize) -> bool {
    let (host, backup) = hosts();
    let (source, copy) = (host.region.session().unwrap(), backup.region.session().unwrap());
    let reader = backup.region.session().unwrap();
    let late = |record: &[u8]| {
        let namespace = source.namespace("cache", &mixed()).unwrap();
        source.put(namespace, record, b"v").unwrap();
        source.set_replication_policy(namespace, ReplicationPolicy::Async).unwrap();
        namespace
    };
    let to = source.namespace("to", &mixed()).unwrap();
    let from = late(b"moved");
    let mut follower = copy.follow().unwrap();
    let mut feed = start(&source, &mut follower, &copy);
    run_in_steps(&source, &mut feed, &mut follower, || {});
    assert_eq!(holders(&reader, b"moved"), ["cache"]);
    source.put(to, b"backlog", b"v").unwrap();
    source
        .transact(|txn| {
            txn.delete(from, b"moved")?;
            txn.put(to, b"moved", b"v")
        })
        .unwrap();
    assert!(source.remove_namespace(from).unwrap());
    late(b"other");
    source.put(to, b"last", b"v").unwrap();
    let look = |follower: &Follower<'_>| {
        if follower.state() == FollowState::Full {
            assert_eq!(holders(&reader, b"moved").len(), 1, "after {items} items");
        }
    };
    let mut has_more = true;
    for _ in 0..items {
        has_more = step(&source, (&mut feed, &mut follower)).unwrap();
        look(&follower);
    }
    drop((feed, follower));
    let mut follower = copy.follow().unwrap();
    let mut feed = start(&source, &mut follower, &copy);
    loop {
        match step(&source, (&mut feed, &mut follower)) {
            Ok(true) => look(&follower),
            Ok(false) => break,
            Err(error) => {
                // What an extended copy has is of no moment if no walk follows.
                assert_eq!(follower.state(), FollowState::Extending, "{error}");
                follower.begin(source.log_identity().unwrap()).unwrap();
                feed = start(&source, &mut follower, &copy);
            }
        }
    }
    assert_eq!(follower.state(), FollowState::Full);
    drop((feed, follower));
    for name in ["cache", "to"] {
        let [one, other] =
            [&source, &copy].map(|session| session.known_namespace(name).unwrap().unwrap());
        assert_eq!(contents(&copy, other), contents(&source, one), "{name}, {items} items");
    }
    drop((reader, source, copy));
    host.check();
    backup.check();
    !has_more
}

#[test]
fn a_namespace_whose_records_are_walked_arrives_whenever_the_connection_ends() {
    let ended = (0..40).find(|items| a_walked_namespace_arrives(*items));
    assert!(ended.is_some_and(|items| items >= 4), "{ended:?}: the test sees every item");
}

#[test]
fn a_namespace_of_the_copy_itself_is_not_logged_until_the_promotion() {
    let (host, backup) = hosts();
    let (source, copy) = (host.region.session().unwrap(), backup.region.session().unwrap());
    source.put(source.namespace("ue", &mixed()).unwrap(), b"a", b"v").unwrap();
    let mut follower = copy.follow().unwrap();
    let mut feed = start(&source, &mut follower, &copy);
    run_in_steps(&source, &mut feed, &mut follower, || {});
    drop((feed, follower));
    let local = copy.namespace("local", &mixed()).unwrap();
    copy.put(local, b"a", b"v").unwrap();
    for policy in [ReplicationPolicy::Async, ReplicationPolicy::Replicated] {
        let refused = copy.set_replication_policy(local, policy).unwrap_err();
        assert!(refused.to_string().contains("until the region is promoted"), "{refused}");
    }
    copy.promote(false).unwrap();
    copy.set_replication_policy(local, ReplicationPolicy::Async).unwrap();
    drop((source, copy));
    host.check();
    backup.check();
}
