//! The engine that lets etcd order the commands (`docs/decisions/030-etcd.md`).

mod engine;
mod client;
mod gateway;
mod applied;
mod keys;

pub use engine::EtcdEngine;
pub use gateway::EtcdEndpoint;
pub use gateway::EtcdSettings;
pub use gateway::EtcdUser;
