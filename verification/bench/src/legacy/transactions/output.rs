//! What was measured of transactions as tables for a terminal and as JSON.

use super::findings::{Findings, Goal, Row, Unit, spread};
use crate::stat::median;
use crate::table::{Align, Table, latency_text, rate_text, ratio_text};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Everything for a terminal.
pub fn text(findings: &Findings) -> String {
    let mut out = format!("{}\n{}\n\n", findings.command, findings.machine.line());
    for caveat in &findings.caveats {
        let _ = writeln!(out, "note: {caveat}");
    }
    if !findings.rows.is_empty() {
        let _ = write!(out, "\n{}", measures(&findings.rows).text());
    }
    for sheet in &findings.sheets {
        let _ = write!(out, "\n{}\n{}", sheet.title, sheet.table.text());
    }
    let goals = goals(&findings.rows);
    if !goals.rows.is_empty() {
        let _ = write!(out, "\ngoals\n{}", goals.text());
    }
    out
}

/// The goals and what became of them as Markdown, for a page of documentation.
pub fn markdown(findings: &Findings) -> String {
    let table = goals(&findings.rows);
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let names: Vec<String> = table.columns.iter().map(|(name, _)| name.clone()).collect();
    let rules: Vec<&str> = table
        .columns
        .iter()
        .map(|(_, align)| match align {
            Align::Left => "---",
            Align::Right => "---:",
        })
        .collect();
    let mut out = format!("`{}`: {}\n\n", findings.command, findings.machine.line());
    out.push_str(&line(&names));
    let _ = writeln!(out, "|{}|", rules.join("|"));
    out.extend(table.rows.iter().map(|row| line(row)));
    out
}

fn figure(unit: Unit, number: f64) -> String {
    match unit {
        Unit::Ns => latency_text(number),
        Unit::Rate => format!("{}/s", rate_text(number)),
        Unit::Times => ratio_text(number),
        Unit::Count => format!("{number:.1}"),
    }
}

fn goal_text(unit: Unit, goal: Goal) -> String {
    match goal {
        Goal::AtMost(most) => format!("<= {}", figure(unit, most)),
        Goal::AtLeast(least) => format!(">= {}", figure(unit, least)),
        Goal::TimesAtMost(arm, most) => format!("<= {most:.2} x {arm}"),
    }
}

fn verdict(is_met: Option<bool>) -> &'static str {
    match is_met {
        Some(true) => "met",
        Some(false) => "MISSED",
        None => "not measured",
    }
}

fn range(unit: Unit, samples: &[f64]) -> String {
    if samples.len() < 2 {
        return String::new();
    }
    let (least, most) = spread(samples);
    format!("{} .. {}", figure(unit, least), figure(unit, most))
}

fn count(records: u64) -> String {
    if records == 0 { String::new() } else { records.to_string() }
}

/// One line for each arm of each row.
fn measures(rows: &[Row]) -> Table {
    let mut table = Table::new(&[
        ("measure", Align::Left),
        ("records", Align::Right),
        ("arm", Align::Left),
        ("median", Align::Right),
        ("min .. max", Align::Right),
        ("first / this", Align::Right),
        ("min .. max", Align::Right),
    ]);
    for row in rows {
        for (at, arm) in row.arms.iter().enumerate() {
            let ratios = if at == 0 { None } else { row.ratios(&arm.name) };
            table.row(vec![
                if at == 0 { row.title.clone() } else { String::new() },
                if at == 0 { count(row.records) } else { String::new() },
                arm.name.clone(),
                figure(row.unit, arm.median()),
                range(row.unit, &arm.samples),
                ratios.as_deref().map_or_else(String::new, |r| ratio_text(median(r))),
                ratios.map_or_else(String::new, |r| range(Unit::Times, &r)),
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
        ("measured", Align::Right),
        ("reached", Align::Right),
        ("goal", Align::Left),
        ("", Align::Left),
    ]);
    for row in rows {
        for goal in &row.goals {
            let reached = row.reached(*goal).map_or_else(String::new, |reached| match goal {
                Goal::AtMost(_) | Goal::AtLeast(_) => figure(row.unit, reached),
                Goal::TimesAtMost(..) => ratio_text(reached),
            });
            let first = row.arms.first();
            table.row(vec![
                row.title.clone(),
                count(row.records),
                first.map_or_else(String::new, |arm| figure(row.unit, arm.median())),
                reached,
                goal_text(row.unit, *goal),
                verdict(row.is_met(*goal)).to_owned(),
            ]);
        }
    }
    table
}

/// Everything for a program.
pub fn json(findings: &Findings) -> Value {
    let machine: serde_json::Map<String, Value> =
        findings.machine.rows().into_iter().map(|(k, v)| (k.to_owned(), json!(v))).collect();
    let sheets: serde_json::Map<String, Value> =
        findings.sheets.iter().map(|s| (s.title.clone(), s.json.clone())).collect();
    json!({
        "command": findings.command,
        "machine": machine,
        "notes": findings.caveats,
        "measures": findings.rows.iter().map(row_json).collect::<Vec<Value>>(),
        "sheets": sheets,
    })
}

fn row_json(row: &Row) -> Value {
    let unit = match row.unit {
        Unit::Ns => "ns",
        Unit::Rate => "per second",
        Unit::Times => "times",
        Unit::Count => "count",
    };
    let arms: Vec<Value> = row
        .arms
        .iter()
        .map(|a| {
            json!({
                "arm": a.name,
                "median": a.median(),
                "samples": a.samples,
                "first_times_this": row.ratios(&a.name).map(|r| median(&r)),
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
        "arms": arms,
        "goals": goals,
    })
}

#[cfg(test)]
mod tests {
    use super::super::findings::Sheet;
    use super::*;
    use crate::machine::Machine;

    fn findings() -> Findings {
        let mut row = Row::new("update", 100_000, Unit::Ns);
        row.goals = vec![Goal::TimesAtMost("put", 1.6)];
        for round in 0..3 {
            row.add("transaction", 170.0 + f64::from(round));
            row.add("put", 100.0);
        }
        let mut table = Table::new(&[("kind", Align::Left)]);
        table.row(vec!["GET".to_owned()]);
        let sheet = Sheet { title: "TATP".to_owned(), table, json: json!({"GET": 1}) };
        Findings {
            command: "nearstate bench transactions".to_owned(),
            machine: Machine::default(),
            caveats: vec!["a word".to_owned()],
            rows: vec![row],
            sheets: vec![sheet],
        }
    }

    #[test]
    fn a_missed_goal_stands_in_the_list_with_what_was_reached() {
        let text = text(&findings());
        let line = text.lines().find(|l| l.contains("MISSED")).unwrap();
        assert!(line.contains("1.71 x") && line.contains("<= 1.60 x put"), "{line}");
        assert!(text.contains("170 ns .. 172 ns") && text.contains("TATP"));
    }

    #[test]
    fn the_markdown_has_a_line_for_each_goal() {
        let text = markdown(&findings());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5, "{text}");
        assert!(lines[4].starts_with("| update | 100000 |"), "{text}");
        assert!(lines[4].ends_with("| MISSED |"), "{text}");
        assert_eq!(lines[2].matches('|').count(), lines[4].matches('|').count());
    }

    #[test]
    fn the_json_has_every_sample_the_verdict_and_the_sheets() {
        let value = json(&findings());
        let measure = &value["measures"][0];
        assert_eq!(measure["arms"][0]["samples"], json!([170.0, 171.0, 172.0]));
        assert_eq!(measure["goals"][0]["met"], json!(false));
        assert_eq!(value["sheets"]["TATP"]["GET"], json!(1));
    }
}
