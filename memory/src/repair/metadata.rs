//! Repairs superblock, member slots, arenas and the catalog.

use nearstate_model::invariant;
use nearstate_model::invariant::guaranteed;
use nearstate_model::limits::{MEMBERS_MAX, NAMESPACE_NAME_BYTES_MAX, NAMESPACES_MAX};

use super::{RepairReport, candidates, correct, correct_sealed, correct_sealed_with, facts, set};
use crate::atomic::Ordering;
use crate::check::metadata::{is_gap, unused_entry_words};
use crate::cluster::{repair_words, unbind};
use crate::crash::crash_point;
use crate::follow::{
    FollowState, Following, following, raise_incarnation, rejoin, rejoin_if_damaged,
    repair_follower,
};
use crate::heap::chunk::{chunks_used, unused_table_bytes};
use crate::heap::watched;
use crate::layout::{
    ARENA_BYTES, CATALOG_BUCKETS, CATALOG_BYTES, CATALOG_CHECK, CATALOG_COMMITTED, CATALOG_COUNTED,
    CATALOG_FLAGS, CATALOG_GENERATION, CATALOG_HARD_LIMIT, CATALOG_KIND, CATALOG_NAME,
    CATALOG_NAME_BYTES, CATALOG_SOFT_LIMIT, CATALOG_SPLIT, CATALOG_STATE, CATALOG_USAGE,
    CHUNK_BYTES, CLUSTER_BYTES, CLUSTER_PAGE, Corruption, HEAP, LINE, LOG_FLOOR, LOG_FLOOR_LIMIT,
    LOG_GAP_COUNT, LOG_GAP_UNKNOWN, LOG_GAPS, LOG_GAPS_MAX, LOG_KEEPS, LOG_REPLICATED, LOG_TAIL,
    LOG_UNITS, LOG_WAKE, LOG_WORDS, MEMBER_BYTES, MEMBER_HELD_SINCE, MEMBER_NAME, MEMBER_PID,
    MEMBER_PROCESS_CHECK, MEMBER_SINCE, MEMBER_STATE, NAMESPACE_LIVE, SEALED_OR_ZERO, SEGMENTS,
    SUPER_BYTES, SUPER_CATALOG_CHANGES, SUPER_EPOCH, SUPER_FRONTIER, SUPER_MEMBERS,
    SUPER_NAMESPACES, SUPER_NAMESPACES_LOCK, SUPER_STAMP_FLOOR, SUPER_WATCHED, SUPER_WORDS,
    USAGE_STRIPES, arena_at, catalog_at, entry_of, is_cluster_word, member_at, namespace_flags,
    ordinary_chunks, seal, unseal,
};
use crate::log::begins::repair_begins;
use crate::member::arena::{Arena, undo};
use crate::member::lock;
use crate::namespace::rules::repair_rules;
use crate::region::catalog::{entries_used, is_zero_entry, parse_count};
use crate::region::catalog_use::{EntryUse, parse_use, use_word};
use crate::region::index_table::{
    BUCKETS_FIRST, NamespaceIdentity, buckets_of, first_of, segment_of, segment_slot,
};
use crate::region::map::Map;
use crate::region::member_table::{member_slots_used, state};
use crate::takeover::repair_takeover;
use crate::usage::{self, ALL_COUNTED};

const PAGE: u64 = 4096;

/// Flags of a namespace are less if its tags were declared less than a million times.
const SCHEMAS_MAX: u64 = namespace_flags::GENERATION << 20;

/// Repairs the words that no walk over the cells reaches. Afterwards the catalog can be read, every
/// member slot is free, and no arena has memory.
pub(super) fn repair(map: &Map, report: &mut RepairReport) -> Result<(), Corruption> {
    superblock(map, report)?;
    members(map, report)?;
    let used = entries_used(map)?;
    for index in 0..used {
        entry(map, index, report)?;
    }
    epoch(map, report)?;
    if (used as usize) < NAMESPACES_MAX && map.is_allocated(catalog_at(used)) {
        // A killed creator's entry: its segment becomes free.
        let end = (catalog_at(used) + CATALOG_BYTES).next_multiple_of(PAGE);
        zero(map, catalog_at(used), end, "unused catalog entries", report)?;
    }
    Ok(())
}

/// The epoch is not before that of any cell in use. No reader and no retired cell is left, so it
/// may be later.
fn epoch(map: &Map, report: &mut RepairReport) -> Result<(), Corruption> {
    let seen = map.word(SUPER_EPOCH)?.load(Ordering::Acquire);
    let mut found = candidates(seen, |word| unseal(word, "").is_ok_and(|epoch| epoch >= 2));
    if found != [seen] {
        let newest = facts::newest_birth(map)?;
        found.retain(|word| word >> 16 >= newest);
        let epoch = found.iter().map(|word| word >> 16).min();
        // More than one bit is damaged: an epoch that no cell names.
        let epoch = epoch.unwrap_or(newest + 2);
        invariant!(epoch >= newest, "epoch {epoch} is before {newest}, in which a cell was born");
        set(map, SUPER_EPOCH, seal(epoch))?;
        report.add_repaired("the epoch: a flipped bit");
    }
    Ok(())
}

fn superblock(map: &Map, report: &mut RepairReport) -> Result<(), Corruption> {
    for at in (0..SUPER_BYTES).step_by(8).filter(|at| !SUPER_WORDS.contains(at)) {
        if set(map, at, 0)? {
            report.add_repaired(format!("superblock: byte {at}"));
        }
    }
    cluster_page(map, report)?;
    if set(map, SUPER_NAMESPACES_LOCK, 0)? {
        report.add_repaired("the namespaces lock");
    }
    let units = |chunks: u64| (HEAP + CHUNK_BYTES * chunks) / LINE;
    let (least, most) = (units(0), units(ordinary_chunks(map.chunks())));
    let frontier = |units: u64| (least..=most).contains(&units);
    let in_use = |values: &[u64]| facts::frontier_among(map, values);
    correct_sealed_with(map, SUPER_FRONTIER, "the frontier", (frontier, in_use), report)?;
    correct_sealed(map, SUPER_MEMBERS, "member slots", |n| n <= MEMBERS_MAX as u64, report)?;
    let is_count = |count| count <= NAMESPACES_MAX as u64;
    let in_use = |values: &[u64]| facts::entries_among(map, values);
    let what = "the count of namespaces";
    correct_sealed_with(map, SUPER_NAMESPACES, what, (is_count, in_use), report)?;
    for at in [SUPER_CATALOG_CHANGES, SUPER_STAMP_FLOOR] {
        let seen = map.word(at)?.load(Ordering::Acquire);
        // Each may be larger than it was, and not smaller. The highest leave no room to grow.
        let found = candidates(seen, |word| parse_count(word).is_ok());
        let is_possible = |word: &&u64| found.len() == 1 || (**word ^ seal(0)) >> 16 < 1 << 41;
        match found.iter().filter(is_possible).max_by_key(|word| (**word ^ seal(0)) >> 16).copied()
        {
            Some(word) if set(map, at, word)? => {
                report.add_repaired(format!("superblock: the count at byte {at}"));
            }
            Some(_) => {}
            None => report.add_lost(format!("superblock: {seen:#x} at byte {at} is no count")),
        }
    }
    let seen = map.word(SUPER_WATCHED)?.load(Ordering::Acquire);
    // No process is attached, so no process watches.
    if watched::verify(seen).is_err() && set(map, SUPER_WATCHED, 0)? {
        report.add_repaired("superblock: the watched word");
    }
    let used = chunks_used(map)?;
    for range in unused_table_bytes(map, used) {
        zero(map, range.start, range.end, "tables of unused chunks", report)?;
    }
    Ok(())
}

/// The log is emptied, because the cells of its entries become free. Its positions go on: none is
/// used twice.
fn cluster_page(map: &Map, report: &mut RepairReport) -> Result<(), Corruption> {
    for at in (CLUSTER_PAGE..CLUSTER_PAGE + CLUSTER_BYTES).step_by(8) {
        if !is_cluster_word(at) && set(map, at, 0)? {
            report.add_repaired(format!("cluster page: byte {}", at - CLUSTER_PAGE));
        }
    }
    let rules = repair_rules(map)?.then_some("the rules of new namespaces: the node stores them");
    for damaged in repair_words(map)?.into_iter().chain(rules) {
        report.add_repaired(damaged);
    }
    // Records may be lost, so the region is no copy any more, neither of its cluster nor of what it
    // follows.
    if unbind(map)? {
        report.add_repaired("the place in its cluster: other hosts have the copies that count");
    }
    // A promotion or a demotion that was killed is ended by the node, which then joins.
    let is_copy = |following: &Following| match following.state {
        FollowState::Joining | FollowState::Extending | FollowState::Full => true,
        FollowState::Promoting | FollowState::Demoting => false,
    };
    if matches!(following(map), Ok(Some(following)) if is_copy(&following)) {
        rejoin(map)?;
        report.add_repaired("the follower: it joins again");
    }
    if repair_begins(map)? {
        report.add_repaired("where an incarnation of the log began: old receipts are not decided");
    }
    if rejoin_if_damaged(map)? {
        report.add_repaired("the follower: it joins again");
    }
    for damaged in repair_follower(map)? {
        report.add_repaired(damaged);
    }
    if repair_takeover(map)? {
        report.add_repaired("the record of the last takeover: members may join again");
    }
    let load = |at| Ok::<_, Corruption>(map.word(at)?.load(Ordering::Acquire));
    if set(map, LOG_WORDS, 0)? {
        // A flipped bit of a position makes it the highest one, so that none is used again.
        let last =
            load(LOG_TAIL)?.max(load(LOG_REPLICATED)?).max(load(LOG_FLOOR)?.saturating_sub(1));
        if load(LOG_KEEPS)? & 1 != 0 && last > load(LOG_REPLICATED)? {
            report.add_lost("the entries of the log that were not acknowledged");
        }
        set(map, LOG_TAIL, last)?;
        raise_incarnation(map)?;
        set(map, LOG_FLOOR, last + 1)?;
        set(map, LOG_FLOOR_LIMIT, 0)?;
    } else if load(LOG_TAIL)? == 0 {
        for at in [LOG_REPLICATED, LOG_FLOOR, LOG_FLOOR_LIMIT, LOG_UNITS, LOG_WAKE] {
            if set(map, at, 0)? {
                report.add_repaired("the log: a word that was never used");
            }
        }
    }
    gaps(map, report)
}

/// A damaged gap becomes one of all positions, of which nothing is known. What lies behind the
/// recorded ones is 0.
fn gaps(map: &Map, report: &mut RepairReport) -> Result<(), Corruption> {
    let tail = map.word(LOG_TAIL)?.load(Ordering::Acquire);
    let mut is_repaired = tail == 0 && set(map, LOG_GAP_COUNT, 0)?;
    let recorded = map.word(LOG_GAP_COUNT)?.load(Ordering::Acquire).min(LOG_GAPS_MAX);
    for gap in 0..LOG_GAPS_MAX {
        let words = match gap < recorded {
            true if is_gap(map, gap, tail)? => continue,
            true => [LOG_GAP_UNKNOWN | 1, tail],
            false => [0; 2],
        };
        let at = LOG_GAPS + 16 * gap;
        is_repaired |= set(map, at, words[0])?;
        is_repaired |= set(map, at + 8, words[1])?;
        debug_assert!(words == [0; 2] || is_gap(map, gap, tail)?, "gap {gap} is none");
    }
    if is_repaired {
        report.add_repaired("the gaps of the log: of more positions nothing is known");
    }
    Ok(())
}

/// Every slot becomes free, and its arena empty: its cells become free with the bitmaps.
fn members(map: &Map, report: &mut RepairReport) -> Result<(), Corruption> {
    let used = member_slots_used(map)?;
    for index in 0..used {
        let at = member_at(index);
        let word = map.word(at + MEMBER_STATE)?.load(Ordering::Acquire);
        let arena = Arena::new(map, index, false)?;
        let open = [undo::OP, undo::POP, undo::PENDING, undo::TXN];
        if state::of(word) != state::FREE && open.iter().any(|which| arena.get(*which) != 0) {
            report.add_lost(format!("the unfinished operation of member slot {index}"));
        }
        let mut is_changed = state::reset(map.word(at + MEMBER_STATE)?);
        if is_changed {
            crash_point!("repair.stored");
        }
        let kept = [
            MEMBER_STATE,
            MEMBER_PID,
            MEMBER_PROCESS_CHECK,
            MEMBER_NAME,
            MEMBER_NAME + 8,
            MEMBER_SINCE,
            MEMBER_HELD_SINCE,
        ];
        for which in (0..MEMBER_BYTES).step_by(8).filter(|which| !kept.contains(which)) {
            is_changed |= set(map, at + which, 0)?;
        }
        if is_changed {
            report.add_repaired(format!("member slot {index}"));
        }
        for which in (0..ARENA_BYTES).step_by(8) {
            if which != undo::UNIQUE_IDS.offset() {
                // What a session keeps for reuse is rebuilt in every repair.
                set(map, arena_at(index) + which, 0)?;
            }
        }
        let ids = arena_at(index) + undo::UNIQUE_IDS.offset();
        let seen = map.word(ids)?.load(Ordering::Acquire);
        if seen.is_power_of_two() {
            // A flipped bit where no number was assigned.
            set(map, ids, 0)?;
            report.add_repaired(format!("unique ids of slot {index}"));
        } else if seen != 0 {
            // A number is never assigned twice.
            let what = format!("unique ids of slot {index}");
            correct_sealed_with(map, ids, &what, (|_| true, facts::largest), report)?;
        }
    }
    if (used as usize) < MEMBERS_MAX {
        let end = member_at(used);
        if map.is_allocated(end) {
            zero(map, end, end.next_multiple_of(PAGE), "unused member slots", report)?;
        }
        let arena = arena_at(used);
        if map.is_allocated(arena) {
            zero(map, arena, arena + ARENA_BYTES, "the arena of an unused slot", report)?;
        }
    }
    Ok(())
}

fn entry(map: &Map, index: u32, report: &mut RepairReport) -> Result<(), Corruption> {
    let at = catalog_at(index);
    let seen = map.word(at + CATALOG_STATE)?.load(Ordering::Acquire);
    let state = correct(seen, |word| word == 0 || word == NAMESPACE_LIVE);
    let name = format!("namespace {index}");
    let word = map.word(at + CATALOG_GENERATION)?.load(Ordering::Acquire);
    let found = candidates(word, |word| parse_use(word).is_ok());
    let is_named = |word: &u64| found.len() == 1 || facts::is_generation(map, index, *word);
    let Some(word) = found.iter().copied().find(is_named) else {
        report.add_lost(format!("{name}: its generation cannot be corrected"));
        return Err(Corruption("the generation of a namespace cannot be corrected"));
    };
    let (generation, is) = parse_use(word)?;
    if set(map, at + CATALOG_GENERATION, word)? {
        report.add_repaired(format!("{name}: its generation"));
    }
    if is_zero_entry(map, index)? {
        report.zeroed_count += 1;
        report.add_lost(format!("{name}: its catalog entry was zeros, so its records are lost"));
    }
    if state == Some(0) {
        // Its creation was interrupted. The segment that it may have is about to become free, so
        // the next creator must not find it.
        return free_entry(map, index, generation);
    }
    if state != Some(NAMESPACE_LIVE) {
        return Ok(()); // The check names it.
    }
    if set(map, at + CATALOG_STATE, NAMESPACE_LIVE)? {
        report.add_repaired(format!("{name}: its state"));
    }
    if matches!(is, EntryUse::Removed | EntryUse::Free) {
        return free_entry(map, index, generation);
    }
    if NamespaceIdentity::load(map, index).is_err() {
        identity(map, (index, generation), report)?;
    }
    if set(map, at + CATALOG_SPLIT, 0)? {
        report.add_repaired(format!("{name}: its split lock"));
    }
    flags(map, index, report)?;
    limits(map, index, report)?;
    segments(map, index, &name, report)?;
    buckets(map, index, &name, report)?;
    let bytes = NamespaceIdentity::load(map, index)?.name.len() as u64;
    let end = at + CATALOG_NAME + bytes;
    if !end.is_multiple_of(8) {
        let last = end - end % 8;
        let of_name = map.word(last)?.load(Ordering::Acquire) & ((1 << (8 * (end % 8))) - 1);
        if set(map, last, of_name)? {
            report.add_repaired(format!("{name}: the bytes behind its name"));
        }
    }
    for which in unused_entry_words(bytes) {
        if set(map, at + which, 0)? {
            report.add_repaired(format!("{name}: byte {which} of its entry"));
        }
    }
    Ok(())
}

/// Corrects the flags of a namespace. Of two values that are possible, one counts more schemas than
/// a namespace ever has.
fn flags(map: &Map, index: u32, report: &mut RepairReport) -> Result<(), Corruption> {
    let is_known = |flags: u64| {
        let has = |flag: u64| flags & flag != 0;
        let is_logged = has(namespace_flags::LOGGED);
        (is_logged || !has(namespace_flags::LOSSLESS))
            && (is_logged || has(namespace_flags::FOLLOWED) || !has(namespace_flags::REPLICATED))
    };
    let few_schemas = |values: &[u64]| {
        let mut found = values.iter().copied().filter(|flags| *flags < SCHEMAS_MAX);
        found.next().filter(|_| found.next().is_none())
    };
    let (at, what) = (catalog_at(index) + CATALOG_FLAGS, format!("namespace {index}: its flags"));
    correct_sealed_with(map, at, &what, (is_known, few_schemas), report)?;
    // Not known: a follower gets the records again.
    for word in SEALED_OR_ZERO {
        let at = catalog_at(index) + word;
        let value = map.word(at)?.load(Ordering::Acquire);
        if value != 0 && unseal(value, "").is_err() {
            set(map, at, 0)?;
            report.add_repaired(format!("namespace {index}: byte {word}"));
        }
    }
    Ok(())
}

/// Corrects the words of the segments of an index.
fn segments(
    map: &Map,
    index: u32,
    name: &str,
    report: &mut RepairReport,
) -> Result<(), Corruption> {
    for segment in 0..SEGMENTS {
        let slot = segment_slot(index, segment);
        let word = map.word(slot)?.load(Ordering::Acquire);
        // A single bit in a segment that does not exist.
        if word.is_power_of_two() {
            set(map, slot, 0)?;
            report.add_repaired(format!("{name}: the word of segment {segment}"));
        } else if word != 0 {
            let what = format!("{name}: the word of segment {segment}");
            let is_in_heap = |units| units * LINE >= HEAP;
            let with_header = |values: &[u64]| facts::segment_among(map, segment, values);
            correct_sealed_with(map, slot, &what, (is_in_heap, with_header), report)?;
        }
    }
    Ok(())
}

/// Corrects the counts of buckets, which agree with each other and with the segments.
fn buckets(map: &Map, index: u32, name: &str, report: &mut RepairReport) -> Result<(), Corruption> {
    let at = catalog_at(index);
    let is_count = |count| (BUCKETS_FIRST..1 << 42).contains(&count);
    let what = format!("{name}: its bucket count");
    let committed = unseal(map.word(at + CATALOG_COMMITTED)?.load(Ordering::Acquire), "");
    let fits = |count| {
        is_count(count) && committed.as_ref().map_or(true, |committed| has_pages(count, *committed))
    };
    let with_depths = |values: &[u64]| facts::buckets_among(map, index, values);
    correct_sealed_with(map, at + CATALOG_BUCKETS, &what, (fits, with_depths), report)?;
    let what = format!("{name}: its count of buckets with pages");
    let count = unseal(map.word(at + CATALOG_BUCKETS)?.load(Ordering::Acquire), "");
    let fits = |committed| {
        is_count(committed) && count.as_ref().map_or(true, |count| has_pages(*count, committed))
    };
    // Buckets behind the count get pages again, which changes nothing.
    let least = |values: &[u64]| values.first().copied();
    correct_sealed_with(map, at + CATALOG_COMMITTED, &what, (fits, least), report)
}

/// True if an index can have so many buckets, and so many with pages.
fn has_pages(count: u64, committed: u64) -> bool {
    // A damaged count that cannot be corrected may be 0.
    let Some(last) = count.checked_sub(1).map(segment_of) else { return false };
    committed >= count
        && last + 1 < SEGMENTS
        && committed <= first_of(last + 1) + buckets_of(last + 1)
}

/// Corrects the words of limits. Without the flag that its records are counted they are cleared:
/// it has no limits, or a change of them was interrupted. The usage is computed after the records.
fn limits(map: &Map, index: u32, report: &mut RepairReport) -> Result<(), Corruption> {
    let at = catalog_at(index);
    let flags = map.word(at + CATALOG_FLAGS)?.load(Ordering::Acquire) >> 16;
    let words = [CATALOG_SOFT_LIMIT, CATALOG_HARD_LIMIT, CATALOG_COUNTED];
    if flags & namespace_flags::LIMITED == 0 {
        let stripes = (0..USAGE_STRIPES as u64).map(|stripe| CATALOG_USAGE + 8 * stripe);
        let mut is_changed = false;
        for which in stripes.chain(words) {
            is_changed |= set(map, at + which, 0)?;
        }
        if is_changed {
            report
                .add_repaired(format!("namespace {index}: words of limits that it does not have"));
        }
        return Ok(());
    }
    for which in words {
        let word = map.word(at + which)?.load(Ordering::Acquire);
        if word.is_power_of_two() {
            set(map, at + which, 0)?;
            report.add_repaired(format!("namespace {index}: a word of its limits"));
        } else if word != 0 {
            let what = format!("namespace {index}: a word of its limits");
            let fits = |value| which != CATALOG_COUNTED || value <= ALL_COUNTED;
            correct_sealed(map, at + which, &what, fits, report)?;
        }
    }
    Ok(())
}

/// After the index: what the records of a namespace with limits take is counted again.
pub(super) fn usage(map: &Map, number: u32, report: &mut RepairReport) -> Result<(), Corruption> {
    let at = catalog_at(number);
    let flags = map.word(at + CATALOG_FLAGS)?.load(Ordering::Acquire) >> 16;
    if flags & namespace_flags::LIMITED == 0 {
        return Ok(());
    }
    let words = usage::stripes(map, number)?;
    let units = usage::units_counted(map, number, ALL_COUNTED)?;
    let is_right = usage::counted(map, number) == Ok(Some(ALL_COUNTED))
        && usage::units_in(words) == units
        && words.iter().all(|word| lock::owner_of(word.load(Ordering::Acquire)) == 0);
    if !is_right {
        for stripe in 0..USAGE_STRIPES as u64 {
            set(map, usage::stripe_at(number, stripe), if stripe == 0 { units } else { 0 })?;
        }
        set(map, at + CATALOG_COUNTED, seal(ALL_COUNTED))?;
        report.add_repaired(format!(
            "namespace {}: its usage is {} bytes",
            entry_of(number),
            units.saturating_mul(LINE)
        ));
    }
    Ok(())
}

/// An entry whose namespace was removed keeps only its generation: its index and its ring become
/// free, and the next creator begins with an empty entry.
fn free_entry(map: &Map, index: u32, generation: u32) -> Result<(), Corruption> {
    let at = catalog_at(index);
    for which in (0..CATALOG_BYTES).step_by(8).filter(|which| *which != CATALOG_GENERATION) {
        set(map, at + which, 0)?;
    }
    set(map, at + CATALOG_GENERATION, use_word(generation, EntryUse::Free))?;
    Ok(())
}

/// Corrects the flipped bit of a name, of its length, of a kind or of the check value.
fn identity(
    map: &Map,
    (index, generation): (u32, u32),
    report: &mut RepairReport,
) -> Result<(), Corruption> {
    let at = catalog_at(index);
    let name = CATALOG_NAME..CATALOG_NAME + NAMESPACE_NAME_BYTES_MAX as u64 + 1;
    let places: Vec<u64> = [CATALOG_KIND, CATALOG_NAME_BYTES, CATALOG_CHECK]
        .into_iter()
        .chain(name.step_by(8))
        .collect();
    let mut words = Vec::new();
    for which in &places {
        words.push(map.word(at + which)?.load(Ordering::Acquire));
    }
    for (place, which) in places.iter().enumerate() {
        for bit in 0..u64::BITS {
            let mut tried = words.clone();
            let word = guaranteed(tried.get_mut(place), "each place has a word");
            *word ^= 1 << bit;
            let fixed = *word;
            let [kind, bytes, check, name @ ..] = tried.as_slice() else {
                invariant!("an identity has three words and a name")
            };
            let name: Vec<u8> = name.iter().flat_map(|word| word.to_le_bytes()).collect();
            let Some(name) = name.get(..*bytes as usize) else { continue };
            let (name, generation) = (name.to_vec(), u64::from(generation));
            let found = NamespaceIdentity { name, kind: *kind, generation };
            if found.name.len() <= NAMESPACE_NAME_BYTES_MAX && found.check(index) == *check {
                set(map, at + which, fixed)?;
                report.add_repaired(format!("namespace {index}: its name or its kind"));
                return Ok(());
            }
        }
    }
    report.add_lost(format!("namespace {index}: its name and kind cannot be corrected"));
    Err(Corruption("the name or the kind of a namespace cannot be corrected"))
}

fn zero(
    map: &Map,
    from: u64,
    to: u64,
    what: &str,
    report: &mut RepairReport,
) -> Result<(), Corruption> {
    invariant!(from <= to && from.is_multiple_of(8), "{what} from {from:#x} to {to:#x}");
    for at in (from..to).step_by(8) {
        if set(map, at, 0)? {
            report.add_repaired(format!("{what}: byte {at:#x}"));
        }
    }
    Ok(())
}
