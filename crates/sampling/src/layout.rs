//! How files are cut into sampling units, and units into strata.
//!
//! A *unit* is what is read at once: a few KiB of a file that lie on one disk. A *stratum* is a set of units on one
//! disk from which units are drawn with equal chances, without replacement. Strata follow disks and files, since both
//! differ: one disk may be slow or hold other data, and one file may be unlike the next.

use crate::estimate::StratumSample;
use crate::format::Format;
use crate::source::{DiskIndex, FileIndex, Source};

/// A stretch of a file that lies on one disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The file.
    pub file: FileIndex,
    /// Where it starts in the file, in bytes.
    pub offset: u64,
    /// Its length in bytes; not 0.
    pub len_bytes: u64,
    /// The disk.
    pub disk: DiskIndex,
    /// It is one unit of so many rows and must not be cut, as a row group of Parquet.
    pub rows: Option<u64>,
}

impl Run {
    fn units(&self, unit_bytes: u64) -> u64 {
        if self.rows.is_some() { 1 } else { self.len_bytes.div_ceil(unit_bytes) }
    }
}

/// What is read at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Unit {
    /// The file.
    pub file: FileIndex,
    /// Where it starts in the file, in bytes.
    pub offset: u64,
    /// Its length in bytes; not 0.
    pub len_bytes: u64,
    /// What its records are in proportion to: its rows if they are known, else its length.
    pub size: u64,
}

impl Unit {
    /// Where it ends in the file, in bytes.
    pub fn end(&self) -> u64 {
        self.offset + self.len_bytes
    }
}

/// Units of one disk that are drawn with equal chances.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stratum {
    /// The disk that holds all of them.
    pub disk: DiskIndex,
    /// Number of units (N of the stratum).
    pub units: u64,
    /// Sum of their lengths.
    pub bytes: u64,
    /// Sum of their sizes.
    pub size: u64,
    runs: Vec<Run>,
    /// For each run the number of units in the runs before it.
    first_units: Vec<u64>,
}

impl Stratum {
    /// What is known of it before anything of it has arrived.
    pub fn unsampled(&self) -> StratumSample {
        let of_several_files = self.runs.iter().any(|run| run.file != self.runs[0].file);
        StratumSample { units: self.units, size: self.size as f64, of_several_files, ..StratumSample::default() }
    }

    fn new(disk: DiskIndex) -> Self {
        Stratum { disk, units: 0, bytes: 0, size: 0, runs: Vec::new(), first_units: Vec::new() }
    }

    fn push(&mut self, run: Run, unit_bytes: u64) {
        debug_assert_eq!(run.disk, self.disk);
        self.first_units.push(self.units);
        self.units += run.units(unit_bytes);
        self.bytes += run.len_bytes;
        self.size += run.rows.unwrap_or(run.len_bytes);
        self.runs.push(run);
    }
}

/// All units of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Length of a unit; the last of a run may be shorter.
    pub unit_bytes: u64,
    /// Number of disks.
    pub disks: usize,
    /// The strata, sorted by disk.
    pub strata: Vec<Stratum>,
}

/// A file is a stratum of its own on a disk where it has so many units; smaller ones share strata with their neighbours.
/// With fewer units the two that each stratum needs for a variance would be a large part of it.
const OWN_STRATUM_UNITS: u64 = 64;
/// Strata on a disk at most; each costs two units at least, and the moments of its groups.
const MAX_DISK_STRATA: u64 = 64;

impl Layout {
    /// Cuts the runs of a source into units of `unit_bytes`. The runs of a file must follow each other; neighbours in the
    /// order of files share strata if they are small.
    pub fn new(runs: &[Run], disks: usize, unit_bytes: u64) -> Layout {
        assert!(unit_bytes > 0, "units have a length");
        let mut strata = Vec::new();
        for disk in 0..disks as DiskIndex {
            let on_disk: Vec<Run> = runs.iter().filter(|run| run.disk == disk).copied().collect();
            strata_of_disk(disk, &on_disk, unit_bytes, &mut strata);
        }
        Layout { unit_bytes, disks, strata }
    }

    /// The layout of a source as a format cuts it.
    pub fn of(source: &dyn Source, format: &dyn Format, unit_bytes: u64) -> Layout {
        Layout::new(&format.runs(source), source.disks().len(), unit_bytes)
    }

    /// Number of all units.
    pub fn units(&self) -> u64 {
        self.strata.iter().map(|stratum| stratum.units).sum()
    }

    /// Length of all units.
    pub fn bytes(&self) -> u64 {
        self.strata.iter().map(|stratum| stratum.bytes).sum()
    }

    /// The stratum of a unit of this layout.
    pub fn stratum_of(&self, unit: &Unit) -> usize {
        let found = self.strata.iter().position(|stratum| stratum.has(unit));
        found.expect("a unit of the layout lies in a stratum")
    }

    /// Unit `index` of a stratum, in the order of files and offsets.
    pub fn unit(&self, stratum: usize, index: u64) -> Unit {
        let stratum = &self.strata[stratum];
        assert!(index < stratum.units, "unit {index} of {}", stratum.units);
        let run = stratum.first_units.partition_point(|first| *first <= index) - 1;
        let (run, at) = (&stratum.runs[run], index - stratum.first_units[run]);
        if let Some(rows) = run.rows {
            return Unit { file: run.file, offset: run.offset, len_bytes: run.len_bytes, size: rows };
        }
        let start = at * self.unit_bytes;
        let len_bytes = self.unit_bytes.min(run.len_bytes - start);
        Unit { file: run.file, offset: run.offset + start, len_bytes, size: len_bytes }
    }
}

impl Stratum {
    fn has(&self, unit: &Unit) -> bool {
        let after = self.runs.partition_point(|run| (run.file, run.offset) <= (unit.file, unit.offset));
        let run = after.checked_sub(1).map(|at| &self.runs[at]);
        run.is_some_and(|run| run.file == unit.file && unit.end() <= run.offset + run.len_bytes)
    }
}

/// Gives each large file on a disk a stratum of its own, and collects small neighbours in common ones.
fn strata_of_disk(disk: DiskIndex, runs: &[Run], unit_bytes: u64, strata: &mut Vec<Stratum>) {
    let total: u64 = runs.iter().map(|run| run.units(unit_bytes)).sum();
    let own = OWN_STRATUM_UNITS.max(total.div_ceil(MAX_DISK_STRATA));
    let mut common = Stratum::new(disk);
    for file in runs.chunk_by(|a, b| a.file == b.file) {
        let mut stratum = Stratum::new(disk);
        file.iter().for_each(|run| stratum.push(*run, unit_bytes));
        if stratum.units >= own {
            strata.push(stratum);
            continue;
        }
        stratum.runs.iter().for_each(|run| common.push(*run, unit_bytes));
        if common.units >= own {
            strata.push(std::mem::replace(&mut common, Stratum::new(disk)));
        }
    }
    if common.units == 1 && strata.last().is_some_and(|last| last.disk == disk) {
        let mut runs = strata.pop().expect("asked above").runs;
        runs.extend(common.runs);
        runs.sort_by_key(|run| (run.file, run.offset));
        let mut joined = Stratum::new(disk);
        runs.iter().for_each(|run| joined.push(*run, unit_bytes));
        strata.push(joined);
    } else if common.units > 0 {
        strata.push(common);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn run(file: FileIndex, offset: u64, len_bytes: u64, disk: DiskIndex) -> Run {
        Run { file, offset, len_bytes, disk, rows: None }
    }

    #[test]
    fn units_cover_each_byte_once() {
        let runs =
            [run(0, 0, 1000, 0), run(0, 1000, 24, 1), run(0, 1024, 4000, 0), run(1, 0, 1, 0), run(2, 0, 70_000, 1)];
        let layout = Layout::new(&runs, 2, 64);
        let mut units = BTreeSet::new();
        for (h, stratum) in layout.strata.iter().enumerate() {
            for i in 0..stratum.units {
                let unit = layout.unit(h, i);
                assert!(unit.len_bytes <= 64 && units.insert(unit));
                assert_eq!(layout.stratum_of(&unit), h);
                let holder = runs
                    .iter()
                    .find(|r| r.file == unit.file && r.offset <= unit.offset && unit.end() <= r.offset + r.len_bytes);
                assert_eq!(holder.expect("a unit lies in one run").disk, stratum.disk);
            }
        }
        assert_eq!(units.len() as u64, layout.units());
        for file in 0..3 {
            let mut at = 0;
            for unit in units.iter().filter(|u| u.file == file) {
                assert_eq!(unit.offset, at, "no gap in file {file}");
                at = unit.end();
            }
        }
        assert_eq!(layout.bytes(), 1000 + 24 + 4000 + 1 + 70_000);
    }

    #[test]
    fn large_files_have_their_own_strata_and_small_ones_share() {
        let runs: Vec<Run> = (0..10).map(|f| run(f, 0, if f == 3 { 64_000 } else { 500 }, 0)).collect();
        let layout = Layout::new(&runs, 1, 100);
        assert_eq!(layout.strata.iter().map(|s| s.units).collect::<Vec<_>>(), [640, 45]);
        let many: Vec<Run> = (0..100_000).map(|f| run(f, 0, 500, 0)).collect();
        let layout = Layout::new(&many, 1, 500);
        assert!(layout.strata.len() <= 65, "{} strata", layout.strata.len());
    }

    #[test]
    fn what_must_not_be_cut_is_one_unit() {
        let runs =
            [Run { rows: Some(1000), ..run(0, 4, 1 << 20, 0) }, Run { rows: Some(7), ..run(0, 4 + (1 << 20), 77, 0) }];
        let layout = Layout::new(&runs, 1, 64);
        assert_eq!((layout.units(), layout.strata[0].size), (2, 1007));
        assert_eq!(layout.unit(0, 1), Unit { file: 0, offset: 4 + (1 << 20), len_bytes: 77, size: 7 });
    }
}
