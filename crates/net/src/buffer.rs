//! Reused buffers for payloads.
//!
//! Touching fresh memory costs a page fault per 4 KiB, about as much as receiving the bytes. So buffers return
//! to the pool when their last reader drops them. Sizes are rounded up to four steps between powers of two. The pool
//! bounds the idle buffers; its callers bound those in use (windows, queue limits), by [`Account`]s if need be.

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use std::any::Any;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A smaller buffer is a plain allocation, which is as cheap.
const SMALL_BYTES: usize = 4096;
/// Sizes between two powers of two.
const STEPS: usize = 4;
const CLASSES: usize = 16 * STEPS;
const _: () = assert!(SMALL_BYTES << (CLASSES / STEPS - 1) >= tessera_wire::frame::MAX_PAYLOAD_BYTES as usize);

#[derive(Debug)]
struct Idle {
    state: Mutex<State>,
    keep_bytes: usize,
    limit_bytes: usize,
}

#[derive(Debug)]
struct State {
    /// Idle buffers by size class.
    classes: [Vec<Vec<u8>>; CLASSES],
    idle_bytes: usize,
    used_bytes: usize,
    most_bytes: usize,
}

impl State {
    fn take(&mut self, class: usize) -> Option<Vec<u8>> {
        let buffer = self.classes.get_mut(class)?.pop()?;
        self.idle_bytes -= buffer.len();
        Some(buffer)
    }

    /// Takes idle buffers, the longest first, until `bytes` more fit below the limit.
    fn make_room(&mut self, bytes: usize, limit_bytes: usize) -> Vec<Vec<u8>> {
        let mut freed = Vec::new();
        for class in (0..CLASSES).rev() {
            while self.idle_bytes + self.used_bytes + bytes > limit_bytes {
                let Some(buffer) = self.take(class) else { break };
                freed.push(buffer);
            }
        }
        freed
    }
}

/// A pool of byte buffers. Cloning shares it.
#[derive(Debug, Clone)]
pub struct BufferPool {
    shared: Arc<Idle>,
    account: Option<Arc<Account>>,
}

impl BufferPool {
    /// A pool that keeps at most `keep_bytes` of idle buffers.
    pub fn new(keep_bytes: usize) -> Self {
        BufferPool::limited(keep_bytes, usize::MAX)
    }

    /// As [`BufferPool::new`]; idle buffers go as soon as they and those in use would have more than `limit_bytes`.
    pub fn limited(keep_bytes: usize, limit_bytes: usize) -> Self {
        let classes = [const { Vec::new() }; CLASSES];
        let state = Mutex::new(State { classes, idle_bytes: 0, used_bytes: 0, most_bytes: 0 });
        BufferPool { shared: Arc::new(Idle { state, keep_bytes, limit_bytes }), account: None }
    }

    /// The same pool, whose buffers are counted in `account` while they are in use.
    #[must_use]
    pub fn counted(&self, account: Arc<Account>) -> Self {
        BufferPool { shared: self.shared.clone(), account: Some(account) }
    }

    /// A buffer of `len` bytes with unspecified content.
    pub fn get(&self, len: usize) -> PooledBuf {
        if len < SMALL_BYTES {
            return PooledBuf { data: vec![0; len], len, home: None };
        }
        let class = class_of(len);
        let room = room_of(class);
        if let Some(account) = &self.account {
            account.add(room);
        }
        let (kept, freed) = {
            let mut state = self.shared.state.lock();
            let kept = state.take(class);
            let freed = if kept.is_none() { state.make_room(room, self.shared.limit_bytes) } else { Vec::new() };
            state.used_bytes += room;
            state.most_bytes = state.most_bytes.max(state.used_bytes + state.idle_bytes);
            (kept, freed)
        };
        drop(freed);
        let data = kept.unwrap_or_else(|| vec![0; room]);
        assert_eq!(data.len(), room, "a buffer of the pool changed its size");
        PooledBuf { data, len, home: Some(self.clone()) }
    }

    /// Bytes that a buffer of `len` bytes takes.
    pub fn room_for(len: usize) -> usize {
        if len < SMALL_BYTES { len } else { room_of(class_of(len)) }
    }

    /// Bytes of buffers that are in use.
    pub fn used_bytes(&self) -> usize {
        self.shared.state.lock().used_bytes
    }

    /// The most bytes that buffers had at any moment, idle ones included.
    pub fn most_bytes(&self) -> usize {
        self.shared.state.lock().most_bytes
    }

    fn put_back(&self, data: Vec<u8>) {
        let (len, class) = (data.len(), class_of(data.len()));
        assert!(len == room_of(class), "a buffer of the pool changed its size");
        let mut state = self.shared.state.lock();
        assert!(state.used_bytes >= len, "{len} bytes come back, {} are in use", state.used_bytes);
        state.used_bytes -= len;
        let fits = state.idle_bytes + len <= self.shared.keep_bytes
            && state.idle_bytes + state.used_bytes + len <= self.shared.limit_bytes;
        if fits && let Some(idle) = state.classes.get_mut(class) {
            idle.push(data);
            state.idle_bytes += len;
        }
        drop(state);
        if let Some(account) = &self.account {
            account.sub(len);
        }
    }
}

/// The size class of a buffer of at least `len` bytes.
fn class_of(len: usize) -> usize {
    let above = len.next_power_of_two().max(2 * SMALL_BYTES);
    if len <= SMALL_BYTES {
        return 0;
    }
    let (base, octave) = (above / 2, (above / 2 / SMALL_BYTES).trailing_zeros() as usize);
    octave * STEPS + (len - base).div_ceil(base / STEPS)
}

/// Bytes of the buffers of a class.
fn room_of(class: usize) -> usize {
    let base = SMALL_BYTES << (class / STEPS);
    base + base / STEPS * (class % STEPS)
}

/// Counts the bytes of buffers that somebody uses, until the last of them is dropped.
#[derive(Debug)]
pub struct Account {
    used_bytes: Mutex<usize>,
    less: Condvar,
    /// Dropped with the last buffer, and the last pool that counts here.
    _keeps: Option<Arc<dyn Any + Send + Sync>>,
}

impl Account {
    /// An account without buffers. It keeps `keeps` until nobody counts here any more.
    pub fn new(keeps: Option<Arc<dyn Any + Send + Sync>>) -> Arc<Self> {
        Arc::new(Account { used_bytes: Mutex::new(0), less: Condvar::new(), _keeps: keeps })
    }

    /// Bytes of its buffers.
    pub fn used_bytes(&self) -> usize {
        *self.used_bytes.lock()
    }

    /// Waits at most `limit` until its buffers have at most `bytes`. Returns whether they have.
    pub fn wait_until(&self, bytes: usize, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let mut used = self.used_bytes.lock();
        while *used > bytes {
            if self.less.wait_until(&mut used, deadline).timed_out() {
                return *used <= bytes;
            }
        }
        true
    }

    fn add(&self, bytes: usize) {
        *self.used_bytes.lock() += bytes;
    }

    fn sub(&self, bytes: usize) {
        let mut used = self.used_bytes.lock();
        assert!(*used >= bytes, "{bytes} bytes leave an account of {used}");
        *used -= bytes;
        drop(used);
        self.less.notify_all();
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_at_most_a_quarter_longer_than_asked() {
        for len in (SMALL_BYTES..1 << 20).step_by(511).chain([5000, 8192, 8193, 10_240, 10_241, 64 << 20]) {
            let room = room_of(class_of(len));
            assert!(room >= len && room <= len + len / STEPS, "{len}: {room}");
            assert_eq!(room_of(class_of(room)), room, "{len}");
        }
        for class in 0..CLASSES {
            assert_eq!(class_of(room_of(class)), class);
        }
    }

    #[test]
    fn idle_buffers_make_room_for_those_in_use() {
        let pool = BufferPool::limited(1 << 20, 100 << 10);
        drop([pool.get(16 << 10), pool.get(32 << 10), pool.get(40 << 10)]);
        assert_eq!((pool.used_bytes(), pool.most_bytes()), (0, 88 << 10));
        let used = [pool.get(16 << 10), pool.get(64 << 10)];
        assert_eq!((pool.used_bytes(), pool.most_bytes()), (80 << 10, 88 << 10));
        // Beyond the limit nothing is kept.
        let more = pool.get(64 << 10);
        drop(used);
        assert_eq!((pool.used_bytes(), pool.most_bytes()), (64 << 10, 144 << 10));
        drop(more);
        assert_eq!(pool.used_bytes(), 0);
    }

    #[test]
    fn an_account_ends_with_its_last_buffer() {
        let (pool, kept) = (BufferPool::new(1 << 20), Arc::new(()));
        let account = Account::new(Some(kept.clone()));
        let counted = pool.counted(account.clone());
        let buffer = counted.get(10_000).freeze();
        let other = pool.get(20_000);
        drop(counted);
        assert_eq!((account.used_bytes(), account.wait_until(9_999, Duration::ZERO)), (10_240, false));
        drop(account);
        assert_eq!(Arc::strong_count(&kept), 2);
        drop(buffer.slice(5..10));
        assert_eq!(Arc::strong_count(&kept), 2);
        drop((buffer, other));
        assert_eq!(Arc::strong_count(&kept), 1);
    }
}
