//! The memory of this process outside the region.

/// Gives memory that the allocator holds and nothing uses back to the system, and returns whether
/// there was any. The allocator does this by itself only for large blocks and at the end of its
/// arenas. Takes some tens of milliseconds per gigabyte, during which other threads may wait for
/// memory: call it when much was freed.
pub fn release_allocator_memory() -> bool {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: the call accesses the allocator's own memory, under the allocator's locks.
        unsafe { libc::malloc_trim(0) != 0 }
    }
    #[cfg(not(target_env = "gnu"))]
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Anonymous memory of this process in bytes.
    fn resident_bytes() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
    }

    #[test]
    #[cfg(target_env = "gnu")]
    fn freed_blocks_between_live_ones_go_back_to_the_system() {
        const BLOCKS: usize = 8192;
        let worker = std::thread::spawn(|| {
            let all: Vec<Vec<u8>> = (0..BLOCKS).map(|_| vec![1; 32 << 10]).collect();
            let full = resident_bytes();
            let live: Vec<Vec<u8>> = all.into_iter().step_by(64).collect();
            release_allocator_memory();
            let left = resident_bytes();
            assert_eq!(live.len(), BLOCKS / 64);
            assert!(left + (128 << 20) < full, "{full} bytes before, {left} after");
        });
        worker.join().unwrap();
    }
}
