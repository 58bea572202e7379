//! GET and SET of records of one value: the cost of a request.
//!
//! | variant | first client | other clients |
//! |---|---|---|
//! | `get`, `set` | reads records; replaces records | the same |
//! | `get-beside-scan` | reads records | visit all records (SCAN) without a pause |
//! | `idle` | sleeps a millisecond per operation; its connection is idle | the same |

use super::support::contents::BYTES_MAX;
use super::support::record_model::{ComparedRecords, Mutation, RecordForm, RecordModel};
use super::support::share;
use super::{ClientPart, Parameters, Requirements, Tally, Workload, WorkloadKind, WorkloadSpec};
use crate::access::{Connection, PartSet, StoreSchema, TableId, TableSchema};
use crate::random::{RecordSequence, draw};
use nearstate_model::Result;
use std::time::Duration;

/// The duration of an operation of the variant `idle`.
const IDLE: Duration = Duration::from_millis(1);

const TABLE: TableSchema = TableSchema::new("record", &["value"]);

#[derive(Clone, Copy, Debug)]
pub struct Kv;

const VARIANTS: [(&str, &str); 4] = [
    ("get", "reads of records"),
    ("set", "replacements of records"),
    ("get-beside-scan", "reads while another client visits all records without a pause"),
    ("idle", "idle connections: an operation sleeps a millisecond; shows the server's CPU time"),
];

/// The role of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Get,
    Set,
    Walk,
    Idle,
}

impl Role {
    fn of(variant: usize, client: usize) -> Self {
        match (variant, client) {
            (1, _) => Self::Set,
            (2, 1..) => Self::Walk,
            (3, _) => Self::Idle,
            _ => Self::Get,
        }
    }
}

static SPEC: WorkloadSpec = WorkloadSpec {
    name: "kv",
    title: "GET and SET of records of one value",
    source: "this project; as redis-benchmark, with every reply compared",
    variants: &VARIANTS,
    records: 100_000,
    classes: &["get", "set", "scan", "idle"],
    schema: StoreSchema { tables: &[TABLE] },
    ..WorkloadSpec::DEFAULT
};

impl WorkloadKind for Kv {
    fn spec(&self) -> &'static WorkloadSpec {
        &SPEC
    }

    fn size(&self, parameters: &Parameters) -> (u64, u64) {
        (parameters.records, share::value_bytes(parameters))
    }

    fn background_clients(&self, parameters: &Parameters, clients: usize) -> usize {
        let is_scanned = share::variant(self, parameters) == 2;
        if is_scanned { clients.saturating_sub(1).max(1) } else { 0 }
    }

    fn requirements(&self, parameters: &Parameters) -> Requirements {
        Requirements { walk: share::variant(self, parameters) == 2, ..Requirements::default() }
    }

    fn new_client(&self, parameters: &Parameters, part: ClientPart) -> Result<Box<dyn Workload>> {
        let role = Role::of(part.variant, part.client);
        let value_bytes = share::checked_value_bytes(parameters, BYTES_MAX)?;
        let share = part.share;
        let seed = draw(parameters.seed, share.first, 1);
        Ok(Box::new(Client {
            role,
            model: RecordModel::new(KvRecord { value_bytes }, &TABLE, parameters, share)?,
            sequence: RecordSequence::new(parameters.spread, share.count, seed)?,
            picked: Vec::new(),
            mutations: Vec::new(),
        }))
    }
}

#[derive(Clone, Copy, Debug)]
struct KvRecord {
    value_bytes: usize,
}

impl RecordForm for KvRecord {
    fn key(&self, record: u64, _: u32, out: &mut Vec<u8>) {
        out.extend_from_slice(b"key:");
        out.extend_from_slice(&share::digits::<12>(record));
    }

    fn part_bytes(&self, _: u64, _: usize) -> usize {
        self.value_bytes
    }
}

#[derive(Debug)]
struct Client {
    role: Role,
    model: RecordModel<KvRecord, 1>,
    sequence: RecordSequence,
    picked: Vec<u64>,
    mutations: Vec<(u64, Mutation)>,
}

impl Workload for Client {
    fn load(&mut self, store: &mut Connection<'_>, done: &mut dyn FnMut(u64)) -> Result<()> {
        self.model.load(store, |_| true, done)
    }

    fn step(&mut self, store: &mut Connection<'_>, count: usize, tally: &mut Tally) -> Result<()> {
        match self.role {
            Role::Get => {
                self.sequence.pick(count, &mut self.picked);
                self.model.read(store, &self.picked, PartSet::ALL, tally)?;
            }
            Role::Set => {
                self.sequence.pick(count, &mut self.picked);
                self.mutations.clear();
                self.mutations.extend(self.picked.iter().map(|slot| (*slot, Mutation::Write)));
                self.model.write(store, &self.mutations, tally)?;
            }
            Role::Walk => drop(store.walk(TableId(0))?),
            Role::Idle => std::thread::sleep(IDLE * u32::try_from(count).unwrap_or(1)),
        }
        tally.count_many(self.role as usize, count as u64);
        Ok(())
    }

    fn model(&mut self) -> Option<&mut dyn ComparedRecords> {
        Some(&mut self.model)
    }
}
