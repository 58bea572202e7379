//! Python clients: a virtual environment for each list of pinned packages, in the build folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::programs::{Server, build_folder, root, told};

/// Lets a script of `python/` use a server, with the packages of its list. What it said.
///
/// # Errors
/// What is missing, or what failed.
pub fn run(script: &str, list: &str, server: &Server) -> Result<String, String> {
    let folder = root().join("verification/clients/python");
    let python = environment(list, &folder.join(format!("requirements-{list}.txt")))?;
    let mut command = Command::new(python);
    command.arg("-B").arg(folder.join(script));
    command.env("NEARSTATE_HOST", server.address.ip().to_string());
    command.env("NEARSTATE_PORT", server.address.port().to_string());
    told(&mut command)
}

/// The Python of an environment that has these packages; made if need be.
fn environment(name: &str, list: &Path) -> Result<PathBuf, String> {
    let wanted = fs::read_to_string(list).map_err(|why| format!("{}: {why}", list.display()))?;
    let folder = build_folder()?.join(format!("clients-{name}"));
    let python = folder.join("bin/python");
    // Says which list was installed to its end.
    let stamp = folder.join("installed.txt");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(python);
    }
    told(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder))?;
    let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    told(Command::new(&python).args(install).arg("--requirement").arg(list)).map_err(|why| {
        let list = list.display();
        format!("the packages of {list} come from PyPI, which must be in reach once: {why}")
    })?;
    fs::write(&stamp, wanted).map_err(|why| format!("{}: {why}", stamp.display()))?;
    Ok(python)
}

/// How many tests `unittest` has run well; `None` if it does not say so.
pub fn count(said: &str) -> Option<usize> {
    let (_, rest) = said.rsplit_once("\nRan ")?;
    let (count, rest) = rest.split_once(' ')?;
    rest.contains("\nOK").then_some(count)?.parse().ok()
}
