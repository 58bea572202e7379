//! A process that cleans up after the orchestrator, however the orchestrator ends.
//!
//! An interrupted or killed orchestrator cannot stop the servers that it started or remove the
//! files that it left in memory. A reaper owns them instead. It is the same program, started again
//! in its own process group, which a terminal's Ctrl-C does not reach. It cleans up when its
//! standard input ends: on request, or because the orchestrator has exited.

use nearstate_model::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use signal_hook::consts::{SIGBUS, SIGKILL};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::low_level::signal_name;
use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Read, Write};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use std::{env, fs};

/// The last bytes of a server's output that are kept for an error: a dozen lines.
const LOG_BYTES_MAX: usize = 1024;

/// The longest line of a reaper. A byte that is not UTF-8 becomes three.
const LINE_BYTES_MAX: u64 = 16 << 10;

/// The time that a reaper waits for the end of its server's output.
const CLOSE_WAIT: Duration = Duration::from_millis(500);

/// The time that the orchestrator waits for the reaper's message.
const MESSAGE_WAIT: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

/// The program to start instead of this one.
static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// A folder in memory, with or without a server, that is removed when this is dropped.
#[derive(Debug)]
pub struct Reaper {
    process: Child,
    folder: PathBuf,
    /// Receives a line when the server ends.
    message: Option<ChildStdout>,
}

impl Reaper {
    /// Creates a folder in `parent` and starts `server` with `arguments(folder)`.
    pub fn start(
        parent: &Path,
        server: Option<&str>,
        arguments: impl FnOnce(&Path) -> Vec<OsString>,
    ) -> Result<Self> {
        let folder = fresh_folder(parent)?;
        let mut command = Command::new(own_program()?);
        command.args(["bench", "reaper"]).arg(&folder);
        if let Some(server) = server {
            command.arg("--").arg(server).args(arguments(&folder));
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut process = command.spawn().map_err(|e| {
            let _ = fs::remove_dir(&folder);
            system("starting the reaper of the benchmark's folder", &e)
        })?;
        let message = process.stdout.take();
        Ok(Self { process, folder, message })
    }

    /// How the server ended, and its last output, if the reaper reports it in time. `None` after
    /// the first call.
    pub fn exit_message(&mut self) -> Option<String> {
        let message = self.message.take()?;
        let mut ready = [PollFd::new(&message, PollFlags::IN)];
        poll(&mut ready, Some(&MESSAGE_WAIT)).ok().filter(|count| *count > 0)?;
        let mut line = Vec::new();
        BufReader::new(message).take(LINE_BYTES_MAX).read_until(b'\n', &mut line).ok()?;
        let line = String::from_utf8_lossy(&line).trim_end().to_owned();
        (!line.is_empty()).then_some(line)
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The process id of the reaper. The server is its child.
    pub fn process(&self) -> u32 {
        self.process.id()
    }

    /// True if the reaper, and with it the server, has ended.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.process.try_wait(), Ok(None))
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
        // If the reaper was killed, it has not removed the folder.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The main function of a reaper process: starts `server`, waits until the standard input ends,
/// kills the server and removes the folder.
pub fn serve(folder: &Path, server: &[OsString]) -> Result<()> {
    let outcome = run_server(server);
    let _ = fs::remove_dir_all(folder);
    outcome
}

fn run_server(server: &[OsString]) -> Result<()> {
    // These signals must not end a reaper, not even from `killall` with the program's name: no
    // other process would stop the server. The server starts with the default signal actions.
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        flag::register(signal, Arc::default())
            .map_err(|e| system("installing signal handlers", &e))?;
    }
    let mut child = match server.split_first() {
        None => None,
        Some((program, arguments)) => {
            let mut command = Command::new(program);
            command.args(arguments).stdin(Stdio::null());
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = command
                .spawn()
                .map_err(|e| system(&format!("starting {}", program.display()), &e))?;
            report_exit(&mut child);
            Some(child)
        }
    };
    let mut ignored = Vec::new();
    let _ = std::io::stdin().lock().read_to_end(&mut ignored);
    if let Some(child) = &mut child {
        let _ = child.kill();
        let _ = child.wait();
    }
    Ok(())
}

/// Reads a server's output. When the server ends, writes how it ended and its last lines to our
/// standard output. The server remains a zombie until then, so that its process id is not reused.
fn report_exit(child: &mut Child) {
    let last: Arc<Mutex<Vec<u8>>> = Arc::default();
    let (open, closed) = channel::<()>();
    if let Some(stdout) = child.stdout.take() {
        let (last, open) = (last.clone(), open.clone());
        std::thread::spawn(move || read_input(stdout, &last, std::io::sink(), open));
    }
    if let Some(stderr) = child.stderr.take() {
        let (last, open) = (last.clone(), open.clone());
        std::thread::spawn(move || read_input(stderr, &last, std::io::stderr(), open));
    }
    drop(open);
    let process = Pid::from_child(child);
    std::thread::spawn(move || {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let Ok(Some(status)) = waitid(WaitId::Pid(process), options) else { return };
        // A process that inherited the output may keep it open.
        let _ = closed.recv_timeout(CLOSE_WAIT);
        let mut line = exit_text(status.exit_status(), status.terminating_signal());
        let output = last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let output = single_line(&output);
        if !output.is_empty() {
            line.push_str(", last output: ");
            line.push_str(&output);
        }
        line.push('\n');
        // Standard output may be closed.
        let mut out = std::io::stdout().lock();
        let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
    });
}

/// Forwards an output and keeps its last bytes. Drops `_open` at the end of the output.
fn read_input(mut from: impl Read, last: &Mutex<Vec<u8>>, mut to: impl Write, _open: Sender<()>) {
    let mut piece = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut piece) {
        let piece = piece.get(..count).unwrap_or_default();
        let _ = to.write_all(piece);
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        last.extend_from_slice(piece);
        let too_many = last.len().saturating_sub(LOG_BYTES_MAX);
        last.drain(..too_many);
    }
}

/// The end of a log as one line.
pub fn single_line(log: &[u8]) -> String {
    let text =
        String::from_utf8_lossy(log.get(log.len().saturating_sub(LOG_BYTES_MAX)..).unwrap_or(log));
    let lines = text.split(['\n', '\r']).map(str::trim).filter(|line| !line.is_empty());
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    lines.map(|line| line.chars().map(plain).collect()).collect::<Vec<String>>().join(" | ")
}

/// How a process ended, in words.
pub fn exit_text(code: Option<i32>, signal: Option<i32>) -> String {
    let Some(number) = signal else {
        return code.map_or_else(|| "it ended".to_owned(), |code| format!("it ended with {code}"));
    };
    let name = signal_name(number).unwrap_or("a signal without a name");
    let why = match number {
        SIGBUS => {
            ": a file in memory could not grow; give a --dir with more space (a container's \
             /dev/shm has 64 MiB unless it was started with --shm-size)"
        }
        SIGKILL => ": another process killed it, or the kernel did because memory ran out",
        _ => "",
    };
    format!("signal {number} ended it ({name}{why})")
}

/// The path of this program, to start it again in another role.
pub fn own_program() -> Result<PathBuf> {
    if let Some(program) = PROGRAM.get() {
        return Ok(program.clone());
    }
    env::current_exe().map_err(|e| system("finding this program's own file", &e))
}

/// Sets the program that is started in other roles. For tests, whose own program has no roles. Only
/// the first call has an effect.
pub fn set_role_program(program: &Path) {
    let _ = PROGRAM.set(program.to_owned());
}

fn fresh_folder(parent: &Path) -> Result<PathBuf> {
    for number in 0..10_000 {
        let folder = parent.join(format!("nearstate-bench-{}-{number}", std::process::id()));
        match fs::create_dir(&folder) {
            Ok(()) => return Ok(folder),
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(e) => {
                let detail =
                    format!("creating a folder in {}: give another with --dir", parent.display());
                return Err(system(&detail, &e));
            }
        }
    }
    Err(Error::AlreadyExists { path: parent.join("nearstate-bench-*") })
}

/// The error of a system call, with the operation that failed.
pub fn system(detail: &str, e: &std::io::Error) -> Error {
    Error::System { detail: detail.to_owned(), errno: e.raw_os_error().unwrap_or(0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_end_of_an_output_is_kept_and_reported_in_one_line() {
        let (open, closed) = channel();
        let last = Mutex::default();
        let output = "much\n".repeat(1000) + "\x1b[31mdisk full\r\n\nport 7\n";
        let mut passed_on = Vec::new();
        read_input(output.as_bytes(), &last, &mut passed_on, open);
        assert!(closed.recv().is_err(), "the output has ended");
        assert_eq!(passed_on, output.as_bytes());
        let last = last.into_inner().unwrap();
        assert_eq!(last.len(), LOG_BYTES_MAX);
        let line = single_line(&last);
        assert!(line.ends_with("much |  [31mdisk full | port 7"), "{line}");
        assert_eq!(single_line(b""), "");
    }

    #[test]
    fn the_end_of_a_process_is_reported_with_advice() {
        assert_eq!(exit_text(Some(3), None), "it ended with 3");
        let bus = exit_text(None, Some(SIGBUS));
        assert!(bus.contains("SIGBUS") && bus.contains("--dir"), "{bus}");
        assert!(exit_text(None, Some(SIGKILL)).contains("SIGKILL"));
        assert!(exit_text(None, Some(64)).starts_with("signal 64"));
    }
}
