//! FerretDB: a small Go program of ours that starts its embeddable package, built here from modules
//! whose digests are in its `go.sum`.

use super::{digest, folder};
use crate::keeper::system;
use nearstate_model::{Error, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What it is built from.
const SOURCES: [(&str, &str); 3] = [
    ("main.go", include_str!("../../../peers/ferretdb/main.go")),
    ("go.mod", include_str!("../../../peers/ferretdb/go.mod")),
    ("go.sum", include_str!("../../../peers/ferretdb/go.sum")),
];

const PROGRAM: &str = "nearstate-ferretdb";

/// Seconds that fetching and building may take: five minutes on two busy processors, and a slow
/// line.
const BUILD_SECONDS: &str = "1800";

/// FerretDB on this machine.
#[derive(Clone, Copy, Debug)]
pub struct FerretDb;

impl FerretDb {
    /// Other sources have another folder.
    fn folder() -> Result<PathBuf> {
        let text: String = SOURCES.iter().map(|(_, text)| *text).collect();
        let digest = digest(text.as_bytes());
        let short = digest.get(..16).unwrap_or_default();
        Ok(folder()?.join(format!("ferretdb-1.24.0-{short}")))
    }

    /// Where the program is.
    ///
    /// # Errors
    /// `BadArgument`: it is not here; what brings it.
    pub fn here() -> Result<PathBuf> {
        let program = Self::folder()?.join(PROGRAM);
        if program.is_file() {
            return Ok(program);
        }
        let detail =
            format!("{} is missing: `nearstate bench peers install ferretdb`", program.display());
        Err(Error::BadArgument { detail })
    }

    pub(super) fn build(say: &mut dyn FnMut(&str)) -> Result<()> {
        let folder = Self::folder()?;
        say("ferretdb: go fetches and builds FerretDB 1.24.0, which takes some minutes");
        build_in(&folder, Path::new("go"))
    }
}

/// Builds in this folder; what is not built to its end is not taken for the program.
fn build_in(folder: &Path, go: &Path) -> Result<()> {
    fs::create_dir_all(folder).map_err(|e| system(&format!("making {}", folder.display()), &e))?;
    for (name, text) in SOURCES {
        let file = folder.join(name);
        fs::write(&file, text).map_err(|e| system(&format!("writing {}", file.display()), &e))?;
    }
    let part = folder.join("part");
    let output = Command::new("timeout")
        .arg(BUILD_SECONDS)
        .arg(go)
        .args(["build", "-mod=readonly", "-trimpath", "-tags", "ferretdb_no_postgresql", "-o"])
        .arg(&part)
        .arg(".")
        .env("CGO_ENABLED", "0")
        .current_dir(folder)
        .output()
        .map_err(|e| system("starting go, which builds FerretDB: install it", &e))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let detail = format!(
            "go build of FerretDB: {said} (it takes Go 1.22 or newer; GOPROXY names another place \
             of modules)"
        );
        return Err(Error::Backend { detail });
    }
    let program = folder.join(PROGRAM);
    fs::rename(&part, &program).map_err(|e| system(&format!("placing {}", program.display()), &e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn one_version_is_pinned_with_its_digest() {
        let of = |wanted: &str| {
            let found = SOURCES.iter().find(|(name, _)| *name == wanted);
            found.map(|(_, text)| *text).unwrap_or_default()
        };
        assert!(of("go.mod").contains("github.com/FerretDB/FerretDB v1.24.0\n"));
        assert!(of("go.sum").contains("github.com/FerretDB/FerretDB v1.24.0 h1:"));
        assert!(of("main.go").contains("github.com/FerretDB/FerretDB/ferretdb"));
    }

    /// A stand-in for go that does what `script` says; `$6` is the file to build.
    fn built_by(folder: &Path, script: &str) -> Result<()> {
        let go = folder.join("go");
        fs::write(&go, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&go, fs::Permissions::from_mode(0o755)).unwrap();
        build_in(&folder.join("made"), &go)
    }

    #[test]
    fn what_go_could_not_build_is_no_program_and_its_words_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let made = folder.path().join("made");
        let script = "echo half > \"$7\"; echo 'go.mod requires go >= 1.22' >&2; exit 1";
        let error = built_by(folder.path(), script).unwrap_err().to_string();
        assert!(error.contains("requires go >= 1.22") && error.contains("GOPROXY"), "{error}");
        assert!(!made.join(PROGRAM).exists());
        built_by(folder.path(), "cat go.mod go.sum main.go > \"$7\"").unwrap();
        let built = fs::read_to_string(made.join(PROGRAM)).unwrap();
        assert!(built.contains("FerretDB/ferretdb") && built.contains("h1:"));
    }
}
