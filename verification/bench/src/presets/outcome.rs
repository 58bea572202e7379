//! The results of a preset's cases, in one table and against the goals.

use super::{Case, Goal, Preset};
use crate::figures::{self, Figures};
use crate::result::Run;
use crate::spread::Spread;
use crate::table::{ReportTable, latency_text, rate_text, ratio_text};

/// A case that was run.
#[derive(Debug)]
pub struct Measured {
    pub preset: Preset,
    pub case: Case,
    pub run: Run,
}

impl Measured {
    fn title(&self) -> String {
        if self.preset.cases.len() == 1 {
            self.preset.name.to_owned()
        } else {
            format!("{}/{}", self.preset.name, self.case.name)
        }
    }

    fn figures(&self, target: &str) -> Option<Figures<'_>> {
        let result = self.run.targets.iter().find(|result| result.name == target)?;
        Some(Figures::new(result)).filter(|figures| figures.ops > 0)
    }

    /// Nanoseconds that one client needs for an operation, for each round of a target.
    fn times(&self, target: &str) -> Option<Vec<f64>> {
        let result = self.run.targets.iter().find(|result| result.name == target)?;
        let drive = &self.run.drive;
        let clients = figures::as_f64(drive.clients.saturating_sub(drive.background) as u64);
        let rounds = result.rounds.iter().filter(|round| round.done() > 0);
        let times: Vec<f64> = rounds.map(|round| clients * 1e9 / round.rate()).collect();
        (!times.is_empty()).then_some(times)
    }
}

/// The figures of all cases: a row for each case and target.
pub fn summary(all: &[Measured]) -> ReportTable {
    let mut table = ReportTable::new(
        "case|target|>op/s|>least|>most|>time/op|>p99|>server/op|>record|>vs first|",
    );
    for measured in all {
        let figures = figures::of(&measured.run);
        let first = figures::reference(&figures).map_or(0.0, |first| first.rates.median());
        for (number, one) in figures.iter().enumerate() {
            let title = if number == 0 { measured.title() } else { String::new() };
            table.row(row(title, measured, one, first));
        }
        table.rule();
    }
    table
}

fn row(title: String, measured: &Measured, one: &Figures<'_>, first: f64) -> Vec<String> {
    let name = one.target.name.clone();
    let Some(times) = measured.times(&name) else {
        let why = if one.target.declined.is_some() { "declined" } else { "INVALID" };
        let mut cells = vec![title, name];
        cells.resize(10, "-".to_owned());
        cells.push(why.to_owned());
        return cells;
    };
    let rate = one.rates.median();
    let ratio = if first > 0.0 { ratio_text(rate / first) } else { "-".to_owned() };
    let none = || "-".to_owned();
    let server = one.cost.filter(|cost| cost.server_ns > 0.0);
    let server = server.map_or_else(none, |cost| latency_text(cost.server_ns));
    let bytes = one.memory_per_record().map_or_else(none, |bytes| format!("{bytes:.0} B"));
    let state = if one.is_valid() { "" } else { "INVALID" };
    vec![
        title,
        name,
        rate_text(rate),
        rate_text(one.rates.min()),
        rate_text(one.rates.max()),
        latency_text(Spread::new(times).median()),
        latency_text(figures::as_f64(one.latencies.percentile(99.0))),
        server,
        bytes,
        ratio,
        state.to_owned(),
    ]
}

/// Each goal with the figure that was reached; `None` if the cases have no goals.
pub fn goals(all: &[Measured]) -> Option<ReportTable> {
    let mut table = ReportTable::new("case|goal|>reached|");
    for measured in all {
        for goal in measured.case.goals {
            let reached = reached(goal, measured, all);
            let verdict = match reached {
                Some(reached) if is_met(goal, reached) => "met",
                Some(_) => "missed",
                None => "not measured",
            };
            table.row(vec![
                measured.title(),
                text(goal),
                reached.map_or_else(|| "-".to_owned(), |reached| reached_text(goal, reached)),
                verdict.to_owned(),
            ]);
        }
    }
    (!table.rows.is_empty()).then_some(table)
}

/// The figure that a goal bounds. Ratios are medians over pairs of rounds, so that a machine that
/// is slow for a round does not change them.
fn reached(goal: &Goal, measured: &Measured, all: &[Measured]) -> Option<f64> {
    let median = |samples: Vec<f64>| Spread::new(samples).median();
    match *goal {
        Goal::NsAtMost(target, _) => measured.times(target).map(median),
        Goal::RateAtLeast(target, _) => Some(measured.figures(target)?.rates.median()),
        Goal::TimesPeer(target, peer, _) => {
            let (own, other) = (measured.times(target)?, measured.times(peer)?);
            Some(ratio(&other, &own))
        }
        Goal::TimesCase(target, case, _) => {
            let other = all.iter().find(|other| {
                other.preset.name == measured.preset.name && other.case.name == case
            })?;
            Some(ratio(&measured.times(target)?, &other.times(target)?))
        }
        Goal::ServerTimePeer(target, peer, _) => {
            let time = |name| measured.figures(name)?.cost.map(|cost| cost.server_ns);
            Some(time(target)? / time(peer)?)
        }
        Goal::ServerNsAtMost(target, _) => {
            measured.figures(target)?.cost.map(|cost| cost.server_ns)
        }
        Goal::BytesAtMost(target, _) => measured.figures(target)?.memory_per_record(),
    }
}

fn ratio(dividends: &[f64], divisors: &[f64]) -> f64 {
    if dividends.len() != divisors.len() {
        let median = |samples: &[f64]| Spread::new(samples.iter().copied()).median();
        return median(dividends) / median(divisors);
    }
    Spread::new(dividends.iter().zip(divisors).map(|(a, b)| a / b)).median()
}

fn is_met(goal: &Goal, reached: f64) -> bool {
    match *goal {
        Goal::NsAtMost(_, most)
        | Goal::TimesCase(_, _, most)
        | Goal::ServerTimePeer(_, _, most)
        | Goal::ServerNsAtMost(_, most)
        | Goal::BytesAtMost(_, most) => reached <= most,
        Goal::RateAtLeast(_, least) | Goal::TimesPeer(_, _, least) => reached >= least,
    }
}

fn text(goal: &Goal) -> String {
    match *goal {
        Goal::NsAtMost(target, most) => format!("{target}: at most {}", latency_text(most)),
        Goal::RateAtLeast(target, least) => {
            format!("{target}: at least {} op/s", rate_text(least))
        }
        Goal::TimesPeer(target, peer, least) => {
            format!("{target}: at least {least} times {peer}")
        }
        Goal::TimesCase(target, case, most) => {
            format!("{target}: at most {most} times the time of {case}")
        }
        Goal::ServerTimePeer(target, peer, most) => {
            format!("{target}: at most {most} times the server time of {peer}")
        }
        Goal::ServerNsAtMost(target, most) => {
            format!("{target}: at most {} of its server", latency_text(most))
        }
        Goal::BytesAtMost(target, most) => format!("{target}: at most {most} bytes a record"),
    }
}

fn reached_text(goal: &Goal, reached: f64) -> String {
    match goal {
        Goal::NsAtMost(..) | Goal::ServerNsAtMost(..) => latency_text(reached),
        Goal::RateAtLeast(..) => rate_text(reached),
        Goal::TimesPeer(..) | Goal::TimesCase(..) | Goal::ServerTimePeer(..) => ratio_text(reached),
        Goal::BytesAtMost(..) => format!("{reached:.0}"),
    }
}

/// Panics if a goal names a case or a target that its preset does not have.
#[cfg(test)]
pub(super) fn check_names(
    goal: &Goal,
    cases: &std::collections::BTreeSet<&str>,
    targets: &[String],
) {
    let (target, other) = match *goal {
        Goal::NsAtMost(target, _)
        | Goal::RateAtLeast(target, _)
        | Goal::ServerNsAtMost(target, _)
        | Goal::BytesAtMost(target, _) => (target, None),
        Goal::TimesPeer(target, peer, _) | Goal::ServerTimePeer(target, peer, _) => {
            (target, Some(peer))
        }
        Goal::TimesCase(target, case, _) => {
            assert!(cases.contains(case), "{goal:?}: no such case");
            (target, None)
        }
    };
    for name in [Some(target), other].into_iter().flatten() {
        let is_default = targets.is_empty() && ["region", "node", "redis"].contains(&name);
        assert!(is_default || targets.iter().any(|target| target == name), "{goal:?}: no {name}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    fn measured(goals: &'static [Goal]) -> Measured {
        let case = Case { name: "a", words: "", goals };
        let preset = Preset { name: "p", workload: "ue-signalling", about: "", cases: &[] };
        Measured { preset, case, run: sample::run() }
    }

    #[test]
    fn a_goal_is_met_missed_or_not_measured() {
        const GOALS: &[Goal] = &[
            Goal::RateAtLeast("region", 1e3),
            Goal::TimesPeer("redis", "region", 1e6),
            Goal::TimesCase("region", "a", 1.0),
            Goal::NsAtMost("lmdb", 1.0),
            Goal::BytesAtMost("region", 1024.0),
        ];
        let all = [measured(GOALS)];
        let table = goals(&all).unwrap();
        let verdicts: Vec<&str> =
            table.rows.iter().filter_map(|row| row.last().map(String::as_str)).collect();
        assert_eq!(verdicts, ["met", "missed", "met", "not measured", "met"]);
        assert!(goals(&[measured(&[])]).is_none());
    }

    #[test]
    fn the_summary_has_a_row_for_each_target() {
        let all = [measured(&[])];
        let table = summary(&all);
        let rows = table.rows.iter().filter(|row| !row.is_empty()).count();
        assert_eq!(rows, all[0].run.targets.len());
        assert!(table.text().contains("declined"), "{}", table.text());
    }
}
