//! The payload of `DUMP` and `RESTORE`: a record without its key and expiration time.
//!
//! ```text
//! "NSDUMP" | version u8 = 1 | form u8 | tags u16 | tags x { string u16, string u16 }
//! form 0, a string:  the bytes
//! form 1, a hash:    fields u32 | fields x { name: string u16, value: string u32 }
//! form 2, a set:     members u32 | members x { string u32 }
//! XXH3-64 of everything before u64
//! ```
//!
//! `string uN` is a length of N bits and the bytes. All numbers are little-endian. The checksum
//! detects damage, not forgery: each length and count is checked as well.

use crate::reply::error_reply::ErrorReply;
use nearstate_store::Form;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

const MAGIC: &[u8] = b"NSDUMP";
const VERSION: u8 = 1;
const CHECKSUM_BYTES: usize = 8;

/// A name or value and another one.
pub type BytesPair<'a> = (&'a [u8], &'a [u8]);

/// The contents of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DumpedValue<'a> {
    /// A string.
    String(&'a [u8]),
    /// A hash: names and values.
    Hash(Vec<BytesPair<'a>>),
    /// A set.
    Set(Vec<&'a [u8]>),
}

/// A record without its key and expiration time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DumpedRecord<'a> {
    /// Names and values of its tags.
    pub tags: Vec<BytesPair<'a>>,
    /// Its contents.
    pub value: DumpedValue<'a>,
}

/// Why a payload cannot be restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DumpError {
    /// Not a payload of this version, or its bytes were changed.
    Checksum,
    /// The checksum is correct and the contents are not.
    Format,
}

impl From<DumpError> for ErrorReply {
    fn from(error: DumpError) -> Self {
        match error {
            DumpError::Checksum => Self::fixed("ERR DUMP payload version or checksum are wrong"),
            DumpError::Format => Self::fixed("ERR Bad data format"),
        }
    }
}

impl DumpedRecord<'_> {
    /// Bytes of the payload.
    pub fn encoded_bytes(&self) -> usize {
        let pairs = |pairs: &[BytesPair<'_>], head: usize| -> usize {
            pairs.iter().map(|(one, two)| one.len() + two.len() + head).sum()
        };
        let value = match &self.value {
            DumpedValue::String(bytes) => bytes.len(),
            DumpedValue::Hash(fields) => 4 + pairs(fields, 2 + 4),
            DumpedValue::Set(members) => 4 + members.iter().map(|one| one.len() + 4).sum::<usize>(),
        };
        MAGIC.len() + 1 + 1 + 2 + pairs(&self.tags, 2 + 2) + value + CHECKSUM_BYTES
    }

    /// The payload.
    pub fn encode(&self) -> Vec<u8> {
        let form = match self.value {
            DumpedValue::String(_) => Form::Value,
            DumpedValue::Hash(_) => Form::Blocks,
            DumpedValue::Set(_) => Form::Set,
        };
        let mut payload = PayloadWriter::new(form, &self.tags);
        payload.out.reserve_exact(self.encoded_bytes());
        match &self.value {
            DumpedValue::String(bytes) => payload.out.extend_from_slice(bytes),
            DumpedValue::Hash(fields) => {
                payload.count(fields.len());
                for (name, value) in fields {
                    payload.element(name, value);
                }
            }
            DumpedValue::Set(members) => {
                payload.count(members.len());
                for member in members {
                    payload.element(member, b"");
                }
            }
        }
        payload.end()
    }
}

/// Writes a payload in pieces.
#[derive(Clone)]
pub struct PayloadWriter {
    form: Form,
    checksum: Xxh3,
    out: Vec<u8>,
}

impl std::fmt::Debug for PayloadWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PayloadWriter").field("form", &self.form).finish_non_exhaustive()
    }
}

impl PayloadWriter {
    /// A record of a form with these tags.
    pub fn new(form: Form, tags: &[BytesPair<'_>]) -> Self {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&[VERSION, code_of(form)]);
        put_short(&mut out, tags.len());
        for (name, value) in tags {
            for part in [name, value] {
                put_short(&mut out, part.len());
                out.extend_from_slice(part);
            }
        }
        Self { form, checksum: Xxh3::new(), out }
    }

    /// The number of elements, before the first one.
    pub fn count(&mut self, elements: usize) {
        put_long(&mut self.out, elements);
    }

    /// A field, or a member, which has no value.
    pub fn element(&mut self, name: &[u8], value: &[u8]) {
        let is_hash = self.form == Form::Blocks;
        if is_hash {
            put_short(&mut self.out, name.len());
        } else {
            put_long(&mut self.out, name.len());
        }
        self.out.extend_from_slice(name);
        if is_hash {
            put_long(&mut self.out, value.len());
            self.out.extend_from_slice(value);
        }
    }

    /// Takes what is written so far.
    pub fn take(&mut self) -> Vec<u8> {
        self.checksum.update(&self.out);
        std::mem::take(&mut self.out)
    }

    /// The rest of the payload.
    pub fn end(mut self) -> Vec<u8> {
        let mut rest = self.take();
        rest.extend_from_slice(&self.checksum.digest().to_le_bytes());
        rest
    }
}

/// The head of a payload with elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DumpedHead<'a> {
    /// Names and values of the tags.
    pub tags: Vec<BytesPair<'a>>,
    /// A hash or a set; a string has no elements.
    pub form: Form,
    /// The number of elements.
    pub elements: usize,
    /// Where the first element begins; of a string, its first byte.
    pub at: usize,
}

impl<'a> DumpedHead<'a> {
    /// Reads the head of a payload whose checksum is correct.
    ///
    /// # Errors
    /// It is none, is damaged, or was forged with invalid lengths.
    pub fn decode(payload: &'a [u8]) -> Result<Self, DumpError> {
        let content = payload.len().checked_sub(CHECKSUM_BYTES).ok_or(DumpError::Checksum)?;
        let (content, checksum) = payload.split_at_checked(content).ok_or(DumpError::Checksum)?;
        if checksum != xxh3_64(content).to_le_bytes() {
            return Err(DumpError::Checksum);
        }
        let rest = content.strip_prefix(MAGIC).ok_or(DumpError::Checksum)?;
        let [VERSION, form, rest @ ..] = rest else { return Err(DumpError::Checksum) };
        let mut rest = DumpReader(rest);
        let tags = rest.short()?;
        let tags = (0..tags).map(|_| Ok((rest.short_string()?, rest.short_string()?)));
        let tags = tags.collect::<Result<Vec<_>, DumpError>>()?;
        let (form, elements) = match form {
            0 => (Form::Value, 0),
            1 => (Form::Blocks, rest.count(2 + 4)?),
            2 => (Form::Set, rest.count(4)?),
            _ => return Err(DumpError::Format),
        };
        Ok(Self { tags, form, elements, at: content.len() - rest.0.len() })
    }
}

/// Reads up to `count` elements of a payload, from a position on that [`DumpedHead`] or this
/// function has returned. Members have no value. Returns the next position.
///
/// # Errors
/// `Format`: an element has an invalid length.
pub fn read_elements<'a, E: From<DumpError>>(
    payload: &'a [u8],
    form: Form,
    at: usize,
    count: usize,
    mut each: impl FnMut(&'a [u8], &'a [u8]) -> Result<(), E>,
) -> Result<usize, E> {
    let content = payload.len().checked_sub(CHECKSUM_BYTES).ok_or(DumpError::Format)?;
    let mut rest = DumpReader(payload.get(at..content).ok_or(DumpError::Format)?);
    for _ in 0..count {
        if form == Form::Blocks {
            let (name, value) = (rest.short_string()?, rest.long_string()?);
            each(name, value)?;
        } else {
            each(rest.long_string()?, b"")?;
        }
    }
    Ok(content - rest.0.len())
}

impl<'a> DumpedRecord<'a> {
    /// Reads a payload.
    ///
    /// # Errors
    /// It is none, is damaged, or was forged with invalid lengths.
    pub fn decode(payload: &'a [u8]) -> Result<Self, DumpError> {
        let DumpedHead { tags, form, elements, at } = DumpedHead::decode(payload)?;
        let end = payload.len() - CHECKSUM_BYTES;
        let mut read = Vec::new();
        let mut keep = |name, value| {
            read.push((name, value));
            Ok::<_, DumpError>(())
        };
        let value = match form {
            Form::Value => {
                let bytes = payload.get(at..end).ok_or(DumpError::Format)?;
                return Ok(Self { tags, value: DumpedValue::String(bytes) });
            }
            Form::Blocks => {
                let is_whole = read_elements(payload, form, at, elements, &mut keep)? == end;
                is_whole.then_some(DumpedValue::Hash(read))
            }
            Form::Set => {
                let is_whole = read_elements(payload, form, at, elements, &mut keep)? == end;
                let members = read.into_iter().map(|(member, _)| member);
                is_whole.then(|| DumpedValue::Set(members.collect()))
            }
        };
        Ok(Self { tags, value: value.ok_or(DumpError::Format)? })
    }
}

const fn code_of(form: Form) -> u8 {
    match form {
        Form::Value => 0,
        Form::Blocks => 1,
        Form::Set => 2,
    }
}

/// A length of at most 65,535: a name, a tag's value, the number of tags.
fn put_short(out: &mut Vec<u8>, length: usize) {
    let length = u16::try_from(length).unwrap_or_else(|_| unreachable!("limited by the store"));
    out.extend_from_slice(&length.to_le_bytes());
}

fn put_long(out: &mut Vec<u8>, length: usize) {
    let length = u32::try_from(length).unwrap_or_else(|_| unreachable!("limited by the store"));
    out.extend_from_slice(&length.to_le_bytes());
}

/// The bytes that are not read yet.
struct DumpReader<'a>(&'a [u8]);

impl<'a> DumpReader<'a> {
    fn bytes(&mut self, count: usize) -> Result<&'a [u8], DumpError> {
        let (bytes, rest) = self.0.split_at_checked(count).ok_or(DumpError::Format)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn short(&mut self) -> Result<usize, DumpError> {
        let bytes = self.bytes(2)?.try_into().map_err(|_| DumpError::Format)?;
        Ok(u16::from_le_bytes(bytes).into())
    }

    fn long(&mut self) -> Result<usize, DumpError> {
        let bytes = self.bytes(4)?.try_into().map_err(|_| DumpError::Format)?;
        usize::try_from(u32::from_le_bytes(bytes)).map_err(|_| DumpError::Format)
    }

    /// A number of items with at least this many bytes each, so that a forged number allocates
    /// nothing.
    fn count(&mut self, item_bytes: usize) -> Result<usize, DumpError> {
        let count = self.long()?;
        let is_possible = count <= self.0.len() / item_bytes;
        if is_possible { Ok(count) } else { Err(DumpError::Format) }
    }

    fn short_string(&mut self) -> Result<&'a [u8], DumpError> {
        let length = self.short()?;
        self.bytes(length)
    }

    fn long_string(&mut self) -> Result<&'a [u8], DumpError> {
        let length = self.long()?;
        self.bytes(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<DumpedRecord<'static>> {
        let tags: Vec<BytesPair<'static>> = vec![(b"imsi", b"001"), (b"ip", b"\0\xff")];
        vec![
            DumpedRecord { tags: Vec::new(), value: DumpedValue::String(b"") },
            DumpedRecord { tags: tags.clone(), value: DumpedValue::String(b"value\0\r\n") },
            DumpedRecord { tags, value: DumpedValue::Hash(vec![(b"f", b"v"), (b"g", b"")]) },
            DumpedRecord { tags: Vec::new(), value: DumpedValue::Set(vec![b"", b"m", b"n"]) },
        ]
    }

    fn sealed(content: &[u8]) -> Vec<u8> {
        [content, &xxh3_64(content).to_le_bytes()].concat()
    }

    #[test]
    fn a_payload_is_decoded_to_its_record() {
        for record in samples() {
            let payload = record.encode();
            assert_eq!(payload.len(), record.encoded_bytes());
            assert_eq!(DumpedRecord::decode(&payload), Ok(record));
        }
    }

    /// The bytes of version 1 never change.
    #[test]
    fn the_format_is_as_documented() {
        let value = DumpedValue::Hash(vec![(b"f", b"v")]);
        let record = DumpedRecord { tags: vec![(b"t", b"1")], value };
        let content = b"NSDUMP\x01\x01\x01\0\x01\0t\x01\x001\x01\0\0\0\x01\0f\x01\0\0\0v";
        assert_eq!(record.encode(), sealed(content));
    }

    #[test]
    fn each_changed_or_missing_byte_is_detected() {
        for record in samples() {
            let payload = record.encode();
            for at in 0..payload.len() {
                let mut changed = payload.clone();
                if let Some(byte) = changed.get_mut(at) {
                    *byte ^= 0x10;
                }
                assert_eq!(DumpedRecord::decode(&changed), Err(DumpError::Checksum), "{at}");
                let cut = payload.get(..at).unwrap_or_default();
                assert_eq!(DumpedRecord::decode(cut), Err(DumpError::Checksum), "{at}");
            }
        }
    }

    #[test]
    fn forged_lengths_are_rejected_without_allocating() {
        for content in [
            &b"NSDUMP\x01\x03\0\0"[..],
            b"NSDUMP\x01\x00\x01\0",
            b"NSDUMP\x01\x00\xff\xff\xff\xff",
            b"NSDUMP\x01\x01\0\0",
            b"NSDUMP\x01\x01\0\0\xff\xff\xff\xff",
            b"NSDUMP\x01\x01\0\0\x01\0\0\0\x01\0f\x02\0\0\0v",
            b"NSDUMP\x01\x02\0\0\x01\0\0\0\x00\0\0\0more",
            b"NSDUMP\x01\x02\0\0\xff\xff\xff\x7f",
        ] {
            assert_eq!(DumpedRecord::decode(&sealed(content)), Err(DumpError::Format));
        }
        for content in [&b"NSDUMP\x02\x00\0\0"[..], b"NSDUMP", b"RSDUMP\x01\x00\0\0", b""] {
            assert_eq!(DumpedRecord::decode(&sealed(content)), Err(DumpError::Checksum));
        }
    }
}
