//! Floor 0: the words that two floors must agree on. No work, no dependency, no unsafe.

#![forbid(unsafe_code)]

pub mod error;
pub mod invariant;
pub mod limits;

pub use error::{Error, Holder, Result};
