//! Paper 4's serving gateway ("rVNF: Reliable, scalable and performant cellular VNFs in the cloud",
//! section 6.1): Create Session and Delete Session requests at full load.
//!
//! The paper's point (section 2.1): the key of later requests exists only after the session was
//! created. Create Session names the subscriber; the gateway answers with a new tunnel endpoint
//! identifier (TEID), and Delete Session finds the session by it.
//!
//! | variant | Create Session | Delete Session |
//! |---|---|---|
//! | `indexed` | put under the IMSI, TEID as a unique tag | find by the TEID, delete |
//! | `keyed` | put under the TEID | read by the TEID, delete |
//!
//! `keyed` is for stores without indexes. Our choice, because the paper leaves it open: the parts
//! of a session and their sizes (448 bytes together), and that half of the sessions exist.

use super::support::record_model::{ComparedRecords, Mutation, RecordForm, RecordModel};
use super::support::share;
use super::{ClientPart, Parameters, Requirements, Tally, Workload, WorkloadKind, WorkloadSpec};
use crate::access::{Connection, PartSet, StoreSchema, TableSchema, TagRule};
use crate::random::{RecordSequence, draw};
use crate::result::Check;
use nearstate_model::Result;

/// Parts of a session.
const PARTS: usize = 3;

/// The connection to the packet network, the tunnels of the control plane, and two bearers with
/// their quality of service.
const PART_NAMES: [&str; PARTS] = ["pdn", "control", "bearers"];

const PART_BYTES: [usize; PARTS] = [160, 48, 240];

const INDEXED: TableSchema = TableSchema {
    name: "session",
    parts: &PART_NAMES,
    tags: &[TagRule { name: "teid", is_unique: true }],
    is_scanned: false,
};

const KEYED: TableSchema = TableSchema::new("session", &PART_NAMES);

/// The workload.
#[derive(Clone, Copy, Debug)]
pub struct SgwSession;

/// Whether sessions are found by an index.
fn is_indexed(parameters: &Parameters) -> bool {
    share::variant(&SgwSession, parameters) == 0
}

const CREATE: usize = 0;
const DELETE: usize = 1;

static SPEC: WorkloadSpec = WorkloadSpec {
    name: "sgw-session",
    title: "a serving gateway creates sessions, and deletes them by the key that creation returned",
    source: "paper 4, sections 2.1 and 6.1: rVNF, reliable cellular VNFs",
    variants: &[
        ("indexed", "key is the IMSI, the TEID is a unique tag by which sessions are found"),
        ("keyed", "key is the TEID: for stores without indexes"),
    ],
    records: 100_000,
    classes: &["create-session", "delete-session"],
    paper_figures: &[
        (
            "paper 4, section 6.1 (Figure 8a)",
            "requests of a gateway that keeps its state to itself, one core of a Xeon 8168 \
                 (1750 creates, 1750 deletes)",
            "3450 requests/s",
        ),
        (
            "paper 4, section 6.1 (Figure 8a)",
            "the same with rVNF, replicated to two other servers",
            "20 % less",
        ),
        (
            "paper 4, section 6.1 (Figure 8a)",
            "the same with Redis on another server, not replicated",
            "590 requests/s",
        ),
        (
            "paper 4, section 6.1 (Figure 8a)",
            "rVNF against Redis",
            "4.8 times; on Azure 14.7 times",
        ),
        ("paper 4, section 6.1 (Figure 8a)", "an MME without replication", "5600 requests/s"),
        ("paper 4, section 6.1 (Figure 8a)", "an MME with rVNF", "35 % less, 6.7 times Redis"),
        (
            "paper 4, section 6.3",
            "requests that are routed without the key of the session created",
            "30 % less, 37 % more changes of the owner",
        ),
    ],
    schema: StoreSchema { tables: &[INDEXED] },
    caveats: &[
        "paper 4 counts requests of a whole gateway with its protocol; here is its state alone",
    ],
    ..WorkloadSpec::DEFAULT
};

impl WorkloadKind for SgwSession {
    fn spec(&self) -> &'static WorkloadSpec {
        &SPEC
    }

    fn schema(&self, parameters: &Parameters) -> StoreSchema {
        if is_indexed(parameters) { SPEC.schema } else { StoreSchema { tables: &[KEYED] } }
    }

    fn size(&self, parameters: &Parameters) -> (u64, u64) {
        (parameters.records, PART_BYTES.iter().sum::<usize>() as u64)
    }

    fn requirements(&self, parameters: &Parameters) -> Requirements {
        Requirements { unique_tag: is_indexed(parameters), ..Requirements::default() }
    }

    fn new_client(&self, parameters: &Parameters, part: ClientPart) -> Result<Box<dyn Workload>> {
        let share = part.share;
        let is_indexed = is_indexed(parameters);
        let schema: &'static TableSchema = if is_indexed { &INDEXED } else { &KEYED };
        let seed = draw(parameters.seed, share.first, 1);
        Ok(Box::new(Client {
            model: RecordModel::new(
                SgwRecord { is_indexed, records: share.all },
                schema,
                parameters,
                share,
            )?,
            sequence: RecordSequence::new(parameters.spread, share.count, seed)?,
            is_indexed,
            picked: Vec::new(),
            found: Vec::new(),
            mutations: Vec::new(),
            counts: [0; 2],
        }))
    }
}

/// The layout of a session.
#[derive(Clone, Copy, Debug)]
struct SgwRecord {
    is_indexed: bool,
    records: u64,
}

impl SgwRecord {
    fn teid(&self, record: u64, generation: u32) -> [u8; 4] {
        share::unique_32(record, generation, self.records).to_be_bytes()
    }
}

impl RecordForm for SgwRecord {
    fn key(&self, record: u64, generation: u32, out: &mut Vec<u8>) {
        if self.is_indexed {
            out.extend_from_slice(b"001010");
            out.extend_from_slice(&share::digits::<9>(record));
        } else {
            out.extend_from_slice(&self.teid(record, generation));
        }
    }

    fn part_bytes(&self, _: u64, part: usize) -> usize {
        PART_BYTES.get(part).copied().unwrap_or(0)
    }

    fn tag(&self, _: usize, record: u64, generation: u32, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.teid(record, generation));
    }
}

#[derive(Debug)]
struct Client {
    model: RecordModel<SgwRecord, PARTS>,
    sequence: RecordSequence,
    is_indexed: bool,
    picked: Vec<u64>,
    /// Sessions that are looked up before they are deleted.
    found: Vec<u64>,
    mutations: Vec<(u64, Mutation)>,
    counts: [u64; 2],
}

impl Workload for Client {
    fn load(&mut self, store: &mut Connection<'_>, done: &mut dyn FnMut(u64)) -> Result<()> {
        self.model.load(store, |slot| slot % 2 == 0, done)
    }

    fn step(&mut self, store: &mut Connection<'_>, count: usize, tally: &mut Tally) -> Result<()> {
        self.sequence.pick(count, &mut self.picked);
        self.mutations.clear();
        self.found.clear();
        for slot in &self.picked {
            let is_there = self.model.state(*slot).exists();
            let (mutation, class) =
                if is_there { (Mutation::Remove, DELETE) } else { (Mutation::Create, CREATE) };
            self.mutations.push((*slot, mutation));
            if is_there {
                self.found.push(*slot);
            }
            tally.count(class);
            if let Some(count) = self.counts.get_mut(class) {
                *count += 1;
            }
        }
        if self.is_indexed {
            for slot in &self.found {
                self.model.find(store, *slot, 0, tally)?;
            }
        } else if !self.found.is_empty() {
            self.model.read(store, &self.found, PartSet::ALL, tally)?;
        }
        self.model.write(store, &self.mutations, tally)
    }

    fn model(&mut self) -> Option<&mut dyn ComparedRecords> {
        Some(&mut self.model)
    }

    fn checks(&self) -> Vec<Check> {
        let [created, deleted] = self.counts;
        vec![share::percent(
            "create-session, % of operations (paper: 1750 of 3500)",
            50.0,
            created,
            created + deleted,
        )]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_teid_is_new_with_each_session() {
        let session = SgwRecord { is_indexed: false, records: 1000 };
        let key = |generation| {
            let mut out = Vec::new();
            session.key(7, generation, &mut out);
            out
        };
        assert_eq!(key(1).len(), 4);
        assert_ne!(key(1), key(2));
        let session = SgwRecord { is_indexed: true, records: 1000 };
        let mut imsi = Vec::new();
        session.key(7, 1, &mut imsi);
        assert_eq!(imsi, b"001010000000007");
    }
}
