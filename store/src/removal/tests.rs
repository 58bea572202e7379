//! Removals that a process has left unfinished, and a declaration of tags that a removal precedes.

use nearstate_memory::{AttachOptions, NamespaceLimits, ReplicationPolicy};

use super::*;
use crate::index::schema::TagSchema;
use crate::session::buffers::Metadata;
use crate::session::{Region, Schema};

struct Case {
    dir: tempfile::TempDir,
    region: Region,
}

impl Case {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let region = Region::create(&dir.path().join("region"), &crate::CreateOptions::default());
        Self { dir, region: region.unwrap() }
    }

    /// Detaches, and returns what the check finds.
    fn faults(self) -> (tempfile::TempDir, Vec<String>) {
        drop(self.region);
        let report = crate::check(&self.dir.path().join("region")).unwrap();
        (self.dir, report.faults)
    }
}

fn tags() -> Vec<TagSchema> {
    let tag = |name: &str| TagSchema { name: name.to_owned(), ..TagSchema::default() };
    vec![
        TagSchema { is_unique: true, ..tag("unique") },
        TagSchema { is_ordered: true, ..tag("ordered") },
    ]
}

/// A namespace with tags whose remover died after the commit. Records are left in its indexes.
fn unfinished(session: &Session) -> Namespace {
    let schema = Schema { tags: tags(), ..Schema::default() };
    let namespace = session.namespace("removed", &schema).unwrap();
    let put = |number: u32| {
        let key = number.to_be_bytes();
        let metadata = Metadata { tags: &[("unique", &key), ("ordered", &key)], expires_ms: 0 };
        session.transact(|txn| txn.put_with_metadata(namespace, &key, b"v", metadata)).unwrap();
    };
    (0..20).for_each(put);
    (0..20_u32)
        .for_each(|number| assert!(session.delete(namespace, &number.to_be_bytes()).unwrap()));
    let decide = |flags| session.decide_requested(namespace, flags);
    assert!(session.member.remove_namespace(namespace.index, decide).unwrap());
    assert_eq!(session.member.unfinished_removals().unwrap(), [namespace.index]);
    namespace
}

fn orphaned(session: &Session) -> Vec<u32> {
    let all = session.member.namespaces().unwrap();
    session.orphaned_numbers(&all).unwrap()
}

#[test]
fn the_next_removal_finishes_one_whose_process_died() {
    let case = Case::new();
    let session = case.region.session().unwrap();
    let old = unfinished(&session);
    // Its entry serves no other namespace before.
    let other = session.namespace("other", &Schema::default()).unwrap();
    assert_ne!(other.index & 0xffff, old.index & 0xffff);
    assert_eq!(session.remove_empty_namespaces(1).unwrap(), 1);
    assert!(session.has_namespace(other), "the unfinished one is removed first");
    assert!(session.member.unfinished_removals().unwrap().is_empty());
    assert!(orphaned(&session).is_empty());
    let next = session.namespace("removed", &Schema::default()).unwrap();
    assert_eq!(next.index & 0xffff, old.index & 0xffff);
    assert!(session.tags(next).unwrap().is_empty());
    drop(session);
    assert_eq!(case.faults().1, Vec::<String>::new());
}

#[test]
fn a_check_accepts_an_unfinished_removal_and_a_repair_finishes_it() {
    let case = Case::new();
    let session = case.region.session().unwrap();
    let last = {
        let versions = session.namespace("versions", &Schema::default()).unwrap();
        let last = (0..9).map(|_| session.put(versions, b"k", b"v").unwrap()).last().unwrap();
        assert!(session.delete(versions, b"k").unwrap());
        assert!(session.remove_namespace(versions).unwrap());
        last
    };
    unfinished(&session);
    drop(session);
    let (dir, faults) = case.faults();
    assert_eq!(faults, Vec::<String>::new());
    let path = dir.path().join("region");
    let report = crate::repair::repair_with(&path, &AttachOptions::default()).unwrap();
    assert!(report.lost.is_empty(), "{:?}", report.lost);
    let region = Region::attach(&path).unwrap();
    let session = region.session().unwrap();
    assert!(orphaned(&session).is_empty());
    let namespace = session.namespace("versions", &Schema::default()).unwrap();
    assert!(session.put(namespace, b"k", b"v").unwrap() > last);
    assert!(session.namespace("removed", &Schema::default()).is_ok());
    drop((session, region));
    let report = crate::check(&path).unwrap();
    assert_eq!(report.faults, Vec::<String>::new());
}

#[test]
fn a_check_finds_index_records_of_a_namespace_that_does_not_exist() {
    let case = Case::new();
    let session = case.region.session().unwrap();
    let namespace = session.namespace("removed", &Schema::default()).unwrap();
    session
        .transact(|txn| {
            txn.set.borrow_mut().put_internal(&schema_key(7 << 16 | namespace.index), b"")
        })
        .unwrap();
    assert_eq!(orphaned(&session), [7 << 16 | namespace.index]);
    drop(session);
    let (dir, faults) = case.faults();
    assert!(matches!(faults.as_slice(), [fault] if fault.contains("does not exist")), "{faults:?}");
    let path = dir.path().join("region");
    crate::repair::repair_with(&path, &AttachOptions::default()).unwrap();
    assert_eq!(crate::check(&path).unwrap().faults, Vec::<String>::new());
}

/// A declaration stores the tags of a namespace and then raises its flags. A removal between its
/// steps is noticed, and leaves no tags behind.
#[test]
fn a_declaration_of_tags_fails_if_its_namespace_was_removed() {
    let case = Case::new();
    let (session, other) = (case.region.session().unwrap(), case.region.session().unwrap());
    let policy = crate::txn::RetryPolicy::default();
    for parts in 0..6 {
        let namespace = session.namespace("removed", &Schema::default()).unwrap();
        let mut declaring = session.begin_tag_declaration(namespace, &tags(), policy).unwrap();
        let mut has_more = true;
        for _ in 0..parts {
            has_more = has_more && session.continue_tag_declaration(&mut declaring, 2).unwrap();
        }
        assert!(other.remove_namespace(namespace).unwrap(), "{parts} parts are done");
        if has_more {
            let refused = session.continue_tag_declaration(&mut declaring, 2).unwrap_err();
            assert!(matches!(refused, Error::BadArgument { .. }), "{refused}");
        }
        assert!(orphaned(&session).is_empty(), "{parts} parts are done");
    }
    drop((session, other));
    assert_eq!(case.faults().1, Vec::<String>::new());
}

/// The order of expiry may hold entries of records of a removed namespace.
#[test]
fn a_collection_takes_out_entries_of_removed_namespaces() {
    let case = Case::new();
    let session = case.region.session().unwrap();
    let namespace = session.namespace("removed", &Schema::default()).unwrap();
    let enter =
        |txn: &crate::txn::Txn<'_>| txn.set.borrow_mut().enter_expiry(namespace.index, b"k", 1);
    session.transact(enter).unwrap();
    assert!(session.remove_namespace(namespace).unwrap());
    let next = session.namespace("next", &Schema::default()).unwrap();
    session.put(next, b"k", b"v").unwrap();
    for _ in 0..2 {
        let collected = session.collect_expired(100).unwrap();
        assert_eq!((collected.records, collected.has_more), (0, false));
    }
    assert!(session.get(next, b"k").unwrap().is_some());
    drop(session);
    assert_eq!(case.faults().1, Vec::<String>::new());
}

/// The search for empty namespaces has looked at the flags before the removal begins.
#[test]
fn a_namespace_that_was_declared_since_the_search_stays() {
    type Declare = fn(&Session, Namespace) -> Result<()>;
    let case = Case::new();
    let (session, other) = (case.region.session().unwrap(), case.region.session().unwrap());
    let declarations: [(&str, Declare); 6] = [
        ("async", |other, ns| other.set_replication_policy(ns, ReplicationPolicy::Async)),
        ("replicated", |other, ns| other.set_replication_policy(ns, ReplicationPolicy::Replicated)),
        ("local", |other, ns| other.set_replication_policy(ns, ReplicationPolicy::Local)),
        ("tags", |other, ns| other.add_tags(ns, &tags())),
        ("limits", |other, ns| {
            other.set_limits(ns, NamespaceLimits { soft_bytes: 1 << 19, hard_bytes: 1 << 20 })
        }),
        // The tags are stored before the flags say so.
        ("schema", |other, ns| {
            let none = TagSet::default().encode();
            other.transact(|txn| txn.set.borrow_mut().put_internal(&schema_key(ns.index), &none))
        }),
    ];
    for (name, declare) in declarations {
        let namespace = session.namespace(name, &Schema::default()).unwrap();
        declare(&other, namespace).unwrap();
        assert!(!session.remove_unless_gone(namespace).unwrap(), "{name}");
        assert!(session.has_namespace(namespace), "{name}");
    }
    assert_eq!(session.remove_empty_namespaces(100).unwrap(), 0);
    let plain = session.namespace("plain", &Schema::default()).unwrap();
    assert!(session.remove_unless_gone(plain).unwrap());
}

#[test]
fn a_declaration_cancels_the_removal_that_has_not_seen_it() {
    let case = Case::new();
    let (session, other) = (case.region.session().unwrap(), case.region.session().unwrap());
    let namespace = session.namespace("declared", &Schema::default()).unwrap();
    let decide = |flags| {
        let decision = session.decide_for_room(namespace, flags);
        assert_eq!(decision, Ok(RemovalDecision::Remove { has_index: false }));
        other.set_replication_policy(namespace, ReplicationPolicy::Local).unwrap();
        decision
    };
    assert!(!session.member.remove_namespace(namespace.index, decide).unwrap());
    assert!(session.has_namespace(namespace));
    drop((session, other));
    assert_eq!(case.faults().1, Vec::<String>::new());
}

/// A session that has checked the fence before its lock sees it under its lock.
#[test]
fn a_hand_over_keeps_the_logged_namespace_that_is_being_removed() {
    let case = Case::new();
    let (session, node) = (case.region.session().unwrap(), case.region.session().unwrap());
    let namespace = session.namespace("logged", &Schema::default()).unwrap();
    session.set_replication_policy(namespace, ReplicationPolicy::Async).unwrap();
    let decide = |flags| {
        node.set_fenced(true).unwrap();
        session.decide_requested(namespace, flags)
    };
    assert!(!session.member.remove_namespace(namespace.index, decide).unwrap());
    assert!(session.has_namespace(namespace));
    node.set_fenced(false).unwrap();
    assert!(session.remove_namespace(namespace).unwrap());
}
