//! Layer 2: a blocking client of Redis' protocol (RESP2 and RESP3) over any byte stream.
//!
//! The server is not trusted: no length in a reply makes the client reserve memory before the bytes
//! have arrived, and every reply is bounded. The parser accepts only the canonical encoding of a
//! value, so two replies are equal exactly if their bytes are equal.
//!
//! A module uses only modules that are listed below it.

#![forbid(unsafe_code)]

pub use client::{RespClient, encode_request};
pub use reply::{NullEncoding, RespReply};
pub use socket::TimeoutSocket;

mod client;
mod reply;
mod socket;
