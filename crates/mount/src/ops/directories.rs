//! Open directories: entries in byte order of names, fetched page by page as they are read.
//!
//! A handle keeps the entries it has shown, so that positions stay valid while names come and go. A name that is
//! removed meanwhile may still be shown; a name that is added behind the last page is shown. Reading from the start
//! fetches again.

use crate::backend::Backend;
use crate::mount::Mount;
use crate::namespace::{ListingLease, Namespace, Stamp};
use tessera_wire::Error;
use tessera_wire::meta::Dirent;

/// Positions before the first entry: `.` and `..`.
pub const DOTS: u64 = 2;

/// See the module.
#[derive(Default)]
pub struct OpenDirectory {
    entries: Vec<FetchedEntry>,
    complete: bool,
}

/// An entry, and when it was asked for.
pub struct FetchedEntry {
    pub entry: Dirent,
    /// By the backend's clock.
    pub asked_ns: i64,
    /// Between this mount's changes.
    pub stamp: Stamp,
    /// The lease on the directory's names that covers it.
    pub lease: Option<ListingLease>,
}

impl OpenDirectory {
    /// Whether [`OpenDirectory::entry`] asks the manager for this position.
    pub fn must_fetch(&self, position: u64) -> bool {
        !self.complete && position.saturating_sub(DOTS) as usize >= self.entries.len()
    }

    /// The entry at a position from [`DOTS`] on; none at the end.
    ///
    /// # Errors
    /// The manager's.
    pub async fn entry<B: Backend>(
        &mut self,
        mount: &Mount<B>,
        ino: u64,
        position: u64,
    ) -> Result<Option<&FetchedEntry>, Error> {
        let index = position.saturating_sub(DOTS) as usize;
        while self.must_fetch(position) {
            let after = self.entries.last().map(|last| last.entry.name.clone()).unwrap_or_default();
            let (asked_ns, stamp) = (mount.backend.now_ns(), mount.namespace.with(Namespace::stamp));
            let page = mount.backend.list(ino, &after).await?;
            let is_first = self.entries.is_empty();
            let (lease, batch) = mount.namespace.with(|core, now_ns| {
                if is_first {
                    core.following.listed_anew(now_ns, ino);
                }
                let named = page.entries.iter().filter_map(|entry| Some((&entry.name[..], entry.attr.as_ref()?)));
                core.following.note(ino, named);
                let batch = if is_first { core.following.listed(now_ns, ino) } else { None };
                (core.cache.listed(stamp, ino, page.lease_ms), batch)
            });
            if let Some(batch) = batch {
                mount.fetch_later(batch);
            }
            self.complete = !page.more || page.entries.is_empty();
            let fetched = |entry| FetchedEntry { entry, asked_ns, stamp, lease };
            self.entries.extend(page.entries.into_iter().map(fetched));
        }
        Ok(self.entries.get(index))
    }
}
