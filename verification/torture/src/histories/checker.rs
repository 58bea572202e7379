//! The checker: a small Go program that uses Porcupine (`verification/histories`). It is built when
//! it is first needed, beside this program, and used over pipes.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::{env, fs};

use super::history::History;
use crate::error_context::ErrorContext as _;
use crate::rng::mix;

/// The checker's sources: part of this program, so that it can be built anywhere.
const SOURCES: [(&str, &str); 3] = [
    ("main.go", include_str!("../../../histories/main.go")),
    ("go.mod", include_str!("../../../histories/go.mod")),
    ("go.sum", include_str!("../../../histories/go.sum")),
];

/// Milliseconds that one history may take. Most take a few. Undecided histories are counted.
const LIMIT_MS: u64 = 20_000;

/// The checker's result for a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckerVerdict {
    /// One order explains every result.
    Legal,
    /// No order explains every result.
    Illegal,
    /// No decision within the time limit.
    Undecided,
}

/// A running checker.
#[derive(Debug)]
pub struct HistoryChecker {
    child: Child,
    questions: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl HistoryChecker {
    /// Builds the checker if necessary, and starts it.
    pub fn start() -> Result<Self, String> {
        let program = built()?;
        let mut command = Command::new(&program);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child =
            command.spawn().map_err(|e| format!("cannot start {}: {e}", program.display()))?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(questions), Some(answers)) => {
                let answers = BufReader::new(answers);
                Ok(Self { child, questions: Some(questions), answers })
            }
            _ => Err("the checker has no pipes".to_owned()),
        }
    }

    /// Checks one history. If it is illegal, `page` shows how far it can be ordered.
    pub fn ask(&mut self, history: &History, page: &Path) -> Result<CheckerVerdict, String> {
        let gone = |e: std::io::Error| format!("communication with the checker: {e}");
        let question = history.json(LIMIT_MS, &page.to_string_lossy());
        if let Some(questions) = &mut self.questions {
            questions.write_all(format!("{question}\n").as_bytes()).map_err(gone)?;
        }
        let mut line = String::new();
        self.answers.read_line(&mut line).map_err(gone)?;
        match line.trim_end().strip_prefix(&history.name).map(str::trim) {
            Some("legal") => Ok(CheckerVerdict::Legal),
            Some("illegal") => Ok(CheckerVerdict::Illegal),
            Some("undecided") => Ok(CheckerVerdict::Undecided),
            _ => Err(format!("unexpected reply {line:?} of the checker for {}", history.name)),
        }
    }
}

impl Drop for HistoryChecker {
    fn drop(&mut self) {
        drop(self.questions.take());
        let _ = self.child.wait();
    }
}

/// The program, built from the sources that this program contains.
fn built() -> Result<PathBuf, String> {
    let print = SOURCES
        .iter()
        .flat_map(|(_, text)| text.bytes())
        .fold(0_u64, |print, byte| mix(print ^ u64::from(byte)));
    let own = env::current_exe().context("own path")?;
    let folder = own.parent().unwrap_or(Path::new(".")).join("histories");
    let program = folder.join(format!("histories-{print:016x}"));
    if program.is_file() {
        return Ok(program);
    }
    fs::create_dir_all(&folder).context(folder.display())?;
    build(&program).map(|()| program)
}

fn build(program: &Path) -> Result<(), String> {
    // Two runs may build at the same time: each in its own folder, and one of them wins.
    let folder = program.with_extension(std::process::id().to_string());
    fs::create_dir_all(&folder).context(folder.display())?;
    let built = build_in(&folder, program);
    let _ = fs::remove_dir_all(&folder);
    built
}

fn build_in(folder: &Path, program: &Path) -> Result<(), String> {
    for (name, text) in SOURCES {
        let file = folder.join(name);
        fs::write(&file, text).context(file.display())?;
    }
    let output = Command::new(go()?)
        .args(["build", "-o", "checker", "."])
        .env("GOTOOLCHAIN", "local")
        .env("GOFLAGS", "-mod=readonly")
        .current_dir(folder)
        .output()
        .context("starting go")?;
    if !output.status.success() {
        let error_output = String::from_utf8_lossy(&output.stderr);
        return Err(format!(
            "go could not build the checker of histories: {}",
            error_output.trim()
        ));
    }
    let from = folder.join("checker");
    fs::rename(&from, program).context(program.display())
}

/// The go tool: on the PATH, or in the folder of its own installer.
fn go() -> Result<PathBuf, String> {
    let path = env::var_os("PATH").unwrap_or_default();
    let places = env::split_paths(&path).chain([PathBuf::from("/usr/local/go/bin")]);
    places.map(|folder| folder.join("go")).find(|program| program.is_file()).ok_or_else(|| {
        "the checker of histories is a Go program, and there is no go here: apt-get install -y \
         golang-go, or leave histories out with --histories 0"
            .to_owned()
    })
}
