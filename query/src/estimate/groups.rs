//! What is estimated from the counts: the groups, and how large a sample they need.

use super::Terms;
use super::count::Counter;
use super::keys::Keys;
use super::plan::{Asked, Estimable};
use crate::error::Error;
use datafusion::arrow::array::ArrayRef;
use tessera_sampling::estimate::{Estimate, GroupMoments, Population, Quantity, RARE_UNITS, StratumSample};
use tessera_sampling::largest::Largest;
use tessera_sampling::tally::Totals;

/// Moments in the strata where a group was seen.
type Parts = Vec<(usize, GroupMoments)>;

/// What was counted by all threads.
pub struct Counted<'a> {
    query: &'a Estimable,
    confidence: f64,
    /// Of the measures, which share them where all threads' tallies are shared.
    totals: Vec<Totals<'a>>,
    /// For each measure the number of its totals.
    places: Vec<usize>,
    /// Of the rows that have no value of any measure.
    without_values: Totals<'a>,
}

/// The estimates of all groups.
pub struct Groups {
    /// The columns of the groups.
    pub keys: Vec<ArrayRef>,
    /// For each aggregate the estimates of the groups; NaN is no value.
    pub estimates: Vec<Vec<Estimate>>,
}

/// What is needed of a promised error.
#[derive(Debug, Clone, Copy)]
pub struct Needed {
    /// By what factor the sample must grow so that the totals and the largest groups reach it.
    pub factor: f64,
    /// The most units in which one group has a value of an aggregate whose error depends on that: any but a mean. None
    /// without groups, or without such an aggregate.
    pub most_units: Option<u64>,
}

/// Keys one behind the other, each with its estimates.
#[derive(Default)]
struct Estimated {
    keys: Vec<u8>,
    /// Where keys end.
    ends: Vec<usize>,
    /// Those of all aggregates of a key, then those of the next one.
    estimates: Vec<Estimate>,
}

impl Groups {
    /// Number of groups.
    pub fn len(&self) -> usize {
        self.estimates.first().map_or(0, Vec::len)
    }

    /// Groups of which no estimate has an interval.
    pub fn without_intervals(&self) -> usize {
        self.count(|group| !self.estimates.iter().any(|of_all| of_all[group].claimed))
    }

    /// Groups of which some estimate has no interval.
    pub fn lacking_intervals(&self) -> usize {
        self.count(|group| self.estimates.iter().any(|of_all| !of_all[group].claimed))
    }

    fn count(&self, is_of: impl Fn(usize) -> bool) -> usize {
        (0..self.len()).filter(|group| is_of(*group)).count()
    }
}

impl Estimated {
    fn key(&self, number: usize) -> &[u8] {
        let start = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.keys[start..self.ends[number]]
    }
}

impl<'a> Counted<'a> {
    /// Adds up what the streams counted; there is one at least.
    pub fn of(query: &'a Estimable, counters: &'a [Counter], confidence: f64) -> Counted<'a> {
        let (mut distinct, mut totals, mut places) = (Vec::new(), Vec::new(), Vec::new());
        for measure in 0..query.measures.len() {
            let tallies: Vec<usize> = counters.iter().map(|counter| counter.place(measure)).collect();
            let known = distinct.iter().position(|known| *known == tallies);
            places.push(known.unwrap_or(distinct.len()));
            if known.is_none() {
                distinct.push(tallies);
                totals.push(Totals::of(counters.iter().map(|counter| counter.tally(measure))));
            }
        }
        let without_values = Totals::of(counters.iter().map(Counter::without_values));
        Counted { query, confidence, totals, places, without_values }
    }

    /// The strata, and what arrived of them.
    pub fn strata(&self) -> &[StratumSample] {
        &self.totals[0].strata
    }

    fn place(&self, asked: &Asked) -> usize {
        self.places[asked.measure]
    }

    fn populations(&self) -> Vec<Population<'_>> {
        let of = |totals| -> Population<'_> {
            let totals: &Totals<'_> = totals;
            Population::new(&totals.strata, &totals.all, self.confidence)
        };
        self.totals.iter().map(of).collect()
    }

    /// The parts of all rows together.
    fn all(&self) -> Vec<Parts> {
        self.totals.iter().map(|totals| totals.all.iter().copied().enumerate().collect()).collect()
    }

    /// The parts of a group.
    fn group(&self, key: &[u8]) -> Vec<Parts> {
        self.totals.iter().map(|totals| totals.group(key)).collect()
    }

    /// Goes through all groups, each thread with a state of its own: their keys, and their parts in those totals that are `wanted`.
    fn fold<A: Send>(
        &self,
        wanted: &[bool],
        state: impl Fn() -> A + Sync,
        add: impl Fn(&mut A, &[u8], &[Parts]) + Sync,
    ) -> Vec<A> {
        let mut states = Vec::new();
        for (number, totals) in self.totals.iter().chain([&self.without_values]).enumerate() {
            states.extend(totals.fold_groups(&state, |state, group| {
                let before = &self.totals[..number];
                if before.iter().any(|totals| !totals.group(group.key).is_empty()) {
                    return;
                }
                let parts = |other: usize| match &self.totals[other] {
                    _ if !wanted[other] || other < number => Parts::new(),
                    _ if other == number => group.moments(),
                    totals => totals.group(group.key),
                };
                add(state, group.key, &(0..self.totals.len()).map(parts).collect::<Vec<Parts>>());
            }));
        }
        states
    }

    /// What a relative error needs, of the totals and of the `top` largest groups.
    pub fn needed(&self, error: f64, terms: &Terms) -> Needed {
        let (populations, asked) = (self.populations(), &self.query.asked);
        let first = (self.place(&asked[0]), asked[0].quantity);
        let of_units = asked.iter().find(|asked| asked.quantity != Quantity::Mean).map(|asked| self.place(asked));
        let wanted: Vec<bool> = (0..self.totals.len()).map(|i| i == first.0 || Some(i) == of_units).collect();
        let new = || (Largest::new(terms.top), 0);
        let found = self.fold(&wanted, new, |(largest, most_units), key, parts| {
            *most_units = of_units.map_or(0, |place| units_of(&parts[place])).max(*most_units);
            let value = populations[first.0].value(first.1, &parts[first.0]);
            if !value.is_nan() {
                largest.add(value, key);
            }
        });
        let merge = |(a, units): (Largest, u64), (b, more): (Largest, u64)| (a.merge(b), units.max(more));
        let (largest, most_units) = found.into_iter().reduce(merge).unwrap_or_else(new);
        let groups = largest.sorted().into_iter().map(|ranked| self.group(&ranked.key));
        let of_group = |parts: Vec<Parts>| {
            let needed = |asked: &Asked| {
                let place = self.place(asked);
                populations[place].estimate(asked.quantity, &parts[place]).needed_factor(error)
            };
            asked.iter().map(needed).collect::<Vec<f64>>()
        };
        let factors = std::iter::once(self.all()).chain(groups).flat_map(of_group);
        Needed {
            // What has no value is not asked for.
            factor: factors.filter(|factor| !factor.is_nan()).fold(0.0, f64::max),
            most_units: Some(most_units).filter(|most| *most > 0),
        }
    }

    /// The estimates of all groups in the order of their keys; without groups, of all rows together.
    ///
    /// # Errors
    /// The engine cannot give back the groups.
    pub fn estimate(&self) -> Result<Groups, Error> {
        let populations = self.populations();
        let add = |into: &mut Estimated, key: &[u8], parts: &[Parts]| {
            into.keys.extend_from_slice(key);
            into.ends.push(into.keys.len());
            let of = |asked: &Asked| {
                let place = self.place(asked);
                of_group(&populations[place], asked.quantity, &parts[place])
            };
            into.estimates.extend(self.query.asked.iter().map(of));
        };
        let key_types = self.query.key_types();
        let mut found = self.fold(&vec![true; self.totals.len()], Estimated::default, add);
        if key_types.is_empty() {
            found.push(Estimated::default());
            add(&mut found[0], &[], &self.all());
        }
        let mut order: Vec<(usize, usize)> =
            found.iter().enumerate().flat_map(|(part, of)| (0..of.ends.len()).map(move |i| (part, i))).collect();
        order.sort_unstable_by_key(|(part, i)| found[*part].key(*i));
        let asked = self.query.asked.len();
        let of_aggregate =
            |i: usize| order.iter().map(|(part, group)| found[*part].estimates[group * asked + i]).collect();
        Ok(Groups {
            keys: Keys::new(&key_types)?.decode(order.iter().map(|(part, i)| found[*part].key(*i)))?,
            estimates: (0..asked).map(of_aggregate).collect(),
        })
    }
}

fn units_of(parts: &Parts) -> u64 {
    parts.iter().map(|(_, moments)| moments.units).sum()
}

/// Of one group of many, most of which may be rare.
fn of_group(population: &Population<'_>, quantity: Quantity, parts: &Parts) -> Estimate {
    let units_seen = units_of(parts);
    match units_seen < RARE_UNITS && !population.is_whole() {
        true => Estimate::unclaimed(population.value(quantity, parts), units_seen),
        false => population.estimate(quantity, parts),
    }
}
