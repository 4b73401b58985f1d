//! Questions to real files: exact answers equal those of a simple reader, whatever the cuts are; samples cover the truth.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tessera_sampling::answer::{Amount, Answer, Terms, ask};
use tessera_sampling::engine::{Options, Progress};
use tessera_sampling::error::Error;
use tessera_sampling::estimate::Estimate;
use tessera_sampling::filter::Filter;
use tessera_sampling::format::{Csv, CsvOptions, Format, JsonLines, Text};
use tessera_sampling::layout::Layout;
use tessera_sampling::question::{Aggregate, Bound, KeyBy, Question};
use tessera_sampling::schedule::{Schedule, Shares};
use tessera_sampling::source::{DiskSpeed, LocalFiles, PlayedDisks, Source, measure_speeds};

fn question(aggregate: Aggregate, key: Option<&str>, value: Option<&str>, filter: Option<&str>) -> Question {
    Question {
        aggregate,
        key: key.map(|key| KeyBy::parse(key, true).unwrap()),
        value: value.map(str::to_string),
        filter: filter.map(|filter| Filter::parse(filter).unwrap()),
    }
}

type MakeFormat = fn(&dyn Source, Bound) -> Result<Box<dyn Format>, Error>;

fn text(_: &dyn Source, question: Bound) -> Result<Box<dyn Format>, Error> {
    Ok(Box::new(Text::new(question)?))
}

fn csv(source: &dyn Source, question: Bound) -> Result<Box<dyn Format>, Error> {
    Ok(Box::new(Csv::open(source, question, CsvOptions::default())?))
}

fn json(_: &dyn Source, question: Bound) -> Result<Box<dyn Format>, Error> {
    Ok(Box::new(JsonLines::new(question)))
}

/// Each directory of the paths plays a disk.
fn open(paths: &[PathBuf]) -> LocalFiles {
    LocalFiles::open(paths, Some(&|path: &Path| path.parent().unwrap().display().to_string())).unwrap()
}

fn answer(
    source: Arc<dyn Source>,
    format: MakeFormat,
    question: &Question,
    unit_bytes: u64,
    amount: Amount,
    seed: u64,
) -> Result<Answer, Error> {
    let format: Arc<dyn Format> = format(&*source, question.clone().bind())?.into();
    let layout = Layout::of(&*source, &*format, unit_bytes);
    let schedule =
        if amount == Amount::Exact { Schedule::whole(layout) } else { Schedule::new(layout, Shares::Equal, seed) };
    let terms = Terms { amount, confidence: 0.95, top: 1000, drop: 0.1 };
    let options = Options { threads: 2, keep_values: question.keeps_values(), seed, tick: Duration::from_millis(50) };
    ask(source, format, schedule, (question, &terms), &options, &mut |_, _| true).map(|(answer, ..)| answer)
}

fn counts(answer: &Answer) -> BTreeMap<String, f64> {
    let row = |row: &tessera_sampling::answer::Row| {
        (row.key.clone().map_or("NULL".into(), |key| String::from_utf8(key).unwrap()), row.estimate.value)
    };
    answer.rows.iter().map(row).collect()
}

#[test]
fn words_are_counted_once_whatever_the_cuts_are() {
    let dir = TempDir::new().unwrap();
    let texts = [
        "",
        "no line break at the end",
        "\n\n\nempty lines\n\n",
        "a b a\r\nb c\r\n",
        &"word ".repeat(5000),
        &"über 日本 ß\n".repeat(300),
    ];
    let mut expected: BTreeMap<String, f64> = BTreeMap::new();
    let mut paths = Vec::new();
    for (i, text) in texts.iter().enumerate() {
        paths.push(dir.path().join(format!("{i}.txt")));
        std::fs::write(&paths[i], text).unwrap();
        text.split_ascii_whitespace().for_each(|word| *expected.entry(word.to_string()).or_default() += 1.0);
    }
    for unit_bytes in [1, 3, 64, 1000, 1 << 20] {
        let found = answer(
            Arc::new(open(&paths)),
            text,
            &question(Aggregate::Count, Some("word"), None, None),
            unit_bytes,
            Amount::Exact,
            0,
        )
        .unwrap();
        assert_eq!(counts(&found), expected, "units of {unit_bytes}");
    }
}

#[test]
fn csv_is_cut_at_proven_record_starts() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a.csv");
    let mut content = String::from("\u{feff}name,note,n\n");
    let mut expected: BTreeMap<String, f64> = BTreeMap::new();
    for i in 0..2000 {
        let name = format!("n{}", i % 7);
        let note = ["plain", "\"with, comma\"", "\"two\nlines, \"\"quoted\"\"\n,3\n\"", "", "\"\""][i % 5];
        content += &format!("{name},{note},{i}{}", if i % 3 == 0 { "\r\n" } else { "\n" });
        *expected.entry(name).or_default() += i as f64;
    }
    std::fs::write(&path, &content).unwrap();
    for unit_bytes in [13, 64, 1000, 1 << 20] {
        let sum = question(Aggregate::Sum, Some("name"), Some("n"), None);
        let found =
            answer(Arc::new(open(std::slice::from_ref(&path))), csv, &sum, unit_bytes, Amount::Exact, 0).unwrap();
        assert_eq!(counts(&found), expected, "units of {unit_bytes}");
        let nulls = question(Aggregate::Count, None, None, Some("note is null"));
        let found =
            answer(Arc::new(open(std::slice::from_ref(&path))), csv, &nulls, unit_bytes, Amount::Exact, 0).unwrap();
        assert_eq!(found.total.value, 800.0, "units of {unit_bytes}");
    }
}

/// As spreadsheets write it.
#[test]
fn a_quote_behind_a_byte_order_mark_starts_a_field() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a.csv");
    let content: String = (0..500).map(|i| format!("\"two\nlines\",\"{i}\"\r\n")).collect();
    std::fs::write(&path, format!("\u{feff}\"note\",\"n\"\r\n{content}")).unwrap();
    for unit_bytes in [1, 2, 13, 1000, 1 << 20] {
        let sum = question(Aggregate::Sum, Some("note"), Some("n"), None);
        let found =
            answer(Arc::new(open(std::slice::from_ref(&path))), csv, &sum, unit_bytes, Amount::Exact, 0).unwrap();
        assert_eq!(counts(&found), BTreeMap::from([("two\nlines".to_string(), 124_750.0)]), "units of {unit_bytes}");
    }
}

#[test]
fn words_and_matches_have_no_sums() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a.txt");
    std::fs::write(&path, "5\n7 8\n").unwrap();
    for key in ["word", "/[0-9]/"] {
        let sum = question(Aggregate::Sum, Some(key), Some("line"), None);
        let error = answer(Arc::new(open(std::slice::from_ref(&path))), text, &sum, 4096, Amount::Exact, 0);
        assert!(error.unwrap_err().to_string().contains("have no value"), "{key}");
    }
}

/// One of eight units has 128 keys of its own, the others have one key in common.
#[test]
fn bounds_of_distinct_keys_hold_where_few_units_have_most_of_them() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a.txt");
    let unit = |unit: usize| match unit.wrapping_mul(0x9e37_79b9) >> 7 & 7 {
        0 => (0..128).map(|key| format!("{:07}\n", unit * 128 + key)).collect(),
        _ => "no word\n".repeat(128),
    };
    let content: String = (0..1000).map(unit).collect();
    std::fs::write(&path, &content).unwrap();
    let truth = content.lines().collect::<std::collections::BTreeSet<_>>().len() as f64;
    let distinct = question(Aggregate::Distinct, Some("line"), None, None);
    let held = (0..100).filter(|seed| {
        let total =
            answer(Arc::new(open(std::slice::from_ref(&path))), text, &distinct, 1024, Amount::Ratio(0.1), *seed)
                .unwrap()
                .total;
        total.claimed && total.low <= truth && truth <= total.high
    });
    let held = held.count();
    assert!(held >= 90, "{held} of 100 intervals hold");
}

#[test]
fn csv_without_quotes_is_sampled_too() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a.csv");
    let content: String =
        std::iter::once("k;v\n".to_string()).chain((0..20_000).map(|i| format!("{};{}\n", i % 3, i))).collect();
    std::fs::write(&path, content).unwrap();
    let mean = question(Aggregate::Mean, None, Some("v"), None);
    let found = answer(Arc::new(open(&[path])), csv, &mean, 512, Amount::Ratio(0.3), 1).unwrap();
    assert!(found.total.low < 9999.5 && 9999.5 < found.total.high && found.total.claimed, "{:?}", found.total);
}

#[test]
fn json_fields_are_found_by_path() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a.jsonl");
    let line = |i: usize| match i % 4 {
        0 => format!("{{\"user\":{{\"name\":\"u\\u00e4{}\",\"x\":[1,{{}}]}},\"ms\":{i},\"user.name\":3}}\n", i % 3),
        1 => format!("  {{\"ms\": {i}.5, \"user\": null}}\n"),
        2 => "{\"ms\":null,\"user\":{\"name\":\"late\"}}\n".to_string(),
        _ => "\n".to_string(),
    };
    std::fs::write(&path, (0..999).map(line).collect::<String>()).unwrap();
    for unit_bytes in [3, 100, 5000] {
        let by_name = question(Aggregate::Count, Some("user.name"), None, Some("ms >= 100 or ms is null"));
        let found = counts(
            &answer(Arc::new(open(std::slice::from_ref(&path))), json, &by_name, unit_bytes, Amount::Exact, 0).unwrap(),
        );
        let expected = |want: &dyn Fn(usize) -> bool| (0..999).filter(|i| want(*i)).count() as f64;
        assert_eq!(found["late"], expected(&|i| i % 4 == 2));
        assert_eq!(found["NULL"], expected(&|i| i % 4 == 1 && i >= 100));
        assert_eq!(found["uä1"], expected(&|i| i % 4 == 0 && i % 3 == 1 && i >= 100));
    }
}

#[test]
fn malformed_records_are_named_with_file_and_offset() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("bad");
    let sum = question(Aggregate::Sum, None, Some("b"), None);
    for (content, format, part) in [
        ("a,b\n1,2\n3\n", csv as MakeFormat, "near byte 8: 1 fields, where the first record has 2"),
        ("a,b\n1,x\n", csv, "`x` in field `b` is no number"),
        ("a,b\n1,\"2\"3\n", csv, "a quote stands where"),
        ("a,c\n1,2\n", csv, "has no field `b`; it has `a`, `c`"),
        ("{\"b\":1}\n{\"b\":\n", json, "near byte 8: no JSON object"),
        ("{\"b\":1} 2\n", json, "near byte 0: no JSON object"),
        ("[1]\n", json, "no JSON object"),
        ("a line\n", text, "text has no field `b`"),
    ] {
        std::fs::write(&path, content).unwrap();
        let error = answer(Arc::new(open(std::slice::from_ref(&path))), format, &sum, 4096, Amount::Exact, 0)
            .unwrap_err()
            .to_string();
        assert!(error.contains(part), "{content:?}: {error}");
    }
    std::fs::write(&path, vec![b'x'; 40 << 20]).unwrap();
    let error =
        answer(Arc::new(open(&[path])), text, &question(Aggregate::Count, None, None, None), 4096, Amount::Exact, 0)
            .unwrap_err();
    assert!(error.to_string().contains("a record is longer than 16 MiB"), "{error}");
}

/// Four directories play disks whose files differ; returns the paths and the number of each word.
fn four_disks(dir: &TempDir) -> (Vec<PathBuf>, BTreeMap<String, f64>) {
    let mut paths = Vec::new();
    let mut counts: BTreeMap<String, f64> = BTreeMap::new();
    for disk in 0..4 {
        let directory = dir.path().join(format!("d{disk}"));
        std::fs::create_dir(&directory).unwrap();
        for file in 0..3 {
            let mut content = String::new();
            for i in 0..40_000u64 {
                let word = i.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(20) % (5 + disk * 3 + file);
                content += &format!("w{word}{}", if i % 9 == 0 { '\n' } else { ' ' });
                *counts.entry(format!("w{word}")).or_default() += 1.0;
            }
            paths.push(directory.join(format!("{file}.txt")));
            std::fs::write(paths.last().unwrap(), content).unwrap();
        }
    }
    (paths, counts)
}

#[test]
fn a_promised_error_is_reached_and_honest() {
    let dir = TempDir::new().unwrap();
    let (paths, truth) = four_disks(&dir);
    let words = question(Aggregate::Count, Some("word"), None, None);
    let (mut covered, mut asked) = (0, 0);
    for seed in 0..20 {
        let found = answer(Arc::new(open(&paths)), text, &words, 1024, Amount::Error(0.05), seed).unwrap();
        assert!(found.reached);
        for row in &found.rows {
            assert!(row.estimate.relative_error() <= 0.05 && row.estimate.claimed, "{row:?}");
            let truth = truth[std::str::from_utf8(row.key.as_ref().unwrap()).unwrap()];
            covered += u32::from(row.estimate.low <= truth && truth <= row.estimate.high);
            asked += 1;
        }
    }
    assert!(covered * 100 >= asked * 90, "{covered} of {asked} intervals hold");
}

/// Asks for an error that only everything reaches. Returns the answer, how far it came, and all bytes; `go_on` may end it.
fn ask_for_everything(
    dir: &TempDir,
    go_on: &mut dyn FnMut(Progress, Option<Estimate>) -> bool,
) -> (Answer, Progress, u64, BTreeMap<String, f64>) {
    let (paths, truth) = four_disks(dir);
    let speed = DiskSpeed { bytes_per_s: 1e9, latency: Duration::from_millis(1) };
    let source: Arc<dyn Source> = Arc::new(PlayedDisks::new(open(&paths), &[speed]));
    let words = question(Aggregate::Count, Some("word"), None, None);
    let format: Arc<dyn Format> = text(&*source, words.clone().bind()).unwrap().into();
    let layout = Layout::of(&*source, &*format, 1024);
    let all_bytes = layout.bytes();
    let terms = Terms { amount: Amount::Error(1e-4), confidence: 0.95, top: 5, drop: 0.1 };
    let options = Options { threads: 2, keep_values: false, seed: 5, tick: Duration::from_micros(100) };
    let mut observe = |progress, total: &dyn Fn() -> Option<Estimate>| go_on(progress, total());
    let schedule = Schedule::new(layout, Shares::Equal, 5);
    let (found, progress, _) = ask(source, format, schedule, (&words, &terms), &options, &mut observe).unwrap();
    (found, progress, all_bytes, truth)
}

#[test]
fn a_promised_error_that_needs_everything_reads_it_about_once() {
    let dir = TempDir::new().unwrap();
    let (found, progress, all_bytes, truth) = ask_for_everything(&dir, &mut |_, _| true);
    assert!(found.reached && progress.complete && progress.units == progress.all_units);
    let largest = truth.values().copied().fold(0.0, f64::max);
    assert_eq!((found.rows[0].estimate.value, found.rows[0].estimate.high), (largest, largest));
    assert_eq!(found.total.value, truth.values().sum::<f64>());
    assert!(progress.read_bytes < all_bytes * 5 / 4, "{} of {all_bytes} bytes", progress.read_bytes);
}

#[test]
fn an_interrupt_while_everything_is_read_leaves_the_sample_that_did_not_suffice() {
    let dir = TempDir::new().unwrap();
    let mut last = None;
    let (found, progress, ..) = ask_for_everything(&dir, &mut |progress, total| {
        // Units of everything are long, so these are few.
        let is_everything = progress.all_units < 100;
        if is_everything {
            last = Some((total, progress.complete));
        }
        !is_everything
    });
    let (total, was_complete) = last.expect("everything was about to be read");
    assert!(!was_complete, "each disk takes 3 ms for it");
    assert_eq!(total, Some(found.total), "what is shown meanwhile is the sample's");
    assert!(found.is_random && !found.reached && found.total.claimed && found.total.low < found.total.high);
    assert!(!progress.complete && progress.units < progress.all_units && progress.all_units > 1000, "{progress:?}");
}

#[test]
fn a_disk_that_is_ten_times_slower_is_not_waited_for_and_the_answer_stays_right() {
    let dir = TempDir::new().unwrap();
    let (paths, truth) = four_disks(&dir);
    let speed = |ms| DiskSpeed { bytes_per_s: 1e9, latency: Duration::from_micros(ms) };
    let slow = PlayedDisks::new(open(&paths), &[speed(5000), speed(500), speed(500), speed(500)]);
    let words = question(Aggregate::Count, Some("word"), None, None);
    let source: Arc<dyn Source> = Arc::new(slow);
    let format: Arc<dyn Format> = text(&*source, words.clone().bind()).unwrap().into();
    let schedule = Schedule::new(Layout::of(&*source, &*format, 1024), Shares::Equal, 5);
    let terms = Terms { amount: Amount::Ratio(0.3), confidence: 0.999, top: 1000, drop: 0.2 };
    let options = Options { threads: 2, keep_values: false, seed: 5, tick: Duration::from_millis(50) };
    let (found, progress, disks) = ask(source, format, schedule, (&words, &terms), &options, &mut |_, _| true).unwrap();
    assert!(progress.complete);
    let others: u64 = disks[1..].iter().sum();
    assert!(disks[0] * 3 < others, "the slow disk gave {} units, the others {others}", disks[0]);
    for row in &found.rows {
        let truth = truth[std::str::from_utf8(row.key.as_ref().unwrap()).unwrap()];
        assert!(row.estimate.low <= truth && truth <= row.estimate.high, "{row:?}, truth {truth}");
    }
}

#[test]
fn a_disk_that_is_measured_as_slow_gives_less_of_the_sample_and_the_answer_stays_right() {
    let dir = TempDir::new().unwrap();
    let (paths, truth) = four_disks(&dir);
    let speed = |us| DiskSpeed { bytes_per_s: 1e9, latency: Duration::from_micros(us) };
    let slow: Arc<dyn Source> =
        Arc::new(PlayedDisks::new(open(&paths), &[speed(100_000), speed(500), speed(500), speed(500)]));
    let words = question(Aggregate::Count, Some("word"), None, None);
    let format: Arc<dyn Format> = text(&*slow, words.clone().bind()).unwrap().into();
    let layout = Layout::of(&*slow, &*format, 1024);
    let speeds = measure_speeds(&*slow, &layout, 5).unwrap();
    assert!(speeds[1..].iter().all(|fast| speeds[0] * 2.0 < *fast), "{speeds:?}");
    // The sample itself is of disks that wait for nothing.
    let source: Arc<dyn Source> = Arc::new(open(&paths));
    let schedule = Schedule::new(layout, Shares::Speeds(speeds), 5);
    let terms = Terms { amount: Amount::Ratio(0.3), confidence: 0.999, top: 1000, drop: 0.0 };
    let options = Options { threads: 2, keep_values: false, seed: 5, tick: Duration::from_millis(50) };
    let (found, _, disks) = ask(source, format, schedule, (&words, &terms), &options, &mut |_, _| true).unwrap();
    assert!(disks[1..].iter().all(|fast| disks[0] < *fast), "{disks:?}");
    for row in &found.rows {
        let truth = truth[std::str::from_utf8(row.key.as_ref().unwrap()).unwrap()];
        assert!(row.estimate.low <= truth && truth <= row.estimate.high, "{row:?}, truth {truth}");
    }
}

#[test]
fn what_an_interrupt_leaves_is_a_sample_unless_it_was_to_be_exact() {
    let dir = TempDir::new().unwrap();
    let (paths, truth) = four_disks(&dir);
    let words = question(Aggregate::Count, Some("word"), None, None);
    let interrupted = |amount: Amount| {
        let speed = DiskSpeed { bytes_per_s: 1e9, latency: Duration::from_millis(2) };
        let source: Arc<dyn Source> = Arc::new(PlayedDisks::new(open(&paths), &[speed]));
        let format: Arc<dyn Format> = text(&*source, words.clone().bind()).unwrap().into();
        let layout = Layout::of(&*source, &*format, 512);
        let schedule =
            if amount == Amount::Exact { Schedule::whole(layout) } else { Schedule::new(layout, Shares::Equal, 5) };
        let terms = Terms { amount, confidence: 0.999, top: 1000, drop: 0.0 };
        let options = Options { threads: 1, keep_values: false, seed: 5, tick: Duration::from_millis(20) };
        // Each disk has gone through 40 units of some 580 at least.
        let mut go_on = |progress: Progress, _: &dyn Fn() -> Option<Estimate>| progress.units < 160;
        ask(source, format, schedule, (&words, &terms), &options, &mut go_on).unwrap()
    };
    let (found, progress, _) = interrupted(Amount::Exact);
    assert!(progress.units < progress.all_units && !found.total.claimed && !found.reached);
    assert!(found.rows.iter().all(|row| !row.estimate.claimed));
    let (found, progress, _) = interrupted(Amount::Ratio(0.9));
    assert!(progress.units < progress.all_units && found.total.claimed);
    for row in found.rows.iter().filter(|row| row.estimate.claimed) {
        let truth = truth[std::str::from_utf8(row.key.as_ref().unwrap()).unwrap()];
        assert!(row.estimate.low <= truth && truth <= row.estimate.high, "{row:?}, truth {truth}");
    }
}

/// Units arrive while the caller decides to stop.
#[test]
fn bytes_after_an_interrupt_are_those_of_all_units_that_count() {
    let dir = TempDir::new().unwrap();
    let (paths, _) = four_disks(&dir);
    let words = question(Aggregate::Count, Some("word"), None, None);
    for amount in [Amount::Exact, Amount::Ratio(0.9)] {
        let speed = DiskSpeed { bytes_per_s: 1e9, latency: Duration::from_millis(2) };
        let source: Arc<dyn Source> = Arc::new(PlayedDisks::new(open(&paths), &[speed]));
        let format: Arc<dyn Format> = text(&*source, words.clone().bind()).unwrap().into();
        let layout = Layout::of(&*source, &*format, 512);
        let schedule =
            if amount == Amount::Exact { Schedule::whole(layout) } else { Schedule::new(layout, Shares::Equal, 5) };
        let terms = Terms { amount, confidence: 0.95, top: 1000, drop: 0.0 };
        let options = Options { threads: 1, keep_values: false, seed: 5, tick: Duration::from_millis(1) };
        let mut stop = |_: Progress, _: &dyn Fn() -> Option<Estimate>| {
            std::thread::sleep(Duration::from_millis(200));
            false
        };
        let (_, progress, _) = ask(source, format, schedule, (&words, &terms), &options, &mut stop).unwrap();
        // The last unit of each file is shorter.
        let least = progress.units.saturating_sub(4) * 512;
        assert!(progress.units > 8 && progress.read_bytes >= least, "{progress:?}");
    }
}

#[test]
fn a_file_that_is_cut_while_it_is_sampled_is_an_error() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a.txt");
    std::fs::write(&path, "some words\n".repeat(10_000)).unwrap();
    let source = open(std::slice::from_ref(&path));
    std::fs::write(&path, "short").unwrap();
    let words = question(Aggregate::Count, Some("word"), None, None);
    let error = answer(Arc::new(source), text, &words, 1024, Amount::Exact, 0).unwrap_err();
    assert!(matches!(error, Error::Changed { .. }), "{error}");
}

#[test]
fn a_file_that_is_written_anew_at_the_same_length_is_an_error() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a.txt");
    std::fs::write(&path, "some words\n".repeat(10_000)).unwrap();
    let source = open(std::slice::from_ref(&path));
    std::fs::write(&path, "more words\n".repeat(10_000)).unwrap();
    let later = std::time::SystemTime::now() + Duration::from_secs(60);
    std::fs::File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
    let words = question(Aggregate::Count, Some("word"), None, None);
    let error = answer(Arc::new(source), text, &words, 1024, Amount::Exact, 0).unwrap_err();
    assert!(matches!(error, Error::Changed { .. }), "{error}");
}

#[test]
fn a_key_that_was_not_seen_has_a_bound_and_no_zero() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a.txt");
    std::fs::write(&path, "common\n".repeat(100_000) + "rare\n").unwrap();
    let rare = question(Aggregate::Count, None, None, Some("line = 'rare'"));
    let found = answer(Arc::new(open(&[path])), text, &rare, 1024, Amount::Ratio(0.05), 3).unwrap();
    assert!(!found.total.claimed, "nothing is claimed of what was not seen");
    assert!((1.0..200.0).contains(&found.unseen_units), "{}", found.unseen_units);
}

#[test]
fn null_is_a_key_of_its_own() {
    let dir = TempDir::new().unwrap();
    let (lines, table) = (dir.path().join("a.jsonl"), dir.path().join("a.csv"));
    std::fs::write(&lines, "{\"k\":null}\n{\"k\":\"NULL\"}\n{}\n{\"k\":\"\"}\n".repeat(10)).unwrap();
    std::fs::write(&table, b"k,v\nNULL,1\n,2\n\xff,3\n\xff\xffa,4\nn,5\n").unwrap();
    let groups = |path: PathBuf, format, asked: Question| {
        let found = answer(Arc::new(open(&[path])), format, &asked, 1024, Amount::Exact, 1).unwrap();
        found.rows.into_iter().map(|row| (row.key, row.estimate.value)).collect::<BTreeMap<_, _>>()
    };
    let key = |text: &[u8]| Some(text.to_vec());
    let counts = groups(lines, json, question(Aggregate::Count, Some("k"), None, None));
    assert_eq!(counts, BTreeMap::from([(None, 20.0), (key(b"NULL"), 10.0), (key(b""), 10.0)]));
    let sums = groups(table, csv, question(Aggregate::Sum, Some("k"), Some("v"), None));
    let expected = [(key(b"NULL"), 1.0), (None, 2.0), (key(b"\xff"), 3.0), (key(b"\xff\xffa"), 4.0), (key(b"n"), 5.0)];
    assert_eq!(sums, BTreeMap::from(expected));
}

/// 3000 values in one unit: a thousand twice, and 0 to 999 once.
fn many_values(dir: &TempDir) -> PathBuf {
    let path = dir.path().join("values.csv");
    let value = |i: usize| if i.is_multiple_of(3) { format!("{}\n", i / 3) } else { "1000\n".to_string() };
    std::fs::write(&path, std::iter::once("v\n".to_string()).chain((0..3000).map(value)).collect::<String>()).unwrap();
    path
}

#[test]
fn a_quantile_of_everything_keeps_all_values() {
    let dir = TempDir::new().unwrap();
    let path = many_values(&dir);
    for (share, truth) in [(0.1, 299.0), (0.3, 899.0), (1.0 / 3.0, 999.0), (0.5, 1000.0)] {
        let ask = |amount| {
            let quantile = question(Aggregate::Quantile(share), None, Some("v"), None);
            answer(Arc::new(open(std::slice::from_ref(&path))), csv, &quantile, 16 << 10, amount, 1).unwrap().total
        };
        // A sample of so small a file has all of it.
        for amount in [Amount::Exact, Amount::Ratio(1.0), Amount::Ratio(0.2), Amount::Error(0.01)] {
            let found = ask(amount);
            assert_eq!((found.value, found.low, found.high, found.claimed), (truth, truth, truth, true), "{amount:?}");
        }
    }
}
