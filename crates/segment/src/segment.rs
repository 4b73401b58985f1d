//! One segment file in memory: its handle and what of it is alive.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tessera_disk::DiskFile;
use tessera_disk::record::numbered_name;

/// The directory of the segments on a disk.
pub(crate) const SEGMENTS_DIR: &str = "segments";

/// A segment. The counters are changed under the writer's lock and read by anybody.
pub(crate) struct Segment {
    pub(crate) number: u64,
    pub(crate) file: Arc<dyn DiskFile>,
    /// Sequences of its records are above this.
    pub(crate) after_sequence: u64,
    pub(crate) size_limit_bytes: u64,
    /// Where the next record goes; for a sealed segment, its length.
    end: AtomicU64,
    /// Up to here everything is durable and whole; the scrubber stays below.
    durable_end: AtomicU64,
    /// Bytes of records that decide about a fragment, and of delete records still needed.
    live_bytes: AtomicU64,
    /// Some stretch of it could not be understood: it may hold records nobody counted.
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

    pub(crate) fn set_end(&self, end: u64) {
        self.end.store(end, Ordering::Release);
    }

    pub(crate) fn durable_end(&self) -> u64 {
        self.durable_end.load(Ordering::Acquire)
    }

    pub(crate) fn set_durable_end(&self, end: u64) {
        self.durable_end.store(end, Ordering::Release);
    }

    pub(crate) fn live_bytes(&self) -> u64 {
        self.live_bytes.load(Ordering::Acquire)
    }

    pub(crate) fn add_live(&self, bytes: u64) {
        self.live_bytes.fetch_add(bytes, Ordering::AcqRel);
    }

    pub(crate) fn sub_live(&self, bytes: u64) {
        let before = self.live_bytes.fetch_sub(bytes, Ordering::AcqRel);
        assert!(before >= bytes, "segment {:016x}: live bytes below zero", self.number);
    }

    pub(crate) fn is_damaged(&self) -> bool {
        self.damaged.load(Ordering::Acquire)
    }

    pub(crate) fn set_damaged(&self) {
        self.damaged.store(true, Ordering::Release);
    }

    /// Bytes of records, without the segment's header.
    pub(crate) fn record_bytes(&self) -> u64 {
        self.end() - crate::format::SEGMENT_HEADER_BYTES
    }
}
