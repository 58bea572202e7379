//! The background task that keeps memory usable and gives free memory back.

use std::time::Duration;

use crate::fixture::node_in;
use nearstate_node::executor::{Executor, ExecutorConfig, sleep, timeout};
use nearstate_store::CreateOptions;

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
