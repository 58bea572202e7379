//! Floor 5: whatever reads bytes of others, fed with bytes that nobody would write. The targets are
//! the tests beside this file: a region's header, the block table of a record, globs, and requests
//! of Redis' wire.
//!
//! Each runs a bounded number of cases with every `cargo test`; `PROPTEST_CASES=1000000` runs more.
//! What is mutated begins as something valid, with its checksums mended afterwards: else only the
//! checksum would be tested.

#![forbid(unsafe_code)]
