//! Transactions of a writer: several records, noted in the journal before the commit and
//! acknowledged together after it.

use nearstate_store::{BlockChange, Error};

use super::{Order, PAIR_KEYS, Writer, choose, contents};
use crate::clock::now_ns;
use crate::content::{Key, Space, Stamp, counter};
use crate::dice::Dice;
use crate::journal::{CONFLICT, Entry, FULL, Op, Tag};
use crate::oracle::{Found, block_name, judge};

/// How often a transaction is tried: others change the shared records all the time.
const TRIES: u32 = 200;

/// The most records of a random transaction, a pair aside.
const RECORDS: u64 = 5;

/// The shortest value of a pair: it must tell which transaction wrote it.
const PAIR_BYTES: u32 = 40;

impl Writer {
    /// A transaction of some records, chosen at random.
    pub(super) fn random_group(&mut self, dice: &mut Dice) -> Result<(), String> {
        let mut keys = Vec::new();
        for _ in 0..2 + dice.below(RECORDS - 1) {
            let key = self.random_key(dice);
            if !keys.contains(&key) && key.space != Space::Pair {
                keys.push(key);
            }
        }
        let mut orders = Vec::new();
        if dice.chance(50) {
            orders.extend(self.random_pair(dice)?);
        }
        for key in keys {
            let order = choose(key, self.see(key)?.is_some(), dice);
            let op = match order.op {
                Op::PutAbsent | Op::PutPresent | Op::PutVersion | Op::PutValue | Op::PutStale => {
                    Op::Put
                }
                Op::DeleteVersion => Op::Delete,
                op @ (Op::Put | Op::Delete | Op::Patch | Op::Raise) => op,
            };
            orders.push(Order { op, ..order });
        }
        if dice.chance(5) {
            return self.abort_group(&orders);
        }
        self.group(&orders)
    }

    /// Both of a pair are put or deleted.
    fn random_pair(&self, dice: &mut Dice) -> Result<[Order; 2], String> {
        let number = dice.pick(PAIR_KEYS / 2) * 2;
        let key = |number| Key { space: Space::Pair, writer: self.me, number };
        let is_there = self.see(key(number))?.is_some();
        let op = if is_there && dice.chance(10) { Op::Delete } else { Op::Put };
        let mut len = || if op == Op::Put { PAIR_BYTES + dice.pick(800) } else { 0 };
        let (first, second) = (len(), len());
        let order = |number, len| Order { op, key: key(number), len, mask: 0 };
        Ok([order(number, first), order(number + 1, second)])
    }

    /// Does all orders in one transaction.
    pub(crate) fn group(&mut self, orders: &[Order]) -> Result<(), String> {
        let intents = self.intents(orders)?;
        self.journal.intend(&intents)?;
        self.stop_if_stepped();
        let done = self.commit(&intents);
        self.stop_if_stepped();
        let nothing = |mask| (Op::PutStale, mask);
        let (versions, refused) = match done {
            Ok(Some(versions)) => (versions, None),
            Ok(None) => (vec![0; intents.len()], Some(nothing(CONFLICT))),
            Err(Error::Full { detail }) if self.is_full_fine || detail.contains("a view of") => {
                (vec![0; intents.len()], Some(nothing(FULL)))
            }
            Err(error) => return Err(format!("{intents:?}: {error}")),
        };
        let at_ns = now_ns();
        let acks: Vec<Entry> = intents
            .iter()
            .zip(versions)
            .map(|(intent, version)| {
                let (op, mask) = refused.unwrap_or((intent.op, intent.mask));
                Entry { tag: Tag::Ack, op, mask, version, at_ns, ..*intent }
            })
            .collect();
        self.journal.acknowledge_all(&acks)
    }

    fn intents(&self, orders: &[Order]) -> Result<Vec<Entry>, String> {
        let (mut intents, mut seq) = (Vec::new(), self.journal.next_seq());
        for (index, order) in orders.iter().enumerate() {
            let seen = self.see(order.key)?;
            intents.push(Entry {
                tag: Tag::Intent,
                op: order.op,
                key: order.key,
                left: u8::try_from(orders.len() - 1 - index).map_err(|e| e.to_string())?,
                seq,
                len: order.len,
                mask: order.mask,
                old: seen.as_ref().map_or(0, |found| found.content.print()),
                version: seen.as_ref().map_or(0, |found| found.version),
                at_ns: now_ns(),
            });
            seq += 1;
        }
        Ok(intents)
    }

    /// Everything of a transaction but its commit: nothing may come of it.
    fn abort_group(&self, orders: &[Order]) -> Result<(), String> {
        let intents = self.intents(orders)?;
        let txn = self.session.begin().map_err(|e| format!("begin: {e}"))?;
        for intent in &intents {
            match self.change(&txn, intent) {
                Ok(_) => {}
                Err(Error::Conflict { .. }) => break,
                Err(error) => return Err(format!("{intent:?}: {error}")),
            }
        }
        txn.abort();
        let again = self.intents(orders)?;
        for (before, after) in intents.iter().zip(&again) {
            let is_own = !matches!(before.key.space, Space::Hot | Space::Count);
            if is_own && (before.old, before.version) != (after.old, after.version) {
                return Err(format!("{before:?}: an abort changed it to {after:?}"));
            }
        }
        Ok(())
    }

    /// The versions that the records have now, or had before they were deleted; `None` if others
    /// were faster each time.
    fn commit(&self, intents: &[Entry]) -> Result<Option<Vec<u64>>, Error> {
        for _ in 0..TRIES {
            match self.commit_once(intents) {
                Err(Error::Conflict { .. }) => std::thread::yield_now(),
                Err(error) => return Err(error),
                Ok(versions) => return Ok(Some(versions)),
            }
        }
        Ok(None)
    }

    fn commit_once(&self, intents: &[Entry]) -> Result<Vec<u64>, Error> {
        let txn = self.session.begin()?;
        let mut versions = Vec::new();
        for intent in intents {
            let before = self.change(&txn, intent)?;
            versions.push(if intent.op == Op::Delete { before } else { 0 });
        }
        let keys: Vec<Vec<u8>> = intents.iter().map(|intent| intent.key.bytes()).collect();
        txn.commit_with_versions(|key, version| {
            let place = keys.iter().position(|known| known == key);
            let told = place.and_then(|place| versions.get_mut(place)).zip(version);
            if let Some((kept, version)) = told {
                *kept = version;
            }
        })?;
        Ok(versions)
    }

    /// Changes one record in a transaction. Returns the version that it had; 0 if it was not there,
    /// or if that was not asked: some records are written without a look.
    fn change(&self, txn: &nearstate_store::Txn<'_>, intent: &Entry) -> Result<u64, Error> {
        let namespace = self.spaces.of(intent.key.space);
        let key = intent.key.bytes();
        let is_blind = intent.op == Op::Put && intent.seq.is_multiple_of(3);
        let mut seen: Option<Found> = None;
        if !is_blind && let Some(record) = txn.get(namespace, &key)? {
            let judged = judge(intent.key, &record);
            seen = Some(judged.map_err(|detail| Error::Damaged { detail })?);
        }
        match intent.op {
            Op::Delete => {
                let was_there = txn.delete(namespace, &key)?;
                if was_there != seen.is_some() {
                    let detail = format!("{intent:?}: deleted {was_there}, seen {seen:?}");
                    return Err(Error::Damaged { detail });
                }
            }
            Op::Patch => {
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
            Op::Raise => {
                let count = seen.as_ref().map_or(0, |found| found.count) + 1;
                txn.put(namespace, &key, &counter(intent.key, count))?;
            }
            Op::Put
            | Op::PutAbsent
            | Op::PutPresent
            | Op::PutVersion
            | Op::PutValue
            | Op::PutStale
            | Op::DeleteVersion => {
                let mut value = Vec::new();
                let (key_of, writer) = (intent.key, self.me);
                let stamp =
                    Stamp { key: key_of, block: 0, writer, seq: intent.seq, len: intent.len };
                stamp.fill(&mut value);
                txn.put(namespace, &key, &value)?;
            }
        }
        Ok(seen.map_or(0, |found| found.version))
    }
}
