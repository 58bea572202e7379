//! How many records each namespace has, and about how many bytes they take: what `/metrics` and
//! `nearstate top` tell.
//!
//! Nobody keeps such counts while records come and go: a count that every writer adds to would cost
//! each of them. So whoever wants to know walks the index, a slice at a time, and a round that is
//! not done goes on with the next question. What a round costs says how soon the next one may
//! begin, so that counting takes a small share of the time however large the region is.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use nearstate_store::{Namespace, Result, Session};

/// Buckets that a slice counts: some 10 us, and 100 us where each record has to be touched because
/// it may have ended.
const SLICE_BUCKETS: u64 = 256;

/// Buckets whose records are looked at to learn how large they are: some two hundred records, from
/// places all over the namespace.
const SAMPLE_BUCKETS: u64 = 64;

/// How long a sample may take: a record of a thousand blocks takes as long as a hundred others.
const SAMPLE_TIME_MAX: Duration = Duration::from_micros(200);

/// After a round of counting so many times as long nothing is counted: a twentieth of one thread at
/// most.
const IDLE_FACTOR: u32 = 19;

/// A namespace as it was when it was counted last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NamespaceCounts {
    pub(crate) name: String,
    /// Records, those past their time left out.
    pub(crate) records: u64,
    /// Bytes of the heap that they take, from a sample; not what indexes take.
    pub(crate) bytes: u64,
    /// Tags that are declared.
    pub(crate) tags: u64,
    /// Buckets of its index.
    pub(crate) buckets: u64,
}

/// The namespaces of a region, as they were counted last.
#[derive(Debug, Default)]
pub(crate) struct RecordCounter {
    /// By the namespace's number.
    counted: BTreeMap<u32, NamespaceCounts>,
    round: Option<CountingPass>,
    /// When the next round may begin.
    next_pass: Option<Instant>,
}

/// A round over all namespaces.
#[derive(Debug)]
struct CountingPass {
    left: VecDeque<(String, Namespace)>,
    /// The bucket that is counted next, of the first of those.
    from: u64,
    records: u64,
    spent: Duration,
}

impl RecordCounter {
    /// Counts a slice, or nothing if the last round was too short a time ago. `true`: there is more
    /// to count now.
    ///
    /// # Errors
    /// As [`Session::count_part`]; the round is given up.
    pub(crate) fn step(&mut self, session: &Session) -> Result<bool> {
        let start = Instant::now();
        let round = match self.round.take() {
            Some(round) => round,
            None if self.next_pass.is_some_and(|next_pass| start < next_pass) => return Ok(false),
            None => CountingPass {
                left: session.namespaces()?.into(),
                from: 0,
                records: 0,
                spent: Duration::ZERO,
            },
        };
        self.count_slice(round, session, start)
    }

    fn count_slice(
        &mut self,
        mut round: CountingPass,
        session: &Session,
        start: Instant,
    ) -> Result<bool> {
        if let Some((name, namespace)) = round.left.front() {
            let (part, next) = session.count_part(*namespace, round.from, SLICE_BUCKETS)?;
            round.records += part.records;
            round.from = next.unwrap_or_default();
            if next.is_none() {
                let counted = namespace_counts(session, name, *namespace, round.records)?;
                self.counted.insert(namespace.number(), counted);
                round.records = 0;
                round.left.pop_front();
            }
        }
        let now = Instant::now();
        round.spent += now.saturating_duration_since(start);
        if round.left.is_empty() {
            self.next_pass = now.checked_add(round.spent.saturating_mul(IDLE_FACTOR));
            return Ok(false);
        }
        self.round = Some(round);
        Ok(true)
    }

    /// Those with the most records, the largest first, and how many others there are.
    pub(crate) fn largest(&self, most: usize) -> (Vec<NamespaceCounts>, usize) {
        let mut all: Vec<&NamespaceCounts> = self.counted.values().collect();
        // Stable: of equal ones the older comes first, each time.
        all.sort_by_key(|counted| std::cmp::Reverse((counted.records, counted.buckets)));
        let shown = all.iter().take(most).map(|counted| (*counted).clone()).collect();
        (shown, all.len().saturating_sub(most))
    }

    /// Records of all namespaces.
    pub(crate) fn records(&self) -> u64 {
        self.counted.values().map(|counted| counted.records).sum()
    }
}

/// What is known of a namespace beside its number of records.
fn namespace_counts(
    session: &Session,
    name: &str,
    namespace: Namespace,
    records: u64,
) -> Result<NamespaceCounts> {
    let buckets = session.buckets(namespace)?.count();
    Ok(NamespaceCounts {
        name: name.to_owned(),
        records,
        bytes: estimate_bytes(session, namespace, (records, buckets))?,
        tags: session.tags(namespace)?.len() as u64,
        buckets,
    })
}

/// About what so many records in so many buckets take, from buckets all over the index.
fn estimate_bytes(
    session: &Session,
    namespace: Namespace,
    (records, all): (u64, u64),
) -> Result<u64> {
    let (mut seen, mut bytes) = (0_u64, 0_u64);
    let step = (all / SAMPLE_BUCKETS).max(1);
    let mut bucket = 0;
    let start = Instant::now();
    // At least one record, however long it takes.
    while bucket < all && (seen == 0 || start.elapsed() < SAMPLE_TIME_MAX) {
        session.walk_part(namespace, bucket, 1, |view| {
            seen += 1;
            bytes += view.taken_bytes()?;
            Ok(())
        })?;
        bucket += step;
    }
    let sum = u128::from(bytes) * u128::from(records);
    // No records in the sample: there are next to none.
    Ok(sum.checked_div(u128::from(seen)).map_or(0, |sum| u64::try_from(sum).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearstate_store::{CreateOptions, Region, Schema, TagSchema};

    fn whole(counter: &mut RecordCounter, session: &Session) {
        // A round that was is forgotten: a test does not wait.
        counter.next_pass = None;
        while counter.step(session).unwrap() {}
    }

    fn region() -> (tempfile::TempDir, Region) {
        let folder = tempfile::tempdir().unwrap();
        let region = Region::create(&folder.path().join("r"), &CreateOptions::default()).unwrap();
        (folder, region)
    }

    #[test]
    fn each_namespace_has_its_records_its_tags_and_about_its_bytes() {
        let (_folder, region) = region();
        let session = region.session().unwrap();
        let tags = vec![TagSchema { name: "imsi".to_owned(), ..TagSchema::default() }];
        let many = session.namespace("many", &Schema { tags, ..Schema::default() }).unwrap();
        let few = session.namespace("few", &Schema::default()).unwrap();
        session.namespace("none", &Schema::default()).unwrap();
        for number in 0..5000_u32 {
            session.put(many, &number.to_le_bytes(), &[1; 200]).unwrap();
        }
        session.put(few, b"k", &vec![1; 100_000]).unwrap();
        let mut counter = RecordCounter::default();
        assert!(counter.step(&session).unwrap(), "more than one slice");
        whole(&mut counter, &session);
        let (all, others) = counter.largest(2);
        assert_eq!((all.len(), others, counter.records()), (2, 1, 5001));
        assert_eq!((all[0].name.as_str(), all[0].records, all[0].tags), ("many", 5000, 1));
        assert_eq!(all[0].bytes, 5000 * 256, "44 bytes of head, 4 of key, 200, in lines of 64");
        assert_eq!((all[1].name.as_str(), all[1].records, all[1].tags), ("few", 1, 0));
        assert!((100_048..=131_072).contains(&all[1].bytes), "{}", all[1].bytes);
        session.delete(few, b"k").unwrap();
        whole(&mut counter, &session);
        assert_eq!(counter.records(), 5000);
    }

    #[test]
    fn a_round_is_followed_by_a_rest_in_which_nothing_is_counted() {
        let (_folder, region) = region();
        let session = region.session().unwrap();
        let ns = session.namespace("ns", &Schema::default()).unwrap();
        let mut counter = RecordCounter::default();
        whole(&mut counter, &session);
        let next_pass = counter.next_pass.unwrap();
        counter.next_pass = next_pass.checked_add(Duration::from_secs(3600));
        session.put(ns, b"k", b"v").unwrap();
        assert!(!counter.step(&session).unwrap());
        assert_eq!(counter.records(), 0, "as it was counted last");
    }
}
