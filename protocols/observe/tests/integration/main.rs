//! Integration tests of the observe crate.

mod http;
