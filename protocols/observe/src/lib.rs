//! Floor 4: what Prometheus and probes ask over HTTP/1.1. `GET` and `HEAD` of `/metrics`, `/health`
//! and `/ready`, and nothing else: no bodies, no encodings, no upgrades. What the pages say is a
//! [`Source`]'s business.
//!
//! ```
//! use nearstate_node::Core;
//! use nearstate_observe::{Report, Source};
//!
//! struct Counts;
//! struct One;
//!
//! impl Source for Counts {
//!     fn report(&self, _: &Core) -> Box<dyn Report> {
//!         Box::new(One)
//!     }
//!     fn readiness(&self) -> Result<(), String> {
//!         Ok(())
//!     }
//! }
//! impl Report for One {
//!     fn step(&mut self, text: &mut String) -> bool {
//!         text.push_str("up 1\n# EOF\n");
//!         false
//!     }
//! }
//! ```

#![forbid(unsafe_code)]

mod protocol;
mod connection;
mod response;
mod request;
mod source;

pub use protocol::ObserveProtocol;
pub use request::{HEAD_BYTES_MAX, HEADERS_MAX};
pub use source::{Report, Source};
