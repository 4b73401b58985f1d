//! A set of records in partitions, and what can be done with it.

use super::driver;
use super::part::Part;
use super::partition::{Partition, Place};
use super::plan::{Basis, Node, Plan, Selection, Value, Work};
use crate::error::Error;
use crate::estimate::{Estimate, PartitionSample, is_whole, rounded_variance, t_quantile, two_stage_total};
use crate::schedule::Shares;
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::any::Any;
use std::marker::PhantomData;
use std::sync::Arc;

/// What records are: values that threads can share.
pub trait Data: Clone + Send + Sync + 'static {}

impl<T: Clone + Send + Sync + 'static> Data for T {}

/// Samples between partitions.
#[derive(Debug, Clone, PartialEq)]
pub struct PartitionSampling {
    /// Share of the partitions, above 0 and at most 1.
    pub ratio: f64,
    /// How the sample is divided among disks.
    pub shares: Shares,
    /// So many times more partitions are selected than the ratio asks for; what has not arrived when enough has is
    /// dropped. 0 waits for all; 0.1 is the paper's.
    pub drop: f64,
    /// Equal seeds select equal partitions.
    pub seed: u64,
}

/// A set of records in partitions. Nothing is computed before [`collect`](Ldd::collect), [`count`](Ldd::count),
/// [`sum`](Ldd::sum) or [`persist`](Ldd::persist).
pub struct Ldd<T> {
    pub(super) node: Arc<Node>,
    pub(super) threads: usize,
    records: PhantomData<fn() -> T>,
}

impl<T> Clone for Ldd<T> {
    fn clone(&self) -> Self {
        Ldd { node: self.node.clone(), threads: self.threads, records: PhantomData }
    }
}

/// The value of a task as what the set knows it is; copied only if another task needs it too.
pub(super) fn typed<V: Any + Send + Sync + Clone>(value: Value) -> V {
    let value = value.downcast::<V>().expect("the set that made a task knows its type");
    Arc::try_unwrap(value).unwrap_or_else(|shared| (*shared).clone())
}

pub(super) fn available_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn checked_ratio(ratio: f64) -> Result<f64, Error> {
    if ratio > 0.0 && ratio <= 1.0 {
        return Ok(ratio);
    }
    Err(Error::Question(format!("a ratio of {ratio}: give a number above 0 and at most 1")))
}

impl<T: Data> Ldd<T> {
    pub(super) fn of(node: Arc<Node>, threads: usize) -> Ldd<T> {
        Ldd { node, threads, records: PhantomData }
    }

    /// Records in memory, in `partitions` partitions of about equal size.
    pub fn in_memory(records: Vec<T>, partitions: usize) -> Ldd<T> {
        let size = records.len().div_ceil(partitions.max(1)).max(1);
        let parts: Vec<Value> =
            records.chunks(size).map(|part| Arc::new(Part::whole(part.to_vec())) as Value).collect();
        let partition = Partition { place: Place::Memory, stratum: 0 };
        let node = Node {
            partitions: vec![partition; parts.len()],
            population: vec![parts.len() as u64],
            basis: Basis::default(),
            work: Work::Load(Arc::new(move |i| Ok(parts[i].clone()))),
        };
        Ldd::of(Arc::new(node), available_threads())
    }

    /// The same set, computed by so many threads; beside them each disk has one. As many as there are CPUs by default.
    #[must_use]
    pub fn with_threads(mut self, threads: usize) -> Ldd<T> {
        self.threads = threads;
        self
    }

    /// The partitions: where each lies.
    pub fn partitions(&self) -> &[Partition] {
        &self.node.partitions
    }

    fn derive<U: Data>(
        &self,
        basis: Basis,
        f: impl Fn(usize, Part<T>) -> Result<Part<U>, Error> + Send + Sync + 'static,
    ) -> Ldd<U> {
        let compute = move |i, value| Ok(Arc::new(f(i, typed::<Part<T>>(value))?) as Value);
        Ldd::of(Node::map(&self.node, basis, Arc::new(compute)), self.threads)
    }

    /// Applies `f` to each record.
    pub fn map<U: Data>(&self, f: impl Fn(T) -> U + Send + Sync + 'static) -> Ldd<U> {
        self.derive(self.node.basis, move |_, part| Ok(part.map(&f)))
    }

    /// Applies `f` to each record and takes all that it gives.
    pub fn flat_map<U: Data, I: IntoIterator<Item = U>>(&self, f: impl Fn(T) -> I + Send + Sync + 'static) -> Ldd<U> {
        self.derive(self.node.basis, move |_, part| Ok(part.flat_map(&f)))
    }

    /// Keeps the records for which `keep` is true.
    pub fn filter(&self, keep: impl Fn(&T) -> bool + Send + Sync + 'static) -> Ldd<T> {
        self.derive(self.node.basis, move |_, part| Ok(part.filter(&keep)))
    }

    /// Replaces the records of each partition; nothing can be estimated from a row sample afterwards.
    pub(super) fn map_partitions<U: Data>(&self, f: impl Fn(Vec<T>) -> Vec<U> + Send + Sync + 'static) -> Ldd<U> {
        let basis = Basis { merged: self.node.basis.merged || self.node.basis.rows_sampled, ..self.node.basis };
        self.derive(basis, move |_, part| Ok(Part::whole(f(part.items))))
    }

    /// Samples inside each partition: a share of its records, two at least, without replacement. All of the partition is
    /// read.
    ///
    /// # Errors
    /// The ratio is not above 0 and at most 1.
    pub fn sample(&self, ratio: f64, seed: u64) -> Result<Ldd<T>, Error> {
        let ratio = checked_ratio(ratio)?;
        let basis = Basis { rows_sampled: self.node.basis.rows_sampled || ratio < 1.0, ..self.node.basis };
        Ok(self.derive(basis, move |i, part| {
            let seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(i as u64);
            Ok(part.sample(ratio, &mut StdRng::seed_from_u64(seed)))
        }))
    }

    /// Samples between partitions: the same number from each disk. Others are not read.
    ///
    /// # Errors
    /// The ratio is not above 0 and at most 1.
    pub fn sample_partitions(&self, ratio: f64, seed: u64) -> Result<Ldd<T>, Error> {
        self.sample_partitions_with(&PartitionSampling { ratio, shares: Shares::Equal, drop: 0.0, seed })
    }

    /// Samples between partitions. Each disk gives 24 partitions at least, or all that it has: the estimates need them.
    ///
    /// # Errors
    /// The ratio is not above 0 and at most 1, a speed is not given for each group of partitions, or stragglers shall be
    /// dropped and a group lies on several disks.
    pub fn sample_partitions_with(&self, sampling: &PartitionSampling) -> Result<Ldd<T>, Error> {
        let ratio = checked_ratio(sampling.ratio)?;
        self.check_sampling(sampling)?;
        let strata: Vec<usize> = self.node.partitions.iter().map(|partition| partition.stratum).collect();
        let selection = Selection::new(
            &strata,
            self.node.population.len(),
            ratio,
            sampling.shares.clone(),
            sampling.drop,
            sampling.seed,
        );
        let chosen = selection.chosen();
        let partitions: Vec<Partition> = chosen.iter().map(|i| self.node.partitions[*i].clone()).collect();
        // Even if all are selected, some may be dropped.
        let left_out = selection.needed() < strata.len() as u64;
        let basis = Basis { partitions_sampled: self.node.basis.partitions_sampled || left_out, ..self.node.basis };
        let node = Node {
            partitions,
            population: self.node.population.clone(),
            basis,
            work: Work::Select(self.node.clone(), chosen, Arc::new(selection)),
        };
        Ok(Ldd::of(Arc::new(node), self.threads))
    }

    fn check_sampling(&self, sampling: &PartitionSampling) -> Result<(), Error> {
        let groups = self.node.population.len();
        if let Shares::Speeds(speeds) = &sampling.shares
            && (speeds.len() != groups || speeds.iter().any(|speed| !speed.is_finite() || *speed < 0.0))
        {
            let given = speeds.len();
            return Err(Error::Question(format!("{given} speeds for {groups} disks; give one of 0 or more for each")));
        }
        if !(0.0..=10.0).contains(&sampling.drop) {
            return Err(Error::Question(format!("a drop of {}: give a number from 0 to 10", sampling.drop)));
        }
        if sampling.drop > 0.0 && self.node.devices().iter().any(|devices| devices.len() > 1) {
            let message = "partitions that were sampled before they were persisted lie on several disks: those of a slow \
                           disk cannot be dropped without bias; sample them with drop 0";
            return Err(Error::Question(message.to_string()));
        }
        Ok(())
    }

    /// Computes the set; partitions that were dropped are missing.
    fn run(&self) -> Result<Vec<(usize, Value)>, Error> {
        let values = driver::run(Plan::of(&self.node, None), self.threads, None)?;
        Ok(values.into_iter().enumerate().filter_map(|(i, value)| Some((i, value?))).collect())
    }

    /// All records, partition by partition, as they were sampled.
    ///
    /// # Errors
    /// A partition cannot be read, or a closure panicked.
    pub fn collect(&self) -> Result<Vec<T>, Error> {
        let parts = self.run()?;
        Ok(parts.into_iter().flat_map(|(_, value)| typed::<Part<T>>(value).items).collect())
    }

    /// Number of records that [`collect`](Ldd::collect) would give. `sum(|_| 1.0, …)` estimates the number without the
    /// sample.
    ///
    /// # Errors
    /// As [`collect`](Ldd::collect).
    pub fn count(&self) -> Result<u64, Error> {
        let counts = self.compute(|part| part.items.len() as u64);
        Ok(counts.run()?.into_iter().map(|(_, value)| typed::<u64>(value)).sum())
    }

    /// A set whose tasks yield something else than records.
    pub(super) fn compute<V: Data>(&self, f: impl Fn(Part<T>) -> V + Send + Sync + 'static) -> Ldd<V> {
        let compute = move |_, value| Ok(Arc::new(f(typed::<Part<T>>(value))) as Value);
        Ldd::of(Node::map(&self.node, self.node.basis, Arc::new(compute)), self.threads)
    }

    /// The sum of a value over all records, those included that were not sampled: equations 1.1 to 1.3 for each disk,
    /// added. Exact if the set was not sampled.
    ///
    /// # Errors
    /// As [`collect`](Ldd::collect); or the records of a sample were merged by key, joined, or are none.
    pub fn sum(&self, value: impl Fn(&T) -> f64 + Send + Sync + 'static, confidence: f64) -> Result<Estimate, Error> {
        if !(0.0..1.0).contains(&confidence) {
            return Err(Error::Question(format!("a confidence of {confidence}: give a number from 0 to below 1")));
        }
        if self.node.basis.merged {
            let message = "a sum cannot be estimated from records of a sample that were merged; sum before reducing or \
                           joining, or do not sample";
            return Err(Error::Question(message.to_string()));
        }
        let arrived = self.compute(move |part| part.moments(&value)).run()?;
        let mut strata = vec![Vec::new(); self.node.population.len()];
        for (i, value) in arrived {
            strata[self.node.partitions[i].stratum].push(typed::<PartitionSample>(value));
        }
        Ok(total(&self.node.population, &strata, self.node.basis, confidence))
    }
}

/// Adds the totals of strata. Degrees of freedom follow Satterthwaite, since strata have unequal variances.
fn total(population: &[u64], strata: &[Vec<PartitionSample>], basis: Basis, confidence: f64) -> Estimate {
    let (mut value, mut variance, mut by_freedom, mut units, mut known) = (0.0, 0.0, 0.0, 0, true);
    let (mut rounded, mut whole) = (0.0, true);
    for (all, samples) in population.iter().zip(strata).filter(|(all, _)| **all > 0) {
        known &= samples.len() as u64 >= 2.min(*all);
        whole &= is_whole(*all, samples);
        units += samples.len() as u64;
        if samples.is_empty() {
            continue;
        }
        let part = two_stage_total(*all, samples, confidence);
        let part_variance = part.standard_error.powi(2);
        rounded += rounded_variance(*all, samples);
        value += part.value;
        variance += part_variance;
        by_freedom += part_variance.powi(2) / (samples.len() as f64 - 1.0).max(1.0);
    }
    if !basis.is_sampled() || whole {
        return Estimate::exact(value, units);
    }
    let freedom = if by_freedom > 0.0 { variance * variance / by_freedom } else { f64::MAX };
    let half = t_quantile(confidence, freedom) * variance.sqrt();
    // A variance that rounding may make up says nothing about what was not sampled.
    let is_known = known && variance.is_finite() && variance > rounded;
    Estimate {
        low: value - half,
        high: value + half,
        standard_error: variance.sqrt(),
        claimed: is_known && units >= crate::estimate::RARE_UNITS.min(population.iter().sum()),
        ..Estimate::exact(value, units)
    }
}

/// Gives partitions that are only decoded the places of what they are decoded from.
pub(super) fn located(node: Arc<Node>, stored: &Node) -> Arc<Node> {
    let mut node = Arc::into_inner(node).expect("it was made just now");
    node.partitions = stored.partitions.clone();
    Arc::new(node)
}
