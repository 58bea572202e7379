//! The sentences of a report: what was run, reasons why its figures do not count, and caveats.

use super::tables::NONE;
use crate::figures::{Figures, as_f64, generator_share};
use crate::noise;
use crate::parameters::Arrivals;
use crate::random::AccessDistribution;
use crate::result::{About, CUT, LoadSettings, Noise, Run, TargetResult};
use crate::table::{count_text, counted, latency_text, rate_text};
use std::fmt::Write as _;

/// The alarm of a run that was stopped early.
pub(super) const PARTIAL: &str =
    "This run was stopped before its end: the trials that were complete by then are shown.";

/// The heading of the alarms.
pub(super) const INVALID: &str = "INVALID: figures of this run do not count";

/// Operations below which the 99.99th percentile rests on fewer than ten of them.
const OPS_FOR_P9999: u64 = 100_000;

/// The workload with its parameters, in one line.
pub(super) fn heading(run: &Run) -> String {
    let About { name, title, parameters, .. } = &run.workload;
    let name = match parameters.variant.as_str() {
        "" => name.clone(),
        variant => format!("{name}, variant {variant}"),
    };
    let spread = match parameters.spread {
        AccessDistribution::Uniform => "uniform",
        AccessDistribution::Zipfian => "zipfian",
    };
    let records = counted(parameters.records, "record");
    format!("{title} ({name}); {records}, {spread}, seed {}", parameters.seed)
}

/// How the operations were issued, in one line.
pub(super) fn load_line(run: &Run) -> String {
    let load = &run.load;
    let count = |count: usize| count_text(count as u64);
    let together = match load.depth {
        0 | 1 => "one operation at a time".to_owned(),
        depth => format!("{} operations sent together", count(depth)),
    };
    let mut out = format!(
        "{} client process{}, {together}; {} of {} for each client, after {} to warm up",
        count(load.clients),
        if load.clients == 1 { "" } else { "es" },
        counted(load.rounds as u64, "round"),
        counted(load.ops, "operation"),
        count_text(load.warm_up)
    );
    // Writing to a string cannot fail.
    let _ = match (load.rate, load.think_us) {
        (Some(rate), _) => {
            let rate = rate_text(rate);
            let arrivals = arrivals(load.arrivals);
            write!(out, "; open loop at {rate} op/s {arrivals}, latency from the intended start")
        }
        (None, 0) => write!(out, "; closed loop"),
        (None, think_us) => write!(out, "; closed loop with {think_us} us between operations"),
    };
    for more in steps(run).into_iter().chain(further(load)) {
        let _ = write!(out, "; {more}");
    }
    let _ = match &load.pinning {
        Some((clients, servers)) => {
            write!(out, "; clients on {}, servers on {}", processors(clients), processors(servers))
        }
        None => write!(out, "; no process is bound to a processor"),
    };
    out
}

/// How many steps of each client were in flight at once, with the targets it applies to.
fn steps(run: &Run) -> Option<String> {
    if run.load.depth < 2 {
        return None;
    }
    let mut groups: Vec<(Option<usize>, Vec<&str>)> = Vec::new();
    for target in run.targets.iter().filter(|target| !target.rounds.is_empty()) {
        let steps = run.steps_of(target);
        match groups.iter_mut().find(|(other, _)| *other == steps) {
            Some((_, names)) => names.push(&target.name),
            None => groups.push((steps, vec![&target.name])),
        }
    }
    let each = groups.iter().map(|(steps, names)| {
        let how = match steps {
            None => "unknown".to_owned(),
            Some(1) => "one after the other".to_owned(),
            Some(steps) => format!("{steps} at once, overlapping"),
        };
        format!("{how} ({})", names.join(", "))
    });
    let each: Vec<String> = each.collect();
    (!each.is_empty()).then(|| format!("steps of a client: {}", each.join("; ")))
}

fn processors(all: &[usize]) -> String {
    let numbers: Vec<String> = all.iter().map(ToString::to_string).collect();
    format!("processor{} {}", if all.len() == 1 { "" } else { "s" }, numbers.join(", "))
}

/// The date and time of a Unix timestamp (H. Hinnant's `civil_from_days`).
pub(super) fn date_text(unix_s: u64) -> String {
    // Days since March 1 of the year 0, so that the leap day is the last day of a year.
    let days = unix_s / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let (year, minutes) = (era * 400 + year + next, unix_s % 86_400 / 60);
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", minutes / 60, minutes % 60)
}

const fn arrivals(arrivals: Arrivals) -> &'static str {
    match arrivals {
        Arrivals::Constant => "at equal intervals",
        Arrivals::Poisson => "at random (Poisson)",
        Arrivals::Bursts => "in bursts",
    }
}

/// Settings that differ from the defaults.
fn further(load: &LoadSettings) -> Vec<String> {
    let ramp = load.ramp_p99_ns.map(|bound_ns| {
        let bound = latency_text(as_f64(bound_ns));
        format!("then a ramp {}, for a p99 below {bound}", arrivals(load.arrivals))
    });
    let round = load.round_time_s.map(|seconds| format!("rounds of at most {seconds} s"));
    let layout = load.layout.as_ref().map(|layout| format!("layout {layout}"));
    let kill = load.kill.as_ref().map(|name| format!("{name} killed in the middle round"));
    let fault = load.fault.map(|fault| format!("injected fault: {fault}"));
    let unsettled = load.is_unsettled.then(|| "targets left as they were loaded".to_owned());
    let connections =
        (load.connections > 1).then(|| format!("{} connections per client", load.connections));
    let background = (load.background > 0)
        .then(|| format!("{} in the background", counted(load.background as u64, "client")));
    let polling = load.is_busy_polling.then(|| "nodes and rings busy-poll".to_owned());
    [connections, background, polling, round, ramp, layout, kill, fault, unsettled]
        .into_iter()
        .flatten()
        .collect()
}

/// Reasons why the whole run does not count.
pub(super) fn alarms(run: &Run, all: &[Figures<'_>]) -> Vec<String> {
    let mut out = run.invalid.clone();
    for figures in all {
        let name = &figures.target.name;
        for error in figures.errors() {
            // The reasons of the run include those of its targets.
            if !out.iter().any(|line| line.contains(name) && line.contains(&error)) {
                out.push(format!("{name}: {error}"));
            }
        }
    }
    out
}

/// The machine's noise in one sentence.
pub(super) fn noise(noise: &Noise) -> String {
    if noise.loops == 0 {
        return "not measured".to_owned();
    }
    let load = if noise.load.is_finite() { format!("{:.2}", noise.load) } else { NONE.to_owned() };
    format!(
        "fixed work, {} times: {} (median), {} (p99), {} (longest); load average {load}",
        count_text(noise.loops),
        latency_text(as_f64(noise.p50_ns)),
        latency_text(as_f64(noise.p99_ns)),
        latency_text(as_f64(noise.max_ns)),
    )
}

/// Caveats: those that the run recorded, and those that follow from its figures.
pub(super) fn caveats(run: &Run, all: &[Figures<'_>]) -> Vec<String> {
    let mut out = run.caveats.clone();
    let known = run.machine.iter().find(|(name, _)| name == "cores online");
    let processors = known.and_then(|(_, value)| value.parse().ok()).unwrap_or(1);
    out.extend(noise::warning(&run.noise, processors));
    if let Some((target, share)) = generator_share(run, all) {
        out.push(format!(
            "generator and driver alone, measured with the target null, take {:.1} % of the time \
             of an operation on the fastest target ({target})",
            100.0 * share
        ));
    }
    out.extend(settled(run, all));
    out.extend(all.iter().filter_map(|figures| behind(run, figures)));
    out.extend(all.iter().filter_map(cut));
    if run.load.depth > 1 && run.load.rate.is_none() {
        out.push(
            "each of the operations that are sent together has the latency of the whole step"
                .to_owned(),
        );
    }
    if all.iter().any(|figures| figures.unsuccessful > 0) {
        out.push(
            "operations without effect are not errors: they found nothing to do, as the workload \
             allows"
                .to_owned(),
        );
    }
    let few = all.iter().filter(|f| f.ops > 0).map(|f| f.latencies.count()).min();
    if let Some(few) = few.filter(|few| *few < OPS_FOR_P9999) {
        out.push(format!(
            "p99.99 rests on {:.0} of {} in the target with the fewest: do not rely on it",
            (as_f64(few) / 1e4).max(1.0),
            counted(few, "operation")
        ));
    }
    out
}

/// A target's version, and what was done to it after loading.
pub(super) fn about(target: &TargetResult) -> String {
    match &target.settled {
        Some(settled) => format!("{}; after loading: {settled}", target.version),
        None => target.version.clone(),
    }
}

/// What was done to targets after loading. Targets with the same text share one sentence.
fn settled(run: &Run, all: &[Figures<'_>]) -> Vec<String> {
    if run.load.is_unsettled {
        let all = "steps after loading were skipped for all targets (--no-settle), also where \
                   their manuals advise them";
        return vec![all.to_owned()];
    }
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    for target in all.iter().map(|figures| figures.target) {
        let Some(settled) = target.settled.as_deref() else { continue };
        match groups.iter_mut().find(|(words, _)| *words == settled) {
            Some((_, names)) => names.push(&target.name),
            None => groups.push((settled, vec![&target.name])),
        }
    }
    let line = |(settled, names): (&str, Vec<&str>)| {
        format!(
            "after loading, {} did as their manuals advise: {settled}; other targets have no such \
             step (--no-settle skips it)",
            names.join(", ")
        )
    };
    groups.into_iter().map(line).collect()
}

/// The smallest share of an offered rate that counts as keeping up. The last operations of a round
/// end after it, and random starts vary by a few per cent.
const KEPT_UP: f64 = 0.9;

/// A target that did not reach the offered rate: its latencies are those of a queue.
fn behind(run: &Run, figures: &Figures<'_>) -> Option<String> {
    let share = figures.rates.median() / run.load.rate.filter(|_| figures.ops > 0)?;
    (share < KEPT_UP).then(|| {
        format!(
            "{}: reached {:.0} % of the offered rate, so its queue grew and its latencies depend \
             on the length of the round: offer a lower rate (--ramp finds it)",
            figures.target.name,
            100.0 * share
        )
    })
}

/// The effect of a lost connection on the latencies.
fn cut(figures: &Figures<'_>) -> Option<String> {
    let class = figures.classes.iter().find(|class| class.name == CUT)?;
    Some(format!(
        "{}: {} in flight when a connection was lost count as a class of their own ({CUT}) and in \
         no rate or cost; the longest took {}, until the client had reconnected and knew what had \
         been done",
        figures.target.name,
        counted(class.latencies.count(), "operation"),
        latency_text(as_f64(class.latencies.max()))
    ))
}

/// The emulated features of the measured targets.
pub(super) fn emulations(all: &[Figures<'_>]) -> Vec<String> {
    let took_part = all.iter().filter(|figures| figures.target.declined.is_none());
    let each = took_part.flat_map(|figures| {
        let target = figures.target;
        let ways = target.ways.iter().filter(|(_, way)| way != "native");
        ways.map(|(ability, way)| format!("{}, {ability}: {way}", target.name))
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures;
    use crate::result::ClassResult;

    /// The report of the smallest possible run.
    #[test]
    fn a_single_operation_is_written_in_the_singular() {
        let mut run = crate::sample::run();
        (run.load.ops, run.load.rounds, run.workload.parameters.records) = (1, 1, 1);
        run.targets.truncate(1);
        let target = &mut run.targets[0];
        target.rounds.truncate(1);
        let class = |name: &str| ClassResult { name: name.to_owned(), latencies: vec![(900, 1)] };
        target.rounds[0].classes = vec![class(CUT)];
        let all = figures::of(&run);
        let text =
            [heading(&run), load_line(&run)].into_iter().chain(cut(&all[0])).collect::<Vec<_>>();
        let text = text.join("\n");
        for words in ["; 1 record, ", "1 round of 1 operation for", ": 1 operation in flight when"]
        {
            assert!(text.contains(words), "{words:?} is not in {text}");
        }
        run.targets[0].rounds[0].classes = vec![class("attach")];
        let all = figures::of(&run);
        let text = caveats(&run, &all).join("\n");
        assert!(text.contains("rests on 1 of 1 operation in"), "{text}");
    }

    #[test]
    fn overlapping_steps_are_reported_for_pipelined_runs() {
        let mut run = crate::sample::run();
        assert!(!load_line(&run).contains("steps of a client"), "one operation at a time");
        run.load.depth = 16;
        for round in &mut run.targets[1].rounds {
            round.steps = Some(4);
        }
        for round in &mut run.targets[2].rounds {
            round.steps = None;
        }
        let words = "steps of a client: one after the other (region, null); 4 at once, overlapping \
                     (redis); unknown (geode)";
        assert!(load_line(&run).contains(words), "{}", load_line(&run));
    }

    #[test]
    fn seconds_are_converted_to_a_date_without_a_panic() {
        assert_eq!(date_text(0), "1970-01-01 00:00 UTC");
        assert_eq!(date_text(951_782_399), "2000-02-28 23:59 UTC");
        assert_eq!(date_text(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(date_text(1_700_000_000), "2023-11-14 22:13 UTC");
        assert_eq!(date_text(1_735_689_599), "2024-12-31 23:59 UTC");
        assert!(date_text(u64::MAX).ends_with("UTC"));
    }
}
