//! The servers that are compared, each a process of its own on one processor.

use super::traffic::Link;
use crate::keeper::{Keeper, own_program, system};
use nearstate_model::{Error, Result};
use std::ffi::OsString;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How long a server may take to answer its first request: a node makes its region first.
const START_WAITS: u32 = 1000;

/// How a server is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Over TCP, by the loopback interface.
    Tcp,
    /// Over a Unix socket.
    Unix,
}

impl Way {
    /// As tables say it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Unix => "Unix socket",
        }
    }
}

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// A node that sleeps as soon as there is nothing to do: what it uses is what requests cost.
    Node,
    /// A node that looks for requests without an end before it sleeps.
    NodeLooking,
    /// Redis.
    Redis,
    /// Valkey.
    Valkey,
}

impl Program {
    /// As tables say it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::NodeLooking => "node, looking",
            Self::Redis => "redis",
            Self::Valkey => "valkey",
        }
    }

    const fn file(self) -> Option<&'static str> {
        match self {
            Self::Node | Self::NodeLooking => None,
            Self::Redis => Some("redis-server"),
            Self::Valkey => Some("valkey-server"),
        }
    }

    /// Its name and version; `None`: it is not installed.
    pub fn version(self) -> Option<String> {
        let Some(file) = self.file() else {
            return Some(format!("nearstate {}", env!("CARGO_PKG_VERSION")));
        };
        let output = Command::new(file).arg("--version").output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = text.split_whitespace().find_map(|word| word.strip_prefix("v="));
        Some(format!("{file} {}", version.unwrap_or("?")))
    }
}

/// A server that runs.
#[derive(Debug)]
pub struct Rival {
    /// Which one.
    pub program: Program,
    port: u16,
    process: u32,
    keeper: Keeper,
}

impl Rival {
    /// Starts a server on the processors that this thread may use, in a new folder below `dir`,
    /// with room for so many bytes of records, and waits until it answers.
    ///
    /// # Errors
    /// `Backend`: it does not answer. `System`: it cannot be started.
    pub fn start(program: Program, dir: &Path, bytes: u64) -> Result<Self> {
        let port = free_port()?;
        let file = match program.file() {
            Some(file) => file.to_owned(),
            None => own_program()?.to_string_lossy().into_owned(),
        };
        let keeper = Keeper::start(dir, Some(&file), |folder| match program {
            Program::Node => node_words(folder, port, bytes, "never"),
            Program::NodeLooking => node_words(folder, port, bytes, "1h"),
            Program::Redis | Program::Valkey => redis_words(folder, port),
        })?;
        let mut rival = Self { program, port, process: 0, keeper };
        rival.wait()?;
        rival.process = rival.child()?;
        Ok(rival)
    }

    /// A connection to it.
    ///
    /// # Errors
    /// `System`: it is refused.
    pub fn link(&self, way: Way) -> Result<Link> {
        match way {
            Way::Tcp => Link::tcp(SocketAddr::from(([127, 0, 0, 1], self.port))),
            Way::Unix => Link::unix(&self.keeper.folder().join("socket")),
        }
    }

    /// Time that its threads have run, in nanoseconds.
    ///
    /// # Errors
    /// `System`: the kernel does not say.
    pub fn cpu_ns(&self) -> Result<u64> {
        let tasks = format!("/proc/{}/task", self.process);
        let read = |e| system(&format!("reading {tasks}: has the server ended?"), &e);
        let mut sum = 0;
        for task in fs::read_dir(&tasks).map_err(read)? {
            let file = task.map_err(read)?.path().join("schedstat");
            // A thread may have ended since.
            let text = fs::read_to_string(file).unwrap_or_default();
            sum += text.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0);
        }
        Ok(sum)
    }

    fn wait(&mut self) -> Result<()> {
        for _ in 0..START_WAITS {
            let is_there = [Way::Tcp, Way::Unix]
                .into_iter()
                .all(|way| self.link(way).is_ok_and(|mut link| link.ping().is_ok()));
            if is_there {
                return Ok(());
            }
            if self.keeper.has_ended() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let name = self.program.name();
        Err(Error::Backend {
            detail: format!("the {name} that was started on port {} does not answer", self.port),
        })
    }

    /// The server is the only child of its keeper.
    fn child(&self) -> Result<u32> {
        let keeper = self.keeper.process();
        let file = PathBuf::from(format!("/proc/{keeper}/task/{keeper}/children"));
        let text = fs::read_to_string(&file).map_err(|e| system("finding the server", &e))?;
        text.split_whitespace().next().and_then(|word| word.parse().ok()).ok_or_else(|| {
            Error::Backend { detail: format!("the {} has ended", self.program.name()) }
        })
    }
}

fn node_words(folder: &Path, port: u16, bytes: u64, spin: &str) -> Vec<OsString> {
    let path = |name: &str| folder.join(name).into_os_string();
    let word = |word: &str| OsString::from(word);
    vec![
        word("serve"),
        word("--region"),
        path("region"),
        word("--max"),
        OsString::from(bytes.to_string()),
        word("--listen"),
        OsString::from(format!("127.0.0.1:{port}")),
        word("--unix"),
        path("socket"),
        word("--cores"),
        word("1"),
        word("--spin"),
        word(spin),
        word("--log-level"),
        word("error"),
    ]
}

fn redis_words(folder: &Path, port: u16) -> Vec<OsString> {
    let port = port.to_string();
    let words = ["--bind", "127.0.0.1", "--port", &port, "--save", "", "--appendonly", "no"];
    let more = ["--daemonize", "no", "--loglevel", "warning", "--unixsocket"];
    let mut words: Vec<OsString> = words.into_iter().chain(more).map(OsString::from).collect();
    words.push(folder.join("socket").into());
    words.push("--dir".into());
    words.push(folder.into());
    words
}

fn free_port() -> Result<u16> {
    TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .map_err(|e| system("finding a free port on the loopback interface", &e))
}
