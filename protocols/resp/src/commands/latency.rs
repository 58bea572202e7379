//! `LATENCY`.

#![expect(clippy::unnecessary_wraps, reason = "the function of a row has one form")]

use super::arg;
use crate::command_context::CommandContext;
use crate::latency::LatencySeries;
use crate::parse::Args;
use crate::reply::ReplyWriter;
use crate::reply::error_reply::CommandResult;
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
