//! What the kernel caches of each inode: its number of lookups, and the version whose length and data it has.
//!
//! With its write-back cache the kernel trusts its own length and times of a file over those in a reply
//! (`fuse_change_attributes`). If another client changed a file, and no program here has it open, its next lookup
//! therefore returns a new generation: the kernel takes the file for another inode and drops its cache (FUSE,
//! `fuse_stale_inode`).

use std::collections::HashMap;
use tessera_failpoint as failpoint;
use tessera_wire::{Attr, InodeKind};

/// A version and a length that no file has.
const NONE: u64 = u64::MAX;

/// See the module.
#[derive(Debug, Default)]
pub struct KernelCache {
    inodes: HashMap<u64, Inode>,
    last_generation: u64,
}

#[derive(Debug, Default)]
struct Inode {
    /// Lookups that the kernel has not forgotten.
    lookups: u64,
    generation: u64,
    version: u64,
    size_bytes: u64,
    /// The length that the kernel uses.
    shown_bytes: u64,
    /// It was opened here although the kernel has a length that another mount changed.
    hidden: bool,
    /// An open was refused since the last change, so that the kernel looks the name up again.
    sent_back: bool,
    /// It did so, and kept its length, because the file was open here.
    in_vain: bool,
    /// The attributes at the removal of its last name on this mount.
    unlinked: Option<Attr>,
}

impl KernelCache {
    /// Counts a lookup that is about to be answered, and returns the inode's generation. `open`: a program here or the
    /// spool has the file open; `uncommitted`: the answer has the length of changes that are in no version.
    pub fn looked_up(&mut self, attr: &Attr, open: bool, uncommitted: bool) -> u64 {
        let current = (attr.version, attr.size_bytes);
        let (version, size_bytes) = if uncommitted { (NONE, NONE) } else { current };
        let new = Inode { version, size_bytes, shown_bytes: size_bytes, ..Inode::default() };
        let inode = self.inodes.entry(attr.ino).or_insert(new);
        inode.lookups += 1;
        let shown = inode.shown_bytes == attr.size_bytes || failpoint::is_active("mount.hidden_length_stays");
        let is_current = (inode.version, inode.size_bytes) == current && shown;
        inode.in_vain = inode.sent_back && !is_current && open;
        if attr.kind() == InodeKind::File && !is_current && !open {
            self.last_generation += 1;
            assert!(inode.generation < self.last_generation, "a generation is used once");
            inode.generation = self.last_generation;
            inode.holds(attr.version, attr.size_bytes);
        }
        inode.generation
    }

    /// Whether these attributes are older than a version that the kernel has: the manager sent them before that version's
    /// commit ended.
    pub fn has_newer(&self, attr: &Attr) -> bool {
        self.inodes.get(&attr.ino).is_some_and(|inode| inode.version != NONE && attr.version < inode.version)
    }

    /// A name of the inode was removed here; `attr`: the attributes after that.
    pub fn name_removed(&mut self, attr: Attr) {
        if let Some(inode) = self.inodes.get_mut(&attr.ino)
            && attr.nlink == 0
        {
            inode.unlinked = Some(attr);
        }
    }

    /// Attributes of a file that lost its last name on this mount. The kernel may still write back its times.
    pub fn unlinked(&self, ino: u64) -> Option<Attr> {
        self.inodes.get(&ino)?.unlinked.clone()
    }

    /// The kernel forgot `lookups` lookups of an inode.
    pub fn forgot(&mut self, ino: u64, lookups: u64) {
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.lookups = inode.lookups.saturating_sub(lookups);
            if inode.lookups == 0 {
                self.inodes.remove(&ino);
            }
        }
    }

    /// The kernel has this version's length and data, because it dropped its older ones.
    pub fn holds(&mut self, ino: u64, version: u64, size_bytes: u64) {
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.holds(version, size_bytes);
        }
    }

    /// What was written here became this version. `follows`: its only changes to the version before are this mount's.
    /// If not, the kernel lacks the other changes, and later commits do not bring them: it must drop its data first.
    pub fn committed(&mut self, ino: u64, version: u64, size_bytes: u64, follows: bool) {
        match follows && self.inodes.get(&ino).is_some_and(|inode| inode.version != NONE && !inode.hidden) {
            true => self.holds(ino, version, size_bytes),
            false => self.holds_uncommitted(ino),
        }
    }

    /// The kernel's length and data belong to no version: data written here was not committed, or other changes lie
    /// below it.
    pub fn holds_uncommitted(&mut self, ino: u64) {
        self.holds(ino, NONE, NONE);
    }

    /// Whether the kernel has this version's length, and no older version's data.
    pub fn shows(&self, ino: u64, version: u64, size_bytes: u64) -> bool {
        self.inodes.get(&ino).is_some_and(|inode| (inode.version, inode.shown_bytes) == (version, size_bytes))
    }

    /// Whether the kernel knows the file, with another length.
    pub fn lacks(&self, ino: u64, size_bytes: u64) -> bool {
        self.inodes.get(&ino).is_some_and(|inode| inode.shown_bytes != size_bytes)
    }

    /// Whether to refuse an open with `ESTALE`: the kernel then looks the name up again, learns the new length, and opens once more. If
    /// the file changes in between, it is refused again, and the program gets the error; the next open still has the old length.
    /// Not refused is an open after a look-up that could not show the length.
    pub fn must_look_up_again(&mut self, ino: u64, size_bytes: u64) -> bool {
        let Some(inode) = self.inodes.get_mut(&ino) else { return false };
        inode.sent_back = inode.shown_bytes != size_bytes && !inode.in_vain;
        inode.in_vain = false;
        inode.sent_back
    }

    /// Whether the data in the kernel's cache is this version's. From now on it counts as this version's. `uncommitted`:
    /// the length is that of changes that are in no version.
    pub fn opens(&mut self, ino: u64, version: u64, size_bytes: u64, uncommitted: bool) -> bool {
        let Some(inode) = self.inodes.get_mut(&ino) else { return false };
        inode.hidden |= !uncommitted && inode.shown_bytes != size_bytes;
        let is_current = inode.version == version || failpoint::is_active("mount.kernel_keeps_pages");
        if !is_current {
            (inode.version, inode.size_bytes) = (version, size_bytes);
        }
        is_current
    }
}

impl Inode {
    fn holds(&mut self, version: u64, size_bytes: u64) {
        (self.version, self.size_bytes, self.shown_bytes) = (version, size_bytes, size_bytes);
        (self.sent_back, self.in_vain, self.hidden) = (false, false, false);
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
        let mut kernel = KernelCache::default();
        let first = kernel.looked_up(&attr(1, 10), false, false);
        assert_eq!(kernel.looked_up(&attr(1, 10), false, false), first);
        assert_eq!(kernel.looked_up(&attr(2, 20), true, false), first, "open here");
        let second = kernel.looked_up(&attr(2, 20), false, false);
        assert_ne!(second, first);
        kernel.committed(5, 3, 30, true);
        assert_eq!(kernel.looked_up(&attr(3, 30), false, false), second, "written here");
        assert!(kernel.has_newer(&attr(2, 20)) && !kernel.has_newer(&attr(3, 30)));
        assert!(kernel.opens(5, 3, 30, false));
        assert!(!kernel.opens(5, 4, 31, false));
        assert!(!kernel.shows(5, 4, 31), "its length is the old one");
        assert!(kernel.must_look_up_again(5, 31));
        kernel.holds(5, 4, 31);
        assert!(kernel.shows(5, 4, 31) && !kernel.must_look_up_again(5, 31));
    }

    /// Two other mounts' commits came between three requests of one open, so the program got `ESTALE`. Its next open comes without a
    /// look-up, because the kernel caches the name (P7).
    #[test]
    fn an_open_after_a_refused_one_shows_the_new_length() {
        let mut kernel = KernelCache::default();
        kernel.looked_up(&attr(1, 10), false, false);
        assert!(kernel.must_look_up_again(5, 20));
        kernel.looked_up(&attr(2, 20), false, false);
        assert!(kernel.must_look_up_again(5, 30), "the program gets the error");
        assert!(kernel.must_look_up_again(5, 30), "the kernel still has 20 bytes");
        kernel.looked_up(&attr(3, 30), false, false);
        assert!(!kernel.must_look_up_again(5, 30));
    }

    /// A file that waits in the spool counts as open at each look-up.
    #[test]
    fn an_open_is_not_refused_for_ever() {
        let mut kernel = KernelCache::default();
        kernel.looked_up(&attr(1, 10), false, false);
        assert!(kernel.must_look_up_again(5, 20));
        kernel.looked_up(&attr(2, 20), true, false);
        assert!(!kernel.must_look_up_again(5, 20));
        assert!(kernel.must_look_up_again(5, 20), "the next open");
    }

    #[test]
    fn a_file_without_a_name_keeps_its_last_attributes() {
        let mut kernel = KernelCache::default();
        kernel.looked_up(&attr(3, 30), false, false);
        kernel.name_removed(Attr { nlink: 1, ..attr(3, 30) });
        assert!(kernel.unlinked(5).is_none(), "it has another name");
        kernel.name_removed(attr(3, 30));
        assert_eq!(kernel.unlinked(5), Some(attr(3, 30)));
        kernel.forgot(5, 1);
        assert!(kernel.unlinked(5).is_none());
        assert!(!kernel.opens(5, 4, 31, false), "forgotten");
    }

    /// A file that another mount changed was opened while it was open here, so the kernel kept its length.
    #[test]
    fn a_length_that_is_not_shown_is_shown_after_the_last_close() {
        let mut kernel = KernelCache::default();
        let first = kernel.looked_up(&attr(1, 10), false, false);
        assert!(!kernel.opens(5, 2, 20, false));
        assert_eq!(kernel.looked_up(&attr(2, 20), true, false), first, "open here");
        assert_ne!(kernel.looked_up(&attr(2, 20), false, false), first);
        assert!(kernel.shows(5, 2, 20));
    }

    /// The kernel forgot a file that waits in the spool and looked it up again; then another mount's version replaced it.
    #[test]
    fn what_waits_in_the_spool_does_not_count_as_the_current_version() {
        let mut kernel = KernelCache::default();
        let first = kernel.looked_up(&attr(1, 10), true, true);
        assert!(!kernel.shows(5, 1, 10), "the kernel has the length and the data of the spool");
        assert_ne!(kernel.looked_up(&attr(1, 10), false, false), first);
        assert!(kernel.shows(5, 1, 10));
    }

    /// Another mount made the file longer, and it was opened while it was open here.
    #[test]
    fn a_commit_here_does_not_bring_a_length_that_the_kernel_was_not_told() {
        let mut kernel = KernelCache::default();
        kernel.looked_up(&attr(1, 10), false, false);
        assert!(!kernel.opens(5, 2, 20, false));
        kernel.committed(5, 3, 20, true);
        assert!(!kernel.shows(5, 3, 20), "it has 10 bytes");
        kernel.holds(5, 3, 20);
        assert!(kernel.opens(5, 3, 25, true), "5 bytes were written here");
        kernel.committed(5, 4, 25, true);
        assert!(kernel.shows(5, 4, 25));
    }

    #[test]
    fn what_was_never_committed_is_not_shown() {
        let mut kernel = KernelCache::default();
        let first = kernel.looked_up(&attr(4, 31), false, false);
        kernel.holds_uncommitted(5);
        assert!(!kernel.has_newer(&attr(3, 30)), "it has no version");
        assert!(kernel.must_look_up_again(5, 31) && !kernel.opens(5, 4, 31, false));
        kernel.holds_uncommitted(5);
        assert_ne!(kernel.looked_up(&attr(3, 30), false, false), first, "it becomes another inode");
    }
}
