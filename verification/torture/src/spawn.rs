//! Child processes, started from the same program.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use crate::error_context::ErrorContext as _;

/// A program and its first arguments; the child's own arguments follow.
#[derive(Clone, Debug)]
pub struct ChildCommand(pub Vec<OsString>);

/// An environment variable of a child and its value.
pub type EnvSetting<'a> = (&'a str, &'a str);

/// What a child does: its arguments `ROLE FOLDER NUMBER SEED ROUND MORE`, and its environment.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChildRole<'a> {
    pub role: &'a str,
    pub number: u64,
    pub seed: u64,
    pub round: u64,
    pub more: &'a str,
    pub settings: &'a [EnvSetting<'a>],
    /// True if its standard input and output are pipes.
    pub has_pipes: bool,
}

impl ChildCommand {
    /// This program, with a hidden sub-command.
    pub fn own(sub_command: &str) -> Result<Self, String> {
        let program = std::env::current_exe().context("own path")?;
        Ok(Self(vec![program.into_os_string(), sub_command.into()]))
    }

    /// Starts a child. Its standard error goes to a file in the folder.
    pub fn start(&self, folder: &Path, role: &ChildRole<'_>) -> Result<ChildProcess, String> {
        let name = format!("{}-{}", role.role, role.number);
        let errors = folder.join(format!("{name}.errors"));
        let file = File::create(&errors).context(errors.display())?;
        let (program, first) = self.0.split_first().ok_or("no program to start")?;
        let stdio = if role.has_pipes { Stdio::piped } else { Stdio::null };
        let process = Command::new(program)
            .args(first)
            .arg(role.role)
            .arg(folder)
            .args([role.number, role.seed, role.round].map(|number| number.to_string()))
            .arg(role.more)
            .env_remove("NEARSTATE_CRASH_AT")
            .envs(role.settings.iter().copied())
            .stdin(stdio())
            .stdout(stdio())
            .stderr(file)
            .spawn()
            .map_err(|e| format!("cannot start {:?}: {e}", self.0))?;
        Ok(ChildProcess { process, name, errors })
    }
}

/// A child process. Dropping it kills the process.
#[derive(Debug)]
pub struct ChildProcess {
    pub process: Child,
    /// Its role and number.
    name: String,
    /// The file of its standard error.
    errors: PathBuf,
}

impl ChildProcess {
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it has written to standard error.
    pub fn error_output(&self) -> String {
        fs::read_to_string(&self.errors).unwrap_or_default()
    }

    /// Removes the file of its standard error.
    pub(crate) fn remove_errors(&self) {
        let _ = fs::remove_file(&self.errors);
    }

    /// The error of a child that has exited by itself, with its standard error.
    pub(crate) fn exit_error(&self, status: ExitStatus) -> String {
        format!("{} exited with {status}: {}", self.name, self.error_output().trim())
    }

    /// Fails if it has exited.
    pub(crate) fn check_running(&mut self) -> Result<(), String> {
        match self.process.try_wait() {
            Ok(Some(status)) => Err(self.exit_error(status)),
            Ok(None) | Err(_) => Ok(()),
        }
    }

    pub(crate) fn wait(&mut self) -> Result<ExitStatus, String> {
        self.process.wait().context("wait")
    }

    /// Waits for a child that must end with success.
    pub(crate) fn wait_for_success(&mut self) -> Result<(), String> {
        let status = self.wait()?;
        if status.success() { Ok(()) } else { Err(self.exit_error(status)) }
    }

    /// Kills the child, which must have been running until then.
    pub(crate) fn kill(&mut self) -> Result<(), String> {
        let _ = self.process.kill();
        let status = self.wait()?;
        if was_killed(status) { Ok(()) } else { Err(self.exit_error(status)) }
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// True if a child ended by SIGKILL.
pub fn was_killed(status: ExitStatus) -> bool {
    status.signal() == Some(9)
}
