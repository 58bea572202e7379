//! Requests: arrays of bulks (RESP2 and RESP3 alike) and inline lines, out of a slice of bytes that
//! grows at its end.
//!
//! The caller keeps the bytes of a request until the parser has seen all of it, and hands them in
//! from the request's first byte each time; the parser remembers how far it came, so a request that
//! arrives in a thousand pieces is read once. A length that a client states is compared with the
//! limits and then waited for: nothing is allocated from it.

mod inline;
mod args;

pub use args::{Args, OwnedArgs};

use std::fmt;

/// The most arguments of one request, as in Redis. More are refused as a broken protocol.
pub const ARGS_MAX: usize = 1 << 20;

/// The longest inline request and the longest line with a number, in bytes, as in Redis.
pub const INLINE_BYTES_MAX: usize = 64 << 10;

/// The most arguments of a request of somebody who has not said who he is yet, as in Redis.
pub const UNAUTHENTICATED_ARGS_MAX: usize = 10;

/// The longest argument of a stranger, in bytes, as in Redis.
pub const UNAUTHENTICATED_BULK_BYTES_MAX: usize = 16 << 10;

/// The largest request that a parser may be told to accept, in bytes: places in it are 32 bits.
pub const REQUEST_BYTES_MAX: usize = 3 << 30;

/// The longest number of a header: `-` and 19 digits, with its mark and its end.
const HEADER_BYTES_MAX: usize = 24;

/// A table of places that a large request has left is given back above this many.
const PLACES_KEPT: usize = 1024;

/// What a parser made of the bytes so far.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum ParseResult {
    /// A whole request; [`RequestParser::args`] has its arguments. None at all (an empty line, `*0`) is
    /// a request that gets no answer.
    Request {
        /// Bytes of the input that it took.
        taken: usize,
    },
    /// More bytes are needed.
    Incomplete {
        /// At least this many more. It comes from the client: no buffer should grow by it before
        /// bytes have come.
        needed: usize,
    },
    /// The client does not speak the protocol: send this, then close.
    ProtocolError(ProtocolError),
}

/// Why a connection is closed. Its text is that of the error reply, without `-` and line end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolError {
    /// The count of arguments is no number, or too large.
    Count,
    /// The length of an argument is no number, negative, or beyond the limit.
    Length,
    /// An argument does not begin with `$` but with this.
    ReplyMark(u8),
    /// An argument is not followed by CR LF.
    End,
    /// An inline line is longer than [`INLINE_BYTES_MAX`].
    InlineTooLong,
    /// Quotes of an inline line do not close.
    Quotes,
    /// The whole request is beyond the limit.
    TooLarge,
    /// A stranger's count.
    UnauthenticatedCount,
    /// A stranger's length.
    UnauthenticatedLength,
    /// An HTTP client that somebody sent here to do his work.
    Http,
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ERR RespVersion error: ")?;
        match self {
            Self::Count => f.write_str("invalid multibulk length"),
            Self::Length => f.write_str("invalid bulk length"),
            Self::ReplyMark(byte) => {
                let byte = if (b' '..0x7f).contains(byte) { char::from(*byte) } else { '?' };
                write!(f, "expected '$', got '{byte}'")
            }
            Self::End => f.write_str("expected CR LF after a bulk"),
            Self::InlineTooLong => f.write_str("too big inline request"),
            Self::Quotes => f.write_str("unbalanced quotes in request"),
            Self::TooLarge => f.write_str("the request is larger than this server's limit"),
            Self::UnauthenticatedCount => f.write_str("unauthenticated multibulk length"),
            Self::UnauthenticatedLength => f.write_str("unauthenticated bulk length"),
            Self::Http => f.write_str("this is no HTTP server"),
        }
    }
}

/// Where an argument begins and ends.
pub(crate) type ArgRange = (u32, u32);

/// The part of a request that comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ParserStep {
    /// Its first byte, then the count of its arguments or an inline line.
    Begin,
    /// The header of the next argument; so many are still to come.
    Header { left: usize },
    /// The bytes of an argument, which end here.
    Bulk { left: usize, end: usize },
    /// The line's end.
    Inline,
}

/// Reads one client's requests, one after the other.
#[derive(Debug)]
pub struct RequestParser {
    request_max: usize,
    is_unauthenticated: bool,
    step: ParserStep,
    /// The first byte that was not read yet.
    at: usize,
    /// An inline line was searched for its end up to here.
    searched: usize,
    ranges: Vec<ArgRange>,
    /// Arguments of an inline line, without their quotes.
    unquoted: Vec<u8>,
    is_inline: bool,
    is_whole: bool,
}

impl RequestParser {
    /// A parser that accepts requests of up to `request_bytes_max` (at most [`REQUEST_BYTES_MAX`]).
    pub fn new(request_bytes_max: usize) -> Self {
        Self {
            request_max: request_bytes_max.min(REQUEST_BYTES_MAX),
            is_unauthenticated: false,
            step: ParserStep::Begin,
            at: 0,
            searched: 0,
            ranges: Vec::new(),
            unquoted: Vec::new(),
            is_inline: false,
            is_whole: false,
        }
    }

    /// Whether the client must still say who it is: until then its requests are kept small.
    pub fn set_unauthenticated(&mut self, is_unauthenticated: bool) {
        self.is_unauthenticated = is_unauthenticated;
    }

    /// Reads on. `input` begins where the request begins, and has at least the bytes that it had at
    /// the last call if that said `Incomplete`. After a request the next call begins a new one.
    #[inline]
    pub fn next(&mut self, input: &[u8]) -> ParseResult {
        if self.is_whole {
            self.begin();
        }
        match self.read(input) {
            Ok(()) => {
                self.is_whole = true;
                ParseResult::Request { taken: self.at }
            }
            Err(ParseStop::Needs(needed)) => ParseResult::Incomplete { needed },
            Err(ParseStop::ProtocolError(broken)) => ParseResult::ProtocolError(broken),
        }
    }

    /// The arguments of the request that was read last, out of the same bytes.
    #[inline]
    pub fn args<'a>(&'a self, input: &'a [u8]) -> Args<'a> {
        let bytes = if self.is_inline { &self.unquoted } else { input };
        Args::new(bytes, &self.ranges)
    }

    /// Bytes that it remembers of a half request, beside the request's own.
    pub fn memory_bytes(&self) -> usize {
        self.ranges.capacity() * size_of::<ArgRange>()
    }

    fn begin(&mut self) {
        self.step = ParserStep::Begin;
        (self.at, self.searched) = (0, 0);
        (self.is_inline, self.is_whole) = (false, false);
        self.ranges.clear();
        if self.ranges.capacity() > PLACES_KEPT {
            self.ranges.shrink_to(PLACES_KEPT);
        }
        if self.unquoted.capacity() > 0 {
            self.unquoted = Vec::new();
        }
    }

    fn read(&mut self, input: &[u8]) -> Result<(), ParseStop> {
        loop {
            self.step = match self.step {
                ParserStep::Begin => match input.first() {
                    None => return Err(ParseStop::Needs(1)),
                    Some(b'*') => self.count(input)?,
                    Some(_) => ParserStep::Inline,
                },
                ParserStep::Header { left: 0 } => return Ok(()),
                ParserStep::Header { left } => self.header(input, left)?,
                ParserStep::Bulk { left, end } => self.bulk(input, left, end)?,
                ParserStep::Inline => return self.inline(input),
            }
        }
    }

    /// `*3`: how many arguments.
    fn count(&mut self, input: &[u8]) -> Result<ParserStep, ParseStop> {
        let (number, after) = number(input, 1, ProtocolError::Count)?;
        let count = match number {
            ..=0 => 0,
            _ => usize::try_from(number).unwrap_or(usize::MAX),
        };
        if count > ARGS_MAX {
            return Err(ParseStop::ProtocolError(ProtocolError::Count));
        }
        if self.is_unauthenticated && count > UNAUTHENTICATED_ARGS_MAX {
            return Err(ParseStop::ProtocolError(ProtocolError::UnauthenticatedCount));
        }
        self.at = after;
        Ok(ParserStep::Header { left: count })
    }

    /// `$3`: how long the next argument is.
    #[inline]
    fn header(&mut self, input: &[u8], left: usize) -> Result<ParserStep, ParseStop> {
        match input.get(self.at) {
            None => return Err(ParseStop::Needs(1)),
            Some(b'$') => {}
            Some(other) => return Err(ParseStop::ProtocolError(ProtocolError::ReplyMark(*other))),
        }
        let (number, after) = number(input, self.at + 1, ProtocolError::Length)?;
        let length =
            usize::try_from(number).map_err(|_| ParseStop::ProtocolError(ProtocolError::Length))?;
        if length > self.request_max {
            return Err(ParseStop::ProtocolError(ProtocolError::Length));
        }
        if self.is_unauthenticated && length > UNAUTHENTICATED_BULK_BYTES_MAX {
            return Err(ParseStop::ProtocolError(ProtocolError::UnauthenticatedLength));
        }
        // So no more than a header is ever read beyond the limit.
        if after + length + 2 > self.request_max {
            return Err(ParseStop::ProtocolError(ProtocolError::TooLarge));
        }
        self.at = after;
        Ok(ParserStep::Bulk { left, end: after + length })
    }

    /// The bytes of an argument and the line end behind them.
    #[inline]
    fn bulk(&mut self, input: &[u8], left: usize, end: usize) -> Result<ParserStep, ParseStop> {
        match input.get(end..end + 2) {
            Some(b"\r\n") => {}
            Some(_) => return Err(ParseStop::ProtocolError(ProtocolError::End)),
            None => return Err(ParseStop::Needs(end + 2 - input.len())),
        }
        self.ranges.push((offset(self.at), offset(end)));
        self.at = end + 2;
        Ok(ParserStep::Header { left: left - 1 })
    }

    /// A line of words, as a person types it.
    fn inline(&mut self, input: &[u8]) -> Result<(), ParseStop> {
        let unsearched = input.get(self.searched..).unwrap_or_default();
        let allowed = (INLINE_BYTES_MAX + 1).saturating_sub(self.searched);
        let Some(found) = unsearched.iter().take(allowed).position(|byte| *byte == b'\n') else {
            if input.len() > INLINE_BYTES_MAX {
                return Err(ParseStop::ProtocolError(ProtocolError::InlineTooLong));
            }
            self.searched = input.len();
            return Err(ParseStop::Needs(1));
        };
        let end = self.searched + found;
        let line = input.get(..end).unwrap_or_default();
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        self.is_inline = true;
        inline::split(line, &mut self.unquoted, &mut self.ranges)?;
        let first = self.args(input).get(0).unwrap_or_default();
        if first.eq_ignore_ascii_case(b"post") || first.eq_ignore_ascii_case(b"host:") {
            return Err(ParseStop::ProtocolError(ProtocolError::Http));
        }
        if self.is_unauthenticated && self.ranges.len() > UNAUTHENTICATED_ARGS_MAX {
            return Err(ParseStop::ProtocolError(ProtocolError::UnauthenticatedCount));
        }
        self.at = end + 1;
        Ok(())
    }
}

/// Why reading stopped before the request's end.
#[derive(Debug)]
enum ParseStop {
    Needs(usize),
    ProtocolError(ProtocolError),
}

/// Places are below [`REQUEST_BYTES_MAX`].
#[inline]
fn offset(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

/// A decimal number from `from` on and the place behind its CR LF, as strict as Redis is: no plus,
/// no leading zero, no blank.
#[inline]
fn number(input: &[u8], from: usize, broken: ProtocolError) -> Result<(i64, usize), ParseStop> {
    let rest = input.get(from..).unwrap_or_default();
    let mut value: i64 = 0;
    for (index, byte) in rest.iter().take(HEADER_BYTES_MAX).enumerate() {
        match byte {
            b'0'..=b'9' => {
                value = value
                    .checked_mul(10)
                    .and_then(|value| value.checked_add(i64::from(byte - b'0')))
                    .ok_or(ParseStop::ProtocolError(broken))?;
            }
            b'-' if index == 0 => {}
            b'\r' => {
                return ended(rest, index, value, broken).map(|value| (value, from + index + 2));
            }
            _ => return Err(ParseStop::ProtocolError(broken)),
        }
    }
    if rest.len() >= HEADER_BYTES_MAX {
        Err(ParseStop::ProtocolError(broken))
    } else {
        Err(ParseStop::Needs(1))
    }
}

/// The number's sign and form, once its CR was seen at `index`.
#[inline]
fn ended(rest: &[u8], index: usize, value: i64, broken: ProtocolError) -> Result<i64, ParseStop> {
    let digits = rest.get(..index).unwrap_or_default();
    let is_well_formed = match digits {
        [] | [b'-'] | [b'-', b'0', ..] => false,
        [b'0', more @ ..] => more.is_empty(),
        _ => true,
    };
    if !is_well_formed {
        return Err(ParseStop::ProtocolError(broken));
    }
    match rest.get(index + 1) {
        None => Err(ParseStop::Needs(1)),
        Some(b'\n') => Ok(if digits.first() == Some(&b'-') { -value } else { value }),
        Some(_) => Err(ParseStop::ProtocolError(broken)),
    }
}
#[cfg(test)]
mod tests;
