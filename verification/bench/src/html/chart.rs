//! Charts as SVG: histograms like paper 1's Figures 11 to 16, and empirical cumulative distribution
//! functions like its Figures 17 and 18. Both show percent on the vertical axis. [`lines`] draws
//! line charts.
//!
//! Text and grid are drawn in two colours that the page's style replaces, so that one picture fits
//! light and dark colour schemes.

pub mod lines;

use self::lines::{Axis, ChartLine, Lines, Stroke, Unit};
use crate::stat::as_f64;
use crate::table::scaled;
use plotters::drawing::DrawingArea;
use plotters::prelude::{
    ChartBuilder, IntoDrawingArea, IntoFont, RGBColor, Rectangle, SVGBackend, ShapeStyle, TextStyle,
};
use plotters::style::{Color as _, FontTransform};

pub type Colour = RGBColor;

/// Samples of one target: its name, its colour, and latencies in nanoseconds.
pub type Series = (String, Colour, Vec<f64>);

const INK: RGBColor = RGBColor(0x12, 0x34, 0x56);
const GRID: RGBColor = RGBColor(0x65, 0x43, 0x21);
const SIZE: (u32, u32) = (300, 220);
const BINS: usize = 24;

/// The colour of a target, the same in all charts. The targets most often compared have colours of
/// the palette of Okabe and Ito, which colour-blind readers can distinguish.
pub fn colour(target: &str) -> Colour {
    if let Some(node) = target.strip_prefix("region@") {
        return of_node(node.parse().unwrap_or(0));
    }
    match target {
        "region" => RGBColor(0x00, 0x9E, 0x73),
        "node" => RGBColor(0x1F, 0x7F, 0xBF),
        "node-unix" => RGBColor(0x56, 0xB4, 0xE9),
        "node-ring" => RGBColor(0x5B, 0x5F, 0xD6),
        "redis" => RGBColor(0xD5, 0x5E, 0x00),
        "redis-unix" => RGBColor(0xE6, 0x9F, 0x00),
        "valkey" => RGBColor(0xCC, 0x79, 0xA7),
        "valkey-unix" => RGBColor(0xE3, 0xA8, 0xC8),
        "lmdb" => RGBColor(0x8A, 0x63, 0xC9),
        "whitedb" => RGBColor(0x6F, 0x7B, 0xE0),
        "memcached" => RGBColor(0x9C, 0x6B, 0x3C),
        "geode" => RGBColor(0xC2, 0xA8, 0x00),
        _ => RGBColor(0x8A, 0x93, 0x9C),
    }
}

/// The colour of a region on a memory node: dark for the first, which is the clients' own.
fn of_node(node: usize) -> Colour {
    const COLOURS: [Colour; 8] = [
        RGBColor(0x00, 0x4D, 0x38),
        RGBColor(0x00, 0x9E, 0x73),
        RGBColor(0x1F, 0x7F, 0xBF),
        RGBColor(0x56, 0xB4, 0xE9),
        RGBColor(0xD5, 0x5E, 0x00),
        RGBColor(0xE6, 0x9F, 0x00),
        RGBColor(0xCC, 0x79, 0xA7),
        RGBColor(0x8A, 0x63, 0xC9),
    ];
    COLOURS.get(node % COLOURS.len()).copied().unwrap_or(INK)
}

/// A colour in CSS notation.
pub fn css(colour: Colour) -> String {
    format!("#{:02x}{:02x}{:02x}", colour.0, colour.1, colour.2)
}

/// A histogram of latencies, in percent of all samples. Samples above the 99.5th percentile count
/// in the last bin, so that one outlier does not compress the others into one bin.
pub fn histogram((_, colour, samples): &Series) -> String {
    let Some(bins) = Bins::of(samples) else { return String::new() };
    picture(SIZE, |area| {
        let highest = bins.percent.iter().copied().fold(1.0, f64::max) * 1.08;
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .x_label_area_size(44)
            .y_label_area_size(52)
            .build_cartesian_2d(bins.min..bins.max, 0.0..highest)
            .ok()?;
        let format = |x: &f64| tick(*x, bins.width);
        chart
            .configure_mesh()
            .disable_x_mesh()
            .bold_line_style(GRID)
            .light_line_style(GRID.mix(0.0))
            .axis_style(GRID)
            .x_labels(5)
            .y_labels(6)
            .x_label_formatter(&format)
            .y_label_formatter(&|percent| format!("{percent:.0} %"))
            .x_desc(format!("latency, {}", bins.unit))
            .label_style(font(13))
            .axis_desc_style(font(13))
            .draw()
            .ok()?;
        let style = ShapeStyle { color: colour.mix(0.9), filled: true, stroke_width: 0 };
        let columns = bins.percent.iter().enumerate().filter(|(_, p)| **p > 0.0);
        chart
            .draw_series(columns.map(|(i, percent)| {
                let left = bins.min + bins.width * as_f64(i as u64);
                Rectangle::new([(left, 0.0), (left + bins.width * 0.93, *percent)], style)
            }))
            .ok()?;
        Some(())
    })
}

/// The distribution function of each target's latencies. The axis of latencies is logarithmic,
/// because targets differ by orders of magnitude.
pub fn ecdf(description: &str, series: &[Series]) -> String {
    let max = series.iter().flat_map(|(_, _, s)| s).copied().fold(0.0, f64::max) * 1.25;
    let line = |(_, colour, samples): &Series| ChartLine {
        colour: *colour,
        stroke: Stroke::Plain,
        marker: None,
        points: steps(samples, max),
    };
    let axis = |title: &str, unit, is_log| Axis { title: title.to_owned(), unit, is_log };
    lines::lines(&Lines {
        x: axis(description, Unit::Nanoseconds, true),
        y: axis("", Unit::Percent, false),
        lines: series.iter().filter(|(_, _, s)| !s.is_empty()).map(line).collect(),
        rules: Vec::new(),
        y_range: Some((0.0, 100.0)),
    })
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// Draws a picture; an empty string if that fails.
fn picture(size: (u32, u32), draw: impl FnOnce(&Area<'_>) -> Option<()>) -> String {
    let mut svg = String::new();
    let drawn = {
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        draw(&area).and_then(|()| area.present().ok())
    };
    if drawn.is_none() {
        return String::new();
    }
    // SVG within HTML needs no namespace. Without a width and height it scales to its container.
    let (width, height) = size;
    svg.replace(" xmlns=\"http://www.w3.org/2000/svg\"", "")
        .replace(&format!("width=\"{width}\" height=\"{height}\" viewBox"), "viewBox")
}

fn font(size: u32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().transform(FontTransform::None).color(&INK)
}

/// The bins of a histogram. `min`, `max` and `width` are in `unit`, which suits the samples.
struct Bins {
    min: f64,
    max: f64,
    width: f64,
    percent: Vec<f64>,
    unit: &'static str,
}

impl Bins {
    fn of(samples: &[f64]) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (shortest, longest) = (*sorted.first()?, *sorted.get((sorted.len() - 1) * 995 / 1000)?);
        let (unit, scale) = match longest {
            ns if ns < 2e3 => ("ns", 1.0),
            ns if ns < 2e6 => ("us", 1e3),
            _ => ("ms", 1e6),
        };
        let spread = (longest - shortest).max(longest * 0.02).max(0.1);
        let min = ((shortest - spread * 0.04) / scale).max(0.0);
        let width = (longest + spread * 0.04 - min * scale) / scale / as_f64(BINS as u64);
        let mut counts = [0_u64; BINS];
        for ns in &sorted {
            if let Some(count) = counts.get_mut(bin((ns / scale - min) / width)) {
                *count += 1;
            }
        }
        let share = 100.0 / as_f64(sorted.len() as u64);
        let percent = counts.iter().map(|count| as_f64(*count) * share).collect();
        Some(Self { min, max: min + width * as_f64(BINS as u64), width, percent, unit })
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped to the number of bins"
)]
fn bin(at: f64) -> usize {
    at.clamp(0.0, as_f64(BINS as u64 - 1)) as usize
}

/// The corners of a step function, up to `max`; at most about 800, so that the page stays small.
fn steps(samples: &[f64], max: f64) -> Vec<(f64, f64)> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let every = sorted.len().div_ceil(400).max(1);
    let share = 100.0 / as_f64(sorted.len().max(1) as u64);
    let mut out = Vec::new();
    let mut below = 0.0;
    for (i, ns) in sorted.iter().enumerate() {
        if i % every == 0 || i + 1 == sorted.len() {
            let percent = as_f64(i as u64 + 1) * share;
            out.extend([(ns.max(1.0), below), (ns.max(1.0), percent)]);
            below = percent;
        }
    }
    out.push((max, below));
    out
}

fn short(ns: f64) -> String {
    two_digits(ns, [" ns", " us", " ms", " s"])
}

/// A number with k, M or G.
fn count(amount: f64) -> String {
    two_digits(amount, ["", " k", " M", " G"])
}

fn two_digits(amount: f64, units: [&str; 4]) -> String {
    let (amount, unit) = scaled(amount, units);
    let digits = usize::from(amount < 9.95 && (amount - amount.round()).abs() > 0.05);
    format!("{amount:.digits$}{unit}")
}

/// A tick with as many digits as bins of this width need.
fn tick(amount: f64, width: f64) -> String {
    match width {
        w if w >= 0.25 => format!("{amount:.0}"),
        w if w >= 0.025 => format!("{amount:.1}"),
        _ => format!("{amount:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bins_of_a_histogram_add_up_to_all_samples() {
        let samples: Vec<f64> = (0..1000).map(|i| 4000.0 + f64::from(i % 37)).collect();
        let bins = Bins::of(&samples).unwrap();
        assert!((bins.percent.iter().sum::<f64>() - 100.0).abs() < 1e-9);
        assert_eq!(bins.unit, "us");
    }

    #[test]
    fn an_outlier_does_not_compress_the_others_into_one_bin() {
        let mut samples: Vec<f64> = (0..1000).map(|i| 20.0 + f64::from(i % 10)).collect();
        samples.push(1e6);
        let bins = Bins::of(&samples).unwrap();
        assert!(bins.percent.iter().filter(|p| **p > 1.0).count() >= 8);
    }

    #[test]
    fn a_distribution_rises_from_0_to_100_percent() {
        let corners = steps(&[3.0, 1.0, 2.0, 2.0], 9.0);
        assert_eq!(corners.first(), Some(&(1.0, 0.0)));
        assert_eq!(corners.last(), Some(&(9.0, 100.0)));
        assert!(corners.windows(2).all(|w| w[0].0 <= w[1].0 && w[0].1 <= w[1].1));
    }

    #[test]
    fn one_sample_and_no_sample_do_not_panic() {
        let one = ("x".to_owned(), colour("x"), vec![5.0]);
        assert!(histogram(&one).starts_with("<svg") && ecdf("d", &[one]).starts_with("<svg"));
        let none = ("x".to_owned(), colour("x"), vec![]);
        assert!(histogram(&none).is_empty() && ecdf("d", &[none]).is_empty());
    }
}
