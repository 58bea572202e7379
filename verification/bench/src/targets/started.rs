//! A server process that a database starts: a child of a reaper, on the processors of the servers,
//! observed in `/proc`.

use crate::processes::{children, descendants, memory_bytes, own_memory_bytes};
use crate::protocol::STOPPED;
use crate::reaper::{Reaper, single_line, system};
use nearstate_model::{Error, Result};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use rustix::thread::{sched_getaffinity, sched_setaffinity};
use std::ffi::OsString;
use std::fs;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::DatabaseSpec;

/// The time until a server must answer, in pauses: a minute, for a Java server on a busy machine.
const START_PAUSES: u32 = 6000;
const START_PAUSE: Duration = Duration::from_millis(10);

/// The last bytes of a log that an error contains.
const LOG_BYTES_MAX: u64 = 1024;

/// Logs that servers write in their folders.
const LOGS: [&str; 3] = ["log", "locator.log", "server.log"];

/// A server process and its reaper.
#[derive(Debug)]
pub(crate) struct ServerProcess {
    name: &'static str,
    reaper: Reaper,
    process: u32,
    /// A pidfd, which names the process even if its process id is reused.
    handle: Option<OwnedFd>,
    /// How it ended, once that is known.
    end: Option<String>,
    stop: Option<&'static AtomicBool>,
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // A reaper that was killed no longer stops the server.
        if self.reaper.has_ended()
            && let Some(handle) = &self.handle
        {
            let _ = pidfd_send_signal(handle, Signal::KILL);
        }
    }
}

impl ServerProcess {
    /// Starts `program` with `arguments(folder)`; the folder is removed with the server.
    pub(crate) fn new(
        name: &'static str,
        spec: &DatabaseSpec,
        program: &Path,
        arguments: impl FnOnce(&Path) -> Vec<OsString>,
    ) -> Result<Self> {
        check_stop(spec.stop)?;
        let program = program.to_string_lossy().into_owned();
        let mut reaper =
            on_cpus(&spec.server_cpus, || Reaper::start(&spec.folder, Some(&program), arguments))?;
        let mut process = None;
        for _ in 0..START_PAUSES {
            process = children(reaper.process()).first().copied();
            if process.is_some() || reaper.has_ended() {
                break;
            }
            std::thread::sleep(START_PAUSE);
        }
        let gone = || backend_error!("{program} could not be started");
        let process = process.ok_or_else(gone)?;
        let pid = i32::try_from(process).ok().and_then(Pid::from_raw);
        let handle = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        Ok(Self { name, reaper, process, handle, end: None, stop: spec.stop })
    }

    pub(crate) fn folder(&self) -> &Path {
        self.reaper.folder()
    }

    /// Waits until the server is ready, unless the run is stopped.
    pub(crate) fn wait(&mut self, mut is_ready: impl FnMut() -> bool) -> Result<()> {
        for _ in 0..START_PAUSES {
            check_stop(self.stop)?;
            if is_ready() {
                return self.alive();
            }
            self.alive()?;
            std::thread::sleep(START_PAUSE);
        }
        Err(backend_error!("{} runs but does not answer a minute after its start", self.name))
    }

    /// The process id.
    pub(crate) const fn process(&self) -> u32 {
        self.process
    }

    /// The process ids of the server and its descendants.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let mut all = vec![self.process];
        all.extend(descendants(self.process));
        all
    }

    /// Memory of all its processes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        memory_bytes(&self.processes())
    }

    /// Memory of all its processes, without mapped regions.
    pub(crate) fn own_memory_bytes(&self) -> u64 {
        own_memory_bytes(&self.processes())
    }

    /// Kills it (SIGKILL) and waits until it is dead.
    pub(crate) fn kill(&mut self) -> Result<()> {
        let pid = i32::try_from(self.process).ok().and_then(Pid::from_raw);
        let killed =
            pid.map_or(Err(rustix::io::Errno::SRCH), |pid| kill_process(pid, Signal::KILL));
        killed.map_err(|e| {
            let detail = format!("killing {} (process {})", self.name, self.process);
            system(&detail, &e.into())
        })?;
        for _ in 0..START_PAUSES {
            if !self.is_running() {
                return Ok(());
            }
            std::thread::sleep(START_PAUSE);
        }
        Err(backend_error!(
            "{} (process {}) still runs a minute after SIGKILL",
            self.name,
            self.process
        ))
    }

    /// Fails if the server has ended. The error says how, with the ends of its logs.
    pub(crate) fn alive(&mut self) -> Result<()> {
        if self.is_running() {
            return Ok(());
        }
        let how = match self.end.take() {
            Some(known) => known,
            None => self.find_exit_reason(),
        };
        let detail = format!("{} (process {}) has ended: {how}", self.name, self.process);
        self.end = Some(how);
        Err(Error::Backend { detail })
    }

    fn find_exit_reason(&mut self) -> String {
        let mut how = match self.reaper.exit_message() {
            Some(message) => message,
            None if self.reaper.has_ended() => {
                "its reaper (`nearstate bench reaper`) has ended, which stops the server".to_owned()
            }
            None => "its reaper reports no reason".to_owned(),
        };
        for name in LOGS {
            let last = end_of(&self.reaper.folder().join(name)).unwrap_or_default();
            if !last.is_empty() {
                how = format!("{how}; {name} ends with: {last}");
            }
        }
        how
    }

    /// True if the process runs. The reaper does not reap a child that has ended, so that its
    /// process id is not reused.
    fn is_running(&self) -> bool {
        let state = fs::read_to_string(format!("/proc/{}/stat", self.process))
            .ok()
            .and_then(|text| text.rsplit(") ").next().and_then(|rest| rest.chars().next()));
        let is_child = children(self.reaper.process()).contains(&self.process);
        !matches!(state, None | Some('Z' | 'X')) && is_child
    }
}

/// The last lines of a log.
fn end_of(log: &Path) -> std::io::Result<String> {
    let mut file = fs::File::open(log)?;
    let start = file.metadata()?.len().saturating_sub(LOG_BYTES_MAX);
    file.seek(SeekFrom::Start(start))?;
    let mut last = Vec::new();
    file.take(LOG_BYTES_MAX).read_to_end(&mut last)?;
    Ok(single_line(&last))
}

/// Fails if the run is to stop.
fn check_stop(stop: Option<&'static AtomicBool>) -> Result<()> {
    if stop.is_some_and(|stop| stop.load(Ordering::Relaxed)) {
        return Err(backend_error!("{STOPPED}"));
    }
    Ok(())
}

/// Runs `start` on these processors, or on all if none are given. Processes that it starts stay
/// there.
pub(crate) fn on_cpus<T>(cpus: &[usize], start: impl FnOnce() -> Result<T>) -> Result<T> {
    if cpus.is_empty() {
        return start();
    }
    let refused = |e: rustix::io::Errno| {
        let detail =
            format!("moving servers to the processors {cpus:?}: give processors that exist");
        system(&detail, &e.into())
    };
    let before = sched_getaffinity(None).map_err(refused)?;
    crate::cpus::bind(cpus).map_err(refused)?;
    let started = start();
    sched_setaffinity(None, &before).map_err(refused)?;
    started
}

/// A port of the loopback interface on which no process listens at the moment.
pub(crate) fn free_port() -> Result<u16> {
    TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .map_err(|e| system("finding a free port on the loopback interface", &e))
}

/// The first line of a program's output, which states its version.
pub(crate) fn first_line(program: &Path, argument: &str) -> Result<String> {
    let output = std::process::Command::new(program)
        .arg(argument)
        .output()
        .map_err(|e| system(&format!("starting {}", program.display()), &e))?;
    let text = String::from_utf8_lossy(if output.stdout.is_empty() {
        &output.stderr
    } else {
        &output.stdout
    })
    .into_owned();
    Ok(text.lines().next().unwrap_or("?").to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_stays_on_the_processor_of_its_start_and_the_caller_does_not() {
        let before = sched_getaffinity(None).unwrap();
        let cpu = crate::cpus::allowed().unwrap()[0];
        let text = on_cpus(&[cpu], || {
            let line = "grep Cpus_allowed_list /proc/self/status";
            let output = std::process::Command::new("sh").args(["-c", line]).output();
            Ok(String::from_utf8(output.unwrap().stdout).unwrap())
        });
        assert_eq!(text.unwrap().split_whitespace().nth(1), Some(cpu.to_string().as_str()));
        assert_eq!(sched_getaffinity(None).unwrap(), before);
        assert!(on_cpus(&[usize::MAX], || Ok(())).is_err());
    }
}
