//! Values of types that the engine takes in another way than people expect: durations, and numbers that are cast.

mod common;

use common::{ask, fails};
use serde_json::Value;
use std::fmt::Write as _;
use std::path::Path;
use tempfile::TempDir;

/// A duration of 230 years, of which 64 bits of nanoseconds hold one, and the sum of two.
const YEARS: &str = "CAST(t AS TIMESTAMP) - CAST(s AS TIMESTAMP)";

/// Rows whose duration is 230 years, and as many of -230 years if `balanced`.
fn spans_csv(at: &Path, rows: usize, balanced: bool) {
    let mut text = String::from("s,t,k\n");
    for i in 0..rows {
        let (early, late) = ("1970-01-01T00:00:00", format!("2200-01-01T00:00:{:02}", i % 60));
        let (s, t) = if balanced && i % 2 == 1 { (late.as_str(), early) } else { (early, late.as_str()) };
        writeln!(text, "{s},{t},{}", i / 2).unwrap();
    }
    std::fs::write(at.join("w.csv"), text).unwrap();
}

/// The engine's own sum of durations wraps after 292 years, and so did the mean, which has a sum in it.
#[test]
fn sums_of_durations_do_not_wrap() {
    let dir = TempDir::new().unwrap();
    spans_csv(dir.path(), 4, false);
    for (sum, named) in [
        (format!("sum({YEARS}) AS d"), "`sum(w.csv.t - w.csv.s)`"),
        (format!("k, sum({YEARS}) AS d"), "`sum(w.csv.t - w.csv.s)`"),
        // The engine makes other names of it.
        (format!("sum(DISTINCT {YEARS}) AS d"), "Duration(ns)"),
        (format!("sum(DISTINCT {YEARS}) AS d, count(DISTINCT k)"), "`sum(DISTINCT w.csv.t - w.csv.s)`"),
        (format!("sum({YEARS}) OVER (ORDER BY t) AS d"), "`sum(w.csv.t - w.csv.s)"),
        ("sum(INTERVAL '2000000000 days') AS d".to_string(), "Interval(MonthDayNano)"),
        ("sum(INTERVAL '2000000000 months') AS d".to_string(), "date_part('epoch', x)"),
    ] {
        let groups = if sum.starts_with('k') { "GROUP BY k" } else { "" };
        let (code, why) = fails(dir.path(), &[&format!("SELECT {sum} FROM 'w.csv' {groups}")]);
        assert!(code == 1 && why.contains("overflow") && why.contains(named), "{sum}: {code}, {why}");
    }
    let of = |sql: &str| ask(dir.path(), &[&format!("SELECT {sql} AS d FROM 'w.csv'")])["rows"][0]["d"].clone();
    assert_eq!(of(&format!("avg({YEARS})")), "PT7258118401.5S");
    assert_eq!(of(&format!("sum(CAST({YEARS} AS BIGINT))")), "29032473606000000000");
    assert_eq!(of("count(DISTINCT k) AS n, sum(DISTINCT t - s)"), "PT29032473606S");
    assert_eq!(of("sum(t - s)"), "PT29032473606S", "of seconds there is room");
    assert_eq!(of("sum(INTERVAL '2 months 3 days 4 seconds')"), "8 mons 12 days 16.000000000 secs");
    assert_eq!(of("sum(t - s) FILTER (WHERE k > 7)"), Value::Null);
    assert_eq!(of(&format!("sum({YEARS}) OVER (ORDER BY t ROWS CURRENT ROW)")), "PT7258118400S");
    spans_csv(dir.path(), 4000, true);
    // In between there would be no room.
    assert_eq!(of(&format!("sum({YEARS})")), "-PT2000S");
    let rows = ask(dir.path(), &[&format!("SELECT k, sum({YEARS}) AS d FROM 'w.csv' GROUP BY k ORDER BY k LIMIT 1")]);
    assert_eq!(rows["rows"][0]["d"], "-PT1S");
}

#[test]
fn estimates_of_durations_do_not_wrap() {
    let dir = TempDir::new().unwrap();
    spans_csv(dir.path(), 20_000, false);
    let sampled = ["--ratio", "20%", "--unit", "512", "--seed", "1"];
    let sum = |of: &str| format!("SELECT sum({of}) AS d FROM 'w.csv'");
    let (code, why) = fails(dir.path(), &[&[sum(YEARS).as_str()][..], &sampled].concat());
    assert!(code == 1 && why.contains("overflow: `sum(w.csv.t - w.csv.s)` does not fit"), "{code}, {why}");
    let said = ask(dir.path(), &[&[sum("t - s").as_str()][..], &sampled].concat());
    let seconds = |name: &str| {
        let text = said["rows"][0][name].as_str().expect("a duration");
        text.trim_start_matches("PT").trim_end_matches('S').parse::<f64>().expect("seconds")
    };
    assert!(seconds("d_lo") <= seconds("d") && seconds("d") <= seconds("d_hi"), "{said}");
    assert!((seconds("d") / (20_000.0 * 7_258_118_429.5) - 1.0).abs() < 0.05, "{said}");
    let said = ask(dir.path(), &[&[sum("INTERVAL '2 days'").as_str()][..], &sampled].concat());
    assert_eq!(said["rows"][0]["d"], "40000 days");
    assert!(said["exact_because"].as_str().unwrap().starts_with("a sum of intervals"), "{said}");
}

/// Casts to whole numbers cut as the engine documents it, in samples, too.
#[test]
fn casts_to_whole_numbers_cut_exactly_and_in_samples() {
    let dir = TempDir::new().unwrap();
    let mut text = String::from("x,d,n\n");
    for i in 0..30_000 {
        let (x, n) = if i % 3 == 0 { ("-2.7", i % 2) } else { ("2.7", i % 2) };
        writeln!(text, "{x},{x},{n}").unwrap();
    }
    std::fs::write(dir.path().join("w.csv"), text).unwrap();
    let sampled = ["--ratio", "30%", "--unit", "1024", "--seed", "1"];
    for number in ["x", "CAST(x AS FLOAT)", "CAST(d AS DECIMAL(5, 1))"] {
        let cut = format!("CAST({number} AS INTEGER)");
        let sql = format!("SELECT {cut} AS k, avg({cut}) AS m FROM 'w.csv' WHERE {cut} <> 3 GROUP BY {cut} ORDER BY k");
        let exact = ask(dir.path(), &[&sql])["rows"].clone();
        assert_eq!(exact, serde_json::json!([{"k": -2, "m": -2.0}, {"k": 2, "m": 2.0}]), "{sql}");
        let said = ask(dir.path(), &[&[sql.as_str()][..], &sampled].concat());
        assert_eq!(said["estimated"], true);
        for (row, of_exact) in said["rows"].as_array().unwrap().iter().zip(exact.as_array().unwrap()) {
            assert_eq!((&row["k"], &row["m"]), (&of_exact["k"], &of_exact["m"]), "{sql}");
        }
        assert_eq!(said["rows"].as_array().unwrap().len(), 2);
    }
    let of = |sql: &str| ask(dir.path(), &[&format!("SELECT {sql} AS v")])["rows"][0]["v"].clone();
    assert_eq!(of("CAST(round(2.7) AS INTEGER)"), 3);
    assert_eq!(of("CAST(2.75 AS DECIMAL(3, 1))"), 2.8);
    for (cast, named) in [("CAST('2.7' AS INTEGER)", "2.7"), ("CAST(3e9 AS INTEGER)", "3000000000")] {
        let (code, why) = fails(dir.path(), &[&format!("SELECT {cast}")]);
        assert!(code != 0 && why.contains(named), "{cast}: {code}, {why}");
    }
}
