//! A comparison as a table for a terminal and as a page.

use super::{CLOSE, Comparison, ComparisonVerdict, Figure, RATIO_MIN, Row, VerdictReason};
use crate::html::{HtmlBlock, Page};
use crate::spread::RoundMeasurements;
use crate::table::{ReportTable, latency_text, printable, rate_text, ratio_text, wrapped};
use std::fmt::Write as _;

const OBSTACLE: &str = "NOT COMPARABLE: the runs differ in what figures depend on";

const SPREAD: &str = "least .. most";

/// For a terminal.
pub fn text(comparison: &Comparison<'_>) -> String {
    let mut out = format!("\n{}\n", title(comparison));
    if !comparison.obstacles.is_empty() {
        let _ = writeln!(out, "\n!!! {OBSTACLE}");
        for obstacle in &comparison.obstacles {
            out.push_str(&wrapped(obstacle, "!!! ", "!!!   "));
        }
    }
    // Only the page shows the least and the most of each.
    let figures = table(comparison, |_| true).without(&[SPREAD]);
    let _ = write!(out, "\n{}", figures.text());
    let _ = write!(out, "\n{}", wrapped(&counted(comparison), "", ""));
    let _ = write!(out, "\n{}", wrapped(&how(), "", ""));
    for note in &comparison.notes {
        out.push_str(&wrapped(note, "note: ", "  "));
    }
    for (place, run) in [("first", comparison.a), ("second", comparison.b)] {
        let _ = writeln!(out, "{place}: {}", run.command);
    }
    printable(&out)
}

pub fn page(comparison: &Comparison<'_>) -> Page {
    let mut blocks = Vec::new();
    if !comparison.obstacles.is_empty() {
        blocks.push(HtmlBlock::Alarm(OBSTACLE.to_owned(), comparison.obstacles.clone()));
    }
    blocks.extend([
        HtmlBlock::heading("At a glance"),
        HtmlBlock::Text(counted(comparison)),
        HtmlBlock::heading("All classes together"),
        HtmlBlock::Text(how()),
        HtmlBlock::Table(table(comparison, |row| row.class == "all")),
    ]);
    let classes = table(comparison, |row| row.class != "all");
    if !classes.rows.is_empty() {
        blocks.push(HtmlBlock::heading("By class of operations"));
        blocks.push(HtmlBlock::Table(classes));
    }
    if !comparison.notes.is_empty() {
        blocks.push(HtmlBlock::heading("Keep in mind"));
        blocks.push(HtmlBlock::List(comparison.notes.clone()));
    }
    blocks.push(HtmlBlock::heading("The runs"));
    blocks.push(HtmlBlock::Code(format!("{}\n{}", comparison.a.command, comparison.b.command)));
    blocks.push(HtmlBlock::Facts(comparison.a.machine.clone()));
    Page {
        title: title(comparison),
        lead:
            "The second run compared with the first: what is faster, what is slower, and how sure \
               that is."
                .to_owned(),
        blocks,
    }
}

fn title(comparison: &Comparison<'_>) -> String {
    let (a, b) = (&comparison.a.workload.name, &comparison.b.workload.name);
    if a == b { format!("{a}: two runs") } else { format!("{a} and {b}: two runs") }
}

fn how() -> String {
    format!(
        "Medians of the rounds; the ratio is that of the second run to the first. With four or \
         more rounds of each run, the two-sided Mann-Whitney U test (5 %) decides whether they \
         differ; with two or three, the 95 % confidence intervals of the means (Student's t) must \
         not overlap; one round decides nothing. Differences below {:.0} % are ignored. Figures \
         are the same if no two rounds differ by more than {:.0} %; inconclusive ones may differ \
         as much as their rounds do.",
        100.0 * (RATIO_MIN - 1.0),
        100.0 * (CLOSE - 1.0)
    )
}

fn counted(comparison: &Comparison<'_>) -> String {
    let count = |is: fn(&ComparisonVerdict) -> bool| {
        comparison.rows.iter().filter(|row| is(&row.verdict)).count()
    };
    format!(
        "{} faster, {} slower, {} the same, {} inconclusive, {} undecided, {} not comparable, \
         of {} figures.",
        count(|v| matches!(v, ComparisonVerdict::Faster(_))),
        count(|v| matches!(v, ComparisonVerdict::Slower(_))),
        count(|v| matches!(v, ComparisonVerdict::Same(_))),
        count(|v| matches!(v, ComparisonVerdict::Inconclusive(_))),
        count(|v| matches!(v, ComparisonVerdict::Undecided)),
        count(|v| matches!(v, ComparisonVerdict::NotComparable(_))),
        comparison.rows.len()
    )
}

fn table(comparison: &Comparison<'_>, wanted: impl Fn(&Row) -> bool) -> ReportTable {
    let mut table = ReportTable::new(&format!(
        "target|class|figure|>first|>{SPREAD}|>second|>{SPREAD}|>ratio|verdict"
    ));
    let (mut target, mut class) = ("", "");
    for row in comparison.rows.iter().filter(|row| wanted(row)) {
        let is_new_target = row.target != target;
        if is_new_target {
            table.rule();
        }
        let is_new_class = is_new_target || row.class != class;
        (target, class) = (&row.target, &row.class);
        table.row(vec![
            if is_new_target { target.to_owned() } else { String::new() },
            if is_new_class { class.to_owned() } else { String::new() },
            name(row.figure).to_owned(),
            figure_text(row.figure, &row.a, RoundMeasurements::median),
            spread_text(row.figure, &row.a),
            figure_text(row.figure, &row.b, RoundMeasurements::median),
            spread_text(row.figure, &row.b),
            ratio(row),
            verdict_text(&row.verdict),
        ]);
    }
    table
}

/// The ratio of the second to the first, if both exist.
fn ratio(row: &Row) -> String {
    let is_there = row.a.count() > 0 && row.b.count() > 0;
    if is_there { ratio_text(row.b.median() / row.a.median()) } else { "-".to_owned() }
}

const fn name(figure: Figure) -> &'static str {
    match figure {
        Figure::Rate => "op/s",
        Figure::P50 => "p50",
        Figure::P99 => "p99",
    }
}

fn figure_text(
    figure: Figure,
    spread: &RoundMeasurements,
    of: fn(&RoundMeasurements) -> f64,
) -> String {
    match (spread.count(), figure) {
        (0, _) => "-".to_owned(),
        (_, Figure::Rate) => rate_text(of(spread)),
        (_, Figure::P50 | Figure::P99) => latency_text(of(spread)),
    }
}

fn spread_text(figure: Figure, spread: &RoundMeasurements) -> String {
    if spread.count() < 2 {
        return "-".to_owned();
    }
    let of = |of| figure_text(figure, spread, of);
    format!("{} .. {}", of(RoundMeasurements::min), of(RoundMeasurements::max))
}

fn verdict_text(verdict: &ComparisonVerdict) -> String {
    match verdict {
        ComparisonVerdict::Same(ground) => format!("same ({})", ground_text(*ground)),
        ComparisonVerdict::Inconclusive(VerdictReason::Ranks(p)) => {
            format!("inconclusive (p = {p:.3})")
        }
        ComparisonVerdict::Inconclusive(_) => "inconclusive".to_owned(),
        ComparisonVerdict::Faster(ground) => format!("FASTER ({})", ground_text(*ground)),
        ComparisonVerdict::Slower(ground) => format!("SLOWER ({})", ground_text(*ground)),
        ComparisonVerdict::Undecided => "undecided: one round".to_owned(),
        // The obstacles and notes give the reason.
        ComparisonVerdict::NotComparable(_) => "not comparable".to_owned(),
    }
}

fn ground_text(ground: VerdictReason) -> String {
    match ground {
        VerdictReason::Ranks(p) => format!("U test, p = {p:.3}"),
        VerdictReason::Intervals => "95 % intervals".to_owned(),
        VerdictReason::Close => format!("within {:.0} %", 100.0 * (CLOSE - 1.0)),
        VerdictReason::TooSmall => "too small".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::compare;
    use super::*;
    use crate::html::assert_offline;
    use crate::sample::run;
    use crate::table::WIDTH;

    #[test]
    fn figures_and_verdicts_appear_with_their_ground() {
        let (a, mut b) = (run(), run());
        for round in &mut b.targets[1].rounds {
            round.wall_ns *= 2;
        }
        let text = text(&compare(&a, &b));
        let redis = text.lines().find(|line| line.starts_with("redis")).unwrap();
        for cell in ["16.3 k", "8.17 k", "0.50 x", "SLOWER (U test, p = 0.008)"] {
            assert!(redis.contains(cell), "{cell} is not in {redis}");
        }
        assert!(text.contains("same (within 5 %)"));
        assert!(text.contains("not comparable") && text.contains("is invalid in the first run"));
        let is_wide = |line: &&str| line.chars().count() > WIDTH && !line.contains("nearstate");
        assert_eq!(text.lines().find(is_wide), None, "{text}");
        assert!(page(&compare(&a, &b)).html().contains(SPREAD));
        assert!(text.contains("Mann-Whitney U test"));
    }

    #[test]
    fn missing_figures_have_no_ratio_and_inconclusive_ones_are_marked() {
        let (mut a, mut b) = (run(), run());
        b.targets[0].rounds.clear();
        for (at, round) in a.targets[1].rounds.iter_mut().enumerate() {
            round.wall_ns = round.wall_ns * (90 + 10 * at as u64) / 100;
        }
        let text = text(&compare(&a, &b));
        let line = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap();
        assert!(line("region").contains("│      - │ not comparable"), "{}", line("region"));
        assert!(line("redis").contains("inconclusive (p = 0."), "{}", line("redis"));
        let is_wide = |line: &&str| line.chars().count() > WIDTH && !line.contains("nearstate");
        assert_eq!(text.lines().find(is_wide), None, "{text}");
        assert!(!text.contains(" 0 inconclusive, "), "{text}");
    }

    #[test]
    fn an_obstacle_is_shown_as_an_alarm() {
        let (a, mut b) = (run(), run());
        b.machine[0].1 = "Other 1".to_owned();
        let comparison = compare(&a, &b);
        let text = text(&comparison);
        assert!(text.contains("!!! NOT COMPARABLE") && text.contains("Other 1 in the second"));
        assert!(!text.contains("SLOWER") && !text.contains("FASTER") && !text.contains("same ("));
        let html = page(&comparison).html();
        assert!(html.contains("class=\"alarm\"") && html.contains("Other 1"));
    }

    #[test]
    fn the_page_is_self_contained_and_has_tables() {
        let run = run();
        let html = page(&compare(&run, &run)).html();
        assert!(html.contains("All classes together") && html.contains("By class of operations"));
        assert_offline(&html);
    }

    #[test]
    fn runs_without_targets_do_not_panic() {
        let (mut a, b) = (run(), run());
        a.targets.clear();
        let text = text(&compare(&a, &b));
        assert!(text.contains("of 0 figures") && text.contains("redis is not in the first run"));
    }
}
