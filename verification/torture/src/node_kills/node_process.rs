//! The node: `nearstate serve` on the run's region, as a process that is killed.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use super::connection::NodeConnection;
use crate::spawn::{ChildCommand, was_killed};
use nearstate_resp_client::RespReply;

/// Longer than any start takes on a busy machine; a node that ends before is noticed at once.
const START_MAX: Duration = Duration::from_secs(60);

/// How often a starting node is looked at.
const LOOK_EVERY: Duration = Duration::from_micros(300);

/// The log's number of a line that says where it listens.
const SERVING: &str = "NS-1002";

/// A node that runs. Dropped, it is killed.
pub(super) struct NodeProcess {
    child: Child,
    folder: PathBuf,
    log: PathBuf,
    begun: Instant,
    /// Where it listens over TCP; known once it serves.
    address: String,
}

fn socket(folder: &Path) -> PathBuf {
    folder.join("s")
}

/// Becomes a node: the child of a run that [`NodeProcess::spawn`] has started.
pub(crate) fn serve(folder: &Path) -> Result<(), String> {
    let program = std::env::current_exe().map_err(|e| format!("own path: {e}"))?;
    let mut command = Command::new(program);
    command.args(["serve", "--listen", "127.0.0.1:0", "--cores", "2", "--unix"]);
    command.arg(socket(folder)).arg("--region").arg(folder.join("region"));
    // Settings of the run's own environment are not the node's.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("NEARSTATE_") {
            command.env_remove(name);
        }
    }
    // The process stays the same: it still ends with its starter.
    Err(format!("cannot become a node: {}", command.exec()))
}

impl NodeProcess {
    /// Starts a node, and does not wait.
    pub(super) fn spawn(
        starter: &ChildCommand,
        folder: &Path,
        number: u64,
    ) -> Result<Self, String> {
        let log = folder.join(format!("node-{number}.log"));
        let words = ["served-node", &folder.display().to_string(), "0", "0", "0"];
        let words = words.map(str::to_owned);
        let begun = Instant::now();
        let child = starter.start(&words, &[], &log)?;
        Ok(Self { child, folder: folder.to_owned(), log, begun, address: String::new() })
    }

    /// Waits until it answers, at its Unix socket, and says how long that took from its start.
    pub(super) fn answers(&mut self) -> Result<Duration, String> {
        let took = loop {
            self.look()?;
            // The socket of the node before is still there: nobody listens to it.
            if let Ok(mut connection) = NodeConnection::unix(&socket(&self.folder)) {
                let told = connection.request(&[b"PING"])?;
                if told == RespReply::Simple(b"PONG".to_vec()) {
                    break self.begun.elapsed();
                }
                return Err(format!("PING was answered with {told:?}"));
            }
            std::thread::sleep(LOOK_EVERY);
        };
        // It serves; its log may be behind.
        while self.address.is_empty() {
            self.look()?;
            let log = self.read_log();
            let lines = log.lines().filter(|line| line.contains(SERVING));
            let mut addresses = lines.filter_map(|line| line.split("address=").nth(1));
            let address = addresses.find(|address| address.starts_with("127.0.0.1:"));
            let word = address.and_then(|address| address.split_whitespace().next());
            word.unwrap_or_default().clone_into(&mut self.address);
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(took)
    }

    /// It must not end by itself, and it must not take too long.
    fn look(&mut self) -> Result<(), String> {
        if let Ok(Some(status)) = self.child.try_wait() {
            return Err(format!("the node ended with {status}: {}", self.read_log()));
        }
        if self.begun.elapsed() > START_MAX {
            return Err(format!("the node neither serves nor ends: {}", self.read_log()));
        }
        Ok(())
    }

    fn read_log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// A client: every second one comes over TCP.
    pub(super) fn client(&self, number: usize) -> Result<NodeConnection, String> {
        let connection = if number.is_multiple_of(2) {
            NodeConnection::tcp(&self.address)
        } else {
            NodeConnection::unix(&socket(&self.folder))
        };
        connection.map_err(|e| format!("the node does not accept: {e}: {}", self.read_log()))
    }

    /// Kills it. It must have lived until then.
    pub(super) fn kill(mut self) -> Result<(), String> {
        let _ = self.child.kill();
        let status = self.child.wait().map_err(|e| format!("wait: {e}"))?;
        if !was_killed(status) {
            return Err(format!("the node ended with {status}: {}", self.read_log()));
        }
        let _ = fs::remove_file(&self.log);
        Ok(())
    }

    /// Asks it to end, and waits until it has.
    pub(super) fn stop(mut self) -> Result<(), String> {
        let pid = i32::try_from(self.child.id()).map_err(|e| e.to_string())?;
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::SIGTERM)
            .map_err(|e| format!("SIGTERM: {e}"))?;
        let status = self.child.wait().map_err(|e| format!("wait: {e}"))?;
        if !status.success() {
            return Err(format!("told to stop, the node ended with {status}: {}", self.read_log()));
        }
        let _ = fs::remove_file(&self.log);
        Ok(())
    }
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
