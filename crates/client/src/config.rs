//! Every knob of the client, once: name, meaning, unit, default.

use tessera_accel::{DeviceError, Spec};

tessera_knobs::knobs! {
    /// How a client behaves. `Options::default()` suits a program that stores large files.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Options {
        /// Most bytes that all files which are written and read as a whole hold together. Open files are not counted.
        memory_bytes: u64 = 1 << 30;
        /// Most bytes of input (hashed, coded, in flight) that one write holds.
        write_window_bytes: u64 = 64 << 20;
        /// Most bytes of chunks that one read has in flight or waiting for its consumer.
        read_window_bytes: u64 = 32 << 20;
        /// Bytes of verified chunks kept for all open read handles together.
        chunk_cache_bytes: u64 = 128 << 20;
        /// Size of the buffers that input is read into, in bytes; more than the largest chunk.
        buffer_bytes: usize = 16 << 20;
        /// Most chunks in one dedup question.
        ask_chunks: usize = 256;
        /// Dedup questions in flight at once.
        asks_in_flight: usize = 4;
        /// Most bytes of fragments in one put.
        put_bytes: usize = 4 << 20;
        /// Puts in flight to one node at once (per write).
        puts_in_flight: usize = 4;
        /// Most bytes of fragments in one get.
        get_bytes: usize = 2 << 20;
        /// Most extents sent with one commit; partial commits stage the rest before.
        commit_extents: usize = 8192;
        /// Small files written one after another before the client asks for preallocated chunk ids.
        preallocate_after_files: u32 = 3;
        /// Chunk ids preallocated in one request.
        preallocate_chunks: u32 = 64;
        /// Small files this far apart still count as one after another.
        preallocate_pause_ms: u64 = 1_000;
        /// Chunks of small files whose hashes are remembered as written; the client asks about them before it sends
        /// them.
        remembered_hashes: usize = 4_096;
        /// A file of at most this many bytes that would move into a pack is sent to the manager, which keeps it until then; 0: none is.
        inline_bytes: u64 = 4 << 10, in 0..=u64::MAX;
        /// For this long the client stores tiny files on nodes after the manager refused one.
        inline_pause_ms: u64 = 10_000;
        /// A request to the manager counts as lost after this long.
        manager_timeout_ms: u64 = 10_000;
        /// A request to the manager is repeated for this long before the operation fails.
        manager_deadline_ms: u64 = 120_000;
        /// A put counts as lost after this long.
        put_timeout_ms: u64 = 20_000;
        /// A fragment that no node takes is offered for this long before the write fails, or before it is left to repair if
        /// it is redundancy of an optimistic write.
        put_deadline_ms: u64 = 120_000;
        /// Once the version of an optimistic write is visible, redundancy is left to repair if its node refuses it for this
        /// long, or if no node has acknowledged any for this long.
        late_deadline_ms: u64 = 10_000;
        /// A get counts as lost after this long.
        get_timeout_ms: u64 = 10_000;
        /// A chunk that cannot be read is tried for this long before the read fails.
        get_deadline_ms: u64 = 30_000;
        /// Least time before a fragment counts as late and another is requested.
        hedge_min_ms: u64 = 50;
        /// A fragment is late after this many times the recent 90th percentile.
        hedge_factor: u64 = 4;
        /// Time between attempts; it doubles up to 32 times this.
        backoff_ms: u64 = 50;
        /// For this long the client avoids a group that failed a put.
        avoid_ms: u64 = 30_000;
        /// For this long readers try a node that did not answer only after all others.
        suspect_ms: u64 = 5_000;
        /// Threads that hash, code and verify; 0: one per core.
        worker_threads: usize = 0, in 0..=u64::MAX;
    }
    with {
        /// Host label of this process; a node with the same label is read from first. Empty: none.
        host: String = String::new();
        /// The device that computes, for the whole process: the first client that sets it decides. None: what the
        /// variable `TESSERA_DEVICE` says; if that is not set, the device that the process uses already; else the CPU.
        device: Option<Spec> = None;
    }
}

/// Nanoseconds in a millisecond.
pub(crate) const MS: i64 = 1_000_000;

impl Options {
    /// Makes the process compute on the device that these options, or the environment, name.
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
