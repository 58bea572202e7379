//! Machines of many kinds: reading their topologies, and what is planned for them.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a failure here fails the test that called it"
)]

mod machines;
mod reading;
mod bad_input;
mod oracle;
mod plans;
mod baselines;
mod kubernetes;
mod drawing;
mod tools;
mod packing;
mod replanning;
mod properties;
