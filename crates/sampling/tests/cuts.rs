//! Each record belongs to exactly one unit, wherever files are cut: random records, cut at random, give the keys of a
//! reader that goes from the beginning to the end.

use proptest::prelude::*;
use std::collections::BTreeMap;
use tempfile::TempDir;
use tessera_sampling::format::{Csv, CsvOptions, Format, JsonLines, Text};
use tessera_sampling::layout::Layout;
use tessera_sampling::question::{Aggregate, Bound, KeyBy, Question};
use tessera_sampling::source::{LocalFiles, Source};
use tessera_sampling::tally::{Tally, Totals};

fn count_by(key: KeyBy) -> Bound {
    Question { aggregate: Aggregate::Count, key: Some(key), value: None, filter: None }.bind()
}

/// Counts the keys of a file that is cut into units of `unit_bytes`.
fn counted(content: &str, unit_bytes: u64, make: impl Fn(&dyn Source) -> Box<dyn Format>) -> BTreeMap<Vec<u8>, u64> {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("file");
    std::fs::write(&path, content).unwrap();
    let source = LocalFiles::open(&[path], None).unwrap();
    let format = make(&source);
    let layout = Layout::of(&source, &*format, unit_bytes);
    let mut tally = Tally::new(&layout, false, 0);
    // A block gets the memory of the one before it, as the engine does.
    let mut buffer = b"\"stale\"\n".repeat(100);
    for (h, stratum) in layout.strata.iter().enumerate() {
        for i in 0..stratum.units {
            let unit = layout.unit(h, i);
            let block = format.load_into(&source, unit, buffer).unwrap();
            format.tally(&block, "file", &mut tally.unit(h, unit.size as f64)).unwrap();
            buffer = block.bytes;
        }
    }
    let count = |strata: Vec<(usize, tessera_sampling::estimate::GroupMoments)>| {
        strata.iter().map(|(_, moments)| moments.total.count as u64).sum()
    };
    Totals::of([&tally]).groups().map(|(key, strata)| (key, count(strata))).collect()
}

fn expected<'a>(keys: impl IntoIterator<Item = &'a str>) -> BTreeMap<Vec<u8>, u64> {
    let mut counts = BTreeMap::new();
    keys.into_iter().for_each(|key| *counts.entry(key.as_bytes().to_vec()).or_default() += 1);
    counts
}

/// A field of CSV as it is written: quoted if it must be, or by chance.
fn written(field: &str, quoted: bool) -> String {
    if quoted || field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_string()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn csv_records_are_counted_once(
        rows in prop::collection::vec(("[a-d]{1,3}", "[a-c,\"\n\r ]{0,30}", any::<(bool, bool)>(), any::<bool>()), 0..60),
        unit_bytes in 1u64..300,
        last_break: bool,
    ) {
        let mut content = "key,note\n".to_string();
        for (key, note, (quoted_key, quoted_note), crlf) in &rows {
            content += &format!("{},{}{}", written(key, *quoted_key), written(note, *quoted_note), if *crlf { "\r\n" } else { "\n" });
        }
        if !last_break {
            content.truncate(content.trim_end_matches(['\r', '\n']).len());
        }
        let key = || count_by(KeyBy::Field("key".to_string()));
        let found = counted(&content, unit_bytes, |source| Box::new(Csv::open(source, key(), CsvOptions::default()).unwrap()));
        prop_assert_eq!(found, expected(rows.iter().map(|row| row.0.as_str())), "{:?}", content);
    }

    #[test]
    fn lines_and_words_are_counted_once(content in "[ab \n\r]{0,300}", unit_bytes in 1u64..100) {
        let found = counted(&content, unit_bytes, |_| Box::new(Text::new(count_by(KeyBy::Word)).unwrap()));
        prop_assert_eq!(found, expected(content.split_ascii_whitespace()), "{:?}", content);
        let found = counted(&content, unit_bytes, |_| Box::new(Text::new(count_by(KeyBy::Field("line".to_string()))).unwrap()));
        let lines: Vec<&str> = content.split_terminator('\n').map(|line| line.strip_suffix('\r').unwrap_or(line)).collect();
        prop_assert_eq!(found, expected(lines), "{:?}", content);
    }

    #[test]
    fn json_lines_are_counted_once(keys in prop::collection::vec("[a-z\"\\\\ü]{0,8}", 0..50), unit_bytes in 1u64..200) {
        let content: String = keys.iter().map(|key| format!("{}\n", serde_json::json!({ "n": [1, { "k": 2 }], "k": key }))).collect();
        let found = counted(&content, unit_bytes, |_| Box::new(JsonLines::new(count_by(KeyBy::Field("k".to_string())))));
        prop_assert_eq!(found, expected(keys.iter().map(String::as_str)), "{:?}", content);
    }
}
