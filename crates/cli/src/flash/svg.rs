//! Plots as SVG text: horizontal bars, and response times by share of requests on logarithmic axes.

use super::report::short;
use crate::term::html_text;
use std::fmt::Write;

const WIDTH: f64 = 860.0;
/// Room for labels on the left.
const LEFT: f64 = 150.0;
/// Room for numbers on the right of bars.
const RIGHT: f64 = 120.0;
const ROW: f64 = 22.0;
const HEIGHT: f64 = 320.0;
/// Colours that people with any colour vision tell apart (Okabe and Ito, 2008).
const COLOURS: [&str; 7] = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#888888"];
/// Dashes tell lines apart once all colours are used.
const DASHES: [&str; 4] = ["", "6 3", "2 3", "8 3 2 3"];

/// A bar.
pub struct Bar {
    /// What it is of.
    pub label: String,
    /// Its length.
    pub value: f64,
    /// The value as text.
    pub text: String,
}

/// A line over the shares 1 − 10^−x of the requests, for x in steps of a tenth.
pub struct Line<'a> {
    /// What it is of.
    pub label: &'a str,
    /// Times in ns.
    pub values: &'a [f64],
}

fn open(height: f64, name: &str) -> String {
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" role=\"img\" aria-label=\"{name}\">\n"
    )
}

/// Horizontal bars from zero.
pub fn bars(bars: &[Bar]) -> String {
    let most = bars.iter().map(|bar| bar.value).fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    let mut svg = open(ROW * bars.len() as f64, "bars");
    for (row, bar) in bars.iter().enumerate() {
        let (y, width) = (ROW * row as f64, (WIDTH - LEFT - RIGHT) * bar.value / most);
        let (text_y, label, text) = (y + 15.0, html_text(&bar.label), html_text(&bar.text));
        _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{text_y}\" text-anchor=\"end\">{label}</text>\
             <rect x=\"{LEFT}\" y=\"{}\" width=\"{width:.1}\" height=\"16\" fill=\"{}\"/>\
             <text x=\"{:.1}\" y=\"{text_y}\">{text}</text>",
            LEFT - 8.0,
            y + 3.0,
            COLOURS[0],
            LEFT + width + 6.0,
        );
    }
    svg + "</svg>\n"
}

/// Lines of times.
pub fn lines(all: &[Line<'_>]) -> String {
    let times = || all.iter().flat_map(|line| line.values.iter().copied()).filter(|time| *time > 0.0);
    let low = times().fold(f64::INFINITY, f64::min).log10().floor().clamp(0.0, 17.0);
    let high = times().fold(10.0, f64::max).log10().ceil().max(low + 1.0);
    let legend = ROW * all.len() as f64;
    let x = |share: f64, most: f64| LEFT + (WIDTH - LEFT - RIGHT) * share / most;
    let y = |time: f64| 10.0 + HEIGHT * (high - time.max(10f64.powf(low)).log10()) / (high - low);
    let mut svg = open(HEIGHT + 50.0 + legend, "response times");
    for decade in low as i32..=high as i32 {
        let at = y(10f64.powi(decade));
        _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {at:.1}H{}\" stroke=\"#8884\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            at + 4.0,
            html_text(&short(10f64.powi(decade))),
        );
    }
    let steps = all.iter().map(|line| line.values.len()).max().unwrap_or(2).max(2) - 1;
    for (decade, name) in
        ["0 %", "90 %", "99 %", "99.9 %", "99.99 %"].iter().enumerate().filter(|(d, _)| d * 10 <= steps)
    {
        let at = x(decade as f64 * 10.0, steps as f64);
        _ = writeln!(svg, "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{name}</text>", HEIGHT + 30.0);
    }
    for (number, line) in all.iter().enumerate() {
        let style = format!(
            "fill=\"none\" stroke-width=\"2\" stroke=\"{}\" stroke-dasharray=\"{}\"",
            COLOURS[number % COLOURS.len()],
            DASHES[number / COLOURS.len() % DASHES.len()]
        );
        let points = line.values.iter().enumerate();
        let points: Vec<String> =
            points.map(|(step, time)| format!("{:.1},{:.1}", x(step as f64, steps as f64), y(*time))).collect();
        let row = HEIGHT + 48.0 + ROW * number as f64;
        _ = writeln!(
            svg,
            "<polyline points=\"{}\" {style}/>\n<path d=\"M{LEFT} {row}h40\" {style}/><text x=\"{}\" y=\"{}\">{}</text>",
            points.join(" "),
            LEFT + 50.0,
            row + 4.0,
            html_text(line.label),
        );
    }
    svg + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_values() {
        let bar = |label: &str, value| Bar { label: label.into(), value, text: format!("{value}") };
        let svg = bars(&[bar("a<b", 50.0), bar("c", 100.0), bar("d", 0.0)]);
        for part in ["width=\"295.0\"", "width=\"590.0\"", "width=\"0.0\"", "a&lt;b"] {
            assert!(svg.contains(part), "{part} is not in {svg}");
        }
    }

    #[test]
    fn higher_times_are_drawn_higher_and_zeros_at_the_bottom() {
        let svg = lines(&[Line { label: "x", values: &[0.0, 1e5, 1e7] }]);
        let points = svg.split("points=\"").nth(1).unwrap().split('"').next().unwrap();
        let y: Vec<f64> = points.split(' ').map(|point| point.split(',').nth(1).unwrap().parse().unwrap()).collect();
        assert_eq!(y, [10.0 + HEIGHT, 10.0 + HEIGHT, 10.0]);
        assert!(svg.contains(">100 us<") && svg.contains(">10 ms<"), "{svg}");
        assert!(!lines(&[]).contains("NaN") && !bars(&[]).contains("NaN"));
    }
}
