//! The levels on flash. After a merge the pages of the new level are written little by little, so that no request waits for
//! a whole level: a level is complete before it is merged again, because that takes as many new entries as it may have.
//! Until then the pages of the levels that were merged stay.

use crate::device::{Cause, Device};
use crate::ftl::Directory;
use std::collections::BTreeSet;

/// A level on flash.
#[derive(Debug, Default)]
struct Run {
    /// Pages that are written.
    pages: Vec<u32>,
    /// Pages that are not.
    left: u32,
    /// Pages to write each time that as many entries arrived as a page holds.
    rate: u32,
    /// Pages of the levels that were merged into it.
    replaces: Vec<u32>,
}

/// All levels on flash. Pages have numbers; the directory says where each is.
#[derive(Debug)]
pub struct Written {
    runs: Vec<Run>,
    free: BTreeSet<u32>,
    entries_per_page: u32,
}

impl Written {
    /// No level has pages yet.
    pub fn new(height: usize, pages: u32, entries_per_page: u32) -> Self {
        Written { runs: (0..height).map(|_| Run::default()).collect(), free: (0..pages).collect(), entries_per_page }
    }

    /// The levels down to `level` were merged into it and now have so many entries; the level takes `level_len` entries
    /// until it is merged again.
    pub fn merged(&mut self, level: usize, entries: u64, level_len: u64) {
        let pages = entries.div_ceil(u64::from(self.entries_per_page));
        let times = (level_len / u64::from(self.entries_per_page)).max(1);
        let mut run = Run { left: pages as u32, rate: pages.div_ceil(times) as u32, ..Run::default() };
        for old in self.runs.iter_mut().take(level + 1).map(std::mem::take) {
            run.replaces.extend(old.pages.into_iter().chain(old.replaces));
        }
        self.runs[level] = run;
    }

    /// As many entries arrived as a page holds: writes a share of every level that is not complete.
    pub fn advance(&mut self, device: &mut Device, directory: &mut Directory, cause: Cause) {
        for level in 0..self.runs.len() {
            for _ in 0..self.runs[level].rate {
                self.write_page(device, directory, level, cause);
            }
            self.end(device, directory, level);
        }
    }

    /// Writes one more page of a level.
    pub fn write_page(&mut self, device: &mut Device, directory: &mut Directory, level: usize, cause: Cause) {
        let run = &mut self.runs[level];
        if run.left > 0 {
            let page = self.free.pop_first().expect("as many numbers as `map_pages` says");
            run.pages.push(page);
            run.left -= 1;
            directory.store(device, page, cause);
        }
    }

    /// Drops what a level replaces once it is complete.
    pub fn end(&mut self, device: &mut Device, directory: &mut Directory, level: usize) {
        let run = &mut self.runs[level];
        if run.left == 0 {
            for page in run.replaces.drain(..) {
                directory.discard(device, page);
                self.free.insert(page);
            }
        }
    }

    /// Pages on flash.
    pub fn pages(&self) -> u64 {
        self.numbers().count() as u64
    }

    /// Pages that are to be written.
    pub fn left(&self) -> u64 {
        self.runs.iter().map(|run| u64::from(run.left)).sum()
    }

    fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        self.runs.iter().flat_map(|run| run.pages.iter().chain(&run.replaces)).copied()
    }

    /// Checks that exactly the pages in use are on flash.
    ///
    /// # Errors
    /// The pages disagree.
    pub fn check(&self, directory: &Directory) -> Result<(), String> {
        let used: BTreeSet<u32> = self.numbers().collect();
        let placed: BTreeSet<u32> = directory.places().map(|(page, _)| page).collect();
        let is_one_each = used.len() as u64 == self.pages() && used.is_disjoint(&self.free);
        match is_one_each && used == placed {
            true => Ok(()),
            false => Err(format!("levels have {} pages, and {} are on flash", self.pages(), placed.len())),
        }
    }
}
