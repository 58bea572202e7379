//! The workload on a region, with planted faults, and without a store.

use super::*;
use crate::access::{
    BatchSink, Body, Connection, PartsChange, RecordTag, ReplySink, StoreAccess, StoreConnection,
    TAGS_MAX,
};
use crate::protocol::Fault;
use crate::targets::Target as _;
use crate::targets::fault::FaultyConnection;
use crate::targets::null::NullTarget;
use crate::targets::region::RegionConnection;
use crate::workloads::ANSWERED_WRONGLY;
use nearstate_model::Error;
use nearstate_store::{CreateOptions, Region};

fn parameters(variant: &str) -> Parameters {
    Parameters { records: 3000, variant: variant.to_owned(), seed: 11, ..Parameters::default() }
}

fn region(parameters: &Parameters) -> (tempfile::TempDir, RegionConnection) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("region");
    drop(Region::create(&path, &CreateOptions::default()).unwrap());
    let schema = UeSignalling.schema(parameters);
    let connection = RegionConnection::open(path.to_str().unwrap(), &schema).unwrap();
    (folder, connection)
}

/// A region with the UEs of the workload's only client.
fn loaded(parameters: &Parameters) -> (tempfile::TempDir, RegionConnection, Client) {
    let (folder, mut store) = region(parameters);
    let mut client = Client::new(parameters, 0, 1).unwrap();
    client.load(&mut store, &mut |_| {}).unwrap();
    (folder, store, client)
}

fn run(client: &mut dyn Workload, store: &mut Connection<'_>, ops: u64, depth: usize) -> Tally {
    let mut all = Tally::default();
    let mut done = 0;
    while done < ops {
        let mut tally = Tally::default();
        client.step(store, depth, &mut tally).unwrap();
        done += tally.classes.iter().map(|count| u64::from(*count)).sum::<u64>();
        all.bytes_in += tally.bytes_in;
        all.bytes_out += tally.bytes_out;
    }
    all
}

/// The error names the target's reply. It does not name a region, which other targets do not have.
#[track_caller]
fn assert_wrong(e: &Error, case: &str) {
    let text = e.to_string();
    assert!(text.contains(ANSWERED_WRONGLY) && !text.contains("region"), "{case}: {text}");
}

#[test]
fn after_every_variant_a_region_matches_the_model() {
    for (variant, _) in UeSignalling.variants() {
        for depth in [1, 16] {
            let parameters = parameters(variant);
            let (_folder, mut store) = region(&parameters);
            for number in 0..2 {
                let mut client = Client::new(&parameters, number, 2).unwrap();
                client.load(&mut store, &mut |_| {}).unwrap();
                run(&mut client, &mut store, 20_000, depth);
                let verdict = client.verify(&mut store, &mut |_| {}).unwrap();
                assert_eq!((verdict.records, verdict.wrong), (1500, 0), "{variant}: {verdict:?}");
                for check in client.checks() {
                    assert!(check.holds(), "{variant}: {check:?}");
                }
            }
        }
    }
}

#[test]
fn a_lost_update_is_found_in_every_variant() {
    for (variant, _) in UeSignalling.variants() {
        for depth in [1, 16] {
            let parameters = parameters(variant);
            let (_folder, store, mut client) = loaded(&parameters);
            let mut faulty = FaultyConnection::once(Box::new(store), Fault::LostUpdate);
            // So few that no later procedure of the same kind overwrites the lost one.
            run(&mut client, &mut faulty, 384, depth);
            let verdict = client.verify(&mut faulty, &mut |_| {}).unwrap();
            assert!((1..=2).contains(&verdict.wrong), "{variant}, {depth}: {verdict:?}");
            assert!(!verdict.examples.is_empty());
        }
    }
}

#[test]
fn the_next_read_after_a_lost_update_fails() {
    for variant in ["full", "delta", "tagged"] {
        let parameters = Parameters { records: 40, ..parameters(variant) };
        let (_folder, store, mut client) = loaded(&parameters);
        let mut faulty = FaultyConnection::once(Box::new(store), Fault::LostUpdate);
        let outcome: Result<()> =
            (0..5_000).try_for_each(|_| client.step(&mut faulty, 1, &mut Tally::default()));
        assert_wrong(&outcome.unwrap_err(), variant);
    }
}

#[test]
fn a_wrong_reply_is_not_accepted_as_a_context() {
    let parameters = parameters("full");
    let (_folder, store, mut client) = loaded(&parameters);
    let mut faulty = FaultyConnection::once(Box::new(store), Fault::WrongAnswer);
    let outcome: Result<()> =
        (0..400).try_for_each(|_| client.step(&mut faulty, 1, &mut Tally::default()));
    assert_wrong(&outcome.unwrap_err(), "full");
}

#[test]
fn deltas_transfer_a_third_of_the_bytes_of_whole_contexts() {
    let transferred = |variant| {
        let parameters = parameters(variant);
        let (_folder, mut store, mut client) = loaded(&parameters);
        let tally = run(&mut client, &mut store, 20_000, 1);
        tally.bytes_in + tally.bytes_out
    };
    let [full, delta, blind] = ["full", "delta", "blind-delta"].map(transferred);
    assert!(full > 3 * delta, "{full} and {delta}");
    assert!(delta > blind, "{delta} and {blind}");
}

/// Also in the first procedures of many UEs: the state machine starts in its stationary
/// distribution.
#[test]
fn the_shares_are_those_of_table_2() {
    for (records, ops) in [(20_000, 400_000), (2_000, 3_000), (100_000, 100_000), (10, 30_000)] {
        for variant in ["delta", "machine"] {
            let parameters = Parameters { records, ..parameters(variant) };
            let schema = UeSignalling.schema(&parameters);
            let mut store = NullTarget.connect("", &schema).unwrap();
            let mut client = Client::new(&parameters, 0, 1).unwrap();
            client.load(store.as_mut(), &mut |_| {}).unwrap();
            run(&mut client, store.as_mut(), ops, 1);
            for check in client.checks() {
                assert!(check.holds(), "{variant}, {records} UEs, {ops} procedures: {check:?}");
                assert!(check.weight >= as_f64(ops));
            }
        }
    }
}

/// The shares of the states do not change during the run, and each context is in its UE's state.
#[test]
fn a_machine_starts_in_its_stationary_distribution() {
    let parameters = Parameters { records: 20_000, ..parameters("machine") };
    let mut client = Client::new(&parameters, 0, 1).unwrap();
    let (_folder, mut store) = region(&parameters);
    client.load(&mut store, &mut |_| {}).unwrap();
    let share = |client: &Client, wanted: UeState| {
        let ProcedureSource::Machine(machine) = &client.source else {
            panic!("a machine's variant")
        };
        let of_state = (0..parameters.records).filter(|ue| machine.state(*ue) == wanted);
        as_f64(of_state.count() as u64) / as_f64(parameters.records)
    };
    let before = UeState::ALL.map(|state| share(&client, state));
    for ue in (0..parameters.records).step_by(97) {
        let ProcedureSource::Machine(machine) = &client.source else {
            panic!("a machine's variant")
        };
        let state = machine.state(ue);
        let found = client.read_ue(&mut store, Ue::of(ue)).unwrap().unwrap();
        assert_eq!(nearstate_ue::state_of(&found), state, "{ue}");
    }
    run(&mut client, &mut store, 300_000, 1);
    let after = UeState::ALL.map(|state| share(&client, state));
    for (before, after) in before.into_iter().zip(after) {
        assert!(before > 0.1 && (before - after).abs() < 0.03, "{before} and {after}");
    }
    assert_eq!(client.verify(&mut store, &mut |_| {}).unwrap().wrong, 0);
}

#[test]
fn the_machine_emits_only_legal_procedures_of_different_ues() {
    let mut machine = UeStateMachine::new(500, 3).unwrap();
    let mut states: Vec<_> = (0..500).map(|ue| machine.state(ue)).collect();
    for _ in 0..2_000 {
        let mut batch = std::collections::BTreeSet::new();
        machine.next(32, |ue, procedure| {
            assert!(batch.insert(ue), "one UE twice in a batch");
            let state = &mut states[usize::try_from(ue).unwrap()];
            *state = procedure.next_state(*state).expect("a legal procedure");
        });
        assert_eq!(batch.len(), 32);
    }
    assert!(states.contains(&UeState::Connected));
    assert!(states.contains(&UeState::Deregistered));
}

/// Writes the context after a procedure, without the model.
fn write(
    client: &Client,
    store: &mut RegionConnection,
    pending: PendingProcedure,
    (before, after): (&Context, &Context),
) {
    let mut parts = [(0, &[][..]); BLOCKS.len()];
    let parts = transfer::written(client.mode, after, pending.procedure, &mut parts);
    let (mut old, mut new) = (ContextTags::default(), ContextTags::default());
    old.fill(before);
    new.fill(after);
    let tags = (client.mode == TransferMode::Tagged).then_some((old.tags(), new.tags()));
    let key = key_of(client.model.global(pending.ue));
    assert!(store.change(CONTEXTS, &PartsChange { key: &key, parts, tags }).unwrap());
}

#[test]
fn procedures_in_flight_are_resolved_by_the_stored_context() {
    let parameters = parameters("delta");
    let (_folder, mut store, mut client) = loaded(&parameters);
    // One that was executed, and one that was not, both without a reply.
    for is_done in [true, false] {
        let ue = Ue::of(if is_done { 5 } else { 6 });
        let procedure = Procedure::TrackingAreaUpdate;
        let pending = PendingProcedure { ue, procedure, draw: client.model.draw(ue) };
        if is_done {
            let mut context = client.model.expected(ue);
            let before = context;
            apply(procedure, &mut context, pending.draw);
            write(&client, &mut store, pending, (&before, &context));
        }
        client.procedures.push(pending);
    }
    client.resolve_unanswered(&mut store).unwrap();
    assert!(client.procedures.is_empty());
    assert_eq!(client.verify(&mut store, &mut |_| {}).unwrap().wrong, 0);
    // And one whose earlier, acknowledged procedure is lost.
    let ue = Ue::of(7);
    let mut lost = client.model.expected(ue);
    apply(Procedure::Handover, &mut lost, client.model.draw(ue));
    client.model.completed(ue, Procedure::Handover, &lost);
    let draw = client.model.draw(ue);
    client.procedures.push(PendingProcedure { ue, procedure: Procedure::Detach, draw });
    assert_wrong(&client.resolve_unanswered(&mut store).unwrap_err(), "delta");
}

/// A fault of a store with tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TagFault {
    /// A change does not change the tags.
    KeepsOld,
    /// A change keeps the old tags in addition to the new ones.
    KeepsBoth,
    /// A find returns another record.
    FindsOther,
}

/// A region with one fault, when `left` changes of tags, or finds, have passed.
#[derive(Debug)]
struct FaultyTagStore {
    inner: RegionConnection,
    fault: TagFault,
    left: u32,
}

impl FaultyTagStore {
    fn is_now(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.left == 0
    }
}

impl StoreAccess for FaultyTagStore {
    fn perform(&mut self, request: &Request<'_>, receive: &mut ReplySink<'_>) -> Result<bool> {
        match request {
            Request::Change { table, change: change @ PartsChange { tags: Some(tags), .. } } => {
                let (old, new) = tags;
                let mut gutis = new.iter().filter(|(tag, _)| *tag == 1);
                let is_new_guti = !gutis.all(|tag| old.contains(tag));
                let gutis = old.iter().filter(|(tag, _)| *tag == 1);
                let both: Vec<RecordTag<'_>> =
                    new.iter().chain(gutis).copied().take(TAGS_MAX).collect();
                // With all of its tags in use, a record cannot also have an old GUTI.
                let is_possible = is_new_guti && both.len() > new.len();
                if self.fault == TagFault::FindsOther || !is_possible || !self.is_now() {
                    return self.inner.perform(request, receive);
                }
                let tags = (self.fault == TagFault::KeepsBoth).then_some((*old, both.as_slice()));
                self.inner.change(*table, &PartsChange { tags, ..*change })
            }
            Request::Find { .. } => {
                let is_wrong = self.fault == TagFault::FindsOther && self.is_now();
                self.inner.perform(request, &mut |reply| match reply {
                    StoreReply::Key(key) if is_wrong => {
                        let mut key = key.to_vec();
                        let last = key.last_mut().unwrap();
                        *last = if *last == b'0' { b'1' } else { b'0' };
                        receive(StoreReply::Key(&key));
                    }
                    StoreReply::Key(_) | StoreReply::Part(..) | StoreReply::Done(_) => {
                        receive(reply);
                    }
                })
            }
            Request::Read { .. }
            | Request::Put { .. }
            | Request::Change { .. }
            | Request::Delete { .. } => self.inner.perform(request, receive),
        }
    }
}

impl StoreConnection for FaultyTagStore {
    fn transact(&mut self, body: &mut Body<'_>) -> Result<()> {
        self.inner.transact(body)
    }
}

#[test]
fn faults_of_tags_are_found() {
    for fault in [TagFault::KeepsOld, TagFault::KeepsBoth, TagFault::FindsOther] {
        for depth in [1, 16] {
            let parameters = Parameters { records: 200, ..parameters("tagged") };
            let (_folder, inner) = region(&parameters);
            let mut store = FaultyTagStore { inner, fault, left: 100 };
            let mut client = UeSignalling.client(&parameters, 0, 1).unwrap();
            client.load(&mut store, &mut |_| {}).unwrap();
            // Until the fault has occurred; the client need not have noticed it then.
            let mut outcome = Ok(());
            while store.left > 0 && outcome.is_ok() {
                outcome = client.step(&mut store, depth, &mut Tally::default());
            }
            if let Err(e) = outcome {
                assert_wrong(&e, &format!("{fault:?}, {depth}"));
                continue;
            }
            let verdict = client.verify(&mut store, &mut |_| {}).unwrap();
            assert!(verdict.wrong > 0, "{fault:?}, {depth}: {verdict:?}");
            assert!(verdict.examples[0].contains("leads to"), "{:?}", verdict.examples);
        }
    }
}

#[test]
fn a_resolved_procedure_that_changed_the_guti_is_found_by_the_new_one() {
    let parameters = parameters("tagged");
    let (_folder, mut store, mut client) = loaded(&parameters);
    let ue = Ue::of(5);
    let procedure = Procedure::TrackingAreaUpdate;
    let pending = PendingProcedure { ue, procedure, draw: client.model.draw(ue) };
    let before = client.model.expected(ue);
    let mut after = before;
    apply(pending.procedure, &mut after, pending.draw);
    write(&client, &mut store, pending, (&before, &after));
    client.procedures.push(pending);
    client.resolve_unanswered(&mut store).unwrap();
    let procedure = Procedure::ServiceRequest;
    let next = PendingProcedure { ue, procedure, draw: client.model.draw(ue) };
    let found = client.find(&mut store, next, &mut Tally::default()).unwrap();
    assert_eq!(found, after);
    assert_eq!(client.verify(&mut store, &mut |_| {}).unwrap().wrong, 0);
}

/// A region that counts finds and batches.
#[derive(Debug)]
struct CountingStore {
    inner: RegionConnection,
    single_finds: u64,
    batched_finds: u64,
    batches: usize,
}

impl StoreAccess for CountingStore {
    fn perform(&mut self, request: &Request<'_>, receive: &mut ReplySink<'_>) -> Result<bool> {
        self.single_finds += u64::from(matches!(request, Request::Find { .. }));
        self.inner.perform(request, receive)
    }
}

impl StoreConnection for CountingStore {
    fn transact(&mut self, body: &mut Body<'_>) -> Result<()> {
        self.inner.transact(body)
    }

    fn pipeline(&mut self, requests: &[Request<'_>], receive: &mut BatchSink<'_>) -> Result<()> {
        self.batches += 1;
        let is_find = |request: &&Request<'_>| matches!(request, Request::Find { .. });
        self.batched_finds += requests.iter().filter(is_find).count() as u64;
        self.inner.pipeline(requests, receive)
    }
}

#[test]
fn finds_by_guti_are_in_one_batch_with_the_reads_by_key() {
    const STEPS: usize = 40;
    let parameters = parameters("tagged");
    let (_folder, inner) = region(&parameters);
    let mut store = CountingStore { inner, single_finds: 0, batched_finds: 0, batches: 0 };
    let mut client = Client::new(&parameters, 0, 1).unwrap();
    client.load(&mut store, &mut |_| {}).unwrap();
    store.batches = 0;
    run(&mut client, &mut store, 16 * STEPS as u64, 16);
    let by_guti: u64 = Procedure::ALL
        .iter()
        .filter(|procedure| is_by_guti(**procedure))
        .filter_map(|procedure| client.counts.get(*procedure as usize))
        .sum();
    assert!(by_guti > 0);
    assert_eq!((store.single_finds, store.batched_finds), (0, by_guti));
    assert_eq!(client.gutis.finds, by_guti);
    // One batch of reads and finds, one of writes.
    assert_eq!(store.batches, 2 * STEPS);
}
