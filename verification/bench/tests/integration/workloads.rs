//! Every workload generates what its source states, accepts a correct store, and detects a lost
//! write, a wrong reply and a lost connection.

use nearstate_bench::access::{
    Body, Connection, ReplySink, Request, ScanRange, ScanSink, StoreAccess, StoreConnection,
};
use nearstate_bench::protocol::Fault;
use nearstate_bench::random::AccessDistribution;
use nearstate_bench::targets::fault::FaultyConnection;
use nearstate_bench::targets::region::RegionConnection;
use nearstate_bench::targets::{self};
use nearstate_bench::workloads::{
    self, ANSWERED_WRONGLY, CLASSES_MAX, Parameters, Tally, Workload, WorkloadKind,
};
use nearstate_model::{Error, Result};
use nearstate_store::{CreateOptions, Region};
use tempfile::TempDir;

const SEED: u64 = 7;

fn parameters(kind: &dyn WorkloadKind, variant: &str, records: u64) -> Parameters {
    let spread = if kind.name() == "ycsb" {
        AccessDistribution::Zipfian
    } else {
        AccessDistribution::Uniform
    };
    Parameters { records, variant: variant.to_owned(), spread, seed: SEED, ..Parameters::default() }
}

/// Workloads that have their own tests: `ue-signalling`, and those of single operations, whose
/// clients share records or have no model of each record, or that end when all are inserted.
const OWN_TESTS: [&str; 7] = ["ue-signalling", "micro", "kv", "executor", "txn", "churn", "sets"];

/// Every other workload in every variant.
fn each(records: u64, mut check: impl FnMut(&dyn WorkloadKind, &Parameters)) {
    for kind in workloads::all() {
        for (variant, _) in kind.variants().iter().filter(|_| !OWN_TESTS.contains(&kind.name())) {
            check(kind.as_ref(), &parameters(kind.as_ref(), variant, records));
        }
    }
}

/// A region in memory with the tables of a workload.
struct Store {
    _folder: TempDir,
    region: Region,
    path: String,
}

impl Store {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("region");
        let options = CreateOptions { bytes_max: 256 << 20, ..CreateOptions::default() };
        let region = Region::create(&path, &options).unwrap();
        Self { _folder: folder, region, path: path.display().to_string() }
    }

    fn connect(&self, kind: &dyn WorkloadKind, parameters: &Parameters) -> RegionConnection {
        RegionConnection::open(&self.path, &kind.schema(parameters)).unwrap()
    }

    fn count(&self, table: &str) -> u64 {
        let session = self.region.session().unwrap();
        let namespace = session.known_namespace(table).unwrap().unwrap();
        session.count(namespace).unwrap()
    }
}

fn run(
    workload: &mut dyn Workload,
    store: &mut Connection<'_>,
    operations: usize,
    depth: usize,
) -> Tally {
    let mut all = Tally::default();
    for _ in 0..operations / depth {
        let mut tally = Tally::default();
        workload.step(store, depth, &mut tally).unwrap();
        let counted: u32 = tally.classes.iter().sum();
        assert_eq!(counted as usize, depth, "each operation is counted once");
        for (all, some) in all.classes.iter_mut().zip(tally.classes) {
            *all += some;
        }
        all.bytes_out += tally.bytes_out;
        all.bytes_in += tally.bytes_in;
        all.unsuccessful += tally.unsuccessful;
    }
    all
}

fn load(workload: &mut dyn Workload, store: &mut Connection<'_>) -> u64 {
    let mut loaded = 0;
    workload.load(store, &mut |more| loaded += more).unwrap();
    loaded
}

/// A store with the records of the workload's only client.
fn loaded(
    kind: &dyn WorkloadKind,
    parameters: &Parameters,
) -> (Store, Box<dyn Workload>, RegionConnection) {
    let store = Store::new();
    let mut workload = kind.client(parameters, 0, 1).unwrap();
    let mut connection = store.connect(kind, parameters);
    load(workload.as_mut(), &mut connection);
    (store, workload, connection)
}

#[test]
fn workloads_generate_what_their_sources_state() {
    each(20_000, |kind, parameters| {
        let name = format!("{} {}", kind.name(), parameters.variant);
        let mut null =
            targets::named("null").unwrap().connect("null", &kind.schema(parameters)).unwrap();
        let mut workload = kind.client(parameters, 0, 1).unwrap();
        load(workload.as_mut(), null.as_mut());
        let tally = run(workload.as_mut(), null.as_mut(), 100_000, 1);
        run(workload.as_mut(), null.as_mut(), 100_000, 10);
        let classes = kind.spec().classes;
        assert!(classes.len() < CLASSES_MAX, "{name}: the driver needs one class");
        assert!(tally.classes.iter().skip(classes.len()).all(|n| *n == 0), "{name}: {tally:?}");
        assert!(tally.bytes_out > 0, "{name}");
        let checks = workload.checks();
        assert!(!checks.is_empty(), "{name} has no checks");
        for check in checks {
            assert!(check.weight > 0.0 && check.holds(), "{name}: {check:?}");
        }
    });
}

#[test]
fn a_region_matches_the_model() {
    each(600, |kind, parameters| {
        let name = format!("{} {}", kind.name(), parameters.variant);
        let store = Store::new();
        // Two clients with separate shares of the records.
        let mut clients: Vec<_> = (0..2)
            .map(|client| {
                let workload = kind.client(parameters, client, 2).unwrap();
                (workload, store.connect(kind, parameters))
            })
            .collect();
        for (workload, connection) in &mut clients {
            assert!(load(workload.as_mut(), connection) > 0, "{name}");
        }
        for depth in [1, 7] {
            for (workload, connection) in &mut clients {
                run(workload.as_mut(), connection, 3000, depth);
            }
        }
        let mut expected = 0;
        for (workload, connection) in &mut clients {
            let mut compared = 0;
            let verdict = workload.verify(connection, &mut |more| compared += more).unwrap();
            assert_eq!(verdict.wrong, 0, "{name}: {:?}", verdict.examples);
            assert!(verdict.records >= 300 && compared > 0, "{name}: {verdict:?}");
            expected += verdict.records - verdict.absent;
        }
        let bound = kind.size(parameters).0;
        let tables = kind.schema(parameters).tables;
        let stored: u64 = tables.iter().map(|table| store.count(table.name)).sum();
        assert_eq!(expected, stored, "{name}: records of the model, and stored ones");
        assert!(stored <= bound, "{name}: {stored} records, more than the announced {bound}");
    });
}

/// The only workload that changes the tags of an existing record.
#[test]
fn ues_are_found_by_their_changed_tags() {
    let kind = workloads::named("ue-signalling").unwrap();
    let parameters = parameters(kind.as_ref(), "tagged", 600);
    for depth in [1, 7] {
        let (_store, mut workload, mut connection) = loaded(kind.as_ref(), &parameters);
        run(workload.as_mut(), &mut connection, 3500, depth);
        let verdict = workload.verify(&mut connection, &mut |_| {}).unwrap();
        assert_eq!((verdict.records, verdict.wrong), (600, 0), "{:?}", verdict.examples);
        let finds = workload.checks().into_iter().find(|check| check.name.contains("by GUTI"));
        assert!(finds.is_some_and(|check| check.found > 0.3), "no UE was searched for by GUTI");
    }
}

#[test]
fn a_lost_update_is_found_by_every_workload_that_writes() {
    each(600, |kind, parameters| {
        let name = format!("{} {}", kind.name(), parameters.variant);
        if name == "ycsb c" {
            return;
        }
        let store = Store::new();
        let mut workload = kind.client(parameters, 0, 1).unwrap();
        let connection = store.connect(kind, parameters);
        // A client that only writes cannot notice a loss that is overwritten. The periodic fault
        // also loses one of the last writes.
        let is_blind = kind.name() == "micro-tx";
        let plant = if is_blind { FaultyConnection::periodic } else { FaultyConnection::once };
        let mut faulty = plant(Box::new(connection), Fault::LostUpdate);
        load(workload.as_mut(), &mut faulty);
        run(workload.as_mut(), &mut faulty, 8000, 4);
        let verdict = workload.verify(&mut faulty, &mut |_| {}).unwrap();
        assert!(verdict.wrong > 0, "{name} has not noticed it");
        assert!(!verdict.examples.is_empty(), "{name} gives no example");
    });
    for (variant, records) in [("put", 600), ("put-beside-reader", 600), ("insert", 20_000)] {
        assert_eq!(micro_with_fault(variant, records, None), Ok(0), "{variant}");
        let wrong = micro_with_fault(variant, records, Some(Fault::LostUpdate));
        assert!(wrong.is_ok_and(|wrong| wrong > 0), "{variant} has not noticed it");
    }
    // It reads what it has put.
    assert_eq!(micro_with_fault("update", 600, None), Ok(0));
    let read = micro_with_fault("update", 600, Some(Fault::LostUpdate)).unwrap_err().to_string();
    assert!(read.contains(ANSWERED_WRONGLY), "{read}");
}

/// Some passes of the only writer of `micro` with a periodic fault: the number of wrong records, or
/// the error of a block.
fn micro_with_fault(variant: &str, records: u64, fault: Option<Fault>) -> Result<u64> {
    let kind = workloads::named("micro").unwrap();
    let parameters =
        Parameters { value_bytes: Some(64), ..parameters(kind.as_ref(), variant, records) };
    let (_store, mut workload, connection) = loaded(kind.as_ref(), &parameters);
    let mut connection: Box<dyn StoreConnection> = Box::new(connection);
    if let Some(fault) = fault {
        connection = Box::new(FaultyConnection::periodic(connection, fault));
    }
    for count in (1..64).cycle().take(200) {
        workload.step(connection.as_mut(), count, &mut Tally::default())?;
    }
    workload.verify(connection.as_mut(), &mut |_| {}).map(|verdict| verdict.wrong)
}

#[test]
fn a_loss_of_the_last_update_is_found() {
    each(600, |kind, parameters| {
        let name = format!("{} {}", kind.name(), parameters.variant);
        if name == "ycsb c" {
            return;
        }
        let (_store, mut workload, mut connection) = loaded(kind, parameters);
        run(workload.as_mut(), &mut connection, 500, 1);
        let mut losing = FaultyStore::new(&mut connection, 1, Loss::Silent);
        while !losing.plan.is_over {
            workload.step(&mut losing, 1, &mut Tally::default()).unwrap();
        }
        let verdict = workload.verify(&mut connection, &mut |_| {}).unwrap();
        assert!(verdict.wrong > 0, "{name} has not noticed it");
    });
}

#[test]
fn a_wrong_reply_is_found_by_workloads_that_read() {
    each(600, |kind, parameters| {
        let name = format!("{} {}", kind.name(), parameters.variant);
        let reads =
            ["ycsb a", "ycsb b", "ycsb c", "ycsb d", "ycsb f", "sgw-session keyed", "tatp mix"];
        if !reads.contains(&name.as_str()) {
            return;
        }
        let (_store, mut workload, connection) = loaded(kind, parameters);
        let mut faulty = FaultyConnection::once(Box::new(connection), Fault::WrongAnswer);
        run(workload.as_mut(), &mut faulty, 4000, 1);
        let verdict = workload.verify(&mut faulty, &mut |_| {}).unwrap();
        assert_eq!(verdict.wrong, 1, "{name}: {:?}", verdict.examples);
    });
    for variant in ["view", "view-scope", "copy", "batch", "batch-copy", "chain", "update"] {
        assert_eq!(micro_with_fault(variant, 600, None), Ok(0), "{variant}");
        let e = micro_with_fault(variant, 600, Some(Fault::WrongAnswer)).unwrap_err().to_string();
        assert!(e.contains(ANSWERED_WRONGLY), "{variant}: {e}");
    }
}

#[test]
fn after_a_lost_connection_the_model_knows_which_operations_were_executed() {
    for (loss, depth) in [(Loss::Before, 1), (Loss::Before, 8), (Loss::After, 1), (Loss::After, 8)]
    {
        each(600, |kind, parameters| {
            let name = format!("{} {} {loss:?} {depth}", kind.name(), parameters.variant);
            let (_store, mut workload, mut connection) = loaded(kind, parameters);
            for round in 1..40 {
                let mut broken = FaultyStore::new(&mut connection, round, loss);
                let mut lost = 0;
                for _ in 0..60 {
                    if let Err(e) = workload.step(&mut broken, depth, &mut Tally::default()) {
                        assert!(matches!(e, Error::Backend { .. }), "{name}: {e}");
                        lost += 1;
                        // The first new connection is lost too.
                        let _ = workload.resolve_unanswered(&mut FaultyStore::dead(&mut broken));
                        workload.resolve_unanswered(&mut broken).unwrap();
                    }
                }
                let is_writing = parameters.variant != "c";
                assert!(lost == 1 || !is_writing || round > 1, "{name}: lost {lost} times");
            }
            let verdict = workload.verify(&mut connection, &mut |_| {}).unwrap();
            assert_eq!(verdict.wrong, 0, "{name}: {:?}", verdict.examples);
        });
    }
}

/// The classes of `count` operations of a client.
fn classes_of(kind: &dyn WorkloadKind, client: usize, count: usize) -> Vec<usize> {
    let (variant, _) = kind.variants().first().unwrap();
    let parameters = parameters(kind, variant, 4_000);
    let mut null =
        targets::named("null").unwrap().connect("null", &kind.schema(&parameters)).unwrap();
    let mut workload = kind.client(&parameters, client, 4).unwrap();
    load(workload.as_mut(), null.as_mut());
    let mut class = || {
        let tally = run(workload.as_mut(), null.as_mut(), 1, 1);
        tally.classes.iter().position(|count| *count > 0).unwrap()
    };
    (0..count).map(|_| class()).collect()
}

#[test]
fn no_two_clients_run_the_same_sequence() {
    /// Sequences of this length are equal by chance once in 2^60 or less often.
    const LENGTH: usize = 60;
    for name in ["ue-signalling", "tatp", "sgw-session", "ycsb"] {
        let kind = workloads::named(name).unwrap();
        let mut seen = std::collections::BTreeMap::new();
        for client in 0..4 {
            let classes = classes_of(kind.as_ref(), client, 1_500);
            for window in classes.windows(LENGTH) {
                let other = *seen.entry(window.to_vec()).or_insert(client);
                assert_eq!(other, client, "{name}: clients {other} and {client} run the same");
            }
        }
    }
}

#[test]
fn invalid_parameters_are_refused() {
    for kind in workloads::all() {
        let kind = kind.as_ref();
        if OWN_TESTS.contains(&kind.name()) {
            continue;
        }
        let (variant, _) = kind.variants().first().unwrap();
        let good = parameters(kind, variant, 600);
        assert!(kind.client(&good, 0, 1).is_ok());
        assert!(kind.client(&good, 1, 1).is_err());
        assert!(kind.client(&Parameters { records: 1, ..good.clone() }, 0, 2).is_err());
        let other = Parameters { variant: "another".to_owned(), ..good };
        let refused = kind.client(&other, 0, 1).unwrap_err().to_string();
        assert!(refused.contains(variant), "{refused}");
    }
}

#[test]
fn workloads_have_the_figures_of_their_papers() {
    let figures = |name: &str| workloads::named(name).unwrap().paper_figures();
    assert!(figures("tatp").iter().any(|f| f.what.contains("FaRM") && f.figure.contains("97")));
    assert!(figures("mme-insert").iter().any(|f| f.figure.contains("80 µs")));
    assert!(figures("mme-update").iter().any(|f| f.figure == "2"));
    assert!(figures("sgw-session").iter().any(|f| f.figure.contains("590")));
    assert!(figures("micro-tx").iter().any(|f| f.figure.contains("0.4")));
}

/// The fault of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    /// The write is acknowledged, but not executed.
    Silent,
    /// The connection is lost before the write is executed.
    Before,
    /// The connection is lost after the write was executed.
    After,
}

/// The write that fails, and how.
struct Plan {
    /// Writes up to the one that fails.
    left: u64,
    loss: Loss,
    is_over: bool,
    is_dead: bool,
}

impl Plan {
    fn is_now(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        let is_now = self.left == 0 && !self.is_over;
        self.is_over |= is_now;
        is_now
    }
}

fn lost() -> Error {
    Error::Backend { detail: "the connection is lost".to_owned() }
}

/// Operations of which one write fails.
struct FaultyAccess<'a> {
    inner: &'a mut dyn StoreAccess,
    plan: &'a mut Plan,
}

impl StoreAccess for FaultyAccess<'_> {
    fn perform(&mut self, request: &Request<'_>, receive: &mut ReplySink<'_>) -> Result<bool> {
        let is_write = !matches!(request, Request::Read { .. } | Request::Find { .. });
        if self.plan.is_dead {
            return Err(lost());
        }
        if !is_write || !self.plan.is_now() {
            return self.inner.perform(request, receive);
        }
        match self.plan.loss {
            Loss::Silent => Ok(true),
            Loss::Before => Err(lost()),
            Loss::After => self.inner.perform(request, receive).and(Err(lost())),
        }
    }

    fn scan(&mut self, range: &ScanRange<'_>, receive: &mut ScanSink<'_>) -> Result<usize> {
        self.inner.scan(range, receive)
    }
}

/// A connection of which one write fails.
struct FaultyStore<'c> {
    inner: &'c mut Connection<'c>,
    plan: Plan,
}

impl<'c> FaultyStore<'c> {
    fn new(inner: &'c mut Connection<'c>, left: u64, loss: Loss) -> Self {
        Self { inner, plan: Plan { left, loss, is_over: false, is_dead: false } }
    }

    fn dead(inner: &'c mut Connection<'c>) -> Self {
        let plan = Plan { left: 0, loss: Loss::Before, is_over: true, is_dead: true };
        Self { inner, plan }
    }
}

impl StoreAccess for FaultyStore<'_> {
    fn perform(&mut self, request: &Request<'_>, receive: &mut ReplySink<'_>) -> Result<bool> {
        FaultyAccess { inner: self.inner, plan: &mut self.plan }.perform(request, receive)
    }

    fn scan(&mut self, range: &ScanRange<'_>, receive: &mut ScanSink<'_>) -> Result<usize> {
        self.inner.scan(range, receive)
    }
}

impl StoreConnection for FaultyStore<'_> {
    fn transact(&mut self, body: &mut Body<'_>) -> Result<()> {
        let Self { inner, plan } = self;
        if plan.loss == Loss::After && !plan.is_over {
            let is_now = plan.is_now();
            inner.transact(body)?;
            return if is_now { Err(lost()) } else { Ok(()) };
        }
        inner.transact(&mut |access| body(&mut FaultyAccess { inner: access, plan }))
    }
}
