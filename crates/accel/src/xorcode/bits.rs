//! The bit matrices by name, and sets of packets as rows of bits.

use super::XorCodeError;
use crate::erasure::galois::{Galois, MAX_W, MIN_W};
use crate::erasure::{MAX_FRAGMENTS, named};
use crate::named_enum;

named_enum! {
    /// A named construction of the bit matrix. The name is part of a redundancy class, so its meaning never changes.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub enum Technique (XorCodeError = |name| XorCodeError::UnknownTechnique { name }) {
        /// `liberation`: m = 2, w an odd prime, k ≤ w. The fewest ones a RAID-6 bit matrix can have.
        Liberation = "liberation",
        /// `blaum_roth`: m = 2, w + 1 a prime above 2, k ≤ w.
        BlaumRoth = "blaum_roth",
        /// `cauchy_orig`: the Cauchy matrix of Jerasure over GF(2^w), as bits; k + m ≤ 2^w.
        CauchyOrig = "cauchy_orig",
        /// `cauchy_good`: `cauchy_orig`, scaled to few ones.
        CauchyGood = "cauchy_good",
    }
}

impl Technique {
    /// Refuses parameters for which this technique has no code.
    pub(super) fn check(self, k: usize, m: usize, w: usize) -> Result<(), XorCodeError> {
        if k == 0 || m == 0 || k > MAX_FRAGMENTS || m > MAX_FRAGMENTS || k + m > MAX_FRAGMENTS {
            return Err(XorCodeError::Fragments { k, m });
        }
        let raid6 = matches!(self, Technique::Liberation | Technique::BlaumRoth);
        if raid6 && m != 2 {
            return Err(XorCodeError::ParityCount { technique: self, m });
        }
        let (fits, needs) = match self {
            Technique::Liberation => (w > 2 && w <= MAX_FRAGMENTS && is_prime(w), "an odd prime up to 251"),
            Technique::BlaumRoth => {
                (w > 1 && w < MAX_FRAGMENTS && is_prime(w + 1), "a number from 2 to 250 that is one less than a prime")
            }
            _ => ((MIN_W..=MAX_W).contains(&w), "a number from 2 to 11"),
        };
        if !fits {
            return Err(XorCodeError::W { technique: self, w, needs });
        }
        let (what, most, got) = if raid6 { ("data fragments", w, k) } else { ("fragments", 1 << w, k + m) };
        if got > most {
            return Err(XorCodeError::TooWide { technique: self, w, what, most, got });
        }
        Ok(())
    }

    /// The m·w rows of a code that passed [`Technique::check`].
    pub(super) fn rows(self, k: usize, m: usize, w: usize) -> Vec<BitRow> {
        let mut rows = vec![BitRow::new(k * w); m * w];
        match (self, Galois::new(w)) {
            (Technique::Liberation, _) => raid6(&mut rows, k, w, liberation_ones),
            (Technique::BlaumRoth, _) => raid6(&mut rows, k, w, blaum_roth_ones),
            (Technique::CauchyOrig, Some(gf)) => expand(gf, &named::cauchy_orig(gf, k, m), &mut rows, k, w),
            (_, Some(gf)) => expand(gf, &named::cauchy_good(gf, k, m, w), &mut rows, k, w),
            (_, None) => {} // `check` admits only w that have a field.
        }
        rows
    }
}

fn is_prime(n: usize) -> bool {
    n > 1 && (2..n).take_while(|d| d * d <= n).all(|d| !n.is_multiple_of(d))
}

/// The first parity is the XOR of all data; row i of the second has the ones that `ones(i, column, w)` lists.
fn raid6(rows: &mut [BitRow], k: usize, w: usize, ones: fn(usize, usize, usize) -> [Option<usize>; 2]) {
    for column in 0..k {
        for i in 0..w {
            rows[i].flip(column * w + i);
            for packet in ones(i, column, w).into_iter().flatten() {
                rows[w + i].flip(column * w + packet);
            }
        }
    }
}

/// Liberation codes, §3: X_j is the identity rotated by j; for j > 0 it has a second one in row y = j·(w−1)/2 mod w, at
/// (y + j − 1) mod w.
fn liberation_ones(i: usize, j: usize, w: usize) -> [Option<usize>; 2] {
    let extra = j > 0 && i == j * ((w - 1) / 2) % w;
    [Some((i + j) % w), extra.then(|| (i + j + w - 1) % w)]
}

/// Blaum–Roth: multiplication by x^j in the ring of polynomials modulo 1 + x + … + x^w, with p = w + 1 a prime. With
/// rows and packets counted from 1: row l has a one at l + j mod p; if that is 0, it has ones at j and at half of j
/// modulo p.
fn blaum_roth_ones(i: usize, j: usize, w: usize) -> [Option<usize>; 2] {
    let (p, l) = (w + 1, i + 1);
    match (l + j) % p {
        _ if j == 0 => [Some(i), None],
        0 => {
            let half = if j.is_multiple_of(2) { j / 2 } else { (j + p) / 2 };
            [Some(j - 1), Some(half - 1)]
        }
        packet => [Some(packet - 1), None],
    }
}

/// Replaces each coefficient by the w × w bit matrix that multiplies by it.
fn expand(gf: Galois, matrix: &[u32], rows: &mut [BitRow], k: usize, w: usize) {
    for (at, coefficient) in matrix.iter().enumerate() {
        let (row, column) = (at / k, at % k);
        for (c, bits) in gf.columns(*coefficient).enumerate() {
            (0..w).filter(|r| bits >> r & 1 != 0).for_each(|r| rows[row * w + r].flip(column * w + c));
        }
    }
}

/// A set of packet numbers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BitRow(Vec<u64>);

impl BitRow {
    /// The empty set, with room for numbers below `len`.
    pub fn new(len: usize) -> BitRow {
        BitRow(vec![0; len.div_ceil(64)])
    }

    /// Adds a packet that is absent, or removes it.
    pub fn flip(&mut self, i: usize) {
        self.0[i / 64] ^= 1 << (i % 64);
    }

    /// Whether the packet is in the set.
    pub fn has(&self, i: usize) -> bool {
        self.0[i / 64] >> (i % 64) & 1 != 0
    }

    /// Replaces the set by its symmetric difference with `other`.
    pub fn add(&mut self, other: &BitRow) {
        self.0.iter_mut().zip(&other.0).for_each(|(a, b)| *a ^= b);
    }

    /// Number of packets in the set.
    pub fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Number of packets in exactly one of the two sets.
    pub fn distance(&self, other: &BitRow) -> usize {
        self.0.iter().zip(&other.0).map(|(a, b)| (a ^ b).count_ones() as usize).sum()
    }

    /// The packets in rising order.
    pub fn ones(&self) -> impl Iterator<Item = usize> {
        self.0.iter().enumerate().flat_map(|(word, bits)| {
            let mut rest = *bits;
            std::iter::from_fn(move || {
                let bit = (rest != 0).then(|| rest.trailing_zeros() as usize)?;
                rest &= rest - 1;
                Some(word * 64 + bit)
            })
        })
    }
}
