//! Pages: their size, and that every file that they name exists.

use super::exceptions::Exceptions;
use crate::finding::Finding;
use std::path::{Component, Path, PathBuf};

/// How long a page may be, by the beginning of its name. A README longer than three screens is not
/// read; a decision that needs more than two is not made yet.
const LINES_MAX: &[(&str, usize)] =
    &[("README.md", 200), ("docs/decisions/", 100), ("ARCHITECTURE.md", 230)];

/// Entries of the glossary. With more, a standard term was not looked for.
const WORDS_MAX: usize = 55;
const WORDS: &str = "docs/words.md";

/// Kinds of files whose names in backticks are checked.
const NAMED: &[&str] = &["rs", "md", "toml", "txt", "c", "h", "cpp", "go", "py", "sh", "java"];

/// Pages whose names of files may be of another time.
const HISTORY: &str = "CHANGELOG.md";

/// Checks one page.
pub(crate) fn check(
    root: &Path,
    name: &str,
    text: &str,
    exceptions: &mut Exceptions,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let lines = text.lines().count();
    let bound = LINES_MAX.iter().find(|(beginning, _)| name.starts_with(beginning));
    if let Some((_, most)) = bound
        && lines > *most
        && exceptions.allow("lines", name, lines as u64).is_none_or(|most| lines as u64 > most)
    {
        let what = format!("{lines} lines, and the limit is {most}");
        findings.push(Finding::new(name, lines, what, "say it shorter, or in two pages"));
    }
    if name == WORDS {
        let entries = text.lines().filter(|line| line.starts_with("| **")).count();
        if entries > WORDS_MAX {
            let what = format!("{entries} entries, and the limit is {WORDS_MAX}");
            let advice = "replace coined words by standard terms, which need no entry";
            findings.push(Finding::new(name, 1, what, advice));
        }
    }
    if name != HISTORY {
        findings.extend(check_links(root, name, text));
    }
    findings
}

fn check_links(root: &Path, name: &str, text: &str) -> Vec<Finding> {
    let folder = Path::new(name).parent().unwrap_or(Path::new(""));
    let mut findings = Vec::new();
    let mut is_block = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_block = !is_block;
            continue;
        }
        if is_block {
            continue;
        }
        let links = links(line).into_iter().map(|target| (folder.join(target), target));
        let named = named(line).into_iter().map(|target| (PathBuf::from(target), target));
        for (path, target) in links.chain(named) {
            let is_there = |path: &Path| root.join(plain(path)).exists();
            if !is_there(&path) && !is_there(&folder.join(target)) {
                let what = format!("`{target}` does not exist");
                findings.push(Finding::new(name, index + 1, what, "name the file as it is now"));
            }
        }
    }
    findings
}

/// The targets of the links of a line that lead to files: `[text](target#part)`.
fn links(line: &str) -> Vec<&str> {
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let files = targets.map(|target| target.split('#').next().unwrap_or_default());
    files.filter(|target| !target.is_empty() && !target.contains(':')).collect()
}

/// The paths that a line names in backticks, from the root or from the page's folder.
fn named(line: &str) -> Vec<&str> {
    let quoted = line.split('`').skip(1).step_by(2);
    let is_path = |word: &&str| {
        let extension = word.rsplit_once('.').map_or("", |(_, extension)| extension);
        let is_plain = word.chars().all(|c| c.is_ascii_alphanumeric() || "./_-".contains(c));
        word.contains('/')
            && is_plain
            && !word.starts_with(['/', '.'])
            && NAMED.contains(&extension)
    };
    // Pages of the report are written by a run, and are not a part of the sources.
    quoted.filter(is_path).filter(|path| !path.starts_with("report/")).collect()
}

/// The path without `.` and `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            Component::Normal(part) => plain.push(part),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planted::Planted;

    fn found(planted: &Planted, name: &str, text: &str) -> Vec<String> {
        let mut exceptions = Exceptions::read(planted.root());
        let findings = check(planted.root(), name, text, &mut exceptions);
        findings.iter().map(|f| format!("{}: {}", f.line, f.what)).collect()
    }

    #[test]
    fn files_that_do_not_exist_are_found() {
        let planted = Planted::new();
        planted.file("store/src/lib.rs", "//! A.\n");
        planted.file("docs/a.md", "");
        let text = "`store/src/lib.rs` [a](a.md#part) [b](../store/src/lib.rs) \
                    `x.rs` `/dev/shm/a.md`\n\
                    [c](https://example.org/gone.md)\n```\n`store/gone.rs`\n```\n\
                    [d](gone.md)\n`store/gone.rs`\n";
        assert_eq!(
            found(&planted, "docs/b.md", text),
            ["6: `gone.md` does not exist", "7: `store/gone.rs` does not exist"]
        );
        assert_eq!(found(&planted, "CHANGELOG.md", text), Vec::<String>::new());
    }

    #[test]
    fn long_pages_are_found_and_exceptions_hold() {
        let planted = Planted::new();
        let page = "line\n".repeat(101);
        assert_eq!(found(&planted, "docs/a.md", &page), Vec::<String>::new());
        let name = "docs/decisions/001-a.md";
        assert_eq!(found(&planted, name, &page), ["101: 101 lines, and the limit is 100"]);
        planted.file("xtask/exceptions.txt", &format!("lines {name} 101 a table\n"));
        assert_eq!(found(&planted, name, &page), Vec::<String>::new());
    }

    #[test]
    fn a_glossary_that_grows_is_found() {
        let planted = Planted::new();
        let page = "| **word** | it is |\n".repeat(WORDS_MAX + 1);
        assert_eq!(found(&planted, WORDS, &page).len(), 1);
    }
}
