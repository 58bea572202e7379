//! The position of each variable, computed from the table at compile time.
//!
//! ```text
//! context  = block, block, ...                       in the order of the blocks
//! block    = format (1 byte), presence (a bit for each variable), slot, slot, ...
//! slot     = the variable's bytes; zeros while it is absent
//! ```

use crate::effect::Effect;

/// The properties of one variable that the layout needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VariableRow {
    /// Bytes of its slot.
    pub bytes: usize,
    /// Number of its block.
    pub block: usize,
    /// The effect of each procedure.
    pub effects: &'static [Effect],
}

/// The position of a variable in a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VariableSlot {
    /// Its first byte.
    pub at: usize,
    /// Its bytes.
    pub bytes: usize,
    /// The byte with its presence bit.
    pub present_at: usize,
    /// That bit.
    pub present_bit: u8,
}

/// The header of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockHeader {
    /// Its first byte.
    pub at: usize,
    /// Its size.
    pub bytes: usize,
    /// Variables of the block.
    pub variables: usize,
}

/// The first byte of a block: its format.
const FORMAT_BYTES: usize = 1;

/// The number of variables of a block.
pub(crate) const fn count_in(rows: &[VariableRow], block: usize) -> usize {
    let (mut rest, mut count) = (rows, 0);
    while let [row, after @ ..] = rest {
        if row.block == block {
            count += 1;
        }
        rest = after;
    }
    count
}

/// Bytes of the presence bits of a block.
pub(crate) const fn presence_bytes(rows: &[VariableRow], block: usize) -> usize {
    count_in(rows, block).div_ceil(8)
}

/// Bytes of a block's variables.
pub(crate) const fn slot_bytes(rows: &[VariableRow], block: usize) -> usize {
    let (mut rest, mut bytes) = (rows, 0);
    while let [row, after @ ..] = rest {
        if row.block == block {
            bytes += row.bytes;
        }
        rest = after;
    }
    bytes
}

/// Bytes of a block.
pub(crate) const fn block_bytes(rows: &[VariableRow], block: usize) -> usize {
    FORMAT_BYTES + presence_bytes(rows, block) + slot_bytes(rows, block)
}

/// The first byte of a block; with the number of blocks, the bytes of a context.
pub(crate) const fn block_at(rows: &[VariableRow], block: usize) -> usize {
    let (mut before, mut at) = (0, 0);
    while before < block {
        at += block_bytes(rows, before);
        before += 1;
    }
    at
}

/// The head of the block with this number.
pub(crate) const fn block_header(rows: &[VariableRow], block: usize) -> BlockHeader {
    BlockHeader {
        at: block_at(rows, block),
        bytes: FORMAT_BYTES + presence_bytes(rows, block),
        variables: count_in(rows, block),
    }
}

/// The slot of the variable with this number.
pub(crate) const fn slot_of(rows: &[VariableRow], number: usize) -> VariableSlot {
    let (before, from) = rows.split_at(number);
    let [row, ..] = from else { panic!("a variable has a row") };
    let start = block_at(rows, row.block);
    let nth = count_in(before, row.block);
    VariableSlot {
        at: start + FORMAT_BYTES + presence_bytes(rows, row.block) + slot_bytes(before, row.block),
        bytes: row.bytes,
        present_at: start + FORMAT_BYTES + nth / 8,
        present_bit: 1 << (nth % 8),
    }
}

/// The effect of a procedure on a variable, both by number.
pub(crate) const fn effect(rows: &[VariableRow], number: usize, procedure: usize) -> Effect {
    let (_, from) = rows.split_at(number);
    let [row, ..] = from else { panic!("a variable has a row") };
    let (_, from) = row.effects.split_at(procedure);
    let [effect, ..] = from else { panic!("a row has a column for each procedure") };
    *effect
}

/// What a procedure writes, from its column of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcedureFootprint {
    /// The blocks of which the procedure writes a variable; a bit for each.
    pub touched: u16,
    /// The blocks of which it writes every variable; a bit for each.
    pub overwritten: u16,
    /// Bytes of the variables that it writes.
    pub written_bytes: usize,
}

/// The footprint of the procedure with this number, restricted to some blocks.
pub(crate) const fn footprint(
    rows: &[VariableRow],
    procedure: usize,
    blocks: u16,
) -> ProcedureFootprint {
    let (mut number, mut footprint) =
        (0, ProcedureFootprint { touched: 0, overwritten: blocks, written_bytes: 0 });
    while let (_, [row, ..]) = rows.split_at(number) {
        let bit = 1 << row.block;
        if bit & blocks != 0 && effect(rows, number, procedure).writes() {
            footprint.touched |= bit;
            footprint.written_bytes += row.bytes;
        } else {
            footprint.overwritten &= !bit;
        }
        number += 1;
    }
    footprint
}

/// A slot. Its position is a constant, so the compiler removes the branch.
#[inline(always)]
#[expect(clippy::inline_always, reason = "a dynamic offset costs a bounds check")]
pub(crate) fn slot<const ALL: usize, const AT: usize, const BYTES: usize>(
    context: &[u8; ALL],
) -> &[u8; BYTES] {
    const { assert!(AT + BYTES <= ALL, "a slot lies in its context") };
    match context.get(AT..).and_then(<[u8]>::first_chunk) {
        Some(slot) => slot,
        None => &[0; BYTES],
    }
}

/// As [`slot`], mutable.
#[inline(always)]
#[expect(clippy::inline_always, reason = "a dynamic offset costs a bounds check")]
pub(crate) fn slot_mut<const ALL: usize, const AT: usize, const BYTES: usize>(
    context: &mut [u8; ALL],
) -> Option<&mut [u8; BYTES]> {
    const { assert!(AT + BYTES <= ALL, "a slot lies in its context") };
    context.get_mut(AT..).and_then(<[u8]>::first_chunk_mut)
}

/// True if a variable is present.
#[inline(always)]
#[expect(clippy::inline_always, reason = "a dynamic offset costs a bounds check")]
pub(crate) fn is_present<const ALL: usize, const AT: usize, const BIT: u8>(
    context: &[u8; ALL],
) -> bool {
    let [byte] = slot::<ALL, AT, 1>(context);
    byte & BIT != 0
}

/// Sets the presence bit of a variable.
#[inline(always)]
#[expect(clippy::inline_always, reason = "a dynamic offset costs a bounds check")]
pub(crate) fn set_present<const ALL: usize, const AT: usize, const BIT: u8>(
    context: &mut [u8; ALL],
    is_present: bool,
) {
    if let Some([byte]) = slot_mut::<ALL, AT, 1>(context) {
        *byte = if is_present { *byte | BIT } else { *byte & !BIT };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Effect::{Added, Modified, Removed, Untouched};

    const fn row(block: usize, bytes: usize, effects: &'static [Effect]) -> VariableRow {
        VariableRow { bytes, block, effects }
    }

    const ROWS: [VariableRow; 4] = [
        row(1, 3, &[Added, Untouched]),
        row(0, 2, &[Untouched, Removed]),
        row(1, 4, &[Untouched, Untouched]),
        row(0, 5, &[Untouched, Modified]),
    ];

    #[test]
    fn variables_are_adjacent_in_their_blocks() {
        let slot = |number| slot_of(&ROWS, number);
        let at = |at, bytes, present_at, present_bit| VariableSlot {
            at,
            bytes,
            present_at,
            present_bit,
        };
        assert_eq!(slot(1), at(2, 2, 1, 1));
        assert_eq!(slot(3), at(4, 5, 1, 2));
        assert_eq!(slot(0), at(11, 3, 10, 1));
        assert_eq!(slot(2), at(14, 4, 10, 2));
        assert_eq!((block_at(&ROWS, 1), block_at(&ROWS, 2)), (9, 18));
        assert_eq!(block_header(&ROWS, 1), BlockHeader { at: 9, bytes: 2, variables: 2 });
    }

    #[test]
    fn blocks_are_overwritten_partially_or_completely() {
        let footprint_of = |procedure, blocks| {
            let ProcedureFootprint { touched, overwritten, written_bytes } =
                footprint(&ROWS, procedure, blocks);
            (touched, overwritten, written_bytes)
        };
        assert_eq!(footprint_of(0, 0b11), (0b10, 0, 3));
        assert_eq!(footprint_of(1, 0b11), (0b01, 0b01, 7));
        assert_eq!(footprint_of(1, 0b10), (0, 0, 0));
    }

    #[test]
    fn more_than_eight_variables_have_two_bytes_of_presence() {
        let rows: Vec<VariableRow> = (0..11).map(|_| row(0, 1, &[])).collect();
        assert_eq!(block_bytes(&rows, 0), 1 + 2 + 11);
        assert_eq!(slot_of(&rows, 8).present_at, 2);
        assert_eq!(slot_of(&rows, 8).present_bit, 1);
        assert_eq!(block_header(&rows, 0), BlockHeader { at: 0, bytes: 3, variables: 11 });
    }
}
