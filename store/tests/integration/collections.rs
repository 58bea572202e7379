//! Sets and hashes of any size: flat, divided into parts, and between.

use std::collections::{BTreeMap, BTreeSet};

use nearstate_store::{
    AttachOptions, BlockChange, BlockLayout, Condition, CreateOptions, Error, EventKind, Filter,
    Form, Kind, Metadata, Namespace, Notice, Region, Schema, Session, StreamItem, StreamedChange,
    Txn, View, WhenFull, check, limits, repair_with,
};
use proptest::prelude::*;

use crate::fixture::{TestFolder, TestRegion};

pub(crate) fn mixed(session: &Session) -> Namespace {
    session.namespace("xapp", &Schema { kind: Kind::Mixed, ..Schema::default() }).unwrap()
}

pub(crate) fn member(number: u32) -> Vec<u8> {
    format!("member-{number}").into_bytes()
}

pub(crate) fn slices(all: &[Vec<u8>]) -> Vec<&[u8]> {
    all.iter().map(Vec::as_slice).collect()
}

/// A set has exactly these members, by each way to read it.
pub(crate) fn assert_set(view: Option<View<'_>>, model: &BTreeSet<Vec<u8>>) {
    let Some(view) = view else { return assert!(model.is_empty(), "{} members lost", model.len()) };
    assert_eq!(view.form(), Form::Set);
    let all: Vec<&[u8]> = view.members().collect();
    assert_eq!(all.len(), model.len());
    assert_eq!(view.members().len(), model.len());
    assert_eq!(all.iter().map(|m| m.to_vec()).collect::<BTreeSet<_>>(), *model);
    for member in all.iter().step_by(1 + all.len() / 50) {
        assert!(view.members().contains(member));
    }
    assert!(!view.members().contains(b"no member"));
    let places: Vec<usize> = (0..all.len()).rev().step_by(1 + all.len() / 50).collect();
    let selected: Vec<&[u8]> = places.iter().map(|place| all[*place]).collect();
    assert_eq!(view.members().select(&places), selected);
    let (mut cursor, mut scanned) = (0, Vec::new());
    loop {
        cursor = view.members().scan_from(cursor, 10, |member| scanned.push(member));
        if cursor == 0 {
            break;
        }
    }
    assert_eq!(scanned, all);
}

pub(crate) fn assert_hash(view: Option<View<'_>>, model: &BTreeMap<Vec<u8>, Vec<u8>>) {
    let Some(view) = view else { return assert!(model.is_empty(), "{} fields lost", model.len()) };
    assert_eq!((view.form(), view.fields().len()), (Form::Blocks, model.len()));
    let all: Vec<(&[u8], &[u8])> = view.fields().collect();
    let owned = all.iter().map(|(name, value)| (name.to_vec(), value.to_vec()));
    assert_eq!(owned.collect::<BTreeMap<_, _>>(), *model);
    for (name, value) in all.iter().step_by(1 + all.len() / 50) {
        assert_eq!(view.field(name), Some(*value));
        assert_eq!(view.fields().get(name), Some(*value));
    }
    assert_eq!((view.field(b"no field"), view.fields().get(b"no field")), (None, None));
    let (mut cursor, mut scanned) = (0, Vec::new());
    loop {
        cursor = view.fields().scan_from(cursor, 7, |name, value| scanned.push((name, value)));
        if cursor == 0 {
            break;
        }
    }
    assert_eq!(scanned, all);
    let blocks = view.blocks().map(|(name, bytes)| (name.as_bytes(), bytes));
    let named = all.iter().filter(|(name, _)| {
        (1..256).contains(&name.len()) && !name.contains(&0) && str::from_utf8(name).is_ok()
    });
    assert_eq!(blocks.collect::<Vec<_>>(), named.copied().collect::<Vec<_>>());
}

/// One change: a first number, a step and a count of elements; whether they are added; whether the
/// transaction is aborted.
type Step = (u32, u32, usize, bool, u8);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let count = prop_oneof![4 => 1..4_usize, 2 => 20..90_usize, 1 => 200..900_usize];
    prop::collection::vec((0..700_u32, 1..40_u32, count, any::<bool>(), 0..8_u8), 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Grows and shrinks through both bounds, several changes in one transaction, which reads what
    /// it has written.
    #[test]
    fn a_set_agrees_with_a_sorted_set(all in prop::collection::vec(steps(), 1..4)) {
        let test = TestRegion::with_bytes(64 << 20);
        let session = test.region.session().unwrap();
        let ns = mixed(&session);
        let metadata = Metadata { tags: &[("group", b"g")], expires_ms: u64::MAX >> 8 };
        let mut model: BTreeSet<Vec<u8>> = BTreeSet::new();
        for steps in all {
            let txn = session.begin().unwrap();
            let mut next = model.clone();
            let mut is_aborted = false;
            for (first, step, count, is_added, seed) in steps {
                let some: Vec<Vec<u8>> = (0..count)
                    .map(|at| member((first + u32::try_from(at).unwrap() * step) % 1200))
                    .collect();
                let before = next.len();
                if is_added {
                    let added = txn.add_members(ns, b"s", &slices(&some)).unwrap();
                    next.extend(some);
                    prop_assert_eq!(added, next.len() - before);
                } else {
                    let removed = txn.remove_members(ns, b"s", &slices(&some)).unwrap();
                    some.iter().map(|one| next.remove(one)).for_each(drop);
                    prop_assert_eq!(removed, before - next.len());
                }
                match seed {
                    0 => assert_set(txn.get(ns, b"s").unwrap(), &next),
                    1 if !next.is_empty() => {
                        prop_assert!(txn.set_metadata(ns, b"s", metadata).unwrap());
                    }
                    2 => is_aborted = true,
                    _ => {}
                }
            }
            assert_set(txn.get(ns, b"s").unwrap(), &next);
            if is_aborted {
                txn.abort();
            } else {
                txn.commit().unwrap();
                model = next;
            }
            assert_set(session.get(ns, b"s").unwrap(), &model);
        }
        drop(session);
        test.close_and_check();
    }

    /// As above, with names that no block can have and values of all sizes.
    #[test]
    fn a_hash_agrees_with_a_sorted_map(all in prop::collection::vec(steps(), 1..4)) {
        let test = TestRegion::with_bytes(64 << 20);
        let session = test.region.session().unwrap();
        let ns = mixed(&session);
        let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        for steps in all {
            let txn = session.begin().unwrap();
            let mut next = model.clone();
            for (first, step, count, is_added, seed) in steps {
                let name = |at: usize| match (first + u32::try_from(at).unwrap() * step) % 1200 {
                    0 => Vec::new(),
                    1 => vec![0, 0xff, 0],
                    2 => vec![b'n'; 300],
                    number => format!("field-{number}").into_bytes(),
                };
                let names: Vec<Vec<u8>> = (0..count).map(name).collect();
                let before = next.len();
                if is_added {
                    let bytes = match seed { 0 => 3000, 1 => 0, seed => usize::from(seed) * 20 };
                    let value = vec![seed; bytes];
                    let pairs: Vec<(&[u8], &[u8])> =
                        names.iter().map(|name| (name.as_slice(), value.as_slice())).collect();
                    let added = txn.set_fields(ns, b"h", &pairs).unwrap();
                    next.extend(names.into_iter().map(|name| (name, value.clone())));
                    prop_assert_eq!(added, next.len() - before);
                } else {
                    let removed = txn.remove_fields(ns, b"h", &slices(&names)).unwrap();
                    names.iter().map(|one| next.remove(one)).for_each(drop);
                    prop_assert_eq!(removed, before - next.len());
                }
                if seed == 2 {
                    assert_hash(txn.get(ns, b"h").unwrap(), &next);
                }
            }
            assert_hash(txn.get(ns, b"h").unwrap(), &next);
            txn.commit().unwrap();
            model = next;
            assert_hash(session.get(ns, b"h").unwrap(), &model);
        }
        drop(session);
        test.close_and_check();
    }
}

/// One by one, in transactions of their own: the path of `SADD` and `SREM`.
#[test]
fn twenty_thousand_members_come_and_go_one_by_one() {
    let test = TestRegion::with_bytes(64 << 20);
    let session = test.region.session().unwrap();
    let ns = mixed(&session);
    let mut model = BTreeSet::new();
    for number in 0..20_000 {
        let one = member(number * 7919 % 20_000);
        let added = session.transact(|txn| txn.add_members(ns, b"s", &[&one])).unwrap();
        assert_eq!(added, 1);
        model.insert(one);
    }
    assert_set(session.get(ns, b"s").unwrap(), &model);
    let mut old = session.get(ns, b"s").unwrap();
    for number in 0..20_000 {
        let one = member(number * 104_729 % 20_000);
        let removed = session.transact(|txn| txn.remove_members(ns, b"s", &[&one])).unwrap();
        assert_eq!(removed, 1);
        if number == 100 {
            // A view is a snapshot.
            assert_set(old.take(), &model);
        }
        if number % 5_000 == 0 || number > 19_900 {
            let mut left = model.clone();
            (0..=number).for_each(|n| assert!(left.remove(&member(n * 104_729 % 20_000))));
            assert_set(session.get(ns, b"s").unwrap(), &left);
        }
    }
    assert!(session.get(ns, b"s").unwrap().is_none());
    drop(old);
    drop(session);
    test.close_and_check();
}

/// Tags and expiry stay, versions rise, a collection is replaced by any other record, and limits
/// count all parts.
#[test]
fn a_large_collection_is_one_record() {
    let test = TestRegion::new();
    let session = test.region.session().unwrap();
    let ns = mixed(&session);
    let metadata = Metadata { tags: &[("group", b"g")], expires_ms: u64::MAX >> 8 };
    let all: Vec<Vec<u8>> = (0..5_000).map(member).collect();
    session.transact(|txn| txn.put_members(ns, b"s", &slices(&all), metadata)).unwrap();
    let first = session.get(ns, b"s").unwrap().unwrap().version();
    session.transact(|txn| txn.add_members(ns, b"s", &[b"one more"])).unwrap();
    {
        let view = session.get(ns, b"s").unwrap().unwrap();
        assert!(view.version() > first && view.expires_ms() == u64::MAX >> 8);
        assert_eq!(view.tags().collect::<Vec<_>>(), [("group", &b"g"[..])]);
        assert!(view.taken_bytes().unwrap() > 5_000 * 11);
    }
    // No change is no new version.
    let before = session.get(ns, b"s").unwrap().unwrap().version();
    session.transact(|txn| txn.add_members(ns, b"s", &[b"one more"])).unwrap();
    session.transact(|txn| txn.remove_members(ns, b"s", &[b"none"])).unwrap();
    assert_eq!(session.get(ns, b"s").unwrap().unwrap().version(), before);
    assert_eq!(session.count(ns).unwrap(), 1);

    let refused = session.transact(|txn| txn.set_fields(ns, b"s", &[(b"f", b"v")])).unwrap_err();
    assert!(refused.to_string().contains("a set of members"), "{refused}");
    let long = vec![b'n'; limits::FIELD_NAME_BYTES_MAX + 1];
    assert!(session.transact(|txn| txn.set_fields(ns, b"h", &[(&long, b"v")])).is_err());

    session.put(ns, b"s", b"a value").unwrap();
    assert_eq!(session.get(ns, b"s").unwrap().unwrap().bytes(), b"a value");
    session.transact(|txn| txn.put_members(ns, b"s", &slices(&all), metadata)).unwrap();
    assert!(session.delete(ns, b"s").unwrap());
    drop(session);
    test.close_and_check();
}

/// Programs that know a hash as a record of blocks read and change a large one.
#[test]
fn the_fields_of_a_large_hash_are_blocks() {
    let test = TestRegion::new();
    let session = test.region.session().unwrap();
    let ns = mixed(&session);
    let names: Vec<Vec<u8>> = (0..3_000).map(member).collect();
    let pairs: Vec<(&[u8], &[u8])> = names.iter().map(|n| (n.as_slice(), n.as_slice())).collect();
    session.transact(|txn| txn.put_fields(ns, b"h", &pairs, Metadata::default())).unwrap();
    let change = |name, bytes| [BlockChange { name, bytes }];
    session.patch(ns, b"h", &change("member-1", Some(b"new")), Condition::Always).unwrap();
    session.patch(ns, b"h", &change("member-2", None), Condition::Always).unwrap();
    session.transact(|txn| txn.patch(ns, b"h", &change("extra", Some(&[7; 2000])))).unwrap();
    let layout = BlockLayout::new(&["member-3", "member-2"]).unwrap();
    {
        let record = session.get_for_update(ns, b"h").unwrap().unwrap();
        let mut seen = Vec::new();
        record.blocks_of(&layout, |_| true, |index, bytes| seen.push((index, bytes.to_vec())));
        assert_eq!(seen, [(0, b"member-3".to_vec())]);
        record.patch(&layout, &[(0, b"3")]).unwrap();
    }
    let view = session.get(ns, b"h").unwrap().unwrap();
    assert_eq!((view.block("member-1"), view.block("member-2")), (Some(&b"new"[..]), None));
    assert_eq!(
        (view.block("extra"), view.block("member-3")),
        (Some(&[7; 2000][..]), Some(&b"3"[..]))
    );
    assert_eq!((view.blocks().count(), view.fields().len()), (3_000, 3_000));
    let mut seen = Vec::new();
    view.blocks_among(&["none", "member-1"], |index, bytes| seen.push((index, bytes.to_vec())));
    assert_eq!(seen, [(1, b"new".to_vec())]);
    drop(view);
    drop(session);
    test.close_and_check();
}

#[test]
fn watches_and_the_stream_name_the_changed_elements() {
    let test = TestRegion::new();
    let session = test.region.session().unwrap();
    let ns = mixed(&session);
    let names: Vec<Vec<u8>> = (0..500).map(member).collect();
    let pairs: Vec<(&[u8], &[u8])> = names.iter().map(|n| (n.as_slice(), &b"v"[..])).collect();
    session.transact(|txn| txn.put_fields(ns, b"h", &pairs, Metadata::default())).unwrap();
    session
        .transact(|txn| txn.put_members(ns, b"s", &slices(&names), Metadata::default()))
        .unwrap();
    session.stream(ns, WhenFull::Refuse).unwrap();
    let mut watch = session.watch(ns, Filter::Namespace).unwrap();
    session
        .transact(|txn| {
            txn.set_fields(ns, b"h", &[(b"b", b"1"), (b"a", b"2")])?;
            txn.remove_fields(ns, b"h", &[b"member-1", b"none"])?;
            txn.add_members(ns, b"s", &[b"new", b"member-2"])
        })
        .unwrap();
    session.transact(|txn| txn.set_fields(ns, b"h", &[(b"\xff", b"1")])).unwrap();
    let mut events = Vec::new();
    while let Some(notice) = watch.next().unwrap() {
        let Notice::Event(event) = notice else { panic!("{notice:?}") };
        let blocks: Vec<String> = event.blocks().map(str::to_owned).collect();
        events.push((event.kind, event.form, event.is_truncated, blocks));
    }
    let words = |all: &[&str]| all.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    assert_eq!(
        events,
        [
            (EventKind::Updated, Form::Blocks, false, words(&["a", "b", "member-1"])),
            (EventKind::Updated, Form::Set, false, Vec::new()),
            (EventKind::Updated, Form::Blocks, true, Vec::new()),
        ]
    );
    let mut stream = session.commit_stream().unwrap();
    let Some(StreamItem::Transaction(entry)) = stream.next().unwrap() else { panic!("a commit") };
    let mut changes: Vec<_> = entry.records().map(|record| record.unwrap().change).collect();
    // They are in the order of their hashes.
    if let Some(StreamedChange::Elements { elements, .. }) = changes.first_mut() {
        elements.sort();
    }
    let fields = StreamedChange::Elements {
        is_set: false,
        is_anew: false,
        elements: vec![(b"a", Some(b"2")), (b"b", Some(b"1")), (b"member-1", None)],
        meta: None,
    };
    let members = StreamedChange::Elements {
        is_set: true,
        is_anew: false,
        elements: vec![(b"new", Some(b""))],
        meta: None,
    };
    assert_eq!(changes, [fields, members]);
    drop(stream);
    drop(session);
    test.close_and_check();
}

/// A full heap refuses additions and lets every removal and the deletion pass.
#[test]
fn a_full_heap_lets_members_be_removed() {
    let test = TestRegion::with_bytes(64 << 20);
    let session = test.region.session().unwrap();
    let ns = mixed(&session);
    let all: Vec<Vec<u8>> = (0..30_000).map(member).collect();
    session.transact(|txn| txn.put_members(ns, b"s", &slices(&all), Metadata::default())).unwrap();
    let mut number = 0_u32;
    while session.put(ns, &number.to_le_bytes(), &[7; 1000]).is_ok() {
        number += 1;
    }
    let grow = |number: u32| {
        let one = format!("another-{number}").into_bytes();
        session.transact(|txn| txn.add_members(ns, b"s", &[&one]))
    };
    let mut added = 0;
    while added < 20_000 && grow(added).is_ok() {
        added += 1;
    }
    for one in &all[..25_000] {
        let removed = session.transact(|txn| txn.remove_members(ns, b"s", &[one]));
        assert_eq!(removed.unwrap(), 1);
    }
    let left = session.get(ns, b"s").unwrap().unwrap().members().len();
    assert_eq!(left, 5_000 + added as usize);
    assert!(session.delete(ns, b"s").unwrap());
    drop(session);
    test.close_and_check();
}

/// Several sessions add and remove members of one set at the same time.
#[test]
fn concurrent_writers_of_one_set_lose_nothing() {
    let test = TestRegion::new();
    let ns = mixed(&test.region.session().unwrap());
    std::thread::scope(|scope| {
        for writer in 0..3_u32 {
            let region = &test.region;
            scope.spawn(move || {
                let session = region.session().unwrap();
                for number in 0..1_500 {
                    let one = member(number * 3 + writer);
                    session.transact(|txn| txn.add_members(ns, b"s", &[&one])).unwrap();
                    if number % 3 == 0 {
                        session.transact(|txn| txn.remove_members(ns, b"s", &[&one])).unwrap();
                    }
                    if let Some(view) = session.get(ns, b"s").unwrap() {
                        assert_eq!(view.members().count(), view.members().len());
                    }
                }
            });
        }
    });
    let model = (0..4_500).filter(|number| number / 3 % 3 != 0).map(member).collect();
    let session = test.region.session().unwrap();
    assert_set(session.get(ns, b"s").unwrap(), &model);
    drop(session);
    test.close_and_check();
}

/// A repair keeps a large collection. A flipped bit in a part is found, never crashes a reader or a
/// writer, and a repair names the record as lost.
#[test]
fn the_check_reads_each_part_and_a_repair_keeps_what_is_sound() {
    let folder = TestFolder::new();
    let options = CreateOptions { bytes_max: 64 << 20, ..CreateOptions::default() };
    let all: Vec<Vec<u8>> = (0..2_000).map(member).collect();
    let model: BTreeSet<Vec<u8>> = all.iter().cloned().collect();
    let open = || Region::attach(&folder.path).unwrap();
    {
        let region = Region::create(&folder.path, &options).unwrap();
        let session = region.session().unwrap();
        let ns = mixed(&session);
        let put = |txn: &Txn<'_>| txn.put_members(ns, b"s", &slices(&all), Metadata::default());
        session.transact(put).unwrap();
    }
    let repair = || repair_with(&folder.path, &AttachOptions::default()).unwrap();
    assert!(repair().lost.is_empty());
    let whole = std::fs::read(&folder.path).unwrap();
    {
        let region = open();
        let session = region.session().unwrap();
        assert_set(session.get(mixed(&session), b"s").unwrap(), &model);
    }
    let at = whole.windows(11).position(|bytes| bytes == b"member-1999").unwrap();
    for bit in [8 * at + 3, 8 * (at - 300) + 1] {
        let mut damaged = whole.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(&folder.path, &damaged).unwrap();
        assert!(!check(&folder.path).unwrap().is_clean(), "bit {bit} is not found");
        {
            let region = open();
            let session = region.session().unwrap();
            let ns = mixed(&session);
            let view = session.get(ns, b"s").unwrap().unwrap();
            assert!(view.members().count() <= model.len());
            drop(view);
            for one in all.iter().step_by(50) {
                let _ = session.transact(|txn| txn.remove_members(ns, b"s", &[one]));
            }
        }
        std::fs::write(&folder.path, &damaged).unwrap();
        assert!(!repair().lost.is_empty());
        assert!(check(&folder.path).unwrap().is_clean());
    }
}

/// A write does not take the elements that a damaged count leaves out for absent.
#[test]
fn a_damaged_count_loses_no_element() {
    let folder = TestFolder::new();
    let options = CreateOptions { bytes_max: 64 << 20, ..CreateOptions::default() };
    let all: Vec<Vec<u8>> = (0..500).map(member).collect();
    let open = || Region::attach(&folder.path).unwrap();
    {
        let region = Region::create(&folder.path, &options).unwrap();
        let session = region.session().unwrap();
        let ns = mixed(&session);
        session
            .transact(|txn| txn.put_members(ns, b"s", &slices(&all), Metadata::default()))
            .unwrap();
    }
    let whole = std::fs::read(&folder.path).unwrap();
    let head = [&[0xff; 4][..], &500_u64.to_le_bytes()].concat();
    let places: Vec<usize> = whole
        .windows(head.len())
        .enumerate()
        .filter(|(_, w)| *w == head)
        .map(|(at, _)| at)
        .collect();
    assert!(!places.is_empty());
    for count in [0_u64, 1, 499, 501, u64::MAX] {
        let mut damaged = whole.clone();
        for at in &places {
            damaged[at + 4..at + 12].copy_from_slice(&count.to_le_bytes());
        }
        std::fs::write(&folder.path, &damaged).unwrap();
        let region = open();
        let session = region.session().unwrap();
        let ns = mixed(&session);
        let removed = session.transact(|txn| txn.remove_members(ns, b"s", &[&all[7]]));
        assert!(matches!(removed, Err(Error::Damaged { .. })), "{count}: {removed:?}");
        let added = session.transact(|txn| txn.add_members(ns, b"s", &[b"new"]));
        assert!(matches!(added, Err(Error::Damaged { .. })), "{count}: {added:?}");
        let view = session.get(ns, b"s").unwrap().unwrap();
        assert_eq!(view.members().count(), all.len(), "{count}: the members are stored");
    }
}

/// The event of a change that divides a hash, or rewrites a large flat one, names what has changed.
#[test]
fn an_event_names_only_what_has_changed() {
    let test = TestRegion::new();
    let session = test.region.session().unwrap();
    let ns = mixed(&session);
    let names: Vec<String> = (0..200).map(|number| format!("f{number}")).collect();
    // A patch keeps a hash flat.
    let blocks: Vec<BlockChange<'_>> =
        names.iter().map(|name| BlockChange { name, bytes: Some(b"v") }).collect();
    session.patch(ns, b"flat", &blocks, Condition::Always).unwrap();
    session.patch(ns, b"small", &blocks[..128], Condition::Always).unwrap();
    let mut watch = session.watch(ns, Filter::Namespace).unwrap();
    let mut announced = || {
        let Some(Notice::Event(event)) = watch.next().unwrap() else { panic!("an event") };
        event.blocks().map(str::to_owned).collect::<Vec<_>>()
    };
    session.transact(|txn| txn.remove_fields(ns, b"flat", &[b"f7", b"none"])).unwrap();
    assert_eq!(announced(), ["f7"]);
    session.transact(|txn| txn.set_fields(ns, b"small", &[(b"more", b"v")])).unwrap();
    assert_eq!(announced(), ["more"]);
    session.delete(ns, b"small").unwrap();
    announced();
    session.patch(ns, b"small", &blocks[..128], Condition::Always).unwrap();
    announced();
    session
        .transact(|txn| {
            txn.remove_fields(ns, b"small", &[b"f1"])?;
            txn.set_fields(ns, b"small", &[(b"x", b"v"), (b"y", b"v")])?;
            txn.set_fields(ns, b"small", &[(b"z", b"v")])
        })
        .unwrap();
    assert_eq!(announced(), ["f1", "x", "y", "z"]);
    drop(session);
    test.close_and_check();
}
