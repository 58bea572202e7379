//! Flipped bits: each flip in the superblock and in a record is detected. Thousands of flips
//! elsewhere crash no process.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use nearstate_memory::{RingRead, RingStart};
use nearstate_store::{
    BlockChange, CheckReport, Condition, Error, Filter, Kind, Metadata, Namespace, Pattern, Region,
    Result, Schema, Session, TagSchema,
};

use crate::fixture::{TestFolder, checked, clean, open, small};

const SUPERBLOCK: u64 = 4096;
const RESERVED: u64 = 0x1000;
const CHUNK_BYTES: u64 = 256 << 10;
const MEMBERS: u64 = 0x2000;
const CATALOG: u64 = 0x40_0000;
const ARENAS: u64 = 0x440_0000;
const HEAP: u64 = 0x840_0000;

/// The parts of a file that are not zero, so that it can be put back as it was.
struct Copy {
    file: File,
    length: u64,
    parts: Vec<(u64, Vec<u8>)>,
}

impl Copy {
    fn of(path: &Path) -> Self {
        let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
        let length = file.metadata().unwrap().len();
        let mut parts = Vec::new();
        let mut page = vec![0; 4096];
        for at in (0..length).step_by(page.len()) {
            file.read_exact_at(&mut page, at).unwrap();
            if page.iter().any(|byte| *byte != 0) {
                parts.push((at, page.clone()));
            }
        }
        Self { file, length, parts }
    }

    fn restore(&self) {
        self.file.set_len(0).unwrap();
        self.file.set_len(self.length).unwrap();
        for (at, bytes) in &self.parts {
            self.file.write_all_at(bytes, *at).unwrap();
        }
    }

    fn flip(&self, bit: u64) {
        let mut byte = [0];
        self.file.read_exact_at(&mut byte, bit / 8).unwrap();
        byte[0] ^= 1 << (bit % 8);
        self.file.write_all_at(&byte, bit / 8).unwrap();
    }
}

/// What a verifier that meets damage may answer: that it is no region, or at least one fault.
fn is_found(answer: Result<CheckReport>) -> bool {
    match answer {
        Ok(report) => !report.is_clean(),
        Err(Error::NotARegion { .. } | Error::Damaged { .. }) => true,
        Err(error) => panic!("neither refused nor verified: {error}"),
    }
}

#[test]
fn any_flipped_bit_of_the_superblock_is_found() {
    let folder = TestFolder::new();
    let region = Region::create(&folder.path, &small()).unwrap();
    let (session, ns) = open(&region);
    session.put(ns, b"k", b"v").unwrap();
    drop((session, region));
    let copy = Copy::of(&folder.path);
    let mut page = vec![0; 4096];
    copy.file.read_exact_at(&mut page, 0).unwrap();
    for bit in 0..SUPERBLOCK * 8 {
        copy.flip(bit);
        assert!(is_found(checked(&folder.path)), "bit {} of byte {} is not", bit % 8, bit / 8);
        copy.file.write_all_at(&page, 0).unwrap();
    }
    clean(&folder.path);
}

const KEY: &[u8] = b"imsi-262011234567890";
const CELL: u64 = 1088;

/// Reads in every way. What comes back may be anything; that it comes back is the point.
fn read_all(session: &Session, ns: Namespace, key: &[u8]) {
    let mut copy = Vec::new();
    if let Ok(Some(view)) = session.get(ns, key) {
        let sum: u64 = view.bytes().iter().chain(view.key()).map(|byte| u64::from(*byte)).sum();
        let blocks: usize = view.blocks().map(|(name, bytes)| name.len() + bytes.len()).sum();
        std::hint::black_box((sum, blocks, view.version()));
    }
    drop(session.get_copy(ns, key, &mut copy));
    drop(session.get_batch(ns, &[key, b"none"], |_, view| drop(view)));
    let mut keys = 0;
    drop(session.list(ns, Pattern::All, |key| keys += key.len()));
    drop(session.count(ns));
}

/// A region with one record that fills its cell, and where the cell is.
fn region_with_a_record(path: &Path) -> u64 {
    let region = Region::create(path, &small()).unwrap();
    let (session, ns) = open(&region);
    let value: Vec<u8> = (0..1024_u32).map(|i| i.to_le_bytes()[0] ^ 0x5a).collect();
    session.put(ns, KEY, &value).unwrap();
    drop((session, region));
    let bytes = fs::read(path).unwrap();
    let at = bytes.windows(KEY.len()).position(|window| window == KEY).unwrap() as u64 - 44;
    assert_eq!(at % 64, 0);
    at
}

#[test]
fn any_flipped_bit_of_a_record_is_found_and_crashes_no_reader() {
    let folder = TestFolder::new();
    let at = region_with_a_record(&folder.path);
    let copy = Copy::of(&folder.path);
    for bit in at * 8..(at + CELL) * 8 {
        copy.flip(bit);
        assert!(is_found(checked(&folder.path)), "bit {} of byte {} is not", bit % 8, bit / 8 - at);
        copy.flip(bit);
    }
    clean(&folder.path);
    let region = Region::attach(&folder.path).unwrap();
    let (session, ns) = open(&region);
    for bit in at * 8..(at + CELL) * 8 {
        copy.flip(bit);
        read_all(&session, ns, KEY);
        copy.flip(bit);
    }
    assert_eq!(session.get(ns, KEY).unwrap().unwrap().bytes().len(), 1024);
}

/// Writes in every way, some times over, so that what was retired with a wrong header is used
/// again.
fn write_all(session: &Session, ns: Namespace, blocks: Namespace) {
    let large = vec![3; 40_000];
    for round in 0..6_u8 {
        for number in 0..12_u32 {
            let key = number.to_le_bytes();
            let bytes = 300 * usize::from(round) + 40 * number as usize;
            drop(session.put(ns, &key, &large[..bytes]));
            let change = [
                BlockChange { name: "small", bytes: Some(&large[..bytes / 9]) },
                BlockChange { name: "large", bytes: (round != 3).then_some(&large[..bytes * 9]) },
            ];
            drop(session.patch(blocks, &key, &change, Condition::Always));
        }
        drop(session.put(ns, KEY, &large[..1024]));
        for number in (0..12_u32).step_by(2) {
            drop(session.delete(ns, &number.to_le_bytes()));
            drop(session.delete(blocks, &number.to_le_bytes()));
        }
        drop(session.put_if(ns, KEY, b"v", Condition::Value(&large[..1024])));
    }
}

/// Adds, reads sums, and watches. A ring of a few entries and a few of counters are there already.
fn count_and_watch(session: &Session, counters: Namespace, watched: Namespace) {
    for number in 0..6_u32 {
        drop(session.add(counters, &number.to_le_bytes(), 1));
        drop(session.read_counter(counters, &number.to_le_bytes()));
    }
    drop(session.delete(counters, &1_u32.to_le_bytes()));
    if let Ok(mut watch) = session.watch(watched, Filter::Namespace) {
        drop(watch.wait(Duration::ZERO));
        drop(watch.next());
    }
    if let Ok(watch) = session.watch(watched, Filter::Prefix(b"imsi".to_vec())) {
        drop(watch.wait(Duration::ZERO));
    }
}

/// Follows the ring of a namespace from its oldest entry on, and appends to it.
fn follow(path: &Path) {
    let Ok(region) = nearstate_memory::Region::attach(path) else { return };
    let Ok(member) = region.member() else { return };
    let Ok(table) = member.namespace(b"ue", 1) else { return };
    let Ok(Some(ring)) = member.watch_ring(table) else { return };
    for start in [RingStart::Oldest, RingStart::Tail] {
        let Ok(mut reader) = member.ring_reader(ring, start) else { continue };
        let (mut out, mut count) = (Vec::new(), 0);
        while let Ok(RingRead::Entry { .. } | RingRead::Lost { .. }) = reader.next(&mut out) {
            count += 1;
            assert!(count < 10_000, "a ring without an end");
        }
        drop((reader.backlog(), member.append_to_ring(ring, &[1; 50])));
    }
}

/// Everything that a process does with a region, damaged as it is. Errors are fine.
fn live_with(path: &Path) {
    if let Ok(region) = Region::attach(path)
        && let Ok(session) = region.session()
    {
        drop(region.inspect());
        let ns = session.namespace("ue", &Schema::default());
        let of = |kind| Schema { kind, ..Schema::default() };
        let blocks = session.namespace("blocks", &of(Kind::Blocks));
        let counters = session.namespace("count", &of(Kind::Counters));
        if let (Ok(ns), Ok(blocks), Ok(counters)) = (ns, blocks, counters) {
            count_and_watch(&session, counters, ns);
            read_all(&session, ns, KEY);
            for number in 0..12_u32 {
                read_all(&session, blocks, &number.to_le_bytes());
            }
            write_all(&session, ns, blocks);
            read_all(&session, ns, KEY);
        }
        drop(session.namespace("another", &Schema::default()));
        drop(region.session());
    }
    follow(path);
    match checked(path) {
        Ok(_) | Err(Error::NotARegion { .. } | Error::Damaged { .. } | Error::Stalled { .. }) => {}
        Err(error) => panic!("the verifier: {error}"),
    }
}

#[test]
fn any_flipped_bit_of_a_record_header_crashes_no_writer() {
    let folder = TestFolder::new();
    let at = region_with_a_record(&folder.path);
    let copy = Copy::of(&folder.path);
    for bit in at * 8..(at + 44) * 8 {
        copy.restore();
        copy.flip(bit);
        live_with(&folder.path);
    }
}

/// The flags of a namespace that no writer handles would be a conflict of each transaction, without
/// an end: what a write says is that they are damaged.
#[test]
fn a_flipped_bit_of_the_flags_of_a_namespace_is_refused_as_damage_by_attached_sessions() {
    let folder = TestFolder::new();
    let region = Region::create(&folder.path, &small()).unwrap();
    let session = region.session().unwrap();
    let tag = TagSchema { name: "cell".to_owned(), is_unique: true, ..TagSchema::default() };
    let tagged = Schema { tags: vec![tag], ..Schema::default() };
    let tagged = session.namespace("tagged", &tagged).unwrap();
    let plain = session.namespace("plain", &Schema::default()).unwrap();
    let counters = Schema { kind: Kind::Counters, ..Schema::default() };
    let counters = session.namespace("counters", &counters).unwrap();
    let write = |number: u32| {
        let key = number.to_le_bytes();
        let tags: &[(&str, &[u8])] = &[("cell", &key)];
        let metadata = Metadata { tags, ..Metadata::default() };
        [
            session.put(plain, &key, b"v").map(drop),
            session.transact(|txn| txn.put(plain, &key, b"w")),
            session.transact(|txn| txn.put_with_metadata(tagged, &key, b"v", metadata)),
            session.add(counters, &key, 1).map(drop),
        ]
    };
    assert!(write(0).iter().all(Result::is_ok));
    let file = Copy::of(&folder.path);
    let (mut names, mut number) = (Vec::new(), 0);
    for entry in 0..8 {
        let at = CATALOG + 1024 * entry;
        let mut name = [0; 16];
        file.file.read_exact_at(&mut name, at + 200).unwrap();
        let answers_of: &[usize] = match &name {
            _ if name.starts_with(b"\x01index") => &[2],
            _ if name.starts_with(b"tagged") => &[2],
            _ if name.starts_with(b"plain") => &[0, 1],
            _ if name.starts_with(b"counters") => &[3],
            _ => continue,
        };
        names.push(name);
        for bit in (at + 16) * 8..(at + 24) * 8 {
            number += 1;
            file.flip(bit);
            for (which, answer) in write(number).iter().enumerate() {
                let is_damaged = matches!(answer, Err(Error::Damaged { .. }));
                assert_eq!(is_damaged, answers_of.contains(&which), "{bit:#x}: {which} {answer:?}");
            }
            file.flip(bit);
        }
    }
    assert_eq!(names.len(), 4);
    assert!(write(0).iter().all(Result::is_ok), "nothing is left of the damage");
    drop((session, region));
    clean(&folder.path);
}

/// A xorshift generator: the same flips in every run.
struct Rng(u64);

impl Rng {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// A region with something of everything: namespaces of both kinds, overflow lines, free cells in
/// queues and pools, a large value, and a member that died in the middle of its work.
fn region_with_everything(path: &Path) {
    let region = Region::create(path, &small()).unwrap();
    let (session, ns) = open(&region);
    let blocks =
        session.namespace("blocks", &Schema { kind: Kind::Blocks, ..Schema::default() }).unwrap();
    for number in 0..60_u32 {
        session.put(ns, &number.to_le_bytes(), &[1; 200]).unwrap();
    }
    session.put(ns, KEY, &[2; 1024]).unwrap();
    session.put(ns, b"large", &vec![2; 100_000]).unwrap();
    let counters =
        session.namespace("count", &Schema { kind: Kind::Counters, ..Schema::default() }).unwrap();
    for number in 0..6_u32 {
        session.add(counters, &number.to_le_bytes(), -5).unwrap();
    }
    drop(session.watch(ns, Filter::Namespace).unwrap());
    for _ in 0..30 {
        follow(path);
    }
    let (other, _) = open(&region);
    write_all(&other, ns, blocks);
    drop(other);
    // As if its process had died: the slot is not given back.
    write_all(&session, ns, blocks);
    std::mem::forget(session);
}

/// Where the flips go: an offset, how many bytes, and a weight.
fn parts(path: &Path) -> Vec<(u64, u64, u64)> {
    let inspected = Region::attach(path).unwrap().inspect().unwrap();
    let heap = inspected.bytes_taken;
    let (tables, chunks) = (HEAP + inspected.bytes_max, inspected.bytes_max / CHUNK_BYTES);
    let catalog = fs::read(path).unwrap();
    let ring = catalog[usize::try_from(CATALOG).unwrap() + 24..].first_chunk().unwrap();
    vec![
        (RESERVED, 0x1000, 1),
        (tables, 8 * heap.div_ceil(CHUNK_BYTES), 2),
        (tables + (8 * chunks).next_multiple_of(4096), heap.div_ceil(512), 3),
        (MEMBERS, 3 * 128, 1),
        (CATALOG, 3 * 1024, 3),
        (u64::from_le_bytes(*ring), 1024, 3),
        (ARENAS, 2 * 4096, 4),
        (HEAP, heap.min(64 << 10), 6),
        (HEAP, heap, 1),
        (0, SUPERBLOCK, 1),
    ]
}

const ROUNDS: u64 = 3000;

#[test]
fn thousands_of_flips_anywhere_end_without_a_crash_a_hang_or_a_panic() {
    let folder = TestFolder::new();
    let made = folder.dir().join("made");
    region_with_everything(&made);
    fs::copy(&made, &folder.path).unwrap();
    let parts = parts(&folder.path);
    let copy = Copy::of(&folder.path);
    let mut rng = Rng(0x2545_f491_4f6c_dd1d);
    let weights: u64 = parts.iter().map(|part| part.2).sum();
    for round in 0..ROUNDS {
        copy.restore();
        for _ in 0..=round % 3 {
            let mut left = rng.below(weights);
            let (from, bytes, _) = *parts
                .iter()
                .find(|part| {
                    left < part.2 || {
                        left -= part.2;
                        false
                    }
                })
                .unwrap();
            copy.flip(from * 8 + rng.below(bytes * 8));
        }
        live_with(&folder.path);
    }
}

/// Words that a pointer to a cell may be replaced by: circles, edges, nonsense.
fn wild(rng: &mut Rng) -> u64 {
    match rng.below(7) {
        0 => 0,
        1 => u64::MAX - rng.below(64),
        2 => HEAP + 64 * rng.below(4096),
        3 => rng.below(0x9000),
        4 => ARENAS + 8 * rng.below(1024),
        5 => rng.below(u64::MAX),
        _ => HEAP + (64 << 20) - 64 * rng.below(3),
    }
}

#[test]
fn thousands_of_wild_words_anywhere_end_without_a_crash_a_hang_or_a_panic() {
    let folder = TestFolder::new();
    let made = folder.dir().join("made");
    region_with_everything(&made);
    fs::copy(&made, &folder.path).unwrap();
    let parts = parts(&folder.path);
    let copy = Copy::of(&folder.path);
    let mut rng = Rng(0x9e37_79b9_7f4a_7c15);
    for round in 0..ROUNDS {
        copy.restore();
        for _ in 0..=round % 3 {
            // Not the superblock's own words: the checksum would end it all.
            let (from, bytes, _) = parts[usize::try_from(rng.below(7)).unwrap()];
            let at = from + 8 * rng.below(bytes / 8);
            let word = wild(&mut rng);
            copy.file.write_all_at(&word.to_le_bytes(), at).unwrap();
        }
        live_with(&folder.path);
    }
}
