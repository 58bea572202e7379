//! A writer reads a record, records in its journal what it read and what it is about to do, calls
//! the store, and records the acknowledgement.

mod group;

use std::path::Path;

use nearstate_store::{
    BlockChange, BlockLayout, Condition, Error, Kind, Namespace, Outcome, Schema, Session,
    TagSchema,
};

use crate::clock::now_ns;
use crate::content::{ContentStamp, EXPIRING, KeySpace, TortureKey, counter};
use crate::error_context::ErrorContext as _;
use crate::journal::{
    self, CONFLICT, EntryKind, FULL, HELD_BACK, Journal, JournalEntry, STALLED, WriteKind,
};
use crate::oracle::{BLOCKS, ObservedRecord, block_change, block_len, block_name, observe};
use crate::region_access::open_session;
use crate::rng::{Rng, mixed_size, percent, value_size};
use crate::trace::stop_here;

/// Keys of one writer's own values, records of named blocks of one writer, and keys that one
/// writer may insert into the growing namespace.
const KEYS: [u32; 3] = [1500, 24, 30_000];
/// As [`KEYS`], in a region of 64 MiB that four writers keep full.
const FULL_KEYS: [u32; 3] = [8000, 200, 4000];
/// Keys that all writers write.
pub(crate) const HOT_KEYS: u32 = 16;
pub(crate) const COUNT_KEYS: u32 = 4;
/// Keys of one writer that are written in pairs.
pub(crate) const PAIR_KEYS: u32 = 16;

/// The namespaces of a run.
#[derive(Clone, Copy, Debug)]
pub struct KeySpaces {
    namespaces: [Namespace; 6],
    /// The region is kept full.
    is_full: bool,
}

/// The number of growing namespaces that rounds use in turn.
const GROWING: u64 = 1000;

/// The round of all processes that keep a region full. The growing namespace has tags then.
pub(crate) const FULL_ROUND: u64 = u64::MAX;

/// The unique tag of a record in the growing namespace: its key.
const UNIQUE_TAG: &str = "key";

/// A tag that many records have in common.
const COUNTED_TAG: &str = "cell";

/// Records are moved together if this percentage of partly used memory is free.
const JOIN_FREE_SHARE: u64 = 10;

/// Parts of moving them, and units of 64 bytes of each: up to a chunk of 256 KiB.
const JOIN_PARTS_MAX: u64 = 64;
const JOIN_UNITS: u64 = 64;

/// How long a record that expires exists at most.
pub(crate) const EXPIRES_MS_MAX: u64 = 200;

impl KeySpaces {
    /// Opens the namespaces; the growing one belongs to the round.
    pub fn open(session: &Session, round: u64) -> Result<Self, String> {
        let open_with = |name: &str, schema: &Schema| {
            session.namespace(name, schema).map_err(|e| format!("namespace {name}: {e}"))
        };
        let open = |name: &str, kind: Kind| open_with(name, &Schema { kind, ..Schema::default() });
        let is_full = round == FULL_ROUND;
        let mut tags = Vec::new();
        if is_full {
            let tag = |name: &str| TagSchema { name: name.to_owned(), ..TagSchema::default() };
            tags.push(TagSchema { is_unique: true, ..tag(UNIQUE_TAG) });
            tags.push(TagSchema { is_counted: true, is_ordered: true, ..tag(COUNTED_TAG) });
        }
        let grow = format!("grow-{}", round % GROWING);
        let namespaces = [
            open("own", Kind::Value)?,
            open("blocks", Kind::Blocks)?,
            open_with(&grow, &Schema { tags, ..Schema::default() })?,
            open("hot", Kind::Value)?,
            open("count", Kind::Value)?,
            open("pair", Kind::Value)?,
        ];
        Ok(Self { namespaces, is_full })
    }

    /// The number of keys of a space that one writer uses, or all writers of a shared space.
    pub(crate) const fn keys(&self, space: KeySpace) -> u32 {
        let [own, blocks, grow] = if self.is_full { FULL_KEYS } else { KEYS };
        match space {
            KeySpace::Own => own,
            KeySpace::Blocks => blocks,
            KeySpace::Grow => grow,
            KeySpace::Hot => HOT_KEYS,
            KeySpace::Count => COUNT_KEYS,
            KeySpace::Pair => PAIR_KEYS,
        }
    }

    /// The namespace of a space.
    pub const fn of(&self, space: KeySpace) -> Namespace {
        let [own, blocks, grow, hot, count, pair] = self.namespaces;
        match space {
            KeySpace::Own => own,
            KeySpace::Blocks => blocks,
            KeySpace::Grow => grow,
            KeySpace::Hot => hot,
            KeySpace::Count => count,
            KeySpace::Pair => pair,
        }
    }
}

/// A process that writes.
#[derive(Debug)]
pub(crate) struct JournaledWriter {
    session: Session,
    spaces: KeySpaces,
    journal: Journal,
    last: Option<JournalEntry>,
    me: u16,
    buffer: Vec<u8>,
    /// The names of the blocks, indexed by their numbers.
    names: BlockLayout,
    /// A full region is an expected refusal.
    pub(crate) may_be_full: bool,
    /// The size of half of the values in a full region.
    favourite: u32,
    /// Stops itself immediately before and after the call, for single steps.
    pub(crate) is_stepped: bool,
}

/// A write that is to be executed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlannedWrite {
    pub(crate) op: WriteKind,
    pub(crate) key: TortureKey,
    pub(crate) len: u32,
    pub(crate) mask: u32,
}

impl PlannedWrite {
    /// The same write without a condition.
    const fn unconditional(self) -> Self {
        let op = match self.op {
            WriteKind::PutAbsent
            | WriteKind::PutPresent
            | WriteKind::PutVersion
            | WriteKind::PutValue
            | WriteKind::PutStale => WriteKind::Put,
            WriteKind::DeleteVersion => WriteKind::Delete,
            op @ (WriteKind::Put | WriteKind::Delete | WriteKind::Patch | WriteKind::Raise) => op,
        };
        Self { op, ..self }
    }
}

impl JournaledWriter {
    pub(crate) fn open(folder: &Path, me: u16, round: u64) -> Result<Self, String> {
        let (mut journal, last) =
            Journal::open(&journal::path_of(folder, me)).context("journal")?;
        let session = open_session(&folder.join("region"))?;
        journal.attached(now_ns())?;
        let spaces = KeySpaces::open(&session, round)?;
        let buffer = Vec::new();
        let names: Vec<&str> = (0..BLOCKS).map(block_name).collect();
        let names = BlockLayout::new(&names).context("names")?;
        Ok(Self {
            session,
            spaces,
            journal,
            last,
            me,
            buffer,
            names,
            may_be_full: spaces.is_full,
            favourite: 0,
            is_stepped: false,
        })
    }

    /// True for records that are written with tags, in transactions.
    const fn has_tags(&self, key: TortureKey) -> bool {
        self.spaces.is_full && matches!(key.space, KeySpace::Grow)
    }

    /// Reads and verifies a record. Every second one that has tags is found by them.
    fn read(&self, key: TortureKey) -> Result<Option<ObservedRecord>, String> {
        let (namespace, bytes) = (self.spaces.of(key.space), key.bytes());
        let view = if self.has_tags(key) && key.number.is_multiple_of(2) {
            self.session.find(namespace, UNIQUE_TAG, &bytes)
        } else {
            self.session.get(namespace, &bytes)
        };
        match view.map_err(|e| format!("{key:?}: get: {e}"))? {
            Some(view) => observe(key, &view).map(Some),
            None => Ok(None),
        }
    }

    /// Writes at random until it is killed. First it reads what its predecessor left incomplete.
    pub(crate) fn run(&mut self, rng: &mut Rng) -> Result<(), String> {
        self.favourite = mixed_size(rng);
        if let Some(last) = self.last.take() {
            if last.key.space == KeySpace::Pair {
                self.random_group(rng)?;
            } else {
                self.random_on(last.key, rng)?;
            }
        }
        loop {
            if self.spaces.is_full && percent(rng, 2) {
                if percent(rng, 50) { self.collect()? } else { self.join(rng)? }
            } else if percent(rng, 40) {
                self.random_group(rng)?;
            } else {
                let key = self.random_key(rng);
                self.random_on(key, rng)?;
            }
        }
    }

    fn random_key(&self, rng: &mut Rng) -> TortureKey {
        let (space, writer) = match rng.u64(..100) {
            0..=39 => (KeySpace::Own, self.me),
            40..=49 => (KeySpace::Blocks, self.me),
            50..=79 => (KeySpace::Grow, self.me),
            80..=93 => (KeySpace::Hot, 0),
            _ => (KeySpace::Count, 0),
        };
        let mut number = rng.u32(..self.spaces.keys(space));
        if self.spaces.is_full && space == KeySpace::Grow && percent(rng, 20) {
            number += EXPIRING;
        }
        TortureKey { space, writer, number }
    }

    fn random_on(&mut self, key: TortureKey, rng: &mut Rng) -> Result<(), String> {
        let observed = self.read(key)?;
        let order = self.choose(key, observed.is_some(), rng);
        if self.has_tags(key) {
            return self.group(&[order.unconditional()]);
        }
        self.execute(order, observed.as_ref())
    }

    /// Chooses a write that fits the record's state.
    fn choose(&self, key: TortureKey, is_present: bool, rng: &mut Rng) -> PlannedWrite {
        let mut order = choose(key, is_present, rng);
        let is_sized = matches!(key.space, KeySpace::Own | KeySpace::Grow | KeySpace::Hot);
        if self.spaces.is_full && is_sized && order.len != 0 {
            order.len = if percent(rng, 50) { self.favourite } else { mixed_size(rng) };
        }
        order
    }

    /// Collects expired records. A full region must permit it, unless a view holds back what it
    /// frees.
    fn collect(&self) -> Result<(), String> {
        let Err(error) = self.session.collect_expired(100) else { return Ok(()) };
        match self.refusal(&error, WriteKind::Delete) {
            Some((HELD_BACK | STALLED, _)) => Ok(()),
            _ => Err(format!("collect: {error}")),
        }
    }

    /// Moves records together as the background task of a node does, in parts, and gives some of
    /// the memory back.
    fn join(&self, rng: &mut Rng) -> Result<(), String> {
        let parts = rng.u64(..JOIN_PARTS_MAX);
        let run = || {
            let Some(mut work) = self.session.defragment(JOIN_FREE_SHARE)? else { return Ok(()) };
            for _ in 0..parts {
                if work.step(JOIN_UNITS)? {
                    break;
                }
            }
            drop(work);
            self.session.release_free_memory(0, 1).map(drop)
        };
        let Err(error) = run() else { return Ok(()) };
        match self.refusal(&error, WriteKind::Delete) {
            Some((HELD_BACK | STALLED, _)) => Ok(()),
            _ => Err(format!("join: {error}")),
        }
    }

    /// Gives all free memory back to the host, and gets pages for some free and new chunks.
    pub(crate) fn release_free_memory(&self) -> Result<(), String> {
        self.session.release_free_memory(0, u64::MAX).context("release")?;
        let committed = self.session.commit_ahead(u64::MAX, u64::MAX);
        committed.map(drop).context("commit ahead")
    }

    /// How an expected refusal is recorded: its mask, and the process or the call that it is about.
    fn refusal(&self, error: &Error, op: WriteKind) -> Option<(u32, u64)> {
        if let Error::Full { detail, .. } = error {
            // A reader that is not scheduled keeps deleted cells from being reused: a refusal, not
            // a loss. Any other lack of space is a leak.
            let is_held_back = detail.contains("a view of");
            let mask = if is_held_back { HELD_BACK } else { FULL };
            return (is_held_back || self.may_be_full).then_some((mask, op as u64));
        }
        if let Error::Stalled { holder } = error {
            return self.spaces.is_full.then_some((STALLED, u64::from(holder.pid)));
        }
        let is_contended = matches!(error, Error::Deadline { .. });
        (is_contended && self.spaces.is_full).then_some((CONFLICT, 0))
    }

    /// Executes one write, or several in one transaction.
    pub(crate) fn work(&mut self, orders: &[PlannedWrite]) -> Result<(), String> {
        match orders {
            [order] => self.order(*order),
            orders => self.group(orders),
        }
    }

    /// Reads a record and changes it.
    pub(crate) fn order(&mut self, order: PlannedWrite) -> Result<(), String> {
        let observed = self.read(order.key)?;
        self.execute(order, observed.as_ref())
    }

    fn execute(
        &mut self,
        order: PlannedWrite,
        observed: Option<&ObservedRecord>,
    ) -> Result<(), String> {
        let intent = JournalEntry {
            tag: EntryKind::Intent,
            op: order.op,
            key: order.key,
            left: 0,
            seq: self.journal.next_seq(),
            len: order.len,
            mask: order.mask,
            old: observed.map_or(0, |record| record.content.fingerprint()),
            version: observed.map_or(0, |record| record.version),
            at_ns: now_ns(),
        };
        self.journal.intend(&[intent])?;
        self.stop_if_stepped();
        let done = self.call(&intent, observed);
        self.stop_if_stepped();
        let version = match done {
            Ok(version) => version,
            Err(error) => {
                let Some((mask, old)) = self.refusal(&error, intent.op) else {
                    return Err(format!("{intent:?}: {error}"));
                };
                let nothing = JournalEntry { op: WriteKind::PutStale, mask, old, ..intent };
                return self.journal.acknowledge(&nothing, 0, now_ns());
            }
        };
        self.journal.acknowledge(&intent, version, now_ns())?;
        let is_shared = matches!(order.key.space, KeySpace::Hot | KeySpace::Count);
        let must_do = !is_shared && order.op != WriteKind::PutStale;
        if must_do && version == 0 && !(intent.old == 0 && order.op == WriteKind::Delete) {
            return Err(format!("{intent:?}: unexpectedly refused"));
        }
        if order.op == WriteKind::PutStale && !is_shared && version != 0 {
            return Err(format!("{intent:?}: succeeded with a version that does not exist"));
        }
        Ok(())
    }

    fn stop_if_stepped(&self) {
        if self.is_stepped {
            stop_here();
        }
    }

    /// Calls the store. Returns the new version, the deleted version, or 0 for a refusal.
    fn call(
        &mut self,
        intent: &JournalEntry,
        observed: Option<&ObservedRecord>,
    ) -> Result<u64, Error> {
        let namespace = self.spaces.of(intent.key.space);
        let key = intent.key.bytes();
        let version = intent.version;
        let mut value = std::mem::take(&mut self.buffer);
        let stamp = ContentStamp {
            key: intent.key,
            block: 0,
            writer: self.me,
            seq: intent.seq,
            len: intent.len,
        };
        stamp.fill(&mut value);
        let session = &self.session;
        let outcome = match intent.op {
            WriteKind::Put => {
                session.put(namespace, &key, &value).map(|version| Outcome::Done { version })
            }
            WriteKind::PutAbsent => session.put_if(namespace, &key, &value, Condition::Absent),
            WriteKind::PutPresent => session.put_if(namespace, &key, &value, Condition::Present),
            WriteKind::PutVersion if is_read_first(intent) => {
                match session.get_for_update(namespace, &key)? {
                    Some(record) if record.view().version() == version => record.put(&value),
                    other => Ok(Outcome::Refused {
                        current: other.map(|record| record.view().version()),
                    }),
                }
            }
            WriteKind::PutVersion => {
                session.put_if(namespace, &key, &value, Condition::Version(version))
            }
            WriteKind::PutStale => {
                session.put_if(namespace, &key, &value, Condition::Version(version + 1))
            }
            WriteKind::PutValue => {
                let mut current = Vec::new();
                session.get_copy(namespace, &key, &mut current)?;
                session.put_if(namespace, &key, &value, Condition::Value(&current))
            }
            WriteKind::Delete if intent.key.space == KeySpace::Own => {
                let is_done = session.delete(namespace, &key)?;
                Ok(Outcome::Done { version: if is_done { version } else { 0 } })
            }
            WriteKind::Delete => session.delete_if(namespace, &key, Condition::Present),
            WriteKind::DeleteVersion => {
                session.delete_if(namespace, &key, Condition::Version(version))
            }
            WriteKind::Patch => patch(session, &self.names, (namespace, &key), intent, self.me),
            WriteKind::Raise => {
                let count = observed.map_or(0, |record| record.count) + 1;
                let condition = match observed {
                    None => Condition::Absent,
                    Some(record) => Condition::Version(record.version),
                };
                session.put_if(namespace, &key, &counter(intent.key, count), condition)
            }
        };
        self.buffer = value;
        match outcome? {
            Outcome::Done { version } => Ok(version),
            Outcome::Refused { .. } => Ok(0),
        }
    }
}

/// Whether a change goes through `get_for_update`: every second one, if possible.
const fn is_read_first(intent: &JournalEntry) -> bool {
    intent.seq.is_multiple_of(2)
}

fn patch(
    session: &Session,
    names: &BlockLayout,
    (namespace, key): (Namespace, &[u8]),
    intent: &JournalEntry,
    writer: u16,
) -> Result<Outcome, Error> {
    let contents = contents(intent, writer);
    let by_index: Option<Vec<(usize, &[u8])>> = contents
        .iter()
        .map(|(block, bytes)| Some((usize::from(*block), bytes.as_deref()?)))
        .collect();
    if let Some(by_index) = by_index.filter(|_| is_read_first(intent))
        && let Some(record) = session.get_for_update(namespace, key)?
    {
        return record.patch(names, &by_index);
    }
    let changes: Vec<BlockChange<'_>> = contents
        .iter()
        .map(|(block, bytes)| BlockChange { name: block_name(*block), bytes: bytes.as_deref() })
        .collect();
    session.patch(namespace, key, &changes, Condition::Always)
}

/// The blocks that a patch changes, and their bytes; `None` deletes a block.
fn contents(intent: &JournalEntry, writer: u16) -> Vec<(u8, Option<Vec<u8>>)> {
    let mut contents = Vec::new();
    for block in 0..BLOCKS {
        let mut bytes = None;
        match block_change(intent.mask, block) {
            Some(true) => {
                let len = block_len(intent.seq, block);
                let stamp = ContentStamp { key: intent.key, block, writer, seq: intent.seq, len };
                stamp.fill(bytes.insert(Vec::new()));
            }
            Some(false) => {}
            None => continue,
        }
        contents.push((block, bytes));
    }
    contents
}

/// Chooses a write that fits the record's state.
fn choose(key: TortureKey, is_present: bool, rng: &mut Rng) -> PlannedWrite {
    let draw = rng.u64(..100);
    let (op, len) = match (key.space, is_present) {
        (KeySpace::Count, _) => (WriteKind::Raise, 0),
        (KeySpace::Blocks, true) if draw < 10 => (WriteKind::Delete, 0),
        (KeySpace::Blocks, _) => (WriteKind::Patch, 0),
        (KeySpace::Hot, _) if draw < 15 => (WriteKind::Delete, 0),
        (KeySpace::Hot, _) => (WriteKind::Put, value_size(rng)),
        (KeySpace::Pair, _) => (WriteKind::Put, 100),
        (KeySpace::Grow, false) => (WriteKind::Put, rng.u32(..300)),
        (KeySpace::Grow, true) if draw < 50 => (WriteKind::Delete, 0),
        (KeySpace::Grow, true) => (WriteKind::PutPresent, rng.u32(..300)),
        (KeySpace::Own, false) if draw < 60 => (WriteKind::Put, value_size(rng)),
        (KeySpace::Own, false) if draw < 95 => (WriteKind::PutAbsent, value_size(rng)),
        (KeySpace::Own, false) => (WriteKind::Delete, 0),
        (KeySpace::Own, true) => match draw {
            0..=34 => (WriteKind::Put, value_size(rng)),
            35..=44 => (WriteKind::PutPresent, value_size(rng)),
            45..=54 => (WriteKind::PutVersion, value_size(rng)),
            55..=62 => (WriteKind::PutValue, value_size(rng)),
            63..=67 => (WriteKind::PutStale, value_size(rng)),
            68..=89 => (WriteKind::Delete, 0),
            _ => (WriteKind::DeleteVersion, 0),
        },
    };
    let mut mask = 0;
    if op == WriteKind::Patch {
        for block in 0..BLOCKS {
            let odds = if block == 0 { 15 } else { 35 };
            if percent(rng, odds) {
                mask |= if percent(rng, 25) { 2 } else { 1 } << (2 * block);
            }
        }
    }
    PlannedWrite { op, key, len, mask }
}
