//! Compares the commit stream with the records: each change exactly once, each transaction
//! complete, also those of killed writers that another process completed.

use std::collections::BTreeMap;
use std::path::Path;

use nearstate_store::{Region, Session, Step, StreamItem};

use crate::content::{KeySpace, RecordKey};
use crate::writer::KeySpaces;

/// Spaces whose changes are streamed.
pub(crate) const STREAMED: [KeySpace; 2] = [KeySpace::Own, KeySpace::Pair];

/// The last change of a key in the stream; the value is `None` if it was deleted.
#[derive(Debug, PartialEq, Eq)]
struct Last {
    version: u64,
    value: Option<Vec<u8>>,
}

/// Reads the whole stream and compares it. `was_there` names the keys that existed before the
/// stream began.
///
/// # Errors
/// What is duplicated, incomplete or missing in the stream.
pub(crate) fn compare(path: &Path, was_there: fn(RecordKey) -> bool) -> Result<(), String> {
    let words = |e: nearstate_store::Error| format!("commit stream: {e}");
    let session = Region::attach(path).and_then(|region| region.session()).map_err(words)?;
    let told = read(&session)?;
    let spaces = KeySpaces::open(&session, 0)?;
    let mut found = BTreeMap::new();
    for space in STREAMED {
        let mut scan = session.scan(spaces.of(space)).map_err(words)?;
        while let Some(view) = scan.next().map_err(words)? {
            let key = RecordKey::parse(view.key()).ok_or("a key that nobody wrote")?;
            found.insert(key, (view.version(), view.bytes().to_vec()));
        }
    }
    for (key, (version, value)) in &found {
        match told.get(key) {
            None if was_there(*key) => {}
            Some(last) if last.version == *version && last.value.as_ref() == Some(value) => {}
            last => {
                let told = last.map(|last| (last.version, last.value.is_some()));
                return Err(format!("{key:?} has version {version}; told last: {told:?}"));
            }
        }
    }
    for (key, last) in &told {
        if last.value.is_some() && !found.contains_key(key) {
            return Err(format!("{key:?} is gone; told last: version {}", last.version));
        }
    }
    Ok(())
}

/// The last change of each key in the order of versions. A deletion follows the version that it
/// deleted.
fn read(session: &Session) -> Result<BTreeMap<RecordKey, Last>, String> {
    let words = |e: nearstate_store::Error| format!("commit stream: {e}");
    let mut all: BTreeMap<(RecordKey, u64, bool), Option<Vec<u8>>> = BTreeMap::new();
    let mut stream = session.commit_stream().map_err(words)?;
    while let Some(told) = stream.next().map_err(words)? {
        let StreamItem::Transaction(entry) = told else {
            return Err(format!("commit stream: {told:?}, and it was not full"));
        };
        let mut pairs = 0;
        for record in entry.records() {
            let record = record.map_err(|damage| damage.0.to_owned())?;
            let key = RecordKey::parse(record.key).ok_or("a key that nobody wrote is told")?;
            pairs += u32::from(key.space == KeySpace::Pair);
            let value = match record.step {
                Step::Put { value, .. } => Some(value.to_vec()),
                Step::Deleted { .. } => None,
                Step::Patched { .. } => return Err(format!("{key:?}: told as patched")),
            };
            let place = (key, record.version, value.is_none());
            if all.insert(place, value).is_some() {
                return Err(format!("{key:?}: version {} is told twice", record.version));
            }
        }
        if pairs % 2 != 0 {
            return Err(format!("half of a transaction is told: number {}", entry.number));
        }
    }
    // Later changes replace earlier ones.
    Ok(all.into_iter().map(|((key, version, _), value)| (key, Last { version, value })).collect())
}
