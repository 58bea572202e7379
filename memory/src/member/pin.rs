//! Pins and the epoch (`spec/region.md`, section 6): how a reader protects what it reads from reuse
//! without a lock, a fence or a shared line.
//!
//! ```text
//! reader                              reclaimer
//! P1  e = epoch        (acquire)      U1  unlink the cell
//! P2  pin = [e, e]                    U2  r = epoch, kept in the cell
//! P3  light barrier    pairs with A2  A1  e = epoch
//! P4  load an entry    (acquire)      A2  heavy barrier            pairs with P3
//! P5  epoch is not the pin's end:     A3  epoch: e -> e + 1  (CAS, release)
//!     pin = [.., epoch], P3, P4       A4  load the pins: safe = least start, or e + 1
//! P6  load the cell                   A5  reuse the cell if r + 2 <= safe, or if r + 2 <= e + 1
//! P7  pin = 0          (release)          and no pin with a start below r + 2 ends at its birth
//!                                         or later
//! ```
//!
//! The word of a pin has 16 bits for the distance from its start to its end. A longer one is in a
//! second word, which P5 stores before the first:
//!
//! ```text
//! P5a far = epoch                     A4a load the pin         (acquire)
//! P5b pin = [start, far]              A4b it says far: end = far, unless far is too near
//! P5c P3, P4                          pairs with A2, as P3
//! ```
//!
//! If A4 sees the pin before P5b, or the far end before P5a, the end is an earlier one, and P5c
//! follows A2: the reader sees each unlink that counts. The far end only rises. One of a former pin
//! of the slot, which is at most the start of this one, is too near: then the pin has no end.
//!
//! The heavy barrier is `membarrier(2)`. The light barrier only prevents the compiler from moving
//! P4 before P2. In a fenced region both are full fences.
//!
//! A pin is an interval of epochs. A cell has a birth epoch, loaded before it is published. P4 and
//! P5 guarantee that a reader uses a cell only if its birth is not behind the end of the pin. A
//! reader that is stopped therefore keeps what was live while it ran, and nothing that was written
//! later.

use crate::atomic::{AtomicU64, Ordering, compiler_fence, fence, mutant};
use crate::crash::crash_point;
use crate::layout::{Corruption, seal, unseal};

const EPOCH: &str = "the epoch word has a flipped bit";

/// Bits of an epoch in a pin, in a retired cell and in its sealed word.
const EPOCH_BITS: u32 = 48;
const EPOCH_MASK: u64 = (1 << EPOCH_BITS) - 1;

/// The distance from the start to the end of a pin that means: this distance or a longer one. The
/// end is in another word.
const REACH_FAR: u64 = if cfg!(loom) { 2 } else { u64::MAX >> EPOCH_BITS };
const _: () = assert!(EPOCH_BITS + 16 == u64::BITS, "an epoch is what `seal` keeps");

/// Pins the current epoch. Returns the epoch's word, for [`is_within`].
#[inline]
pub(crate) fn pin(epoch: &AtomicU64, pin: &AtomicU64, is_fenced: bool) -> u64 {
    let seen = epoch.load(Ordering::Acquire);
    pin.store(seen >> 16, Ordering::Relaxed);
    if is_fenced && !mutant("pin-no-fence") {
        full_fence();
    } else {
        compiler_fence(Ordering::SeqCst);
    }
    seen
}

/// True if the epoch's word is still `seen`: every entry that was loaded before leads to a cell
/// that was born before the end of the pin.
///
/// Relaxed: the entry was loaded with acquire, and its writer loaded the birth epoch before it.
#[inline]
pub(crate) fn is_within(epoch: &AtomicU64, seen: u64) -> bool {
    epoch.load(Ordering::Relaxed) == seen || mutant("birth-unchecked")
}

/// The words of a member's pin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PinWords<'a> {
    /// Its start, and the distance to its end.
    pub(crate) pin: &'a AtomicU64,
    /// Its end, if that distance is [`REACH_FAR`].
    pub(crate) far_end: &'a AtomicU64,
}

/// Moves the end of a pin to the current epoch. Returns the epoch's word. Entries that were loaded
/// before are loaded again.
#[cold]
pub(crate) fn extend(
    epoch: &AtomicU64,
    PinWords { pin, far_end }: PinWords<'_>,
    is_fenced: bool,
) -> u64 {
    let seen = epoch.load(Ordering::Acquire);
    let start = pin.load(Ordering::Relaxed) & EPOCH_MASK;
    let reach = (seen >> 16).saturating_sub(start).min(REACH_FAR);
    if reach == REACH_FAR && !mutant("far-end-late") {
        far_end.store(seen >> 16, Ordering::Relaxed);
    }
    pin.store(start | reach << EPOCH_BITS, Ordering::Relaxed);
    if is_fenced && !mutant("extend-no-fence") {
        full_fence();
    } else {
        compiler_fence(Ordering::SeqCst);
    }
    if mutant("far-end-late") {
        far_end.store(seen >> 16, Ordering::Relaxed);
    }
    seen
}

/// Loads a word that leads to a cell, until the pin protects the cell.
#[inline]
pub(crate) fn load_protected(
    load: impl Fn() -> u64,
    is_protected: impl Fn() -> bool,
    extend: impl Fn(),
) -> u64 {
    loop {
        let seen = load();
        if is_protected() {
            return seen;
        }
        extend();
        if mutant("extend-no-reload") {
            return seen;
        }
    }
}

/// True if the pin protects what was loaded. If not, it is extended, and all is loaded again.
#[inline]
pub(crate) fn keep_protected(is_protected: impl Fn() -> bool, extend: impl Fn()) -> bool {
    let is_kept = is_protected();
    if !is_kept {
        extend();
    }
    is_kept || mutant("extend-in-line")
}

/// Out of line, so that the usual read path contains no locked instruction.
#[cold]
#[inline(never)]
fn full_fence() {
    fence(Ordering::SeqCst);
}

/// Ends a pin: nothing that was read through it is used any more.
#[inline]
pub(crate) fn unpin(pin: &AtomicU64) {
    let order = if mutant("unpin-relaxed") { Ordering::Relaxed } else { Ordering::Release };
    pin.store(0, order);
}

/// The birth epoch of a cell that is allocated now and published later.
#[inline]
pub(crate) fn birth_epoch(epoch: &AtomicU64) -> u64 {
    epoch.load(Ordering::Relaxed) >> 16
}

/// The epoch to store in a cell that was unlinked just now.
#[inline]
pub(crate) fn retire_epoch(epoch: &AtomicU64, is_fenced: bool) -> u64 {
    if is_fenced && !mutant("retire-no-fence") {
        fence(Ordering::SeqCst);
    } else {
        // U1 precedes U2 in program order; the barrier A2 of other members does the rest.
        compiler_fence(Ordering::SeqCst);
    }
    epoch.load(Ordering::Acquire) >> 16
}

/// Advances the epoch by one and returns it. `heavy` is the barrier A2. If it fails, the epoch is
/// not changed and the result is 0: nothing below is safe.
///
/// # Errors
/// A flipped bit in the epoch's word.
pub(crate) fn advance(epoch: &AtomicU64, heavy: impl Fn() -> bool) -> Result<u64, Corruption> {
    let seen = epoch.load(Ordering::Acquire);
    let now = unseal(seen, EPOCH)?;
    if !mutant("advance-no-barrier") && !heavy() {
        return Ok(0); // No barrier, nothing is safe.
    }
    match epoch.compare_exchange(seen, seal(now + 1), Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            crash_point!("epoch.moved");
            Ok(now + 1)
        }
        Err(other) => unseal(other, EPOCH),
    }
}

/// The epochs that a pin holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PinInterval {
    /// The epoch in which the reader began.
    pub(crate) start: u64,
    /// The epoch of the last entry that it loaded. `u64::MAX`: unknown.
    pub(crate) end: u64,
}

/// The epoch in which the pin of a word began. `None` if there is no pin.
#[inline]
pub(crate) const fn start_of(word: u64) -> Option<u64> {
    if word == 0 { None } else { Some(word & EPOCH_MASK) }
}

impl PinInterval {
    /// A4a and A4b. `None` if there is no pin.
    pub(crate) fn load(words: PinWords<'_>) -> Option<Self> {
        let order = if mutant("scan-relaxed") { Ordering::Relaxed } else { Ordering::Acquire };
        let word = words.pin.load(order);
        let start = start_of(word)?;
        let reach = word >> EPOCH_BITS;
        if reach < REACH_FAR {
            return Some(Self { start, end: start + reach });
        }
        let far_end = words.far_end.load(Ordering::Relaxed);
        // A smaller one is not of this pin.
        let is_of_pin = reach == REACH_FAR && far_end >= start + REACH_FAR;
        Some(Self { start, end: if is_of_pin { far_end } else { u64::MAX } })
    }

    /// True if it contains another interval.
    pub(crate) const fn contains(self, other: Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// The smallest interval that contains both.
    fn join(self, other: Self) -> Self {
        debug_assert!(self.start <= self.end && other.start <= other.end, "an interval is empty");
        Self { start: self.start.min(other.start), end: self.end.max(other.end) }
    }

    /// The epochs in which a cell can have been born and retired that neither this interval nor the
    /// next one holds, and that their join would hold.
    const fn gap_before(self, next: Self) -> u64 {
        next.start.saturating_sub(self.end.saturating_add(DISTANCE))
    }

    /// True if the reader may use a cell that was retired with this word.
    pub(crate) fn holds_word(self, word: u64) -> bool {
        is_retired(word) && self.holds(Life::decode(word))
    }

    /// True if the reader may use a cell with this life.
    const fn holds(self, life: Life) -> bool {
        self.start < life.retired + DISTANCE && self.end >= life.born
    }
}

/// Epochs between the retirement of a cell and its reuse.
pub(crate) const DISTANCE: u64 = 2;

/// A pin that is this many epochs old is *stalled*. A correctly used view ends long before.
pub(crate) const STALLED_EPOCHS: u64 = if cfg!(loom) { 1 } else { 8 };

/// Intervals of stalled pins that are told apart. Each retired cell is compared with all of them.
/// Of more, those with the smallest gaps between them count as one interval.
const STALLED_MAX: usize = 32;

/// What stalled pins hold: each its own, or if there are many, what they hold together.
pub(crate) fn told_apart(mut pins: Vec<PinInterval>) -> Vec<PinInterval> {
    if pins.len() > STALLED_MAX {
        join_nearest(&mut pins);
    }
    pins
}

/// Sorts intervals by their starts and joins some of them, until at most [`STALLED_MAX`] are left:
/// first those between which no cell can have lived, then those with the smallest gaps.
#[cold]
fn join_nearest(pins: &mut Vec<PinInterval>) {
    pins.sort_unstable_by_key(|pin| (pin.start, pin.end));
    join_across(pins, 0, usize::MAX);
    let excess = pins.len().saturating_sub(STALLED_MAX);
    if excess == 0 {
        return;
    }
    let mut gaps: Vec<u64> =
        pins.iter().zip(pins.iter().skip(1)).map(|(one, next)| one.gap_before(*next)).collect();
    gaps.sort_unstable();
    let Some(widest) = gaps.get(excess - 1).copied() else { return };
    // Of gaps of one size only as many as necessary.
    let equal = excess - gaps.iter().filter(|gap| **gap < widest).count();
    join_across(pins, widest, equal);
}

/// Joins neighbours with a gap below `widest`, and the first `equal` of those with that gap.
fn join_across(pins: &mut Vec<PinInterval>, widest: u64, mut equal: usize) {
    pins.dedup_by(|next, one| {
        let gap = one.gap_before(*next);
        let is_equal = gap == widest && equal != 0;
        equal -= usize::from(is_equal);
        let is_joined = is_equal || gap < widest;
        if is_joined {
            *one = one.join(*next);
        }
        is_joined
    });
}

/// What the pins of all members allow to reuse.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SafeEpochs {
    /// The least start of a pin, or the current epoch.
    pub(crate) all: u64,
    /// As `all`, without the stalled pins.
    pub(crate) recent: u64,
    /// The stalled pins.
    pub(crate) stalled: Vec<PinInterval>,
}

impl SafeEpochs {
    /// What is safe after an advance to `now`.
    pub(crate) fn scan<'a>(now: u64, pins: impl Iterator<Item = PinWords<'a>>) -> Self {
        let mut safe = Self { all: now, recent: now, stalled: Vec::new() };
        for pin in pins.filter_map(PinInterval::load) {
            safe.all = safe.all.min(pin.start);
            if pin.start.saturating_add(STALLED_EPOCHS) >= now {
                safe.recent = safe.recent.min(pin.start);
            } else {
                safe.stalled.push(pin);
            }
        }
        safe.stalled = told_apart(safe.stalled);
        debug_assert!(safe.all <= safe.recent, "what is safe for all is safe for recent readers");
        debug_assert!(safe.stalled.len() <= STALLED_MAX, "stalled readers are told apart");
        safe
    }

    /// True if a cell that was retired with this word may be reused although its retirement is not
    /// before every pin: no stalled pin holds it.
    pub(crate) fn is_reusable(&self, word: u64) -> bool {
        let life = Life::decode(word);
        is_before(life.retired, self.recent) && !self.is_held(life)
    }

    /// True if only a stalled pin prevents the reuse of a cell that was retired with this word.
    pub(crate) fn is_set_aside(&self, word: u64) -> bool {
        let life = Life::decode(word);
        is_before(life.retired, self.recent) && self.is_held(life)
    }

    /// True if no pin began before epoch `retired` + 2, except those that had stalled already.
    pub(crate) fn is_safe_but_for(&self, retired: u64, stalled: &[PinInterval]) -> bool {
        let is_old = |pin: &PinInterval| stalled.iter().any(|other| other.start == pin.start);
        self.recent >= retired + DISTANCE
            && self.stalled.iter().all(|pin| pin.start >= retired + DISTANCE || is_old(pin))
    }

    /// True if a stalled pin would hold a live cell with this birth epoch after its retirement.
    pub(crate) fn would_hold(&self, birth: u64) -> bool {
        debug_assert!(!is_retired(birth), "a live cell has a birth epoch");
        self.stalled.iter().any(|pin| pin.end >= birth)
    }

    fn is_held(&self, life: Life) -> bool {
        self.stalled.iter().any(|pin| pin.holds(life))
    }
}

/// The epochs between which readers could find a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Life {
    born: u64,
    retired: u64,
}

/// Bit of the word `retired` of a cell that is retired. A live cell has its birth epoch there.
const RETIRED: u64 = 1 << 63;

/// Bits of the significand of an age. An age is rounded up by less than a five-hundredth.
const AGE_BITS: u32 = 10;
/// The encoded age that means: older than the region's first epoch.
const AGE_UNKNOWN: u64 = (RETIRED >> EPOCH_BITS) - 1;

/// The encoded age that means: the log holds the cell, and the epoch is its birth epoch.
const AGE_HELD: u64 = AGE_UNKNOWN - 1;

/// The word of a cell that no reader has seen: retired in epoch 0. The first pin of a region starts
/// in epoch 2 and holds nothing that was retired before epoch 1.
pub(crate) const NEVER_READ: u64 = RETIRED;

const _: () = assert!(AGE_UNKNOWN << EPOCH_BITS < RETIRED, "an age leaves the highest bit free");
const _: () = assert!(AGE_HELD > 1 << AGE_BITS, "ages up to two to the 10 are exact");
const _: () = assert!(RETIRED > EPOCH_MASK, "a live cell's word is its epoch");

/// True if a cell with this word is retired.
#[inline]
pub(crate) const fn is_retired(word: u64) -> bool {
    word & RETIRED != 0
}

/// True if the log holds a cell with this word. It counts as retired, and keeps its birth epoch.
#[inline]
pub(crate) const fn is_held(word: u64) -> bool {
    word >> EPOCH_BITS == (RETIRED >> EPOCH_BITS | AGE_HELD)
}

/// The word of a cell that the log holds from now on, from its word until then.
#[inline]
pub(crate) const fn hold(word: u64) -> u64 {
    RETIRED | AGE_HELD << EPOCH_BITS | epoch_of(word)
}

/// The birth epoch of a live or held cell, or the epoch in which a cell was retired.
#[inline]
pub(crate) const fn epoch_of(word: u64) -> u64 {
    word & EPOCH_MASK
}

/// The word of a cell that was retired in epoch `retired`, from its word until then. A birth epoch
/// in the future is that of memory which was never a cell, so that its age is unknown.
#[inline]
pub(crate) const fn retire(word: u64, retired: u64) -> u64 {
    let birth = if is_held(word) { epoch_of(word) } else { word };
    let age = if is_retired(birth) {
        AGE_UNKNOWN
    } else {
        match retired.checked_sub(birth) {
            Some(age) => encode_age(age),
            None => AGE_UNKNOWN,
        }
    };
    RETIRED | age << EPOCH_BITS | retired & EPOCH_MASK
}

/// An age as a significand of ten bits and an exponent, rounded up, plus one. The sum is never 0: a
/// retired cell whose bit is flipped has no epoch of the region as its birth epoch.
#[inline]
const fn encode_age(age: u64) -> u64 {
    if age >> AGE_BITS == 0 {
        return age + 1;
    }
    let exponent = u64::BITS - age.leading_zeros() - AGE_BITS;
    let whole = age >> exponent;
    let rounded = if whole << exponent == age { whole } else { whole + 1 };
    let (significand, exponent) =
        if rounded >> AGE_BITS == 0 { (rounded, exponent) } else { (rounded >> 1, exponent + 1) };
    let encoded = ((exponent as u64) << AGE_BITS | significand) + 1;
    if encoded < AGE_HELD { encoded } else { AGE_UNKNOWN }
}

impl Life {
    #[inline]
    const fn decode(word: u64) -> Self {
        let (age, retired) = ((word & !RETIRED) >> EPOCH_BITS, word & EPOCH_MASK);
        if age == AGE_HELD {
            return Self { born: retired, retired: EPOCH_MASK };
        }
        if age == AGE_UNKNOWN {
            return Self { born: 0, retired };
        }
        let age = age.saturating_sub(1); // 0: no reader has seen it.
        let significand = age & ((1 << AGE_BITS) - 1);
        Self { born: retired.saturating_sub(significand << (age >> AGE_BITS)), retired }
    }
}

#[inline]
fn is_before(retired: u64, safe: u64) -> bool {
    let distance = if mutant("reuse-early") { 1 } else { DISTANCE };
    retired + distance <= safe
}

/// True if a cell that was retired with this word may be reused, because no pin began before the
/// epoch `safe`.
#[inline]
pub(crate) fn is_reusable(word: u64, safe: u64) -> bool {
    is_before(word & EPOCH_MASK, safe)
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
