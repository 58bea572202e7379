//! Layer 2: the local transport. A client on the node's host obtains descriptors over a Unix socket
//! and exchanges requests and responses over a ring in shared memory. This crate holds what both
//! sides share and the whole client side (`spec/local-transport.md`).
//!
//! It is a crate of its own because both the node and the client APIs use it, and these two do not
//! depend on each other.

#![forbid(unsafe_code)]

mod ring;
mod request;
mod connect;
mod descriptors;

pub use connect::connect;
pub use descriptors::{receive, ring_doorbell, send};
pub use nearstate_memory::{PIPE_BYTES, PipeEnd, PipeInterest, PipeTransfer, RegionFiles};
pub use request::{LocalResource, Response, request_region, request_ring, response_line};
pub use ring::{LocalRing, SPIN};
