//! Processor time and memory of a target's processes, from `/proc`.

/// Processor time of these processes so far, user and system, in nanoseconds.
pub fn cpu_ns(processes: &[u32]) -> u64 {
    processes.iter().filter_map(|process| cpu_ns_of(*process)).sum()
}

/// The larger of two sources: the sum over living threads, in nanoseconds, and `/proc/PID/stat`,
/// in hundredths of a second but with the threads that have ended.
fn cpu_ns_of(process: u32) -> Option<u64> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).ok()?;
    let ran = |path: std::path::PathBuf| -> Option<u64> {
        let text = std::fs::read_to_string(path.join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse().ok()
    };
    let living = tasks.filter_map(Result::ok).filter_map(|task| ran(task.path())).sum();
    Some(all_threads_ns(process).unwrap_or(0).max(living))
}

/// Nanoseconds of a tick of `/proc/PID/stat`: `USER_HZ` is 100 on all supported architectures.
const TICK_NS: u64 = 10_000_000;

/// User and system time of a process in `/proc/PID/stat`: the twelfth and thirteenth word after the
/// name, which may contain any characters.
fn all_threads_ns(process: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let mut words = text.rsplit(") ").next()?.split_whitespace().skip(11);
    let (user, system): (u64, u64) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    Some((user + system) * TICK_NS)
}

/// Private and shared memory of these processes, in bytes (`VmRSS`).
pub fn memory_bytes(processes: &[u32]) -> u64 {
    processes.iter().filter_map(|process| memory_of(*process)).sum()
}

/// The same without shared memory (`RssShmem`), such as a region.
pub fn own_memory_bytes(processes: &[u32]) -> u64 {
    let own = |process| {
        Some(status_of(process, "VmRSS:")?.saturating_sub(status_of(process, "RssShmem:")?))
    };
    processes.iter().filter_map(|process| own(*process)).sum()
}

fn memory_of(process: u32) -> Option<u64> {
    status_of(process, "VmRSS:")
}

fn status_of(process: u32, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

/// The child processes of a process.
pub fn children(process: u32) -> Vec<u32> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{process}/task")) else { return Vec::new() };
    let mut all = Vec::new();
    for task in tasks.filter_map(Result::ok) {
        let text = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        all.extend(text.split_whitespace().filter_map(|word| word.parse::<u32>().ok()));
    }
    all
}

/// The descendants of a process.
pub fn descendants(process: u32) -> Vec<u32> {
    let mut all = Vec::new();
    let mut left = vec![process];
    while let Some(parent) = left.pop() {
        let more = children(parent);
        left.extend(&more);
        all.extend(more);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_time_and_memory() {
        let own = [std::process::id()];
        let before = cpu_ns(&own);
        let mut sum = 0_u64;
        for i in 0..20_000_000_u64 {
            sum = std::hint::black_box(sum ^ i.wrapping_mul(sum | 1));
        }
        assert!(cpu_ns(&own) > before, "{sum}");
        assert!(memory_bytes(&own) > 100_000);
        assert!(own_memory_bytes(&own) > 100_000 && own_memory_bytes(&own) <= memory_bytes(&own));
        assert_eq!(cpu_ns(&[u32::MAX]), 0);
    }

    #[test]
    fn children_of_children_are_found() {
        let mut shell = std::process::Command::new("sh")
            .args(["-c", "sleep 30 & echo started; wait"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let output = shell.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line).unwrap();
        let found = descendants(std::process::id());
        assert!(found.contains(&shell.id()), "{found:?}");
        assert!(!descendants(shell.id()).is_empty());
        for process in descendants(shell.id()) {
            let _ = std::process::Command::new("kill").arg(process.to_string()).status();
        }
        shell.wait().unwrap();
    }
}
