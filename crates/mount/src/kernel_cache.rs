//! What the kernel caches of each inode: its number of lookups, and the version whose length and data it has.
//!
//! Without its write-back cache the kernel takes over the length in each reply, and drops its pages if it is another one
//! (FUSE, `fuse_change_attributes`). It ignores the length if it was told to drop pages or attributes since it made the request
//! (`fuse_reverse_inval_inode`), so a length that was sent beside such a notice is not known to be the kernel's.
//!
//! With that cache it trusts its own length and times. If another client changed a file, and no program here has it
//! open, its next lookup therefore returns a new generation: the kernel takes the file for another inode and drops its
//! cache (`fuse_stale_inode`). A program that has looked up the inode before, and has not opened it yet, gets `EIO`
//! (`fuse_make_bad`), so a new generation waits until no lookup was answered for [`NEW_GENERATION_AFTER`].

use std::collections::HashMap;
use std::time::Duration;
use tessera_failpoint as failpoint;
use tessera_wire::{Attr, InodeKind};

/// A version and a length that no file has.
const NONE: u64 = u64::MAX;
/// A program opens what it has looked up within this time.
const NEW_GENERATION_AFTER: Duration = Duration::from_millis(20);
/// Other mounts count as changing a file for so long after one did.
const CHANGES_FOR_NS: i64 = 10_000_000_000;
/// So many files are remembered that other mounts changed, at least: those that changed last.
const MAX_CHANGED: usize = 4_096;
/// A request that arrives here was made by the kernel less than so long ago.
const REQUEST_TAKES_NS: i64 = 2_000_000;
/// So many threads are remembered whose last open was refused. Most are over by then.
const MAX_REFUSED: usize = 4_096;

/// See the module.
#[derive(Debug, Default)]
pub struct KernelCache {
    /// The kernel has its write-back cache.
    write_back: bool,
    inodes: HashMap<u64, Inode>,
    last_generation: u64,
    /// The inode of each thread whose last open was refused, so that the kernel looks the name up again, and the inode's notices
    /// until then.
    refused: HashMap<u32, (u64, u64)>,
    /// When other mounts changed files, as far as this one knows. Also of inodes that the kernel has forgotten.
    changed_ns: HashMap<u64, i64>,
    /// As `changed_ns`, of before that was full.
    changed_before_ns: HashMap<u64, i64>,
}

/// Who asked for attributes, and when the request arrived.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    /// The thread of the program; 0: unknown.
    pub thread: u32,
    /// By the backend's clock, ns.
    pub at_ns: i64,
}

#[derive(Debug, Default)]
struct Inode {
    /// Lookups that the kernel has not forgotten.
    lookups: u64,
    /// When the last one was answered, by the backend's clock.
    looked_up_ns: i64,
    generation: u64,
    /// The version of the kernel's data, and its length.
    version: u64,
    size_bytes: u64,
    /// The newest version that was committed here, or whose attributes the kernel was sent.
    newest_version: u64,
    /// The length that the kernel uses; none: unknown.
    shown_bytes: u64,
    /// Notices to the kernel that it must drop pages or attributes, and when the last one was sent.
    notices: u64,
    noticed_ns: i64,
    /// See [`KernelCache::older_fills`].
    older_fills: u64,
    /// It was opened here although the kernel has a length that another mount changed.
    hidden: bool,
    /// A commit here followed another mount's changes, and the file was not opened since.
    covers_changes: bool,
    /// The last lookup could not make the kernel take over the length.
    in_vain: bool,
    /// Opens by threads without a number that were refused, and whose lookup was not answered yet.
    unnamed_refused: u32,
    /// As many of those whose lookup was answered.
    unnamed_answered: u32,
    /// The attributes at the removal of its last name on this mount.
    unlinked: Option<Attr>,
}

impl KernelCache {
    /// Knows nothing. `write_back`: the kernel has its write-back cache.
    pub fn new(write_back: bool) -> KernelCache {
        KernelCache { write_back, ..KernelCache::default() }
    }

    /// Whether the kernel has its write-back cache.
    pub fn has_write_back(&self) -> bool {
        self.write_back
    }

    /// How long a lookup has to wait because its answer would have a new generation. `open`: as for
    /// [`KernelCache::looked_up`].
    pub fn wait_for_opens(&self, attr: &Attr, open: bool, now_ns: i64) -> Option<Duration> {
        let inode = self.inodes.get(&attr.ino).filter(|inode| self.needs_generation(inode, attr, open))?;
        let passed_ns = now_ns.saturating_sub(inode.looked_up_ns).max(0);
        let left = NEW_GENERATION_AFTER.checked_sub(Duration::from_nanos(passed_ns as u64));
        left.filter(|left| !left.is_zero() && !failpoint::is_active("mount.generation_not_delayed"))
    }

    fn needs_generation(&self, inode: &Inode, attr: &Attr, open: bool) -> bool {
        let shown = inode.shown_bytes == attr.size_bytes || failpoint::is_active("mount.hidden_length_stays");
        let is_current = (inode.version, inode.size_bytes) == (attr.version, attr.size_bytes) && shown;
        self.write_back && attr.kind() == InodeKind::File && !is_current && !open
    }

    /// Counts a lookup that is about to be answered, and returns the inode's generation. It stays if it would have to wait.
    /// `open`: a program here or the spool has the file open; `uncommitted`: the answer has the length of changes that are in
    /// no version.
    pub fn looked_up(&mut self, attr: &Attr, open: bool, uncommitted: bool, now_ns: i64) -> u64 {
        let (version, size_bytes) = if uncommitted { (NONE, NONE) } else { (attr.version, attr.size_bytes) };
        let new = || Inode { version, size_bytes, shown_bytes: size_bytes, ..Inode::default() };
        let is_new = self.inodes.get(&attr.ino).is_some_and(|inode| self.needs_generation(inode, attr, open))
            && self.wait_for_opens(attr, open, now_ns).is_none();
        let inode = self.inodes.entry(attr.ino).or_insert_with(new);
        inode.lookups += 1;
        inode.looked_up_ns = now_ns;
        if is_new {
            self.last_generation += 1;
            assert!(inode.generation < self.last_generation, "a generation is used once");
            inode.generation = self.last_generation;
            inode.holds(attr.version, attr.size_bytes);
        }
        inode.in_vain = inode.shown_bytes != attr.size_bytes;
        if inode.unnamed_refused > 0 {
            inode.unnamed_refused -= 1;
            inode.unnamed_answered += 1;
        }
        inode.generation
    }

    /// The kernel is sent these attributes of a file, with the length that the mount shows. Without its write-back cache it
    /// takes that over, unless a notice went out since it made the request.
    pub fn sent(&mut self, attr: &Attr, asked: Asked) {
        if self.write_back {
            return;
        }
        let refused = self.refused.get(&asked.thread);
        let Some(inode) = self.inodes.get_mut(&attr.ino) else { return };
        inode.newest_version = inode.newest_version.max(attr.version);
        // A thread whose open was refused asks after that, and no notice was sent since.
        let asked_after_refusal = refused == Some(&(attr.ino, inode.notices));
        let was_quiet = inode.notices == 0 || asked.at_ns.saturating_sub(inode.noticed_ns) > REQUEST_TAKES_NS;
        if was_quiet || asked_after_refusal {
            (inode.shown_bytes, inode.hidden) = (attr.size_bytes, false);
        } else {
            inode.shown_bytes = NONE;
        }
    }

    /// The kernel is told to drop pages or attributes of a file, or was told so: it ignores the length in replies that are on their
    /// way.
    pub fn noticed(&mut self, ino: u64, now_ns: i64) {
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.notices += 1;
            (inode.noticed_ns, inode.shown_bytes) = (now_ns, NONE);
        }
    }

    /// The generation for an entry of a listing, if the entry tells the kernel nothing new of a file's length or data. `known`: the
    /// store's attributes; `shown_bytes`: the length that the mount shows.
    ///
    /// The kernel gets the entries of a listing later, all at once, and perhaps none of them. What is new it learns by a lookup.
    pub fn listed(&self, known: &Attr, shown_bytes: u64, open: bool) -> Option<u64> {
        let Some(inode) = self.inodes.get(&known.ino) else { return Some(0) };
        let is_old = known.kind() == InodeKind::File
            && (inode.shown_bytes != shown_bytes || self.has_newer(known) || self.needs_generation(inode, known, open));
        (!is_old).then_some(inode.generation)
    }

    /// The kernel is about to be sent an entry of a listing that only names the inode. It counts that as a lookup, and forgets it at
    /// once (`fuse_force_forget`).
    pub fn named(&mut self, ino: u64) {
        let unknown = || Inode { version: NONE, size_bytes: NONE, shown_bytes: NONE, ..Inode::default() };
        self.inodes.entry(ino).or_insert_with(unknown).lookups += 1;
    }

    /// Whether these attributes are older than a version that was committed here, or that the kernel has or was sent: the
    /// manager sent them before that version's commit ended.
    pub fn has_newer(&self, attr: &Attr) -> bool {
        attr.version < self.newest_version(attr.ino)
    }

    /// The manager has this version, and no newer one; `newest`: the version that [`KernelCache::newest_version`] gave before it was
    /// asked. What was newer is lost, so the kernel's data belongs to no version.
    pub fn lost(&mut self, attr: &Attr, newest: u64) {
        if let Some(inode) = self.inodes.get_mut(&attr.ino)
            && inode.newest() == newest
            && attr.version < newest
        {
            (inode.version, inode.size_bytes, inode.newest_version) = (NONE, NONE, attr.version);
        }
    }

    /// The newest version of the inode that the kernel has or was sent, or that was committed here; 0: none.
    pub fn newest_version(&self, ino: u64) -> u64 {
        self.inodes.get(&ino).map_or(0, Inode::newest)
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
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.newest_version = inode.newest_version.max(version);
            inode.covers_changes |= !follows;
        }
        match self.inodes.get_mut(&ino) {
            Some(inode) if follows && inode.version != NONE && !inode.hidden => {
                let is_known = inode.shown_bytes != NONE;
                inode.holds(version, size_bytes);
                if !is_known {
                    inode.shown_bytes = NONE;
                }
            }
            _ => self.holds_uncommitted(ino),
        }
    }

    /// A program appended where the kernel does not expect it: the file is longer than the kernel knows.
    pub fn appended_behind(&mut self, ino: u64) {
        if let Some(inode) = self.inodes.get_mut(&ino) {
            (inode.shown_bytes, inode.hidden) = (NONE, true);
        }
    }

    /// The kernel's length and data belong to no version: data written here was not committed, or other changes lie
    /// below it.
    pub fn holds_uncommitted(&mut self, ino: u64) {
        self.holds(ino, NONE, NONE);
    }

    /// The kernel is sent data that is older than the version that it counts as.
    pub fn has_older_pages(&mut self, ino: u64) {
        if let Some(inode) = self.inodes.get_mut(&ino) {
            (inode.version, inode.size_bytes) = (NONE, NONE);
            inode.older_fills += 1;
        }
    }

    /// Number of times that the kernel was sent older data. An open during which it grows must not count what the kernel has as its
    /// version.
    pub fn older_fills(&self, ino: u64) -> u64 {
        self.inodes.get(&ino).map_or(0, |inode| inode.older_fills)
    }

    /// Whether the kernel has this version's length, and no older version's data.
    pub fn shows(&self, ino: u64, version: u64, size_bytes: u64) -> bool {
        self.inodes.get(&ino).is_some_and(|inode| (inode.version, inode.shown_bytes) == (version, size_bytes))
    }

    /// Whether the kernel knows the file, with another length.
    pub fn lacks(&self, ino: u64, size_bytes: u64) -> bool {
        self.inodes.get(&ino).is_some_and(|inode| inode.shown_bytes != size_bytes)
    }

    /// Whether to refuse a thread's open with `ESTALE`: the kernel then looks the name up again, learns the new length,
    /// and opens once more, in the same thread. If that is refused, too, the program gets the error. It is if the file
    /// changed in between and the kernel has its write-back cache: it would show one version's bytes with another one's
    /// length. It is not if the lookup could not show the length.
    ///
    /// `thread` is 0 if the kernel cannot name it. Of those threads as many opens are answered as lookups followed
    /// refused ones.
    pub fn must_look_up_again(&mut self, ino: u64, size_bytes: u64, thread: u32) -> bool {
        // The kernel opens once more, perhaps another inode of that name, and the program gets a second refusal as its error.
        let named_refused = self.refused.remove(&thread).is_some_and(|(refused, _)| refused == ino || !self.write_back);
        let Some(inode) = self.inodes.get_mut(&ino) else { return false };
        let was_refused = if thread == 0 { inode.unnamed_answered > 0 } else { named_refused };
        if thread == 0 {
            inode.unnamed_answered = inode.unnamed_answered.saturating_sub(1);
        }
        let in_vain = was_refused && (inode.in_vain || !self.write_back);
        let refuses = inode.shown_bytes != size_bytes && !in_vain;
        if refuses {
            inode.hidden = true;
            if thread == 0 {
                inode.unnamed_refused += 1;
            } else {
                // The notice of the refusal comes before the answer to the program.
                let notices = inode.notices + 1;
                self.remember_refusal(thread, ino, notices);
            }
        }
        refuses
    }

    /// A thread's open was refused because the inode is gone.
    pub fn refused_as_gone(&mut self, ino: u64, thread: u32) {
        if thread != 0 {
            self.remember_refusal(thread, ino, NONE);
        }
    }

    fn remember_refusal(&mut self, thread: u32, ino: u64, notices: u64) {
        if self.refused.len() >= MAX_REFUSED {
            self.refused.clear();
        }
        self.refused.insert(thread, (ino, notices));
    }

    /// Whether the data in the kernel's cache counts as this version's.
    pub fn has_version(&self, ino: u64, version: u64) -> bool {
        self.inodes.get(&ino).is_some_and(|inode| inode.has(version))
    }

    /// Whether the data in the kernel's cache is this version's. From now on it counts as this version's. `uncommitted`:
    /// the length is that of changes that are in no version.
    pub fn opens(&mut self, ino: u64, version: u64, size_bytes: u64, uncommitted: bool, now_ns: i64) -> bool {
        let Some(inode) = self.inodes.get_mut(&ino) else { return false };
        inode.hidden |= !uncommitted && inode.shown_bytes != size_bytes;
        let is_current = inode.has(version);
        if !is_current {
            let is_changed = inode.version != NONE || std::mem::take(&mut inode.covers_changes);
            (inode.version, inode.size_bytes) = (version, size_bytes);
            if is_changed {
                self.changed_elsewhere(ino, now_ns);
            }
        }
        is_current
    }

    /// Another mount changed an inode.
    pub fn changed_elsewhere(&mut self, ino: u64, now_ns: i64) {
        if self.changed_ns.len() >= MAX_CHANGED && !self.changed_ns.contains_key(&ino) {
            self.changed_before_ns = std::mem::take(&mut self.changed_ns);
        }
        self.changed_ns.insert(ino, now_ns);
    }

    /// Whether another mount has changed an inode since this moment, as far as this one knows.
    pub fn was_changed_since(&self, ino: u64, since_ns: i64) -> bool {
        self.last_changed_ns(ino).is_some_and(|at_ns| at_ns >= since_ns)
    }

    fn last_changed_ns(&self, ino: u64) -> Option<i64> {
        self.changed_ns.get(&ino).or_else(|| self.changed_before_ns.get(&ino)).copied()
    }

    /// Whether another mount is changing the file. Never with the write-back cache: it may have bytes that only it shows.
    pub fn changes_elsewhere(&self, ino: u64, now_ns: i64) -> bool {
        let changed_ns = self.last_changed_ns(ino).filter(|_| !self.write_back);
        changed_ns.is_some_and(|at_ns| now_ns.saturating_sub(at_ns) < CHANGES_FOR_NS)
    }
}

impl Inode {
    fn newest(&self) -> u64 {
        if self.version == NONE { self.newest_version } else { self.newest_version.max(self.version) }
    }

    fn has(&self, version: u64) -> bool {
        self.version == version || failpoint::is_active("mount.kernel_keeps_pages")
    }

    fn holds(&mut self, version: u64, size_bytes: u64) {
        (self.version, self.size_bytes, self.shown_bytes) = (version, size_bytes, size_bytes);
        self.hidden = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr(version: u64, size_bytes: u64) -> Attr {
        Attr { ino: 5, kind: InodeKind::File as i32, version, size_bytes, ..Attr::default() }
    }

    fn asked(at_ns: i64) -> Asked {
        Asked { thread: 0, at_ns }
    }

    /// A lookup a second after the last one.
    fn looked_up(kernel: &mut KernelCache, attr: &Attr, open: bool, uncommitted: bool) -> u64 {
        let now_ns = kernel.inodes.get(&attr.ino).map_or(0, |inode| inode.looked_up_ns) + 1_000_000_000;
        assert!(kernel.wait_for_opens(attr, open, now_ns).is_none());
        kernel.looked_up(attr, open, uncommitted, now_ns)
    }

    #[test]
    fn a_file_changed_elsewhere_becomes_another_inode_unless_it_is_open() {
        let mut kernel = KernelCache::new(true);
        let first = looked_up(&mut kernel, &attr(1, 10), false, false);
        assert_eq!(looked_up(&mut kernel, &attr(1, 10), false, false), first);
        assert_eq!(looked_up(&mut kernel, &attr(2, 20), true, false), first, "open here");
        let second = looked_up(&mut kernel, &attr(2, 20), false, false);
        assert_ne!(second, first);
        kernel.committed(5, 3, 30, true);
        assert_eq!(looked_up(&mut kernel, &attr(3, 30), false, false), second, "written here");
        assert!(kernel.has_newer(&attr(2, 20)) && !kernel.has_newer(&attr(3, 30)));
        assert!(kernel.opens(5, 3, 30, false, 0));
        assert!(!kernel.opens(5, 4, 31, false, 0));
        assert!(!kernel.shows(5, 4, 31), "its length is the old one");
        assert!(kernel.must_look_up_again(5, 31, 7));
        kernel.holds(5, 4, 31);
        assert!(kernel.shows(5, 4, 31) && !kernel.must_look_up_again(5, 31, 7));
    }

    /// Two other mounts' commits came between three requests of one open, so the program got `ESTALE`. Its next open comes without a
    /// look-up, because the kernel caches the name (P7).
    #[test]
    fn an_open_after_a_refused_one_shows_the_new_length() {
        let mut kernel = KernelCache::new(true);
        looked_up(&mut kernel, &attr(1, 10), false, false);
        assert!(kernel.must_look_up_again(5, 20, 7));
        looked_up(&mut kernel, &attr(2, 20), false, false);
        assert!(kernel.must_look_up_again(5, 30, 7), "the program gets the error");
        assert!(kernel.must_look_up_again(5, 30, 7), "the kernel still has 20 bytes");
        looked_up(&mut kernel, &attr(3, 30), false, false);
        assert!(!kernel.must_look_up_again(5, 30, 7));
    }

    /// A file that waits in the spool counts as open at each look-up.
    #[test]
    fn an_open_is_not_refused_for_ever() {
        let mut kernel = KernelCache::new(true);
        looked_up(&mut kernel, &attr(1, 10), false, false);
        assert!(kernel.must_look_up_again(5, 20, 7));
        looked_up(&mut kernel, &attr(2, 20), true, false);
        assert!(!kernel.must_look_up_again(5, 20, 7));
        assert!(kernel.must_look_up_again(5, 20, 7), "the next open");
    }

    /// A program has looked the file up, and opens it in a moment: another program's lookup must not make its inode another one.
    #[test]
    fn a_new_generation_waits_for_programs_that_have_looked_the_file_up() {
        let mut kernel = KernelCache::new(true);
        let (first, at_ns) = (looked_up(&mut kernel, &attr(1, 10), false, false), 1_000_000_000);
        let soon_ns = at_ns + 1_000_000;
        assert_eq!(kernel.wait_for_opens(&attr(1, 10), false, soon_ns), None, "no new one");
        assert_eq!(kernel.wait_for_opens(&attr(2, 20), true, soon_ns), None, "it is open by now");
        assert_eq!(kernel.wait_for_opens(&attr(2, 20), false, soon_ns), Some(Duration::from_millis(19)));
        assert_eq!(kernel.looked_up(&attr(2, 20), false, false, soon_ns), first, "who does not wait gets the old one");
        assert!(kernel.must_look_up_again(5, 20, 7) && !kernel.must_look_up_again(5, 20, 7), "and may open it");
    }

    /// Without its write-back cache the kernel takes over the length in each reply, open or not.
    #[test]
    fn without_a_write_back_cache_the_inode_stays() {
        let mut kernel = KernelCache::new(false);
        let first = kernel.looked_up(&attr(1, 10), false, false, 0);
        kernel.sent(&attr(1, 10), asked(0));
        assert_eq!(kernel.wait_for_opens(&attr(2, 20), false, 1), None);
        assert!(kernel.opens(5, 1, 10, false, 0) && kernel.must_look_up_again(5, 20, 7));
        assert_eq!(kernel.looked_up(&attr(2, 20), true, false, 1), first);
        kernel.sent(&attr(2, 20), asked(0));
        assert!(kernel.has_newer(&attr(1, 10)));
        assert!(kernel.must_look_up_again(5, 30, 8), "another program");
        assert!(
            !kernel.must_look_up_again(5, 20, 7) && !kernel.opens(5, 2, 20, false, 0),
            "its pages are those of version 1"
        );
        assert!(!kernel.must_look_up_again(5, 40, 8), "no program gets the error");
    }

    /// The kernel ignores the length in the reply to a request that it made before a notice.
    #[test]
    fn a_length_that_was_sent_beside_a_notice_is_unknown() {
        let (mut kernel, ms) = (KernelCache::new(false), 1_000_000);
        kernel.looked_up(&attr(1, 10), false, false, 0);
        kernel.sent(&attr(1, 10), asked(0));
        assert!(kernel.shows(5, 1, 10));
        kernel.noticed(5, 10 * ms);
        assert!(!kernel.shows(5, 1, 10), "a reply may be on its way");
        kernel.sent(&attr(1, 10), asked(11 * ms));
        assert!(!kernel.shows(5, 1, 10), "it may have been asked before the notice");
        kernel.committed(5, 2, 10, true);
        assert!(!kernel.shows(5, 2, 10), "a commit here tells the kernel nothing");
        kernel.sent(&attr(2, 10), asked(20 * ms));
        assert!(kernel.shows(5, 2, 10));
        // Another mount makes it longer. A refused open looks the name up after its notice.
        let of = |thread| Asked { thread, at_ns: 20 * ms };
        assert!(kernel.must_look_up_again(5, 20, 7));
        kernel.noticed(5, 20 * ms);
        kernel.sent(&attr(3, 20), of(8));
        assert!(kernel.lacks(5, 20), "another thread");
        kernel.sent(&attr(3, 20), of(7));
        assert!(!kernel.lacks(5, 20));
        assert!(!kernel.must_look_up_again(5, 20, 7));
        assert!(kernel.must_look_up_again(5, 30, 7));
        kernel.noticed(5, 20 * ms);
        kernel.noticed(5, 20 * ms);
        kernel.sent(&attr(4, 30), of(7));
        assert!(kernel.lacks(5, 30), "another open's notice came after that of the refusal");
        assert!(!kernel.must_look_up_again(5, 30, 7), "no program gets the error");
    }

    /// A program of another pid namespace than the mount's has no number here.
    #[test]
    fn threads_without_a_number_learn_the_length_and_are_not_refused_twice() {
        let mut kernel = KernelCache::new(false);
        kernel.looked_up(&attr(1, 10), false, false, 0);
        assert!(kernel.must_look_up_again(5, 20, 0) && kernel.must_look_up_again(5, 20, 0), "two of them");
        for _ in 0..2 {
            kernel.looked_up(&attr(2, 20), false, false, 0);
            kernel.sent(&attr(2, 20), asked(0));
        }
        assert!(!kernel.must_look_up_again(5, 30, 0) && !kernel.must_look_up_again(5, 30, 0));
        assert!(kernel.must_look_up_again(5, 30, 0), "a third one");
    }

    #[test]
    fn other_mounts_change_a_file_until_it_was_quiet_for_some_time() {
        let (mut kernel, second) = (KernelCache::new(false), 1_000_000_000);
        kernel.looked_up(&attr(1, 10), false, false, 0);
        assert!(kernel.opens(5, 1, 10, false, second) && !kernel.changes_elsewhere(5, second));
        kernel.committed(5, 2, 20, true);
        assert!(kernel.opens(5, 2, 20, false, second) && !kernel.changes_elsewhere(5, second), "changed here");
        assert!(!kernel.opens(5, 3, 30, false, 2 * second) && kernel.changes_elsewhere(5, 2 * second));
        assert!(kernel.opens(5, 3, 30, false, 5 * second) && kernel.changes_elsewhere(5, 11 * second));
        assert!(!kernel.changes_elsewhere(5, 12 * second));
        kernel.committed(5, 5, 50, false);
        assert!(!kernel.opens(5, 5, 50, false, 20 * second) && kernel.changes_elsewhere(5, 20 * second), "version 4");
        kernel.holds_uncommitted(5);
        assert!(!kernel.opens(5, 6, 60, false, 40 * second) && !kernel.changes_elsewhere(5, 40 * second));
        kernel.forgot(5, 1);
        kernel.changed_elsewhere(5, 41 * second);
        kernel.looked_up(&attr(7, 70), false, false, 42 * second);
        assert!(kernel.opens(5, 7, 70, false, 42 * second) && kernel.changes_elsewhere(5, 42 * second), "a recall");
        for ino in 100..100 + 3 * MAX_CHANGED as u64 {
            kernel.changed_elsewhere(ino, 43 * second);
        }
        assert!(kernel.changed_ns.len() + kernel.changed_before_ns.len() <= 2 * MAX_CHANGED);
        kernel.changed_elsewhere(99, 44 * second);
        assert!(kernel.changes_elsewhere(99, 44 * second), "the last one");
        assert!(kernel.changes_elsewhere(100 + 3 * MAX_CHANGED as u64 - 1, 44 * second), "and those just before");
    }

    #[test]
    fn a_listing_tells_the_kernel_nothing_new() {
        let mut kernel = KernelCache::new(true);
        assert_eq!(kernel.listed(&attr(1, 10), 10, false), Some(0), "a file that it does not know");
        let first = looked_up(&mut kernel, &attr(1, 10), false, false);
        assert_eq!(kernel.listed(&attr(1, 10), 10, false), Some(first));
        assert_eq!(kernel.listed(&attr(2, 10), 10, false), None, "another version");
        assert_eq!(kernel.listed(&attr(2, 10), 10, true), Some(first), "the kernel keeps its data while it is open");
        assert_eq!(kernel.listed(&attr(2, 20), 20, true), None, "another length");
        let directory = Attr { kind: InodeKind::Directory as i32, ..attr(0, 77) };
        assert_eq!(kernel.listed(&directory, 77, false), Some(first));
    }

    /// The kernel forgets an entry without attributes at once; the lookups of programs stay.
    #[test]
    fn an_entry_that_only_names_an_inode_counts_as_one_lookup() {
        let mut kernel = KernelCache::new(false);
        kernel.looked_up(&attr(1, 10), false, false, 0);
        kernel.named(5);
        kernel.forgot(5, 1);
        assert!(kernel.has_version(5, 1), "the lookup is not forgotten");
        kernel.forgot(5, 1);
        kernel.named(5);
        assert!(!kernel.has_version(5, 1) && !kernel.shows(5, 1, 10) && !kernel.has_newer(&attr(1, 10)));
        kernel.looked_up(&attr(2, 20), false, false, 0);
        kernel.forgot(5, 1);
        assert!(!kernel.opens(5, 2, 20, false, 0) && kernel.opens(5, 2, 20, false, 0), "it is still known");
    }

    /// The manager was restored from an older state.
    #[test]
    fn a_version_that_is_lost_is_not_asked_for_again() {
        let mut kernel = KernelCache::new(false);
        kernel.looked_up(&attr(3, 10), false, false, 0);
        let newest = kernel.newest_version(5);
        kernel.committed(5, 4, 10, true);
        kernel.lost(&attr(2, 10), newest);
        assert!(kernel.has_newer(&attr(3, 10)), "that answer is older than the commit");
        kernel.lost(&attr(2, 10), kernel.newest_version(5));
        assert!(!kernel.has_newer(&attr(2, 10)) && !kernel.opens(5, 2, 10, false, 0));
    }

    #[test]
    fn a_file_without_a_name_keeps_its_last_attributes() {
        let mut kernel = KernelCache::new(true);
        looked_up(&mut kernel, &attr(3, 30), false, false);
        kernel.name_removed(Attr { nlink: 1, ..attr(3, 30) });
        assert!(kernel.unlinked(5).is_none(), "it has another name");
        kernel.name_removed(attr(3, 30));
        assert_eq!(kernel.unlinked(5), Some(attr(3, 30)));
        kernel.forgot(5, 1);
        assert!(kernel.unlinked(5).is_none());
        assert!(!kernel.opens(5, 4, 31, false, 0), "forgotten");
    }

    /// A file that another mount changed was opened while it was open here, so the kernel kept its length.
    #[test]
    fn a_length_that_is_not_shown_is_shown_after_the_last_close() {
        let mut kernel = KernelCache::new(true);
        let first = looked_up(&mut kernel, &attr(1, 10), false, false);
        assert!(!kernel.opens(5, 2, 20, false, 0));
        assert_eq!(looked_up(&mut kernel, &attr(2, 20), true, false), first, "open here");
        assert_ne!(looked_up(&mut kernel, &attr(2, 20), false, false), first);
        assert!(kernel.shows(5, 2, 20));
    }

    /// The kernel forgot a file that waits in the spool and looked it up again; then another mount's version replaced it.
    #[test]
    fn what_waits_in_the_spool_does_not_count_as_the_current_version() {
        let mut kernel = KernelCache::new(true);
        let first = looked_up(&mut kernel, &attr(1, 10), true, true);
        assert!(!kernel.shows(5, 1, 10), "the kernel has the length and the data of the spool");
        assert_ne!(looked_up(&mut kernel, &attr(1, 10), false, false), first);
        assert!(kernel.shows(5, 1, 10));
    }

    /// Another mount made the file longer, and it was opened while it was open here.
    #[test]
    fn a_commit_here_does_not_bring_a_length_that_the_kernel_was_not_told() {
        let mut kernel = KernelCache::new(true);
        looked_up(&mut kernel, &attr(1, 10), false, false);
        assert!(!kernel.opens(5, 2, 20, false, 0));
        kernel.committed(5, 3, 20, true);
        assert!(!kernel.shows(5, 3, 20), "it has 10 bytes");
        kernel.holds(5, 3, 20);
        assert!(kernel.opens(5, 3, 25, true, 0), "5 bytes were written here");
        kernel.committed(5, 4, 25, true);
        assert!(kernel.shows(5, 4, 25));
    }

    #[test]
    fn what_was_never_committed_is_not_shown() {
        let mut kernel = KernelCache::new(true);
        let first = looked_up(&mut kernel, &attr(4, 31), false, false);
        kernel.holds_uncommitted(5);
        assert!(!kernel.has_newer(&attr(3, 30)), "it has no version");
        assert!(kernel.must_look_up_again(5, 31, 7) && !kernel.opens(5, 4, 31, false, 0));
        kernel.holds_uncommitted(5);
        assert_ne!(looked_up(&mut kernel, &attr(3, 30), false, false), first, "it becomes another inode");
    }
}
