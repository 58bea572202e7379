//! The processors of a node's cores, and the memory node of a new region.

use nearstate_model::{Error, Result};
use nearstate_numa::{
    PlanOptions, SliceLoad, SliceRequest, Topology, TrafficLevel, discover, plan,
};
use nearstate_store::{NumaPolicy, Region};

use crate::log;
use crate::region::numa;
use crate::settings::{PlaceSetting, Settings};

/// The memory whose pages are read back when a node starts: 0.2 s at most.
const READ_BACK_BYTES: u64 = 1 << 30;

/// Where a node runs.
#[derive(Debug, Default)]
pub(super) struct NodePlace {
    /// The processors of the cores in their order; empty: the node chooses.
    pub(super) processors: Vec<usize>,
    /// The memory node that is nearest to most of them.
    memory_node: Option<u32>,
}

impl NodePlace {
    /// The number of cores; 0: the node chooses.
    pub(super) fn cores(&self, settings: &Settings) -> usize {
        match (settings.cores.0, self.processors.len()) {
            (0, placed) => placed,
            (some, _) => some,
        }
    }

    /// Where the memory of a region is, read back, for the log. `None`: no place was asked for. A
    /// region that existed has the policy that it was created with.
    pub(super) fn memory_of(&self, region: &Region) -> Option<String> {
        self.memory_node?;
        let pages = region.pages_by_node_up_to(READ_BACK_BYTES);
        let seen = pages.and_then(|pages| Ok((pages, region.numa_policy()?)));
        Some(match seen {
            Ok((pages, policy)) => {
                format!("{}, policy {}", numa::pages_text(&pages), numa::policy_text(&policy))
            }
            Err(error) => format!("unknown: {error}"),
        })
    }

    /// The policy of a region that is created.
    pub(super) fn numa_policy(&self) -> NumaPolicy {
        self.memory_node.map_or(NumaPolicy::Default, |node| NumaPolicy::Preferred(vec![node]))
    }
}

/// Finds the place by the setting, and logs it.
///
/// # Errors
/// `BadArgument`: more cores than processors, or processors that do not exist.
pub(super) fn find(settings: &Settings) -> Result<NodePlace> {
    if settings.place == PlaceSetting::None {
        return Ok(NodePlace::default());
    }
    if !settings.pin_cores {
        let detail = "place is set and pin_cores is false: unset one of them".to_owned();
        return Err(Error::BadArgument { detail });
    }
    let place = place_on(&discover(None)?, &settings.place, settings.cores.0)?;
    let list: Vec<String> = place.processors.iter().map(usize::to_string).collect();
    let node = place.memory_node.map_or("none".to_owned(), |node| node.to_string());
    let fields: &log::LogFields<'_> = &[("processors", &list.join(",")), ("memory_node", &node)];
    log::emit(log::PLACED, fields);
    Ok(place)
}

/// The place on a machine. `cores` may be 0 for all processors.
fn place_on(machine: &Topology, setting: &PlaceSetting, cores: usize) -> Result<NodePlace> {
    let (candidates, reserved) = match setting {
        PlaceSetting::None => return Ok(NodePlace::default()),
        PlaceSetting::Auto => (machine.allowed(), nearstate_numa::CpuSet::new()),
        PlaceSetting::Cpus(cpus) => (cpus.clone(), machine.allowed().difference(cpus)),
    };
    if let Some(cpu) = candidates.difference(&machine.allowed()).first() {
        let detail = format!(
            "place: processor {cpu} does not exist, or this process may not use it; it may use {}",
            machine.allowed()
        );
        return Err(Error::BadArgument { detail });
    }
    let wanted = if cores == 0 { candidates.len() } else { cores };
    if wanted > candidates.len() {
        let detail = format!(
            "{wanted} cores do not fit on processors {candidates}: lower cores, or set place to \
             none"
        );
        return Err(Error::BadArgument { detail });
    }
    let request = SliceRequest {
        name: "node".to_owned(),
        cores: u32::try_from(wanted).unwrap_or(u32::MAX),
        // Cores of their own come first, hyper-threads when there is nothing else.
        load: SliceLoad::Level(TrafficLevel::Medium),
    };
    let options = PlanOptions {
        reserved,
        housekeeping: std::iter::once(0).collect(),
        ..PlanOptions::default()
    };
    let machines = std::slice::from_ref(machine);
    let made = plan(machines, std::slice::from_ref(&request), &[], &[], &options)?;
    let Some(placed) = made.assignments.first() else {
        let reason = made.refused.first().map_or("", |no| no.reason.as_str());
        return Err(Error::BadArgument { detail: format!("place: {reason}") });
    };
    // A list is taken as it is.
    let is_taken_whole = *setting != PlaceSetting::Auto && candidates.len() == wanted;
    let processors =
        if is_taken_whole { candidates.iter().collect() } else { placed.cpus_in_order() };
    Ok(NodePlace {
        processors: processors.into_iter().map(|cpu| cpu as usize).collect(),
        memory_node: placed.memory_node,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearstate_numa::{Cpu, NumaNode, TopologyParts};

    /// Two nodes of two cores with two hyper-threads.
    fn machine() -> Topology {
        let cpu = |number: u32| Cpu {
            number,
            core: number % 4,
            core_id: number % 4,
            package: number % 4 / 2,
            node: number % 4 / 2,
            l2: 0,
            l3: 0,
            is_allowed: true,
            is_isolated: false,
        };
        let node = |number| NumaNode {
            number,
            cpus: nearstate_numa::CpuSet::new(),
            memory_bytes: Some(1 << 30),
            is_allowed: true,
            distances: Vec::new(),
        };
        let parts = TopologyParts {
            cpus: (0..8).map(cpu).collect(),
            nodes: (0..2).map(node).collect(),
            ..TopologyParts::default()
        };
        Topology::new(parts).unwrap()
    }

    #[test]
    fn cores_are_placed_on_one_node_and_physical_cores_first() {
        let machine = machine();
        let auto = |cores| place_on(&machine, &PlaceSetting::Auto, cores).unwrap();
        assert_eq!((auto(2).processors, auto(2).memory_node), (vec![2, 3], Some(1)));
        assert_eq!(auto(4).processors, [2, 3, 6, 7]);
        assert_eq!(auto(0).processors.len(), 8);
        assert_eq!(auto(2).numa_policy(), NumaPolicy::Preferred(vec![1]));
        let list = PlaceSetting::Cpus("1,5-6".parse().unwrap());
        let placed = place_on(&machine, &list, 0).unwrap();
        assert_eq!((placed.processors, placed.memory_node), (vec![1, 5, 6], Some(0)));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let machine = machine();
        let refused = |setting: &PlaceSetting, cores| {
            place_on(&machine, setting, cores).unwrap_err().to_string()
        };
        assert!(refused(&PlaceSetting::Auto, 9).contains("9 cores do not fit"));
        let list = PlaceSetting::Cpus("7-8".parse().unwrap());
        assert!(refused(&list, 0).contains("processor 8 does not exist"));
    }
}
