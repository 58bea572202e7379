//! The command line, named as in paper 1's Table 1.

use super::preset;
use crate::legacy::protocol::{Kind, Mode, Touch};
use crate::legacy::targets;
use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum, ValueHint};
use std::path::PathBuf;

/// Reproduce the thesis's data access experiments on this machine.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:
  nearstate bench access --preset all --scale 0.2 --report report.html
  nearstate bench access --preset thesis-2 --target region,redis
  nearstate bench access --num-procs 4 --num-ops 50000 --access-mode write --csv samples.csv
  nearstate bench access --target redis --url redis://10.0.0.7:6379 --num-procs 4")]
pub struct Options {
    /// Rows of the thesis's Table 2 (all of them: all) and Table 3 (numa)
    #[arg(long, value_delimiter = ',', value_parser = PossibleValuesParser::new(preset::NAMES))]
    pub preset: Vec<String>,

    /// Operations in a sequence [default: 10000, or the preset's]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub num_ops: Option<u64>,

    /// How often each node repeats its sequence [default: 1, or the preset's]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub num_loops: Option<u64>,

    /// Room of the database, such as 300G [default: what the records need]
    #[arg(long, value_parser = bytes)]
    pub db_size: Option<u64>,

    /// Pause between two sequences of a node, such as 10ms or 250us
    #[arg(long, value_parser = interval_us, default_value = "0ms")]
    pub interval_time: u64,

    /// Size of a value, such as 1K or 1M [default: 1K, or the preset's]
    #[arg(long, value_parser = bytes)]
    pub record_size: Option<u64>,

    /// Simulator nodes: processes that access at the same time [default: 10, or the preset's]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub num_procs: Option<u64>,

    /// Whether the nodes read or write [default: read, or the preset's]
    #[arg(long, value_enum)]
    pub access_mode: Option<AccessMode>,

    /// What to measure; ratios are relative to the first [default: all that are installed]
    #[arg(long, value_delimiter = ',', value_parser = PossibleValuesParser::new(targets::NAMES))]
    pub target: Vec<String>,

    /// Ways to access a record [default: all that a target has]
    #[arg(long, value_delimiter = ',', value_parser = kind)]
    pub kinds: Vec<Kind>,

    /// Shortens the sequences: 0.2 is a fifth; auto is 1, or what memory allows
    #[arg(long, default_value = "auto", value_parser = scale)]
    pub scale: Scale,

    /// NUMA node whose memory holds the database (the nodes run on NUMA node 0)
    #[arg(long)]
    pub numa_node: Option<u32>,

    /// A running Redis instead of one of our own; only keys named nearstate-bench:* are touched
    #[arg(long, value_hint = ValueHint::Url)]
    pub url: Option<String>,

    /// How much of each value a reader looks at
    #[arg(long, value_enum, default_value = "all")]
    pub touch: TouchArgument,

    /// Every node reads records of its own, as in the thesis's Table 3 [default: the preset's]
    #[arg(long)]
    pub disjoint: bool,

    /// Begin to read at once, without one unmeasured sequence
    #[arg(long)]
    pub cold: bool,

    /// Where all chance comes from
    #[arg(long, default_value_t = 20_191_125)]
    pub seed: u64,

    /// Folder in memory for regions and sockets
    #[arg(long, default_value = "/dev/shm", value_hint = ValueHint::DirPath)]
    pub dir: PathBuf,

    /// Print JSON instead of the table
    #[arg(long)]
    pub json: bool,

    /// Write every sequence average to this file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub csv: Option<PathBuf>,

    /// Write one self-contained page with histograms and ECDFs to this file
    #[arg(long, value_name = "FILE.html", value_hint = ValueHint::FilePath)]
    pub report: Option<PathBuf>,
}

impl Options {
    /// Whether this kind of access is wanted.
    pub fn wants(&self, kind: Kind) -> bool {
        self.kinds.is_empty() || self.kinds.contains(&kind)
    }

    /// How much of each value to look at.
    pub fn touch(&self) -> Touch {
        match self.touch {
            TouchArgument::All => Touch::All,
            TouchArgument::Word => Touch::Word,
        }
    }
}

/// The `accessMode` of paper 1, Table 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AccessMode {
    /// Records are loaded, then read.
    Read,
    /// An empty database is written to.
    Write,
}

impl From<AccessMode> for Mode {
    fn from(mode: AccessMode) -> Self {
        match mode {
            AccessMode::Read => Self::Read,
            AccessMode::Write => Self::Write,
        }
    }
}

/// How much of a value a reader looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TouchArgument {
    /// Every byte, summed and verified.
    All,
    /// The first word and the last byte.
    Word,
}

/// How much shorter the sequences are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    /// 1, or less if the records would not fit in memory.
    Auto,
    /// As given.
    Given(f64),
}

fn scale(text: &str) -> Result<Scale, String> {
    if text == "auto" {
        return Ok(Scale::Auto);
    }
    match text.parse::<f64>() {
        Ok(scale) if scale > 0.0 && scale <= 1000.0 => Ok(Scale::Given(scale)),
        _ => Err("give auto, or a factor such as 0.2 (above 0, at most 1000)".to_owned()),
    }
}

fn kind(text: &str) -> Result<Kind, String> {
    Kind::parse(text).map_err(|_| {
        let names: Vec<&str> = Kind::ALL.iter().map(|k| k.name()).collect();
        format!("give some of {}", names.join(","))
    })
}

/// A number of bytes; K, M, G and T are powers of 1024.
fn bytes(text: &str) -> Result<u64, String> {
    let upper = text.trim_end_matches(['B', 'b']).trim_end_matches('i').to_ascii_uppercase();
    let (digits, shift) = match upper.chars().last() {
        Some('K') => (upper.trim_end_matches('K'), 10),
        Some('M') => (upper.trim_end_matches('M'), 20),
        Some('G') => (upper.trim_end_matches('G'), 30),
        Some('T') => (upper.trim_end_matches('T'), 40),
        _ => (upper.as_str(), 0),
    };
    let wrong = || "give a number of bytes such as 1024, 1K, 64M or 300G".to_owned();
    let number: u64 = digits.trim().parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).filter(|b| *b > 0).ok_or_else(wrong)
}

fn interval_us(text: &str) -> Result<u64, String> {
    let (digits, factor) = match text {
        t if t.ends_with("us") => (t.trim_end_matches("us"), 1),
        t if t.ends_with("ms") => (t.trim_end_matches("ms"), 1000),
        t if t.ends_with('s') => (t.trim_end_matches('s'), 1_000_000),
        t => (t, 1000),
    };
    let wrong = || "give a duration such as 10ms, 250us or 1s (a bare number is ms)".to_owned();
    let number: u64 = digits.trim().parse().map_err(|_| wrong())?;
    number.checked_mul(factor).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_1024() {
        assert_eq!(bytes("1K"), Ok(1024));
        assert_eq!(bytes("300G"), Ok(300 << 30));
        assert_eq!(bytes("64MiB"), Ok(64 << 20));
        assert_eq!(bytes("77"), Ok(77));
        assert!(bytes("0").is_err() && bytes("x").is_err() && bytes("99999999999T").is_err());
    }

    #[test]
    fn a_bare_interval_is_in_milliseconds() {
        assert_eq!(interval_us("3"), Ok(3000));
        assert_eq!(interval_us("250us"), Ok(250));
        assert_eq!(interval_us("1s"), Ok(1_000_000));
        assert!(interval_us("soon").is_err());
    }

    #[test]
    fn a_scale_is_above_zero() {
        assert_eq!(scale("auto"), Ok(Scale::Auto));
        assert_eq!(scale("0.2"), Ok(Scale::Given(0.2)));
        assert!(scale("0").is_err() && scale("-1").is_err() && scale("NaN").is_err());
    }
}
