//! The node against clients and servers of other projects.

#![expect(clippy::print_stdout, reason = "a test prints what it measured")]

mod differential;
mod go;
mod python;
mod redis_tools;
