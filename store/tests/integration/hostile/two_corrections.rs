//! One flip of a sealed word in a thousand has two corrections with the right check bits. The
//! repair chooses the one that agrees with the rest of the region.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use nearstate_store::{
    AttachOptions, Condition, Filter, Kind, Region, Schema, Session, TagSchema, WhenFull,
    repair_with,
};

use crate::fixture::{TestFolder, checked, open, small};

const MEMBERS_COUNT: u64 = 0x2c0;
const EPOCH: u64 = 0x200;
const NAMESPACES_COUNT: u64 = 0x300;
const CATALOG: u64 = 0x40_0000;
const HEAP_UNITS: u64 = 0x840_0000 / 64;

/// Flips of each kind of word that are repaired at most.
const FLIPS_MAX: usize = 8;

/// Records that are put at most until the count of the cells has a flip with two corrections.
const RECORDS_MAX: u32 = 20_000;

/// The check bits of a sealed value (`spec/region.md`, section 1).
fn check16(value: u64) -> u64 {
    let mixed = (value ^ 0x5bd1_e995_a5a5).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 32)).wrapping_mul(0xff51_afd7_ed55_8ccd) >> 48
}

fn seal(value: u64) -> u64 {
    value << 16 | check16(value)
}

/// The bits whose flip in a sealed word leaves two values or more that fit.
fn doubtful_bits(word: u64, fits: impl Fn(u64) -> bool) -> Vec<u32> {
    let is_doubtful = |flipped: u64| {
        let words = (0..64).map(|bit| flipped ^ 1 << bit);
        words.filter(|word| seal(word >> 16) == *word && fits(word >> 16)).count() > 1
    };
    (0..64).filter(|bit| is_doubtful(word ^ 1 << bit)).collect()
}

fn file(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

fn word(path: &Path, at: u64) -> u64 {
    let mut bytes = [0; 8];
    file(path).read_exact_at(&mut bytes, at).unwrap();
    u64::from_le_bytes(bytes)
}

/// Flips a bit and repairs the region. Nothing is lost, and the region is clean. Returns the word.
fn repaired(path: &Path, at: u64, bit: u32) -> u64 {
    let flipped = word(path, at) ^ 1 << bit;
    file(path).write_all_at(&flipped.to_le_bytes(), at).unwrap();
    let report = repair_with(path, &AttachOptions::default()).unwrap();
    assert_eq!(report.lost, [""; 0], "{at:#x}, bit {bit}: {flipped:#x}");
    let report = checked(path).unwrap();
    assert!(report.is_clean(), "{at:#x}, bit {bit}: {:?}", report.faults);
    word(path, at)
}

#[test]
fn counts_segments_and_flags_of_an_index_agree_with_its_cells() {
    let folder = TestFolder::new();
    let path = &folder.path;
    let region = Region::create(path, &small()).unwrap();
    let session = region.session().unwrap();
    declare_until_doubtful(path, &session);
    fill_until_doubtful(path, &session);
    for number in 0..150_u32 {
        let name = format!("index-{number}");
        let namespace = session.namespace(&name, &Schema::default()).unwrap();
        for record in 0..number * 5 {
            session.put(namespace, &record.to_be_bytes(), b"value").unwrap();
        }
    }
    let records = checked_records(&region, &session);
    drop((session, region));
    let entries = word(path, NAMESPACES_COUNT) >> 16;
    let (mut counts, mut segments, mut flags) = (Vec::new(), Vec::new(), Vec::new());
    for entry in (0..entries).map(|entry| CATALOG + 1024 * entry) {
        let value = word(path, entry + 64) >> 16;
        let near = |count: u64| is_near(count, value);
        let all = |at: u64, fits: &dyn Fn(u64) -> bool| {
            let seen = word(path, at);
            let bits = if seen == 0 { Vec::new() } else { doubtful_bits(seen, fits) };
            bits.into_iter().map(move |bit| (at, bit))
        };
        counts.extend(all(entry + 64, &near));
        flags.extend(all(entry + 16, &|flags| flags & 0xc0 == 0));
        for segment in 0..40 {
            segments.extend(all(entry + 512 + 8 * segment, &|units| units >= HEAP_UNITS));
        }
    }
    for found in [&counts, &segments, &flags] {
        assert!(!found.is_empty(), "{counts:?}, {segments:?}, {flags:?}");
        for (at, bit) in found.iter().step_by(found.len().div_ceil(FLIPS_MAX)) {
            let before = word(path, *at);
            assert_eq!(repaired(path, *at, *bit), before, "{at:#x}, bit {bit}");
        }
    }
    let region = Region::attach(path).unwrap();
    let session = region.session().unwrap();
    assert_eq!(checked_records(&region, &session), records);
}

/// The flags of the first namespace.
const FLAGS: u64 = CATALOG + 16;

/// Declares tags of the first namespace, which has watchers and a stream, until a flip of its flags
/// has two corrections.
fn declare_until_doubtful(path: &Path, session: &Session) {
    let tag = |tag: u32| TagSchema { name: format!("tag-{tag}"), ..TagSchema::default() };
    for tags in 0..60 {
        let schema = Schema { tags: (0..tags).map(tag).collect(), ..Schema::default() };
        let namespace = session.namespace("index-flags", &schema).unwrap();
        if tags == 0 {
            session.stream(namespace, WhenFull::LoseOldest).unwrap();
            drop(session.watch(namespace, Filter::Namespace).unwrap());
        }
        if !doubtful_bits(word(path, FLAGS), |flags| flags & 0xc0 == 0).is_empty() {
            return;
        }
    }
    panic!("no count of schemas has a flip with two corrections");
}

/// Puts records into a namespace until a flip of the count of its cells has two corrections. The
/// count grows by one cell after the other, so it passes one of those that have such a flip.
fn fill_until_doubtful(path: &Path, session: &Session) {
    let namespace = session.namespace("index-count", &Schema::default()).unwrap();
    let entry = CATALOG + 1024 * ((word(path, NAMESPACES_COUNT) >> 16) - 1);
    for record in 0..RECORDS_MAX {
        session.put(namespace, &record.to_be_bytes(), b"value").unwrap();
        let count = word(path, entry + 64);
        if !doubtful_bits(count, |found| is_near(found, count >> 16)).is_empty() {
            return;
        }
    }
    panic!("no count of cells has a flip with two corrections");
}

/// A count of cells that the repair may take for the count `of` an index.
fn is_near(count: u64, of: u64) -> bool {
    count >= 8 && count <= 2 * of.next_power_of_two()
}

/// The number of records of all namespaces of the test.
fn checked_records(region: &Region, session: &Session) -> u64 {
    let namespaces = region.inspect().unwrap().namespaces;
    let names = namespaces.iter().map(|entry| String::from_utf8_lossy(&entry.name).into_owned());
    let of_test = names.filter(|name| name.starts_with("index-"));
    of_test
        .map(|name| {
            let namespace = session.namespace(&name, &Schema::default()).unwrap();
            session.count(namespace).unwrap()
        })
        .sum()
}

#[test]
fn the_epoch_is_not_before_that_of_a_cell() {
    let folder = TestFolder::new();
    let path = &folder.path;
    drop(Region::create(path, &small()).unwrap());
    let mut flips = 0;
    for round in 0..400_u32 {
        let region = Region::attach(path).unwrap();
        let (session, namespace) = open(&region);
        for number in 0..200_u32 {
            session.put(namespace, &number.to_be_bytes(), &round.to_be_bytes()).unwrap();
        }
        drop((session, region));
        for bit in doubtful_bits(word(path, EPOCH), |epoch| epoch >= 2) {
            repaired(path, EPOCH, bit);
            let region = Region::attach(path).unwrap();
            let (session, namespace) = open(&region);
            for number in 0..200_u32 {
                let view = session.get(namespace, &number.to_be_bytes()).unwrap().unwrap();
                assert_eq!(view.bytes(), round.to_be_bytes());
            }
            flips += 1;
        }
        if flips >= FLIPS_MAX {
            break;
        }
    }
    assert!(flips > 0, "no epoch has a flip with two corrections");
}

/// Two flipped bits have no correction. The cells tell which epochs are possible.
#[test]
fn an_epoch_without_a_correction_is_computed_from_the_cells() {
    let folder = TestFolder::new();
    let path = &folder.path;
    let region = Region::create(path, &small()).unwrap();
    let (session, namespace) = open(&region);
    for number in 0..5000_u32 {
        session.put(namespace, &(number % 50).to_be_bytes(), &number.to_be_bytes()).unwrap();
    }
    drop((session, region));
    let before = word(path, EPOCH);
    file(path).write_all_at(&(before ^ 3 << 40).to_le_bytes(), EPOCH).unwrap();
    let report = repair_with(path, &AttachOptions::default()).unwrap();
    assert_eq!(report.lost, [""; 0]);
    assert!(checked(path).unwrap().is_clean());
    assert!(word(path, EPOCH) >> 16 <= before >> 16, "no more than the records need");
}

#[test]
fn counts_of_the_superblock_agree_with_their_tables() {
    // Counts that have a flip with two corrections.
    let doubtful = |most: u64, limit: u64| {
        let of = |count: u64| doubtful_bits(seal(count), |found| found <= limit);
        (1..most).map(|count| (count, of(count))).find(|(_, bits)| !bits.is_empty()).unwrap()
    };
    let (slots, slot_bits) = doubtful(400, 16_384);
    let (namespaces, namespace_bits) = doubtful(1500, 65_536);
    let folder = TestFolder::new();
    let path = &folder.path;
    let region = Region::create(path, &small()).unwrap();
    let sessions: Vec<Session> = (0..slots).map(|_| region.session().unwrap()).collect();
    let schema = Schema { kind: Kind::Value, ..Schema::default() };
    let first = sessions.first().unwrap();
    for number in 0..namespaces {
        let namespace = first.namespace(&format!("n{number}"), &schema).unwrap();
        first.put_if(namespace, b"key", b"value", Condition::Absent).unwrap();
    }
    drop((sessions, region));
    for (at, count, bits) in
        [(MEMBERS_COUNT, slots, slot_bits), (NAMESPACES_COUNT, namespaces, namespace_bits)]
    {
        assert_eq!(word(path, at), seal(count), "{at:#x}");
        for bit in bits {
            assert_eq!(repaired(path, at, bit) >> 16, count, "{at:#x}, bit {bit}");
        }
    }
}
