//! Transactions of a writer: several records, recorded in the journal before the commit and
//! acknowledged together after it.

use nearstate_store::{BlockChange, Error, Metadata, now_ms_coarse};

use super::{
    COUNTED_TAG, EXPIRES_MS_MAX, JournaledWriter, PAIR_KEYS, PlannedWrite, UNIQUE_TAG, contents,
};
use crate::clock::now_ns;
use crate::content::{ContentStamp, KeySpace, TortureKey, counter};
use crate::error_context::ErrorContext as _;
use crate::journal::{CONFLICT, EntryKind, JournalEntry, WriteKind};
use crate::oracle::{ObservedRecord, block_name, observe};
use crate::rng::{Rng, percent};

/// Attempts of a transaction: other writers change the shared records all the time.
const TRIES: u32 = 200;

/// Records of a random transaction, at most, without the pair.
const RECORDS: u64 = 5;

/// The shortest value of a pair: it must identify the transaction that wrote it.
const PAIR_BYTES: u32 = 40;

impl JournaledWriter {
    /// A transaction of random records.
    pub(super) fn random_group(&mut self, rng: &mut Rng) -> Result<(), String> {
        let mut keys = Vec::new();
        for _ in 0..2 + rng.u64(..RECORDS - 1) {
            let key = self.random_key(rng);
            if !keys.contains(&key) && !key.expires() {
                keys.push(key);
            }
        }
        let mut orders = Vec::new();
        if percent(rng, 50) {
            orders.extend(self.random_pair(rng)?);
        }
        for key in keys {
            orders.push(self.choose(key, self.read(key)?.is_some(), rng).unconditional());
        }
        if percent(rng, 5) {
            return self.abort_group(&orders);
        }
        self.group(&orders)
    }

    /// Puts or deletes both records of a pair.
    fn random_pair(&self, rng: &mut Rng) -> Result<[PlannedWrite; 2], String> {
        let number = rng.u32(..PAIR_KEYS / 2) * 2;
        let key = |number| TortureKey { space: KeySpace::Pair, writer: self.me, number };
        let is_present = self.read(key(number))?.is_some();
        let op = if is_present && percent(rng, 10) { WriteKind::Delete } else { WriteKind::Put };
        let mut len = || if op == WriteKind::Put { PAIR_BYTES + rng.u32(..800) } else { 0 };
        let (first, second) = (len(), len());
        let order = |number, len| PlannedWrite { op, key: key(number), len, mask: 0 };
        Ok([order(number, first), order(number + 1, second)])
    }

    /// Executes all writes in one transaction.
    pub(crate) fn group(&mut self, orders: &[PlannedWrite]) -> Result<(), String> {
        let intents = self.intents(orders)?;
        self.journal.intend(&intents)?;
        self.stop_if_stepped();
        let done = self.commit(&intents);
        self.stop_if_stepped();
        let mut ops = intents.iter().map(|intent| intent.op);
        let op = ops.find(|op| *op != WriteKind::Delete).unwrap_or(WriteKind::Delete);
        let (versions, refused) = match done {
            Ok(Some(versions)) => (versions, None),
            Ok(None) => (vec![0; intents.len()], Some((CONFLICT, 0))),
            Err(error) => match self.refusal(&error, op) {
                Some(refused) => (vec![0; intents.len()], Some(refused)),
                None => return Err(format!("{intents:?}: {error}")),
            },
        };
        let at_ns = now_ns();
        let acks: Vec<JournalEntry> = intents
            .iter()
            .zip(versions)
            .map(|(intent, version)| {
                let ack = JournalEntry { tag: EntryKind::Ack, version, at_ns, ..*intent };
                let refuse =
                    |(mask, old)| JournalEntry { op: WriteKind::PutStale, mask, old, ..ack };
                refused.map_or(ack, refuse)
            })
            .collect();
        self.journal.acknowledge_all(&acks)
    }

    fn intents(&self, orders: &[PlannedWrite]) -> Result<Vec<JournalEntry>, String> {
        let (mut intents, mut seq) = (Vec::new(), self.journal.next_seq());
        for (index, order) in orders.iter().enumerate() {
            let observed = self.read(order.key)?;
            intents.push(JournalEntry {
                tag: EntryKind::Intent,
                op: order.op,
                key: order.key,
                left: u8::try_from(orders.len() - 1 - index).map_err(|e| e.to_string())?,
                seq,
                len: order.len,
                mask: order.mask,
                old: observed.as_ref().map_or(0, |record| record.content.fingerprint()),
                version: observed.as_ref().map_or(0, |record| record.version),
                at_ns: now_ns(),
            });
            seq += 1;
        }
        Ok(intents)
    }

    /// Executes a transaction without its commit, which must have no effect.
    fn abort_group(&self, orders: &[PlannedWrite]) -> Result<(), String> {
        let intents = self.intents(orders)?;
        let txn = self.session.begin().context("begin")?;
        for intent in &intents {
            match self.change(&txn, intent) {
                Ok(_) => {}
                Err(Error::Conflict { .. }) => break,
                Err(error) if self.refusal(&error, intent.op).is_some() => break,
                Err(error) => return Err(format!("{intent:?}: {error}")),
            }
        }
        txn.abort();
        let again = self.intents(orders)?;
        for (before, after) in intents.iter().zip(&again) {
            let is_own = !matches!(before.key.space, KeySpace::Hot | KeySpace::Count);
            if is_own && (before.old, before.version) != (after.old, after.version) {
                return Err(format!("{before:?}: an abort changed it to {after:?}"));
            }
        }
        Ok(())
    }

    /// The new versions, or the versions before the deletion; `None` if every attempt ended in a
    /// conflict.
    fn commit(&self, intents: &[JournalEntry]) -> Result<Option<Vec<u64>>, Error> {
        for _ in 0..TRIES {
            match self.commit_once(intents) {
                Err(Error::Conflict { .. }) => std::thread::yield_now(),
                Err(error) => return Err(error),
                Ok(versions) => return Ok(Some(versions)),
            }
        }
        Ok(None)
    }

    fn commit_once(&self, intents: &[JournalEntry]) -> Result<Vec<u64>, Error> {
        let txn = self.session.begin()?;
        let mut versions = Vec::new();
        for intent in intents {
            let before = self.change(&txn, intent)?;
            versions.push(if intent.op == WriteKind::Delete { before } else { 0 });
        }
        let keys: Vec<Vec<u8>> = intents.iter().map(|intent| intent.key.bytes()).collect();
        txn.commit_with_versions(|key, version| {
            let index = keys.iter().position(|known| known == key);
            let pair = index.and_then(|index| versions.get_mut(index)).zip(version);
            if let Some((slot, version)) = pair {
                *slot = version;
            }
        })?;
        Ok(versions)
    }

    /// Changes one record in a transaction. Returns its version; 0 if it is absent, or if it was
    /// not read: some records are written without a read.
    fn change(&self, txn: &nearstate_store::Txn<'_>, intent: &JournalEntry) -> Result<u64, Error> {
        let namespace = self.spaces.of(intent.key.space);
        let key = intent.key.bytes();
        let is_blind = intent.op == WriteKind::Put && intent.seq.is_multiple_of(3);
        let mut observed: Option<ObservedRecord> = None;
        if !is_blind && let Some(record) = txn.get(namespace, &key)? {
            let verified = observe(intent.key, &record);
            observed = Some(verified.map_err(|detail| Error::Damaged { detail })?);
        }
        match intent.op {
            WriteKind::Delete => {
                let was_there = txn.delete(namespace, &key)?;
                if was_there != observed.is_some() && !intent.key.expires() {
                    let detail = format!("{intent:?}: deleted {was_there}, observed {observed:?}");
                    return Err(Error::Damaged { detail });
                }
            }
            WriteKind::Patch => {
                let contents = contents(intent, self.me);
                let changes: Vec<BlockChange<'_>> = contents
                    .iter()
                    .map(|(block, bytes)| BlockChange {
                        name: block_name(*block),
                        bytes: bytes.as_deref(),
                    })
                    .collect();
                txn.patch(namespace, &key, &changes)?;
            }
            WriteKind::Raise => {
                let count = observed.as_ref().map_or(0, |record| record.count) + 1;
                txn.put(namespace, &key, &counter(intent.key, count))?;
            }
            WriteKind::Put
            | WriteKind::PutAbsent
            | WriteKind::PutPresent
            | WriteKind::PutVersion
            | WriteKind::PutValue
            | WriteKind::PutStale
            | WriteKind::DeleteVersion => {
                let mut value = Vec::new();
                let (key_of, writer) = (intent.key, self.me);
                let stamp = ContentStamp {
                    key: key_of,
                    block: 0,
                    writer,
                    seq: intent.seq,
                    len: intent.len,
                };
                stamp.fill(&mut value);
                let cell = [b'0' + (intent.seq % 8) as u8];
                let tags: [(&str, &[u8]); 2] = [(UNIQUE_TAG, &key), (COUNTED_TAG, &cell)];
                let mut metadata = Metadata::default();
                if self.has_tags(key_of) {
                    metadata.tags = &tags;
                }
                if key_of.expires() {
                    metadata.expires_ms = now_ms_coarse() + 1 + intent.seq % EXPIRES_MS_MAX;
                }
                txn.put_with_metadata(namespace, &key, &value, metadata)?;
            }
        }
        Ok(observed.map_or(0, |record| record.version))
    }
}
