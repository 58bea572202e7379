//! No file of the workspace names a path of one machine: a home folder, or the folder of the
//! checkout.

use crate::finding::Finding;
use crate::run;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Beginnings of paths that exist only on one machine.
pub(crate) struct Places {
    beginnings: Vec<String>,
}

impl Places {
    /// Homes, this checkout, and the checkout that it is a second worktree of.
    pub(crate) fn of(root: &Path) -> Self {
        let mut beginnings = ["/home", "/root", "/Users"].map(|place| format!("{place}/")).to_vec();
        let mut own = vec![root.to_path_buf()];
        own.extend(env::var_os("HOME").map(PathBuf::from));
        own.extend(first_worktree(root));
        // A path of one part, such as `/build`, is too short to say anything about a machine.
        let is_long = |path: &PathBuf| path.components().count() > 2;
        let own = own.into_iter().filter(is_long);
        beginnings.extend(own.map(|path| path.to_string_lossy().into_owned()));
        Self { beginnings }
    }

    /// The lines of a file that name such a path.
    pub(crate) fn check(&self, name: &str, text: &str) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (index, line) in text.lines().enumerate() {
            if let Some(place) = self.beginnings.iter().find(|place| is_named(line, place)) {
                let what = format!("names a path of one machine (`{place}`)");
                let advice = "write it relative to the root, or as a variable";
                findings.push(Finding::new(name, index + 1, what, advice));
            }
        }
        findings
    }
}

/// The folder of the repository's first worktree, which this one may be a sister of.
fn first_worktree(root: &Path) -> Option<PathBuf> {
    let mut git = Command::new("git");
    git.args(["-c", "safe.directory=*", "rev-parse", "--path-format=absolute"]);
    let told = run::read(git.arg("--git-common-dir").current_dir(root)).ok()?;
    Path::new(told.trim()).parent().map(Path::to_path_buf)
}

fn is_named(line: &str, place: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || "_-./~".contains(c);
    line.match_indices(place).any(|(at, _)| {
        let before = line.get(..at).and_then(|text| text.chars().next_back());
        let after = line.get(at + place.len()..).and_then(|text| text.chars().next());
        let is_whole = place.ends_with('/') || after.is_none_or(|c| !c.is_alphanumeric());
        !before.is_some_and(is_part) && is_whole
    })
}
