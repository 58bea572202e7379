//! `ue-signalling`: the procedures of paper 2 (§IV, Tables I and II) on the contexts of UEs.
//!
//! Each operation is a procedure of one UE: it reads the context, changes variables and writes it
//! back. The variants define which parts are transferred, and the source of the procedures: the
//! shares of Table II independent of the state of the UE, as in the paper, or a state machine.

mod pipelined;
mod single;
mod batch;
mod compare;
mod gutis;
mod transfer;
mod machine;
mod model;

use super::support::identity::key as key_of;
use super::{
    ClientPart, Overlapped, Parameters, Requirements, Tally, Workload, WorkloadKind, WorkloadSpec,
    wrong_answer,
};
use crate::access::{
    Connection, PartSet, RecordEntry, Request, StoreReply, StoreSchema, TableId, TableSchema,
    TagRule,
};
use crate::operations::KEY_BYTES;
use crate::random::{self, Distributions as _, RecordSequence, Rng};
use crate::result::{Check, RecordVerification};
use crate::stat::as_f64;
use batch::Batches;
use gutis::{Gutis, by_guti_share, is_by_guti};
use machine::UeStateMachine;
use model::{Ue, UeModel};
use nearstate_model::Result;
use nearstate_ue::{
    BLOCKS, Block, BlockSet, CONTEXT_BYTES, Context, Procedure, UeState, apply, blocks_touched,
    draw_for,
};
use single::SingleProcedure;
use transfer::{ContextTags, ReceivedContext, TransferMode, parts_of, stale_context, whole};

/// The default number of UEs: a tenth of the million of the paper.
const UES: u64 = 100_000;

/// The largest size of a stored context, with tags.
const CONTEXT_BYTES_MAX: u64 = 1024;

/// UEs that are drawn in advance, to prefetch their history.
const DRAWN_AHEAD: usize = 16;

/// Records per batch while loading and verifying.
const BATCH: usize = 64;

const CONTEXTS: TableId = TableId(0);

const WHOLE: StoreSchema = StoreSchema { tables: &[TableSchema::new("ue", &["context"])] };

const BLOCK_NAMES: &[&str] = &["profile", "registration", "location", "bearer", "tunnel", "radio"];

const IN_BLOCKS: StoreSchema = StoreSchema { tables: &[TableSchema::new("ue", BLOCK_NAMES)] };

const TAGGED: StoreSchema = StoreSchema {
    tables: &[TableSchema {
        name: "ue",
        parts: BLOCK_NAMES,
        tags: &[
            TagRule { name: "imsi", is_unique: true },
            TagRule { name: "guti", is_unique: true },
            TagRule { name: "ip", is_unique: false },
            TagRule { name: "s1-teid", is_unique: false },
            TagRule { name: "s5-teid", is_unique: false },
        ],
        is_scanned: false,
    }],
};

const CLASSES: &[&str] = &[
    "initial attach",
    "detach",
    "service request",
    "S1 release",
    "TA update",
    "handover",
    "cell re-selection",
    "session management",
];

#[derive(Clone, Copy, Debug)]
pub struct UeSignalling;

impl UeSignalling {
    fn mode(parameters: &Parameters) -> TransferMode {
        match parameters.variant.as_str() {
            "delta" | "machine" => TransferMode::Delta,
            "blind-delta" => TransferMode::BlindDelta,
            "tagged" => TransferMode::Tagged,
            _ => TransferMode::Full,
        }
    }
}

static SPEC: WorkloadSpec = WorkloadSpec {
    name: "ue-signalling",
    title: "signalling procedures on UE contexts",
    source: "paper 2, §IV-B, Tables I and II",
    variants: &[
        ("full", "the whole context is read, changed and written, as one value"),
        ("delta", "the blocks that a procedure touches are read and written"),
        ("blind-delta", "blocks that a procedure overwrites are written without being read"),
        (
            "tagged",
            "delta, with tags for IMSI, GUTI, address and tunnels; a UE that starts a connection \
             is found by its GUTI",
        ),
        ("machine", "delta, legal procedures only, from a state machine with heavy-tailed times"),
        ("machine-full", "as machine, with whole contexts"),
    ],
    records: UES,
    classes: CLASSES,
    paper_figures: &[
        (
            "paper 2, §IV-C and Figure 6 (Apache Geode 1.0, one to five Dell C6320)",
            "size of a context",
            "4,596 bits",
        ),
        (
            "paper 2, §IV-C and Figure 6 (Apache Geode 1.0, one to five Dell C6320)",
            "mean of the bits that a procedure updates (Table II)",
            "1,078 bits",
        ),
        (
            "paper 2, §IV-C and Figure 6 (Apache Geode 1.0, one to five Dell C6320)",
            "partitioned regions",
            "whole contexts are always faster than deltas",
        ),
        (
            "paper 2, §IV-C and Figure 6 (Apache Geode 1.0, one to five Dell C6320)",
            "replicated regions",
            "whole contexts are faster in most cases",
        ),
    ],
    schema: WHOLE,
    ..WorkloadSpec::DEFAULT
};

impl WorkloadKind for UeSignalling {
    fn spec(&self) -> &'static WorkloadSpec {
        &SPEC
    }

    fn schema(&self, parameters: &Parameters) -> StoreSchema {
        match Self::mode(parameters) {
            TransferMode::Full => WHOLE,
            TransferMode::Delta | TransferMode::BlindDelta => IN_BLOCKS,
            TransferMode::Tagged => TAGGED,
        }
    }

    fn size(&self, parameters: &Parameters) -> (u64, u64) {
        let factor = if Self::mode(parameters) == TransferMode::Tagged { 4 } else { 1 };
        (parameters.records, CONTEXT_BYTES_MAX * factor)
    }

    fn requirements(&self, parameters: &Parameters) -> Requirements {
        let mode = Self::mode(parameters);
        Requirements {
            delta: mode != TransferMode::Full,
            unique_tag: mode == TransferMode::Tagged,
            ..Requirements::default()
        }
    }

    fn caveats(&self, parameters: &Parameters) -> Vec<String> {
        let mut out = vec![format!(
            "a context has {CONTEXT_BYTES} bytes here (the paper: 574.5); paper 2's Figure 6 has \
             no numbers, so none are repeated here"
        )];
        if parameters.variant.starts_with("machine") {
            out.push(
                "the state machine's sojourn times are not from the paper: log-normal and Pareto, \
                 with the shares of Table II; its clock selects the next UE, not --spread"
                    .to_owned(),
            );
        }
        out
    }

    fn new_client(&self, parameters: &Parameters, part: ClientPart) -> Result<Box<dyn Workload>> {
        Ok(Box::new(Client::new(parameters, part.client, part.clients)?))
    }
}

/// The source of procedures.
#[derive(Debug)]
enum ProcedureSource {
    /// Table II's shares; UEs by the spread.
    Shares { sequence: RecordSequence, rng: Rng, next_ues: NextUes },
    /// The state machine.
    Machine(Box<UeStateMachine>),
}

/// The next UEs of single procedures, whose history is prefetched.
#[derive(Debug)]
struct NextUes {
    ues: [Ue; DRAWN_AHEAD],
    at: usize,
}

impl NextUes {
    fn new(sequence: &mut RecordSequence) -> Self {
        Self { ues: std::array::from_fn(|_| Ue::of(sequence.next())), at: 0 }
    }

    /// Returns the next UE and draws another.
    #[inline]
    fn next(&mut self, sequence: &mut RecordSequence, model: &UeModel) -> Option<Ue> {
        self.at = (self.at + 1) % DRAWN_AHEAD;
        let next = self.ues.get_mut(self.at)?;
        let drawn = Ue::of(sequence.next());
        model.prefetch(drawn);
        Some(std::mem::replace(next, drawn))
    }
}

/// A procedure in flight.
#[derive(Clone, Copy, Debug)]
struct PendingProcedure {
    ue: Ue,
    procedure: Procedure,
    draw: u64,
}

/// A client's UEs.
#[derive(Debug)]
struct Client {
    model: UeModel,
    mode: TransferMode,
    source: ProcedureSource,
    procedures: Vec<PendingProcedure>,
    picked: Vec<u64>,
    /// The context of a single procedure.
    context: Context,
    batches: Batches,
    counts: [u64; 8],
    /// GUTIs of UEs with tags.
    gutis: Gutis,
    /// True for the null target, which returns arbitrary replies.
    is_null_store: bool,
}

impl Client {
    fn new(parameters: &Parameters, client: usize, clients: usize) -> Result<Self> {
        let model = UeModel::new(parameters, client, clients);
        let own = model.len();
        let seed = parameters.seed.wrapping_add((client as u64) << 32);
        let source = if parameters.variant.starts_with("machine") {
            ProcedureSource::Machine(Box::new(UeStateMachine::new(own, seed)?))
        } else {
            let mut sequence = RecordSequence::new(parameters.spread, own, seed)?;
            let next_ues = NextUes::new(&mut sequence);
            ProcedureSource::Shares { sequence, rng: random::rng(seed ^ 0x5eed), next_ues }
        };
        Ok(Self {
            model,
            mode: UeSignalling::mode(parameters),
            source,
            procedures: Vec::new(),
            picked: Vec::new(),
            context: Context::EMPTY,
            batches: Batches::default(),
            counts: [0; 8],
            gutis: Gutis::default(),
            is_null_store: false,
        })
    }

    /// Draws the next procedures, of different UEs.
    #[inline]
    fn draw_next(&mut self, count: usize) {
        self.procedures.clear();
        match &mut self.source {
            ProcedureSource::Shares { sequence, rng, next_ues } => {
                if count == 1 && self.batches.busy.is_empty() {
                    let Some(ue) = next_ues.next(sequence, &self.model) else { return };
                    let procedure = by_shares(rng);
                    let draw = self.model.draw(ue);
                    self.procedures.push(PendingProcedure { ue, procedure, draw });
                    return;
                }
                sequence.pick_except(count, &self.batches.busy, &mut self.picked);
                self.picked.iter().for_each(|local| self.model.prefetch(Ue::of(*local)));
                for local in &self.picked {
                    let (ue, procedure) = (Ue::of(*local), by_shares(rng));
                    let draw = self.model.draw(ue);
                    self.procedures.push(PendingProcedure { ue, procedure, draw });
                }
            }
            ProcedureSource::Machine(machine) => machine.next(count, |local, procedure| {
                let ue = Ue::of(local);
                let draw = self.model.draw(ue);
                self.procedures.push(PendingProcedure { ue, procedure, draw });
            }),
        }
    }

    /// The parts that are read for a procedure.
    #[inline]
    fn wanted(&self, procedure: Procedure) -> PartSet {
        let blocks = match self.mode {
            // The find by GUTI reads the context.
            TransferMode::Tagged if is_by_guti(procedure) => return PartSet(0),
            TransferMode::Full | TransferMode::Tagged => return PartSet::ALL,
            _ if procedure == Procedure::CellReselection => return PartSet::one(RADIO),
            TransferMode::Delta => blocks_touched(procedure),
            TransferMode::BlindDelta => {
                let overwritten = procedure.blocks_overwritten();
                let mut rest = BlockSet::EMPTY;
                for block in blocks_touched(procedure).iter() {
                    if !overwritten.contains(block) {
                        rest = rest.with(block);
                    }
                }
                rest
            }
        };
        parts_of(blocks)
    }

    /// A single procedure, as a network function runs it for each message.
    #[inline]
    fn run_one(&mut self, store: &mut Connection<'_>, tally: &mut Tally) -> Result<()> {
        let Some(pending) = self.procedures.first().copied() else { return Ok(()) };
        let key = key_of(self.model.global(pending.ue));
        SingleProcedure::new(self, (pending, &key), tally).run(store)?;
        self.procedures.clear();
        self.complete(pending, None, tally);
        Ok(())
    }

    /// Records a completed procedure in the model.
    #[inline]
    fn complete(&mut self, pending: PendingProcedure, after: Option<&Context>, tally: &mut Tally) {
        let class = pending.procedure as usize;
        tally.count(class);
        if let Some(count) = self.counts.get_mut(class) {
            *count += 1;
        }
        self.model.completed(pending.ue, pending.procedure, after.unwrap_or(&self.context));
    }

    /// Compares a received context with the hashes of the model.
    #[inline]
    fn compare(&self, pending: PendingProcedure, read: PartSet, context: &Context) -> Result<()> {
        let touched = blocks_touched(pending.procedure);
        let is_right = self.model.matches_hashes(pending.ue, context, touched, |block| {
            self.mode == TransferMode::Full || read.contains(block as usize)
        });
        if is_right || self.is_null_store { Ok(()) } else { Err(stale_context(pending)) }
    }
}

/// The index of the block with the variables of the radio.
const RADIO: usize = Block::Radio as usize;

/// A random procedure with Table II's shares.
#[inline]
fn by_shares(rng: &mut Rng) -> Procedure {
    let drawn = usize::try_from(rng.below(1000)).unwrap_or(0);
    let number = SHARES.get(drawn).copied().unwrap_or(0);
    Procedure::ALL.get(usize::from(number)).copied().unwrap_or(Procedure::ServiceRequest)
}

/// Table II's shares: the indices of 1,000 procedures.
const SHARES: [u8; 1000] = shares();

const fn shares() -> [u8; 1000] {
    let mut all = [0; 1000];
    let (mut left, mut number, mut rest) = (0, 0, all.as_mut_slice());
    while let Some((first, after)) = rest.split_first_mut() {
        while left == 0 {
            let (_, [procedure, ..]) = Procedure::ALL.split_at(number) else { return all };
            left = procedure.per_mille();
            number += 1;
        }
        #[expect(clippy::cast_possible_truncation, reason = "one of eight")]
        {
            *first = number as u8 - 1;
        }
        left -= 1;
        rest = after;
    }
    all
}

impl Workload for Client {
    fn load(&mut self, store: &mut Connection<'_>, done: &mut dyn FnMut(u64)) -> Result<()> {
        let mode = self.mode;
        self.is_null_store = store.is_null();
        for first in (0..self.model.len()).step_by(BATCH) {
            let locals = first..self.model.len().min(first + BATCH as u64);
            let mut keys = Vec::with_capacity(BATCH);
            let mut contexts = Vec::with_capacity(BATCH);
            for local in locals {
                let ue = Ue::of(local);
                let state = match &self.source {
                    ProcedureSource::Shares { .. } => UeState::Connected,
                    ProcedureSource::Machine(machine) => machine.state(local),
                };
                self.model.set_loaded(ue, state);
                keys.push(key_of(self.model.global(ue)));
                let context = self.model.expected(ue);
                if mode == TransferMode::Tagged {
                    self.gutis.update(ue, &context);
                }
                contexts.push(context);
            }
            let mut parts = vec![[(0, &[][..]); BLOCKS.len()]; contexts.len()];
            let mut tagging = vec![ContextTags::default(); contexts.len()];
            let mut requests = Vec::with_capacity(contexts.len());
            let all = keys.iter().zip(&contexts).zip(parts.iter_mut().zip(&mut tagging));
            for ((key, context), (parts, tagging)) in all {
                let parts = whole(mode, context, parts);
                if mode == TransferMode::Tagged {
                    tagging.fill(context);
                }
                let entry = RecordEntry::tagged(key, parts, tagging.tags());
                requests.push(Request::Put { table: CONTEXTS, entry });
            }
            store.pipeline(&requests, &mut |_, _| {})?;
            done(requests.len() as u64);
        }
        Ok(())
    }

    fn step(&mut self, store: &mut Connection<'_>, count: usize, tally: &mut Tally) -> Result<()> {
        self.draw_next(count);
        if count == 1 { self.run_one(store, tally) } else { self.run_batch(store, tally) }
    }

    /// `None` with a state machine, which may select a UE again before its last procedure has
    /// ended.
    fn overlapped(&mut self) -> Option<&mut dyn Overlapped> {
        let is_drawn = matches!(self.source, ProcedureSource::Shares { .. });
        if is_drawn { Some(self) } else { None }
    }

    fn resolve_unanswered(&mut self, store: &mut Connection<'_>) -> Result<()> {
        self.unbatch();
        while let Some(pending) = self.procedures.last().copied() {
            let found = self.read_ue(store, pending.ue)?;
            let before = self.model.expected(pending.ue);
            let mut after = before;
            apply(pending.procedure, &mut after, pending.draw);
            if found.as_ref() == Some(&after) {
                self.model.completed(pending.ue, pending.procedure, &after);
                if self.mode == TransferMode::Tagged {
                    self.gutis.update(pending.ue, &after);
                }
            } else if found.as_ref() != Some(&before) {
                return Err(wrong_answer(format_args!(
                    "after a lost connection, the context of {} is neither that before nor that \
                     after its {}: an acknowledged procedure is lost",
                    self.name_of(pending.ue),
                    pending.procedure
                )));
            }
            self.procedures.pop();
        }
        Ok(())
    }

    fn verify(
        &mut self,
        store: &mut Connection<'_>,
        done: &mut dyn FnMut(u64),
    ) -> Result<RecordVerification> {
        let mut verdict = RecordVerification::default();
        if self.is_null_store {
            return Ok(verdict);
        }
        for first in (0..self.model.len()).step_by(BATCH) {
            let locals: Vec<u64> = (first..self.model.len().min(first + BATCH as u64)).collect();
            let keys: Vec<_> =
                locals.iter().map(|local| key_of(self.model.global(Ue::of(*local)))).collect();
            let read = |key| Request::Read { table: CONTEXTS, key, wanted: PartSet::ALL };
            let requests: Vec<Request<'_>> = keys.iter().map(|key| read(key.as_slice())).collect();
            let mut found = vec![(Context::EMPTY, false); locals.len()];
            let mut received = ReceivedContext::new(self.mode);
            store.pipeline(&requests, &mut |number, reply| {
                let Some((context, exists)) = found.get_mut(number) else { return };
                match reply {
                    StoreReply::Part(part, bytes) => received.add(context, part, bytes),
                    StoreReply::Key(_) => {}
                    StoreReply::Done(done) => *exists = done,
                }
            })?;
            for (local, (context, exists)) in locals.iter().zip(&found) {
                let ue = Ue::of(*local);
                let expected = self.model.expected(ue);
                if !*exists || *context != expected {
                    verdict.wrong(|| self.difference(ue, context, *exists));
                } else if self.mode == TransferMode::Tagged
                    && let Some(why) = self.check_tags(store, ue, &expected)?
                {
                    verdict.wrong(|| format!("{}: {why}", self.name_of(ue)));
                } else {
                    verdict.right(true);
                }
            }
            done(locals.len() as u64);
        }
        Ok(verdict)
    }

    fn checks(&self) -> Vec<Check> {
        let all: u64 = self.counts.iter().sum();
        let check = |name: String, expected: f64, count: u64| {
            let deviation = (expected * (1.0 - expected) / as_f64(all.max(1))).sqrt();
            Check {
                name,
                expected,
                found: as_f64(count) / as_f64(all.max(1)),
                // Draws are independent, except those of one UE in the state machine.
                tolerance: 5.0 * deviation + 0.001 + self.extra_tolerance(),
                weight: as_f64(all),
            }
        };
        let shares = Procedure::ALL.into_iter().zip(self.counts).map(|(procedure, count)| {
            check(format!("share of {procedure} (Table II)"), procedure.share(), count)
        });
        let mut checks: Vec<Check> = shares.collect();
        if self.mode == TransferMode::Tagged {
            let name = "share of UEs found by GUTI".to_owned();
            checks.push(check(name, by_guti_share(), self.gutis.finds));
        }
        checks
    }
}

impl Client {
    /// The tolerance of shares beyond chance: the initial states of the state machine are accurate
    /// to some hundredths.
    const fn extra_tolerance(&self) -> f64 {
        match self.source {
            ProcedureSource::Shares { .. } => 0.0,
            ProcedureSource::Machine(_) => 0.002,
        }
    }
}

const _: () = assert!(BLOCKS.len() == BLOCK_NAMES.len(), "each block has a part");

#[cfg(test)]
mod tests;
