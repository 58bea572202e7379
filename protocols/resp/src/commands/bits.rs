//! Commands for the bits of a string. Bit 0 is the highest one of the first byte.

use super::arg;
use super::string_edit::{edit_string, text};
use crate::command_context::CommandContext;
use crate::number::{integer, integer_or_refuse};
use crate::parse::Args;
use crate::reply::ReplyWriter;
use crate::reply::error_reply::{CommandResult, ErrorReply};
use nearstate_model::limits::VALUE_BYTES_MAX;
use std::ops::ControlFlow;

const BAD_OFFSET: ErrorReply =
    ErrorReply::fixed("ERR bit offset is not an integer or out of range");

/// The longest string of Redis. Behind the longest one of a region, all bits are 0.
const REDIS_BYTES_MAX: usize = 512 << 20;
const _: () = assert!(REDIS_BYTES_MAX >= VALUE_BYTES_MAX);

/// The byte of a bit, and the bit in it.
struct BitPlace {
    byte: usize,
    mask: u8,
}

impl BitPlace {
    fn read(offset: &[u8]) -> Result<Self, ErrorReply> {
        let offset = integer(offset).and_then(|offset| usize::try_from(offset).ok());
        let offset = offset.filter(|offset| offset / 8 < REDIS_BYTES_MAX).ok_or(BAD_OFFSET)?;
        Ok(Self { byte: offset / 8, mask: 0x80 >> (offset % 8) })
    }

    fn of(&self, bytes: &[u8]) -> bool {
        bytes.get(self.byte).is_some_and(|byte| byte & self.mask != 0)
    }
}

/// `SETBIT key offset value`
pub(crate) fn setbit(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let place = BitPlace::read(arg(args, 2))?;
    let is_set = match integer(arg(args, 3)) {
        Some(0) => false,
        Some(1) => true,
        _ => return Err(ErrorReply::fixed("ERR bit is not an integer or out of range")),
    };
    if place.byte >= VALUE_BYTES_MAX {
        return Err(BAD_OFFSET);
    }
    let before = edit_string(ctx, arg(args, 1), |bytes, _| {
        let before = place.of(bytes);
        let bytes_before = bytes.len();
        if place.byte >= bytes_before {
            bytes.resize(place.byte + 1, 0);
        }
        if before == is_set && bytes.len() == bytes_before {
            return Ok(ControlFlow::Break(before));
        }
        if let Some(byte) = bytes.get_mut(place.byte) {
            *byte = if is_set { *byte | place.mask } else { *byte & !place.mask };
        }
        Ok(ControlFlow::Continue(before))
    })?;
    reply.int(before.into());
    Ok(())
}

/// `GETBIT key offset`
pub(crate) fn getbit(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let place = BitPlace::read(arg(args, 2))?;
    let found = ctx.read(arg(args, 1))?;
    let bit = place.of(text(found.as_ref())?);
    ctx.session().check_not_truncated()?;
    reply.int(bit.into());
    Ok(())
}

/// `BITCOUNT key [start end [BYTE | BIT]]`
pub(crate) fn bitcount(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    // As in Redis, the other arguments of a key that does not exist are not checked.
    let Some(found) = ctx.read(arg(args, 1))? else {
        reply.int(0);
        return Ok(());
    };
    let bytes = found.string()?;
    let count = match args.len() {
        2 => ones(bytes),
        4 | 5 => {
            let (start, end) = (integer_or_refuse(arg(args, 2))?, integer_or_refuse(arg(args, 3))?);
            if start < 0 && end < 0 && start > end {
                reply.int(0);
                return Ok(());
            }
            let is_in_bits = match args.get(4) {
                None => false,
                Some(unit) if unit.eq_ignore_ascii_case(b"byte") => false,
                Some(unit) if unit.eq_ignore_ascii_case(b"bit") => true,
                Some(_) => return Err(ErrorReply::SYNTAX),
            };
            ones_within(bytes, start, end, is_in_bits)
        }
        _ => return Err(ErrorReply::SYNTAX),
    };
    ctx.session().check_not_truncated()?;
    reply.count(count);
    Ok(())
}

/// The number of ones.
fn ones(bytes: &[u8]) -> usize {
    let (words, rest) = bytes.as_chunks::<8>();
    let words = words.iter().map(|word| u64::from_le_bytes(*word).count_ones() as usize);
    words.sum::<usize>() + rest.iter().map(|byte| byte.count_ones() as usize).sum::<usize>()
}

/// The number of ones from start to end inclusive, in bytes or bits; negative positions count from
/// the end.
fn ones_within(bytes: &[u8], start: i64, end: i64, is_in_bits: bool) -> usize {
    let unit = if is_in_bits { 8 } else { 1 };
    let all = i64::try_from(bytes.len() * unit).unwrap_or(i64::MAX);
    let from_end = |at: i64| if at < 0 { at.saturating_add(all).max(0) } else { at };
    let (start, end) = (from_end(start), from_end(end).min(all - 1));
    if start > end {
        return 0;
    }
    let place = |at: i64| usize::try_from(at).unwrap_or(usize::MAX);
    let (start, end) = (place(start), place(end));
    let of = |range: std::ops::RangeInclusive<usize>| bytes.get(range).unwrap_or_default();
    if !is_in_bits {
        return ones(of(start..=end));
    }
    let all = ones(of(start / 8..=end / 8));
    // Less the bits of the first byte before the start, and of the last byte behind the end.
    let byte = |at: usize| bytes.get(at / 8).copied().unwrap_or_default();
    let before = byte(start) & !(0xff >> (start % 8));
    let behind = byte(end) & (0x7f >> (end % 8));
    all - (before.count_ones() + behind.count_ones()) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_range_has_as_many_ones_as_its_bits(
            bytes in prop::collection::vec(any::<u8>(), 0..20),
            start in -200..200_i64,
            end in -200..200_i64,
        ) {
            let bit = |at: usize| bytes[at / 8] >> (7 - at % 8) & 1;
            for (unit, is_in_bits) in [(8, true), (1, false)] {
                let all = i64::try_from(bytes.len() * unit).unwrap();
                let from_end = |at: i64| if at < 0 { (at + all).max(0) } else { at };
                let within = |at: i64| at >= from_end(start) && at <= from_end(end);
                let bits = (0..8 * bytes.len()).filter(|at| {
                    within(i64::try_from(at / (8 / unit)).unwrap())
                });
                let expected: usize = bits.map(|at| usize::from(bit(at))).sum();
                prop_assert_eq!(ones_within(&bytes, start, end, is_in_bits), expected);
            }
        }
    }
}
