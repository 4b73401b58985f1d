//! One bound for the bytes that all files of a client hold while they are written and read
//! ([`memory_bytes`](crate::Options::memory_bytes)).
//!
//! An operation takes its whole share before its first byte, and asks for no other while it has one: so whoever holds something
//! can go on, and shares come back. Shares are given in the order in which they were asked for. Small files have shares of their own, so
//! that they do not wait behind long ones. A share counts until the last buffer is dropped that was taken under it.
//!
//! Open files ([`ReadHandle`](crate::ReadHandle), [`WriteHandle`](crate::WriteHandle)) take no share: a program may hold any number of them
//! without going on.

use crate::client::Client;
use crate::config::Options;
use crate::context::Context;
use crate::error::{Cause, FileError};
use crate::write::{Cancel, LOOK};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use tessera_net::{Account, BufferPool, PooledBuf};
use tessera_policy::{Chunking, MAX_CHUNK_BYTES, Policy, Scheme};

/// With less memory a file of the default policy could not be written.
pub const LEAST_MEMORY_BYTES: u64 = 96 << 20;
/// Whoever needs at most this much, and a third of it, takes it from the part for small files.
const SMALL_SHARE_BYTES: u64 = 4 << 20;
/// Bytes that a rewrite reads at a time.
const REWRITE_WINDOW_BYTES: u64 = 8 << 20;

/// See the module.
#[derive(Debug)]
pub(crate) struct Memory {
    long: Arc<Part>,
    small: Arc<Part>,
}

/// A part of the memory, and who waits for a share of it.
#[derive(Debug)]
struct Part {
    total: u64,
    state: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug)]
struct Waiting {
    free: u64,
    tickets: VecDeque<u64>,
    next: u64,
}

/// Bytes that an operation may hold.
#[derive(Debug)]
pub(crate) struct Share {
    part: Arc<Part>,
    bytes: u64,
}

impl Memory {
    /// An eighth is for small files. Another one is for cached chunks ([`cache_bytes`]), which hold up to a quarter more than they weigh; the
    /// rest of a quarter is for answers that nobody waits for any more.
    pub fn new(bytes: u64) -> Memory {
        Memory { long: Part::of(bytes / 8 * 5), small: Part::of(bytes / 8) }
    }

    /// Waits for at least `least` bytes. Gives up to `most`, if they are free and leave half for another. Who needs more than there is gets
    /// all. `None`: cancelled meanwhile.
    pub(crate) fn share(&self, least: u64, most: u64, cancel: &Cancel) -> Option<Share> {
        let is_small = most <= SMALL_SHARE_BYTES.min(self.small.total / 3);
        let part = if is_small { &self.small } else { &self.long };
        let least = least.min(part.total);
        part.take(least, most.min(part.total / 2).max(least), cancel)
    }

    /// How many wait for a share for long files.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> u64 {
        self.long.state.lock().tickets.len() as u64
    }
}

/// Bytes of chunks that are cached.
pub(crate) fn cache_bytes(options: &Options) -> u64 {
    options.chunk_cache_bytes.min(options.memory_bytes / 8)
}

impl Part {
    fn of(total: u64) -> Arc<Part> {
        let state = Mutex::new(Waiting { free: total, tickets: VecDeque::new(), next: 0 });
        Arc::new(Part { total, state, changed: Condvar::new() })
    }

    fn take(self: &Arc<Self>, least: u64, most: u64, cancel: &Cancel) -> Option<Share> {
        let mut state = self.state.lock();
        let ticket = state.next;
        state.next += 1;
        state.tickets.push_back(ticket);
        while state.tickets.front() != Some(&ticket) || state.free < least {
            self.changed.wait_for(&mut state, LOOK);
            if cancel.is_cancelled() {
                state.tickets.retain(|waiting| *waiting != ticket);
                self.changed.notify_all();
                return None;
            }
        }
        let bytes = most.min(state.free);
        state.free -= bytes;
        state.tickets.pop_front();
        self.changed.notify_all();
        Some(Share { part: self.clone(), bytes })
    }
}

#[cfg(test)]
impl Share {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut state = self.part.state.lock();
        state.free += self.bytes;
        assert!(state.free <= self.part.total, "more memory comes back than there is");
        drop(state);
        self.part.changed.notify_all();
    }
}

/// What a write may use.
pub(crate) struct Means {
    /// Buffers for fragments.
    pub pool: BufferPool,
    /// Most bytes of chunks that are hashed, coded or in flight.
    pub window_bytes: u64,
    /// Length of the buffers for input.
    pub buffer_bytes: usize,
    /// Most bytes that each read of a rewrite has in flight.
    pub read_window_bytes: u64,
    input: BufferPool,
    bound: Option<(Arc<Account>, usize)>,
}

/// What a write needs.
#[derive(Debug, Clone, Copy)]
struct Needs {
    /// Bytes of input, for the least and the most that it may use.
    input: (u64, u64),
    /// Least length of a buffer.
    buffer_bytes: u64,
    /// Bytes of parity for `of` bytes of input.
    parity: u64,
    of: u64,
    /// Bytes besides, for reads.
    reads: u64,
}

impl Needs {
    /// Of a source of this length, if it is known.
    fn new(policy: &Policy, len_bytes: Option<u64>, options: &Options) -> Needs {
        let buffer_bytes = 2 * longest_chunk(policy);
        let whole = len_bytes.map_or(u64::MAX, |len| rounded(len.saturating_add(2)));
        let most = options.write_window_bytes.saturating_add(2 * buffer_bytes.max(options.buffer_bytes as u64));
        let (parity, of) = match policy.scheme(len_bytes.unwrap_or(u64::MAX)) {
            Scheme::Copies { .. } => (0, 1),
            code => (u64::from(code.losses()), u64::from(code.needed())),
        };
        // Whoever needs one buffer only reads nothing into a second one.
        let least = if whole <= buffer_bytes { whole } else { 2 * buffer_bytes };
        Needs {
            input: (least, most.min(whole.saturating_add(buffer_bytes)).max(least)),
            buffer_bytes,
            parity,
            of,
            reads: 0,
        }
    }

    /// With the fragments that are computed.
    fn with_parity(&self, input: u64) -> u64 {
        input.saturating_add(rounded(input.saturating_mul(self.parity) / self.of))
    }

    /// Bytes of input for a share.
    fn input_of(&self, share: u64) -> u64 {
        let share = u128::from(share.saturating_sub(self.reads));
        let (of, parity) = (4 * u128::from(self.of), 5 * u128::from(self.parity));
        u64::try_from(share * of / (of + parity)).unwrap_or(u64::MAX)
    }
}

/// As buffers of the pool are rounded.
fn rounded(bytes: u64) -> u64 {
    bytes.saturating_add(bytes / 4)
}

fn longest_chunk(policy: &Policy) -> u64 {
    match policy.chunking {
        Chunking::Fixed { size_bytes } => size_bytes,
        Chunking::Cdc { max_bytes, .. } => max_bytes,
        Chunking::Cbch { .. } => MAX_CHUNK_BYTES,
    }
}

impl Means {
    /// For a write that takes no share: as the options say.
    pub fn of_options(context: &Context) -> Means {
        let (pool, options) = (context.pool.clone(), &context.options);
        Means {
            input: pool.clone(),
            pool,
            window_bytes: options.write_window_bytes,
            // Space for the longest chunk besides new bytes, whatever is configured.
            buffer_bytes: options.buffer_bytes.max(2 * MAX_CHUNK_BYTES as usize),
            read_window_bytes: options.read_window_bytes,
            bound: None,
        }
    }

    /// Takes the share of a write of a source of this length, if it is known.
    ///
    /// # Errors
    /// It was cancelled meanwhile.
    pub fn of_write(
        context: &Context,
        file: &str,
        policy: Option<&Policy>,
        len_bytes: Option<u64>,
        cancel: &Cancel,
    ) -> Result<Means, FileError> {
        let default = Policy::default();
        Means::take(context, file, Needs::new(policy.unwrap_or(&default), len_bytes, &context.options), cancel)
    }

    /// Takes the share of a source of this length that is only read.
    ///
    /// # Errors
    /// It was cancelled meanwhile.
    pub fn of_input(
        context: &Context,
        file: &str,
        policy: &Policy,
        len_bytes: Option<u64>,
        cancel: &Cancel,
    ) -> Result<Means, FileError> {
        let Needs { input: (least, _), .. } = Needs::new(policy, len_bytes, &context.options);
        let needs = Needs { input: (least, least), parity: 0, ..Needs::new(policy, len_bytes, &context.options) };
        Means::take(context, file, needs, cancel)
    }

    /// As [`Means::of_write`], for a source that is read from the store.
    pub fn of_rewrite(
        context: &Context,
        file: &str,
        policy: Option<&Policy>,
        len_bytes: u64,
        cancel: &Cancel,
    ) -> Result<Means, FileError> {
        let default = Policy::default();
        let needs = Needs::new(policy.unwrap_or(&default), Some(len_bytes), &context.options);
        // Chunks that are read, as many of them ahead, and what is decoded.
        let reads = 3 * REWRITE_WINDOW_BYTES.min(len_bytes);
        let means = Means::take(context, file, Needs { reads, ..needs }, cancel)?;
        Ok(Means { read_window_bytes: REWRITE_WINDOW_BYTES, ..means })
    }

    fn take(context: &Context, file: &str, needs: Needs, cancel: &Cancel) -> Result<Means, FileError> {
        let (least, most) = needs.input;
        let with_all = |input| needs.with_parity(input).saturating_add(needs.reads);
        let share = context.memory.share(with_all(least), with_all(most), cancel);
        let share = Arc::new(share.ok_or_else(|| Cause::Cancelled.of(file))?);
        let input = needs.input_of(share.bytes).max(least);
        let quarter = 1u64 << (input / 4).max(1).ilog2();
        let buffer_bytes = quarter.min(context.options.buffer_bytes as u64).max(needs.buffer_bytes);
        let account = Account::new(Some(share.clone()));
        Ok(Means {
            pool: context.pool.counted(Account::new(Some(share))),
            window_bytes: context.options.write_window_bytes.min(input.saturating_sub(buffer_bytes)).max(1),
            buffer_bytes: buffer_bytes as usize,
            read_window_bytes: context.options.read_window_bytes,
            input: context.pool.counted(account.clone()),
            bound: Some((account, input as usize)),
        })
    }

    /// Makes buffers long enough for the chunks of this policy.
    pub fn fit(&mut self, policy: &Policy) {
        self.buffer_bytes = self.buffer_bytes.max(2 * longest_chunk(policy) as usize);
    }

    /// A buffer for input, once it fits into the share: chunks in other buffers are stored meanwhile. `None`: cancelled.
    pub fn buffer(&self, len: usize, cancel: &Cancel) -> Option<PooledBuf> {
        if let Some((account, most)) = &self.bound {
            // The buffer that holds the beginning of the next chunk stays.
            let enough = most.saturating_sub(BufferPool::room_for(len)).max(BufferPool::room_for(self.buffer_bytes));
            while !account.wait_until(enough, LOOK) {
                if cancel.is_cancelled() {
                    return None;
                }
            }
        }
        Some(self.input.get(len))
    }

    /// A buffer without bytes.
    pub fn empty_buffer(&self) -> PooledBuf {
        self.input.get(0)
    }
}

/// The share of a read, and the bytes that it may have in flight.
pub(crate) fn of_read(context: &Context, len_bytes: u64, packs: bool) -> (Share, u64) {
    let window = context.options.read_window_bytes;
    let bytes = if packs { len_bytes.max(crate::PACK_BYTES as u64) } else { len_bytes };
    // Frames are rounded, hold fragments of other chunks, and slices are decoded.
    let held = |bytes: u64| bytes.saturating_mul(2).saturating_add(bytes / 2);
    let (least, most) = (held(bytes.min(MAX_CHUNK_BYTES)), held(bytes.min(window)));
    let share = context.memory.share(least, most, &Cancel::default()).expect("nobody cancels a read");
    let window = window.min(share.bytes / 5 * 2).max(1);
    (share, window)
}

/// Memory for small files that are stored together.
#[derive(Debug, Clone)]
pub struct Held(Arc<Share>);

impl Client {
    /// Waits until there is memory to [store](Client::put_small) small files that have this many bytes together. `None`: cancelled meanwhile.
    pub fn hold(&self, len_bytes: u64, cancel: &Cancel) -> Option<Held> {
        // As read, in their pack, and its parity.
        let bytes = len_bytes.saturating_mul(3).saturating_add(64 << 10);
        self.context.memory.share(bytes, bytes, cancel).map(|share| Held(Arc::new(share)))
    }
}

impl Held {
    /// For one of the writes that share it.
    pub(crate) fn means(&self, context: &Context) -> Means {
        let pool = context.pool.counted(Account::new(Some(self.0.clone())));
        Means { pool, ..Means::of_options(context) }
    }
}
