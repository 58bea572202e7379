//! What only a region can show: options of its URL, who may share it, and what a half-done `set`
//! says.

use nearstate_sdl::{ErrorKind, RegionStorage, SyncStorage as _, open};
use nearstate_store::{CreateOptions, Kind, Region, Schema, check};

#[test]
fn two_instances_of_one_url_share_the_records() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("region");
    let url = format!("region:{}", path.display());
    assert_eq!(open(&url).unwrap_err().kind, ErrorKind::NotConnected, "it was not made yet");
    let mut one = open(&format!("{url}?create=1&max=64MiB&mode=0640")).unwrap();
    let mut other = open(&url).unwrap();
    one.set("ns", &[(b"k", b"v")]).unwrap();
    assert_eq!(other.get("ns", &[b"k"]).unwrap().len(), 1);
    drop((one, other));
    assert!(check(&path).unwrap().is_clean());
}

#[test]
fn a_file_that_is_no_region_is_refused_by_name() {
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
fn a_namespace_of_named_blocks_is_not_for_values() {
    let folder = tempfile::tempdir().unwrap();
    let options = CreateOptions { bytes_max: 64 << 20, ..CreateOptions::default() };
    let region = Region::create(&folder.path().join("region"), &options).unwrap();
    let session = region.session().unwrap();
    session.namespace("blocks", &Schema { kind: Kind::Blocks, ..Schema::default() }).unwrap();
    let mut sdl = RegionStorage::on(region).unwrap();
    let error = sdl.set("blocks", &[(b"k", b"v")]).unwrap_err();
    assert_eq!(error.kind, ErrorKind::RejectedByBackend, "{error}");
}

#[test]
fn a_set_that_runs_out_of_room_says_how_much_may_be_there() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("region:{}/region?create=1&max=64MiB", folder.path().display());
    let mut sdl = open(&url).unwrap();
    let large = vec![7; 128 << 20];
    let error = sdl.set("ns", &[(b"large", &large)]).unwrap_err();
    assert_eq!(error.kind, ErrorKind::RejectedByBackend, "nothing was written: {error}");
    let error = sdl.set("ns", &[(b"small", b"v"), (b"large", &large)]).unwrap_err();
    assert_eq!(error.kind, ErrorKind::BackendFailure, "the first pair was: {error}");
    assert_eq!(sdl.list_keys("ns", b"*").unwrap().len(), 1);
}
