//! Hosts of a cluster whose file systems fill: of a region, and of the membership's directory.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;

use rustix::fs::statvfs;
use serde_json::Value;

use nearstate_local_cluster::skipped;

use crate::cluster::{Hosts, LONG_LEASE, NAMES};
use crate::fixture::{Folder, NEARSTATE, http, until};

/// A tmpfs, which is unmounted with the test.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts it, if this process may.
    fn mount(path: PathBuf, size: &str) -> Option<Self> {
        fs::create_dir_all(&path).unwrap();
        let mut mount = Command::new("mount");
        let mounted = mount.args(["-t", "tmpfs", "-o", size, "none"]).arg(&path).output();
        if mounted.is_ok_and(|mounted| mounted.status.success()) {
            return Some(Self(path));
        }
        skipped("only root can mount a tmpfs");
        None
    }

    fn bytes_free(&self) -> u64 {
        let seen = statvfs(&self.0).unwrap();
        seen.f_bavail * seen.f_frsize
    }

    /// Fills it up to some bytes.
    fn fill_up_to(&self, bytes_left: u64) {
        let mut file = File::create(self.ballast()).unwrap();
        while self.bytes_free() > bytes_left {
            file.write_all(&[0; 4096]).unwrap();
        }
    }

    fn ballast(&self) -> PathBuf {
        self.0.join("ballast")
    }

    fn free(&self) {
        fs::remove_file(self.ballast()).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let ended = Command::new("umount").arg("-l").arg(&self.0).output();
        assert!(ended.is_ok_and(|ended| ended.status.success()) || std::thread::panicking());
    }
}

impl Hosts {
    /// The state and the detail of an alarm of the last host, if it was ever raised.
    fn alarm(&self, id: &str) -> Option<(String, String)> {
        let shown = self.cluster(&["alarms", "--json", "--host", NAMES[2]]).unwrap();
        let all: Value = serde_json::from_str(&shown).unwrap();
        let field = |alarm: &Value, name: &str| alarm[name].as_str().unwrap().to_owned();
        let all = all.as_array().unwrap().iter();
        let mut found = all.filter(|alarm| alarm["id"] == id && alarm["host"] == NAMES[2]);
        found.next().map(|alarm| (field(alarm, "state"), field(alarm, "detail")))
    }

    fn until_alarm(&self, id: &str, state: &str) -> String {
        let mut detail = String::new();
        until("the alarm is so", || {
            self.alarm(id).is_some_and(|(seen, text)| {
                detail = text;
                seen == state
            })
        });
        detail
    }

    /// The status of the last host.
    fn last(&self) -> Value {
        let shown = self.cluster(&["status", "--json", "--host", NAMES[2]]).unwrap();
        let all: Value = serde_json::from_str(&shown).unwrap();
        all.get(0).cloned().unwrap_or(all)
    }

    /// The metrics page of the last host.
    fn last_page(&self) -> String {
        http(&format!("{}:{}", self.ips[2], self.others[0]), "/metrics").1
    }

    /// The outcome and the detail of a check of the last host.
    fn check(&self, check: &str) -> (String, String) {
        let mut command = Command::new(NEARSTATE);
        command.args(["cluster", "check", "--json", "--host", NAMES[2], "--cluster"]);
        let output = command.arg(&self.file).output().unwrap();
        let all: Value = serde_json::from_slice(&output.stdout).unwrap();
        let row = all["checks"].as_array().unwrap().iter().find(|row| row["check"] == check);
        let field = |name: &str| row.unwrap()[name].as_str().unwrap().to_owned();
        (field("outcome"), field("detail"))
    }
}

/// The hosts, of which the last one has its region and its directory on these file systems.
fn start(regions: &str, directory: &str) -> Option<(Hosts, SmallDisk, SmallDisk)> {
    let mut hosts = Hosts::new(Folder::new(), LONG_LEASE, "", &[]);
    let text = fs::read_to_string(&hosts.file).unwrap();
    let moved = text.replace("/{host}-{partition}\"", "/{host}.r/{partition}\"");
    assert_ne!(moved, text);
    fs::write(&hosts.file, moved).unwrap();
    let of = |host: &str, what: &str| hosts.folder.path(&format!("{host}.{what}"));
    for host in NAMES {
        fs::create_dir_all(of(host, "r")).unwrap();
    }
    let regions = SmallDisk::mount(of(NAMES[2], "r"), regions)?;
    let directory = SmallDisk::mount(of(NAMES[2], "d"), directory)?;
    for number in 0..NAMES.len() {
        hosts.run(number);
    }
    hosts.init();
    Some((hosts, regions, directory))
}

#[test]
fn a_file_system_without_room_for_the_region_or_the_membership_raises_an_alarm() {
    let Some((hosts, regions, directory)) = start("size=200m", "size=4m") else { return };
    let copy = hosts.last()["partitions"][0].clone();
    assert_eq!(copy["file_system_bytes_free"], Value::Null, "{copy}");
    assert!(copy["bytes_free"].as_u64().unwrap() > 32 << 20, "{copy}");
    assert_eq!(hosts.alarm("NS-5008"), None);
    assert_eq!(hosts.alarm("NS-5016"), None);
    for check in ["space", "directory space"] {
        let (outcome, detail) = hosts.check(check);
        assert_eq!(outcome, "passed", "{check}: {detail}");
    }

    // The heap is nearly empty, and gets no pages.
    regions.fill_up_to(1 << 20);
    let detail = hosts.until_alarm("NS-5008", "raised");
    assert!(detail.contains("the file system of the region has "), "{detail}");
    let copy = hosts.last()["partitions"][0].clone();
    assert!(copy["file_system_bytes_free"].as_u64().unwrap() <= 1 << 20, "{copy}");
    assert!(copy["bytes_free"].as_u64().unwrap() < 6 << 20, "{copy}");
    let (outcome, detail) = hosts.check("space");
    assert_eq!(outcome, "warning", "{detail}");
    assert!(detail.contains("the regions may take"), "{detail}");
    assert_eq!(hosts.alarm("NS-5016"), None);
    regions.free();
    hosts.until_alarm("NS-5008", "cleared");
    assert_eq!(hosts.check("space").0, "passed");

    // The membership goes on, and its disk will be full soon.
    directory.fill_up_to(256 << 10);
    let detail = hosts.until_alarm("NS-5016", "raised");
    assert!(detail.contains("bytes are left, and 2") && detail.ends_with("should be"), "{detail}");
    assert_eq!(hosts.alarm("NS-5006"), None);
    let left = hosts.last()["directory_bytes_free"].as_u64().unwrap();
    assert!(left <= 256 << 10, "{left}");
    let page = hosts.last_page();
    assert!(page.contains("nearstate_cluster_directory_bytes_free{host=\"c\"} "), "{page}");
    let (outcome, detail) = hosts.check("directory space");
    assert_eq!(outcome, "warning", "{detail}");
    assert!(detail.contains("make room there"), "{detail}");
    directory.free();
    hosts.until_alarm("NS-5016", "cleared");
    assert_eq!(hosts.check("directory space").0, "passed");
}
