//! A small process that cleans up after the orchestrator, whatever became of it.
//!
//! The orchestrator may be interrupted or killed; then nobody would stop the Redis that it started
//! or remove the gigabyte that it left in memory. So a keeper owns them. It is this same program
//! started again, in a process group of its own that a terminal's Ctrl-C does not reach, and it
//! cleans up when its standard input ends: on request, or because the orchestrator is gone.

use nearstate_model::{Error, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use std::ffi::OsString;
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::{env, fs};

/// The program that plays our roles, where it is not the one that runs.
static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// A folder in memory, and perhaps a server in it, that vanish when this is dropped.
#[derive(Debug)]
pub struct Keeper {
    process: Child,
    folder: PathBuf,
}

impl Keeper {
    /// Makes a fresh folder below `parent` and has it kept, with `server` started beside it: its
    /// arguments come from `arguments`, which is told the folder.
    ///
    /// # Errors
    /// [`Error::System`] if the folder cannot be made or the keeper cannot be started.
    pub fn start(
        parent: &Path,
        server: Option<&str>,
        arguments: impl FnOnce(&Path) -> Vec<OsString>,
    ) -> Result<Self> {
        let folder = fresh_folder(parent)?;
        let mut command = Command::new(own_program()?);
        command.args(["bench", "access-keeper"]).arg(&folder);
        if let Some(server) = server {
            command.arg("--").arg(server).args(arguments(&folder));
        }
        command.stdin(Stdio::piped()).stdout(Stdio::null()).process_group(0);
        let process = command.spawn().map_err(|e| {
            let _ = fs::remove_dir(&folder);
            system("starting the keeper of the benchmark's folder", &e)
        })?;
        Ok(Self { process, folder })
    }

    /// The folder that is kept.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The process that is the keeper; the server is its child.
    pub fn process(&self) -> u32 {
        self.process.id()
    }

    /// Whether the keeper, and with it the server, has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.process.try_wait(), Ok(None))
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// The life of a keeper process: starts `server`, waits until its input ends, stops the server by
/// its process id and removes the folder.
///
/// # Errors
/// [`Error::System`] if the server cannot be started.
pub fn serve(folder: &Path, server: &[OsString]) -> Result<()> {
    let outcome = keep(server);
    let _ = fs::remove_dir_all(folder);
    outcome
}

fn keep(server: &[OsString]) -> Result<()> {
    // Somebody ends all programs of our name: the orchestrator's end is what a keeper goes by, and
    // without one nobody would stop the server. It has its own signals again once it runs.
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        flag::register(signal, Arc::default())
            .map_err(|e| system("taking the signals that end programs", &e))?;
    }
    let mut child = match server.split_first() {
        None => None,
        Some((program, arguments)) => {
            let mut command = Command::new(program);
            command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
            Some(
                command
                    .spawn()
                    .map_err(|e| system(&format!("starting {}", program.display()), &e))?,
            )
        }
    };
    let mut ignored = Vec::new();
    let _ = std::io::stdin().lock().read_to_end(&mut ignored);
    if let Some(child) = &mut child {
        let _ = child.kill();
        let _ = child.wait();
    }
    Ok(())
}

/// The program that is running, to be started again in another role.
///
/// # Errors
/// [`Error::System`] if the kernel does not say which one it is.
pub fn own_program() -> Result<PathBuf> {
    if let Some(program) = PROGRAM.get() {
        return Ok(program.clone());
    }
    env::current_exe().map_err(|e| system("finding this program's own file", &e))
}

/// Names the program that plays our roles from now on. For tests, whose own program knows none; the
/// first word counts.
pub fn play_roles_with(program: &Path) {
    let _ = PROGRAM.set(program.to_owned());
}

fn fresh_folder(parent: &Path) -> Result<PathBuf> {
    for number in 0..10_000 {
        let folder = parent.join(format!("nearstate-bench-{}-{number}", std::process::id()));
        match fs::create_dir(&folder) {
            Ok(()) => return Ok(folder),
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(e) => {
                let detail =
                    format!("making a folder in {}: give another with --dir", parent.display());
                return Err(system(&detail, &e));
            }
        }
    }
    Err(Error::AlreadyExists { path: parent.join("nearstate-bench-*") })
}

/// An operating system's refusal, with what was being done.
pub fn system(detail: &str, e: &std::io::Error) -> Error {
    Error::System { detail: detail.to_owned(), errno: e.raw_os_error().unwrap_or(0) }
}
