//! The rules of a cluster, one by one: commands, configurations, states, and a host's steps.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod behind;
mod codec;
mod config;
mod fixture;
mod former_owner;
mod group;
mod group_changes;
mod handed_over;
mod levels;
mod older_region;
mod operator;
mod promoting;
mod restored;
mod sealed_copies;
mod takeovers;
mod two_hosts;
