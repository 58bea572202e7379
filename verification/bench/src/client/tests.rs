//! A client whose connections break, on a region that keeps working.

use super::*;
use crate::access::{BatchSink, Body, OwnedReply, ReplySink, Request, StoreAccess, StoreSchema};
use crate::parameters::{Arrivals, Parameters};
use crate::protocol::Fault;
use crate::random::AccessDistribution;
use crate::result::ClassResult;
use crate::targets::region::RegionConnection;
use crate::targets::{Capabilities, Database, DatabaseSpec, region::RegionTarget};
use nearstate_store::{CreateOptions, Region};
use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

/// A region whose connections break, or return an error, after `left` more writes.
#[derive(Clone, Debug)]
struct BreakingTarget {
    path: String,
    left: Rc<Cell<u64>>,
    answers: Rc<Cell<bool>>,
    /// True if requests are sent before the replies to earlier ones are read.
    ahead: Rc<Cell<bool>>,
}

impl Target for BreakingTarget {
    fn name(&self) -> &'static str {
        "breaking"
    }

    fn version(&self) -> Result<String> {
        Ok(String::new())
    }

    fn capabilities(&self) -> Capabilities {
        RegionTarget.capabilities()
    }

    fn start(&self, spec: &DatabaseSpec) -> Result<Box<dyn Database>> {
        RegionTarget.start(spec)
    }

    fn connect(&self, _: &str, schema: &StoreSchema) -> Result<Box<dyn StoreConnection>> {
        let inner = RegionConnection::open(&self.path, schema)?;
        Ok(Box::new(BreakingStore {
            inner,
            of: self.clone(),
            is_broken: false,
            queued: VecDeque::new(),
        }))
    }
}

#[derive(Debug)]
struct BreakingStore {
    inner: RegionConnection,
    of: BreakingTarget,
    is_broken: bool,
    /// Replies to messages that were sent ahead.
    queued: VecDeque<Vec<(usize, OwnedReply)>>,
}

impl StoreAccess for BreakingStore {
    fn perform(&mut self, request: &Request<'_>, receive: &mut ReplySink<'_>) -> Result<bool> {
        let left = &self.of.left;
        if !matches!(request, Request::Read { .. } | Request::Find { .. }) {
            self.is_broken |= left.get() == 1;
            left.set(left.get().saturating_sub(1));
            if self.is_broken {
                return Err(backend_error!("it breaks now"));
            }
        }
        self.inner.perform(request, receive)
    }
}

impl StoreConnection for BreakingStore {
    fn is_lost(&self) -> bool {
        self.is_broken && !self.of.answers.get()
    }

    fn transact(&mut self, body: &mut Body<'_>) -> Result<()> {
        self.inner.transact(body)
    }

    fn sends_ahead(&self) -> bool {
        self.of.ahead.get()
    }

    /// Executed when it is sent: the earliest moment.
    fn send_ahead(&mut self, requests: &[Request<'_>]) -> Result<()> {
        let mut answers = Vec::new();
        self.pipeline(requests, &mut |number, reply| {
            answers.push((number, OwnedReply::from(reply)));
        })?;
        self.queued.push_back(answers);
        Ok(())
    }

    fn receive_ahead(&mut self, requests: &[Request<'_>], sink: &mut BatchSink<'_>) -> Result<()> {
        let Some(answers) = self.queued.pop_front() else { return self.pipeline(requests, sink) };
        for (number, reply) in &answers {
            sink(*number, reply.reply());
        }
        Ok(())
    }
}

/// A client with its records loaded, and the control over its connection.
struct Fixture {
    _folder: tempfile::TempDir,
    client: Client,
    faults: BreakingTarget,
}

impl Fixture {
    fn new(workload: &str, records: u64) -> Self {
        Self::of(workload, None, records)
    }

    /// The same in a variant.
    fn of(workload: &str, variant: Option<&str>, records: u64) -> Self {
        let mut test = Self::unloaded(workload, variant, records);
        test.client.load(&mut Vec::new()).unwrap();
        test
    }

    /// The same with no record yet, in this variant or the first.
    fn unloaded(workload: &str, variant: Option<&str>, records: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("region");
        drop(Region::create(&path, &CreateOptions::default()).unwrap());
        let kind = workloads::named(workload).unwrap();
        let variant = variant.unwrap_or(kind.variants().first().unwrap().0).to_owned();
        let parameters = Parameters {
            records,
            variant,
            spread: AccessDistribution::Uniform,
            seed: 5,
            ..Parameters::default()
        };
        let faults = BreakingTarget {
            path: path.display().to_string(),
            left: Rc::default(),
            answers: Rc::default(),
            ahead: Rc::default(),
        };
        let target = faults.clone();
        let schema = kind.schema(&parameters);
        let connection = target.connect("", &schema).unwrap();
        let generator = kind.client(&parameters, 0, 1).unwrap();
        let workload = workload.to_owned();
        let (target_name, reconnects) = ("breaking".to_owned(), 1);
        let plan = Plan {
            workload,
            parameters,
            target: target_name,
            clients: 1,
            reconnects,
            ..Plan::default()
        };
        let client = Client {
            block: 1,
            plan,
            target: Box::new(target),
            kind,
            connection,
            workload: generator,
            clock: Clock::new(),
            reconnects: 0,
            progress_ns: PROGRESS_NS,
            pace: StepPace::new(SLOW_STEP_NS),
        };
        Self { _folder: folder, client, faults }
    }

    fn run(&mut self, trial: &Trial) -> Result<ClientResult> {
        let mut output = Vec::new();
        self.client.run(trial, &mut output)?;
        let mut input = output.as_slice();
        loop {
            match receive(&mut input)? {
                Some(ClientReport::Finished(ran)) => return Ok(*ran),
                Some(_) => {}
                None => return Err(backend_error!("no result of the turn")),
            }
        }
    }
}

fn trial(ops: u64, depth: usize) -> Trial {
    let arrivals = Arrivals::Constant;
    Trial { ops, depth, rate: None, arrivals, seed: 1, number: 0, think_us: 0, at_ns: 0 }
}

fn operations(class: &ClassResult) -> u64 {
    class.latencies.iter().map(|(_, count)| *count).sum()
}

/// Workloads count before they ask, or after they are answered. Neither makes a whole step that was
/// cut into operations of the first class.
#[test]
fn operations_that_a_reconnect_cuts_are_a_class_of_their_own() {
    for workload in ["ue-signalling", "sgw-session", "mme-update"] {
        for depth in [1, 8] {
            let mut test = Fixture::new(workload, 200);
            test.faults.left.set(50);
            let ran = test.run(&trial(400, depth)).unwrap();
            assert_eq!((ran.round.ops, ran.reconnects), (400, 1), "{workload}");
            let cut: Vec<_> = ran.round.classes.iter().filter(|class| class.name == CUT).collect();
            assert_eq!(cut.len(), 1, "{workload}");
            assert_eq!(operations(cut[0]), depth as u64, "{workload}");
            assert_eq!(ran.round.classes.iter().map(operations).sum::<u64>(), 400, "{workload}");
            assert_eq!(ran.round.classes.last().map(|class| class.name.as_str()), Some(CUT));
        }
    }
}

/// More requests in flight than UEs: a UE with two procedures at once would return a context that
/// its model does not know.
#[test]
fn steps_overlap_and_no_ue_has_two_procedures_at_once() {
    let drives = [(4_000, 4), (4_001, 10), (4_003, 32), (3, 64)];
    let variants = ["full", "delta", "blind-delta", "tagged"];
    for (variant, (ops, depth)) in variants.iter().flat_map(|one| drives.map(|load| (one, load))) {
        let mut test = Fixture::of("ue-signalling", Some(variant), 70);
        test.faults.ahead.set(true);
        assert!(test.client.overlaps(&trial(ops, depth)));
        let ran = test.run(&trial(ops, depth)).unwrap();
        assert_eq!((ran.round.ops, ran.round.steps), (ops, Some(4)), "{depth}");
        assert_eq!(ran.round.classes.iter().map(operations).sum::<u64>(), ops, "{depth}");
        let connection = test.client.connection.as_mut();
        let verdict = test.client.workload.verify(connection, &mut |_| {}).unwrap();
        assert_eq!((verdict.records, verdict.wrong), (70, 0), "{variant}, {depth}: {verdict:?}");
    }
}

#[test]
fn operations_in_flight_are_interrupted_with_their_connection() {
    let lefts = [40, 41, 45, 50, 57];
    for (variant, left) in lefts.iter().flat_map(|left| [("full", left), ("tagged", left)]) {
        let mut test = Fixture::of("ue-signalling", Some(variant), 200);
        test.faults.ahead.set(true);
        test.faults.left.set(*left);
        let ran = test.run(&trial(400, 16)).unwrap();
        assert_eq!((ran.round.ops, ran.reconnects), (400, 1), "{variant}");
        let cut: u64 =
            ran.round.classes.iter().filter(|class| class.name == CUT).map(operations).sum();
        assert_eq!(cut, 16);
        assert_eq!(ran.round.classes.iter().map(operations).sum::<u64>(), 400);
        let connection = test.client.connection.as_mut();
        let verdict = test.client.workload.verify(connection, &mut |_| {}).unwrap();
        assert_eq!(verdict.wrong, 0, "{verdict:?}");
    }
}

#[test]
fn steps_overlap_only_where_figures_keep_their_meaning() {
    let mut test = Fixture::new("ue-signalling", 70);
    assert!(!test.client.overlaps(&trial(10, 8)), "requests are not sent ahead");
    test.faults.ahead.set(true);
    assert!(test.client.overlaps(&trial(10, 8)));
    assert!(!test.client.overlaps(&trial(10, 3)), "too few operations");
    assert!(!test.client.overlaps(&Trial { think_us: 5, ..trial(10, 8) }), "pauses between steps");
    let open = Trial { rate: Some(1e5), ..trial(10, 8) };
    assert!(!test.client.overlaps(&open), "intended starts");
    assert_eq!(test.run(&open).unwrap().round.steps, Some(1));
    assert_eq!(test.run(&trial(10, 8)).unwrap().round.steps, Some(4));
}

#[test]
fn an_error_reply_is_not_a_lost_connection() {
    let mut test = Fixture::new("ue-signalling", 200);
    test.faults.answers.set(true);
    test.faults.left.set(50);
    let e = test.run(&trial(400, 1)).unwrap_err();
    assert!(e.to_string().contains("it breaks now"), "{e}");
    assert_eq!(test.client.reconnects, 0);
}

/// A planted fault happens every 300 writes: its first time here is after the reconnect.
#[test]
fn a_planted_fault_remains_after_a_reconnect() {
    let mut test = Fixture::new("sgw-session", 200);
    test.client.plan.fault = Some(Fault::LostUpdate);
    test.faults.left.set(200);
    let ran = test.run(&trial(1_000, 1)).unwrap();
    assert_eq!(ran.reconnects, 1);
    let connection = test.client.connection.as_mut();
    let verdict = test.client.workload.verify(connection, &mut |_| {}).unwrap();
    assert!(verdict.wrong > 0, "the fault went with the connection");
}

#[test]
fn a_planted_fault_is_noticed_where_steps_overlap() {
    let faults = [Fault::LostUpdate, Fault::WrongAnswer];
    for (variant, fault) in faults.iter().flat_map(|fault| [("full", *fault), ("tagged", *fault)]) {
        let mut test = Fixture::of("ue-signalling", Some(variant), 200);
        test.faults.ahead.set(true);
        test.client.plan.fault = Some(fault);
        let e = test.run(&trial(4_000, 16)).unwrap_err().to_string();
        assert!(e.contains(workloads::ANSWERED_WRONGLY), "{fault}: {e}");
        assert!(test.client.overlaps(&trial(4_000, 16)), "{fault}: another path was tested");
    }
}

/// Progress is reported in time, also if a workload sends requests together.
#[test]
fn progress_is_reported_at_each_reply_of_a_slow_target() {
    const RECORDS: u64 = 150;
    for (workload, variant) in
        [("ue-signalling", "tagged"), ("ue-signalling", "full"), ("sgw-session", "keyed")]
    {
        let mut test = Fixture::unloaded(workload, Some(variant), RECORDS);
        // As if each reply took longer than the interval between two reports.
        test.client.progress_ns = 0;
        for (what, work) in [("load", Client::load as Work), ("verify", Client::verify)] {
            let mut output = Vec::new();
            work(&mut test.client, &mut output).unwrap();
            let words = progress(&output);
            let answers = words.iter().filter(|more| **more == 0).count() as u64;
            let records: u64 = words.iter().sum();
            assert!(records > 0 && answers >= records, "{workload}, {what}: {answers} words");
        }
    }
}

/// A step of many operations on such a target may take minutes, with and without overlapping steps.
#[test]
fn progress_is_reported_within_a_step_of_a_slow_target() {
    const OPS: u64 = 640;
    for (variant, ahead) in [("tagged", false), ("tagged", true), ("full", false), ("full", true)] {
        let reports = |slow_ns: u64| {
            let mut test = Fixture::of("ue-signalling", Some(variant), 150);
            test.faults.ahead.set(ahead);
            test.client.progress_ns = 0;
            test.client.pace = StepPace::new(slow_ns);
            let (mut warming, mut running) = (Vec::new(), Vec::new());
            test.client.warm_up(OPS, 64, &mut warming).unwrap();
            test.client.run(&trial(OPS, 64), &mut running).unwrap();
            [warming, running].map(|output| {
                let silent = progress(&output).into_iter().filter(|more| *more == 0);
                silent.count() as u64
            })
        };
        // As if each step were slow: a context is read or found, and most are written.
        let [warming, running] = reports(0);
        assert!(warming > OPS && running > OPS, "{variant}, {ahead}: {warming}, {running}");
        // Steps that are not cost the clock no more than one look each.
        let [warming, running] = reports(u64::MAX);
        assert!(warming + running < OPS, "{variant}, {ahead}: {warming}, {running}");
    }
}

#[test]
fn progress_is_reported_at_each_reply_after_a_slow_step_and_before_the_first() {
    let mut pace = StepPace::new(SLOW_STEP_NS);
    assert!(pace.is_slow(), "nothing is known");
    pace.update(SLOW_STEP_NS - 1);
    assert!(!pace.is_slow());
    pace.update(SLOW_STEP_NS);
    assert!(pace.is_slow());
}

/// An output whose first report takes a second.
struct SlowOutput {
    bytes: Vec<u8>,
    clock: Arc<quanta::Mock>,
}

impl Write for SlowOutput {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.bytes.is_empty() {
            self.clock.increment(Duration::from_secs(1));
        }
        self.bytes.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The clock stands still except for the report. With steps that overlap, three are in flight then.
#[test]
fn the_time_of_a_report_is_no_latency_of_the_next_operation() {
    for (depth, slow_ops) in [(1, 0), (8, 3 * 2)] {
        let mut test = Fixture::new("ue-signalling", 200);
        test.faults.ahead.set(true);
        test.client.warm_up(1, 1, &mut Vec::new()).unwrap();
        let (clock, mock) = Clock::mock();
        (test.client.clock, test.client.progress_ns) = (clock, 0);
        let mut output = SlowOutput { bytes: Vec::new(), clock: mock };
        test.client.run(&trial(200, depth), &mut output).unwrap();
        assert!(!progress(&output.bytes).is_empty(), "nothing was reported");
        let mut reports = output.bytes.as_slice();
        let mut reports = std::iter::from_fn(|| receive(&mut reports).unwrap());
        let ran = reports.find_map(|report| {
            if let ClientReport::Finished(ran) = report { Some(ran) } else { None }
        });
        let classes = ran.unwrap().round.classes;
        let latencies = classes.iter().flat_map(|class| &class.latencies);
        let slow: u64 = latencies.filter(|(ns, _)| *ns > 0).map(|(_, count)| count).sum();
        assert_eq!(slow, slow_ops, "{depth} in flight");
    }
}

type Work = fn(&mut Client, &mut Vec<u8>) -> Result<()>;

/// The contents of the progress reports.
fn progress(mut output: &[u8]) -> Vec<u64> {
    let words = std::iter::from_fn(|| receive(&mut output).unwrap());
    words
        .filter_map(
            |report| if let ClientReport::Progress(more, _) = report { Some(more) } else { None },
        )
        .collect()
}

/// Three quarters of such a trial are spun.
#[test]
fn the_wait_for_intended_starts_is_no_time_of_operations() {
    let mut test = Fixture::new("ue-signalling", 200);
    let ran = test.run(&Trial { rate: Some(5_000.0), ..trial(1_000, 1) }).unwrap();
    let wall_ns = ran.ended_ns - ran.began_ns;
    assert!(
        ran.round.client_cpu_ns > 0 && ran.round.client_cpu_ns < wall_ns / 2,
        "{} of {wall_ns} ns",
        ran.round.client_cpu_ns
    );
}

/// The first report of a client of the null target that is bound to this processor.
fn first_words(cpu: Option<usize>) -> Vec<ClientReport> {
    let test = Fixture::new("ue-signalling", 10);
    let plan = Plan { target: "null".to_owned(), cpu, ..test.client.plan.clone() };
    let (mut input, mut output) = (Vec::new(), Vec::new());
    send(&mut input, &ClientCommand::Plan(plan)).unwrap();
    serve(input.as_slice(), &mut output).unwrap();
    let mut input = output.as_slice();
    std::iter::from_fn(|| receive(&mut input).unwrap()).collect()
}

#[test]
fn an_error_is_reported_once() {
    let mut output = Vec::new();
    serve(&b"{\"load\":1}\n"[..], &mut output).unwrap();
    let reports = receive(&mut output.as_slice()).unwrap();
    assert!(matches!(reports, Some(ClientReport::Failed(_))), "{reports:?}");
    // The error cannot be written: then it is the program's own error.
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    assert!(serve(&b"{\"load\":1}\n"[..], full).is_err());
}

#[test]
fn a_client_that_cannot_be_bound_to_its_processor_reports_it_and_continues() {
    assert_eq!(first_words(None), [ClientReport::Ready]);
    // A processor that no machine has, and one that this one has not.
    for cpu in [usize::MAX, rustix::thread::CpuSet::MAX_CPU - 1] {
        let words = first_words(Some(cpu));
        let [ClientReport::Unbound(why), ClientReport::Ready] = words.as_slice() else {
            panic!("{words:?}")
        };
        assert!(why.contains(&format!("not bound to processor {cpu}")), "{why}");
    }
}
