//! `nearstate bench peers`: lists and installs the stores that a benchmark compares with.
//!
//! Servers come from the system's packages. Apache Geode comes from a Maven repository: every file
//! is listed with its digest in `verification/peers/geode/jars.txt`, and one that differs is
//! refused.

use crate::reaper::system;
use nearstate_model::Result;
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The files of Geode.
const JARS: &str = include_str!("../../peers/geode/jars.txt");

/// Our program for Geode.
const PROGRAM: &str = include_str!("../../peers/geode/NearstateGeode.java");

/// The default Maven repository, which `NEARSTATE_MAVEN` replaces.
const MAVEN: &str = "https://repo1.maven.org/maven2";

/// Limit for the download of one file, in seconds.
const FETCH_SECONDS: &str = "300";

/// A store of others that can be installed for a comparison.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// The word of the command line.
    pub name: &'static str,
    pub what: &'static str,
    program: &'static str,
    package: &'static str,
}

/// Advice if the package cannot be installed.
const BY_HAND: &str = "install it by hand and repeat the command";

/// All peers.
pub const ALL: [Peer; 4] = [
    Peer {
        name: "redis",
        what: "targets redis and redis-unix",
        program: "redis-server",
        package: "redis-server",
    },
    Peer {
        name: "valkey",
        what: "targets valkey and valkey-unix",
        program: "valkey-server",
        package: "valkey-server",
    },
    Peer {
        name: "memcached",
        what: "target memcached",
        program: "memcached",
        package: "memcached",
    },
    Peer {
        name: "geode",
        what: "target geode: Apache Geode 1.15.1 on a Java 17",
        program: "javac",
        package: "openjdk-17-jdk-headless",
    },
];

/// The peers with these names; all peers if there are no names.
pub fn named(names: &[String]) -> Result<Vec<Peer>> {
    if names.is_empty() {
        return Ok(ALL.to_vec());
    }
    let one = |name: &String| {
        ALL.into_iter().find(|peer| peer.name == name).ok_or_else(|| {
            bad_argument!(
                "no peer is called {name:?}: give some of {}",
                ALL.map(|peer| peer.name).join(", ")
            )
        })
    };
    names.iter().map(one).collect()
}

impl Peer {
    /// An error that names what is missing, if the peer is not completely installed.
    pub fn is_here(&self) -> Result<()> {
        installed(self.program, self.name)?;
        if self.name == "geode" {
            Geode::here().map(drop)?;
        }
        Ok(())
    }

    /// Installs what is missing. `report` receives a line for each step.
    pub fn install(&self, report: &mut dyn FnMut(&str)) -> Result<()> {
        if program(self.program).is_none() {
            report(&format!("{}: package {}", self.name, self.package));
            from_packages(self.package)?;
        }
        if self.name == "geode" {
            Geode::fetch(report)?;
        }
        self.is_here()
    }
}

/// The path of a program, from `PATH` and from the folders of system services.
pub fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(more).map(|folder| folder.join(name)).find(|p| p.is_file())
}

/// The path of a required program.
pub fn installed(name: &str, peer: &str) -> Result<PathBuf> {
    program(name).ok_or_else(|| {
        bad_argument!("{name} is not installed: `nearstate bench peers install {peer}`")
    })
}

/// Debian runs this program to decide whether a package may start its service.
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// Installs a package without starting its service: benchmarks start their own servers.
fn from_packages(package: &str) -> Result<()> {
    let by_hand = |why: &str| bad_argument!("{package}: {why}; {BY_HAND}");
    if program("apt-get").is_none() {
        return Err(by_hand("this system has no apt-get"));
    }
    let is_root = rustix::process::geteuid().is_root();
    let run = |words: &[&str]| {
        let mut command = Command::new(if is_root { "env" } else { "sudo" });
        if !is_root {
            command.args(["--non-interactive", "env"]);
        }
        command.arg("DEBIAN_FRONTEND=noninteractive").args(words);
        let output = command.output().map_err(|e| system("starting apt-get", &e))?;
        let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        if output.status.success() { Ok(()) } else { Err(by_hand(&text)) }
    };
    let known = Command::new("apt-cache").args(["show", package]).output();
    if !known.is_ok_and(|output| output.status.success()) {
        return Err(by_hand("this system has no such package"));
    }
    let has_policy = Path::new(POLICY).exists();
    if !has_policy {
        let line = format!("printf '#!/bin/sh\\nexit 101\\n' > {POLICY} && chmod 755 {POLICY}");
        run(&["sh", "-c", &line])?;
    }
    let outcome = run(&["apt-get", "--quiet", "update"]).and_then(|()| {
        run(&["apt-get", "--quiet", "install", "--yes", "--no-install-recommends", package])
    });
    if !has_policy {
        run(&["rm", "-f", POLICY])?;
    }
    outcome
}

/// The folder of peers without a system package.
fn folder() -> Result<PathBuf> {
    let given = std::env::var_os("NEARSTATE_PEERS").map(PathBuf::from);
    let cache = || {
        let cache = std::env::var_os("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")));
        cache.map(|cache| cache.join("nearstate/peers"))
    };
    given
        .or_else(cache)
        .ok_or_else(|| bad_argument!("no folder for peers: set NEARSTATE_PEERS or HOME"))
}

/// Geode's files on this machine.
#[derive(Clone, Debug)]
pub struct Geode {
    /// The class path for Java.
    pub class_path: String,
}

impl Geode {
    fn folder() -> Result<PathBuf> {
        Ok(folder()?.join("geode-1.15.1"))
    }

    /// Our program's classes. The folder depends on the program's text.
    fn classes() -> Result<PathBuf> {
        let digest = digest(PROGRAM.as_bytes());
        let short = digest.get(..16).unwrap_or_default();
        Ok(Self::folder()?.join(format!("classes-{short}")))
    }

    /// The paths of the files; an error if one is missing.
    pub fn here() -> Result<Self> {
        let missing = |what: &Path| {
            bad_argument!("{} is missing: `nearstate bench peers install geode`", what.display())
        };
        let (jars, classes) = (Self::folder()?.join("jars"), Self::classes()?);
        for (_, path) in listed() {
            let file = jars.join(file_name(path));
            if !file.is_file() {
                return Err(missing(&file));
            }
        }
        if !classes.join("NearstateGeode.class").is_file() {
            return Err(missing(&classes));
        }
        let class_path = format!("{}:{}/*", classes.display(), jars.display());
        Ok(Self { class_path })
    }

    fn fetch(report: &mut dyn FnMut(&str)) -> Result<()> {
        let jars = Self::folder()?.join("jars");
        fs::create_dir_all(&jars).map_err(|e| system(&format!("making {}", jars.display()), &e))?;
        let base = std::env::var("NEARSTATE_MAVEN").unwrap_or_else(|_| MAVEN.to_owned());
        for (wanted, path) in listed() {
            let file = jars.join(file_name(path));
            if fs::read(&file).is_ok_and(|bytes| digest(&bytes) == wanted) {
                continue;
            }
            report(&format!("geode: {path}"));
            fetch_one(&format!("{}/{path}", base.trim_end_matches('/')), wanted, &file)?;
        }
        compile(&jars)
    }
}

/// Digest and path of each file.
fn listed() -> impl Iterator<Item = (&'static str, &'static str)> {
    JARS.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(' '))
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn digest(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in Sha256::digest(bytes) {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Downloads a file under a temporary name, and renames it if its digest is the listed one.
fn fetch_one(url: &str, wanted: &str, file: &Path) -> Result<()> {
    let part = file.with_extension("part");
    let output = Command::new("curl")
        .args(["--fail", "--location", "--silent", "--show-error", "--max-time", FETCH_SECONDS])
        .arg("--output")
        .arg(&part)
        .arg(url)
        .output()
        .map_err(|e| system("starting curl, which fetches Geode's files: install it", &e))?;
    if !output.status.success() {
        let _ = fs::remove_file(&part);
        let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(backend_error!(
            "fetching {url}: {message} (NEARSTATE_MAVEN names another Maven repository)"
        ));
    }
    let bytes = fs::read(&part).map_err(|e| system(&format!("reading {}", part.display()), &e))?;
    let found = digest(&bytes);
    if found != wanted {
        let _ = fs::remove_file(&part);
        return Err(backend_error!("{url} has the SHA-256 {found}, not {wanted}: it was not kept"));
    }
    fs::rename(&part, file).map_err(|e| system(&format!("placing {}", file.display()), &e))
}

fn compile(jars: &Path) -> Result<()> {
    let classes = Geode::classes()?;
    fs::create_dir_all(&classes)
        .map_err(|e| system(&format!("making {}", classes.display()), &e))?;
    let source = classes.join("NearstateGeode.java");
    fs::write(&source, PROGRAM)
        .map_err(|e| system(&format!("writing {}", source.display()), &e))?;
    let output = Command::new("javac")
        .arg("-d")
        .arg(&classes)
        .arg("-cp")
        .arg(format!("{}/*", jars.display()))
        .arg(&source)
        .output()
        .map_err(|e| system("starting javac", &e))?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(backend_error!("javac of {}: {message}", source.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_listed_with_a_digest_and_a_name_of_its_own() {
        let mut names: Vec<_> = listed().map(|(_, path)| file_name(path)).collect();
        assert!(names.len() > 50 && names.contains(&"geode-core-1.15.1.jar"));
        for (digest, path) in listed() {
            assert_eq!(digest.len(), 64, "{path}");
            assert!(digest.bytes().all(|byte| byte.is_ascii_hexdigit()), "{path}");
            assert!(
                path.is_ascii() && !path.contains("..") && path.rsplit('.').next() == Some("jar"),
                "{path}"
            );
        }
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn a_digest_is_that_of_the_standard() {
        let of_abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(digest(b"abc"), of_abc);
    }

    #[test]
    fn a_file_with_another_digest_is_not_kept() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to.jar"));
        fs::write(&from, b"abc").unwrap();
        let url = format!("file://{}", from.display());
        let error = fetch_one(&url, &digest(b"other"), &to).unwrap_err().to_string();
        assert!(error.contains("not kept"), "{error}");
        assert!(!to.exists() && !to.with_extension("part").exists());
        fetch_one(&url, &digest(b"abc"), &to).unwrap();
        assert_eq!(fs::read(&to).unwrap(), b"abc");
        let error = fetch_one(&format!("{url}-none"), "", &to).unwrap_err().to_string();
        assert!(error.contains("NEARSTATE_MAVEN"), "{error}");
    }

    #[test]
    fn an_unknown_peer_is_refused_with_the_known_ones() {
        let error = named(&["oracle".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("redis, valkey, memcached, geode"), "{error}");
        assert_eq!(named(&[]).unwrap().len(), ALL.len());
    }

    #[test]
    fn a_missing_program_is_named_with_its_package() {
        let error = installed("a-program-that-is-missing", "redis").unwrap_err().to_string();
        assert!(error.contains("peers install redis"), "{error}");
        assert!(program("sh").is_some());
    }
}
