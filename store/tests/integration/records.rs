//! Operations on records, compared with a model and with each other.

use std::collections::BTreeMap;

use nearstate_store::{
    BlockChange, Condition, CreateOptions, Error, Kind, Outcome, Pattern, Region, Schema,
    TagSchema, View,
};
use proptest::prelude::*;

use crate::fixture::{TestFolder, checked, clean};

fn options(bytes_max: u64) -> CreateOptions {
    CreateOptions { bytes_max, ..CreateOptions::default() }
}

#[test]
fn a_record_is_put_read_replaced_and_deleted() {
    let folder = TestFolder::new();
    let region = Region::create(&folder.path, &options(64 << 20)).unwrap();
    let session = region.session().unwrap();
    let ns = session.namespace("ue", &Schema::default()).unwrap();
    assert!(session.get(ns, b"a").unwrap().is_none());
    let first = session.put(ns, b"a", b"one").unwrap();
    let view = session.get(ns, b"a").unwrap().unwrap();
    let second = session.put(ns, b"a", b"two\0with nul").unwrap();
    assert!(second > first);
    assert_eq!(view.bytes(), b"one", "a view stays as it was");
    assert_eq!(session.get(ns, b"a").unwrap().unwrap().bytes(), b"two\0with nul");
    assert!(session.delete(ns, b"a").unwrap());
    assert!(!session.delete(ns, b"a").unwrap());
    let third = session.put(ns, b"a", b"").unwrap();
    assert!(third > second, "versions of a key never repeat");
    assert_eq!(session.get(ns, b"a").unwrap().unwrap().bytes(), b"");
    assert_eq!(session.count(ns).unwrap(), 1);
    drop(view);
    drop(session);
    drop(region);
    clean(&folder.path);
}

#[test]
fn conditions_are_checked_against_the_current_record() {
    let folder = TestFolder::new();
    let region = Region::create(&folder.path, &options(64 << 20)).unwrap();
    let session = region.session().unwrap();
    let ns = session.namespace("sdl", &Schema::default()).unwrap();
    let put = |value: &[u8], c| session.put_if(ns, b"k", value, c).unwrap();
    assert_eq!(put(b"x", Condition::Present), Outcome::Refused { current: None });
    assert!(matches!(put(b"a\0b", Condition::Absent), Outcome::Done { .. }));
    assert!(matches!(put(b"x", Condition::Absent), Outcome::Refused { current: Some(_) }));
    assert!(matches!(put(b"x", Condition::Value(b"a\0c")), Outcome::Refused { .. }));
    assert!(matches!(put(b"x", Condition::Value(b"a")), Outcome::Refused { .. }));
    let Outcome::Done { version } = put(b"y", Condition::Value(b"a\0b")) else { panic!() };
    assert!(matches!(put(b"z", Condition::Version(version - 1)), Outcome::Refused { .. }));
    assert!(matches!(put(b"z", Condition::Version(version)), Outcome::Done { .. }));
    let gone = session.delete_if(ns, b"k", Condition::Value(b"y")).unwrap();
    assert!(matches!(gone, Outcome::Refused { .. }));
    let gone = session.delete_if(ns, b"k", Condition::Value(b"z")).unwrap();
    assert!(matches!(gone, Outcome::Done { .. }));
    drop((session, region));
    clean(&folder.path);
}

#[test]
fn sizes_from_nothing_to_64_mib_and_keys_to_4_kib() {
    let folder = TestFolder::new();
    let region = Region::create(&folder.path, &options(1 << 30)).unwrap();
    let session = region.session().unwrap();
    let ns = session.namespace("big", &Schema::default()).unwrap();
    let mut out = Vec::new();
    for bytes in [0, 1, 63, 64, 1024, 4096, 65_536, 1 << 20, 5_000_000, 64 << 20] {
        for round in 0..4_u8 {
            let value: Vec<u8> = (0..bytes).map(|i| (i as u8).wrapping_add(round)).collect();
            session.put(ns, b"k", &value).unwrap();
            session.get_copy(ns, b"k", &mut out).unwrap();
            assert!(out == value, "{bytes} bytes, round {round}");
        }
    }
    for bytes in [1, 20, 255, 1024, 4096] {
        let key = vec![b'k'; bytes];
        session.put(ns, &key, b"v").unwrap();
        assert_eq!(session.get(ns, &key).unwrap().unwrap().key(), key);
    }
    session.put(ns, b"", b"an empty key is a key").unwrap();
    assert!(matches!(session.put(ns, &[1; 4097], b"v"), Err(Error::KeyTooLarge { .. })));
    drop((session, region));
    clean(&folder.path);
}

fn change<'a>(name: &'a str, bytes: Option<&'a [u8]>) -> BlockChange<'a> {
    BlockChange { name, bytes }
}

#[test]
fn a_patch_carries_only_what_changes() {
    let folder = TestFolder::new();
    let region = Region::create(&folder.path, &options(64 << 20)).unwrap();
    let session = region.session().unwrap();
    let ns = session.namespace("ue", &Schema { kind: Kind::Blocks, ..Schema::default() }).unwrap();
    let big = vec![7_u8; 1 << 20];
    let all = [change("nas", Some(&b"small"[..])), change("config", Some(&big[..]))];
    session.patch(ns, b"ue1", &all, Condition::Absent).unwrap();
    let taken = region.inspect().unwrap().bytes_taken;
    let start = session.get(ns, b"ue1").unwrap().unwrap().block("config").unwrap().as_ptr();
    for round in 0..1000_u32 {
        let small = round.to_le_bytes();
        session.patch(ns, b"ue1", &[change("nas", Some(&small[..]))], Condition::Always).unwrap();
    }
    let view = session.get(ns, b"ue1").unwrap().unwrap();
    assert_eq!(view.block("nas").unwrap(), 999_u32.to_le_bytes());
    assert_eq!(view.block("config").unwrap(), big);
    assert_eq!(view.block("config").unwrap().as_ptr(), start, "the block was not copied");
    assert!(region.inspect().unwrap().bytes_taken - taken < 1 << 20);
    drop(view);
    session.patch(ns, b"ue1", &[change("config", None)], Condition::Present).unwrap();
    let view = session.get(ns, b"ue1").unwrap().unwrap();
    assert_eq!(view.blocks().map(|(name, _)| name).collect::<Vec<_>>(), ["nas"]);
    drop(view);
    assert!(session.put(ns, b"ue1", b"v").is_err());
    session.delete(ns, b"ue1").unwrap();
    drop((session, region));
    clean(&folder.path);
}

#[test]
fn a_hundred_thousand_records_are_walked_listed_counted_and_batched() {
    let folder = TestFolder::new();
    let region = Region::create(&folder.path, &options(256 << 20)).unwrap();
    let session = region.session().unwrap();
    let ns = session.namespace("ue", &Schema::default()).unwrap();
    let other = session.namespace("other", &Schema::default()).unwrap();
    let key = |i: u32| format!("imsi-{i:015}").into_bytes();
    for i in 0..100_000 {
        session.put(ns, &key(i), &i.to_le_bytes()).unwrap();
    }
    session.put(other, b"imsi-x", b"").unwrap();
    assert_eq!(session.count(ns).unwrap(), 100_000);
    assert_eq!(session.count(other).unwrap(), 1);
    let mut seen = vec![0_u8; 100_000];
    let mut scan = session.scan(ns).unwrap();
    while let Some(view) = scan.next().unwrap() {
        seen[u32::from_le_bytes(view.bytes().try_into().unwrap()) as usize] += 1;
    }
    assert!(seen.iter().all(|n| *n == 1));
    let mut found = 0;
    session.list(ns, Pattern::Prefix(b"imsi-0000000000012"), |_| found += 1).unwrap();
    assert_eq!(found, 100);
    found = 0;
    session.list(ns, Pattern::Glob(b"imsi-*1234?"), |_| found += 1).unwrap();
    assert_eq!(found, 10);
    let keys: Vec<Vec<u8>> = (0..200_000).step_by(777).map(key).collect();
    let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let mut hits = 0;
    session
        .get_batch(ns, &keys, |index, view| {
            let expected = index as u32 * 777;
            match view {
                Some(view) => {
                    assert_eq!(view.bytes(), expected.to_le_bytes());
                    hits += 1;
                }
                None => assert!(expected >= 100_000),
            }
        })
        .unwrap();
    assert_eq!(hits, 129);
    for i in 0..100_000 {
        assert!(session.delete(ns, &key(i)).unwrap());
    }
    assert_eq!(session.count(ns).unwrap(), 0);
    drop(scan);
    drop((session, region));
    clean(&folder.path);
}

#[test]
fn a_batch_puts_each_record_in_order_up_to_the_first_that_fails() {
    let folder = TestFolder::new();
    let region = Region::create(&folder.path, &options(64 << 20)).unwrap();
    let session = region.session().unwrap();
    let plain = session.namespace("plain", &Schema::default()).unwrap();
    let tag = TagSchema { name: "guti".to_owned(), ..TagSchema::default() };
    let tagged = session.namespace("tagged", &Schema { tags: vec![tag], ..Schema::default() });
    let keys: Vec<Vec<u8>> = (0..50_u32).map(|n| format!("key-{}", n % 40).into_bytes()).collect();
    let values: Vec<Vec<u8>> = (0..50_u32).map(|n| vec![n as u8; n as usize * 7]).collect();
    let long = vec![b'k'; 5000];
    for ns in [plain, tagged.unwrap()] {
        let mut records: Vec<(&[u8], &[u8])> = Vec::new();
        records.extend(keys.iter().zip(&values).map(|(key, value)| (&key[..], &value[..])));
        session.put_batch(ns, &records).unwrap();
        for (n, key) in keys.iter().enumerate().take(40) {
            let last = if n < 10 { n + 40 } else { n };
            assert_eq!(session.get(ns, key).unwrap().unwrap().bytes(), values[last]);
        }
        let new: [(&[u8], &[u8]); 3] = [(b"before", b"1"), (&long, b"2"), (b"after", b"3")];
        let failed = session.put_batch(ns, &new);
        assert!(matches!(failed, Err(Error::KeyTooLarge { .. })), "{failed:?}");
        assert!(session.get(ns, b"before").unwrap().is_some());
        assert!(session.get(ns, b"after").unwrap().is_none());
        session.put_batch(ns, &[]).unwrap();
    }
    drop((session, region));
    clean(&folder.path);
}

#[test]
fn two_threads_on_one_key_lose_no_change() {
    let folder = TestFolder::new();
    let region = Region::create(&folder.path, &options(64 << 20)).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let region = region.clone();
            scope.spawn(move || {
                let session = region.session().unwrap();
                let ns = session.namespace("n", &Schema::default()).unwrap();
                for _ in 0..20_000 {
                    loop {
                        let seen = session.get(ns, b"counter").unwrap();
                        let (value, condition) = match &seen {
                            None => (0_u64, Condition::Absent),
                            Some(view) => (
                                u64::from_le_bytes(view.bytes().try_into().unwrap()),
                                Condition::Version(view.version()),
                            ),
                        };
                        let new = (value + 1).to_le_bytes();
                        let done = session.put_if(ns, b"counter", &new, condition).unwrap();
                        if matches!(done, Outcome::Done { .. }) {
                            break;
                        }
                    }
                }
            });
        }
    });
    let session = region.session().unwrap();
    let ns = session.namespace("n", &Schema::default()).unwrap();
    let value = session.get(ns, b"counter").unwrap().unwrap().bytes().to_vec();
    assert_eq!(value, 80_000_u64.to_le_bytes());
    drop((session, region));
    clean(&folder.path);
}

#[test]
fn a_full_region_says_so_and_goes_on_after_a_delete() {
    let folder = TestFolder::new();
    let region = Region::create(&folder.path, &options(64 << 20)).unwrap();
    let session = region.session().unwrap();
    let ns = session.namespace("n", &Schema::default()).unwrap();
    let value = vec![1_u8; 4000];
    let mut count = 0_u32;
    let error = loop {
        match session.put(ns, &count.to_le_bytes(), &value) {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Full { .. }), "{error}");
    assert!(count > 14_000, "{count}");
    for i in 0..count {
        assert_eq!(session.get(ns, &i.to_le_bytes()).unwrap().unwrap().bytes(), value);
    }
    for i in 0..count / 2 {
        assert!(session.delete(ns, &i.to_le_bytes()).unwrap());
    }
    for i in 0..count / 4 {
        session.put(ns, &i.to_le_bytes(), &[2; 500]).unwrap();
    }
    drop((session, region));
    clean(&folder.path);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn any_sequence_of_operations_equals_a_map(
        steps in prop::collection::vec((0..6_u8, 0..40_u16, 0..3000_usize), 1..400)
    ) {
        let folder = TestFolder::new();
        let region = Region::create(&folder.path, &options(64 << 20)).unwrap();
        let session = region.session().unwrap();
        let ns = session.namespace("n", &Schema::default()).unwrap();
        let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        for (what, key, bytes) in steps {
            let key = key.to_be_bytes().to_vec();
            let value = vec![bytes as u8; bytes];
            match what {
                0..=2 => {
                    session.put(ns, &key, &value).unwrap();
                    model.insert(key, value);
                }
                3 => {
                    let gone = session.delete(ns, &key).unwrap();
                    prop_assert_eq!(gone, model.remove(&key).is_some());
                }
                4 => {
                    let done = session.put_if(ns, &key, &value, Condition::Absent).unwrap();
                    let is_new = !model.contains_key(&key);
                    prop_assert_eq!(matches!(done, Outcome::Done { .. }), is_new);
                    model.entry(key).or_insert(value);
                }
                _ => {
                    let view = session.get(ns, &key).unwrap();
                    let expected = model.get(&key).map(Vec::as_slice);
                    prop_assert_eq!(view.as_ref().map(View::bytes), expected);
                }
            }
        }
        let mut all = BTreeMap::new();
        let mut scan = session.scan(ns).unwrap();
        while let Some(view) = scan.next().unwrap() {
            all.insert(view.key().to_vec(), view.bytes().to_vec());
        }
        prop_assert_eq!(&all, &model);
        drop(scan);
    drop((session, region));
        let report = checked(&folder.path).unwrap();
        prop_assert!(report.is_clean(), "{:#?}", report);
    }
}
