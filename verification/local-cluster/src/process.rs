//! Processes of a host. Each ends when the thread that started it ends.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Runs a command that must succeed.
pub(crate) fn run(words: &[&str]) -> Result<(), String> {
    let (program, arguments) = words.split_first().ok_or("no program")?;
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("starting {program}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(format!("{}: {}", words.join(" "), text.trim()))
}

/// A running process, which is killed when this is dropped.
#[derive(Debug)]
pub struct HostProcess {
    child: Child,
    is_stopped: bool,
}

impl HostProcess {
    /// Starts a process. `prefix` is what its command begins with, such as the one that enters a
    /// namespace; its standard error is appended to a file.
    pub fn start(prefix: &[String], words: &[&str], log: &Path) -> Result<Self, String> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(log)
            .map_err(|error| format!("{}: {error}", log.display()))?;
        let ends_with_parent = ["setpriv", "--pdeathsig", "KILL"];
        let mut all = prefix.iter().map(String::as_str).chain(ends_with_parent);
        let program = all.next().unwrap_or_default().to_owned();
        let mut command = Command::new(&program);
        command.args(all).args(words);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("NEARSTATE_") {
                command.env_remove(name);
            }
        }
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(|error| format!("starting {program}: {error}"))?;
        Ok(Self { child, is_stopped: false })
    }

    /// Starts a Redis server on loopback, without persistence, in a folder, which has its log. A
    /// replica gets the first copy from its primary over the socket, at once.
    pub fn redis(
        program: &str,
        port: u16,
        primary: Option<u16>,
        folder: &Path,
    ) -> Result<Self, String> {
        let (port, dir) = (port.to_string(), folder.to_string_lossy());
        let primary = primary.map(|primary| primary.to_string());
        let mut words = vec![program, "--bind", "127.0.0.1", "--port", &port];
        words.extend(["--save", "", "--appendonly", "no", "--dir", &dir]);
        words.extend(["--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0"]);
        if let Some(primary) = &primary {
            words.extend(["--replicaof", "127.0.0.1", primary]);
        }
        Self::start(&[], &words, &folder.join("log"))
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    fn signal(&self, signal: Signal) -> Result<(), String> {
        let id = i32::try_from(self.child.id()).map_err(|error| error.to_string())?;
        kill(Pid::from_raw(id), signal).map_err(|error| format!("{signal} to {id}: {error}"))
    }

    /// SIGSTOP: it does not run until [`HostProcess::resume`].
    pub fn stop(&mut self) -> Result<(), String> {
        self.is_stopped = true;
        self.signal(Signal::SIGSTOP)
    }

    /// SIGCONT, if it is stopped.
    pub fn resume(&mut self) -> Result<(), String> {
        if std::mem::take(&mut self.is_stopped) { self.signal(Signal::SIGCONT) } else { Ok(()) }
    }

    /// How it ended, if it has.
    pub fn end(&mut self) -> Option<String> {
        self.child.try_wait().ok().flatten().map(|status| status.to_string())
    }
}

impl Drop for HostProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
