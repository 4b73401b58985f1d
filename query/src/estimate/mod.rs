//! Aggregates from a sample: counts, sums and means with intervals.
//!
//! A query that groups the rows of one table is split at its aggregate ([`plan`]). Below, the engine aggregates each
//! sampled unit for itself; the sums of units are what `tessera_sampling::estimate` estimates from ([`moments`]). Above,
//! the engine goes on with the estimates as if they were the aggregates ([`answer`]).

mod answer;
mod moments;
mod plan;

use crate::args::Amount;
use crate::error::Error;
use crate::units::{Reading, Sample};
use datafusion::arrow::array::RecordBatch;
use datafusion::prelude::SessionContext;
use std::sync::Arc;
use tessera_sampling::answer::{Step, is_out_of_reach, next_step, pilot_units, unseen_units};
use tessera_sampling::engine::Progress;

pub use plan::{Estimable, recognize};

const NEARLY_EVERYTHING: &str = "a sample would need nearly everything";

/// What is asked of a sample.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// How much is read; not everything.
    pub amount: Amount,
    /// Share of samples whose intervals hold the truth.
    pub confidence: f64,
    /// An error is promised for so many groups.
    pub top: usize,
    /// So much more is selected than is needed.
    pub drop: f64,
    /// Length of a unit.
    pub unit_bytes: u64,
}

/// What a sample says.
pub struct Estimated {
    /// The answer.
    pub batches: Vec<RecordBatch>,
    /// What was read.
    pub progress: Progress,
    /// Groups that were seen, and those that were seen in too few units.
    pub groups: usize,
    /// Of these, groups without an interval.
    pub rare_groups: usize,
    /// Of these, other groups that lack the interval of a column.
    pub partly_rare_groups: usize,
    /// What was not seen lies in fewer units.
    pub unseen_units: f64,
    /// The promised error was reached; if none was promised, the share that was asked for was read.
    pub reached: bool,
}

/// How it ended.
pub enum Outcome {
    /// With an answer.
    Estimated(Box<Estimated>),
    /// Everything is read faster than the sample that is needed; why.
    ReadEverything(String),
}

/// Answers a query from a sample.
///
/// # Errors
/// A file cannot be read, or the engine fails.
pub async fn estimate(
    context: &SessionContext,
    query: &Estimable,
    terms: &Terms,
    reading: &Reading,
) -> Result<Outcome, Error> {
    let records = query.records().clone();
    let sample = Arc::new(Sample::new(records, reading.clone(), terms.unit_bytes, terms.drop));
    let layout = sample.layout()?;
    let all = layout.units();
    let first = match terms.amount {
        Amount::Ratio(ratio) => ((all as f64 * ratio).ceil() as u64).max(1),
        Amount::Error(_) => pilot_units(&layout),
        Amount::Exact => all,
    };
    if sample.would_be_everything(&layout, first) {
        return Ok(Outcome::ReadEverything(NEARLY_EVERYTHING.to_string()));
    }
    sample.need(first);
    let of_units = query.of_units(&sample)?;
    let mut moments = moments::Moments::new(query, &layout)?;
    let mut units = 0;
    loop {
        let batches = context.execute_logical_plan(of_units.clone()).await?.collect().await?;
        let arrived = sample.arrived(units);
        moments.add(&batches, &arrived, units)?;
        units += arrived.len();
        let step = match terms.amount {
            Amount::Error(error) if !reading.watch.is_interrupted() => {
                let progress = Progress { units: units as u64, ..sample.progress() };
                let factor = moments.needed_factor(error, terms);
                if let Some(reason) = too_many_groups(&moments, terms, error, progress).filter(|_| factor > 1.0) {
                    return Ok(Outcome::ReadEverything(reason));
                }
                next_step(factor, sample.progress())
            }
            _ => Step::Enough,
        };
        match step {
            Step::Enough => break,
            Step::Units(units) => sample.need(units),
            Step::Everything => return Ok(Outcome::ReadEverything(NEARLY_EVERYTHING.to_string())),
        }
    }
    finish(context, query, terms, &moments, Progress { units: units as u64, ..sample.progress() }).await
}

/// Why no sample of a part can tell enough of any group.
fn too_many_groups(moments: &moments::Moments, terms: &Terms, error: f64, progress: Progress) -> Option<String> {
    let most = moments.most_units().filter(|_| terms.top > 0)?;
    let is_hopeless = is_out_of_reach(most, error, terms.confidence, progress);
    is_hopeless.then(|| {
        format!("no group is in more than {most} of the first {} units, so {NEARLY_EVERYTHING}", progress.units)
    })
}

/// Ctrl-C may have ended the sample before.
fn has_its_share(progress: Progress) -> bool {
    progress.units >= progress.needed_units
}

async fn finish(
    context: &SessionContext,
    query: &Estimable,
    terms: &Terms,
    moments: &moments::Moments,
    progress: Progress,
) -> Result<Outcome, Error> {
    let groups = moments.estimate(terms.confidence)?;
    let plan = query.above(answer::plan(query, &groups)?)?;
    let reached = match terms.amount {
        Amount::Error(error) => moments.needed_factor(error, terms) <= 1.0,
        _ => has_its_share(progress),
    };
    Ok(Outcome::Estimated(Box::new(Estimated {
        batches: context.execute_logical_plan(plan).await?.collect().await?,
        progress,
        groups: groups.len(),
        rare_groups: groups.without_intervals(),
        partly_rare_groups: groups.lacking_intervals() - groups.without_intervals(),
        unseen_units: unseen_units(terms.confidence, moments.strata()),
        reached,
    })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_that_was_interrupted_has_not_reached_its_share() {
        let of = |units, needed_units| has_its_share(Progress { units, needed_units, ..Default::default() });
        assert!(of(100, 100) && of(103, 100));
        assert!(!of(99, 100) && !of(0, 1));
    }
}
