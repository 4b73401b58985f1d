//! What the kernel caches of a mount's files: their length and their pages.
//!
//! The kernel learns a file's length at the first lookup of an inode's generation, and changes it with the writes and
//! truncates that pass through it. With FUSE's write-back cache it trusts that length; without, it takes over the one in
//! each reply, unless a write or truncate ended after the request began (`fuse_change_attributes`). Pages stay from one
//! open to the next if the mount says so.

use super::store::BLOCK_BYTES;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

#[derive(Debug, Default)]
struct Inode {
    generation: u64,
    size_bytes: u64,
    /// Lookups that the mount was not told to forget.
    lookups: u64,
    handles: usize,
    /// The last write or truncate, by [`Kernel::changes`].
    changed: u64,
    /// Blocks by their place.
    pages: BTreeMap<u64, Vec<u8>>,
}

impl Inode {
    /// Pages behind the end go.
    fn set_size(&mut self, size_bytes: u64) {
        self.size_bytes = size_bytes;
        self.pages.retain(|block, _| *block < size_bytes / BLOCK_BYTES);
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Kernel {
    inodes: RefCell<BTreeMap<u64, Inode>>,
    write_back: bool,
    changes: Cell<u64>,
}

impl Kernel {
    /// A kernel with the write-back cache, or without.
    pub fn new(write_back: bool) -> Kernel {
        Kernel { write_back, ..Kernel::default() }
    }

    /// Whether it has the write-back cache.
    pub fn has_write_back(&self) -> bool {
        self.write_back
    }

    /// Number of the writes and truncates that ended so far, for [`Kernel::replied`].
    pub fn changes(&self) -> u64 {
        self.changes.get()
    }

    /// The mount answered with this length a request that began at `changes`.
    pub fn replied(&self, ino: u64, changes: u64, size_bytes: u64) {
        if let Some(inode) = self.inodes.borrow_mut().get_mut(&ino)
            && !self.write_back
            && inode.changed <= changes
        {
            inode.set_size(size_bytes);
        }
    }

    fn next_change(&self) -> u64 {
        self.changes.update(|n| n + 1);
        self.changes.get()
    }

    /// The mount answered a lookup, or a create.
    pub fn looked_up(&self, ino: u64, generation: u64, size_bytes: u64) {
        let mut inodes = self.inodes.borrow_mut();
        let inode = inodes.entry(ino).or_insert_with(|| Inode { generation, size_bytes, ..Inode::default() });
        inode.lookups += 1;
        if inode.generation != generation {
            // It is another inode for the kernel.
            (inode.generation, inode.size_bytes) = (generation, size_bytes);
            inode.pages.clear();
        }
    }

    /// A file was opened.
    pub fn opened(&self, ino: u64, keeps_pages: bool) {
        if let Some(inode) = self.inodes.borrow_mut().get_mut(&ino) {
            inode.handles += 1;
            if !keeps_pages {
                inode.pages.clear();
            }
        }
    }

    /// A handle is gone.
    pub fn closed(&self, ino: u64) {
        if let Some(inode) = self.inodes.borrow_mut().get_mut(&ino) {
            inode.handles = inode.handles.saturating_sub(1);
        }
    }

    /// Forgets the inodes that are not open; returns them with the numbers of their lookups.
    pub fn forget_closed(&self) -> Vec<(u64, u64)> {
        let mut inodes = self.inodes.borrow_mut();
        let closed = inodes.iter().filter(|(_, inode)| inode.handles == 0);
        let forgotten: Vec<(u64, u64)> = closed.map(|(ino, inode)| (*ino, inode.lookups)).collect();
        forgotten.iter().for_each(|(ino, _)| drop(inodes.remove(ino)));
        forgotten
    }

    /// The length that programs see.
    pub fn size_bytes(&self, ino: u64) -> Option<u64> {
        self.inodes.borrow().get(&ino).map(|inode| inode.size_bytes)
    }

    /// The page of a block, if it is cached.
    pub fn page(&self, ino: u64, block: u64) -> Option<Vec<u8>> {
        self.inodes.borrow().get(&ino)?.pages.get(&block).cloned()
    }

    /// A block was read.
    pub fn keep_page(&self, ino: u64, block: u64, bytes: Vec<u8>) {
        if let Some(inode) = self.inodes.borrow_mut().get_mut(&ino) {
            inode.pages.insert(block, bytes);
        }
    }

    /// Blocks are written.
    pub fn written(&self, ino: u64, offset: u64, bytes: &[u8]) {
        if let Some(inode) = self.inodes.borrow_mut().get_mut(&ino) {
            inode.changed = self.next_change();
            inode.size_bytes = inode.size_bytes.max(offset + bytes.len() as u64);
            let blocks = bytes.chunks(BLOCK_BYTES as usize).map(<[u8]>::to_vec);
            inode.pages.extend((offset / BLOCK_BYTES..).zip(blocks));
        }
    }

    /// A write failed: its pages are not cached.
    pub fn write_failed(&self, ino: u64) {
        if let Some(inode) = self.inodes.borrow_mut().get_mut(&ino) {
            inode.pages.clear();
        }
    }

    /// The length was set.
    pub fn truncated(&self, ino: u64, size_bytes: u64) {
        if let Some(inode) = self.inodes.borrow_mut().get_mut(&ino) {
            inode.changed = self.next_change();
            inode.set_size(size_bytes);
        }
    }

    /// The mount wants the pages dropped and this length taken over. Returns whether the kernel knows the inode.
    pub fn drop_pages(&self, ino: u64, size_bytes: u64) -> bool {
        let mut inodes = self.inodes.borrow_mut();
        let Some(inode) = inodes.get_mut(&ino) else { return false };
        inode.size_bytes = size_bytes;
        inode.pages.clear();
        true
    }
}
