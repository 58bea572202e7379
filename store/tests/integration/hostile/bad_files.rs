//! Files that are no region, or not one of ours, or not all of it.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use nearstate_memory::layout::FORMAT;
use nearstate_store::{CreateOptions, Error, NumaPolicy, Region, check};
use xxhash_rust::xxh3::xxh3_64;

use crate::fixture::{
    TestFolder, arguments, clean, is_root, open, output, refused, region_path, skipped, small,
    succeeded, without_forks,
};

/// All ways in: each must refuse and leave the file as it is.
fn refused_by_all(path: &Path, words: &[&str]) {
    let before = fs::metadata(path).unwrap();
    let head = fs::read(path).unwrap();
    refused(Region::attach(path), words);
    refused(check(path), words);
    refused(Region::remove(path), words);
    refused(Region::attach_or_create(path, &small()), words);
    refused(Region::create(path, &small()), words);
    assert_eq!(fs::metadata(path).unwrap().len(), before.len());
    assert!(fs::read(path).unwrap() == head, "a file of others was changed");
}

#[test]
fn a_foreign_file_is_refused_and_not_changed() {
    let folder = TestFolder::new();
    let cut = ["shorter than a region's first page", "not a region"];
    let other = ["not a region", "give the path of one"];
    fs::write(&folder.path, "hello").unwrap();
    refused_by_all(&folder.path, &cut);
    fs::write(&folder.path, [0; 4095]).unwrap();
    refused_by_all(&folder.path, &cut);
    fs::write(&folder.path, "# a configuration\n".repeat(1000)).unwrap();
    refused_by_all(&folder.path, &other);
    // A disk image may begin with zeros.
    fs::write(&folder.path, vec![0; 1 << 20]).unwrap();
    refused_by_all(&folder.path, &other);
    let image = File::create(&folder.path).unwrap();
    image.set_len(200 << 20).unwrap();
    image.write_all_at(&vec![7; 64 << 10], 100 << 20).unwrap();
    refused_by_all(&folder.path, &other);
}

#[test]
fn an_empty_file_a_folder_and_a_missing_file_are_refused_with_a_remedy() {
    let folder = TestFolder::new();
    refused(Region::attach(&folder.path), &["no such file", "create the region first"]);
    refused(check(&folder.path), &["create the region first"]);
    refused(Region::remove(&folder.path), &["create the region first"]);
    assert!(!folder.path.exists(), "asking for a region made a file");
    File::create(&folder.path).unwrap();
    refused(Region::attach(&folder.path), &["empty", "create it"]);
    Region::attach_or_create(&folder.path, &small()).unwrap();
    refused(Region::attach(folder.dir()), &["not a file's path"]);
    refused(Region::create(folder.dir(), &small()), &["not a file's path"]);
    let below = folder.path.join("below");
    refused(Region::create(&below, &small()), &["not a file's path"]);
}

#[test]
fn a_half_created_region_is_created_again() {
    let folder = TestFolder::new();
    let populated = CreateOptions { populate: true, ..small() };
    for options in [small(), populated] {
        Region::create(&folder.path, &options).unwrap();
        let file = OpenOptions::new().write(true).open(&folder.path).unwrap();
        file.write_all_at(&[0; 8], 0).unwrap();
        refused(Region::attach(&folder.path), &["creation was interrupted", "create it"]);
        Region::remove(&folder.path).unwrap();
        assert!(!folder.path.exists());
        Region::create(&folder.path, &options).unwrap();
        let file = OpenOptions::new().write(true).open(&folder.path).unwrap();
        file.write_all_at(&[0; 8], 0).unwrap();
        let region = Region::create(&folder.path, &options).unwrap();
        let (session, ns) = open(&region);
        session.put(ns, b"k", b"v").unwrap();
        drop((session, region));
        clean(&folder.path);
        Region::remove(&folder.path).unwrap();
    }
    // Killed before the first word of the superblock was there.
    let file = File::create(&folder.path).unwrap();
    file.set_len(256 << 20).unwrap();
    // It may be another program's, so it is not removed.
    refused(Region::remove(&folder.path), &["creation was interrupted", "delete the file"]);
    assert!(folder.path.exists());
    Region::create(&folder.path, &small()).unwrap();
}

#[test]
fn a_creation_that_fails_leaves_no_file_and_says_what_is_missing() {
    let folder = TestFolder::new();
    // No machine has this node.
    let unplaced = CreateOptions { numa: NumaPolicy::Bind(vec![1000]), ..small() };
    Region::create(&folder.path, &unplaced).unwrap_err();
    assert!(!folder.path.exists());
    File::create(&folder.path).unwrap();
    Region::create(&folder.path, &unplaced).unwrap_err();
    assert_eq!(fs::metadata(&folder.path).unwrap().len(), 0, "the file was there before");
    let below = folder.dir().join("none").join("r");
    refused(Region::create(&below, &small()), &["cannot create", "none does not exist"]);
    refused(Region::attach(&below), &["its directory does not exist"]);
    let tiny = CreateOptions { bytes_max: 4, ..small() };
    refused(Region::create(&below, &tiny), &["--max", "64MiB to 16TiB"]);
    let closed = folder.dir().join("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o500)).unwrap();
    if is_root() {
        skipped("root may write to each directory");
    } else {
        let wanted = ["cannot create", "no permission to create files in the directory"];
        refused(Region::create(&closed.join("r"), &small()), &wanted);
    }
}

#[test]
fn a_region_of_another_format_is_refused_and_says_which_build_wrote_it() {
    let folder = TestFolder::new();
    Region::create(&folder.path, &small()).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&folder.path).unwrap();
    let mut head = [0; 120];
    file.read_exact_at(&mut head, 0).unwrap();
    head[8..12].copy_from_slice(&(FORMAT + 1).to_le_bytes());
    file.write_all_at(&head, 0).unwrap();
    refused(Region::attach(&folder.path), &["damaged", "restore the file"]);
    file.write_all_at(&xxh3_64(&head).to_le_bytes(), 120).unwrap();
    refused_by_all(&folder.path, &[&format!("format {}", FORMAT + 1), "use a newer build"]);
    head[8..12].copy_from_slice(&(FORMAT - 1).to_le_bytes());
    file.write_all_at(&head, 0).unwrap();
    file.write_all_at(&xxh3_64(&head).to_le_bytes(), 120).unwrap();
    refused_by_all(&folder.path, &[&format!("format {}", FORMAT - 1), "older build"]);
    // An older one than any that there was is nonsense, whatever its checksum.
    head[8..12].copy_from_slice(&0_u32.to_le_bytes());
    file.write_all_at(&head, 0).unwrap();
    file.write_all_at(&xxh3_64(&head).to_le_bytes(), 120).unwrap();
    refused_by_all(&folder.path, &["no build writes", "restore the file"]);
}

#[test]
fn a_truncated_region_is_refused_at_any_length() {
    let folder = TestFolder::new();
    let region = Region::create(&folder.path, &small()).unwrap();
    let (session, ns) = open(&region);
    session.put(ns, b"k", b"v").unwrap();
    drop((session, region));
    let file = OpenOptions::new().write(true).open(&folder.path).unwrap();
    let full = file.metadata().unwrap().len();
    for length in [full - 1, full - 4096, full / 2, 0x840_0000, 0x40_0000, 0x2000, 4096] {
        file.set_len(length).unwrap();
        refused(Region::attach(&folder.path), &["truncated", "restore the file"]);
        refused(Region::create(&folder.path, &small()), &["truncated"]);
    }
    file.set_len(100).unwrap();
    refused(Region::attach(&folder.path), &["shorter than", "truncated"]);
}

#[test]
#[ignore = "the next test runs it as a user without rights"]
fn attaching_without_rights() {
    refused(Region::attach(&region_path()), &["no permission", "chmod"]);
    let error = Region::create(&region_path().with_file_name("new"), &small()).unwrap_err();
    assert!(matches!(error, Error::System { errno: 13, .. }), "{error}");
}

#[test]
fn a_path_without_permission_is_reported_with_its_mode() {
    if !is_root() {
        skipped("only root can become a user without rights");
        return;
    }
    let folder = TestFolder::new();
    Region::create(&folder.path, &small()).unwrap();
    // The other user may look into the folder, but neither open the region nor write here.
    fs::set_permissions(folder.dir(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = folder.dir().join("program");
    {
        // A child with this file open for writing would make the exec fail.
        let _no_forks = without_forks();
        fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    }
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&program)
        .args(arguments("hostile::bad_files::attaching_without_rights"))
        .env("NEARSTATE_TEST_REGION", &folder.path);
    match output(&mut command) {
        Ok(output) => drop(succeeded(&output)),
        Err(error) => skipped(&format!("setpriv: {error}")),
    }
}

#[test]
fn a_pipe_or_a_device_is_refused_as_such() {
    let folder = TestFolder::new();
    let made = Command::new("mkfifo").arg(&folder.path).status().unwrap();
    assert!(made.success());
    for path in [folder.path.as_path(), Path::new("/dev/null")] {
        refused(Region::attach(path), &["not a regular file"]);
        refused(Region::create(path, &small()), &["not a regular file"]);
    }
    assert!(folder.path.exists(), "the pipe is not removed");
}
