//! Records that come and go, as sessions do: what an insert and a delete cost with tags and
//! without, on memory that is reused and on fresh memory.
//!
//! | variant | tags | operation |
//! |---|---|---|
//! | `tagged` | three, two of them unique | a record is deleted, another one is inserted |
//! | `plain` | none | the same |
//! | `tagged-fresh` | three, two of them unique | a record is inserted for the first time |
//!
//! Half of the records exist in the first two variants. The times of both operations stand in the
//! latencies of the classes (`--classes`).

use super::support::contents::BYTES_MAX;
use super::support::record_model::{ComparedRecords, Mutation, RecordForm, RecordModel};
use super::support::share::{self, Share};
use super::{ClientPart, Parameters, Requirements, Tally, Workload, WorkloadKind, WorkloadSpec};
use crate::access::{Connection, StoreSchema, TableSchema, TagRule};
use crate::random::{RecordSequence, draw};
use nearstate_model::Result;

/// As the identities of a session: a temporary identity, an address, and the cell that many share.
const TAGGED: TableSchema = TableSchema {
    name: "session",
    parts: &["value"],
    tags: &[
        TagRule { name: "guti", is_unique: true },
        TagRule { name: "ip", is_unique: true },
        TagRule { name: "cell", is_unique: false },
    ],
    is_scanned: false,
};

const PLAIN: TableSchema = TableSchema::new("session", &["value"]);

/// The tag that many records share.
const CELL: usize = 2;

/// Records of one cell.
const CELL_RECORDS: u64 = 200;

const INSERT: usize = 0;
const DELETE: usize = 1;

/// The workload.
#[derive(Clone, Copy, Debug)]
pub struct Churn;

const VARIANTS: [(&str, &str); 3] = [
    ("tagged", "insert and delete records with three tags, two of them unique"),
    ("plain", "insert and delete records without tags"),
    ("tagged-fresh", "insert records with three tags into memory that was never used"),
];

static SPEC: WorkloadSpec = WorkloadSpec {
    name: "churn",
    title: "records that are inserted and deleted, with three tags and without",
    source: "this project; keys of 20 bytes, values of 1 KiB",
    variants: &VARIANTS,
    records: 200_000,
    classes: &["insert", "delete"],
    schema: StoreSchema { tables: &[TAGGED] },
    is_pipelined: false,
    ..WorkloadSpec::DEFAULT
};

fn is_tagged(parameters: &Parameters) -> bool {
    share::variant(&Churn, parameters) != 1
}

fn is_fresh(parameters: &Parameters) -> bool {
    share::variant(&Churn, parameters) == 2
}

impl WorkloadKind for Churn {
    fn spec(&self) -> &'static WorkloadSpec {
        &SPEC
    }

    fn schema(&self, parameters: &Parameters) -> StoreSchema {
        if is_tagged(parameters) { SPEC.schema } else { StoreSchema { tables: &[PLAIN] } }
    }

    fn size(&self, parameters: &Parameters) -> (u64, u64) {
        (parameters.records, share::value_bytes(parameters))
    }

    fn requirements(&self, parameters: &Parameters) -> Requirements {
        Requirements { unique_tag: is_tagged(parameters), ..Requirements::default() }
    }

    fn new_client(&self, parameters: &Parameters, part: ClientPart) -> Result<Box<dyn Workload>> {
        let Share { first, count, all } = part.share;
        let value_bytes = share::checked_value_bytes(parameters, BYTES_MAX)?;
        let schema: &'static TableSchema = if is_tagged(parameters) { &TAGGED } else { &PLAIN };
        let form = SessionForm { value_bytes, records: all };
        let seed = draw(parameters.seed, first, 1);
        Ok(Box::new(Client {
            model: RecordModel::new(form, schema, parameters, part.share)?,
            sequence: RecordSequence::new(parameters.spread, count, seed)?,
            picked: Vec::new(),
            next_fresh: is_fresh(parameters).then_some(0),
            count,
        }))
    }
}

/// The layout of a record.
#[derive(Clone, Copy, Debug)]
struct SessionForm {
    value_bytes: usize,
    records: u64,
}

impl RecordForm for SessionForm {
    fn key(&self, record: u64, _: u32, out: &mut Vec<u8>) {
        out.extend_from_slice(b"imsi-");
        out.extend_from_slice(&share::digits::<15>(record));
    }

    fn part_bytes(&self, _: u64, _: usize) -> usize {
        self.value_bytes
    }

    fn tag(&self, tag: usize, record: u64, generation: u32, out: &mut Vec<u8>) {
        if tag == CELL {
            out.extend_from_slice(&(record / CELL_RECORDS).to_be_bytes());
        } else {
            out.extend_from_slice(
                &share::unique_32(record, generation, self.records).to_be_bytes(),
            );
        }
    }
}

#[derive(Debug)]
struct Client {
    model: RecordModel<SessionForm, 1>,
    sequence: RecordSequence,
    picked: Vec<u64>,
    /// The next record that was never inserted; `None` if records come and go.
    next_fresh: Option<u64>,
    /// The records of this client.
    count: u64,
}

impl Client {
    fn fresh(&mut self, store: &mut Connection<'_>, next: u64, tally: &mut Tally) -> Result<()> {
        if next >= self.count {
            return Err(share::all_inserted(self.count));
        }
        self.next_fresh = Some(next + 1);
        tally.count(INSERT);
        self.model.write(store, &[(next, Mutation::Create)], tally)
    }

    fn churn(&mut self, store: &mut Connection<'_>, slot: u64, tally: &mut Tally) -> Result<()> {
        let exists = self.model.state(slot).exists();
        let (mutation, class) =
            if exists { (Mutation::Remove, DELETE) } else { (Mutation::Create, INSERT) };
        tally.count(class);
        self.model.write(store, &[(slot, mutation)], tally)
    }
}

impl Workload for Client {
    fn load(&mut self, store: &mut Connection<'_>, done: &mut dyn FnMut(u64)) -> Result<()> {
        if self.next_fresh.is_some() {
            return Ok(());
        }
        self.model.load(store, |slot| slot % 2 == 0, done)
    }

    fn step(&mut self, store: &mut Connection<'_>, count: usize, tally: &mut Tally) -> Result<()> {
        if self.next_fresh.is_none() {
            self.sequence.pick(count, &mut self.picked);
        }
        for number in 0..count {
            match (self.next_fresh, self.picked.get(number)) {
                (Some(next), _) => self.fresh(store, next, tally)?,
                (None, Some(slot)) => self.churn(store, *slot, tally)?,
                (None, None) => {}
            }
        }
        Ok(())
    }

    fn model(&mut self) -> Option<&mut dyn ComparedRecords> {
        Some(&mut self.model)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::{StoreAccess as _, TableId};
    use crate::targets::region::RegionConnection;
    use crate::workloads::support::test_region::wrong_after;

    #[test]
    fn a_region_keeps_the_records_that_come_and_go() {
        for (variant, _) in VARIANTS {
            assert_eq!(wrong_after(&Churn, (variant, 1), 40, |_| ()).unwrap(), 0, "{variant}");
        }
        let refused = wrong_after(&Churn, ("tagged-fresh", 1), 41, |_| ()).unwrap_err().to_string();
        assert!(refused.contains("--records"), "{refused}");
    }

    #[test]
    fn a_record_that_was_deleted_behind_its_back_is_found() {
        let delete = |store: &mut RegionConnection| {
            assert!(store.delete(TableId(0), b"imsi-000000000000003", &[]).unwrap());
        };
        assert_eq!(wrong_after(&Churn, ("tagged-fresh", 1), 40, delete).unwrap(), 1);
    }
}
