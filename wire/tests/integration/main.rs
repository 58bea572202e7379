//! Messages through frames and back, damaged frames, limits, and the bytes of the format.

mod damage;
mod fixture;
mod format;
mod limits;
mod round_trip;
