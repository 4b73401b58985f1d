//! The chunk cache as one file uses it: if its policy sets a limit (`cache=SIZE`), the file evicts its chunks beyond
//! that.

use crate::read::cache::SharedCache;
use bytes::Bytes;
use std::collections::VecDeque;

/// See the module.
#[derive(Debug)]
pub(super) struct FileCache {
    pub shared: SharedCache,
    /// Most bytes that the file may keep.
    pub limit_bytes: Option<u64>,
    /// Its cached chunks, oldest first: chunk and length.
    chunks: VecDeque<(u64, u64)>,
    bytes: u64,
}

impl FileCache {
    pub fn new(shared: SharedCache) -> Self {
        FileCache { shared, limit_bytes: None, chunks: VecDeque::new(), bytes: 0 }
    }

    /// Caches a chunk. While the file is read, it may keep `ahead_bytes` more than its limit.
    pub fn insert(&mut self, chunk_id: u64, parts: &[Bytes], ahead_bytes: u64) {
        self.shared.chunks.insert(chunk_id, parts.to_vec());
        let Some(limit_bytes) = self.limit_bytes else { return };
        let len_bytes = parts.iter().map(|p| p.len() as u64).sum();
        self.chunks.push_back((chunk_id, len_bytes));
        self.bytes += len_bytes;
        self.shrink(limit_bytes.saturating_add(ahead_bytes));
    }

    /// Closes the file: it keeps no more than its limit.
    pub fn close(&mut self) {
        self.shrink(self.limit_bytes.unwrap_or(u64::MAX));
    }

    /// Removes the file's oldest chunks until it keeps at most `limit_bytes`.
    fn shrink(&mut self, limit_bytes: u64) {
        while self.bytes > limit_bytes {
            let (chunk_id, len_bytes) = self.chunks.pop_front().expect("bytes are kept, but no chunk");
            self.bytes -= len_bytes;
            self.shared.chunks.remove(&chunk_id);
        }
    }
}
