//! An HTML page in one file that loads nothing from a network: text, tables, and charts as inline
//! SVG. Callers supply the content. The style is defined here, for light and dark colour schemes.

pub mod chart;

use crate::table::{Align, ReportTable};
use std::fmt::Write as _;

const STYLE: &str = include_str!("html/style.css");

#[derive(Clone, Debug)]
pub struct Page {
    pub title: String,
    /// The summary below the title.
    pub lead: String,
    /// The content, in order.
    pub blocks: Vec<HtmlBlock>,
}

/// A part of a page.
#[derive(Clone, Debug)]
pub enum HtmlBlock {
    /// A heading, which also gets a link at the top of the page.
    Heading(String),
    /// A heading without a link.
    Subheading(String),
    /// A paragraph.
    Text(String),
    /// A bulleted list.
    List(Vec<String>),
    /// A warning: a heading and its reasons.
    Alarm(String, Vec<String>),
    /// Preformatted text.
    Code(String),
    /// Names and their values.
    Facts(Vec<(String, String)>),
    Table(ReportTable),
    /// Charts, side by side as the width allows.
    Charts(Vec<Chart>),
    /// A summary that expands to blocks.
    Details(String, Vec<HtmlBlock>),
}

#[derive(Clone, Debug)]
pub struct Chart {
    pub caption: String,
    /// The picture; see [`chart`].
    pub svg: String,
    /// The series and their colours, if there are several. A first word that is not ASCII (a
    /// marker of [`chart::lines`]) is shown in the colour itself.
    pub legend: Vec<(String, chart::Colour)>,
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
    pub fn heading(text: &str) -> Self {
        Self::Heading(text.to_owned())
    }

    pub fn subheading(text: &str) -> Self {
        Self::Subheading(text.to_owned())
    }

    pub fn text(text: &str) -> Self {
        Self::Text(text.to_owned())
    }

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
            Self::Charts(charts) => {
                let chart = |c: &Chart| {
                    let caption = escaped(&c.caption);
                    let legend = joined(&c.legend, legend_html);
                    // A chart with a legend is as wide as two others.
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

/// A legend entry: the name's marker in its colour, or a patch of the colour if it has none.
fn legend_html((name, colour): &(String, chart::Colour)) -> String {
    let colour = chart::css(*colour);
    let marker = name.split_once(' ').filter(|(marker, _)| !marker.is_ascii());
    let (patch, name) = match marker {
        Some((marker, name)) => {
            (format!("<b style=\"color:{colour}\">{}</b>", escaped(marker)), name)
        }
        None => (format!("<s style=\"background:{colour}\"></s>"), name.as_str()),
    };
    format!("<u>{patch}{}</u> ", escaped(name))
}

fn joined<T>(parts: &[T], html: impl Fn(&T) -> String) -> String {
    parts.iter().map(html).collect::<Vec<_>>().concat()
}

/// A longer cell wraps; it would make the table too wide.
const CELL_BYTES_MAX: usize = 60;

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
        let is_group_start = row.first().is_some_and(|c| !c.is_empty());
        out.push_str(if is_group_start { "<tr class=\"group\">" } else { "<tr>" });
        for (i, cell) in row.iter().enumerate() {
            let is_long = cell.len() > CELL_BYTES_MAX;
            let class = if is_long { " class=\"sentence\"" } else { class(i) };
            let _ = write!(out, "<td{class}>{}</td>", escaped(cell));
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>\n");
    out
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn anchor(text: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    text.chars().map(plain).collect()
}

/// Panics if a page loads anything.
#[cfg(test)]
pub(crate) fn assert_offline(html: &str) {
    for reference in ["http:", "https:", "src=", "@import", "url(", "<link", "<script"] {
        assert!(!html.contains(reference), "the page contains {reference}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> Page {
        let mut table = ReportTable::new("target|>mean");
        table.row(vec!["<region>".to_owned(), "1 & 2".to_owned()]);
        let samples = vec![("region".to_owned(), chart::colour("region"), vec![1.0, 2.0, 2.0])];
        let svg = chart::ecdf("time per access", &samples);
        Page {
            title: "A \"page\"".to_owned(),
            lead: "Lead".to_owned(),
            blocks: vec![
                HtmlBlock::heading("One & all"),
                HtmlBlock::Table(table),
                HtmlBlock::Details("more".to_owned(), vec![HtmlBlock::text("inside")]),
                HtmlBlock::Charts(vec![Chart { caption: "c".to_owned(), svg, legend: Vec::new() }]),
            ],
        }
    }

    #[test]
    fn a_page_loads_nothing() {
        let html = page().html();
        assert_offline(&html);
        assert!(!html.contains("//"));
    }

    #[test]
    fn text_is_escaped() {
        let html = page().html();
        assert!(html.contains("&lt;region&gt;") && !html.contains("<region>"));
        assert!(html.contains("<a href=\"#one---all\">One &amp; all</a>"));
        assert!(html.contains("<h2 id=\"one---all\">"));
    }

    #[test]
    fn a_legend_shows_a_marker_or_a_patch_in_the_colour_of_its_series() {
        let red = chart::colour("redis");
        let marked = legend_html(&("● re<dis".to_owned(), red));
        assert!(marked.contains("<b style=\"color:#d55e00\">●</b>re&lt;dis"), "{marked}");
        let plain = legend_html(&("redis (here)".to_owned(), red));
        assert!(plain.contains("background:#d55e00") && plain.contains(">redis (here)<"));
        let hostile = legend_html(&("é<b> x".to_owned(), red));
        assert!(!hostile.contains("<b> "), "{hostile}");
    }

    #[test]
    fn the_text_of_an_alarm_is_escaped() {
        let html = HtmlBlock::Alarm("<b>".to_owned(), vec!["<i>".to_owned()]).html();
        assert!(html.contains("&lt;b&gt;") && html.contains("&lt;i&gt;"));
    }
}
