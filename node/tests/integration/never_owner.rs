//! The namespaces of a host that has never owned its partition.

use std::time::Duration;

use nearstate_model::Error;
use nearstate_node::{FollowTarget, PartitionInput};
use nearstate_store::{
    CommitWait, FollowState, Namespace, NamespaceRules, ReplicationPolicy, Schema, Session,
    lease_clock,
};

use crate::joining::GatedLink;
use crate::partition::{TestHost, WAIT_MAX, has_all, joins, put, replicate, until};

fn named(session: &Session, name: &str) -> Namespace {
    session.namespace(name, &Schema::default()).unwrap()
}

fn check_refused(session: &Session, name: &str) {
    let namespace = named(session, name);
    assert!(session.is_followed(namespace).unwrap(), "{name}");
    let refused = session.put(namespace, b"k", b"here").unwrap_err();
    let is_others =
        matches!(&refused, Error::NotOwner { address: Some(at), .. } if at == "clients:6379");
    assert!(is_others, "{refused}");
}

/// A process may open a namespace before the node has connected to the owner. What it writes then
/// would be on this host only.
#[test]
fn a_host_that_has_never_been_the_owner_refuses_writers_of_namespaces_that_are_replicated() {
    let [mut owner, mut member] = ["a", "b"].map(|name| TestHost::new(&format!("never-{name}")));
    put(&owner.session(), 0..150);
    owner.own(1, None);
    let session = member.session();
    let early = named(&session, "early");
    let policy = ReplicationPolicy::Local;
    let local = session.namespace_with_policy("mine", &Schema::default(), policy).unwrap();
    member.follow(1, &owner, false);
    until(1, &mut [&mut owner, &mut member], |hosts| has_all(hosts[0], hosts[1]));
    // The copy removes one that the owner lacks, so the process has to open it again.
    assert!(session.put(early, b"k", b"here").is_err());
    let names = ["early", "late"];
    for name in names {
        check_refused(&session, name);
    }
    session.put(local, b"k", b"here").unwrap();
    // The owner creates them too, and its records arrive.
    let writer = owner.session();
    for name in names {
        writer.put(named(&writer, name), b"k", b"owner").unwrap();
    }
    replicate(1, &mut owner, &mut [&mut member]);
    for name in names {
        let namespace = named(&session, name);
        assert_eq!(session.get(namespace, b"k").unwrap().unwrap().bytes(), b"owner");
    }
    // As the owner it may write all of them, and they are logged.
    member.partition.stop_following();
    owner.partition.stop_serving();
    let seal = member.frozen(2);
    member.own(2, Some(seal));
    for name in names {
        let namespace = named(&session, name);
        assert!(session.is_logged(namespace).unwrap(), "{name}");
        session.with_commit_wait(CommitWait::Never, Duration::ZERO, || {
            session.put(namespace, b"k", b"heir").unwrap();
        });
    }
    assert!(!session.is_logged(local).unwrap());
}

/// A member of an earlier version may have an empty one that is local, and a process that has it
/// open.
#[test]
fn a_copy_that_goes_on_gives_its_empty_namespaces_to_the_owner_and_keeps_those_with_records() {
    let [mut owner, mut member] = ["a", "b"].map(|name| TestHost::new(&format!("empty-{name}")));
    put(&owner.session(), 0..150);
    owner.own(1, None);
    member.follow(1, &owner, false);
    until(1, &mut [&mut owner, &mut member], |hosts| has_all(hosts[0], hosts[1]));
    member.partition.stop_following();
    let session = member.session();
    session.set_namespace_rules(&NamespaceRules::default()).unwrap();
    let [empty, filled] = ["empty", "filled"].map(|name| named(&session, name));
    session.put(filled, b"k", b"here").unwrap();
    let mut member = member.restarted();
    member.follow(1, &owner, false);
    let session = member.session();
    until(1, &mut [&mut owner, &mut member], |_| {
        session.is_followed(named(&session, "empty")).unwrap()
    });
    assert!(session.put(empty, b"k", b"here").is_err());
    check_refused(&session, "empty");
    assert_eq!(session.get(filled, b"k").unwrap().unwrap().bytes(), b"here");
    session.put(filled, b"k", b"local").unwrap();
    let state = member.partition.state().unwrap().following.unwrap().state;
    assert_eq!(state, FollowState::Full);
}

/// What was written before the owner has answered is nowhere else.
#[test]
fn records_that_are_written_before_the_owner_answers_are_not_taken_for_the_partitions() {
    let [mut owner, member] = ["a", "b"].map(|name| TestHost::new(&format!("written-{name}")));
    owner.own(1, None);
    let link = GatedLink::new(&owner);
    let address = &link.address.to_string();
    let target = FollowTarget { view: 1, name: "owner", address, clients: None, discards: false };
    member.partition.follow(&target).unwrap();
    until(1, &mut [&mut owner], |_| joins(&member) == 1);
    let session = member.session();
    let early = named(&session, "early");
    session.put(early, b"k", b"here").unwrap();
    link.open();
    let end = lease_clock() + WAIT_MAX;
    let reason = loop {
        assert!(lease_clock() < end, "the region is taken as a copy");
        owner.take_inputs(1);
        if let Ok(PartitionInput::FollowFailed { reason, .. }) = member.inputs.try_recv() {
            break reason;
        }
    };
    assert!(reason.contains("has records") && reason.contains("Move its file away"), "{reason}");
    assert_eq!(session.get(early, b"k").unwrap().unwrap().bytes(), b"here");
    assert!(session.following().unwrap().is_none());
}
