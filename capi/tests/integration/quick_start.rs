//! The example of the README in C: it compiles and runs, and the README has the same text.

use crate::fixture::{Installed, Linkage, succeed};

#[test]
fn the_quick_start_puts_and_reads_a_record() {
    let installed = Installed::new();
    let program = installed.compile("clients/c/examples/quick_start.c", Linkage::Static);
    let version = || -> u64 {
        let output = succeed(installed.command(&program).arg(installed.path("region"))).stdout;
        let text = String::from_utf8(output).unwrap();
        text.trim_end().strip_prefix("registered, version ").unwrap().parse().unwrap()
    };
    let first = version();
    assert_eq!(version(), first + 1, "the record is kept without a process");
}

#[test]
fn the_readme_shows_the_quick_start() {
    let source = include_str!("../../../clients/c/examples/quick_start.c");
    let (_, after) = source.split_once("/* From here on as in the README. */\n").unwrap();
    let (code, _) = after.split_once("    /* As far as here. */\n").unwrap();
    let code: Vec<&str> =
        code.lines().map(|line| line.strip_prefix("    ").unwrap_or(line)).collect();
    let block = format!("```c\n{}\n```\n", code.join("\n"));
    assert!(include_str!("../../../README.md").contains(&block), "the README lacks this:\n{block}");
}
