//! How a layer whose translation pages have an entry for each logical page follows garbage collection.

use super::{Directory, Ftl, Move};
use crate::device::{Cause, Device};

/// A map of entries on flash, some of which are in memory.
pub trait EntryMap: Ftl {
    /// The entries on flash.
    fn on_flash(&mut self) -> &mut Directory;

    /// Garbage collection moved a data page. Changes its entry in memory, and returns what it was; `None` if it is not there.
    fn move_cached(&mut self, device: &mut Device, m: &Move) -> Option<u32>;

    /// A translation page is about to be written because of moved data pages: what else has changed of it in memory may go with it.
    fn write_along(&mut self, _page: u32) {}

    /// Changes the entries of moved data pages. Those that are not in memory and lie in one translation page share one update of it.
    fn move_entries(&mut self, device: &mut Device, moves: &[Move]) {
        let mut at = 0;
        while at < moves.len() {
            let page = self.on_flash().page_of(moves[at].lpn);
            let mut is_changed = false;
            while at < moves.len() && self.on_flash().page_of(moves[at].lpn) == page {
                let m = &moves[at];
                let before = self.move_cached(device, m).unwrap_or_else(|| {
                    if !std::mem::replace(&mut is_changed, true) {
                        self.on_flash().load(device, page, Cause::MapGc);
                    }
                    self.on_flash().replace(m.lpn, m.to)
                });
                assert_eq!(before, m.from, "logical page {} was not there", m.lpn);
                at += 1;
            }
            if is_changed {
                self.write_along(page);
                self.on_flash().store(device, page, Cause::MapGc);
            }
        }
    }
}

/// Whether entries in memory that need not be written are those on flash.
///
/// # Errors
/// The first that is not.
pub fn check_clean(directory: &Directory, clean: impl Iterator<Item = (u32, u32)>) -> Result<(), String> {
    let mut clean = clean;
    match clean.find(|(lpn, ppn)| directory.get(*lpn) != *ppn) {
        Some((lpn, _)) => Err(format!("the clean entry of logical page {lpn} is not that on flash")),
        None => Ok(()),
    }
}
