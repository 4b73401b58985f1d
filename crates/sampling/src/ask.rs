//! How much is read for an answer: a share, as much as a promised error needs, or everything.

use crate::answer::{Amount, Answer, Terms, total_so_far};
use crate::engine::{Engine, Next, Options, Progress};
use crate::error::Error;
use crate::estimate::{Estimate, RARE_UNITS, t_quantile};
use crate::format::Format;
use crate::layout::Layout;
use crate::question::Question;
use crate::schedule::Schedule;
use crate::source::Source;
use std::sync::Arc;

/// The sample grows at least so much in a step.
const MIN_STEP: f64 = 1.3;
/// And at most so much: the pilot's variance may be far off.
const MAX_STEP: f64 = 8.0;
/// The pilot of a promised error has so many units, or more where strata need them.
const PILOT_UNITS: u64 = 2 * RARE_UNITS;
/// A sample that lacks a larger share of all units than this is given up, and everything is read: long units without
/// moments cost about half as much a byte.
const EVERYTHING: f64 = 1.0 / 3.0;
/// From so many units on a variance is not off by more than a few times. If they say that twice [`EVERYTHING`] is needed,
/// no larger sample is read to see whether it says so too.
const SURE_UNITS: u64 = 8 * PILOT_UNITS;
/// Length of a unit where everything is read.
pub const WHOLE_UNIT_BYTES: u64 = 4 << 20;

/// Sees how far the sample is, and may ask for the estimate of the total. False ends the sample.
type Observe<'a> = dyn FnMut(Progress, &dyn Fn() -> Option<Estimate>) -> bool + 'a;

/// What was asked, of what.
struct Job<'a> {
    source: Arc<dyn Source>,
    format: Arc<dyn Format>,
    question: &'a Question,
    terms: &'a Terms,
    options: &'a Options,
}

/// What was found, and from how much.
struct Found {
    answer: Answer,
    progress: Progress,
    units_of_disks: Vec<u64>,
}

/// What follows from a complete sample for the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It is large enough.
    Enough,
    /// It needs so many units.
    Units(u64),
    /// Everything is read faster than the sample that is needed.
    Everything,
}

/// Units of the first sample for a promised error, from which follows how many are needed.
pub fn pilot_units(layout: &Layout) -> u64 {
    PILOT_UNITS.max(2 * layout.strata.len() as u64)
}

/// Reads as much as the terms say, and answers. `observe` sees the total as it becomes sharper, and may stop.
///
/// # Errors
/// A file cannot be read or has changed, or a record is malformed.
pub fn ask(
    source: Arc<dyn Source>,
    format: Arc<dyn Format>,
    mut schedule: Schedule,
    (question, terms): (&Question, &Terms),
    options: &Options,
    observe: &mut Observe<'_>,
) -> Result<(Answer, Progress, Vec<u64>), Error> {
    let all = schedule.layout().units();
    match terms.amount {
        _ if schedule.is_whole() => {}
        Amount::Ratio(ratio) => schedule.need(((all as f64 * ratio).ceil() as u64).max(1), terms.drop),
        Amount::Error(_) => schedule.need(pilot_units(schedule.layout()), terms.drop),
        Amount::Exact => schedule.need(all, 0.0),
    }
    let job = Job { source, format, question, terms, options };
    let found = match (schedule.is_whole(), schedule.will_be_everything()) {
        (true, _) => job.read_everything(schedule, None, observe)?,
        (false, true) => job.read_everything(job.whole(), None, observe)?,
        (false, false) => job.sample(schedule, observe)?,
    };
    job.source.check_unchanged()?;
    Ok((found.answer, found.progress, found.units_of_disks))
}

impl Job<'_> {
    fn start(&self, schedule: Schedule) -> Engine {
        Engine::start(self.source.clone(), self.format.clone(), schedule, self.options)
    }

    fn whole(&self) -> Schedule {
        Schedule::whole(Layout::of(&*self.source, &*self.format, WHOLE_UNIT_BYTES))
    }

    fn total(&self, engine: &Engine) -> Option<Estimate> {
        engine.with_totals(|totals| total_so_far(self.question, self.terms, totals, self.options.seed))
    }

    /// The answer of what was counted by now, and the number of units.
    fn answer(&self, engine: &Engine) -> (Answer, u64) {
        engine.with_totals(|totals| (Answer::of(self.question, self.terms, totals, self.options.seed), totals.units()))
    }

    /// Reads a sample, and more of it, until it suffices.
    fn sample(&self, schedule: Schedule, observe: &mut Observe<'_>) -> Result<Found, Error> {
        let engine = self.start(schedule);
        let (mut last, mut is_futile) = (None, false);
        let mut progress = engine.run(|engine, progress| {
            last = None;
            if !observe(progress, &|| self.total(engine)) {
                return Next::Stop;
            }
            let Amount::Error(error) = self.terms.amount else { return Next::Go };
            if !progress.complete {
                return Next::Go;
            }
            let found = self.answer(engine);
            let step = next_step(found.0.needed_factor(error), progress);
            last = Some(found);
            match step {
                Step::Enough => Next::Stop,
                Step::Units(units) => Next::Need(units, self.terms.drop),
                Step::Everything => {
                    is_futile = true;
                    Next::Stop
                }
            }
        })?;
        // After an interrupt more has arrived than was reported last.
        let (answer, units) = last.unwrap_or_else(|| self.answer(&engine));
        (progress.units, progress.read_bytes) = (units, engine.progress().read_bytes);
        let found = Found { answer, progress, units_of_disks: engine.units_of_disks() };
        drop(engine);
        if is_futile { self.read_everything(self.whole(), Some(found), observe) } else { Ok(found) }
    }

    /// Reads everything. If that is interrupted, the sample that was read before answers better than the beginnings of
    /// all disks.
    fn read_everything(
        &self,
        schedule: Schedule,
        sampled: Option<Found>,
        observe: &mut Observe<'_>,
    ) -> Result<Found, Error> {
        let engine = self.start(schedule);
        let mut progress = engine.run(|engine, progress| {
            let total = || sampled.as_ref().map_or_else(|| self.total(engine), |found| Some(found.answer.total));
            if observe(progress, &total) { Next::Go } else { Next::Stop }
        })?;
        let before = sampled.as_ref().map_or(0, |found| found.progress.read_bytes);
        let read_bytes = || before + engine.progress().read_bytes;
        if let Some(found) = sampled.filter(|_| !progress.complete) {
            let progress = Progress { read_bytes: read_bytes(), complete: false, ..found.progress };
            return Ok(Found { progress, ..found });
        }
        let (answer, units) = self.answer(&engine);
        (progress.units, progress.read_bytes) = (units, read_bytes());
        Ok(Found { answer, progress, units_of_disks: engine.units_of_disks() })
    }
}

/// What to read next if a sample must grow by a factor ([`Estimate::needed_factor`]).
pub fn next_step(factor: f64, progress: Progress) -> Step {
    if factor <= 1.0 {
        return Step::Enough;
    }
    let (now, all) = (progress.units as f64, progress.all_units as f64);
    // Without replacement less is needed: n / (1 + n/N), from a sample whose own correction is known.
    let large = now / (1.0 - (now / all).min(0.999_999)) * factor * 1.1;
    let wanted = large / (1.0 + large / all);
    let units = wanted.clamp(now * MIN_STEP, now * MAX_STEP).min(all).ceil();
    let is_sure = progress.units >= SURE_UNITS && wanted > 2.0 * EVERYTHING * all;
    // All units may have arrived without all of their values.
    let has_all = progress.units == progress.all_units;
    match units - now > EVERYTHING * all || (is_sure && wanted - now > EVERYTHING * all) || has_all {
        true => Step::Everything,
        false => Step::Units(units as u64),
    }
}

/// Whether nearly everything is needed for such an error of the number or sum of any group, because none was met in more than
/// `most_units` of the units of a sample. Unlike a variance, this is sure from the first units on: what lies in a share p of all
/// units has E(Y)² ≤ p E(Y²), so its relative variance between units is (1 − p)/p at least.
pub fn is_out_of_reach(most_units: u64, relative_error: f64, confidence: f64, progress: Progress) -> bool {
    let (seen, now, all) = (most_units as f64, progress.units as f64, progress.all_units as f64);
    // More than three standard deviations of a Poisson law above what was seen.
    let share = (seen + 3.0 * (seen + 1.0).sqrt() + 3.0) / now.max(1.0);
    let large = (1.0 / share - 1.0).max(0.0) * (t_quantile(confidence, f64::MAX) / relative_error).powi(2);
    let wanted = large / (1.0 + large / all);
    wanted - now > EVERYTHING * all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_few_units_are_out_of_reach_at_once() {
        let of = |most: u64, error: f64, units: u64, all_units: u64| {
            is_out_of_reach(most, error, 0.95, Progress { units, all_units, ..Default::default() })
        };
        assert!(of(1, 0.05, 60, 4000) && of(3, 0.02, 60, 4000));
        assert!(!of(3, 0.02, 60, 4_000_000), "46,900 units are few of four millions");
        assert!(!of(3, 0.3, 60, 4000), "36 times less is needed for 30 %");
        assert!(!of(30, 0.02, 60, 4000), "in half of the units, perhaps in nearly all");
        assert!(!of(0, 0.02, 0, 4000), "nothing was read");
    }

    fn step(factor: f64, units: u64, all_units: u64) -> Step {
        next_step(factor, Progress { units, all_units, ..Default::default() })
    }

    #[test]
    fn a_sample_grows_by_what_its_variance_says_within_bounds() {
        assert_eq!(step(1.0, 60, 100_000), Step::Enough);
        assert_eq!(step(1.001, 1000, 100_000), Step::Units(1300), "a step is not too small");
        assert_eq!(step(1e6, 60, 100_000), Step::Units(480), "a pilot is not trusted");
        assert_eq!(step(4.0, 1000, 1_000_000), Step::Units(4386), "4.4 times, less the correction for what was read");
    }

    #[test]
    fn everything_is_read_where_more_than_a_third_is_lacking() {
        assert_eq!(step(1e6, 60, 1000), Step::Everything);
        assert_eq!(step(1e6, 60, 1261), Step::Units(480));
        assert_eq!(step(1e6, 700, 1000), Step::Units(1000), "a third is read faster than everything again");
        assert_eq!(step(1e6, 480, 100_000), Step::Everything, "480 units are sure of it");
        assert_eq!(step(200.0, 480, 100_000), Step::Units(3840), "of less they are not");
        assert_eq!(step(1.01, 1000, 1000), Step::Everything, "units without all their values");
    }
}
