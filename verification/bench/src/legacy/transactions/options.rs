//! The command line of `nearstate bench transactions`.

use crate::legacy::micro::clock::Clock;
use clap::{Args, ValueEnum, ValueHint};
use std::path::PathBuf;

/// Measure transactions beside plain operations on the same records, and judge them by our goals.
#[expect(clippy::struct_excessive_bools, reason = "the switches of a command line")]
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:
  nearstate bench transactions
  nearstate bench transactions --quick --only update,reads
  nearstate bench transactions --only sessions --keys 1000,1000000
  nearstate bench transactions --only contention --sessions 2,16,1000
  nearstate bench transactions --only tatp --subscribers 1000000")]
pub struct Options {
    /// Numbers of records to measure with; the smallest is the one that is called hot
    #[arg(long, value_delimiter = ',', default_value = "1000,100000,1000000")]
    #[arg(value_parser = clap::value_parser!(u64).range(64..=100_000_000))]
    pub keys: Vec<u64>,

    /// How often every measure is taken; the table shows the median and the spread
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub rounds: u64,

    /// Operations of one turn
    #[arg(long, default_value_t = 100_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(64..=100_000_000))]
    pub ops: u64,

    /// Only these groups of measures [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub only: Vec<Group>,

    /// Subscribers of the TATP database
    #[arg(long, default_value_t = 100_000)]
    #[arg(value_parser = clap::value_parser!(u32).range(100..=100_000_000))]
    pub subscribers: u32,

    /// Numbers of sessions that write one record at once, a thread each
    #[arg(long, value_delimiter = ',', default_value = "2,16,1000")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub sessions: Vec<u64>,

    /// How long they do, in milliseconds
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u64).range(10..))]
    pub contention_ms: u64,

    /// Fewer rounds, fewer operations, at most 100,000 records, shorter contention
    #[arg(long)]
    pub quick: bool,

    /// What is counted: all time, or only that in which the measuring thread ran (a busy machine)
    #[arg(long, value_enum, default_value = "wall")]
    pub clock: Clock,

    /// Leave the region's memory on 4 KiB pages after loading
    #[arg(long)]
    pub no_collapse: bool,

    /// Folder in memory for the regions
    #[arg(long, default_value = "/dev/shm", value_hint = ValueHint::DirPath)]
    pub dir: PathBuf,

    /// Where all chance comes from
    #[arg(long, default_value_t = 20_191_125)]
    pub seed: u64,

    /// Print only the goals and what became of them, as lines of a Markdown table
    #[arg(long, conflicts_with = "json")]
    pub markdown: bool,

    /// Print JSON instead of the tables
    #[arg(long)]
    pub json: bool,
}

/// Measures that are taken together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Group {
    /// Read, change and write one context
    Update,
    /// Several records in one transaction beside as many plain puts
    Several,
    /// Read four records at one instant
    Reads,
    /// Attach and detach sessions with three tags, two of them unique
    Sessions,
    /// Telecom Application Transaction Processing
    Tatp,
    /// Two processes that add to counters
    Counters,
    /// Many writers of one record
    Contention,
}

impl Options {
    /// Whether this group is wanted.
    pub fn wants(&self, group: Group) -> bool {
        self.only.is_empty() || self.only.contains(&group)
    }

    /// Rounds, shortened if it is to be quick.
    pub fn rounds(&self) -> u64 {
        if self.quick { self.rounds.min(5) } else { self.rounds }
    }

    /// Operations of a turn.
    pub fn ops(&self) -> u64 {
        if self.quick { self.ops.min(20_000) } else { self.ops }
    }

    /// How long conflicting writers write, in milliseconds.
    pub fn contention_ms(&self) -> u64 {
        if self.quick { self.contention_ms.min(1000) } else { self.contention_ms }
    }

    /// Numbers of records to measure with, in ascending order.
    pub fn keys(&self) -> Vec<u64> {
        let most = if self.quick { 100_000 } else { u64::MAX };
        let mut out: Vec<u64> = self.keys.iter().map(|k| (*k).min(most)).collect();
        out.sort_unstable();
        out.dedup();
        out
    }
}
