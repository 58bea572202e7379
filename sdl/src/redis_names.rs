//! How keys, patterns and times are written for servers.

use std::time::Duration;

use crate::error::{Error, Result};

/// How long a connection attempt, a write or an answer may take, unless the URL says otherwise.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);

/// Keys that one step of a walk asks for, and that one removal takes away: about a millisecond of
/// the server's time.
pub(crate) const WALK: usize = 1000;

/// Reads `250ms` or `3s`.
pub(crate) fn duration(value: &str) -> Result<Duration> {
    let read = match value.strip_suffix("ms") {
        Some(number) => number.parse().map(Duration::from_millis).ok(),
        None => value.strip_suffix('s').and_then(|n| n.parse().map(Duration::from_secs).ok()),
    };
    let refused = || Error::refused(format!("timeout={value}: give 250ms, 3s or the like"));
    read.filter(|timeout| !timeout.is_zero()).ok_or_else(refused)
}

/// The key that SDL clients use for a record.
pub(crate) fn redis_key(namespace: &str, key: &[u8]) -> Vec<u8> {
    [b"{", namespace.as_bytes(), b"},", key].concat()
}

/// Bytes as a glob that matches only them. (The clients do not do this: their `removeAll` of a
/// namespace `a*` empties others.)
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
