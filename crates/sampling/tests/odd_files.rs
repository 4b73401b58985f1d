//! Files that are written in odd ways: they are read as DuckDB reads them, or refused in words that help.

use std::path::PathBuf;
use std::sync::Arc;
use tempfile::TempDir;
use tessera_sampling::Error;
use tessera_sampling::answer::{Amount, Answer, Terms, ask};
use tessera_sampling::engine::Options;
use tessera_sampling::format::{Csv, CsvOptions, Format, JsonLines};
use tessera_sampling::layout::Layout;
use tessera_sampling::question::{Aggregate, Bound, Question};
use tessera_sampling::schedule::{Schedule, Shares};
use tessera_sampling::source::{LocalFiles, Source};

type MakeFormat = fn(&dyn Source, Bound) -> Result<Box<dyn Format>, Error>;

fn csv(source: &dyn Source, question: Bound) -> Result<Box<dyn Format>, Error> {
    Ok(Box::new(Csv::open(source, question, CsvOptions::default())?))
}

fn without_header(source: &dyn Source, question: Bound) -> Result<Box<dyn Format>, Error> {
    Ok(Box::new(Csv::open(source, question, CsvOptions { header: false, ..Default::default() })?))
}

fn json(_: &dyn Source, question: Bound) -> Result<Box<dyn Format>, Error> {
    Ok(Box::new(JsonLines::new(question)))
}

fn sum_of(field: Option<&str>) -> Question {
    let aggregate = if field.is_some() { Aggregate::Sum } else { Aggregate::Count };
    Question { aggregate, key: None, value: field.map(str::to_string), filter: None }
}

/// Reads everything in units of so many bytes.
fn exactly(content: &str, make: MakeFormat, question: &Question, unit_bytes: u64) -> Result<Answer, Error> {
    let dir = TempDir::new().expect("a directory");
    let path = dir.path().join("a.csv");
    std::fs::write(&path, content).expect("a file");
    let source: Arc<dyn Source> = Arc::new(LocalFiles::open(&[path], None)?);
    let format: Arc<dyn Format> = make(&*source, question.clone().bind())?.into();
    let schedule = Schedule::new(Layout::of(&*source, &*format, unit_bytes), Shares::Equal, 1);
    let terms = Terms { amount: Amount::Exact, confidence: 0.95, top: 10, drop: 0.0 };
    let options = Options { threads: 2, keep_values: false, seed: 1, tick: std::time::Duration::from_millis(200) };
    ask(source, format, schedule, (question, &terms), &options, &mut |_, _| true).map(|(answer, ..)| answer)
}

#[test]
fn a_blank_line_is_a_record_where_records_have_one_field() {
    for (text, make, records, values) in [
        ("a\n1\n\n3\n", csv as MakeFormat, 3.0, 4.0),
        ("a\n1\n3\n\n\n", csv, 4.0, 4.0),
        ("a\n\n\n", csv, 2.0, 0.0),
        ("a\r\n1\r\n\r\n3", csv, 3.0, 4.0),
        ("a\n\"1\"\n\n\"\"\n\"\"\n", csv, 4.0, 1.0),
        ("\n\na\n1\n", csv, 1.0, 1.0),
        ("\u{feff}a\n\n1\n", csv, 2.0, 1.0),
        ("a,b\n1,2\n\n3,4\n\n", csv, 2.0, 4.0),
        ("\na,b\n1,2\n", csv, 1.0, 1.0),
        ("1\n\n3\n", without_header, 3.0, 4.0),
    ] {
        let field = if text.contains('a') { "a" } else { "1" };
        for unit_bytes in 1..=text.len() as u64 + 1 {
            let of = |field| exactly(text, make, &sum_of(field), unit_bytes).unwrap().total;
            assert_eq!((of(None).value, of(Some(field)).value), (records, values), "{text:?}, {unit_bytes}");
        }
    }
}

#[test]
fn what_is_no_table_is_refused_with_the_fact_and_the_way_out() {
    for (text, make, field, words) in [
        ("a,b\r1,x\r2,y\r", csv as MakeFormat, None, &["carriage return alone", "tr '\\r' '\\n'"][..]),
        ("\u{feff}\"a\"\r1\r", csv, None, &["carriage return alone"]),
        ("1,x\r2,y\r", without_header, None, &["carriage return alone"]),
        ("\n\r\n", csv, None, &["only line breaks"]),
        ("a,b,a\n1,2,3\n", csv, Some("a"), &["`a` twice", "fields 1 and 3"]),
        ("[\n{\"a\":1}\n]\n", json, Some("a"), &["near byte 0", "one object in each line", "jq -c"]),
        ("{\n \"a\": 1\n}\n", json, Some("a"), &["near byte 0", "one object in each line"]),
    ] {
        let refused = exactly(text, make, &sum_of(field), 4096).unwrap_err().to_string();
        assert!(words.iter().all(|words| refused.contains(words)), "{text:?}: {refused}");
    }
    // Only the field that is asked for matters.
    assert_eq!(exactly("a,b,a\n1,2,3\n", csv, &sum_of(Some("b")), 4096).unwrap().total.value, 2.0);
    // A carriage return in quotes, or before the one that ends the line, is no end of the header.
    for text in ["\"a\rb\",c\n1,2\n", "a,c\r\r\n1,2\r\r\n"] {
        assert_eq!(exactly(text, csv, &sum_of(Some("c")), 4096).unwrap().total.value, 2.0, "{text:?}");
    }
}

#[test]
fn json_may_begin_with_a_byte_order_mark() {
    let text = "\u{feff}{\"a\":1}\n{\"a\":2}\n";
    for unit_bytes in 1..=text.len() as u64 {
        assert_eq!(exactly(text, json, &sum_of(Some("a")), unit_bytes).unwrap().total.value, 3.0, "{unit_bytes}");
    }
}

/// As those of `/proc`.
#[test]
fn a_file_that_is_not_as_empty_as_its_file_system_says_is_refused() {
    let path = PathBuf::from("/proc/version");
    if std::fs::metadata(&path).is_ok_and(|meta| meta.len() == 0) {
        let refused = LocalFiles::open(&[path], None).err().expect("it has content").to_string();
        assert!(refused.contains("/proc/version") && refused.contains("copy what it gives into a file"), "{refused}");
    }
}
