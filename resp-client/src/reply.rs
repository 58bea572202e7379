//! A reply of RESP2 or RESP3.

use std::fmt;

/// The three encodings of "no value".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NullEncoding {
    /// RESP2's `$-1`.
    Bulk,
    /// RESP2's `*-1`.
    Array,
    /// RESP3's `_`.
    Resp3,
}

/// One reply. Two replies are equal exactly if their bytes are equal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RespReply {
    /// `+OK`
    Simple(Vec<u8>),
    /// `-ERR text`
    Error(Vec<u8>),
    /// `:1`
    Integer(i64),
    /// `,1.5`, as text.
    Double(Vec<u8>),
    /// `(123`, as text.
    BigNumber(Vec<u8>),
    /// `#t`
    Boolean(bool),
    /// `$2`: a string of any bytes.
    Bulk(Vec<u8>),
    /// `=7`: a string with a format prefix.
    Verbatim(Vec<u8>),
    /// No value.
    Null(NullEncoding),
    /// `*2`
    Array(Vec<Self>),
    /// `%1`: keys and values in turn.
    Map(Vec<Self>),
    /// `~2`
    Set(Vec<Self>),
    /// `>2`: a message that no request asked for.
    Push(Vec<Self>),
}

impl RespReply {
    /// The first byte of the reply's encoding, which names its type.
    pub const fn type_byte(&self) -> u8 {
        match self {
            Self::Simple(_) => b'+',
            Self::Error(_) => b'-',
            Self::Integer(_) => b':',
            Self::Double(_) => b',',
            Self::BigNumber(_) => b'(',
            Self::Boolean(_) => b'#',
            Self::Bulk(_) | Self::Null(NullEncoding::Bulk) => b'$',
            Self::Verbatim(_) => b'=',
            Self::Null(NullEncoding::Resp3) => b'_',
            Self::Array(_) | Self::Null(NullEncoding::Array) => b'*',
            Self::Map(_) => b'%',
            Self::Set(_) => b'~',
            Self::Push(_) => b'>',
        }
    }

    /// The elements of an array, map, set or push message. Other replies have none.
    pub fn items(&self) -> &[Self] {
        match self {
            Self::Array(items) | Self::Map(items) | Self::Set(items) | Self::Push(items) => items,
            Self::Simple(_)
            | Self::Error(_)
            | Self::Integer(_)
            | Self::Double(_)
            | Self::BigNumber(_)
            | Self::Boolean(_)
            | Self::Bulk(_)
            | Self::Verbatim(_)
            | Self::Null(_) => &[],
        }
    }

    /// True for `+OK`.
    pub fn is_ok(&self) -> bool {
        matches!(self, Self::Simple(text) if text == b"OK")
    }

    /// The bytes of a bulk string, or `None` for a null.
    ///
    /// # Errors
    /// The reply as text if it is neither.
    pub fn into_bulk(self) -> Result<Option<Vec<u8>>, String> {
        if let Self::Bulk(bytes) = self {
            return Ok(Some(bytes));
        }
        let is_null = matches!(self, Self::Null(_));
        if is_null { Ok(None) } else { Err(format!("expected a bulk string, received {self}")) }
    }
}

/// Bytes of a string that [`RespReply`]'s `Display` shows.
const SHOWN_BYTES_MAX: usize = 120;

fn write_quoted(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    let shown = bytes.get(..SHOWN_BYTES_MAX).unwrap_or(bytes);
    write!(f, "\"{}\"", shown.escape_ascii())?;
    if shown.len() < bytes.len() {
        write!(f, "... {} bytes", bytes.len())?;
    }
    Ok(())
}

impl fmt::Display for RespReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = char::from(self.type_byte());
        match self {
            Self::Simple(text) | Self::Error(text) | Self::Double(text) | Self::BigNumber(text) => {
                write!(f, "{kind}{}", text.escape_ascii())
            }
            Self::Integer(number) => write!(f, "{kind}{number}"),
            Self::Boolean(is_true) => write!(f, "{kind}{}", if *is_true { 't' } else { 'f' }),
            Self::Bulk(bytes) | Self::Verbatim(bytes) => write_quoted(f, bytes),
            Self::Null(NullEncoding::Resp3) => write!(f, "_"),
            Self::Null(NullEncoding::Bulk | NullEncoding::Array) => write!(f, "{kind}-1"),
            Self::Array(items) | Self::Map(items) | Self::Set(items) | Self::Push(items) => {
                let count =
                    if matches!(self, Self::Map(_)) { items.len() / 2 } else { items.len() };
                write!(f, "{kind}{count}[")?;
                for (index, item) in items.iter().enumerate() {
                    write!(f, "{}{item}", if index > 0 { ", " } else { "" })?;
                }
                write!(f, "]")
            }
        }
    }
}
