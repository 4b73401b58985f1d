//! Sets of the records of files.

use super::part::Part;
use super::partition::{Partition, Place};
use super::plan::{Basis, Node, Value, Work};
use super::set::{Data, Ldd, available_threads, located, typed};
use crate::error::Error;
use crate::format::{Block, lines};
use crate::layout::{Layout, Unit};
use crate::source::{DiskIndex, Source};
use std::sync::Arc;

/// Finds the records of a unit. Each record belongs to exactly one unit, whatever the cuts are.
pub trait Decoder: Send + Sync + 'static {
    /// What a record is.
    type Record: Data;

    /// Reads a unit, and what is needed beyond it to have whole records. Runs on the disk's thread.
    ///
    /// # Errors
    /// The file cannot be read.
    fn load(&self, source: &dyn Source, unit: Unit) -> Result<Block, Error>;

    /// The records of a unit. Runs on a computing thread and does no I/O.
    ///
    /// # Errors
    /// A record is malformed.
    fn decode(&self, block: &Block, file: &str) -> Result<Vec<Self::Record>, Error>;
}

/// Text: a record is a line without its line break. Bytes that are not UTF-8 become U+FFFD. A line belongs to the unit
/// in which the line break before it lies.
#[derive(Debug, Clone, Copy, Default)]
pub struct Lines;

impl Decoder for Lines {
    type Record = String;

    fn load(&self, source: &dyn Source, unit: Unit) -> Result<Block, Error> {
        lines::load(source, unit, Vec::new())
    }

    fn decode(&self, block: &Block, _file: &str) -> Result<Vec<String>, Error> {
        let mut records = Vec::new();
        lines::for_each::<Error>(block.records(), |_, line| {
            records.push(String::from_utf8_lossy(line).into_owned());
            Ok(())
        })?;
        Ok(records)
    }
}

/// Raw bytes: a record is a unit.
#[derive(Debug, Clone, Copy, Default)]
pub struct Bytes;

impl Decoder for Bytes {
    type Record = Vec<u8>;

    fn load(&self, source: &dyn Source, unit: Unit) -> Result<Block, Error> {
        let bytes = source.read_vec(unit.file, unit.offset, unit.len_bytes)?;
        Ok(Block { unit, offset: unit.offset, records: 0..bytes.len(), bytes })
    }

    fn decode(&self, block: &Block, _file: &str) -> Result<Vec<Vec<u8>>, Error> {
        Ok(vec![block.records().to_vec()])
    }
}

/// All units of a source with their disks, in the order of files and offsets.
fn units(source: &dyn Source, unit_bytes: u64) -> Vec<(Unit, DiskIndex)> {
    let layout = Layout::new(source.runs(), source.disks().len(), unit_bytes);
    let mut units = Vec::new();
    for (h, stratum) in layout.strata.iter().enumerate() {
        units.extend((0..stratum.units).map(|i| (layout.unit(h, i), stratum.disk)));
    }
    units.sort_unstable();
    units
}

fn partitions(source: &dyn Source, units: &[(Unit, DiskIndex)]) -> Vec<Partition> {
    let disks: Vec<Arc<str>> = source.disks().iter().map(|name| name.as_str().into()).collect();
    let files: Vec<Arc<str>> = source.files().iter().map(|file| file.name.as_str().into()).collect();
    let place = |unit: &Unit, disk: DiskIndex| Place::Disk {
        disk: disks[disk as usize].clone(),
        file: files[unit.file as usize].clone(),
        offset: unit.offset,
        len_bytes: unit.len_bytes,
    };
    units.iter().map(|(unit, disk)| Partition { place: place(unit, *disk), stratum: *disk as usize }).collect()
}

impl<T: Data> Ldd<T> {
    /// The records of files: a partition is a unit of `unit_bytes`, or a shorter one at the end of a range on a disk.
    ///
    /// # Errors
    /// `unit_bytes` is 0.
    pub fn read<D: Decoder<Record = T>>(source: Arc<dyn Source>, unit_bytes: u64, decoder: D) -> Result<Ldd<T>, Error> {
        if unit_bytes == 0 {
            return Err(Error::Question("partitions of 0 bytes; 8192 is a good size".to_string()));
        }
        let units = units(&*source, unit_bytes);
        let partitions = partitions(&*source, &units);
        let mut population = vec![0; source.disks().len()];
        partitions.iter().for_each(|partition| population[partition.stratum] += 1);
        let decoder = Arc::new(decoder);
        let (load_source, load_decoder) = (source.clone(), decoder.clone());
        let load = move |i: usize| {
            let (unit, _) = units[i];
            Ok(Arc::new(load_decoder.load(&*load_source, unit)?) as Value)
        };
        let work = Work::Load(Arc::new(load));
        let stored = Arc::new(Node { partitions, population, basis: Basis::default(), work });
        let decode = move |_: usize, value: Value| {
            let block = typed::<Block>(value);
            let file = &source.files()[block.unit.file as usize].name;
            Ok(Arc::new(Part::whole(decoder.decode(&block, file)?)) as Value)
        };
        let node = Node::map(&stored, Basis::default(), Arc::new(decode));
        Ok(Ldd::of(located(node, &stored), available_threads()))
    }
}
