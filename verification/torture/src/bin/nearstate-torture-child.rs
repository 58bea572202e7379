//! The child program of the tests, as `nearstate torture-child` is of `nearstate torture`.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    nearstate_torture::child::main(&words)
}
