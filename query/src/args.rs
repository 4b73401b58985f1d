//! The arguments of `tessera query`.

use clap::{Parser, ValueEnum};
use tessera_sampling::words::{FileFormat, parse_confidence, parse_drop, parse_share};

/// Where `tessera up` listens.
const DEFAULT_MANAGER: &str = "127.0.0.1:7700";

/// SQL over files in the store or in local directories, exactly or from a sample.
#[derive(Debug, Parser)]
#[command(
    name = "tessera query",
    version,
    max_term_width = 110,
    after_help = "\
A file, a directory or a pattern in single quotes is a table: FROM 'tess:/logs/*.parquet', FROM '/data/trips.csv'.
Columns of CSV are named by the header, those of JSON lines and Parquet by their fields; text has one column, line.

Without --error and --ratio the answer is exact. With one of them, a random part is read, and each count, sum and avg
gets two more columns, NAME_lo and NAME_hi: 95 of 100 such intervals hold the truth (--confidence). An interval is NULL
for groups that were seen in fewer than 30 units. What cannot be estimated is executed exactly, and a note says why:
joins, windows, min, max, distinct counts, aggregates of aggregates, and expressions over an estimate.
docs/sampling.md has the rules.

Examples:
  tessera query \"SELECT word, count(*) FROM 'tess:/logs/*.parquet' GROUP BY 1 ORDER BY 2 DESC LIMIT 20\" --error 2%
  tessera query \"SELECT avg(ms), count(*) FROM '/data/requests.csv' WHERE status >= 500\" --ratio 1%
  tessera query \"SELECT a.host, b.owner FROM 'tess:/hosts.csv' a JOIN 'tess:/owners.jsonl' b ON a.host = b.host\" --json"
)]
pub struct Args {
    /// One SELECT.
    pub sql: String,
    /// Read this share of everything.
    #[arg(long, value_name = "SHARE", group = "amount", value_parser = parse_share)]
    pub ratio: Option<f64>,
    /// Read as much as makes the intervals of the totals and of the largest groups this narrow on each side.
    #[arg(long, value_name = "SHARE", group = "amount", value_parser = parse_share)]
    pub error: Option<f64>,
    /// How many of the intervals hold the truth.
    #[arg(long, value_name = "SHARE", default_value = "95%", value_parser = parse_confidence)]
    pub confidence: f64,
    /// --error holds for so many groups: those with the largest first aggregate.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub top: usize,
    /// Select so much more than is needed, and do not wait for what arrives last.
    #[arg(long, value_name = "SHARE", default_value = "10%", value_parser = parse_drop)]
    pub drop: f64,
    /// Bytes of a sampled unit. [default: 64K in the store, 16K in local files]
    #[arg(long, value_name = "SIZE", value_parser = parse_unit)]
    pub unit: Option<u64>,
    /// Format of the files. [default: by their names: .csv, .tsv, .jsonl, .ndjson, .json, .parquet; else text]
    #[arg(long, value_enum)]
    pub format: Option<RecordFormat>,
    /// Take this column of CSV or JSON for text, whatever the first records look like. Can be repeated.
    #[arg(long, value_name = "COLUMN")]
    pub text: Vec<String>,
    /// What separates the fields of CSV: one ASCII character. [default: , or a tab in .tsv]
    #[arg(long, value_name = "CHARACTER")]
    pub delimiter: Option<char>,
    /// Draw the same sample again: exactly with --drop 0%, without which timing matters. [default: another one each time]
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u64>,
    /// Threads that decode and compute. [default: one for each CPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Print one JSON document.
    #[arg(long)]
    pub json: bool,
    /// Print no notes.
    #[arg(long, short)]
    pub quiet: bool,
    /// Manager to ask: HOST:PORT or unix:PATH, or several with commas between them; the one that leads answers.
    #[arg(long, short = 'm', env = "TESSERA_MANAGER", default_value = DEFAULT_MANAGER, value_name = "ADDR")]
    pub manager: String,
    /// Seconds to wait for a manager that does not answer.
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(..=3_155_760_000))]
    pub wait: u64,
}

fn parse_unit(text: &str) -> Result<u64, String> {
    let bytes = tessera_policy::parse_size(text).map_err(|error| error.to_string())?;
    let allowed = 512..=64 << 20;
    if allowed.contains(&bytes) { Ok(bytes) } else { Err("a unit has from 512 bytes to 64M".to_string()) }
}

/// A format of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RecordFormat {
    /// Lines.
    Text,
    /// CSV after RFC 4180, with a header.
    Csv,
    /// An object in each line.
    Json,
    /// Parquet; its unit is a row group.
    Parquet,
}

impl From<RecordFormat> for FileFormat {
    fn from(format: RecordFormat) -> FileFormat {
        match format {
            RecordFormat::Text => FileFormat::Text,
            RecordFormat::Csv => FileFormat::Csv,
            RecordFormat::Json => FileFormat::Json,
            RecordFormat::Parquet => FileFormat::Parquet,
        }
    }
}

/// How much is read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Amount {
    /// Everything.
    Exact,
    /// A share of all units, 0 to 1.
    Ratio(f64),
    /// As much as a relative error needs.
    Error(f64),
}

impl Args {
    /// How much to read.
    pub fn amount(&self) -> Amount {
        match (self.ratio, self.error) {
            (Some(ratio), _) => Amount::Ratio(ratio),
            (_, Some(error)) => Amount::Error(error),
            _ => Amount::Exact,
        }
    }

    /// Threads that decode and compute.
    pub fn threads(&self) -> usize {
        let cpus = || std::thread::available_parallelism().map_or(1, |cpus| cpus.get());
        self.threads.map_or_else(cpus, usize::from)
    }
}
