//! How long the dead and the stopped may keep the living: a dead holder of a lock for less than 10
//! ms, a stopped one only from what it holds, and it is named.
#![cfg(feature = "crash-points")]
#![expect(clippy::print_stdout, reason = "a test says what it measured")]
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "helpers of tests")]

use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use nearstate_store::{Error, Kind, Namespace, Region, Schema, Session};
use nearstate_torture::content::{Key, Space};
use nearstate_torture::scenario::{named, prepare};
use nearstate_torture::spawn::{Starter, was_killed};
use nearstate_torture::verify::check_clean;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// What the issue promises.
const DEAD_HOLDER_MAX: Duration = Duration::from_millis(10);

fn folder(name: &str) -> PathBuf {
    format!("/dev/shm/nearstate-{name}-test-{}", std::process::id()).into()
}

fn start(folder: &Path, role: &str, number: u32, what: &str, plan: &str) -> Child {
    let starter = Starter(vec![env!("CARGO_BIN_EXE_nearstate-torture-child").into()]);
    let words = [role, &folder.display().to_string(), &number.to_string(), "0", "0", what];
    let settings = [("NEARSTATE_CRASH_AT", plan)];
    starter.start(&words.map(str::to_owned), &settings, &folder.join("errors")).unwrap()
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(child.id().cast_signed())
}

fn wait_until_stopped(child: &Child) {
    let status = waitpid(pid(child), Some(WaitPidFlag::WUNTRACED)).unwrap();
    assert!(matches!(status, WaitStatus::Stopped(..)), "{status:?}");
}

fn key(number: u32) -> Vec<u8> {
    Key { space: Space::Own, writer: 0, number }.bytes()
}

fn open(session: &Session, name: &str) -> Namespace {
    session.namespace(name, &Schema { kind: Kind::Value, ..Schema::default() }).unwrap()
}

fn print(name: &str, mut waits: Vec<Duration>) -> Duration {
    waits.sort_unstable();
    let at = |percent: usize| waits[(waits.len() * percent / 100).min(waits.len() - 1)];
    println!("{name}: p50 {:?}, p90 {:?}, p99 {:?} of {}", at(50), at(90), at(99), waits.len());
    // The machine may be busy with other work: some of them wait for a processor as well.
    assert!(at(99) < Duration::from_secs(1));
    at(50)
}

#[test]
fn a_writer_that_meets_a_dead_holder_of_its_lock_goes_on_within_ten_milliseconds() {
    let folder = folder("dead-holder");
    let mut waits = Vec::new();
    prepare(&folder, named("insert").unwrap()).unwrap();
    let region = Region::attach(&folder.join("region")).unwrap();
    let session = region.session().unwrap();
    let own = open(&session, "own");
    for round in 0..60 {
        // A bucket's lock is held from lock.taken to publish.cleared; the first lock that a put
        // takes may be the frontier's.
        let point =
            ["lock.taken:1", "lock.taken:2", "publish.noted:1", "publish.committed:1"][round % 4];
        let mut child = start(&folder, "put", 5, "", point);
        let was_cut = was_killed(child.wait().unwrap());
        let begun = Instant::now();
        session.put(own, &key(5), b"after a death").unwrap();
        if was_cut {
            waits.push(begun.elapsed());
        }
    }
    assert!(waits.len() >= 40);
    assert!(print("after the holder died", waits) < DEAD_HOLDER_MAX);
    drop((session, region));
    check_clean(&folder.join("region")).unwrap();
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_writer_that_is_waiting_when_the_holder_dies_goes_on_within_ten_milliseconds() {
    let folder = folder("dying-holder");
    let mut waits = Vec::new();
    prepare(&folder, named("insert").unwrap()).unwrap();
    let region = Region::attach(&folder.join("region")).unwrap();
    for _ in 0..30 {
        let mut child = start(&folder, "put", 5, "", "publish.noted:1:stop");
        wait_until_stopped(&child);
        let (ready, is_ready) = std::sync::mpsc::channel();
        let done = std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let session = region.session().unwrap();
                let own = open(&session, "own");
                ready.send(()).unwrap();
                session.put(own, &key(5), b"waited").unwrap();
                Instant::now()
            });
            is_ready.recv().unwrap();
            // Until the waiter has begun to wait.
            std::thread::sleep(Duration::from_millis(5));
            child.kill().unwrap();
            child.wait().unwrap();
            let died = Instant::now();
            waiter.join().unwrap().saturating_duration_since(died)
        });
        waits.push(done);
    }
    assert!(print("while the holder died", waits) < DEAD_HOLDER_MAX);
    drop(region);
    check_clean(&folder.join("region")).unwrap();
    std::fs::remove_dir_all(folder).unwrap();
}

/// A child is stopped at a point of a scenario; meanwhile this process inserts and deletes many
/// other keys. Returns the longest of these and how many were refused because of the child.
fn beside_a_stopped(scenario: &str, plan: &str, len: usize) -> (Duration, u32) {
    let folder = folder(&format!("stopped-{}", plan.replace([':', '.'], "-")));
    prepare(&folder, named(scenario).unwrap()).unwrap();
    let region = Region::attach(&folder.join("region")).unwrap();
    let session = region.session().unwrap();
    let other = open(&session, "own");
    let mut child = start(&folder, "scenario", 0, scenario, plan);
    wait_until_stopped(&child);
    let (mut longest, mut refused) = (Duration::ZERO, 0);
    let value = vec![7_u8; len];
    for number in 0..3000_u32 {
        let begun = Instant::now();
        let key = format!("other-{}", number / 2 * 2 % 1000);
        let done = match number % 2 {
            0 => session.put(other, key.as_bytes(), &value).map(drop),
            _ => session.delete(other, key.as_bytes()).map(drop),
        };
        match done {
            Ok(()) => longest = longest.max(begun.elapsed()),
            Err(Error::Stalled { holder }) => {
                assert_eq!((holder.pid, &holder.name[..]), (child.id(), "nearstate-tortu"));
                refused += 1;
                if refused == 3 {
                    break;
                }
            }
            Err(error) => panic!("{error}"),
        }
    }
    println!("beside one stopped at {plan} of {scenario}: longest {longest:?}, {refused} refused");
    kill(pid(&child), Signal::SIGCONT).unwrap();
    let status = child.wait().unwrap();
    assert!(status.success(), "{}", std::fs::read_to_string(folder.join("errors")).unwrap());
    drop((session, region));
    check_clean(&folder.join("region")).unwrap();
    std::fs::remove_dir_all(folder).unwrap();
    (longest, refused)
}

#[test]
fn a_stopped_holder_of_a_pool_or_of_the_growth_of_an_index_stops_nobody() {
    for (scenario, plan, len) in [
        ("grow", "split.built:3:stop", 20),
        ("grow", "split.locked:5:stop", 20),
        ("pool", "give.cut:1:stop", 60_000),
        ("pool", "take.cut:1:stop", 60_000),
    ] {
        let (longest, refused) = beside_a_stopped(scenario, plan, len);
        assert_eq!(refused, 0, "{plan}");
        assert!(longest < Duration::from_millis(500), "{plan}: {longest:?}");
    }
}

#[test]
fn a_stopped_holder_of_one_bucket_delays_that_bucket_only_and_is_named() {
    let folder = folder("stopped-bucket");
    prepare(&folder, named("insert").unwrap()).unwrap();
    let region = Region::attach(&folder.join("region")).unwrap();
    let session = region.session().unwrap();
    let own = open(&session, "own");
    let before = session.get(own, &key(5)).unwrap().unwrap().version();
    let mut child = start(&folder, "put", 5, "", "publish.noted:1:stop");
    wait_until_stopped(&child);
    let (mut refused, mut longest) = (0, Duration::ZERO);
    for number in 1000..1400 {
        let begun = Instant::now();
        match session.put(own, &key(number), &[1; 100]) {
            Ok(_) => longest = longest.max(begun.elapsed()),
            Err(Error::Stalled { .. }) => {
                // Refused means that nothing was changed, also not before the index was to grow.
                assert!(session.get(own, &key(number)).unwrap().is_none(), "key {number}");
                refused += 1;
            }
            Err(error) => panic!("{error}"),
        }
        // Of eight or more buckets one is held: a few are enough.
        if refused == 5 {
            break;
        }
    }
    println!(
        "others beside a stopped holder: longest {longest:?}, {refused} in its bucket refused"
    );
    assert!(longest < Duration::from_millis(500));
    let begun = Instant::now();
    let error = session.put(own, &key(5), b"wants the same").unwrap_err();
    println!("the same key: {error} (after {:?})", begun.elapsed());
    let Error::Stalled { holder } = error else { panic!("{error}") };
    assert_eq!((holder.pid, &holder.name[..]), (child.id(), "nearstate-tortu"));
    assert!(begun.elapsed() >= Duration::from_secs(1) && begun.elapsed() < Duration::from_secs(5));
    // Reading is never held up, not even of that key.
    assert_eq!(session.get(own, &key(5)).unwrap().unwrap().version(), before);
    kill(pid(&child), Signal::SIGCONT).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(session.get(own, &key(5)).unwrap().unwrap().version(), before + 1);
    session.put(own, &key(5), b"goes on").unwrap();
    drop((session, region));
    check_clean(&folder.join("region")).unwrap();
    std::fs::remove_dir_all(folder).unwrap();
}

/// The bucket that is to be split next is held by a stopped process. Inserts into other buckets,
/// which are crowded, once waited a second for it and were then refused, though they had been made.
#[test]
fn a_stopped_holder_of_the_bucket_that_is_split_next_fails_no_insert() {
    let folder = folder("stopped-split");
    prepare(&folder, named("grow").unwrap()).unwrap();
    let path = folder.join("region");
    let seed = nearstate_memory::Region::attach(&path).unwrap().seed();
    // A new namespace has eight buckets; the first of them is the first to be split.
    let in_first = |number: &u32| nearstate_memory::hash(seed, &key(*number)).is_multiple_of(8);
    let held = (0..1000).find(in_first).unwrap();
    let mut child = start(&folder, "put", held, "", "publish.noted:1:stop");
    wait_until_stopped(&child);
    let region = Region::attach(&path).unwrap();
    let session = region.session().unwrap();
    let own = open(&session, "own");
    let begun = Instant::now();
    for number in (1000..1300).filter(|number| !in_first(number)) {
        session.put(own, &key(number), b"beside").unwrap();
        assert!(session.get(own, &key(number)).unwrap().is_some());
        assert!(begun.elapsed() < Duration::from_secs(1), "key {number} waited");
    }
    println!("inserts into crowded buckets beside it: {:?}", begun.elapsed());
    kill(pid(&child), Signal::SIGCONT).unwrap();
    assert!(child.wait().unwrap().success());
    for number in 2000..2100 {
        session.put(own, &key(number), b"and the index grows again").unwrap();
    }
    let buckets = region.inspect().unwrap().namespaces;
    assert!(buckets.iter().any(|entry| entry.name == b"own" && entry.buckets > 20));
    drop((session, region));
    check_clean(&path).unwrap();
    std::fs::remove_dir_all(folder).unwrap();
}
