//! Draws a report in a terminal frame. Pure. Tables and columns that do not fit are omitted, the
//! least important first.

use std::net::SocketAddr;
use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Gauge, Sparkline};

use super::format::{name, rate, span};
use super::report::{NamespaceOrder, RegionReport, TopReport};
use super::tables::{TextTable, all, cut, fill_text, node_lines, region_lines};

/// Everything that a frame shows.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScreenState<'s> {
    pub(super) report: &'s TopReport,
    /// The history graph; the last value belongs to this interval.
    pub(super) history: &'s [f64],
    pub(super) faults: &'s [String],
    pub(super) address: Option<SocketAddr>,
    /// Seconds since 1970.
    pub(super) now: f64,
    /// The age of the report, if it is outdated.
    pub(super) age: Option<Duration>,
    pub(super) order: NamespaceOrder,
    pub(super) is_paused: bool,
    pub(super) has_help: bool,
}

/// The text of the help page.
const HELP: &[&str] = &[
    "q, Esc, Ctrl-C   quit",
    "p, space         pause the display; polling continues",
    "s                sort namespaces by bytes, records, growth or name",
    "?                show or hide this help",
    "",
    "Rates and latencies cover the last interval (--interval). A latency is interpolated",
    "within its histogram bucket.",
    "busy        share of the time that the core spent in tasks, without busy-polling",
    "long polls  times that a task blocked the core for more than 1 ms",
    "oldest pin  epochs by which a reader that holds a view delays the reuse of memory",
    "holds back  memory of retired records that its views keep from reuse, and for how long",
    "bytes       bytes of a namespace, estimated from a sample of its records",
    "fill        share of the heap that is allocated",
];

/// Minimum screen heights for a history graph of one line and of two lines.
const GRAPH_HEIGHTS_MIN: [u16; 2] = [12, 24];

/// The part of the frame that is not used yet.
struct ScreenWriter<'f, 'b> {
    frame: &'f mut Frame<'b>,
    left: Rect,
}

const HEAD: Style = Style::new().add_modifier(Modifier::BOLD);
const DIM: Style = Style::new().add_modifier(Modifier::DIM);
const TITLE: Style = Style::new().add_modifier(Modifier::REVERSED);
const FAULT: Style = Style::new().fg(Color::Red);

impl ScreenWriter<'_, '_> {
    /// Takes rows from the top; `None` if fewer are left.
    fn take(&mut self, rows: u16) -> Option<Rect> {
        let (height, area) = (self.left.height.checked_sub(rows)?, self.left);
        self.left = Rect { y: area.y + rows, height, ..area };
        Some(Rect { height: rows, ..area })
    }

    fn width(&self) -> usize {
        self.left.width.into()
    }

    fn line(&mut self, text: &str, style: Style) {
        if let Some(area) = self.take(1) {
            let line = Line::styled(cut(text, area.width.into()), style);
            self.frame.render_widget(line, area);
        }
    }

    fn table(&mut self, table: &TextTable, rows: usize) {
        for (source, line) in table.lines(self.width(), rows).iter().enumerate() {
            self.line(line, if source == 0 { HEAD } else { Style::new() });
        }
    }
}

/// Draws a frame.
pub(super) fn draw(frame: &mut Frame<'_>, shown: &ScreenState<'_>) {
    let left = frame.area();
    let mut page = ScreenWriter { frame, left };
    title(&mut page, shown);
    for why in shown.faults {
        page.line(&name(why), FAULT);
    }
    if shown.has_help {
        for text in HELP {
            page.line(text, Style::new());
        }
        return;
    }
    if let Some(node) = &shown.report.node {
        for text in node_lines(node, shown.address, shown.now) {
            page.line(&text, Style::new());
        }
    }
    history(&mut page, shown, left.height);
    if let Some(region) = &shown.report.region {
        fill(&mut page, region);
        let [_, text] = region_lines(region);
        page.line(&text, Style::new());
    }
    let tables = all(shown.report);
    let wanted: Vec<usize> = tables.iter().map(TextTable::rows).collect();
    for (table, rows) in tables.iter().zip(shares(&wanted, page.left.height.into())) {
        if rows > 0 {
            page.line("", Style::new());
            page.table(table, rows);
        }
    }
}

fn title(page: &mut ScreenWriter<'_, '_>, shown: &ScreenState<'_>) {
    let age = shown.age.map_or_else(String::new, |age| format!("  last seen {} ago", span(age)));
    let paused = if shown.is_paused { "  paused" } else { "" };
    let order = shown.order.name();
    let keys = format!("q quit  p pause  s sort: {order}  ? help");
    let text = format!("nearstate top{paused}{age}");
    let gap = page.width().saturating_sub(text.len() + keys.len());
    let text = if gap > 1 { format!("{text}{}{keys}", " ".repeat(gap)) } else { text };
    page.line(&format!("{text:width$}", width = page.width()), TITLE);
}

/// Draws the history graph.
fn history(page: &mut ScreenWriter<'_, '_>, shown: &ScreenState<'_>, height: u16) {
    let rows = GRAPH_HEIGHTS_MIN.iter().filter(|least| height >= **least).count();
    if rows == 0 || shown.history.is_empty() {
        return;
    }
    let what = if shown.report.node.is_some() { "requests" } else { "records changed" };
    let most = shown.history.iter().copied().fold(0.0, f64::max);
    page.line(&format!("{what} per second, at most {}", rate(most)), DIM);
    let Some(area) = page.take(u16::try_from(rows).unwrap_or(1)) else { return };
    // The newest values are at the right.
    let fitting = shown.history.len().saturating_sub(area.width.into());
    let data: Vec<u64> = shown.history.iter().skip(fitting).map(|pace| hundredths(*pace)).collect();
    page.frame.render_widget(Sparkline::default().data(data), area);
}

/// The graph takes integers.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "saturates, and a pace is never negative"
)]
fn hundredths(pace: f64) -> u64 {
    (pace * 100.0) as u64
}

/// Draws the region's path and a bar of its fill.
fn fill(page: &mut ScreenWriter<'_, '_>, region: &RegionReport) {
    let Some(area) = page.take(1) else { return };
    let path = format!("region  {}  ", name(&region.seen.path));
    let width = u16::try_from(path.chars().count()).unwrap_or(u16::MAX).min(area.width / 2);
    let text = Rect { width, ..area };
    page.frame.render_widget(Line::raw(cut(&path, width.into())), text);
    let color = match region.fill {
        full if full >= 0.9 => Color::Red,
        much if much >= 0.7 => Color::Yellow,
        _ => Color::Green,
    };
    let bar = Rect { x: area.x + width, width: area.width - width, ..area };
    let gauge = Gauge::default()
        .ratio(region.fill.clamp(0.0, 1.0))
        .label(cut(&fill_text(region), bar.width.into()))
        .gauge_style(Style::new().fg(color).bg(Color::DarkGray));
    page.frame.render_widget(gauge, bar);
}

/// Distributes rows to tables. Each table also needs a header and an empty line. Earlier tables are
/// more important; a table without rows is omitted.
fn shares(wanted: &[usize], mut left: usize) -> Vec<usize> {
    let mut shares = vec![0; wanted.len()];
    for (share, wanted) in shares.iter_mut().zip(wanted) {
        if *wanted > 0 && left >= 3 {
            *share = 1;
            left -= 3;
        }
    }
    loop {
        let before = left;
        for (share, wanted) in shares.iter_mut().zip(wanted) {
            if *share > 0 && *share < *wanted && left > 0 {
                *share += 1;
                left -= 1;
            }
        }
        if left == before {
            return shares;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::buffer::Cell;

    fn screen(width: u16, height: u16, change: impl Fn(&mut ScreenState<'_>)) -> Vec<String> {
        screen_with(width, height, &[], change)
    }

    fn screen_with(
        width: u16,
        height: u16,
        faults: &[String],
        change: impl Fn(&mut ScreenState<'_>),
    ) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let report = sample::report();
        let mut shown = ScreenState {
            report: &report,
            history: &[100.0, 50.0, 600.0],
            faults,
            address: Some("127.0.0.1:9121".parse().unwrap()),
            now: 1_700_000_060.0,
            age: None,
            order: NamespaceOrder::Bytes,
            is_paused: false,
            has_help: false,
        };
        change(&mut shown);
        terminal.draw(|frame| draw(frame, &shown)).unwrap();
        let buffer = terminal.backend().buffer();
        let rows = buffer.content().chunks(width.into());
        rows.map(|row| row.iter().map(Cell::symbol).collect::<String>())
            .map(|line| line.trim_end().to_owned())
            .collect()
    }

    #[test]
    fn a_screen_of_eighty_by_thirty_shows_everything() {
        let screen = screen(80, 30, |_| ());
        let wanted = "\
nearstate top                             q quit  p pause  s sort: bytes  ? help
node  127.0.0.1:9121  0.1.0  pid 77  up 00:01:00
600 requests/s  0 errors/s  75 % hits  3 clients  2.0 KiB/s in  4.0 KiB/s out
requests per second, at most 600";
        assert_eq!(screen[..4].join("\n"), wanted);
        assert!(screen[4..6].concat().contains('█'), "{screen:#?}");
        assert!(screen[6].starts_with("region  /dev/shm/amf  █"), "{screen:#?}");
        assert!(screen[6].contains("256 MiB of 1.0 GiB, 25 %"), "{screen:#?}");
        let wanted = "\
1,005 records (-4/s)  3 sessions and 1 dead  epoch 42  oldest pin 2 behind

commands  per second      p50      p99    p99.9
read             600  10.0 us  19.8 us  20.0 us
write              0        -        -        -

core  per second  busy  connections  long polls
0            400  60 %            2           0
1            200  30 %            1           4

namespace   records    bytes  growth/s  tags             limit
ue-context    1,000  250 KiB        -4     2  25 % of 1000 KiB
sessions          5  1.2 KiB         -     0                 -
and 7 more

process    pid  sessions  oldest pin  holds back       for
amf         90         2    2 behind     2.0 MiB  00:01:10
nearstate   77         1           -           -         -";
        assert_eq!(screen[7..].join("\n").trim_end(), wanted);
    }

    #[test]
    fn a_small_screen_shows_the_most_important_tables_and_no_size_panics() {
        let screen_of = |width, height| screen(width, height, |_| ()).join("\n");
        let small = screen_of(50, 14);
        assert!(small.contains("commands") && small.contains("region"), "{small}");
        assert!(!small.contains("process"), "{small}");
        assert!(screen_of(50, 10).contains("600 requests/s"));
        for width in 1..40 {
            for height in 1..30 {
                screen_of(width, height);
            }
        }
    }

    #[test]
    fn errors_and_the_age_of_the_data_are_at_the_top() {
        let faults = ["cannot connect to 127.0.0.1:9121".to_owned()];
        let screen = screen_with(80, 24, &faults, |shown| {
            shown.age = Some(Duration::from_secs(75));
            shown.is_paused = true;
        });
        assert!(screen[0].starts_with("nearstate top  paused  last seen 00:01:15 ago"));
        assert_eq!(screen[1], faults[0]);
    }

    #[test]
    fn the_help_names_every_key() {
        let screen = screen(90, 24, |shown| shown.has_help = true).join("\n");
        for key in ["q, Esc", "p, space", "s  ", "?  "] {
            assert!(screen.contains(key), "{screen}");
        }
        assert!(!screen.contains("ue-context"), "{screen}");
    }

    #[test]
    fn rows_are_distributed_and_the_last_tables_are_omitted_first() {
        assert_eq!(shares(&[2, 2, 50, 3], 20), [2, 2, 5, 3]);
        assert_eq!(shares(&[2, 2, 50, 3], 7), [2, 1, 0, 0]);
        assert_eq!(shares(&[0, 2], 3), [0, 1]);
        assert_eq!(shares(&[4], 2), [0]);
    }
}
