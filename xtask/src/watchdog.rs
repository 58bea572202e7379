//! Ends a command that prints nothing for too long: a test that waits for ever must not keep the
//! others from being reported.

use std::io::{BufRead as _, BufReader, Read};
use std::process::Command;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// A suite that prints no line for so long hangs. Test programs name a test that has run for a
/// minute, and the longest step of a build takes some minutes on two busy cores.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(15 * 60);

/// How long the last lines of what was killed may take.
const LAST_LINES_MAX: Duration = Duration::from_secs(5);

/// Gives each line of a command's output to `take`. If none comes for `silence_max`, kills the
/// process with all that it has started. Returns false then.
pub(crate) fn each_line(
    output: impl Read + Send + 'static,
    process: u32,
    silence_max: Duration,
    mut take: impl FnMut(&str),
) -> bool {
    let (sender, lines) = channel();
    // Not joined: a process whose parent had ended before may still hold the pipe.
    std::thread::spawn(move || {
        let lines = BufReader::new(output).split(b'\n').map_while(Result::ok);
        lines.map(|line| sender.send(line)).take_while(Result::is_ok).count()
    });
    let (mut is_alive, mut silence_max) = (true, silence_max);
    loop {
        match lines.recv_timeout(silence_max) {
            Ok(line) => take(&String::from_utf8_lossy(&line)),
            Err(RecvTimeoutError::Timeout) if is_alive => {
                (is_alive, silence_max) = (false, LAST_LINES_MAX);
                kill_with_children(process);
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return is_alive,
        }
    }
}

/// Kills a process and what it has started. Each is stopped before its children are listed, so that
/// it starts no other one meanwhile.
fn kill_with_children(process: u32) {
    let mut all = vec![process.to_string()];
    let mut next = 0;
    while let Some(parent) = all.get(next).cloned() {
        next += 1;
        signal("STOP", &[&parent]);
        let threads = std::fs::read_dir(format!("/proc/{parent}/task"));
        for thread in threads.into_iter().flatten().flatten() {
            let children = std::fs::read_to_string(thread.path().join("children"));
            all.extend(children.unwrap_or_default().split_whitespace().map(str::to_owned));
        }
    }
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    signal("KILL", &all);
}

/// One that has ended needs no signal.
fn signal(name: &str, processes: &[&str]) {
    let script = format!("kill -{name} \"$@\" 2>/dev/null");
    let _ = Command::new("sh").args(["-c", &script, "sh"]).args(processes).status();
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    fn run(script: &str, silence_max: Duration) -> (bool, Vec<String>) {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (output, mut lines) = (child.stdout.take().unwrap(), Vec::new());
        let is_done =
            each_line(output, child.id(), silence_max, |line| lines.push(line.to_owned()));
        child.wait().unwrap();
        (is_done, lines)
    }

    #[test]
    fn a_command_that_prints_nothing_is_killed_with_its_children() {
        // The child of the child holds the pipe: if it lived, this test would not end. On a busy
        // machine the command may not have begun in time.
        for times in 0..8 {
            let silence_max = SILENCE * (1 << times);
            let (is_done, lines) = run("echo begun; (sleep 100000; echo late) & wait", silence_max);
            assert!(!is_done);
            if lines == ["begun"] {
                return;
            }
            assert!(lines.is_empty(), "{lines:?}");
        }
        panic!("it has never begun");
    }

    /// Short, so that the test is.
    const SILENCE: Duration = Duration::from_millis(300);

    #[test]
    fn all_lines_of_a_command_that_ends_are_taken() {
        let (is_done, lines) = run("echo one; echo two", SILENCE_MAX);
        assert!(is_done);
        assert_eq!(lines, ["one", "two"]);
    }
}
