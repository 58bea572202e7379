//! A reader: it verifies every byte of every record that it sees, that the versions of a key never
//! go back and name one content each, that a view stays as it is while it is held, and that of two
//! records which are always written together the second one read is never older.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use nearstate_store::{Error, Region, Session, View};

use crate::content::{Key, Space};
use crate::dice::Dice;
use crate::oracle::{Found, judge};
use crate::writer::{BLOCKS_KEYS, COUNT_KEYS, GROW_KEYS, HOT_KEYS, OWN_KEYS, PAIR_KEYS, Spaces};

/// Views that a reader holds at once.
const HELD: usize = 6;

/// The file in which a reader counts what it verified.
pub(crate) fn path_of(folder: &Path, reader: u16) -> PathBuf {
    folder.join(format!("seen-{reader}"))
}

/// What a reader's file says of all processes that were this reader.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counted {
    /// Views verified.
    pub(crate) views: u64,
    /// Processes that attached.
    pub(crate) attached: u64,
    /// Pairs that were judged.
    pub(crate) pairs: u64,
    /// Of these, as one transaction's reads.
    pub(crate) snapshots: u64,
}

const COUNTED_BYTES: usize = 32;

pub(crate) fn counted(path: &Path) -> Counted {
    let mut bytes = [0; COUNTED_BYTES];
    let _ = File::open(path).and_then(|mut file| file.read_exact(&mut bytes));
    let mut words = bytes
        .chunks_exact(8)
        .map(|word| word.iter().rev().fold(0_u64, |word, byte| word << 8 | u64::from(*byte)));
    let mut word = || words.next().unwrap_or(0);
    let (views, attached, pairs, snapshots) = (word(), word(), word(), word());
    Counted { views, attached, pairs, snapshots }
}

#[derive(Debug)]
struct Seen {
    version: u64,
    print: u64,
    count: u64,
}

struct Reader {
    spaces: Spaces,
    writers: u16,
    last: BTreeMap<Key, Seen>,
    file: File,
    counted: Counted,
}

/// Reads for ever.
pub(crate) fn run(
    folder: &Path,
    me: u16,
    writers: u16,
    round: u64,
    dice: &mut Dice,
) -> Result<(), String> {
    let path = path_of(folder, me);
    let mut counted = counted(&path);
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(|e| format!("{}: {e}", path.display()))?;
    let region = Region::attach(&folder.join("region")).map_err(|e| format!("attach: {e}"))?;
    let session = region.session().map_err(|e| format!("session: {e}"))?;
    let spaces = Spaces::open(&session, round)?;
    counted.attached += 1;
    let mut reader = Reader { spaces, writers, last: BTreeMap::new(), file, counted };
    reader.count()?;
    loop {
        reader.hold_some(&session, dice)?;
        for _ in 0..20 {
            reader.pair(&session, dice)?;
        }
        if dice.chance(2) {
            reader.walk(&session, dice)?;
        }
        if dice.chance(10) {
            reader.batch(&session, dice)?;
        }
        reader.count()?;
    }
}

impl Reader {
    fn count(&mut self) -> Result<(), String> {
        let Counted { views, attached, pairs, snapshots } = self.counted;
        let words = [views, attached, pairs, snapshots];
        let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        self.file
            .seek(SeekFrom::Start(0))
            .and_then(|_| self.file.write_all(&bytes))
            .map_err(|e| format!("count: {e}"))
    }

    fn random_key(&self, dice: &mut Dice) -> Key {
        let writer = u16::try_from(dice.below(u64::from(self.writers))).unwrap_or(0);
        let (space, writer, bound) = match dice.below(10) {
            0..=3 => (Space::Own, writer, OWN_KEYS),
            4 => (Space::Blocks, writer, BLOCKS_KEYS),
            5 => (Space::Grow, writer, GROW_KEYS),
            6..=8 => (Space::Hot, 0, HOT_KEYS),
            _ => (Space::Count, 0, COUNT_KEYS),
        };
        Key { space, writer, number: dice.pick(bound) }
    }

    /// Verifies a view. Returns its print.
    fn verify(&mut self, key: Key, view: &View<'_>) -> Result<u64, String> {
        let found = judge(key, view)?;
        let print = found.content.print();
        self.note(key, &found)?;
        Ok(print)
    }

    /// Compares what was found with what was there before.
    fn note(&mut self, key: Key, found: &Found) -> Result<(), String> {
        let print = found.content.print();
        self.counted.views += 1;
        let seen = Seen { version: found.version, print, count: found.count };
        if let Some(before) = self.last.get(&key) {
            let is_back = seen.version < before.version || seen.count < before.count;
            let is_same = seen.version == before.version && seen.print != before.print;
            if is_back || is_same {
                return Err(format!("{key:?}: {seen:x?} after {before:x?}"));
            }
        }
        self.last.insert(key, seen);
        Ok(())
    }

    fn look(&mut self, session: &Session, key: Key) -> Result<Option<Found>, String> {
        let view = session.get(self.spaces.of(key.space), &key.bytes());
        let Some(view) = view.map_err(|e| format!("{key:?}: get: {e}"))? else { return Ok(None) };
        let found = judge(key, &view)?;
        self.note(key, &found)?;
        Ok(Some(found))
    }

    /// Two records that are always written together, in either order, by single reads; and both in
    /// one transaction.
    fn pair(&mut self, session: &Session, dice: &mut Dice) -> Result<(), String> {
        let writer = u16::try_from(dice.below(u64::from(self.writers))).unwrap_or(0);
        let number = dice.pick(PAIR_KEYS);
        let key = |number| Key { space: Space::Pair, writer, number };
        let (first, second) = (key(number), key(number ^ 1));
        if dice.chance(40) {
            return self.pair_at_once(session, first, second);
        }
        let one = self.look(session, first)?;
        let other = self.look(session, second)?;
        let is_bad = match (&one, &other) {
            (Some(one), Some(other)) => other.count < one.count,
            // Both go together. So the first must be gone, or another, if it is read again.
            (Some(one), None) => {
                self.look(session, first)?.is_some_and(|again| again.version == one.version)
            }
            (None, _) => return Ok(()),
        };
        self.counted.pairs += 1;
        if is_bad {
            return Err(format!(
                "half of a transaction: {first:?} was {one:x?}, and after it {second:?} {other:x?}"
            ));
        }
        Ok(())
    }

    fn pair_at_once(&mut self, session: &Session, first: Key, second: Key) -> Result<(), String> {
        let txn = session.begin().map_err(|e| format!("begin: {e}"))?;
        let mut found = Vec::new();
        for key in [first, second] {
            match txn.get(self.spaces.of(key.space), &key.bytes()) {
                Ok(record) => {
                    found.push(record.map(|record| judge(key, &record)).transpose()?);
                }
                Err(Error::Conflict { .. }) => return Ok(()),
                Err(error) => return Err(format!("{key:?}: get: {error}")),
            }
        }
        txn.commit().map_err(|e| format!("a transaction that only read: {e}"))?;
        let rounds: Vec<Option<u64>> =
            found.iter().map(|found| found.as_ref().map(|found| found.count)).collect();
        self.counted.pairs += 1;
        self.counted.snapshots += 1;
        match rounds.as_slice() {
            [one, other] if one != other => Err(format!(
                "half of a transaction: at one moment {first:?} and {second:?} were {found:x?}"
            )),
            _ => Ok(()),
        }
    }

    /// Holds some views at once and verifies them again before it lets them go.
    fn hold_some(&mut self, session: &Session, dice: &mut Dice) -> Result<(), String> {
        let mut held = Vec::new();
        for _ in 0..dice.below(40) {
            let key = self.random_key(dice);
            let view = session.get(self.spaces.of(key.space), &key.bytes());
            if let Some(view) = view.map_err(|e| format!("{key:?}: get: {e}"))? {
                let print = self.verify(key, &view)?;
                if held.len() < HELD {
                    held.push((key, view, print));
                }
            }
            if dice.chance(5) {
                std::thread::yield_now();
            }
        }
        for (key, view, print) in held {
            let again = judge(key, &view)?.content.print();
            if again != print {
                return Err(format!("{key:?}: a view changed from {print:x} to {again:x}"));
            }
        }
        Ok(())
    }

    fn batch(&mut self, session: &Session, dice: &mut Dice) -> Result<(), String> {
        let numbers: Vec<Key> = (0..20)
            .map(|_| Key { space: Space::Hot, writer: 0, number: dice.pick(HOT_KEYS) })
            .collect();
        let bytes: Vec<Vec<u8>> = numbers.iter().map(|key| key.bytes()).collect();
        let keys: Vec<&[u8]> = bytes.iter().map(Vec::as_slice).collect();
        let mut failure = None;
        session
            .get_batch(self.spaces.of(Space::Hot), &keys, |index, view| {
                if let (Some(view), Some(key)) = (view, numbers.get(index))
                    && let Err(error) = self.verify(*key, &view)
                {
                    failure = Some(error);
                }
            })
            .map_err(|e| format!("get_batch: {e}"))?;
        failure.map_or(Ok(()), Err)
    }

    fn walk(&mut self, session: &Session, dice: &mut Dice) -> Result<(), String> {
        let spaces = [Space::Blocks, Space::Hot, Space::Count, Space::Own];
        let space = spaces.get(dice.pick(4) as usize).copied().unwrap_or(Space::Hot);
        let mut scan = session.scan(self.spaces.of(space)).map_err(|e| format!("scan: {e}"))?;
        let mut left = dice.below(400);
        while let Some(view) = scan.next().map_err(|e| format!("scan: {e}"))? {
            let key = Key::parse(view.key())
                .ok_or_else(|| format!("a key that nobody wrote: {:x?}", view.key()))?;
            self.verify(key, &view)?;
            left = left.saturating_sub(1);
            if left == 0 {
                break;
            }
        }
        Ok(())
    }
}
