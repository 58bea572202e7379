//! A picture in a terminal: from the state to a frame. Pure; what does not fit is left out, the
//! least wanted first.

use std::net::SocketAddr;
use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Gauge, Sparkline};

use super::format::{name, rate, span};
use super::report::{NamespaceOrder, RegionReport, TopReport};
use super::tables::{Table, all, cut, fill_text, node_lines, region_lines};

/// All that a frame is made of.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScreenState<'s> {
    pub(super) report: &'s TopReport,
    /// The pace of the intervals before and of this one, which is the last.
    pub(super) history: &'s [f64],
    pub(super) faults: &'s [String],
    pub(super) address: Option<SocketAddr>,
    /// Seconds since 1970.
    pub(super) now: f64,
    /// How long ago this picture was true, if it is not now.
    pub(super) age: Option<Duration>,
    pub(super) order: NamespaceOrder,
    pub(super) is_paused: bool,
    pub(super) has_help: bool,
}

/// What `?` shows.
const HELP: &[&str] = &[
    "q, Esc, Ctrl-C   end",
    "p, space         pause: look, but keep what is shown",
    "s                order namespaces by bytes, records, growth or name",
    "?                this page, and back",
    "",
    "Rates and latencies are those of the last interval (--interval); a latency stands",
    "between the bounds of its bucket. busy: the share of the time that a core was in",
    "tasks; its search for work while it is idle does not count. long polls: times that a",
    "task has kept its core for more than a millisecond. oldest pin: a reader that holds a",
    "view keeps memory from being used again. bytes of a namespace: from a sample of its",
    "records. fill: what was ever taken of the heap; freed bytes are used again.",
];

/// From this height on the pace is drawn, and from the second one in two lines.
const HEIGHTS_OF_PACE: [u16; 2] = [12, 24];

/// Where the next line goes.
struct Page<'f, 'b> {
    frame: &'f mut Frame<'b>,
    left: Rect,
}

const HEAD: Style = Style::new().add_modifier(Modifier::BOLD);
const DIM: Style = Style::new().add_modifier(Modifier::DIM);
const TITLE: Style = Style::new().add_modifier(Modifier::REVERSED);
const FAULT: Style = Style::new().fg(Color::Red);

impl Page<'_, '_> {
    /// Takes rows from the top of what is left; `None` if there are not as many.
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

    fn table(&mut self, table: &Table, rows: usize) {
        for (source, line) in table.lines(self.width(), rows).iter().enumerate() {
            self.line(line, if source == 0 { HEAD } else { Style::new() });
        }
    }
}

/// Draws it.
pub(super) fn draw(frame: &mut Frame<'_>, shown: &ScreenState<'_>) {
    let left = frame.area();
    let mut page = Page { frame, left };
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
    pace(&mut page, shown, left.height);
    if let Some(region) = &shown.report.region {
        fill(&mut page, region);
        let [_, text] = region_lines(region);
        page.line(&text, Style::new());
    }
    let tables = all(shown.report);
    let wanted: Vec<usize> = tables.iter().map(Table::rows).collect();
    for (table, rows) in tables.iter().zip(shares(&wanted, page.left.height.into())) {
        if rows > 0 {
            page.line("", Style::new());
            page.table(table, rows);
        }
    }
}

fn title(page: &mut Page<'_, '_>, shown: &ScreenState<'_>) {
    let age = shown.age.map_or_else(String::new, |age| format!("  last seen {} ago", span(age)));
    let paused = if shown.is_paused { "  paused" } else { "" };
    let order = shown.order.word();
    let keys = format!("q end  p pause  s order: {order}  ? help");
    let text = format!("nearstate top{paused}{age}");
    let gap = page.width().saturating_sub(text.len() + keys.len());
    let text = if gap > 1 { format!("{text}{}{keys}", " ".repeat(gap)) } else { text };
    page.line(&format!("{text:width$}", width = page.width()), TITLE);
}

/// The pace over time.
fn pace(page: &mut Page<'_, '_>, shown: &ScreenState<'_>, height: u16) {
    let rows = HEIGHTS_OF_PACE.iter().filter(|least| height >= **least).count();
    if rows == 0 || shown.history.is_empty() {
        return;
    }
    let what = if shown.report.node.is_some() { "requests" } else { "records changed" };
    let most = shown.history.iter().copied().fold(0.0, f64::max);
    page.line(&format!("{what} per second, at most {}", rate(most)), DIM);
    let Some(area) = page.take(u16::try_from(rows).unwrap_or(1)) else { return };
    // The last of them stands at the right.
    let fitting = shown.history.len().saturating_sub(area.width.into());
    let data: Vec<u64> = shown.history.iter().skip(fitting).map(|pace| hundredths(*pace)).collect();
    page.frame.render_widget(Sparkline::default().data(data), area);
}

/// Bars are drawn of whole numbers.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "saturates, and a pace is never negative"
)]
fn hundredths(pace: f64) -> u64 {
    (pace * 100.0) as u64
}

/// The region's path, and a bar of how full it is.
fn fill(page: &mut Page<'_, '_>, region: &RegionReport) {
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

/// How many rows each table gets of so many, which are also for its head and the line before it.
/// The first tables are wanted most; a table without a row is left out.
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
    fn a_screen_of_eighty_by_thirty_has_all_of_it() {
        let screen = screen(80, 30, |_| ());
        let wanted = "\
nearstate top                             q end  p pause  s order: bytes  ? help
node  127.0.0.1:9121  0.1.0  pid 77  up 00:01:00
600 requests/s  0 errors/s  75 % hits  3 clients  2.0 KiB/s in  4.0 KiB/s out
requests per second, at most 600";
        assert_eq!(screen[..4].join("\n"), wanted);
        assert!(screen[4..6].concat().contains('█'), "{screen:#?}");
        assert!(screen[6].starts_with("region  /dev/shm/amf  █"), "{screen:#?}");
        assert!(screen[6].contains("256 MiB of 1.0 GiB, 25 %"), "{screen:#?}");
        let wanted = "\
1,005 records (-4/s)  3 sessions and 1 of the dead  epoch 42  oldest pin 2 behi~

commands  per second      p50      p99    p99.9
read             600  10.0 us  19.8 us  20.0 us
write              0        -        -        -

core  per second  busy  connections  long polls
0            400  60 %            2           0
1            200  30 %            1           4

namespace   records    bytes  growth/s  tags
ue-context    1,000  250 KiB        -4     2
sessions          5  1.2 KiB         -     0
and 7 more

process    pid  sessions  oldest pin
amf         90         2    2 behind
nearstate   77         1           -";
        assert_eq!(screen[7..].join("\n").trim_end(), wanted);
    }

    #[test]
    fn a_small_screen_has_the_most_wanted_and_none_is_too_small() {
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
    fn what_is_wrong_and_how_old_the_picture_is_stand_at_the_top() {
        let faults = ["nobody answers at 127.0.0.1:9121".to_owned()];
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
    fn rows_go_round_and_the_last_tables_are_left_out_first() {
        assert_eq!(shares(&[2, 2, 50, 3], 20), [2, 2, 5, 3]);
        assert_eq!(shares(&[2, 2, 50, 3], 7), [2, 1, 0, 0]);
        assert_eq!(shares(&[0, 2], 3), [0, 1]);
        assert_eq!(shares(&[4], 2), [0]);
    }
}
