//! Replies with the elements of large sets and hashes, in slices between which other clients are
//! served. The reply is that of one instant: if a collection changes between two slices, the task
//! begins again, and after some repetitions it runs in one piece.

use super::deferred_array::{DeferredArray, ElementSource};
use crate::records::{KeyedRecords, RecordRef};
use crate::reply::ReplyWriter;
use crate::reply::error_reply::{CommandResult, ErrorReply};
use crate::server::RespServer;
use nearstate_model::Error;
use nearstate_store::{Fields, Members, Namespace};
use std::collections::BTreeSet;

/// Up to this many elements are returned at once, which takes less than a millisecond.
pub(super) const DIRECT_MAX: usize = 5_000;

/// With more keys than this, each slice would spend most of its time on finding them.
pub(super) const KEYS_MAX: usize = 64;

/// Elements of a slice, which takes 20 to 50 us.
const SLICE_ELEMENTS: u64 = 256;

/// Repetitions in slices.
const RESTARTS_MAX: u32 = 3;

/// What the reply contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Selection {
    /// The members of the result of an operation on sets.
    Members(SetOperation),
    /// The number of members of an intersection, up to a limit.
    CountOfIntersection(usize),
    /// The names of a hash.
    Names,
    /// The values of a hash.
    Values,
    /// The names and values of a hash.
    Fields,
}

/// Checks that a reply has as many elements as its head says. A damaged collection counts others.
pub(super) fn check_count(counted: usize, written: usize) -> CommandResult {
    if counted == written {
        return Ok(());
    }
    let detail = format!(
        "a collection counts {counted} elements and has {written}: run `nearstate region check \
         --repair`"
    );
    Err(Error::Damaged { detail }.into())
}

/// The members of a set; none if the key does not exist.
pub(super) fn members<'f>(found: Option<&'f RecordRef<'_>>) -> Result<Members<'f>, ErrorReply> {
    found.map_or(Ok(Members::default()), RecordRef::members)
}

/// The fields of a hash; none if the key does not exist.
pub(super) fn fields<'f>(found: Option<&'f RecordRef<'_>>) -> Result<Fields<'f>, ErrorReply> {
    found.map_or(Ok(Fields::default()), RecordRef::fields)
}

/// Operation on several sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SetOperation {
    Intersection,
    Union,
    Difference,
}

impl SetOperation {
    /// Calls `each` with every member of the result in ascending order until it returns false. The
    /// sets are in the order of the request; missing ones are empty.
    pub(super) fn each<'m>(self, sets: &[Members<'m>], each: impl FnMut(&'m [u8]) -> bool) {
        let Some(first) = sets.first() else { return };
        match self {
            Self::Intersection => {
                let smallest = sets.iter().enumerate().min_by_key(|(_, set)| set.len());
                let (place, smallest) = smallest.unwrap_or((0, first));
                smallest.clone().filter(|member| self.has(sets, place, member)).all(each);
            }
            Self::Difference => {
                first.clone().filter(|member| self.has(sets, 0, member)).all(each);
            }
            Self::Union => {
                let all: BTreeSet<&[u8]> = sets.iter().cloned().flatten().collect();
                all.into_iter().all(each);
            }
        }
    }

    /// Whether a member of the set at a place is returned for this set.
    fn has(self, sets: &[Members<'_>], place: usize, member: &[u8]) -> bool {
        let mut others = sets.iter().enumerate().filter(|(other, _)| *other != place);
        match self {
            Self::Intersection => others.all(|(_, other)| other.contains(member)),
            Self::Difference => !others.any(|(_, other)| other.contains(member)),
            // A member of several sets is one of the first of them.
            Self::Union => {
                !others.any(|(other, members)| other < place && members.contains(member))
            }
        }
    }
}

/// A key; without a namespace, it does not exist.
#[derive(Debug)]
pub(super) struct CollectionKey {
    namespace: Option<Namespace>,
    key: Vec<u8>,
}

impl CollectionKey {
    pub(super) fn resolve(records: &KeyedRecords, key: &[u8]) -> Result<Self, ErrorReply> {
        let resolved = records.resolve(key)?;
        Ok(Self {
            namespace: resolved.map(|resolved| resolved.namespace),
            key: resolved.map_or_else(Vec::new, |resolved| resolved.key.to_vec()),
        })
    }
}

/// The elements of a reply.
#[derive(Debug)]
pub(super) struct CollectionSource {
    selection: Selection,
    keys: Vec<CollectionKey>,
    /// The versions that are read; `None` of a key that does not exist.
    versions: Vec<Option<u64>>,
    restarts: u32,
    /// The set whose members are read, and the cursor in it.
    set: usize,
    cursor: u64,
    /// Members of the result, up to a limit.
    count: usize,
}

impl CollectionSource {
    pub(super) fn new(selection: Selection, keys: Vec<CollectionKey>) -> Self {
        Self { selection, keys, versions: Vec::new(), restarts: 0, set: 0, cursor: 0, count: 0 }
    }

    fn begin_again(&mut self, elements: &mut DeferredArray) {
        (self.set, self.cursor, self.count) = (0, 0, 0);
        *elements = DeferredArray::default();
        self.restarts += 1;
    }

    /// Reads up to `budget` elements. True after the last one.
    fn walk(
        &mut self,
        found: &[Option<RecordRef<'_>>],
        budget: u64,
        elements: &mut DeferredArray,
    ) -> Result<bool, ErrorReply> {
        let (selection, cursor) = (self.selection, self.cursor);
        let (operation, limit) = match selection {
            Selection::Members(operation) => (operation, usize::MAX),
            Selection::CountOfIntersection(limit) => (SetOperation::Intersection, limit),
            Selection::Names | Selection::Values | Selection::Fields => {
                let fields = fields(found.first().and_then(Option::as_ref))?;
                self.cursor = fields.scan_from(cursor, budget, |name, value| {
                    if selection != Selection::Values {
                        elements.push(name);
                    }
                    if selection != Selection::Names {
                        elements.push(value);
                    }
                });
                return Ok(self.cursor == 0);
            }
        };
        let sets = found.iter().map(|found| members(found.as_ref()));
        let sets = sets.collect::<Result<Vec<Members<'_>>, ErrorReply>>()?;
        let (driver, is_last) = match operation {
            SetOperation::Intersection => {
                let smallest = sets.iter().enumerate().min_by_key(|(_, set)| set.len());
                (smallest.map_or(0, |(place, _)| place), true)
            }
            SetOperation::Difference => (0, true),
            SetOperation::Union => (self.set, self.set + 1 >= sets.len()),
        };
        let Some(set) = sets.get(driver) else { return Ok(true) };
        self.cursor = set.scan_from(cursor, budget, |member| {
            if self.count < limit && operation.has(&sets, driver, member) {
                self.count += 1;
                if matches!(selection, Selection::Members(_)) {
                    elements.push(member);
                }
            }
        });
        if self.cursor == 0 {
            self.set += 1;
        }
        Ok(self.cursor == 0 && is_last || self.count >= limit)
    }
}

impl ElementSource for CollectionSource {
    fn read(
        &mut self,
        records: &KeyedRecords,
        _: &RespServer,
        elements: &mut DeferredArray,
    ) -> Result<bool, ErrorReply> {
        let txn = records.session().begin()?;
        let read = txn.validated_once(|| {
            let record = |key: &CollectionKey| match key.namespace {
                Some(namespace) => Ok(txn.get(namespace, &key.key)?.map(RecordRef)),
                None => Ok(None),
            };
            self.keys.iter().map(record).collect::<Result<Vec<_>, Error>>()
        });
        let found = match read {
            Ok(found) => found,
            // Another client has committed a write meanwhile.
            Err(Error::Conflict { .. }) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let versions: Vec<Option<u64>> =
            found.iter().map(|found| found.as_ref().and_then(RecordRef::version)).collect();
        if self.versions != versions {
            if !self.versions.is_empty() {
                self.begin_again(elements);
            }
            self.versions = versions;
        }
        let is_whole = self.restarts > RESTARTS_MAX;
        let budget = if is_whole { u64::MAX } else { SLICE_ELEMENTS };
        let mut is_done = self.walk(&found, budget, elements)?;
        while is_whole && !is_done {
            is_done = self.walk(&found, budget, elements)?;
        }
        Ok(is_done)
    }

    fn write_head(&self, elements: &DeferredArray, reply: &mut ReplyWriter<'_>) {
        let count = elements.count();
        match self.selection {
            Selection::Members(_) => reply.set(count),
            Selection::CountOfIntersection(_) => reply.count(self.count),
            Selection::Names | Selection::Values => reply.array(count),
            Selection::Fields => reply.map(count / 2),
        }
    }

    fn memory_bytes(&self) -> usize {
        self.keys.iter().map(|key| key.key.len() + size_of::<CollectionKey>()).sum()
    }
}
