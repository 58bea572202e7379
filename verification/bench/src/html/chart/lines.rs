//! Line charts: figures over time, load or percentile. Lines differ in their markers as well as in
//! their colours, for colour-blind readers.

use super::{Area, Colour, GRID, INK, as_f64, count, font, picture, short};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::drawing::DrawingArea;
use plotters::prelude::{
    Cartesian2d, ChartBuilder, ChartContext, Circle, Cross, DashedLineSeries, EmptyElement,
    LineSeries, PathElement, Polygon, Rectangle, SVGBackend, ShapeStyle, TriangleMarker,
};
use plotters::style::Color as _;

/// The unit of an axis, and the format of its ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Nanoseconds, shown as ns, us, ms or s.
    Nanoseconds,
    /// A number, shown with k, M or G.
    Number,
    Percent,
    /// `n` for one in `n` operations: 100 is the 99th percentile.
    OneIn,
}

#[derive(Clone, Debug)]
pub struct Axis {
    pub title: String,
    pub unit: Unit,
    /// True for a logarithmic axis, on which amounts that are not above zero are left out.
    pub is_log: bool,
}

/// How a line is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stroke {
    /// Solid, two pixels wide.
    Plain,
    /// Solid, one pixel wide and paler.
    Fine,
    Dashed,
}

#[derive(Clone, Debug)]
pub struct ChartLine {
    pub colour: Colour,
    pub stroke: Stroke,
    /// The marker of its points: see [`marker_text`]; `None`: no marker.
    pub marker: Option<usize>,
    /// Its points, in the order in which they are connected.
    pub points: Vec<(f64, f64)>,
}

/// A chart of lines.
#[derive(Clone, Debug)]
pub struct Lines {
    pub x: Axis,
    pub y: Axis,
    pub lines: Vec<ChartLine>,
    /// Positions of vertical rules on the x axis: the borders of rounds.
    pub rules: Vec<f64>,
    /// The range of the y axis, for charts that are compared with each other.
    pub y_range: Option<(f64, f64)>,
}

const SIZE: (u32, u32) = (560, 250);

/// The largest number of ticks of an axis, so that their labels do not overlap.
const TICKS_MAX: usize = 7;

/// The largest number of markers of a line; more would hide it.
const MARKERS_MAX: usize = 24;

/// A line's marker as text, for a legend: the same shape as in the chart.
pub const fn marker_text(marker: usize) -> &'static str {
    match marker % 5 {
        0 => "●",
        1 => "■",
        2 => "▲",
        3 => "◆",
        _ => "✕",
    }
}

type Context<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Scale, Scale>>;

/// The picture; empty if there is nothing to draw.
pub fn lines(chart: &Lines) -> String {
    let (x, y) = (&chart.x, &chart.y);
    let lines: Vec<ChartLine> = chart.lines.iter().map(|line| positioned(line, x, y)).collect();
    let points = || lines.iter().flat_map(|line| &line.points);
    let Some(x_scale) = Scale::of(x, points().map(|p| p.0), None) else { return String::new() };
    let y_scale = Scale::of(y, points().map(|p| p.1), chart.y_range);
    let Some(y_scale) = y_scale else { return String::new() };
    let rules = chart.rules.iter().filter_map(|at| x.position(*at));
    let rules: Vec<f64> = rules.filter(|at| (x_scale.min..=x_scale.max).contains(at)).collect();
    picture(SIZE, |area| draw(area, chart, (&x_scale, &y_scale), &lines, &rules))
}

fn draw(
    area: &Area<'_>,
    chart: &Lines,
    (x, y): (&Scale, &Scale),
    lines: &[ChartLine],
    rules: &[f64],
) -> Option<()> {
    let mut context = draw_axes(area, chart, x, y)?;
    let thin = ShapeStyle { color: INK.mix(0.5), filled: false, stroke_width: 1 };
    let rule = |at: &f64| PathElement::new([(*at, y.min), (*at, y.max)], thin);
    context.draw_series(rules.iter().map(rule)).ok()?;
    for line in lines {
        let points = || line.points.iter().map(|(at, amount)| (*at, amount.clamp(y.min, y.max)));
        let style =
            |width| ShapeStyle { color: line.colour.to_rgba(), filled: false, stroke_width: width };
        match line.stroke {
            Stroke::Plain => context.draw_series(LineSeries::new(points(), style(2))).ok()?,
            Stroke::Fine => {
                let pale = ShapeStyle { color: line.colour.mix(0.75), ..style(1) };
                context.draw_series(LineSeries::new(points(), pale)).ok()?
            }
            Stroke::Dashed => {
                context.draw_series(DashedLineSeries::new(points(), 5, 4, style(2))).ok()?
            }
        };
        if let Some(marker) = line.marker {
            let every = line.points.len().div_ceil(MARKERS_MAX).max(1);
            let points: Vec<(f64, f64)> = points().step_by(every).collect();
            draw_markers(&mut context, &points, marker, line.colour)?;
        }
    }
    Some(())
}

fn draw_axes<'a, 'b>(
    area: &'a DrawingArea<SVGBackend<'b>, Shift>,
    chart: &Lines,
    x: &Scale,
    y: &Scale,
) -> Option<Context<'a, 'b>> {
    let mut context = ChartBuilder::on(area)
        .margin(10)
        .margin_right(24)
        .x_label_area_size(44)
        .y_label_area_size(66)
        .build_cartesian_2d(x.clone(), y.clone())
        .ok()?;
    context
        .configure_mesh()
        .bold_line_style(GRID)
        .light_line_style(GRID.mix(0.0))
        .axis_style(GRID)
        .x_label_formatter(&|at| chart.x.tick(*at))
        .y_label_formatter(&|at| chart.y.tick(*at))
        .x_desc(chart.x.title.as_str())
        .y_desc(chart.y.title.as_str())
        .label_style(font(13))
        .axis_desc_style(font(13))
        .draw()
        .ok()?;
    Some(context)
}

fn draw_markers(
    context: &mut Context<'_, '_>,
    points: &[(f64, f64)],
    marker: usize,
    colour: Colour,
) -> Option<()> {
    let full = ShapeStyle { color: colour.to_rgba(), filled: true, stroke_width: 0 };
    let bold = ShapeStyle { filled: false, stroke_width: 2, ..full };
    let points = points.iter().copied();
    match marker % 5 {
        0 => {
            let at = |p| EmptyElement::at(p) + Circle::new((0, 0), 4, full);
            context.draw_series(points.map(at)).ok()?;
        }
        1 => {
            let at = |p| EmptyElement::at(p) + Rectangle::new([(-4, -4), (4, 4)], full);
            context.draw_series(points.map(at)).ok()?;
        }
        2 => {
            let at = |p| EmptyElement::at(p) + TriangleMarker::new((0, 0), 6, full);
            context.draw_series(points.map(at)).ok()?;
        }
        3 => {
            let shape = vec![(0, -5), (5, 0), (0, 5), (-5, 0)];
            let at = |p| EmptyElement::at(p) + Polygon::new(shape.clone(), full);
            context.draw_series(points.map(at)).ok()?;
        }
        _ => {
            let at = |p| EmptyElement::at(p) + Cross::new((0, 0), 4, bold);
            context.draw_series(points.map(at)).ok()?;
        }
    }
    Some(())
}

impl Axis {
    /// The position of an amount; `None` if it is not finite, or not above zero on a logarithmic
    /// axis.
    fn position(&self, amount: f64) -> Option<f64> {
        let at = if self.is_log { amount.log10() } else { amount };
        at.is_finite().then_some(at)
    }

    fn tick(&self, at: f64) -> String {
        let amount = if self.is_log { 10_f64.powf(at) } else { at };
        match self.unit {
            Unit::Nanoseconds if amount.abs() < 1e-6 => "0".to_owned(),
            Unit::Nanoseconds => short(amount),
            Unit::Number => count(amount),
            Unit::Percent => format!("{amount:.0} %"),
            Unit::OneIn => percentile_text(amount),
        }
    }
}

/// The percentile that one in `one_in` operations exceeds: `p99` for 100.
fn percentile_text(one_in: f64) -> String {
    let percent = 100.0 - 100.0 / one_in.max(1.0);
    // One digit for each nine after the decimal point.
    let digits = if one_in > 150.0 { one_in.log10().round().clamp(2.0, 9.0) - 2.0 } else { 0.0 };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 7")]
    let digits = digits as usize;
    format!("p{percent:.digits$}")
}

/// The line in the coordinates of the axes, without the points that have no position.
fn positioned(line: &ChartLine, x: &Axis, y: &Axis) -> ChartLine {
    let position = |(a, b): &(f64, f64)| Some((x.position(*a)?, y.position(*b)?));
    ChartLine { points: line.points.iter().filter_map(position).collect(), ..line.clone() }
}

/// An axis's range and ticks, in its own coordinates.
#[derive(Clone, Debug)]
struct Scale {
    min: f64,
    max: f64,
    ticks: Vec<f64>,
}

impl Scale {
    fn of(
        axis: &Axis,
        positions: impl Iterator<Item = f64>,
        range: Option<(f64, f64)>,
    ) -> Option<Self> {
        let (mut min, mut max) =
            positions.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), at| (a.min(at), b.max(at)));
        if let Some((low, high)) = range {
            min = axis.position(low).unwrap_or(min);
            max = axis.position(high).unwrap_or(max);
        }
        if !min.is_finite() || !max.is_finite() || max < min {
            return None;
        }
        if !axis.is_log {
            // A linear axis starts at zero, so that heights can be compared.
            min = min.min(0.0);
        }
        let margin = ((max - min) * 0.04).max(if axis.is_log { 0.05 } else { 1e-9 });
        if axis.is_log {
            min -= if axis.unit == Unit::OneIn { 0.0 } else { margin };
        }
        max += margin;
        let ticks = if axis.is_log { log_ticks(min, max) } else { linear_ticks(min, max) };
        Some(Self { min, max, ticks })
    }
}

impl Ranged for Scale {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    #[expect(clippy::cast_possible_truncation, reason = "a share of the pixels of a picture")]
    fn map(&self, at: &f64, (first, last): (i32, i32)) -> i32 {
        let share = ((at - self.min) / (self.max - self.min)).clamp(0.0, 1.0);
        (f64::from(first) + share * f64::from(last - first)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.min..self.max
    }
}

/// Ticks at powers of ten, and between them if the axis has few.
fn log_ticks(min: f64, max: f64) -> Vec<f64> {
    let between = |factors: &[f64]| -> Vec<f64> {
        let all = (-3..19).flat_map(|e| factors.iter().map(move |f| f64::from(e) + f.log10()));
        all.filter(|at| (min..=max).contains(at)).collect()
    };
    for factors in [&[1.0, 1.5, 2.0, 3.0, 5.0, 7.0][..], &[1.0, 2.0, 5.0], &[1.0, 3.0], &[1.0]] {
        let ticks = between(factors);
        if ticks.len() <= TICKS_MAX {
            return if ticks.len() >= 2 { ticks } else { vec![min, max] };
        }
    }
    let tens = between(&[1.0]);
    let every = tens.len().div_ceil(TICKS_MAX).max(1);
    tens.into_iter().step_by(every).collect()
}

/// Round numbers at equal distances.
fn linear_ticks(min: f64, max: f64) -> Vec<f64> {
    let rough = (max - min) / as_f64(TICKS_MAX as u64 - 1);
    let ten = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|f| f * ten).into_iter().find(|s| *s >= rough);
    let Some(step) = step.filter(|s| s.is_finite() && *s > 0.0) else { return vec![min, max] };
    let first = (min / step).ceil();
    let tick = |i: usize| (first + as_f64(i as u64)) * step;
    (0..=TICKS_MAX).map(tick).filter(|at| (min..=max).contains(at)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(unit: Unit, is_log: bool) -> Axis {
        Axis { title: "t".to_owned(), unit, is_log }
    }

    fn chart(points: Vec<(f64, f64)>) -> Lines {
        let stroke = Stroke::Plain;
        let line = ChartLine { colour: super::super::colour("x"), stroke, marker: Some(0), points };
        let (x, y) = (axis(Unit::Number, false), axis(Unit::Nanoseconds, true));
        Lines { x, y, lines: vec![line], rules: vec![1.5], y_range: None }
    }

    #[test]
    fn a_line_and_its_markers_are_drawn_with_the_units_of_the_axes() {
        let svg = lines(&chart(vec![(1.0, 1e3), (2.0, 1e6)]));
        assert!(svg.contains("<polyline") && svg.matches("<circle").count() == 2);
        assert!(svg.contains("1 us") && svg.contains("1 ms"), "{svg}");
    }

    #[test]
    fn points_without_a_position_are_left_out_and_no_points_give_no_picture() {
        assert!(lines(&chart(vec![])).is_empty());
        assert!(lines(&chart(vec![(f64::NAN, 1.0), (1.0, 0.0), (1.0, -4.0)])).is_empty());
        let hostile = vec![(1.0, 5.0), (f64::INFINITY, 1.0), (0.0, f64::NAN), (1e300, 1e300)];
        assert!(!lines(&chart(hostile)).contains("NaN"));
        assert!(lines(&chart(vec![(0.0, 7.0)])).starts_with("<svg"));
    }

    #[test]
    fn ticks_are_few_and_round() {
        assert_eq!(linear_ticks(0.0, 10.3), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(log_ticks(-0.1, 4.2), [0.0, 1.0, 2.0, 3.0, 4.0]);
        for (min, max) in [(0.0, 0.3), (2.0, 2.1), (0.0, 9.0), (-3.0, 18.0), (5.5, 6.6)] {
            let count = log_ticks(min, max).len();
            assert!((2..=TICKS_MAX + 1).contains(&count), "{min} to {max}: {count}");
        }
    }

    #[test]
    fn percentiles_have_as_many_digits_as_they_need() {
        let texts = [1.0, 2.0, 10.0, 100.0, 1000.0, 1e4, 1e6].map(percentile_text);
        assert_eq!(texts, ["p0", "p50", "p90", "p99", "p99.9", "p99.99", "p99.9999"]);
    }
}
