//! Which crate may depend on which package: `xtask/dependencies.toml`, and the reasons for each.

use super::read_table;
use crate::finding::{Finding, line_where};
use crate::workspace::{Dependency, Member};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use toml::{Table, Value};

const LIST: &str = "xtask/dependencies.toml";
const REASONS: &str = "docs/decisions/dependencies.md";
const KINDS: &[&str] = &["normal", "build", "dev"];

/// Every dependency that is not on the list, not argued for, or on the list and not there.
pub(crate) fn check(root: &Path, members: &[Member]) -> Result<Vec<Finding>, String> {
    let list = read_table(root, LIST)?;
    let list_text = fs::read_to_string(root.join(LIST)).unwrap_or_default();
    let reasons = fs::read_to_string(root.join(REASONS)).unwrap_or_default();
    let packages: Vec<&str> = reasons.lines().filter_map(|line| line.split('|').nth(1)).collect();
    let mut findings = Vec::new();
    for member in members {
        for dependency in member.dependencies.iter().filter(|dependency| !dependency.is_ours) {
            let line = line_in(root, member, &dependency.name);
            for (what, advice) in complaints(&list, &packages, member, dependency) {
                findings.push(Finding::new(member.manifest(), line, what, advice));
            }
        }
    }
    findings.extend(left_over(&list, &list_text, members));
    Ok(findings)
}

fn complaints(
    list: &Table,
    packages: &[&str],
    member: &Member,
    dependency: &Dependency,
) -> Vec<(String, String)> {
    let (name, kind) = (&dependency.name, &dependency.kind);
    let mut found = Vec::new();
    if !listed(list, &member.name, kind).any(|other| other == name) {
        let advice = format!(
            "remove it, or add it to `{kind}` of [{}] in {LIST}, and a row with its reasons to \
             {REASONS}",
            member.name
        );
        found.push((format!("`{name}` is not on the list of {}", member.name), advice));
    }
    if !packages.iter().any(|package| has_word(package, name)) {
        let advice = format!(
            "add a row to the table of {REASONS}: its purpose, what it brings in, why not our own \
             code"
        );
        found.push((format!("`{name}` has no entry with its reasons"), advice));
    }
    if dependency.versions == "*" {
        let advice = "name the smallest version that works".to_owned();
        found.push((format!("`{name}` has no version bound"), advice));
    }
    found
}

/// The package names that a crate can use.
fn listed<'a>(list: &'a Table, crate_name: &str, kind: &str) -> impl Iterator<Item = &'a str> {
    let names = list.get(crate_name).and_then(|entry| entry.get(kind)).and_then(Value::as_array);
    names.into_iter().flatten().filter_map(Value::as_str)
}

/// Is `name` one of the words of a heading?
fn has_word(cell: &str, name: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '-' || c == '_';
    cell.split(|c| !is_part(c)).any(|word| word == name)
}

/// Lines of the list that no manifest needs.
fn left_over(list: &Table, list_text: &str, members: &[Member]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for crate_name in list.keys() {
        let line = line_where(list_text, |line| line.trim() == format!("[{crate_name}]"));
        let mut say = |what: String| {
            findings.push(Finding::new(LIST, line, what, "delete it"));
        };
        let Some(member) = members.iter().find(|member| member.name == *crate_name) else {
            say(format!("there is no crate `{crate_name}`"));
            continue;
        };
        for kind in KINDS {
            let asked: BTreeSet<&str> = member
                .dependencies
                .iter()
                .filter(|dependency| dependency.kind == *kind)
                .map(|dependency| dependency.name.as_str())
                .collect();
            for name in listed(list, crate_name, kind).filter(|name| !asked.contains(name)) {
                say(format!("{crate_name} does not ask for `{name}` ({kind})"));
            }
        }
    }
    findings
}

/// The line of a manifest that depends on a package, under its own or another name.
fn line_in(root: &Path, member: &Member, name: &str) -> usize {
    let text = fs::read_to_string(root.join(member.manifest())).unwrap_or_default();
    let asks = |line: &str| {
        let key = line.split(['.', '=', ' ']).next().unwrap_or_default();
        key == name || line.contains(&format!("package = \"{name}\""))
    };
    line_where(&text, asks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planted::Planted;
    use crate::workspace;

    const WITH_LOOM: &str = "[package]\nname = \"memory\"\nversion = \"0.1.0\"\n\
                             edition = \"2024\"\n\n[dev-dependencies]\nloom = \"0.7\"\n";

    fn found(manifest: &str, list: &str, reasons: &str) -> Vec<String> {
        let planted = Planted::workspace(&[("memory", &[])]);
        planted.file("memory/Cargo.toml", manifest);
        planted.file(LIST, list);
        planted.file(REASONS, reasons);
        let members = workspace::members(planted.root()).unwrap();
        let findings = check(planted.root(), &members).unwrap();
        findings.iter().map(|f| format!("{}:{}: {}", f.file, f.line, f.what)).collect()
    }

    #[test]
    fn a_listed_dependency_with_reasons_has_no_findings() {
        let list = "[memory]\ndev = [\"loom\"]\n";
        assert_eq!(found(WITH_LOOM, list, "| `loom` | tests |\n"), Vec::<String>::new());
    }

    #[test]
    fn an_unlisted_dependency_is_found_at_its_line() {
        let found = found(WITH_LOOM, "[memory]\nnormal = []\n", "| loom | tests |\n");
        assert_eq!(found, ["memory/Cargo.toml:7: `loom` is not on the list of memory"]);
    }

    #[test]
    fn a_dependency_without_reasons_is_found() {
        let found = found(
            WITH_LOOM,
            "[memory]\ndev = [\"loom\"]\n",
            "| bloom, loom-extra | not loom |\nloom\n",
        );
        assert_eq!(found, ["memory/Cargo.toml:7: `loom` has no entry with its reasons"]);
    }

    #[test]
    fn a_listed_dependency_that_is_gone_is_found() {
        let list = "[memory]\nnormal = [\"loom\"]\ndev = [\"loom\"]\n[attic]\n";
        let found = found(WITH_LOOM, list, "| loom | tests |\n");
        let expected = [
            "xtask/dependencies.toml:4: there is no crate `attic`",
            "xtask/dependencies.toml:1: memory does not ask for `loom` (normal)",
        ];
        assert!(expected.iter().all(|line| found.contains(&(*line).to_owned())), "{found:?}");
        assert_eq!(found.len(), 2, "{found:?}");
    }

    #[test]
    fn any_version_is_found() {
        let any = WITH_LOOM.replace("0.7", "*");
        let found = found(&any, "[memory]\ndev = [\"loom\"]\n", "| loom | tests |\n");
        assert_eq!(found, ["memory/Cargo.toml:7: `loom` has no version bound"]);
    }
}
