//! A transaction that records its reads and writes, and the locations of a round's keys.

use nearstate_store::{BlockChange, Error, Kind, Namespace, Schema, Session, Txn};

use super::history::{ReadValue, WrittenValue};
use super::model::{BLOCKS, FIRSTS, HistoryModel, PLAIN, Payload};
use crate::rng::mix;

/// Why an operation ends early.
#[derive(Debug)]
pub(crate) enum OperationError {
    /// Another process committed a change first.
    Conflict,
    Violation(String),
}

impl From<Error> for OperationError {
    fn from(error: Error) -> Self {
        if matches!(error, Error::Conflict { .. }) {
            Self::Conflict
        } else {
            Self::Violation(error.to_string())
        }
    }
}

impl From<String> for OperationError {
    fn from(text: String) -> Self {
        Self::Violation(text)
    }
}

/// The bytes of a value: its number and its payload, and length and content derived from the
/// number.
pub(crate) fn encode(value: u64, payload: Payload) -> Vec<u8> {
    let mut bytes = value.to_le_bytes().to_vec();
    bytes.extend_from_slice(&payload.to_le_bytes());
    // Mostly small. Some are larger than what fits beside other blocks in a record.
    let words = match mix(value) % 10 {
        0..=6 => mix(value) / 10 % 30,
        7..=8 => 70 + mix(value) / 10 % 60,
        _ => 300 + mix(value) / 10 % 300,
    };
    for index in 0..words {
        bytes.extend_from_slice(&mix(value ^ payload << 32 ^ index << 48).to_le_bytes());
    }
    bytes
}

/// The number and the payload of a value, every byte verified.
pub(crate) fn decode(bytes: &[u8]) -> Result<(u64, Payload), String> {
    let word = |at: usize| {
        let word = bytes.get(at..at + 8).and_then(|bytes| bytes.first_chunk());
        word.map_or(0, |word| u64::from_le_bytes(*word))
    };
    let (value, payload) = (word(0), word(8));
    if encode(value, payload) == bytes {
        Ok((value, payload))
    } else {
        Err(format!("a value is torn: {} bytes of {value:x}", bytes.len()))
    }
}

/// The namespaces of the keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyMap {
    values: Namespace,
    blocks: Namespace,
    names: Namespace,
}

#[derive(Clone, Debug)]
pub(crate) struct KeyLocation {
    pub(crate) namespace: Namespace,
    pub(crate) key: Vec<u8>,
    /// Set if the key is one block of a record.
    pub(crate) block: Option<&'static str>,
}

const BLOCK_NAMES: [&str; BLOCKS as usize] = ["location", "security"];

impl KeyMap {
    pub(crate) fn open(session: &Session) -> Result<Self, String> {
        let open = |name: &str, kind: Kind| {
            session
                .namespace(name, &Schema { kind, ..Schema::default() })
                .map_err(|e| format!("namespace {name}: {e}"))
        };
        Ok(Self {
            values: open("values", Kind::Value)?,
            blocks: open("blocks", Kind::Blocks)?,
            names: open("names", Kind::Value)?,
        })
    }

    /// Keys change from round to round, so that they use other buckets.
    pub(crate) fn of(&self, model: HistoryModel, round: u64, key: u32) -> KeyLocation {
        let name = model.name();
        let round = round % 64;
        let (namespace, key, block) = match model {
            HistoryModel::Registers if key >= PLAIN => {
                let (record, block) = ((key - PLAIN) / BLOCKS, (key - PLAIN) % BLOCKS);
                let block = BLOCK_NAMES.get(block as usize).copied();
                (self.blocks, format!("{name}-{round}-record-{record}"), block)
            }
            HistoryModel::Index if key >= FIRSTS => {
                (self.names, format!("{round}-name-{key}"), None)
            }
            HistoryModel::Registers
            | HistoryModel::Bank
            | HistoryModel::Ring
            | HistoryModel::Index => (self.values, format!("{name}-{round}-{key}"), None),
        };
        KeyLocation { namespace, key: key.into_bytes(), block }
    }
}

/// A round as one process sees it.
#[derive(Debug)]
pub(crate) struct RoundContext<'s> {
    pub(crate) session: &'s Session,
    pub(crate) places: KeyMap,
    pub(crate) model: HistoryModel,
    pub(crate) round: u64,
}

impl RoundContext<'_> {
    pub(crate) fn location(&self, key: u32) -> KeyLocation {
        self.places.of(self.model, self.round, key)
    }

    /// A read outside of any transaction.
    pub(crate) fn get(&self, key: u32) -> Result<ReadValue, OperationError> {
        let location = self.location(key);
        let Some(view) = self.session.get(location.namespace, &location.key)? else {
            return Ok(ReadValue::Exactly(0));
        };
        let bytes = match location.block {
            Some(block) => view.block(block),
            None => Some(view.bytes()),
        };
        let value = bytes.map(decode).transpose()?;
        Ok(ReadValue::Exactly(value.map_or(0, |(value, _)| value)))
    }
}

/// An open transaction with its reads and writes.
#[derive(Debug)]
pub(crate) struct RecordedTxn<'g> {
    context: &'g RoundContext<'g>,
    txn: Txn<'g>,
    reads: Vec<(u32, Option<(u64, Payload)>)>,
    pub(crate) writes: Vec<WrittenValue>,
    next: u64,
}

impl<'g> RecordedTxn<'g> {
    /// Begins. Values are numbered from `first`.
    pub(crate) fn new(context: &'g RoundContext<'g>, first: u64) -> Result<Self, OperationError> {
        let txn = context.session.begin()?;
        Ok(Self { context, txn, reads: Vec::new(), writes: Vec::new(), next: first })
    }

    /// The values that were read.
    pub(crate) fn reads(&self) -> Vec<(u32, ReadValue)> {
        let value = |seen: &Option<(u64, Payload)>| seen.map_or(0, |(value, _)| value);
        self.reads.iter().map(|(key, seen)| (*key, ReadValue::Exactly(value(seen)))).collect()
    }

    /// Reads a key. A key that the transaction has written must have that value.
    pub(crate) fn get(&mut self, key: u32) -> Result<Option<Payload>, OperationError> {
        let location = self.context.location(key);
        let record = self.txn.get(location.namespace, &location.key)?;
        let bytes = record.as_ref().and_then(|record| match location.block {
            Some(block) => record.block(block),
            None => Some(record.bytes()),
        });
        let seen = bytes.map(decode).transpose()?;
        if let Some(own) = self.writes.iter().find(|own| own.key == key) {
            if seen.map_or(0, |(value, _)| value) != own.value {
                return Err(OperationError::Violation(format!(
                    "key {key}: {seen:x?} after its own {own:x?}"
                )));
            }
        } else {
            match self.reads.iter().find(|(known, _)| *known == key) {
                Some((_, before)) if *before != seen => {
                    return Err(OperationError::Violation(format!(
                        "key {key}: {seen:x?} after {before:x?}"
                    )));
                }
                Some(_) => {}
                None => self.reads.push((key, seen)),
            }
        }
        Ok(seen.map(|(_, payload)| payload))
    }

    fn record(&mut self, written: WrittenValue) {
        self.writes.retain(|own| own.key != written.key);
        self.writes.push(written);
    }

    /// Writes a key.
    pub(crate) fn put(&mut self, key: u32, payload: Payload) -> Result<(), OperationError> {
        let location = self.context.location(key);
        let value = self.next;
        let bytes = encode(value, payload);
        match location.block {
            Some(name) => {
                let change = BlockChange { name, bytes: Some(&bytes) };
                self.txn.patch(location.namespace, &location.key, &[change])?;
            }
            None => self.txn.put(location.namespace, &location.key, &bytes)?,
        }
        self.next += 1;
        self.record(WrittenValue { key, value, payload });
        Ok(())
    }

    /// Deletes a key. The result of `delete` counts as a read.
    pub(crate) fn delete(&mut self, key: u32) -> Result<(), OperationError> {
        let location = self.context.location(key);
        if let Some(name) = location.block {
            let change = BlockChange { name, bytes: None };
            self.txn.patch(location.namespace, &location.key, &[change])?;
        } else {
            let was_there = self.get(key)?.is_some();
            if self.txn.delete(location.namespace, &location.key)? != was_there {
                return Err(OperationError::Violation(format!(
                    "key {key}: the deletion contradicts the read: existed: {was_there}"
                )));
            }
        }
        self.record(WrittenValue { key, value: 0, payload: 0 });
        Ok(())
    }

    /// Deletes a whole record of blocks.
    pub(crate) fn delete_record(&mut self, record: u32) -> Result<(), OperationError> {
        let first = PLAIN + record * BLOCKS;
        let location = self.context.location(first);
        self.txn.delete(location.namespace, &location.key)?;
        for key in first..first + BLOCKS {
            self.record(WrittenValue { key, value: 0, payload: 0 });
        }
        Ok(())
    }

    pub(crate) fn commit(self) -> Result<(), OperationError> {
        Ok(self.txn.commit()?)
    }
}
