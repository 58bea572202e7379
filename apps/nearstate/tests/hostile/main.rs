//! Clients that mean harm, or are broken, at a node of its own process: each is held to its bounds
//! or sent away, others are served as before, files and memory come back.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test fails by panicking, and prints what it has measured"
)]

#[expect(dead_code, reason = "the tests of settings use the rest")]
#[path = "../serve/node.rs"]
mod node;
mod crowds;
mod target;
mod words;
