//! Whole numbers as Redis reads them.

/// A whole number of 64 bits, as strict as Redis is: no plus, no leading zero, no `-0`, no blank.
#[inline]
pub fn whole(text: &[u8]) -> Option<i64> {
    let (is_negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    match digits {
        [] => return None,
        [b'0', ..] => return (!is_negative && digits.len() == 1).then_some(0),
        _ => {}
    }
    let mut number = 0_i64;
    for byte in digits {
        let digit = i64::from(byte.checked_sub(b'0').filter(|digit| *digit <= 9)?);
        number = number.checked_mul(10)?;
        // Downwards: the lowest number has no positive one.
        number = number.checked_sub(digit)?;
    }
    if is_negative { Some(number) } else { number.checked_neg() }
}

/// A cursor, as generous as C's `strtoul`, with which Redis reads it: signs, leading zeros, nothing
/// at all. `None`: it is no number, or larger than 64 bits.
pub fn cursor(text: &[u8]) -> Option<u64> {
    let (is_negative, digits) = match text {
        [] => return Some(0),
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if digits.is_empty() {
        return None;
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
    fn whole_numbers_are_read_strictly() {
        for (text, number) in [
            ("0", Some(0)),
            ("7", Some(7)),
            ("-12", Some(-12)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("-9223372036854775809", None),
            ("18446744073709551617", None),
            ("", None),
            ("-", None),
            ("-0", None),
            ("00", None),
            ("01", None),
            ("+1", None),
            (" 1", None),
            ("1 ", None),
            ("1.0", None),
            ("0x1", None),
            ("\u{661}", None),
        ] {
            assert_eq!(whole(text.as_bytes()), number, "{text:?}");
        }
    }

    #[test]
    fn cursors_are_read_as_c_reads_them() {
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
