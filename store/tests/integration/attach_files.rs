//! A region that is attached by open files of it, as a node passes them to its clients.

use std::fs::{self, File, OpenOptions};
use std::os::fd::OwnedFd;
use std::path::Path;

use nearstate_store::{CreateOptions, Error, Region, RegionFiles, Schema};

use crate::fixture::{clean, is_alone};

fn region(folder: &Path) -> Region {
    Region::create(&folder.join("region"), &CreateOptions::default()).unwrap()
}

fn name() -> &'static Path {
    Path::new("local:/run/near.sock")
}

fn open_files() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_region_is_attached_without_its_path_and_lives_as_any_other() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("region");
    let given = region(folder.path());
    // As in another mount namespace: the path leads to nothing.
    fs::rename(&path, folder.path().join("elsewhere")).unwrap();
    let taken = Region::attach_files(given.files().unwrap(), name()).unwrap();
    let (one, other) = (given.session().unwrap(), taken.session().unwrap());
    let ns = one.namespace("ue", &Schema::default()).unwrap();
    one.put(ns, b"k", b"given").unwrap();
    let ns = other.namespace("ue", &Schema::default()).unwrap();
    assert_eq!(other.get(ns, b"k").unwrap().unwrap().bytes(), b"given");
    for number in 0..20_000_u32 {
        other.put(ns, &number.to_le_bytes(), &[7; 1000]).unwrap();
    }
    assert_eq!(given.inspect().unwrap().members.len(), 2);
    drop((one, given));
    // The one that is left holds its own life, not the giver's.
    other.put(ns, b"k", b"alone").unwrap();
    drop((other, taken));
    clean(&folder.path().join("elsewhere"));
}

#[test]
fn one_open_file_twice_is_refused_and_leaves_nothing_locked() {
    let folder = tempfile::tempdir().unwrap();
    let given = region(folder.path());
    for _ in 0..3 {
        let files = given.files().unwrap();
        let twice = RegionFiles { liveness: files.file.try_clone().unwrap(), file: files.file };
        let error = Region::attach_files(twice, name()).unwrap_err();
        assert!(matches!(error, Error::BadArgument { .. }), "{error}");
    }
    Region::attach_files(given.files().unwrap(), name()).unwrap().session().unwrap();
}

#[test]
fn other_files_are_refused_as_they_are_by_their_path() {
    let folder = tempfile::tempdir().unwrap();
    let given = region(folder.path());
    let text = folder.path().join("text");
    fs::write(&text, "no region").unwrap();
    let open = |path: &Path| -> OwnedFd {
        OpenOptions::new().read(true).write(true).open(path).unwrap().into()
    };
    let text = || open(&text);
    let mixed = RegionFiles { file: given.files().unwrap().file, liveness: text() };
    let readable = File::open(folder.path().join("region")).unwrap().into();
    for wrong in [
        RegionFiles { file: text(), liveness: text() },
        mixed,
        RegionFiles { file: readable, liveness: given.files().unwrap().liveness },
    ] {
        Region::attach_files(wrong, name()).unwrap_err();
    }
}

#[test]
fn a_thousand_attaches_leave_no_descriptor_behind() {
    if !is_alone("attach_files::a_thousand_attaches_leave_no_descriptor_behind") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let given = region(folder.path());
    let round = || {
        let taken = Region::attach_files(given.files().unwrap(), name()).unwrap();
        drop(taken.session().unwrap());
    };
    round();
    let before = open_files();
    (0..1000).for_each(|_| round());
    assert_eq!(open_files(), before);
}
