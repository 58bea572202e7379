//! Engines of several hosts in one process, over loopback connections.

mod fixture;
mod failures;
mod hostile;
mod raft;
