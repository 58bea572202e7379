//! Which namespace an entry of the catalog belongs to, and whether it is being removed: one word of
//! the entry (`docs/decisions/016-namespaces.md`).
//!
//! ```text
//! remover, under the namespaces lock         writer, under its bucket's lock
//! D1  leaving := set      (compare-and-swap) W1  the word is that of its handle: continue
//! D2  each bucket: lock, look, unlock        W2  leaving: clear it (compare-and-swap), continue
//! D3  removed, generation + 1                W3  another generation: its namespace is removed
//!     (compare-and-swap from D1's word)
//!                                            reader
//!                                            R1  read the entry of a bucket  (acquire)
//!                                            R2  the generation is that of its handle: keep it
//! ```
//!
//! A writer whose lock precedes D2 of its bucket has published a record, which D2 finds. A later
//! one synchronizes with D2 through the lock, so W1 reads D1 or a later word. It then clears
//! leaving, and D3 fails. So does a process that changes the flags of the namespace, under the lock
//! of its first bucket: the remover reads them behind D2. A record of the next namespace is
//! published after its generation was stored, so a reader that R1 leads to it reads that generation
//! in R2.
//!
//! A remover that dies leaves "leaving" behind: the next writer clears it, or the next remover does
//! D1 to D3 again. The memory of an index stays with the entry. It is always one of buckets, so a
//! late writer locks a bucket of the next namespace, finds another generation, and changes nothing.

use nearstate_model::{Error, invariant};

use crate::atomic::{AtomicU64, Ordering, mutant};
use crate::layout::{Corruption, NAMESPACE_NUMBER_BITS, seal, unseal};

/// How an entry of the catalog is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryUse {
    /// It has a namespace.
    Live = 0,
    /// It has a namespace that a process is about to remove.
    Leaving = 1,
    /// Its namespace was removed. Records of its indexes may be left.
    Removed = 2,
    /// Its namespace was removed with everything that belonged to it.
    Free = 3,
}

/// The largest generation: a namespace that has it is never removed, so that no number is used
/// twice. A handle without a namespace has the next one.
pub(crate) const GENERATION_MAX: u32 = u16::MAX as u32 - 1;

const GENERATION_SHIFT: u32 = 32;

const _: () =
    assert!(GENERATION_SHIFT + 16 == 48, "a sealed word has the generation above its use");
const _: () = assert!(NAMESPACE_NUMBER_BITS == 16, "a number is an entry and a generation");

/// The first bytes of an entry that ends the events of a namespace. No event is as short.
const END: [u8; 4] = [0xff; 4];

/// The entry that follows the last event of a removed namespace in its watch ring. The next
/// namespace of the catalog entry, which uses the ring then, has this generation.
pub(crate) fn end_of_namespace(generation: u32) -> [u8; 8] {
    let mut bytes = [0; 8];
    let (head, tail) = bytes.split_at_mut(END.len());
    head.copy_from_slice(&END);
    tail.copy_from_slice(&generation.to_le_bytes());
    bytes
}

/// True if an entry of a watch ring ends the events of the namespace with this number.
#[inline]
pub fn is_end_of_namespace(entry: &[u8], number: u32) -> bool {
    let Some((&END, rest)) = entry.split_first_chunk() else { return false };
    let next = rest.try_into().map(u32::from_le_bytes);
    next.is_ok_and(|next| next > number >> NAMESPACE_NUMBER_BITS)
}

/// The word of a generation and a use. That of the first namespace of an entry is 0.
pub(crate) const fn use_word(generation: u32, is: EntryUse) -> u64 {
    debug_assert!(generation >> 16 == 0, "a generation has 16 bits");
    seal((generation as u64) << GENERATION_SHIFT | is as u64) ^ seal(0)
}

/// The generation and the use of an entry, from its word.
///
/// # Errors
/// A flipped bit.
pub(crate) const fn parse_use(word: u64) -> Result<(u32, EntryUse), Corruption> {
    const WHAT: &str = "the generation of a namespace has a flipped bit";
    let value = match unseal(word ^ seal(0), WHAT) {
        Ok(value) => value,
        Err(error) => return Err(error),
    };
    let generation = (value >> GENERATION_SHIFT) as u32;
    let is = match value & ((1 << GENERATION_SHIFT) - 1) {
        0 => EntryUse::Live,
        1 => EntryUse::Leaving,
        2 => EntryUse::Removed,
        3 => EntryUse::Free,
        _ => return Err(Corruption("a catalog entry has an unknown use")),
    };
    Ok((generation, is))
}

/// The generation of a word that may be damaged: R2.
#[inline]
pub(crate) const fn generation_of(word: u64) -> u32 {
    (word >> (16 + GENERATION_SHIFT)) as u32
}

/// R2: true if the entry still belongs to the namespace with this generation.
#[inline]
pub(crate) fn is_current(word: &AtomicU64, generation: u32) -> bool {
    // R1 orders this load after the stores that preceded the publication of what it has found.
    generation_of(word.load(Ordering::Relaxed)) == generation
}

/// W1 to W3: keeps the namespace with this generation from being removed before the record of the
/// caller is published. The caller holds the lock of the record's bucket. False: it is removed.
#[inline]
pub(crate) fn keep(word: &AtomicU64, generation: u32) -> Result<bool, Corruption> {
    let seen = word.load(Ordering::Acquire);
    if seen >> 16 == u64::from(generation) << GENERATION_SHIFT || mutant("leaving-ignored") {
        return Ok(true);
    }
    keep_leaving(word, generation, seen)
}

#[cold]
fn keep_leaving(word: &AtomicU64, generation: u32, mut seen: u64) -> Result<bool, Corruption> {
    loop {
        match parse_use(seen)? {
            (now, EntryUse::Live) if now == generation => return Ok(true),
            (now, EntryUse::Leaving) if now == generation => {}
            _ => return Ok(false),
        }
        let live = use_word(generation, EntryUse::Live);
        match word.compare_exchange(seen, live, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return Ok(true),
            Err(now) => seen = now,
        }
    }
}

/// D1. False if the entry has no namespace with this generation.
pub(crate) fn begin_removal(word: &AtomicU64, generation: u32) -> Result<bool, Corruption> {
    let mut seen = word.load(Ordering::Acquire);
    loop {
        match parse_use(seen)? {
            (now, EntryUse::Live | EntryUse::Leaving) if now == generation => {}
            _ => return Ok(false),
        }
        let leaving = use_word(generation, EntryUse::Leaving);
        match word.compare_exchange(seen, leaving, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return Ok(true),
            Err(now) => seen = now,
        }
    }
}

/// D3: the commit of a removal. False if a writer has used the namespace since D1.
pub(crate) fn commit_removal(word: &AtomicU64, generation: u32, is: EntryUse) -> bool {
    invariant!(generation < GENERATION_MAX, "an entry has {generation} generations");
    invariant!(matches!(is, EntryUse::Removed | EntryUse::Free), "a removed entry is {is:?}");
    let (leaving, removed) =
        (use_word(generation, EntryUse::Leaving), use_word(generation + 1, is));
    if mutant("removal-store") {
        word.store(removed, Ordering::Release);
        return true;
    }
    word.compare_exchange(leaving, removed, Ordering::AcqRel, Ordering::Acquire).is_ok()
}

/// Takes D1 back, after a record was found.
pub(crate) fn cancel_removal(word: &AtomicU64, generation: u32) {
    let (leaving, live) =
        (use_word(generation, EntryUse::Leaving), use_word(generation, EntryUse::Live));
    // If a writer was faster, the entry is live already.
    let _ = word.compare_exchange(leaving, live, Ordering::AcqRel, Ordering::Acquire);
}

/// The place of a namespace in the catalog: the number of its entry.
pub const fn namespace_place(number: u32) -> u32 {
    crate::layout::entry_of(number)
}

/// The error for the number of a namespace that was removed.
#[cold]
pub fn namespace_removed(number: u32) -> Error {
    Error::BadArgument {
        detail: format!("namespace {number} does not exist any more: open it again by its name"),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_word_has_a_generation_and_a_use_and_a_flipped_bit_is_found() {
        assert_eq!(use_word(0, EntryUse::Live), 0, "as in a region that removed nothing");
        for generation in [0, 1, 77, GENERATION_MAX] {
            for is in [EntryUse::Live, EntryUse::Leaving, EntryUse::Removed, EntryUse::Free] {
                let word = use_word(generation, is);
                assert_eq!(parse_use(word), Ok((generation, is)));
                assert_eq!(generation_of(word), generation);
                for bit in 0..64 {
                    assert!(parse_use(word ^ 1 << bit).is_err(), "bit {bit} of {word:#x}");
                }
            }
        }
    }
}
