//! Statistics of a store.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::cell::{Counters, LEVELS};
use crate::plan::BOTTOM;
use crate::state::Shared;

/// Statistics of a store. Counters start when it is opened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// Records in cells, overwritten and deleted ones included.
    pub cell_records: u64,
    /// Deletes in cells.
    pub cell_deletes: u64,
    /// Records in insert buffers.
    pub buffer_records: u64,
    /// Cells from the newest to the oldest: level, records, bytes of the file.
    pub cells: Vec<(u32, u64, u64)>,
    /// Bytes of all cells' files.
    pub cell_file_bytes: u64,
    /// Bytes of all value files, in which large values are.
    pub value_file_bytes: u64,
    /// Bytes of them that no record points to.
    pub value_dead_bytes: u64,
    /// Number of value files.
    pub value_files: u64,
    /// Memory of the indexes.
    pub index_bytes: u64,
    /// Memory of the filters.
    pub filter_bytes: u64,
    /// Memory of the insert buffers.
    pub buffer_bytes: u64,
    /// Memory of the record cache.
    pub cache_bytes: u64,
    /// Memory of running merges.
    pub merge_bytes: u64,
    /// Lookups.
    pub lookups: u64,
    /// Lookups answered by the insert buffers.
    pub buffer_hits: u64,
    /// Lookups answered by the record cache.
    pub cache_hits: u64,
    /// Pages read for lookups.
    pub page_reads: u64,
    /// Bytes read from cells and value files, by lookups, scans and merges.
    pub read_bytes: u64,
    /// Bytes of keys and values in writes by the user.
    pub user_bytes: u64,
    /// Bytes written to logs.
    pub log_bytes: u64,
    /// Bytes written to cells and value files.
    pub written_cell_bytes: u64,
    /// Bytes written to manifests.
    pub manifest_bytes: u64,
    /// Buffers turned into cells.
    pub flushes: u64,
    /// Merges finished.
    pub merges: u64,
    /// Microseconds that writers waited for room or were slowed down.
    pub wait_us: u64,
    /// Microseconds spent turning buffers into cells, on any thread.
    pub flush_us: u64,
    /// Microseconds spent merging, on any thread.
    pub merge_us: u64,
    /// Records read by merges; a record counts once per merge.
    pub merged_records: u64,
    /// Lookups answered by cells, per level (255: the oldest, folded cell). Levels without any are left out.
    pub level_hits: Vec<(u32, u64)>,
    /// Cells in which a merge found damage or a part that the disk cannot read.
    pub damaged_cells: u64,
    /// The last background failure.
    pub failure: Option<String>,
}

impl Stats {
    /// Bytes written to disk per byte from the user.
    #[must_use]
    pub fn write_amplification(&self) -> f64 {
        (self.log_bytes + self.written_cell_bytes + self.manifest_bytes) as f64 / self.user_bytes.max(1) as f64
    }

    /// Bytes of index and filter memory per record.
    #[must_use]
    pub fn bytes_per_record(&self) -> f64 {
        (self.index_bytes + self.filter_bytes) as f64 / self.cell_records.max(1) as f64
    }
}

/// What [`crate::Store::compact`] did. Buffers were turned into cells before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compaction {
    /// Cells before and after.
    pub cells: (u64, u64),
    /// Records in cells before and after. What is gone was overwritten or deleted, or was a delete.
    pub records: (u64, u64),
    /// Bytes of all cells and value files before and after.
    pub file_bytes: (u64, u64),
    /// Bytes written to cells and value files meanwhile.
    pub written_bytes: u64,
}

impl Compaction {
    pub(crate) fn between(before: &Stats, after: &Stats) -> Self {
        let of = |figure: fn(&Stats) -> u64| (figure(before), figure(after));
        Compaction {
            cells: of(|s| s.cells.len() as u64),
            records: of(|s| s.cell_records),
            file_bytes: of(|s| s.cell_file_bytes + s.value_file_bytes),
            written_bytes: after.written_cell_bytes - before.written_cell_bytes,
        }
    }
}

fn level_hits(counters: &Counters) -> Vec<(u32, u64)> {
    let level = |at: usize| if at + 1 == LEVELS { BOTTOM } else { at as u32 };
    let hits = counters.level_hits.iter().enumerate();
    hits.map(|(at, n)| (level(at), n.load(Ordering::Relaxed))).filter(|(_, n)| *n > 0).collect()
}

pub(crate) fn collect(shared: &Shared) -> Stats {
    let state = shared.current();
    let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let c = &shared.context.counters;
    let mut stats = Stats {
        buffer_records: (state.active.len() + state.frozen.iter().map(|b| b.len()).sum::<usize>()) as u64,
        buffer_bytes: state.active.bytes() + state.frozen.iter().map(|b| b.bytes()).sum::<u64>(),
        cache_bytes: shared.cache.bytes(),
        merge_bytes: shared.jobs_bytes(),
        lookups: of(&c.lookups),
        buffer_hits: of(&c.buffer_hits),
        cache_hits: of(&c.cache_hits),
        page_reads: of(&c.page_reads),
        read_bytes: of(&c.read_bytes),
        user_bytes: of(&c.user_bytes),
        log_bytes: of(&c.log_bytes),
        written_cell_bytes: of(&c.cell_bytes),
        manifest_bytes: of(&c.manifest_bytes),
        flushes: of(&c.flushes),
        merges: of(&c.merges),
        wait_us: of(&c.wait_us),
        flush_us: of(&c.flush_us),
        merge_us: of(&c.merge_us),
        merged_records: of(&c.merged_records),
        level_hits: level_hits(c),
        ..Stats::default()
    };
    for cell in state.cells.iter() {
        let (index, filter) = cell.index.memory_bytes();
        stats.index_bytes += index;
        stats.filter_bytes += filter;
        stats.cell_records += cell.footer.records;
        stats.cell_deletes += cell.footer.deletes;
        stats.cell_file_bytes += cell.footer.file_bytes();
        let (value_bytes, dead) = cell.value_bytes();
        stats.value_file_bytes += value_bytes;
        stats.value_dead_bytes += dead;
        stats.value_files += cell.values.len() as u64;
        stats.damaged_cells += u64::from(cell.damage.get().is_some());
        stats.cells.push((cell.level, cell.footer.records, cell.footer.file_bytes()));
    }
    let failures = shared.failures.lock();
    let failure = failures.stopped.as_ref().or(failures.flush.as_ref()).or(failures.merge.as_ref());
    stats.failure = failure.map(ToString::to_string);
    stats
}
