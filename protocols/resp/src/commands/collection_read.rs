//! Reads the elements of large sets and hashes in slices between which other clients are served.
//! All elements are those of one instant: if a collection changes between two slices, the read
//! begins again, and after some repetitions it runs in one piece, for a limited time.

use crate::records::{KeyedRecords, RecordRef};
use crate::reply::error_reply::{CommandResult, ErrorReply};
use nearstate_model::Error;
use nearstate_store::{Fields, Members, Namespace, thread_time};
use std::collections::BTreeSet;
use std::time::Duration;

/// Up to this many elements are processed at once, which takes less than a millisecond.
pub(super) const DIRECT_MAX: usize = 5_000;

/// With more sets than this, searching a member in all of them takes longer than copying it. Keys
/// without a set do not count. The slices of an intersection or difference have fewer elements
/// then, and a union keeps the members that it has returned.
const SETS_MAX: usize = 64;

/// Memory of a member that a union keeps, besides its bytes.
const SEEN_BYTES: usize = 48;

/// Members that are visited, or searched in a set, between two checks of a deadline.
const VISITS_PER_CHECK: usize = 4096;

/// Elements of a slice, which takes 20 to 50 us.
const SLICE_ELEMENTS: usize = 256;

/// Bytes of the elements after which a slice ends: copying them takes about as long as reading
/// [`SLICE_ELEMENTS`] small ones.
pub(super) const SLICE_BYTES: usize = 128 << 10;

/// Repetitions in slices.
const RESTARTS_MAX: u32 = 3;

/// The processor time of a read in one piece, which delays all clients of its core: that of about a
/// million small elements. Then the read is refused.
const WHOLE_MAX: Duration = Duration::from_millis(100);

/// What is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Selection {
    /// The members of the result of an operation on sets.
    Members(SetOperation),
    /// The fields of a hash.
    Fields,
}

/// Checks that a collection has as many elements as its head says. A damaged one counts others.
pub(super) fn check_count(counted: usize, read: usize) -> CommandResult {
    if counted == read {
        return Ok(());
    }
    let detail = format!(
        "a collection counts {counted} elements and has {read}: run `nearstate region check \
         --repair`"
    );
    Err(Error::Damaged { detail }.into())
}

/// Writes the elements of a collection that counts so many.
///
/// # Errors
/// That of `check`, which is called after each [`SLICE_ELEMENTS`]; those of [`check_count`].
pub(super) fn write_all<E>(
    (counted, elements): (usize, impl Iterator<Item = E>),
    check: &dyn Fn() -> CommandResult,
    mut write: impl FnMut(E),
) -> CommandResult {
    let mut read = 0;
    for element in elements {
        write(element);
        read += 1;
        if read % SLICE_ELEMENTS == 0 {
            check()?;
        }
    }
    check_count(counted, read)
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
    ///
    /// # Errors
    /// That of `check`, which is called after some thousand members.
    pub(super) fn each<'m>(
        self,
        sets: &[Members<'m>],
        check: &dyn Fn() -> CommandResult,
        mut each: impl FnMut(&'m [u8]) -> bool,
    ) -> CommandResult {
        let mut visits = 0;
        let mut visit = |count: usize| {
            visits += count;
            if visits < VISITS_PER_CHECK {
                return Ok(());
            }
            visits = 0;
            check()
        };
        let Some(first) = sets.first() else { return Ok(()) };
        let (place, driver) = match self {
            Self::Intersection => {
                let smallest = sets.iter().enumerate().min_by_key(|(_, set)| set.len());
                smallest.unwrap_or((0, first))
            }
            Self::Difference => (0, first),
            Self::Union => {
                let mut all: BTreeSet<&[u8]> = BTreeSet::new();
                for member in sets.iter().cloned().flatten() {
                    visit(1)?;
                    all.insert(member);
                }
                all.into_iter().all(each);
                return Ok(());
            }
        };
        for member in driver.clone() {
            visit(sets.len())?;
            if self.has(sets, place, member) && !each(member) {
                break;
            }
        }
        Ok(())
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
    pub(super) namespace: Option<Namespace>,
    pub(super) key: Vec<u8>,
}

impl CollectionKey {
    /// A key as clients name it.
    pub(super) fn of(records: &KeyedRecords, key: &[u8]) -> Result<Self, ErrorReply> {
        // Another process may have removed the namespace since the record was read.
        let resolved = records.resolve(key)?;
        Ok(Self {
            namespace: resolved.map(|resolved| resolved.namespace),
            key: resolved.map_or_else(Vec::new, |resolved| resolved.key.to_vec()),
        })
    }
}

/// What a read is for.
pub(super) trait ElementSink {
    /// The read begins, for the first time or again: these are the records.
    fn begin(
        &mut self,
        records: &KeyedRecords,
        found: &[Option<RecordRef<'_>>],
    ) -> Result<(), ErrorReply>;

    /// A member of the result, with an empty value, or a field. False: no more elements are needed.
    fn push(&mut self, name: &[u8], value: &[u8]) -> Result<bool, ErrorReply>;

    /// Bytes that are collected since the read began.
    fn bytes(&self) -> usize;
}

/// Progress of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadProgress {
    /// More slices follow.
    More,
    /// All elements were read.
    Done,
}

/// A read of collections.
#[derive(Debug)]
pub(super) struct CollectionRead {
    selection: Selection,
    keys: Vec<CollectionKey>,
    /// The versions that are read; `None` of a key that does not exist.
    versions: Vec<Option<u64>>,
    restarts: u32,
    /// [`WHOLE_MAX`], except in tests.
    pub(super) whole_max: Duration,
    /// The set whose members are read, the cursor in it, and how many were read.
    set: usize,
    cursor: u64,
    read: usize,
    seen: SeenMembers,
}

/// The members that a union of many sets has returned. There are no more than its result may have.
#[derive(Debug, Default)]
struct SeenMembers {
    members: BTreeSet<Box<[u8]>>,
    bytes: usize,
}

impl SeenMembers {
    /// True if the member is new.
    fn insert(&mut self, member: &[u8]) -> bool {
        if self.members.contains(member) {
            return false;
        }
        self.bytes += member.len() + SEEN_BYTES;
        self.members.insert(member.into())
    }
}

/// The collections of a slice.
enum Sources<'f> {
    Fields(Fields<'f>),
    /// Those that count.
    Sets(SetOperation, Vec<Members<'f>>),
}

impl<'f> Sources<'f> {
    fn new(selection: Selection, found: &'f [Option<RecordRef<'_>>]) -> Result<Self, ErrorReply> {
        let Selection::Members(operation) = selection else {
            return Ok(Self::Fields(fields(found.first().and_then(Option::as_ref))?));
        };
        // Keys without a set change nothing, except the first one of a difference, and each of an
        // intersection.
        let counts = |place: usize, found: &Option<RecordRef<'_>>| match operation {
            SetOperation::Intersection => true,
            SetOperation::Difference => place == 0 || found.is_some(),
            SetOperation::Union => found.is_some(),
        };
        let sets = found.iter().enumerate().filter(|(place, found)| counts(*place, found));
        let sets = sets.map(|(_, found)| members(found.as_ref()));
        Ok(Self::Sets(operation, sets.collect::<Result<Vec<_>, ErrorReply>>()?))
    }

    /// True if members are kept instead of searched in the sets before.
    const fn is_union_of_many(operation: SetOperation, sets: &[Members<'_>]) -> bool {
        matches!(operation, SetOperation::Union) && sets.len() > SETS_MAX
    }

    /// The elements of a slice. Finding the records takes longer than reading some hundred members
    /// if they are thousands, and so do searches.
    fn slice_elements(&self) -> usize {
        match self {
            Self::Sets(operation, sets) if sets.len() > SETS_MAX => match operation {
                SetOperation::Union => SLICE_ELEMENTS.max(sets.len()),
                SetOperation::Intersection | SetOperation::Difference => {
                    (SLICE_ELEMENTS * SETS_MAX / sets.len()).max(1)
                }
            },
            Self::Fields(_) | Self::Sets(..) => SLICE_ELEMENTS,
        }
    }
}

impl CollectionRead {
    pub(super) fn new(selection: Selection, keys: Vec<CollectionKey>) -> Self {
        let (versions, restarts, set, cursor, read) = (Vec::new(), 0, 0, 0, 0);
        let (whole_max, seen) = (WHOLE_MAX, SeenMembers::default());
        Self { selection, keys, versions, restarts, whole_max, set, cursor, read, seen }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let keys = self.keys.iter().map(|key| key.key.len() + size_of::<CollectionKey>());
        keys.sum::<usize>() + self.seen.bytes
    }

    /// True if the collections change so often that they are read in one piece.
    pub(super) const fn is_whole(&self) -> bool {
        self.restarts > RESTARTS_MAX
    }

    /// Begins again: the records have changed.
    pub(super) fn restart(&mut self) {
        (self.set, self.cursor, self.read) = (0, 0, 0);
        self.versions = Vec::new();
        self.seen = SeenMembers::default();
        self.restarts += 1;
    }

    /// True if these records are those that were read.
    pub(super) fn is_current(&self, found: &[Option<RecordRef<'_>>]) -> bool {
        self.versions == versions(found)
    }

    /// Reads a slice.
    pub(super) fn step(
        &mut self,
        records: &KeyedRecords,
        sink: &mut impl ElementSink,
    ) -> Result<ReadProgress, ErrorReply> {
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
            Err(Error::Conflict { .. }) => return Ok(ReadProgress::More),
            Err(error) => return Err(error.into()),
        };
        if self.versions.is_empty() || !self.is_current(&found) {
            if !self.versions.is_empty() {
                self.restart();
            }
            self.versions = versions(&found);
            sink.begin(records, &found)?;
        }
        let begin = thread_time();
        while !self.slice(&found, sink)? {
            if !self.is_whole() {
                return Ok(ReadProgress::More);
            }
            if thread_time().saturating_sub(begin) >= self.whole_max {
                return Err(ErrorReply::fixed(
                    "BUSY the collection changes while it is read, and is too large to be read in \
                     one piece: read it with SSCAN or HSCAN, or try again",
                ));
            }
        }
        Ok(ReadProgress::Done)
    }

    /// Reads about [`SLICE_ELEMENTS`] elements, or [`SLICE_BYTES`] of them. Its steps are twice as
    /// long as what is read before, so that the last one exceeds the bytes by a factor and not by
    /// a slice of large elements. True after the last element.
    fn slice(
        &mut self,
        found: &[Option<RecordRef<'_>>],
        sink: &mut impl ElementSink,
    ) -> Result<bool, ErrorReply> {
        let sources = Sources::new(self.selection, found)?;
        let elements_max = sources.slice_elements();
        let (mut elements, begun) = (0, sink.bytes());
        while elements < elements_max && sink.bytes() - begun < SLICE_BYTES {
            let (read, is_end) = self.walk(&sources, elements.max(1), sink)?;
            if is_end {
                return Ok(true);
            }
            elements += read;
        }
        Ok(false)
    }

    /// Reads up to `budget` elements. Returns how many, and true after the last one.
    fn walk(
        &mut self,
        sources: &Sources<'_>,
        budget: usize,
        sink: &mut impl ElementSink,
    ) -> Result<(usize, bool), ErrorReply> {
        let budget = budget as u64;
        let (mut pushed, mut read) = (Ok(true), 0);
        let mut push = |name: &[u8], value: &[u8]| {
            if matches!(pushed, Ok(true)) {
                pushed = sink.push(name, value);
            }
        };
        let (operation, sets) = match sources {
            Sources::Sets(operation, sets) => (*operation, sets),
            Sources::Fields(fields) => {
                self.cursor = fields.scan_from(self.cursor, budget, |name, value| {
                    read += 1;
                    push(name, value);
                });
                let needs_more = pushed?;
                return Ok((read, self.end_of_set(read, fields.len())? || !needs_more));
            }
        };
        let (driver, is_last) = match operation {
            SetOperation::Intersection => {
                let smallest = sets.iter().enumerate().min_by_key(|(_, set)| set.len());
                (smallest.map_or(0, |(place, _)| place), true)
            }
            SetOperation::Difference => (0, true),
            SetOperation::Union => (self.set, self.set + 1 >= sets.len()),
        };
        let Some(set) = sets.get(driver) else { return Ok((0, true)) };
        let (is_kept, seen) = (Sources::is_union_of_many(operation, sets), &mut self.seen);
        self.cursor = set.scan_from(self.cursor, budget, |member| {
            read += 1;
            let is_result =
                if is_kept { seen.insert(member) } else { operation.has(sets, driver, member) };
            if is_result {
                push(member, b"");
            }
        });
        let needs_more = pushed?;
        Ok((read, self.end_of_set(read, set.len())? && is_last || !needs_more))
    }

    /// True after the last element of a set or hash, which counts this many.
    fn end_of_set(&mut self, read: usize, counted: usize) -> Result<bool, ErrorReply> {
        self.read += read;
        if self.cursor != 0 {
            return Ok(false);
        }
        check_count(counted, self.read)?;
        self.set += 1;
        self.read = 0;
        Ok(true)
    }
}

/// The versions of some records.
fn versions(found: &[Option<RecordRef<'_>>]) -> Vec<Option<u64>> {
    found.iter().map(|found| found.as_ref().and_then(RecordRef::version)).collect()
}
