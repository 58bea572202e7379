//! What a workload asks of a store, in words that every store can be held to.
//!
//! A workload sees tables of records. A record has a key, one or more parts (named blocks: what a
//! procedure changes is a few of them) and tags by which it is found. A target turns these calls
//! into what its store has, or says in [`crate::targets::Abilities`] how it emulates it.

use crate::operations::{self, KeyBlock, Operation, Store};
use nearstate_model::{Error, Result};

/// Tags of a record at the most: what one call has room for.
pub const TAGS_MAX: usize = 8;

/// Parts of a record at the most: a set of them fits in [`Parts`].
pub const PARTS_MAX: usize = 16;

/// A table of a workload, by its place in [`Schema::tables`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table(pub usize);

/// What a workload stores.
#[derive(Clone, Copy, Debug)]
pub struct Schema {
    /// Its tables.
    pub tables: &'static [TableSchema],
}

/// One kind of record.
#[derive(Clone, Copy, Debug)]
pub struct TableSchema {
    /// Its name, from lower case letters, digits and `-`.
    pub name: &'static str,
    /// Names of a record's parts. A table of one part holds plain values.
    pub parts: &'static [&'static str],
    /// By what its records are found beside their key.
    pub tags: &'static [TagRule],
    /// Whether [`Access::scan`] is asked of it.
    pub is_scanned: bool,
}

/// A tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TagRule {
    /// Its name.
    pub name: &'static str,
    /// Whether a value belongs to one record at the most.
    pub is_unique: bool,
}

/// Some parts of a record, as a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts(pub u16);

impl Parts {
    /// Every part there is.
    pub const ALL: Self = Self(u16::MAX);

    /// Only this part.
    pub const fn one(part: usize) -> Self {
        Self(1 << part)
    }

    /// Whether a part belongs to it.
    #[inline]
    pub const fn has(self, part: usize) -> bool {
        self.0 & (1 << part) != 0
    }

    /// Both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether there are none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// A part and its bytes.
pub type Part<'a> = (usize, &'a [u8]);

/// A tag, by its place in [`TableSchema::tags`], and one value.
pub type Tag<'a> = (usize, &'a [u8]);

/// A whole record.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// Every part of it.
    pub parts: &'a [Part<'a>],
    /// Its tags.
    pub tags: &'a [Tag<'a>],
    /// The tags of the record that it takes the place of, none if there is none: for stores without
    /// indexes, whose user has to take the old ones away.
    pub tags_before: &'a [Tag<'a>],
}

/// A change of some parts, and perhaps of the tags.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// The record's key.
    pub key: &'a [u8],
    /// The parts that change.
    pub parts: &'a [Part<'a>],
    /// All tags before and after, where they change.
    pub tags: Option<(&'a [Tag<'a>], &'a [Tag<'a>])>,
}

/// Hears the parts of a record, one call each.
pub type Hear<'h> = dyn FnMut(usize, &[u8]) + 'h;

/// What is done with a record between reading and writing it.
pub trait Work {
    /// Hears a wanted part.
    fn hear(&mut self, part: usize, bytes: &[u8]);

    /// All of them were heard, of a record that is there: changes it by one call of `write`, or
    /// leaves it. Where somebody else has changed the record meanwhile a store may begin anew: then
    /// the parts are heard once more, and this is called again.
    ///
    /// # Errors
    /// What `write` returned, or what is wrong with what was heard.
    fn change(&mut self, write: &mut Write<'_>) -> Result<()>;
}

/// Makes a change of the record that was read.
pub type Write<'w> = dyn FnMut(&Change<'_>) -> Result<()> + 'w;

/// Single operations, alone or in a transaction.
pub trait Access {
    /// Hands the wanted parts of a record to `hear`; false if there is no record. A store that can
    /// only read whole records may hand over more.
    ///
    /// # Errors
    /// What the store said.
    fn read(
        &mut self,
        table: Table,
        key: &[u8],
        wanted: Parts,
        hear: &mut Hear<'_>,
    ) -> Result<bool>;

    /// Puts a whole record, in the place of one that is there.
    ///
    /// # Errors
    /// What the store said; `TagTaken` if another record has a unique tag's value.
    fn put(&mut self, table: Table, entry: &Entry<'_>) -> Result<()>;

    /// Changes parts of a record that is there; false if it is not. Whether more than those parts
    /// travel is the store's affair, and said in its abilities.
    ///
    /// # Errors
    /// What the store said; `TagTaken` if another record has a unique tag's value.
    fn change(&mut self, table: Table, change: &Change<'_>) -> Result<bool>;

    /// Reads wanted parts of a record and changes it by what they are: the work's one change.
    /// False if there is no record, and then the work is not asked for a change. No
    /// transaction where the store does not make it one: whoever shares records needs
    /// [`Connection::transact`].
    ///
    /// # Errors
    /// What the store said, or the work.
    #[inline]
    fn update(
        &mut self,
        table: Table,
        key: &[u8],
        wanted: Parts,
        work: &mut dyn Work,
    ) -> Result<bool> {
        let is_there = self.read(table, key, wanted, &mut |part, bytes| work.hear(part, bytes))?;
        if !is_there {
            return Ok(false);
        }
        let mut is_still_there = true;
        work.change(&mut |change| {
            is_still_there = self.change(table, change)?;
            Ok(())
        })?;
        Ok(is_still_there)
    }

    /// Deletes a record that has these tags; false if there was none.
    ///
    /// # Errors
    /// What the store said.
    fn delete(&mut self, table: Table, key: &[u8], tags: &[Tag<'_>]) -> Result<bool>;

    /// Finds the record with this value of a unique tag: writes its key to `key` and hands its
    /// wanted parts to `hear`; false if there is none.
    ///
    /// # Errors
    /// What the store said.
    #[expect(clippy::too_many_arguments, reason = "what to find, and two places for what is found")]
    fn find(
        &mut self,
        table: Table,
        tag: Tag<'_>,
        wanted: Parts,
        key: &mut Vec<u8>,
        hear: &mut Hear<'_>,
    ) -> Result<bool>;

    /// Hands over up to `count` records in the order of their keys, from `from` on: key and first
    /// part. Returns how many there were.
    ///
    /// # Errors
    /// What the store said.
    fn scan(
        &mut self,
        table: Table,
        from: &[u8],
        count: usize,
        hear: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<usize>;
}

/// One request of several that travel together.
#[derive(Clone, Copy, Debug)]
pub enum Request<'a> {
    /// [`Access::read`].
    Read {
        /// Of which table.
        table: Table,
        /// The record's key.
        key: &'a [u8],
        /// Which parts.
        wanted: Parts,
    },
    /// [`Access::put`].
    Put {
        /// Of which table.
        table: Table,
        /// The record.
        entry: Entry<'a>,
    },
    /// [`Access::change`].
    Change {
        /// Of which table.
        table: Table,
        /// The change.
        change: Change<'a>,
    },
    /// [`Access::delete`].
    Delete {
        /// Of which table.
        table: Table,
        /// The record's key.
        key: &'a [u8],
        /// Its tags.
        tags: &'a [Tag<'a>],
    },
    /// [`Access::find`].
    Find {
        /// Of which table.
        table: Table,
        /// A value of a unique tag.
        tag: Tag<'a>,
        /// Which parts.
        wanted: Parts,
    },
}

impl Request<'_> {
    /// Of which table.
    pub const fn table(&self) -> Table {
        match self {
            Self::Read { table, .. }
            | Self::Put { table, .. }
            | Self::Change { table, .. }
            | Self::Delete { table, .. }
            | Self::Find { table, .. } => *table,
        }
    }
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// A part that was asked for. Comes before the request's [`Reply::Done`].
    Part(usize, &'a [u8]),
    /// The key of the record that was found. Comes between the parts and [`Reply::Done`].
    Key(&'a [u8]),
    /// It is done; whether there was a record.
    Done(bool),
}

/// What a transaction is made of. May be run several times; must end the same way for the same
/// records, and reads nothing that it wrote.
pub type Body<'b> = dyn FnMut(&mut dyn Access) -> Result<()> + 'b;

/// One client's way to a store.
pub trait Connection: Access {
    /// Whether it keeps nothing, on purpose: then answers are not held against a model.
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
    fn renewed(&mut self, fresh: Box<dyn Connection>) -> Box<dyn Connection> {
        fresh
    }

    /// Runs `body` as one transaction: all of its writes or none, on records that nobody changed
    /// between its reads and its commit. Runs it again after a conflict. An error that `body`
    /// returns aborts it and comes back.
    ///
    /// # Errors
    /// What the store said, or what `body` returned.
    fn transact(&mut self, body: &mut Body<'_>) -> Result<()>;

    /// Runs a block of single operations on [`OPERATIONS`]; returns the number of records that
    /// were met or written. A store in the client's process runs a loop of its own.
    ///
    /// # Errors
    /// The store's error.
    fn run_block(&mut self, operation: Operation, block: KeyBlock<'_>) -> Result<u64> {
        operations::run(&mut ByCalls(self), operation, block)
    }

    /// Walks over all records of a table once, in storage order; returns their number.
    ///
    /// # Errors
    /// The store's error; `BadArgument` if the target declines it.
    fn walk(&mut self, _: Table) -> Result<u64> {
        Err(Error::BadArgument { detail: "this target has no walk over its records".to_owned() })
    }

    /// Adds 1 to a counter `times` times, one add after the other.
    ///
    /// # Errors
    /// The store's error; `BadArgument` if the target declines it.
    fn add(&mut self, _counter: &[u8], _times: u64) -> Result<()> {
        Err(Error::BadArgument { detail: "this target has no counters".to_owned() })
    }

    /// The value of a counter, 0 if nothing was added to it.
    ///
    /// # Errors
    /// The store's error; `BadArgument` if the target declines it.
    fn counter(&mut self, _counter: &[u8]) -> Result<i64> {
        Err(Error::BadArgument { detail: "this target has no counters".to_owned() })
    }

    /// Does several requests on different records, as far as the store lets them travel together:
    /// `hear` gets the request's number and its reply, in the order of the requests.
    ///
    /// # Errors
    /// What the store said; then it is not known which of the writes were done.
    fn pipeline(
        &mut self,
        requests: &[Request<'_>],
        hear: &mut dyn FnMut(usize, Reply<'_>),
    ) -> Result<()> {
        for (number, request) in requests.iter().enumerate() {
            let done = one_by_one(self, request, &mut |reply| hear(number, reply))?;
            hear(number, Reply::Done(done));
        }
        Ok(())
    }

    /// Whether requests leave with [`Connection::send_ahead`].
    fn sends_ahead(&self) -> bool {
        false
    }

    /// Sends requests whose answers are taken later, by [`Connection::hear_ahead`] with the same
    /// requests, in the order in which they were sent; so store and client work at the same time.
    /// All that are on the way are on different records, and nothing else is asked until no answer
    /// is owed. What cannot be sent without answers waits for its turn, and so does what follows;
    /// where nothing leaves ahead, all waits.
    ///
    /// # Errors
    /// What the store said.
    fn send_ahead(&mut self, _: &[Request<'_>]) -> Result<()> {
        Ok(())
    }

    /// Takes the answers to the oldest requests that were sent ahead. Requests that were not are
    /// done now, as by [`Connection::pipeline`].
    ///
    /// # Errors
    /// What the store said; then it is not known which of the writes on the way were done.
    fn hear_ahead(
        &mut self,
        requests: &[Request<'_>],
        hear: &mut dyn FnMut(usize, Reply<'_>),
    ) -> Result<()> {
        self.pipeline(requests, hear)
    }
}

/// Does a request by the single call that it stands for, and returns what is [`Reply::Done`].
///
/// # Errors
/// What the store said.
#[inline]
pub fn one_by_one<C: Access + ?Sized>(
    access: &mut C,
    request: &Request<'_>,
    hear: &mut impl FnMut(Reply<'_>),
) -> Result<bool> {
    let mut part = |part, bytes: &[u8]| hear(Reply::Part(part, bytes));
    match request {
        Request::Read { table, key, wanted } => access.read(*table, key, *wanted, &mut part),
        Request::Put { table, entry } => access.put(*table, entry).map(|()| true),
        Request::Change { table, change } => access.change(*table, change),
        Request::Delete { table, key, tags } => access.delete(*table, key, tags),
        Request::Find { table, tag, wanted } => {
            let mut key = Vec::new();
            let is_there = access.find(*table, *tag, *wanted, &mut key, &mut part)?;
            if is_there {
                hear(Reply::Key(&key));
            }
            Ok(is_there)
        }
    }
}

/// A store without loops of its own: each operation is a call of its connection.
#[derive(Debug)]
struct ByCalls<'c, C: ?Sized>(&'c mut C);

/// The table of a workload of single operations.
pub const OPERATIONS: Table = Table(0);

impl<C: Connection + ?Sized> Store for ByCalls<'_, C> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let parts = [(0, value)];
        self.0.put(OPERATIONS, &Entry { key, parts: &parts, tags: &[], tags_before: &[] })
    }

    fn view<T>(&mut self, key: &[u8], look: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
        let (mut look, mut seen) = (Some(look), None);
        let is_there = self.0.read(OPERATIONS, key, Parts::ALL, &mut |_, bytes| {
            seen = look.take().map(|look| look(bytes));
        })?;
        Ok(seen.filter(|_| is_there))
    }

    fn batch(&mut self, keys: &[&[u8]], mut look: impl FnMut(usize, &[u8])) -> Result<()> {
        let read = |key| Request::Read { table: OPERATIONS, key, wanted: Parts::ALL };
        let requests: Vec<Request<'_>> = keys.iter().map(|key| read(key)).collect();
        self.0.pipeline(&requests, &mut |number, reply| {
            if let Reply::Part(_, bytes) = reply {
                look(number, bytes);
            }
        })
    }

    fn walk(&mut self) -> Result<u64> {
        self.0.walk(OPERATIONS)
    }
}

impl<T: Access + ?Sized> Access for Box<T> {
    fn read(
        &mut self,
        table: Table,
        key: &[u8],
        wanted: Parts,
        hear: &mut Hear<'_>,
    ) -> Result<bool> {
        (**self).read(table, key, wanted, hear)
    }

    fn put(&mut self, table: Table, entry: &Entry<'_>) -> Result<()> {
        (**self).put(table, entry)
    }

    fn change(&mut self, table: Table, change: &Change<'_>) -> Result<bool> {
        (**self).change(table, change)
    }

    fn update(
        &mut self,
        table: Table,
        key: &[u8],
        wanted: Parts,
        work: &mut dyn Work,
    ) -> Result<bool> {
        (**self).update(table, key, wanted, work)
    }

    fn delete(&mut self, table: Table, key: &[u8], tags: &[Tag<'_>]) -> Result<bool> {
        (**self).delete(table, key, tags)
    }

    fn find(
        &mut self,
        table: Table,
        tag: Tag<'_>,
        wanted: Parts,
        key: &mut Vec<u8>,
        hear: &mut Hear<'_>,
    ) -> Result<bool> {
        (**self).find(table, tag, wanted, key, hear)
    }

    fn scan(
        &mut self,
        table: Table,
        from: &[u8],
        count: usize,
        hear: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<usize> {
        (**self).scan(table, from, count, hear)
    }
}

impl<T: Connection + ?Sized> Connection for Box<T> {
    fn is_null(&self) -> bool {
        (**self).is_null()
    }

    fn is_lost(&self) -> bool {
        (**self).is_lost()
    }

    fn renewed(&mut self, fresh: Box<dyn Connection>) -> Box<dyn Connection> {
        (**self).renewed(fresh)
    }

    fn transact(&mut self, body: &mut Body<'_>) -> Result<()> {
        (**self).transact(body)
    }

    fn run_block(&mut self, operation: Operation, block: KeyBlock<'_>) -> Result<u64> {
        (**self).run_block(operation, block)
    }

    fn walk(&mut self, table: Table) -> Result<u64> {
        (**self).walk(table)
    }

    fn add(&mut self, counter: &[u8], times: u64) -> Result<()> {
        (**self).add(counter, times)
    }

    fn counter(&mut self, counter: &[u8]) -> Result<i64> {
        (**self).counter(counter)
    }

    fn pipeline(
        &mut self,
        requests: &[Request<'_>],
        hear: &mut dyn FnMut(usize, Reply<'_>),
    ) -> Result<()> {
        (**self).pipeline(requests, hear)
    }

    fn sends_ahead(&self) -> bool {
        (**self).sends_ahead()
    }

    fn send_ahead(&mut self, requests: &[Request<'_>]) -> Result<()> {
        (**self).send_ahead(requests)
    }

    fn hear_ahead(
        &mut self,
        requests: &[Request<'_>],
        hear: &mut dyn FnMut(usize, Reply<'_>),
    ) -> Result<()> {
        (**self).hear_ahead(requests, hear)
    }
}
