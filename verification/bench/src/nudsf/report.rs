//! The tables of `bench run nudsf`.

use super::result::{CaseResult, NudsfRun, cpu_ns, rate};
use crate::html::{HtmlBlock, Page};
use crate::spread::RoundMeasurements;
use crate::stat::as_f64;
use crate::table::{ReportTable, count_text, latency_text, rate_text, ratio_text};
use std::fmt::Write as _;

const TITLE: &str = "nudsf: the data repository over HTTP/2 on one processor";

/// The tables for a terminal.
pub fn text(run: &NudsfRun) -> String {
    let mut out = format!("{TITLE}\n{}\n{}", lead(run), run.frame.alarms_text());
    if !run.cases.is_empty() {
        out.extend(["\n", &cases(run).text(), "\nGoals\n\n", &goals(run).text()]);
    }
    out + &facts(run) + &run.frame.end_text()
}

/// The page.
pub fn page(run: &NudsfRun) -> Page {
    let own = vec![
        HtmlBlock::Table(cases(run)),
        HtmlBlock::heading("Goals"),
        HtmlBlock::Table(goals(run)),
        HtmlBlock::Code(facts(run)),
    ];
    Page { title: TITLE.to_owned(), lead: lead(run), blocks: run.frame.blocks(own) }
}

fn lead(run: &NudsfRun) -> String {
    let rounds = run.cases.iter().map(|case| case.node.len()).max().unwrap_or(0);
    let (records, requests) = (count_text(run.records), count_text(run.requests));
    format!("{records} records, {requests} requests of a case, {rounds} rounds.")
}

/// Memory and timers, if they were measured.
fn facts(run: &NudsfRun) -> String {
    let mut out = String::new();
    if let Some(memory) = run.memory {
        let _ = write!(
            out,
            "\nMemory of the node without its region: {} MiB, and at most {} MiB with {} \
             connections of {} streams ({} requests)\n",
            memory.before_bytes >> 20,
            memory.peak_bytes >> 20,
            count_text(memory.connections),
            memory.streams,
            count_text(memory.requests),
        );
    }
    if let Some(timers) = run.timers {
        let _ = write!(
            out,
            "\nTimers\n  {} armed: {} created per second, {} of processor time and {} bytes \
             each\n  {} created and fired among them: {} per second, {} of processor time each\n",
            count_text(timers.timers),
            rate_text(timers.created_per_s),
            latency_text(as_f64(timers.create_cpu_ns)),
            timers.bytes_per_timer,
            count_text(timers.fired),
            rate_text(timers.fired_per_s),
            latency_text(as_f64(timers.create_and_fire_cpu_ns)),
        );
    }
    out
}

fn cases(run: &NudsfRun) -> ReportTable {
    let mut table = ReportTable::new(
        "case|>node /s|>bare /s|>redis /s|>node cpu|>bare cpu|>redis cpu|>rate ratio|>cpu ratio",
    );
    for case in &run.cases {
        let mut cells = vec![case.name.clone()];
        let all = [&case.node, &case.bare, &case.redis];
        cells.extend(all.map(|rounds| rate_text(rate(rounds))));
        cells.extend(all.map(|rounds| latency_text(cpu_ns(rounds))));
        let (rates, cpu) = case.ratios();
        cells.extend([range(&rates), range(&cpu)]);
        table.row(cells);
    }
    table
}

/// The median of ratios, with the least and the greatest.
fn range(ratios: &RoundMeasurements) -> String {
    format!("{:.2} ({:.2}-{:.2})", ratios.median(), ratios.min(), ratios.max())
}

fn goals(run: &NudsfRun) -> ReportTable {
    let mut table = ReportTable::new("case|goal|>measured|result");
    let mut row = |case: &CaseResult, goal: String, measured: String, is_met: bool| {
        let result = if is_met { "met" } else { "missed" };
        table.row(vec![case.what.clone(), goal, measured, result.to_owned()]);
    };
    for case in run.cases.iter().filter(|case| !case.node.is_empty()) {
        if let Some(goal) = case.goal_of_bare {
            let ratio = case.ratios().0.median();
            row(case, format!(">= {goal} of bare"), ratio_text(ratio), ratio >= goal);
        }
        if let Some(goal) = case.goal_cpu_ns {
            let cpu = cpu_ns(&case.node);
            row(case, format!("<= {}", latency_text(as_f64(goal))), latency_text(cpu), {
                cpu <= as_f64(goal)
            });
        }
        if let Some(goal) = case.goal_bytes_per_s {
            let bytes = rate(&case.node) * as_f64(case.response_bytes);
            let text = |bytes: f64| format!("{:.0} MB/s", bytes / 1e6);
            row(case, format!(">= {}", text(goal)), text(bytes), bytes >= goal);
        }
    }
    table
}
