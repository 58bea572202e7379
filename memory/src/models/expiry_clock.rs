//! Model of the anchor of the clock of expiry (`region/expiry_clock.rs`).

use super::{check, start, wait_for};
use crate::atomic::AtomicU64;
use crate::layout::seal;
use crate::region::expiry_clock::{anchor_of, store_anchor};

const ANCHOR: &str = "expiry_clock::a_reader_takes_no_anchor_of_another_boot";

/// The mutants, and for each the model that must fail.
pub(super) const MUTANTS: &[(&str, &str)] =
    &[("anchor-relaxed", ANCHOR), ("anchor-boot-relaxed", ANCHOR)];

const EARLIER: u64 = 3;
const PRESENT: u64 = 5;

/// The words after a start of the machine: those of the boot before.
struct Words([AtomicU64; 2]);

impl Words {
    fn both(&self) -> [&AtomicU64; 2] {
        let [anchor, boot] = &self.0;
        [anchor, boot]
    }
}

#[test]
fn a_reader_takes_no_anchor_of_another_boot() {
    check(|| {
        let words = Words([AtomicU64::new(0), AtomicU64::new(0)]);
        store_anchor(words.both(), EARLIER, 1_000);
        assert_eq!(anchor_of(words.both(), EARLIER).unwrap(), Some(1_000));
        let words = loom::sync::Arc::new(words);
        let node = start(&words, |words: &Words| {
            store_anchor(words.both(), PRESENT, 2_000);
            store_anchor(words.both(), PRESENT, 1_990);
        });
        let reader = start(&words, |words: &Words| {
            let found = anchor_of(words.both(), PRESENT).unwrap();
            assert!([None, Some(2_000), Some(1_990)].contains(&found), "{found:?}");
        });
        wait_for([node, reader]);
        assert_eq!(anchor_of(words.both(), PRESENT).unwrap(), Some(1_990));
        assert_eq!(anchor_of(words.both(), EARLIER).unwrap(), None);
        assert!(anchor_of([&AtomicU64::new(1), &AtomicU64::new(seal(PRESENT))], PRESENT).is_err());
    });
}
