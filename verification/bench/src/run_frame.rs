//! What every run with tables of its own has, and the parts of its report that all share.

use crate::html::HtmlBlock;
use crate::machine::Machine;
use crate::noise;
use crate::result::Noise;
use crate::table::list_text;
use serde::{Deserialize, Serialize};
use std::time::{SystemTime, UNIX_EPOCH};

/// How a run was made, and what is to be kept in mind about it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RunFrame {
    /// The command that made it.
    pub command: String,
    /// Seconds since 1970 when it began.
    pub began_s: u64,
    /// Properties of the machine: name and value.
    pub machine: Vec<(String, String)>,
    /// How steady it was before the run.
    pub noise: Noise,
    pub caveats: Vec<String>,
    /// Reasons why the run does not count; empty if it does.
    #[serde(default)]
    pub invalid: Vec<String>,
    /// True if it was stopped before its end.
    pub is_partial: bool,
}

impl RunFrame {
    /// That of a run which begins now. Measures how steady the machine is.
    pub fn begin(command: &str, machine: &Machine) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let noise = noise::measure(crate::clock::monotonic_ns);
        let rows = machine.rows().into_iter();
        Self {
            command: command.to_owned(),
            began_s: since.map_or(0, |since| since.as_secs()),
            machine: rows.map(|(name, value)| (name.to_owned(), value)).collect(),
            caveats: noise::warning(&noise, machine.cores).into_iter().collect(),
            noise,
            invalid: Vec::new(),
            is_partial: false,
        }
    }

    /// Title and lines of what a reader has to know first.
    pub fn alarms(&self) -> Vec<(String, Vec<String>)> {
        let mut out = Vec::new();
        if !self.invalid.is_empty() {
            let title = "INVALID: figures of this run do not count".to_owned();
            out.push((title, self.invalid.clone()));
        }
        if self.is_partial {
            let why = "only what was completed is reported".to_owned();
            out.push(("Stopped early".to_owned(), vec![why]));
        }
        out
    }

    /// The alarms for a terminal, between empty lines.
    pub fn alarms_text(&self) -> String {
        let mut out = String::new();
        for (title, lines) in self.alarms() {
            out.extend(["\n", &title, "\n", &list_text(&lines)]);
        }
        out
    }

    /// The end of the text for a terminal.
    pub fn end_text(&self) -> String {
        format!("\nKeep in mind\n{}", list_text(&self.caveats))
    }

    /// The blocks of a page: alarms, those of the run, and what all pages end with.
    pub fn blocks(&self, own: Vec<HtmlBlock>) -> Vec<HtmlBlock> {
        let alarms = self.alarms().into_iter();
        let alarms = alarms.map(|(title, lines)| HtmlBlock::Alarm(title, lines));
        let end = [
            HtmlBlock::heading("Keep in mind"),
            HtmlBlock::List(self.caveats.clone()),
            HtmlBlock::heading("Circumstances"),
            HtmlBlock::Code(self.command.clone()),
            HtmlBlock::Facts(self.machine.clone()),
        ];
        alarms.chain(own).chain(end).collect()
    }
}
