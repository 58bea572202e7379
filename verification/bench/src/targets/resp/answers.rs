//! Replies of RESP2, parsed in the receive buffer.

use super::super::wire::{Stream, Wire, number};
use super::RespTable;
use crate::access::{PartReceiver, PartSet};
use nearstate_model::{Error, Result};

/// The first line of a reply: its kind and its number, which is a length for strings and lists. An
/// error reply never becomes a head.
pub(super) type Head = (u8, i64);

/// The length that stands for a null string or list.
pub(super) const NIL: i64 = -1;

impl<S: Stream> Wire<S> {
    /// The next reply's head.
    #[inline]
    pub(super) fn head(&mut self) -> Result<Head> {
        let line = self.line()?;
        let Some((kind, rest)) = line.split_first() else {
            return Err(self.invalid_reply("an empty line"));
        };
        let kind = *kind;
        let head = match kind {
            b'+' => Some((kind, 0)),
            b'-' => {
                let text = String::from_utf8_lossy(rest).into_owned();
                // An error is a reply like others: the next one follows.
                return Err(taken(&text).unwrap_or_else(|| self.refused(&text)));
            }
            b':' => number(rest).map(|value| (kind, value)),
            b'$' | b'*' => number(rest).filter(|n| *n >= NIL).map(|length| (kind, length)),
            _ => None,
        };
        head.ok_or_else(|| self.invalid_reply("a first byte that no RESP reply has"))
    }

    #[cold]
    pub(super) fn other(&mut self, (kind, value): Head, wanted: &str) -> Error {
        self.invalid_reply(&format!("{:?} and {value} instead of {wanted}", char::from(kind)))
    }

    /// The bytes of a string whose head was read.
    #[inline]
    pub(super) fn bytes(&mut self, length: i64) -> Result<&[u8]> {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let whole = self.take(length.saturating_add(2))?;
        Ok(whole.get(..length).unwrap_or_default())
    }

    /// A simple string such as `+OK` or `+QUEUED`.
    pub(super) fn simple(&mut self) -> Result<()> {
        match self.head()? {
            (b'+', _) => Ok(()),
            other => Err(self.other(other, "a word")),
        }
    }

    #[inline]
    pub(super) fn int(&mut self) -> Result<i64> {
        match self.head()? {
            (b':', value) => Ok(value),
            other => Err(self.other(other, "a number")),
        }
    }

    /// The number of elements of a list.
    pub(super) fn array(&mut self) -> Result<i64> {
        match self.head()? {
            (b'*', count) => Ok(count),
            other => Err(self.other(other, "a list")),
        }
    }

    pub(super) fn bulk(&mut self) -> Result<Vec<u8>> {
        match self.maybe_bulk()? {
            Some(bytes) => Ok(bytes),
            None => Err(self.invalid_reply("null instead of a string")),
        }
    }

    /// A string or null.
    pub(super) fn maybe_bulk(&mut self) -> Result<Option<Vec<u8>>> {
        match self.head()? {
            (b'$', NIL) => Ok(None),
            (b'$', length) => self.bytes(length).map(|bytes| Some(bytes.to_vec())),
            other => Err(self.other(other, "a string")),
        }
    }

    /// Skips one complete reply. An error inside it is returned as an error.
    pub(super) fn skip(&mut self) -> Result<()> {
        let mut left = 1_i64;
        while left > 0 {
            left -= 1;
            match self.head()? {
                (b'$' | b'*', NIL) => {}
                (b'$', length) => drop(self.bytes(length)?),
                (b'*', count) => left = left.saturating_add(count),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Reads the reply to a request for parts.
#[inline]
pub(super) fn receive_parts<S: Stream>(
    wire: &mut Wire<S>,
    resp_table: &RespTable,
    wanted: PartSet,
    receive: &mut PartReceiver<'_>,
) -> Result<bool> {
    if wanted.is_empty() {
        return Ok(wire.int()? > 0);
    }
    if resp_table.is_plain() {
        return match wire.head()? {
            (b'$', NIL) => Ok(false),
            (b'$', length) => {
                receive(0, wire.bytes(length)?);
                Ok(true)
            }
            other => Err(wire.other(other, "a string")),
        };
    }
    match wire.array()? {
        0 => Ok(false),
        count if resp_table.is_all(wanted) => receive_all(wire, resp_table, count, receive),
        _ => receive_some(wire, resp_table, wanted, receive),
    }
}

/// HGETALL: names and values, in the order in which they were set.
fn receive_all<S: Stream>(
    wire: &mut Wire<S>,
    resp_table: &RespTable,
    count: i64,
    receive: &mut PartReceiver<'_>,
) -> Result<bool> {
    let parts = resp_table.schema.parts;
    for at in 0..usize::try_from(count / 2).unwrap_or_default() {
        let name = field(wire)?;
        let part = match parts.get(at) {
            Some(part) if part.as_bytes() == name => Some(at),
            _ => parts.iter().position(|part| part.as_bytes() == name),
        };
        let value = field(wire)?;
        if let Some(part) = part {
            receive(part, value);
        }
    }
    Ok(true)
}

#[inline]
fn field<S: Stream>(wire: &mut Wire<S>) -> Result<&[u8]> {
    match wire.head()? {
        (b'$', length) => wire.bytes(length),
        other => Err(wire.other(other, "a field")),
    }
}

/// HMGET: values in the order of the request. Records have all of their parts.
fn receive_some<S: Stream>(
    wire: &mut Wire<S>,
    resp_table: &RespTable,
    wanted: PartSet,
    receive: &mut PartReceiver<'_>,
) -> Result<bool> {
    let mut is_there = false;
    for part in (0..resp_table.schema.parts.len()).filter(|part| wanted.contains(*part)) {
        match wire.head()? {
            (b'$', NIL) => {}
            (b'$', length) => {
                is_there = true;
                receive(part, wire.bytes(length)?);
            }
            other => return Err(wire.other(other, "a field")),
        }
    }
    Ok(is_there)
}

/// The node's error for a taken value: `TAGTAKEN the unique tag "imsi" has the value ..`.
fn taken(text: &str) -> Option<Error> {
    let mut quoted = text.strip_prefix("TAGTAKEN ")?.split('"').skip(1).step_by(2);
    let mut next = || quoted.next().unwrap_or("?").to_owned();
    Some(Error::TagTaken { tag: next(), value: next(), holder: next() })
}

/// Receives the key of a found record, without its prefix; the record follows. False if there is
/// no record.
pub(super) fn receive_key<S: Stream>(
    wire: &mut Wire<S>,
    prefix: &[u8],
    key: &mut Vec<u8>,
) -> Result<bool> {
    match wire.head()? {
        (b'$' | b'*', NIL) => return Ok(false),
        (b'*', 2) => {}
        other => return Err(wire.other(other, "a key and its record")),
    }
    let found = wire.bulk()?;
    let Some(found) = found.strip_prefix(prefix) else {
        return Err(wire.invalid_reply("a key of another namespace"));
    };
    key.clear();
    key.extend_from_slice(found);
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_tag_is_parsed_from_the_error_of_the_node() {
        let text = |text: &str| text.to_owned();
        let error = Error::TagTaken { tag: text("imsi"), value: text("7"), holder: text("a") };
        let parsed = taken(&format!("TAGTAKEN {error}")).map(|error| error.to_string());
        assert_eq!(parsed, Some(error.to_string()));
        assert!(taken("ERR the unique tag").is_none());
    }
}
