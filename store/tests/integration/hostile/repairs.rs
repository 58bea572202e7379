//! The offline repair: what is derived is built again, what is lost is named, and a repair that was
//! killed can be run again.

use std::fs::OpenOptions;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;

use nearstate_store::{
    AttachOptions, Metadata, Region, RepairReport, Schema, TagSchema, repair_with,
};

use crate::fixture::{
    KilledOnDrop, TestFolder, checked, child, clean, open, region_path, small, spawn,
};

const CATALOG: u64 = 0x40_0000;
const ARENAS: u64 = 0x440_0000;
const HEAP: u64 = 0x840_0000;
const RECORDS: u32 = 400;

/// Printed by the child before its first repair.
const READY: &[u8] = b"ready";

/// Spins by which each kill comes later than the one before.
const SPINS: u64 = 40_000;

fn repair(path: &Path) -> RepairReport {
    repair_with(path, &AttachOptions::default()).unwrap()
}

fn key(number: u32) -> String {
    format!("imsi-{number:010}")
}

/// A region of tagged and plain records.
fn populate(path: &Path) {
    let region = Region::create(path, &small()).unwrap();
    let (session, ns) = open(&region);
    let tag = |name: &str| TagSchema { name: name.to_owned(), ..TagSchema::default() };
    let tags = vec![
        TagSchema { is_unique: true, ..tag("guti") },
        TagSchema { is_ordered: true, ..tag("age") },
        TagSchema { is_counted: true, ..tag("cell") },
    ];
    let tagged = session.namespace("tagged", &Schema { tags, ..Schema::default() }).unwrap();
    for number in 0..RECORDS {
        let words =
            [format!("g{number}"), format!("{:03}", number % 70), format!("{}", number % 9)];
        let tags: [(&str, &[u8]); 3] = [
            ("guti", words[0].as_bytes()),
            ("age", words[1].as_bytes()),
            ("cell", words[2].as_bytes()),
        ];
        let metadata = Metadata { tags: &tags, expires_ms: (1 << 45) + u64::from(number) };
        let key = key(number);
        session
            .transact(|txn| txn.put_with_metadata(tagged, key.as_bytes(), b"value", metadata))
            .unwrap();
        session.put(ns, key.as_bytes(), &vec![7; number as usize]).unwrap();
    }
}

/// Everything is there and found, except the records with these numbers in each namespace.
fn expect_content(path: &Path, lost: [&[u32]; 2]) {
    let report = checked(path).unwrap();
    assert!(report.is_clean(), "{report:?}");
    let region = Region::attach(path).unwrap();
    let (session, ns) = open(&region);
    let tagged = session.namespace("tagged", &Schema::default()).unwrap();
    for number in 0..RECORDS {
        let key = key(number);
        let view = session.get(ns, key.as_bytes()).unwrap();
        let is_kept = !lost[0].contains(&number);
        assert_eq!(view.map(|view| view.bytes().len()), is_kept.then_some(number as usize));
        let is_kept = !lost[1].contains(&number);
        assert_eq!(session.get(tagged, key.as_bytes()).unwrap().is_some(), is_kept);
        let found = session.find(tagged, "guti", format!("g{number}").as_bytes()).unwrap();
        assert_eq!(found.map(|view| view.key().to_vec()), is_kept.then(|| key.into_bytes()));
    }
    session.put(ns, b"new", &[1; 3000]).unwrap();
    session.delete(ns, b"new").unwrap();
    drop((session, region));
    clean(path);
}

fn position(path: &Path, pattern: &[u8]) -> u64 {
    let bytes = std::fs::read(path).unwrap();
    let heap = usize::try_from(HEAP).unwrap();
    let found = bytes[heap..].windows(pattern.len()).position(|window| window == pattern);
    HEAP + found.expect("the pattern is in the heap") as u64
}

/// A word of the region.
fn read(path: &Path, at: u64) -> [u8; 8] {
    let mut word = [0; 8];
    std::fs::File::open(path).unwrap().read_exact_at(&mut word, at).unwrap();
    word
}

fn write(path: &Path, at: u64, bytes: &[u8]) {
    OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, at).unwrap();
}

#[test]
fn a_sound_region_needs_no_repair_and_keeps_its_records() {
    let folder = TestFolder::new();
    populate(&folder.path);
    assert_eq!(repair(&folder.path), RepairReport::default());
    expect_content(&folder.path, [&[], &[]]);
}

#[test]
fn bitmaps_queues_and_locks_are_built_again() {
    let folder = TestFolder::new();
    populate(&folder.path);
    let mut chunks = [0; 8];
    let file = std::fs::File::open(&folder.path).unwrap();
    file.read_exact_at(&mut chunks, 72).unwrap();
    let chunks = u64::from_le_bytes(chunks);
    let words = HEAP + (256 << 10) * chunks;
    let bitmaps = words + (8 * chunks).next_multiple_of(4096);
    write(&folder.path, words, &[0xff; 32]);
    write(&folder.path, bitmaps, &[0x55; 700]);
    write(&folder.path, ARENAS, &[0x77; 900]);
    write(&folder.path, CATALOG + 128, &[3]);
    assert!(!checked(&folder.path).unwrap().is_clean());
    let report = repair(&folder.path);
    assert!(report.repaired_count > 0 && report.lost_count == 0, "{report:?}");
    expect_content(&folder.path, [&[], &[]]);
}

#[test]
fn a_damaged_record_is_removed_and_named() {
    let folder = TestFolder::new();
    populate(&folder.path);
    // The value of a plain record: its checksum does not hold.
    let at = position(&folder.path, &[key(300).as_bytes(), &[7; 300]].concat());
    write(&folder.path, at + 100, &[8]);
    let report = repair(&folder.path);
    let named = report.lost.iter().any(|text| text.contains("ue") && text.contains(&key(300)));
    assert!(report.lost_count == 1 && named && report.repaired_count == 0, "{report:?}");
    expect_content(&folder.path, [&[300], &[]]);
}

/// Offsets of the buckets of each namespace.
fn buckets(path: &Path) -> Vec<u64> {
    let bytes = std::fs::read(path).unwrap();
    let word = |at: u64| {
        let at = usize::try_from(at).unwrap();
        u64::from_le_bytes(*bytes[at..].first_chunk().unwrap())
    };
    let mut buckets = Vec::new();
    for entry in (0..word(0x300) >> 16).map(|namespace| CATALOG + 1024 * namespace) {
        let mut left = word(entry + 64) >> 16;
        for segment in 0..40_u64 {
            let count = (8 << segment.max(1) >> 1).min(left);
            let at = (word(entry + 512 + 8 * segment) >> 16) * 64;
            buckets.extend((1..=count).map(|bucket| at + 64 * bucket));
            left -= count;
        }
    }
    buckets
}

/// Without any entry, and so without any link to an overflow line.
#[test]
fn an_index_without_entries_is_built_again_from_the_records() {
    let folder = TestFolder::new();
    populate(&folder.path);
    for bucket in buckets(&folder.path) {
        write(&folder.path, bucket + 8, &[0; 56]);
    }
    assert!(!checked(&folder.path).unwrap().is_clean());
    let report = repair(&folder.path);
    assert_eq!(report.lost, [] as [String; 0]);
    assert!(report.repaired_count >= 2 * u64::from(RECORDS), "{report:?}");
    expect_content(&folder.path, [&[], &[]]);
}

/// Links that lead nowhere and cannot be corrected. The other words of their buckets are in use, so
/// the records behind them need new overflow lines.
#[test]
fn records_behind_a_lost_link_are_found_again() {
    let folder = TestFolder::new();
    populate(&folder.path);
    let bytes = std::fs::read(&folder.path).unwrap();
    let mut links = 0;
    for bucket in buckets(&folder.path) {
        let at = usize::try_from(bucket + 56).unwrap();
        let last = u64::from_le_bytes(*bytes[at..].first_chunk().unwrap());
        if last >> 47 == 1 {
            links += 1;
            // Still a link, to an offset behind the heap.
            write(&folder.path, bucket + 56, &(1_u64 << 47 | 0x3_0303_0303).to_le_bytes());
        }
    }
    assert!(links > 0);
    let report = repair(&folder.path);
    assert_eq!(report.lost, [] as [String; 0]);
    assert!(report.repaired_count >= links, "{report:?}");
    expect_content(&folder.path, [&[], &[]]);
}

/// The second namespace of a catalog entry has another number than the entry.
#[test]
fn records_of_a_namespace_that_follows_a_removed_one_are_found_again() {
    let folder = TestFolder::new();
    {
        let region = Region::create(&folder.path, &small()).unwrap();
        let session = region.session().unwrap();
        let first = session.namespace("ue", &Schema::default()).unwrap();
        assert!(session.remove_namespace(first).unwrap());
        let second = session.namespace("ue", &Schema::default()).unwrap();
        for number in 0..RECORDS {
            session.put(second, key(number).as_bytes(), &vec![7; number as usize]).unwrap();
        }
    }
    for bucket in buckets(&folder.path) {
        write(&folder.path, bucket + 8, &[0; 56]);
    }
    let report = repair(&folder.path);
    assert_eq!(report.lost, [] as [String; 0]);
    let region = Region::attach(&folder.path).unwrap();
    let (session, ns) = open(&region);
    for number in 0..RECORDS {
        let view = session.get(ns, key(number).as_bytes()).unwrap();
        assert_eq!(view.map(|view| view.bytes().len()), Some(number as usize), "{number}");
    }
    drop((session, region));
    clean(&folder.path);
}

/// A creation in an entry that a repair has emptied, and that was killed when its index was
/// published.
#[test]
fn the_index_of_an_interrupted_creation_is_free_after_a_repair_and_not_used_again() {
    const GENERATION: u64 = CATALOG + 56;
    let folder = TestFolder::new();
    {
        let region = Region::create(&folder.path, &small()).unwrap();
        let session = region.session().unwrap();
        let first = session.namespace("ue", &Schema::default()).unwrap();
        assert!(session.remove_namespace(first).unwrap());
    }
    repair(&folder.path);
    let use_word = read(&folder.path, GENERATION);
    open(&Region::attach(&folder.path).unwrap());
    write(&folder.path, CATALOG, &[0; 8]);
    write(&folder.path, GENERATION, &use_word);
    clean(&folder.path);
    repair(&folder.path);
    clean(&folder.path);
    let region = Region::attach(&folder.path).unwrap();
    let session = region.session().unwrap();
    for name in ["ue", "sm"] {
        let ns = session.namespace(name, &Schema::default()).unwrap();
        for number in 0..RECORDS {
            session.put(ns, key(number).as_bytes(), &[7; 100]).unwrap();
        }
    }
    drop((session, region));
    clean(&folder.path);
}

/// A value that contains the bytes of a record's cell, where a cell could begin.
#[test]
fn a_value_that_contains_a_record_is_restored_and_the_record_is_not() {
    const KEY: &[u8] = b"removed-record";
    let folder = TestFolder::new();
    let region = Region::create(&folder.path, &small()).unwrap();
    let (session, ns) = open(&region);
    session.put(ns, KEY, b"1").unwrap();
    let header = usize::try_from(position(&folder.path, KEY)).unwrap() - 44;
    let image = std::fs::read(&folder.path).unwrap()[header..header + 64].to_vec();
    session.delete(ns, KEY).unwrap();
    // The first unit of the cell holds its header, the key and the rest of 64 bytes.
    let value = [vec![0; 64 - 44 - 5], image.repeat(20)].concat();
    session.put(ns, b"value", &value).unwrap();
    drop((session, region));
    for bucket in buckets(&folder.path) {
        write(&folder.path, bucket + 8, &[0; 56]);
    }
    let report = repair(&folder.path);
    assert_eq!((report.lost_count, report.repaired_count > 0), (0, true), "{report:?}");
    let region = Region::attach(&folder.path).unwrap();
    let (session, ns) = open(&region);
    assert!(session.get(ns, KEY).unwrap().is_none(), "a part of a value became a record");
    assert_eq!(session.get(ns, b"value").unwrap().unwrap().bytes(), value);
    drop((session, region));
    clean(&folder.path);
}

/// A record that was removed, and an old version, are no records without an entry.
#[test]
fn a_repair_brings_no_removed_record_back() {
    let folder = TestFolder::new();
    populate(&folder.path);
    {
        let region = Region::attach(&folder.path).unwrap();
        let (session, ns) = open(&region);
        for number in 0..RECORDS {
            let value = vec![7; number as usize];
            session.put(ns, key(number).as_bytes(), b"old").unwrap();
            session.put(ns, key(number).as_bytes(), &value).unwrap();
            session.put(ns, format!("removed-{number}").as_bytes(), &value).unwrap();
        }
        for number in 0..RECORDS {
            session.delete(ns, format!("removed-{number}").as_bytes()).unwrap();
        }
    }
    for bucket in buckets(&folder.path) {
        write(&folder.path, bucket + 8, &[0; 56]);
    }
    let report = repair(&folder.path);
    assert_eq!(report.lost, [] as [String; 0]);
    {
        let region = Region::attach(&folder.path).unwrap();
        let (session, ns) = open(&region);
        for number in 0..RECORDS {
            let removed = format!("removed-{number}");
            assert!(session.get(ns, removed.as_bytes()).unwrap().is_none(), "{removed}");
        }
    }
    expect_content(&folder.path, [&[], &[]]);
}

#[test]
fn indexes_of_tags_are_built_again_from_the_records() {
    let folder = TestFolder::new();
    populate(&folder.path);
    // The value of a tagged record, and a posting of another one.
    let at = position(&folder.path, &[key(200).as_bytes(), b"value"].concat());
    write(&folder.path, at + 16, b"V");
    let at = position(&folder.path, b"g201imsi-");
    write(&folder.path, at + 5, b"I");
    let report = repair(&folder.path);
    let is_named = |word: &str| report.lost.iter().any(|text| text.contains(word));
    assert!(is_named(&key(200)) && is_named("index"), "{report:?}");
    assert!(report.repaired.iter().any(|text| text.contains("\"guti\"")), "{report:?}");
    expect_content(&folder.path, [&[], &[200]]);
}

#[test]
#[ignore = "a process that is killed"]
fn child_that_repairs() {
    let mut out = std::io::stdout();
    out.write_all(READY).and_then(|()| out.flush()).unwrap();
    loop {
        drop(repair_with(&region_path(), &AttachOptions::default()));
    }
}

#[test]
fn a_repair_that_is_killed_is_finished_by_the_next() {
    let folder = TestFolder::new();
    let made = folder.dir().join("made");
    populate(&made);
    let at = position(&made, b"g201imsi-");
    write(&made, at + 5, b"I");
    let at = position(&made, &[key(300).as_bytes(), &[7; 300]].concat());
    write(&made, at + 100, &[8]);
    write(&made, ARENAS, &[0x77; 900]);
    for kill in 0..12_u64 {
        std::fs::copy(&made, &folder.path).unwrap();
        let mut command = child("hostile::repairs::child_that_repairs", &folder.path);
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut repairing = KilledOnDrop(spawn(&mut command).unwrap());
        let mut output = repairing.0.stdout.take().unwrap();
        let mut said = Vec::new();
        while !said.ends_with(READY) {
            let mut byte = [0];
            output.read_exact(&mut byte).unwrap();
            said.push(byte[0]);
        }
        // From the start to the end of the first repair.
        for _ in 0..kill * SPINS {
            std::hint::spin_loop();
        }
        drop(repairing);
        let report = repair(&folder.path);
        assert!(report.lost_count <= 2, "{report:?}");
        expect_content(&folder.path, [&[300], &[]]);
    }
}
