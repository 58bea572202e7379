//! The cases: what a request is, for HTTP and for Redis.

use super::result::CaseResult;

/// The storage.
pub(super) const STORAGE: &str = "/nudsf-dr/v1/Realm01/Storage01";

/// Bytes of the block of a record: with ten tags, the record has one kilobyte.
pub(super) const BLOCK_BYTES: usize = 700;

/// Bytes of the block of the large record.
pub(super) const LARGE_BYTES: usize = 1 << 20;

/// Different records, or groups of records, that the requests of a case name in turn.
pub(super) const SPREAD: u64 = 1000;

/// Records that only PUTs name. A pass over them changes the tags of each.
pub(super) const PUT_RECORDS: u64 = 10_000;

/// A load of many equal requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadCase {
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    pub(super) kind: CaseKind,
    /// Requests are fewer by this factor.
    pub(super) divisor: u64,
    goal_of_bare: Option<f64>,
    goal_cpu_ns: Option<u64>,
    goal_bytes_per_s: Option<f64>,
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CaseKind {
    GetRecord,
    PutRecord,
    GetBlock,
    Search,
    GetLarge,
}

const fn case(name: &'static str, what: &'static str, kind: CaseKind) -> LoadCase {
    LoadCase {
        name,
        what,
        kind,
        divisor: 1,
        goal_of_bare: None,
        goal_cpu_ns: None,
        goal_bytes_per_s: None,
    }
}

/// All cases.
pub(super) const CASES: [LoadCase; 5] = [
    LoadCase {
        goal_of_bare: Some(0.9),
        ..case("get", "GET record of 1 KB with 10 tags", CaseKind::GetRecord)
    },
    LoadCase {
        goal_of_bare: Some(0.7),
        ..case("put", "PUT record of 1 KB with 10 tags, 2 indexed", CaseKind::PutRecord)
    },
    LoadCase { goal_of_bare: Some(0.9), ..case("block", "GET block", CaseKind::GetBlock) },
    LoadCase {
        goal_cpu_ns: Some(60_000),
        ..case("search", "search by one indexed tag, 10 references", CaseKind::Search)
    },
    LoadCase {
        divisor: 20,
        goal_bytes_per_s: Some(400e6),
        ..case("large", "GET record of 1 MB", CaseKind::GetLarge)
    },
];

impl LoadCase {
    /// An empty result.
    pub(super) fn result(&self) -> CaseResult {
        let bytes = match self.kind {
            CaseKind::GetLarge => LARGE_BYTES,
            CaseKind::GetBlock | CaseKind::GetRecord | CaseKind::PutRecord | CaseKind::Search => {
                BLOCK_BYTES
            }
        };
        CaseResult {
            name: self.name.to_owned(),
            what: self.what.to_owned(),
            goal_of_bare: self.goal_of_bare,
            goal_cpu_ns: self.goal_cpu_ns,
            goal_bytes_per_s: self.goal_bytes_per_s,
            response_bytes: bytes as u64,
            ..CaseResult::default()
        }
    }

    /// The paths of the requests; those of PUTs are [`put_path`]s.
    pub(super) fn paths(&self) -> Vec<String> {
        let all = 0..SPREAD;
        match self.kind {
            CaseKind::GetRecord => all.map(|index| format!("{STORAGE}/records/r{index}")).collect(),
            CaseKind::PutRecord => Vec::new(),
            CaseKind::GetBlock => {
                all.map(|index| format!("{STORAGE}/records/r{index}/blocks/context")).collect()
            }
            CaseKind::Search => all.map(search_path).collect(),
            CaseKind::GetLarge => vec![format!("{STORAGE}/records/large")],
        }
    }

    /// The command of Redis for one request.
    pub(super) fn redis(&self) -> Vec<String> {
        let words: &[&str] = match self.kind {
            CaseKind::GetRecord => &["HGETALL", "r1"],
            CaseKind::PutRecord => &["EVALSHA"],
            CaseKind::GetBlock => &["HGET", "r1", "context"],
            CaseKind::Search => &["SMEMBERS", "group:g1"],
            CaseKind::GetLarge => &["HGET", "large", "context"],
        };
        words.iter().map(|word| (*word).to_owned()).collect()
    }
}

/// The path of a record that only PUTs name.
pub(super) fn put_path(index: u64) -> String {
    format!("{STORAGE}/records/p{index}")
}

/// The search for the ten records of a group.
pub(super) fn search_path(group: u64) -> String {
    let filter =
        format!("%7B%22op%22:%22EQ%22,%22tag%22:%22group%22,%22value%22:%22g{group}%22%7D");
    format!("{STORAGE}/records?limit-range=10&filter={filter}")
}
