//! The experiments as they will be run: presets, or what the options describe, scaled to fit.

use super::options::{Options, Scale};
use super::preset::{KB, ROWS, Row};
use crate::legacy::content::RECORD_BYTES_MIN;
use crate::legacy::protocol::Mode;
use crate::legacy::targets::Target;
use crate::machine::{Machine, bytes_text};
use nearstate_model::{Error, Result, limits};

/// One experiment as it will be run.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// Name of the preset, or `custom`.
    pub name: String,
    /// Operations in a sequence, after scaling.
    pub ops: u64,
    /// Operations in a sequence before scaling.
    pub ops_unscaled: u64,
    /// Sequences of each node.
    pub loops: u64,
    /// Simulator nodes.
    pub nodes: u64,
    /// Size of a value, in bytes.
    pub record_bytes: u64,
    /// Read or write.
    pub mode: Mode,
    /// Whether each reader has records of its own.
    pub is_disjoint: bool,
    /// Room of the database, in bytes.
    pub db_bytes: u64,
}

impl Setting {
    /// Records that the nodes read or write in all.
    pub fn records(&self) -> u64 {
        match (self.mode, self.is_disjoint) {
            (Mode::Read, false) => self.ops,
            (Mode::Read, true) | (Mode::Write, _) => self.ops * self.nodes,
        }
    }

    /// The first record of a node.
    pub fn first(&self, node: u64) -> u64 {
        if self.mode == Mode::Read && !self.is_disjoint { 0 } else { node * self.ops }
    }

    /// Runs of nodes that this setting will need.
    pub fn steps(&self, targets: &[Box<dyn Target>], options: &Options) -> usize {
        targets
            .iter()
            .map(|t| t.kinds(self.mode).iter().filter(|k| options.wants(**k)).count())
            .sum()
    }

    /// What was scaled, if anything was.
    pub fn scale_note(&self) -> Option<String> {
        (self.ops != self.ops_unscaled).then(|| {
            format!(
                "{} is scaled: sequences of {} operations instead of {}",
                self.name, self.ops, self.ops_unscaled
            )
        })
    }

    /// The setting in one line.
    pub fn line(&self) -> String {
        let plural = |n: u64, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
        format!(
            "{}: {} {}{}, {} x {} operations, {} records{}",
            self.name,
            plural(self.nodes, "node"),
            self.mode.name(),
            if self.nodes == 1 { "s" } else { "" },
            plural(self.loops, "sequence"),
            self.ops,
            bytes_text(self.record_bytes),
            if self.is_disjoint { ", disjoint" } else { "" },
        )
    }
}

/// The experiments that the options ask for.
///
/// # Errors
/// [`Error::BadArgument`] if a value would be too small or too large, or memory too little.
pub fn settings(options: &Options, machine: &Machine, appends: bool) -> Result<Vec<Setting>> {
    let custom = Row {
        name: "custom",
        ops: 10_000,
        record_bytes: KB,
        loops: 1,
        nodes: 10,
        mode: Mode::Read,
    };
    let is_asked = |row: &Row| {
        let is_numa = row.name.starts_with("thesis-numa-");
        options
            .preset
            .iter()
            .any(|p| p == row.name || (p == "all" && !is_numa) || (p == "numa" && is_numa))
    };
    let rows: Vec<Row> = if options.preset.is_empty() {
        vec![custom]
    } else {
        ROWS.into_iter().filter(is_asked).collect()
    };
    rows.into_iter().map(|r| setting(r, options, machine, appends)).collect()
}

fn setting(row: Row, options: &Options, machine: &Machine, appends: bool) -> Result<Setting> {
    let record_bytes = options.record_size.unwrap_or(row.record_bytes);
    check_record_bytes(record_bytes)?;
    let ops = options.num_ops.unwrap_or(row.ops);
    let mut setting = Setting {
        name: row.name.to_owned(),
        ops,
        ops_unscaled: ops,
        loops: options.num_loops.unwrap_or(row.loops),
        nodes: options.num_procs.unwrap_or(row.nodes),
        record_bytes,
        mode: options.access_mode.map_or(row.mode, Mode::from),
        is_disjoint: options.disjoint || row.is_disjoint(),
        db_bytes: 0,
    };
    // Half of what is free: the database, and as much again for the processes and their copies.
    let room = machine.memory_bytes_available / 2;
    let whole = room_needed(&setting, appends);
    setting.ops = match options.scale {
        Scale::Given(scale) => scaled(ops, scale),
        #[expect(clippy::cast_precision_loss, reason = "a ratio of sizes, not an exact count")]
        Scale::Auto if whole > room => scaled(ops, room as f64 / whole as f64),
        Scale::Auto => ops,
    };
    let needed = room_needed(&setting, appends);
    setting.db_bytes = options.db_size.unwrap_or(needed);
    if setting.db_bytes > machine.memory_bytes_available {
        return Err(Error::BadArgument {
            detail: format!(
                "{} needs a database of {}, and {} of memory are free: give a smaller --scale",
                setting.name,
                bytes_text(setting.db_bytes),
                bytes_text(machine.memory_bytes_available)
            ),
        });
    }
    Ok(setting)
}

fn check_record_bytes(bytes: u64) -> Result<()> {
    let (least, most) = (RECORD_BYTES_MIN as u64, limits::VALUE_BYTES_MAX as u64);
    if (least..=most).contains(&bytes) {
        return Ok(());
    }
    Err(Error::BadArgument {
        detail: format!("--record-size {bytes}: give {least} bytes to {}", bytes_text(most)),
    })
}

/// Room for the records with what each store adds to them. A target that appends has one copy of
/// each record for every loop.
fn room_needed(setting: &Setting, appends: bool) -> u64 {
    let copies = if appends && setting.mode == Mode::Write { setting.loops } else { 1 };
    let each = setting.record_bytes + setting.record_bytes / 2 + 512;
    (128_u64 << 20).saturating_add(setting.records().saturating_mul(copies).saturating_mul(each))
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rounded count of operations between 1 and 10^11"
)]
fn scaled(ops: u64, scale: f64) -> u64 {
    (ops as f64 * scale).round().clamp(1.0, 1e11) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::legacy::access::preset::NAMES;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn options(words: &str) -> Options {
        Line::parse_from(std::iter::once("access").chain(words.split_whitespace())).options
    }

    fn machine() -> Machine {
        Machine { cores: 2, memory_bytes_available: 20 << 30, ..Machine::default() }
    }

    #[test]
    fn all_means_the_six_and_a_factor_shortens_their_sequences() {
        let settings = settings(&options("--preset all --scale 0.2"), &machine(), true).unwrap();
        let names: Vec<&str> = settings.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, NAMES[2..8]);
        assert_eq!((settings[0].ops, settings[0].nodes, settings[4].loops), (2000, 10, 10));
        assert!(settings[0].scale_note().unwrap().contains("2000 operations instead of 10000"));
    }

    #[test]
    fn what_does_not_fit_in_memory_is_scaled_and_says_so() {
        let asked = options("--preset thesis-numa-4");
        let settings = settings(&asked, &machine(), true).unwrap();
        assert!(settings[0].ops < 1000 && settings[0].db_bytes <= 11 << 30);
        assert!(settings[0].scale_note().is_some());
        assert!(settings[0].is_disjoint);
    }

    #[test]
    fn a_factor_that_does_not_fit_is_refused_with_advice() {
        let asked = options("--preset thesis-numa-3 --scale 5");
        let e = settings(&asked, &machine(), true).unwrap_err().to_string();
        assert!(e.contains("smaller --scale"), "{e}");
    }

    #[test]
    fn options_override_a_preset() {
        let asked = options("--preset thesis-1 --num-procs 3 --record-size 2K --num-ops 50");
        let setting = settings(&asked, &machine(), false).unwrap().remove(0);
        assert_eq!((setting.nodes, setting.record_bytes, setting.ops), (3, 2048, 50));
        assert_eq!((setting.first(2), setting.records()), (100, 150));
        let read = options("--num-procs 3 --num-ops 50");
        let setting = settings(&read, &machine(), false).unwrap().remove(0);
        assert_eq!((setting.first(2), setting.records()), (0, 50));
        assert!(settings(&options("--record-size 8"), &machine(), false).is_err());
    }
}
