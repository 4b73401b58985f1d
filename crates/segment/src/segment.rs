//! One segment file in memory: its handle, its length, and how many of its bytes are live.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tessera_disk::DiskFile;
use tessera_disk::record::numbered_name;

use crate::format::{ALIGN, SEGMENT_HEADER_BYTES};

/// The directory of the segments on a disk.
pub(crate) const SEGMENTS_DIR: &str = "segments";

/// A segment. The counters change under the writer's lock; every thread may read them.
pub(crate) struct Segment {
    pub(crate) number: u64,
    pub(crate) file: Arc<dyn DiskFile>,
    /// Sequences of its records are above this.
    pub(crate) after_sequence: u64,
    pub(crate) size_limit_bytes: u64,
    /// Where the next record goes; for a sealed segment, its length.
    end: AtomicU64,
    /// Everything before is durable and whole; the scrubber stays below.
    durable_end: AtomicU64,
    /// Bytes of live records: see `ledger.rs`.
    live_bytes: AtomicU64,
    /// Some stretch is no record: it may hide records that the ledger lacks.
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

    /// Records were written up to `end`.
    pub(crate) fn set_end(&self, end: u64) {
        let before = self.end.swap(end, Ordering::AcqRel);
        assert!(end >= before, "segment {:016x}: the end goes back from {before} to {end}", self.number);
        assert!(end.is_multiple_of(ALIGN), "segment {:016x}: {end} is no place for a record", self.number);
    }

    /// What lies behind `end` was cut off while opening: a torn tail.
    pub(crate) fn cut(&self, end: u64) {
        let before = self.end.swap(end, Ordering::AcqRel);
        assert!((SEGMENT_HEADER_BYTES..=before).contains(&end), "segment {:016x} cannot be cut at {end}", self.number);
        self.durable_end.store(end, Ordering::Release);
    }

    pub(crate) fn durable_end(&self) -> u64 {
        self.durable_end.load(Ordering::Acquire)
    }

    /// A sync covered everything before `end`.
    pub(crate) fn set_durable_end(&self, end: u64) {
        assert!(end <= self.end(), "segment {:016x}: {end} is durable before it was written", self.number);
        self.durable_end.fetch_max(end, Ordering::AcqRel);
    }

    pub(crate) fn live_bytes(&self) -> u64 {
        self.live_bytes.load(Ordering::Acquire)
    }

    /// False, and nothing has changed: more would be live than the segment holds.
    #[must_use]
    pub(crate) fn add_live(&self, bytes: u64) -> bool {
        let most = self.record_bytes();
        let sum = |live: u64| live.checked_add(bytes).filter(|&sum| sum <= most);
        self.live_bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, sum).is_ok()
    }

    /// False, and nothing has changed: fewer bytes are live.
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

    /// Bytes of records, without the segment's header.
    pub(crate) fn record_bytes(&self) -> u64 {
        self.end() - SEGMENT_HEADER_BYTES
    }
}
