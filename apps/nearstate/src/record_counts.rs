//! Record counts and estimated sizes of namespaces, for `/metrics` and `nearstate top`.
//!
//! Writers do not maintain these counts, because a shared counter would slow down every write. The
//! counts come from iterating over the index in slices; an unfinished pass continues with the next
//! call. The idle time between passes is proportional to the duration of a pass, so counting takes
//! a small share of a thread for regions of any size.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use nearstate_store::{Namespace, Result, Session};

/// Buckets per slice: about 10 us, or 100 us if each record must be checked for expiry.
const SLICE_BUCKETS: u64 = 256;

/// Buckets in the size sample: about two hundred records, spread over the namespace.
const SAMPLE_BUCKETS: u64 = 64;

/// Maximum duration of a sample: a record of a thousand blocks takes as long as a hundred others.
const SAMPLE_TIME_MAX: Duration = Duration::from_micros(200);

/// Ratio of idle time to counting time: counting takes at most a twentieth of a thread.
const IDLE_FACTOR: u32 = 19;

/// The counts of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NamespaceCounts {
    pub(crate) name: String,
    /// Records, without expired ones.
    pub(crate) records: u64,
    /// Heap bytes of the records, estimated from a sample; without indexes.
    pub(crate) bytes: u64,
    /// Declared tags.
    pub(crate) tags: u64,
    /// Buckets of the index.
    pub(crate) buckets: u64,
}

/// The counts of all namespaces of a region, from the last completed pass over each.
#[derive(Debug, Default)]
pub(crate) struct RecordCounter {
    /// By namespace number.
    counted: BTreeMap<u32, NamespaceCounts>,
    round: Option<CountingPass>,
    /// When the next pass may start.
    next_pass: Option<Instant>,
}

/// A pass over all namespaces.
#[derive(Debug)]
struct CountingPass {
    left: VecDeque<(String, Namespace)>,
    /// The next bucket of the first namespace in `left`.
    from: u64,
    records: u64,
    spent: Duration,
}

impl CountingPass {
    fn next_namespace(&mut self) {
        (self.from, self.records) = (0, 0);
        self.left.pop_front();
    }
}

impl RecordCounter {
    /// Counts one slice, or nothing during the idle time. Returns true if the pass is not complete.
    ///
    /// # Errors
    /// As [`Session::count_part`]. The pass is aborted.
    pub(crate) fn step(&mut self, session: &Session) -> Result<bool> {
        let start = Instant::now();
        let round = match self.round.take() {
            Some(round) => round,
            None if self.next_pass.is_some_and(|next_pass| start < next_pass) => return Ok(false),
            None => {
                self.counted.retain(|number, _| session.has_namespace_number(*number));
                CountingPass {
                    left: session.namespaces()?.into(),
                    from: 0,
                    records: 0,
                    spent: Duration::ZERO,
                }
            }
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
            let part = session.count_part(*namespace, round.from, SLICE_BUCKETS);
            let counted = part.and_then(|(part, next)| {
                round.records += part.records;
                round.from = next.unwrap_or_default();
                let is_complete = next.is_none();
                is_complete
                    .then(|| namespace_counts(session, name, *namespace, round.records))
                    .transpose()
            });
            let is_removed = !session.has_namespace(*namespace);
            match counted {
                Ok(None) => {}
                Ok(Some(counted)) => {
                    self.counted.insert(namespace.number(), counted);
                    round.next_namespace();
                }
                Err(_) if is_removed => round.next_namespace(),
                Err(error) => return Err(error),
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

    /// The namespaces with the most records, in descending order, and the number of the others.
    pub(crate) fn largest(&self, most: usize) -> (Vec<NamespaceCounts>, usize) {
        let mut all: Vec<&NamespaceCounts> = self.counted.values().collect();
        // Stable: namespaces with equal counts keep their order.
        all.sort_by_key(|counted| std::cmp::Reverse((counted.records, counted.buckets)));
        let shown = all.iter().take(most).map(|counted| (*counted).clone()).collect();
        (shown, all.len().saturating_sub(most))
    }

    /// Records of all namespaces.
    pub(crate) fn records(&self) -> u64 {
        self.counted.values().map(|counted| counted.records).sum()
    }
}

/// The counts of a namespace with this many records.
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

/// Estimates the bytes of this many records from a sample of buckets spread over the index.
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
    // No records in the sample: the namespace is almost empty.
    Ok(sum.checked_div(u128::from(seen)).map_or(0, |sum| u64::try_from(sum).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearstate_store::{CreateOptions, Region, Schema, TagSchema};

    fn count_all(counter: &mut RecordCounter, session: &Session) {
        // Ends the idle time: the test does not wait.
        counter.next_pass = None;
        while counter.step(session).unwrap() {}
    }

    fn region() -> (tempfile::TempDir, Region) {
        let folder = tempfile::tempdir().unwrap();
        let region = Region::create(&folder.path().join("r"), &CreateOptions::default()).unwrap();
        (folder, region)
    }

    #[test]
    fn each_namespace_has_its_records_tags_and_estimated_bytes() {
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
        count_all(&mut counter, &session);
        let (all, others) = counter.largest(2);
        assert_eq!((all.len(), others, counter.records()), (2, 1, 5001));
        assert_eq!((all[0].name.as_str(), all[0].records, all[0].tags), ("many", 5000, 1));
        assert_eq!(
            all[0].bytes,
            5000 * 256,
            "44 bytes of header, 4 of key, 200 of value, in lines of 64"
        );
        assert_eq!((all[1].name.as_str(), all[1].records, all[1].tags), ("few", 1, 0));
        assert!((100_048..=131_072).contains(&all[1].bytes), "{}", all[1].bytes);
        session.delete(few, b"k").unwrap();
        count_all(&mut counter, &session);
        assert_eq!(counter.records(), 5000);
    }

    #[test]
    fn a_pass_is_followed_by_idle_time_without_counting() {
        let (_folder, region) = region();
        let session = region.session().unwrap();
        let ns = session.namespace("ns", &Schema::default()).unwrap();
        let mut counter = RecordCounter::default();
        count_all(&mut counter, &session);
        let next_pass = counter.next_pass.unwrap();
        counter.next_pass = next_pass.checked_add(Duration::from_secs(3600));
        session.put(ns, b"k", b"v").unwrap();
        assert!(!counter.step(&session).unwrap());
        assert_eq!(counter.records(), 0, "the previous count");
    }
}
