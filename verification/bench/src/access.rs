//! The interface between a workload and a store, with one contract for all stores.
//!
//! A workload sees tables of records. A record has a key, one or more parts (named blocks: what a
//! procedure changes is a few of them) and tags by which it is found. A target turns these calls
//! into what its store has, or says in [`crate::targets::Capabilities`] how it emulates it.

use crate::operations::{self, KeyBlock, Operation, Store};
use nearstate_model::{Error, Result};

/// The largest number of tags of a record in one call.
pub const TAGS_MAX: usize = 8;

/// The largest number of parts of a record: a set of them fits in [`PartSet`].
pub const PARTS_MAX: usize = 16;

/// A table of a workload, by its place in [`StoreSchema::tables`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableId(pub usize);

/// The tables of a workload.
#[derive(Clone, Copy, Debug, Default)]
pub struct StoreSchema {
    pub tables: &'static [TableSchema],
}

impl StoreSchema {
    #[inline]
    pub fn table(&self, table: TableId) -> Result<&'static TableSchema> {
        self.tables.get(table.0).ok_or_else(|| table.unknown())
    }
}

impl TableId {
    /// The error of a table that the workload's schema does not have.
    #[cold]
    pub(crate) fn unknown(self) -> Error {
        declined(&format!("the workload's schema has no table {}", self.0))
    }
}

/// One kind of record.
#[derive(Clone, Copy, Debug)]
pub struct TableSchema {
    /// Its name, from lower case letters, digits and `-`.
    pub name: &'static str,
    /// Names of a record's parts. A table of one part holds plain values.
    pub parts: &'static [&'static str],
    /// The tags by which records are found.
    pub tags: &'static [TagRule],
    /// True if the workload calls [`StoreAccess::scan`] on it.
    pub is_scanned: bool,
}

impl TableSchema {
    /// A table without tags that is not scanned.
    pub const fn new(name: &'static str, parts: &'static [&'static str]) -> Self {
        Self { name, parts, tags: &[], is_scanned: false }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TagRule {
    pub name: &'static str,
    /// True if a value belongs to at most one record.
    pub is_unique: bool,
}

/// Some parts of a record, as a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartSet(pub u16);

impl PartSet {
    /// All parts.
    pub const ALL: Self = Self(u16::MAX);

    /// Only this part.
    pub const fn one(part: usize) -> Self {
        Self(1 << part)
    }

    /// True if it contains a part.
    #[inline]
    pub const fn has(self, part: usize) -> bool {
        self.0 & (1 << part) != 0
    }

    /// Both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// True if it is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// A part and its bytes.
pub type PartWrite<'a> = (usize, &'a [u8]);

/// A tag, by its place in [`TableSchema::tags`], and one value.
pub type RecordTag<'a> = (usize, &'a [u8]);

/// A whole record.
#[derive(Clone, Copy, Debug)]
pub struct RecordEntry<'a> {
    pub key: &'a [u8],
    pub parts: &'a [PartWrite<'a>],
    pub tags: &'a [RecordTag<'a>],
    /// The tags of the record that it replaces, none if there is no such record: for stores without
    /// indexes, where the user must remove the old tags.
    pub tags_before: &'a [RecordTag<'a>],
}

impl<'a> RecordEntry<'a> {
    /// A record without tags.
    pub const fn new(key: &'a [u8], parts: &'a [PartWrite<'a>]) -> Self {
        Self { key, parts, tags: &[], tags_before: &[] }
    }
}

/// A change of some parts, and perhaps of the tags.
#[derive(Clone, Copy, Debug)]
pub struct PartsChange<'a> {
    /// The record's key.
    pub key: &'a [u8],
    /// The parts that change.
    pub parts: &'a [PartWrite<'a>],
    /// All tags before and after, where they change.
    pub tags: Option<(&'a [RecordTag<'a>], &'a [RecordTag<'a>])>,
}

/// Hears the parts of a record, one call each.
pub type PartReceiver<'h> = dyn FnMut(usize, &[u8]) + 'h;

/// Which parts of which record are read.
#[derive(Clone, Copy, Debug)]
pub struct RecordRead<'a> {
    pub table: TableId,
    pub key: &'a [u8],
    pub wanted: PartSet,
}

/// The work on a record between reading and writing it.
pub trait Work {
    /// Receives a wanted part.
    fn receive(&mut self, part: usize, bytes: &[u8]);

    /// Is called after all wanted parts of an existing record were received. Changes the record by
    /// one call of `write`, or leaves it. If another client has changed the record meanwhile, a
    /// store may retry: it delivers the parts once more and calls this again.
    fn change(&mut self, write: &mut RecordWrite<'_>) -> Result<()>;
}

/// Makes a change of the record that was read.
pub type RecordWrite<'w> = dyn FnMut(&PartsChange<'_>) -> Result<()> + 'w;

/// Up to `count` records of a table in the order of their keys, from the key `from` on.
#[derive(Clone, Copy, Debug)]
pub struct ScanRange<'a> {
    pub table: TableId,
    pub from: &'a [u8],
    pub count: usize,
}

/// Receives the records of a scan: key and first part.
pub type ScanSink<'h> = dyn FnMut(&[u8], &[u8]) + 'h;

/// A connection of a store, whichever it is.
pub type Connection<'s> = dyn StoreConnection + 's;

/// Receives the replies to one request.
pub type ReplySink<'h> = dyn FnMut(StoreReply<'_>) + 'h;

/// Receives the replies to several requests, each with the number of its request.
pub type BatchSink<'h> = dyn FnMut(usize, StoreReply<'_>) + 'h;

/// Single operations, alone or in a transaction.
///
/// A store implements [`StoreAccess::perform`]; the other operations on single records call it.
pub trait StoreAccess {
    /// Performs a request: delivers the parts and the key that it asks for to `receive`, and
    /// returns what [`StoreReply::Done`] says. A store that can only read whole records may deliver
    /// more parts than were asked for.
    ///
    /// # Errors
    /// The store's error; `TagTaken` if another record has the value of a unique tag;
    /// `BadArgument` if the target declines the request.
    fn perform(&mut self, request: &Request<'_>, receive: &mut ReplySink<'_>) -> Result<bool>;

    /// Delivers the wanted parts of a record; false if the record does not exist.
    #[inline]
    fn read(
        &mut self,
        table: TableId,
        key: &[u8],
        wanted: PartSet,
        receive: &mut PartReceiver<'_>,
    ) -> Result<bool> {
        self.perform(&Request::Read { table, key, wanted }, &mut |reply| {
            if let StoreReply::Part(part, bytes) = reply {
                receive(part, bytes);
            }
        })
    }

    /// Puts a whole record, in the place of an existing one.
    #[inline]
    fn put(&mut self, table: TableId, entry: &RecordEntry<'_>) -> Result<()> {
        self.perform(&Request::Put { table, entry: *entry }, &mut |_| {}).map(drop)
    }

    /// Changes parts of a record; false if the record does not exist. Whether a change sends more
    /// than these parts depends on the store, and is described by its capabilities.
    #[inline]
    fn change(&mut self, table: TableId, change: &PartsChange<'_>) -> Result<bool> {
        self.perform(&Request::Change { table, change: *change }, &mut |_| {})
    }

    /// Deletes a record that has these tags; false if it does not exist.
    fn delete(&mut self, table: TableId, key: &[u8], tags: &[RecordTag<'_>]) -> Result<bool> {
        self.perform(&Request::Delete { table, key, tags }, &mut |_| {})
    }

    /// Finds the record with this value of a unique tag: writes its key to `key` and delivers its
    /// wanted parts; false if no record has it.
    #[expect(clippy::too_many_arguments, reason = "what to find, and two places for the result")]
    fn find(
        &mut self,
        table: TableId,
        tag: RecordTag<'_>,
        wanted: PartSet,
        key: &mut Vec<u8>,
        receive: &mut PartReceiver<'_>,
    ) -> Result<bool> {
        self.perform(&Request::Find { table, tag, wanted }, &mut |reply| match reply {
            StoreReply::Part(part, bytes) => receive(part, bytes),
            StoreReply::Key(found) => found.clone_into(key),
            StoreReply::Done(_) => {}
        })
    }

    /// Reads wanted parts of a record and changes it by what they are: the work's one change.
    /// False if the record does not exist; then the work is not asked for a change. It is
    /// a transaction only if the store makes it one: clients that share records need
    /// [`StoreConnection::transact`].
    #[inline]
    fn update(&mut self, read: RecordRead<'_>, work: &mut dyn Work) -> Result<bool> {
        let RecordRead { table, key, wanted } = read;
        let exists = self.read(table, key, wanted, &mut |part, bytes| work.receive(part, bytes))?;
        if !exists {
            return Ok(false);
        }
        let mut still_exists = true;
        work.change(&mut |change| {
            still_exists = self.change(table, change)?;
            Ok(())
        })?;
        Ok(still_exists)
    }

    /// Delivers records in the order of their keys: key and first part. Returns their number.
    fn scan(&mut self, _: &ScanRange<'_>, _: &mut ScanSink<'_>) -> Result<usize> {
        Err(declined("this target has no scan in the order of keys"))
    }
}

/// The error of an operation that a target does not have.
pub(crate) fn declined(why: &str) -> Error {
    Error::BadArgument { detail: why.to_owned() }
}

/// The bytes of the first part that is written, which is the value of a plain record.
#[inline]
pub(crate) fn first_part<'a>(parts: &[PartWrite<'a>]) -> &'a [u8] {
    parts.first().map(|(_, bytes)| *bytes).unwrap_or_default()
}

/// Delivers parts as replies.
#[inline]
pub(crate) fn parts(receive: &mut ReplySink<'_>) -> impl FnMut(usize, &[u8]) {
    move |part, bytes| receive(StoreReply::Part(part, bytes))
}

/// Performs requests one after the other.
#[inline]
pub fn perform_each(
    access: &mut (impl StoreAccess + ?Sized),
    requests: &[Request<'_>],
    receive: &mut BatchSink<'_>,
) -> Result<()> {
    for (number, request) in requests.iter().enumerate() {
        let done = access.perform(request, &mut |reply| receive(number, reply))?;
        receive(number, StoreReply::Done(done));
    }
    Ok(())
}

/// A request on one record.
#[derive(Clone, Copy, Debug)]
pub enum Request<'a> {
    /// [`StoreAccess::read`].
    Read {
        table: TableId,
        /// The record's key.
        key: &'a [u8],
        /// Which parts.
        wanted: PartSet,
    },
    /// [`StoreAccess::put`].
    Put {
        table: TableId,
        /// The record.
        entry: RecordEntry<'a>,
    },
    /// [`StoreAccess::change`].
    Change { table: TableId, change: PartsChange<'a> },
    /// [`StoreAccess::delete`].
    Delete {
        table: TableId,
        /// The record's key.
        key: &'a [u8],
        tags: &'a [RecordTag<'a>],
    },
    /// [`StoreAccess::find`].
    Find {
        table: TableId,
        /// A value of a unique tag.
        tag: RecordTag<'a>,
        /// Which parts.
        wanted: PartSet,
    },
}

impl Request<'_> {
    /// The table of the record.
    pub const fn table(&self) -> TableId {
        match self {
            Self::Read { table, .. }
            | Self::Put { table, .. }
            | Self::Change { table, .. }
            | Self::Delete { table, .. }
            | Self::Find { table, .. } => *table,
        }
    }
}

/// A reply to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreReply<'a> {
    /// A requested part. It precedes the request's [`StoreReply::Done`].
    Part(usize, &'a [u8]),
    /// The key of the record that was found. Comes between the parts and [`StoreReply::Done`].
    Key(&'a [u8]),
    /// The request is done; true if the record existed.
    Done(bool),
}

/// A reply that outlives its connection's buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnedReply {
    Part(usize, Vec<u8>),
    Key(Vec<u8>),
    Done(bool),
}

impl From<StoreReply<'_>> for OwnedReply {
    fn from(reply: StoreReply<'_>) -> Self {
        match reply {
            StoreReply::Part(part, bytes) => Self::Part(part, bytes.to_vec()),
            StoreReply::Key(key) => Self::Key(key.to_vec()),
            StoreReply::Done(done) => Self::Done(done),
        }
    }
}

impl OwnedReply {
    /// The reply.
    pub fn reply(&self) -> StoreReply<'_> {
        match self {
            Self::Part(part, bytes) => StoreReply::Part(*part, bytes),
            Self::Key(key) => StoreReply::Key(key),
            Self::Done(done) => StoreReply::Done(*done),
        }
    }
}

/// The body of a transaction. It may run several times, and must have the same result for the same
/// records, and reads nothing that it wrote.
pub type Body<'b> = dyn FnMut(&mut dyn StoreAccess) -> Result<()> + 'b;

/// One client's way to a store.
pub trait StoreConnection: StoreAccess {
    /// True if it stores nothing by design: replies are then not compared with a model.
    fn is_null(&self) -> bool {
        false
    }

    /// Whether the way to the store broke: it answers nothing any more, and what was on its way may
    /// or may not have been done. Not after an answer that is an error, and not after a stall: such
    /// a run does not count.
    fn is_lost(&self) -> bool {
        false
    }

    /// Takes `fresh`, a new connection to the same database, for one that was lost: what stands
    /// between the client and its store stays.
    fn renewed(&mut self, fresh: Box<dyn StoreConnection>) -> Box<dyn StoreConnection> {
        fresh
    }

    /// Runs `body` as one transaction: all of its writes or none, on records that no other client
    /// changed between its reads and its commit. Runs it again after a conflict. An error that
    /// `body` returns aborts it and comes back.
    fn transact(&mut self, _: &mut Body<'_>) -> Result<()> {
        Err(declined("this target has no transactions"))
    }

    /// Runs a block of single operations on [`OPERATIONS`]; returns the number of records that
    /// were met or written. A store in the client's process runs a loop of its own.
    fn run_block(&mut self, operation: Operation, block: KeyBlock<'_>) -> Result<u64> {
        operations::run(&mut ByCalls(self), operation, block)
    }

    /// Walks over all records of a table once, in storage order; returns their number.
    fn walk(&mut self, _: TableId) -> Result<u64> {
        Err(declined("this target has no walk over its records"))
    }

    /// Adds 1 to a counter `times` times, one add after the other.
    fn add(&mut self, _counter: &[u8], _times: u64) -> Result<()> {
        Err(declined("this target has no counters"))
    }

    /// The value of a counter, 0 if nothing was added to it.
    fn counter(&mut self, _counter: &[u8]) -> Result<i64> {
        Err(declined("this target has no counters"))
    }

    /// Does several requests on different records, as far as the store lets them travel together:
    /// `receive` gets the request's number and its reply, in the order of the requests.
    fn pipeline(&mut self, requests: &[Request<'_>], receive: &mut BatchSink<'_>) -> Result<()> {
        perform_each(self, requests, receive)
    }

    /// True if requests are sent by [`StoreConnection::send_ahead`].
    fn sends_ahead(&self) -> bool {
        false
    }

    /// Sends requests whose answers are taken later, by [`StoreConnection::receive_ahead`] with the
    /// same requests, in the order in which they were sent; so store and client work at the same
    /// time. All requests in flight are on different records, and no other request is made until
    /// all of them are answered. What cannot be sent without answers waits for its turn, and so
    /// does what follows; where nothing leaves ahead, all waits.
    fn send_ahead(&mut self, _: &[Request<'_>]) -> Result<()> {
        Ok(())
    }

    /// Takes the answers to the oldest requests that were sent ahead. Requests that were not are
    /// done now, as by [`StoreConnection::pipeline`].
    fn receive_ahead(&mut self, requests: &[Request<'_>], sink: &mut BatchSink<'_>) -> Result<()> {
        self.pipeline(requests, sink)
    }
}

/// A store without loops of its own: each operation is a call of its connection.
#[derive(Debug)]
struct ByCalls<'c, C: ?Sized>(&'c mut C);

/// The table of a workload of single operations.
pub const OPERATIONS: TableId = TableId(0);

impl<C: StoreConnection + ?Sized> Store for ByCalls<'_, C> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let parts = [(0, value)];
        self.0.put(OPERATIONS, &RecordEntry::new(key, &parts))
    }

    fn view<T>(&mut self, key: &[u8], look: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
        let (mut look, mut seen) = (Some(look), None);
        let is_there = self.0.read(OPERATIONS, key, PartSet::ALL, &mut |_, bytes| {
            seen = look.take().map(|look| look(bytes));
        })?;
        Ok(seen.filter(|_| is_there))
    }

    fn batch(&mut self, keys: &[&[u8]], mut look: impl FnMut(usize, &[u8])) -> Result<()> {
        let read = |key| Request::Read { table: OPERATIONS, key, wanted: PartSet::ALL };
        let requests: Vec<Request<'_>> = keys.iter().map(|key| read(key)).collect();
        self.0.pipeline(&requests, &mut |number, reply| {
            if let StoreReply::Part(_, bytes) = reply {
                look(number, bytes);
            }
        })
    }

    fn walk(&mut self) -> Result<u64> {
        self.0.walk(OPERATIONS)
    }
}

impl<T: StoreAccess + ?Sized> StoreAccess for Box<T> {
    fn perform(&mut self, request: &Request<'_>, receive: &mut ReplySink<'_>) -> Result<bool> {
        (**self).perform(request, receive)
    }

    fn update(&mut self, read: RecordRead<'_>, work: &mut dyn Work) -> Result<bool> {
        (**self).update(read, work)
    }

    fn scan(&mut self, range: &ScanRange<'_>, receive: &mut ScanSink<'_>) -> Result<usize> {
        (**self).scan(range, receive)
    }
}
