//! Messages through frames and back, damaged frames, limits, and the bytes of the format.

#![expect(clippy::indexing_slicing, reason = "a test fails by panicking")]

mod damage;
mod fixture;
mod format;
mod limits;
mod round_trip;
