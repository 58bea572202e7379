//! The node: `nearstate serve` on the run's region, as a process that is killed.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::connection::NodeConnection;
use crate::error_context::ErrorContext as _;
use crate::spawn::{ChildCommand, ChildProcess, ChildRole};
use nearstate_resp_client::RespReply;

/// Longer than any start takes on a busy machine. A node that exits earlier is detected at once.
const START_MAX: Duration = Duration::from_secs(60);

/// How often a starting node is polled.
const POLL_EVERY: Duration = Duration::from_micros(300);

/// The log event with the node's address.
const SERVING: &str = "NS-1002";

/// A running node. Its standard error is its log.
pub(super) struct NodeProcess {
    child: ChildProcess,
    folder: PathBuf,
    begin: Instant,
    /// The TCP address; known once the node serves.
    address: String,
}

fn socket(folder: &Path) -> PathBuf {
    folder.join("s")
}

/// Replaces this process, a child that [`NodeProcess::spawn`] has started, by a node.
pub(crate) fn serve(folder: &Path) -> Result<(), String> {
    let program = std::env::current_exe().context("own path")?;
    let mut command = Command::new(program);
    command.args(["serve", "--listen", "127.0.0.1:0", "--cores", "2", "--unix"]);
    command.arg(socket(folder)).arg("--region").arg(folder.join("region"));
    // The run's own settings are not meant for the node.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("NEARSTATE_") {
            command.env_remove(name);
        }
    }
    // The process identity is kept, so the node still exits with its parent.
    Err(format!("cannot become a node: {}", command.exec()))
}

impl NodeProcess {
    /// Starts a node without waiting for it.
    pub(super) fn spawn(
        starter: &ChildCommand,
        folder: &Path,
        number: u64,
    ) -> Result<Self, String> {
        let begin = Instant::now();
        let role = ChildRole { role: "served-node", number, ..ChildRole::default() };
        let child = starter.start(folder, &role)?;
        Ok(Self { child, folder: folder.to_owned(), begin, address: String::new() })
    }

    /// Waits until the node replies at its Unix socket, and returns the time since its start.
    pub(super) fn wait_until_serving(&mut self) -> Result<Duration, String> {
        let took = loop {
            self.check_running()?;
            // The socket of the previous node still exists, but nothing listens on it.
            if let Ok(mut connection) = NodeConnection::unix(&socket(&self.folder)) {
                let reply = connection.request(&[b"PING"])?;
                if reply == RespReply::Simple(b"PONG".to_vec()) {
                    break self.begin.elapsed();
                }
                return Err(format!("PING received {reply}"));
            }
            std::thread::sleep(POLL_EVERY);
        };
        // The node serves, but its log may lag behind.
        while self.address.is_empty() {
            self.check_running()?;
            let log = self.read_log();
            let lines = log.lines().filter(|line| line.contains(SERVING));
            let mut addresses = lines.filter_map(|line| line.split("address=").nth(1));
            let address = addresses.find(|address| address.starts_with("127.0.0.1:"));
            let word = address.and_then(|address| address.split_whitespace().next());
            word.unwrap_or_default().clone_into(&mut self.address);
            std::thread::sleep(POLL_EVERY);
        }
        Ok(took)
    }

    /// The node must not exit by itself, and must not take too long.
    fn check_running(&mut self) -> Result<(), String> {
        self.child.check_running()?;
        if self.begin.elapsed() > START_MAX {
            return Err(format!("the node neither serves nor exits: {}", self.read_log()));
        }
        Ok(())
    }

    fn read_log(&self) -> String {
        self.child.error_output()
    }

    /// Connects a client, every second one over TCP.
    pub(super) fn client(&self, number: usize) -> Result<NodeConnection, String> {
        let connection = if number.is_multiple_of(2) {
            NodeConnection::tcp(&self.address)
        } else {
            NodeConnection::unix(&socket(&self.folder))
        };
        connection.map_err(|e| format!("the node does not accept: {e}: {}", self.read_log()))
    }

    /// Kills the node, which must have been running until then.
    pub(super) fn kill(mut self) -> Result<(), String> {
        self.child.kill()?;
        self.child.remove_errors();
        Ok(())
    }

    /// Asks the node to exit, and waits for it.
    pub(super) fn stop(mut self) -> Result<(), String> {
        let pid = i32::try_from(self.child.process.id()).map_err(|e| e.to_string())?;
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::SIGTERM)
            .context("SIGTERM")?;
        self.child.wait_for_success().context("after SIGTERM")?;
        self.child.remove_errors();
        Ok(())
    }
}
