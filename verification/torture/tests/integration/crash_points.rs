//! Every named crash point: a process kills itself there, another verifies the region.

use std::path::{Path, PathBuf};

use nearstate_torture::points::{
    CrashTest, ReachedPoints, adoptions, drops, limit_recoveries, limits, recoveries, removals,
    repairs, takes, writes,
};
use nearstate_torture::spawn::ChildCommand;
use nearstate_torture::tags;

use crate::fixture::{folder, starter};

/// Of the pairs of a crash point and a point of its recovery, one in this many is tested.
/// `NEARSTATE_CRASH_PAIRS=18` tests all of them, as `cargo xtask soak` does.
const STRIDE: usize = 18;

fn crash_test<'t>(folder: &'t Path, starter: &'t ChildCommand) -> CrashTest<'t> {
    let times = std::env::var("NEARSTATE_CRASH_PAIRS").ok();
    let times: usize = times.and_then(|times| times.parse().ok()).unwrap_or(1);
    let stride = (STRIDE / times.max(1)).max(1);
    CrashTest { folder, starter, occurrences: 3, stride }
}

/// Runs a test in a folder of its own.
fn in_folder<T>(name: &str, test: impl FnOnce(&CrashTest<'_>) -> Result<T, String>) -> T {
    let (folder, starter) = (folder(name), starter());
    let done = test(&crash_test(&folder, &starter)).unwrap_or_else(|e| panic!("{e}"));
    std::fs::remove_dir_all(folder).unwrap_or_else(|e| panic!("{e}"));
    done
}

/// Fails unless these points were reached.
fn with(reached: Result<ReachedPoints, String>, points: &[&str]) -> ReachedPoints {
    let reached = reached.unwrap_or_else(|e| panic!("{e}"));
    assert!(points.iter().all(|point| reached.kills.contains_key(point)), "{reached:?}");
    reached
}

/// Also covers tags, expiry, watchers, the commit stream, counters, objects and the removal of
/// namespaces: only all scenarios and scripts together reach every point.
#[test]
fn a_kill_at_any_named_point_loses_tears_and_leaks_nothing() {
    let folders = ["points", "point-recoveries", "tagged-points", "adoptions"].map(folder);
    let [first, second, third, fourth] = folders.each_ref().map(PathBuf::as_path);
    let starter = starter();
    let test = |folder| crash_test(folder, &starter);
    let (plain, recovered, tagged, adopted) = std::thread::scope(|scope| {
        let plain = scope.spawn(|| writes(&test(first)));
        let recovered = scope.spawn(|| recoveries(&test(second)));
        let tagged = tags::points::writes(&CrashTest { occurrences: 4, ..test(third) });
        let adopted = adoptions(&test(fourth));
        (plain.join().unwrap(), recovered.join().unwrap(), tagged, adopted)
    });
    let mut reached = with(plain, &[]);
    let of_events = ["txn.prepared", "txn.appended", "entry.numbered", "ring.published"];
    let of_adoption = ["attach.adopted", "attach.recovered", "attach.released", "recover.record"];
    let of_removal = ["removal.begun", "removal.committed", "removal.finished", "namespace.reused"];
    let of_takes = ["take.locked", "take.moved", "take.recorded", "take.cut", "take.done"];
    let of_limits = ["usage.locking", "usage.measured", "usage.reserved", "usage.settled"];
    let of_losses = ["log.raised", "log.gap_stored", "log.given_back", "hold.released"];
    let test = test(fourth);
    let more = [
        with(recovered, &[]),
        with(tagged, &of_events),
        with(adopted, &of_adoption),
        with(drops(&test), &[]),
        with(removals(&test), &of_removal),
        with(takes(&test), &of_takes),
        with(limits(&test), &of_limits),
        with(tags::log_kills::losses(&test), &of_losses),
    ];
    let more = more.into_iter().flat_map(|part| part.kills);
    for (point, kills) in more {
        *reached.kills.entry(point).or_default() += kills;
    }
    println!("{:#?}", reached.kills);
    // Whether a bucket gets overflow lines depends on the random seed of the region. The unit
    // test of violated invariants reaches these points with every seed.
    let by_chance = [
        "compact.recorded",
        "compact.done",
        "recover.compacted",
        "lines.recorded",
        "lines.replaced",
        "lines.retired",
    ];
    let mut missing = reached.missing();
    // Repairs have a test of their own.
    missing.retain(|point| !by_chance.contains(point) && !point.starts_with("repair."));
    assert_eq!(missing, Vec::<&str>::new(), "points that no scenario reaches");
    for folder in folders {
        std::fs::remove_dir_all(folder).unwrap_or_else(|e| panic!("{e}"));
    }
}

#[test]
fn a_repair_that_is_killed_at_any_store_is_completed_by_the_next() {
    let reached = in_folder("repairs", repairs);
    println!("{:#?}", reached.kills);
    assert!(reached.kills["repair.stored"] > 50, "{reached:?}");
}

#[test]
fn a_kill_at_any_point_of_a_recovery_leaves_each_record_counted_once() {
    let reached = in_folder("limit-recoveries", limit_recoveries);
    println!("{:#?}", reached.kills);
    assert!(reached.kills["usage.settled"] > 5 && reached.kills["count.added"] > 2, "{reached:?}");
}

#[test]
fn a_kill_during_recovery_of_a_commit_delivers_each_event_once() {
    let reached = in_folder("tagged-recoveries", |test| {
        tags::points::recoveries(&CrashTest { occurrences: 4, ..*test })
    });
    println!("{:#?}", reached.kills);
    assert!(reached.kills.contains_key("entry.numbered"));
}

#[test]
fn a_stream_that_refuses_when_full_loses_nothing_after_any_kill() {
    let kills = in_folder("tagged-kept", tags::points::kept);
    assert!(kills > 10, "{kills} kills");
}

/// `nearstate torture --repair-kills 10000` kills more.
#[test]
fn repairs_that_are_killed_at_random_stores_are_completed_by_the_next() {
    let kills = std::env::var("NEARSTATE_REPAIR_KILLS").ok().and_then(|kills| kills.parse().ok());
    let options = nearstate_torture::repairs::RepairKillOptions {
        kills: kills.unwrap_or(40),
        folder: folder("repair-kills"),
        seed: 1,
    };
    let totals = nearstate_torture::repairs::kills(&options, &starter(), &mut |_| {})
        .unwrap_or_else(|error| panic!("{error}"));
    println!("{}", totals.table());
    assert!(totals.kills >= options.kills && totals.stores > 20, "{totals:?}");
}
