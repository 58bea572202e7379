//! Every workload and the updates of a record, against a region.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::panic_in_result_fn, reason = "a test fails by panicking")]

mod update;
mod workloads;
