//! A transaction as the commit stream has it: what each of its records became.
//!
//! ```text
//! record: op u8 | namespace u32 | key bytes u16 | payload bytes u32 | version u64 | key | payload
//! put, set: meta bytes u32 | value | meta
//! patch:  is anew u8 | has meta u8 | meta bytes u32 | blocks u16
//!         | blocks x { name bytes u8, is there u8, bytes u32, name, bytes } | meta
//! ```
//!
//! All numbers are little-endian; meta is as it stands in a record's cell (`meta.rs`).

use nearstate_memory::Corruption;

const CUT: Corruption = Corruption("an entry of the commit stream is cut short");
const HEAD: usize = 1 + 4 + 2 + 4 + 8;
const VERSION_AT: usize = HEAD - 8;

const PUT: u8 = 1;
const PATCH: u8 = 2;
const DELETE: u8 = 3;
const EXPIRE: u8 = 4;
const PUT_SET: u8 = 5;

/// What became of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// It has this value and this meta, and nothing of before.
    Put {
        /// The value.
        value: &'a [u8],
        /// Tags and expiry, encoded: [`crate::record::meta::Meta::split`] reads them. Empty:
        /// neither.
        meta: &'a [u8],
        /// True if the value is that of a set ([`crate::Members::new`] reads it).
        is_set: bool,
    },
    /// These blocks changed; `None`: the block is gone.
    Patched {
        /// True if all blocks of before are gone.
        is_anew: bool,
        /// Name and bytes of each.
        blocks: Vec<(&'a [u8], Option<&'a [u8]>)>,
        /// Tags and expiry, encoded as in `Put`; `None`: as they were.
        meta: Option<&'a [u8]>,
    },
    /// It is gone.
    Deleted {
        /// True if it was collected, or gave way to another, because its time had passed. A plain
        /// deletion of such a record says false.
        is_expiry: bool,
    },
}

/// A record of a committed transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed<'a> {
    /// Number of its namespace in the region.
    pub namespace: u32,
    /// Key.
    pub key: &'a [u8],
    /// Version that it has since; of a deleted one, the last that it had.
    pub version: u64,
    /// What became of it.
    pub step: Step<'a>,
}

/// Appends a record; says where its version is to be put.
pub(crate) fn encode(namespace: u32, key: &[u8], step: &Step<'_>, out: &mut Vec<u8>) -> usize {
    let from = out.len();
    let op = match step {
        Step::Put { is_set: false, .. } => PUT,
        Step::Put { is_set: true, .. } => PUT_SET,
        Step::Patched { .. } => PATCH,
        Step::Deleted { is_expiry: false } => DELETE,
        Step::Deleted { is_expiry: true } => EXPIRE,
    };
    out.push(op);
    out.extend_from_slice(&namespace.to_le_bytes());
    out.extend_from_slice(&u16::try_from(key.len()).unwrap_or(u16::MAX).to_le_bytes());
    out.extend_from_slice(&[0; 12]);
    out.extend_from_slice(key);
    let payload = out.len();
    match step {
        Step::Put { value, meta, .. } => {
            out.extend_from_slice(&length(meta));
            out.extend_from_slice(value);
            out.extend_from_slice(meta);
        }
        Step::Patched { is_anew, blocks, meta } => {
            let bytes = meta.unwrap_or_default();
            out.extend_from_slice(&[u8::from(*is_anew), u8::from(meta.is_some())]);
            out.extend_from_slice(&length(bytes));
            out.extend_from_slice(&u16::try_from(blocks.len()).unwrap_or(u16::MAX).to_le_bytes());
            for (name, block) in blocks {
                out.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
                out.push(u8::from(block.is_some()));
                out.extend_from_slice(&length(block.unwrap_or_default()));
                out.extend_from_slice(name);
                out.extend_from_slice(block.unwrap_or_default());
            }
            out.extend_from_slice(bytes);
        }
        Step::Deleted { .. } => {}
    }
    let bytes = length(out.get(payload..).unwrap_or_default());
    if let Some(place) = out.get_mut(from + 7..from + 11) {
        place.copy_from_slice(&bytes);
    }
    from + VERSION_AT
}

fn length(bytes: &[u8]) -> [u8; 4] {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes()
}

/// Takes the next record from the front of an entry. Total: any bytes give records or damage.
pub(crate) fn decode<'a>(rest: &mut &'a [u8]) -> Result<Option<Committed<'a>>, Corruption> {
    if rest.is_empty() {
        return Ok(None);
    }
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
    let step = match op {
        PUT | PUT_SET => {
            let mut reader = Reader { rest: payload };
            let meta_bytes = reader.number()? as usize;
            let value_bytes = reader.rest.len().checked_sub(meta_bytes).ok_or(CUT)?;
            let value = reader.take(value_bytes)?;
            Step::Put { value, meta: reader.rest, is_set: op == PUT_SET }
        }
        PATCH => patched(payload)?,
        DELETE => Step::Deleted { is_expiry: false },
        EXPIRE => Step::Deleted { is_expiry: true },
        _ => return Err(Corruption("an entry of the commit stream does what does not exist")),
    };
    Ok(Some(Committed { namespace, key, version: u64::from_le_bytes(*version), step }))
}

fn patched(payload: &[u8]) -> Result<Step<'_>, Corruption> {
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
    Ok(Step::Patched { is_anew, blocks, meta: has_meta.then_some(meta) })
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
        let steps = [
            Step::Put { value: b"value", meta: b"meta", is_set: false },
            Step::Put { value: b"", meta: b"", is_set: true },
            Step::Patched {
                is_anew: true,
                blocks: vec![(b"auth", Some(b"key")), (b"gone", None)],
                meta: Some(b"m"),
            },
            Step::Patched { is_anew: false, blocks: Vec::new(), meta: None },
            Step::Deleted { is_expiry: false },
            Step::Deleted { is_expiry: true },
        ];
        let mut bytes = Vec::new();
        for (number, step) in (0_u32..).zip(&steps) {
            let at = encode(number, b"imsi", step, &mut bytes);
            bytes[at..at + 8].copy_from_slice(&u64::from(number + 100).to_le_bytes());
        }
        let mut rest = bytes.as_slice();
        for (number, step) in (0_u32..).zip(steps) {
            let version = u64::from(number + 100);
            let expected = Committed { namespace: number, key: b"imsi", version, step };
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
