//! Distribution of response times, in bounded memory.

use crate::device::Ns;

/// Steps within a factor of two: a quantile is off by less than 1 %.
const STEPS: u64 = 128;

/// Counts of response times.
#[derive(Debug, Clone)]
pub struct Histogram {
    counts: Vec<u64>,
    len: u64,
    sum: u128,
    max: Ns,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: vec![0; bucket(u64::MAX) + 1], len: 0, sum: 0, max: 0 }
    }
}

fn bucket(ns: Ns) -> usize {
    if ns < STEPS {
        return ns as usize;
    }
    let shift = (u64::BITS - ns.leading_zeros()) - STEPS.trailing_zeros() - 1;
    (u64::from(shift + 1) * STEPS + (ns >> shift) - STEPS) as usize
}

/// The middle of a bucket.
fn value(bucket: usize) -> Ns {
    let (octave, step) = (bucket as u64 / STEPS, bucket as u64 % STEPS);
    match octave {
        0 => step,
        _ => {
            let shift = octave - 1;
            ((STEPS + step) << shift) + (1 << shift) / 2
        }
    }
}

impl Histogram {
    /// Adds a response time.
    pub fn add(&mut self, ns: Ns) {
        self.counts[bucket(ns)] += 1;
        self.len += 1;
        self.sum += u128::from(ns);
        self.max = self.max.max(ns);
    }

    /// Times within 1 %, with how often each came.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (Ns, u64)> + '_ {
        (0..).zip(&self.counts).filter(|(_, count)| **count > 0).map(|(bucket, count)| (value(bucket), *count))
    }

    /// How many there are.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The exact mean; 0 of none.
    pub fn mean(&self) -> f64 {
        self.sum as f64 / self.len.max(1) as f64
    }

    /// All times together.
    pub fn sum(&self) -> u128 {
        self.sum
    }

    /// The longest.
    pub fn max(&self) -> Ns {
        self.max
    }

    /// A response time that the share `p` (0 to 1) of all does not exceed; within 1 %.
    pub fn quantile(&self, p: f64) -> Ns {
        let rank = ((self.len as f64 * p).ceil() as u64).clamp(1, self.len.max(1));
        let mut seen = 0;
        for (i, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return value(i).min(self.max);
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_one_percent() {
        let mut histogram = Histogram::default();
        (1..=100_000u64).for_each(|n| histogram.add(n * 1_000));
        for (p, exact) in [(0.5, 50_000_000.0), (0.99, 99_000_000.0), (0.999, 99_900_000.0)] {
            let found = histogram.quantile(p) as f64;
            assert!((found / exact - 1.0).abs() < 0.01, "{p}: {found}");
        }
        assert_eq!((histogram.mean(), histogram.max(), histogram.len()), (50_000_500.0, 100_000_000, 100_000));
    }

    #[test]
    fn every_time_has_a_bucket() {
        for ns in [0, 1, 127, 128, 129, 255, 256, 1 << 40, u64::MAX] {
            let near = value(bucket(ns)) as f64;
            assert!((near - ns as f64).abs() <= ns as f64 * 0.01, "{ns}: {near}");
        }
        assert_eq!((Histogram::default().quantile(0.5), Histogram::default().mean()), (0, 0.0));
    }
}
