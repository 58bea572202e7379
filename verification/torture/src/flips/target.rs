//! Chooses the bit to flip, and tells which records it concerns.

use std::collections::BTreeSet;

use nearstate_memory::hash;

use super::frozen::{ARENAS, CATALOG, FrozenBucket, FrozenRegion, MEMBERS, hash_low};
use super::worker::{SPACES, namespace_name, possible_keys};
use crate::rng::{Rng, percent};

/// Words of the superblock that are in use.
const SUPERBLOCK: [u64; 21] = [
    0, 8, 16, 24, 32, 40, 48, 56, 64, 72, 120, 0x200, 0x200, 0x240, 0x240, 0x2c0, 0x300, 0x308,
    0x310, 0x340, 0x380,
];

/// The parts of a region that are flipped, with their weights.
const AREAS: [(&str, u32); 13] = [
    ("superblock", 3),
    ("member slots", 3),
    ("catalog", 4),
    ("undo records", 4),
    ("bump ranges", 3),
    ("queues", 4),
    ("chunk words", 4),
    ("bitmaps", 4),
    ("index", 8),
    ("records", 6),
    ("blocks and counters", 3),
    ("free cells", 4),
    ("any unit", 2),
];

/// The names of the parts.
pub(crate) fn area_names() -> impl Iterator<Item = &'static str> {
    AREAS.iter().map(|(name, _)| *name)
}

/// A bit to flip.
#[derive(Debug)]
pub(crate) struct FlipTarget {
    pub(crate) area: &'static str,
    pub(crate) at: u64,
    pub(crate) bit: u32,
    /// What the word is, for messages.
    pub(crate) place: String,
    /// The keys of records that may be lost or changed, each with the number of its space.
    pub(crate) concerned: BTreeSet<(usize, Vec<u8>)>,
}

/// Everything that a choice needs.
struct Chooser<'c> {
    region: &'c FrozenRegion,
    rng: &'c mut Rng,
    names: Vec<Vec<u8>>,
    buckets: Vec<FrozenBucket>,
}

/// Chooses a bit of a region whose processes are stopped.
pub(crate) fn choose(region: &FrozenRegion, rng: &mut Rng) -> FlipTarget {
    let namespaces = region.namespaces();
    let buckets = region.buckets(&namespaces);
    let names = namespaces.iter().map(|entry| entry.name.clone()).collect();
    let mut draw = rng.u32(..AREAS.iter().map(|(_, weight)| *weight).sum::<u32>());
    let mut area = "superblock";
    for (name, weight) in AREAS {
        if draw < weight {
            area = name;
            break;
        }
        draw -= weight;
    }
    let bit = rng.u32(..64);
    let mut chooser = Chooser { region, rng, names, buckets };
    let (at, place, bucket) = chooser.word(area);
    let in_bucket = || chooser.buckets.iter().find(|bucket| bucket.words.contains(&at));
    let bucket = bucket.or_else(|| in_bucket().map(|found| (found.namespace, found.number)));
    let mut concerned = chooser.keys_of_unreached(at);
    for (namespace, record) in chooser.records_at(area, at) {
        concerned.extend(chooser.space_of(namespace).map(|space| (space, region.key(record))));
    }
    if let Some((namespace, number)) = bucket
        && let Some(space) = chooser.space_of(namespace)
        && let Some(entry) = namespaces.get(namespace)
    {
        for key in possible_keys(space) {
            if entry.bucket_of(hash(region.seed(), &key)) == number {
                concerned.insert((space, key));
            }
        }
    }
    FlipTarget { area, at, bit, place, concerned }
}

/// Offset and name of a word, and the bucket (with its namespace) that it belongs to.
type WordChoice = (u64, String, Option<(usize, u64)>);

impl Chooser<'_> {
    fn space_of(&self, namespace: usize) -> Option<usize> {
        let name = self.names.get(namespace)?;
        (0..SPACES).find(|space| namespace_name(*space).as_bytes() == name)
    }

    /// The records, each with its namespace, in one of whose cells a word lies, or which the
    /// operation of its undo record changes.
    fn records_at(&self, area: &str, at: u64) -> Vec<(usize, u64)> {
        let mut all = Vec::new();
        for bucket in &self.buckets {
            for record in &bucket.records {
                let is_in = |cell: &u64| (*cell..self.region.end_of(*cell)).contains(&at);
                if self.region.cells(*record).iter().any(is_in) {
                    all.push((bucket.namespace, *record));
                }
            }
        }
        // An undo record decides about what its operation changes.
        if area == "undo records" {
            let member = at.saturating_sub(ARENAS) / 4096;
            let changed = self.region.changed_by(member).into_iter();
            all.extend(changed.map(|record| (self.region.namespace_of(record), record)));
        }
        all
    }

    /// The keys of a cell that contains a word, if it is one that a member fills now, or one that a
    /// reader may still hold: the flip changes what that member publishes, or what the reader sees.
    fn keys_of_unreached(&self, at: u64) -> BTreeSet<(usize, Vec<u8>)> {
        let mut hashes = BTreeSet::new();
        for member in 0..self.region.member_slots() {
            hashes.extend(self.region.filled_at(member, at));
            if self.region.has_pins() {
                hashes.extend(self.region.retired_at(member, at));
            }
        }
        let keys = (0..SPACES).flat_map(|space| possible_keys(space).map(move |key| (space, key)));
        keys.filter(|(_, key)| hashes.contains(&hash_low(hash(self.region.seed(), key)))).collect()
    }

    fn word(&mut self, area: &str) -> WordChoice {
        let word = 8 * self.rng.u64(..6);
        match area {
            "member slots" => {
                let (slot, word) = (self.slot(), 8 * self.rng.u64(..16));
                let at = MEMBERS + 128 * slot + word;
                (at, format!("slot {slot} at {word}"), None)
            }
            "catalog" => self.catalog(),
            "undo records" => self.arena(&[0..128, 144..160, 200..232, 3328..3336, 3392..3400]),
            "bump ranges" => self.arena(&[128..144, 160..176]),
            "queues" => self.arena(&[256..3328, 256..3328, 3456..3480]),
            "chunk words" => {
                let chunk = self.chunk();
                let at = self.region.chunk_words() + 8 * chunk;
                (at, format!("chunk {chunk}"), None)
            }
            "bitmaps" => {
                let (chunk, word) = (self.chunk(), self.rng.u64(..64));
                let at = self.region.bitmaps() + 512 * chunk + 8 * word;
                (at, format!("chunk {chunk}, units {} on", 64 * word), None)
            }
            "index" => self.index(),
            "records" | "blocks and counters" => self.record(area == "records"),
            "free cells" => {
                let slot = self.slot();
                let cells: Vec<u64> = self.region.free_cells(slot).into_iter().collect();
                match self.rng.choice(cells) {
                    Some(cell) => header(cell, "free cell", word),
                    None => self.arena(&[128..136, 136..144]),
                }
            }
            "any unit" => {
                let unit = self.rng.u64(..self.region.chunks_used().max(1) * 4096);
                header(super::frozen::HEAP + 64 * unit, "unit", word)
            }
            _ => {
                let index = self.rng.usize(..SUPERBLOCK.len());
                let at = SUPERBLOCK.get(index).copied().unwrap_or(0);
                (at, format!("superblock at {at:#x}"), None)
            }
        }
    }

    fn slot(&mut self) -> u64 {
        self.rng.u64(..self.region.member_slots().max(1))
    }

    fn chunk(&mut self) -> u64 {
        self.rng.u64(..self.region.chunks_used().max(1))
    }

    /// A word of a catalog entry in use, three times out of four one that is not 0.
    fn catalog(&mut self) -> WordChoice {
        let entry = self.rng.u64(..self.names.len().max(1) as u64);
        let start = CATALOG + 1024 * entry;
        let words: Vec<u64> = (start..start + 1024).step_by(8).collect();
        let at = self.used_word(words);
        (at, format!("entry {entry} at {}", at - start), None)
    }

    /// A word in one of these parts of an arena.
    fn arena(&mut self, parts: &[std::ops::Range<u64>]) -> WordChoice {
        let start = ARENAS + 4096 * self.slot();
        let words = parts.iter().flat_map(|part| part.clone().step_by(8).map(|at| start + at));
        let words = words.collect();
        let at = self.used_word(words);
        (at, format!("arena at {}", at - start), None)
    }

    fn used_word(&mut self, words: Vec<u64>) -> u64 {
        let used: Vec<u64> =
            words.iter().copied().filter(|at| self.region.word(*at) != 0).collect();
        let among = if used.is_empty() || percent(self.rng, 25) { words } else { used };
        self.rng.choice(among).unwrap_or(0)
    }

    fn index(&mut self) -> WordChoice {
        let at = self.rng.usize(..self.buckets.len().max(1));
        let Some(bucket) = self.buckets.get(at) else { return (0, String::new(), None) };
        let (namespace, number) = (bucket.namespace, bucket.number);
        let words = bucket.words.clone();
        let first = words.first().copied().unwrap_or(0);
        let at = self.used_word(words);
        let what = if at == first { "control word" } else { "entry or link" };
        let place = format!("namespace {namespace}, bucket {number}, {what}");
        (at, place, Some((namespace, number)))
    }

    /// A word of the header of a record, or of one of its other cells.
    fn record(&mut self, itself: bool) -> WordChoice {
        let mut cells = Vec::new();
        for record in self.buckets.iter().flat_map(|bucket| &bucket.records) {
            let of_record = self.region.cells(*record).into_iter().enumerate();
            cells.extend(of_record.filter(|(index, _)| (*index == 0) == itself));
        }
        let word = 8 * self.rng.u64(..6);
        match self.rng.choice(cells) {
            Some((_, cell)) => header(cell, "cell", word),
            None => self.index(),
        }
    }
}

/// A word of the header of a cell.
fn header(cell: u64, what: &str, word: u64) -> WordChoice {
    (cell + word, format!("{what} {cell:#x} at {word}"), None)
}
