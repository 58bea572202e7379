//! What is planned: slices, their traffic, and the parameters of the plan.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use nearstate_model::{Error, Result};

use crate::cpu_set::{CPUS_MAX, CpuSet};

/// The longest name of a slice. Names become parts of file names and of unit names.
const NAME_BYTES_MAX: usize = 64;

/// The traffic of a slice, relative to what its cores can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TrafficLevel {
    /// Up to [`Thresholds::low_max_mbps`]. The cache that hyper-threads share counts most.
    Low,
    /// Between low and high. Two physical cores count most.
    Medium,
    /// Above [`Thresholds::medium_max_mbps`].
    High,
}

impl fmt::Display for TrafficLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        })
    }
}

impl FromStr for TrafficLevel {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "low" => Ok(Self::Low),
            "medium" => Ok(Self::Medium),
            "high" => Ok(Self::High),
            _ => Err(Error::BadArgument {
                detail: format!("{text:?} is no level of traffic; expected low, medium or high"),
            }),
        }
    }
}

/// The demanded traffic of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SliceLoad {
    /// A level.
    Level(TrafficLevel),
    /// A rate in Mbit/s, whose level follows from [`Thresholds`].
    Mbps(u32),
}

/// A slice that needs processors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceRequest {
    /// Its name, unique in a plan: letters, digits, `.`, `_`, `-`.
    pub name: String,
    /// How many logical processors it needs, at least 1.
    pub cores: u32,
    /// Its traffic.
    pub load: SliceLoad,
}

impl FromStr for SliceRequest {
    type Err = Error;

    /// Reads `NAME:CORES:TRAFFIC`, the traffic as `low`, `medium`, `high` or Mbit/s.
    fn from_str(text: &str) -> Result<Self> {
        let bad = |why: String| Error::BadArgument {
            detail: format!(
                "{text:?} is no slice: {why}; expected NAME:CORES:TRAFFIC, such as upf:4:high or \
                 upf:4:350 (Mbit/s)"
            ),
        };
        let fields: Vec<&str> = text.split(':').collect();
        let [name, cores, load] = fields.as_slice() else {
            return Err(bad(format!("it has {} fields", fields.len())));
        };
        check_name(name).map_err(&bad)?;
        let count = cores.parse::<u32>().ok().filter(|count| (1..=CPUS_MAX).contains(count));
        let cores = count.ok_or_else(|| bad(format!("{cores:?} is no number of cores")))?;
        let load = match load.parse::<u32>() {
            Ok(mbps) => SliceLoad::Mbps(mbps),
            Err(_) => SliceLoad::Level(load.parse().map_err(|e: Error| bad(e.to_string()))?),
        };
        Ok(Self { name: (*name).to_owned(), cores, load })
    }
}

pub(super) fn check_name(name: &str) -> std::result::Result<(), String> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let starts = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if starts && name.len() <= NAME_BYTES_MAX && name.chars().all(is_allowed) {
        return Ok(());
    }
    Err(format!(
        "the name {name:?} must start with a letter or digit and have at most {NAME_BYTES_MAX} \
         letters, digits, '.', '_' or '-'"
    ))
}

/// Processors that a program already uses, or that the operator has chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePin {
    /// The name of the slice.
    pub name: String,
    /// The index of the machine.
    pub machine: usize,
    /// Its processors.
    pub cpus: CpuSet,
}

/// Between which rates the level of traffic changes. Paper 5 leaves them to the design goal; its
/// Figure 11 shows hyper-thread pairs ahead up to 200 Mbit/s and behind from 400 Mbit/s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// The highest rate of low traffic, in Mbit/s.
    pub low_max_mbps: u32,
    /// The highest rate of medium traffic, in Mbit/s.
    pub medium_max_mbps: u32,
    /// A slice of an earlier plan changes its level only if its rate is this share beyond the
    /// threshold, in percent.
    pub hysteresis_percent: u32,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self { low_max_mbps: 200, medium_max_mbps: 399, hysteresis_percent: 10 }
    }
}

impl Thresholds {
    /// The level of a load. `before` is the level of an earlier plan.
    pub fn level(&self, load: SliceLoad, before: Option<TrafficLevel>) -> TrafficLevel {
        let mbps = match load {
            SliceLoad::Level(level) => return level,
            SliceLoad::Mbps(mbps) => u64::from(mbps) * 100,
        };
        let exceeds = |bound: u32, above: TrafficLevel| {
            let band = u64::from(bound) * u64::from(self.hysteresis_percent);
            let bound = u64::from(bound) * 100;
            match before {
                None => mbps > bound,
                Some(level) if level >= above => mbps + band > bound,
                Some(_) => mbps > bound + band,
            }
        };
        if exceeds(self.medium_max_mbps, TrafficLevel::High) {
            TrafficLevel::High
        } else if exceeds(self.low_max_mbps, TrafficLevel::Medium) {
            TrafficLevel::Medium
        } else {
            TrafficLevel::Low
        }
    }

    /// Checks that low ends before medium.
    pub(super) fn check(&self) -> Result<()> {
        if self.low_max_mbps <= self.medium_max_mbps && self.hysteresis_percent < 100 {
            return Ok(());
        }
        Err(Error::BadArgument {
            detail: format!(
                "low traffic ends at {} Mbit/s, medium traffic at {}, the hysteresis is {} %; \
                 expected ascending rates and less than 100 %",
                self.low_max_mbps, self.medium_max_mbps, self.hysteresis_percent
            ),
        })
    }
}

/// Which pairs a plan may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scheme {
    /// By the level of traffic, as in Figure 6 of paper 5.
    #[default]
    Adaptive,
    /// Hyper-thread pairs only.
    HyperThread,
    /// Pairs of two cores of a node only.
    Collocated,
    /// Pairs of two nodes only.
    NonCollocated,
}

/// Parameters of a plan.
#[derive(Clone, Debug, Default)]
pub struct PlanOptions {
    /// When the level of traffic changes.
    pub thresholds: Thresholds,
    /// Which pairs are used.
    pub scheme: Scheme,
    /// The fewest physical cores: hyper-thread pairs at every level, single processors on cores
    /// that are in use already.
    pub is_power_saving: bool,
    /// Whether reasons are given.
    pub is_explained: bool,
    /// Processors that are never used, on every machine.
    pub reserved: CpuSet,
    /// Processors that the kernel uses most: their cores are used last.
    pub housekeeping: CpuSet,
    /// The node of the network interface, by machine.
    pub nic_nodes: BTreeMap<usize, u32>,
    /// Processors that are not idle, by machine. They are not used.
    pub busy: BTreeMap<usize, CpuSet>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_read_and_refused() {
        let slice: SliceRequest = "upf-1:3:350".parse().unwrap();
        assert_eq!((&*slice.name, slice.cores, slice.load), ("upf-1", 3, SliceLoad::Mbps(350)));
        for (text, reason) in [
            ("upf:4", "2 fields"),
            ("upf:4:high:1", "4 fields"),
            ("upf:0:high", "no number of cores"),
            ("upf:-1:high", "no number of cores"),
            ("upf:99999999:high", "no number of cores"),
            ("upf:4:fast", "no level of traffic"),
            ("../upf:4:low", "the name"),
            (":4:low", "the name"),
        ] {
            let refused = text.parse::<SliceRequest>().unwrap_err().to_string();
            assert!(refused.contains(reason) && refused.contains("such as upf:4"), "{refused}");
        }
    }

    #[test]
    fn a_level_changes_only_beyond_the_hysteresis() {
        use TrafficLevel::{High, Low, Medium};
        let thresholds = Thresholds::default();
        let level = |mbps, before| thresholds.level(SliceLoad::Mbps(mbps), before);
        assert_eq!([200, 201, 399, 400].map(|mbps| level(mbps, None)), [Low, Medium, Medium, High]);
        assert_eq!([220, 221].map(|mbps| level(mbps, Some(Low))), [Low, Medium]);
        assert_eq!([181, 180].map(|mbps| level(mbps, Some(Medium))), [Medium, Low]);
        assert_eq!([360, 359, 180].map(|mbps| level(mbps, Some(High))), [High, Medium, Low]);
        assert_eq!([438, 439].map(|mbps| level(mbps, Some(Low))), [Medium, High]);
    }
}
