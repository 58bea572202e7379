//! The result of one check, and tables.

use serde::Serialize;

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RowOutcome {
    /// As it should be.
    Passed,
    /// The host can take part. The detail says what may go wrong.
    Warning,
    /// The host cannot take part.
    Failed,
}

impl RowOutcome {
    const fn name(self) -> &'static str {
        match self {
            Self::Passed => "ok",
            Self::Warning => "warning",
            Self::Failed => "failed",
        }
    }
}

/// A check and its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct CheckRow {
    /// What was looked at.
    pub(crate) check: &'static str,
    /// On which host or for which partition.
    pub(crate) subject: String,
    pub(crate) outcome: RowOutcome,
    /// A value, or what is wrong and what to do.
    pub(crate) detail: String,
}

impl CheckRow {
    pub(crate) fn new(
        check: &'static str,
        subject: &str,
        outcome: RowOutcome,
        detail: String,
    ) -> Self {
        Self { check, subject: subject.to_owned(), outcome, detail }
    }

    /// Passed with the value, or failed with the error.
    pub(crate) fn of(
        check: &'static str,
        subject: &str,
        result: nearstate_model::Result<String>,
    ) -> Self {
        match result {
            Ok(detail) => Self::new(check, subject, RowOutcome::Passed, detail),
            Err(error) => Self::new(check, subject, RowOutcome::Failed, error.to_string()),
        }
    }

    /// The cells of the row in a table with the columns of [`CheckRow::HEAD`].
    pub(crate) fn cells(&self) -> Vec<String> {
        let (check, outcome) = (self.check.to_owned(), self.outcome.name().to_owned());
        vec![check, self.subject.clone(), outcome, self.detail.clone()]
    }

    /// The columns.
    pub(crate) const HEAD: [&'static str; 4] = ["CHECK", "SUBJECT", "RESULT", "DETAIL"];
}

/// Rows as text, each column as wide as its widest cell.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|at| rows.iter().filter_map(|row| row.get(at)).map(String::len).max().unwrap_or(0))
        .collect();
    let mut out = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}  "));
        out.push_str(cells.collect::<String>().trim_end());
        out.push('\n');
    }
    out
}
