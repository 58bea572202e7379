//! The clock of expiry: a copy has the clock of its source, and keeps it as the owner.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use nearstate_store::crash::shift_clock;
use nearstate_store::{
    CLOCK_DIFFERENCE_MIN_MS, Error, Metadata, Namespace, Schema, Session, SourceClock, check,
    lease_clock, now_ms,
};

use crate::fixture::{TestRegion, is_alone};

const SECOND: u64 = 1000;
const HOUR: i64 = 3_600_000;

/// Longer than the thread of a test is paused.
const PAUSE: u64 = 10 * SECOND;

/// Where the word is in the file (`spec/region.md`, section 11).
const EXPIRY_CLOCK: u64 = 0x1000 + 0x240;

fn put(session: &Session, ns: Namespace, key: &str, expires_ms: u64) {
    let metadata = Metadata { tags: &[], expires_ms };
    let put =
        |txn: &nearstate_store::Txn<'_>| txn.put_with_metadata(ns, key.as_bytes(), b"v", metadata);
    session.transact(put).unwrap();
}

fn there(session: &Session, ns: Namespace) -> String {
    let has = |key: &&str| session.get(ns, key.as_bytes()).unwrap().is_some();
    let keys: Vec<_> = ["early", "later", "never"].into_iter().filter(has).collect();
    assert_eq!(session.count(ns).unwrap(), keys.len() as u64);
    keys.join(" ")
}

#[test]
fn a_copy_judges_by_the_clock_of_its_source() {
    let fixture = TestRegion::with_bytes(64 << 20);
    let session = fixture.region.session().unwrap();
    let ns = session.namespace("s", &Schema::default()).unwrap();
    // Times that no delay of this test reaches.
    let host = now_ms();
    put(&session, ns, "early", host + 1800 * SECOND);
    put(&session, ns, "later", host + 5400 * SECOND);
    put(&session, ns, "never", 0);
    assert_eq!(there(&session, ns), "early later never");
    assert_eq!(session.clock_shift_ms().unwrap(), 0);

    // The clock of the source is an hour ahead.
    session.follow_clock(&mut SourceClock::default(), now_ms() + 3600 * SECOND).unwrap();
    assert_eq!(there(&session, ns), "later never");
    let ahead = session.now_ms().unwrap() - now_ms();
    assert!((3590 * SECOND..=3600 * SECOND).contains(&ahead), "{ahead} ms");
    // What another process has opened judges by it too.
    let other = fixture.region.session().unwrap();
    assert_eq!(there(&other, ns), "later never");

    // It is an hour behind: nothing has expired that the source still has.
    session.follow_clock(&mut SourceClock::default(), now_ms() - 3600 * SECOND).unwrap();
    assert_eq!(there(&session, ns), "early later never");
    let end = session.now_ms().unwrap() + 60 * SECOND;
    assert!(end < now_ms(), "an end in a minute has passed by the clock of the host");
    put(&session, ns, "early", end);
    assert_eq!(there(&session, ns), "early later never");
    assert_eq!(session.collect_expired(10).unwrap().records, 0);

    // Clocks that agree are not corrected.
    let near = now_ms() + CLOCK_DIFFERENCE_MIN_MS / 2;
    session.follow_clock(&mut SourceClock::default(), near).unwrap();
    assert_eq!(session.clock_shift_ms().unwrap(), 0);
    assert_eq!(there(&session, ns), "later never");
    assert_eq!(session.collect_expired(10).unwrap().records, 1);
    drop((session, other));
    fixture.close_and_check();
}

#[test]
fn the_clock_of_an_owner_approaches_that_of_its_host() {
    let fixture = TestRegion::with_bytes(64 << 20);
    let session = fixture.region.session().unwrap();
    for sign in [1, -1] {
        let source = now_ms().saturating_add_signed(sign * 30_000);
        session.follow_clock(&mut SourceClock::default(), source).unwrap();
        let shift = session.clock_shift_ms().unwrap();
        assert_eq!(shift.signum(), sign);
        assert_eq!(session.approach_host_clock(100).unwrap(), shift - sign * 100);
        assert_eq!(session.clock_shift_ms().unwrap(), shift - sign * 100);
        assert_eq!(session.approach_host_clock(60_000).unwrap(), 0, "it does not pass it");
        assert_eq!(session.approach_host_clock(100).unwrap(), 0);
    }
}

/// Does the clock of expiry tell as much more than at the beginning as time has passed by the clock
/// of leases, and is it ahead of the host's by this? A pause of this thread widens the comparison.
fn is_kept(session: &Session, (told, at): (u64, Duration), shift_ms: i64) -> bool {
    let passed = || u64::try_from(lease_clock().saturating_sub(at).as_millis()).unwrap();
    let (least, now, most) = (passed(), session.now_ms().unwrap(), passed());
    let shift = session.clock_shift_ms().unwrap();
    (told + least - 3..=told + most + 3).contains(&now) && shift.abs_diff(shift_ms) <= 3
}

/// The clock of the host is that of this process: the test runs alone. Times are compared with the
/// clock of leases, so a slow machine changes nothing.
#[test]
fn a_step_of_the_hosts_clock_moves_no_clock_that_is_anchored() {
    if !is_alone("expiry_clock::a_step_of_the_hosts_clock_moves_no_clock_that_is_anchored") {
        return;
    }
    let fixture = TestRegion::with_bytes(64 << 20);
    let [session, other] = [(); 2].map(|()| fixture.region.session().unwrap());
    let ns = session.namespace("s", &Schema::default()).unwrap();
    assert_eq!(session.keep_clock(0).unwrap(), 0, "the node of an owner anchors it");
    let start = (session.now_ms().unwrap(), lease_clock());
    put(&session, ns, "later", session.now_ms().unwrap() + 1800 * SECOND);
    put(&session, ns, "never", 0);

    // Forward: no process that reads by the shift takes a record for an expired one.
    shift_clock(HOUR);
    assert_eq!(session.clock_shift_ms().unwrap(), 0, "nothing has seen it");
    assert_eq!(there(&session, ns), "later never");
    assert_eq!(there(&other, ns), "later never");
    assert_eq!(other.collect_expired(10).unwrap().records, 0);
    assert!(is_kept(&session, start, -HOUR), "what has collected has corrected the shift");
    put(&session, ns, "early", session.now_ms().unwrap() + 1);
    while session.get(ns, b"early").unwrap().is_some() {}
    assert_eq!(there(&session, ns), "later never");

    // Back: until the shift is corrected it seems to exist.
    shift_clock(-HOUR);
    assert!(session.get(ns, b"early").unwrap().is_some());
    let kept = session.keep_clock(0).unwrap();
    assert!(kept.abs_diff(HOUR) <= 3, "{kept}");
    assert_eq!(there(&session, ns), "later never");
    assert!(is_kept(&session, start, HOUR));

    // It approaches the clock of the host: by what the node says, or at once.
    let kept = session.keep_clock(100).unwrap();
    assert!(kept.abs_diff(HOUR - 100) <= 3, "{kept}");
    assert_eq!(session.keep_clock(u64::MAX).unwrap(), 0);
    assert_eq!(there(&session, ns), "early later never", "the clock of the host is an hour behind");
    shift_clock(0);
    drop((session, other));
    fixture.close_and_check();
}

#[test]
fn a_step_of_the_clock_of_a_copys_host_changes_what_it_is_ahead_by_and_not_its_clock() {
    if !is_alone(
        "expiry_clock::\
         a_step_of_the_clock_of_a_copys_host_changes_what_it_is_ahead_by_and_not_its_clock",
    ) {
        return;
    }
    let fixture = TestRegion::with_bytes(64 << 20);
    let session = fixture.region.session().unwrap();
    let (mut clock, begin) = (SourceClock::default(), (now_ms() + 60 * SECOND, lease_clock()));
    let source = || {
        let passed = lease_clock().saturating_sub(begin.1).as_millis();
        begin.0 + u64::try_from(passed).unwrap()
    };
    session.follow_clock(&mut clock, source()).unwrap();
    for step in [HOUR, -HOUR, 0] {
        shift_clock(step);
        assert!(session.now_ms().unwrap().abs_diff(source()) < PAUSE);
        // Also by a message that was on its way for long.
        session.follow_clock(&mut clock, source() - 2 * PAUSE).unwrap();
        let ahead = session.clock_shift_ms().unwrap();
        assert!(ahead.abs_diff(60_000 - step) < PAUSE, "{ahead} after a step to {step}");
    }
}

#[test]
fn a_flipped_bit_of_the_clock_is_damage_and_not_another_time() {
    let fixture = TestRegion::with_bytes(64 << 20);
    let session = fixture.region.session().unwrap();
    let ns = session.namespace("s", &Schema::default()).unwrap();
    put(&session, ns, "early", now_ms() + 1800 * SECOND);
    put(&session, ns, "never", 0);
    session.follow_clock(&mut SourceClock::default(), now_ms() + 60 * SECOND).unwrap();
    let path = fixture.region.path().to_owned();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let mut word = [0; 8];
    file.read_exact_at(&mut word, EXPIRY_CLOCK).unwrap();
    assert_ne!(word, [0; 8]);
    word[4] ^= 1;
    file.write_all_at(&word, EXPIRY_CLOCK).unwrap();
    assert!(matches!(session.get(ns, b"early"), Err(Error::Damaged { .. })));
    assert!(session.get(ns, b"never").unwrap().is_some(), "it has no time");
    assert!(matches!(session.now_ms(), Err(Error::Damaged { .. })));
    // No other process may use a region that is checked.
    let copy = path.with_extension("copy");
    std::fs::copy(&path, &copy).unwrap();
    let report = check(&copy).unwrap();
    let found = format!("{report:?}");
    assert!(found.contains("the clock of expiry has a flipped bit"), "{found}");
    file.write_all_at(&[0; 8], EXPIRY_CLOCK).unwrap();
    assert!(session.get(ns, b"early").unwrap().is_some());
    // The words of its anchor.
    for at in [EXPIRY_CLOCK + 8, EXPIRY_CLOCK + 16] {
        let mut intact = [0; 8];
        file.read_exact_at(&mut intact, at).unwrap();
        assert_ne!(intact, [0; 8]);
        let mut flipped = intact;
        flipped[4] ^= 1;
        file.write_all_at(&flipped, at).unwrap();
        assert!(matches!(session.now_ms(), Err(Error::Damaged { .. })));
        std::fs::copy(&path, &copy).unwrap();
        let found = format!("{:?}", check(&copy).unwrap());
        assert!(found.contains("the clock of expiry has a flipped bit"), "{found}");
        file.write_all_at(&intact, at).unwrap();
    }
    session.now_ms().unwrap();
}
