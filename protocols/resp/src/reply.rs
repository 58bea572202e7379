//! Encoder of replies in RESP2 or RESP3, into the output of the connection.

pub mod error_reply;

use crate::reply::error_reply::{CommandResult, ErrorReply};
use std::fmt::Write as _;

/// Protocol version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum RespVersion {
    /// Default of a new connection.
    #[default]
    Resp2,
    /// After `HELLO 3`.
    Resp3,
}

/// Start of an aggregate of unknown length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyMark {
    at: usize,
    /// Whether output was omitted before.
    is_over: bool,
}

/// Encodes replies. Line ends in texts are replaced and bulks carry their length, so the output is
/// well-formed if the caller writes as many elements as it announced.
#[derive(Debug)]
pub struct ReplyWriter<'o> {
    out: &'o mut Vec<u8>,
    protocol: RespVersion,
    /// Limit of the bytes of `out`.
    until: usize,
    is_over: bool,
}

impl<'o> ReplyWriter<'o> {
    /// Appends replies to `out`.
    #[inline]
    pub fn new(out: &'o mut Vec<u8>, protocol: RespVersion) -> Self {
        Self { out, protocol, until: usize::MAX, is_over: false }
    }

    /// Limits the bytes of `out`. A request of a few kilobytes may request the same megabytes a
    /// hundred times, so the limit is checked before the output is in memory.
    #[inline]
    #[must_use]
    pub fn within(self, until: usize) -> Self {
        Self { until, ..self }
    }

    /// Limit of the bytes of the output.
    #[inline]
    pub fn bytes_max(&self) -> usize {
        self.until
    }

    /// True if output was omitted: the reply is incomplete and must be discarded.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Marks the reply as too long if `bytes` more bytes, collected elsewhere, exceed the limit.
    pub fn check_room_for(&mut self, bytes: usize) {
        self.has_room(bytes);
    }

    /// The error of a reply that is too long. A command that changes something calls this before
    /// the commit: what it removes would otherwise be lost with the reply.
    ///
    /// # Errors
    /// Output was omitted.
    pub fn check_complete(&self) -> CommandResult {
        if self.is_over { Err(ErrorReply::too_long(self.until)) } else { Ok(()) }
    }

    #[inline]
    fn has_room(&mut self, bytes: usize) -> bool {
        self.is_over |= self.out.len() + bytes > self.until;
        !self.is_over
    }

    /// Protocol version of the output.
    #[inline]
    pub fn protocol(&self) -> RespVersion {
        self.protocol
    }

    /// Changes the protocol version (`HELLO` replies in the new one).
    pub fn set_protocol(&mut self, protocol: RespVersion) {
        self.protocol = protocol;
    }

    /// `+OK`
    #[inline]
    pub fn ok(&mut self) {
        self.out.extend_from_slice(b"+OK\r\n");
    }

    /// A simple string. Line ends are replaced by spaces.
    #[inline]
    pub fn simple(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// As [`Self::simple`], for bytes.
    pub fn simple_bytes(&mut self, bytes: &[u8]) {
        self.line(b'+', bytes);
    }

    /// An error that starts with its code (`ERR`, `WRONGTYPE`). Line ends are replaced by spaces.
    pub fn error(&mut self, text: &str) {
        self.line(b'-', text.as_bytes());
    }

    /// An integer.
    #[inline]
    pub fn int(&mut self, number: i64) {
        match number {
            0 => self.out.extend_from_slice(b":0\r\n"),
            1 => self.out.extend_from_slice(b":1\r\n"),
            _ => self.signed(b':', number),
        }
    }

    /// A count.
    #[inline]
    pub fn count(&mut self, number: usize) {
        self.head(b':', number);
    }

    /// A bulk string.
    #[inline]
    pub fn bulk(&mut self, bytes: &[u8]) {
        if !self.has_room(bytes.len()) {
            return;
        }
        self.out.reserve(bytes.len() + HEAD_BYTES_MAX + 2);
        self.head(b'$', bytes.len());
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    /// The head of a bulk string whose bytes and line end follow with [`ReplyWriter::raw`].
    pub fn bulk_head(&mut self, bytes: usize) {
        if self.has_room(bytes) {
            self.head(b'$', bytes);
        }
    }

    /// A bulk string or null.
    #[inline]
    pub fn bulk_or_nil(&mut self, bytes: Option<&[u8]>) {
        match bytes {
            Some(bytes) => self.bulk(bytes),
            None => self.nil(),
        }
    }

    /// Null in place of a bulk string.
    #[inline]
    pub fn nil(&mut self) {
        self.either(b"$-1\r\n", b"_\r\n");
    }

    /// Null in place of an array.
    pub fn nil_array(&mut self) {
        self.either(b"*-1\r\n", b"_\r\n");
    }

    /// Header of an array.
    #[inline]
    pub fn array(&mut self, elements: usize) {
        self.head(b'*', elements);
    }

    /// Header of a map: an array of twice as many elements in RESP2.
    pub fn map(&mut self, pairs: usize) {
        match self.protocol {
            RespVersion::Resp2 => self.head(b'*', pairs.saturating_mul(2)),
            RespVersion::Resp3 => self.head(b'%', pairs),
        }
    }

    /// Header of a set: an array in RESP2.
    pub fn set(&mut self, elements: usize) {
        self.head_of(b'~', elements);
    }

    /// Header of a push message: an array in RESP2.
    pub fn push(&mut self, elements: usize) {
        self.head_of(b'>', elements);
    }

    /// A double, with the fewest digits that parse to the same value: a bulk string in RESP2.
    pub fn double(&mut self, number: f64) {
        let mut text = String::new();
        write_float(&mut text, number);
        match self.protocol {
            RespVersion::Resp2 => self.bulk(text.as_bytes()),
            RespVersion::Resp3 => self.line(b',', text.as_bytes()),
        }
    }

    /// A boolean: 1 or 0 in RESP2.
    pub fn boolean(&mut self, is_so: bool) {
        if is_so {
            self.either(b":1\r\n", b"#t\r\n");
        } else {
            self.either(b":0\r\n", b"#f\r\n");
        }
    }

    /// A verbatim string: a bulk string in RESP2.
    pub fn verbatim(&mut self, text: &str) {
        match self.protocol {
            RespVersion::Resp2 => self.bulk(text.as_bytes()),
            RespVersion::Resp3 => {
                if !self.has_room(text.len()) {
                    return;
                }
                self.out.reserve(text.len() + HEAD_BYTES_MAX + 6);
                self.head(b'=', text.len() + 4);
                self.out.extend_from_slice(b"txt:");
                self.out.extend_from_slice(text.as_bytes());
                self.out.extend_from_slice(b"\r\n");
            }
        }
    }

    /// Encoded elements in this protocol version.
    pub fn raw(&mut self, answers: &[u8]) {
        if self.has_room(answers.len()) {
            self.out.extend_from_slice(answers);
        }
    }

    /// Start of an aggregate whose length is known only at its end, or a position for
    /// [`Self::rewind`].
    #[inline]
    pub fn mark(&self) -> ReplyMark {
        ReplyMark { at: self.out.len(), is_over: self.is_over }
    }

    /// Turns everything since `mark` into an array. Moves the bytes by the length of the header.
    pub fn close_array(&mut self, mark: ReplyMark, elements: usize) {
        self.close(mark, |reply| reply.array(elements));
    }

    /// As [`Self::close_array`], for a set.
    pub fn close_set(&mut self, mark: ReplyMark, elements: usize) {
        self.close(mark, |reply| reply.set(elements));
    }

    /// As [`Self::close_array`], for a map.
    pub fn close_map(&mut self, mark: ReplyMark, pairs: usize) {
        self.close(mark, |reply| reply.map(pairs));
    }

    /// Discards everything since `mark`.
    #[inline]
    pub fn rewind(&mut self, mark: ReplyMark) {
        self.out.truncate(mark.at);
        self.is_over = mark.is_over;
    }

    /// Bytes written since `mark`.
    #[inline]
    pub fn written(&self, mark: ReplyMark) -> usize {
        self.out.len().saturating_sub(mark.at)
    }

    fn close(&mut self, mark: ReplyMark, head: impl FnOnce(&mut Self)) {
        let body = self.written(mark);
        head(self);
        let head = self.written(mark) - body;
        if let Some(written) = self.out.get_mut(mark.at..) {
            written.rotate_right(head);
        }
    }

    #[inline]
    fn either(&mut self, two: &[u8], three: &[u8]) {
        self.out.extend_from_slice(match self.protocol {
            RespVersion::Resp2 => two,
            RespVersion::Resp3 => three,
        });
    }

    fn head_of(&mut self, mark: u8, elements: usize) {
        match self.protocol {
            RespVersion::Resp2 => self.head(b'*', elements),
            RespVersion::Resp3 => self.head(mark, elements),
        }
    }

    /// A type byte, a number and a line end.
    #[inline]
    fn head(&mut self, mark: u8, number: usize) {
        match u16::try_from(number) {
            Ok(number @ 0..=9999) => self.short_head(mark, number),
            _ => self.digits(mark, number as u64, false),
        }
    }

    /// As [`ReplyWriter::digits`], for the lengths of usual values: a number below 10,000.
    #[inline]
    fn short_head(&mut self, mark: u8, number: u16) {
        let zeros = [1000, 100, 10].map(|least| usize::from(number < least));
        let zeros = zeros.iter().sum::<usize>();
        let line = u64::from(four_digits(number)) | u64::from(u16::from_le_bytes(*b"\r\n")) << 32;
        let line = u64::from(mark) | line >> (8 * zeros) << 8;
        // All eight bytes at once, of which the last are zeros.
        self.out.extend_from_slice(&line.to_le_bytes());
        self.out.truncate(self.out.len() - 1 - zeros);
    }

    fn signed(&mut self, mark: u8, number: i64) {
        self.digits(mark, number.unsigned_abs(), number < 0);
    }

    #[inline(never)]
    fn digits(&mut self, mark: u8, number: u64, is_negative: bool) {
        let mut line = [0; HEAD_BYTES_MAX];
        let mut rest = number;
        let mut from = HEAD_BYTES_MAX;
        let mut put = |byte: u8| {
            from -= 1;
            if let Some(place) = line.get_mut(from) {
                *place = byte;
            }
        };
        put(b'\n');
        put(b'\r');
        loop {
            put(b'0' + u8::try_from(rest % 10).unwrap_or_default());
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        if is_negative {
            put(b'-');
        }
        put(mark);
        self.out.extend_from_slice(line.get(from..).unwrap_or_default());
    }

    /// A type byte, a text without line ends and a line end.
    fn line(&mut self, mark: u8, text: &[u8]) {
        self.out.reserve(text.len() + 3);
        self.out.push(mark);
        let from = self.out.len();
        self.out.extend_from_slice(text);
        for byte in self.out.get_mut(from..).unwrap_or_default() {
            if matches!(byte, b'\r' | b'\n') {
                *byte = b' ';
            }
        }
        self.out.extend_from_slice(b"\r\n");
    }
}

/// The digits of a number below 10,000, with zeros in front, as a little-endian number.
#[inline]
fn four_digits(number: u16) -> u32 {
    // Both pairs at once, each in half of the word. A tenth of a number below 100 is a product.
    let pairs = u32::from(number / 100) | u32::from(number % 100) << 16;
    let tens = ((pairs * 103) >> 10) & 0x000f_000f;
    0x3030_3030 + (tens | (pairs - 10 * tens) << 8)
}

/// A type byte, a sign, 20 digits and a line end.
const HEAD_BYTES_MAX: usize = 24;

/// Formats a number as Redis does: plain digits in a wide range, otherwise with an exponent.
fn write_float(text: &mut String, number: f64) {
    let size = number.abs();
    let is_plain = size == 0.0 || (1e-5..1e21).contains(&size);
    // Writing to a String cannot fail.
    let _ = match number {
        _ if number.is_nan() => write!(text, "nan"),
        f64::INFINITY => write!(text, "inf"),
        f64::NEG_INFINITY => write!(text, "-inf"),
        _ if is_plain => write!(text, "{number}"),
        _ => write!(text, "{number:e}"),
    };
    if let Some(at) = text.find('e').filter(|_| size >= 1e21 && size.is_finite()) {
        text.insert(at + 1, '+');
    }
}
#[cfg(test)]
mod tests;
