//! Keys as clients say them, and the records that they name.

use crate::key_name::{KeyName, PLAIN_NAMESPACE, prefix_of};
use crate::reply::error_reply::ErrorReply;
use crate::server::RespServer;
use nearstate_model::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use nearstate_model::{Error, Result};
use nearstate_store::{Form, Kind, Metadata, Namespace, Record, Schema, Session, Txn, View};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// The records of a region, found by the keys of clients. One for each core.
#[derive(Debug)]
pub struct Records {
    session: Rc<Session>,
    server: Arc<RespServer>,
    /// Namespaces that were met, by name. One that is there stays.
    known: RefCell<BTreeMap<String, Namespace>>,
    /// The last one that was asked for: most requests ask for the same again.
    last: RefCell<String>,
    /// What stands before its keys where clients say them; empty for the keys that name none.
    last_prefix: RefCell<Vec<u8>>,
    last_namespace: Cell<Option<Namespace>>,
    /// Reads that found a record, and that found none, since the last [`Records::take_lookups`].
    lookups: [Cell<u64>; 2],
}

/// Where a key's record is.
#[derive(Clone, Copy, Debug)]
pub struct ResolvedKey<'a> {
    /// The namespace.
    pub namespace: Namespace,
    /// The key in it.
    pub key: &'a [u8],
}

impl Records {
    /// Those that a session reaches.
    pub fn new(session: Rc<Session>, server: Arc<RespServer>) -> Self {
        Self {
            session,
            server,
            known: RefCell::default(),
            last: RefCell::default(),
            last_prefix: RefCell::default(),
            last_namespace: Cell::new(None),
            lookups: Default::default(),
        }
    }

    /// Counts a read.
    #[inline]
    pub(crate) fn count_lookup(&self, exists: bool) {
        let [hits, misses] = &self.lookups;
        let count = if exists { hits } else { misses };
        count.set(count.get() + 1);
    }

    /// Reads that found a record, and that found none, since this was asked before.
    #[inline]
    pub(crate) fn take_lookups(&self) -> [u64; 2] {
        self.lookups.each_ref().map(Cell::take)
    }

    /// The session.
    pub fn session(&self) -> &Rc<Session> {
        &self.session
    }

    /// Where a key's record is, or `None` if nobody has made its namespace: then it has none.
    ///
    /// # Errors
    /// Those of the store.
    #[inline]
    pub fn resolve<'a>(&self, key: &'a [u8]) -> Result<Option<ResolvedKey<'a>>> {
        if let Some(resolved) = self.resolve_last(key) {
            return Ok(Some(resolved));
        }
        let KeyName { namespace, key } = KeyName::of(key);
        let lookups = self.namespace(namespace)?;
        Ok(lookups.map(|namespace| ResolvedKey { namespace, key }))
    }

    /// As [`Records::resolve`], of the namespace that was asked for last: its name is known to be
    /// one, so that the key need not be taken apart.
    #[inline]
    fn resolve_last<'a>(&self, key: &'a [u8]) -> Option<ResolvedKey<'a>> {
        let namespace = self.last_namespace.get()?;
        let prefix = self.last_prefix.borrow();
        let own = key.strip_prefix(prefix.as_slice()).filter(|_| !prefix.is_empty())?;
        Some(ResolvedKey { namespace, key: own })
    }

    /// As [`Records::resolve`], of namespaces that were met only: no look into the region.
    #[inline]
    pub(crate) fn resolve_known<'a>(&self, key: &'a [u8]) -> Option<ResolvedKey<'a>> {
        if let Some(resolved) = self.resolve_last(key) {
            return Some(resolved);
        }
        let KeyName { namespace, key } = KeyName::of(key);
        let last = self.last_namespace.get().filter(|_| *self.last.borrow() == namespace);
        let namespace = last.or_else(|| self.known.borrow().get(namespace).copied())?;
        Some(ResolvedKey { namespace, key })
    }

    /// Where a key's record is to be, with a value of so many bytes. Makes its namespace if there
    /// is none; one that is made stays, so what no namespace takes is refused before.
    ///
    /// # Errors
    /// Those of [`validate`], and of the store.
    #[inline]
    pub fn resolve_or_create<'a>(&self, key: &'a [u8], bytes: usize) -> Result<ResolvedKey<'a>> {
        if let Some(resolved) = self.resolve_last(key) {
            return Ok(resolved);
        }
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
                // Before its first record, so that this is told as well.
                self.server.keyspace.watch_namespace(&self.session, name, namespace);
                Ok(namespace)
            }
            // Another process was faster, and made it of another kind.
            Err(Error::WrongKind { .. }) => self
                .namespace(name)?
                .ok_or_else(|| Error::Conflict { detail: format!("namespace {name:?}") }),
            Err(error) => Err(error),
        }
    }

    /// The namespace of this name, if it has been made.
    ///
    /// # Errors
    /// Those of the store.
    #[inline]
    pub fn namespace(&self, name: &str) -> Result<Option<Namespace>> {
        if let Some(last) = self.last_namespace.get()
            && *self.last.borrow() == name
        {
            return Ok(Some(last));
        }
        self.lookup_namespace(name)
    }

    fn lookup_namespace(&self, name: &str) -> Result<Option<Namespace>> {
        let known = self.known.borrow().get(name).copied();
        let namespace = match known {
            Some(namespace) => namespace,
            None => match self.session.known_namespace(name)? {
                Some(namespace) => {
                    self.server.keyspace.watch_namespace(&self.session, name, namespace);
                    self.known.borrow_mut().insert(name.to_owned(), namespace);
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

    /// All namespaces whose keys a client can name, with what stands before their keys.
    ///
    /// # Errors
    /// Those of the store.
    pub fn namespaces(&self) -> Result<Vec<(Vec<u8>, Namespace)>> {
        let all = self.session.namespaces()?.into_iter();
        Ok(all.filter_map(|(name, namespace)| Some((prefix_of(&name)?, namespace))).collect())
    }
}

/// Refuses a key, as clients say it, or a value of so many bytes that no namespace takes. For
/// whoever would have changed something else by the time the store says so.
///
/// # Errors
/// `KeyTooLarge`, `ValueTooLarge`.
#[inline]
pub fn validate(key: &[u8], bytes: usize) -> Result<()> {
    // What stands in the namespace is no longer than all that is said.
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

/// A record, alone or as a transaction sees it.
#[derive(Debug)]
pub enum RecordRef<'r> {
    /// As the region has it.
    View(View<'r>),
    /// As a transaction has it.
    Record(Record<'r>),
}

impl RecordRef<'_> {
    /// What it is.
    #[inline]
    pub fn record_type(&self) -> Form {
        match self {
            Self::View(view) => view.form(),
            Self::Record(record) => record.form(),
        }
    }

    /// The bytes of a string.
    ///
    /// # Errors
    /// `WRONGTYPE`.
    #[inline]
    pub fn string(&self) -> Result<&[u8], ErrorReply> {
        match (self.record_type(), self) {
            (Form::Value, Self::View(view)) => Ok(view.bytes()),
            (Form::Value, Self::Record(record)) => Ok(record.bytes()),
            (Form::Blocks | Form::Set, _) => Err(ErrorReply::WRONG_TYPE),
        }
    }

    /// The fields of a hash, in the order in which they were first set.
    ///
    /// # Errors
    /// `WRONGTYPE`.
    pub fn fields(&self) -> Result<Vec<(&str, &[u8])>, ErrorReply> {
        match (self.record_type(), self) {
            (Form::Blocks, Self::View(view)) => Ok(view.blocks().collect()),
            (Form::Blocks, Self::Record(record)) => Ok(record.blocks().collect()),
            (Form::Value | Form::Set, _) => Err(ErrorReply::WRONG_TYPE),
        }
    }

    /// A field of a hash. Linear in their number.
    ///
    /// # Errors
    /// `WRONGTYPE`.
    pub fn field(&self, name: &[u8]) -> Result<Option<&[u8]>, ErrorReply> {
        if self.record_type() != Form::Blocks {
            return Err(ErrorReply::WRONG_TYPE);
        }
        let Ok(name) = str::from_utf8(name) else { return Ok(None) };
        Ok(match self {
            Self::View(view) => view.block(name),
            Self::Record(record) => record.block(name),
        })
    }

    /// The members of a set, ascending.
    ///
    /// # Errors
    /// `WRONGTYPE`.
    pub fn members(&self) -> Result<nearstate_store::Members<'_>, ErrorReply> {
        match (self.record_type(), self) {
            (Form::Set, Self::View(view)) => Ok(view.members()),
            (Form::Set, Self::Record(record)) => Ok(record.members()),
            (Form::Value | Form::Blocks, _) => Err(ErrorReply::WRONG_TYPE),
        }
    }

    /// When it ends by itself, in milliseconds since 1970; 0: never.
    pub fn expires_ms(&self) -> u64 {
        match self {
            Self::View(view) => view.expires_ms(),
            Self::Record(record) => record.expires_ms(),
        }
    }

    /// Its version; `None` for what a transaction has written itself.
    pub fn version(&self) -> Option<u64> {
        match self {
            Self::View(view) => Some(view.version()),
            Self::Record(record) => record.version(),
        }
    }

    /// Its tags, which a change that keeps the record keeps as well.
    pub fn tags(&self) -> Vec<(String, Vec<u8>)> {
        let owned = |(name, value): (&str, &[u8])| (name.to_owned(), value.to_vec());
        match self {
            Self::View(view) => view.tags().map(owned).collect(),
            Self::Record(record) => record.tags().map(owned).collect(),
        }
    }
}

/// Why a change was not made: the store's reason, or the command's.
#[derive(Debug)]
pub enum ChangeError {
    /// The store says no; a conflict is tried again.
    Store(Error),
    /// The command says no.
    Refused(ErrorReply),
}

impl From<Error> for ChangeError {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

impl From<ErrorReply> for ChangeError {
    fn from(refusal: ErrorReply) -> Self {
        Self::Refused(refusal)
    }
}

impl From<ChangeError> for ErrorReply {
    fn from(fault: ChangeError) -> Self {
        match fault {
            ChangeError::Store(error) => error.into(),
            ChangeError::Refused(refusal) => refusal,
        }
    }
}

/// Puts a record anew, with the end and the tags that another had (or with none).
///
/// # Errors
/// Those of the store.
pub fn put_string(
    txn: &Txn<'_>,
    ResolvedKey { namespace, key }: ResolvedKey<'_>,
    value: &[u8],
    kept: &KeptMetadata,
) -> Result<()> {
    let tags = kept.tags();
    txn.put_with_metadata(namespace, key, value, kept.metadata(&tags))
}

/// Puts a set anew, with the end and the tags that another had (or with none).
///
/// # Errors
/// Those of the store.
pub fn put_set(
    txn: &Txn<'_>,
    ResolvedKey { namespace, key }: ResolvedKey<'_>,
    members: &[&[u8]],
    kept: &KeptMetadata,
) -> Result<()> {
    let tags = kept.tags();
    txn.put_members(namespace, key, members, kept.metadata(&tags))
}

/// What a record keeps when its value changes: its end, its tags.
#[derive(Clone, Debug, Default)]
pub struct KeptMetadata {
    /// When it ends by itself, in milliseconds since 1970; 0: never.
    pub expires_ms: u64,
    /// Its tags.
    pub(crate) tags: Vec<(String, Vec<u8>)>,
}

impl KeptMetadata {
    /// What this record has.
    pub fn of(lookups: &RecordRef<'_>) -> Self {
        Self { expires_ms: lookups.expires_ms(), tags: lookups.tags() }
    }

    /// An end, and no tags.
    pub const fn with_expiry(expires_ms: u64) -> Self {
        Self { expires_ms, tags: Vec::new() }
    }

    /// The tags, as the store takes them.
    pub fn tags(&self) -> Vec<(&str, &[u8])> {
        self.tags.iter().map(|(name, value)| (name.as_str(), value.as_slice())).collect()
    }

    /// With those of [`KeptMetadata::tags`].
    pub const fn metadata<'a>(&self, tags: &'a [(&'a str, &'a [u8])]) -> Metadata<'a> {
        Metadata { tags, expires_ms: self.expires_ms }
    }
}
