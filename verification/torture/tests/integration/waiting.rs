//! How long a dead or a stopped process delays others: a dead holder of a lock for less than 10 ms,
//! a stopped one only those that need what it holds, and the refusal names it.
//!
//! A loaded machine can delay any single operation. Where a bound is checked, the fastest attempt
//! must keep it, or the operation must not have waited for a lock ([`WaitWatch`]).

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "functions that tests share")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nearstate_store::{Error, Kind, Namespace, Region, Schema, Session};
use nearstate_torture::content::{KeySpace, TortureKey};
use nearstate_torture::idle_memory::IdleCase;
use nearstate_torture::removals::RemovalCase;
use nearstate_torture::scenario::{named, prepare};
use nearstate_torture::spawn::{ChildProcess, ChildRole, was_killed};
use nearstate_torture::verify::check_clean;
use nearstate_torture::wait_watch::WaitWatch;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::fixture::{folder, starter};

/// The promised delay after the holder of a lock has died.
const DEAD_HOLDER_MAX: Duration = Duration::from_millis(10);

fn start(folder: &Path, role: &str, number: u64, more: &str, plan: &str) -> ChildProcess {
    let settings = &[("NEARSTATE_CRASH_AT", plan)];
    let role = ChildRole { role, number, more, settings, ..ChildRole::default() };
    starter().start(folder, &role).unwrap()
}

/// The region of a folder, with the content that a scenario expects.
fn prepared(folder: &Path, scenario: &str) -> Region {
    prepare(folder, named(scenario).unwrap()).unwrap();
    Region::attach(&folder.join("region")).unwrap()
}

fn pid(child: &ChildProcess) -> Pid {
    Pid::from_raw(child.process.id().cast_signed())
}

/// Starts a child that stops at a point, and waits until it has.
fn stopped(folder: &Path, role: &str, number: u64, more: &str, point: &str) -> ChildProcess {
    let child = start(folder, role, number, more, &format!("{point}:stop"));
    let status = waitpid(pid(&child), Some(WaitPidFlag::WUNTRACED)).unwrap();
    assert!(matches!(status, WaitStatus::Stopped(..)), "{status:?}");
    child
}

/// The points whose names begin with one of these prefixes, with the folder of a test at each.
fn points(prefixes: &[&str]) -> impl Iterator<Item = (&'static str, PathBuf)> {
    let is_wanted = |point: &&str| prefixes.iter().any(|prefix| point.starts_with(prefix));
    let points = nearstate_store::crash::POINTS.iter().copied().filter(is_wanted);
    points.map(|point| (point, folder(&format!("stopped-{}", point.replace('.', "-")))))
}

/// Creates a namespace, which is refused exactly if the stopped child holds the namespaces.
fn create_another(session: &Session, child: &ChildProcess, (point, is_held): (&str, bool)) {
    let schema = Schema { kind: Kind::Value, ..Schema::default() };
    match session.namespace("another", &schema) {
        Ok(_) => assert!(!is_held, "{point} holds nothing"),
        Err(Error::Stalled { holder }) => {
            assert_eq!((holder.pid, is_held), (child.process.id(), true), "{point}");
        }
        Err(error) => panic!("{point}: {error}"),
    }
}

/// Lets a stopped child finish its work, which must succeed.
fn resume(child: &mut ChildProcess, folder: &Path) {
    kill(pid(child), Signal::SIGCONT).unwrap();
    let status = child.process.wait().unwrap();
    assert!(status.success(), "{}", std::fs::read_to_string(folder.join("errors")).unwrap());
}

fn key(number: u32) -> Vec<u8> {
    TortureKey { space: KeySpace::Own, writer: 0, number }.bytes()
}

fn open(session: &Session, name: &str) -> Namespace {
    session.namespace(name, &Schema { kind: Kind::Value, ..Schema::default() }).unwrap()
}

/// Verifies the region and removes the folder.
fn finish(folder: &Path) {
    check_clean(&folder.join("region")).unwrap();
    std::fs::remove_dir_all(folder).unwrap();
}

/// Prints the delays and returns the shortest.
fn fastest(name: &str, mut waits: Vec<Duration>) -> Duration {
    waits.sort_unstable();
    let at = |percent: usize| waits[(waits.len() * percent / 100).min(waits.len() - 1)];
    println!("{name}: p50 {:?}, p90 {:?}, p99 {:?} of {}", at(50), at(90), at(99), waits.len());
    at(0)
}

#[test]
fn a_writer_that_meets_a_dead_holder_of_its_lock_continues_within_ten_milliseconds() {
    let folder = folder("dead-holder");
    let mut waits = Vec::new();
    let region = prepared(&folder, "insert");
    let session = region.session().unwrap();
    let own = open(&session, "own");
    for round in 0..60 {
        // A bucket's lock is held from lock.taken to publish.cleared. The first lock that a put
        // takes may be the frontier's.
        let point = ["lock.taken:1", "lock.taken:2", "publish.recorded:1", "publish.committed:1"]
            [round % 4];
        let mut child = start(&folder, "put", 5, "", point);
        let is_killed = was_killed(child.process.wait().unwrap());
        let started = Instant::now();
        session.put(own, &key(5), b"after a death").unwrap();
        if is_killed {
            waits.push(started.elapsed());
        }
    }
    assert!(waits.len() >= 40);
    assert!(fastest("after the holder died", waits) < DEAD_HOLDER_MAX);
    drop((session, region));
    finish(&folder);
}

#[test]
fn a_writer_that_waits_when_the_holder_dies_continues_within_ten_milliseconds() {
    let folder = folder("dying-holder");
    let mut waits = Vec::new();
    let region = prepared(&folder, "insert");
    for _ in 0..30 {
        let mut child = stopped(&folder, "put", 5, "", "publish.recorded:1");
        let (ready, is_ready) = std::sync::mpsc::channel();
        let delay = std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let session = region.session().unwrap();
                let own = open(&session, "own");
                ready.send(()).unwrap();
                session.put(own, &key(5), b"waited").unwrap();
                Instant::now()
            });
            is_ready.recv().unwrap();
            // The waiter usually waits for the lock by now.
            std::thread::sleep(Duration::from_millis(5));
            child.process.kill().unwrap();
            child.process.wait().unwrap();
            let died = Instant::now();
            waiter.join().unwrap().saturating_duration_since(died)
        });
        waits.push(delay);
    }
    assert!(fastest("while the holder died", waits) < DEAD_HOLDER_MAX);
    drop(region);
    finish(&folder);
}

/// A child stops at a point of a scenario. Meanwhile this process inserts and deletes many other
/// keys: none is refused, and none waits for the child.
fn work_beside_stopped(scenario: &str, plan: &str, len: usize) {
    let folder = folder(&format!("stopped-{}", plan.replace([':', '.'], "-")));
    let region = prepared(&folder, scenario);
    let session = region.session().unwrap();
    let other = open(&session, "own");
    let mut child = stopped(&folder, "scenario", 0, scenario, plan);
    let mut longest = Duration::ZERO;
    let value = vec![7_u8; len];
    for number in 0..3000_u32 {
        let watch = WaitWatch::start();
        let key = format!("other-{}", number / 2 * 2 % 1000);
        let done = match number % 2 {
            0 => session.put(other, key.as_bytes(), &value).map(drop),
            _ => session.delete(other, key.as_bytes()).map(drop),
        };
        done.unwrap_or_else(|error| panic!("{plan}: {error}"));
        longest = longest.max(watch.elapsed());
        assert!(!watch.has_stalled(), "{plan}: operation {number} waited for a lock");
    }
    println!("a process stopped at {plan} of {scenario}: longest {longest:?}");
    resume(&mut child, &folder);
    drop((session, region));
    finish(&folder);
}

#[test]
fn a_stopped_holder_of_a_chunk_or_of_an_index_split_delays_no_other_process() {
    for (scenario, plan, len) in [
        ("grow", "split.built:3", 20),
        ("grow", "split.locked:5", 20),
        ("free", "free.cut:1", 60_000),
        ("free", "span.extended:1", 60_000),
        ("grow", "chunk.marked:1", 20),
        ("holes", "harvest.marked:1", 60),
        ("chunk", "frontier.tables:2", 20),
        ("chunk", "frontier.raised:2", 20),
        // The first ones are those of new namespaces.
        ("grow", "segment.published:1", 20),
        ("grow", "segment.published:8", 20),
        ("grow", "segment.committed:1", 20),
    ] {
        work_beside_stopped(scenario, plan, len);
    }
}

/// Writes that each of the two processes below makes beside the stopped one.
const BESIDE: u32 = 400;

/// Writes that must succeed: more than one bucket can hold.
const DONE_MIN: u32 = 100;

/// Refusals after which the others need not be seen: each takes a second.
const REFUSALS_SEEN: u32 = 4;

/// Refusals at most: the records of one bucket. Those of a bucket whose split is due, in an index
/// that finds little room to grow, fill a chain of a few lines with seven entries each.
const REFUSALS_MAX: u32 = 28;

/// In a full region, replaces every second record of the growing namespace by one of the same size
/// and deletes the others. Returns how many were refused: those behind a lock that the stopped
/// process holds. Nothing else waits.
fn write_beside_joining(folder: &Path, stopped: u32, len: usize, plan: &str) -> u32 {
    let session = Region::attach(&folder.join("region")).unwrap().session().unwrap();
    let grow = open(&session, "grow-0");
    let (mut refused, mut done) = (0, 0);
    for number in 0..BESIDE {
        let key = TortureKey { space: KeySpace::Grow, writer: 0, number }.bytes();
        if session.get(grow, &key).unwrap().is_none() {
            break; // The region was full before.
        }
        let watch = WaitWatch::start();
        let written = match number % 2 {
            0 => session.put(grow, &key, &vec![7; len]).map(drop),
            _ => session.delete(grow, &key).map(drop),
        };
        match written {
            Ok(()) => {
                assert!(!watch.has_stalled(), "{plan}: operation {number} waited for a lock");
                done += 1;
            }
            Err(Error::Stalled { holder }) => {
                assert_eq!(holder.pid, stopped, "{plan}: operation {number}");
                refused += 1;
            }
            Err(error) => panic!("{plan}: operation {number}: {error}"),
        }
        if refused >= REFUSALS_SEEN && done > DONE_MIN {
            break;
        }
    }
    assert!(
        done > DONE_MIN && refused <= REFUSALS_MAX,
        "{plan}: {refused} of {} were refused",
        done + refused
    );
    refused
}

/// A process is stopped at each step of making one free run, of emptying chunks and of splitting
/// free cells, in a full region. It holds the lock of the record that it moves, at the most: others
/// replace and delete records, are refused for that one, and the refusal names the process.
#[test]
fn a_process_that_is_stopped_while_it_joins_memory_delays_one_bucket_at_most() {
    for (scenario, prefixes, len) in
        [("kept", &["open.", "join."][..], 1500), ("scattered", &["evacuate."], 2000)]
    {
        let full = folder(&format!("stopped-{scenario}"));
        drop(prepared(&full, scenario));
        for (point, folder) in points(prefixes) {
            copy_folder(&full, &folder);
            let plan = format!("{point}:1");
            let mut child = stopped(&folder, "scenario", 0, scenario, &plan);
            let refused = write_beside_joining(&folder, child.process.id(), len, &plan);
            println!("a process stopped at {plan} of {scenario}: {refused} refused");
            resume(&mut child, &folder);
            finish(&folder);
        }
        std::fs::remove_dir_all(full).unwrap();
    }
}

/// Copies the files of a folder to a new one.
fn copy_folder(source: &Path, target: &Path) {
    std::fs::create_dir_all(target).unwrap();
    for file in std::fs::read_dir(source).unwrap().map(Result::unwrap) {
        std::fs::copy(file.path(), target.join(file.file_name())).unwrap();
    }
}

#[test]
fn a_stopped_holder_of_one_bucket_delays_that_bucket_only_and_is_named() {
    let folder = folder("stopped-bucket");
    let region = prepared(&folder, "insert");
    let session = region.session().unwrap();
    let own = open(&session, "own");
    let before = session.get(own, &key(5)).unwrap().unwrap().version();
    let mut child = stopped(&folder, "put", 5, "", "publish.recorded:1");
    let (mut refused, mut done) = (0, 0);
    for number in 1000..1400 {
        let watch = WaitWatch::start();
        match session.put(own, &key(number), &[1; 100]) {
            Ok(_) => {
                done += 1;
                assert!(!watch.has_stalled(), "key {number} waited for a lock");
            }
            Err(Error::Stalled { .. }) => {
                // A refusal has no effect, also if the index would have grown first.
                assert!(session.get(own, &key(number)).unwrap().is_none(), "key {number}");
                refused += 1;
            }
            Err(error) => panic!("{error}"),
        }
        // One of eight or more buckets is held: a few refusals are enough.
        if refused >= 5 && done > refused {
            break;
        }
    }
    println!("{done} other keys were put, {refused} in the held bucket were refused");
    assert!(done > refused && refused != 0, "{done} done, {refused} refused");
    let started = Instant::now();
    let error = session.put(own, &key(5), b"wants the same").unwrap_err();
    println!("the same key: {error} (after {:?})", started.elapsed());
    let Error::Stalled { holder } = error else { panic!("{error}") };
    assert_eq!((holder.pid, &holder.name[..]), (child.process.id(), "nearstate-tortu"));
    assert!(started.elapsed() >= Duration::from_secs(1));
    // Reads never wait, not even for that key.
    assert_eq!(session.get(own, &key(5)).unwrap().unwrap().version(), before);
    resume(&mut child, &folder);
    assert_eq!(session.get(own, &key(5)).unwrap().unwrap().version(), before + 1);
    session.put(own, &key(5), b"continues").unwrap();
    drop((session, region));
    finish(&folder);
}

/// A process is stopped at each step of attaching, of opening a session and of creating a
/// namespace. Others attach, open sessions and write. Only creating a namespace needs what it
/// holds, and names it.
#[test]
fn a_process_that_is_stopped_while_it_attaches_delays_no_other() {
    let of_dead = ["attach.adopted", "attach.recovered", "attach.released"];
    let points = points(&["attach.", "namespace.", "detach."]);
    for (point, folder) in points.filter(|(point, _)| !of_dead.contains(point)) {
        let region = prepared(&folder, "grow");
        let session = region.session().unwrap();
        let known = open(&session, "known");
        let mut child = stopped(&folder, "put", 5, "", &format!("{point}:1"));
        let other_region = Region::attach(&folder.join("region")).unwrap();
        for number in 0..20 {
            let watch = WaitWatch::start();
            let other = other_region.session().unwrap();
            let known_too = open(&other, "known");
            other.put(known_too, &key(number), b"others").unwrap();
            session.put(known, &key(number), b"others").unwrap();
            assert!(!watch.has_stalled(), "{point}: {:?}", watch.elapsed());
        }
        create_another(&session, &child, (point, point.starts_with("namespace.")));
        resume(&mut child, &folder);
        open(&session, "another");
        drop((other_region, session, region));
        finish(&folder);
    }
}

/// A process is stopped at each step of a removal. Others write to the namespace, which ends the
/// removal, or learn at once that it is removed. Only creating and removing namespaces needs what
/// the stopped process holds, and names it.
#[test]
fn a_process_that_is_stopped_while_it_removes_a_namespace_delays_no_writer() {
    for (point, folder) in points(&["removal."]) {
        let case = RemovalCase::new(&folder).unwrap();
        let (session, old) = (case.session(), case.old()[0]);
        let mut child = stopped(&folder, "remove-namespaces", 0, "", &format!("{point}:1"));
        let is_removed = !["removal.begun", "removal.walked"].contains(&point);
        let watch = WaitWatch::start();
        match session.put(old, &key(1), b"others") {
            Ok(_) => assert!(!is_removed, "{point}"),
            Err(Error::BadArgument { .. }) => assert!(is_removed, "{point}"),
            Err(error) => panic!("{point}: {error}"),
        }
        assert_eq!(session.has_namespace(old), !is_removed, "{point}");
        assert!(!watch.has_stalled(), "{point}: {:?}", watch.elapsed());
        create_another(session, &child, (point, point != "removal.finished"));
        resume(&mut child, &folder);
        open(session, "another");
        drop(case);
        finish(&folder);
    }
}

/// A process is stopped while it takes memory from an idle session. That session waits a second at
/// most and names the process, others do not wait, and all continue when the process does.
#[test]
fn a_process_that_is_stopped_while_it_takes_memory_delays_only_the_session_that_it_takes_from() {
    for (point, folder) in points(&["take."]) {
        let case = IdleCase::new(&folder).unwrap();
        let mut child = stopped(&folder, "fill-idle", 0, "", &format!("{point}:1"));
        match case.write() {
            Err(Error::Stalled { holder }) => assert_eq!(holder.pid, child.process.id(), "{point}"),
            other => panic!("{point}: {other:?}"),
        }
        let other = Region::attach(&folder.join("region")).unwrap().session().unwrap();
        let watch = WaitWatch::start();
        let rest = open(&other, "rest");
        assert!(other.delete(rest, &1_u32.to_be_bytes()).unwrap(), "{point}");
        assert!(!watch.has_stalled(), "{point}: {:?}", watch.elapsed());
        resume(&mut child, &folder);
        drop(other);
        case.verify().unwrap();
        finish(&folder);
    }
}

/// A stopped process holds the bucket that is split next. Inserts into other, crowded buckets once
/// waited a second for it and were then refused, although they had been made.
#[test]
fn a_stopped_holder_of_the_bucket_that_is_split_next_fails_no_insert() {
    let folder = folder("stopped-split");
    prepare(&folder, named("grow").unwrap()).unwrap();
    let path = folder.join("region");
    let seed = nearstate_memory::Region::attach(&path).unwrap().seed();
    // A new namespace has eight buckets. The first of them is split first.
    let in_first = |number: &u32| nearstate_memory::hash(seed, &key(*number)).is_multiple_of(8);
    let held = (0..1000).find(in_first).unwrap();
    let mut child = stopped(&folder, "put", held.into(), "", "publish.recorded:1");
    let region = Region::attach(&path).unwrap();
    let session = region.session().unwrap();
    let own = open(&session, "own");
    for number in (1000..1300).filter(|number| !in_first(number)) {
        let watch = WaitWatch::start();
        session.put(own, &key(number), b"another bucket").unwrap();
        assert!(session.get(own, &key(number)).unwrap().is_some());
        assert!(!watch.has_stalled(), "key {number} waited for a lock");
    }
    resume(&mut child, &folder);
    for number in 2000..2100 {
        session.put(own, &key(number), b"the index grows again").unwrap();
    }
    let namespaces = region.inspect().unwrap().namespaces;
    assert!(namespaces.iter().any(|entry| entry.name == b"own" && entry.buckets > 20));
    drop((session, region));
    finish(&folder);
}

/// Every bucket that a transaction needs is held by a stopped process, and each of them continues
/// before the bound for one holder is over. The transaction waits for several of them, and is then
/// refused with the process that holds the next one.
#[test]
fn a_transaction_waits_for_many_stopped_holders_in_turn_and_then_names_the_one_it_waits_for() {
    /// A holder is stopped for this long after it became the one that is waited for.
    const PART: Duration = Duration::from_millis(600);
    let folder = folder("stopped-in-turn");
    let region = prepared(&folder, "grow");
    let seed = nearstate_memory::Region::attach(&folder.join("region")).unwrap().seed();
    let session = region.session().unwrap();
    let own = open(&session, "own");
    let namespaces = region.inspect().unwrap().namespaces;
    assert!(namespaces.iter().any(|entry| entry.name == b"own" && entry.buckets == 8));
    // One key for each bucket, in the order in which a commit locks them.
    let keys: Vec<u32> = (0..8)
        .map(|bucket| {
            let is_in = |n: &u32| nearstate_memory::hash(seed, &key(*n)) % 8 == bucket;
            (5000..100_000).find(is_in).unwrap()
        })
        .collect();
    // A loaded machine can keep this thread from running for longer than the bound for one holder.
    let mut passed_max = 0;
    for _ in 0..5 {
        let hold =
            |number: &u32| stopped(&folder, "put", (*number).into(), "", "publish.recorded:1");
        let mut holders: Vec<ChildProcess> = keys.iter().map(hold).collect();
        let (error, passed) = std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let session = region.session().unwrap();
                session.transact(|txn| {
                    keys.iter().try_for_each(|number| txn.put(own, &key(*number), b"waited"))
                })
            });
            let mut passed = 0;
            for holder in &mut holders {
                std::thread::sleep(PART);
                if waiter.is_finished() {
                    break;
                }
                resume(holder, &folder);
                passed += 1;
            }
            (waiter.join().unwrap().unwrap_err(), passed)
        });
        println!("{passed} holders have passed: {error}");
        let Error::Stalled { holder } = error else { panic!("{error}") };
        let id = |holder: &ChildProcess| holder.process.id();
        let stopped: Vec<u32> = holders[passed..].iter().map(id).collect();
        // The last one may have continued after the refusal.
        let last = passed.checked_sub(1).map(|last| id(&holders[last]));
        assert!(stopped.contains(&holder.pid) || last == Some(holder.pid), "{holder:?}");
        for number in &keys[passed..] {
            let view = session.get(own, &key(*number)).unwrap();
            assert!(view.is_none_or(|view| view.bytes() != b"waited"));
        }
        for holder in &mut holders[passed..] {
            resume(holder, &folder);
        }
        passed_max = passed_max.max(passed);
        if passed_max >= 3 {
            break;
        }
    }
    assert!(passed_max >= 3, "the bound for one holder is the bound for all of them");
    drop((session, region));
    finish(&folder);
}
