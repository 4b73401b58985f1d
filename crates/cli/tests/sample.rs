//! `tessera sample` on local files and in the store: right with lost nodes, pinned versions, and errors that help.

mod common;

use common::{Cluster, assert_refused, tessera};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;
use tessera_client::path::StorePath;
use tessera_client::{Client, Options};
use tessera_sampling::Error;
use tessera_sampling::ldd::{Ldd, Lines};
use tessera_sampling::source::{Source, StoreFiles};

/// A CSV of requests: a third of them from host `a`, times 0 to 999 ms.
fn requests(rows: u64) -> String {
    let row =
        |i: u64| format!("{},\"/x,{}\",{}\n", ["a", "b", "c"][i as usize % 3], i % 50, i.wrapping_mul(7919) % 1000);
    std::iter::once("host,path,ms\n".to_string()).chain((0..rows).map(row)).collect()
}

fn json(words: &[&str]) -> Value {
    let run = tessera(words);
    assert_eq!(run.code, 0, "{run:?}");
    run.json()
}

fn covers(estimate: &Value, truth: f64) -> bool {
    estimate["low"].as_f64().unwrap() <= truth && truth <= estimate["high"].as_f64().unwrap()
}

#[test]
fn exact_answers_and_samples_of_local_files() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("requests.csv");
    fs::write(&path, requests(60_000)).unwrap();
    let path = path.to_str().unwrap();
    let exact = json(&["sample", path, "--count-by", "host", "--where", "ms < 500", "--exact", "--json"]);
    assert_eq!(exact["total"]["estimate"], 30_000.0);
    assert_eq!(exact["units"], exact["all_units"]);
    for group in exact["groups"].as_array().unwrap() {
        assert_eq!((&group["estimate"], &group["low"]), (&Value::from(10_000.0), &Value::from(10_000.0)), "{exact}");
    }
    let mean = json(&[
        "sample",
        path,
        "--avg",
        "ms",
        "--by",
        "host",
        "--ratio",
        "30%",
        "--unit",
        "4K",
        "--seed",
        "7",
        "--confidence",
        "99.9%",
        "--json",
    ]);
    assert!(covers(&mean["total"], 499.5), "{mean}");
    assert_eq!(mean["groups"].as_array().unwrap().len(), 3);
    assert!(mean["units"].as_u64() < mean["all_units"].as_u64());
    let promised = json(&["sample", path, "--sum", "ms", "--error", "3%", "--unit", "4K", "--seed", "8", "--json"]);
    let total = &promised["total"];
    let half = (total["high"].as_f64().unwrap() - total["low"].as_f64().unwrap()) / 2.0;
    assert!(promised["reached"] == true && half <= 0.03 * total["estimate"].as_f64().unwrap(), "{promised}");
    let distinct = json(&["sample", path, "--distinct", "path", "--ratio", "20%", "--unit", "4K", "--json"]);
    assert!(covers(&distinct["total"], 50.0), "{distinct}");
}

#[test]
fn people_get_a_table_a_summary_and_a_page() {
    let dir = TempDir::new().unwrap();
    let (path, page) = (dir.path().join("words.txt"), dir.path().join("page.html"));
    fs::write(&path, "the <quick> fox and the dog\n".repeat(20_000)).unwrap();
    let run = tessera(&[
        "sample",
        path.to_str().unwrap(),
        "--count-by",
        "word",
        "--top",
        "3",
        "--plot",
        page.to_str().unwrap(),
    ]);
    assert_eq!(run.code, 0, "{run:?}");
    let text = run.text();
    assert!(text.contains("KEY") && text.lines().nth(1).unwrap().starts_with("the"), "{text}");
    assert!(text.contains("records: 120,000") || text.contains("records: 1"), "{text}");
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("<svg") && page.contains("the") && !page.contains("<quick>"), "{page}");
}

#[test]
fn odd_questions_are_refused_in_words_that_help() {
    let dir = TempDir::new().unwrap();
    let csv = dir.path().join("a.csv");
    fs::write(&csv, requests(10)).unwrap();
    let path = csv.to_str().unwrap();
    let refused =
        |words: &[&str], code: i32, part: &[&str]| assert_refused(&tessera(&[&["sample"], words].concat()), code, part);
    refused(&[path, "--sum", "speed"], 2, &["no field `speed`", "`host`, `path`, `ms`"]);
    refused(&[path, "--sum", "path"], 1, &["is no number", "--where 'path is number'"]);
    refused(&[path, "--by", "host"], 2, &["--sum or --avg"]);
    refused(&[path, "--where", "ms >"], 2, &["ends where a value is expected"]);
    refused(&[path, "tess:/a"], 2, &["some are local"]);
    refused(&[path, "--count-by", "/x(/", "--format", "text"], 2, &["no regular expression"]);
    refused(&["/nowhere/at-all", "--count-by", "word"], 3, &["`/nowhere/at-all` does not exist"]);
    let ratio = tessera(&["sample", path, "--ratio", "120%"]);
    assert!(ratio.code == 2 && ratio.stderr.contains("at most 100%"), "{ratio:?}");
    refused(&["/dev/zero"], 1, &["neither a file nor a directory"]);
    let empty = TempDir::new().unwrap();
    refused(&[empty.path().to_str().unwrap()], 3, &["no files in"]);
    fs::write(dir.path().join("b.txt"), "x").unwrap();
    refused(&[dir.path().to_str().unwrap()], 2, &["different formats"]);
}

#[test]
fn compressed_files_are_refused_and_binary_ones_are_warned_of() {
    let dir = TempDir::new().unwrap();
    let (gz, zero) = (dir.path().join("a.csv.gz"), dir.path().join("b.log"));
    fs::write(&gz, b"\x1f\x8b\x08\x00 and more\n").unwrap();
    fs::write(&zero, b"one\0\ntwo\n").unwrap();
    let (gz, zero) = (gz.to_str().unwrap(), zero.to_str().unwrap());
    assert_refused(&tessera(&["sample", gz, "--exact"]), 2, &["is compressed (gzip)", "gunzip"]);
    assert_refused(&tessera(&["sample", gz, "--exact", "--format", "parquet"]), 1, &["Parquet"]);
    let run = tessera(&["sample", zero, "--exact", "--json"]);
    assert_eq!((run.code, &run.json()["total"]["estimate"]), (0, &Value::from(2.0)), "{run:?}");
    assert!(run.stderr.contains("has a byte 0"), "{run:?}");
}

#[test]
fn an_exact_mean_is_shown_in_full() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a.csv");
    fs::write(&path, "x\n1234.56\n1234.57\n").unwrap();
    let run = tessera(&["sample", path.to_str().unwrap(), "--avg", "x", "--exact"]);
    assert_eq!(run.text().trim(), "mean: 1,234.565, exactly", "{run:?}");
}

#[test]
fn null_and_the_text_that_reads_so_are_different_keys() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a.jsonl");
    fs::write(&path, "{\"k\":null}\n{\"k\":\"NULL\"}\n{}\n").unwrap();
    let asked = ["sample", path.to_str().unwrap(), "--count-by", "k", "--exact"];
    let said = json(&[&asked[..], &["--json"]].concat());
    let groups: Vec<_> = said["groups"].as_array().unwrap().iter().map(|row| (&row["key"], &row["estimate"])).collect();
    assert_eq!(groups, [(&Value::Null, &Value::from(2.0)), (&Value::from("NULL"), &Value::from(1.0))]);
    let text = tessera(&asked).text();
    let keys: Vec<_> = text.lines().skip(1).take(2).filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(keys, ["NULL", "\"NULL\""], "{text}");
}

#[test]
fn a_small_error_is_not_shown_as_zero() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("requests.csv");
    fs::write(&path, requests(60_000)).unwrap();
    let run = tessera(&["sample", path.to_str().unwrap(), "--sum", "ms", "--error", "0.01%", "--unit", "4K"]);
    assert!(run.stderr.contains("an error of 0.01 % needed everything"), "{run:?}");
    // Values are nearly equal, so that the interval of a sample is narrow.
    let row = |i: u64| format!("{}\n", 1_000_000 + i.wrapping_mul(7919) % 1000);
    let rows = std::iter::once("ms\n".to_string()).chain((0..60_000).map(row));
    fs::write(&path, rows.collect::<String>()).unwrap();
    let words = ["sample", path.to_str().unwrap(), "--avg", "ms", "--ratio", "40%", "--unit", "4K", "--seed", "1"];
    let run = tessera(&words);
    assert!(run.text().contains("± 0.00") && !run.text().contains("± 0.0 %"), "{run:?}");
}

#[test]
fn a_file_that_is_named_twice_counts_once_and_this_is_said() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a.csv");
    fs::write(&path, requests(100)).unwrap();
    let (path, root) = (path.to_str().unwrap(), dir.path().to_str().unwrap());
    let around = format!("{root}/../{}/a.csv", dir.path().file_name().unwrap().to_str().unwrap());
    for words in [[path, path], [root, path], [path, &around]] {
        let run = tessera(&["sample", words[0], words[1], "--exact", "--json"]);
        assert_eq!((run.code, &run.json()["total"]["estimate"]), (0, &Value::from(100.0)), "{run:?}");
        assert!(run.stderr.contains("named more than once") && run.stderr.contains("counts once"), "{run:?}");
    }
    let once = tessera(&["sample", path, "--exact", "--json"]);
    assert!(once.code == 0 && once.stderr.is_empty(), "{once:?}");
}

/// A record that the sample did not meet is not reported as zero.
#[test]
fn what_was_not_seen_is_no_zero() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("requests.csv");
    fs::write(&path, requests(60_000) + "rare,/x,1\n").unwrap();
    let path = path.to_str().unwrap();
    for asked in [&["--count-by", "path"][..], &["--sum", "ms"], &["--avg", "ms"], &["--quantile", "50%:ms"]] {
        // The last unit is not in the samples of these seeds.
        let rare = ["--where", "host = 'rare'", "--ratio", "2%", "--unit", "4K", "--seed", "2"];
        let words = [&["sample", path], asked, &rare].concat();
        let said = json(&[&words[..], &["--json"]].concat());
        assert_eq!((&said["total"]["estimate"], &said["records_counted"]), (&Value::Null, &Value::from(0.0)), "{said}");
        let run = tessera(&words);
        assert!(run.text().contains("none was seen; such records lie in fewer than"), "{run:?}");
    }
}

fn put(c: &Cluster, local: &Path, to: &str) {
    let run = c.run(&["put", "-p", "redundancy=ec:4+2", local.to_str().unwrap(), to]);
    assert_eq!(run.code, 0, "{run:?}");
}

#[test]
fn samples_of_the_store_are_right_with_two_nodes_dead() {
    let mut c = Cluster::start(6);
    let dir = TempDir::new().unwrap();
    let local = dir.path().join("requests.csv");
    fs::write(&local, requests(200_000)).unwrap();
    put(&c, &local, "tess:/requests.csv");
    let ask = |c: &Cluster, words: &[&str]| {
        let run = c.run(&[&["sample", "tess:/requests.csv", "--json"], words].concat());
        assert_eq!(run.code, 0, "{run:?}");
        run.json()
    };
    let by_host = ["--count-by", "host", "--ratio", "20%", "--unit", "16K", "--confidence", "99.9%", "--seed", "3"];
    let found = ask(&c, &by_host);
    assert!(found["disks"].as_array().unwrap().len() >= 4, "the slices lie on several disks: {found}");
    let units: Vec<u64> =
        found["disks"].as_array().unwrap().iter().map(|disk| disk["units"].as_u64().unwrap()).collect();
    assert!(
        units.iter().max().unwrap() <= &(units.iter().min().unwrap() + 3 + units.iter().max().unwrap() / 5),
        "shares are equal: {units:?}"
    );
    let by_speed = ask(&c, &[&by_host[..], &["--shares", "speed"]].concat());
    for group in found["groups"].as_array().unwrap().iter().chain(by_speed["groups"].as_array().unwrap()) {
        assert!(covers(group, 200_000.0 / 3.0), "{found} {by_speed}");
    }
    assert_refused(&c.run(&["sample", "tess:/nowhere"]), 3, &["tess:/nowhere", "does not exist"]);
    c.kill_node(1);
    c.kill_node(4);
    let exact = ask(&c, &["--sum", "ms", "--exact"]);
    let truth: u64 = (0..200_000u64).map(|i| i.wrapping_mul(7919) % 1000).sum();
    assert_eq!(exact["total"]["estimate"], truth as f64);
    for group in ask(&c, &by_host)["groups"].as_array().unwrap() {
        assert!(covers(group, 200_000.0 / 3.0), "{group}");
    }
}

/// Flips bytes of every fragment on some nodes.
fn rot(c: &Cluster, nodes: impl Iterator<Item = usize>) {
    for node in nodes {
        for entry in fs::read_dir(c.disk(node).join("segments")).unwrap() {
            let path = entry.unwrap().path();
            let mut bytes = fs::read(&path).unwrap();
            bytes.iter_mut().skip(8192).step_by(4 << 10).for_each(|byte| *byte = !*byte);
            fs::write(&path, bytes).unwrap();
        }
    }
}

/// A sample reads single groups of a fragment: a rotten one is read around, or the sample ends and says why (P2).
#[test]
fn rotten_fragments_change_no_answer() {
    let c = Cluster::start(6);
    let dir = TempDir::new().unwrap();
    let local = dir.path().join("requests.csv");
    fs::write(&local, requests(200_000)).unwrap();
    put(&c, &local, "tess:/requests.csv");
    let truth: u64 = (0..200_000u64).map(|i| i.wrapping_mul(7919) % 1000).sum();
    let exact = ["sample", "tess:/requests.csv", "--sum", "ms", "--exact", "--json"];
    let sampled = "sample tess:/requests.csv --sum ms --ratio 40% --unit 16K --confidence 99.9% --seed 4 --json";
    rot(&c, 1..=2);
    assert_eq!(c.ok(&exact).json()["total"]["estimate"], truth as f64);
    let words: Vec<&str> = sampled.split(' ').collect();
    assert!(covers(&c.ok(&words).json()["total"], truth as f64));
    rot(&c, 3..=6);
    assert_refused(&c.run(&["sample", "tess:/requests.csv", "--sum", "ms"]), 5, &["tess:/requests.csv", "cannot read"]);
}

/// A source reads the versions that it has found, or says that one is gone; never parts of two.
#[test]
fn a_file_that_is_replaced_is_read_as_it_was_or_not_at_all() {
    let c = Cluster::start(4);
    let dir = TempDir::new().unwrap();
    let local = dir.path().join("lines.txt");
    let content = |word: &str| (0..150_000).map(|i| format!("{word} {i}\n")).collect::<String>();
    fs::write(&local, content("old")).unwrap();
    let path = StorePath::parse("tess:/lines.txt").unwrap();
    let replace = |word: &str| {
        fs::write(&local, content(word)).unwrap();
        c.ok(&["put", "-p", "redundancy=replica:2", local.to_str().unwrap(), "tess:/lines.txt"]);
    };
    replace("old");
    let client = Client::connect(c.address(), Options::default()).unwrap();
    // One source has read before the file is replaced, and has it open; the other has not.
    let opened = Arc::new(StoreFiles::open(client.clone(), std::slice::from_ref(&path)).unwrap());
    let untouched = StoreFiles::open(client.clone(), std::slice::from_ref(&path)).unwrap();
    assert_eq!(opened.read_vec(0, 0, 5).unwrap(), b"old 0");
    replace("new");
    c.ok(&["gc", "--quiet"]);
    let lines = Ldd::read(opened.clone() as Arc<dyn Source>, 64 << 10, Lines).unwrap();
    assert_eq!(lines.filter(|line| line.starts_with("old ")).count().unwrap(), 150_000);
    match untouched.read_vec(0, 1 << 20, 1 << 20) {
        Ok(bytes) => assert!(String::from_utf8(bytes).unwrap().contains("old ")),
        Err(Error::Changed { file }) => assert_eq!(file, "tess:/lines.txt"),
        Err(error) => panic!("{error}"),
    }
    assert!(opened.check_unchanged().is_ok(), "a version never changes");
    let again = Arc::new(StoreFiles::open(client, &[path]).unwrap());
    let lines = Ldd::read(again as Arc<dyn Source>, 64 << 10, Lines).unwrap();
    assert_eq!(lines.filter(|line| line.starts_with("new ")).count().unwrap(), 150_000);
}
