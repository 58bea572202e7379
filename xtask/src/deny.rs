//! External packages: their licences, their sources, and which crates may depend on them.
//!
//! `deny.toml` is the one list of licences. Where cargo-deny is installed, it reads that list too
//! and is run beside this check; it takes ten minutes to build, so a fresh machine does without.

mod licence;
mod direct;

use crate::finding::{Finding, line_where};
use crate::run;
use crate::workspace::{self, array, text};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use toml::Table;

/// Permitted sources of packages: the public registry, by either of its two names.
const SOURCES: &[&str] =
    &["registry+https://github.com/rust-lang/crates.io-index", "sparse+https://index.crates.io/"];

/// Checks everything that the workspace at `root` is built from. Also says what was seen.
pub(crate) fn check(root: &Path) -> Result<(Vec<Finding>, String), String> {
    let rules = read_table(root, "deny.toml")?;
    let members = workspace::members(root)?;
    let packages = packages(root, &rules)?;
    let lock = fs::read_to_string(root.join("Cargo.lock")).unwrap_or_default();
    let mut findings = validate(&packages, &rules, &lock);
    findings.extend(direct::check(root, &members)?);
    findings.sort();
    let doubles = doubles(&packages);
    let twice = if doubles.is_empty() { "none".to_owned() } else { doubles.join(" ") };
    let mut seen = format!("{} packages from outside, in two versions: {twice}", packages.len());
    if run::is_program("cargo-deny") {
        run::show(
            run::cargo()
                .args(["deny", "--workspace", "check", "licenses", "bans", "sources"])
                .current_dir(root),
        )?;
        seen.push_str(", cargo-deny agrees");
    }
    Ok((findings, seen))
}

/// A TOML file of the workspace.
fn read_table(root: &Path, name: &str) -> Result<Table, String> {
    let text = fs::read_to_string(root.join(name)).map_err(|error| format!("{name}: {error}"))?;
    text.parse().map_err(|error| format!("{name}: {error}"))
}

/// The strings of an array in a table of a table.
fn strings(table: &Table, section: &str, key: &str) -> Vec<String> {
    let values =
        table.get(section).and_then(|inner| inner.get(key)).and_then(toml::Value::as_array);
    let values = values.map_or(&[][..], Vec::as_slice);
    values.iter().filter_map(toml::Value::as_str).map(str::to_owned).collect()
}

/// Every package that is not ours and that a build for one of our targets uses.
fn packages(root: &Path, rules: &Table) -> Result<Vec<Value>, String> {
    let mut command = run::cargo();
    command.args(["metadata", "--format-version", "1", "--all-features", "--locked"]);
    for target in strings(rules, "graph", "targets") {
        command.args(["--filter-platform", &target]);
    }
    let told = run::read(command.current_dir(root)).map_err(|why| {
        format!("{why}\nIf Cargo.lock is behind the manifests: run cargo check and commit it")
    })?;
    let told: Value = serde_json::from_str(&told)
        .map_err(|error| format!("cargo metadata is not JSON: {error}"))?;
    let nodes = told.get("resolve").map_or(&[][..], |graph| array(graph, "nodes"));
    let used: BTreeSet<&str> = nodes.iter().map(|node| text(node, "id")).collect();
    let ours: BTreeSet<&str> =
        array(&told, "workspace_members").iter().filter_map(Value::as_str).collect();
    let is_asked = |package: &&Value| {
        let id = text(package, "id");
        used.contains(id) && !ours.contains(id)
    };
    Ok(array(&told, "packages").iter().filter(is_asked).cloned().collect())
}

/// Licences and sources.
fn validate(packages: &[Value], rules: &Table, lock: &str) -> Vec<Finding> {
    let allowed = strings(rules, "licenses", "allow");
    let mut findings = Vec::new();
    for package in packages {
        let name = text(package, "name");
        let line = line_where(lock, |line| line == format!("name = \"{name}\""));
        let mut say = |what: String, advice: &str| {
            findings.push(Finding::new("Cargo.lock", line, format!("`{name}` {what}"), advice));
        };
        let source = text(package, "source");
        if !SOURCES.contains(&source) {
            let told = if source.is_empty() { "a folder outside the workspace" } else { source };
            say(format!("comes from {told}"), "take it from crates.io");
        }
        let stated = text(package, "license");
        let mut allowed = allowed.clone();
        allowed.extend(excepted(rules, name));
        match licence::is_allowed(stated, &allowed) {
            Ok(true) => {}
            Ok(false) => say(
                format!("has the licence `{stated}`"),
                "do without it, or allow the licence in deny.toml with a decision page",
            ),
            Err(why) => say(
                format!("states its licence as `{stated}`: {why}"),
                "read its licence file and choose another package if in doubt",
            ),
        }
    }
    findings
}

/// Licences that one package may have and no other, in the form of cargo-deny.
fn excepted(rules: &Table, name: &str) -> Vec<String> {
    let list = rules.get("licenses").and_then(|section| section.get("exceptions"));
    let list = list.and_then(toml::Value::as_array).map_or(&[][..], Vec::as_slice);
    list.iter()
        .filter_map(toml::Value::as_table)
        .filter(|entry| entry.get("crate").and_then(toml::Value::as_str) == Some(name))
        .filter_map(|entry| entry.get("allow").and_then(toml::Value::as_array))
        .flatten()
        .filter_map(toml::Value::as_str)
        .map(str::to_owned)
        .collect()
}

/// Names of packages that are built in more than one version.
fn doubles(packages: &[Value]) -> Vec<&str> {
    let mut count: BTreeMap<&str, usize> = BTreeMap::new();
    for package in packages {
        *count.entry(text(package, "name")).or_default() += 1;
    }
    count.into_iter().filter(|(_, times)| *times > 1).map(|(name, _)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const RULES: &str = "[licenses]\nallow = [\"MIT\", \"Apache-2.0\"]";

    fn judged(source: &str, licence: &str) -> Vec<Finding> {
        let package = json!({ "name": "some", "source": source, "license": licence });
        let lock = "version = 4\n\n[[package]]\nname = \"some\"\n";
        validate(&[package], &RULES.parse().unwrap(), lock)
    }

    #[test]
    fn a_licence_that_is_not_allowed_is_found_at_its_line() {
        assert_eq!(judged(SOURCES[0], "MIT OR GPL-3.0"), []);
        let found = judged(SOURCES[0], "GPL-3.0-only");
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].file.as_str(), found[0].line), ("Cargo.lock", 4));
        assert_eq!(judged(SOURCES[0], "").len(), 1);
    }

    #[test]
    fn an_exception_is_for_one_package_only() {
        let rules = "[licenses]\nallow = [\"MIT\"]\nexceptions = [{ crate = \"tool\", allow = \
                     [\"MPL-2.0\"] }]";
        let rules: Table = rules.parse().unwrap();
        let package = |name| json!({ "name": name, "source": SOURCES[0], "license": "MPL-2.0" });
        assert_eq!(validate(&[package("tool")], &rules, ""), []);
        assert_eq!(validate(&[package("other")], &rules, "").len(), 1);
    }

    #[test]
    fn a_source_that_is_not_the_registry_is_found() {
        assert_eq!(judged("git+https://example.org/x", "MIT").len(), 1);
        assert_eq!(judged("", "MIT").len(), 1);
    }

    #[test]
    fn two_versions_of_one_package_are_named() {
        let one = json!({ "name": "a" });
        let other = json!({ "name": "b" });
        assert_eq!(doubles(&[one.clone(), other, one]), ["a"]);
    }
}
