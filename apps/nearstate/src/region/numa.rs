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

/// Checks that no page is on a node that the policy excludes.
///
/// # Errors
/// `System` with the pages and the nodes.
pub(crate) fn check(policy: &NumaPolicy, pages: &PagesByNode) -> Result<()> {
    let allowed = match policy {
        NumaPolicy::Bind(nodes) | NumaPolicy::Interleave(nodes) => nodes,
        // Other nodes are used when these are full.
        NumaPolicy::Default | NumaPolicy::Preferred(_) => return Ok(()),
    };
    if pages.nodes.keys().all(|node| allowed.contains(node)) {
        return Ok(());
    }
    Err(Error::System {
        detail: format!(
            "the region was created, but its memory is not on nodes {allowed:?}: {}; its file \
             system ignores the policy, use tmpfs or hugetlbfs",
            pages_text(pages)
        ),
        errno: 0,
    })
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
        let refused = check(&NumaPolicy::Bind(vec![0]), &pages).unwrap_err().to_string();
        assert!(refused.contains("5 pages on node 0, 1 pages on node 1"), "{refused}");
        assert!(check(&NumaPolicy::Preferred(vec![0]), &pages).is_ok());
        assert!(check(&NumaPolicy::Interleave(vec![0, 1]), &pages).is_ok());
    }
}
