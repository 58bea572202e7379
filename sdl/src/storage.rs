//! The operations of every back-end: `SyncStorage` of O-RAN's SDL in Rust.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::time::Duration;

use crate::error::Result;

/// Values by key.
pub type RecordMap = BTreeMap<Vec<u8>, Vec<u8>>;

/// A set of keys.
pub type KeySet = BTreeSet<Vec<u8>>;

/// Records by namespace and key, in a region or in a Redis.
///
/// **Namespaces** (paper 1, section 4.2.1) scope keys by type of data. Every namespace can be
/// named, and is empty until a record is written: 1 to 255 bytes without `,`, `{`, `}` and NUL. On
/// a region the first write creates it, unless a program has created it with a schema. **Keys** and
/// **values** are bytes, compared and returned exactly, including NULs and empty values. On every
/// back-end a record has a key of at most 4,096 bytes and a value of at most 128 MiB
/// ([`nearstate_model::limits`]).
///
/// # Atomicity
///
/// | operation | region | node over a ring, Redis |
/// |---|---|---|
/// | `set`, `remove` of several records | all or nothing | all or nothing (see below) |
/// | `get`, `visit` of several records | each record by itself | all at once (`MGET`) |
/// | `set_if`, `set_if_not_exists`, `remove_if` | yes | yes |
/// | `list_keys`, `find_keys`, `remove_all` | no | no |
///
/// A `set` or `remove` of several records is one transaction: no reader sees a part of it, and a
/// process that is killed in the middle leaves all of it or nothing. Its limits are the same on
/// every back-end: [`crate::WRITE_RECORDS_MAX`] records, and [`crate::WRITE_BYTES_MAX`] bytes of
/// keys and values for a `set`. Beyond them the operation answers `RejectedBySdl` and writes
/// nothing. In a namespace with tags, index entries count towards the transaction, too: a region
/// refuses a `remove` that becomes too large by them, and a node over a ring executes it in parts.
/// If one of these fails, the answer is `BackendFailure`.
///
/// Records that others write during a listing or a `remove_all` may be found or missed.
///
/// # Errors
///
/// Every operation may return any [`crate::ErrorKind`]. The kind tells whether records may have
/// changed.
///
/// # Threads
///
/// One thread uses an instance at a time. Open one for each thread.
pub trait SyncStorage: Debug + Send {
    /// Returns whether the namespace can be served now. Waits for a server at most for its timeout.
    ///
    /// # Errors
    /// `RejectedBySdl` for an invalid name, `RejectedByBackend` for a wrong password. An
    /// unreachable server is no error: `false`.
    fn is_ready(&mut self, namespace: &str) -> Result<bool>;

    /// Waits until the namespace can be served, at most `timeout`. An open region is ready.
    ///
    /// # Errors
    /// `RejectedBySdl` when the time is over, or for an invalid name; `RejectedByBackend` for a
    /// wrong password.
    fn wait_ready(&mut self, namespace: &str, timeout: Duration) -> Result<()>;

    /// Writes records, replacing existing ones. If a key occurs several times, its last value is
    /// written. Without pairs nothing is done.
    ///
    /// # Errors
    /// See the trait.
    fn set(&mut self, namespace: &str, pairs: &[(&[u8], &[u8])]) -> Result<()>;

    /// Writes a record if its current value is `old`, byte for byte. Returns false if it has
    /// another value or does not exist.
    ///
    /// # Errors
    /// See the trait. `RejectedBySdl` also if `old` and `new` have more than 255 MiB together;
    /// `RejectedByBackend` if the record is a hash or a set.
    fn set_if(&mut self, namespace: &str, key: &[u8], old: &[u8], new: &[u8]) -> Result<bool>;

    /// Writes a record if it does not exist. Returns false if it exists.
    ///
    /// # Errors
    /// See the trait.
    fn set_if_not_exists(&mut self, namespace: &str, key: &[u8], value: &[u8]) -> Result<bool>;

    /// Reads records: calls `each` with key and value of each existing record, in the order of
    /// `keys`. On a region the value is borrowed from shared memory without a copy or an
    /// allocation; keep `each` short.
    ///
    /// # Errors
    /// See the trait. `each` may have been called for some keys.
    fn visit(
        &mut self,
        namespace: &str,
        keys: &[&[u8]],
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()>;

    /// Reads copies of records. Keys without a record are left out; empty values are included.
    ///
    /// # Errors
    /// See the trait.
    fn get(&mut self, namespace: &str, keys: &[&[u8]]) -> Result<RecordMap> {
        let mut records = RecordMap::new();
        self.visit(namespace, keys, &mut |key, value| {
            records.insert(key.to_vec(), value.to_vec());
        })?;
        Ok(records)
    }

    /// Removes records. A key without a record is no error.
    ///
    /// # Errors
    /// See the trait.
    fn remove(&mut self, namespace: &str, keys: &[&[u8]]) -> Result<()>;

    /// Removes a record if its value is `value`, byte for byte. Returns false if it has another
    /// value or does not exist.
    ///
    /// # Errors
    /// See the trait. `RejectedByBackend` if the record is a hash or a set.
    fn remove_if(&mut self, namespace: &str, key: &[u8], value: &[u8]) -> Result<bool>;

    /// The keys that match a glob pattern, as in Redis: `*`, `?`, `[a-z]`, `[^a]`, `\x`. Linear in
    /// the records of the namespace on a region, and in the records of all namespaces on a Redis.
    ///
    /// # Errors
    /// See the trait.
    fn list_keys(&mut self, namespace: &str, pattern: &[u8]) -> Result<KeySet>;

    /// The keys with this prefix, taken literally. Costs as much as `list_keys`.
    ///
    /// # Errors
    /// See the trait.
    fn find_keys(&mut self, namespace: &str, prefix: &[u8]) -> Result<KeySet>;

    /// Removes all records of the namespace that exist when the call starts. Costs as much as
    /// `list_keys`.
    ///
    /// # Errors
    /// See the trait.
    fn remove_all(&mut self, namespace: &str) -> Result<()>;
}
