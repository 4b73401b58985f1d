//! Every knob of the client, once: name, meaning, unit, default.

use tessera_accel::{DeviceError, Spec};

tessera_knobs::knobs! {
    /// How a client behaves. `Options::default()` suits a program that stores large files.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Options {
        /// Bytes of input (hashed, coded, on their way) that one write holds at most.
        write_window_bytes: u64 = 64 << 20;
        /// Bytes of chunks that one read has on their way or waiting for its consumer at most.
        read_window_bytes: u64 = 32 << 20;
        /// Bytes of verified chunks kept for all open read handles together.
        chunk_cache_bytes: u64 = 128 << 20;
        /// Size of the buffers that input is read into, in bytes; more than the largest chunk.
        buffer_bytes: usize = 16 << 20;
        /// Chunks in one dedup question at most.
        ask_chunks: usize = 256;
        /// Dedup questions on their way at once.
        asks_in_flight: usize = 4;
        /// Bytes of fragments in one put at most.
        put_bytes: usize = 4 << 20;
        /// Puts on their way to one node at once (per write).
        puts_in_flight: usize = 4;
        /// Bytes of fragments in one get at most.
        get_bytes: usize = 2 << 20;
        /// Extents sent with one commit; more are staged by partial commits before.
        commit_extents: usize = 8192;
        /// Small files written one after another before the client asks for preallocated chunk ids.
        preallocate_after_files: u32 = 3;
        /// Chunk ids preallocated in one request.
        preallocate_chunks: u32 = 64;
        /// Small files this far apart still count as one after another.
        preallocate_pause_ms: u64 = 1_000;
        /// Chunks of small files that are remembered as written, so that they are asked about before they are sent.
        remembered_hashes: usize = 4_096;
        /// A request to the manager counts as lost after this long.
        manager_timeout_ms: u64 = 10_000;
        /// A request to the manager is repeated for this long before the operation fails.
        manager_deadline_ms: u64 = 120_000;
        /// A put counts as lost after this long.
        put_timeout_ms: u64 = 20_000;
        /// A fragment that no node takes is offered for this long before the write fails.
        put_deadline_ms: u64 = 120_000;
        /// A get counts as lost after this long.
        get_timeout_ms: u64 = 10_000;
        /// A chunk that cannot be read is tried for this long before the read fails.
        get_deadline_ms: u64 = 30_000;
        /// A fragment is late, and another is asked for, never before this time.
        hedge_min_ms: u64 = 50;
        /// A fragment is late after this many times the recent 90th percentile.
        hedge_factor: u64 = 4;
        /// Time between attempts; it doubles up to 32 times this.
        backoff_ms: u64 = 50;
        /// A group that failed a put is not asked for again for this long.
        avoid_ms: u64 = 30_000;
        /// A node that did not answer is the last choice of readers for this long.
        suspect_ms: u64 = 5_000;
        /// Threads that hash, code and verify; 0: one a core.
        worker_threads: usize = 0, in 0..=u64::MAX;
    }
    with {
        /// Host label of this process; a node with the same label is read from first. Empty: none.
        host: String = String::new();
        /// Who computes, for the whole process: the first client that says it decides. None: what the variable
        /// `TESSERA_DEVICE` says, and if that is not set, whatever the process uses already, the CPU if nothing.
        device: Option<Spec> = None;
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
