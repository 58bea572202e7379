//! Large sets and hashes: many changes of one transaction or call, large values, and collections
//! that are built in steps.

use std::collections::{BTreeMap, BTreeSet};

use nearstate_store::{
    BlockChange, Condition, Error, Form, Kind, Members, Metadata, Schema, StreamItem,
    StreamedChange, WhenFull,
};

use crate::collections::{assert_hash, assert_set, member, mixed, slices};
use crate::fixture::TestRegion;

/// All increments of a large hash in one transaction: a read of one field keeps nothing, and views
/// are refused before they take more memory than a transaction may.
#[test]
fn many_changes_of_a_large_hash_in_one_transaction_take_bounded_memory() {
    let test = TestRegion::with_bytes(64 << 20);
    let session = test.region.session().unwrap();
    let ns = mixed(&session);
    let names: Vec<Vec<u8>> = (0..20_000).map(member).collect();
    let pairs: Vec<(&[u8], &[u8])> = names.iter().map(|n| (n.as_slice(), &b"0"[..])).collect();
    session.transact(|txn| txn.put_fields(ns, b"h", &pairs, Metadata::default())).unwrap();
    let txn = session.begin().unwrap();
    for name in &names {
        assert_eq!(txn.field(ns, b"h", name).unwrap().as_deref(), Some(&b"0"[..]));
        txn.set_fields(ns, b"h", &[(name, b"1")]).unwrap();
        assert_eq!(txn.field(ns, b"h", name).unwrap().as_deref(), Some(&b"1"[..]));
    }
    assert_eq!(txn.field(ns, b"h", b"none").unwrap(), None);
    txn.commit().unwrap();
    let view = session.get(ns, b"h").unwrap().unwrap();
    assert!(view.fields().len() == names.len() && view.fields().all(|(_, value)| value == b"1"));
    drop(view);
    let txn = session.begin().unwrap();
    // Which of the two exceeds the limit depends on the region's random seed.
    let refused = names.iter().find_map(|name| {
        let read = txn.get(ns, b"h").map(drop);
        read.and_then(|()| txn.set_fields(ns, b"h", &[(name, b"2")]).map(drop)).err()
    });
    assert!(matches!(refused, Some(Error::TransactionTooLarge { .. })), "{refused:?}");
    assert!(refused.unwrap().to_string().contains("what it writes"));
    txn.abort();
    assert_eq!(session.get(ns, b"h").unwrap().unwrap().field(&names[0]), Some(&b"1"[..]));
    // Small hashes and other records.
    session
        .transact(|txn| {
            assert_eq!(txn.field(ns, b"none", b"f")?, None);
            txn.set_fields(ns, b"small", &[(b"f", b"1")])?;
            assert_eq!(txn.field(ns, b"small", b"f")?.as_deref(), Some(&b"1"[..]));
            txn.remove_fields(ns, b"small", &[b"f"])?;
            assert_eq!(txn.field(ns, b"small", b"f")?, None);
            txn.put(ns, b"small", b"text")?;
            assert!(matches!(txn.field(ns, b"small", b"f"), Err(Error::WrongKind { .. })));
            Ok::<_, Error>(())
        })
        .unwrap();
    drop(session);
    test.close_and_check();
}

/// Changes of one call: repeated names, and steps of more than a part can hold.
#[test]
fn changes_of_one_call_take_effect_in_their_order() {
    let test = TestRegion::with_bytes(256 << 20);
    let session = test.region.session().unwrap();
    let ns = mixed(&session);
    let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    let values: Vec<Vec<u8>> = (0..40_u8).map(|n| vec![n; 100_000 * usize::from(n % 7)]).collect();
    for round in 0..4_u32 {
        // Each name twice, with two values.
        let names: Vec<Vec<u8>> = (0..3_000).map(|n| member(n % 1_500 + round * 700)).collect();
        let value =
            |n: usize| if n.is_multiple_of(40) { &values[n / 40 % 40][..] } else { &b"v"[..] };
        let pairs: Vec<(&[u8], &[u8])> =
            names.iter().enumerate().map(|(n, name)| (name.as_slice(), value(n))).collect();
        let before = model.len();
        let added = session.transact(|txn| txn.set_fields(ns, b"h", &pairs)).unwrap();
        model.extend(pairs.iter().map(|(name, value)| (name.to_vec(), value.to_vec())));
        assert_eq!(added, model.len() - before);
        assert_hash(session.get(ns, b"h").unwrap(), &model);
    }
    let gone: Vec<Vec<u8>> = model.keys().step_by(2).cloned().collect();
    let twice: Vec<&[u8]> = slices(&gone).into_iter().chain(slices(&gone)).collect();
    let removed = session.transact(|txn| txn.remove_fields(ns, b"h", &twice)).unwrap();
    assert_eq!(removed, gone.len());
    for name in &gone {
        model.remove(name);
    }
    assert_hash(session.get(ns, b"h").unwrap(), &model);
    let all: Vec<Vec<u8>> = model.keys().cloned().collect();
    session.transact(|txn| txn.remove_fields(ns, b"h", &slices(&all))).unwrap();
    assert!(session.get(ns, b"h").unwrap().is_none());
    drop(session);
    test.close_and_check();
}

/// A hash with large values becomes divided before it is too large for one transaction. One that an
/// attached process has made larger, block by block, stays flat.
#[test]
fn a_hash_with_large_values_grows_in_both_forms() {
    let test = TestRegion::with_bytes(2 << 30);
    let session = test.region.session().unwrap();
    let ns = mixed(&session);
    let large = vec![7; 30 << 20];
    let names: Vec<Vec<u8>> = (0..1_200).map(member).collect();
    for name in &names[..10] {
        session.transact(|txn| txn.set_fields(ns, b"h", &[(name, &large)])).unwrap();
    }
    let pairs: Vec<(&[u8], &[u8])> = names.iter().map(|n| (n.as_slice(), &b"v"[..])).collect();
    session.transact(|txn| txn.set_fields(ns, b"h", &pairs[10..])).unwrap();
    let view = session.get(ns, b"h").unwrap().unwrap();
    assert_eq!((view.fields().len(), view.fields().count()), (1_200, 1_200));
    assert!(names[..10].iter().all(|name| view.field(name) == Some(&large[..])));
    drop(view);
    assert!(session.delete(ns, b"h").unwrap());

    for number in 0..10 {
        let change = BlockChange { name: &format!("member-{number}"), bytes: Some(&large) };
        session.patch(ns, b"h", &[change], Condition::Always).unwrap();
    }
    session.transact(|txn| txn.set_fields(ns, b"h", &pairs[10..1_000])).unwrap();
    assert_eq!(session.get(ns, b"h").unwrap().unwrap().fields().count(), 1_000);
    let refused = session.transact(|txn| txn.set_fields(ns, b"h", &[(b"\xff", b"v")]));
    assert!(matches!(refused, Err(Error::TransactionTooLarge { .. })), "{refused:?}");
    session.transact(|txn| txn.remove_fields(ns, b"h", &slices(&names[..4]))).unwrap();
    session.transact(|txn| txn.set_fields(ns, b"h", &pairs)).unwrap();
    let view = session.get(ns, b"h").unwrap().unwrap();
    assert_eq!((view.fields().len(), view.fields().count()), (1_200, 1_200));
    drop(view);
    assert!(session.delete(ns, b"h").unwrap());
    drop(session);
    test.close_and_check();
}

/// A collection that is built in steps is that of its elements, of any size and in each namespace.
/// Carries out what a consumer of the log learns of a set.
fn replay(change: StreamedChange<'_>, set: &mut BTreeSet<Vec<u8>>) {
    match change {
        StreamedChange::Elements { is_set: true, is_anew, elements, .. } => {
            if is_anew {
                set.clear();
            }
            for (name, value) in elements {
                if value.is_some() {
                    set.insert(name.to_vec());
                } else {
                    set.remove(name);
                }
            }
        }
        StreamedChange::Put { value, is_set: true, .. } => {
            *set = Members::new(value).unwrap().map(<[u8]>::to_vec).collect();
        }
        StreamedChange::Put { .. }
        | StreamedChange::Patched { .. }
        | StreamedChange::Elements { .. }
        | StreamedChange::Deleted { .. } => {}
    }
}

#[test]
fn a_built_collection_replaces_a_record() {
    let test = TestRegion::with_bytes(64 << 20);
    let session = test.region.session().unwrap();
    let (ns, blocks) = (mixed(&session), Schema { kind: Kind::Blocks, ..Schema::default() });
    let blocks = session.namespace("blocks", &blocks).unwrap();
    let metadata = Metadata { tags: &[("group", b"g")], expires_ms: u64::MAX >> 8 };
    session.stream(ns, WhenFull::Refuse).unwrap();
    let mut stream = session.commit_stream().unwrap();
    // The set as a consumer of the log has it.
    let mut streamed = BTreeSet::new();
    for count in [1, 128, 129, 20_000_u32] {
        let mut set = session.collection_builder(Form::Set).unwrap();
        let mut hash = session.collection_builder(Form::Blocks).unwrap();
        for number in 0..count {
            set.push(&member(number), b"").unwrap();
            set.push(&member(number / 2), b"").unwrap();
            hash.push(&member(number), b"old").unwrap();
            hash.push(&member(number), &number.to_le_bytes()).unwrap();
        }
        let early = session.transact(|txn| txn.put_built(ns, b"s", &set, metadata));
        assert!(matches!(early, Err(Error::BadArgument { .. })), "{early:?}");
        while !set.encode_some().unwrap() {}
        while !hash.encode_some().unwrap() {}
        assert_eq!((set.len(), hash.len()), (count as usize, count as usize));
        session
            .transact(|txn| {
                txn.put_built(ns, b"s", &set, metadata)?;
                txn.put_built(ns, b"h", &hash, Metadata::default())?;
                txn.add_members(ns, b"s", &[b"one more"])
            })
            .unwrap();
        let mut model: BTreeSet<Vec<u8>> = (0..count).map(member).collect();
        model.insert(b"one more".to_vec());
        assert_set(session.get(ns, b"s").unwrap(), &model);
        assert_eq!(session.get(ns, b"s").unwrap().unwrap().tags().count(), 1);
        let expected = |number: u32| (member(number), number.to_le_bytes().to_vec());
        assert_hash(session.get(ns, b"h").unwrap(), &(0..count).map(expected).collect());
        let Some(StreamItem::Transaction(entry)) = stream.next().unwrap() else { panic!("one") };
        for record in entry.records() {
            replay(record.unwrap().change, &mut streamed);
        }
        assert_eq!(streamed, model);
        let put = session.transact(|txn| txn.put_built(blocks, b"h", &hash, Metadata::default()));
        let is_refused = matches!(put, Err(Error::TooManyBlocks { .. }));
        assert!(if count > 1024 { is_refused } else { put.is_ok() }, "{count}: {put:?}");
        let put = session.transact(|txn| txn.put_built(blocks, b"s", &set, Metadata::default()));
        assert!(matches!(put, Err(Error::WrongKind { .. })), "{put:?}");
    }
    let mut empty = session.collection_builder(Form::Set).unwrap();
    while !empty.encode_some().unwrap() {}
    let put = session.transact(|txn| txn.put_built(ns, b"s", &empty, metadata));
    assert!(matches!(put, Err(Error::BadArgument { .. })), "{put:?}");
    assert!(session.collection_builder(Form::Value).is_err());
    let other = TestRegion::new();
    let mut foreign = other.region.session().unwrap().collection_builder(Form::Set).unwrap();
    (0..200).for_each(|number| foreign.push(&member(number), b"").unwrap());
    while !foreign.encode_some().unwrap() {}
    let put = session.transact(|txn| txn.put_built(ns, b"s", &foreign, metadata));
    assert!(matches!(put, Err(Error::BadArgument { .. })), "another seed: {put:?}");
    drop(stream);
    drop(session);
    test.close_and_check();
}
