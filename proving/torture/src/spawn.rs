//! Children: real processes, started from the same binary.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

/// How a child is started: a program and its first words; the child's own words follow.
#[derive(Clone, Debug)]
pub struct Starter(pub Vec<OsString>);

/// What an environment variable of a child is set to.
pub type Setting<'a> = (&'a str, &'a str);

impl Starter {
    /// This binary, with a hidden sub-command.
    ///
    /// # Errors
    /// The system's, in words.
    pub fn own(sub_command: &str) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|e| format!("own path: {e}"))?;
        Ok(Self(vec![program.into_os_string(), sub_command.into()]))
    }

    /// Starts a child. What it has to say goes to `errors`.
    ///
    /// # Errors
    /// The system's, in words.
    pub fn start(
        &self,
        words: &[String],
        settings: &[Setting<'_>],
        errors: &Path,
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
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file)
            .spawn()
            .map_err(|e| format!("cannot start {}: {e}", program.display()))
    }
}

/// True if a child ended by SIGKILL.
pub fn was_killed(status: ExitStatus) -> bool {
    status.signal() == Some(9)
}
