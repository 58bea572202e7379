//! Apache Geode, paper 2's store: a locator and servers, each a Java process, and our gateway in
//! the first server (`verification/peers/geode`).
//!
//! Layouts, with their defaults: `partitioned[:SERVERS[:COPIES]]` (one server, no copies),
//! `replicated[:SERVERS]` (two servers), `zones[:SERVERS[:COPIES]]` (two servers, one copy). With
//! `zones`, each server has a replicated region for the records of its zone, and each put also goes
//! to a partitioned region of all servers.

mod cluster;

use self::cluster::{GeodeServers, layout};
use super::wire::{SentAhead, Wire, connect};
use super::{Capabilities, Database, DatabaseSpec, Support, Target};
use crate::access::{
    BatchSink, Body, PartWrite, RecordTag, ReplySink, Request, StoreAccess, StoreConnection,
    StoreReply, StoreSchema, TableId,
};
use crate::peers::{Geode, installed};
use nearstate_model::limits::TRANSACTION_TRIES;
use nearstate_model::{Error, Result};
use nearstate_resp_client::TimeoutSocket;

/// The largest number of requests of one message.
const MESSAGE_REQUESTS_MAX: usize = 256;

const NO_ORDER: &str = "Geode's regions have no order of keys";

#[derive(Clone, Copy, Debug)]
pub struct GeodeTarget;

impl Target for GeodeTarget {
    fn name(&self) -> &'static str {
        "geode"
    }

    fn version(&self) -> Result<String> {
        installed("java", "geode")?;
        Geode::here()?;
        Ok("Apache Geode 1.15.1, accessed through our gateway in a server's process".to_owned())
    }

    fn bound_caveat(&self, server_cpus: usize) -> Option<String> {
        Some(super::many_threads(server_cpus))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            unique_tag: Support::Emulated(
                "a second region: putIfAbsent, then the record; undone if another tag is taken",
            ),
            scan: Support::Declined(NO_ORDER),
            walk: Support::Declined("its gateway has no walk"),
            ..Capabilities::DEFAULT
        }
    }

    /// Geode's transactions need all records on one server. In a partitioned region the key
    /// determines the server.
    fn capabilities_in(&self, text: Option<&str>) -> Capabilities {
        let is_distributed =
            layout(text).is_ok_and(|layout| layout.name != "replicated" && layout.servers > 1);
        let mut capabilities = self.capabilities();
        if is_distributed {
            capabilities.transaction =
                Support::Declined("Geode refuses records of several servers in a transaction");
        }
        capabilities
    }

    fn has_layout(&self, text: &str) -> Result<bool> {
        layout(Some(text)).map(|_| true)
    }

    fn start(&self, spec: &DatabaseSpec) -> Result<Box<dyn Database>> {
        Ok(Box::new(GeodeServers::start(spec)?))
    }

    fn connect(&self, address: &str, schema: &StoreSchema) -> Result<Box<dyn StoreConnection>> {
        let mut connection = GeodeConnection::new(address, *schema)?;
        connection.ping()?;
        Ok(Box::new(connection))
    }
}

/// The process id of a gateway's server, and the number of members that it knows.
fn cluster_state(address: &str) -> Result<(i64, usize)> {
    GeodeConnection::new(address, StoreSchema { tables: &[] })?.ping()
}

/// Operations of the gateway.
const PING: u8 = 0;
const READ: u8 = 1;
const PUT: u8 = 2;
const CHANGE: u8 = 3;
const DELETE: u8 = 4;
const FIND: u8 = 5;
const BEGIN: u8 = 6;
const COMMIT: u8 = 7;
const ROLLBACK: u8 = 8;

/// The result of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    No,
    Yes,
    Conflict,
}

#[derive(Debug)]
struct GeodeConnection {
    wire: Wire<TimeoutSocket>,
    schema: StoreSchema,
    /// Replies outstanding to requests that did not wait for them: the begin and the writes of a
    /// transaction.
    owed: usize,
    ahead: SentAhead,
}

impl GeodeConnection {
    fn new(address: &str, schema: StoreSchema) -> Result<Self> {
        let wire = Wire::new(connect(address)?);
        Ok(Self { wire, schema, owed: 0, ahead: SentAhead::default() })
    }

    fn ping(&mut self) -> Result<(i64, usize)> {
        self.frame(PING, |_| Ok(()))?;
        self.wire.send()?;
        self.status(&[])?;
        let process = self.wire.take(8)?.try_into().map_or(0, i64::from_be_bytes);
        Ok((process, usize::from(self.byte()?)))
    }

    /// Writes a frame; `fill` writes its fields. After an error, the output is unchanged.
    #[inline]
    fn frame(
        &mut self,
        operation: u8,
        fill: impl FnOnce(&mut Vec<u8>) -> Result<()>,
    ) -> Result<()> {
        let out = &mut self.wire.out;
        let start = out.len();
        out.extend_from_slice(&[0, 0, 0, 0, operation]);
        fill(out).inspect_err(|_| out.truncate(start))?;
        let length = u32::try_from(out.len() - start - 4).unwrap_or(u32::MAX);
        if let Some(field) = out.get_mut(start..start + 4) {
            field.copy_from_slice(&length.to_be_bytes());
        }
        Ok(())
    }

    /// Sends, and reads the outstanding replies.
    fn send(&mut self) -> Result<()> {
        self.wire.send()?;
        let mut outcome = Ok(());
        while self.owed > 0 {
            self.owed -= 1;
            let status = self.status(&[]);
            outcome = outcome.and(status.map(drop));
        }
        outcome
    }

    fn byte(&mut self) -> Result<u8> {
        Ok(self.wire.take(1)?.first().copied().unwrap_or(0))
    }

    fn bytes(&mut self) -> Result<&[u8]> {
        let length = self.wire.take(2)?.try_into().map_or(0, u16::from_be_bytes);
        self.wire.take(usize::from(length))
    }

    /// Reads the status of a reply. `tags` are those of the request, for a refusal.
    #[inline]
    fn status(&mut self, tags: &[(&'static str, &[u8])]) -> Result<Status> {
        match self.byte()? {
            0 => Ok(Status::No),
            1 => Ok(Status::Yes),
            2 => Ok(Status::Conflict),
            3 => Err(self.taken(tags)?),
            4 => {
                let text = String::from_utf8_lossy(self.bytes()?).into_owned();
                Err(backend_error!("geode: {text}"))
            }
            other => Err(self.wire.invalid_reply(&format!("with status {other}"))),
        }
    }

    #[cold]
    fn taken(&mut self, tags: &[(&'static str, &[u8])]) -> Result<Error> {
        let tag = usize::from(self.byte()?);
        let holder = String::from_utf8_lossy(self.bytes()?).into_owned();
        let (name, value) = tags.get(tag).copied().unwrap_or(("?", b""));
        let value = String::from_utf8_lossy(value).into_owned();
        Ok(Error::TagTaken { tag: name.to_owned(), value, holder })
    }

    /// Names and values by the number of the tag, for a refusal.
    fn named_tags<'a>(
        &self,
        table: TableId,
        tags: &[RecordTag<'a>],
    ) -> Vec<(&'static str, &'a [u8])> {
        let rules = self.schema.tables.get(table.0).map_or(&[][..], |table| table.tags);
        let value = |number: usize| tags.iter().find(|(tag, _)| *tag == number);
        let tag_name = |(number, rule): (usize, &crate::access::TagRule)| {
            (rule.name, value(number).map_or(&[][..], |(_, value)| *value))
        };
        rules.iter().enumerate().map(tag_name).collect()
    }

    fn send_request(&mut self, request: &Request<'_>) -> Result<()> {
        match request {
            Request::Read { table, key, wanted } => self.frame(READ, |out| {
                table_and_key(out, *table, key)?;
                out.extend_from_slice(&wanted.0.to_be_bytes());
                Ok(())
            }),
            Request::Put { table, entry } => self.frame(PUT, |out| {
                table_and_key(out, *table, entry.key)?;
                write_parts(out, entry.parts);
                write_tags(out, entry.tags)?;
                write_tags(out, entry.tags_before)
            }),
            Request::Change { table, change } => self.frame(CHANGE, |out| {
                let (before, after) = change.tags.unwrap_or_default();
                table_and_key(out, *table, change.key)?;
                write_parts(out, change.parts);
                write_tags(out, after)?;
                write_tags(out, before)
            }),
            Request::Delete { table, key, tags } => self.frame(DELETE, |out| {
                table_and_key(out, *table, key)?;
                write_tags(out, tags)
            }),
            Request::Find { table, tag, wanted } => self.frame(FIND, |out| {
                out.push(u8::try_from(table.0).unwrap_or(u8::MAX));
                out.push(u8::try_from(tag.0).unwrap_or(u8::MAX));
                short(out, tag.1)?;
                out.extend_from_slice(&wanted.0.to_be_bytes());
                Ok(())
            }),
        }
    }

    /// Receives the reply to a request.
    #[inline]
    fn receive(&mut self, request: &Request<'_>, receive: &mut ReplySink<'_>) -> Result<bool> {
        let named = match request {
            Request::Put { table, entry } if !entry.tags.is_empty() => {
                self.named_tags(*table, entry.tags)
            }
            Request::Change { table, change } if change.tags.is_some() => {
                self.named_tags(*table, change.tags.unwrap_or_default().1)
            }
            Request::Read { .. }
            | Request::Put { .. }
            | Request::Change { .. }
            | Request::Delete { .. }
            | Request::Find { .. } => Vec::new(),
        };
        if self.status(&named)? != Status::Yes {
            return Ok(false);
        }
        let key = match request {
            Request::Find { .. } => Some(self.bytes()?.to_vec()),
            Request::Read { .. } => None,
            Request::Put { .. } | Request::Change { .. } | Request::Delete { .. } => {
                return Ok(true);
            }
        };
        for _ in 0..self.byte()? {
            let part = usize::from(self.byte()?);
            let length = self.wire.take(4)?.try_into().map_or(0, u32::from_be_bytes);
            receive(StoreReply::Part(part, self.wire.take(length as usize)?));
        }
        if let Some(key) = key {
            receive(StoreReply::Key(&key));
        }
        Ok(true)
    }

    /// Receives the replies to the requests of a message, the first of which has the number
    /// `first`.
    fn receive_all(
        &mut self,
        (first, requests): (usize, &[Request<'_>]),
        receive: &mut BatchSink<'_>,
    ) -> Result<()> {
        let mut refused = None;
        for (number, request) in (first..).zip(requests) {
            match self.receive(request, &mut |reply| receive(number, reply)) {
                Ok(done) => receive(number, StoreReply::Done(done)),
                // The replies after it must be read too.
                Err(e @ Error::TagTaken { .. }) => refused = refused.or(Some(e)),
                Err(e) => return Err(e),
            }
        }
        refused.map_or(Ok(()), Err)
    }

    fn command(&mut self, operation: u8) -> Result<Status> {
        self.frame(operation, |_| Ok(()))?;
        self.send()?;
        self.status(&[])
    }
}

fn table_and_key(out: &mut Vec<u8>, table: TableId, key: &[u8]) -> Result<()> {
    out.push(u8::try_from(table.0).unwrap_or(u8::MAX));
    short(out, key)
}

/// Writes bytes with a length of 16 bits.
fn short(out: &mut Vec<u8>, bytes: &[u8]) -> Result<()> {
    let length =
        u16::try_from(bytes.len()).map_err(|_| Error::KeyTooLarge { bytes: bytes.len() })?;
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(bytes);
    Ok(())
}

fn write_parts(out: &mut Vec<u8>, parts: &[PartWrite<'_>]) {
    out.push(u8::try_from(parts.len()).unwrap_or(u8::MAX));
    for (part, bytes) in parts {
        out.push(u8::try_from(*part).unwrap_or(u8::MAX));
        out.extend_from_slice(&u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes());
        out.extend_from_slice(bytes);
    }
}

fn write_tags(out: &mut Vec<u8>, tags: &[RecordTag<'_>]) -> Result<()> {
    out.push(u8::try_from(tags.len()).unwrap_or(u8::MAX));
    for (tag, value) in tags {
        out.push(u8::try_from(*tag).unwrap_or(u8::MAX));
        short(out, value)?;
    }
    Ok(())
}

impl StoreAccess for GeodeConnection {
    fn perform(&mut self, request: &Request<'_>, receive: &mut ReplySink<'_>) -> Result<bool> {
        self.send_request(request)?;
        self.send()?;
        self.receive(request, receive)
    }
}

/// A connection within a transaction. It does not wait for the replies to puts without tags.
struct GeodeTransaction<'c>(&'c mut GeodeConnection);

impl StoreAccess for GeodeTransaction<'_> {
    fn perform(&mut self, request: &Request<'_>, receive: &mut ReplySink<'_>) -> Result<bool> {
        match request {
            Request::Put { entry, .. } if entry.tags.is_empty() => {
                self.0.send_request(request)?;
                self.0.owed += 1;
                Ok(true)
            }
            Request::Read { .. }
            | Request::Put { .. }
            | Request::Change { .. }
            | Request::Delete { .. }
            | Request::Find { .. } => self.0.perform(request, receive),
        }
    }
}

impl StoreConnection for GeodeConnection {
    fn is_lost(&self) -> bool {
        self.wire.is_cut()
    }

    fn transact(&mut self, body: &mut Body<'_>) -> Result<()> {
        for _ in 0..TRANSACTION_TRIES {
            self.frame(BEGIN, |_| Ok(()))?;
            self.owed += 1;
            let outcome = body(&mut GeodeTransaction(self));
            if let Err(e) = outcome {
                // The error of the body is the result, whatever the rollback returns.
                let _ = self.command(ROLLBACK);
                return Err(e);
            }
            match self.command(COMMIT)? {
                Status::Yes => return Ok(()),
                Status::Conflict => {}
                Status::No => return Err(self.wire.invalid_reply("a commit with no")),
            }
        }
        Err(Error::Deadline { tries: TRANSACTION_TRIES })
    }

    fn pipeline(&mut self, requests: &[Request<'_>], receive: &mut BatchSink<'_>) -> Result<()> {
        for (i, message) in requests.chunks(MESSAGE_REQUESTS_MAX).enumerate() {
            message.iter().try_for_each(|request| self.send_request(request))?;
            self.send()?;
            self.receive_all((i * MESSAGE_REQUESTS_MAX, message), receive)?;
        }
        Ok(())
    }

    fn sends_ahead(&self) -> bool {
        true
    }

    fn send_ahead(&mut self, requests: &[Request<'_>]) -> Result<()> {
        requests.iter().try_for_each(|request| self.send_request(request))?;
        self.ahead.push(true);
        if self.owed > 0 { self.send() } else { self.wire.send_or_hold() }
    }

    fn receive_ahead(&mut self, requests: &[Request<'_>], sink: &mut BatchSink<'_>) -> Result<()> {
        if self.ahead.pop() {
            self.wire.set_busy_poll(self.ahead.is_owed());
            let received = self.receive_all((0, requests), sink);
            self.wire.set_busy_poll(false);
            return received;
        }
        self.pipeline(requests, sink)
    }
}
