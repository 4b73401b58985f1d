//! Sets that are written to disks and read back from there.

use super::driver;
use super::logs::{Logs, Stored};
use super::part::Part;
use super::partition::{Partition, Place};
use super::plan::{Node, Plan, Value, Work};
use super::record::Record;
use super::set::{Data, Ldd, located, typed};
use crate::error::Error;
use std::sync::Arc;

impl<T: Data + Record> Ldd<T> {
    /// Computes the set and writes it to disks; the set that is returned reads it from there, by the places that its
    /// partitions have. What was sampled stays sampled. Returns once all files are synced.
    ///
    /// # Errors
    /// As [`collect`](Ldd::collect); or a disk cannot store its part, and is named. What was written before stays in the
    /// files, unused.
    pub fn persist(&self, logs: &Arc<Logs>) -> Result<Ldd<T>, Error> {
        let encoded = self.compute(|part| part.encode());
        let values = driver::run(Plan::of(&encoded.node, Some(logs)), self.threads, Some(logs.clone()))?;
        logs.sync()?;
        let stored = values.into_iter().enumerate().filter_map(|(i, value)| Some((i, typed::<Stored>(value?))));
        let stored: Vec<(usize, Stored)> = stored.collect();
        let partitions: Vec<Partition> = stored.iter().map(|(i, stored)| self.stored_partition(*i, stored)).collect();
        let population = self.stored_population(&partitions, logs.names().len());
        let (logs, stored): (_, Vec<Stored>) = (logs.clone(), stored.into_iter().map(|(_, stored)| stored).collect());
        let load = move |i: usize| Ok(Arc::new(logs.read(&stored[i])?) as Value);
        let node = Node { partitions, population, basis: self.node.basis, work: Work::Load(Arc::new(load)) };
        Ok(Ldd::of(decoded::<T>(&Arc::new(node)), self.threads))
    }

    /// An unsampled set is sampled by its new disks from now on; the groups of a sample are those it was drawn from.
    fn stored_partition(&self, i: usize, stored: &Stored) -> Partition {
        let sampled = self.node.basis.partitions_sampled;
        let stratum = if sampled { self.node.partitions[i].stratum } else { stored.disk };
        Partition { place: stored.place.clone(), stratum }
    }

    fn stored_population(&self, partitions: &[Partition], disks: usize) -> Vec<u64> {
        if self.node.basis.partitions_sampled {
            return self.node.population.clone();
        }
        let mut population = vec![0; disks];
        partitions.iter().for_each(|partition| population[partition.stratum] += 1);
        population
    }
}

/// The records of stored partitions, which keep their places.
fn decoded<T: Data + Record>(stored: &Arc<Node>) -> Arc<Node> {
    let places: Vec<Place> = stored.partitions.iter().map(|partition| partition.place.clone()).collect();
    let compute = move |i: usize, value: Value| {
        let part = Part::<T>::decode(&typed::<Vec<u8>>(value)).ok_or_else(|| damaged(&places[i]))?;
        Ok(Arc::new(part) as Value)
    };
    located(Node::map(stored, stored.basis, Arc::new(compute)), stored)
}

/// A partition is not what was written.
pub(super) fn damaged(place: &Place) -> Error {
    let Place::Disk { file, offset, .. } = place else { unreachable!("stored partitions are on disks") };
    let message = "the partition is not as it was written; persist the set again".to_string();
    Error::Record { file: file.to_string(), offset: *offset, message }
}
