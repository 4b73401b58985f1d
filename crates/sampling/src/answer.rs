//! From what was counted to what is reported: the total, the largest groups, and what may be unseen.

pub use crate::ask::{Step, WHOLE_UNIT_BYTES, ask, is_out_of_reach, next_step, pilot_units};
use crate::estimate::{
    Estimate, GroupMoments, GroupTotal, OnceSeen, Population, Quantity, RARE_UNITS, StratumSample, distinct, quantile,
    quantile_of_all,
};
use crate::largest::{Largest, Ranked};
use crate::question::{Aggregate, Question};
use crate::tally::{Group, Key, Totals};
use hashbrown::HashMap;

/// How much is read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Amount {
    /// A share of all units, 0 to 1.
    Ratio(f64),
    /// As much as makes the intervals of the total and of the top groups this narrow, relative to the estimates.
    Error(f64),
    /// Everything.
    Exact,
}

/// How the answer is made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Terms {
    /// How much is read.
    pub amount: Amount,
    /// Share of samples whose interval covers the truth.
    pub confidence: f64,
    /// Groups that are reported, by size.
    pub top: usize,
    /// So much more is selected than needed, and the last to arrive are dropped.
    pub drop: f64,
}

/// A group's estimate.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Its key; none for null.
    pub key: Option<Key>,
    /// The estimate.
    pub estimate: Estimate,
}

/// What was found.
#[derive(Debug, Clone)]
pub struct Answer {
    /// All records together: their number, sum, mean, quantile or number of distinct keys.
    pub total: Estimate,
    /// The largest groups, largest first.
    pub rows: Vec<Row>,
    /// Groups seen, reported or not.
    pub groups: usize,
    /// Of these, groups too rare for an interval.
    pub rare_groups: usize,
    /// What was not seen lies in fewer units than this, as sure as intervals are.
    pub unseen_units: f64,
    /// A key that was not seen has fewer records than this, if units hold as many records as those that arrived.
    pub unseen_records: f64,
    /// Records that were counted.
    pub records: f64,
    /// The promised error was reached; if none was promised, the sample did not end before what was to be exact.
    pub reached: bool,
    /// What was read is a random part, or everything. It is not where reading everything was interrupted: that is the
    /// beginning of each disk.
    pub is_random: bool,
}

/// What is asked of which totals.
struct Asked<'a> {
    question: &'a Question,
    terms: &'a Terms,
    totals: &'a Totals<'a>,
    population: Population<'a>,
    /// Everything was to be read, and was not: nothing is known of the rest.
    is_interrupted: bool,
    seed: u64,
}

impl Answer {
    /// Answers from what was counted.
    pub fn of(question: &Question, terms: &Terms, totals: &Totals<'_>, seed: u64) -> Answer {
        let asked = Asked::new(question, terms, totals, seed);
        let census = asked.census();
        let is_whole = asked.population.is_whole();
        let unseen_units =
            if asked.is_interrupted { f64::INFINITY } else { unseen_units(terms.confidence, &totals.strata) };
        let mut answer = Answer {
            total: asked.total(&census),
            rows: if question.aggregate == Aggregate::Distinct { Vec::new() } else { asked.rows(&census) },
            groups: census.groups,
            rare_groups: if is_whole || asked.is_interrupted { 0 } else { census.rare_groups },
            unseen_units,
            unseen_records: (unseen_units * records_of_a_unit(totals)).ceil(),
            records: totals.all.iter().map(|moments| moments.total.count).sum(),
            reached: !asked.is_interrupted,
            is_random: !asked.is_interrupted,
        };
        if let Amount::Error(error) = terms.amount {
            answer.reached = answer.needed_factor(error) <= 1.0;
        }
        answer
    }

    /// By what factor the sample must grow so that the total and all rows reach a relative error.
    pub(crate) fn needed_factor(&self, error: f64) -> f64 {
        let of = |estimate: &Estimate| estimate.needed_factor(error);
        self.rows.iter().map(|row| of(&row.estimate)).fold(of(&self.total), f64::max)
    }
}

/// The estimate for all records together, while they are counted. `None` where it takes as long as the answer: of
/// distinct keys, and of a quantile of everything.
pub(crate) fn total_so_far(question: &Question, terms: &Terms, totals: &Totals<'_>, seed: u64) -> Option<Estimate> {
    let needs_all = match question.aggregate {
        Aggregate::Distinct => true,
        Aggregate::Quantile(_) => totals.is_of_everything(),
        Aggregate::Count | Aggregate::Sum | Aggregate::Mean => false,
    };
    (!needs_all).then(|| Asked::new(question, terms, totals, seed).total(&Census::new(0)))
}

/// What was found in one pass over all groups.
struct Census {
    groups: usize,
    /// Groups that were seen in too few units.
    rare_groups: usize,
    /// For each unit of a thread, with its stratum: the groups that were seen in this unit only.
    once: HashMap<(usize, u32), (usize, u64)>,
    largest: Largest,
    parts: Vec<GroupTotal>,
}

impl Census {
    fn new(top: usize) -> Census {
        let largest = Largest::new(top);
        Census { groups: 0, rare_groups: 0, once: HashMap::new(), largest, parts: Vec::new() }
    }

    fn add(&mut self, asked: &Asked<'_>, group: &Group<'_>) {
        group.totals(&mut self.parts);
        let units: u64 = self.parts.iter().map(|part| part.units).sum();
        self.groups += 1;
        self.rare_groups += usize::from(units < RARE_UNITS);
        if asked.question.aggregate == Aggregate::Distinct
            && units == 1
            && let Some(unit) = group.only_unit()
        {
            self.once.entry(unit).or_insert((self.parts[0].stratum, 0)).1 += 1;
        }
        let value = asked.population.expanded(quantity(asked.question), &self.parts);
        self.largest.add(value, group.key);
    }

    fn merge(mut self, other: Census) -> Census {
        self.groups += other.groups;
        self.rare_groups += other.rare_groups;
        for (unit, (stratum, groups)) in other.once {
            self.once.entry(unit).or_insert((stratum, 0)).1 += groups;
        }
        self.largest = self.largest.merge(other.largest);
        self
    }
}

impl<'a> Asked<'a> {
    fn new(question: &'a Question, terms: &'a Terms, totals: &'a Totals<'a>, seed: u64) -> Asked<'a> {
        let population = Population::new(&totals.strata, &totals.all, terms.confidence);
        let is_interrupted = totals.is_of_everything() && !population.is_whole();
        Asked { question, terms, totals, population, is_interrupted, seed }
    }

    fn census(&self) -> Census {
        let new = || Census::new(self.terms.top);
        let found = self.totals.fold_groups(new, |census, group| census.add(self, group));
        found.into_iter().reduce(Census::merge).unwrap_or_else(new)
    }

    fn total(&self, census: &Census) -> Estimate {
        let Asked { totals, terms, .. } = self;
        let found = match self.question.aggregate {
            Aggregate::Distinct => {
                let mut once = vec![OnceSeen::default(); totals.strata.len()];
                census.once.values().for_each(|(stratum, groups)| once[*stratum].add_unit(*groups));
                distinct(census.groups as u64, &once, &totals.strata, terms.confidence)
            }
            Aggregate::Quantile(q) => self
                .quantile(q)
                .unwrap_or_else(|| Estimate { claimed: self.population.is_whole(), ..Estimate::exact(f64::NAN, 0) }),
            _ => self.estimate(&totals.all.iter().copied().enumerate().collect::<Vec<_>>()),
        };
        if self.is_interrupted { Estimate::unclaimed(found.value, found.units_seen) } else { found }
    }

    fn quantile(&self, q: f64) -> Option<Estimate> {
        let Asked { totals, terms, .. } = self;
        match totals.is_of_everything() {
            true => quantile_of_all(q, totals.all_values()).map(|value| Estimate::exact(value, totals.all[0].units)),
            false => quantile(q, &totals.strata, &totals.unit_values(), terms.confidence, self.seed),
        }
    }

    fn rows(&self, census: &Census) -> Vec<Row> {
        let row = |sized: &Ranked| Row {
            key: self.question.key_of(&sized.key),
            estimate: self.estimate(&self.totals.group(&sized.key)),
        };
        census.largest.clone().sorted().iter().map(row).collect()
    }

    /// Estimates a group from its moments.
    fn estimate(&self, group: &[(usize, GroupMoments)]) -> Estimate {
        let quantity = quantity(self.question);
        if !self.is_interrupted {
            return self.population.estimate(quantity, group);
        }
        let part = |(stratum, moments): &(usize, GroupMoments)| GroupTotal {
            stratum: *stratum,
            units: moments.units,
            total: moments.total,
        };
        let parts: Vec<GroupTotal> = group.iter().map(part).collect();
        let units = parts.iter().map(|part| part.units).sum();
        Estimate::unclaimed(self.population.expanded(quantity, &parts), units)
    }
}

fn quantity(question: &Question) -> Quantity {
    match question.aggregate {
        Aggregate::Count | Aggregate::Distinct => Quantity::Count,
        Aggregate::Sum => Quantity::Sum,
        Aggregate::Mean | Aggregate::Quantile(_) => Quantity::Mean,
    }
}

/// What lies in K units, of which each is sampled with a chance of f at least, is unseen with (1 − f)^K at most. So, as
/// sure as intervals are, it lies in fewer than ln(1 − confidence) / ln(1 − f) units.
pub fn unseen_units(confidence: f64, strata: &[StratumSample]) -> f64 {
    let partly = strata.iter().filter(|stratum| stratum.sampled < stratum.units);
    let least = partly.map(|stratum| stratum.sampled as f64 / stratum.units as f64).fold(1.0, f64::min);
    match least {
        1.0 => 0.0,
        // A stratum of which nothing arrived tells nothing.
        0.0 => f64::INFINITY,
        _ => ((1.0 - confidence).ln() / (1.0 - least).ln()).ceil(),
    }
}

/// Records that a unit of the fullest stratum has.
fn records_of_a_unit(totals: &Totals<'_>) -> f64 {
    let of = |(stratum, all): (&StratumSample, &GroupMoments)| all.total.count / stratum.sampled.max(1) as f64;
    totals.strata.iter().zip(&totals.all).map(of).fold(0.0, f64::max)
}
