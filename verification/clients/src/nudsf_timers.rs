//! Many timers of Nudsf: what each costs in the region, and that those which were armed before a
//! SIGKILL fire after it, without a pass over all of them.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use std::{env, thread};

use crate::programs::{TestServer, output_of};

/// The number of timers, if it is not this.
const COUNT_VARIABLE: &str = "NEARSTATE_TIMERS";
const COUNT: u64 = 100_000;

/// Timers of one run of h2load, which has their paths in memory.
const CHUNK: u64 = 100_000;

/// The most bytes of the region for one timer: its record of 150 bytes, and entries of two indexes.
const TIMER_BYTES_MAX: u64 = 512;

/// The longest time from the start of a killed node until a due timer has fired.
const FIRE_MAX: Duration = Duration::from_secs(30);

const ARMED: &str = r#"{"expires":"2999-01-01T00:00:00Z","metaTags":{"ueId":["1"]}}"#;

/// Arms timers, kills the node, and waits until one of them fires.
pub(crate) fn run(address: &str) -> Result<(), String> {
    let count = match env::var(COUNT_VARIABLE) {
        Ok(text) => text.parse().map_err(|_| format!("{COUNT_VARIABLE}={text}: no number"))?,
        Err(_) => COUNT,
    };
    let bytes = ((256 << 20) + count * 2 * TIMER_BYTES_MAX).to_string();
    let more = ["--nudsf", address, "--nudsf-storages", "Realm01/Storage01=ue"];
    let calm = ["--nudsf-overload-delay", "1h", "--max", &bytes];
    let mut node = TestServer::node(&[&more[..], &calm[..]].concat())?;
    let timers = format!("http://{address}/nudsf-timer/v1/Realm01/Storage01/timers");
    let before = used_bytes(&node)?;
    for first in (0..count).step_by(usize::try_from(CHUNK).unwrap_or(1)) {
        arm(node.folder(), &timers, first..(first + CHUNK).min(count))?;
    }
    let each = used_bytes(&node)?.saturating_sub(before) / count.max(1);
    println!("     {count} timers, {each} bytes of the region each");
    if each > TIMER_BYTES_MAX {
        return Err(format!("a timer takes {each} bytes: at most {TIMER_BYTES_MAX} were expected"));
    }
    let soon = output_of(Command::new("date").args(["-u", "-d", "+2 seconds", "+%FT%TZ"]))?;
    let probe = format!(r#"{{"expires":"{}","deleteAfter":0}}"#, soon.trim());
    let put = ["-X", "PUT", "-H", "Content-Type: application/json", "--data", &probe];
    let (probe_uri, last) = (format!("{timers}/probe"), format!("{timers}/armed{}", count - 1));
    if status(&probe_uri, &put)? != "201" {
        return Err("the last timer was not created".to_owned());
    }
    let begun = Instant::now();
    node.kill_and_restart()?;
    let answered = begun.elapsed();
    while status(&probe_uri, &[])? != "404" {
        if begun.elapsed() > FIRE_MAX {
            return Err(format!("the timer that was due has not fired after {FIRE_MAX:?}"));
        }
        thread::sleep(Duration::from_millis(10));
    }
    println!(
        "     killed: it answers after {answered:?}, and a timer that was armed before has fired \
         after {:?}",
        begun.elapsed()
    );
    if status(&last, &[])? == "200" { Ok(()) } else { Err(format!("{last} is lost")) }
}

/// Creates the timers with these numbers.
fn arm(folder: &Path, timers: &str, numbers: std::ops::Range<u64>) -> Result<(), String> {
    let (uris, body) = (folder.join("uris"), folder.join("timer"));
    let count = numbers.end - numbers.start;
    let mut text = String::new();
    for number in numbers {
        let _ = writeln!(text, "{timers}/armed{number}");
    }
    let written = fs::write(&uris, text).and_then(|()| fs::write(&body, ARMED));
    written.map_err(|error| format!("the requests of h2load: {error}"))?;
    let mut command = Command::new("h2load");
    // Each connection would begin with the first path.
    command.args(["-t", "1", "-c", "1", "-m", "100", "-n", &count.to_string()]);
    command.args(["-H", ":method: PUT", "-H", "Content-Type: application/json"]);
    let output = output_of(command.arg("-i").arg(uris).arg("-d").arg(body))?;
    let wanted = format!("status codes: {count} 2xx");
    if output.contains(&wanted) { Ok(()) } else { Err(output) }
}

/// Bytes of the region in use.
fn used_bytes(node: &TestServer) -> Result<u64, String> {
    let (host, port) = (node.address.ip().to_string(), node.address.port().to_string());
    let mut command = Command::new("redis-cli");
    let info = output_of(command.args(["-h", &host, "-p", &port, "INFO", "memory"]))?;
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
    used.and_then(|used| used.trim().parse().ok()).ok_or(info)
}

/// The status of a request over HTTP/2.
fn status(uri: &str, more: &[&str]) -> Result<String, String> {
    let mut command = Command::new("curl");
    command.args(["--silent", "--http2-prior-knowledge", "--max-time", "30"]);
    command.args(["--output", "/dev/null", "--write-out", "%{http_code}"]);
    output_of(command.args(more).arg(uri))
}
