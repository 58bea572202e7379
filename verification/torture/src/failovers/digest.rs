//! Digests of copies: equal exactly if all records are, with their versions.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nearstate_local_cluster::wait_until;

use crate::error_context::ErrorContext as _;
use crate::region_access::open_session;

/// Differences that an error shows.
const SHOWN_MAX: usize = 5;

/// A record of a copy, without its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordDigest {
    version: u64,
    expires_ms: u64,
    value_hash: u64,
}

/// All records, by the namespace's name and the key.
pub(super) type CopyDigest = BTreeMap<(String, String), RecordDigest>;

/// Records that differ between two copies, at most a few.
pub(super) fn differences(one: &CopyDigest, other: &CopyDigest) -> Vec<String> {
    let keys = one.keys().chain(other.keys().filter(|key| !one.contains_key(*key)));
    let differing = keys.filter(|key| one.get(*key) != other.get(*key));
    let shown = differing.map(|key| format!("{key:?}: {:?}, {:?}", one.get(key), other.get(key)));
    shown.take(SHOWN_MAX).collect()
}

/// The digest of all namespaces of a copy that a log has.
fn of(region: &Path) -> Result<CopyDigest, String> {
    let failed = |error: nearstate_store::Error| format!("{}: {error}", region.display());
    let session = open_session(region).context(region.display())?;
    let mut all = CopyDigest::new();
    for (name, namespace) in session.namespaces().map_err(failed)? {
        let is_logged = session.is_logged(namespace).map_err(failed)?;
        if !is_logged && !session.is_followed(namespace).map_err(failed)? {
            continue;
        }
        let mut scan = session.scan(namespace).map_err(failed)?;
        while let Some(view) = scan.next().map_err(failed)? {
            let mut hasher = DefaultHasher::new();
            view.bytes().hash(&mut hasher);
            let (version, expires_ms) = (view.version(), view.expires_ms());
            let digest = RecordDigest { version, expires_ms, value_hash: hasher.finish() };
            let key = String::from_utf8_lossy(view.key()).into_owned();
            all.insert((name.clone(), key), digest);
        }
    }
    Ok(all)
}

/// Waits until all copies are equal. Returns their digests, also if they are not.
pub(super) fn wait_equal(
    regions: &[PathBuf],
    wait_max: Duration,
) -> (Result<(), String>, Vec<CopyDigest>) {
    let mut digests = Vec::new();
    let waited = wait_until("all copies are equal", wait_max, || {
        digests = regions.iter().map(|region| of(region)).collect::<Result<_, _>>()?;
        Ok(digests.iter().all(|digest| Some(digest) == digests.first()))
    });
    (waited, digests)
}
