//! Reads a region after a kill as text and compares it with the model.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use nearstate_store::meta::Meta;
use nearstate_store::{
    Event, EventKind, Filter, Notice, Session, StreamItem, StreamedChange, StreamedRecord,
    TagState, Values, View, Watch,
};

use crate::error_context::ErrorContext as _;
use crate::region_access::open_session;
use crate::tags::model::{ModelRecord, TagModel, tags_text};
use crate::tags::script_process::{ScriptNamespaces, stream};
use crate::tags::scripts::TagScript;

/// Values that any record of a script had.
const VALUES: [(&str, &[&str]); 3] = [
    ("guti", &["g1", "g2", "g3", "g4", "g5", "g6", "g9"]),
    ("teid", &["t1", "t2", "t3", "t4", "t5"]),
    ("cell", &["c1", "c2", "c3"]),
];

/// Versions of each record in the order of their events.
type Versions = BTreeMap<String, Vec<u64>>;

/// A writer's transactions: the steps of each.
type WriterStream = Vec<Vec<String>>;

/// The events so far.
#[derive(Debug)]
pub(crate) struct ScriptVerifier {
    watches: Vec<(&'static str, Watch)>,
    events: BTreeMap<String, Vec<String>>,
    event_versions: Versions,
}

impl ScriptVerifier {
    /// Watches and streams the script's spaces, also in the model.
    pub(crate) fn new(
        path: &Path,
        script: &TagScript,
        model: &mut TagModel,
    ) -> Result<Self, String> {
        let mut verifier =
            Self { watches: Vec::new(), events: BTreeMap::new(), event_versions: BTreeMap::new() };
        if script.before.is_none() {
            return Ok(verifier);
        }
        let session = open_session(path)?;
        let spaces = ScriptNamespaces::open(&session).context("open")?;
        for space in script.watched {
            let ns = spaces.of(space).map_err(|e| e.to_string())?;
            let watch = session.watch(ns, Filter::Namespace).context("watch")?;
            verifier.watches.push((space, watch));
            verifier.events.insert((*space).to_owned(), Vec::new());
            model.events.insert((*space).to_owned(), Vec::new());
        }
        for (space, is_keeping) in script.streamed {
            stream(&session, &spaces, space, *is_keeping).context("stream")?;
            model.streamed.insert((*space).to_owned());
        }
        Ok(verifier)
    }

    /// Compares a region with several models. Returns the index of the one that matches, the last
    /// if several do.
    pub(crate) fn compare(&mut self, path: &Path, models: &[TagModel]) -> Result<usize, String> {
        self.read_watches()?;
        let session = open_session(path)?;
        let spaces = ScriptNamespaces::open(&session).context("open")?;
        let state = RegionContent::read(&session, &spaces).context("read")?;
        let (streams, versions) = read_stream(&session)?;
        self.compare_versions(&versions)?;
        let mut differences = Vec::new();
        for (number, model) in models.iter().enumerate().rev() {
            let compared = state
                .compare(model)
                .and_then(|()| self.compare_events(model, &streams))
                .and_then(|()| state.compare_lookups(&session, &spaces, model));
            match compared {
                Ok(()) => return Ok(number),
                Err(difference) => differences.push(difference),
            }
        }
        Err(format!("matches none of {} states: {}", models.len(), differences.join("; or ")))
    }

    fn read_watches(&mut self) -> Result<(), String> {
        for (space, watch) in &mut self.watches {
            loop {
                match watch.next().map_err(|e| format!("watch of {space}: {e}"))? {
                    None => break,
                    Some(Notice::Lost { events }) => return Err(format!("{events} events lost")),
                    Some(Notice::Event(event)) => {
                        let text = event_text(&event);
                        self.events.entry((*space).to_owned()).or_default().push(text);
                        let versions = self.event_versions.entry(utf8(event.key)).or_default();
                        order(versions, &event)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn compare_events(&self, model: &TagModel, streams: &[WriterStream]) -> Result<(), String> {
        for (space, actual) in &self.events {
            if model.events.get(space) != Some(actual) {
                let expected = model.events.get(space);
                return Err(format!("events of {space}: {actual:#?}, expected {expected:#?}"));
            }
        }
        let mut left: Vec<&[Vec<String>]> = streams.iter().map(Vec::as_slice).collect();
        for expected in &model.stream {
            let ring = left.iter_mut().find(|ring| ring.first() == Some(expected));
            let Some(ring) = ring else {
                return Err(format!("the stream lacks {expected:?}: {streams:#?}"));
            };
            *ring = ring.get(1..).unwrap_or_default();
        }
        match left.iter().find(|ring| !ring.is_empty()) {
            Some(ring) => Err(format!("the stream has further entries: {ring:?}")),
            None => Ok(()),
        }
    }

    /// The events and the stream must have the same versions of a record.
    fn compare_versions(&self, streamed: &Versions) -> Result<(), String> {
        for (key, versions) in &self.event_versions {
            if let Some(streamed) = streamed.get(key)
                && versions != streamed
            {
                return Err(format!("{key}: events of {versions:?}, in the stream {streamed:?}"));
            }
        }
        Ok(())
    }
}

fn utf8(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Versions of a record increase. A deletion has the last version.
fn order(versions: &mut Vec<u64>, event: &Event<'_>) -> Result<(), String> {
    let last = versions.last().copied();
    let is_new = matches!(event.kind, EventKind::Created | EventKind::Updated);
    let is_right = match last {
        None => true,
        Some(last) if is_new => event.version > last,
        Some(last) => event.version == last,
    };
    if !is_right {
        return Err(format!("{event:?} after version {last:?}"));
    }
    if is_new {
        versions.push(event.version);
    }
    Ok(())
}

fn event_text(event: &Event<'_>) -> String {
    let kind = match event.kind {
        EventKind::Created => "created",
        EventKind::Updated => "updated",
        EventKind::Deleted => "deleted",
        EventKind::Expired => "expired",
    };
    let before = tags_text(&owned(event.tags_before()));
    format!("{kind} {} {before} -> {}", utf8(event.key), tags_text(&owned(event.tags_after())))
}

fn owned<'a>(tags: impl Iterator<Item = (&'a str, &'a [u8])>) -> BTreeSet<(String, String)> {
    tags.map(|(name, value)| (name.to_owned(), utf8(value))).collect()
}

fn meta_text(meta: &[u8]) -> String {
    let split = if meta.is_empty() { None } else { Meta::split(meta).ok() };
    let Some((_, meta)) = split else { return "{} ends 0".to_owned() };
    let tags = owned(meta.tags().filter_map(Result::ok));
    format!("{} ends {}", tags_text(&tags), meta.expires_ms)
}

fn step_text(session: &Session, record: &StreamedRecord<'_>) -> Result<String, String> {
    let is_object = session.object_of(record).map_err(|e| e.to_string())?.is_some();
    let key = if is_object { "object".to_owned() } else { utf8(record.key) };
    Ok(match &record.change {
        StreamedChange::Put { value, meta, .. } => {
            format!("put {key} [:{}] {}", utf8(value), meta_text(meta))
        }
        StreamedChange::Patched { is_anew, blocks, meta } => {
            let blocks: Vec<String> = blocks
                .iter()
                .map(|(name, bytes)| {
                    let bytes = bytes.map_or_else(|| "-".to_owned(), |b| format!(":{}", utf8(b)));
                    utf8(name) + &bytes
                })
                .collect();
            let meta = meta.map(|meta| format!(" {}", meta_text(meta))).unwrap_or_default();
            format!("patch {key} {is_anew} [{}]{meta}", blocks.join(","))
        }
        StreamedChange::Elements { .. } => format!("elements {key}"),
        StreamedChange::Deleted { is_expiry: true } => format!("expired {key}"),
        StreamedChange::Deleted { is_expiry: false } => format!("deleted {key}"),
    })
}

/// All streams, writer by writer, and the versions of each record. Acknowledges nothing.
fn read_stream(session: &Session) -> Result<(Vec<WriterStream>, Versions), String> {
    let mut all: BTreeMap<u32, WriterStream> = BTreeMap::new();
    let (mut versions, mut last) = (Versions::new(), 0);
    let mut consumer = session.commit_stream().context("stream")?;
    while let Some(item) = consumer.next().context("stream")? {
        let entry = match item {
            StreamItem::Transaction(entry) => entry,
            StreamItem::Lost { transactions } => {
                return Err(format!("{transactions} transactions lost"));
            }
        };
        if entry.number <= last {
            return Err(format!("{entry:?} follows position {last}"));
        }
        last = entry.number;
        let of_writer = all.entry(entry.writer).or_default();
        let mut steps = Vec::new();
        for record in entry.records() {
            let record = record.map_err(|e| format!("{entry:?}: {e:?}"))?;
            steps.push(step_text(session, &record)?);
            if !matches!(record.change, StreamedChange::Deleted { .. }) {
                versions.entry(utf8(record.key)).or_default().push(record.version);
            }
        }
        of_writer.push(steps);
    }
    for versions in versions.values_mut() {
        versions.sort_unstable();
    }
    Ok((all.into_values().collect(), versions))
}

/// The records and counters of a region.
#[derive(Debug)]
struct RegionContent {
    seen: BTreeMap<String, String>,
    counters: BTreeMap<String, i64>,
}

fn view_text(view: &View<'_>) -> String {
    let mut record = ModelRecord { expires: view.expires_ms(), ..ModelRecord::default() };
    record.tags = owned(view.tags());
    record.blocks = view.blocks().map(|(name, bytes)| (name.to_owned(), utf8(bytes))).collect();
    if record.blocks.is_empty() && !view.key().starts_with(b"blocks/") {
        record.blocks.insert(String::new(), utf8(view.bytes()));
    }
    record.text()
}

impl RegionContent {
    fn read(session: &Session, spaces: &ScriptNamespaces) -> nearstate_store::Result<Self> {
        let (mut seen, mut counters) = (BTreeMap::new(), BTreeMap::new());
        for space in ["tagged", "late", "blocks"] {
            let mut scan = session.scan(spaces.of(space)?)?;
            while let Some(view) = scan.next()? {
                seen.insert(utf8(view.key()), view_text(&view));
            }
        }
        session.walk_objects(|_, bytes| {
            let text = utf8(bytes);
            let key = text.split(' ').next().unwrap_or_default().to_owned();
            let blocks = [(String::new(), text)].into();
            seen.insert(key, ModelRecord { blocks, ..ModelRecord::default() }.text());
            true
        })?;
        for key in ["count/a", "count/b"] {
            if let Some(sum) = session.read_counter(spaces.of(key)?, key.as_bytes())? {
                counters.insert(key.to_owned(), sum);
            }
        }
        Ok(Self { seen, counters })
    }

    fn compare(&self, model: &TagModel) -> Result<(), String> {
        if self.seen != model.seen() {
            return Err(format!("records: {:#?}, not {:#?}", self.seen, model.seen()));
        }
        if self.counters != model.counters {
            return Err(format!("counters: {:?}, not {:?}", self.counters, model.counters));
        }
        Ok(())
    }

    /// Every value of every tag leads to the records that have it, and the counts are right.
    fn compare_lookups(
        &self,
        session: &Session,
        spaces: &ScriptNamespaces,
        model: &TagModel,
    ) -> Result<(), String> {
        for space in ["tagged", "late"] {
            let ns = spaces.of(space).map_err(|e| e.to_string())?;
            let tags = session.tags(ns).map_err(|e| e.to_string())?;
            let is_ready = tags.iter().all(|tag| tag.state == TagState::Ready);
            if space == "late" && model.is_cell_kept && tags.iter().all(|tag| tag.name != "cell") {
                return Err(format!("a declaration of another process removed a tag: : {tags:?}"));
            }
            if tags.is_empty() || !is_ready {
                if space == "tagged" || model.is_late_ready {
                    return Err(format!("{space}: {tags:?}"));
                }
                continue;
            }
            for (name, values) in VALUES {
                for value in values {
                    let mut found = Vec::new();
                    session
                        .find_all(ns, name, Values::Equal(value.as_bytes()), |view| {
                            found.push(utf8(view.key()));
                            true
                        })
                        .map_err(|e| format!("{name}={value}: {e}"))?;
                    self.compare_lookup((space, name, value), &found)?;
                    if name != "guti" {
                        let count = session
                            .count_tagged(ns, name, value.as_bytes())
                            .map_err(|e| format!("count of {value}: {e}"))?;
                        if count != model.count(space, name, value) {
                            return Err(format!("{space}: {count} records have {name}={value}"));
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn compare_lookup(
        &self,
        (space, name, value): (&str, &str, &str),
        found: &[String],
    ) -> Result<(), String> {
        let tag = format!("{name}={value}");
        let has = |text: &str| {
            let (_, tags) = text.split_once('{').unwrap_or_default();
            let (tags, _) = tags.split_once('}').unwrap_or_default();
            tags.split(' ').any(|other| other == tag)
        };
        let all = self.seen.iter().filter(|(key, _)| key.starts_with(space));
        let expected: Vec<&String> =
            all.filter(|(_, text)| has(text)).map(|(key, _)| key).collect();
        if expected.iter().map(|key| key.as_str()).ne(found.iter().map(String::as_str)) {
            return Err(format!("{space}: {tag} leads to {found:?}, not to {expected:?}"));
        }
        Ok(())
    }
}
