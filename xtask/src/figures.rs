//! `cargo xtask figures`: the figures in the pages are those of the result file, and the code still
//! executes about as many instructions as when they were measured.

use crate::finding::{Finding, line_where};
use crate::instructions;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use toml::{Table, Value};

/// The result file.
const RESULTS: &str = "docs/figures.toml";

/// The page of which every row with a figure must be listed, and its section.
const LISTED: (&str, &str) = ("README.md", "## Numbers");

/// A figure is out of date once an operation takes this share more instructions than when it was
/// measured: the page promises too much.
const GROWTH_MAX: f64 = 0.10;

/// The same for fewer instructions.
const DECREASE_MAX: f64 = 0.25;

/// Checks the pages against the result file.
pub(crate) fn check(root: &Path) -> Result<(Vec<Finding>, String), String> {
    let text = read(root, RESULTS)?;
    let results: Table = text.parse().map_err(|error| format!("{RESULTS}: {error}"))?;
    let mut findings = Vec::new();
    let (mut rows, mut listed) = (0, BTreeSet::new());
    for (name, group) in &results {
        let group = Group::read(name, group)?;
        group.check_age(&text, root, &mut findings)?;
        for row in &group.rows {
            let page = read(root, row.page)?;
            findings.extend(group.check_row(row, &page));
            if row.page == LISTED.0 {
                listed.insert(row.label);
            }
            rows += 1;
        }
    }
    findings.extend(check_listed(&read(root, LISTED.0)?, &listed));
    Ok((findings, format!("{rows} rows of {} measurements", results.len())))
}

/// What one command measured, on one commit.
struct Group<'t> {
    name: &'t str,
    command: &'t str,
    commit: &'t str,
    instructions: Vec<Counted<'t>>,
    figures: &'t Table,
    rows: Vec<Row<'t>>,
}

/// The instructions of an operation at the measured commit.
struct Counted<'t> {
    operation: &'t str,
    then: f64,
    /// The share of these instructions in what was measured: a request is mostly the kernel's.
    share: f64,
}

impl Counted<'_> {
    /// Whether the figures hold for an operation that executes so many instructions now.
    fn holds(&self, now: f64) -> bool {
        (-DECREASE_MAX..=GROWTH_MAX).contains(&(self.share * (now - self.then) / self.then))
    }
}

/// A row of a table in a page.
struct Row<'t> {
    page: &'t str,
    /// The first cell.
    label: &'t str,
    /// The figures that it shows.
    figure: &'t str,
}

impl<'t> Group<'t> {
    fn read(name: &'t str, group: &'t Value) -> Result<Self, String> {
        let wrong = |what: &str| format!("{RESULTS}: [{name}] has no {what}");
        let text = |value: &'t Value, key: &str| {
            value.get(key).and_then(Value::as_str).ok_or_else(|| wrong(key))
        };
        let table = |key| group.get(key).and_then(Value::as_table);
        let counts = table("instructions").ok_or_else(|| wrong("instructions"))?.iter();
        let shares = table("shares");
        let share = |operation: &str| shares.and_then(|shares| shares.get(operation));
        let instructions = counts
            .map(|(operation, count)| {
                let share = share(operation).map_or(Some(1.0), Value::as_float)?;
                Some(Counted { operation, then: count.as_float()?, share })
            })
            .collect::<Option<_>>()
            .ok_or_else(|| wrong("instructions and shares with a decimal point"))?;
        let figures = table("figures");
        let rows = group.get("rows").and_then(Value::as_array).ok_or_else(|| wrong("rows"))?;
        let rows = rows.iter().map(|row| {
            let (page, label) = (text(row, "page")?, text(row, "label")?);
            Ok::<_, String>(Row { page, label, figure: text(row, "figure")? })
        });
        Ok(Self {
            name,
            command: text(group, "command")?,
            commit: text(group, "commit")?,
            instructions,
            figures: figures.ok_or_else(|| wrong("figures"))?,
            rows: rows.collect::<Result<_, _>>()?,
        })
    }

    /// Whether the measured code was about as fast as the current code.
    fn check_age(
        &self,
        text: &str,
        root: &Path,
        findings: &mut Vec<Finding>,
    ) -> Result<(), String> {
        for counted in &self.instructions {
            let Counted { operation, then, .. } = counted;
            let now = instructions::in_table(root, operation)?;
            if counted.holds(now) {
                continue;
            }
            let line = line_where(text, |line| line == format!("[{}]", self.name));
            let what = format!(
                "the figures are out of date: {operation} takes {now:.0} instructions, and took \
                 {then:.0} when they were measured"
            );
            let advice = format!(
                "run `{}` on a quiet machine, and write its figures, the commit and its \
                 instructions into this file and the pages",
                self.command
            );
            findings.push(Finding::new(RESULTS, line, what, advice));
        }
        Ok(())
    }

    /// Whether a page shows the figures of a row, and names the commit.
    fn check_row(&self, row: &Row<'_>, page: &str) -> Vec<Finding> {
        let advice = "write into the page what the result file has";
        let complain = |line, what| Finding::new(row.page, line, what, advice);
        let figures = self.figures.get(row.figure).and_then(Value::as_array);
        let Some(figures) = figures else {
            let what = format!("row `{}` shows {}, which was not measured", row.label, row.figure);
            return vec![Finding::new(RESULTS, 1, what, "list its figures")];
        };
        let figures: Vec<&str> = figures.iter().filter_map(Value::as_str).collect();
        let label = format!("| {} |", row.label);
        let found = page.lines().zip(1..).find(|(line, _)| line.starts_with(&label));
        let Some((shown, line)) = found else {
            return vec![complain(1, format!("no table has the row `{}`", row.label))];
        };
        let cells: Vec<&str> = shown.trim_matches('|').split('|').skip(1).map(str::trim).collect();
        let mut findings = Vec::new();
        if row.page == LISTED.0 && cells != figures {
            let what = format!("row `{}` shows {cells:?}, measured were {figures:?}", row.label);
            findings.push(complain(line, what));
        }
        for figure in figures.iter().filter(|figure| !has_figure(&cells, figure)) {
            let what = format!("row `{}` does not show {figure:?}, which was measured", row.label);
            findings.push(complain(line, what));
        }
        if !page.contains(self.commit) {
            let what = format!("the page does not name {}, which was measured", self.commit);
            findings.push(complain(1, what));
        }
        findings
    }
}

/// Whether a figure is one of these cells, or a part of one.
fn has_figure(cells: &[&str], figure: &str) -> bool {
    let is_apart =
        |rest: Option<char>| rest.is_none_or(|next| !next.is_ascii_alphanumeric() && next != '.');
    cells.iter().any(|cell| {
        cell.match_indices(figure).any(|(at, found)| {
            let (before, after) = (cell.get(..at), cell.get(at + found.len()..));
            is_apart(before.and_then(|text| text.chars().next_back()))
                && is_apart(after.and_then(|text| text.chars().next()))
        })
    })
}

/// Complains of rows of the listed section that are not in the result file.
fn check_listed(page: &str, listed: &BTreeSet<&str>) -> Vec<Finding> {
    let (name, section) = LISTED;
    let lines = page.lines().zip(1..).skip_while(|(line, _)| *line != section).skip(1);
    let lines = lines.take_while(|(line, _)| !line.starts_with("## "));
    let rows = lines.filter(|(line, _)| line.starts_with('|') && !line.starts_with("|--"));
    let has_number = |line: &str| line.split('|').skip(2).any(is_figure);
    rows.filter(|(line, _)| has_number(line))
        .filter_map(|(line, number)| {
            let label = line.trim_matches('|').split('|').next().unwrap_or_default().trim();
            (!listed.contains(label)).then(|| {
                let what = format!("the figures of row `{label}` are not in {RESULTS}");
                Finding::new(name, number, what, "add them with the command that measured them")
            })
        })
        .collect()
}

/// Whether a cell begins with a digit, as a figure does.
fn is_figure(cell: &str) -> bool {
    cell.trim().starts_with(|first: char| first.is_ascii_digit())
}

fn read(root: &Path, name: &str) -> Result<String, String> {
    fs::read_to_string(root.join(name)).map_err(|error| format!("{name}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: &str = "\
[records]
command = \"measure\"
commit = \"abc1234\"
instructions = { view = 100.0 }
figures = { view = [\"24.3 ns\", \"-\"] }
rows = [{ page = \"README.md\", label = \"view\", figure = \"view\" }]
";

    fn findings(page: &str) -> usize {
        let results: Table = GROUP.parse().unwrap();
        let group = Group::read("records", results.get("records").unwrap()).unwrap();
        group.check_row(group.rows.first().unwrap(), page).len()
    }

    #[test]
    fn a_row_shows_what_was_measured() {
        assert_eq!(findings("commit abc1234\n| view | 24.3 ns | - |\n"), 0);
        assert_eq!(findings("| view | 24.3 ns | - |\n"), 1, "another commit");
        assert_eq!(findings("abc1234\n| view | 124.3 ns | - |\n"), 2, "another figure");
        assert_eq!(findings("abc1234\n| view | 24.3 ns | 7 ns |\n"), 2, "one too many");
        assert_eq!(findings("abc1234\n| put | 24.3 ns | - |\n"), 1, "no such row");
    }

    #[test]
    fn figures_age_with_the_share_of_the_instructions() {
        let holds = |text: &str, now: f64| {
            let results: Table = text.parse().unwrap();
            let group = Group::read("records", results.get("records").unwrap()).unwrap();
            group.instructions.first().unwrap().holds(now)
        };
        assert!(holds(GROUP, 110.0) && !holds(GROUP, 111.0));
        assert!(holds(GROUP, 75.0) && !holds(GROUP, 74.0));
        let quarter = format!("{GROUP}shares = {{ view = 0.25 }}\n");
        assert!(holds(&quarter, 140.0) && !holds(&quarter, 141.0) && holds(&quarter, 1.0));
    }

    #[test]
    fn a_figure_is_no_part_of_another() {
        assert!(has_figure(&["DashMap 15.5 ns, LMDB 176 ns"], "176 ns"));
        assert!(!has_figure(&["DashMap 15.5 ns, LMDB 1176 ns"], "176 ns"));
        assert!(!has_figure(&["15.5 ns"], "5.5 ns") && !has_figure(&["15.5 ns"], "15.5 n"));
    }

    #[test]
    fn every_row_with_figures_is_listed() {
        let page = "## Numbers\n| a | time |\n|---|---|\n| view | 3 ns |\n## Next\n| b | 4 ns |\n";
        assert_eq!(check_listed(page, &BTreeSet::new()).len(), 1);
        assert!(check_listed(page, &BTreeSet::from(["view"])).is_empty());
    }
}
