//! Between crates: who stands on which floor, and who may use whom.

use crate::finding::{Finding, line_where};
use crate::workspace::{Dependency, Member};
use std::fs;
use std::path::Path;

/// Where the folders of the house stand. A crate uses only crates of a smaller height; two crates
/// of one height are strangers. Applications stand above the proving ground, because the one binary
/// carries the experiments.
const HEIGHTS: &[(&str, u32, &str)] = &[
    ("model", 0, "floor 0"),
    ("memory", 10, "floor 1"),
    ("wire", 10, "floor 1"),
    ("numa", 10, "floor 1"),
    ("store", 20, "floor 2"),
    ("local-transport", 20, "floor 2"),
    ("ue", 20, "floor 2"),
    ("cluster", 20, "floor 2"),
    ("node", 30, "floor 3"),
    ("sdl", 30, "floor 3"),
    ("protocols/", 40, "floor 4"),
    ("capi", 40, "floor 4"),
    ("verification/", 50, "floor 5, proving"),
    ("apps/", 52, "floor 5, apps"),
];

/// Stands beside the house: uses no crate of it, and none uses it.
const BESIDE: &str = "xtask";

const TABLE: &str = "HEIGHTS in xtask/src/floors/crates.rs";

/// Every edge of the house that does not lead down.
pub(crate) fn check(root: &Path, members: &[Member]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for member in members {
        if member.folder != BESIDE && place(&member.folder).is_none() {
            let advice = format!("move it to a folder of the house, or give it a line in {TABLE}");
            findings.push(Finding::new(member.manifest(), 1, "this crate has no floor", advice));
        }
        for dependency in member.dependencies.iter().filter(|dependency| dependency.is_ours) {
            let used = members.iter().find(|other| other.name == dependency.name);
            if let Some((what, advice)) = used.and_then(|used| complaint(member, used)) {
                let line = line_of(root, member, dependency);
                findings.push(Finding::new(member.manifest(), line, what, advice));
            }
        }
    }
    findings
}

fn place(folder: &str) -> Option<(u32, &'static str)> {
    HEIGHTS
        .iter()
        .find(|(name, ..)| folder == *name || (name.ends_with('/') && folder.starts_with(name)))
        .map(|(_, height, floor)| (*height, *floor))
}

fn complaint(asker: &Member, used: &Member) -> Option<(String, String)> {
    if asker.folder == BESIDE || used.folder == BESIDE {
        let what =
            format!("{} uses {}, and {BESIDE} stands beside the house", asker.name, used.name);
        return Some((what, "move what both need into a library crate of its own".to_owned()));
    }
    let (asker_height, asker_floor) = place(&asker.folder)?;
    let (used_height, used_floor) = place(&used.folder)?;
    (asker_height <= used_height).then(|| {
        let what = format!(
            "{} ({asker_floor}) uses {} ({used_floor}), which does not stand below it",
            asker.name, used.name
        );
        let advice = "move the word down to a floor that both stand on, or hand the fact in as an \
                      argument";
        (what, advice.to_owned())
    })
}

/// The line of a manifest that names a dependency.
pub(crate) fn line_of(root: &Path, member: &Member, dependency: &Dependency) -> usize {
    let manifest = fs::read_to_string(root.join(member.manifest())).unwrap_or_default();
    line_where(&manifest, |line| {
        let name = line.split(['.', '=', ' ']).next().unwrap_or_default().trim_matches('"');
        name == dependency.name
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planted::Planted;
    use crate::workspace;

    fn found(edges: &[(&str, &[&str])]) -> Vec<Finding> {
        let house = Planted::house(edges);
        check(house.root(), &workspace::members(house.root()).unwrap())
    }

    #[test]
    fn edges_that_lead_down_are_quiet() {
        let edges: &[(&str, &[&str])] = &[
            ("model", &[]),
            ("memory", &["model"]),
            ("store", &["memory", "model"]),
            ("capi", &["store"]),
            ("verification/bench", &["store"]),
            ("apps/nearstate", &["verification/bench", "capi"]),
            ("xtask", &[]),
        ];
        assert_eq!(found(edges), []);
    }

    #[test]
    fn an_upward_edge_is_found_at_its_line() {
        let found = found(&[("memory", &["store"]), ("store", &[])]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].file.as_str(), found[0].line), ("memory/Cargo.toml", 7));
        assert!(found[0].what.contains("memory (floor 1) uses store (floor 2)"), "{found:?}");
    }

    #[test]
    fn strangers_on_one_floor_do_not_use_each_other() {
        assert_eq!(found(&[("store", &["cluster"]), ("cluster", &[])]).len(), 1);
    }

    #[test]
    fn the_gate_stands_beside_the_house() {
        assert_eq!(found(&[("xtask", &["model"]), ("model", &[])]).len(), 1);
        assert_eq!(found(&[("memory", &["xtask"]), ("xtask", &[])]).len(), 1);
    }

    #[test]
    fn a_crate_without_a_floor_is_found() {
        let found = found(&[("attic", &[])]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].file, "attic/Cargo.toml");
    }
}
