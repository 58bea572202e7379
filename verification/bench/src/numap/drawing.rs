//! The topology of a run as SVG, and the check of one from a file, whose page must run nothing.

use std::collections::BTreeMap;

use nearstate_numa::Topology;

/// The elements and attributes of [`nearstate_numa::svg`].
const ELEMENTS: [&str; 4] = ["svg", "rect", "text", "title"];
const ATTRIBUTES: [&str; 12] = [
    "width",
    "height",
    "viewBox",
    "font-family",
    "font-size",
    "font-weight",
    "x",
    "y",
    "fill",
    "stroke",
    "stroke-width",
    "stroke-dasharray",
];

/// The machine, with a colour for the processors of each pairing.
pub(super) fn of<'a>(
    topology: &Topology,
    pairings: impl Iterator<Item = (&'a str, &'a [u32])>,
) -> String {
    let mut names: BTreeMap<u32, String> = BTreeMap::new();
    for (pairing, cpus) in pairings {
        for cpu in cpus {
            let name = names.entry(*cpu).or_default();
            let comma = if name.is_empty() { "" } else { ", " };
            *name = format!("{name}{comma}{pairing}");
        }
    }
    // A page needs no name space, and has no address.
    nearstate_numa::svg(topology, &names).replace(" xmlns=\"http://www.w3.org/2000/svg\"", "")
}

/// Whether a drawing has only shapes and text: no script, no reference, no style.
pub(super) fn is_safe(svg: &str) -> bool {
    let mut parts = svg.split('<');
    let is_text_before = parts.next().is_some_and(|text| text.trim().is_empty());
    is_text_before
        && parts.all(|part| {
            let Some((tag, _)) = part.split_once('>') else { return false };
            let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap_or_default();
            let attributes = tag.get(tag.len() - tag.trim_start_matches('/').len() + name.len()..);
            ELEMENTS.contains(&name) && attributes.is_some_and(has_known_attributes)
        })
}

/// Whether the text is ` name="value"`, any number of times.
fn has_known_attributes(text: &str) -> bool {
    let pieces: Vec<&str> = text.split('"').collect();
    let (values, names): (Vec<_>, Vec<_>) =
        pieces.iter().enumerate().partition(|(index, _)| index % 2 == 1);
    values.len() < names.len()
        && names.iter().all(|(_, name)| {
            let name = name.trim().trim_end_matches('/').trim();
            name.is_empty() || name.strip_suffix('=').is_some_and(|name| ATTRIBUTES.contains(&name))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearstate_numa::{Cpu, CpuSet, NumaNode, TopologyParts};

    fn machine() -> Topology {
        let cpu = |number| Cpu {
            number,
            core: number,
            core_id: number,
            package: 0,
            node: 0,
            l2: number,
            l3: 0,
            is_allowed: true,
            is_isolated: number == 1,
        };
        let node = NumaNode {
            number: 0,
            cpus: CpuSet::new(),
            memory_bytes: None,
            is_allowed: true,
            distances: Vec::new(),
        };
        Topology::new(TopologyParts {
            origin: "a <machine> of \"two\"".to_owned(),
            cpus: (0..2).map(cpu).collect(),
            nodes: vec![node],
            offline: std::iter::once(2).collect(),
            ..TopologyParts::default()
        })
        .unwrap()
    }

    #[test]
    fn a_drawing_has_the_processors_of_each_pairing_and_is_safe() {
        let all: [(&str, &[u32]); 3] = [("none", &[]), ("collocated", &[0, 1]), ("other", &[1])];
        let svg = of(&machine(), all.into_iter());
        for part in [">collocated<", ">collocated, other<", "&lt;machine&gt;", "stroke-dasharray"] {
            assert!(svg.contains(part), "{part} is not in {svg}");
        }
        assert!(is_safe(&svg), "{svg}");
        crate::html::assert_offline(&svg);
    }

    #[test]
    fn a_drawing_that_could_run_or_load_something_is_refused() {
        for svg in [
            "<svg><script>alert(1)</script></svg>",
            "<svg onload=\"alert(1)\"></svg>",
            "<svg onload='alert(1)'></svg>",
            "<svg onload=alert(1)></svg>",
            "<svg><rect x=\"1\" onclick=\"a()\"/></svg>",
            "<svg><rect x=\"1\"onclick=\"a()\"/></svg>",
            "<svg><rect x=\"1\" onclick=\"a()/></svg>",
            "<svg><image href=\"x\"/></svg>",
            "<svg><!-- x --></svg>",
            "<svg/onload=\"a()\">",
            "text<svg></svg>",
            "<svg><rect",
        ] {
            assert!(!is_safe(svg), "{svg}");
        }
    }
}
