//! Small transactions: the cost that a transaction adds to plain operations on the same records,
//! and contention between writers of the same record.
//!
//! | variant | operation |
//! |---|---|
//! | `update` | reads a context of 575 bytes, changes it and writes it, in a transaction |
//! | `update-alone` | the same as one update of the store, without a transaction |
//! | `put`, `put-in-txn` | writes a context, alone and in a transaction |
//! | `read-4`, `views-4` | reads four contexts, in a transaction and one by one |
//! | `contention`, `contention-2` | all clients change the same record, or two, in transactions |
//! | `counter`, `own-counter` | adds to a counter that all clients share, or to one of its own |
//!
//! A shared record has a slot for each client, which counts the client's commits: a lost update
//! shows as a slot with another count. Transactions that met a conflict are a class of their own.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "few operations need their own arm, and a new one behaves like the others"
)]

use super::support::contents::Contents;
use super::support::share::{self, Share};
use super::{
    ClientPart, Parameters, Requirements, Tally, Workload, WorkloadKind, WorkloadSpec, wrong_answer,
};
use crate::access::RecordWrite as WriteChange;
use crate::access::{
    Connection, PartSet, PartsChange, RecordEntry, RecordRead, StoreAccess, StoreSchema, TableId,
    TableSchema, Work,
};
use crate::random::{self, Distributions as _, Rng, draw};
use crate::result::RecordVerification;
use nearstate_model::Result;

/// Bytes of a context: 4,596 bits (paper 1, Table II).
const CONTEXT_BYTES: usize = 575;

/// Bytes at the front of a context that count its changes.
const COUNT_BYTES: usize = 8;

/// Records of a read-only transaction.
const TOGETHER: usize = 4;

/// Adds of an operation: an add takes a few nanoseconds.
const ADDS: u64 = 256;

/// Slots of a shared record: as many as a run has clients at most.
const SLOTS: usize = 512;

const TABLE: TableSchema = TableSchema::new("context", &["value"]);

const CONTEXTS: TableId = TableId(0);

const COMMITTED: usize = 0;
const CONFLICTED: usize = 1;

#[derive(Clone, Copy, Debug)]
pub struct TxnWorkload;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Update,
    UpdateAlone,
    Put,
    PutInTxn,
    ReadTogether,
    ReadEach,
    Contend(usize),
    Count { is_shared: bool },
}

const VARIANTS: [(&str, &str); 10] = [
    ("update", "read, change and write a context of 575 bytes in a transaction"),
    ("update-alone", "the same as one update, without a transaction"),
    ("put", "write a context"),
    ("put-in-txn", "write a context in a transaction"),
    ("read-4", "read four contexts in a transaction"),
    ("views-4", "read four contexts one by one"),
    ("contention", "all clients change one record in transactions"),
    ("contention-2", "all clients change two records in transactions"),
    ("counter", "add to a counter that all clients share, 256 adds in an operation"),
    ("own-counter", "add to a counter of its own, 256 adds in an operation"),
];

const OPERATIONS: [Operation; VARIANTS.len()] = [
    Operation::Update,
    Operation::UpdateAlone,
    Operation::Put,
    Operation::PutInTxn,
    Operation::ReadTogether,
    Operation::ReadEach,
    Operation::Contend(1),
    Operation::Contend(2),
    Operation::Count { is_shared: true },
    Operation::Count { is_shared: false },
];

fn operation_of(parameters: &Parameters) -> Operation {
    let variant = share::variant(&TxnWorkload, parameters);
    OPERATIONS.get(variant).copied().unwrap_or(Operation::Update)
}

static SPEC: WorkloadSpec = WorkloadSpec {
    name: "txn",
    title: "small transactions, writers of the same record, and shared counters",
    source: "this project; contexts of 575 bytes as in paper 1, Table II",
    variants: &VARIANTS,
    records: 100_000,
    classes: &["operation", "after a conflict"],
    schema: StoreSchema { tables: &[TABLE] },
    is_pipelined: false,
    ..WorkloadSpec::DEFAULT
};

impl WorkloadKind for TxnWorkload {
    fn spec(&self) -> &'static WorkloadSpec {
        &SPEC
    }

    fn size(&self, parameters: &Parameters) -> (u64, u64) {
        match operation_of(parameters) {
            Operation::Contend(records) => (records as u64, (SLOTS * COUNT_BYTES) as u64),
            _ => (parameters.records, CONTEXT_BYTES as u64),
        }
    }

    fn requirements(&self, parameters: &Parameters) -> Requirements {
        match operation_of(parameters) {
            Operation::Update
            | Operation::PutInTxn
            | Operation::ReadTogether
            | Operation::Contend(_) => {
                Requirements { transaction: true, ..Requirements::default() }
            }
            Operation::Count { .. } => Requirements { counter: true, ..Requirements::default() },
            Operation::UpdateAlone | Operation::Put | Operation::ReadEach => {
                Requirements::default()
            }
        }
    }

    fn caveats(&self, parameters: &Parameters) -> Vec<String> {
        match operation_of(parameters) {
            Operation::Count { .. } => vec![format!("an operation is {ADDS} adds")],
            Operation::Contend(_) => vec![
                "all clients do the same number of commits: a starved client shows in the \
                 longest latency"
                    .to_owned(),
            ],
            _ => Vec::new(),
        }
    }

    fn new_client(&self, parameters: &Parameters, part: ClientPart) -> Result<Box<dyn Workload>> {
        let share = part.share;
        let count = usize::try_from(share.count).unwrap_or(usize::MAX);
        Ok(Box::new(Client {
            operation: operation_of(parameters),
            numbers: (part.client, part.clients),
            rng: random::rng(draw(parameters.seed, share.first, 1)),
            contents: Contents::new(parameters.seed),
            changes: vec![0; count],
            share,
            pending: None,
            commits: 0,
            value: Vec::with_capacity(CONTEXT_BYTES),
        }))
    }
}

#[derive(Debug)]
struct Client {
    operation: Operation,
    /// The number of this client, and the number of clients.
    numbers: (usize, usize),
    rng: Rng,
    contents: Contents,
    share: Share,
    /// How often each context of this client was changed.
    changes: Vec<u64>,
    /// The context that is being changed.
    pending: Option<usize>,
    /// Commits on shared records, or adds.
    commits: u64,
    value: Vec<u8>,
}

impl Client {
    fn key(&self, slot: usize) -> [u8; 8] {
        (self.share.first + slot as u64).to_be_bytes()
    }

    /// Writes the context after this number of changes to `value`.
    fn make(&mut self, slot: usize, changes: u64) {
        self.value.clear();
        self.value.extend_from_slice(&changes.to_le_bytes());
        let number = draw(self.share.first, slot as u64, changes);
        self.contents.append(number, CONTEXT_BYTES - COUNT_BYTES, &mut self.value);
    }

    fn is_right(&self, slot: usize, changes: u64, bytes: &[u8]) -> bool {
        let number = draw(self.share.first, slot as u64, changes);
        bytes.split_at_checked(COUNT_BYTES).is_some_and(|(count, rest)| {
            count == changes.to_le_bytes()
                && self.contents.are(number, CONTEXT_BYTES - COUNT_BYTES, rest)
        })
    }

    fn one(&mut self, store: &mut Connection<'_>, tally: &mut Tally) -> Result<()> {
        match self.operation {
            Operation::Contend(records) => return self.contend(store, records, tally),
            Operation::Count { is_shared } => {
                let (client, _) = self.numbers;
                store.add(&counter_of(is_shared, client), ADDS)?;
                self.commits += ADDS;
            }
            Operation::ReadTogether | Operation::ReadEach => {
                let mut keys = [[0; 8]; TOGETHER];
                for key in &mut keys {
                    let slot = self.pick();
                    *key = self.key(slot);
                }
                let mut bytes = 0;
                if self.operation == Operation::ReadTogether {
                    store.transact(&mut |access| {
                        bytes = 0;
                        read_all(access, &keys, &mut bytes)
                    })?;
                } else {
                    read_all(store, &keys, &mut bytes)?;
                }
                tally.bytes_in += bytes;
            }
            Operation::Update | Operation::UpdateAlone | Operation::Put | Operation::PutInTxn => {
                self.change(store)?;
                tally.bytes_out += CONTEXT_BYTES as u64;
            }
        }
        tally.count(COMMITTED);
        Ok(())
    }

    fn pick(&mut self) -> usize {
        usize::try_from(self.rng.below(self.changes.len() as u64)).unwrap_or(0)
    }

    /// Changes one context.
    fn change(&mut self, store: &mut Connection<'_>) -> Result<()> {
        let slot = self.pick();
        let before = self.changes.get(slot).copied().unwrap_or(0);
        let key = self.key(slot);
        self.make(slot, before + 1);
        self.pending = Some(slot);
        let parts = [(0, self.value.as_slice())];
        let entry = RecordEntry::new(&key, &parts);
        match self.operation {
            Operation::Put => store.put(CONTEXTS, &entry)?,
            Operation::PutInTxn => store.transact(&mut |access| access.put(CONTEXTS, &entry))?,
            Operation::UpdateAlone => {
                let read = RecordRead { table: CONTEXTS, key: &key, wanted: PartSet::ALL };
                let mut work = Replace { key: &key, value: &self.value, before: None };
                let exists = store.update(read, &mut work)?;
                check_count(exists, work.before, before)?;
            }
            _ => store.transact(&mut |access| {
                let mut found = None;
                let exists = access.read(CONTEXTS, &key, PartSet::ALL, &mut |_, bytes| {
                    found = count_at(bytes, 0);
                })?;
                check_count(exists, found, before)?;
                access.put(CONTEXTS, &entry)
            })?,
        }
        self.complete(before + 1);
        Ok(())
    }

    fn complete(&mut self, changes: u64) {
        if let Some(slot) = self.pending.take()
            && let Some(own) = self.changes.get_mut(slot)
        {
            *own = changes;
        }
    }

    /// Adds to this client's slot of the shared records in one transaction.
    fn contend(
        &mut self,
        store: &mut Connection<'_>,
        records: usize,
        tally: &mut Tally,
    ) -> Result<()> {
        let (client, _) = self.numbers;
        let next = self.commits + 1;
        let (mut runs, value) = (0_u32, &mut self.value);
        self.pending = Some(0);
        store.transact(&mut |access| {
            runs += 1;
            for record in 0..records {
                let key = shared_key(record);
                value.clear();
                access.read(CONTEXTS, &key, PartSet::ALL, &mut |_, bytes| {
                    value.extend_from_slice(bytes);
                })?;
                let at = client * COUNT_BYTES;
                if count_at(value, at) != Some(next - 1) {
                    return Err(wrong_answer(format!("client {client}: a commit was lost")));
                }
                if let Some(slot) = value.get_mut(at..at + COUNT_BYTES) {
                    slot.copy_from_slice(&next.to_le_bytes());
                }
                let parts = [(0, value.as_slice())];
                let entry = RecordEntry::new(&key, &parts);
                access.put(CONTEXTS, &entry)?;
            }
            Ok(())
        })?;
        self.pending = None;
        self.commits = next;
        tally.bytes_out += (records * SLOTS * COUNT_BYTES) as u64;
        tally.count(if runs > 1 { CONFLICTED } else { COMMITTED });
        Ok(())
    }

    fn read_own(store: &mut Connection<'_>, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut value = Vec::new();
        let exists = store.read(CONTEXTS, key, PartSet::ALL, &mut |_, bytes| {
            value = bytes.to_vec();
        })?;
        Ok(exists.then_some(value))
    }
}

/// Replaces a context whose count it reads.
struct Replace<'r> {
    key: &'r [u8],
    value: &'r [u8],
    before: Option<u64>,
}

impl Work for Replace<'_> {
    fn receive(&mut self, _: usize, bytes: &[u8]) {
        self.before = count_at(bytes, 0);
    }

    fn change(&mut self, write: &mut WriteChange<'_>) -> Result<()> {
        write(&PartsChange { key: self.key, parts: &[(0, self.value)], tags: None })
    }
}

fn check_count(exists: bool, found: Option<u64>, expected: u64) -> Result<()> {
    if exists && found == Some(expected) {
        return Ok(());
    }
    Err(wrong_answer(format!("a context with {expected} changes has {found:?}")))
}

fn count_at(bytes: &[u8], at: usize) -> Option<u64> {
    let count = bytes.get(at..)?.first_chunk::<COUNT_BYTES>()?;
    Some(u64::from_le_bytes(*count))
}

fn shared_key(record: usize) -> [u8; 8] {
    let mut key = *b"shared-0";
    if let Some(last) = key.last_mut() {
        *last += u8::from(record > 0);
    }
    key
}

fn counter_of(is_shared: bool, client: usize) -> Vec<u8> {
    if is_shared { b"shared".to_vec() } else { format!("own-{client}").into_bytes() }
}

fn read_all<A: StoreAccess + ?Sized>(
    access: &mut A,
    keys: &[[u8; 8]],
    bytes: &mut u64,
) -> Result<()> {
    for key in keys {
        let exists = access.read(CONTEXTS, key, PartSet::ALL, &mut |_, value| {
            *bytes += value.len() as u64;
            std::hint::black_box(crate::operations::touch(value));
        })?;
        if !exists {
            return Err(wrong_answer("a context that was loaded does not exist"));
        }
    }
    Ok(())
}

impl Workload for Client {
    fn load(&mut self, store: &mut Connection<'_>, done: &mut dyn FnMut(u64)) -> Result<()> {
        match self.operation {
            Operation::Count { .. } => return Ok(()),
            Operation::Contend(records) => {
                let is_first = self.numbers.0 == 0;
                for record in (0..records).filter(|_| is_first) {
                    let (key, value) = (shared_key(record), [0; SLOTS * COUNT_BYTES]);
                    let parts = [(0, value.as_slice())];
                    let entry = RecordEntry::new(&key, &parts);
                    store.put(CONTEXTS, &entry)?;
                    done(1);
                }
                return Ok(());
            }
            _ => {}
        }
        for slot in 0..self.changes.len() {
            self.make(slot, 0);
            let key = self.key(slot);
            let parts = [(0, self.value.as_slice())];
            let entry = RecordEntry::new(&key, &parts);
            store.put(CONTEXTS, &entry)?;
            done(1);
        }
        Ok(())
    }

    fn step(&mut self, store: &mut Connection<'_>, count: usize, tally: &mut Tally) -> Result<()> {
        (0..count).try_for_each(|_| self.one(store, tally))
    }

    fn resolve_unanswered(&mut self, store: &mut Connection<'_>) -> Result<()> {
        let Some(slot) = self.pending else { return Ok(()) };
        if let Operation::Contend(_) = self.operation {
            let value = Self::read_own(store, &shared_key(0))?.unwrap_or_default();
            let found = count_at(&value, self.numbers.0 * COUNT_BYTES);
            self.pending = None;
            self.commits += u64::from(found == Some(self.commits + 1));
            return check_count(true, found, self.commits);
        }
        let before = self.changes.get(slot).copied().unwrap_or(0);
        let value = Self::read_own(store, &self.key(slot))?.unwrap_or_default();
        let is_done = self.is_right(slot, before + 1, &value);
        if !is_done && !self.is_right(slot, before, &value) {
            return Err(wrong_answer("a context is neither as before nor as after its change"));
        }
        self.complete(before + u64::from(is_done));
        Ok(())
    }

    fn verify(
        &mut self,
        store: &mut Connection<'_>,
        done: &mut dyn FnMut(u64),
    ) -> Result<RecordVerification> {
        let mut verdict = RecordVerification::default();
        let mut hold = |is_right: bool, what: String| {
            verdict.count(is_right, true, || what);
            done(1);
        };
        let (client, clients) = self.numbers;
        match self.operation {
            Operation::Contend(records) => {
                for record in 0..records {
                    let value = Self::read_own(store, &shared_key(record))?.unwrap_or_default();
                    let found = count_at(&value, client * COUNT_BYTES);
                    let what = format!("{} commits, and {found:?} are counted", self.commits);
                    hold(found == Some(self.commits), what);
                }
            }
            Operation::Count { is_shared } => {
                // All clients do the same number of operations.
                let all = if is_shared { self.commits * clients as u64 } else { self.commits };
                let found = store.counter(&counter_of(is_shared, client))?;
                hold(u64::try_from(found) == Ok(all), format!("{all} adds, and {found} counted"));
            }
            _ => {
                for slot in 0..self.changes.len() {
                    let changes = self.changes.get(slot).copied().unwrap_or(0);
                    let value = Self::read_own(store, &self.key(slot))?.unwrap_or_default();
                    let is_right = self.is_right(slot, changes, &value);
                    hold(is_right, format!("context {slot} has not its {changes} changes"));
                }
            }
        }
        Ok(verdict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::StoreConnection as _;
    use crate::targets::region::RegionConnection;
    use crate::workloads::support::test_region::wrong_after;

    fn wrong_of_two(variant: &str, steps: usize, spoil: impl FnOnce(&mut RegionConnection)) -> u64 {
        wrong_after(&TxnWorkload, (variant, 2), steps, spoil).unwrap()
    }

    #[test]
    fn a_region_keeps_the_changes_of_every_variant() {
        for (variant, _) in VARIANTS {
            assert_eq!(wrong_of_two(variant, 300, |_| ()), 0, "{variant}");
        }
    }

    #[test]
    fn a_record_that_lost_its_changes_is_found() {
        for (variant, key) in [("update", 3_u64.to_be_bytes()), ("contention", shared_key(0))] {
            let wrong = wrong_of_two(variant, 50, |connection| {
                let (value, parts) = ([0; CONTEXT_BYTES], 0);
                let parts = [(parts, value.as_slice())];
                let entry = RecordEntry::new(&key, &parts);
                connection.put(CONTEXTS, &entry).unwrap();
            });
            assert!(wrong > 0, "{variant}");
        }
        let add = |connection: &mut RegionConnection| connection.add(b"shared", 1).unwrap();
        assert_eq!(wrong_of_two("counter", 5, add), 2);
    }
}
