//! Programs of `tests/c` that keep promises: compiled once, linked both ways, each promise in a
//! region of its own.

use std::path::PathBuf;

use crate::toolchain::{Installed, Link, succeed};

/// A program, linked statically and dynamically.
pub(crate) struct Program {
    installed: Installed,
    linked: [PathBuf; 2],
}

impl Program {
    pub(crate) fn new(source: &str) -> Self {
        let installed = Installed::new();
        let linked = [Link::Static, Link::Shared].map(|link| installed.compile(source, link));
        Self { installed, linked }
    }

    pub(crate) fn keeps(&self, promise: &str) {
        for program in &self.linked {
            let folder = tempfile::tempdir().unwrap();
            let mut command = self.installed.command(program);
            succeed(command.arg(promise).arg(folder.path().join("region")));
        }
    }
}

/// The promises that the source of a program has.
pub(crate) fn promised(source: &str) -> Vec<&str> {
    let names = source.lines().filter_map(|line| line.trim().strip_prefix("PROMISE("));
    names.filter_map(|rest| rest.strip_suffix("),")).collect()
}

/// Each promise of a program in `tests/c` as a test of its own, and one test that none of them is
/// left out.
macro_rules! kept_in_c {
    ($source:literal: $($promise:ident)*) => {
        static PROGRAM: std::sync::LazyLock<promises::Program> = std::sync::LazyLock::new(|| {
            promises::Program::new(concat!("capi/tests/", $source))
        });

        $(#[test]
        fn $promise() {
            PROGRAM.keeps(stringify!($promise));
        })*

        #[test]
        fn no_promise_of_the_c_program_is_left_out() {
            assert_eq!(promises::promised(include_str!($source)), [$(stringify!($promise)),*]);
        }
    };
}
pub(crate) use kept_in_c;
