//! What a run found, as text and as numbers.

use crate::map::Touched;
use crate::ways::Time;
use std::fmt::Write;
use std::path::Path;
use tessera_bench_accel::report::{Conditions, machine, quoted};
use tessera_flash::ftl::ColaOptions;

/// A map and a workload (figures 4.12 and 4.14).
pub struct Point {
    /// How the buffer was sized.
    pub options: ColaOptions,
    /// Name of the workload.
    pub workload: &'static str,
    /// Logical pages.
    pub pages: u32,
    /// Levels of the map.
    pub levels: usize,
    /// What a look-up of a random page touches.
    pub touched: Touched,
    /// All ways.
    pub times: Vec<Time>,
}

impl Point {
    fn of(&self, way: &str) -> Option<f64> {
        self.times.iter().find(|time| time.way == way).map(|time| time.median)
    }
}

/// A way of figure 4.13.
pub struct Spaced {
    /// Pointers for each entry; `None`: the primitive, which has none.
    pub pointers: Option<f64>,
    /// Its time for each workload.
    pub times: Vec<Time>,
}

/// What a run found.
pub struct Report {
    /// The machine.
    pub conditions: Conditions,
    /// The trace's file name.
    pub trace: Option<String>,
    /// The GPU's name, or why there is none.
    pub gpu: Result<String, String>,
    /// Entries from pointer to pointer, except in figure 4.13.
    pub spacing: usize,
    /// By sizing, pages and workload.
    pub points: Vec<Point>,
    /// By spacing, the primitive last.
    pub spaced: Vec<Spaced>,
}

const WAYS: [&str; 8] =
    ["table", "pointers", "halving, 1", "primitive, 1", "primitive, 32", "primitive, 4096", "GPU, 32", "GPU, 4096"];

fn sizing(options: ColaOptions) -> String {
    match options {
        ColaOptions::Buffer(entries) => format!("a buffer of {entries} entries"),
        ColaOptions::Height(levels) => format!("a buffer for at most {levels} levels"),
    }
}

/// A number of ns with as many digits as it is worth.
fn ns(time: f64) -> String {
    if time < 100.0 { format!("{time:.1}") } else { format!("{time:.0}") }
}

fn cell(time: Option<&Time>) -> String {
    let [fast, slow] = time.map_or([0.0; 2], |time| time.quartiles);
    time.map_or("no GPU".into(), |time| format!("{} ({}–{})", ns(time.median), ns(fast), ns(slow)))
}

fn power(pages: u32) -> String {
    let exponent = pages.ilog2().to_string();
    let raised = |digit| ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'][digit as usize];
    format!("2{}", exponent.chars().filter_map(|digit| digit.to_digit(10)).map(raised).collect::<String>())
}

impl Report {
    /// Writes `flash_levels.md` and `flash_levels.json` to an existing directory.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write(&self, folder: &Path) -> std::io::Result<()> {
        std::fs::write(folder.join("flash_levels.md"), self.text())?;
        std::fs::write(folder.join("flash_levels.json"), self.json())
    }

    fn text(&self) -> String {
        self.head() + &self.floor() + &self.sizes() + &self.spacings() + &self.rates() + &self.paper() + &self.bounds()
    }

    fn head(&self) -> String {
        let gpu = match &self.gpu {
            Ok(name) => format!("GPU: {name}; times include the transfer of queries and answers."),
            Err(why) => format!("**No GPU has run this** ({why}): the figures of the paper's GPU are not redone."),
        };
        let trace = match &self.trace {
            Some(name) => format!(
                "- *trace*: the pages of the requests of `{name}` in order, repeated, each time at another random place of the map."
            ),
            None => "No block trace was there, so only random pages were looked up.".into(),
        };
        format!(
            "# Look-ups in the sorted levels of a flash translation layer\n\n\
             Written by `make bench-flash-levels`: figures 4.12 to 4.14 of A. Khasymski: \"Accelerated Storage Systems\", Virginia \
             Tech 2015, section 4.2.\n\n{}.\nLoad average when started: {:.1}, when ended: {:.1}; a run of its own adds one. {gpu}\n\n\
             One thread. Times are ns a look-up: the median, and in brackets the first and third quartile. The ways took turns, \
             and no way asks for what the one before it has just asked for. Before a comparison was timed, all ways gave the same \
             answers to 65,536 queries.\n\n\
             A map of N logical pages lies in levels of which each has twice as many entries as the one above; all are full, which \
             is the most that a look-up can meet, and the lowest has all pages. Which pages the others have is random. A look-up \
             ends with the number of the physical page.\n\n\
             - *table*: an array with a row for each page.\n\
             - *pointers*: a cache-oblivious lookahead array (COLA) on the CPU: every {}th entry of a level stands in the level above. A search \
             halves the first level, then goes from pointer to pointer and compares what is between two of them in sequence.\n\
             - *halving, 1*: a binary search of level after level; the layer `cola` looks a single page up so.\n\
             - *primitive, n*: the look-up primitive (`Levels::find` of crates/hashgpu) with n queries at a time.\n\
             - *GPU, n*: the primitive with the levels in a GPU's memory (`ResidentLevels::find`).\n\
             - *uniform*: 4,194,304 random pages.\n\
             {trace}\n\n",
            machine(&self.conditions),
            self.conditions.load[0],
            self.conditions.load[1],
            self.spacing,
        )
    }

    fn of(&self, options: ColaOptions, workload: &str) -> impl Iterator<Item = &Point> {
        self.points.iter().filter(move |point| point.options == options && point.workload == workload)
    }

    fn options(&self) -> Vec<ColaOptions> {
        let mut options: Vec<ColaOptions> = self.points.iter().map(|point| point.options).collect();
        options.dedup();
        options
    }

    fn workloads(&self) -> Vec<&'static str> {
        let mut workloads = vec!["uniform"];
        workloads.extend(self.points.iter().map(|point| point.workload).find(|workload| *workload != "uniform"));
        workloads
    }

    fn floor(&self) -> String {
        let mut text = "## The floor: cache lines\n\n\
             A look-up of a random page must touch so many cache lines of 64 bytes, on average. Halving a level of n entries \
             touches log₂(n/16) + 1 of them, a pointer leads to about two in each level, and a table needs one. So levels cannot \
             win against a table; what they buy is that the map reaches flash in whole pages and in order (docs/flash.md, Cola). A buffer has at least 512 entries, \
             a page of flash.\n\n\
             | buffer | N | levels | searched | halving | pointers | table |\n|---|---|---:|---:|---:|---:|---:|\n"
            .to_string();
        for point in self.points.iter().filter(|point| point.workload == "uniform") {
            let (pages, levels, touched) = (power(point.pages), point.levels, &point.touched);
            // Writing to a String does not fail.
            let _ = writeln!(
                text,
                "| {} | {pages} | {levels} | {:.1} | {:.0} | {:.0} | 1 |",
                sizing(point.options),
                touched.levels,
                touched.halving,
                touched.pointers
            );
        }
        text + "\n"
    }

    fn sizes(&self) -> String {
        let mut text = "## Figure 4.12: time of a look-up by the size of the map\n\n".to_string();
        for options in self.options() {
            for workload in self.workloads() {
                let _ = writeln!(text, "{workload}, {}:\n", sizing(options));
                let _ = writeln!(text, "| N | {} |\n|---|{}", WAYS.join(" | "), "---:|".repeat(WAYS.len()));
                for point in self.of(options, workload) {
                    let time = |way: &&str| cell(point.times.iter().find(|time| time.way == *way));
                    let times: Vec<String> = WAYS.iter().map(time).collect();
                    let _ = writeln!(text, "| {} | {} |", power(point.pages), times.join(" | "));
                }
                text += "\n";
            }
        }
        text
    }

    fn spacings(&self) -> String {
        let workloads = self.workloads();
        let mut text = format!(
            "## Figure 4.13: time of a look-up by the density of pointers\n\nN = 2²⁰, a buffer of 4096 entries.\n\n\
             | entries from pointer to pointer | pointers per entry | {} |\n|---:|---:|{}\n",
            workloads.join(" | "),
            "---:|".repeat(workloads.len())
        );
        for spaced in &self.spaced {
            let pointers = spaced.pointers.map_or("none".into(), |pointers| format!("{pointers:.4}"));
            let times: Vec<String> = spaced.times.iter().map(|time| cell(Some(time))).collect();
            let way = spaced.times.first().map_or("", |time| &time.way);
            let _ = writeln!(text, "| {way} | {pointers} | {} |", times.join(" | "));
        }
        text + "\n"
    }

    fn rates(&self) -> String {
        let ways = ["table", "pointers", "primitive, 32", "GPU, 32"];
        let mut text = format!(
            "## Figure 4.14: look-ups a second with batches of 32\n\nMillions a second, from the times above.\n\n\
             | buffer | workload | N | {} |\n|---|---|---|{}\n",
            ways.join(" | "),
            "---:|".repeat(ways.len())
        );
        for options in self.options() {
            for point in self.workloads().into_iter().flat_map(|workload| self.of(options, workload)) {
                let rate = |way| point.of(way).map_or("no GPU".into(), |time| format!("{:.2}", 1e3 / time));
                let (pages, rates) = (power(point.pages), ways.map(rate).join(" | "));
                let _ = writeln!(text, "| {} | {} | {pages} | {rates} |", sizing(options), point.workload);
            }
        }
        text + "\n"
    }

    /// From the smallest map to the largest, by workload.
    fn growth(&self, options: ColaOptions, way: &str) -> String {
        let of = |workload| {
            let (first, last) = (self.of(options, workload).next()?, self.of(options, workload).last()?);
            let (from, to) = (first.of(way)?, last.of(way)?);
            Some(format!("{workload} {} to {} ns (× {:.1})", ns(from), ns(to), to / from))
        };
        self.workloads().into_iter().filter_map(of).collect::<Vec<_>>().join(", ")
    }

    /// Where the largest map is, with the default buffer.
    fn largest(&self, workload: &str) -> Option<&Point> {
        self.of(*self.options().first()?, workload).last()
    }

    fn paper(&self) -> String {
        let mut text = "## What the paper says, and this run\n\n\
             The paper draws these figures without numbers, and measured hardware of 2015 or before.\n\n| the paper | this run |\n|---|---|\n"
            .to_string();
        let gpu = |text: String| if self.gpu.is_ok() { text } else { "not measured: no GPU".into() };
        let options = self.options();
        let grows =
            options.iter().map(|options| format!("{}: {}", sizing(*options), self.growth(*options, "pointers")));
        let flat = options.iter().map(|options| format!("{}: {}", sizing(*options), self.growth(*options, "GPU, 32")));
        let (grows, flat) = (grows.collect::<Vec<_>>().join("; "), flat.collect::<Vec<_>>().join("; "));
        let _ = writeln!(text, "| 4.12: a COLA on the CPU takes longer the larger it is | N = 2¹⁴ to 2²⁴, {grows} |");
        let _ = writeln!(text, "| 4.12: on the GPU the time does not change with N | {} |", gpu(flat));
        let single = self.largest("uniform").and_then(|point| Some((point.of("halving, 1")?, point.of("GPU, 32")?)));
        let single = single.map_or(String::new(), |(cpu, gpu)| {
            format!(
                "no batch of one was measured on the GPU; halving on the CPU {} ns, GPU, 32 {} ns",
                ns(cpu),
                ns(gpu)
            )
        });
        let _ = writeln!(text, "| 4.12: single requests are slightly faster on the CPU | {} |", gpu(single));
        let _ = writeln!(
            text,
            "| 4.13: sparser pointers make the COLA slower, as it compares in sequence | {} |",
            self.sparser()
        );
        let beats = |way: &str| {
            let of = |workload: &&str| {
                let point = self.largest(workload)?;
                Some(format!("{workload} {:.2}", point.of("pointers")? / point.of(way)?))
            };
            self.workloads().iter().filter_map(of).collect::<Vec<_>>().join(", ")
        };
        let _ = writeln!(
            text,
            "| 4.14: with batches of 32 the GPU does more look-ups than the CPU, even in moderately large maps | GPU: {}. The \
             primitive on the CPU, N = 2²⁴, times what pointers do: {}; with batches of 4096: {} |",
            gpu(beats("GPU, 32")),
            beats("primitive, 32"),
            beats("primitive, 4096")
        );
        text + "\n"
    }

    fn sparser(&self) -> String {
        let of = |(number, workload): (usize, &str)| {
            let times: Vec<&Time> =
                self.spaced.iter().filter(|s| s.pointers.is_some()).map(|s| &s.times[number]).collect();
            let least = times.iter().min_by(|a, b| a.median.total_cmp(&b.median))?;
            let last = times.last()?;
            let ratio = last.median / least.median;
            Some(format!(
                "{workload}: least at {}, {} ns; {} ns at {} (× {ratio:.1})",
                least.way,
                ns(least.median),
                ns(last.median),
                last.way
            ))
        };
        self.workloads().into_iter().enumerate().filter_map(of).collect::<Vec<_>>().join("; ")
    }

    fn bounds(&self) -> String {
        let mut text = "## What bounds each\n\n\
             - *table*: one line a look-up. Look-ups do not depend on each other, so that the processor waits for several lines at \
             once.\n\
             - *pointers*: few lines, but each is known only when the one before has arrived: a level says where to go on in the \
             next. Where the comparison in sequence ends is a branch that is hard to predict.\n\
             - *halving, 1*: many lines, of which the upper ones of each level stay in the caches. Levels do not depend on each \
             other, so that the processor can begin the next one while it waits. *primitive, 1* makes lists for each level, which \
             cost time and leave less to overlap.\n\
             - *primitive, 32*: sixteen searches run side by side and share the wait. A page that is found leaves the batch: after \
             the first of 32, sixteen of the others run side by side, and the rest, up to 15, one by one.\n\
             - *primitive, 4096*: nearly all searches run side by side. The number of lines and comparisons is the bound.\n\
             - *trace*: pages that follow each other touch the same lines and take the same branches. That helps most where a \
             look-up waits for each line.\n\
             - *GPU*: a launch and two transfers for each batch, whatever the map.\n\n"
            .to_string();
        let Some(point) = self.largest("uniform") else { return text };
        let _ = writeln!(
            text,
            "N = {}, uniform, {}:\n\n| way | lines | ns | ns a line |\n|---|---:|---:|---:|",
            power(point.pages),
            sizing(point.options)
        );
        for time in point.times.iter().filter(|time| !time.way.starts_with("GPU")) {
            let lines = match time.way.as_str() {
                "table" => 1.0,
                "pointers" => point.touched.pointers,
                _ => point.touched.halving,
            };
            let _ = writeln!(text, "| {} | {lines:.0} | {} | {:.1} |", time.way, ns(time.median), time.median / lines);
        }
        text
    }

    fn json(&self) -> String {
        let c = &self.conditions;
        let gpu = |gpu: Option<&String>| gpu.map_or("null".to_owned(), |gpu| format!("\"{}\"", quoted(gpu)));
        let mut text = format!(
            "{{\n  \"machine\": \"{}\",\n  \"load\": [{:.2}, {:.2}],\n  \"gpu\": {},\n  \"trace\": {},\n  \"unit\": \"ns a look-up\",\n  \"points\": [",
            quoted(&machine(c)),
            c.load[0],
            c.load[1],
            gpu(self.gpu.as_ref().ok()),
            gpu(self.trace.as_ref())
        );
        for (number, point) in self.points.iter().enumerate() {
            let _ = write!(
                text,
                "{}\n    {{\"buffer\": \"{}\", \"workload\": \"{}\", \"pages\": {}, \"levels\": {}, \"times\": {}}}",
                if number > 0 { "," } else { "" },
                sizing(point.options),
                point.workload,
                point.pages,
                point.levels,
                times(&point.times)
            );
        }
        text += "\n  ],\n  \"spacings\": [";
        for (number, workload) in self.workloads().into_iter().enumerate() {
            let of_workload: Vec<Time> = self.spaced.iter().map(|spaced| spaced.times[number].clone()).collect();
            let comma = if number > 0 { "," } else { "" };
            let _ = write!(text, "{comma}\n    {{\"workload\": \"{workload}\", \"times\": {}}}", times(&of_workload));
        }
        text + "\n  ]\n}\n"
    }
}

/// Median and quartiles of each way, as JSON.
fn times(times: &[Time]) -> String {
    let one = |time: &Time| {
        let [fast, slow] = time.quartiles;
        format!("\"{}\": [{:.2}, {fast:.2}, {slow:.2}]", quoted(&time.way), time.median)
    };
    format!("{{{}}}", times.iter().map(one).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(way: &str, median: f64) -> Time {
        Time { way: way.into(), median, quartiles: [median - 1.0, median + 1.0] }
    }

    fn report() -> Report {
        let point = |pages, medians: [f64; 6]| Point {
            options: ColaOptions::Buffer(4096),
            workload: "uniform",
            pages,
            levels: 3,
            touched: Touched { levels: 2.0, halving: 20.0, pointers: 8.0 },
            times: WAYS.iter().zip(medians).map(|(way, median)| time(way, median)).collect(),
        };
        let (processor, sampling) = ("a CPU".into(), "medians".into());
        Report {
            conditions: Conditions { processor, threads: 2, isa: "avx2", sampling, load: [0.1, 3.0] },
            trace: None,
            gpu: Err("no driver".into()),
            spacing: 8,
            points: vec![
                point(1 << 14, [2.0, 80.0, 90.0, 95.0, 40.0, 30.0]),
                point(1 << 24, [4.0, 200.0, 500.0, 600.0, 100.0, 50.0]),
            ],
            spaced: vec![
                Spaced { pointers: Some(0.5), times: vec![time("2", 50.0)] },
                Spaced { pointers: Some(0.1), times: vec![time("8", 40.0)] },
                Spaced { pointers: Some(0.001), times: vec![time("1024", 400.0)] },
                Spaced { pointers: None, times: vec![time("primitive, 32", 30.0)] },
            ],
        }
    }

    #[test]
    fn without_a_gpu_its_column_says_so() {
        let text = report().text();
        assert!(text.contains("**No GPU has run this** (no driver)"), "{text}");
        assert!(text.contains("| 2²⁴ | 4.0 (3.0–5.0) | 200 (199–201) |"), "{text}");
        assert!(text.contains("| 100 (99.0–101) | 50.0 (49.0–51.0) | no GPU | no GPU |"), "{text}");
        assert!(text.contains("on the GPU the time does not change with N | not measured: no GPU |"), "{text}");
    }

    #[test]
    fn what_the_paper_says_stands_beside_ratios() {
        let text = report().text();
        assert!(text.contains("uniform 80.0 to 200 ns (× 2.5)"), "{text}");
        assert!(text.contains("uniform: least at 8, 40.0 ns; 400 ns at 1024 (× 10.0)"), "{text}");
        assert!(text.contains("times what pointers do: uniform 2.00"), "{text}");
        assert!(text.contains("| pointers | 8 | 200 | 25.0 |"), "{text}");
    }

    #[test]
    fn numbers_are_json() {
        let text = report().json();
        assert!(text.contains("\"gpu\": null") && text.contains("\"pages\": 16777216"), "{text}");
        assert!(text.contains("\"pointers\": [80.00, 79.00, 81.00]"), "{text}");
        assert_eq!(text.matches(['{', '[']).count(), text.matches(['}', ']']).count());
    }
}
