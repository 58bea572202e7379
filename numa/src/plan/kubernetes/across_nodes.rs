//! `distribute-cpus-across-numa`: the smallest number of nodes that can give equal shares; of these
//! nodes the ones after which the free processors of all nodes differ least.
//!
//! Kubernetes keeps the best combination in memory that later combinations overwrite in part
//! ([`kept`]). It then uses what is there, and so does this module.

use super::{KubernetesPolicy, Level, StaticPolicyMachine, Taking};
use crate::cpu_set::CpuSet;

/// Every combination of nodes is tried. Kubernetes' topology manager supports as many.
const NODES_MAX: usize = 8;

/// Chooses in groups of processors: those of a core, or single ones.
pub(super) fn choose(
    machine: &StaticPolicyMachine<'_>,
    free: &CpuSet,
    wanted: usize,
    group: usize,
) -> Result<Vec<u32>, String> {
    let packed = || Taking::new(machine, free.clone(), wanted).packed(KubernetesPolicy::Packed);
    if !wanted.is_multiple_of(group) {
        return Ok(packed());
    }
    let taking = Taking::new(machine, free.clone(), wanted);
    let in_node = |node| taking.members(Level::Node, node).intersection(free).len();
    let nodes: Vec<(u32, usize)> =
        taking.groups(Level::Node).into_iter().map(|node| (node, in_node(node))).collect();
    if nodes.len() > NODES_MAX {
        return Err(format!(
            "distribute-cpus-across-numa is compared on at most {NODES_MAX} nodes, the limit of \
             Kubernetes' topology manager; {} have free processors",
            nodes.len()
        ));
    }
    let (fewest, most) = node_counts(machine, nodes.len(), wanted, group);
    let shares = NodeShares { free: nodes.iter().map(|(_, free)| *free).collect(), wanted, group };
    let best = (fewest..=most).find_map(|count| shares.best(count));
    let Some(best) = best else { return Ok(packed()) };
    take(taking, &nodes, &best, &shares)
}

/// How many nodes the wanted processors need at least, and can use at most.
fn node_counts(
    machine: &StaticPolicyMachine<'_>,
    available: usize,
    wanted: usize,
    group: usize,
) -> (usize, usize) {
    let groups_of_node = machine.topology.cpus().len().div_ceil(group).div_ceil(machine.nodes);
    let needed = wanted.div_ceil(group);
    (needed.div_ceil(groups_of_node), needed.min(available))
}

/// Takes the equal shares, then what remains in turn.
fn take(
    mut taking: Taking<'_>,
    nodes: &[(u32, usize)],
    best: &NodeShare,
    all: &NodeShares,
) -> Result<Vec<u32>, String> {
    let of = |index: &usize| nodes.get(*index).map(|(node, _)| *node);
    let equal = all.equal(best.nodes.len());
    for node in best.nodes.iter().filter_map(of) {
        take_in_node(&mut taking, node, equal);
    }
    while taking.needed() > 0 {
        let before = taking.needed();
        for node in best.for_rest.iter().filter_map(of) {
            if taking.needed() > 0 {
                take_in_node(&mut taking, node, all.group);
            }
        }
        if taking.needed() == before {
            return Err(format!(
                "distribute-cpus-across-numa chooses nodes that lack {before} processors of these \
                 (accounting error)"
            ));
        }
    }
    Ok(taking.chosen)
}

/// Takes this many processors of a node, or none if it has fewer.
fn take_in_node(taking: &mut Taking<'_>, node: u32, count: usize) {
    let free = taking.members(Level::Node, node).intersection(&taking.free);
    if free.len() >= count {
        let cpus = Taking::new(taking.machine, free, count).packed(KubernetesPolicy::Packed);
        taking.take(cpus);
    }
}

/// Nodes, by their index, that give equal shares, and those that give the rest.
struct NodeShare {
    nodes: Vec<usize>,
    for_rest: Vec<usize>,
    /// The standard deviation of the free processors of all nodes that are left.
    balance: f64,
}

struct NodeShares {
    /// The free processors of each node.
    free: Vec<usize>,
    wanted: usize,
    group: usize,
}

impl NodeShares {
    /// The share of each of this many nodes, in whole groups.
    const fn equal(&self, count: usize) -> usize {
        self.wanted / count / self.group * self.group
    }

    /// The best combination of this many nodes.
    fn best(&self, count: usize) -> Option<NodeShare> {
        let all: Vec<usize> = (0..self.free.len()).collect();
        let combinations = combinations(&all, count);
        let (mut best, mut visited): (Option<(usize, NodeShare)>, _) = (None, combinations.len());
        for (at, nodes) in combinations.iter().enumerate() {
            // Equal numbers everywhere: no other combination is better.
            if best.as_ref().is_some_and(|(_, share)| share.balance == 0.0) {
                visited = at + 1;
                break;
            }
            let Some(share) = self.share(nodes) else { continue };
            if best.as_ref().is_none_or(|(_, known)| share.balance < known.balance) {
                best = Some((at, share));
            }
        }
        let (at, share) = best?;
        Some(NodeShare { nodes: kept(combinations.get(..visited)?, at)?, ..share })
    }

    fn share(&self, nodes: &[usize]) -> Option<NodeShare> {
        let equal = self.equal(nodes.len());
        let free = |node: &usize| self.free.get(*node).copied().unwrap_or(0);
        let in_groups: usize = nodes.iter().map(|node| free(node) / self.group * self.group).sum();
        if in_groups < self.wanted || nodes.iter().any(|node| free(node) < equal) {
            return None;
        }
        let mut left = self.free.clone();
        for node in nodes {
            if let Some(left) = left.get_mut(*node) {
                *left -= equal;
            }
        }
        let rest = self.wanted - equal * nodes.len();
        if rest == 0 {
            let balance = deviation(&left);
            return Some(NodeShare { nodes: nodes.to_vec(), for_rest: Vec::new(), balance });
        }
        let has_group = |node: &usize| left.get(*node).is_some_and(|left| *left >= self.group);
        let givers: Vec<usize> = nodes.iter().copied().filter(has_group).collect();
        let mut best: Option<(Vec<usize>, f64)> = None;
        for count in (1..=givers.len()).rev() {
            let combinations = combinations(&givers, count);
            for (at, some) in combinations.iter().enumerate() {
                let Some(balance) = self.balance_after(left.clone(), some, rest) else { continue };
                if best.as_ref().is_none_or(|(_, known)| balance < *known) {
                    best = Some((kept(&combinations, at)?, balance));
                }
            }
        }
        best.map(|(for_rest, balance)| NodeShare { nodes: nodes.to_vec(), for_rest, balance })
    }

    /// The balance after these nodes have given the rest, a group each in turn.
    fn balance_after(&self, mut left: Vec<usize>, some: &[usize], mut rest: usize) -> Option<f64> {
        while rest > 0 {
            let before = rest;
            for node in some {
                let Some(left) = left.get_mut(*node) else { continue };
                if rest > 0 && *left >= self.group {
                    *left -= self.group;
                    rest -= self.group;
                }
            }
            // Kubernetes would not end here: the nodes have enough processors, but not in groups.
            if rest == before {
                return None;
            }
        }
        Some(deviation(&left))
    }
}

/// The standard deviation, rounded to thousandths as the mean is.
fn deviation(values: &[usize]) -> f64 {
    let round = |value: f64| (value * 1000.0).round() / 1000.0;
    #[expect(clippy::cast_precision_loss, reason = "numbers of processors are small")]
    let values: Vec<f64> = values.iter().map(|value| *value as f64).collect();
    #[expect(clippy::cast_precision_loss, reason = "at most 1024 nodes")]
    let count = values.len() as f64;
    let mean = round(values.iter().sum::<f64>() / count);
    let squares: f64 = values.iter().map(|value| (value - mean) * (value - mean)).sum();
    round((squares / count).sqrt())
}

/// What the memory of a combination contains after all visited ones. Kubernetes appends to one list
/// after the other. A list is copied when it has one, two or four elements; the fourth element, and
/// those after the fifth, are written into the memory of all combinations with the same elements
/// before them.
fn kept(visited: &[Vec<usize>], at: usize) -> Option<Vec<usize>> {
    let own = visited.get(at)?;
    let shared = match own.len() {
        ..=3 | 5 => own.len(),
        4 => 3,
        6.. => 5,
    };
    let before = own.get(..shared)?;
    visited.iter().rev().find(|other| other.starts_with(before)).cloned()
}

/// The subsets of this size, in lexicographic order.
fn combinations(of: &[usize], size: usize) -> Vec<Vec<usize>> {
    if size == 0 {
        return vec![Vec::new()];
    }
    let mut found = Vec::new();
    for (at, first) in of.iter().enumerate() {
        for mut rest in combinations(of.get(at + 1..).unwrap_or_default(), size - 1) {
            rest.insert(0, *first);
            found.push(rest);
        }
    }
    found
}
