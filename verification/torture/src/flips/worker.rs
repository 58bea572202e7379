//! A process that uses a region in which a bit is flipped. It knows what its own records contain,
//! and verifies every byte of what it reads.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use nearstate_store::{
    BlockChange, Condition, Error, Kind, Metadata, Namespace, Region, Schema, Session, TagSchema,
};

use crate::content::{ContentStamp, KeySpace, TortureKey, verify};
use crate::rng::Rng;

/// Processes that use the region. The last one attaches after the flip.
pub(crate) const WORKERS: u16 = 3;

/// Records of each process in each space.
const RECORDS: u32 = 32;

/// The spaces: values, blocks, counters, values that are written in pairs, values with tags.
pub(crate) const SPACES: usize = 5;

const KEY_SPACES: [KeySpace; SPACES] =
    [KeySpace::Own, KeySpace::Blocks, KeySpace::Count, KeySpace::Pair, KeySpace::Hot];

/// Operations after the flip.
const OPERATIONS: u32 = 1500;

/// After this many answers of a kind a process has seen enough of the damage.
const STALLED_MAX: u32 = 2;
const ERRORS_MAX: u32 = 120;

/// The name of a space's namespace.
pub(crate) fn namespace_name(space: usize) -> &'static str {
    ["values", "blocks", "counters", "pairs", "tagged"].get(space).copied().unwrap_or_default()
}

fn key_of(space: usize, writer: u16, number: u32) -> TortureKey {
    let space = KEY_SPACES.get(space).copied().unwrap_or(KeySpace::Own);
    TortureKey { space, writer, number }
}

/// Every key of a space.
pub(crate) fn possible_keys(space: usize) -> impl Iterator<Item = Vec<u8>> {
    (0..WORKERS).flat_map(move |writer| {
        (0..RECORDS).map(move |number| key_of(space, writer, number).bytes())
    })
}

pub(crate) fn progress_path(folder: &Path, number: u16) -> PathBuf {
    folder.join(format!("progress-{number}"))
}

pub(crate) fn report_path(folder: &Path, number: u16) -> PathBuf {
    folder.join(format!("report-{number}"))
}

/// Exists as soon as the bit is flipped.
pub(crate) fn flipped_path(folder: &Path) -> PathBuf {
    folder.join("flipped")
}

/// The content of a record: none, or its fingerprints.
type Content = Option<[u64; 2]>;

/// A process, and what it knows.
struct FlipWorker {
    session: Session,
    number: u16,
    namespaces: [Namespace; SPACES],
    folder: PathBuf,
    progress: File,
    done: u64,
    /// What each own record may contain: more than one content after a failed write.
    contents: HashMap<(usize, u32), Vec<Content>>,
    seq: u64,
    /// Spaces and numbers that are not used any more: a process waits a second for each of them.
    avoided: Vec<(usize, u32)>,
    stalled: u32,
    errors: HashMap<String, u32>,
    report: File,
}

/// The name of the variant of an error.
fn name_of(error: &Error) -> String {
    let text = format!("{error:?}");
    text.split(|character: char| !character.is_alphanumeric()).next().unwrap_or_default().to_owned()
}

/// A child's role: works until the bit was flipped, and for some operations more. What it finds is
/// in its report.
pub(crate) fn play(folder: &Path, number: u16, rng: &mut Rng) -> Result<(), String> {
    let io = |e: std::io::Error| e.to_string();
    let mut report = File::create(report_path(folder, number)).map_err(io)?;
    let progress = File::create(progress_path(folder, number)).map_err(io)?;
    let opened = Region::attach(&folder.join("region")).and_then(|region| {
        let session = region.session()?;
        let namespaces = open_namespaces(&session)?;
        Ok((session, namespaces))
    });
    let (session, namespaces) = match opened {
        Ok(opened) => opened,
        Err(error) => return writeln!(report, "refused {error}").map_err(io),
    };
    let mut worker = FlipWorker {
        session,
        number,
        namespaces,
        folder: folder.to_owned(),
        progress,
        done: 0,
        contents: HashMap::new(),
        seq: 0,
        avoided: Vec::new(),
        stalled: 0,
        errors: HashMap::new(),
        report,
    };
    worker.run(rng)
}

fn open_namespaces(session: &Session) -> nearstate_store::Result<[Namespace; SPACES]> {
    let tag = |name: &str| TagSchema { name: name.to_owned(), ..TagSchema::default() };
    let tags = vec![TagSchema { is_unique: true, ..tag("id") }, tag("cell")];
    let open = |space: usize| {
        let (kind, tags) = match space {
            1 => (Kind::Blocks, Vec::new()),
            2 => (Kind::Counters, Vec::new()),
            4 => (Kind::Value, tags.clone()),
            _ => (Kind::Value, Vec::new()),
        };
        session.namespace(namespace_name(space), &Schema { kind, tags })
    };
    Ok([open(0)?, open(1)?, open(2)?, open(3)?, open(4)?])
}

impl FlipWorker {
    fn run(&mut self, rng: &mut Rng) -> Result<(), String> {
        for space in 0..SPACES {
            for number in 0..RECORDS {
                self.write(space, number, rng)?;
            }
        }
        let mut left = OPERATIONS;
        while left > 0
            && self.stalled < STALLED_MAX
            && self.errors.values().sum::<u32>() < ERRORS_MAX
        {
            if left < OPERATIONS || self.done.is_multiple_of(16) && self.is_flipped() {
                left -= 1;
            }
            self.random(rng)?;
        }
        for space in 0..SPACES {
            for number in 0..RECORDS {
                self.read_own(space, number)?;
            }
        }
        let errors: Vec<String> =
            self.errors.iter().map(|(name, count)| format!("{name} {count}")).collect();
        self.note(&format!("errors {}", errors.join(" ")))
    }

    fn is_flipped(&self) -> bool {
        flipped_path(&self.folder).exists()
    }

    fn note(&mut self, line: &str) -> Result<(), String> {
        writeln!(self.report, "{}", line.replace('\n', " ")).map_err(|e| e.to_string())
    }

    /// One more operation has answered.
    fn tick(&mut self) -> Result<(), String> {
        self.done += 1;
        self.progress.write_all_at(&self.done.to_le_bytes(), 0).map_err(|e| e.to_string())
    }

    /// Counts an answer. `None` if it is an error.
    fn answer<T>(
        &mut self,
        place: Option<(usize, u32)>,
        answer: nearstate_store::Result<T>,
    ) -> Result<Option<T>, String> {
        self.tick()?;
        match answer {
            Ok(answer) => Ok(Some(answer)),
            Err(error) => {
                let count = self.errors.entry(name_of(&error)).or_default();
                *count += 1;
                if *count == 1 {
                    self.note(&format!("first {error}"))?;
                }
                if matches!(error, Error::Stalled { .. }) {
                    self.stalled += 1;
                    self.avoided.extend(place);
                }
                Ok(None)
            }
        }
    }

    fn random(&mut self, rng: &mut Rng) -> Result<(), String> {
        let (space, number) = (rng.usize(..SPACES), rng.u32(..RECORDS));
        if self.avoided.contains(&(space, number)) {
            return self.tick();
        }
        match rng.u32(..100) {
            0..40 => self.write(space, number, rng),
            40..55 => self.delete(space, number),
            55..80 => self.read_own(space, number),
            80..97 => self.read_other(space, number, rng),
            97 => {
                let namespace = self.namespaces.get(space).copied();
                let Some(namespace) = namespace else { return Ok(()) };
                let counted = self.session.count(namespace);
                self.answer(None, counted).map(drop)
            }
            98 => {
                let collected = self.session.collect_expired(10).map(drop);
                self.answer(None, collected).map(drop)
            }
            _ => self.defragment(),
        }
    }

    fn defragment(&mut self) -> Result<(), String> {
        let done = self.session.defragment(1).and_then(|begun| match begun {
            Some(mut begun) => begun.step(4096).map(drop),
            None => Ok(()),
        });
        self.answer(None, done).map(drop)
    }

    fn namespace(&self, space: usize) -> Namespace {
        let [first, ..] = self.namespaces;
        self.namespaces.get(space).copied().unwrap_or(first)
    }

    /// A new content of a record, and its bytes.
    fn content(&mut self, key: TortureKey, block: u8, rng: &mut Rng) -> (u64, Vec<u8>) {
        self.seq += 1;
        let len = match rng.u32(..20) {
            0 => rng.u32(48..20_000),
            1..4 => rng.u32(48..4000),
            _ => rng.u32(48..600),
        };
        let stamp = ContentStamp { key, block, writer: self.number, seq: self.seq, len };
        let mut bytes = Vec::new();
        stamp.fill(&mut bytes);
        (stamp.fingerprint(), bytes)
    }

    /// A write was executed, or it has failed and may have been executed.
    fn written(&mut self, place: (usize, u32), new: Content, is_done: bool) {
        let contents = self.contents.entry(place).or_insert_with(|| vec![None]);
        if is_done {
            contents.clear();
        }
        contents.push(new);
    }

    fn write(&mut self, space: usize, number: u32, rng: &mut Rng) -> Result<(), String> {
        let key = key_of(space, self.number, number);
        let (bytes, namespace) = (key.bytes(), self.namespace(space));
        match space {
            1 => {
                let (first, one) = self.content(key, 0, rng);
                let (second, other) = self.content(key, 1, rng);
                let changes = [
                    BlockChange { name: "one", bytes: Some(&one) },
                    BlockChange { name: "other", bytes: Some(&other) },
                ];
                let done = self.session.patch(namespace, &bytes, &changes, Condition::Always);
                let done = self.answer(Some((space, number)), done)?;
                self.written((space, number), Some([first, second]), done.is_some());
            }
            2 => {
                let before = self.contents.get(&(space, number)).cloned();
                let sums = before.unwrap_or_else(|| vec![None]).into_iter();
                let sums: Vec<u64> = sums.map(|sum| sum.map_or(0, |[sum, _]| sum)).collect();
                let done = self.session.add(namespace, &bytes, 1);
                let is_done = self.answer(Some((space, number)), done)?.is_some();
                let place = (space, number);
                let old = self.contents.remove(&place).unwrap_or_else(|| vec![None]);
                let old = if is_done { None } else { Some(old) };
                let new = sums.iter().map(|sum| Some([sum + 1, 0]));
                let all = old.into_iter().flatten().chain(new).collect();
                self.contents.insert(place, all);
            }
            3 => self.write_pair(number, rng)?,
            4 => {
                let (print, value) = self.content(key, 0, rng);
                let id = format!("{}-{number}", self.number);
                let cell = (self.seq % 5).to_le_bytes();
                let tags: [(&str, &[u8]); 2] = [("id", id.as_bytes()), ("cell", &cell)];
                let metadata = Metadata { tags: &tags, expires_ms: 0 };
                let done = self
                    .session
                    .transact(|txn| txn.put_with_metadata(namespace, &bytes, &value, metadata));
                let done = self.answer(Some((space, number)), done)?;
                self.written((space, number), Some([print, 0]), done.is_some());
            }
            _ => {
                let (print, value) = self.content(key, 0, rng);
                let done = self.session.put(namespace, &bytes, &value);
                let done = self.answer(Some((space, number)), done)?;
                self.written((space, number), Some([print, 0]), done.is_some());
            }
        }
        Ok(())
    }

    /// Two records in one transaction, of which one is read first.
    fn write_pair(&mut self, number: u32, rng: &mut Rng) -> Result<(), String> {
        let (namespace, other) = (self.namespace(3), (number + 1) % RECORDS);
        let keys = [number, other].map(|number| key_of(3, self.number, number));
        let contents = keys.map(|key| self.content(key, 0, rng));
        let done = self.session.transact(|txn| {
            for (key, (_, bytes)) in keys.iter().zip(&contents) {
                drop(txn.get(namespace, &key.bytes())?);
                txn.put(namespace, &key.bytes(), bytes)?;
            }
            Ok::<(), Error>(())
        });
        let is_done = self.answer(Some((3, number)), done)?.is_some();
        for (key, (print, _)) in keys.iter().zip(&contents) {
            self.written((3, key.number), Some([*print, 0]), is_done);
        }
        Ok(())
    }

    fn delete(&mut self, space: usize, number: u32) -> Result<(), String> {
        let key = key_of(space, self.number, number).bytes();
        let done = self.session.delete(self.namespace(space), &key);
        let done = self.answer(Some((space, number)), done)?;
        self.written((space, number), None, done.is_some());
        Ok(())
    }

    /// Reads a record, and verifies its bytes.
    fn read(
        &self,
        space: usize,
        key: TortureKey,
    ) -> nearstate_store::Result<Result<Content, String>> {
        let (namespace, bytes) = (self.namespace(space), key.bytes());
        if space == 2 {
            let sum = self.session.read_counter(namespace, &bytes)?;
            return Ok(Ok(sum.map(|sum| [sum.cast_unsigned(), 0])));
        }
        let Some(view) = self.session.get(namespace, &bytes)? else { return Ok(Ok(None)) };
        let prints = if space == 1 {
            let of = |block: u8, name: &str| match view.block(name) {
                Some(bytes) => verify(key, block, bytes).map(|(print, _)| print),
                None => Err(format!("no block {name}")),
            };
            of(0, "one").and_then(|first| Ok([first, of(1, "other")?]))
        } else {
            verify(key, 0, view.bytes()).map(|(print, _)| [print, 0])
        };
        Ok(prints.map(Some))
    }

    fn read_own(&mut self, space: usize, number: u32) -> Result<(), String> {
        if self.avoided.contains(&(space, number)) {
            return Ok(());
        }
        let key = key_of(space, self.number, number);
        let read = self.read(space, key);
        let Some(read) = self.answer(Some((space, number)), read)? else { return Ok(()) };
        let known = self.contents.entry((space, number)).or_insert_with(|| vec![None]);
        let problem = match &read {
            Err(problem) => problem.clone(),
            Ok(content) if known.contains(content) => {
                *known = vec![*content];
                return Ok(());
            }
            Ok(None) => format!("is missing, not {known:x?}"),
            Ok(Some(content)) => format!("has the content {content:x?}, not {known:x?}"),
        };
        // It is reported once.
        if let Ok(content) = read {
            *known = vec![content];
        } else {
            self.avoided.push((space, number));
        }
        self.wrong(space, key, &problem)
    }

    fn read_other(&mut self, space: usize, number: u32, rng: &mut Rng) -> Result<(), String> {
        let key = key_of(space, rng.u16(..WORKERS), number);
        if key.writer == self.number {
            return self.read_own(space, number);
        }
        let read = self.read(space, key);
        match self.answer(Some((space, number)), read)? {
            Some(Err(problem)) => self.wrong(space, key, &problem),
            _ => Ok(()),
        }
    }

    fn wrong(&mut self, space: usize, key: TortureKey, problem: &str) -> Result<(), String> {
        let text = String::from_utf8_lossy(&key.bytes()).into_owned();
        self.note(&format!("wrong {space} {text} {problem}"))
    }
}
