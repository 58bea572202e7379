//! A log that is full, or in a full heap: which entries it forgets, and which commits it refuses.

use nearstate_store::{Error, Kind, Schema, StreamItem, WhenFull};

use crate::fixture::TestRegion;
use crate::log::logged;

/// What a log holds is bounded: a namespace says whether the oldest entries are lost or commits are
/// refused.
#[test]
fn a_full_log_loses_its_oldest_or_refuses_as_its_policy_says() {
    let fixture = TestRegion::with_bytes(64 << 20);
    let session = fixture.region.session().unwrap();
    let value = vec![1_u8; 100_000];
    for policy in [WhenFull::LoseOldest, WhenFull::Refuse] {
        let ns = logged(&session, &format!("{policy:?}"), Kind::Value, policy);
        let mut written = 0;
        let refused = (0..200_u32).find_map(|round| {
            let done = session.put(ns, &(round % 2).to_le_bytes(), &value);
            written += u64::from(done.is_ok());
            done.err()
        });
        let mut stream = session.commit_stream().unwrap();
        let (mut read, mut lost) = (0, 0);
        while let Some(item) = stream.next().unwrap() {
            match item {
                StreamItem::Transaction(_) => read += 1,
                StreamItem::Lost { transactions } => lost += transactions,
            }
        }
        if policy == WhenFull::LoseOldest {
            // The declaration of the namespace has a position, too.
            assert_eq!((refused, written, read + lost), (None, 200, 201));
            assert!(lost >= 100 && read >= 10, "{read} read, {lost} lost");
            stream.acknowledge().unwrap();
        } else {
            assert!(matches!(refused, Some(Error::Behind { .. })), "{refused:?}");
            assert_eq!((read, lost), (written, 0));
            assert!((20..60).contains(&written), "{written} entries of 100 kB fill 4 MiB");
            assert!(session.put(ns, &0_u32.to_le_bytes(), &value).is_err());
            stream.acknowledge().unwrap();
            session.put(ns, &0_u32.to_le_bytes(), &value).unwrap();
        }
    }
    drop(session);
    fixture.close_and_check();
}

/// An entry of more than an eighth of what the log may hold waits until the log holds half of that.
/// So a record of any size can be replaced and deleted, also one that is larger than all of it.
#[test]
fn a_large_record_is_replaced_and_deleted_once_the_log_has_room() {
    let fixture = TestRegion::with_bytes(64 << 20);
    let session = fixture.region.session().unwrap();
    let ns = logged(&session, "s", Kind::Value, WhenFull::Refuse);
    let acknowledge = || {
        let mut stream = session.commit_stream().unwrap();
        while stream.next().unwrap().is_some() {}
        stream.acknowledge().unwrap();
    };
    // The log may hold 4 MiB.
    for bytes in [1_usize << 20, 12 << 20] {
        session.put(ns, b"large", &vec![1; bytes]).unwrap();
        for round in 0..30_u32 {
            session.put(ns, b"small", &vec![round as u8; 100_000]).unwrap();
        }
        let refused = session.put(ns, b"large", b"small");
        assert!(matches!(refused, Err(Error::Behind { .. })), "{refused:?}");
        let refused = session.delete(ns, b"large");
        assert!(matches!(refused, Err(Error::Behind { .. })), "{refused:?}");
        acknowledge();
        session.put(ns, b"large", &vec![2; bytes]).unwrap();
        acknowledge();
        assert!(session.delete(ns, b"large").unwrap());
        acknowledge();
    }
    drop(session);
    fixture.close_and_check();
}

/// A promotion leaves room for the versions that entries of the log may have.
#[test]
fn a_delete_that_a_full_log_refuses_takes_no_versions() {
    let fixture = TestRegion::with_bytes(64 << 20);
    let session = fixture.region.session().unwrap();
    let ns = logged(&session, "s", Kind::Value, WhenFull::Refuse);
    session.put(ns, b"k", b"v").unwrap();
    let value = vec![1_u8; 100_000];
    while session.put(ns, b"large", &value).is_ok() {}
    for _ in 0..1000 {
        let refused = session.delete(ns, b"k");
        assert!(matches!(refused, Err(Error::Behind { .. })), "{refused:?}");
    }
    let tail = session.log_tail_position().unwrap();
    session.acknowledge_to(tail).unwrap();
    session.release_to(tail, tail).unwrap();
    assert!(session.delete(ns, b"k").unwrap());
    let version = session.put(ns, b"k", b"v").unwrap();
    assert!(version < 100, "{version}");
    drop(session);
    fixture.close_and_check();
}

/// A second reader, beside the consumer that acknowledges.
#[test]
fn a_log_that_keeps_entries_keeps_them_for_a_reader_that_holds_it_and_refuses_no_commit() {
    let fixture = TestRegion::with_bytes(64 << 20);
    let session = fixture.region.session().unwrap();
    let ns = logged(&session, "s", Kind::Value, WhenFull::Refuse);
    let begin = session.log_tail_position().unwrap();
    let read = |behind: u64| {
        let mut stream = session.commit_stream_behind(behind).unwrap();
        let (mut read, mut lost) = (0, 0);
        while let Some(item) = stream.next().unwrap() {
            match item {
                StreamItem::Transaction(_) => read += 1,
                StreamItem::Lost { transactions } => lost += transactions,
            }
        }
        (read, lost)
    };
    let release = || {
        let tail = session.log_tail_position().unwrap();
        session.acknowledge_to(tail).unwrap();
        session.release_to(tail, tail).unwrap();
        tail
    };
    fixture.region.hold_log(Some(begin));
    for round in 0..10_u32 {
        session.put(ns, b"k", &round.to_le_bytes()).unwrap();
        release();
    }
    assert_eq!(read(begin), (10, 0), "held");
    // By the consumer that acknowledges what it has read, as well.
    let mut stream = session.commit_stream().unwrap();
    while stream.next().unwrap().is_some() {}
    stream.acknowledge().unwrap();
    drop(stream);
    assert_eq!(read(begin), (10, 0), "held");
    fixture.region.hold_log(Some(begin + 6));
    release();
    assert_eq!(read(begin + 6), (4, 0), "held behind a later position");
    assert_eq!(read(begin), (4, 6), "the rest is released");
    // A reader that is too far behind loses entries. Writers go on.
    for round in 0..200_u32 {
        session.put(ns, &(round % 2).to_le_bytes(), &vec![1; 100_000]).unwrap();
        release();
    }
    let (kept, lost) = read(begin + 6);
    assert!(lost >= 100 && kept + lost == 204, "{kept} kept, {lost} lost");
    fixture.region.hold_log(None);
    let tail = release();
    assert_eq!(read(tail - 1), (0, 1), "nothing is held");
    drop(session);
    fixture.close_and_check();
}

/// Replaced values are free for others once the log has given them up, at any time and in any
/// session.
#[test]
fn a_log_leaves_the_heap_to_the_records() {
    let fixture = TestRegion::with_bytes(64 << 20);
    let writers = [(); 3].map(|()| fixture.region.session().unwrap());
    let ns = logged(&writers[0], "s", Kind::Value, WhenFull::LoseOldest);
    // 48 MiB of records in 64 MiB, each replaced four times by another writer.
    for round in 0..5_u32 {
        for key in 0..12_000_u32 {
            let writer = &writers[(key + round) as usize % 3];
            writer.put(ns, &key.to_le_bytes(), &[round as u8; 4000]).unwrap();
        }
    }
    for key in 0..12_000_u32 {
        assert!(writers[key as usize % 3].delete(ns, &key.to_le_bytes()).unwrap());
    }
    // All of it serves other sizes.
    let plain = writers[0].namespace("plain", &Schema::default()).unwrap();
    let stored = (0..10_000_u32)
        .take_while(|key| writers[0].put(plain, &key.to_le_bytes(), &[1; 9000]).is_ok())
        .count();
    assert!(stored * 9000 > 50 << 20, "{stored} records of 9 kB");
    drop(writers);
    fixture.close_and_check();
}

/// One follower has acknowledged everything, another one that counts has not, and a third joins.
#[test]
fn a_full_log_refuses_commits_until_each_follower_that_counts_has_an_entry() {
    let fixture = TestRegion::with_bytes(64 << 20);
    let session = fixture.region.session().unwrap();
    let kept = logged(&session, "kept", Kind::Value, WhenFull::Refuse);
    let plain = session.namespace("plain", &Schema::default()).unwrap();
    let (value, tail) = (vec![1; 100_000], || session.log_tail_position().unwrap());
    let fill = || {
        (0..200_u32).find_map(|round| {
            let done = session.put(kept, &(round % 2).to_le_bytes(), &value);
            session.acknowledge_to(tail()).unwrap();
            done.err()
        })
    };
    let is_kept = |position: u64| {
        let mut stream = session.commit_stream_behind(position).unwrap();
        matches!(stream.next().unwrap(), Some(StreamItem::Transaction(_)))
    };
    session.put(kept, b"k", b"1").unwrap();
    let slow = tail();
    session.release_to(slow, slow).unwrap();
    assert!(matches!(fill(), Some(Error::Behind { .. })), "the log is full");
    assert!(is_kept(slow), "the slow follower gets the rest");
    // A full heap takes no more than a full log.
    let mut count = 0_u32;
    while session.put(plain, &count.to_le_bytes(), &[1; 900]).is_ok() {
        count += 1;
    }
    assert!(is_kept(slow), "the slow follower gets the rest");
    for key in 0..count {
        assert!(session.delete(plain, &key.to_le_bytes()).unwrap());
    }
    // It has caught up. What is held for one that joins makes no commit wait.
    session.release_to(slow, tail()).unwrap();
    assert!(is_kept(slow), "the log has room again only when a commit needs it");
    session.put(kept, b"k", b"2").unwrap();
    assert!(!is_kept(slow));
    drop(session);
    fixture.close_and_check();
}

#[test]
fn a_full_heap_with_a_log_that_keeps_entries_names_the_log() {
    let fixture = TestRegion::with_bytes(64 << 20);
    let session = fixture.region.session().unwrap();
    let plain = session.namespace("plain", &Schema::default()).unwrap();
    let kept = logged(&session, "kept", Kind::Value, WhenFull::Refuse);
    session.put(kept, b"k", b"1").unwrap();
    let mut count = 0_u32;
    while session.put(plain, &count.to_le_bytes(), &[1; 900]).is_ok() {
        count += 1;
    }
    while session.put(plain, &count.to_le_bytes(), &[]).is_ok() {
        count += 1;
    }
    let refused = session.delete(kept, b"k").unwrap_err();
    assert!(matches!(refused, Error::Behind { .. }), "{refused}");
    for key in 0..100_u32 {
        assert!(session.delete(plain, &key.to_le_bytes()).unwrap());
    }
    assert!(session.delete(kept, b"k").unwrap());
    drop(session);
    fixture.close_and_check();
}

/// The log of a partition is released by what its node says, not by what counts as replicated: a
/// slower member would lose what it lacks, and join anew.
#[test]
fn writers_do_not_release_the_log_of_a_partition() {
    let fixture = TestRegion::with_bytes(64 << 20);
    let session = fixture.region.session().unwrap();
    session.begin_partition(1).unwrap();
    let kept = logged(&session, "kept", Kind::Value, WhenFull::Refuse);
    let refused = loop {
        match session.put(kept, b"k", &[1; 9000]) {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, Error::Behind { .. }), "{refused}");
    // One of two members has everything.
    let tail = session.log_tail_position().unwrap();
    session.acknowledge_to(tail).unwrap();
    let refused = session.put(kept, b"k", &[1; 9000]).unwrap_err();
    assert!(matches!(refused, Error::Behind { .. }), "{refused}");
    // Both have.
    session.release_to(tail, tail).unwrap();
    session.put(kept, b"k", &[1; 9000]).unwrap();
    drop(session);
    fixture.close_and_check();
}
