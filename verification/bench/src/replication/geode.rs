//! Apache Geode with two servers and one redundant copy. A put returns when the other server has
//! the record, so each put of it is one that is waited for.

use std::path::{Path, PathBuf};

use nearstate_model::Result;

use super::{
    OUTSTANDING, RECORDS, ReplicatedCase, ReplicatedTarget, TargetFolder, VALUE_BYTES, failed, key,
    value,
};
use crate::access::{
    PartSet, PartWrite, RecordEntry, Request, StoreConnection, StoreReply, StoreSchema, TableId,
    TableSchema,
};
use crate::targets::geode::GeodeTarget;
use crate::targets::{Database, DatabaseSpec, Target as _};

/// Two servers, and one copy beside the primary.
const LAYOUT: &str = "partitioned:2:1";

const SCHEMA: StoreSchema = StoreSchema { tables: &[TableSchema::new("ue", &["context"])] };

const TABLE: TableId = TableId(0);

/// The servers, and a connection to the first one.
pub(super) struct GeodeCluster {
    connection: Box<dyn StoreConnection>,
    database: Box<dyn Database>,
    _folder: TargetFolder,
}

impl GeodeCluster {
    pub(super) fn start(folder: PathBuf) -> Result<Self> {
        let folder = TargetFolder::create(folder)?;
        let database = GeodeTarget.start(&database_spec(&folder.0))?;
        let connection = GeodeTarget.connect(&database.address(), &SCHEMA)?;
        Ok(Self { connection, database, _folder: folder })
    }

    /// Puts records in one message, and waits for all replies.
    fn put(&mut self, numbers: std::ops::Range<u64>) -> Result<()> {
        let records: Vec<_> = numbers.map(|number| (key(number), value(number))).collect();
        let parts: Vec<[PartWrite<'_>; 1]> =
            records.iter().map(|(_, value)| [(0, value.as_slice())]).collect();
        let mut requests = Vec::new();
        for ((key, _), parts) in records.iter().zip(&parts) {
            let entry = RecordEntry { key: key.as_bytes(), parts, tags: &[], tags_before: &[] };
            requests.push(Request::Put { table: TABLE, entry });
        }
        let mut done = 0;
        self.connection.pipeline(&requests, &mut |_, reply| {
            done += usize::from(matches!(reply, StoreReply::Done(true)));
        })?;
        if done == requests.len() {
            return Ok(());
        }
        Err(failed(format!("geode: {done} of {} puts were done", requests.len())))
    }
}

fn database_spec(folder: &Path) -> DatabaseSpec {
    DatabaseSpec {
        schema: SCHEMA,
        records: RECORDS,
        record_bytes: VALUE_BYTES as u64,
        clients: 1,
        folder: folder.to_owned(),
        layout: Some(LAYOUT.to_owned()),
        ..DatabaseSpec::default()
    }
}

impl ReplicatedTarget for GeodeCluster {
    fn name(&self) -> &'static str {
        "geode"
    }

    fn durability(&self) -> &'static str {
        "two servers, in memory: kept if one of them is lost"
    }

    fn processes(&self) -> Vec<u32> {
        self.database.processes()
    }

    fn read(&mut self, _: ReplicatedCase, number: u64) -> Result<Option<Vec<u8>>> {
        let (key, mut found) = (key(number), None);
        self.connection.read(TABLE, key.as_bytes(), PartSet::ALL, &mut |_, bytes| {
            found = Some(bytes.to_vec());
        })?;
        Ok(found)
    }

    fn step(&mut self, case: ReplicatedCase, number: u64) -> Result<bool> {
        match case {
            // It has no put that does not wait, and no receipt whose lag could be measured.
            ReplicatedCase::Put
            | ReplicatedCase::Update
            | ReplicatedCase::Insert
            | ReplicatedCase::Steady => return Ok(false),
            ReplicatedCase::PutAndWait => self.put(number..number + 1)?,
            ReplicatedCase::Outstanding => self.put(number..number + OUTSTANDING)?,
        }
        Ok(true)
    }
}
