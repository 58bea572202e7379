//! The processes of a Geode cluster: their roles, heaps and readiness.

use super::super::started::{ServerProcess, free_port};
use super::super::{Database, DatabaseSpec};
use super::cluster_state;
use crate::peers::{Geode, installed};
use nearstate_model::Result;
use std::ffi::OsString;
use std::net::TcpStream;
use std::path::Path;

/// The smallest heap of a server, in MiB.
const HEAP_MIB_MIN: u64 = 1024;

/// Heap of the locator, which stores nothing.
const LOCATOR_HEAP: &str = "-Xmx256m";

/// Overhead of a record on Java's heap in bytes, and of each of its tags.
const RECORD_OVERHEAD_BYTES: u64 = 1024;

/// The largest number of servers of a layout.
const SERVERS_MAX: usize = 16;

/// Modules that Geode 1.15 must be able to access on Java 17, from its manual.
const OPENINGS: [&str; 6] = [
    "--add-exports=java.management/com.sun.jmx.remote.security=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
    "--add-opens=java.base/java.net=ALL-UNNAMED",
];

/// A layout of servers and copies.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct GeodeLayout {
    pub(super) name: &'static str,
    pub(super) servers: usize,
    copies: usize,
}

pub(super) fn layout(text: Option<&str>) -> Result<GeodeLayout> {
    let text = text.unwrap_or("partitioned");
    let wrong = || {
        bad_argument!(
            "{text:?} is not a layout of geode: give partitioned[:SERVERS[:COPIES]], \
             replicated[:SERVERS] or zones[:SERVERS[:COPIES]], with at most {SERVERS_MAX} servers \
             and 3 copies"
        )
    };
    let mut fields = text.split(':');
    let (name, servers, copies) = match fields.next() {
        Some("partitioned") => ("partitioned", 1, 0),
        Some("replicated") => ("replicated", 2, 0),
        Some("zones") => ("zones", 2, 1),
        _ => return Err(wrong()),
    };
    let mut number = |default: usize| match fields.next() {
        None => Ok(default),
        Some(field) => field.parse().map_err(|_| wrong()),
    };
    let layout = GeodeLayout { name, servers: number(servers)?, copies: number(copies)? };
    let is_valid = (1..=SERVERS_MAX).contains(&layout.servers) && layout.copies <= 3;
    if is_valid && fields.next().is_none() { Ok(layout) } else { Err(wrong()) }
}

/// The processes of a database.
#[derive(Debug)]
pub(super) struct GeodeServers {
    address: String,
    all: Vec<ServerProcess>,
}

impl GeodeServers {
    pub(super) fn start(spec: &DatabaseSpec) -> Result<Self> {
        let layout = layout(spec.layout.as_deref())?;
        let (java, geode) = (installed("java", "geode")?, Geode::here()?);
        // A locator writes a file to its working directory.
        let (env, java) = (installed("env", "coreutils")?, java.to_string_lossy().into_owned());
        let locator = free_port()?;
        let port = locator.to_string();
        let mut first = ServerProcess::new("geode's locator", spec, &env, |folder| {
            let role = ["locator", &port, &folder.to_string_lossy()].map(str::to_owned);
            env_arguments(folder, &java, java_arguments(&geode, &[LOCATOR_HEAP.to_owned()], &role))
        })?;
        first.wait(|| TcpStream::connect(("127.0.0.1", locator)).is_ok())?;
        let mut all = vec![first];
        let mut addresses = Vec::new();
        for number in 0..layout.servers {
            let gateway = free_port()?;
            let server = |folder: &Path| {
                let ports = (number, gateway, locator);
                env_arguments(folder, &java, server_arguments(&geode, spec, &layout, ports, folder))
            };
            all.push(ServerProcess::new("geode's server", spec, &env, server)?);
            addresses.push(format!("127.0.0.1:{gateway}"));
        }
        // Wait until each server knows the locator and all other servers. The first server comes
        // last: then all regions exist, and it assigns their buckets.
        for (started, address) in all.iter_mut().skip(1).zip(&addresses).rev() {
            let expected = (i64::from(started.process()), layout.servers);
            started.wait(|| cluster_state(address).is_ok_and(|state| state == expected))?;
        }
        let address = addresses.into_iter().next().unwrap_or_default();
        Ok(Self { address, all })
    }
}

/// The arguments for `env` that start Java in a folder.
fn env_arguments(folder: &Path, java: &str, more: Vec<OsString>) -> Vec<OsString> {
    let mut arguments = vec!["-C".into(), folder.into(), java.into()];
    arguments.extend(more);
    arguments
}

fn java_arguments(geode: &Geode, jvm: &[String], role: &[String]) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = OPENINGS.map(OsString::from).to_vec();
    arguments.extend(jvm.iter().map(OsString::from));
    arguments.extend(["-cp", &geode.class_path, "NearstateGeode"].map(OsString::from));
    arguments.extend(role.iter().map(OsString::from));
    arguments
}

fn server_arguments(
    geode: &Geode,
    spec: &DatabaseSpec,
    layout: &GeodeLayout,
    (number, gateway, locator): (usize, u16, u16),
    folder: &Path,
) -> Vec<OsString> {
    let tags = spec.schema.tables.iter().map(|table| table.tags.len()).max().unwrap_or(0);
    let overhead = RECORD_OVERHEAD_BYTES.saturating_mul(1 + tags as u64);
    let bytes = spec.records.saturating_mul(spec.record_bytes.saturating_add(overhead));
    // Half of a heap is reserved for the garbage collector.
    let heap = (bytes >> 20).saturating_mul(2).max(HEAP_MIB_MIN);
    // Without this property a transaction would not detect changes of the records that it read.
    let jvm = [format!("-Xmx{heap}m"), "-Dgemfire.detectReadConflicts=true".to_owned()];
    let mut role: Vec<String> = vec!["server".to_owned(), number.to_string(), gateway.to_string()];
    role.extend([locator.to_string(), folder.to_string_lossy().into_owned()]);
    role.extend([layout.name.to_owned(), layout.servers.to_string(), layout.copies.to_string()]);
    for table in spec.schema.tables {
        let rules = table.tags.iter().map(|rule| if rule.is_unique { 'u' } else { 'n' });
        let rules = rules.collect::<String>();
        role.push(format!("{}:{}:{rules}", table.name, table.parts.len()));
    }
    java_arguments(geode, &jvm, &role)
}

impl Database for GeodeServers {
    fn address(&self) -> String {
        self.address.clone()
    }

    fn processes(&self) -> Vec<u32> {
        self.all.iter().flat_map(ServerProcess::processes).collect()
    }

    fn memory_bytes(&mut self) -> Option<u64> {
        Some(self.all.iter().map(ServerProcess::memory_bytes).sum())
    }

    fn alive(&mut self) -> Result<()> {
        self.all.iter_mut().try_for_each(ServerProcess::alive)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_parsed_and_invalid_ones_refused() {
        let read = |text: &str| layout(Some(text)).unwrap();
        assert_eq!(
            layout(None).unwrap(),
            GeodeLayout { name: "partitioned", servers: 1, copies: 0 }
        );
        assert_eq!(read("replicated:3"), GeodeLayout { name: "replicated", servers: 3, copies: 0 });
        assert_eq!(read("zones"), GeodeLayout { name: "zones", servers: 2, copies: 1 });
        assert_eq!(
            read("partitioned:4:2"),
            GeodeLayout { name: "partitioned", servers: 4, copies: 2 }
        );
        for wrong in ["", "none", "zones:0", "zones:17", "zones:2:4", "zones:2:1:1", "zones:x"] {
            assert!(layout(Some(wrong)).is_err(), "{wrong}");
        }
    }
}
