//! The findings as a table for a terminal, as JSON, and as CSV of every sequence average.

use super::Findings;
use super::orchestrate::{Experiment, Run};
use super::thesis::{self, Published};
use crate::legacy::protocol::{Kind, Mode};
use crate::table::{Align, Table, latency_text, rate_text, ratio_text};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// The commit that this was built from, where the builder said so.
pub const COMMIT: Option<&str> = option_env!("NEARSTATE_COMMIT");

/// Everything for a terminal.
pub fn text(findings: &Findings) -> String {
    let mut out = String::from("\n");
    out.push_str(&figures(findings).text());
    if let Some(table) = table_4(findings) {
        out.push_str(
            "\nThe thesis's Table 4 beside ours (mean ± standard deviation of sequence averages)\n",
        );
        out.push_str(&table.text());
    }
    let _ = write!(out, "\nmachine: {}\n", findings.machine.line());
    for (name, version) in &findings.versions {
        let _ = writeln!(out, "{name}: {version}");
    }
    for caveat in &findings.caveats {
        let _ = writeln!(out, "note: {caveat}");
    }
    out
}

/// All runs side by side: the targets of one kind of access below each other.
pub fn figures(findings: &Findings) -> Table {
    let mut table = Table::new(&[
        ("experiment", Align::Left),
        ("access", Align::Left),
        ("target", Align::Left),
        ("mean", Align::Right),
        ("st.dev.", Align::Right),
        ("p50", Align::Right),
        ("p99", Align::Right),
        ("p99.9", Align::Right),
        ("max", Align::Right),
        ("op/s", Align::Right),
        ("vs first", Align::Right),
    ]);
    for experiment in &findings.experiments {
        table.rule();
        let mut name = experiment.setting.name.as_str();
        for (kind, runs) in by_kind(experiment) {
            let mut access = kind.title();
            for run in runs {
                table.row(figure_row([name, access], run, ratio(experiment, run)));
                (name, access) = ("", "");
            }
        }
    }
    table
}

fn figure_row([experiment, access]: [&str; 2], run: &Run, ratio: Option<f64>) -> Vec<String> {
    let s = run.summary();
    let single = |ns: u64| latency_text(exact(ns));
    vec![
        experiment.to_owned(),
        access.to_owned(),
        run.target.clone(),
        latency_text(s.mean_ns),
        latency_text(s.deviation_ns),
        single(s.p50_ns),
        single(s.p99_ns),
        single(s.p999_ns),
        single(s.max_ns),
        rate_text(s.ops_per_s),
        ratio.map_or_else(|| "-".to_owned(), ratio_text),
    ]
}

#[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
fn exact(ns: u64) -> f64 {
    ns as f64
}

/// The runs of an experiment by kind of access, kinds and targets in their order.
pub fn by_kind(experiment: &Experiment) -> Vec<(Kind, Vec<&Run>)> {
    let of = |kind| experiment.runs.iter().filter(move |r| r.kind == kind).collect::<Vec<_>>();
    Kind::ALL.into_iter().map(|k| (k, of(k))).filter(|(_, runs)| !runs.is_empty()).collect()
}

/// How many times the mean of the first target this run's mean is, for the same kind of access. A
/// write under a lock held over the sequence is compared with an ordinary write.
pub fn ratio(experiment: &Experiment, run: &Run) -> Option<f64> {
    let first = &experiment.runs.first()?.target;
    let kind = if run.kind == Kind::PutHeld { Kind::Put } else { run.kind };
    let reference = experiment.runs.iter().find(|r| r.target == *first && r.kind == kind)?;
    Some(run.summary().mean_ns / reference.summary().mean_ns)
}

/// The kind of access of a target that is the counterpart of what the thesis measured: a WhiteDB
/// read was a step to the next record, its write an append under a lock held over the sequence.
pub fn counterpart(target: &str, mode: Mode) -> Kind {
    match (mode, target) {
        (Mode::Write, "whitedb") => Kind::PutHeld,
        (Mode::Write, _) => Kind::Put,
        (Mode::Read, "redis" | "redis-unix") => Kind::Copy,
        (Mode::Read, _) => Kind::Step,
    }
}

/// The paper's Table 4 with our columns, for those of its experiments that were run.
pub fn table_4(findings: &Findings) -> Option<Table> {
    let names: Vec<&str> = findings.versions.iter().map(|(n, _)| n.as_str()).collect();
    let ours: Vec<String> = names.iter().map(|n| format!("{n} here")).collect();
    let mut columns =
        vec![("#", Align::Left), ("mode", Align::Left), ("thesis Redis", Align::Right)];
    columns.push(("thesis WhiteDB", Align::Right));
    columns.extend(ours.iter().map(|n| (n.as_str(), Align::Right)));
    let has_region = names.contains(&"region");
    if has_region {
        columns.push(("region, by key", Align::Right));
    }
    let mut table = Table::new(&columns);
    for experiment in &findings.experiments {
        let Some(row) = thesis::row(&experiment.setting.name) else { continue };
        let mode = experiment.setting.mode;
        let of = |target: &str, kind: Kind| {
            let run = experiment.runs.iter().find(|r| r.target == target && r.kind == kind);
            run.map_or_else(
                || "-".to_owned(),
                |r| {
                    let s = r.summary();
                    spread_text((s.mean_ns, s.deviation_ns))
                },
            )
        };
        let mut cells = vec![row.experiment.to_string(), mode.name().to_owned()];
        cells.push(spread_text(row.redis));
        cells.push(spread_text(row.whitedb));
        cells.extend(names.iter().map(|n| of(n, counterpart(n, mode))));
        if has_region && mode == Mode::Read {
            cells.push(of("region", Kind::View));
        }
        table.row(cells);
    }
    (!table.rows.is_empty()).then_some(table)
}

fn spread_text((mean_ns, deviation_ns): Published) -> String {
    format!("{} ± {}", latency_text(mean_ns), latency_text(deviation_ns))
}

/// Every sequence average, one to a line.
pub fn csv(findings: &Findings) -> String {
    let mut out = String::from("experiment,target,access,node,sequence,average_ns\n");
    for experiment in &findings.experiments {
        for run in &experiment.runs {
            for s in &run.samples {
                let _ = writeln!(
                    out,
                    "{},{},{},{},{},{:.3}",
                    experiment.setting.name,
                    run.target,
                    run.kind.name(),
                    s.node,
                    s.number,
                    s.average_ns
                );
            }
        }
    }
    out
}

/// Everything for a program.
pub fn json(findings: &Findings) -> Value {
    let versions: serde_json::Map<String, Value> =
        findings.versions.iter().map(|(n, v)| (n.clone(), json!(v))).collect();
    let machine: serde_json::Map<String, Value> =
        findings.machine.rows().into_iter().map(|(n, v)| (n.to_owned(), json!(v))).collect();
    json!({
        "command": findings.command,
        "commit": COMMIT,
        "machine": machine,
        "versions": versions,
        "caveats": findings.caveats,
        "experiments": findings.experiments.iter().map(experiment_json).collect::<Vec<_>>(),
    })
}

fn experiment_json(experiment: &Experiment) -> Value {
    let s = &experiment.setting;
    let thesis = thesis::row(&s.name).map(|r| {
        json!({
            "redis": { "mean_ns": r.redis.0, "deviation_ns": r.redis.1 },
            "whitedb": { "mean_ns": r.whitedb.0, "deviation_ns": r.whitedb.1 },
        })
    });
    json!({
        "name": s.name,
        "num_ops": s.ops,
        "num_ops_unscaled": s.ops_unscaled,
        "num_loops": s.loops,
        "num_procs": s.nodes,
        "record_size": s.record_bytes,
        "db_size": s.db_bytes,
        "access_mode": s.mode.name(),
        "disjoint": s.is_disjoint,
        "thesis_table_4": thesis,
        "runs": experiment.runs.iter().map(|r| run_json(experiment, r)).collect::<Vec<_>>(),
    })
}

fn run_json(experiment: &Experiment, run: &Run) -> Value {
    let s = run.summary();
    json!({
        "target": run.target,
        "access": run.kind.name(),
        "mean_ns": s.mean_ns,
        "deviation_ns": s.deviation_ns,
        "p50_ns": s.p50_ns,
        "p99_ns": s.p99_ns,
        "p999_ns": s.p999_ns,
        "max_ns": s.max_ns,
        "ops_per_s": s.ops_per_s,
        "ratio_to_first": ratio(experiment, run),
        "sequences": run.samples.len(),
        "operations": run.ops,
        "wall_ns": run.wall_ns,
        "values_verified": run.verified,
    })
}
