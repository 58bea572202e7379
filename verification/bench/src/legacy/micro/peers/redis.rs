//! A Redis of our own, over its Unix socket.

use super::{Need, Subject};
use crate::legacy::micro::loops::{self, Job, Store};
use crate::legacy::micro::work::Work;
use crate::legacy::targets::redis::RedisConnection;
use crate::legacy::targets::{self, Connection as _, Database};
use nearstate_model::{Error, Result};

/// A turn of a store that takes tens of microseconds for an operation.
const OPS_MAX: u64 = 10_000;

/// A running and loaded server, and our connection.
#[derive(Debug)]
pub struct Loaded {
    connection: RedisConnection,
    url: String,
    /// What the server used before it was loaded.
    bytes_empty: u64,
    _database: Box<dyn Database>,
}

impl Loaded {
    /// Starts and loads it.
    ///
    /// # Errors
    /// What the server or the client library said.
    pub fn open(need: &Need, loaded: &mut dyn FnMut(u64)) -> Result<Self> {
        let mut plan = targets::Need {
            records: 0,
            record_bytes: need.value_bytes,
            db_bytes: 0,
            seed: need.seed,
            numa_node: None,
            folder: need.folder.clone(),
        };
        let target = targets::target("redis-unix", None)?;
        // An empty server first, to see what it uses with a connection.
        let bytes_empty = {
            let empty = target.open(&plan, &mut |_| ())?;
            let url = empty.address();
            let _connection = RedisConnection::open(&url)?;
            bytes_used(&url)?
        };
        plan.records = need.records;
        let database = target.open(&plan, loaded)?;
        let url = database.address();
        let connection = RedisConnection::open(&url)?;
        Ok(Self { connection, url, bytes_empty, _database: database })
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the shape that map_err wants")]
fn said(e: redis::RedisError) -> Error {
    Error::Backend { detail: format!("redis: {e}") }
}

/// `used_memory` of `INFO memory`.
fn bytes_used(url: &str) -> Result<u64> {
    let mut connection = redis::Client::open(url).and_then(|c| c.get_connection()).map_err(said)?;
    let info: String = redis::cmd("INFO").arg("memory").query(&mut connection).map_err(said)?;
    info.lines()
        .find_map(|line| line.strip_prefix("used_memory:"))
        .and_then(|bytes| bytes.trim().parse().ok())
        .ok_or_else(|| Error::Backend { detail: "redis does not tell its used_memory".to_owned() })
}

impl Store for RedisConnection {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        targets::Connection::put(self, key, value)
    }

    /// There is no view: never called.
    fn view<T>(&mut self, key: &[u8], look: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
        let mut out = Vec::new();
        Ok(targets::Connection::copy(self, key, &mut out)?.then(|| look(&out)))
    }

    fn copy(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        targets::Connection::copy(self, key, out)
    }

    fn batch(&mut self, keys: &[&[u8]], mut look: impl FnMut(usize, &[u8])) -> Result<()> {
        let mut at = 0;
        targets::Connection::batch(self, keys, |value| {
            look(at, value);
            at += 1;
        })
        .map(|_there| ())
    }

    fn steps(&mut self) -> Result<u64> {
        let mut count = 0;
        self.walk(|_| {
            count += 1;
            true
        })?;
        Ok(count)
    }
}

impl Subject for Loaded {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn can(&self, job: Job) -> bool {
        matches!(job, Job::Copy | Job::BatchCopy | Job::Chain | Job::Put)
    }

    fn is_server(&self) -> bool {
        true
    }

    fn ops_max(&self) -> u64 {
        OPS_MAX
    }

    fn run(&mut self, job: Job, work: &Work<'_>) -> Result<f64> {
        loops::run(&mut self.connection, job, work)
    }

    fn bytes(&mut self) -> Result<Option<u64>> {
        Ok(Some(bytes_used(&self.url)?.saturating_sub(self.bytes_empty)))
    }
}
