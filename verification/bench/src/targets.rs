//! The stores that a workload runs against, behind two small traits: the orchestrator's interface
//! to a target, and ([`crate::access`]) a client's interface to its connection.

pub mod fault;
pub mod null;
pub mod sdl;
pub mod ring;
pub mod redis;
pub mod region;
pub mod lmdb;
pub mod dashmap;
pub mod prototype;
pub mod memcached;
pub mod geode;
pub mod whitedb;
mod resp;
mod joined;
pub(crate) mod started;
pub(crate) mod wire;

use crate::access::{StoreConnection, StoreSchema};
use crate::reaper::Reaper;
use nearstate_model::Result;
use region::on_node::NodeRegionTarget;
pub(crate) use started::{free_port, on_cpus};
use std::fmt;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

/// The content of a database, and where to store it.
#[derive(Clone, Debug, Default)]
pub struct DatabaseSpec {
    /// The workload's tables.
    pub schema: StoreSchema,
    /// The largest number of records, over all tables.
    pub records: u64,
    /// Bytes of the largest of them.
    pub record_bytes: u64,
    /// The largest number of connections.
    pub clients: usize,
    /// A memory-backed folder for files and sockets, in which a target creates its own.
    pub folder: PathBuf,
    /// The processors on which servers may run; all if empty.
    pub server_cpus: Vec<usize>,
    /// True if nodes busy-poll for requests.
    pub is_busy_polling: bool,
    /// Layout, where a target has several (`partitioned`, `replicated`, `zones`).
    pub layout: Option<String>,
    /// Set when the run must stop: waiting for a server that is not ready ends.
    pub stop: Option<&'static AtomicBool>,
}

impl DatabaseSpec {
    /// The size of all records: `percent` of their bytes, plus `overhead` bytes for each record and
    /// each tag.
    pub(crate) fn all_bytes(&self, percent: u64, overhead: u64) -> u64 {
        let tables = self.schema.tables;
        let tags: usize = tables.iter().map(|table| table.tags.len()).sum();
        let tags = tags.div_ceil(tables.len().max(1)) as u64;
        let bytes = self.record_bytes.saturating_mul(percent) / 100;
        self.records.saturating_mul(bytes.saturating_add(overhead.saturating_mul(1 + tags)))
    }
}

/// How a target provides a feature that not every store has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Support {
    /// By the store itself.
    Native,
    /// By this emulation, which the report names.
    Emulated(&'static str),
    /// Not at all, with the reason: workloads that need it are declined.
    Declined(&'static str),
}

/// How a target provides the features in which stores differ.
#[derive(Clone, Debug)]
pub struct Capabilities {
    /// A change sends only the parts that change.
    pub delta: Support,
    pub unique_tag: Support,
    /// Several records are read and written at one instant.
    pub transaction: Support,
    /// Records in the order of their keys.
    pub scan: Support,
    /// Readers of other processes see a change as soon as it is acknowledged.
    pub shared: Support,
    /// All records in storage order.
    pub walk: Support,
    /// Counters that several processes add to without a transaction.
    pub counter: Support,
    /// Sets of members.
    pub set: Support,
}

impl Capabilities {
    /// The default capabilities.
    const DEFAULT: Self = Self {
        delta: Support::Native,
        unique_tag: Support::Native,
        transaction: Support::Native,
        scan: Support::Native,
        shared: Support::Native,
        walk: Support::Native,
        counter: Support::Declined("only counters of the region are measured"),
        set: Support::Declined("only sets over Redis' protocol are measured"),
    };
}

/// A store that can be measured.
pub trait Target: fmt::Debug {
    /// The word of the command line.
    fn name(&self) -> &str;

    fn version(&self) -> Result<String>;

    /// The features that it has, emulates or lacks.
    fn capabilities(&self) -> Capabilities;

    /// The same for one of its layouts.
    fn capabilities_in(&self, _layout: Option<&str>) -> Capabilities {
        self.capabilities()
    }

    /// True if it supports this layout.
    fn has_layout(&self, _layout: &str) -> Result<bool> {
        Ok(false)
    }

    /// Bytes of its files in [`DatabaseSpec::folder`] with all records, as a measured upper
    /// estimate; 0 if records are in a server's own memory.
    fn folder_bytes(&self, _spec: &DatabaseSpec) -> u64 {
        0
    }

    /// A caveat of its figures if its servers share this number of processors and each client has
    /// its own.
    fn bound_caveat(&self, _server_cpus: usize) -> Option<String> {
        None
    }

    /// True if it stores what is written, so that records can be verified.
    fn keeps(&self) -> bool {
        true
    }

    /// True if its server keeps its records when it is killed and started again
    /// ([`Database::crash`]).
    fn survives_kill(&self) -> bool {
        false
    }

    /// Starts an empty database. Dropping it stops all of its processes.
    fn start(&self, spec: &DatabaseSpec) -> Result<Box<dyn Database>>;

    /// Connects to the database at an address that [`Database::address`] gave; used in client
    /// processes.
    fn connect(&self, address: &str, schema: &StoreSchema) -> Result<Box<dyn StoreConnection>>;
}

/// A running database, which dropping removes.
pub trait Database: fmt::Debug {
    /// The address for clients.
    fn address(&self) -> String;

    /// Its processes besides the clients. Their processor time is counted.
    fn processes(&self) -> Vec<u32> {
        Vec::new()
    }

    /// Applies the vendor's advice for the time after a bulk load. Returns its description for the
    /// report, `None` if there is no such advice.
    fn after_load(&mut self) -> Result<Option<String>> {
        Ok(None)
    }

    /// Its current memory in bytes, `None` if unknown.
    fn memory_bytes(&mut self) -> Option<u64>;

    /// Kills the server (SIGKILL) and starts it again on its files, at the same address.
    fn crash(&mut self) -> Result<()> {
        Err(bad_argument!("its server loses all records when it is killed"))
    }

    /// True if it still runs.
    fn alive(&mut self) -> Result<()> {
        Ok(())
    }
}

/// A database that is one file in the folder of a reaper.
#[derive(Debug)]
struct FileDatabase {
    reaper: Reaper,
    file: &'static str,
    /// True if large pages are requested after loading.
    is_collapsed: bool,
    /// The share of a region's heap that other records take after loading, in percent.
    fill: Option<u64>,
}

impl Database for FileDatabase {
    fn address(&self) -> String {
        self.reaper.folder().join(self.file).display().to_string()
    }

    fn after_load(&mut self) -> Result<Option<String>> {
        let path = self.reaper.folder().join(self.file);
        if let Some(percent) = self.fill {
            region::fill(&path, percent)?;
        }
        if self.is_collapsed { region::back_with_large_pages(&path) } else { Ok(None) }
    }

    /// Memory of its file.
    fn memory_bytes(&mut self) -> Option<u64> {
        let file = std::fs::metadata(self.reaper.folder().join(self.file)).ok()?;
        Some(file.blocks() * 512)
    }
}

/// A database in the memory of its clients, each of which has its own.
#[derive(Debug)]
struct InClients {
    address: String,
}

impl Database for InClients {
    fn address(&self) -> String {
        self.address.clone()
    }

    /// Unknown: the records are in the memory of the clients.
    fn memory_bytes(&mut self) -> Option<u64> {
        None
    }
}

/// The caveat of a server that starts more threads than it has processors.
fn many_threads(server_cpus: usize) -> String {
    let processors = match server_cpus {
        1 => "one processor".to_owned(),
        more => format!("{more} processors"),
    };
    format!(
        "its servers have as many threads as they like, all on {processors}; Redis, memcached and \
         a node spec one: --server-cpus gives servers more"
    )
}

/// Every target, in the order of a report: ours first.
pub fn all() -> Vec<Box<dyn Target>> {
    let mut all: Vec<Box<dyn Target>> =
        vec![Box::new(region::RegionTarget), Box::new(sdl::SdlTarget), Box::new(ring::RingTarget)];
    all.extend(redis::ALL.map(|target| Box::new(target) as Box<dyn Target>));
    all.push(Box::new(memcached::MemcachedTarget));
    all.push(Box::new(lmdb::LmdbTarget));
    all.push(Box::new(dashmap::DashMapTarget));
    all.push(Box::new(prototype::PrototypeTarget));
    all.push(Box::new(geode::GeodeTarget));
    all.push(Box::new(whitedb::WhiteDbTarget));
    all.push(Box::new(null::NullTarget));
    all
}

/// The target of this name.
pub fn named(name: &str) -> Result<Box<dyn Target>> {
    if let Some(target) = NodeRegionTarget::named(name) {
        return Ok(Box::new(target));
    }
    let all = all();
    let names = all.iter().map(|target| target.name()).collect::<Vec<_>>().join(", ");
    all.into_iter().find(|target| target.name() == name).ok_or_else(|| {
        bad_argument!(
            "no target is called {name:?}: give one of {names}, region@NODE; \
                         for ue-signalling also cluster, cluster-2, redis-wait, redis-wait-2, etcd"
        )
    })
}

/// An error if none of these targets has the layout. Targets without layouts may run with one that
/// has it.
pub fn can_be_laid_out(layout: Option<&str>, names: &[&str]) -> Result<()> {
    let Some(layout) = layout else { return Ok(()) };
    let mut is_known = false;
    for name in names {
        is_known |= named(name)?.has_layout(layout)?;
    }
    if is_known {
        return Ok(());
    }
    Err(bad_argument!(
        "--layout {layout}: none of the targets {} has this layout: leave it out, or give \
             geode (zones) or region (fill-50)",
        names.join(", ")
    ))
}

/// An error if this target cannot be killed in a run.
pub fn can_be_killed(target: &dyn Target) -> Result<()> {
    if target.survives_kill() {
        return Ok(());
    }
    let all = all();
    let able = all.iter().filter(|target| target.survives_kill()).map(|target| target.name());
    Err(bad_argument!(
        "--kill {}: its server loses all records when it is killed: give one of {}",
        target.name(),
        able.collect::<Vec<_>>().join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::TableSchema;

    #[test]
    fn a_layout_needs_a_target_that_supports_it() {
        let refusal = |layout, names: &[&str]| {
            can_be_laid_out(layout, names).err().map(|e| e.to_string()).unwrap_or_default()
        };
        assert_eq!(refusal(None, &["region"]), "");
        assert_eq!(refusal(Some("zones:3"), &["region", "geode"]), "");
        assert!(refusal(Some("foo"), &["region", "geode"]).contains("not a layout of geode"));
        assert!(
            refusal(Some("zones"), &["region", "redis"]).contains("region, redis has this layout")
        );
        assert_eq!(refusal(Some("fill-95"), &["region", "redis"]), "");
    }

    /// Bytes that were measured after 100,000 operations, for each of 100,000 UEs, sessions and
    /// records. The estimate must not be lower, or a run would fail later, nor much higher.
    #[test]
    fn estimated_file_sizes_are_somewhat_larger_than_measured_ones() {
        const ONE: TableSchema = TableSchema::new("t", &["a"]);
        static TABLES: [TableSchema; 1] = [ONE];
        let measured = [(1024, "region", 737), (1000, "region", 1251), (150, "region", 283)];
        let more = [(1024, "lmdb", 826), (1000, "lmdb", 2641), (150, "lmdb", 180)];
        let bytes = |name, record_bytes| {
            let spec = DatabaseSpec {
                schema: StoreSchema { tables: &TABLES },
                records: 100_000,
                record_bytes,
                ..DatabaseSpec::default()
            };
            named(name).unwrap().folder_bytes(&spec)
        };
        for (record_bytes, name, found) in measured.into_iter().chain(more) {
            let thought = bytes(name, record_bytes) / 100_000;
            assert!((found..found * 7 / 2).contains(&thought), "{name}: {thought}, {found}");
        }
        for name in ["redis", "memcached", "geode", "null"] {
            assert_eq!(bytes(name, 1000), 0, "{name}");
        }
    }
}
