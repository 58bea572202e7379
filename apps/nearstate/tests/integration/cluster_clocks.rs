//! The clock of expiry (`docs/decisions/042-expiry-clock.md`) with real nodes on hosts whose wall
//! clocks differ: a library that is preloaded shifts `CLOCK_REALTIME` of each node. Ends are
//! compared with the monotonic clock of the test, between a moment before a request and one after
//! its reply, so a machine that is slow makes the comparison wider and fails nothing.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use nearstate_store::Region;

use crate::cluster::{Hosts, LONG_LEASE, NAMES};
use crate::fixture::{Client, Folder, until};

const SECOND: i64 = 1000;
const HOUR: i64 = 3600 * SECOND;

/// How much earlier or later than promised a record may end, in milliseconds, beside the hundredth
/// of a clock that approaches its host: what a message takes, and a difference of two hosts that is
/// not corrected.
const BOUND_MS: i64 = 200;

/// What a clock approaches at one tick of the driver, which has 16 in a lease of 10 s.
const TICK_MS: i64 = 10;

/// A cluster of which each host has a wall clock of its own.
struct ClockHosts {
    hosts: Hosts,
    library: PathBuf,
}

impl ClockHosts {
    /// Starts all hosts, with the differences between their clocks and that of the machine, and
    /// lines of the cluster's table.
    fn start(shifts_ms: [i64; NAMES.len()], lines: &str) -> Self {
        let folder = Folder::new();
        let library = compile(&folder.path("shifted_clock.so"));
        let lines = format!("[cluster]\n{lines}[[partition]]\n");
        let hosts = Hosts::new(folder, LONG_LEASE, &lines, &[]);
        let mut all = Self { hosts, library };
        for (number, shift_ms) in shifts_ms.into_iter().enumerate() {
            all.step(number, shift_ms);
            all.run(number);
        }
        all.hosts.init();
        all
    }

    fn clock_file(&self, number: usize) -> PathBuf {
        self.hosts.folder.path(&format!("{}.clock", NAMES[number]))
    }

    /// From now on the wall clock of a host differs from that of the machine by this.
    fn step(&self, number: usize, shift_ms: i64) {
        let path = self.clock_file(number);
        let file = File::options().create(true).truncate(false).write(true).open(path).unwrap();
        file.write_all_at(&shift_ms.to_le_bytes(), 0).unwrap();
    }

    fn run(&mut self, number: usize) {
        let (library, clock) = (self.library.display(), self.clock_file(number));
        let (library, clock) = (library.to_string(), clock.display().to_string());
        let variables = [("LD_PRELOAD", library.as_str()), ("SHIFTED_CLOCK", clock.as_str())];
        self.hosts.run_with(number, &variables);
    }

    /// How far the clock of expiry of a host's copy is ahead of the wall clock of that host.
    fn shift_ms(&self, number: usize) -> i64 {
        let region = Region::attach(&self.hosts.folder.path(&format!("{}-amf", NAMES[number])));
        region.unwrap().session().unwrap().clock_shift_ms().unwrap()
    }

    /// How far the wall clock of a host is ahead of that of the machine.
    fn stepped_ms(&self, number: usize) -> i64 {
        let bytes = std::fs::read(self.clock_file(number)).unwrap();
        i64::from_le_bytes(bytes.try_into().unwrap())
    }

    /// Waits until a copy has the clock of its source.
    fn until_followed<S: Read + Write>(
        &self,
        number: usize,
        (owner, client): (usize, &mut Client<S>),
    ) {
        let differ_ms = self.stepped_ms(owner) - self.stepped_ms(number);
        until("a copy has the clock of its source", || {
            let expected = told_shift_ms(client) + differ_ms;
            self.shift_ms(number).abs_diff(expected) <= BOUND_MS.unsigned_abs()
        });
    }

    /// Steps the clock of the owner's host, and waits until the owner says how far its clock of
    /// expiry is ahead of that now. Meanwhile this record exists.
    fn step_owner<S: Read + Write>(
        &self,
        (owner, client): (usize, &mut Client<S>),
        shift_ms: i64,
        held: &Promise,
    ) {
        let (before, told_ms) = (Instant::now(), told_shift_ms(client));
        let expected = told_ms + self.stepped_ms(owner) - shift_ms;
        self.step(owner, shift_ms);
        until("a step is corrected", || {
            assert_eq!(client.ask(&["GET", held.key]), "v", "{} has not ended", held.key);
            let wrong = told_shift_ms(client) - expected;
            wrong.abs() <= wrong_ms(ms_between(before, Instant::now()))
        });
    }

    /// Kills the owner, and waits for the next one.
    fn fail_over(&mut self, number: usize) -> usize {
        self.hosts.kill(number);
        until("another host owns the partition", || self.hosts.owner().is_some());
        self.hosts.owner().unwrap()
    }
}

fn compile(library: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/integration/shifted_clock.c");
    let mut build = Command::new("cc");
    build.args(["-std=c11", "-D_DEFAULT_SOURCE", "-Wall", "-Wextra", "-Werror", "-pedantic"]);
    build.args(["-O1", "-shared", "-fPIC"]).arg(source).arg("-o").arg(library);
    let output = build.stdin(Stdio::null()).output().expect("cc: install it (apt-get install gcc)");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    library.to_owned()
}

/// What the owner reports as the difference between its two clocks.
fn told_shift_ms<S: Read + Write>(client: &mut Client<S>) -> i64 {
    let info = client.ask(&["INFO", "replication"]);
    let shift = info.lines().find_map(|line| line.strip_prefix("clock_shift_ms:"));
    shift.unwrap_or_else(|| panic!("{info}")).trim().parse().unwrap()
}

/// A record with an expiry time.
struct Promise {
    key: &'static str,
    lives_ms: i64,
    /// Before the request, and after the reply.
    put: [Instant; 2],
}

fn ms_between(from: Instant, to: Instant) -> i64 {
    i64::try_from(to.saturating_duration_since(from).as_millis()).unwrap()
}

/// What a clock of expiry may be wrong after so many milliseconds in which it approached a host.
fn wrong_ms(elapsed_ms: i64) -> i64 {
    BOUND_MS + elapsed_ms / 100 + 1
}

impl Promise {
    fn put<S: Read + Write>(client: &mut Client<S>, key: &'static str, lives_ms: i64) -> Self {
        let before = Instant::now();
        assert_eq!(client.ask(&["SET", key, "v", "PX", &lives_ms.to_string()]), "+OK");
        Self { key, lives_ms, put: [before, Instant::now()] }
    }

    /// The record has as much time left as was promised.
    fn check_left<S: Read + Write>(&self, client: &mut Client<S>) {
        let before = Instant::now();
        let left: i64 = client.ask(&["PTTL", self.key])[1..].parse().unwrap();
        let [longest, shortest] =
            [ms_between(self.put[0], Instant::now()), ms_between(self.put[1], before)];
        let (least, most) = (self.lives_ms - longest, self.lives_ms - shortest);
        let wrong = wrong_ms(longest);
        assert!(
            (least - wrong..=most + wrong).contains(&left),
            "{}: {left} ms are left, and not {least} to {most} ({wrong})",
            self.key
        );
    }

    /// Waits until the record has ended: not earlier than promised.
    fn until_ended<S: Read + Write>(&self, client: &mut Client<S>) {
        until("a record ends", || client.ask(&["GET", self.key]) == "$-1");
        let lived = ms_between(self.put[0], Instant::now());
        assert!(lived >= self.lives_ms - wrong_ms(lived), "{} ended after {lived} ms", self.key);
    }
}

/// Records that were told as absent.
struct Absent(Vec<String>);

impl Absent {
    /// Puts records that end at once, until the owner says of each that it does not exist. The last
    /// ones are not deleted before the next fail-over: the owner collects once a second.
    fn put<S: Read + Write>(client: &mut Client<S>) -> Self {
        let keys: Vec<_> = (0..50).map(|number| format!("gone {number}")).collect();
        for key in &keys {
            assert_eq!(client.ask(&["SET", key, "v", "PX", "1"]), "+OK");
        }
        assert_ne!(client.ask(&["WAIT", "2", "60000"]), ":0");
        let absent = Self(keys);
        for key in &absent.0 {
            until("a record ends", || client.ask(&["GET", key]) == "$-1");
        }
        absent
    }

    /// None exists.
    fn check<S: Read + Write>(&self, client: &mut Client<S>) {
        for key in &self.0 {
            assert_eq!(client.ask(&["GET", key]), "$-1", "{key} was told as absent");
        }
    }
}

#[test]
fn a_fail_over_between_hosts_whose_clocks_differ_keeps_the_end_of_each_record() {
    let clocks = [30 * SECOND, -30 * SECOND, 0];
    let mut all = ClockHosts::start(clocks, "");
    assert_eq!(all.hosts.owner(), Some(0));
    let mut client = all.hosts.clients(0);
    assert_eq!(told_shift_ms(&mut client), 0, "no copy: the clock of its host");
    for number in [1, 2] {
        all.until_followed(number, (0, &mut client));
        assert!(all.shift_ms(number) > 29 * SECOND, "host {number}");
    }
    let held = Promise::put(&mut client, "held", 600 * SECOND);
    let short = Promise::put(&mut client, "short", 40 * SECOND);
    let absent = Absent::put(&mut client);
    drop(client);
    let owner = all.fail_over(0);
    let mut client = all.hosts.clients(owner);
    absent.check(&mut client);
    held.check_left(&mut client);

    // From then on it approaches the clock of its host.
    let ahead_ms = clocks[0] - clocks[owner];
    let before = Instant::now();
    let first = told_shift_ms(&mut client);
    assert!((ahead_ms - wrong_ms(ms_between(held.put[0], before))..ahead_ms + 1).contains(&first));
    until("it approaches the clock of its host", || {
        absent.check(&mut client);
        let moved = first - told_shift_ms(&mut client);
        let elapsed = ms_between(before, Instant::now());
        assert!(moved >= 0 && moved <= elapsed / 100 + TICK_MS, "{moved} ms in {elapsed} ms");
        moved >= BOUND_MS && elapsed >= 10 * SECOND
    });
    short.until_ended(&mut client);
    held.check_left(&mut client);

    // The other way: the first owner's clock is ahead of that of the present one.
    all.run(0);
    all.hosts.until_all_count();
    all.until_followed(0, (owner, &mut client));
    let absent = Absent::put(&mut client);
    drop(client);
    let next = all.fail_over(owner);
    let mut client = all.hosts.clients(next);
    absent.check(&mut client);
    held.check_left(&mut client);
}

#[test]
fn a_step_of_the_owners_clock_moves_the_end_of_no_record() {
    let mut all = ClockHosts::start([0; NAMES.len()], "");
    assert_eq!(all.hosts.owner(), Some(0));
    let mut client = all.hosts.clients(0);
    let held = Promise::put(&mut client, "held", 900 * SECOND);
    let absent = Absent::put(&mut client);
    all.until_followed(1, (0, &mut client));

    // Forward: nothing ends, at no moment, and nothing is deleted.
    all.step_owner((0, &mut client), HOUR, &held);
    held.check_left(&mut client);
    absent.check(&mut client);
    until("it is told", || all.hosts.has_alarm("NS-5019", "raised"));
    until("the log has it", || all.hosts.log(0).contains("NS-3029"));
    assert!(all.hosts.page(0).contains("clock_shift_seconds{partition=\"amf\"} -3"));

    // Back: what was told as absent is absent again when that is corrected.
    all.step_owner((0, &mut client), -HOUR, &held);
    absent.check(&mut client);
    held.check_left(&mut client);
    let short = Promise::put(&mut client, "short", 5 * SECOND);
    short.until_ended(&mut client);

    // The clock of a copy's host is stepped, and that of the owner while its node does not run.
    all.step(1, HOUR);
    all.until_followed(1, (0, &mut client));
    assert_ne!(client.ask(&["WAIT", "2", "60000"]), ":0");
    drop(client);
    all.hosts.kill(0);
    all.step(0, 2 * HOUR);
    all.run(0);
    until("a host owns the partition", || all.hosts.owner().is_some());
    let owner = all.hosts.owner().unwrap();
    let mut client = all.hosts.clients(owner);
    absent.check(&mut client);
    held.check_left(&mut client);
    all.hosts.until_all_count();
    assert_ne!(client.ask(&["WAIT", "2", "60000"]), ":0");
    drop(client);

    // The next owner goes on with the clock, whatever that of its host.
    let next = all.fail_over(owner);
    let mut client = all.hosts.clients(next);
    absent.check(&mut client);
    held.check_left(&mut client);
}

#[test]
fn with_the_clock_of_the_host_a_step_moves_the_end_of_records() {
    let all = ClockHosts::start([0; NAMES.len()], "expiry_clock = \"host\"\n");
    let mut client = all.hosts.clients(0);
    let held = Promise::put(&mut client, "held", 900 * SECOND);
    held.check_left(&mut client);
    all.step(0, HOUR);
    until("it ends an hour early", || client.ask(&["GET", held.key]) == "$-1");
    until("it has the clock of its host", || told_shift_ms(&mut client) == 0);
    // The copies follow.
    all.until_followed(1, (0, &mut client));
}
