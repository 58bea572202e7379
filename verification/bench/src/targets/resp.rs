//! Records over the protocol of Redis: one connection for Redis, Valkey and our node, over any
//! stream.
//!
//! A record of table `t` is key `{t},KEY`: on our node it is in namespace `t`. A table of one
//! part has strings, one of several parts has hashes with a field for each part. A unique tag is a
//! string `{t:TAG},VALUE` that holds the record's key, any other tag a set of keys. A table that is
//! scanned has a sorted set `{t:},` of its keys.
//!
//! Our node has records with tags: `TAG SET`, `TAG HSET` and `TAG FIND` need one command each
//! instead of the following, and tags are not keys.
//!
//! On other servers, a write with conditions (the tag is free, the record exists) or of several
//! keys is a script. A change of parts alone is a plain HSET. Its reply is the number of new
//! fields, which is 0 if the record existed; otherwise the new fields are removed again.

mod pipeline;
mod transaction;
mod finds;
mod walk;
mod sets;
mod guard;
mod tagged;
mod answers;
mod commands;

use self::answers::NIL;
use self::commands::{RespCommands, RespForm};
use self::finds::FIND;
use self::guard::WriteGuard;
use self::tagged::TagCommand;
use self::transaction::RespTransaction;
use super::wire::{SentAhead, Stream, Wire};
use crate::access::{
    BatchSink, Body, PartReceiver, PartSet, PartWrite, ReplySink, Request, ScanRange, ScanSink,
    StoreAccess, StoreConnection, StoreReply, StoreSchema, TableId, TableSchema,
};
use nearstate_model::limits::TRANSACTION_TRIES;
use nearstate_model::{Error, Result};

/// A guarded write.
type RecordWrite<'w> = dyn Fn(&RespTable, &mut RespCommands) + 'w;

/// Writes if no claimed tag belongs to another record, and if the record exists or need not.
///
/// Keys: the record, then the tags that it claims. Arguments: the number of these tags; `1` if the
/// record must exist; its key, which the tags contain; then commands, each after its word count.
const WRITE: &[u8] = b"local n = tonumber(ARGV[1])
if ARGV[2] == '1' and redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
for i = 2, n + 1 do
  local holder = redis.call('GET', KEYS[i])
  if holder and holder ~= ARGV[3] then return {i - 2, holder} end
end
local at = 4
while at <= #ARGV do
  local count = tonumber(ARGV[at])
  redis.call(unpack(ARGV, at + 1, at + count))
  at = at + count + 1
end
return 1";

/// A table with the prefixes of its keys.
#[derive(Debug)]
struct RespTable {
    schema: &'static TableSchema,
    prefix: Vec<u8>,
    tags: Vec<Vec<u8>>,
    order: Vec<u8>,
}

impl RespTable {
    fn new(schema: &'static TableSchema) -> Self {
        let tag = |name: &str| format!("{{{}:{name}}},", schema.name).into_bytes();
        Self {
            schema,
            prefix: format!("{{{}}},", schema.name).into_bytes(),
            tags: schema.tags.iter().map(|rule| tag(rule.name)).collect(),
            order: tag(""),
        }
    }

    fn part(&self, part: usize) -> &'static [u8] {
        self.schema.parts.get(part).map_or(b"", |name| name.as_bytes())
    }

    fn tag_name(&self, tag: usize) -> &'static [u8] {
        self.schema.tags.get(tag).map_or(b"", |rule| rule.name.as_bytes())
    }

    const fn is_plain(&self) -> bool {
        self.schema.parts.len() == 1
    }

    fn tag(&self, tag: usize) -> &[u8] {
        self.tags.get(tag).map_or(&[], Vec::as_slice)
    }

    fn is_unique(&self, tag: usize) -> bool {
        self.schema.tags.get(tag).is_some_and(|rule| rule.is_unique)
    }

    fn is_all(&self, wanted: PartSet) -> bool {
        (0..self.schema.parts.len()).all(|part| wanted.contains(part))
    }
}

/// The digests of [`WRITE`] and of the script that finds a record, as the server returned them.
#[derive(Debug)]
struct Scripts {
    write: Vec<u8>,
    find: Vec<u8>,
}

/// What a server offers in addition to the common commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// Scripts in Lua.
    Lua,
    /// Records with tags.
    Tags,
}

/// A change of a missing record: the number of fields that it created, which must be removed.
#[derive(Debug)]
struct ExtraFields {
    table: TableId,
    key: Vec<u8>,
    count: i64,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Resp<S> {
    wire: Wire<S>,
    tables: Vec<RespTable>,
    dialect: Dialect,
    scripts: Option<Scripts>,
    /// A buffer for a transaction's writes, reused by the next transaction.
    queue: RespCommands,
    /// Keys that the transaction has read and that exist.
    seen: Vec<Vec<u8>>,
    /// True if a transaction left keys watched: UNWATCH is sent before the next request.
    is_watching: bool,
    ahead: SentAhead,
    extra_fields: Vec<ExtraFields>,
}

impl<S: Stream> Resp<S> {
    /// A connection over a stream whose server replies.
    pub(crate) fn new(stream: S, schema: &StoreSchema, dialect: Dialect) -> Result<Self> {
        let mut resp = Self {
            wire: Wire::new(stream),
            tables: schema.tables.iter().map(RespTable::new).collect(),
            dialect,
            scripts: None,
            queue: RespCommands::default(),
            seen: Vec::new(),
            is_watching: false,
            ahead: SentAhead::default(),
            extra_fields: Vec::new(),
        };
        match dialect {
            Dialect::Lua if !schema.tables.is_empty() => {
                let (write, find) = (resp.load(WRITE)?, resp.load(FIND)?);
                resp.scripts = Some(Scripts { write, find });
            }
            Dialect::Tags => resp.declare()?,
            Dialect::Lua => {}
        }
        // The socket of a terminating server still accepts connections.
        resp.ping()?;
        Ok(resp)
    }

    fn load(&mut self, script: &[u8]) -> Result<Vec<u8>> {
        commands::request(&mut self.wire.out, &[b"SCRIPT", b"LOAD", script]);
        self.wire.send()?;
        self.wire.bulk()
    }

    /// Declares the tags of all tables.
    fn declare(&mut self) -> Result<()> {
        let mut answers = 0;
        for resp_table in &self.tables {
            answers += tagged::declare(resp_table, &mut self.wire.out);
        }
        if answers > 0 {
            self.wire.send()?;
        }
        (0..answers).try_for_each(|_| self.wire.simple())
    }

    /// The server's own command for a request that needs several commands elsewhere.
    fn native(&self, request: &Request<'_>) -> Result<Option<TagCommand>> {
        let resp_table = self.resp_table(request.table())?;
        Ok(if self.dialect == Dialect::Tags { TagCommand::of(resp_table, request) } else { None })
    }

    /// Appends the command to the output.
    fn send_tag_command(&mut self, native: TagCommand, request: &Request<'_>) -> Result<()> {
        let resp_table = resp_table(&self.tables, request.table())?;
        self.queue.begin(RespForm::Requests);
        native.write(resp_table, request, &mut self.queue);
        self.wire.out.extend_from_slice(self.queue.bytes());
        Ok(())
    }

    fn ping(&mut self) -> Result<()> {
        commands::request(&mut self.wire.out, &[b"PING"]);
        self.wire.send()?;
        self.wire.simple()
    }

    fn resp_table(&self, table: TableId) -> Result<&RespTable> {
        resp_table(&self.tables, table)
    }

    /// Sends the output, after UNWATCH if a transaction left keys watched.
    fn send(&mut self) -> Result<()> {
        if self.ahead.is_owed() {
            let detail =
                "requests that were sent ahead have no replies yet: receive them first".to_owned();
            self.wire.discard_output();
            return Err(Error::BadArgument { detail });
        }
        if self.is_watching {
            self.is_watching = false;
            commands::request(&mut self.wire.out, &[b"UNWATCH"]);
            // UNWATCH was appended at the end, but must be sent first.
            let bytes = b"*1\r\n$7\r\nUNWATCH\r\n".len();
            self.wire.out.rotate_right(bytes);
            self.wire.send()?;
            return self.wire.simple();
        }
        self.wire.send()
    }

    /// Writes the request for wanted parts.
    fn request_parts(&mut self, table: TableId, key: &[u8], wanted: PartSet) -> Result<()> {
        let resp_table = resp_table(&self.tables, table)?;
        commands::parts_request(&mut self.wire.out, resp_table, key, wanted);
        Ok(())
    }

    /// Reads the reply to a request for parts.
    #[inline]
    fn receive_parts(
        &mut self,
        table: TableId,
        wanted: PartSet,
        receive: &mut PartReceiver<'_>,
    ) -> Result<bool> {
        let resp_table = resp_table(&self.tables, table)?;
        answers::receive_parts(&mut self.wire, resp_table, wanted, receive)
    }

    /// Removes the fields that HSET created because the record did not exist, unless another client
    /// has put one meanwhile.
    fn remove_fields(&mut self, table: TableId, key: &[u8], made: i64) -> Result<()> {
        let prefix = resp_table(&self.tables, table)?.prefix.as_slice();
        commands::key_request(&mut self.wire.out, b"WATCH", prefix, key);
        commands::key_request(&mut self.wire.out, b"HLEN", prefix, key);
        self.send()?;
        self.wire.simple()?;
        self.is_watching = true;
        if self.wire.int()? != made {
            return Ok(());
        }
        let prefix = resp_table(&self.tables, table)?.prefix.as_slice();
        commands::request(&mut self.wire.out, &[b"MULTI"]);
        commands::key_request(&mut self.wire.out, b"DEL", prefix, key);
        commands::request(&mut self.wire.out, &[b"EXEC"]);
        self.is_watching = false;
        self.send()?;
        self.wire.simple()?;
        self.wire.simple()?;
        self.wire.skip()
    }

    fn request_script(&mut self, guard: &WriteGuard<'_>, write: &RecordWrite<'_>) -> Result<()> {
        let resp_table = resp_table(&self.tables, guard.table)?;
        self.queue.begin(RespForm::Words);
        write(resp_table, &mut self.queue);
        if let Some(scripts) = &self.scripts {
            guard.script_request(resp_table, &scripts.write, &self.queue, &mut self.wire.out);
        }
        Ok(())
    }

    fn receive_script(&mut self, guard: &WriteGuard<'_>) -> Result<bool> {
        match self.wire.head()? {
            (b':', done) => Ok(done == 1),
            (b'*', 2) => {
                let claim = self.wire.int()?;
                let holder = self.wire.bulk()?;
                Err(guard.taken(
                    self.resp_table(guard.table)?,
                    usize::try_from(claim).ok(),
                    &holder,
                ))
            }
            other => Err(self.wire.other(other, "the result of the script")),
        }
    }

    /// The reply to [`WriteGuard::watch_request`]: true if the record exists or need not.
    fn receive_guard(&mut self, guard: &WriteGuard<'_>) -> Result<bool> {
        self.wire.simple()?;
        let is_there = if guard.must_exist { self.wire.int()? > 0 } else { true };
        let mut taken = None;
        for (number, _) in guard.unique_tags.iter().enumerate() {
            if let Some(holder) = self.wire.maybe_bulk()?
                && holder != guard.key
            {
                taken = taken.or(Some((number, holder)));
            }
        }
        match taken {
            Some((number, holder)) if is_there => {
                Err(guard.taken(self.resp_table(guard.table)?, Some(number), &holder))
            }
            _ => Ok(is_there),
        }
    }

    /// MULTI, `commands`, EXEC; false if a watched key has changed.
    fn execute(&mut self, queue: &RespCommands) -> Result<bool> {
        commands::request(&mut self.wire.out, &[b"MULTI"]);
        self.wire.out.extend_from_slice(queue.bytes());
        commands::request(&mut self.wire.out, &[b"EXEC"]);
        // EXEC ends the watch in any case.
        self.is_watching = false;
        self.send()?;
        for _ in 0..=queue.count() {
            self.wire.simple()?;
        }
        match self.wire.head()? {
            (b'*', NIL) => Ok(false),
            (b'*', count) => {
                for _ in 0..count {
                    self.wire.skip()?;
                }
                Ok(true)
            }
            other => Err(self.wire.other(other, "the replies of EXEC")),
        }
    }
}

fn resp_table(tables: &[RespTable], table: TableId) -> Result<&RespTable> {
    tables.get(table.0).ok_or_else(|| table.unknown())
}

/// A record is put whole: otherwise the reply of HSET would not show whether it exists.
fn must_be_whole(resp_table: &RespTable, parts: &[PartWrite<'_>]) -> Result<()> {
    if parts.len() == resp_table.schema.parts.len() {
        return Ok(());
    }
    Err(bad_argument!(
        "a record of table {} has {} parts, but {} were given: give all of them",
        resp_table.schema.name,
        resp_table.schema.parts.len(),
        parts.len()
    ))
}

impl<S: Stream> StoreAccess for Resp<S> {
    fn perform(&mut self, request: &Request<'_>, receive: &mut ReplySink<'_>) -> Result<bool> {
        let mut is_done = false;
        self.pipelined(std::slice::from_ref(request), &mut |_, reply| match reply {
            StoreReply::Done(done) => is_done = done,
            StoreReply::Part(..) | StoreReply::Key(_) => receive(reply),
        })?;
        Ok(is_done)
    }

    fn scan(&mut self, range: &ScanRange<'_>, receive: &mut ScanSink<'_>) -> Result<usize> {
        let ScanRange { table, from, count } = *range;
        let resp_table = resp_table(&self.tables, table)?;
        if !resp_table.schema.is_scanned || count == 0 {
            return Ok(0);
        }
        commands::scan_request(&mut self.wire.out, resp_table, from, count);
        self.send()?;
        let found = self.wire.array()?;
        let keys = (0..found).map(|_| self.wire.bulk()).collect::<Result<Vec<_>>>()?;
        for key in &keys {
            self.request_parts(table, key, PartSet::one(0))?;
        }
        if !keys.is_empty() {
            self.send()?;
        }
        let mut met = 0;
        for key in &keys {
            let there =
                self.receive_parts(table, PartSet::one(0), &mut |_, bytes| receive(key, bytes))?;
            met += usize::from(there);
        }
        Ok(met)
    }
}

impl<S: Stream> Resp<S> {
    /// The number of fields that a change created: 0 if the record existed.
    #[inline]
    fn receive_change(&mut self, table: TableId) -> Result<i64> {
        if !self.resp_table(table)?.is_plain() {
            return self.wire.int();
        }
        match self.wire.head()? {
            (b'+', _) => Ok(0),
            (b'$', NIL) => Ok(-1),
            other => Err(self.wire.other(other, "OK")),
        }
    }
}

impl<S: Stream> StoreConnection for Resp<S> {
    fn is_lost(&self) -> bool {
        self.wire.is_cut()
    }

    fn walk(&mut self, table: TableId) -> Result<u64> {
        self.walk_by_scan(table)
    }

    fn add_member(&mut self, set: &[u8], member: &[u8]) -> Result<bool> {
        self.sadd(set, member)
    }

    fn members(&mut self, set: &[u8], receive: &mut dyn FnMut(&[u8])) -> Result<()> {
        self.smembers(set, receive)
    }

    fn transact(&mut self, body: &mut Body<'_>) -> Result<()> {
        for _ in 0..TRANSACTION_TRIES {
            let mut queue = std::mem::take(&mut self.queue);
            queue.begin(RespForm::Requests);
            self.seen.clear();
            let mut inside = RespTransaction::new(self, queue);
            let outcome = body(&mut inside);
            let (queue, reads) = inside.into_parts();
            let done = match outcome {
                Err(e) => Err(e),
                // A single read always shows one instant.
                Ok(()) if queue.count() == 0 && reads < 2 => Ok(true),
                Ok(()) => self.execute(&queue),
            };
            self.queue = queue;
            if done? {
                return Ok(());
            }
        }
        Err(Error::Deadline { tries: TRANSACTION_TRIES })
    }

    fn pipeline(&mut self, requests: &[Request<'_>], receive: &mut BatchSink<'_>) -> Result<()> {
        self.pipelined(requests, receive)
    }

    fn sends_ahead(&self) -> bool {
        S::IS_NON_BLOCKING
    }

    fn send_ahead(&mut self, requests: &[Request<'_>]) -> Result<()> {
        self.send_requests(requests)
    }

    fn receive_ahead(&mut self, requests: &[Request<'_>], sink: &mut BatchSink<'_>) -> Result<()> {
        self.receive_requests(requests, sink)
    }
}
