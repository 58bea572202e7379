//! The tasks of this workspace: `cargo xtask help` lists them.
//!
//! The checks read the sources as text and as tokens; none of them needs the network. A check
//! returns [`finding::Finding`]s: the place, the problem, and the correction.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "a command line tool prints to standard output")]

mod help;
mod gate;
mod demo;
mod soak;
mod guest;
mod suites;
mod watchdog;
mod figures;
mod instructions;
mod packages;
mod header;
mod deny;
mod tidy;
mod layers;
mod workspace;
mod rust_source;
mod run;
mod finding;
#[cfg(test)]
mod planted;

use std::process::ExitCode;

/// True if a word asks for help: as the task, or behind one, which is then not run.
fn is_help(word: &str) -> bool {
    matches!(word, "help" | "--help" | "-h")
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (name, rest) = match words.split_first() {
        Some((name, rest)) => (name.as_str(), rest),
        None => ("help", &[][..]),
    };
    let done = match name {
        name if is_help(name) || rest.iter().any(|word| is_help(word)) => {
            help::print();
            Ok(true)
        }
        "gate" => run::root().and_then(|root| gate::all(&root, rest)),
        "test" => run::root().and_then(|root| suites::all(&root, rest)),
        "soak" => run::root().and_then(|root| soak::run(&root, rest)),
        "demo" => run::root().and_then(|root| demo::run(&root, rest)),
        "instructions" => run::root().and_then(|root| instructions::all(&root, rest)),
        "packages" => packages::install_missing(packages::ALL).map(|()| true),
        "header" if rest.iter().any(|word| word == "--write") => {
            run::root().and_then(|root| header::write(&root)).map(|()| true)
        }
        check => run::root().and_then(|root| gate::one(&root, check)),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            println!("xtask {name}: {why}");
            ExitCode::FAILURE
        }
    }
}
