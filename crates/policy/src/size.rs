//! Sizes in text form: `4096`, `64K`, `1M`, `2G`, `1T` (powers of 1,024; a trailing `iB` is accepted).

use thiserror::Error;

/// Why a text is not a size.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{text:?} is not a size; write bytes or a number with K, M, G or T (powers of 1,024)")]
pub struct SizeError {
    /// As given.
    pub text: String,
}

const UNITS: [(char, u32); 4] = [('K', 10), ('M', 20), ('G', 30), ('T', 40)];

/// Parses a size into bytes.
///
/// # Errors
/// The text is not a number with an optional unit, or exceeds 64 bits.
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let error = || SizeError { text: text.to_string() };
    let short = text.strip_suffix("iB").unwrap_or(text);
    let shift =
        UNITS.iter().find(|(unit, _)| short.ends_with([*unit, unit.to_ascii_lowercase()])).map(|(_, shift)| *shift);
    let digits = if shift.is_some() { &short[..short.len() - 1] } else { text };
    parse_digits(digits).and_then(|number| number.checked_mul(1 << shift.unwrap_or(0))).ok_or_else(error)
}

/// Parses digits only: no sign, no spaces.
pub(crate) fn parse_digits(text: &str) -> Option<u64> {
    text.parse().ok().filter(|_| text.bytes().all(|b| b.is_ascii_digit()))
}

/// The shortest exact form.
pub fn format_size(bytes: u64) -> String {
    let fits = |(_, shift): &&(char, u32)| bytes > 0 && bytes.is_multiple_of(1 << shift);
    match UNITS.iter().rev().find(fits) {
        Some((unit, shift)) => format!("{}{unit}", bytes >> shift),
        None => bytes.to_string(),
    }
}

/// An approximate form for people: `0 B`, `999 B`, `1.5 KiB`, `12 GiB`, at most four digits.
pub fn human_size(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let decimals = if unit == 0 || value >= 99.95 { 0 } else { 1 };
    format!("{value:.decimals$} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_and_print() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("4K", 4096),
            ("64k", 65536),
            ("1MiB", 1 << 20),
            ("2G", 2 << 30),
            ("1T", 1 << 40),
        ] {
            assert_eq!(parse_size(text).unwrap(), bytes, "{text}");
            assert_eq!(parse_size(&format_size(bytes)).unwrap(), bytes);
        }
        for text in ["", "K", "-1", "+1", "1.5M", "1 M", "99999999999999999999", "99999999T", "1iB", "é"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_read_well() {
        for (n, text) in [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (1 << 20, "1.0 MiB"), (200 << 30, "200 GiB")]
        {
            assert_eq!(human_size(n), text);
        }
        assert_eq!(human_size(u64::MAX), "16.0 EiB");
        assert_eq!(human_size((1 << 20) - 1), "1.0 MiB");
    }
}
