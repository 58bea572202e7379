//! The integration tests of the crate, in one binary.

#![forbid(unsafe_code)]

mod conversions;
mod five_g;
mod properties;
mod spec;
mod table;
