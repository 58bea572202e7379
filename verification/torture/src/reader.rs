//! A reader verifies every byte of every record that it reads. Versions of a key never decrease and
//! identify one content each. A view does not change while it is held. Of two records that are
//! always written together, the one that is read second is never older.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use nearstate_store::{Error, Session, View};

use crate::content::{KeySpace, TortureKey, words_of};
use crate::error_context::ErrorContext as _;
use crate::oracle::{ObservedRecord, observe};
use crate::region_access::open_session;
use crate::rng::{Rng, percent};
use crate::writer::{HOT_KEYS, KeySpaces, PAIR_KEYS};

/// Views that a reader holds at the same time.
const HELD: usize = 6;

/// The file of a reader's counts.
pub(crate) fn path_of(folder: &Path, reader: u16) -> PathBuf {
    folder.join(format!("current-{reader}"))
}

/// The counts of all processes that had one reader's number.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReaderCounts {
    /// Views verified.
    pub(crate) views: u64,
    /// Processes that attached.
    pub(crate) attached: u64,
    /// Pairs checked.
    pub(crate) pairs: u64,
    /// Of these, pairs read in one transaction.
    pub(crate) snapshots: u64,
}

const COUNTED_BYTES: usize = 32;

pub(crate) fn counts(path: &Path) -> ReaderCounts {
    let mut bytes = [0; COUNTED_BYTES];
    let _ = File::open(path).and_then(|mut file| file.read_exact(&mut bytes));
    let mut words = words_of(&bytes);
    let mut word = || words.next().unwrap_or(0);
    let (views, attached, pairs, snapshots) = (word(), word(), word(), word());
    ReaderCounts { views, attached, pairs, snapshots }
}

#[derive(Debug)]
struct LastSeen {
    version: u64,
    fingerprint: u64,
    count: u64,
}

struct VerifyingReader {
    spaces: KeySpaces,
    writers: u16,
    last: BTreeMap<TortureKey, LastSeen>,
    file: File,
    counts: ReaderCounts,
}

/// Reads until it is killed.
pub(crate) fn run(
    folder: &Path,
    me: u16,
    writers: u16,
    round: u64,
    rng: &mut Rng,
) -> Result<(), String> {
    let path = path_of(folder, me);
    let mut counts = counts(&path);
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .context(path.display())?;
    let session = open_session(&folder.join("region"))?;
    let spaces = KeySpaces::open(&session, round)?;
    counts.attached += 1;
    let mut reader = VerifyingReader { spaces, writers, last: BTreeMap::new(), file, counts };
    reader.count()?;
    loop {
        reader.hold_some(&session, rng)?;
        for _ in 0..20 {
            reader.pair(&session, rng)?;
        }
        if percent(rng, 2) {
            reader.scan_some(&session, rng)?;
        }
        if percent(rng, 10) {
            reader.batch(&session, rng)?;
        }
        reader.count()?;
    }
}

impl VerifyingReader {
    fn count(&mut self) -> Result<(), String> {
        let ReaderCounts { views, attached, pairs, snapshots } = self.counts;
        let words = [views, attached, pairs, snapshots];
        let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        self.file
            .seek(SeekFrom::Start(0))
            .and_then(|_| self.file.write_all(&bytes))
            .context("count")
    }

    fn random_key(&self, rng: &mut Rng) -> TortureKey {
        let writer = rng.u16(..self.writers);
        let (space, writer) = match rng.u64(..10) {
            0..=3 => (KeySpace::Own, writer),
            4 => (KeySpace::Blocks, writer),
            5 => (KeySpace::Grow, writer),
            6..=8 => (KeySpace::Hot, 0),
            _ => (KeySpace::Count, 0),
        };
        TortureKey { space, writer, number: rng.u32(..self.spaces.keys(space)) }
    }

    /// Verifies a view and returns its fingerprint.
    fn verify(&mut self, key: TortureKey, view: &View<'_>) -> Result<u64, String> {
        let observed = observe(key, view)?;
        let fingerprint = observed.content.fingerprint();
        self.compare_with_last(key, &observed)?;
        Ok(fingerprint)
    }

    /// Compares a record with what was read of it before.
    fn compare_with_last(
        &mut self,
        key: TortureKey,
        observed: &ObservedRecord,
    ) -> Result<(), String> {
        let fingerprint = observed.content.fingerprint();
        self.counts.views += 1;
        let current = LastSeen { version: observed.version, fingerprint, count: observed.count };
        if let Some(before) = self.last.get(&key) {
            let is_back = current.version < before.version || current.count < before.count;
            let is_same =
                current.version == before.version && current.fingerprint != before.fingerprint;
            if is_back || is_same {
                return Err(format!("{key:?}: {current:x?} after {before:x?}"));
            }
        }
        self.last.insert(key, current);
        Ok(())
    }

    fn read(
        &mut self,
        session: &Session,
        key: TortureKey,
    ) -> Result<Option<ObservedRecord>, String> {
        let view = session.get(self.spaces.of(key.space), &key.bytes());
        let Some(view) = view.map_err(|e| format!("{key:?}: get: {e}"))? else { return Ok(None) };
        let observed = observe(key, &view)?;
        self.compare_with_last(key, &observed)?;
        Ok(Some(observed))
    }

    /// Reads two records that are always written together, in either order, by single reads or in
    /// one transaction.
    fn pair(&mut self, session: &Session, rng: &mut Rng) -> Result<(), String> {
        let writer = rng.u16(..self.writers);
        let number = rng.u32(..PAIR_KEYS);
        let key = |number| TortureKey { space: KeySpace::Pair, writer, number };
        let (first, second) = (key(number), key(number ^ 1));
        if percent(rng, 40) {
            return self.pair_at_once(session, first, second);
        }
        let one = self.read(session, first)?;
        let other = self.read(session, second)?;
        let is_bad = match (&one, &other) {
            (Some(one), Some(other)) => other.count < one.count,
            // Both are deleted together, so the first one must now be absent or have another
            // version.
            (Some(one), None) => {
                self.read(session, first)?.is_some_and(|again| again.version == one.version)
            }
            (None, _) => return Ok(()),
        };
        self.counts.pairs += 1;
        if is_bad {
            return Err(format!(
                "half of a transaction: {first:?} was {one:x?}, and after it {second:?} {other:x?}"
            ));
        }
        Ok(())
    }

    fn pair_at_once(
        &mut self,
        session: &Session,
        first: TortureKey,
        second: TortureKey,
    ) -> Result<(), String> {
        let txn = session.begin().context("begin")?;
        let mut observed = Vec::new();
        for key in [first, second] {
            match txn.get(self.spaces.of(key.space), &key.bytes()) {
                Ok(record) => {
                    observed.push(record.map(|record| observe(key, &record)).transpose()?);
                }
                Err(Error::Conflict { .. }) => return Ok(()),
                Err(error) => return Err(format!("{key:?}: get: {error}")),
            }
        }
        txn.commit().context("a transaction that only read")?;
        let rounds: Vec<Option<u64>> = observed
            .iter()
            .map(|observed| observed.as_ref().map(|observed| observed.count))
            .collect();
        self.counts.pairs += 1;
        self.counts.snapshots += 1;
        match rounds.as_slice() {
            [one, other] if one != other => Err(format!(
                "half of a transaction: at one moment {first:?} and {second:?} were {observed:x?}"
            )),
            _ => Ok(()),
        }
    }

    /// Holds some views and verifies them again before it drops them.
    fn hold_some(&mut self, session: &Session, rng: &mut Rng) -> Result<(), String> {
        let mut held = Vec::new();
        for _ in 0..rng.u64(..40) {
            let key = self.random_key(rng);
            let view = session.get(self.spaces.of(key.space), &key.bytes());
            if let Some(view) = view.map_err(|e| format!("{key:?}: get: {e}"))? {
                let fingerprint = self.verify(key, &view)?;
                if held.len() < HELD {
                    held.push((key, view, fingerprint));
                }
            }
            if percent(rng, 5) {
                std::thread::yield_now();
            }
        }
        for (key, view, fingerprint) in held {
            let again = observe(key, &view)?.content.fingerprint();
            if again != fingerprint {
                return Err(format!("{key:?}: a view changed from {fingerprint:x} to {again:x}"));
            }
        }
        Ok(())
    }

    fn batch(&mut self, session: &Session, rng: &mut Rng) -> Result<(), String> {
        let numbers: Vec<TortureKey> = (0..20)
            .map(|_| TortureKey { space: KeySpace::Hot, writer: 0, number: rng.u32(..HOT_KEYS) })
            .collect();
        let bytes: Vec<Vec<u8>> = numbers.iter().map(|key| key.bytes()).collect();
        let keys: Vec<&[u8]> = bytes.iter().map(Vec::as_slice).collect();
        let mut failure = None;
        session
            .get_batch(self.spaces.of(KeySpace::Hot), &keys, |index, view| {
                if let (Some(view), Some(key)) = (view, numbers.get(index))
                    && let Err(error) = self.verify(*key, &view)
                {
                    failure = Some(error);
                }
            })
            .context("get_batch")?;
        failure.map_or(Ok(()), Err)
    }

    fn scan_some(&mut self, session: &Session, rng: &mut Rng) -> Result<(), String> {
        let spaces = [KeySpace::Blocks, KeySpace::Hot, KeySpace::Count, KeySpace::Own];
        let space = spaces.get(rng.usize(..4)).copied().unwrap_or(KeySpace::Hot);
        let mut scan = session.scan(self.spaces.of(space)).context("scan")?;
        let mut left = rng.u64(..400);
        while let Some(view) = scan.next().context("scan")? {
            let key = TortureKey::parse(view.key())
                .ok_or_else(|| format!("a key that was never written: {:x?}", view.key()))?;
            self.verify(key, &view)?;
            left = left.saturating_sub(1);
            if left == 0 {
                break;
            }
        }
        Ok(())
    }
}
