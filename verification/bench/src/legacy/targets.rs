//! The stores that are measured, behind two small traits: what the orchestrator asks of a target,
//! and what a simulator node asks of its connection to it.

pub mod region;
pub mod redis;
pub mod whitedb;

use crate::keeper::own_program;
use crate::legacy::protocol::{Kind, Mode};
use nearstate_model::{Error, Result};
use std::fmt;
use std::path::PathBuf;
use std::process::Command;

/// Names of all targets, the one that ratios are relative to first.
pub const NAMES: [&str; 4] = ["region", "redis", "redis-unix", "whitedb"];

/// What a database must hold when an experiment begins, and where it is to lie.
#[derive(Clone, Debug)]
pub struct Need {
    /// Records that are loaded before the experiment: 0 for writes.
    pub records: u64,
    /// Size of each value, in bytes.
    pub record_bytes: usize,
    /// Room of the database, in bytes, where a target has a fixed one (paper 1's `dbSize`).
    pub db_bytes: u64,
    /// Where the content's chance comes from.
    pub seed: u64,
    /// The NUMA node whose memory is used, if one was asked for and the machine has several.
    pub numa_node: Option<u32>,
    /// Folder in memory for files and sockets.
    pub folder: PathBuf,
}

/// A store that can be measured.
pub trait Target: fmt::Debug {
    /// The word of the command line.
    fn name(&self) -> &'static str;

    /// What it is and in which version.
    ///
    /// # Errors
    /// Why it cannot be measured here, and what would help.
    fn version(&self) -> Result<String>;

    /// The kinds of access that it has.
    fn kinds(&self, mode: Mode) -> &'static [Kind];

    /// Makes a fresh database and loads it; `loaded` hears how many records were added.
    ///
    /// # Errors
    /// Why it could not be made; nothing of it is left.
    fn open(&self, need: &Need, loaded: &mut dyn FnMut(u64)) -> Result<Box<dyn Database>>;
}

/// A database that vanishes when it is dropped.
pub trait Database: fmt::Debug {
    /// Where nodes find it.
    fn address(&self) -> String;

    /// What stands before every key.
    fn prefix(&self) -> String {
        String::new()
    }

    /// The program of a simulator node.
    ///
    /// # Errors
    /// If the program cannot be found.
    fn node_program(&self) -> Result<Command> {
        let mut command = Command::new(own_program()?);
        command.args(["bench", "access-node"]);
        Ok(command)
    }
}

/// A node's connection to a target. Closures get the value where it lies.
pub trait Connection {
    /// Whether an operation is so slow that telling about progress now and then does not disturb.
    const IS_SLOW: bool;

    /// Writes one record.
    ///
    /// # Errors
    /// What the store said.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Copies a value into `out` (cleared first); `false` if the key is absent.
    ///
    /// # Errors
    /// What the store said.
    fn copy(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<bool>;

    /// Looks at a value in place; `None` if the key is absent.
    ///
    /// # Errors
    /// What the store said.
    fn view<T>(&mut self, _key: &[u8], _f: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
        Err(not_here(Kind::View))
    }

    /// Reads several keys at once; `f` sees each value that is there. Returns how many were.
    ///
    /// # Errors
    /// What the store said.
    fn batch(&mut self, keys: &[&[u8]], f: impl FnMut(&[u8])) -> Result<usize>;

    /// Walks over all records in storage order, once, or until `f` says `false`.
    ///
    /// # Errors
    /// What the store said.
    fn walk(&mut self, _f: impl FnMut(&[u8]) -> bool) -> Result<()> {
        Err(not_here(Kind::Step))
    }
}

/// The target of this name. `url` is a running Redis to use instead of one of our own.
///
/// # Errors
/// [`Error::BadArgument`] with the names that exist.
pub fn target(name: &str, url: Option<&str>) -> Result<Box<dyn Target>> {
    match name {
        "region" => Ok(Box::new(region::RegionTarget)),
        "redis" => Ok(Box::new(redis::Redis::tcp(url))),
        "redis-unix" => Ok(Box::new(redis::Redis::unix())),
        "whitedb" => Ok(Box::new(whitedb::WhiteDb)),
        _ => Err(Error::BadArgument {
            detail: format!("no target is called {name:?}: give some of {}", NAMES.join(",")),
        }),
    }
}

/// A program that takes its memory from the NUMA node that was asked for.
pub(crate) fn placed(program: &str, numa_node: Option<u32>) -> (String, Vec<String>) {
    match numa_node {
        None => (program.to_owned(), Vec::new()),
        Some(node) => {
            ("numactl".to_owned(), vec![format!("--membind={node}"), "--".into(), program.into()])
        }
    }
}

fn not_here(kind: Kind) -> Error {
    Error::BadArgument { detail: format!("this target has no access of kind {:?}", kind.name()) }
}
