//! How fast disks are: measured by reads of some units at random places, of all disks at the same time, as a sample reads them.

use super::Source;
use crate::error::Error;
use crate::layout::{Layout, Unit};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::time::Instant;

/// Units that are read of each disk.
const PROBES: u64 = 8;
/// The most bytes that are read of a unit: a row group has many.
const PROBE_BYTES_MAX: u64 = 1 << 20;

/// Bytes a second of each disk, for [`Shares::Speeds`](crate::schedule::Shares::Speeds); 0 for one without units. What other
/// programs ask of a disk meanwhile, and what the system has cached, is in it.
///
/// # Errors
/// A file cannot be read or has changed.
pub fn measure_speeds(source: &dyn Source, layout: &Layout, seed: u64) -> Result<Vec<f64>, Error> {
    std::thread::scope(|scope| {
        let measure = |disk| scope.spawn(move || speed(source, layout, disk, seed));
        let disks: Vec<_> = (0..layout.disks).map(measure).collect();
        disks.into_iter().map(|disk| disk.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}

fn speed(source: &dyn Source, layout: &Layout, disk: usize, seed: u64) -> Result<f64, Error> {
    let strata: Vec<usize> = (0..layout.strata.len()).filter(|h| layout.strata[*h].disk as usize == disk).collect();
    if strata.is_empty() {
        return Ok(0.0);
    }
    let mut rng = StdRng::seed_from_u64(seed ^ disk as u64);
    let (start, mut bytes) = (Instant::now(), 0);
    for _ in 0..PROBES {
        let h = strata[rng.random_range(0..strata.len())];
        let Unit { file, offset, len_bytes, .. } = layout.unit(h, rng.random_range(0..layout.strata[h].units));
        bytes += source.read_vec(file, offset, len_bytes.min(PROBE_BYTES_MAX))?.len();
    }
    Ok(bytes as f64 / start.elapsed().as_secs_f64().max(1e-9))
}
