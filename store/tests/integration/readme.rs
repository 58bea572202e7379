//! The example of the README for transactions: it runs, and the README has the same text.

use nearstate_store::{
    CreateOptions, EventKind, Filter, Metadata, Notice, Region, Result, Schema, Session, TagSchema,
    now_ms_coarse,
};

const README: &str = include_str!("../../../README.md");
const HERE: &str = include_str!("readme.rs");

#[test]
fn the_example_runs() {
    let folder = tempfile::tempdir().unwrap();
    let region = Region::create(&folder.path().join("smf"), &CreateOptions::default()).unwrap();
    example(&region.session().unwrap()).unwrap();
}

fn example(session: &Session) -> Result<()> {
    // From here on as in the README.
    let unique = |name: &str| {
        let name = name.to_owned();
        TagSchema { name, is_unique: true, ..TagSchema::default() }
    };
    let schema = Schema { tags: vec![unique("guti"), unique("teid")], ..Schema::default() };
    let sessions = session.namespace("sessions", &schema)?;
    let bearers = session.namespace("bearers", &Schema::default())?;
    let mut watch = session.watch(sessions, Filter::Prefix(b"imsi-26201".to_vec()))?;

    session.transact(|txn| {
        let tags: &[(&str, &[u8])] = &[("guti", b"26201-8001-01-c0de"), ("teid", b"\0\0\x10\x01")];
        let metadata = Metadata { tags, expires_ms: now_ms_coarse() + 3_600_000 };
        txn.put_with_metadata(sessions, b"imsi-262011234567890", b"context", metadata)?;
        txn.put(bearers, b"imsi-262011234567890/5", b"default bearer")
    })?;

    let view = session.find(sessions, "teid", b"\0\0\x10\x01")?.expect("put above");
    assert_eq!(view.key(), b"imsi-262011234567890");
    let Some(Notice::Event(event)) = watch.next()? else { panic!("the watch reports the change") };
    assert_eq!((event.kind, event.key), (EventKind::Created, view.key()));
    // As far as here.
    Ok(())
}

#[test]
fn the_readme_has_this_example() {
    let (_, after) = HERE.split_once("// From here on as in the README.\n").unwrap();
    let (code, _) = after.split_once("    // As far as here.\n").unwrap();
    let code: Vec<&str> =
        code.lines().map(|line| line.strip_prefix("    ").unwrap_or(line)).collect();
    let block = format!("```rust\n{}\n```\n", code.join("\n"));
    assert!(README.contains(&block), "README.md lacks this:\n{block}");
}
