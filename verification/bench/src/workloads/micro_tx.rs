//! Paper 4's transactions ("rVNF", section 6.3, Figure 11): each writes several objects of 150
//! bytes, "comparable to the size of a typical small state", at most 3 KB in total.
//!
//! The variant is the number of objects: 1, 5, 10 or 20.

use super::support::record_model::{ComparedRecords, Mutation, RecordForm, RecordModel};
use super::support::share;
use super::{ClientPart, Parameters, Requirements, Tally, Workload, WorkloadKind, WorkloadSpec};
use crate::access::{Connection, StoreSchema, TableSchema};
use crate::random::{AccessDistribution, RecordSequence, draw, top_share};
use crate::result::Check;
use crate::stat::as_f64;
use nearstate_model::Result;

const OBJECT_BYTES: usize = 150;

/// Objects of a transaction, by variant.
const OBJECTS: [usize; 4] = [1, 5, 10, 20];

const TABLE: TableSchema = TableSchema::new("object", &["value"]);

/// The workload.
#[derive(Clone, Copy, Debug)]
pub struct MicroTx;

static SPEC: WorkloadSpec = WorkloadSpec {
    name: "micro-tx",
    title: "transactions that write some objects of 150 bytes",
    source: "paper 4, section 6.3: rVNF, reliable cellular VNFs",
    variants: &[
        ("1", "one object of 150 bytes in each transaction"),
        ("5", "five objects: 750 bytes"),
        ("10", "ten objects: 1.5 KB"),
        ("20", "twenty objects: 3 KB"),
    ],
    records: 100_000,
    classes: &["transaction"],
    paper_figures: &[
        (
            "paper 4, section 6.3 (Figure 11)",
            "transactions of one object (150 bytes), all of 2 or 3 nodes together, Xeon 8168, \
                 replicated to all",
            "a little less than 1 M/s",
        ),
        (
            "paper 4, section 6.3 (Figure 11)",
            "transactions of 20 objects (3 KB), the same",
            "0.4 M/s",
        ),
    ],
    schema: StoreSchema { tables: &[TABLE] },
    caveats: &[
        "paper 4 replicates each transaction to all nodes, and counts those of all nodes; here \
             is one copy",
    ],
    is_pipelined: false,
};

impl WorkloadKind for MicroTx {
    fn spec(&self) -> &'static WorkloadSpec {
        &SPEC
    }

    fn size(&self, parameters: &Parameters) -> (u64, u64) {
        (parameters.records, OBJECT_BYTES as u64)
    }

    fn requirements(&self, _: &Parameters) -> Requirements {
        Requirements { transaction: true, ..Requirements::default() }
    }

    fn new_client(&self, parameters: &Parameters, part: ClientPart) -> Result<Box<dyn Workload>> {
        let objects = OBJECTS.get(part.variant).copied().unwrap_or(1);
        let share = part.share;
        if share.count < objects as u64 {
            return Err(bad_argument!(
                "a transaction of {objects} objects, and {} records",
                share.count
            ));
        }
        let seed = draw(parameters.seed, share.first, 1);
        let top = (parameters.spread == AccessDistribution::Zipfian).then_some(0);
        Ok(Box::new(Client {
            model: RecordModel::new(Object, &TABLE, parameters, share)?,
            sequence: RecordSequence::new(parameters.spread, share.count, seed)?,
            objects,
            picked: Vec::new(),
            mutations: Vec::new(),
            counts: (0, 0),
            top,
        }))
    }
}

/// The layout of an object.
#[derive(Clone, Copy, Debug)]
struct Object;

impl RecordForm for Object {
    fn key(&self, record: u64, _: u32, out: &mut Vec<u8>) {
        out.extend_from_slice(&record.to_be_bytes());
    }

    fn part_bytes(&self, _: u64, _: usize) -> usize {
        OBJECT_BYTES
    }
}

#[derive(Debug)]
struct Client {
    model: RecordModel<Object, 1>,
    sequence: RecordSequence,
    objects: usize,
    picked: Vec<u64>,
    mutations: Vec<(u64, Mutation)>,
    /// Transactions and objects.
    counts: (u64, u64),
    /// How often the most frequent object was picked, by Zipf's law.
    top: Option<u64>,
}

impl Client {
    fn one(&mut self, store: &mut Connection<'_>, tally: &mut Tally) -> Result<()> {
        self.sequence.pick(self.objects, &mut self.picked);
        self.mutations.clear();
        // The writes have no conditions, so that a store can receive all of them in one message.
        self.mutations.extend(self.picked.iter().map(|slot| (*slot, Mutation::Write)));
        if let Some(count) = &mut self.top {
            *count += u64::from(self.picked.contains(&self.sequence.top()));
        }
        self.counts = (self.counts.0 + 1, self.counts.1 + self.mutations.len() as u64);
        self.model.transact(store, &self.mutations, tally)?;
        tally.count(0);
        Ok(())
    }
}

impl Workload for Client {
    fn load(&mut self, store: &mut Connection<'_>, done: &mut dyn FnMut(u64)) -> Result<()> {
        self.model.load(store, |_| true, done)
    }

    fn step(&mut self, store: &mut Connection<'_>, count: usize, tally: &mut Tally) -> Result<()> {
        for _ in 0..count {
            self.one(store, tally)?;
        }
        Ok(())
    }

    fn model(&mut self) -> Option<&mut dyn ComparedRecords> {
        Some(&mut self.model)
    }

    fn checks(&self) -> Vec<Check> {
        let (transactions, objects) = self.counts;
        let mut checks = vec![Check {
            name: "objects of a transaction".to_owned(),
            expected: as_f64(self.objects as u64),
            found: as_f64(objects) / as_f64(transactions).max(1.0),
            tolerance: 1e-9,
            weight: as_f64(transactions),
        }];
        if let Some(count) = self.top {
            let expected = 100.0 * top_share();
            let name = "most frequent object, % of draws";
            checks.push(share::percent(name, expected, count + self.sequence.displaced(), objects));
        }
        checks
    }
}
