//! What the reserve of a full region lends comes back, also to sessions that update records only
//! while they have a pin.

use nearstate_store::{Error, Metadata, Namespace, Outcome, Schema, Session};

use crate::fixture::{TestFolder, clean};
use crate::full_region::{create, key, open, tagged};

/// Numbers of records in the order of a generator.
struct Numbers {
    state: u32,
    count: u32,
}

impl Numbers {
    const fn of(count: u32) -> Self {
        Self { state: 1, count }
    }

    fn next(&mut self) -> u32 {
        self.state = self.state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.state >> 8) % self.count
    }
}

/// The size of a record: nearly each has another one.
fn size_of(number: u32, most: usize) -> usize {
    100 + (number.wrapping_mul(2_654_435_761) >> 8) as usize % (most - 100)
}

/// Puts records of mixed sizes until the region is full. Returns how many.
fn fill_mixed(session: &Session, ns: Namespace, most: usize) -> u32 {
    let bytes = vec![7; most];
    let is_put = |number: &u32| {
        let value = &bytes[..size_of(*number, most)];
        let put = session.transact(|txn| txn.put(ns, &key(*number), value));
        assert!(matches!(put, Ok(()) | Err(Error::Full { .. })), "{put:?}");
        put.is_ok()
    };
    (0..1_000_000_u32).take_while(is_put).count() as u32
}

/// The record that is read is pinned while it is replaced. So nothing comes free before the update
/// ends, and the next one returns what the reserve has lent.
#[test]
fn a_full_region_takes_any_number_of_read_modify_writes_that_do_not_grow() {
    const MOST: usize = 6000;
    let folder = TestFolder::new();
    let region = create(&folder);
    let (session, ns) = open(&region);
    let count = fill_mixed(&session, ns, MOST);
    let (mut numbers, bytes) = (Numbers::of(count), vec![8; MOST]);
    for round in 0..3000 {
        let number = numbers.next();
        let key = key(number);
        let record = session.get_for_update(ns, &key).unwrap().unwrap();
        let written = record.put(&bytes[..size_of(number, MOST)]);
        assert!(
            matches!(written, Ok(Outcome::Done { .. })),
            "update {round} of {count} records: {written:?}"
        );
    }
    drop((session, region));
    clean(&folder.path);
}

/// Each write of a namespace with tags is a transaction, which has a pin while it uses the reserve.
#[test]
fn a_session_that_only_uses_transactions_recovers_the_reserve_after_a_view() {
    const MOST: usize = 6000;
    let folder = TestFolder::new();
    let region = create(&folder);
    let session = region.session().unwrap();
    let ns = session.namespace("ue", &tagged()).unwrap();
    let reader = region.session().unwrap();
    let seen = reader.namespace("ue", &tagged()).unwrap();
    let count = fill_mixed(&session, ns, MOST);
    let (mut numbers, bytes) = (Numbers::of(count), vec![8; MOST]);
    let mut update = || {
        let number = numbers.next();
        let value = &bytes[..size_of(number, MOST)];
        session.transact(|txn| txn.put_with_metadata(ns, &key(number), value, Metadata::default()))
    };
    for round in 0..3 {
        let view = reader.get(seen, &key(round)).unwrap().unwrap();
        let mut done = 0;
        let refused = loop {
            match update() {
                Ok(()) => done += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, Error::Full { .. }), "{refused}");
        assert!(done > 20, "{done} updates while a view is held");
        // Nothing but transactions of this session: no operation of another kind helps.
        for _ in 0..200 {
            let again = update();
            assert!(matches!(again, Ok(()) | Err(Error::Full { .. })), "{again:?}");
        }
        drop(view);
        for again in 0..300 {
            update().unwrap_or_else(|error| {
                panic!("update {again} after view {round}, before which {done} were made: {error}")
            });
        }
    }
    drop((session, reader, region));
    clean(&folder.path);
}

/// A view holds what was live when it began. What is written and replaced later comes free, so a
/// working set that the reserve can hold twice is updated any number of times.
#[test]
fn while_a_view_is_held_a_small_working_set_is_updated_any_number_of_times() {
    const MOST: usize = 4000;
    let folder = TestFolder::new();
    let region = create(&folder);
    let (session, ns) = open(&region);
    let (reader, _) = open(&region);
    let count = fill_mixed(&session, ns, MOST);
    let bytes = vec![8; MOST];
    let view = reader.get(ns, &key(count - 1)).unwrap().unwrap();
    for round in 0..100 {
        for number in 0..100 {
            session.put(ns, &key(number), &bytes[..size_of(number, MOST)]).unwrap_or_else(
                |error| panic!("update {number} of round {round} of {count} records: {error}"),
            );
        }
    }
    drop(view);
    drop((session, reader, region));
    clean(&folder.path);
}

/// Updates a full region by three sessions at once. The reserve has room for each update in flight.
fn update_at_once(schema: &Schema, is_pinned: bool) {
    const MOST: usize = 4000;
    const UPDATES: u32 = 3000;
    let folder = TestFolder::new();
    let region = create(&folder);
    let session = region.session().unwrap();
    let ns = session.namespace("ue", schema).unwrap();
    let count = fill_mixed(&session, ns, MOST);
    let update = &|seed: u32| {
        let session = region.session().unwrap();
        let ns = session.namespace("ue", schema).unwrap();
        let mut numbers = Numbers { state: seed, count };
        let bytes = vec![seed as u8; MOST];
        let mut refused = 0;
        for _ in 0..UPDATES {
            let number = numbers.next();
            let (key, value) = (key(number), &bytes[..size_of(number, MOST)]);
            let put = || {
                if is_pinned {
                    return session.transact(|txn| {
                        assert!(txn.get(ns, &key)?.is_some(), "record {number} is lost");
                        txn.put(ns, &key, value)
                    });
                }
                session.put(ns, &key, value).map(drop)
            };
            let mut runs = 0;
            while let Err(error) = put() {
                assert!(matches!(error, Error::Full { .. }), "{error}");
                // A session that gets no processor for long holds the others up.
                runs += 1;
                std::thread::yield_now();
            }
            refused += u32::from(runs != 0);
        }
        refused
    };
    let refused: u32 = std::thread::scope(|scope| {
        let updaters: Vec<_> = (1..=3).map(|seed| scope.spawn(move || update(seed))).collect();
        updaters.into_iter().map(|updater| updater.join().unwrap()).sum()
    });
    // 8 % were without the waits. With them it is one for each time that a session gets none.
    assert!(refused <= 3 * UPDATES / 100, "{refused} were refused");
    drop((session, region));
    clean(&folder.path);
}

#[test]
fn several_sessions_at_once_update_a_full_region() {
    update_at_once(&Schema::default(), false);
}

#[test]
fn several_transactions_at_once_update_a_full_region() {
    update_at_once(&Schema::default(), true);
}

#[test]
fn several_sessions_at_once_update_a_full_region_with_tags() {
    update_at_once(&tagged(), true);
}

/// The reserve is used up by updates whose old versions a view holds. Its last chunk is kept for
/// deletions, which need a few small cells each while the view holds the parts of indexes that they
/// replace.
#[test]
fn records_are_deleted_although_a_view_has_used_the_reserve_up() {
    const MOST: usize = 4000;
    let folder = TestFolder::new();
    let region = create(&folder);
    let session = region.session().unwrap();
    let ns = session.namespace("ue", &tagged()).unwrap();
    let reader = region.session().unwrap();
    let seen = reader.namespace("ue", &tagged()).unwrap();
    let bytes = vec![7; MOST];
    let put = |number: u32| {
        let (guti, cell) = (number.to_be_bytes(), (number % 50).to_be_bytes());
        let tags: &[(&str, &[u8])] = &[("guti", &guti), ("cell", &cell)];
        let (key, value) = (key(number), &bytes[..size_of(number, MOST)]);
        let metadata = Metadata { tags, expires_ms: 0 };
        session.transact(|txn| txn.put_with_metadata(ns, &key, value, metadata))
    };
    let count = (0..1_000_000).take_while(|number| put(*number).is_ok()).count() as u32;
    let view = reader.get(seen, &key(0)).unwrap().unwrap();
    let mut numbers = Numbers::of(count / 2);
    let refused = (0..20_000).filter(|_| put(numbers.next()).is_err()).count();
    assert!(refused > 10_000, "the reserve is used up: {refused}");
    for number in count / 2..count / 2 + 500 {
        let deleted = session.transact(|txn| txn.delete(ns, &key(number)));
        assert_eq!(deleted, Ok(true), "record {number} of {count}");
    }
    drop(view);
    drop((session, reader, region));
    clean(&folder.path);
}

/// Keys of 8 bytes, as in the table of decision 014.
fn short_key(number: u32) -> [u8; 8] {
    let mut key = *b"imsi\0\0\0\0";
    key[4..].copy_from_slice(&number.to_be_bytes());
    key
}

fn put_tagged(session: &Session, ns: Namespace, number: u32) -> Result<(), Error> {
    let unique = number.to_be_bytes();
    let (cell, since) = ([number as u8 % 50], [number as u8, (number >> 8) as u8]);
    let tags: &[(&str, &[u8])] =
        &[("guti", &unique), ("cell", &cell), ("since", &since), ("slice", b"1")];
    let metadata = Metadata { tags, expires_ms: 0 };
    session.transact(|txn| txn.put_with_metadata(ns, &short_key(number), &[1; 600], metadata))
}

/// A view holds each node of an index that a deletion replaces, once. While it is stalled, other
/// records are refused a little earlier, and what they leave is enough for all of these nodes: with
/// these keys, and with longer ones if the reader stalled earlier (decision 014).
#[test]
fn all_tagged_records_are_deleted_although_a_reader_stalled_before_the_region_was_full() {
    const BEFORE: u32 = 70_000;
    let folder = TestFolder::new();
    let region = create(&folder);
    let session = region.session().unwrap();
    let ns = session.namespace("ue", &tagged()).unwrap();
    (0..BEFORE).for_each(|number| put_tagged(&session, ns, number).unwrap());
    let reader = region.session().unwrap();
    let view = reader.get(ns, &short_key(0)).unwrap().unwrap();
    let full =
        (BEFORE..u32::MAX).find(|number| put_tagged(&session, ns, *number).is_err()).unwrap();
    assert!(full < BEFORE + 5000, "{full} records fit, so the region was not nearly full");
    let mut numbers: Vec<u32> = (1..full).collect();
    // In the order of a generator: each deletion meets other nodes.
    numbers.sort_unstable_by_key(|number| number.wrapping_mul(2_654_435_761));
    for (deleted, number) in numbers.into_iter().enumerate() {
        let done = session.delete(ns, &short_key(number));
        assert!(done.unwrap_or_else(|error| panic!("after {deleted} of {full}: {error}")));
    }
    assert_eq!(view.bytes(), [1; 600]);
    drop(view);
    drop((session, reader, region));
    clean(&folder.path);
}

/// While a reader is stalled, updates of cold records leave half of the reserve, which deletions
/// use.
#[test]
fn updates_under_a_stalled_reader_leave_half_of_the_reserve_to_deletions() {
    let folder = TestFolder::new();
    let region = create(&folder);
    let (session, plain) = open(&region);
    let ns = session.namespace("tagged", &tagged()).unwrap();
    for number in 0..10_000 {
        session.put(plain, &key(number), &[1; 600]).unwrap();
    }
    let full = (0..u32::MAX).find(|number| put_tagged(&session, ns, *number).is_err()).unwrap();
    let reader = region.session().unwrap();
    let view = reader.get(ns, &short_key(0)).unwrap().unwrap();
    let update = |number: &u32| session.put(plain, &key(*number), &[2; 600]).is_ok();
    let updated = (0..2000).filter(update).count();
    assert!((500..1000).contains(&updated), "{updated} records were updated");
    let delete = |number: &u32| session.delete(ns, &short_key(*number)).is_ok();
    let deleted = (1..full).take_while(delete).count();
    assert!(deleted > 900, "{deleted} of {full} records were deleted");
    assert_eq!(view.bytes(), [1; 600]);
    drop(view);
    drop((session, reader, region));
    clean(&folder.path);
}
