//! Rings in a region, with writers, readers and waiters in other processes, which are killed.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::*;
use crate::check::check;
use crate::region::file::{CreateOptions, Region};

/// The file of a region, which is removed at the end of the test.
pub(super) struct TestRegion(PathBuf);

impl TestRegion {
    pub(super) fn new(name: &str) -> Self {
        let base = if Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" };
        let path = Path::new(base).join(format!("nearstate-{name}-{}", std::process::id()));
        Region::create(&path, &CreateOptions::default()).unwrap();
        Self(path)
    }

    pub(super) fn region(&self) -> Region {
        Region::attach(&self.0).unwrap()
    }

    /// Another process, which runs an ignored test of this module.
    fn start(&self, test: &str, order: &str) -> Started {
        let name = format!("ring::tests::{test}");
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", &name, "--nocapture"])
            .env("RING_PATH", &self.0)
            .env("RING_ORDER", order)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Started(child)
    }

    fn clean(&self) {
        let report = check(&self.0, &mut |_, _| Ok(())).unwrap();
        assert!(report.is_clean(), "{report:#?}");
    }
}

/// A process that ends at the latest with the test, also if the test fails.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for TestRegion {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The region and the order that a process started by [`TestRegion::start`] was given.
fn parent_order() -> (Region, String) {
    let path = std::env::var_os("RING_PATH").expect("started by another test");
    (Region::attach(Path::new(&path)).unwrap(), std::env::var("RING_ORDER").unwrap())
}

fn killed(mut child: Started) {
    assert!(child.0.try_wait().unwrap().is_none(), "a process ended by itself");
    drop(child);
}

const BYTES: u64 = RING_BYTES_MIN;

/// A payload that is complete only if all its bytes are of one append of one writer.
fn payload(writer: u64, number: u64) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.resize(16 + (number * 29 % 300) as usize, (writer * 31 + number) as u8);
    bytes[8..16].copy_from_slice(&writer.to_le_bytes());
    bytes
}

fn parsed(bytes: &[u8]) -> (u64, u64) {
    let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    let writer = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
    assert_eq!(bytes, payload(writer, number), "parts of several entries");
    (writer, number)
}

#[test]
fn a_reader_gets_every_entry_or_learns_how_many_it_missed() {
    let place = TestRegion::new("ring-lost");
    let region = place.region();
    let member = region.member().unwrap();
    let table = member.namespace(b"ue", 1).unwrap();
    assert_eq!(member.watch_ring(table), Ok(None));
    let ring = member.open_watch_ring(table, BYTES).unwrap();
    assert_eq!(member.open_watch_ring(table, BYTES), Ok(ring), "there is one already");
    assert_eq!(member.watch_ring(table), Ok(Some(ring)));
    let mut slow = member.ring_reader(ring, RingStart::Oldest).unwrap();
    let mut out = Vec::new();
    let (mut read, mut lost, mut expected) = (0, 0, 0);
    for number in 0..3000 {
        assert!(member.append_to_ring(ring, &payload(0, number)).unwrap());
        // Sometimes the reader keeps up, sometimes it reads nothing for a long time.
        let is_awake = number % 100 < 30;
        while let Some(next) = is_awake.then(|| slow.next(&mut out).unwrap()) {
            match next {
                RingRead::Entry { number } => {
                    assert_eq!((parsed(&out), number), ((0, number), expected));
                    (read, expected) = (read + 1, expected + 1);
                }
                RingRead::Lost { entries } => {
                    (lost, expected) = (lost + entries, expected + entries);
                }
                RingRead::Empty => break,
            }
        }
    }
    assert!(read > 500 && lost > 500, "{read} read, {lost} lost");
    assert_eq!(read + lost + slow.backlog().unwrap(), 3000);
    // A new reader gets all entries that still exist, or only new ones.
    let mut all = member.ring_reader(ring, RingStart::Oldest).unwrap();
    let mut newest = None;
    while let RingRead::Entry { number } = all.next(&mut out).unwrap() {
        assert_eq!(parsed(&out), (0, number));
        assert!(newest.is_none_or(|newest| number == newest + 1));
        newest = Some(number);
    }
    assert_eq!(newest, Some(2999));
    let mut fresh = member.ring_reader(ring, RingStart::Tail).unwrap();
    assert_eq!(fresh.next(&mut out).unwrap(), RingRead::Empty);
    member.append_to_ring(ring, b"").unwrap();
    assert_eq!(fresh.next(&mut out).unwrap(), RingRead::Entry { number: 3000 });
    assert_eq!(out, b"");
    drop((member, slow, all, fresh));
    place.clean();
}

#[test]
fn an_append_of_the_same_entry_again_changes_nothing() {
    let place = TestRegion::new("ring-again");
    let region = place.region();
    let member = region.member().unwrap();
    let map = member.map();
    let ring = member.open_watch_ring(member.namespace(b"ue", 1).unwrap(), BYTES).unwrap();
    let mut reader = member.ring_reader(ring, RingStart::Tail).unwrap();
    let source = member.operation(|| member.allocate(1000)).unwrap();
    let mut out = Vec::new();
    for number in 0..500_u64 {
        let bytes = payload(3, number);
        // At an odd offset: a source has no alignment.
        map.write(source + 71, &bytes).unwrap();
        let before = tail(map, ring).unwrap();
        for _ in 0..3 {
            append(map, ring, before, source + 71, bytes.len() as u64).unwrap();
            wake(map, ring).unwrap();
        }
        assert_eq!(reader.next(&mut out).unwrap(), RingRead::Entry { number });
        assert_eq!(parsed(&out), (3, number));
        assert_eq!(reader.next(&mut out).unwrap(), RingRead::Empty);
    }
    member.free_pending().unwrap();
    drop((member, reader));
    place.clean();
}

#[test]
fn an_offset_without_a_ring_is_reported_as_corruption() {
    let place = TestRegion::new("ring-none");
    let region = place.region();
    let member = region.member().unwrap();
    let map = member.map();
    let cell = member.operation(|| member.allocate(64)).unwrap();
    for at in [0, 1, 64, cell, cell + 8, map.len() - 64, map.len(), u64::MAX, u64::MAX - 63] {
        assert!(member.ring_reader(at, RingStart::Tail).is_err(), "{at:#x}");
        assert!(member.append_to_ring(at, b"x").is_err(), "{at:#x}");
        assert!(append(map, at, 0, cell, 8).is_err());
        assert!(tail(map, at).is_err() && fits(map, at, 8).is_err());
    }
    let table = member.namespace(b"ue", 1).unwrap();
    for bytes in [0, RING_BYTES_MIN - 1, RING_BYTES_MAX + 1, u64::MAX] {
        let refused = member.open_watch_ring(table, bytes).unwrap_err().to_string();
        assert!(refused.contains(&RING_BYTES_MAX.to_string()), "{refused}");
    }
    // A capacity that does not fit its cell, an entry that is too large, and a source outside the
    // region.
    let ring = member.open_watch_ring(table, BYTES).unwrap();
    assert!(!member.append_to_ring(ring, &vec![0; BYTES as usize]).unwrap(), "too large");
    assert_eq!(fits(map, ring, BYTES), Ok(false));
    assert!(append(map, ring, 0, map.len() - 4, 8).is_err());
    let capacity = cell::word(map, ring, cell::WORD_VERSION).unwrap();
    let sound = capacity.load(Ordering::Relaxed);
    for wrong in [sound + 1, u64::MAX, u64::MAX / 8] {
        capacity.store(wrong, Ordering::Relaxed);
        assert!(member.append_to_ring(ring, b"x").is_err());
    }
    capacity.store(sound, Ordering::Relaxed);
    assert!(member.append_to_ring(ring, b"x").unwrap());
    member.free_pending().unwrap();
    drop(member);
    place.clean();
}

#[test]
#[ignore = "a process of the next test"]
fn writer() {
    let (region, order) = parent_order();
    let member = region.member().unwrap();
    let table = member.namespace(b"ue", 1).unwrap();
    let ring = member.open_watch_ring(table, BYTES).unwrap();
    let writer = order.parse().unwrap();
    for number in 0.. {
        assert!(member.append_to_ring(ring, &payload(writer, number)).unwrap());
    }
}

#[test]
fn killed_writers_leave_a_ring_with_complete_entries() {
    let place = TestRegion::new("ring-kills");
    let region = place.region();
    let member = region.member().unwrap();
    let table = member.namespace(b"ue", 1).unwrap();
    let ring = member.open_watch_ring(table, BYTES).unwrap();
    let mut reader = member.ring_reader(ring, RingStart::Tail).unwrap();
    let mut out = Vec::new();
    let mut expected = 0;
    let mut writers: Vec<_> =
        (0..2).map(|writer| place.start("writer", &writer.to_string())).collect();
    for writer in 2..40_u64 {
        // Each entry of a writer is newer than its previous one. The newest writer is the last in
        // the list. The reader gets an entry of it before the oldest writer is killed at any point.
        let (mut newest, mut has_lost, mut steps) = (vec![None; 42], false, 0);
        while newest.get(writer as usize - 1) == Some(&None) || steps < 300 {
            assert!(reader.wait(Duration::from_secs(60)).unwrap(), "no writer appends");
            match reader.next(&mut out).unwrap() {
                RingRead::Entry { number } => {
                    assert_eq!(number, expected);
                    let (writer, count) = parsed(&out);
                    let before = newest[writer as usize].replace(count);
                    // No entry of a writer is missing, unless the reader has lost some.
                    let is_next = |before| count == before + 1 || has_lost && count > before;
                    assert!(before.is_none_or(is_next), "{before:?}, then {count}");
                    (expected, steps) = (expected + 1, steps + 1);
                }
                RingRead::Lost { entries } => (expected, has_lost) = (expected + entries, true),
                RingRead::Empty => panic!("the wait ended without an entry"),
            }
        }
        killed(writers.remove(0));
        writers.push(place.start("writer", &writer.to_string()));
    }
    writers.into_iter().for_each(killed);
    // All remaining entries. A process that died with the lock of the ring is recovered by the next
    // append.
    loop {
        match reader.next(&mut out).unwrap() {
            RingRead::Entry { number } => {
                assert_eq!(number, expected);
                expected += 1;
            }
            RingRead::Lost { entries } => expected += entries,
            RingRead::Empty => break,
        }
    }
    assert!(member.append_to_ring(ring, &payload(41, 1)).unwrap());
    assert_eq!(reader.next(&mut out).unwrap(), RingRead::Entry { number: expected });
    assert_eq!(parsed(&out), (41, 1));
    drop((member, reader, region));
    place.clean();
}

#[test]
#[ignore = "a process of the next test"]
fn sleeper() {
    let (region, _) = parent_order();
    let member = region.member().unwrap();
    let ring = member.watch_ring(member.namespace(b"ue", 1).unwrap()).unwrap().unwrap();
    let echo = member.watch_ring(member.namespace(b"echo", 1).unwrap()).unwrap().unwrap();
    let mut reader = member.ring_reader(ring, RingStart::Oldest).unwrap();
    let mut out = Vec::new();
    loop {
        assert!(reader.wait(Duration::from_secs(60)).unwrap());
        while let RingRead::Entry { .. } = reader.next(&mut out).unwrap() {
            member.append_to_ring(echo, &out).unwrap();
        }
    }
}

#[test]
fn waiters_in_other_processes_are_woken_and_a_killed_waiter_has_no_effect() {
    let place = TestRegion::new("ring-sleep");
    let region = place.region();
    let member = region.member().unwrap();
    let [ring, echo] = [b"ue".as_slice(), b"echo"]
        .map(|name| member.open_watch_ring(member.namespace(name, 1).unwrap(), 1 << 20).unwrap());
    let mut echoes = member.ring_reader(echo, RingStart::Tail).unwrap();
    let sleepers = [place.start("sleeper", ""), place.start("sleeper", "")];
    let mut out = Vec::new();
    let mut count = |what: u64| {
        for _ in 0..what {
            assert!(echoes.wait(Duration::from_secs(60)).unwrap(), "a waiter was not woken");
            assert!(matches!(echoes.next(&mut out).unwrap(), RingRead::Entry { .. }));
        }
    };
    for number in 0..300 {
        member.append_to_ring(ring, &payload(1, number)).unwrap();
        count(2);
    }
    let [first, second] = sleepers;
    killed(first);
    for number in 0..300 {
        member.append_to_ring(ring, &payload(2, number)).unwrap();
        count(1);
    }
    killed(second);
    // No waiter is left. The first append clears the bit that the killed waiters had set.
    for number in 0..3 {
        member.append_to_ring(ring, &payload(3, number)).unwrap();
    }
    let word = member.map().word(ring + RING_WAITERS).unwrap().load(Ordering::Relaxed);
    assert!(word.is_multiple_of(2), "a dead waiter is woken forever");
    let fresh = member.ring_reader(ring, RingStart::Tail).unwrap();
    assert!(!fresh.wait(Duration::ZERO).unwrap());
    assert!(!fresh.wait(Duration::from_millis(1)).unwrap());
    drop((member, echoes, fresh, region));
    place.clean();
}

#[test]
#[ignore = "a process of the next test"]
fn creator() {
    let (region, order) = parent_order();
    let member = region.member().unwrap();
    let word_at = catalog_at(member.namespace(b"ue", 1).unwrap().index()) + CATALOG_RING;
    let at = member.operation(|| create(&member, BYTES)).unwrap();
    if order == "created" {
        std::process::abort();
    }
    write_undo(&member.arena(), word_at, 0, at, op::SET_ONCE);
    if order == "published" {
        member.map().word(word_at).unwrap().store(at, Ordering::Release);
    }
    std::process::abort();
}

#[test]
fn a_killed_creator_leaves_a_complete_ring_or_none() {
    for order in ["created", "recorded", "published"] {
        for is_overtaken in [false, true] {
            let place = TestRegion::new("ring-create");
            let region = place.region();
            let member = region.member().unwrap();
            let table = member.namespace(b"ue", 1).unwrap();
            let status = place.start("creator", order).0.wait().unwrap();
            assert!(!status.success());
            let ring = is_overtaken.then(|| member.open_watch_ring(table, BYTES).unwrap());
            // A new session recovers the dead one.
            drop(region.member().unwrap());
            let now = member.watch_ring(table).unwrap();
            assert_eq!(now.is_some(), is_overtaken || order == "published", "{order}");
            assert!(ring.is_none() || ring == now);
            let ring = member.open_watch_ring(table, BYTES).unwrap();
            assert!(member.append_to_ring(ring, b"x").unwrap());
            drop((member, region));
            place.clean();
        }
    }
}

#[test]
fn the_check_finds_every_wrong_word_of_a_ring() {
    let place = TestRegion::new("ring-check");
    let region = place.region();
    let member = region.member().unwrap();
    let ring = member.open_watch_ring(member.namespace(b"ue", 1).unwrap(), BYTES).unwrap();
    let other = member.open_watch_ring(member.namespace(b"other", 1).unwrap(), BYTES).unwrap();
    for number in 0..100 {
        // Whole words: padding belongs to no entry.
        assert!(member.append_to_ring(ring, &[number; 72]).unwrap());
    }
    let words = words_at(member.map(), ring).unwrap();
    let [oldest, end] = [words.oldest, words.tail].map(|word| word.load(Ordering::Relaxed));
    let capacity = words.words.len() as u64;
    assert!(oldest > 0, "the ring has wrapped around");
    drop(member);
    place.clean();
    // Every word with a meaning: header and body of the cell, positions, the unused line, entries.
    let header = [0, 16, 24, 32, 40];
    let control = [RING_LOCK, RING_POSITIONS, RING_POSITIONS + 8, RING_POSITIONS + 16, RING_UNUSED];
    let entries = (oldest..end).chain([end + 1]).map(|at| RING_WORDS + 8 * (at % capacity));
    let owner = catalog_at(1) + CATALOG_RING;
    let catalog = catalog_at(0) + CATALOG_RING;
    let all = header.into_iter().chain(control).chain(entries);
    for (step, at) in all.map(|at| ring + at).chain([owner, catalog]).enumerate() {
        let map = &region.shared.map;
        let word = map.word(at).unwrap();
        let sound = word.load(Ordering::Relaxed);
        for bit in [step as u64 % 64, 63, 0, 31, 17] {
            // The second half of the word at 40 belongs to the body. Some other values are valid.
            let wrong = sound ^ 1 << bit;
            let is_sound = at == ring + 40 && bit >= 32
                || at == ring + RING_POSITIONS && (end + 2..=oldest + capacity).contains(&wrong);
            word.store(wrong, Ordering::Relaxed);
            let report = check(&place.0, &mut |_, _| Ok(())).unwrap();
            assert_eq!(report.is_clean(), is_sound, "bit {bit} of {:#x}", at - ring.min(at));
            word.store(sound, Ordering::Relaxed);
        }
    }
    place.clean();
    // Two owners of one ring.
    let word = region.shared.map.word(owner).unwrap();
    word.store(ring, Ordering::Relaxed);
    let report = check(&place.0, &mut |_, _| Ok(())).unwrap();
    assert!(report.faults.iter().any(|fault| fault.contains("reached twice")), "{report:#?}");
    assert!(report.bytes_leaked > 0);
    word.store(other, Ordering::Relaxed);
    place.clean();
}
