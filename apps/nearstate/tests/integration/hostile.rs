//! Malicious and broken clients of a node in its own process: limits apply to each, other clients
//! are served as before, and files and memory are released.

mod crowds;
mod target;
mod words;
