//! Counters, with processes that add concurrently and are killed while they add.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Stdio;

use nearstate_store::{
    BlockChange, Condition, CreateOptions, Error, Kind, Namespace, Pattern, Region, Schema, Session,
};

use crate::fixture::{KilledOnDrop, TestFolder, child, clean, region_path, spawn};

fn folder() -> TestFolder {
    let folder = TestFolder::new();
    let options = CreateOptions { bytes_max: 256 << 20, ..CreateOptions::default() };
    Region::create(&folder.path, &options).unwrap();
    folder
}

fn open(region: &Region) -> (Session, Namespace) {
    let session = region.session().unwrap();
    let ns =
        session.namespace("count", &Schema { kind: Kind::Counters, ..Schema::default() }).unwrap();
    (session, ns)
}

/// A process that runs an ignored test of this file. Its output is read by the test.
fn start(folder: &TestFolder, test: &str, order: &str) -> KilledOnDrop {
    let mut command = child(&format!("counters::{test}"), &folder.path);
    command.env("NEARSTATE_TEST_ORDER", order).stdout(Stdio::piped()).stderr(Stdio::null());
    KilledOnDrop(spawn(&mut command).unwrap())
}

/// The region and the numbers, in a process started by [`start`].
fn region_and_order() -> (Region, Vec<u64>) {
    let order = std::env::var("NEARSTATE_TEST_ORDER").unwrap();
    let words = order.split_whitespace().map(|word| word.parse().unwrap()).collect();
    (Region::attach(&region_path()).unwrap(), words)
}

/// Prints a line for the process that started this one, without buffering.
fn print(words: &str) {
    let mut out = std::io::stdout();
    out.write_all(format!("{words}\n").as_bytes()).and_then(|()| out.flush()).unwrap();
}

#[test]
fn a_counter_counts_and_is_gone_when_it_is_deleted() {
    let folder = folder();
    let region = Region::attach(&folder.path).unwrap();
    let (session, ns) = open(&region);
    let (other, _) = open(&region);
    assert_eq!(session.read_counter(ns, b"a"), Ok(None));
    session.add(ns, b"a", 5).unwrap();
    other.add(ns, b"a", -7).unwrap();
    assert_eq!(session.read_counter(ns, b"a"), Ok(Some(-2)));
    other.add(ns, b"b", 0).unwrap();
    assert_eq!(other.read_counter(ns, b"b"), Ok(Some(0)), "created, and at zero");
    // It wraps as 64 bits do, also over the stripes.
    session.add(ns, b"b", i64::MAX).unwrap();
    other.add(ns, b"b", 1).unwrap();
    assert_eq!(session.read_counter(ns, b"b"), Ok(Some(i64::MIN)));
    assert_eq!(session.count(ns), Ok(2));
    let mut keys = Vec::new();
    session.list(ns, Pattern::All, |key| keys.push(key.to_vec())).unwrap();
    keys.sort();
    assert_eq!(keys, [b"a", b"b"]);
    assert!(session.delete(ns, b"a").unwrap());
    assert!(!session.delete(ns, b"a").unwrap());
    assert_eq!(session.read_counter(ns, b"a"), Ok(None));
    session.add(ns, b"a", 1).unwrap();
    assert_eq!(session.read_counter(ns, b"a"), Ok(Some(1)), "begins anew");
    drop((session, other, region));
    clean(&folder.path);
}

#[test]
fn counters_and_other_records_refuse_each_others_operations() {
    let folder = folder();
    let region = Region::attach(&folder.path).unwrap();
    let (session, ns) = open(&region);
    let values = session.namespace("values", &Schema::default()).unwrap();
    let blocks =
        session.namespace("blocks", &Schema { kind: Kind::Blocks, ..Schema::default() }).unwrap();
    session.add(ns, b"k", 1).unwrap();
    let change = [BlockChange { name: "b", bytes: Some(b"x") }];
    let refused = [
        session.put(ns, b"k", b"x").map(drop),
        session.put_if(ns, b"k", b"x", Condition::Absent).map(drop),
        session.patch(ns, b"k", &change, Condition::Always).map(drop),
        session.get(ns, b"k").map(drop),
        session.get_copy(ns, b"k", &mut Vec::new()).map(drop),
        session.get_batch(ns, &[b"k"], |_, _| panic!("a counter has no value")),
        session.delete_if(ns, b"k", Condition::Value(b"x")).map(drop),
    ];
    for answer in refused {
        let Err(Error::WrongKind { detail }) = answer else { panic!("{answer:?}") };
        assert!(detail.contains("Session::add") && detail.contains("read_counter"), "{detail}");
    }
    for other in [values, blocks] {
        let answers = [session.add(other, b"k", 1), session.read_counter(other, b"k").map(drop)];
        for answer in answers {
            let Err(Error::WrongKind { detail }) = answer else { panic!("{answer:?}") };
            assert!(detail.contains("Kind::Counters"), "{detail}");
        }
    }
    for key in [&[1; 5000], &[1; 4097][..]] {
        assert!(matches!(session.add(ns, key, 1), Err(Error::KeyTooLarge { .. })));
        assert!(matches!(session.read_counter(ns, key), Err(Error::KeyTooLarge { .. })));
    }
    let other = session.namespace("count", &Schema::default());
    assert!(matches!(other, Err(Error::WrongKind { .. })), "{other:?}");
    assert_eq!(session.read_counter(ns, b"k"), Ok(Some(1)));
    drop((session, region));
    clean(&folder.path);
}

/// What every add of the processes adds: a torn one would leave a sum that is no multiple of it.
const DELTA: i64 = 0x0001_0203_0405_0607;

#[test]
#[ignore = "the next test runs it in a process of its own"]
fn adder() {
    let (region, words) = region_and_order();
    let [batch] = words[..] else { panic!("{words:?}") };
    let (session, ns) = open(&region);
    for round in 1.. {
        // What is printed before a batch bounds the sum from above, what comes after it from below.
        print(&format!("begun {}", round * batch));
        for _ in 0..batch {
            session.add(ns, b"hot", DELTA).unwrap();
        }
        print(&format!("done {}", round * batch));
    }
}

/// Kills a process once it has printed enough adds. Returns how many adds it had begun and done.
fn counts_of(mut child: KilledOnDrop, is_enough: impl Fn(u64) -> bool) -> (u64, u64) {
    let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    let (mut begun, mut done, mut is_killed) = (0, 0, false);
    // After the kill the pipe still has what was printed before it.
    while let Some(Ok(line)) = lines.next() {
        match line.split_once(' ') {
            Some(("begun", count)) => begun = count.parse().unwrap(),
            Some(("done", count)) => done = count.parse().unwrap(),
            _ => {}
        }
        if !is_killed && is_enough(done) {
            child.0.kill().unwrap();
            is_killed = true;
        }
    }
    assert!(is_killed, "a process ended without being killed");
    drop(child);
    (begun, done)
}

#[test]
fn adds_of_processes_that_are_killed_are_there_once_each_if_they_returned() {
    let folder = folder();
    let (mut begun, mut done) = (0, 0);
    for round in 0..12 {
        // One add at a time bounds the sum closely; many at a time are mostly killed inside one.
        let batch: u64 = if round % 2 == 0 { 1 } else { 5000 };
        let children = [(); 3].map(|()| start(&folder, "adder", &batch.to_string()));
        let enough = batch * (20 + round);
        for (more_begun, more_done) in children.map(|child| counts_of(child, |done| done >= enough))
        {
            assert!(more_begun >= more_done && more_begun - more_done <= batch);
            begun += more_begun;
            done += more_done;
        }
        let region = Region::attach(&folder.path).unwrap();
        let (session, ns) = open(&region);
        let sum = session.read_counter(ns, b"hot").unwrap().unwrap();
        // Sums wrap: it is the number of adds times DELTA for one number between the two.
        let is_whole =
            (done..=begun).any(|adds| i64::try_from(adds).unwrap().wrapping_mul(DELTA) == sum);
        assert!(is_whole, "{sum} is no number of adds from {done} to {begun}");
        drop((session, region));
        clean(&folder.path);
    }
}

/// Counters that the processes below create, all at once.
const KEYS: u64 = 3000;

#[test]
#[ignore = "other tests run it in processes of their own"]
fn creator() {
    let (region, words) = region_and_order();
    let [rounds] = words[..] else { panic!("{words:?}") };
    let (session, ns) = open(&region);
    print("ready");
    // All go at once.
    while session.read_counter(ns, b"go").unwrap().is_none() {
        std::thread::yield_now();
    }
    for _ in 0..rounds {
        for key in 0..KEYS {
            session.add(ns, format!("key {key}").as_bytes(), 1).unwrap();
        }
    }
}

/// Waits until a process reports that it is ready. The pipe stays open: the process would fail if
/// it wrote to a closed pipe.
fn ready(child: &mut KilledOnDrop) {
    let pipe = child.0.stdout.as_mut().unwrap();
    let mut lines = BufReader::new(pipe).lines();
    assert!(
        lines.any(|line| line.unwrap().ends_with("ready")),
        "the process ended before it was ready"
    );
}

#[test]
fn sessions_that_share_a_stripe_lose_no_add() {
    let folder = folder();
    let region = Region::attach(&folder.path).unwrap();
    let sessions: Vec<_> = (0..33).map(|_| open(&region)).collect();
    let ns = sessions[0].1;
    let begin = std::sync::Barrier::new(3);
    std::thread::scope(|scope| {
        // Numbers 0, 16 and 32: one stripe.
        for (session, _) in sessions.into_iter().step_by(16) {
            let begin = &begin;
            scope.spawn(move || {
                begin.wait();
                for _ in 0..2_000_000 {
                    session.add(ns, b"hot", 1).unwrap();
                }
            });
        }
    });
    let (session, _) = open(&region);
    assert_eq!(session.read_counter(ns, b"hot"), Ok(Some(6_000_000)));
    drop((session, region));
    clean(&folder.path);
}

#[test]
fn processes_that_create_the_same_counters_lose_no_add() {
    let folder = folder();
    let region = Region::attach(&folder.path).unwrap();
    let (session, ns) = open(&region);
    let mut children = [(); 4].map(|()| start(&folder, "creator", "3"));
    children.iter_mut().for_each(ready);
    session.add(ns, b"go", 1).unwrap();
    for child in &mut children {
        assert!(child.0.wait().unwrap().success());
    }
    for key in 0..KEYS {
        let sum = session.read_counter(ns, format!("key {key}").as_bytes());
        assert_eq!(sum, Ok(Some(12)), "key {key}");
    }
    assert_eq!(session.count(ns), Ok(KEYS + 1));
    drop((session, region));
    clean(&folder.path);
}

#[test]
fn creators_that_are_killed_leak_nothing_and_tear_nothing() {
    let folder = folder();
    for round in 0..25 {
        let region = Region::attach(&folder.path).unwrap();
        let (session, ns) = open(&region);
        session.add(ns, b"go", 1).unwrap();
        let mut child = start(&folder, "creator", "1000000");
        ready(&mut child);
        // It creates what we delete, and we are somewhere else in the list each time it is killed.
        for step in 0..3000 + round * 177 {
            session.delete(ns, format!("key {}", step * 7 % KEYS).as_bytes()).unwrap();
        }
        drop(child);
        for key in 0..KEYS {
            let sum = session.read_counter(ns, format!("key {key}").as_bytes()).unwrap();
            assert!(sum.is_none_or(|sum| sum > 0), "a counter without additions: {sum:?}");
        }
        drop((session, region));
        clean(&folder.path);
    }
}

#[test]
#[ignore = "the next test runs it in a process of its own"]
fn reader() {
    let (region, _) = region_and_order();
    let (session, ns) = open(&region);
    print("ready");
    let mut last = 0;
    loop {
        let sum = session.read_counter(ns, b"hot").unwrap().unwrap();
        assert!(sum >= last, "{last}, then {sum}");
        last = sum;
        if sum == i64::try_from(ADDS).unwrap() {
            return;
        }
    }
}

const ADDS: u64 = 400_000;

#[test]
fn a_sum_never_falls_while_others_add_and_every_add_is_in_it_once_it_returned() {
    let folder = folder();
    let region = Region::attach(&folder.path).unwrap();
    let (session, ns) = open(&region);
    session.add(ns, b"hot", 0).unwrap();
    let mut child = start(&folder, "reader", "");
    ready(&mut child);
    let (other, _) = open(&region);
    for add in 1..=ADDS {
        let adder = if add % 2 == 0 { &session } else { &other };
        adder.add(ns, b"hot", 1).unwrap();
        if add % 64 == 0 {
            assert_eq!(other.read_counter(ns, b"hot"), Ok(Some(i64::try_from(add).unwrap())));
        }
    }
    // It ends when it sees the last add, and fails if a sum ever fell.
    assert!(child.0.wait().unwrap().success());
    drop((session, other, region));
    clean(&folder.path);
}
