//! Inside a crate: modules are declared top first, and a module uses only those declared below it.
//!
//! The sources are read as tokens with the tests cut out. A use is any path that begins with
//! `crate::` or `super::`; what another module only passes on (`pub use below::Word;`) counts as a
//! use of the module that has it. The parts of one module (`heap/slab.rs` of `heap.rs`) may use the
//! words of the module they are a part of; the crate's root may not be used that way, because it
//! is above everything.

mod tree;
mod paths;

use crate::finding::Finding;
use paths::Path as UsedPath;
use std::path::Path;
use tree::{Module, Tree};

/// Every use inside the crate with this root file that does not lead down, and how many modules
/// were read.
pub(crate) fn check(root: &Path, root_file: &str) -> (Vec<Finding>, usize) {
    let tree = Tree::read(root, root_file);
    let mut findings = tree.faults.clone();
    for module in tree.modules.values() {
        for used in paths::used(&module.tokens, &module.path) {
            findings.extend(complaint(&tree, module, &used));
        }
    }
    findings.sort();
    findings.dedup();
    (findings, tree.modules.len())
}

fn complaint(tree: &Tree, asker: &Module, used: &UsedPath) -> Option<Finding> {
    let (target, word) = resolve(tree, &used.parts);
    if target.starts_with(&asker.path) {
        return None;
    }
    if asker.path.starts_with(&target) {
        let is_root = target.is_empty() && !used.is_macro;
        return is_root.then(|| {
            let word = word.unwrap_or_else(|| "*".to_owned());
            let what = format!("`crate::{word}` belongs to the crate's root, above this module");
            let advice = "move it into a module that is declared below the ones that use it";
            Finding::new(&asker.file, used.line, what, advice)
        });
    }
    let shared = asker.path.iter().zip(&target).take_while(|(left, right)| left == right).count();
    let parent = tree.modules.get(asker.path.get(..shared)?)?;
    let rank = |path: &[String]| {
        let name = path.get(shared)?;
        parent.children.iter().position(|child| child == name)
    };
    let (above, below) = (rank(&asker.path)?, rank(&target)?);
    (above >= below).then(|| {
        let name = target.get(..=shared).unwrap_or_default().join("::");
        let own = asker.path.get(..=shared).unwrap_or_default().join("::");
        let what = format!("`{own}` uses `{name}`, which {} declares above it", parent.file);
        let advice = "move the word down, hand the fact in as an argument, or, if the list is in \
                      the wrong order, reorder the `mod` lines";
        Finding::new(&asker.file, used.line, what, advice)
    })
}

/// The module that defines the item of a path, and its name there unless it is the module itself.
fn resolve(tree: &Tree, parts: &[String]) -> (Vec<String>, Option<String>) {
    let mut parts = parts.to_vec();
    // A word that is passed on in a circle does not compile; the bound only keeps us from turning.
    for _ in 0..16 {
        let mut depth = 0;
        while parts.get(..=depth).is_some_and(|path| tree.modules.contains_key(path)) {
            depth += 1;
        }
        let target = parts.get(..depth).unwrap_or_default().to_vec();
        let Some(word) = parts.get(depth).cloned() else { return (target, None) };
        match tree.modules.get(&target).and_then(|module| module.passes_on.get(&word)) {
            Some(elsewhere) => parts.clone_from(elsewhere),
            None => return (target, Some(word)),
        }
    }
    (parts, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planted::Planted;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let planted = Planted::new();
        for (name, text) in files {
            planted.file(&format!("src/{name}"), text);
        }
        let (findings, _) = check(planted.root(), "src/lib.rs");
        findings.iter().map(|found| format!("{}:{}", found.file, found.line)).collect()
    }

    #[test]
    fn downward_uses_have_no_findings() {
        let files = [
            ("lib.rs", "mod top; mod middle; pub mod bottom; pub use bottom::Word;"),
            ("top.rs", "use crate::middle::{self, M}; use crate::Word; fn f() { middle::g() }"),
            ("middle.rs", "use super::bottom; mod part; pub struct M; fn g() { part::h() }"),
            ("middle/part.rs", "use super::M; fn h() { let _ = crate::bottom::Word; }"),
            ("bottom.rs", "pub struct Word;\n#[cfg(test)]\nmod tests { use crate::top::f; }"),
        ];
        assert_eq!(found(&files), Vec::<String>::new());
    }

    #[test]
    fn an_upward_use_is_found_at_its_line() {
        let files = [
            ("lib.rs", "mod top;\nmod bottom;"),
            ("top.rs", "pub struct T;"),
            ("bottom.rs", "//! Words.\n\nuse crate::top::T;\n"),
        ];
        assert_eq!(found(&files), ["src/bottom.rs:3"]);
    }

    #[test]
    fn an_upward_path_inside_a_function_or_macro_is_found() {
        let files = [
            ("lib.rs", "mod top;\nmod bottom;"),
            ("top.rs", ""),
            (
                "bottom.rs",
                "fn f() {\n    super::top::go();\n    println!(\"{}\",\n crate::top::X);\n}",
            ),
        ];
        assert_eq!(found(&files), ["src/bottom.rs:2", "src/bottom.rs:4"]);
    }

    #[test]
    fn one_upward_name_of_a_list_is_found() {
        let files = [
            ("lib.rs", "mod a;\nmod b;\nmod c;"),
            ("a.rs", ""),
            ("b.rs", "use crate::{\n    c::{X, Y},\n    a::Z,\n};"),
            ("c.rs", ""),
        ];
        assert_eq!(found(&files), ["src/b.rs:3"]);
    }

    #[test]
    fn a_reexport_of_the_root_counts_at_its_definition() {
        let files = [
            ("lib.rs", "mod top;\nmod bottom;\npub use top::Word;"),
            ("top.rs", ""),
            ("bottom.rs", "use crate::Word;"),
        ];
        assert_eq!(found(&files), ["src/bottom.rs:1"]);
    }

    #[test]
    fn a_name_of_the_root_is_above_all_modules() {
        let files = [("lib.rs", "mod a;\npub struct Word;"), ("a.rs", "use crate::Word;")];
        assert_eq!(found(&files), ["src/a.rs:1"]);
    }

    #[test]
    fn submodules_are_ordered() {
        let files = [
            ("lib.rs", "mod heap;"),
            ("heap.rs", "mod slab;\nmod lease;"),
            ("heap/slab.rs", "use super::lease::L;"),
            ("heap/lease.rs", "use super::slab::S;"),
        ];
        assert_eq!(found(&files), ["src/heap/lease.rs:1"]);
    }

    #[test]
    fn inline_modules_are_parsed() {
        let files = [("lib.rs", "mod a { pub fn f() {} }\nmod b {\n    use super::a::f;\n}")];
        assert_eq!(found(&files), ["src/lib.rs:3"]);
    }

    #[test]
    fn a_module_without_a_file_is_found() {
        assert_eq!(found(&[("lib.rs", "\nmod gone;")]), ["src/lib.rs:2"]);
    }
}
