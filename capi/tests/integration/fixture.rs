//! Compiles C and C++ programs against this library as a network function does: installed into a
//! folder, found by pkg-config, with every warning an error.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;

/// How a program is linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Linkage {
    Static,
    Shared,
}

/// A folder with the library installed in it.
pub(crate) struct Installed {
    folder: PathBuf,
    /// Removes the folder when the test ends. `None`: all programs of [`c_tests`] share it.
    _temporary: Option<tempfile::TempDir>,
}

/// The library for the programs of [`c_tests`]. Statics are never dropped, so the folder has the
/// number of the process, and the next run removes it.
static SHARED: LazyLock<Installed> = LazyLock::new(|| {
    const PREFIX: &str = "nearstate-capi-";
    let parent = Path::new(env!("CARGO_TARGET_TMPDIR"));
    for entry in std::fs::read_dir(parent).unwrap().flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
    Installed::in_folder(parent.join(format!("{PREFIX}{}", std::process::id())), None)
});

impl Installed {
    /// Runs the documented install command on the libraries that cargo built for this test.
    pub(crate) fn new() -> Self {
        let temporary = tempfile::tempdir().unwrap();
        Self::in_folder(temporary.path().to_owned(), Some(temporary))
    }

    fn in_folder(folder: PathBuf, temporary: Option<tempfile::TempDir>) -> Self {
        let test = std::env::current_exe().unwrap();
        let mut install = Command::new(root().join("capi/install.sh"));
        install.arg(&folder).arg(test.parent().unwrap());
        succeed(&mut install);
        Self { folder, _temporary: temporary }
    }

    /// A path in the folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Compiles and links a source file of the repository.
    pub(crate) fn compile(&self, source: &str, link: Linkage) -> PathBuf {
        let is_cpp = Path::new(source).extension() == Some(OsStr::new("cpp"));
        let (compiler, standard) = if is_cpp { ("g++", "-std=c++17") } else { ("gcc", "-std=c11") };
        let name = Path::new(source).file_stem().unwrap().to_str().unwrap();
        let program = self.path(&format!("{name}-{link:?}"));
        let mut build = Command::new(compiler);
        build.args([standard, "-D_DEFAULT_SOURCE", "-Wall", "-Wextra", "-Werror", "-pedantic"]);
        build.arg("-O1").args(self.ask_pkg_config(&["--cflags"])).arg(root().join(source));
        match link {
            Linkage::Shared => build.args(self.ask_pkg_config(&["--libs"])),
            // The folder has both libraries; a name with a colon selects the file.
            Linkage::Static => build.args(
                self.ask_pkg_config(&["--static", "--libs"])
                    .iter()
                    .map(|word| if word == "-lnearstate" { "-l:libnearstate.a" } else { word }),
            ),
        };
        succeed(build.arg("-o").arg(&program));
        program
    }

    fn ask_pkg_config(&self, words: &[&str]) -> Vec<String> {
        let mut ask = Command::new("pkg-config");
        ask.args(words).arg("nearstate").env("PKG_CONFIG_PATH", self.path("lib/pkgconfig"));
        let told = succeed(&mut ask);
        String::from_utf8(told.stdout).unwrap().split_whitespace().map(str::to_owned).collect()
    }

    /// A command that finds the shared library.
    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", self.path("lib")).stdin(Stdio::null());
        command
    }
}

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// Runs a command. Fails the test with the command's output unless it exits with status 0.
#[track_caller]
pub(crate) fn succeed(command: &mut Command) -> Output {
    let told = command.output().unwrap_or_else(|error| {
        let program = command.get_program().to_string_lossy();
        panic!("{program}: {error}: install it (apt-get install gcc g++ pkg-config)")
    });
    assert!(
        told.status.success(),
        "{command:?}: {}\n{}{}",
        told.status,
        String::from_utf8_lossy(&told.stdout),
        String::from_utf8_lossy(&told.stderr)
    );
    told
}

/// A program, linked statically and dynamically.
pub(crate) struct Program {
    linked: [PathBuf; 2],
}

impl Program {
    pub(crate) fn new(source: &str) -> Self {
        Self { linked: [Linkage::Static, Linkage::Shared].map(|link| SHARED.compile(source, link)) }
    }

    pub(crate) fn run(&self, test: &str) {
        for program in &self.linked {
            let folder = tempfile::tempdir().unwrap();
            let mut command = SHARED.command(program);
            succeed(command.arg(test).arg(folder.path().join("region")));
        }
    }
}

/// The tests that the source of a program lists.
pub(crate) fn test_names(source: &str) -> Vec<&str> {
    let names = source.lines().filter_map(|line| line.trim().strip_prefix("TEST("));
    names.filter_map(|rest| rest.strip_suffix("),")).collect()
}

/// Each test of a program in `tests/integration/c` as a Rust test, and one test that the list is
/// complete.
macro_rules! c_tests {
    ($source:literal: $($test:ident)*) => {
        static PROGRAM: std::sync::LazyLock<crate::fixture::Program> = std::sync::LazyLock::new(|| {
            crate::fixture::Program::new(concat!("capi/tests/integration/", $source))
        });

        $(#[test]
        fn $test() {
            PROGRAM.run(stringify!($test));
        })*

        #[test]
        fn every_test_of_the_c_program_is_listed() {
            assert_eq!(crate::fixture::test_names(include_str!($source)), [$(stringify!($test)),*]);
        }
    };
}
pub(crate) use c_tests;
