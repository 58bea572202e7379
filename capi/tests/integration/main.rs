//! The library as C and C++ programs use it: installed, compiled against with every warning an
//! error, linked statically and dynamically, and run.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test fails by panicking, and prints what it measured"
)]

mod api;
mod fixture;
mod for_update;
mod header;
mod namespaces;
mod protocol_stack;
mod quick_start;
mod sm_sessions;
mod tags;
mod threads;
mod transactions;
mod watches;
