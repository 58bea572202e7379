//! Iteration over the keys of namespaces in slices, for `KEYS`, `SCAN`, `NGET`, `NDEL`, `DBSIZE`
//! and `FLUSHALL`.

use crate::key_name::{KeyName, PLAIN_NAMESPACE, pattern_namespace, prefix_of};
use crate::records::KeyedRecords;
use crate::reply::error_reply::ErrorReply;
use nearstate_node::executor::is_due;
use nearstate_store::{Buckets, Namespace, Session, View, glob};
use std::collections::VecDeque;

/// Buckets between two checks of the clock: about thirty records. Most take some tens of
/// nanoseconds; long keys with patterns of many stars take some microseconds each.
const BUCKETS_PER_PART: u64 = 8;

/// A namespace and the prefix of its keys as clients write them.
#[derive(Clone, Debug)]
pub(super) struct NamespaceKeys {
    pub(super) prefix: Vec<u8>,
    pub(super) namespace: Namespace,
}

impl NamespaceKeys {
    /// Writes a key of this namespace as clients write it to `key_text`. Returns false if clients
    /// cannot name it: an embedded process created a key that names another namespace.
    pub(super) fn write_key(&self, key: &[u8], key_text: &mut Vec<u8>) -> bool {
        key_text.clear();
        key_text.extend_from_slice(&self.prefix);
        key_text.extend_from_slice(key);
        !self.prefix.is_empty() || KeyName::of(key).namespace == PLAIN_NAMESPACE
    }
}

/// The namespaces that may have keys that match a pattern (`None`: any key), in the order of their
/// places ([`Namespace::place`]).
pub(super) fn list_namespaces(
    records: &KeyedRecords,
    pattern: Option<&[u8]>,
) -> Result<Vec<NamespaceKeys>, ErrorReply> {
    if let Some(KeyName { namespace, .. }) = pattern.and_then(pattern_namespace) {
        let known = records.namespace(namespace)?;
        let namespace_keys = |namespace_known| {
            Some(NamespaceKeys { prefix: prefix_of(namespace)?, namespace: namespace_known })
        };
        return Ok(known.and_then(namespace_keys).into_iter().collect());
    }
    let all = records.namespaces()?.into_iter();
    Ok(all.map(|(prefix, namespace)| NamespaceKeys { prefix, namespace }).collect())
}

/// Memory of the list of namespaces in bytes.
pub(super) fn list_bytes(namespaces: &[NamespaceKeys]) -> usize {
    namespaces
        .iter()
        .map(|namespace_keys| size_of::<NamespaceKeys>() + namespace_keys.prefix.len())
        .sum()
}

/// Whether a key, as clients write it, matches.
pub(super) fn matches(pattern: Option<&[u8]>, key_text: &[u8]) -> bool {
    pattern.is_none_or(|pattern| glob::matches(pattern, key_text))
}

/// Iterates over namespaces one after the other. Records that exist throughout are visited once.
/// Records that are created or deleted meanwhile may or may not be visited.
#[derive(Debug)]
pub(super) struct KeyIterator {
    namespaces: VecDeque<NamespaceKeys>,
    buckets: Option<Buckets>,
    /// The pattern of keys; `None` for any key.
    pattern: Option<Vec<u8>>,
    /// The current key as clients write it.
    key_text: Vec<u8>,
    /// Initial memory, which is the maximum.
    bytes: usize,
}

impl KeyIterator {
    /// The first namespace whose commits wait for other hosts, if this host makes them.
    pub(super) fn first_replicated(
        &self,
        session: &Session,
    ) -> Result<Option<Namespace>, ErrorReply> {
        for NamespaceKeys { namespace, .. } in &self.namespaces {
            if session.is_replicated_from_here(*namespace)? {
                return Ok(Some(*namespace));
            }
        }
        Ok(None)
    }

    pub(super) fn new(namespaces: Vec<NamespaceKeys>, pattern: Option<&[u8]>) -> Self {
        let bytes = list_bytes(&namespaces) + pattern.map_or(0, <[u8]>::len);
        let (namespaces, pattern) = (namespaces.into(), pattern.map(<[u8]>::to_vec));
        Self { namespaces, buckets: None, pattern, key_text: Vec::new(), bytes }
    }

    /// Memory in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes + self.key_text.capacity()
    }

    /// The current namespace and its remaining buckets; `None` at the end.
    pub(super) fn current(
        &mut self,
        session: &Session,
    ) -> Result<Option<(&NamespaceKeys, &mut Buckets)>, ErrorReply> {
        // A namespace that was removed meanwhile has no keys.
        while self.namespaces.front().is_some_and(|keys| !session.has_namespace(keys.namespace)) {
            self.next_namespace();
        }
        let Some(namespace_keys) = self.namespaces.front() else { return Ok(None) };
        if self.buckets.is_none() {
            self.buckets = Some(session.buckets(namespace_keys.namespace)?);
        }
        Ok(self.buckets.as_mut().map(|buckets| (namespace_keys, buckets)))
    }

    /// Continues with the next namespace.
    pub(super) fn next_namespace(&mut self) {
        self.namespaces.pop_front();
        self.buckets = None;
    }

    /// One slice: at most `most` buckets of one namespace, limited by the time slice. Calls `each`
    /// with every record. Returns false at the end.
    pub(super) fn walk(
        &mut self,
        session: &Session,
        limit: u64,
        mut each: impl FnMut(&NamespaceKeys, View<'_>),
    ) -> Result<bool, ErrorReply> {
        let mut left = limit;
        while left > 0 {
            let Some((namespace_keys, buckets)) = self.current(session)? else { return Ok(false) };
            let part = left.min(BUCKETS_PER_PART);
            let namespace = namespace_keys.namespace;
            let walked = session.walk_buckets(namespace, buckets, part, |view| {
                each(namespace_keys, view);
                Ok(())
            });
            left -= part;
            let has_more = match walked {
                Err(_) if !session.has_namespace(namespace) => false,
                walked => walked?,
            };
            if !has_more {
                self.next_namespace();
                break;
            }
            if is_due() {
                break;
            }
        }
        Ok(!self.namespaces.is_empty())
    }

    /// One slice. Calls `each` with the matching records and their keys until it returns an error.
    /// Returns false at the end.
    pub(super) fn walk_keys(
        &mut self,
        session: &Session,
        limit: u64,
        mut each: impl FnMut(&[u8], &View<'_>) -> Result<(), ErrorReply>,
    ) -> Result<bool, ErrorReply> {
        let (pattern, mut key_text) = (self.pattern.take(), std::mem::take(&mut self.key_text));
        let mut refused = Ok(());
        let walked = self.walk(session, limit, |namespace_keys, view| {
            if refused.is_ok()
                && namespace_keys.write_key(view.key(), &mut key_text)
                && matches(pattern.as_deref(), &key_text)
            {
                refused = each(&key_text, &view);
            }
        });
        (self.pattern, self.key_text) = (pattern, key_text);
        refused.and(walked)
    }
}
