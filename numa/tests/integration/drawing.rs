//! What drawings show of processors that a slice cannot have, or should not.

use std::collections::BTreeMap;

use nearstate_numa::{CpuMarks, svg_marked, text};

use crate::machines::{gold_5118, odd, put};

#[test]
fn the_paper_s_server_is_drawn_as_in_figure_9() {
    let drawn = text(&gold_5118().write().read().unwrap(), &CpuMarks::default());
    let nodes: Vec<&str> = drawn.split("NUMA node P#").skip(1).collect();
    assert_eq!(nodes.len(), 2, "{drawn}");
    for (number, node) in nodes.into_iter().enumerate() {
        let lines: Vec<&str> = node.lines().map(str::trim).collect();
        // From the outer cache to the processors. The processor of node 1 is one higher each.
        let numbers = |from: usize| {
            (0..12).map(|at| (from + number + 2 * at).to_string()).collect::<Vec<_>>().join(" ")
        };
        let rows = [
            ("L3 (16.5 MiB)", String::new()),
            ("L2 (1 MiB)", String::new()),
            ("L1i (32 KiB)", String::new()),
            ("L1d (32 KiB)", String::new()),
            ("Core P#", "0 5 1 4 2 3 8 13 9 12 10 11".to_owned()),
            ("HT P#", numbers(0)),
            ("HT P#", numbers(24)),
        ];
        assert!(lines[0].starts_with(&number.to_string()), "{node}");
        for ((label, cells), line) in rows.into_iter().zip(&lines[1..]) {
            let rest = line.strip_prefix(label).unwrap_or_else(|| panic!("{line:?}, not {label}"));
            if cells.is_empty() {
                // One cache of the node, or one of each core.
                let caches = rest.matches('[').count();
                assert_eq!(caches, if label.starts_with("L3") { 1 } else { 12 }, "{line}");
            } else {
                let found: Vec<&str> = rest.split_whitespace().collect();
                assert_eq!(found.join(" "), cells);
            }
        }
    }
}

#[test]
fn both_drawings_mark_busy_isolated_reserved_and_offline_processors() {
    // Processors 3 and 8 are offline, 4 and 5 isolated, 14 and 15 not allowed.
    let tree = odd().write();
    put(&tree.path().join("proc/self/cgroup"), "0::/upf\n");
    put(&tree.path().join("sys/fs/cgroup/upf/cpu.max"), "150000 100000\n");
    put(&tree.cpu().join("nohz_full"), "5\n");
    let machine = tree.read().unwrap();
    let marks = CpuMarks {
        busy: BTreeMap::from([(1, 0.25), (2, 0.001)]),
        reserved: "4,12".parse().unwrap(),
        housekeeping: "0".parse().unwrap(),
    };
    let notes = [
        "- not allowed, by the affinity of this process",
        "* isolated from the scheduler",
        "r reserved: no slice gets it",
        "h housekeeping: its core is used last",
        "without a periodic tick (nohz_full): 5",
        "processor time: 1.500 processors, by control group /upf",
        "offline: 3,8",
    ];
    let drawn = text(&machine, &marks);
    for part in notes.iter().chain(&["0h", "4*r", "5*", "12r", "15-", "25%"]) {
        assert!(drawn.contains(part), "{part:?} is not in\n{drawn}");
    }
    let image = svg_marked(&machine, &BTreeMap::new(), &marks);
    for part in notes.iter().chain(&[">0h<", ">4*r<", ">5*<", ">12r<", ">15-<"]) {
        assert!(image.contains(part), "{part:?} is not in\n{image}");
    }
    let count = |part: &str| image.matches(part).count();
    assert_eq!(count("<title>busy 25%</title>"), 1);
    assert_eq!((count("<title>"), count("stroke-dasharray"), count("stroke-width")), (1, 2, 2));
    // Without marks there are none, and no legend of them.
    let plain = text(&machine, &CpuMarks::default());
    assert!(!plain.contains("reserved") && !plain.contains("housekeeping"), "{plain}");
}
