//! Division of a memory limit among the limits of the node, so that they cannot exceed it together.
//!
//! ```text
//! limit  >=  region (if it is in memory) + connections + rings + process
//!            + cores x (core_bytes_max + one request or reply) + pubsub_bytes_max
//! ```
//!
//! The first line is fixed by the settings. Of the rest, messages of subscribers get a quarter and
//! the cores three quarters, unless these are set as well.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nearstate_model::{Error, Result};

use super::memory_limit::MemoryLimit;

/// Limit of a core without a memory limit.
const CORE_BYTES: u64 = 2 << 30;

/// Limit of messages without a memory limit.
const PUBSUB_BYTES: u64 = nearstate_resp::server::MESSAGES_BYTES_MAX as u64;

/// The least derived limit of a core. With less, ordinary requests of a few clients at the same
/// time would be refused.
const CORE_BYTES_MIN: u64 = 16 << 20;

/// The least derived limit of messages.
const PUBSUB_BYTES_MIN: u64 = 8 << 20;

/// Memory of an idle connection, with that of the kernel's socket.
const CONNECTION_BYTES: u64 = 4 << 10;

/// Memory of a ring.
const RING_BYTES: u64 = 132 << 10;

/// Memory of the process besides: code, stacks, metrics, tracked keys, failed authentications.
const PROCESS_BYTES: u64 = 96 << 20;

/// Bytes of the heap that one row of the tables describes, and bytes of such a row: word and bitmap
/// of a chunk.
const CHUNK_BYTES: u64 = 256 << 10;
const CHUNK_TABLE_BYTES: u64 = 520;

/// Memory of the other tables: a thousand sessions (4 KiB) and three thousand namespaces (1 KiB).
const TABLE_BYTES: u64 = 8 << 20;

/// The unit of `st_blocks`.
const BLOCK_BYTES: u64 = 512;

/// What the file of a region may occupy when its heap is full. Tables are allocated when sessions
/// and namespaces use them, unless the region was created with all its memory: then they occupy
/// 132 MiB.
pub(crate) fn file_bytes(path: &Path, heap_bytes: u64) -> u64 {
    let allocated = std::fs::metadata(path).map_or(0, |file| file.blocks() * BLOCK_BYTES);
    let chunk_tables = heap_bytes.div_ceil(CHUNK_BYTES).saturating_mul(CHUNK_TABLE_BYTES);
    heap_bytes.saturating_add(chunk_tables).saturating_add(TABLE_BYTES).max(allocated)
}

/// What the settings say about memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryDemand {
    /// What the region's file may occupy, 0 if it is not in memory.
    pub(crate) region: u64,
    pub(crate) cores: u64,
    pub(crate) connections_max: u64,
    pub(crate) rings_max: u64,
    pub(crate) output_bytes_max: u64,
    /// `None`: to be derived.
    pub(crate) core_bytes_max: Option<u64>,
    /// `None`: to be derived.
    pub(crate) pubsub_bytes_max: Option<u64>,
}

/// The limits of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryBudget {
    pub(crate) core_bytes_max: u64,
    pub(crate) pubsub_bytes_max: u64,
}

impl MemoryDemand {
    /// What does not depend on the derived limits.
    fn fixed(&self) -> u64 {
        let connections = self.connections_max.saturating_mul(CONNECTION_BYTES);
        let rings = self.rings_max.saturating_mul(RING_BYTES);
        [self.region, connections, rings].into_iter().fold(PROCESS_BYTES, u64::saturating_add)
    }

    /// What all cores may use with this limit: the limit, and one request or reply that exceeds it
    /// while it is handled.
    fn of_cores(&self, core_bytes_max: u64) -> u64 {
        let each = core_bytes_max.saturating_add(core_bytes_max.min(self.output_bytes_max));
        each.saturating_mul(self.cores)
    }

    /// The largest limit of a core with which all cores use at most `bytes`.
    fn core_limit(&self, bytes: u64) -> u64 {
        let each = bytes / self.cores.max(1);
        let limit = (each / 2).max(each.saturating_sub(self.output_bytes_max));
        limit.min(CORE_BYTES)
    }

    /// Divides the memory.
    ///
    /// # Errors
    /// `BadArgument`: the limits that are set exceed the memory limit, or too little is left for
    /// the others.
    pub(crate) fn divide(&self, limit: Option<&MemoryLimit>) -> Result<MemoryBudget> {
        let Some(limit) = limit else {
            return Ok(MemoryBudget {
                core_bytes_max: self.core_bytes_max.unwrap_or(CORE_BYTES),
                pubsub_bytes_max: self.pubsub_bytes_max.unwrap_or(PUBSUB_BYTES),
            });
        };
        let left = limit.bytes.saturating_sub(self.fixed());
        let (core, pubsub) = match (self.core_bytes_max, self.pubsub_bytes_max) {
            (Some(core), Some(pubsub)) => (core, pubsub),
            (Some(core), None) => {
                let rest = left.saturating_sub(self.of_cores(core));
                (core, rest.clamp(PUBSUB_BYTES_MIN, PUBSUB_BYTES))
            }
            (None, pubsub) => {
                let pubsub = pubsub.unwrap_or((left / 4).clamp(PUBSUB_BYTES_MIN, PUBSUB_BYTES));
                (self.core_limit(left.saturating_sub(pubsub)).max(CORE_BYTES_MIN), pubsub)
            }
        };
        let needed = self.of_cores(core).saturating_add(pubsub).saturating_add(self.fixed());
        if needed > limit.bytes {
            return Err(self.too_little(limit, needed, (core, pubsub)));
        }
        Ok(MemoryBudget { core_bytes_max: core, pubsub_bytes_max: pubsub })
    }

    fn too_little(&self, limit: &MemoryLimit, needed: u64, (core, pubsub): (u64, u64)) -> Error {
        let mib = |bytes: u64| format!("{} MiB", bytes.div_ceil(1 << 20));
        // As it was set: rounded, it could be more than what is needed.
        let exact = |bytes: u64| match bytes {
            0 => "0 bytes".to_owned(),
            _ if bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
            _ if bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
            _ => format!("{bytes} bytes"),
        };
        let Self { region, cores, connections_max, rings_max, .. } = self;
        Error::BadArgument {
            detail: format!(
                "the memory limit of {} ({}) is less than the {} that this node may use: region \
                 {}, {cores} cores with {} each, messages {}, {connections_max} connections {}, \
                 {rings_max} rings {}, process {}; raise the memory limit, or lower region.max \
                 (in a cluster partition.region_max), cores, limits.core_bytes_max, \
                 resp.pubsub_bytes_max or limits.connections_max, or set limits.memory_max",
                exact(limit.bytes),
                limit.origin,
                mib(needed),
                mib(*region),
                mib(self.of_cores(core) / (*cores).max(1)),
                mib(pubsub),
                mib(connections_max.saturating_mul(CONNECTION_BYTES)),
                mib(rings_max.saturating_mul(RING_BYTES)),
                mib(PROCESS_BYTES),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearstate_store::{CreateOptions, Region};

    const MIB: u64 = 1 << 20;

    /// The defaults with two cores.
    const DEMAND: MemoryDemand = MemoryDemand {
        region: 1034 * MIB + 32 * 1024,
        cores: 2,
        connections_max: 20_000,
        rings_max: 1024,
        output_bytes_max: 160 * MIB,
        core_bytes_max: None,
        pubsub_bytes_max: None,
    };

    fn limit(bytes: u64) -> MemoryLimit {
        MemoryLimit { bytes, origin: "memory.max".to_owned() }
    }

    fn used(demand: &MemoryDemand, budget: MemoryBudget) -> u64 {
        demand.fixed() + demand.of_cores(budget.core_bytes_max) + budget.pubsub_bytes_max
    }

    #[test]
    fn without_a_limit_the_defaults_hold() {
        let budget = DEMAND.divide(None).unwrap();
        assert_eq!(budget.core_bytes_max, CORE_BYTES);
        assert_eq!(budget.pubsub_bytes_max, PUBSUB_BYTES);
        assert_eq!(DEMAND.divide(Some(&limit(64 << 30))).unwrap(), budget, "nor with a large one");
    }

    #[test]
    fn derived_limits_fit_into_any_limit_that_is_accepted() {
        let mut accepted = 0;
        for mib in (64..16_384).step_by(37) {
            for cores in [1, 2, 16, 64] {
                for region in [0, 64 * MIB, 1024 * MIB] {
                    let demand = MemoryDemand { region, cores, ..DEMAND };
                    let Ok(budget) = demand.divide(Some(&limit(mib * MIB))) else { continue };
                    accepted += 1;
                    assert!(used(&demand, budget) <= mib * MIB, "{mib} MiB, {demand:?}");
                    assert!(budget.core_bytes_max >= CORE_BYTES_MIN);
                    assert!(budget.pubsub_bytes_max >= PUBSUB_BYTES_MIN);
                    let more = demand.divide(Some(&limit((mib + 100) * MIB))).unwrap();
                    assert!(more.core_bytes_max >= budget.core_bytes_max, "{mib} MiB");
                }
            }
        }
        assert!(accepted > 3000, "{accepted}");
    }

    /// The pod in docs/operate/serve.md.
    #[test]
    fn the_example_for_kubernetes_fits() {
        let budget = DEMAND.divide(Some(&limit(2048 * MIB))).unwrap();
        assert!(budget.core_bytes_max >= 129 * MIB, "the largest value is stored: {budget:?}");
        assert!(budget.pubsub_bytes_max >= 128 * MIB, "{budget:?}");
    }

    #[test]
    fn a_limit_that_is_too_small_is_named_as_it_was_set() {
        for (bytes, text) in [(4096, "4 KiB"), (1 << 20, "1 MiB"), (1000, "1000 bytes")] {
            let said = DEMAND.divide(Some(&limit(bytes))).unwrap_err().to_string();
            assert!(said.contains(&format!("the memory limit of {text} (")), "{said}");
        }
    }

    #[test]
    fn the_tables_of_a_region_count() {
        let folder = tempfile::tempdir().unwrap();
        let region_bytes = |populate: bool| {
            let path = folder.path().join(format!("region-{populate}"));
            let bytes_max = 64 * MIB;
            let options = CreateOptions { bytes_max, populate, ..CreateOptions::default() };
            let region = Region::create(&path, &options).unwrap();
            let file = std::fs::metadata(&path).unwrap();
            (file_bytes(&path, region.bytes_max()), file.len())
        };
        let (on_demand, length) = region_bytes(false);
        assert!((64 * MIB..80 * MIB).contains(&on_demand), "{on_demand} of {length}");
        let (full, length) = region_bytes(true);
        assert!(full >= length, "{full} of {length}");
        assert_eq!(file_bytes(&folder.path().join("none"), 1024 * MIB), DEMAND.region);
    }

    #[test]
    fn limits_that_are_set_are_kept_or_refused() {
        let set = MemoryDemand { core_bytes_max: Some(500 * MIB), ..DEMAND };
        let budget = set.divide(Some(&limit(3 << 30))).unwrap();
        assert_eq!(budget.core_bytes_max, 500 * MIB);
        assert!(used(&set, budget) <= 3 << 30);
        for demand in [
            set,
            MemoryDemand { pubsub_bytes_max: Some(1 << 30), ..DEMAND },
            MemoryDemand { region: 2 << 30, ..DEMAND },
            MemoryDemand { connections_max: 1_000_000, ..DEMAND },
            MemoryDemand { region: u64::MAX, connections_max: u64::MAX, ..DEMAND },
        ] {
            let error = demand.divide(Some(&limit(2 << 30))).unwrap_err().to_string();
            assert!(error.contains("the memory limit of 2048 MiB (memory.max)"), "{error}");
            assert!(error.contains("limits.memory_max"), "{error}");
        }
    }
}
