//! A process is killed while it declares tags.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::Stdio;

use nearstate_store::{
    CreateOptions, Error, Metadata, Namespace, Region, RetryPolicy, Schema, Session, TagSchema,
    TagState,
};

use crate::fixture::{KilledOnDrop, child, clean, is_alone, region_path, spawn};

const RECORDS: u16 = 500;

fn unique() -> TagSchema {
    TagSchema { name: "id".to_owned(), is_unique: true, ..TagSchema::default() }
}

/// No record has the tag.
fn required() -> TagSchema {
    TagSchema { name: "no".to_owned(), is_required: true, ..TagSchema::default() }
}

fn put(session: &Session, ns: Namespace, key: &[u8], id: &[u8]) {
    let metadata = Metadata { tags: &[("id", id)], expires_ms: 0 };
    session.transact(|txn| txn.put_with_metadata(ns, key, b"v", metadata)).unwrap();
}

/// A process that has declared a tag for some of the records and waits to be killed.
fn half_way(path: &Path) -> KilledOnDrop {
    let mut command = child("killed_tag_declaration::half_way_in_another_process", path);
    let mut started =
        KilledOnDrop(spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped())).unwrap());
    let out = started.0.stdout.take().unwrap();
    let mut lines = BufReader::new(out).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("half way")), "the declaration has not begun");
    started
}

#[test]
#[ignore = "the test below runs it in a process of its own"]
fn half_way_in_another_process() {
    let region = Region::attach(&region_path()).unwrap();
    let session = region.session().unwrap();
    let ns = session.namespace("ues", &Schema::default()).unwrap();
    let mut declaring =
        session.begin_tag_declaration(ns, &[unique()], RetryPolicy::default()).unwrap();
    for _ in 0..20 {
        assert!(session.continue_tag_declaration(&mut declaring, 1).unwrap());
    }
    let mut out = std::io::stdout();
    out.write_all(b"\nhalf way\n").and_then(|()| out.flush()).unwrap();
    // No process writes to this pipe: the read returns when the other process ends.
    let _ = std::io::stdin().read_line(&mut String::new());
    drop(declaring);
}

#[test]
fn a_declaration_excludes_others_until_its_process_is_killed_and_a_repeated_one_completes_it() {
    const THIS: &str = "killed_tag_declaration::\
         a_declaration_excludes_others_until_its_process_is_killed_and_a_repeated_one_completes_it";
    // A child of another test holds the lock of a declaration of this process until its exec.
    if !is_alone(THIS) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("region");
    let region = Region::create(&path, &CreateOptions::default()).unwrap();
    let session = region.session().unwrap();
    let ns = session.namespace("ues", &Schema::default()).unwrap();
    for number in 0..RECORDS {
        put(&session, ns, &number.to_be_bytes(), &number.to_be_bytes());
    }
    let states = || -> Vec<(String, TagState)> {
        let tags = session.tags(ns).unwrap();
        tags.into_iter().map(|tag| (tag.name, tag.state)).collect()
    };
    let building = [("id".to_owned(), TagState::Building)];
    put(&session, ns, b"another", &[0, 7]);

    let other = half_way(&path);
    for _ in 0..2 {
        let refused = session.add_tags(ns, &[unique()]).unwrap_err();
        assert!(matches!(refused, Error::TagTaken { .. }), "{refused}");
        assert_eq!(states(), building, "a living process is busy with it");
    }
    drop(other);
    let refused = session.add_tags(ns, &[unique()]).unwrap_err();
    assert!(matches!(refused, Error::TagTaken { .. }), "{refused}");
    assert_eq!(states(), [], "it is dead: the name would be taken for ever");
    assert!(session.delete(ns, b"another").unwrap());

    drop(half_way(&path));
    let refused = session.add_tags(ns, &[unique(), required()]).unwrap_err();
    assert!(matches!(refused, Error::BadArgument { .. }), "{refused}");
    assert_eq!(states(), building, "what a dead process began is not taken away beside it");
    session.add_tags(ns, &[unique()]).unwrap();
    for number in 0..RECORDS {
        let found = session.find(ns, "id", &number.to_be_bytes()).unwrap();
        assert_eq!(found.unwrap().key(), number.to_be_bytes());
    }
    drop((session, region));
    clean(&path);
}
