//! Floor 2: how a client on the node's host comes near to it: descriptors over a Unix socket, and a
//! ring in shared memory. What both sides of it share, and all of the client's (`spec/local-transport.md`).
//!
//! A crate of its own because the node and the clients' API use it, which do not know each other.

#![forbid(unsafe_code)]

mod ring;
mod ask;
mod connect;
mod pass;

pub use ask::{Answer, Near, answer, ask_region, ask_ring};
pub use connect::connect;
pub use nearstate_memory::{PipeTransfer, PIPE_BYTES, PipeEnd, RegionFiles, PipeInterest};
pub use pass::{call, receive, send};
pub use ring::{LocalRing, SPIN};
