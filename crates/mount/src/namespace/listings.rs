//! Leases on the names of directories that were listed, and the names that the kernel keeps under them.
//!
//! The kernel keeps the names of a listing for a while, and looks none of them up meanwhile. The manager recalls the lease before another
//! client takes one of the names away, and the kernel is told of all. Of a huge directory not all are remembered: their recall
//! waits until the kernel has forgotten the rest by itself.

use super::entry_cache::{Name, NameRef, Stamp};
use super::ms_to_ns;
use std::collections::{HashMap, HashSet};

/// Names of one directory that are remembered.
const MAX_NAMES: usize = 16_384;
/// Directories with a lease. The kernel keeps no names of a listing of more.
const MAX_DIRECTORIES: usize = 1_024;

#[derive(Debug)]
struct Listing {
    /// [`Stamp::changes`] of the first request under the lease, which has been held since.
    since: u64,
    until_ns: i64,
    /// Names that the kernel keeps.
    names: HashSet<Vec<u8>>,
    /// Until when it keeps others.
    untold_until_ns: i64,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Listings(HashMap<u64, Listing>);

impl Listings {
    /// A page of `directory` came with a lease. Nothing of the directory was recalled since its request.
    pub fn granted(&mut self, now_ns: i64, stamp: Stamp, directory: u64, lease_ms: u64) {
        let until_ns = stamp.at_ns.saturating_add(ms_to_ns(lease_ms));
        if self.0.len() >= MAX_DIRECTORIES {
            self.0.retain(|_, listing| listing.until_ns > now_ns);
        }
        if until_ns <= now_ns || self.0.len() >= MAX_DIRECTORIES && !self.0.contains_key(&directory) {
            return;
        }
        let first = || Listing { since: stamp.changes, until_ns, names: HashSet::new(), untold_until_ns: i64::MIN };
        let listing = self.0.entry(directory).or_insert_with(first);
        if listing.until_ns <= stamp.at_ns {
            // Names could change in between without a recall. The kernel has forgotten what it kept under the old lease.
            *listing = first();
        }
        listing.until_ns = listing.until_ns.max(until_ns);
    }

    /// The kernel gets a name of a page that was asked for at `stamp`. Returns for how long it may keep it, ns. `kept_ns`: no name is kept longer.
    pub fn keep(&mut self, now_ns: i64, stamp: Stamp, (directory, name): NameRef<'_>, kept_ns: i64) -> u64 {
        let Some(listing) = self.0.get_mut(&directory).filter(|listing| stamp.changes >= listing.since) else {
            return 0;
        };
        let left_ns = listing.until_ns.saturating_sub(now_ns).min(kept_ns);
        if left_ns <= 0 {
            return 0;
        }
        if listing.names.len() < MAX_NAMES || listing.names.contains(name) {
            listing.names.insert(name.to_vec());
        } else {
            listing.untold_until_ns = listing.untold_until_ns.max(now_ns.saturating_add(left_ns));
        }
        left_ns as u64
    }

    /// Whether the kernel may keep a name that it got from a listing.
    pub fn keeps(&self, (directory, name): NameRef<'_>) -> bool {
        let keeps = |listing: &Listing| listing.names.contains(name) || listing.untold_until_ns > i64::MIN;
        self.0.get(&directory).is_some_and(keeps)
    }

    /// Whether the kernel may keep names of these directories of which it is told, and until when it keeps others, ns.
    pub fn kept(&self, directories: &[u64]) -> (bool, i64) {
        let listings = || directories.iter().filter_map(|of| self.0.get(of));
        let untold_until_ns = listings().map(|listing| listing.untold_until_ns).max();
        (listings().any(|listing| !listing.names.is_empty()), untold_until_ns.unwrap_or(i64::MIN))
    }

    /// Leases of these directories end; none: all. Returns the names that the kernel must forget.
    pub fn recalled(&mut self, directories: Option<&[u64]>) -> Vec<Name> {
        let ended: Vec<(u64, Listing)> = match directories {
            Some(directories) => directories.iter().filter_map(|of| Some((*of, self.0.remove(of)?))).collect(),
            None => self.0.drain().collect(),
        };
        let names = |(of, listing): (u64, Listing)| listing.names.into_iter().map(move |name| (of, name));
        let mut names: Vec<Name> = ended.into_iter().flat_map(names).collect();
        names.sort_unstable();
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespace::MS;

    const KEPT: i64 = 1_000 * MS;

    fn stamp(at_ms: i64, changes: u64) -> Stamp {
        Stamp { at_ns: at_ms * MS, changes, recalls: 0 }
    }

    fn keep(listings: &mut Listings, now_ms: i64, stamp: Stamp, name: &[u8]) -> u64 {
        listings.keep(now_ms * MS, stamp, (7, name), KEPT) / MS as u64
    }

    #[test]
    fn the_kernel_keeps_names_under_a_lease_and_is_told_of_each() {
        let mut listings = Listings::default();
        assert_eq!(keep(&mut listings, 10, stamp(0, 3), b"a"), 0, "no lease");
        listings.granted(10 * MS, stamp(0, 3), 7, 2_000);
        assert_eq!(keep(&mut listings, 10, stamp(0, 3), b"b"), 1_000);
        assert_eq!(keep(&mut listings, 1_600, stamp(0, 3), b"a"), 400, "what is left of the lease");
        assert_eq!(keep(&mut listings, 2_000, stamp(0, 3), b"c"), 0);
        assert_eq!((listings.kept(&[6]).0, listings.kept(&[6, 7])), (false, (true, i64::MIN)));
        assert_eq!(listings.recalled(Some(&[6, 7])), [(7, b"a".to_vec()), (7, b"b".to_vec())]);
        assert!(listings.recalled(None).is_empty() && !listings.kept(&[7]).0);
    }

    #[test]
    fn a_page_from_before_the_lease_is_not_kept() {
        let mut listings = Listings::default();
        listings.granted(0, stamp(0, 3), 7, 2_000);
        listings.recalled(Some(&[7]));
        listings.granted(20 * MS, stamp(10, 5), 7, 2_000);
        assert_eq!(keep(&mut listings, 20, stamp(0, 3), b"a"), 0, "it may have changed before the second lease");
        assert_eq!(keep(&mut listings, 20, stamp(10, 5), b"a"), 1_000);
        listings.granted(100 * MS, stamp(50, 9), 7, 2_000);
        assert_eq!(keep(&mut listings, 100, stamp(10, 5), b"b"), 1_000, "held since");
        listings.granted(3_000 * MS, stamp(2_990, 12), 7, 2_000);
        assert_eq!(keep(&mut listings, 3_000, stamp(50, 9), b"c"), 0, "the lease had ended");
        assert_eq!(listings.recalled(None), [], "and the kernel has forgotten its names");
    }

    #[test]
    fn a_recall_of_more_names_than_are_remembered_says_until_when_they_are_kept() {
        let mut listings = Listings::default();
        listings.granted(0, stamp(0, 3), 7, 2_000);
        for at in 0..=MAX_NAMES {
            assert_eq!(keep(&mut listings, 5, stamp(0, 3), format!("{at}").as_bytes()), 1_000);
        }
        assert_eq!(listings.kept(&[7]), (true, 1_005 * MS));
        assert_eq!(listings.recalled(Some(&[7])).len(), MAX_NAMES);
    }
}
