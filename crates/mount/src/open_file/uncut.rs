//! A file that is cut off while programs read it through the kernel's pages.
//!
//! The kernel asks for pages up to the length that it knows, and has zeros behind a shorter answer. It learns the new length by the
//! reply to the request that sets it, or by a later one if another mount has cut the file off. Until then such reads get behind the
//! end what the file of before has there. Before the end they get the file as it is: its pages are everybody's.

use super::{State, read_version};
use crate::backend::{Backend, Reader};
use crate::errno::Outcome;
use crate::mount::Mount;
use crate::under_way::Counted;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The kernel takes the length in a reply over within this time.
const REPLY_TAKES: Duration = Duration::from_millis(2);

/// The file of before is read for so long at most. Each such read has pages dropped later, beside which the kernel takes over no
/// length: a program that reads without a pause would never learn it.
const UNCUT_FOR_NS: i64 = 2_000_000_000;

/// The longer files of before.
pub(super) struct Uncut<R> {
    /// The last one was cut off last, and is the shortest one.
    before: Vec<Arc<Before<R>>>,
    /// The last cut was that of a request on this mount.
    is_cut_here: bool,
    /// Since when they are kept, by the backend's clock.
    kept_ns: i64,
}

/// A file before it was cut off.
pub(super) struct Before<R> {
    /// The version below it.
    version: Arc<R>,
    /// It had these bytes of that version. What it had besides is not known.
    kept: Range<u64>,
    /// Its length.
    size_bytes: u64,
}

impl<B: Backend> Mount<B> {
    /// The reply to a request that sets a length is written.
    pub async fn end_cut(&self, cut: Counted<'_>) {
        let Some(file) = self.files.get(cut.ino()) else { return };
        // A commit may hold the lock for long.
        if file.state.try_lock().is_none_or(|state| state.uncut.is_some()) {
            self.backend.sleep(REPLY_TAKES).await;
        }
    }

    /// A request that sets the length of a file has arrived. [`Mount::end_cut`] follows its reply: new handles of the file do not fill
    /// the kernel's pages meanwhile.
    pub fn begin_cut(&self, ino: u64) -> Counted<'_> {
        self.files.cuts.begin(ino)
    }
}

impl<B: Backend> State<B> {
    /// A program is about to set the length. The file of before is kept if other programs read it.
    pub(super) async fn before_cut(&mut self, mount: &Mount<B>, size_bytes: u64) {
        // The request for this cut is under way.
        self.forget_known(mount, 1);
        if size_bytes < self.size_bytes && mount.fills_pages_of(self.ino) {
            // Without it, they may read zeros.
            let _ = self.base(mount).await;
            self.keep_uncut(mount, size_bytes);
        }
        if let Some(uncut) = &mut self.uncut {
            uncut.is_cut_here = true;
        }
    }

    /// The file is about to have this length. If that is less, what lies behind it is kept for those that read the pages, as far as
    /// the version below has it.
    pub(super) fn keep_uncut(&mut self, mount: &Mount<B>, size_bytes: u64) {
        let Some(version) = self.base.clone() else { return };
        if size_bytes >= self.size_bytes || !mount.fills_pages_of(self.ino) {
            return;
        }
        self.forget_known(mount, 0);
        let kept = size_bytes..self.kept_until(size_bytes).min(version.len_bytes()).min(self.size_bytes);
        let now_ns = mount.backend.now_ns();
        let (mut before, mut kept_ns) =
            self.uncut.take().map_or((Vec::new(), now_ns), |uncut| (uncut.before, uncut.kept_ns));
        // What they had before this one is known no more: it may have been written over.
        while before.pop_if(|before: &mut Arc<Before<_>>| before.size_bytes <= self.size_bytes).is_some() {}
        if before.is_empty() {
            kept_ns = now_ns;
        }
        before.push(Arc::new(Before { version, kept, size_bytes: self.size_bytes }));
        self.uncut = Some(Uncut { before, is_cut_here: false, kept_ns });
    }

    /// Forgets the files of before if the kernel knows that it was cut off: no more than `cuts` requests that set a length are under way.
    fn forget_known(&mut self, mount: &Mount<B>, cuts: usize) {
        let Some(&Uncut { is_cut_here, kept_ns, .. }) = self.uncut.as_ref() else { return };
        // The reply to a request that sets a length tells it in any case.
        let is_over = mount.backend.now_ns().saturating_sub(kept_ns) > UNCUT_FOR_NS;
        let is_known = is_cut_here || is_over || !mount.kernel.lock().lacks(self.ino, self.size_bytes);
        if is_known && mount.files.cuts.count(self.ino) <= cuts {
            self.uncut = None;
        }
    }

    /// The files of before from which to read behind the end for pages up to `end`, if the file ends before that and the kernel does not
    /// know. `opened_ns`: when the handle was opened; a later open than the cut sees the file as it is now.
    pub(super) fn uncut(&mut self, mount: &Mount<B>, end: u64, opened_ns: i64) -> Vec<Arc<Before<B::Reader>>> {
        self.forget_known(mount, 0);
        let Some(uncut) = &self.uncut else { return Vec::new() };
        let is_longer = uncut.before.first().is_some_and(|before| before.size_bytes > self.size_bytes);
        // Handles that are opened later would share the pages, unless they bypass them.
        if !is_longer || opened_ns >= uncut.kept_ns || !mount.bypasses_pages() || end <= self.size_bytes {
            return Vec::new();
        }
        let before = uncut.before.clone();
        mount.kernel.lock().has_older_pages(self.ino);
        // What lies behind the end in these pages must not show if the file grows.
        self.note_old_end(self.size_bytes);
        before
    }
}

/// Adds to what was `read` of `wanted`, up to the end of the file, what [`State::uncut`] gave: each byte as it was last, as far as that
/// is known.
///
/// # Errors
/// As [`read_version`].
pub(super) async fn read_behind<R: Reader>(
    before: &[Arc<Before<R>>],
    wanted: Range<u64>,
    read: &mut Vec<u8>,
) -> Outcome {
    for before in before.iter().rev() {
        let at = wanted.start + read.len() as u64;
        if at >= before.size_bytes {
            continue;
        }
        if !before.kept.contains(&at) {
            break;
        }
        let end = wanted.end.min(before.kept.end);
        read.extend(read_version(&*before.version, at, end.saturating_sub(at) as usize).await?);
        if end < before.size_bytes {
            break;
        }
    }
    Ok(())
}
