//! The encoding of a transaction in the commit stream: the change of each of its records.
//!
//! ```text
//! record: op u8 | namespace u32 | key bytes u16 | payload bytes u32 | version u64 | key | payload
//! put, set: meta bytes u32 | value | meta
//! patch:  is anew u8 | has meta u8 | meta bytes u32 | blocks u16
//!         | blocks x { name bytes u8, is there u8, bytes u32, name, bytes } | meta
//! elements: is set u8 | is anew u8 | has meta u8 | meta bytes u32 | elements u32
//!         | elements x { is there u8, name bytes u32, bytes u32, name, bytes } | meta
//! ```
//!
//! All numbers are little-endian. Metadata is encoded as in a record's cell (`record/meta.rs`).

use nearstate_memory::Corruption;
use nearstate_model::invariant;
use nearstate_model::invariant::guaranteed;
use nearstate_model::limits::{BLOCK_NAME_BYTES_MAX, KEY_BYTES_MAX, TRANSACTION_BYTES_MAX};

const CUT: Corruption = Corruption("an entry of the commit stream is cut short");
const HEAD: usize = 1 + 4 + 2 + 4 + 8;
/// Offsets of the size of the payload and of the version in the head.
const PAYLOAD_BYTES_AT: usize = 1 + 4 + 2;
const VERSION_AT: usize = PAYLOAD_BYTES_AT + 4;
const _: () = assert!(VERSION_AT + 8 == HEAD, "the version ends the head");
const _: () = assert!(KEY_BYTES_MAX <= u16::MAX as usize, "an entry counts keys in 16 bits");
const _: () = assert!(BLOCK_NAME_BYTES_MAX <= u8::MAX as usize, "names count in 8 bits");
// Each block of a patch may add 6 bytes to what the transaction has buffered.
const _: () = assert!(
    TRANSACTION_BYTES_MAX + 6 * BLOCKS_MAX_PATCHED + 16 <= u32::MAX as usize,
    "an entry counts bytes in 32 bits"
);

/// The most blocks that the patches of one transaction change in one record: each patch of up to
/// `BLOCKS_MAX` blocks may name others.
pub(crate) const BLOCKS_MAX_PATCHED: usize = u16::MAX as usize;

const PUT: u8 = 1;
const PATCH: u8 = 2;
const DELETE: u8 = 3;
const EXPIRE: u8 = 4;
const PUT_SET: u8 = 5;
const ELEMENTS: u8 = 6;

/// The change of a record in a committed transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamedChange<'a> {
    /// The record was replaced by this value and this metadata.
    Put {
        /// The value.
        value: &'a [u8],
        /// Tags and expiry, encoded: [`crate::record::meta::Meta::split`] reads them. Empty if the
        /// record has neither.
        meta: &'a [u8],
        /// True if the value is that of a set ([`crate::Members::new`] reads it).
        is_set: bool,
    },
    /// These blocks changed. `None`: the block was removed.
    Patched {
        /// True if all earlier blocks were removed.
        is_anew: bool,
        /// Name and bytes of each.
        blocks: Vec<(&'a [u8], Option<&'a [u8]>)>,
        /// Tags and expiry, encoded as in `Put`; `None`: unchanged.
        meta: Option<&'a [u8]>,
    },
    /// These members of a set or fields of a hash changed, in this order; the record is a large
    /// collection, or was one. `None`: the element was removed. Without elements and not anew, only
    /// the metadata changed.
    Elements {
        /// True for members of a set, which have empty values.
        is_set: bool,
        /// True if all earlier elements were removed.
        is_anew: bool,
        /// Name and value of each.
        elements: Vec<(&'a [u8], Option<&'a [u8]>)>,
        /// Tags and expiry, encoded as in `Put`; `None`: unchanged.
        meta: Option<&'a [u8]>,
    },
    /// The record was deleted.
    Deleted {
        /// True if the record had expired and was collected, or replaced as the holder of a unique
        /// value. False for a plain deletion, also of an expired record.
        is_expiry: bool,
    },
}

/// A record of a committed transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamedRecord<'a> {
    /// The number of the namespace in the region.
    pub namespace: u32,
    /// Key.
    pub key: &'a [u8],
    /// The version since the change. Of a deleted record, its last version.
    pub version: u64,
    /// The change.
    pub change: StreamedChange<'a>,
}

/// Appends a record. Returns the offset of its version, which the commit fills in.
///
/// What is encoded comes from the buffers of a transaction, whose sizes were checked when it was
/// written.
pub(crate) fn encode(
    namespace: u32,
    key: &[u8],
    change: &StreamedChange<'_>,
    out: &mut Vec<u8>,
) -> usize {
    let from = out.len();
    invariant!(key.len() <= KEY_BYTES_MAX, "a streamed record with a key of {} bytes", key.len());
    let key_bytes = guaranteed(u16::try_from(key.len()).ok(), "KEY_BYTES_MAX fits into 16 bits");
    let op = match change {
        StreamedChange::Put { is_set: false, .. } => PUT,
        StreamedChange::Put { is_set: true, .. } => PUT_SET,
        StreamedChange::Patched { .. } => PATCH,
        StreamedChange::Elements { .. } => ELEMENTS,
        StreamedChange::Deleted { is_expiry: false } => DELETE,
        StreamedChange::Deleted { is_expiry: true } => EXPIRE,
    };
    out.push(op);
    out.extend_from_slice(&namespace.to_le_bytes());
    out.extend_from_slice(&key_bytes.to_le_bytes());
    // The size of the payload and the version are not known yet.
    out.extend_from_slice(&[0; 4 + 8]);
    invariant!(out.len() - from == HEAD, "a head of {} bytes", out.len() - from);
    out.extend_from_slice(key);
    let payload = out.len();
    match change {
        StreamedChange::Put { value, meta, .. } => {
            out.extend_from_slice(&size_of(meta));
            out.extend_from_slice(value);
            out.extend_from_slice(meta);
            let bytes = 4 + value.len() + meta.len();
            invariant!(out.len() - payload == bytes, "a put of {bytes} bytes is encoded whole");
        }
        StreamedChange::Patched { is_anew, blocks, meta } => {
            encode_patch(*is_anew, blocks, *meta, out);
        }
        StreamedChange::Elements { is_set, is_anew, elements, meta } => {
            encode_elements([*is_set, *is_anew], elements, *meta, out);
        }
        StreamedChange::Deleted { .. } => {}
    }
    let bytes = size_of(guaranteed(out.get(payload..), "bytes are only appended"));
    let slot = out.get_mut(from + PAYLOAD_BYTES_AT..from + VERSION_AT);
    guaranteed(slot, "the head was appended").copy_from_slice(&bytes);
    from + VERSION_AT
}

fn encode_patch(
    is_anew: bool,
    blocks: &[(&[u8], Option<&[u8]>)],
    meta: Option<&[u8]>,
    out: &mut Vec<u8>,
) {
    let bytes = meta.unwrap_or_default();
    invariant!(blocks.len() <= BLOCKS_MAX_PATCHED, "a patch of {} blocks", blocks.len());
    let count = guaranteed(u16::try_from(blocks.len()).ok(), "a patch counts blocks in 16 bits");
    out.extend_from_slice(&[u8::from(is_anew), u8::from(meta.is_some())]);
    out.extend_from_slice(&size_of(bytes));
    out.extend_from_slice(&count.to_le_bytes());
    for (name, block) in blocks {
        invariant!(
            (1..=BLOCK_NAME_BYTES_MAX).contains(&name.len()),
            "a block's name of {} bytes",
            name.len()
        );
        let name_bytes = u8::try_from(name.len()).ok();
        out.push(guaranteed(name_bytes, "BLOCK_NAME_BYTES_MAX fits into 8 bits"));
        out.push(u8::from(block.is_some()));
        out.extend_from_slice(&size_of(block.unwrap_or_default()));
        out.extend_from_slice(name);
        out.extend_from_slice(block.unwrap_or_default());
    }
    out.extend_from_slice(bytes);
}

fn encode_elements(
    [is_set, is_anew]: [bool; 2],
    elements: &[(&[u8], Option<&[u8]>)],
    meta: Option<&[u8]>,
    out: &mut Vec<u8>,
) {
    let bytes = meta.unwrap_or_default();
    let count = u32::try_from(elements.len()).ok();
    let count = guaranteed(count, "a transaction counts the elements that it changes in 32 bits");
    out.extend([is_set, is_anew, meta.is_some()].map(u8::from));
    out.extend_from_slice(&size_of(bytes));
    out.extend_from_slice(&count.to_le_bytes());
    for (name, value) in elements {
        let bytes = value.unwrap_or_default();
        out.push(u8::from(value.is_some()));
        out.extend_from_slice(&size_of(name));
        out.extend_from_slice(&size_of(bytes));
        out.extend_from_slice(name);
        out.extend_from_slice(bytes);
    }
    out.extend_from_slice(bytes);
}

/// A transaction of less than 4 GiB is buffered ([`TRANSACTION_BYTES_MAX`]).
fn size_of(bytes: &[u8]) -> [u8; 4] {
    guaranteed(u32::try_from(bytes.len()).ok(), "a record's bytes count in 32 bits").to_le_bytes()
}

/// Takes the next record from the front of an entry. Total: any bytes give records or damage.
pub(crate) fn decode<'a>(rest: &mut &'a [u8]) -> Result<Option<StreamedRecord<'a>>, Corruption> {
    if rest.is_empty() {
        return Ok(None);
    }
    let bytes = rest.len();
    let mut reader = Reader { rest };
    let op = reader.byte()?;
    let namespace = reader.number()?;
    let key_bytes = usize::from(u16::from_le_bytes([reader.byte()?, reader.byte()?]));
    let payload_bytes = reader.number()? as usize;
    let (version, after) = reader.rest.split_first_chunk::<8>().ok_or(CUT)?;
    reader.rest = after;
    let key = reader.take(key_bytes)?;
    let payload = reader.take(payload_bytes)?;
    *rest = reader.rest;
    invariant!(rest.len() < bytes, "decoding a record advances");
    let change = match op {
        PUT | PUT_SET => {
            let mut reader = Reader { rest: payload };
            let meta_bytes = reader.number()? as usize;
            let value_bytes = reader.rest.len().checked_sub(meta_bytes).ok_or(CUT)?;
            let value = reader.take(value_bytes)?;
            StreamedChange::Put { value, meta: reader.rest, is_set: op == PUT_SET }
        }
        PATCH => patched(payload)?,
        ELEMENTS => changed_elements(payload)?,
        DELETE => StreamedChange::Deleted { is_expiry: false },
        EXPIRE => StreamedChange::Deleted { is_expiry: true },
        _ => return Err(Corruption("an entry of the commit stream has an unknown operation")),
    };
    Ok(Some(StreamedRecord { namespace, key, version: u64::from_le_bytes(*version), change }))
}

fn patched(payload: &[u8]) -> Result<StreamedChange<'_>, Corruption> {
    let mut reader = Reader { rest: payload };
    let (is_anew, has_meta) = (reader.byte()? != 0, reader.byte()? != 0);
    let meta_bytes = reader.number()? as usize;
    let count = u16::from_le_bytes([reader.byte()?, reader.byte()?]);
    let mut blocks = Vec::new();
    for _ in 0..count {
        let name_bytes = usize::from(reader.byte()?);
        let is_there = reader.byte()? != 0;
        let bytes = reader.number()? as usize;
        let name = reader.take(name_bytes)?;
        let block = reader.take(bytes)?;
        blocks.push((name, is_there.then_some(block)));
    }
    let meta = reader.take(meta_bytes)?;
    Ok(StreamedChange::Patched { is_anew, blocks, meta: has_meta.then_some(meta) })
}

fn changed_elements(payload: &[u8]) -> Result<StreamedChange<'_>, Corruption> {
    let mut reader = Reader { rest: payload };
    let (is_set, is_anew, has_meta) =
        (reader.byte()? != 0, reader.byte()? != 0, reader.byte()? != 0);
    let (meta_bytes, count) = (reader.number()? as usize, reader.number()?);
    let mut elements = Vec::new();
    for _ in 0..count {
        let is_there = reader.byte()? != 0;
        let (name_bytes, bytes) = (reader.number()? as usize, reader.number()? as usize);
        let (name, value) = (reader.take(name_bytes)?, reader.take(bytes)?);
        elements.push((name, is_there.then_some(value)));
    }
    let meta = reader.take(meta_bytes)?;
    Ok(StreamedChange::Elements { is_set, is_anew, elements, meta: has_meta.then_some(meta) })
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn byte(&mut self) -> Result<u8, Corruption> {
        let (byte, rest) = self.rest.split_first().ok_or(CUT)?;
        self.rest = rest;
        Ok(*byte)
    }

    fn number(&mut self) -> Result<u32, Corruption> {
        let (number, rest) = self.rest.split_first_chunk::<4>().ok_or(CUT)?;
        self.rest = rest;
        Ok(u32::from_le_bytes(*number))
    }

    fn take(&mut self, bytes: usize) -> Result<&'a [u8], Corruption> {
        let (taken, rest) = self.rest.split_at_checked(bytes).ok_or(CUT)?;
        self.rest = rest;
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_transaction_reads_back_as_it_was_written() {
        let changes = [
            StreamedChange::Put { value: b"value", meta: b"meta", is_set: false },
            StreamedChange::Put { value: b"", meta: b"", is_set: true },
            StreamedChange::Patched {
                is_anew: true,
                blocks: vec![(b"auth", Some(b"key")), (b"gone", None)],
                meta: Some(b"m"),
            },
            StreamedChange::Patched { is_anew: false, blocks: Vec::new(), meta: None },
            StreamedChange::Elements {
                is_set: false,
                is_anew: true,
                elements: vec![(b"", Some(b"v")), (&[0xff; 300], None)],
                meta: Some(b""),
            },
            StreamedChange::Elements {
                is_set: true,
                is_anew: false,
                elements: vec![(b"m", Some(b""))],
                meta: None,
            },
            StreamedChange::Deleted { is_expiry: false },
            StreamedChange::Deleted { is_expiry: true },
        ];
        let mut bytes = Vec::new();
        for (number, change) in (0_u32..).zip(&changes) {
            let at = encode(number, b"imsi", change, &mut bytes);
            bytes[at..at + 8].copy_from_slice(&u64::from(number + 100).to_le_bytes());
        }
        let mut rest = bytes.as_slice();
        for (number, change) in (0_u32..).zip(changes) {
            let version = u64::from(number + 100);
            let expected = StreamedRecord { namespace: number, key: b"imsi", version, change };
            assert_eq!(decode(&mut rest).unwrap(), Some(expected));
        }
        assert_eq!(decode(&mut rest).unwrap(), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_records_or_damage(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut rest = bytes.as_slice();
            while let Ok(Some(_)) = decode(&mut rest) {}
        }
    }
}
