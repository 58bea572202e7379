//! Transactional memory: objects with addresses, alone and together with records by key.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use nearstate_store::{
    Address, Error, Objects, Schema, Session, StreamItem, StreamedChange, Txn, WhenFull, limits,
};

use crate::fixture::TestRegion;

/// An object with these bytes, committed.
fn object(session: &Session, bytes: &[u8]) -> Address {
    let made = session.transact::<_, Error>(|txn| {
        let address = txn.alloc(bytes.len())?;
        txn.open_write(address, |object| object.copy_from_slice(bytes))?;
        Ok(address)
    });
    made.unwrap()
}

fn read(session: &Session, address: Address) -> Result<Vec<u8>, Error> {
    session.transact(|txn| Ok(txn.open_read(address)?.into_owned()))
}

#[test]
fn objects_come_and_go_with_their_transaction() {
    let fixture = TestRegion::new();
    let (session, other) = (fixture.region.session().unwrap(), fixture.region.session().unwrap());
    let txn = session.begin().unwrap();
    let address = txn.alloc(100).unwrap();
    assert_eq!(*txn.open_read(address).unwrap(), [0; 100]);
    assert_eq!(txn.object_size(address), Ok(100));
    txn.open_write(address, |bytes| bytes[3..6].copy_from_slice(b"abc")).unwrap();
    assert_eq!(*txn.open_read_range(address, 2..7).unwrap(), *b"\0abc\0");
    assert_eq!(read(&other, address), Err(Error::NoObject { address: address.bits() }));
    assert_eq!(other.objects().unwrap(), Objects::default());
    txn.commit().unwrap();
    let bytes = read(&other, address).unwrap();
    assert_eq!((bytes.len(), &bytes[2..7]), (100, &b"\0abc\0"[..]));
    assert_eq!(other.objects().unwrap(), Objects { count: 1, bytes: 100 });

    // Given up, in each of the two ways: nothing was there, nothing stays.
    let txn = session.begin().unwrap();
    let never = txn.alloc(50).unwrap();
    txn.open_write(address, |bytes| bytes.fill(7)).unwrap();
    txn.abort();
    assert_eq!(read(&other, never), Err(Error::NoObject { address: never.bits() }));
    assert_eq!(read(&other, address).unwrap(), bytes);
    let refused = session.transact(|txn| {
        txn.alloc(50)?;
        txn.free(address)?;
        Err::<(), _>(Error::BadArgument { detail: "changed my mind".to_owned() })
    });
    assert!(refused.is_err());
    assert_eq!(fixture.region.objects().unwrap(), Objects { count: 1, bytes: 100 });

    session.transact(|txn| txn.free(address)).unwrap();
    assert_eq!(read(&other, address), Err(Error::NoObject { address: address.bits() }));
    assert_eq!(other.objects().unwrap(), Objects::default());
    drop((session, other));
    fixture.close_and_check();
}

#[test]
fn an_address_is_never_given_twice() {
    let fixture = TestRegion::new();
    let mut seen = BTreeSet::new();
    for round in 0..40 {
        let one = fixture.region.session().unwrap();
        let other = fixture.region.session().unwrap();
        for session in [&one, &other, &one] {
            let txn = session.begin().unwrap();
            let (kept, gone) = (txn.alloc(8).unwrap(), txn.alloc(8).unwrap());
            txn.free(gone).unwrap();
            assert!(seen.insert(kept) && seen.insert(gone), "in round {round}");
            assert_eq!(txn.open_read(gone), Err(Error::NoObject { address: gone.bits() }));
            if round % 2 == 0 {
                txn.commit().unwrap();
            }
        }
    }
    let session = fixture.region.session().unwrap();
    let mut all: Vec<Address> = Vec::new();
    session
        .walk_objects(|address, _| {
            all.push(address);
            true
        })
        .unwrap();
    assert_eq!(all.len(), 60);
    assert!(all.iter().all(|address| seen.contains(address)));
    let mut met = 0;
    session
        .walk_objects(|_, _| {
            met += 1;
            met < 5
        })
        .unwrap();
    assert_eq!(met, 5);
    drop(session);
    fixture.close_and_check();
}

#[test]
fn a_stale_or_made_up_address_is_refused() {
    let fixture = TestRegion::new();
    let session = fixture.region.session().unwrap();
    let freed = object(&session, b"gone");
    session.transact(|txn| txn.free(freed)).unwrap();
    let later = object(&session, b"here");
    assert_ne!(freed, later);
    for bits in [freed.bits(), 1, u64::MAX, later.bits() ^ 1 << 40] {
        let address = Address::from_bits(bits).unwrap();
        let txn = session.begin().unwrap();
        let refused = Error::NoObject { address: bits };
        assert_eq!(txn.open_read(address).unwrap_err(), refused);
        assert_eq!(txn.open_write(address, |_| panic!("opened")).unwrap_err(), refused);
        assert_eq!(txn.lend_read(address, ..).unwrap_err(), refused);
        assert_eq!(txn.lend_write(address, ..).unwrap_err(), refused);
        assert_eq!(txn.object_size(address).unwrap_err(), refused);
        assert_eq!(txn.free(address).unwrap_err(), refused);
        assert!(refused.to_string().contains(&address.to_string()), "{refused}");
        txn.commit().unwrap();
    }
    // A refusal is something that was read: if the object comes, the transaction is out of date.
    let txn = session.begin().unwrap();
    let soon = txn.alloc(4).unwrap();
    let reader = session.begin().unwrap();
    reader.open_read(soon).unwrap_err();
    reader.alloc(1).unwrap();
    txn.commit().unwrap();
    assert!(matches!(reader.commit(), Err(Error::Conflict { .. })));
    drop(session);
    fixture.close_and_check();
}

#[test]
fn a_part_is_written_and_the_rest_stays() {
    let fixture = TestRegion::new();
    let (session, other) = (fixture.region.session().unwrap(), fixture.region.session().unwrap());
    let old: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    let address = object(&session, &old);
    let mut expected = old;
    let txn = session.begin().unwrap();
    for (part, byte) in [(10..20, 1), (99_990..100_000, 2), (15..30, 3), (5..5, 4), (5..12, 5)] {
        txn.open_write_range(address, part.clone(), |bytes| bytes.fill(byte)).unwrap();
        expected[part].fill(byte);
    }
    assert_eq!(*txn.open_read_range(address, 0..40).unwrap(), expected[..40]);
    assert_eq!(*txn.open_read_range(address, 99_980..).unwrap(), expected[99_980..]);
    txn.commit().unwrap();
    assert!(read(&other, address).unwrap() == expected);

    let txn = session.begin().unwrap();
    txn.open_write_range(address, 50_000..50_001, |bytes| bytes[0] = 77).unwrap();
    expected[50_000] = 77;
    assert!(txn.open_read(address).unwrap() == expected);
    txn.commit().unwrap();
    assert!(read(&other, address).unwrap() == expected);

    let txn = session.begin().unwrap();
    let turned = std::ops::Range { start: 7, end: 3 };
    for part in [0..100_001, 100_001..100_001, turned, usize::MAX..usize::MAX] {
        for refused in [
            txn.open_read_range(address, part.clone()).unwrap_err(),
            txn.open_write_range(address, part.clone(), |_| panic!("opened")).unwrap_err(),
            txn.lend_read(address, part.clone()).unwrap_err(),
            txn.lend_write(address, part.clone()).unwrap_err(),
        ] {
            assert!(matches!(&refused, Error::BadArgument { detail } if detail.contains("100000")));
        }
    }
    assert!(txn.open_read_range(address, 0..=usize::MAX).is_err());
    txn.commit().unwrap();
    assert!(read(&other, address).unwrap() == expected);
    drop((session, other));
    fixture.close_and_check();
}

#[test]
fn of_two_writers_of_an_object_one_is_refused() {
    let fixture = TestRegion::new();
    let (session, other) = (fixture.region.session().unwrap(), fixture.region.session().unwrap());
    let (address, second) = (object(&session, b"0000"), object(&session, b"0000"));
    // Different parts of one object conflict as well: the object is the unit.
    let (one, two) = (session.begin().unwrap(), other.begin().unwrap());
    one.open_write_range(address, 0..1, |bytes| bytes[0] = b'1').unwrap();
    two.open_write_range(address, 1..2, |bytes| bytes[0] = b'2').unwrap();
    two.open_write(second, |bytes| bytes[0] = b'2').unwrap();
    one.commit().unwrap();
    let refused = two.commit().unwrap_err();
    let named = format!("object {address}");
    assert!(matches!(&refused, Error::Conflict { detail } if *detail == named), "{refused:?}");
    assert_eq!(read(&session, address).unwrap(), b"1000");
    assert_eq!(read(&session, second).unwrap(), b"0000");

    // What was read is freed meanwhile.
    let txn = session.begin().unwrap();
    txn.open_read(address).unwrap();
    txn.open_write(second, |bytes| bytes[0] = b'3').unwrap();
    other.transact::<_, Error>(|txn| txn.free(address)).unwrap();
    assert!(matches!(txn.commit(), Err(Error::Conflict { .. })));
    // And what is freed is written meanwhile.
    let txn = session.begin().unwrap();
    txn.free(second).unwrap();
    other.transact::<_, Error>(|txn| txn.open_write(second, |bytes| bytes[0] = b'4')).unwrap();
    assert!(matches!(txn.commit(), Err(Error::Conflict { .. })));
    assert_eq!(read(&session, second).unwrap(), b"4000");
    // Freed by two: once.
    let (one, two) = (session.begin().unwrap(), other.begin().unwrap());
    one.free(second).unwrap();
    two.free(second).unwrap();
    one.commit().unwrap();
    assert!(matches!(two.commit(), Err(Error::Conflict { .. })));
    assert_eq!(session.objects().unwrap(), Objects::default());
    drop((session, other));
    fixture.close_and_check();
}

#[test]
fn objects_and_records_by_key_commit_together() {
    let fixture = TestRegion::new();
    let (session, other) = (fixture.region.session().unwrap(), fixture.region.session().unwrap());
    let sockets = session.namespace("sockets", &Schema::default()).unwrap();
    let open = |txn: &Txn<'_>| -> nearstate_store::Result<Address> {
        let address = txn.alloc(64)?;
        txn.open_write(address, |bytes| bytes[0] = 9)?;
        txn.put(sockets, b"port-36412", &address.bits().to_le_bytes())?;
        Ok(address)
    };
    let txn = session.begin().unwrap();
    open(&txn).unwrap();
    drop(txn);
    assert!(session.get(sockets, b"port-36412").unwrap().is_none());
    session.transact(open).unwrap();
    let found = other.transact::<_, Error>(|txn| {
        let record = txn.get(sockets, b"port-36412")?.unwrap();
        let bits = u64::from_le_bytes(record.bytes().try_into().unwrap());
        let address = Address::from_bits(bits).unwrap();
        let first = txn.open_read(address)?[0];
        txn.delete(sockets, b"port-36412")?;
        txn.free(address)?;
        Ok(first)
    });
    assert_eq!(found, Ok(9));
    assert!(session.get(sockets, b"port-36412").unwrap().is_none());
    assert_eq!(session.objects().unwrap(), Objects::default());
    drop((session, other));
    fixture.close_and_check();
}

#[test]
fn a_function_that_writes_an_object_may_use_the_others() {
    let fixture = TestRegion::new();
    let session = fixture.region.session().unwrap();
    let (one, two) = (object(&session, b"one"), object(&session, b"two"));
    let txn = session.begin().unwrap();
    txn.open_write(one, |bytes| {
        bytes.copy_from_slice(&txn.open_read(two).unwrap());
        txn.open_write(two, |others| others.fill(b'x')).unwrap();
        let again = [
            txn.open_write(one, |_| panic!("opened twice")).unwrap_err(),
            txn.open_read(one).map(drop).unwrap_err(),
            txn.lend_write(one, ..).map(drop).unwrap_err(),
        ];
        for refused in again {
            assert!(matches!(refused, Error::BadArgument { .. }), "{refused}");
        }
    })
    .unwrap();
    // If the function panics, the object is released.
    let caught = catch_unwind(AssertUnwindSafe(|| {
        txn.open_write(one, |bytes| {
            bytes[0] = b'T';
            panic!("on purpose");
        })
    }));
    assert!(caught.is_err());
    assert_eq!(*txn.open_read(one).unwrap(), *b"Two");
    txn.commit().unwrap();
    assert_eq!(read(&session, one).unwrap(), b"Two");
    assert_eq!(read(&session, two).unwrap(), b"xxx");
    drop(session);
    fixture.close_and_check();
}

#[test]
fn an_object_begins_where_any_type_may_begin_and_does_not_move() {
    let fixture = TestRegion::new();
    let session = fixture.region.session().unwrap();
    let addresses: Vec<Address> =
        (0..50_usize).map(|number| object(&session, &vec![7; number * 13])).collect();
    let txn = session.begin().unwrap();
    let stored: Vec<_> =
        addresses.iter().map(|address| txn.lend_read(*address, ..).unwrap()).collect();
    let copied: Vec<_> =
        addresses.iter().map(|address| txn.lend_write(*address, ..).unwrap()).collect();
    let made: Vec<Address> = (0..2000).map(|_| txn.alloc(40).unwrap()).collect();
    for (number, address) in addresses.iter().enumerate() {
        assert_eq!(copied[number].len(), number * 13);
        assert!(stored[number].cast::<u8>().addr().is_multiple_of(16));
        assert!(copied[number].cast::<u8>().addr().is_multiple_of(16));
        assert_eq!(txn.lend_write(*address, ..).unwrap(), copied[number]);
        assert_eq!(txn.lend_read(*address, ..).unwrap(), copied[number].cast_const());
        if number > 0 {
            let part = txn.lend_write(*address, 9..12).unwrap();
            assert_eq!(part.cast::<u8>(), copied[number].cast::<u8>().wrapping_add(9));
        }
    }
    for address in &made {
        assert!(txn.lend_write(*address, ..).unwrap().cast::<u8>().addr().is_multiple_of(16));
    }
    txn.commit().unwrap();
    assert_eq!(session.objects().unwrap().count, 2050);
    drop(session);
    fixture.close_and_check();
}

#[test]
fn sizes_have_bounds() {
    let fixture = TestRegion::new();
    let session = fixture.region.session().unwrap();
    let empty = object(&session, b"");
    assert_eq!(read(&session, empty).unwrap(), b"");
    let large = session.transact(|txn| txn.alloc(70 << 20)).unwrap();
    let tail = session
        .transact::<_, Error>(|txn| Ok(txn.open_read_range(large, (70 << 20) - 4..)?.to_vec()));
    assert_eq!(tail.unwrap(), [0; 4]);
    let txn = session.begin().unwrap();
    let refused = txn.alloc(limits::VALUE_BYTES_MAX + 1);
    assert_eq!(refused, Err(Error::ValueTooLarge { bytes: limits::VALUE_BYTES_MAX + 1 }));
    txn.alloc(limits::VALUE_BYTES_MAX).unwrap();
    txn.alloc(limits::TRANSACTION_BYTES_MAX - limits::VALUE_BYTES_MAX - (30 << 20)).unwrap();
    let refused = txn.open_write(large, |_| panic!("opened")).unwrap_err();
    assert!(matches!(refused, Error::TransactionTooLarge { .. }), "{refused}");
    // What does not fit into the region is refused at the commit, and leaves nothing.
    let refused = txn.commit().unwrap_err();
    assert!(matches!(refused, Error::Full { .. }), "{refused}");
    assert_eq!(session.objects().unwrap(), Objects { count: 2, bytes: 70 << 20 });
    drop(session);
    fixture.close_and_check();
}

#[test]
fn the_namespace_of_objects_is_the_regions_own() {
    let fixture = TestRegion::new();
    let session = fixture.region.session().unwrap();
    assert_eq!(fixture.region.objects().unwrap(), Objects::default());
    assert!(fixture.region.inspect().unwrap().namespaces.is_empty());
    object(&session, b"x");
    assert!(fixture.region.inspect().unwrap().namespaces.is_empty());
    for name in ["\u{1}objects", "\u{1}", "\u{1}mine"] {
        let refused = session.namespace(name, &Schema::default()).unwrap_err();
        assert!(matches!(refused, Error::BadArgument { .. }), "{refused}");
    }
    session.namespace("mine", &Schema::default()).unwrap();
    assert_eq!(fixture.region.inspect().unwrap().namespaces.len(), 1);
    drop(session);
    fixture.close_and_check();
}

#[test]
fn the_commit_stream_has_each_object_whole() {
    let fixture = TestRegion::new();
    let (session, other) = (fixture.region.session().unwrap(), fixture.region.session().unwrap());
    let sockets = session.namespace("sockets", &Schema::default()).unwrap();
    let address = object(&session, b"0123456789");
    session.stream_objects(WhenFull::LoseOldest).unwrap();
    session.stream(sockets, WhenFull::LoseOldest).unwrap();
    session
        .transact(|txn| {
            txn.open_write_range(address, 2..4, |bytes| bytes.fill(b'x'))?;
            txn.put(sockets, b"port", b"open")
        })
        .unwrap();
    session.transact(|txn| txn.free(address)).unwrap();
    let mut stream = other.commit_stream().unwrap();
    let Some(StreamItem::Transaction(entry)) = stream.next().unwrap() else {
        panic!("nothing told")
    };
    let records: Vec<_> = entry.records().map(Result::unwrap).collect();
    assert_eq!(other.object_of(&records[0]), Ok(Some(address)));
    assert_eq!(
        records[0].change,
        StreamedChange::Put { value: b"01xx456789", meta: &[], is_set: false }
    );
    assert_eq!(other.object_of(&records[1]), Ok(None));
    let Some(StreamItem::Transaction(entry)) = stream.next().unwrap() else {
        panic!("nothing told")
    };
    let records: Vec<_> = entry.records().map(Result::unwrap).collect();
    assert_eq!(other.object_of(&records[0]), Ok(Some(address)));
    assert_eq!(records[0].change, StreamedChange::Deleted { is_expiry: false });
    assert!(stream.next().unwrap().is_none());
    drop(stream);
    drop((session, other));
    fixture.close_and_check();
}

/// Nodes of two rings, with `next` and `previous` in the first 16 bytes. Threads move nodes between
/// the rings, allocate nodes and free nodes. Every traversal finds both rings intact.
mod rings {
    use super::*;

    const ROUNDS: u64 = 4000;

    fn link(txn: &Txn<'_>, from: Address, to: Address) -> Result<(), Error> {
        txn.open_write_range(from, 0..8, |b| b.copy_from_slice(&to.bits().to_le_bytes()))?;
        txn.open_write_range(to, 8..16, |b| b.copy_from_slice(&from.bits().to_le_bytes()))
    }

    fn links(txn: &Txn<'_>, node: Address) -> Result<[Address; 2], Error> {
        let bytes = txn.open_read_range(node, 0..16)?;
        let at = |from: usize| {
            let bits = u64::from_le_bytes(bytes[from..from + 8].try_into().unwrap());
            Address::from_bits(bits).unwrap()
        };
        Ok([at(0), at(8)])
    }

    fn ring(txn: &Txn<'_>) -> Result<Address, Error> {
        let node = txn.alloc(64)?;
        link(txn, node, node)?;
        Ok(node)
    }

    fn insert(txn: &Txn<'_>, head: Address, node: Address) -> Result<(), Error> {
        let [first, _] = links(txn, head)?;
        link(txn, node, first)?;
        link(txn, head, node)
    }

    fn remove(txn: &Txn<'_>, node: Address) -> Result<(), Error> {
        let [next, previous] = links(txn, node)?;
        link(txn, previous, next)
    }

    fn walk(txn: &Txn<'_>, head: Address) -> Result<Vec<Address>, Error> {
        let (mut at, mut all) = (head, Vec::new());
        loop {
            let [next, _] = links(txn, at)?;
            assert_eq!(links(txn, next)?[1], at, "the way back");
            if next == head {
                return Ok(all);
            }
            all.push(next);
            assert!(all.len() < 1000, "a ring without end");
            at = next;
        }
    }

    fn step(txn: &Txn<'_>, heads: [Address; 2], rng: u64) -> Result<i64, Error> {
        let side = (rng & 1) as usize;
        let [first, _] = links(txn, heads[side])?;
        match (first == heads[side], rng >> 8 & 7) {
            (true, _) | (_, 0) => {
                let node = txn.alloc(16 + (rng >> 16 & 127) as usize)?;
                insert(txn, heads[side], node)?;
                Ok(1)
            }
            (_, 1) => {
                remove(txn, first)?;
                txn.free(first)?;
                Ok(-1)
            }
            _ => {
                remove(txn, first)?;
                insert(txn, heads[1 - side], first)?;
                Ok(0)
            }
        }
    }

    #[test]
    fn linked_objects_stay_whole_while_threads_relink_them() {
        let fixture = TestRegion::new();
        let session = fixture.region.session().unwrap();
        let heads = session.transact::<_, Error>(|txn| Ok([ring(txn)?, ring(txn)?])).unwrap();
        let made: i64 = std::thread::scope(|scope| {
            let workers: Vec<_> = (1..4_u64)
                .map(|thread| {
                    let fixture = &fixture;
                    scope.spawn(move || {
                        let session = fixture.region.session().unwrap();
                        let mut rng = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(thread);
                        let mut made = 0;
                        for round in 0..ROUNDS {
                            rng ^= rng << 13;
                            rng ^= rng >> 7;
                            rng ^= rng << 17;
                            made += session.transact(|txn| step(txn, heads, rng)).unwrap();
                            if round % 64 == 0 {
                                let txn = session.begin().unwrap();
                                // A walk that others outrun is refused; one that ends is whole.
                                let seen = walk(&txn, heads[0])
                                    .and_then(|all| Ok((all, walk(&txn, heads[1])?)));
                                match seen {
                                    Ok((one, two)) => {
                                        let all: BTreeSet<_> = one.iter().chain(&two).collect();
                                        assert_eq!(all.len(), one.len() + two.len());
                                    }
                                    Err(error) => {
                                        assert!(matches!(error, Error::Conflict { .. }), "{error}");
                                    }
                                }
                            }
                        }
                        made
                    })
                })
                .collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).sum()
        });
        let all = session
            .transact::<_, Error>(|txn| Ok([walk(txn, heads[0])?, walk(txn, heads[1])?].concat()))
            .unwrap();
        assert_eq!(i64::try_from(all.len()), Ok(made));
        assert_eq!(session.objects().unwrap().count, all.len() as u64 + 2);
        drop(session);
        fixture.close_and_check();
    }
}
