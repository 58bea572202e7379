//! The offline check: reads every byte of a region without attached sessions, and reports every
//! contradiction to `spec/region.md`. It recovers dead members first and changes nothing else.
//!
//! Each cell of the heap must be reachable exactly once: from an index, from the record that owns
//! it, or from a queue. A cell that is not reachable is a leak; a cell that is reachable twice is
//! corruption. The cells and the bump ranges are exactly the allocated units of the heap.

pub(crate) mod metadata;
mod report;

use std::path::Path;

use nearstate_model::invariant::guaranteed;
use nearstate_model::{Error, Result, invariant};

pub use report::CheckReport;

use crate::atomic::Ordering;
use crate::heap::bitmap::Bitmap;
use crate::heap::cell::{self, Cell, CellKind, WORD_HEAD, WORD_NEXT, WORD_RETIRED};
use crate::heap::chunk::{ChunkIndex, chunks_used, chunks_with_tables, reserve, state_of};
use crate::heap::held::is_position;
use crate::heap::usage::heap_usage;
use crate::index::bucket::{
    self, WORDS, at_of, depth_of, hash_tag, is_intent, is_link, is_version, load,
};
use crate::index::lookup::{ZERO_LINE, hash_of, link_slot, walk_chain};
use crate::layout::{
    CATALOG_KIND, CATALOG_RING, CHUNK_BYTES, CHUNK_UNITS, Corruption, HEAP, LINE, LOG_WORDS,
    MEMBER_STATE, SEGMENTS, SUPER_EPOCH, catalog_at, member_at, ordinary_chunks, unseal,
};
use crate::log::at_rest::check_entries;
use crate::log::log_words;
use crate::member::arena::{Arena, Bump, HELD, SET_ASIDE, undo};
use crate::member::lock::{PAYLOAD, owner_of};
use crate::member::pin;
use crate::namespace;
use crate::region::file::{AttachOptions, Region};
use crate::region::index_table::{IndexTable, segment_of_word, segment_slot};
use crate::region::linear_hash::bucket_of;
use crate::region::map::Map;
use crate::region::member_table::{member_slots_used, state};
use crate::ring;

/// The fault of a part that is never zeros while it is in use.
const ZEROS: &str = "zeros: a part of the file was overwritten, or is missing";

/// Checks a region. `validate` gets each record and the kind of its namespace, and reports what is
/// wrong with the record's format.
///
/// # Errors
/// `NotARegion`, `InUse` while a living process has a session, `System`. The report contains what
/// is wrong inside.
pub fn check(
    path: &Path,
    validate: &mut dyn FnMut(u64, &Cell<'_>) -> std::result::Result<(), String>,
) -> Result<CheckReport> {
    check_with(path, &AttachOptions::default(), validate)
}

/// As [`check`], with options.
///
/// # Errors
/// As [`check`].
pub fn check_with(
    path: &Path,
    options: &AttachOptions,
    validate: &mut dyn FnMut(u64, &Cell<'_>) -> std::result::Result<(), String>,
) -> Result<CheckReport> {
    let region = Region::attach_with(path, options)?;
    let mut report = CheckReport::default();
    match region.members() {
        Ok(members) => {
            if let Some(member) = members.into_iter().find(|member| member.is_alive) {
                return Err(Error::InUse { holder: member.process });
            }
        }
        Err(error @ Error::Damaged { .. }) => report.fault(format!("members: {error}")),
        Err(error) => return Err(error),
    }
    let mut was_recovered = false;
    match metadata::free_slots(&region.shared.map, &mut report) {
        // A session acts on what its slot and its arena contain, so none is opened in a region with
        // a fault there, and none without need.
        Ok(true) if report.is_clean() => match region.member() {
            Ok(member) => {
                was_recovered = true;
                for (slot, error) in member.failing_recoveries()? {
                    report.fault(format!("recovery of member {slot}: {error}"));
                }
            }
            Err(error @ Error::Damaged { .. }) => report.fault(format!("recovery: {error}")),
            Err(error) => return Err(error),
        },
        Ok(_) => {}
        Err(Corruption(what)) => report.fault(what),
    }
    let map = &region.shared.map;
    let mut walk =
        Checker { map, report, was_recovered, marks: Vec::new(), chunks_used: 0, epoch: 0 };
    if let Err(Corruption(what)) = walk.all(region.shared.is_fenced, validate) {
        walk.report.fault(what);
    }
    if region.shared.map.is_damaged() {
        walk.report.fault("a page of the file is missing");
    }
    // Queues may be cycles otherwise.
    if walk.report.is_clean() {
        match heap_usage(map, u64::MAX, u64::MAX) {
            Ok(heap) => walk.report.heap = heap,
            Err(Corruption(what)) => walk.report.fault(what),
        }
    }
    Ok(walk.report)
}

struct Checker<'m> {
    map: &'m Map,
    report: CheckReport,
    /// A session has recovered dead members.
    was_recovered: bool,
    /// A bit for each unit at which a reachable cell begins: of the ordinary chunks that were used,
    /// then of the reserve.
    marks: Vec<u64>,
    chunks_used: u64,
    epoch: u64,
}

/// Validates the format of a record in a namespace of some kind.
pub type RecordCheck<'j> = &'j mut dyn FnMut(u64, &Cell<'_>) -> std::result::Result<(), String>;

impl Checker<'_> {
    fn all(&mut self, is_fenced: bool, validate: RecordCheck<'_>) -> Result<(), Corruption> {
        metadata::superblock(self.map, &mut self.report)?;
        metadata::catalog(self.map, &mut self.report)?;
        self.chunks_used = chunks_used(self.map)?;
        self.report.bytes_total = CHUNK_BYTES * self.map.chunks();
        self.report.bytes_unused =
            CHUNK_BYTES * (ordinary_chunks(self.map.chunks()) - self.chunks_used);
        metadata::unused_chunks(self.map, self.chunks_used, &mut self.report)?;
        let chunks = self.chunks_used + reserve(self.map).count() as u64;
        self.marks = vec![0; (chunks * CHUNK_UNITS / 64) as usize];
        let word = self.map.word(SUPER_EPOCH)?.load(Ordering::Acquire);
        self.epoch = unseal(word, "the epoch word has a flipped bit")?;
        self.log()?;
        for entry in namespace::list(self.map)? {
            self.report.namespaces += 1;
            if let Err(Corruption(what)) = self.namespace(entry.index, validate) {
                let name = String::from_utf8_lossy(&entry.name).into_owned();
                self.report.fault(format!("namespace {name:?}: {what}"));
            }
        }
        for index in namespace::unfinished(self.map)? {
            self.segments(index)?;
        }
        for index in namespace::removed(self.map)? {
            let before = self.report.records;
            if let Err(Corruption(what)) = self.namespace(index, validate) {
                self.report.fault(format!("catalog entry {index}, which is free: {what}"));
            }
            if self.report.records != before {
                self.report.fault(format!("catalog entry {index}: it is free, and has records"));
            }
        }
        let mut ranges = Vec::new();
        for index in 0..member_slots_used(self.map)? {
            self.arena(index, is_fenced, &mut ranges)?;
        }
        ranges.sort_unstable();
        self.tiles(&ranges)
    }

    /// The place of a unit's mark; `None` if no chunk with tables has the unit.
    fn mark_of(&self, at: u64) -> Option<(usize, u64)> {
        let unit = at.checked_sub(HEAP)? / LINE;
        let (chunk, ordinary) = (unit / CHUNK_UNITS, ordinary_chunks(self.map.chunks()));
        let place = if chunk < self.chunks_used {
            unit
        } else if chunk >= ordinary {
            unit - (ordinary - self.chunks_used) * CHUNK_UNITS
        } else {
            return None;
        };
        Some(((place / 64) as usize, place % 64)).filter(|_| at.is_multiple_of(LINE))
    }

    /// Marks a cell as reachable. False, with a fault, if it was marked before or cannot be a cell.
    fn mark(&mut self, at: u64, by: &str) -> bool {
        invariant!(!self.marks.is_empty(), "a cell is marked before the chunks are known");
        let place = self.mark_of(at);
        let marks =
            place.and_then(|(word, bit)| self.marks.get_mut(word).map(|marks| (marks, bit)));
        let Some((marks, bit)) = marks else {
            self.report.fault(format!("{by} refers to {at:#x}, which is not a cell"));
            return false;
        };
        if *marks >> bit & 1 == 1 {
            self.report.fault(format!("cell {at:#x}: reached twice, now by {by}"));
            return false;
        }
        *marks |= 1 << bit;
        true
    }

    /// Marks the words of the log. The cells of its entries are in the queues of their writers.
    fn log(&mut self) -> Result<(), Corruption> {
        metadata::log(self.map, &mut self.report)?;
        let at = self.map.word(LOG_WORDS)?.load(Ordering::Acquire);
        if at != 0 && self.mark(at, "the log") {
            self.report.bytes_index += cell::bytes_at(self.map, at)?;
            let kind = cell::kind_of(cell::word(self.map, at, WORD_HEAD)?.load(Ordering::Relaxed));
            if kind != Ok(CellKind::Extent) {
                self.report.fault("the log: its cell has another kind");
            }
            match log_words(self.map).map(|_| check_entries(self.map)) {
                Ok(Ok(())) => {}
                Ok(Err(Corruption(what))) => self.report.fault(format!("the log: {what}")),
                Err(Corruption(what)) => self.report.fault(what),
            }
        }
        Ok(())
    }

    fn namespace(&mut self, index: u32, validate: RecordCheck<'_>) -> Result<(), Corruption> {
        let table = IndexTable::new(self.map, index)?;
        let n = table.buckets();
        self.segments(index)?;
        self.ring(self.map.word(catalog_at(index) + CATALOG_RING)?.load(Ordering::Acquire))?;
        for bucket in 0..n {
            self.bucket(&table, bucket, n, validate)?;
        }
        Ok(())
    }

    /// Marks a ring, if its owner has one.
    fn ring(&mut self, at: u64) -> Result<(), Corruption> {
        if at == 0 || !self.mark(at, "the owner of a ring") {
            return Ok(());
        }
        let checked = self
            .live(&Cell::new(self.map, at)?, CellKind::Ring)
            .and_then(|()| ring::validate(self.map, at));
        if let Err(Corruption(what)) = checked {
            self.report.fault(format!("ring {at:#x}: {what}"));
        }
        Ok(())
    }

    /// Marks the segments of a namespace.
    fn segments(&mut self, index: u32) -> Result<(), Corruption> {
        for segment in 0..SEGMENTS {
            let at = self.map.word(segment_slot(index, segment))?.load(Ordering::Acquire);
            if at == 0 {
                continue;
            }
            let at = segment_of_word(at)?;
            if self.mark(at, "a segment") {
                self.report.bytes_index += cell::bytes_at(self.map, at)?;
            }
        }
        Ok(())
    }

    fn bucket(
        &mut self,
        table: &IndexTable,
        bucket: u64,
        n: u64,
        validate: RecordCheck<'_>,
    ) -> Result<(), Corruption> {
        let at = table.bucket_at(self.map, bucket)?;
        let words @ [control, ..] = self.map.words::<WORDS>(at)?;
        let control = load(control);
        if words.iter().all(|word| load(word) == 0) {
            let name = table.index();
            self.report.fault(format!("namespace {name}, bucket {bucket}: {ZEROS}"));
            return Ok(());
        }
        invariant!(bucket < n, "bucket {bucket} of {n} is checked");
        let level = n.ilog2();
        let is_split = bucket < n - (1 << level) || bucket >= 1 << level;
        if depth_of(control) != level + u32::from(is_split) {
            self.report.fault(format!("bucket {bucket}: depth {}", depth_of(control)));
        }
        if owner_of(control) != 0 {
            self.report.fault(format!("bucket {bucket}: locked, and its owner is not alive"));
        }
        self.lines(at)?;
        let mut entries = Vec::new();
        let walked = walk_chain(self.map, at, |_, entry| {
            if entry != 0 {
                entries.push(entry);
            }
            Ok(true)
        });
        // The fault of a line of zeros has been named.
        walked.or_else(|damage| if damage == ZERO_LINE { Ok(()) } else { Err(damage) })?;
        let mut keys = Vec::new();
        for entry in entries {
            if is_intent(entry) {
                self.report
                    .fault(format!("bucket {bucket}: an intent whose transaction has ended"));
                continue;
            }
            let record = Cell::new(self.map, at_of(entry))?;
            if !self.mark(record.at(), "an entry") {
                continue;
            }
            match self.record(table, &record, entry, validate) {
                Ok(hash) if bucket_of(hash, n) != bucket => {
                    self.report.fault(format!("record {:#x}: in bucket {bucket}", record.at()));
                }
                Ok(_) => keys.push(record.key()?),
                Err(Corruption(what)) => {
                    self.report.fault(format!("record {:#x}: {what}", record.at()));
                }
            }
        }
        keys.sort_unstable();
        if keys.windows(2).any(|pair| matches!(pair, [a, b] if a == b)) {
            self.report.fault(format!("bucket {bucket}: it contains a key twice"));
        }
        Ok(())
    }

    /// Marks the overflow lines of a bucket.
    fn lines(&mut self, bucket_at: u64) -> Result<(), Corruption> {
        let mut next = load(self.map.word(link_slot(bucket_at))?);
        while is_link(next) {
            let at = at_of(next);
            if next != bucket::link(at) {
                self.report.fault(format!("link to {at:#x}: it has bits that no link has"));
            }
            if !self.mark(at, "a link") {
                return Ok(());
            }
            let head = cell::word(self.map, at, WORD_HEAD)?.load(Ordering::Acquire);
            // A line is a cell of the lowest class, without flags and without a checksum.
            if head == 0 {
                self.report.fault(format!("overflow line {at:#x}: {ZEROS}"));
                return Ok(());
            }
            if head != cell::kind_in_head(CellKind::OverflowLine) {
                self.report.fault(format!("cell {at:#x}: linked, but not an overflow line"));
            }
            let birth = cell::word(self.map, at, WORD_RETIRED)?.load(Ordering::Acquire);
            if pin::is_retired(birth) || birth == 0 || birth > self.epoch {
                self.report.fault(format!("cell {at:#x}: linked, with birth epoch {birth:#x}"));
            }
            self.report.bytes_index += cell::bytes_at(self.map, at)?;
            let last = at + cell::LINE_FIRST + 8 * (cell::LINE_WORDS - 1);
            next = load(self.map.word(last)?);
        }
        Ok(())
    }

    fn record(
        &mut self,
        table: &IndexTable,
        record: &Cell<'_>,
        entry: u64,
        validate: RecordCheck<'_>,
    ) -> Result<u64, Corruption> {
        self.report.records += 1;
        self.live(record, CellKind::Record)?;
        if !is_version(record.version()) {
            return Err(Corruption("its version has bits that no version has"));
        }
        if record.namespace()? != table.index() {
            return Err(Corruption("it belongs to another namespace"));
        }
        let key = record.key()?;
        let hash = hash_of(self.map, key)?;
        let expected = bucket::entry(hash_tag(hash), record.at());
        if hash as u32 != record.hash_low() || entry != expected {
            return Err(Corruption("its key has another hash than its entry"));
        }
        // The link of a record refers to its newest block, its neighbour on the pending list. No
        // code reads it, but it reveals a flipped bit.
        let next = cell::word(self.map, record.at(), WORD_NEXT)?.load(Ordering::Acquire);
        let mut is_link_sound = next == 0 || is_position(self.map, next)?;
        for index in 0..record.children() {
            is_link_sound |= record.child(index)? == next;
        }
        if !is_link_sound {
            self.report.fault(format!("record {:#x}: its link is not a block of it", record.at()));
        }
        for index in 0..record.children() {
            let child = Cell::new(self.map, record.child(index)?)?;
            if self.mark(child.at(), "a record") {
                // The kind of the namespace decides which of the two it must be: `validate` checks
                // it.
                let kind = if child.kind()? == CellKind::Counter {
                    CellKind::Counter
                } else {
                    CellKind::Block
                };
                self.live(&child, kind)?;
                if kind == CellKind::Block
                    && (child.namespace()?, child.hash_low()) != (table.index(), hash as u32)
                {
                    return Err(Corruption("a block of it names another record"));
                }
            }
        }
        let kind = self.map.word(catalog_at(table.index()) + CATALOG_KIND)?.load(Ordering::Relaxed);
        if let Err(what) = validate(kind, record) {
            self.report.fault(format!("record {:#x}: {what}", record.at()));
        }
        Ok(hash)
    }

    /// A cell in use: of this kind, complete, and not retired.
    fn live(&mut self, cell: &Cell<'_>, kind: CellKind) -> Result<(), Corruption> {
        self.report.bytes_live += cell::bytes_at(self.map, cell.at())?;
        if !cell.has_head()? {
            return Err(Corruption(ZEROS));
        }
        if cell.kind()? != kind {
            return Err(Corruption("a cell has another kind than its reference requires"));
        }
        let birth = cell::word(self.map, cell.at(), WORD_RETIRED)?.load(Ordering::Acquire);
        if pin::is_retired(birth) {
            return Err(Corruption("in use, and retired as well"));
        }
        if birth == 0 || birth > self.epoch {
            return Err(Corruption("its birth epoch is not one of the region"));
        }
        if !cell.is_whole()? {
            return Err(Corruption("its bytes are not those that were published (checksum)"));
        }
        Ok(())
    }

    fn arena(
        &mut self,
        index: u32,
        is_fenced: bool,
        ranges: &mut Vec<(u64, u64)>,
    ) -> Result<(), Corruption> {
        let arena = Arena::new(self.map, index, is_fenced)?;
        let word = self.map.word(member_at(index) + MEMBER_STATE)?.load(Ordering::Acquire);
        if state::of(word) != state::FREE {
            self.report.fault(format!("member {index}: not recovered"));
        }
        if self.was_recovered {
            metadata::undo_record(self.map, index, &mut self.report)?;
        }
        if let Err(Corruption(what)) = arena.unique_ids() {
            self.report.fault(format!("member {index}: {what}"));
        }
        for which in [Bump::Small, Bump::Large] {
            let (front, end) = arena.bump(which);
            if front < end {
                ranges.push((front, end));
            }
        }
        // The rest of a range of several chunks that a dead member was freeing.
        if arena.get(undo::FREE_AT) != 0 {
            ranges.push((arena.get(undo::FREE_AT), arena.get(undo::FREE_TO)));
        }
        for class in 0..=HELD {
            let queue = arena.numbered_queue(class)?;
            let head = queue.head.load(Ordering::Acquire);
            let last = self.free_list(class, head, "a queue")?;
            if head != 0 && last != queue.tail.load(Ordering::Acquire) {
                self.report.fault(format!("member {index}: queue {class} has another tail"));
            }
        }
        Ok(())
    }

    /// Marks the cells of a queue. Returns the last one.
    fn free_list(&mut self, class: u8, head: u64, name: &str) -> Result<u64, Corruption> {
        let (mut next, mut last) = (head, 0);
        while next != 0 {
            if !self.mark(next, name) {
                return Ok(last);
            }
            last = next;
            if class < SET_ASIDE && cell::class_at(self.map, next)? != class {
                self.report.fault(format!("cell {next:#x}: in {name} of another class"));
            }
            let retired = cell::word(self.map, next, WORD_RETIRED)?.load(Ordering::Acquire);
            if !pin::is_retired(retired)
                || pin::is_held(retired) != (class == HELD)
                || pin::epoch_of(retired) > self.epoch
            {
                self.report.fault(format!("cell {next:#x}: in {name}, retired in {retired:#x}"));
            }
            let bytes = cell::bytes_at(self.map, next)?;
            let CheckReport { bytes_held, bytes_free, .. } = &mut self.report;
            *(if class == HELD { bytes_held } else { bytes_free }) += bytes;
            next = cell::word(self.map, next, WORD_NEXT)?.load(Ordering::Acquire);
        }
        Ok(last)
    }

    /// Walks the heap unit by unit: each allocated unit belongs to a cell that was reached or to a
    /// bump range, and each free unit to nothing.
    fn tiles(&mut self, ranges: &[(u64, u64)]) -> Result<(), Corruption> {
        invariant!(ranges.is_sorted(), "the heap is walked in the order of its offsets");
        let mut ranges = ranges.iter().peekable();
        // The end of the last cell or range: it can lie in a later chunk.
        let mut allocated_to = HEAP;
        for chunk in chunks_with_tables(self.map)? {
            let bitmap = Bitmap::load(chunk.bitmap(self.map)?);
            self.chunk_word(chunk, &bitmap)?;
            for unit in 0..CHUNK_UNITS as u32 {
                let at = chunk.start() + LINE * u64::from(unit);
                let is_set = bitmap.is_set(unit);
                if is_set {
                    self.report.bytes_taken += LINE;
                } else {
                    self.report.bytes_free += LINE;
                }
                if at < allocated_to {
                    if !is_set {
                        self.report.fault(format!("unit {at:#x}: free, and part of a cell"));
                    }
                } else if let Some((_, end)) = ranges.next_if(|(start, _)| *start == at) {
                    if !is_set || !end.is_multiple_of(LINE) {
                        self.report.fault(format!("bump range {at:#x} to {end:#x}: not allocated"));
                    }
                    self.report.bytes_free += end.saturating_sub(at);
                    allocated_to = *end;
                    self.unmark(at);
                } else if self.unmark(at) {
                    allocated_to = at.saturating_add(cell::bytes_at(self.map, at)?);
                    if !is_set {
                        self.report.fault(format!("cell {at:#x}: reached, and free"));
                    }
                } else if is_set {
                    self.report.fault(format!("unit {at:#x}: {LINE} bytes leaked"));
                    self.report.bytes_leaked += LINE;
                }
            }
            let next = ChunkIndex(chunk.0 + 1);
            if allocated_to > next.start() && self.mark_of(next.start()).is_none() {
                self.report.fault("a cell or a bump range lies behind the last chunk in use");
            }
        }
        if ranges.next().is_some() {
            self.report.fault("a bump range lies inside a cell or behind the heap");
        }
        let lost: u64 = self.marks.iter().map(|marks| u64::from(marks.count_ones())).sum();
        if lost != 0 {
            self.report.fault(format!("{lost} cells are reached that lie inside other cells"));
        }
        Ok(())
    }

    /// Removes the mark of a cell. False if no reachable cell begins there.
    fn unmark(&mut self, at: u64) -> bool {
        let Some((word, bit)) = self.mark_of(at) else { return false };
        let marks = guaranteed(self.marks.get_mut(word), "each unit of the heap has a mark");
        let was_set = *marks >> bit & 1 == 1;
        *marks &= !(1 << bit);
        was_set
    }

    /// A chunk's word says what its bitmap says.
    fn chunk_word(&mut self, chunk: ChunkIndex, bitmap: &Bitmap) -> Result<(), Corruption> {
        let word = self.map.word(chunk.word_at(self.map))?.load(Ordering::Acquire);
        if owner_of(word) != 0 {
            self.report.fault(format!("chunk {}: locked, and its owner is not alive", chunk.0));
        }
        let state = state_of(self.map, chunk)?;
        if state.is_given_up && word & PAYLOAD == state.encode() {
            self.report.fault(format!("chunk {}: given up, its bitmap has lost a bit", chunk.0));
        } else if state.used != u64::from(bitmap.used())
            || state.longest < bitmap.longest()
            || word & PAYLOAD != state.encode()
        {
            self.report.fault(format!("chunk {}: its word and its bitmap differ", chunk.0));
        }
        Ok(())
    }
}
