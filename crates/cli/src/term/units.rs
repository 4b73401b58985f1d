//! Numbers with units: formatting and parsing.

use std::ops::Range;
use std::time::Duration;
pub use tessera_policy::human_size as bytes;

/// Bytes per second over `elapsed`.
pub fn rate(count: u64, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs_f64().max(1e-3);
    format!("{}/s", bytes((count as f64 / seconds) as u64))
}

/// `950 ms`, `12.3 s`, `4 min 05 s`, `2 h 03 min`.
pub fn duration(time: Duration) -> String {
    let (ms, s) = (time.as_millis(), time.as_secs());
    match (ms, s) {
        (0..1000, _) => format!("{ms} ms"),
        (_, 0..60) => format!("{:.1} s", time.as_secs_f64()),
        (_, 60..3600) => format!("{} min {:02} s", s / 60, s % 60),
        _ => format!("{} h {:02} min", s / 3600, s % 3600 / 60),
    }
}

/// With thousands separators: `1,234,567`.
pub fn count(number: u64) -> String {
    indicatif::HumanCount(number).to_string()
}

/// A count with its noun: "1 file", "2 files".
pub fn plural(number: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(number), if number == 1 { "" } else { "s" })
}

/// "2 files, 1 symbolic link"; links only if there are some.
pub fn files_and_links(files: u64, links: u64) -> String {
    let links = if links > 0 { format!(", {}", plural(links, "symbolic link")) } else { String::new() };
    plural(files, "file") + &links
}

/// Counts with what each one counts, without those that are 0: "2 late, 1 bad".
pub fn clauses(counts: impl IntoIterator<Item = (u64, &'static str)>, separator: &str) -> String {
    let clauses = counts.into_iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{} {what}", count(n)));
    clauses.collect::<Vec<_>>().join(separator)
}

/// A value of a protobuf enum in words: `INODE_KIND_CHAR_DEVICE` without its prefix is `char-device`.
pub fn enum_name(value: &str, prefix: &str) -> String {
    value.trim_start_matches(prefix).to_lowercase().replace('_', "-")
}

/// `12.3 %`; 0 of 0 is 0 %.
pub fn percent(part: u64, whole: u64) -> String {
    match whole {
        0 => "0.0 %".into(),
        _ => format!("{:.1} %", part as f64 * 100.0 / whole as f64),
    }
}

/// UTC as `2026-01-02 03:04:05`, from ns since 1970.
pub fn time(ns: i64) -> String {
    let seconds = ns.div_euclid(1_000_000_000);
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60)
}

/// RFC 3339 with nanoseconds, for JSON.
pub fn rfc3339(ns: i64) -> String {
    format!("{}.{:09}Z", time(ns).replace(' ', "T"), ns.rem_euclid(1_000_000_000))
}

/// Date of a day counted from 1970-01-01 in the Gregorian calendar. Years start in March, so that the leap day is a
/// year's last; 146,097 days are 400 years.
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// `drwxr-xr-x`.
pub fn mode(kind: char, mode: u32) -> String {
    let mut out = String::from(kind);
    for (shift, special, set) in [(6, 0o4000, "sS"), (3, 0o2000, "sS"), (0, 0o1000, "tT")] {
        let bits = mode >> shift;
        out.push(if bits & 4 != 0 { 'r' } else { '-' });
        out.push(if bits & 2 != 0 { 'w' } else { '-' });
        let letters = if mode & special != 0 { set } else { "x-" };
        out.push_str(if bits & 1 != 0 { &letters[..1] } else { &letters[1..] });
    }
    out
}

/// A bar of `width` cells, filled to `part` of `whole`.
pub fn bar(part: u64, whole: u64, width: usize) -> String {
    let filled = match whole {
        0 => 0,
        _ => (u128::from(part.min(whole)) * width as u128).div_ceil(u128::from(whole)) as usize,
    };
    format!("{}{}", "█".repeat(filled), "░".repeat(width - filled))
}

/// Parses `START..END`, both sizes and both optional; without END the range has no end.
///
/// # Errors
/// The text is no range, or the range ends before it starts.
pub fn parse_range(text: &str) -> Result<Range<u64>, String> {
    let form = || format!("{text:?} is not a range; write START..END in bytes or with K, M, G (1M..1028K)");
    let size = |text: &str, default| match text {
        "" => Ok(default),
        text => tessera_policy::parse_size(text).map_err(|_| form()),
    };
    let (start, end) = text.split_once("..").ok_or_else(form)?;
    let range = size(start, 0)?..size(end, u64::MAX)?;
    match range.end < range.start {
        true => Err(format!("the range {text} ends before it starts")),
        false => Ok(range),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!((count(1_234_567), count(12)), ("1,234,567".into(), "12".into()));
        assert_eq!(duration(Duration::from_millis(61_000)), "1 min 01 s");
        assert_eq!((mode('d', 0o755), mode('-', 0o4644)), ("drwxr-xr-x".into(), "-rwSr--r--".into()));
        assert_eq!((bar(1, 100, 4), bar(100, 100, 4), bar(0, 0, 2)), ("█░░░".into(), "████".into(), "░░".into()));
    }

    #[test]
    fn dates_follow_the_calendar() {
        for (s, text) in [
            (0, "1970-01-01 00:00:00"),
            (951_782_399, "2000-02-28 23:59:59"),
            (951_782_400, "2000-02-29 00:00:00"),
            (1_709_251_199, "2024-02-29 23:59:59"),
            (4_107_542_400, "2100-03-01 00:00:00"),
            (-1, "1969-12-31 23:59:59"),
        ] {
            assert_eq!(time(s * 1_000_000_000), text);
        }
        assert_eq!(rfc3339(5), "1970-01-01T00:00:00.000000005Z");
    }

    #[test]
    fn ranges_that_make_no_sense_are_refused() {
        assert_eq!(parse_range("1M..1028K"), Ok(1 << 20..1028 << 10));
        assert_eq!(parse_range("..10"), Ok(0..10));
        assert_eq!(parse_range("5.."), Ok(5..u64::MAX));
        for bad in ["", "5", "9..1", "a..b", "-1..2"] {
            assert!(parse_range(bad).is_err(), "{bad}");
        }
    }
}
