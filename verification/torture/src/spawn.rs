//! Child processes, started from the same program.

use std::ffi::OsString;
use std::fmt::Display;
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

/// A program and its first arguments; the child's own arguments follow.
#[derive(Clone, Debug)]
pub struct ChildCommand(pub Vec<OsString>);

/// An environment variable of a child and its value.
pub type EnvSetting<'a> = (&'a str, &'a str);

impl ChildCommand {
    /// This program, with a hidden sub-command.
    pub fn own(sub_command: &str) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|e| format!("own path: {e}"))?;
        Ok(Self(vec![program.into_os_string(), sub_command.into()]))
    }

    /// Starts a child. Its standard error is appended to `errors`.
    pub fn start(
        &self,
        words: &[String],
        settings: &[EnvSetting<'_>],
        errors: &Path,
    ) -> Result<Child, String> {
        self.start_with(words, settings, errors, Stdio::null)
    }

    /// Starts a child whose standard input and output are what `stdio` returns.
    pub fn start_with(
        &self,
        words: &[String],
        settings: &[EnvSetting<'_>],
        errors: &Path,
        stdio: fn() -> Stdio,
    ) -> Result<Child, String> {
        let (program, first) = self.0.split_first().ok_or("no program to start")?;
        let file = File::options()
            .create(true)
            .append(true)
            .open(errors)
            .map_err(|e| format!("{}: {e}", errors.display()))?;
        Command::new(program)
            .args(first)
            .args(words)
            .env_remove("NEARSTATE_CRASH_AT")
            .envs(settings.iter().copied())
            .stdin(stdio())
            .stdout(stdio())
            .stderr(file)
            .spawn()
            .map_err(|e| format!("cannot start {:?}: {e}", self.0))
    }
}

/// True if a child ended by SIGKILL.
pub fn was_killed(status: ExitStatus) -> bool {
    status.signal() == Some(9)
}

/// Kills a child, which must have been running until then.
pub(crate) fn kill(child: &mut Child, name: &str, errors: &Path) -> Result<(), String> {
    let _ = child.kill();
    let status = child.wait().map_err(|e| format!("wait: {e}"))?;
    if was_killed(status) { Ok(()) } else { Err(exit_error(name, status, errors)) }
}

/// The error of a child that has exited by itself, with its standard error.
pub(crate) fn exit_error(name: &str, status: impl Display, errors: &Path) -> String {
    let error_output = std::fs::read_to_string(errors).unwrap_or_default();
    format!("{name} exited with {status}: {}", error_output.trim())
}

/// The file of a child's standard error.
pub(crate) fn errors_path(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.errors"))
}
