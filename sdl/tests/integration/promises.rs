//! What the operations promise on every back-end: one function for each promise. The suites of
//! several crates run them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use nearstate_sdl::{
    ErrorKind, KeySet, RecordMap, SyncStorage, WRITE_BYTES_MAX, WRITE_RECORDS_MAX,
};

const NS: &str = "session";

fn keys(of: &[&[u8]]) -> KeySet {
    of.iter().map(|key| key.to_vec()).collect()
}

fn records(of: &[(&[u8], &[u8])]) -> RecordMap {
    of.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
}

pub(crate) fn values_are_read_back_and_absent_keys_are_omitted(sdl: &mut dyn SyncStorage) {
    assert_eq!(sdl.get(NS, &[b"a"]).unwrap(), records(&[]));
    sdl.set(NS, &[(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]).unwrap();
    let read = sdl.get(NS, &[b"c", b"none", b"a"]).unwrap();
    assert_eq!(read, records(&[(b"a", b"1"), (b"c", b"3")]));
    sdl.set(NS, &[(b"a", b"first"), (b"a", b"last")]).unwrap();
    assert_eq!(sdl.get(NS, &[b"a"]).unwrap(), records(&[(b"a", b"last")]));
    sdl.set(NS, &[]).unwrap();
    assert_eq!(sdl.get(NS, &[]).unwrap(), records(&[]));
}

pub(crate) fn a_visit_goes_in_the_order_of_the_keys(sdl: &mut dyn SyncStorage) {
    let many: Vec<Vec<u8>> = (0..40_u8).map(|n| vec![b'k', n]).collect();
    let pairs: Vec<(&[u8], &[u8])> = many.iter().map(|key| (&key[..], &key[1..])).collect();
    sdl.set(NS, &pairs).unwrap();
    let asked: Vec<&[u8]> = many.iter().rev().map(Vec::as_slice).collect();
    let mut met = Vec::new();
    sdl.visit(NS, &asked, &mut |key, value| met.push((key.to_vec(), value.to_vec()))).unwrap();
    let expected: Vec<_> = many.iter().rev().map(|key| (key.clone(), key[1..].to_vec())).collect();
    assert_eq!(met, expected);
}

pub(crate) fn every_byte_counts(sdl: &mut dyn SyncStorage) {
    let all: Vec<u8> = (0..=255).collect();
    let odd: &[(&[u8], &[u8])] = &[
        (b"empty", b""),
        (b"", b"under the empty key"),
        (b"nul", b"\0"),
        (b"nuls", b"a\0b\0"),
        (b"k\0", b"key with a NUL at its end"),
        (b"k\0\0", b"and with two"),
        (b"k", b"and without"),
        (b"a,b", b"comma"),
        (b"{x},y", b"braces"),
        (b"\r\n$5\r\n", b"*1\r\n"),
        (&all, &all),
        (b"\xff\xfe", b"not text"),
    ];
    sdl.set(NS, odd).unwrap();
    let asked: Vec<&[u8]> = odd.iter().map(|(key, _)| *key).collect();
    assert_eq!(sdl.get(NS, &asked).unwrap(), records(odd));
    assert_eq!(sdl.list_keys(NS, b"*").unwrap(), keys(&asked));
    sdl.remove(NS, &[b"k\0"]).unwrap();
    let left = sdl.get(NS, &[b"k", b"k\0", b"k\0\0"]).unwrap();
    assert_eq!(left, records(&[(b"k", b"and without"), (b"k\0\0", b"and with two")]));
}

pub(crate) fn set_if_compares_every_byte(sdl: &mut dyn SyncStorage) {
    assert!(!sdl.set_if(NS, b"k", b"", b"x").unwrap(), "an absent record is not an empty one");
    sdl.set(NS, &[(b"k", b"A\0B")]).unwrap();
    assert!(!sdl.set_if(NS, b"k", b"A\0C", b"x").unwrap(), "bytes after a NUL count");
    assert!(!sdl.set_if(NS, b"k", b"A", b"x").unwrap());
    assert!(!sdl.set_if(NS, b"k", b"A\0B\0", b"x").unwrap());
    assert_eq!(sdl.get(NS, &[b"k"]).unwrap(), records(&[(b"k", b"A\0B")]));
    assert!(sdl.set_if(NS, b"k", b"A\0B", b"").unwrap());
    assert!(sdl.set_if(NS, b"k", b"", b"\0").unwrap());
    assert_eq!(sdl.get(NS, &[b"k"]).unwrap(), records(&[(b"k", b"\0")]));
}

pub(crate) fn set_if_not_exists_writes_once(sdl: &mut dyn SyncStorage) {
    assert!(sdl.set_if_not_exists(NS, b"k", b"").unwrap());
    assert!(!sdl.set_if_not_exists(NS, b"k", b"x").unwrap(), "an empty value exists");
    assert_eq!(sdl.get(NS, &[b"k"]).unwrap(), records(&[(b"k", b"")]));
    sdl.remove(NS, &[b"k"]).unwrap();
    assert!(sdl.set_if_not_exists(NS, b"k", b"y").unwrap());
}

pub(crate) fn remove_takes_what_is_there(sdl: &mut dyn SyncStorage) {
    sdl.set(NS, &[(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]).unwrap();
    sdl.remove(NS, &[b"a", b"never", b"c", b""]).unwrap();
    sdl.remove(NS, &[]).unwrap();
    assert_eq!(sdl.list_keys(NS, b"*").unwrap(), keys(&[b"b"]));
}

pub(crate) fn remove_if_compares_every_byte(sdl: &mut dyn SyncStorage) {
    assert!(!sdl.remove_if(NS, b"k", b"").unwrap());
    sdl.set(NS, &[(b"k", b"A\0B")]).unwrap();
    assert!(!sdl.remove_if(NS, b"k", b"A\0C").unwrap());
    assert!(!sdl.remove_if(NS, b"k", b"A").unwrap());
    assert!(sdl.remove_if(NS, b"k", b"A\0B").unwrap());
    assert_eq!(sdl.get(NS, &[b"k"]).unwrap(), records(&[]));
}

pub(crate) fn keys_are_listed_by_glob_and_by_prefix(sdl: &mut dyn SyncStorage) {
    let there: &[&[u8]] = &[b"ue-1", b"ue-2", b"ue-12", b"ue*", b"ue[1]", b"x\0y", b"u"];
    let pairs: Vec<(&[u8], &[u8])> = there.iter().map(|key| (*key, &b"v"[..])).collect();
    sdl.set(NS, &pairs).unwrap();
    let globs: &[(&[u8], &[&[u8]])] = &[
        (b"*", there),
        (b"ue-?", &[b"ue-1", b"ue-2"]),
        (b"ue-[^1]", &[b"ue-2"]),
        (b"ue-[1-2]*", &[b"ue-1", b"ue-2", b"ue-12"]),
        (b"ue\\*", &[b"ue*"]),
        (b"x\0?", &[b"x\0y"]),
        (b"ue", &[]),
        (b"", &[]),
    ];
    for (glob, expected) in globs {
        assert_eq!(sdl.list_keys(NS, glob).unwrap(), keys(expected), "{glob:?}");
    }
    let prefixes: &[(&[u8], &[&[u8]])] = &[
        (b"", there),
        (b"ue-1", &[b"ue-1", b"ue-12"]),
        (b"ue*", &[b"ue*"]),
        (b"ue[1", &[b"ue[1]"]),
        (b"x\0", &[b"x\0y"]),
        (b"\\", &[]),
    ];
    for (prefix, expected) in prefixes {
        assert_eq!(sdl.find_keys(NS, prefix).unwrap(), keys(expected), "{prefix:?}");
    }
}

pub(crate) fn namespaces_do_not_see_each_other(sdl: &mut dyn SyncStorage) {
    let names = ["a", "a*", "*", "?", "[a]", "a\\", "ab"];
    for name in names {
        sdl.set(name, &[(b"id1", name.as_bytes())]).unwrap();
    }
    for name in names {
        assert_eq!(sdl.get(name, &[b"id1"]).unwrap(), records(&[(b"id1", name.as_bytes())]));
        assert_eq!(sdl.list_keys(name, b"*").unwrap(), keys(&[b"id1"]), "{name}");
    }
    sdl.remove_all("a*").unwrap();
    sdl.remove_all("?").unwrap();
    for name in names {
        let left = usize::from(!["a*", "?"].contains(&name));
        assert_eq!(sdl.list_keys(name, b"*").unwrap().len(), left, "{name}");
    }
}

pub(crate) fn remove_all_empties_a_large_namespace(sdl: &mut dyn SyncStorage) {
    let many: Vec<Vec<u8>> = (0..3500_u32).map(|n| n.to_be_bytes().to_vec()).collect();
    let pairs: Vec<(&[u8], &[u8])> = many.iter().map(|key| (&key[..], &b"v"[..])).collect();
    sdl.set(NS, &pairs).unwrap();
    sdl.set("other", &[(b"k", b"v")]).unwrap();
    assert_eq!(sdl.list_keys(NS, b"*").unwrap(), many.into_iter().collect::<BTreeSet<_>>());
    sdl.remove_all(NS).unwrap();
    assert_eq!(sdl.list_keys(NS, b"*").unwrap(), keys(&[]));
    assert_eq!(sdl.list_keys("other", b"*").unwrap(), keys(&[b"k"]));
    sdl.remove_all(NS).unwrap();
}

pub(crate) fn invalid_arguments_are_rejected_before_anything_is_written(sdl: &mut dyn SyncStorage) {
    let long = vec![b'k'; 4097];
    let pairs = [(&b"good"[..], &b"1"[..]), (&long, b"2")];
    assert_eq!(sdl.set(NS, &pairs).unwrap_err().kind, ErrorKind::RejectedBySdl);
    assert_eq!(sdl.set_if(NS, &long, b"", b"").unwrap_err().kind, ErrorKind::RejectedBySdl);
    assert_eq!(sdl.set_if_not_exists(NS, &long, b"").unwrap_err().kind, ErrorKind::RejectedBySdl);
    assert_eq!(sdl.list_keys(NS, b"*").unwrap(), keys(&[]));
    assert_eq!(
        sdl.get(NS, &[b"", &long]).unwrap(),
        records(&[]),
        "a read of an invalid key finds nothing"
    );
    sdl.set(NS, &[(&long[..4096], b"as long as it may be")]).unwrap();
    assert_eq!(sdl.list_keys(NS, b"*").unwrap(), keys(&[&long[..4096]]));
}

pub(crate) fn names_that_are_no_namespace_are_refused_by_every_operation(
    sdl: &mut dyn SyncStorage,
) {
    for name in ["", "a,b", "a{", "}a", "a\0", &"n".repeat(256)] {
        let answers = [
            sdl.is_ready(name).map(|_| ()),
            sdl.wait_ready(name, Duration::ZERO),
            sdl.set(name, &[(b"k", b"v")]),
            sdl.set_if(name, b"k", b"v", b"w").map(|_| ()),
            sdl.set_if_not_exists(name, b"k", b"v").map(|_| ()),
            sdl.get(name, &[b"k"]).map(|_| ()),
            sdl.remove(name, &[b"k"]),
            sdl.remove_if(name, b"k", b"v").map(|_| ()),
            sdl.list_keys(name, b"*").map(|_| ()),
            sdl.find_keys(name, b"").map(|_| ()),
            sdl.remove_all(name),
        ];
        for answer in answers {
            assert_eq!(answer.unwrap_err().kind, ErrorKind::RejectedBySdl, "{name:?}");
        }
    }
}

pub(crate) fn large_values_come_back_whole(sdl: &mut dyn SyncStorage) {
    let value: Vec<u8> = (0..5_000_000_u32).map(|n| n.to_le_bytes()[0] ^ 0x5a).collect();
    sdl.set(NS, &[(b"large", &value)]).unwrap();
    assert!(sdl.get(NS, &[b"large"]).unwrap() == BTreeMap::from([(b"large".to_vec(), value)]));
}

pub(crate) fn it_is_ready(sdl: &mut dyn SyncStorage) {
    sdl.wait_ready(NS, Duration::from_secs(120)).unwrap();
    assert!(sdl.is_ready(NS).unwrap());
}

/// Two instances increment a counter with `set_if`. No increment is lost or applied twice.
pub(crate) fn conditional_writes_of_two_instances_lose_nothing(
    open: &(dyn Fn() -> Box<dyn SyncStorage> + Sync),
) {
    const STEPS: u32 = 500;
    let count = || {
        let mut sdl = open();
        for _ in 0..STEPS {
            loop {
                let old = sdl.get(NS, &[b"count"]).unwrap().remove(&b"count"[..]).unwrap();
                let number: u32 = std::str::from_utf8(&old).unwrap().parse().unwrap();
                let new = (number + 1).to_string();
                if sdl.set_if(NS, b"count", &old, new.as_bytes()).unwrap() {
                    break;
                }
            }
        }
    };
    open().set(NS, &[(b"count", b"0")]).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(count);
        scope.spawn(count);
    });
    let end = open().get(NS, &[b"count"]).unwrap();
    assert_eq!(end, records(&[(b"count", (2 * STEPS).to_string().as_bytes())]));
}

/// The number in a record.
fn number(sdl: &mut dyn SyncStorage, key: &[u8]) -> Option<u32> {
    let value = sdl.get(NS, &[key]).unwrap().remove(key)?;
    Some(u32::from_le_bytes(value.try_into().unwrap()))
}

/// One instance sets two records to ascending numbers. Another one reads them one after the other,
/// in both orders. The second read never returns an older number.
pub(crate) fn a_reader_sees_all_of_a_set_or_nothing(
    open: &(dyn Fn() -> Box<dyn SyncStorage> + Sync),
) {
    const SETS: u32 = 2000;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut sdl = open();
            for n in 1..=SETS {
                let n = n.to_le_bytes();
                sdl.set(NS, &[(b"a", &n), (b"b", &n)]).unwrap();
            }
        });
        let mut sdl = open();
        let mut last = 0;
        while last < SETS {
            for (first, second) in [(b"a", b"b"), (b"b", b"a")] {
                let first = number(&mut *sdl, first).unwrap_or(0);
                last = number(&mut *sdl, second).unwrap_or(0);
                assert!(last >= first, "{first} was read, and then {last}");
            }
        }
    });
}

fn set_both(sdl: &mut dyn SyncStorage, n: u32) {
    let n = n.to_le_bytes();
    sdl.set(NS, &[(b"a", &n), (b"b", &n)]).unwrap();
}

fn remove_or_set(sdl: &mut dyn SyncStorage, n: u32) {
    if n.is_multiple_of(2) {
        sdl.remove(NS, &[b"a", b"b"]).unwrap();
    } else {
        set_both(sdl, n + 1_000_000);
    }
}

/// In each round two instances write both records at the same time. Afterwards both records are of
/// the same writer, or both are absent.
pub(crate) fn writes_of_several_records_do_not_mix(
    open: &(dyn Fn() -> Box<dyn SyncStorage> + Sync),
) {
    const ROUNDS: u32 = 200;
    let barrier = std::sync::Barrier::new(3);
    let run = |write: fn(&mut dyn SyncStorage, u32)| {
        let mut sdl = open();
        for round in 0..ROUNDS {
            barrier.wait();
            write(&mut *sdl, round);
            barrier.wait();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| run(set_both));
        scope.spawn(|| run(remove_or_set));
        let mut sdl = open();
        for round in 0..ROUNDS {
            barrier.wait();
            barrier.wait();
            let records = sdl.get(NS, &[b"a", b"b"]).unwrap();
            assert_eq!(records.get(&b"a"[..]), records.get(&b"b"[..]), "round {round}");
        }
    });
}

pub(crate) fn a_write_above_the_limits_is_refused_and_changes_nothing(sdl: &mut dyn SyncStorage) {
    let many: Vec<[u8; 4]> = (0..=4096_u32).map(u32::to_le_bytes).collect();
    let pairs: Vec<(&[u8], &[u8])> = many.iter().map(|key| (&key[..], &b"v"[..])).collect();
    let named: Vec<&[u8]> = many.iter().map(|key| &key[..]).collect();
    assert_eq!(pairs.len(), WRITE_RECORDS_MAX + 1);
    let error = sdl.set(NS, &pairs).unwrap_err();
    assert_eq!(error.kind, ErrorKind::RejectedBySdl, "{error}");
    assert!(error.to_string().contains("4096 records"), "{error}");
    assert_eq!(sdl.list_keys(NS, b"*").unwrap(), keys(&[]));
    sdl.set(NS, &pairs[1..]).unwrap();
    assert_eq!(sdl.list_keys(NS, b"*").unwrap().len(), WRITE_RECORDS_MAX);
    let error = sdl.remove(NS, &named).unwrap_err();
    assert_eq!(error.kind, ErrorKind::RejectedBySdl, "{error}");
    assert_eq!(sdl.list_keys(NS, b"*").unwrap().len(), WRITE_RECORDS_MAX);
    sdl.remove(NS, &named[1..]).unwrap();
    assert_eq!(sdl.list_keys(NS, b"*").unwrap(), keys(&[]));
    let half = vec![b'v'; WRITE_BYTES_MAX / 2];
    // More than a value can have.
    let large = vec![b'v'; 2 * WRITE_BYTES_MAX + 1];
    for refused in [sdl.set_if(NS, b"a", &large, b"v"), sdl.remove_if(NS, b"a", &large)] {
        assert_eq!(refused.unwrap_err().kind, ErrorKind::RejectedBySdl);
    }
    let error = sdl.set(NS, &[(b"a", &half), (b"b", &half)]).unwrap_err();
    assert_eq!(error.kind, ErrorKind::RejectedBySdl, "{error}");
    assert_eq!(sdl.list_keys(NS, b"*").unwrap(), keys(&[]));
}

/// Passes every promise about an empty storage to a macro.
macro_rules! with_every_promise {
    ($then:ident) => {
        $then! {
            values_are_read_back_and_absent_keys_are_omitted
            a_visit_goes_in_the_order_of_the_keys
            every_byte_counts
            set_if_compares_every_byte
            set_if_not_exists_writes_once
            remove_takes_what_is_there
            remove_if_compares_every_byte
            keys_are_listed_by_glob_and_by_prefix
            namespaces_do_not_see_each_other
            remove_all_empties_a_large_namespace
            invalid_arguments_are_rejected_before_anything_is_written
            names_that_are_no_namespace_are_refused_by_every_operation
            large_values_come_back_whole
            a_write_above_the_limits_is_refused_and_changes_nothing
            it_is_ready
        }
    };
}
pub(crate) use with_every_promise;

/// Passes every promise about several instances to a macro.
macro_rules! with_every_shared_promise {
    ($then:ident) => {
        $then! {
            conditional_writes_of_two_instances_lose_nothing
            a_reader_sees_all_of_a_set_or_nothing
            writes_of_several_records_do_not_mix
        }
    };
}
pub(crate) use with_every_shared_promise;
