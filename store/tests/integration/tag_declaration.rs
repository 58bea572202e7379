//! Tags that are declared for existing records.

use nearstate_store::{
    CreateOptions, Error, EventKind, Filter, Metadata, Namespace, Notice, Region, RetryPolicy,
    Schema, Session, TagSchema, now_ms_coarse,
};

use crate::fixture::{clean, without_forks};

/// A record that had expired and was not yet collected was in no index. A declaration of tags left
/// such a region in a state that the check rejected.
#[test]
fn an_expired_record_does_not_prevent_a_new_tag() {
    let _no_forks = without_forks();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("region");
    let region = Region::create(&path, &CreateOptions::default()).unwrap();
    let session = region.session().unwrap();
    let ns = session.namespace("late", &Schema::default()).unwrap();
    let mut watch = session.watch(ns, Filter::Namespace).unwrap();
    let put = |key: &[u8], expires_ms| {
        let metadata = Metadata { tags: &[("guti", b"g1"), ("cell", b"5")], expires_ms };
        session.transact(|txn| txn.put_with_metadata(ns, key, b"v", metadata)).unwrap();
    };
    put(b"past", now_ms_coarse() - 1000);
    put(b"present", 0);
    let tag = |name: &str, is_unique| TagSchema {
        name: name.to_owned(),
        is_unique,
        is_counted: true,
        is_required: true,
        ..TagSchema::default()
    };
    session.add_tags(ns, &[tag("guti", true), tag("cell", false)]).unwrap();
    assert_eq!(session.find(ns, "guti", b"g1").unwrap().unwrap().key(), b"present");
    assert_eq!(session.count_tagged(ns, "cell", b"5").unwrap(), 1);
    let mut ended = 0;
    while let Some(notice) = watch.next().unwrap() {
        let Notice::Event(event) = notice else { continue };
        ended += u32::from((event.kind, event.key) == (EventKind::Expired, b"past"));
    }
    assert_eq!(ended, 1);
    assert_eq!(session.collect_expired(10).unwrap().records, 0);
    drop((watch, session, region));
    clean(&path);
}

fn unique() -> [TagSchema; 1] {
    [TagSchema { name: "id".to_owned(), is_unique: true, ..TagSchema::default() }]
}

fn put(session: &Session, ns: Namespace, key: &[u8], id: &[u8]) {
    let metadata = Metadata { tags: &[("id", id)], expires_ms: 0 };
    session.transact(|txn| txn.put_with_metadata(ns, key, b"v", metadata)).unwrap();
}

/// The keys in the order of the index.
fn keys(session: &Session, ns: Namespace) -> Vec<Vec<u8>> {
    let mut scan = session.scan(ns).unwrap();
    let mut keys = Vec::new();
    while let Some(view) = scan.next().unwrap() {
        keys.push(view.key().to_vec());
    }
    keys
}

#[test]
fn a_declaration_continues_in_parts_and_a_repeated_one_completes_it() {
    let _no_forks = without_forks();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("region");
    let region = Region::create(&path, &CreateOptions::default()).unwrap();
    let (session, other) = (region.session().unwrap(), region.session().unwrap());
    let ns = session.namespace("ues", &Schema::default()).unwrap();
    for number in 0..500_u16 {
        put(&session, ns, &number.to_be_bytes(), &number.to_be_bytes());
    }
    let begun = || session.begin_tag_declaration(ns, &unique(), RetryPolicy::default()).unwrap();
    let mut given_up = begun();
    for number in 500..520_u16 {
        assert!(session.continue_tag_declaration(&mut given_up, 1).unwrap(), "many parts");
        // Others write meanwhile: what comes, what goes, what changes.
        put(&other, ns, &number.to_be_bytes(), &number.to_be_bytes());
        assert!(other.delete(ns, &(number - 500).to_be_bytes()).unwrap());
        put(&other, ns, &(number - 400).to_be_bytes(), &(number + 500).to_be_bytes());
    }
    drop(given_up);
    let refused = other.find(ns, "id", &[0, 50]).unwrap_err();
    assert!(refused.to_string().contains("still being built"), "{refused}");
    let (mut again, mut parts) = (begun(), 1);
    while session.continue_tag_declaration(&mut again, 1).unwrap() {
        parts += 1;
    }
    assert!(parts > 50, "{parts}");
    assert!(!session.continue_tag_declaration(&mut again, 1).unwrap(), "it stays done");
    for key in keys(&session, ns) {
        let number = u16::from_be_bytes([key[0], key[1]]);
        let id = if (100..120).contains(&number) { number + 900 } else { number };
        let found = other.find(ns, "id", &id.to_be_bytes()).unwrap().unwrap();
        assert_eq!(found.key(), key);
    }
    assert_eq!(session.count(ns).unwrap(), 500);
    drop((session, other, region));
    clean(&path);
}

/// A declaration started over each time another one declared something.
#[test]
fn declarations_that_always_fail_do_not_delay_another_one() {
    let _no_forks = without_forks();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("region");
    let region = Region::create(&path, &CreateOptions::default()).unwrap();
    let (session, other) = (region.session().unwrap(), region.session().unwrap());
    let ns = session.namespace("ues", &Schema::default()).unwrap();
    for number in 0..2000_u16 {
        put(&session, ns, &number.to_be_bytes(), &number.to_be_bytes());
    }
    let doomed = TagSchema { name: "no".to_owned(), is_required: true, ..TagSchema::default() };
    let in_vain =
        || other.begin_tag_declaration(ns, std::slice::from_ref(&doomed), RetryPolicy::default());
    let mut vain = in_vain().unwrap();
    let mut slow = session.begin_tag_declaration(ns, &unique(), RetryPolicy::default()).unwrap();
    let (mut parts, mut refusals) = (0, 0);
    while session.continue_tag_declaration(&mut slow, 1).unwrap() {
        parts += 1;
        assert!(parts < 10_000, "it begins again for ever");
        match other.continue_tag_declaration(&mut vain, 1000) {
            Ok(has_more) => assert!(has_more, "no record has that tag"),
            Err(error) => {
                assert!(matches!(error, Error::BadArgument { .. }), "{error}");
                refusals += 1;
                // The declaration has failed: a repeated call does not report success.
                assert!(other.continue_tag_declaration(&mut vain, 1000).is_err());
                vain = in_vain().unwrap();
            }
        }
    }
    assert!(refusals > 5, "{refusals}");
    assert!(other.find(ns, "id", &[0, 50]).unwrap().is_some());
    drop((session, other, region));
    clean(&path);
}

/// A walk that others had interrupted for long took all that had come meanwhile in a few parts.
#[test]
fn a_namespace_that_grows_is_still_indexed_in_small_parts() {
    let _no_forks = without_forks();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("region");
    let region = Region::create(&path, &CreateOptions::default()).unwrap();
    let session = region.session().unwrap();
    let ns = session.namespace("ues", &Schema::default()).unwrap();
    let few = session.buckets(ns).unwrap().count();
    let mut slow = session.begin_tag_declaration(ns, &unique(), RetryPolicy::default()).unwrap();
    for _ in 0..few / 2 {
        assert!(session.continue_tag_declaration(&mut slow, 1).unwrap());
    }
    for number in 0..10_000_u16 {
        put(&session, ns, &number.to_be_bytes(), &number.to_be_bytes());
    }
    let many = session.buckets(ns).unwrap().count();
    assert!(many > 16 * few, "{few} {many}");
    let mut parts = 0;
    while session.continue_tag_declaration(&mut slow, 1).unwrap() {
        parts += 1;
    }
    assert!(parts > many / 4, "{parts} of {many}");
    for number in 0..10_000_u16 {
        assert!(session.find(ns, "id", &number.to_be_bytes()).unwrap().is_some());
    }
    drop((session, region));
    clean(&path);
}

/// A session keeps the tags of a namespace from one transaction to the next.
#[test]
fn a_session_that_has_written_enters_the_tags_that_another_one_declares() {
    let _no_forks = without_forks();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("region");
    let region = Region::create(&path, &CreateOptions::default()).unwrap();
    let (session, other) = (region.session().unwrap(), region.session().unwrap());
    let schema = Schema { tags: unique().to_vec(), ..Schema::default() };
    let ns = session.namespace("ues", &schema).unwrap();
    let put = |number: u8| {
        let tags: &[(&str, &[u8])] = &[("cell", b"5"), ("id", &[number])];
        let metadata = Metadata { tags, expires_ms: 0 };
        session.transact(|txn| txn.put_with_metadata(ns, &[number], b"v", metadata)).unwrap();
    };
    put(1);
    put(2);
    let cell = TagSchema { name: "cell".to_owned(), is_counted: true, ..TagSchema::default() };
    other.add_tags(ns, &[cell]).unwrap();
    put(3);
    assert_eq!(other.count_tagged(ns, "cell", b"5").unwrap(), 3);
    assert_eq!(other.find(ns, "id", &[3]).unwrap().unwrap().key(), [3]);
    assert!(session.delete(ns, &[1]).unwrap());
    assert_eq!(other.count_tagged(ns, "cell", b"5").unwrap(), 2);
    drop((session, other, region));
    clean(&path);
}
