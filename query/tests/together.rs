//! Aggregates of one query share what is counted; each must be estimated as if it were asked alone.

mod common;

use common::ask;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use tempfile::TempDir;

const AGGREGATES: [(&str, &str); 8] = [
    ("rows", "count(*)"),
    ("full", "sum(full)"),
    ("mean", "avg(late)"),
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
