//! The page of `--plot`: groups with their intervals, in one file without scripts or other files.

use super::report::{Shown, brief, key_text, number};
use crate::term::html_text;
use std::fmt::Write;
use tessera_sampling::estimate::Estimate;

const WIDTH: f64 = 860.0;
const LEFT: f64 = 200.0;
const RIGHT: f64 = 150.0;
const ROW: f64 = 24.0;
const STYLE: &str = "\
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a;background:#fff}
svg{max-width:100%;height:auto}svg text{font:13px system-ui,sans-serif;fill:currentColor}
@media(prefers-color-scheme:dark){body{color:#e6e6e6;background:#161616}}";

/// The page.
pub fn page(shown: &Shown<'_>) -> String {
    let total = ("all".to_string(), shown.answer.total);
    let groups: Vec<(String, Estimate)> = shown.answer.rows.iter().map(|row| (key_text(row), row.estimate)).collect();
    let rows = if groups.is_empty() { vec![total] } else { groups };
    format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>tessera sample</title><style>{STYLE}</style>\
         <h1>tessera sample</h1><p>Total: {}. A dot is an estimate, its line the interval of {} %; rare groups have none. \
         {} of {} units were read.</p>{}</html>\n",
        html_text(&brief(&shown.answer.total)),
        100.0 * shown.terms.confidence,
        shown.progress.units,
        shown.progress.all_units,
        svg(&rows)
    )
}

fn svg(rows: &[(String, Estimate)]) -> String {
    let ends = rows.iter().flat_map(|(_, e)| if e.claimed { [e.low, e.high] } else { [e.value, e.value] });
    let (least, most) = ends.filter(|v| v.is_finite()).fold((0f64, 0f64), |(a, b), v| (a.min(v), b.max(v)));
    let x = |value: f64| LEFT + (WIDTH - LEFT - RIGHT) * (value - least) / (most - least).max(f64::MIN_POSITIVE);
    let height = ROW * rows.len() as f64;
    let mut svg =
        format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"estimates with intervals\">\n");
    for (i, (key, estimate)) in rows.iter().enumerate() {
        let (y, label) = (ROW * (i as f64 + 0.5), html_text(&key.chars().take(28).collect::<String>()));
        _ = write!(svg, "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{label}</text>", LEFT - 10.0, y + 4.0);
        if estimate.claimed && estimate.value.is_finite() {
            let (low, high) = (x(estimate.low), x(estimate.high));
            _ = write!(svg, "<path d=\"M{low:.1} {y}H{high:.1}\" stroke=\"#0072b2\" stroke-width=\"3\"/>");
        }
        if estimate.value.is_finite() {
            let (at, text) = (x(estimate.value), html_text(&number(estimate.value)));
            _ = writeln!(
                svg,
                "<circle cx=\"{at:.1}\" cy=\"{y}\" r=\"4\" fill=\"#d55e00\"/><text x=\"{}\" y=\"{}\">{text}</text>",
                WIDTH - RIGHT + 12.0,
                y + 4.0
            );
        }
    }
    svg + "</svg>"
}
