//! The table of operations, the tests and `docs/nudsf.md` agree.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write as _;
use std::path::Path;

use nearstate_nudsf::OPERATIONS;

const BEGIN: &str = "<!-- begin operations -->";
const END: &str = "<!-- end operations -->";

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The names of the tests of this crate.
fn tests() -> Vec<String> {
    let files = [
        "records",
        "meta",
        "blocks",
        "search",
        "subscriptions",
        "schemas",
        "interfaces",
        "http",
        "security",
        "timers",
    ];
    let text: String =
        files.iter().map(|file| read(&format!("tests/integration/{file}.rs"))).collect();
    let names = text.split("#[test]\nfn ").skip(1).filter_map(|rest| rest.split('(').next());
    names.map(str::to_owned).collect()
}

#[test]
fn req_every_operation_has_a_test() {
    let tests = tests();
    for spec in OPERATIONS {
        let prefix = format!("{}_", spec.tests);
        assert!(tests.iter().any(|test| test.starts_with(&prefix)), "no test of {}", spec.id);
    }
}

#[test]
fn req_the_page_lists_the_operations_of_the_table() {
    let tests = tests();
    let mut table = String::from("| operation | request | scope | tests |\n|---|---|---|---|\n");
    for spec in OPERATIONS {
        let prefix = format!("{}_", spec.tests);
        let count = tests.iter().filter(|test| test.starts_with(&prefix)).count();
        let (id, method, path, scope) = (spec.id, &spec.method, spec.path, spec.scope);
        writeln!(table, "| {id} | `{method} {path}` | `{scope}` | `{prefix}*` ({count}) |")
            .unwrap();
    }
    let page = read("../../docs/nudsf.md");
    let begin = page.find(BEGIN).unwrap() + BEGIN.len();
    let end = page.find(END).unwrap();
    if std::env::var_os("NEARSTATE_NUDSF_WRITE").is_some() {
        let page = format!("{}\n{table}{}", &page[..begin], &page[end..]);
        std::fs::write(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/nudsf.md"), page)
            .unwrap();
        return;
    }
    let listed = page[begin..end].trim();
    assert_eq!(listed, table.trim(), "run this test with NEARSTATE_NUDSF_WRITE=1");
}
