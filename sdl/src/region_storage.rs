//! The region back-end: operations on shared memory, without a server, and without a system call
//! for reads.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use nearstate_model::Error as Cause;
use nearstate_store::{
    AttachOptions, Condition, Form, Kind, Namespace, Outcome, Pattern, Region,
    Result as StoreResult, Schema, Session,
};

use crate::error::Result;
use crate::region_url;
use crate::storage::{KeySet, SyncStorage};
use crate::validate;

/// An attached region. The first write creates a namespace, of kind `Mixed`. `get` skips records
/// that are not values (a hash or a set that a client of a node created), as Redis' MGET does.
///
/// Nothing else creates one: a namespace that was created as `Mixed` could not be opened with
/// another schema by the program that owns it.
pub struct RegionStorage {
    session: Session,
    namespaces: BTreeMap<String, Namespace>,
    region: Region,
}

impl fmt::Debug for RegionStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegionStorage").field("region", &self.region).finish_non_exhaustive()
    }
}

/// How often one write creates its namespace at most. Each time another process has removed it
/// within some microseconds, while it was empty.
const CREATIONS_MAX: u32 = 16;

/// From this number of cached namespaces on, removed ones are dropped.
const KNOWN_MIN: usize = 1024;

impl RegionStorage {
    /// Opens `/path?option=value&..`; see [`crate::open()`].
    ///
    /// # Errors
    /// As [`crate::open()`].
    pub fn open(url: &str) -> Result<Self> {
        let location = region_url::parse(url)?;
        let region = if let Some(options) = &location.create {
            Region::attach_or_create(&location.path, options)?
        } else {
            let options = AttachOptions { any_owner: location.any_owner };
            Region::attach_with(&location.path, &options)?
        };
        Self::on(region)
    }

    /// Uses an attached region.
    ///
    /// # Errors
    /// `RejectedByBackend` at the limit of sessions of a region, `NotConnected` after a fork.
    pub fn on(region: Region) -> Result<Self> {
        Ok(Self { session: region.session()?, namespaces: BTreeMap::new(), region })
    }

    /// The region.
    pub const fn region(&self) -> &Region {
        &self.region
    }

    /// The namespace of this name, if it exists.
    fn existing(&mut self, name: &str) -> Result<Option<Namespace>> {
        // A namespace that was empty may have been removed, also by another process.
        let known = self.namespaces.get(name).copied();
        if let Some(namespace) = known.filter(|known| self.session.has_namespace(*known)) {
            return Ok(Some(namespace));
        }
        validate::namespace(name)?;
        let Some(namespace) = self.session.known_namespace(name)? else { return Ok(None) };
        self.remember(name, namespace);
        Ok(Some(namespace))
    }

    /// The namespace of this name for a write. Creates it if it does not exist.
    fn namespace(&mut self, name: &str) -> Result<Namespace> {
        if let Some(namespace) = self.existing(name)? {
            return Ok(namespace);
        }
        // Mixed, so that clients of a node can store hashes and sets in it, too.
        let schema = Schema { kind: Kind::Mixed, ..Schema::default() };
        let namespace = self.session.namespace(name, &schema)?;
        self.remember(name, namespace);
        Ok(namespace)
    }

    fn remember(&mut self, name: &str, namespace: Namespace) {
        if self.namespaces.len() >= KNOWN_MIN && self.namespaces.len().is_power_of_two() {
            self.namespaces.retain(|_, known| self.session.has_namespace(*known));
        }
        self.namespaces.insert(name.to_owned(), namespace);
    }

    /// Runs a call that needs no namespace: `None` if there is none, and if it is removed during
    /// the call, also by another process. It had no records at that moment.
    fn in_existing<T>(
        &mut self,
        name: &str,
        call: impl FnOnce(&Session, Namespace) -> StoreResult<T>,
    ) -> Result<Option<T>> {
        let Some(namespace) = self.existing(name)? else { return Ok(None) };
        match call(&self.session, namespace) {
            Err(cause) if self.is_removed(namespace, &cause) => Ok(None),
            done => Ok(Some(done?)),
        }
    }

    /// Runs a write. If its namespace is removed meanwhile, it is created again.
    fn in_created<T>(
        &mut self,
        name: &str,
        mut call: impl FnMut(&Session, Namespace) -> StoreResult<T>,
    ) -> Result<T> {
        for _ in 1..CREATIONS_MAX {
            let namespace = self.namespace(name)?;
            match call(&self.session, namespace) {
                Err(cause) if self.is_removed(namespace, &cause) => {}
                done => return Ok(done?),
            }
        }
        let namespace = self.namespace(name)?;
        Ok(call(&self.session, namespace)?)
    }

    /// True if a call has failed because its namespace was removed.
    fn is_removed(&self, namespace: Namespace, cause: &Cause) -> bool {
        matches!(cause, Cause::BadArgument { .. }) && !self.session.has_namespace(namespace)
    }

    fn keys(&mut self, namespace: &str, pattern: Pattern<'_>) -> Result<KeySet> {
        let mut keys = KeySet::new();
        self.in_existing(namespace, |session, namespace| {
            session.list(namespace, pattern, |key| {
                keys.insert(key.to_vec());
            })
        })?;
        Ok(keys)
    }
}

/// The result of a change under the condition that a record has a value.
///
/// # Errors
/// `RejectedByBackend` (`WrongKind`) if the record is a hash or a set, as on the other back-ends.
fn is_changed(
    session: &Session,
    (namespace, key): (Namespace, &[u8]),
    outcome: Outcome,
) -> StoreResult<bool> {
    if let Outcome::Refused { current: Some(_) } = outcome {
        let found = session.get(namespace, key)?;
        if let Some(form) = found.map(|view| view.form()).filter(|form| *form != Form::Value) {
            let key = String::from_utf8_lossy(key);
            return Err(Cause::WrongKind {
                detail: format!(
                    "record {key:?} has the form {form:?}, not a value: compare values only"
                ),
            });
        }
    }
    Ok(is_done(outcome))
}

impl SyncStorage for RegionStorage {
    fn is_ready(&mut self, namespace: &str) -> Result<bool> {
        self.existing(namespace).map(|_| true)
    }

    fn wait_ready(&mut self, namespace: &str, _timeout: Duration) -> Result<()> {
        self.existing(namespace).map(drop)
    }

    fn set(&mut self, namespace: &str, pairs: &[(&[u8], &[u8])]) -> Result<()> {
        validate::set(pairs)?;
        if pairs.is_empty() {
            return self.existing(namespace).map(drop);
        }
        self.in_created(namespace, |session, namespace| match pairs {
            [] => Ok(()),
            [(key, value)] => session.put(namespace, key, value).map(drop),
            several => session.transact(|txn| {
                several.iter().try_for_each(|(key, value)| txn.put(namespace, key, value))
            }),
        })
    }

    fn set_if(&mut self, namespace: &str, key: &[u8], old: &[u8], new: &[u8]) -> Result<bool> {
        validate::compared(key, old, new)?;
        let is_changed = self.in_existing(namespace, |session, namespace| {
            let outcome = session.put_if(namespace, key, new, Condition::Value(old))?;
            is_changed(session, (namespace, key), outcome)
        })?;
        Ok(is_changed.unwrap_or(false))
    }

    fn set_if_not_exists(&mut self, namespace: &str, key: &[u8], value: &[u8]) -> Result<bool> {
        validate::record(key, value)?;
        self.in_created(namespace, |session, namespace| {
            session.put_if(namespace, key, value, Condition::Absent).map(is_done)
        })
    }

    fn visit(
        &mut self,
        namespace: &str,
        keys: &[&[u8]],
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        validate::read(keys.len())?;
        self.in_existing(namespace, |session, namespace| {
            session.get_batch_whole(namespace, keys, |_, view| {
                if let Some(view) = view.filter(|view| view.form() == Form::Value) {
                    each(view.key(), view.bytes());
                }
            })
        })?;
        Ok(())
    }

    fn remove(&mut self, namespace: &str, keys: &[&[u8]]) -> Result<()> {
        validate::remove(keys)?;
        self.in_existing(namespace, |session, namespace| match keys {
            [] => Ok(()),
            [key] => session.delete(namespace, key).map(drop),
            several => {
                let records: Vec<_> = several.iter().map(|key| (namespace, *key)).collect();
                session.transact(|txn| txn.delete_all(&records).map(drop))
            }
        })?;
        Ok(())
    }

    fn remove_if(&mut self, namespace: &str, key: &[u8], value: &[u8]) -> Result<bool> {
        validate::record(key, value)?;
        let is_changed = self.in_existing(namespace, |session, namespace| {
            let outcome = session.delete_if(namespace, key, Condition::Value(value))?;
            is_changed(session, (namespace, key), outcome)
        })?;
        Ok(is_changed.unwrap_or(false))
    }

    fn list_keys(&mut self, namespace: &str, pattern: &[u8]) -> Result<KeySet> {
        self.keys(namespace, Pattern::Glob(pattern))
    }

    fn find_keys(&mut self, namespace: &str, prefix: &[u8]) -> Result<KeySet> {
        self.keys(namespace, Pattern::Prefix(prefix))
    }

    fn remove_all(&mut self, namespace: &str) -> Result<()> {
        let mut done = 0;
        let removed = self.in_existing(namespace, |session, namespace| {
            let mut scan = session.scan(namespace)?;
            while let Some(view) = scan.next()? {
                session.delete(namespace, view.key())?;
                done += 1;
            }
            Ok(())
        });
        match removed {
            Err(error) if done != 0 => Err(error.after_partial_execution()),
            other => other.map(drop),
        }
    }
}

const fn is_done(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Done { .. })
}
