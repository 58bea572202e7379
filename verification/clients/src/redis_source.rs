//! Debian's source package of Redis, fetched without a change of the machine's package lists.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::programs::{build_folder, output_of};

/// Names an unpacked source package, for machines without access to Debian's sources.
const FOLDER_VARIABLE: &str = "NEARSTATE_REDIS_SOURCE";

/// The release that the lists of tests belong to.
const RELEASE: &str = "redis-7.0.";

/// The folder of the unpacked source package, which is fetched if necessary.
pub fn folder() -> Result<PathBuf, String> {
    if let Some(folder) = std::env::var_os(FOLDER_VARIABLE) {
        return Ok(PathBuf::from(folder));
    }
    let packages = build_folder()?.join("redis-source");
    if let Some(folder) = unpacked(&packages) {
        return Ok(folder);
    }
    fetch(&packages).map_err(|error| {
        format!(
            "Debian's sources must be reachable once, or {FOLDER_VARIABLE} must name the folder \
             of an unpacked Redis 7.0: {error}"
        )
    })?;
    unpacked(&packages).ok_or(format!("Debian's source package of Redis is not a {RELEASE}x"))
}

fn unpacked(packages: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(packages).ok()?.flatten();
    let is_source = |path: &PathBuf| {
        path.is_dir()
            && path.file_name().is_some_and(|name| name.display().to_string().starts_with(RELEASE))
    };
    entries.map(|entry| entry.path()).find(is_source)
}

/// Fetches the source package and unpacks it.
fn fetch(packages: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", packages.display());
    for folder in ["state/lists/partial", "cache/archives/partial", "sources"] {
        fs::create_dir_all(packages.join(folder)).map_err(failed)?;
    }
    write_sources(&packages.join("sources"))?;
    let setting = |name: &str, folder: &str| format!("{name}={}", packages.join(folder).display());
    let apt = |words: &[&str]| {
        let mut command = Command::new("apt-get");
        command.args(["--quiet", "-o", "Dir::Etc::sourcelist=/dev/null"]);
        command.args(["-o", &setting("Dir::Etc::sourceparts", "sources")]);
        command.args(["-o", &setting("Dir::State::lists", "state/lists")]);
        command.args(["-o", &setting("Dir::Cache", "cache")]);
        output_of(command.args(words).current_dir(packages))
    };
    apt(&["update"])?;
    apt(&["source", "--download-only", "redis"])?;
    let mut archives = fs::read_dir(packages).map_err(failed)?.flatten().map(|entry| entry.path());
    let is_original = |path: &PathBuf| path.display().to_string().contains(".orig.tar.");
    let archive = archives.find(is_original).ok_or("the source package has no .orig.tar")?;
    output_of(Command::new("tar").arg("xf").arg(archive).current_dir(packages)).map(|_| ())
}

/// Writes the machine's package lists of Debian, with sources.
fn write_sources(folder: &Path) -> Result<(), String> {
    let machine = Path::new("/etc/apt");
    let parts = fs::read_dir(machine.join("sources.list.d")).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = parts.map(|entry| entry.path()).collect();
    files.push(machine.join("sources.list"));
    let mut count = 0;
    for file in files {
        let Ok(text) = fs::read_to_string(&file) else { continue };
        let Some(name) = file.file_name().filter(|_| text.contains("debian")) else { continue };
        let target = folder.join(name);
        fs::write(&target, with_sources(&text))
            .map_err(|error| format!("{}: {error}", target.display()))?;
        count += 1;
    }
    if count == 0 { Err("this machine has no package lists of Debian".to_owned()) } else { Ok(()) }
}

/// A package list of either form, with sources instead of programs.
fn with_sources(text: &str) -> String {
    let mut list = String::new();
    for line in text.lines() {
        let line = match (line.strip_prefix("deb "), line.strip_prefix("Types:")) {
            (Some(rest), _) => format!("deb-src {rest}"),
            (_, Some(_)) => "Types: deb-src".to_owned(),
            _ => line.to_owned(),
        };
        list.push_str(&line);
        list.push('\n');
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_list_of_either_form_gets_sources() {
        assert_eq!(with_sources("# a\ndeb u s main\n"), "# a\ndeb-src u s main\n");
        let stanza = with_sources("Types: deb\nURIs: u\n\nTypes: deb deb-src\n");
        assert_eq!(stanza, "Types: deb-src\nURIs: u\n\nTypes: deb-src\n");
    }
}
