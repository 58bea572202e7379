//! The oracle with transactions that a kill cut short.

use super::*;

const FIRST: TortureKey = TortureKey { space: KeySpace::Own, writer: 0, number: 1 };
const SECOND: TortureKey = TortureKey { space: KeySpace::Own, writer: 0, number: 2 };

fn entry(tag: EntryKind, key: TortureKey, seq: u64, left: u8) -> JournalEntry {
    let (op, len, version) = (WriteKind::Put, 100, seq);
    JournalEntry { tag, op, key, left, seq, len, mask: 0, old: 0, version, at_ns: 0 }
}

fn found(key: TortureKey, seq: u64) -> (TortureKey, ObservedRecord) {
    let content = ContentStamp { key, block: 0, writer: 0, seq, len: 100 }.fingerprint();
    (key, ObservedRecord { content: RecordContent::Value(content), version: seq, count: 0 })
}

/// Both records in one transaction, which a kill cut short after this many acknowledgements.
fn after_a_kill(acks: usize) -> Oracle {
    let mut entries =
        vec![entry(EntryKind::Intent, FIRST, 1, 1), entry(EntryKind::Intent, SECOND, 2, 0)];
    let all = [entry(EntryKind::Ack, FIRST, 1, 1), entry(EntryKind::Ack, SECOND, 2, 0)];
    entries.extend(all.iter().take(acks));
    let mut oracle = Oracle::default();
    oracle.replay(0, &entries).unwrap();
    oracle
}

#[test]
fn a_transaction_that_was_cut_short_happened_completely_or_not_at_all() {
    let both = BTreeMap::from([found(FIRST, 1), found(SECOND, 2)]);
    assert_eq!(after_a_kill(0).compare(&both), Ok(()));
    assert_eq!(after_a_kill(0).compare(&BTreeMap::new()), Ok(()));
    for half in [found(FIRST, 1), found(SECOND, 2)] {
        assert!(after_a_kill(0).compare(&BTreeMap::from([half])).is_err());
    }
}

#[test]
fn one_acknowledgement_proves_the_whole_transaction() {
    let both = BTreeMap::from([found(FIRST, 1), found(SECOND, 2)]);
    for acks in 1..=2 {
        assert_eq!(after_a_kill(acks).compare(&both), Ok(()));
        assert!(after_a_kill(acks).compare(&BTreeMap::from([found(FIRST, 1)])).is_err());
        assert!(after_a_kill(acks).compare(&BTreeMap::new()).is_err());
    }
}

#[test]
fn a_writer_that_reads_half_of_its_transaction_is_a_violation() {
    let mut oracle = after_a_kill(0);
    let saw = |key, old, seq| JournalEntry { old, ..entry(EntryKind::Intent, key, seq, 0) };
    let new = found(FIRST, 1).1.content.fingerprint();
    // The first record is new, so the second must be new as well.
    let error = oracle.replay(0, &[saw(FIRST, new, 3), saw(SECOND, 0, 4)]).unwrap_err();
    assert!(error.contains("possible states"), "{error}");
    // Killed while it wrote its intents, before the call.
    let mut oracle = Oracle::default();
    oracle.replay(0, &[entry(EntryKind::Intent, FIRST, 1, 1)]).unwrap();
    assert!(oracle.clone().compare(&BTreeMap::from([found(FIRST, 1)])).is_err());
    assert_eq!(oracle.compare(&BTreeMap::new()), Ok(()));
}
