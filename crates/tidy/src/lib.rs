//! The rules of the repository that a machine can check, as tests over the text of its files.
//!
//! This crate uses no other one of the repository, so `cargo test -p tessera-tidy` takes seconds. Here live the reading of the
//! repository ([`Source`]) and of its words ([`words`]); the rules are tests, one file per kind:
//! `tests/layers.rs` (which crate may use which), `tests/code.rs` (lengths, unsafe code, promises),
//! `tests/dependencies.rs` (licences, sources and bans: deny.toml) and `tests/vocabulary.rs` (retired words).

use std::fs;
use std::path::{Path, PathBuf};

/// A text file of the repository.
#[derive(Debug, Clone)]
pub struct Source {
    /// Path below the root, with slashes.
    pub path: String,
    /// The whole file.
    pub text: String,
}

/// Folders that hold no sources: builds, the version history, recorded measurements.
const SKIPPED: &[&str] = &["target", ".git", "results", "tessera-data"];
/// Endings of the files that people write and read.
const ENDINGS: &[&str] = &["rs", "md", "py", "sql", "proto", "toml", "cu", "h", "c", "txt"];

/// Root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every text file, in the order of their paths.
///
/// # Panics
/// A file cannot be read: the rules would pass without having looked.
pub fn sources() -> Vec<Source> {
    let mut sources = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(root().join(&folder)).expect("a folder of the repository is readable");
        for entry in entries.map(|e| e.expect("a folder of the repository is readable")) {
            let name = entry.file_name().into_string().expect("names in the repository are UTF-8");
            let path = folder.join(&name);
            let ending = name.rsplit_once('.').map_or("", |(_, ending)| ending);
            if entry.path().is_dir() {
                if !SKIPPED.contains(&name.as_str()) {
                    folders.push(path);
                }
            } else if ENDINGS.contains(&ending) || name == "Makefile" {
                let text = fs::read_to_string(entry.path()).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
                sources.push(Source { path: path.to_str().expect("UTF-8, as its parts are").into(), text });
            }
        }
    }
    assert!(sources.len() > 100, "the sources were not found");
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    sources
}

/// The Rust files under crates/.
pub fn rust_sources() -> Vec<Source> {
    sources().into_iter().filter(|s| s.path.starts_with("crates/") && s.path.ends_with(".rs")).collect()
}

impl Source {
    /// Whether the whole file is a test or serves only tests.
    pub fn is_test(&self) -> bool {
        let mut parts = self.path.split('/');
        parts.any(|part| part.trim_end_matches(".rs").split('_').any(|word| word == "tests" || word == "fake"))
            || self.path.starts_with("crates/tidy/")
    }
}

/// The words of a line in lower case; a name in code counts as the words it is made of.
///
/// ```
/// # use tessera_tidy::words;
/// assert_eq!(words("let openFile = Self::MADE_UP;"), ["let", "open", "file", "self", "made", "up"]);
/// ```
pub fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut after_lower = false;
    for c in line.chars() {
        if !c.is_alphabetic() || (after_lower && c.is_uppercase()) {
            words.extend((!word.is_empty()).then(|| std::mem::take(&mut word)));
        }
        after_lower = c.is_lowercase();
        if c.is_alphabetic() {
            word.extend(c.to_lowercase());
        }
    }
    words.extend((!word.is_empty()).then_some(word));
    words
}
