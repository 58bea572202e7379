//! A process that executes a script and records its progress in a file.

use std::collections::BTreeMap;
#[cfg(feature = "crash-points")]
use std::fs::File;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use nearstate_store::{
    Address, BlockChange, Error, Filter, Kind, Metadata, Namespace, RetryPolicy, Schema, Session,
    TagSchema, Txn, WhenFull,
};

use crate::error_context::ErrorContext as _;
use crate::region_access::open_session;
use crate::tags::model::{FORWARD_MS, ScriptChange, ScriptStep, space_of};
use crate::tags::scripts::named;

/// Tags of the spaces that have tags.
pub(crate) fn tags() -> Vec<TagSchema> {
    let tag = |name: &str| TagSchema { name: name.to_owned(), ..TagSchema::default() };
    vec![
        TagSchema { is_unique: true, ..tag("guti") },
        TagSchema { is_unique: true, is_counted: true, ..tag("teid") },
        TagSchema { is_ordered: true, is_counted: true, ..tag("cell") },
    ]
}

/// The spaces of all scripts.
#[derive(Clone, Debug)]
pub(crate) struct ScriptNamespaces(BTreeMap<&'static str, Namespace>);

impl ScriptNamespaces {
    /// Opens the namespaces, and creates missing ones.
    pub(crate) fn open(session: &Session) -> Result<Self, Error> {
        let slice =
            TagSchema { name: "slice".to_owned(), is_counted: true, ..TagSchema::default() };
        let schemas = [
            ("tagged", Schema { tags: tags(), ..Schema::default() }),
            ("late", Schema::default()),
            ("blocks", Schema { kind: Kind::Blocks, tags: vec![slice] }),
            ("count", Schema { kind: Kind::Counters, ..Schema::default() }),
        ];
        let mut spaces = BTreeMap::new();
        for (name, schema) in schemas {
            spaces.insert(name, session.namespace(name, &schema)?);
        }
        session.objects()?;
        Ok(Self(spaces))
    }

    /// The space of a name or of a key.
    pub(crate) fn of(&self, name: &str) -> Result<Namespace, Error> {
        let name = if name.contains('/') { space_of(name) } else { name };
        let known = self.0.get(name).copied();
        known.ok_or_else(|| Error::BadArgument { detail: format!("no space {name:?}") })
    }
}

/// A process's progress.
#[cfg(feature = "crash-points")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScriptProgress {
    /// Completed steps.
    pub(crate) done: usize,
    /// True if the next step was begun.
    pub(crate) is_begun: bool,
}

fn progress_path(folder: &Path) -> PathBuf {
    folder.join("progress")
}

/// Clears the progress.
#[cfg(feature = "crash-points")]
pub(crate) fn forget_progress(folder: &Path) -> Result<(), String> {
    File::create(progress_path(folder)).map(drop).context("progress")
}

/// Reads the progress of the last process.
#[cfg(feature = "crash-points")]
pub(crate) fn progress(folder: &Path) -> Result<ScriptProgress, String> {
    let text = std::fs::read_to_string(progress_path(folder)).context("progress")?;
    let mut progress = ScriptProgress::default();
    for line in text.lines() {
        match line.split_once(' ') {
            Some(("begun", _)) => progress.is_begun = true,
            Some(("done", number)) => {
                progress.done = number.parse::<usize>().map_err(|e| format!("{line:?}: {e}"))? + 1;
                progress.is_begun = false;
            }
            _ => return Err(format!("progress: {line:?}")),
        }
    }
    Ok(progress)
}

/// A child's role: executes the steps of a script from one on. `NAME:before` executes the
/// preparation.
pub(crate) fn play(folder: &Path, what: &str, from: usize) -> Result<(), String> {
    let (name, part) = what.split_once(':').unwrap_or((what, "work"));
    let script = named(name).ok_or_else(|| format!("unknown script {name:?}"))?;
    let steps = match (part, script.before) {
        ("before", Some(before)) => before(),
        _ => (script.work)(),
    };
    let session = open_session(&folder.join("region"))?;
    let spaces = ScriptNamespaces::open(&session).context("open")?;
    let mut file =
        OpenOptions::new().append(true).open(progress_path(folder)).context("progress")?;
    let mut write_progress = |what: &str, number: usize| {
        file.write_all(format!("{what} {number}\n").as_bytes()).context("progress")
    };
    for step in steps.iter().take(from) {
        if let ScriptStep::Forward(is_forward) = step {
            set_clock(*is_forward)?;
        }
    }
    for (number, step) in steps.iter().enumerate().skip(from) {
        write_progress("begun", number)?;
        execute_step(&session, &spaces, step).map_err(|e| format!("{step:?}: {e}"))?;
        write_progress("done", number)?;
    }
    Ok(())
}

#[cfg(feature = "crash-points")]
#[expect(clippy::unnecessary_wraps, reason = "without the feature it fails")]
fn set_clock(is_forward: bool) -> Result<(), String> {
    nearstate_store::crash::shift_clock(if is_forward { FORWARD_MS } else { 0 });
    Ok(())
}

#[cfg(not(feature = "crash-points"))]
fn set_clock(is_forward: bool) -> Result<(), String> {
    let ms = if is_forward { FORWARD_MS } else { 0 };
    Err(format!("cannot set the clock by {ms} ms: built without the feature crash-points"))
}

fn execute_step(
    session: &Session,
    spaces: &ScriptNamespaces,
    step: &ScriptStep,
) -> Result<(), String> {
    let context = |error: Error| error.to_string();
    match step {
        ScriptStep::Txn(changes) => transact(session, spaces, changes).map_err(context),
        ScriptStep::Plain(key, value) => spaces
            .of(key)
            .and_then(|ns| session.put(ns, key.as_bytes(), value.as_bytes()))
            .map(drop)
            .map_err(context),
        ScriptStep::Collect => {
            while session.collect_expired(2).map_err(context)?.has_more {}
            Ok(())
        }
        ScriptStep::Forward(is_forward) => set_clock(*is_forward),
        ScriptStep::Declare => {
            spaces.of("late").and_then(|ns| session.add_tags(ns, &tags())).map_err(context)
        }
        ScriptStep::DeclareConflicting => {
            match spaces.of("late").and_then(|ns| session.add_tags(ns, &tags())) {
                Err(Error::TagTaken { .. }) => Ok(()),
                other => Err(format!("a conflicting declaration succeeded: {other:?}")),
            }
        }
        ScriptStep::DeclareUnfinished => {
            let ns = spaces.of("late").map_err(context)?;
            let cell: Vec<TagSchema> =
                tags().into_iter().filter(|tag| tag.name == "cell").collect();
            let begun = session.begin_tag_declaration(ns, &cell, RetryPolicy::default());
            begun
                .and_then(|mut begun| session.continue_tag_declaration(&mut begun, 1))
                .map(drop)
                .map_err(context)
        }
        ScriptStep::Watch(space) => spaces
            .of(space)
            .and_then(|ns| session.watch(ns, Filter::Namespace))
            .map(drop)
            .map_err(context),
        ScriptStep::Stream(space, is_keeping) => {
            stream(session, spaces, space, *is_keeping).map_err(context)
        }
        ScriptStep::Acknowledge => acknowledge(session).map_err(context),
        ScriptStep::Add(key, delta) => {
            spaces.of(key).and_then(|ns| session.add(ns, key.as_bytes(), *delta)).map_err(context)
        }
        ScriptStep::Drop(key) => spaces
            .of(key)
            .and_then(|ns| session.delete(ns, key.as_bytes()))
            .map(drop)
            .map_err(context),
    }
}

fn acknowledge(session: &Session) -> Result<(), Error> {
    let mut consumer = session.commit_stream()?;
    while consumer.next()?.is_some() {}
    consumer.acknowledge()
}

/// Streams a space from now on.
pub(crate) fn stream(
    session: &Session,
    spaces: &ScriptNamespaces,
    space: &str,
    is_keeping: bool,
) -> Result<(), Error> {
    let when_full = if is_keeping { WhenFull::Refuse } else { WhenFull::LoseOldest };
    if space == "object" {
        return session.stream_objects(when_full);
    }
    session.stream(spaces.of(space)?, when_full)
}

fn transact(
    session: &Session,
    spaces: &ScriptNamespaces,
    changes: &[ScriptChange],
) -> Result<(), Error> {
    let objects = addresses(session)?;
    session.transact(|txn| {
        for change in changes {
            execute_change(txn, spaces, &objects, change)?;
        }
        Ok(())
    })
}

/// The objects by the keys at the beginning of their bytes.
fn addresses(session: &Session) -> Result<BTreeMap<String, Address>, Error> {
    let mut all = BTreeMap::new();
    session.walk_objects(|address, bytes| {
        let text = String::from_utf8_lossy(bytes);
        all.insert(text.split(' ').next().unwrap_or_default().to_owned(), address);
        true
    })?;
    Ok(all)
}

fn execute_change(
    txn: &Txn<'_>,
    spaces: &ScriptNamespaces,
    objects: &BTreeMap<String, Address>,
    change: &ScriptChange,
) -> Result<(), Error> {
    let key = change.key();
    let with_metadata =
        |tags: &'static str, expires_ms, put: &dyn Fn(Metadata<'_>) -> Result<(), Error>| {
            let pairs: Vec<(&str, &[u8])> = tags
                .split_whitespace()
                .filter_map(|pair| pair.split_once('='))
                .map(|(name, value)| (name, value.as_bytes()))
                .collect();
            put(Metadata { tags: &pairs, expires_ms })
        };
    let address = || {
        let known = objects.get(key).copied();
        known.ok_or_else(|| Error::BadArgument { detail: format!("no object {key:?}") })
    };
    match change {
        ScriptChange::Put(_, value, tags, expires) => with_metadata(tags, *expires, &|metadata| {
            txn.put_with_metadata(spaces.of(key)?, key.as_bytes(), value.as_bytes(), metadata)
        }),
        ScriptChange::Label(_, tags, expires) => with_metadata(tags, *expires, &|metadata| {
            txn.set_metadata(spaces.of(key)?, key.as_bytes(), metadata).map(drop)
        }),
        ScriptChange::Patch(_, name, bytes) => {
            let change = BlockChange { name, bytes: bytes.map(str::as_bytes) };
            txn.patch(spaces.of(key)?, key.as_bytes(), &[change])
        }
        ScriptChange::Delete(_) => txn.delete(spaces.of(key)?, key.as_bytes()).map(drop),
        ScriptChange::Alloc(_, bytes) => {
            let text = format!("{key} {bytes}");
            let address = txn.alloc(text.len())?;
            txn.open_write(address, |bytes| bytes.copy_from_slice(text.as_bytes()))
        }
        ScriptChange::Write(_, bytes) => {
            let text = format!("{key} {bytes}");
            txn.open_write(address()?, |bytes| bytes.copy_from_slice(text.as_bytes()))
        }
        ScriptChange::Free(_) => txn.free(address()?),
    }
}

/// The namespace of [`fill`].
pub(crate) const KEPT: &str = "kept";

/// A child's role: puts large records with different keys and empties them again, until the full
/// log refuses: it holds what was replaced.
pub(crate) fn fill(folder: &Path) -> Result<(), String> {
    let session = open_session(&folder.join("region"))?;
    let ns = session.namespace(KEPT, &Schema::default()).context("open")?;
    let first = session.count(ns).context("count")?;
    let value = vec![7; 400_000];
    for number in first..first + FILL_MAX {
        let key = format!("{KEPT}/{number}");
        for value in [value.as_slice(), &[]] {
            match session.put(ns, key.as_bytes(), value) {
                Ok(_) => {}
                Err(Error::Behind { .. }) => return Ok(()),
                Err(error) => return Err(format!("put {number}: {error}")),
            }
        }
    }
    Err(format!("{FILL_MAX} records of 400 kB were replaced and the log did not refuse"))
}

/// Many more than a stream's ring can contain of the records of [`fill`].
const FILL_MAX: u64 = 12;
