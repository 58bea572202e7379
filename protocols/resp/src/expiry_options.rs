//! The expiration options `EX`, `PX`, `EXAT` and `PXAT`.

use crate::number::integer;
use crate::reply::error_reply::ErrorReply;

/// Unit and origin of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpiryUnit {
    /// True for seconds, false for milliseconds.
    pub is_seconds: bool,
    /// True for Unix time, false for a time to live.
    pub is_absolute: bool,
}

impl ExpiryUnit {
    /// The unit of an option, in any case.
    pub fn of(option: &[u8]) -> Option<Self> {
        let unit = |is_seconds, is_absolute| Some(Self { is_seconds, is_absolute });
        match option.to_ascii_uppercase().as_slice() {
            b"EX" => unit(true, false),
            b"PX" => unit(false, false),
            b"EXAT" => unit(true, true),
            b"PXAT" => unit(false, true),
            _ => None,
        }
    }

    /// Expiration time in Unix milliseconds, from a positive number. `now_ms`: by the clock of the
    /// region ([`Session::now_ms`](nearstate_store::Session::now_ms)).
    ///
    /// # Errors
    /// `ERR value is not an integer ..` or `ERR invalid expire time in '{name}' command`.
    pub fn end(self, number: &[u8], name: &str, now_ms: u64) -> Result<u64, ErrorReply> {
        let number = integer(number).ok_or(ErrorReply::NOT_INTEGER)?;
        if number <= 0 {
            return Err(ErrorReply::expire_time(name));
        }
        self.end_of(number, now_ms)
            .and_then(|ms| u64::try_from(ms).ok())
            .ok_or(ErrorReply::expire_time(name))
    }

    /// Expiration time in Unix milliseconds, possibly in the past; `None` if it exceeds 64 bits.
    pub fn end_of(self, number: i64, now_ms: u64) -> Option<i64> {
        let ms = if self.is_seconds { number.checked_mul(1000)? } else { number };
        if self.is_absolute {
            return Some(ms);
        }
        ms.checked_add(i64::try_from(now_ms).ok()?)
    }
}
