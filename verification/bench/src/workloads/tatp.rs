//! Telecom Application Transaction Processing (IBM, 2009; <http://tatpbenchmark.sourceforge.net>):
//! seven transactions on the database of a home location register, with the published mix and the
//! published rule for drawing subscribers.
//!
//! | transaction | share | what it does here |
//! |---|---|---|
//! | `GET_SUBSCRIBER_DATA` | 35 % | reads a subscriber |
//! | `GET_NEW_DESTINATION` | 10 % | reads a facility and its forwardings, in a transaction |
//! | `GET_ACCESS_DATA` | 35 % | reads an access row |
//! | `UPDATE_SUBSCRIBER_DATA` | 2 % | changes a bit and a facility's byte, in a transaction |
//! | `UPDATE_LOCATION` | 14 % | finds by number, changes the location |
//! | `INSERT_CALL_FORWARDING` | 2 % | finds by number, reads, inserts, in a transaction |
//! | `DELETE_CALL_FORWARDING` | 2 % | finds by number, deletes a forwarding |
//!
//! A transaction of one write or one read is one operation, which is atomic. Finding a row by
//! number and writing it are two operations without a transaction, because numbers never change.
//! Fields that change are separate parts. Each client has its own subscribers and draws from
//! them by the rule. The model predicts the result of each transaction, and each reply is
//! compared with it.

pub mod run;
pub mod expected;
pub mod model;
mod population;
pub mod requests;
pub mod rows;

use super::{ClientPart, Parameters, Requirements, Workload, WorkloadKind, WorkloadSpec};
use crate::access::{StoreSchema, TableSchema, TagRule};
use crate::result::PaperFigure;
use nearstate_model::Result;

const SUBSCRIBER: TableSchema = TableSchema {
    name: "subscriber",
    parts: &["profile", "bit-1", "vlr-location"],
    tags: &[TagRule { name: "sub-nbr", is_unique: true }],
    is_scanned: false,
};

const ACCESS_INFO: TableSchema = TableSchema::new("access-info", &["row"]);

const SPECIAL_FACILITY: TableSchema = TableSchema::new("special-facility", &["row", "data-a"]);

const CALL_FORWARDING: TableSchema = TableSchema::new("call-forwarding", &["row"]);

/// The largest number of rows of a subscriber: itself, four access rows, four facilities with three
/// forwardings each.
const ROWS_MAX: u64 = 1 + 4 + 4 + 4 * 3;

/// Bytes of the largest row.
const ROW_BYTES: u64 = 53;

/// The workload.
#[derive(Clone, Copy, Debug)]
pub struct Tatp;

static SPEC: WorkloadSpec = WorkloadSpec {
    name: "tatp",
    title: "TATP: seven transactions on a home location register",
    source: "IBM, Telecom Application Transaction Processing benchmark description, 2009; paper 3, \
 section 4.3",
    variants: &[("mix", "the published mix: 80 % reads, 16 % updates, 4 % inserts and deletes")],
    records: 100_000,
    classes: &[
        "get-subscriber-data",
        "get-new-destination",
        "get-access-data",
        "update-subscriber-data",
        "update-location",
        "insert-call-forwarding",
        "delete-call-forwarding",
    ],
    schema: StoreSchema { tables: &[SUBSCRIBER, ACCESS_INFO, SPECIAL_FACILITY, CALL_FORWARDING] },
    caveats: &[
        "TATP: subscribers are drawn by its own rule, whatever --spread says, from those of \
             each client; forwardings even out in a long run, by which GET_NEW_DESTINATION \
             succeeds in up to 15.8 % instead of 14.8 % of all cases (23.9 % are published, which \
             its own rules do not give)",
    ],
    ..WorkloadSpec::DEFAULT
};

impl WorkloadKind for Tatp {
    fn spec(&self) -> &'static WorkloadSpec {
        &SPEC
    }

    fn size(&self, parameters: &Parameters) -> (u64, u64) {
        (parameters.records * ROWS_MAX, ROW_BYTES)
    }

    fn requirements(&self, _: &Parameters) -> Requirements {
        Requirements { delta: true, unique_tag: true, transaction: true, ..Requirements::default() }
    }

    fn paper_figures(&self) -> Vec<PaperFigure> {
        figures()
    }

    fn new_client(&self, parameters: &Parameters, part: ClientPart) -> Result<Box<dyn Workload>> {
        Ok(Box::new(run::Client::new(parameters.seed, part.share)?))
    }
}

/// Table 1 of paper 3: system, where it ran, transactions in total and per core, in thousands.
const TABLE_1: [(&str, &str, &str, &str); 9] = [
    ("Horticulture", "80 cores of 10 servers, Amazon EC2", "~70", "~1"),
    ("FaRM", "1440 cores of 90 servers, Infiniband, 2 backups", "140000", "97"),
    ("SolidDB", "8 cores of 1 server", "430", "54"),
    ("SolidDB", "32 cores of 1 server", "1100", "34"),
    ("Hyper", "8 cores of 1 server, Google Cloud", "372", "46"),
    ("Hyper", "20 cores of 1 server", "422", "21"),
    ("NFVDB (paper 3)", "5 cores of 5 virtual machines, 10-Gbit, 1 backup", "380", "76"),
    ("NFVDB (paper 3)", "25 cores of 25 virtual machines, 10-Gbit, 1 backup", "1741", "69"),
    ("NFVDB (paper 3)", "85 cores of 85 virtual machines, 10-Gbit, 1 backup", "5790", "68"),
];

fn figures() -> Vec<PaperFigure> {
    let rows = TABLE_1.iter().map(|(system, source, total, core)| PaperFigure {
        source: "paper 3, Table 1".to_owned(),
        what: format!("{system}: {source}"),
        figure: format!("{total} Kop/s, {core} Kop/s per core"),
    });
    let line = PaperFigure {
        source: "paper 3, Figure 9".to_owned(),
        what: "NFVDB from 5 to 85 virtual machines of one core".to_owned(),
        figure: "linear, 76 to 68 Kop/s per core".to_owned(),
    };
    rows.chain([line]).collect()
}
