//! What a file system has left: for the pages of a region, and for files of the membership.

use std::path::Path;

use nearstate_model::{Error, Result};
use rustix::fs::{statfs, statvfs};

/// The type of a hugetlbfs (`linux/magic.h`).
const HUGETLBFS: i64 = 0x9584_58f6;

/// Where the kernel tells of its pools of huge pages.
const POOLS: &str = "/sys/kernel/mm/hugepages";

/// What a file system has left for this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSystemSpace {
    /// The bytes that are free. `None`: it has no limit of its own.
    pub bytes_free: Option<u64>,
    /// The bytes that it has; 0 if it has no limit of its own.
    pub bytes_max: u64,
    /// The files that can be created. `None`: their number has no limit.
    pub files_free: Option<u64>,
}

impl FileSystemSpace {
    /// The file system of a file or directory. Two system calls.
    ///
    /// # Errors
    /// `System`: the path does not exist, or the file system does not tell.
    pub fn of(path: &Path) -> Result<Self> {
        let failed = |error: rustix::io::Errno| Error::System {
            detail: format!("cannot measure the file system of {} ({error})", path.display()),
            errno: error.raw_os_error(),
        };
        let seen = statvfs(path).map_err(failed)?;
        let of_mount = (seen.f_blocks != 0).then(|| seen.f_bavail.saturating_mul(seen.f_frsize));
        let kind = statfs(path).map_err(failed)?.f_type;
        let of_pool =
            (kind == HUGETLBFS).then(|| huge_pool(Path::new(POOLS), seen.f_frsize)).flatten();
        Ok(Self {
            bytes_free: of_mount.into_iter().chain(of_pool).min(),
            bytes_max: seen.f_blocks.saturating_mul(seen.f_frsize),
            files_free: (seen.f_files != 0).then_some(seen.f_favail),
        })
    }
}

/// The bytes that are free in the pool of huge pages of a size, and that no mapping has reserved.
fn huge_pool(pools: &Path, page_bytes: u64) -> Option<u64> {
    let pool = pools.join(format!("hugepages-{}kB", page_bytes >> 10));
    let read = |name: &str| -> Option<u64> {
        std::fs::read_to_string(pool.join(name)).ok()?.trim().parse().ok()
    };
    let pages = read("free_hugepages")?.saturating_sub(read("resv_hugepages")?);
    // The kernel makes some more when they are needed, if it is allowed to.
    let more = read("nr_overcommit_hugepages")?.saturating_sub(read("surplus_hugepages")?);
    Some(pages.saturating_add(more).saturating_mul(page_bytes))
}

/// The bytes of a heap that can be filled: `heap_free` of it are free, `without_pages` of these
/// have no pages yet, and the file system has `room` for so many (`None`: no limit).
pub(crate) fn usable_bytes(heap_free: u64, without_pages: u64, room: Option<u64>) -> u64 {
    let missing = room.map_or(0, |room| without_pages.saturating_sub(room));
    heap_free.saturating_sub(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_the_file_system_cannot_give_are_not_free() {
        // 60 bytes are free, of which 40 have no pages.
        assert_eq!(usable_bytes(60, 40, None), 60);
        assert_eq!(usable_bytes(60, 40, Some(100)), 60);
        assert_eq!(usable_bytes(60, 40, Some(40)), 60);
        assert_eq!(usable_bytes(60, 40, Some(39)), 59);
        assert_eq!(usable_bytes(60, 40, Some(0)), 20);
        // All of it has pages: a full file system takes nothing.
        assert_eq!(usable_bytes(60, 0, Some(0)), 60);
        // The huge page that is counted too much.
        assert_eq!(usable_bytes(60, 62, Some(0)), 0);
    }

    #[test]
    fn a_pool_of_huge_pages_has_what_is_free_and_not_reserved() {
        let folder = tempfile::tempdir().unwrap();
        let pool = folder.path().join("hugepages-2048kB");
        std::fs::create_dir(&pool).unwrap();
        for (name, text) in [
            ("free_hugepages", "7\n"),
            ("resv_hugepages", "2\n"),
            ("nr_overcommit_hugepages", "4\n"),
            ("surplus_hugepages", "1\n"),
        ] {
            std::fs::write(pool.join(name), text).unwrap();
        }
        assert_eq!(huge_pool(folder.path(), 2 << 20), Some(8 * (2 << 20)));
        assert_eq!(huge_pool(folder.path(), 1 << 30), None);
    }

    #[test]
    fn a_path_without_a_file_has_no_file_system() {
        let error = FileSystemSpace::of(Path::new("/nothing/here")).unwrap_err().to_string();
        assert!(error.contains("/nothing/here"), "{error}");
        assert!(FileSystemSpace::of(Path::new("/")).is_ok());
    }
}
