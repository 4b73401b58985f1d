//! Names of columns that would be there twice.

mod common;

use common::{ask, fails};
use serde_json::{Value, json};
use tempfile::TempDir;

fn tables() -> TempDir {
    let dir = TempDir::new().unwrap();
    std::fs::write(dir.path().join("t.csv"), "a,k\n1,p\n2,p\n3,q\n").unwrap();
    std::fs::write(dir.path().join("u.csv"), "a,k\n1,x\n2,y\n").unwrap();
    dir
}

fn names_and_first_row(answer: &Value) -> (Vec<String>, Vec<Value>) {
    let name = |column: &Value| column["name"].as_str().unwrap().to_string();
    let names: Vec<String> = answer["columns"].as_array().unwrap().iter().map(name).collect();
    let row = &answer["rows"][0];
    assert_eq!(row.as_object().unwrap().len(), names.len(), "each column is in the row: {answer}");
    let values = names.iter().map(|name| row[name].clone()).collect();
    (names, values)
}

/// The engine requires unique expression names.
#[test]
fn columns_that_nobody_named_get_different_names() {
    let dir = tables();
    for (sql, names, row) in [
        ("SELECT count(*), COUNT(*) FROM 't.csv'", &["count(*)", "count(*):1"][..], json!([3, 3])),
        ("SELECT k, k, k AS \"K\" FROM 't.csv' ORDER BY k DESC", &["k", "k:1", "K"], json!(["q", "q", "q"])),
        ("SELECT *, a, t.a FROM 't.csv' t ORDER BY a", &["a", "k", "a:1", "a:2"], json!([1, "p", 1, 1])),
        ("SELECT a, CAST(a AS DOUBLE) FROM 't.csv'", &["a", "CAST(t.csv.a AS DOUBLE)"], json!([1, 1.0])),
        ("SELECT sum(a) AS m, sum(a::double) AS n FROM 't.csv'", &["m", "n"], json!([6, 6.0])),
        ("SELECT sum(a) AS m FROM 't.csv' HAVING sum(a::double) > 1 ORDER BY sum(a::float)", &["m"], json!([6])),
        ("SELECT avg(a) OVER () AS m, avg(a::double) OVER () AS n FROM 't.csv'", &["m", "n"], json!([2.0, 2.0])),
        (
            "SELECT k, k, sum(a), sum(a) FROM 't.csv' GROUP BY 1, 2 ORDER BY sum(a), 1",
            &["k", "k:1", "sum(t.csv.a)", "sum(a):1"],
            json!(["p", "p", 3, 3]),
        ),
        (
            "SELECT a, CAST(a AS DOUBLE) AS d, count(*) AS n FROM 't.csv' GROUP BY a, CAST(a AS DOUBLE) ORDER BY a",
            &["a", "d", "n"],
            json!([1, 1.0, 1]),
        ),
        ("SELECT n FROM (SELECT a, a, a + 1 AS n FROM 't.csv') ORDER BY n", &["n"], json!([2])),
        ("SELECT 1 AS x, 2 UNION ALL (SELECT a, a FROM 't.csv' LIMIT 0)", &["x", "Int64(2)"], json!([1, 2])),
    ] {
        let (found, values) = names_and_first_row(&ask(dir.path(), &[sql]));
        assert_eq!((found, Value::from(values)), (names.iter().map(ToString::to_string).collect(), row), "{sql}");
    }
    let explained = ask(dir.path(), &["EXPLAIN SELECT count(*), count(*) FROM 't.csv'"]);
    assert!(explained["rows"][0]["plan"].as_str().unwrap().contains("count(*):1"), "{explained}");
}

/// One of two columns of a name was missing in JSON.
#[test]
fn columns_of_joined_tables_are_all_in_the_answer() {
    let dir = tables();
    for columns in ["*", "x.a, x.k, y.a, y.k"] {
        let sql = format!("SELECT {columns} FROM 't.csv' x JOIN 'u.csv' y ON x.a = y.a ORDER BY x.a");
        let (names, row) = names_and_first_row(&ask(dir.path(), &[&sql]));
        assert_eq!((names.join(" "), Value::from(row)), ("a k a:1 k:1".to_string(), json!([1, "p", 1, "x"])));
    }
}

#[test]
fn names_that_were_given_twice_are_refused() {
    let dir = tables();
    for (sql, name) in [
        ("SELECT a AS x, k AS X FROM 't.csv'", "x"),
        ("SELECT *, upper(k) AS k FROM 't.csv'", "k"),
        ("SELECT a, a + 1 AS a FROM 't.csv'", "a"),
        ("SELECT m FROM (SELECT max(a) AS n, min(a) AS n FROM 't.csv')", "n"),
    ] {
        let (code, why) = fails(dir.path(), &[sql]);
        let named = format!("two columns are named `{name}`");
        assert!(code == 2 && why.contains(&named) && why.contains(&format!("AS {name}_2")), "{sql}: {code}, {why}");
    }
    let sql = "SELECT * EXCLUDE (k), upper(k) AS k FROM 't.csv' ORDER BY a";
    assert_eq!(names_and_first_row(&ask(dir.path(), &[sql])).1, [json!(1), json!("P")]);
    for (sql, words) in [
        ("SELECT z, a, a FROM 't.csv'", "No field named z"),
        ("SELECT a FROM 't.csv' x JOIN 'u.csv' y ON x.a = y.a", "Ambiguous reference to unqualified field a"),
    ] {
        let (code, why) = fails(dir.path(), &[sql]);
        assert!(code == 2 && why.contains(words), "{sql}: {code}, {why}");
    }
}

#[test]
fn columns_with_new_names_have_intervals() {
    let dir = TempDir::new().unwrap();
    let rows: String = (0..20_000).map(|i| format!("{},{i}\n", i % 5)).collect();
    std::fs::write(dir.path().join("w.csv"), format!("k,x\n{rows}")).unwrap();
    let sql = "SELECT k, CAST(k AS DOUBLE), count(*), count(*), sum(x) AS s, sum(CAST(x AS DOUBLE)) AS d FROM 'w.csv' \
               GROUP BY 1, 2 ORDER BY 1";
    let answer = ask(dir.path(), &[sql, "--ratio", "30%", "--unit", "1024", "--seed", "1"]);
    assert_eq!(answer["estimated"], true);
    let row = &answer["rows"][0];
    let of = |name: &str| row[name].as_f64().unwrap_or_else(|| panic!("{name}: {row}"));
    for name in ["count(*)", "count(*):1", "s", "d"] {
        assert!(of(&format!("{name}_lo")) < of(name) && of(name) < of(&format!("{name}_hi")), "{name}: {row}");
    }
    assert_eq!((of("count(*)"), of("CAST(w.csv.k AS DOUBLE)")), (of("count(*):1"), 0.0));
}
