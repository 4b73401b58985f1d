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

impl PendingExtent {
    pub fn end(&self) -> u64 {
        self.offset + self.len_bytes
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct ExtentQueue {
    first: u64,
    /// How many extents at the front are ready for a commit.
    pub ready: usize,
    extents: VecDeque<Option<PendingExtent>>,
    /// Where the extents end that were staged since the last version.
    staged_to: u64,
    /// An extent that is ready lies before the one that precedes it in the input: a patch goes back.
    goes_back: bool,
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

    /// The next extent is ready, too.
    pub fn advance(&mut self) {
        let before = self.ready.checked_sub(1).and_then(|at| self.get(at));
        let before = before.map_or(self.staged_to, PendingExtent::end);
        self.goes_back |= self.get(self.ready).is_some_and(|extent| extent.offset < before);
        self.ready += 1;
    }

    /// Whether extents that are ready are not in order of their offsets.
    pub fn goes_back(&self) -> bool {
        self.goes_back
    }

    /// Brings the extents, which are all ready, into the order of their offsets.
    pub fn sort(&mut self) {
        assert_eq!(self.ready, self.extents.len(), "all input is sorted at once");
        self.extents.make_contiguous().sort_unstable_by_key(|extent| extent.map(|extent| extent.offset));
        self.goes_back = false;
    }

    /// A version has all extents: the next one begins.
    pub fn restart(&mut self) {
        assert!(self.extents.is_empty(), "{} extents are in no version", self.extents.len());
        (self.staged_to, self.goes_back) = (0, false);
    }

    pub fn forget(&mut self, count: usize) {
        let last = count.checked_sub(1).and_then(|at| self.get(at));
        self.staged_to = last.map_or(self.staged_to, PendingExtent::end);
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
