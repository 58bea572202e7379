//! Resolves the keys of clients to records of the region.

use crate::key_name::{KeyName, PLAIN_NAMESPACE, prefix_of};
use crate::reply::error_reply::ErrorReply;
use crate::server::RespServer;
use nearstate_model::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use nearstate_model::{Error, Result};
use nearstate_store::{
    Form, Kind, Metadata, Namespace, OwnerLease, Receipt, ReplicationPolicy, Schema, Session, Txn,
    View,
};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// Access to the records of the region by the keys of clients. One instance per core.
#[derive(Debug)]
pub struct KeyedRecords {
    session: Rc<Session>,
    server: Arc<RespServer>,
    /// Namespaces by name. Also removed ones: the generation in a handle tells, and the name is
    /// looked up again ([`Session::has_namespace`]).
    known: RefCell<BTreeMap<String, Namespace>>,
    /// Name of the namespace that was used last. Most requests use the same one again.
    last: RefCell<String>,
    /// Key prefix of that namespace (`{ns},`), empty for the keys without a namespace.
    last_prefix: RefCell<Vec<u8>>,
    last_namespace: Cell<Option<Namespace>>,
    /// Hits and misses of reads since the last [`KeyedRecords::take_hits_and_misses`].
    hits_and_misses: [Cell<u64>; 2],
}

/// From this number of cached namespaces on, removed ones are dropped.
const KNOWN_MIN: usize = 1024;

/// A key in its namespace.
#[derive(Clone, Copy, Debug)]
pub struct ResolvedKey<'a> {
    /// The namespace.
    pub namespace: Namespace,
    /// The key in the namespace.
    pub key: &'a [u8],
}

impl KeyedRecords {
    /// Records reached through a session.
    pub fn new(session: Rc<Session>, server: Arc<RespServer>) -> Self {
        Self {
            session,
            server,
            known: RefCell::default(),
            last: RefCell::default(),
            last_prefix: RefCell::default(),
            last_namespace: Cell::new(None),
            hits_and_misses: Default::default(),
        }
    }

    /// Counts a hit or a miss.
    #[inline]
    pub(crate) fn count_lookup(&self, exists: bool) {
        let [hits, misses] = &self.hits_and_misses;
        let count = if exists { hits } else { misses };
        count.set(count.get() + 1);
    }

    /// Hits and misses of reads since the last call.
    #[inline]
    pub(crate) fn take_hits_and_misses(&self) -> [u64; 2] {
        self.hits_and_misses.each_ref().map(Cell::take)
    }

    /// Milliseconds since 1970 by the clock by which records expire.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn now_ms(&self) -> Result<u64, Error> {
        self.session.now_ms()
    }

    /// The session.
    pub fn session(&self) -> &Rc<Session> {
        &self.session
    }

    /// Behind a write of these keys that may have changed nothing: see [`Session::owe_all`].
    ///
    /// # Errors
    /// Those of the store.
    #[inline]
    pub(crate) fn owe_keys<'a>(&self, keys: impl Iterator<Item = &'a [u8]>) -> Result<()> {
        if self.session.log_tail_position()? == 0 {
            return Ok(());
        }
        for key in keys {
            if let Some(ResolvedKey { namespace, .. }) = self.resolve(key)? {
                self.session.owe_all(namespace)?;
            }
        }
        Ok(())
    }

    /// Behind a read of these keys: see [`Session::owe_read`]. A record that was written since
    /// counts as read.
    ///
    /// # Errors
    /// `Fenced`: see [`KeyedRecords::check_lease`]; those of the store.
    #[inline]
    pub(crate) fn owe_reads<'a>(&self, keys: impl Iterator<Item = &'a [u8]>) -> Result<()> {
        if self.session.log_tail_position()? == 0 {
            return Ok(());
        }
        self.owe_logged_reads(keys)
    }

    #[cold]
    fn owe_logged_reads<'a>(&self, keys: impl Iterator<Item = &'a [u8]>) -> Result<()> {
        for name in keys {
            let Some(ResolvedKey { namespace, key }) = self.resolve(name)? else { continue };
            if self.session.receipt_of_read(namespace, None)? != Receipt::NONE {
                let record = self.session.get(namespace, key)?;
                self.session.owe_read(namespace, record.as_ref())?;
            }
            self.check_lease(namespace)?;
        }
        Ok(())
    }

    /// Behind a read of a namespace whose commits wait: without a lease another host may own the
    /// partition already, and what was read may be what it has discarded, or has changed since.
    ///
    /// # Errors
    /// `Fenced`: the lease has ended; those of the store.
    #[cold]
    pub(crate) fn check_lease(&self, namespace: Namespace) -> Result<()> {
        if self.session.owner_lease()? != OwnerLease::Expired
            || self.session.replication_policy(namespace)? != ReplicationPolicy::Replicated
        {
            return Ok(());
        }
        let all = self.session.namespaces()?.into_iter();
        let name = all.filter(|(_, one)| *one == namespace).map(|(name, _)| name).next();
        Err(Error::Fenced { namespace: name.unwrap_or_default() })
    }

    /// As [`KeyedRecords::check_lease`], for the namespaces of some keys.
    ///
    /// # Errors
    /// `Fenced`; those of the store.
    #[inline]
    pub(crate) fn check_leases<'a>(&self, keys: impl Iterator<Item = &'a [u8]>) -> Result<()> {
        if self.session.log_tail_position()? == 0 {
            return Ok(());
        }
        for key in keys {
            if let Some(ResolvedKey { namespace, .. }) = self.resolve(key)? {
                self.check_lease(namespace)?;
            }
        }
        Ok(())
    }

    /// Resolves a key. `None` if its namespace does not exist, so that the key does not exist
    /// either.
    ///
    /// # Errors
    /// Those of the store.
    #[inline]
    pub fn resolve<'a>(&self, key: &'a [u8]) -> Result<Option<ResolvedKey<'a>>> {
        match self.resolve_last(key) {
            Some(resolved) => Ok(Some(resolved)),
            None => self.resolve_by_name(key),
        }
    }

    /// As [`KeyedRecords::resolve`], for another namespace than the last one.
    #[inline(never)]
    fn resolve_by_name<'a>(&self, key: &'a [u8]) -> Result<Option<ResolvedKey<'a>>> {
        let KeyName { namespace, key } = KeyName::of(key);
        let namespace = self.namespace(namespace)?;
        Ok(namespace.map(|namespace| ResolvedKey { namespace, key }))
    }

    /// As [`KeyedRecords::resolve`] for the last namespace.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the path of every request with a key")]
    fn resolve_last<'a>(&self, key: &'a [u8]) -> Option<ResolvedKey<'a>> {
        // An empty namespace may have been removed, also by another process.
        self.key_of_last(key).filter(|resolved| self.session.has_namespace(resolved.namespace))
    }

    /// A key in the last namespace, by comparing the prefix instead of parsing the key.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the path of every request with a key")]
    fn key_of_last<'a>(&self, key: &'a [u8]) -> Option<ResolvedKey<'a>> {
        let namespace = self.last_namespace.get()?;
        let prefix = self.last_prefix.borrow();
        let own = match (prefix.is_empty(), key.first()) {
            // A key with a brace may name a namespace.
            (true, Some(b'{')) => return None,
            (true, _) => key,
            (false, _) => key.strip_prefix(prefix.as_slice())?,
        };
        Some(ResolvedKey { namespace, key: own })
    }

    /// As [`KeyedRecords::resolve`] for namespaces in the cache, without access to the region.
    #[inline]
    pub(crate) fn resolve_known<'a>(&self, key: &'a [u8]) -> Option<ResolvedKey<'a>> {
        if let Some(resolved) = self.key_of_last(key) {
            return Some(resolved);
        }
        let KeyName { namespace, key } = KeyName::of(key);
        let last = self.last_namespace.get().filter(|_| *self.last.borrow() == namespace);
        let namespace = last.or_else(|| self.known.borrow().get(namespace).copied())?;
        Some(ResolvedKey { namespace, key })
    }

    /// Resolves a key that is about to be written with a value of `bytes` bytes. Creates its
    /// namespace if necessary. Keys and values that are too large are rejected before, so that they
    /// leave no empty namespace behind.
    ///
    /// # Errors
    /// Those of [`validate`] and of the store.
    #[inline]
    pub fn resolve_or_create<'a>(&self, key: &'a [u8], bytes: usize) -> Result<ResolvedKey<'a>> {
        match self.resolve_last(key) {
            Some(resolved) => Ok(resolved),
            None => self.create_by_name(key, bytes),
        }
    }

    #[inline(never)]
    fn create_by_name<'a>(&self, key: &'a [u8], bytes: usize) -> Result<ResolvedKey<'a>> {
        let KeyName { namespace: name, key: own } = KeyName::of(key);
        if let Some(namespace) = self.namespace(name)? {
            return Ok(ResolvedKey { namespace, key: own });
        }
        validate(key, bytes)?;
        self.create_namespace(name).map(|namespace| ResolvedKey { namespace, key: own })
    }

    #[cold]
    fn create_namespace(&self, name: &str) -> Result<Namespace> {
        let schema = Schema { kind: Kind::Mixed, ..Schema::default() };
        match self.session.namespace(name, &schema) {
            Ok(namespace) => {
                // Before the first record is written, so that its event is published.
                self.server.keyspace.watch_namespace(&self.session, name, namespace);
                Ok(namespace)
            }
            // Another process created it at the same time with a different kind.
            Err(Error::WrongKind { .. }) => self
                .namespace(name)?
                .ok_or_else(|| Error::Conflict { detail: format!("namespace {name:?}") }),
            Err(error) => Err(error),
        }
    }

    /// The namespace with this name, if it exists.
    ///
    /// # Errors
    /// Those of the store.
    #[inline]
    pub fn namespace(&self, name: &str) -> Result<Option<Namespace>> {
        if let Some(last) = self.last_namespace.get()
            && *self.last.borrow() == name
            && self.session.has_namespace(last)
        {
            return Ok(Some(last));
        }
        self.lookup_namespace(name)
    }

    fn lookup_namespace(&self, name: &str) -> Result<Option<Namespace>> {
        // A namespace that was empty may have been removed, also by another process.
        let known = self.known.borrow().get(name).copied();
        let known = known.filter(|known| self.session.has_namespace(*known));
        let namespace = match known {
            Some(namespace) => namespace,
            None => match self.session.known_namespace(name)? {
                Some(namespace) => {
                    self.server.keyspace.watch_namespace(&self.session, name, namespace);
                    self.remember(name, namespace);
                    namespace
                }
                None => return Ok(None),
            },
        };
        let mut last = self.last.borrow_mut();
        last.clear();
        last.push_str(name);
        let mut prefix = self.last_prefix.borrow_mut();
        prefix.clear();
        if name != PLAIN_NAMESPACE {
            prefix.push(b'{');
            prefix.extend_from_slice(name.as_bytes());
            prefix.extend_from_slice(b"},");
        }
        self.last_namespace.set(Some(namespace));
        Ok(Some(namespace))
    }

    fn remember(&self, name: &str, namespace: Namespace) {
        let mut known = self.known.borrow_mut();
        // Clients may create names without end, whose namespaces are removed when the region is
        // full.
        if known.len() >= KNOWN_MIN && known.len().is_power_of_two() {
            known.retain(|_, known| self.session.has_namespace(*known));
        }
        known.insert(name.to_owned(), namespace);
    }

    /// All namespaces whose keys clients can name, with their key prefixes.
    ///
    /// # Errors
    /// Those of the store.
    pub fn namespaces(&self) -> Result<Vec<(Vec<u8>, Namespace)>> {
        let all = self.session.namespaces()?.into_iter();
        Ok(all.filter_map(|(name, namespace)| Some((prefix_of(&name)?, namespace))).collect())
    }
}

/// Rejects a key or a value length that no namespace accepts. For commands that have other effects
/// before the store would reject it.
///
/// # Errors
/// `KeyTooLarge`, `ValueTooLarge`.
#[inline]
pub fn validate(key: &[u8], bytes: usize) -> Result<()> {
    // The key in its namespace is never longer than the key of the client.
    if key.len() > KEY_BYTES_MAX {
        let own = KeyName::of(key).key.len();
        if own > KEY_BYTES_MAX {
            return Err(Error::KeyTooLarge { bytes: own });
        }
    }
    if bytes > VALUE_BYTES_MAX {
        return Err(Error::ValueTooLarge { bytes });
    }
    Ok(())
}

/// A record that was read, by the session or by a transaction: what commands take from it.
#[derive(Debug)]
pub struct RecordRef<'r>(pub View<'r>);

impl RecordRef<'_> {
    /// Whether it is a string, a hash or a set.
    #[inline]
    pub const fn record_type(&self) -> Form {
        self.0.form()
    }

    /// The bytes of a string.
    ///
    /// # Errors
    /// `WRONGTYPE`.
    #[inline]
    pub fn string(&self) -> Result<&[u8], ErrorReply> {
        match self.record_type() {
            Form::Value => Ok(self.0.bytes()),
            Form::Blocks | Form::Set => Err(ErrorReply::WRONG_TYPE),
        }
    }

    /// The fields of a hash, in the order of the store.
    ///
    /// # Errors
    /// `WRONGTYPE`.
    pub fn fields(&self) -> Result<nearstate_store::Fields<'_>, ErrorReply> {
        match self.record_type() {
            Form::Blocks => Ok(self.0.fields()),
            Form::Value | Form::Set => Err(ErrorReply::WRONG_TYPE),
        }
    }

    /// A field of a hash. Linear in the number of fields of a small hash.
    ///
    /// # Errors
    /// `WRONGTYPE`.
    pub fn field(&self, name: &[u8]) -> Result<Option<&[u8]>, ErrorReply> {
        match self.record_type() {
            Form::Blocks => Ok(self.0.field(name)),
            Form::Value | Form::Set => Err(ErrorReply::WRONG_TYPE),
        }
    }

    /// The members of a set, in the order of the store.
    ///
    /// # Errors
    /// `WRONGTYPE`.
    pub fn members(&self) -> Result<nearstate_store::Members<'_>, ErrorReply> {
        match self.record_type() {
            Form::Set => Ok(self.0.members()),
            Form::Value | Form::Blocks => Err(ErrorReply::WRONG_TYPE),
        }
    }

    /// Checks the count of a large set or hash, which is read from the region, before it bounds a
    /// loop or an allocation.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn check_count(&self) -> Result<(), ErrorReply> {
        if self.0.has_its_count() {
            return Ok(());
        }
        let detail = "a collection counts other elements than its parts have: run `nearstate \
                      region check --repair`";
        Err(Error::Damaged { detail: detail.to_owned() }.into())
    }

    /// The number of elements of a set or a hash.
    ///
    /// # Errors
    /// `WRONGTYPE`: a string; `Damaged`.
    pub fn elements(&self) -> Result<usize, ErrorReply> {
        self.check_count()?;
        match self.record_type() {
            Form::Set => Ok(self.0.members().len()),
            Form::Blocks => Ok(self.0.fields().len()),
            Form::Value => Err(ErrorReply::WRONG_TYPE),
        }
    }

    /// When the record expires, in milliseconds since 1970; 0: never.
    pub fn expires_ms(&self) -> u64 {
        self.0.expires_ms()
    }

    /// The version; `None` for a record that the transaction itself has written.
    pub fn version(&self) -> Option<u64> {
        (!self.0.is_uncommitted()).then(|| self.0.version())
    }

    /// Writes the value to another key, with this metadata.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) fn put_copy(
        &self,
        txn: &Txn<'_>,
        target: ResolvedKey<'_>,
        kept: &RetainedMetadata,
    ) -> Result<()> {
        match self.record_type() {
            Form::Value => put_string(txn, target, self.0.bytes(), kept),
            Form::Set => put_set(txn, target, &self.0.members().collect::<Vec<_>>(), kept),
            Form::Blocks => put_hash(txn, target, &self.0.fields().collect::<Vec<_>>(), kept),
        }
    }

    /// The tags. A change that keeps the record keeps them as well.
    pub fn tags(&self) -> Vec<(String, Vec<u8>)> {
        self.0.tags().map(|(name, value)| (name.to_owned(), value.to_vec())).collect()
    }
}

/// Error of a change: of the store or of the command.
#[derive(Debug)]
pub enum ChangeError {
    /// Error of the store. Conflicts are retried.
    Store(Error),
    /// Error reply of the command.
    Refused(ErrorReply),
}

impl From<Error> for ChangeError {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

impl From<ErrorReply> for ChangeError {
    fn from(error: ErrorReply) -> Self {
        Self::Refused(error)
    }
}

impl From<ChangeError> for ErrorReply {
    fn from(fault: ChangeError) -> Self {
        match fault {
            ChangeError::Store(error) => error.into(),
            ChangeError::Refused(error) => error,
        }
    }
}

/// Writes a string with the expiration time and tags in `kept`.
///
/// # Errors
/// Those of the store.
pub fn put_string(
    txn: &Txn<'_>,
    ResolvedKey { namespace, key }: ResolvedKey<'_>,
    value: &[u8],
    kept: &RetainedMetadata,
) -> Result<()> {
    let tags = kept.tags();
    txn.put_with_metadata(namespace, key, value, kept.metadata(&tags))
}

/// Writes a set with the expiration time and tags in `kept`.
///
/// # Errors
/// Those of the store.
pub fn put_set(
    txn: &Txn<'_>,
    ResolvedKey { namespace, key }: ResolvedKey<'_>,
    members: &[&[u8]],
    kept: &RetainedMetadata,
) -> Result<()> {
    let tags = kept.tags();
    txn.put_members(namespace, key, members, kept.metadata(&tags))
}

/// Writes a hash with the expiration time and tags in `kept`.
///
/// # Errors
/// Those of the store.
pub fn put_hash(
    txn: &Txn<'_>,
    ResolvedKey { namespace, key }: ResolvedKey<'_>,
    fields: &[(&[u8], &[u8])],
    kept: &RetainedMetadata,
) -> Result<()> {
    let tags = kept.tags();
    txn.put_fields(namespace, key, fields, kept.metadata(&tags))
}

/// Metadata that a record keeps when its value changes.
#[derive(Clone, Debug, Default)]
pub struct RetainedMetadata {
    /// Expiration time in Unix milliseconds, 0 for none.
    pub expires_ms: u64,
    /// Tags.
    pub(crate) tags: Vec<(String, Vec<u8>)>,
}

impl RetainedMetadata {
    /// The metadata of a record.
    pub fn of(record: &RecordRef<'_>) -> Self {
        Self { expires_ms: record.expires_ms(), tags: record.tags() }
    }

    /// An expiration time without tags.
    pub const fn with_expiry(expires_ms: u64) -> Self {
        Self { expires_ms, tags: Vec::new() }
    }

    /// The tags in the form of the store.
    pub fn tags(&self) -> Vec<(&str, &[u8])> {
        self.tags.iter().map(|(name, value)| (name.as_str(), value.as_slice())).collect()
    }

    /// Metadata with the tags of [`RetainedMetadata::tags`].
    pub const fn metadata<'a>(&self, tags: &'a [(&'a str, &'a [u8])]) -> Metadata<'a> {
        Metadata { tags, expires_ms: self.expires_ms }
    }
}
