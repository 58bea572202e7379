//! One page of HTML that opens without a network: text, tables, and charts as inline SVG. What is
//! on it is the caller's; how it looks is decided here, for a light and a dark screen.

pub mod chart;

use crate::table::{Align, ReportTable};
use std::fmt::Write as _;

const STYLE: &str = include_str!("html/style.css");

#[derive(Clone, Debug)]
pub struct Page {
    /// What the browser shows in its title.
    pub title: String,
    /// What it is about, below the title.
    pub lead: String,
    /// The content, from the top.
    pub blocks: Vec<HtmlBlock>,
}

/// A part of a page.
#[derive(Clone, Debug)]
pub enum HtmlBlock {
    /// A heading; the first kind also makes an entry at the top of the page.
    Heading(String),
    /// A smaller heading.
    Subheading(String),
    /// A paragraph.
    Text(String),
    /// Sentences below each other.
    List(Vec<String>),
    /// What must not be overlooked: a heading and why.
    Alarm(String, Vec<String>),
    /// Something that was typed.
    Code(String),
    /// Names and their values.
    Facts(Vec<(String, String)>),
    Table(ReportTable),
    /// Bars with a scale for each group, which may count different things. It starts at zero, or
    /// is logarithmic, and says so, where amounts differ too much for that.
    Bars(Vec<BarGroup>),
    /// Charts beside each other as far as there is room.
    Charts(Vec<Chart>),
    /// Blocks that are shown on demand, below a summary.
    Details(String, Vec<HtmlBlock>),
}

/// A chart with a line about it.
#[derive(Clone, Debug)]
pub struct Chart {
    /// What it shows.
    pub caption: String,
    /// The picture; see [`chart`].
    pub svg: String,
    /// What each colour stands for, where there are several. A first word that is no ASCII (a
    /// marker of [`chart::lines`]) is shown in the colour itself.
    pub legend: Vec<(String, chart::Colour)>,
}

/// Bars that belong together.
#[derive(Clone, Debug)]
pub struct BarGroup {
    /// What they are about.
    pub title: String,
    pub bars: Vec<Bar>,
}

#[derive(Clone, Debug)]
pub struct Bar {
    /// What stands before it.
    pub label: String,
    /// How long it is, on a logarithmic scale over all bars of the block.
    pub amount: f64,
    /// What stands behind it.
    pub text: String,
    /// Its colour, from [`chart::colour`].
    pub colour: chart::Colour,
    /// Whether it is a figure of others, shown beside ours.
    pub is_foreign: bool,
}

impl Page {
    /// The page as one file.
    pub fn html(&self) -> String {
        let mut body = String::new();
        let title = escaped(&self.title);
        let _ =
            write!(body, "<header><h1>{title}</h1><p class=\"lead\">{}</p>", escaped(&self.lead));
        body.push_str(&self.contents());
        body.push_str("</header>\n");
        for block in &self.blocks {
            body.push_str(&block.html());
        }
        format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
             <meta name=\"color-scheme\" content=\"light dark\">\
             <title>{title}</title><style>\n{STYLE}</style></head>\n<body><main>\n{body}</main>\
             </body></html>\n"
        )
    }

    fn contents(&self) -> String {
        let entries = self.blocks.iter().filter_map(|block| {
            let HtmlBlock::Heading(text) = block else { return None };
            Some(format!("<a href=\"#{}\">{}</a>", anchor(text), escaped(text)))
        });
        format!("<nav>{}</nav>", entries.collect::<String>())
    }
}

impl HtmlBlock {
    fn html(&self) -> String {
        match self {
            Self::Heading(text) => {
                format!("<h2 id=\"{}\">{}</h2>\n", anchor(text), escaped(text))
            }
            Self::Subheading(text) => format!("<h3>{}</h3>\n", escaped(text)),
            Self::Text(text) => format!("<p>{}</p>\n", escaped(text)),
            Self::Code(text) => format!("<pre>{}</pre>\n", escaped(text)),
            Self::List(lines) => {
                let line = |l: &String| format!("<li>{}</li>", escaped(l));
                format!("<ul>{}</ul>\n", joined(lines, line))
            }
            Self::Alarm(title, lines) => {
                let line = |l: &String| format!("<li>{}</li>", escaped(l));
                let (title, lines) = (escaped(title), joined(lines, line));
                format!("<div class=\"alarm\"><strong>{title}</strong><ul>{lines}</ul></div>\n")
            }
            Self::Facts(facts) => {
                let fact = |(name, value): &(String, String)| {
                    format!("<dt>{}</dt><dd>{}</dd>", escaped(name), escaped(value))
                };
                format!("<dl>{}</dl>\n", joined(facts, fact))
            }
            Self::Table(table) => table_html(table),
            Self::Bars(groups) => bars_html(groups),
            Self::Charts(charts) => {
                let chart = |c: &Chart| {
                    let caption = escaped(&c.caption);
                    let legend = joined(&c.legend, legend_html);
                    // A chart of several takes the room of two.
                    let class = if c.legend.is_empty() { "" } else { " class=\"wide\"" };
                    format!(
                        "<figure{class}>{}<figcaption><span>{legend}</span>{caption}</figcaption>\
                         </figure>",
                        c.svg
                    )
                };
                format!("<div class=\"charts\">{}</div>\n", joined(charts, chart))
            }
            Self::Details(summary, blocks) => {
                let inside = joined(blocks, Self::html);
                let summary = escaped(summary);
                format!("<details><summary>{summary}</summary>{inside}</details>\n")
            }
        }
    }
}

/// A name with its colour; one that begins with a sign (a marker, a stroke) shows that in colour.
fn legend_html((name, colour): &(String, chart::Colour)) -> String {
    let colour = chart::css(*colour);
    let sign = name.split_once(' ').filter(|(sign, _)| !sign.is_ascii());
    let (mark, name) = match sign {
        Some((sign, name)) => (format!("<b style=\"color:{colour}\">{}</b>", escaped(sign)), name),
        None => (format!("<s style=\"background:{colour}\"></s>"), name.as_str()),
    };
    format!("<u>{mark}{}</u> ", escaped(name))
}

fn joined<T>(parts: &[T], html: impl Fn(&T) -> String) -> String {
    parts.iter().map(html).collect::<Vec<_>>().concat()
}

/// A longer cell is broken into lines: it is a sentence, and would make the table too wide.
const SENTENCE_BYTES: usize = 60;

fn table_html(table: &ReportTable) -> String {
    let class = |i: usize| match table.columns.get(i) {
        Some((_, Align::Right)) => " class=\"n\"",
        Some((_, Align::Left)) | None => "",
    };
    let mut out = String::from("<div class=\"scroll\"><table><thead><tr>");
    for (i, (name, _)) in table.columns.iter().enumerate() {
        let _ = write!(out, "<th{}>{}</th>", class(i), escaped(name));
    }
    out.push_str("</tr></thead><tbody>");
    for row in table.rows.iter().filter(|r| !r.is_empty()) {
        // A row that names its group begins a new one.
        let begins = row.first().is_some_and(|c| !c.is_empty());
        out.push_str(if begins { "<tr class=\"group\">" } else { "<tr>" });
        for (i, cell) in row.iter().enumerate() {
            let is_sentence = cell.len() > SENTENCE_BYTES;
            let class = if is_sentence { " class=\"sentence\"" } else { class(i) };
            let _ = write!(out, "<td{class}>{}</td>", escaped(cell));
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>\n");
    out
}

/// Amounts of one group that differ by more than this factor are shown on a logarithmic scale: on a
/// plain one, the shortest bar would not be seen.
const PLAIN_FACTOR_MAX: f64 = 30.0;

fn bars_html(groups: &[BarGroup]) -> String {
    let mut out = String::from("<div class=\"bars\">");
    for group in groups {
        let alone = std::slice::from_ref(group);
        let (least, most) = extremes(alone);
        if most <= least * PLAIN_FACTOR_MAX {
            out.push_str(&group_html(group, &Scale::FromNothing { most }));
        } else {
            let title = format!("{}; logarithmic, ten times more at each line", group.title);
            let titled = BarGroup { title, bars: group.bars.clone() };
            out.push_str(&group_html(&titled, &Scale::of_decades(alone)));
        }
    }
    out.push_str("</div>\n");
    out
}

fn extremes(groups: &[BarGroup]) -> (f64, f64) {
    let amounts = || groups.iter().flat_map(|g| &g.bars).map(|b| b.amount.max(f64::MIN_POSITIVE));
    (amounts().fold(f64::INFINITY, f64::min), amounts().fold(0.0_f64, f64::max))
}

/// How long bars are.
enum Scale {
    /// The longest fills its row.
    FromNothing {
        /// What it stands for.
        most: f64,
    },
    /// Whole powers of ten from one end of the row to the other.
    Decades {
        /// The power below the shortest bar.
        first: f64,
        /// How many powers there are.
        count: f64,
    },
}

/// Percent of its row that a bar fills at the least: it is seen.
const BAR_MIN: f64 = 1.0;

impl Scale {
    /// Over all bars of these groups.
    fn of_decades(groups: &[BarGroup]) -> Self {
        let (least, most) = extremes(groups);
        let first = least.log10().floor();
        Self::Decades { first, count: (most.log10().ceil() - first).max(1.0) }
    }

    /// How many percent of its row a bar fills.
    fn percent(&self, amount: f64) -> f64 {
        let share = match self {
            Self::FromNothing { most } => amount / most,
            Self::Decades { first, count } => {
                (amount.max(f64::MIN_POSITIVE).log10() - first) / count
            }
        };
        (100.0 * share).clamp(BAR_MIN, 100.0)
    }

    /// Lines across the bars of a row, one for each power.
    fn lines(&self) -> String {
        match self {
            Self::FromNothing { .. } => String::new(),
            Self::Decades { count, .. } => {
                format!(" class=\"decades\" style=\"--decade:{:.3}%\"", 100.0 / count)
            }
        }
    }
}

fn group_html(group: &BarGroup, scale: &Scale) -> String {
    let bar = |bar: &Bar| {
        format!(
            "<div class=\"bar{}\"><span>{}</span><i>\
             <b style=\"width:{:.1}%;background:{}\"></b></i><em>{}</em></div>",
            if bar.is_foreign { " foreign" } else { "" },
            escaped(&bar.label),
            scale.percent(bar.amount),
            chart::css(bar.colour),
            escaped(&bar.text),
        )
    };
    let (title, bars) = (escaped(&group.title), joined(&group.bars, bar));
    format!("<section{}><h4>{title}</h4>{bars}</section>", scale.lines())
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn anchor(text: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    text.chars().map(plain).collect()
}

/// Panics if a page needs anything from outside.
#[cfg(test)]
pub(crate) fn assert_offline(html: &str) {
    for outside in ["http:", "https:", "src=", "@import", "url(", "<link", "<script"] {
        assert!(!html.contains(outside), "the page contains {outside}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(amount: f64) -> Bar {
        Bar {
            label: "x".to_owned(),
            amount,
            text: "y".to_owned(),
            colour: chart::colour("redis"),
            is_foreign: false,
        }
    }

    fn page() -> Page {
        let mut table = ReportTable::new("target|>mean");
        table.row(vec!["<region>".to_owned(), "1 & 2".to_owned()]);
        let samples = vec![("region".to_owned(), chart::colour("region"), vec![1.0, 2.0, 2.0])];
        let svg = chart::ecdf("time per access", &samples);
        Page {
            title: "A \"page\"".to_owned(),
            lead: "Lead".to_owned(),
            blocks: vec![
                HtmlBlock::Heading("One & all".to_owned()),
                HtmlBlock::Table(table),
                HtmlBlock::Bars(vec![BarGroup {
                    title: "b".to_owned(),
                    bars: vec![bar(1.0), bar(1e3)],
                }]),
                HtmlBlock::Details("more".to_owned(), vec![HtmlBlock::Text("inside".to_owned())]),
                HtmlBlock::Charts(vec![Chart { caption: "c".to_owned(), svg, legend: Vec::new() }]),
            ],
        }
    }

    #[test]
    fn a_page_needs_nothing_from_outside() {
        let html = page().html();
        assert_offline(&html);
        assert!(!html.contains("//"));
    }

    #[test]
    fn what_is_shown_cannot_become_markup() {
        let html = page().html();
        assert!(html.contains("&lt;region&gt;") && !html.contains("<region>"));
        assert!(html.contains("<a href=\"#one---all\">One &amp; all</a>"));
        assert!(html.contains("<h2 id=\"one---all\">"));
    }

    #[test]
    fn bars_of_one_order_begin_at_nothing_and_others_say_that_their_scale_is_logarithmic() {
        let group = |amounts: [f64; 2]| BarGroup {
            title: "b".to_owned(),
            bars: amounts.map(bar).into_iter().collect(),
        };
        let near = HtmlBlock::Bars(vec![group([1.0, 2.0])]).html();
        assert!(near.contains("width:50.0%") && !near.contains("logarithmic"));
        let far = HtmlBlock::Bars(vec![group([1.0, 2000.0])]).html();
        assert!(far.contains("b; logarithmic") && far.contains("--decade:25.000%"), "{far}");
    }

    /// How long two bars are says by how many powers of ten they differ, whatever else is there.
    #[test]
    fn as_many_powers_of_ten_are_as_long_everywhere() {
        let scale = |amounts: [f64; 2]| {
            let bars = amounts.map(bar).into_iter().collect();
            Scale::of_decades(&[BarGroup { title: String::new(), bars }])
        };
        let near = scale([250.0, 8_100.0]);
        let step = near.percent(2_500.0) - near.percent(250.0);
        assert!((step - 50.0).abs() < 1e-9, "two powers, 100 to 10,000");
        let far = scale([250.0, 810_000.0]);
        let step = far.percent(2_500.0) - far.percent(250.0);
        assert!((step - 25.0).abs() < 1e-9, "four, 100 to 1,000,000");
        assert!(scale([1.0, 1.0]).percent(1.0) >= BAR_MIN, "one bar at the scale's begin is seen");
        let odd = scale([f64::NAN, f64::INFINITY]);
        assert!((BAR_MIN..=100.0).contains(&odd.percent(1.0)) || odd.percent(1.0).is_nan());
    }

    #[test]
    fn a_legend_shows_a_marker_in_its_colour_and_a_name_beside_a_patch() {
        let red = chart::colour("redis");
        let marked = legend_html(&("● re<dis".to_owned(), red));
        assert!(marked.contains("<b style=\"color:#d55e00\">●</b>re&lt;dis"), "{marked}");
        let plain = legend_html(&("redis (here)".to_owned(), red));
        assert!(plain.contains("background:#d55e00") && plain.contains(">redis (here)<"));
        let hostile = legend_html(&("é<b> x".to_owned(), red));
        assert!(!hostile.contains("<b> "), "{hostile}");
    }

    #[test]
    fn an_alarm_cannot_become_markup() {
        let html = HtmlBlock::Alarm("<b>".to_owned(), vec!["<i>".to_owned()]).html();
        assert!(html.contains("&lt;b&gt;") && html.contains("&lt;i&gt;"));
    }

    #[test]
    fn the_longest_bar_fills_its_row_and_the_shortest_is_seen() {
        let html = page().html();
        assert!(html.contains("width:100.0%") && html.contains("width:1.0%"));
    }
}
