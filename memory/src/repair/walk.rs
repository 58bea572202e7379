//! Repairs the index and the free memory: walks from the catalog to every cell, corrects what leads
//! to the cells, finds records to which nothing leads, and makes free what was not reached.

mod orphans;

use std::collections::HashMap;

use nearstate_model::invariant::guaranteed;
use nearstate_model::{Result, invariant};

use self::orphans::LostWord;

use super::unaccounted::unaccounted_units;
use super::{BeforeRepair, RepairReport, correct, metadata, set};
use crate::atomic::Ordering;
use crate::check::RecordCheck;
use crate::crash::crash_point;
use crate::heap::bitmap::{BITMAP_WORDS, Bitmap};
use crate::heap::cell::{
    self, Cell, CellKind, LINE_FIRST, LINE_WORDS, WORD_HEAD, WORD_NEXT, WORD_RETIRED, WORD_VERSION,
};
use crate::heap::chunk::{ChunkIndex, ChunkState, chunks_used, chunks_with_tables};
use crate::heap::held::is_position;
use crate::index::bucket::{WORDS, at_of, control, entry, hash_tag, is_link, link, stamp_of};
use crate::index::lookup::{CHAIN_MAX, hash_of, walk_chain};
use crate::layout::{
    CATALOG_RING, CHUNK_UNITS, CLASS_EXTENT, Corruption, HEAP, LINE, SEGMENTS, SUPER_EPOCH,
    catalog_at, ordinary_chunks, unseal,
};
use crate::member::lock::PAYLOAD;
use crate::member::pin;
use crate::namespace::{self, NamespaceEntry};
use crate::region::index_table::{IndexTable, buckets_of, segment_of_word, segment_slot};
use crate::region::linear_hash::bucket_of;
use crate::region::map::Map;
use crate::ring;

/// The birth epoch of a cell whose own is damaged: the first epoch of a region.
const BIRTH: u64 = 2;

const HAS_BIT: &str = "each unit of the heap has a bit";

/// A head word of an overflow line.
const LINE_HEAD: u64 = cell::kind_in_head(CellKind::OverflowLine);

pub(super) fn repair(
    map: &Map,
    report: &mut RepairReport,
    validate: RecordCheck<'_>,
    before: &BeforeRepair,
) -> Result<()> {
    let epoch = map.word(SUPER_EPOCH)?.load(Ordering::Acquire);
    let chunks = ordinary_chunks(map.chunks());
    let mut walk = Walk {
        map,
        report,
        epoch: unseal(epoch, "the epoch word has a flipped bit")?,
        chunks_used: chunks_used(map)?,
        reached: vec![0; (map.chunks() - chunks + chunks_used(map)?) as usize * BITMAP_WORDS],
        damaged: Vec::new(),
        lost: Vec::new(),
        orphan_keys: HashMap::new(),
    };
    let namespaces = namespace::list(map)?;
    for entry in &namespaces {
        walk.namespace(entry, validate)?;
    }
    walk.correct_damaged(&namespaces, validate)?;
    walk.restore_orphans(&namespaces, validate, before.is_recovered)?;
    walk.count_unaccounted(&before.kept)?;
    walk.free_the_rest()?;
    for entry in &namespaces {
        metadata::usage(map, entry.index, report)?;
    }
    Ok(())
}

struct Walk<'m, 'r> {
    map: &'m Map,
    report: &'r mut RepairReport,
    epoch: u64,
    chunks_used: u64,
    /// The bitmaps of the chunks that were used and of the reserve: what was reached.
    reached: Vec<u64>,
    damaged: Vec<DamagedWord>,
    lost: Vec<LostWord>,
    /// The keys of each bucket that were found without an entry.
    orphan_keys: HashMap<(u32, u64), Vec<Vec<u8>>>,
}

/// A word of a bucket or of an overflow line that leads to nothing.
struct DamagedWord {
    slot: u64,
    /// The word can be a link.
    is_last: bool,
    namespace: u32,
    bucket: u64,
}

/// A bucket of a namespace.
struct BucketPlace<'e> {
    entry: &'e NamespaceEntry,
    bucket: u64,
    /// Buckets of the namespace.
    count: u64,
    keys: Vec<Vec<u8>>,
}

impl Walk<'_, '_> {
    fn load(&self, at: u64) -> Result<u64, Corruption> {
        Ok(self.map.word(at)?.load(Ordering::Acquire))
    }

    /// The index of a unit in `reached`.
    fn unit_of(&self, at: u64) -> Option<u64> {
        let unit = at.checked_sub(HEAP)? / LINE;
        let (chunk, ordinary) = (unit / CHUNK_UNITS, ordinary_chunks(self.map.chunks()));
        let has_tables = chunk < self.chunks_used || chunk >= ordinary && chunk < self.map.chunks();
        let skipped = if chunk < ordinary { 0 } else { ordinary - self.chunks_used };
        has_tables.then(|| unit - skipped * CHUNK_UNITS)
    }

    /// True if a range is part of the heap, and nothing in it was reached before.
    fn is_unreached(&self, at: u64, bytes: u64) -> bool {
        at.is_multiple_of(LINE)
            && bytes != 0
            && bytes <= self.map.len()
            && (at..at.saturating_add(bytes)).step_by(LINE as usize).all(|at| {
                self.unit_of(at).is_some_and(|unit| {
                    let word = self.reached.get((unit / 64) as usize);
                    word.is_some_and(|word| word >> (unit % 64) & 1 == 0)
                })
            })
    }

    fn reach(&mut self, at: u64, bytes: u64) {
        for at in (at..at + bytes).step_by(LINE as usize) {
            // A cell ends behind the heap only if its size was damaged since it was found.
            let Some(unit) = self.unit_of(at) else { continue };
            *guaranteed(self.reached.get_mut((unit / 64) as usize), HAS_BIT) |= 1 << (unit % 64);
        }
    }

    fn namespace(&mut self, found: &NamespaceEntry, validate: RecordCheck<'_>) -> Result<()> {
        let name = String::from_utf8_lossy(&found.name).into_owned();
        self.segments(found.index, &name)?;
        let ring = catalog_at(found.index) + CATALOG_RING;
        self.ring(ring, &format!("the events of namespace {name:?}"))?;
        let table = IndexTable::new(self.map, found.index)?;
        for bucket in 0..table.buckets() {
            let at = table.bucket_at(self.map, bucket)?;
            let count = table.buckets();
            let mut place = BucketPlace { entry: found, bucket, count, keys: Vec::new() };
            self.bucket(at, &mut place, validate)?;
        }
        Ok(())
    }

    fn segments(&mut self, index: u32, name: &str) -> Result<(), Corruption> {
        for segment in 0..SEGMENTS {
            let word = self.load(segment_slot(index, segment))?;
            if word == 0 {
                continue;
            }
            let (at, units) = (segment_of_word(word)?, buckets_of(segment) + 1);
            if !self.is_unreached(at, units * LINE) {
                self.report.add_lost(format!("namespace {name:?}: segment {segment} of its index"));
                return Err(Corruption("a segment of an index lies in another cell"));
            }
            let head = u64::from(CLASS_EXTENT) | cell::kind_in_head(CellKind::Extent);
            if set(self.map, at + WORD_HEAD, head)? | set(self.map, at + WORD_VERSION, units)? {
                self.report.add_repaired(format!("namespace {name:?}: segment {segment}"));
            }
            self.reach(at, units * LINE);
        }
        Ok(())
    }

    /// A ring that cannot be read is removed: its readers start again.
    fn ring(&mut self, word: u64, what: &str) -> Result<(), Corruption> {
        let at = self.load(word)?;
        if at == 0 {
            return Ok(());
        }
        let found = correct_with(at, |at| self.is_sound_ring(at).unwrap_or(false))
            // Only itself: no other ring is as certain as one whose header says that it is in use.
            .or_else(|| self.is_whole_ring(at).unwrap_or(false).then_some(at));
        match found {
            Some(ring) => {
                set(self.map, ring::lock_at(ring), 0)?;
                self.revive(ring)?;
                self.reach(ring, cell::bytes_at(self.map, ring)?);
                if ring != at {
                    self.report.add_repaired(format!("the word of {what}"));
                }
            }
            // A flipped bit where there is no ring.
            None if at.is_power_of_two() => self.report.add_repaired(format!("the word of {what}")),
            None => self.report.add_lost(what.to_owned()),
        }
        set(self.map, word, found.unwrap_or(0))?;
        Ok(())
    }

    fn is_sound_ring(&self, at: u64) -> Result<bool, Corruption> {
        Ok(self.is_whole_ring(at)? && self.is_in_use(at)?)
    }

    fn is_whole_ring(&self, at: u64) -> Result<bool, Corruption> {
        let cell = Cell::new(self.map, at)?;
        Ok(cell.kind()? == CellKind::Ring
            && cell.is_whole()?
            && self.is_unreached(at, cell::bytes_at(self.map, at)?)
            && ring::validate(self.map, at).is_ok())
    }

    /// True if a cell's header says that it is in use: it has a birth epoch. That of an old version
    /// does not, and neither does that of a free cell, whose bytes may be whole otherwise.
    fn is_in_use(&self, at: u64) -> Result<bool, Corruption> {
        let birth = cell::word(self.map, at, WORD_RETIRED)?.load(Ordering::Acquire);
        Ok(!pin::is_retired(birth) && birth != 0 && birth <= self.epoch)
    }

    /// Repairs the birth epoch of a cell in use. True if it was damaged.
    fn revive(&self, at: u64) -> Result<bool, Corruption> {
        if self.is_in_use(at)? { Ok(false) } else { set(self.map, at + WORD_RETIRED, BIRTH) }
    }

    fn bucket(
        &mut self,
        at: u64,
        place: &mut BucketPlace<'_>,
        validate: RecordCheck<'_>,
    ) -> Result<(), Corruption> {
        invariant!(place.bucket < place.count, "bucket {} of {}", place.bucket, place.count);
        let level = place.count.ilog2();
        let is_split = place.bucket < place.count - (1 << level) || place.bucket >= 1 << level;
        let seen = self.load(at)?;
        let is_zero =
            self.map.words::<WORDS>(at)?.iter().all(|word| word.load(Ordering::Acquire) == 0);
        if set(self.map, at, control(level + u32::from(is_split), stamp_of(seen)))? {
            self.report.zeroed_count += u64::from(is_zero);
            self.repaired(place, if is_zero { "it was zeros" } else { "its control word" });
        }
        self.chain((at + 8, WORDS as u64 - 1), place, validate)
    }

    /// Follows a chain from some words on. Words that lead to nothing are collected.
    fn chain(
        &mut self,
        (mut at, mut words): (u64, u64),
        place: &mut BucketPlace<'_>,
        validate: RecordCheck<'_>,
    ) -> Result<(), Corruption> {
        for _ in 0..CHAIN_MAX {
            let mut next = 0;
            for index in 0..words {
                let (slot, is_last) = (at + 8 * index, index == words - 1);
                let seen = self.load(slot)?;
                if seen == 0 {
                    continue;
                }
                if is_last && self.is_sound_link(seen) {
                    next = at_of(seen);
                } else if self.is_certain_entry(seen, place, validate).unwrap_or(false) {
                    self.keep(seen, place)?;
                } else {
                    let (namespace, bucket) = (place.entry.entry(), place.bucket);
                    self.damaged.push(DamagedWord { slot, is_last, namespace, bucket });
                }
            }
            if next == 0 {
                return Ok(());
            }
            self.keep_line(next, place)?;
            (at, words) = (next + LINE_FIRST, LINE_WORDS);
        }
        Ok(())
    }

    fn keep_line(&mut self, at: u64, place: &BucketPlace<'_>) -> Result<(), Corruption> {
        self.reach(at, LINE);
        let is_changed = set(self.map, at + WORD_HEAD, LINE_HEAD)?;
        if is_changed | self.revive(at)? {
            self.repaired(place, "the header of an overflow line");
        }
        Ok(())
    }

    /// Corrects the words that lead to nothing. Only now it is known which cells belong to other
    /// words: links come first, because they lead to further cells.
    fn correct_damaged(
        &mut self,
        namespaces: &[NamespaceEntry],
        validate: RecordCheck<'_>,
    ) -> Result<(), Corruption> {
        let mut entries = Vec::new();
        while let Some(damaged) = self.damaged.pop() {
            let Some(mut place) = self.place_of(namespaces, &damaged)? else { continue };
            let seen = self.load(damaged.slot)?;
            let link = correct_with(seen, |word| damaged.is_last && self.is_sound_link(word));
            match link {
                Some(word) => {
                    set(self.map, damaged.slot, word)?;
                    self.repaired(&place, "a link");
                    self.keep_line(at_of(word), &place)?;
                    let words = (at_of(word) + LINE_FIRST, LINE_WORDS);
                    self.chain(words, &mut place, validate)?;
                }
                None => entries.push(damaged),
            }
        }
        for damaged in entries {
            let Some(mut place) = self.place_of(namespaces, &damaged)? else { continue };
            let seen = self.load(damaged.slot)?;
            let is_certain = |word| self.is_certain_entry(word, &place, validate).unwrap_or(false);
            // If no flipped bit leads to a record in use, the header of its own record is damaged.
            let found = correct_with(seen, is_certain).or_else(|| {
                let is_sound = self.is_sound_entry(seen, &place, validate).unwrap_or(false);
                is_sound.then_some(seen)
            });
            match found {
                Some(word) => {
                    self.keep(word, &mut place)?;
                    if word != seen {
                        self.repaired(&place, "an entry");
                    }
                }
                // A flipped bit in an empty word.
                None if seen.is_power_of_two() => self.repaired(&place, "an empty word"),
                None => self.lose(seen, &place),
            }
            set(self.map, damaged.slot, found.unwrap_or(0))?;
        }
        Ok(())
    }

    /// The bucket of a damaged word, with the keys of its sound entries.
    fn place_of<'e>(
        &self,
        namespaces: &'e [NamespaceEntry],
        damaged: &DamagedWord,
    ) -> Result<Option<BucketPlace<'e>>, Corruption> {
        let entry = namespaces.iter().find(|entry| entry.entry() == damaged.namespace);
        let Some(entry) = entry else { return Ok(None) };
        let table = IndexTable::new(self.map, entry.index)?;
        let (bucket, count) = (damaged.bucket, table.buckets());
        let mut keys = Vec::new();
        // A damaged link ends the walk: behind it nothing was reached.
        let _ = walk_chain(self.map, table.bucket_at(self.map, bucket)?, |at, word| {
            let record = Cell::new(self.map, at_of(word));
            if at != damaged.slot && word != 0 && !self.is_unreached(at_of(word), LINE) {
                keys.extend(record.and_then(|record| record.key()).ok().map(<[u8]>::to_vec));
            }
            Ok(true)
        });
        Ok(Some(BucketPlace { entry, bucket, count, keys }))
    }

    fn repaired(&mut self, place: &BucketPlace<'_>, what: &str) {
        let name = String::from_utf8_lossy(&place.entry.name);
        self.report.add_repaired(format!("namespace {name:?}, bucket {}: {what}", place.bucket));
    }

    /// True if a word is a link to an overflow line, whose head may have one flipped bit.
    fn is_sound_link(&self, word: u64) -> bool {
        let at = at_of(word);
        word == link(at)
            && self.is_unreached(at, LINE)
            && self.load(at).is_ok_and(|head| (head ^ LINE_HEAD).count_ones() <= 1)
    }

    /// As [`Walk::is_sound_entry`], and the headers of the record and of its cells say that they
    /// are in use. A record has no other version of which this is true.
    fn is_certain_entry(
        &self,
        word: u64,
        place: &BucketPlace<'_>,
        validate: RecordCheck<'_>,
    ) -> Result<bool, Corruption> {
        if !self.is_sound_entry(word, place, validate)? {
            return Ok(false);
        }
        let record = Cell::new(self.map, at_of(word))?;
        let mut is_certain = self.is_in_use(record.at())?;
        for index in 0..record.children() {
            is_certain = is_certain && self.is_in_use(record.child(index)?)?;
        }
        Ok(is_certain)
    }

    /// True if a word is the entry of a record that belongs here.
    fn is_sound_entry(
        &self,
        word: u64,
        place: &BucketPlace<'_>,
        validate: RecordCheck<'_>,
    ) -> Result<bool, Corruption> {
        let at = at_of(word);
        if !self.is_unreached(at, LINE) {
            return Ok(false);
        }
        let record = Cell::new(self.map, at)?;
        if record.kind()? != CellKind::Record || !record.is_whole()? {
            return Ok(false);
        }
        let key = record.key()?;
        let hash = hash_of(self.map, key)?;
        let mut is_sound = record.namespace()? == place.entry.entry()
            && word == entry(hash_tag(hash), at)
            && hash as u32 == record.hash_low()
            && bucket_of(hash, place.count) == place.bucket
            && self.is_unreached(at, cell::bytes_at(self.map, at)?)
            && !place.keys.iter().any(|known| known == key);
        for index in 0..record.children() {
            let child = Cell::new(self.map, record.child(index)?)?;
            is_sound = is_sound
                && matches!(child.kind()?, CellKind::Block | CellKind::Counter)
                && child.is_whole()?
                && self.is_unreached(child.at(), cell::bytes_at(self.map, child.at())?);
        }
        Ok(is_sound && validate(place.entry.kind, &record).is_ok())
    }

    /// Marks a record and its blocks as reached.
    fn keep(&mut self, word: u64, place: &mut BucketPlace<'_>) -> Result<(), Corruption> {
        let record = Cell::new(self.map, at_of(word))?;
        place.keys.push(record.key()?.to_vec());
        let next = cell::word(self.map, record.at(), WORD_NEXT)?.load(Ordering::Acquire);
        let (mut is_link_sound, mut is_changed) =
            (next == 0 || is_position(self.map, next)?, self.revive(record.at())?);
        self.reach(record.at(), cell::bytes_at(self.map, record.at())?);
        for index in 0..record.children() {
            let child = record.child(index)?;
            is_link_sound |= child == next;
            is_changed |= self.revive(child)?;
            self.reach(child, cell::bytes_at(self.map, child)?);
        }
        if !is_link_sound {
            is_changed |= set(self.map, record.at() + WORD_NEXT, 0)?;
        }
        if is_changed {
            self.repaired(place, "the header of a record");
        }
        Ok(())
    }

    /// Notes a word that led to a record, with its key if that can be trusted.
    fn lose(&mut self, word: u64, place: &BucketPlace<'_>) {
        self.report.zeroed_count += u64::from(self.load(at_of(word)) == Ok(0));
        let record = Cell::new(self.map, at_of(word));
        let key = record.and_then(|record| record.key()).ok().filter(|key| {
            hash_of(self.map, key).is_ok_and(|hash| {
                bucket_of(hash, place.count) == place.bucket
                    && word == entry(hash_tag(hash), at_of(word))
            })
        });
        if key.is_some_and(|key| place.keys.iter().any(|known| known == key)) {
            return;
        }
        self.lost.push(LostWord {
            namespace: place.entry.entry(),
            bucket: place.bucket,
            key: key.map(<[u8]>::to_vec),
            what: if is_link(word) {
                "the records of an overflow line"
            } else {
                "a record with an unknown key"
            },
        });
    }

    /// True if a unit is an overflow line in use.
    fn is_line(&self, at: u64) -> Result<bool, Corruption> {
        Ok(self.load(at)? == LINE_HEAD && self.is_in_use(at)?)
    }

    /// If a part of the region was zeros: names the memory that records may have had there.
    fn count_unaccounted(&mut self, kept: &[(u64, u64)]) -> Result<(), Corruption> {
        if self.report.zeroed_count == 0 {
            return Ok(());
        }
        let mut known = self.reached.clone();
        for at in kept.iter().flat_map(|(from, to)| (*from..*to).step_by(LINE as usize)) {
            let Some(unit) = self.unit_of(at) else { continue };
            *guaranteed(known.get_mut((unit / 64) as usize), HAS_BIT) |= 1 << (unit % 64);
        }
        let mut units = 0;
        for chunk in chunks_with_tables(self.map)? {
            let first = guaranteed(self.unit_of(chunk.start()), HAS_BIT) as usize / 64;
            let known = known.get_mut(first..).and_then(<[u64]>::first_chunk_mut);
            let known = guaranteed(known, HAS_BIT);
            let bitmap = Bitmap::load(chunk.bitmap(self.map)?);
            for unit in (0..CHUNK_UNITS as u32).filter(|unit| bitmap.is_set(*unit)) {
                // An overflow line whose bucket was lost: its records have other entries by now.
                let at = chunk.start() + LINE * u64::from(unit);
                if self.is_unreached(at, LINE) && self.is_line(at)? {
                    *guaranteed(known.get_mut((unit / 64) as usize), HAS_BIT) |= 1 << (unit % 64);
                }
            }
            let word = self.load(chunk.word_at(self.map))?;
            units += unaccounted_units(word, &bitmap, known);
        }
        invariant!(units <= CHUNK_UNITS * self.map.chunks(), "{units} units of a heap");
        self.report.unaccounted_bytes = LINE * units;
        if units != 0 {
            self.report.add_lost(format!(
                "{} bytes were allocated, and nothing tells for what: the memory of at most \
                 {units} records, those above included",
                LINE * units
            ));
        }
        Ok(())
    }

    /// Makes the bitmaps what was reached, and the words of the chunks what the bitmaps say.
    fn free_the_rest(&mut self) -> Result<(), Corruption> {
        for chunk in chunks_with_tables(self.map)? {
            let unit = guaranteed(self.unit_of(chunk.start()), "a chunk with a table has units");
            invariant!(unit.is_multiple_of(CHUNK_UNITS), "{chunk:?} begins at unit {unit}");
            let first = unit as usize / 64;
            let wanted = guaranteed(self.reached.get(first..first + BITMAP_WORDS), HAS_BIT);
            let words = chunk.bitmap(self.map)?;
            let mut had_all = true;
            for (word, wanted) in words.iter().zip(wanted) {
                had_all &= word.fetch_or(*wanted, Ordering::AcqRel) & wanted == *wanted;
            }
            for (word, wanted) in words.iter().zip(wanted) {
                word.store(*wanted, Ordering::Release);
                crash_point!("repair.stored");
            }
            let is_changed = self.chunk_word(chunk)?;
            if is_changed || !had_all {
                self.report.add_repaired(format!("chunk {}: its bitmap or its word", chunk.0));
            }
        }
        Ok(())
    }

    /// True if the word was damaged.
    fn chunk_word(&self, chunk: ChunkIndex) -> Result<bool, Corruption> {
        let at = chunk.word_at(self.map);
        let seen = self.load(at)?;
        let state = ChunkState::decode(seen & PAYLOAD);
        let is_sound = state.encode() == seen;
        // Without the bit the pages are committed again, which changes no byte.
        let bitmap = Bitmap::load(chunk.bitmap(self.map)?);
        set(self.map, at, ChunkState::of(&bitmap, is_sound && state.has_pages).encode())?;
        Ok(!is_sound)
    }
}

/// As [`correct`], for a check that is expensive: most words fit as they are.
fn correct_with(word: u64, mut fits: impl FnMut(u64) -> bool) -> Option<u64> {
    if fits(word) {
        return Some(word);
    }
    let candidates: Vec<u64> =
        (0..u64::BITS).map(|bit| word ^ 1 << bit).filter(|w| fits(*w)).collect();
    correct(word, |candidate| candidates.contains(&candidate))
}
