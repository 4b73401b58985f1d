//! `tessera flash stat` and `tessera flash cut`: what they ask of a server, and how its answer is shown.

use super::control::ask;
use super::report::short;
use crate::args::{FlashCutArgs, FlashStatArgs};
use crate::exit::Outcome;
use crate::term::{Table, units};
use serde_json::Value;

/// Cuts the power, or turns it on.
pub fn cut(args: &FlashCutArgs) -> Outcome {
    let line = match (args.restore, args.off_for) {
        (true, _) => "restore".into(),
        (false, None) => "cut".into(),
        (false, Some(ms)) => format!("cut {ms}"),
    };
    let answer = ask(&args.control, &line)?;
    let lost = || units::plural(answer["lost_pages"].as_u64().unwrap_or(0), "page");
    let text = match (args.restore, args.off_for) {
        (true, _) => "power is on".into(),
        (false, None) => format!("power is off, {} of the write buffer lost; --restore turns it on", lost()),
        (false, Some(ms)) => format!("power is off for {ms} ms, {} of the write buffer lost", lost()),
    };
    args.output.result(&answer, text)
}

/// Shows the figures.
pub fn stat(args: &FlashStatArgs) -> Outcome {
    let answer = ask(&args.control, "stat")?;
    match (args.output.json, args.prometheus) {
        (true, _) => args.output.document(&answer),
        (_, true) => prometheus(&answer).iter().try_for_each(|line| args.output.line(line)),
        _ => args.output.table(&table(&answer)),
    }
}

fn table(answer: &Value) -> Table {
    let number = |key: &str| answer[key].as_u64().unwrap_or(0);
    let count = |keys: &[&str]| units::count(keys.iter().map(|key| number(key)).sum());
    let time = |key: &str| short(answer["response_ns"][key].as_f64().unwrap_or(0.0));
    let erases = &answer["erases_per_block"];
    let power = match answer["power_returns_in_ms"].as_u64() {
        Some(ms) => format!("off, on again in {ms} ms"),
        None => answer["power"].as_str().unwrap_or_default().into(),
    };
    let late = match &answer["late_ns"] {
        Value::Null => "no delays".into(),
        late => ["p50", "p99"].map(|key| short(late[key].as_f64().unwrap_or(0.0))).join(", p99 "),
    };
    let mut table = Table::new("lr", &["figure", "value"]);
    for (figure, value) in [
        ("ftl", answer["ftl"].as_str().unwrap_or_default().into()),
        ("capacity", units::bytes(number("capacity_bytes"))),
        ("power", power),
        ("power cuts", count(&["power_cuts"])),
        ("connections", count(&["connections"])),
        ("requests", count(&["requests"])),
        ("cache", units::bytes(number("map_cache_peak_bytes"))),
        ("hits", units::percent(number("map_hits"), number("map_lookups"))),
        ("mean", time("mean")),
        ("p50", time("p50")),
        ("p99", time("p99")),
        ("p99.9", time("p99.9")),
        ("late", late),
        ("map reads", count(&["map_reads", "map_reads_by_gc"])),
        ("map writes", count(&["map_programs", "map_programs_by_gc"])),
        ("moved", count(&["moved_data_pages", "moved_map_pages", "moved_by_wear_levelling"])),
        ("WA", format!("{:.3}", answer["write_amplification"].as_f64().unwrap_or(1.0))),
        ("CPU/req", format!("{} ns", number("cpu_ns_per_request"))),
        ("erases", format!("{} {:.1} {}", erases["min"], erases["mean"].as_f64().unwrap_or(0.0), erases["max"])),
    ] {
        table.row([figure.into(), value]);
    }
    table
}

/// Name, type, help, and for each label (or ending of the name) where the value is in the answer.
type Metric = (&'static str, &'static str, &'static str, &'static [(&'static str, &'static str)]);

const METRICS: [Metric; 16] = [
    ("capacity_bytes", "gauge", "Bytes that the host can address", &[("", "/capacity_bytes")]),
    ("connections", "gauge", "Connections of clients", &[("", "/connections")]),
    ("power_cuts_total", "counter", "Power cuts", &[("", "/power_cuts")]),
    ("requests_total", "counter", "Reads, writes and TRIMs", &[("", "/requests")]),
    ("map_lookups_total", "counter", "Map entries that requests needed", &[("", "/map_lookups")]),
    ("map_hits_total", "counter", "Map entries that were in the map cache", &[("", "/map_hits")]),
    ("map_cache_peak_bytes", "gauge", "Most bytes of map cache in use", &[("", "/map_cache_peak_bytes")]),
    (
        "response_ns",
        "summary",
        "Response time of the simulated SSD since the server started",
        &[
            ("{quantile=\"0.5\"}", "/response_ns/p50"),
            ("{quantile=\"0.99\"}", "/response_ns/p99"),
            ("{quantile=\"0.999\"}", "/response_ns/p99.9"),
            ("{quantile=\"1\"}", "/response_ns/max"),
            ("_sum", "/response_sum_ns"),
            ("_count", "/response_count"),
        ],
    ),
    (
        "page_reads_total",
        "counter",
        "Pages read from flash, by cause",
        &[
            ("{cause=\"host\"}", "/host_reads"),
            ("{cause=\"map\"}", "/map_reads"),
            ("{cause=\"map_by_gc\"}", "/map_reads_by_gc"),
            ("{cause=\"recovery\"}", "/recovery_reads"),
        ],
    ),
    (
        "page_programs_total",
        "counter",
        "Pages programmed, by cause",
        &[
            ("{cause=\"host\"}", "/host_programs"),
            ("{cause=\"map\"}", "/map_programs"),
            ("{cause=\"map_by_gc\"}", "/map_programs_by_gc"),
            ("{cause=\"gc\"}", "/moved_data_pages"),
            ("{cause=\"gc_of_map\"}", "/moved_map_pages"),
            ("{cause=\"wear_levelling\"}", "/moved_by_wear_levelling"),
            ("{cause=\"recovery\"}", "/recovery_programs"),
        ],
    ),
    (
        "write_amplification",
        "gauge",
        "Pages programmed for each page that the host wrote",
        &[("", "/write_amplification")],
    ),
    ("block_erases_mean", "gauge", "Erases of a block, on average", &[("", "/erases_per_block/mean")]),
    ("cpu_ns_per_request", "gauge", "CPU time of the server for each request, in ns", &[("", "/cpu_ns_per_request")]),
    (
        "late_ns",
        "gauge",
        "Time from when the simulated SSD was done until the reply left, by quantile; 0 without delays",
        &[
            ("{quantile=\"0.5\"}", "/late_ns/p50"),
            ("{quantile=\"0.99\"}", "/late_ns/p99"),
            ("{quantile=\"0.999\"}", "/late_ns/p99.9"),
        ],
    ),
    ("erases_total", "counter", "Blocks erased", &[("", "/erases")]),
    (
        "block_erases",
        "gauge",
        "Erases of a block: fewest and most",
        &[("{block=\"least_worn\"}", "/erases_per_block/min"), ("{block=\"most_worn\"}", "/erases_per_block/max")],
    ),
];

/// The answer in the text format of Prometheus.
fn prometheus(answer: &Value) -> Vec<String> {
    let on = u8::from(answer["power"] == "on");
    let mut lines = vec![
        "# HELP tessera_flash_power Whether there is power".into(),
        "# TYPE tessera_flash_power gauge".into(),
        format!("tessera_flash_power {on}"),
    ];
    for (name, kind, help, samples) in METRICS {
        lines.push(format!("# HELP tessera_flash_{name} {help}"));
        lines.push(format!("# TYPE tessera_flash_{name} {kind}"));
        let value = |pointer| answer.pointer(pointer).cloned().unwrap_or_else(|| 0.into());
        lines.extend(samples.iter().map(|(labels, at)| format!("tessera_flash_{name}{labels} {}", value(at))));
    }
    lines
}
