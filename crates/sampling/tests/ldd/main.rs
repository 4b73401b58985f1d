//! Sets over directories that play disks.

mod estimates;
mod failures;
mod persisted;
mod results;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;
use tessera_sampling::ldd::Ldd;
use tessera_sampling::source::{LocalFiles, Source};

/// Directories that play disks.
pub(crate) struct Disks {
    scratch: TempDir,
    pub(crate) directories: Vec<PathBuf>,
}

impl Disks {
    pub(crate) fn new(count: usize) -> Disks {
        let scratch = tempfile::tempdir().unwrap();
        let directories: Vec<PathBuf> = (0..count).map(|i| scratch.path().join(format!("disk-{i}"))).collect();
        directories.iter().for_each(|directory| std::fs::create_dir(directory).unwrap());
        Disks { scratch, directories }
    }

    /// Writes a file to a disk.
    pub(crate) fn write(&self, disk: usize, name: &str, text: &str) {
        std::fs::write(self.directories[disk].join(name), text).unwrap();
    }

    pub(crate) fn source(&self) -> LocalFiles {
        let disk_of = |path: &Path| path.parent().unwrap().display().to_string();
        LocalFiles::open(&self.directories, Some(&disk_of)).unwrap()
    }

    pub(crate) fn shared(&self) -> Arc<dyn Source> {
        Arc::new(self.source())
    }

    pub(crate) fn root(&self) -> &Path {
        self.scratch.path()
    }
}

/// Text of which each disk has other words, with empty lines and lines longer than a unit.
pub(crate) fn text(disk: usize, lines: usize) -> String {
    let mut text = String::new();
    for i in 0..lines {
        let words = match i % 97 {
            0 => 0,
            1 => 60,
            _ => i % 7,
        };
        let line: Vec<String> = (0..words).map(|w| format!("w{}", (i * (w + 1) + disk * 3) % 50)).collect();
        text += &line.join(" ");
        text.push('\n');
    }
    text
}

pub(crate) fn words(line: &str) -> Vec<(String, u64)> {
    line.split_whitespace().map(|word| (word.to_string(), 1)).collect()
}

pub(crate) fn plain_count(texts: &[String]) -> HashMap<String, u64> {
    let mut counts = HashMap::new();
    for word in texts.iter().flat_map(|text| text.split_whitespace()) {
        *counts.entry(word.to_string()).or_default() += 1;
    }
    counts
}

pub(crate) fn word_count(lines: &Ldd<String>) -> Ldd<(String, u64)> {
    lines.flat_map(|line| words(&line)).reduce_by_key(|a, b| a + b)
}
