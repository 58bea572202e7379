//! Where a region of a test lies, and processes of this program.

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use nearstate_store::{
    CheckReport, CreateOptions, Error, Namespace, Region, Result, Schema, Session, check,
};

/// A folder in memory that goes with the test.
pub(crate) struct Place {
    dir: tempfile::TempDir,
    pub(crate) path: PathBuf,
}

impl Place {
    pub(crate) fn new() -> Self {
        let base = if Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" };
        let dir = tempfile::tempdir_in(base).unwrap();
        let path = dir.path().join("region");
        Self { dir, path }
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }
}

/// The smallest region.
pub(crate) fn small() -> CreateOptions {
    CreateOptions { bytes_max: 64 << 20, ..CreateOptions::default() }
}

/// A session with a namespace of values.
pub(crate) fn open(region: &Region) -> (Session, Namespace) {
    let session = region.session().unwrap();
    let ns = session.namespace("ue", &Schema::default()).unwrap();
    (session, ns)
}

/// Tries after which a process that is still attached cannot be the child of another test.
const CHECKS: usize = 100_000;

/// What the verifier says. A child that another test starts has this process's open files until it
/// runs its own program, and looks attached for as long.
pub(crate) fn checked(path: &Path) -> Result<CheckReport> {
    for _ in 1..CHECKS {
        match check(path) {
            Err(Error::InUse { .. }) => std::thread::yield_now(),
            other => return other,
        }
    }
    check(path)
}

/// Fails unless the region is without fault.
pub(crate) fn clean(path: &Path) {
    let report = checked(path).unwrap();
    assert!(report.is_clean(), "{report:#?}");
}

/// Fails unless the result is an error whose message has all of these words.
pub(crate) fn refused<T: Debug>(result: Result<T>, words: &[&str]) {
    let text = match result {
        Ok(answer) => panic!("not refused: {answer:?}"),
        Err(error) => error.to_string(),
    };
    for word in words {
        assert!(text.contains(word), "no {word:?} in the message: {text}");
    }
}

/// A process of this program that runs one ignored test with the region's path.
pub(crate) fn child(test: &str, path: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(arguments(test)).env("HOSTILE_PATH", path);
    command
}

/// What makes this program run one ignored test.
pub(crate) fn arguments(test: &str) -> [&str; 4] {
    ["--ignored", "--exact", test, "--nocapture"]
}

/// The path that a process started by [`child`] was given.
pub(crate) fn given() -> PathBuf {
    PathBuf::from(std::env::var_os("HOSTILE_PATH").expect("started by another test"))
}

/// Fails unless a child ended well; gives what it printed.
pub(crate) fn done(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {text}{errors}", output.status);
    assert!(text.contains("1 passed"), "no such test: {text}");
    text
}

/// Says, where a person sees it, that a test could not do its work here.
#[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
pub(crate) fn skipped(why: &str) {
    eprintln!("SKIPPED: {why}");
}

/// True if this process may mount and switch users.
pub(crate) fn is_root() -> bool {
    std::fs::read_to_string("/proc/self/status")
        .unwrap()
        .lines()
        .any(|line| line.split_whitespace().eq(["Uid:", "0", "0", "0", "0"]))
}

/// A mount that goes with the test.
pub(crate) struct Mount {
    pub(crate) place: Place,
}

impl Mount {
    /// Mounts a file system of a kind on a new folder, or says why not.
    pub(crate) fn new(kind: &str, options: &str) -> std::result::Result<Self, String> {
        if !is_root() {
            return Err(format!("only root can mount a {kind}"));
        }
        let place = Place::new();
        let mount = Command::new("mount")
            .args(["-t", kind, "-o", options, "none"])
            .arg(place.dir())
            .output()
            .map_err(|error| format!("mount: {error}"))?;
        if mount.status.success() {
            Ok(Self { place })
        } else {
            Err(format!("mount -t {kind}: {}", String::from_utf8_lossy(&mount.stderr)))
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let status = Command::new("umount").arg("-l").arg(self.place.dir()).status();
        assert!(status.is_ok_and(|status| status.success()) || std::thread::panicking());
    }
}
