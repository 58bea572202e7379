//! The table of operations, the tests and `docs/nudsf.md` agree.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write as _;
use std::path::Path;

use nearstate_nudsf::OPERATIONS;

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The names of the tests of this crate.
pub(crate) fn tests() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/integration");
    let mut names = Vec::new();
    for file in std::fs::read_dir(folder).unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        let found = text.split("#[test]\nfn ").skip(1).filter_map(|rest| rest.split('(').next());
        names.extend(found.map(str::to_owned));
    }
    names
}

/// Checks a generated table of the page, or writes it.
pub(crate) fn page_section(name: &str, table: &str) {
    let (begin, end) = (format!("<!-- begin {name} -->"), format!("<!-- end {name} -->"));
    let page = read("../../docs/nudsf.md");
    let begin = page.find(&begin).unwrap() + begin.len();
    let end = page.find(&end).unwrap();
    if std::env::var_os("NEARSTATE_NUDSF_WRITE").is_some() {
        let page = format!("{}\n{table}{}", &page[..begin], &page[end..]);
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/nudsf.md");
        std::fs::write(path, page).unwrap();
        return;
    }
    let listed = page[begin..end].trim();
    assert_eq!(
        listed,
        table.trim(),
        "run the tests of openapi and requirements one after the \
        other with NEARSTATE_NUDSF_WRITE=1"
    );
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
    page_section("operations", &table);
}
