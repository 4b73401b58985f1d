//! Totals and means of groups over stratified clusters.
//!
//! A total is the expanded total corrected by regression on the size of units (Cochran, chapter 7), or by their ratio
//! where sizes hardly vary (chapter 6): where larger units hold more of a group, the error that comes from having drawn
//! larger or smaller units than average is taken out. Sizes of a stratum count by what a byte of it holds of the group. With
//! equal units it is the plain Horvitz–Thompson estimate, equation 1.1 of ApproxSSD with all records of a unit read. A
//! mean is the ratio of two totals; its error is that of the total of residuals, sum − mean · count of units (chapter 6).
//! Degrees of freedom follow Satterthwaite, since strata have unequal variances.

use super::two_stage::at_least_0;
use super::{Estimate, GroupMoments, GroupTotal, RARE_UNITS, StratumSample, every_stratum_is_seen, t_quantile};

/// What is estimated of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantity {
    /// Number of records.
    Count,
    /// Sum of values.
    Sum,
    /// Mean of values.
    Mean,
}

/// Degrees of freedom that the variance in all strata adds to that in one.
const PRIOR_FREEDOM: f64 = 1.0;

/// Relative variation of sizes from which on it tells more about their effect than the assumption of proportionality.
const WELL_SPREAD: f64 = 0.1;

/// Share of the variance from which on sizes explain nothing of it.
const UNEXPLAINED: f64 = 0.9;

/// Units of a stratum of several files from which on more than half of what a byte holds is taken from the stratum's own units. Few would make
/// the correction for sizes depend on which were drawn: the bias of separate ratios is one by the number of units in *each* stratum
/// (Cochran, section 6.11), so it does not vanish where many strata give two units.
const OWN_DENSITY_UNITS: f64 = 128.0;

/// The strata, and how sure intervals shall be.
#[derive(Debug, Clone)]
pub struct Population<'a> {
    strata: &'a [StratumSample],
    confidence: f64,
    /// Records of the sample, for design effects.
    sampled_records: f64,
    /// Estimated number of all records.
    records: f64,
    /// Size of all strata, relative to those of which something arrived.
    size_of_seen: f64,
    sizes: CommonSizes,
}

/// How a group depends on the size of its units.
struct SizeEffect {
    /// Slope relative to that of proportionality.
    elasticity: f64,
    /// What a byte holds in all strata of several files together.
    density: f64,
    /// Sizes vary by more than [`WELL_SPREAD`].
    sizes_differ: bool,
}

/// What a byte of a stratum's own sampled units holds of a quantity, weighted; `sum` is that over these units.
fn own_density(stratum: &StratumSample, sum: f64) -> f64 {
    (1.0 - common_weight(stratum)) * sum / stratum.sampled_size.max(1.0)
}

/// Weight of what a byte holds in all strata of several files together; 0 for a file, whose units are of one length but for the last.
fn common_weight(stratum: &StratumSample) -> f64 {
    if stratum.of_several_files { 1.0 / (1.0 + (stratum.sampled as f64 / OWN_DENSITY_UNITS).powi(2)) } else { 0.0 }
}

/// Relative variation of sizes that counts as none.
fn small_spread(stratum: &StratumSample) -> f64 {
    WELL_SPREAD * stratum.sampled_size / stratum.sampled.max(1) as f64
}

/// Sums over all strata, by the weight of what their bytes hold in common.
#[derive(Debug, Clone, Copy, Default)]
struct CommonSizes {
    /// Σ weight · expanded size of what was sampled.
    expanded: f64,
    /// Σ weight · error of the expanded size.
    error: f64,
    /// Σ weight² · variance of the expanded size.
    variance: f64,
    /// The same of sizes that vary by [`WELL_SPREAD`].
    spread_variance: f64,
}

impl CommonSizes {
    fn of(strata: &[StratumSample]) -> CommonSizes {
        let mut sums = CommonSizes::default();
        for stratum in strata {
            let (weight, factor) = (common_weight(stratum), stratum.variance_factor());
            sums.expanded += weight * stratum.expansion() * stratum.sampled_size;
            sums.error += weight * stratum.size_error();
            sums.variance += weight * weight * factor * stratum.size_variance();
            sums.spread_variance += weight * weight * factor * small_spread(stratum).powi(2);
        }
        sums
    }
}

/// Variances between the units of strata, from which that of the sum of their expanded totals follows.
#[derive(Default)]
struct Spread {
    strata: Vec<StratumSpread>,
    /// What rounding may make of the variance of the sum.
    rounded: f64,
}

/// How a quantity differs between the units of a stratum.
struct StratumSpread {
    stratum: StratumSample,
    variance: f64,
    /// Third cumulant; 0 where it is not known.
    third: f64,
}

/// What follows for the sum of expanded totals.
struct SumSpread {
    variance: f64,
    skewness: f64,
    degrees_of_freedom: f64,
}

impl StratumSpread {
    fn freedom(&self) -> f64 {
        self.stratum.sampled.saturating_sub(1) as f64
    }
}

impl Spread {
    /// `terms` is the size of what was added up to the sum of squares.
    fn add(&mut self, stratum: &StratumSample, variance: f64, terms: f64, third: f64) {
        self.rounded += stratum.variance_factor() * stratum.rounded_variance(terms);
        self.strata.push(StratumSpread { stratum: *stratum, variance: at_least_0(variance), third });
    }

    /// The units that were drawn do not differ by more than rounding. That the others do not either is not known: values
    /// that are rare may all lie there.
    fn is_rounding(&self) -> bool {
        self.strata.iter().map(|s| s.stratum.variance_factor() * s.variance).sum::<f64>() <= self.rounded
    }

    /// 0 where no stratum has two units: nothing is known of how they differ.
    fn freedom(&self) -> f64 {
        self.strata.iter().map(StratumSpread::freedom).sum()
    }

    /// Mean over the strata, by their degrees of freedom.
    fn pooled(&self, of: impl Fn(&StratumSpread) -> f64) -> f64 {
        self.strata.iter().map(|s| s.freedom() * of(s)).sum::<f64>() / self.freedom().max(1.0)
    }

    /// The spread of the sum; degrees of freedom after Satterthwaite.
    ///
    /// A few units of a stratum may miss what is rare and large, and then show almost no variance. So a stratum's
    /// variance is taken to be at least what it is when [`PRIOR_FREEDOM`] degrees of freedom of the variance in all
    /// strata are added to its own (a moderated variance; Smyth, 2004). The more skewed units are, the less does a
    /// stratum's own variance tell: its freedom counts as that of a gamma law of the same skewness, whose kurtosis is
    /// 3 + 1.5 skewness².
    fn of_sum(&self) -> SumSpread {
        let pooled = self.pooled(|s| s.variance);
        let skewness = if pooled > 0.0 { self.pooled(|s| s.third) / pooled.powf(1.5) } else { 0.0 };
        let share = 1.0 / (1.0 + 0.75 * skewness * skewness);
        let (mut variance, mut third, mut by_freedom) = (0.0, 0.0, 0.0);
        for s in &self.strata {
            let own = s.freedom() * share;
            let moderated = (own * s.variance + PRIOR_FREEDOM * pooled) / (own + PRIOR_FREEDOM);
            let of_total = s.stratum.variance_factor() * s.variance.max(moderated);
            variance += of_total;
            third += s.stratum.third_factor() * s.third;
            by_freedom += of_total * of_total / s.freedom().max(1.0);
        }
        let degrees_of_freedom = if by_freedom > 0.0 { variance * variance / by_freedom } else { f64::MAX };
        let skewness = if variance > 0.0 { third / variance.powf(1.5) } else { 0.0 };
        SumSpread { variance, skewness, degrees_of_freedom }
    }
}

impl<'a> Population<'a> {
    /// Prepares estimates. `all` are the moments of all records together, for each stratum.
    pub fn new(strata: &'a [StratumSample], all: &[GroupMoments], confidence: f64) -> Population<'a> {
        assert_eq!(strata.len(), all.len(), "moments for each stratum");
        let sizes = CommonSizes::of(strata);
        let mut population =
            Population { strata, confidence, sampled_records: 0.0, records: 0.0, size_of_seen: 1.0, sizes };
        let size = |seen: bool| strata.iter().filter(|s| !seen || s.sampled > 0).map(|s| s.size).sum::<f64>();
        if size(true) > 0.0 {
            population.size_of_seen = size(false) / size(true);
        }
        for (stratum, all) in strata.iter().zip(all) {
            population.sampled_records += all.total.count;
            population.records += stratum.expansion() * all.total.count;
        }
        population
    }

    /// Everything was read.
    pub fn is_whole(&self) -> bool {
        self.strata.iter().all(|stratum| stratum.sampled == stratum.units)
    }

    /// The estimate without correction and interval, by which groups are ordered.
    pub fn expanded(&self, quantity: Quantity, group: &[GroupTotal]) -> f64 {
        let sum = |of: fn(&GroupTotal) -> f64| {
            group.iter().map(|part| self.strata[part.stratum].expansion() * of(part)).sum::<f64>()
        };
        match quantity {
            Quantity::Count => sum(|part| part.total.count),
            Quantity::Sum => sum(|part| part.total.sum),
            Quantity::Mean => sum(|part| part.total.sum) / sum(|part| part.total.count),
        }
    }

    /// The value of [`Population::estimate`]: all that is said of a group that is too rare for an interval, which costs most.
    pub fn value(&self, quantity: Quantity, group: &[(usize, GroupMoments)]) -> f64 {
        let total = |sums: fn(&GroupMoments) -> (f64, f64)| {
            let effect = self.size_effect(group, sums);
            let of = |(h, m): &(usize, GroupMoments)| {
                let (stratum, sum) = (&self.strata[*h], sums(m).0);
                stratum.expansion() * sum - effect.elasticity * own_density(stratum, sum) * stratum.size_error()
            };
            let in_common = effect.elasticity * effect.density * self.sizes.error;
            (group.iter().map(of).sum::<f64>() - in_common) * self.size_of_seen
        };
        match quantity {
            Quantity::Count => total(|m| (m.total.count, m.count_size)),
            Quantity::Sum => total(|m| (m.total.sum, m.sum_size)),
            Quantity::Mean => self.count_and_mean(group).1,
        }
    }

    /// Expanded number of records, and their mean.
    fn count_and_mean(&self, group: &[(usize, GroupMoments)]) -> (f64, f64) {
        let (count, sum) = group.iter().fold((0.0, 0.0), |(count, sum), (h, m)| {
            let expansion = self.strata[*h].expansion();
            (count + expansion * m.total.count, sum + expansion * m.total.sum)
        });
        (count, sum / count)
    }

    /// Estimates a quantity of a group from its moments in the strata where it was seen.
    pub fn estimate(&self, quantity: Quantity, group: &[(usize, GroupMoments)]) -> Estimate {
        let units_seen = group.iter().map(|(_, moments)| moments.units).sum();
        let mut estimate = match quantity {
            Quantity::Count => self.total(true, group, |m| [m.total.count, m.count_count, m.count_cubed, m.count_size]),
            Quantity::Sum => self.total(false, group, |m| [m.total.sum, m.sum_sum, m.sum_cubed, m.sum_size]),
            Quantity::Mean => self.mean(group),
        };
        estimate.units_seen = units_seen;
        let is_bounded = estimate.low.is_finite() && estimate.high.is_finite();
        let is_known = estimate.claimed && units_seen >= RARE_UNITS && is_bounded && every_stratum_is_seen(self.strata);
        estimate.claimed = self.is_whole() || is_known;
        if quantity == Quantity::Count {
            // What was seen is there.
            let seen: f64 = group.iter().map(|(_, m)| m.total.count).sum();
            estimate.low = estimate.low.max(seen);
            estimate.high = estimate.high.max(seen);
        }
        estimate.design_effect = estimate.standard_error.powi(2) / self.variance_of_single_records(quantity, group);
        estimate
    }

    /// `sums` gives of a stratum's units Σy, Σy², Σy³ and Σy·size.
    fn total(
        &self,
        is_count: bool,
        group: &[(usize, GroupMoments)],
        sums: impl Fn(&GroupMoments) -> [f64; 4],
    ) -> Estimate {
        let of_sizes = self.size_effect(group, |m| (sums(m)[0], sums(m)[3]));
        let (mut value, mut found) = (0.0, Spread::default());
        let mut seen_in = group.iter().peekable();
        for (h, stratum) in self.strata.iter().enumerate() {
            let m = seen_in.next_if(|(seen, _)| *seen == h).map_or(GroupMoments::default(), |(_, moments)| *moments);
            let [sum, square, cube, by_size] = sums(&m);
            let density = own_density(stratum, sum) + common_weight(stratum) * of_sizes.density;
            let slope = of_sizes.elasticity * density;
            value += stratum.expansion() * sum - slope * stratum.size_error();
            let own = stratum.covariance(sum, sum, square);
            let both = stratum.covariance(sum, stratum.sampled_size, by_size);
            let left = own - 2.0 * slope * both + slope * slope * stratum.size_variance();
            // Where sizes explain a part of the variance, the third cumulant would be theirs, which the slope takes out: that of one
            // short unit at the end of a file, perhaps.
            let is_of_sizes = of_sizes.sizes_differ || left < UNEXPLAINED * own;
            let third = if is_of_sizes { 0.0 } else { stratum.third_cumulant(sum, square, cube, cube.abs()) };
            // Numbers of records may well be in proportion to sizes, which are known of all units.
            let terms = if is_count { 0.0 } else { square + sum * sum / stratum.sampled.max(1) as f64 };
            found.add(stratum, left, terms, third);
        }
        assert!(seen_in.peek().is_none(), "moments are in the order of strata");
        // What is on a disk that gave nothing is taken to be like the rest.
        self.interval(value * self.size_of_seen, found, 1.0, !is_count)
    }

    /// How a group grows with the size of its units: by how much relative to what is in proportion to size. Strata of many units count by
    /// what they hold of the group, since files differ in what a byte holds, and a group of one file has nothing to do with
    /// the sizes in others. Strata of small files count by what all of these hold ([`OWN_DENSITY_UNITS`]). Where sizes hardly
    /// vary, their covariance with the group tells nothing: one short unit at the end of a file would decide it. There a group
    /// is taken to be proportional to size, so that it makes no difference whether that unit was drawn. `sums` gives Σy and
    /// Σy·size.
    fn size_effect(&self, group: &[(usize, GroupMoments)], sums: impl Fn(&GroupMoments) -> (f64, f64)) -> SizeEffect {
        let weighted =
            |(h, m): &(usize, GroupMoments)| common_weight(&self.strata[*h]) * self.strata[*h].expansion() * sums(m).0;
        let expanded: f64 = group.iter().map(weighted).sum();
        let density = if self.sizes.expanded > 0.0 { expanded / self.sizes.expanded } else { 0.0 };
        let (mut with_size, mut size_variance, mut spread_variance) =
            (0.0, density * density * self.sizes.variance, density * density * self.sizes.spread_variance);
        for (h, m) in group {
            let (stratum, (sum, by_size)) = (&self.strata[*h], sums(m));
            let (own, common) = (own_density(stratum, sum), common_weight(stratum) * density);
            let (factor, more) = (stratum.variance_factor(), own * own + 2.0 * own * common);
            with_size += factor * (own + common) * stratum.covariance(sum, stratum.sampled_size, by_size);
            size_variance += factor * more * stratum.size_variance();
            spread_variance += factor * more * small_spread(stratum).powi(2);
        }
        // Squares of what is large may be beyond floating-point numbers.
        let elasticity = (with_size + spread_variance) / (size_variance + spread_variance);
        SizeEffect {
            elasticity: if elasticity.is_finite() { elasticity } else { 0.0 },
            density: if density.is_finite() { density } else { 0.0 },
            sizes_differ: size_variance > spread_variance,
        }
    }

    fn mean(&self, group: &[(usize, GroupMoments)]) -> Estimate {
        let (count, mean) = self.count_and_mean(group);
        let mut found = Spread::default();
        for (h, m) in group {
            let (stratum, r) = (&self.strata[*h], m.residuals(mean));
            let third = stratum.third_cumulant(r.sum, r.square, r.cube, r.cube_terms);
            let variance = stratum.covariance(r.sum, r.sum, r.square);
            found.add(stratum, variance, r.square_terms + r.sum * r.sum / stratum.sampled.max(1) as f64, third);
        }
        self.interval(mean, found, count, true)
    }

    /// Student's interval, corrected for skewness. Where few units hold much of a group, the estimate is too low more
    /// often than too high, and its variance with it. The shift and the greater width are the terms of first and second order
    /// of Cornish and Fisher for a studentized mean (Hall, The Bootstrap and Edgeworth Expansion, 1992, sections 2.5 and
    /// 2.6), with the kurtosis of a gamma law, 1.5 skewness², for which it makes no difference that skewness is estimated.
    /// Where values must differ for a variance, and those of the sample do not, nothing is claimed; nor where each stratum has
    /// given one unit.
    fn interval(&self, value: f64, found: Spread, divisor: f64, must_differ: bool) -> Estimate {
        if value.is_nan() {
            return Estimate::exact(value, 0);
        }
        let is_unknown = found.freedom() == 0.0 || must_differ && found.is_rounding();
        if is_unknown && !self.is_whole() {
            return Estimate::unclaimed(value, 0);
        }
        let spread = found.of_sum();
        let standard_error = spread.variance.sqrt() / divisor;
        if standard_error == 0.0 {
            return Estimate::exact(value, 0);
        }
        let t = t_quantile(self.confidence, spread.degrees_of_freedom);
        let skewness = spread.skewness;
        let shift = (skewness * (2.0 * t * t + 1.0) / 6.0).clamp(-t / 2.0, t / 2.0);
        let half = t + (skewness * skewness * t * (t * t + 2.0) * 11.0 / 72.0).min(t);
        let (low, high) = (value + (shift - half) * standard_error, value + (shift + half) * standard_error);
        Estimate { low, high, standard_error, ..Estimate::exact(value, 0) }
    }

    /// The variance that as many records would give if each were drawn for itself: the naive one.
    pub fn variance_of_single_records(&self, quantity: Quantity, group: &[(usize, GroupMoments)]) -> f64 {
        let (mut count, mut sum, mut squares) = (0.0, 0.0, 0.0);
        for (h, m) in group {
            let expansion = self.strata[*h].expansion();
            count += expansion * m.total.count;
            sum += expansion * m.total.sum;
            squares += expansion * m.total.squares;
        }
        let left = 1.0 - self.sampled_records / self.records;
        let of_mean =
            |all: f64, sum: f64, squares: f64, sampled: f64| left * (squares / all - (sum / all).powi(2)) / sampled;
        match quantity {
            Quantity::Count => self.records.powi(2) * of_mean(self.records, count, count, self.sampled_records),
            Quantity::Sum => self.records.powi(2) * of_mean(self.records, sum, squares, self.sampled_records),
            Quantity::Mean => of_mean(count, sum, squares, count * self.sampled_records / self.records),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::Moments;

    /// Cochran's formula computed by hand: N = 10, n = 4, y = 3, 5, 4, 8, equal sizes.
    #[test]
    fn a_total_of_one_stratum_equals_arithmetic() {
        let mut stratum = StratumSample { units: 10, size: 100.0, ..Default::default() };
        let mut group = GroupMoments::default();
        for y in [3.0, 5.0, 4.0, 8.0] {
            stratum.add_unit(10.0);
            group.add_unit(Moments { count: y, sum: y, squares: y }, 10.0);
        }
        let strata = [stratum];
        let population = Population::new(&strata, &[group], 0.95);
        let total = population.estimate(Quantity::Count, &[(0, group)]);
        assert!((total.value - 50.0).abs() < 1e-9);
        // s² = 14/3; V = 10·6/4·14/3 = 70; t(3) = 3.1824.
        assert!((total.standard_error - 70f64.sqrt()).abs() < 1e-9);
        // k₃ = 12; of the total 12·(10/4)²·10·0.6·0.2 = 90, so its skewness is 90/70^1.5 = 0.15367: shift (2t² + 1)/6 of it,
        // half width t(1 + 0.15367²·(t² + 2)·11/72) = 1.04376 t.
        assert!(((total.high - total.low) / 2.0 - 1.04376 * 3.182446 * 70f64.sqrt()).abs() < 1e-3);
        assert!(((total.high + total.low) / 2.0 - 50.0 - 0.15367 * 21.256 / 6.0 * 70f64.sqrt()).abs() < 1e-3);
        assert!(!total.claimed, "four units are few");
    }

    #[test]
    fn totals_in_proportion_to_size_have_no_error() {
        let mut stratum = StratumSample { units: 6, size: 21.0, ..Default::default() };
        let mut group = GroupMoments::default();
        for size in [1.0, 4.0, 6.0] {
            stratum.add_unit(size);
            group.add_unit(Moments { count: 3.0 * size, ..Default::default() }, size);
        }
        let strata = [stratum];
        let total = Population::new(&strata, &[group], 0.95).estimate(Quantity::Count, &[(0, group)]);
        assert!((total.value - 63.0).abs() < 1e-9 && total.standard_error < 1e-6, "{total:?}");
    }

    /// One unit says nothing about how units of its stratum differ.
    #[test]
    fn nothing_is_claimed_of_one_unit_of_each_stratum() {
        let (mut strata, mut group) = (Vec::new(), Vec::new());
        for h in 0..60 {
            let mut stratum = StratumSample { units: 4, size: 40.0, ..Default::default() };
            let mut moments = GroupMoments::default();
            stratum.add_unit(10.0);
            let y = f64::from(h as u32 % 7 + 1);
            moments.add_unit(Moments { count: y, sum: y, squares: y * y }, 10.0);
            strata.push(stratum);
            group.push((h, moments));
        }
        let all: Vec<_> = group.iter().map(|(_, moments)| *moments).collect();
        for quantity in [Quantity::Count, Quantity::Sum, Quantity::Mean] {
            let found = Population::new(&strata, &all, 0.95).estimate(quantity, &group);
            assert!(!found.claimed && found.needed_factor(0.5) > 1.0, "{quantity:?}: {found:?}");
        }
    }

    #[test]
    fn the_value_alone_is_that_of_the_estimate() {
        let (mut strata, mut group) = (Vec::new(), Vec::new());
        for h in 0..7usize {
            let mut stratum = StratumSample {
                units: 40,
                size: 4000.0 + h as f64,
                of_several_files: h % 3 == 0,
                ..Default::default()
            };
            let mut moments = GroupMoments::default();
            for unit in 0..(3 * h + 2) {
                let (size, y) = ((90 + unit * 7 % 13) as f64, (unit % 5 + h + 1) as f64);
                stratum.add_unit(size);
                moments.add_unit(Moments { count: 2.0 + y, sum: y * y, squares: y * y }, size);
            }
            strata.push(stratum);
            group.extend((h % 2 == 0).then_some((h, moments)));
        }
        let population = Population::new(&strata, &[GroupMoments::default(); 7], 0.95);
        for quantity in [Quantity::Count, Quantity::Sum, Quantity::Mean] {
            let (value, estimate) = (population.value(quantity, &group), population.estimate(quantity, &group));
            assert!((value - estimate.value).abs() <= 1e-12 * value, "{quantity:?}: {value}, {estimate:?}");
        }
    }

    /// An interrupt may come before a disk has given anything.
    #[test]
    fn a_stratum_that_gave_no_unit_counts_by_its_size_and_nothing_is_claimed() {
        let mut seen = StratumSample { units: 100, size: 1000.0, ..Default::default() };
        let mut group = GroupMoments::default();
        for unit in 0..40 {
            let y = f64::from(unit % 5);
            seen.add_unit(10.0);
            group.add_unit(Moments { count: 2.0, sum: y, squares: y * y }, 10.0);
        }
        let strata = [seen, StratumSample { units: 100, size: 1000.0, ..Default::default() }];
        let population = Population::new(&strata, &[group, GroupMoments::default()], 0.95);
        for (quantity, value) in [(Quantity::Count, 400.0), (Quantity::Sum, 400.0), (Quantity::Mean, 1.0)] {
            let found = population.estimate(quantity, &[(0, group)]);
            assert!((found.value - value).abs() < 1e-9 && !found.claimed, "{quantity:?}: {found:?}");
        }
    }

    /// Their squares are beyond floating-point numbers, or their cubes.
    #[test]
    fn nothing_is_claimed_of_values_too_large_for_a_variance() {
        for large in [1e200, 1e120] {
            let mut stratum = StratumSample { units: 100, size: 1000.0, ..Default::default() };
            let mut group = GroupMoments::default();
            for unit in 0..40 {
                let y = if unit % 3 == 0 { large } else { -large };
                stratum.add_unit(10.0);
                group.add_unit(Moments { count: 1.0, sum: y, squares: y * y }, 10.0);
            }
            let strata = [stratum];
            for quantity in [Quantity::Sum, Quantity::Mean] {
                let found = Population::new(&strata, &[group], 0.95).estimate(quantity, &[(0, group)]);
                assert!(!found.claimed && found.needed_factor(0.02) > 1.0, "{large}: {found:?}");
            }
        }
    }

    /// What a sample says of 40 of 100 units with 100 records each, of which these are the values.
    fn of_values(quantity: Quantity, value: impl Fn(usize) -> f64) -> Estimate {
        let mut stratum = StratumSample { units: 100, size: 1000.0, ..Default::default() };
        let mut group = GroupMoments::default();
        for unit in 0..40 {
            let values = (0..100).map(|i| value(100 * unit + i));
            let (sum, squares) = values.fold((0.0, 0.0), |(sum, squares), v| (sum + v, squares + v * v));
            stratum.add_unit(10.0);
            group.add_unit(Moments { count: 100.0, sum, squares }, 10.0);
        }
        Population::new(&[stratum], &[group], 0.95).estimate(quantity, &[(0, group)])
    }

    /// All records of the sample succeeded: that none failed in the other units is not known.
    #[test]
    fn nothing_is_claimed_where_the_units_of_a_sample_do_not_differ() {
        for quantity in [Quantity::Sum, Quantity::Mean] {
            for value in [0.0, 1.0, 0.1] {
                let found = of_values(quantity, |_| value);
                assert!(!found.claimed && found.needed_factor(0.5) > 1.0, "{quantity:?} of {value}: {found:?}");
            }
            assert!(of_values(quantity, |i| f64::from(i == 7)).claimed);
        }
    }

    /// Times in milliseconds of a minute: sums of squares have fewer digits than the difference needs.
    #[test]
    fn nothing_is_claimed_where_rounding_makes_up_the_variance() {
        let time = |i: usize| 1.7e12 + (i * 7919 % 60_000) as f64;
        for quantity in [Quantity::Sum, Quantity::Mean] {
            assert!(!of_values(quantity, time).claimed, "{:?}", of_values(quantity, time));
            assert!(of_values(quantity, |i| time(i) - 1.7e12).claimed);
        }
    }

    #[test]
    fn what_was_read_whole_is_exact() {
        let mut stratum = StratumSample { units: 2, size: 2.0, ..Default::default() };
        let mut group = GroupMoments::default();
        for y in [3.0, 5.0] {
            stratum.add_unit(1.0);
            group.add_unit(Moments { count: 1.0, sum: y, squares: y * y }, 1.0);
        }
        let strata = [stratum];
        let population = Population::new(&strata, &[group], 0.95);
        let mean = population.estimate(Quantity::Mean, &[(0, group)]);
        assert_eq!((mean.value, mean.low, mean.high, mean.claimed), (4.0, 4.0, 4.0, true));
    }
}
