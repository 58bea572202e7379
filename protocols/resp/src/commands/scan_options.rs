//! Cursors and options of `SCAN`, `HSCAN` and `SSCAN`.

use crate::number::{cursor, integer_or_refuse};
use crate::parse::Args;
use crate::pattern;
use crate::reply::ReplyWriter;
use crate::reply::error_reply::ErrorReply;
use nearstate_store::glob;

/// Default of `COUNT`, as in Redis.
const COUNT: u64 = 10;

/// Limit of the elements of a collection that one call reads, which takes about 100 us. `COUNT` is
/// a hint: clients continue at the cursor.
const ELEMENTS_MAX: u64 = 1000;

/// Options of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ScanOptions<'a> {
    /// Pattern of names; `None` for all.
    pub(super) pattern: Option<&'a [u8]>,
    /// Approximate number of elements to read.
    pub(super) count: u64,
    /// Only records of this type.
    pub(super) record_type: Option<&'a [u8]>,
    /// `NOVALUES` of `HSCAN`.
    pub(super) is_without_values: bool,
}

/// The command whose options are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScanKind {
    Keys,
    Fields,
    Members,
}

/// Parses a cursor.
pub(super) fn read_cursor(text: &[u8]) -> Result<u64, ErrorReply> {
    cursor(text).ok_or(ErrorReply::CURSOR)
}

impl<'a> ScanOptions<'a> {
    /// Parses the arguments after the cursor.
    pub(super) fn read(mut rest: Args<'a>, kind: ScanKind) -> Result<Self, ErrorReply> {
        let mut options =
            Self { pattern: None, count: COUNT, record_type: None, is_without_values: false };
        while let Some(option) = rest.get(0) {
            if kind == ScanKind::Fields && option.eq_ignore_ascii_case(b"novalues") {
                options.is_without_values = true;
                rest = rest.from(1);
                continue;
            }
            let Some(value) = rest.get(1) else { return Err(ErrorReply::SYNTAX) };
            match option.to_ascii_lowercase().as_slice() {
                b"count" => {
                    let count = integer_or_refuse(value)?;
                    let count = u64::try_from(count).map_err(|_| ErrorReply::SYNTAX)?;
                    options.count = if count == 0 { return Err(ErrorReply::SYNTAX) } else { count };
                }
                b"match" => {
                    pattern::validate(value)?;
                    options.pattern = (value != b"*").then_some(value);
                }
                b"type" if kind == ScanKind::Keys => options.record_type = Some(value),
                _ => return Err(ErrorReply::SYNTAX),
            }
            rest = rest.from(2);
        }
        Ok(options)
    }

    /// Elements of a large collection that one call reads.
    pub(super) fn elements(&self) -> u64 {
        self.count.min(ELEMENTS_MAX)
    }

    /// Whether a name matches.
    pub(super) fn matches(&self, name: &[u8]) -> bool {
        self.pattern.is_none_or(|pattern| glob::matches(pattern, name))
    }
}

/// Writes a complete result: cursor 0 and the elements that `each` writes and counts.
pub(super) fn write_single_page(
    reply: &mut ReplyWriter<'_>,
    each: impl FnOnce(&mut ReplyWriter<'_>) -> usize,
) {
    write_page(reply, 0, each);
}

/// Writes the next cursor and the elements that `each` writes and counts.
pub(super) fn write_page(
    reply: &mut ReplyWriter<'_>,
    next: u64,
    each: impl FnOnce(&mut ReplyWriter<'_>) -> usize,
) {
    reply.array(2);
    reply.bulk(next.to_string().as_bytes());
    let mark = reply.mark();
    let elements = each(reply);
    reply.close_array(mark, elements);
}
