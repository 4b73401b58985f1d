//! Reused buffers for payloads.
//!
//! Touching fresh memory costs a page fault per 4 KiB, about as much as receiving the bytes. So buffers return
//! to the pool when their last reader drops them. Sizes are rounded up to powers of two. The pool bounds the idle
//! buffers; its callers bound those in use (windows, queue limits).

use bytes::Bytes;
use parking_lot::Mutex;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// A smaller buffer is a plain allocation, which is as cheap.
const SMALL_BYTES: usize = 4096;
const CLASSES: usize = 16;
const _: () = assert!(SMALL_BYTES << (CLASSES - 1) >= tessera_wire::frame::MAX_PAYLOAD_BYTES as usize);

#[derive(Debug)]
struct Idle {
    /// Buffers by size class, and their bytes in total.
    classes: Mutex<([Vec<Vec<u8>>; CLASSES], usize)>,
    keep_bytes: usize,
}

/// A pool of byte buffers. Cloning shares it.
#[derive(Debug, Clone)]
pub struct BufferPool(Arc<Idle>);

impl BufferPool {
    /// A pool that keeps at most `keep_bytes` of idle buffers.
    pub fn new(keep_bytes: usize) -> Self {
        BufferPool(Arc::new(Idle { classes: Mutex::default(), keep_bytes }))
    }

    /// A buffer of `len` bytes with unspecified content.
    pub fn get(&self, len: usize) -> PooledBuf {
        if len < SMALL_BYTES {
            return PooledBuf { data: vec![0; len], len, home: None };
        }
        let class = class_of(len);
        let kept = {
            let mut idle = self.0.classes.lock();
            let buffer = idle.0.get_mut(class).and_then(Vec::pop);
            idle.1 -= buffer.as_ref().map_or(0, Vec::len);
            buffer
        };
        let data = kept.unwrap_or_else(|| vec![0; SMALL_BYTES << class]);
        PooledBuf { data, len, home: Some(self.clone()) }
    }

    fn put_back(&self, data: Vec<u8>) {
        assert!(data.len().is_power_of_two() && data.len() >= SMALL_BYTES, "a buffer of the pool changed its size");
        let mut idle = self.0.classes.lock();
        if idle.1 + data.len() <= self.0.keep_bytes {
            idle.1 += data.len();
            if let Some(class) = idle.0.get_mut(class_of(data.len())) {
                class.push(data);
            }
        }
    }
}

fn class_of(len: usize) -> usize {
    (len.next_power_of_two() / SMALL_BYTES).trailing_zeros() as usize
}

/// A buffer of the pool; dropping it gives it back.
#[derive(Debug)]
pub struct PooledBuf {
    data: Vec<u8>,
    len: usize,
    home: Option<BufferPool>,
}

impl PooledBuf {
    /// Makes the buffer read-only; it returns to the pool when the last slice of it is dropped.
    pub fn freeze(self) -> Bytes {
        if self.len == 0 { Bytes::new() } else { Bytes::from_owner(self) }
    }

    /// Shortens the buffer to `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

impl Deref for PooledBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.data[..self.len]
    }
}

impl DerefMut for PooledBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.data[..self.len]
    }
}

impl AsRef<[u8]> for PooledBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for PooledBuf {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            home.put_back(std::mem::take(&mut self.data));
        }
    }
}
