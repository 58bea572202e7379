//! Between crates: the layer of each crate, and which crates it may use.

use crate::finding::{Finding, line_where};
use crate::workspace::{Dependency, Member};
use std::fs;
use std::path::Path;

/// The height of each folder. A crate uses only crates of a smaller height; crates of one height
/// do not use each other. Applications are above the verification crates, because the one
/// binary contains the benchmarks.
const HEIGHTS: &[(&str, u32, &str)] = &[
    ("model", 0, "layer 0"),
    ("memory", 10, "layer 1"),
    ("wire", 10, "layer 1"),
    ("numa", 10, "layer 1"),
    ("store", 20, "layer 2"),
    ("cluster", 20, "layer 2"),
    ("local-transport", 20, "layer 2"),
    ("resp-client", 20, "layer 2"),
    ("ue", 20, "layer 2"),
    ("node", 30, "layer 3"),
    ("sdl", 30, "layer 3"),
    ("membership", 40, "layer 4"),
    ("protocols/", 40, "layer 4"),
    ("capi", 40, "layer 4"),
    ("verification/local-cluster", 48, "layer 5, processes of a cluster"),
    ("verification/", 50, "layer 5, verification"),
    ("apps/", 52, "layer 5, apps"),
];

/// Outside the layers: it uses no crate of the workspace, and no crate uses it.
const OUTSIDE: &str = "xtask";

const TABLE: &str = "HEIGHTS in xtask/src/layers/crates.rs";

/// Every dependency that does not lead to a lower layer.
pub(crate) fn check(root: &Path, members: &[Member]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for member in members {
        if member.folder != OUTSIDE && layer_of(&member.folder).is_none() {
            let advice =
                format!("move it to a folder that has a layer, or give it a line in {TABLE}");
            findings.push(Finding::new(member.manifest(), 1, "the crate has no layer", advice));
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

fn layer_of(folder: &str) -> Option<(u32, &'static str)> {
    HEIGHTS
        .iter()
        .find(|(name, ..)| folder == *name || (name.ends_with('/') && folder.starts_with(name)))
        .map(|(_, height, layer)| (*height, *layer))
}

fn complaint(member: &Member, dependency: &Member) -> Option<(String, String)> {
    if member.folder == OUTSIDE || dependency.folder == OUTSIDE {
        let what = format!(
            "{} uses {}, and {OUTSIDE} is outside the layers",
            member.name, dependency.name
        );
        return Some((what, "move what both need into a library crate of its own".to_owned()));
    }
    let (height, layer) = layer_of(&member.folder)?;
    let (other_height, other_layer) = layer_of(&dependency.folder)?;
    (height <= other_height).then(|| {
        let what = format!(
            "{} ({layer}) uses {} ({other_layer}), which is not below it",
            member.name, dependency.name
        );
        let advice = "move the type down to a layer below both, or pass the fact as an argument";
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
        let planted = Planted::workspace(edges);
        check(planted.root(), &workspace::members(planted.root()).unwrap())
    }

    #[test]
    fn downward_edges_have_no_findings() {
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
        assert!(found[0].what.contains("memory (layer 1) uses store (layer 2)"), "{found:?}");
    }

    #[test]
    fn crates_of_one_layer_do_not_use_each_other() {
        assert_eq!(found(&[("store", &["ue"]), ("ue", &[])]).len(), 1);
    }

    #[test]
    fn xtask_is_outside_the_layers() {
        assert_eq!(found(&[("xtask", &["model"]), ("model", &[])]).len(), 1);
        assert_eq!(found(&[("memory", &["xtask"]), ("xtask", &[])]).len(), 1);
    }

    #[test]
    fn a_crate_without_a_layer_is_found() {
        let found = found(&[("attic", &[])]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].file, "attic/Cargo.toml");
    }
}
