//! Every named crash point of every write path: a child kills itself there, another process
//! verifies the region.

use std::collections::BTreeMap;
use std::path::Path;

use nearstate_store::Region;
use nearstate_store::crash::POINTS;

use crate::idle_memory::IdleCase;
use crate::limits;
use crate::oracle::Oracle;
use crate::removals::RemovalCase;
use crate::repairs;
use crate::scenario::{ChildEnd, SCENARIOS, Scenario, child, child_with, named, prepare, verify};
use crate::spawn::ChildCommand;
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

    pub(crate) fn count(&mut self, point: &'static str) {
        *self.kills.entry(point).or_default() += 1;
    }
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
        let words = ["scenario", scenario.name];
        let end = child(self.starter, self.folder, words, Some(plan))?;
        Ok((end == ChildEnd::Killed).then_some(oracle))
    }
}

/// Kills at every point in every scenario, at several occurrences with increasing distance.
pub fn writes(test: &CrashTest<'_>) -> Result<ReachedPoints, String> {
    let mut reached = ReachedPoints::default();
    for scenario in SCENARIOS {
        for point in POINTS.iter().filter(|point| scenario.has_point(point)) {
            let mut occurrence = 1_u32;
            for _ in 0..test.occurrences {
                let plan = format!("{point}:{occurrence}");
                let context = |e| format!("{} killed at {plan}: {e}", scenario.name);
                let killed = test.killed_writer(scenario, &plan).map_err(context)?;
                let Some(mut oracle) = killed else { break };
                reached.count(point);
                verify(test.folder, scenario, &mut oracle).map_err(context)?;
                occurrence += 1 + occurrence / 2;
            }
        }
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
        for (first, second) in pairs(if has_own_pairs { 5 * test.stride } else { test.stride }) {
            two_deaths(test, scenario, [first, second], &mut reached)?;
        }
    }
    for (first, second) in pairs_of_transactions() {
        let name = match first {
            first if first.starts_with("line.") => "transaction-grow",
            "txn.prepared" | "txn.decided" | "txn.appended" | "txn.ring_locked" => "streamed",
            _ => "transaction",
        };
        let scenario = named(name).ok_or("no scenario of transactions")?;
        two_deaths(test, scenario, [first, second], &mut reached)?;
    }
    Ok(reached)
}

/// Every point of a commit with every point that its recovery passes.
fn pairs_of_transactions() -> impl Iterator<Item = (&'static str, &'static str)> {
    let is_first = |point: &&str| point.starts_with("txn.") || point.starts_with("line.");
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
    let is_second = move |point: &&str| {
        let name = point.strip_prefix("txn.");
        point.starts_with("recover.") || name.is_some_and(|name| of_commit.contains(&name))
    };
    let first = POINTS.iter().copied().filter(is_first);
    first.flat_map(move |first| {
        POINTS.iter().copied().filter(is_second).map(move |second| (first, second))
    })
}

/// Points of a write path with points of its recovery: of those that only recovery passes and of
/// those that it shares with the write path, one in `stride`.
fn pairs(stride: usize) -> impl Iterator<Item = (&'static str, &'static str)> {
    let is_recovery = |point: &&str| point.starts_with("recover.");
    let first = POINTS.iter().copied().filter(move |point| !is_recovery(point));
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
    let context = |e| format!("{} killed at {first}, then {second}: {e}", scenario.name);
    let killed = test.killed_writer(scenario, &format!("{first}:2")).map_err(context)?;
    let Some(mut oracle) = killed else { return Ok(()) };
    reached.count(first);
    let CrashTest { folder, starter, .. } = *test;
    let plan = format!("{second}:1");
    let end = child(starter, folder, ["attach", ""], Some(&plan)).map_err(context)?;
    if end == ChildEnd::Killed {
        reached.count(second);
        if second.starts_with("recover.") {
            // A third process dies while it recovers both.
            let end = child(starter, folder, ["attach", ""], Some("recover.record:1"));
            if end.map_err(context)? == ChildEnd::Killed {
                reached.count("recover.record");
            }
        }
    }
    verify(folder, scenario, &mut oracle).map_err(context)
}

/// Leaves a child dead at a point while it owns the only slot, and lets the next process claim the
/// dead session's slot, as if no other could be had. That process is killed at each point of the
/// claim and of the recovery. A third process claims the slot from both, and another verifies.
///
/// # Errors
/// The violation that was found, with the points and the scenario.
pub fn adoptions(test: &CrashTest<'_>) -> Result<ReachedPoints, String> {
    let mut reached = ReachedPoints::default();
    let is_second = |point: &&str| point.starts_with("recover.") || point.starts_with("attach.");
    for scenario in ["replace", "grow", "free", "stalled", "transaction"].map(scenario_of) {
        let first = POINTS.iter().copied().filter(|point| !is_second(point)).enumerate();
        let pairs = first.flat_map(|(row, first)| {
            let second = POINTS.iter().copied().filter(is_second).enumerate();
            second
                .filter(move |(column, _)| (row + column) % test.stride == 0)
                .map(move |(_, second)| (first, second))
        });
        for (first, second) in pairs {
            adopt(test, scenario, [first, second], &mut reached)?;
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
    let context = |e| format!("{} killed at {first}, adopted until {second}: {e}", scenario.name);
    let killed = test.killed_writer(scenario, &format!("{first}:2")).map_err(context)?;
    let Some(mut oracle) = killed else { return Ok(()) };
    let CrashTest { folder, starter, .. } = *test;
    let no_slot = ("NEARSTATE_PLANT", "no-new-slot");
    let plan = format!("{second}:1");
    let settings = [no_slot, ("NEARSTATE_CRASH_AT", &plan)];
    let end = child_with(starter, folder, ("attach", 0, ""), &settings).map_err(context)?;
    if end == ChildEnd::Killed {
        reached.count(second);
    }
    if child_with(starter, folder, ("attach", 0, ""), &[no_slot]).map_err(context)?
        == ChildEnd::Killed
    {
        return Err(context("the third process was killed".to_owned()));
    }
    verify(folder, scenario, &mut oracle).map_err(context)
}

/// Kills a process at every point that the removal of namespaces reaches. The next process
/// completes what was begun. In every second case this process is attached the whole time, with
/// handles of the namespaces that are removed.
///
/// # Errors
/// The violation that was found, with the point.
pub fn removals(test: &CrashTest<'_>) -> Result<ReachedPoints, String> {
    let mut reached = ReachedPoints::default();
    let prefixes = ["removal.", "namespace.", "flags.", "txn.", "publish.", "lock."];
    let is_passed = |point: &&str| prefixes.iter().any(|prefix| point.starts_with(prefix));
    for point in POINTS.iter().copied().filter(is_passed) {
        let mut occurrence = 1_u32;
        for number in 0..2 * test.occurrences {
            let plan = format!("{point}:{occurrence}");
            let is_attached = number % 2 == 0;
            let killed = killed_removal(test, &plan, is_attached);
            if !killed.map_err(|e| format!("a removal killed at {plan}: {e}"))? {
                break;
            }
            reached.count(point);
            occurrence += 1 + 2 * number;
        }
    }
    Ok(reached)
}

/// Kills a process at every point that limits of namespaces reach. The next process completes what
/// was begun. In every second case this process is attached the whole time.
///
/// # Errors
/// The violation that was found, with the point.
pub fn limits(test: &CrashTest<'_>) -> Result<ReachedPoints, String> {
    let mut reached = ReachedPoints::default();
    let prefixes = ["limits.", "count.", "usage.", "txn.", "lock.", "flags."];
    let is_passed = |point: &&str| prefixes.iter().any(|prefix| point.starts_with(prefix));
    for point in POINTS.iter().copied().filter(is_passed) {
        let mut occurrence = 1_u32;
        for number in 0..2 * test.occurrences {
            let plan = format!("{point}:{occurrence}");
            let killed = killed_limits(test, &plan, number % 2 == 0);
            if !killed.map_err(|e| format!("limits killed at {plan}: {e}"))? {
                break;
            }
            reached.count(point);
            occurrence += 1 + 3 * number;
        }
    }
    Ok(reached)
}

/// Kills a repair at its stores, and the repair of what it has left too. A third one completes
/// both.
///
/// # Errors
/// The violation that was found, with the store.
pub fn repairs(test: &CrashTest<'_>) -> Result<ReachedPoints, String> {
    let mut reached = ReachedPoints::default();
    let CrashTest { folder, starter, .. } = *test;
    let mut store = 1_u32;
    loop {
        let context = |e| format!("a repair killed at store {store}: {e}");
        repairs::prepare(folder).map_err(context)?;
        let plan = format!("repair.stored:{store}");
        if child(starter, folder, ["repair", ""], Some(&plan)).map_err(context)? != ChildEnd::Killed
        {
            return Ok(reached);
        }
        reached.count("repair.stored");
        let again = format!("repair.stored:{}", 1 + store / 2);
        child(starter, folder, ["repair", ""], Some(&again)).map_err(context)?;
        repairs::verify(folder).map_err(context)?;
        // The first stores one by one.
        store += 1 + store / 12;
    }
}

/// False if the child was not killed.
fn killed_limits(test: &CrashTest<'_>, plan: &str, is_attached: bool) -> Result<bool, String> {
    let CrashTest { folder, starter, .. } = *test;
    limits::prepare(folder)?;
    let attached = if is_attached { Some(limits::attach(folder)?) } else { None };
    let end = child(starter, folder, ["limit-namespaces", ""], Some(plan))?;
    limits::verify(folder, attached.as_ref())?;
    drop(attached);
    check_clean(&folder.join("region"))?;
    child(starter, folder, ["limit-namespaces", ""], None).map_err(|e| format!("again: {e}"))?;
    limits::verify(folder, None)?;
    check_clean(&folder.join("region"))?;
    Ok(end == ChildEnd::Killed)
}

/// Leaves a child dead at a point of a commit or of a count in a namespace with limits, and kills
/// the process that recovers it at every point of the recovery.
///
/// # Errors
/// The violation that was found, with the points.
pub fn limit_recoveries(test: &CrashTest<'_>) -> Result<ReachedPoints, String> {
    let mut reached = ReachedPoints::default();
    let CrashTest { folder, starter, .. } = *test;
    let is_first = |point: &&str| {
        ["usage.", "count.", "txn.recorded", "txn.decided", "txn.intended"]
            .iter()
            .any(|prefix| point.starts_with(prefix))
    };
    let seconds = ["usage.settled", "count.added", "txn.undone", "txn.unlocking", "recover.record"];
    for first in POINTS.iter().copied().filter(is_first) {
        for second in POINTS.iter().copied().filter(|point| seconds.contains(point)) {
            let context = |e| format!("limits killed at {first}, then {second}: {e}");
            limits::prepare(folder).map_err(context)?;
            let plan = format!("{first}:6");
            let end = child(starter, folder, ["limit-namespaces", ""], Some(&plan));
            if end.map_err(context)? != ChildEnd::Killed {
                continue;
            }
            reached.count(first);
            let plan = format!("{second}:1");
            let end = child(starter, folder, ["attach", ""], Some(&plan)).map_err(context)?;
            if end == ChildEnd::Killed {
                reached.count(second);
            }
            limits::verify(folder, None).map_err(context)?;
            check_clean(&folder.join("region")).map_err(context)?;
        }
    }
    Ok(reached)
}

/// False if the child was not killed.
fn killed_removal(test: &CrashTest<'_>, plan: &str, is_attached: bool) -> Result<bool, String> {
    let CrashTest { folder, starter, .. } = *test;
    let path = folder.join("region");
    let case = RemovalCase::new(folder)?;
    let case = is_attached.then_some(case);
    let end = child(starter, folder, ["remove-namespaces", ""], Some(plan))?;
    match &case {
        Some(case) => case.verify()?,
        None => drop(check_clean(&path)?),
    }
    child(starter, folder, ["remove-namespaces", ""], None).map_err(|e| format!("again: {e}"))?;
    case.map_or(Ok(()), RemovalCase::verify_end)?;
    check_clean(&path)?;
    Ok(end == ChildEnd::Killed)
}

/// Kills a process at every point of taking memory from an idle session of this process, which then
/// continues.
///
/// # Errors
/// The violation that was found, with the point.
pub fn takes(test: &CrashTest<'_>) -> Result<ReachedPoints, String> {
    let mut reached = ReachedPoints::default();
    let CrashTest { folder, starter, .. } = *test;
    let is_passed = |point: &&str| point.starts_with("take.") || point.starts_with("aside.");
    for point in POINTS.iter().copied().filter(is_passed) {
        let mut occurrence = 1_u32;
        for number in 0..test.occurrences {
            let plan = format!("{point}:{occurrence}");
            let context = |e| format!("killed at {plan}: {e}");
            let case = IdleCase::new(folder).map_err(context)?;
            let end = child(starter, folder, ["fill-idle", ""], Some(&plan)).map_err(context)?;
            case.verify().map_err(context)?;
            check_clean(&folder.join("region")).map_err(context)?;
            if end != ChildEnd::Killed {
                break;
            }
            reached.count(point);
            occurrence += 1 + 20 * number;
        }
    }
    Ok(reached)
}

/// Kills a process that drops a region: before the file is removed, the region is as it was; after
/// that, no session opens in it.
///
/// # Errors
/// The violation that was found, with the point.
pub fn drops(folder: &Path, starter: &ChildCommand) -> Result<ReachedPoints, String> {
    let mut reached = ReachedPoints::default();
    let scenario = named("insert").ok_or("no scenario of inserts")?;
    let path = folder.join("region");
    for point in POINTS.iter().copied().filter(|point| point.starts_with("drop.")) {
        let context = |e| format!("killed at {point}: {e}");
        let mut oracle = prepare(folder, scenario).map_err(context)?;
        let attached = Region::attach(&path).map_err(|e| context(e.to_string()))?;
        let plan = format!("{point}:1");
        if child(starter, folder, ["drop", ""], Some(&plan)).map_err(context)? == ChildEnd::Finished
        {
            continue;
        }
        reached.count(point);
        if path.exists() {
            drop(attached);
            verify(folder, scenario, &mut oracle).map_err(context)?;
        } else if attached.session().is_ok() {
            return Err(context("a session opened in a file that was removed".to_owned()));
        }
    }
    Ok(reached)
}
