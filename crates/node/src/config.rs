//! Every knob of a node: default, unit, meaning.
//!
//! The manager decides the heartbeat interval, the lease and the bandwidth bounds for all nodes; the values here hold until its
//! first answer.

/// Knobs of a node. All times in the unit their name ends with.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeConfig {
    // --- membership -----------------------------------------------------------------------------------------
    /// Shortest wait before a failed registration is tried again, ms; doubles up to `register_retry_max_ms`.
    pub register_retry_min_ms: u64,
    /// Longest wait between registrations, ms.
    pub register_retry_max_ms: u64,
    /// A registration that is not answered for so long counts as failed, ms.
    pub register_timeout_ms: u64,
    /// Interval of heartbeats until the manager names one, ms.
    pub heartbeat_ms: u64,
    /// A heartbeat that is not answered for so long counts as lost, ms.
    pub heartbeat_timeout_ms: u64,
    /// With finished work to report the next heartbeat goes out this soon after the last one, ms.
    pub early_heartbeat_ms: u64,
    /// Most finished fragments, deletes and bad fragments (each) in one heartbeat.
    pub max_report_items: usize,

    // --- what a peer may ask (P14) --------------------------------------------------------------------------
    /// Most fragments in one put or get.
    pub max_items: usize,
    /// Longest chunk accepted, bytes.
    pub max_chunk_bytes: u64,
    /// Bytes of puts that may wait for disks before further ones are told to come later.
    pub max_waiting_put_bytes: u64,

    // --- tasks ----------------------------------------------------------------------------------------------
    /// Tasks kept at a time; the manager hands out others later.
    pub max_tasks: usize,
    /// Chunks being rebuilt at a time.
    pub rebuild_parallel: usize,
    /// Bytes of fragments that rebuilds may hold in memory, roughly.
    pub rebuild_memory_bytes: u64,
    /// A source that does not answer for so long is replaced by another, ms.
    pub rebuild_fetch_timeout_ms: u64,
    /// Bound for all repair traffic until the manager names one, bytes per second; 0: none.
    pub repair_bytes_per_s: u64,
    /// Bound for background scrubbing until the manager names one, bytes per second; 0: none.
    pub scrub_bytes_per_s: u64,
    /// Fragments verified in one step.
    pub verify_batch: usize,
    /// Fragments on one page of an inventory.
    pub inventory_page: usize,
    /// An inventory page that is not answered for so long is sent again, ms.
    pub inventory_timeout_ms: u64,

    // --- disks ----------------------------------------------------------------------------------------------
    /// Bytes re-read in one step of a scrub.
    pub scrub_step_bytes: u64,
    /// A disk is scrubbed again this long after its last cycle ended, seconds; 0: only when asked.
    pub scrub_every_s: u64,
    /// How often a disk is asked whether a segment is worth compacting, ms; 0: only when asked.
    pub compact_every_ms: u64,
    /// Bytes copied in one step of compaction: puts wait for it.
    pub compact_step_bytes: u64,
    /// A segment with at least this share of dead bytes is compacted, percent.
    pub compact_dead_percent: u8,
    /// ... and one with at least this share when a garbage collection was asked for: less is not worth copying the rest, percent.
    pub gc_dead_percent: u8,
    /// A disk whose writes fail this often in a row (other than for want of space) has failed.
    pub disk_write_faults: u32,
    /// An operation that a disk does not finish for so long means that the disk has failed, ms.
    pub disk_stuck_ms: u64,
}

impl Default for NodeConfig {
    fn default() -> Self {
        NodeConfig {
            register_retry_min_ms: 100,
            register_retry_max_ms: 5_000,
            register_timeout_ms: 5_000,
            heartbeat_ms: 1_000,
            heartbeat_timeout_ms: 3_000,
            early_heartbeat_ms: 50,
            max_report_items: 4_096,

            max_items: 4_096,
            max_chunk_bytes: 64 << 20,
            max_waiting_put_bytes: 512 << 20,

            max_tasks: 64,
            rebuild_parallel: 8,
            rebuild_memory_bytes: 128 << 20,
            rebuild_fetch_timeout_ms: 10_000,
            repair_bytes_per_s: 64 << 20,
            scrub_bytes_per_s: 16 << 20,
            verify_batch: 64,
            inventory_page: 8_192,
            inventory_timeout_ms: 10_000,

            scrub_step_bytes: 4 << 20,
            scrub_every_s: 7 * 24 * 3_600,
            compact_every_ms: 60_000,
            compact_step_bytes: 8 << 20,
            compact_dead_percent: 50,
            gc_dead_percent: 10,
            disk_write_faults: 3,
            disk_stuck_ms: 30_000,
        }
    }
}

/// Milliseconds as nanoseconds, saturating.
pub(crate) fn ms(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX).saturating_mul(1_000_000)
}
