//! The report of `bench run numap`: tables, and a page with topology, plan and latency curves.

use super::result::{NumapRun, PairingResult, PlanRow, Point};
use crate::html::chart::lines::{Axis, ChartLine, Lines, Stroke, Unit, lines, marker_text};
use crate::html::chart::{self, Colour};
use crate::html::{Chart, HtmlBlock, Page};
use crate::spread::RoundMeasurements;
use crate::stat::as_f64;
use crate::table::{ReportTable, latency_text, list_text};

const TITLE: &str = "numap: latency of a slice by the pairing of its cores";

const CURVES: &str = "Mean round-trip time against the cross traffic that arrived behind the \
    slice, as in paper 5, Figure 11. Vertical lines are the demanded levels: a marker left of its \
    line is a sign of congestion.";

/// The tables for a terminal.
pub fn text(run: &NumapRun) -> String {
    let mut out = format!("{TITLE}\n{}.\n", lead(run));
    out.push_str(&run.frame.alarms_text());
    out.extend(["\n", &run.topology, "\n", &points(run).text()]);
    out.extend(["\nPairings\n", &list_text(&pairings(run))]);
    out.extend(["\nThe plan of `numa plan`, against what was measured\n\n", &plan(run).text()]);
    out + &run.frame.end_text()
}

/// The page.
pub fn page(run: &NumapRun) -> Page {
    let picture = |caption: &str, figure: &dyn Fn(&Point) -> Option<f64>| Chart {
        caption: caption.to_owned(),
        svg: lines(&curves(run, figure)),
        legend: legend(run),
    };
    let own = vec![
        HtmlBlock::heading("Latency curves"),
        HtmlBlock::Text(CURVES.to_owned()),
        HtmlBlock::Charts(vec![
            picture("Mean round-trip time", &|point| Some(point.mean()?.0)),
            picture("99th percentile", &|point| {
                point.mean().map(|_| as_f64(point.latencies().percentile(99.0)))
            }),
        ]),
        HtmlBlock::Table(points(run)),
        HtmlBlock::heading("Topology"),
        topology(run),
        HtmlBlock::List(pairings(run)),
        HtmlBlock::heading("Plan"),
        HtmlBlock::text(
            "What `nearstate numa plan` chooses for a slice of two processors at each level, and \
             the pairing with the lowest mean in this run.",
        ),
        HtmlBlock::Table(plan(run)),
    ];
    let blocks = run.frame.blocks(own);
    Page { title: TITLE.to_owned(), lead: format!("{}.", lead(run)), blocks }
}

/// The drawing, or the text in runs of older programs.
fn topology(run: &NumapRun) -> HtmlBlock {
    if run.drawing.is_empty() {
        return HtmlBlock::Code(run.topology.clone());
    }
    let caption = "Processors of the pairings, by colour".to_owned();
    HtmlBlock::Charts(vec![Chart { caption, svg: run.drawing.clone(), legend: Vec::new() }])
}

fn lead(run: &NumapRun) -> String {
    let counts = run.pairings.iter().flat_map(|one| &one.points).map(|point| point.rounds.len());
    let rounds = counts.max().unwrap_or(0);
    format!("{} probes for each point and round, {rounds} rounds", run.probes)
}

/// The processors of each pairing, and what this machine does not have.
fn pairings(run: &NumapRun) -> Vec<String> {
    let one = |one: &PairingResult| match cpus(&one.cpus) {
        cpus if cpus.is_empty() => format!("{}: {}", one.name, one.what),
        cpus => format!("{}: processors {cpus}, {}", one.name, one.what),
    };
    let missing = run.missing.iter().map(|why| format!("not measured: {why}"));
    run.pairings.iter().map(one).chain(missing).collect()
}

fn cpus(cpus: &[u32]) -> String {
    cpus.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

fn points(run: &NumapRun) -> ReportTable {
    let mut table = ReportTable::new(
        "Mbit/s|pairing|>arrived|>sent|>mean RTT|>std error|>least|>most|>p50|>p99|>lost",
    );
    let levels = run.pairings.first().map_or(&[][..], |one| &one.points);
    for (level, first) in levels.iter().enumerate() {
        let mut title = first.offered_mbps.to_string();
        for one in &run.pairings {
            let Some(point) = one.points.get(level) else { continue };
            table.row(row(std::mem::take(&mut title), one, point));
        }
        table.rule();
    }
    table
}

fn row(title: String, one: &PairingResult, point: &Point) -> Vec<String> {
    let Some((mean, error)) = point.mean() else {
        return vec![title, one.name.clone()];
    };
    let means = RoundMeasurements::new(point.rounds.iter().map(super::result::PointRound::mean_ns));
    let all = point.latencies();
    let mbps = |of: fn(&super::result::PointRound) -> f64| format!("{:.0}", point.over_rounds(of));
    let lost = point.rounds.iter().fold(0_u64, |sum, round| sum.saturating_add(round.lost));
    let times = [mean, error, means.min(), means.max()];
    let percentiles = [50.0, 99.0].map(|percent| as_f64(all.percentile(percent)));
    let mut cells = vec![title, one.name.clone()];
    cells.extend([mbps(|round| round.achieved_mbps), mbps(|round| round.sent_mbps)]);
    cells.extend(times.into_iter().chain(percentiles).map(latency_text));
    cells.push(lost.to_string());
    cells
}

/// The mean of a pairing at a level.
fn mean_at(run: &NumapRun, pairing: &str, mbps: u32) -> Option<f64> {
    let one = run.pairings.iter().find(|one| one.name == pairing)?;
    Some(one.points.iter().find(|point| point.offered_mbps == mbps)?.mean()?.0)
}

fn plan(run: &NumapRun) -> ReportTable {
    let mut table =
        ReportTable::new(">Mbit/s|level|processors|pairing|>its mean|lowest mean|reason");
    for row in &run.plan {
        let PlanRow { mbps, level, pairing, reason, .. } = row;
        let text = |mean: Option<f64>| mean.map_or_else(|| "-".to_owned(), latency_text);
        let means = run
            .pairings
            .iter()
            .filter_map(|one| Some((mean_at(run, &one.name, *mbps)?, one.name.as_str())));
        let best = means.min_by(|a, b| a.0.total_cmp(&b.0));
        let best = best.map(|(mean, name)| format!("{name}, {}", latency_text(mean)));
        table.row(vec![
            mbps.to_string(),
            level.clone(),
            cpus(&row.cpus),
            pairing.clone(),
            text(mean_at(run, pairing, *mbps)),
            best.unwrap_or_else(|| "-".to_owned()),
            reason.clone(),
        ]);
    }
    table
}

/// Colours that colour-blind readers can distinguish: those of stores, in another role.
fn colour_of(index: usize) -> Colour {
    const NAMES: [&str; 6] = ["none", "region", "node", "redis", "valkey", "lmdb"];
    chart::colour(NAMES.get(index % NAMES.len()).copied().unwrap_or_default())
}

fn legend(run: &NumapRun) -> Vec<(String, Colour)> {
    let entry = |(index, one): (usize, &PairingResult)| {
        (format!("{} {}", marker_text(index), one.name), colour_of(index))
    };
    run.pairings.iter().enumerate().map(entry).collect()
}

fn curves(run: &NumapRun, figure: &dyn Fn(&Point) -> Option<f64>) -> Lines {
    let line = |(index, one): (usize, &PairingResult)| ChartLine {
        colour: colour_of(index),
        stroke: Stroke::Plain,
        marker: Some(index),
        points: one
            .points
            .iter()
            .filter_map(|p| Some((p.over_rounds(|round| round.achieved_mbps), figure(p)?)))
            .collect(),
    };
    let axis = |title: &str, unit| Axis { title: title.to_owned(), unit, is_log: false };
    let levels = run.pairings.first().map_or(&[][..], |one| &one.points);
    Lines {
        x: axis("measured cross traffic, Mbit/s", Unit::Number),
        y: axis("round-trip time", Unit::Nanoseconds),
        lines: run.pairings.iter().enumerate().map(line).collect(),
        rules: levels.iter().map(|point| f64::from(point.offered_mbps)).collect(),
        y_range: None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::result::PointRound;
    use super::*;
    use crate::html::assert_offline;
    use crate::run_frame::RunFrame;

    fn run() -> NumapRun {
        let round = |ns: u64, mbps: u32| PointRound {
            sent_mbps: f64::from(mbps),
            achieved_mbps: f64::from(mbps) * 0.9,
            lost: 2,
            latencies: vec![(ns, 90), (ns * 10, 8)],
        };
        let pairing = |name: &str, cpus: &[u32], base: u64| PairingResult {
            name: name.to_owned(),
            what: "same L3 cache".to_owned(),
            cpus: cpus.to_vec(),
            points: [0, 500]
                .map(|mbps| Point {
                    offered_mbps: mbps,
                    rounds: vec![round(base + u64::from(mbps), mbps); 2],
                })
                .to_vec(),
        };
        let row = |mbps, level: &str| PlanRow {
            mbps,
            level: level.to_owned(),
            cpus: vec![0, 2],
            pairing: "collocated-l3".to_owned(),
            reason: "same L3 cache <because>".to_owned(),
        };
        NumapRun {
            numap_format: super::super::result::FORMAT,
            frame: RunFrame {
                command: "nearstate bench run numap".to_owned(),
                machine: vec![("processor".to_owned(), "x".to_owned())],
                caveats: vec!["a caveat".to_owned()],
                ..RunFrame::default()
            },
            topology: "NUMA node P#0: <socket> 0\n".to_owned(),
            drawing: String::new(),
            probes: 100,
            pairings: vec![pairing("none", &[], 9000), pairing("collocated-l3", &[0, 2], 5000)],
            missing: vec!["hyper-thread: no core has two".to_owned()],
            plan: vec![row(0, "low"), row(500, "high")],
        }
    }

    #[test]
    fn the_page_has_topology_plan_and_curves_and_loads_nothing() {
        let html = page(&run()).html();
        assert_offline(&html);
        assert!(html.contains("NUMA node P#0: &lt;socket&gt;"), "{html}");
        assert!(html.matches("<polyline").count() >= 4, "two pairings in two charts");
        assert!(html.contains("not measured: hyper-thread: no core has two"));
        assert!(html.contains("same L3 cache &lt;because&gt;"));
    }

    #[test]
    fn the_page_has_the_drawing_of_the_topology_instead_of_its_text() {
        let mut run = run();
        run.drawing = "<svg width=\"1\"><text>NUMA node P#7</text></svg>".to_owned();
        let html = page(&run).html();
        assert_offline(&html);
        assert!(html.contains(&run.drawing) && !html.contains("&lt;socket&gt;"), "{html}");
    }

    #[test]
    fn the_plan_is_compared_with_the_lowest_measured_mean() {
        let rows = plan(&run()).rows;
        assert_eq!(rows[1][..5], ["500", "high", "0,2", "collocated-l3", "9.54 us"]);
        assert_eq!(rows[1][5], "collocated-l3, 9.54 us");
        let rows = points(&run()).rows;
        let of_level = |row: &&Vec<String>| row.first().is_some_and(|level| level == "500");
        let row = rows.iter().find(of_level).unwrap();
        assert_eq!(
            (&row[..3], row[10].as_str()),
            (&["500", "none", "450"].map(str::to_owned)[..], "4")
        );
    }

    #[test]
    fn a_run_that_does_not_count_says_so_first() {
        let mut run = run();
        run.frame.invalid.push("none at 500 Mbit/s: no probe was answered".to_owned());
        run.pairings[0].points[1].rounds.clear();
        let text = text(&run);
        let at = |what: &str| text.find(what).unwrap();
        assert!(at("INVALID") < at("NUMA node"), "{text}");
        assert!(page(&run).html().contains("class=\"alarm\""));
    }
}
