//! A large set or hash, which is divided into parts: any table and any parts, written into a region
//! with correct checksums, are read, scanned, changed, copied and checked without a panic.

use std::cell::Cell;
use std::path::Path;

use nearstate_memory::{CellHeader, CellKind, PendingCell, WriteDecision};
use nearstate_store::{
    CollectionBuilder, CreateOptions, Error, Form, Kind, Metadata, Namespace, Region, Schema,
    Session, check,
};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::fixture::{config, folder};

const CASES: u32 = 2000;
const KEY: &[u8] = b"k";

/// The kind of a mixed namespace in the region.
const MIXED: u64 = 4;

/// An element: its name, its value, and its hash if it is not the right one.
type Element = (Vec<u8>, Vec<u8>, Option<u32>);

/// A part: its elements, and damage of its encoding.
#[derive(Clone, Debug)]
struct Part {
    elements: Vec<Element>,
    count: Option<u32>,
    /// An end, and the bits that are flipped in it.
    flipped: Option<(usize, u32)>,
    first: Option<u32>,
    /// Takes the place of all of the above.
    random: Option<Vec<u8>>,
}

#[derive(Clone, Debug)]
struct Body {
    is_set: bool,
    parts: Vec<Part>,
    /// Deviations of what the table counts.
    elements: Option<u64>,
    counted: Option<u32>,
    /// Bytes behind the table, and bytes that are missing at its end.
    rest: Vec<u8>,
    cut: usize,
    /// Children that are not the parts.
    child: Option<(usize, u64)>,
}

fn few<T: std::fmt::Debug + Clone>(
    weight: u32,
    damage: impl Strategy<Value = T>,
) -> impl Strategy<Value = Option<T>> {
    prop_oneof![weight => Just(None), 1 => damage.prop_map(Some)]
}

fn part() -> impl Strategy<Value = Part> {
    let name = prop::collection::vec(prop_oneof![b'a'..=b'f', any::<u8>()], 0..3);
    let value = prop::collection::vec(any::<u8>(), 0..4);
    let element = (name, value, few(12, prop_oneof![0..9_u32, any::<u32>()]));
    (
        prop::collection::vec(element, 0..12),
        few(12, prop_oneof![0..20_u32, any::<u32>()]),
        few(12, (0..24_usize, any::<u32>())),
        few(8, prop_oneof![0..9_u32, any::<u32>()]),
        few(20, prop::collection::vec(any::<u8>(), 0..80)),
    )
        .prop_map(|(elements, count, flipped, first, random)| Part {
            elements,
            count,
            flipped,
            first,
            random,
        })
}

fn body() -> impl Strategy<Value = Body> {
    let child = prop_oneof![
        any::<u64>(),
        (0..1024_u64).prop_map(|unit| nearstate_memory::layout::HEAP + unit * 64),
        (0..128_u64).prop_map(|less| u64::MAX - less),
    ];
    (
        any::<bool>(),
        prop::collection::vec(part(), 0..5),
        few(8, prop_oneof![0..40_u64, any::<u64>()]),
        few(8, prop_oneof![0..40_u32, any::<u32>()]),
        prop_oneof![8 => Just(Vec::new()), 1 => prop::collection::vec(any::<u8>(), 0..20)],
        prop_oneof![8 => Just(0), 1 => 0..20_usize],
        few(12, (0..5_usize, child)),
    )
        .prop_map(|(is_set, parts, elements, counted, rest, cut, child)| Body {
            is_set,
            parts,
            elements,
            counted,
            rest,
            cut,
            child,
        })
}

fn number(number: usize) -> [u8; 4] {
    u32::try_from(number).expect("small").to_le_bytes()
}

/// The elements of all parts in the order of their hashes, as many to each part as it had.
fn sort(body: &Body, seed: u64) -> Vec<Vec<(u32, Element)>> {
    let right = |name: &[u8]| (nearstate_memory::hash(seed, name) >> 32) as u32;
    let mut all: Vec<(u32, Element)> = body
        .parts
        .iter()
        .flat_map(|part| part.elements.iter().cloned())
        .map(|element| (right(&element.0), element))
        .collect();
    all.sort();
    all.dedup_by(|one, next| one.1.0 == next.1.0);
    let mut all = all.into_iter();
    let parts = body.parts.iter().map(|part| all.by_ref().take(part.elements.len()).collect());
    parts.collect()
}

fn encode(part: &Part, elements: &[(u32, Element)], is_set: bool) -> Vec<u8> {
    if let Some(random) = &part.random {
        return random.clone();
    }
    let mut out = part.count.map_or_else(|| number(elements.len()), u32::to_le_bytes).to_vec();
    for (hash, element) in elements {
        out.extend(element.2.unwrap_or(*hash).to_le_bytes());
    }
    let (mut end, mut ends) = (0, Vec::new());
    for (_, (name, value, _)) in elements {
        end += name.len();
        ends.push(end);
        if !is_set {
            end += value.len();
            ends.push(end);
        }
    }
    for (index, end) in ends.iter().enumerate() {
        let bits = part.flipped.filter(|(which, _)| *which == index).map_or(0, |(_, bits)| bits);
        out.extend((u32::try_from(*end).expect("small") ^ bits).to_le_bytes());
    }
    for (_, (name, value, _)) in elements {
        out.extend(name);
        if !is_set {
            out.extend(value);
        }
    }
    out
}

/// Publishes a record with any table and parts, as a damaged writer would.
fn put_raw(path: &Path, region: &Region, body: &Body) {
    let session = region.session().expect("a session");
    mixed(&session).expect("a namespace");
    let memory = nearstate_memory::Region::attach(path).expect("the region");
    let member = memory.member().expect("a member");
    let table = member.namespace(b"mixed", MIXED).expect("the namespace");
    let hash = nearstate_memory::hash(memory.seed(), KEY);
    let sorted = sort(body, memory.seed());
    let parts: Vec<Vec<u8>> = body
        .parts
        .iter()
        .zip(&sorted)
        .map(|(part, elements)| encode(part, elements, body.is_set))
        .collect();
    let all: usize = sorted.iter().map(Vec::len).sum();
    let mut value = vec![0xff; 4];
    value.extend(body.elements.unwrap_or(all as u64).to_le_bytes());
    for (index, (part, elements)) in body.parts.iter().zip(&sorted).enumerate() {
        let right = if index == 0 { 0 } else { elements.first().map_or(u32::MAX, |one| one.0) };
        value.extend(part.first.unwrap_or(right).to_le_bytes());
    }
    for (index, elements) in sorted.iter().enumerate() {
        let counted = body.counted.filter(|_| index == 1);
        value.extend(counted.map_or_else(|| number(elements.len()), u32::to_le_bytes));
    }
    value.extend(&body.rest);
    value.truncate(value.len() - body.cut.min(value.len()));

    let head = |kind, flags, bytes: usize, key: usize, children: usize| CellHeader {
        kind,
        flags,
        namespace: table.index(),
        body: u32::try_from(bytes).expect("small"),
        key: u16::try_from(key).expect("small"),
        children: u16::try_from(children).expect("few"),
        hash,
    };
    let flags = if body.is_set { 2 << 1 } else { 1 << 1 };
    let drafted = member.operation(|| {
        let mut children = Vec::new();
        for part in &parts {
            let cell =
                member.fill_cell(&head(CellKind::Block, 0, part.len(), 0, 0), &[part], None)?;
            member.seal_block(cell.at, cell.body_crc)?;
            children.push(cell.at);
        }
        if let Some((which, at)) = body.child
            && let Some(child) = children.get_mut(which)
        {
            *child = at;
        }
        let children: Vec<u8> = children.iter().flat_map(|at| at.to_le_bytes()).collect();
        let bytes: Vec<u8> = [&children[..], KEY, &value].concat();
        let head = head(CellKind::Record, flags, bytes.len(), KEY.len(), parts.len());
        let at = member.allocate_cell(&head)?;
        member.write_body(at, 0, &bytes)?;
        let draft = PendingCell { at, body_crc: crc32fast::hash(&bytes) };
        member.write_record(table, hash, KEY, Some(draft), |_| Ok(WriteDecision::Publish))
    });
    drafted.expect("a record");
}

fn mixed(session: &Session) -> Result<Namespace, Error> {
    session.namespace("mixed", &Schema { kind: Kind::Mixed, ..Schema::default() })
}

/// A scan makes progress, and ends.
fn scan(mut page: impl FnMut(u64) -> u64) {
    let (mut cursor, mut calls) = (0, 0);
    loop {
        let next = page(cursor);
        calls += 1;
        assert!(calls < 1000, "a scan does not end");
        if next == 0 {
            return;
        }
        assert!(next > cursor, "cursor {cursor} is followed by {next}");
        cursor = next;
    }
}

/// Reads, scans, copies, changes and deletes the collection. True if it could be changed.
fn use_record(region: &Region, is_set: bool, is_clean: bool) -> bool {
    let session = region.session().expect("a session");
    let Ok(ns) = mixed(&session) else { return false };
    let form = if is_set { Form::Set } else { Form::Blocks };
    let mut builder = session.collection_builder(form).expect("a collection");
    if let Ok(Some(view)) = session.get(ns, KEY) {
        let (members, fields) = (view.members(), view.fields());
        let places = [0, 3, 7, 1, usize::MAX];
        let seen = [
            members.clone().count() + fields.clone().count(),
            members.select(&places).len() + fields.select(&places).len(),
            usize::from(members.contains(b"a")) + fields.get(b"a").map_or(0, <[u8]>::len),
            view.blocks().count(),
        ];
        std::hint::black_box(seen);
        scan(|cursor| members.scan_from(cursor, 2, |_| {}));
        scan(|cursor| fields.scan_from(cursor, 3, |_, _| {}));
        let push = |builder: &mut CollectionBuilder, name, value| builder.push(name, value);
        members.for_each(|member| push(&mut builder, member, b"").expect("a small member"));
        fields.for_each(|(name, value)| push(&mut builder, name, value).expect("a small field"));
    }
    while !builder.encode_some().expect("elements") {}
    if !builder.is_empty() {
        let put = |txn: &nearstate_store::Txn<'_>| {
            txn.put_built(ns, b"copy", &builder, Metadata::default())
        };
        session.transact(put).expect("a copy");
        let view = session.get(ns, b"copy").expect("the copy").expect("the copy");
        assert_eq!(view.members().count() + view.fields().count(), builder.len());
    }
    let names: Vec<Vec<u8>> = (b'a'..=b'f').map(|letter| vec![letter]).collect();
    let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    let large = [7; 1500];
    let pairs: Vec<(&[u8], &[u8])> = names.iter().map(|name| (*name, &large[..])).collect();
    let more: Vec<Vec<u8>> = (0..200).map(|number| format!("m{number}").into_bytes()).collect();
    let more: Vec<&[u8]> = more.iter().map(Vec::as_slice).collect();
    let changed = session.transact(|txn| {
        if is_set {
            txn.add_members(ns, KEY, &more)?;
            txn.add_members(ns, KEY, &names)?;
            txn.remove_members(ns, KEY, &more)
        } else {
            txn.set_fields(ns, KEY, &pairs)?;
            let found = txn.field(ns, KEY, b"a")?;
            assert!(!is_clean || found.as_deref() == Some(&large[..]), "a field is lost");
            txn.remove_fields(ns, KEY, &more)
        }
    });
    if changed.is_ok() {
        let removed = session.transact(|txn| match form {
            Form::Set => txn.remove_members(ns, KEY, &names),
            Form::Blocks | Form::Value => txn.remove_fields(ns, KEY, &names),
        });
        drop(removed);
    }
    drop(session.delete(ns, KEY));
    changed.is_ok()
}

#[test]
fn any_divided_collection_is_read_changed_and_checked() {
    let dir = folder();
    let (changed, clean, number) = (Cell::new(0_u32), Cell::new(0_u32), Cell::new(0_u32));
    TestRunner::new(config(CASES))
        .run(&body(), |body| {
            // A damaged record can damage its region: each case has a region of its own.
            number.set(number.get() + 1);
            let path = dir.path().join(number.get().to_string());
            let options = CreateOptions { bytes_max: 64 << 20, ..CreateOptions::default() };
            let region = Region::create(&path, &options).expect("a region");
            put_raw(&path, &region, &body);
            // A value that is cut before its mark is not that of a divided collection.
            let is_clean = body.cut == 0 && check(&path).is_ok_and(|report| report.is_clean());
            let is_changed = use_record(&region, body.is_set, is_clean);
            assert!(is_changed || !is_clean, "an intact collection cannot be changed");
            clean.set(clean.get() + u32::from(is_clean));
            changed.set(changed.get() + u32::from(is_changed));
            drop(region);
            drop(check(&path));
            std::fs::remove_file(&path).expect("the file");
            Ok(())
        })
        .expect("a collection");
    let (clean, changed) = (clean.get(), changed.get());
    assert!(clean > 0 && changed > clean, "{clean} intact ones, {changed} were changed");
}
