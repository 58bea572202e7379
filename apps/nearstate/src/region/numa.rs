//! NUMA nodes of a region's memory: the option, and what was read back.

use nearstate_model::{Error, Result};
use nearstate_numa::{CpuSet, discover};
use nearstate_store::{NumaPolicy, PagesByNode};
use serde_json::{Value, json};

/// The value of `--numa`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NumaArg {
    /// The node of the processors that this process may use.
    Auto,
    /// A policy.
    Policy(NumaPolicy),
}

/// Parses `auto`, `bind:NODES`, `interleave:NODES`, `preferred:NODES`.
///
/// # Errors
/// What is expected instead.
pub(crate) fn parse_numa(text: &str) -> std::result::Result<NumaArg, String> {
    if text == "auto" {
        return Ok(NumaArg::Auto);
    }
    let expected = || {
        format!("{text:?} is no NUMA policy: expected auto, bind:0, interleave:0,1 or preferred:0")
    };
    let (name, nodes) = text.split_once(':').ok_or_else(expected)?;
    let nodes: CpuSet = nodes.parse().map_err(|e: Error| e.to_string())?;
    let nodes: Vec<u32> = nodes.iter().collect();
    match name {
        _ if nodes.is_empty() => Err(expected()),
        "bind" => Ok(NumaArg::Policy(NumaPolicy::Bind(nodes))),
        "interleave" => Ok(NumaArg::Policy(NumaPolicy::Interleave(nodes))),
        "preferred" => Ok(NumaArg::Policy(NumaPolicy::Preferred(nodes))),
        _ => Err(expected()),
    }
}

impl NumaArg {
    /// The policy on this machine.
    pub(crate) fn resolve(self) -> Result<NumaPolicy> {
        match self {
            Self::Policy(policy) => Ok(policy),
            Self::Auto => {
                let machine = discover(None)?;
                let allowed = machine.allowed();
                // The node with most of the processors that this process may use.
                let count =
                    |node: &nearstate_numa::NumaNode| node.cpus.intersection(&allowed).len();
                let home = machine.nodes().iter().rev().max_by_key(|node| count(node));
                let node = home.and_then(|node| machine.memory_near(node.number));
                Ok(node.map_or(NumaPolicy::Default, |node| NumaPolicy::Preferred(vec![node])))
            }
        }
    }
}

/// Pages for each node from which on an interleaved region has pages on every node: two huge pages
/// of 2 MiB, each of which is on one node.
const INTERLEAVED_PAGES_MIN: u64 = 1024;

/// Compares what was asked for with what was read back: the policy, and where the pages are.
/// Returns what the user should know.
///
/// # Errors
/// `System` with the policies, or with the pages and the nodes.
pub(crate) fn check(
    policy: &NumaPolicy,
    seen: &NumaPolicy,
    pages: &PagesByNode,
) -> Result<Option<String>> {
    if seen != policy {
        return Err(not_placed(&format!(
            "its policy is {} instead of {}; a control group excludes the other nodes",
            policy_text(seen),
            policy_text(policy)
        )));
    }
    let on = |nodes: &[u32]| -> u64 {
        let inside = pages.nodes.iter().filter(|(node, _)| nodes.contains(node));
        inside.map(|(_, count)| count).sum()
    };
    let all: u64 = pages.nodes.values().sum();
    let is_elsewhere = |nodes: &[u32]| {
        Err(not_placed(&format!(
            "its memory is not on nodes {nodes:?}: {}; its file system ignores the policy, use \
             tmpfs or hugetlbfs, or a node is full",
            pages_text(pages)
        )))
    };
    match policy {
        NumaPolicy::Bind(nodes) | NumaPolicy::Interleave(nodes) if on(nodes) != all => {
            is_elsewhere(nodes)
        }
        NumaPolicy::Bind(_) | NumaPolicy::Default => Ok(None),
        NumaPolicy::Interleave(nodes) => {
            let is_enough = all >= INTERLEAVED_PAGES_MIN * nodes.len() as u64;
            let is_missing = nodes.iter().any(|node| !pages.nodes.contains_key(node));
            if is_enough && is_missing { is_elsewhere(nodes) } else { Ok(None) }
        }
        NumaPolicy::Preferred(nodes) => {
            let other = all - on(nodes);
            Ok((other > 0).then(|| {
                format!(
                    "{other} of {all} pages are not on nodes {nodes:?}: these were full, or the \
                     file system ignores the policy"
                )
            }))
        }
    }
}

fn not_placed(why: &str) -> Error {
    Error::System { detail: format!("the region was not created: {why}"), errno: 0 }
}

/// `bind:0,1`, as [`parse_numa`] reads it.
pub(crate) fn policy_text(policy: &NumaPolicy) -> String {
    let (name, nodes) = match policy {
        NumaPolicy::Default => return "the default".to_owned(),
        NumaPolicy::Bind(nodes) => ("bind", nodes),
        NumaPolicy::Interleave(nodes) => ("interleave", nodes),
        NumaPolicy::Preferred(nodes) => ("preferred", nodes),
    };
    format!("{name}:{}", nodes.iter().copied().collect::<CpuSet>())
}

/// `256 pages on node 0, 255 pages on node 1`.
pub(crate) fn pages_text(pages: &PagesByNode) -> String {
    let mut parts: Vec<String> =
        pages.nodes.iter().map(|(node, count)| format!("{count} pages on node {node}")).collect();
    if pages.unknown > 0 {
        parts.push(format!("{} pages on unknown nodes", pages.unknown));
    }
    if parts.is_empty() { "no pages".to_owned() } else { parts.join(", ") }
}

/// The same as JSON.
pub(crate) fn pages_json(pages: &PagesByNode) -> Value {
    let nodes = pages.nodes.iter().map(|(node, count)| json!({"node": node, "pages": count}));
    json!({"nodes": nodes.collect::<Value>(), "unknown": pages.unknown})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_parsed_and_refused() {
        let bind = NumaArg::Policy(NumaPolicy::Bind(vec![0, 1, 2]));
        assert_eq!(parse_numa("bind:0-2"), Ok(bind));
        assert_eq!(parse_numa("auto"), Ok(NumaArg::Auto));
        for text in ["", "bind", "bind:", "near:0", "bind:x"] {
            assert!(parse_numa(text).unwrap_err().contains("expected"), "{text}");
        }
    }

    #[test]
    fn a_page_on_another_node_is_reported() {
        let pages = PagesByNode { nodes: [(0, 5), (1, 1)].into(), unknown: 0 };
        let checked = |policy: &NumaPolicy| check(policy, policy, &pages);
        let refused = checked(&NumaPolicy::Bind(vec![0])).unwrap_err().to_string();
        assert!(refused.contains("5 pages on node 0, 1 pages on node 1"), "{refused}");
        let note = checked(&NumaPolicy::Preferred(vec![0])).unwrap().unwrap();
        assert!(note.contains("1 of 6 pages are not on nodes [0]"), "{note}");
        assert_eq!(checked(&NumaPolicy::Preferred(vec![0, 1])), Ok(None));
        assert_eq!(checked(&NumaPolicy::Interleave(vec![0, 1])), Ok(None));
        assert!(checked(&NumaPolicy::Interleave(vec![0])).is_err());
    }

    #[test]
    fn an_interleaved_region_on_one_node_is_reported() {
        let policy = NumaPolicy::Interleave(vec![0, 1]);
        let on_one = |count| PagesByNode { nodes: [(0, count)].into(), unknown: 0 };
        // Two huge pages may be on one node.
        assert_eq!(check(&policy, &policy, &on_one(1024)), Ok(None));
        let refused = check(&policy, &policy, &on_one(2048)).unwrap_err().to_string();
        assert!(refused.contains("not on nodes [0, 1]: 2048 pages on node 0"), "{refused}");
    }

    #[test]
    fn another_policy_than_the_one_asked_for_is_reported_without_any_page() {
        let (asked, seen) = (NumaPolicy::Bind(vec![0, 1]), NumaPolicy::Bind(vec![0]));
        let refused = check(&asked, &seen, &PagesByNode::default()).unwrap_err().to_string();
        assert!(refused.contains("its policy is bind:0 instead of bind:0-1"), "{refused}");
    }
}
