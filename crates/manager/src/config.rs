//! Every knob of the manager, once: default, unit, meaning.

tessera_knobs::knobs! {
    /// How the manager behaves. All times are in milliseconds, all sizes in bytes, unless the name says otherwise.
    ///
    /// What a *command* writes to the database must not depend on a knob that may differ between two runs of
    /// the same log; knobs steer admission, timing and soft state. The exceptions are answers kept for repeated
    /// requests (they quote `session_ms`), which nothing else reads.
    #[derive(Debug, Clone, PartialEq)]
    pub struct Config {
        /// A session ends when it was not used for this long.
        session_ms: u64 = 60_000;
        /// A reader's session is written to the database once it is this old; younger ones live in memory, so that
        /// opening a small file costs no transaction; 0: all sessions are written at once.
        reader_persist_ms: u64 = 1_000, in 0..=u64::MAX;
        /// A writer that stays open delays the collection of garbage for this long at most. What it stored earlier and has
        /// not committed by then may be removed, and its commit is refused.
        garbage_hold_ms: u64 = 7 * 24 * 3_600_000;
        /// Chunks that a writer stored whole and did not commit are kept for this long after it stored them or a dedup question last
        /// found them, so that the same write, repeated, finds them; 0: not at all. They go at once while a disk is nearly full, or
        /// when `tessera gc` asks.
        unfinished_keep_ms: u64 = 3_600_000, in 0..=u64::MAX;
        /// The reply cache keeps replies to mutating requests for this long (P8); clients stop repeating a request
        /// before (`manager_deadline_ms`, 120 s by default).
        answers_ms: u64 = 150_000;
        /// How long a client may cache an entry unless the manager recalls it. A restarted manager waits this long before it
        /// changes anything a client may have cached.
        lease_entry_ms: u64 = 2_000;
        /// A client that sent nothing for this long has lost its locks. A restarted manager lets clients assert
        /// the locks they held for as long, and grants no new ones meanwhile.
        lock_session_ms: u64 = 30_000;
        /// The locks of a client are released this long after its last connection was closed, unless it reconnects.
        lock_orphan_ms: u64 = 2_000;
        /// Locks that one client may hold or wait for. What a client asserts, up to twice as many, fits one message.
        max_locks_per_client: usize = 1 << 16, in 1..=100_000;
        /// Most leases in memory; further entries are sent without a lease.
        max_leases: usize = 1 << 20;
        /// Commands in one group commit at most.
        max_batch_commands: usize = 2_048;
        /// Bytes of commands in one group commit at most (an entry must fit a frame's payload with room to spare).
        max_batch_bytes: usize = 8 << 20, in 1..=32 << 20;
        /// Requests that may wait for a group commit; more are answered `Unavailable`.
        max_waiting_requests: usize = 65_536;
        /// Connections of clients; more are refused.
        max_client_connections: usize = 4_096;
        /// Connections of nodes; more are refused. Clients cannot take them.
        max_node_connections: usize = 1_024;
        /// Entries of a directory in one answer.
        max_list_entries: u32 = 4_096;
        /// Extents in one answer.
        max_list_extents: usize = 16_384;
        /// Extents in one `Commit` (more are staged by partial commits).
        max_commit_extents: usize = 65_536;
        /// Chunks in one dedup question.
        max_allocate_chunks: usize = 16_384;
        /// Pages whose references one command takes off at most, so that dropping a huge file never holds up others.
        sweep_pages: u32 = 64;
        /// Peers that keep the metadata, if there are that many hosts: 5, 3 or 1. With 1 only managers do, and what they lose is lost.
        /// All managers vote, even if there are more.
        max_voters: u32 = 5, in 1..=5;
        /// A manager with an empty directory waits this long for a peer of the group that it joins.
        join_timeout_ms: u64 = 60_000;
        /// A snapshot is taken when the log since the last one has grown past this many bytes …
        snapshot_log_bytes: u64 = 64 << 20;
        /// … and past this share of the last snapshot's size; 0: whatever its size.
        snapshot_log_percent: u64 = 20, in 0..=u64::MAX;

        /// Most bytes of tiny files that the metadata keeps until they move into packs; 0: none. Databases, snapshots and new managers carry
        /// all of them.
        inlined_bytes: u64 = 128 << 20, in 0..=u64::MAX;

        /// While fewer bytes are free on a manager's disk, or less than a sixteenth of a small one, it refuses requests that make the
        /// metadata grow, and another manager leads if one has more room; 0: never.
        min_free_bytes: u64 = 64 << 20, in 0..=u64::MAX;

        /// A manager does not lead if its wall clock is further than this from the time of the last change: it is set wrong, or the
        /// store was off for that long.
        max_clock_jump_ms: u64 = 30 * 24 * 3_600_000;

        /// Interval of the heartbeats of nodes.
        heartbeat_ms: u64 = 1_000;
        /// A node acknowledges puts for this long after it sent the last answered heartbeat (P11).
        node_lease_ms: u64 = 5_000;
        /// A node that sent nothing for this long is down: its groups get no new chunks.
        down_after_ms: u64 = 5_000;
        /// A node that was down for this long is out: its groups get other members. Must exceed `node_lease_ms`.
        out_after_ms: u64 = 600_000;
        /// A disk that its node runs without counts as lost after this long: it was replaced, or not mounted.
        /// `tessera repair` does not wait for it.
        disk_gone_after_ms: u64 = 60_000;
        /// A group closes when this many bytes of chunks were assigned to it.
        pg_cap_bytes: u64 = 64 << 30;
        /// Chunks in one rebuild task.
        task_chunks: usize = 64;
        /// Tasks handed to one node at a time.
        tasks_per_node: usize = 4;
        /// Deletes in one answer to a heartbeat.
        deletes_per_heartbeat: usize = 4_096;
        /// Upper bound of repair traffic of one node; 0: none.
        repair_bytes_per_s: u64 = 0, in 0..=u64::MAX;
        /// Upper bound of background scrubbing of one node; 0: none.
        scrub_bytes_per_s: u64 = 16 << 20, in 0..=u64::MAX;
        /// Every disk is re-read this often; 0: only on request.
        scrub_every_ms: u64 = 14 * 24 * 3_600_000, in 0..=u64::MAX;
        /// Every page of the manager's database is re-read this often, and compared with its checksum; 0: only pages that are needed.
        metadata_scrub_every_ms: u64 = 24 * 3_600_000, in 0..=u64::MAX;
        /// The managers compare what their databases hold this often; 0: only when a person asks (`tessera scrub`).
        metadata_compare_every_ms: u64 = 24 * 3_600_000, in 0..=u64::MAX;
        /// Upper bound of the reading for each of the two.
        metadata_scrub_bytes_per_s: u64 = 4 << 20;
        /// Parity of chunks this old is compared with what their slices give, newest first; a requested scrub takes all.
        prove_after_ms: u64 = 60_000;
        /// Every disk lists what it holds this often, and after its daemon restarted; 0: only when it registers after it was out.
        inventory_every_ms: u64 = 24 * 3_600_000, in 0..=u64::MAX;
    }
}

/// Nanoseconds of `ms` milliseconds, for adding to a time.
pub fn ns(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX / 1_000_000).saturating_mul(1_000_000)
}
