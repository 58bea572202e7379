//! A full region all of whose records have expired: any later session collects them, also after
//! all processes have ended. Each test shifts the clock of its process.

use std::io::Write as _;
use std::time::Duration;

use nearstate_store::crash::shift_clock;
use nearstate_store::{
    BlockChange, BlockLayout, Condition, Error, Kind, Metadata, Namespace, NamespaceLimits,
    Outcome, Region, ReplicationPolicy, RetryPolicy, Schema, Session, Txn, WhenFull, now_ms_coarse,
};

use crate::fixture::{TestFolder, child, clean, is_alone, output, region_path, succeeded};
use crate::full_region::{create, fill, fill_tagged, key, tagged};
use crate::log::logged;

const HOUR_MS: i64 = 3_600_000;

/// Records that one call collects at most.
const AT_ONCE: usize = 1000;

/// Fills the region with records that expire an hour later. Returns how many.
fn fill_expiring(session: &Session) -> u32 {
    let ns = session.namespace("ue", &tagged()).unwrap();
    fill_tagged(session, ns, now_ms_coarse() + HOUR_MS as u64)
}

/// Two hours have passed: no record can be read any more. Collects them, and fills the region
/// again.
fn collect_and_refill(session: &Session, count: u32) {
    shift_clock(2 * HOUR_MS);
    let ns = session.namespace("ue", &tagged()).unwrap();
    assert!(session.get(ns, &key(0)).unwrap().is_none(), "it has expired");
    assert!(!session.delete(ns, &key(0)).unwrap(), "an expired record is not there");
    // No other has room before they are collected. Each of these writes may collect some.
    let mut collected = 0;
    loop {
        let done = session.collect_expired(AT_ONCE).unwrap();
        collected += done.records;
        if !done.has_more {
            break;
        }
    }
    assert!(collected + 1 >= count as usize, "{collected} of {count} records were collected");
    let again = fill_tagged(session, ns, 0);
    assert!(again >= count / 100 * 97, "{again} of {count} records fit again");
}

#[test]
fn a_region_full_of_expired_records_is_collected_by_a_new_session() {
    if !is_alone("expired_records::a_region_full_of_expired_records_is_collected_by_a_new_session")
    {
        return;
    }
    let folder = TestFolder::new();
    let region = create(&folder);
    let filler = region.session().unwrap();
    let count = fill_expiring(&filler);
    // The session that filled it stays, and does nothing.
    let other = region.session().unwrap();
    collect_and_refill(&other, count);
    drop((filler, other, region));
    clean(&folder.path);
}

/// A region full of records of 20,000 bytes that expire. Returns a session that wrote none of them,
/// their namespace, and one of named blocks.
fn full_of_expiring(folder: &TestFolder) -> (Session, Namespace, Namespace) {
    let region = create(folder);
    let filler = region.session().unwrap();
    let ns = filler.namespace("expiring", &Schema::default()).unwrap();
    let blocks = Schema { kind: Kind::Blocks, ..Schema::default() };
    let blocks = filler.namespace("blocks", &blocks).unwrap();
    let session = region.session().unwrap();
    let expires_ms = now_ms_coarse() + HOUR_MS as u64;
    let value = vec![1; 20_000];
    let mut numbers = 0..;
    let full = loop {
        let key = key(numbers.next().unwrap());
        if let Err(full) = filler.put_until(ns, &key, &value, expires_ms) {
            break full;
        }
    };
    assert!(matches!(full, Error::Full { .. }), "{full}");
    (session, ns, blocks)
}

/// A write of a key to a namespace of values, or to one of named blocks.
type Write<'a> = &'a dyn Fn(&Session, Namespace, Namespace, &[u8]) -> Result<(), Error>;

/// An update that was refused under the pin of its record is repeated: then there is room.
fn twice(update: impl Fn() -> Result<Outcome, Error>) -> Result<(), Error> {
    update().or_else(|_| update()).map(drop)
}

/// Without a process that collects.
#[test]
fn a_region_full_of_expired_records_takes_a_write_of_any_kind_at_its_first_call() {
    let name = "a_region_full_of_expired_records_takes_a_write_of_any_kind_at_its_first_call";
    if !is_alone(&format!("expired_records::{name}")) {
        return;
    }
    let value = vec![2; 20_000];
    let hurry = RetryPolicy { within: Some(Duration::from_secs(3600)), ..RetryPolicy::default() };
    let change = BlockChange { name: "b", bytes: Some(&value) };
    let names = BlockLayout::new(&["b"]).unwrap();
    let counters = |session: &Session, limits| {
        let schema = Schema { kind: Kind::Counters, ..Schema::default() };
        let ns = session.namespace("counters", &schema).unwrap();
        session.set_limits(ns, limits).map(|()| ns)
    };
    let writes: [(&str, Write<'_>); 9] = [
        ("add", &|session, _, _, key| {
            session.add(counters(session, NamespaceLimits::default())?, key, 1)
        }),
        ("add with limits", &|session, _, _, key| {
            let limits = NamespaceLimits { soft_bytes: 0, hard_bytes: 1 << 30 };
            session.add(counters(session, limits)?, key, 1)
        }),
        ("put of an update", &|session, ns, _, key| {
            session.put(ns, key, b"small")?;
            twice(|| session.get_for_update(ns, key)?.expect("it was put").put(&value))
        }),
        ("patch of an update", &|session, _, blocks, key| {
            session.patch(
                blocks,
                key,
                &[BlockChange { name: "b", bytes: Some(b"small") }],
                Condition::Always,
            )?;
            let update = || session.get_for_update(blocks, key);
            twice(|| update()?.expect("it was put").patch(&names, &[(0, &value)]))
        }),
        ("put", &|session, ns, _, key| session.put(ns, key, &value).map(drop)),
        ("transact", &|session, ns, _, key| session.transact(|txn| txn.put(ns, key, &value))),
        ("within", &|session, ns, _, key| {
            session.transact_within(hurry, |txn| txn.put(ns, key, &value))
        }),
        ("until", &|session, ns, _, key| {
            session.put_until(ns, key, &value, now_ms_coarse() + HOUR_MS as u64)
        }),
        ("patch", &|session, _, blocks, key| {
            session.patch(blocks, key, &[change], Condition::Always).map(drop)
        }),
    ];
    for (name, write) in writes {
        let folder = TestFolder::new();
        shift_clock(0);
        let (session, ns, blocks) = full_of_expiring(&folder);
        // The filler's records need a little more than some of these.
        let mut numbers = 0_u32..;
        let refused = numbers.find_map(|n| write(&session, ns, blocks, &n.to_be_bytes()).err());
        assert!(matches!(refused, Some(Error::Full { .. })), "{name}, too early: {refused:?}");
        shift_clock(2 * HOUR_MS);
        write(&session, ns, blocks, b"new").unwrap_or_else(|error| panic!("{name}: {error}"));
        drop(session);
        clean(&folder.path);
    }
}

/// The tagged records are smaller than those that take their place, so some have to go for each.
#[test]
fn other_records_take_the_place_of_expired_ones_without_a_collector() {
    let name = "other_records_take_the_place_of_expired_ones_without_a_collector";
    if !is_alone(&format!("expired_records::{name}")) {
        return;
    }
    let folder = TestFolder::new();
    let region = create(&folder);
    let filler = region.session().unwrap();
    let session = region.session().unwrap();
    let plain = session.namespace("plain", &Schema::default()).unwrap();
    let count = fill_expiring(&filler);
    shift_clock(2 * HOUR_MS);
    let again = fill(&session, plain, 3000);
    assert!(again >= count / 5, "{again} records fit, after {count} smaller ones");
    assert_eq!(session.collect_expired(AT_ONCE).unwrap().records, 0, "the region was not full");
    drop((filler, session, region));
    clean(&folder.path);
}

#[test]
#[ignore = "the test below runs it in a process of its own"]
fn fill_in_a_process() {
    let session = Region::attach(&region_path()).unwrap().session().unwrap();
    let count = fill_expiring(&session);
    std::io::stdout().write_all(format!("count: {count};\n").as_bytes()).unwrap();
    // It ends as it is: nothing is closed.
    if std::env::var_os("NEARSTATE_TEST_KILLED").is_some() {
        std::mem::forget(session);
    }
}

#[test]
#[ignore = "the test below runs it in a process of its own"]
fn collect_in_a_process() {
    let session = Region::attach(&region_path()).unwrap().session().unwrap();
    let count = std::env::var("NEARSTATE_TEST_COUNT").unwrap().parse().unwrap();
    collect_and_refill(&session, count);
}

#[test]
fn a_region_full_of_expired_records_is_collected_after_all_processes_have_ended() {
    for is_closed in [true, false] {
        let folder = TestFolder::new();
        drop(create(&folder));
        let mut filler = child("expired_records::fill_in_a_process", &folder.path);
        if !is_closed {
            filler.env("NEARSTATE_TEST_KILLED", "1");
        }
        let text = succeeded(&output(&mut filler).unwrap());
        let (_, count) = text.split_once("count: ").unwrap();
        let (count, _) = count.split_once(';').unwrap();
        let mut collector = child("expired_records::collect_in_a_process", &folder.path);
        succeeded(&output(collector.env("NEARSTATE_TEST_COUNT", count)).unwrap());
        clean(&folder.path);
    }
}

/// A session collects after so many commits of records with an expiry time, refused ones as well.
const COLLECTS_AFTER: u32 = 16;

/// A writer that meets the full region collects what it needs, without a call of the collection.
#[test]
fn a_writer_of_expiring_records_goes_on_in_a_region_full_of_expired_ones() {
    let test = "a_writer_of_expiring_records_goes_on_in_a_region_full_of_expired_ones";
    if !is_alone(&format!("expired_records::{test}")) {
        return;
    }
    let folder = TestFolder::new();
    let region = create(&folder);
    let session = region.session().unwrap();
    let count = fill_expiring(&session);
    shift_clock(2 * HOUR_MS);
    let ns = session.namespace("ue", &tagged()).unwrap();
    let expires_ms = now_ms_coarse() + HOUR_MS as u64;
    let mut refused = 0_u32;
    for number in 0..count / 2 {
        let unique = number.to_be_bytes();
        let metadata = Metadata { tags: &[("guti", &unique)], expires_ms };
        let put = session
            .transact(|txn| txn.put_with_metadata(ns, &key(1 << 20 | number), &[1; 600], metadata));
        match put {
            Ok(()) => {}
            // It collects after some commits, also if they were refused.
            Err(Error::Full { .. }) => refused += 1,
            Err(error) => panic!("record {number}: {error}"),
        }
    }
    eprintln!("{refused} of {} were refused", count / 2);
    assert!(refused <= COLLECTS_AFTER, "{refused} of {} were refused", count / 2);
    drop((session, region));
    clean(&folder.path);
}

/// Records that expire one after the other, an hour later.
fn put_expiring(session: &Session, ns: Namespace, numbers: std::ops::Range<u32>, len: usize) {
    let base = now_ms_coarse() + HOUR_MS as u64;
    for number in numbers {
        let metadata = Metadata { expires_ms: base + u64::from(number), ..Metadata::default() };
        let put = |txn: &Txn<'_>| txn.put_with_metadata(ns, &key(number), &vec![1; len], metadata);
        session.transact(put).unwrap();
    }
}

/// Collects until a call deletes nothing. Returns the number of records.
fn collect_all(session: &Session, limit: usize) -> usize {
    let mut collected = 0;
    loop {
        match session.collect_expired(limit).unwrap().records {
            0 => return collected,
            more => collected += more,
        }
    }
}

/// Expired records that cannot be deleted at present.
const LEFT: u32 = 2500;

/// Expired records behind them.
const BEHIND: u32 = 10;

#[test]
fn expired_records_of_a_fenced_namespace_hold_back_no_others() {
    if !is_alone("expired_records::expired_records_of_a_fenced_namespace_hold_back_no_others") {
        return;
    }
    let folder = TestFolder::new();
    let region = create(&folder);
    let session = region.session().unwrap();
    let open = |name, policy| session.namespace_with_policy(name, &Schema::default(), policy);
    let fenced = open("fenced", ReplicationPolicy::Async).unwrap();
    let local = open("local", ReplicationPolicy::Local).unwrap();
    put_expiring(&session, fenced, 0..LEFT, 1);
    put_expiring(&session, local, LEFT..LEFT + BEHIND, 1);
    shift_clock(2 * HOUR_MS);
    session.set_fenced(true).unwrap();
    // Each call passes about a thousand of the others, and its work is bounded.
    let collected: usize = (0..3).map(|_| session.collect_expired(64).unwrap().records).sum();
    assert_eq!(collected, BEHIND as usize);
    let idle = session.collect_expired(64).unwrap();
    assert_eq!((idle.records, idle.has_more), (0, false), "the caller waits for its interval");
    session.set_fenced(false).unwrap();
    // The session may be in the middle of the others.
    let collected = collect_all(&session, 64) + collect_all(&session, 64);
    assert_eq!(collected, LEFT as usize);
    drop((session, region));
    clean(&folder.path);
}

/// The log holds what it has not sent, so it has no room for deletions.
#[test]
fn expired_records_that_a_full_log_keeps_hold_back_no_others() {
    const NAME: &str = "expired_records::expired_records_that_a_full_log_keeps_hold_back_no_others";
    if !is_alone(NAME) {
        return;
    }
    let folder = TestFolder::new();
    let region = create(&folder);
    let session = region.session().unwrap();
    let lossless = logged(&session, "lossless", Kind::Value, WhenFull::Refuse);
    let local = session.namespace("local", &Schema::default()).unwrap();
    put_expiring(&session, lossless, 0..100, 100);
    put_expiring(&session, local, LEFT..LEFT + BEHIND, 1);
    let fill = vec![1_u8; 100_000];
    let refused = (0..200_u32)
        .find_map(|round| session.put(lossless, &(round % 2).to_le_bytes(), &fill).err());
    assert!(matches!(refused, Some(Error::Behind { .. })), "{refused:?}");
    // The least replacement has no room either.
    let small = (0..100_000_u32).find_map(|_| session.put(lossless, b"small", b"1").err());
    assert!(matches!(small, Some(Error::Behind { .. })), "{small:?}");
    shift_clock(2 * HOUR_MS);
    let collected = session.collect_expired(64).unwrap();
    assert_eq!(collected.records, BEHIND as usize);
    let refused = session.collect_expired(64);
    assert!(matches!(refused, Err(Error::Behind { .. })), "{refused:?}");
    session.acknowledge_to(session.log_tail_position().unwrap()).unwrap();
    assert_eq!(collect_all(&session, 64), 100);
    drop((session, region));
    clean(&folder.path);
}

/// A view holds what was live, so there is no room for more deletions. When it has ended, there is.
#[test]
fn expired_records_that_a_view_held_up_are_collected_when_it_has_ended() {
    const NAME: &str =
        "expired_records::expired_records_that_a_view_held_up_are_collected_when_it_has_ended";
    if !is_alone(NAME) {
        return;
    }
    let folder = TestFolder::new();
    let region = create(&folder);
    let session = region.session().unwrap();
    let count = fill_expiring(&session) as usize;
    let reader = region.session().unwrap();
    let ns = reader.namespace("ue", &tagged()).unwrap();
    let view = reader.get(ns, &key(0)).unwrap().unwrap();
    shift_clock(2 * HOUR_MS);
    let (mut before, mut refused) = (0, 0);
    while refused < 6 && before + 1 < count {
        match session.collect_expired(AT_ONCE) {
            Ok(collected) if collected.records != 0 => before += collected.records,
            Ok(_) | Err(Error::Full { .. }) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    drop(view);
    let first = session.collect_expired(AT_ONCE).unwrap();
    assert!(first.records > 0 && first.has_more, "{first:?} of {count}, {before} before");
    let mut after = first.records;
    loop {
        let done = session.collect_expired(AT_ONCE).unwrap();
        after += done.records;
        if !done.has_more {
            break;
        }
    }
    assert!(before + after + 1 >= count, "{before} and {after} of {count} were collected");
    drop((session, reader, region));
    clean(&folder.path);
}
