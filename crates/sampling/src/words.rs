//! What commands read of their arguments in the same way: shares, and formats by the names of files.

use crate::error::Error;
use crate::source::Source;

/// A format of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileFormat {
    /// Lines.
    Text,
    /// CSV after RFC 4180.
    Csv,
    /// An object in each line.
    Json,
    /// Parquet.
    Parquet,
}

impl FileFormat {
    fn of_name(name: &str) -> FileFormat {
        match name.rsplit('.').next().unwrap_or_default().to_ascii_lowercase().as_str() {
            "csv" | "tsv" => FileFormat::Csv,
            "jsonl" | "ndjson" | "json" => FileFormat::Json,
            "parquet" => FileFormat::Parquet,
            _ => FileFormat::Text,
        }
    }

    /// The format that the names of all files of a source say.
    ///
    /// # Errors
    /// Two files are of different formats.
    pub fn of_files(source: &dyn Source) -> Result<FileFormat, Error> {
        let first = &source.files()[0];
        let format = FileFormat::of_name(&first.name);
        match source.files().iter().find(|file| FileFormat::of_name(&file.name) != format) {
            Some(other) => Err(Error::Question(format!(
                "`{}` and `{}` are of different formats; name one with --format, or ask one after the other",
                first.name, other.name
            ))),
            None => Ok(format),
        }
    }
}

/// A share: `2%` or `0.02`; above 0, at most 1.
///
/// # Errors
/// What is wrong, for the user.
pub fn parse_share(text: &str) -> Result<f64, String> {
    let (number, scale) = text.strip_suffix('%').map_or((text, 1.0), |number| (number.trim_end(), 100.0));
    let share = number.parse::<f64>().map_err(|_| "a share is written 2% or 0.02".to_string())? / scale;
    if share > 0.0 && share <= 1.0 { Ok(share) } else { Err("a share lies above 0 and is at most 100%".to_string()) }
}

/// How many intervals shall hold the truth: a share from 50% to 99.99%.
///
/// # Errors
/// As [`parse_share`].
pub fn parse_confidence(text: &str) -> Result<f64, String> {
    let share = parse_share(text)?;
    if (0.5..=0.9999).contains(&share) { Ok(share) } else { Err("from 50% to 99.99%".to_string()) }
}

/// How much more is selected than is needed: a share, or 0.
///
/// # Errors
/// As [`parse_share`].
pub fn parse_drop(text: &str) -> Result<f64, String> {
    if matches!(text, "0" | "0%") { Ok(0.0) } else { parse_share(text) }
}
