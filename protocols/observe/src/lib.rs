//! Layer 4: metrics and probes over HTTP/1.1. Serves `GET` and `HEAD` of `/metrics`, `/health` and
//! `/ready`, without request bodies, encodings or upgrades. An [`ObserveSource`] provides the
//! contents.
//!
//! ```
//! use nearstate_node::Core;
//! use nearstate_observe::{MetricsReport, ObserveSource};
//!
//! struct Counts;
//! struct One;
//!
//! impl ObserveSource for Counts {
//!     fn report(&self, _: &Core) -> Box<dyn MetricsReport> {
//!         Box::new(One)
//!     }
//!     fn readiness(&self) -> Result<(), String> {
//!         Ok(())
//!     }
//! }
//! impl MetricsReport for One {
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
pub use source::{MetricsReport, ObserveSource};
