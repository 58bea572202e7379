//! A table of text for a terminal: columns as wide as they need, numbers to the right.

use std::fmt::Write as _;

/// How a column is aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Rows under one heading.
#[derive(Clone, Debug, Default)]
pub struct ReportTable {
    /// Name and alignment of each column.
    pub columns: Vec<(String, Align)>,
    /// The rows; an empty row is a rule.
    pub rows: Vec<Vec<String>>,
}

impl ReportTable {
    /// A table without rows. `columns` has the names, separated by `|`; a name after `>` is that of
    /// a column of numbers.
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

    /// Adds a rule between two groups of rows, never two in a row nor one at the top.
    pub fn rule(&mut self) {
        if self.rows.last().is_some_and(|r| !r.is_empty()) {
            self.rows.push(Vec::new());
        }
    }

    /// The same without the columns of these names.
    #[must_use]
    pub fn without(mut self, names: &[&str]) -> Self {
        let kept: Vec<bool> =
            self.columns.iter().map(|(name, _)| !names.contains(&name.as_str())).collect();
        let mut of_columns = kept.iter();
        self.columns.retain(|_| of_columns.next().is_some_and(|is_kept| *is_kept));
        for row in &mut self.rows {
            let mut of_row = kept.iter();
            row.retain(|_| of_row.next().is_none_or(|is_kept| *is_kept));
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

/// Text from a file or another program as a terminal may show it: control characters, which could
/// move the cursor and overwrite what was said before, are replaced.
pub fn printable(text: &str) -> String {
    let shown = |c: char| if c.is_control() && c != '\n' { char::REPLACEMENT_CHARACTER } else { c };
    text.chars().map(shown).collect()
}

/// Columns of a terminal that text is made for: a page of paper has as many, and so has a window
/// beside another.
pub const WIDTH: usize = 100;

/// Text in lines of [`WIDTH`]: `first` begins the first line and `next` all others. A word that is
/// longer stays whole, so that it can be copied.
pub fn wrapped(text: &str, first: &str, next: &str) -> String {
    let (mut out, mut line, mut is_begun) = (String::new(), first.to_owned(), false);
    for word in text.split(' ') {
        if is_begun && line.chars().count() + 1 + word.chars().count() > WIDTH {
            out.push_str(&line);
            out.push('\n');
            next.clone_into(&mut line);
            is_begun = false;
        }
        if is_begun {
            line.push(' ');
        }
        line.push_str(word);
        is_begun = true;
    }
    out.push_str(&line);
    out.push('\n');
    out
}

/// A count with its thousands apart, such as `1,234,567`.
pub fn count_text(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// So many of something in words, such as `1 record` and `2,000 records`.
pub fn counted(count: u64, what: &str) -> String {
    format!("{} {what}{}", count_text(count), if count == 1 { "" } else { "s" })
}

/// A latency in words: three significant digits and the unit that fits.
pub fn latency_text(ns: f64) -> String {
    let (amount, unit) = scaled(ns, ["ns", "us", "ms", "s"]);
    format!("{} {unit}", three_digits(amount))
}

/// Operations per second in words.
pub fn rate_text(per_s: f64) -> String {
    let (amount, unit) = scaled(per_s, ["", " k", " M", " G"]);
    format!("{}{unit}", three_digits(amount))
}

/// How many times longer, such as `1.00 x` or `310 x`.
pub fn ratio_text(ratio: f64) -> String {
    if ratio.is_finite() { format!("{} x", three_digits(ratio)) } else { "-".to_owned() }
}

/// An amount in the unit of four that suits it; each is 1000 times the one before.
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
    fn numbers_stand_to_the_right_and_rules_between_groups() {
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
    fn text_is_broken_between_words_and_loses_none() {
        let text = "word ".repeat(50) + &"long".repeat(40) + " end";
        let lines = wrapped(&text, "- ", "  ");
        assert!(lines.lines().filter(|line| line.chars().count() > WIDTH).count() == 1);
        assert!(lines.starts_with("- word") && lines.lines().skip(1).all(|l| l.starts_with("  ")));
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&lines)[1..], words(&text));
        assert_eq!(wrapped("", "", ""), "\n");
    }

    #[test]
    fn thousands_stand_apart() {
        let all = [0, 7, 999, 1_000, 54_321, 1_234_567, u64::MAX].map(count_text);
        assert_eq!(all[..6], ["0", "7", "999", "1,000", "54,321", "1,234,567"]);
        assert_eq!(all[6], "18,446,744,073,709,551,615");
    }

    #[test]
    fn one_thing_is_not_several() {
        let texts = [0, 1, 2, 1000].map(|count| counted(count, "record"));
        assert_eq!(texts, ["0 records", "1 record", "2 records", "1,000 records"]);
    }

    #[test]
    fn a_terminal_is_not_steered_by_what_is_shown() {
        assert_eq!(printable("a\u{1b}[2Jb\tc\nd"), "a\u{fffd}[2Jb\u{fffd}c\nd");
    }

    #[test]
    fn latencies_take_the_unit_that_fits() {
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
