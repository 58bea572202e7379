//! The offline repair: rebuilds what is derived from the records, and corrects words with check
//! bits (`spec/region.md`, "Repair").
//!
//! Derived are the bitmaps and words of chunks, the queues and bump ranges of arenas, closed undo
//! records, the states of member slots, and the entries of the index. A flipped bit of a word with
//! check bits, of an entry or of a link is corrected: exactly one bit leads to a word that fits.
//!
//! Each word is replaced by one store, a cell becomes free only after no queue contains it, and
//! bits of bitmaps are set before others are cleared. A repair that was killed can be run again,
//! and sessions that open in between see a region that is no more damaged than before.

mod walk;
mod unaccounted;
mod metadata;
mod facts;

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use nearstate_model::limits::MEMBERS_MAX;
use nearstate_model::{Error, Result, invariant};

use crate::atomic::Ordering;
use crate::check::metadata::free_slots;
use crate::check::{CheckReport, RecordCheck};
use crate::crash::crash_point;
use crate::layout::{
    Corruption, MAGIC, MEMBER_BYTES, MEMBERS, SUPER_BYTES, SUPER_DROP, SUPER_MEMBERS, arena_at,
    seal, unseal,
};
use crate::member::arena::undo;
use crate::region::file::{AttachOptions, Region};
use crate::region::liveness::check_alone;
use crate::region::map::Map;
use crate::region::member_table::member_slots_used;
use crate::region::opened_file::{OpenedFile, open_file};
use crate::region::superblock::corrected_byte;

/// Changes and losses that a report lists. Further ones are only counted.
const NAMED_MAX: usize = 1000;

/// The result of a repair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// What was repaired, one sentence each; the first thousand.
    pub repaired: Vec<String>,
    /// Number of repairs.
    pub repaired_count: u64,
    /// What could not be saved: records, rings, namespaces; the first thousand.
    pub lost: Vec<String>,
    /// Number of losses.
    pub lost_count: u64,
    /// Buckets, overflow lines, records and namespaces of which only zeros were left.
    pub zeroed_count: u64,
    /// If there were such: bytes that were allocated, and of which it is not known what they were
    /// used for. A record takes 64 bytes or more. Not 0: one of the losses.
    pub unaccounted_bytes: u64,
}

impl RepairReport {
    /// Adds a repair.
    pub fn add_repaired(&mut self, text: impl Into<String>) {
        debug_assert!(self.repaired.len() as u64 <= self.repaired_count, "texts are counted");
        self.repaired_count += 1;
        if self.repaired.len() < NAMED_MAX {
            self.repaired.push(text.into());
        }
    }

    /// Adds a loss.
    pub fn add_lost(&mut self, text: impl Into<String>) {
        debug_assert!(self.lost.len() as u64 <= self.lost_count, "texts are counted");
        self.lost_count += 1;
        if self.lost.len() < NAMED_MAX {
            self.lost.push(text.into());
        }
    }
}

/// Repairs a region that no other living process has attached, with a session or without.
/// `validate` is as for [`crate::check::check`]: a record that it refuses is removed.
///
/// # Errors
/// `NotARegion` if more than one bit of the superblock is damaged, `InUse`, `System`, and `Damaged`
/// for what cannot be repaired.
pub fn repair_with(
    path: &Path,
    options: &AttachOptions,
    validate: RecordCheck<'_>,
) -> Result<RepairReport> {
    let mut report = RepairReport::default();
    correct_superblock(path, options, &mut report)?;
    let region = Region::attach_with(path, options)?;
    let mark = region.shared.map.word(SUPER_DROP)?.load(Ordering::Acquire);
    if mark.is_power_of_two() && set(&region.shared.map, SUPER_DROP, 0)? {
        report.add_repaired("superblock: the drop mark");
    }
    recover(&region)?;
    region.shared.while_closed(
        || is_unused(&region),
        || {
            let map = &region.shared.map;
            // Before their undo records are cleared.
            let before = BeforeRepair {
                is_recovered: has_no_pending_cells(map)?,
                kept: unaccounted::kept_ranges(map),
            };
            metadata::repair(map, &mut report)?;
            walk::repair(map, &mut report, validate, &before)
        },
    )?;
    Ok(report)
}

/// Checks, while no session opens, that no other process has the region attached.
///
/// A process without a session counts too: it has kept where the segments of indexes are, and the
/// repair frees those of removed namespaces. One that attaches from now on knows none of them.
fn is_unused(region: &Region) -> Result<()> {
    // These are named by what their slots say.
    let members = region.members().unwrap_or_default();
    if let Some(member) = members.into_iter().find(|member| member.is_alive) {
        return Err(Error::InUse { holder: member.process });
    }
    let number = region.shared.liveness.number();
    region.shared.map.with_file(|file| check_alone(file, number))
}

/// What the arenas say before they are cleared.
struct BeforeRepair {
    /// No undo record names a cell that may be unpublished.
    is_recovered: bool,
    /// The memory that belongs to no record.
    kept: Vec<(u64, u64)>,
}

/// Corrects the only flipped bit in the fields of the superblock that never change, without which
/// the region cannot be attached.
fn correct_superblock(
    path: &Path,
    options: &AttachOptions,
    report: &mut RepairReport,
) -> Result<()> {
    let OpenedFile { file, made: _ } = open_file(path, None, options.any_owner)?;
    let mut page = [0; SUPER_BYTES as usize];
    // Attaching says what is wrong with a file that is too short.
    if file.read_exact_at(&mut page, 0).is_err() {
        return Ok(());
    }
    if let Some((at, byte)) = corrected_byte(&page) {
        invariant!(at < page.len(), "byte {at} of the superblock is corrected");
        invariant!(page.get(at) != Some(&byte), "byte {at} is corrected to what it is");
        file.write_all_at(&[byte], at as u64).map_err(|error| Error::System {
            detail: format!("{}: cannot write the superblock", path.display()),
            errno: error.raw_os_error().unwrap_or(0),
        })?;
        report.add_repaired(format!("superblock: a flipped bit in byte {at}"));
    }
    correct_member_count(path, &file, &page, report)
}

/// Attaching reads the member slots, so their count is corrected before.
fn correct_member_count(
    path: &Path,
    file: &File,
    page: &[u8; SUPER_BYTES as usize],
    report: &mut RepairReport,
) -> Result<()> {
    let bytes = page.get(SUPER_MEMBERS as usize..).and_then(<[u8]>::first_chunk);
    let seen = bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let fits = |word| unseal(word, "").is_ok_and(|count| count <= MEMBERS_MAX as u64);
    let found = candidates(seen, fits);
    if !page.starts_with(&MAGIC.to_le_bytes()) || found == [seen] {
        return Ok(());
    }
    let used = member_slots_written(file);
    // Of several the least with which each slot that was ever used has its place.
    let counts = found.iter().map(|word| word >> 16);
    let Some(count) = counts.filter(|count| found.len() == 1 || *count >= used).min() else {
        return Ok(());
    };
    let word = seal(count);
    file.write_all_at(&word.to_le_bytes(), SUPER_MEMBERS).map_err(|error| Error::System {
        detail: format!("{}: cannot write the superblock", path.display()),
        errno: error.raw_os_error().unwrap_or(0),
    })?;
    report.add_repaired("the count of member slots: a flipped bit");
    Ok(())
}

/// The number of member slots up to the last one that contains something.
fn member_slots_written(file: &File) -> u64 {
    let mut slots = vec![0; (MEMBER_BYTES * MEMBERS_MAX as u64) as usize];
    // What the file does not have is zero.
    let _ = file.read_exact_at(&mut slots, MEMBERS);
    let last = slots.iter().rposition(|byte| *byte != 0);
    let used = last.map_or(0, |last| last as u64 / MEMBER_BYTES + 1);
    invariant!(used <= MEMBERS_MAX as u64, "{used} slots were written");
    used
}

/// Recovers dead members in the usual way, if no free slot has a fault on which a session would
/// act.
fn recover(region: &Region) -> Result<()> {
    let mut faults = CheckReport::default();
    let is_in_use = free_slots(&region.shared.map, &mut faults);
    if is_in_use != Ok(true) || !faults.is_clean() {
        return Ok(());
    }
    match region.member() {
        Ok(member) => drop(member),
        // What is left of it is reported with its slot.
        Err(Error::Damaged { .. }) => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

/// True if no undo record names a cell that may be unpublished, or removed and not yet retired.
fn has_no_pending_cells(map: &Map) -> Result<bool, Corruption> {
    let words = [undo::OP, undo::POP, undo::PENDING, undo::BATCH_FIRST, undo::TXN, undo::FREE_AT];
    for index in 0..member_slots_used(map)? {
        for word in words {
            if map.word(arena_at(index) + word.offset())?.load(Ordering::Acquire) != 0 {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Stores a word if it differs. True if it did.
fn set(map: &Map, at: u64, value: u64) -> Result<bool, Corruption> {
    let word = map.word(at)?;
    let differs = word.load(Ordering::Acquire) != value;
    if differs {
        word.store(value, Ordering::Release);
        crash_point!("repair.stored");
    }
    Ok(differs)
}

/// The words that differ from this one in at most one bit and fit: itself, or the others.
fn candidates(word: u64, fits: impl Fn(u64) -> bool) -> Vec<u64> {
    if fits(word) {
        return vec![word];
    }
    (0..u64::BITS).map(|bit| word ^ 1 << bit).filter(|candidate| fits(*candidate)).collect()
}

/// The only word that differs from this one in at most one bit and fits.
fn correct(word: u64, fits: impl Fn(u64) -> bool) -> Option<u64> {
    match *candidates(word, fits) {
        [word] => Some(word),
        _ => None,
    }
}

/// Corrects a sealed word whose value fits.
fn correct_sealed(
    map: &Map,
    at: u64,
    what: &str,
    fits: impl Fn(u64) -> bool,
    report: &mut RepairReport,
) -> Result<(), Corruption> {
    correct_sealed_with(map, at, what, (fits, |_| None), report)
}

/// As [`correct_sealed`]. One flip in a thousand leads to two values or more that fit and have the
/// right check bits. The second function gets them in ascending order, and chooses one by what the
/// rest of the region says.
fn correct_sealed_with(
    map: &Map,
    at: u64,
    what: &str,
    (fits, choose): (impl Fn(u64) -> bool, impl FnOnce(&[u64]) -> Option<u64>),
    report: &mut RepairReport,
) -> Result<(), Corruption> {
    let seen = map.word(at)?.load(Ordering::Acquire);
    let found = candidates(seen, |word| unseal(word, "").is_ok_and(&fits));
    let mut values: Vec<u64> = found.iter().map(|word| word >> 16).collect();
    values.sort_unstable();
    let value = match *values {
        [value] => Some(value),
        _ => choose(&values),
    };
    invariant!(
        value.is_none_or(|value| values.contains(&value)),
        "{what} is corrected to what no single bit leads to"
    );
    match value {
        Some(value) if set(map, at, seal(value))? => {
            report.add_repaired(format!("{what}: a flipped bit"));
        }
        Some(_) => {}
        None => report.add_lost(format!("{what}: {seen:#x} cannot be corrected")),
    }
    Ok(())
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::TestRegionPath;
    use crate::region::file::CreateOptions;
    use crate::region::member_table::{state, state_of};

    /// How often a test looks whether another thread has come so far.
    const LOOKS: u32 = 200;

    #[test]
    fn a_session_that_opens_while_a_repair_runs_has_its_slot_alone() {
        let path = TestRegionPath::new("opens-in-repair");
        let region = Region::create(path.path(), &CreateOptions::default()).unwrap();
        drop(region.member().unwrap());
        let other = Region::attach(path.path()).unwrap();
        let map = &region.shared.map;
        let members = std::thread::scope(|scope| {
            let opening = region.shared.while_closed(
                || Ok(()),
                || {
                    let opening = scope.spawn(|| {
                        let mut tries = std::iter::repeat_with(|| other.member());
                        // It waits a second at most.
                        tries.find(|tried| !matches!(tried, Err(Error::Stalled { .. })))
                    });
                    let is_free = |_| {
                        std::thread::yield_now();
                        state::of(state_of(map, 0).unwrap().load(Ordering::Acquire)) == state::FREE
                    };
                    // It waits without a slot. If it claimed one, it would have done so by then.
                    let _ = (0..LOOKS).all(is_free);
                    metadata::repair(map, &mut RepairReport::default())?;
                    Ok(opening)
                },
            );
            let first = opening.unwrap().join().unwrap().unwrap();
            [first, region.member()].map(Result::unwrap)
        });
        assert_ne!(members[0].index(), members[1].index(), "two sessions have one slot");
    }

    #[test]
    fn a_slot_that_was_claimed_in_a_closed_region_is_given_back() {
        for seen in [
            state::make(state::FREE, 0, 3),
            state::make(state::ALIVE, 9, 3),
            state::make(state::CLAIMING, 9, 3),
        ] {
            let word = crate::atomic::AtomicU64::new(seen);
            let claimed = state::claim(&word, seen, 7).unwrap();
            state::give_back(&word, seen, claimed);
            let left = word.load(Ordering::Relaxed);
            assert!(!state::is_owned(left) || state::process(left) == state::NO_PROCESS);
            assert_eq!(state::is_owned(left), state::is_owned(seen), "a dead member stays one");
            // Not from another session.
            let next = state::make(state::ALIVE, 7, 5);
            word.store(next, Ordering::Relaxed);
            state::give_back(&word, seen, claimed);
            assert_eq!(word.load(Ordering::Relaxed), next);
        }
    }
}
