//! Files that describe no machine: each its own clear error.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use nearstate_numa::discover;
use proptest::prelude::*;

use crate::machines::{gold_5118, guest, put};

fn refused(path: &Path, reasons: &[&str]) {
    let error = discover(Some(path)).unwrap_err().to_string();
    for reason in reasons {
        assert!(error.contains(reason), "{error:?} lacks {reason:?}");
    }
}

/// An XML file with these objects.
fn xml(objects: &str) -> String {
    format!(
        "<?xml version=\"1.0\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n\
         <topology version=\"2.0\"><object type=\"Machine\" cpuset=\"0x3\">{objects}</object>\
         </topology>\n"
    )
}

const TWO_CORES: &str = "<object type=\"NUMANode\" os_index=\"0\" cpuset=\"0x3\"/>\
    <object type=\"Core\" os_index=\"0\" cpuset=\"0x1\">\
    <object type=\"PU\" os_index=\"0\"/></object>\
    <object type=\"Core\" os_index=\"1\" cpuset=\"0x2\">\
    <object type=\"PU\" os_index=\"1\"/></object>";

#[test]
fn a_file_that_is_no_topology_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, contents: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, contents).unwrap();
        path
    };
    refused(&folder.path().join("none.xml"), &["does not exist", "lstopo machine.xml"]);
    refused(folder.path(), &["no sys/devices/system/cpu"]);
    refused(&file("a.tar.bz2", b"BZh9"), &["is an archive", "unpack it"]);
    refused(&file("empty.xml", b""), &["is no XML file", "lstopo machine.xml"]);
    refused(&file("binary.xml", b"\x7fELF\x02\xff\xfe"), &["is not a text"]);
    refused(&file("cut.xml", &xml(TWO_CORES).as_bytes()[..200]), &["is no XML file"]);
    refused(&file("page.xml", b"<html></html>"), &["root element <html>"]);
    refused(&file("none.xml", xml("").as_bytes()), &["no online processor"]);
    let device = folder.path().join("device.xml");
    symlink("/dev/zero", &device).unwrap();
    refused(&device, &["is not a regular file"]);
    assert!(discover(Some(&file("good.xml", xml(TWO_CORES).as_bytes()))).is_ok());
}

#[test]
fn objects_that_contradict_each_other_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (from, to, reasons) in [
        ("cpuset=\"0x1\"", "cpuset=\"zz\"", &["cpuset", "no hexadecimal word"][..]),
        ("\"PU\" os_index=\"1\"", "\"PU\"", &["a PU has no os_index"]),
        ("\"PU\" os_index=\"1\"", "\"PU\" os_index=\"0\"", &["processor 0 is listed twice"]),
        ("\"PU\" os_index=\"1\"", "\"PU\" os_index=\"-3\"", &["os_index", "no number"]),
        ("\"PU\" os_index=\"1\"", "\"PU\" os_index=\"99999999\"", &["above the maximum"]),
        ("cpuset=\"0x2\"", "cpuset=\"0x8\"", &["contains processor 3", "not online"]),
        ("\"NUMANode\" os_index=\"0\"", "\"NUMANode\" os_index=\"7000\"", &["node 7000"]),
    ] {
        let path = folder.path().join("bad.xml");
        let text = xml(TWO_CORES).replacen(from, to, 1);
        assert_ne!(text, xml(TWO_CORES), "{from}");
        fs::write(&path, text).unwrap();
        refused(&path, reasons);
    }
}

#[test]
fn entities_do_not_multiply() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("entities.xml");
    let mut text = "<!DOCTYPE t [<!ENTITY a0 \"aaaaaaaaaa\">".to_owned();
    for level in 1..20 {
        let inner = format!("&a{};", level - 1).repeat(10);
        for part in ["<!ENTITY a", &level.to_string(), " \"", &inner, "\">"] {
            text.push_str(part);
        }
    }
    fs::write(&path, text + "]><topology>&a19;</topology>").unwrap();
    refused(&path, &["is no XML file"]);
}

#[test]
fn a_tree_with_nonsense_is_refused_with_the_file() {
    let tree = guest().write();
    put(&tree.cpu().join("online"), "0-4294967295\n");
    refused(tree.path(), &["cpu/online", "above the maximum"]);
    put(&tree.cpu().join("online"), "\n");
    refused(tree.path(), &["online processors is empty"]);
    put(&tree.cpu().join("online"), "0-1\n");
    put(&tree.cpu().join("cpu0/topology/core_id"), "first\n");
    refused(tree.path(), &["core_id", "no number"]);
    put(&tree.cpu().join("cpu0/topology/core_id"), "0\n");
    put(&tree.node().join("node2000/cpulist"), "1\n");
    refused(tree.path(), &["node 2000 is above the maximum"]);
}

#[test]
fn cores_across_nodes_and_caches_that_overlap_are_refused() {
    let tree = gold_5118().write();
    put(&tree.cpu().join("cpu1/topology/thread_siblings_list"), "0,1\n");
    refused(tree.path(), &["contains processor 0", "same socket"]);
    let tree = gold_5118().write();
    put(&tree.cpu().join("cpu2/cache/index2/shared_cpu_list"), "2,28\n");
    refused(tree.path(), &["is in two caches of level 2"]);
}

#[test]
fn wrong_distances_are_replaced_with_a_warning() {
    let tree = gold_5118().write();
    put(&tree.node().join("node1/distance"), "21\n");
    let read = tree.read().unwrap();
    assert_eq!(read.distance(0, 1), Some(21));
    assert!(read.warnings()[0].contains("node 1 has 1 distances for 2 nodes"));
}

proptest! {
    #[test]
    fn any_change_of_an_xml_file_gives_a_machine_or_an_error(
        at in 0..600_usize, bytes in proptest::collection::vec(any::<u8>(), 1..8)
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("changed.xml");
        let mut text = xml(TWO_CORES).into_bytes();
        let at = at.min(text.len());
        let end = (at + bytes.len()).min(text.len());
        text.splice(at..end, bytes);
        fs::write(&path, text).unwrap();
        let _ = discover(Some(&path));
    }
}
