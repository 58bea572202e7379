//! The rules of a cluster, one by one: commands, configurations, states, and a host's steps.

mod codec;
mod config;
mod fixture;
mod group;
mod model;
