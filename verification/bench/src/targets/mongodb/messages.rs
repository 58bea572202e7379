//! Messages of MongoDB's wire protocol, as it is documented for everybody: `OP_MSG` both ways, all
//! numbers with the smallest byte first.
//!
//! ```text
//! bytes  length, number of the message, number of the one that it answers, 2013 (OP_MSG)
//!   16   flags: none of ours
//!   20   0, a document: the command
//!        1, length, name, documents: one field of the command, an array that stands apart
//! ```
//!
//! A server takes the messages of a connection one after the other and answers in their order, so
//! several may be on the way.

use super::super::wire::{Stream, Wire};
use bson::RawDocument;
use nearstate_model::{Error, Result};

/// Bytes of a message at the most: `maxMessageSizeBytes` of every server there is. An answer has
/// half of that at the most.
pub(super) const MESSAGE_BYTES_MAX: usize = 48_000_000;

/// Bytes of a document at the most: a server refuses larger ones.
pub(super) const DOCUMENT_BYTES_MAX: usize = 16 << 20;

/// Length, two numbers, kind.
const HEAD_BYTES: usize = 16;

/// Flags, and the kind of the first section.
const BEGIN_BYTES: usize = 5;

/// A document's length and its end.
const DOCUMENT_BYTES_MIN: usize = 5;

const OP_MSG: i32 = 2013;

/// The flags that a client must understand: a checksum, more answers to come, and those of later
/// years. We ask for none, so none may be set.
const FLAGS_THAT_MATTER: u32 = 0xffff;

/// Begins message `number` with its command; where it begins.
#[inline]
pub(super) fn begin(out: &mut Vec<u8>, number: i32, command: &RawDocument) -> usize {
    let begin = out.len();
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&number.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&OP_MSG.to_le_bytes());
    out.extend_from_slice(&[0; BEGIN_BYTES]);
    out.extend_from_slice(command.as_bytes());
    begin
}

/// Writes a field of the command that is an array of this one document.
#[inline]
pub(super) fn field(out: &mut Vec<u8>, name: &str, document: &RawDocument) {
    let length = 4 + name.len() + 1 + document.as_bytes().len();
    out.push(1);
    out.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
    out.extend_from_slice(name.as_bytes());
    out.push(0);
    out.extend_from_slice(document.as_bytes());
}

/// Ends the message that begins there; one that is too long is taken back.
#[inline]
pub(super) fn end(out: &mut Vec<u8>, begin: usize) -> Result<()> {
    let bytes = out.len() - begin;
    if bytes > MESSAGE_BYTES_MAX {
        out.truncate(begin);
        return Err(too_large(bytes));
    }
    let length = u32::try_from(bytes).unwrap_or(u32::MAX);
    if let Some(place) = out.get_mut(begin..begin + 4) {
        place.copy_from_slice(&length.to_le_bytes());
    }
    Ok(())
}

#[cold]
pub(super) fn too_large(bytes: usize) -> Error {
    let detail = format!(
        "a record of {bytes} bytes: MongoDB's documents have {DOCUMENT_BYTES_MAX} at the most"
    );
    Error::BadArgument { detail }
}

/// The document that answers message `number`, which has to be the next that comes.
#[inline]
pub(super) fn answer<S: Stream>(wire: &mut Wire<S>, number: i32) -> Result<&[u8]> {
    let head = wire.take(HEAD_BYTES)?;
    let word = |at: usize| {
        let bytes = head.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, i32::from_le_bytes)
    };
    let (length, answered, kind) = (word(0), word(8), word(12));
    if kind != OP_MSG {
        return Err(wire.strange("with something that is no OP_MSG: is that a MongoDB?"));
    }
    let least = HEAD_BYTES + BEGIN_BYTES + DOCUMENT_BYTES_MIN;
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if !(least..=MESSAGE_BYTES_MAX).contains(&length) {
        return Err(wire.strange("a message of a length that no message has"));
    }
    if answered != number {
        return Err(wire.strange("another message than the one whose answer is next"));
    }
    let begin = wire.take(BEGIN_BYTES)?;
    let flags = begin.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
    let section = begin.last().copied();
    if flags & FLAGS_THAT_MATTER != 0 {
        return Err(wire.strange("with flags that nobody asked for"));
    }
    if section != Some(0) {
        return Err(wire.strange("with a message that does not begin with a document"));
    }
    wire.take(length - HEAD_BYTES - BEGIN_BYTES)
}
