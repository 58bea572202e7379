//! The `nearstate` program, run as a process: `serve`, `top`, `bench` and `torture`.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test fails by panicking, and prints what it measured"
)]

mod bench_presets;
mod bench_run;
mod cluster;
mod cluster_certificates;
mod cluster_check;
mod cluster_clocks;
mod cluster_drain;
mod cluster_files;
mod cluster_guide;
mod cluster_levels;
mod cluster_members;
mod cluster_new_membership;
mod cluster_nudsf;
mod cluster_operate;
mod cluster_realtime;
mod cluster_sites;
mod cluster_space;
mod bench_micro;
mod conformance;
mod fixture;
mod follow;
mod hostile;
mod interfaces;
mod numa;
mod serve;
mod torture;
