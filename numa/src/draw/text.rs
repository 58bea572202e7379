//! A topology as text.

use std::fmt::Write as _;

use super::{CoreBlock, CpuMarks, blocks, node_line, notes, title};
use crate::topology::Topology;

/// The width of the labels on the left.
const LABEL_WIDTH: usize = 14;

/// Draws a topology.
pub fn text(topology: &Topology, marks: &CpuMarks) -> String {
    let mut out = title(topology) + "\n";
    for node in topology.nodes() {
        out.push('\n');
        out.push_str(&node_line(topology, node.number));
        out.push('\n');
        for block in blocks(topology, node.number) {
            draw(&mut out, topology, &block, marks);
        }
    }
    let notes = notes(topology, marks);
    if !notes.is_empty() {
        out.push('\n');
    }
    for note in notes {
        out.push_str(&note);
        out.push('\n');
    }
    out
}

fn draw(out: &mut String, topology: &Topology, block: &CoreBlock, marks: &CpuMarks) {
    let cell = |number: u32| marks.label(topology, number);
    let cells = |thread: usize| {
        let of = |column: &super::Column| column.cpus.get(thread).copied();
        block.columns.iter().map(of).collect::<Vec<_>>()
    };
    let threads = block.columns.iter().map(|column| column.cpus.len()).max().unwrap_or(0);
    let texts: Vec<Vec<String>> = (0..threads)
        .map(|thread| {
            cells(thread).into_iter().map(|cpu| cpu.map_or(String::new(), cell)).collect()
        })
        .collect();
    let ids: Vec<String> = block.columns.iter().map(|column| column.core_id.to_string()).collect();
    let longest = texts.iter().flatten().chain(&ids).map(String::len).max().unwrap_or(1);
    let width = longest.max(4) + 1;
    // Writing to a string does not fail.
    let row = |out: &mut String, label: &str, cells: &[String]| {
        let _ = write!(out, "  {label:LABEL_WIDTH$}");
        for cell in cells {
            let _ = write!(out, "{cell:>width$}");
        }
        let end = out.trim_end().len();
        out.truncate(end);
        out.push('\n');
    };
    for cache in &block.caches {
        let _ = write!(out, "  {:LABEL_WIDTH$}", cache.label);
        for (index, group) in cache.groups.iter().enumerate() {
            let is_same =
                |other: Option<usize>| other.and_then(|o| cache.groups.get(o)) == Some(group);
            let (opens, closes) = (!is_same(index.checked_sub(1)), !is_same(Some(index + 1)));
            let (left, right) = (if opens { " [" } else { "--" }, if closes { "]" } else { "-" });
            match group {
                None => out.extend(std::iter::repeat_n(' ', width)),
                Some(_) => {
                    let _ = write!(out, "{left}{}{right}", "-".repeat(width - 3));
                }
            }
        }
        out.push('\n');
    }
    row(out, "Core P#", &ids);
    for (thread, cells_of_thread) in texts.iter().enumerate() {
        row(out, "HT P#", cells_of_thread);
        let share = |cpu: Option<u32>| {
            let share = cpu.and_then(|cpu| marks.busy(cpu));
            share.map_or(String::new(), |share| format!("{:.0}%", share * 100.0))
        };
        let shares: Vec<String> = cells(thread).into_iter().map(share).collect();
        if shares.iter().any(|share| !share.is_empty()) {
            row(out, "   busy", &shares);
        }
    }
}
