//! The tallies of all threads together, without copies: each key's counts stay where they were counted.
//!
//! Tables have their keys in about the order of their hashes. So all of them are cut at the same hashes, into parts that
//! fit into a processor's cache, and threads take one part after the other.

use super::closed::ClosedUnits;
use super::keys::{KeyTable, Slot};
use super::{Groups, Key, OpenUnit, Sums, Tally, Values};
use crate::estimate::{GroupMoments, GroupTotal, StratumSample, UnitValues};
use std::sync::atomic::{AtomicU32, Ordering};

/// Keys of a part, about.
const PART_KEYS: usize = 1 << 14;
const MAX_PART_BITS: u32 = 16;

/// The tallies of all threads together.
#[derive(Debug)]
pub struct Totals<'a> {
    /// The strata and their samples; one if everything is read.
    pub strata: Vec<StratumSample>,
    /// Moments of all records, by stratum.
    pub all: Vec<GroupMoments>,
    tallies: Vec<&'a Tally>,
}

/// What all tallies counted of a key.
pub struct Group<'g> {
    /// The key.
    pub key: &'g [u8],
    members: Members<'g>,
}

/// The key's slots, at most one of each tally.
enum Members<'g> {
    Whole(&'g [Member<'g, Sums>]),
    Sample(&'g [Member<'g, OpenUnit>], &'g [&'g Tally]),
}

/// A slot, and the number of its table.
type Member<'g, C> = (usize, &'g Slot<C>);

impl<'a> Totals<'a> {
    /// Adds up tallies of the same layout.
    pub fn of(tallies: impl IntoIterator<Item = &'a Tally>) -> Totals<'a> {
        let tallies: Vec<&Tally> = tallies.into_iter().collect();
        let (mut strata, mut all) = (Vec::new(), Vec::new());
        if let Some(first) = tallies.first() {
            strata.extend(first.strata.iter().map(|stratum| stratum.sample.unsampled()));
            all.resize(strata.len(), GroupMoments::default());
        }
        for tally in &tallies {
            for (h, stratum) in tally.strata.iter().enumerate() {
                strata[h].merge(&stratum.sample);
                all[h] += &stratum.all;
            }
        }
        Totals { strata, all, tallies }
    }

    /// Everything is read, not a random part: groups have sums, and no moments from which a variance would follow.
    pub fn is_of_everything(&self) -> bool {
        self.tallies.iter().any(|tally| matches!(tally.groups, Groups::Whole(_)))
    }

    /// Units that were counted.
    pub fn units(&self) -> u64 {
        self.strata.iter().map(|stratum| stratum.sampled).sum()
    }

    /// Values of sampled units, by stratum.
    pub fn unit_values(&self) -> Vec<&'a UnitValues> {
        let of = |tally: &&'a Tally| match &tally.values {
            Values::Sampled { units, .. } => units.as_slice(),
            _ => &[],
        };
        let mut units: Vec<&UnitValues> = self.tallies.iter().flat_map(of).collect();
        units.sort_by_key(|unit| unit.stratum);
        units
    }

    /// The values of all records, in no order, where everything is read.
    pub fn all_values(&self) -> Vec<f64> {
        let of = |tally: &&'a Tally| match &tally.values {
            Values::All(values) => values.as_slice(),
            _ => &[],
        };
        self.tallies.iter().map(of).collect::<Vec<_>>().concat()
    }

    /// Goes through all groups, each thread with a state of its own. Returns the states.
    pub fn fold_groups<A: Send>(
        &self,
        state: impl Fn() -> A + Sync,
        add: impl Fn(&mut A, &Group<'_>) + Sync,
    ) -> Vec<A> {
        let whole: Vec<&KeyTable<Sums>> = self.tables(|groups| match groups {
            Groups::Whole(keys) => Some(keys),
            Groups::Sample(..) => None,
        });
        let sample: Vec<&KeyTable<OpenUnit>> = self.tables(|groups| match groups {
            Groups::Sample(keys, _) => Some(keys),
            Groups::Whole(_) => None,
        });
        match whole.is_empty() {
            false => fold_keys(
                &whole,
                &state,
                |_| 0,
                |state, key, members| {
                    add(state, &Group { key, members: Members::Whole(members) });
                },
            ),
            true => {
                let touch =
                    |(table, slot): &Member<'_, OpenUnit>| self.tallies[*table].closed().touch_last(slot.counts.list);
                fold_keys(&sample, &state, touch, |state, key, members| {
                    add(state, &Group { key, members: Members::Sample(members, &self.tallies) });
                })
            }
        }
    }

    fn tables<C>(&self, table: impl Fn(&'a Groups) -> Option<&'a KeyTable<C>>) -> Vec<&'a KeyTable<C>> {
        self.tallies.iter().filter_map(|tally| table(&tally.groups)).collect()
    }

    /// All groups with their moments, in no order.
    pub fn groups(&self) -> impl Iterator<Item = (Key, Vec<(usize, GroupMoments)>)> {
        let add = |found: &mut Vec<_>, group: &Group<'_>| found.push((group.key.to_vec(), group.moments()));
        self.fold_groups(Vec::new, add).into_iter().flatten()
    }

    /// The moments of a group in the strata where it was seen, in their order; of none, if it was not seen.
    pub fn group(&self, key: &[u8]) -> Vec<(usize, GroupMoments)> {
        let (mut whole, mut sample) = (Vec::new(), Vec::new());
        for (number, tally) in self.tallies.iter().enumerate() {
            match &tally.groups {
                Groups::Whole(keys) => whole.extend(keys.get(key).map(|slot| (number, slot))),
                Groups::Sample(keys, _) => sample.extend(keys.get(key).map(|slot| (number, slot))),
            }
        }
        let members = if whole.is_empty() { Members::Sample(&sample, &self.tallies) } else { Members::Whole(&whole) };
        Group { key, members }.moments()
    }
}

impl Group<'_> {
    /// Units that contain the group.
    pub fn units(&self) -> u64 {
        match &self.members {
            Members::Whole(members) => members.iter().map(|(_, slot)| u64::from(slot.counts.units)).sum(),
            Members::Sample(members, tallies) => {
                let of = |(table, slot): &Member<'_, OpenUnit>| {
                    let closed = tallies[*table].closed().of(slot.counts.list);
                    closed.map(|(_, moments)| moments.units).sum::<u64>() + u64::from(slot.counts.records > 0)
                };
                members.iter().map(of).sum()
            }
        }
    }

    /// The unit that contains the group, of a sample of which no other one does: the thread that counted it, and its
    /// number there.
    pub fn only_unit(&self) -> Option<(usize, u32)> {
        let Members::Sample([(table, slot)], tallies) = &self.members else { return None };
        let open = (slot.counts.records > 0).then_some(slot.counts.unit);
        open.or_else(|| tallies[*table].closed().last_unit(slot.counts.list)).map(|unit| (*table, unit))
    }

    /// What the group has in each stratum where it was seen, in their order, in `into`, which is emptied first.
    pub fn totals(&self, into: &mut Vec<GroupTotal>) {
        into.clear();
        self.each_part(|stratum, moments| {
            into.push(GroupTotal { stratum, units: moments.units, total: moments.total })
        });
        by_stratum(
            into,
            |total| total.stratum,
            |one, other| {
                one.units += other.units;
                one.total += other.total;
            },
        );
    }

    /// Its moments in the strata where it was seen, in their order.
    pub fn moments(&self) -> Vec<(usize, GroupMoments)> {
        let mut found = Vec::new();
        self.each_part(|stratum, moments| found.push((stratum, *moments)));
        by_stratum(&mut found, |(stratum, _)| *stratum, |one, other| one.1 += &other.1);
        found
    }

    fn each_part(&self, mut each: impl FnMut(usize, &GroupMoments)) {
        match &self.members {
            Members::Whole(members) => {
                for (_, slot) in *members {
                    each(0, &slot.counts.moments());
                }
            }
            Members::Sample(members, tallies) => {
                for (table, slot) in *members {
                    tallies[*table].closed().of(slot.counts.list).for_each(|(stratum, moments)| each(stratum, moments));
                    if let Some((stratum, moments)) = tallies[*table].open_unit(&slot.counts) {
                        each(stratum, &moments);
                    }
                }
            }
        }
    }
}

/// Sorts parts of a group by stratum and adds up those of the same one.
fn by_stratum<T: Copy>(parts: &mut Vec<T>, stratum: impl Fn(&T) -> usize, add: impl Fn(&mut T, &T)) {
    if parts.len() < 2 {
        return;
    }
    parts.sort_by_key(&stratum);
    parts.dedup_by(|next, kept| {
        let same = stratum(next) == stratum(kept);
        if same {
            add(kept, next);
        }
        same
    });
}

/// Goes through the keys of tables, with all slots of a key at once. `touch` reads what `add` needs of a slot, for some
/// slots ahead.
fn fold_keys<C: Copy + Default + Sync, A: Send>(
    tables: &[&KeyTable<C>],
    state: &(impl Fn() -> A + Sync),
    touch: impl Fn(&Member<'_, C>) -> u32 + Sync,
    add: impl Fn(&mut A, &[u8], &[Member<'_, C>]) + Sync,
) -> Vec<A> {
    let keys: usize = tables.iter().map(|table| table.len()).sum();
    let part_bits = (keys / PART_KEYS).checked_ilog2().map_or(0, |bits| (bits + 1).min(MAX_PART_BITS));
    let parts = 1 << part_bits;
    let next = AtomicU32::new(0);
    let work = || {
        let (mut state, mut merge) = (state(), Merge::default());
        loop {
            let part = next.fetch_add(1, Ordering::Relaxed);
            if part >= parts {
                return state;
            }
            merge.part(tables, part, part_bits, &touch, |key, members| add(&mut state, key, members));
        }
    };
    let threads = (tables.len() as u32).min(parts).max(1);
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let own = work();
        let joined = others.into_iter().map(|thread| thread.join().expect("its message stands above"));
        std::iter::once(own).chain(joined).collect()
    })
}

/// Keys of which memory is asked for at once.
const TOUCHED_KEYS: usize = 64;

/// The first and the last one.
type Bounds = (u32, u32);

/// Finds the slots of each key in a part of several tables.
struct Merge<'a, C> {
    /// All slots, those of the first table first.
    slots: Vec<Member<'a, C>>,
    /// For each slot the next one of the same key, or 0: the first slot follows no other.
    next: Vec<u32>,
    /// The first and the last slot of each key.
    keys: Vec<Bounds>,
    /// Numbers of keys, and 1, at the places of their hashes.
    index: Vec<u32>,
    members: Vec<Member<'a, C>>,
}

impl<C> Default for Merge<'_, C> {
    fn default() -> Self {
        Merge { slots: Vec::new(), next: Vec::new(), keys: Vec::new(), index: Vec::new(), members: Vec::new() }
    }
}

impl<'a, C: Copy + Default> Merge<'a, C> {
    fn part(
        &mut self,
        tables: &[&'a KeyTable<C>],
        part: u32,
        part_bits: u32,
        touch: &impl Fn(&Member<'a, C>) -> u32,
        mut each: impl FnMut(&[u8], &[Member<'a, C>]),
    ) {
        self.slots.clear();
        for (number, table) in tables.iter().enumerate() {
            self.slots.extend(table.part(part, part_bits).map(|slot| (number, slot)));
        }
        self.find_keys(tables, part_bits);
        for keys in self.keys.chunks(TOUCHED_KEYS) {
            let both =
                |(first, last): &Bounds| touch(&self.slots[*first as usize]) ^ touch(&self.slots[*last as usize]);
            std::hint::black_box(keys.iter().fold(0, |all, key| all ^ both(key)));
            for (first, _) in keys {
                self.members.clear();
                let mut at = *first;
                loop {
                    self.members.push(self.slots[at as usize]);
                    at = self.next[at as usize];
                    if at == 0 {
                        break;
                    }
                }
                let (table, slot) = self.members[0];
                each(tables[table].key(slot), &self.members);
            }
        }
    }

    /// Chains the slots of each key.
    fn find_keys(&mut self, tables: &[&'a KeyTable<C>], part_bits: u32) {
        let index_bits = (2 * self.slots.len()).max(2).next_power_of_two().ilog2();
        self.index.clear();
        self.index.resize(1 << index_bits, 0);
        self.next.clear();
        self.next.resize(self.slots.len(), 0);
        self.keys.clear();
        if tables.len() == 1 {
            return self.keys.extend((0..self.slots.len() as u32).map(|number| (number, number)));
        }
        for number in 0..self.slots.len() as u32 {
            let (table, slot) = self.slots[number as usize];
            // The highest bits are the part's; what follows them spreads the keys of the part.
            let mut place = ((slot.hash() << part_bits) >> (32 - index_bits)) as usize;
            loop {
                let Some(key) = self.index[place].checked_sub(1) else {
                    self.keys.push((number, number));
                    self.index[place] = self.keys.len() as u32;
                    break;
                };
                let (first, last) = &mut self.keys[key as usize];
                let (first_table, first_slot) = self.slots[*first as usize];
                if tables[first_table].is_key(first_slot, tables[table], slot) {
                    self.next[*last as usize] = number;
                    *last = number;
                    break;
                }
                place = (place + 1) % self.index.len();
            }
        }
    }
}

impl Tally {
    fn closed(&self) -> &ClosedUnits {
        match &self.groups {
            Groups::Sample(_, closed) => closed,
            Groups::Whole(_) => unreachable!("sums have no strata"),
        }
    }
}
