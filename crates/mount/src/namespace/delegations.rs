//! Directory delegations: directories in which only this mount may create names for a while (`Entry::delegation_ms`).
//!
//! In a delegated directory, a name that is not listed here does not exist, and a file can be created without a
//! request. A delegation comes with a new directory, or after some creates in an existing one. It ends by time or by a
//! recall.

use super::{Stamp, ms_to_ns};
use std::collections::{HashMap, HashSet};
use tessera_failpoint as failpoint;
use tessera_wire::meta::InoRange;

/// Inode numbers requested at once.
pub const INOS: u32 = 128;
/// Inode numbers that are kept at most.
const MAX_INOS: u32 = 64 * INOS;
/// A directory with more names than this has no delegation on this mount.
const MAX_NAMES: usize = if cfg!(test) { 1_000 } else { 1_000_000 };
/// Creates in a directory before this mount requests its delegation. The number doubles after each request, denial or
/// recall, and halves with each grant, so a mount that takes turns with other clients rarely asks.
const REQUEST_AFTER: u32 = 4;
const MAX_REQUEST_AFTER: u32 = 1024;
/// Directories whose creates are counted.
const MAX_COUNTED: usize = 4096;

/// See the module.
#[derive(Debug, Default)]
pub struct Delegations {
    granted: HashMap<u64, Delegation>,
    counters: HashMap<u64, Counter>,
    inos: Vec<InoRange>,
    /// Number of recalls so far: part of a [`Stamp`].
    pub recalls: u64,
    /// Number of grants and of names claimed so far.
    claims: u64,
}

/// A moment in a delegation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DelegationState(u64);

#[derive(Debug)]
struct Delegation {
    until_ns: i64,
    lifetime_ns: i64,
    /// Every name in the directory, and perhaps some removed ones.
    names: HashSet<Vec<u8>>,
    /// [`Delegations::claims`] when it was granted, or a name was claimed last.
    state: DelegationState,
}

/// Creates in a directory by requests to the manager.
#[derive(Debug, Default)]
struct Counter {
    /// Requests in flight.
    in_flight: usize,
    /// Names of these requests, and of all requests since the oldest of them: a list that the manager sends meanwhile
    /// may lack them.
    names: HashSet<Vec<u8>>,
    /// There were more than [`MAX_NAMES`] of them: no list is completed by them.
    lacks_names: bool,
    /// Creates since the delegation was last requested.
    creates: u32,
    /// Creates until it is requested; 0: [`REQUEST_AFTER`].
    request_after: u32,
}

impl Counter {
    fn add_name(&mut self, name: &[u8]) {
        if self.names.len() >= MAX_NAMES {
            (self.names, self.lacks_names) = (HashSet::new(), true);
        }
        if !self.lacks_names {
            self.names.insert(name.to_vec());
        }
    }
}

impl Delegations {
    /// Takes inode numbers from an answer.
    pub fn add_inos(&mut self, inos: Option<InoRange>) {
        let room = MAX_INOS - self.inos_left();
        let fits = |range: InoRange| InoRange { count: range.count.min(room), ..range };
        let inos =
            inos.map(fits).filter(|range| range.count > 0 && range.first.checked_add(range.count.into()).is_some());
        self.inos.extend(inos);
        assert!(self.inos_left() <= MAX_INOS, "no more inode numbers are taken than there is room for");
    }

    fn inos_left(&self) -> u32 {
        self.inos.iter().map(|range| range.count).sum()
    }

    /// Number of inode numbers to request along with a create.
    pub fn inos_wanted(&self) -> u32 {
        if self.inos_left() < INOS / 2 { INOS } else { 0 }
    }

    pub fn draw_ino(&mut self) -> Option<u64> {
        let range = self.inos.last_mut()?;
        assert!(range.count > 0, "an empty range of inode numbers is not kept");
        let ino = range.first;
        (range.first, range.count) = (range.first + 1, range.count - 1);
        if range.count == 0 {
            self.inos.pop();
        }
        Some(ino)
    }

    /// The manager delegated `directory`, which has `names`, in its answer to the request of `stamp`. `deferred`: names
    /// of files in it that the manager does not know yet. If a recall arrived since the request, it may mean this
    /// grant, so the grant is ignored.
    pub fn grant(
        &mut self,
        now_ns: i64,
        directory: u64,
        stamp: Stamp,
        lifetime_ms: u64,
        names: Vec<Vec<u8>>,
        deferred: impl Iterator<Item = Vec<u8>>,
    ) {
        if lifetime_ms == 0 || stamp.recalls != self.recalls {
            return;
        }
        let lifetime_ns = ms_to_ns(lifetime_ms);
        let mut names: HashSet<Vec<u8>> = names.into_iter().collect();
        if let Some(counter) = self.counters.get_mut(&directory) {
            if counter.lacks_names {
                return;
            }
            names.extend(counter.names.iter().cloned());
            counter.request_after /= 2;
        }
        names.extend(deferred);
        if names.len() > MAX_NAMES {
            return;
        }
        self.granted.retain(|_, delegation| delegation.until_ns > now_ns);
        let until_ns = stamp.at_ns.saturating_add(lifetime_ns);
        self.claims += 1;
        let state = DelegationState(self.claims);
        self.granted.insert(directory, Delegation { until_ns, lifetime_ns, names, state });
    }

    /// Whether this mount has created names in a directory by requests.
    pub fn has_created_in(&self, directory: u64) -> bool {
        self.counters.contains_key(&directory)
    }

    /// A commit in `directory`, sent at `asked_ns`, extended its delegation. One that is over here may be over at the manager, too, which then
    /// speaks of the next one: its names are not known here, and other clients may have made some in between without a recall.
    pub fn renew(&mut self, now_ns: i64, directory: u64, asked_ns: i64, lifetime_ms: u64) {
        if let Some(delegation) = self.granted.get_mut(&directory).filter(|delegation| delegation.until_ns > now_ns) {
            let until_ns = asked_ns.saturating_add(ms_to_ns(lifetime_ms));
            delegation.until_ns = delegation.until_ns.max(until_ns);
        }
    }

    /// The manager recalls `directory`; none: the connection is lost, and with it every delegation.
    pub fn recall(&mut self, directory: Option<u64>) {
        self.recalls += 1;
        match directory {
            Some(directory) => {
                self.granted.remove(&directory);
                if let Some(counter) = self.counters.get_mut(&directory) {
                    counter.request_after = (counter.request_after.max(REQUEST_AFTER) * 2).min(MAX_REQUEST_AFTER);
                    counter.creates = 0;
                }
            }
            None => self.granted.clear(),
        }
    }

    /// Whether a directory was delegated; the delegation may have expired.
    pub fn is_delegated(&self, directory: u64) -> bool {
        self.granted.contains_key(&directory)
    }

    /// Whether `name` certainly does not exist in `directory`.
    pub fn is_absent(&self, now_ns: i64, directory: u64, name: &[u8]) -> bool {
        let delegation = self.granted.get(&directory).filter(|delegation| delegation.until_ns > now_ns);
        delegation.is_some_and(|delegation| !delegation.names.contains(name))
    }

    /// Claims `name` for a deferred create that must be settled within a third of the lifetime, while the delegation
    /// still lasts. Returns the time to settle it.
    pub fn claim_name(&mut self, now_ns: i64, directory: u64, name: &[u8]) -> Option<i64> {
        let delegation = self.granted.get_mut(&directory)?;
        let third_ns = delegation.lifetime_ns / 3;
        if now_ns.saturating_add(2 * third_ns) > delegation.until_ns
            || delegation.names.contains(name)
            || self.inos.is_empty()
        {
            return None;
        }
        if delegation.names.len() >= MAX_NAMES {
            self.granted.remove(&directory);
            return None;
        }
        delegation.names.insert(name.to_vec());
        self.claims += 1;
        delegation.state = DelegationState(self.claims);
        Some(now_ns.saturating_add(third_ns))
    }

    /// To be called before sending a request that takes a name out of `directory`; for [`Delegations::name_removed`].
    pub fn state(&self, directory: u64) -> Option<DelegationState> {
        self.granted.get(&directory).map(|delegation| delegation.state)
    }

    /// The manager has taken `name` out of `directory` for this mount. `before`: [`Delegations::state`]. If anything was created
    /// since, it may have that name.
    pub fn name_removed(&mut self, directory: u64, name: &[u8], before: Option<DelegationState>) {
        let may_be_in_flight = |counter: &Counter| counter.lacks_names || counter.names.contains(name);
        let is_in_flight = self.counters.get(&directory).is_some_and(may_be_in_flight);
        let delegation = self.granted.get_mut(&directory).filter(|delegation| Some(delegation.state) == before);
        if let Some(delegation) = delegation.filter(|_| !is_in_flight) {
            delegation.names.remove(name);
        }
    }

    /// Must be called before sending a request that creates `name` in `directory`. [`Delegations::end_create`] must
    /// follow its answer.
    pub fn begin_create(&mut self, directory: u64, name: &[u8]) {
        if self.counters.len() >= MAX_COUNTED {
            self.counters.retain(|_, counter| counter.in_flight > 0);
        }
        let counter = self.counters.entry(directory).or_default();
        counter.in_flight += 1;
        counter.creates = counter.creates.saturating_add(1);
        counter.add_name(name);
        if failpoint::is_active("mount.create_in_flight_untold") {
            counter.names.clear();
            return;
        }
        if let Some(delegation) = self.granted.get_mut(&directory) {
            delegation.names.insert(name.to_vec());
            self.claims += 1;
            delegation.state = DelegationState(self.claims);
            if delegation.names.len() > MAX_NAMES {
                self.granted.remove(&directory);
            }
        }
    }

    /// The answer to a create was handed to [`Delegations::grant`].
    pub fn end_create(&mut self, directory: u64) {
        let counter = self.counters.get_mut(&directory).expect("a create that is in flight keeps its counter");
        assert!(counter.in_flight > 0, "each create ends once");
        counter.in_flight -= 1;
        if counter.in_flight == 0 {
            (counter.names, counter.lacks_names) = (HashSet::new(), false);
        }
    }

    /// The manager now knows a deferred create. A list of names in flight may lack it.
    pub fn settled(&mut self, directory: u64, name: &[u8]) {
        if let Some(counter) = self.counters.get_mut(&directory).filter(|counter| counter.in_flight > 0) {
            counter.add_name(name);
        }
    }

    /// If the next create in `directory` should request a delegation, the number of inode numbers to request with it.
    pub fn request(&mut self, directory: u64) -> Option<u32> {
        let inos = self.inos_wanted();
        let counter = self.counters.get_mut(&directory)?;
        let request_after = counter.request_after.max(REQUEST_AFTER);
        if counter.creates < request_after || counter.lacks_names {
            return None;
        }
        (counter.creates, counter.request_after) = (0, (request_after * 2).min(MAX_REQUEST_AFTER));
        Some(inos)
    }

    #[cfg(test)]
    pub fn names_in_flight(&self, directory: u64) -> usize {
        self.counters.get(&directory).map_or(0, |counter| counter.names.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: u64 = 7;

    fn delegated(names: Vec<Vec<u8>>) -> Delegations {
        let mut delegations = Delegations::default();
        grant(&mut delegations, names);
        delegations
    }

    fn grant(delegations: &mut Delegations, names: Vec<Vec<u8>>) {
        let stamp = Stamp { at_ns: 0, changes: 0, recalls: delegations.recalls };
        delegations.grant(0, DIR, stamp, 60_000, names, std::iter::empty());
    }

    fn name(number: usize) -> Vec<u8> {
        number.to_string().into_bytes()
    }

    #[test]
    fn what_the_manager_sends_is_taken_up_to_a_limit() {
        let mut delegations = Delegations::default();
        for first in [1, u64::MAX - 3, 1 << 40, 1 << 50] {
            delegations.add_inos(Some(InoRange { first, count: u32::MAX }));
        }
        assert_eq!((delegations.inos_left(), delegations.draw_ino()), (MAX_INOS, Some(1)));
        delegations.add_inos(Some(InoRange { first: u64::MAX, count: 1 }));
        assert_eq!(delegations.draw_ino(), Some(2), "there is no number after the last one");
        assert!(!delegated((0..=MAX_NAMES).map(name).collect()).is_delegated(DIR));
        assert!(delegated((0..MAX_NAMES).map(name).collect()).is_delegated(DIR));
    }

    #[test]
    fn a_directory_with_too_many_names_loses_its_delegation() {
        let mut delegations = delegated(Vec::new());
        delegations.add_inos(Some(InoRange { first: 1, count: 1 }));
        for number in 0..MAX_NAMES {
            assert!(delegations.claim_name(0, DIR, &name(number)).is_some());
        }
        assert!(delegations.claim_name(0, DIR, b"more").is_none() && !delegations.is_delegated(DIR));
    }

    /// A lock file, or a journal of a database, is created and removed again and again.
    #[test]
    fn a_name_that_was_removed_is_free_unless_it_may_have_been_created_again() {
        let absent_after = |first: fn(&mut Delegations), meanwhile: fn(&mut Delegations)| {
            let mut delegations = delegated(vec![b"a".to_vec()]);
            delegations.add_inos(Some(InoRange { first: 1, count: 9 }));
            first(&mut delegations);
            let before = delegations.state(DIR);
            meanwhile(&mut delegations);
            delegations.name_removed(DIR, b"a", before);
            delegations.is_absent(0, DIR, b"a")
        };
        let absent = |meanwhile| absent_after(|_| (), meanwhile);
        assert!(absent(|_| ()));
        assert!(!absent_after(|delegations| delegations.begin_create(DIR, b"a"), |_| ()), "its create is in flight");
        assert!(absent_after(|delegations| delegations.begin_create(DIR, b"b"), |_| ()), "it is moved to b");
        assert!(!absent(|delegations| delegations.begin_create(DIR, b"a")));
        assert!(!absent(|delegations| {
            delegations.begin_create(DIR, b"a");
            delegations.end_create(DIR);
        }));
        assert!(!absent(|delegations| assert!(delegations.claim_name(0, DIR, b"b").is_some())));
        assert!(!absent(|delegations| {
            delegations.recall(Some(DIR));
            grant(delegations, vec![b"a".to_vec()]);
        }));
    }

    /// Creates overlap for ever, so their names would be kept for ever.
    #[test]
    fn names_in_flight_are_bounded_and_then_complete_no_list() {
        let mut delegations = Delegations::default();
        delegations.begin_create(DIR, b"first");
        for number in 0..3 * MAX_NAMES {
            delegations.begin_create(DIR, &name(number));
            delegations.settled(DIR, &name(number));
            delegations.end_create(DIR);
            assert!(delegations.names_in_flight(DIR) <= MAX_NAMES);
        }
        assert_eq!(delegations.request(DIR), None);
        grant(&mut delegations, Vec::new());
        assert!(!delegations.is_delegated(DIR), "the list may lack names");
        delegations.end_create(DIR);
        assert!(delegations.request(DIR).is_some());
        grant(&mut delegations, Vec::new());
        assert!(delegations.is_delegated(DIR));
    }
}
