//! Child processes, started from the same program.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

/// A program and its first arguments; the child's own arguments follow.
#[derive(Clone, Debug)]
pub struct ChildCommand(pub Vec<OsString>);

/// An environment variable of a child and its value.
pub type EnvSetting<'a> = (&'a str, &'a str);

impl ChildCommand {
    /// This program, with a hidden sub-command.
    ///
    /// # Errors
    /// The operating system's error.
    pub fn own(sub_command: &str) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|e| format!("own path: {e}"))?;
        Ok(Self(vec![program.into_os_string(), sub_command.into()]))
    }

    /// Starts a child. Its standard error is appended to `errors`.
    ///
    /// # Errors
    /// The operating system's error.
    pub fn start(
        &self,
        words: &[String],
        settings: &[EnvSetting<'_>],
        errors: &Path,
    ) -> Result<Child, String> {
        let mut command = self.command(words, settings, errors)?;
        command.stdin(Stdio::null()).stdout(Stdio::null());
        self.spawn(&mut command)
    }

    /// Starts a child whose standard input and output are pipes.
    ///
    /// # Errors
    /// The operating system's error.
    pub fn start_piped(
        &self,
        words: &[String],
        settings: &[EnvSetting<'_>],
        errors: &Path,
    ) -> Result<Child, String> {
        let mut command = self.command(words, settings, errors)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        self.spawn(&mut command)
    }

    fn command(
        &self,
        words: &[String],
        settings: &[EnvSetting<'_>],
        errors: &Path,
    ) -> Result<Command, String> {
        let (program, first) = self.0.split_first().ok_or("no program to start")?;
        let file = File::options()
            .create(true)
            .append(true)
            .open(errors)
            .map_err(|e| format!("{}: {e}", errors.display()))?;
        let mut command = Command::new(program);
        command
            .args(first)
            .args(words)
            .env_remove("NEARSTATE_CRASH_AT")
            .envs(settings.iter().copied())
            .stderr(file);
        Ok(command)
    }

    fn spawn(&self, command: &mut Command) -> Result<Child, String> {
        command.spawn().map_err(|e| format!("cannot start {:?}: {e}", self.0))
    }
}

/// True if a child ended by SIGKILL.
pub fn was_killed(status: ExitStatus) -> bool {
    status.signal() == Some(9)
}
