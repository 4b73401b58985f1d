//! The page of `replay --html`: one file without scripts, fonts or other files, so it can be sent and kept.

use super::svg::{Bar, Line, bars, lines};
use crate::term::html_text;
use std::fmt::Write;

/// What the page shows of a replay.
pub struct Entry {
    /// Layer and map cache.
    pub label: String,
    /// Cells of the table, as in the terminal.
    pub cells: Vec<String>,
    /// Share of lookups that found their entry in the map cache, in percent.
    pub hits: f64,
    /// Translation pages read, and written.
    pub map_reads: u64,
    /// Translation pages written.
    pub map_writes: u64,
    /// Pages programmed for each page that the host wrote.
    pub write_amplification: f64,
    /// Response times in ns at growing shares of the requests: 1 − 10^−x for x in steps of a tenth.
    pub quantiles: Vec<f64>,
}

/// The replays of a trace.
pub struct Section {
    /// Name of the trace.
    pub trace: String,
    /// Its replays.
    pub entries: Vec<Entry>,
}

const STYLE: &str = "\
body{font:16px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a;background:#fff}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:14px}
td,th{padding:.2rem .6rem;text-align:right;border-bottom:1px solid #ccc}
td:first-child,td:nth-child(2),th:first-child,th:nth-child(2){text-align:left}
.wide{overflow-x:auto}figure{margin:1.5rem 0}figcaption{font-weight:600}svg{max-width:100%;height:auto}
svg text{font:13px system-ui,sans-serif;fill:currentColor}
@media(prefers-color-scheme:dark){body{color:#e6e6e6;background:#161616}td,th{border-color:#444}}";

/// The whole page.
pub fn page(command: &str, headings: &[&str], sections: &[Section]) -> String {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>tessera flash replay</title>\n<style>\n{STYLE}\n</style></head><body>\n<h1>Flash translation layers</h1>\n\
         <p><code>{}</code></p>\n",
        html_text(command)
    );
    for section in sections {
        _ = writeln!(page, "<h2>{}</h2>", html_text(&section.trace));
        page.push_str(&table(headings, &section.entries));
        for (caption, plot) in plots(&section.entries) {
            _ = writeln!(page, "<figure><figcaption>{caption}</figcaption>\n{plot}</figure>");
        }
    }
    page.push_str("<p>docs/flash.md says what each figure counts.</p>\n</body></html>\n");
    page
}

fn table(headings: &[&str], entries: &[Entry]) -> String {
    let mut table = String::from("<div class=\"wide\"><table>\n<tr>");
    for heading in headings {
        _ = write!(table, "<th>{}</th>", html_text(heading));
    }
    for entry in entries {
        table.push_str("</tr>\n<tr>");
        for cell in &entry.cells {
            _ = write!(table, "<td>{}</td>", html_text(cell));
        }
    }
    table.push_str("</tr>\n</table></div>\n");
    table
}

fn plots(entries: &[Entry]) -> Vec<(&'static str, String)> {
    let of = |value: fn(&Entry) -> f64, text: fn(f64) -> String| {
        let bar = |entry: &Entry| Bar { label: entry.label.clone(), value: value(entry), text: text(value(entry)) };
        bars(&entries.iter().map(bar).collect::<Vec<_>>())
    };
    let count = |value: f64| crate::term::units::count(value as u64);
    let times: Vec<Line<'_>> = entries.iter().map(|e| Line { label: &e.label, values: &e.quantiles }).collect();
    vec![
        ("Response time of the slowest requests", lines(&times)),
        ("Hits of the map cache", of(|e| e.hits, |value| format!("{value:.1} %"))),
        ("Translation pages read", of(|e| e.map_reads as f64, count)),
        ("Translation pages written", of(|e| e.map_writes as f64, count)),
        ("Write amplification", of(|e| e.write_amplification, |value| format!("{value:.3}"))),
    ]
}
