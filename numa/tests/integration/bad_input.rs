//! Files that describe no machine: each its own clear error.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use nearstate_numa::{PlanOptions, discover, plan};
use proptest::prelude::*;

use crate::machines::{gold_5118, guest, put};
use crate::plans::slices;

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
    refused(&path, &["is no file of hwloc", "declares entities", "line 1"]);
}

/// A file of this name in a folder that is removed with it.
fn file(name: &str, contents: &[u8]) -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    fs::write(&path, contents).unwrap();
    (folder, path)
}

#[test]
fn a_file_of_a_gigabyte_is_refused_by_its_size() {
    let (_folder, path) = file("large.xml", b"");
    fs::File::options().write(true).open(&path).unwrap().set_len(1 << 30).unwrap();
    refused(&path, &["is larger than 67108864 bytes"]);
    let tree = guest().write();
    for name in ["online", "cpu0/topology/core_id", "cpu0/cache/index2/shared_cpu_list"] {
        let path = tree.cpu().join(name);
        let before = fs::read(&path).unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_len(1 << 30).unwrap();
        refused(tree.path(), &[name, "is larger than 1048576 bytes"]);
        fs::write(&path, before).unwrap();
    }
    assert!(tree.read().is_ok());
}

#[test]
fn objects_that_are_nested_deeply_do_not_exhaust_the_stack() {
    let deep = "<object type=\"Group\">".repeat(1_000_000);
    let (_folder, path) = file("deep.xml", format!("<topology>{deep}").as_bytes());
    refused(&path, &["nested more than 128 deep"]);
}

#[test]
fn a_small_file_does_not_request_much_memory() {
    // Each object shares the set of all processors of the object around it.
    let all = vec!["0xffffffff"; 2048].join(",");
    for (object, reason) in [
        ("<object type=\"L2Cache\"/>", "list more than 2097152 processors"),
        ("<object type=\"OSDev\" osdev_type=\"2\"/>", "list more than 2097152 processors"),
        ("<object type=\"NUMANode\" os_index=\"0\"/>", "list more than 2097152 processors"),
        ("<object type=\"NUMANode\" os_index=\"0\" cpuset=\"0x1\"/>", "more than 1024 nodes"),
    ] {
        let text = format!(
            "<topology version=\"2.0\"><object type=\"Machine\" cpuset=\"{all}\">{}</object>\
             </topology>",
            object.repeat(2000)
        );
        let (_folder, path) = file("wide.xml", text.as_bytes());
        refused(&path, &[reason]);
    }
    let plain = "<object/>".repeat(300_000);
    let text =
        format!("<topology><object type=\"Machine\" cpuset=\"{all}\">{plain}</object></topology>");
    let (_folder, path) = file("plain.xml", text.as_bytes());
    refused(&path, &["no online processor"]);
    let tree = guest().write();
    for node in 0..40 {
        put(&tree.node().join(format!("node{node}/cpulist")), "0-65535\n");
    }
    refused(tree.path(), &["its nodes list more than 2097152 processors"]);
}

#[test]
fn a_file_that_is_cut_anywhere_gives_a_machine_or_an_error() {
    let text = xml(TWO_CORES);
    for length in 0..text.len() - 1 {
        let (_folder, path) = file("cut.xml", &text.as_bytes()[..length]);
        refused(&path, &[if length == 0 { "is no XML file" } else { "lstopo" }]);
    }
    let tree = guest().write();
    for name in ["online", "cpu0/topology/core_id", "cpu0/cache/index2/level"] {
        let before = fs::read(tree.cpu().join(name)).unwrap();
        for length in 0..before.len() {
            put(&tree.cpu().join(name), std::str::from_utf8(&before[..length]).unwrap());
            if let Err(error) = tree.read() {
                assert!(error.to_string().contains(&tree.path().display().to_string()), "{error}");
            }
        }
        fs::write(tree.cpu().join(name), before).unwrap();
    }
}

#[test]
fn a_machine_on_which_no_processor_is_allowed_gets_no_slice() {
    let limited =
        xml(TWO_CORES).replace("type=\"Machine\"", "type=\"Machine\" allowed_cpuset=\"0x0\"");
    let (_folder, path) = file("limited.xml", limited.as_bytes());
    let from_file = discover(Some(&path)).unwrap();
    // An empty `cpuset.cpus` means that of the group above; an affinity is never empty.
    let tree = guest().write();
    put(&tree.path().join("proc/self/cgroup"), "2:cpuset:/amf\n");
    put(&tree.path().join("sys/fs/cgroup/cpuset/amf/cpuset.cpus"), "\n");
    assert_eq!(tree.read().unwrap().allowed().to_string(), "0-1");
    put(&tree.path().join("sys/fs/cgroup/cpuset/amf/cpuset.cpus"), "7\n");
    let by_group = tree.read().unwrap();
    for machine in [from_file, by_group] {
        assert!(machine.allowed().is_empty() && machine.limited_by().is_some());
        let made =
            plan(&[machine], &slices(&["a:1:low"]), &[], &[], &PlanOptions::default()).unwrap();
        let reason = &made.refused[0].reason;
        assert!(reason.contains("has the most free ones, 0"), "{reason}");
    }
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
