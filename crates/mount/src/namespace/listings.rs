//! Leases on the names of directories that were listed, and the names that the kernel keeps under them.
//!
//! The kernel keeps the names of a listing for a while, and looks none of them up meanwhile. The manager recalls the lease before another
//! client takes one of the names away, and the kernel is told of all. Of a huge directory not all are remembered: their recall
//! waits until the kernel has forgotten the rest by itself.

use super::entry_cache::{Name, NameRef, Stamp};
use super::ms_to_ns;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// Names of one directory that are remembered.
const MAX_NAMES: usize = 16_384;
/// Names of all directories that are remembered.
const MAX_ALL_NAMES: usize = 262_144;
/// Directories with a lease. The kernel keeps no names of a listing of more.
const MAX_DIRECTORIES: usize = 1_024;
/// Time between two looks for leases that are over, ns.
const SWEEP_NS: i64 = 1_000_000_000;
/// The kernel may hear of a name so long after its answer was made, ns.
pub const TOLD_NS: i64 = 50_000_000;

/// How long the kernel may keep names whose leases end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptNames {
    /// Names of which it is told, if it does not hear that.
    pub until_told: Duration,
    /// Names that are not remembered.
    pub untold: Duration,
}

impl KeptNames {
    /// Whether it keeps none.
    pub fn is_empty(&self) -> bool {
        self.until_told.is_zero() && self.untold.is_zero()
    }
}

/// A lease on the names of one directory, held without a gap since it was granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListingLease(u64);

#[derive(Debug)]
struct Listing {
    lease: ListingLease,
    /// [`Stamp::changes`] of the first request under the lease, and when the answer came.
    since: (u64, i64),
    until_ns: i64,
    /// Names that the kernel keeps.
    names: HashSet<Vec<u8>>,
    /// Until when it keeps others.
    untold_until_ns: i64,
}

impl Listing {
    /// Whether the kernel may keep names still.
    fn may_be_kept(&self, now_ns: i64) -> bool {
        self.until_ns.saturating_add(TOLD_NS) > now_ns
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Listings {
    of: HashMap<u64, Listing>,
    /// Number of leases so far.
    leases: u64,
    /// Number of names in all.
    names: usize,
    /// When leases that are over were dropped.
    swept_ns: i64,
}

impl Listings {
    /// A page of `directory` came with a lease. Nothing of the directory was recalled since its request. Returns the lease that covers it.
    pub fn granted(&mut self, now_ns: i64, stamp: Stamp, directory: u64, lease_ms: u64) -> Option<ListingLease> {
        let until_ns = stamp.at_ns.saturating_add(ms_to_ns(lease_ms));
        if self.of.len() >= MAX_DIRECTORIES || now_ns.saturating_sub(self.swept_ns) >= SWEEP_NS {
            self.of.retain(|_, listing| listing.may_be_kept(now_ns));
            self.names = self.of.values().map(|listing| listing.names.len()).sum();
            self.swept_ns = now_ns;
        }
        if until_ns <= now_ns || self.of.len() >= MAX_DIRECTORIES && !self.of.contains_key(&directory) {
            return None;
        }
        let (lease, since) = (ListingLease(self.leases + 1), (stamp.changes, now_ns));
        let first = || Listing { lease, since, until_ns, names: HashSet::new(), untold_until_ns: i64::MIN };
        let listing = self.of.entry(directory).or_insert_with(first);
        if listing.until_ns <= now_ns {
            // The manager may have granted this one after that was over, and names could change in between without a recall. The kernel has
            // forgotten what it kept under the old one.
            self.names -= listing.names.len();
            *listing = first();
        }
        listing.until_ns = listing.until_ns.max(until_ns);
        self.leases = self.leases.max(listing.lease.0);
        Some(listing.lease)
    }

    /// The lease that covers a page of `directory` that came without one: it was held when the page was asked for, and has been since.
    pub fn held(&self, now_ns: i64, stamp: Stamp, directory: u64) -> Option<ListingLease> {
        let listing = self.of.get(&directory).filter(|listing| listing.until_ns > now_ns)?;
        let (changes, at_ns) = listing.since;
        (stamp.changes >= changes && stamp.at_ns >= at_ns).then_some(listing.lease)
    }

    /// The kernel gets a name of a page that `lease` covers. Returns for how long it may keep it, ns. `kept_ns`: no name is kept longer.
    pub fn keep(&mut self, now_ns: i64, lease: ListingLease, (directory, name): NameRef<'_>, kept_ns: i64) -> u64 {
        let Some(listing) = self.of.get_mut(&directory).filter(|listing| listing.lease == lease) else {
            return 0;
        };
        let left_ns = listing.until_ns.saturating_sub(now_ns).min(kept_ns);
        if left_ns <= 0 {
            return 0;
        }
        if listing.names.len() < MAX_NAMES && self.names < MAX_ALL_NAMES {
            self.names += usize::from(listing.names.insert(name.to_vec()));
        } else if !listing.names.contains(name) {
            listing.untold_until_ns = listing.untold_until_ns.max(now_ns.saturating_add(left_ns));
        }
        left_ns as u64
    }

    /// Whether the kernel may keep a name that it got from a listing.
    pub fn keeps(&self, (directory, name): NameRef<'_>) -> bool {
        let keeps = |listing: &Listing| listing.names.contains(name) || listing.untold_until_ns > i64::MIN;
        self.of.get(&directory).is_some_and(keeps)
    }

    /// Whether the kernel may keep names of these directories of which it is told, and until when it keeps others, ns.
    pub fn kept(&self, now_ns: i64, directories: &[u64]) -> (bool, i64) {
        let listings =
            || directories.iter().filter_map(|of| self.of.get(of)).filter(|listing| listing.may_be_kept(now_ns));
        let untold_until_ns = listings().map(|listing| listing.untold_until_ns).max();
        (listings().any(|listing| !listing.names.is_empty()), untold_until_ns.unwrap_or(i64::MIN))
    }

    /// Those of these directories of which the kernel may keep names.
    pub fn kept_of(&self, now_ns: i64, directories: &[u64]) -> Vec<u64> {
        let keeps = |of: &&u64| self.kept(now_ns, &[**of]) != (false, i64::MIN);
        directories.iter().filter(keeps).copied().collect()
    }

    /// Leases of these directories end; none: all. Returns the names that the kernel must forget.
    pub fn recalled(&mut self, now_ns: i64, directories: Option<&[u64]>) -> Vec<Name> {
        let ended: Vec<(u64, Listing)> = match directories {
            Some(directories) => directories.iter().filter_map(|of| Some((*of, self.of.remove(of)?))).collect(),
            None => self.of.drain().collect(),
        };
        self.names -= ended.iter().map(|(_, listing)| listing.names.len()).sum::<usize>();
        let names = |(of, listing): (u64, Listing)| listing.names.into_iter().map(move |name| (of, name));
        let kept = ended.into_iter().filter(|(_, listing)| listing.may_be_kept(now_ns));
        let mut names: Vec<Name> = kept.flat_map(names).collect();
        names.sort_unstable();
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespace::{Event, MS, Namespace};
    use tessera_wire::Attr;
    use tessera_wire::meta::Entry;

    const KEPT: i64 = 1_000 * MS;

    fn stamp(at_ms: i64, changes: u64) -> Stamp {
        Stamp { at_ns: at_ms * MS, changes, recalls: 0 }
    }

    /// A page of directory 7, asked for at `stamp`, comes with a lease of 2 s.
    fn grant(listings: &mut Listings, now_ms: i64, stamp: Stamp) -> ListingLease {
        listings.granted(now_ms * MS, stamp, 7, 2_000).unwrap()
    }

    fn keep(listings: &mut Listings, now_ms: i64, lease: ListingLease, name: &[u8]) -> u64 {
        listings.keep(now_ms * MS, lease, (7, name), KEPT) / MS as u64
    }

    #[test]
    fn the_kernel_keeps_names_under_a_lease_and_is_told_of_each() {
        const NOW: i64 = 2_000 * MS;
        let mut listings = Listings::default();
        assert_eq!(listings.held(10 * MS, stamp(0, 3), 7), None);
        let lease = grant(&mut listings, 10, stamp(0, 3));
        assert_eq!(keep(&mut listings, 10, lease, b"b"), 1_000);
        assert_eq!(keep(&mut listings, 1_600, lease, b"a"), 400, "what is left of the lease");
        assert_eq!(keep(&mut listings, 2_000, lease, b"c"), 0);
        assert_eq!((listings.kept(NOW, &[6]).0, listings.kept(NOW, &[6, 7])), (false, (true, i64::MIN)));
        assert_eq!(listings.recalled(NOW, Some(&[6, 7])), [(7, b"a".to_vec()), (7, b"b".to_vec())]);
        assert!(listings.recalled(NOW, None).is_empty() && !listings.kept(NOW, &[7]).0);
    }

    #[test]
    fn a_page_from_before_the_lease_is_not_kept() {
        let mut listings = Listings::default();
        let first = grant(&mut listings, 0, stamp(0, 3));
        assert_eq!(listings.held(5 * MS, stamp(0, 3), 7), Some(first), "held since");
        listings.recalled(5 * MS, Some(&[7]));
        let second = grant(&mut listings, 20, stamp(10, 5));
        assert_eq!(keep(&mut listings, 20, first, b"a"), 0, "it may have changed before the second lease");
        assert_eq!(keep(&mut listings, 20, second, b"a"), 1_000);
        assert_eq!(listings.held(25 * MS, stamp(0, 3), 7), None, "asked for before the second lease");
        assert_eq!(grant(&mut listings, 100, stamp(50, 9)), second);
        assert_eq!(keep(&mut listings, 100, second, b"b"), 1_000, "held since");
        let third = grant(&mut listings, 3_000, stamp(2_990, 12));
        assert!(third != second && keep(&mut listings, 3_000, second, b"c") == 0, "the lease had ended");
        assert_eq!(listings.recalled(3_000 * MS, None), [], "and the kernel has forgotten its names");
    }

    /// The manager got a page's request before that of the first lease, which was sent earlier: another handle reads the directory, too.
    #[test]
    fn a_page_without_a_lease_is_covered_by_one_that_was_held_when_it_was_asked_for() {
        let mut listings = Listings::default();
        let lease = grant(&mut listings, 20, stamp(0, 3));
        assert_eq!(listings.held(25 * MS, stamp(10, 3), 7), None);
        assert_eq!(listings.held(25 * MS, stamp(20, 3), 7), Some(lease));
        assert_eq!(listings.held(2_000 * MS, stamp(20, 3), 7), None, "it is over");
    }

    /// The manager may grant the second lease long after its request was sent: when the first one is over, which was as long as it is here.
    #[test]
    fn a_lease_that_ended_while_the_next_one_was_asked_for_covers_no_page_of_before() {
        let mut listings = Listings::default();
        grant(&mut listings, 0, stamp(0, 3));
        // A page without a lease was asked for at 1,980 ms; at 2,005 ms another client takes a name of it, which nobody recalls.
        let page = listings.held(1_990 * MS, stamp(1_980, 4), 7).unwrap();
        // The next page was asked for at 1,995 ms, and the manager got that at 2,010 ms.
        grant(&mut listings, 2_020, stamp(1_995, 4));
        assert_eq!(keep(&mut listings, 2_020, page, b"gone"), 0);
    }

    #[test]
    fn a_recall_of_more_names_than_are_remembered_says_until_when_they_are_kept() {
        let mut listings = Listings::default();
        let lease = grant(&mut listings, 0, stamp(0, 3));
        for at in 0..=MAX_NAMES {
            assert_eq!(keep(&mut listings, 5, lease, format!("{at}").as_bytes()), 1_000);
        }
        assert_eq!(listings.kept(5 * MS, &[7]), (true, 1_005 * MS));
        assert_eq!(listings.recalled(5 * MS, Some(&[7])).len(), MAX_NAMES);
    }

    #[test]
    fn names_of_leases_that_are_over_take_no_memory() {
        let mut listings = Listings::default();
        for directory in 0..1_000 {
            let at_ms = directory as i64 * 3_000;
            let lease = listings.granted(at_ms * MS, stamp(at_ms, directory), directory, 2_000).unwrap();
            for name in 0..100u32 {
                listings.keep(at_ms * MS, lease, (directory, &name.to_le_bytes()), KEPT);
            }
        }
        let names: usize = listings.of.values().map(|listing| listing.names.len()).sum();
        assert!(names <= 200, "{names} names are remembered, all but those of one directory without a lease");
        let (last, over) = (999, 999 * 3_000 * MS + 2_050 * MS);
        assert!(listings.kept(over - 1, &[last]).0 && !listings.kept(over, &[last]).0);
        assert!(listings.recalled(over, None).is_empty(), "the kernel has forgotten them");
        assert_eq!(listings.names, 0);
    }

    #[test]
    fn names_of_all_directories_are_bounded() {
        let mut listings = Listings::default();
        let per_directory = MAX_NAMES as u64 - 1;
        for directory in 0..=MAX_ALL_NAMES as u64 / per_directory {
            let lease = listings.granted(0, stamp(0, 3), directory, 2_000).unwrap();
            for name in 0..per_directory {
                assert_eq!(listings.keep(0, lease, (directory, &name.to_le_bytes()), KEPT), KEPT as u64);
            }
        }
        let last = MAX_ALL_NAMES as u64 / per_directory;
        assert_eq!(
            (listings.names, listings.kept(0, &[last])),
            (MAX_ALL_NAMES, (true, KEPT)),
            "a recall waits for the rest"
        );
        assert_eq!((listings.recalled(0, None).len(), listings.names), (MAX_ALL_NAMES, 0));
    }

    /// The kernel hears of the recall when the directory is free again: after the move.
    #[test]
    fn a_recall_of_names_that_are_not_remembered_leaves_the_directory_shared() {
        let mut core = Namespace::new(KEPT);
        let at_start = core.stamp(0);
        for directory in 100..100 + (MAX_ALL_NAMES / MAX_NAMES) as u64 {
            let lease = core.cache.listed(at_start, directory, 2_000).unwrap();
            for at in 0..MAX_NAMES {
                core.cache.keep_listed(0, lease, (directory, &at.to_le_bytes()));
            }
        }
        let file = Entry { attr: Some(Attr { ino: 8, ..Attr::default() }), lease_ms: 60_000, ..Entry::default() };
        core.cache.fetched(at_start, Some((7, b"file")), &file);
        let lease = core.cache.listed(at_start, 7, 2_000).unwrap();
        assert_eq!(core.cache.keep_listed(0, lease, (7, b"file")), KEPT as u64);
        core.handle(0, Event::Recalled(Some(vec![7])));
        assert_eq!(core.poll(), None, "no name is told");
        assert!(!core.cache.begin_move((7, b"file"), (7, b"moved")));
    }
}
