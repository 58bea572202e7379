//! Resource usage of the process, as the kernel reports it.

use std::fs;

/// Resource usage of the process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProcessUsage {
    /// User time in seconds.
    pub user_seconds: f64,
    /// System time in seconds.
    pub system_seconds: f64,
    /// Resident memory in bytes, including mapped regions.
    pub resident_bytes: u64,
}

/// The unit of times in `/proc/<pid>/stat`: a hundredth of a second on all supported architectures.
const TICKS_PER_SECOND: f64 = 100.0;

/// Reads the usage; `None` if the kernel does not report it. Costs two small reads.
pub fn usage() -> Option<ProcessUsage> {
    read(
        &fs::read_to_string("/proc/self/stat").ok()?,
        &fs::read_to_string("/proc/self/status").ok()?,
    )
}

fn read(stat: &str, status: &str) -> Option<ProcessUsage> {
    // The name is in parentheses and may itself contain blanks and parentheses.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let mut seconds = || Some(fields.next()?.parse::<f64>().ok()? / TICKS_PER_SECOND);
    let (user_seconds, system_seconds) = (seconds()?, seconds()?);
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = resident.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(ProcessUsage { user_seconds, system_seconds, resident_bytes: kib.checked_mul(1024)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_stat_is_parsed_for_any_process_name() {
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194560 9 0 0 0 250 75 0 0 20 0 1 0 99 1 2";
        let status = "Name:\tx\nVmRSS:\t    2048 kB\nThreads:\t1\n";
        let used = read(stat, status);
        let expected =
            ProcessUsage { user_seconds: 2.5, system_seconds: 0.75, resident_bytes: 2 << 20 };
        assert_eq!(used, Some(expected));
        assert_eq!(read("7 (x) S 1", status), None);
        assert_eq!(read(stat, ""), None);
    }

    #[test]
    fn the_memory_of_this_process_is_measured() {
        assert!(usage().is_some_and(|used| used.resident_bytes > 0));
    }
}
