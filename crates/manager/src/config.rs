//! Every knob of the manager, once: default, unit, meaning.

/// How the manager behaves. All times are in milliseconds, all sizes in bytes, unless the name says otherwise.
///
/// What a *command* writes to the database must not depend on a knob that may differ between two runs of
/// the same log; knobs steer admission, timing and soft state. The exceptions are answers kept for repeated
/// requests (they quote `session_ms`), which nothing else reads.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// A session ends when it was not used for this long.
    pub session_ms: u64,
    /// A reader's session is written to the database once it is this old; younger ones live in memory, so that
    /// opening a small file costs no transaction.
    pub reader_persist_ms: u64,
    /// Answers to mutating requests are kept for this long (P8). Must exceed the longest time for which a client repeats
    /// a request (`manager_deadline_ms` of the client, 120 s by default).
    pub answers_ms: u64,
    /// How long a client may cache an entry if nobody recalls it. A restarted manager waits this long
    /// before it changes anything a client may have cached.
    pub lease_entry_ms: u64,
    /// A client that was not heard of for this long has lost its locks. A restarted manager lets clients assert what they held
    /// for as long, and gives nothing new away meanwhile.
    pub lock_session_ms: u64,
    /// Locks of a client whose last connection ended in order are gone after this, unless it comes back.
    pub lock_orphan_ms: u64,
    /// Locks that one client may hold or wait for.
    pub max_locks_per_client: usize,
    /// Leases in memory; when more are asked for, entries are answered without one.
    pub max_leases: usize,
    /// Commands in one group commit at most.
    pub max_batch_commands: usize,
    /// Bytes of commands in one group commit at most (an entry must fit a frame's payload with room to spare).
    pub max_batch_bytes: usize,
    /// Requests that may wait for a group commit; more are answered `Unavailable`.
    pub max_waiting_requests: usize,
    /// Entries of a directory in one answer.
    pub max_list_entries: u32,
    /// Extents in one answer.
    pub max_list_extents: usize,
    /// Extents in one `Commit` (more are staged by partial commits).
    pub max_commit_extents: usize,
    /// Chunks in one dedup question.
    pub max_allocate_chunks: usize,
    /// Pages whose references one command takes off at most, so that dropping a huge file never holds up others.
    pub sweep_pages: u32,
    /// Nodes that must hold an entry of the command log before it is acknowledged (m+1).
    pub log_copies: u32,
    /// Bytes of entries sent to a replica in one call.
    pub log_call_bytes: usize,
    /// A call to a log replica is given up after this long.
    pub log_call_timeout_ms: u64,
    /// A replica that failed is tried again after this long.
    pub log_retry_ms: u64,
    /// A snapshot is taken when the log since the last one has grown past this many bytes …
    pub snapshot_log_bytes: u64,
    /// … and past this fraction of the last snapshot's size, in percent.
    pub snapshot_log_percent: u64,
    /// Bytes of one piece of a snapshot.
    pub snapshot_piece_bytes: usize,

    /// Nodes are asked to beat this often.
    pub heartbeat_ms: u64,
    /// A node acknowledges puts for this long after it sent the last answered heartbeat (P11).
    pub node_lease_ms: u64,
    /// A node that was not heard of for this long is down: its groups get no new chunks.
    pub down_after_ms: u64,
    /// A node that was down for this long is out: its groups get other members. Must exceed `node_lease_ms`.
    pub out_after_ms: u64,
    /// A group closes when this many bytes of chunks were assigned to it.
    pub pg_cap_bytes: u64,
    /// Chunks in one rebuild task.
    pub task_chunks: usize,
    /// Tasks handed to one node at a time.
    pub tasks_per_node: usize,
    /// Deletes in one answer to a heartbeat.
    pub deletes_per_heartbeat: usize,
    /// Upper bound of repair traffic of one node, bytes per second; 0: none.
    pub repair_bytes_per_s: u64,
    /// Upper bound of background scrubbing of one node, bytes per second; 0: none.
    pub scrub_bytes_per_s: u64,
    /// Every disk is re-read this often; 0: only on request.
    pub scrub_every_ms: u64,
    /// Every disk lists what it holds this often; 0: only when it registers after it was out.
    pub inventory_every_ms: u64,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            session_ms: 60_000,
            reader_persist_ms: 1_000,
            answers_ms: 150_000,
            lease_entry_ms: 3_000,
            lock_session_ms: 30_000,
            lock_orphan_ms: 2_000,
            max_locks_per_client: 1 << 16,
            max_leases: 1 << 20,
            max_batch_commands: 2_048,
            max_batch_bytes: 8 << 20,
            max_waiting_requests: 65_536,
            max_list_entries: 4_096,
            max_list_extents: 16_384,
            max_commit_extents: 65_536,
            max_allocate_chunks: 16_384,
            sweep_pages: 64,
            log_copies: 3,
            log_call_bytes: 4 << 20,
            log_call_timeout_ms: 5_000,
            log_retry_ms: 500,
            snapshot_log_bytes: 64 << 20,
            snapshot_log_percent: 50,
            snapshot_piece_bytes: 4 << 20,
            heartbeat_ms: 500,
            node_lease_ms: 5_000,
            down_after_ms: 5_000,
            out_after_ms: 600_000,
            pg_cap_bytes: 64 << 30,
            task_chunks: 64,
            tasks_per_node: 4,
            deletes_per_heartbeat: 4_096,
            repair_bytes_per_s: 0,
            scrub_bytes_per_s: 16 << 20,
            scrub_every_ms: 14 * 24 * 3_600_000,
            inventory_every_ms: 24 * 3_600_000,
        }
    }
}

/// Nanoseconds of `ms` milliseconds, for adding to a time.
pub fn ns(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX / 1_000_000).saturating_mul(1_000_000)
}
