//! Many timers of Nudsf: what each costs in the region; that creating, firing and a restart after
//! SIGKILL cost the same among all of them as among few; and that a timer which was armed before
//! the SIGKILL fires after it, without a pass over the others.

use std::fmt::Write as _;
use std::fs;
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

/// Timers that are created and fire, among few others and among all.
const FIRED: u64 = 5_000;

/// How many times the processor time among few timers that among all may be. An index of ten times
/// the timers is one level deeper at most; a pass over all of them would be ten times as long.
const TIMES_MAX: u32 = 4;

/// The longest time until timers have fired.
const ALL_FIRED_MAX: Duration = Duration::from_secs(300);

/// The longest time from the start of a killed node until a due timer has fired.
const FIRE_MAX: Duration = Duration::from_secs(30);

const DUE: &str = r#"{"expires":"2020-01-01T00:00:00Z","deleteAfter":0}"#;

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
    let chunk = (count / 10).clamp(1, CHUNK);
    let before = used_bytes(&node)?;
    let mut created = Vec::new();
    let mut few = None;
    for first in (0..count).step_by(usize::try_from(chunk).unwrap_or(1)) {
        let numbers = first..(first + chunk).min(count);
        let timers = (timers.as_str(), "armed");
        created.push(arm(&node, timers, numbers, ARMED)?);
        if few.is_none() {
            few = Some((fire(&node, timers.0)?, restart(&mut node, timers.0)?));
        }
    }
    let each = used_bytes(&node)?.saturating_sub(before) / count.max(1);
    let all = (fire(&node, &timers)?, restart(&mut node, &timers)?);
    let (Some(few), [first, .., last]) = (few, created.as_slice()) else {
        return Err(format!("{COUNT_VARIABLE}={count}: at least 10 are needed"));
    };
    let private = node.private_bytes() >> 10;
    println!("     {count} timers, {each} bytes of the region each, {private} KiB of the node");
    println!("     processor time      among {chunk:>9}  among {count:>9}");
    println!("     create          {first:>16.1?} {last:>16.1?}");
    println!("     create and fire {:>16.1?} {:>16.1?}", few.0, all.0);
    println!("     answers after   {:>16.1?} {:>16.1?}", few.1.0, all.1.0);
    println!("     has fired after {:>16.1?} {:>16.1?}", few.1.1, all.1.1);
    if each > TIMER_BYTES_MAX {
        return Err(format!("a timer takes {each} bytes: at most {TIMER_BYTES_MAX} were expected"));
    }
    if *last > *first * TIMES_MAX || all.0 > few.0 * TIMES_MAX {
        return Err(format!("among all timers one costs more than {TIMES_MAX} times as much"));
    }
    let last = format!("{timers}/armed{}", count - 1);
    if status(&last, &[])? == "200" { Ok(()) } else { Err(format!("{last} is lost")) }
}

/// Creates timers that are due, and waits until all of them have fired and are deleted. Returns the
/// processor time of the node for one.
fn fire(node: &TestServer, timers: &str) -> Result<Duration, String> {
    let (before, begun) = (node.processor_time(), Instant::now());
    arm(node, (timers, "due"), 0..FIRED, DUE)?;
    let expired = format!("{timers}?expired-filter");
    while status(&expired, &[])? != "204" {
        if begun.elapsed() > ALL_FIRED_MAX {
            return Err(format!("timers that were due have not fired after {ALL_FIRED_MAX:?}"));
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(each_of(FIRED, node.processor_time().saturating_sub(before)))
}

/// Kills the node while a timer is armed. Returns the times from its start until it answers, and
/// until the timer has fired.
fn restart(node: &mut TestServer, timers: &str) -> Result<(Duration, Duration), String> {
    let soon = output_of(Command::new("date").args(["-u", "-d", "+2 seconds", "+%FT%TZ"]))?;
    let probe = format!(r#"{{"expires":"{}","deleteAfter":0}}"#, soon.trim());
    let put = ["-X", "PUT", "-H", "Content-Type: application/json", "--data", &probe];
    let uri = format!("{timers}/probe");
    if status(&uri, &put)? != "201" {
        return Err("the timer before the kill was not created".to_owned());
    }
    let begun = Instant::now();
    node.kill_and_restart()?;
    let answered = begun.elapsed();
    while status(&uri, &[])? != "404" {
        if begun.elapsed() > FIRE_MAX {
            return Err(format!("the timer that was due has not fired after {FIRE_MAX:?}"));
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok((answered, begun.elapsed()))
}

fn each_of(count: u64, time: Duration) -> Duration {
    time / u32::try_from(count).unwrap_or(u32::MAX).max(1)
}

/// Creates the timers with these numbers. Returns the processor time of the node for one.
fn arm(
    node: &TestServer,
    (timers, name): (&str, &str),
    numbers: std::ops::Range<u64>,
    timer: &str,
) -> Result<Duration, String> {
    let before = node.processor_time();
    let folder = node.folder();
    let (uris, body) = (folder.join("uris"), folder.join("timer"));
    let count = numbers.end - numbers.start;
    let mut text = String::new();
    for number in numbers {
        let _ = writeln!(text, "{timers}/{name}{number}");
    }
    let written = fs::write(&uris, text).and_then(|()| fs::write(&body, timer));
    written.map_err(|error| format!("the requests of h2load: {error}"))?;
    let mut command = Command::new("h2load");
    // Each connection would begin with the first path.
    command.args(["-t", "1", "-c", "1", "-m", "100", "-n", &count.to_string()]);
    command.args(["-H", ":method: PUT", "-H", "Content-Type: application/json"]);
    let output = output_of(command.arg("-i").arg(uris).arg("-d").arg(body))?;
    let wanted = format!("status codes: {count} 2xx");
    if !output.contains(&wanted) {
        return Err(output);
    }
    Ok(each_of(count, node.processor_time().saturating_sub(before)))
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
