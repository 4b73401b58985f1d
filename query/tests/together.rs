//! Aggregates of one query share what is counted; each must be estimated as if it were asked alone.

mod common;

use common::ask;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use tempfile::TempDir;

const AGGREGATES: [(&str, &str); 9] = [
    ("rows", "count(*)"),
    ("full", "sum(full)"),
    ("mean", "avg(late)"),
    ("middle", "avg(full)"),
    ("total", "sum(late)"),
    ("late", "count(late)"),
    ("twin", "count(full)"),
    ("some", "count(*) FILTER (WHERE full > 7)"),
    ("kept", "sum(full) FILTER (WHERE late IS NULL)"),
];

/// `full` has no nulls. `late` has them from the middle of the file on, and nothing else in the group "empty"; a group is null.
fn table(directory: &Path) {
    let mut text = String::from("key,full,late\n");
    for i in 0u64..60_000 {
        let mixed = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11;
        let key = ["a", "b", "", "empty", "ü"][(mixed % 5) as usize];
        let is_null = key == "empty" || (i > 30_000 && mixed % 7 == 0);
        let late = if is_null { String::new() } else { format!("{}.5", mixed % 100) };
        writeln!(text, "{key},{},{late}", mixed % 13).unwrap();
    }
    std::fs::write(directory.join("rows.csv"), text).unwrap();
}

/// What each group says of a column, and of the ends of its interval.
fn column(answer: &Value, name: &str) -> BTreeMap<String, [String; 3]> {
    let rows = answer["rows"].as_array().unwrap();
    let of = |row: &Value| [name, &format!("{name}_lo"), &format!("{name}_hi")].map(|name| rounded(&row[name]));
    rows.iter().map(|row| (row["key"].to_string(), of(row))).collect()
}

/// Sums are added up in no fixed order.
fn rounded(value: &Value) -> String {
    value.as_f64().map_or_else(|| value.to_string(), |value| format!("{value:.9e}"))
}

fn asked(directory: &Path, aggregates: &[(&str, &str)], (key, condition): (&str, &str), threads: &str) -> Value {
    let list: Vec<String> = aggregates.iter().map(|(name, sql)| format!("{sql} AS {name}")).collect();
    let group = if key.is_empty() { String::new() } else { format!("{key} AS key, ") };
    let by = if key.is_empty() { "" } else { "GROUP BY 1" };
    let sql = format!("SELECT {group}{} FROM 'rows.csv' {condition} {by}", list.join(", "));
    let answer = ask(
        directory,
        &[&sql, "--ratio", "50%", "--drop", "0%", "--seed", "5", "--unit", "4KiB", "--threads", threads],
    );
    assert_eq!(answer["estimated"], true, "{answer}");
    answer
}

#[test]
fn aggregates_asked_together_are_those_asked_alone() {
    let directory = TempDir::new().unwrap();
    table(directory.path());
    let groups = [("key", ""), ("key", "WHERE full <> 3"), ("full % 4", ""), ("", ""), ("", "WHERE late > 10")];
    for from in groups {
        for threads in ["1", "3"] {
            let together = asked(directory.path(), &AGGREGATES, from, threads);
            for aggregate in AGGREGATES {
                let alone = asked(directory.path(), &[aggregate], from, "2");
                let (name, _) = aggregate;
                assert_eq!(column(&together, name), column(&alone, name), "{name} {from:?} with {threads} threads");
            }
            let backwards: Vec<(&str, &str)> = AGGREGATES.into_iter().rev().collect();
            let backwards = asked(directory.path(), &backwards, from, threads);
            for (name, _) in AGGREGATES {
                assert_eq!(column(&together, name), column(&backwards, name), "{name} {from:?}, backwards");
            }
        }
    }
}

#[test]
fn a_group_without_a_value_is_still_a_group() {
    let directory = TempDir::new().unwrap();
    table(directory.path());
    for aggregates in [&[("total", "sum(late)")][..], &[("late", "count(late)"), ("total", "avg(late)")]] {
        let answer = asked(directory.path(), aggregates, ("key", ""), "2");
        let totals = column(&answer, "total");
        assert_eq!(totals.len(), 5, "{answer}");
        assert_eq!(totals["\"empty\""][0], "null", "{answer}");
        assert!(totals.contains_key("null"), "{answer}");
    }
}

/// As where everything is read.
#[test]
fn the_zeros_are_one_group() {
    let directory = TempDir::new().unwrap();
    table(directory.path());
    for keys in ["CASE WHEN full > 6 THEN -0.0 ELSE 0.0 END AS key", "full * -0.0 AS key, key IS NULL AS other"] {
        let groups = if keys.contains("other") { 2 } else { 1 };
        let by = if groups == 2 { "1, 2" } else { "1" };
        let sql = format!("SELECT {keys}, count(*) AS rows FROM 'rows.csv' GROUP BY {by}");
        let answer = ask(directory.path(), &[&sql, "--ratio", "50%", "--unit", "4KiB"]);
        let rows = answer["rows"].as_array().unwrap();
        assert!(rows.len() == groups && answer["estimated"] == true, "{answer}");
        assert!(rows.iter().all(|row| row["key"].as_f64().unwrap().is_sign_positive()), "{answer}");
    }
}

#[test]
fn a_condition_that_nothing_passes_needs_no_sample() {
    let directory = TempDir::new().unwrap();
    table(directory.path());
    let answer = ask(directory.path(), &["SELECT count(*) AS n FROM 'rows.csv' WHERE false", "--ratio", "50%"]);
    assert_eq!((&answer["rows"][0]["n"], &answer["estimated"]), (&0.into(), &false.into()), "{answer}");
}

/// Which groups tie at the end of the largest ones depends on nothing but the sample, so equal seeds read equal units.
#[test]
fn groups_that_tie_are_taken_in_the_order_of_their_keys() {
    let directory = TempDir::new().unwrap();
    let mut text = String::from("key\n");
    (0u64..200_000).for_each(|i| writeln!(text, "{}", i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 & 31).unwrap());
    std::fs::write(directory.path().join("rows.csv"), text).unwrap();
    let sql = "SELECT key, count(*) AS n FROM 'rows.csv' GROUP BY 1";
    let options = ["--error", "15%", "--top", "5", "--unit", "1KiB", "--drop", "0%", "--seed", "4"];
    let units = |threads: &str| {
        let answer = ask(directory.path(), &[&[sql], &options[..], &["--threads", threads]].concat());
        answer["read_units"].as_u64().unwrap()
    };
    let first = units("1");
    for threads in ["1", "2", "3", "4", "5"] {
        assert_eq!(units(threads), first, "{threads} threads");
    }
}
