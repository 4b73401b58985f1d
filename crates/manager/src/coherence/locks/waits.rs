//! Who waits for whom: for the owners in its way, which hold locks, and, if the queues count, for the owners of earlier requests.

use super::ranges::Ranges;
use super::table::{File, LockTable, Owner, Want};
use std::collections::{BTreeSet, HashMap, HashSet};

/// What a search has not met of a file. It meets each holder and each request once, so that it takes about as many steps as there are of
/// them, where every request waits for every earlier one.
struct Unmet<'a> {
    file: &'a File,
    holders: Vec<(Owner, &'a Ranges)>,
    /// Places in the queue, in order.
    requests: Vec<usize>,
    places: HashMap<Owner, Vec<usize>>,
}

impl<'a> Unmet<'a> {
    fn new(file: &'a File) -> Unmet<'a> {
        let mut places: HashMap<Owner, Vec<usize>> = HashMap::new();
        for (at, waiter) in file.queue.iter().enumerate() {
            places.entry(waiter.want.owner).or_default().push(at);
        }
        let holders = file.held.iter().map(|(owner, ranges)| (*owner, ranges)).collect();
        Unmet { file, holders, requests: (0..file.queue.len()).collect(), places }
    }

    /// Owners that this one waits for here, but for those that were met.
    fn meet(&mut self, owner: Owner, with_queue: bool) -> Vec<Owner> {
        let mut met = Vec::new();
        for &at in self.places.get(&owner).into_iter().flatten() {
            let want = &self.file.queue[at].want;
            self.holders.retain(|(holder, ranges)| {
                let stays = *holder == owner || !ranges.over(want.bytes).any(|(_, held)| held.excludes(&want.held));
                met.extend((!stays).then_some(*holder));
                stays
            });
            if with_queue {
                let earlier = self.requests.partition_point(|place| *place < at);
                let later = self.requests.split_off(earlier);
                self.requests.retain(|place| {
                    let other = &self.file.queue[*place].want;
                    let stays = !other.is_in_the_way(want);
                    met.extend((!stays).then_some(other.owner));
                    stays
                });
                self.requests.extend(later);
            }
        }
        met
    }
}

impl Want {
    /// Whether a later request of another owner may not overtake this one.
    pub(super) fn is_in_the_way(&self, later: &Want) -> bool {
        self.owner != later.owner && self.bytes.overlaps(&later.bytes) && self.held.excludes(&later.held)
    }
}

impl LockTable {
    /// Whether any of `owners` waits for `other`, directly or through further owners.
    pub(super) fn wait_for(&self, owners: impl IntoIterator<Item = Owner>, other: Owner, with_queue: bool) -> bool {
        self.reach(owners, with_queue).contains(&other)
    }

    /// Owners of which some is in each circle of owners that wait: who waits, and holds a lock where others wait, or has two requests. In a
    /// circle without them each owner waits behind an earlier request of the next one.
    fn pivots(&self) -> impl Iterator<Item = Owner> {
        let inos: BTreeSet<u64> = self.waits.values().flatten().copied().collect();
        let held = inos.into_iter().filter_map(|ino| self.files.get(&ino)).flat_map(|file| file.held.keys().copied());
        let twice = self.waits.iter().filter(|(_, inos)| inos.len() > 1).map(|(owner, _)| *owner);
        held.filter(|owner| self.waits.contains_key(owner)).chain(twice)
    }

    /// The owners that may be in a circle: some owner that each circle has one of waits for them.
    pub(super) fn may_be_in_circles(&self) -> HashSet<Owner> {
        self.reach(self.pivots(), true)
    }

    /// The files at which those owners wait that an owner waits for, if it is one of them. Its request is the last of a queue.
    pub(super) fn circle(&self, owner: Owner) -> BTreeSet<u64> {
        // Nobody waits behind its request yet.
        if !self.holds_somewhere(owner) && self.waits.get(&owner).is_none_or(|inos| inos.len() < 2) {
            return BTreeSet::new();
        }
        let circle = self.reach([owner], true);
        let of = |owners: HashSet<Owner>| owners.iter().filter_map(|o| self.waits.get(o)).flatten().copied().collect();
        if circle.contains(&owner) { of(circle) } else { BTreeSet::new() }
    }

    /// All owners that any of `from` waits for: holders, and with `with_queue` also the owners of earlier requests.
    fn reach(&self, from: impl IntoIterator<Item = Owner>, with_queue: bool) -> HashSet<Owner> {
        let (mut seen, mut next) = (HashSet::new(), from.into_iter().collect::<Vec<_>>());
        let (mut files, mut done): (HashMap<u64, Unmet<'_>>, HashSet<Owner>) = Default::default();
        while let Some(owner) = next.pop() {
            if !done.insert(owner) {
                continue;
            }
            let inos: BTreeSet<u64> = self.waits.get(&owner).into_iter().flatten().copied().collect();
            for ino in inos {
                let Some(file) = self.files.get(&ino) else { continue };
                let unmet = files.entry(ino).or_insert_with(|| Unmet::new(file));
                next.extend(unmet.meet(owner, with_queue).into_iter().filter(|&other| seen.insert(other)));
            }
        }
        seen
    }
}
