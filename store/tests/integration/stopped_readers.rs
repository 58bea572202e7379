//! A process that is stopped inside a view or inside a transaction: others go on to write several
//! times the region, and it holds back what was live when it read, and nothing later.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::time::Duration;

use nearstate_store::{Error, Namespace, Region, Session, lease_clock};

use crate::fixture::{KilledOnDrop, TestFolder, child, clean, region_path, spawn};
use crate::full_region::{BYTES, create, delete_all, fill, key, open, unused};
use crate::stopped_writers::is_stopped;

const RECORDS: u32 = 8000;

/// Bytes of a record's value.
const VALUE: usize = 1000;

/// Rounds over all records: five times the region.
const ROUNDS: u32 = 40;

/// A bound for what takes milliseconds.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Tells the parent that it holds what it holds, and waits. The parent stops it here.
fn wait_inside() {
    std::io::stdout().write_all(b"inside;\n").unwrap();
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

#[test]
#[ignore = "the tests below run it in a process of its own"]
fn a_view_in_another_process() {
    let region = Region::attach(&region_path()).unwrap();
    let (session, ns) = open(&region);
    let view = session.get(ns, &key(5)).unwrap().unwrap();
    wait_inside();
    assert_eq!(view.bytes(), [1; VALUE], "a record changed under a view");
    drop(view);
    let now = session.get(ns, &key(5)).unwrap().unwrap();
    assert_eq!(now.bytes(), [ROUNDS as u8; VALUE]);
}

#[test]
#[ignore = "the tests below run it in a process of its own"]
fn a_transaction_in_another_process() {
    let region = Region::attach(&region_path()).unwrap();
    let (session, ns) = open(&region);
    let txn = session.begin().unwrap();
    let seen = txn.get(ns, &key(5)).unwrap().unwrap();
    assert_eq!(seen.bytes(), [1; VALUE]);
    txn.put(ns, &key(6), b"depends on record 5").unwrap();
    wait_inside();
    assert_eq!(seen.bytes(), [1; VALUE], "a record changed under a transaction");
    drop(seen);
    let commit = txn.commit();
    assert!(matches!(commit, Err(Error::Conflict { .. })), "{commit:?}");
    assert_eq!(session.get(ns, &key(6)).unwrap().unwrap().bytes(), [ROUNDS as u8; VALUE]);
}

/// Writes each record once.
fn put_all(session: &Session, ns: Namespace, round: u32) {
    let value = [round as u8; VALUE];
    for number in 0..RECORDS {
        session
            .put(ns, &key(number), &value)
            .unwrap_or_else(|error| panic!("round {round}, record {number}: {error}"));
    }
}

fn taken(region: &Region) -> u64 {
    region.inspect().unwrap().bytes_taken
}

fn signal(process: &KilledOnDrop, name: &str) {
    let kill = format!("kill -{name} {}", process.0.id());
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
}

fn stop_inside(test: &str) {
    let folder = TestFolder::new();
    let region = create(&folder);
    let (session, ns) = open(&region);
    put_all(&session, ns, 1);
    let live = taken(&region);
    let mut command = child(&format!("stopped_readers::{test}"), &folder.path);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut reader = KilledOnDrop(spawn(&mut command).unwrap());
    let mut lines = BufReader::new(reader.0.stdout.take().unwrap());
    let mut printed = String::new();
    while !printed.contains("inside;") {
        assert!(lines.read_line(&mut printed).unwrap() != 0, "{test}: {printed}");
    }
    signal(&reader, "STOP");
    let end = lease_clock() + WAIT_MAX;
    while !is_stopped(&reader.0) {
        assert!(lease_clock() < end, "{test}: it does not stop");
        std::thread::yield_now();
    }
    for round in 2..=ROUNDS {
        put_all(&session, ns, round);
        let held = taken(&region);
        assert!(held < 3 * live, "round {round}: {held} bytes are taken, {live} are live");
    }
    let held_back = region.inspect().unwrap().heap.held_back;
    let held = held_back.iter().find(|held| held.process.pid == reader.0.id());
    let held = held.unwrap_or_else(|| panic!("{test}: the process is not named: {held_back:?}"));
    assert!(held.bytes > live / 2 && held.bytes < 2 * live, "{held:?} of {live}");
    signal(&reader, "CONT");
    drop(reader.0.stdin.take());
    assert!(reader.0.wait().unwrap().success(), "{test}");
    delete_all(&session, ns, RECORDS);
    drop(session);
    let (session, ns) = open(&region);
    let count = fill(&session, ns, VALUE);
    let unused = unused(&region);
    assert!(unused < BYTES / 50, "{unused} are unused after {count} records");
    drop((session, region));
    clean(&folder.path);
}

#[test]
fn a_process_that_is_stopped_inside_a_view_holds_back_what_was_live() {
    stop_inside("a_view_in_another_process");
}

#[test]
fn a_process_that_is_stopped_inside_a_transaction_holds_back_what_was_live() {
    stop_inside("a_transaction_in_another_process");
}

/// Records of 64 to 70,000 bytes.
fn mixed_size(number: u32) -> usize {
    let random = (number.wrapping_mul(2_654_435_761) >> 8) as usize;
    (64 << (random % 8)) | (random / 8 % (64 << (random % 8)))
}

/// Records whose sizes are mixed, some 20 MiB.
const MIXED: u32 = 6000;

/// It is stopped in an operation.
#[test]
#[ignore = "the test below runs it in a process of its own"]
fn a_writer_of_mixed_sizes_in_another_process() {
    let region = Region::attach(&region_path()).unwrap();
    let (session, ns) = open(&region);
    let value = vec![1; 20_000];
    let mut random = 1_u32;
    loop {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let number = (random >> 8) % MIXED;
        session.put(ns, &key(number), &value[..mixed_size(number)]).unwrap();
    }
}

/// What a process keeps that is stopped in an operation is out of reach of the others: a bounded
/// part of the region, which the error names.
#[test]
fn a_process_that_is_stopped_in_an_operation_keeps_little_and_is_named() {
    let folder = TestFolder::new();
    let region = create(&folder);
    let mut command =
        child("stopped_readers::a_writer_of_mixed_sizes_in_another_process", &folder.path);
    command.env("NEARSTATE_CRASH_AT", "alloc.done:60000:stop");
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let mut writer = KilledOnDrop(spawn(&mut command).unwrap());
    let end = lease_clock() + WAIT_MAX;
    while !is_stopped(&writer.0) {
        assert!(lease_clock() < end && writer.0.try_wait().unwrap().is_none(), "it is not stopped");
        std::thread::yield_now();
    }
    let (session, ns) = open(&region);
    let full =
        (0..).find_map(|number: u32| session.put(ns, &number.to_be_bytes(), &[2; 4000]).err());
    let Some(Error::Full { detail, heap: Some(heap) }) = full else { panic!("{full:?}") };
    let [kept] = &heap.in_operation[..] else { panic!("{heap:?}") };
    assert_eq!(kept.process.pid, writer.0.id());
    assert!((64 << 10..BYTES / 16).contains(&kept.bytes), "{kept:?}");
    assert!(detail.contains(&format!("kept by {} (in an operation)", kept.process)), "{detail}");
    // Nothing else is out of reach.
    assert!(heap.retired + heap.kept < kept.bytes + (1 << 20), "{heap:?}");
    drop(writer);
    session.put(ns, b"room", &[2; 4000]).unwrap();
    drop((session, region));
    clean(&folder.path);
}

/// Sixty sessions that renew their views, and one old view: more than a scan tells apart. The old
/// one holds what was live when it began, and the others what was live lately.
#[test]
fn an_old_view_among_sixty_that_change_holds_back_only_what_was_live() {
    const LIVE: u32 = 1000;
    let folder = TestFolder::new();
    let region = create(&folder);
    let (session, ns) = open(&region);
    let put = |number: u32, round: u8| session.put(ns, &key(number), &[round; 1000]);
    for number in 0..LIVE {
        put(number, 0).unwrap();
    }
    let old = region.session().unwrap();
    let oldest = old.get(ns, &key(0)).unwrap().unwrap();
    let renewing: Vec<Session> = (0..60).map(|_| region.session().unwrap()).collect();
    let view_of = |reader: usize, number: u32| {
        renewing[reader].get(ns, &key(number)).unwrap().expect("it stays")
    };
    let mut views: Vec<_> = (0..60).map(|reader| Some(view_of(reader, 1))).collect();
    let mut next = 0;
    for round in 1..100 {
        for number in 0..LIVE {
            if number % 20 == 0 {
                views[next] = None;
                views[next] = Some(view_of(next, number));
                next = (next + 1) % views.len();
            }
            put(number, round).unwrap_or_else(|error| panic!("round {round}: {error}"));
        }
    }
    assert_eq!(oldest.bytes(), [0; 1000]);
    let taken = taken(&region);
    assert!(taken < 8 << 20, "{taken} bytes are taken by {LIVE} records and what views hold");
    drop((views, oldest));
    drop((session, old, renewing, region));
    clean(&folder.path);
}
