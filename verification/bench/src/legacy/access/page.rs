//! The findings as a page: the thesis's figures drawn again from this machine's samples.

use super::Findings;
use super::orchestrate::{Experiment, Run};
use super::output::{self, by_kind, counterpart};
use super::thesis::{self, Published, TABLE_5_MS};
use crate::html::chart::{self, Series, colour};
use crate::html::{Bar, BarGroup, Block, Chart, Page};
use crate::legacy::protocol::{Kind, Mode};
use crate::table::{Align, Table, latency_text, ratio_text};
use std::fmt::Write as _;

/// Points of a distribution of single operations.
const QUANTILES: u32 = 400;

/// The whole page.
pub fn html(findings: &Findings) -> String {
    let mut blocks = vec![Block::Heading("At a glance".to_owned())];
    blocks.push(Block::Text(
        "Mean latency of one access, on one logarithmic scale: a short bar is fast, and each line \
         is ten times the one before. Pale bars are the thesis's own figures from its machine (an \
         HPE Superdome Flex), for orientation."
            .to_owned(),
    ));
    blocks.push(Block::Bars(findings.experiments.iter().map(glance).collect()));
    if let Some(table) = output::table_4(findings) {
        blocks.push(Block::Heading("Table 4 of the thesis, and ours".to_owned()));
        blocks.push(Block::Text(
            "Mean and standard deviation of the sequence averages (equations 2 and 3). The columns \
             \"here\" hold the access that matches what the thesis measured: for reads a step to \
             the next record, for Redis a GET by key; for writes a put, for WhiteDB an append with \
             its lock held over the whole sequence and the wait for it not counted."
                .to_owned(),
        ));
        blocks.push(Block::Table(table));
    }
    blocks.push(Block::Heading("All figures".to_owned()));
    blocks.push(Block::Text(format!(
        "Mean and standard deviation are over sequence averages, as in the thesis; percentiles and \
         maximum are over single operations, which it did not record. The last column is the mean \
         relative to the first target{}.",
        first_target(findings).map_or_else(String::new, |t| format!(", {t}"))
    )));
    blocks.push(Block::Table(output::figures(findings)));
    for experiment in &findings.experiments {
        blocks.extend(section(experiment));
    }
    blocks.extend(circumstances(findings));
    let page = Page {
        title: "Data access latency: the thesis's experiments on this machine".to_owned(),
        lead: format!(
            "A memory-centric back-end beside a processor-centric one, measured in one run on {}.",
            findings.machine.line()
        ),
        blocks,
    };
    page.html()
}

fn first_target(findings: &Findings) -> Option<&str> {
    findings.versions.first().map(|(name, _)| name.as_str())
}

fn glance(experiment: &Experiment) -> BarGroup {
    let setting = &experiment.setting;
    let mode = setting.mode;
    let mut bars = Vec::new();
    for run in &experiment.runs {
        let is_headline = match run.kind {
            Kind::View | Kind::Put | Kind::PutHeld => true,
            Kind::Copy | Kind::Step => run.kind == counterpart(&run.target, mode),
            Kind::Batch | Kind::Chain => false,
        };
        if is_headline {
            let mean_ns = run.summary().mean_ns;
            bars.push(Bar {
                label: format!("{} {}", run.target, run.kind.name()),
                amount: mean_ns,
                text: latency_text(mean_ns),
                colour: colour(&run.target),
                is_foreign: false,
            });
        }
    }
    if let Some(row) = thesis::row(&setting.name) {
        for (name, (mean_ns, _)) in [("redis", row.redis), ("whitedb", row.whitedb)] {
            bars.push(Bar {
                label: format!("thesis {name}"),
                amount: mean_ns,
                text: latency_text(mean_ns),
                colour: colour(name),
                is_foreign: true,
            });
        }
    }
    let nodes =
        if setting.nodes == 1 { "1 node".into() } else { format!("{} nodes", setting.nodes) };
    BarGroup { title: format!("{}: {}, {nodes}", setting.name, mode.name()), bars }
}

/// One experiment: what the thesis measured in the open, the other kinds of access on demand.
fn section(experiment: &Experiment) -> Vec<Block> {
    let setting = &experiment.setting;
    let mut blocks =
        vec![Block::Heading(setting.name.clone()), Block::Text(format!("{}.", setting.line()))];
    if let Some(note) = setting.scale_note() {
        blocks.push(Block::Text(format!("{note}.")));
    }
    if let Some(text) = in_words(experiment) {
        blocks.push(Block::Text(text));
    }
    let matching: Vec<&Run> =
        experiment.runs.iter().filter(|r| r.kind == counterpart(&r.target, setting.mode)).collect();
    blocks.push(Block::Subheading(format!("As in the thesis{}", figure_number(&setting.name))));
    blocks.push(Block::Charts(histograms(&matching, &setting.name)));
    blocks.push(Block::Charts(distributions(&matching, &setting.name, "as in the thesis")));
    for (kind, runs) in by_kind(experiment) {
        let inside = vec![
            Block::Table(percentiles(&runs)),
            Block::Charts(distributions(&runs, &setting.name, kind.title())),
            Block::Charts(histograms(&runs, &setting.name)),
        ];
        let means: Vec<String> = runs
            .iter()
            .map(|r| format!("{} {}", r.target, latency_text(r.summary().mean_ns)))
            .collect();
        blocks.push(Block::Details(format!("{}: {}", kind.title(), means.join(", ")), inside));
    }
    blocks
}

/// The thesis's own figure of an experiment.
fn figure_number(preset: &str) -> String {
    match preset {
        "thesis-numa-1" | "thesis-numa-2" => " (its Figure 17)".to_owned(),
        "thesis-numa-4" | "thesis-numa-5" => " (its Figure 18)".to_owned(),
        "thesis-numa-3" => " (its Table 5)".to_owned(),
        _ => thesis::row(preset)
            .map_or_else(String::new, |r| format!(" (its Figure {})", r.experiment + 10)),
    }
}

/// What the thesis found beside what was found here.
fn in_words(experiment: &Experiment) -> Option<String> {
    if experiment.setting.name == "thesis-numa-3" {
        let figures: Vec<String> = TABLE_5_MS.iter().map(|ms| format!("{ms:.3}")).collect();
        return Some(format!("The thesis's Table 5, by NUMA node, in ms: {}.", figures.join(", ")));
    }
    let row = thesis::row(&experiment.setting.name)?;
    let says = |(mean_ns, deviation_ns): Published| {
        format!("{} (± {})", latency_text(mean_ns), latency_text(deviation_ns))
    };
    let mode = experiment.setting.mode;
    let mean_of = |target: &str| {
        let kind = counterpart(target, mode);
        let run = experiment.runs.iter().find(|r| r.target == target && r.kind == kind)?;
        Some(run.summary().mean_ns)
    };
    let here = |of: &str, over: &str| {
        let (a, b) = (mean_of(of)?, mean_of(over)?);
        Some(format!("{of} takes {} as long as {over}", ratio_text(a / b)))
    };
    let ratios: Vec<String> =
        [here("redis", "region"), here("whitedb", "region"), here("redis", "whitedb")]
            .into_iter()
            .flatten()
            .collect();
    let mut text = format!(
        "The thesis measured {} with Redis and {} with WhiteDB, a ratio of {}.",
        says(row.redis),
        says(row.whitedb),
        ratio_text(row.redis.0 / row.whitedb.0)
    );
    if !ratios.is_empty() {
        let _ = write!(text, " Here {}.", ratios.join(", "));
    }
    Some(text)
}

fn histograms(runs: &[&Run], experiment: &str) -> Vec<Chart> {
    let chart = |run: &&Run| {
        let count = run.samples.len();
        Chart {
            caption: format!(
                "{}, {} ({experiment}): {count} sequence average{}, in percent",
                run.target,
                run.kind.title(),
                if count == 1 { "" } else { "s" }
            ),
            svg: chart::histogram(&averages(run)),
            legend: Vec::new(),
        }
    };
    runs.iter().map(chart).collect()
}

fn averages(run: &Run) -> Series {
    (run.target.clone(), colour(&run.target), run.averages())
}

fn distributions(runs: &[&Run], experiment: &str, what: &str) -> Vec<Chart> {
    let sequences: Vec<Series> = runs.iter().map(|r| averages(r)).collect();
    let single: Vec<Series> = runs.iter().map(|r| quantiles(r)).collect();
    let legend: Vec<_> = runs.iter().map(|r| (r.target.clone(), colour(&r.target))).collect();
    vec![
        Chart {
            caption: format!("ECDF of sequence averages, {what} ({experiment})"),
            svg: chart::ecdf("sequence average, at most", &sequences),
            legend: legend.clone(),
        },
        Chart {
            caption: format!("ECDF of single operations, {what} ({experiment})"),
            svg: chart::ecdf("latency of one operation, at most", &single),
            legend,
        },
    ]
}

/// Single operations as points of equal weight.
#[expect(clippy::cast_precision_loss, reason = "drawn with a few hundred points")]
fn quantiles(run: &Run) -> Series {
    let at = |i: u32| f64::from(2 * i + 1) * 50.0 / f64::from(QUANTILES);
    let samples = (0..QUANTILES).map(|i| run.latencies.percentile(at(i)) as f64).collect();
    (run.target.clone(), colour(&run.target), samples)
}

#[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
fn percentiles(runs: &[&Run]) -> Table {
    const PERCENT: [f64; 7] = [1.0, 25.0, 50.0, 90.0, 99.0, 99.9, 99.99];
    let names: Vec<String> = PERCENT.iter().map(|p| format!("p{p}")).collect();
    let mut columns = vec![("target", Align::Left), ("operations", Align::Right)];
    columns.extend(names.iter().map(|n| (n.as_str(), Align::Right)));
    columns.push(("max", Align::Right));
    columns.push(("values verified", Align::Right));
    let mut table = Table::new(&columns);
    for run in runs {
        let mut cells = vec![run.target.clone(), run.latencies.count().to_string()];
        let single = |ns: u64| latency_text(ns as f64);
        cells.extend(PERCENT.iter().map(|p| single(run.latencies.percentile(*p))));
        cells.push(single(run.latencies.max()));
        cells.push(run.verified.to_string());
        table.row(cells);
    }
    table
}

/// What a figure is worth nothing without.
fn circumstances(findings: &Findings) -> Vec<Block> {
    let mut versions: Vec<(String, String)> =
        vec![("nearstate".to_owned(), env!("CARGO_PKG_VERSION").to_owned())];
    if let Some(commit) = output::COMMIT {
        versions.push(("commit".to_owned(), commit.to_owned()));
    }
    versions.extend(findings.versions.iter().filter(|(n, _)| n != "region").cloned());
    let machine = findings.machine.rows();
    let machine = machine.into_iter().map(|(n, v)| (n.to_owned(), v)).collect();
    let mut caveats = findings.caveats.clone();
    caveats.extend(standing_caveats(findings));
    vec![
        Block::Heading("How it was measured".to_owned()),
        Block::Code(findings.command.clone()),
        Block::Subheading("Machine".to_owned()),
        Block::Facts(machine),
        Block::Subheading("Versions".to_owned()),
        Block::Facts(versions),
        Block::Heading("Caveats".to_owned()),
        Block::List(caveats),
    ]
}

fn standing_caveats(findings: &Findings) -> Vec<String> {
    let has = |name: &str| findings.versions.iter().any(|(n, _)| n == name);
    let is_there = |mode: Mode| findings.experiments.iter().any(|e| e.setting.mode == mode);
    let mut out = vec![
        "Nodes are processes of one machine; all begin at one moment. Redis runs on the same cores \
         as its clients, without containers and without persistence; the thesis had it in Docker \
         behind a virtual network."
            .to_owned(),
        "Every value is random and unlike all others, and certifies itself: a reader sums all its \
         bytes and compares, inside the measured time (unless --touch word was given)."
            .to_owned(),
        "Reads from memory are timed as whole sequences; their percentiles come from one further \
         sequence in which every operation is stamped. The cost of reading the clock, some 20 ns, \
         is measured and subtracted; percentiles of the same size are therefore rough."
            .to_owned(),
        "op/s is the work of all nodes divided by the time from the first one's start to the last \
         one's end, pauses included."
            .to_owned(),
    ];
    if is_there(Mode::Read) {
        out.push(
            "Readers from memory run one sequence before they are measured, so that pages are \
             mapped (unless --cold was given). A batch counts as sixteen \
             operations of a sixteenth of its time."
                .to_owned(),
        );
    }
    if is_there(Mode::Write) {
        out.push(
            "Repeated write sequences write the same keys again; WhiteDB, which has no put by key, \
             appends, as it did in the thesis."
                .to_owned(),
        );
    }
    if has("whitedb") {
        out.push(
            "WhiteDB is written under its database-level lock. \"put\" takes it for each record \
             and counts the wait; \"put, sequence lock\" holds it over a whole sequence and does \
             not count the wait, which is the thesis's way. Its index is built after loading, so \
             that writes do not pay for it. Its reads take no lock."
                .to_owned(),
        );
    }
    out
}
