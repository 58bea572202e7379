//! Splits an inline request into arguments, with Redis' quotes: `"a\x41\n"` and `'it\'s'`.

use super::{ArgRange, ParseStop, ProtocolError, offset};

/// Splits `line` and appends the unquoted arguments to `unquoted`.
pub(super) fn split(
    line: &[u8],
    unquoted: &mut Vec<u8>,
    ranges: &mut Vec<ArgRange>,
) -> Result<(), ParseStop> {
    let mut rest = line;
    loop {
        rest = match rest {
            [] => return Ok(()),
            [byte, after @ ..] if is_space(*byte) => after,
            _ => {
                let from = offset(unquoted.len());
                let after =
                    word(rest, unquoted).ok_or(ParseStop::ProtocolError(ProtocolError::Quotes))?;
                ranges.push((from, offset(unquoted.len())));
                after
            }
        };
    }
}

/// C's `isspace`: separates words and follows closing quotes.
fn is_space(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == 0x0b
}

/// Ends an unquoted word. Redis accepts fewer bytes here.
fn ends_word(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r')
}

/// Reads one word; `None` for unbalanced quotes or text after a closing quote.
fn word<'a>(line: &'a [u8], out: &mut Vec<u8>) -> Option<&'a [u8]> {
    let mut rest = line;
    loop {
        rest = match rest {
            [] => return Some(rest),
            [byte, ..] if ends_word(*byte) => return Some(rest),
            [b'"', after @ ..] => return double_quoted(after, out).filter(|rest| ends(rest)),
            [b'\'', after @ ..] => return single_quoted(after, out).filter(|rest| ends(rest)),
            [byte, after @ ..] => {
                out.push(*byte);
                after
            }
        };
    }
}

/// A space or the end must follow a closing quote.
fn ends(rest: &[u8]) -> bool {
    rest.first().is_none_or(|byte| is_space(*byte))
}

fn double_quoted<'a>(line: &'a [u8], out: &mut Vec<u8>) -> Option<&'a [u8]> {
    let mut rest = line;
    loop {
        let (byte, after) = match rest {
            [] => return None,
            [b'"', after @ ..] => return Some(after),
            [b'\\', b'x', high, low, after @ ..] if is_hex(*high, *low) => {
                (digit(*high) << 4 | digit(*low), after)
            }
            [b'\\', byte, after @ ..] => (escaped(*byte), after),
            [byte, after @ ..] => (*byte, after),
        };
        out.push(byte);
        rest = after;
    }
}

fn single_quoted<'a>(line: &'a [u8], out: &mut Vec<u8>) -> Option<&'a [u8]> {
    let mut rest = line;
    loop {
        let (byte, after) = match rest {
            [] => return None,
            [b'\'', after @ ..] => return Some(after),
            [b'\\', b'\'', after @ ..] => (b'\'', after),
            [byte, after @ ..] => (*byte, after),
        };
        out.push(byte);
        rest = after;
    }
}

fn escaped(byte: u8) -> u8 {
    match byte {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 8,
        b'a' => 7,
        other => other,
    }
}

fn is_hex(high: u8, low: u8) -> bool {
    high.is_ascii_hexdigit() && low.is_ascii_hexdigit()
}

fn digit(byte: u8) -> u8 {
    match byte {
        b'0'..=b'9' => byte - b'0',
        _ => (byte | 0x20) - b'a' + 10,
    }
}
