//! The parameters of a run, which are saved with it.

use crate::random::AccessDistribution;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Parameters of a workload; the same for every client and target of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Parameters {
    /// UEs, subscribers, sessions or records, over all clients.
    pub records: u64,
    /// One of the workload's variants.
    pub variant: String,
    /// Distribution of the accesses over the records.
    pub spread: AccessDistribution,
    /// Seed of all random choices.
    pub seed: u64,
    /// Bytes of a value, if the workload defines no size.
    pub value_bytes: Option<u64>,
    /// Each client reads and replaces only its own records, instead of sharing them.
    pub has_own_records: bool,
}

/// Distribution of the intended starts of an open loop, with the same mean rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Arrivals {
    /// Equal gaps.
    #[default]
    Constant,
    /// Independent arrivals: exponential gaps.
    Poisson,
    /// Occasional bursts, as when a train reaches a new tracking area. The signalling of real
    /// networks is not Poisson (arXiv 2212.13248); the parameters are ours.
    Bursts,
}

/// A fault of a store, injected between client and target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// One write is acknowledged but not done.
    LostUpdate,
    /// One read returns the bytes of another record.
    WrongAnswer,
    /// One write is acknowledged late.
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
    fn a_fault_is_printed_as_its_option() {
        for fault in Fault::value_variants() {
            assert_eq!(Fault::from_str(&fault.to_string(), false), Ok(*fault));
        }
    }
}
