//! Hashes that are put whole: the table of a small one, with all blocks inline, is encoded behind
//! the key, and the commit copies key, table and metadata into the cell at once.

use nearstate_model::Result;

use crate::record::fields::is_block_name;
use crate::record::{ENTRY, Form, is_name};
use crate::session::buffers::{Metadata, Write};
use crate::txn::element_names::ElementPair;
use crate::txn::write_set::WriteSet;

/// The largest block that stands in the cell of a record that is put whole. A cell of its own would
/// be allocated, written and retired with each such put, and read with each read: a copy of a
/// kibibyte costs less. It moves there when the block is patched.
const WHOLE_BLOCK_MAX: usize = 1 << 10;

/// The largest table with its blocks: a patch of another block copies it.
const WHOLE_BYTES_MAX: usize = 2 << 10;

/// The most fields: each name is compared with all others.
const WHOLE_FIELDS_MAX: usize = 16;

/// The bytes of the table of a hash that is encoded whole; `None`: it is not, because it is large,
/// a name is that of no block, or a name occurs twice.
pub(super) fn whole_bytes(fields: &[ElementPair<'_>]) -> Option<usize> {
    if !(1..=WHOLE_FIELDS_MAX).contains(&fields.len()) {
        return None;
    }
    let mut bytes = size_of::<u32>();
    for (index, (name, value)) in fields.iter().enumerate() {
        bytes += ENTRY + name.len() + value.len();
        let mut before = fields.iter().take(index);
        if value.len() > WHOLE_BLOCK_MAX
            || bytes > WHOLE_BYTES_MAX
            || !is_block_name(name)
            || before.any(|(known, _)| is_name(known, name))
        {
            return None;
        }
    }
    Some(bytes)
}

impl WriteSet<'_> {
    /// Buffers a hash whose table has these bytes ([`whole_bytes`]), with metadata after it.
    pub(super) fn put_whole(
        &mut self,
        index: usize,
        (fields, bytes): (&[ElementPair<'_>], usize),
        metadata: Metadata<'_>,
    ) -> Result<()> {
        let value = self.buffers.keep_table(fields, bytes)?;
        // The metadata follows the value, as in the cell.
        let meta = match self.buffers.keep_meta(metadata) {
            Ok(meta) => meta,
            Err(error) => {
                // Invalid metadata must leave the transaction unchanged.
                self.buffers.forget(value);
                return Err(error);
            }
        };
        let entry = self.entry_mut(index);
        entry.write = Write::Put { value };
        entry.form = Form::Blocks;
        entry.meta = Some(meta);
        self.buffers.changes += 1;
        Ok(())
    }
}
