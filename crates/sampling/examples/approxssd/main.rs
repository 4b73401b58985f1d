//! The figures of ApproxSSD, redone on played disks: `make bench-approxssd` turns them into bench/results/approxssd.md.
//!
//! ```console
//! $ cargo run --release -p tessera-sampling --example approxssd -- /tmp/approx full time
//! ```
//!
//! The first word is a directory for the data, about 40 MB, which is made if it is not there. `quick` instead of `full`
//! reads less. The last word is the figure; each prints one JSON object. Only `time`, `scheduling`, `sizes`,
//! `breakdown` and `straggler` look at the clock; the others give equal figures on every machine.

mod data;
mod errors;
mod parts;
mod simclock;
mod simulated;
mod strategy;
mod timed;

use data::Data;
use std::path::Path;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let [directory, size @ ("quick" | "full"), figure] = words.as_slice() else {
        panic!("usage: approxssd DIRECTORY quick|full FIGURE");
    };
    let quick = *size == "quick";
    let open = || Data::open(Path::new(directory));
    let result = match *figure {
        "balance" => simulated::balance(),
        "contention" => simulated::contention(),
        "error" => errors::figures(&open(), quick),
        "time" => timed::times(&open(), quick),
        "sizes" => timed::sizes(&open(), quick),
        "scheduling" => parts::scheduling(&open(), quick),
        "breakdown" => parts::breakdown(&open(), quick),
        "straggler" => parts::straggler(&open(), quick),
        _ => panic!("figures are balance, contention, error, time, sizes, scheduling, breakdown and straggler"),
    };
    println!("{result}");
}
