//! What can be set of a run and is saved with it.

use crate::random::Spread;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What can be set of a workload; the same for every client and target of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Parameters {
    /// UEs, subscribers, sessions or records, over all clients.
    pub records: u64,
    /// Which variant: one of those that the workload offers.
    pub variant: String,
    /// How often each record is asked for.
    pub spread: Spread,
    /// Where all chance comes from.
    pub seed: u64,
    /// Bytes of a value, for workloads without a size of their own. Missing in older files.
    #[serde(default)]
    pub value_bytes: Option<u64>,
    /// Whether each client reads and replaces records of its own only, where clients of the
    /// workload otherwise share all records. Missing in older files.
    #[serde(default)]
    pub has_own_records: bool,
}

/// How the intended starts of an open loop follow each other: the mean rate is the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Arrivals {
    /// Equal gaps.
    #[default]
    Constant,
    /// Independent of each other: gaps are exponential.
    Poisson,
    /// In bursts: now and then many at once, as when a train reaches a new tracking area. The
    /// signalling of real networks is not Poisson (arXiv 2212.13248); the parameters are ours.
    Bursts,
}

/// A fault of a store, planted between client and target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// One write is answered as done but is not.
    LostUpdate,
    /// One read is answered with the bytes of another record.
    WrongAnswer,
    /// One write is answered late.
    Stall,
}

/// As it is given on the command line.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LostUpdate => "lost-update",
            Self::WrongAnswer => "wrong-answer",
            Self::Stall => "stall",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum as _;

    #[test]
    fn a_fault_is_told_by_the_word_that_plants_it() {
        for fault in Fault::value_variants() {
            assert_eq!(Fault::from_str(&fault.to_string(), false), Ok(*fault));
        }
    }
}
