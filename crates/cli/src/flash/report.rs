//! What `tessera flash replay` shows.

use super::html::{Entry, Section, page};
use super::replay::{Done, Run};
use crate::args::ReplayArgs;
use crate::exit::{At, Exit, Outcome, bail};
use crate::term::{Table, units};
use serde_json::{Value, json};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tessera_flash::{Cause, Figures};

const HEADINGS: [&str; 14] = [
    "trace",
    "ftl",
    "cache",
    "hits",
    "mean",
    "p50",
    "p99",
    "p99.9",
    "map reads",
    "map writes",
    "moved",
    "WA",
    "erases",
    "CPU/req",
];

/// Shows all replays: a table, with `--json` a document each, with `--html` a page beside it.
pub fn show(args: &ReplayArgs, runs: &[Run<'_>], results: &[Done]) -> Outcome {
    let mut table = Table::new("llrrrrrrrrrrrr", &HEADINGS);
    if let Some(file) = &args.html {
        write_page(file, runs, results)?;
    }
    for (run, done) in runs.iter().zip(results) {
        if args.output.json {
            args.output.document(&document(run, done))?;
        }
        table.row(row(run, done));
        if done.figures.power_cuts > 0 {
            let (cuts, ns) = (done.figures.power_cuts, done.figures.recovery / done.figures.power_cuts);
            let cuts = units::plural(cuts, "power cut");
            args.output.note(format!("{}: {cuts}, {} of recovery each", run.layer.name, short(ns as f64)));
        }
        if done.skipped > 0 {
            let lines = units::plural(done.skipped, "wrong line");
            args.output.note(format!("{}: {lines} left out", run.input.path.display()));
        }
    }
    if args.output.json { Ok(()) } else { args.output.table(&table) }
}

/// A time in us, ms or s.
pub fn short(ns: f64) -> String {
    match ns {
        ..1e7 => format!("{:.0} us", ns / 1e3),
        ..1e10 => format!("{:.0} ms", ns / 1e6),
        _ => format!("{:.1} s", ns / 1e9),
    }
}

/// CPU time for each request, in ns.
fn cpu_per_request(done: &Done) -> u64 {
    done.cpu.as_nanos() as u64 / done.figures.requests.max(1)
}

fn row(run: &Run<'_>, done: &Done) -> Vec<String> {
    let Figures { response, counters: c, cache, wear, .. } = &done.figures;
    let quantile = |p| short(response.quantile(p) as f64);
    vec![
        run.input.path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        run.layer.name.into(),
        match run.layer.min_cache {
            Some(_) => format!("{} of {}", units::bytes(cache.peak), units::bytes(run.config.map_cache)),
            None => units::bytes(cache.peak),
        },
        units::percent(cache.hits, cache.lookups),
        short(response.mean()),
        quantile(0.5),
        quantile(0.99),
        quantile(0.999),
        units::count(c.reads(Cause::Map) + c.reads(Cause::MapGc)),
        units::count(c.programs(Cause::Map) + c.programs(Cause::MapGc)),
        units::count(c.programs(Cause::Gc) + c.programs(Cause::GcTranslation) + c.programs(Cause::Wear)),
        format!("{:.3}", c.write_amplification()),
        format!("{} {:.1} {}", wear.min, wear.mean, wear.max),
        format!("{} ns", cpu_per_request(done)),
    ]
}

fn document(run: &Run<'_>, done: &Done) -> Value {
    let map_cache = run.layer.min_cache.map(|_| run.config.map_cache);
    let mut document = json!({
        "trace": run.input.path.display().to_string(), "ftl": run.layer.name, "capacity_bytes": run.config.capacity,
        "map_cache_bytes": map_cache, "skipped_lines": done.skipped,
        "cpu_ns_per_request": cpu_per_request(done),
    });
    add_figures(&mut document, &done.figures, run.layer.name, &done.layer);
    document
}

/// Adds figures of a device, and those of its layer.
pub fn add_figures(document: &mut Value, figures: &Figures, ftl: &str, layer: &[(&'static str, u64)]) {
    let Figures { response, counters: c, cache, wear, .. } = figures;
    let mut added = json!({
        "map_cache_peak_bytes": cache.peak, "map_lookups": cache.lookups, "map_hits": cache.hits,
        "requests": figures.requests, "device_requests": figures.device_requests, "end_ns": figures.end,
        "response_ns": {
            "mean": response.mean(), "p50": response.quantile(0.5), "p99": response.quantile(0.99),
            "p99.9": response.quantile(0.999), "max": response.max(),
        },
        "host_reads": c.reads(Cause::Host), "host_programs": c.programs(Cause::Host),
        "map_reads": c.reads(Cause::Map), "map_reads_by_gc": c.reads(Cause::MapGc),
        "map_programs": c.programs(Cause::Map), "map_programs_by_gc": c.programs(Cause::MapGc),
        "moved_data_pages": c.programs(Cause::Gc), "moved_map_pages": c.programs(Cause::GcTranslation),
        "moved_by_wear_levelling": c.programs(Cause::Wear), "programs": c.all_programs(),
        "erases": c.all_erases(), "map_erases": c.map_erases(),
        "write_amplification": c.write_amplification(),
        "erases_per_block": { "min": wear.min, "mean": wear.mean, "max": wear.max },
    });
    if figures.power_cuts > 0 {
        added["power_cuts"] = figures.power_cuts.into();
        added["recovery_ns_per_cut"] = (figures.recovery / figures.power_cuts).into();
        added["recovery_reads"] = c.reads(Cause::Recovery).into();
        added["recovery_programs"] = c.programs(Cause::Recovery).into();
        added["lessons"] = figures.lessons.into();
    }
    if !layer.is_empty() {
        added[ftl] = layer.iter().map(|(name, value)| (*name, *value)).collect();
    }
    if let (Value::Object(document), Value::Object(added)) = (document, added) {
        document.extend(added);
    }
}

/// Checks before anything is replayed that the page can be written; what a file has stays until then.
///
/// # Errors
/// It cannot.
pub fn check_page(args: &ReplayArgs) -> Outcome {
    let Some(file) = &args.html else { return Ok(()) };
    let same = |trace: &PathBuf| {
        let ids = [trace, file].map(|path| std::fs::metadata(path).map(|found| (found.dev(), found.ino())).ok());
        ids[0].is_some() && ids[0] == ids[1]
    };
    if let Some(trace) = args.reading.traces.iter().find(|trace| same(trace)) {
        bail!(Exit::Usage, "--html {}: this is the trace {}; name another file", file.display(), trace.display());
    }
    let is_new = !file.exists();
    std::fs::OpenOptions::new().create(true).append(true).open(file).at(file)?;
    // What is not written until the end leaves no empty file if the command is ended before.
    // A link that led nowhere stays.
    if is_new { file.canonicalize().and_then(std::fs::remove_file).at(file) } else { Ok(()) }
}

fn write_page(file: &Path, runs: &[Run<'_>], results: &[Done]) -> Outcome {
    let mut sections: Vec<Section> = Vec::new();
    for (run, done) in runs.iter().zip(results) {
        let trace = run.input.path.display().to_string();
        if sections.last().is_none_or(|section| section.trace != trace) {
            sections.push(Section { trace, entries: Vec::new() });
        }
        sections.last_mut().expect("a section was just added").entries.push(entry(run, done));
    }
    let command = std::env::args_os().map(|word| word.display().to_string()).collect::<Vec<_>>().join(" ");
    std::fs::write(file, page(&command, &HEADINGS, &sections)).at(file)
}

fn entry(run: &Run<'_>, done: &Done) -> Entry {
    let Figures { response, counters: c, cache, .. } = &done.figures;
    let size = || format!(" {}", units::bytes(run.config.map_cache));
    Entry {
        label: format!("{}{}", run.layer.name, run.layer.min_cache.map_or_else(String::new, |_| size())),
        cells: row(run, done),
        hits: cache.hits as f64 * 100.0 / cache.lookups.max(1) as f64,
        map_reads: c.reads(Cause::Map) + c.reads(Cause::MapGc),
        map_writes: c.programs(Cause::Map) + c.programs(Cause::MapGc),
        write_amplification: c.write_amplification(),
        quantiles: (0..=40).map(|x| response.quantile(1.0 - 10f64.powf(-f64::from(x) / 10.0)) as f64).collect(),
    }
}
