//! A process's handle of a namespace's index: where its buckets are.

use nearstate_model::Result;
use nearstate_model::limits::NAMESPACE_NAME_BYTES_MAX;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use std::sync::atomic::AtomicU32;

use crate::atomic::{AtomicPtr, AtomicU64, Ordering};
use crate::layout::{
    CATALOG_BUCKETS, CATALOG_CHECK, CATALOG_FLAGS, CATALOG_GENERATION, CATALOG_KIND, CATALOG_NAME,
    CATALOG_NAME_BYTES, CATALOG_SEGMENTS, CATALOG_STATE, Corruption, LINE, NAMESPACE_LIVE,
    NAMESPACE_NUMBER_BITS, SEGMENTS, catalog_at, entry_of, seal, unseal,
};
use crate::region::catalog_use::{EntryUse, is_current, keep, namespace_removed, parse_use};
use crate::region::linear_hash::{DEPTH_FIRST, bucket_among, wide_mask};
use crate::region::map::Map;

/// Buckets of the first segment. The second has as many, and each further one twice as many.
pub(crate) const BUCKETS_FIRST: u64 = 1 << DEPTH_FIRST;

const _: () = assert!(first_of(0) == 0 && first_of(1) == BUCKETS_FIRST);
const _: () = assert!(first_of(2) == first_of(1) + buckets_of(1), "segments follow each other");
const _: () = assert!(segment_of(0) == 0 && segment_of(BUCKETS_FIRST) == 1);
const _: () = assert!(segment_of(first_of(SEGMENTS - 1)) == SEGMENTS - 1);
const _: () = assert!(segment_of(first_of(SEGMENTS - 1) - 1) == SEGMENTS - 2);
const _: () = assert!(slot_of(0) == slot_of(BUCKETS_FIRST - 1), "one base for the first segment");
const _: () = assert!(slot_of(BUCKETS_FIRST) == slot_of(0) + 1, "and another for the second");
const _: () = assert!(slot_of(first_of(SEGMENTS) - 1) < u64::BITS as usize, "each has a place");

/// A process's handle of a namespace's index, which is that of its catalog entry. Both counts may
/// be out of date; the buckets' depths lead on.
#[derive(Debug)]
pub struct IndexTable {
    index: u32,
    /// The namespace that this process last opened in the entry; [`NO_NAMESPACE`]: none.
    number: AtomicU32,
    /// The kind of its records.
    kind: AtomicU64,
    /// The word of the entry that `region/catalog_use.rs` describes.
    generation: AtomicPtr<AtomicU64>,
    /// The word of the flags of its namespace.
    flags: AtomicPtr<AtomicU64>,
    buckets: AtomicU64,
    /// `linear_hash::wide_mask` of it.
    wide: AtomicU64,
    /// The line of each segment, minus the number of its first bucket: adding a bucket's number
    /// gives the bucket's line, or [`UNKNOWN`]. [`slot_of`] is the position.
    bases: [AtomicU64; u64::BITS as usize],
}

impl IndexTable {
    /// The handle of an entry. It is kept no longer than the map.
    pub(crate) fn new(map: &Map, index: u32) -> Result<Self, Corruption> {
        let index = entry_of(index);
        let generation = map.address(catalog_at(index) + CATALOG_GENERATION)?;
        let flags = map.address(catalog_at(index) + CATALOG_FLAGS)?;
        let table = Self {
            index,
            number: AtomicU32::new(NO_NAMESPACE),
            kind: AtomicU64::new(0),
            generation: AtomicPtr::new(generation.as_ptr()),
            flags: AtomicPtr::new(flags.as_ptr()),
            buckets: AtomicU64::new(BUCKETS_FIRST),
            wide: AtomicU64::new(wide_mask(BUCKETS_FIRST)),
            bases: std::array::from_fn(|_| AtomicU64::new(UNKNOWN)),
        };
        table.refresh(map)?;
        Ok(table)
    }

    /// Number of the entry in the catalog: the number of its first namespace.
    #[inline]
    pub const fn index(&self) -> u32 {
        self.index
    }

    /// The number of the namespace that this process last opened in the entry.
    #[inline]
    pub(crate) fn number(&self) -> u32 {
        self.number.load(Ordering::Acquire)
    }

    /// Determines the number of the namespace that the entry has now.
    pub(crate) fn renew(&self, map: &Map) -> Result<u32, Corruption> {
        let number = number_in(map, self.index)?.unwrap_or(NO_NAMESPACE);
        let kind = map.word(catalog_at(self.index) + CATALOG_KIND)?.load(Ordering::Relaxed);
        self.kind.store(kind, Ordering::Relaxed);
        self.number.store(number, Ordering::Release);
        Ok(number)
    }

    /// The kind of its records. Another thread may have opened another namespace in the entry: then
    /// the caller's namespace is not [current](Self::is_current).
    #[inline]
    pub fn kind(&self) -> u64 {
        self.kind.load(Ordering::Relaxed)
    }

    /// True if the entry still belongs to this namespace. A caller that has read from its buckets
    /// before may keep what it has read.
    ///
    /// Cost: one load of a line that changes when a namespace is created, removed or declared.
    #[inline]
    pub fn is_current(&self, namespace: u32) -> bool {
        is_current(self.use_word(), namespace >> NAMESPACE_NUMBER_BITS)
    }

    /// As [`IndexTable::is_current`].
    ///
    /// # Errors
    /// `BadArgument`: the namespace was removed.
    #[inline]
    pub fn check_current(&self, namespace: u32) -> Result<()> {
        if self.is_current(namespace) { Ok(()) } else { Err(namespace_removed(namespace)) }
    }

    /// Keeps the namespace from being removed before a record of the caller is published. The
    /// caller holds the lock of the record's bucket.
    ///
    /// # Errors
    /// `BadArgument`: the namespace was removed; `Damaged`.
    #[inline]
    pub fn keep_namespace(&self, namespace: u32) -> Result<()> {
        if keep(self.use_word(), namespace >> NAMESPACE_NUMBER_BITS)? {
            return Ok(());
        }
        Err(namespace_removed(namespace))
    }

    #[inline]
    fn use_word(&self) -> &AtomicU64 {
        let word = self.generation.load(Ordering::Relaxed);
        // SAFETY: a word of the map. The members that reach this handle keep it mapped.
        unsafe { &*word }
    }

    /// The flags of its namespace: as [`crate::Member::namespace_flags`], without a search.
    ///
    /// # Errors
    /// `Damaged`: a flipped bit of them.
    #[inline]
    pub fn flags(&self) -> Result<u64> {
        let word = self.flags.load(Ordering::Relaxed);
        // SAFETY: as of the word that `use_word` returns.
        Ok(parse_flags(unsafe { &*word })?)
    }

    #[inline]
    pub(crate) fn buckets(&self) -> u64 {
        self.buckets.load(Ordering::Acquire)
    }

    /// The bucket of a hash, as far as this process knows.
    #[inline]
    pub(crate) fn bucket_of(&self, hash: u64) -> u64 {
        let (n, wide) = (self.buckets(), self.wide.load(Ordering::Acquire));
        bucket_among(hash, n, wide)
    }

    /// Reads the number of buckets again (O4).
    pub(crate) fn refresh(&self, map: &Map) -> Result<u64, Corruption> {
        let word = map.word(catalog_at(self.index) + CATALOG_BUCKETS)?.load(Ordering::Acquire);
        let n = unseal(word, "a namespace's bucket count has a flipped bit")?;
        if n < BUCKETS_FIRST {
            return Err(Corruption("a namespace has too few buckets"));
        }
        debug_assert!(wide_mask(n) >= n, "the mask covers every bucket");
        // Release, for the other threads of this process: O4 holds for them through this word.
        self.buckets.store(n, Ordering::Release);
        self.wide.store(wide_mask(n), Ordering::Release);
        Ok(n)
    }

    /// Offset of a bucket's line.
    #[inline]
    pub(crate) fn bucket_at(&self, map: &Map, bucket: u64) -> Result<u64, Corruption> {
        Ok(self.bucket_line(map, bucket)?.wrapping_mul(LINE))
    }

    /// A bucket's line, counted from the start of the region.
    #[inline]
    pub(crate) fn bucket_line(&self, map: &Map, bucket: u64) -> Result<u64, Corruption> {
        let line = self.known_line(bucket);
        if line < UNKNOWN { Ok(line) } else { self.find_segment(map, bucket) }
    }

    /// A bucket's line, or a number of a line that no region has if its segment is not known yet.
    #[inline]
    pub(crate) fn known_line(&self, bucket: u64) -> u64 {
        let base = self.bases.get(slot_of(bucket));
        base.map_or(UNKNOWN, |base| base.load(Ordering::Acquire)).wrapping_add(bucket)
    }

    #[cold]
    fn find_segment(&self, map: &Map, bucket: u64) -> Result<u64, Corruption> {
        let none = Corruption("a bucket lies in a segment that is not there");
        let segment = segment_of(bucket);
        if segment >= SEGMENTS {
            return Err(none);
        }
        let at = map.word(segment_slot(self.index, segment))?.load(Ordering::Acquire);
        if at == 0 {
            return Err(none);
        }
        // Behind the header of the segment.
        let first = segment_of_word(at)? / LINE + 1;
        let base = first.wrapping_sub(first_of(segment));
        self.bases.get(slot_of(bucket)).ok_or(none)?.store(base, Ordering::Release);
        Ok(base.wrapping_add(bucket))
    }
}

/// The base of a segment that is not known. With a bucket's number it is no line of a region.
const UNKNOWN: u64 = 1 << 63;

/// The number of no namespace: its entry would have to be used 65,536 times.
pub(crate) const NO_NAMESPACE: u32 = u32::MAX;

/// The flags of a namespace. Most have none: their word is compared, and not computed.
#[inline]
pub(crate) fn parse_flags(word: &AtomicU64) -> Result<u64, Corruption> {
    const NONE: u64 = seal(0);
    match word.load(Ordering::Acquire) {
        NONE => Ok(0),
        word => unseal(word, "the flags of a namespace have a flipped bit"),
    }
}

/// The number of the namespace that a catalog entry has, if it has one.
pub(crate) fn number_in(map: &Map, index: u32) -> Result<Option<u32>, Corruption> {
    let at = catalog_at(index);
    match map.word(at + CATALOG_STATE)?.load(Ordering::Acquire) {
        NAMESPACE_LIVE => {}
        0 => return Ok(None),
        _ => return Err(Corruption("the state of a namespace has a flipped bit")),
    }
    let (generation, is) = parse_use(map.word(at + CATALOG_GENERATION)?.load(Ordering::Acquire))?;
    let is_live = matches!(is, EntryUse::Live | EntryUse::Leaving);
    Ok(is_live.then_some(generation << NAMESPACE_NUMBER_BITS | entry_of(index)))
}

/// The word of a catalog entry for a segment at this offset.
pub(crate) const fn segment_word(at: u64) -> u64 {
    debug_assert!(at.is_multiple_of(LINE), "a segment begins at a line");
    seal(at / LINE)
}

/// The offset of a segment, from its word, which is not 0.
pub(crate) fn segment_of_word(word: u64) -> Result<u64, Corruption> {
    Ok(unseal(word, "the word of a segment has a flipped bit")? * LINE)
}

/// What never changes in a catalog entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamespaceIdentity {
    pub(crate) name: Vec<u8>,
    pub(crate) kind: u64,
    pub(crate) generation: u64,
}

impl NamespaceIdentity {
    /// The name in an entry, not verified.
    pub(crate) fn name_in(map: &Map, index: u32) -> Result<Vec<u8>, Corruption> {
        let at = catalog_at(index);
        let bytes = map.word(at + CATALOG_NAME_BYTES)?.load(Ordering::Relaxed);
        if bytes > NAMESPACE_NAME_BYTES_MAX as u64 {
            return Err(Corruption("a namespace's name is too long"));
        }
        let mut name = Vec::with_capacity(NAMESPACE_NAME_BYTES_MAX + 1);
        // Another process may be storing the name of the next namespace.
        for word in map.slice(at + CATALOG_NAME, bytes.div_ceil(8))? {
            name.extend_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        name.truncate(bytes as usize);
        Ok(name)
    }

    /// Reads and verifies it.
    pub(crate) fn load(map: &Map, index: u32) -> Result<Self, Corruption> {
        let at = catalog_at(index);
        let load = |which: u64| -> Result<u64, Corruption> {
            Ok(map.word(at + which)?.load(Ordering::Relaxed))
        };
        let name = Self::name_in(map, index)?;
        let (generation, _) = parse_use(load(CATALOG_GENERATION)?)?;
        let (kind, generation) = (load(CATALOG_KIND)?, u64::from(generation));
        let found = Self { name, kind, generation };
        if found.check(index) != load(CATALOG_CHECK)? {
            return Err(Corruption("the name or the kind of a namespace has a flipped bit"));
        }
        Ok(found)
    }

    /// Its check value in the entry with this number.
    pub(crate) fn check(&self, index: u32) -> u64 {
        let mut bytes = self.kind.to_le_bytes().to_vec();
        bytes.extend_from_slice(&self.generation.to_le_bytes());
        bytes.extend_from_slice(&self.name);
        xxh3_64_with_seed(&bytes, u64::from(entry_of(index)) + 1)
    }
}

/// Offset of the word for a segment.
pub(crate) const fn segment_slot(index: u32, segment: usize) -> u64 {
    catalog_at(index) + CATALOG_SEGMENTS + 8 * segment as u64
}

/// The first bucket of a segment.
pub(crate) const fn first_of(segment: usize) -> u64 {
    if segment == 0 { 0 } else { BUCKETS_FIRST << (segment - 1) }
}

/// The number of buckets of a segment.
pub(crate) const fn buckets_of(segment: usize) -> u64 {
    if segment == 0 { BUCKETS_FIRST } else { BUCKETS_FIRST << (segment - 1) }
}

/// The position of a bucket's segment in [`IndexTable::bases`]: the number of the bucket's highest
/// bit, and for all buckets of the first segment the same.
#[inline]
const fn slot_of(bucket: u64) -> usize {
    (bucket | (BUCKETS_FIRST - 1)).ilog2() as usize
}

/// The segment of a bucket.
pub(crate) const fn segment_of(bucket: u64) -> usize {
    64 - (bucket >> DEPTH_FIRST).leading_zeros() as usize
}
