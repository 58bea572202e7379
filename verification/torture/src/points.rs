//! Every named crash point of every write path: a child kills itself there, another process
//! verifies the region.

use std::collections::BTreeMap;
use std::path::Path;

use nearstate_store::Region;
use nearstate_store::crash::{POINTS, TRACED_MAX};

use crate::error_context::ErrorContext as _;
use crate::idle_memory::IdleCase;
use crate::limits;
use crate::oracle::Oracle;
use crate::region_access::open_session;
use crate::removals::RemovalCase;
use crate::repairs;
use crate::scenario::{SCENARIOS, Scenario, child, child_with, named, prepare, verify};
use crate::spawn::ChildCommand;
use crate::spawn::EnvSetting;
use crate::verify::check_clean;

#[derive(Clone, Debug, Default)]
pub struct ReachedPoints {
    /// Kills at each point.
    pub kills: BTreeMap<&'static str, u64>,
}

impl ReachedPoints {
    /// Points that were not reached.
    pub fn missing(&self) -> Vec<&'static str> {
        POINTS.iter().filter(|point| !self.kills.contains_key(*point)).copied().collect()
    }

    /// Counts a kill at a point, if there was one. Returns whether there was.
    pub(crate) fn count(&mut self, point: &'static str, is_killed: bool) -> bool {
        if is_killed {
            *self.kills.entry(point).or_default() += 1;
        }
        is_killed
    }

    /// Kills at each point, at several of its occurrences. `trial` gets the plan of a kill and the
    /// number of earlier trials at the point; it returns false if its child was not killed, which
    /// ends the trials at this point.
    pub(crate) fn each(
        &mut self,
        points: impl Iterator<Item = &'static str>,
        occurrences: &Occurrences,
        what: &str,
        trial: &mut dyn FnMut(&str, u32) -> Result<bool, String>,
    ) -> Result<(), String> {
        for point in points {
            let mut occurrence = 1_u32;
            for number in 0..occurrences.tries {
                let plan = format!("{point}:{occurrence}");
                let is_killed =
                    trial(&plan, number).map_err(|e| format!("{what} killed at {plan}: {e}"))?;
                if !self.count(point, is_killed) {
                    break;
                }
                occurrence = (occurrences.next)(occurrence, number);
            }
        }
        Ok(())
    }
}

/// The points that a workload passes, and how often, up to [`TRACED_MAX`] times. What it does not
/// pass needs no trial.
#[derive(Clone, Debug, Default)]
pub(crate) struct PassedPoints(BTreeMap<String, u32>);

/// Runs of a workload that are traced: the random seed of a region decides about some points.
const TRACES: usize = 2;

impl PassedPoints {
    /// Traces a workload in some regions. `run` prepares a region and runs the child in it with the
    /// given setting.
    pub(crate) fn of(
        folder: &Path,
        mut run: impl FnMut(EnvSetting<'_>) -> Result<(), String>,
    ) -> Result<Self, String> {
        let mut passed = Self::default();
        for _ in 0..TRACES {
            let file = folder.join("trace");
            let path = file.to_str().ok_or("the folder's name is not UTF-8")?;
            run(("NEARSTATE_CRASH_TRACE", path))?;
            let text = std::fs::read_to_string(&file).context(path)?;
            std::fs::remove_file(&file).context(path)?;
            let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
            for point in text.lines() {
                *counts.entry(point).or_default() += 1;
            }
            for (point, count) in counts {
                let most = passed.0.entry(point.to_owned()).or_default();
                *most = count.max(*most);
            }
        }
        Ok(passed)
    }

    /// True if a point is passed this often.
    pub(crate) fn has(&self, point: &str, times: u32) -> bool {
        debug_assert!(times <= TRACED_MAX, "the trace does not tell");
        self.0.get(point).is_some_and(|passed| *passed >= times)
    }
}

/// The occurrences of a point at which a child is killed. The first is 1.
pub(crate) struct Occurrences {
    /// How many, at most.
    pub(crate) tries: u32,
    /// The next one, by the last one and its number.
    pub(crate) next: fn(u32, u32) -> u32,
}

/// The points that satisfy a condition.
pub(crate) fn points_where(
    is_included: impl Fn(&str) -> bool,
) -> impl Iterator<Item = &'static str> {
    POINTS.iter().copied().filter(move |point| is_included(point))
}

/// The points whose names begin with one of these prefixes.
pub(crate) fn points_with(prefixes: &[&str]) -> impl Iterator<Item = &'static str> {
    points_where(move |point| prefixes.iter().any(|prefix| point.starts_with(prefix)))
}

/// Where regions are created, how children are started, and how thoroughly points are tested.
#[derive(Clone, Copy, Debug)]
pub struct CrashTest<'t> {
    pub folder: &'t Path,
    pub starter: &'t ChildCommand,
    /// Occurrences of a point that are tested in one scenario, at most.
    pub occurrences: u32,
    /// Of the pairs of a crash point and a point of its recovery, one in this many is tested.
    pub stride: usize,
}

impl CrashTest<'_> {
    /// Lets a child run a scenario until it is killed as planned; `None` if it finishes.
    fn killed_writer(&self, scenario: &Scenario, plan: &str) -> Result<Option<Oracle>, String> {
        let oracle = prepare(self.folder, scenario)?;
        let words = ("scenario", 0, scenario.name);
        Ok(child(self.starter, self.folder, words, Some(plan))?.then_some(oracle))
    }

    /// Runs a child. True if it was killed as planned.
    pub(crate) fn is_killed(&self, role: &str, plan: &str) -> Result<bool, String> {
        child(self.starter, self.folder, (role, 0, ""), Some(plan))
    }

    /// Runs a child that is not killed.
    pub(crate) fn complete(&self, role: &str) -> Result<(), String> {
        child(self.starter, self.folder, (role, 0, ""), None).map(drop)
    }

    fn check_clean(&self) -> Result<(), String> {
        check_clean(&self.folder.join("region")).map(drop)
    }

    /// The points that a scenario passes.
    fn passed(&self, scenario: &Scenario) -> Result<PassedPoints, String> {
        PassedPoints::of(self.folder, |setting| {
            prepare(self.folder, scenario)?;
            let words = ("scenario", 0, scenario.name);
            child_with(self.starter, self.folder, words, &[setting]).map(drop)
        })
        .map_err(|e| format!("{} traced: {e}", scenario.name))
    }
}

/// Kills at every point in every scenario, at several occurrences with increasing distance.
pub fn writes(test: &CrashTest<'_>) -> Result<ReachedPoints, String> {
    let mut reached = ReachedPoints::default();
    for scenario in SCENARIOS {
        let passed = test.passed(scenario)?;
        let points = points_where(|point| scenario.has_point(point) && passed.has(point, 1));
        // A full region takes long to fill and to verify.
        let tries = if scenario.is_full { test.occurrences.div_ceil(2) } else { test.occurrences };
        let occurrences = Occurrences { tries, next: |last, _| 1 + last + last / 2 };
        reached.each(points, &occurrences, scenario.name, &mut |plan, _| {
            let Some(mut oracle) = test.killed_writer(scenario, plan)? else { return Ok(false) };
            verify(test.folder, scenario, &mut oracle).map(|()| true)
        })?;
    }
    Ok(reached)
}

/// Leaves a child dead at a point, kills the next process, which recovers it, at every point of the
/// recovery, and lets another verify.
pub fn recoveries(test: &CrashTest<'_>) -> Result<ReachedPoints, String> {
    let mut reached = ReachedPoints::default();
    for scenario in SCENARIOS.iter().filter(|scenario| !scenario.is_full) {
        // Transactions have their own pairs below.
        let has_own_pairs = scenario.name.starts_with("transaction") || scenario.name == "streamed";
        let passed = test.passed(scenario)?;
        for (first, second) in pairs(if has_own_pairs { 5 * test.stride } else { test.stride }) {
            if passed.has(first, FIRST_DEATH) {
                two_deaths(test, scenario, [first, second], &mut reached).map_err(|e| {
                    format!("{} killed at {first}, then {second}: {e}", scenario.name)
                })?;
            }
        }
    }
    for (first, second) in pairs_of_transactions() {
        let name = match first {
            first if first.starts_with("line.") => "transaction-grow",
            "txn.prepared" | "txn.decided" | "txn.appended" | "txn.ring_locked" => "streamed",
            _ => "transaction",
        };
        let scenario = scenario_of(name);
        two_deaths(test, scenario, [first, second], &mut reached)
            .map_err(|e| format!("{} killed at {first}, then {second}: {e}", scenario.name))?;
    }
    Ok(reached)
}

/// The occurrence of a point at which the first of two processes is killed.
const FIRST_DEATH: u32 = 2;

/// Every point of a commit with every point that its recovery passes.
fn pairs_of_transactions() -> impl Iterator<Item = (&'static str, &'static str)> {
    // What recovery does for a commit, besides its own points.
    let of_commit = [
        "undone",
        "appended",
        "replacing",
        "replaced",
        "unpended",
        "retired",
        "cell_retired",
        "unlocking",
    ];
    let is_second = move |point: &str| {
        let name = point.strip_prefix("txn.");
        point.starts_with("recover.") || name.is_some_and(|name| of_commit.contains(&name))
    };
    points_with(&["txn.", "line."])
        .flat_map(move |first| points_where(is_second).map(move |second| (first, second)))
}

/// Points of a write path with points of its recovery: of those that only recovery passes and of
/// those that it shares with the write path, one in `stride`.
fn pairs(stride: usize) -> impl Iterator<Item = (&'static str, &'static str)> {
    let is_recovery = |point: &str| point.starts_with("recover.");
    let first = points_where(move |point| !is_recovery(point));
    first.enumerate().flat_map(move |(row, first)| {
        let second = POINTS.iter().copied().enumerate();
        second
            .filter(move |(column, point)| {
                let is_shared = ["append.", "split.", "publish."]
                    .iter()
                    .any(|prefix| point.starts_with(prefix));
                (is_recovery(point) || is_shared) && (row + column) % stride == 0
            })
            .map(move |(_, second)| (first, second))
    })
}

fn two_deaths(
    test: &CrashTest<'_>,
    scenario: &Scenario,
    [first, second]: [&'static str; 2],
    reached: &mut ReachedPoints,
) -> Result<(), String> {
    let plan = format!("{first}:{FIRST_DEATH}");
    let Some(mut oracle) = test.killed_writer(scenario, &plan)? else { return Ok(()) };
    reached.count(first, true);
    let is_killed = test.is_killed("attach", &format!("{second}:1"))?;
    if reached.count(second, is_killed) && second.starts_with("recover.") {
        // A third process dies while it recovers both.
        reached.count("recover.record", test.is_killed("attach", "recover.record:1")?);
    }
    verify(test.folder, scenario, &mut oracle)
}

/// Leaves a child dead at a point while it owns the only slot, and lets the next process claim the
/// dead session's slot, as if no other could be had. That process is killed at each point of the
/// claim and of the recovery. A third process claims the slot from both, and another verifies.
pub fn adoptions(test: &CrashTest<'_>) -> Result<ReachedPoints, String> {
    let mut reached = ReachedPoints::default();
    let is_second = |point: &str| point.starts_with("recover.") || point.starts_with("attach.");
    for scenario in ["replace", "grow", "free", "stalled", "transaction"].map(scenario_of) {
        let passed = test.passed(scenario)?;
        for (row, first) in points_where(|point| !is_second(point)).enumerate() {
            if !passed.has(first, FIRST_DEATH) {
                continue;
            }
            for (column, second) in points_where(is_second).enumerate() {
                if (row + column) % test.stride == 0 {
                    adopt(test, scenario, [first, second], &mut reached).map_err(|e| {
                        format!("{} killed at {first}, adopted until {second}: {e}", scenario.name)
                    })?;
                }
            }
        }
    }
    Ok(reached)
}

fn scenario_of(name: &str) -> &'static Scenario {
    named(name).unwrap_or_else(|| panic!("scenario {name} does not exist"))
}

fn adopt(
    test: &CrashTest<'_>,
    scenario: &Scenario,
    [first, second]: [&'static str; 2],
    reached: &mut ReachedPoints,
) -> Result<(), String> {
    let plan = format!("{first}:{FIRST_DEATH}");
    let Some(mut oracle) = test.killed_writer(scenario, &plan)? else { return Ok(()) };
    let no_slot = ("NEARSTATE_PLANT", "no-new-slot");
    let attach = |settings: &[EnvSetting<'_>]| {
        child_with(test.starter, test.folder, ("attach", 0, ""), settings)
    };
    let plan = format!("{second}:1");
    reached.count(second, attach(&[no_slot, ("NEARSTATE_CRASH_AT", &plan)])?);
    if attach(&[no_slot])? {
        return Err("the third process was killed".to_owned());
    }
    verify(test.folder, scenario, &mut oracle)
}

/// Kills a process at every point that the removal of namespaces reaches. The next process
/// completes what was begun. In every second case this process is attached the whole time, with
/// handles of the namespaces that are removed.
pub fn removals(test: &CrashTest<'_>) -> Result<ReachedPoints, String> {
    let mut reached = ReachedPoints::default();
    let points = points_with(&["removal.", "namespace.", "flags.", "txn.", "publish.", "lock."]);
    let occurrences =
        Occurrences { tries: 2 * test.occurrences, next: |last, number| last + 1 + 2 * number };
    reached.each(points, &occurrences, "a removal", &mut |plan, number| {
        killed_removal(test, plan, number % 2 == 0)
    })?;
    Ok(reached)
}

/// Kills a process at every point that limits of namespaces reach. The next process completes what
/// was begun. In every second case this process is attached the whole time.
pub fn limits(test: &CrashTest<'_>) -> Result<ReachedPoints, String> {
    let mut reached = ReachedPoints::default();
    let points = points_with(&["limits.", "count.", "usage.", "txn.", "lock.", "flags."]);
    let occurrences =
        Occurrences { tries: 2 * test.occurrences, next: |last, number| last + 1 + 3 * number };
    reached.each(points, &occurrences, "limits", &mut |plan, number| {
        killed_limits(test, plan, number % 2 == 0)
    })?;
    Ok(reached)
}

/// Kills a repair at its stores, and the repair of what it has left too. A third one completes
/// both.
pub fn repairs(test: &CrashTest<'_>) -> Result<ReachedPoints, String> {
    let mut reached = ReachedPoints::default();
    let mut store = 1_u32;
    while killed_repair(test, store).map_err(|e| format!("killed at store {store}: {e}"))? {
        reached.count("repair.stored", true);
        // The first stores one by one.
        store += 1 + store / 12;
    }
    Ok(reached)
}

/// False if the child was not killed.
fn killed_repair(test: &CrashTest<'_>, store: u32) -> Result<bool, String> {
    repairs::prepare(test.folder)?;
    let is_killed = test.is_killed("repair", &format!("repair.stored:{store}"))?;
    if is_killed {
        test.is_killed("repair", &format!("repair.stored:{}", 1 + store / 2))?;
        repairs::verify(test.folder)?;
    }
    Ok(is_killed)
}

/// False if the child was not killed.
fn killed_limits(test: &CrashTest<'_>, plan: &str, is_attached: bool) -> Result<bool, String> {
    limits::prepare(test.folder)?;
    let attached =
        if is_attached { Some(open_session(&test.folder.join("region"))?) } else { None };
    let is_killed = test.is_killed("limit-namespaces", plan)?;
    limits::verify(test.folder, attached.as_ref())?;
    drop(attached);
    test.check_clean()?;
    test.complete("limit-namespaces").context("again")?;
    limits::verify(test.folder, None)?;
    test.check_clean()?;
    Ok(is_killed)
}

/// Leaves a child dead at a point of a commit or of a count in a namespace with limits, and kills
/// the process that recovers it at every point of the recovery.
pub fn limit_recoveries(test: &CrashTest<'_>) -> Result<ReachedPoints, String> {
    let mut reached = ReachedPoints::default();
    let seconds = ["usage.settled", "count.added", "txn.undone", "txn.unlocking", "recover.record"];
    for first in points_with(&["usage.", "count.", "txn.recorded", "txn.decided", "txn.intended"]) {
        for second in points_where(|point| seconds.contains(&point)) {
            two_deaths_in_limits(test, [first, second], &mut reached)
                .map_err(|e| format!("limits killed at {first}, then {second}: {e}"))?;
        }
    }
    Ok(reached)
}

fn two_deaths_in_limits(
    test: &CrashTest<'_>,
    [first, second]: [&'static str; 2],
    reached: &mut ReachedPoints,
) -> Result<(), String> {
    limits::prepare(test.folder)?;
    if reached.count(first, test.is_killed("limit-namespaces", &format!("{first}:6"))?) {
        reached.count(second, test.is_killed("attach", &format!("{second}:1"))?);
        limits::verify(test.folder, None)?;
        test.check_clean()?;
    }
    Ok(())
}

/// False if the child was not killed.
fn killed_removal(test: &CrashTest<'_>, plan: &str, is_attached: bool) -> Result<bool, String> {
    let case = RemovalCase::new(test.folder)?;
    let case = is_attached.then_some(case);
    let is_killed = test.is_killed("remove-namespaces", plan)?;
    case.as_ref().map_or_else(|| test.check_clean(), RemovalCase::verify)?;
    test.complete("remove-namespaces").context("again")?;
    case.map_or(Ok(()), RemovalCase::verify_end)?;
    test.check_clean()?;
    Ok(is_killed)
}

/// Kills a process at every point of taking memory from an idle session of this process, which then
/// continues.
pub fn takes(test: &CrashTest<'_>) -> Result<ReachedPoints, String> {
    let mut reached = ReachedPoints::default();
    let occurrences =
        Occurrences { tries: test.occurrences, next: |last, number| last + 1 + 20 * number };
    reached.each(points_with(&["take.", "aside."]), &occurrences, "a child", &mut |plan, _| {
        let case = IdleCase::new(test.folder)?;
        let is_killed = test.is_killed("fill-idle", plan)?;
        case.verify()?;
        test.check_clean()?;
        Ok(is_killed)
    })?;
    Ok(reached)
}

/// Kills a process that drops a region: before the file is removed, the region is as it was; after
/// that, no session opens in it.
pub fn drops(test: &CrashTest<'_>) -> Result<ReachedPoints, String> {
    let mut reached = ReachedPoints::default();
    for point in points_with(&["drop."]) {
        let is_killed = killed_drop(test, point).map_err(|e| format!("killed at {point}: {e}"))?;
        reached.count(point, is_killed);
    }
    Ok(reached)
}

/// False if the child was not killed.
fn killed_drop(test: &CrashTest<'_>, point: &str) -> Result<bool, String> {
    let scenario = scenario_of("insert");
    let path = test.folder.join("region");
    let mut oracle = prepare(test.folder, scenario)?;
    let attached = Region::attach(&path).context("attach")?;
    let is_killed = test.is_killed("drop", &format!("{point}:1"))?;
    if is_killed && path.exists() {
        drop(attached);
        verify(test.folder, scenario, &mut oracle)?;
    } else if is_killed && attached.session().is_ok() {
        return Err("a session opened in a file that was removed".to_owned());
    }
    Ok(is_killed)
}
