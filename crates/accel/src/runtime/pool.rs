//! Buffers for the inputs and outputs of jobs: aligned, of a few sizes, and reused, because memory that a GPU can read
//! without a copy (pinned memory) is slow to allocate. The pool's idle buffers are CrystalGPU's idle queue.
#![allow(unsafe_code)]

use parking_lot::Mutex;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::HashMap;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

/// Smallest capacity of a buffer.
const SMALLEST_BYTES: usize = 4096;
/// Buffers begin at multiples of this.
const ALIGN_BYTES: usize = 4096;

// Kernels read whole 16-byte blocks past a buffer's end; buffers begin at the alignment of vectors.
const _: () = assert!(SMALLEST_BYTES.is_power_of_two() && SMALLEST_BYTES.is_multiple_of(16));
const _: () = assert!(ALIGN_BYTES.is_power_of_two() && ALIGN_BYTES.is_multiple_of(64));

/// Where a pool's memory comes from.
///
/// # Safety
/// `take` returns memory of `bytes` initialised bytes, aligned to 64, that has no other owner until `give` of the same
/// object gets it with the same size.
pub unsafe trait HostMemory: Send + Sync + fmt::Debug {
    /// Takes memory; `None` if there is no more of this kind.
    fn take(&self, bytes: usize) -> Option<NonNull<u8>>;

    /// Takes memory back.
    ///
    /// # Safety
    /// The memory came from [`HostMemory::take`] of the same object and size, and is not used again.
    unsafe fn give(&self, memory: NonNull<u8>, bytes: usize);
}

/// Ordinary memory.
#[derive(Debug, Default)]
pub struct Pageable;

fn layout(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes, ALIGN_BYTES).ok().filter(|l| l.size() > 0)
}

// SAFETY: the allocator returns zeroed blocks that nothing else owns.
unsafe impl HostMemory for Pageable {
    fn take(&self, bytes: usize) -> Option<NonNull<u8>> {
        let layout = layout(bytes)?;
        // SAFETY: the layout is not empty.
        NonNull::new(unsafe { alloc_zeroed(layout) })
    }

    unsafe fn give(&self, memory: NonNull<u8>, bytes: usize) {
        if let Some(layout) = layout(bytes) {
            // SAFETY: `take` allocated it with this layout.
            unsafe { dealloc(memory.as_ptr(), layout) };
        }
    }
}

/// No memory for a buffer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no memory for a buffer of {bytes} bytes; submit smaller batches")]
pub struct NoMemory {
    /// Bytes asked for.
    pub bytes: usize,
}

#[derive(Debug)]
struct Shared {
    memory: Arc<dyn HostMemory>,
    keep_bytes: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Unused buffers, by capacity.
    idle: HashMap<usize, Vec<Block>>,
    counts: PoolUse,
    /// Buffers in use. Each comes back once, or never if a failed device may still use it.
    lent: usize,
}

#[derive(Debug)]
struct Block(NonNull<u8>);

// SAFETY: a block is plain memory with one owner at a time.
unsafe impl Send for Block {}

/// A pool of buffers. Cloning gives another handle to the same pool.
#[derive(Debug, Clone)]
pub struct Pool(Arc<Shared>);

/// How a pool is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolUse {
    /// Unused buffers.
    pub idle_buffers: usize,
    /// Their bytes.
    pub idle_bytes: usize,
    /// Buffers allocated so far.
    pub made: u64,
    /// Times a buffer was reused.
    pub reused: u64,
}

impl Pool {
    /// A pool that keeps up to `keep_bytes` of unused buffers; with 0 every buffer is newly allocated.
    pub fn new(memory: Arc<dyn HostMemory>, keep_bytes: usize) -> Pool {
        Pool(Arc::new(Shared { memory, keep_bytes, state: Mutex::default() }))
    }

    /// Returns a buffer of `len` bytes of arbitrary content.
    ///
    /// # Errors
    /// [`NoMemory`] if there is no memory for it.
    pub fn take(&self, len: usize) -> Result<Buffer, NoMemory> {
        let room = len.max(SMALLEST_BYTES).checked_next_power_of_two().ok_or(NoMemory { bytes: len })?;
        let idle = {
            let mut state = self.0.state.lock();
            let block = state.idle.get_mut(&room).and_then(Vec::pop);
            state.lent += 1;
            if block.is_some() {
                assert!(
                    state.counts.idle_bytes >= room && state.counts.idle_buffers > 0,
                    "an idle buffer that was not counted"
                );
                state.counts.idle_bytes -= room;
                state.counts.idle_buffers -= 1;
                state.counts.reused += 1;
            } else {
                state.counts.made += 1;
            }
            block
        };
        let block = match idle {
            Some(block) => block,
            None => match self.0.memory.take(room) {
                Some(memory) => Block(memory),
                None => {
                    self.0.state.lock().lent -= 1;
                    return Err(NoMemory { bytes: len });
                }
            },
        };
        assert!(block.0.as_ptr().addr().is_multiple_of(64), "buffers begin at multiples of 64");
        Ok(Buffer { block, len, room, pool: self.0.clone() })
    }

    /// The current counts.
    pub fn usage(&self) -> PoolUse {
        self.0.state.lock().counts
    }
}

impl Shared {
    fn give_back(&self, block: Block, room: usize) {
        {
            let mut state = self.state.lock();
            assert!(state.lent > 0 && room.is_power_of_two(), "a buffer of {room} bytes came back twice");
            state.lent -= 1;
            if state.counts.idle_bytes + room <= self.keep_bytes {
                state.counts.idle_bytes += room;
                state.counts.idle_buffers += 1;
                state.idle.entry(room).or_default().push(block);
                return;
            }
        }
        // SAFETY: the buffer that owned the block is gone.
        unsafe { self.memory.give(block.0, room) };
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        for (room, blocks) in self.state.get_mut().idle.drain() {
            // SAFETY: idle blocks have no owner.
            blocks.into_iter().for_each(|block| unsafe { self.memory.give(block.0, room) });
        }
    }
}

/// Memory from a pool; it returns there when dropped. It begins at a multiple of 64 and is readable up to the next
/// multiple of 16 past its end.
pub struct Buffer {
    block: Block,
    len: usize,
    room: usize,
    pool: Arc<Shared>,
}

// SAFETY: a buffer owns its memory; shared references only read it.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Changes the length to `len` bytes. The content is kept if the buffer's capacity suffices, and is arbitrary
    /// otherwise.
    ///
    /// # Errors
    /// [`NoMemory`] if there is no memory for more; the buffer is then unchanged.
    pub fn resize(&mut self, len: usize) -> Result<(), NoMemory> {
        if len > self.room {
            *self = Pool(self.pool.clone()).take(len)?;
        }
        assert!(len <= self.room, "{len} bytes in room for {}", self.room);
        self.len = len;
        Ok(())
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the block has `room` ≥ `len` initialised bytes, and this buffer owns it.
        unsafe { std::slice::from_raw_parts(self.block.0.as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.block.0.as_ptr(), self.len) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.pool.give_back(Block(self.block.0), self.room);
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} of {} bytes)", self.len, self.room)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_that_comes_back_is_used_again_and_no_more_is_kept_than_told() {
        let pool = Pool::new(Arc::new(Pageable), 2 * SMALLEST_BYTES);
        let (a, b, c) = (pool.take(1).unwrap(), pool.take(4096).unwrap(), pool.take(7).unwrap());
        assert_eq!(pool.usage(), PoolUse { made: 3, ..PoolUse::default() });
        let first = a.as_ptr();
        drop((a, b, c));
        let kept = PoolUse { idle_buffers: 2, idle_bytes: 2 * SMALLEST_BYTES, made: 3, reused: 0 };
        assert_eq!(pool.usage(), kept);
        let (a, b) = (pool.take(10).unwrap(), pool.take(20).unwrap());
        assert!(a.as_ptr() == first || b.as_ptr() == first);
        assert_eq!(pool.usage(), PoolUse { made: 3, reused: 2, ..PoolUse::default() });
    }

    #[test]
    fn lengths_alignment_and_growth() {
        let pool = Pool::new(Arc::new(Pageable), 1 << 20);
        let mut buffer = pool.take(0).unwrap();
        assert!(buffer.is_empty());
        buffer.resize(5000).unwrap();
        buffer.fill(7);
        assert_eq!((buffer.len(), buffer.as_ptr() as usize % 64), (5000, 0));
        buffer.resize(3).unwrap();
        assert_eq!(&buffer[..], [7, 7, 7]);
        assert_eq!(buffer.resize(usize::MAX), Err(NoMemory { bytes: usize::MAX }));
        assert_eq!(&buffer[..], [7, 7, 7]);
        assert_eq!(pool.take(usize::MAX).unwrap_err(), NoMemory { bytes: usize::MAX });
        assert_eq!(pool.take(usize::MAX / 2).unwrap_err(), NoMemory { bytes: usize::MAX / 2 });
    }
}
