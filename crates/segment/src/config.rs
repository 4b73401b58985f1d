//! The options of a segment store: default, unit, range.

/// Options of a [`crate::SegmentStore`]. The format does not depend on them: a disk may be opened with other options than it was
/// written with.
#[derive(Clone, Debug)]
pub struct Options {
    /// Segments are sealed before they would pass this many bytes. Default 256 MiB; 64 KiB to
    /// 16 GiB. A single record larger than this gets a segment of its own.
    pub segment_size_bytes: u64,
    /// Fragments are refused when less than this would stay free, so that deletes and compaction, which free space, always have
    /// some. Default 512 MiB (two segments); 0 to the disk's size.
    pub reserve_bytes: u64,
    /// A sealed segment is compacted once this share of it is dead, percent. Default 50; 1 to 100.
    pub compact_dead_percent: u64,
    /// Most bytes that compaction holds in memory. Default 4 MiB; one record at least.
    pub compact_buffer_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            segment_size_bytes: 256 << 20,
            reserve_bytes: 512 << 20,
            compact_dead_percent: 50,
            compact_buffer_bytes: 4 << 20,
        }
    }
}
