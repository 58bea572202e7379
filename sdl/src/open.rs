//! Opens the back-end that a URL names.

use crate::error::{Error, Result};
use crate::local_storage::LocalStorage;
#[cfg(feature = "redis")]
use crate::redis_storage::RedisStorage;
use crate::region_storage::RegionStorage;
use crate::storage::SyncStorage;

/// Opens a back-end.
///
/// A region is attached at once, and created first if the URL says so. A connection to a Redis is
/// opened by the first operation: while the server is not reachable, operations return
/// `NotConnected`, and [`SyncStorage::wait_ready`] waits for it.
///
/// - `region:/path[?option=value&..]`: the path ends at the first `?`. Options, all of them but
///   `create` and `any_owner` for a region that is made by this call: `create=1` (attach, and
///   create it first if there is none), `max=4GiB` (the most bytes of records and index; also
///   `KiB`, `MiB`, `TiB` or plain bytes; default 1 GiB), `page=2MiB` (default `4KiB`),
///   `populate=1` (take all memory now), `numa=bind:0,1`, `numa=interleave:0,1` or
///   `numa=preferred:0`, `pin=auto`, `pin=asymmetric` or `pin=fenced`, `mode=0660` (octal, default
///   `0600`), `any_owner=1` (also accept a file, a directory or a symbolic link that belongs to a
///   user other than this one and root; without `create=1` too).
/// - `local:/path[?option=value&..]`: the Unix socket of a node on this host. The node grants its
///   region, which is then read and written directly, also while the node restarts. A client that
///   may not have the region gets a ring in shared memory, and reconnects by itself. If the node is
///   restarted with another region, that one is used from then on; while there is no node and the
///   file of the old region was removed, operations return `NotConnected`. Options: `timeout=3s`,
///   `user=name` and `password=word` (without `&`), `way=region` or `way=ring` (that one only),
///   `any_owner=1` (also use the node of a user other than this one and root).
///   [`crate::LocalStorage::access`] returns which one it is.
/// - `redis://[user:password@]host[:port][/database][?timeout=3s]`
/// - `redis+unix:///path[?db=1&timeout=3s]`
///
///   `timeout` limits each connection attempt, each write and each reply; milliseconds (`250ms`) or
///   seconds (`3s`), default `5s`.
///
/// # Errors
/// `RejectedBySdl` for an invalid URL; for a region also `NotConnected` (no such file, no
/// permission) and `RejectedByBackend` (not a region, a newer format, no room).
pub fn open(url: &str) -> Result<Box<dyn SyncStorage>> {
    match url.split_once(':') {
        Some(("region", rest)) => Ok(Box::new(RegionStorage::open(rest)?)),
        Some(("local", rest)) => Ok(Box::new(LocalStorage::open(rest)?)),
        Some(("near", rest)) => Err(Error::refused(format!(
            "the scheme near: is not supported any more; give local:{rest}"
        ))),
        #[cfg(feature = "redis")]
        Some(("redis" | "redis+unix", _)) => Ok(Box::new(RedisStorage::open(url)?)),
        _ => Err(Error::refused(format!(
            "{url:?} names no back-end; give region:/path, local:/path, redis://host:port or \
             redis+unix:///path"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn an_invalid_url_is_an_error_with_the_valid_forms() {
        for url in
            ["", "region", "/dev/shm/x", "mysql://h", "redis:", "redis://h:port", "rediss://h"]
        {
            let error = open(url).unwrap_err();
            assert_eq!(error.kind, ErrorKind::RejectedBySdl, "{url}: {error}");
        }
    }

    #[test]
    fn the_error_for_the_old_scheme_names_the_new_one() {
        let error = open("near:/run/nearstate.sock?way=ring").unwrap_err();
        assert_eq!(error.kind, ErrorKind::RejectedBySdl);
        assert!(error.to_string().contains("local:/run/nearstate.sock?way=ring"), "{error}");
    }

    #[test]
    fn a_missing_region_is_not_connected() {
        let error = open("region:/no/such/folder/region").unwrap_err();
        assert_eq!(error.kind, ErrorKind::NotConnected, "{error}");
    }
}
