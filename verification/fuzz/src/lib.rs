//! Layer 5: every parser of untrusted bytes, fed with bytes that no correct program writes. The
//! targets are the tests beside this file: a region's header, the block table of a record, a
//! divided collection, glob patterns, requests of Redis' protocol, of Nudsf, and messages between
//! hosts.
//!
//! Each test runs a bounded number of cases; `PROPTEST_CASES=1000000` runs more. Mutated input is
//! valid at first, and its checksums are corrected afterwards: otherwise only the checksum would be
//! tested.

#![forbid(unsafe_code)]
