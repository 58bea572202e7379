//! Reads requests that are complete and ordinary in one pass.

use super::{ArgRange, offset};

/// Most arguments of a request that is read in one pass.
const ARGS_MAX: usize = 1024;

/// Most digits of a number that is read in one pass.
const DIGITS_MAX: usize = 8;

/// `$0\r\n` and `$00\r`, as numbers, with zeros for the digits.
const ONE_DIGIT: u32 = u32::from_le_bytes(*b"$\0\r\n");
const TWO_DIGITS: u32 = u32::from_le_bytes(*b"$\0\0\r");

/// Appends the arguments of the request that `input` starts with, and returns its bytes. `None`,
/// without an effect, for any other request: it is incomplete, has no arguments, or is not what
/// clients send.
#[inline(always)]
#[expect(clippy::inline_always, reason = "the path of every request")]
pub(super) fn read(input: &[u8], ranges: &mut Vec<ArgRange>) -> Option<usize> {
    let (count, mut at) = match *input.first_chunk()? {
        [b'*', count @ b'1'..=b'9', b'\r', b'\n'] => (usize::from(count - b'0'), 4),
        [b'*', ..] => long_number(input, 1)?,
        _ => return None,
    };
    if !(1..=ARGS_MAX).contains(&count) {
        return None;
    }
    let before = ranges.len();
    for _ in 0..count {
        let Some((from, end)) = bulk(input, at) else {
            ranges.truncate(before);
            return None;
        };
        ranges.push((offset(from), offset(end)));
        at = end + 2;
    }
    Some(at)
}

/// A bulk string that begins at `at` and is complete: the ends of its bytes.
#[inline(always)]
#[expect(clippy::inline_always, reason = "the path of every request")]
fn bulk(input: &[u8], at: usize) -> Option<(usize, usize)> {
    // The shortest one has six bytes.
    let head: &[u8; 5] = input.get(at..)?.first_chunk()?;
    let &[mark, first, second, third, last] = head;
    let word = u32::from_le_bytes([mark, first, second, third]);
    let (tens, ones) = (first.wrapping_sub(b'0'), second.wrapping_sub(b'0'));
    let (length, from) = if word & 0xffff_00ff == ONE_DIGIT && tens < 10 {
        (usize::from(tens), at + 4)
    } else if word & 0xff00_00ff == TWO_DIGITS
        && last == b'\n'
        && (1..10).contains(&tens)
        && ones < 10
    {
        (10 * usize::from(tens) + usize::from(ones), at + 5)
    } else if mark == b'$' {
        long_number(input, at + 1)?
    } else {
        return None;
    };
    let end = from + length;
    (*input.get(end..)?.first_chunk()? == *b"\r\n").then_some((from, end))
}

/// A number without a sign or a leading zero, and the offset after its CR LF.
#[inline(never)]
fn long_number(input: &[u8], from: usize) -> Option<(usize, usize)> {
    let digits = input.get(from..)?;
    let mut value = 0;
    for (index, byte) in digits.iter().take(DIGITS_MAX + 1).enumerate() {
        let digit = byte.wrapping_sub(b'0');
        if digit < 10 {
            value = 10 * value + usize::from(digit);
            continue;
        }
        let is_plain = index == 1 || index > 1 && *digits.first()? != b'0';
        let is_number = is_plain && *byte == b'\r' && *digits.get(index + 1)? == b'\n';
        return is_number.then_some((value, from + index + 2));
    }
    None
}
