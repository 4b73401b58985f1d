//! From a question to its answer: how much is read, when it is enough, and what is reported.

use crate::engine::{Engine, Next, Options, Progress};
use crate::error::Error;
use crate::estimate::{Estimate, GroupMoments, Population, Quantity, RARE_UNITS, StratumSample, distinct, quantile};
use crate::format::Format;
use crate::question::{Aggregate, Question};
use crate::schedule::Schedule;
use crate::source::Source;
use crate::tally::{Key, Totals};
use std::sync::Arc;

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
    /// Its key; none if records are not grouped.
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
    /// The promised error was reached; true if none was promised.
    pub reached: bool,
}

impl Answer {
    /// Answers from what was counted.
    pub fn of(question: &Question, terms: &Terms, totals: &Totals, seed: u64) -> Answer {
        let population = Population::new(&totals.strata, &totals.all, terms.confidence);
        let mut answer = Answer {
            total: total(question, terms, totals, &population, seed),
            rows: Vec::new(),
            groups: totals.groups.len(),
            rare_groups: 0,
            unseen_units: unseen_units(terms.confidence, totals),
            unseen_records: (unseen_units(terms.confidence, totals) * records_of_a_unit(totals)).ceil(),
            records: totals.all.iter().map(|moments| moments.total.count).sum(),
            reached: true,
        };
        if question.aggregate != Aggregate::Distinct {
            answer.rows = rows(question, terms, totals, &population);
        }
        answer.rare_groups = match population.is_whole() {
            true => 0,
            false => totals.groups.values().filter(|group| units_of(group) < RARE_UNITS).count(),
        };
        if terms.amount == Amount::Exact && !population.is_whole() {
            // It was interrupted: what was read is the beginning of each disk, which is no random part.
            answer.total.claimed = false;
            answer.rows.iter_mut().for_each(|row| row.estimate.claimed = false);
        }
        if let Amount::Error(error) = terms.amount {
            answer.reached = answer.needed_factor(error) <= 1.0;
        }
        answer
    }

    /// By what factor the sample must grow so that the total and all rows reach a relative error.
    fn needed_factor(&self, error: f64) -> f64 {
        let of = |estimate: &Estimate| {
            if estimate.standard_error == 0.0 && estimate.claimed {
                return 0.0;
            }
            let precise = (estimate.relative_error() / error).powi(2);
            let seen = RARE_UNITS as f64 / (estimate.units_seen as f64).max(1.0);
            if estimate.claimed { precise } else { precise.max(seen).max(1.01) }
        };
        self.rows.iter().map(|row| of(&row.estimate)).fold(of(&self.total), f64::max)
    }
}

fn units_of(group: &[(usize, GroupMoments)]) -> u64 {
    group.iter().map(|(_, moments)| moments.units).sum()
}

fn quantity(question: &Question) -> Quantity {
    match question.aggregate {
        Aggregate::Count | Aggregate::Distinct => Quantity::Count,
        Aggregate::Sum => Quantity::Sum,
        Aggregate::Mean | Aggregate::Quantile(_) => Quantity::Mean,
    }
}

fn total(question: &Question, terms: &Terms, totals: &Totals, population: &Population<'_>, seed: u64) -> Estimate {
    match question.aggregate {
        Aggregate::Distinct => {
            let mut once = vec![0; totals.strata.len()];
            let single = totals.groups.values().filter(|group| units_of(group) == 1);
            single.for_each(|group| once[group[0].0] += 1);
            distinct(totals.groups.len() as u64, &once, &totals.strata, terms.confidence)
        }
        Aggregate::Quantile(q) => quantile(q, &totals.strata, &totals.values, terms.confidence, seed)
            .unwrap_or_else(|| Estimate { claimed: population.is_whole(), ..Estimate::exact(f64::NAN, 0) }),
        _ => {
            let all: Vec<_> = totals.all.iter().copied().enumerate().collect();
            population.estimate(quantity(question), &all)
        }
    }
}

fn rows(question: &Question, terms: &Terms, totals: &Totals, population: &Population<'_>) -> Vec<Row> {
    let quantity = quantity(question);
    let mut sized: Vec<(f64, &Key)> =
        totals.groups.iter().map(|(key, group)| (population.expanded(quantity, group), key)).collect();
    // Equal groups in the order of their keys: the answer does not depend on hashing.
    let order = |a: &(f64, &Key), b: &(f64, &Key)| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(b.1));
    if sized.len() > terms.top && terms.top > 0 {
        sized.select_nth_unstable_by(terms.top - 1, order);
    }
    sized.truncate(terms.top);
    sized.sort_by(order);
    let row = |(_, key): (f64, &Key)| Row {
        key: Some(key.clone()),
        estimate: population.estimate(quantity, &totals.groups[key]),
    };
    sized.into_iter().map(row).collect()
}

/// What lies in K units, of which each is sampled with a chance of f at least, is unseen with (1 − f)^K at most. So, as
/// sure as intervals are, it lies in fewer than ln(1 − confidence) / ln(1 − f) units.
fn unseen_units(confidence: f64, totals: &Totals) -> f64 {
    let partly = totals.strata.iter().filter(|stratum| stratum.sampled < stratum.units);
    let least = partly.map(|stratum| stratum.sampled as f64 / stratum.units as f64).fold(1.0, f64::min);
    match least {
        1.0 => 0.0,
        // A stratum of which nothing arrived tells nothing.
        0.0 => f64::INFINITY,
        _ => ((1.0 - confidence).ln() / (1.0 - least).ln()).ceil(),
    }
}

/// Records that a unit of the fullest stratum has.
fn records_of_a_unit(totals: &Totals) -> f64 {
    let of = |(stratum, all): (&StratumSample, &GroupMoments)| all.total.count / stratum.sampled.max(1) as f64;
    totals.strata.iter().zip(&totals.all).map(of).fold(0.0, f64::max)
}

/// The sample grows at least so much in a step.
const MIN_STEP: f64 = 1.3;
/// And at most so much: the pilot's variance may be far off.
const MAX_STEP: f64 = 8.0;
/// The pilot of a promised error has so many units, or more where strata need them.
const PILOT_UNITS: u64 = 2 * RARE_UNITS;

/// Reads as much as the terms say, and answers. `observe` sees the answer as it becomes sharper, and may stop.
///
/// # Errors
/// A file cannot be read or has changed, or a record is malformed.
pub fn ask(
    source: Arc<dyn Source>,
    format: Arc<dyn Format>,
    mut schedule: Schedule,
    (question, terms): (&Question, &Terms),
    options: &Options,
    observe: &mut dyn FnMut(Progress, &dyn Fn() -> Answer) -> bool,
) -> Result<(Answer, Progress, Vec<u64>), Error> {
    let all = schedule.layout().units();
    match terms.amount {
        Amount::Ratio(ratio) => schedule.need(((all as f64 * ratio).ceil() as u64).max(1), terms.drop),
        Amount::Error(_) => schedule.need(PILOT_UNITS.max(2 * schedule.layout().strata.len() as u64), terms.drop),
        Amount::Exact => {}
    }
    let engine = Engine::start(source.clone(), format, schedule, options);
    let mut progress = engine.run(|engine, progress| {
        let answer = || Answer::of(question, terms, &engine.totals(), options.seed);
        if !observe(progress, &answer) {
            return Next::Stop;
        }
        match terms.amount {
            Amount::Error(error) if progress.complete && progress.units < progress.all_units => {
                match next_units(answer().needed_factor(error), progress) {
                    Some(units) => Next::Need(units, terms.drop),
                    None => Next::Go,
                }
            }
            _ => Next::Go,
        }
    })?;
    source.check_unchanged()?;
    let totals = engine.totals();
    // After an interrupt more has arrived than was reported last.
    progress.units = totals.strata.iter().map(|stratum| stratum.sampled).sum();
    Ok((Answer::of(question, terms, &totals, options.seed), progress, engine.units_of_disks()))
}

/// The next size of a sample that must grow by a factor; none if it need not.
fn next_units(factor: f64, progress: Progress) -> Option<u64> {
    if factor <= 1.0 {
        return None;
    }
    let (now, all) = (progress.units as f64, progress.all_units as f64);
    // Without replacement less is needed: n / (1 + n/N), from a sample whose own correction is known.
    let large = now / (1.0 - (now / all).min(0.999_999)) * factor * 1.1;
    let units = large / (1.0 + large / all);
    Some(units.clamp(now * MIN_STEP, now * MAX_STEP).min(all).ceil() as u64)
}
