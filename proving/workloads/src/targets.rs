//! The stores that a workload runs against, behind two small traits: what the orchestrator asks of
//! a target, and ([`crate::access`]) what a client asks of its connection.

pub mod fault;
pub mod null;
pub mod sdl;
pub mod ring;
pub mod redis;
pub mod region;
pub mod lmdb;
pub mod memcached;
pub mod geode;
pub mod mongodb;
mod resp;
mod joined;
mod started;
mod wire;

use crate::access::{Connection, Schema};
use nearstate_model::{Error, Result};
use std::fmt;
use std::path::PathBuf;

/// What a database has to hold, and where it is to lie.
#[derive(Clone, Debug)]
pub struct Need {
    /// The workload's tables.
    pub schema: Schema,
    /// Records that will be in it at the most, over all tables.
    pub records: u64,
    /// Bytes of the largest of them.
    pub record_bytes: u64,
    /// Connections at the most.
    pub clients: usize,
    /// A folder in memory for files and sockets: below it a target makes its own.
    pub folder: PathBuf,
    /// The processors on which servers may run; all if empty.
    pub server_cpus: Vec<usize>,
    /// Layout, where a target has several (`partitioned`, `replicated`, `zones`).
    pub layout: Option<String>,
}

/// How a target does what not every store has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// The store itself does it.
    Native,
    /// In this way, which the report repeats.
    Emulated(&'static str),
    /// Not at all: workloads that need it are declined. Why.
    Declined(&'static str),
}

/// What a target does with the wishes that stores differ in.
#[derive(Clone, Debug)]
pub struct Abilities {
    /// A change sends only the parts that change.
    pub delta: Way,
    /// A unique tag.
    pub unique_tag: Way,
    /// Several records at one instant.
    pub transaction: Way,
    /// Records in the order of their keys.
    pub scan: Way,
    /// Several requests in one message.
    pub pipeline: Way,
    /// Readers of other processes see a change as soon as it is acknowledged.
    pub shared: Way,
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

    /// What it does natively, and what it stands in for.
    fn abilities(&self) -> Abilities;

    /// The same for one of its layouts.
    fn abilities_in(&self, _layout: Option<&str>) -> Abilities {
        self.abilities()
    }

    /// Whether it keeps what is written, so that it can be verified.
    fn keeps(&self) -> bool {
        true
    }

    /// Starts an empty database. Whatever was started is stopped when the answer is dropped.
    ///
    /// # Errors
    /// Why it could not be started; nothing of it is left.
    fn start(&self, need: &Need) -> Result<Box<dyn Database>>;

    /// Connects to the database at an address that [`Database::address`] gave; used in client
    /// processes.
    ///
    /// # Errors
    /// Why not.
    fn connect(&self, address: &str, schema: &Schema) -> Result<Box<dyn Connection>>;
}

/// A running database that vanishes when it is dropped.
pub trait Database: fmt::Debug {
    /// Where clients find it.
    fn address(&self) -> String;

    /// The processes that do its work, beside the clients: their time is counted.
    fn processes(&self) -> Vec<u32> {
        Vec::new()
    }

    /// Does what its makers advise after a bulk load, before anything is measured; what that was,
    /// for the report, if anything.
    ///
    /// # Errors
    /// Why it could not be done.
    fn settle(&mut self) -> Result<Option<String>> {
        Ok(None)
    }

    /// Memory that it takes now, in bytes, as far as it can be told.
    fn memory_bytes(&mut self) -> Option<u64>;

    /// Kills the server (SIGKILL) and starts it again on what it left, at the same address.
    ///
    /// # Errors
    /// `BadArgument` if nothing of it would be left, or there is no server; why it does not start.
    fn crash(&mut self) -> Result<()> {
        Err(Error::BadArgument {
            detail: "this target has no server that comes back with its records: --kill is for \
                     node, node-unix"
                .to_owned(),
        })
    }

    /// Whether it still runs.
    ///
    /// # Errors
    /// What became of it.
    fn alive(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Every target, in the order of a report: ours first.
pub fn all() -> Vec<Box<dyn Target>> {
    let mut all: Vec<Box<dyn Target>> =
        vec![Box::new(region::RegionTarget), Box::new(sdl::SdlTarget), Box::new(ring::RingTarget)];
    all.extend(redis::ALL.map(|target| Box::new(target) as Box<dyn Target>));
    all.push(Box::new(memcached::MemcachedTarget));
    all.push(Box::new(lmdb::LmdbTarget));
    all.push(Box::new(geode::GeodeTarget));
    all.extend(mongodb::ALL.map(|target| Box::new(target) as Box<dyn Target>));
    all.push(Box::new(null::NullTarget));
    all
}

/// The target of this name.
///
/// # Errors
/// `BadArgument` with the names that there are.
pub fn named(name: &str) -> Result<Box<dyn Target>> {
    let all = all();
    let names = all.iter().map(|target| target.name()).collect::<Vec<_>>().join(", ");
    all.into_iter().find(|target| target.name() == name).ok_or_else(|| Error::BadArgument {
        detail: format!("no target is called {name:?}: give one of {names}"),
    })
}
