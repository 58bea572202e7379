//! Every bit of the metadata of a region that is not attached: which flips the offline check finds.
//! `spec/region.md`, "What the check covers", lists the bits that it need not find.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use nearstate_store::{
    AttachOptions, BlockChange, Condition, Error, Filter, Kind, Metadata, NamespaceLimits, Region,
    Schema, TagSchema, WhenFull, repair_with,
};

use crate::fixture::{TestFolder, checked, clean, small};

const MEMBERS: u64 = 0x2000;
const CATALOG: u64 = 0x40_0000;
const ARENAS: u64 = 0x440_0000;
const HEAP: u64 = 0x840_0000;
const CHUNK_BYTES: u64 = 256 << 10;

/// The bytes of the file, as they were.
pub(super) struct Snapshot {
    file: File,
    bytes: Vec<u8>,
    /// The pages that are not zero.
    used: Vec<u64>,
}

impl Snapshot {
    pub(super) fn of(path: &Path) -> Self {
        let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
        let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
        file.read_exact_at(&mut bytes, 0).unwrap();
        let pages = (0..).zip(bytes.chunks(4096));
        let used = pages.filter(|(_, page)| page.iter().any(|byte| *byte != 0));
        let used = used.map(|(page, _)| page).collect();
        Self { file, bytes, used }
    }

    pub(super) fn word(&self, at: u64) -> u64 {
        let at = usize::try_from(at).unwrap();
        u64::from_le_bytes(*self.bytes[at..].first_chunk().unwrap())
    }

    /// Writes the pages again that had content, and the one with the flipped bit. A session that a
    /// check opens uses no others.
    pub(super) fn restore(&self, bit: u64) {
        for page in self.used.iter().copied().chain([bit / 8 / 4096]) {
            let at = usize::try_from(page * 4096).unwrap();
            self.file.write_all_at(&self.bytes[at..at + 4096], page * 4096).unwrap();
        }
    }

    pub(super) fn flip(&self, bit: u64) {
        let byte = self.bytes[usize::try_from(bit / 8).unwrap()] ^ 1 << (bit % 8);
        self.file.write_all_at(&[byte], bit / 8).unwrap();
    }

    pub(super) fn unflip(&self, bit: u64) {
        let byte = self.bytes[usize::try_from(bit / 8).unwrap()];
        self.file.write_all_at(&[byte], bit / 8).unwrap();
    }
}

/// A region with records of all kinds, tags, expiry, rings, retired cells and used slots.
fn populate(path: &Path) {
    let region = Region::create(path, &small()).unwrap();
    let others: Vec<_> = (0..6).map(|_| region.session().unwrap()).collect();
    let session = region.session().unwrap();
    let tag = |name: &str| TagSchema { name: name.to_owned(), ..TagSchema::default() };
    let tags = vec![
        TagSchema { is_unique: true, ..tag("guti") },
        TagSchema { is_ordered: true, ..tag("age") },
        TagSchema { is_counted: true, ..tag("cell") },
        tag("slice"),
    ];
    let tagged = session.namespace("tagged", &Schema { tags, ..Schema::default() }).unwrap();
    let plain = session.namespace("plain", &Schema::default()).unwrap();
    let of = |kind| Schema { kind, ..Schema::default() };
    let blocks = session.namespace("blocks", &of(Kind::Blocks)).unwrap();
    let counters = session.namespace("counters", &of(Kind::Counters)).unwrap();
    for number in 0..300_u32 {
        let key = number.to_be_bytes();
        let words = [format!("g{number}"), format!("{}", number % 70), format!("{}", number % 9)];
        let tags: [(&str, &[u8]); 4] = [
            ("guti", words[0].as_bytes()),
            ("age", words[1].as_bytes()),
            ("cell", words[2].as_bytes()),
            ("slice", words[2].as_bytes()),
        ];
        let metadata = Metadata { tags: &tags, expires_ms: 1 << 45 };
        session.transact(|txn| txn.put_with_metadata(tagged, &key, b"value", metadata)).unwrap();
        session.put(plain, &key, &vec![1; 20 * number as usize]).unwrap();
        let change = [BlockChange { name: "b", bytes: Some(&[2; 900]) }];
        session.patch(blocks, &key, &change, Condition::Always).unwrap();
        session.add(counters, &(number % 20).to_be_bytes(), 1).unwrap();
    }
    let limits = NamespaceLimits { soft_bytes: 1 << 20, hard_bytes: 1 << 24 };
    session.set_limits(blocks, limits).unwrap();
    session.stream(plain, WhenFull::LoseOldest).unwrap();
    drop(session.watch(tagged, Filter::Namespace).unwrap());
    for (other, session) in (0_u32..).zip(&others) {
        for number in (other..300).step_by(11) {
            session.put(plain, &number.to_be_bytes(), &[3; 700]).unwrap();
            session.delete(blocks, &number.to_be_bytes()).unwrap();
        }
    }
}

/// The parts of the metadata: name, offset and bytes.
fn areas(file: &Snapshot) -> Vec<(&'static str, u64, u64)> {
    let members = file.word(0x2c0) >> 16;
    let namespaces = file.word(0x300) >> 16;
    let used = ((file.word(0x240) >> 16) * 64 - HEAP) / CHUNK_BYTES;
    let chunks = file.word(72);
    let words = HEAP + CHUNK_BYTES * chunks;
    let bitmaps = words + (8 * chunks).next_multiple_of(4096);
    let mut areas = vec![
        ("superblock", 0, 4096),
        ("reserved page", 4096, 4096),
        ("member slots", MEMBERS, (128 * members).next_multiple_of(4096)),
        ("catalog", CATALOG, (1024 * namespaces).next_multiple_of(4096)),
        ("arenas", ARENAS, 4096 * members),
        ("chunk words", words, 8 * chunks),
        ("bitmaps", bitmaps, (512 * used).next_multiple_of(4096)),
    ];
    for namespace in 0..namespaces {
        let entry = CATALOG + 1024 * namespace;
        let mut left = file.word(entry + 64) >> 16;
        for segment in 0..40 {
            let buckets = (8 << u64::max(segment, 1) >> 1).min(left);
            let at = (file.word(entry + 512 + 8 * segment) >> 16) * 64;
            if buckets != 0 {
                areas.push(("index", at + 64, 64 * buckets));
            }
            left -= buckets;
        }
    }
    areas
}

/// Why a flip need not be found, as the specification lists it.
fn exception(file: &Snapshot, area: &str, from: u64, bit: u64) -> Option<&'static str> {
    let (at, word_bit) = (bit / 64 * 8, bit % 64);
    let flipped = |at: u64| file.word(at) ^ u64::from(at == bit / 64 * 8) << word_bit;
    match area {
        "reserved page" => match at - from {
            0x80 | 0xc0 | 0x100 | 0x108 | 0x200 | 0x400 | 0x408 | 0x500 | 0x508 => {
                Some("words of the log")
            }
            0x3c0 | 0x3c8 | 0x540 => Some("words of those that wait"),
            _ => None,
        },
        "member slots" => match (at - from) % 128 {
            64 if word_bit < 40 => Some("incarnation of a slot"),
            64 if word_bit == 56 => Some("a free slot that looks dead is recovered"),
            72 | 88 | 96 | 104 | 112 | 120 => Some("identity in a free slot"),
            _ => None,
        },
        "arenas" => {
            let start = at - (at - from) % 4096;
            let is_empty = |front: u64| flipped(start + front) >= flipped(start + front + 8);
            let queue = |first: u64| match (at - start - first) % 24 {
                8 if file.word(at - 8) == 0 => Some("tail of an empty queue"),
                16 => Some("length of a queue"),
                _ => None,
            };
            match at - start {
                8..32 | 72..80 | 112..128 | 224..232 => Some("closed undo record"),
                128 | 136 if is_empty(128) => Some("empty bump range"),
                160 | 168 if is_empty(160) => Some("empty bump range"),
                256..3328 => queue(256),
                3456..3480 => queue(3456),
                3520..3544 => queue(3520),
                _ => None,
            }
        }
        "catalog" if at - CATALOG == 1024 * (file.word(0x300) >> 16) + 8 => {
            Some("kind of the entry behind the last")
        }
        "index" if at.is_multiple_of(64) && word_bit < 42 => Some("stamp of a bucket"),
        _ => None,
    }
}

#[derive(Default)]
struct Rate {
    flips: u64,
    excepted: u64,
    found: u64,
    missed: Vec<(u64, u64)>,
}

/// Flips every `step`-th bit, and returns the report and the number of flips that were missed.
fn measure(step: u64) -> (String, u64, u64) {
    let folder = TestFolder::new();
    populate(&folder.path);
    let file = Snapshot::of(&folder.path);
    let mut rates = BTreeMap::<&str, Rate>::new();
    let mut flip = 0;
    for (area, from, bytes) in areas(&file) {
        let rate = rates.entry(area).or_default();
        for bit in from * 8..(from + bytes) * 8 {
            flip += 1;
            if flip % step != 0 {
                continue;
            }
            rate.flips += 1;
            file.flip(bit);
            let is_found = match checked(&folder.path) {
                Ok(report) => !report.is_clean(),
                Err(Error::NotARegion { .. } | Error::Damaged { .. }) => true,
                Err(error) => panic!("neither refused nor verified: {error}"),
            };
            if is_found {
                rate.found += 1;
                file.unflip(bit);
            } else {
                if exception(&file, area, from, bit).is_some() {
                    rate.excepted += 1;
                } else {
                    rate.missed.push((bit / 8 - from, bit % 8));
                }
                file.restore(bit);
            }
        }
    }
    clean(&folder.path);
    let (mut text, mut found, mut matter) = (String::new(), 0, 0);
    for (area, rate) in rates {
        let matters = rate.flips - rate.excepted;
        let hundredths = 10_000 * rate.found / matters.max(1);
        let share = format!("{}.{:02}", hundredths / 100, hundredths % 100);
        let missed = &rate.missed[..rate.missed.len().min(20)];
        writeln!(
            text,
            "{area:14} {:7} flips, {:6} excepted, {:7} of {matters:7}: {share} % {missed:?}",
            rate.flips, rate.excepted, rate.found
        )
        .unwrap();
        (found, matter) = (found + rate.found, matter + matters);
    }
    (text, found, matter)
}

fn expect(step: u64) {
    let (text, found, matter) = measure(step);
    eprintln!("{text}{found} of {matter} found");
    assert!(found * 100 >= matter * 99, "{text}");
}

#[test]
fn a_sample_of_flips_in_the_metadata_is_found() {
    // A prime, so that every bit of a word has its flip.
    expect(701);
}

/// `cargo test -p nearstate-store --test integration -- --ignored every_flip --nocapture`, with
/// `NEARSTATE_FLIP_STEP=29` for every 29th.
#[test]
#[ignore = "some hundred thousand checks"]
fn every_flip_in_the_metadata_is_found() {
    let step = std::env::var("NEARSTATE_FLIP_STEP").ok().and_then(|step| step.parse().ok());
    expect(step.unwrap_or(1));
}

/// Every record of every namespace: key, value and blocks.
fn content(path: &Path) -> BTreeMap<(String, Vec<u8>), Vec<u8>> {
    let region = Region::attach(path).unwrap();
    let session = region.session().unwrap();
    let mut all = BTreeMap::new();
    for (name, namespace) in session.namespaces().unwrap() {
        let mut scan = session.scan(namespace).unwrap();
        while let Some(view) = scan.next().unwrap() {
            let mut value = view.bytes().to_vec();
            for (block, bytes) in view.blocks() {
                value.extend_from_slice(block.as_bytes());
                value.extend_from_slice(bytes);
            }
            let record = (name.clone(), view.key().to_vec());
            assert!(all.insert(record, value).is_none(), "a record stands twice");
        }
    }
    all
}

/// Flips in metadata are repaired, and no record is lost.
fn expect_repaired(step: u64) {
    let folder = TestFolder::new();
    populate(&folder.path);
    let before = content(&folder.path);
    let file = Snapshot::of(&folder.path);
    let (mut flip, mut repaired) = (0, 0);
    for (area, from, bytes) in areas(&file) {
        for bit in from * 8..(from + bytes) * 8 {
            flip += 1;
            if flip % step != 0 {
                continue;
            }
            let at = format!("{area}, bit {} of byte {}", bit % 8, bit / 8 - from);
            file.flip(bit);
            let report = repair_with(&folder.path, &AttachOptions::default())
                .unwrap_or_else(|error| panic!("{at}: {error}"));
            assert_eq!(report.lost, [] as [String; 0], "{at}: {report:?}");
            repaired += report.repaired_count;
            let checked = checked(&folder.path).unwrap();
            assert!(checked.is_clean(), "{at}: {checked:?} after {report:?}");
            assert!(content(&folder.path) == before, "{at}: records differ after {report:?}");
            file.restore(bit);
        }
    }
    assert!(repaired > 0);
    clean(&folder.path);
}

#[test]
fn flips_in_the_metadata_are_repaired_without_a_loss() {
    expect_repaired(5003);
}

/// Every field of the superblock that never changes. Two flips are more than can be corrected.
#[test]
fn a_flip_in_the_fixed_fields_of_the_superblock_is_repaired() {
    let folder = TestFolder::new();
    populate(&folder.path);
    let before = content(&folder.path);
    let file = Snapshot::of(&folder.path);
    let fixed = (0..80).chain(120..128);
    for bit in fixed.flat_map(|byte| [byte * 8 + byte % 8, byte * 8 + (byte + 3) % 8]) {
        file.flip(bit);
        assert!(matches!(Region::attach(&folder.path), Err(Error::NotARegion { .. })), "{bit}");
        let report = repair_with(&folder.path, &AttachOptions::default()).unwrap();
        assert_eq!((report.repaired_count, report.lost_count), (1, 0), "bit {bit}: {report:?}");
        file.restore(bit);
    }
    assert!(content(&folder.path) == before);
    file.flip(16 * 8);
    file.flip(33 * 8);
    let refused = repair_with(&folder.path, &AttachOptions::default());
    assert!(matches!(refused, Err(Error::NotARegion { .. })), "{refused:?}");
    file.unflip(16 * 8);
    file.unflip(33 * 8);
    clean(&folder.path);
}

/// The count of member slots, which attaching reads, and the names of the namespaces with the bytes
/// behind them.
#[test]
fn a_flip_in_the_count_of_members_or_in_a_name_is_repaired() {
    let folder = TestFolder::new();
    populate(&folder.path);
    let before = content(&folder.path);
    let file = Snapshot::of(&folder.path);
    let names = (0..file.word(0x300) >> 16).map(|entry| CATALOG + 1024 * entry + 200);
    for at in std::iter::once(0x2c0).chain(names) {
        for bit in (at * 8..at * 8 + 64).step_by(if at == 0x2c0 { 1 } else { 7 }) {
            file.flip(bit);
            let report = repair_with(&folder.path, &AttachOptions::default())
                .unwrap_or_else(|error| panic!("bit {bit}: {error}"));
            assert_eq!((report.repaired_count, report.lost_count), (1, 0), "{bit}: {report:?}");
            clean(&folder.path);
            file.restore(bit);
        }
    }
    assert!(content(&folder.path) == before);
    clean(&folder.path);
}

/// A flipped bit of an entry that leads to an old version of the record, or to a record of another
/// namespace with the same key, is not taken for a damaged header.
#[test]
fn an_entry_is_repaired_to_the_current_record_of_its_own_namespace() {
    const KEY: &[u8] = b"the-same-key";
    let folder = TestFolder::new();
    {
        let region = Region::create(&folder.path, &small()).unwrap();
        let session = region.session().unwrap();
        let namespaces = ["a", "b", "c"].map(|name| session.namespace(name, &Schema::default()));
        for round in 0..100 {
            for namespace in &namespaces {
                session.put(*namespace.as_ref().unwrap(), KEY, &[round]).unwrap();
            }
        }
    }
    let before = content(&folder.path);
    let file = Snapshot::of(&folder.path);
    let has_key = |units: u64| {
        let at = usize::try_from(units * 64 + 44).unwrap();
        file.bytes.get(at..).is_some_and(|bytes| bytes.starts_with(KEY))
    };
    let mut versions = 0;
    for (_, from, bytes) in areas(&file).into_iter().filter(|(area, ..)| *area == "index") {
        for at in (from..from + bytes).step_by(8).filter(|at| at % 64 != 0) {
            let units = file.word(at) & ((1 << 42) - 1);
            if file.word(at) == 0 || !has_key(units) {
                continue;
            }
            for bit in (0..42).filter(|bit| has_key(units ^ 1 << bit)) {
                versions += 1;
                file.flip(at * 8 + bit);
                let checked_first = checked(&folder.path).unwrap();
                assert!(!checked_first.is_clean(), "bit {bit}: the check did not find the flip");
                let report = repair_with(&folder.path, &AttachOptions::default()).unwrap();
                assert_eq!(report.lost, [] as [String; 0], "bit {bit}: {report:?}");
                assert!(content(&folder.path) == before, "bit {bit}: {report:?}");
                file.restore(at * 8 + bit);
            }
        }
    }
    assert!(versions > 3, "flips lead to {versions} other cells with the same key");
    clean(&folder.path);
}

/// `NEARSTATE_FLIP_STEP` as above.
#[test]
#[ignore = "thousands of repairs"]
fn many_flips_in_the_metadata_are_repaired_without_a_loss() {
    let step = std::env::var("NEARSTATE_FLIP_STEP").ok().and_then(|step| step.parse().ok());
    expect_repaired(step.unwrap_or(101));
}
