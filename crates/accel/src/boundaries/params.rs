//! Chunk size limits, and the thresholds that give the right mean. Integers only, so that every implementation derives
//! the same numbers.

use super::{Cbch, WINDOW_BYTES};

/// Smallest chunk size of a rule (a stream's last chunk may be smaller).
pub const MIN_CHUNK_BYTES: usize = 4 * 1024;

/// Largest chunk size of a rule.
pub const MAX_CHUNK_BYTES: usize = 8 * 1024 * 1024;

// A chunk is longer than the window that decides its end, and the range of sizes is not empty.
const _: () = assert!(MIN_CHUNK_BYTES >= WINDOW_BYTES && 2 * MIN_CHUNK_BYTES <= MAX_CHUNK_BYTES);

/// Strong candidates are this many times rarer than candidates.
const STRONG_RARITY: u64 = 4;

/// The prefilter passes one position in 1,024, or in 512 if less than this lies between minimum and mean.
const FINE_PREFILTER_BELOW_BYTES: usize = 16 * 1024;

/// Why chunk sizes were refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParamsError {
    /// The size is outside the limits.
    #[error("chunk size {got} bytes: sizes go from {MIN_CHUNK_BYTES} to {MAX_CHUNK_BYTES} bytes")]
    Size {
        /// Size asked for, in bytes.
        got: usize,
    },
    /// The maximum must be at least twice the minimum.
    #[error("cdc:{min}..{max}: the maximum must be at least twice the minimum; use fixed:SIZE for equal chunks")]
    Order {
        /// Minimum asked for, in bytes.
        min: usize,
        /// Maximum asked for, in bytes.
        max: usize,
    },
    /// Windows are empty, or chunks would be too small or too large.
    #[error(
        "cbch:{window_bytes},{low_bits},{advance_bytes}: windows have 1 to 65536 bytes and advance by at least 1, and the \
         mean chunk, m + (2^k - 1)·p bytes, lies between {MIN_CHUNK_BYTES} and {MAX_CHUNK_BYTES}; try cbch:20,14,20"
    )]
    Cbch {
        /// m asked for.
        window_bytes: usize,
        /// k asked for.
        low_bits: u32,
        /// p asked for.
        advance_bytes: usize,
    },
}

/// How a stream is cut into chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// Every chunk but the last has this many bytes.
    Fixed(usize),
    /// Content-defined.
    Cdc(Params),
    /// stdchk's content-based rule.
    Cbch(Cbch),
}

impl Rule {
    /// Chunks of `size` bytes.
    ///
    /// # Errors
    /// The size is outside the limits.
    pub fn fixed(size: usize) -> Result<Rule, ParamsError> {
        check_size(size)?;
        Ok(Rule::Fixed(size))
    }

    /// Content-defined chunks of `min` to `max` bytes.
    ///
    /// # Errors
    /// As [`Params::new`].
    pub fn cdc(min: usize, max: usize) -> Result<Rule, ParamsError> {
        Params::new(min, max).map(Rule::Cdc)
    }

    /// stdchk's rule `cbch:m,k,p`: windows of m bytes that advance by p, a boundary where k bits are zero.
    ///
    /// # Errors
    /// As [`Cbch::new`].
    pub fn cbch(window_bytes: usize, low_bits: u32, advance_bytes: usize) -> Result<Rule, ParamsError> {
        Cbch::new(window_bytes, low_bits, advance_bytes).map(Rule::Cbch)
    }

    /// No chunk is larger than this.
    pub fn max_bytes(&self) -> usize {
        match self {
            Rule::Cbch(_) => MAX_CHUNK_BYTES,
            Rule::Fixed(size) => *size,
            Rule::Cdc(params) => params.max(),
        }
    }

    /// Mean chunk size on random data.
    pub fn mean_bytes(&self) -> usize {
        match self {
            Rule::Cbch(rule) => rule.mean_bytes(),
            Rule::Fixed(size) => *size,
            Rule::Cdc(params) => params.mean(),
        }
    }
}

/// All numbers that the two phases need for `cdc:MIN..MAX`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Params {
    min: usize,
    mean: usize,
    max: usize,
    /// The prefilter's second condition: a signed byte must be above this.
    pub(crate) above: i8,
    /// Positions that pass the prefilter and mix to less than this are candidates.
    pub(crate) any_below: u64,
    /// Candidates that mix to less than this are strong.
    pub(crate) strong_below: u64,
}

impl Params {
    /// Parameters for chunks of `min` to `max` bytes with a mean of √(min·max) on random data.
    ///
    /// [`MIN_CHUNK_BYTES`] ≤ min, 2·min ≤ max ≤ [`MAX_CHUNK_BYTES`].
    ///
    /// # Errors
    /// The sizes are outside these limits.
    pub fn new(min: usize, max: usize) -> Result<Params, ParamsError> {
        check_size(min)?;
        check_size(max)?;
        if max < 2 * min {
            return Err(ParamsError::Order { min, max });
        }
        let mean = (min as u64 * max as u64).isqrt() as usize;
        assert!(min <= mean && mean <= max, "mean {mean} of {min}..{max}");
        // A signed byte is above −1 or above 63 half or a quarter of the time: one or two bits more than the eight of
        // the prefilter's sum.
        let (above, shift) = if mean - min < FINE_PREFILTER_BELOW_BYTES { (-1, 9) } else { (63, 10) };
        let any_below = solve(min as u64, mean as u64, max as u64, shift);
        Ok(Params { min, mean, max, above, any_below, strong_below: any_below / STRONG_RARITY })
    }

    /// No chunk but a stream's last is smaller than this.
    pub fn min(&self) -> usize {
        self.min
    }

    /// Mean chunk size on random data. From this size on any candidate cuts.
    pub fn mean(&self) -> usize {
        self.mean
    }

    /// No chunk is larger than this.
    pub fn max(&self) -> usize {
        self.max
    }
}

#[cfg(test)]
impl Params {
    /// Makes every survivor of the finer prefilter a candidate, so that kernels are compared on many.
    pub fn with_everything_a_candidate(&self) -> Params {
        Params { above: -1, any_below: u64::MAX, ..*self }
    }
}

fn check_size(got: usize) -> Result<(), ParamsError> {
    if (MIN_CHUNK_BYTES..=MAX_CHUNK_BYTES).contains(&got) { Ok(()) } else { Err(ParamsError::Size { got }) }
}

/// The largest threshold whose expected chunk size is at least `mean`: bisection over all 64 bits.
fn solve(min: u64, mean: u64, max: u64, shift: u32) -> u64 {
    let (mut low, mut high) = (1u64, u64::MAX);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if expected_size(min, mean, max, middle >> shift) >= mean { low = middle } else { high = middle - 1 }
    }
    low
}

/// Expected chunk size in bytes on random data, in Q64 arithmetic that rounds down: min + (1 − (1−s)^n) / s + (1−s)^n ·
/// (1 − (1−a)^w) / a, where s and a are the probabilities that a position is a strong candidate and a candidate (`any`
/// / 2^64), n = mean − min and w = max − mean.
fn expected_size(min: u64, mean: u64, max: u64, any: u64) -> u64 {
    let any = any.max(1);
    let strong = (any / STRONG_RARITY).max(1);
    let left_after_strong = power_q64(strong.wrapping_neg(), mean - min);
    let left_after_any = power_q64(any.wrapping_neg(), max - mean);
    let first = u128::from(left_after_strong.wrapping_neg()) / u128::from(strong);
    let second = u128::from(left_after_any.wrapping_neg()) / u128::from(any);
    min + first as u64 + ((second * u128::from(left_after_strong)) >> 64) as u64
}

/// (x / 2^64)^n · 2^64, rounding down at each product; x and the result are below one.
fn power_q64(x: u64, n: u64) -> u64 {
    let product = |a: u64, b: u64| ((u128::from(a) * u128::from(b)) >> 64) as u64;
    let (mut result, mut square, mut rest) = (u64::MAX, x, n);
    while rest != 0 {
        if rest & 1 != 0 {
            result = product(result, square);
        }
        square = product(square, square);
        rest >>= 1;
    }
    result
}
