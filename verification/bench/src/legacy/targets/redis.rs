//! Redis, over TCP and over a Unix socket: a server of our own on a free port of the loopback
//! interface, without persistence, or a running one that was given with `--url`.

use super::{Connection, Database, Need, Target, placed};
use crate::keeper::{Keeper, system};
use crate::legacy::content::{KEY_BYTES, Source, key};
use crate::legacy::protocol::{BATCH_KEYS, Kind, Mode};
use nearstate_model::{Error, Result};
use std::ffi::OsString;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// What our records in a server that is not ours are called.
const FOREIGN_PREFIX: &str = "nearstate-bench:";

/// Records in one message while loading.
const LOAD_RECORDS: usize = 128;

/// Redis as a target.
#[derive(Clone, Debug)]
pub struct Redis {
    is_unix: bool,
    url: Option<String>,
}

impl Redis {
    /// Over TCP: our own server, or the one at `url`.
    pub fn tcp(url: Option<&str>) -> Self {
        Self { is_unix: false, url: url.map(str::to_owned) }
    }

    /// Our own server over its Unix socket.
    pub fn unix() -> Self {
        Self { is_unix: true, url: None }
    }
}

impl Target for Redis {
    fn name(&self) -> &'static str {
        if self.is_unix { "redis-unix" } else { "redis" }
    }

    fn version(&self) -> Result<String> {
        if let Some(url) = &self.url {
            let info: String =
                redis::cmd("INFO").arg("server").query(&mut connect(url)?).map_err(said)?;
            let version = info.lines().find_map(|l| l.strip_prefix("redis_version:"));
            return Ok(format!("redis-server {} at {url}", version.unwrap_or("?").trim()));
        }
        let output = Command::new("redis-server").arg("--version").output().map_err(|_| {
            Error::BadArgument {
                detail: "redis-server is not installed: apt-get install -y redis-server, or give \
                         a running one with --url redis://HOST:PORT"
                    .to_owned(),
            }
        })?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = text.split_whitespace().find_map(|w| w.strip_prefix("v="));
        Ok(format!("redis-server {}", version.unwrap_or("?")))
    }

    fn kinds(&self, mode: Mode) -> &'static [Kind] {
        match mode {
            Mode::Read => &[Kind::Copy, Kind::Batch, Kind::Chain],
            Mode::Write => &[Kind::Put],
        }
    }

    fn open(&self, need: &Need, loaded: &mut dyn FnMut(u64)) -> Result<Box<dyn Database>> {
        let database = match &self.url {
            Some(url) => Server { keeper: None, url: url.clone(), records: need.records },
            None => start(need, self.is_unix)?,
        };
        load(&database, need, loaded)?;
        Ok(Box::new(database))
    }
}

/// A Redis that nodes can connect to.
#[derive(Debug)]
struct Server {
    keeper: Option<Keeper>,
    url: String,
    records: u64,
}

impl Database for Server {
    fn address(&self) -> String {
        self.url.clone()
    }

    fn prefix(&self) -> String {
        if self.keeper.is_some() { String::new() } else { FOREIGN_PREFIX.to_owned() }
    }
}

impl Drop for Server {
    /// A server that is not ours keeps running, so only what we put into it is taken out.
    fn drop(&mut self) {
        if self.keeper.is_none()
            && let Ok(mut connection) = connect(&self.url)
        {
            let _ = remove_ours(&mut connection);
        }
    }
}

fn remove_ours(connection: &mut redis::Connection) -> redis::RedisResult<()> {
    let mut cursor = 0_u64;
    loop {
        let (next, keys): (u64, Vec<Vec<u8>>) = redis::cmd("SCAN")
            .arg(cursor)
            .arg("MATCH")
            .arg(format!("{FOREIGN_PREFIX}*"))
            .arg("COUNT")
            .arg(1000)
            .query(connection)?;
        if !keys.is_empty() {
            redis::cmd("UNLINK").arg(keys).query::<()>(connection)?;
        }
        cursor = next;
        if cursor == 0 {
            return Ok(());
        }
    }
}

fn start(need: &Need, is_unix: bool) -> Result<Server> {
    let port = free_port()?;
    let (program, before) = placed("redis-server", need.numa_node);
    let mut keeper = Keeper::start(&need.folder, Some(&program), |folder| {
        before.into_iter().map(OsString::from).chain(options(folder, port)).collect()
    })?;
    let url = if is_unix {
        format!("unix://{}", keeper.folder().join("redis.sock").display())
    } else {
        format!("redis://127.0.0.1:{port}/")
    };
    for _ in 0..500 {
        if let Ok(mut connection) = connect(&url)
            && redis::cmd("PING").query::<String>(&mut connection).is_ok()
        {
            return Ok(Server { keeper: Some(keeper), url, records: need.records });
        }
        if keeper.has_ended() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Err(Error::Backend {
        detail: format!(
            "the redis-server that was started on port {port} does not answer: run \
             `redis-server --port {port}` by hand to see why"
        ),
    })
}

fn options(folder: &Path, port: u16) -> Vec<OsString> {
    let mut options: Vec<OsString> = [
        "--bind",
        "127.0.0.1",
        "--port",
        &port.to_string(),
        "--save",
        "",
        "--appendonly",
        "no",
        "--daemonize",
        "no",
        "--loglevel",
        "warning",
        "--unixsocket",
    ]
    .into_iter()
    .map(OsString::from)
    .collect();
    options.push(folder.join("redis.sock").into());
    options.push("--dir".into());
    options.push(folder.into());
    options
}

fn free_port() -> Result<u16> {
    TcpListener::bind("127.0.0.1:0")
        .and_then(|l| l.local_addr())
        .map(|a| a.port())
        .map_err(|e| system("finding a free port on the loopback interface", &e))
}

fn connect(url: &str) -> Result<redis::Connection> {
    redis::Client::open(url).and_then(|c| c.get_connection()).map_err(said)
}

#[expect(clippy::needless_pass_by_value, reason = "the shape that map_err wants")]
fn said(e: redis::RedisError) -> Error {
    Error::Backend { detail: format!("redis: {e}") }
}

fn load(database: &Server, need: &Need, loaded: &mut dyn FnMut(u64)) -> Result<()> {
    let mut connection = connect(&database.url)?;
    let mut source = Source::new(need.seed, 0, need.record_bytes);
    let prefix = database.prefix();
    let mut name = [0; KEY_BYTES];
    let records: Vec<u64> = (0..database.records).collect();
    for some in records.chunks(LOAD_RECORDS) {
        let mut pipe = redis::pipe();
        for record in some {
            key(*record, &mut name);
            let key = [prefix.as_bytes(), &name].concat();
            pipe.cmd("SET").arg(key).arg(source.value(*record)).ignore();
        }
        pipe.query::<()>(&mut connection).map_err(said)?;
        loaded(some.len() as u64);
    }
    Ok(())
}

/// A node's connection.
pub struct RedisConnection(redis::Connection);

impl std::fmt::Debug for RedisConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RedisConnection")
    }
}

impl RedisConnection {
    /// Connects to the server at this URL.
    ///
    /// # Errors
    /// [`Error::Backend`] with what the client library said.
    pub fn open(url: &str) -> Result<Self> {
        connect(url).map(Self)
    }
}

impl Connection for RedisConnection {
    const IS_SLOW: bool = true;

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        redis::cmd("SET").arg(key).arg(value).query(&mut self.0).map_err(said)
    }

    fn copy(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        let value: Option<Vec<u8>> = redis::cmd("GET").arg(key).query(&mut self.0).map_err(said)?;
        let is_there = value.is_some();
        *out = value.unwrap_or_default();
        Ok(is_there)
    }

    fn batch(&mut self, keys: &[&[u8]], mut f: impl FnMut(&[u8])) -> Result<usize> {
        debug_assert!(keys.len() <= BATCH_KEYS, "a batch has at most {BATCH_KEYS} keys");
        let values: Vec<Option<Vec<u8>>> =
            redis::cmd("MGET").arg(keys).query(&mut self.0).map_err(said)?;
        let mut there = 0;
        for value in values.iter().flatten() {
            f(value);
            there += 1;
        }
        Ok(there)
    }
}
