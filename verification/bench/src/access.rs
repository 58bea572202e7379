//! The interface between a workload and a store, with one contract for all stores.
//!
//! A workload uses tables of records. A record has a key, one or more parts (named blocks, of which
//! a procedure changes a few) and tags by which it is found. A target translates these calls to its
//! store. [`crate::targets::Capabilities`] states what it emulates and what it declines.

use crate::operations::{self, BlockOutcome, KeyBlock, Operation, Store};
use nearstate_model::{Error, Result};

/// The largest number of tags of a record in one call.
pub const TAGS_MAX: usize = 8;

/// The largest number of parts of a record: a set of them fits in [`PartSet`].
pub const PARTS_MAX: usize = 16;

/// A table of a workload: its index in [`StoreSchema::tables`].
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
    /// The error for a table that the workload's schema does not have.
    #[cold]
    pub(crate) fn unknown(self) -> Error {
        declined(&format!("the workload's schema has no table {}", self.0))
    }
}

/// One kind of record.
#[derive(Clone, Copy, Debug)]
pub struct TableSchema {
    /// Its name: lower case letters, digits and `-`.
    pub name: &'static str,
    /// Names of a record's parts. A table with one part has plain values.
    pub parts: &'static [&'static str],
    /// The tags by which records are found.
    pub tags: &'static [TagRule],
    /// True if the workload scans it: [`StoreAccess::scan`].
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

/// A set of parts of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartSet(pub u16);

impl PartSet {
    /// All parts.
    pub const ALL: Self = Self(u16::MAX);

    /// A set of one part.
    pub const fn one(part: usize) -> Self {
        Self(1 << part)
    }

    #[inline]
    pub const fn contains(self, part: usize) -> bool {
        self.0 & (1 << part) != 0
    }

    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// A part and its bytes.
pub type PartWrite<'a> = (usize, &'a [u8]);

/// A tag, by its index in [`TableSchema::tags`], and one value.
pub type RecordTag<'a> = (usize, &'a [u8]);

/// A whole record.
#[derive(Clone, Copy, Debug)]
pub struct RecordEntry<'a> {
    pub key: &'a [u8],
    pub parts: &'a [PartWrite<'a>],
    pub tags: &'a [RecordTag<'a>],
    /// The tags of the record that it replaces; none if there is no such record. For stores without
    /// indexes, where the client removes the old tags.
    pub tags_before: &'a [RecordTag<'a>],
}

impl<'a> RecordEntry<'a> {
    /// A record without tags.
    pub const fn new(key: &'a [u8], parts: &'a [PartWrite<'a>]) -> Self {
        Self::tagged(key, parts, &[])
    }

    /// A new record with tags.
    pub const fn tagged(
        key: &'a [u8],
        parts: &'a [PartWrite<'a>],
        tags: &'a [RecordTag<'a>],
    ) -> Self {
        Self { key, parts, tags, tags_before: &[] }
    }
}

/// A change of some parts, and optionally of the tags.
#[derive(Clone, Copy, Debug)]
pub struct PartsChange<'a> {
    pub key: &'a [u8],
    /// The parts that change.
    pub parts: &'a [PartWrite<'a>],
    /// All tags before and after the change, if they change.
    pub tags: Option<(&'a [RecordTag<'a>], &'a [RecordTag<'a>])>,
}

/// Receives the parts of a record, one call each.
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

    /// Changes the record by one call of `write`, or leaves it unchanged. Called after all wanted
    /// parts of an existing record were received. If another client has changed the record since
    /// the read, a store may retry: it delivers the parts once more and calls this again.
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

/// A connection to any store.
pub type Connection<'s> = dyn StoreConnection + 's;

/// Receives the replies to one request.
pub type ReplySink<'h> = dyn FnMut(StoreReply<'_>) + 'h;

/// Receives the replies to several requests, each with the number of its request.
pub type BatchSink<'h> = dyn FnMut(usize, StoreReply<'_>) + 'h;

/// Single operations, alone or in a transaction.
///
/// A store implements [`StoreAccess::perform`]; the other operations on single records call it.
pub trait StoreAccess {
    /// Performs a request: delivers the requested parts and the key to `receive`, and returns the
    /// value of [`StoreReply::Done`]. A store that can only read whole records may deliver more
    /// parts than requested.
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

    /// Puts a whole record. It replaces an existing one.
    #[inline]
    fn put(&mut self, table: TableId, entry: &RecordEntry<'_>) -> Result<()> {
        self.perform(&Request::Put { table, entry: *entry }, &mut |_| {}).map(drop)
    }

    /// Changes parts of a record; false if the record does not exist. The store's capabilities say
    /// whether a change sends more than these parts.
    #[inline]
    fn change(&mut self, table: TableId, change: &PartsChange<'_>) -> Result<bool> {
        self.perform(&Request::Change { table, change: *change }, &mut |_| {})
    }

    /// Deletes a record, which has these tags; false if it does not exist.
    fn delete(&mut self, table: TableId, key: &[u8], tags: &[RecordTag<'_>]) -> Result<bool> {
        self.perform(&Request::Delete { table, key, tags }, &mut |_| {})
    }

    /// Finds the record with this value of a unique tag: writes its key to `key` and delivers its
    /// wanted parts; false if no record has it.
    #[expect(clippy::too_many_arguments, reason = "what to find, and two outputs")]
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

    /// Finds the record with this value of a unique tag, writes its key to `key`, and changes parts
    /// of it; false if no record has it, or if it was deleted in between.
    fn find_and_change(
        &mut self,
        table: TableId,
        tag: RecordTag<'_>,
        parts: &[PartWrite<'_>],
        key: &mut Vec<u8>,
    ) -> Result<bool> {
        let wanted = PartSet::one(parts.first().map_or(0, |(part, _)| *part));
        let is_found = self.find(table, tag, wanted, key, &mut |_, _| {})?;
        if !is_found {
            return Ok(false);
        }
        self.change(table, &PartsChange { key, parts, tags: None })
    }

    /// Reads wanted parts of a record, and makes the change that `work` derives from them. False if
    /// the record does not exist; then `work` makes no change. This is not necessarily a
    /// transaction: clients that share records need [`StoreConnection::transact`].
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

/// The error for an operation that a target does not have.
pub(crate) fn declined(why: &str) -> Error {
    bad_argument!("{why}")
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

/// Performs requests in sequence.
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
    Read { table: TableId, key: &'a [u8], wanted: PartSet },
    /// [`StoreAccess::put`].
    Put { table: TableId, entry: RecordEntry<'a> },
    /// [`StoreAccess::change`].
    Change { table: TableId, change: PartsChange<'a> },
    /// [`StoreAccess::delete`].
    Delete { table: TableId, key: &'a [u8], tags: &'a [RecordTag<'a>] },
    /// [`StoreAccess::find`].
    Find { table: TableId, tag: RecordTag<'a>, wanted: PartSet },
}

impl Request<'_> {
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
    /// The key of the record that was found. It follows the parts and precedes
    /// [`StoreReply::Done`].
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
    pub fn reply(&self) -> StoreReply<'_> {
        match self {
            Self::Part(part, bytes) => StoreReply::Part(*part, bytes),
            Self::Key(key) => StoreReply::Key(key),
            Self::Done(done) => StoreReply::Done(*done),
        }
    }
}

/// The body of a transaction. It may run several times, has the same result for the same records,
/// and does not read what it wrote.
pub type Body<'b> = dyn FnMut(&mut dyn StoreAccess) -> Result<()> + 'b;

/// One client's connection to a store.
pub trait StoreConnection: StoreAccess {
    /// True if it stores nothing by design. Its replies are not compared with a model.
    fn is_null(&self) -> bool {
        false
    }

    /// True if the connection broke: requests in flight may or may not have been executed. False
    /// after an error reply and after a stall, with which a run is invalid.
    fn is_lost(&self) -> bool {
        false
    }

    /// Replaces a lost connection by `fresh`, a new connection to the same database. A wrapper
    /// (such as a planted fault) stays around it.
    fn renewed(&mut self, fresh: Box<dyn StoreConnection>) -> Box<dyn StoreConnection> {
        fresh
    }

    /// Runs `body` as one transaction: all of its writes or none, on records that no other client
    /// changed between its reads and its commit. Runs it again after a conflict. If `body` returns
    /// an error, the transaction is aborted and the error returned.
    fn transact(&mut self, _: &mut Body<'_>) -> Result<()> {
        Err(declined("this target has no transactions"))
    }

    /// Runs a block of single operations on [`OPERATIONS`]. A store in the client's process has
    /// its own loop.
    fn run_block(&mut self, operation: Operation, block: KeyBlock<'_>) -> Result<BlockOutcome> {
        operations::run(&mut ByCalls(self), operation, block)
    }

    /// Visits all records of a table once, in storage order; returns their number.
    fn walk(&mut self, _: TableId) -> Result<u64> {
        Err(declined("this target has no walk over its records"))
    }

    /// Adds 1 to a counter `times` times, in sequence.
    fn add(&mut self, _counter: &[u8], _times: u64) -> Result<()> {
        Err(declined("this target has no counters"))
    }

    /// The value of a counter; 0 if it does not exist.
    fn counter(&mut self, _counter: &[u8]) -> Result<i64> {
        Err(declined("this target has no counters"))
    }

    /// Adds a member to a set, which need not exist; false if the set has it.
    fn add_member(&mut self, _set: &[u8], _member: &[u8]) -> Result<bool> {
        Err(declined("this target has no sets"))
    }

    /// Delivers all members of a set.
    fn members(&mut self, _set: &[u8], _receive: &mut dyn FnMut(&[u8])) -> Result<()> {
        Err(declined("this target has no sets"))
    }

    /// Performs requests on different records, in as few messages as the store allows. `receive`
    /// gets the number of each request and its replies, in the order of the requests.
    fn pipeline(&mut self, requests: &[Request<'_>], receive: &mut BatchSink<'_>) -> Result<()> {
        perform_each(self, requests, receive)
    }

    /// Tells the store which requests follow, so that it can load their records. A hint: it has no
    /// effect on replies. Only a store in the client's process has a use for it.
    fn prefetch(&mut self, _: &[Request<'_>]) {}

    /// True if [`StoreConnection::send_ahead`] sends requests.
    fn sends_ahead(&self) -> bool {
        false
    }

    /// Sends requests whose replies are read later by [`StoreConnection::receive_ahead`], with the
    /// same requests in the same order, so that store and client work at the same time. All
    /// requests in flight are on different records, and no other request is made until they are
    /// answered. A request that must read first is not sent, nor are those after it: they are
    /// performed by `receive_ahead`. This default sends nothing.
    fn send_ahead(&mut self, _: &[Request<'_>]) -> Result<()> {
        Ok(())
    }

    /// Receives the replies to the oldest requests that were sent ahead. Requests that were not
    /// sent are performed now, as by [`StoreConnection::pipeline`].
    fn receive_ahead(&mut self, requests: &[Request<'_>], sink: &mut BatchSink<'_>) -> Result<()> {
        self.pipeline(requests, sink)
    }
}

/// A store without its own loop: each operation is a call of its connection.
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
        let exists = self.0.read(OPERATIONS, key, PartSet::ALL, &mut |_, bytes| {
            seen = look.take().map(|look| look(bytes));
        })?;
        Ok(seen.filter(|_| exists))
    }

    fn update<T>(
        &mut self,
        key: &[u8],
        value: &[u8],
        mut look: impl FnMut(&[u8]) -> T,
    ) -> Result<Option<T>> {
        let parts = [(0, value)];
        let mut seen = None;
        self.0.transact(&mut |access| {
            seen = None;
            access.read(OPERATIONS, key, PartSet::ALL, &mut |_, bytes| seen = Some(look(bytes)))?;
            if seen.is_some() {
                access.put(OPERATIONS, &RecordEntry::new(key, &parts))?;
            }
            Ok(())
        })?;
        Ok(seen)
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

    fn find_and_change(
        &mut self,
        table: TableId,
        tag: RecordTag<'_>,
        parts: &[PartWrite<'_>],
        key: &mut Vec<u8>,
    ) -> Result<bool> {
        (**self).find_and_change(table, tag, parts, key)
    }

    fn update(&mut self, read: RecordRead<'_>, work: &mut dyn Work) -> Result<bool> {
        (**self).update(read, work)
    }

    fn scan(&mut self, range: &ScanRange<'_>, receive: &mut ScanSink<'_>) -> Result<usize> {
        (**self).scan(range, receive)
    }
}
