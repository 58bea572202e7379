//! Incremental parser of requests: arrays of bulk strings (RESP2 and RESP3) and inline commands.
//!
//! The caller keeps the bytes of a request until it is complete and passes them from the first byte
//! at each call. The parser remembers its position, so that a request in a thousand pieces is
//! scanned once. Lengths sent by the client are checked against the limits; no memory is allocated
//! for them.

mod complete;
mod inline;
mod args;

pub use args::{Args, OwnedArgs};

use std::fmt;
use std::ops::Range;

/// Maximum number of arguments, as in Redis. More are a protocol error.
pub const ARGS_MAX: usize = 1 << 20;

/// Maximum bytes of an inline request and of a line with a number, as in Redis.
pub const INLINE_BYTES_MAX: usize = 64 << 10;

/// Maximum number of arguments of unauthenticated clients, as in Redis.
pub const UNAUTHENTICATED_ARGS_MAX: usize = 10;

/// Maximum bytes of an argument of unauthenticated clients, as in Redis.
pub const UNAUTHENTICATED_BULK_BYTES_MAX: usize = 16 << 10;

/// Upper limit of the configurable request size: offsets have 32 bits.
pub const REQUEST_BYTES_MAX: usize = 3 << 30;

/// Longest header: `-` and 19 digits with type byte and line end.
const HEADER_BYTES_MAX: usize = 24;

/// Requests that are parsed together: as many records as a processor can load concurrently.
pub const TOGETHER_MAX: usize = 16;

/// Arguments of requests that are parsed together: those of 16 usual ones, and 2 KiB of memory.
const TOGETHER_ARGS_MAX: usize = 256;

/// Bytes of requests that are parsed together: 16 of 64 KiB.
const TOGETHER_BYTES_MAX: usize = 1 << 20;

/// Capacity that the parser keeps after a large request.
const PLACES_KEPT: usize = 1024;

/// Result of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum ParseResult {
    /// A complete request; [`RequestParser::args`] returns its arguments. A request without
    /// arguments (an empty line, `*0`) has no reply.
    Request {
        /// Bytes of the input that it used.
        taken: usize,
    },
    /// More bytes are needed.
    Incomplete {
        /// At least this many. The client determines the number, so do not allocate it in advance.
        needed: usize,
    },
    /// The input is invalid: send this error, then close the connection.
    ProtocolError(ProtocolError),
}

/// A violation of the protocol. Its text is that of the error reply, without `-` and line end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolError {
    /// The number of arguments is invalid or too large.
    Count,
    /// The length of an argument is invalid, negative or too large.
    Length,
    /// An argument starts with this byte instead of `$`.
    ReplyMark(u8),
    /// CR LF is missing after an argument.
    End,
    /// An inline request is longer than [`INLINE_BYTES_MAX`].
    InlineTooLong,
    /// Unbalanced quotes in an inline request.
    Quotes,
    /// The request exceeds its limit.
    TooLarge,
    /// Too many arguments of an unauthenticated client.
    UnauthenticatedCount,
    /// An argument of an unauthenticated client is too long.
    UnauthenticatedLength,
    /// An HTTP request, possibly a cross-protocol attack.
    Http,
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ERR Protocol error: ")?;
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

/// Start and end of an argument.
pub(crate) type ArgRange = (u32, u32);

/// The next part of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ParserStep {
    /// The first byte.
    Begin,
    /// The header of an argument; `left` arguments remain.
    Header { left: usize },
    /// The bytes of an argument up to `end`.
    Bulk { left: usize, end: usize },
    /// The rest of an inline request.
    Inline,
}

/// A request that is parsed before it is the next one.
#[derive(Clone, Copy, Debug)]
struct ParsedRequest {
    /// Its first byte in the input of the request with which it was parsed.
    from: u32,
    to: u32,
    /// The end of its arguments in the ranges.
    ranges_end: u32,
}

/// Parses the requests of one client.
#[derive(Debug)]
pub struct RequestParser {
    request_max: usize,
    is_unauthenticated: bool,
    step: ParserStep,
    /// Offset of the next byte.
    at: usize,
    /// End of the searched part of an inline request.
    searched: usize,
    /// The arguments of the last request, and of those that are parsed already.
    ranges: Vec<ArgRange>,
    /// The part of the ranges that is the last request's.
    own: Range<usize>,
    /// The requests that were parsed with another one, and the number of the next one.
    parsed: Vec<ParsedRequest>,
    next_parsed: usize,
    /// Arguments of an inline request without quotes.
    unquoted: Vec<u8>,
    is_inline: bool,
    is_whole: bool,
}

impl RequestParser {
    /// A parser for requests of at most `request_bytes_max` bytes (at most [`REQUEST_BYTES_MAX`]).
    pub fn new(request_bytes_max: usize) -> Self {
        Self {
            request_max: request_bytes_max.min(REQUEST_BYTES_MAX),
            is_unauthenticated: false,
            step: ParserStep::Begin,
            at: 0,
            searched: 0,
            ranges: Vec::new(),
            own: 0..0,
            parsed: Vec::new(),
            next_parsed: 0,
            unquoted: Vec::new(),
            is_inline: false,
            is_whole: false,
        }
    }

    /// Sets whether the client is unauthenticated, which lowers the limits.
    pub fn set_unauthenticated(&mut self, is_unauthenticated: bool) {
        if is_unauthenticated {
            // The lower limits hold for those as well.
            self.parsed.clear();
        }
        self.is_unauthenticated = is_unauthenticated;
    }

    /// Continues. `input` starts with the request, and after `Incomplete` it contains the previous
    /// bytes and more. After a complete request the next call starts a new one.
    #[inline]
    pub fn next(&mut self, input: &[u8]) -> ParseResult {
        if let Some(next) = self.parsed.get(self.next_parsed) {
            let taken = next.to.saturating_sub(next.from) as usize;
            debug_assert!(input.len() >= taken, "the input that was parsed");
            self.own = self.own.end..next.ranges_end as usize;
            self.next_parsed += 1;
            return ParseResult::Request { taken };
        }
        match self.next_complete(input) {
            Some(taken) => ParseResult::Request { taken },
            None => self.next_in_steps(input),
        }
    }

    /// A request that is complete and ordinary, in one pass. `None`, without an effect, for any
    /// other request: the steps of [`RequestParser::read`] know what is missing or wrong.
    #[inline(never)]
    fn next_complete(&mut self, input: &[u8]) -> Option<usize> {
        if self.is_whole {
            self.begin();
        }
        if self.step != ParserStep::Begin || self.is_unauthenticated {
            return None;
        }
        let taken = self.complete(input)?;
        (self.own, self.at, self.is_whole) = (0..self.ranges.len(), taken, true);
        Some(taken)
    }

    #[inline(never)]
    fn next_in_steps(&mut self, input: &[u8]) -> ParseResult {
        match self.read(input) {
            Ok(()) => {
                self.is_whole = true;
                self.own = 0..self.ranges.len();
                ParseResult::Request { taken: self.at }
            }
            Err(ParseStop::Needs(needed)) => ParseResult::Incomplete { needed },
            Err(ParseStop::ProtocolError(broken)) => ParseResult::ProtocolError(broken),
        }
    }

    /// The arguments of the last request, from the same input.
    #[inline]
    pub fn args<'a>(&'a self, input: &'a [u8]) -> Args<'a> {
        let bytes = if self.is_inline { &self.unquoted } else { input };
        Args::new(bytes, self.ranges.get(self.own.clone()).unwrap_or_default())
    }

    /// Parses the complete requests that follow the last one in the same input, until
    /// [`TOGETHER_MAX`] are. Returns whether there are any. The next calls of
    /// [`RequestParser::next`] return them; their input begins with them. Does nothing after a
    /// request that it has parsed, after one that is inline or has no arguments, and for
    /// unauthenticated clients.
    #[inline]
    pub fn parse_following(&mut self, input: &[u8]) -> bool {
        // The arguments of a request that was parsed already are behind those of another one.
        let is_first = self.own.start == 0 && self.own.end > 0;
        is_first && self.parse_together(input)
    }

    #[inline(never)]
    fn parse_together(&mut self, input: &[u8]) -> bool {
        if !self.is_whole || self.is_inline || self.is_unauthenticated {
            return false;
        }
        let input = input.get(..TOGETHER_BYTES_MAX).unwrap_or(input);
        let mut at = self.at;
        self.parsed.clear();
        self.next_parsed = 0;
        while self.parsed.len() + 1 < TOGETHER_MAX && self.ranges.len() < TOGETHER_ARGS_MAX {
            let rest = input.get(at..).unwrap_or_default();
            let Some(taken) = self.complete(rest) else { break };
            let (from, to) = (offset(at), offset(at + taken));
            self.parsed.push(ParsedRequest { from, to, ranges_end: offset(self.ranges.len()) });
            at += taken;
        }
        !self.parsed.is_empty()
    }

    /// The arguments of the last request and of those that [`RequestParser::parse_following`] has
    /// parsed, from the same input.
    pub(crate) fn parsed<'a>(&'a self, input: &'a [u8]) -> impl Iterator<Item = Args<'a>> {
        let mut ranges_from = self.own.end;
        let following = self.parsed.iter().map(move |next| {
            let bytes = input.get(next.from as usize..next.to as usize).unwrap_or_default();
            let own = ranges_from..next.ranges_end as usize;
            ranges_from = own.end;
            Args::new(bytes, self.ranges.get(own).unwrap_or_default())
        });
        std::iter::once(self.args(input)).chain(following)
    }

    /// Memory overhead of an incomplete request.
    pub fn memory_bytes(&self) -> usize {
        self.ranges.capacity() * size_of::<ArgRange>()
            + self.parsed.capacity() * size_of::<ParsedRequest>()
    }

    #[inline]
    fn begin(&mut self) {
        self.step = ParserStep::Begin;
        (self.at, self.searched) = (0, 0);
        (self.is_inline, self.is_whole) = (false, false);
        self.ranges.clear();
        if self.holds_memory() {
            self.release();
        }
    }

    /// Whether it holds memory of a large or inline request.
    #[inline]
    fn holds_memory(&self) -> bool {
        self.ranges.capacity() > PLACES_KEPT || self.unquoted.capacity() > 0
    }

    #[cold]
    fn release(&mut self) {
        self.ranges.shrink_to(PLACES_KEPT);
        self.unquoted = Vec::new();
    }

    /// The caller has taken all input. Releases what the last request needed.
    #[inline]
    pub fn end_input(&mut self) {
        if self.holds_memory() {
            self.begin();
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

    /// The bytes of a complete request within the limit, whose arguments are appended.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the path of every request")]
    fn complete(&mut self, input: &[u8]) -> Option<usize> {
        let before = self.ranges.len();
        let taken = complete::read(input, &mut self.ranges)?;
        if taken > self.request_max {
            self.ranges.truncate(before);
            return None;
        }
        Some(taken)
    }

    /// `*3`: the number of arguments.
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

    /// `$3`: the length of the next argument.
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
        // At most a header is read beyond the limit.
        if after + length + 2 > self.request_max {
            return Err(ParseStop::ProtocolError(ProtocolError::TooLarge));
        }
        self.at = after;
        Ok(ParserStep::Bulk { left, end: after + length })
    }

    /// The bytes of an argument and the line end.
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

    /// An inline request.
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
        let first = Args::new(&self.unquoted, &self.ranges).get(0).unwrap_or_default();
        if first.eq_ignore_ascii_case(b"post") || first.eq_ignore_ascii_case(b"host:") {
            return Err(ParseStop::ProtocolError(ProtocolError::Http));
        }
        if self.is_unauthenticated && self.ranges.len() > UNAUTHENTICATED_ARGS_MAX {
            return Err(ParseStop::ProtocolError(ProtocolError::UnauthenticatedCount));
        }
        let is_long = |&(from, end): &ArgRange| {
            end.saturating_sub(from) as usize > UNAUTHENTICATED_BULK_BYTES_MAX
        };
        if self.is_unauthenticated && self.ranges.iter().any(is_long) {
            return Err(ParseStop::ProtocolError(ProtocolError::UnauthenticatedLength));
        }
        self.at = end + 1;
        Ok(())
    }
}

/// Why parsing stopped before the end of the request.
#[derive(Debug)]
enum ParseStop {
    Needs(usize),
    ProtocolError(ProtocolError),
}

/// Offsets are below [`REQUEST_BYTES_MAX`].
#[inline]
fn offset(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

/// A decimal number and the offset after its CR LF. As strict as Redis: no plus sign, leading zeros
/// or spaces.
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

/// Validates sign and form of a number once its CR was found at `index`.
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
