//! The figures of the tables as JSON, for programs.

use super::notes;
use crate::figures::{self, Figures, LatencyClass, PERCENTILES, generator_share, reference};
use crate::result::{Check, Run};
use crate::spread::RoundMeasurements;
use crate::stat::Latencies;
use serde_json::{Map, Value, json};

/// The content of [`super::text`] as JSON. The saved run itself contains the whole histograms.
pub fn summary(run: &Run) -> Value {
    let all = figures::of(run);
    let first = reference(&all).map(|first| first.rates.median());
    let targets = all.iter().map(|figures| target(run, figures, first));
    json!({
        "command": run.command,
        "began_s": run.began_s,
        "machine": run.machine.iter().cloned().collect::<std::collections::BTreeMap<_, _>>(),
        "noise": run.noise,
        "workload": run.workload,
        "drive": run.load,
        "targets": targets.collect::<Vec<_>>(),
        "generator_share": generator_share(run, &all).map(|(_, share)| share),
        "caveats": notes::caveats(run, &all),
        "invalid": notes::alarms(run, &all),
        "is_partial": run.is_partial,
    })
}

fn target(run: &Run, figures: &Figures<'_>, first: Option<f64>) -> Value {
    let target = figures.target;
    let cost = figures.cost.map(|cost| {
        json!({
            "client_cpu_ns": cost.client_ns,
            "server_cpu_ns": cost.server_ns,
            "bytes_out": cost.bytes_out,
            "bytes_in": cost.bytes_in,
        })
    });
    let rates = Some(&figures.rates).filter(|rates| rates.count() > 0);
    json!({
        "name": target.name,
        "version": target.version,
        "settled": target.settled,
        "ways": target.ways,
        "steps_in_flight": run.steps_of(target),
        "declined": target.declined,
        "invalid": figures.errors(),
        "counts": figures.is_valid(),
        "operations": figures.ops,
        "operations_cut": figures.cut,
        "unsuccessful": figures.unsuccessful,
        "ops_per_s": rates.map(spread),
        "ratio_to_first": rates.zip(first).map(|(rates, first)| rates.median() / first),
        "times_prototype": figures::times_prototype(run, target).as_ref().map(spread),
        "latency": latency(&figures.latencies),
        "classes": figures.classes.iter().map(class).collect::<Vec<_>>(),
        "cost_per_operation": cost,
        "memory_bytes": target.memory_bytes,
        "memory_bytes_per_record": figures.memory_per_record(),
        "records": figures.records,
        "verified": target.verdict,
        "generator_is_right": target.checks.iter().all(Check::holds),
        "ramp": target.ramp,
        "sustained_ops_per_s": figures::sustained(target),
        "reconnects": target.reconnects,
    })
}

fn class(class: &LatencyClass) -> Value {
    json!({
        "name": class.name,
        "ops_per_s": spread(&class.rates),
        "latency": latency(&class.latencies),
    })
}

fn spread(spread: &RoundMeasurements) -> Value {
    json!({
        "median": spread.median(),
        "least": spread.min(),
        "most": spread.max(),
        "mean": spread.mean(),
        "mean_95": spread.interval_95(),
        "rounds": spread.count(),
    })
}

fn latency(latencies: &Latencies) -> Option<Map<String, Value>> {
    if latencies.count() == 0 {
        return None;
    }
    let percentile = |(name, percent): &(&str, f64)| {
        let name = name.replace('.', "");
        (format!("{name}_ns"), json!(latencies.percentile(*percent)))
    };
    let mut out: Map<String, Value> = PERCENTILES.iter().map(percentile).collect();
    out.insert("max_ns".to_owned(), json!(latencies.max()));
    out.insert("operations".to_owned(), json!(latencies.count()));
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::run;

    #[test]
    fn a_program_finds_the_figures_of_the_tables() {
        let summary = summary(&run());
        let region = &summary["targets"][0];
        assert!((region["ops_per_s"]["most"].as_f64().unwrap() - 2e6).abs() < 1.0);
        assert_eq!(region["latency"]["operations"], 100_000);
        assert!(region["latency"]["p9999_ns"].is_u64() && region["counts"] == true);
        assert_eq!(region["classes"][1]["name"], "attach");
        assert_eq!(summary["targets"][2]["counts"], false);
        assert!(region["times_prototype"].is_null(), "no prototype ran");
        assert_eq!(summary["targets"][3]["declined"], "it has no unique tag");
        assert!(summary["targets"][3]["latency"].is_null());
        assert!(summary["invalid"][0].as_str().unwrap().contains("geode"));
    }
}
