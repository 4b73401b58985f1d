//! The options of a segment store: default, unit, range.

tessera_knobs::knobs! {
    /// Options of a [`crate::SegmentStore`]. The format does not depend on them: a disk may be opened with other options than
    /// it was written with.
    #[derive(Clone, Debug)]
    pub struct Options {
        /// Segments are sealed before they would pass this size, or half of `reserve_bytes` if that is less (but not less
        /// than 1/1024 of the disk), so that compaction has room for the live bytes of any; a longer record has a segment
        /// of its own.
        segment_size_bytes: u64 = 256 << 20, in 64 << 10..=16 << 30;
        /// Fragments are refused when less than this would stay free on the disk, so that deletes and compaction,
        /// which free space, always have some; 0: none is kept free.
        reserve_bytes: u64 = 512 << 20, in 0..=u64::MAX;
        /// Bytes that compaction of one disk holds in memory at most, one record at least.
        compact_buffer_bytes: u64 = 4 << 20;
    }
}
