//! Patches of named blocks (deltas). Only changed blocks are written, only small blocks are copied.

use nearstate_memory::{Cell, CellHeader, Corruption, KnownSlot, WriteTarget};
use nearstate_model::invariant::guaranteed;
use nearstate_model::limits::{BLOCK_NAME_BYTES_MAX, BLOCKS_MAX, VALUE_BYTES_MAX};
use nearstate_model::{Error, Result, invariant};

use crate::record::collection::is_divided;
use crate::record::layout::named_twice;
use crate::record::meta::split;
use crate::record::splice::Splice;
use crate::record::{
    BLOCK_INLINE_MAX, Block, BlockChange, BlockContent, BlockTable, Form, Kind, encode, is_name,
};
use crate::session::{KeyLookup, Namespace, Session, check_key, wrong_kind};
use crate::txn::write::{
    CHANGES_NEED_TXN, Condition, FlagCheck, NEEDS_TXN, Outcome, SingleWrite, present,
};

/// How often a patch is retried because another session has changed the record in the meantime.
const ATTEMPTS_MAX: u32 = 16;

impl Session {
    /// Patches a record without a transaction; `None` if the namespace needs one, or if each
    /// attempt met a concurrent change of the record.
    pub(crate) fn patch_direct(
        &self,
        namespace: Namespace,
        key: &[u8],
        changes: &[BlockChange<'_>],
        condition: Condition<'_>,
    ) -> Result<Option<Outcome>> {
        check_patch(namespace, key, changes, condition)?;
        if self.member.namespace_flags(namespace.index)? & CHANGES_NEED_TXN != 0 {
            return Ok(None);
        }
        let lookup = KeyLookup { form: Form::Blocks, ..self.lookup(namespace, key)? };
        for _ in 0..ATTEMPTS_MAX {
            // The pin prevents reuse of the old cell and of its blocks.
            let _held = self.member.pin()?;
            let found = self.member.lookup(lookup.table, lookup.hash, key)?;
            lookup.table.check_current(namespace.index)?;
            let seen = present(found.record.map(|(cell, _)| cell))?;
            if !condition.holds(seen)? {
                let current = seen.map(|cell| cell.version());
                return Ok(Some(Outcome::Refused { current }));
            }
            // Its elements are changed in a transaction.
            let is_in_parts = match seen {
                Some(cell) => {
                    Form::of(namespace.kind, &cell) == Form::Blocks && is_divided(cell.value()?)
                }
                None => false,
            };
            if is_in_parts {
                return Ok(None);
            }
            // A patch of an existing record changes no tag, so it changes no index.
            let mask = if seen.is_some() { CHANGES_NEED_TXN } else { NEEDS_TXN };
            let flags = self.member.namespace_flags(namespace.index)?;
            let place = (lookup.table, namespace.index);
            let Some(flags) = FlagCheck::of_direct(place, mask, flags) else { return Ok(None) };
            invariant!(lookup.form == Form::Blocks, "a patch makes a record of blocks");
            let draft = match self.patched(lookup, seen, changes, None) {
                Ok(draft) => draft,
                Err(error) => {
                    self.member.free_pending()?;
                    return Err(error);
                }
            };
            let target = WriteTarget::new(lookup.hash, key, KnownSlot::Read(found.token));
            let is_same =
                |record: Option<Cell<'_>>| Ok(record.map_or(0, |cell| cell.at()) == found.token.at);
            match self.write_single(flags, target, Some(draft), is_same)? {
                SingleWrite::Made { version } => return Ok(Some(Outcome::Done { version })),
                SingleWrite::Unsettled => return Ok(None),
                // Another writer has changed the record: that write made progress.
                SingleWrite::Refused => {}
            }
        }
        // A transaction pauses between attempts, and their number is limited.
        Ok(None)
    }

    /// A draft of the record with the changes. `meta` follows the blocks; `None` keeps the current
    /// metadata.
    pub(crate) fn patched(
        &self,
        lookup: KeyLookup<'_>,
        old: Option<Cell<'_>>,
        changes: &[BlockChange<'_>],
        meta: Option<&[u8]>,
    ) -> Result<nearstate_memory::PendingCell> {
        let kind = lookup.table.kind();
        let (value, kept) = match old {
            Some(cell) if Form::of_record(kind, &cell) != Form::Blocks => {
                return Err(other_form(Form::of_record(kind, &cell)));
            }
            Some(cell) => split(cell, cell.value()?)?,
            None => (&[][..], &[][..]),
        };
        if let (Some(cell), Some(splice)) =
            (old, Splice::of(value, old.map_or(0, |cell| cell.children()), changes)?)
        {
            return self.draft_spliced(lookup, cell, &splice, meta);
        }
        let mut old_blocks = BlockTable::new(value)?;
        // One allocation for most records.
        let mut blocks = Vec::with_capacity(changes.len() + 8);
        let mut children = Vec::new();
        while let Some(block) = old_blocks.next()? {
            // A changed block keeps its position: blocks are in the order of their first write.
            if let Some(change) = changes.iter().find(|change| change.name == block.name) {
                if let Some(bytes) = change.bytes {
                    blocks.push(self.changed(lookup, (change.name, bytes), &mut children)?);
                }
                continue;
            }
            blocks.push(match (block.content, old) {
                (BlockContent::Child(child), Some(cell)) => {
                    let kept =
                        Block { content: BlockContent::Child(children.len() as u64 / 8), ..block };
                    children.extend_from_slice(&cell.child(child)?.to_le_bytes());
                    kept
                }
                _ => block,
            });
        }
        let kept_count = blocks.len();
        for change in changes {
            let known = guaranteed(blocks.get(..kept_count), "blocks are only appended");
            match change.bytes {
                Some(bytes) if known.iter().all(|block| block.name != change.name) => {
                    blocks.push(self.changed(lookup, (change.name, bytes), &mut children)?);
                }
                Some(_) | None => {}
            }
        }
        if blocks.len() > BLOCKS_MAX {
            return Err(Error::TooManyBlocks { blocks: blocks.len() });
        }
        let child_count = children.len() / 8;
        let named =
            blocks.iter().filter(|block| matches!(block.content, BlockContent::Child(_))).count();
        if named != child_count {
            // The old record lists children that none of its blocks name.
            return Err(Corruption("a record owns cells that none of its blocks name").into());
        }
        self.draft(lookup, &children, &encode(&blocks), meta.unwrap_or(kept))
    }

    /// A block with new bytes: in the record's cell, or in a separate cell.
    fn changed<'a>(
        &self,
        lookup: KeyLookup<'_>,
        (name, bytes): (&'a str, &'a [u8]),
        children: &mut Vec<u8>,
    ) -> Result<Block<'a>> {
        let content = if bytes.len() <= BLOCK_INLINE_MAX {
            BlockContent::Inline(bytes)
        } else {
            let at = self.block_cell(lookup, bytes)?;
            invariant!(at != 0, "a block of {} bytes has a cell", bytes.len());
            children.extend_from_slice(&at.to_le_bytes());
            invariant!(children.len().is_multiple_of(8), "children are offsets of 8 bytes");
            BlockContent::Child(children.len() as u64 / 8 - 1)
        };
        let bytes =
            u32::try_from(bytes.len()).map_err(|_| Error::ValueTooLarge { bytes: bytes.len() })?;
        Ok(Block { name, content, bytes })
    }

    /// A cell for a block of the record with this key.
    fn block_cell(&self, lookup: KeyLookup<'_>, bytes: &[u8]) -> Result<u64> {
        invariant!(bytes.len() > BLOCK_INLINE_MAX, "a cell for a block of {} bytes", bytes.len());
        invariant!(bytes.len() <= VALUE_BYTES_MAX, "a cell for a block of {} bytes", bytes.len());
        let head = CellHeader {
            kind: nearstate_memory::CellKind::Block,
            flags: 0,
            namespace: lookup.table.index(),
            body: u32::try_from(bytes.len())
                .map_err(|_| Error::ValueTooLarge { bytes: bytes.len() })?,
            key: 0,
            children: 0,
            hash: lookup.hash,
        };
        let block = self.member.fill_cell(&head, &[bytes], None)?;
        self.member.seal_block(block.at, block.body_crc)?;
        Ok(block.at)
    }
}

/// A record of a mixed namespace that has no blocks.
#[cold]
pub(crate) fn other_form(found: Form) -> Error {
    Error::WrongKind {
        detail: format!("the record is {}, and has no named blocks: delete it first", found.name()),
    }
}

pub(crate) fn check_patch(
    namespace: Namespace,
    key: &[u8],
    changes: &[BlockChange<'_>],
    condition: Condition<'_>,
) -> Result<()> {
    check_key(key)?;
    if !namespace.kind.has(Form::Blocks) {
        if namespace.kind == Kind::Counters {
            return Err(wrong_kind(namespace.kind, "patch a block", ""));
        }
        return Err(Error::WrongKind {
            detail: "records of this namespace have one unnamed block: put it".to_owned(),
        });
    }
    if matches!(condition, Condition::Value(_)) {
        return Err(wrong_kind(Kind::Blocks, "compare a value", "compare its version"));
    }
    if changes.len() > BLOCKS_MAX {
        return Err(Error::TooManyBlocks { blocks: changes.len() });
    }
    for (index, change) in changes.iter().enumerate() {
        let name = change.name.as_bytes();
        let bytes = name.len();
        let is_twice = changes.iter().take(index).any(|c| is_name(c.name.as_bytes(), name));
        if bytes == 0 || bytes > BLOCK_NAME_BYTES_MAX || name.contains(&0) {
            return Err(Error::BadName { bytes });
        }
        if is_twice {
            return Err(named_twice(change.name));
        }
        if let Some(block) = change.bytes
            && block.len() > VALUE_BYTES_MAX
        {
            return Err(Error::ValueTooLarge { bytes: block.len() });
        }
    }
    Ok(())
}
