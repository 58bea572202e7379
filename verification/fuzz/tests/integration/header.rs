//! A region's header: validated alone, and in a file that is attached and checked.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use nearstate_memory::layout::{FORMAT, HEAP};
use nearstate_memory::validate_superblock;
use nearstate_store::{CreateOptions, Error, PinMode, Region, Schema, check};
use proptest::prelude::*;
use proptest::sample::Index;
use xxhash_rust::xxh3::xxh3_64;

use crate::fixture::{config, folder};

const PAGE: usize = 4096;
/// The bytes that the checksum covers, and its offset.
const SUMMED: usize = 120;

/// Cases of tests without and with a file.
const CASES: u32 = 20_000;
const CASES_WITH_A_FILE: u32 = 1500;

struct RegionFile {
    _dir: tempfile::TempDir,
    path: std::path::PathBuf,
    file: File,
    page: Vec<u8>,
}

/// A region with one record, not attached by any process.
fn region_file(pin: PinMode) -> RegionFile {
    let dir = folder();
    let path = dir.path().join("region");
    let options = CreateOptions { bytes_max: 64 << 20, pin, ..CreateOptions::default() };
    let region = Region::create(&path, &options).expect("a region");
    let session = region.session().expect("a session");
    let ns = session.namespace("ue", &Schema::default()).expect("a namespace");
    session.put(ns, b"k", b"v").expect("a record");
    drop((session, region));
    let file = OpenOptions::new().read(true).write(true).open(&path).expect("the file");
    let mut page = vec![0; PAGE];
    file.read_exact_at(&mut page, 0).expect("its first page");
    RegionFile { _dir: dir, path, file, page }
}

/// A change of a page: bytes at an offset.
type Change = (Index, Vec<u8>);

fn apply(page: &mut [u8], changes: &[Change]) {
    for (at, bytes) in changes {
        let at = at.index(page.len());
        apply_at(page, at, bytes);
    }
}

fn correct_checksum(page: &mut [u8]) {
    let sum = page.get(..SUMMED).map(xxh3_64).unwrap_or_default();
    apply_at(page, SUMMED, &sum.to_le_bytes());
}

fn apply_at(page: &mut [u8], at: usize, bytes: &[u8]) {
    for (to, from) in page.iter_mut().skip(at).zip(bytes) {
        *to = *from;
    }
}

/// Changes of the bytes that the checksum covers; special values are frequent.
fn changes() -> impl Strategy<Value = Vec<(usize, Vec<u8>)>> {
    let word = prop_oneof![
        Just(0_u64),
        Just(u64::MAX),
        Just(1),
        any::<u64>(),
        (0..64_u32).prop_map(|bit| 1 << bit),
        (0..64_u32, 0..5000_u64).prop_map(|(bit, more)| (1_u64 << bit).wrapping_add(more)),
        (0..1_u64 << 30).prop_map(|more| HEAP + more),
    ];
    let whole =
        ((0..SUMMED / 8).prop_map(|word| 8 * word), word.prop_map(|w| w.to_le_bytes().to_vec()));
    let some = (0..SUMMED, prop::collection::vec(any::<u8>(), 1..9));
    prop::collection::vec(prop_oneof![2 => whole, 1 => some], 1..4)
}

/// Properties of any page that is accepted as a header.
fn check_header(page: &[u8]) -> Result<(), TestCaseError> {
    match validate_superblock(page) {
        Ok(head) => {
            prop_assert!(head.length >= HEAP + (64 << 20) && head.length.is_multiple_of(4096));
            prop_assert!(head.page.is_power_of_two() && head.page >= 4096);
            let format = page.get(8..12).unwrap_or_default();
            prop_assert_eq!(format, FORMAT.to_le_bytes());
        }
        // The message says what to do, and does not repeat untrusted bytes.
        Err(text) => {
            prop_assert!(
                ["give the path", "newer build", "older build", "restore the file", "truncated"]
                    .iter()
                    .any(|advice| text.contains(advice)),
                "{}",
                text
            );
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(config(CASES))]

    #[test]
    fn any_page_is_accepted_or_rejected(bytes in prop::collection::vec(any::<u8>(), 0..PAGE + 10)) {
        check_header(&bytes)?;
    }

    #[test]
    fn any_page_with_magic_and_checksum_is_accepted_or_rejected(
        bytes in prop::collection::vec(any::<u8>(), PAGE), is_format_known in any::<bool>()
    ) {
        let mut page = bytes;
        apply_at(&mut page, 0, b"NEARSTAT");
        if is_format_known {
            apply_at(&mut page, 8, &FORMAT.to_le_bytes());
        }
        correct_checksum(&mut page);
        check_header(&page)?;
    }
}

#[test]
fn a_changed_header_is_rejected_unless_its_checksum_is_correct() {
    let valid = region_file(PinMode::Auto).page;
    assert!(validate_superblock(&valid).is_ok());
    let mut runner = proptest::test_runner::TestRunner::new(config(CASES));
    runner
        .run(&changes(), |changes| {
            let mut page = valid.clone();
            for (at, bytes) in &changes {
                // The checksum itself is not changed.
                let room = SUMMED - at;
                apply_at(&mut page, *at, bytes.get(..room).unwrap_or(bytes));
            }
            if page != valid {
                prop_assert!(validate_superblock(&page).is_err(), "a changed page was accepted");
            }
            correct_checksum(&mut page);
            check_header(&page)
        })
        .expect("the header");
    // The generator also produces valid headers: any seed, id and time is valid.
    runner
        .run(&(32..40_usize, any::<u8>()), |(at, byte)| {
            let mut page = valid.clone();
            apply_at(&mut page, at, &[byte]);
            correct_checksum(&mut page);
            prop_assert!(validate_superblock(&page).is_ok());
            Ok(())
        })
        .expect("another seed");
}

/// A file with a changed header is attached, used and checked, or rejected with a message.
#[test]
fn a_file_with_a_changed_header_never_ends_a_process() {
    for pin in [PinMode::Auto, PinMode::Fenced] {
        let region = region_file(pin);
        let strategy = (
            changes(),
            prop::collection::vec((any::<Index>(), prop::collection::vec(any::<u8>(), 1..9)), 0..3),
            any::<bool>(),
        );
        let mut runner = proptest::test_runner::TestRunner::new(config(CASES_WITH_A_FILE));
        runner
            .run(&strategy, |(static_part, anywhere, is_corrected)| {
                let mut page = region.page.clone();
                apply(&mut page, &anywhere);
                for (at, bytes) in &static_part {
                    apply_at(&mut page, *at, bytes);
                }
                if is_corrected {
                    apply_at(&mut page, 0, b"NEARSTAT");
                    correct_checksum(&mut page);
                }
                region.file.write_all_at(&page, 0).expect("a write");
                use_file(&region.path)?;
                region.file.write_all_at(&region.page, 0).expect("a write");
                Ok(())
            })
            .expect("a changed header");
    }
}

fn use_file(path: &Path) -> Result<(), TestCaseError> {
    if let Ok(region) = Region::attach(path)
        && let Ok(session) = region.session()
    {
        drop(region.inspect());
        if let Ok(ns) = session.namespace("ue", &Schema::default()) {
            drop(session.get(ns, b"k"));
            drop(session.put(ns, b"k", b"v"));
            drop(session.delete(ns, b"none"));
            drop(session.count(ns));
        }
    }
    match check(path) {
        Ok(_)
        | Err(
            Error::NotARegion { .. }
            | Error::Damaged { .. }
            | Error::Stalled { .. }
            | Error::System { .. }
            | Error::BadArgument { .. },
        ) => Ok(()),
        Err(error) => Err(TestCaseError::fail(error.to_string())),
    }
}
