//! The lines and tables of a report as text, for terminals and for plain output.

use std::net::SocketAddr;
use std::time::Duration;

use ratatui::text::Span;

use super::format::{UNKNOWN, bytes, change, count, latency, name, or_unknown, rate, share, span};
use super::report::{NamespaceReport, NodeReport, RegionReport, SHARES, TopReport};

/// A table. The first column is text, all others are numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TextTable {
    heads: Vec<String>,
    rows: Vec<Vec<String>>,
    /// The number of rows left out.
    omitted: u64,
}

/// Columns between two cells.
const GAP: usize = 2;

/// Minimum width of the first column. Columns at the right are dropped first.
const NAME_WIDTH_MIN: usize = 12;

impl TextTable {
    fn new(heads: &[&str]) -> Self {
        let heads = heads.iter().map(|head| (*head).to_owned()).collect();
        Self { heads, ..Self::default() }
    }

    /// The number of rows to show, including one for the rows left out.
    pub(super) fn rows(&self) -> usize {
        self.rows.len() + usize::from(self.omitted > 0)
    }

    /// Header and rows as lines that fit the width and the number of rows. The last line tells how
    /// many rows were left out.
    pub(super) fn lines(&self, width: usize, rows: usize) -> Vec<String> {
        let is_cut = self.rows() > rows;
        let shown = if is_cut { rows.saturating_sub(1) } else { self.rows.len() };
        let shown = self.rows.get(..shown).unwrap_or(&self.rows);
        let widths = self.widths(shown, width);
        let mut lines = vec![line(&self.heads, &widths)];
        lines.extend(shown.iter().map(|row| line(row, &widths)));
        let others = (self.rows.len() - shown.len()) as u64 + self.omitted;
        if others > 0 && rows > 0 {
            lines.push(cut(&format!("and {} more", count(others)), width));
        }
        lines
    }

    /// The widths of the columns that fit.
    fn widths(&self, rows: &[Vec<String>], most: usize) -> Vec<usize> {
        let column = |at: usize| {
            let cells = rows.iter().filter_map(|row| row.get(at));
            let heads = self.heads.get(at);
            cells.chain(heads).map(|cell| width_of(cell)).max().unwrap_or_default()
        };
        let mut widths: Vec<usize> = (0..self.heads.len()).map(column).collect();
        let needed = |widths: &[usize], first: usize| {
            first + widths.iter().skip(1).map(|width| width + GAP).sum::<usize>()
        };
        let name = widths.first().copied().unwrap_or_default();
        while widths.len() > 1 && needed(&widths, name.min(NAME_WIDTH_MIN)) > most {
            widths.pop();
        }
        let figures = needed(&widths, 0);
        if let Some(first) = widths.first_mut() {
            *first = name.min(most.saturating_sub(figures));
        }
        widths
    }
}

fn width_of(text: &str) -> usize {
    Span::raw(text).width()
}

/// Truncates a text to a width.
pub(super) fn cut(text: &str, width: usize) -> String {
    if width_of(text) <= width {
        return text.to_owned();
    }
    let mut short = String::new();
    for letter in text.chars() {
        short.push(letter);
        if width_of(&short) >= width {
            short.pop();
            break;
        }
    }
    if width > 0 {
        short.push('~');
    }
    short
}

fn line(cells: &[String], widths: &[usize]) -> String {
    let mut line = String::new();
    for (source, (cell, width)) in cells.iter().zip(widths).enumerate() {
        let cell = cut(cell, *width);
        let blanks = " ".repeat(width.saturating_sub(width_of(&cell)));
        match source {
            0 => line.extend([cell, blanks]),
            _ => line.extend([" ".repeat(GAP), blanks, cell]),
        }
    }
    line.truncate(line.trim_end().len());
    line
}

/// The summary of a node.
pub(super) fn node_lines(node: &NodeReport, address: Option<SocketAddr>, now: f64) -> [String; 2] {
    let up = Duration::try_from_secs_f64(now - node.started).unwrap_or_default();
    let address = address.map_or_else(String::new, |address| format!("  {address}"));
    let each = |figure: Option<f64>| or_unknown(figure, rate);
    let flow = |figure: Option<f64>| or_unknown(figure, |f| format!("{}/s", bytes(whole(f))));
    [
        format!("node{address}  {}  pid {}  up {}", name(&node.version), node.pid, span(up)),
        format!(
            "{} requests/s  {} errors/s  {} hits  {} clients  {} in  {} out",
            each(node.requests),
            each(node.errors),
            or_unknown(node.hit_share, share),
            count(node.clients),
            flow(node.bytes_read),
            flow(node.bytes_written),
        ),
    ]
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "saturates, and three digits are shown"
)]
const fn whole(figure: f64) -> u64 {
    figure as u64
}

/// The fill of a region.
pub(super) fn fill_text(region: &RegionReport) -> String {
    let seen = &region.seen;
    format!("{} of {}, {}", bytes(seen.bytes_taken), bytes(seen.bytes_max), share(region.fill))
}

/// The summary of a region.
pub(super) fn region_lines(region: &RegionReport) -> [String; 2] {
    let seen = &region.seen;
    let dead = match seen.sessions_dead {
        0 => String::new(),
        some => format!(" and {} dead", count(some)),
    };
    let growth = region.growth.map_or_else(String::new, |each| format!(" ({}/s)", change(each)));
    [
        format!("region  {}  {}", name(&seen.path), fill_text(region)),
        format!(
            "{} records{growth}  {} sessions{dead}  epoch {}  oldest pin {}",
            count(seen.records),
            count(seen.sessions),
            seen.epoch,
            pin(seen.oldest_pin),
        ),
    ]
}

/// The lag of a pin.
fn pin(epochs: u64) -> String {
    if epochs == 0 { UNKNOWN.to_owned() } else { format!("{} behind", count(epochs)) }
}

/// The table of command classes.
pub(super) fn classes(node: &NodeReport) -> TextTable {
    let shares = SHARES.map(|share| format!("p{}", share * 100.0));
    let [one, two, three] = &shares;
    let mut table = TextTable::new(&["commands", "per second", one, two, three]);
    for class in &node.classes {
        let mut row = vec![name(&class.name), or_unknown(class.requests, rate)];
        row.extend(class.latencies.map(|each| or_unknown(each, latency)));
        table.rows.push(row);
    }
    table
}

/// The table of cores.
pub(super) fn cores(node: &NodeReport) -> TextTable {
    let mut table = TextTable::new(&["core", "per second", "busy", "connections", "long polls"]);
    for core in &node.cores {
        table.rows.push(vec![
            core.number.to_string(),
            or_unknown(core.requests, rate),
            or_unknown(core.busy, share),
            count(core.connections),
            count(core.long_polls),
        ]);
    }
    table
}

/// The table of namespaces, in their order.
pub(super) fn namespaces(region: &RegionReport) -> TextTable {
    let header = ["namespace", "records", "bytes", "growth/s", "tags", "limit"];
    let mut table = TextTable::new(&header);
    for namespace in &region.namespaces {
        table.rows.push(vec![
            name(&namespace.name),
            count(namespace.records),
            bytes(namespace.bytes),
            or_unknown(namespace.growth, change),
            count(namespace.tags),
            limit(namespace),
        ]);
    }
    table.omitted = region.seen.namespaces_omitted;
    table
}

/// The share of the hard limit that is used, else of the soft one.
fn limit(namespace: &NamespaceReport) -> String {
    let most = if namespace.hard_bytes == 0 { namespace.soft_bytes } else { namespace.hard_bytes };
    match (u128::from(namespace.used_bytes) * 100).checked_div(u128::from(most)) {
        Some(share) => format!("{share} % of {}", bytes(most)),
        None => "-".to_owned(),
    }
}

/// For how long memory is held back.
fn held_time(seconds: u64) -> String {
    if seconds == 0 { UNKNOWN.to_owned() } else { span(Duration::from_secs(seconds)) }
}

/// The table of processes.
pub(super) fn processes(region: &RegionReport) -> TextTable {
    let mut table =
        TextTable::new(&["process", "pid", "sessions", "oldest pin", "holds back", "for"]);
    for process in &region.seen.processes {
        table.rows.push(vec![
            name(&process.name),
            process.pid.to_string(),
            count(process.sessions),
            pin(process.oldest_pin),
            if process.held_bytes == 0 { UNKNOWN.to_owned() } else { bytes(process.held_bytes) },
            held_time(process.held_seconds),
        ]);
    }
    table.omitted = region.seen.processes_omitted;
    table
}

/// All tables of a report, the most important first.
pub(super) fn all(report: &TopReport) -> Vec<TextTable> {
    let mut tables = Vec::new();
    if let Some(node) = &report.node {
        tables.extend([classes(node), cores(node)]);
    }
    if let Some(region) = &report.region {
        tables.extend([namespaces(region), processes(region)]);
    }
    tables
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> TextTable {
        let mut table = TextTable::new(&["namespace", "records", "bytes"]);
        for (name, records) in [("ue-context", "1,234"), ("a-very-long-name-of-a-namespace", "5")] {
            table.rows.push(vec![name.to_owned(), records.to_owned(), "9 B".to_owned()]);
        }
        table
    }

    #[test]
    fn a_table_fits_the_width() {
        assert_eq!(
            table().lines(80, 9),
            [
                "namespace                        records  bytes",
                "ue-context                         1,234    9 B",
                "a-very-long-name-of-a-namespace        5    9 B",
            ]
        );
        assert_eq!(
            table().lines(30, 9),
            [
                "namespace       records  bytes",
                "ue-context        1,234    9 B",
                "a-very-long-n~        5    9 B",
            ]
        );
        let narrow = table().lines(22, 9);
        let wanted = ["namespace      records", "ue-context       1,234", "a-very-long-~        5"];
        assert_eq!(narrow, wanted);
        for width in 0..60 {
            for rows in 0..4 {
                let lines = table().lines(width, rows);
                assert!(lines.len() <= rows + 1, "{width} {rows}: {lines:?}");
                assert!(lines.iter().all(|line| width_of(line) <= width), "{width}: {lines:?}");
            }
        }
    }

    #[test]
    fn omitted_rows_are_counted() {
        let mut table = table();
        assert_eq!(table.lines(40, 1).last().unwrap(), "and 2 more");
        table.omitted = 10;
        assert_eq!(table.lines(40, 9).last().unwrap(), "and 10 more");
        assert_eq!(table.lines(40, 2).last().unwrap(), "and 11 more");
    }

    #[test]
    fn a_text_is_truncated_by_its_width_on_screen() {
        assert_eq!([cut("abc", 3), cut("abc", 2), cut("abc", 1)], ["abc", "a~", "~"]);
        assert_eq!(cut("名前名前", 5), "名前~");
        assert_eq!(cut("名前名前", 4), "名~");
        assert_eq!(cut("abc", 0), "");
    }
}
