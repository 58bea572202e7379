//! The stores that are compared, each loaded with the same records: keys of 20 bytes, the same
//! values.

pub mod dashmap;
pub mod lmdb;
pub mod redis;
pub mod region;

use super::loops::Job;
use super::work::{Work, key_of};
use crate::legacy::content::Source;
use nearstate_model::{Error, Result};
use std::path::{Path, PathBuf};

/// Names of all targets, ours first. `whitedb` is measured through its own program.
pub const NAMES: [&str; 5] = ["region", "lmdb", "dashmap", "redis", "whitedb"];

/// What a database holds and where it lies.
#[derive(Clone, Debug)]
pub struct Need {
    /// Records.
    pub records: u64,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Where the values' chance comes from.
    pub seed: u64,
    /// Folder in memory for files and sockets.
    pub folder: PathBuf,
    /// Ask for 2 MiB pages after loading, where a store can.
    pub collapse: bool,
}

/// A loaded database.
pub trait Subject {
    /// The word of the command line.
    fn name(&self) -> &'static str;

    /// Whether it has this operation.
    fn can(&self, job: Job) -> bool;

    /// The most operations of a turn: a store that answers in tens of microseconds needs fewer.
    fn ops_max(&self) -> u64 {
        u64::MAX
    }

    /// Whether another process does the work.
    fn is_server(&self) -> bool {
        false
    }

    /// Runs one turn; nanoseconds for each operation.
    ///
    /// # Errors
    /// What the store said, or that records are missing.
    fn run(&mut self, job: Job, work: &Work<'_>) -> Result<f64>;

    /// Bytes that the records take, with everything that the store needs for them; `None` if it
    /// does not know.
    ///
    /// # Errors
    /// What the store said.
    fn bytes(&mut self) -> Result<Option<u64>>;

    /// The database for another process; `None` if there is no way in.
    fn path(&self) -> Option<&Path> {
        None
    }

    /// A word on how it was loaded.
    fn remark(&self) -> Option<String> {
        None
    }
}

/// Why a target cannot be measured here, or its version.
///
/// # Errors
/// What would help.
pub fn version(name: &str) -> Result<String> {
    match name {
        "region" => Ok(format!("nearstate {}", env!("CARGO_PKG_VERSION"))),
        "lmdb" => Ok(lmdb::VERSION.to_owned()),
        "dashmap" => Ok(dashmap::VERSION.to_owned()),
        "redis" => crate::legacy::targets::target("redis-unix", None)?.version(),
        _ => crate::legacy::targets::target(name, None)?.version(),
    }
}

/// Makes and loads a database; `loaded` hears how many records were added.
///
/// # Errors
/// What the store said.
pub fn open(name: &str, need: &Need, loaded: &mut dyn FnMut(u64)) -> Result<Box<dyn Subject>> {
    Ok(match name {
        "region" => Box::new(region::Loaded::open(need, loaded)?),
        "lmdb" => Box::new(lmdb::Loaded::open(need, loaded)?),
        "dashmap" => Box::new(dashmap::Loaded::open(need, loaded)?),
        "redis" => Box::new(redis::Loaded::open(need, loaded)?),
        _ => {
            return Err(Error::BadArgument {
                detail: format!("{name:?} cannot be loaded: give some of {}", NAMES.join(",")),
            });
        }
    })
}

/// Hands every record in ascending order to `put`.
fn load(
    need: &Need,
    loaded: &mut dyn FnMut(u64),
    mut put: impl FnMut(&[u8], &[u8]) -> Result<()>,
) -> Result<()> {
    let mut source = Source::new(need.seed, 0, need.value_bytes);
    for record in 0..need.records {
        put(&key_of(record), source.value(record))?;
        if record % 1024 == 1023 {
            loaded(1024);
        }
    }
    Ok(())
}
