//! Every crash point that a script reaches: a child kills itself there, another process verifies
//! the region, a second child executes the rest of the script, and the result is verified again.

use std::collections::BTreeMap;
use std::path::Path;

use nearstate_store::{Region, Schema, StreamItem, WhenFull};

use crate::error_context::ErrorContext as _;
use crate::points::{
    CrashTest, Occurrences, PassedPoints, ReachedPoints, points_where, points_with,
};
use crate::region_access::{create_region, open_session};
use crate::scenario::{child, child_with};
use crate::tags::model::TagModel;
use crate::tags::script_process::{KEPT, ScriptProgress, forget_progress, progress};
use crate::tags::scripts::{SCRIPTS, TagScript};
use crate::tags::verifier::ScriptVerifier;
use crate::verify::check_clean;

/// A region at the beginning of a script.
struct CrashCase<'c> {
    test: &'c CrashTest<'c>,
    script: &'c TagScript,
    model: TagModel,
    verifier: ScriptVerifier,
}

impl<'c> CrashCase<'c> {
    fn new(test: &'c CrashTest<'c>, script: &'c TagScript) -> Result<Self, String> {
        let CrashTest { folder, starter, .. } = *test;
        let path = create_region(folder)?;
        forget_progress(folder)?;
        let mut model = TagModel::default();
        if let Some(before) = script.before {
            let what = format!("{}:before", script.name);
            child(starter, folder, ("tagged", 0, &what), None)?;
            model = model.after_all(&before());
            model.is_forward = false;
            forget_progress(folder)?;
        }
        let verifier = ScriptVerifier::new(&path, script, &mut model)?;
        Ok(Self { test, script, model, verifier })
    }

    /// A child executes the script from a step on. True if it was killed as planned.
    fn play(&self, from: usize, plan: Option<&str>) -> Result<bool, String> {
        child(self.test.starter, self.test.folder, ("tagged", from, self.script.name), plan)
    }

    /// Verifies the region, has the rest of the script executed, and verifies it again.
    fn verify(mut self) -> Result<(), String> {
        let path = self.test.folder.join("region");
        let steps = (self.script.work)();
        check_clean(&path).context("after recovery")?;
        let ScriptProgress { done, is_begun } = progress(self.test.folder)?;
        let before = self.model.after_all(steps.get(..done).unwrap_or_default());
        let models = match steps.get(done) {
            Some(step) if is_begun => before.after(step),
            _ => vec![before],
        };
        let context = |e| format!("after {done} steps (one more begun: {is_begun}): {e}");
        let which = self.verifier.compare(&path, &models).map_err(context)?;
        // An incomplete step is repeated, unless that would execute it twice.
        let is_whole = models.len() > 1 && which + 1 == models.len();
        let from = done + usize::from(is_whole);
        let remaining = steps.get(from..).unwrap_or_default();
        let expected =
            models.get(which).map(|model| model.after_all(remaining)).unwrap_or_default();
        self.play(from, None).context("continuing")?;
        self.verifier
            .compare(&path, &[expected])
            .map_err(|e| format!("after continuing from step {from}: {e}"))?;
        check_clean(&path).map(drop).context("after continuing")
    }
}

/// The points that a script passes.
fn passed(test: &CrashTest<'_>, script: &TagScript) -> Result<PassedPoints, String> {
    PassedPoints::of(test.folder, |setting| {
        let case = CrashCase::new(test, script)?;
        let words = ("tagged", 0, script.name);
        let end = child_with(test.starter, test.folder, words, &[setting]);
        drop(case);
        end.map(drop)
    })
    .map_err(|e| format!("{} traced: {e}", script.name))
}

/// The occurrence of a point at which the first of two processes is killed.
const FIRST_DEATH: u32 = 3;

/// Kills at every point in every script, at several of its occurrences.
pub fn writes(test: &CrashTest<'_>) -> Result<ReachedPoints, String> {
    let mut reached = ReachedPoints::default();
    let occurrences = Occurrences { tries: test.occurrences, next: |last, _| 2 * last + 1 };
    for script in SCRIPTS {
        let passed = passed(test, script)?;
        let points = points_where(|point| passed.has(point, 1));
        reached.each(points, &occurrences, script.name, &mut |plan, _| {
            let case = CrashCase::new(test, script)?;
            let is_killed = case.play(0, Some(plan))?;
            case.verify()?;
            Ok(is_killed)
        })?;
    }
    Ok(reached)
}

/// Leaves a child dead at a point of a commit with events or of a ring's creation, kills the next
/// process, which recovers it, at every point of the recovery, and lets another verify.
pub fn recoveries(test: &CrashTest<'_>) -> Result<ReachedPoints, String> {
    let mut reached = ReachedPoints::default();
    let of_recovery = [
        "recover.",
        "entry.",
        "event.retired",
        "txn.repl",
        "txn.un",
        "txn.retired",
        "txn.appended",
        "hold.",
        "log.",
    ];
    let of_first = ["txn.", "entry.", "event.", "ring.", "line.", "counter.", "log.", "hold."];
    let mut pair = 0_usize;
    for script in SCRIPTS {
        let passed = passed(test, script)?;
        for first in points_with(&of_first) {
            for second in points_with(&of_recovery) {
                pair += 1;
                if pair.is_multiple_of(test.stride) && passed.has(first, FIRST_DEATH) {
                    two_deaths(test, script, [first, second], &mut reached).map_err(|e| {
                        format!("{} killed at {first}, then {second}: {e}", script.name)
                    })?;
                }
            }
        }
    }
    Ok(reached)
}

fn two_deaths(
    test: &CrashTest<'_>,
    script: &TagScript,
    [first, second]: [&'static str; 2],
    reached: &mut ReachedPoints,
) -> Result<(), String> {
    let case = CrashCase::new(test, script)?;
    if reached.count(first, case.play(0, Some(&format!("{first}:{FIRST_DEATH}")))?) {
        reached.count(second, test.is_killed("attach", &format!("{second}:1"))?);
        case.verify()?;
    }
    Ok(())
}

/// Kills a process while it creates the log or writes to it, in a namespace whose log refuses
/// commits when it is full. The next process in its place writes until it is refused.
pub fn kept(test: &CrashTest<'_>) -> Result<u64, String> {
    let mut kills = 0;
    for point in points_with(&["log.", "hold.", "txn.prepared", "txn.decided"]) {
        for occurrence in [1, 3] {
            let plan = format!("{point}:{occurrence}");
            let is_killed =
                killed_fill(test, &plan).map_err(|e| format!("filling killed at {plan}: {e}"))?;
            kills += u64::from(is_killed);
        }
    }
    Ok(kills)
}

/// False if the child was not killed.
fn killed_fill(test: &CrashTest<'_>, plan: &str) -> Result<bool, String> {
    let path = create_region(test.folder)?;
    stream_kept(&path).context("stream")?;
    let is_killed = test.is_killed("fill", plan)?;
    // The dead process's slot is free, and what the log holds in it.
    test.complete("attach")?;
    test.complete("fill")?;
    verify_kept(&path)?;
    check_clean(&path)?;
    Ok(is_killed)
}

fn stream_kept(path: &Path) -> nearstate_store::Result<()> {
    let session = Region::attach(path)?.session()?;
    let ns = session.namespace(KEPT, &Schema::default())?;
    session.stream(ns, WhenFull::Refuse)
}

/// Each version of each record is in the log once, and nothing is lost.
fn verify_kept(path: &Path) -> Result<(), String> {
    let session = open_session(path)?;
    let ns = session.namespace(KEPT, &Schema::default()).context("open")?;
    let mut streamed: BTreeMap<Vec<u8>, (u64, u64)> = BTreeMap::new();
    let mut consumer = session.commit_stream().context("stream")?;
    while let Some(next) = consumer.next().context("stream")? {
        let StreamItem::Transaction(entry) = next else { return Err(format!("{next:?}")) };
        for record in entry.records() {
            let record = record.map_err(|e| format!("{e:?}"))?;
            let first = (record.version, record.version - 1);
            let seen = streamed.entry(record.key.to_vec()).or_insert(first);
            if record.version != seen.1 + 1 {
                return Err(format!("version {} follows {}", record.version, seen.1));
            }
            seen.1 = record.version;
        }
    }
    let mut records = 0;
    let mut scan = session.scan(ns).context("scan")?;
    while let Some(view) = scan.next().context("scan")? {
        records += 1;
        let last = streamed.get(view.key()).map(|(_, last)| *last);
        if last != Some(view.version()) {
            return Err(format!("version {} of a record, {last:?} in the log", view.version()));
        }
    }
    if records != streamed.len() {
        return Err(format!("{records} records exist, {} are in the log", streamed.len()));
    }
    Ok(())
}
