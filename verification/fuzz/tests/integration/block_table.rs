//! The block table of a record and its children: any bytes, written into a region with a correct
//! checksum, are read, patched and checked without a panic.

use std::cell::Cell;
use std::path::Path;

use nearstate_memory::{CellHeader, CellKind, PendingCell, WriteDecision};
use nearstate_store::{BlockChange, Condition, CreateOptions, Region, Schema, check};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::fixture::{config, folder};

const CASES: u32 = 3000;
const KEY: &[u8] = b"k";

/// The part of a record's body where the store expects children and a block table.
#[derive(Clone, Debug)]
struct Body {
    children: Vec<u64>,
    table: Vec<u8>,
}

/// An entry of a table in the region format: length of the name, location, child, length of the
/// block.
fn entry() -> impl Strategy<Value = (u8, u8, u16, u32)> {
    (
        prop_oneof![0..6_u8, any::<u8>()],
        prop_oneof![4 => 0..2_u8, 1 => any::<u8>()],
        prop_oneof![0..3_u16, any::<u16>()],
        prop_oneof![0..40_u32, Just(u32::MAX), any::<u32>()],
    )
}

/// Nearly valid tables, and random bytes.
fn body() -> impl Strategy<Value = Body> {
    let nearly_valid = (
        prop::collection::vec(entry(), 0..6),
        prop_oneof![3 => Just(None), 1 => any::<u32>().prop_map(Some)],
        prop::collection::vec(prop_oneof![b'a'..=b'e', any::<u8>()], 0..200),
    )
        .prop_map(|(entries, count, rest)| {
            let count = count.unwrap_or(u32::try_from(entries.len()).unwrap_or(u32::MAX));
            let mut table = count.to_le_bytes().to_vec();
            for (name, place, child, bytes) in entries {
                table.extend([name, place]);
                table.extend(child.to_le_bytes());
                table.extend(bytes.to_le_bytes());
            }
            table.extend(rest);
            table
        });
    let random = prop::collection::vec(any::<u8>(), 0..300);
    let child = prop_oneof![
        any::<u64>(),
        (0..1_u64 << 21).prop_map(|unit| unit * 64),
        (0..1024_u64).prop_map(|unit| nearstate_memory::layout::HEAP + unit * 64),
        (0..128_u64).prop_map(|less| u64::MAX - less),
    ];
    (prop::collection::vec(child, 0..4), prop_oneof![3 => nearly_valid, 1 => random])
        .prop_map(|(children, table)| Body { children, table })
}

#[test]
fn any_block_table_is_read_patched_and_checked() {
    let dir = folder();
    let patched = Cell::new(0_u32);
    let number = Cell::new(0_u32);
    TestRunner::new(config(CASES))
        .run(&body(), |body| {
            // A damaged record can damage its region: each case has a region of its own.
            number.set(number.get() + 1);
            let path = dir.path().join(number.get().to_string());
            let options = CreateOptions { bytes_max: 64 << 20, ..CreateOptions::default() };
            let region = Region::create(&path, &options).expect("a region");
            put_raw(&path, &region, &body);
            patched.set(patched.get() + u32::from(use_record(&region)));
            drop(region);
            drop(check(&path));
            std::fs::remove_file(&path).expect("the file");
            Ok(())
        })
        .expect("a block table");
    assert!(patched.get() > 0, "no generated table could be patched");
}

/// Publishes a record with any body, as a writer of another format would.
fn put_raw(path: &Path, region: &Region, body: &Body) {
    let schema = Schema { kind: nearstate_store::Kind::Blocks, ..Schema::default() };
    let session = region.session().expect("a session");
    session.namespace("blocks", &schema).expect("a namespace");
    let memory = nearstate_memory::Region::attach(path).expect("the region");
    let member = memory.member().expect("a member");
    let table = member.namespace(b"blocks", 2).expect("the namespace");
    let hash = nearstate_memory::hash(memory.seed(), KEY);
    let children: Vec<u8> = body.children.iter().flat_map(|at| at.to_le_bytes()).collect();
    let bytes: Vec<u8> = [&children[..], KEY, &body.table].concat();
    let head = CellHeader {
        kind: CellKind::Record,
        flags: 0,
        namespace: table.index(),
        body: u32::try_from(bytes.len()).expect("small"),
        key: u16::try_from(KEY.len()).expect("small"),
        children: u16::try_from(body.children.len()).expect("few"),
        hash,
    };
    let at = member.operation(|| member.allocate_cell(&head)).expect("a cell");
    member.write_body(at, 0, &bytes).expect("its body");
    let draft = PendingCell { at, body_crc: crc32fast::hash(&bytes) };
    member
        .write_record(table, hash, KEY, Some(draft), |_| Ok(WriteDecision::Publish))
        .expect("a record");
}

/// Reads, patches and deletes the record. True if the table could be patched.
fn use_record(region: &Region) -> bool {
    let schema = Schema { kind: nearstate_store::Kind::Blocks, ..Schema::default() };
    let session = region.session().expect("a session");
    let Ok(ns) = session.namespace("blocks", &schema) else { return false };
    if let Ok(Some(view)) = session.get(ns, KEY) {
        let sum: usize = view.blocks().map(|(name, bytes)| name.len() + bytes.len()).sum();
        std::hint::black_box(sum);
        std::hint::black_box(view.block("a").map(<[u8]>::len));
    }
    let large = [7; 2000];
    let changes = [
        BlockChange { name: "a", bytes: Some(&large) },
        BlockChange { name: "b", bytes: None },
        BlockChange { name: "c", bytes: Some(b"small") },
    ];
    let is_patched = session.patch(ns, KEY, &changes, Condition::Always).is_ok();
    if is_patched && let Ok(Some(view)) = session.get(ns, KEY) {
        assert!(view.block("a").is_none_or(|bytes| bytes == large || bytes.len() != large.len()));
    }
    drop(session.delete(ns, KEY));
    drop(session.patch(ns, KEY, &changes, Condition::Absent));
    is_patched
}
