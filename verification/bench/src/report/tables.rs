//! The tables of the terminal report and of the HTML page.

use crate::figures::{self, Cost, Figures, LatencyClass, NULL, PERCENTILES, as_f64, reference};
use crate::machine::bytes_text;
use crate::result::{CUT, Check, RecordVerification, Run, TargetResult};
use crate::spread::RoundMeasurements;
use crate::stat::Latencies;
use crate::table::{ReportTable, count_text, latency_text, rate_text, ratio_text};

/// The text of a cell without a figure.
pub(super) const NONE: &str = "-";

/// The heading of figures that papers measured.
pub(super) const FOREIGN_TITLE: &str =
    "The papers' own figures: from their machines, not measured here";

/// A target's name, marked if its figures do not count.
pub(super) fn name(figures: &Figures<'_>) -> String {
    let name = &figures.target.name;
    if figures.is_valid() { name.clone() } else { format!("{name} (INVALID)") }
}

/// The targets that took part. The others have only a reason.
fn measured<'f, 'r>(all: &'f [Figures<'r>]) -> impl Iterator<Item = &'f Figures<'r>> {
    all.iter().filter(|figures| figures.target.declined.is_none())
}

/// Describes the columns of [`rates`].
pub(super) fn rates_note(all: &[Figures<'_>]) -> String {
    match all.iter().map(|figures| figures.rates.count()).max().unwrap_or(0) {
        0 => "no round was measured".to_owned(),
        1 => "one round, so the spread is unknown".to_owned(),
        rounds => format!(
            "median, least and most of {rounds} rounds, and the 95 % confidence interval of their \
             mean (Student's t)"
        ),
    }
}

/// The rate of every target, its spread, and its ratio to the first target's. At a fixed offered
/// rate, the share of that rate instead of the ratio: two targets that reach it cannot be compared.
pub(super) fn rates(run: &Run, all: &[Figures<'_>]) -> ReportTable {
    let first = reference(all);
    let versus = match (run.load.rate, first) {
        (Some(_), _) => "of the offered".to_owned(),
        (None, Some(first)) => format!("vs {}", first.target.name),
        (None, None) => "ratio".to_owned(),
    };
    let per_op = run.load.block_ops > 1;
    let clients = as_f64(run.load.clients.saturating_sub(run.load.background) as u64);
    let time = if per_op { ">time of one|" } else { "" };
    let mut table = ReportTable::new(&format!(
        "target|{time}>op/s|>least|>most|>interval of the mean|>rounds|>{versus}"
    ));
    for figures in measured(all) {
        let rates = &figures.rates;
        let some = |text: String| if rates.count() > 0 { text } else { NONE.to_owned() };
        let ratio = match run.load.rate {
            Some(offered) => Some(format!("{:.1} %", 100.0 * rates.median() / offered)),
            None => first.map(|first| share_text(rates.median() / first.rates.median())),
        };
        let mut row = vec![name(figures)];
        row.extend(per_op.then(|| some(latency_text(clients * 1e9 / rates.median()))));
        row.extend([
            some(rate_text(rates.median())),
            some(rate_text(rates.min())),
            some(rate_text(rates.max())),
            interval_text(rates),
            rates.count().to_string(),
            some(ratio.unwrap_or_else(|| NONE.to_owned())),
        ]);
        table.row(row);
    }
    table
}

/// The heading of [`limits`].
pub(super) const LIMITS_TITLE: &str =
    "Time of an operation as a multiple of the prototype's, round by round";

/// The ratio of each target's time to that of the prototype: its distance from the limit of the
/// machine. No rows without a prototype.
pub(super) fn limits(run: &Run, all: &[Figures<'_>]) -> ReportTable {
    let mut table = ReportTable::new("target|>x prototype|>least|>most|>rounds");
    for figures in measured(all) {
        let Some(ratios) = figures::times_prototype(run, figures.target) else { continue };
        table.row(vec![
            name(figures),
            ratio_text(ratios.median()),
            ratio_text(ratios.min()),
            ratio_text(ratios.max()),
            ratios.count().to_string(),
        ]);
    }
    table
}

/// A ratio. A small one is written as a fraction, which is easier to read than leading zeros.
pub(crate) fn share_text(ratio: f64) -> String {
    if ratio > 0.0 && ratio < 0.095 {
        format!("1/{}", ratio_text(1.0 / ratio))
    } else {
        ratio_text(ratio)
    }
}

fn interval_text(rates: &RoundMeasurements) -> String {
    rates.interval_95().map_or_else(
        || NONE.to_owned(),
        |(low, high)| format!("{} .. {}", rate_text(low.max(0.0)), rate_text(high)),
    )
}

fn percentile_table(first: &str) -> ReportTable {
    let names = PERCENTILES.map(|(name, _)| name).join("|>");
    ReportTable::new(&format!("{first}|>{names}|>max"))
}

fn percentile_cells(latencies: &Latencies) -> Vec<String> {
    if latencies.count() == 0 {
        return vec![NONE.to_owned(); PERCENTILES.len() + 1];
    }
    let cell = |ns: u64| latency_text(as_f64(ns));
    let mut cells: Vec<String> =
        PERCENTILES.iter().map(|(_, percent)| cell(latencies.percentile(*percent))).collect();
    cells.push(cell(latencies.max()));
    cells
}

/// Percentiles of every target.
pub(super) fn latencies(all: &[Figures<'_>]) -> ReportTable {
    let mut table = percentile_table("target|>operations");
    for figures in measured(all) {
        let mut cells = vec![name(figures), count_text(figures.latencies.count())];
        cells.extend(percentile_cells(&figures.latencies));
        table.row(cells);
    }
    table
}

/// Percentiles of every class of one target.
pub(super) fn classes_of(figures: &Figures<'_>) -> ReportTable {
    let mut table = percentile_table("class|>operations|>share|>op/s");
    let all = figures.latencies.count().max(1);
    let mut row = |class: &LatencyClass| {
        let count = class.latencies.count();
        let share = 100.0 * as_f64(count) / as_f64(all);
        let mut cells = vec![class.name.clone(), count_text(count), format!("{share:.2} %")];
        // Operations that a reconnection interrupted have no rate.
        let is_cut = class.name == CUT;
        cells.push(if is_cut { NONE.to_owned() } else { rate_text(class.rates.median()) });
        cells.extend(percentile_cells(&class.latencies));
        table.row(cells);
    };
    figures.classes.iter().for_each(&mut row);
    row(&figures.all_classes());
    table
}

/// The heading of [`costs`].
pub(super) const COSTS_TITLE: &str = "What it costs: processor time and bytes of keys and parts \
                                      per operation; memory, in total and per record; records \
                                      loaded per second";

/// Processor time, bytes and memory of every target.
pub(super) fn costs(all: &[Figures<'_>]) -> ReportTable {
    let mut table = ReportTable::new(
        "target|>client CPU|>server CPU|>sent|>received|>memory|>a record|>loading",
    );
    let none = || NONE.to_owned();
    for figures in measured(all) {
        let cost = |text: &dyn Fn(Cost) -> String| figures.cost.map_or_else(none, text);
        table.row(vec![
            name(figures),
            cost(&|cost| latency_text(cost.client_ns)),
            // The work of a target without processes is done by the clients.
            cost(&|c| if c.server_ns > 0.0 { latency_text(c.server_ns) } else { none() }),
            cost(&|cost| format!("{:.0} B", cost.bytes_out)),
            cost(&|cost| format!("{:.0} B", cost.bytes_in)),
            figures.target.memory_bytes.map_or_else(none, bytes_text),
            figures.memory_per_record().map_or_else(none, |bytes| format!("{bytes:.0} B")),
            loading_text(figures.target),
        ]);
    }
    table
}

fn loading_text(target: &TargetResult) -> String {
    match target.loaded {
        (0, _) | (_, 0) => NONE.to_owned(),
        (records, ns) => format!("{}/s", rate_text(as_f64(records) * 1e9 / as_f64(ns))),
    }
}

/// What was verified of every target, and the result. Columns that are empty for all targets are
/// omitted.
pub(super) fn trust(all: &[Figures<'_>]) -> ReportTable {
    let mut table = ReportTable::new(&format!(
        "target|>records verified|>wrong|>{NO_EFFECT}|>{RECONNECTS}|>{CUT_BY_THEM}|outcome"
    ));
    for figures in all {
        let target = figures.target;
        let (records, wrong) = target.verdict.as_ref().map_or_else(
            || (NONE.to_owned(), NONE.to_owned()),
            |verdict| (verified_text(verdict), count_text(verdict.wrong)),
        );
        table.row(vec![
            target.name.clone(),
            records,
            wrong,
            unsuccessful_text(figures),
            count_text(target.reconnects),
            count_text(figures.cut),
            outcome(figures).to_owned(),
        ]);
    }
    let is_any = |of: fn(&Figures<'_>) -> u64| all.iter().any(|figures| of(figures) > 0);
    let columns = [
        (NO_EFFECT, is_any(|figures| figures.unsuccessful)),
        (RECONNECTS, is_any(|figures| figures.target.reconnects)),
        (CUT_BY_THEM, is_any(|figures| figures.cut)),
    ];
    let empty = columns.into_iter().filter(|(_, is_any)| !is_any).map(|(name, _)| name);
    table.without(&empty.collect::<Vec<_>>())
}

const NO_EFFECT: &str = "without effect";
const RECONNECTS: &str = "reconnects";
const CUT_BY_THEM: &str = "cut by them";

/// The records that were found, and the keys that were verified to be absent.
fn verified_text(verdict: &RecordVerification) -> String {
    let found = count_text(verdict.records.saturating_sub(verdict.absent));
    match verdict.absent {
        0 => found,
        absent => format!("{found} + {} absent", count_text(absent)),
    }
}

fn unsuccessful_text(figures: &Figures<'_>) -> String {
    match (figures.unsuccessful, figures.ops) {
        (_, 0) => NONE.to_owned(),
        (0, _) => "0".to_owned(),
        (some, ops) => {
            format!("{} ({:.1} %)", count_text(some), 100.0 * as_f64(some) / as_f64(ops))
        }
    }
}

fn outcome(figures: &Figures<'_>) -> &'static str {
    let target = figures.target;
    if target.declined.is_some() {
        return "declined";
    }
    match target.verdict {
        _ if !figures.is_valid() => "INVALID",
        _ if figures.ops == 0 => "not measured",
        None if target.name == NULL => "stores nothing",
        None => "not verified",
        Some(_) => "valid",
    }
}

/// Why targets did not take part.
pub(super) fn declined(all: &[Figures<'_>]) -> Vec<String> {
    let each = all.iter().filter_map(|figures| {
        let why = figures.target.declined.as_ref()?;
        Some(format!("{} declined: {why}", figures.target.name))
    });
    each.collect()
}

/// The heading of [`checks`].
pub(super) const CHECKS_TITLE: &str = "What the generator drew, and what its source specifies";

/// The generator's figures: all of the first target, and of the others only those that are off. All
/// targets get the same draws.
pub(super) fn checks(all: &[Figures<'_>]) -> ReportTable {
    let mut table = ReportTable::new("target|figure|>expected|>found|>may be off|>draws|ok");
    let with_checks = all.iter().map(|f| f.target).filter(|target| !target.checks.is_empty());
    for (index, target) in with_checks.enumerate() {
        let mut name = target.name.as_str();
        for check in target.checks.iter().filter(|check| index == 0 || !check.holds()) {
            table.row(check_cells(std::mem::take(&mut name), check));
        }
        if !name.is_empty() {
            let figure = match target.checks.len() {
                1 => "like this one".to_owned(),
                checks => format!("all {checks} like these"),
            };
            let mut cells = vec![name.to_owned(), figure];
            cells.extend([const { String::new() }; 4]);
            cells.push("ok".to_owned());
            table.row(cells);
        }
    }
    table
}

/// A figure whose tolerance exceeds this share of the expected value proves nothing.
const LOOSE: f64 = 0.5;

fn check_cells(target: &str, check: &Check) -> Vec<String> {
    let is_loose = check.tolerance > LOOSE * check.expected.abs();
    let verdict = match (check.holds(), check.weight > 0.0) {
        (true, true) if is_loose => "few draws",
        (true, true) => "ok",
        (true, false) => "not drawn",
        (false, _) => "OFF",
    };
    vec![
        target.to_owned(),
        check.name.clone(),
        number_text(check.expected),
        number_text(check.found),
        number_text(check.tolerance),
        count_text(crate::random::whole(check.weight)),
        verdict.to_owned(),
    ]
}

fn number_text(number: f64) -> String {
    match number.abs() {
        size if size < 10.0 => format!("{number:.4}"),
        size if size < 1e6 => format!("{number:.2}"),
        _ => format!("{number:.3e}"),
    }
}

/// The curve of every target.
pub(super) fn ramp(all: &[Figures<'_>]) -> ReportTable {
    let mut table = ReportTable::new("target|>offered op/s|>achieved|>p50|>p99|>p99.9|sustained");
    for figures in all.iter().filter(|figures| !figures.target.ramp.is_empty()) {
        table.rule();
        let mut label = name(figures);
        let best = figures::sustained(figures.target);
        for point in &figures.target.ramp {
            let is_best = best.is_some_and(|best| point.done >= best);
            let sustained = match (point.is_sustained, is_best) {
                (true, true) => "yes, the highest",
                (true, false) => "yes",
                (false, _) => "no",
            };
            table.row(vec![
                std::mem::take(&mut label),
                rate_text(point.offered),
                rate_text(point.done),
                latency_text(as_f64(point.p50_ns)),
                latency_text(as_f64(point.p99_ns)),
                latency_text(as_f64(point.p999_ns)),
                sustained.to_owned(),
            ]);
        }
    }
    table
}

/// Figures that papers measured.
pub(super) fn paper_figures(run: &Run) -> ReportTable {
    let mut table = ReportTable::new("source|what|figure");
    let mut before = "";
    for figure in &run.workload.paper_figures {
        let is_new = figure.source != before;
        before = &figure.source;
        let source = if is_new { figure.source.clone() } else { String::new() };
        table.row(vec![source, figure.what.clone(), figure.figure.clone()]);
    }
    table
}

/// How every target provides the features in which stores differ.
pub(super) fn ways(all: &[Figures<'_>]) -> ReportTable {
    let mut table = ReportTable::new("target|ability|how");
    for target in all.iter().map(|figures| figures.target) {
        let mut name = target.name.as_str();
        for (ability, way) in &target.ways {
            let name = std::mem::take(&mut name).to_owned();
            table.row(vec![name, ability.clone(), way.clone()]);
        }
    }
    table
}
