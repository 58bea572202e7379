//! Hashes that are put whole: small blocks stand in the record's cell, in whatever way the
//! transaction changes them afterwards.

use nearstate_store::{
    BlockChange, Condition, EventKind, Filter, Form, Kind, Metadata, Namespace, Notice, Schema,
    Session, Txn, View,
};
use proptest::prelude::*;

use crate::fixture::TestRegion;

/// Sizes around the limits of what stands in the record's cell.
const SIZES: [usize; 8] = [0, 3, 512, 513, 700, 1024, 1025, 2000];

const TAGS: [(&str, &[u8]); 2] = [("a", b"1"), ("b", b"2")];

/// A step of a transaction; names are one letter, and sizes are indices of [`SIZES`].
#[derive(Clone, Debug)]
enum HashStep {
    Put(Vec<(u8, usize)>, bool),
    Set(Vec<(u8, usize)>),
    Remove(u8),
    Patch(u8, Option<usize>),
    SetTags,
    Delete,
    Read,
    Commit,
}

fn field() -> impl Strategy<Value = (u8, usize)> {
    (b'a'..=b'e', 0..SIZES.len())
}

fn any_step() -> impl Strategy<Value = HashStep> {
    let fields = || prop::collection::vec(field(), 1..4);
    prop_oneof![
        4 => (fields(), any::<bool>()).prop_map(|(fields, tags)| HashStep::Put(fields, tags)),
        2 => fields().prop_map(HashStep::Set),
        1 => (b'a'..=b'e').prop_map(HashStep::Remove),
        2 => (b'a'..=b'e', prop::option::of(0..SIZES.len()))
            .prop_map(|(name, size)| HashStep::Patch(name, size)),
        1 => Just(HashStep::SetTags),
        1 => Just(HashStep::Delete),
        2 => Just(HashStep::Read),
        2 => Just(HashStep::Commit),
    ]
}

/// The fields of a hash, and whether it has [`TAGS`].
#[derive(Clone, Debug, Default, PartialEq)]
struct HashModel {
    fields: Vec<(Vec<u8>, Vec<u8>)>,
    has_tags: bool,
}

fn bytes_of((name, size): (u8, usize), number: usize) -> (Vec<u8>, Vec<u8>) {
    (vec![name], vec![u8::try_from(number % 251).unwrap(); SIZES[size]])
}

impl HashModel {
    fn set(&mut self, (name, value): (Vec<u8>, Vec<u8>)) {
        match self.fields.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = value,
            None => self.fields.push((name, value)),
        }
    }

    fn remove(&mut self, name: u8) {
        self.fields.retain(|(known, _)| known != &[name]);
        if self.fields.is_empty() {
            self.has_tags = false;
        }
    }

    /// The fields with their size and their first byte.
    fn in_short(&self) -> (Vec<(char, usize, Option<u8>)>, bool) {
        let field = |(name, value): &(Vec<u8>, Vec<u8>)| {
            (char::from(name[0]), value.len(), value.first().copied())
        };
        (self.fields.iter().map(field).collect(), self.has_tags)
    }

    #[track_caller]
    fn assert_is(&self, view: Option<View<'_>>) {
        let Some(view) = view else { return assert!(self.fields.is_empty(), "the hash is lost") };
        assert_eq!(view.form(), Form::Blocks);
        let fields = view.fields().map(|(name, value)| (name.to_vec(), value.to_vec()));
        let has_tags = view.tags().eq(TAGS);
        assert!(has_tags || view.tags().next().is_none());
        let (mut found, mut wanted) = (Self { fields: fields.collect(), has_tags }, self.clone());
        // A field that the transaction removes and sets again may keep its place.
        found.fields.sort();
        wanted.fields.sort();
        assert!(found == wanted, "{:?} is not {:?}", found.in_short(), wanted.in_short());
        for (name, value) in &self.fields {
            assert_eq!(view.field(name), Some(value.as_slice()));
        }
    }
}

fn pairs_of(fields: &[(Vec<u8>, Vec<u8>)]) -> Vec<(&[u8], &[u8])> {
    fields.iter().map(|(name, value)| (name.as_slice(), value.as_slice())).collect()
}

/// Makes a step in a transaction and in the model.
fn make(txn: &Txn<'_>, ns: Namespace, (number, step): (usize, &HashStep), model: &mut HashModel) {
    let of = |fields: &[(u8, usize)]| -> Vec<_> {
        fields.iter().enumerate().map(|(at, field)| bytes_of(*field, number + at)).collect()
    };
    match step {
        HashStep::Put(fields, has_tags) => {
            let fields = of(fields);
            let tags: &[_] = if *has_tags { &TAGS } else { &[] };
            txn.put_fields(ns, b"h", &pairs_of(&fields), Metadata { tags, expires_ms: 0 }).unwrap();
            *model = HashModel { fields: Vec::new(), has_tags: *has_tags };
            for field in fields {
                model.set(field);
            }
        }
        HashStep::Set(fields) => {
            let fields = of(fields);
            txn.set_fields(ns, b"h", &pairs_of(&fields)).unwrap();
            for field in fields {
                model.set(field);
            }
        }
        HashStep::Remove(name) => {
            txn.remove_fields(ns, b"h", &[&[*name]]).unwrap();
            model.remove(*name);
        }
        // A patch that removes the last block leaves a record without blocks.
        HashStep::Patch(name, None) if model.fields.iter().all(|(known, _)| known == &[*name]) => {}
        HashStep::Patch(name, size) => {
            let value = size.map(|size| bytes_of((*name, size), number).1);
            let (text, bytes) = (char::from(*name).to_string(), value.as_deref());
            txn.patch(ns, b"h", &[BlockChange { name: &text, bytes }]).unwrap();
            match value {
                Some(value) => model.set((vec![*name], value)),
                None => model.remove(*name),
            }
        }
        HashStep::SetTags => {
            let metadata = Metadata { tags: &TAGS, expires_ms: 0 };
            model.has_tags = txn.set_metadata(ns, b"h", metadata).unwrap();
            assert_eq!(model.has_tags, !model.fields.is_empty());
        }
        HashStep::Delete => {
            txn.delete(ns, b"h").unwrap();
            *model = HashModel::default();
        }
        HashStep::Read => model.assert_is(txn.get(ns, b"h").unwrap()),
        HashStep::Commit => {}
    }
}

fn run(session: &Session, ns: Namespace, steps: &[HashStep]) {
    session.delete(ns, b"h").unwrap();
    let mut model = HashModel::default();
    let numbered: Vec<(usize, &HashStep)> = steps.iter().enumerate().collect();
    for steps in numbered.split_inclusive(|(_, step)| matches!(step, HashStep::Commit)) {
        let txn = session.begin().unwrap();
        for step in steps {
            make(&txn, ns, *step, &mut model);
        }
        txn.commit().unwrap();
        model.assert_is(session.get(ns, b"h").unwrap());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn a_hash_is_what_its_steps_have_made_of_it(
        runs in prop::collection::vec(prop::collection::vec(any_step(), 1..12), 8),
    ) {
        let test = TestRegion::with_bytes(64 << 20);
        let session = test.region.session().unwrap();
        for kind in [Kind::Mixed, Kind::Blocks] {
            let schema = Schema { kind, ..Schema::default() };
            let ns = session.namespace(&format!("{kind:?}"), &schema).unwrap();
            for steps in &runs {
                run(&session, ns, steps);
            }
        }
        drop(session);
        test.close_and_check();
    }
}

#[test]
fn a_watch_is_told_all_blocks_of_a_hash_that_was_put_whole() {
    let test = TestRegion::new();
    let session = test.region.session().unwrap();
    let schema = Schema { kind: Kind::Mixed, ..Schema::default() };
    let ns = session.namespace("mixed", &schema).unwrap();
    let mut watch = session.watch(ns, Filter::Namespace).unwrap();
    let metadata = Metadata { tags: &TAGS, expires_ms: 0 };
    let fields: [(&[u8], &[u8]); 2] = [(b"b", &[1; 700]), (b"a", b"2")];
    session.transact(|txn| txn.put_fields(ns, b"h", &fields, metadata)).unwrap();
    let many: Vec<String> = (10..40).map(|number| format!("f{number}")).collect();
    let many: Vec<(&[u8], &[u8])> =
        many.iter().map(|name| (name.as_bytes(), &[3; 500][..])).collect();
    session
        .transact(|txn| {
            txn.put_fields(ns, b"h", &[(b"z", b"1")], metadata)?;
            // The hash becomes divided.
            txn.set_fields(ns, b"h", &many).map(drop)
        })
        .unwrap();
    let mut events = Vec::new();
    while let Some(notice) = watch.next().unwrap() {
        let Notice::Event(event) = notice else { panic!("{notice:?}") };
        let blocks: Vec<String> = event.blocks().map(str::to_owned).collect();
        events.push((event.kind, event.form, blocks));
    }
    assert_eq!(events[0], (EventKind::Created, Form::Blocks, vec!["b".to_owned(), "a".to_owned()]));
    assert_eq!(events[1].2.len(), 31, "{:?}", events[1]);
    assert!(events[1].2.iter().any(|name| name == "z"), "{:?}", events[1]);
    drop((watch, session));
    test.close_and_check();
}

#[test]
fn invalid_metadata_of_a_hash_leaves_the_transaction_unchanged() {
    let test = TestRegion::new();
    let session = test.region.session().unwrap();
    let ns = session.namespace("b", &Schema { kind: Kind::Blocks, ..Schema::default() }).unwrap();
    session
        .patch(ns, b"h", &[BlockChange { name: "a", bytes: Some(b"1") }], Condition::Always)
        .unwrap();
    let txn = session.begin().unwrap();
    let fields: [(&[u8], &[u8]); 1] = [(b"a", b"2")];
    let metadata = Metadata { tags: &[("", b"x")], expires_ms: 0 };
    txn.put_fields(ns, b"h", &fields, metadata).unwrap_err();
    txn.put_fields(ns, b"other", &fields, Metadata::default()).unwrap();
    txn.commit().unwrap();
    assert_eq!(session.get(ns, b"h").unwrap().unwrap().block("a"), Some(&b"1"[..]));
    assert_eq!(session.get(ns, b"other").unwrap().unwrap().block("a"), Some(&b"2"[..]));
    drop(session);
    test.close_and_check();
}
