//! Comparisons of synthetic runs.

use super::*;
use crate::parameters::Fault;
use crate::result::{ClassResult, Round};
use crate::sample::run;

/// The sample with slower targets.
fn slower(percent: u64) -> Run {
    let mut run = run();
    for target in &mut run.targets {
        for round in &mut target.rounds {
            slow_down(round, percent);
        }
    }
    run
}

fn slow_down(round: &mut Round, percent: u64) {
    round.wall_ns = round.wall_ns * percent / 100;
    for class in &mut round.classes {
        class.latencies.iter_mut().for_each(|(ns, _)| *ns = *ns * percent / 100);
        class.latencies.dedup_by_key(|(ns, _)| *ns);
    }
}

fn of<'c>(comparison: &'c Comparison<'_>, target: &str, figure: Figure) -> &'c ComparisonVerdict {
    let is_it = |row: &&Row| {
        (row.target.as_str(), row.class.as_str(), row.figure) == (target, "all", figure)
    };
    &comparison.rows.iter().find(is_it).unwrap().verdict
}

#[test]
fn runs_with_different_settings_are_not_compared_and_the_difference_is_named() {
    let load = || run().load;
    let (layout, kill) = (Some("zones".to_owned()), Some("node".to_owned()));
    let changes = [
        (LoadSettings { layout, ..load() }, "layout: default in the first, zones in"),
        (LoadSettings { kill, ..load() }, "server killed: none in the first, node in the second"),
        (LoadSettings { fault: Some(Fault::Stall), ..load() }, "injected fault: none in the first"),
    ];
    for (load, words) in changes {
        let (a, b) = (run(), Run { load, ..run() });
        let comparison = compare(&a, &b);
        assert!(comparison.obstacles.iter().any(|o| o.contains(words)), "{words}");
        let is_refused = |row: &Row| matches!(row.verdict, ComparisonVerdict::NotComparable(_));
        assert!(comparison.rows.iter().all(is_refused), "{words}");
    }
    // The length of rounds may explain a difference, but does not prevent a comparison.
    let (a, mut b) = (run(), run());
    b.load.round_time_s = Some(2.5);
    let comparison = compare(&a, &b);
    assert!(comparison.obstacles.is_empty());
    let words = "length of a round: unlimited in the first, at most 2.5 s in the";
    assert!(comparison.notes.iter().any(|note| note.contains(words)));
}

/// The sample at a depth, with `steps` overlapping steps of its second target, redis.
fn with_steps(depth: usize, steps: Option<usize>) -> Run {
    let mut run = run();
    run.load.depth = depth;
    for round in &mut run.targets[1].rounds {
        round.steps = steps;
    }
    run
}

#[test]
fn a_target_whose_steps_overlapped_in_only_one_run_is_not_compared() {
    let has_note = |comparison: &Comparison<'_>, words: &str| {
        comparison.notes.iter().any(|note| note.starts_with(words))
    };
    for (steps, text) in [
        (Some(4), "4 at once"),
        (Some(8), "8 at once"),
        (None, "not the same for all clients or rounds"),
    ] {
        let (a, b) = (with_steps(16, Some(1)), with_steps(16, steps));
        let comparison = compare(&a, &b);
        let words = "redis is not compared: its steps were sequential in the first run,";
        let words = format!("{words} {text} in the second");
        assert!(has_note(&comparison, &words), "{:?}", comparison.notes);
        let redis = of(&comparison, "redis", Figure::Rate);
        assert!(matches!(redis, ComparisonVerdict::NotComparable(_)), "{redis:?}");
        // The region's steps never overlap.
        assert!(matches!(of(&comparison, "region", Figure::Rate), ComparisonVerdict::Same(_)));
        assert!(matches!(of(&compare(&b, &b), "redis", Figure::Rate), ComparisonVerdict::Same(_)));
    }
}

/// Runs that differ in large pages are compared, and the difference is reported.
#[test]
fn a_difference_in_the_work_after_loading_is_named() {
    let (a, mut b) = (run(), run());
    b.targets[0].settled = None;
    b.load.is_unsettled = true;
    let comparison = compare(&a, &b);
    assert!(comparison.obstacles.is_empty(), "{:?}", comparison.obstacles);
    for note in [
        "after loading: what manuals advise in the first, nothing (--no-settle) in the second",
        "region after loading: 2 MiB pages after collapse() in the first, unknown in the second",
    ] {
        assert!(comparison.notes.iter().any(|other| other == note), "{note}");
    }
    assert!(!comparison.notes.iter().any(|note| note.contains("version of")));
}

#[test]
fn operations_interrupted_by_a_reconnection_are_not_compared() {
    let mut run = run();
    let cut = ClassResult { name: CUT.to_owned(), latencies: vec![(2_000_000_000, 3)] };
    for round in &mut run.targets[0].rounds {
        round.classes.push(cut.clone());
    }
    let comparison = compare(&run, &run);
    assert!(comparison.rows.iter().all(|row| row.class != CUT));
}

#[test]
fn a_run_compared_with_itself_is_the_same() {
    let run = run();
    let comparison = compare(&run, &run);
    assert!(comparison.obstacles.is_empty());
    let is_same = |row: &Row| matches!(row.verdict, ComparisonVerdict::Same(_));
    let counting = |row: &&Row| !["geode", "memcached"].contains(&row.target.as_str());
    assert_eq!(comparison.rows.iter().filter(counting).filter(|r| is_same(r)).count(), 27);
}

#[test]
fn ten_per_cent_beyond_the_spread_are_slower_one_way_and_faster_the_other() {
    let (fast, slow) = (run(), slower(110));
    let forth = compare(&fast, &slow);
    let back = compare(&slow, &fast);
    for figure in [Figure::Rate, Figure::P50, Figure::P99] {
        let ComparisonVerdict::Slower(VerdictReason::Ranks(p)) = of(&forth, "region", figure)
        else {
            panic!("{:?}", of(&forth, "region", figure))
        };
        assert!((p - 2.0 / 252.0).abs() < 1e-9, "five rounds against five, in perfect order");
        assert!(matches!(
            of(&back, "region", figure),
            ComparisonVerdict::Faster(VerdictReason::Ranks(_))
        ));
    }
}

#[test]
fn a_difference_within_the_spread_is_none() {
    // Rounds lie 4 % apart; 1 % more is still within 5 %.
    for (percent, is_same) in [(100, true), (101, false)] {
        let (a, b) = (run(), slower(percent));
        let comparison = compare(&a, &b);
        let verdict = of(&comparison, "redis", Figure::Rate);
        assert_eq!(
            matches!(verdict, ComparisonVerdict::Same(VerdictReason::Close)),
            is_same,
            "{verdict:?}"
        );
        assert_eq!(matches!(verdict, ComparisonVerdict::Inconclusive(_)), !is_same, "{verdict:?}");
    }
}

/// A difference of two thirds may be by chance, but the runs are not called the same.
#[test]
fn an_inconclusive_difference_is_not_called_the_same() {
    let of = |values: &[f64]| RoundMeasurements::new(values.iter().copied());
    let (one, other) = (of(&[5.0, 6.0, 6.0, 9.0]), of(&[5.5, 9.9, 10.0, 12.0]));
    let ComparisonVerdict::Inconclusive(VerdictReason::Ranks(p)) =
        verdict(Figure::P99, &one, &other)
    else {
        panic!("{:?}", verdict(Figure::P99, &one, &other))
    };
    assert!(p > SIGNIFICANCE, "{p}");
}

#[test]
fn a_certain_but_tiny_difference_is_none() {
    let steady = |from: f64| RoundMeasurements::new((0..6).map(|i| from + f64::from(i) * 1e-3));
    let verdict = verdict(Figure::Rate, &steady(1000.0), &steady(1010.0));
    assert_eq!(verdict, ComparisonVerdict::Same(VerdictReason::TooSmall));
}

#[test]
fn few_rounds_need_disjoint_intervals_and_one_round_is_never_enough() {
    let of = |values: &[f64]| RoundMeasurements::new(values.iter().copied());
    let near = verdict(Figure::P99, &of(&[100.0, 103.0, 101.0]), &of(&[106.0, 104.0, 109.0]));
    assert_eq!(near, ComparisonVerdict::Inconclusive(VerdictReason::Intervals));
    let close = verdict(Figure::P99, &of(&[100.0, 103.0, 101.0]), &of(&[102.0, 101.0, 104.9]));
    assert_eq!(close, ComparisonVerdict::Same(VerdictReason::Close));
    let far = verdict(Figure::P99, &of(&[100.0, 103.0, 101.0]), &of(&[206.0, 204.0, 209.0]));
    assert_eq!(far, ComparisonVerdict::Slower(VerdictReason::Intervals));
    let one = verdict(Figure::P99, &of(&[100.0]), &of(&[900.0, 901.0, 902.0, 903.0]));
    assert_eq!(one, ComparisonVerdict::Undecided);
}

#[test]
fn runs_with_other_parameters_machines_or_formats_are_not_compared() {
    type RunChange = fn(&mut Run);
    let a = run();
    let changes: [(&str, RunChange); 6] = [
        ("records", |run| run.workload.parameters.records += 1),
        ("variant", |run| run.workload.parameters.variant = "full".to_owned()),
        ("client processes", |run| run.load.clients = 4),
        ("offered rate", |run| run.load.rate = Some(1e3)),
        ("machine, processor", |run| run.machine[0].1 = "Other 1".to_owned()),
        ("file format", |run| run.format += 1),
    ];
    for (what, change) in changes {
        let mut b = run();
        change(&mut b);
        let comparison = compare(&a, &b);
        assert!(comparison.obstacles[0].starts_with(what), "{:?}", comparison.obstacles);
        let is_not = |row: &Row| matches!(row.verdict, ComparisonVerdict::NotComparable(_));
        assert!(comparison.rows.iter().all(is_not), "{what}");
    }
}

#[test]
fn invalid_and_declined_targets_are_not_compared() {
    let run = run();
    let comparison = compare(&run, &run);
    let geode = of(&comparison, "geode", Figure::Rate);
    let ComparisonVerdict::NotComparable(why) = geode else { panic!("{geode:?}") };
    assert!(why.contains("invalid in the first run"), "{why}");
    let why = "geode is invalid in the first run: its process ended in round 3";
    assert!(comparison.notes.iter().any(|note| note == why), "{:?}", comparison.notes);
    let memcached = of(&comparison, "memcached", Figure::Rate);
    let ComparisonVerdict::NotComparable(why) = memcached else { panic!("{memcached:?}") };
    assert!(why.contains("declined"), "{why}");
}

#[test]
fn possible_explanations_of_a_difference_are_noted() {
    let (a, mut b) = (run(), run());
    b.workload.parameters.seed = 8;
    b.targets[1].version = "redis 2".to_owned();
    b.targets.pop();
    b.noise.p50_ns = 20_000;
    let notes = compare(&a, &b).notes.join("\n");
    for note in [
        "seed: 7 in the first, 8 in the second",
        "version of redis: redis 1.2 in the first, redis 2 in the second",
        "null is not in the second run",
        "the machine itself was slower in the second run: fixed work took 1.11 times as long",
    ] {
        assert!(notes.contains(note), "{note:?} is not in {notes}");
    }
    let expected = "27 figures were tested at 5 %: about one of them differs by chance alone";
    assert!(compare(&a, &a).notes.iter().any(|note| note.contains(expected)));
}
