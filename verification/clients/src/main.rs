//! The long tests of the node with clients: `cargo xtask soak clients`, `cargo xtask soak tcl` and
//! `cargo xtask soak nudsf` start this program.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "a command line tool prints to standard output")]

use std::process::ExitCode;

use nearstate_clients::{nudsf, soak, tcl_units};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["clients"] => soak::run(None),
        ["clients", "--only", name] => soak::run(Some(name)),
        ["tcl"] => tcl_units::run(None),
        ["tcl", "--only", name] => tcl_units::run(Some(name)),
        ["nudsf"] => nudsf::run(None),
        ["nudsf", "--only", name] => nudsf::run(Some(name)),
        _ => Err("run `nearstate-clients clients|tcl|nudsf [--only NAME]`".to_owned()),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}
