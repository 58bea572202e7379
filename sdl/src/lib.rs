//! Layer 3: the public Rust API, the Shared Data Layer of paper 1 (sections 3.2 and 4.2.1): records
//! by namespace and key, and one set of operations for every back-end.
//!
//! | URL | back-end |
//! |---|---|
//! | `region:/dev/shm/ue?create=1&max=4GiB` | a region of shared memory on this host |
//! | `local:/run/nearstate.sock` | a node of this host: its region, or a ring in shared memory |
//! | `redis://host:port`, `redis+unix:///path` | a Redis, with the keys of O-RAN's clients |
//!
//! ```
//! # fn main() -> nearstate_sdl::Result<()> {
//! # let dir = tempfile::tempdir().expect("a folder");
//! # let url = format!("region:{}/ue?create=1&max=64MiB", dir.path().display());
//! use nearstate_sdl::SyncStorage as _;
//!
//! // let url = "region:/dev/shm/ue?create=1", or "redis://127.0.0.1:6379"
//! let mut sdl = nearstate_sdl::open(&url)?;
//! sdl.set("subscription", &[(b"id1", b"gold")])?;
//! sdl.set("charging", &[(b"id1", b"17 cents")])?; // the same key, another namespace
//!
//! assert!(sdl.set_if("subscription", b"id1", b"gold", b"silver")?);
//! let records = sdl.get("subscription", &[b"id1", b"id2"])?;
//! assert_eq!(records.get(&b"id1"[..]).map(Vec::as_slice), Some(&b"silver"[..]));
//! assert_eq!(records.len(), 1, "keys without a record are left out");
//! # Ok(())
//! # }
//! ```
//!
//! `redis:`, and `local:` over a ring, have a connection that can be lost during an operation:
//!
//! | operation | after a lost connection |
//! |---|---|
//! | `is_ready`, `get`, `visit` | repeated once, over a new connection |
//! | `list_keys`, `find_keys` | all steps are repeated, at most 3 times |
//! | `set`, `set_if`, `set_if_not_exists` | not repeated: [`ErrorKind::OperationInterrupted`] |
//! | `remove`, `remove_if` | not repeated: `OperationInterrupted` |
//! | `remove_all` | lists as above; a removal is not repeated: `OperationInterrupted` |
//!
//! A change that is interrupted was executed completely or not at all; of `remove_all` some records
//! may be gone. Nothing is repeated after the time limit (`timeout` of the URL): the operation ends
//! with `OperationInterrupted`.
//!
//! [`WatchFd`] gives a watch of a region's records a file descriptor, for event loops.
//!
//! Without the feature `redis`, which is on by default, `redis:` URLs are not supported.
//!
//! The API is synchronous: a call returns when its work is done. `nearstate-store` is the crate for
//! code where nanoseconds count: its views are not copied. [`SyncStorage::visit`] costs little
//! more.

#![forbid(unsafe_code)]

mod open;
#[cfg(feature = "redis")]
pub mod redis_storage;
pub mod local_storage;
pub mod region_storage;
mod remote;
mod region_url;
pub mod storage;
mod validate;
pub mod watch_fd;
pub mod receipt_fd;
pub mod error;

pub use error::{Error, ErrorKind, Result};
pub use local_storage::{LocalAccess, LocalStorage};
pub use open::open;
pub use receipt_fd::{ReceiptFd, ReceiptNotifier};
#[cfg(feature = "redis")]
pub use redis_storage::RedisStorage;
pub use region_storage::RegionStorage;
pub use storage::{KeySet, RecordMap, SyncStorage};
pub use validate::{WRITE_BYTES_MAX, WRITE_RECORDS_MAX};
pub use watch_fd::WatchFd;
