//! memcached over TCP: plain values, nothing else. A record of several parts is one value with
//! their lengths before them; a change of some reads the whole and writes the whole, with
//! memcached's compare-and-set.
//!
//! Keys are words to memcached. One that is a word stands as `TABLE:KEY`, any other in hexadecimal
//! digits as `TABLE#HEX`.

use super::joined::{hand_over, joined};
use super::started::{ServerProcess, first_line, free_port};
use super::wire::{SentAhead, Socket, Wire, digits, number};
use super::{Capabilities, Database, Need, Support, Target};
use crate::access::{
    BatchSink, PartsChange, ReplySink, Request, StoreAccess, StoreConnection, StoreReply,
    StoreSchema, TableSchema, declined, parts,
};
use crate::peers::installed;
use nearstate_model::limits::TRANSACTION_TRIES;
use nearstate_model::{Error, Result};
use std::ffi::OsString;

/// Bytes of a key at the most: memcached's own limit.
const KEY_BYTES_MAX: usize = 250;

/// Memory that it may take at the least, in MiB: an item may have half of it at the most.
const MEMORY_MIB_MIN: u64 = 1024;

/// The largest item.
const ITEM_MAX: &str = "64m";

/// What a record takes beside its bytes at the most, rounded up to its class of sizes.
const RECORD_ROOM: u64 = 256;

/// Requests of one message.
const TOGETHER: usize = 256;

const NO_TAGS: &str = "memcached has one key for a value";
const NO_TRANSACTIONS: &str = "memcached writes one value at a time";
const NO_ORDER: &str = "memcached's keys have no order";

#[derive(Clone, Copy, Debug)]
pub struct MemcachedTarget;

impl Target for MemcachedTarget {
    fn name(&self) -> &'static str {
        "memcached"
    }

    fn version(&self) -> Result<String> {
        let line = first_line(&installed("memcached", "memcached")?, "--version")?;
        Ok(format!("{line}, one thread"))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            delta: Support::Emulated(
                "the whole value is read, and set again if it is still the same",
            ),
            unique_tag: Support::Declined(NO_TAGS),
            transaction: Support::Declined(NO_TRANSACTIONS),
            scan: Support::Declined(NO_ORDER),
            walk: Support::Declined("memcached has no walk"),
            ..Capabilities::DEFAULT
        }
    }

    fn start(&self, need: &Need) -> Result<Box<dyn Database>> {
        let file = installed("memcached", "memcached")?;
        let port = free_port()?;
        let mut started = ServerProcess::new("memcached", need, &file, |_| words(port, need))?;
        let process = i64::from(started.process());
        let address = format!("127.0.0.1:{port}");
        // At a port that is taken, another process would answer.
        started.wait(|| process_at(&address).is_ok_and(|there| there == process))?;
        Ok(Box::new(Server { started, address }))
    }

    fn connect(&self, address: &str, schema: &StoreSchema) -> Result<Box<dyn StoreConnection>> {
        let mut connection = Memcached {
            wire: Wire::new(Socket::at(address)?),
            schema: *schema,
            value: Vec::new(),
            ahead: SentAhead::default(),
        };
        connection.version()?;
        Ok(Box::new(connection))
    }
}

fn words(port: u16, need: &Need) -> Vec<OsString> {
    let bytes = need.record_bytes.saturating_add(RECORD_ROOM);
    let mib = (need.records.saturating_mul(bytes) >> 20).saturating_mul(2);
    let mib = mib.max(MEMORY_MIB_MIN).to_string();
    let (port, clients) = (port.to_string(), (need.clients + 64).to_string());
    let mut words = vec!["-l", "127.0.0.1", "-p", &port, "-U", "0", "-t", "1", "-m", &mib];
    // -M: what does not fit is refused, never forgotten.
    words.extend(["-M", "-I", ITEM_MAX, "-c", &clients]);
    if rustix::process::geteuid().is_root() {
        words.extend(["-u", "root"]);
    }
    words.into_iter().map(OsString::from).collect()
}

/// The process that answers at an address.
fn process_at(address: &str) -> Result<i64> {
    let mut wire = Wire::new(Socket::at(address)?);
    wire.out.extend_from_slice(b"stats\r\n");
    wire.send()?;
    let mut process = 0;
    loop {
        match wire.line()? {
            b"END" => return Ok(process),
            line => {
                if let Some(text) = line.strip_prefix(b"STAT pid ") {
                    process = number(text).unwrap_or(0);
                }
            }
        }
    }
}

#[derive(Debug)]
struct Server {
    started: ServerProcess,
    address: String,
}

impl Database for Server {
    fn address(&self) -> String {
        self.address.clone()
    }

    fn processes(&self) -> Vec<u32> {
        self.started.processes()
    }

    fn memory_bytes(&mut self) -> Option<u64> {
        Some(self.started.memory_bytes())
    }

    fn alive(&mut self) -> Result<()> {
        self.started.alive()
    }
}

#[derive(Debug)]
struct Memcached {
    wire: Wire<Socket>,
    schema: StoreSchema,
    /// A value that is put together.
    value: Vec<u8>,
    ahead: SentAhead,
}

/// Writes the key of a record.
fn key_of(table: &TableSchema, key: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let begin = out.len();
    out.extend_from_slice(table.name.as_bytes());
    if !key.is_empty() && key.iter().all(u8::is_ascii_graphic) {
        out.push(b':');
        out.extend_from_slice(key);
    } else {
        out.push(b'#');
        for byte in key {
            let digit = |half: u8| b"0123456789abcdef".get(usize::from(half)).copied();
            out.extend(digit(byte >> 4).into_iter().chain(digit(byte & 15)));
        }
    }
    if out.len() - begin > KEY_BYTES_MAX {
        out.truncate(begin);
        let detail = format!(
            "memcached's keys have {KEY_BYTES_MAX} bytes at the most, and twice as many for what \
             is no word"
        );
        return Err(Error::BadArgument { detail });
    }
    Ok(())
}

/// When a value is set.
#[derive(Clone, Copy)]
enum When {
    Always,
    IsThere,
    /// It is still the one of this number.
    IsStill(i64),
}

/// What became of a set.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MemcachedStored {
    Done,
    NotThere,
    IsAnother,
}

impl Memcached {
    fn version(&mut self) -> Result<()> {
        self.wire.out.extend_from_slice(b"version\r\n");
        self.wire.send()?;
        if self.wire.line()?.starts_with(b"VERSION ") {
            return Ok(());
        }
        Err(self.wire.invalid_reply("a greeting with something else: is that a memcached?"))
    }

    /// `mg`: the value, and the number that it has if asked for.
    fn ask_value(&mut self, table: &TableSchema, key: &[u8], flags: &[u8]) -> Result<()> {
        self.send_key(b"mg ", table, key)?;
        self.wire.out.extend_from_slice(flags);
        self.wire.out.extend_from_slice(b"\r\n");
        Ok(())
    }

    /// Begins a request; what is not sent is taken back after an error.
    fn send_key(&mut self, command: &[u8], table: &TableSchema, key: &[u8]) -> Result<()> {
        let begin = self.wire.out.len();
        self.wire.out.extend_from_slice(command);
        key_of(table, key, &mut self.wire.out).inspect_err(|_| self.wire.out.truncate(begin))
    }

    /// The length of the value that is answered, and its number.
    fn value_head(&mut self) -> Result<Option<(usize, i64)>> {
        let line = self.wire.line()?;
        if line == b"EN" {
            return Ok(None);
        }
        let mut words = line.split(|byte| *byte == b' ');
        let is_value = words.next() == Some(b"VA");
        let length = words.next().and_then(number).and_then(|length| usize::try_from(length).ok());
        let version = words.find_map(|word| number(word.strip_prefix(b"c")?));
        if let Some(length) = length.filter(|_| is_value) {
            return Ok(Some((length, version.unwrap_or(0))));
        }
        let text = String::from_utf8_lossy(line).into_owned();
        Err(self.wire.refused(&format!("memcached answered {text:?}")))
    }

    /// `ms` of what was put together in `value`.
    fn ask_set(&mut self, table: &TableSchema, key: &[u8], when: When) -> Result<()> {
        self.send_key(b"ms ", table, key)?;
        let out = &mut self.wire.out;
        out.push(b' ');
        digits(self.value.len(), out);
        match when {
            When::Always => {}
            When::IsThere => out.extend_from_slice(b" MR"),
            When::IsStill(version) => {
                out.extend_from_slice(b" C");
                out.extend_from_slice(version.to_string().as_bytes());
            }
        }
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(&self.value);
        out.extend_from_slice(b"\r\n");
        Ok(())
    }

    fn receive_set(&mut self) -> Result<MemcachedStored> {
        match self.wire.line()? {
            b"HD" => Ok(MemcachedStored::Done),
            b"NS" | b"NF" => Ok(MemcachedStored::NotThere),
            b"EX" => Ok(MemcachedStored::IsAnother),
            line => {
                let text = String::from_utf8_lossy(line).into_owned();
                Err(self.wire.refused(&format!("memcached answered {text:?}")))
            }
        }
    }

    /// Puts the changed record together, out of the value that is answered; its number.
    fn changed(&mut self, table: &TableSchema, change: &PartsChange<'_>) -> Result<Option<i64>> {
        let Some((length, version)) = self.value_head()? else { return Ok(None) };
        let before = self.wire.take(length + 2)?;
        let before = before.get(..length).unwrap_or_default();
        joined(table, Some(before), change.parts, &mut self.value)?;
        Ok(Some(version))
    }

    /// A change that has to read first.
    fn change_whole(&mut self, table: &TableSchema, change: &PartsChange<'_>) -> Result<bool> {
        for _ in 0..TRANSACTION_TRIES {
            self.ask_value(table, change.key, b" v c")?;
            self.wire.send()?;
            let Some(version) = self.changed(table, change)? else { return Ok(false) };
            self.ask_set(table, change.key, When::IsStill(version))?;
            self.wire.send()?;
            match self.receive_set()? {
                MemcachedStored::Done => return Ok(true),
                MemcachedStored::NotThere => return Ok(false),
                MemcachedStored::IsAnother => {}
            }
        }
        Err(Error::Deadline { tries: TRANSACTION_TRIES })
    }

    /// The changes that have to read first, in two messages; whether each is done. `None` for all
    /// other requests.
    fn early(&mut self, some: &[Request<'_>]) -> Result<Vec<Option<bool>>> {
        let mut done = vec![None; some.len()];
        let mut whole = Vec::new();
        for (at, request) in some.iter().enumerate() {
            if let Request::Change { table, change } = request {
                let table = self.schema.table(*table)?;
                must_have_no_tags(change.tags.is_some())?;
                if !is_one_word(table, change) {
                    self.ask_value(table, change.key, b" v c")?;
                    whole.push((at, table, change));
                }
            }
        }
        if whole.is_empty() {
            return Ok(done);
        }
        self.wire.send()?;
        let mut changes = Vec::new();
        for (at, table, change) in &whole {
            match self.changed(table, change)? {
                None => set(&mut done, *at, false),
                Some(version) => {
                    self.ask_set(table, change.key, When::IsStill(version))?;
                    changes.push((*at, *table, *change));
                }
            }
        }
        if changes.is_empty() {
            return Ok(done);
        }
        self.wire.send()?;
        let mut again = Vec::new();
        for (at, table, change) in changes {
            match self.receive_set()? {
                MemcachedStored::Done => set(&mut done, at, true),
                MemcachedStored::NotThere => set(&mut done, at, false),
                MemcachedStored::IsAnother => again.push((at, table, change)),
            }
        }
        for (at, table, change) in again {
            let is_done = self.change_whole(table, change)?;
            set(&mut done, at, is_done);
        }
        Ok(done)
    }

    fn ask_one(&mut self, request: &Request<'_>) -> Result<()> {
        match request {
            Request::Read { table, key, .. } => {
                self.ask_value(self.schema.table(*table)?, key, b" v")
            }
            Request::Put { table, entry } => {
                let table = self.schema.table(*table)?;
                must_have_no_tags(!entry.tags.is_empty())?;
                joined(table, None, entry.parts, &mut self.value)?;
                self.ask_set(table, entry.key, When::Always)
            }
            Request::Change { table, change } => {
                let table = self.schema.table(*table)?;
                must_have_no_tags(change.tags.is_some())?;
                joined(table, None, change.parts, &mut self.value)?;
                self.ask_set(table, change.key, When::IsThere)
            }
            Request::Delete { table, key, .. } => {
                self.send_key(b"md ", self.schema.table(*table)?, key)?;
                self.wire.out.extend_from_slice(b"\r\n");
                Ok(())
            }
            Request::Find { .. } => Err(declined(NO_TAGS)),
        }
    }

    fn receive_one(&mut self, request: &Request<'_>, receive: &mut ReplySink<'_>) -> Result<bool> {
        match request {
            Request::Read { table, wanted, .. } => {
                let Some((length, _)) = self.value_head()? else { return Ok(false) };
                let value = self.wire.take(length + 2)?.get(..length).unwrap_or_default();
                hand_over(self.schema.table(*table)?, value, *wanted, &mut parts(receive))?;
                Ok(true)
            }
            Request::Put { .. } if self.receive_set()? != MemcachedStored::Done => {
                Err(self.wire.invalid_reply("a set with a refusal"))
            }
            Request::Put { .. } => Ok(true),
            Request::Change { .. } | Request::Delete { .. } => {
                Ok(self.receive_set()? == MemcachedStored::Done)
            }
            Request::Find { .. } => Err(declined(NO_TAGS)),
        }
    }

    /// The answers to a message whose first request has this number.
    fn receive_all(
        &mut self,
        (first, some): (usize, &[Request<'_>]),
        early: &[Option<bool>],
        receive: &mut BatchSink<'_>,
    ) -> Result<()> {
        for (at, request) in some.iter().enumerate() {
            let number = first + at;
            let done = match early.get(at) {
                Some(Some(done)) => *done,
                Some(None) | None => {
                    self.receive_one(request, &mut |reply| receive(number, reply))?
                }
            };
            receive(number, StoreReply::Done(done));
        }
        Ok(())
    }

    /// Whether a request has to read first.
    fn reads_first(&self, request: &Request<'_>) -> Result<bool> {
        Ok(match request {
            Request::Change { table, change } => !is_one_word(self.schema.table(*table)?, change),
            Request::Read { .. }
            | Request::Put { .. }
            | Request::Delete { .. }
            | Request::Find { .. } => false,
        })
    }
}

fn set(done: &mut [Option<bool>], at: usize, is_done: bool) {
    if let Some(slot) = done.get_mut(at) {
        *slot = Some(is_done);
    }
}

/// Whether a change is a whole value.
fn is_one_word(table: &TableSchema, change: &PartsChange<'_>) -> bool {
    table.parts.len() == 1 && !change.parts.is_empty()
}

fn must_have_no_tags(has_tags: bool) -> Result<()> {
    if has_tags { Err(declined(NO_TAGS)) } else { Ok(()) }
}

impl StoreAccess for Memcached {
    fn perform(&mut self, request: &Request<'_>, receive: &mut ReplySink<'_>) -> Result<bool> {
        if let Request::Change { table, change } = request
            && self.reads_first(request)?
        {
            must_have_no_tags(change.tags.is_some())?;
            return self.change_whole(self.schema.table(*table)?, change);
        }
        self.ask_one(request)?;
        self.wire.send()?;
        self.receive_one(request, receive)
    }
}

impl StoreConnection for Memcached {
    fn is_lost(&self) -> bool {
        self.wire.is_cut()
    }

    fn pipeline(&mut self, requests: &[Request<'_>], receive: &mut BatchSink<'_>) -> Result<()> {
        for (round, some) in requests.chunks(TOGETHER).enumerate() {
            let early = self.early(some)?;
            for (request, early) in some.iter().zip(&early) {
                if early.is_none() {
                    self.ask_one(request)?;
                }
            }
            self.wire.send()?;
            self.receive_all((round * TOGETHER, some), &early, receive)?;
        }
        Ok(())
    }

    /// Where a change of parts reads the record first, steps that overlapped would only be smaller
    /// ones, one after the other: more round trips for the same work.
    fn sends_ahead(&self) -> bool {
        self.schema.tables.iter().all(|table| table.parts.len() == 1)
    }

    fn send_ahead(&mut self, requests: &[Request<'_>]) -> Result<()> {
        let mut leaves = self.ahead.may_send();
        for request in requests {
            leaves = leaves && !self.reads_first(request)?;
        }
        if leaves {
            requests.iter().try_for_each(|request| self.ask_one(request))?;
            self.wire.send_or_hold()?;
        }
        self.ahead.push(leaves);
        Ok(())
    }

    fn receive_ahead(&mut self, requests: &[Request<'_>], sink: &mut BatchSink<'_>) -> Result<()> {
        if self.ahead.pop() {
            self.wire.set_busy_poll(self.ahead.is_owed());
            self.receive_all((0, requests), &[], sink)?;
            self.wire.set_busy_poll(false);
            return Ok(());
        }
        self.pipeline(requests, sink)
    }
}

#[cfg(test)]
mod tests;
