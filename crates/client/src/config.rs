//! Every knob of the client, once: name, meaning, unit, default.

use tessera_accel::{DeviceError, Spec};

/// How a client behaves. `Options::default()` suits a program that stores large files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Bytes of input (hashed, coded, on their way) that one write holds at most.
    pub write_window_bytes: u64,
    /// Bytes of chunks that one read has on their way or waiting for its consumer at most.
    pub read_window_bytes: u64,
    /// Bytes of verified chunks kept for all open read handles together.
    pub chunk_cache_bytes: u64,
    /// Size of the buffers that input is read into, in bytes; more than the largest chunk.
    pub buffer_bytes: usize,
    /// Chunks in one dedup question at most.
    pub ask_chunks: usize,
    /// Dedup questions on their way at once.
    pub asks_in_flight: usize,
    /// Bytes of fragments in one put at most.
    pub put_bytes: usize,
    /// Puts on their way to one node at once (per write).
    pub puts_in_flight: usize,
    /// Bytes of fragments in one get at most.
    pub get_bytes: usize,
    /// Extents sent with one commit; more are staged by partial commits before.
    pub commit_extents: usize,
    /// Small files written one after another before preallocated are asked for ([`crate::prealloc`]).
    pub preallocate_after_files: u32,
    /// PreallocatedChunks asked for at once.
    pub preallocate_chunks: u32,
    /// Small files so many milliseconds apart still come one after another.
    pub preallocate_pause_ms: u64,
    /// Chunks of small files that are remembered as written, so that they are asked about before they are sent.
    pub remembered_hashes: usize,
    /// A request to the manager counts as lost after so many milliseconds.
    pub manager_timeout_ms: u64,
    /// A request to the manager is repeated for so many milliseconds before the operation fails.
    pub manager_deadline_ms: u64,
    /// A put counts as lost after so many milliseconds.
    pub put_timeout_ms: u64,
    /// A fragment that no node takes is offered for so many milliseconds before the write fails.
    pub put_deadline_ms: u64,
    /// A get counts as lost after so many milliseconds.
    pub get_timeout_ms: u64,
    /// A chunk that cannot be read is tried for so many milliseconds before the read fails.
    pub get_deadline_ms: u64,
    /// A fragment is late, and another is asked for, never before so many milliseconds.
    pub hedge_min_ms: u64,
    /// A fragment is late after this many times the recent 90th percentile.
    pub hedge_factor: u64,
    /// Time between attempts, in milliseconds; it doubles up to 32 times this.
    pub backoff_ms: u64,
    /// A group that failed a put is not asked for again for so many milliseconds.
    pub avoid_ms: u64,
    /// A node that did not answer is the last choice of readers for so many milliseconds.
    pub suspect_ms: u64,
    /// Threads that hash, code and verify; 0: one a core.
    pub worker_threads: usize,
    /// Host label of this process; a node with the same label is read from first. Empty: none.
    pub host: String,
    /// Who computes, for the whole process: the first client that says it decides. None: what the variable
    /// `TESSERA_DEVICE` says, and if that is not set, whatever the process uses already, the CPU if nothing.
    pub device: Option<Spec>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            write_window_bytes: 64 << 20,
            read_window_bytes: 32 << 20,
            chunk_cache_bytes: 128 << 20,
            buffer_bytes: 16 << 20,
            ask_chunks: 256,
            asks_in_flight: 4,
            put_bytes: 4 << 20,
            puts_in_flight: 4,
            get_bytes: 2 << 20,
            commit_extents: 8192,
            preallocate_after_files: 3,
            preallocate_chunks: 64,
            preallocate_pause_ms: 1_000,
            remembered_hashes: 4_096,
            manager_timeout_ms: 10_000,
            manager_deadline_ms: 120_000,
            put_timeout_ms: 20_000,
            put_deadline_ms: 120_000,
            get_timeout_ms: 10_000,
            get_deadline_ms: 30_000,
            hedge_min_ms: 50,
            hedge_factor: 4,
            backoff_ms: 50,
            avoid_ms: 30_000,
            suspect_ms: 5_000,
            worker_threads: 0,
            host: String::new(),
            device: None,
        }
    }
}

/// Nanoseconds in a millisecond.
pub(crate) const MS: i64 = 1_000_000;

impl Options {
    /// Makes the process compute where these options, or the environment, say.
    pub(crate) fn use_device(&self) -> Result<(), DeviceError> {
        let named = || std::env::var("TESSERA_DEVICE").ok().filter(|name| !name.is_empty()).map(|name| name.parse());
        match self.device.map(Ok).or_else(named).transpose()? {
            Some(spec) => tessera_accel::use_device(spec, Default::default()).map(drop),
            None => Ok(()),
        }
    }

    /// Pause before attempt number `attempt` (from 1), in nanoseconds.
    pub(crate) fn backoff_ns(&self, attempt: u32) -> i64 {
        ms(self.backoff_ms) << attempt.saturating_sub(1).min(5)
    }
}

/// Milliseconds as nanoseconds.
pub(crate) fn ms(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX / MS).saturating_mul(MS)
}
