//! The offline check of words that no walk over the cells reaches: free member slots, closed undo
//! records, catalog entries, and words that no build uses.

use nearstate_model::invariant;
use nearstate_model::limits::{MEMBERS_MAX, NAMESPACE_NAME_BYTES_MAX, NAMESPACES_MAX};

use crate::atomic::Ordering;
use crate::check::CheckReport;
use crate::cluster::check_words;
use crate::follow::{check_follower, following, incarnation};
use crate::heap::chunk::unused_table_bytes;
use crate::heap::watched;
use crate::layout::{
    ARENA_BYTES, ARENA_WORDS, CATALOG_BORN_LOGGED, CATALOG_BUCKETS, CATALOG_BYTES, CATALOG_CHECK,
    CATALOG_COMMITTED, CATALOG_COUNTED, CATALOG_FLAGS, CATALOG_GENERATION, CATALOG_HARD_LIMIT,
    CATALOG_KIND, CATALOG_LOGGED_SINCE, CATALOG_NAME, CATALOG_NAME_BYTES, CATALOG_NEXT_SOURCE,
    CATALOG_POLICY, CATALOG_RING, CATALOG_SEGMENTS, CATALOG_SOFT_LIMIT, CATALOG_SOURCE,
    CATALOG_SPLIT, CATALOG_STATE, CATALOG_USAGE, CLUSTER_BYTES, CLUSTER_PAGE, Corruption, LINE,
    LOG_FLOOR, LOG_FLOOR_LIMIT, LOG_GAP_COUNT, LOG_GAP_UNKNOWN, LOG_GAPS, LOG_GAPS_MAX,
    LOG_REPLICATED, LOG_TAIL, LOG_UNITS, MEMBER_BYTES, MEMBER_COPY, MEMBER_FAR_END,
    MEMBER_HELD_SINCE, MEMBER_NAME, MEMBER_PID, MEMBER_PIN, MEMBER_PROCESS_CHECK, MEMBER_SINCE,
    MEMBER_STATE, NAMESPACE_LIVE, SEALED_OR_ZERO, SEGMENTS, SUPER_BYTES, SUPER_CATALOG_CHANGES,
    SUPER_NAMESPACES_LOCK, SUPER_STAMP_FLOOR, SUPER_WATCHED, SUPER_WORDS, USAGE_STRIPES, arena_at,
    catalog_at, is_cluster_word, member_at, namespace_flags, unseal,
};
use crate::log::begins::check_begins;
use crate::member::arena::{Arena, LockSlot, is_arena_word, undo};
use crate::member::lock;
use crate::namespace::rules::check_rules;
use crate::region::catalog::{entries_used, is_zero_entry, parse_count};
use crate::region::catalog_use::parse_use;
use crate::region::index_table::{NamespaceIdentity, buckets_of, first_of, number_in, segment_of};
use crate::region::map::Map;
use crate::region::member_table::{member_slots_used, names_its_process, state};
use crate::takeover::check_takeover;
use crate::usage;

/// Bytes of a page, which the tables get at once.
const PAGE: u64 = 4096;
const _: () = assert!(PAGE.is_multiple_of(CATALOG_BYTES), "an entry lies in one page");
const _: () = assert!(PAGE.is_multiple_of(MEMBER_BYTES), "a slot lies in one page");

/// Words that no build writes must be zero.
pub(super) fn superblock(map: &Map, report: &mut CheckReport) -> Result<(), Corruption> {
    for at in (0..SUPER_BYTES).step_by(8).filter(|at| !SUPER_WORDS.contains(at)) {
        if load(map, at)? != 0 {
            report.fault(format!("superblock: byte {at} is not zero"));
        }
    }
    if load(map, SUPER_NAMESPACES_LOCK)? != 0 {
        report.fault("superblock: the namespaces lock is held, and its owner is not alive");
    }
    // A change of the catalog that was killed leaves an odd number.
    for at in [SUPER_CATALOG_CHANGES, SUPER_STAMP_FLOOR] {
        if parse_count(load(map, at)?).is_err() {
            report.fault(format!("superblock: the count at byte {at} has a flipped bit"));
        }
    }
    if watched::verify(load(map, SUPER_WATCHED)?).is_err() {
        report.fault("superblock: the watched word has a flipped bit");
    }
    for at in (CLUSTER_PAGE..CLUSTER_PAGE + CLUSTER_BYTES).step_by(8) {
        if !is_cluster_word(at) && load(map, at)? != 0 {
            report.fault(format!("cluster page: byte {} is not zero", at - CLUSTER_PAGE));
        }
    }
    Ok(())
}

/// The words of the log that lie in the cluster page.
pub(super) fn log(map: &Map, report: &mut CheckReport) -> Result<(), Corruption> {
    let [tail, acknowledged, floor] = [LOG_TAIL, LOG_REPLICATED, LOG_FLOOR].map(|at| load(map, at));
    let tail = tail?;
    if acknowledged? > tail || floor? > tail + 1 || load(map, LOG_FLOOR_LIMIT)? > tail + 1 {
        report.fault(format!("the log: a position behind its end {tail}"));
    }
    // A killed consumer can have left one more.
    let gaps = load(map, LOG_GAP_COUNT)?.saturating_add(1).min(LOG_GAPS_MAX);
    for at in (LOG_GAPS + 16 * gaps..LOG_GAPS + 16 * LOG_GAPS_MAX).step_by(8) {
        if load(map, at)? != 0 {
            report.fault(format!("the log: byte {} of its gaps is not zero", at - LOG_GAPS));
        }
    }
    for gap in 0..load(map, LOG_GAP_COUNT)?.min(LOG_GAPS_MAX) {
        if !is_gap(map, gap, tail)? {
            report.fault(format!("the log: gap {gap} is none of its positions up to {tail}"));
        }
    }
    if let Err(Corruption(damage)) = incarnation(map) {
        report.fault(format!("the log: {damage}"));
    }
    if let Err(Corruption(damage)) = check_begins(map) {
        report.fault(format!("the log: {damage}"));
    }
    if let Err(Corruption(damage)) = check_words(map) {
        report.fault(format!("the cluster: {damage}"));
    }
    if let Err(Corruption(damage)) = check_rules(map) {
        report.fault(format!("the cluster: {damage}"));
    }
    if let Err(Corruption(damage)) = following(map).and_then(|_| check_follower(map)) {
        report.fault(format!("the follower: {damage}"));
    }
    if let Err(Corruption(damage)) = check_takeover(map) {
        report.fault(format!("the cluster: {damage}"));
    }
    if tail == 0 && load(map, LOG_UNITS)? != 0 {
        report.fault("the log: it was never used, and has held something");
    }
    Ok(())
}

/// True if a recorded gap is one of a log with this end.
pub(crate) fn is_gap(map: &Map, gap: u64, tail: u64) -> Result<bool, Corruption> {
    let at = LOG_GAPS + 16 * gap;
    let (first, last) = (load(map, at)? & !LOG_GAP_UNKNOWN, load(map, at + 8)?);
    Ok(first != 0 && first <= last && last <= tail)
}

/// The slots that no session owns, and their undo records. Before the recovery of dead members,
/// which takes a free slot and would overwrite a flipped bit, or act on it. True if a slot is not
/// free.
pub(crate) fn free_slots(map: &Map, report: &mut CheckReport) -> Result<bool, Corruption> {
    let used = member_slots_used(map)?;
    let mut is_in_use = false;
    for index in 0..used {
        let at = member_at(index);
        let word = load(map, at + MEMBER_STATE)?;
        let known = [
            MEMBER_PIN,
            MEMBER_FAR_END,
            MEMBER_STATE,
            MEMBER_PID,
            MEMBER_PROCESS_CHECK,
            MEMBER_NAME,
            MEMBER_NAME + 8,
        ];
        for which in (0..MEMBER_BYTES).step_by(8) {
            let is_copy = which == MEMBER_COPY && state::of(word) != state::FREE;
            let is_time = which == MEMBER_SINCE || which == MEMBER_HELD_SINCE;
            let is_known = known.contains(&which) || is_time || is_copy;
            if !is_known && load(map, at + which)? != 0 {
                report.fault(format!("member {index}: byte {which} of its slot is not zero"));
            }
        }
        if state::of(word) != state::FREE {
            if state::of(word) > state::CLAIMING {
                report.fault(format!("member {index}: its slot has an unknown state"));
            }
            if state::is_owned(word) && !names_its_process(map, index, word)? {
                report.fault(format!("member {index}: its slot names another process"));
            }
            is_in_use = true;
            continue;
        }
        if load(map, at + MEMBER_PIN)? != 0 || load(map, at + MEMBER_FAR_END)? != 0 {
            report.fault(format!("member {index}: its slot is free, and has a pin"));
        }
        if state::process(word) != 0 {
            report.fault(format!("member {index}: its slot is free, and names a process"));
        }
        undo_record(map, index, report)?;
    }
    if used as usize == MEMBERS_MAX {
        return Ok(is_in_use);
    }
    // What follows the last slot in its page was never written.
    let end = member_at(used);
    if map.is_allocated(end) {
        zeros(map, end, end.next_multiple_of(PAGE) - end, "unused member slots", report)?;
    }
    if map.is_allocated(arena_at(used)) {
        zeros(map, arena_at(used), ARENA_BYTES, "the arena of an unused slot", report)?;
    }
    Ok(is_in_use)
}

/// The undo record of a free slot is closed, except for a range that is being freed.
pub(super) fn undo_record(
    map: &Map,
    index: u32,
    report: &mut CheckReport,
) -> Result<(), Corruption> {
    let arena = Arena::new(map, index, false)?;
    let closed = [
        undo::OP,
        undo::POP,
        undo::PENDING,
        undo::CHUNK_AT,
        undo::CHUNK_TO,
        undo::BATCH_FIRST,
        undo::TXN,
    ];
    let locks = LockSlot::ALL.map(undo::lock);
    if closed.iter().chain(&locks).any(|which| arena.get(*which) != 0) {
        report.fault(format!("member {index}: its undo record is open"));
    }
    if arena.get(undo::FREE_AT) == 0 && arena.get(undo::FREE_TO) != 0 {
        report.fault(format!("member {index}: its undo record has half a range"));
    }
    if arena.get(undo::ACTIVE) != 0 {
        report.fault(format!("member {index}: its slot is free, and is in an operation"));
    }
    let taker = arena.get(undo::TAKER);
    let owner = lock::owner_of(taker);
    let is_taken = owner != 0
        && owner <= u64::from(member_slots_used(map)?)
        && state::of(load(map, member_at(lock::member_of(owner)) + MEMBER_STATE)?) != state::FREE;
    if taker & lock::PAYLOAD != 0 || owner != 0 && !is_taken {
        report.fault(format!("member {index}: the lock of its queues names no member"));
    }
    for word in (0..ARENA_WORDS).filter(|word| !is_arena_word(*word)) {
        if load(map, arena_at(index) + 8 * word as u64)? != 0 {
            report.fault(format!("member {index}: byte {} of its arena is not zero", 8 * word));
        }
    }
    Ok(())
}

/// The catalog: each entry is in use and correct, or left by a killed creator, or zero.
pub(super) fn catalog(map: &Map, report: &mut CheckReport) -> Result<(), Corruption> {
    let used = entries_used(map)?;
    for index in 0..used {
        match load(map, catalog_at(index) + CATALOG_STATE)? {
            // Its creation was interrupted, or a repair has made it free.
            0 => {
                if is_zero_entry(map, index)? {
                    report.fault(format!("namespace {index}: its catalog entry is zeros"));
                }
                if parse_use(load(map, catalog_at(index) + CATALOG_GENERATION)?).is_err() {
                    report.fault(format!("namespace {index}: its generation has a flipped bit"));
                }
            }
            NAMESPACE_LIVE => {
                if let Err(Corruption(what)) = entry(map, index, report) {
                    report.fault(format!("namespace {index}: {what}"));
                }
            }
            _ => report.fault(format!("namespace {index}: its state has a flipped bit")),
        }
    }
    // A killed creator can have left one more entry. Its kind was stored first, and the next
    // creator stores every other word.
    if used as usize == NAMESPACES_MAX || !map.is_allocated(catalog_at(used)) {
        return Ok(());
    }
    let begun = u32::from(load(map, catalog_at(used) + CATALOG_KIND)? != 0);
    let end = catalog_at(used) + CATALOG_BYTES * u64::from(begun);
    let page_end = (catalog_at(used) + CATALOG_BYTES).next_multiple_of(PAGE);
    invariant!(end <= page_end, "entry {used} ends behind its page");
    zeros(map, end, page_end - end, "unused catalog entries", report)
}

fn entry(map: &Map, index: u32, report: &mut CheckReport) -> Result<(), Corruption> {
    let at = catalog_at(index);
    parse_use(load(map, at + CATALOG_GENERATION)?)?;
    // The name of a free entry is that of its last namespace, or half of that of the next one.
    let name = match number_in(map, index)? {
        Some(number) => Some(NamespaceIdentity::load(map, number)?.name),
        None => None,
    };
    unseal(load(map, at + CATALOG_FLAGS)?, "its flags have a flipped bit")?;
    for word in SEALED_OR_ZERO {
        let value = load(map, at + word)?;
        if value != 0 {
            unseal(
                value,
                "since when it is logged, its number at the source, or its policy is damaged",
            )?;
        }
    }
    if load(map, at + CATALOG_SPLIT)? != 0 {
        report.fault(format!("namespace {index}: its split lock is held"));
    }
    let buckets = unseal(load(map, at + CATALOG_BUCKETS)?, "its bucket count has a flipped bit")?;
    let what = "its count of buckets with pages has a flipped bit";
    let committed = unseal(load(map, at + CATALOG_COMMITTED)?, what)?;
    let last = segment_of(buckets.max(1) - 1);
    let is_possible = committed >= buckets
        && last + 1 < SEGMENTS
        && committed <= first_of(last + 1) + buckets_of(last + 1);
    if !is_possible {
        report.fault(format!("namespace {index}: {committed} of {buckets} buckets have pages"));
    }
    limits(map, index, report)?;
    let name_bytes = name.as_ref().map_or(NAMESPACE_NAME_BYTES_MAX, Vec::len) as u64;
    for which in unused_entry_words(name_bytes) {
        if load(map, at + which)? != 0 {
            report.fault(format!("namespace {index}: byte {which} of its entry is not zero"));
        }
    }
    // Behind the end of the name its last word is zero.
    let end = CATALOG_NAME + name_bytes;
    let in_word = end % 8;
    if name.is_some() && in_word != 0 && load(map, at + end - in_word)? >> (8 * in_word) != 0 {
        report.fault(format!("namespace {index}: its name has more bytes than its length"));
    }
    Ok(())
}

/// The limits of a namespace, and what its records take.
fn limits(map: &Map, index: u32, report: &mut CheckReport) -> Result<(), Corruption> {
    let counted = usage::counted(map, index)?;
    usage::limits(map, index)?;
    let words = usage::stripes(map, index)?;
    if words.iter().any(|word| lock::owner_of(word.load(Ordering::Acquire)) != 0) {
        report.fault(format!("namespace {index}: its usage is locked, and its owner is not alive"));
    }
    let flags = unseal(load(map, catalog_at(index) + CATALOG_FLAGS)?, "")?;
    let is_limited = flags & namespace_flags::LIMITED != 0;
    let Some(counted) = counted else {
        let has_words = words.iter().any(|word| word.load(Ordering::Acquire) != 0)
            || !usage::limits(map, index)?.is_none();
        if has_words || is_limited {
            report.fault(format!("namespace {index}: it has limits and no count of its records"));
        }
        return Ok(());
    };
    // A removed namespace leaves its words to the next one. Without the flag a change of limits
    // was interrupted, and the next one stores all words.
    if !is_limited || number_in(map, index)?.is_none() {
        return Ok(());
    }
    let (expected, found) = (usage::units_counted(map, index, counted)?, usage::units_in(words));
    if expected != found {
        report.fault(format!(
            "namespace {index}: its records take {} bytes, and {} bytes are counted",
            expected.saturating_mul(LINE),
            found.saturating_mul(LINE)
        ));
    }
    Ok(())
}

/// The words of a catalog entry that no version writes. The name has `name_bytes` bytes.
pub(crate) fn unused_entry_words(name_bytes: u64) -> impl Iterator<Item = u64> {
    const KNOWN: [u64; 18] = [
        CATALOG_STATE,
        CATALOG_GENERATION,
        CATALOG_KIND,
        CATALOG_FLAGS,
        CATALOG_RING,
        CATALOG_BUCKETS,
        CATALOG_SPLIT,
        CATALOG_COMMITTED,
        CATALOG_NAME_BYTES,
        CATALOG_CHECK,
        CATALOG_SOFT_LIMIT,
        CATALOG_HARD_LIMIT,
        CATALOG_COUNTED,
        CATALOG_LOGGED_SINCE,
        CATALOG_SOURCE,
        CATALOG_NEXT_SOURCE,
        CATALOG_POLICY,
        CATALOG_BORN_LOGGED,
    ];
    let usage = CATALOG_USAGE..CATALOG_USAGE + 8 * USAGE_STRIPES as u64;
    let name = CATALOG_NAME..CATALOG_NAME + name_bytes;
    let segments = CATALOG_SEGMENTS..CATALOG_SEGMENTS + 8 * SEGMENTS as u64;
    (0..CATALOG_BYTES).step_by(8).filter(move |which| {
        !KNOWN.contains(which)
            && !name.contains(which)
            && !segments.contains(which)
            && !usage.contains(which)
    })
}

/// The words and the bitmaps of chunks that were never used.
pub(super) fn unused_chunks(
    map: &Map,
    used: u64,
    report: &mut CheckReport,
) -> Result<(), Corruption> {
    for range in unused_table_bytes(map, used) {
        zeros(map, range.start, range.end - range.start, "tables of unused chunks", report)?;
    }
    Ok(())
}

fn zeros(
    map: &Map,
    from: u64,
    bytes: u64,
    what: &str,
    report: &mut CheckReport,
) -> Result<(), Corruption> {
    for at in (from..from + bytes).step_by(8) {
        if load(map, at)? != 0 {
            report.fault(format!("{what}: byte {at:#x} is not zero"));
        }
    }
    Ok(())
}

fn load(map: &Map, at: u64) -> Result<u64, Corruption> {
    Ok(map.word(at)?.load(Ordering::Acquire))
}
