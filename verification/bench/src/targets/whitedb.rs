//! WhiteDB, the memory-centric back-end of paper 1.
//!
//! Its library is GPL-3.0, so it is not linked here. Each client has a process of a separate C
//! program (`verification/peers/whitedb`), which is compiled on first use and runs whole blocks of
//! operations. A block costs two messages over pipes. The target supports the workload `micro`
//! only: a table of plain values.

use super::{Capabilities, Database, DatabaseSpec, Support, Target};
use crate::access::{
    ReplySink, Request, StoreAccess, StoreConnection, StoreReply, StoreSchema, TableId, declined,
    first_part,
};
use crate::operations::{BlockOutcome, KeyBlock, Operation};
use crate::reaper::{own_program, system};
use nearstate_model::{Error, Result};
use std::io::{BufRead as _, BufReader, BufWriter, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::{env, fs};

const INSTALL: &str = "apt-get install -y libwgdb-dev gcc";

/// The paths at which distributions install the library's header.
const HEADERS: [&str; 2] = ["/usr/include/whitedb/dbapi.h", "/usr/local/include/whitedb/dbapi.h"];

/// The environment variable with the folder of the peers' sources.
const SOURCE_VARIABLE: &str = "NEARSTATE_PEERS";
const SOURCE: &str = "verification/peers/whitedb/node.c";

/// The layout in which the lock is held for a block of puts, as in the thesis.
const BLOCK_LOCK: &str = "block-lock";

/// Bytes of a segment in addition to its records.
const SEGMENT_BYTES: u64 = 128 << 20;

const PLAIN: &str = "it stores only tables of plain values without tags";

#[derive(Clone, Copy, Debug)]
pub struct WhiteDbTarget;

impl Target for WhiteDbTarget {
    fn name(&self) -> &'static str {
        "whitedb"
    }

    fn version(&self) -> Result<String> {
        built()?;
        let output =
            Command::new("dpkg-query").args(["-W", "-f=${Version}", "libwgdb-dev"]).output();
        let version = output.ok().filter(|o| o.status.success()).map_or_else(
            || "of unknown version".to_owned(),
            |o| String::from_utf8_lossy(&o.stdout).trim().to_owned(),
        );
        Ok(format!("libwgdb {version}, in a separate process"))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            delta: Support::Declined(PLAIN),
            unique_tag: Support::Declined(PLAIN),
            transaction: Support::Declined("its lock covers the database, and it cannot abort"),
            scan: Support::Declined("it has no ordered cursor that is stable under inserts"),
            ..Capabilities::DEFAULT
        }
    }

    fn has_layout(&self, layout: &str) -> Result<bool> {
        Ok(layout == BLOCK_LOCK)
    }

    fn start(&self, spec: &DatabaseSpec) -> Result<Box<dyn Database>> {
        let each = spec.record_bytes.saturating_mul(2).saturating_add(512);
        let bytes = spec.records.saturating_mul(each).saturating_add(SEGMENT_BYTES);
        // The key contains the process id. The owning process refuses a key that exists.
        let key = 0x6E73_0000 | (std::process::id() & 0xFFFF);
        let mut owner = Pipes::start(&["keep", &key.to_string(), &bytes.to_string()])?;
        owner.number()?;
        let lock = if spec.layout.as_deref() == Some(BLOCK_LOCK) { "block" } else { "record" };
        Ok(Box::new(Segment { address: format!("{key} {lock}"), _owner: owner }))
    }

    fn connect(&self, address: &str, schema: &StoreSchema) -> Result<Box<dyn StoreConnection>> {
        let is_plain =
            schema.tables.iter().all(|table| table.parts.len() == 1 && table.tags.is_empty());
        let (key, lock) = address.split_once(' ').unwrap_or((address, "record"));
        if schema.tables.len() != 1 || !is_plain {
            return Err(bad_argument!("whitedb: {PLAIN}: use micro"));
        }
        let pipes = Pipes::start(&["serve", key, lock])?;
        Ok(Box::new(WhiteDbConnection { pipes, values: Vec::new(), value: Vec::new() }))
    }
}

/// A database in a System V shared memory segment. The owning process removes it when its standard
/// input ends, therefore also when this process is killed.
#[derive(Debug)]
struct Segment {
    address: String,
    _owner: Pipes,
}

impl Database for Segment {
    fn address(&self) -> String {
        self.address.clone()
    }

    fn memory_bytes(&mut self) -> Option<u64> {
        None
    }
}

/// A process of the C program.
#[derive(Debug)]
struct Pipes {
    child: Child,
    requests: Option<BufWriter<ChildStdin>>,
    replies: BufReader<ChildStdout>,
}

impl Drop for Pipes {
    fn drop(&mut self) {
        drop(self.requests.take());
        let _ = self.child.wait();
    }
}

impl Pipes {
    fn start(arguments: &[&str]) -> Result<Self> {
        let mut command = Command::new(built()?);
        // The library prints to the program's standard error.
        command.args(arguments).process_group(0).stderr(Stdio::null());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|e| system("starting whitedb-node", &e))?;
        let (Some(requests), Some(replies)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(backend_error!("whitedb-node has no pipes"));
        };
        let (requests, replies) = (BufWriter::new(requests), BufReader::new(replies));
        Ok(Self { child, requests: Some(requests), replies })
    }

    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        let requests = self.requests.as_mut();
        requests.map_or(Ok(()), |to| to.write_all(bytes)).map_err(|e| gone(&e))
    }

    fn request(&mut self, letter: u8, count: usize) -> Result<()> {
        self.send(&[letter])?;
        self.count(count)
    }

    fn count(&mut self, count: usize) -> Result<()> {
        let count =
            u32::try_from(count).map_err(|_| bad_argument!("a length of {count} is too large"))?;
        self.send(&count.to_le_bytes())
    }

    /// Flushes the request and reads its reply, a number.
    fn number(&mut self) -> Result<u64> {
        if let Some(requests) = &mut self.requests {
            requests.flush().map_err(|e| gone(&e))?;
        }
        let mut bytes = [0; 8];
        self.replies.read_exact(&mut bytes).map_err(|e| gone(&e))?;
        match u64::from_le_bytes(bytes) {
            u64::MAX => {
                let mut detail = String::new();
                self.replies.read_line(&mut detail).map_err(|e| gone(&e))?;
                Err(backend_error!("{}", detail.trim_end().to_owned()))
            }
            number => Ok(number),
        }
    }
}

fn gone(e: &std::io::Error) -> Error {
    system("exchanging messages with whitedb-node", e)
}

#[derive(Debug)]
struct WhiteDbConnection {
    pipes: Pipes,
    /// The values of puts that were sent to the process.
    values: Vec<Vec<u8>>,
    /// The buffer of a read.
    value: Vec<u8>,
}

impl WhiteDbConnection {
    fn send_values(&mut self, values: &[Vec<u8>]) -> Result<()> {
        if self.values == values {
            return Ok(());
        }
        self.values = values.to_vec();
        self.pipes.request(b'V', values.len())?;
        for value in values {
            self.pipes.count(value.len())?;
            self.pipes.send(value)?;
        }
        Ok(())
    }
}

impl StoreAccess for WhiteDbConnection {
    fn perform(&mut self, request: &Request<'_>, receive: &mut ReplySink<'_>) -> Result<bool> {
        match request {
            Request::Read { key, .. } => {
                self.pipes.request(b'r', key.len())?;
                self.pipes.send(key)?;
                let Some(bytes) = self.pipes.number()?.checked_sub(1) else { return Ok(false) };
                self.value.resize(usize::try_from(bytes).unwrap_or(usize::MAX), 0);
                self.pipes.replies.read_exact(&mut self.value).map_err(|e| gone(&e))?;
                receive(StoreReply::Part(0, &self.value));
                Ok(true)
            }
            Request::Put { entry, .. } => {
                let value = first_part(entry.parts);
                self.pipes.request(b'P', entry.key.len())?;
                self.pipes.send(entry.key)?;
                self.pipes.count(value.len())?;
                self.pipes.send(value)?;
                self.pipes.number().map(|_| true)
            }
            Request::Change { .. } | Request::Delete { .. } | Request::Find { .. } => {
                Err(declined("whitedb: only whole values are read and written"))
            }
        }
    }
}

impl StoreConnection for WhiteDbConnection {
    fn run_block(&mut self, operation: Operation, block: KeyBlock<'_>) -> Result<BlockOutcome> {
        let letter = match operation {
            Operation::View | Operation::ScopeView | Operation::BatchView => b'v',
            Operation::Copy | Operation::BatchCopy => b'c',
            Operation::Chain => b'h',
            Operation::Put => b'p',
            Operation::Walk => b'w',
            Operation::Update => return Err(declined("whitedb: no transactions")),
        };
        if operation == Operation::Put {
            self.send_values(block.values)?;
        }
        if operation == Operation::Walk {
            let met = self.walk(crate::access::OPERATIONS)?;
            return Ok(BlockOutcome { met, sum: None });
        }
        self.pipes.request(letter, block.keys.len())?;
        self.pipes.send(block.keys.as_flattened())?;
        // The process of the store has read the values.
        Ok(BlockOutcome { met: self.pipes.number()?, sum: None })
    }

    fn walk(&mut self, _: TableId) -> Result<u64> {
        self.pipes.request(b'w', 0)?;
        self.pipes.number()
    }
}

/// The path of the C program, next to this program. Compiles it if it is older than its source.
fn built() -> Result<PathBuf> {
    if !HEADERS.iter().any(|h| Path::new(h).exists()) {
        return Err(bad_argument!("the WhiteDB library is not installed: {INSTALL}"));
    }
    let source = source()?;
    let own = own_program()?;
    let folder = own.parent().map_or_else(env::temp_dir, |p| p.join("peers"));
    fs::create_dir_all(&folder).map_err(|e| {
        system(&format!("creating {}: make its parent writable", folder.display()), &e)
    })?;
    let program = folder.join("whitedb-node");
    let modified = |path: &Path| fs::metadata(path).and_then(|m| m.modified());
    if let (Ok(program_time), Ok(source_time)) = (modified(&program), modified(&source))
        && program_time >= source_time
    {
        return Ok(program);
    }
    compile(&source, &program)?;
    Ok(program)
}

fn compile(source: &Path, program: &Path) -> Result<()> {
    // Two runs may compile at the same time: each into its own file, which is then renamed.
    let own = program.with_extension(std::process::id().to_string());
    let output = Command::new("cc")
        .args(["-O3", "-Wall", "-o"])
        .args([&own, source])
        .args(["-lwgdb", "-lm"])
        .output()
        .map_err(|e| system(&format!("starting cc for whitedb-node: {INSTALL}"), &e))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(backend_error!("cc could not build {}: {}", source.display(), errors.trim()));
    }
    fs::rename(&own, program).map_err(|e| system("installing whitedb-node", &e))
}

/// The source of the C program: in the folder that the variable names, in a checkout around this
/// program, or in the checkout from which it was built.
fn source() -> Result<PathBuf> {
    let named = env::var_os(SOURCE_VARIABLE).map(|p| PathBuf::from(p).join("whitedb/node.c"));
    let own = own_program()?;
    let above = own.ancestors().map(|a| a.join(SOURCE));
    let built_from = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().map(|a| a.join(SOURCE));
    named.into_iter().chain(above).chain(built_from).find(|p| p.exists()).ok_or_else(|| {
        bad_argument!(
            "{SOURCE} does not exist: run from a checkout, or set {SOURCE_VARIABLE} to the \
                 folder verification/peers"
        )
    })
}
