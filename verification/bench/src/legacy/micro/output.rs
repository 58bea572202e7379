//! What was measured as tables for a terminal and as JSON.

use super::findings::{Findings, Goal, OURS, Row, Unit};
use crate::machine::bytes_text;
use crate::table::{Align, Table, latency_text, ratio_text};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Everything for a terminal.
pub fn text(findings: &Findings) -> String {
    let mut out = format!("{}\n{}\n", findings.command, findings.machine.line());
    for (name, version) in &findings.versions {
        let _ = writeln!(out, "  {name}: {version}");
    }
    out.push('\n');
    for caveat in &findings.caveats {
        let _ = writeln!(out, "note: {caveat}");
    }
    if !findings.rows.is_empty() {
        let _ = write!(out, "\n{}", measures(&findings.rows).text());
    }
    if !findings.growth.is_empty() {
        let _ = write!(out, "\ncost against the number of records\n{}", growth(findings).text());
    }
    let goals = goals(&findings.rows);
    if !goals.rows.is_empty() {
        let _ = write!(out, "\ngoals\n{}", goals.text());
    }
    out
}

fn figure(unit: Unit, number: f64) -> String {
    match unit {
        Unit::Ns => latency_text(number),
        Unit::Bytes => format!("{number:.0} B"),
        Unit::Times => ratio_text(number),
        Unit::Count => format!("{number:.0}"),
    }
}

fn goal_text(unit: Unit, goal: Goal) -> String {
    match goal {
        Goal::AtMost(most) => format!("<= {}", figure(unit, most)),
        Goal::Ahead(peer, least) => format!(">= {least:.0} x {peer}"),
    }
}

fn verdict(is_met: Option<bool>) -> &'static str {
    match is_met {
        Some(true) => "met",
        Some(false) => "MISSED",
        None => "not measured",
    }
}

/// One line for each target of each row.
fn measures(rows: &[Row]) -> Table {
    let mut table = Table::new(&[
        ("measure", Align::Left),
        ("records", Align::Right),
        ("target", Align::Left),
        ("median", Align::Right),
        ("min .. max", Align::Right),
        ("x region", Align::Right),
        ("goal", Align::Left),
        ("", Align::Left),
    ]);
    for row in rows {
        for (at, cell) in row.cells.iter().enumerate() {
            let (least, most) = cell.spread();
            let spread = if cell.samples.len() < 2 {
                String::new()
            } else {
                format!("{} .. {}", figure(row.unit, least), figure(row.unit, most))
            };
            let ratio = row.ratio(&cell.target).filter(|_| cell.target != OURS);
            let goal = row.goal_for(&cell.target);
            let records = if row.records == 0 { String::new() } else { row.records.to_string() };
            table.row(vec![
                if at == 0 { row.title.clone() } else { String::new() },
                if at == 0 { records } else { String::new() },
                cell.target.clone(),
                figure(row.unit, cell.median()),
                spread,
                ratio.map_or_else(String::new, ratio_text),
                goal.map_or_else(String::new, |g| goal_text(row.unit, g)),
                goal.map_or("", |g| verdict(row.is_met(g))).to_owned(),
            ]);
        }
        table.rule();
    }
    table
}

/// One line for each goal.
fn goals(rows: &[Row]) -> Table {
    let mut table = Table::new(&[
        ("what", Align::Left),
        ("records", Align::Right),
        ("region", Align::Right),
        ("reached", Align::Right),
        ("goal", Align::Left),
        ("", Align::Left),
    ]);
    for row in rows {
        for goal in &row.goals {
            let reached = row.reached(*goal).map_or_else(String::new, |reached| match goal {
                Goal::AtMost(_) => figure(row.unit, reached),
                Goal::Ahead(..) => ratio_text(reached),
            });
            let ours = row.of(OURS).map_or_else(String::new, |c| figure(row.unit, c.median()));
            table.row(vec![
                row.title.clone(),
                if row.records == 0 { String::new() } else { row.records.to_string() },
                ours,
                reached,
                goal_text(row.unit, *goal),
                verdict(row.is_met(*goal)).to_owned(),
            ]);
        }
    }
    table
}

fn growth(findings: &Findings) -> Table {
    let mut table = Table::new(&[
        ("records", Align::Right),
        ("insert", Align::Right),
        ("keyed view", Align::Right),
        ("put", Align::Right),
        ("memory per record", Align::Right),
        ("on 2 MiB pages", Align::Right),
    ]);
    for point in &findings.growth {
        table.row(vec![
            point.records.to_string(),
            latency_text(point.insert_ns),
            latency_text(point.view_ns),
            latency_text(point.put_ns),
            format!("{:.0} B", point.record_bytes),
            bytes_text(point.huge_bytes),
        ]);
    }
    table
}

/// Everything for a program.
pub fn json(findings: &Findings) -> Value {
    let machine: serde_json::Map<String, Value> =
        findings.machine.rows().into_iter().map(|(k, v)| (k.to_owned(), json!(v))).collect();
    let versions: serde_json::Map<String, Value> =
        findings.versions.iter().map(|(k, v)| (k.clone(), json!(v))).collect();
    json!({
        "command": findings.command,
        "machine": machine,
        "versions": versions,
        "notes": findings.caveats,
        "measures": findings.rows.iter().map(row_json).collect::<Vec<Value>>(),
        "growth": findings.growth.iter().map(|p| json!({
            "records": p.records,
            "insert_ns": p.insert_ns,
            "view_ns": p.view_ns,
            "put_ns": p.put_ns,
            "record_bytes": p.record_bytes,
            "huge_bytes": p.huge_bytes,
        })).collect::<Vec<Value>>(),
    })
}

fn row_json(row: &Row) -> Value {
    let unit = match row.unit {
        Unit::Ns => "ns",
        Unit::Bytes => "bytes",
        Unit::Times => "times",
        Unit::Count => "count",
    };
    let targets: Vec<Value> = row
        .cells
        .iter()
        .map(|c| {
            json!({
                "target": c.target,
                "median": c.median(),
                "samples": c.samples,
                "times_region": row.ratio(&c.target),
            })
        })
        .collect();
    let goals: Vec<Value> = row
        .goals
        .iter()
        .map(|g| {
            json!({
                "goal": goal_text(row.unit, *g),
                "reached": row.reached(*g),
                "met": row.is_met(*g),
            })
        })
        .collect();
    json!({
        "measure": row.title,
        "records": row.records,
        "unit": unit,
        "targets": targets,
        "goals": goals,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::legacy::micro::options::Group;
    use crate::machine::Machine;

    fn findings() -> Findings {
        let mut row = Row::new(Group::Reads, "keyed view", 100_000, Unit::Ns);
        row.goals = vec![Goal::Ahead("lmdb", 14.0)];
        for round in 0..3 {
            row.add(OURS, 30.0 + f64::from(round));
            row.add("lmdb", 360.0);
        }
        Findings {
            command: "nearstate bench micro".to_owned(),
            machine: Machine::default(),
            versions: vec![("lmdb".to_owned(), "0.9".to_owned())],
            caveats: vec!["a word".to_owned()],
            rows: vec![row],
            growth: Vec::new(),
        }
    }

    #[test]
    fn a_missed_goal_stands_in_the_line_of_the_peer_and_in_the_list() {
        let text = text(&findings());
        let lines: Vec<&str> = text.lines().filter(|l| l.contains("MISSED")).collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert!(lines.iter().all(|l| l.contains("11.6 x") && l.contains(">= 14 x lmdb")));
        assert!(text.contains("30.0 ns .. 32.0 ns"));
    }

    #[test]
    fn the_json_has_every_sample_and_the_verdict() {
        let value = json(&findings());
        let measure = &value["measures"][0];
        assert_eq!(measure["targets"][0]["samples"], serde_json::json!([30.0, 31.0, 32.0]));
        assert_eq!(measure["goals"][0]["met"], serde_json::json!(false));
    }
}
