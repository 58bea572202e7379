//! Fills new cells: the steps of `spec/region.md`, section 3, before the bucket's lock.
//!
//! A cell that is filled is pending. No other member can reach it.

use nearstate_model::{Result, invariant};

use crate::crash::crash_point;
use crate::heap::cell::{self, CellHeader};
use crate::index::batch::BucketLine;
use crate::index::known_slot::KnownSlot;
use crate::layout::{Corruption, LINE};
use crate::member::Member;
use crate::region::index_table::IndexTable;
use crate::region::map::CellWriter;

const SHORT: Corruption = Corruption("the parts of a record do not fill its cell");

/// A new record cell: filled and pending. No other member can reach it yet.
#[derive(Clone, Copy, Debug)]
pub struct PendingCell {
    /// Offset of the cell.
    pub at: u64,
    /// CRC-32 of its body.
    pub body_crc: u32,
}

/// Bytes of a body whose checksum is computed over the new cell and not over its parts. In a
/// longer one the parts are read: the processor cannot read bytes back that it has just written to
/// lines that are still on their way, so the checksum would wait for them. In a shorter one that
/// wait costs less than a sum over each part.
const CHECKED_AS_A_WHOLE_MAX: u32 = 256;

impl Member {
    /// Allocates a cell and fills its header. The caller writes the body, in the same
    /// [`Member::operation`].
    ///
    /// # Errors
    /// As [`Member::allocate`]; `Forked`, `Damaged`.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "its answer would travel through memory")]
    pub fn allocate_cell(&self, head: &CellHeader) -> Result<u64> {
        debug_assert!(u64::from(head.key) <= u64::from(head.body), "a key is a part of the body");
        let at = self.allocate(cell::CELL_HEADER_BYTES + u64::from(head.body))?;
        cell::begin(self.map(), at, head)?;
        crash_point!("fill.header");
        Ok(at)
    }

    /// Writes a part of a pending cell's body. `offset` counts from the end of the header.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline]
    pub fn write_body(&self, at: u64, offset: u64, bytes: &[u8]) -> Result<()> {
        self.map().write(at + cell::CELL_HEADER_BYTES + offset, bytes)?;
        crash_point!("fill.part");
        Ok(())
    }

    /// In an operation, allocates a cell and fills it with the parts of its body, which have the
    /// length that `head` names. `table` is that of a record that was not read: the record that the
    /// cell replaces is prefetched while the checksum is computed over the new cell.
    ///
    /// # Errors
    /// As [`Member::allocate_cell`].
    pub fn fill_cell(
        &self,
        head: &CellHeader,
        parts: &[&[u8]],
        table: Option<&IndexTable>,
    ) -> Result<PendingCell> {
        debug_assert!(self.is_in_operation(), "a cell is filled outside of an operation");
        let write_all =
            |writer: &mut CellWriter<'_>| parts.iter().try_for_each(|part| writer.write(part));
        if table.is_some() || head.body <= CHECKED_AS_A_WHOLE_MAX {
            return self.fill_cell_with(head, table, write_all);
        }
        let at = self.allocate_cell(head)?;
        let body_crc = cell::checksum_of(parts);
        self.fill_body(at, head, write_all)?;
        Ok(PendingCell { at, body_crc })
    }

    /// As [`Member::fill_cell`], with a body of two pieces: the usual record. `bucket` is that of a
    /// record that was not read. Returns what is known about the slot of the key.
    ///
    /// # Errors
    /// As [`Member::allocate_cell`].
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call costs 30 instructions of each put")]
    pub fn fill_cell_pair(
        &self,
        head: &CellHeader,
        (key, value): (&[u8], &[u8]),
        bucket: Option<BucketLine>,
    ) -> Result<(PendingCell, KnownSlot)> {
        let at = self.allocate_cell(head)?;
        let mut writer = self.map().writer(at + cell::CELL_HEADER_BYTES, u64::from(head.body))?;
        writer.write(key)?;
        writer.write(value)?;
        let body = writer.finish().ok_or(SHORT)?;
        let known = match bucket {
            Some(bucket) => self.probe_known_slot(bucket),
            None => KnownSlot::Unknown,
        };
        let body_crc = if head.body <= CHECKED_AS_A_WHOLE_MAX {
            cell::checksum_of(&[body])
        } else {
            cell::checksum_of(&[key, value])
        };
        Ok((PendingCell { at, body_crc }, known))
    }

    /// As [`Member::fill_cell`], with a body in one piece. It is read twice, and not the new cell.
    ///
    /// # Errors
    /// As [`Member::allocate_cell`].
    #[inline]
    pub fn fill_cell_whole(
        &self,
        head: &CellHeader,
        body: &[u8],
        table: Option<&IndexTable>,
    ) -> Result<PendingCell> {
        invariant!(
            body.len() as u64 == u64::from(head.body),
            "a body of {} bytes fills a cell of {}",
            body.len(),
            head.body
        );
        let at = self.allocate_cell(head)?;
        self.write_body(at, 0, body)?;
        if let Some(table) = table {
            self.prefetch_record(table, head.hash, 1);
        }
        Ok(PendingCell { at, body_crc: cell::checksum_of(&[body]) })
    }

    /// Writes the whole body of a cell. Returns it.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a part of each logged change of a record")]
    fn fill_body(
        &self,
        at: u64,
        head: &CellHeader,
        fill: impl FnOnce(&mut CellWriter<'_>) -> Result<(), Corruption>,
    ) -> Result<&[u8], Corruption> {
        let mut writer = self.map().writer(at + cell::CELL_HEADER_BYTES, u64::from(head.body))?;
        fill(&mut writer)?;
        writer.finish().ok_or(SHORT)
    }

    /// As [`Member::fill_cell`], with a function that writes the parts.
    ///
    /// # Errors
    /// As [`Member::allocate_cell`]; `Damaged` if the parts have another length.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a call costs 30 instructions, most of them moves")]
    pub fn fill_cell_with(
        &self,
        head: &CellHeader,
        table: Option<&IndexTable>,
        fill: impl FnOnce(&mut CellWriter<'_>) -> Result<(), Corruption>,
    ) -> Result<PendingCell> {
        let at = self.allocate_cell(head)?;
        let body = self.fill_body(at, head, fill)?;
        if let Some(table) = table {
            self.prefetch_record(table, head.hash, 1);
        }
        Ok(PendingCell { at, body_crc: cell::checksum_of(&[body]) })
    }

    /// Completes a block cell. Its version is 0 and it never changes.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn seal_block(&self, at: u64, body_crc: u32) -> Result<()> {
        debug_assert!(at.is_multiple_of(LINE), "a cell begins at a line");
        cell::seal(self.map(), at, 0, body_crc)?;
        crash_point!("fill.block");
        Ok(())
    }
}
