//! Intervals of sums and means hold where units are clusters and values are skewed: samples of units with few large values.
//!
//! The sums of units are drawn once for each population, and a sample is a choice of units, so that thousands of samples
//! take a second. Seeds are fixed.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tessera_sampling::estimate::{GroupMoments, Moments, Population, Quantity, StratumSample};

const CONFIDENCE: f64 = 0.95;
const SAMPLES: u64 = 10_000;
const UNITS: usize = 3000;

/// How values lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Law {
    /// Normal values with the same mean everywhere.
    Normal,
    /// As `Normal`, but far from 0: hardly a digit of cubes tells how they differ.
    NormalFarFromZero,
    /// Values of a unit share a factor of a lognormal law.
    Lognormal,
    /// As `Lognormal`, and units with more records have larger values.
    LognormalOfBursts,
    /// Values of a unit share a factor of Pareto's law.
    Pareto,
    /// As `Lognormal`, but negative.
    NegativeLognormal,
}

/// Units by stratum.
struct Units {
    strata: Vec<Vec<Moments>>,
}

/// Shares of samples that missed the truth, because their interval lay below it or above it.
#[derive(Debug, Default)]
struct Misses {
    below: f64,
    above: f64,
}

/// A number of the standard normal law (Box and Muller).
fn normal(rng: &mut StdRng) -> f64 {
    let (radius, angle) = (rng.random_range(f64::MIN_POSITIVE..1.0), rng.random_range(0.0..std::f64::consts::TAU));
    (-2.0 * f64::ln(radius)).sqrt() * f64::cos(angle)
}

fn unit(law: Law, rng: &mut StdRng) -> Moments {
    let factor = normal(rng);
    let records = match law {
        Law::LognormalOfBursts => 4.0 * (0.8 * (0.6 * factor + 0.8 * normal(rng))).exp(),
        _ => rng.random_range(10.0..70.0),
    };
    let base = match law {
        Law::Normal => 50.0,
        Law::NormalFarFromZero => 3e6,
        Law::Lognormal | Law::LognormalOfBursts => factor.exp(),
        Law::NegativeLognormal => -factor.exp(),
        Law::Pareto => rng.random_range(f64::MIN_POSITIVE..1.0).powf(-1.0 / 2.5),
    };
    let mut moments = Moments::default();
    for _ in 0..records.ceil() as u64 {
        let value = match law {
            Law::Normal | Law::NormalFarFromZero => base + 10.0 * normal(rng),
            _ => base * (0.5 * normal(rng)).exp(),
        };
        moments += Moments { count: 1.0, sum: value, squares: value * value };
    }
    moments
}

impl Units {
    fn new(law: Law, strata: usize) -> Units {
        let mut rng = StdRng::seed_from_u64(3);
        let mut stratum = || (0..UNITS / strata).map(|_| unit(law, &mut rng)).collect();
        Units { strata: (0..strata).map(|_| stratum()).collect() }
    }

    fn truth(&self, quantity: Quantity) -> f64 {
        let mut all = Moments::default();
        self.strata.iter().flatten().for_each(|unit| all += *unit);
        match quantity {
            Quantity::Count => all.count,
            Quantity::Sum => all.sum,
            Quantity::Mean => all.sum / all.count,
        }
    }

    /// Samples with so many units in all.
    fn misses(&self, sampled: usize, quantity: Quantity) -> Misses {
        let (mut misses, truth) = (Misses::default(), self.truth(quantity));
        for seed in 0..SAMPLES {
            let mut rng = StdRng::seed_from_u64(seed);
            let (mut samples, mut moments) = (Vec::new(), Vec::new());
            for units in &self.strata {
                let (units_of, size) = (units.len() as u64, units.len() as f64);
                let mut sample = StratumSample { units: units_of, size, ..Default::default() };
                let mut found = GroupMoments::default();
                for at in rand::seq::index::sample(&mut rng, units.len(), sampled / self.strata.len()) {
                    sample.add_unit(1.0);
                    found.add_unit(units[at], 1.0);
                }
                samples.push(sample);
                moments.push(found);
            }
            let group: Vec<_> = moments.iter().copied().enumerate().collect();
            let found = Population::new(&samples, &moments, CONFIDENCE).estimate(quantity, &group);
            assert!(found.claimed, "{sampled} units are enough");
            misses.below += f64::from(u8::from(found.high < truth)) / SAMPLES as f64;
            misses.above += f64::from(u8::from(found.low > truth)) / SAMPLES as f64;
        }
        misses
    }
}

/// Each population with a number of strata, of sampled units, and the least coverage that is asked. Where a few units hold
/// most of a sum, as with Pareto's law, whose third moment is infinite, no sample that misses them shows it.
const CASES: [(Law, usize, usize, f64); 10] = [
    (Law::Normal, 1, 60, 0.94),
    (Law::NormalFarFromZero, 4, 60, 0.94),
    (Law::Lognormal, 1, 60, 0.93),
    (Law::Lognormal, 1, 200, 0.935),
    (Law::Lognormal, 4, 100, 0.935),
    (Law::Lognormal, 10, 60, 0.935),
    (Law::NegativeLognormal, 1, 100, 0.93),
    (Law::LognormalOfBursts, 1, 100, 0.90),
    (Law::LognormalOfBursts, 4, 200, 0.925),
    (Law::Pareto, 4, 200, 0.89),
];

/// Checks that intervals cover as often as is asked, and not much more often.
fn check(quantity: Quantity) {
    let mut wrong = String::new();
    for (law, strata, sampled, least) in CASES {
        let misses = Units::new(law, strata).misses(sampled, quantity);
        let coverage = 1.0 - misses.below - misses.above;
        let found = format!(
            "{quantity:?}, {law:?}, {strata} strata, {sampled} units: covered {:.1} %, below {:.1} %, above {:.1} %\n",
            100.0 * coverage,
            100.0 * misses.below,
            100.0 * misses.above
        );
        print!("{found}");
        if !(least..=0.975).contains(&coverage) {
            wrong += &found;
        }
    }
    assert!(wrong.is_empty(), "intervals of 95 %:\n{wrong}");
}

#[test]
fn intervals_of_sums_cover_skewed_clusters() {
    check(Quantity::Sum);
}

#[test]
fn intervals_of_means_cover_skewed_clusters() {
    check(Quantity::Mean);
}
