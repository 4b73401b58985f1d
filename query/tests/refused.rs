//! What is refused: everything that would write, and files that are no tables, each with the fact and the way out.

mod common;

use common::{ask, fails, run};
use std::path::Path;
use tempfile::TempDir;

/// A file in a directory of its own.
fn with_file(name: &str, content: impl AsRef<[u8]>) -> TempDir {
    let dir = TempDir::new().unwrap();
    std::fs::write(dir.path().join(name), content).unwrap();
    dir
}

fn names(at: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        at.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// `EXPLAIN ANALYZE` executes what it explains.
#[test]
fn nothing_is_written_also_below_explain() {
    let dir = with_file("a.csv", "a\n1\n");
    let at = dir.path();
    let copy = "COPY (SELECT 1 AS x) TO 'victim.csv' STORED AS CSV";
    let mut statements: Vec<String> =
        ["", "EXPLAIN ", "EXPLAIN ANALYZE ", "EXPLAIN ANALYZE VERBOSE ", "EXPLAIN FORMAT TREE "]
            .iter()
            .map(|explain| format!("{explain}{copy}"))
            .collect();
    for statement in [
        "COPY (SELECT 1 AS x) TO 'victim.csv'",
        "INSERT INTO 'a.csv' VALUES (2)",
        "INSERT INTO 'a.csv' SELECT a FROM 'a.csv'",
        "UPDATE 'a.csv' SET a = 2",
        "DELETE FROM 'a.csv'",
        "CREATE TABLE x AS SELECT 1",
        "CREATE VIEW x AS SELECT 1",
        "CREATE EXTERNAL TABLE x STORED AS CSV LOCATION 'victim.csv'",
        "INSERT INTO x VALUES (2)",
        "DROP TABLE 'a.csv'",
        "SELECT 1 AS y INTO x",
        "SET datafusion.execution.batch_size = 1",
    ] {
        statements.extend(
            ["", "EXPLAIN ANALYZE ", "EXPLAIN ANALYZE VERBOSE "].map(|explain| format!("{explain}{statement}")),
        );
    }
    for statement in statements {
        let (code, why) = fails(at, &[&statement]);
        assert!(code == 2, "{statement}: {code}, {why}");
        let is_told = why.contains("files are not changed") || why.contains("arser") || why.contains("not supported");
        assert!(is_told, "{statement}: {why}");
        assert_eq!(names(at), ["a.csv"], "{statement}");
        assert_eq!(std::fs::read_to_string(at.join("a.csv")).unwrap(), "a\n1\n", "{statement}");
    }
    for nested in [
        "SELECT * FROM (INSERT INTO 'a.csv' VALUES (2))",
        "WITH x AS (INSERT INTO 'a.csv' VALUES (2) RETURNING a) SELECT * FROM x",
        "EXPLAIN ANALYZE WITH x AS (SELECT 2 AS a) INSERT INTO 'a.csv' SELECT a FROM x",
        "SELECT (INSERT INTO 'a.csv' VALUES (2))",
    ] {
        assert_eq!(fails(at, &[nested]).0, 2, "{nested}");
        assert_eq!(std::fs::read_to_string(at.join("a.csv")).unwrap(), "a\n1\n", "{nested}");
    }
    for allowed in [
        "EXPLAIN SELECT a FROM 'a.csv'",
        "EXPLAIN ANALYZE SELECT a FROM 'a.csv' WHERE a IN (SELECT a FROM 'a.csv')",
        "EXPLAIN ANALYZE VERBOSE SELECT a FROM 'a.csv'",
        "DESCRIBE 'a.csv'",
        "VALUES (1)",
        "WITH x AS (SELECT 1 AS a) SELECT * FROM x",
    ] {
        let output = run(at, &[allowed]);
        assert!(output.status.success(), "{allowed}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// docs/config.md, section 4.
#[test]
fn with_json_errors_and_warnings_are_json() {
    let dir = with_file("zero.csv", b"a\n\0\n");
    for (arguments, exit, name) in [
        (&["SELECT * FROM 'absent.csv'", "--json"][..], 3, "not-found"),
        (&["SELEC 1", "--json"], 2, "usage"),
        (&["SELECT 1", "--ratio", "0", "--json"], 2, "usage"),
        (&["SELECT 1", "--json", "--no-such-option"], 2, "usage"),
        (&["--json"], 2, "usage"),
        (&["SELECT CAST('x' AS INT)", "--json"], 1, "failed"),
    ] {
        let (code, why) = fails(dir.path(), arguments);
        let said: serde_json::Value =
            serde_json::from_str(&why).unwrap_or_else(|e| panic!("{arguments:?}: {e}: {why}"));
        assert_eq!((code, &said["error"]["exit"], &said["error"]["code"]), (exit, &exit.into(), &name.into()), "{why}");
        let message = said["error"]["message"].as_str().unwrap();
        assert!(!message.is_empty() && why.trim_end().lines().count() == 1, "{why}");
    }
    let zero = run(dir.path(), &["SELECT a FROM 'zero.csv'", "--json"]);
    let said: serde_json::Value = serde_json::from_slice(&zero.stderr).expect("one document");
    assert!(said["warning"].as_str().unwrap().contains("has a byte 0"), "{said}");
}

#[test]
fn files_that_are_no_tables_say_what_they_are() {
    for (name, content, words) in [
        ("cr.csv", "a,b\r1,x\r2,y\r", &["carriage return", "tr '\\r' '\\n'"][..]),
        ("blank.csv", "\n", &["only line breaks", "no header"]),
        ("none.jsonl", "{}\n{}\n", &["no columns", "--format text"]),
        ("blank.jsonl", "\n", &["no columns", "--format text"]),
        ("twice.csv", "a,b,a\n1,2,3\n", &["`a` twice", "1 and 3"]),
        ("array.json", "[\n {\"a\": 1},\n {\"a\": 2}\n]\n", &["one object in each line", "byte 0"]),
        ("pretty.json", "{\n  \"a\": 1\n}\n", &["one object in each line", "byte 0"]),
        ("late.jsonl", "{\"a\":1}\n{\"a\":2}\n{\"a\":\n", &["one object in each line", "byte 16"]),
        ("late.csv", "a,b\n1,2\n\n3\n4,5\n", &["byte 9"]),
    ] {
        let dir = with_file(name, content);
        let (_, why) = fails(dir.path(), &[&format!("SELECT count(*) FROM '{name}'")]);
        assert!(words.iter().all(|words| why.contains(words)) && why.contains(name), "{name}: {why}");
    }
}

#[test]
fn a_unit_is_written_as_for_sample() {
    let dir = with_file("a.csv", "a\n1\n");
    let of = |unit: &str| run(dir.path(), &["SELECT count(*) FROM 'a.csv'", "--unit", unit]).status.code();
    assert_eq!(["4096", "64K", "1M", "64MiB"].map(of), [Some(0); 4]);
    assert_eq!(["256", "65M", "K", "-1"].map(of), [Some(2); 4]);
}

/// A byte order mark begins files of some programs.
#[test]
fn json_with_a_byte_order_mark_is_read() {
    let dir = with_file("m.jsonl", "\u{feff}{\"a\":1}\n{\"a\":2}\n");
    assert_eq!(ask(dir.path(), &["SELECT sum(a) AS a FROM 'm.jsonl'"])["rows"][0]["a"], 3);
}

/// In a file of one column a line without anything is a record, as in DuckDB; in others it is none.
#[test]
fn a_blank_line_of_one_column_is_null() {
    for (text, rows, values) in [
        ("a\n1\n\n3\n", 3, 2),
        ("a\n1\n3\n\n\n", 4, 2),
        ("a\n\n\n", 2, 0),
        ("a\r\n1\r\n\r\n3", 3, 2),
        ("a\n\"x\"\n\n\"y\n\nz\"\n\n", 4, 2),
        ("a\n\"x\"\"z\"\r\n\r\n\"y\"\r\n", 3, 2),
        ("\n\na\n1\n", 1, 1),
        ("a,b\n1,2\n\n3,4\n\n", 2, 2),
        ("\na,b\n1,2\n", 1, 1),
    ] {
        let dir = with_file("a.csv", text);
        let said = ask(dir.path(), &["SELECT count(*) AS n, count(a) AS v FROM 'a.csv'"]);
        assert_eq!((&said["rows"][0]["n"], &said["rows"][0]["v"]), (&rows.into(), &values.into()), "{text:?}");
    }
    // Each unit of a sample, too, whatever the cuts are.
    let text = format!("a\n{}", "17\n\n\"x\"\n".repeat(6_000));
    let dir = with_file("a.csv", text);
    let sql = "SELECT count(*) AS n, count(a) AS v FROM 'a.csv'";
    let said = ask(dir.path(), &[sql, "--ratio", "50%", "--unit", "512", "--seed", "1"]);
    assert_eq!(said["estimated"], true);
    let within = |name: &str, truth: f64| (said["rows"][0][name].as_f64().unwrap() / truth - 1.0).abs() < 0.05;
    assert!(within("n", 18_000.0) && within("v", 12_000.0), "{said}");
}
