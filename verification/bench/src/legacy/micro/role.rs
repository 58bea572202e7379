//! What this program is when the bench starts it again: somebody who reads or writes beside the
//! measurement, one of ten writers, or the reader whose system calls are counted.

use super::clock::Clock;
use super::loops::{self, Job, Store};
use super::peers::lmdb::LmdbFile;
use super::peers::region::RegionStore;
use super::probe;
use super::work::{Material, key_of};
use crate::legacy::content::Source;
use crate::legacy::place;
use crate::legacy::protocol::monotonic_ns;
use clap::{Args, ValueEnum};
use nearstate_model::{Error, Result};
use nearstate_store::{Kind, Region, Schema};
use std::io::{BufRead as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
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
    /// Reads random keys until its standard input ends
    Read,
    /// Puts to random keys until its standard input ends
    Write,
    /// Writes memory of its own until its standard input ends
    Elsewhere,
    /// Inserts records of its own when it is told to
    Insert,
    /// Reads so many times, and ends
    Count,
    /// Adds to a counter of a region when it is told to
    Add,
}

impl Role {
    /// The word of the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Elsewhere => "elsewhere",
            Self::Insert => "insert",
            Self::Count => "count",
            Self::Add => "add",
        }
    }
}

/// The namespace of the counters.
pub const COUNTERS: &str = "counters";

/// Operations between two looks at whether to go on.
const STRETCH: u64 = 256;

/// Lives the role.
///
/// # Errors
/// What the store said.
pub fn serve(options: &Options) -> Result<()> {
    if let Some(cpu) = options.cpu {
        place::pin(cpu);
    }
    if options.role == Role::Elsewhere {
        return elsewhere(options);
    }
    if options.role == Role::Add {
        return add(options);
    }
    match options.target.as_str() {
        "region" => with_region(options),
        "lmdb" => act(options, &mut LmdbFile::attach(&options.path)?.store()?),
        other => Err(Error::BadArgument { detail: format!("no role for a target {other:?}") }),
    }
}

fn with_region(options: &Options) -> Result<()> {
    let region = Region::attach(&options.path)?;
    if options.role == Role::Insert {
        // As a network function would when it starts: no page is mapped in the measured time.
        region.populate()?;
    }
    let mut store = RegionStore::of(&region)?;
    if options.role == Role::Count {
        let material = Material::new(options.records, 64, options.seed);
        let work = material.work(0, options.ops, Clock::Wall);
        let seen = probe::all(&store, &work)?;
        return say(&format!("read {seen}"));
    }
    act(options, &mut store)
}

fn act<S: Store>(options: &Options, store: &mut S) -> Result<()> {
    match options.role {
        Role::Read => until_told(options, store, Job::View),
        Role::Write => until_told(options, store, Job::Put),
        Role::Insert => insert(options, store),
        Role::Elsewhere | Role::Count | Role::Add => Err(Error::BadArgument {
            detail: format!("{} is not for this target", options.role.name()),
        }),
    }
}

fn say(line: &str) -> Result<()> {
    let mut output = std::io::stdout().lock();
    writeln!(output, "{line}")
        .and_then(|()| output.flush())
        .map_err(|e| crate::keeper::system("telling the bench", &e))
}

/// True from the moment at which standard input ends.
fn is_over() -> &'static AtomicBool {
    static OVER: AtomicBool = AtomicBool::new(false);
    std::thread::spawn(|| {
        let mut ignored = String::new();
        while std::io::stdin().lock().read_line(&mut ignored).is_ok_and(|bytes| bytes > 0) {}
        OVER.store(true, Ordering::Relaxed);
    });
    &OVER
}

fn until_told<S: Store>(options: &Options, store: &mut S, job: Job) -> Result<()> {
    let value_bytes = usize::try_from(options.value_bytes).unwrap_or(usize::MAX);
    let material = Material::new(options.records, value_bytes, options.seed);
    let is_over = is_over();
    let mut at = 0;
    loops::run(store, job, &material.work(at, STRETCH, Clock::Wall))?;
    say("ready")?;
    while !is_over.load(Ordering::Relaxed) {
        at += STRETCH;
        loops::run(store, job, &material.work(at % options.records.max(1), STRETCH, Clock::Wall))?;
    }
    say(&format!("done {at}"))
}

/// Writes to memory that nobody else uses, a value's size at a time, over as many bytes as the
/// store has.
fn elsewhere(options: &Options) -> Result<()> {
    let value_bytes = usize::try_from(options.value_bytes).unwrap_or(1024);
    let material = Material::new(1, value_bytes, options.seed);
    let records = usize::try_from(options.records).unwrap_or(1);
    let mut own = vec![1_u8; records * value_bytes];
    let is_over = is_over();
    say("ready")?;
    let mut state = options.seed;
    let mut done = 0;
    while !is_over.load(Ordering::Relaxed) {
        for value in material.work(0, STRETCH, Clock::Wall).values {
            state = crate::legacy::content::mix(state);
            let at = usize::try_from(state % options.records.max(1)).unwrap_or(0) * value_bytes;
            if let Some(to) = own.get_mut(at..at + value_bytes) {
                to.copy_from_slice(value);
            }
            done += 1;
        }
        std::hint::black_box(&own);
    }
    say(&format!("done {done}"))
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

/// Inserts `ops` records that nobody else has, from the moment on that it is told. Tells its first
/// and last moment.
fn insert<S: Store>(options: &Options, store: &mut S) -> Result<()> {
    let value_bytes = usize::try_from(options.value_bytes).unwrap_or(usize::MAX);
    let mut source = Source::new(options.seed, options.records, value_bytes);
    let first = options.records * options.ops;
    let keys: Vec<_> = (first..first + options.ops).map(key_of).collect();
    await_start()?;
    let (start_ns, thread_ns) = (monotonic_ns(), Clock::Thread.now_ns());
    for (record, key) in (first..).zip(&keys) {
        store.put(key, source.value(record))?;
    }
    let (end_ns, thread_ns) = (monotonic_ns(), Clock::Thread.now_ns() - thread_ns);
    for key in &keys {
        if store.view(key, <[u8]>::len)? != Some(value_bytes) {
            return Err(Error::Backend { detail: "a record that was put is not there".to_owned() });
        }
    }
    say(&format!("done {start_ns} {end_ns} {thread_ns}"))
}

/// The words that make this program take a role.
pub fn words(role: Role, target: &str, path: &Path) -> Vec<std::ffi::OsString> {
    let words = ["bench", "micro-role", role.name(), target];
    words.into_iter().map(Into::into).chain([path.into()]).collect()
}
