//! Random draws: from counted values, and from a Zipf distribution.

use tessera_disk::SplitMix64;

/// A number from 0 to below 1.
pub fn uniform(rng: &mut SplitMix64) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

/// Draws values as often as they were counted.
#[derive(Debug, Clone)]
pub struct Counted<T> {
    /// Each value with the count up to it, itself included.
    values: Vec<(u64, T)>,
}

impl<T: Copy> Counted<T> {
    /// Values with their counts.
    pub fn new(counts: impl IntoIterator<Item = (T, u64)>) -> Self {
        let mut sum = 0;
        let counted = counts.into_iter().filter(|(_, count)| *count > 0).map(|(value, count)| {
            sum += count;
            (sum, value)
        });
        Counted { values: counted.collect() }
    }

    /// A value; `None` if nothing was counted.
    pub fn draw(&self, rng: &mut SplitMix64) -> Option<T> {
        let total = self.values.last()?.0;
        let at = rng.below(total);
        Some(self.values[self.values.partition_point(|(sum, _)| *sum <= at)].1)
    }
}

/// Ranks from 0 with a probability proportional to 1 / (rank + 1)^theta, by rejection-inversion (W. Hörmann, G. Derflinger: "Rejection-inversion
/// to generate variates from monotone discrete distributions", ACM TOMACS 6(3), 1996).
#[derive(Debug, Clone)]
pub struct Zipf {
    count: f64,
    theta: f64,
    /// The integral of the density at both ends, and where a draw is accepted at once.
    low: f64,
    high: f64,
    shortcut: f64,
}

impl Zipf {
    /// So many ranks; `theta` 0 is uniform.
    pub fn new(count: u64, theta: f64) -> Self {
        let count = count.max(1) as f64;
        let mut zipf = Zipf { count, theta, low: 0.0, high: 0.0, shortcut: 0.0 };
        zipf.low = zipf.integral(1.5) - 1.0;
        zipf.high = zipf.integral(count + 0.5);
        zipf.shortcut = 2.0 - zipf.inverse(zipf.integral(2.5) - 2f64.powf(-theta));
        zipf
    }

    /// The integral of x^-theta.
    fn integral(&self, x: f64) -> f64 {
        let (log, rest) = (x.ln(), 1.0 - self.theta);
        if rest.abs() < 1e-9 { log } else { (rest * log).exp_m1() / rest }
    }

    fn inverse(&self, y: f64) -> f64 {
        let rest = 1.0 - self.theta;
        if rest.abs() < 1e-9 { y.exp() } else { ((y * rest).max(-1.0).ln_1p() / rest).exp() }
    }

    /// A rank.
    pub fn draw(&self, rng: &mut SplitMix64) -> u64 {
        loop {
            let y = self.high + uniform(rng) * (self.low - self.high);
            let x = self.inverse(y);
            let rank = x.round().clamp(1.0, self.count);
            if rank - x <= self.shortcut || y >= self.integral(rank + 0.5) - rank.powf(-self.theta) {
                return rank as u64 - 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_as_frequent_as_the_formula_says() {
        for theta in [0.0, 0.5, 0.99, 1.0, 1.5] {
            let (zipf, mut rng, mut counts) = (Zipf::new(50, theta), SplitMix64::new(1), [0u32; 50]);
            for _ in 0..200_000 {
                counts[zipf.draw(&mut rng) as usize] += 1;
            }
            let weight = |rank: usize| (rank as f64 + 1.0).powf(-theta);
            let total: f64 = (0..50).map(weight).sum();
            for (rank, count) in counts.iter().enumerate() {
                let expected = 200_000.0 * weight(rank) / total;
                let off = (f64::from(*count) - expected).abs();
                assert!(off < 5.0 * expected.sqrt() + 1.0, "rank {rank} of theta {theta}: {count}, not {expected:.0}");
            }
        }
        assert_eq!(Zipf::new(1, 1.0).draw(&mut SplitMix64::new(3)), 0);
    }

    #[test]
    fn values_come_as_often_as_they_were_counted() {
        let (counted, mut rng) = (Counted::new([('a', 1), ('b', 0), ('c', 3)]), SplitMix64::new(7));
        let drawn: Vec<char> = (0..4_000).filter_map(|_| counted.draw(&mut rng)).collect();
        let count = |c| drawn.iter().filter(|other| **other == c).count();
        assert!((900..1100).contains(&count('a')) && count('b') == 0 && count('a') + count('c') == 4_000);
        assert_eq!(Counted::<u8>::new([]).draw(&mut rng), None);
    }
}
