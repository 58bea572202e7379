//! Keys, patterns and timeouts in the form that servers expect.

use std::time::Duration;

use crate::error::{Error, Result};

/// Default time limit of a connection attempt, a write or a reply.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);

/// Keys of one step of a scan, and of one removal: about a millisecond of the server's time.
pub(crate) const WALK: usize = 1000;

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
