//! Text tables for terminals: columns as wide as their contents, numbers aligned to the right.

use std::fmt::Write as _;

/// The alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// For text.
    Left,
    /// For numbers.
    Right,
}

#[derive(Clone, Debug, Default)]
pub struct ReportTable {
    /// Name and alignment of each column.
    pub columns: Vec<(String, Align)>,
    /// The rows; an empty row is a rule.
    pub rows: Vec<Vec<String>>,
}

impl ReportTable {
    /// A table without rows. `columns` has the column names, separated by `|`. `>` before a name
    /// aligns the column to the right.
    pub fn new(columns: &str) -> Self {
        let column = |name: &str| match name.strip_prefix('>') {
            Some(name) => (name.to_owned(), Align::Right),
            None => (name.to_owned(), Align::Left),
        };
        Self { columns: columns.split('|').map(column).collect(), rows: Vec::new() }
    }

    /// Adds a row; missing cells at its end stay empty.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Adds a rule between two groups of rows. Has no effect at the top and after another rule.
    pub fn rule(&mut self) {
        if self.rows.last().is_some_and(|r| !r.is_empty()) {
            self.rows.push(Vec::new());
        }
    }

    /// The table without the columns of these names.
    #[must_use]
    pub fn without(mut self, names: &[&str]) -> Self {
        let is_kept: Vec<bool> =
            self.columns.iter().map(|(name, _)| !names.contains(&name.as_str())).collect();
        let mut flags = is_kept.iter();
        self.columns.retain(|_| flags.next() == Some(&true));
        for row in &mut self.rows {
            let mut flags = is_kept.iter();
            row.retain(|_| flags.next() != Some(&false));
        }
        self
    }

    /// The table as lines of text.
    pub fn text(&self) -> String {
        let widths = self.widths();
        let rule: Vec<String> = widths.iter().map(|w| "─".repeat(*w)).collect();
        let rule = format!("{}\n", rule.join("─┼─"));
        let names: Vec<String> = self.columns.iter().map(|(n, _)| n.clone()).collect();
        let mut out = self.line(&names, &widths);
        out.push_str(&rule);
        let last = self.rows.len().saturating_sub(1);
        for (i, row) in self.rows.iter().enumerate() {
            match row.is_empty() {
                true if i == last => {}
                true => out.push_str(&rule),
                false => out.push_str(&self.line(row, &widths)),
            }
        }
        out
    }

    fn widths(&self) -> Vec<usize> {
        let cells = |i: usize| self.rows.iter().filter_map(move |r| r.get(i));
        self.columns
            .iter()
            .enumerate()
            .map(|(i, (name, _))| {
                cells(i).map(|c| c.chars().count()).max().unwrap_or(0).max(name.chars().count())
            })
            .collect()
    }

    fn line(&self, cells: &[String], widths: &[usize]) -> String {
        let mut out = String::new();
        for (i, ((_, align), width)) in self.columns.iter().zip(widths).enumerate() {
            let cell = cells.get(i).map_or("", String::as_str);
            let gap = " ".repeat(width.saturating_sub(cell.chars().count()));
            let separator = if i == 0 { "" } else { " │ " };
            // Writing to a string cannot fail.
            let _ = match align {
                Align::Left => write!(out, "{separator}{cell}{gap}"),
                Align::Right => write!(out, "{separator}{gap}{cell}"),
            };
        }
        format!("{}\n", out.trim_end())
    }
}

/// Text from a file or another program, made safe for a terminal: control characters are replaced,
/// because they could move the cursor and overwrite earlier output.
pub fn printable(text: &str) -> String {
    let shown = |c: char| if c.is_control() && c != '\n' { char::REPLACEMENT_CHARACTER } else { c };
    text.chars().map(shown).collect()
}

/// The width of output in columns: fits a printed page and half of a wide screen.
pub const WIDTH: usize = 100;

/// Wraps text to lines of [`WIDTH`], with the prefix `first` on the first line and `next` on all
/// others. A longer word is not split, so that it can be copied.
pub fn wrapped(text: &str, first: &str, next: &str) -> String {
    let (mut out, mut line, mut has_word) = (String::new(), first.to_owned(), false);
    for word in text.split(' ') {
        if has_word && line.chars().count() + 1 + word.chars().count() > WIDTH {
            out.push_str(&line);
            out.push('\n');
            next.clone_into(&mut line);
            has_word = false;
        }
        if has_word {
            line.push(' ');
        }
        line.push_str(word);
        has_word = true;
    }
    out.push_str(&line);
    out.push('\n');
    out
}

/// The lines of a list.
pub fn list_text(lines: &[String]) -> String {
    lines.iter().map(|line| wrapped(line, "  - ", "    ")).collect()
}

/// A count with separators of thousands, such as `1,234,567`.
pub fn count_text(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A count with its noun, such as `1 record` and `2,000 records`.
pub fn counted(count: u64, what: &str) -> String {
    format!("{} {what}{}", count_text(count), if count == 1 { "" } else { "s" })
}

/// A latency with three significant digits, in the unit that suits it.
pub fn latency_text(ns: f64) -> String {
    let (amount, unit) = scaled(ns, ["ns", "us", "ms", "s"]);
    format!("{} {unit}", three_digits(amount))
}

/// A rate with three significant digits and k, M or G.
pub fn rate_text(per_s: f64) -> String {
    let (amount, unit) = scaled(per_s, ["", " k", " M", " G"]);
    format!("{}{unit}", three_digits(amount))
}

/// A ratio, such as `1.00 x` or `310 x`.
pub fn ratio_text(ratio: f64) -> String {
    if ratio.is_finite() { format!("{} x", three_digits(ratio)) } else { "-".to_owned() }
}

/// An amount in the one of four units that suits it. Each unit is 1,000 times the previous one.
pub fn scaled(amount: f64, [one, kilo, mega, giga]: [&str; 4]) -> (f64, &str) {
    match amount {
        n if n < 999.5 => (n, one),
        n if n < 999.5e3 => (n / 1e3, kilo),
        n if n < 999.5e6 => (n / 1e6, mega),
        n => (n / 1e9, giga),
    }
}

fn three_digits(amount: f64) -> String {
    match amount {
        a if a > 0.0 && a < 0.0995 => format!("{a:.4}"),
        a if a < 9.995 => format!("{a:.2}"),
        a if a < 99.95 => format!("{a:.1}"),
        a => format!("{a:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_aligned_to_the_right_and_rules_are_between_groups() {
        let mut table = ReportTable::new("target|>mean");
        table.row(vec!["region".to_owned(), "12.0 ns".to_owned()]);
        table.rule();
        table.rule();
        table.row(vec!["redis".to_owned(), "9 us".to_owned()]);
        table.rule();
        let expected = "target │    mean\n───────┼────────\nregion │ 12.0 ns\n\
                        ───────┼────────\nredis  │    9 us\n";
        assert_eq!(table.text(), expected);
    }

    #[test]
    fn a_column_can_be_left_out_by_its_name() {
        let mut table = ReportTable::new("a|>b|c");
        table.row(["1", "2", "3"].map(str::to_owned).to_vec());
        table.rule();
        table.row(["4", "5"].map(str::to_owned).to_vec());
        assert_eq!(table.without(&["b", "d"]).text(), "a │ c\n──┼──\n1 │ 3\n──┼──\n4 │\n");
    }

    #[test]
    fn text_is_wrapped_between_words_and_loses_none() {
        let text = "word ".repeat(50) + &"long".repeat(40) + " end";
        let lines = wrapped(&text, "- ", "  ");
        assert!(lines.lines().filter(|line| line.chars().count() > WIDTH).count() == 1);
        assert!(lines.starts_with("- word") && lines.lines().skip(1).all(|l| l.starts_with("  ")));
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&lines)[1..], words(&text));
        assert_eq!(wrapped("", "", ""), "\n");
    }

    #[test]
    fn thousands_are_separated() {
        let all = [0, 7, 999, 1_000, 54_321, 1_234_567, u64::MAX].map(count_text);
        assert_eq!(all[..6], ["0", "7", "999", "1,000", "54,321", "1,234,567"]);
        assert_eq!(all[6], "18,446,744,073,709,551,615");
    }

    #[test]
    fn the_noun_of_one_is_singular() {
        let texts = [0, 1, 2, 1000].map(|count| counted(count, "record"));
        assert_eq!(texts, ["0 records", "1 record", "2 records", "1,000 records"]);
    }

    #[test]
    fn control_characters_are_replaced() {
        assert_eq!(printable("a\u{1b}[2Jb\tc\nd"), "a\u{fffd}[2Jb\u{fffd}c\nd");
    }

    #[test]
    fn figures_have_three_digits_and_a_suitable_unit() {
        assert_eq!(latency_text(7.614), "7.61 ns");
        assert_eq!(latency_text(999.0), "999 ns");
        assert_eq!(latency_text(36_770.0), "36.8 us");
        assert_eq!(latency_text(2_032_000.0), "2.03 ms");
        assert_eq!(rate_text(165_000.0), "165 k");
        assert_eq!(ratio_text(9.999), "10.0 x");
        assert_eq!(ratio_text(0.003_21), "0.0032 x");
        assert_eq!(ratio_text(f64::NAN), "-");
    }
}
