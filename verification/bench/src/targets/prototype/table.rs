//! The table of the prototype: buckets of one line, and records in slots of whole lines.
//!
//! ```text
//! record   0         8                                     16
//!          | version | length of key, length of value << 16 | key | value
//! ```
//!
//! A record has a sequence lock, executed as readers and writers in several processes would have
//! to. In this process a borrow keeps them apart, so a version never differs.
//!
//! ```text
//! writer                                  reader
//! W1  version = odd                       R1  v = version
//! W2  fence release                       R2  compare the key, look at the value
//! W3  replace lengths, key, value         R3  fence acquire   (pairs with W2)
//! W4  fence release                       R4  the look counts if version is still v, and even
//! W5  version = next even
//! ```
//!
//! A put writes a slot that is in no entry and then replaces the number in the entry: readers of
//! the old slot have until its index in the ring of spare slots comes.

use super::bucket::{self, ENTRIES, LINE_BYTES, Line};
use super::hash::{hash, words};
use crate::operations::{BATCH, RecordKey, Store};
use memmap2::{Advice, MmapMut};
use nearstate_model::{Error, Result};
use std::hint::black_box;
use std::sync::atomic::{Ordering, fence};

/// Bytes before the key.
const HEADER_BYTES: usize = 16;

/// Slots in no entry that puts use in index: a put of one of them leaves the old slot as it is for
/// this number of puts.
const SPARES: usize = 256;

/// Length of a key's field in the second word of the header.
const KEY_BITS: u32 = 16;

/// A bucket without entries.
const NO_BUCKET: &Line = &[0; LINE_BYTES];

/// The line of no record.
const NOWHERE: u32 = u32::MAX;

/// Memory of this process.
#[derive(Debug)]
struct Area(MmapMut);

impl Area {
    /// Memory for this number of lines. It is not in use before it is written.
    fn new(lines: usize) -> Result<Self> {
        let bytes = lines.saturating_mul(LINE_BYTES);
        let area = MmapMut::map_anon(bytes).map_err(|e| Error::Full {
            detail: format!("prototype: mapping {bytes} bytes: {e}"),
            heap: None,
        })?;
        // A system without large pages gives small ones.
        let _ = area.advise(Advice::HugePage);
        Ok(Self(area))
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a few instructions of the read that is measured")]
    fn lines(&self) -> &[Line] {
        self.0.as_chunks().0
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as above")]
    fn lines_mut(&mut self) -> &mut [Line] {
        self.0.as_chunks_mut().0
    }
}

/// An entry that leads to the record of a key.
#[derive(Clone, Copy, Debug)]
struct BucketEntry {
    bucket: usize,
    /// Its number in the bucket.
    number: usize,
    /// The first line of the record.
    at: u32,
}

/// A record of the wanted key.
#[derive(Clone, Copy, Debug)]
struct Record<'t> {
    header: &'t [u8; HEADER_BYTES],
    version: u64,
    value: &'t [u8],
}

impl Record<'_> {
    /// Looks at a value, which counts only if no writer was active meanwhile.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a part of the read that is measured")]
    fn look<T>(self, look: impl FnOnce(&[u8]) -> T) -> Result<T> {
        let seen = look(self.value);
        fence(Ordering::Acquire);
        let [version, _] = words(self.header);
        if version != self.version || version % 2 == 1 { Err(changed()) } else { Ok(seen) }
    }
}

#[derive(Debug)]
pub(super) struct PrototypeTable {
    /// A power of two.
    buckets: Area,
    bucket_mask: usize,
    records: Area,
    slot_lines: usize,
    /// The first line that was never used.
    unused: usize,
    lines: usize,
    spares: [u32; SPARES],
    /// The spare slot that is used next.
    next_spare: usize,
    /// Slots of deleted records.
    free: Vec<u32>,
    live: usize,
    live_max: usize,
}

fn full(what: &str, most: usize) -> Error {
    let detail = format!("prototype: {what} for {most}: give the run more --records");
    Error::Full { detail, heap: None }
}

#[cold]
fn changed() -> Error {
    backend_error!("prototype: a record changed while it was read")
}

impl PrototypeTable {
    /// An empty table for this number of records, the largest of which has `record_bytes` bytes of
    /// key and value. A larger record takes several slots.
    pub(super) fn new(records: usize, record_bytes: usize) -> Result<Self> {
        let slot_lines = record_bytes.saturating_add(HEADER_BYTES).div_ceil(LINE_BYTES);
        let live_max = records.max(ENTRIES);
        // At most half full.
        let buckets = live_max.saturating_mul(2).div_ceil(ENTRIES).next_power_of_two();
        let lines = live_max.saturating_add(SPARES).saturating_mul(slot_lines);
        if lines >= NOWHERE as usize {
            return Err(full("lines have numbers of 32 bits, too few", records));
        }
        let mut table = Self {
            buckets: Area::new(buckets)?,
            bucket_mask: buckets - 1,
            records: Area::new(lines)?,
            slot_lines,
            unused: 0,
            lines,
            spares: [0; SPARES],
            next_spare: 0,
            free: Vec::new(),
            live: 0,
            live_max,
        };
        for at in 0..SPARES {
            let slot = table.take_unused(1)?;
            if let Some(spare) = table.spares.get_mut(at) {
                *spare = slot;
            }
        }
        Ok(table)
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a part of the read that is measured")]
    fn bucket(&self, bucket: usize) -> &Line {
        self.buckets.lines().get(bucket & self.bucket_mask).unwrap_or(NO_BUCKET)
    }

    fn bucket_mut(&mut self, bucket: usize) -> Option<&mut Line> {
        self.buckets.lines_mut().get_mut(bucket & self.bucket_mask)
    }

    /// The two words of a record's header.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as above")]
    fn header(&self, at: u32) -> [u64; 2] {
        match self.records.lines().get(at as usize).and_then(|line| line.first_chunk()) {
            Some(header) => words(header),
            None => [0; 2],
        }
    }

    /// The record in a slot if it has this key.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as above")]
    fn record(&self, at: u32, key: &[u8]) -> Option<Record<'_>> {
        // A key of known length is compared without a call.
        match <&RecordKey>::try_from(key) {
            Ok(key) => self.record_of(at, key),
            Err(_) => self.record_of(at, key),
        }
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as above")]
    fn record_of(&self, at: u32, key: &[u8]) -> Option<Record<'_>> {
        let bytes = self.records.0.get(at as usize * LINE_BYTES..)?;
        let (header, content) = bytes.split_first_chunk::<HEADER_BYTES>()?;
        let [version, lengths] = words(header);
        let (found, rest) = content.split_at_checked(key.len())?;
        let value_bytes = usize::try_from(lengths >> KEY_BITS).unwrap_or(usize::MAX);
        let is_it = lengths & ((1 << KEY_BITS) - 1) == key.len() as u64 && found == key;
        if is_it { Some(Record { header, version, value: rest.get(..value_bytes)? }) } else { None }
    }

    /// The entry and the record of a key.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as above")]
    fn find(&self, hash: u64, key: &[u8]) -> Option<(BucketEntry, Record<'_>)> {
        let bucket = as_index(hash);
        let line = self.bucket(bucket);
        let matches = bucket::matches(line, bucket::tag_of(hash));
        let entry = bucket::lowest(matches);
        let at = bucket::number(line, entry);
        if matches != 0
            && let Some(record) = self.record(at, key)
        {
            return Some((BucketEntry { bucket, number: entry, at }, record));
        }
        self.search(hash, key)
    }

    /// [`Self::find`] for keys that are not the first with their tag: absent, in a later entry, or
    /// in a later bucket.
    #[cold]
    fn search(&self, hash: u64, key: &[u8]) -> Option<(BucketEntry, Record<'_>)> {
        let (first, tag) = (as_index(hash), bucket::tag_of(hash));
        for bucket in (0..=self.bucket_mask).map(|step| first.wrapping_add(step)) {
            let line = self.bucket(bucket);
            for entry in bucket::with_tag(line, tag) {
                let at = bucket::number(line, entry);
                if let Some(record) = self.record(at, key) {
                    return Some((BucketEntry { bucket, number: entry, at }, record));
                }
            }
            if bucket::is_last(line) {
                return None;
            }
        }
        None
    }

    /// Slots of a record of this size.
    const fn slots(&self, bytes: usize) -> usize {
        (HEADER_BYTES + bytes).div_ceil(self.slot_lines * LINE_BYTES)
    }

    /// Slots next to each other that were never used.
    fn take_unused(&mut self, slots: usize) -> Result<u32> {
        let end = self.unused.saturating_add(slots.saturating_mul(self.slot_lines));
        if end > self.lines {
            return Err(full("no room for more records", self.live_max));
        }
        let slot = std::mem::replace(&mut self.unused, end);
        u32::try_from(slot).map_err(|_| full("lines have numbers of 32 bits, too few", end))
    }

    /// Writes a record into its slots.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a part of the put that is measured")]
    fn write(&mut self, at: u32, key: &[u8], value: &[u8]) {
        let Some(bytes) = self.records.0.get_mut(at as usize * LINE_BYTES..) else { return };
        let Some((version, rest)) = bytes.split_first_chunk_mut::<8>() else { return };
        let Some((lengths, rest)) = rest.split_first_chunk_mut::<8>() else { return };
        let Some((to_key, rest)) = rest.split_at_mut_checked(key.len()) else { return };
        let Some(to_value) = rest.get_mut(..value.len()) else { return };
        // Not the number before plus one: a slot that was in the middle of a large record has any.
        let odd = u64::from_le_bytes(*version) | 1;
        *version = odd.to_le_bytes();
        fence(Ordering::Release);
        *lengths = ((value.len() as u64) << KEY_BITS | key.len() as u64).to_le_bytes();
        to_key.copy_from_slice(key);
        to_value.copy_from_slice(value);
        fence(Ordering::Release);
        *version = odd.wrapping_add(1).to_le_bytes();
    }

    /// Writes a new version into the spare slot that is used next.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as above")]
    fn replace(&mut self, entry: BucketEntry, key: &[u8], value: &[u8]) {
        let index = self.next_spare % SPARES;
        let Some(slot) = self.spares.get(index).copied() else { return };
        self.write(slot, key, value);
        if let Some(line) = self.bucket_mut(entry.bucket) {
            bucket::set_number(line, entry.number, slot);
        }
        if let Some(spare) = self.spares.get_mut(index) {
            *spare = entry.at;
        }
        self.next_spare = index + 1;
    }

    /// A put of a new key, or of a record that has more than one slot before or after it.
    #[cold]
    fn put_slowly(&mut self, hash: u64, key: &[u8], value: &[u8]) -> Result<()> {
        if key.len() >= 1 << KEY_BITS {
            return Err(bad_argument!("prototype: a key of 64 KiB"));
        }
        let before = self.find(hash, key).map(|(entry, record)| (entry, record.value.len()));
        if before.is_none() && self.live >= self.live_max {
            return Err(full("an index", self.live_max));
        }
        let slot = match self.slots(key.len() + value.len()) {
            1 => self.free.pop().map_or_else(|| self.take_unused(1), Ok)?,
            several => self.take_unused(several)?,
        };
        self.write(slot, key, value);
        match before {
            Some((entry, value_bytes)) => {
                if let Some(line) = self.bucket_mut(entry.bucket) {
                    bucket::set_number(line, entry.number, slot);
                }
                self.release(entry.at, key.len() + value_bytes);
                Ok(())
            }
            None => self.insert(hash, slot),
        }
    }

    /// Fills the first free entry that a search visits.
    fn insert(&mut self, hash: u64, slot: u32) -> Result<()> {
        let (first, tag) = (as_index(hash), bucket::tag_of(hash));
        for bucket in (0..=self.bucket_mask).map(|step| first.wrapping_add(step)) {
            if let Some(line) = self.bucket_mut(bucket)
                && let Some(entry) = bucket::free(line)
            {
                bucket::fill(line, entry, tag, slot);
                self.live += 1;
                return Ok(());
            }
        }
        Err(full("an index", self.live_max))
    }

    /// The slots of a record of this size are free, one by one.
    fn release(&mut self, at: u32, bytes: usize) {
        let slots = self.slots(bytes);
        let step = u32::try_from(self.slot_lines).unwrap_or(u32::MAX);
        self.free.extend((0..slots).zip((at..).step_by(step as usize)).map(|(_, slot)| slot));
    }

    /// Deletes a record; false if it does not exist.
    pub(super) fn delete(&mut self, key: &[u8]) -> Result<bool> {
        let Some((entry, record)) = self.find(hash(key), key) else { return Ok(false) };
        let bytes = key.len() + record.value.len();
        let line = self.bucket_mut(entry.bucket).ok_or_else(changed)?;
        bucket::empty(line, entry.number);
        self.live -= 1;
        self.release(entry.at, bytes);
        Ok(true)
    }

    /// Sixteen keys at most. All buckets are requested before the first is searched, and all
    /// headers before the first value is read: loads of different keys overlap.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a part of the batch that is measured")]
    fn sixteen(&self, keys: &[&[u8]], look: &mut impl FnMut(usize, &[u8])) -> Result<()> {
        let (mut hashes, mut slots, mut requested) = ([0; BATCH], [0; BATCH], 0_u64);
        for (to, key) in hashes.iter_mut().zip(keys) {
            *to = hash(key);
            requested ^= bucket::tags(self.bucket(as_index(*to)));
        }
        for (to, hash) in slots.iter_mut().zip(hashes).take(keys.len()) {
            let line = self.bucket(as_index(hash));
            let matches = bucket::matches(line, bucket::tag_of(hash));
            let slot = bucket::number(line, bucket::lowest(matches));
            *to = if matches == 0 { NOWHERE } else { slot };
            requested ^= self.header(*to)[0];
        }
        black_box(requested);
        for (number, ((key, hash), slot)) in keys.iter().zip(hashes).zip(slots).enumerate() {
            if let Some(record) = self.record(slot, key) {
                record.look(|value| look(number, value))?;
            } else if let Some((_, record)) = self.search(hash, key) {
                record.look(|value| look(number, value))?;
            }
        }
        Ok(())
    }
}

impl Store for PrototypeTable {
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the put that is measured")]
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let hash = hash(key);
        let slot_bytes = self.slot_lines * LINE_BYTES - HEADER_BYTES;
        let is_small = |value_bytes: usize| key.len() + value_bytes <= slot_bytes;
        let found = self.find(hash, key).map(|(entry, record)| (entry, record.value.len()));
        match found {
            Some((entry, before)) if is_small(before) && is_small(value.len()) => {
                self.replace(entry, key, value);
                Ok(())
            }
            _ => self.put_slowly(hash, key, value),
        }
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the read that is measured")]
    fn view<T>(&mut self, key: &[u8], look: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
        let Some((_, record)) = self.find(hash(key), key) else { return Ok(None) };
        record.look(look).map(Some)
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the batch that is measured")]
    fn batch(&mut self, keys: &[&[u8]], mut look: impl FnMut(usize, &[u8])) -> Result<()> {
        for (round, some) in keys.chunks(BATCH).enumerate() {
            self.sixteen(some, &mut |at, value| look(round * BATCH + at, value))?;
        }
        Ok(())
    }

    fn walk(&mut self) -> Result<u64> {
        let mut count = 0;
        for line in self.buckets.lines() {
            for entry in bucket::used(line) {
                black_box(bucket::number(line, entry));
                count += 1;
            }
        }
        Ok(count)
    }
}

#[inline(always)]
#[expect(clippy::inline_always, reason = "a few instructions of the read that is measured")]
fn as_index(hash: u64) -> usize {
    usize::from_le_bytes(hash.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Bytes of the records of tests, with which a slot is two lines.
    const RECORD_BYTES: usize = 80;

    fn value(table: &mut PrototypeTable, key: &[u8]) -> Option<Vec<u8>> {
        table.view(key, <[u8]>::to_vec).unwrap()
    }

    #[test]
    fn a_random_sequence_equals_a_map() {
        let mut rng = fastrand::Rng::with_seed(7);
        let mut table = PrototypeTable::new(200, RECORD_BYTES).unwrap();
        // Forty keys fill some of eight buckets, so that searches pass them.
        table.bucket_mask = 7;
        let mut map = BTreeMap::new();
        for step in 0..200_000_u32 {
            let key = [[b'k'; 19].as_slice(), &[rng.u8(..60)]].concat();
            match rng.u8(..10) {
                0..5 if map.len() < 40 || map.contains_key(&key) => {
                    // Some values take two slots, for which memory is not always left.
                    let bytes =
                        if rng.u8(..100) == 0 && step < 2000 { 150 } else { rng.usize(..60) };
                    let bytes = vec![rng.u8(..); bytes];
                    table.put(&key, &bytes).unwrap();
                    map.insert(key, bytes);
                }
                5..7 => assert_eq!(table.delete(&key).unwrap(), map.remove(&key).is_some()),
                _ => assert_eq!(value(&mut table, &key), map.get(&key).cloned(), "step {step}"),
            }
        }
        let keys: Vec<Vec<u8>> = (0..60).map(|n| [[b'k'; 19].as_slice(), &[n]].concat()).collect();
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let mut found = BTreeMap::new();
        let mut look = |at: usize, bytes: &[u8]| {
            found.insert(keys[at].to_vec(), bytes.to_vec());
        };
        table.batch(&keys, &mut look).unwrap();
        assert_eq!(found, map, "a batch finds no deleted record");
        assert_eq!(table.walk().unwrap(), map.len() as u64);
    }

    #[test]
    fn an_old_version_stays_for_as_many_puts_as_there_are_spare_slots() {
        let mut table = PrototypeTable::new(16, RECORD_BYTES).unwrap();
        table.put(b"key", b"0").unwrap();
        let (entry, _) = table.find(hash(b"key"), b"key").unwrap();
        for number in 1..=SPARES {
            table.put(b"key", number.to_string().as_bytes()).unwrap();
            assert_eq!(table.record(entry.at, b"key").unwrap().value, b"0", "{number}");
        }
        table.put(b"key", b"last").unwrap();
        let (after, record) = table.find(hash(b"key"), b"key").unwrap();
        assert_eq!((after.at, record.value), (entry.at, b"last".as_slice()));
        assert_eq!(record.version, 4, "written twice, and even");
    }

    #[test]
    fn a_full_table_is_an_error_and_keeps_its_records() {
        let mut table = PrototypeTable::new(8, RECORD_BYTES).unwrap();
        for key in 0..8_u8 {
            table.put(&[key], &[key; 10]).unwrap();
        }
        assert!(matches!(table.put(b"more", b""), Err(Error::Full { .. })));
        let large = vec![0; RECORD_BYTES * SPARES];
        assert!(matches!(table.put(&[0], &large), Err(Error::Full { .. })));
        assert!(matches!(table.put(&vec![0; 1 << 16], b""), Err(Error::BadArgument { .. })));
        table.put(&[0], b"small").unwrap();
        assert_eq!(value(&mut table, &[0]), Some(b"small".to_vec()));
        assert_eq!(value(&mut table, &[7]), Some(vec![7; 10]));
    }

    #[test]
    fn a_record_with_an_odd_version_is_being_written() {
        let mut table = PrototypeTable::new(8, RECORD_BYTES).unwrap();
        table.put(b"key", b"value").unwrap();
        let (entry, _) = table.find(hash(b"key"), b"key").unwrap();
        table.records.0[entry.at as usize * LINE_BYTES] += 1;
        assert!(table.view(b"key", <[u8]>::to_vec).is_err());
    }
}
