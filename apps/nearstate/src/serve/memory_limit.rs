//! The memory that this process and its region may use: the limit of the control group, which
//! containers and systemd set.

use std::fs;
use std::path::{Path, PathBuf};

/// Where the control groups are mounted.
const MOUNT: &str = "/sys/fs/cgroup";

/// Limits at least this large mean "no limit": version 1 has no other way to say so.
const UNLIMITED: u64 = 1 << 60;

/// A limit, and the file that sets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemoryLimit {
    pub(crate) bytes: u64,
    pub(crate) origin: String,
}

/// The lowest limit of the control groups that this process is in. `None` if there is none, or if
/// they are not mounted.
pub(crate) fn of_this_process() -> Option<MemoryLimit> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    lowest_limit(Path::new(MOUNT), &groups)
}

/// The lowest limit of the control groups in `groups` (the text of `/proc/self/cgroup`) and those
/// that contain them.
fn lowest_limit(mount: &Path, groups: &str) -> Option<MemoryLimit> {
    let limits = groups.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let path = path.trim_start_matches('/');
        match controllers {
            "" => lowest_above(mount, path, "memory.max"),
            _ if controllers.split(',').any(|one| one == "memory") => {
                lowest_above(&mount.join("memory"), path, "memory.limit_in_bytes")
            }
            _ => None,
        }
    });
    limits.min_by_key(|limit| limit.bytes)
}

/// The lowest limit of a group and those that contain it. In a container without a namespace of
/// control groups the path is that of the host, and only the mount itself exists.
fn lowest_above(root: &Path, path: &str, file: &str) -> Option<MemoryLimit> {
    let mut group = PathBuf::from(path);
    let mut lowest: Option<MemoryLimit> = None;
    loop {
        let origin = root.join(&group).join(file);
        let text = fs::read_to_string(&origin).unwrap_or_default();
        if let Ok(bytes) = text.trim().parse::<u64>()
            && bytes < UNLIMITED
            && lowest.as_ref().is_none_or(|limit| bytes < limit.bytes)
        {
            lowest = Some(MemoryLimit { bytes, origin: origin.display().to_string() });
        }
        if !group.pop() {
            return lowest;
        }
    }
}

/// True if the contents of a file stay in memory, and count towards the limit: a file of `tmpfs`.
pub(crate) fn is_in_memory(path: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    is_on_tmpfs(&mounts, &path)
}

fn is_on_tmpfs(mounts: &str, path: &Path) -> bool {
    let mounted = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        // Octal escapes of blanks occur in no path that matters here.
        let (point, kind) = (Path::new(fields.next()?), fields.next()?);
        path.starts_with(point).then(|| (point.components().count(), kind))
    });
    // Of mounts at one place, the last one is visible.
    mounted.max_by_key(|(depth, _)| *depth).is_some_and(|(_, kind)| kind == "tmpfs")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn the_lowest_limit_of_nested_groups_of_both_versions_counts() {
        let folder = tempfile::tempdir().unwrap();
        let mount = folder.path();
        let found = |groups: &str| lowest_limit(mount, groups).map(|limit| limit.bytes);
        assert_eq!(found("0::/pod/container\n"), None);
        write(&mount.join("pod/container/memory.max"), "max\n");
        assert_eq!(found("0::/pod/container\n"), None);
        write(&mount.join("pod/memory.max"), "2147483648\n");
        assert_eq!(found("0::/pod/container\n"), Some(2 << 30));
        write(&mount.join("pod/container/memory.max"), "1073741824\n");
        assert_eq!(found("0::/pod/container\n"), Some(1 << 30));
        let limit = lowest_limit(mount, "0::/pod/container\n").unwrap();
        assert!(limit.origin.ends_with("/pod/container/memory.max"), "{limit:?}");
        // The path of the host, inside a container.
        write(&mount.join("memory.max"), "4294967296\n");
        assert_eq!(found("0::/kubepods.slice/unknown.scope\n"), Some(4 << 30));
        let v1 = "9:name=systemd:/\n4:cpu,memory:/a/b\n1:cpu:/pod\n";
        assert_eq!(found(v1), None);
        write(&mount.join("memory/a/b/memory.limit_in_bytes"), "9223372036854771712\n");
        assert_eq!(found(v1), None, "version 1 writes this for no limit");
        write(&mount.join("memory/a/memory.limit_in_bytes"), "536870912\n");
        assert_eq!(found(v1), Some(512 << 20));
        for invalid in ["", "nonsense", "0::", "::", "4:memory:"] {
            let _ = found(invalid);
        }
    }

    #[test]
    fn a_file_counts_as_memory_by_the_innermost_mount() {
        let mounts = "overlay / overlay rw 0 0\ntmpfs /dev tmpfs rw 0 0\nshm /dev/shm tmpfs rw\n\
                      /dev/sda /dev/shm/disk ext4 rw 0 0\nx";
        for (path, expected) in [
            ("/dev/shm/region", true),
            ("/dev/shm/disk/region", false),
            ("/var/region", false),
            ("/dev/shmoo", true),
        ] {
            assert_eq!(is_on_tmpfs(mounts, Path::new(path)), expected, "{path}");
        }
        assert!(!is_on_tmpfs("", Path::new("/dev/shm/region")));
    }
}
