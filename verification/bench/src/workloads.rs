//! The workloads, one file each: what they store, what they do to it, and how they know afterwards
//! that a store has kept all of it. What they are built from is in `support`.

pub mod ue_signalling;
pub mod tatp;
pub mod mme;
pub mod sgw_session;
pub mod micro;
pub mod kv;
pub mod sets;
pub mod executor;
pub mod micro_tx;
pub mod churn;
pub mod txn;
pub mod ycsb;
pub mod support;

pub use crate::parameters::Parameters;
pub use crate::random::AccessDistribution;

use self::support::record_model::ComparedRecords;
use self::support::share::Share;
use crate::access::{Connection, StoreSchema};
use crate::result::{Check, PaperFigure, RecordVerification};
use nearstate_model::{Error, Result};
use std::fmt;

/// Maximum number of classes of operations: those of a workload, and [`crate::result::CUT`].
pub const CLASSES_MAX: usize = 16;

/// What a workload requires of a store besides reading and writing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent requirements")]
pub struct Requirements {
    /// Partial updates of records, whose lower cost the workload measures.
    pub delta: bool,
    pub unique_tag: bool,
    pub transaction: bool,
    pub scan: bool,
    /// Walks over all records.
    pub walk: bool,
    pub counter: bool,
    /// Sets of members.
    pub set: bool,
}

/// A figure that a paper measured: its source, what was measured, the figure.
pub type PaperFigureSpec = (&'static str, &'static str, &'static str);

/// What is fixed about a workload.
#[derive(Clone, Copy, Debug)]
pub struct WorkloadSpec {
    /// The word of the command line.
    pub name: &'static str,
    /// What it is, in a sentence.
    pub title: &'static str,
    /// Where it is defined: paper and section, or the benchmark's document.
    pub source: &'static str,
    /// Variants and what each means, the default first.
    pub variants: &'static [(&'static str, &'static str)],
    /// Records, unless the command line gives another number.
    pub records: u64,
    /// Classes of operations, fewer than [`CLASSES_MAX`].
    pub classes: &'static [&'static str],
    /// What it stores, in most variants.
    pub schema: StoreSchema,
    /// What papers measured, on their machines.
    pub paper_figures: &'static [PaperFigureSpec],
    /// What a reader of the results has to know.
    pub caveats: &'static [&'static str],
    /// True if operations can be sent together.
    pub is_pipelined: bool,
}

impl WorkloadSpec {
    /// What most workloads have in common.
    const DEFAULT: Self = Self {
        name: "",
        title: "",
        source: "",
        variants: &[],
        records: 0,
        classes: &[],
        schema: StoreSchema { tables: &[] },
        paper_figures: &[],
        caveats: &[],
        is_pipelined: true,
    };
}

/// What distinguishes a client of a workload from the others.
#[derive(Clone, Copy, Debug)]
pub struct ClientPart {
    /// Its number, below `clients`.
    pub client: usize,
    pub clients: usize,
    /// The index of the run's variant in [`WorkloadSpec::variants`].
    pub variant: usize,
    /// Its own records.
    pub share: Share,
}

/// A workload before it runs: the same for all of its clients.
pub trait WorkloadKind: fmt::Debug {
    /// What is fixed.
    fn spec(&self) -> &'static WorkloadSpec;

    /// The word of the command line.
    fn name(&self) -> &'static str {
        self.spec().name
    }

    /// Its variants and what each means, the default first.
    fn variants(&self) -> &'static [(&'static str, &'static str)] {
        self.spec().variants
    }

    /// What it stores.
    fn schema(&self, _: &Parameters) -> StoreSchema {
        self.spec().schema
    }

    /// The largest number of records of all tables, and the bytes of the largest record.
    fn size(&self, parameters: &Parameters) -> (u64, u64);

    /// Operations of a step that are measured together, with one clock reading around them. Where
    /// it is more than 1, latencies are means of blocks.
    fn block_ops(&self, _: &Parameters) -> u64 {
        1
    }

    /// How many of the clients are not measured: the last ones. They run until all others have
    /// ended. More than `clients` - 1 asks for more clients.
    fn background_clients(&self, _: &Parameters, _clients: usize) -> usize {
        0
    }

    /// The targets unless the command line names others; empty for those of every workload.
    fn default_targets(&self) -> &'static [&'static str] {
        &[]
    }

    /// What a store must be able to do.
    fn requirements(&self, _: &Parameters) -> Requirements {
        Requirements::default()
    }

    /// What papers measured, on their machines.
    fn paper_figures(&self) -> Vec<PaperFigure> {
        let figure = |(source, what, figure): &PaperFigureSpec| PaperFigure {
            source: (*source).to_owned(),
            what: (*what).to_owned(),
            figure: (*figure).to_owned(),
        };
        self.spec().paper_figures.iter().map(figure).collect()
    }

    /// What a reader of the results has to know.
    fn caveats(&self, _: &Parameters) -> Vec<String> {
        self.spec().caveats.iter().map(|caveat| (*caveat).to_owned()).collect()
    }

    /// Client number `client` of `clients`.
    fn client(
        &self,
        parameters: &Parameters,
        client: usize,
        clients: usize,
    ) -> Result<Box<dyn Workload>> {
        let variants = self.variants();
        let variant = variants.iter().position(|(name, _)| *name == parameters.variant);
        let variant = variant.ok_or_else(|| {
            let names: Vec<&str> = variants.iter().map(|(name, _)| *name).collect();
            bad_argument!(
                "{} has no variant {:?}: give one of {}",
                self.name(),
                parameters.variant,
                names.join(", ")
            )
        })?;
        let share = Share::of(parameters, client, clients)?;
        self.new_client(parameters, ClientPart { client, clients, variant, share })
    }

    /// A client with its part of the records, so that its model knows their contents.
    fn new_client(&self, parameters: &Parameters, part: ClientPart) -> Result<Box<dyn Workload>>;
}

/// What a step did.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Operations of each class.
    pub classes: [u32; CLASSES_MAX],
    /// The class that was counted last.
    pub last: usize,
    /// How many were counted, of all classes.
    pub counted: u32,
    /// Bytes of keys and parts that were sent to the store.
    pub bytes_out: u64,
    /// Bytes of keys and parts that it answered with.
    pub bytes_in: u64,
    /// Operations that ended as the workload allows but without doing what they set out to do (a
    /// TATP transaction that finds no row).
    pub unsuccessful: u64,
}

impl Tally {
    /// Counts one operation of a class.
    pub fn count(&mut self, class: usize) {
        if let Some(count) = self.classes.get_mut(class) {
            *count += 1;
            self.last = class;
            self.counted += 1;
        }
    }

    /// Counts `count` operations of a class.
    pub fn count_many(&mut self, class: usize, count: u64) {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        if let Some(all) = self.classes.get_mut(class) {
            *all = all.saturating_add(count);
            self.last = class;
            self.counted = self.counted.saturating_add(count);
        }
    }
}

/// A client of a workload: a generator of operations and the model of their results.
pub trait Workload: fmt::Debug {
    /// Loads this client's records into an empty store; calls `done` with the number of new ones.
    fn load(&mut self, store: &mut Connection<'_>, done: &mut dyn FnMut(u64)) -> Result<()>;

    /// Runs `count` operations on `count` different records, as one batch if possible. `tally` is
    /// zero.
    fn step(&mut self, store: &mut Connection<'_>, count: usize, tally: &mut Tally) -> Result<()>;

    /// The model of its records, if that is all that its results are compared with.
    fn model(&mut self) -> Option<&mut dyn ComparedRecords> {
        None
    }

    /// After a lost connection: reads the records of unanswered operations and updates the model.
    /// Each must be in the state before or after its operation.
    fn resolve_unanswered(&mut self, store: &mut Connection<'_>) -> Result<()> {
        self.model().map_or(Ok(()), |model| model.resolve_unanswered(store))
    }

    /// Compares every record of this client with the model.
    fn verify(
        &mut self,
        store: &mut Connection<'_>,
        done: &mut dyn FnMut(u64),
    ) -> Result<RecordVerification> {
        self.model()
            .map_or_else(|| Ok(RecordVerification::default()), |model| model.verify(store, done))
    }

    /// Figures of the generator and their expected values.
    fn checks(&self) -> Vec<Check> {
        Vec::new()
    }

    /// The same operations with several steps in flight, if supported.
    fn overlapped(&mut self) -> Option<&mut dyn Overlapped> {
        None
    }
}

/// A workload whose steps overlap, on a connection that sends ahead. Steps in flight are on
/// different records. After an error [`Workload::resolve_unanswered`] checks all of them.
pub trait Overlapped {
    /// Starts a step of `count` operations.
    fn begin_step(&mut self, store: &mut Connection<'_>, count: usize) -> Result<()>;

    /// Ends the oldest step. `tally` is zero.
    fn end_step(&mut self, store: &mut Connection<'_>, tally: &mut Tally) -> Result<()>;
}

/// The start of the text of a [`wrong_answer`].
pub const ANSWERED_WRONGLY: &str = "the target answered wrongly";

/// A target gave a wrong answer. The error is not `Damaged`, whose text is about regions: the
/// target may be any store.
#[cold]
pub fn wrong_answer(what: impl fmt::Display) -> Error {
    backend_error!("{ANSWERED_WRONGLY}: {what}")
}

/// Every workload.
pub fn all() -> Vec<Box<dyn WorkloadKind>> {
    vec![
        Box::new(ue_signalling::UeSignalling),
        Box::new(tatp::Tatp),
        Box::new(mme::Mme::Insert),
        Box::new(mme::Mme::Update),
        Box::new(sgw_session::SgwSession),
        Box::new(micro_tx::MicroTx),
        Box::new(churn::Churn),
        Box::new(txn::TxnWorkload),
        Box::new(ycsb::Ycsb),
        Box::new(kv::Kv),
        Box::new(sets::Sets),
        Box::new(micro::Micro),
        Box::new(executor::ExecutorCosts),
    ]
}

/// The workload of this name.
pub fn named(name: &str) -> Result<Box<dyn WorkloadKind>> {
    let all = all();
    let names = all.iter().map(|workload| workload.name()).collect::<Vec<_>>().join(", ");
    all.into_iter()
        .find(|workload| workload.name() == name)
        .ok_or_else(|| bad_argument!("no workload is called {name:?}: give one of {names}"))
}
