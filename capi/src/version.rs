//! The version of the library, at compile time and at run time.

use std::ffi::{CStr, c_char};

/// The version of this header: incompatible changes.
pub const NS_VERSION_MAJOR: u32 = 0;
/// The version of this header: additions, and before 1.0 also incompatible changes.
pub const NS_VERSION_MINOR: u32 = 1;
/// The version of this header: corrections.
pub const NS_VERSION_PATCH: u32 = 0;

const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");

/// Returns the version of the library that is loaded, such as `0.1.0`. Never NULL. A program that
/// was compiled against a header of another version compares it with the `NS_VERSION_..` macros.
#[unsafe(no_mangle)]
pub extern "C" fn ns_version() -> *const c_char {
    CStr::from_bytes_with_nul(VERSION.as_bytes()).map_or(c"?".as_ptr(), CStr::as_ptr)
}
