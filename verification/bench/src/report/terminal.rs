//! The report of a run for a terminal.

use super::{notes, tables};
use crate::figures::{self, Figures};
use crate::result::Run;
use crate::table::{ReportTable, printable, wrapped};
use std::fmt::Write as _;

/// The report of a run for a terminal.
pub fn text(run: &Run) -> String {
    let all = figures::of(run);
    let mut out = String::from("\n");
    out.push_str(&wrapped(&notes::heading(run), "", "  "));
    out.push_str(&wrapped(&notes::load_line(run), "", "  "));
    out.push_str(&alarm(run, &all));
    let rates_title =
        format!("Operations per second, all clients together: {}", tables::rates_note(&all));
    for (title, table) in [
        (rates_title.as_str(), tables::rates(run, &all)),
        (tables::LIMITS_TITLE, tables::limits(run, &all)),
        ("Latency of an operation, all rounds", tables::latencies(&all)),
        (tables::COSTS_TITLE, tables::costs(&all)),
        ("Whether the figures count", tables::trust(&all)),
        (tables::CHECKS_TITLE, tables::checks(&all)),
        ("Rate against latency (open loop, from the intended start)", tables::ramp(&all)),
    ] {
        section(&mut out, title, &table);
    }
    out.push_str(&paper_figures(run));
    out.push_str(&notes(run, &all));
    // Repeated at the end, which is what stays visible.
    out.push_str(&alarm(run, &all));
    printable(&out)
}

/// The latencies of each class of operations, for a terminal; the page has more columns.
pub fn classes(run: &Run) -> String {
    let mut out = String::new();
    for figures in figures::of(run).iter().filter(|figures| figures.ops > 0) {
        let title = format!("{} by class of operations", figures.target.name);
        let table = tables::classes_of(figures).without(&["op/s", "p99.99"]);
        section(&mut out, &title, &table);
    }
    printable(&out)
}

fn section(out: &mut String, title: &str, table: &ReportTable) {
    if !table.rows.is_empty() {
        let title = wrapped(title, "", "  ");
        // Writing to a string cannot fail.
        let _ = write!(out, "\n{title}{}", table.text());
    }
}

fn alarm(run: &Run, all: &[Figures<'_>]) -> String {
    let mut out = String::new();
    let alarms = notes::alarms(run, all);
    if !alarms.is_empty() {
        let invalid = notes::INVALID;
        let bar = "!".repeat(invalid.len() + 8);
        let _ = write!(out, "\n{bar}\n!!! {invalid} !!!\n{bar}\n");
        for line in alarms {
            out.push_str(&wrapped(&line, "!!! ", "!!!   "));
        }
    }
    if run.is_partial {
        let _ = writeln!(out, "\n*** {}", notes::PARTIAL);
    }
    out
}

/// Figures that papers measured, by source. Their texts are too long for a table.
fn paper_figures(run: &Run) -> String {
    let mut out = String::new();
    let mut before = "";
    for figure in &run.workload.paper_figures {
        if out.is_empty() {
            let _ = writeln!(out, "\n{}", tables::FOREIGN_TITLE);
        }
        if figure.source != before {
            out.push_str(&wrapped(&figure.source, "  ", "    "));
        }
        before = &figure.source;
        let line = format!("{}: {}", figure.what, figure.figure);
        out.push_str(&wrapped(&line, "    ", "      "));
    }
    out
}

fn notes(run: &Run, all: &[Figures<'_>]) -> String {
    let versions = all.iter().map(|f| format!("{}: {}", f.target.name, notes::about(f.target)));
    let mut out = String::new();
    for (title, lines) in [
        ("Declined", tables::declined(all)),
        ("How missing features are emulated", notes::emulations(all)),
        ("Targets", versions.collect()),
        ("Machine", machine(run)),
        ("Keep in mind", notes::caveats(run, all)),
        ("Source of the workload", vec![run.workload.source.clone()]),
    ] {
        if !lines.is_empty() {
            let _ = writeln!(out, "\n{title}");
            for line in lines {
                out.push_str(&wrapped(&line, "  ", "    "));
            }
        }
    }
    // On one line, so that it can be copied.
    let _ = writeln!(out, "\nCommand\n  {}", run.command);
    out
}

fn machine(run: &Run) -> Vec<String> {
    let known = run.machine.iter().map(|(name, value)| format!("{name}: {value}"));
    let noise = format!("noise before the run: {}", notes::noise(&run.noise));
    known.chain([noise, format!("start: {}", notes::date_text(run.began_s))]).collect()
}

#[cfg(test)]
mod tests {
    use super::notes::{INVALID, PARTIAL};
    use super::*;
    use crate::result::{CUT, Check, ClassResult};
    use crate::sample::run;
    use crate::table::WIDTH;
    use crate::workloads;

    fn row<'t>(text: &'t str, title: &str, target: &str) -> &'t str {
        let section = text.split_once(title).expect(title).1;
        let is_it = |line: &&str| line.starts_with(target);
        section.lines().find(is_it).expect("the target has a row below the title")
    }

    /// The text without line breaks.
    fn flat(text: &str) -> String {
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Any workload, with the longest names of targets that did not count.
    #[test]
    fn only_the_command_may_be_wider_than_a_terminal() {
        for kind in workloads::all() {
            let mut run = run();
            (run.workload.name, run.workload.title) =
                (kind.name().to_owned(), kind.spec().title.to_owned());
            run.workload.source = kind.spec().source.to_owned();
            run.workload.paper_figures = kind.paper_figures();
            run.caveats = kind.caveats(&run.workload.parameters);
            let name = kind.spec().classes.iter().max_by_key(|c| c.len());
            for (target, name_of) in run.targets.iter_mut().zip(["valkey-unix", "redis-unix"]) {
                name_of.clone_into(&mut target.name);
                target.settled = Some("2 MiB pages after collapse()".to_owned());
                target.invalid = vec!["a reason with many words ".repeat(20)];
                (target.reconnects, target.memory_bytes) = (12_345, Some(1000 << 20));
                for round in &mut target.rounds {
                    (*name.unwrap()).clone_into(&mut round.classes[0].name);
                    round.unsuccessful = round.ops / 3;
                    let latencies = vec![(2_000_000_000, 3)];
                    round.classes.push(ClassResult { name: CUT.to_owned(), latencies });
                }
            }
            let all = text(&run) + &classes(&run);
            let wide = all.lines().find(|line| line.chars().count() > WIDTH);
            assert_eq!(wide, None, "{}: {all}", kind.name());
        }
    }

    #[test]
    fn empty_columns_are_omitted() {
        let mut run = run();
        let trust = |run: &Run| row(&text(run), "Whether the figures", "target").to_owned();
        assert!(trust(&run).contains("reconnects") && !trust(&run).contains("without effect"));
        run.targets[1].reconnects = 0;
        run.targets[0].rounds[0].unsuccessful = 7;
        assert!(!trust(&run).contains("reconnects") && trust(&run).contains("without effect"));
        assert!(flat(&text(&run)).contains("operations without effect are not errors"));
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
    fn the_distance_from_the_prototype_has_a_spread() {
        let mut run = run();
        assert!(!text(&run).contains(tables::LIMITS_TITLE));
        // Twice as fast as the region, and four times in the last round.
        let mut prototype = run.targets[0].clone();
        prototype.name = figures::PROTOTYPE.to_owned();
        prototype.rounds.iter_mut().for_each(|round| round.wall_ns /= 2);
        prototype.rounds[4].wall_ns /= 2;
        run.targets.push(prototype);
        let shown = text(&run);
        let region = row(&shown, tables::LIMITS_TITLE, "region");
        for cell in ["2.00 x", "4.00 x", " 5"] {
            assert!(region.contains(cell), "{cell} is not in {region}");
        }
        let rows = shown.split_once(tables::LIMITS_TITLE).unwrap().1;
        let rows = rows.split("\n\n").next().unwrap();
        assert!(!rows.contains("\nprototype") && !rows.contains("\nnull"), "{rows}");
    }

    #[test]
    fn latencies_and_costs_have_units() {
        let text = text(&run());
        let region = row(&text, "Latency of an", "region");
        assert!(region.contains("100,000") && region.contains("us"), "{region}");
        for name in ["p50", "p90", "p99", "p99.9", "p99.99", "max"] {
            assert!(row(&text, "Latency of an", "target").contains(name));
        }
        let redis = row(&text, "What it costs", "redis");
        for cell in ["480 ns", "200 B", "900 B", "9.8 MiB", "1024 B"] {
            assert!(redis.contains(cell), "{cell} is not in {redis}");
        }
    }

    #[test]
    fn an_invalid_run_has_an_alarm_first_and_last() {
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
    fn wrong_records_raise_an_alarm_even_if_the_run_is_not_marked_invalid() {
        let mut run = run();
        run.invalid.clear();
        run.targets[2].invalid.clear();
        let text = text(&run);
        assert!(text.contains("!!! geode: 3 of 10,000 records are wrong"), "{text}");
        assert!(text.contains("geode (INVALID)"));
    }

    #[test]
    fn a_target_that_declined_has_a_reason_and_no_figures() {
        let text = text(&run());
        assert!(row(&text, "Whether the figures", "memcached").contains("declined"));
        assert!(text.contains("\n  memcached declined: it has no unique tag\n"), "{text}");
        assert!(
            text.contains("as redis has it") && !text.contains("as memcached has it"),
            "{text}"
        );
        let figures = text.split_once("Whether the figures").unwrap().0;
        assert!(!figures.contains("memcached"), "{figures}");
    }

    #[test]
    fn a_generator_that_is_off_is_reported() {
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
        let redis = row(&text, "What the generator drew", "redis");
        assert!(redis.contains("share of attaches") && redis.contains("OFF"), "{redis}");
        assert!(row(&text, "What the generator drew", "null").contains("like this one"));
        assert!(text.contains("redis (INVALID)"));
        assert!(text.contains("!!! redis: the generator was off: share of attaches"));
    }

    #[test]
    fn the_ramp_names_the_highest_sustained_rate() {
        let text = text(&run());
        let ramp = text.split_once("Rate against latency").unwrap().1;
        // 0.2 + 3 x 0.2 of two million.
        let best = ramp.lines().find(|line| line.contains("the highest")).unwrap();
        assert!(best.contains("1.60 M"), "{best}");
    }

    #[test]
    fn papers_emulations_machine_noise_and_caveats_are_shown() {
        let text = flat(&text(&run()));
        for line in [
            "The papers' own figures: from their machines, not measured here",
            "1.4 ms",
            "redis, unique tag: emulated: as redis has it",
            "processor: Example 3000",
            "fixed work, 25,000 times: 18.0 us (median), 19.5 us (p99), 210 us (longest)",
            "clients and servers share two processors",
            "take 10.0 % of the time of an operation on the fastest target (region)",
            "p99.99 rests on 4 of 40,000 operations",
            "noise before the run: fixed work",
            "start: 2023-11-14 22:13 UTC",
            "nearstate bench run ue-signalling --targets",
        ] {
            assert!(text.contains(line), "{line:?} is not in {text}");
        }
    }

    #[test]
    fn the_second_line_says_how_a_run_was_driven() {
        let mut run = run();
        run.load.layout = Some("zones".to_owned());
        run.load.kill = Some("node".to_owned());
        run.load.round_time_s = Some(2.5);
        let text = text(&run);
        let line = flat(text.split("\n\n").next().unwrap());
        for words in [
            "; rounds of at most 2.5 s",
            "; then a ramp at equal intervals, for a p99 below 1.00 ms",
            "; layout zones",
            "; node killed in the middle round",
        ] {
            assert!(line.contains(words), "{words:?} is not in {line}");
        }
    }

    #[test]
    fn steps_after_loading_are_in_the_version_and_in_the_caveats() {
        let mut run = run();
        let (targets, settled) = (&mut run.targets, Some("2 MiB pages after collapse()"));
        targets[1].settled = settled.map(str::to_owned);
        let shown = flat(&text(&run));
        assert!(shown.contains("region: region 1.2; after loading: 2 MiB pages"), "{shown}");
        let notes = shown.split_once("Keep in mind").unwrap().1;
        assert!(notes.contains("after loading, region, redis did as their manuals advise: 2 MiB"));
        run.load.is_unsettled = true;
        run.targets.iter_mut().for_each(|target| target.settled = None);
        let shown = flat(&text(&run));
        assert!(
            !shown.contains("after loading: ") && shown.contains("; targets left as they were")
        );
        let notes = shown.split_once("Keep in mind").unwrap().1;
        assert!(notes.contains("skipped for all targets (--no-settle)"), "{notes}");
    }

    #[test]
    fn operations_that_a_reconnect_cut_are_reported() {
        let mut run = run();
        let latencies = vec![(2_000_000_000, 3)];
        run.targets[1].rounds[2].classes.push(ClassResult { name: CUT.to_owned(), latencies });
        let line = "redis: 3 operations in flight when a connection was lost count as a class";
        let shown = text(&run);
        assert!(flat(&shown).contains(line), "{shown}");
        let trust = row(&shown, "Whether the figures", "redis");
        assert!(trust.split('│').any(|cell| cell.trim() == "3"), "{trust}");
        assert!(row(&classes(&run), "redis by class", CUT).contains('3'));
    }

    /// A target below the offered rate has the latencies of a queue. Reaching the rate does not
    /// make a target faster.
    #[test]
    fn a_target_below_its_offered_rate_is_reported() {
        let mut run = run();
        run.load.rate = Some(1.9e6);
        let shown = text(&run);
        let redis = row(&shown, "Operations per second", "redis");
        assert!(redis.contains("0.9 %") && !redis.contains(" x "), "{redis}");
        let notes = flat(&shown);
        assert!(notes.contains("redis: reached 1 % of the offered rate"), "{shown}");
        assert!(!notes.contains("region: reached"), "{shown}");
        run.load.rate = None;
        assert!(!text(&run).contains("of the offered"));
    }

    #[test]
    fn classes_are_shown_on_demand_with_their_shares() {
        let run = run();
        let classes = classes(&run);
        assert!(row(&classes, "region by class", "attach").contains("10.00 %"));
        assert!(!text(&run).contains("by class of operations"));
    }

    #[test]
    fn a_partial_run_without_targets_has_a_report() {
        let mut run = run();
        run.targets.clear();
        run.is_partial = true;
        assert!(text(&run).contains(PARTIAL));
    }
}
