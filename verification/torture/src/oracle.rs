//! The oracle: from the writers' journals it knows which states each record may have.
//!
//! A key of one writer: exactly the state of its last acknowledged operation; after one that was
//! cut short by a kill, that state or the next. Each further intent tells which of them its writer
//! saw. A key that all write: the acknowledged change with the greatest version, or one that was
//! cut short and has a greater one. A counter: what was acknowledged, and at most what was cut
//! short on top. Of a transaction that was cut short, the first record that tells whether it
//! happened decides for all others.

use std::collections::BTreeMap;

use crate::content::{Key, Space, Stamp, count_in, verify};
use crate::dice::{Dice, mix};
use crate::journal::{CONFLICT, Entry, FULL, Op, Tag};

/// How many blocks a record of a run may have.
pub const BLOCKS: u8 = 6;

/// Name of a block.
pub fn block_name(block: u8) -> &'static str {
    ["config", "security", "mobility", "session", "policy", "timers"]
        .get(usize::from(block))
        .copied()
        .unwrap_or_default()
}

/// Bytes of a block in a patch: the first is large, so that others are patched beside it; the rest
/// stand in the record's cell or in one of their own.
pub fn block_len(seq: u64, block: u8) -> u32 {
    let mut dice = Dice::new(&[seq, u64::from(block)]);
    match block {
        0 => 20_000 + dice.pick(40_000),
        1 => 400 + dice.pick(800),
        _ => dice.pick(700),
    }
}

/// What a mask says of a block: `Some(true)` sets it, `Some(false)` takes it away.
pub const fn block_change(mask: u32, block: u8) -> Option<bool> {
    match mask >> (2 * block) & 3 {
        1 => Some(true),
        2 => Some(false),
        _ => None,
    }
}

/// A record's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Print of its value.
    Value(u64),
    /// Prints of its blocks.
    Blocks(BTreeMap<u8, u64>),
}

impl Content {
    /// Its print, never 0.
    pub fn print(&self) -> u64 {
        match self {
            Self::Value(print) => *print,
            Self::Blocks(blocks) => {
                blocks.iter().fold(7, |sum, (block, print)| mix(sum ^ print ^ u64::from(*block)))
                    | 1
            }
        }
    }
}

fn print_of(state: Option<&Content>) -> u64 {
    state.map_or(0, Content::print)
}

/// A record as it was found in the region.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its content, every byte verified.
    pub content: Content,
    /// Its version.
    pub version: u64,
    /// The number in it, if it is a counter; of one of a pair, which transaction wrote it.
    pub count: u64,
}

/// Verifies each byte of a record.
///
/// # Errors
/// One sentence: what is not as written.
pub fn judge(key: Key, view: &nearstate_store::View<'_>) -> Result<Found, String> {
    if key.bytes() != view.key() {
        return Err(format!("{key:?}: has the key {:x?}", view.key()));
    }
    judge_parts(key, view.version(), view.bytes(), view.blocks())
}

fn judge_parts<'r>(
    key: Key,
    version: u64,
    value: &[u8],
    blocks_there: impl Iterator<Item = (&'r str, &'r [u8])>,
) -> Result<Found, String> {
    match key.space {
        Space::Own | Space::Grow | Space::Hot | Space::Pair => {
            let (print, stamp) = verify(key, 0, value)?;
            let count = match (key.space, stamp) {
                (Space::Pair, Some(stamp)) => round_of(key, stamp.seq),
                (Space::Pair, None) => return Err(format!("{key:?}: too short for a pair")),
                _ => 0,
            };
            Ok(Found { content: Content::Value(print), version, count })
        }
        Space::Count => {
            let count = count_in(key, value)?;
            Ok(Found { content: Content::Value(mix(count) | 1), version, count })
        }
        Space::Blocks => {
            let mut blocks = BTreeMap::new();
            for (name, bytes) in blocks_there {
                let block = (0..BLOCKS)
                    .find(|block| block_name(*block) == name)
                    .ok_or_else(|| format!("{key:?}: a block {name:?}"))?;
                blocks.insert(block, verify(key, block, bytes)?.0);
            }
            Ok(Found { content: Content::Blocks(blocks), version, count: 0 })
        }
    }
}

/// Both of a pair are written next to each other: the same number for both.
const fn round_of(key: Key, seq: u64) -> u64 {
    seq.wrapping_sub(key.number as u64 & 1)
}

/// What an operation makes of a record if it is carried out.
fn after(entry: &Entry, writer: u16, before: Option<&Content>) -> Option<Content> {
    let stamp = |block, len| Stamp { key: entry.key, block, writer, seq: entry.seq, len }.print();
    match entry.op {
        Op::Put | Op::PutAbsent | Op::PutPresent | Op::PutVersion | Op::PutValue => {
            Some(Content::Value(stamp(0, entry.len)))
        }
        Op::PutStale | Op::Raise => before.cloned(),
        Op::Delete | Op::DeleteVersion => None,
        Op::Patch => {
            let mut blocks = match before {
                Some(Content::Blocks(blocks)) => blocks.clone(),
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
            Some(Content::Blocks(blocks))
        }
    }
}

/// A key of one writer.
#[derive(Clone, Debug)]
struct Own {
    /// States that it may have; one unless a change was cut short.
    states: Vec<Option<Content>>,
    /// The greatest version that was acknowledged.
    version: u64,
}

/// A key that all writers write.
#[derive(Clone, Debug, Default)]
struct Shared {
    /// Acknowledged changes: twice the version, plus one for a deletion; the print, 0 if deleted.
    last: (u64, u64),
    /// Acknowledged since the last comparison, by version: no two may have the same.
    acks: BTreeMap<u64, u64>,
    /// Cut short: the prints, 0 for a deletion.
    doubts: Vec<u64>,
    /// Counters: acknowledged and cut short.
    raised: u64,
    raised_perhaps: u64,
}

/// One record of a transaction that was cut short.
#[derive(Clone, Copy, Debug)]
struct Member {
    entry: Entry,
    /// Prints before and after. Of a key that all write: 0 and what is written.
    old: u64,
    new: u64,
}

fn is_shared(key: Key) -> bool {
    matches!(key.space, Space::Hot | Space::Count)
}

/// What was counted in the journals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Operations that were acknowledged.
    pub acks: u64,
    /// Operations that a kill cut short.
    pub cut_short: u64,
    /// Processes that attached.
    pub attached: u64,
    /// Acknowledged states that were read back and compared: by a writer before its next change,
    /// or at a check.
    pub verified: u64,
    /// Writes refused because a view held the heap's free cells back.
    pub full: u64,
    /// Transactions that were acknowledged.
    pub transactions: u64,
    /// Transactions that a kill cut short.
    pub transactions_cut_short: u64,
    /// Of these, those of which one record told about the others.
    pub transactions_resolved: u64,
    /// Transactions that gave up because others were faster each time.
    pub conflicts: u64,
}

/// The oracle.
#[derive(Clone, Debug, Default)]
pub struct Oracle {
    own: BTreeMap<Key, Own>,
    shared: BTreeMap<Key, Shared>,
    /// Transactions that were cut short, and of which nothing was seen since.
    torn: Vec<Vec<Member>>,
    /// What was counted.
    pub tally: Tally,
}

impl Oracle {
    /// Takes a writer's journal in.
    ///
    /// # Errors
    /// One sentence: the writer saw what cannot be, or was told what cannot be.
    pub fn replay(&mut self, writer: u16, entries: &[Entry]) -> Result<(), String> {
        let mut open: Vec<Entry> = Vec::new();
        let mut last_ack = None;
        for entry in entries {
            match entry.tag {
                Tag::Base => {}
                Tag::Attached => {
                    self.tally.attached += 1;
                    self.cut_short(writer, std::mem::take(&mut open), last_ack.take());
                }
                Tag::Intent => {
                    if open.last().is_some_and(|before| before.left == 0) {
                        self.cut_short(writer, std::mem::take(&mut open), last_ack.take());
                    }
                    open.push(*entry);
                    self.saw(entry).map_err(|e| format!("writer {writer}: {e}"))?;
                }
                Tag::Ack => {
                    let is_whole = open.len() > 1 || last_ack.is_some();
                    open.retain(|intent| intent.seq != entry.seq);
                    last_ack = if open.is_empty() { None } else { Some(*entry) };
                    let is_last = open.is_empty() && is_whole;
                    self.tally_ack(entry, is_last);
                    self.done(writer, entry).map_err(|e| format!("writer {writer}: {e}"))?;
                }
            }
        }
        self.cut_short(writer, open, last_ack);
        Ok(())
    }

    fn tally_ack(&mut self, entry: &Entry, is_last_of_many: bool) {
        let is_nothing = entry.op == Op::PutStale && entry.mask >= CONFLICT;
        self.tally.acks += u64::from(!is_nothing);
        self.tally.full += u64::from(is_nothing && entry.mask == FULL);
        if is_last_of_many {
            self.tally.transactions += u64::from(!is_nothing);
            self.tally.conflicts += u64::from(is_nothing && entry.mask == CONFLICT);
        }
    }

    fn own(&mut self, key: Key) -> &mut Own {
        self.own.entry(key).or_insert_with(|| Own { states: vec![None], version: 0 })
    }

    /// The writer saw the record before its change.
    fn saw(&mut self, entry: &Entry) -> Result<(), String> {
        if is_shared(entry.key) {
            return Ok(());
        }
        self.resolve(entry.key, entry.old)?;
        let own = self.own(entry.key);
        let before = own.states.clone();
        own.states.retain(|state| print_of(state.as_ref()) == entry.old);
        if own.states.is_empty() {
            return Err(format!(
                "{:?}: before {:?} number {} it saw {:#x}, and there may only be {before:x?}",
                entry.key, entry.op, entry.seq, entry.old
            ));
        }
        self.tally.verified += 1;
        Ok(())
    }

    fn done(&mut self, writer: u16, entry: &Entry) -> Result<(), String> {
        if is_shared(entry.key) {
            return self.done_shared(writer, entry);
        }
        let own = self.own(entry.key);
        for state in &mut own.states {
            *state = after(entry, writer, state.as_ref());
        }
        let is_change = entry.version != 0 && entry.op != Op::PutStale;
        let is_delete = matches!(entry.op, Op::Delete | Op::DeleteVersion);
        if is_change && !is_delete && entry.version <= own.version {
            return Err(format!(
                "{:?}: version {} after {}",
                entry.key, entry.version, own.version
            ));
        }
        own.version = own.version.max(entry.version);
        Ok(())
    }

    fn done_shared(&mut self, writer: u16, entry: &Entry) -> Result<(), String> {
        let shared = self.shared.entry(entry.key).or_default();
        if entry.version == 0 {
            return Ok(()); // Refused, or nothing to delete.
        }
        let is_delete = matches!(entry.op, Op::Delete | Op::DeleteVersion);
        let print = if is_delete { 0 } else { print_of(after(entry, writer, None).as_ref()) };
        let order = 2 * entry.version + u64::from(is_delete);
        if shared.acks.insert(order, print).is_some() {
            return Err(format!(
                "{:?}: version {} was given to two changes",
                entry.key, entry.version
            ));
        }
        shared.last = shared.last.max((order, print));
        shared.raised += u64::from(entry.op == Op::Raise);
        Ok(())
    }

    /// A process ended. `open`: what it had not written an acknowledgement of. `last_ack`: one of
    /// the same transaction, which tells that all of it is done, or that nothing is.
    fn cut_short(&mut self, writer: u16, open: Vec<Entry>, last_ack: Option<Entry>) {
        match (open.last(), last_ack) {
            (None, _) => return,
            (Some(_), Some(ack)) => {
                let is_done = ack.op != Op::PutStale;
                for entry in open.iter().filter(|_| is_done) {
                    self.done_unnumbered(writer, entry);
                }
                return;
            }
            // It was killed while it wrote its intents: before the call.
            (Some(last), None) if last.left > 0 => return,
            (Some(_), None) => {}
        }
        self.tally.cut_short += open.len() as u64;
        let mut members = Vec::new();
        for entry in open {
            if is_shared(entry.key) {
                let print = print_of(after(&entry, writer, None).as_ref());
                let shared = self.shared.entry(entry.key).or_default();
                shared.doubts.push(print);
                shared.raised_perhaps += u64::from(entry.op == Op::Raise);
                members.push(Member { entry, old: 0, new: print });
                continue;
            }
            let own = self.own(entry.key);
            for state in own.states.clone() {
                let next = after(&entry, writer, state.as_ref());
                members.push(Member {
                    entry,
                    old: print_of(state.as_ref()),
                    new: print_of(next.as_ref()),
                });
                if !own.states.contains(&next) {
                    own.states.push(next);
                }
            }
        }
        if members.len() > 1 {
            self.tally.transactions_cut_short += 1;
            self.torn.push(members);
        }
    }

    /// It is done, and with which version is not known.
    fn done_unnumbered(&mut self, writer: u16, entry: &Entry) {
        if is_shared(entry.key) {
            let print = print_of(after(entry, writer, None).as_ref());
            let shared = self.shared.entry(entry.key).or_default();
            shared.doubts.push(print);
            shared.raised += u64::from(entry.op == Op::Raise);
            return;
        }
        for state in &mut self.own(entry.key).states {
            *state = after(entry, writer, state.as_ref());
        }
    }

    /// A record was seen. If a transaction that was cut short has it, this tells of all others.
    fn resolve(&mut self, key: Key, print: u64) -> Result<(), String> {
        let tells = |member: &Member| {
            member.entry.key == key && member.old != member.new && !is_shared(key)
        };
        let Some(place) = self.torn.iter().position(|members| members.iter().any(tells)) else {
            // It tells nothing; what happens to it from now on is not that transaction's.
            for members in &mut self.torn {
                members.retain(|member| member.entry.key != key);
            }
            return Ok(());
        };
        let members = self.torn.swap_remove(place);
        let is_done = members.iter().any(|member| tells(member) && member.new == print);
        self.tally.transactions_resolved += 1;
        for member in members {
            let other = member.entry.key;
            if is_shared(other) {
                let shared = self.shared.entry(other).or_default();
                shared.resolve(&member, is_done);
                continue;
            }
            let wanted = if is_done { member.new } else { member.old };
            let states = &mut self.own(other).states;
            states.retain(|state| print_of(state.as_ref()) == wanted);
            if states.is_empty() {
                return Err(format!(
                    "half of a transaction: {key:?} has {print:#x}, so {other:?} should have \
                     {wanted:#x}"
                ));
            }
        }
        Ok(())
    }

    /// Compares a region's records with what they may be. Each of `found` was met once in a walk
    /// over all namespaces. Afterwards the oracle knows exactly what is there.
    ///
    /// # Errors
    /// One sentence: what is lost, torn, old or invented.
    pub fn compare(&mut self, found: &BTreeMap<Key, Found>) -> Result<(), String> {
        for key in found.keys() {
            if !self.own.contains_key(key) && !self.shared.contains_key(key) {
                return Err(format!("{key:?}: nobody ever wrote it"));
            }
        }
        let torn: Vec<Key> = self.torn.iter().flatten().map(|member| member.entry.key).collect();
        for key in torn.into_iter().filter(|key| !is_shared(*key)) {
            self.resolve(key, print_of(found.get(&key).map(|found| &found.content)))?;
        }
        self.torn.clear();
        for (key, own) in &mut self.own {
            let there = found.get(key);
            let print = print_of(there.map(|found| &found.content));
            own.states.retain(|state| print_of(state.as_ref()) == print);
            if own.states.is_empty() {
                return Err(format!("{key:?}: there is {there:x?}, which cannot be"));
            }
            if let Some(there) = there {
                if there.version < own.version {
                    return Err(format!("{key:?}: version {} is old", there.version));
                }
                own.version = there.version;
            }
            self.tally.verified += 1;
        }
        for (key, shared) in &mut self.shared {
            shared.compare(*key, found.get(key))?;
            self.tally.verified += 1;
        }
        self.own.retain(|_, own| own.version != 0 || own.states != [None]);
        Ok(())
    }

    /// The keys of a space that may be there.
    pub fn keys(&self, space: Space) -> Vec<Key> {
        self.own.keys().filter(|key| key.space == space).copied().collect()
    }

    /// Forgets the keys of a space, whose namespace is left behind.
    pub fn forget(&mut self, space: Space) {
        self.own.retain(|key, _| key.space != space);
    }
}

impl Shared {
    /// Whether a transaction that was cut short is done has become known.
    fn resolve(&mut self, member: &Member, is_done: bool) {
        if member.entry.op == Op::Raise {
            self.raised_perhaps = self.raised_perhaps.saturating_sub(1);
            self.raised += u64::from(is_done);
        } else if !is_done && let Some(at) = self.doubts.iter().position(|d| *d == member.new) {
            self.doubts.swap_remove(at);
        }
    }

    fn compare(&mut self, key: Key, found: Option<&Found>) -> Result<(), String> {
        if key.space == Space::Count {
            return self.compare_count(key, found);
        }
        let (order, print) = match found {
            Some(found) => (2 * found.version, found.content.print()),
            None => (u64::MAX, 0),
        };
        let is_last = match found {
            Some(_) => (order, print) == self.last,
            None => self.last.1 == 0,
        };
        let is_doubt = order > self.last.0 && self.doubts.contains(&print);
        if !is_last && !is_doubt {
            return Err(format!(
                "{key:?}: there is {found:x?}; acknowledged last: {:x?}, cut short: {:x?}",
                self.last, self.doubts
            ));
        }
        if found.is_some() {
            self.last = (order, print);
        } else {
            // A deletion that was cut short has no known version; what it deleted had at least
            // this.
            self.last.1 = 0;
        }
        self.acks.clear();
        self.doubts.clear();
        Ok(())
    }

    fn compare_count(&mut self, key: Key, found: Option<&Found>) -> Result<(), String> {
        let count = found.map_or(0, |found| found.count);
        if !(self.raised..=self.raised + self.raised_perhaps).contains(&count) {
            return Err(format!(
                "{key:?}: it says {count}; acknowledged: {}, cut short: {}",
                self.raised, self.raised_perhaps
            ));
        }
        (self.raised, self.raised_perhaps) = (count, 0);
        self.acks.clear();
        self.doubts.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
