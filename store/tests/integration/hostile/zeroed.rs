//! Parts of a region that were overwritten with zeros, as a lost page of the file: no record is
//! missing without an error, a fault or a loss.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use nearstate_store::{
    AttachOptions, CreateOptions, Error, Kind, Metadata, Namespace, Pattern, Region, RepairReport,
    Result, Schema, Session, TagSchema, repair_with,
};

use crate::fixture::{TestFolder, checked, clean, open, refused, small};

const PAGE: u64 = 4096;
const CATALOG: u64 = 0x40_0000;
const HEAP: u64 = 0x840_0000;
const RECORDS: u32 = 250;

/// A region file: the pages that are not zeros.
struct Image {
    bytes: u64,
    pages: Vec<(u64, Vec<u8>)>,
}

impl Image {
    fn of(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap();
        let pages = (0..).step_by(PAGE as usize).zip(bytes.chunks(PAGE as usize));
        let used = pages.filter(|(_, page)| page.iter().any(|byte| *byte != 0));
        let pages = used.map(|(at, page)| (at, page.to_vec())).collect();
        Self { bytes: bytes.len() as u64, pages }
    }

    /// Writes it without a page.
    fn write(&self, path: &Path, without: u64) {
        let file = File::create(path).unwrap();
        file.set_len(self.bytes).unwrap();
        for (at, page) in self.pages.iter().filter(|(at, _)| *at != without) {
            file.write_all_at(page, *at).unwrap();
        }
    }
}

fn key(number: u32) -> Vec<u8> {
    format!("imsi-{number:010}").into_bytes()
}

fn value(number: u32) -> Vec<u8> {
    vec![number as u8 | 1; 20 + number as usize * 3 % 700]
}

fn namespaces(session: &Session) -> Result<[Namespace; 3]> {
    let tags = vec![TagSchema {
        is_ordered: true,
        ..TagSchema { name: "age".to_owned(), ..TagSchema::default() }
    }];
    let schemas = [
        ("ue", Schema::default()),
        ("mixed", Schema { kind: Kind::Mixed, ..Schema::default() }),
        ("tagged", Schema { tags, ..Schema::default() }),
    ];
    let [ue, mixed, tagged] = schemas.map(|(name, schema)| session.namespace(name, &schema));
    Ok([ue?, mixed?, tagged?])
}

/// The same pages each time: the seed is fixed.
fn populate(path: &Path) {
    let options = CreateOptions { hash_seed: Some(7), ..small() };
    let region = Region::create(path, &options).unwrap();
    let session = region.session().unwrap();
    let [ue, mixed, tagged] = namespaces(&session).unwrap();
    for number in 0..RECORDS {
        let (key, value) = (key(number), value(number));
        session.put(ue, &key, &value).unwrap();
        if number.is_multiple_of(5) {
            session.put(mixed, &key, &value).unwrap();
            let age = [("age", &key[9..])];
            let metadata = Metadata { tags: &age, expires_ms: 0 };
            session.transact(|txn| txn.put_with_metadata(tagged, &key, b"v", metadata)).unwrap();
        }
    }
}

fn is_in(namespace: usize, number: u32) -> bool {
    namespace == 0 || number.is_multiple_of(5)
}

/// The number of records that are not found. Any other answer than `Damaged` is one.
fn missing(path: &Path, is_repaired: bool) -> Result<u32> {
    let region = Region::attach(path)?;
    let session = region.session()?;
    let namespaces = namespaces(&session)?;
    let mut missing = 0;
    for (place, namespace) in namespaces.into_iter().enumerate() {
        for number in (0..RECORDS).filter(|number| is_in(place, *number)) {
            match session.get(namespace, &key(number)) {
                Ok(None) => missing += 1,
                Ok(Some(view)) => {
                    let is_right = place == 2 || view.bytes() == value(number);
                    assert!(is_right || !is_repaired, "record {number} of namespace {place}");
                }
                Err(Error::Damaged { detail }) => assert!(!is_repaired, "{detail}"),
                Err(error) => panic!("record {number}: {error}"),
            }
        }
        if !is_repaired {
            // An error, or less than there was: no panic, and no end without an end.
            let _ = session.count(namespace);
            let _ = session.list(namespace, Pattern::All, |_| {});
        }
    }
    Ok(missing)
}

/// What is left of it, and the losses. `None`: the repair says that it cannot repair.
fn repaired(path: &Path) -> Option<RepairReport> {
    match repair_with(path, &AttachOptions::default()) {
        Ok(report) => Some(report),
        Err(Error::Damaged { .. } | Error::NotARegion { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn no_record_is_missing_without_a_word_when_any_page_becomes_zeros() {
    let folder = TestFolder::new();
    populate(&folder.path);
    let image = Image::of(&folder.path);
    let (mut losses, mut unaccounted) = (0, 0);
    for (at, _) in &image.pages {
        image.write(&folder.path, *at);
        match missing(&folder.path, false) {
            Ok(missing) => assert_eq!(missing, 0, "page {at:#x}: not found, and no error"),
            Err(Error::Damaged { .. } | Error::NotARegion { .. }) => {}
            Err(error) => panic!("page {at:#x}: {error}"),
        }
        image.write(&folder.path, *at);
        let is_clean = checked(&folder.path).is_ok_and(|report| report.is_clean());
        let Some(report) = repaired(&folder.path) else {
            assert!(!is_clean, "page {at:#x}: sound, and not to be repaired");
            continue;
        };
        let after = checked(&folder.path).unwrap();
        let is_lost = report.lost_count != 0 || !after.is_clean();
        assert!(!is_clean || !is_lost, "page {at:#x}: no fault, and {report:?} {after:?}");
        match missing(&folder.path, after.is_clean()) {
            Ok(0) => {}
            Ok(missing) => {
                assert!(is_lost, "page {at:#x}: {missing} records are lost: {report:?}");
                let most = u64::from(missing);
                let named = report.lost_count.max(report.unaccounted_bytes / 64);
                assert!(named >= most, "page {at:#x}: {missing} are lost: {report:?}");
                losses += 1;
                unaccounted += u32::from(report.unaccounted_bytes != 0);
            }
            Err(error) => assert!(is_lost, "page {at:#x}: {error}: {report:?}"),
        }
    }
    assert!(losses > 10 && unaccounted > 10, "{losses} pages had records, {unaccounted} no index");
}

/// The offsets of the buckets of the first namespace.
fn buckets(path: &Path) -> Vec<u64> {
    let bytes = std::fs::read(path).unwrap();
    let word = |at: u64| {
        let at = usize::try_from(at).unwrap();
        u64::from_le_bytes(*bytes[at..].first_chunk().unwrap())
    };
    let (mut left, mut buckets) = (word(CATALOG + 64) >> 16, Vec::new());
    for segment in 0..40_u64 {
        let count = (8 << segment.max(1) >> 1).min(left);
        let at = (word(CATALOG + 512 + 8 * segment) >> 16) * 64;
        buckets.extend((1..=count).map(|bucket| at + 64 * bucket));
        left -= count;
    }
    buckets
}

fn zero(path: &Path, at: u64, bytes: usize) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(&vec![0; bytes], at).unwrap();
}

/// The bucket of zeros is the first one, and each other one.
#[test]
fn reads_that_miss_and_writes_in_a_bucket_of_zeros_are_refused() {
    let folder = TestFolder::new();
    populate(&folder.path);
    let region = Region::attach(&folder.path).unwrap();
    let (session, ns) = open(&region);
    session.get(ns, b"none").unwrap();
    for at in buckets(&folder.path) {
        zero(&folder.path, at, 64);
    }
    let named = ["a bucket of an index is zeros", "nearstate region check"];
    for number in 0..RECORDS {
        let key = key(number);
        refused(session.get(ns, &key), &named);
        refused(session.put(ns, &key, b"v"), &named);
        refused(session.put(ns, &[b"new", key.as_slice()].concat(), b"v"), &named);
        refused(session.delete(ns, &key), &named);
        refused(session.transact(|txn| txn.get(ns, &key).map(drop)), &named);
        refused(session.transact(|txn| txn.put(ns, &key, b"v")), &named);
    }
    refused(session.count(ns), &named);
    refused(session.list(ns, Pattern::All, |_| {}), &named);
    drop((session, region));
    let faults = checked(&folder.path).unwrap().faults;
    assert!(faults.iter().any(|fault| fault.contains("bucket 3: zeros")), "{faults:?}");
    // The records are there: nothing is lost.
    let zeroed_count = buckets(&folder.path).len() as u64;
    let report = repair_with(&folder.path, &AttachOptions::default()).unwrap();
    let found = (report.zeroed_count, report.unaccounted_bytes, report.lost_count);
    assert_eq!(found, (zeroed_count, 0, 0), "{report:?}");
    assert_eq!(missing(&folder.path, true), Ok(0));
    clean(&folder.path);
}

#[test]
fn the_memory_of_records_that_were_lost_with_their_bucket_is_counted() {
    let folder = TestFolder::new();
    populate(&folder.path);
    let bytes = std::fs::read(&folder.path).unwrap();
    let lost = 100;
    let pattern = [key(lost), value(lost)].concat();
    let heap = usize::try_from(HEAP).unwrap();
    let at = bytes[heap..].windows(pattern.len()).position(|window| window == pattern).unwrap();
    // Key and value follow the header, all of it in units of 64 bytes.
    let cell = (44 + pattern.len()).next_multiple_of(64);
    zero(&folder.path, HEAP + at as u64 - 44, cell);
    for at in buckets(&folder.path) {
        zero(&folder.path, at, 64);
    }
    let report = repair_with(&folder.path, &AttachOptions::default()).unwrap();
    assert_eq!((report.unaccounted_bytes, report.lost_count), (cell as u64, 1), "{report:?}");
    assert!(report.lost[0].contains(&format!("at most {} records", cell / 64)), "{report:?}");
    assert_eq!(missing(&folder.path, true), Ok(1));
    clean(&folder.path);
}
