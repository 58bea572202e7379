//! Tests of the region back-end alone: URL options, shared use, a full region, watches.

use std::time::Duration;

use nearstate_sdl::{ErrorKind, RegionStorage, SyncStorage as _, open};
use nearstate_store::{CreateOptions, EventKind, Filter, Kind, Notice, Region, Schema, check};

#[test]
fn two_instances_of_one_url_share_the_records() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("region");
    let url = format!("region:{}", path.display());
    assert_eq!(
        open(&url).unwrap_err().kind,
        ErrorKind::NotConnected,
        "the region does not exist yet"
    );
    let mut one = open(&format!("{url}?create=1&max=64MiB&mode=0660")).unwrap();
    let mut other = open(&url).unwrap();
    one.set("ns", &[(b"k", b"v")]).unwrap();
    assert_eq!(other.get("ns", &[b"k"]).unwrap().len(), 1);
    drop((one, other));
    assert!(check(&path).unwrap().is_clean());
}

#[test]
fn a_file_that_is_no_region_is_an_error_with_its_path() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("letter");
    std::fs::write(&path, vec![b'x'; 10_000]).unwrap();
    for url in [format!("region:{}", path.display()), format!("region:{}?create=1", path.display())]
    {
        let error = open(&url).unwrap_err();
        assert_eq!(error.kind, ErrorKind::RejectedByBackend, "{error}");
        assert!(error.to_string().contains("letter"), "{error}");
    }
}

#[test]
fn values_are_rejected_in_a_namespace_of_named_blocks() {
    let folder = tempfile::tempdir().unwrap();
    let options = CreateOptions { bytes_max: 64 << 20, ..CreateOptions::default() };
    let region = Region::create(&folder.path().join("region"), &options).unwrap();
    let session = region.session().unwrap();
    session.namespace("blocks", &Schema { kind: Kind::Blocks, ..Schema::default() }).unwrap();
    let mut sdl = RegionStorage::on(region).unwrap();
    let error = sdl.set("blocks", &[(b"k", b"v")]).unwrap_err();
    assert_eq!(error.kind, ErrorKind::RejectedByBackend, "{error}");
}

/// The program that owns a namespace opens it with its own schema, also after an application that
/// knows only the name has read or removed.
#[test]
fn only_a_write_creates_a_namespace() {
    let folder = tempfile::tempdir().unwrap();
    let options = CreateOptions { bytes_max: 64 << 20, ..CreateOptions::default() };
    let region = Region::create(&folder.path().join("region"), &options).unwrap();
    let session = region.session().unwrap();
    let mut sdl = RegionStorage::on(region).unwrap();
    assert!(sdl.is_ready("ue").unwrap());
    sdl.wait_ready("ue", Duration::ZERO).unwrap();
    assert!(sdl.get("ue", &[b"k"]).unwrap().is_empty());
    assert!(sdl.list_keys("ue", b"*").unwrap().is_empty());
    assert!(sdl.find_keys("ue", b"k").unwrap().is_empty());
    sdl.remove("ue", &[b"k"]).unwrap();
    sdl.remove("ue", &[b"k", b"l"]).unwrap();
    assert!(!sdl.remove_if("ue", b"k", b"v").unwrap());
    assert!(!sdl.set_if("ue", b"k", b"v", b"w").unwrap());
    sdl.remove_all("ue").unwrap();
    sdl.set("ue", &[]).unwrap();
    assert_eq!(session.known_namespace("ue").unwrap(), None);
    let values = session.namespace("ue", &Schema::default()).unwrap();
    sdl.set("ue", &[(b"k", b"v")]).unwrap();
    assert!(session.get(values, b"k").unwrap().is_some());
    // Names that no back-end takes are refused although nothing is created.
    assert_eq!(sdl.is_ready("a,b").unwrap_err().kind, ErrorKind::RejectedBySdl);
    assert_eq!(sdl.get("a,b", &[b"k"]).unwrap_err().kind, ErrorKind::RejectedBySdl);
    assert!(sdl.set_if_not_exists("new", b"k", b"v").unwrap());
    assert_eq!(session.known_namespace("new").unwrap().unwrap().kind(), Kind::Mixed);
}

/// A namespace that is empty can be removed at any time, also by another process.
#[test]
fn a_namespace_that_is_removed_during_a_call_is_empty() {
    let folder = tempfile::tempdir().unwrap();
    let options = CreateOptions { bytes_max: 64 << 20, ..CreateOptions::default() };
    let region = Region::create(&folder.path().join("region"), &options).unwrap();
    let session = region.session().unwrap();
    let mut sdl = RegionStorage::on(region.clone()).unwrap();
    sdl.set("ue", &[(b"k", b"v")]).unwrap();
    let mut seen = 0;
    sdl.visit("ue", &[&b"k"[..]; 100], &mut |key, _| {
        seen += 1;
        if let Some(namespace) = session.known_namespace("ue").unwrap() {
            assert!(session.delete(namespace, key).unwrap());
            assert!(session.remove_namespace(namespace).unwrap());
        }
    })
    .unwrap();
    assert!((1..100).contains(&seen), "the first batch is read at one moment: {seen}");
    assert!(sdl.get("ue", &[b"k"]).unwrap().is_empty());
    assert!(sdl.list_keys("ue", b"*").unwrap().is_empty());
    sdl.set("ue", &[(b"k", b"v")]).unwrap();
    assert_eq!(sdl.get("ue", &[b"k"]).unwrap().len(), 1);
}

/// Rounds in which another thread removes the namespace again and again.
const ROUNDS: u32 = 5000;
/// The pause between two removals.
const PAUSE_SPINS: u32 = 2000;

#[test]
fn no_call_fails_because_its_namespace_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let options = CreateOptions { bytes_max: 64 << 20, ..CreateOptions::default() };
    let region = Region::create(&folder.path().join("region"), &options).unwrap();
    let mut sdl = RegionStorage::on(region.clone()).unwrap();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let session = region.session().unwrap();
            while !is_over.load(std::sync::atomic::Ordering::Acquire) {
                session.remove_empty_namespaces(1).unwrap();
                // Some tens of microseconds: a creation and a write take less.
                (0..PAUSE_SPINS).for_each(|_| std::hint::spin_loop());
            }
        });
        let calls = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..ROUNDS {
                sdl.set("ue", &[(b"k", b"v")]).unwrap();
                sdl.remove("ue", &[b"k"]).unwrap();
                sdl.remove("ue", &[b"k", b"l"]).unwrap();
                sdl.set("ue", &[(b"k", b"v"), (b"l", b"v")]).unwrap();
                sdl.remove_all("ue").unwrap();
                sdl.get("ue", &[b"k", b"l"]).unwrap();
                sdl.list_keys("ue", b"*").unwrap();
                sdl.set_if("ue", b"k", b"v", b"w").unwrap();
                sdl.set_if_not_exists("ue", b"k", b"v").unwrap();
                sdl.remove_if("ue", b"k", b"v").unwrap();
            }
        }));
        is_over.store(true, std::sync::atomic::Ordering::Release);
        calls.unwrap();
    });
}

/// As over a ring and on a Redis, where the reply is WRONGTYPE.
#[test]
fn a_comparison_with_a_hash_or_a_set_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let options = CreateOptions { bytes_max: 64 << 20, ..CreateOptions::default() };
    let region = Region::create(&folder.path().join("region"), &options).unwrap();
    let session = region.session().unwrap();
    let mut sdl = RegionStorage::on(region).unwrap();
    sdl.set("ns", &[(b"value", b"v")]).unwrap();
    let namespace = session.known_namespace("ns").unwrap().unwrap();
    session
        .transact(|txn| {
            txn.set_fields(namespace, b"hash", &[(b"f", b"v")])?;
            txn.add_members(namespace, b"set", &[b"m"]).map(drop)
        })
        .unwrap();
    for key in [&b"hash"[..], b"set"] {
        for refused in [sdl.set_if("ns", key, b"v", b"w"), sdl.remove_if("ns", key, b"v")] {
            let error = refused.unwrap_err();
            assert_eq!(error.kind, ErrorKind::RejectedByBackend, "{error}");
        }
        assert!(!sdl.set_if_not_exists("ns", key, b"v").unwrap());
    }
    assert!(!sdl.set_if("ns", b"value", b"other", b"w").unwrap());
    assert!(!sdl.remove_if("ns", b"value", b"other").unwrap());
    assert!(!sdl.remove_if("ns", b"none", b"v").unwrap());
}

#[test]
fn a_set_that_exceeds_the_region_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("region:{}/region?create=1&max=64MiB", folder.path().display());
    let mut sdl = open(&url).unwrap();
    let large = vec![7; 128 << 20];
    let error = sdl.set("ns", &[(b"large", &large)]).unwrap_err();
    assert_eq!(error.kind, ErrorKind::RejectedByBackend, "{error}");
    let pairs: [(&[u8], &[u8]); 3] =
        [(b"small", b"v"), (b"half", &large[..30 << 20]), (b"other half", &large[..30 << 20])];
    let error = sdl.set("ns", &pairs).unwrap_err();
    assert_eq!(error.kind, ErrorKind::RejectedByBackend, "{error}");
    assert_eq!(
        sdl.list_keys("ns", b"*").unwrap().len(),
        0,
        "the first pair was not written either"
    );
}

#[test]
fn the_events_of_a_set_of_several_records_belong_to_one_commit() {
    let folder = tempfile::tempdir().unwrap();
    let options = CreateOptions { bytes_max: 64 << 20, ..CreateOptions::default() };
    let region = Region::create(&folder.path().join("region"), &options).unwrap();
    let session = region.session().unwrap();
    let mut sdl = RegionStorage::on(region).unwrap();
    sdl.set("ns", &[(b"first", b"v")]).unwrap();
    let namespace = session.known_namespace("ns").unwrap().unwrap();
    let mut watch = session.watch(namespace, Filter::Namespace).unwrap();
    let pairs: Vec<[u8; 1]> = (0..100).map(|n| [n]).collect();
    let pairs: Vec<(&[u8], &[u8])> = pairs.iter().map(|key| (&key[..], &b"v"[..])).collect();
    sdl.set("ns", &pairs).unwrap();
    let keys: Vec<&[u8]> = pairs.iter().map(|(key, _)| *key).collect();
    sdl.remove("ns", &keys).unwrap();
    let mut events = Vec::new();
    while let Some(notice) = watch.next().unwrap() {
        let Notice::Event(event) = notice else { panic!("events were lost") };
        events.push((event.kind, event.key.to_vec()));
    }
    for (kind, events) in [EventKind::Created, EventKind::Deleted].iter().zip(events.chunks(100)) {
        let all: std::collections::BTreeSet<_> = events.iter().map(|(_, key)| key).collect();
        assert_eq!(all.len(), 100);
        assert!(events.iter().all(|(event, _)| event == kind), "events of one set are adjacent");
    }
}
