//! What the back-ends that use a server have in common: keys, patterns, timeouts, waiting for it.

use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Result};
use crate::storage::{KeySet, SyncStorage};

/// Interval of attempts while waiting for a server.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Default time limit of a connection attempt, a write or a reply.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);

/// Keys of one step of a scan, and of one removal: about a millisecond of the server's time.
pub(crate) const BATCH_KEYS: usize = 1000;

/// How often a listing is begun. A server that ends each of them cannot be listed.
pub(crate) const LISTINGS_MAX: usize = 4;

/// Parses `250ms` or `3s`.
pub(crate) fn duration(value: &str) -> Result<Duration> {
    let read = match value.strip_suffix("ms") {
        Some(number) => number.parse().map(Duration::from_millis).ok(),
        None => value.strip_suffix('s').and_then(|n| n.parse().map(Duration::from_secs).ok()),
    };
    let refused =
        || Error::refused(format!("timeout={value} is not valid; give a time such as 250ms or 3s"));
    read.filter(|timeout| !timeout.is_zero()).ok_or_else(refused)
}

/// The kind of an error reply with this code: of Redis, and of a node. `None`: a part of the
/// request may have been executed (`PARTIAL`, `LOST`), or the code tells nothing (`ERR`).
pub(crate) fn kind_of_code(code: &str) -> Option<ErrorKind> {
    Some(match code {
        // It can serve later: it loads, runs a script, has lost its master or its slots.
        "LOADING" | "BUSY" | "CLUSTERDOWN" | "MASTERDOWN" => ErrorKind::NotConnected,
        // Refused before anything was changed.
        "NOAUTH" | "NOPERM" | "WRONGPASS" | "OOM" | "READONLY" | "MISCONF" | "NOREPLICAS"
        | "MOVED" | "ASK" | "CROSSSLOT" | "NOSCRIPT" | "TAGTAKEN" | "TRYAGAIN" | "WRONGTYPE" => {
            ErrorKind::RejectedByBackend
        }
        // The change is made, and may be replicated yet.
        "NOTREPLICATED" | "OUTCOMEUNKNOWN" => ErrorKind::OperationInterrupted,
        _ => return None,
    })
}

/// True if waiting may help.
pub(crate) const fn is_unreachable(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::NotConnected | ErrorKind::OperationInterrupted)
}

/// Waits until `server` can serve the namespace, at most `timeout`.
pub(crate) fn wait_ready(
    storage: &mut impl SyncStorage,
    server: &str,
    namespace: &str,
    timeout: Duration,
) -> Result<()> {
    let start = Instant::now();
    while !storage.is_ready(namespace)? {
        let remaining = timeout.saturating_sub(start.elapsed());
        if remaining.is_zero() {
            let detail = format!("{server} was not ready within {timeout:?}: is it running?");
            return Err(Error::refused(detail));
        }
        thread::sleep(remaining.min(RETRY_INTERVAL));
    }
    Ok(())
}

/// Removes any number of keys, in several requests.
pub(crate) fn remove_in_batches(
    storage: &mut impl SyncStorage,
    namespace: &str,
    keys: &KeySet,
) -> Result<()> {
    let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    for (index, batch) in keys.chunks(BATCH_KEYS).enumerate() {
        storage
            .remove(namespace, batch)
            .map_err(|error| if index == 0 { error } else { error.after_partial_execution() })?;
    }
    Ok(())
}

/// The key that SDL clients use for a record.
pub(crate) fn redis_key(namespace: &str, key: &[u8]) -> Vec<u8> {
    [b"{", namespace.as_bytes(), b"},", key].concat()
}

/// A glob pattern that matches exactly these bytes. (The O-RAN clients do not escape: their
/// `removeAll` of a namespace `a*` empties other namespaces, too.)
pub(crate) fn escaped(bytes: &[u8]) -> Vec<u8> {
    let mut glob = Vec::with_capacity(bytes.len());
    for byte in bytes {
        if matches!(byte, b'*' | b'?' | b'[' | b']' | b'\\') {
            glob.push(b'\\');
        }
        glob.push(*byte);
    }
    glob
}
