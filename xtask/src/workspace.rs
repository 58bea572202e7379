//! The crates of the workspace as cargo sees them, and the files of the workspace as git sees them.

use crate::run;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// One crate of the workspace.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    /// The package's name.
    pub name: String,
    /// Its folder, relative to the root, with `/` between the parts.
    pub folder: String,
    /// The dependencies in its manifest, of every kind.
    pub dependencies: Vec<Dependency>,
    /// The root files of its library and of its programs, relative to the root.
    pub roots: Vec<String>,
}

impl Member {
    /// Its manifest, relative to the root.
    pub(crate) fn manifest(&self) -> String {
        format!("{}/Cargo.toml", self.folder)
    }
}

/// One line of a manifest's dependencies.
#[derive(Clone, Debug)]
pub(crate) struct Dependency {
    /// The package's name.
    pub name: String,
    /// `normal`, `dev` or `build`.
    pub kind: String,
    /// The versions that would do.
    pub versions: String,
    /// Is it a folder of this workspace?
    pub is_ours: bool,
}

/// Reads the members of the workspace at `root`.
pub(crate) fn members(root: &Path) -> Result<Vec<Member>, String> {
    let mut command = run::cargo();
    command.args(["metadata", "--no-deps", "--format-version", "1"]).current_dir(root);
    let told: Value = serde_json::from_str(&run::read(&mut command)?)
        .map_err(|error| format!("cargo metadata is not JSON: {error}"))?;
    let root = root.canonicalize().map_err(|error| format!("{}: {error}", root.display()))?;
    array(&told, "packages").iter().map(|package| member(&root, package)).collect()
}

fn member(root: &Path, package: &Value) -> Result<Member, String> {
    let manifest = PathBuf::from(text(package, "manifest_path"));
    let folder = manifest.parent().ok_or("a manifest without a folder")?;
    let is_root = |target: &&Value| {
        array(target, "kind")
            .iter()
            .filter_map(Value::as_str)
            .any(|kind| ["lib", "rlib", "cdylib", "staticlib", "proc-macro", "bin"].contains(&kind))
    };
    Ok(Member {
        name: text(package, "name").to_owned(),
        folder: relative(root, folder),
        dependencies: array(package, "dependencies").iter().map(dependency).collect(),
        roots: array(package, "targets")
            .iter()
            .filter(is_root)
            .map(|target| relative(root, Path::new(text(target, "src_path"))))
            .collect(),
    })
}

fn dependency(line: &Value) -> Dependency {
    Dependency {
        name: text(line, "name").to_owned(),
        kind: line.get("kind").and_then(Value::as_str).unwrap_or("normal").to_owned(),
        versions: text(line, "req").to_owned(),
        is_ours: line.get("path").is_some_and(Value::is_string),
    }
}

/// A path as the workspace names it: from the root, with `/` between the parts.
pub(crate) fn relative(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).to_string_lossy().into_owned()
}

/// The string field `name`, or nothing.
pub(crate) fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// The array field `name`, or nothing.
pub(crate) fn array<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Every file that belongs to the workspace, sorted: what git tracks and what it would track. Where
/// there is no git (a source archive), every file outside hidden and build folders.
pub(crate) fn files(root: &Path) -> Result<Vec<String>, String> {
    let mut found = BTreeSet::new();
    if root.join(".git").exists() && run::is_program("git") {
        let listed = run::read(
            Command::new("git")
                .args(["-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others"])
                .arg("--exclude-standard")
                .current_dir(root),
        )?;
        let is_there = |name: &&str| fs::symlink_metadata(root.join(name)).is_ok();
        let names = listed.split('\0').filter(|name| !name.is_empty());
        found.extend(names.filter(is_there).map(str::to_owned));
    } else {
        walk(root, root, &mut found)?;
    }
    Ok(found.into_iter().collect())
}

fn walk(root: &Path, folder: &Path, found: &mut BTreeSet<String>) -> Result<(), String> {
    let say = |error: std::io::Error| format!("{}: {error}", folder.display());
    for entry in fs::read_dir(folder).map_err(say)? {
        let entry = entry.map_err(say)?;
        let name = relative(root, &entry.path());
        if !entry.file_type().map_err(say)?.is_dir() {
            found.insert(name);
        } else if !["target", "report", ".git"].contains(&name.as_str()) {
            walk(root, &entry.path(), found)?;
        }
    }
    Ok(())
}
