//! Redis, Valkey and our node, each over TCP and over a Unix socket. The run starts the server on a
//! free port of the loopback interface, without persistence, with one thread for requests.

use super::region::{back_with_large_pages, file_bytes};
use super::resp::{Dialect, Resp};
use super::started::{ServerProcess, first_line, free_port};
use super::wire::connect;
use super::{Capabilities, Database, DatabaseSpec, Support, Target};
use crate::access::{StoreConnection, StoreSchema};
use crate::peers::installed;
use crate::reaper::own_program;
use nearstate_model::Result;
use nearstate_model::limits::REGION_BYTES_MIN;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Overhead in bytes of a record in a node's region, and of each of its tags (which are records
/// too), at most. Regions are twice as large, for replaced cells.
const RECORD_ROOM: u64 = 512;

/// Number of ports to try: another program may take a port before the server starts.
const PORT_TRIES: usize = 3;

/// A server program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    Redis,
    /// Valkey, the same code with another name.
    Valkey,
    /// This program, as `nearstate serve`.
    Node,
}

impl Program {
    const fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis-server",
            Self::Valkey => "valkey-server",
            Self::Node => "nearstate serve",
        }
    }

    fn file(self) -> Result<PathBuf> {
        match self {
            Self::Redis => installed("redis-server", "redis"),
            Self::Valkey => installed("valkey-server", "valkey"),
            Self::Node => own_program(),
        }
    }

    /// True if its records survive a kill. The others keep records in their own memory and are
    /// started without persistence.
    pub(crate) const fn survives_kill(self) -> bool {
        matches!(self, Self::Node)
    }

    /// The commands that it has in addition to the common ones.
    pub(crate) const fn dialect(self) -> Dialect {
        match self {
            Self::Redis | Self::Valkey => Dialect::Lua,
            Self::Node => Dialect::Tags,
        }
    }
}

/// A server that speaks RESP, as a target.
#[derive(Clone, Copy, Debug)]
pub struct RespTarget {
    name: &'static str,
    program: Program,
    is_unix: bool,
}

pub const ALL: [RespTarget; 6] = [
    RespTarget { name: "node", program: Program::Node, is_unix: false },
    RespTarget { name: "node-unix", program: Program::Node, is_unix: true },
    RespTarget { name: "redis", program: Program::Redis, is_unix: false },
    RespTarget { name: "redis-unix", program: Program::Redis, is_unix: true },
    RespTarget { name: "valkey", program: Program::Valkey, is_unix: false },
    RespTarget { name: "valkey-unix", program: Program::Valkey, is_unix: true },
];

impl RespTarget {
    /// Starts an empty database on this port.
    pub fn start_at(&self, spec: &DatabaseSpec, port: u16) -> Result<Box<dyn Database>> {
        Ok(self.running(Server::start_at(self.program, spec, port)?))
    }

    fn running(&self, server: Server) -> Box<dyn Database> {
        let address = if self.is_unix { server.unix() } else { server.tcp() };
        Box::new(Running { server, address })
    }
}

impl Target for RespTarget {
    fn name(&self) -> &'static str {
        self.name
    }

    fn version(&self) -> Result<String> {
        version(self.program)
    }

    fn capabilities(&self) -> Capabilities {
        capabilities(self.program)
    }

    fn survives_kill(&self) -> bool {
        self.program.survives_kill()
    }

    fn folder_bytes(&self, spec: &DatabaseSpec) -> u64 {
        folder_bytes(self.program, spec)
    }

    fn start(&self, spec: &DatabaseSpec) -> Result<Box<dyn Database>> {
        Ok(self.running(Server::start(self.program, spec)?))
    }

    fn connect(&self, address: &str, schema: &StoreSchema) -> Result<Box<dyn StoreConnection>> {
        Ok(Box::new(Resp::new(connect(address)?, schema, self.program.dialect())?))
    }
}

/// Name and version of a server's program.
pub(crate) fn version(program: Program) -> Result<String> {
    if program == Program::Node {
        return Ok(format!("nearstate {}, a node of one core", env!("CARGO_PKG_VERSION")));
    }
    let line = first_line(&program.file()?, "--version")?;
    let version = line.split_whitespace().find_map(|word| word.strip_prefix("v="));
    Ok(format!("{} {}", program.name(), version.unwrap_or("?")))
}

/// Bytes of a server's files in its folder.
pub(crate) fn folder_bytes(program: Program, spec: &DatabaseSpec) -> u64 {
    match program {
        Program::Redis | Program::Valkey => 0,
        Program::Node => file_bytes(spec),
    }
}

/// How RESP provides the features that a workload needs.
pub(crate) const fn capabilities(program: Program) -> Capabilities {
    let is_node = matches!(program, Program::Node);
    Capabilities {
        unique_tag: if is_node {
            Support::Native
        } else {
            Support::Emulated(
                "a key for each tag, written and found with its record by a Lua script",
            )
        },
        transaction: Support::Emulated(
            "WATCH each key that is read, buffer writes, MULTI and EXEC, retry after a change",
        ),
        scan: if is_node {
            Support::Declined("the node's RESP has no sorted sets")
        } else {
            Support::Emulated(
                "ZRANGEBYLEX of a sorted set of keys, then the records in one message",
            )
        },
        set: Support::Native,
        ..Capabilities::DEFAULT
    }
}

/// A running server.
#[derive(Debug)]
pub(crate) struct Server {
    program: Program,
    started: ServerProcess,
    port: u16,
    spec: DatabaseSpec,
    /// The reaper of the first server, which owns the folder, after that server was killed.
    before: Option<ServerProcess>,
}

impl Server {
    /// Starts a server on a free port.
    pub(crate) fn start(program: Program, spec: &DatabaseSpec) -> Result<Self> {
        let mut last = Err(backend_error!("no port was tried"));
        for _ in 0..PORT_TRIES {
            last = Self::start_at(program, spec, free_port()?);
            if last.is_ok() {
                break;
            }
        }
        last
    }

    /// Starts a server on this port.
    ///
    /// The start is confirmed over its own Unix socket: another process may answer on the port.
    fn start_at(program: Program, spec: &DatabaseSpec, port: u16) -> Result<Self> {
        let file = program.file()?;
        socket_fits(spec)?;
        let started = ServerProcess::new(program.name(), spec, &file, |folder| match program {
            Program::Redis | Program::Valkey => redis_arguments(folder, port),
            Program::Node => node_arguments(folder, port, spec),
        })?;
        let mut server = Self { program, started, port, spec: spec.clone(), before: None };
        let addresses = [server.unix(), server.tcp()];
        server
            .started
            .wait(|| addresses.iter().all(|address| answers(address).is_ok()))
            .map_err(|e| backend_error!("{e} (port {port})"))?;
        Ok(server)
    }

    /// The address of its Unix socket.
    pub(crate) fn unix(&self) -> String {
        format!("unix:{}", self.folder().join("socket").display())
    }

    /// The folder of its socket and its region.
    fn folder(&self) -> &Path {
        self.before.as_ref().unwrap_or(&self.started).folder()
    }

    /// Kills the node and starts another on its region, at the same addresses.
    fn crash(&mut self) -> Result<()> {
        self.started.kill()?;
        let (folder, file) = (self.folder().to_owned(), self.program.file()?);
        let again = ServerProcess::new(self.program.name(), &self.spec, &file, |_| {
            node_arguments(&folder, self.port, &self.spec)
        })?;
        let killed = std::mem::replace(&mut self.started, again);
        // The reaper that owns the folder is kept; later ones are not needed.
        self.before.get_or_insert(killed);
        let addresses = [self.unix(), self.tcp()];
        self.started.wait(|| addresses.iter().all(|address| answers(address).is_ok()))
    }

    fn tcp(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

/// The longest path of a Unix socket, in bytes (`sockaddr_un` with the final zero), and the longest
/// part after `--dir` in our paths.
const SOCKET_BYTES_MAX: usize = 107;
const SOCKET_NAME_BYTES: usize = "/nearstate-bench-4194304-9999/socket".len();

fn socket_fits(spec: &DatabaseSpec) -> Result<()> {
    let dir = spec.folder.as_os_str().len();
    if dir + SOCKET_NAME_BYTES <= SOCKET_BYTES_MAX {
        return Ok(());
    }
    Err(bad_argument!(
        "--dir {}: a Unix socket below it would have too long a path: give a folder of {} \
             bytes at the most",
        spec.folder.display(),
        SOCKET_BYTES_MAX - SOCKET_NAME_BYTES
    ))
}

fn answers(address: &str) -> Result<()> {
    let schema = StoreSchema { tables: &[] };
    Resp::new(connect(address)?, &schema, Dialect::Tags).map(drop)
}

/// A server, and the address by which it is reached.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) server: Server,
    pub(crate) address: String,
}

impl Database for Running {
    fn address(&self) -> String {
        self.address.clone()
    }

    fn processes(&self) -> Vec<u32> {
        self.server.started.processes()
    }

    fn after_load(&mut self) -> Result<Option<String>> {
        if self.server.program != Program::Node {
            return Ok(None);
        }
        back_with_large_pages(&self.server.folder().join("region"))
    }

    /// For a node: its own memory, and that of its region.
    fn memory_bytes(&mut self) -> Option<u64> {
        if self.server.program != Program::Node {
            return Some(self.server.started.memory_bytes());
        }
        let region = std::fs::metadata(self.server.folder().join("region")).ok()?;
        Some(self.server.started.own_memory_bytes() + region.blocks() * 512)
    }

    fn crash(&mut self) -> Result<()> {
        if self.server.program.survives_kill() {
            return self.server.crash();
        }
        let name = self.server.program.name();
        Err(bad_argument!("{name} keeps its records in its own memory: they would be lost"))
    }

    fn alive(&mut self) -> Result<()> {
        self.server.started.alive()
    }
}

fn node_arguments(folder: &Path, port: u16, spec: &DatabaseSpec) -> Vec<OsString> {
    let tags = spec.schema.tables.iter().map(|table| table.tags.len()).max().unwrap_or(0);
    let heads = RECORD_ROOM.saturating_mul(1 + tags as u64);
    let bytes = spec.records.saturating_mul(spec.record_bytes.saturating_add(heads));
    let bytes = bytes.saturating_mul(2).max(REGION_BYTES_MIN);
    let mut words: Vec<OsString> = vec!["serve".into(), "--region".into()];
    words.push(folder.join("region").into());
    words.extend(["--max".to_owned(), bytes.to_string()].map(OsString::from));
    words.extend(["--listen".to_owned(), format!("127.0.0.1:{port}")].map(OsString::from));
    words.push("--unix".into());
    words.push(folder.join("socket").into());
    words.extend(["--cores", "1", "--log-level", "error"].map(OsString::from));
    if spec.is_busy_polling {
        words.extend(["--spin", "1h"].map(OsString::from));
    }
    words
}

fn redis_arguments(folder: &Path, port: u16) -> Vec<OsString> {
    let port = port.to_string();
    let words = ["--bind", "127.0.0.1", "--port", &port, "--save", "", "--appendonly", "no"];
    let more = ["--daemonize", "no", "--loglevel", "warning", "--unixsocket"];
    let mut words: Vec<OsString> = words.into_iter().chain(more).map(OsString::from).collect();
    words.push(folder.join("socket").into());
    words.push("--dir".into());
    words.push(folder.into());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emulated_and_missing_features_are_declared() {
        for target in ALL {
            let capabilities = target.capabilities();
            let emulates = matches!(capabilities.unique_tag, Support::Emulated(_));
            assert_eq!(emulates, target.program != Program::Node, "{target:?}");
            let declines = matches!(capabilities.scan, Support::Declined(_));
            assert_eq!(declines, target.program == Program::Node);
        }
    }
}
