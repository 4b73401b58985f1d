//! What the kernel holds of us: how often it knows each inode, and which version of a file it took for current.
//!
//! With its write-back cache the kernel trusts the length and times it has of a file over those it is told
//! (`fuse_change_attributes`). A file that somebody else changed is therefore given a new generation when it is looked up
//! and nobody here has it open: the kernel takes that for another inode and drops what it knew (FUSE,
//! `fuse_stale_inode`).

use fuser::Generation;
use parking_lot::Mutex;
use std::collections::HashMap;
use tessera_wire::{Attr, InodeKind};

/// What no file has.
const NO_VERSION: u64 = u64::MAX;
const NO_LENGTH: u64 = u64::MAX;

/// See the module.
#[derive(Default)]
pub struct Kernel(Mutex<Held>);

#[derive(Default)]
struct Held {
    inodes: HashMap<u64, Inode>,
    generations: u64,
}

struct Inode {
    /// Lookups not yet forgotten.
    lookups: u64,
    generation: u64,
    version: u64,
    size_bytes: u64,
    /// The length the kernel takes it for.
    shown_bytes: u64,
    /// An open was refused since, for the kernel to look again.
    sent_back: bool,
    /// It has lost its last name here, and was like this then.
    gone: Option<Attr>,
}

impl Kernel {
    /// The kernel is about to learn of an inode; `open`: a file that somebody here has open.
    pub fn learns(&self, attr: &Attr, open: bool) -> Generation {
        let mut held = self.0.lock();
        let (version, size_bytes) = (attr.version, attr.size_bytes);
        let next = held.generations + 1;
        let shown_bytes = size_bytes;
        let fresh = Inode { lookups: 0, generation: 0, version, size_bytes, shown_bytes, sent_back: false, gone: None };
        let inode = held.inodes.entry(attr.ino).or_insert(fresh);
        inode.lookups += 1;
        let changed = (inode.version, inode.size_bytes) != (version, size_bytes);
        let mut used = false;
        if attr.kind() == InodeKind::File && changed && !open {
            (inode.version, inode.size_bytes, inode.generation) = (version, size_bytes, next);
            (inode.shown_bytes, inode.sent_back) = (size_bytes, false);
            used = true;
        }
        let generation = Generation(inode.generation);
        if used {
            held.generations = next;
        }
        generation
    }

    /// A name of it was removed here, and it is like this now.
    pub fn lost_name(&self, attr: Attr) {
        if let Some(inode) = self.0.lock().inodes.get_mut(&attr.ino)
            && attr.nlink == 0
        {
            inode.gone = Some(attr);
        }
    }

    /// What is left of a file that has lost its last name here. The kernel may still want its times written.
    pub fn gone(&self, ino: u64) -> Option<Attr> {
        self.0.lock().inodes.get(&ino)?.gone.clone()
    }

    /// The kernel forgot it so many times.
    pub fn forgets(&self, ino: u64, lookups: u64) {
        let mut held = self.0.lock();
        if let Some(inode) = held.inodes.get_mut(&ino) {
            inode.lookups = inode.lookups.saturating_sub(lookups);
            if inode.lookups == 0 {
                held.inodes.remove(&ino);
            }
        }
    }

    /// A version that was written here: the kernel knows its length.
    pub fn wrote(&self, ino: u64, version: u64, size_bytes: u64) {
        if let Some(inode) = self.0.lock().inodes.get_mut(&ino) {
            (inode.version, inode.size_bytes) = (version, size_bytes);
            (inode.shown_bytes, inode.sent_back) = (size_bytes, false);
        }
    }

    /// What was written here was not committed, and nobody has the file open any more: neither the length nor the data that the kernel has
    /// are in any version.
    pub fn lost(&self, ino: u64) {
        if let Some(inode) = self.0.lock().inodes.get_mut(&ino) {
            (inode.version, inode.size_bytes, inode.shown_bytes) = (NO_VERSION, NO_LENGTH, NO_LENGTH);
            inode.sent_back = false;
        }
    }

    /// Whether the kernel has this version's length, and nothing of older ones' data.
    pub fn shows(&self, ino: u64, version: u64, size_bytes: u64) -> bool {
        let held = self.0.lock();
        held.inodes.get(&ino).is_some_and(|inode| (inode.version, inode.shown_bytes) == (version, size_bytes))
    }

    /// The kernel was made to forget what it had of a file, and took over this length.
    pub fn refreshed(&self, ino: u64, version: u64, size_bytes: u64) {
        self.wrote(ino, version, size_bytes);
    }

    /// Whether an open is to be refused with ESTALE: the kernel then looks the name up again, once, and learns of the length it does
    /// not know.
    pub fn must_look_again(&self, ino: u64, size_bytes: u64) -> bool {
        match self.0.lock().inodes.get_mut(&ino) {
            Some(inode) => {
                let again = inode.shown_bytes != size_bytes && !inode.sent_back;
                inode.sent_back = again;
                again
            }
            None => false,
        }
    }

    /// Whether what the kernel cached of a file's data is of this version. It is taken for so from now on.
    pub fn has_data_of(&self, ino: u64, version: u64, size_bytes: u64) -> bool {
        match self.0.lock().inodes.get_mut(&ino) {
            Some(inode) if inode.version == version => true,
            Some(inode) => {
                (inode.version, inode.size_bytes) = (version, size_bytes);
                false
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr(version: u64, size_bytes: u64) -> Attr {
        Attr { ino: 5, kind: InodeKind::File as i32, version, size_bytes, ..Attr::default() }
    }

    #[test]
    fn a_file_changed_elsewhere_becomes_another_inode_unless_it_is_open() {
        let kernel = Kernel::default();
        let first = kernel.learns(&attr(1, 10), false);
        assert_eq!(kernel.learns(&attr(1, 10), false), first);
        assert_eq!(kernel.learns(&attr(2, 20), true), first, "open here");
        let second = kernel.learns(&attr(2, 20), false);
        assert_ne!(second, first);
        kernel.wrote(5, 3, 30);
        assert_eq!(kernel.learns(&attr(3, 30), false), second, "written here");
        assert!(kernel.has_data_of(5, 3, 30));
        assert!(!kernel.has_data_of(5, 4, 31));
        assert!(!kernel.shows(5, 4, 31), "its length is the old one");
        assert!(kernel.must_look_again(5, 31) && !kernel.must_look_again(5, 31), "once");
        kernel.refreshed(5, 4, 31);
        assert!(kernel.shows(5, 4, 31) && !kernel.must_look_again(5, 31));
        kernel.lost_name(Attr { nlink: 1, ..attr(3, 30) });
        assert!(kernel.gone(5).is_none(), "it has another name");
        kernel.lost_name(attr(3, 30));
        assert_eq!(kernel.gone(5), Some(attr(3, 30)));
        kernel.lost(5);
        assert!(
            kernel.must_look_again(5, 31) && !kernel.has_data_of(5, 4, 31),
            "what the kernel has was never committed"
        );
        kernel.lost(5);
        assert_ne!(kernel.learns(&attr(3, 30), false), second, "it becomes another inode");
        kernel.forgets(5, 6);
        assert!(kernel.gone(5).is_none());
        assert!(!kernel.has_data_of(5, 4, 31), "forgotten");
    }
}
