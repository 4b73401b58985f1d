//! Every knob of a node: default, unit, meaning.
//!
//! The manager decides the heartbeat interval, the lease and the bandwidth bounds for all nodes; the values here hold until its
//! first answer.

tessera_knobs::knobs! {
    /// Knobs of a node. All times in the unit their name ends with.
    #[derive(Clone, Debug, PartialEq)]
    pub struct NodeConfig {
        // --- membership -----------------------------------------------------------------------------------------
        /// Shortest wait before a failed registration is tried again; doubles up to `register_retry_max_ms`.
        register_retry_min_ms: u64 = 100;
        /// Longest wait between registrations.
        register_retry_max_ms: u64 = 5_000;
        /// A registration without an answer for this long counts as failed.
        register_timeout_ms: u64 = 5_000;
        /// Interval of heartbeats until the manager names one.
        heartbeat_ms: u64 = 1_000;
        /// A heartbeat without an answer for this long counts as lost.
        heartbeat_timeout_ms: u64 = 3_000;
        /// With finished work to report the next heartbeat goes out this soon after the last one.
        early_heartbeat_ms: u64 = 50;
        /// Most finished fragments, deletes and bad fragments (each) in one heartbeat.
        max_report_items: usize = 4_096;

        // --- what a peer may ask (P14) --------------------------------------------------------------------------
        /// Connections of clients; more are refused.
        max_client_connections: usize = 4_096;
        /// Connections of other nodes; more are refused. Clients cannot take them.
        max_node_connections: usize = 1_024;
        /// Most fragments in one put or get.
        max_items: usize = 4_096;
        /// Longest chunk accepted.
        max_chunk_bytes: u64 = 64 << 20;
        /// Most bytes of puts that wait for disks; further puts are refused with a request to retry.
        max_waiting_put_bytes: u64 = 512 << 20;

        // --- tasks ----------------------------------------------------------------------------------------------
        /// Tasks kept at a time; the manager hands out others later.
        max_tasks: usize = 64;
        /// Chunks being rebuilt at a time.
        rebuild_parallel: usize = 8;
        /// Bytes of fragments that rebuilds may hold in memory, roughly.
        rebuild_memory_bytes: u64 = 128 << 20;
        /// A source that does not answer for this long is replaced by another.
        rebuild_fetch_timeout_ms: u64 = 10_000;
        /// Bound for all repair traffic until the manager names one; 0: none.
        repair_bytes_per_s: u64 = 64 << 20, in 0..=u64::MAX;
        /// Bound for background scrubbing until the manager names one; 0: none.
        scrub_bytes_per_s: u64 = 16 << 20, in 0..=u64::MAX;
        /// Fragments verified in one step.
        verify_batch: usize = 64;
        /// Fragments on one page of an inventory.
        inventory_page: usize = 8_192;
        /// An inventory page without an answer for this long is sent again.
        inventory_timeout_ms: u64 = 10_000;

        // --- disks ----------------------------------------------------------------------------------------------
        /// Bytes re-read in one step of a scrub.
        scrub_step_bytes: u64 = 4 << 20;
        /// A disk is scrubbed again this long after its last cycle ended; 0: only when asked.
        scrub_every_s: u64 = 7 * 24 * 3_600, in 0..=u64::MAX;
        /// How often a disk is asked whether a segment is worth compacting; 0: only when asked.
        compact_every_ms: u64 = 60_000, in 0..=u64::MAX;
        /// Bytes copied in one step of compaction: puts wait for it.
        compact_step_bytes: u64 = 8 << 20;
        /// A segment with at least this share of dead bytes is compacted.
        compact_dead_percent: u8 = 50, in 1..=100;
        /// When a garbage collection was asked for, a segment with at least this share of dead bytes is compacted; 0:
        /// any.
        gc_dead_percent: u8 = 10, in 0..=100;
        /// How often this node looks for packs of small files of which little is left, and writes its share of them anew, and for small files that may move
        /// into packs; 0: never.
        rewrite_packs_every_ms: u64 = 600_000, in 0..=u64::MAX;
        /// Packs of whose bytes at most this share is left are written anew.
        rewrite_living_percent: u8 = 50, in 1..=90;
        /// Small files that were written by themselves, and not written again for so long, move into packs when this node looks for packs; 0: all.
        pack_after_ms: u64 = 600_000, in 0..=u64::MAX;
        /// A disk whose writes fail this often in a row (other than for want of space) has failed.
        disk_write_faults: u32 = 3;
        /// A disk that does not finish an operation for this long has failed.
        disk_stuck_ms: u64 = 30_000;
    }
}

/// Milliseconds as nanoseconds, saturating.
pub(crate) fn ms(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX).saturating_mul(1_000_000)
}
