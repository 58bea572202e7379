//! The results of a preset's cases, in one table and against the goals.

use super::{Case, Goal, Preset};
use crate::figures::{self, Figures};
use crate::result::Run;
use crate::spread::RoundMeasurements;
use crate::stat::median;
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
        let load = &self.run.load;
        let clients = figures::as_f64(load.clients.saturating_sub(load.background) as u64);
        let rounds = result.rounds.iter().filter(|round| round.done() > 0);
        let times: Vec<f64> = rounds.map(|round| clients * 1e9 / round.rate()).collect();
        (!times.is_empty()).then_some(times)
    }

    /// The mean nanoseconds of an operation of a class, for each round of a target.
    fn class_times(&self, target: &str, class: &str) -> Option<RoundMeasurements> {
        let result = self.run.targets.iter().find(|result| result.name == target)?;
        let classes = result.rounds.iter().flat_map(|round| &round.classes);
        let own = classes.filter(|one| one.name == class);
        Some(RoundMeasurements::new(own.filter_map(|one| mean(&one.latencies))))
    }
}

/// The mean of latencies and their counts; `None` if there are none.
fn mean(latencies: &[(u64, u64)]) -> Option<f64> {
    let count: u64 = latencies.iter().map(|(_, count)| count).sum();
    let sum: f64 =
        latencies.iter().map(|(ns, count)| figures::as_f64(*ns) * figures::as_f64(*count)).sum();
    (count > 0).then(|| sum / figures::as_f64(count))
}

/// The figures of all cases: a row for each case and target.
pub fn summary(all: &[Measured]) -> ReportTable {
    let mut table = ReportTable::new(
        "case|target|>op/s|>least|>most|>time/op|>p99|>server/op|>record|>vs first|>x prototype|",
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
    let has_limit = all.iter().any(|one| one.figures(figures::PROTOTYPE).is_some());
    if has_limit { table } else { table.without(&["x prototype"]) }
}

fn row(title: String, measured: &Measured, one: &Figures<'_>, first: f64) -> Vec<String> {
    let name = one.target.name.clone();
    let Some(times) = measured.times(&name) else {
        let why = if one.target.declined.is_some() { "declined" } else { "INVALID" };
        let mut cells = vec![title, name];
        cells.resize(11, "-".to_owned());
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
        latency_text(RoundMeasurements::new(times).median()),
        latency_text(figures::as_f64(one.latencies.percentile(99.0))),
        server,
        bytes,
        ratio,
        figures::times_prototype(&measured.run, one.target).map_or_else(none, |x| with_spread(&x)),
        state.to_owned(),
    ]
}

/// A ratio with its least and most.
fn with_spread(ratios: &RoundMeasurements) -> String {
    let [median, least, most] =
        [ratios.median(), ratios.min(), ratios.max()].map(|ratio| format!("{ratio:.2}"));
    if ratios.count() > 1 { format!("{median} ({least} to {most})") } else { median }
}

/// Each goal with the figure that was reached; `None` if the cases have no goals.
pub fn goals(all: &[Measured]) -> Option<ReportTable> {
    let mut table = ReportTable::new("case|goal|>reached|>least|>most|");
    for measured in all {
        for goal in measured.case.goals {
            let reached = reached(goal, measured, all).filter(|reached| reached.count() > 0);
            let verdict = match &reached {
                Some(reached) if is_met(goal, reached.median()) => "met",
                Some(_) => "missed",
                None => "not measured",
            };
            let cell = |of: fn(&RoundMeasurements) -> f64, rounds_min: usize| {
                let reached = reached.as_ref().filter(|reached| reached.count() >= rounds_min);
                reached.map_or_else(|| "-".to_owned(), |reached| reached_text(goal, of(reached)))
            };
            table.row(vec![
                measured.title(),
                text(goal),
                cell(RoundMeasurements::median, 1),
                cell(RoundMeasurements::min, 2),
                cell(RoundMeasurements::max, 2),
                verdict.to_owned(),
            ]);
        }
    }
    (!table.rows.is_empty()).then_some(table)
}

/// The figures that a goal bounds, of each round where rounds have one. Ratios of targets of a run
/// are those of pairs of rounds, so that a machine that is slow for a round does not change them.
fn reached(goal: &Goal, measured: &Measured, all: &[Measured]) -> Option<RoundMeasurements> {
    let one = |figure: f64| RoundMeasurements::new([figure]);
    let in_case = |target, case: &str| {
        let name = measured.preset.name;
        all.iter().find(|other| other.preset.name == name && other.case.name == case)?.times(target)
    };
    match *goal {
        Goal::NsAtMost(target, _) => measured.times(target).map(RoundMeasurements::new),
        Goal::RateAtLeast(target, _) => Some(measured.figures(target)?.rates),
        Goal::TimesPeer(target, peer, _) => {
            let (own, other) = (measured.times(target)?, measured.times(peer)?);
            Some(ratios(&other, &own))
        }
        Goal::TimePeer(target, peer, _) => {
            let (own, other) = (measured.times(target)?, measured.times(peer)?);
            Some(ratios(&own, &other))
        }
        // Their rounds are not at the same time: only medians are compared.
        Goal::TimesCase(target, case, _) => {
            Some(one(median(&measured.times(target)?) / median(&in_case(target, case)?)))
        }
        Goal::TimesSum(target, [first, second], _) => {
            let both = median(&in_case(target, first)?) + median(&in_case(target, second)?);
            Some(one(median(&measured.times(target)?) / both))
        }
        Goal::ServerTimePeer(target, peer, _) => {
            let time = |name| measured.figures(name)?.cost.map(|cost| cost.server_ns);
            Some(one(time(target)? / time(peer)?))
        }
        Goal::ServerNsAtMost(target, _) => {
            measured.figures(target)?.cost.map(|cost| one(cost.server_ns))
        }
        Goal::ClassNsAtMost(target, class, _) => measured.class_times(target, class),
        Goal::BytesAtMost(target, _) => measured.figures(target)?.memory_per_record().map(one),
    }
}

/// The ratio of each pair; that of the medians if there are not as many of both.
fn ratios(dividends: &[f64], divisors: &[f64]) -> RoundMeasurements {
    if dividends.len() != divisors.len() {
        return RoundMeasurements::new([median(dividends) / median(divisors)]);
    }
    RoundMeasurements::new(dividends.iter().zip(divisors).map(|(a, b)| a / b))
}

fn is_met(goal: &Goal, reached: f64) -> bool {
    match *goal {
        Goal::NsAtMost(_, most)
        | Goal::TimePeer(_, _, most)
        | Goal::TimesCase(_, _, most)
        | Goal::TimesSum(_, _, most)
        | Goal::ServerTimePeer(_, _, most)
        | Goal::ServerNsAtMost(_, most)
        | Goal::ClassNsAtMost(_, _, most)
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
        Goal::TimePeer(target, peer, most) => {
            format!("{target}: at most {most} times the time of {peer}")
        }
        Goal::TimesSum(target, [first, second], most) => {
            format!("{target}: at most {most} times the time of {first} and {second}, other runs")
        }
        Goal::TimesCase(target, case, most) => {
            format!("{target}: at most {most} times the time of {case}, another run")
        }
        Goal::ServerTimePeer(target, peer, most) => {
            format!("{target}: at most {most} times the server time of {peer}")
        }
        Goal::ServerNsAtMost(target, most) => {
            format!("{target}: at most {} of its server", latency_text(most))
        }
        Goal::ClassNsAtMost(target, class, most) => {
            format!("{target}: at most {} on average for {class}", latency_text(most))
        }
        Goal::BytesAtMost(target, most) => format!("{target}: at most {most} bytes a record"),
    }
}

fn reached_text(goal: &Goal, reached: f64) -> String {
    match goal {
        Goal::NsAtMost(..) | Goal::ServerNsAtMost(..) | Goal::ClassNsAtMost(..) => {
            latency_text(reached)
        }
        Goal::RateAtLeast(..) => rate_text(reached),
        Goal::TimesPeer(..)
        | Goal::TimePeer(..)
        | Goal::TimesCase(..)
        | Goal::TimesSum(..)
        | Goal::ServerTimePeer(..) => ratio_text(reached),
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
        | Goal::ClassNsAtMost(target, _, _)
        | Goal::BytesAtMost(target, _) => (target, None),
        Goal::TimesPeer(target, peer, _)
        | Goal::TimePeer(target, peer, _)
        | Goal::ServerTimePeer(target, peer, _) => (target, Some(peer)),
        Goal::TimesSum(target, parts, _) => {
            assert!(parts.iter().all(|case| cases.contains(case)), "{goal:?}: no such case");
            (target, None)
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
            Goal::TimePeer("region", "redis", 0.01),
            Goal::TimesSum("region", ["a", "a"], 0.5),
            Goal::TimesSum("region", ["a", "b"], 9.0),
            Goal::ClassNsAtMost("region", "attach", 1e9),
            Goal::ClassNsAtMost("region", "detach of nothing", 1e9),
        ];
        let all = [measured(GOALS)];
        let table = goals(&all).unwrap();
        let verdicts: Vec<&str> =
            table.rows.iter().filter_map(|row| row.last().map(String::as_str)).collect();
        let first = ["met", "missed", "met", "not measured", "met"];
        let last = ["met", "met", "not measured", "met", "not measured"];
        assert_eq!(verdicts, [first, last].concat());
        // Both have 20,000 operations a round: in 10 and in 1,200 ms.
        assert_eq!(table.rows[5][2..5], ["0.0083 x", "0.0083 x", "0.0083 x"]);
        assert_eq!(table.rows[4][3..5], ["-", "-"], "one figure has no spread");
        assert_eq!(table.rows[2][3..5], ["-", "-"], "runs have no pairs of rounds");
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
