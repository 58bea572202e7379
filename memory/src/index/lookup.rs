//! Lookups: the path of every reader. No lock, no system call, no store to a shared line. A cell is
//! used only if the pin protects it: the epoch is compared after its entry was loaded
//! (`spec/region.md`, "Index of a namespace"; orderings O1 to O4).

use nearstate_model::Result;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::atomic::{AtomicU64, Ordering};
use crate::heap::cell::{Cell, LINE_FIRST, LINE_WORDS};
use crate::index::bucket::{
    DEPTH_SHIFT, LAST, WORDS, at_of, begin, begin_whole, depth_of, entry, entry_tag, hash_tag,
    is_intent, is_link, is_units, is_unmoved, load,
};
use crate::index::chain::{CHAIN, check_line};
pub(crate) use crate::index::chain::{
    CHAIN_MAX, ZERO_LINE, link_slot, walk_chain, walk_chain_with,
};
use crate::index::intent::resolve;
use crate::index::key_equality::is_equal;
use crate::layout::{Corruption, LINE, SUPER_SEED};
use crate::member::lock::PAYLOAD;
use crate::member::{Member, pin};
use crate::region::index_table::IndexTable;
use crate::region::linear_hash::{is_at_depth, step};
use crate::region::map::Map;

/// The hash of a key in a region with this seed. Part of the format.
#[inline]
pub fn hash(seed: u64, key: &[u8]) -> u64 {
    xxh3_64_with_seed(key, seed)
}

/// The hash of a key in this region.
pub(crate) fn hash_of(map: &Map, key: &[u8]) -> Result<u64, Corruption> {
    Ok(hash(map.word(SUPER_SEED)?.load(Ordering::Relaxed), key))
}

const _: () = assert!(WORDS == LAST + 1 && READ_LINES <= WHOLE_LINES);

/// Each bucket in use has a depth, each cell a kind. A part of the file that was overwritten with
/// zeros, or was lost, has neither.
pub(crate) const ZERO_BUCKET: Corruption =
    Corruption("a bucket of an index is zeros: records to which it led are not found");
const ZERO_CELL: Corruption = Corruption("a record is zeros");
const OTHER_KEY: Corruption = Corruption("a record's key is not the one that was published");

/// Finds the bucket of a hash, starting from a bucket count that may be out of date. Returns the
/// bucket, the offset of its line and the control word that was read.
#[inline]
pub(crate) fn find_bucket(
    map: &Map,
    table: &IndexTable,
    hash: u64,
) -> Result<(u64, u64, u64), Corruption> {
    let mut bucket = table.bucket_of(hash);
    loop {
        let at = table.bucket_at(map, bucket)?;
        let control = begin(map.word(at)?);
        match step(hash, bucket, depth_of(control)) {
            None => return Ok((bucket, at, control)),
            Some(_) if depth_of(control) == 0 => return Err(ZERO_BUCKET),
            Some(next) if next > bucket => {
                table.refresh(map)?;
                bucket = next;
            }
            Some(_) => return Err(Corruption("a bucket's depth does not fit its number")),
        }
    }
}

/// A record and its value.
pub(crate) type RecordAndValue<'m> = (Cell<'m>, &'m [u8]);

/// The record of an entry, if it has this key.
#[inline(always)]
#[expect(clippy::inline_always, reason = "the path of every read")]
fn of_key<'m>(
    cell: Cell<'m>,
    hash: u64,
    key: &[u8],
) -> Result<Option<RecordAndValue<'m>>, Corruption> {
    if cell.hash_low() != hash as u32 {
        return check_not_zero(&cell).map(|()| None);
    }
    let (its_key, value) = cell.key_and_value()?;
    if is_equal(its_key, key) {
        return Ok(Some((cell, value)));
    }
    check_key(&cell, its_key).map(|()| None)
}

/// Of a cell that an entry with the tag of a key leads to, and that has another hash.
#[cold]
fn check_not_zero(cell: &Cell<'_>) -> Result<(), Corruption> {
    if cell.has_head()? { Ok(()) } else { Err(ZERO_CELL) }
}

/// Of a record with the hash of a key that is searched, and with another key.
#[cold]
fn check_key(cell: &Cell<'_>, its_key: &[u8]) -> Result<(), Corruption> {
    let is_its = hash_of(cell.map(), its_key)? as u32 == cell.hash_low();
    if is_its { Ok(()) } else { Err(OTHER_KEY) }
}

/// True if the record to which an entry with the tag of a key leads has this key. The caller holds
/// the lock of the bucket.
#[inline]
pub(crate) fn has_key_at(cell: &Cell<'_>, hash: u64, key: &[u8]) -> Result<bool, Corruption> {
    if cell.hash_low() != hash as u32 {
        return check_not_zero(cell).map(|()| false);
    }
    let its_key = cell.key()?;
    if is_equal(its_key, key) {
        return Ok(true);
    }
    check_key(cell, its_key).map(|()| false)
}

/// The record at a line, if it has this key. `None` also of a damaged one, which the caller finds
/// again with [`of_key`].
#[inline(always)]
#[expect(clippy::inline_always, reason = "the path of every read")]
pub(super) fn of_key_at<'m>(
    map: &'m Map,
    units: u64,
    hash: u64,
    key: &[u8],
) -> Option<RecordAndValue<'m>> {
    let (cell, (its_key, value)) = Cell::parts_at(map, units, hash)?;
    is_equal(its_key, key).then_some((cell, value))
}

/// True if a bucket with this control word, whose owner may be set, is the one of a hash. False
/// also of a bucket that only a damaged depth makes the right one.
#[inline]
const fn is_at(hash: u64, bucket: u64, control: u64) -> bool {
    is_at_depth(hash, bucket, control >> DEPTH_SHIFT)
}

/// The result of a lookup, and the token that validates it later.
#[derive(Clone, Copy, Debug)]
pub struct LookupResult<'m> {
    /// The record and its value, if the key exists.
    pub record: Option<(Cell<'m>, &'m [u8])>,
    /// Validates this read later.
    pub token: ReadToken,
}

/// Identifies what a read returned, so that it can be validated later.
#[derive(Clone, Copy, Debug)]
pub struct ReadToken {
    /// Offset of the cell; 0 for an absent record.
    pub at: u64,
    /// Offset of its entry, if that is in the line of a bucket; else 0.
    pub(crate) slot_at: u64,
    /// The value of that word. For an absent record: the control word of its bucket.
    pub(crate) word: u64,
}

impl ReadToken {
    /// The token of a record that must be absent, of a caller that has read nothing.
    pub const fn absent() -> Self {
        Self { at: 0, slot_at: 0, word: 0 }
    }
}

/// How a search continues after some words of a chain.
enum SearchStep<'m> {
    /// The record of the key.
    Found(RecordAndValue<'m>),
    /// In the overflow line at this offset.
    Next(u64),
    /// The chain has no more lines.
    End,
    /// At the line of the bucket: the pin was extended.
    Again,
}

/// The entry that a word stands for: itself, or the entry of an intent. 0 if there is no record.
#[inline]
pub(crate) fn decided(map: &Map, word: u64) -> Result<u64, Corruption> {
    if is_intent(word) { resolve(map, word) } else { Ok(word) }
}

/// The units of an entry of a bucket line with this tag, and the line's last word. If no entry has
/// the tag, a number with a tag.
///
/// Without a branch on its position: positions are random, and after a misprediction the processor
/// waits for the line before it starts the next record. Each word is done with before the next is
/// loaded: seven words at once would not fit into registers.
#[inline(always)]
#[expect(clippy::inline_always, reason = "a call costs as much as the line when it is cached")]
pub(super) fn pick(entries: &[AtomicU64; LAST], tag: u64) -> (u64, u64) {
    let whole = entry(tag, 0);
    let (mut picked, mut last) = (NONE, 0);
    for word in entries {
        last = load(word);
        // Removing the tag from an entry with this tag leaves a small number.
        picked = picked.min(last ^ whole);
    }
    (picked, last)
}

/// As [`pick`], but returns the last such entry, and the number of its word.
#[inline(always)]
#[expect(clippy::inline_always, reason = "a call costs as much as the line when it is cached")]
pub(super) fn pick_placed(entries: &[AtomicU64; LAST], tag: u64) -> (u64, u64, u64) {
    let whole = entry(tag, 0);
    let (mut picked, mut place, mut last) = (NONE, 0, 0);
    for (number, word) in (0..).zip(entries) {
        last = load(word);
        let units = last ^ whole;
        let is_it = entry_tag(units) == 0;
        picked = if is_it { units } else { picked };
        place = if is_it { number } else { place };
    }
    (picked, place, last)
}

/// Lines behind the first that a read of a field prefetches: the key, and the start of the value.
const START_LINES: u64 = 2;

/// Lines of a record that a read of all of it prefetches while it waits for the header: as many as
/// a core can have in flight. The processor's sequential prefetch loads the rest.
pub(super) const READ_LINES: u64 = 12;

/// Lines of a record that a transaction's read prefetches: one kilobyte.
const WHOLE_LINES: u64 = 16;

/// The result of [`pick`] if no entry has the tag.
pub(super) const NONE: u64 = u64::MAX;

impl Member {
    /// Loads a word of the line of a bucket that leads to a cell, which is then protected.
    ///
    /// Not for an overflow line: one that was removed keeps its words, so loading them again would
    /// not show that a record was removed since ([`Member::keep_protected`]).
    #[inline]
    pub(crate) fn load_protected(&self, word: &AtomicU64) -> u64 {
        pin::load_protected(|| load(word), || self.is_protected(), || self.extend_pin())
    }

    /// True if what was loaded since the last call, from the line of a bucket on, is protected. If
    /// not, the pin is extended, and the caller begins at the line of the bucket again.
    #[inline]
    pub(crate) fn keep_protected(&self) -> bool {
        pin::keep_protected(|| self.is_protected(), || self.extend_pin())
    }

    /// Searches some words of a chain for the key.
    #[inline]
    fn search_words<'m>(
        &'m self,
        words: &[AtomicU64],
        hash: u64,
        select: impl Fn(Cell<'m>) -> Result<Option<RecordAndValue<'m>>, Corruption>,
    ) -> Result<SearchStep<'m>, Corruption> {
        let (map, tag) = (self.map(), hash_tag(hash));
        let mut last = 0;
        for word in words {
            last = load(word);
            if entry_tag(last) != tag {
                continue;
            }
            if !self.keep_protected() {
                return Ok(SearchStep::Again);
            }
            let entry = decided(map, last)?;
            if entry != 0
                && let Some(found) = select(Cell::new(map, at_of(entry))?)?
            {
                return Ok(SearchStep::Found(found));
            }
        }
        Ok(match is_link(last) {
            false => SearchStep::End,
            true if self.keep_protected() => SearchStep::Next(at_of(last)),
            true => SearchStep::Again,
        })
    }

    /// Finds the record of a key. `prefetch` gets the line of a record that is probably the one.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "its answer would travel through memory")]
    fn find_prefetching(
        &self,
        table: &IndexTable,
        hash: u64,
        key: &[u8],
        prefetch: impl FnOnce(&Map, u64),
    ) -> Result<Option<RecordAndValue<'_>>, Corruption> {
        let map = self.map();
        let bucket = table.bucket_of(hash);
        // The line of a segment that this process does not know is outside of the region.
        if let Ok([first, entries @ ..]) = map.line(table.known_line(bucket)) {
            let control = begin_whole(first);
            let (units, last) = pick(entries, hash_tag(hash));
            if is_units(units) {
                // The header holds the record's length. The lines are prefetched before it arrives.
                prefetch(map, units);
                // A hit needs no check of the bucket (R3). What is damaged is found again, slowly,
                // and reported there.
                if self.is_protected()
                    && let Some(found) = of_key_at(map, units, hash, key)
                {
                    return Ok(Some(found));
                }
            } else if entry_tag(units) != 0
                && !is_link(last)
                && is_at(hash, bucket, control)
                && is_unmoved(first, control & PAYLOAD)
            {
                return Ok(None);
            }
        }
        // Taken apart: an answer that is passed on whole travels through memory.
        match self.find_slowly(table, hash, key)? {
            Some((cell, value)) => Ok(Some((cell, value))),
            None => Ok(None),
        }
    }

    /// As [`Member::find_prefetching`], if the bucket was split, has overflow lines, is being
    /// changed, has two entries with one tag, or has an intent, or if the epoch has changed.
    #[inline(never)]
    fn find_slowly(
        &self,
        table: &IndexTable,
        hash: u64,
        key: &[u8],
    ) -> Result<Option<RecordAndValue<'_>>, Corruption> {
        self.find_selected(table, hash, |cell| of_key(cell, hash, key))
    }

    /// Searches the whole chain of a hash for the record that `select` accepts.
    #[inline]
    pub(crate) fn find_selected<'m>(
        &'m self,
        table: &IndexTable,
        hash: u64,
        select: impl Fn(Cell<'m>) -> Result<Option<RecordAndValue<'m>>, Corruption>,
    ) -> Result<Option<RecordAndValue<'m>>, Corruption> {
        let map = self.map();
        loop {
            let (_, at, control) = find_bucket(map, table, hash)?;
            let [first, entries @ ..] = map.words::<WORDS>(at)?;
            let mut step = self.search_words(entries, hash, &select)?;
            let mut lines = 0;
            while let SearchStep::Next(line_at) = step {
                let words = map.words::<{ LINE_WORDS as usize }>(line_at + LINE_FIRST)?;
                step = self.search_words(words, hash, &select)?;
                if let SearchStep::End | SearchStep::Next(_) = step {
                    // The pin protects the line since its link was followed.
                    check_line(map, line_at)?;
                }
                lines += 1;
                if lines > CHAIN_MAX {
                    return Err(CHAIN);
                }
            }
            match step {
                SearchStep::Found(found) => return Ok(Some(found)),
                SearchStep::End if is_unmoved(first, control) => return Ok(None),
                SearchStep::End | SearchStep::Next(_) | SearchStep::Again => {}
            }
        }
    }

    /// Finds the record of a key. The caller holds a pin for as long as it uses the cell. It
    /// probably reads the start of the value.
    ///
    /// Cost: one line of the index and the lines of the record; no store.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the path of every read")]
    pub fn find(
        &self,
        table: &IndexTable,
        hash: u64,
        key: &[u8],
    ) -> Result<Option<(Cell<'_>, &[u8])>> {
        let meta_line = self.meta_line.get();
        let found = self.find_prefetching(table, hash, key, |map, units| {
            for line in 1..=START_LINES {
                map.prefetch(LINE * (units + line));
            }
            map.prefetch(LINE * (units + meta_line));
        })?;
        match found {
            // A missing page reads as zeros, in which nothing is found.
            None => self.check_not_truncated().map(|()| None),
            Some((cell, value)) => Ok(Some((cell, value))),
        }
    }

    /// Notes that a record that was found has metadata at its end, which every read needs: the next
    /// one probably has it in the same line.
    #[inline]
    pub fn note_metadata(&self, cell: &Cell<'_>) {
        self.meta_line.set(cell.last_line());
    }

    /// As [`Member::find`], for a caller that reads the whole value.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the path of every read")]
    pub fn find_whole(
        &self,
        table: &IndexTable,
        hash: u64,
        key: &[u8],
    ) -> Result<Option<(Cell<'_>, &[u8])>> {
        let lines = self.lines.get();
        let found = self.find_prefetching(table, hash, key, |map, units| {
            map.prefetch_lines(LINE * (units + 1), lines.min(READ_LINES).saturating_sub(1));
            map.prefetch(LINE * (units + lines));
        })?;
        match found {
            None => self.check_not_truncated().map(|()| None),
            Some((cell, value)) => {
                self.lines.set(cell.last_line());
                Ok(Some((cell, value)))
            }
        }
    }

    /// Finds the record of a key, and returns the token that a transaction keeps of the read. The
    /// caller holds a pin for as long as it uses the result.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "its answer would travel through memory")]
    pub fn lookup(&self, table: &IndexTable, hash: u64, key: &[u8]) -> Result<LookupResult<'_>> {
        let last = self.lines.get();
        let placed = self.lookup_prefetching(table, hash, key, (last.min(WHOLE_LINES), last))?;
        if let Some((cell, _)) = placed.record {
            self.lines.set(cell.last_line());
        }
        Ok(placed)
    }

    /// As [`Member::lookup`], for a record of two or three lines, such as an index record.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline]
    pub fn lookup_small(
        &self,
        table: &IndexTable,
        hash: u64,
        key: &[u8],
    ) -> Result<LookupResult<'_>> {
        self.lookup_prefetching(table, hash, key, (2, 2))
    }

    /// As [`Member::lookup`], for a record of which only the beginning and the end are read.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn lookup_ends(
        &self,
        table: &IndexTable,
        hash: u64,
        key: &[u8],
    ) -> Result<LookupResult<'_>> {
        self.lookup_prefetching(table, hash, key, (0, self.lines.get()))
    }

    /// The two numbers are the lines to prefetch and the line in which the record probably ends,
    /// both counted from its first line.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "its answer would travel through memory")]
    fn lookup_prefetching(
        &self,
        table: &IndexTable,
        hash: u64,
        key: &[u8],
        (lines, last): (u64, u64),
    ) -> Result<LookupResult<'_>> {
        let map = self.map();
        let bucket = table.bucket_of(hash);
        let line = table.bucket_line(map, bucket)?;
        let [first, entries @ ..] = map.line(line)?;
        let control = begin(first);
        if step(hash, bucket, depth_of(control)).is_none() {
            let (units, place, last_word) = pick_placed(entries, hash_tag(hash));
            if is_units(units) {
                map.prefetch_lines(LINE * (units + 1), lines);
                map.prefetch(LINE * (units + last));
                if self.is_protected()
                    && let Some(found) = of_key(Cell::at_units(map, units)?, hash, key)?
                {
                    debug_assert!(place < LAST as u64, "an entry lies in the line of its bucket");
                    let slot_at = line * LINE + 8 + 8 * place;
                    let word = entry(hash_tag(hash), LINE * units);
                    let token = ReadToken { at: LINE * units, slot_at, word };
                    return Ok(LookupResult { record: Some(found), token });
                }
            } else if units == NONE && !is_link(last_word) && is_unmoved(first, control) {
                // A missing page reads as zeros, in which nothing is found.
                self.check_not_truncated()?;
                let token = ReadToken { at: 0, slot_at: 0, word: control };
                return Ok(LookupResult { record: None, token });
            }
        }
        self.lookup_slowly(table, hash, key)
    }

    /// As [`Member::lookup`], if the record has no plain entry in its bucket's line, or is absent.
    #[cold]
    fn lookup_slowly(&self, table: &IndexTable, hash: u64, key: &[u8]) -> Result<LookupResult<'_>> {
        // For an absent record the token holds the control word from before the search. Each
        // removal changes it, so a key that was created and removed meanwhile is not mistaken for
        // one that never existed.
        let (_, _, control) = find_bucket(self.map(), table, hash)?;
        let found = self.find(table, hash, key)?;
        let at = found.map_or(0, |(cell, _)| cell.at());
        Ok(LookupResult { record: found, token: ReadToken { at, slot_at: 0, word: control } })
    }

    /// True if the word that led to the record is unchanged: then the record is current. False is
    /// not conclusive: [`Member::validate_read`] decides.
    #[inline]
    pub fn is_current(&self, token: ReadToken) -> bool {
        let word = self.map().word(token.slot_at);
        token.slot_at != 0 && word.is_ok_and(|word| load(word) == token.word)
    }

    /// True if a read is still valid. A token with `at` 0 is that of an absent record.
    ///
    /// Cost: that of a read.
    ///
    /// # Errors
    /// `Damaged`.
    #[cold]
    pub fn validate_read(
        &self,
        table: &IndexTable,
        hash: u64,
        key: &[u8],
        token: ReadToken,
    ) -> Result<bool> {
        let found = self.find_prefetching(table, hash, key, |_, _| ())?;
        if token.at != 0 || found.is_some() {
            return Ok(found.map_or(0, |(cell, _)| cell.at()) == token.at);
        }
        // After the search: a removal before it would have changed the word by now.
        let (_, _, control) = find_bucket(self.map(), table, hash)?;
        Ok(control == token.word)
    }

    /// The current number of buckets of a namespace.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn bucket_count(&self, table: &IndexTable) -> Result<u64> {
        Ok(table.refresh(self.map())?)
    }
}
