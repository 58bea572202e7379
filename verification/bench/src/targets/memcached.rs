//! memcached over TCP. It has plain values only: a record of several parts is one value, in which a
//! length precedes each part. A change of some parts reads and writes the whole value, with
//! memcached's compare-and-set.
//!
//! memcached's keys are printable words. Such a key becomes `TABLE:KEY`, any other `TABLE#HEX`, in
//! hexadecimal digits.

use super::joined::{joined, pass_parts};
use super::started::{ServerProcess, first_line, free_port};
use super::wire::{SentAhead, Wire, connect, digits, number};
use super::{Capabilities, Database, DatabaseSpec, Support, Target};
use crate::access::{
    BatchSink, PartsChange, ReplySink, Request, StoreAccess, StoreConnection, StoreReply,
    StoreSchema, TableSchema, declined, parts,
};
use crate::peers::installed;
use nearstate_model::limits::TRANSACTION_TRIES;
use nearstate_model::{Error, Result};
use nearstate_resp_client::TimeoutSocket;
use std::ffi::OsString;

/// The longest key: memcached's limit.
const KEY_BYTES_MAX: usize = 250;

/// The smallest memory of the server in MiB. An item may have at most half of it.
const MEMORY_MIB_MIN: u64 = 1024;

/// The largest item.
const ITEM_MAX: &str = "64m";

/// The largest overhead of a record in bytes, with the rounding to a size class.
const RECORD_OVERHEAD_BYTES: u64 = 256;

/// The largest number of requests of one message.
const MESSAGE_REQUESTS_MAX: usize = 256;

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
                "the whole value is read, and written if it has not changed since",
            ),
            unique_tag: Support::Declined(NO_TAGS),
            transaction: Support::Declined(NO_TRANSACTIONS),
            scan: Support::Declined(NO_ORDER),
            walk: Support::Declined("memcached has no walk"),
            ..Capabilities::DEFAULT
        }
    }

    fn start(&self, spec: &DatabaseSpec) -> Result<Box<dyn Database>> {
        let file = installed("memcached", "memcached")?;
        let port = free_port()?;
        let mut started = ServerProcess::new("memcached", spec, &file, |_| arguments(port, spec))?;
        let process = i64::from(started.process());
        let address = format!("127.0.0.1:{port}");
        // If the port is in use, another process answers.
        started.wait(|| process_at(&address).is_ok_and(|answering| answering == process))?;
        Ok(Box::new(Server { started, address }))
    }

    fn connect(&self, address: &str, schema: &StoreSchema) -> Result<Box<dyn StoreConnection>> {
        let mut connection = Memcached {
            wire: Wire::new(connect(address)?),
            schema: *schema,
            value: Vec::new(),
            ahead: SentAhead::default(),
        };
        connection.version()?;
        Ok(Box::new(connection))
    }
}

fn arguments(port: u16, spec: &DatabaseSpec) -> Vec<OsString> {
    let bytes = spec.record_bytes.saturating_add(RECORD_OVERHEAD_BYTES);
    let mib = (spec.records.saturating_mul(bytes) >> 20).saturating_mul(2);
    let mib = mib.max(MEMORY_MIB_MIN).to_string();
    let (port, clients) = (port.to_string(), (spec.clients + 64).to_string());
    let mut arguments = vec!["-l", "127.0.0.1", "-p", &port, "-U", "0", "-t", "1", "-m", &mib];
    // -M: with full memory, a write is refused, and no item is evicted.
    arguments.extend(["-M", "-I", ITEM_MAX, "-c", &clients]);
    if rustix::process::geteuid().is_root() {
        arguments.extend(["-u", "root"]);
    }
    arguments.into_iter().map(OsString::from).collect()
}

/// The process id of the server at an address.
fn process_at(address: &str) -> Result<i64> {
    let mut wire = Wire::new(connect(address)?);
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
    wire: Wire<TimeoutSocket>,
    schema: StoreSchema,
    /// The encoded value of the next set.
    value: Vec<u8>,
    ahead: SentAhead,
}

/// Writes memcached's key for a record.
fn write_key(table: &TableSchema, key: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let start = out.len();
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
    if out.len() - start > KEY_BYTES_MAX {
        out.truncate(start);
        return Err(bad_argument!(
            "a key of {} bytes is too long for memcached, whose limit is {KEY_BYTES_MAX}, half of \
             that for a key that is not printable",
            key.len()
        ));
    }
    Ok(())
}

/// The condition of a set.
#[derive(Clone, Copy)]
enum SetCondition {
    Always,
    Exists,
    /// The item exists, with this CAS number.
    Unchanged(i64),
}

/// The result of a set.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SetResult {
    Stored,
    NotFound,
    Changed,
}

impl Memcached {
    fn version(&mut self) -> Result<()> {
        self.wire.out.extend_from_slice(b"version\r\n");
        self.wire.send()?;
        if self.wire.line()?.starts_with(b"VERSION ") {
            return Ok(());
        }
        Err(self.wire.invalid_reply("`version` with something else: is it a memcached?"))
    }

    /// Writes an `mg` request: for the value, and with the flag `c` its CAS number.
    fn request_value(&mut self, table: &TableSchema, key: &[u8], flags: &[u8]) -> Result<()> {
        self.send_key(b"mg ", table, key)?;
        self.wire.out.extend_from_slice(flags);
        self.wire.out.extend_from_slice(b"\r\n");
        Ok(())
    }

    /// Writes the start of a request. After an error, the output is unchanged.
    fn send_key(&mut self, command: &[u8], table: &TableSchema, key: &[u8]) -> Result<()> {
        let start = self.wire.out.len();
        self.wire.out.extend_from_slice(command);
        write_key(table, key, &mut self.wire.out).inspect_err(|_| self.wire.out.truncate(start))
    }

    /// Reads the header of a value: its length and CAS number; `None` if the item does not exist.
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

    /// Writes an `ms` request with `self.value`.
    fn ask_set(&mut self, table: &TableSchema, key: &[u8], when: SetCondition) -> Result<()> {
        self.send_key(b"ms ", table, key)?;
        let out = &mut self.wire.out;
        out.push(b' ');
        digits(self.value.len(), out);
        match when {
            SetCondition::Always => {}
            SetCondition::Exists => out.extend_from_slice(b" MR"),
            SetCondition::Unchanged(version) => {
                out.extend_from_slice(b" C");
                out.extend_from_slice(version.to_string().as_bytes());
            }
        }
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(&self.value);
        out.extend_from_slice(b"\r\n");
        Ok(())
    }

    fn receive_set(&mut self) -> Result<SetResult> {
        match self.wire.line()? {
            b"HD" => Ok(SetResult::Stored),
            b"NS" | b"NF" => Ok(SetResult::NotFound),
            b"EX" => Ok(SetResult::Changed),
            line => {
                let text = String::from_utf8_lossy(line).into_owned();
                Err(self.wire.refused(&format!("memcached answered {text:?}")))
            }
        }
    }

    /// Reads a value and applies a change to it, into `self.value`. Returns its CAS number; `None`
    /// if the item does not exist.
    fn receive_and_change(
        &mut self,
        table: &TableSchema,
        change: &PartsChange<'_>,
    ) -> Result<Option<i64>> {
        let Some((length, version)) = self.value_head()? else { return Ok(None) };
        let before = self.wire.take(length + 2)?;
        let before = before.get(..length).unwrap_or_default();
        joined(table, Some(before), change.parts, &mut self.value)?;
        Ok(Some(version))
    }

    /// Reads a value, changes it and writes it; tries again if another client has changed it.
    fn read_and_change(&mut self, table: &TableSchema, change: &PartsChange<'_>) -> Result<bool> {
        for _ in 0..TRANSACTION_TRIES {
            self.request_value(table, change.key, b" v c")?;
            self.wire.send()?;
            let Some(version) = self.receive_and_change(table, change)? else { return Ok(false) };
            self.ask_set(table, change.key, SetCondition::Unchanged(version))?;
            self.wire.send()?;
            match self.receive_set()? {
                SetResult::Stored => return Ok(true),
                SetResult::NotFound => return Ok(false),
                SetResult::Changed => {}
            }
        }
        Err(Error::Deadline { tries: TRANSACTION_TRIES })
    }

    /// Performs the changes that read first, all in two messages. Returns their results, and `None`
    /// for all other requests.
    fn read_and_change_all(&mut self, requests: &[Request<'_>]) -> Result<Vec<Option<bool>>> {
        let mut done = vec![None; requests.len()];
        let mut reading = Vec::new();
        for (done, request) in done.iter_mut().zip(requests) {
            if let Request::Change { table, change } = request {
                let table = self.schema.table(*table)?;
                must_have_no_tags(change.tags.is_some())?;
                if !is_whole_value(table, change) {
                    self.request_value(table, change.key, b" v c")?;
                    reading.push((done, table, change));
                }
            }
        }
        if reading.is_empty() {
            return Ok(done);
        }
        self.wire.send()?;
        let mut writing = Vec::new();
        for (done, table, change) in reading {
            match self.receive_and_change(table, change)? {
                None => *done = Some(false),
                Some(version) => {
                    self.ask_set(table, change.key, SetCondition::Unchanged(version))?;
                    writing.push((done, table, change));
                }
            }
        }
        if writing.is_empty() {
            return Ok(done);
        }
        self.wire.send()?;
        let mut conflicts = Vec::new();
        for (done, table, change) in writing {
            match self.receive_set()? {
                SetResult::Stored => *done = Some(true),
                SetResult::NotFound => *done = Some(false),
                SetResult::Changed => conflicts.push((done, table, change)),
            }
        }
        for (done, table, change) in conflicts {
            *done = Some(self.read_and_change(table, change)?);
        }
        Ok(done)
    }

    fn request_one(&mut self, request: &Request<'_>) -> Result<()> {
        match request {
            Request::Read { table, key, .. } => {
                self.request_value(self.schema.table(*table)?, key, b" v")
            }
            Request::Put { table, entry } => {
                let table = self.schema.table(*table)?;
                must_have_no_tags(!entry.tags.is_empty())?;
                joined(table, None, entry.parts, &mut self.value)?;
                self.ask_set(table, entry.key, SetCondition::Always)
            }
            Request::Change { table, change } => {
                let table = self.schema.table(*table)?;
                must_have_no_tags(change.tags.is_some())?;
                joined(table, None, change.parts, &mut self.value)?;
                self.ask_set(table, change.key, SetCondition::Exists)
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
                pass_parts(self.schema.table(*table)?, value, *wanted, &mut parts(receive))?;
                Ok(true)
            }
            Request::Put { .. } if self.receive_set()? != SetResult::Stored => {
                Err(self.wire.invalid_reply("a set with a refusal"))
            }
            Request::Put { .. } => Ok(true),
            Request::Change { .. } | Request::Delete { .. } => {
                Ok(self.receive_set()? == SetResult::Stored)
            }
            Request::Find { .. } => Err(declined(NO_TAGS)),
        }
    }

    /// Receives the reply to the request with this number.
    fn receive_numbered(
        &mut self,
        number: usize,
        request: &Request<'_>,
        receive: &mut BatchSink<'_>,
    ) -> Result<()> {
        let done = self.receive_one(request, &mut |reply| receive(number, reply))?;
        receive(number, StoreReply::Done(done));
        Ok(())
    }

    /// True if a request must read a value before it can write.
    fn reads_first(&self, request: &Request<'_>) -> Result<bool> {
        Ok(match request {
            Request::Change { table, change } => {
                !is_whole_value(self.schema.table(*table)?, change)
            }
            Request::Read { .. }
            | Request::Put { .. }
            | Request::Delete { .. }
            | Request::Find { .. } => false,
        })
    }
}

/// True if a change replaces the whole value.
fn is_whole_value(table: &TableSchema, change: &PartsChange<'_>) -> bool {
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
            return self.read_and_change(self.schema.table(*table)?, change);
        }
        self.request_one(request)?;
        self.wire.send()?;
        self.receive_one(request, receive)
    }
}

impl StoreConnection for Memcached {
    fn is_lost(&self) -> bool {
        self.wire.is_cut()
    }

    fn pipeline(&mut self, requests: &[Request<'_>], receive: &mut BatchSink<'_>) -> Result<()> {
        for (i, message) in requests.chunks(MESSAGE_REQUESTS_MAX).enumerate() {
            let done = self.read_and_change_all(message)?;
            for (request, done) in message.iter().zip(&done) {
                if done.is_none() {
                    self.request_one(request)?;
                }
            }
            self.wire.send()?;
            let first = i * MESSAGE_REQUESTS_MAX;
            for (number, (request, done)) in (first..).zip(message.iter().zip(done)) {
                match done {
                    Some(done) => receive(number, StoreReply::Done(done)),
                    None => self.receive_numbered(number, request, receive)?,
                }
            }
        }
        Ok(())
    }

    /// False if a change of parts must read the record first: then steps could not overlap, and
    /// smaller steps would only take more round trips.
    fn sends_ahead(&self) -> bool {
        self.schema.tables.iter().all(|table| table.parts.len() == 1)
    }

    fn send_ahead(&mut self, requests: &[Request<'_>]) -> Result<()> {
        let mut leaves = self.ahead.may_send();
        for request in requests {
            leaves = leaves && !self.reads_first(request)?;
        }
        if leaves {
            requests.iter().try_for_each(|request| self.request_one(request))?;
            self.wire.send_or_hold()?;
        }
        self.ahead.push(leaves);
        Ok(())
    }

    fn receive_ahead(&mut self, requests: &[Request<'_>], sink: &mut BatchSink<'_>) -> Result<()> {
        if self.ahead.pop() {
            self.wire.set_busy_poll(self.ahead.is_owed());
            for (number, request) in requests.iter().enumerate() {
                self.receive_numbered(number, request, sink)?;
            }
            self.wire.set_busy_poll(false);
            return Ok(());
        }
        self.pipeline(requests, sink)
    }
}

#[cfg(test)]
mod tests;
