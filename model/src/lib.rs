//! Layer 0: the definitions that several layers share: errors, limits, the invariant macro, and a
//! list of mostly one value. Contains no algorithms, no dependencies and no unsafe code.

#![forbid(unsafe_code)]

pub mod error;
pub mod heap_usage;
pub mod holder;
pub mod invariant;
pub mod limits;
pub mod one_or_many;

pub use error::{Error, Result};
pub use heap_usage::{HeapUsage, HeldBack, KeptInOperation};
pub use holder::Holder;
pub use one_or_many::OneOrMany;
