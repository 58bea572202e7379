//! The whole run for a terminal.

use super::{tables, words};
use crate::figures::{self, Figures};
use crate::result::Run;
use nearstate_bench::table::{Table, printable};
use std::fmt::Write as _;

/// The whole run for a terminal.
pub fn text(run: &Run) -> String {
    let all = figures::of(run);
    let mut out = format!("\n{}\n{}\n", words::heading(run), words::drive(run));
    out.push_str(&alarm(run, &all));
    let rates_title =
        format!("Operations per second, all clients together: {}", tables::rates_note(&all));
    for (title, table) in [
        (rates_title.as_str(), tables::rates(&all)),
        ("Latency of one operation, all rounds", tables::latencies(&all)),
        ("What one operation costs", tables::costs(&all)),
        ("Whether the figures count", tables::trust(&all)),
        ("The generator, beside what it must draw", tables::checks(&all)),
        ("Rate against latency (open loop, from the intended start)", tables::ramp(&all)),
        (tables::FOREIGN_TITLE, tables::foreign(run)),
    ] {
        section(&mut out, title, &table);
    }
    out.push_str(&notes(run, &all));
    // Who only sees the end must see it as well.
    out.push_str(&alarm(run, &all));
    printable(&out)
}

/// The latencies of each class of operations, for a terminal.
pub fn classes(run: &Run) -> String {
    let mut out = String::new();
    for figures in figures::of(run).iter().filter(|figures| figures.ops > 0) {
        let title = format!("{} by class of operations", figures.target.name);
        section(&mut out, &title, &tables::classes_of(figures));
    }
    printable(&out)
}

fn section(out: &mut String, title: &str, table: &Table) {
    if !table.rows.is_empty() {
        // Writing to a string cannot fail.
        let _ = write!(out, "\n{title}\n{}", table.text());
    }
}

fn alarm(run: &Run, all: &[Figures<'_>]) -> String {
    let mut out = String::new();
    let alarms = words::alarms(run, all);
    if !alarms.is_empty() {
        let invalid = words::INVALID;
        let bar = "!".repeat(invalid.len() + 8);
        let _ = write!(out, "\n{bar}\n!!! {invalid} !!!\n{bar}\n");
        for line in alarms {
            let _ = writeln!(out, "!!! {line}");
        }
    }
    if run.is_partial {
        let _ = writeln!(out, "\n*** {}", words::PARTIAL);
    }
    out
}

fn notes(run: &Run, all: &[Figures<'_>]) -> String {
    let versions = all.iter().map(|f| format!("{}: {}", f.target.name, words::about(f.target)));
    let mut machine: Vec<String> = run.machine.iter().map(|(n, v)| format!("{n}: {v}")).collect();
    machine.push(format!("noise: {}", words::noise(&run.noise)));
    let mut out = String::new();
    for (title, lines) in [
        ("What stands in for what a target lacks", words::emulations(all)),
        ("Targets", versions.collect()),
        ("Machine", machine),
        ("Keep in mind", words::caveats(run, all)),
        ("Source of the workload", vec![run.workload.source.clone()]),
        ("Command", vec![run.command.clone()]),
    ] {
        if !lines.is_empty() {
            let _ = writeln!(out, "\n{title}\n  {}", lines.join("\n  "));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::words::{INVALID, PARTIAL};
    use super::*;
    use crate::result::{CUT, Check, ClassResult};
    use crate::sample::run;

    fn row<'t>(text: &'t str, title: &str, target: &str) -> &'t str {
        let section = text.split_once(title).expect(title).1;
        let is_it = |line: &&str| line.starts_with(target);
        section.lines().find(is_it).expect("the target stands below the title")
    }

    #[test]
    fn every_target_has_its_rate_spread_interval_and_ratio() {
        let text = text(&run());
        // 20,000 operations in 10.0, 10.1, .. 10.4 ms.
        let region = row(&text, "Operations per second", "region");
        for cell in ["1.96 M", "1.92 M", "2.00 M", "1.92 M .. 2.00 M", "1.00 x"] {
            assert!(region.contains(cell), "{cell} is not in {region}");
        }
        let redis = row(&text, "Operations per second", "redis");
        assert!(redis.contains("16.3 k") && redis.contains("1/120 x"), "{redis}");
    }

    #[test]
    fn latencies_and_costs_are_told_with_their_units() {
        let text = text(&run());
        let region = row(&text, "Latency of one", "region");
        assert!(region.contains("100000") && region.contains("us"), "{region}");
        for name in ["p50", "p90", "p99", "p99.9", "p99.99", "max"] {
            assert!(row(&text, "Latency of one", "target").contains(name));
        }
        let redis = row(&text, "What one operation costs", "redis");
        for cell in ["480 ns", "200 B", "900 B", "9.8 MiB", "1024 B"] {
            assert!(redis.contains(cell), "{cell} is not in {redis}");
        }
    }

    #[test]
    fn an_invalid_run_is_shouted_first_and_last() {
        let text = text(&run());
        assert_eq!(text.matches(INVALID).count(), 2);
        assert_eq!(text.matches("!!! geode: its process ended in round 3").count(), 2);
        assert!(text.contains("geode (INVALID)"));
        assert!(text.trim_end().ends_with("!!! geode: its process ended in round 3"));
        let mut fine = run();
        fine.targets.retain(|target| target.name != "geode");
        fine.invalid.clear();
        let text = super::text(&fine);
        assert!(!text.contains("INVALID") && !text.contains("!!!"));
    }

    #[test]
    fn wrong_records_are_shouted_even_if_the_run_says_nothing() {
        let mut run = run();
        run.invalid.clear();
        run.targets[2].invalid.clear();
        let text = text(&run);
        assert!(text.contains("!!! geode: 3 of 10000 records are not what they must be"), "{text}");
        assert!(text.contains("geode (INVALID)"));
    }

    #[test]
    fn who_declined_says_why_and_has_no_figures() {
        let text = text(&run());
        let trust = row(&text, "Whether the figures", "memcached");
        assert!(trust.contains("declined: it has no unique tag"), "{trust}");
        let rates = row(&text, "Operations per second", "memcached");
        assert!(rates.contains("(declined)") && !rates.contains("NaN"), "{rates}");
    }

    #[test]
    fn a_generator_that_is_off_is_told() {
        let mut run = run();
        let off = Check {
            name: "share of attaches".to_owned(),
            expected: 0.1,
            found: 0.3,
            tolerance: 0.01,
            weight: 1e5,
        };
        run.targets[1].checks.push(off);
        let text = text(&run);
        let redis = row(&text, "The generator, beside", "redis");
        assert!(redis.contains("share of attaches") && redis.contains("OFF"), "{redis}");
        assert!(row(&text, "The generator, beside", "null").contains("all 1 like these"));
        assert!(text.contains("redis (INVALID)"));
        assert!(text.contains("!!! redis: the generator was off: share of attaches"));
    }

    #[test]
    fn the_ramp_names_the_highest_rate_that_held() {
        let text = text(&run());
        let ramp = text.split_once("Rate against latency").unwrap().1;
        // 0.2 + 3 x 0.2 of two million.
        let best = ramp.lines().find(|line| line.contains("the highest")).unwrap();
        assert!(best.contains("1.60 M"), "{best}");
    }

    #[test]
    fn papers_emulations_machine_noise_and_caveats_are_there() {
        let text = text(&run());
        for line in [
            "The papers' own figures: from their machines, not measured here",
            "1.4 ms",
            "redis, unique tag: emulated: as redis has it",
            "processor: Example 3000",
            "fixed work done 25000 times took 18.0 us (median), 19.5 us (p99), 210 us (longest)",
            "clients and servers share two processors",
            "take 10.0 % of the time of an operation on the fastest target (region)",
            "p99.99 rests on 4 of 40000 operations",
            "nearstate bench run ue-signalling --targets",
        ] {
            assert!(text.contains(line), "{line:?} is not in {text}");
        }
    }

    #[test]
    fn how_a_run_was_driven_is_said_in_its_second_line() {
        let mut run = run();
        run.drive.layout = Some("zones".to_owned());
        run.drive.kill = Some("node".to_owned());
        run.drive.round_time_s = Some(2.5);
        let text = text(&run);
        let line = text.lines().nth(2).unwrap();
        for words in [
            "; rounds of 2.5 s at the most",
            "; then a ramp at equal distances, for a p99 below 1.00 ms",
            "; layout zones",
            "; node killed in the middle round",
        ] {
            assert!(line.contains(words), "{words:?} is not in {line}");
        }
    }

    #[test]
    fn what_was_done_after_loading_is_told_beside_the_version_and_to_be_kept_in_mind() {
        let mut run = run();
        let (targets, settled) = (&mut run.targets, Some("2 MiB pages after collapse()"));
        targets[1].settled = settled.map(str::to_owned);
        let told = text(&run);
        assert!(told.contains("region: region 1.2; after loading: 2 MiB pages"), "{told}");
        let mind = told.split_once("Keep in mind").unwrap().1;
        assert!(mind.contains("done after loading to region, redis, as makers advise: 2 MiB"));
        run.drive.is_unsettled = true;
        run.targets.iter_mut().for_each(|target| target.settled = None);
        let told = text(&run);
        assert!(!told.contains("after loading: ") && told.contains("; targets left as they were"));
        let mind = told.split_once("Keep in mind").unwrap().1;
        assert!(mind.contains("targets were left as they were loaded (--no-settle)"), "{mind}");
    }

    #[test]
    fn what_a_reconnect_cut_is_said() {
        let mut run = run();
        let latencies = vec![(2_000_000_000, 3)];
        run.targets[1].rounds[2].classes.push(ClassResult { name: CUT.to_owned(), latencies });
        let line = "redis: 3 operations were on their way when a connection was lost";
        let told = text(&run);
        assert!(told.contains(line) && told.contains("none of them is in a rate"), "{told}");
        let trust = row(&told, "Whether the figures", "redis");
        assert!(trust.split('│').any(|cell| cell.trim() == "3"), "{trust}");
        assert!(row(&classes(&run), "redis by class", CUT).contains('3'));
    }

    #[test]
    fn classes_are_shown_on_demand_with_their_shares() {
        let run = run();
        let classes = classes(&run);
        assert!(row(&classes, "region by class", "attach").contains("10.00 %"));
        assert!(!text(&run).contains("by class of operations"));
    }

    #[test]
    fn a_run_without_targets_and_a_partial_one_are_no_panic() {
        let mut run = run();
        run.targets.clear();
        run.is_partial = true;
        assert!(text(&run).contains(PARTIAL));
    }
}
