//! Byte ranges of C callers and their conversion to slices, bounded by limits.

use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::slice;

use nearstate_model::limits::{
    BLOCKS_MAX, KEY_BYTES_MAX, TAG_NAME_BYTES_MAX, TAG_VALUE_BYTES_MAX, TAGS_DECLARED_MAX,
    TAGS_MAX, TRANSACTION_BYTES_MAX, TRANSACTION_RECORDS_MAX, VALUE_BYTES_MAX,
};
use nearstate_model::{Error, Result};

/// A range of bytes, which may contain NULs. Passed by value. It neither copies nor owns the bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ns_bytes {
    /// The first byte. NULL only if `len` is 0.
    pub data: *const u8,
    /// The number of bytes.
    pub len: usize,
}

/// Maximum length of a key, in bytes. A key may be empty.
pub const NS_KEY_BYTES_MAX: usize = 4096;
/// Maximum size of a value or block, in bytes.
pub const NS_VALUE_BYTES_MAX: usize = 134_217_728;
/// Maximum number of blocks of a record.
pub const NS_BLOCKS_MAX: usize = 1024;
/// Maximum number of records and objects of a transaction, index records included.
pub const NS_TRANSACTION_RECORDS_MAX: usize = 4096;
/// Maximum number of bytes that a transaction writes.
pub const NS_TRANSACTION_BYTES_MAX: usize = 268_435_456;
/// Maximum number of tag values of a record, over all its tags.
pub const NS_TAGS_MAX: usize = 64;
/// Maximum length of the name of a tag, in bytes.
pub const NS_TAG_NAME_BYTES_MAX: usize = 255;
/// Maximum length of a value of a tag, in bytes.
pub const NS_TAG_VALUE_BYTES_MAX: usize = 1024;
/// Maximum number of tags that a namespace declares.
pub const NS_TAGS_DECLARED_MAX: usize = 32;

const _: () = assert!(
    NS_KEY_BYTES_MAX == KEY_BYTES_MAX
        && NS_VALUE_BYTES_MAX == VALUE_BYTES_MAX
        && NS_BLOCKS_MAX == BLOCKS_MAX
        && NS_TRANSACTION_RECORDS_MAX == TRANSACTION_RECORDS_MAX
        && NS_TRANSACTION_BYTES_MAX == TRANSACTION_BYTES_MAX
        && NS_TAGS_MAX == TAGS_MAX
        && NS_TAG_NAME_BYTES_MAX == TAG_NAME_BYTES_MAX
        && NS_TAG_VALUE_BYTES_MAX == TAG_VALUE_BYTES_MAX
        && NS_TAGS_DECLARED_MAX == TAGS_DECLARED_MAX,
    "the limits of the header must equal those of the model"
);

/// Maximum length of a pattern: a key in which every byte is escaped and negated.
const PATTERN_BYTES_MAX: usize = 4 * KEY_BYTES_MAX;

impl ns_bytes {
    /// An empty range.
    pub(crate) const EMPTY: Self = Self { data: std::ptr::null(), len: 0 };

    /// The range of a slice. The pointer is valid as long as the slice.
    pub(crate) const fn of(bytes: &[u8]) -> Self {
        Self { data: bytes.as_ptr(), len: bytes.len() }
    }

    /// Reads a key.
    ///
    /// # Safety
    /// Rule 2, for the lifetime `'a`.
    pub(crate) unsafe fn key<'a>(self) -> Result<&'a [u8]> {
        if self.len > KEY_BYTES_MAX {
            return Err(Error::KeyTooLarge { bytes: self.len });
        }
        // SAFETY: the caller's guarantee is passed on; the length is within a limit.
        unsafe { self.slice("the key's bytes") }
    }

    /// Reads a value or a block.
    ///
    /// # Safety
    /// Rule 2, for the lifetime `'a`.
    pub(crate) unsafe fn value<'a>(self) -> Result<&'a [u8]> {
        if self.len > VALUE_BYTES_MAX {
            return Err(Error::ValueTooLarge { bytes: self.len });
        }
        // SAFETY: the caller's guarantee is passed on; the length is within a limit.
        unsafe { self.slice("the value's bytes") }
    }

    /// Reads a prefix or a glob pattern.
    ///
    /// # Safety
    /// Rule 2, for the lifetime `'a`.
    pub(crate) unsafe fn pattern<'a>(self) -> Result<&'a [u8]> {
        if self.len > PATTERN_BYTES_MAX {
            return Err(Error::BadArgument {
                detail: format!(
                    "pattern of {} bytes is too long: the maximum is {PATTERN_BYTES_MAX}",
                    self.len
                ),
            });
        }
        // SAFETY: the caller's guarantee is passed on; the length is within a limit.
        unsafe { self.slice("the pattern's bytes") }
    }

    /// Reads the name of a namespace or of a block.
    ///
    /// # Safety
    /// Rule 2, for the lifetime `'a`.
    pub(crate) unsafe fn name<'a>(self) -> Result<&'a str> {
        if self.len > KEY_BYTES_MAX {
            return Err(Error::BadName { bytes: self.len });
        }
        // SAFETY: the caller's guarantee is passed on; the length is within a limit.
        let bytes = unsafe { self.slice("the name's bytes") }?;
        str::from_utf8(bytes).map_err(|_| Error::BadArgument {
            detail: "the name is not valid UTF-8: names of namespaces, blocks and tags are text"
                .to_owned(),
        })
    }

    /// # Safety
    /// Rule 2, for the lifetime `'a`; `len` is at most a limit below `isize::MAX`.
    unsafe fn slice<'a>(self, what: &str) -> Result<&'a [u8]> {
        match (self.data.is_null(), self.len) {
            (_, 0) => Ok(&[]),
            (true, _) => Err(null(what)),
            // SAFETY: not NULL, `u8` is always aligned, and the caller guarantees `len` bytes.
            (false, len) => Ok(unsafe { slice::from_raw_parts(self.data, len) }),
        }
    }
}

/// Reads a path, which ends with a NUL.
///
/// # Safety
/// NULL, or a text that ends with a NUL and does not change during the lifetime `'a`.
pub(crate) unsafe fn path<'a>(text: *const c_char) -> Result<&'a Path> {
    if text.is_null() {
        return Err(null("the path"));
    }
    // SAFETY: not NULL, and the caller guarantees the NUL at the end.
    let text = unsafe { CStr::from_ptr(text) };
    if text.is_empty() {
        let detail = "the path is empty: give the path of a region's file".to_owned();
        return Err(Error::BadArgument { detail });
    }
    Ok(Path::new(OsStr::from_bytes(text.to_bytes())))
}

/// The error for a NULL pointer.
#[cold]
pub(crate) fn null(what: &str) -> Error {
    Error::BadArgument { detail: format!("{what}: the pointer is NULL") }
}

/// Returns the bytes of a text without its NUL, or an empty range if `text` is NULL.
///
/// # Safety
/// Rule 2: NULL, or a text that ends with a NUL. The result points into it.
#[unsafe(no_mangle)]
pub const unsafe extern "C" fn ns_text(text: *const c_char) -> ns_bytes {
    if text.is_null() {
        return ns_bytes::EMPTY;
    }
    // SAFETY: not NULL, and rule 2 guarantees the NUL at the end.
    let text = unsafe { CStr::from_ptr(text) };
    ns_bytes::of(text.to_bytes())
}
