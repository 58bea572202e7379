//! The order of the workspace: a crate uses crates below it, a module uses modules below it.

mod crates;
mod modules;

use crate::finding::Finding;
use crate::workspace;
use std::path::Path;

/// Checks every crate and every module of the workspace at `root`. Also says what was seen.
pub(crate) fn check(root: &Path) -> Result<(Vec<Finding>, String), String> {
    let members = workspace::members(root)?;
    let mut findings = crates::check(root, &members);
    let mut modules_seen = 0;
    for member in &members {
        for file in &member.roots {
            let (found, seen) = modules::check(root, file);
            findings.extend(found);
            modules_seen += seen;
        }
    }
    Ok((findings, format!("{} crates, {modules_seen} modules", members.len())))
}
