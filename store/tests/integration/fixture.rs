//! Regions of tests, and processes of this program.

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use nearstate_store::{
    CheckReport, CreateOptions, Error, Namespace, Region, Result, Schema, Session, check,
};

/// Sets a flag when it is dropped. Threads of a scope that go on until it is set end as well when
/// the test fails, and the scope with them.
pub(crate) struct SetOnDrop<'f>(pub(crate) &'f AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// A folder in memory for one region. It is deleted with the test.
pub(crate) struct TestFolder {
    dir: tempfile::TempDir,
    /// The path of the region.
    pub(crate) path: PathBuf,
}

impl TestFolder {
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

/// A region in a folder of its own.
pub(crate) struct TestRegion {
    pub(crate) region: Region,
    pub(crate) folder: TestFolder,
}

impl TestRegion {
    /// A region of 256 MiB.
    pub(crate) fn new() -> Self {
        Self::with_bytes(256 << 20)
    }

    pub(crate) fn with_bytes(bytes_max: u64) -> Self {
        let folder = TestFolder::new();
        let options = CreateOptions { bytes_max, ..CreateOptions::default() };
        let region = Region::create(&folder.path, &options).unwrap();
        Self { region, folder }
    }

    /// Detaches and fails unless the region is free of faults.
    pub(crate) fn close_and_check(self) {
        drop(self.region);
        clean(&self.folder.path);
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

/// Held for reading by tests that a fork would disturb, for writing by a test that starts a
/// process.
static FORKS: RwLock<()> = RwLock::new(());

/// Keeps the other tests from starting a process until the guard is dropped. Between its fork and
/// its exec a child has the open files of this process and holds the locks on them.
pub(crate) fn without_forks() -> RwLockReadGuard<'static, ()> {
    FORKS.read().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a process. Returns after its exec.
pub(crate) fn spawn(command: &mut Command) -> std::io::Result<Child> {
    let _exclusive = FORKS.write().unwrap_or_else(PoisonError::into_inner);
    command.spawn()
}

/// Runs a process to its end.
pub(crate) fn output(command: &mut Command) -> std::io::Result<Output> {
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    spawn(command)?.wait_with_output()
}

/// A process that is killed at the latest when the test ends, even if the test fails.
pub(crate) struct KilledOnDrop(pub(crate) Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Set in a process that runs one test alone.
const ALONE: &str = "NEARSTATE_TEST_ALONE";

/// True in a process that runs only this test. Otherwise runs the test in such a process, fails if
/// it fails there, and returns false. For tests of what all threads of a process share: its clock,
/// its open files.
pub(crate) fn is_alone(test: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(ALONE, "1");
    succeeded(&output(&mut command).unwrap());
    false
}

/// Checks attempted before a region counts as attached by a process other than the child of
/// another test.
const CHECKS: usize = 100_000;

/// The result of [`check`]. A child that another test starts has this process's open files until
/// its exec, and appears to be attached for as long.
pub(crate) fn checked(path: &Path) -> Result<CheckReport> {
    for _ in 1..CHECKS {
        match check(path) {
            Err(Error::InUse { .. }) => std::thread::yield_now(),
            other => return other,
        }
    }
    check(path)
}

/// Fails unless the region is free of faults.
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
    command.args(arguments(test)).env("NEARSTATE_TEST_REGION", path);
    command
}

/// The arguments that make this program run one ignored test.
pub(crate) fn arguments(test: &str) -> [&str; 5] {
    ["--ignored", "--exact", test, "--nocapture", "--test-threads=1"]
}

/// The path of the region, in a process started by [`child`].
pub(crate) fn region_path() -> PathBuf {
    PathBuf::from(std::env::var_os("NEARSTATE_TEST_REGION").expect("started by another test"))
}

/// Fails unless a child succeeded. Returns what it printed.
pub(crate) fn succeeded(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {text}{errors}", output.status);
    assert!(text.contains("1 passed"), "no such test: {text}");
    text
}

/// Reports that a test cannot run on this machine, for want of memory, of a device or of a kernel
/// that has its subject.
pub(crate) fn skipped(reason: &str) {
    eprintln!("SKIPPED: {reason}");
}

/// True if this process may mount and switch users.
pub(crate) fn is_root() -> bool {
    std::fs::read_to_string("/proc/self/status")
        .unwrap()
        .lines()
        .any(|line| line.split_whitespace().eq(["Uid:", "0", "0", "0", "0"]))
}

/// A mount that is removed with the test.
pub(crate) struct Mount {
    pub(crate) folder: TestFolder,
}

impl Mount {
    /// Mounts a file system of a kind on a new folder, or returns the reason why it cannot.
    pub(crate) fn new(kind: &str, options: &str) -> std::result::Result<Self, String> {
        if !is_root() {
            return Err(format!("only root can mount a {kind}"));
        }
        let folder = TestFolder::new();
        let mut mount = Command::new("mount");
        mount.args(["-t", kind, "-o", options, "none"]).arg(folder.dir());
        let mount = output(&mut mount).map_err(|error| format!("mount: {error}"))?;
        if mount.status.success() {
            Ok(Self { folder })
        } else {
            Err(format!("mount -t {kind}: {}", String::from_utf8_lossy(&mount.stderr)))
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let ended = output(Command::new("umount").arg("-l").arg(self.folder.dir()));
        assert!(ended.is_ok_and(|ended| ended.status.success()) || std::thread::panicking());
    }
}
