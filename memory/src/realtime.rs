//! What the thread that keeps leases asks of the kernel, so that other threads and a lack of memory
//! do not delay it (`docs/decisions/043-lease-thread.md`).

use std::ffi::c_void;

use nearstate_model::{Error, Result};

use crate::system::failure;

/// The lowest priority of `SCHED_FIFO`: above all ordinary threads, below each other real-time one.
const PRIORITY: i32 = 1;

/// The processor time that a real-time thread may take without waiting, in microseconds. The kernel
/// ends a process that takes more (SIGXCPU), so that a defect does not occupy a processor.
const BUSY_MAX_US: u64 = 1_000_000;

/// The calling thread runs before all ordinary ones, as soon as it has something to do. What it
/// starts does not. A real-time thread of the process that takes a second of processor time without
/// waiting ends the process.
///
/// # Errors
/// `System`: the right is missing.
pub fn become_realtime() -> Result<()> {
    limit_busy_time()?;
    let parameters = libc::sched_param { sched_priority: PRIORITY };
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: 0 is the calling thread, and the kernel copies the parameters.
    if unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) } != 0 {
        return Err(failure("SCHED_FIFO is refused"));
    }
    Ok(())
}

/// A limit that is lower already stays.
fn limit_busy_time() -> Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel fills `limit`.
    if unsafe { libc::getrlimit(libc::RLIMIT_RTTIME, &raw mut limit) } != 0 {
        return Err(failure("getrlimit(RLIMIT_RTTIME) failed"));
    }
    limit.rlim_cur = limit.rlim_cur.min(BUSY_MAX_US).min(limit.rlim_max);
    // SAFETY: the kernel copies the limit.
    if unsafe { libc::setrlimit(libc::RLIMIT_RTTIME, &raw const limit) } != 0 {
        return Err(failure("setrlimit(RLIMIT_RTTIME) failed"));
    }
    Ok(())
}

/// The calling thread, and those that it starts, get a larger share of a busy processor.
///
/// # Errors
/// `System`: the right is missing.
pub fn raise_share(nice: i32) -> Result<()> {
    // SAFETY: 0 is the calling thread. No memory is involved.
    if unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) } != 0 {
        return Err(failure(format!("a nice value of {nice} is refused")));
    }
    Ok(())
}

/// A mapping of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
struct MappedRange {
    from: usize,
    bytes: usize,
    /// The program, a library, or their initialized data: a region is shared.
    is_program: bool,
}

/// A line of `/proc/self/maps`: `FROM-TO PERMISSIONS OFFSET DEVICE INODE PATH`.
fn range_of(line: &str) -> Option<MappedRange> {
    let mut words = line.split_ascii_whitespace();
    let (from, to) = words.next()?.split_once('-')?;
    let permissions = words.next()?;
    let inode: u64 = words.nth(2)?.parse().ok()?;
    let [from, to] = [from, to].map(|text| usize::from_str_radix(text, 16).ok());
    let (from, to) = (from?, to?);
    let is_program = permissions.ends_with('p') && permissions.starts_with('r') && inode != 0;
    Some(MappedRange { from, bytes: to.checked_sub(from)?, is_program })
}

/// Keeps the pages of the program and its libraries, and those of this thread's stack, in memory:
/// those of the program at once, those of the stack when they are used. Returns their bytes.
///
/// # Errors
/// `System`: the limit is too low, and how many bytes it must allow.
pub fn lock_program() -> Result<u64> {
    let maps = std::fs::read_to_string("/proc/self/maps").map_err(|error| Error::System {
        detail: "cannot read /proc/self/maps".to_owned(),
        errno: error.raw_os_error().unwrap_or(0),
    })?;
    let here = (&raw const maps).addr();
    let ranges: Vec<_> = maps.lines().filter_map(range_of).collect();
    let is_stack = |range: &MappedRange| (range.from..range.from + range.bytes).contains(&here);
    let wanted: Vec<_> =
        ranges.into_iter().filter(|range| range.is_program || is_stack(range)).collect();
    let bytes: usize = wanted.iter().map(|range| range.bytes).sum();
    for range in &wanted {
        let flags = if range.is_program { 0 } else { libc::MLOCK_ONFAULT };
        let address = std::ptr::without_provenance::<c_void>(range.from);
        // SAFETY: the kernel changes no byte. A range that was unmapped meanwhile is refused.
        let refused = unsafe { libc::mlock2(address, range.bytes, flags) };
        if refused != 0 {
            return Err(failure(format!("{bytes} bytes of memory cannot be locked")));
        }
    }
    Ok(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_of_the_program_are_told_from_regions_and_from_other_memory() {
        let is_program = |line: &str| range_of(line).map(|range| range.is_program);
        let text = "7f00-9f00 r-xp 00001000 fe:00 1234   /usr/bin/nearstate";
        let range = MappedRange { from: 0x7f00, bytes: 0x2000, is_program: true };
        assert_eq!(range_of(text), Some(range));
        assert_eq!(is_program("1000-2000 rw-p 00001000 fe:00 1234 /usr/bin/nearstate"), Some(true));
        assert_eq!(is_program("1000-2000 rw-s 00000000 00:19 99 /dev/shm/region"), Some(false));
        assert_eq!(is_program("1000-2000 ---p 00000000 fe:00 1234 /lib/libc.so"), Some(false));
        assert_eq!(is_program("1000-2000 rw-p 00000000 00:00 0 [heap]"), Some(false));
        for damaged in ["", "1000", "2000-1000 r-xp 0 fe:00 1", "x-y r-xp 0 fe:00 1"] {
            assert_eq!(range_of(damaged), None, "{damaged:?}");
        }
    }
}
