//! Compares the commit stream with the records: each change exactly once, each transaction
//! complete, also those of killed writers that another process completed.

use std::collections::BTreeMap;
use std::path::Path;

use nearstate_store::{Session, StreamItem, StreamedChange};

use crate::content::{KeySpace, TortureKey};
use crate::region_access::open_session;
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
pub(crate) fn compare(path: &Path, was_there: fn(TortureKey) -> bool) -> Result<(), String> {
    let context = |e: nearstate_store::Error| format!("commit stream: {e}");
    let session = open_session(path)?;
    let streamed = read(&session)?;
    let spaces = KeySpaces::open(&session, 0)?;
    let mut records = BTreeMap::new();
    for space in STREAMED {
        let mut scan = session.scan(spaces.of(space)).map_err(context)?;
        while let Some(view) = scan.next().map_err(context)? {
            let key = TortureKey::parse(view.key()).ok_or("a key that was never written")?;
            records.insert(key, (view.version(), view.bytes().to_vec()));
        }
    }
    for (key, (version, value)) in &records {
        match streamed.get(key) {
            None if was_there(*key) => {}
            Some(last) if last.version == *version && last.value.as_ref() == Some(value) => {}
            last => {
                let last = last.map(|last| (last.version, last.value.is_some()));
                return Err(format!("{key:?} has version {version}; last in the stream: {last:?}"));
            }
        }
    }
    for (key, last) in &streamed {
        if last.value.is_some() && !records.contains_key(key) {
            return Err(format!("{key:?} is absent; last in the stream: version {}", last.version));
        }
    }
    Ok(())
}

/// The last change of each key in the order of versions. A deletion follows the version that it
/// deleted.
fn read(session: &Session) -> Result<BTreeMap<TortureKey, Last>, String> {
    let context = |e: nearstate_store::Error| format!("commit stream: {e}");
    let mut all: BTreeMap<(TortureKey, u64, bool), Option<Vec<u8>>> = BTreeMap::new();
    let mut stream = session.commit_stream().map_err(context)?;
    while let Some(item) = stream.next().map_err(context)? {
        let StreamItem::Transaction(entry) = item else {
            return Err(format!("commit stream: {item:?}, although it was not full"));
        };
        let mut pairs = 0;
        for record in entry.records() {
            let record = record.map_err(|damage| damage.0.to_owned())?;
            let key = TortureKey::parse(record.key)
                .ok_or("a key in the stream that was never written")?;
            pairs += u32::from(key.space == KeySpace::Pair);
            let value = match record.change {
                StreamedChange::Put { value, .. } => Some(value.to_vec()),
                StreamedChange::Deleted { .. } => None,
                StreamedChange::Patched { .. } | StreamedChange::Elements { .. } => {
                    return Err(format!("{key:?}: in the stream as a patch"));
                }
            };
            let id = (key, record.version, value.is_none());
            if all.insert(id, value).is_some() {
                return Err(format!("{key:?}: version {} is in the stream twice", record.version));
            }
        }
        if pairs % 2 != 0 {
            return Err(format!("half of a transaction in the stream: number {}", entry.number));
        }
    }
    // Later changes replace earlier ones.
    Ok(all.into_iter().map(|((key, version, _), value)| (key, Last { version, value })).collect())
}
