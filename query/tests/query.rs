//! The program on local files: exact answers, estimates, and what it refuses.

mod common;

use common::{ask, fails, run};
use datafusion::arrow::array::{
    ArrayRef, Decimal128Array, Float32Array, Float64Array, Int64Array, ListArray, RecordBatch, StringArray, StructArray,
};
use datafusion::arrow::datatypes::Float64Type;
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use serde_json::Value;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

/// Rows of the tables that are sampled.
const ROWS: u64 = 60_000;

/// Row `i` of the sampled tables: a key whose first values are frequent, a number, and a group of neighbours.
fn row(i: u64) -> (u64, f64, u64) {
    let mixed = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11;
    let key = (mixed % 1024).leading_zeros() as u64 - 54;
    (key, (mixed % 1000) as f64 / 10.0, i / 100)
}

fn csv_of_rows(directory: &Path) {
    let mut text = String::from("key,ms,near,note\n");
    for i in 0..ROWS {
        let (key, ms, near) = row(i);
        writeln!(text, "k{key},{ms},{near},\"a \"\"quote\"\", {i}\"").unwrap();
    }
    std::fs::write(directory.join("rows.csv"), text).unwrap();
}

fn parquet_of_rows(directory: &Path) {
    let rows: Vec<(u64, f64, u64)> = (0..ROWS).map(row).collect();
    let keys = StringArray::from_iter_values(rows.iter().map(|(key, ..)| format!("k{key}")));
    let ms = Float64Array::from_iter_values(rows.iter().map(|(_, ms, _)| *ms));
    let near: Int64Array = rows.iter().map(|(.., near)| Some(*near as i64).filter(|near| near % 2 == 0)).collect();
    let columns: [(&str, ArrayRef); 3] = [("near", Arc::new(near)), ("key", Arc::new(keys)), ("ms", Arc::new(ms))];
    parquet_of(&directory.join("rows.parquet"), &columns);
}

fn parquet_of(path: &Path, columns: &[(&str, ArrayRef)]) {
    let columns = columns.iter().map(|(name, column)| (*name, column.clone(), true));
    let batch = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(500)).build();
    let file = std::fs::File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

fn count_of(key: u64) -> usize {
    (0..ROWS).filter(|i| row(*i).0 == key).count()
}

#[test]
fn exact_answers_of_all_formats() {
    let directory = TempDir::new().unwrap();
    let at = directory.path();
    std::fs::write(at.join("a.csv"), "name,n,x\n\"line\nbreak\",1,1.5\nü,2,\n,3,-2\n").unwrap();
    std::fs::write(at.join("b.csv"), "name,n,x\nü,4,2.5\n").unwrap();
    let answer = ask(at, &["SELECT name, sum(n) AS n, count(x) AS c FROM '*.csv' GROUP BY name ORDER BY n"]);
    let expected = serde_json::json!([{"name": "line\nbreak", "n": 1, "c": 1}, {"name": null, "n": 3, "c": 1}, {"name": "ü", "n": 6, "c": 1}]);
    assert_eq!((&answer["rows"], &answer["estimated"]), (&expected, &Value::Bool(false)));
    std::fs::write(at.join("e.jsonl"), "{\"u\":{\"id\":7},\"n\":1}\n\n{\"u\":{\"id\":8},\"n\":2.5}\n{\"n\":null}\n")
        .unwrap();
    let answer = ask(at, &["SELECT u['id'] AS id, n FROM 'e.jsonl' WHERE n > 1"]);
    assert_eq!(answer["rows"], serde_json::json!([{"id": 8, "n": 2.5}]));
    // Types are those of the first 256 KiB.
    let late = format!("{}{{\"x\":1.9}}\n", "{\"x\":1}\n".repeat(40_000));
    std::fs::write(at.join("late.jsonl"), late).unwrap();
    let (code, why) = fails(at, &["SELECT sum(x) FROM 'late.jsonl'"]);
    assert!(code != 0 && why.contains("late.jsonl") && why.contains("1.9"), "{why}");
    std::fs::write(at.join("m.jsonl"), "{\"v\":1,\"b\":true}\n{\"v\":\"x\",\"b\":false}\n").unwrap();
    let answer = ask(at, &["SELECT v, b FROM 'm.jsonl' ORDER BY v", "--text", "b"]);
    assert_eq!(answer["rows"], serde_json::json!([{"v": "1", "b": "true"}, {"v": "x", "b": "false"}]));
    std::fs::write(at.join("t.log"), b"one two\r\nbad \xff\n\nend").unwrap();
    let answer = ask(at, &["SELECT count(*) AS n, max(line) AS m FROM 't.log' WHERE line <> ''"]);
    assert_eq!(answer["rows"], serde_json::json!([{"n": 3, "m": "one two"}]));
    let answer = ask(at, &["SELECT a.name FROM 'a.csv' a JOIN 'b.csv' b ON a.name = b.name", "--error", "1%"]);
    assert_eq!(answer["rows"], serde_json::json!([{"name": "ü"}]));
    assert_eq!(answer["exact_because"], "it has a join");
}

/// Only some files are looked at for types, so each one's header counts.
#[test]
fn csv_files_with_other_columns_are_refused() {
    let directory = TempDir::new().unwrap();
    let at = directory.path();
    for file in 0..50 {
        std::fs::write(at.join(format!("{file:02}.csv")), "a,b\n1,10\n").unwrap();
    }
    std::fs::write(at.join("empty.csv"), "").unwrap();
    assert_eq!(ask(at, &["SELECT sum(a) AS a, sum(b) AS b FROM '*.csv'"])["rows"][0]["b"], 500);
    for other in ["b,a\n10,1\n", "a,c\n1,10\n", "a\n1\n"] {
        std::fs::write(at.join("47.csv"), other).unwrap();
        let (code, message) = fails(at, &["SELECT sum(a) FROM '*.csv'"]);
        assert!(code == 2 && message.contains("`00.csv` and `47.csv` have different columns"), "{other}: {message}");
    }
}

#[test]
fn parquet_gives_its_columns_in_any_order() {
    let directory = TempDir::new().unwrap();
    parquet_of_rows(directory.path());
    let answer = ask(directory.path(), &["SELECT ms, near FROM 'rows.parquet' ORDER BY near DESC, ms LIMIT 1"]);
    // The largest even group; nulls come first in DESC.
    assert_eq!(answer["rows"][0]["near"], Value::Null);
    let answer = ask(
        directory.path(),
        &["SELECT key, count(*) AS n, count(near) AS m, min(ms) AS ms FROM 'rows.parquet' GROUP BY key ORDER BY key"],
    );
    let near = (0..ROWS).filter(|i| row(*i).0 == 1 && row(*i).2.is_multiple_of(2)).count();
    assert_eq!((&answer["rows"][1]["n"], &answer["rows"][1]["m"]), (&count_of(1).into(), &near.into()));
}

/// The intervals of `rows` for the counts of keys 0 to 3 that hold the truth, and their number.
fn holds(answer: &Value) -> (usize, usize) {
    let rows = answer["rows"].as_array().unwrap();
    let of_key = |key: u64| rows.iter().find(|row| row["key"] == format!("k{key}")).expect("a frequent key is seen");
    let is_right = |key: &u64| {
        let row = of_key(*key);
        let end = |name: &str| row[name].as_f64().expect("an interval of a frequent key");
        (end("n_lo")..=end("n_hi")).contains(&(count_of(*key) as f64))
    };
    ((0..4).filter(is_right).count(), 4)
}

/// With fixed seeds, and nothing dropped, samples are the same in each run.
#[test]
fn intervals_hold_the_truth() {
    let directory = TempDir::new().unwrap();
    let at = directory.path();
    csv_of_rows(at);
    parquet_of_rows(at);
    for (file, ratio) in [("rows.csv", "40%"), ("rows.parquet", "50%")] {
        let sql = format!("SELECT key, count(*) AS n, avg(ms) AS mean FROM '{file}' GROUP BY key");
        let (mut right, mut all) = (0, 0);
        for seed in 1..=25 {
            let seed = seed.to_string();
            let answer = ask(at, &[&sql, "--ratio", ratio, "--drop", "0", "--seed", &seed]);
            assert_eq!(answer["estimated"], true);
            let (held, asked) = holds(&answer);
            (right, all) = (right + held, all + asked);
            if seed == "1" {
                assert_eq!(answer, ask_again(at, &sql, ratio, &answer), "{file}: the same seed");
            }
        }
        assert!(right * 100 >= all * 90, "{file}: {right} of {all} intervals hold");
    }
}

/// The same again, without what differs in each run.
fn ask_again(at: &Path, sql: &str, ratio: &str, first: &Value) -> Value {
    let mut again = ask(at, &[sql, "--ratio", ratio, "--drop", "0", "--seed", "1"]);
    for key in ["seconds", "rows"] {
        let of_first = first[key].clone();
        if key == "rows" {
            let sorted = |rows: &Value| {
                let mut rows: Vec<String> =
                    rows.as_array().unwrap().iter().map(|row| format!("{}{}", row["key"], row["n"])).collect();
                rows.sort();
                rows
            };
            assert_eq!(sorted(&again[key]), sorted(&of_first));
        }
        again[key] = of_first;
    }
    again
}

#[test]
fn the_ends_of_intervals_of_decimals_are_rounded_outwards() {
    let directory = TempDir::new().unwrap();
    csv_of_rows(directory.path());
    for seed in ["1", "2", "3", "4", "5", "6"] {
        let row = |sum: &str| {
            let sql = format!("SELECT sum({sum}) AS s FROM 'rows.csv'");
            let answer = ask(directory.path(), &[&sql, "--ratio", "30%", "--seed", seed, "--unit", "2048"]);
            let number = |name: &str| answer["rows"][0][name].to_string().trim_matches('"').parse::<f64>().unwrap();
            (number("s_lo"), number("s_hi"))
        };
        // The numbers are whole.
        let (low, high) = row("CAST(near AS double)");
        for (decimal, step) in [("CAST(near AS decimal(12, 0))", 1.0), ("CAST(near AS decimal(12, 2))", 0.01)] {
            let (found_low, found_high) = row(decimal);
            let is = |found: f64, expected: f64| (found - expected).abs() < step / 100.0;
            let outwards = ((low / step).floor() * step, (high / step).ceil() * step);
            assert!(
                is(found_low, outwards.0) && is(found_high, outwards.1),
                "{decimal}, {seed}: {found_low} {found_high}"
            );
        }
    }
}

#[test]
fn a_promised_error_is_reached() {
    let directory = TempDir::new().unwrap();
    csv_of_rows(directory.path());
    let sql =
        "SELECT key, count(*) AS n, sum(ms) AS s FROM 'rows.csv' WHERE near >= 50 GROUP BY key ORDER BY n DESC LIMIT 2";
    let answer = ask(directory.path(), &[sql, "--error", "8%", "--top", "2", "--seed", "5"]);
    assert_eq!((&answer["estimated"], &answer["reached"]), (&true.into(), &true.into()));
    assert!(answer["read_units"].as_u64() < answer["all_units"].as_u64());
    for row in answer["rows"].as_array().unwrap() {
        for name in ["n", "s"] {
            let of = |end: &str| row[format!("{name}{end}")].as_f64().unwrap();
            assert!((of("_hi") - of("_lo")) / 2.0 <= 0.081 * of(""), "{row}");
        }
    }
    let answer = ask(directory.path(), &[sql, "--error", "0.01%"]);
    assert_eq!(answer["exact_because"], "a sample would need nearly everything");
    assert_eq!(answer["rows"][0].as_object().unwrap().len(), 3, "exact answers have no intervals");
}

#[test]
fn more_groups_than_a_sample_can_tell_of_are_counted_exactly_after_the_pilot() {
    let directory = TempDir::new().unwrap();
    let rows: String = (0..60_000).map(|i| format!("g{i},{}\n", if i % 3 == 0 { "hot" } else { "cold" })).collect();
    std::fs::write(directory.path().join("many.csv"), format!("each,few\n{rows}")).unwrap();
    let answer_of = |key: &str, more: &[&str]| {
        let sql = format!("SELECT {key}, count(*) AS n FROM 'many.csv' GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 1");
        let arguments = [&[sql.as_str(), "--error", "5%", "--unit", "512", "--seed", "1"], more].concat();
        ask(directory.path(), &arguments)
    };
    let answer = answer_of("each", &[]);
    assert_eq!(answer["rows"], serde_json::json!([{"each": "g0", "n": 1}]));
    let reason = answer["exact_because"].as_str().unwrap();
    // More units than those of the pilot may have arrived meanwhile.
    assert!(reason.starts_with("no group is in more than 1 of the first "), "{reason}");
    let units: u64 = reason.split(' ').nth(10).unwrap().parse().unwrap();
    assert!((60..480).contains(&units), "{reason}");
    assert_eq!(answer_of("few", &[])["estimated"], true);
    assert_eq!(answer_of("each", &["--top", "0"])["estimated"], true, "nothing is promised of groups");
}

#[test]
fn what_cannot_be_estimated_is_executed_exactly_and_says_why() {
    let directory = TempDir::new().unwrap();
    let at = directory.path();
    csv_of_rows(at);
    for (sql, reason) in [
        ("SELECT max(ms) FROM 'rows.csv'", "max cannot be estimated"),
        ("SELECT count(DISTINCT key) FROM 'rows.csv'", "a sample only bounds distinct values"),
        ("SELECT count(*) + 1 AS n FROM 'rows.csv'", "`n` computes with an estimate"),
        ("SELECT key FROM 'rows.csv' GROUP BY key", "it has no aggregate but the list of groups"),
        ("SELECT count(*) FROM 'rows.csv' a JOIN 'rows.csv' b ON a.note = b.note", "it has a join"),
        ("SELECT max(n) FROM (SELECT count(*) AS n FROM 'rows.csv' GROUP BY key)", "max cannot be estimated"),
        (
            "SELECT sum(n) FROM (SELECT count(*) AS n FROM 'rows.csv' GROUP BY key)",
            "it has an aggregate of an aggregate",
        ),
        ("SELECT count(*) FROM (SELECT * FROM 'rows.csv' LIMIT 10)", "it has a limit below the aggregate"),
        ("SELECT count(*) FROM 'rows.csv' WHERE near < (SELECT avg(near) FROM 'rows.csv')", "it has a subquery"),
        (
            "SELECT k, c, (SELECT max(key) FROM 'rows.csv' u WHERE u.near = t.c) AS m FROM \
             (SELECT key AS k, count(*) AS c FROM 'rows.csv' GROUP BY key) t",
            "it has a subquery",
        ),
        ("SELECT key, ms FROM 'rows.csv' LIMIT 1", "it has no aggregate"),
    ] {
        let answer = ask(at, &[sql, "--ratio", "10%"]);
        assert_eq!(answer["estimated"], false, "{sql}");
        assert!(answer["exact_because"].as_str().unwrap().starts_with(reason), "{sql}: {}", answer["exact_because"]);
    }
}

/// Projections, filters and conditions on groups around an aggregate; an interval follows its estimate.
#[test]
fn intervals_follow_their_estimates_to_the_top() {
    let directory = TempDir::new().unwrap();
    csv_of_rows(directory.path());
    let sql = "SELECT t.c, t.k FROM (SELECT upper(w) AS k, count(*) FILTER (WHERE ms >= 50) AS c FROM \
               (SELECT key AS w, ms + 1 AS ms FROM 'rows.csv') s GROUP BY 1 HAVING count(*) > 1000) t ORDER BY t.c DESC";
    let answer = ask(directory.path(), &[sql, "--ratio", "30%", "--seed", "2"]);
    let first = answer["rows"][0].as_object().unwrap();
    assert_eq!(first.keys().collect::<Vec<_>>(), ["c", "c_hi", "c_lo", "k"]);
    assert_eq!(first["k"], "K0");
    let truth = (0..ROWS).filter(|i| row(*i).0 == 0 && row(*i).1 + 1.0 >= 50.0).count() as f64;
    assert!((first["c"].as_f64().unwrap() - truth).abs() < 0.1 * truth, "{first:?}, {truth}");
    assert!(answer["rows"].as_array().unwrap().len() < 10, "rare groups do not meet the condition");
    let answer =
        ask(directory.path(), &["SELECT sum(ms) AS s, avg(ms) AS a FROM 'rows.csv' WHERE ms < 0", "--ratio", "30%"]);
    let none = serde_json::json!([{"s": null, "s_lo": null, "s_hi": null, "a": null, "a_lo": null, "a_hi": null}]);
    assert_eq!(answer["rows"], none, "no row: no sum and no mean");
}

#[test]
fn a_column_that_is_named_as_an_end_of_an_interval_is_refused() {
    let directory = TempDir::new().unwrap();
    let at = directory.path();
    csv_of_rows(at);
    for (sql, column, estimate) in [
        ("SELECT key AS n_lo, count(*) AS n FROM 'rows.csv' GROUP BY 1", "n_lo", "n"),
        ("SELECT count(*) AS n, sum(ms) AS n_hi FROM 'rows.csv'", "n_hi", "n"),
        ("SELECT n FROM (SELECT key AS n_hi, count(*) AS n FROM 'rows.csv' GROUP BY 1)", "n_hi", "n"),
        ("SELECT n AS m, m_lo FROM (SELECT key AS m_lo, count(*) AS n FROM 'rows.csv' GROUP BY 1) t", "m_lo", "m"),
    ] {
        let (code, why) = fails(at, &[sql, "--ratio", "30%"]);
        let named = format!(
            "`{column}` is the name of an end of the interval of `{estimate}`: {estimate}_lo and {estimate}_hi"
        );
        assert!(code == 2 && why.contains(&named), "{sql}: {code}, {why}");
        assert_eq!(ask(at, &[sql])["estimated"], false, "exactly there are no intervals");
    }
    let others = "SELECT key AS lo, count(*) AS n, sum(ms) AS s_lo FROM 'rows.csv' GROUP BY 1";
    assert_eq!(ask(at, &[others, "--ratio", "30%"])["estimated"], true);
}

#[test]
fn errors_name_the_fact_and_the_way_out() {
    let directory = TempDir::new().unwrap();
    let at = directory.path();
    let head: String = (0..40_000).map(|i| format!("{i},abc\n")).collect();
    std::fs::write(at.join("types.csv"), format!("n,s\n{head}x,abc\n")).unwrap();
    std::fs::write(at.join("fields.csv"), "a,b\n1,2\n3\n").unwrap();
    std::fs::write(at.join("bad.parquet"), "PAR1 is not enough").unwrap();
    std::fs::write(at.join("one.csv"), "a\n1\n").unwrap();
    std::fs::create_dir(at.join("odd")).unwrap();
    std::fs::write(at.join("odd/a.csv.gz"), b"\x1f\x8b\x08\x00 and more").unwrap();
    std::fs::write(at.join("odd/zero.csv"), b"a\n\0\n").unwrap();
    let zero = run(at, &["SELECT a FROM 'odd/zero.csv'"]);
    assert!(
        zero.status.success() && String::from_utf8_lossy(&zero.stderr).contains("warning: `odd/zero.csv` has a byte 0")
    );
    for (arguments, code, words) in [
        (&["SELECT sum(n) FROM 'types.csv'"][..], 1, "--text COLUMN"),
        (&["SELECT a FROM 'fields.csv'"], 1, "fields.csv"),
        (&["SELECT * FROM 'bad.parquet'"], 1, "no Parquet file"),
        (&["SELECT count(*) FROM 'odd/a.csv.gz'"], 2, "is compressed (gzip), and only plain files are read"),
        (&["SELECT count(*) FROM 'odd/a.csv.gz'", "--format", "csv"], 2, "decompress it first: gunzip odd/a.csv.gz"),
        (&["SELECT count(*) FROM 'odd/a.csv.gz'", "--format", "parquet"], 1, "no Parquet file"),
        (&["SELECT * FROM 'absent.csv'"], 3, "`absent.csv` does not exist"),
        (&["SELECT * FROM 'absent*.csv'"], 3, "no files in absent*.csv"),
        (&["SELECT * FROM '*'"], 2, "different formats"),
        (&["SELECT b FROM 'one.csv'"], 2, "No field named b"),
        (&["SELEC 1"], 2, "SELEC"),
        (&["DELETE FROM 'one.csv'"], 2, "only SELECT"),
        (&["SELECT count(*) FROM 'one.csv' TABLESAMPLE BERNOULLI (10)"], 2, "--ratio or --error"),
        (&["SELECT a FROM 'one.csv'", "--text", "c"], 2, "there is a"),
        (&["SELECT 1", "--ratio", "0"], 2, "above 0"),
        (&["SELECT 1", "--ratio", "1%", "--error", "1%"], 2, "cannot be used with"),
        (&["SELECT * FROM 'tess:/x'", "--manager", "127.0.0.1:1", "--wait", "1"], 4, "check that the manager runs"),
    ] {
        let (found, said) = fails(at, arguments);
        assert!(found == code && said.contains(words), "{arguments:?}: {found}, {said}");
    }
    let answer = ask(at, &["SELECT count(n) AS n, max(n) AS m FROM 'types.csv'", "--text", "n"]);
    assert_eq!(answer["rows"], serde_json::json!([{"n": 40_001, "m": "x"}]));
}

/// The engine's own sum adds 64 bits and wraps.
#[test]
fn sums_of_whole_numbers_do_not_wrap() {
    let dir = TempDir::new().unwrap();
    std::fs::write(dir.path().join("w.csv"), format!("a,b\n{0},1\n{0},2\n-{0},3\n", i64::MAX)).unwrap();
    let of = |sql: &str, more: &[&str]| ask(dir.path(), &[&[sql], more].concat())["rows"][0]["s"].clone();
    assert_eq!(of("SELECT sum(a) AS s FROM 'w.csv' WHERE b < 3", &[]), "18446744073709551614".parse::<u64>().unwrap());
    assert_eq!(of("SELECT sum(a) AS s FROM 'w.csv'", &[]), i64::MAX);
    assert_eq!(of("SELECT sum(b) AS s FROM 'w.csv'", &[]), 6);
    assert_eq!(of("SELECT sum(a) + sum(a) AS s FROM 'w.csv' WHERE b < 3", &[]), "36893488147419103228");
    assert_eq!(of("SELECT b AS k, sum(a) AS s FROM 'w.csv' GROUP BY b ORDER BY s LIMIT 1", &[]), -i64::MAX);
    assert_eq!(of("SELECT sum(DISTINCT a) AS s FROM 'w.csv'", &[]), 0);
}

/// The engine's own sum of decimals wraps, too, and gives digits that a JSON number does not have.
#[test]
fn sums_of_decimals_do_not_wrap() {
    let dir = TempDir::new().unwrap();
    std::fs::write(dir.path().join("w.csv"), "k\n1\n1\n2\n2\n").unwrap();
    let large = "90000000000000000000000000000000000000";
    let of = |argument: &str, more: &str| {
        let table = format!("(SELECT k, {argument} AS x FROM 'w.csv')");
        ask(dir.path(), &[&format!("SELECT sum(x) AS s FROM {table} {more}")])["rows"][0]["s"].clone()
    };
    let decimal = format!("CAST('{large}' AS DECIMAL(38, 0))");
    assert_eq!(of(&decimal, ""), "360000000000000000000000000000000000000");
    assert_eq!(of(&decimal, "GROUP BY k"), "180000000000000000000000000000000000000");
    assert_eq!(of(&decimal, "HAVING sum(x) > sum(k) AND sum(x) + 1 > 4"), "360000000000000000000000000000000000000");
    assert_eq!(
        of("CAST('-1234567890123456789012345678901234567.5' AS DECIMAL(38, 1))", ""),
        "-4938271560493827156049382715604938270.0"
    );
    assert_eq!(of("CAST(999999999 AS DECIMAL(9, 0))", ""), 3_999_999_996_u64);
    assert_eq!(of("CAST(0.25 AS DECIMAL(9, 2))", ""), 1.0);
    let twice =
        format!("SELECT sum(s) AS s FROM (SELECT sum(x) AS s FROM (SELECT k, {decimal} AS x FROM 'w.csv') GROUP BY k)");
    assert_eq!(ask(dir.path(), &[&twice])["rows"][0]["s"], "360000000000000000000000000000000000000");
    let (code, why) = fails(dir.path(), &["SELECT sum(CAST(k AS DECIMAL(76, 0))) FROM 'w.csv'"]);
    assert!(code == 2 && why.contains("CAST(x AS DECIMAL(66, 0))"), "{code}: {why}");
    let (code, why) = fails(dir.path(), &["SELECT sum(CAST(k AS TEXT)) FROM 'w.csv'"]);
    assert!(code == 2 && why.contains("Function 'sum' does not take values of this type"), "{code}: {why}");
}

/// The engine's own arithmetic wraps.
#[test]
fn arithmetic_that_overflows_is_an_error() {
    let dir = TempDir::new().unwrap();
    std::fs::write(dir.path().join("w.csv"), format!("x,k\n{},0\n1,1\n", i64::MAX)).unwrap();
    std::fs::write(dir.path().join("low.csv"), format!("x\n{}\n", i64::MIN)).unwrap();
    let rows: String = (0..20_000).map(|i| format!("{},{i}\n", i64::MAX)).collect();
    std::fs::write(dir.path().join("many.csv"), format!("x,k\n{rows}")).unwrap();
    for (sql, named) in [
        ("SELECT x + 1 FROM 'w.csv'", "`x + 1`"),
        ("SELECT sum(x * x) FROM 'w.csv'", "`x * x`"),
        ("SELECT count(*) FROM 'w.csv' WHERE x + 1 > 0", "`x + 1`"),
        ("SELECT count(*) FILTER (WHERE x + 1 > 0) FROM 'w.csv'", "`x + 1`"),
        ("SELECT x + 1 AS k, count(*) FROM 'w.csv' GROUP BY 1", "`x + 1`"),
        ("SELECT count(*) AS n FROM 'w.csv' GROUP BY k HAVING max(x) * 2 > 1", "* 2`"),
        ("SELECT x FROM 'w.csv' ORDER BY x * 3", "`x * 3`"),
        ("SELECT a.k FROM 'w.csv' a JOIN 'w.csv' b ON a.x + 1 = b.x", "`x + 1`"),
        ("SELECT a.k FROM 'w.csv' a LEFT JOIN 'w.csv' b ON a.k = b.k AND a.x + b.x > 0", "`x + x`"),
        ("SELECT k FROM 'w.csv' a WHERE k IN (SELECT b.k FROM 'w.csv' b WHERE b.x + 1 > 0)", "`x + 1`"),
        ("SELECT sum(x - -1) OVER (ORDER BY k) FROM 'w.csv'", "`x - -1`"),
        ("SELECT CASE WHEN k = 0 THEN abs(x + 1) ELSE 0 END FROM 'w.csv'", "`x + 1`"),
        ("SELECT (k + 2) * x FROM 'w.csv'", "`(k + 2) * x`"),
        ("SELECT -x FROM 'low.csv'", "`-x`"),
        ("SELECT -(x - 1) FROM 'low.csv'", "`x - 1`"),
        ("SELECT 9223372036854775807 + 1", "`9223372036854775807 + 1`"),
        ("SELECT CAST(2000000000 AS INT) + CAST(x AS INT) FROM 'w.csv' WHERE k = 1 AND x * 2000000000 > 1", "overflow"),
    ] {
        let (code, why) = fails(dir.path(), &[sql]);
        assert!(code == 1 && why.contains("overflow") && why.contains(named), "{sql}: {code}, {why}");
    }
    let (code, why) = fails(dir.path(), &["SELECT sum(x + k) FROM 'many.csv'", "--ratio", "30%"]);
    assert!(code == 1 && why.contains("overflow: `x + k` does not fit 64 bits"), "{why}");
    let (code, why) = fails(dir.path(), &["SELECT count(*) FROM 'many.csv' WHERE x + 1 > 0", "--error", "1%"]);
    assert!(code == 1 && why.contains("overflow: `x + 1` does not fit 64 bits (9223372036854775807 + 1)"), "{why}");
}

#[test]
fn arithmetic_that_fits_is_as_before() {
    let dir = TempDir::new().unwrap();
    std::fs::write(dir.path().join("w.csv"), "x,k,d\n7,2,2024-03-01\n,3,2024-03-04\n-5,4,2024-03-09\n").unwrap();
    std::fs::write(dir.path().join("max.csv"), format!("x\n{}\n", i64::MAX)).unwrap();
    let of = |sql: &str| {
        let answer = ask(dir.path(), &[sql]);
        let names: Vec<String> = answer["columns"].as_array().unwrap().iter().map(|c| c["name"].to_string()).collect();
        (names.join(","), answer["rows"].clone())
    };
    let (names, rows) = of("SELECT x + 1, -x, x * k - 1, sum(x - 1) OVER () FROM 'w.csv' ORDER BY k");
    let table = "w.csv";
    let expected = format!(
        "\"{table}.x + Int64(1)\",\"(- {table}.x)\",\"{table}.x * {table}.k - Int64(1)\",\"sum({table}.x - Int64(1)) \
         ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING\""
    );
    assert_eq!(names, expected);
    let first: Vec<&Value> = rows[0].as_object().unwrap().values().collect();
    assert_eq!(first, [&Value::from(-7), &Value::from(0), &Value::from(13), &Value::from(8)], "{rows}");
    assert_eq!(of("SELECT CAST(x AS DECIMAL(38, 0)) + 1 AS y FROM 'max.csv'").1[0]["y"], 9_223_372_036_854_775_808_u64);
    let (_, rows) = of("SELECT k + 1 AS a, count(*) AS n FROM 'w.csv' WHERE d + INTERVAL '1 day' > d GROUP BY k + 1 \
                        HAVING sum(k + 1) > 3 ORDER BY k + 1");
    assert_eq!(rows, serde_json::json!([{"a": 4, "n": 1}, {"a": 5, "n": 1}]));
    let (_, rows) =
        of("SELECT k - row_number() OVER (ORDER BY k) AS a, x + NULL AS b, d - DATE '2024-03-01' AS c, x / 2 AS h, \
                        x + 0.5 AS f FROM 'w.csv' ORDER BY k LIMIT 1");
    assert_eq!(rows, serde_json::json!([{"a": 1, "b": null, "c": 0, "h": 3, "f": 7.5}]));
}

#[test]
fn long_sums_are_followed() {
    let dir = TempDir::new().unwrap();
    std::fs::write(dir.path().join("w.csv"), "a\n1\n2\n").unwrap();
    let said = ask(dir.path(), &[&format!("SELECT sum({}) AS n FROM 'w.csv'", vec!["a"; 300].join(" + "))]);
    assert_eq!(said["rows"][0]["n"], 900);
}

/// A condition of thousands of terms is followed by recursion.
#[test]
fn long_conditions_are_followed() {
    let dir = TempDir::new().unwrap();
    std::fs::write(dir.path().join("w.csv"), "a\n1\n2\n").unwrap();
    let terms: Vec<String> = (0..1_500).map(|i| format!("a <> {}", i + 2)).collect();
    let said = ask(dir.path(), &[&format!("SELECT count(*) AS n FROM 'w.csv' WHERE {}", terms.join(" AND "))]);
    assert_eq!(said["rows"][0]["n"], 1);
}

#[test]
fn a_count_of_what_was_not_seen_is_no_zero() {
    let dir = TempDir::new().unwrap();
    csv_of_rows(dir.path());
    let sql = "SELECT count(*) AS n, sum(ms) AS s FROM 'rows.csv' WHERE key = 'k99'";
    let said = ask(dir.path(), &[sql, "--ratio", "5%", "--unit", "4096", "--seed", "1"]);
    assert_eq!((&said["rows"][0]["n"], &said["estimated"]), (&Value::Null, &Value::Bool(true)), "{said}");
    assert_eq!(ask(dir.path(), &[sql])["rows"][0]["n"], 0, "exactly");
}

/// Rows of each group were seen, but none that the filter passes.
#[test]
fn a_filtered_count_of_a_group_of_which_nothing_was_seen_is_no_zero() {
    let dir = TempDir::new().unwrap();
    csv_of_rows(dir.path());
    let sql = "SELECT key, count(*) AS n, count(*) FILTER (WHERE ms > 1000) AS f FROM 'rows.csv' GROUP BY key";
    let said = ask(dir.path(), &[sql, "--ratio", "5%", "--unit", "4096", "--seed", "1"]);
    let rows = said["rows"].as_array().unwrap();
    assert!(said["estimated"] == true && rows.len() > 3, "{said}");
    for row in rows {
        assert!(row["n"].as_f64().unwrap() > 0.0, "{row}");
        assert_eq!((&row["f"], &row["f_lo"], &row["f_hi"]), (&Value::Null, &Value::Null, &Value::Null), "{row}");
    }
    let exact = ask(dir.path(), &[sql]);
    assert!(exact["rows"].as_array().unwrap().iter().all(|row| row["f"] == 0), "{exact}");
}

/// NULL says that there is no value; NaN and infinity are values, of samples as of all rows.
#[test]
fn estimates_that_are_no_numbers_are_not_null() {
    let dir = TempDir::new().unwrap();
    let row = |i: usize| format!("{},{},{}\n", ["NaN", "1.5"][i % 2], ["inf", "2"][i % 2], i % 2);
    std::fs::write(dir.path().join("f.csv"), format!("x,y,k\n{}", (0..20_000).map(row).collect::<String>())).unwrap();
    let sql = "SELECT sum(x) AS s, avg(x) AS a, sum(y) AS i, sum(x) FILTER (WHERE k > 7) AS none FROM 'f.csv'";
    let text = String::from_utf8(run(dir.path(), &[sql, "--ratio", "30%"]).stdout).unwrap();
    let words: Vec<&str> = text.split(|c: char| !c.is_alphanumeric()).collect();
    let count = |word: &str| words.iter().filter(|found| found.eq_ignore_ascii_case(word)).count();
    assert!(count("nan") == 2 && count("inf") == 1, "{text}");
}

#[test]
fn what_would_steer_a_terminal_is_escaped() {
    let dir = TempDir::new().unwrap();
    std::fs::write(dir.path().join("w.csv"), "a\n\u{1b}]0;title\u{7}\n").unwrap();
    let text = String::from_utf8(run(dir.path(), &["SELECT a FROM 'w.csv'"]).stdout).unwrap();
    assert!(text.contains("\\u{1b}]0;title\\u{7}") && !text.contains('\u{1b}'), "{text:?}");
}

/// The engine compares floating-point numbers by their bits in places.
#[test]
fn a_negative_zero_is_zero() {
    let dir = TempDir::new().unwrap();
    let at = dir.path();
    std::fs::write(at.join("z.csv"), "x,y\n-0.0,1\n0.0,2\n1.5,3\n-0,4\n").unwrap();
    let numbers = [-0.0, 0.0, 1.5, -0.0];
    let json = |(x, y)| format!("{{\"x\":{x:?},\"y\":{y},\"s\":{{\"x\":{x:?}}},\"l\":[{x:?}]}}\n");
    std::fs::write(at.join("z.jsonl"), numbers.into_iter().zip(1..).map(json).collect::<String>()).unwrap();
    let x: ArrayRef = Arc::new(Float64Array::from(numbers.to_vec()));
    let s: ArrayRef = Arc::new(StructArray::try_from(vec![("x", x.clone())]).unwrap());
    let l = ListArray::from_iter_primitive::<Float64Type, _, _>(numbers.map(|x| Some([Some(x)])));
    let y: ArrayRef = Arc::new(Int64Array::from_iter_values(1..=4));
    let f: ArrayRef = Arc::new(Float32Array::from(numbers.map(|x| x as f32).to_vec()));
    parquet_of(&at.join("z.parquet"), &[("x", x), ("y", y), ("f", f), ("s", s), ("l", Arc::new(l))]);
    for (table, column) in [
        ("z.csv", "x"),
        ("z.jsonl", "x"),
        ("z.jsonl", "s['x']"),
        ("z.jsonl", "l[1]"),
        ("z.parquet", "x"),
        ("z.parquet", "f"),
        ("z.parquet", "s['x']"),
        ("z.parquet", "l[1]"),
    ] {
        let of = |sql: &str| {
            ask(at, &[&format!("SELECT {sql} FROM (SELECT {column} AS x, y FROM '{table}')")])["rows"].clone()
        };
        for (sql, expected) in [
            ("count(*) FILTER (WHERE x IN (0, 7, 8, 9)) AS n", 3),
            ("count(*) FILTER (WHERE x IN (0, 7, 8, 9, 10, 11, 12, 13)) AS n", 3),
            ("count(*) FILTER (WHERE x < 0) AS n", 0),
            ("count(DISTINCT x) + 0 * count(DISTINCT y) AS n", 2),
            ("count(nullif(x, 0.0)) AS n", 1),
        ] {
            assert_eq!(of(sql)[0]["n"], expected, "{table}, {column}: {sql}");
        }
        for window in ["count(*) OVER (PARTITION BY x)", "4 - rank() OVER (ORDER BY x DESC)"] {
            let rows = of(&format!("{window} AS w, y"));
            let mut rows: Vec<_> =
                rows.as_array().unwrap().iter().map(|row| (row["y"].as_u64(), row["w"].as_i64())).collect();
            rows.sort_unstable();
            let expected = if window.starts_with('c') { [3, 3, 1, 3] } else { [2, 2, 3, 2] };
            assert_eq!(
                rows.iter().map(|(_, w)| w.unwrap()).collect::<Vec<_>>(),
                expected,
                "{table}, {column}: {window}"
            );
        }
    }
}

/// A plan and its execution differ in whether the column may be null.
#[test]
fn an_aggregate_of_a_case_with_a_number_is_executed() {
    let dir = TempDir::new().unwrap();
    let d = Decimal128Array::from(vec![125, 9_000, 300]).with_precision_and_scale(12, 2).unwrap();
    let n: ArrayRef = Arc::new(Int64Array::from(vec![Some(7), Some(80), None]));
    parquet_of(&dir.path().join("m.parquet"), &[("d", Arc::new(d)), ("n", n)]);
    let inner = "SELECT CASE WHEN d > n THEN n ELSE 50 END AS w, d FROM 'm.parquet'";
    let answer = ask(dir.path(), &[&format!("SELECT max(w) AS m, min(w) AS l, sum(w) AS s FROM ({inner})")]);
    assert_eq!(answer["rows"], serde_json::json!([{"m": 80, "l": 50, "s": 180}]));
    let answer = ask(dir.path(), &[&format!("SELECT w, count(*) AS n FROM ({inner}) GROUP BY w ORDER BY w")]);
    assert_eq!(answer["rows"], serde_json::json!([{"w": 50, "n": 2}, {"w": 80, "n": 1}]));
}

/// Types are those of the first 256 KiB.
#[test]
fn an_error_names_the_byte_of_its_record() {
    let dir = TempDir::new().unwrap();
    let at = dir.path();
    let good = "1,\"a\n\"\"b\"\"\"\n\n".repeat(60_000);
    let (csv, json) = (format!("x,t\n{good}"), "{\"x\":1}\n\n".repeat(600_000));
    std::fs::write(at.join("late.csv"), format!("{csv}1.9,c\n{good}y,d\n")).unwrap();
    std::fs::write(at.join("late.jsonl"), format!("{json}{{\"x\":1.9}}\n{{\"x\":2}}\n")).unwrap();
    for (file, byte) in [("late.csv", csv.len()), ("late.jsonl", json.len())] {
        let (code, why) = fails(at, &[&format!("SELECT sum(x) FROM '{file}'")]);
        assert!(code != 0 && why.contains("1.9") && why.contains(&byte.to_string()), "{byte}: {why}");
    }
}

/// The mean of a constant is the same in each unit.
#[test]
fn groups_with_some_intervals_are_not_said_to_have_none() {
    let dir = TempDir::new().unwrap();
    csv_of_rows(dir.path());
    let sql = "SELECT key, count(*) AS n, avg(near * 0 + 1) AS one FROM 'rows.csv' WHERE ms > 1 GROUP BY key HAVING count(*) > 1000";
    let output = run(dir.path(), &[sql, "--ratio", "30%", "--seed", "1"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let number_of = |what: &str| -> u64 {
        let line = said.lines().find(|line| line.contains(what)).unwrap_or_else(|| panic!("{what}: {said}"));
        line.split(' ').next().unwrap().parse().unwrap()
    };
    let (none, some) = (number_of("groups have no interval"), number_of("groups lack the interval of some column"));
    assert!(some >= 4 && none > 0 && none + some <= 11, "{said}");
}
