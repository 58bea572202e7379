//! Single operations on records of one value: what a read or a write of a store costs, in blocks of
//! many operations with one clock reading around each block.
//!
//! | variant | the measured client | the other clients |
//! |---|---|---|
//! | `view`, `copy` | reads by key, in place or as a copy | the same |
//! | `view-scope` | reads in place, sixteen keys in a read scope of the region | the same |
//! | `batch`, `batch-copy` | reads sixteen keys at once | the same |
//! | `chain` | reads by key, the next key depends on the value | the same |
//! | `put` | replaces records | the same |
//! | `update` | reads in place and replaces records, each in a transaction | the same |
//! | `insert` | adds records of its own | the same |
//! | `walk` | steps through all records | the same |
//! | `put-beside-reader` | replaces records | read |
//! | `view-beside-writer` | reads in place | replace records |
//! | `view-beside-memory` | reads in place | write as much memory of their own |
//!
//! All clients read and replace all records, unless `--own-records` gives each a share of them.
//! Each pass over the records puts other values. Where no other client writes what a client reads,
//! it compares the sum of each block, and at the end each record with the value that it put last.

#![expect(clippy::wildcard_enum_match_arm, reason = "few operations differ from the rest")]

use super::support::contents::{Contents, VALUE_BYTES_MAX};
use super::support::identity::key as key_of;
use super::support::share::{self, Share};
use super::{
    ClientPart, Parameters, Requirements, Tally, Workload, WorkloadKind, WorkloadSpec, wrong_answer,
};
use crate::access::{
    Connection, OPERATIONS, PartSet, RecordEntry, Request, StoreReply, StoreSchema, TableSchema,
};
use crate::operations::{BlockOutcome, KEY_BYTES, KeyBlock, Operation, RecordKey, touch};
use crate::random::draw;
use crate::result::RecordVerification;
use nearstate_model::Result;
use std::ops::Range;

/// Operations of a block: the two clock readings around it are below a hundredth of its time.
const BLOCK_OPS: u64 = 256;

/// Limits on the number of different values and on their total bytes. Values of the default size
/// stay in the first two levels of the cache.
const VALUES_MAX: usize = 64;
const VALUES_BYTES: usize = 4 << 20;

/// Requests in one message during loading and verification.
const TOGETHER: usize = 64;

const TABLE: TableSchema = TableSchema::new("record", &["value"]);

/// The workload.
#[derive(Clone, Copy, Debug)]
pub struct Micro;

/// What a client does in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Do(Operation),
    Insert,
    /// Writes memory that no other process uses.
    Memory,
}

const VARIANTS: [(&str, &str); 13] = [
    ("view", "read by key, the value touched in place"),
    ("view-scope", "as view; a region reads sixteen keys under one pin"),
    ("copy", "read by key, the value copied"),
    ("batch", "sixteen keys at once, in place"),
    ("batch-copy", "sixteen keys at once, copied"),
    ("chain", "in place, each key depends on the last value"),
    ("put", "replace a record"),
    ("update", "read in place and replace a record, in a transaction"),
    ("walk", "step to the next record in storage order"),
    ("insert", "add a record; clients have keys of their own"),
    ("put-beside-reader", "replace a record while another process reads"),
    ("view-beside-writer", "read in place while another process replaces the same records"),
    ("view-beside-memory", "read in place while another process writes memory of its own"),
];

/// The role of the measured clients, and that of the background clients if there are any.
type Roles = (Role, Option<Role>);

const ROLES: [Roles; VARIANTS.len()] = [
    (Role::Do(Operation::View), None),
    (Role::Do(Operation::ScopeView), None),
    (Role::Do(Operation::Copy), None),
    (Role::Do(Operation::BatchView), None),
    (Role::Do(Operation::BatchCopy), None),
    (Role::Do(Operation::Chain), None),
    (Role::Do(Operation::Put), None),
    (Role::Do(Operation::Update), None),
    (Role::Do(Operation::Walk), None),
    (Role::Insert, None),
    (Role::Do(Operation::Put), Some(Role::Do(Operation::View))),
    (Role::Do(Operation::View), Some(Role::Do(Operation::Put))),
    (Role::Do(Operation::View), Some(Role::Memory)),
];

impl Role {
    const fn writes(self) -> bool {
        matches!(self, Self::Do(Operation::Put | Operation::Update) | Self::Insert)
    }
}

/// The clients that change the records that a client reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writers {
    None,
    /// Only this client.
    This,
    /// Others, so that their last values are not known.
    Others,
}

impl Writers {
    fn of((measured, background): Roles, part: ClientPart, has_own_records: bool) -> Self {
        let role_of = |client| if client == 0 { measured } else { background.unwrap_or(measured) };
        let writes = role_of(part.client).writes();
        let mut others = (0..part.clients).filter(|client| *client != part.client);
        let is_apart = has_own_records || role_of(part.client) == Role::Insert;
        if !is_apart && others.any(|other| role_of(other).writes()) {
            Self::Others
        } else if writes {
            Self::This
        } else {
            Self::None
        }
    }
}

fn roles_of(parameters: &Parameters) -> Roles {
    let [first, ..] = ROLES;
    ROLES.get(share::variant(&Micro, parameters)).copied().unwrap_or(first)
}

static SPEC: WorkloadSpec = WorkloadSpec {
    name: "micro",
    title: "single operations on records of one value, in blocks",
    source: "this project; keys of 20 bytes, uniform random order",
    variants: &VARIANTS,
    records: 100_000,
    classes: &["operation"],
    schema: StoreSchema { tables: &[TABLE] },
    is_pipelined: false,
    ..WorkloadSpec::DEFAULT
};

impl WorkloadKind for Micro {
    fn spec(&self) -> &'static WorkloadSpec {
        &SPEC
    }

    fn size(&self, parameters: &Parameters) -> (u64, u64) {
        (parameters.records, share::value_bytes(parameters) + KEY_BYTES as u64)
    }

    fn block_ops(&self, parameters: &Parameters) -> u64 {
        match roles_of(parameters).0 {
            Role::Do(Operation::Walk) => parameters.records,
            Role::Do(_) | Role::Insert | Role::Memory => BLOCK_OPS,
        }
    }

    fn background_clients(&self, parameters: &Parameters, clients: usize) -> usize {
        roles_of(parameters).1.map_or(0, |_| clients.saturating_sub(1).max(1))
    }

    fn requirements(&self, parameters: &Parameters) -> Requirements {
        let role = roles_of(parameters).0;
        Requirements {
            walk: role == Role::Do(Operation::Walk),
            transaction: role == Role::Do(Operation::Update),
            ..Requirements::default()
        }
    }

    fn caveats(&self, parameters: &Parameters) -> Vec<String> {
        vec![format!(
            "operations are measured in blocks of {}: latencies are means of blocks; the first and \
             the last byte of each value that is read are summed",
            self.block_ops(parameters)
        )]
    }

    fn new_client(&self, parameters: &Parameters, part: ClientPart) -> Result<Box<dyn Workload>> {
        let (measured, background) = roles_of(parameters);
        let role = if part.client == 0 { measured } else { background.unwrap_or(measured) };
        let writers = Writers::of((measured, background), part, parameters.has_own_records);
        Ok(Box::new(Client::new(parameters, (role, writers), part.share)?))
    }
}

/// The keys of these records in a random order. They are stored in the order of use, so that the
/// list of keys is read sequentially.
fn shuffled(first: u64, count: u64, seed: u64) -> Vec<RecordKey> {
    let mut keys: Vec<RecordKey> = (first..first + count).map(key_of).collect();
    for last in (1..keys.len()).rev() {
        let other = draw(seed, last as u64, 0) % (last as u64 + 1);
        keys.swap(last, usize::try_from(other).unwrap_or(0));
    }
    keys
}

/// The record of a key.
fn record_of(key: &RecordKey) -> u64 {
    let digits = key.iter().filter(|byte| byte.is_ascii_digit());
    digits.fold(0, |record, digit| record * 10 + u64::from(digit - b'0'))
}

#[derive(Debug)]
struct Client {
    role: Role,
    writers: Writers,
    /// The keys of all records, or of this client's, in random order; for inserts in ascending
    /// order.
    keys: Vec<RecordKey>,
    /// In the order of their numbers, from `first` on.
    values: Vec<Vec<u8>>,
    /// The number of the first one of `values`.
    first: usize,
    /// The sum that a read adds, for each number of a value.
    touches: Vec<u64>,
    /// The sums of the loaded values of the keys up to each one, if a client reads them.
    loaded_sums: Vec<u64>,
    contents: Contents,
    value_bytes: usize,
    share: Share,
    /// Where the next block begins in `keys`, and the completed passes over them.
    at: usize,
    pass: usize,
    /// The last block, if its answer was lost with the connection.
    unanswered: Range<usize>,
    /// Private memory, for [`Role::Memory`].
    memory: Vec<u8>,
}

impl Client {
    fn new(
        parameters: &Parameters,
        (role, writers): (Role, Writers),
        share: Share,
    ) -> Result<Self> {
        let value_bytes = share::checked_value_bytes(parameters, VALUE_BYTES_MAX)?;
        let contents = Contents::of_bytes(parameters.seed, value_bytes);
        let value = |number| {
            let mut value = Vec::with_capacity(value_bytes);
            contents.append(number, value_bytes, &mut value);
            value
        };
        let count = (VALUES_BYTES / value_bytes).clamp(1, VALUES_MAX) as u64;
        let values: Vec<Vec<u8>> = (0..count).map(value).collect();
        let touches: Vec<u64> = values.iter().map(|value| touch(value)).collect();
        let keys = match role {
            Role::Insert => (share.first..share.first + share.count).map(key_of).collect(),
            Role::Do(_) | Role::Memory if parameters.has_own_records => {
                shuffled(share.first, share.count, parameters.seed)
            }
            Role::Do(_) | Role::Memory => shuffled(0, parameters.records, parameters.seed),
        };
        let memory = match role {
            Role::Memory => {
                vec![1; value_bytes * usize::try_from(parameters.records).unwrap_or(0)]
            }
            Role::Do(_) | Role::Insert => Vec::new(),
        };
        let mut client = Self {
            role,
            writers,
            keys,
            values,
            first: 0,
            touches,
            loaded_sums: Vec::new(),
            contents,
            value_bytes,
            share,
            at: 0,
            pass: 0,
            unanswered: 0..0,
            memory,
        };
        client.loaded_sums = client.sums_of_loaded();
        Ok(client)
    }

    fn sums_of_loaded(&self) -> Vec<u64> {
        let reads = matches!(self.role, Role::Do(operation) if operation != Operation::Put);
        if !reads || self.writers == Writers::Others {
            return Vec::new();
        }
        let mut sum = 0_u64;
        let touches = self.keys.iter().map(|key| self.touch_of(self.loaded(record_of(key))));
        let sums = touches.map(|touch| {
            sum = sum.wrapping_add(touch);
            sum
        });
        std::iter::once(0).chain(sums).collect()
    }

    fn touch_of(&self, number: usize) -> u64 {
        self.touches.get(number).copied().unwrap_or_default()
    }

    /// The number of the value that a record is loaded with.
    fn loaded(&self, record: u64) -> usize {
        usize::try_from(record % self.values.len() as u64).unwrap_or(0)
    }

    /// The number of the value that this pass puts at a position of the order.
    const fn put_in(&self, pass: usize, at: usize) -> usize {
        (pass + at) % self.values.len()
    }

    /// The number of the last value of a key that only this client writes.
    fn last_put(&self, at: usize, record: u64) -> usize {
        let puts = self.pass + usize::from(at < self.at);
        match puts.checked_sub(1) {
            Some(pass) if self.role.writes() => self.put_in(pass, at),
            _ => self.loaded(record),
        }
    }

    /// The sum of the values that a block reads; `None` if it is not known.
    fn sum_of(&self, operation: Operation, range: &Range<usize>) -> Option<u64> {
        let is_read = !matches!(operation, Operation::Put | Operation::Walk);
        if !is_read || self.writers == Writers::Others {
            return None;
        }
        if operation == Operation::Update && self.pass > 0 {
            let values = self.values.len();
            let (rounds, rest) = (range.len() / values, range.len() % values);
            let all: u64 = self.touches.iter().sum();
            let numbers = (0..rest).map(|more| self.put_in(self.pass - 1, range.start + more));
            let more: u64 = numbers.map(|number| self.touch_of(number)).sum();
            return Some(all * rounds as u64 + more);
        }
        let (start, end) = (self.loaded_sums.get(range.start)?, self.loaded_sums.get(range.end)?);
        Some(end.wrapping_sub(*start))
    }

    /// Brings the value to the front that this pass puts at a position of the order.
    fn rotate_values(&mut self, at: usize) {
        let (wanted, count) = (self.put_in(self.pass, at), self.values.len());
        self.values.rotate_left((wanted + count - self.first) % count);
        self.first = wanted;
    }

    /// The next keys: at most `count`, fewer at the end of the order, which then starts again.
    fn next_keys(&mut self, count: usize) -> Range<usize> {
        if self.at >= self.keys.len() {
            self.at = 0;
            self.pass += 1;
        }
        let end = self.keys.len().min(self.at + count);
        std::mem::replace(&mut self.at, end)..end
    }

    /// Runs one operation on the next keys; returns the number of operations.
    fn block(
        &mut self,
        store: &mut Connection<'_>,
        operation: Operation,
        count: usize,
    ) -> Result<u64> {
        let range = self.next_keys(count);
        self.rotate_values(range.start);
        let keys = self.keys.get(range.clone()).unwrap_or_default();
        let expected = match operation {
            Operation::Walk => self.share.all,
            _ => keys.len() as u64,
        };
        let outcome = store.run_block(operation, KeyBlock { keys, values: &self.values });
        let is_lost = outcome.is_err() || !self.unanswered.is_empty();
        self.unanswered = 0..0;
        let BlockOutcome { met, sum } = outcome.inspect_err(|_| {
            // The next block repeats this one.
            self.at = range.start;
            self.unanswered = range.clone();
        })?;
        if store.is_null() {
            return Ok(expected);
        }
        if met != expected {
            return Err(wrong_answer(format_args!("{met} records instead of {expected}")));
        }
        if let (Some(sum), Some(right)) = (sum, self.sum_of(operation, &range))
            && sum != right
            && !is_lost
        {
            let what = format!("a block whose first and last bytes add to {sum}, not {right}");
            return Err(wrong_answer(what));
        }
        Ok(expected)
    }

    /// Inserts the next keys; each is inserted once in a run.
    fn insert(&mut self, store: &mut Connection<'_>, count: usize) -> Result<u64> {
        if self.at + count > self.keys.len() {
            return Err(share::all_inserted(self.keys.len() as u64));
        }
        self.block(store, Operation::Put, count)
    }

    /// Copies `count` values to random positions in private memory.
    fn write_memory(&mut self, count: usize) -> u64 {
        let records = (self.memory.len() / self.value_bytes).max(1) as u64;
        for (number, value) in self.values.iter().cycle().take(count).enumerate() {
            let record = draw(self.at as u64, number as u64, 1) % records;
            let at = usize::try_from(record).unwrap_or(0) * self.value_bytes;
            if let Some(to) = self.memory.get_mut(at..at + self.value_bytes) {
                to.copy_from_slice(value);
            }
        }
        self.at = self.at.wrapping_add(1);
        std::hint::black_box(&self.memory);
        count as u64
    }

    /// Whether a value is one of those that this workload writes, and `wanted` if there are such.
    fn is_right(&self, value: &[u8], wanted: Option<[usize; 2]>) -> bool {
        let number = value.first_chunk().map_or(u64::MAX, |head| u64::from_le_bytes(*head));
        let is_wanted = wanted.is_none_or(|all| all.iter().any(|one| *one as u64 == number));
        is_wanted
            && number < self.values.len() as u64
            && self.contents.are(number, self.value_bytes, value)
    }

    /// The numbers of the values that each record of the share may have, if they are known.
    fn wanted(&self) -> Vec<Option<[usize; 2]>> {
        let mut wanted = vec![None; usize::try_from(self.share.count).unwrap_or(0)];
        if self.writers == Writers::Others || matches!(self.role, Role::Memory) {
            return wanted;
        }
        for (at, key) in self.keys.iter().enumerate() {
            let record = record_of(key);
            let of_share = record.checked_sub(self.share.first);
            let slot = of_share.and_then(|at| wanted.get_mut(usize::try_from(at).ok()?));
            let last = self.last_put(at, record);
            let next = self.put_in(self.pass, at);
            let or = if self.unanswered.contains(&at) { next } else { last };
            if let Some(slot) = slot {
                *slot = Some([last, or]);
            }
        }
        wanted
    }
}

impl Workload for Client {
    fn load(&mut self, store: &mut Connection<'_>, done: &mut dyn FnMut(u64)) -> Result<()> {
        if self.role == Role::Insert {
            return Ok(());
        }
        let records: Vec<u64> = (self.share.first..self.share.first + self.share.count).collect();
        for some in records.chunks(TOGETHER) {
            let keys: Vec<RecordKey> = some.iter().map(|record| key_of(*record)).collect();
            let values = some.iter().filter_map(|record| self.values.get(self.loaded(*record)));
            let parts: Vec<[(usize, &[u8]); 1]> = values.map(|v| [(0, &v[..])]).collect();
            let mut requests = Vec::with_capacity(TOGETHER);
            for (key, parts) in keys.iter().zip(&parts) {
                let entry = RecordEntry::new(key, parts);
                requests.push(Request::Put { table: OPERATIONS, entry });
            }
            store.pipeline(&requests, &mut |_, _| ())?;
            done(some.len() as u64);
        }
        Ok(())
    }

    fn step(&mut self, store: &mut Connection<'_>, count: usize, tally: &mut Tally) -> Result<()> {
        let done = match self.role {
            Role::Do(operation) => self.block(store, operation, count)?,
            Role::Insert => self.insert(store, count)?,
            Role::Memory => self.write_memory(count),
        };
        let bytes = done * self.value_bytes as u64;
        match self.role {
            Role::Do(Operation::Put) | Role::Insert => tally.bytes_out += bytes,
            Role::Do(Operation::Update) => {
                tally.bytes_out += bytes;
                tally.bytes_in += bytes;
            }
            Role::Do(Operation::Walk) | Role::Memory => {}
            Role::Do(_) => tally.bytes_in += bytes,
        }
        tally.count_many(0, done);
        Ok(())
    }
    // An unanswered block is repeated. At the end of a run the values before and after are right.

    fn verify(
        &mut self,
        store: &mut Connection<'_>,
        done: &mut dyn FnMut(u64),
    ) -> Result<RecordVerification> {
        let mut verdict = RecordVerification::default();
        let inserted = if self.role == Role::Insert { self.at as u64 } else { self.share.count };
        let records: Vec<u64> = (self.share.first..self.share.first + inserted).collect();
        let wanted = self.wanted();
        for (some, wanted) in records.chunks(TOGETHER).zip(wanted.chunks(TOGETHER)) {
            let keys: Vec<RecordKey> = some.iter().map(|record| key_of(*record)).collect();
            let mut requests = Vec::with_capacity(TOGETHER);
            for key in &keys {
                requests.push(Request::Read { table: OPERATIONS, key, wanted: PartSet::ALL });
            }
            let mut right = vec![false; requests.len()];
            store.pipeline(&requests, &mut |number, reply| {
                if let (StoreReply::Part(_, bytes), Some(right)) = (reply, right.get_mut(number)) {
                    *right = self.is_right(bytes, wanted.get(number).copied().flatten());
                }
            })?;
            for (record, is_right) in some.iter().zip(right) {
                let example = || format!("record {record} does not have its value");
                verdict.count(is_right, true, example);
            }
            done(some.len() as u64);
        }
        Ok(verdict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_is_in_the_order_once() {
        let mut keys = shuffled(0, 1000, 7);
        assert_ne!(keys.first(), Some(&key_of(0)), "they are shuffled");
        keys.sort_unstable();
        assert_eq!(keys, (0..1000).map(key_of).collect::<Vec<RecordKey>>());
        assert_eq!(&key_of(1_234_567), b"imsi-000000001234567");
    }

    fn client(variant: &str, number: usize) -> Result<Box<dyn Workload>> {
        let parameters = Parameters {
            records: 100,
            variant: variant.to_owned(),
            value_bytes: Some(64),
            ..Parameters::default()
        };
        Micro.client(&parameters, number, 2)
    }

    #[test]
    fn every_variant_has_clients_and_sizes_have_bounds() {
        for (variant, _) in Micro.variants() {
            assert!(client(variant, 0).is_ok() && client(variant, 1).is_ok(), "{variant}");
        }
        let parameters = Parameters { value_bytes: Some(7), records: 10, ..Parameters::default() };
        let parameters = Parameters { variant: "view".to_owned(), ..parameters };
        assert!(Micro.client(&parameters, 0, 1).is_err());
    }
}
