//! A writer: it reads a record, says in its journal what it saw and what it is about to do, does
//! it, and says what was acknowledged.

mod group;

use std::path::Path;

use nearstate_store::{
    BlockChange, BlockLayout, Condition, Error, Kind, Namespace, Outcome, Region, Schema, Session,
};

use crate::clock::now_ns;
use crate::content::{Key, Space, Stamp, counter};
use crate::dice::Dice;
use crate::journal::{self, Entry, FULL, Journal, Op, Tag};
use crate::oracle::{BLOCKS, Found, block_change, block_len, block_name, judge};

/// Keys of one writer's own values.
pub(crate) const OWN_KEYS: u32 = 1500;
/// Records of named blocks of one writer.
pub(crate) const BLOCKS_KEYS: u32 = 24;
/// Keys that one writer may insert into the namespace that grows.
pub(crate) const GROW_KEYS: u32 = 30_000;
/// Keys that all writers write.
pub(crate) const HOT_KEYS: u32 = 16;
/// Counters.
pub(crate) const COUNT_KEYS: u32 = 4;
/// Keys of one writer that are written two by two.
pub(crate) const PAIR_KEYS: u32 = 16;

/// The namespaces of a run.
#[derive(Clone, Copy, Debug)]
pub struct Spaces([Namespace; 6]);

/// Rounds use this many growing namespaces in turn.
const GROWING: u64 = 1000;

impl Spaces {
    /// Opens them; the growing one is the round's own.
    ///
    /// # Errors
    /// As `Session::namespace`, in words.
    pub fn open(session: &Session, round: u64) -> Result<Self, String> {
        let open = |name: &str, kind: Kind| {
            session
                .namespace(name, &Schema { kind, ..Schema::default() })
                .map_err(|e| format!("namespace {name}: {e}"))
        };
        let grow = format!("grow-{}", round % GROWING);
        Ok(Self([
            open("own", Kind::Value)?,
            open("blocks", Kind::Blocks)?,
            open(&grow, Kind::Value)?,
            open("hot", Kind::Value)?,
            open("count", Kind::Value)?,
            open("pair", Kind::Value)?,
        ]))
    }

    /// The namespace of a space.
    pub const fn of(&self, space: Space) -> Namespace {
        let [own, blocks, grow, hot, count, pair] = self.0;
        match space {
            Space::Own => own,
            Space::Blocks => blocks,
            Space::Grow => grow,
            Space::Hot => hot,
            Space::Count => count,
            Space::Pair => pair,
        }
    }
}

/// One process that writes.
#[derive(Debug)]
pub(crate) struct Writer {
    session: Session,
    spaces: Spaces,
    journal: Journal,
    last: Option<Entry>,
    me: u16,
    buffer: Vec<u8>,
    /// Of the blocks, at their numbers.
    names: BlockLayout,
    /// A full region is an answer, not a failure.
    pub(crate) is_full_fine: bool,
    /// Stops itself right before and right after the call: for whoever steps through it.
    pub(crate) is_stepped: bool,
}

/// What is to be done with a record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    pub(crate) op: Op,
    pub(crate) key: Key,
    pub(crate) len: u32,
    pub(crate) mask: u32,
}

impl Writer {
    pub(crate) fn open(folder: &Path, me: u16, round: u64) -> Result<Self, String> {
        let (mut journal, last) =
            Journal::open(&journal::path_of(folder, me)).map_err(|e| format!("journal: {e}"))?;
        let region = Region::attach(&folder.join("region")).map_err(|e| format!("attach: {e}"))?;
        let session = region.session().map_err(|e| format!("session: {e}"))?;
        journal.attached(now_ns())?;
        let spaces = Spaces::open(&session, round)?;
        let buffer = Vec::new();
        let names: Vec<&str> = (0..BLOCKS).map(block_name).collect();
        let names = BlockLayout::new(&names).map_err(|e| format!("names: {e}"))?;
        Ok(Self {
            session,
            spaces,
            journal,
            last,
            me,
            buffer,
            names,
            is_full_fine: false,
            is_stepped: false,
        })
    }

    /// Reads and verifies a record.
    fn see(&self, key: Key) -> Result<Option<Found>, String> {
        let view = self.session.get(self.spaces.of(key.space), &key.bytes());
        match view.map_err(|e| format!("{key:?}: get: {e}"))? {
            Some(view) => judge(key, &view).map(Some),
            None => Ok(None),
        }
    }

    /// Does random things, for ever. First it looks at what its predecessor left half done.
    pub(crate) fn run(&mut self, dice: &mut Dice) -> Result<(), String> {
        if let Some(last) = self.last.take() {
            if last.key.space == Space::Pair {
                self.random_group(dice)?;
            } else {
                self.random_on(last.key, dice)?;
            }
        }
        loop {
            if dice.chance(40) {
                self.random_group(dice)?;
            } else {
                let key = self.random_key(dice);
                self.random_on(key, dice)?;
            }
        }
    }

    fn random_key(&self, dice: &mut Dice) -> Key {
        let (space, writer, bound) = match dice.below(100) {
            0..=39 => (Space::Own, self.me, OWN_KEYS),
            40..=49 => (Space::Blocks, self.me, BLOCKS_KEYS),
            50..=79 => (Space::Grow, self.me, GROW_KEYS),
            80..=93 => (Space::Hot, 0, HOT_KEYS),
            _ => (Space::Count, 0, COUNT_KEYS),
        };
        Key { space, writer, number: dice.pick(bound) }
    }

    fn random_on(&mut self, key: Key, dice: &mut Dice) -> Result<(), String> {
        let seen = self.see(key)?;
        let order = choose(key, seen.is_some(), dice);
        self.carry_out(order, seen.as_ref())
    }

    /// Does one order, or several in one transaction.
    pub(crate) fn work(&mut self, orders: &[Order]) -> Result<(), String> {
        match orders {
            [order] => self.order(*order),
            orders => self.group(orders),
        }
    }

    /// Reads a record and changes it.
    pub(crate) fn order(&mut self, order: Order) -> Result<(), String> {
        let seen = self.see(order.key)?;
        self.carry_out(order, seen.as_ref())
    }

    fn carry_out(&mut self, order: Order, seen: Option<&Found>) -> Result<(), String> {
        let intent = Entry {
            tag: Tag::Intent,
            op: order.op,
            key: order.key,
            left: 0,
            seq: self.journal.next_seq(),
            len: order.len,
            mask: order.mask,
            old: seen.map_or(0, |found| found.content.print()),
            version: seen.map_or(0, |found| found.version),
            at_ns: now_ns(),
        };
        self.journal.intend(&[intent])?;
        self.stop_if_stepped();
        let done = self.call(&intent, seen);
        self.stop_if_stepped();
        let version = match done {
            Ok(version) => version,
            // A reader that is kept from running holds back what was deleted since: an answer, not
            // a loss. Any other lack of room is a leak.
            Err(Error::Full { detail }) if self.is_full_fine || detail.contains("a view of") => {
                let nothing = Entry { op: Op::PutStale, mask: FULL, ..intent };
                return self.journal.acknowledge(&nothing, 0, now_ns());
            }
            Err(error) => return Err(format!("{intent:?}: {error}")),
        };
        self.journal.acknowledge(&intent, version, now_ns())?;
        let is_shared = matches!(order.key.space, Space::Hot | Space::Count);
        let must_do = !is_shared && order.op != Op::PutStale;
        if must_do && version == 0 && !(intent.old == 0 && order.op == Op::Delete) {
            return Err(format!("{intent:?}: refused"));
        }
        if order.op == Op::PutStale && !is_shared && version != 0 {
            return Err(format!("{intent:?}: done with a version that is not there"));
        }
        Ok(())
    }

    fn stop_if_stepped(&self) {
        if self.is_stepped {
            let _ = nix::sys::signal::raise(nix::sys::signal::Signal::SIGSTOP);
        }
    }

    /// Calls the store. The new version, the version that was deleted, or 0 for "no".
    fn call(&mut self, intent: &Entry, seen: Option<&Found>) -> Result<u64, Error> {
        let namespace = self.spaces.of(intent.key.space);
        let key = intent.key.bytes();
        let version = intent.version;
        let mut value = std::mem::take(&mut self.buffer);
        let stamp =
            Stamp { key: intent.key, block: 0, writer: self.me, seq: intent.seq, len: intent.len };
        stamp.fill(&mut value);
        let session = &self.session;
        let outcome = match intent.op {
            Op::Put => {
                session.put(namespace, &key, &value).map(|version| Outcome::Done { version })
            }
            Op::PutAbsent => session.put_if(namespace, &key, &value, Condition::Absent),
            Op::PutPresent => session.put_if(namespace, &key, &value, Condition::Present),
            Op::PutVersion if is_read_first(intent) => {
                match session.get_for_update(namespace, &key)? {
                    Some(record) if record.view().version() == version => record.put(&value),
                    other => {
                        Ok(Outcome::Refused { current: other.map(|there| there.view().version()) })
                    }
                }
            }
            Op::PutVersion => session.put_if(namespace, &key, &value, Condition::Version(version)),
            Op::PutStale => {
                session.put_if(namespace, &key, &value, Condition::Version(version + 1))
            }
            Op::PutValue => {
                let mut there = Vec::new();
                session.get_copy(namespace, &key, &mut there)?;
                session.put_if(namespace, &key, &value, Condition::Value(&there))
            }
            Op::Delete if intent.key.space == Space::Own => {
                let is_done = session.delete(namespace, &key)?;
                Ok(Outcome::Done { version: if is_done { version } else { 0 } })
            }
            Op::Delete => session.delete_if(namespace, &key, Condition::Present),
            Op::DeleteVersion => session.delete_if(namespace, &key, Condition::Version(version)),
            Op::Patch => patch(session, &self.names, (namespace, &key), intent, self.me),
            Op::Raise => {
                let count = seen.map_or(0, |found| found.count) + 1;
                let condition = match seen {
                    None => Condition::Absent,
                    Some(found) => Condition::Version(found.version),
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

/// Whether a change is one of a record that was read for it: every second one, where it can be.
const fn is_read_first(intent: &Entry) -> bool {
    intent.seq.is_multiple_of(2)
}

fn patch(
    session: &Session,
    names: &BlockLayout,
    (namespace, key): (Namespace, &[u8]),
    intent: &Entry,
    writer: u16,
) -> Result<Outcome, Error> {
    let contents = contents(intent, writer);
    let by_place: Option<Vec<(usize, &[u8])>> = contents
        .iter()
        .map(|(block, bytes)| Some((usize::from(*block), bytes.as_deref()?)))
        .collect();
    if let Some(by_place) = by_place.filter(|_| is_read_first(intent))
        && let Some(record) = session.get_for_update(namespace, key)?
    {
        return record.patch(names, &by_place);
    }
    let changes: Vec<BlockChange<'_>> = contents
        .iter()
        .map(|(block, bytes)| BlockChange { name: block_name(*block), bytes: bytes.as_deref() })
        .collect();
    session.patch(namespace, key, &changes, Condition::Always)
}

/// The blocks that a patch changes, and their bytes; `None` takes one away.
fn contents(intent: &Entry, writer: u16) -> Vec<(u8, Option<Vec<u8>>)> {
    let mut contents = Vec::new();
    for block in 0..BLOCKS {
        let mut bytes = None;
        match block_change(intent.mask, block) {
            Some(true) => {
                let len = block_len(intent.seq, block);
                let stamp = Stamp { key: intent.key, block, writer, seq: intent.seq, len };
                stamp.fill(bytes.insert(Vec::new()));
            }
            Some(false) => {}
            None => continue,
        }
        contents.push((block, bytes));
    }
    contents
}

/// Chooses what fits the record as it is.
fn choose(key: Key, is_there: bool, dice: &mut Dice) -> Order {
    let percent = dice.below(100);
    let (op, len) = match (key.space, is_there) {
        (Space::Count, _) => (Op::Raise, 0),
        (Space::Blocks, true) if percent < 10 => (Op::Delete, 0),
        (Space::Blocks, _) => (Op::Patch, 0),
        (Space::Hot, _) if percent < 15 => (Op::Delete, 0),
        (Space::Hot, _) => (Op::Put, dice.size()),
        (Space::Pair, _) => (Op::Put, 100),
        (Space::Grow, false) => (Op::Put, dice.pick(300)),
        (Space::Grow, true) if percent < 50 => (Op::Delete, 0),
        (Space::Grow, true) => (Op::PutPresent, dice.pick(300)),
        (Space::Own, false) if percent < 60 => (Op::Put, dice.size()),
        (Space::Own, false) if percent < 95 => (Op::PutAbsent, dice.size()),
        (Space::Own, false) => (Op::Delete, 0),
        (Space::Own, true) => match percent {
            0..=34 => (Op::Put, dice.size()),
            35..=44 => (Op::PutPresent, dice.size()),
            45..=54 => (Op::PutVersion, dice.size()),
            55..=62 => (Op::PutValue, dice.size()),
            63..=67 => (Op::PutStale, dice.size()),
            68..=89 => (Op::Delete, 0),
            _ => (Op::DeleteVersion, 0),
        },
    };
    let mut mask = 0;
    if op == Op::Patch {
        for block in 0..BLOCKS {
            let odds = if block == 0 { 15 } else { 35 };
            if dice.chance(odds) {
                mask |= if dice.chance(25) { 2 } else { 1 } << (2 * block);
            }
        }
    }
    Order { op, key, len, mask }
}
