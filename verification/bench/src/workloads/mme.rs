//! Paper 3's database of an MME (Gasiunas and others, "Fiber-based Architecture for NFV Cloud
//! Databases", PVLDB 10, 2017, section 4): one session object for each subscriber.
//!
//! From the paper: an object is a tree of 1 to 4 KB; it has a primary key and three indexed
//! fields, two of them unique over the whole database; the application caches what it reads, so
//! there are almost no reads. `mme-insert` attaches subscribers and detaches them, each of which
//! modifies the object and all three indexes. `mme-update` modifies sections of the tree that are
//! not indexed.
//!
//! Our choice, because the paper leaves it open: the sections and their sizes, which fields are
//! indexed (MSISDN and GUTI are unique, the tracking area is not), that sizes are uniform from 1 to
//! 4 KB, that an update changes one of five sections, and that half of the subscribers are
//! attached.
//!
//! ```text
//! key  IMSI, 15 digits          tags  MSISDN 12 digits, GUTI 10 bytes (new on each attach), TAI 5
//! part                 share of the object (64ths)
//! subscription         20   holds the MSISDN
//! mobility              6   holds the GUTI
//! location              4   holds the TAI
//! security, pdn, bearers, timers, status    6, 10, 10, 2, 6: what an update changes
//! ```

use super::support::record_model::{ComparedRecords, Mutation, RecordForm, RecordModel};
use super::support::share::{self, Share};
use super::{
    ClientPart, PaperFigureSpec, Parameters, Requirements, Tally, Workload, WorkloadKind,
    WorkloadSpec,
};
use crate::access::{Connection, PartSet, StoreSchema, TableSchema, TagRule};
use crate::random::{self, Distributions as _, RecordSequence, Rng, draw};
use crate::result::Check;
use crate::stat::as_f64;
use nearstate_model::Result;

/// The smallest object, in bytes.
const OBJECT_BYTES_MIN: usize = 1024;

/// The largest.
const OBJECT_BYTES_MAX: usize = 4096;

/// Tracking areas of the network: a thousand cells each serve some hundred subscribers.
const AREAS: u64 = 1000;

/// Sections of the tree.
const SECTIONS: usize = 8;

/// Share of each in an object, in 64ths.
const SHARES: [usize; SECTIONS] = [20, 6, 4, 6, 10, 10, 2, 6];

/// The first section that no index depends on. No index depends on the later ones either.
const UNINDEXED: u64 = 3;

const SESSIONS: TableSchema = TableSchema {
    name: "session",
    parts: &[
        "subscription",
        "mobility",
        "location",
        "security",
        "pdn",
        "bearers",
        "timers",
        "status",
    ],
    tags: &[
        TagRule { name: "msisdn", is_unique: true },
        TagRule { name: "guti", is_unique: true },
        TagRule { name: "tai", is_unique: false },
    ],
    is_scanned: false,
};

/// One of the two workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mme {
    /// `mme-insert`.
    Insert,
    /// `mme-update`.
    Update,
}

const INSERT: WorkloadSpec = WorkloadSpec {
    name: "mme-insert",
    title: "an MME attaches and detaches subscribers: 1 to 4 KB, three indexes",
    source: "paper 3, section 4: Gasiunas et al., Fiber-based Architecture for NFV Cloud \
             Databases, PVLDB 10(12), 2017",
    variants: &[("paper", "one object of 1 to 4 KB, two unique indexes and one that is not")],
    records: 50_000,
    classes: &["attach", "detach"],
    paper_figures: &[
        (SCALE_UP, "structures that an insert modifies, with replicas", "8"),
        (SCALE_UP, "cores up to which the multi-threaded form scales", "2"),
        (SCALE_OUT, "processor time of an insert, object, indexes, replicas", "< 80 µs"),
        (SCALE_OUT, "round trips of an insert, each 80 to 120 µs when idle", "4"),
        FIBERS,
        MACHINES,
        LATENCY,
        TAIL,
    ],
    schema: StoreSchema { tables: &[SESSIONS] },
    caveats: &[
        "paper 3 keeps a hot replica of each object and index on other machines; here is one copy",
    ],
    ..WorkloadSpec::DEFAULT
};

const UPDATE: WorkloadSpec = WorkloadSpec {
    name: "mme-update",
    title: "an MME changes a section of a session of 1 to 4 KB, no index",
    classes: &["update"],
    paper_figures: &[
        (SCALE_UP, "structures that an update modifies, with replicas", "2"),
        (SCALE_UP, "cores up to which the multi-threaded form scales", "5"),
        (SCALE_OUT, "round trips of an update, each 80 to 120 µs when idle", "2"),
        FIBERS,
        MACHINES,
        LATENCY,
        TAIL,
    ],
    ..INSERT
};

impl WorkloadKind for Mme {
    fn spec(&self) -> &'static WorkloadSpec {
        match self {
            Self::Insert => &INSERT,
            Self::Update => &UPDATE,
        }
    }

    fn size(&self, parameters: &Parameters) -> (u64, u64) {
        (parameters.records, OBJECT_BYTES_MAX as u64)
    }

    fn requirements(&self, _: &Parameters) -> Requirements {
        let delta = *self == Self::Update;
        Requirements { delta, unique_tag: true, ..Requirements::default() }
    }

    fn new_client(&self, parameters: &Parameters, part: ClientPart) -> Result<Box<dyn Workload>> {
        let share = part.share;
        let seed = draw(parameters.seed, share.first, 1);
        let form = MmeSession { seed: parameters.seed, records: share.all };
        Ok(Box::new(Client {
            model: RecordModel::new(form, &SESSIONS, parameters, share)?,
            sequence: RecordSequence::new(parameters.spread, share.count, seed)?,
            rng: random::rng(seed ^ 1),
            operation: *self,
            share,
            picked: Vec::new(),
            mutations: Vec::new(),
            counts: [0; 2],
            sections: [0; SECTIONS],
            bytes: (0, 0),
        }))
    }
}

const SCALE_UP: &str = "paper 3, section 4.1 (Figures 3 to 5)";
const SCALE_OUT: &str = "paper 3, section 4.2 (Figures 6 to 8)";

/// The paper's figures for both workloads.
const FIBERS: PaperFigureSpec = (
    SCALE_UP,
    "fibers on 1 to 11 cores of a Xeon E5-2690 v3: throughput, and use of each core",
    "almost linear, 95 to 100 %",
);
const MACHINES: PaperFigureSpec = (
    SCALE_OUT,
    "fibers on 5 to 85 virtual machines of one core, Xeon E5-2620: total throughput",
    "linear",
);
const LATENCY: PaperFigureSpec = (
    SCALE_OUT,
    "mean latency of the two workloads at half load, over 10-Gbit Ethernet",
    "300 and 500 µs",
);
const TAIL: PaperFigureSpec =
    (SCALE_OUT, "90th percentile of latency at half load", "below 1 ms for most");

/// The layout of a session.
#[derive(Clone, Copy, Debug)]
struct MmeSession {
    seed: u64,
    records: u64,
}

/// The stream of draws that depend only on the record, separate from those of contents.
const SIZE: u64 = u64::MAX;
const AREA: u64 = u64::MAX - 1;

impl MmeSession {
    /// Bytes of a subscriber's object: uniform from 1 to 4 KB.
    fn object_bytes(&self, record: u64) -> usize {
        let choices = (OBJECT_BYTES_MAX - OBJECT_BYTES_MIN + 1) as u64;
        let drawn = random::rng(draw(self.seed, record, SIZE)).below(choices);
        OBJECT_BYTES_MIN + usize::try_from(drawn).unwrap_or(0)
    }
}

impl RecordForm for MmeSession {
    fn key(&self, record: u64, _: u32, out: &mut Vec<u8>) {
        out.extend_from_slice(b"001010");
        out.extend_from_slice(&share::digits::<9>(record));
    }

    /// The last section has what rounding leaves.
    fn part_bytes(&self, record: u64, part: usize) -> usize {
        let bytes = self.object_bytes(record);
        let of = |share: &usize| bytes * share / 64;
        if part + 1 == SECTIONS {
            let before: usize = SHARES.iter().take(part).map(of).sum();
            return bytes - before;
        }
        SHARES.get(part).map_or(0, of)
    }

    fn tag(&self, tag: usize, record: u64, generation: u32, out: &mut Vec<u8>) {
        match tag {
            0 => {
                out.extend_from_slice(b"888");
                out.extend_from_slice(&share::digits::<9>(record));
            }
            1 => {
                // The group of the MME, and the new temporary identity.
                out.extend_from_slice(&[0x00, 0xF1, 0x10, 0x80, 0x01, 0x01]);
                let identity = share::unique_32(record, generation, self.records);
                out.extend_from_slice(&identity.to_be_bytes());
            }
            _ => {
                let mut rng = random::rng(draw(self.seed, record, AREA - u64::from(generation)));
                let area = rng.below(AREAS).to_be_bytes();
                out.extend_from_slice(&[0x00, 0xF1, 0x10]);
                out.extend_from_slice(area.last_chunk::<2>().unwrap_or(&[0, 0]));
            }
        }
    }
}

/// A client of either workload.
#[derive(Debug)]
struct Client {
    model: RecordModel<MmeSession, SECTIONS>,
    sequence: RecordSequence,
    rng: Rng,
    operation: Mme,
    share: Share,
    picked: Vec<u64>,
    mutations: Vec<(u64, Mutation)>,
    counts: [u64; 2],
    sections: [u64; SECTIONS],
    /// Bytes of objects that were put, and how many.
    bytes: (u64, u64),
}

impl Client {
    /// The operation on a subscriber, and its class.
    fn mutation(&mut self, slot: u64) -> (Mutation, usize) {
        match self.operation {
            Mme::Update => {
                let choices = SECTIONS as u64 - UNINDEXED;
                let section = usize::try_from(UNINDEXED + self.rng.below(choices)).unwrap_or(0);
                if let Some(count) = self.sections.get_mut(section) {
                    *count += 1;
                }
                (Mutation::Update(PartSet::one(section)), 0)
            }
            Mme::Insert if self.model.state(slot).exists() => (Mutation::Remove, 1),
            Mme::Insert => {
                let bytes = self.model.form().object_bytes(self.share.first + slot);
                self.bytes = (self.bytes.0 + bytes as u64, self.bytes.1 + 1);
                (Mutation::Create, 0)
            }
        }
    }
}

impl Workload for Client {
    fn load(&mut self, store: &mut Connection<'_>, done: &mut dyn FnMut(u64)) -> Result<()> {
        let is_update = self.operation == Mme::Update;
        self.model.load(store, |slot| is_update || slot % 2 == 0, done)
    }

    fn step(&mut self, store: &mut Connection<'_>, count: usize, tally: &mut Tally) -> Result<()> {
        let mut picked = std::mem::take(&mut self.picked);
        self.sequence.pick(count, &mut picked);
        self.mutations.clear();
        for slot in &picked {
            let (mutation, class) = self.mutation(*slot);
            self.mutations.push((*slot, mutation));
            tally.count(class);
            if let Some(count) = self.counts.get_mut(class) {
                *count += 1;
            }
        }
        self.picked = picked;
        self.model.write(store, &self.mutations, tally)
    }

    fn model(&mut self) -> Option<&mut dyn ComparedRecords> {
        Some(&mut self.model)
    }

    fn checks(&self) -> Vec<Check> {
        let [first, second] = self.counts;
        match self.operation {
            Mme::Update => {
                let sections = SESSIONS.parts.iter().zip(self.sections);
                let expected = 100.0 / as_f64(SECTIONS as u64 - UNINDEXED);
                sections
                    .skip(usize::try_from(UNINDEXED).unwrap_or(0))
                    .map(|(name, count)| {
                        share::percent(format!("{name}, % of updates"), expected, count, first)
                    })
                    .collect()
            }
            Mme::Insert => {
                let (bytes, objects) = (as_f64(self.bytes.0), as_f64(self.bytes.1));
                let (least, most) =
                    (as_f64(OBJECT_BYTES_MIN as u64), as_f64(OBJECT_BYTES_MAX as u64));
                // A subscriber's size is fixed: there are at most as many draws as subscribers.
                let draws = objects.min(as_f64(self.share.count) / 4.0).max(1.0);
                vec![
                    share::percent("attach, % of operations", 50.0, first, first + second),
                    Check {
                        name: "object, mean bytes".to_owned(),
                        expected: f64::midpoint(least, most),
                        found: bytes / objects.max(1.0),
                        tolerance: 5.0 * (most - least) / 12_f64.sqrt() / draws.sqrt(),
                        weight: objects,
                    },
                ]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_make_up_an_object_of_one_to_four_kilobytes() {
        assert_eq!(SHARES.iter().sum::<usize>(), 64);
        let session = MmeSession { seed: 3, records: 1000 };
        let sizes: Vec<usize> = (0..1000)
            .map(|record| (0..SECTIONS).map(|part| session.part_bytes(record, part)).sum())
            .collect();
        assert!(sizes.iter().all(|size| (OBJECT_BYTES_MIN..=OBJECT_BYTES_MAX).contains(size)));
        let mean = sizes.iter().sum::<usize>() / sizes.len();
        assert!(mean.abs_diff(2560) < 150, "{mean}");
        assert!(sizes.iter().enumerate().all(|(r, size)| *size == session.object_bytes(r as u64)));
    }

    #[test]
    fn an_attach_gives_another_guti_and_keeps_the_number() {
        let session = MmeSession { seed: 3, records: 1000 };
        let tag = |tag, generation| {
            let mut out = Vec::new();
            session.tag(tag, 7, generation, &mut out);
            out
        };
        assert_eq!(tag(0, 1), tag(0, 2));
        assert_ne!(tag(1, 1), tag(1, 2));
        assert_eq!((tag(0, 1).len(), tag(1, 1).len(), tag(2, 1).len()), (12, 10, 5));
    }
}
