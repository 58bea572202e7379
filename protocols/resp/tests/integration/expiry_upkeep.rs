//! The background task that deletes expired records.

use std::time::Duration;

use crate::fixture::node;
use nearstate_node::executor::{Executor, ExecutorConfig, sleep, timeout};

/// Timeout of the test. It only ends a test that hangs.
const HANG_TIMEOUT: Duration = Duration::from_secs(100);

/// A session collects after sixteen commits of records that expire: these are never collected by
/// their writer.
const RECORDS: u8 = 15;

const VALUE_BYTES: u64 = 100_000;

#[test]
fn the_memory_of_expired_records_comes_back_without_a_command() {
    let node = node();
    let executor = Executor::new(&ExecutorConfig::default()).unwrap();
    executor.run(async move {
        let mut client = node.client();
        let live = || node.region.inspect().unwrap().heap.live;
        assert_eq!(client.ask("SET stays v"), "+OK|");
        let value = vec![b'v'; usize::try_from(VALUE_BYTES).unwrap()];
        for number in 0..RECORDS {
            assert_eq!(client.ask_bytes(&[b"SET", &[number], &value, b"PX", b"1"]), "+OK|");
        }
        let filled = live();
        assert!(filled > u64::from(RECORDS) * VALUE_BYTES, "nothing is collected yet");
        node.begin();
        let collected = async {
            while live() + u64::from(RECORDS) * VALUE_BYTES > filled {
                sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(HANG_TIMEOUT, collected).await.expect("expired records are deleted");
        assert_eq!(client.ask("GET stays"), "$1|v|");
    });
}
