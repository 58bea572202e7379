//! Transactions of one process's threads: all or nothing at one instant, consistent reads,
//! refusals.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nearstate_store::{
    BlockChange, Error, Filter, Kind, Metadata, Namespace, NamespaceLimits, RUNS_MIN, RetryPolicy,
    Schema, TagSchema, limits,
};

use crate::fixture::{TestRegion, open};

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().unwrap())
}

#[test]
fn a_transaction_is_visible_whole_or_not_at_all() {
    let fixture = TestRegion::new();
    let (session, ue) = open(&fixture.region);
    session.put(ue, b"old", b"1").unwrap();
    let txn = session.begin().unwrap();
    txn.put(ue, b"a", b"1").unwrap();
    txn.put(ue, b"b", b"2").unwrap();
    assert!(txn.delete(ue, b"old").unwrap());
    assert_eq!(txn.get(ue, b"a").unwrap().unwrap().bytes(), b"1");
    assert!(txn.get(ue, b"old").unwrap().is_none());
    assert!(session.get(ue, b"a").unwrap().is_none());
    assert!(session.get(ue, b"old").unwrap().is_some());
    txn.commit().unwrap();
    assert_eq!(session.get(ue, b"a").unwrap().unwrap().bytes(), b"1");
    assert_eq!(session.get(ue, b"b").unwrap().unwrap().bytes(), b"2");
    assert!(session.get(ue, b"old").unwrap().is_none());
    let txn = session.begin().unwrap();
    txn.put(ue, b"a", b"9").unwrap();
    txn.put(ue, b"c", b"9").unwrap();
    txn.abort();
    assert_eq!(session.get(ue, b"a").unwrap().unwrap().bytes(), b"1");
    assert!(session.get(ue, b"c").unwrap().is_none());
    assert_eq!(session.count(ue).unwrap(), 2);
    drop(session);
    fixture.close_and_check();
}

/// A transaction that is one put prepares nothing in a namespace that asks for nothing. What the
/// namespace asks for at the commit counts.
#[test]
fn a_transaction_of_one_put_does_what_its_namespace_asks_for_at_the_commit() {
    let fixture = TestRegion::new();
    let (session, ue) = open(&fixture.region);
    session.put(ue, b"a", b"1").unwrap();
    let put = |value: &[u8]| {
        let txn = session.begin().unwrap();
        txn.get(ue, b"a").unwrap();
        txn.put(ue, b"a", value).unwrap();
        txn
    };
    let version = session.get(ue, b"a").unwrap().unwrap().version();
    let mut versions = Vec::new();
    let note = |key: &[u8], version| versions.push((key.to_vec(), version));
    put(b"2").commit_with_versions(note).unwrap();
    assert_eq!(versions, [(b"a".to_vec(), Some(version + 1))]);
    // An empty value, and a key and a value that are apart in the buffer.
    put(b"").commit().unwrap();
    assert_eq!(session.get(ue, b"a").unwrap().unwrap().bytes(), b"");
    let twice = put(b"first");
    twice.put(ue, b"a", b"second").unwrap();
    twice.commit().unwrap();
    assert_eq!(session.get(ue, b"a").unwrap().unwrap().bytes(), b"second");
    let limited = put(&[1; 4000]);
    let limits = NamespaceLimits { soft_bytes: 0, hard_bytes: 1000 };
    session.set_limits(ue, limits).unwrap();
    let refused = limited.commit().unwrap_err();
    assert!(matches!(refused, Error::LimitReached { .. }), "{refused:?}");
    session.set_limits(ue, NamespaceLimits::default()).unwrap();
    let required = put(b"3");
    let tag = TagSchema { name: "t".to_owned(), is_required: true, ..TagSchema::default() };
    session.delete(ue, b"a").unwrap();
    drop(required);
    let required = session.begin().unwrap();
    required.put(ue, b"a", b"3").unwrap();
    session.add_tags(ue, &[tag]).unwrap();
    let refused = required.commit().unwrap_err();
    assert!(matches!(refused, Error::BadArgument { .. }), "{refused:?}");
    let plain = session.namespace("plain", &Schema::default()).unwrap();
    let watched = session.begin().unwrap();
    watched.put(plain, b"k", b"v").unwrap();
    let mut watch = session.watch(plain, Filter::Namespace).unwrap();
    watched.commit().unwrap();
    assert!(watch.next().unwrap().is_some(), "the put is announced");
    drop((watch, session));
    fixture.close_and_check();
}

/// The changes of a patch are in memory that the session keeps, unless they are many.
#[test]
fn a_transaction_patches_few_and_many_blocks_of_several_records() {
    let fixture = TestRegion::new();
    let session = fixture.region.session().unwrap();
    let schema = Schema { kind: Kind::Blocks, ..Schema::default() };
    let ue = session.namespace("ue", &schema).unwrap();
    let names: Vec<String> = (0..40).map(|number| format!("b{number}")).collect();
    for (round, count) in [1_usize, 15, 16, 17, 40, 2, 1].into_iter().enumerate() {
        let bytes = [round as u8; 9];
        let changes: Vec<BlockChange<'_>> = names
            .iter()
            .take(count)
            .map(|name| BlockChange { name, bytes: Some(&bytes) })
            .collect();
        session
            .transact(|txn| {
                txn.patch(ue, b"all", &changes)?;
                for name in &names[..count] {
                    txn.patch(ue, name.as_bytes(), &changes[..1])?;
                }
                // A record that was patched before.
                txn.patch(ue, b"all", &[BlockChange { name: "last", bytes: Some(&bytes) }])
            })
            .unwrap();
        let all = session.get(ue, b"all").unwrap().unwrap();
        for name in names.iter().take(count).map(String::as_str).chain(["last"]) {
            assert_eq!(all.block(name), Some(&bytes[..]), "round {round}, block {name}");
        }
        for name in &names[..count] {
            let one = session.get(ue, name.as_bytes()).unwrap().unwrap();
            assert_eq!(one.blocks().count(), 1, "round {round}, record {name}");
            assert_eq!(one.block("b0"), Some(&bytes[..]), "round {round}, record {name}");
        }
    }
    drop(session);
    fixture.close_and_check();
}

#[test]
fn a_conflict_is_refused_and_changes_nothing() {
    let fixture = TestRegion::new();
    let (session, ue) = open(&fixture.region);
    let (other, _) = open(&fixture.region);
    session.put(ue, b"a", b"1").unwrap();
    for writes in 1..3 {
        let txn = session.begin().unwrap();
        txn.get(ue, b"a").unwrap();
        txn.get(ue, b"absent").unwrap();
        txn.put(ue, b"b", b"x").unwrap();
        if writes == 1 {
            other.put(ue, b"a", b"2").unwrap();
        } else {
            other.put(ue, b"absent", b"2").unwrap();
        }
        let refused = txn.commit().unwrap_err();
        assert!(matches!(refused, Error::Conflict { .. }), "{refused:?}");
        assert!(session.get(ue, b"b").unwrap().is_none());
        other.delete(ue, b"absent").unwrap();
    }
    // A read that does not fit the earlier ones is refused at once.
    let txn = session.begin().unwrap();
    txn.get(ue, b"a").unwrap();
    other.put(ue, b"a", b"3").unwrap();
    assert!(matches!(txn.get(ue, b"b"), Err(Error::Conflict { .. })));
    assert!(matches!(txn.commit(), Err(Error::Conflict { .. })));
    drop((session, other));
    fixture.close_and_check();
}

#[test]
fn retries_are_bounded_and_end_with_deadline() {
    let fixture = TestRegion::new();
    let (session, ue) = open(&fixture.region);
    let (other, _) = open(&fixture.region);
    session.put(ue, b"a", b"0").unwrap();
    // A time limit that has passed leaves the least number of runs.
    let limits = [(7, None, 7), (7, Some(Duration::ZERO), RUNS_MIN), (2, Some(Duration::ZERO), 2)];
    for (tries, within, expected) in limits {
        let mut runs = 0;
        let refused = session.transact_within(RetryPolicy { tries, within }, |txn| {
            runs += 1;
            txn.get(ue, b"a")?;
            other.put(ue, b"a", b"1")?;
            txn.put(ue, b"a", b"2")
        });
        assert_eq!(refused, Err(Error::Deadline { tries: expected }));
        assert_eq!(runs, expected);
    }
}

#[test]
fn a_transaction_may_touch_thousands_of_records_and_no_more() {
    let fixture = TestRegion::new();
    let (session, ue) = open(&fixture.region);
    let keys: Vec<String> =
        (0..limits::TRANSACTION_RECORDS_MAX).map(|n| format!("imsi-{n:05}")).collect();
    session
        .transact(|txn| keys.iter().try_for_each(|key| txn.put(ue, key.as_bytes(), b"attached")))
        .unwrap();
    assert_eq!(session.count(ue).unwrap(), keys.len() as u64);
    session
        .transact::<_, Error>(|txn| {
            for (number, key) in keys.iter().enumerate() {
                match number % 3 {
                    0 => assert!(txn.delete(ue, key.as_bytes())?),
                    1 => txn.put(ue, key.as_bytes(), b"idle")?,
                    _ => assert!(txn.get(ue, key.as_bytes())?.is_some()),
                }
            }
            Ok(())
        })
        .unwrap();
    for (number, key) in keys.iter().enumerate() {
        let view = session.get(ue, key.as_bytes()).unwrap();
        let found = view.as_ref().map(nearstate_store::View::bytes);
        assert_eq!(found, [None, Some(&b"idle"[..]), Some(&b"attached"[..])][number % 3]);
    }
    let txn = session.begin().unwrap();
    for key in &keys {
        txn.get(ue, key.as_bytes()).unwrap();
    }
    let refused = txn.put(ue, b"one too many", b"").unwrap_err();
    assert!(matches!(refused, Error::TransactionTooLarge { .. }), "{refused}");
    txn.abort();
    drop(session);
    fixture.close_and_check();
}

/// Three values of this size are more than a transaction has.
const THIRD: usize = 100 << 20;

fn assert_too_large(result: &Result<(), Error>) {
    assert!(matches!(result, Err(Error::TransactionTooLarge { .. })), "{result:?}");
}

#[test]
fn a_change_that_makes_a_transaction_too_large_leaves_the_earlier_write_of_its_record() {
    let fixture = TestRegion::new();
    let (session, _) = open(&fixture.region);
    let schema = Schema { kind: Kind::Blocks, ..Schema::default() };
    let blocks = session.namespace("blocks", &schema).unwrap();
    let large = vec![0; THIRD];
    let change = |name, bytes| BlockChange { name, bytes: Some(bytes) };
    let changes = ["a", "b", "c"].map(|name| change(name, &large));
    let fields: [(&[u8], &[u8]); 3] = [(b"a", &large), (b"b", &large), (b"c", &large)];
    let txn = session.begin().unwrap();
    txn.patch(blocks, b"patched", &[change("a", b"first")]).unwrap();
    txn.put_fields(blocks, b"put", &[(b"a", b"first")], Metadata::default()).unwrap();
    let before = txn.changes();
    assert_too_large(&txn.patch(blocks, b"patched", &changes));
    assert_too_large(&txn.put_fields(blocks, b"put", &fields, Metadata::default()));
    assert_eq!(txn.changes(), before, "the transaction contains nothing of them");
    txn.commit().unwrap();
    for key in [&b"patched"[..], b"put"] {
        let view = session.get(blocks, key).unwrap().expect("its first write was accepted");
        assert_eq!(view.block("a"), Some(&b"first"[..]));
    }
    drop(session);
    fixture.close_and_check();
}

#[test]
fn a_collection_whose_tags_make_a_transaction_too_large_is_not_put_without_them() {
    let fixture = TestRegion::new();
    let (session, _) = open(&fixture.region);
    let of = |name: &str, kind| session.namespace(name, &Schema { kind, ..Schema::default() });
    let (blocks, mixed) = (of("blocks", Kind::Blocks).unwrap(), of("mixed", Kind::Mixed).unwrap());
    let values: Vec<_> = (0..40_u8).map(|n| vec![n; limits::TAG_VALUE_BYTES_MAX]).collect();
    let tags: Vec<(&str, &[u8])> = values.iter().map(|value| ("t", &value[..])).collect();
    let few: &[(&[u8], &[u8])] = &[(b"a", b"second")];
    // It is divided.
    let names: Vec<_> = (0..2000_u32).map(|number| format!("{number:04}")).collect();
    let many: Vec<(&[u8], &[u8])> = names.iter().map(|name| (name.as_bytes(), &b""[..])).collect();
    let puts = [(blocks, &b"few"[..], few), (mixed, b"few", few), (mixed, b"many", &many)];
    let txn = session.begin().unwrap();
    for (ns, key, _) in puts {
        txn.put_fields(ns, key, &[(b"a", b"first")], Metadata::default()).unwrap();
    }
    // Then there is room for the fields, and none for their tags.
    let (large, left) = (vec![0; THIRD], 36 << 10);
    let sizes = [THIRD, THIRD, limits::TRANSACTION_BYTES_MAX - 2 * THIRD - left];
    for (key, bytes) in [b"x", b"y", b"z"].into_iter().zip(sizes) {
        let bytes = Some(&large[..bytes]);
        txn.patch(blocks, key, &[BlockChange { name: "a", bytes }]).unwrap();
    }
    let before = txn.changes();
    for (ns, key, fields) in puts {
        let metadata = Metadata { tags: &tags, expires_ms: 0 };
        assert_too_large(&txn.put_fields(ns, key, fields, metadata));
        assert_eq!(txn.field(ns, key, b"a").unwrap().as_deref(), Some(&b"first"[..]));
    }
    assert_eq!(txn.changes(), before, "the transaction contains nothing of them");
    txn.abort();
    drop(session);
    fixture.close_and_check();
}

#[test]
fn blocks_change_with_values_and_show_in_the_transaction() {
    let fixture = TestRegion::new();
    let (session, ue) = open(&fixture.region);
    let schema = Schema { kind: Kind::Blocks, ..Schema::default() };
    let contexts = session.namespace("contexts", &schema).unwrap();
    let large = vec![7_u8; 5000];
    let change = |name, bytes| BlockChange { name, bytes };
    session
        .transact(|txn| {
            txn.put(ue, b"guti-1", b"imsi-1")?;
            txn.patch(
                contexts,
                b"imsi-1",
                &[change("auth", Some(b"k")), change("big", Some(&large))],
            )
        })
        .unwrap();
    session
        .transact::<_, Error>(|txn| {
            txn.patch(contexts, b"imsi-1", &[change("auth", Some(b"l"))])?;
            txn.patch(contexts, b"imsi-1", &[change("loc", Some(b"cell 5"))])?;
            let record = txn.get(contexts, b"imsi-1")?.unwrap();
            assert_eq!(record.block("auth"), Some(&b"l"[..]));
            assert_eq!(record.block("big"), Some(&large[..]));
            assert_eq!(record.block("loc"), Some(&b"cell 5"[..]));
            txn.delete(ue, b"guti-1")?;
            Ok(())
        })
        .unwrap();
    let view = session.get(contexts, b"imsi-1").unwrap().unwrap();
    assert_eq!(view.block("auth"), Some(&b"l"[..]));
    assert_eq!(view.block("big"), Some(&large[..]));
    assert_eq!(view.blocks().count(), 3);
    drop(view);
    session
        .transact(|txn| {
            txn.delete(contexts, b"imsi-1")?;
            txn.patch(contexts, b"imsi-1", &[change("auth", Some(b"new"))])
        })
        .unwrap();
    let view = session.get(contexts, b"imsi-1").unwrap().unwrap();
    assert_eq!(view.blocks().collect::<Vec<_>>(), [("auth", &b"new"[..])]);
    drop(view);
    drop(session);
    fixture.close_and_check();
}

/// Money moves between accounts; the sum that any transaction sees is always the same.
#[test]
fn what_a_transaction_reads_is_consistent_while_others_write() {
    const ACCOUNTS: u64 = 6;
    const ROUNDS: u64 = 20_000;
    let fixture = TestRegion::new();
    let (session, ue) = open(&fixture.region);
    for account in 0..ACCOUNTS {
        session.put(ue, &account.to_le_bytes(), &100_u64.to_le_bytes()).unwrap();
    }
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let (fixture, is_over) = (&fixture, &is_over);
            scope.spawn(move || {
                let (session, ue) = open(&fixture.region);
                let mut rng = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(thread + 1);
                for _ in 0..ROUNDS {
                    rng ^= rng << 13;
                    rng ^= rng >> 7;
                    rng ^= rng << 17;
                    let (from, to) = (rng % ACCOUNTS, rng / 7 % ACCOUNTS);
                    if from == to {
                        continue;
                    }
                    session
                        .transact(|txn| {
                            let read = |account: u64| {
                                let record = txn.get(ue, &account.to_le_bytes())?;
                                Ok::<_, Error>(number(record.unwrap().bytes()))
                            };
                            let (has, other) = (read(from)?, read(to)?);
                            let amount = has.min(rng % 10);
                            let set = |account: u64, has: u64| {
                                txn.put(ue, &account.to_le_bytes(), &has.to_le_bytes())
                            };
                            set(from, has - amount)?;
                            set(to, other + amount)
                        })
                        .unwrap();
                }
                is_over.store(true, Ordering::Release);
            });
        }
        let sums = || {
            let (session, ue) = open(&fixture.region);
            let mut seen = 0_u64;
            while !is_over.load(Ordering::Acquire) || seen == 0 {
                let sum: u64 = session
                    .transact::<_, Error>(|txn| {
                        (0..ACCOUNTS)
                            .map(|account| {
                                let record = txn.get(ue, &account.to_le_bytes())?;
                                Ok(number(record.unwrap().bytes()))
                            })
                            .sum()
                    })
                    .unwrap();
                assert_eq!(sum, ACCOUNTS * 100);
                seen += 1;
            }
        };
        sums();
    });
    drop(session);
    fixture.close_and_check();
}

/// Two records always get the same number; a plain reader must never see the second one older than
/// the first.
#[test]
fn single_reads_see_a_transaction_at_one_instant() {
    let fixture = TestRegion::new();
    let (session, ue) = open(&fixture.region);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (session, ue) = open(&fixture.region);
            let mut last = 0;
            while !is_over.load(Ordering::Acquire) {
                for (first, second) in [(b"a", b"b"), (b"b", b"a")] {
                    let read = |key: &[u8]| {
                        session.get(ue, key).unwrap().map_or(0, |view| number(view.bytes()))
                    };
                    let one = read(first);
                    let other = read(second);
                    assert!(one >= last, "{one} after {last}");
                    assert!(other >= one, "{other} after {one}");
                    last = other;
                }
            }
        });
        for round in 1..60_000_u64 {
            session
                .transact(|txn| {
                    txn.put(ue, b"a", &round.to_le_bytes())?;
                    txn.put(ue, b"b", &round.to_le_bytes())
                })
                .unwrap();
        }
        is_over.store(true, Ordering::Release);
    });
    drop(session);
    fixture.close_and_check();
}

#[test]
fn many_records_are_deleted_at_one_instant_or_the_result_is_a_conflict() {
    let fixture = TestRegion::new();
    let (session, other) = (fixture.region.session().unwrap(), fixture.region.session().unwrap());
    let ns = session.namespace("ues", &Schema::default()).unwrap();
    let keys: Vec<[u8; 2]> = (0..2000_u16).map(u16::to_be_bytes).collect();
    for key in keys.iter().step_by(2) {
        session.put(ns, key, b"context").unwrap();
    }
    let all: Vec<(Namespace, &[u8])> = keys.iter().map(|key| (ns, key.as_slice())).collect();
    // One comes after it was read: the answer would be of no moment.
    let txn = session.begin().unwrap();
    assert!(txn.get(ns, &keys[1]).unwrap().is_none());
    other.put(ns, &keys[1], b"late").unwrap();
    let met = txn.delete_all(&all);
    assert!(matches!(met, Err(Error::Conflict { .. })), "{met:?}");
    drop(txn);
    assert_eq!(session.count(ns).unwrap(), 1001);
    assert_eq!(session.transact(|txn| txn.delete_all(&all)).unwrap(), 1001);
    assert_eq!(session.transact(|txn| txn.delete_all(&all)).unwrap(), 0);
    assert_eq!(session.count(ns).unwrap(), 0);
    // Once more what the transaction itself has written, and read before.
    session.put(ns, b"a", b"1").unwrap();
    session
        .transact::<_, Error>(|txn| {
            assert!(txn.get(ns, b"a")?.is_some());
            txn.put(ns, b"b", b"2")?;
            let those = [(ns, b"a".as_slice()), (ns, b"b"), (ns, b"c"), (ns, b"b")];
            assert_eq!(txn.delete_all(&those)?, 2);
            assert!(txn.get(ns, b"a")?.is_none());
            Ok(())
        })
        .unwrap();
    assert_eq!(session.count(ns).unwrap(), 0);
    drop((session, other));
    fixture.close_and_check();
}

#[test]
fn reads_that_are_validated_together_are_validated_after_the_last_one() {
    let fixture = TestRegion::new();
    let (session, ns) = open(&fixture.region);
    let other = fixture.region.session().unwrap();
    let keys: Vec<[u8; 2]> = (0..100_u16).map(u16::to_be_bytes).collect();
    for key in &keys {
        session.put(ns, key, b"1").unwrap();
    }
    let read = |txn: &nearstate_store::Txn<'_>, read: &mut usize| {
        for key in &keys {
            txn.get(ns, key)?;
            if *read == 0 {
                other.put(ns, key, b"2")?;
            }
            *read += 1;
        }
        Ok(*read)
    };
    let (txn, mut count) = (session.begin().unwrap(), 0);
    let met = read(&txn, &mut count);
    assert!(matches!(met, Err(Error::Conflict { .. })), "{met:?}");
    assert_eq!(count, 1, "alone each validates all earlier reads");
    drop(txn);
    let (txn, mut count) = (session.begin().unwrap(), 0);
    let met = txn.validated_once(|| read(&txn, &mut count));
    assert!(matches!(met, Err(Error::Conflict { .. })), "{met:?}");
    assert_eq!(count, 100);
    assert!(matches!(txn.get(ns, b"x"), Err(Error::Conflict { .. })), "and so it stays");
    drop(txn);
    // An error may come of what does not fit together: that is said first.
    let txn = session.begin().unwrap();
    let met: Result<(), Error> = txn.validated_once(|| {
        txn.get(ns, &keys[0])?;
        other.put(ns, &keys[0], b"3")?;
        Err(Error::BadArgument { detail: "what was read".to_owned() })
    });
    assert!(matches!(met, Err(Error::Conflict { .. })), "{met:?}");
    drop(txn);
    // If they are nested, only the outer one validates. Afterwards each read does again.
    let (txn, mut count) = (session.begin().unwrap(), 1);
    let met = txn.validated_once(|| txn.validated_once(|| read(&txn, &mut count)));
    assert_eq!(met.unwrap(), 101);
    other.put(ns, &keys[0], b"4").unwrap();
    assert!(matches!(txn.get(ns, b"x"), Err(Error::Conflict { .. })));
    drop(txn);
    drop((session, other));
    fixture.close_and_check();
}
