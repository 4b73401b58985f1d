//! The report of a run: a table, a plot and the numbers, with the machine and its load.

use crate::roofs::Roof;
use std::fmt::Write;
use std::path::Path;

/// One result; in GB/s, or in the unit that its name gives.
#[derive(Clone, Debug)]
pub struct Row {
    /// What was measured, and the peer.
    pub name: String,
    /// This crate.
    pub ours: f64,
    /// The peer, if it is installed.
    pub peer: Option<f64>,
    /// Ratio of this crate's rate to the peer's, taken round by round.
    pub ratio: Option<f64>,
    /// First and third quartile of these ratios.
    pub spread: Option<[f64; 2]>,
    /// The upper bound, if one was computed.
    pub roof: Option<Roof>,
    /// The desired ratio.
    pub goal: Option<f64>,
}

impl Row {
    /// Whether the goal is met, to the hundredth that is printed; `None` without a goal or a peer.
    pub fn hit(&self) -> Option<bool> {
        Some((self.ratio? * 100.0).round() >= (self.goal? * 100.0).round())
    }
}

/// The conditions of a run.
#[derive(Clone, Debug)]
pub struct Conditions {
    /// The processor's name.
    pub processor: String,
    /// Its threads.
    pub threads: usize,
    /// Instruction set in use.
    pub isa: &'static str,
    /// How samples were taken.
    pub sampling: String,
    /// Load average at the start and at the end of the run.
    pub load: [f64; 2],
}

/// The processor's name from `/proc/cpuinfo`, if it is there.
pub fn processor() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name =
        info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':').map(|(_, name)| name.trim()));
    name.unwrap_or("unknown processor").to_owned()
}

/// Load average of the last minute.
pub fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(f64::NAN)
}

/// Writes `accel.md`, `accel.json` and `accel.svg` to an existing directory.
///
/// # Errors
/// A file cannot be written.
pub fn write(folder: &Path, conditions: &Conditions, rows: &[Row]) -> std::io::Result<()> {
    std::fs::write(folder.join("accel.md"), table(conditions, rows))?;
    std::fs::write(folder.join("accel.json"), json(conditions, rows))?;
    std::fs::write(folder.join("accel.svg"), plot(conditions, rows))
}

/// The conditions in a line.
pub fn machine(c: &Conditions) -> String {
    format!("{}, {} threads, {}; {}", c.processor, c.threads, c.isa, c.sampling)
}

fn or_dash(figure: Option<f64>) -> String {
    figure.map_or("–".to_owned(), |f| format!("{f:.2}"))
}

fn table(c: &Conditions, rows: &[Row]) -> String {
    let mut text = format!(
        "# tessera-accel beside its peers, on the CPU\n\n{}.\nLoad average when started: {:.1}, when ended: {:.1}; a run of \
         its own adds one.\n\n\
         One thread, but where a row says two. GB/s = 10⁹ bytes of data a second. The ways of a row took turns; `ratio` is \
         the median of the ratios within a round, so it need not be that of the two medians, with their first and third \
         quartile. Rows `from memory` use buffers that take turns, four times as large together as the last-level cache, \
         each fragment allocated apart, as a store reads and writes them; other rows use the same buffers again and \
         again, which caches hold as far as they fit. `roof` is what was possible \
         in the same run: by memory (measured over the row's own bytes), or by the vector units (additions in registers, \
         and the instructions that the algorithm takes). Boundaries are to do 12 GB/s where memcpy \
         does 16 to 32: their goals are that share of memcpy in the same run, whatever the GB/s. For GPUs \
         see gpu.md (`make bench-gpu`).\n\n",
        machine(c),
        c.load[0],
        c.load[1]
    );
    text += &goals(rows);
    text += "## Figures\n\n| what | ours | peer | ratio | quartiles | roof | of it | bound by |\n\
             |---|---:|---:|---:|---:|---:|---:|---|\n";
    for row in rows {
        let (roof, by) = (row.roof.map(|r| r.rate), row.roof.map_or("–", |r| r.by));
        let share = roof.map_or("–".to_owned(), |roof| format!("{:.0} %", 100.0 * row.ours / roof));
        let (peer, ratio, roof) = (or_dash(row.peer), or_dash(row.ratio), or_dash(roof));
        let spread = row.spread.map_or("–".to_owned(), |[low, high]| format!("{low:.2}–{high:.2}"));
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "| {} | {:.2} | {peer} | {ratio} | {spread} | {roof} | {share} | {by} |",
            row.name, row.ours
        );
    }
    text
}

/// One sentence for the goals that were met, and one line for each that was missed.
fn goals(rows: &[Row]) -> String {
    let judged: Vec<&Row> = rows.iter().filter(|row| row.hit().is_some()).collect();
    let hit = judged.iter().filter(|row| row.hit() == Some(true)).count();
    let mut text = format!("## Goals\n\n{hit} of {} hit.\n\n", judged.len());
    if hit < judged.len() {
        text += "| missed | ratio | goal | roof / peer | bound by |\n|---|---:|---:|---:|---|\n";
    }
    for row in judged.iter().filter(|row| row.hit() == Some(false)) {
        let at_most = row.roof.zip(row.peer).map(|(roof, peer)| roof.rate / peer);
        let (ratio, goal, at_most) = (or_dash(row.ratio), or_dash(row.goal), or_dash(at_most));
        let _ = writeln!(text, "| {} | {ratio} | {goal} | {at_most} | {} |", row.name, row.roof.map_or("–", |r| r.by));
    }
    text + "\n"
}

fn json(c: &Conditions, rows: &[Row]) -> String {
    let number =
        |figure: Option<f64>| figure.filter(|f| f.is_finite()).map_or("null".to_owned(), |f| format!("{f:.4}"));
    let mut text = format!(
        "{{\n  \"processor\": \"{}\",\n  \"threads\": {},\n  \"isa\": \"{}\",\n  \"sampling\": \"{}\",\n  \"load\": [{}, {}],\n  \"rows\": [",
        quoted(&c.processor),
        c.threads,
        c.isa,
        quoted(&c.sampling),
        number(Some(c.load[0])),
        number(Some(c.load[1]))
    );
    for (i, row) in rows.iter().enumerate() {
        let _ = write!(
            text,
            "{}\n    {{\"name\": \"{}\", \"ours\": {}, \"peer\": {}, \"ratio\": {}, \"spread\": {}, \"roof\": {}, \"bound_by\": {}, \"goal\": {}}}",
            if i > 0 { "," } else { "" },
            quoted(&row.name),
            number(Some(row.ours)),
            number(row.peer),
            number(row.ratio),
            row.spread.map_or("null".to_owned(), |[low, high]| format!(
                "[{}, {}]",
                number(Some(low)),
                number(Some(high))
            )),
            number(row.roof.map(|r| r.rate)),
            row.roof.map_or("null".to_owned(), |r| format!("\"{}\"", quoted(r.by))),
            number(row.goal)
        );
    }
    text + "\n  ]\n}\n"
}

/// Text as it stands between the quotes of a JSON string.
pub fn quoted(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}

const LABELS: f64 = 330.0;
const BARS: f64 = 480.0;
const HIGH: f64 = 24.0;

/// Two bars a row, and a line at the upper bound; logarithmic, because rates of digests and codes differ a hundredfold.
fn plot(c: &Conditions, rows: &[Row]) -> String {
    let most = rows.iter().flat_map(|r| [Some(r.ours), r.peer, r.roof.map(|r| r.rate)]).flatten().fold(1.0, f64::max);
    let least: f64 = 0.05;
    let x = |rate: f64| ((rate.max(least) / least).ln() / (most / least).ln()).clamp(0.0, 1.0) * BARS;
    let (width, height) = (LABELS + BARS + 90.0, 60.0 + HIGH * rows.len() as f64);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" \
         font-size=\"11\"><rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"10\" y=\"18\" font-weight=\"bold\">tessera-accel (blue) and its peers (orange), GB/s; roofs (red); \
         logarithmic</text>\n<text x=\"10\" y=\"34\">{}</text>\n",
        escaped(&machine(c))
    );
    for (number, row) in rows.iter().enumerate() {
        plot_row(&mut svg, row, 44.0 + HIGH * number as f64, &x);
    }
    svg + "</svg>\n"
}

fn plot_row(svg: &mut String, row: &Row, y: f64, x: &dyn Fn(f64) -> f64) {
    let _ = writeln!(
        svg,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
        LABELS - 6.0,
        y + 13.0,
        escaped(&row.name)
    );
    for (dy, rate, colour) in [(1.0, Some(row.ours), "#1b6ca8"), (11.0, row.peer, "#e08e45")] {
        let Some(rate) = rate else { continue };
        let (high, at) = (y + dy, LABELS + x(rate) + 4.0);
        let _ = writeln!(
            svg,
            "<rect x=\"{LABELS}\" y=\"{high:.1}\" width=\"{:.1}\" height=\"9\" fill=\"{colour}\"/>\
             <text x=\"{at:.1}\" y=\"{:.1}\" font-size=\"9\">{rate:.2}</text>",
            x(rate),
            high + 8.0
        );
    }
    if let Some(roof) = row.roof {
        let (at, end) = (LABELS + x(roof.rate), y + 21.0);
        let _ = writeln!(svg, "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{y}\" y2=\"{end}\" stroke=\"#c22\"/>");
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, ratio: Option<f64>) -> Row {
        let roof = Some(Roof { rate: 40.0, by: "memory" });
        Row {
            name: name.into(),
            ours: 20.0,
            peer: ratio.map(|_| 10.0),
            ratio,
            spread: ratio.map(|r| [r - 0.1, r + 0.1]),
            roof,
            goal: Some(2.0),
        }
    }

    fn conditions() -> Conditions {
        let (processor, sampling) = ("a <CPU> \"x\"".into(), "medians".into());
        Conditions { processor, threads: 2, isa: "avx2", sampling, load: [0.1, 3.0] }
    }

    #[test]
    fn a_row_is_in_the_table_and_the_plot() {
        let rows = [row("rs 4+2", Some(1.996)), row("alone", None)];
        let text = table(&conditions(), &rows);
        assert!(text.contains("| rs 4+2 | 20.00 | 10.00 | 2.00 | 1.90–2.10 | 40.00 | 50 % | memory |"), "{text}");
        assert!(text.contains("| alone | 20.00 | – | – | – | 40.00 |") && text.contains("1 of 1 hit"), "{text}");
        let svg = plot(&conditions(), &rows);
        assert_eq!((svg.matches("#1b6ca8").count(), svg.matches("#e08e45").count()), (2, 1));
        assert!(svg.contains("a &lt;CPU>") && svg.ends_with("</svg>\n"));
    }

    #[test]
    fn what_missed_its_goal_is_named_with_what_was_possible() {
        let text = goals(&[row("slow", Some(1.99)), row("fast", Some(2.5))]);
        assert!(text.contains("1 of 2 hit") && text.contains("| slow | 1.99 | 2.00 | 4.00 | memory |"), "{text}");
        assert!(!text.contains("fast"), "{text}");
    }

    #[test]
    fn numbers_are_json() {
        let text = json(&conditions(), &[row("a", Some(2.0)), row("b", None)]);
        assert!(text.contains("\"processor\": \"a <CPU> \\\"x\\\"\"") && text.contains("\"peer\": null"), "{text}");
        assert_eq!(text.matches("\"name\"").count(), 2);
        assert!(text.contains("\"spread\": [1.9000, 2.1000]") && text.contains("\"spread\": null"), "{text}");
    }
}
