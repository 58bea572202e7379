//! `LATENCY`.

#![expect(clippy::unnecessary_wraps, reason = "the function of a row has one form")]

use super::arg;
use crate::command_context::CommandContext;
use crate::latency::LatencySeries;
use crate::parse::Args;
use crate::reply::ReplyWriter;
use crate::reply::error_reply::{CommandResult, ErrorReply};
use nearstate_node::metrics::Distribution;
use nearstate_store::now_ms_coarse;
use std::fmt::Write as _;

fn int(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// `LATENCY LATEST`
pub(crate) fn latest(
    ctx: &mut CommandContext<'_>,
    _: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let all = ctx.server.latency.all();
    reply.array(all.len());
    for (event, series) in all {
        let (at, millis) =
            series.samples.back().map_or((0, 0), |last| (last.at_seconds, last.millis));
        reply.array(4);
        reply.bulk(event.as_bytes());
        reply.int(int(at));
        reply.int(int(millis));
        reply.int(int(series.millis_max));
    }
    Ok(())
}

/// `LATENCY HISTORY event`
pub(crate) fn history(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let series = ctx.server.latency.series(arg(args, 2)).unwrap_or_default();
    reply.array(series.samples.len());
    for sample in series.samples {
        reply.array(2);
        reply.int(int(sample.at_seconds));
        reply.int(int(sample.millis));
    }
    Ok(())
}

/// `LATENCY GRAPH event`
pub(crate) fn graph(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let Some(series) = ctx.server.latency.series(arg(args, 2)) else {
        return Err(ErrorReply::fixed(
            "ERR the event has no samples: LATENCY LATEST lists the events that have some",
        ));
    };
    let name = String::from_utf8_lossy(arg(args, 2)).into_owned();
    reply.verbatim(&chart(&name, &series, now_ms_coarse() / 1000));
    Ok(())
}

/// One line for each of the latest samples, with a bar relative to the longest of them.
fn chart(name: &str, series: &LatencySeries, now_seconds: u64) -> String {
    const LINES_MAX: usize = 80;
    const WIDTH: u64 = 50;
    let first = series.samples.len().saturating_sub(LINES_MAX);
    let shown = || series.samples.iter().skip(first);
    let high = shown().map(|sample| sample.millis).max().unwrap_or_default();
    let low = shown().map(|sample| sample.millis).min().unwrap_or_default();
    let mut text =
        format!("{name} - high {high} ms, low {low} ms (all time high {} ms)\n", series.millis_max);
    for sample in shown() {
        let bar = (sample.millis * WIDTH / high.max(1)).max(1);
        let bar = "#".repeat(usize::try_from(bar).unwrap_or_default());
        let ago = now_seconds.saturating_sub(sample.at_seconds);
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{ago:>8} s ago {bar} {} ms", sample.millis);
    }
    text
}

/// `LATENCY HISTOGRAM [command ..]`
pub(crate) fn histogram(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let requested: Vec<Vec<u8>> = args.from(2).iter().map(<[u8]>::to_ascii_lowercase).collect();
    let is_requested = |name: &str| {
        // The name of a container selects its subcommands.
        let container = name.split_once('|').map_or(name, |(container, _)| container);
        requested.is_empty()
            || requested.iter().any(|one| *one == name.as_bytes() || *one == container.as_bytes())
    };
    let mut all = ctx.server.stats.command_latencies();
    all.retain(|name, _| is_requested(name));
    reply.map(all.len());
    for (name, nanos) in all {
        reply.bulk(name.as_bytes());
        reply.map(2);
        reply.bulk(b"calls");
        reply.int(int(nanos.total()));
        reply.bulk(b"histogram_usec");
        let buckets = cumulative(&nanos);
        reply.map(buckets.len());
        for (micros, count) in buckets {
            reply.int(int(micros));
            reply.int(int(count));
        }
    }
    Ok(())
}

/// Powers of two in microseconds, each with the number of values up to it. Powers that add no value
/// are left out.
fn cumulative(nanos: &Distribution) -> Vec<(u64, u64)> {
    let mut buckets: Vec<(u64, u64)> = Vec::new();
    let mut count = 0;
    for (bound, more) in &nanos.counts {
        count += more;
        let micros = bound.div_ceil(1000).max(1).next_power_of_two();
        match buckets.last_mut() {
            Some(last) if last.0 == micros => last.1 = count,
            _ => buckets.push((micros, count)),
        }
    }
    buckets
}

/// `LATENCY RESET [event ..]`
pub(crate) fn reset(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let events = args.from(2);
    let latency = &ctx.server.latency;
    let count = if events.is_empty() {
        latency.reset_all()
    } else {
        events.iter().filter(|event| latency.reset(event)).count()
    };
    reply.count(count);
    Ok(())
}

/// `LATENCY DOCTOR`
pub(crate) fn doctor(
    ctx: &mut CommandContext<'_>,
    _: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let threshold = ctx.server.runtime.latency_threshold_ms();
    let mut text = if threshold == 0 {
        "Latency monitoring is disabled. `CONFIG SET latency-monitor-threshold 100` records \
         requests of at least 100 ms.\n"
            .to_owned()
    } else {
        format!("Requests of at least {threshold} ms are recorded.\n")
    };
    let all = ctx.server.latency.all();
    if all.is_empty() && threshold != 0 {
        text.push_str("No request was slow.\n");
    }
    for (event, series) in all {
        let (count, mean) = summary(&series);
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{event}: {count} seconds with slow requests, {mean} ms on average, {} ms at most. \
             SLOWLOG GET shows the requests.",
            series.millis_max
        );
    }
    reply.verbatim(&text);
    Ok(())
}

/// The number of samples and their mean.
fn summary(series: &LatencySeries) -> (usize, u64) {
    let count = series.samples.len();
    let sum: u64 = series.samples.iter().map(|sample| sample.millis).sum();
    (count, sum / u64::try_from(count.max(1)).unwrap_or(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::LatencyMonitor;
    use nearstate_node::metrics::Histogram;

    #[test]
    fn the_buckets_are_powers_of_two_with_cumulative_counts() {
        let nanos = Histogram::default();
        for value in [10, 900, 1_100, 1_900, 100_000] {
            nanos.record(value);
        }
        assert_eq!(cumulative(&nanos.snapshot()), [(1, 2), (2, 4), (128, 5)]);
        assert!(cumulative(&Distribution::default()).is_empty());
    }

    #[test]
    fn a_chart_has_a_bar_for_each_of_the_latest_samples() {
        let monitor = LatencyMonitor::default();
        monitor.add("command", 90, 100);
        (100..180).for_each(|second| monitor.add("command", second, second - 99));
        let text = chart("command", &monitor.series(b"command").unwrap(), 200);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "command - high 80 ms, low 1 ms (all time high 100 ms)");
        assert_eq!((lines.len(), lines[1]), (81, "     100 s ago # 1 ms"));
        assert!(lines[80].starts_with("      21 s ago ####"), "{}", lines[80]);
    }
}
