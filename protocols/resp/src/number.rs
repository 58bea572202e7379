//! Parsing of numbers, as strict as Redis.

pub mod long_double;

use crate::reply::error_reply::ErrorReply;

/// A signed 64-bit integer: no plus sign, spaces or leading zeros.
pub fn integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let is_right = match digits {
        [] => false,
        [b'0'] => text.len() == 1,
        [first, ..] => *first != b'0' && digits.len() <= 19,
    };
    if !is_right || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    str::from_utf8(text).ok()?.parse().ok()
}

/// As [`integer`], with Redis' error.
///
/// # Errors
/// `ERR value is not an integer or out of range`
pub fn integer_or_refuse(text: &[u8]) -> Result<i64, ErrorReply> {
    integer(text).ok_or(ErrorReply::NOT_INTEGER)
}

/// As [`integer_or_refuse`], for 32 bits.
///
/// # Errors
/// `ERR value is not an integer ..` or `ERR value is out of range, value must between ..`
pub fn small_integer_or_refuse(text: &[u8]) -> Result<i32, ErrorReply> {
    i32::try_from(integer_or_refuse(text)?).map_err(|_| {
        let (least, limit) = (i32::MIN, i32::MAX);
        ErrorReply::new(format!(
            "ERR value is out of range, value must between {least} and {limit}"
        ))
    })
}

/// Whether a number is negative, and the number without its sign.
pub fn signed(text: &[u8]) -> (bool, &[u8]) {
    match text.split_first() {
        Some((b'-', number)) => (true, number),
        Some((b'+', number)) => (false, number),
        _ => (false, text),
    }
}

/// A cursor, parsed as C's `strtoul` does: signs, leading zeros and an empty text are accepted.
/// `None` if it is not a number or exceeds 64 bits.
pub fn cursor(text: &[u8]) -> Option<u64> {
    let (is_negative, digits) = signed(text);
    if digits.is_empty() {
        return text.is_empty().then_some(0);
    }
    let mut number = 0_u64;
    for byte in digits {
        let digit = u64::from(byte.checked_sub(b'0').filter(|digit| *digit <= 9)?);
        number = number.checked_mul(10)?.checked_add(digit)?;
    }
    Some(if is_negative { number.wrapping_neg() } else { number })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_parsed_like_in_redis() {
        for (text, number) in [
            ("0", Some(0)),
            ("-1", Some(-1)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("", None),
            ("-", None),
            ("-0", None),
            ("00", None),
            ("01", None),
            ("+1", None),
            (" 1", None),
            ("1 ", None),
            ("1x", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(integer(text.as_bytes()), number, "{text:?}");
        }
    }

    #[test]
    fn cursors_are_parsed_like_strtoul() {
        for (text, number) in [
            ("", Some(0)),
            ("0", Some(0)),
            ("007", Some(7)),
            ("+7", Some(7)),
            ("-1", Some(u64::MAX)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("-18446744073709551616", None),
            ("-", None),
            ("+", None),
            ("+-1", None),
            (" 1", None),
            ("1 ", None),
            ("0x10", None),
        ] {
            assert_eq!(cursor(text.as_bytes()), number, "{text:?}");
        }
    }
}
