//! The in-memory state of one segment file: its handle, its length, its live bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tessera_disk::DiskFile;
use tessera_disk::record::numbered_name;

use crate::format::{ALIGN, SEGMENT_HEADER_BYTES};

/// The directory of the segments on a disk.
pub(crate) const SEGMENTS_DIR: &str = "segments";

/// A segment. Its counters change under the writer's lock; all threads may read them.
pub(crate) struct Segment {
    pub(crate) number: u64,
    pub(crate) file: Arc<dyn DiskFile>,
    /// All records have sequences above this.
    pub(crate) after_sequence: u64,
    pub(crate) size_limit_bytes: u64,
    /// Offset of the next record; for a sealed segment, its length.
    end: AtomicU64,
    /// Every byte before is durable and complete; the scrubber stays below.
    durable_end: AtomicU64,
    /// Bytes of live records: see `ledger.rs`.
    live_bytes: AtomicU64,
    /// Some stretch holds no valid record, and may hide records that the ledger lacks.
    damaged: AtomicBool,
}

impl Segment {
    pub(crate) fn new(
        number: u64,
        file: Arc<dyn DiskFile>,
        after_sequence: u64,
        size_limit_bytes: u64,
        end: u64,
    ) -> Self {
        assert!(end >= SEGMENT_HEADER_BYTES, "segment {number:016x} ends at {end}, within its header");
        Segment {
            number,
            file,
            after_sequence,
            size_limit_bytes,
            end: AtomicU64::new(end),
            durable_end: AtomicU64::new(end),
            live_bytes: AtomicU64::new(0),
            damaged: AtomicBool::new(false),
        }
    }

    pub(crate) fn path(number: u64) -> String {
        format!("{SEGMENTS_DIR}/{}", numbered_name(number, ".seg"))
    }

    pub(crate) fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    /// Notes that records were written up to `end`.
    pub(crate) fn set_end(&self, end: u64) {
        let before = self.end.swap(end, Ordering::AcqRel);
        assert!(end >= before, "segment {:016x}: the end goes back from {before} to {end}", self.number);
        assert!(end.is_multiple_of(ALIGN), "segment {:016x}: {end} is no place for a record", self.number);
    }

    /// Notes that opening cut a torn tail at `end`.
    pub(crate) fn cut(&self, end: u64) {
        let before = self.end.swap(end, Ordering::AcqRel);
        assert!((SEGMENT_HEADER_BYTES..=before).contains(&end), "segment {:016x} cannot be cut at {end}", self.number);
        self.durable_end.store(end, Ordering::Release);
    }

    pub(crate) fn durable_end(&self) -> u64 {
        self.durable_end.load(Ordering::Acquire)
    }

    /// Notes that a sync covered everything before `end`.
    pub(crate) fn set_durable_end(&self, end: u64) {
        assert!(end <= self.end(), "segment {:016x}: {end} is durable before it was written", self.number);
        self.durable_end.fetch_max(end, Ordering::AcqRel);
    }

    pub(crate) fn live_bytes(&self) -> u64 {
        self.live_bytes.load(Ordering::Acquire)
    }

    /// Returns false and changes nothing if the live bytes would exceed the segment.
    #[must_use]
    pub(crate) fn add_live(&self, bytes: u64) -> bool {
        let most = self.record_bytes();
        let sum = |live: u64| live.checked_add(bytes).filter(|&sum| sum <= most);
        self.live_bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, sum).is_ok()
    }

    /// Returns false and changes nothing if fewer bytes are live.
    #[must_use]
    pub(crate) fn sub_live(&self, bytes: u64) -> bool {
        self.live_bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, |live| live.checked_sub(bytes)).is_ok()
    }

    /// Bytes of dead records, damaged stretches included.
    pub(crate) fn dead_bytes(&self) -> u64 {
        self.record_bytes().saturating_sub(self.live_bytes())
    }

    pub(crate) fn is_damaged(&self) -> bool {
        self.damaged.load(Ordering::Acquire)
    }

    pub(crate) fn set_damaged(&self) {
        self.damaged.store(true, Ordering::Release);
    }

    /// Bytes of records, without the segment header.
    pub(crate) fn record_bytes(&self) -> u64 {
        self.end() - SEGMENT_HEADER_BYTES
    }
}
