//! A long test of clients: each client's program uses a node that is killed during the run.
//!
//! A program reports `ok NAME` for each part that passes, and `kill` when the node is to be killed.
//! The node then starts again with the same region and at the same address, and the program reads
//! `restarted`. The parts that a program must report are listed here, so that none is left out
//! unnoticed.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use std::{fs, thread};

use crate::client_programs::{prepare, version};
use crate::programs::TestServer;

/// The longest time between two lines of a program. The slowest part takes some seconds.
const LINE_MAX: Duration = Duration::from_secs(120);

/// The parts that most clients have.
const ALL: &[&str] = &[
    "strings",
    "hashes",
    "sets",
    "transactions",
    "pipelines",
    "scan",
    "expiry",
    "pubsub",
    "sentinel",
    "reconnection",
];

/// The parts of the SDL, which has neither hashes nor transactions.
const SDL: &[&str] = &["strings", "sets", "scan", "expiry", "pubsub", "sentinel", "reconnection"];

/// The C++ SDL sends these.
const CPP_SDL: &[&str] =
    &["commands", "strings", "scan", "pubsub", "pipelines", "sentinel", "reconnection"];

/// A client and what its program must report.
#[derive(Debug)]
pub struct SoakClient {
    pub name: &'static str,
    /// Parts in any order.
    parts: &'static [&'static str],
    /// It has a client-side cache, which is one more part.
    has_cache: bool,
    /// What the program stands for, if it is not the client itself.
    remark: &'static str,
}

const fn client(name: &'static str, parts: &'static [&'static str]) -> SoakClient {
    SoakClient { name, parts, has_cache: false, remark: "" }
}

const fn caching(name: &'static str) -> SoakClient {
    SoakClient { has_cache: true, ..client(name, ALL) }
}

/// All clients.
pub const CLIENTS: &[SoakClient] = &[
    client("ricsdl", SDL),
    SoakClient {
        remark: "its requests through go-redis v8: the module proxy does not have sdlgo",
        ..client("sdlgo", SDL)
    },
    SoakClient {
        remark: "its requests through hiredis: no registry has O-RAN's C++ SDL",
        ..client("cpp-sdl", CPP_SDL)
    },
    caching("redis-py"),
    client("go-redis", ALL),
    client("ioredis", ALL),
    caching("node-redis"),
    caching("jedis"),
    caching("lettuce"),
    client("redis-rs", ALL),
];

/// Runs all clients, or the one with this name. Returns whether all passed.
pub fn run(only: Option<&str>) -> Result<bool, String> {
    let chosen: Vec<&SoakClient> =
        CLIENTS.iter().filter(|client| only.is_none_or(|name| client.name == name)).collect();
    if chosen.is_empty() {
        let names: Vec<&str> = CLIENTS.iter().map(|client| client.name).collect();
        return Err(format!(
            "unknown client {:?}: the clients are {}",
            only.unwrap_or_default(),
            names.join(", ")
        ));
    }
    let mut rows = Vec::new();
    for (index, client) in chosen.iter().enumerate() {
        println!("── {}/{} {}", index + 1, chosen.len(), client.name);
        let begun = Instant::now();
        let result = client.run();
        if let Err(error) = &result {
            println!("{error}");
        }
        rows.push((client, begun.elapsed(), result));
    }
    println!("\n{:<11} {:<6} {:>5} {:>7}  version", "client", "result", "parts", "seconds");
    for (client, took, result) in &rows {
        let shown = if result.is_ok() { "ok" } else { "FAIL" };
        let parts = result.as_ref().map_or(0, |parts| *parts);
        let version = version(client.name).unwrap_or_else(|error| error);
        let remark = if client.remark.is_empty() { "" } else { ": " };
        let seconds = took.as_secs_f64();
        println!(
            "{:<11} {shown:<6} {parts:>5} {seconds:>7.1}  {version}{remark}{}",
            client.name, client.remark
        );
    }
    Ok(rows.iter().all(|(_, _, result)| result.is_ok()))
}

impl SoakClient {
    /// Runs the client's program. Returns the number of parts.
    fn run(&self) -> Result<usize, String> {
        let mut command = prepare(self.name)?;
        let sentinel = TcpListener::bind("127.0.0.1:0").and_then(|bound| bound.local_addr());
        let sentinel = sentinel.map_err(|error| format!("no free port: {error}"))?;
        let mut node = TestServer::node(&["--resp-sentinel-listen", &sentinel.to_string()])?;
        command
            .env("NEARSTATE_HOST", node.address.ip().to_string())
            .env("NEARSTATE_PORT", node.address.port().to_string())
            .env("NEARSTATE_SENTINEL_PORT", sentinel.port().to_string());
        let errors = node.folder().join("client");
        let mut program = RunningClient::start(&mut command, &errors)?;
        let result = self.follow(&mut program, &mut node);
        result.map_err(|error| {
            let complaint = fs::read_to_string(&errors).unwrap_or_default();
            format!("{error}\n{complaint}\nthe node: {}", node.error_output())
        })
    }

    /// Follows a program to its end.
    fn follow(&self, program: &mut RunningClient, node: &mut TestServer) -> Result<usize, String> {
        let mut missing: Vec<&str> = self.parts.to_vec();
        missing.extend(self.has_cache.then_some("caching"));
        let parts = missing.len();
        let mut is_killed = false;
        while let Some(line) = program.next_line()? {
            println!("  {line}");
            if line == "kill" {
                node.kill_and_restart()?;
                is_killed = true;
                program.send("restarted\n")?;
            }
            if let Some(name) = line.strip_prefix("ok ") {
                missing.retain(|part| *part != name);
            }
        }
        program.check_exit()?;
        if !missing.is_empty() || !is_killed {
            return Err(format!("the program did not report: {}", missing.join(", ")));
        }
        if node.is_running() { Ok(parts) } else { Err("the node has exited".to_owned()) }
    }
}

/// A client's program. Dropping it kills the process.
struct RunningClient {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

impl RunningClient {
    fn start(command: &mut Command, errors: &Path) -> Result<Self, String> {
        let file = fs::File::create(errors).map_err(|error| error.to_string())?;
        let name = command.get_program().display().to_string();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(file);
        let mut child = command.spawn().map_err(|error| format!("{name}: {error}"))?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(format!("{name} has no pipes"));
        };
        Ok(Self { child, stdin, lines: read_lines(stdout) })
    }

    /// The next line, or `None` at the end.
    fn next_line(&self) -> Result<Option<String>, String> {
        match self.lines.recv_timeout(LINE_MAX) {
            Ok(line) => Ok(Some(line)),
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(RecvTimeoutError::Timeout) => {
                Err(format!("the program printed nothing for {LINE_MAX:?}"))
            }
        }
    }

    fn send(&mut self, line: &str) -> Result<(), String> {
        self.stdin.write_all(line.as_bytes()).map_err(|error| format!("the program: {error}"))
    }

    fn check_exit(&mut self) -> Result<(), String> {
        let status = self.child.wait().map_err(|error| error.to_string())?;
        if status.success() { Ok(()) } else { Err(format!("the program: {status}")) }
    }
}

impl Drop for RunningClient {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_lines(stdout: ChildStdout) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_client_is_rejected_with_the_names_of_all() {
        let error = run(Some("jedi")).unwrap_err();
        assert!(CLIENTS.iter().all(|client| error.contains(client.name)), "{error}");
    }

    #[test]
    fn every_client_has_a_pinned_version() {
        for client in CLIENTS.iter().filter(|client| client.name != "cpp-sdl") {
            let version = version(client.name).unwrap();
            assert!(version.contains(|c: char| c.is_ascii_digit()), "{}: {version}", client.name);
        }
    }
}
