//! Keys as clients say them, and the records that they name.

use crate::key_name::{KeyName, PLAIN_NAMESPACE, prefix_of};
use crate::reply::error_reply::Refusal;
use crate::server::Server;
use nearstate_model::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use nearstate_model::{Error, Result};
use nearstate_store::{Form, Kind, Metadata, Namespace, Schema, Session, Txn, View};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// The records of a region, found by the keys of clients. One for each core.
#[derive(Debug)]
pub struct Records {
    session: Rc<Session>,
    server: Arc<Server>,
    /// Namespaces that were met, by name. One that is there stays.
    known: RefCell<BTreeMap<String, Namespace>>,
    /// The last one that was asked for: most requests ask for the same again.
    last: RefCell<String>,
    /// What stands before its keys where clients say them; empty for the keys that name none.
    last_prefix: RefCell<Vec<u8>>,
    last_namespace: Cell<Option<Namespace>>,
    /// Reads that found a record, and that found none, since the last [`Records::take_found`].
    found: [Cell<u64>; 2],
}

/// Where a key's record is.
#[derive(Clone, Copy, Debug)]
pub struct Spot<'a> {
    /// The namespace.
    pub namespace: Namespace,
    /// The key in it.
    pub key: &'a [u8],
}

impl Records {
    /// Those that a session reaches.
    pub fn new(session: Rc<Session>, server: Arc<Server>) -> Self {
        Self {
            session,
            server,
            known: RefCell::default(),
            last: RefCell::default(),
            last_prefix: RefCell::default(),
            last_namespace: Cell::new(None),
            found: Default::default(),
        }
    }

    /// Counts a read.
    #[inline]
    pub(crate) fn note(&self, is_there: bool) {
        let [hits, misses] = &self.found;
        let count = if is_there { hits } else { misses };
        count.set(count.get() + 1);
    }

    /// Reads that found a record, and that found none, since this was asked before.
    #[inline]
    pub(crate) fn take_found(&self) -> [u64; 2] {
        self.found.each_ref().map(Cell::take)
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
    pub fn find<'a>(&self, key: &'a [u8]) -> Result<Option<Spot<'a>>> {
        if let Some(spot) = self.last_spot(key) {
            return Ok(Some(spot));
        }
        let KeyName { namespace, key } = KeyName::of(key);
        let found = self.namespace(namespace)?;
        Ok(found.map(|namespace| Spot { namespace, key }))
    }

    /// As [`Records::find`], of the namespace that was asked for last: its name is known to be
    /// one, so that the key need not be taken apart.
    #[inline]
    fn last_spot<'a>(&self, key: &'a [u8]) -> Option<Spot<'a>> {
        let namespace = self.last_namespace.get()?;
        let prefix = self.last_prefix.borrow();
        let own = key.strip_prefix(prefix.as_slice()).filter(|_| !prefix.is_empty())?;
        Some(Spot { namespace, key: own })
    }

    /// As [`Records::find`], of namespaces that were met only: no look into the region.
    #[inline]
    pub(crate) fn known_spot<'a>(&self, key: &'a [u8]) -> Option<Spot<'a>> {
        if let Some(spot) = self.last_spot(key) {
            return Some(spot);
        }
        let KeyName { namespace, key } = KeyName::of(key);
        let last = self.last_namespace.get().filter(|_| *self.last.borrow() == namespace);
        let namespace = last.or_else(|| self.known.borrow().get(namespace).copied())?;
        Some(Spot { namespace, key })
    }

    /// Where a key's record is to be, with a value of so many bytes. Makes its namespace if there
    /// is none; one that is made stays, so what no namespace takes is refused before.
    ///
    /// # Errors
    /// Those of [`judge`], and of the store.
    #[inline]
    pub fn make<'a>(&self, key: &'a [u8], bytes: usize) -> Result<Spot<'a>> {
        if let Some(spot) = self.last_spot(key) {
            return Ok(spot);
        }
        let KeyName { namespace: name, key: own } = KeyName::of(key);
        if let Some(namespace) = self.namespace(name)? {
            return Ok(Spot { namespace, key: own });
        }
        judge(key, bytes)?;
        self.make_namespace(name).map(|namespace| Spot { namespace, key: own })
    }

    #[cold]
    fn make_namespace(&self, name: &str) -> Result<Namespace> {
        let schema = Schema { kind: Kind::Mixed, ..Schema::default() };
        match self.session.namespace(name, &schema) {
            Ok(namespace) => {
                // Before its first record, so that this is told as well.
                self.server.keyspace.follow(&self.session, name, namespace);
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
        self.other_namespace(name)
    }

    fn other_namespace(&self, name: &str) -> Result<Option<Namespace>> {
        let known = self.known.borrow().get(name).copied();
        let namespace = match known {
            Some(namespace) => namespace,
            None => match self.session.known_namespace(name)? {
                Some(namespace) => {
                    self.server.keyspace.follow(&self.session, name, namespace);
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
pub fn judge(key: &[u8], bytes: usize) -> Result<()> {
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

/// A record that was read, by the session or by a transaction: what commands take from it.
#[derive(Debug)]
pub struct Found<'r>(pub View<'r>);

impl Found<'_> {
    /// Whether it is a string, a hash or a set.
    #[inline]
    pub const fn form(&self) -> Form {
        self.0.form()
    }

    /// The bytes of a string.
    ///
    /// # Errors
    /// `WRONGTYPE`.
    #[inline]
    pub fn string(&self) -> Result<&[u8], Refusal> {
        match self.form() {
            Form::Value => Ok(self.0.bytes()),
            Form::Blocks | Form::Set => Err(Refusal::WRONG_TYPE),
        }
    }

    /// The fields of a hash, in the order in which they were first set.
    ///
    /// # Errors
    /// `WRONGTYPE`.
    pub fn fields(&self) -> Result<Vec<(&str, &[u8])>, Refusal> {
        match self.form() {
            Form::Blocks => Ok(self.0.blocks().collect()),
            Form::Value | Form::Set => Err(Refusal::WRONG_TYPE),
        }
    }

    /// A field of a hash. Linear in the number of fields.
    ///
    /// # Errors
    /// `WRONGTYPE`.
    pub fn field(&self, name: &[u8]) -> Result<Option<&[u8]>, Refusal> {
        if self.form() != Form::Blocks {
            return Err(Refusal::WRONG_TYPE);
        }
        let Ok(name) = str::from_utf8(name) else { return Ok(None) };
        Ok(self.0.block(name))
    }

    /// The members of a set, ascending.
    ///
    /// # Errors
    /// `WRONGTYPE`.
    pub fn members(&self) -> Result<nearstate_store::Members<'_>, Refusal> {
        match self.form() {
            Form::Set => Ok(self.0.members()),
            Form::Value | Form::Blocks => Err(Refusal::WRONG_TYPE),
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

    /// The tags. A change that keeps the record keeps them as well.
    pub fn tags(&self) -> Vec<(String, Vec<u8>)> {
        self.0.tags().map(|(name, value)| (name.to_owned(), value.to_vec())).collect()
    }
}

/// Why a change was not made: the store's reason, or the command's.
#[derive(Debug)]
pub enum Fault {
    /// The store says no; a conflict is tried again.
    Store(Error),
    /// The command says no.
    Refused(Refusal),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Store(error) => error.into(),
            Fault::Refused(refusal) => refusal,
        }
    }
}

/// Puts a record anew, with the end and the tags that another had (or with none).
///
/// # Errors
/// Those of the store.
pub fn put_string(
    txn: &Txn<'_>,
    Spot { namespace, key }: Spot<'_>,
    value: &[u8],
    kept: &Kept,
) -> Result<()> {
    let tags = kept.tags();
    txn.put_with_metadata(namespace, key, value, kept.labels(&tags))
}

/// Puts a set anew, with the end and the tags that another had (or with none).
///
/// # Errors
/// Those of the store.
pub fn put_set(
    txn: &Txn<'_>,
    Spot { namespace, key }: Spot<'_>,
    members: &[&[u8]],
    kept: &Kept,
) -> Result<()> {
    let tags = kept.tags();
    txn.put_members(namespace, key, members, kept.labels(&tags))
}

/// What a record keeps when its value changes: its end, its tags.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    /// When it ends by itself, in milliseconds since 1970; 0: never.
    pub expires_ms: u64,
    /// Its tags.
    pub(crate) tags: Vec<(String, Vec<u8>)>,
}

impl Kept {
    /// What this record has.
    pub fn of(found: &Found<'_>) -> Self {
        Self { expires_ms: found.expires_ms(), tags: found.tags() }
    }

    /// An end, and no tags.
    pub const fn until(expires_ms: u64) -> Self {
        Self { expires_ms, tags: Vec::new() }
    }

    /// The tags, as the store takes them.
    pub fn tags(&self) -> Vec<(&str, &[u8])> {
        self.tags.iter().map(|(name, value)| (name.as_str(), value.as_slice())).collect()
    }

    /// With those of [`Kept::tags`].
    pub const fn labels<'a>(&self, tags: &'a [(&'a str, &'a [u8])]) -> Metadata<'a> {
        Metadata { tags, expires_ms: self.expires_ms }
    }
}
