//! A bucket line: the words that its readers and its one writer exchange (`spec/region.md`, "Index
//! of a namespace").
//!
//! ```text
//! reader                                    splitter (holds the locks of p and q)
//! R1  c = control          (acquire)        S1  fill q
//! R2  scan the entries     (acquire)        S2  control of p: depth + 1   (release)  commit
//! R3  hit: done                             S3  moved entries of p := 0
//! R4  miss: control again; if it changed,   S4  copy stayers into free words of p
//!     start anew                            S5  control of p: stamp + 1   (release)
//!                                           S6  cut the overflow lines off
//! ```
//!
//! If a reader misses an entry because of S3, it has read a store that follows S2. Then R4 reads S2
//! or a later value, and the reader starts again, now at q. The same holds for S6 and S5. So a hit
//! needs no check, and a miss is always correct.

use nearstate_model::{Error, Result};

use crate::atomic::{AtomicU64, Ordering, mutant};
use crate::layout::Corruption;
use crate::member::lock::PAYLOAD;

/// Words of a bucket line.
pub(crate) const WORDS: usize = 8;

/// Index of the last word, which can be a link.
pub(crate) const LAST: usize = 7;

const TAG_SHIFT: u32 = 48;
const LINK: u64 = 1 << 47;
const UNITS: u64 = (1 << 42) - 1;
/// Set in an intent: an entry that refers to a write line of a transaction.
const INTENT: u64 = 1 << 46;
pub(crate) const DEPTH_SHIFT: u32 = 42;
const STAMP: u64 = (1 << DEPTH_SHIFT) - 1;

const _: () = assert!(LAST + 1 == WORDS, "the link is the last word of a line");
const _: () = assert!(UNITS < INTENT && INTENT < LINK && LINK < 1 << TAG_SHIFT);
const _: () = assert!(STAMP >> DEPTH_SHIFT == 0, "stamp and depth share no bit");
const _: () = assert!(VERSION_MAX < STAMP, "a version fits into a stamp");

/// The highest stamp, and so the highest count in the version of a record. At a million changes per
/// second of one record it lasts 50 days. The next change is rejected.
pub(crate) const VERSION_MAX: u64 = STAMP - (1 << 20);

/// The highest stamp of an index whose namespace can be removed: the versions of new namespaces
/// begin behind it, so half of them are left.
pub(crate) const STAMP_REMOVABLE_MAX: u64 = VERSION_MAX / 2;

/// Bits of a version above its count: the epoch of the record's slot, 0 without a cluster.
const VERSION_EPOCH_BITS: u32 = 16;
const _: () = assert!(DEPTH_SHIFT + VERSION_EPOCH_BITS < u64::BITS);

/// The count in a version: `epoch:16 | count:42`.
#[inline]
pub(crate) const fn version_count(version: u64) -> u64 {
    version & STAMP
}

/// True if the word is a version: no bit above its epoch is set.
pub(crate) const fn is_version(word: u64) -> bool {
    word != 0 && word >> (DEPTH_SHIFT + VERSION_EPOCH_BITS) == 0
}

/// The lowest bit of the generation in a count: `generation:19 | changes:23`. A promotion raises
/// the stamps of all buckets to the next generation, so that every later version is higher than
/// those of the host that was followed. A record may change more often in a generation: then its
/// versions are those of the next one, and the next promotion begins behind them.
pub(crate) const GENERATION_SHIFT: u32 = 23;

/// Changes of a record that the followed host may have made behind what was received, and that a
/// promotion leaves room for. A log has at most 2^20 entries that a member lacks. The rest is for
/// what raises a stamp without an entry: splits, and transactions that were aborted.
pub(crate) const CHANGES_UNKNOWN_MAX: u64 = 1 << 22;

/// The highest stamp that a promotion chooses: behind the last one, a record can change 2^28 times.
pub(crate) const PROMOTION_STAMP_MAX: u64 = VERSION_MAX - (1 << 28);

/// The promotions of a partition: 524,255, one a minute for a year. Those of all its hosts count.
pub const PROMOTIONS_MAX: u64 = PROMOTION_STAMP_MAX >> GENERATION_SHIFT;
const _: () = assert!(PROMOTIONS_MAX == 524_255);
const _: () = assert!(CHANGES_UNKNOWN_MAX < 1 << GENERATION_SHIFT);
const _: () = assert!(GENERATION_SHIFT < DEPTH_SHIFT);

/// True if a record may have this version: another one follows it.
pub fn is_record_version(word: u64) -> bool {
    is_version(word) && version_count(word) != 0 && version_count(word) < VERSION_MAX
}

/// The version after `before`, or the first one of a record in a bucket with this stamp. A bucket
/// whose stamp is of a later generation raises the version to it.
///
/// # Errors
/// `Full` if the record has changed [`VERSION_MAX`] times, `Damaged`.
#[inline(always)]
#[expect(clippy::inline_always, reason = "the path of every write")]
pub(crate) fn next_version(before: Option<u64>, stamp: u64) -> Result<u64> {
    let last = match before {
        Some(before) if version_count(before) >> GENERATION_SHIFT >= stamp >> GENERATION_SHIFT => {
            before
        }
        Some(_) | None => stamp,
    };
    if version_count(last) >= VERSION_MAX {
        return Err(Error::Full {
            detail: format!("the record has changed {VERSION_MAX} times"),
            heap: None,
        });
    }
    match last.checked_add(1) {
        Some(next) if is_version(next) => Ok(next),
        // The version comes from a header in shared memory.
        _ => Err(Corruption("a record has a version with bits that none has").into()),
    }
}

/// The tag of a hash: its top 16 bits, never 0, so that an empty word matches none.
#[inline]
pub(crate) const fn hash_tag(hash: u64) -> u64 {
    let tag = hash >> TAG_SHIFT;
    if tag == 0 { 1 } else { tag }
}

/// The entry of a cell.
#[inline]
pub(crate) const fn entry(tag: u64, at: u64) -> u64 {
    debug_assert!(tag != 0 && tag >> 16 == 0, "a tag has 16 bits and is not 0");
    tag << TAG_SHIFT | at >> 6
}

/// The link to an overflow line.
#[inline]
pub(crate) const fn link(at: u64) -> u64 {
    LINK | at >> 6
}

/// The offset in an entry or a link.
#[inline]
pub(crate) const fn at_of(word: u64) -> u64 {
    units_of(word) << 6
}

/// The offset in an entry or a link, in lines.
#[inline]
pub(crate) const fn units_of(word: u64) -> u64 {
    word & UNITS
}

/// The tag of an entry; 0 for an empty word or a link.
#[inline]
pub(crate) const fn entry_tag(word: u64) -> u64 {
    word >> TAG_SHIFT
}

/// True if the word is a link.
#[inline]
pub(crate) const fn is_link(word: u64) -> bool {
    entry_tag(word) == 0 && word & LINK != 0
}

/// True if the word is an intent.
#[inline]
pub(crate) const fn is_intent(word: u64) -> bool {
    word & INTENT != 0
}

/// The intent of a write line, for the key with this tag.
#[inline]
pub(crate) const fn intent(tag: u64, line_at: u64) -> u64 {
    debug_assert!(tag != 0, "an intent has the tag of its key");
    entry(tag, line_at) | INTENT
}

/// True if the rest of an entry without its tag is a cell's offset, and not an intent.
#[inline]
pub(crate) const fn is_units(rest: u64) -> bool {
    rest <= UNITS
}

/// The depth in a control word.
#[inline]
pub(crate) const fn depth_of(control: u64) -> u32 {
    ((control & PAYLOAD) >> DEPTH_SHIFT) as u32
}

/// The stamp in a control word.
#[inline]
pub(crate) const fn stamp_of(control: u64) -> u64 {
    control & STAMP
}

/// The payload of a control word.
#[inline]
pub(crate) const fn control(depth: u32, stamp: u64) -> u64 {
    debug_assert!(depth < 64, "a depth has six bits");
    (depth as u64) << DEPTH_SHIFT | stamp & STAMP
}

/// R1: the control word, without its owner.
#[inline]
pub(crate) fn begin(control: &AtomicU64) -> u64 {
    begin_whole(control) & PAYLOAD
}

/// As [`begin`], with the owner.
#[inline]
pub(crate) fn begin_whole(control: &AtomicU64) -> u64 {
    let order = if mutant("begin-relaxed") { Ordering::Relaxed } else { Ordering::Acquire };
    control.load(order)
}

/// R4: true if nothing moved since [`begin`] returned `before`. All loads of the scan are acquire
/// loads, so this load does not precede any of them.
#[inline]
pub(crate) fn is_unmoved(control: &AtomicU64, before: u64) -> bool {
    mutant("miss-unchecked") || control.load(Ordering::Acquire) & PAYLOAD == before
}

/// Publishes an entry, a link or an empty word: the commit of most operations (O1).
#[inline]
pub(crate) fn publish(word: &AtomicU64, value: u64) {
    let order = if mutant("publish-relaxed") { Ordering::Relaxed } else { Ordering::Release };
    word.store(value, order);
}

/// As [`publish`], and no later load of this thread precedes the store: the commit is visible to
/// all before its writer reads anything else.
#[inline]
pub(crate) fn publish_before_reads(word: &AtomicU64, value: u64) {
    // A locked exchange is a full barrier. Here it waits for the stores of the new cell only: as
    // the release of the lock it would also wait for those that complete the commit, which change
    // nothing that a reader sees.
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    word.swap(value, Ordering::SeqCst);
    #[cfg(any(not(target_arch = "x86_64"), loom))]
    {
        publish(word, value);
        if !mutant("commit-no-fence") {
            crate::atomic::fence(Ordering::SeqCst);
        }
    }
}

/// The status of a committed transaction. Before the decision it is 0.
pub(crate) const COMMITTED: u64 = 1;

/// The status of an aborted transaction.
pub(crate) const ABORTED: u64 = 2;

/// Commits a transaction, unless it was aborted: from here on all its intents stand for their new
/// entries. True if it is committed.
#[inline]
pub(crate) fn decide(status: &AtomicU64) -> bool {
    if mutant("decide-store") {
        status.store(COMMITTED, Ordering::Release);
        return true;
    }
    let order = if mutant("decide-relaxed") { Ordering::Relaxed } else { Ordering::AcqRel };
    status.compare_exchange(0, COMMITTED, order, Ordering::Acquire).is_ok()
}

/// Behind [`decide`], which has committed: what this thread loads next is not older than the
/// commit.
#[inline]
pub(crate) fn fence_behind_decision() {
    // On x86-64 the compare-and-swap of the decision is a full barrier: every process sees the
    // intents and the status before this thread carries out a later load, and later stores, which
    // complete the commit, change nothing that a reader sees.
    #[cfg(any(not(target_arch = "x86_64"), loom))]
    crate::atomic::fence(Ordering::SeqCst);
}

/// Aborts a transaction, unless it was committed: from here on all its intents stand for their old
/// entries. Returns its status.
#[inline]
pub(crate) fn abort(status: &AtomicU64) -> u64 {
    match status.compare_exchange(0, ABORTED, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => ABORTED,
        Err(decided) => decided,
    }
}

/// The status of a transaction, for a reader of one of its intents. Acquire: a reader that sees the
/// decision sees every intent, or a later value.
#[inline]
pub(crate) fn status_of(status: &AtomicU64) -> u64 {
    let order = if mutant("status-relaxed") { Ordering::Relaxed } else { Ordering::Acquire };
    status.load(order)
}

/// Loads an entry (R2).
#[inline]
pub(crate) fn load(word: &AtomicU64) -> u64 {
    let order = if mutant("load-relaxed") { Ordering::Relaxed } else { Ordering::Acquire };
    word.load(order)
}
