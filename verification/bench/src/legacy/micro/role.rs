//! What this program is when the bench starts it again: a process that adds to a counter.

use super::clock::Clock;
use crate::legacy::place;
use crate::legacy::protocol::monotonic_ns;
use clap::{Args, ValueEnum};
use nearstate_model::{Error, Result};
use nearstate_store::{Kind, Region, Schema};
use std::io::{BufRead as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What it is told.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// What it does
    #[arg(value_enum)]
    role: Role,
    /// Name of the store: region or lmdb; of the counter, for who adds
    target: String,
    /// The store's file
    path: PathBuf,
    /// Records of the store; a writer's number where it is one of ten
    #[arg(long, default_value_t = 0)]
    records: u64,
    /// Operations
    #[arg(long, default_value_t = 0)]
    ops: u64,
    /// Bytes of a value
    #[arg(long, default_value_t = 1024)]
    value_bytes: u64,
    /// The processor to stay on
    #[arg(long)]
    cpu: Option<usize>,
    /// Where chance comes from
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

/// What it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// Adds to a counter of a region when it is told to
    Add,
}

impl Role {
    /// The word of the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Add => "add",
        }
    }
}

/// The namespace of the counters.
pub const COUNTERS: &str = "counters";

/// Lives the role.
///
/// # Errors
/// What the store said.
pub fn serve(options: &Options) -> Result<()> {
    if let Some(cpu) = options.cpu {
        place::pin(cpu);
    }
    match options.role {
        Role::Add => add(options),
    }
}

fn say(line: &str) -> Result<()> {
    let mut output = std::io::stdout().lock();
    writeln!(output, "{line}")
        .and_then(|()| output.flush())
        .map_err(|e| crate::keeper::system("telling the bench", &e))
}

/// Says that all is ready, and waits for the moment that it is told.
fn await_start() -> Result<()> {
    say("ready")?;
    let mut line = String::new();
    std::io::stdin()
        .lock()
        .read_line(&mut line)
        .map_err(|e| crate::keeper::system("waiting for the start", &e))?;
    let at_ns: u64 = line.trim().parse().map_err(|_| Error::BadArgument {
        detail: format!("a moment was expected, not {line:?}"),
    })?;
    std::thread::sleep(Duration::from_nanos(at_ns.saturating_sub(monotonic_ns())));
    Ok(())
}

/// Adds `ops` times to one counter, from the moment on that it is told; once before, so that the
/// counter is there and its line is mapped. Tells its first and last moment.
fn add(options: &Options) -> Result<()> {
    let region = Region::attach(&options.path)?;
    region.populate()?;
    let session = region.session()?;
    let schema = Schema { kind: Kind::Counters, ..Default::default() };
    let namespace = session.namespace(COUNTERS, &schema)?;
    let key = options.target.as_bytes();
    session.add(namespace, key, 1)?;
    await_start()?;
    let (start_ns, thread_ns) = (monotonic_ns(), Clock::Thread.now_ns());
    for _ in 0..options.ops {
        session.add(namespace, key, 1)?;
    }
    let (end_ns, thread_ns) = (monotonic_ns(), Clock::Thread.now_ns() - thread_ns);
    say(&format!("done {start_ns} {end_ns} {thread_ns}"))
}

/// The words that make this program take a role.
pub fn words(role: Role, target: &str, path: &Path) -> Vec<std::ffi::OsString> {
    let words = ["bench", "micro-role", role.name(), target];
    words.into_iter().map(Into::into).chain([path.into()]).collect()
}
