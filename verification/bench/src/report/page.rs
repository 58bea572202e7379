//! The report of a run as one self-contained HTML page.

use super::{notes, tables};
use crate::figures::{self, Figures, NULL, as_f64, quantiles, tail, timeline};
use crate::html::chart::lines::{Axis, ChartLine, Lines, Stroke, Unit, lines, marker_text};
use crate::html::chart::{self, Colour, colour, ecdf, histogram};
use crate::html::{Chart, HtmlBlock, Page};
use crate::result::Run;

/// Points in the chart of a distribution.
const QUANTILES: u32 = 400;

/// Samples of a histogram: some hundred for each of its columns.
const HISTOGRAM_SAMPLES: u32 = 2000;

/// The samples that the histogram shows. On a linear axis a long tail would squeeze all others
/// into one column; the other charts show the tail.
const HISTOGRAM_SHOWN: usize = 1900;

/// The page of a run.
pub fn page(run: &Run) -> Page {
    let all = figures::of(run);
    let mut blocks = alarm(run, &all);
    blocks.extend(glance(run, &all));
    if drawn(&all).next().is_some() {
        blocks.extend(latency(&all));
        blocks.extend(over_time(&all));
        blocks.extend(ramp(&all));
        blocks.extend(costs(&all));
    }
    blocks.extend(trust(&all));
    blocks.extend(paper_figures(run));
    blocks.extend(circumstances(run, &all));
    Page { title: notes::heading(run), lead: format!("{}.", notes::load_line(run)), blocks }
}

fn alarm(run: &Run, all: &[Figures<'_>]) -> Vec<HtmlBlock> {
    let mut out = Vec::new();
    let alarms = notes::alarms(run, all);
    if !alarms.is_empty() {
        out.push(HtmlBlock::Alarm(notes::INVALID.to_owned(), alarms));
    }
    if run.is_partial {
        out.push(HtmlBlock::Alarm("Stopped early".to_owned(), vec![notes::PARTIAL.to_owned()]));
    }
    out
}

/// Targets with figures, with their positions: these select a colour and a marker, the same in all
/// charts.
fn drawn<'f, 'r>(all: &'f [Figures<'r>]) -> impl Iterator<Item = (usize, &'f Figures<'r>)> {
    all.iter().filter(|figures| figures.ops > 0).enumerate()
}

fn legend(all: &[Figures<'_>]) -> Vec<(String, Colour)> {
    let entry = |(index, figures): (usize, &Figures<'_>)| {
        let marker = marker_text(index);
        (format!("{marker} {}", tables::name(figures)), colour(&figures.target.name))
    };
    drawn(all).map(entry).collect()
}

fn glance(run: &Run, all: &[Figures<'_>]) -> Vec<HtmlBlock> {
    let mut out = vec![HtmlBlock::heading("At a glance")];
    out.push(HtmlBlock::Text(format!("Operations per second: {}.", tables::rates_note(all))));
    out.push(HtmlBlock::Table(tables::rates(run, all)));
    let limits = tables::limits(run, all);
    if !limits.rows.is_empty() {
        out.push(HtmlBlock::Text(format!("{}.", tables::LIMITS_TITLE)));
        out.push(HtmlBlock::Table(limits));
    }
    out
}

fn latency(all: &[Figures<'_>]) -> Vec<HtmlBlock> {
    let samples = |figures: &Figures<'_>, count| {
        let name = figures.target.name.clone();
        let colour = colour(&name);
        (name, colour, quantiles(&figures.latencies, count))
    };
    let series: Vec<chart::Series> = drawn(all).map(|(_, f)| samples(f, QUANTILES)).collect();
    let tails = drawn(all).map(|(index, figures)| ChartLine {
        colour: colour(&figures.target.name),
        stroke: Stroke::Plain,
        marker: Some(index),
        points: tail(&figures.latencies),
    });
    let tails = Lines {
        x: axis("percentile", Unit::OneIn, true),
        y: axis("latency", Unit::Nanoseconds, true),
        lines: tails.collect(),
        rules: Vec::new(),
        y_range: None,
    };
    let histograms = drawn(all).map(|(_, figures)| {
        let (name, colour, mut fast) = samples(figures, HISTOGRAM_SAMPLES);
        fast.truncate(HISTOGRAM_SHOWN);
        Chart {
            caption: format!("{}: the fastest 95 %", tables::name(figures)),
            svg: histogram(&(name, colour, fast)),
            legend: Vec::new(),
        }
    });
    let classes = drawn(all).map(|(_, figures)| {
        let table = HtmlBlock::Table(tables::classes_of(figures));
        HtmlBlock::Details(format!("{} by class of operations", tables::name(figures)), vec![table])
    });
    let mut out = vec![
        HtmlBlock::heading("Latency"),
        HtmlBlock::Table(tables::latencies(all)),
        HtmlBlock::Charts(vec![
            Chart {
                caption: "Share of operations that took at most this time (ECDF)".to_owned(),
                svg: ecdf("latency of one operation, at most", &series),
                legend: legend(all),
            },
            Chart {
                caption: "Tail: latency by percentile, each step ten times rarer".to_owned(),
                svg: lines(&tails),
                legend: legend(all),
            },
        ]),
        HtmlBlock::Charts(histograms.collect()),
    ];
    out.extend(classes);
    out
}

fn axis(title: &str, unit: Unit, is_log: bool) -> Axis {
    Axis { title: title.to_owned(), unit, is_log }
}

fn over_time(all: &[Figures<'_>]) -> Vec<HtmlBlock> {
    let timed = || drawn(all).filter(|(_, f)| f.target.rounds.iter().any(|r| !r.slices.is_empty()));
    if timed().next().is_none() {
        return Vec::new();
    }
    let seconds = || axis("measured time", Unit::Nanoseconds, false);
    let rate = timed().map(|(index, figures)| ChartLine {
        colour: colour(&figures.target.name),
        stroke: Stroke::Plain,
        marker: Some(index),
        points: timeline(figures.target).0.iter().map(|m| (m.at_ns, m.rate)).collect(),
    });
    let rates: Vec<ChartLine> = rate.collect();
    let apart = timed().zip(&rates).flat_map(|((_, figures), line)| {
        let name = tables::name(figures);
        let plain = ChartLine { marker: None, ..line.clone() };
        let (moments, rules) = timeline(figures.target);
        let chart = |y: Axis, lines: Vec<ChartLine>| Lines {
            x: seconds(),
            y,
            lines,
            rules: rules.clone(),
            y_range: None,
        };
        let of = |stroke, of: fn(&figures::Moment) -> f64, shade: Colour| ChartLine {
            colour: shade,
            stroke,
            marker: None,
            points: moments.iter().map(|m| (m.at_ns, of(m))).collect(),
        };
        let base = colour(&figures.target.name);
        let latency = vec![
            of(Stroke::Fine, |m| m.max_ns, GREY),
            of(Stroke::Dashed, |m| m.p99_ns, base),
            of(Stroke::Plain, |m| m.p50_ns, base),
        ];
        [
            Chart {
                caption: format!("{name}: latency"),
                svg: lines(&chart(axis("latency", Unit::Nanoseconds, true), latency)),
                legend: vec![
                    ("━ median".to_owned(), base),
                    ("┅ 99th percentile".to_owned(), base),
                    ("─ longest".to_owned(), GREY),
                ],
            },
            Chart {
                caption: format!("{name}: operations per second"),
                svg: lines(&chart(axis("op/s", Unit::Number, false), vec![plain])),
                legend: vec![("━ operations per second".to_owned(), base)],
            },
        ]
    });
    vec![
        HtmlBlock::heading("Over time"),
        HtmlBlock::text(
            "All rounds of a target, one after the other, with vertical lines between them. The \
             trials of other targets and the warm-ups are left out. A stall or a killed server \
             shows as a peak of the longest latency and as a gap in the rate. Where neighbouring \
             slices are drawn as one, the chart shows the highest of their 99th percentiles.",
        ),
        HtmlBlock::Charts(apart.collect()),
    ]
}

/// The colour of elements that belong to no target.
const GREY: Colour = Colour { 0: 0x8A, 1: 0x93, 2: 0x9C };

fn ramp(all: &[Figures<'_>]) -> Vec<HtmlBlock> {
    let ramped = || drawn(all).filter(|(_, figures)| !figures.target.ramp.is_empty());
    if ramped().next().is_none() {
        return Vec::new();
    }
    let line = |(index, figures): (usize, &Figures<'_>), is_p99: bool| ChartLine {
        colour: colour(&figures.target.name),
        stroke: if is_p99 { Stroke::Plain } else { Stroke::Dashed },
        marker: Some(index),
        points: figures
            .target
            .ramp
            .iter()
            .map(|point| (point.done, as_f64(if is_p99 { point.p99_ns } else { point.p50_ns })))
            .collect(),
    };
    let chart = |is_p99: bool| Lines {
        x: axis("achieved operations per second", Unit::Number, true),
        y: axis("latency", Unit::Nanoseconds, true),
        lines: ramped().map(|one| line(one, is_p99)).collect(),
        rules: Vec::new(),
        y_range: None,
    };
    let picture = |what: &str, is_p99| Chart {
        caption: format!("{what} against the achieved rate"),
        svg: lines(&chart(is_p99)),
        legend: legend(all),
    };
    vec![
        HtmlBlock::heading("Throughput against latency"),
        HtmlBlock::text(
            "Operations were offered at a fixed rate, and latency counts from the intended start, \
             so that it includes the time in the queue of a slow store. Where a curve turns \
             upwards, the target is at its limit.",
        ),
        HtmlBlock::Charts(vec![picture("99th percentile", true), picture("Median", false)]),
        HtmlBlock::Details("All points".to_owned(), vec![HtmlBlock::Table(tables::ramp(all))]),
    ]
}

fn costs(all: &[Figures<'_>]) -> Vec<HtmlBlock> {
    vec![
        HtmlBlock::heading("What it costs"),
        HtmlBlock::text(
            "Processor time is that of the clients' threads and of the target's processes, divided \
             by operations; a target inside the client has no processes. Bytes are those of keys \
             and parts, without the overhead of a protocol. Memory is what the target reports, or \
             the memory of its processes.",
        ),
        HtmlBlock::Table(tables::costs(all)),
    ]
}

/// States of which targets the records were compared with the model.
fn verified(all: &[Figures<'_>]) -> String {
    const MODEL: &str = "compared with the model";
    let keeps = |figures: &&Figures<'_>| figures.target.name != NULL;
    let (compared, not): (Vec<_>, Vec<_>) = drawn(all)
        .map(|(_, figures)| figures)
        .filter(keeps)
        .partition(|figures| figures.target.verdict.is_some());
    let names = |some: &[&Figures<'_>]| {
        some.iter().map(|figures| figures.target.name.as_str()).collect::<Vec<_>>().join(", ")
    };
    match (compared.is_empty(), not.is_empty()) {
        (true, _) => format!("No record was {MODEL}."),
        (false, true) => {
            format!("After the last round every record of every target was {MODEL}.")
        }
        (false, false) => format!(
            "After the last round every record of {} was {MODEL}; those of {} were not.",
            names(&compared),
            names(&not)
        ),
    }
}

fn trust(all: &[Figures<'_>]) -> Vec<HtmlBlock> {
    let mut out = vec![
        HtmlBlock::heading("Whether it counts"),
        HtmlBlock::Text(verified(all)),
        HtmlBlock::Table(tables::trust(all)),
    ];
    let examples: Vec<String> = all
        .iter()
        .filter_map(|figures| Some((&figures.target.name, figures.target.verdict.as_ref()?)))
        .flat_map(|(name, verdict)| verdict.examples.iter().map(move |e| format!("{name}: {e}")))
        .collect();
    if !examples.is_empty() {
        out.extend([HtmlBlock::subheading("Wrong records"), HtmlBlock::List(examples)]);
    }
    let declined = tables::declined(all);
    if !declined.is_empty() {
        let title = HtmlBlock::subheading("Declined");
        out.extend([title, HtmlBlock::List(declined)]);
    }
    let ways = tables::ways(all);
    if !ways.rows.is_empty() {
        out.push(HtmlBlock::subheading("Native and emulated features"));
        out.push(HtmlBlock::Table(ways));
    }
    let checks = tables::checks(all);
    if !checks.rows.is_empty() {
        out.push(HtmlBlock::Subheading(tables::CHECKS_TITLE.to_owned()));
        out.push(HtmlBlock::Table(checks));
    }
    out
}

fn paper_figures(run: &Run) -> Vec<HtmlBlock> {
    if run.workload.paper_figures.is_empty() {
        return Vec::new();
    }
    vec![
        HtmlBlock::heading("The papers' own figures"),
        HtmlBlock::Text(format!(
            "{}. They are shown for orientation only: other hardware, software and dates.",
            tables::FOREIGN_TITLE
        )),
        HtmlBlock::Table(tables::paper_figures(run)),
    ]
}

fn circumstances(run: &Run, all: &[Figures<'_>]) -> Vec<HtmlBlock> {
    let mut machine = run.machine.clone();
    machine.push(("noise before the run".to_owned(), notes::noise(&run.noise)));
    machine.push(("start".to_owned(), notes::date_text(run.began_s)));
    let versions = all.iter().map(|f| (f.target.name.clone(), notes::about(f.target)));
    vec![
        HtmlBlock::heading("How it was measured"),
        HtmlBlock::Code(run.command.clone()),
        HtmlBlock::Text(format!("The workload is defined in {}.", run.workload.source)),
        HtmlBlock::subheading("Machine"),
        HtmlBlock::Facts(machine),
        HtmlBlock::subheading("Targets"),
        HtmlBlock::Facts(versions.collect()),
        HtmlBlock::heading("Keep in mind"),
        HtmlBlock::List(notes::caveats(run, all)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::TimeSlice;
    use crate::sample::run;

    #[test]
    fn a_page_is_self_contained() {
        crate::html::assert_offline(&page(&run()).html());
    }

    #[test]
    fn every_section_has_its_charts() {
        let html = page(&run()).html();
        for heading in [
            "At a glance",
            "Latency",
            "Over time",
            "Throughput against latency",
            "What it costs",
            "Whether it counts",
            "The papers&#39; own figures",
            "How it was measured",
            "Keep in mind",
        ] {
            let heading = heading.replace("&#39;", "'");
            assert!(html.contains(&format!(">{heading}</h2>")), "{heading} is missing");
        }
        // Two distributions; a histogram and two timelines for each of four targets; two curves.
        assert_eq!(html.matches("<svg").count(), 2 + 4 * 3 + 2);
        assert!(html.contains("region by class of operations") && html.contains(">1.96 M<"));
        assert!(html.contains("region 1.2; after loading: 2 MiB pages after collapse()"));
        assert!(html.contains("◆</b>null") && html.contains("▲</b>geode (INVALID)"));
    }

    #[test]
    fn empty_sections_are_omitted() {
        let mut run = run();
        assert!(page(&run).html().contains("Native and emulated features"));
        run.targets.iter_mut().for_each(|target| target.ways.clear());
        run.targets.retain(|target| target.name != NULL);
        let html = page(&run).html();
        assert!(!html.contains("Native and emulated"));
    }

    #[test]
    fn targets_whose_records_were_not_compared_are_named() {
        let mut run = run();
        let all = "every record of every target was compared";
        assert!(page(&run).html().contains(all));
        run.targets[1].verdict = None;
        let html = page(&run).html();
        assert!(!html.contains(all) && html.contains("those of redis were not"));
    }

    #[test]
    fn an_invalid_run_has_an_alarm_at_the_top() {
        let html = page(&run()).html();
        let alarm = html.find("class=\"alarm\"").unwrap();
        assert!(alarm < html.find("At a glance</h2>").unwrap());
        assert!(html.contains("geode: its process ended in round 3"));
        let mut fine = run();
        fine.targets.retain(|target| target.name != "geode");
        fine.invalid.clear();
        assert!(!page(&fine).html().contains("class=\"alarm\""));
    }

    #[test]
    fn a_run_without_ramp_slices_papers_or_targets_has_a_page() {
        let mut run = run();
        run.workload.paper_figures.clear();
        for target in &mut run.targets {
            target.ramp.clear();
            target.rounds.iter_mut().for_each(|round| round.slices.clear());
        }
        let html = page(&run).html();
        assert!(!html.contains("Over time</h2>") && !html.contains("against latency</h2>"));
        run.targets.clear();
        let html = page(&run).html();
        assert!(html.contains("No record was compared") && !html.contains("<svg"));
        assert!(html.contains("no round was measured"));
    }

    #[test]
    fn hostile_figures_and_names_cause_neither_panic_nor_markup() {
        let mut run = run();
        let target = &mut run.targets[0];
        target.name = "<script>".to_owned();
        for point in &mut target.ramp {
            (point.done, point.offered, point.p99_ns) = (f64::NAN, f64::INFINITY, u64::MAX);
        }
        target.checks[0].found = f64::NEG_INFINITY;
        target.memory_bytes = Some(1 << 50);
        let round = &mut target.rounds[0];
        (round.wall_ns, round.client_cpu_ns) = (0, 1 << 50);
        let far = 1 << 50;
        let slice =
            TimeSlice { at_ms: far, ms: far, ops: far, p50_ns: far, p99_ns: far, max_ns: far };
        round.slices = vec![slice; 3];
        let html = page(&run).html();
        assert!(html.contains("&lt;script&gt;") && !html.contains("<script>"));
        run.targets[1].name = "\u{1b}[2Jredis".to_owned();
        let text = super::super::text(&run);
        assert!(text.contains("OFF") && !text.contains('\u{1b}'));
    }
}
