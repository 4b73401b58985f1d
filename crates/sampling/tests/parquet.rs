//! Parquet: every type as it is shown, nulls, row groups as units, and damage as errors.

use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int32Type, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tessera_sampling::answer::{Amount, Answer, Terms, ask};
use tessera_sampling::engine::Options;
use tessera_sampling::error::Error;
use tessera_sampling::filter::Filter;
use tessera_sampling::format::{Format, Parquet};
use tessera_sampling::layout::Layout;
use tessera_sampling::question::{Aggregate, KeyBy, Question};
use tessera_sampling::schedule::{Schedule, Shares};
use tessera_sampling::source::{LocalFiles, Source};

const SCHEMA: &str = "message requests {
    required int64 id;
    optional binary host (STRING);
    optional double ms;
    required int32 day (DATE);
    required int64 price (DECIMAL(12, 2));
    optional group user { required binary name (STRING); }
    repeated int32 tags;
}";

/// Groups of `rows` rows each; row i has host h{i % 3} or null, and i milliseconds or null.
fn write(path: &Path, groups: u64, rows: u64) {
    let schema = Arc::new(parse_message_type(SCHEMA).unwrap());
    let properties = Arc::new(WriterProperties::builder().set_compression(parquet::basic::Compression::SNAPPY).build());
    let mut writer = SerializedFileWriter::new(std::fs::File::create(path).unwrap(), schema, properties).unwrap();
    for group in 0..groups {
        let ids: Vec<i64> = (group * rows..(group + 1) * rows).map(|i| i as i64).collect();
        let mut out = writer.next_row_group().unwrap();
        let bytes = |text: String| ByteArray::from(text.into_bytes());
        let has = |i: &i64, n: i64| i % n != 0;
        let levels = |n: i64| ids.iter().map(|i| i16::from(has(i, n))).collect::<Vec<i16>>();
        let mut number = 0;
        while let Some(mut column) = out.next_column().unwrap() {
            match number {
                0 => drop(column.typed::<Int64Type>().write_batch(&ids, None, None).unwrap()),
                1 => {
                    let hosts: Vec<_> =
                        ids.iter().filter(|i| has(i, 10)).map(|i| bytes(format!("h{}", i % 3))).collect();
                    column.typed::<ByteArrayType>().write_batch(&hosts, Some(&levels(10)), None).unwrap();
                }
                2 => {
                    let ms: Vec<f64> = ids.iter().filter(|i| has(i, 7)).map(|i| *i as f64).collect();
                    column.typed::<DoubleType>().write_batch(&ms, Some(&levels(7)), None).unwrap();
                }
                3 => {
                    let days: Vec<i32> = ids.iter().map(|i| 20_000 + (*i % 2) as i32).collect();
                    column.typed::<Int32Type>().write_batch(&days, None, None).unwrap();
                }
                4 => {
                    let prices: Vec<i64> = ids.iter().map(|i| 100 * i + 25).collect();
                    column.typed::<Int64Type>().write_batch(&prices, None, None).unwrap();
                }
                5 => {
                    let names: Vec<_> = ids.iter().filter(|i| has(i, 4)).map(|_| bytes("ü".to_string())).collect();
                    column.typed::<ByteArrayType>().write_batch(&names, Some(&levels(4)), None).unwrap();
                }
                _ => {
                    let none = vec![0; ids.len()];
                    column.typed::<Int32Type>().write_batch(&[], Some(&none), Some(&none)).unwrap();
                }
            }
            column.close().unwrap();
            number += 1;
        }
        out.close().unwrap();
    }
    writer.close().unwrap();
}

fn answer(path: PathBuf, question: &Question, amount: Amount) -> Result<Answer, Error> {
    let source: Arc<dyn Source> = Arc::new(LocalFiles::open(&[path], None)?);
    let format: Arc<dyn Format> = Arc::new(Parquet::open(&*source, question.clone().bind())?);
    let layout = Layout::of(&*source, &*format, 4096);
    let schedule =
        if amount == Amount::Exact { Schedule::whole(layout) } else { Schedule::new(layout, Shares::Equal, 1) };
    let terms = Terms { amount, confidence: 0.999, top: 10, drop: 0.1 };
    let options =
        Options { threads: 2, keep_values: question.keeps_values(), seed: 1, tick: Duration::from_millis(50) };
    ask(source, format, schedule, (question, &terms), &options, &mut |_, _| true).map(|(answer, ..)| answer)
}

fn question(aggregate: Aggregate, key: Option<&str>, value: Option<&str>, filter: Option<&str>) -> Question {
    Question {
        aggregate,
        key: key.map(|key| KeyBy::parse(key, false).unwrap()),
        value: value.map(str::to_string),
        filter: filter.map(|filter| Filter::parse(filter).unwrap()),
    }
}

fn keys(answer: &Answer) -> Vec<(String, f64)> {
    let row = |row: &tessera_sampling::answer::Row| {
        (row.key.clone().map_or("NULL".into(), |key| String::from_utf8(key).unwrap()), row.estimate.value)
    };
    let mut keys: Vec<_> = answer.rows.iter().map(row).collect();
    keys.sort_by(|a, b| a.0.cmp(&b.0));
    keys
}

#[test]
fn every_type_is_read_as_it_is_shown() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a.parquet");
    write(&path, 5, 2000);
    let exact = |aggregate, key, value, filter| {
        answer(path.clone(), &question(aggregate, key, value, filter), Amount::Exact).unwrap()
    };
    let count = |want: &dyn Fn(u64) -> bool| (0..10_000u64).filter(|i| want(*i)).count() as f64;
    let hosts = keys(&exact(Aggregate::Count, Some("host"), None, None));
    let of_host = |h: u64| count(&|i| i % 10 != 0 && i % 3 == h);
    assert_eq!(
        hosts,
        [("NULL".into(), 1000.0), ("h0".into(), of_host(0)), ("h1".into(), of_host(1)), ("h2".into(), of_host(2))]
    );
    let ms: f64 = (0..10_000).filter(|i| i % 7 != 0).map(f64::from).sum();
    assert_eq!(exact(Aggregate::Sum, None, Some("ms"), None).total.value, ms);
    let days = keys(&exact(Aggregate::Count, Some("day"), None, Some("day >= '2024-10-04'")));
    assert_eq!(days, [("2024-10-04".into(), 5000.0), ("2024-10-05".into(), 5000.0)]);
    let price = exact(Aggregate::Mean, None, Some("price"), Some("id < 4"));
    assert_eq!(price.total.value, 1.75);
    let names = keys(&exact(Aggregate::Count, Some("user.name"), None, None));
    assert_eq!(names, [("NULL".into(), 2500.0), ("ü".into(), 7500.0)]);
}

#[test]
fn row_groups_are_sampled_and_weighed_by_their_rows() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a.parquet");
    write(&path, 300, 100);
    let found = answer(path, &question(Aggregate::Mean, None, Some("id"), None), Amount::Ratio(0.3)).unwrap();
    assert!(found.total.low < 14_999.5 && 14_999.5 < found.total.high && found.total.claimed, "{:?}", found.total);
    assert!(
        found.total.high - found.total.low > 1000.0,
        "rows of a group are alike, so the interval is wide: {:?}",
        found.total
    );
}

#[test]
fn lists_other_fields_and_damage_are_refused_without_a_hang() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a.parquet");
    write(&path, 3, 1000);
    let refused = |value: &str| {
        answer(path.clone(), &question(Aggregate::Sum, None, Some(value), None), Amount::Exact).unwrap_err().to_string()
    };
    assert!(refused("tags").contains("is a list"), "{}", refused("tags"));
    assert!(refused("speed").contains("has no field `speed`; it has `id`"), "{}", refused("speed"));
    let good = std::fs::read(&path).unwrap();
    std::fs::write(&path, &good[..good.len() / 2]).unwrap();
    assert!(refused("ms").contains("no Parquet file"), "{}", refused("ms"));
    for at in (0..good.len()).step_by(397) {
        let mut bad = good.clone();
        bad[at] ^= 0x55;
        std::fs::write(&path, bad).unwrap();
        // Parquet has no checksums here, so some damage shows as other values; none may hang or end the process.
        drop(answer(path.clone(), &question(Aggregate::Sum, Some("host"), Some("ms"), None), Amount::Exact));
    }
}
