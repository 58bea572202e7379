//! Answers, written straight into the connection's output, in RESP2 or RESP3.

pub mod error_reply;

use std::fmt::Write as _;

/// Which protocol the client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum RespVersion {
    /// What every client begins with.
    #[default]
    Resp2,
    /// After `HELLO 3`.
    Resp3,
}

/// Where an aggregate of unknown length began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyMark {
    at: usize,
    /// Something was left out before.
    is_over: bool,
}

/// Writes answers. What is written is always well-formed: texts are made harmless, bulks have
/// their length in front of them. That as many elements follow as were announced is the caller's.
#[derive(Debug)]
pub struct Reply<'o> {
    out: &'o mut Vec<u8>,
    protocol: RespVersion,
    /// The most bytes that `out` may have.
    until: usize,
    is_over: bool,
}

impl<'o> Reply<'o> {
    /// Answers go to the end of `out`.
    #[inline]
    pub fn new(out: &'o mut Vec<u8>, protocol: RespVersion) -> Self {
        Self { out, protocol, until: usize::MAX, is_over: false }
    }

    /// No bytes are written with which `out` would have more than so many. A request of a few
    /// kilobytes may ask a hundred times for the same megabytes: what would be sent must not be in
    /// memory before somebody looks how much it is.
    #[inline]
    #[must_use]
    pub fn within(self, until: usize) -> Self {
        Self { until, ..self }
    }

    /// The most bytes that there may be in all.
    #[inline]
    pub fn bytes_max(&self) -> usize {
        self.until
    }

    /// True if something was left out: what was written is no answer and is to be taken back.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Judges answers that are being collected elsewhere, and are to be so long.
    pub fn check_room_for(&mut self, bytes: usize) {
        self.has_room(bytes);
    }

    #[inline]
    fn has_room(&mut self, bytes: usize) -> bool {
        self.is_over |= self.out.len() + bytes > self.until;
        !self.is_over
    }

    /// The protocol that is written.
    #[inline]
    pub fn protocol(&self) -> RespVersion {
        self.protocol
    }

    /// What follows is in `protocol` (`HELLO` answers in the new one).
    pub fn set_protocol(&mut self, protocol: RespVersion) {
        self.protocol = protocol;
    }

    /// `+OK`
    #[inline]
    pub fn ok(&mut self) {
        self.out.extend_from_slice(b"+OK\r\n");
    }

    /// A short text without a length. Line ends in it become blanks.
    #[inline]
    pub fn simple(&mut self, text: &str) {
        self.line(b'+', text);
    }

    /// An error; its text begins with its code (`ERR`, `WRONGTYPE`). Line ends become blanks.
    pub fn error(&mut self, text: &str) {
        self.line(b'-', text);
    }

    /// A whole number.
    #[inline]
    pub fn int(&mut self, number: i64) {
        match number {
            0 => self.out.extend_from_slice(b":0\r\n"),
            1 => self.out.extend_from_slice(b":1\r\n"),
            _ => self.signed(b':', number),
        }
    }

    /// A count of things in memory.
    #[inline]
    pub fn count(&mut self, number: usize) {
        self.head(b':', number);
    }

    /// Bytes.
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

    /// Bytes, or that there are none.
    #[inline]
    pub fn bulk_or_nil(&mut self, bytes: Option<&[u8]>) {
        match bytes {
            Some(bytes) => self.bulk(bytes),
            None => self.nil(),
        }
    }

    /// Nothing, where bytes could be.
    #[inline]
    pub fn nil(&mut self) {
        self.either(b"$-1\r\n", b"_\r\n");
    }

    /// Nothing, where an array could be.
    pub fn nil_array(&mut self) {
        self.either(b"*-1\r\n", b"_\r\n");
    }

    /// So many elements follow.
    #[inline]
    pub fn array(&mut self, elements: usize) {
        self.head(b'*', elements);
    }

    /// So many pairs follow: an array of twice as many in RESP2.
    pub fn map(&mut self, pairs: usize) {
        match self.protocol {
            RespVersion::Resp2 => self.head(b'*', pairs.saturating_mul(2)),
            RespVersion::Resp3 => self.head(b'%', pairs),
        }
    }

    /// So many elements without an order follow: an array in RESP2.
    pub fn set(&mut self, elements: usize) {
        self.head_of(b'~', elements);
    }

    /// So many elements follow that nobody asked for: an array in RESP2.
    pub fn push(&mut self, elements: usize) {
        self.head_of(b'>', elements);
    }

    /// A number with a fraction, as short as reads back the same: bytes in RESP2.
    pub fn double(&mut self, number: f64) {
        let mut text = String::new();
        spell(&mut text, number);
        match self.protocol {
            RespVersion::Resp2 => self.bulk(text.as_bytes()),
            RespVersion::Resp3 => self.line(b',', &text),
        }
    }

    /// Yes or no: 1 or 0 in RESP2.
    pub fn boolean(&mut self, is_so: bool) {
        if is_so {
            self.either(b":1\r\n", b"#t\r\n");
        } else {
            self.either(b":0\r\n", b"#f\r\n");
        }
    }

    /// Text for people, with line ends: bytes in RESP2.
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

    /// Answers that were made elsewhere, whole, in this protocol.
    pub fn raw(&mut self, answers: &[u8]) {
        if self.has_room(answers.len()) {
            self.out.extend_from_slice(answers);
        }
    }

    /// Begins an aggregate whose length is known only behind its last element, or marks a place to
    /// go back to.
    #[inline]
    pub fn mark(&self) -> ReplyMark {
        ReplyMark { at: self.out.len(), is_over: self.is_over }
    }

    /// All that was written since `mark` becomes an array of so many elements. Moves it by a few
    /// bytes: its cost is a copy.
    pub fn close_array(&mut self, mark: ReplyMark, elements: usize) {
        self.close(mark, |reply| reply.array(elements));
    }

    /// As [`Self::close_array`], a set.
    pub fn close_set(&mut self, mark: ReplyMark, elements: usize) {
        self.close(mark, |reply| reply.set(elements));
    }

    /// As [`Self::close_array`], a map of so many pairs.
    pub fn close_map(&mut self, mark: ReplyMark, pairs: usize) {
        self.close(mark, |reply| reply.map(pairs));
    }

    /// Takes back all that was written since `mark`, and that something of it was left out.
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

    /// A mark, a number, a line end.
    #[inline]
    fn head(&mut self, mark: u8, number: usize) {
        match u8::try_from(number) {
            Ok(digit @ 0..=9) => self.out.extend_from_slice(&[mark, b'0' + digit, b'\r', b'\n']),
            _ => self.digits(mark, number as u64, false),
        }
    }

    fn signed(&mut self, mark: u8, number: i64) {
        self.digits(mark, number.unsigned_abs(), number < 0);
    }

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

    /// A mark, a text without line ends, a line end.
    fn line(&mut self, mark: u8, text: &str) {
        self.out.reserve(text.len() + 3);
        self.out.push(mark);
        let from = self.out.len();
        self.out.extend_from_slice(text.as_bytes());
        for byte in self.out.get_mut(from..).unwrap_or_default() {
            if matches!(byte, b'\r' | b'\n') {
                *byte = b' ';
            }
        }
        self.out.extend_from_slice(b"\r\n");
    }
}

/// A mark, a sign, 20 digits and a line end.
const HEAD_BYTES_MAX: usize = 24;

/// As Redis spells numbers: plain digits in a wide middle range, else with an exponent.
fn spell(text: &mut String, number: f64) {
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
