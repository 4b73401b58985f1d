//! Aggregates from a sample: counts, sums and means with intervals.
//!
//! A query that groups the rows of one table is split at its aggregate ([`plan`]). Below, the engine computes the groups and the
//! values of the rows of sampled units, which are counted ([`count`]) as those of `tessera sample` are, and estimated from
//! ([`groups`]). Above, the engine goes on with the estimates as if they were the aggregates ([`answer`]).

mod answer;
mod count;
mod groups;
mod keys;
mod plan;

use crate::args::Amount;
use crate::error::Error;
use crate::units::{Reading, Sample};
use count::Counter;
use datafusion::arrow::array::RecordBatch;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::prelude::SessionContext;
use groups::{Counted, Needed};
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
    let of_rows = query.of_rows(&sample)?;
    let new_counter = || Counter::new(query, &layout);
    let mut counters = (0..sample.streams()).map(|_| new_counter()).collect::<Result<Vec<Counter>, Error>>()?;
    let mut units = 0;
    let needed = loop {
        let streams = context.execute_logical_plan(of_rows.clone()).await?.execute_stream_partitioned().await?;
        counters = count_all(counters, streams, &sample).await?;
        if sample.progress().all_units == 0 {
            return Ok(Outcome::ReadEverything("no row can pass its conditions".to_string()));
        }
        let arrived = sample.arrived(units);
        count::end_step(&mut counters, &arrived, units);
        units += arrived.len();
        let (step, needed) = match terms.amount {
            Amount::Error(error) if !reading.watch.is_interrupted() => {
                let progress = Progress { units: units as u64, ..sample.progress() };
                let found = Counted::of(query, &counters, terms.confidence).needed(error, terms);
                if let Some(reason) = too_many_groups(found, terms, error, progress) {
                    return Ok(Outcome::ReadEverything(reason));
                }
                (next_step(found.factor, sample.progress()), Some(found))
            }
            _ => (Step::Enough, None),
        };
        match step {
            Step::Enough => break needed,
            Step::Units(units) => sample.need(units),
            Step::Everything => return Ok(Outcome::ReadEverything(NEARLY_EVERYTHING.to_string())),
        }
    };
    let counted = Counted::of(query, &counters, terms.confidence);
    let progress = Progress { units: units as u64, ..sample.progress() };
    let reached = match terms.amount {
        Amount::Error(error) => needed.unwrap_or_else(|| counted.needed(error, terms)).factor <= 1.0,
        _ => has_its_share(progress),
    };
    finish(context, query, &counted, terms.confidence, (progress, reached)).await
}

/// Each stream is counted by a task of its own. There are fewer streams than counters if the engine need not read.
async fn count_all(
    counters: Vec<Counter>,
    streams: Vec<SendableRecordBatchStream>,
    sample: &Arc<Sample>,
) -> Result<Vec<Counter>, Error> {
    assert!(streams.len() <= counters.len(), "the plan has the streams of its table");
    let mut rest = counters;
    let counters: Vec<Counter> = rest.drain(..streams.len()).collect();
    let count = |(counter, stream): (Counter, _)| tokio::spawn(counter.count(stream, sample.clone()));
    let tasks: Vec<_> = counters.into_iter().zip(streams).map(count).collect();
    let mut counted: Vec<Result<Counter, Error>> = rest.into_iter().map(Ok).collect();
    for task in tasks {
        counted.push(task.await.unwrap_or_else(|failed| std::panic::resume_unwind(failed.into_panic())));
    }
    counted.into_iter().collect()
}

/// Why no sample of a part can tell enough of any group.
fn too_many_groups(needed: Needed, terms: &Terms, error: f64, progress: Progress) -> Option<String> {
    let most = needed.most_units.filter(|_| terms.top > 0 && needed.factor > 1.0)?;
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
    counted: &Counted<'_>,
    confidence: f64,
    (progress, reached): (Progress, bool),
) -> Result<Outcome, Error> {
    let groups = counted.estimate()?;
    let plan = query.above(answer::plan(query, &groups)?)?;
    Ok(Outcome::Estimated(Box::new(Estimated {
        batches: context.execute_logical_plan(plan).await?.collect().await?,
        progress,
        groups: groups.len(),
        rare_groups: groups.without_intervals(),
        partly_rare_groups: groups.lacking_intervals() - groups.without_intervals(),
        unseen_units: unseen_units(confidence, counted.strata()),
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
