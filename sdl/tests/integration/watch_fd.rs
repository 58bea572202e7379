//! A watch in an event loop: `epoll` in this process, writers in another one. Every wait has a long
//! timeout, so a lost signal fails the test.

use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use nearstate_sdl::WatchFd;
use nearstate_store::{CreateOptions, Filter, Namespace, Notice, Region, Schema, Session};
use rustix::event::epoll;

/// Timeout of waits. It only ends a test that hangs.
const HANG_TIMEOUT: Duration = Duration::from_secs(60);

/// Variables that tell the child process what to do, and in which region.
const WORK: &str = "NEARSTATE_WATCH_FD_TEST_WORK";
const PLACE: &str = "NEARSTATE_WATCH_FD_TEST_PLACE";

/// Changes in one test.
const ROUNDS: u64 = 10_000;

struct TestRegion {
    folder: tempfile::TempDir,
    session: Session,
}

impl TestRegion {
    fn new() -> Self {
        let base = if Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" };
        let folder = tempfile::tempdir_in(base).unwrap();
        let options = CreateOptions { bytes_max: 64 << 20, ..CreateOptions::default() };
        let session = Region::create(&folder.path().join("r"), &options).unwrap().session();
        Self { folder, session: session.unwrap() }
    }

    fn namespace(&self, name: &str) -> Namespace {
        self.session.namespace(name, &Schema::default()).unwrap()
    }

    fn watch_fd(&self, name: &str, filter: Filter) -> WatchFd {
        WatchFd::new(self.session.watch(self.namespace(name), filter).unwrap()).unwrap()
    }

    /// Starts a child process that uses this region.
    fn other_process(&self, work: &str) -> OtherProcess {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([
            "watch_fd::child_process_entry_point",
            "--exact",
            "--ignored",
            "--nocapture",
        ]);
        command.env(WORK, work).env(PLACE, self.folder.path().join("r"));
        OtherProcess(command.spawn().unwrap())
    }
}

/// A child process. The test fails unless it exits with status 0.
struct OtherProcess(Child);

impl OtherProcess {
    fn join(mut self) {
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for OtherProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The event loop of a network function.
struct EventLoop(std::os::fd::OwnedFd);

impl EventLoop {
    fn of(watch_fds: &[&WatchFd]) -> Self {
        let own = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        for (number, watch_fd) in (0..).zip(watch_fds) {
            let token = epoll::EventData::new_u64(number);
            epoll::add(&own, watch_fd.as_fd(), token, epoll::EventFlags::IN).unwrap();
        }
        Self(own)
    }

    /// The numbers of the descriptors that become readable within a time.
    fn readable(&self, within: Duration) -> Vec<u64> {
        let mut events = Vec::with_capacity(8);
        let within = rustix::event::Timespec::try_from(within).unwrap();
        epoll::wait(&self.0, rustix::buffer::spare_capacity(&mut events), Some(&within)).unwrap();
        events.iter().map(|event| event.data.u64()).collect()
    }
}

/// Reads all events. Returns their number and the number of lost events.
fn drain(watch_fd: &mut WatchFd) -> (u64, u64) {
    let (mut events_read, mut lost) = (0, 0);
    while let Some(notice) = watch_fd.next().unwrap() {
        match notice {
            Notice::Event(_) => events_read += 1,
            Notice::Lost { events } => lost += events,
        }
    }
    (events_read, lost)
}

/// Entry point of the child processes.
#[test]
#[ignore = "the other tests start it"]
fn child_process_entry_point() {
    let work = std::env::var(WORK).unwrap();
    let region = Region::attach(Path::new(&std::env::var_os(PLACE).unwrap())).unwrap();
    let session = region.session().unwrap();
    let requests = session.namespace("requests", &Schema::default()).unwrap();
    let replies = session.namespace("replies", &Schema::default()).unwrap();
    match work.as_str() {
        "put" => drop(session.put(requests, b"imsi-1", b"v").unwrap()),
        "flood" => {
            for round in 0..ROUNDS {
                session.put(requests, &round.to_le_bytes(), b"v").unwrap();
            }
        }
        "answer" => {
            // Each process writes only in reply to the other, so a lost event stops both.
            let mut watch_fd =
                WatchFd::new(session.watch(requests, Filter::Namespace).unwrap()).unwrap();
            let events = EventLoop::of(&[&watch_fd]);
            session.put(replies, b"k", b"ready").unwrap();
            let mut answered = 0;
            while answered < ROUNDS {
                assert_eq!(events.readable(HANG_TIMEOUT), [0], "after {answered} answers");
                let (changes, lost) = drain(&mut watch_fd);
                assert!(changes <= 1 && lost == 0, "{changes} {lost}");
                for _ in 0..changes {
                    session.put(replies, b"k", b"answer").unwrap();
                    answered += 1;
                }
            }
        }
        "end" => {
            let threads = || {
                let tasks = std::fs::read_dir("/proc/self/task").unwrap();
                let name = |task: std::io::Result<std::fs::DirEntry>| {
                    std::fs::read_to_string(task.unwrap().path().join("comm")).unwrap_or_default()
                };
                tasks.map(name).filter(|name| name == "ns-watch-fd\n").count()
            };
            let watch_fd =
                || WatchFd::new(session.watch(requests, Filter::Namespace).unwrap()).unwrap();
            let watch_fds: Vec<WatchFd> = (0..20).map(|_| watch_fd()).collect();
            // The names of threads, and their end, become visible with a delay.
            let comes_to = |number| (0..1_000_000).any(|_| threads() == number);
            assert!(comes_to(20), "{}", threads());
            // Half of the threads wait for events, the other half for their owner.
            session.put(requests, b"k", b"v").unwrap();
            for mut watch_fd in watch_fds.into_iter().step_by(2) {
                assert_eq!(EventLoop::of(&[&watch_fd]).readable(HANG_TIMEOUT), [0]);
                drain(&mut watch_fd);
            }
            assert!(comes_to(0), "{}", threads());
        }
        other => panic!("no work {other:?}"),
    }
}

#[test]
fn the_descriptor_is_readable_until_the_event_of_another_process_is_read() {
    let place = TestRegion::new();
    let mut watch_fd = place.watch_fd("requests", Filter::Namespace);
    let events = EventLoop::of(&[&watch_fd]);
    for _ in 0..3 {
        assert_eq!(events.readable(Duration::ZERO), [0; 0]);
        place.other_process("put").join();
        assert_eq!(events.readable(HANG_TIMEOUT), [0]);
        assert_eq!(
            events.readable(Duration::ZERO),
            [0],
            "the descriptor stays readable until the event is read"
        );
        assert_eq!(drain(&mut watch_fd), (1, 0));
    }
}

#[test]
fn no_signal_is_lost_in_ten_thousand_rounds_between_two_event_loops() {
    let place = TestRegion::new();
    let requests = place.namespace("requests");
    let mut watch_fd = place.watch_fd("replies", Filter::Namespace);
    let events = EventLoop::of(&[&watch_fd]);
    let other = place.other_process("answer");
    let mut answers = 0;
    while answers < ROUNDS + 1 {
        assert_eq!(events.readable(HANG_TIMEOUT), [0], "after {answers} answers");
        let (changes, lost) = drain(&mut watch_fd);
        assert!(changes <= 1 && lost == 0, "{changes} {lost}");
        answers += changes;
        if changes == 1 && answers <= ROUNDS {
            place.session.put(requests, &answers.to_le_bytes(), b"v").unwrap();
        }
    }
    other.join();
}

#[test]
fn every_event_of_a_flood_is_delivered() {
    let place = TestRegion::new();
    let mut watch_fd = place.watch_fd("requests", Filter::Namespace);
    let events = EventLoop::of(&[&watch_fd]);
    let other = place.other_process("flood");
    let mut events_read = 0;
    while events_read < ROUNDS {
        assert_eq!(events.readable(HANG_TIMEOUT), [0], "after {events_read} events");
        let (more, lost) = drain(&mut watch_fd);
        assert_eq!(lost, 0, "the ring holds all of them");
        events_read += more;
    }
    other.join();
    assert_eq!((events_read, drain(&mut watch_fd)), (ROUNDS, (0, 0)));
}

#[test]
fn a_watcher_that_lags_is_signalled_once_and_gets_the_number_of_lost_events() {
    let place = TestRegion::new();
    let requests = place.namespace("requests");
    let mut watch_fd = place.watch_fd("requests", Filter::Key(b"rare".to_vec()));
    let events = EventLoop::of(&[&watch_fd]);
    for round in 0..40_000_u64 {
        place.session.put(requests, &round.to_le_bytes(), b"v").unwrap();
    }
    assert_eq!(events.readable(HANG_TIMEOUT), [0]);
    // The value of the descriptor is the number of signals.
    let mut count = [0; 8];
    rustix::io::read(watch_fd.as_fd(), &mut count).unwrap();
    assert_eq!(u64::from_le_bytes(count), 1);
    let (events_read, lost) = drain(&mut watch_fd);
    assert_eq!((events_read, lost), (0, 40_000));
    assert_eq!(events.readable(Duration::ZERO), [0; 0]);
    // A change that the filter rejects also signals. It is no event.
    place.session.put(requests, b"often", b"v").unwrap();
    assert_eq!(events.readable(HANG_TIMEOUT), [0]);
    assert_eq!(drain(&mut watch_fd), (0, 0));
    place.session.put(requests, b"rare", b"v").unwrap();
    assert_eq!(events.readable(HANG_TIMEOUT), [0]);
    assert_eq!(drain(&mut watch_fd), (1, 0));
}

#[test]
fn an_event_that_was_read_before_the_signal_does_not_signal_later() {
    let place = TestRegion::new();
    let requests = place.namespace("requests");
    let mut watch_fd = place.watch_fd("requests", Filter::Namespace);
    let events = EventLoop::of(&[&watch_fd]);
    for _ in 0..ROUNDS {
        place.session.put(requests, b"k", b"v").unwrap();
        assert_eq!(drain(&mut watch_fd), (1, 0));
        assert_eq!(events.readable(Duration::ZERO), [0; 0]);
    }
}

#[test]
fn two_watches_in_one_event_loop_are_signalled_separately() {
    let place = TestRegion::new();
    let (one, two) = (place.namespace("one"), place.namespace("two"));
    let mut watch_fds =
        [place.watch_fd("one", Filter::Namespace), place.watch_fd("two", Filter::Namespace)];
    let [first, second] = &watch_fds;
    let events = EventLoop::of(&[first, second]);
    place.session.put(two, b"k", b"v").unwrap();
    assert_eq!(events.readable(HANG_TIMEOUT), [1]);
    place.session.put(one, b"k", b"v").unwrap();
    while events.readable(HANG_TIMEOUT).len() < 2 {}
    for watch_fd in &mut watch_fds {
        assert_eq!(drain(watch_fd), (1, 0));
    }
    assert_eq!(events.readable(Duration::ZERO), [0; 0]);
}

#[test]
fn a_dropped_watch_fd_ends_its_thread() {
    TestRegion::new().other_process("end").join();
}
