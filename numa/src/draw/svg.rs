//! A topology, and the slices on it, as an SVG image.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{CORES_PER_ROW, CoreBlock, CpuMarks, blocks, node_line, notes, title};
use crate::topology::Topology;

const COLUMN: usize = 46;
const ROW: usize = 22;
/// The width of a processor: [`COLUMN`] without the gap.
const BAR_WIDTH: f64 = 42.0;
const MARGIN: usize = 12;
const LABELS: usize = 96;

/// Colours of slices, which differ for colour-blind readers too (Okabe and Ito).
const COLOURS: [&str; 8] =
    ["#56b4e9", "#e69f00", "#009e73", "#f0e442", "#cc79a7", "#0072b2", "#d55e00", "#999999"];

/// Of an isolated processor.
const ISOLATED: &str = "#0072b2";

/// Of the share of time that a processor was busy.
const BUSY: &str = "#d55e00";

/// Draws a topology. `slices` are the names of the slices on processors; each gets a colour.
pub fn svg(topology: &Topology, slices: &BTreeMap<u32, String>) -> String {
    svg_marked(topology, slices, &CpuMarks::default())
}

/// Draws a topology with slices and marks: a bar for the time that a processor was busy, a thick
/// border for isolated ones, dashed ones for those that are offline, and notes.
pub fn svg_marked(topology: &Topology, slices: &BTreeMap<u32, String>, marks: &CpuMarks) -> String {
    let mut body = String::new();
    let mut y = MARGIN + ROW;
    let mut columns = topology.offline().len().clamp(1, CORES_PER_ROW);
    label(&mut body, MARGIN, y, &title(topology), "bold");
    y += ROW;
    let mut names: Vec<&str> = slices.values().map(String::as_str).collect();
    names.sort_unstable();
    names.dedup();
    for node in topology.nodes() {
        let blocks = blocks(topology, node.number);
        let top = y;
        y += ROW;
        label(&mut body, MARGIN + 6, y - 6, &node_line(topology, node.number), "bold");
        for block in &blocks {
            columns = columns.max(block.columns.len());
            y = draw(&mut body, topology, block, (y, slices, &names, marks));
            y += 6;
        }
        outline(&mut body, (MARGIN, top), y - top, blocks.first().map_or(8, |b| b.columns.len()));
        y += MARGIN;
    }
    for (index, name) in names.iter().enumerate() {
        rectangle(&mut body, (MARGIN, y), (16, 16), colour(index));
        label(&mut body, MARGIN + 24, y + 13, name, "normal");
        y += ROW;
    }
    y = offline(&mut body, topology, y);
    for note in notes(topology, marks) {
        label(&mut body, MARGIN, y + 13, &note, "normal");
        y += ROW;
    }
    let width = (2 * MARGIN + LABELS + columns * COLUMN).max(640);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{body}</svg>\n",
        height = y + MARGIN
    )
}

fn colour(index: usize) -> &'static str {
    COLOURS.get(index % COLOURS.len()).copied().unwrap_or("#ffffff")
}

/// Draws the cores of a block. Returns the position below it.
fn draw(
    body: &mut String,
    topology: &Topology,
    block: &CoreBlock,
    (mut y, slices, names, marks): (usize, &BTreeMap<u32, String>, &[&str], &CpuMarks),
) -> usize {
    let left = MARGIN + LABELS;
    for cache in &block.caches {
        label(body, MARGIN + 6, y + 15, &cache.label, "normal");
        let mut start = 0;
        while let Some(group) = cache.groups.get(start) {
            let same = cache.groups.iter().skip(start).take_while(|other| *other == group).count();
            if group.is_some() {
                let size = (same * COLUMN - 4, ROW - 4);
                rectangle(body, (left + start * COLUMN, y), size, "#eeeeee");
            }
            start += same;
        }
        y += ROW;
    }
    label(body, MARGIN + 6, y + 15, "Core P#", "normal");
    for (index, column) in block.columns.iter().enumerate() {
        label(body, left + index * COLUMN + 14, y + 15, &column.core_id.to_string(), "normal");
    }
    y += ROW;
    let threads = block.columns.iter().map(|column| column.cpus.len()).max().unwrap_or(0);
    for thread in 0..threads {
        label(body, MARGIN + 6, y + 15, "HT P#", "normal");
        for (index, column) in block.columns.iter().enumerate() {
            let Some(cpu) = column.cpus.get(thread) else { continue };
            let slice = slices.get(cpu).and_then(|name| names.binary_search(&name.as_str()).ok());
            let known = topology.cpu(*cpu);
            let is_allowed = known.is_some_and(|cpu| cpu.is_allowed);
            let fill = match slice {
                Some(slice) => colour(slice),
                None if is_allowed => "#ffffff",
                None => "#cccccc",
            };
            let x = left + index * COLUMN;
            rectangle(body, (x, y), (COLUMN - 4, ROW - 4), fill);
            if let Some(share) = marks.busy(*cpu) {
                busy_bar(body, (x, y), share);
            }
            if known.is_some_and(|cpu| cpu.is_isolated) {
                border(body, (x, y), &format!("stroke=\"{ISOLATED}\" stroke-width=\"2.5\""));
            }
            label(body, x + 12, y + 14, &marks.label(topology, *cpu), "normal");
        }
        y += ROW;
    }
    y
}

/// Draws the offline processors, whose cores are unknown. Returns the position below them.
fn offline(body: &mut String, topology: &Topology, mut y: usize) -> usize {
    let cpus: Vec<u32> = topology.offline().iter().collect();
    for row in cpus.chunks(CORES_PER_ROW) {
        label(body, MARGIN + 6, y + 15, "offline P#", "normal");
        for (index, cpu) in row.iter().enumerate() {
            let x = MARGIN + LABELS + index * COLUMN;
            border(body, (x, y), "stroke=\"#999999\" stroke-dasharray=\"4 3\"");
            label(body, x + 12, y + 14, &cpu.to_string(), "normal");
        }
        y += ROW;
    }
    y
}

/// A bar at the bottom of a processor, as long as its share of time. The number follows in the
/// tooltip.
fn busy_bar(body: &mut String, (x, y): (usize, usize), share: f64) {
    let width = share.min(1.0) * BAR_WIDTH;
    let _ = writeln!(
        body,
        "<rect x=\"{x}\" y=\"{top}\" width=\"{width:.1}\" height=\"4\" fill=\"{BUSY}\">\
         <title>busy {percent:.0}%</title></rect>",
        top = y + ROW - 8,
        percent = share * 100.0
    );
}

/// The border of a processor.
fn border(body: &mut String, (x, y): (usize, usize), stroke: &str) {
    let (width, height) = (COLUMN - 4, ROW - 4);
    let _ = writeln!(
        body,
        "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" \
         fill=\"none\" {stroke}/>"
    );
}

// Writing to a string does not fail.
fn outline(body: &mut String, (x, y): (usize, usize), height: usize, columns: usize) {
    let width = LABELS + columns.max(1) * COLUMN;
    let _ = writeln!(
        body,
        "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"none\" \
         stroke=\"#333333\"/>"
    );
}

fn rectangle(body: &mut String, (x, y): (usize, usize), (w, h): (usize, usize), fill: &str) {
    let _ = writeln!(
        body,
        "<rect x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\" fill=\"{fill}\" \
         stroke=\"#666666\"/>"
    );
}

fn label(body: &mut String, x: usize, y: usize, text: &str, weight: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let text: String = text.chars().filter(|c| !c.is_control()).collect();
    let _ = writeln!(body, "<text x=\"{x}\" y=\"{y}\" font-weight=\"{weight}\">{text}</text>");
}
