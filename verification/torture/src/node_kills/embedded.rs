//! A process that has attached the region and writes to it, whether a node serves it or not.
//!
//! Operation n is a function of n. The process appends a byte to a file before each operation and
//! one after it, so the length of the file is the number of begun and of acknowledged operations,
//! at any time.

use std::fs::OpenOptions;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nearstate_store::{Error, Kind, Namespace, Schema, Session};

use super::shared_counters::{NAMESPACE, SharedCounter};
use crate::error_context::ErrorContext as _;
use crate::region_access::open_session;
use crate::rng::{Rng, mix};

/// Keys of each kind.
pub(super) const KEYS: u64 = 10;
/// Kinds of operations, executed in turn.
const KINDS: u64 = 4;
/// One in so many operations changes a given key.
const STRIDE: u64 = KINDS * KEYS;
/// The longest pause between two operations: clients and readers need the processor as well.
const PAUSE_US_MAX: u64 = 200;

/// What an operation changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EmbeddedKind {
    /// Puts one record.
    Single,
    /// Puts two records in a transaction.
    Pair,
    /// Puts and deletes one record in turn.
    Toggle,
}

impl EmbeddedKind {
    /// All kinds that change records.
    pub(super) const ALL: [Self; 3] = [Self::Single, Self::Pair, Self::Toggle];

    const fn number(self) -> u64 {
        match self {
            Self::Single => 0,
            Self::Pair => 1,
            Self::Toggle => 2,
        }
    }

    /// The keys that one operation changes.
    pub(super) fn keys(self, key: u64) -> Vec<String> {
        match self {
            Self::Single => vec![format!("single {key}")],
            Self::Pair => vec![format!("left {key}"), format!("right {key}")],
            Self::Toggle => vec![format!("toggle {key}")],
        }
    }

    /// The first operation on a key.
    const fn first(self, key: u64) -> u64 {
        key * KINDS + self.number()
    }

    /// The last operation on a key among the first `count`.
    const fn last(self, key: u64, count: u64) -> Option<u64> {
        let first = self.first(key);
        match count.checked_sub(first + 1) {
            Some(rest) => Some(first + rest / STRIDE * STRIDE),
            None => None,
        }
    }

    const fn is_put(self, operation: u64) -> bool {
        !matches!(self, Self::Toggle) || (operation / STRIDE).is_multiple_of(2)
    }

    /// Whether a record may have the state that was read: `found` is the operation that put it, or
    /// `None` if it is absent; `acked` operations were acknowledged before the read, and `begun`
    /// had begun before its end.
    pub(super) fn may_be(self, key: u64, found: Option<u64>, acked: u64, begun: u64) -> bool {
        let from = self.last(key, acked);
        let Some(until) = self.last(key, begun) else { return found.is_none() };
        let first = from.unwrap_or(self.first(key));
        let mut possible = (first..=until).step_by(usize::try_from(STRIDE).unwrap_or(1));
        match found {
            Some(found) => possible.any(|at| at == found) && self.is_put(found),
            None => from.is_none() || possible.any(|at| !self.is_put(at)),
        }
    }
}

/// The number of counter increments among the first `count` operations.
pub(super) const fn increments_of(count: u64) -> u64 {
    count / KINDS
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WriterProgress {
    pub(super) acked: u64,
    pub(super) begun: u64,
}

fn path_of(folder: &Path, number: u16) -> PathBuf {
    folder.join(format!("embedded-{number}"))
}

/// Reads a writer's progress.
pub(super) fn progress(folder: &Path, number: u16) -> Result<WriterProgress, String> {
    let path = path_of(folder, number);
    let found = std::fs::metadata(&path).context(path.display())?;
    Ok(WriterProgress { acked: found.len() / 2, begun: found.len().div_ceil(2) })
}

/// Records that no operation has begun.
pub(super) fn begin(folder: &Path, number: u16) -> Result<(), String> {
    let path = path_of(folder, number);
    std::fs::write(&path, b"").context(path.display())
}

/// The namespace that only this process writes to.
pub(super) fn namespace(number: u16) -> String {
    format!("embedded {number}")
}

fn content(number: u16, operation: u64) -> Vec<u8> {
    let start = format!("{number} {operation} ");
    let size = usize::try_from(mix(operation) % 3000).unwrap_or(0);
    let mut bytes = start.clone().into_bytes();
    bytes.extend(start.bytes().cycle().take(size));
    bytes
}

/// The operation that put these bytes.
pub(super) fn parse_content(number: u16, bytes: &[u8]) -> Result<u64, String> {
    let words = String::from_utf8_lossy(bytes);
    let operation = words.split(' ').nth(1).and_then(|word| word.parse().ok());
    match operation {
        Some(operation) if content(number, operation) == bytes => Ok(operation),
        _ => Err(format!("embedded {number}: torn bytes: {}", bytes.escape_ascii())),
    }
}

struct EmbeddedWriter {
    number: u16,
    session: Session,
    own: Namespace,
    shared: Namespace,
}

/// Opens the namespace of the counters with the schema that the node uses.
fn shared(session: &Session) -> Result<Namespace, String> {
    let schema = Schema { kind: Kind::Mixed, ..Schema::default() };
    session.namespace(NAMESPACE, &schema).context(NAMESPACE)
}

/// Writes until its standard input ends.
pub(crate) fn write(folder: &Path, number: u16, rng: &mut Rng) -> Result<(), String> {
    let session = open_session(&folder.join("region"))?;
    let name = namespace(number);
    let own = session.namespace(&name, &Schema::default()).context(name)?;
    let shared = shared(&session)?;
    let writer = EmbeddedWriter { number, session, own, shared };
    let is_ending = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&is_ending);
    std::thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        flag.store(true, Ordering::Relaxed);
    });
    let path = path_of(folder, number);
    let context = |e: std::io::Error| format!("{}: {e}", path.display());
    let mut file = OpenOptions::new().append(true).open(&path).map_err(context)?;
    let mut operation = progress(folder, number)?.begun;
    while !is_ending.load(Ordering::Relaxed) {
        file.write_all(b"b").map_err(context)?;
        writer.operate(operation).map_err(|e| format!("operation {operation}: {e}"))?;
        file.write_all(b"a").map_err(context)?;
        operation += 1;
        std::thread::sleep(Duration::from_micros(rng.u64(..PAUSE_US_MAX)));
    }
    Ok(())
}

impl EmbeddedWriter {
    fn operate(&self, operation: u64) -> Result<(), Error> {
        let key = operation / KINDS % KEYS;
        let Some(kind) = EmbeddedKind::ALL.into_iter().find(|k| k.number() == operation % KINDS)
        else {
            return self.increment();
        };
        let (keys, bytes) = (kind.keys(key), content(self.number, operation));
        self.session.transact(|txn| {
            for key in &keys {
                if kind.is_put(operation) {
                    txn.put(self.own, key.as_bytes(), &bytes)?;
                } else {
                    txn.delete(self.own, key.as_bytes())?;
                }
            }
            Ok(())
        })
    }

    /// Increments as `INCR` does.
    fn increment(&self) -> Result<(), Error> {
        let key = SharedCounter::All.key().as_bytes();
        self.session.transact(|txn| {
            let record = txn.get(self.shared, key)?;
            let text = record.map(|record| String::from_utf8_lossy(record.bytes()).into_owned());
            let number: u64 = match text {
                Some(text) => text.parse().map_err(|e| Error::BadArgument {
                    detail: format!("the counter is {text:?}: {e}"),
                })?,
                None => 0,
            };
            txn.put(self.shared, key, (number + 1).to_string().as_bytes())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_states_between_acknowledged_and_begun_operations_are_accepted() {
        let toggle = |found, acked, begun| EmbeddedKind::Toggle.may_be(0, found, acked, begun);
        // Operations 2, 42, 82: put, delete, put.
        assert!(toggle(None, 0, 0) && toggle(None, 0, 3) && !toggle(None, 3, 3));
        assert!(toggle(Some(2), 3, 3) && toggle(Some(2), 3, 43) && !toggle(Some(2), 43, 43));
        assert!(toggle(None, 3, 43) && toggle(None, 43, 43) && toggle(None, 43, 83));
        assert!(!toggle(Some(42), 43, 43) && toggle(Some(82), 43, 83) && !toggle(None, 83, 83));
        let single = |found, acked, begun| EmbeddedKind::Single.may_be(1, found, acked, begun);
        assert!(single(Some(4), 5, 44) && single(Some(44), 5, 45) && !single(Some(44), 5, 44));
        assert!(!single(Some(4), 45, 45) && !single(None, 5, 45) && single(None, 4, 45));
        assert_eq!((increments_of(3), increments_of(4), increments_of(8)), (0, 1, 2));
    }

    #[test]
    fn torn_bytes_are_detected() {
        let mut bytes = content(1, 5);
        assert_eq!(parse_content(1, &bytes), Ok(5));
        assert!(parse_content(2, &bytes).is_err());
        bytes.pop();
        assert!(parse_content(1, &bytes).is_err());
    }
}
