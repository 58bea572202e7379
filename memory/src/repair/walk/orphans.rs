//! Records to which no word of the index leads any more: their entries were lost, and they are
//! inserted again.
//!
//! The word *retired* of a cell that is not in use says so, and its units come free in the bitmap.
//! A complete record that both call in use, and that has no entry, was published and never removed,
//! if every killed member was recovered. The number of its namespace and the hash of its key, whose
//! seed is random unless the creator chose it, are under its checksum.

use std::collections::{HashMap, HashSet};

use nearstate_model::invariant;
use nearstate_model::invariant::guaranteed;
use nearstate_model::limits::KEY_BYTES_MAX;

use super::{BIRTH, DamagedWord, HAS_BIT, LINE_HEAD, Walk};
use crate::atomic::Ordering;
use crate::check::RecordCheck;
use crate::heap::bitmap::BITMAP_WORDS;
use crate::heap::cell::{
    self, Cell, CellKind, LINE_FIRST, LINE_WORDS, WORD_HEAD, WORD_NEXT, WORD_RETIRED,
};
use crate::heap::chunk::{ChunkIndex, chunks_with_tables};
use crate::index::bucket::{WORDS, at_of, entry, hash_tag, is_link, link};
use crate::index::lookup::{CHAIN_MAX, hash_of};
use crate::layout::{Corruption, LINE};
use crate::member::pin::NEVER_READ;
use crate::namespace::NamespaceEntry;
use crate::region::index_table::IndexTable;
use crate::region::linear_hash::bucket_of;
use crate::repair::set;

/// A word of the index that was set to 0 because it led to nothing.
pub(super) struct LostWord {
    pub(super) namespace: u32,
    pub(super) bucket: u64,
    /// The key of its record, if that can be trusted.
    pub(super) key: Option<Vec<u8>>,
    /// What it led to, if the key is not known.
    pub(super) what: &'static str,
}

/// A record that waits for its entry.
struct Orphan {
    at: u64,
    word: u64,
    namespace: u32,
    bucket: u64,
    key: Vec<u8>,
}

/// What was inserted again.
#[derive(Default)]
struct Restored {
    keys: HashSet<(u32, Vec<u8>)>,
    /// The records of each bucket that no lost word named.
    unnamed: HashMap<(u32, u64), u64>,
}

impl Walk<'_, '_> {
    /// Inserts the records again that nothing leads to, unless cells of a killed member may be
    /// among them, and reports what is lost after that.
    pub(super) fn restore_orphans(
        &mut self,
        namespaces: &[NamespaceEntry],
        validate: RecordCheck<'_>,
        is_recovered: bool,
    ) -> Result<(), Corruption> {
        // All of them are marked first: an overflow line takes a unit that nothing uses.
        let mut orphans = Vec::new();
        for at in self.orphan_cells()? {
            let kept =
                if is_recovered { self.keep_orphan(at, namespaces, validate)? } else { None };
            match kept {
                Some(orphan) => orphans.push(orphan),
                // It becomes free, and no later repair takes it for a record in use.
                None => drop(set(self.map, at + WORD_RETIRED, NEVER_READ)?),
            }
        }
        let mut restored = Restored::default();
        let named: HashSet<(u32, Vec<u8>)> =
            self.lost.iter().filter_map(|lost| Some((lost.namespace, lost.key.clone()?))).collect();
        for orphan in orphans {
            let Orphan { at, word, namespace, bucket, key } = orphan;
            let table = IndexTable::new(self.map, namespace)?;
            let name = name_of(namespaces, namespace);
            let place = format!("namespace {name:?}, bucket {bucket}");
            if !self.insert(word, table.bucket_at(self.map, bucket)?)? {
                self.unreach(at)?;
                let key = String::from_utf8_lossy(&key);
                self.report.add_lost(format!(
                    "{place}: record {key:?}: the region has no free memory for its entry"
                ));
                continue;
            }
            self.report.add_repaired(format!("{place}: the entry of a record that was not found"));
            if !named.contains(&(namespace, key.clone())) {
                *restored.unnamed.entry((namespace, bucket)).or_default() += 1;
            }
            restored.keys.insert((namespace, key));
        }
        self.report_lost(namespaces, restored);
        Ok(())
    }

    /// The cells that look like records in use and were not reached, the latest versions first.
    /// What looks like a record inside a complete record is a part of its value.
    fn orphan_cells(&self) -> Result<Vec<u64>, Corruption> {
        let (mut found, mut end) = (Vec::new(), 0);
        for chunk in chunks_with_tables(self.map)? {
            if !self.map.is_allocated(chunk.start()) {
                continue;
            }
            let bits = u64::from(u64::BITS);
            for (word, first) in chunk.bitmap(self.map)?.iter().zip((0..).step_by(bits as usize)) {
                let allocated = word.load(Ordering::Acquire);
                for unit in (0..bits).filter(|bit| allocated >> bit & 1 == 1) {
                    let at = chunk.start() + LINE * (first + unit);
                    if at >= end
                        && self.is_unreached(at, LINE)
                        && let Ok(Some(version)) = self.record_in_use(at)
                    {
                        end = at + cell::bytes_at(self.map, at)?;
                        found.push((version, at));
                    }
                }
            }
        }
        found.sort_unstable_by(|one, other| other.cmp(one));
        Ok(found.into_iter().map(|(_, at)| at).collect())
    }

    /// The version of the record in use that begins at an offset.
    fn record_in_use(&self, at: u64) -> Result<Option<u64>, Corruption> {
        if !self.is_in_use(at)? {
            return Ok(None);
        }
        let record = Cell::new(self.map, at)?;
        if record.kind()? != CellKind::Record || record.key()?.len() > KEY_BYTES_MAX {
            return Ok(None);
        }
        // The hash first: bytes of a value that look like a header need not be read as a record.
        let is_record =
            hash_of(self.map, record.key()?)? as u32 == record.hash_low() && record.is_whole()?;
        Ok(is_record.then(|| record.version()))
    }

    /// Marks a record that no word leads to as reached, if it belongs to a namespace that has no
    /// record of its key.
    fn keep_orphan(
        &mut self,
        at: u64,
        namespaces: &[NamespaceEntry],
        validate: RecordCheck<'_>,
    ) -> Result<Option<Orphan>, Corruption> {
        let record = Cell::new(self.map, at)?;
        let namespace = record.namespace()?;
        if namespaces.iter().all(|entry| entry.entry() != namespace) {
            return Ok(None);
        }
        let key = record.key()?.to_vec();
        let hash = hash_of(self.map, &key)?;
        let table = IndexTable::new(self.map, namespace)?;
        let bucket = bucket_of(hash, table.buckets());
        let searched = DamagedWord { slot: 0, is_last: false, namespace, bucket };
        let Some(mut place) = self.place_of(namespaces, &searched)? else { return Ok(None) };
        place
            .keys
            .extend(self.orphan_keys.get(&(namespace, bucket)).into_iter().flatten().cloned());
        let word = entry(hash_tag(hash), at);
        if !self.is_certain_entry(word, &place, validate).unwrap_or(false) {
            return Ok(None);
        }
        self.keep(word, &mut place)?;
        self.allocate(at, cell::bytes_at(self.map, at)?)?;
        for index in 0..record.children() {
            let child = record.child(index)?;
            self.allocate(child, cell::bytes_at(self.map, child)?)?;
        }
        self.orphan_keys.entry((namespace, bucket)).or_default().push(key.clone());
        Ok(Some(Orphan { at, word, namespace, bucket, key }))
    }

    /// Stores an entry in an empty word of a bucket, or in a new overflow line. False if no unit is
    /// free for one.
    fn insert(&mut self, word: u64, bucket_at: u64) -> Result<bool, Corruption> {
        invariant!(word != 0, "an empty word is no entry");
        let (mut at, mut words, mut last) = (bucket_at + 8, WORDS as u64 - 1, 0);
        for _ in 0..CHAIN_MAX {
            let mut next = 0;
            for index in 0..words {
                last = at + 8 * index;
                let seen = self.load(last)?;
                if seen == 0 {
                    set(self.map, last, word)?;
                    return Ok(true);
                }
                if index == words - 1 && is_link(seen) {
                    next = at_of(seen);
                }
            }
            if next == 0 {
                return self.append_line(word, last);
            }
            (at, words) = (next + LINE_FIRST, LINE_WORDS);
        }
        Err(Corruption("a bucket's chain has no end"))
    }

    /// Replaces the last word of a chain by a link to a new line with that word and another one.
    fn append_line(&mut self, word: u64, last: u64) -> Result<bool, Corruption> {
        let Some(line) = self.free_unit() else { return Ok(false) };
        invariant!(self.is_unreached(line, LINE), "an overflow line takes the unit of a cell");
        let displaced = self.load(last)?;
        set(self.map, line + WORD_HEAD, LINE_HEAD)?;
        set(self.map, line + WORD_NEXT, 0)?;
        set(self.map, line + WORD_RETIRED, BIRTH)?;
        for index in 0..LINE_WORDS {
            // The other words of the new line are empty.
            let value = [displaced, word].get(index as usize).copied().unwrap_or(0);
            set(self.map, line + LINE_FIRST + 8 * index, value)?;
        }
        self.reach(line, LINE);
        // A session that opens after a kill of this process does not allocate it.
        self.allocate(line, LINE)?;
        set(self.map, last, link(line))?;
        Ok(true)
    }

    /// Sets the bits of some units.
    fn allocate(&self, at: u64, bytes: u64) -> Result<(), Corruption> {
        for at in (at..at + bytes).step_by(LINE as usize) {
            let chunk = ChunkIndex::of(self.map, at)?;
            let unit = (at - chunk.start()) / LINE;
            let word = chunk.bitmap(self.map)?.get((unit / u64::from(u64::BITS)) as usize);
            let word = word.ok_or(Corruption("a unit lies outside its chunk"))?;
            word.fetch_or(1 << (unit % u64::from(u64::BITS)), Ordering::AcqRel);
        }
        Ok(())
    }

    /// A unit that nothing uses, in a chunk that has pages.
    fn free_unit(&self) -> Option<u64> {
        let chunks = chunks_with_tables(self.map).ok()?;
        chunks.filter(|chunk| self.map.is_allocated(chunk.start())).find_map(|chunk| {
            let first = self.unit_of(chunk.start())? / u64::from(u64::BITS);
            let words = self.reached.get(first as usize..first as usize + BITMAP_WORDS)?;
            let word = words.iter().position(|word| *word != u64::MAX)?;
            let bit = words.get(word)?.trailing_ones();
            Some(chunk.start() + LINE * (u64::from(u64::BITS) * word as u64 + u64::from(bit)))
        })
    }

    /// Undoes the marks of a record for which there is no entry: its memory becomes free.
    fn unreach(&mut self, at: u64) -> Result<(), Corruption> {
        set(self.map, at + WORD_RETIRED, NEVER_READ)?;
        let record = Cell::new(self.map, at)?;
        let mut cells = vec![at];
        for index in 0..record.children() {
            cells.push(record.child(index)?);
        }
        for cell in cells {
            for at in (cell..cell + cell::bytes_at(self.map, cell)?).step_by(LINE as usize) {
                let Some(unit) = self.unit_of(at) else { continue };
                let (word, bit) = (unit / u64::from(u64::BITS), unit % u64::from(u64::BITS));
                *guaranteed(self.reached.get_mut(word as usize), HAS_BIT) &= !(1 << bit);
            }
        }
        Ok(())
    }

    fn report_lost(&mut self, namespaces: &[NamespaceEntry], mut restored: Restored) {
        for lost in std::mem::take(&mut self.lost) {
            let LostWord { namespace, bucket, key, what } = lost;
            let what = match key {
                Some(key) if restored.keys.contains(&(namespace, key.clone())) => continue,
                Some(key) => format!("record {:?}", String::from_utf8_lossy(&key)),
                None => {
                    // Each record of the bucket that came back stands for one word.
                    let unnamed = restored.unnamed.entry((namespace, bucket)).or_default();
                    if *unnamed != 0 {
                        *unnamed -= 1;
                        continue;
                    }
                    what.to_owned()
                }
            };
            let name = name_of(namespaces, namespace);
            self.report.add_lost(format!("namespace {name:?}, bucket {bucket}: {what}"));
        }
    }
}

fn name_of(namespaces: &[NamespaceEntry], namespace: u32) -> String {
    let entry = namespaces.iter().find(|entry| entry.entry() == namespace);
    entry.map(|entry| String::from_utf8_lossy(&entry.name).into_owned()).unwrap_or_default()
}
