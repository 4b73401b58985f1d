//! Retired words: each thing has one name, the one its field uses. A word stands here once the last use of it is gone.

use tessera_tidy::{sources, words};

/// A word that is not used any more.
struct Retired {
    /// The word, or several that follow each other, in lower case. A name in code counts as the words it is made of.
    word: &'static str,
    /// What to write.
    instead: &'static str,
    /// Phrases in which the word has its ordinary meaning.
    ordinary: &'static [&'static str],
}

const fn retired(word: &'static str, instead: &'static str, ordinary: &'static [&'static str]) -> Retired {
    Retired { word, instead, ordinary }
}

/// Sorted by word, one a line.
#[rustfmt::skip]
const RETIRED: &[Retired] = &[
    retired("anchors", "affinity, or hinted fragments", &[]),
    retired("blanks", "preallocated chunk ids, or spaces", &[]),
    retired("dawn", "EPOCH", &[]),
    retired("dice", "rng", &["dice s coefficient"]),
    retired("disowns", "rejects", &[]),
    retired("door", "interface", &[]),
    retired("doors", "front ends", &[]),
    retired("farewell", "pending close", &[]),
    retired("grave", "tombstone", &[]),
    retired("graves", "tombstones", &[]),
    retired("happening", "event", &[]),
    retired("happenings", "events", &[]),
    retired("has news", "has unsent messages", &[]),
    retired("house rules", "rules", &[]),
    retired("made up inode", "synthetic inode", &[]),
    retired("misspoken", "usage error", &[]),
    retired("names ms", "delegation ms", &[]),
    retired("planted", "mistake, failpoint or mutant", &[]),
    retired("recut", "rechunk", &[]),
    retired("rooms", "capacity", &[]),
    retired("roster", "cluster map", &[]),
    retired("spoiled", "failed", &[]),
    retired("stairs", "layers", &[]),
    retired("strangers", "rejected nodes", &[]),
    retired("tape", "recorded choices", &[]),
    retired("unopened", "one-shot commit", &[]),
    retired("unsaid", "unsent", &[]),
];

/// Files that may say them: this table, and the history.
const EXCEPT: &[&str] = &["crates/tidy/tests/vocabulary.rs", "CHANGELOG.md"];

#[test]
fn retired_words_stay_retired() {
    let mut uses = Vec::new();
    for source in sources().iter().filter(|s| !EXCEPT.contains(&s.path.as_str())) {
        for (number, line) in source.text.lines().enumerate() {
            let text = format!(" {} ", words(line).join(" "));
            let used =
                RETIRED.iter().filter(|r| count(&text, r.word) > r.ordinary.iter().map(|o| count(&text, o)).sum());
            uses.extend(used.map(|r| format!("{}:{}: `{}`: write {}", source.path, number + 1, r.word, r.instead)));
        }
    }
    assert!(uses.is_empty(), "retired words:\n{}", uses.join("\n"));
}

/// How often a phrase stands in a line of words.
fn count(text: &str, phrase: &str) -> usize {
    text.match_indices(phrase)
        .filter(|(at, _)| text[..*at].ends_with(' ') && text[at + phrase.len()..].starts_with(' '))
        .count()
}

#[test]
fn the_table_is_sorted_and_its_exceptions_are_used() {
    assert!(RETIRED.is_sorted_by_key(|r| r.word), "sort the retired words");
    for r in RETIRED {
        assert!(
            r.ordinary.iter().all(|o| count(&format!(" {o} "), r.word) == 1),
            "{}: an exception without it",
            r.word
        );
    }
}
