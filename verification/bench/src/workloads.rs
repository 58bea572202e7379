//! The workloads, one file each: what they store, what they do to it, and how they know afterwards
//! that a store has kept all of it.

pub mod ue_signalling;
pub mod tatp;
pub mod mme;
pub mod sgw_session;
pub mod micro;
pub mod kv;
pub mod executor;
pub mod micro_tx;
pub mod txn;
pub mod ycsb;
pub mod record_model;
pub mod outbox;
pub mod contents;
mod identity;
pub mod share;

pub use crate::parameters::Parameters;
pub use crate::random::Spread;

use crate::access::{StoreConnection, StoreSchema};
use crate::result::{Check, Foreign, Verdict};
use nearstate_model::{Error, Result};
use std::fmt;

/// Classes of operations that are told apart at the most: a workload's, and one of the driver's
/// ([`crate::result::CUT`]).
pub const CLASSES_MAX: usize = 16;

/// What a store must be able to do for a workload, beside reading and writing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "wishes that exclude none of each other")]
pub struct Wishes {
    /// Parts of records change alone, and that this is cheaper is what is measured.
    pub delta: bool,
    /// A unique tag.
    pub unique_tag: bool,
    /// Transactions.
    pub transaction: bool,
    /// Scans.
    pub scan: bool,
    /// Walks over all records.
    pub walk: bool,
    /// Counters.
    pub counter: bool,
}

/// A workload before it runs: the same for all of its clients.
pub trait Blueprint: fmt::Debug {
    /// The word of the command line.
    fn name(&self) -> &'static str;

    /// What it is, in a sentence.
    fn title(&self) -> &'static str;

    /// Where it is defined: paper and section, or the benchmark's document.
    fn source(&self) -> &'static str;

    /// Its variants and what each means, the default first.
    fn variants(&self) -> &'static [(&'static str, &'static str)];

    /// How many records it has unless told otherwise.
    fn records(&self) -> u64;

    /// Its classes of operations, fewer than [`CLASSES_MAX`].
    fn classes(&self, parameters: &Parameters) -> &'static [&'static str];

    /// What it stores.
    fn schema(&self, parameters: &Parameters) -> StoreSchema;

    /// Records over all tables and the bytes of the largest, at any time: what a database needs
    /// room for.
    fn size(&self, parameters: &Parameters) -> (u64, u64);

    /// Whether operations of a step gain anything by travelling together, on any store.
    fn travels_together(&self) -> bool {
        true
    }

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
    fn wishes(&self, parameters: &Parameters) -> Wishes;

    /// What the paper measured, on its machines.
    fn foreign(&self) -> Vec<Foreign> {
        Vec::new()
    }

    /// What has to be said beside the results.
    fn caveats(&self, _: &Parameters) -> Vec<String> {
        Vec::new()
    }

    /// The part of client number `client` of `clients`: records that are its own, so that its model
    /// knows their contents.
    fn client(
        &self,
        parameters: &Parameters,
        client: usize,
        clients: usize,
    ) -> Result<Box<dyn Workload>>;
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
    #[inline]
    pub fn count(&mut self, class: usize) {
        if let Some(count) = self.classes.get_mut(class) {
            *count += 1;
            self.last = class;
            self.counted += 1;
        }
    }
}

impl Tally {
    /// Counts `count` operations of a class.
    #[inline]
    pub fn count_many(&mut self, class: usize, count: u64) {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        if let Some(all) = self.classes.get_mut(class) {
            *all = all.saturating_add(count);
            self.last = class;
            self.counted = self.counted.saturating_add(count);
        }
    }
}

/// A client's part of a workload: a generator of operations and the model of what they must leave
/// behind.
pub trait Workload: fmt::Debug {
    /// Puts this client's records into an empty store; `done` hears how many more there are.
    fn load(&mut self, store: &mut dyn StoreConnection, done: &mut dyn FnMut(u64)) -> Result<()>;

    /// Does `count` operations, which may travel together, on `count` different records. `tally`
    /// comes with zeros.
    fn step(
        &mut self,
        store: &mut dyn StoreConnection,
        count: usize,
        tally: &mut Tally,
    ) -> Result<()>;

    /// After a lost connection: looks at the records whose operations were not answered, and takes
    /// up in the model what became of them. Each must be as before or as after.
    fn settle(&mut self, store: &mut dyn StoreConnection) -> Result<()>;

    /// Compares every record of this client with the model.
    fn verify(
        &mut self,
        store: &mut dyn StoreConnection,
        done: &mut dyn FnMut(u64),
    ) -> Result<Verdict>;

    /// Figures of what was generated beside what they must be.
    fn checks(&self) -> Vec<Check>;

    /// The same operations with several steps in flight, if it can.
    fn overlapped(&mut self) -> Option<&mut dyn Overlapped> {
        None
    }
}

/// A workload whose steps overlap, on a connection that sends ahead. Steps in flight are on
/// different records. After an error [`Workload::settle`] looks at all of them.
pub trait Overlapped {
    /// Begins a step of `count` operations.
    fn begin_step(&mut self, store: &mut dyn StoreConnection, count: usize) -> Result<()>;

    /// Ends the oldest step. `tally` comes with zeros.
    fn end_step(&mut self, store: &mut dyn StoreConnection, tally: &mut Tally) -> Result<()>;
}

/// How the text of a [`wrong_answer`] begins.
pub const ANSWERED_WRONGLY: &str = "the target answered wrongly";

/// What a target answered is not what it must be. It is not `Damaged`: that speaks of a region of
/// ours and tells what to do about it, and the target may be any store.
#[cold]
pub fn wrong_answer(what: impl fmt::Display) -> Error {
    Error::Backend { detail: format!("{ANSWERED_WRONGLY}: {what}") }
}

/// Every workload.
pub fn all() -> Vec<Box<dyn Blueprint>> {
    vec![
        Box::new(ue_signalling::UeSignalling),
        Box::new(tatp::Tatp),
        Box::new(mme::Mme::Insert),
        Box::new(mme::Mme::Update),
        Box::new(sgw_session::SgwSession),
        Box::new(micro_tx::MicroTx),
        Box::new(txn::TxnWorkload),
        Box::new(ycsb::Ycsb),
        Box::new(kv::Kv),
        Box::new(micro::Micro),
        Box::new(executor::ExecutorCosts),
    ]
}

/// The workload of this name.
pub fn named(name: &str) -> Result<Box<dyn Blueprint>> {
    let all = all();
    let names = all.iter().map(|workload| workload.name()).collect::<Vec<_>>().join(", ");
    all.into_iter().find(|workload| workload.name() == name).ok_or_else(|| Error::BadArgument {
        detail: format!("no workload is called {name:?}: give one of {names}"),
    })
}
