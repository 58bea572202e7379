//! The load generators: h2load for HTTP/2, redis-benchmark for Redis, each on the clients'
//! processor.

use super::cases::{CaseKind, LoadCase, PUT_RECORDS, SPREAD, STORAGE, put_path};
use super::servers::{MIXED, PUT_TAGS, Servers, put_body};
use crate::reaper::system;
use crate::stat::as_f64;
use nearstate_model::{Error, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Connections and streams of a load: enough that the server is never idle.
const CONNECTIONS: u64 = 10;
const STREAMS: u64 = 10;

/// Programs that send PUTs to different paths at the same time. While one of them reads responses,
/// the server has requests of the others: with one, the two processors took turns.
pub(super) const GENERATORS: usize = 4;

/// How often the memory of a server is looked at.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(20);

/// Runs loads.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) h2load: PathBuf,
    pub(super) cpu: usize,
    pub(super) folder: PathBuf,
}

fn failed(what: &str) -> Error {
    backend_error!("{what}")
}

/// The number in front of a word: `12345.6 req/s`.
fn number_before(text: &str, word: &str) -> Option<f64> {
    let before = text.split_once(word)?.0.trim_end();
    before.rsplit([' ', ',']).next()?.parse().ok()
}

/// Requests per second from the output of h2load.
///
/// # Errors
/// `Backend`: some requests have failed.
fn rate_of(output: &str, requests: u64) -> Result<f64> {
    let line = |begin: &str| output.lines().find(|line| line.starts_with(begin));
    let all = format!("{requests} succeeded, 0 failed, 0 errored, 0 timeout");
    match line("requests:") {
        Some(counts) if counts.contains(&all) => {}
        counts => {
            let statuses = line("status codes:").unwrap_or_default();
            return Err(failed(&format!("h2load: {} {statuses}", counts.unwrap_or(output))));
        }
    }
    let rate = line("finished in").and_then(|line| number_before(line, "req/s"));
    rate.ok_or_else(|| failed("h2load has printed no rate"))
}

impl Load {
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("taskset");
        command.args(["-c", &self.cpu.to_string()]).arg(program);
        command.stdin(Stdio::null()).stderr(Stdio::null()).stdout(Stdio::piped());
        command
    }

    fn h2load(&self, (connections, streams): (u64, u64), requests: u64) -> Command {
        let mut command = self.command(&self.h2load);
        command.args(["-t", "1", "-n", &requests.to_string()]);
        command.args(["-c", &connections.to_string(), "-m", &streams.to_string()]);
        command
    }

    fn output(command: &mut Command) -> Result<String> {
        let output = command.output().map_err(|e| system("starting a load", &e))?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn file(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.folder.join(name);
        fs::write(&path, text).map_err(|e| system("writing the requests of a load", &e))?;
        Ok(path)
    }

    /// The file with this number of the URIs of some paths.
    fn uris<'p>(
        &self,
        (number, port): (usize, u16),
        paths: impl Iterator<Item = &'p String>,
    ) -> Result<PathBuf> {
        let lines: Vec<String> =
            paths.map(|path| format!("http://127.0.0.1:{port}{path}\n")).collect();
        self.file(&format!("uris{number}"), &lines.concat())
    }

    /// The rate of a case over HTTP/2.
    pub(super) fn http(&self, port: u16, case: &LoadCase, requests: u64) -> Result<f64> {
        let uris = self.uris((0, port), case.paths().iter())?;
        let mut command = self.h2load((CONNECTIONS, STREAMS), requests);
        command.arg("-i").arg(uris);
        if case.kind == CaseKind::GetLarge {
            // Windows that do not stop a megabyte on a loopback interface.
            command.args(["-w", "24", "-W", "26"]);
        }
        rate_of(&Self::output(&mut command)?, requests)
    }

    /// PUTs records until each has the tags of the second body.
    pub(super) fn prepare_puts(&self, port: u16) -> Result<()> {
        let paths: Vec<String> = (0..PUT_RECORDS).map(put_path).collect();
        self.put_all((port, 1), &paths, MIXED, &put_body(PUT_TAGS[1])).map(drop)
    }

    /// The rate of PUTs that change the tags of each record: in passes over the records, with two
    /// bodies in turn.
    pub(super) fn puts(&self, port: u16, requests: u64) -> Result<f64> {
        let (mut left, mut seconds) = (requests, 0.0);
        for tags in PUT_TAGS.iter().cycle() {
            let paths: Vec<String> = (0..left.min(PUT_RECORDS)).map(put_path).collect();
            // One generator: its own time is that of the pass.
            seconds += self.put_all((port, 1), &paths, MIXED, &put_body(*tags))?;
            left -= paths.len() as u64;
            if left == 0 {
                break;
            }
        }
        Ok(as_f64(requests) / seconds)
    }

    /// PUTs a body to these paths, each once, with so many generators. Returns the seconds of the
    /// slowest one: less than have passed if they did not begin together.
    pub(super) fn put_all(
        &self,
        (port, generators): (u16, usize),
        paths: &[String],
        content_type: &str,
        body: &str,
    ) -> Result<f64> {
        let body = self.file("body", body)?;
        let mut commands = Vec::new();
        for (number, part) in paths.chunks(paths.len().div_ceil(generators).max(1)).enumerate() {
            let uris = self.uris((number, port), part.iter())?;
            // Each connection would begin with the first path.
            let streams = CONNECTIONS * STREAMS / generators as u64;
            let mut command = self.h2load((1, streams), part.len() as u64);
            command.args(["-H", ":method: PUT", "-H", content_type]);
            command.arg("-i").arg(uris).arg("-d").arg(&body);
            commands.push((command, part.len() as u64));
        }
        let begun = commands.iter_mut().map(|(command, count)| (command.spawn(), *count));
        let begun: Vec<_> = begun.collect();
        // All of them have ended before the first error is returned.
        let ended = begun.into_iter().map(|(child, count)| {
            let output = child.and_then(Child::wait_with_output);
            let output = output.map_err(|e| system("starting a load", &e))?;
            let rate = rate_of(&String::from_utf8_lossy(&output.stdout), count)?;
            Ok(as_f64(count) / rate)
        });
        let seconds = ended.collect::<Vec<_>>().into_iter().collect::<Result<Vec<f64>>>()?;
        Ok(seconds.into_iter().fold(0.0, f64::max))
    }

    /// Many connections with many streams of GETs of one record. Calls `sample` meanwhile.
    pub(super) fn many(
        &self,
        port: u16,
        load: (u64, u64),
        requests: u64,
        mut sample: impl FnMut(),
    ) -> Result<f64> {
        let path = format!("{STORAGE}/records/r1");
        let uris = self.uris((0, port), std::iter::once(&path))?;
        let output = self.file("output", "")?;
        let written = fs::File::create(&output).map_err(|e| system("writing an output", &e))?;
        let mut command = self.h2load(load, requests);
        let mut child = command
            .arg("-i")
            .arg(uris)
            .stdout(written)
            .spawn()
            .map_err(|e| system("starting a load", &e))?;
        while matches!(child.try_wait(), Ok(None)) {
            sample();
            std::thread::sleep(SAMPLE_INTERVAL);
        }
        let text = fs::read_to_string(&output).map_err(|e| system("reading an output", &e))?;
        rate_of(&text, requests)
    }

    /// The rate of a case over RESP, with as many commands in flight.
    pub(super) fn redis(&self, servers: &Servers, case: &LoadCase, requests: u64) -> Result<f64> {
        let mut command = self.command(Path::new("redis-benchmark"));
        command.args(["-h", "127.0.0.1", "-p", &servers.redis_port().to_string(), "--csv"]);
        command.args(["-n", &requests.to_string(), "-c", &CONNECTIONS.to_string()]);
        command.args(["-P", &STREAMS.to_string()]);
        // `__rand_int__` stands for as many numbers.
        command.args(["-r", &SPREAD.to_string()]);
        command.args(servers.redis_command(case));
        let output = Self::output(&mut command)?;
        let fields = output.lines().last().unwrap_or_default().split("\",\"");
        let rate = fields.skip(1).find_map(|field| field.trim_matches('"').parse().ok());
        rate.ok_or_else(|| failed(&format!("redis-benchmark has printed {output:?}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_of_h2load_counts_only_if_all_requests_succeeded() {
        let output = "starting\nfinished in 1.02s, 9803.92 req/s, 11.46MB/s\nrequests: 10 total, \
            10 started, 10 done, 10 succeeded, 0 failed, 0 errored, 0 timeout\n\
            status codes: 10 2xx, 0 3xx, 0 4xx, 0 5xx\n";
        assert_eq!(rate_of(output, 10).ok(), Some(9803.92));
        let refused = output.replace("10 succeeded, 0 failed", "9 succeeded, 1 failed");
        assert!(rate_of(&refused, 10).is_err());
        assert!(rate_of("", 10).is_err());
    }
}
