//! Walks over the keys of namespaces, a slice at a time: what `KEYS`, `SCAN`, `NGET`, `NDEL`,
//! `DBSIZE` and `FLUSHALL` have in common.

use crate::key_name::{KeyName, PLAIN_NAMESPACE, pattern_namespace, prefix_of};
use crate::records::Records;
use crate::reply::error_reply::ErrorReply;
use nearstate_node::executor::is_due;
use nearstate_store::{Buckets, Namespace, Session, View, glob};
use std::collections::VecDeque;

/// Buckets between two looks at the clock: some thirty records. Most cost some tens of nanoseconds,
/// long keys under a pattern with many stars some microseconds each.
const BUCKETS_PER_LOOK: u64 = 8;

/// A namespace, and what stands before its keys where clients say them.
#[derive(Clone, Debug)]
pub(super) struct NamespaceKeys {
    pub(super) prefix: Vec<u8>,
    pub(super) namespace: Namespace,
}

impl NamespaceKeys {
    /// A key of this namespace as clients say it, in `said`. False if they cannot say it: an
    /// embedded process has put a key there that names another namespace.
    pub(super) fn say(&self, key: &[u8], said: &mut Vec<u8>) -> bool {
        said.clear();
        said.extend_from_slice(&self.prefix);
        said.extend_from_slice(key);
        !self.prefix.is_empty() || KeyName::of(key).namespace == PLAIN_NAMESPACE
    }
}

/// The namespaces that may have keys that match a pattern (`None`: any key), always in the same
/// order: new ones come behind.
pub(super) fn areas(records: &Records, pattern: Option<&[u8]>) -> Result<Vec<NamespaceKeys>, ErrorReply> {
    if let Some(KeyName { namespace, .. }) = pattern.and_then(pattern_namespace) {
        let known = records.namespace(namespace)?;
        let area = |namespace_known| {
            Some(NamespaceKeys { prefix: prefix_of(namespace)?, namespace: namespace_known })
        };
        return Ok(known.and_then(area).into_iter().collect());
    }
    let all = records.namespaces()?.into_iter();
    Ok(all.map(|(prefix, namespace)| NamespaceKeys { prefix, namespace }).collect())
}

/// What the list of namespaces takes, in bytes.
pub(super) fn bytes_of(areas: &[NamespaceKeys]) -> usize {
    areas.iter().map(|area| size_of::<NamespaceKeys>() + area.prefix.len()).sum()
}

/// Whether a key, as clients say it, is asked for.
pub(super) fn takes(pattern: Option<&[u8]>, said: &[u8]) -> bool {
    pattern.is_none_or(|pattern| glob::matches(pattern, said))
}

/// Namespaces that are walked through one after the other. Every record that is there all the while
/// is met once; of those that come or go meanwhile any.
#[derive(Debug)]
pub(super) struct KeyspaceWalk {
    areas: VecDeque<NamespaceKeys>,
    buckets: Option<Buckets>,
    /// What keys must match; `None`: any key.
    pattern: Option<Vec<u8>>,
    /// The present key, as clients say it.
    said: Vec<u8>,
    /// What it took at first: more than it takes now.
    bytes: usize,
}

impl KeyspaceWalk {
    pub(super) fn new(areas: Vec<NamespaceKeys>, pattern: Option<&[u8]>) -> Self {
        let bytes = bytes_of(&areas) + pattern.map_or(0, <[u8]>::len);
        let (areas, pattern) = (areas.into(), pattern.map(<[u8]>::to_vec));
        Self { areas, buckets: None, pattern, said: Vec::new(), bytes }
    }

    /// What it takes, in bytes.
    pub(super) fn kept(&self) -> usize {
        self.bytes + self.said.capacity()
    }

    /// The present namespace and what is left to look at there; `None` at the end.
    pub(super) fn here(
        &mut self,
        session: &Session,
    ) -> Result<Option<(&NamespaceKeys, &mut Buckets)>, ErrorReply> {
        let Some(area) = self.areas.front() else { return Ok(None) };
        if self.buckets.is_none() {
            self.buckets = Some(session.buckets(area.namespace)?);
        }
        Ok(self.buckets.as_mut().map(|buckets| (area, buckets)))
    }

    /// On to the next namespace.
    pub(super) fn leave(&mut self) {
        self.areas.pop_front();
        self.buckets = None;
    }

    /// A slice: so many buckets of one namespace at the most, and not longer than a task should
    /// take. Calls `each` with every record. False at the end.
    pub(super) fn walk(
        &mut self,
        session: &Session,
        most: u64,
        mut each: impl FnMut(&NamespaceKeys, View<'_>),
    ) -> Result<bool, ErrorReply> {
        let mut left = most;
        while left > 0 {
            let Some((area, buckets)) = self.here(session)? else { return Ok(false) };
            let part = left.min(BUCKETS_PER_LOOK);
            let has_more = session.walk_buckets(area.namespace, buckets, part, |view| {
                each(area, view);
                Ok(())
            })?;
            left -= part;
            if !has_more {
                self.leave();
                break;
            }
            if is_due() {
                break;
            }
        }
        Ok(!self.areas.is_empty())
    }

    /// A slice, of which `each` is called with the records that are asked for and their keys, until
    /// it refuses. False at the end.
    pub(super) fn find(
        &mut self,
        session: &Session,
        most: u64,
        mut each: impl FnMut(&[u8], &View<'_>) -> Result<(), ErrorReply>,
    ) -> Result<bool, ErrorReply> {
        let (pattern, mut said) = (self.pattern.take(), std::mem::take(&mut self.said));
        let mut refused = Ok(());
        let walked = self.walk(session, most, |area, view| {
            if refused.is_ok()
                && area.say(view.key(), &mut said)
                && takes(pattern.as_deref(), &said)
            {
                refused = each(&said, &view);
            }
        });
        (self.pattern, self.said) = (pattern, said);
        refused.and(walked)
    }
}
