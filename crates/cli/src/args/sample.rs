//! Arguments of `tessera sample` and `tessera query`.

use super::Common;
use super::daemons::parse_size;
use clap::{Args, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;
use tessera_sampling::words::{FileFormat, parse_confidence, parse_drop, parse_share};

/// `tessera sample`.
#[derive(Debug, Args)]
#[command(after_help = "\
Reads a random part of the files and says how far its answer can be from that of all of them: 95 of 100 such
intervals hold the truth (--confidence). Without --ratio, --error or --exact, as much is read as makes the
intervals of the total and of the largest groups 2 % wide on each side. Groups that were seen in fewer than 30
units are called rare and get no interval. Ctrl-C prints what is known so far. docs/sampling.md has the rules.

KEY is a field, `word` (of text), or /EXPRESSION/, whose matches in each line are counted. Fields of text: line;
of CSV: the names in the header; of JSON lines and Parquet: paths such as user.name.
Conditions: status >= 500 and (method = 'GET' or not path ~ '^/api'), size is not null.
A comparison of null is unknown, as in SQL: neither `ms = 1` nor `not ms = 1` has records without ms.

Examples:
  tessera sample tess:/wiki --count-by word              the most frequent words, within 2 %
  tessera sample tess:/logs --count-by status --where 'ms > 100' --ratio 1%
  tessera sample /data1/log.csv /data2/log.csv --avg ms --by host --error 1%
  tessera sample trades.jsonl --quantile 99%:price
  tessera sample access.log --count-by '/GET ([^ ]+)/' --top 10 --json
  tessera sample *.csv --sum bytes --exact")]
pub struct SampleArgs {
    /// Files and directories: all in the store (tess:/…), or all local.
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<OsString>,
    /// Count the records of each key.
    #[arg(long, value_name = "KEY", group = "aggregate")]
    pub count_by: Option<String>,
    /// Add up a field.
    #[arg(long, value_name = "FIELD", group = "aggregate")]
    pub sum: Option<String>,
    /// Mean of a field.
    #[arg(long, value_name = "FIELD", group = "aggregate")]
    pub avg: Option<String>,
    /// A quantile of a field: 50%:ms is its median.
    #[arg(long, value_name = "SHARE:FIELD", group = "aggregate", value_parser = parse_quantile)]
    pub quantile: Option<(f64, String)>,
    /// Number of distinct keys. A sample can only bound it.
    #[arg(long, value_name = "KEY", group = "aggregate")]
    pub distinct: Option<String>,
    /// Sums and means for each key.
    #[arg(long, value_name = "KEY", conflicts_with_all = ["count_by", "quantile", "distinct"])]
    pub by: Option<String>,
    /// Only records that match this condition.
    #[arg(long = "where", value_name = "CONDITION")]
    pub condition: Option<String>,
    /// Read this share of everything.
    #[arg(long, value_name = "SHARE", group = "amount", value_parser = parse_share)]
    pub ratio: Option<f64>,
    /// Read as much as makes intervals this narrow on each side. [default: 2%]
    #[arg(long, value_name = "SHARE", group = "amount", value_parser = parse_share)]
    pub error: Option<f64>,
    /// Read everything.
    #[arg(long, group = "amount")]
    pub exact: bool,
    /// How many of the intervals hold the truth.
    #[arg(long, value_name = "SHARE", default_value = "95%", value_parser = parse_confidence)]
    pub confidence: f64,
    /// Groups to report, largest first; --error holds for these.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub top: usize,
    /// Select so much more than is needed, and do not wait for what arrives last.
    #[arg(long, value_name = "SHARE", default_value = "10%", value_parser = parse_drop)]
    pub drop: f64,
    /// Bytes read at once. [default: 64K in the store, 16K in local files, 4M with --exact]
    #[arg(long, value_name = "SIZE", value_parser = parse_unit)]
    pub unit: Option<u64>,
    /// Format of the files. [default: by their names: .csv, .tsv, .jsonl, .ndjson, .json, .parquet; else text]
    #[arg(long, value_enum)]
    pub format: Option<RecordFormat>,
    /// What separates the fields of CSV: one character. [default: , ; | or a tab, found in the first line]
    #[arg(long, value_name = "CHARACTER", value_parser = parse_delimiter)]
    pub delimiter: Option<u8>,
    /// CSV has no header; its fields are named 1, 2, …
    #[arg(long)]
    pub no_header: bool,
    /// How the sample is divided among disks.
    #[arg(long, value_enum, default_value_t = ShareRule::Equal)]
    pub shares: ShareRule,
    /// Take each PATH for a disk of its own, as with network file systems.
    #[arg(long)]
    pub path_is_disk: bool,
    /// Draw the same sample again: exactly with --drop 0% and no --shares speed, else timing matters. [default: another one each time]
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u64>,
    /// Threads that count. [default: one for each CPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Write a page with a plot of the groups and their intervals.
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// Common.
    #[command(flatten)]
    pub common: Common,
}

/// `tessera query`.
#[derive(Debug, Args)]
#[command(after_help = "\
A file, a directory or a pattern in single quotes is a table. With --error or --ratio, counts, sums and means are estimated
from a sample and come with intervals. `tessera query --help` shows every option, once tessera-query is installed (`make query`).

Examples:
  tessera query \"SELECT word, count(*) FROM 'tess:/logs/*.parquet' GROUP BY 1 ORDER BY 2 DESC LIMIT 20\" --error 2%
  tessera query \"SELECT avg(ms) FROM '/data/requests.csv' WHERE status >= 500\" --json")]
pub struct QueryArgs {
    /// What tessera-query is given; `tessera query --help` shows its own help.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    pub arguments: Vec<OsString>,
}

/// A format of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RecordFormat {
    /// Lines.
    Text,
    /// CSV after RFC 4180.
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

/// How the sample is divided among disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ShareRule {
    /// The same from each disk.
    Equal,
    /// In proportion to what each disk holds.
    Size,
    /// In proportion to how fast each disk is, which reads of some units measure first.
    Speed,
}

fn parse_unit(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text)?;
    let allowed = 512..=64 << 20;
    if allowed.contains(&bytes) { Ok(bytes) } else { Err("a unit has from 512 bytes to 64M".to_string()) }
}

fn parse_quantile(text: &str) -> Result<(f64, String), String> {
    let (share, field) = text.split_once(':').ok_or("write SHARE:FIELD, such as 50%:ms")?;
    Ok((parse_share(share)?, field.to_string()))
}

fn parse_delimiter(text: &str) -> Result<u8, String> {
    match (text, text.as_bytes()) {
        ("\\t" | "tab", _) => Ok(b'\t'),
        (_, [one]) if !matches!(one, b'"' | b'\n' | b'\r') => Ok(*one),
        _ => Err("one ASCII character, or tab".to_string()),
    }
}
