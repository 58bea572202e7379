//! Transactions and objects as C meets them: `tests/c/transactions.c`, promise by promise.

#![expect(clippy::unwrap_used, reason = "a promise that is not kept ends its test")]

#[path = "support/toolchain.rs"]
mod toolchain;

use std::path::PathBuf;
use std::sync::LazyLock;

use toolchain::{Installed, Link, succeed};

/// The program, compiled once for all promises.
struct Program {
    installed: Installed,
    linked_static: PathBuf,
    linked_shared: PathBuf,
}

static PROGRAM: LazyLock<Program> = LazyLock::new(|| {
    let installed = Installed::new();
    let source = "edge/capi/tests/c/transactions.c";
    let linked_static = installed.compile(source, Link::Static);
    let linked_shared = installed.compile(source, Link::Shared);
    Program { installed, linked_static, linked_shared }
});

fn keeps(promise: &str) {
    for program in [&PROGRAM.linked_static, &PROGRAM.linked_shared] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = PROGRAM.installed.command(program);
        succeed(command.arg(promise).arg(folder.path().join("region")));
    }
}

/// Each promise as a test of its own.
macro_rules! kept_in_c {
    ($($promise:ident)*) => {
        $(#[test]
        fn $promise() {
            keeps(stringify!($promise));
        })*
    };
}

kept_in_c! {
    all_of_a_transaction_happens_or_nothing
    labels_go_with_a_record
    a_conflict_is_an_answer_and_changes_nothing
    a_function_is_run_until_it_gets_through
    the_example_of_the_guide_does_what_it_says
    an_object_is_opened_and_stays_where_it_is
    null_and_nonsense_are_refused
    a_session_stays_open_while_a_transaction_is
    a_forked_child_cannot_commit
}

#[test]
fn the_guide_shows_what_is_tested() {
    let guide = include_str!("../../../clients/c/README.md");
    let shown = guide.split("```c\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let function = shown.split("\n\n").next().unwrap();
    assert!(function.starts_with("static int32_t hand_over("), "{function}");
    assert!(include_str!("c/transactions.c").contains(function), "{function}");
}

#[test]
fn no_promise_of_the_c_program_is_left_out() {
    let source = include_str!("c/transactions.c");
    let there = source.lines().filter(|line| line.trim_start().starts_with("PROMISE(")).count();
    let asked = include_str!("c_transactions.rs").lines().skip_while(|l| *l != "kept_in_c! {");
    assert_eq!(asked.skip(1).take_while(|line| *line != "}").count(), there);
}
