//! Progress on standard error: bars on a terminal, one line for each run elsewhere.

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

/// The whole call: how many runs there are, and the one that is on.
#[derive(Debug)]
pub struct Display {
    bars: MultiProgress,
    overall: ProgressBar,
    is_terminal: bool,
}

impl Display {
    /// For a call of this many runs.
    pub fn new(runs: usize) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        let target =
            if is_terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bars = MultiProgress::with_draw_target(target);
        let overall = bars.add(ProgressBar::new(runs as u64));
        overall.set_style(style("{bar:30.cyan} {pos}/{len} runs, {elapsed} so far, {eta} to go"));
        overall.enable_steady_tick(Duration::from_millis(250));
        Self { bars, overall, is_terminal }
    }

    /// A line that stays.
    pub fn print(&self, line: &str) {
        if self.is_terminal {
            let _ = self.bars.println(line);
        } else {
            // Standard error may be closed; that is no reason to stop.
            let _ = writeln!(std::io::stderr(), "{line}");
        }
    }

    /// Something with `length` parts begins.
    pub fn begin(&self, title: String, length: u64) -> ProgressStep<'_> {
        let bar = self.bars.add(ProgressBar::new(length));
        bar.set_style(style("  {spinner} {msg:48} {bar:24} {human_pos}/{human_len} {per_sec}"));
        bar.enable_steady_tick(Duration::from_millis(120));
        bar.set_message(title.clone());
        ProgressStep { display: self, bar, title, start: Instant::now() }
    }

    /// Removes the bars at the end. Printed lines stay.
    pub fn finish(&self) {
        self.overall.finish_and_clear();
    }
}

/// A step in progress.
#[derive(Debug)]
pub struct ProgressStep<'a> {
    display: &'a Display,
    bar: ProgressBar,
    title: String,
    start: Instant,
}

impl ProgressStep<'_> {
    /// Adds completed parts.
    pub fn done(&self, parts: u64) {
        self.bar.inc(parts);
    }

    /// Shows the current activity.
    pub fn phase(&self, phase: &str) {
        self.bar.set_message(format!("{} ({phase})", self.title));
    }

    /// Prints the end of a run with a short `outcome`.
    pub fn finish_run(self, outcome: &str) {
        self.bar.finish_and_clear();
        self.display.overall.inc(1);
        let took = self.start.elapsed().as_secs_f64();
        self.display.print(&format!("  {:44} {outcome} [{took:.1} s]", self.title));
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("━╸─")
}
