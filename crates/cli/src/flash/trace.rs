//! `tessera flash trace`.

use super::input::{open, wrong};
use crate::args::{LineArgs, ReadingArgs};
use crate::exit::Outcome;
use crate::term::{Out, Table, units};
use serde_json::json;
use std::path::Path;
use std::time::Duration;
use tessera_flash::Op;
use tessera_flash::trace::{Span, Writer};

/// Shows what is in traces.
pub fn info(args: &ReadingArgs, out: Out) -> Outcome {
    let mut table = Table::new(
        "llrrrrrrr",
        &["trace", "format", "requests", "reads", "mean size", "devices", "span", "time", "left out"],
    );
    for path in &args.traces {
        let mut trace = open(path, args.lines, <_>::default())?;
        let (mut span, mut counts, mut bytes, mut end) = (Span::default(), [0u64; 3], 0, 0);
        for request in trace.by_ref() {
            let request = request.map_err(|e| wrong(path, &e))?;
            span.add(&request);
            counts[request.op as usize] += 1;
            bytes += request.bytes;
            end = request.at;
        }
        let span = span.lay(4096).map_err(crate::exit::Failure::usage)?;
        let requests: u64 = counts.iter().sum();
        let reads = counts[Op::Read as usize];
        let names = args.lines.format.map_or_else(|| trace.format().names(), |named| vec![named.name]);
        if out.json {
            out.document(&json!({
                "trace": path.display().to_string(), "format": names[0], "formats": names, "requests": requests, "reads": reads,
                "writes": counts[Op::Write as usize], "trims": counts[Op::Trim as usize], "bytes": bytes,
                "devices": span.devices(), "span_bytes": span.bytes(), "time_ns": end,
                "skipped_lines": trace.skipped(), "reordered": trace.reordered(),
            }))?;
        }
        table.row([
            path.display().to_string(),
            names.join(" or "),
            units::count(requests),
            units::percent(reads, requests),
            units::bytes(bytes / requests.max(1)),
            units::count(span.devices() as u64),
            units::bytes(span.bytes()),
            units::duration(Duration::from_nanos(end)),
            units::count(trace.skipped()),
        ]);
    }
    if out.json { Ok(()) } else { out.table(&table) }
}

/// Writes a trace in another format.
pub fn convert(path: &Path, lines: LineArgs, (to, writer): (&str, Writer), out: Out) -> Outcome {
    let mut trace = open(path, lines, <_>::default())?;
    let mut lines = writer.begin(&[]);
    lines.heading().iter().try_for_each(|line| out.line(line))?;
    let mut left_out = 0;
    for request in trace.by_ref() {
        let written = lines.request(&request.map_err(|e| wrong(path, &e))?);
        left_out += u64::from(written.is_empty());
        written.iter().try_for_each(|line| out.line(line))?;
    }
    if left_out + trace.skipped() > 0 {
        out.caution(format!(
            "{left_out} requests that {to} cannot say and {} wrong lines are left out",
            trace.skipped()
        ));
    }
    out.flush()
}
