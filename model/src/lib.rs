//! Layer 0: the definitions that several layers share: errors, limits and the invariant macro.
//! Contains no algorithms, no dependencies and no unsafe code.

#![forbid(unsafe_code)]

pub mod error;
pub mod heap_usage;
pub mod holder;
pub mod invariant;
pub mod limits;

pub use error::{Error, Result};
pub use heap_usage::{HeapUsage, HeldBack, KeptInOperation};
pub use holder::Holder;
