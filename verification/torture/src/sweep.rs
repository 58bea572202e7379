//! A sweep over the instructions of more operations than [`step`](crate::step) has: sessions,
//! namespaces, tags, transactions, expiry, memory that is joined, recovery, repair.
//!
//! A child executes an operation instruction by instruction. At a place, between two instructions,
//! the region is copied: the copy is what a kill there leaves, and this process recovers and
//! verifies it. So one run of the child stands for any number of kills. Then this process works
//! beside the stopped child: it attaches, reads and writes, also the records that the child is
//! changing. A copy after that is what a kill leaves while others go on. At the end the child
//! completes its operation, or is killed itself.

mod beside;
mod cases;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::error_context::ErrorContext as _;
use crate::rng::seeded;
use crate::snapshot::RegionCopy;
use crate::spawn::{ChildCommand, ChildRole};
use crate::step::{StepStride, SweepRow};
use crate::trace::{SweepError, TracedChild, allow, stop_here};
use crate::verify::check_clean;
pub use cases::{SWEPT, SweptOperation};
use cases::{SweptRegion, TRANSACTION};

/// Instructions at most between the time of a stop and the stop.
const STEPS_AFTER_TIME: u32 = 200;

/// A child's role: executes an operation, which is stepped.
pub fn play(folder: &Path, name: &str) -> Result<(), String> {
    let operation = SWEPT.iter().find(|operation| operation.name == name);
    let operation = operation.ok_or_else(|| format!("unknown operation {name:?}"))?;
    allow()?;
    operation.play(folder, &mut stop_here)
}

/// Where a child is stopped.
enum Places {
    /// After each of the first numbers of instructions, and before and behind the first atomic
    /// instruction that follows each of the second ones.
    Some(BTreeSet<u64>, BTreeSet<u64>),
    /// After every so many instructions.
    Every(u64),
}

impl Places {
    /// True if no place follows this one.
    fn is_last(&self, at: u64) -> bool {
        match self {
            Self::Some(places, atomic) => places.iter().chain(atomic).all(|place| *place <= at),
            Self::Every(_) => false,
        }
    }

    fn contains(&self, at: u64) -> bool {
        match self {
            Self::Some(places, _) => places.contains(&at),
            Self::Every(stride) => at.is_multiple_of(*stride),
        }
    }

    fn is_before_atomic(&self, at: u64) -> bool {
        matches!(self, Self::Some(_, atomic) if atomic.contains(&at))
    }
}

/// A sweep over one operation.
struct OperationSweep<'s> {
    folder: &'s Path,
    starter: &'s ChildCommand,
    operation: &'s SweptOperation,
    /// The region before the operation.
    before: RegionCopy,
}

/// Stops and kills children at instructions of every operation.
pub fn sweep(
    folder: &Path,
    starter: &ChildCommand,
    stride: StepStride,
    tick: &mut dyn FnMut(&str, u64, u64),
) -> Result<Vec<SweepRow>, SweepError> {
    SWEPT.iter().map(|operation| sweep_one(folder, starter, operation, stride, tick)).collect()
}

/// Stops and kills children at instructions of one operation. With places, random ones are tried
/// in equal parts of the operation, and those around some of its atomic instructions.
pub fn sweep_one(
    folder: &Path,
    starter: &ChildCommand,
    operation: &SweptOperation,
    stride: StepStride,
    tick: &mut dyn FnMut(&str, u64, u64),
) -> Result<SweepRow, SweepError> {
    let violation = SweepError::Violation;
    operation.prepare(folder).map_err(violation)?;
    if operation.region == SweptRegion::Killed {
        kill_in_the_middle(folder, starter)?;
    }
    let before = RegionCopy::of(&folder.join("region")).map_err(violation)?;
    let sweep = OperationSweep { folder, starter, operation, before };
    let row = match stride {
        StepStride::Places { count, seed } if operation.is_long => sweep.at_times(count, seed)?,
        StepStride::Places { count, seed } => {
            let instructions = sweep.count()?;
            let places = choose(instructions, count, seed);
            sweep.at_places(&places, instructions, seed % 2 == 0, tick)?
        }
        StepStride::Every(stride) => {
            sweep.at_places(&Places::Every(stride.max(1)), sweep.count()?, false, tick)?
        }
    };
    std::fs::remove_dir_all(folder).map_err(|e| violation(format!("cannot clean up: {e}")))?;
    Ok(row)
}

/// Kills a process when its commit is decided: in about the middle of its transaction.
fn kill_in_the_middle(folder: &Path, starter: &ChildCommand) -> Result<(), SweepError> {
    let violation = SweepError::Violation;
    let before = RegionCopy::of(&folder.join("region")).map_err(violation)?;
    let sweep = OperationSweep { folder, starter, operation: &TRANSACTION, before };
    let instructions = sweep.count()?;
    let child = sweep.start()?;
    let middle = Places::Some(BTreeSet::from([instructions * 3 / 5]), BTreeSet::new());
    walk(&child, &middle, &mut |_| Ok(())).map_err(|(_, error)| violation(error))?;
    child.kill().map_err(violation)
}

/// A random place in each of `count` equal parts, and in half as many before and behind an atomic
/// instruction.
fn choose(instructions: u64, count: u64, seed: u64) -> Places {
    let mut rng = seeded(&[seed]);
    let mut in_parts = |count: u64| -> BTreeSet<u64> {
        let begin = |part| instructions * part / count;
        (0..count).map(|part| rng.u64(begin(part)..begin(part + 1).max(begin(part) + 1))).collect()
    };
    let places = in_parts(count);
    Places::Some(places, in_parts(count.div_ceil(2)))
}

/// Steps a child and visits it at places, up to the last one or to the end of the operation.
/// Returns the number of instructions, also with an error.
fn walk(
    child: &TracedChild,
    places: &Places,
    visit: &mut dyn FnMut(u64) -> Result<(), String>,
) -> Result<u64, (u64, String)> {
    let (mut done, mut is_looking, mut is_behind) = (0, false, false);
    let mut step = |done| {
        is_looking |= places.is_before_atomic(done);
        let is_atomic = is_looking && child.is_atomic_next()?;
        is_looking &= !is_atomic;
        if is_atomic || is_behind || places.contains(done) {
            visit(done)?;
        }
        is_behind = is_atomic;
        let is_last = places.is_last(done) && !is_looking && !is_behind;
        Ok(!is_last && child.step()?)
    };
    while step(done).map_err(|error| (done, error))? {
        done += 1;
    }
    Ok(done)
}

impl OperationSweep<'_> {
    fn region(&self) -> PathBuf {
        self.folder.join("region")
    }

    fn start(&self) -> Result<TracedChild, SweepError> {
        self.before.write(&self.region()).map_err(SweepError::Violation)?;
        let role = ChildRole { role: "sweep", more: self.operation.name, ..ChildRole::default() };
        TracedChild::start(self.starter, self.folder, &role)
    }

    /// The number of instructions.
    fn count(&self) -> Result<u64, SweepError> {
        let child = self.start()?;
        let all = Places::Every(u64::MAX);
        let done = walk(&child, &all, &mut |_| Ok(()))
            .map_err(|(_, error)| SweepError::Violation(error))?;
        self.complete(child).map_err(SweepError::Violation)?;
        Ok(done + 1)
    }

    /// Stops a child at places and works beside it. What it has done there is verified, as if it
    /// were killed. Where the region is as at the place before, nothing is repeated.
    fn at_places(
        &self,
        places: &Places,
        instructions: u64,
        is_killed: bool,
        tick: &mut dyn FnMut(&str, u64, u64),
    ) -> Result<SweepRow, SweepError> {
        let child = self.start()?;
        let name = self.operation.name;
        let mut row = SweepRow { name, instructions, ..SweepRow::default() };
        let mut last = None;
        let mut visit = |done: u64| {
            let now = Some(RegionCopy::of(&self.region())?);
            if now == last {
                return Ok(());
            }
            tick(name, done, instructions);
            if let Some(now) = now {
                row.kills += 1;
                self.verify_copy(&now).context("killed")?;
            }
            row.stops += 1;
            let refused = beside::work_beside(self.folder, self.operation, child.id(), done);
            row.refused += refused.context("stopped")?;
            let after = RegionCopy::of(&self.region())?;
            row.kills += 1;
            self.verify_copy(&after).context("killed later")?;
            last = Some(after);
            Ok(())
        };
        let at = |(done, error)| {
            SweepError::Violation(format!("after {done} of {instructions} instructions: {error}"))
        };
        let done = walk(&child, places, &mut visit).map_err(at)?;
        if is_killed {
            row.kills += 1;
            child
                .kill()
                .and_then(|()| self.verify_killed(self.folder))
                .map_err(|error| at((done, format!("killed itself: {error}"))))?;
        } else {
            self.complete(child).map_err(|error| at((done, format!("completed: {error}"))))?;
        }
        Ok(row)
    }

    /// Stops and kills children at random times in equal parts of the operation, each some
    /// instructions later: for an operation of many millions of instructions.
    fn at_times(&self, count: u64, seed: u64) -> Result<SweepRow, SweepError> {
        let mut row = SweepRow { name: self.operation.name, ..SweepRow::default() };
        let mut rng = seeded(&[seed]);
        let child = self.start()?;
        let begun = Instant::now();
        child.finish().map_err(SweepError::Violation)?;
        let whole = begun.elapsed();
        let part_nanos = u64::try_from(whole.as_nanos()).unwrap_or(u64::MAX) / count;
        for part in 0..count {
            let child = self.start()?;
            let after = Duration::from_nanos(part_nanos * part + rng.u64(..=part_nanos));
            let mut kill = || {
                child.run_for(after)?;
                for _ in 0..rng.u32(..STEPS_AFTER_TIME) {
                    child.step()?;
                }
                beside::work_beside(self.folder, self.operation, child.id(), part)
            };
            let done = kill().and_then(|refused| {
                row.refused += refused;
                child.kill()?;
                self.verify_killed(self.folder)
            });
            done.map_err(|e| SweepError::Violation(format!("after {after:?} of {whole:?}: {e}")))?;
            (row.kills, row.stops) = (row.kills + 1, row.stops + 1);
        }
        Ok(row)
    }

    fn verify_copy(&self, copy: &RegionCopy) -> Result<(), String> {
        let folder = self.folder.join("copy");
        crate::region_access::create_folder(&folder)?;
        copy.write(&folder.join("region"))?;
        self.verify_killed(&folder)
    }

    /// A process was killed: the region is sound, its memory adds up, and the operation can be
    /// repeated.
    fn verify_killed(&self, folder: &Path) -> Result<(), String> {
        let path = folder.join("region");
        if self.operation.region != SweptRegion::Damaged {
            check_clean(&path).context("after recovery")?;
            self.operation.verify(folder, false).context("after recovery")?;
        }
        self.operation.play(folder, &mut || {}).context("repeated")?;
        self.operation.verify(folder, true).context("repeated")?;
        check_clean(&path).map(drop).context("repeated")
    }

    /// Lets the child end, and verifies what it has done.
    fn complete(&self, child: TracedChild) -> Result<(), String> {
        child.finish()?;
        self.operation.verify(self.folder, true)?;
        check_clean(&self.region()).map(drop)
    }
}
