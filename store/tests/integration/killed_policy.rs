//! A kill at each step of a creation in an owner's region, and of a change of its rules: no
//! namespace exists that is not logged, and rules are the old or the new ones.

use std::path::Path;
use std::time::Duration;

use nearstate_store::{
    CommitWait, FeedItem, FeedStep, NamespaceRules, Receipt, Region, ReplicationPolicy, Schema,
    Session,
};

use crate::fixture::{child, clean, output, region_path};
use crate::follow::{Host, contents, deliver, run, start};
use crate::policies::{own, rules};

/// The points that a creation passes, and some of the first put.
const POINTS: &[&str] = &[
    "namespace.changing",
    "namespace.cleared",
    "namespace.named",
    "birth.flagged",
    "declare.counted",
    "declare.ended",
    "birth.logged",
    "namespace.filled",
    "namespace.reused",
    "namespace.live",
    "namespace.counted",
    "namespace.changed",
    "log.drawn",
    "log.claimed",
];

fn others() -> NamespaceRules {
    NamespaceRules::new([(ReplicationPolicy::Async, "other*".to_owned())]).unwrap()
}

fn open(path: &Path) -> (Region, Session) {
    let region = Region::attach(path).unwrap();
    let session = region.session().unwrap();
    // The test acknowledges by itself.
    session.set_commit_wait(CommitWait::Never, Duration::ZERO);
    (region, session)
}

#[test]
#[ignore = "the tests below run it in a process of its own"]
fn a_creation_in_another_process() {
    let (_region, session) = open(&region_path());
    let sessions = session.namespace("sessions", &Schema::default()).unwrap();
    session.put(sessions, b"child", b"v").unwrap();
}

#[test]
#[ignore = "the tests below run it in a process of its own"]
fn a_change_of_rules_in_another_process() {
    open(&region_path()).1.set_namespace_rules(&others()).unwrap();
}

/// Runs a test of this program that is killed. False if it ended before.
fn is_killed(step: &str, host: &Host, plan: &str) -> bool {
    let mut command = child(&format!("killed_policy::{step}"), &host.folder.path);
    let ended = output(command.env("NEARSTATE_CRASH_AT", plan)).unwrap();
    let text = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.code().is_none() || ended.status.success(), "{plan}: {text}");
    !ended.status.success()
}

/// A namespace of a reused entry has more steps: one was removed before.
#[test]
fn a_kill_at_any_step_of_a_creation_leaves_no_namespace_that_is_not_logged() {
    for is_reused in [false, true] {
        for point in POINTS {
            let (host, backup) = (Host::new(), Host::new());
            let source = host.region.session().unwrap();
            own(&source);
            let first = source.namespace("first", &Schema::default()).unwrap();
            source.put(first, b"k", b"v").unwrap();
            if is_reused {
                let gone = source.namespace("gone", &Schema::default()).unwrap();
                assert!(source.remove_namespace(gone).unwrap());
            }
            let copy = backup.region.session().unwrap();
            let mut follower = copy.follow().unwrap();
            let mut feed = start(&source, &mut follower, &copy);
            run(&source, &mut feed, &mut follower);
            // What the follower sees in between changes nothing.
            let mut applied = 0;
            let killed = is_killed("a_creation_in_another_process", &host, &format!("{point}:1"));
            let of_new = ["namespace.cleared", "namespace.filled", "namespace.counted"];
            assert!(killed || is_reused && of_new.contains(point), "{point}");
            let looks = [true, false];
            for looks in looks {
                let step = feed
                    .step(looks, &mut |item: FeedItem<'_>| {
                        deliver(&mut follower, item, &mut applied)
                    })
                    .unwrap();
                assert!(!matches!(step, FeedStep::Lost));
            }
            // The next process that opens it, and writes.
            let (region, other) = open(&host.folder.path);
            if let Some(live) = other.known_namespace("sessions").unwrap() {
                assert!(other.is_logged(live).unwrap(), "{point}");
            }
            let sessions = other.namespace("sessions", &Schema::default()).unwrap();
            assert_eq!(other.replication_policy(sessions).unwrap(), ReplicationPolicy::Replicated);
            other.put(sessions, b"k", b"v").unwrap();
            let receipt = other.receipt();
            assert_ne!(receipt, Receipt::NONE, "{point}");
            while !source.is_replicated(receipt).unwrap() {
                feed.step(false, &mut |item: FeedItem<'_>| {
                    assert!(!matches!(item, FeedItem::Record(_)), "{point}: {item:?}");
                    deliver(&mut follower, item, &mut applied)
                })
                .unwrap();
                feed.acknowledged(applied).unwrap();
            }
            let mirrored = copy.known_namespace("sessions").unwrap().unwrap();
            assert_eq!(contents(&copy, mirrored), contents(&source, sessions), "{point}");
            drop((feed, follower));
            drop((source, copy, other, region));
            host.check();
            backup.check();
        }
    }
}

#[test]
fn a_kill_while_rules_are_stored_leaves_the_old_or_the_new_ones() {
    for (point, expected) in
        [("rules.begun", rules()), ("rules.filled", rules()), ("rules.stored", others())]
    {
        let host = Host::new();
        let session = host.region.session().unwrap();
        own(&session);
        for round in 0..3 {
            // Both places are used in turn.
            let child = "a_change_of_rules_in_another_process";
            assert!(is_killed(child, &host, &format!("{point}:1")), "{point}");
            assert_eq!(session.namespace_rules().unwrap(), expected, "{point} in round {round}");
            session.namespace(&format!("other {round}"), &Schema::default()).unwrap();
            session.set_namespace_rules(&rules()).unwrap();
            assert_eq!(session.namespace_rules().unwrap(), rules());
        }
        drop(session);
        drop(host.region);
        clean(&host.folder.path);
    }
}
