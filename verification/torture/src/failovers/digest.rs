//! Digests of copies: equal exactly if all records are, with their versions.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::Path;

use nearstate_store::Region;

/// Records and the sum of their hashes, by the name of the namespace.
pub(super) type CopyDigest = BTreeMap<String, (u64, u64)>;

/// The digest of all namespaces of a copy that a log has.
pub(super) fn of(region: &Path) -> Result<CopyDigest, String> {
    let failed = |error: nearstate_store::Error| format!("{}: {error}", region.display());
    let session = Region::attach(region).and_then(|region| region.session()).map_err(failed)?;
    let mut all = CopyDigest::new();
    for (name, namespace) in session.namespaces().map_err(failed)? {
        let is_logged = session.is_logged(namespace).map_err(failed)?;
        if !is_logged && !session.is_followed(namespace).map_err(failed)? {
            continue;
        }
        let (mut records, mut sum) = (0, 0_u64);
        let mut scan = session.scan(namespace).map_err(failed)?;
        while let Some(view) = scan.next().map_err(failed)? {
            let mut hasher = DefaultHasher::new();
            (view.key(), view.bytes(), view.version(), view.expires_ms()).hash(&mut hasher);
            records += 1;
            // The order of a scan depends on the index.
            sum = sum.wrapping_add(hasher.finish());
        }
        all.insert(name, (records, sum));
    }
    Ok(all)
}
