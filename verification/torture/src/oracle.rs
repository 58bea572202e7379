//! The oracle: derives from the writers' journals which states each record may have.
//!
//! - A key of one writer has the state of its last acknowledged operation. After an operation that
//!   a kill cut short, it has that state or the next one. Each further intent records which of them
//!   its writer read.
//! - A key of all writers has the acknowledged change with the greatest version, or a change that
//!   was cut short and has a greater version.
//! - A counter has the acknowledged increments and at most those that were cut short.
//! - Of a transaction that was cut short, the first record that shows whether it happened decides
//!   for all others.

use serde::Serialize;
use std::collections::BTreeMap;

use crate::content::{ContentStamp, KeySpace, TortureKey, count_in, verify};
use crate::journal::{CONFLICT, EntryKind, FULL, HELD_BACK, JournalEntry, STALLED, WriteKind};
use crate::rng::{mix, seeded};

/// The number of blocks of a record.
pub const BLOCKS: u8 = 6;

pub fn block_name(block: u8) -> &'static str {
    ["config", "security", "mobility", "session", "policy", "timers"]
        .get(usize::from(block))
        .copied()
        .unwrap_or_default()
}

/// Bytes of a block in a patch. The first block is large, so that others are patched beside it. The
/// others are stored in the record's cell or in a cell of their own.
pub fn block_len(seq: u64, block: u8) -> u32 {
    let mut rng = seeded(&[seq, u64::from(block)]);
    match block {
        0 => 20_000 + rng.u32(..40_000),
        1 => 400 + rng.u32(..800),
        _ => rng.u32(..700),
    }
}

/// The effect of a mask on a block: `Some(true)` sets it, `Some(false)` deletes it.
pub const fn block_change(mask: u32, block: u8) -> Option<bool> {
    match mask >> (2 * block) & 3 {
        1 => Some(true),
        2 => Some(false),
        _ => None,
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordContent {
    /// Fingerprint of the value.
    Value(u64),
    /// Fingerprints of the blocks.
    Blocks(BTreeMap<u8, u64>),
}

impl RecordContent {
    /// The fingerprint, never 0.
    pub fn fingerprint(&self) -> u64 {
        match self {
            Self::Value(fingerprint) => *fingerprint,
            Self::Blocks(blocks) => {
                blocks
                    .iter()
                    .fold(7, |sum, (block, fingerprint)| mix(sum ^ fingerprint ^ u64::from(*block)))
                    | 1
            }
        }
    }
}

fn fingerprint_of(state: Option<&RecordContent>) -> u64 {
    state.map_or(0, RecordContent::fingerprint)
}

/// A record as it was read from the region.
#[derive(Clone, Debug)]
pub struct ObservedRecord {
    /// The content, every byte verified.
    pub content: RecordContent,
    pub version: u64,
    /// The value of a counter. Of a record of a pair, the transaction that wrote it.
    pub count: u64,
}

/// Verifies each byte of a record.
pub fn observe(
    key: TortureKey,
    view: &nearstate_store::View<'_>,
) -> Result<ObservedRecord, String> {
    if key.bytes() != view.key() {
        return Err(format!("{key:?}: has the key {:x?}", view.key()));
    }
    observe_parts(key, view.version(), view.bytes(), view.blocks())
}

fn observe_parts<'r>(
    key: TortureKey,
    version: u64,
    value: &[u8],
    blocks_there: impl Iterator<Item = (&'r str, &'r [u8])>,
) -> Result<ObservedRecord, String> {
    match key.space {
        KeySpace::Own | KeySpace::Grow | KeySpace::Hot | KeySpace::Pair => {
            let (fingerprint, stamp) = verify(key, 0, value)?;
            let count = match (key.space, stamp) {
                (KeySpace::Pair, Some(stamp)) => round_of(key, stamp.seq),
                (KeySpace::Pair, None) => return Err(format!("{key:?}: too short for a pair")),
                _ => 0,
            };
            Ok(ObservedRecord { content: RecordContent::Value(fingerprint), version, count })
        }
        KeySpace::Count => {
            let count = count_in(key, value)?;
            Ok(ObservedRecord { content: RecordContent::Value(mix(count) | 1), version, count })
        }
        KeySpace::Blocks => {
            let mut blocks = BTreeMap::new();
            for (name, bytes) in blocks_there {
                let block = (0..BLOCKS)
                    .find(|block| block_name(*block) == name)
                    .ok_or_else(|| format!("{key:?}: a block {name:?}"))?;
                blocks.insert(block, verify(key, block, bytes)?.0);
            }
            Ok(ObservedRecord { content: RecordContent::Blocks(blocks), version, count: 0 })
        }
    }
}

/// The records of a pair have consecutive sequence numbers: the same result for both.
const fn round_of(key: TortureKey, seq: u64) -> u64 {
    seq.wrapping_sub(key.number as u64 & 1)
}

/// The content of a record after an operation.
fn after(
    entry: &JournalEntry,
    writer: u16,
    before: Option<&RecordContent>,
) -> Option<RecordContent> {
    let stamp = |block, len| {
        ContentStamp { key: entry.key, block, writer, seq: entry.seq, len }.fingerprint()
    };
    match entry.op {
        WriteKind::Put
        | WriteKind::PutAbsent
        | WriteKind::PutPresent
        | WriteKind::PutVersion
        | WriteKind::PutValue => Some(RecordContent::Value(stamp(0, entry.len))),
        WriteKind::PutStale | WriteKind::Raise => before.cloned(),
        WriteKind::Delete | WriteKind::DeleteVersion => None,
        WriteKind::Patch => {
            let mut blocks = match before {
                Some(RecordContent::Blocks(blocks)) => blocks.clone(),
                _ => BTreeMap::new(),
            };
            for block in 0..BLOCKS {
                match block_change(entry.mask, block) {
                    Some(true) => {
                        blocks.insert(block, stamp(block, block_len(entry.seq, block)));
                    }
                    Some(false) => {
                        blocks.remove(&block);
                    }
                    None => {}
                }
            }
            Some(RecordContent::Blocks(blocks))
        }
    }
}

/// A key of one writer.
#[derive(Clone, Debug)]
struct OwnedKey {
    /// Possible states; one unless a change was cut short.
    states: Vec<Option<RecordContent>>,
    /// The greatest acknowledged version.
    version: u64,
}

impl OwnedKey {
    /// A record that expires may be absent at any time.
    fn allow_expiry(&mut self, key: TortureKey) {
        if key.expires() && !self.states.contains(&None) {
            self.states.push(None);
        }
    }
}

/// A key that all writers write.
#[derive(Clone, Debug, Default)]
struct SharedKey {
    /// The last acknowledged change: twice the version, plus one for a deletion; the fingerprint, 0
    /// for a deletion.
    last: (u64, u64),
    /// Acknowledged since the last comparison, by version: no two may have the same.
    acks: BTreeMap<u64, u64>,
    /// Fingerprints of changes that were cut short, 0 for a deletion.
    uncertain: Vec<u64>,
    /// Counters: acknowledged increments, and those that were cut short.
    raised: u64,
    raised_uncertain: u64,
}

/// One record of a transaction that was cut short.
#[derive(Clone, Copy, Debug)]
struct UncertainWrite {
    entry: JournalEntry,
    /// Fingerprints before and after. For a key of all writers: 0 and the written content.
    old: u64,
    new: u64,
}

fn is_shared(key: TortureKey) -> bool {
    matches!(key.space, KeySpace::Hot | KeySpace::Count)
}

/// Counts from the journals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OracleCounts {
    /// Acknowledged operations.
    pub writes_acknowledged: u64,
    /// Operations that a kill cut short.
    pub writes_cut_short: u64,
    /// Processes that attached.
    #[serde(skip)]
    pub attached: u64,
    /// Acknowledged states that were read back and compared, by a writer before its next change or
    /// at a check.
    pub acknowledged_states_verified: u64,
    /// Writes refused because a view kept free cells from being reused.
    pub writes_refused_for_a_held_view: u64,
    /// Writes refused because the region was full.
    pub writes_refused_as_full: u64,
    /// Of these, deletions, and transactions of nothing but deletions.
    pub deletions_refused: u64,
    /// Writes refused because another process held a lock for too long.
    pub writes_refused_as_stalled: u64,
    /// Acknowledged transactions.
    pub transactions_acknowledged: u64,
    /// Transactions that a kill cut short.
    pub transactions_cut_short: u64,
    /// Of these, transactions whose outcome one record revealed.
    pub transactions_cut_short_resolved: u64,
    /// Transactions whose every attempt ended in a conflict.
    pub transactions_given_up: u64,
}

#[derive(Clone, Debug, Default)]
pub struct Oracle {
    own: BTreeMap<TortureKey, OwnedKey>,
    shared: BTreeMap<TortureKey, SharedKey>,
    /// Transactions that were cut short and whose outcome is still unknown.
    torn: Vec<Vec<UncertainWrite>>,
    pub counts: OracleCounts,
}

impl Oracle {
    /// Processes a writer's journal.
    pub fn replay(&mut self, writer: u16, entries: &[JournalEntry]) -> Result<(), String> {
        let mut open: Vec<JournalEntry> = Vec::new();
        let mut last_ack = None;
        for entry in entries {
            match entry.tag {
                EntryKind::Base => {}
                EntryKind::Attached => {
                    self.counts.attached += 1;
                    self.cut_short(writer, std::mem::take(&mut open), last_ack.take());
                }
                EntryKind::Intent => {
                    if open.last().is_some_and(|before| before.left == 0) {
                        self.cut_short(writer, std::mem::take(&mut open), last_ack.take());
                    }
                    open.push(*entry);
                    self.add_read(entry).map_err(|e| format!("writer {writer}: {e}"))?;
                }
                EntryKind::Ack => {
                    let is_whole = open.len() > 1 || last_ack.is_some();
                    open.retain(|intent| intent.seq != entry.seq);
                    last_ack = if open.is_empty() { None } else { Some(*entry) };
                    let is_last = open.is_empty() && is_whole;
                    self.count_ack(entry, is_last);
                    self.done(writer, entry).map_err(|e| format!("writer {writer}: {e}"))?;
                }
            }
        }
        self.cut_short(writer, open, last_ack);
        Ok(())
    }

    fn count_ack(&mut self, entry: &JournalEntry, is_last_of_many: bool) {
        let is_nothing = entry.op == WriteKind::PutStale && entry.mask >= STALLED;
        let is_refused = |mask| u64::from(is_nothing && entry.mask == mask);
        let is_deletion = entry.old == WriteKind::Delete as u64;
        self.counts.writes_acknowledged += u64::from(!is_nothing);
        let (no_room, held_back) = (is_refused(FULL), is_refused(HELD_BACK));
        self.counts.writes_refused_as_full += no_room;
        self.counts.writes_refused_for_a_held_view += held_back;
        self.counts.deletions_refused += no_room * u64::from(is_deletion);
        self.counts.writes_refused_as_stalled += is_refused(STALLED);
        if is_last_of_many {
            self.counts.transactions_acknowledged += u64::from(!is_nothing);
            self.counts.transactions_given_up += u64::from(is_nothing && entry.mask == CONFLICT);
        }
    }

    fn owned_key(&mut self, key: TortureKey) -> &mut OwnedKey {
        self.own.entry(key).or_insert_with(|| OwnedKey { states: vec![None], version: 0 })
    }

    /// The writer read the record before its change.
    fn add_read(&mut self, entry: &JournalEntry) -> Result<(), String> {
        if is_shared(entry.key) {
            return Ok(());
        }
        self.resolve(entry.key, entry.old)?;
        let own = self.owned_key(entry.key);
        let before = own.states.clone();
        own.states.retain(|state| fingerprint_of(state.as_ref()) == entry.old);
        if own.states.is_empty() {
            return Err(format!(
                "{:?}: before {:?} number {} it read {:#x}, and possible states are {before:x?}",
                entry.key, entry.op, entry.seq, entry.old
            ));
        }
        own.allow_expiry(entry.key);
        self.counts.acknowledged_states_verified += 1;
        Ok(())
    }

    fn done(&mut self, writer: u16, entry: &JournalEntry) -> Result<(), String> {
        if is_shared(entry.key) {
            return self.done_shared(writer, entry);
        }
        let own = self.owned_key(entry.key);
        for state in &mut own.states {
            *state = after(entry, writer, state.as_ref());
        }
        own.allow_expiry(entry.key);
        let is_change = entry.version != 0 && entry.op != WriteKind::PutStale;
        let is_delete = matches!(entry.op, WriteKind::Delete | WriteKind::DeleteVersion);
        if is_change && !is_delete && entry.version <= own.version {
            return Err(format!(
                "{:?}: version {} after {}",
                entry.key, entry.version, own.version
            ));
        }
        own.version = own.version.max(entry.version);
        Ok(())
    }

    fn done_shared(&mut self, writer: u16, entry: &JournalEntry) -> Result<(), String> {
        let shared = self.shared.entry(entry.key).or_default();
        if entry.version == 0 {
            return Ok(()); // Refused, or nothing to delete.
        }
        let is_delete = matches!(entry.op, WriteKind::Delete | WriteKind::DeleteVersion);
        let fingerprint =
            if is_delete { 0 } else { fingerprint_of(after(entry, writer, None).as_ref()) };
        let order = 2 * entry.version + u64::from(is_delete);
        if shared.acks.insert(order, fingerprint).is_some() {
            return Err(format!(
                "{:?}: version {} was given to two changes",
                entry.key, entry.version
            ));
        }
        shared.last = shared.last.max((order, fingerprint));
        shared.raised += u64::from(entry.op == WriteKind::Raise);
        Ok(())
    }

    /// A process has ended. `open` has the intents without an acknowledgement. `last_ack` is an
    /// acknowledgement of the same transaction, which shows that all of it happened, or nothing.
    fn cut_short(&mut self, writer: u16, open: Vec<JournalEntry>, last_ack: Option<JournalEntry>) {
        match (open.last(), last_ack) {
            (None, _) => return,
            (Some(_), Some(ack)) => {
                let is_done = ack.op != WriteKind::PutStale;
                for entry in open.iter().filter(|_| is_done) {
                    self.done_unnumbered(writer, entry);
                }
                return;
            }
            // Killed while it wrote its intents, before the call.
            (Some(last), None) if last.left > 0 => return,
            (Some(_), None) => {}
        }
        self.counts.writes_cut_short += open.len() as u64;
        let mut members = Vec::new();
        for entry in open {
            if is_shared(entry.key) {
                let fingerprint = fingerprint_of(after(&entry, writer, None).as_ref());
                let shared = self.shared.entry(entry.key).or_default();
                shared.uncertain.push(fingerprint);
                shared.raised_uncertain += u64::from(entry.op == WriteKind::Raise);
                members.push(UncertainWrite { entry, old: 0, new: fingerprint });
                continue;
            }
            let own = self.owned_key(entry.key);
            for state in own.states.clone() {
                let next = after(&entry, writer, state.as_ref());
                if entry.key.expires() {
                    own.states.push(next); // It is the only record of its transaction.
                    continue;
                }
                members.push(UncertainWrite {
                    entry,
                    old: fingerprint_of(state.as_ref()),
                    new: fingerprint_of(next.as_ref()),
                });
                if !own.states.contains(&next) {
                    own.states.push(next);
                }
            }
        }
        if members.len() > 1 {
            self.counts.transactions_cut_short += 1;
            self.torn.push(members);
        }
    }

    /// The change happened, with an unknown version.
    fn done_unnumbered(&mut self, writer: u16, entry: &JournalEntry) {
        if is_shared(entry.key) {
            let fingerprint = fingerprint_of(after(entry, writer, None).as_ref());
            let shared = self.shared.entry(entry.key).or_default();
            shared.uncertain.push(fingerprint);
            shared.raised += u64::from(entry.op == WriteKind::Raise);
            return;
        }
        for state in &mut self.owned_key(entry.key).states {
            *state = after(entry, writer, state.as_ref());
        }
    }

    /// A record was read. If it belongs to a transaction that was cut short, this decides for the
    /// other records.
    fn resolve(&mut self, key: TortureKey, fingerprint: u64) -> Result<(), String> {
        let decides = |member: &UncertainWrite| {
            member.entry.key == key && member.old != member.new && !is_shared(key)
        };
        let Some(place) = self.torn.iter().position(|members| members.iter().any(decides)) else {
            // It decides nothing. Later changes of the record do not belong to that transaction.
            for members in &mut self.torn {
                members.retain(|member| member.entry.key != key);
            }
            return Ok(());
        };
        let members = self.torn.swap_remove(place);
        let is_done = members.iter().any(|member| decides(member) && member.new == fingerprint);
        self.counts.transactions_cut_short_resolved += 1;
        for member in members {
            let other = member.entry.key;
            if is_shared(other) {
                let shared = self.shared.entry(other).or_default();
                shared.resolve(&member, is_done);
                continue;
            }
            let expected = if is_done { member.new } else { member.old };
            let states = &mut self.owned_key(other).states;
            states.retain(|state| fingerprint_of(state.as_ref()) == expected);
            if states.is_empty() {
                return Err(format!(
                    "half of a transaction: {key:?} has {fingerprint:#x}, so {other:?} should have \
                     {expected:#x}"
                ));
            }
        }
        Ok(())
    }

    /// Compares all records of a region with their possible states. Each record of `found` was
    /// returned once by a scan of all namespaces. Afterwards the oracle knows exactly which records
    /// exist.
    pub fn compare(
        &mut self,
        observed: &BTreeMap<TortureKey, ObservedRecord>,
    ) -> Result<(), String> {
        for key in observed.keys() {
            if !self.own.contains_key(key) && !self.shared.contains_key(key) {
                return Err(format!("{key:?}: it was never written"));
            }
        }
        let torn: Vec<TortureKey> =
            self.torn.iter().flatten().map(|member| member.entry.key).collect();
        for key in torn.into_iter().filter(|key| !is_shared(*key)) {
            self.resolve(
                key,
                fingerprint_of(observed.get(&key).map(|observed| &observed.content)),
            )?;
        }
        self.torn.clear();
        for (key, own) in &mut self.own {
            let actual = observed.get(key);
            let fingerprint = fingerprint_of(actual.map(|observed| &observed.content));
            own.states.retain(|state| fingerprint_of(state.as_ref()) == fingerprint);
            if own.states.is_empty() {
                return Err(format!("{key:?}: the state {actual:x?} is impossible"));
            }
            if let Some(actual) = actual {
                if actual.version < own.version {
                    return Err(format!("{key:?}: version {} is old", actual.version));
                }
                own.version = actual.version;
            }
            self.counts.acknowledged_states_verified += 1;
        }
        for (key, shared) in &mut self.shared {
            shared.compare(*key, observed.get(key))?;
            self.counts.acknowledged_states_verified += 1;
        }
        self.own.retain(|_, own| own.version != 0 || own.states != [None]);
        Ok(())
    }

    /// The keys of a space that may exist.
    pub fn keys(&self, space: KeySpace) -> Vec<TortureKey> {
        self.own.keys().filter(|key| key.space == space).copied().collect()
    }

    /// Removes the keys of a space, whose namespace is not used any more.
    pub fn forget(&mut self, space: KeySpace) {
        self.own.retain(|key, _| key.space != space);
    }
}

impl SharedKey {
    /// It is now known whether a transaction that was cut short happened.
    fn resolve(&mut self, member: &UncertainWrite, is_done: bool) {
        if member.entry.op == WriteKind::Raise {
            self.raised_uncertain = self.raised_uncertain.saturating_sub(1);
            self.raised += u64::from(is_done);
        } else if !is_done && let Some(at) = self.uncertain.iter().position(|d| *d == member.new) {
            self.uncertain.swap_remove(at);
        }
    }

    fn compare(
        &mut self,
        key: TortureKey,
        observed: Option<&ObservedRecord>,
    ) -> Result<(), String> {
        if key.space == KeySpace::Count {
            return self.compare_count(key, observed);
        }
        let (order, fingerprint) = match observed {
            Some(observed) => (2 * observed.version, observed.content.fingerprint()),
            None => (u64::MAX, 0),
        };
        let is_last = match observed {
            Some(_) => (order, fingerprint) == self.last,
            None => self.last.1 == 0,
        };
        let is_uncertain = order > self.last.0 && self.uncertain.contains(&fingerprint);
        if !is_last && !is_uncertain {
            return Err(format!(
                "{key:?}: the state is {observed:x?}; acknowledged last: {:x?}, cut short: {:x?}",
                self.last, self.uncertain
            ));
        }
        if observed.is_some() {
            self.last = (order, fingerprint);
        } else {
            // The version of a deletion that was cut short is unknown; it deleted at least this
            // version.
            self.last.1 = 0;
        }
        self.acks.clear();
        self.uncertain.clear();
        Ok(())
    }

    fn compare_count(
        &mut self,
        key: TortureKey,
        observed: Option<&ObservedRecord>,
    ) -> Result<(), String> {
        let count = observed.map_or(0, |observed| observed.count);
        if !(self.raised..=self.raised + self.raised_uncertain).contains(&count) {
            return Err(format!(
                "{key:?}: the counter is {count}; acknowledged: {}, cut short: {}",
                self.raised, self.raised_uncertain
            ));
        }
        (self.raised, self.raised_uncertain) = (count, 0);
        self.acks.clear();
        self.uncertain.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
