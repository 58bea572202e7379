//! The Yahoo! Cloud Serving Benchmark, workloads A to F (Cooper and others, 2010; its core
//! workload and the files `workloada` to `workloadf`).
//!
//! | variant | reads | writes | distribution of records |
//! |---|---|---|---|
//! | `a` | 50 % | 50 % update of one field | Zipf's law, 0.99, scattered |
//! | `b` | 95 % | 5 % update of one field | as `a` |
//! | `c` | 100 % | | as `a` |
//! | `d` | 95 % | 5 % insert | the newest most often |
//! | `e` | 95 % scans of 1 to 100 records | 5 % insert | first record of a scan: as `a` |
//! | `f` | 50 % | 50 % read, then update of one field | as `a` |
//!
//! A record has ten fields of 100 bytes. Each field is a part; a read reads all of them. In `e`
//! they are one part, because a scan returns one. Differences from YCSB: each insert deletes the
//! oldest record once a client has twice its initial number of records; and keys are scattered by
//! an invertible multiplication, so that the results of a scan can be compared with the model.

use super::support::record_model::{ComparedRecords as _, Mutation, RecordForm, RecordModel};
use super::support::share::{self, Share};
use super::{ClientPart, Parameters, Requirements, Tally, Workload, WorkloadKind, WorkloadSpec};
use crate::access::{Connection, PartSet, ScanRange, StoreSchema, TableId, TableSchema};
use crate::random::{self, AccessDistribution, Distributions as _, RecordSequence, Rng, top_share};
use crate::result::{Check, RecordVerification};
use crate::stat::as_f64;
use crate::table::counted;
use nearstate_model::Result;

/// Fields of a record.
const FIELDS: usize = 10;

const FIELD_BYTES: usize = 100;

/// The largest number of records of a scan.
const SCAN_MAX: u64 = 100;

/// Records of a scan that are compared. Comparing all would cost as much as the scan.
const COMPARED: usize = 4;

const FIELD_NAMES: [&str; FIELDS] = [
    "field0", "field1", "field2", "field3", "field4", "field5", "field6", "field7", "field8",
    "field9",
];

const FIELDED: TableSchema = TableSchema::new("usertable", &FIELD_NAMES);

const SCANNED: TableSchema =
    TableSchema { name: "usertable", parts: &["fields"], tags: &[], is_scanned: true };

const CLASSES: [&str; 5] = ["read", "update", "insert", "scan", "read-modify-write"];

const READ: usize = 0;
const UPDATE: usize = 1;
const INSERT: usize = 2;
const SCAN: usize = 3;
const MODIFY: usize = 4;

/// The operations of a variant: `percent` of class `rare`, all others of class `common`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Variant {
    common: usize,
    rare: usize,
    percent: u64,
}

const VARIANTS: [Variant; 6] = [
    Variant { common: READ, rare: UPDATE, percent: 50 },
    Variant { common: READ, rare: UPDATE, percent: 5 },
    Variant { common: READ, rare: READ, percent: 0 },
    Variant { common: READ, rare: INSERT, percent: 5 },
    Variant { common: SCAN, rare: INSERT, percent: 5 },
    Variant { common: READ, rare: MODIFY, percent: 50 },
];

impl Variant {
    fn of(parameters: &Parameters) -> Self {
        let [first, ..] = VARIANTS;
        VARIANTS.get(share::variant(&Ycsb, parameters)).copied().unwrap_or(first)
    }

    const fn has_inserts(self) -> bool {
        self.rare == INSERT
    }

    const fn has_scans(self) -> bool {
        self.common == SCAN
    }

    const fn percent(self, class: usize) -> u64 {
        if class == self.rare && self.percent > 0 {
            self.percent
        } else if class == self.common {
            100 - self.percent
        } else {
            0
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Ycsb;

static SPEC: WorkloadSpec = WorkloadSpec {
    name: "ycsb",
    title: "Yahoo! Cloud Serving Benchmark: ten fields of 100 bytes, read, changed, inserted, \
            scanned",
    source: "Cooper et al., Benchmarking Cloud Serving Systems with YCSB, SoCC 2010; core \
             workloads",
    variants: &[
        ("a", "50 % reads, 50 % updates of one field"),
        ("b", "95 % reads, 5 % updates of one field"),
        ("c", "reads"),
        ("d", "95 % reads, of the newest most often, 5 % inserts"),
        ("e", "95 % scans of 1 to 100 records, 5 % inserts"),
        ("f", "50 % reads, 50 % reads followed by an update of one field"),
    ],
    records: 100_000,
    classes: &CLASSES,
    schema: StoreSchema { tables: &[FIELDED] },
    ..WorkloadSpec::DEFAULT
};

impl WorkloadKind for Ycsb {
    fn spec(&self) -> &'static WorkloadSpec {
        &SPEC
    }

    fn schema(&self, parameters: &Parameters) -> StoreSchema {
        let is_scanned = Variant::of(parameters).has_scans();
        if is_scanned { StoreSchema { tables: &[SCANNED] } } else { SPEC.schema }
    }

    fn size(&self, parameters: &Parameters) -> (u64, u64) {
        let grows = if Variant::of(parameters).has_inserts() { 2 } else { 1 };
        (parameters.records * grows, (FIELDS * FIELD_BYTES) as u64)
    }

    fn requirements(&self, parameters: &Parameters) -> Requirements {
        let variant = Variant::of(parameters);
        let delta = matches!(variant.rare, UPDATE | MODIFY);
        Requirements { delta, scan: variant.has_scans(), ..Requirements::default() }
    }

    fn caveats(&self, parameters: &Parameters) -> Vec<String> {
        let variant = Variant::of(parameters);
        let mut caveats = Vec::new();
        if parameters.spread == AccessDistribution::Uniform && variant.rare != INSERT {
            caveats.push(
                "records are uniformly distributed; YCSB uses Zipf's law: --spread zipfian"
                    .to_owned(),
            );
        }
        if variant.has_inserts() {
            caveats.push(
                "with twice the initial records, each insert deletes the oldest record".to_owned(),
            );
        }
        caveats
    }

    fn new_client(&self, parameters: &Parameters, part: ClientPart) -> Result<Box<dyn Workload>> {
        let share = part.share;
        if Variant::of(parameters).has_scans() {
            Ok(Box::new(Client::<1>::new(&SCANNED, parameters, share)?))
        } else {
            Ok(Box::new(Client::<FIELDS>::new(&FIELDED, parameters, share)?))
        }
    }
}

/// Odd, so that the multiplication is invertible.
const SCATTER: u64 = 0x9E37_79B9_7F4A_7C15;

/// The inverse of [`SCATTER`] modulo 2^64.
const GATHER: u64 = inverse(SCATTER);

/// Newton's method: starts with five correct bits and doubles their number in each round.
const fn inverse(odd: u64) -> u64 {
    let mut x = odd.wrapping_mul(3) ^ 2;
    let mut round = 0;
    while round < 4 {
        x = x.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(x)));
        round += 1;
    }
    x
}

/// The form of a record. Its key is `user` and a number, as in YCSB.
#[derive(Clone, Copy, Debug)]
struct Row {
    part_bytes: usize,
}

/// The low bits of a key's number, which contain the generation. The record is above them.
const GENERATION_BITS: u32 = 32;

impl RecordForm for Row {
    fn key(&self, record: u64, generation: u32, out: &mut Vec<u8>) {
        out.extend_from_slice(b"user");
        let number = record << GENERATION_BITS | u64::from(generation);
        out.extend_from_slice(&share::digits::<20>(number.wrapping_mul(SCATTER)));
    }

    fn part_bytes(&self, _: u64, _: usize) -> usize {
        self.part_bytes
    }
}

/// The record and the generation of a key.
fn parse_key(key: &[u8]) -> Option<(u64, u32)> {
    let text = std::str::from_utf8(key.strip_prefix(b"user")?).ok()?;
    let number = text.parse::<u64>().ok()?.wrapping_mul(GATHER);
    let generation = u32::try_from(number & u64::from(u32::MAX)).ok()?;
    Some((number >> GENERATION_BITS, generation))
}

/// A client whose records have `P` parts.
#[derive(Debug)]
struct Client<const P: usize> {
    variant: Variant,
    model: RecordModel<Row, P>,
    sequence: RecordSequence,
    rng: Rng,
    /// The first record of this client.
    first: u64,
    /// The number of records that it loads.
    loaded: u64,
    /// Insertion numbers `oldest..next` exist. The slot of a number is its remainder by `slots`.
    oldest: u64,
    next: u64,
    slots: u64,
    /// Records that the write in flight creates.
    inserting: u64,
    spread: AccessDistribution,
    picked: Vec<u64>,
    reads: Vec<u64>,
    mutations: Vec<(u64, Mutation)>,
    /// Operations by class.
    counts: [u64; CLASSES.len()],
    /// Updates by field.
    fields: [u64; FIELDS],
    /// Operations on the most frequent record.
    top: u64,
    /// Records that the scans asked for.
    scanned: u64,
}

impl<const P: usize> Client<P> {
    fn new(schema: &'static TableSchema, parameters: &Parameters, share: Share) -> Result<Self> {
        let variant = Variant::of(parameters);
        let grows = if variant.has_inserts() { 2 } else { 1 };
        let slots =
            Share { first: share.first * grows, count: share.count * grows, all: share.all };
        let row = Row { part_bytes: FIELDS * FIELD_BYTES / P };
        let seed = random::draw(parameters.seed, share.first, 1);
        let sequence = if variant.has_inserts() && !variant.has_scans() {
            RecordSequence::of_ages(share.count, seed)?
        } else {
            RecordSequence::new(parameters.spread, share.count, seed)?
        };
        Ok(Self {
            variant,
            model: RecordModel::new(row, schema, parameters, slots)?,
            sequence,
            rng: random::rng(seed ^ 1),
            first: slots.first,
            loaded: share.count,
            oldest: 0,
            next: share.count,
            slots: slots.count,
            inserting: 0,
            spread: parameters.spread,
            picked: Vec::new(),
            reads: Vec::new(),
            mutations: Vec::new(),
            counts: [0; CLASSES.len()],
            fields: [0; FIELDS],
            top: 0,
            scanned: 0,
        })
    }

    /// The slot of a drawn record or age.
    fn slot(&self, drawn: u64) -> u64 {
        if !self.variant.has_inserts() {
            return drawn;
        }
        let number = if self.variant.has_scans() {
            self.oldest + drawn
        } else {
            self.next.saturating_sub(drawn + 1).max(self.oldest)
        };
        number % self.slots
    }

    fn count(&mut self, class: usize, tally: &mut Tally) {
        tally.count(class);
        if let Some(count) = self.counts.get_mut(class) {
            *count += 1;
        }
    }

    /// Draws `count` operations.
    fn draw(&mut self, count: usize, tally: &mut Tally) {
        let mut picked = std::mem::take(&mut self.picked);
        self.sequence.pick(count, &mut picked);
        self.reads.clear();
        self.mutations.clear();
        let mut inserts = 0;
        for drawn in &picked {
            self.top += u64::from(*drawn == self.sequence.top());
            let is_rare = self.rng.below(100) < self.variant.percent;
            let class = if is_rare { self.variant.rare } else { self.variant.common };
            let slot = self.slot(*drawn);
            match class {
                UPDATE | MODIFY => {
                    let field = usize::try_from(self.rng.below(P as u64)).unwrap_or(0);
                    if let Some(changes) = self.fields.get_mut(field) {
                        *changes += 1;
                    }
                    self.mutations.push((slot, Mutation::Update(PartSet::one(field))));
                    if class == MODIFY {
                        self.reads.push(slot);
                    }
                }
                INSERT => inserts += 1,
                _ => self.reads.push(slot),
            }
            self.count(class, tally);
        }
        self.picked = picked;
        self.insert(inserts);
    }

    fn insert(&mut self, inserts: u64) {
        for number in self.next..self.next + inserts {
            self.mutations.push((number % self.slots, Mutation::Create));
        }
    }

    /// Removes the oldest records if the drawn inserts need their slots.
    fn remove_oldest(&mut self, store: &mut Connection<'_>, tally: &mut Tally) -> Result<()> {
        let inserts =
            self.mutations.iter().filter(|(_, mutation)| *mutation == Mutation::Create).count()
                as u64;
        let first = (self.next + inserts).saturating_sub(self.slots);
        if first > self.oldest {
            let old: Vec<(u64, Mutation)> = (self.oldest..first)
                .map(|number| number % self.slots)
                // A lost connection may have prevented the insert of a record.
                .filter(|slot| self.model.state(*slot).exists())
                .map(|slot| (slot, Mutation::Remove))
                .collect();
            self.model.write(store, &old, tally)?;
            self.oldest = first;
        }
        Ok(())
    }

    fn scan(&mut self, store: &mut Connection<'_>, from: u64, tally: &mut Tally) -> Result<()> {
        let Self { model, rng, first, slots, .. } = self;
        let count = 1 + rng.below(SCAN_MAX);
        let length = usize::try_from(count).unwrap_or(1);
        let state = model.state(from);
        let mut key = Vec::with_capacity(24);
        model.form().key(*first + from, state.generation(), &mut key);
        tally.bytes_out += key.len() as u64;
        let (mut received, mut wrong, mut last) = (0_usize, 0, key.clone());
        let (mut is_first_right, mut bytes_in) = (true, 0);
        let range = ScanRange { table: TableId(0), from: &key, count: length };
        let returned = store.scan(&range, &mut |found, bytes| {
            bytes_in += (found.len() + bytes.len()) as u64;
            received += 1;
            if received == 1 {
                is_first_right = found == key || !state.exists();
            } else if found <= last.as_slice() {
                wrong += 1;
            }
            last.clear();
            last.extend_from_slice(found);
            if received <= COMPARED
                && let Some((record, generation)) = parse_key(found)
                && let Some(slot) = record.checked_sub(*first).filter(|slot| slot < slots)
            {
                let is_known = model.state(slot).generation() == generation;
                wrong += usize::from(!is_known || !model.is_part(slot, 0, bytes));
            }
        })?;
        if wrong > 0 || !is_first_right || received != returned || returned > length {
            let length = counted(length as u64, "record");
            model.mismatch(|| format!("scan: {received} of {length} received, {wrong} wrong"));
        }
        self.scanned += count;
        tally.bytes_in += bytes_in;
        Ok(())
    }

    /// Scans the whole table, which must contain each record of this client once, in key order.
    fn scan_all(
        &mut self,
        store: &mut Connection<'_>,
        verdict: &mut RecordVerification,
    ) -> Result<()> {
        let (mut from, mut own) = (b"user".to_vec(), 0);
        loop {
            let (mut last, mut is_ordered) = (from.clone(), true);
            let Self { model, first, slots, .. } = self;
            let length = 1000;
            let range = ScanRange { table: TableId(0), from: &from, count: length };
            let returned = store.scan(&range, &mut |found, bytes| {
                let is_repeated = found == from.as_slice();
                is_ordered &= found > last.as_slice() || is_repeated;
                last.clear();
                last.extend_from_slice(found);
                if !is_repeated
                    && let Some((record, generation)) = parse_key(found)
                    && let Some(slot) = record.checked_sub(*first).filter(|slot| slot < slots)
                    && model.state(slot).generation() == generation
                {
                    own += u64::from(model.is_part(slot, 0, bytes));
                }
            })?;
            if !is_ordered {
                verdict.wrong(|| "a scan returns keys out of order".to_owned());
            }
            if returned < length || last == from {
                break;
            }
            from = last;
        }
        let slots = (self.oldest..self.next).map(|number| number % self.slots);
        let expected = slots.filter(|slot| self.model.state(*slot).exists()).count() as u64;
        if own != expected {
            let expected = counted(expected, "record");
            verdict.wrong(|| format!("a scan of the whole table finds {own} of {expected}"));
        }
        Ok(())
    }
}

impl<const P: usize> Workload for Client<P> {
    fn load(&mut self, store: &mut Connection<'_>, done: &mut dyn FnMut(u64)) -> Result<()> {
        let loaded = self.loaded;
        self.model.load(store, |slot| slot < loaded, done)
    }

    fn step(&mut self, store: &mut Connection<'_>, count: usize, tally: &mut Tally) -> Result<()> {
        self.draw(count, tally);
        if self.variant.has_scans() {
            let scans = std::mem::take(&mut self.reads);
            for from in &scans {
                self.scan(store, *from, tally)?;
            }
            self.reads = scans;
        } else if !self.reads.is_empty() {
            self.model.read(store, &self.reads, PartSet::ALL, tally)?;
        }
        if !self.mutations.is_empty() {
            if self.variant.has_inserts() {
                self.remove_oldest(store, tally)?;
                self.inserting = self.mutations.len() as u64;
            }
            self.model.write(store, &self.mutations, tally)?;
            self.next += std::mem::take(&mut self.inserting);
        }
        Ok(())
    }

    fn resolve_unanswered(&mut self, store: &mut Connection<'_>) -> Result<()> {
        self.model.resolve_unanswered(store)?;
        // The model knows the inserts that were not executed.
        self.next += std::mem::take(&mut self.inserting);
        Ok(())
    }

    fn verify(
        &mut self,
        store: &mut Connection<'_>,
        done: &mut dyn FnMut(u64),
    ) -> Result<RecordVerification> {
        let mut verdict = self.model.verify(store, done)?;
        if self.variant.has_scans() {
            self.scan_all(store, &mut verdict)?;
        }
        Ok(verdict)
    }

    fn checks(&self) -> Vec<Check> {
        let all: u64 = self.counts.iter().sum();
        let mut checks: Vec<Check> = CLASSES
            .iter()
            .zip(self.counts)
            .enumerate()
            .filter(|(class, _)| self.variant.percent(*class) > 0)
            .map(|(class, (name, count))| {
                let expected = as_f64(self.variant.percent(class));
                share::percent(format!("{name}, % of operations"), expected, count, all)
            })
            .collect();
        let changes: u64 = self.fields.iter().sum();
        if changes > 0 {
            let [first, ..] = self.fields;
            checks.push(share::percent("field0, % of updates", 10.0, first, changes));
        }
        if self.spread == AccessDistribution::Zipfian && !self.variant.has_inserts() {
            let expected = 100.0 * top_share();
            let name = "most frequent record, % of draws";
            checks.push(share::percent(name, expected, self.top + self.sequence.displaced(), all));
        }
        if let (true, Some(scans)) = (self.variant.has_scans(), self.counts.get(SCAN)) {
            let weight = as_f64(*scans);
            // The standard deviation of a uniform choice from 1 to 100 is 28.9.
            checks.push(Check {
                name: "records of a scan, mean".to_owned(),
                expected: 50.5,
                found: as_f64(self.scanned) / weight.max(1.0),
                tolerance: 5.0 * 28.9 / weight.max(1.0).sqrt(),
                weight,
            });
        }
        checks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_contains_its_record_and_generation() {
        assert_eq!(SCATTER.wrapping_mul(GATHER), 1);
        for (record, generation) in [(0, 1), (7, 3), (u64::from(u32::MAX), u32::MAX)] {
            let mut key = Vec::new();
            Row { part_bytes: 1 }.key(record, generation, &mut key);
            assert_eq!(key.len(), 24);
            assert_eq!(parse_key(&key), Some((record, generation)));
        }
        assert_eq!(parse_key(b"user12x"), None);
        assert_eq!(parse_key(b"someone"), None);
    }
}
