//! The extents of the next version, in order of the input, until they are staged or committed.

use super::*;

/// An extent of the next version.
#[derive(Debug, Clone, Copy)]
pub(super) struct PendingExtent {
    pub offset: u64,
    pub len_bytes: u64,
    /// Index in the table of chunks; `None` for a hole.
    pub chunk: Option<usize>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct ExtentQueue {
    first: u64,
    /// How many extents at the front are ready for a commit.
    pub ready: usize,
    extents: VecDeque<Option<PendingExtent>>,
}

impl ExtentQueue {
    pub fn put(&mut self, index: u64, extent: PendingExtent) {
        assert!(index >= self.first, "piece {index} comes after it was committed");
        let at = (index - self.first) as usize;
        if self.extents.len() <= at {
            self.extents.resize(at + 1, None);
        }
        assert!(self.extents[at].is_none(), "piece {index} comes twice");
        self.extents[at] = Some(extent);
    }

    /// Extents from the front, up to the first gap.
    pub fn iter(&self) -> impl Iterator<Item = &PendingExtent> {
        self.extents.iter().map_while(|e| e.as_ref())
    }

    pub fn len(&self) -> usize {
        self.extents.len()
    }

    pub fn get(&self, at: usize) -> Option<&PendingExtent> {
        self.extents.get(at)?.as_ref()
    }

    pub fn forget(&mut self, count: usize) {
        assert!(count <= self.extents.len(), "{count} extents committed, {} are pending", self.extents.len());
        self.ready = self.ready.saturating_sub(count);
        self.extents.drain(..count);
        self.first += count as u64;
    }
}

/// Asserts that the extents of a commit are in order and do not overlap. Except in a patch, they start at `start` and
/// have no gaps. Returns where they end.
pub(super) fn assert_in_order(extents: &[Extent], mode: CommitMode, start: u64) -> u64 {
    let mut end = start;
    for extent in extents {
        let in_order = match mode {
            CommitMode::Patch => extent.offset >= end,
            _ => extent.offset == end,
        };
        assert!(in_order, "{mode:?}: extent at {} after {end}", extent.offset);
        assert!(extent.len_bytes > 0, "extent of 0 bytes at {}", extent.offset);
        end = extent.offset + extent.len_bytes;
    }
    end
}
