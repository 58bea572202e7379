//! The command line of `nearstate bench micro`.

use super::clock::Clock;
use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum, ValueHint};
use std::path::PathBuf;

/// Measure single operations beside the peers that this machine has, and judge them by our goals.
#[derive(Args, Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
#[command(after_help = "Examples:
  nearstate bench micro
  nearstate bench micro --quick --targets region,lmdb
  nearstate bench micro --only scan,calls,listing
  nearstate bench micro --server
  nearstate bench micro --only growth --sizes 1000,100000,10000000")]
pub struct Options {
    /// Numbers of records to measure with
    #[arg(long, value_delimiter = ',', default_value = "1000,100000,1000000")]
    #[arg(value_parser = clap::value_parser!(u64).range(64..=100_000_000))]
    pub keys: Vec<u64>,

    /// Size of a value, in bytes
    #[arg(long, default_value_t = 1024)]
    #[arg(value_parser = clap::value_parser!(u64).range(32..=1_048_576))]
    pub value_bytes: u64,

    /// How often every measure is taken; the table shows the median and the spread
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub rounds: u64,

    /// What to measure [default: all that are installed]
    #[arg(long, value_delimiter = ',')]
    #[arg(value_parser = PossibleValuesParser::new(super::peers::NAMES))]
    pub targets: Vec<String>,

    /// Only these groups of measures [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub only: Vec<Group>,

    /// Numbers of records for the curve of growth
    #[arg(long, value_delimiter = ',', default_value = "1000,10000,100000,1000000,10000000")]
    #[arg(value_parser = clap::value_parser!(u64).range(64..=1_000_000_000))]
    pub sizes: Vec<u64>,

    /// Size of a value on the curve of growth, in bytes
    #[arg(long, default_value_t = 128)]
    #[arg(value_parser = clap::value_parser!(u64).range(32..=65_536))]
    pub growth_value_bytes: u64,

    /// Fewer rounds, fewer operations, at most 100,000 records
    #[arg(long)]
    pub quick: bool,

    /// What is counted: all time, or only that in which the measuring thread ran (a busy machine)
    #[arg(long, value_enum, default_value = "wall")]
    pub clock: Clock,

    /// Measure the cores of the node instead
    #[arg(long)]
    pub server: bool,

    /// Leave the region's memory on 4 KiB pages after loading
    #[arg(long)]
    pub no_collapse: bool,

    /// Folder in memory for the databases
    #[arg(long, default_value = "/dev/shm", value_hint = ValueHint::DirPath)]
    pub dir: PathBuf,

    /// Where all chance comes from
    #[arg(long, default_value_t = 20_191_125)]
    pub seed: u64,

    /// Print JSON instead of the tables
    #[arg(long)]
    pub json: bool,
}

/// Measures that are taken together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Group {
    /// Keyed reads, one after the other
    Reads,
    /// Sixteen keys at once
    Batch,
    /// Each key depends on the value before
    Chain,
    /// Puts, alone and beside a reader
    Puts,
    /// Steps through all records
    Scan,
    /// Ten processes that write
    Writers,
    /// A reader beside a writer
    Slowed,
    /// Bytes for each record
    Bytes,
    /// System calls of a read
    Calls,
    /// Locked instructions of a read
    Listing,
    /// Cost against the number of records
    Growth,
}

impl Options {
    /// Whether this group is wanted.
    pub fn wants(&self, group: Group) -> bool {
        self.only.is_empty() || self.only.contains(&group)
    }

    /// Rounds, shortened if it is to be quick.
    pub fn rounds(&self) -> u64 {
        if self.quick { self.rounds.min(3) } else { self.rounds }
    }

    /// Operations in a turn of a target that answers within a microsecond or two.
    pub fn ops(&self) -> u64 {
        if self.quick { 50_000 } else { 200_000 }
    }

    /// Numbers of records to measure with, in ascending order.
    pub fn keys(&self) -> Vec<u64> {
        self.shortened(&self.keys)
    }

    /// Numbers of records for the curve of growth, in ascending order.
    pub fn sizes(&self) -> Vec<u64> {
        self.shortened(&self.sizes)
    }

    /// The number of records at which the goals that name 100,000 are judged.
    pub fn keys_middle(&self) -> u64 {
        let keys = self.keys();
        keys.iter().copied().filter(|k| *k <= 100_000).max().or(keys.first().copied()).unwrap_or(64)
    }

    /// The largest number of records.
    pub fn keys_most(&self) -> u64 {
        self.keys().last().copied().unwrap_or(64)
    }

    fn shortened(&self, list: &[u64]) -> Vec<u64> {
        let most = if self.quick { 100_000 } else { u64::MAX };
        let mut out: Vec<u64> = list.iter().map(|k| (*k).min(most)).collect();
        out.sort_unstable();
        out.dedup();
        out
    }
}
