//! What an owner without a lease declares is refused as its writes are: another host may own the
//! partition without it.

use std::sync::atomic::{AtomicBool, Ordering};

use nearstate_store::{Error, ReplicationPolicy, Schema, Session, TagSchema, WhenFull};

use crate::follow::Host;

const ROUNDS: u32 = 40;

/// The region of an owner with a namespace that is logged.
fn owner() -> (Host, Session) {
    let host = Host::new();
    let session = host.region.session().unwrap();
    session.begin_partition(1).unwrap();
    let ue = session.namespace("ue", &Schema::default()).unwrap();
    session.stream(ue, WhenFull::Refuse).unwrap();
    (host, session)
}

fn tag(name: &str) -> TagSchema {
    TagSchema { name: name.to_owned(), ..TagSchema::default() }
}

fn assert_fenced(done: &Result<(), Error>, name: &str) {
    assert!(matches!(done, Err(Error::Fenced { namespace }) if namespace == name), "{done:?}");
}

#[test]
fn an_owner_without_a_lease_declares_nothing() {
    let (host, session) = owner();
    let ue = session.namespace("ue", &Schema::default()).unwrap();
    let local = ReplicationPolicy::Local;
    let cache = session.namespace_with_policy("cache", &Schema::default(), local).unwrap();
    session.set_fenced(true).unwrap();
    session.drain_logged().unwrap();
    let tail = session.log_tail_position().unwrap();
    assert_fenced(&session.stream(cache, WhenFull::Refuse), "cache");
    assert_fenced(&session.set_replication_policy(cache, ReplicationPolicy::Async), "cache");
    assert!(!session.is_logged(cache).unwrap());
    assert_eq!(session.replication_policy(cache).unwrap(), local);
    assert_fenced(&session.set_replication_policy(ue, ReplicationPolicy::Replicated), "ue");
    assert_eq!(session.replication_policy(ue).unwrap(), ReplicationPolicy::Async);
    assert_fenced(&session.add_tags(ue, &[tag("imsi")]), "ue");
    assert!(session.tags(ue).unwrap().is_empty());
    assert_eq!(session.log_tail_position().unwrap(), tail);
    // What is its own it may change, and the node of the host prepares what it will own.
    session.add_tags(cache, &[tag("imsi")]).unwrap();
    session.log_for_group(cache, WhenFull::Refuse, ReplicationPolicy::Replicated).unwrap();
    assert_eq!(session.replication_policy(cache).unwrap(), ReplicationPolicy::Replicated);
    session.set_fenced(false).unwrap();
    session.set_replication_policy(ue, ReplicationPolicy::Replicated).unwrap();
    session.add_tags(ue, &[tag("imsi")]).unwrap();
    drop(session);
    host.check();
}

/// A hand-over reads the end of the log behind the fence. Whatever was declared is before it.
#[test]
fn nothing_is_declared_behind_the_end_of_the_log_at_a_hand_over() {
    for round in 0..ROUNDS {
        let (host, session) = owner();
        let ue = session.namespace("ue", &Schema::default()).unwrap();
        let is_over = AtomicBool::new(false);
        let declare = |number: u32| {
            let session = host.region.session().unwrap();
            let (name, local) = (format!("n{number}"), ReplicationPolicy::Local);
            let own = session.namespace_with_policy(&name, &Schema::default(), local).unwrap();
            while !is_over.load(Ordering::Acquire) {
                let _ = session.stream(own, WhenFull::Refuse);
                let _ = session.add_tags(ue, &[tag(&name)]);
            }
        };
        let declare = &declare;
        let end = std::thread::scope(|scope| {
            for number in 0..2 {
                scope.spawn(move || declare(number));
            }
            (0..round % 5).for_each(|_| std::thread::yield_now());
            session.set_fenced(true).unwrap();
            session.drain_logged().unwrap();
            let end = (session.log_tail_position().unwrap(), session.tags(ue).unwrap().len());
            (0..20).for_each(|_| std::thread::yield_now());
            is_over.store(true, Ordering::Release);
            end
        });
        let after = (session.log_tail_position().unwrap(), session.tags(ue).unwrap().len());
        assert_eq!(end, after, "round {round}");
        drop(session);
        host.check();
    }
}
