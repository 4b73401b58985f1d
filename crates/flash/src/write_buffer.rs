//! The write buffer of the device: pages that the host wrote and that are not on flash yet. It has two halves. One
//! takes what the host writes while the other one is programmed, in the order of logical pages.

use crate::device::Ns;
use std::collections::BTreeMap;
use std::ops::Range;

/// Pages that wait.
#[derive(Debug)]
pub(crate) struct WriteBuffer {
    /// What each page holds.
    pages: BTreeMap<u32, u32>,
    /// Pages of a half.
    half: usize,
    /// When the other half is on flash.
    pub drained: Ns,
}

impl WriteBuffer {
    /// An empty buffer of two halves with so many pages each.
    pub fn new(half: usize) -> Self {
        WriteBuffer { pages: BTreeMap::new(), half, drained: 0 }
    }

    /// Adds a page, or replaces what it holds.
    pub fn insert(&mut self, lpn: u32, content: u32) {
        self.pages.insert(lpn, content);
    }

    /// Forgets a page.
    pub fn remove(&mut self, lpn: u32) {
        self.pages.remove(&lpn);
    }

    /// Forgets all pages, and the half that is being programmed.
    pub fn clear(&mut self) {
        self.pages.clear();
        self.drained = 0;
    }

    /// What a page holds, if it waits.
    pub fn get(&self, lpn: u32) -> Option<u32> {
        self.pages.get(&lpn).copied()
    }

    /// Pages that wait.
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Whether the half is full.
    pub fn is_full(&self) -> bool {
        self.pages.len() >= self.half
    }

    /// Takes all pages, in order.
    pub fn take(&mut self) -> Vec<(u32, u32)> {
        std::mem::take(&mut self.pages).into_iter().collect()
    }
}

/// The logical pages of a run of neighbours.
pub(crate) fn run_of(pages: &[(u32, u32)]) -> Range<u32> {
    pages[0].0..pages[pages.len() - 1].0 + 1
}
