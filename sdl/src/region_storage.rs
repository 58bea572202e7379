//! The region back-end: operations on shared memory, without a server, and without a system call
//! for reads.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use nearstate_model::Error as Cause;
use nearstate_store::{
    AttachOptions, Condition, Form, Kind, Namespace, Outcome, Pattern, Region, Schema, Session,
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

    fn keys(&mut self, namespace: &str, pattern: Pattern<'_>) -> Result<KeySet> {
        let Some(namespace) = self.existing(namespace)? else { return Ok(KeySet::new()) };
        let mut keys = KeySet::new();
        self.session.list(namespace, pattern, |key| {
            keys.insert(key.to_vec());
        })?;
        Ok(keys)
    }
}

impl RegionStorage {
    /// The result of a change under the condition that a record has a value.
    ///
    /// # Errors
    /// `RejectedByBackend` (`WrongKind`) if the record is a hash or a set, as on the other
    /// back-ends.
    fn is_changed(&self, (namespace, key): (Namespace, &[u8]), outcome: Outcome) -> Result<bool> {
        if let Outcome::Refused { current: Some(_) } = outcome {
            let found = self.session.get(namespace, key)?;
            if let Some(form) = found.map(|view| view.form()).filter(|form| *form != Form::Value) {
                let key = String::from_utf8_lossy(key);
                return Err(Cause::WrongKind {
                    detail: format!(
                        "record {key:?} has the form {form:?}, not a value: compare values only"
                    ),
                }
                .into());
            }
        }
        Ok(is_done(outcome))
    }
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
        let namespace = self.namespace(namespace)?;
        match pairs {
            [] => {}
            [(key, value)] => {
                self.session.put(namespace, key, value)?;
            }
            several => self.session.transact(|txn| -> nearstate_store::Result<()> {
                for (key, value) in several {
                    txn.put(namespace, key, value)?;
                }
                Ok(())
            })?,
        }
        Ok(())
    }

    fn set_if(&mut self, namespace: &str, key: &[u8], old: &[u8], new: &[u8]) -> Result<bool> {
        validate::compared(key, old, new)?;
        let Some(namespace) = self.existing(namespace)? else { return Ok(false) };
        let outcome = self.session.put_if(namespace, key, new, Condition::Value(old))?;
        self.is_changed((namespace, key), outcome)
    }

    fn set_if_not_exists(&mut self, namespace: &str, key: &[u8], value: &[u8]) -> Result<bool> {
        let namespace = self.namespace(namespace)?;
        validate::record(key, value)?;
        Ok(is_done(self.session.put_if(namespace, key, value, Condition::Absent)?))
    }

    fn visit(
        &mut self,
        namespace: &str,
        keys: &[&[u8]],
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        validate::read(keys.len())?;
        let Some(namespace) = self.existing(namespace)? else { return Ok(()) };
        self.session.get_batch_whole(namespace, keys, |_, view| {
            if let Some(view) = view.filter(|view| view.form() == Form::Value) {
                each(view.key(), view.bytes());
            }
        })?;
        Ok(())
    }

    fn remove(&mut self, namespace: &str, keys: &[&[u8]]) -> Result<()> {
        validate::remove(keys)?;
        let Some(namespace) = self.existing(namespace)? else { return Ok(()) };
        match keys {
            [] => {}
            [key] => {
                self.session.delete(namespace, key)?;
            }
            several => {
                let records: Vec<_> = several.iter().map(|key| (namespace, *key)).collect();
                let delete = |txn: &nearstate_store::Txn<'_>| txn.delete_all(&records);
                self.session.transact(delete)?;
            }
        }
        Ok(())
    }

    fn remove_if(&mut self, namespace: &str, key: &[u8], value: &[u8]) -> Result<bool> {
        validate::record(key, value)?;
        let Some(namespace) = self.existing(namespace)? else { return Ok(false) };
        let outcome = self.session.delete_if(namespace, key, Condition::Value(value))?;
        self.is_changed((namespace, key), outcome)
    }

    fn list_keys(&mut self, namespace: &str, pattern: &[u8]) -> Result<KeySet> {
        self.keys(namespace, Pattern::Glob(pattern))
    }

    fn find_keys(&mut self, namespace: &str, prefix: &[u8]) -> Result<KeySet> {
        self.keys(namespace, Pattern::Prefix(prefix))
    }

    fn remove_all(&mut self, namespace: &str) -> Result<()> {
        let Some(namespace) = self.existing(namespace)? else { return Ok(()) };
        let mut scan = self.session.scan(namespace)?;
        let mut done = 0;
        while let Some(view) = scan.next()? {
            self.session.delete(namespace, view.key()).map_err(|cause| partial(done, cause))?;
            done += 1;
        }
        Ok(())
    }
}

/// An error after `done` records were changed.
fn partial(done: usize, cause: nearstate_model::Error) -> crate::Error {
    let error = crate::Error::from(cause);
    if done == 0 { error } else { error.after_partial_execution() }
}

const fn is_done(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Done { .. })
}
