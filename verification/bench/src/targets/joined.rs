//! A record of several parts as one value: the length of each part, then the parts. For stores
//! without parts.

use crate::access::{
    PartReceiver, PartSet, PartWrite, ReplySink, Request, StoreAccess, StoreSchema, TableId,
    TableSchema, declined, first_part, parts,
};
use nearstate_model::Result;

/// Bytes of a part's length.
const LENGTH_BYTES: usize = 4;

/// Part number `part` of a value of several parts.
#[inline]
fn part_of(value: &[u8], count: usize, part: usize) -> Result<&[u8]> {
    let torn = || backend_error!("the store has a record that this program did not write");
    let mut from = count * LENGTH_BYTES;
    for (at, length) in value.chunks_exact(LENGTH_BYTES).take(count).enumerate() {
        let length = length.try_into().map_or(0, u32::from_le_bytes) as usize;
        if at == part {
            return value.get(from..from.saturating_add(length)).ok_or_else(torn);
        }
        from = from.saturating_add(length);
    }
    Err(torn())
}

/// Passes the wanted parts of a value to `receive`.
#[inline]
pub(super) fn pass_parts(
    schema: &TableSchema,
    value: &[u8],
    wanted: PartSet,
    receive: &mut PartReceiver<'_>,
) -> Result<()> {
    let count = schema.parts.len();
    if count == 1 {
        receive(0, value);
        return Ok(());
    }
    for part in (0..count).filter(|part| wanted.contains(*part)) {
        receive(part, part_of(value, count, part)?);
    }
    Ok(())
}

/// A value of these parts; those that are not given come from `before`.
pub(super) fn joined(
    schema: &TableSchema,
    before: Option<&[u8]>,
    parts: &[PartWrite<'_>],
    out: &mut Vec<u8>,
) -> Result<()> {
    out.clear();
    let count = schema.parts.len();
    let bytes_of = |part: usize| match (parts.iter().find(|(number, _)| *number == part), before) {
        (Some((_, bytes)), _) => Ok(*bytes),
        (None, Some(before)) if count == 1 => Ok(before),
        (None, Some(before)) => part_of(before, count, part),
        (None, None) => Ok(&[][..]),
    };
    if count > 1 {
        for part in 0..count {
            let length = u32::try_from(bytes_of(part)?.len()).unwrap_or(u32::MAX);
            out.extend_from_slice(&length.to_le_bytes());
        }
    }
    for part in 0..count {
        out.extend_from_slice(bytes_of(part)?);
    }
    Ok(())
}

/// A store of plain values by key, one map for each table.
pub(super) trait PlainStore {
    /// Calls `look` with a value; false if the key does not exist.
    fn view(&mut self, at: (TableId, &[u8]), look: impl FnMut(&[u8]) -> Result<()>)
    -> Result<bool>;

    fn put(&mut self, at: (TableId, &[u8]), value: &[u8]) -> Result<()>;

    /// Replaces a value by what `change` writes; false if the key does not exist.
    fn change(
        &mut self,
        at: (TableId, &[u8]),
        (mut change, value): (impl FnMut(&[u8], &mut Vec<u8>) -> Result<()>, &mut Vec<u8>),
    ) -> Result<bool> {
        let exists = self.view(at, |before| change(before, value))?;
        if exists {
            self.put(at, value)?;
        }
        Ok(exists)
    }

    /// False if the key does not exist.
    fn delete(&mut self, at: (TableId, &[u8])) -> Result<bool>;
}

/// A connection to a store of plain values. It has no tags.
#[derive(Debug)]
pub(super) struct WholeRecords<S> {
    pub(super) store: S,
    schema: StoreSchema,
    scratch: Vec<u8>,
}

impl<S> WholeRecords<S> {
    pub(super) const fn new(store: S, schema: &StoreSchema) -> Self {
        Self { store, schema: *schema, scratch: Vec::new() }
    }
}

impl<S: PlainStore> StoreAccess for WholeRecords<S> {
    fn perform(&mut self, request: &Request<'_>, receive: &mut ReplySink<'_>) -> Result<bool> {
        let (table, no_tags) = (request.table(), || declined("a plain value has no tags"));
        let schema = self.schema.table(table)?;
        let Self { store, scratch, .. } = self;
        match request {
            Request::Read { key, wanted, .. } => store.view((table, key), |value| {
                pass_parts(schema, value, *wanted, &mut parts(receive))
            }),
            Request::Put { entry, .. } if !entry.tags.is_empty() || schema.is_scanned => {
                Err(no_tags())
            }
            Request::Put { entry, .. } if schema.parts.len() == 1 && !entry.parts.is_empty() => {
                store.put((table, entry.key), first_part(entry.parts)).map(|()| true)
            }
            Request::Put { entry, .. } => {
                joined(schema, None, entry.parts, scratch)?;
                store.put((table, entry.key), scratch).map(|()| true)
            }
            Request::Change { change, .. } if change.tags.is_none() => {
                let replace = |before: &[u8], value: &mut Vec<u8>| {
                    joined(schema, Some(before), change.parts, value)
                };
                store.change((table, change.key), (replace, scratch))
            }
            Request::Delete { key, .. } => store.delete((table, key)),
            Request::Change { .. } | Request::Find { .. } => Err(no_tags()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: TableSchema = TableSchema::new("t", &["a", "b", "c"]);

    fn parts_of(value: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut all = Vec::new();
        pass_parts(&TABLE, value, PartSet::ALL, &mut |_, bytes| all.push(bytes.to_vec()))?;
        Ok(all)
    }

    #[test]
    fn parts_come_back_and_those_that_do_not_change_stay() {
        let (mut first, mut second) = (Vec::new(), Vec::new());
        joined(&TABLE, None, &[(2, b"cc"), (0, b"a"), (1, b"")], &mut first).unwrap();
        assert_eq!(first.len(), 3 * LENGTH_BYTES + 3);
        assert_eq!(parts_of(&first).unwrap(), [b"a".to_vec(), b"".to_vec(), b"cc".to_vec()]);
        joined(&TABLE, Some(&first), &[(1, b"bbbb")], &mut second).unwrap();
        assert_eq!(parts_of(&second).unwrap(), [b"a".to_vec(), b"bbbb".to_vec(), b"cc".to_vec()]);
    }

    #[test]
    fn bytes_that_are_no_record_are_an_error() {
        let mut value = Vec::new();
        joined(&TABLE, None, &[(0, b"a"), (1, b"b"), (2, b"c")], &mut value).unwrap();
        for end in 0..value.len() {
            assert!(parts_of(&value[..end]).is_err(), "{end}");
        }
        value[0] = 255;
        value[3] = 255;
        assert!(parts_of(&value).is_err());
    }
}
