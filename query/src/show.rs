//! What is printed: the answer on stdout, progress and notes on stderr.

use crate::error::Error;
use crate::estimate::Estimated;
use datafusion::arrow::array::{Array, RecordBatch};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::json::WriterBuilder;
use datafusion::arrow::json::writer::JsonArray;
use datafusion::arrow::util::display::array_value_to_string;
use datafusion::arrow::util::pretty::pretty_format_batches;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tessera_sampling::engine::Progress;
use tessera_sampling::estimate::RARE_UNITS;

/// Sees what is read, and Ctrl-C.
#[derive(Debug)]
pub struct Watch {
    interrupted: Arc<AtomicBool>,
    draws: bool,
    started: Instant,
    /// What was read in whole scans.
    scanned: Mutex<Progress>,
}

impl Watch {
    /// `interrupted` is set by Ctrl-C. Progress is drawn on a terminal, unless `quiet`.
    pub fn new(interrupted: Arc<AtomicBool>, quiet: bool) -> Watch {
        let draws = !quiet && std::io::stderr().is_terminal();
        Watch { interrupted, draws, started: Instant::now(), scanned: Mutex::default() }
    }

    /// Whether the user has asked for an end.
    pub fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    /// Draws how far a scan or a sample is.
    pub fn show(&self, progress: Progress) {
        if self.draws && progress.needed_units > 0 {
            let Progress { units, needed_units, .. } = progress;
            let elapsed = self.started.elapsed();
            let left = match units {
                0 => String::new(),
                _ => {
                    let left = elapsed.mul_f64(needed_units.saturating_sub(units) as f64 / units as f64);
                    format!(", about {} left", seconds(left))
                }
            };
            eprint!("\r\x1b[K{units} of {needed_units} units{left}");
        }
    }

    /// A scan has ended.
    pub fn scanned(&self, progress: Progress) {
        let mut scanned = self.scanned.lock();
        scanned.units += progress.units;
        scanned.all_units += progress.all_units;
        scanned.read_bytes += progress.read_bytes;
    }

    /// What was read by whole scans.
    pub fn all_scanned(&self) -> Progress {
        *self.scanned.lock()
    }

    /// Clears what was drawn.
    pub fn clear(&self) {
        if self.draws {
            eprint!("\r\x1b[K");
        }
    }
}

/// How the answer was found.
pub enum How {
    /// Exactly; why, if an estimate was asked for.
    Exactly(Option<String>),
    /// From a sample.
    Estimated(Box<Estimated>),
}

/// The answer, and what is said of it.
pub struct Shown<'a> {
    /// Its columns.
    pub schema: SchemaRef,
    /// Its rows.
    pub batches: &'a [RecordBatch],
    /// How it was found.
    pub how: &'a How,
    /// What was read.
    pub progress: Progress,
    /// Ctrl-C ended the sample.
    pub was_interrupted: bool,
    /// Since the command began.
    pub elapsed: Duration,
    /// The sample's seed.
    pub seed: u64,
}

/// Prints an answer. The program that reads it may close the pipe before its end.
///
/// # Errors
/// It cannot be written.
pub fn show(shown: &Shown<'_>, json: bool, quiet: bool) -> Result<(), Error> {
    match print(shown, json, quiet) {
        Err(Error::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        done => done,
    }
}

fn print(shown: &Shown<'_>, json: bool, quiet: bool) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    if json {
        serde_json::to_writer_pretty(&mut out, &document(shown)?).map_err(std::io::Error::from)?;
        writeln!(out)?;
        return Ok(());
    }
    let table = pretty_format_batches(shown.batches).map_err(|error| Error::Engine(error.to_string()))?;
    if shown.batches.iter().any(|batch| batch.num_columns() > 0) {
        writeln!(out, "{}", escaped(&table.to_string()))?;
    }
    if !quiet {
        notes(shown).iter().for_each(|note| eprintln!("{note}"));
    }
    Ok(())
}

fn document(shown: &Shown<'_>) -> Result<Value, Error> {
    let engine = |error: datafusion::arrow::error::ArrowError| Error::Engine(error.to_string());
    let mut writer = WriterBuilder::new().with_explicit_nulls(true).build::<_, JsonArray>(Vec::new());
    writer.write_batches(&shown.batches.iter().collect::<Vec<_>>()).map_err(engine)?;
    writer.finish().map_err(engine)?;
    let written = writer.into_inner();
    let mut rows: Value = match written.is_empty() {
        true => json!([]),
        false => serde_json::from_slice(&written).map_err(|error| Error::Engine(error.to_string()))?,
    };
    keep_digits(&mut rows, shown.batches)?;
    let columns: Vec<Value> = shown
        .schema
        .fields()
        .iter()
        .map(|field| json!({ "name": field.name(), "type": field.data_type().to_string() }))
        .collect();
    let Progress { units, all_units, read_bytes, .. } = shown.progress;
    let (estimated, reached, exact_because) = match shown.how {
        How::Estimated(estimated) => (true, estimated.reached, None),
        How::Exactly(reason) => (false, true, reason.clone()),
    };
    Ok(json!({
        "columns": columns,
        "rows": rows,
        "estimated": estimated,
        "reached": reached,
        "exact_because": exact_because,
        "interrupted": shown.was_interrupted,
        "read_units": units,
        "all_units": all_units,
        "read_bytes": read_bytes,
        "seconds": shown.elapsed.as_secs_f64(),
        "seed": if estimated { Some(shown.seed) } else { None },
    }))
}

/// Characters that would steer a terminal, or turn its text around, as escapes.
fn escaped(text: &str) -> String {
    let steers =
        |c: char| c.is_control() && c != '\n' || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars().fold(String::new(), |mut all, c| {
        if steers(c) {
            all.extend(c.escape_default())
        } else {
            all.push(c)
        }
        all
    })
}

/// Decimals become text where a number of JSON would lose digits: whole ones beyond 64 bits, and others that a floating-point
/// number does not have.
fn keep_digits(rows: &mut Value, batches: &[RecordBatch]) -> Result<(), Error> {
    let mut rows = rows.as_array_mut().into_iter().flatten();
    for batch in batches {
        let schema = batch.schema();
        let is_decimal = |i: &usize| schema.field(*i).data_type().is_decimal();
        let decimals: Vec<usize> = (0..batch.num_columns()).filter(is_decimal).collect();
        for (number, row) in (0..batch.num_rows()).zip(rows.by_ref()) {
            for i in &decimals {
                let text = array_value_to_string(batch.column(*i), number)
                    .map_err(|error| Error::Engine(error.to_string()))?;
                if batch.column(*i).is_valid(number) && loses_digits(&text) {
                    row[schema.field(*i).name()] = text.into();
                }
            }
        }
    }
    Ok(())
}

fn loses_digits(decimal: &str) -> bool {
    match decimal.split_once('.') {
        None => decimal.parse::<i64>().is_err() && decimal.parse::<u64>().is_err(),
        Some((whole, fraction)) => {
            let fraction = fraction.trim_end_matches('0');
            let shortest = if fraction.is_empty() { whole.to_string() } else { format!("{whole}.{fraction}") };
            decimal.parse::<f64>().map_or(true, |float| float.to_string() != shortest)
        }
    }
}

fn notes(shown: &Shown<'_>) -> Vec<String> {
    let Progress { units, all_units, read_bytes, .. } = shown.progress;
    let mut notes = Vec::new();
    // Where a limit has ended a scan, nobody knows how much was needed.
    if all_units > 0 {
        let (read, elapsed) = (bytes(read_bytes), seconds(shown.elapsed));
        notes.push(format!("read {read} in {elapsed}: {units} of {all_units} units"));
    }
    if shown.was_interrupted {
        notes.push("interrupted: this is what is known so far".to_string());
    }
    match shown.how {
        How::Exactly(Some(reason)) => notes.push(format!("executed exactly: {reason}")),
        How::Exactly(None) => {}
        How::Estimated(estimated) => {
            if estimated.rare_groups > 0 {
                notes.push(format!(
                    "{} of {} groups have no interval: they were seen in fewer than {RARE_UNITS} units, or their units do not differ",
                    estimated.rare_groups, estimated.groups
                ));
            }
            if estimated.partly_rare_groups > 0 {
                notes.push(format!(
                    "{} of {} groups lack the interval of some column: its values are in fewer than {RARE_UNITS} units, or units do not differ",
                    estimated.partly_rare_groups, estimated.groups
                ));
            }
            if estimated.unseen_units > 0.0 && estimated.unseen_units.is_finite() {
                notes.push(format!(
                    "a group that was not seen lies in fewer than {} of {all_units} units",
                    estimated.unseen_units
                ));
            }
            if !estimated.reached {
                notes.push("what was promised, an error or a share, was not reached".to_string());
            }
        }
    }
    notes
}

fn bytes(n: u64) -> String {
    match n {
        0..1_000_000 => format!("{:.1} KB", n as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", n as f64 / 1e6),
        _ => format!("{:.2} GB", n as f64 / 1e9),
    }
}

fn seconds(time: Duration) -> String {
    match time.as_secs() {
        0..100 => format!("{:.1} s", time.as_secs_f64()),
        s => format!("{} min", s.div_ceil(60)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_that_a_number_of_json_does_not_hold_are_text() {
        for (decimal, is_text) in [
            ("18446744073709551615", false),
            ("18446744073709551616", true),
            ("-9223372036854775808", false),
            ("0.25", false),
            ("-12.500", false),
            ("3.000", false),
            ("0.000", false),
            ("1234567890123.45", false),
            ("12345678901234567.89", true),
            ("9007199254740993.0", true),
        ] {
            assert_eq!(loses_digits(decimal), is_text, "{decimal}");
        }
    }
}
