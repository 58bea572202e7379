//! The background task that keeps memory usable and gives free memory back.

use std::time::Duration;

use crate::fixture::node_in;
use nearstate_node::executor::{Executor, ExecutorConfig, sleep, timeout};
use nearstate_store::{CreateOptions, SourceClock, now_ms, since_boot};

/// Timeout of the test. It only ends a test that hangs.
const HANG_TIMEOUT: Duration = Duration::from_secs(100);

const RECORDS: u32 = 40_000;

#[test]
fn memory_purge_moves_records_together_and_gives_memory_back() {
    let node = node_in(&CreateOptions { bytes_max: 64 << 20, ..CreateOptions::default() });
    let executor = Executor::new(&ExecutorConfig::default()).unwrap();
    executor.run(async move {
        node.begin();
        let mut client = node.client();
        let value = vec![b'v'; 1000];
        for number in 0..RECORDS {
            client.ask_bytes(&[b"SET", &number.to_be_bytes(), &value]);
        }
        // Every tenth record stays, and none of the chunks is free.
        for number in (0..RECORDS).filter(|number| number % 10 != 0) {
            assert_eq!(client.ask_bytes(&[b"DEL", &number.to_be_bytes()]), ":1|");
        }
        let on_disk = || node.region.inspect().unwrap().bytes_on_disk;
        let before = on_disk();
        // One pass moves the records of an eighth of the region.
        let freed = async {
            while on_disk() > before / 2 {
                assert_eq!(client.ask("MEMORY PURGE"), "+OK|");
                sleep(Duration::from_millis(100)).await;
            }
        };
        timeout(HANG_TIMEOUT, freed).await.expect("memory goes back to the host");
        for number in (0..RECORDS).step_by(10) {
            assert!(client.ask_bytes(&[b"GET", &number.to_be_bytes()]).starts_with("$1000|"));
        }
    });
}

/// A former copy whose source's clock was an hour ahead.
#[test]
fn times_to_live_follow_the_clock_of_the_region_which_approaches_that_of_the_host() {
    const HOUR: u64 = 3_600_000;
    let node = node_in(&CreateOptions { bytes_max: 64 << 20, ..CreateOptions::default() });
    let session = node.region.session().unwrap();
    session.follow_clock(&mut SourceClock::default(), now_ms() + HOUR).unwrap();
    let executor = Executor::new(&ExecutorConfig::default()).unwrap();
    executor.run(async move {
        node.begin();
        let mut client = node.client();
        // Half an hour from now by the clock of the host: long ago.
        assert_eq!(client.ask(&format!("SET past v PXAT {}", now_ms() + HOUR / 2)), "+OK|");
        assert_eq!(client.ask("EXISTS past"), ":0|");
        assert_eq!(client.ask("SET key v EX 1000"), "+OK|");
        let number = |reply: String| {
            reply.trim_start_matches(':').trim_end_matches('|').parse::<u64>().unwrap()
        };
        assert!((990..=1000).contains(&number(client.ask("TTL key"))));
        assert!(number(client.ask("PEXPIRETIME key")) > now_ms() + HOUR / 2);
        let (before, begin) = (session.clock_shift_ms().unwrap(), since_boot());
        let approaches = async {
            // It wakes the task.
            while session.clock_shift_ms().unwrap() == before {
                assert_eq!(client.ask("MEMORY PURGE"), "+OK|");
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(HANG_TIMEOUT, approaches).await.expect("the clock approaches that of the host");
        // By the time that has passed, however often the task was woken.
        let moved = before - session.clock_shift_ms().unwrap();
        let most = since_boot().saturating_sub(begin).as_millis() / 100 + 100;
        assert!(moved > 0 && u128::from(moved.unsigned_abs()) <= most, "{moved} of {most} ms");
        assert!((990..=1000).contains(&number(client.ask("TTL key"))), "by a hundredth");
    });
}
