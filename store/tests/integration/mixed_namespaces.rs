//! A mixed namespace: values, named blocks and sets beside each other, each replaced by any other.
use nearstate_store::{
    BlockChange, Condition, CreateOptions, Error, Form, Kind, Metadata, Namespace, Outcome, Region,
    Schema, Session, WhenFull,
};

use crate::fixture::clean;

fn mixed(session: &Session) -> Namespace {
    session.namespace("xapp", &Schema { kind: Kind::Mixed, ..Schema::default() }).unwrap()
}

const fn block<'a>(name: &'a str, bytes: &'a [u8]) -> BlockChange<'a> {
    BlockChange { name, bytes: Some(bytes) }
}

#[test]
fn each_record_has_a_form_and_is_replaced_by_any_other_form() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("region");
    {
        let region = Region::create(&path, &CreateOptions::default()).unwrap();
        let session = region.session().unwrap();
        let ns = mixed(&session);
        session.put(ns, b"", b"an empty key is a key").unwrap();
        session.put(ns, b"text", b"v").unwrap();
        session
            .patch(ns, b"hash", &[block("a", b"1"), block("b", &[2; 900])], Condition::Always)
            .unwrap();
        session
            .transact(|txn| txn.put_members(ns, b"set", &[b"b", b"a", b"b"], Metadata::default()))
            .unwrap();

        let view = session.get(ns, b"hash").unwrap().unwrap();
        assert_eq!(
            (view.form(), view.bytes(), view.block("b")),
            (Form::Blocks, &[][..], Some(&[2; 900][..]))
        );
        let view = session.get(ns, b"set").unwrap().unwrap();
        assert_eq!((view.form(), view.bytes()), (Form::Set, &[][..]));
        assert_eq!(view.members().collect::<Vec<_>>(), [b"a", b"b"]);
        assert_eq!(session.get(ns, b"").unwrap().unwrap().bytes(), b"an empty key is a key");

        // What is not there for the form is a refusal that says so, alone and in a transaction.
        for key in [b"text".as_slice(), b"set"] {
            let alone = session.patch(ns, key, &[block("a", b"1")], Condition::Always).unwrap_err();
            assert!(alone.to_string().contains("no named blocks"), "{alone}");
            let txn = session.begin().unwrap();
            assert!(matches!(
                txn.patch(ns, key, &[block("a", b"1")]),
                Err(Error::WrongKind { .. })
            ));
        }
        // A comparison never takes the bytes of another form for a value.
        let raw = [2, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, b'a', b'b'];
        let outcome = session.put_if(ns, b"set", b"x", Condition::Value(&raw)).unwrap();
        assert!(matches!(outcome, Outcome::Refused { current: Some(_) }));

        session.put(ns, b"hash", b"now a value").unwrap();
        assert_eq!(session.get(ns, b"hash").unwrap().unwrap().form(), Form::Value);
        session
            .transact(|txn| {
                txn.delete(ns, b"text")?;
                txn.patch(ns, b"text", &[block("x", b"y")])
            })
            .unwrap();
        assert_eq!(session.get(ns, b"text").unwrap().unwrap().block("x"), Some(b"y".as_slice()));
    }
    clean(&path);
}

#[test]
fn a_transaction_reads_the_form_that_it_has_written() {
    let dir = tempfile::tempdir().unwrap();
    let region = Region::create(&dir.path().join("region"), &CreateOptions::default()).unwrap();
    let session = region.session().unwrap();
    let ns = mixed(&session);
    session.put(ns, b"k", b"v").unwrap();
    let txn = session.begin().unwrap();
    txn.put_members(
        ns,
        b"k",
        &[b"m"],
        Metadata { expires_ms: u64::MAX >> 8, ..Metadata::default() },
    )
    .unwrap();
    let own = txn.get(ns, b"k").unwrap().unwrap();
    assert_eq!((own.form(), own.members().len(), own.expires_ms()), (Form::Set, 1, u64::MAX >> 8));
    assert!(own.members().contains(b"m"));
    assert!(matches!(txn.patch(ns, b"k", &[block("a", b"1")]), Err(Error::WrongKind { .. })));
    assert!(txn.set_metadata(ns, b"k", Metadata::default()).unwrap());
    drop(own);
    txn.commit().unwrap();
    let view = session.get(ns, b"k").unwrap().unwrap();
    assert_eq!((view.form(), view.expires_ms()), (Form::Set, 0));
}

#[test]
fn the_last_write_of_a_transaction_decides_the_form() {
    let dir = tempfile::tempdir().unwrap();
    let region = Region::create(&dir.path().join("region"), &CreateOptions::default()).unwrap();
    let session = region.session().unwrap();
    let ns = mixed(&session);
    let member: &[&[u8]] = &[b"m"];
    session
        .transact(|txn| {
            txn.patch(ns, b"k", &[block("a", b"1")])?;
            txn.put_members(ns, b"k", member, Metadata::default())?;
            txn.put(ns, b"k", b"v")?;
            txn.put_members(ns, b"s", member, Metadata::default())?;
            txn.patch(ns, b"h", &[block("a", b"1")])?;
            txn.put(ns, b"h", b"v")
        })
        .unwrap();
    let form = |key: &[u8]| session.get(ns, key).unwrap().unwrap().form();
    assert_eq!([form(b"k"), form(b"s"), form(b"h")], [Form::Value, Form::Set, Form::Value]);
}

#[test]
fn setting_metadata_keeps_blocks_and_the_stream_marks_sets() {
    let dir = tempfile::tempdir().unwrap();
    let region = Region::create(&dir.path().join("region"), &CreateOptions::default()).unwrap();
    let session = region.session().unwrap();
    let ns = mixed(&session);
    session.stream(ns, WhenFull::Refuse).unwrap();
    session.patch(ns, b"h", &[block("a", b"1")], Condition::Always).unwrap();
    let tags: &[(&str, &[u8])] = &[("slice", b"1")];
    let metadata = Metadata { tags, expires_ms: 0 };
    assert!(session.transact(|txn| txn.set_metadata(ns, b"h", metadata)).unwrap());
    assert_eq!(session.get(ns, b"h").unwrap().unwrap().block("a"), Some(b"1".as_slice()));
    session.transact(|txn| txn.put_members(ns, b"s", &[b"m"], Metadata::default())).unwrap();
    let mut stream = session.commit_stream().unwrap();
    let mut steps = Vec::new();
    while let Some(nearstate_store::StreamItem::Transaction(entry)) = stream.next().unwrap() {
        for record in entry.records() {
            steps.push(matches!(
                record.unwrap().change,
                nearstate_store::StreamedChange::Put { is_set: true, .. }
            ));
        }
    }
    assert_eq!(steps, [false, false, true]);
}

#[test]
fn sets_are_for_mixed_namespaces_and_have_a_member() {
    let dir = tempfile::tempdir().unwrap();
    let region = Region::create(&dir.path().join("region"), &CreateOptions::default()).unwrap();
    let session = region.session().unwrap();
    let values = session.namespace("values", &Schema::default()).unwrap();
    let txn = session.begin().unwrap();
    let refused = txn.put_members(values, b"k", &[b"m"], Metadata::default()).unwrap_err();
    assert!(refused.to_string().contains("mixed"), "{refused}");
    let refused = txn.put_members(mixed(&session), b"k", &[], Metadata::default()).unwrap_err();
    assert!(matches!(refused, Error::BadArgument { .. }));
    let all = session.namespaces().unwrap();
    assert_eq!(all.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["values", "xapp"]);
    assert_eq!(session.known_namespace("xapp").unwrap().unwrap().kind(), Kind::Mixed);
    assert_eq!(session.known_namespace("xap").unwrap(), None);
    assert_eq!(all[0].1.kind(), Kind::Value);
}
