//! One client's connection: what a workload asks, as commands.

use super::answers::{self, Trouble};
use super::documents::{self, Place, plain};
use super::messages;
use crate::access::{
    Access, Body, Change, Connection, Entry, Hear, Parts, Reply, Request, Schema, Table, Tag,
};
use crate::targets::wire::{Stream, Wire};
use bson::raw::{RawDocument, cstr};
use nearstate_model::limits::TRANSACTION_TRIES;
use nearstate_model::{Error, Result};

/// Why a workload with transactions is declined.
pub(super) const NO_TRANSACTIONS: &str =
    "a server that stands alone has no transactions over several documents";

/// Requests that are on the way together.
const TOGETHER: usize = 256;

/// Records that one scan may ask for: the command's number has 32 bits, and one more is asked for.
const SCAN_MAX: usize = i32::MAX as usize - 1;

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Done(bool),
    /// A unique index has refused it.
    Taken,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Mongo<S> {
    wire: Wire<S>,
    places: Vec<Place>,
    /// The number of the last message that was written, and of the last that was answered.
    asked: i32,
    answered: i32,
}

impl<S: Stream> Mongo<S> {
    /// Over a stream whose server answers; it has to be a FerretDB if `is_ferretdb`, and must be
    /// none otherwise: figures of one are never to be shown as the other's.
    pub(super) fn new(stream: S, schema: &Schema, is_ferretdb: bool) -> Result<Self> {
        let places = schema.tables.iter().map(Place::new).collect::<Result<_>>()?;
        let mut mongo = Self { wire: Wire::new(stream), places, asked: 0, answered: 0 };
        mongo.command(&plain(cstr!("hello")))?;
        mongo.say(&plain(cstr!("buildInfo")))?;
        if mongo.hear(answers::is_ferretdb)? == is_ferretdb {
            return Ok(mongo);
        }
        Err(mongo.wire.strange(if is_ferretdb {
            "as another server than FerretDB"
        } else {
            "as a FerretDB, which is no MongoDB: it is a target of its own"
        }))
    }

    /// The process that answers.
    pub(super) fn process(&mut self) -> Result<i64> {
        self.say(&plain(cstr!("serverStatus")))?;
        self.hear(answers::process)
    }

    /// Makes collections and indexes.
    pub(super) fn create(&mut self) -> Result<()> {
        let mut commands = Vec::new();
        for place in &self.places {
            commands.push(place.create());
            commands.extend(place.create_indexes());
        }
        commands.iter().try_for_each(|command| self.command(command))
    }

    /// A command of which nothing is of interest but that it is done.
    fn command(&mut self, command: &RawDocument) -> Result<()> {
        self.say(command)?;
        self.hear(|bytes| answers::done(bytes).map(drop))
    }

    /// Writes a command and sends it.
    fn say(&mut self, command: &RawDocument) -> Result<()> {
        self.write(command, None)?;
        self.wire.send()
    }

    /// Writes a command, with one field that stands apart.
    #[inline]
    fn write(&mut self, command: &RawDocument, field: Option<(&str, &RawDocument)>) -> Result<()> {
        write(&mut self.wire, &mut self.asked, command, field)
    }

    /// The next answer, as `read` understands it. A unique index that refuses is an error here.
    fn hear<T>(
        &mut self,
        read: impl FnOnce(&[u8]) -> std::result::Result<T, Trouble>,
    ) -> Result<T> {
        self.hear_or_taken(read)?.ok_or_else(|| self.wire.strange("a duplicate where none can be"))
    }

    /// The same; `None` if a unique index refuses.
    #[inline]
    fn hear_or_taken<T>(
        &mut self,
        read: impl FnOnce(&[u8]) -> std::result::Result<T, Trouble>,
    ) -> Result<Option<T>> {
        self.answered = self.answered.wrapping_add(1);
        match read(messages::answer(&mut self.wire, self.answered)?) {
            Ok(read) => Ok(Some(read)),
            Err(Trouble::Taken) => Ok(None),
            Err(Trouble::Strange(what)) => Err(self.wire.strange(what)),
            Err(Trouble::Refused(words)) => Err(self.wire.refused(&words)),
        }
    }

    #[inline]
    fn ask(&mut self, request: &Request<'_>) -> Result<()> {
        let (places, wire, asked) = (&self.places, &mut self.wire, &mut self.asked);
        match request {
            Request::Read { table, key, wanted } => {
                write(wire, asked, &place(places, *table)?.find_key(key, *wanted), None)
            }
            Request::Put { table, entry } => {
                let update = documents::put(entry)?;
                write(wire, asked, &place(places, *table)?.update, Some(("updates", &update)))
            }
            Request::Change { table, change } if documents::is_empty(change) => {
                write(wire, asked, &place(places, *table)?.find_key(change.key, Parts(0)), None)
            }
            Request::Change { table, change } => {
                let update = documents::change(change)?;
                write(wire, asked, &place(places, *table)?.update, Some(("updates", &update)))
            }
            Request::Delete { table, key, .. } => {
                let delete = documents::delete(key);
                write(wire, asked, &place(places, *table)?.delete, Some(("deletes", &delete)))
            }
            Request::Find { table, tag, wanted } => {
                write(wire, asked, &place(places, *table)?.find_tag(*tag, *wanted)?, None)
            }
        }
    }

    /// What became of a request. What is found has its key put in `found`.
    #[inline]
    fn outcome(
        &mut self,
        request: &Request<'_>,
        found: &mut Vec<u8>,
        hear: &mut Hear<'_>,
    ) -> Result<Outcome> {
        let is_there = match request {
            Request::Read { table, wanted, .. } => {
                let count = place(&self.places, *table)?.schema.parts.len();
                Some(self.hear(|bytes| {
                    let Some(record) = answers::first(bytes)? else { return Ok(false) };
                    answers::parts(record, *wanted, count, hear).map(|()| true)
                })?)
            }
            Request::Find { table, wanted, .. } => {
                let count = place(&self.places, *table)?.schema.parts.len();
                Some(self.hear(|bytes| {
                    let Some(record) = answers::first(bytes)? else { return Ok(false) };
                    answers::key(record, found)?;
                    answers::parts(record, *wanted, count, hear).map(|()| true)
                })?)
            }
            Request::Change { change, .. } if documents::is_empty(change) => {
                Some(self.hear(|bytes| Ok(answers::first(bytes)?.is_some()))?)
            }
            Request::Put { .. } => match self.hear_or_taken(answers::met)? {
                Some(1) => Some(true),
                Some(_) => return Err(self.wire.strange("a put of another number than one")),
                None => None,
            },
            Request::Change { .. } => self.hear_or_taken(answers::met)?.map(|met| met > 0),
            Request::Delete { .. } => Some(self.hear(answers::met)? > 0),
        };
        Ok(is_there.map_or(Outcome::Taken, Outcome::Done))
    }

    fn alone(&mut self, request: &Request<'_>, hear: &mut Hear<'_>) -> Result<Outcome> {
        self.ask(request)?;
        self.wire.send()?;
        self.outcome(request, &mut Vec::new(), hear)
    }

    /// A write; which record has the tag if an index refuses. If none has it any more it is tried
    /// again: somebody else has put the same record, or taken the tag away.
    fn write_alone(&mut self, request: &Request<'_>, table: Table) -> Result<bool> {
        for _ in 0..TRANSACTION_TRIES {
            match self.alone(request, &mut |_, _| {})? {
                Outcome::Done(is_there) => return Ok(is_there),
                Outcome::Taken => self.holder(request, table)?.map_or(Ok(()), Err)?,
            }
        }
        Err(Error::Deadline { tries: TRANSACTION_TRIES })
    }

    /// Who has a tag that a refused request claims: servers do not say it, and some not even which
    /// tag it is.
    #[cold]
    fn holder(&mut self, request: &Request<'_>, table: Table) -> Result<Option<Error>> {
        let (own, tags) = match request {
            Request::Put { entry, .. } => (entry.key, entry.tags),
            Request::Change { change, .. } => (change.key, change.tags.unwrap_or_default().1),
            Request::Read { .. } | Request::Delete { .. } | Request::Find { .. } => {
                return Ok(None);
            }
        };
        let rules = place(&self.places, table)?.schema.tags;
        for (tag, value) in tags {
            let Some(rule) = rules.get(*tag).filter(|rule| rule.is_unique) else { continue };
            let mut key = Vec::new();
            let found = self.find(table, (*tag, value), Parts(0), &mut key, &mut |_, _| {})?;
            if found && key != own {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                let (tag, value, holder) = (rule.name.to_owned(), text(value), text(&key));
                return Ok(Some(Error::TagTaken { tag, value, holder }));
            }
        }
        Ok(None)
    }

    /// One batch of a scan; the cursor that has more.
    fn hear_batch(
        &mut self,
        name: &str,
        (left, met): (usize, &mut usize),
        hear: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<i64> {
        let mut key = Vec::new();
        self.hear(|bytes| {
            let (records, cursor) = answers::batch(bytes, name)?;
            for record in records {
                let torn = Trouble::Strange("with a batch that contradicts itself");
                let record = record.ok().and_then(bson::RawBsonRef::as_document).ok_or(torn)?;
                *met += 1;
                if *met > left {
                    return Err(Trouble::Strange("more records than were asked for"));
                }
                answers::key(record, &mut key)?;
                answers::parts(record, Parts::one(0), 1, &mut |_, bytes| hear(&key, bytes))?;
            }
            Ok(cursor)
        })
    }

    /// After an error before anything was sent: what was written is taken back.
    fn forget(&mut self) {
        self.wire.out.clear();
        self.asked = self.answered;
    }

    /// The answers of requests that are on the way, in their order. The error of one that an index
    /// refuses comes behind them all: the answers after it have to be read.
    fn outcomes(
        &mut self,
        some: &[Request<'_>],
        begin: usize,
        hear: &mut dyn FnMut(usize, Reply<'_>),
    ) -> Result<()> {
        let (mut refused, mut key) = (None, Vec::new());
        for (at, request) in some.iter().enumerate() {
            let number = begin + at;
            let mut part = |part, bytes: &[u8]| hear(number, Reply::Part(part, bytes));
            match self.outcome(request, &mut key, &mut part)? {
                Outcome::Done(is_there) => {
                    if is_there && matches!(request, Request::Find { .. }) {
                        hear(number, Reply::Key(&key));
                    }
                    hear(number, Reply::Done(is_there));
                }
                Outcome::Taken => refused = refused.or(Some(request)),
            }
        }
        let Some(request) = refused else { return Ok(()) };
        Err(self.holder(request, request.table())?.unwrap_or_else(|| Error::Conflict {
            detail: "a record that another connection has put at the same moment".to_owned(),
        }))
    }
}

fn place(places: &[Place], table: Table) -> Result<&Place> {
    places.get(table.0).ok_or_else(|| Error::BadArgument {
        detail: format!("the workload's schema has no table {}", table.0),
    })
}

/// Writes a message.
#[inline]
fn write<S: Stream>(
    wire: &mut Wire<S>,
    asked: &mut i32,
    command: &RawDocument,
    field: Option<(&str, &RawDocument)>,
) -> Result<()> {
    let number = asked.wrapping_add(1);
    let begin = messages::begin(&mut wire.out, number, command);
    if let Some((name, document)) = field {
        messages::field(&mut wire.out, name, document);
    }
    messages::end(&mut wire.out, begin)?;
    *asked = number;
    Ok(())
}

impl<S: Stream> Access for Mongo<S> {
    #[inline]
    fn read(
        &mut self,
        table: Table,
        key: &[u8],
        wanted: Parts,
        hear: &mut Hear<'_>,
    ) -> Result<bool> {
        Ok(self.alone(&Request::Read { table, key, wanted }, hear)? == Outcome::Done(true))
    }

    #[inline]
    fn put(&mut self, table: Table, entry: &Entry<'_>) -> Result<()> {
        self.write_alone(&Request::Put { table, entry: *entry }, table).map(drop)
    }

    #[inline]
    fn change(&mut self, table: Table, change: &Change<'_>) -> Result<bool> {
        self.write_alone(&Request::Change { table, change: *change }, table)
    }

    fn delete(&mut self, table: Table, key: &[u8], tags: &[Tag<'_>]) -> Result<bool> {
        self.write_alone(&Request::Delete { table, key, tags }, table)
    }

    fn find(
        &mut self,
        table: Table,
        tag: Tag<'_>,
        wanted: Parts,
        key: &mut Vec<u8>,
        hear: &mut Hear<'_>,
    ) -> Result<bool> {
        let request = Request::Find { table, tag, wanted };
        self.ask(&request)?;
        self.wire.send()?;
        Ok(self.outcome(&request, key, hear)? == Outcome::Done(true))
    }

    fn scan(
        &mut self,
        table: Table,
        from: &[u8],
        count: usize,
        hear: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<usize> {
        let asked = i32::try_from(count.min(SCAN_MAX)).unwrap_or(i32::MAX);
        // None is what the command takes for all.
        if asked == 0 {
            return Ok(0);
        }
        let document = place(&self.places, table)?.scan(from, asked);
        self.say(&document)?;
        let mut met = 0;
        let mut cursor = self.hear_batch("firstBatch", (count, &mut met), hear)?;
        while cursor != 0 && met < count {
            let document = place(&self.places, table)?.more(cursor);
            self.say(&document)?;
            let before = met;
            cursor = self.hear_batch("nextBatch", (count, &mut met), hear)?;
            if cursor != 0 && met == before {
                return Err(self.wire.strange("a scan with nothing, and more to come"));
            }
        }
        if cursor != 0 {
            let document = place(&self.places, table)?.end(cursor);
            self.command(&document)?;
        }
        Ok(met)
    }
}

impl<S: Stream> Connection for Mongo<S> {
    fn is_lost(&self) -> bool {
        self.wire.is_cut()
    }

    fn transact(&mut self, _: &mut Body<'_>) -> Result<()> {
        Err(Error::BadArgument { detail: NO_TRANSACTIONS.to_owned() })
    }

    fn pipeline(
        &mut self,
        requests: &[Request<'_>],
        hear: &mut dyn FnMut(usize, Reply<'_>),
    ) -> Result<()> {
        for (round, some) in requests.chunks(TOGETHER).enumerate() {
            some.iter().try_for_each(|request| self.ask(request)).inspect_err(|_| self.forget())?;
            self.wire.send()?;
            self.outcomes(some, round * TOGETHER, hear)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod double;
