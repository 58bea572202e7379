//! What a run of the table has measured, and its report.

use crate::html::{HtmlBlock, Page};
use crate::run_frame::RunFrame;
use crate::spread::RoundMeasurements;
use crate::stat::as_f64;
use crate::table::{ReportTable, latency_text, rate_text, ratio_text};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// The format of a saved run.
pub const FORMAT: u32 = 1;

const TITLE: &str = "writes that survive their host";

const LEGEND: &str = "p50 with 64 outstanding is of the whole batch, and of the lag the time until \
    a follower has a put. Writes/s are those of a round until a follower has all of them. CPU per \
    write is of all processes of a target and of this one, until a follower has everything; a \
    follower alone applies as many writes in a second on a core as its time of a write goes into \
    one. Ratios are of the same round.";

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ReplicatedRun {
    pub replicated_format: u32,
    #[serde(flatten)]
    pub frame: RunFrame,
    /// Each target, and what its writes survive that are waited for.
    pub durability: Vec<(String, String)>,
    pub results: Vec<ReplicatedCaseResult>,
}

/// A case of a target.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ReplicatedCaseResult {
    pub case: String,
    pub target: String,
    pub rounds: Vec<CaseRound>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CaseRound {
    /// The median time of a step in nanoseconds, and the time that one of a hundred exceeds.
    pub p50_ns: u64,
    pub p99_ns: u64,
    /// Writes per second.
    pub rate: f64,
    /// Processor time of all processes per write, in nanoseconds.
    pub cpu_ns: f64,
    /// Processor time of a follower per write, in nanoseconds.
    pub follower_ns: Option<f64>,
}

impl ReplicatedCaseResult {
    fn figures(&self, of: impl Fn(&CaseRound) -> f64) -> RoundMeasurements {
        RoundMeasurements::new(self.rounds.iter().map(of))
    }

    /// The median times as multiples of those of the same rounds of another target.
    fn ratios(&self, other: &Self) -> RoundMeasurements {
        let pairs = self.rounds.iter().zip(&other.rounds);
        let p50 = |round: &CaseRound| as_f64(round.p50_ns.max(1));
        RoundMeasurements::new(pairs.map(|(one, other)| p50(one) / p50(other)))
    }
}

fn range_text(figures: &RoundMeasurements, text: fn(f64) -> String) -> String {
    format!("{} to {}", text(figures.min()), text(figures.max()))
}

fn table(run: &ReplicatedRun) -> ReportTable {
    let columns = "writes of 1 KiB|target|>p50|>p99|>writes/s|rounds|>CPU per write|>of a follower\
                   |>p50 to the first cluster|rounds";
    let mut table = ReportTable::new(columns);
    let mut case = "";
    for result in &run.results {
        if case != result.case && !case.is_empty() {
            table.rule();
        }
        case = &result.case;
        let is_ours =
            |one: &&ReplicatedCaseResult| one.case == case && one.target.starts_with("cluster");
        let ours = run.results.iter().find(is_ours).map(|ours| result.ratios(ours));
        let time = |of: fn(&CaseRound) -> f64| latency_text(result.figures(of).median());
        let rate = result.figures(|round| round.rate);
        let follows = result.rounds.iter().all(|round| round.follower_ns.is_some());
        let follower = || time(|round| round.follower_ns.unwrap_or_default());
        table.row(vec![
            case.to_owned(),
            result.target.clone(),
            time(|round| as_f64(round.p50_ns)),
            time(|round| as_f64(round.p99_ns)),
            rate_text(rate.median()),
            range_text(&rate, rate_text),
            time(|round| round.cpu_ns),
            follows.then(follower).unwrap_or_default(),
            ours.as_ref().map_or_else(String::new, |ratios| ratio_text(ratios.median())),
            ours.as_ref().map_or_else(String::new, |ratios| range_text(ratios, ratio_text)),
        ]);
    }
    table
}

/// The tables for a terminal.
pub fn text(run: &ReplicatedRun) -> String {
    let mut text = format!("{TITLE}\n\ndurability of a write that is waited for:\n");
    for (target, what) in &run.durability {
        let _ = writeln!(text, "  {target:<12} {what}");
    }
    text.push_str(&run.frame.alarms_text());
    text.extend(["\n", &table(run).text(), LEGEND, "\n"]);
    text + &run.frame.end_text()
}

/// The page.
pub fn page(run: &ReplicatedRun) -> Page {
    let blocks = run.frame.blocks(vec![
        HtmlBlock::Table(table(run)),
        HtmlBlock::Text(LEGEND.to_owned()),
        HtmlBlock::heading("Durability of a write that is waited for"),
        HtmlBlock::Facts(run.durability.clone()),
    ]);
    Page { title: TITLE.to_owned(), lead: "Replicated writes of 1 KiB.".to_owned(), blocks }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_those_of_the_same_round() {
        let of = |p50_ns: [u64; 2]| ReplicatedCaseResult {
            rounds: p50_ns.map(|p50_ns| CaseRound { p50_ns, ..CaseRound::default() }).to_vec(),
            ..ReplicatedCaseResult::default()
        };
        let ratios = of([10, 60]).ratios(&of([20, 30]));
        assert_eq!((ratios.min(), ratios.max()), (0.5, 2.0));
    }
}
