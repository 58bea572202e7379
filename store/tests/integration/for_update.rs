//! Records that are read in order to change them.
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

use nearstate_store::{
    BlockChange, BlockLayout, Condition, CreateOptions, Error, Filter, Kind, Metadata, Namespace,
    Notice, Outcome, RecordForUpdate, Region, Schema, Session, TagSchema, View, now_ms_coarse,
};

use crate::fixture::{SetOnDrop, clean};

const NAMES: [&str; 4] = ["profile", "location", "radio", "context"];

fn open(kind: Kind, each: impl Fn(&Session, Namespace)) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("region");
    {
        let region = Region::create(&path, &CreateOptions::default()).unwrap();
        let session = region.session().unwrap();
        let namespace = session.namespace("ue", &Schema { kind, ..Schema::default() }).unwrap();
        each(&session, namespace);
    }
    clean(&path);
}

fn read<'s>(session: &'s Session, ns: Namespace, key: &[u8]) -> RecordForUpdate<'s> {
    session.get_for_update(ns, key).unwrap().unwrap()
}

fn done(version: u64) -> Outcome {
    Outcome::Done { version }
}

#[test]
fn a_record_is_changed_only_if_it_is_the_version_that_was_read() {
    open(Kind::Value, |session, ns| {
        assert!(session.get_for_update(ns, b"k").unwrap().is_none());
        let version = session.put(ns, b"k", b"one").unwrap();
        let (first, second) = (read(session, ns, b"k"), read(session, ns, b"k"));
        assert_eq!((first.view().bytes(), first.view().version()), (&b"one"[..], version));
        assert_eq!(second.put(b"two").unwrap(), done(version + 1));
        let current = Some(version + 1);
        assert_eq!(first.put(b"lost").unwrap(), Outcome::Refused { current });
        assert_eq!(second.put(b"again").unwrap(), Outcome::Refused { current });
        assert_eq!(first.view().bytes(), b"one", "a view stays what it was");
        let third = read(session, ns, b"k");
        assert!(session.delete(ns, b"k").unwrap());
        assert_eq!(third.put(b"lost").unwrap(), Outcome::Refused { current: None });
        // Another record of the same key is another record.
        let version = session.put(ns, b"k", b"two").unwrap();
        assert_eq!(third.put(b"lost").unwrap(), Outcome::Refused { current: Some(version) });
        assert_eq!(session.get(ns, b"k").unwrap().unwrap().bytes(), b"two");
    });
}

#[test]
fn invalid_changes_are_refused_and_change_nothing() {
    open(Kind::Mixed, |session, ns| {
        let names = BlockLayout::new(&NAMES).unwrap();
        session.put(ns, b"value", b"v").unwrap();
        let record = read(session, ns, b"value");
        let refused = record.patch(&names, &[(0, b"x")]).unwrap_err();
        assert!(matches!(refused, Error::WrongKind { .. }), "{refused}");
        record.blocks_of(&names, |_| true, |place, _| panic!("a value has no block {place}"));
        let change = BlockChange { name: "radio", bytes: Some(b"r") };
        session.patch(ns, b"blocks", &[change], Condition::Always).unwrap();
        let record = read(session, ns, b"blocks");
        let changes: [&[(usize, &[u8])]; 2] = [&[(4, b"x")], &[(0, b"x"), (0, b"y")]];
        for changes in changes {
            let refused = record.patch(&names, changes).unwrap_err();
            assert!(matches!(refused, Error::BadArgument { .. }), "{refused}");
        }
        let large = vec![0; nearstate_store::limits::VALUE_BYTES_MAX + 1];
        for refused in [record.patch(&names, &[(1, &large)]), record.put(&large)] {
            assert!(matches!(refused, Err(Error::ValueTooLarge { .. })), "{refused:?}");
        }
        assert_eq!(session.get(ns, b"blocks").unwrap().unwrap().block("radio"), Some(&b"r"[..]));
        assert!(matches!(record.put(b"now a value").unwrap(), Outcome::Done { .. }));
        assert_eq!(session.get(ns, b"blocks").unwrap().unwrap().bytes(), b"now a value");
    });
    open(Kind::Counters, |session, ns| {
        let refused = session.get_for_update(ns, b"k").unwrap_err();
        assert!(matches!(refused, Error::WrongKind { .. }), "{refused}");
    });
    open(Kind::Blocks, |session, ns| {
        session.patch(ns, b"k", &[], Condition::Always).unwrap();
        let refused = read(session, ns, b"k").put(b"v").unwrap_err();
        assert!(matches!(refused, Error::WrongKind { .. }), "{refused}");
    });
    let long = "n".repeat(256);
    for names in [&["a", ""][..], &[&long], &["nul\0"]] {
        assert!(matches!(BlockLayout::new(names), Err(Error::BadName { .. })), "{names:?}");
    }
    open(Kind::Blocks, |session, ns| {
        let twice = [("radio", b"1"), ("nas", b"2"), ("radio", b"3")];
        let changes = twice.map(|(name, bytes)| BlockChange { name, bytes: Some(bytes) });
        let patched = session.patch(ns, b"k", &changes, Condition::Always).unwrap_err();
        let layout = BlockLayout::new(&twice.map(|(name, _)| name)).unwrap_err();
        for refused in [patched, layout] {
            let text = refused.to_string();
            assert!(text.contains("block \"radio\" is named twice"), "{text}");
            assert!(matches!(refused, Error::BadArgument { .. }), "{text}");
        }
    });
}

/// The blocks of a record, by one walk.
fn blocks_of(session: &Session, ns: Namespace, key: &[u8]) -> Vec<(String, Vec<u8>)> {
    let view = session.get(ns, key).unwrap().unwrap();
    view.blocks().map(|(name, bytes)| (name.to_owned(), bytes.to_vec())).collect()
}

#[test]
fn patches_by_index_equal_patches_by_name() {
    open(Kind::Blocks, |session, ns| {
        // One for all records: what it remembers is never the next one's layout for certain.
        let names = BlockLayout::new(&NAMES).unwrap();
        let tags: &[(&str, &[u8])] = &[("guti", b"g-1")];
        let metadata = Metadata { tags, expires_ms: u64::MAX };
        let other = BlockChange { name: "other", bytes: Some(b"not among the names") };
        let mut state = 1_u64;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            usize::try_from((state >> 33) % below).unwrap()
        };
        let keys = [[b"a-by-place", b"a-by-names"], [b"b-by-place", b"b-by-names"]];
        for (number, [one, twin]) in keys.iter().enumerate() {
            for key in [one, twin] {
                session.patch(ns, *key, &[other], Condition::Always).unwrap();
                if number == 0 {
                    session.transact(|txn| txn.set_metadata(ns, *key, metadata)).unwrap();
                }
            }
        }
        for round in 0..600 {
            let [one, twin] = keys[draw(2)];
            let mut changes: Vec<(usize, Vec<u8>)> = Vec::new();
            for place in 0..NAMES.len() {
                if draw(3) == 0 {
                    let sizes = [0, 20, 20, 20, 94, 512, 513, 3000];
                    let byte = u8::try_from(round % 251).unwrap();
                    changes.push((place, vec![byte; sizes[draw(8)]]));
                }
            }
            if draw(2) == 0 {
                changes.reverse();
            }
            let by_place: Vec<(usize, &[u8])> =
                changes.iter().map(|(place, bytes)| (*place, bytes.as_slice())).collect();
            let by_name: Vec<BlockChange<'_>> = by_place
                .iter()
                .map(|(place, bytes)| BlockChange { name: NAMES[*place], bytes: Some(bytes) })
                .collect();
            let record = read(session, ns, one);
            assert!(matches!(record.patch(&names, &by_place).unwrap(), Outcome::Done { .. }));
            session.patch(ns, twin, &by_name, Condition::Present).unwrap();
            let (found, expected) = (blocks_of(session, ns, one), blocks_of(session, ns, twin));
            assert_eq!(found, expected, "round {round}: {changes:?}");
            let record = read(session, ns, one);
            let mut seen = [const { None }; NAMES.len()];
            let wanted = [0, 2, 3].map(|place| (place, NAMES[place]));
            record.blocks_of(
                &names,
                |place| place != 1,
                |place, bytes| {
                    assert!(seen[place].replace(bytes.to_vec()).is_none(), "returned twice");
                },
            );
            let view = session.get(ns, one).unwrap().unwrap();
            let mut by_view = [const { None }; NAMES.len()];
            let keep = |place: usize, bytes: &[u8]| by_view[place] = Some(bytes.to_vec());
            view.blocks_of(&names, |place| place != 1, keep);
            assert_eq!(by_view, seen, "a view finds the same blocks");
            for (place, name) in wanted {
                let known = expected.iter().find(|(known, _)| known == name);
                assert_eq!(seen[place], known.map(|(_, bytes)| bytes.clone()), "{name}");
            }
            assert_eq!(seen[1], None);
            let twin = session.get(ns, twin).unwrap().unwrap();
            assert!(record.view().tags().eq(twin.tags()));
            assert_eq!(record.view().expires_ms(), twin.expires_ms());
        }
    });
}

#[test]
fn a_layout_learnt_from_one_record_is_not_applied_to_another() {
    open(Kind::Blocks, |session, ns| {
        let names = BlockLayout::new(&["a", "b"]).unwrap();
        let others = BlockLayout::new(&["b", "a"]).unwrap();
        let set = |name, bytes| BlockChange { name, bytes: Some(bytes) };
        // The same length and other names, other sizes, and sizes that only a look at all finds.
        let (first, second) = (&b"first"[..], &b"second"[..]);
        let records = [
            (b"1", "a", "b", first, second),
            (b"2", "b", "a", first, second),
            (b"3", "a", "b", second, first),
            (b"4", "c", "b", first, second),
        ];
        for (key, one, two, first, second) in records {
            let changes = [set(one, first), set(two, second)];
            session.patch(ns, key, &changes, Condition::Always).unwrap();
        }
        for _ in 0..20 {
            for (key, one, two, first, second) in records {
                let record = read(session, ns, key);
                for (names, places) in [(&names, ["a", "b"]), (&others, ["b", "a"])] {
                    let mut seen = Vec::new();
                    record.blocks_of(
                        names,
                        |_| true,
                        |place, bytes| {
                            seen.push((places[place], bytes.to_vec()));
                        },
                    );
                    seen.sort_unstable();
                    let mut expected = vec![(one, first.to_vec()), (two, second.to_vec())];
                    expected.retain(|(name, _)| places.contains(name));
                    expected.sort_unstable();
                    assert_eq!(seen, expected);
                }
            }
        }
    });
}

#[test]
fn a_layout_finds_the_blocks_that_only_the_transaction_has() {
    open(Kind::Mixed, |session, ns| {
        let names = BlockLayout::new(&["a", "b"]).unwrap();
        let set = |name, bytes| BlockChange { name, bytes: Some(bytes) };
        let changes = [set("a", b"1"), set("b", b"2")];
        session.patch(ns, b"k", &changes, Condition::Always).unwrap();
        let seen = |view: &View<'_>| {
            let mut seen = Vec::new();
            view.blocks_of(
                &names,
                |place| place == 1,
                |place, bytes| seen.push((place, bytes.to_vec())),
            );
            seen
        };
        assert_eq!(seen(&session.get(ns, b"k").unwrap().unwrap()), [(1, b"2".to_vec())]);
        let txn = session.begin().unwrap();
        txn.patch(ns, b"k", &[set("b", b"new")]).unwrap();
        assert_eq!(seen(&txn.get(ns, b"k").unwrap().unwrap()), [(1, b"new".to_vec())]);
        txn.put(ns, b"k", b"a value").unwrap();
        assert_eq!(seen(&txn.get(ns, b"k").unwrap().unwrap()), []);
        drop(txn);
        assert_eq!(seen(&session.get(ns, b"k").unwrap().unwrap()), [(1, b"2".to_vec())]);
    });
}

#[test]
fn a_change_updates_indexes_and_is_sent_to_watches() {
    open(Kind::Mixed, |session, ns| {
        let guti = TagSchema { name: "guti".to_owned(), is_unique: true, ..TagSchema::default() };
        session.add_tags(ns, &[guti]).unwrap();
        let tags: &[(&str, &[u8])] = &[("guti", b"g-1")];
        let metadata = Metadata { tags, expires_ms: 0 };
        let names = BlockLayout::new(&NAMES).unwrap();
        session
            .transact(|txn| {
                txn.patch(ns, b"ue", &[BlockChange { name: "radio", bytes: Some(b"idle") }])?;
                txn.set_metadata(ns, b"ue", metadata)
            })
            .unwrap();
        let patched = read(session, ns, b"ue").patch(&names, &[(2, b"connected")]).unwrap();
        assert!(matches!(patched, Outcome::Done { .. }));
        let found = session.find(ns, "guti", b"g-1").unwrap().unwrap();
        assert_eq!(found.block("radio"), Some(&b"connected"[..]));
        let mut watch = session.watch(ns, Filter::Namespace).unwrap();
        let stale = read(session, ns, b"ue");
        let record = read(session, ns, b"ue");
        assert!(matches!(record.patch(&names, &[(2, b"idle")]).unwrap(), Outcome::Done { .. }));
        assert!(matches!(record.patch(&names, &[(2, b"x")]).unwrap(), Outcome::Refused { .. }));
        assert!(watch.next().unwrap().is_some());
        assert!(watch.next().unwrap().is_none(), "what was refused is not told");
        drop(watch);
        assert!(matches!(stale.put(b"lost").unwrap(), Outcome::Refused { .. }));
        let record = read(session, ns, b"ue");
        assert!(matches!(record.put(b"a value").unwrap(), Outcome::Done { .. }));
        assert!(session.find(ns, "guti", b"g-1").unwrap().is_none(), "a put takes tags away");
    });
}

#[test]
fn an_expired_record_is_not_changed() {
    open(Kind::Value, |session, ns| {
        let ends_ms = now_ms_coarse() + 50;
        session.put_until(ns, b"k", b"v", ends_ms).unwrap();
        let record = read(session, ns, b"k");
        while now_ms_coarse() <= ends_ms {
            std::thread::yield_now();
        }
        assert_eq!(record.put(b"too late").unwrap(), Outcome::Refused { current: None });
        assert!(session.get(ns, b"k").unwrap().is_none());
    });
}

/// A watch that starts during a change of a record reports every later change. This includes a
/// change that had already checked for watches and was not yet published.
#[test]
fn a_new_watch_misses_no_later_change() {
    const ROUNDS: usize = 60;
    const MORE: u64 = 40;
    let dir = tempfile::tempdir().unwrap();
    let region = Region::create(&dir.path().join("region"), &CreateOptions::default()).unwrap();
    let session = region.session().unwrap();
    let mut judged = 0;
    for round in 0..ROUNDS {
        // A namespace that was watched once is slow for good.
        let schema = Schema { kind: Kind::Mixed, ..Schema::default() };
        let ns = session.namespace(&format!("round-{round}"), &schema).unwrap();
        let change = BlockChange { name: "radio", bytes: Some(b"r") };
        session.patch(ns, b"blocks", &[change], Condition::Always).unwrap();
        session.put(ns, b"value", b"v").unwrap();
        let key: &[u8] = if round % 2 == 0 { b"blocks" } else { b"value" };
        let version = || session.get(ns, key).unwrap().unwrap().version();
        let is_over = AtomicBool::new(false);
        let (mut first, mut told, mut is_late) = (0, Vec::new(), false);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let session = region.session().unwrap();
                let names = BlockLayout::new(&["radio"]).unwrap();
                while !is_over.load(Ordering::Acquire) {
                    let record = read(&session, ns, key);
                    let done = match key {
                        b"blocks" => record.patch(&names, &[(0, b"R")]),
                        _ => record.put(b"V"),
                    };
                    assert!(matches!(done.unwrap(), Outcome::Done { .. }));
                }
            });
            let end = SetOnDrop(&is_over);
            let wait_for = |wanted: u64| {
                while version() < wanted {
                    assert!(!writer.is_finished(), "the writer has given up");
                    std::thread::yield_now();
                }
            };
            wait_for(MORE);
            let mut watch = session.watch(ns, Filter::Namespace).unwrap();
            first = version() + 1;
            wait_for(first + MORE);
            drop(end);
            while let Some(notice) = watch.next().unwrap() {
                match notice {
                    Notice::Event(event) => told.push(event.version),
                    // The writer was faster than this thread: nothing can be said of the round.
                    Notice::Lost { .. } => is_late = true,
                }
            }
        });
        let missed: Vec<u64> =
            (first..first + MORE).filter(|version| !told.contains(version)).collect();
        assert!(is_late || missed.is_empty(), "round {round}, from {first} on: {missed:?}");
        judged += usize::from(!is_late);
    }
    assert!(judged > ROUNDS / 4, "{judged} rounds");
}

#[test]
fn no_concurrent_update_is_lost() {
    const EACH: u64 = 3000;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("region");
    let region = Region::create(&path, &CreateOptions::default()).unwrap();
    let session = region.session().unwrap();
    let schema = Schema { kind: Kind::Blocks, ..Schema::default() };
    let ns = session.namespace("ue", &schema).unwrap();
    let blocks = ["one", "two"];
    let zero = 0_u64.to_le_bytes();
    let first = blocks.map(|name| BlockChange { name, bytes: Some(&zero) });
    session.patch(ns, b"k", &first, Condition::Always).unwrap();
    let start = Barrier::new(4);
    std::thread::scope(|scope| {
        for number in 0..4 {
            let (region, start) = (&region, &start);
            scope.spawn(move || {
                let session = region.session().unwrap();
                let names = BlockLayout::new(&blocks).unwrap();
                let place = number % 2;
                start.wait();
                for _ in 0..EACH {
                    loop {
                        let record = read(&session, ns, b"k");
                        let mut count = 0;
                        record.blocks_of(
                            &names,
                            |wanted| wanted == place,
                            |_, bytes| {
                                count = u64::from_le_bytes(bytes.try_into().unwrap());
                            },
                        );
                        let next = (count + 1).to_le_bytes();
                        if let Outcome::Done { .. } =
                            record.patch(&names, &[(place, &next)]).unwrap()
                        {
                            break;
                        }
                    }
                }
            });
        }
    });
    let view = session.get(ns, b"k").unwrap().unwrap();
    for name in blocks {
        let count = u64::from_le_bytes(view.block(name).unwrap().try_into().unwrap());
        assert_eq!(count, 2 * EACH, "{name}");
    }
    drop(view);
    drop((session, region));
    clean(&path);
}
