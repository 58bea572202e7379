//! Running other programs: shown on the terminal or read, never with an open standard input.

use std::env;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The cargo that runs this program.
pub(crate) fn cargo() -> Command {
    Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// The root of the workspace that this program was started from.
pub(crate) fn root() -> Result<PathBuf, String> {
    if let Some(xtask) = env::var_os("CARGO_MANIFEST_DIR")
        && let Some(root) = Path::new(&xtask).parent()
    {
        return Ok(root.to_path_buf());
    }
    let manifest =
        read(cargo().args(["locate-project", "--workspace", "--message-format", "plain"]))?;
    Path::new(manifest.trim())
        .parent()
        .map(Path::to_path_buf)
        .ok_or_else(|| "no workspace here: start `cargo xtask` inside the checkout".to_owned())
}

/// Cargo's build folder.
pub(crate) fn build_folder(root: &Path) -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

/// The words of a command, for a person to repeat.
pub(crate) fn words(command: &Command) -> String {
    let name = Path::new(command.get_program()).file_name().unwrap_or_default();
    let settings = command
        .get_envs()
        .filter_map(|(key, value)| Some(format!("{}={:?} ", key.display(), value?.to_str()?)));
    let arguments = command.get_args().map(|word| format!(" {}", word.display()));
    format!("{}{}{}", settings.collect::<String>(), name.display(), arguments.collect::<String>())
}

/// Runs a command with its output on the terminal. The error says how it ended.
pub(crate) fn show(command: &mut Command) -> Result<(), String> {
    println!("$ {}", words(command));
    let status =
        command.stdin(Stdio::null()).status().map_err(|error| not_started(command, &error))?;
    if status.success() { Ok(()) } else { Err(format!("`{}`: {status}", words(command))) }
}

/// Runs a command and returns what it printed. The error holds what it complained about.
pub(crate) fn read(command: &mut Command) -> Result<String, String> {
    let output =
        command.stdin(Stdio::null()).output().map_err(|error| not_started(command, &error))?;
    if output.status.success() {
        String::from_utf8(output.stdout)
            .map_err(|_| format!("`{}` printed something that is not UTF-8", words(command)))
    } else {
        let complaint = String::from_utf8_lossy(&output.stderr);
        Err(format!("`{}`: {}\n{}", words(command), output.status, complaint.trim_end()))
    }
}

/// Is there a program of this name on the PATH?
pub(crate) fn is_program(name: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| folder.join(name).is_file())
}

/// Why a program could not even start.
pub(crate) fn not_started(command: &Command, error: &std::io::Error) -> String {
    let name = command.get_program().display();
    if error.kind() == ErrorKind::NotFound {
        format!("`{name}` is not installed, or not on the PATH")
    } else {
        format!("`{name}` did not start: {error}")
    }
}
