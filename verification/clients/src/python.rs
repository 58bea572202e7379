//! Python clients: a virtual environment for each list of pinned packages, in the build folder.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::programs::{TestServer, build_folder, output_of, root};

/// Runs a script of `python/` with a server and the packages of a list. Returns its output.
pub fn run(script: &str, list: &str, server: &TestServer) -> Result<String, String> {
    let mut command = Command::new(environment(list)?);
    command.arg("-B").arg(folder().join(script));
    command.env("NEARSTATE_HOST", server.address.ip().to_string());
    command.env("NEARSTATE_PORT", server.address.port().to_string());
    output_of(&mut command)
}

fn folder() -> PathBuf {
    root().join("verification/clients/python")
}

/// The Python program of an environment with the packages of a list, which is created if
/// necessary.
pub fn environment(name: &str) -> Result<PathBuf, String> {
    let list = folder().join(format!("requirements-{name}.txt"));
    let requested =
        fs::read_to_string(&list).map_err(|error| format!("{}: {error}", list.display()))?;
    let folder = build_folder()?.join(format!("clients-{name}"));
    let python = folder.join("bin/python");
    // The list that was installed completely.
    let stamp = folder.join("installed.txt");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == requested) {
        return Ok(python);
    }
    output_of(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder))?;
    let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    output_of(Command::new(&python).args(install).arg("--requirement").arg(&list)).map_err(
        |error| {
            let list = list.display();
            format!("PyPI must be reachable once for the packages of {list}: {error}")
        },
    )?;
    fs::write(&stamp, requested).map_err(|error| format!("{}: {error}", stamp.display()))?;
    Ok(python)
}

/// The number of tests that `unittest` reports, or `None` if some failed or it reports nothing.
pub fn count(output: &str) -> Option<usize> {
    let (_, rest) = output.rsplit_once("\nRan ")?;
    let (count, rest) = rest.split_once(' ')?;
    rest.contains("\nOK").then_some(count)?.parse().ok()
}
