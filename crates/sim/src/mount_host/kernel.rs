//! What the kernel caches of a mount's files: their length and their pages.
//!
//! The kernel learns a file's length at the first lookup of an inode's generation, and changes it with the writes and
//! truncates that pass through it. With FUSE's write-back cache it trusts that length; without, it takes over the one in
//! each reply, unless a write, a truncate or another reply changed the file after the request began
//! (`fuse_change_attributes`). Pages stay from one open to the next if the mount says so. Another generation is another
//! inode: whoever still uses the one before gets `EIO` (`fuse_make_bad`).

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
    /// The last change of its length, by [`Kernel::changes`].
    changed: u64,
    /// The mount said that the attributes are old.
    is_old: bool,
    /// Blocks by their place.
    pages: BTreeMap<u64, Vec<u8>>,
    /// Number of the times that pages were written or dropped.
    page_changes: u64,
}

impl Inode {
    fn drop_pages(&mut self) {
        self.page_changes += 1;
        self.pages.clear();
    }

    /// Pages behind the end go.
    fn set_size(&mut self, size_bytes: u64) {
        self.size_bytes = size_bytes;
        self.page_changes += 1;
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

    /// Number of the writes, truncates and replies so far that gave a file its length, for [`Kernel::replied`].
    pub fn changes(&self) -> u64 {
        self.changes.get()
    }

    /// The mount answered with this length a request that began at `changes`.
    pub fn replied(&self, ino: u64, changes: u64, size_bytes: u64) {
        if let Some(inode) = self.inodes.borrow_mut().get_mut(&ino)
            && !self.write_back
            && inode.changed <= changes
        {
            (inode.changed, inode.is_old) = (self.next_change(), false);
            if inode.size_bytes != size_bytes {
                inode.size_bytes = size_bytes;
                inode.drop_pages();
            }
        }
    }

    /// The mount said that the attributes are old. Without the write-back cache the kernel asks for them when a program
    /// reads over the end (`fuse_cache_read_iter`).
    pub fn forget_attributes(&self, ino: u64) {
        if let Some(inode) = self.inodes.borrow_mut().get_mut(&ino) {
            inode.is_old = !self.write_back;
            // Attributes in replies to requests from before do not count (`fuse_reverse_inval_inode`).
            inode.changed = self.next_change();
        }
    }

    /// The mount said that the pages and the attributes are old.
    pub fn forget_pages(&self, ino: u64) {
        self.forget_attributes(ino);
        if let Some(inode) = self.inodes.borrow_mut().get_mut(&ino) {
            inode.drop_pages();
        }
    }

    /// Whether the mount said so, and has sent none since.
    pub fn has_old_attributes(&self, ino: u64) -> bool {
        self.inodes.borrow().get(&ino).is_some_and(|inode| inode.is_old)
    }

    /// The generation of a file that it knows.
    pub fn generation(&self, ino: u64) -> Option<u64> {
        self.inodes.borrow().get(&ino).map(|inode| inode.generation)
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
            inode.drop_pages();
        }
    }

    /// A file is being opened.
    pub fn opens(&self, ino: u64) {
        if let Some(inode) = self.inodes.borrow_mut().get_mut(&ino) {
            inode.handles += 1;
        }
    }

    /// It is open.
    pub fn opened(&self, ino: u64, keeps_pages: bool) {
        if let Some(inode) = self.inodes.borrow_mut().get_mut(&ino)
            && !keeps_pages
        {
            inode.drop_pages();
        }
    }

    /// A handle is gone, or the open failed.
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

    /// Number of the times that a file's pages were written or dropped, for [`Kernel::keep_page`].
    pub fn page_changes(&self, ino: u64) -> u64 {
        self.inodes.borrow().get(&ino).map_or(0, |inode| inode.page_changes)
    }

    /// A block was read; the request began at `page_changes`. Who writes or drops the page waits until it is read.
    pub fn keep_page(&self, ino: u64, block: u64, bytes: Vec<u8>, page_changes: u64) {
        if let Some(inode) = self.inodes.borrow_mut().get_mut(&ino)
            && inode.page_changes == page_changes
        {
            inode.pages.insert(block, bytes);
        }
    }

    /// The mount answered a read that began at `changes` with fewer bytes than it was asked for: the file ends here.
    /// With its write-back cache the kernel takes that for a hole (`fuse_short_read`).
    pub fn read_to_end(&self, ino: u64, changes: u64, end_bytes: u64) {
        if let Some(inode) = self.inodes.borrow_mut().get_mut(&ino)
            && !self.write_back
            && inode.changed <= changes
            && end_bytes < inode.size_bytes
        {
            inode.changed = self.next_change();
            inode.set_size(end_bytes);
        }
    }

    /// Blocks are written.
    pub fn written(&self, ino: u64, offset: u64, bytes: &[u8]) {
        if let Some(inode) = self.inodes.borrow_mut().get_mut(&ino) {
            inode.changed = self.next_change();
            inode.size_bytes = inode.size_bytes.max(offset + bytes.len() as u64);
            inode.page_changes += 1;
            let blocks = bytes.chunks(BLOCK_BYTES as usize).map(<[u8]>::to_vec);
            inode.pages.extend((offset / BLOCK_BYTES..).zip(blocks));
        }
    }

    /// A program begins to write without pages.
    pub fn writes_direct(&self, ino: u64) {
        if let Some(inode) = self.inodes.borrow_mut().get_mut(&ino) {
            inode.drop_pages();
        }
    }

    /// It has written up to this byte.
    pub fn written_direct(&self, ino: u64, end_bytes: u64) {
        if let Some(inode) = self.inodes.borrow_mut().get_mut(&ino) {
            inode.changed = self.next_change();
            inode.size_bytes = inode.size_bytes.max(end_bytes);
        }
    }

    /// A write failed: its pages are not cached.
    pub fn write_failed(&self, ino: u64) {
        if let Some(inode) = self.inodes.borrow_mut().get_mut(&ino) {
            inode.drop_pages();
        }
    }

    /// The length was set, and the mount answered with this one (`fuse_do_setattr`): another mount may have changed it meanwhile.
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
        inode.drop_pages();
        true
    }
}
